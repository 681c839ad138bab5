"""A step of the leader: it keeps its keys as it wrote them, and looks who holds every message."""

from rmqha.coordination.interface import Put
from rmqha.failover.keys import CONFIG, EPOCH, LEADER, STATUS, SYNC, Leader, Status, SyncSet, encode
from rmqha.failover.step.actions import RequireMembers, TellSessions, WaitSeconds
from rmqha.failover.step.events import CallDone
from rmqha.failover.step.knowledge import changed
from rmqha.failover.step.obeying import make_room, obey
from rmqha.failover.step.reading import note_own, read
from rmqha.failover.step.rights import LEASE_OVER, end_right, grant, is_held, keep_sync_set, wake
from rmqha.failover.step.syncset import LookAtMembers, SyncSetKeeper
from rmqha.failover.step.telling import register
from rmqha.failover.step.work import Procedure, Work, ask, transact
from rmqha.failover.view import ClusterView
from rmqha.kit.events import Event


def lead(work: Work, view: ClusterView) -> Procedure[None]:
    """After all keys were read. Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
    right, other, held = work.knows.right, view.leader, view.held(LEADER)
    assert right is not None, "a leader has one"
    if other is not None and other.session != work.knows.me.session.hex() and other.epoch >= right.epoch:
        end_right(work, f"{other.node} leads, epoch {other.epoch}")
        return  # a key of an older epoch comes from a coordinator that was set back: it is written again
    if not is_held(work):
        end_right(work, LEASE_OVER)
        return
    is_ours = held is not None and held.create_revision == work.knows.created
    if not is_ours or work.knows.doubts_keys or _is_doubted(work, view):
        yield from _write_again(work, view)
        return
    yield from _restore_config(work, view)
    yield from register(work, view)
    tell_sessions(work, view)
    yield from lead_on(work)
    if any(isinstance(action, RequireMembers) for action in work.actions):
        yield from ask(WaitSeconds(0.0), CallDone)  # that may have confirmed puts
    yield from obey(work, view)
    yield from make_room(work, view, work.seen.facts.is_full)
    yield from _publish_status(work, view)


def _is_doubted(work: Work, view: ClusterView) -> bool:
    """Whether a member of an older version waits for us to write our keys again."""
    return view.leader is not None and work.knows.trust.floor(view) > view.leader.floor


def lead_on(work: Work) -> Procedure[None]:
    """Look at the members: add to the sync set those that hold everything, leave out those that fell behind.

    Raises CoordinatorError, DiskFull, NodeFailed.
    """
    keeper, members, view = work.knows.sync, work.seen.members, work.knows.view
    if work.knows.right is None or keeper is None or members is None or view is None:
        return
    if not is_held(work):
        end_right(work, LEASE_OVER)
        return
    if not keeper.is_settled:
        yield from _settle(work, keeper, view)
        return
    look = LookAtMembers(work.now, work.seen.facts.end, members, view.members, work.knows.config)
    keeper, found = keeper.look(look)
    if found is None:
        keep_sync_set(work, keeper)
        return
    keeper, new = keeper.numbered(found, work.seen.cluster_id)
    keep_sync_set(work, keeper.attempt(new))
    yield from _write_sync(work, view, new)


def _settle(work: Work, keeper: SyncSetKeeper, view: ClusterView) -> Procedure[None]:
    """A transaction was not answered: find out what ``sync`` holds. ``view`` is newer than the transaction.

    If it does not hold what was sent, the transaction may still be on its way. So ``sync`` is written as it was:
    its revision changes, and the late transaction fails.
    """
    if view.sync is not None and keeper.has_attempted(view.sync):
        keep_sync_set(work, keeper.settled(view.sync))
    else:
        keeper, again = keeper.numbered(keeper.written, work.seen.cluster_id)
        keep_sync_set(work, keeper)
        yield from _write_sync(work, view, again)


def _write_sync(work: Work, view: ClusterView, new: SyncSet) -> Procedure[None]:
    """Write ``sync``, if we lead and it is as in ``view``. Raises CoordinatorError: then the outcome is unknown."""
    work.knows = changed(work.knows, next_read=0.0)  # whatever becomes of it, the next step reads all keys
    compares = [work.still_ours(), view.unchanged(SYNC)]
    if (yield from transact("write sync", compares, [Put(work.key(SYNC), encode(new))])):
        yield from note_own(work, new.epoch, new)
        _settled(work, new)
        work.log(
            Event.SYNC_SET,
            "puts wait for {members}",
            members=", ".join(sorted(new.members)) or "no member: this node alone holds the newest messages",
        )


def _settled(work: Work, written: SyncSet) -> None:
    """``sync`` is known to hold this."""
    keeper = work.knows.sync
    assert keeper is not None, "a leader has one"
    keep_sync_set(work, keeper.settled(written))


def tell_sessions(work: Work, view: ClusterView) -> None:
    """Which members may follow, by the sessions that they show."""
    me = work.knows.me.name
    work.do(TellSessions({member.session: name for name, member in view.members.items() if name != me}))


def _write_again(work: Work, view: ClusterView) -> Procedure[None]:
    """Our keys are gone, or older than what we wrote, but the right to lead never ended: write them again.

    Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed.
    """
    right, keeper, me = work.knows.right, work.knows.sync, work.knows.me
    assert right is not None, "a leader has one"
    assert keeper is not None, "a leader has one"
    lease = yield from grant(work)
    cluster_id, floor = work.seen.cluster_id, work.knows.trust.floor(view)
    leader = Leader(me.name, me.session.hex(), right.epoch, cluster_id, floor)
    keeper, sync = keeper.numbered(keeper.written, cluster_id)
    keep_sync_set(work, keeper.attempt(sync))
    config = _config_to_write(work, view)
    writes = [
        Put(work.key(LEADER), encode(leader), lease),
        Put(work.key(EPOCH), encode(work.knows.history)),
        Put(work.key(SYNC), encode(sync)),
        *config,
    ]
    compares = [view.unchanged(name) for name in (LEADER, EPOCH, SYNC, CONFIG)]
    if (yield from transact("write the leader's keys again", compares, writes)):
        work.log(Event.FAILOVER_KEYS_WRITTEN, "the leader's keys are written again")
        _tell_config(work, config)
        yield from note_own(work, right.epoch, sync)
        again = yield from read(work)
        held = again.held(LEADER)
        if again.leader == leader and again.sync == sync and held is not None:
            work.knows = changed(work.knows, created=held.create_revision)
            _settled(work, sync)
    wake(work)


def _config_to_write(work: Work, view: ClusterView) -> list[Put]:
    """The settings, if the coordinator has lost them, or has older ones."""
    held, kept = view.held(CONFIG), work.knows.known.config.encode()
    is_lost = held is None or (work.knows.doubts_keys and held.value != kept)
    return [Put(work.key(CONFIG), kept)] if kept and is_lost else []


def _restore_config(work: Work, view: ClusterView) -> Procedure[None]:
    """Write the settings if the coordinator has lost them. Raises CoordinatorError."""
    config = _config_to_write(work, view)
    if config:
        compares = [work.still_ours(), view.unchanged(CONFIG)]
        if (yield from transact("write the settings again", compares, config)):
            _tell_config(work, config)


def _tell_config(work: Work, written: list[Put]) -> None:
    for put in written:
        work.log(
            Event.FAILOVER_SETTINGS_WRITTEN,
            "the cluster's settings are written again, because the coordinator had lost them: {settings}",
            settings=put.value.decode(),
        )


def _publish_status(work: Work, view: ClusterView) -> Procedure[None]:
    """Write how far the log is confirmed, and where it ends. Raises CoordinatorError."""
    right, members = work.knows.right, work.seen.members
    if members is None or right is None:
        return
    end, stamp = work.seen.facts.end, work.knows.history.stamp
    status = Status(right.epoch, members.confirmed_offset, end, stamp=stamp)
    if status != view.status:
        yield from transact("tell the status", [work.still_ours()], [Put(work.key(STATUS), encode(status))])
