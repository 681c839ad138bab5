"""Tries for the lead: a candidate closes its connection first, then the transaction decides who leads."""

from contextlib import suppress
from dataclasses import replace

from rmqha.coordination.interface import Compare, CompareTarget, CoordinatorError, CoordinatorUnavailable, Delete, Put
from rmqha.failover.eligible import away_members, better_candidates, may_lead, may_lead_in_doubt
from rmqha.failover.keys import (
    EPOCH,
    LEADER,
    MEMBERS,
    REQUEST,
    STATUS,
    SYNC,
    Answer,
    Cause,
    EpochEntry,
    History,
    Holder,
    InvalidKey,
    Leader,
    Member,
    Order,
    Status,
    SyncSet,
    encode,
)
from rmqha.failover.member import DiskFull, NodeFailed
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import CheckRoom, Lead, SetTimer, StopFollowing
from rmqha.failover.step.events import CallDone, FollowingStopped, Timer
from rmqha.failover.step.knowledge import changed
from rmqha.failover.step.leading import tell_sessions
from rmqha.failover.step.obeying import answering
from rmqha.failover.step.reading import is_in_doubt, note_own, older, read
from rmqha.failover.step.rights import (
    begin_right,
    end_right,
    give_reason,
    grant,
    is_held,
    keep_sync_set,
    move,
    renew,
    wake,
)
from rmqha.failover.step.syncset import SyncSetKeeper
from rmqha.failover.step.telling import register
from rmqha.failover.step.work import Procedure, Work, ask, transact
from rmqha.failover.view import ClusterView
from rmqha.kit.events import Event

STAMP_CHARACTERS = 12
"""Of the random name of a process, in the stamp of its leadership."""
MAX_COMPARED = 32
"""Members whose keys must be as they were read when a leader is named."""
LOOK_SECONDS = 0.25
"""How often a candidate that lets another one go first looks again."""
LET_FIRST_SECONDS = 1.0
"""How long a candidate lets one with more of the log go first."""
SUCCESSOR_SECONDS = 5.0
"""How long others let the successor of a switchover go first."""


def may_try(work: Work, view: ClusterView, me: Member) -> bool:
    """Whether to be a candidate now. If not, the reason is given."""
    verdict = may_lead(view, me, work.knows.me.is_founder, work.seen.wall)
    order = view.request
    is_forced = order is not None and order.force and order.to == me.name and verdict.cause is not None
    if not is_forced and is_in_doubt(work, view):
        if away_members(view) or view.config.paused:
            give_reason(work, older(view, work.knows.known))
            return False  # else all say where their logs end
    elif not is_forced and _has_forgotten(work, view, me):
        give_reason(
            work,
            "its cluster.json is lost: it leads only after it has followed a leader. If no other node can lead: "
            "rmqha cluster failover --to NAME --force",
        )
        return False
    elif verdict.cause is None and not _is_needed_as_candidate(view, me):
        give_reason(work, verdict.why_not)
        return False
    wait = wait_seconds(work, view, me)
    if wait > 0 and not is_forced:
        give_reason(work, f"it may try for the lead in {wait:.1f} s")
        return False
    return True


def _has_forgotten(work: Work, view: ClusterView, me: Member) -> bool:
    """Whether this store followed the leader, as the sync set says, and does not know it any more."""
    if view.sync is None or view.sync.leader == me.name or work.knows.known.epoch:
        return False
    holder = view.sync.holders.get(me.name)
    return holder is not None and holder.store == me.store


def _is_needed_as_candidate(view: ClusterView, me: Member) -> bool:
    """Whether others must know where our log ends before one of us can lead: see ``may_lead``."""
    if view.sync is None or me.no_failover or view.config.paused or me.name not in view.sync.holders:
        return False
    newer = max(me.known_epoch, view.newest_known)
    return newer <= view.epoch and me.store == view.sync.holders[me.name].store


def wait_seconds(work: Work, view: ClusterView, me: Member) -> float:
    """For how long the node has promised not to try, or lets a successor go first."""
    knows, status = work.knows, view.status
    until, for_successor = knows.promised_until, _wait_for_successor(work, view)
    if status is not None and status.is_released and status.epoch == view.epoch == knows.known.epoch:
        return for_successor  # the leader itself has freed us of what we promised to it
    if knows.known.epoch and knows.known.leader != me.name:  # an earlier process may have promised it
        until = max(until, knows.born + knows.config.ttl)
    return max(until - work.now, for_successor)


def _wait_for_successor(work: Work, view: ClusterView) -> float:
    """For how long the node lets the successor of a switchover go first."""
    order, now, since = view.request, work.now, work.knows.leaderless_since
    if order is None or order.order != Order.SWITCHOVER.value or order.to in ("", work.knows.me.name):
        return 0.0
    return max(0.0, (now if since is None else since) + SUCCESSOR_SECONDS - now)


def try_for_lead(work: Work, view: ClusterView) -> Procedure[None]:
    """Close the connection to the old leader, say where our log ends, and take the lead if nobody is better.

    Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed.
    """
    if work.knows.state is FailoverState.FOLLOWER:
        yield from _become_candidate(work)
    me = yield from register(work, view)
    view = yield from read(work)
    if view.leader is not None:
        return
    order = view.request
    is_named = order is not None and order.to == me.name
    is_forced = is_named and order is not None and order.force
    doubts = not is_forced and is_in_doubt(work, view)
    if doubts:
        verdict = may_lead_in_doubt(view, me, work.knows.known)
    else:
        verdict = may_lead(view, me, work.knows.me.is_founder, work.seen.wall)
    if verdict.cause is None:
        give_reason(work, f"{older(view, work.knows.known)} ({verdict.why_not})" if doubts else verdict.why_not)
        return
    better = [] if is_named or doubts else better_candidates(view, me)
    if better and work.now < (work.knows.let_first_until or 0.0):
        give_reason(work, f"it lets {', '.join(better)} go first")
        work.do(SetTimer(Timer.LOOK, LOOK_SECONDS))
        return
    if wait_seconds(work, view, me) > 0 and not is_forced:
        return
    yield from ask(CheckRoom(), CallDone)
    yield from _take_lead(work, view, me, verdict.cause, is_forced)


def _become_candidate(work: Work) -> Procedure[None]:
    """From now on nothing is acknowledged to the old leader. Raises NodeFailed."""
    move(work, FailoverState.CANDIDATE)
    work.knows = changed(work.knows, following=None)
    end = (yield from ask(StopFollowing(), FollowingStopped)).end
    work.knows = changed(work.knows, follows_nobody=False, let_first_until=work.now + LET_FIRST_SECONDS)
    work.log(Event.FAILOVER_CANDIDATE, "a candidate for the lead, with the log up to {end}", end=end)


def _take_lead(work: Work, view: ClusterView, me: Member, cause: Cause, is_forced: bool) -> Procedure[None]:
    """The transaction that decides who leads. Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed.

    It fails if the key of a member has changed since it was read: the member may know that the keys are too old.
    """
    sent = yield from renew(work)
    lease = yield from grant(work)
    knows, cluster_id = work.knows, work.seen.cluster_id
    heard = (change.epoch for change in knows.known.doubters.values())
    epoch = max([view.epoch, me.log_epoch, knows.known.epoch, view.newest_known, *heard]) + 1
    leader = Leader(me.name, me.session, epoch, cluster_id, knows.trust.floor(view))
    history = new_history(work, view, me, EpochEntry(epoch, me.name, me.end, "", cause.value), is_forced)
    holders = {} if is_in_doubt(work, view) else _kept_holders(view, cause)
    sync = SyncSet(epoch, me.name, {**holders, me.name: me.holder()}, 1, cluster_id)
    writes: list[Put | Delete] = [
        Put(work.key(LEADER), encode(leader), lease),
        Put(work.key(EPOCH), encode(history)),
        Put(work.key(SYNC), encode(sync)),
    ]
    if view.request is not None and view.request.order != Order.REINIT.value:
        text = f"{me.name} leads, epoch {epoch}, from {me.end} on"
        writes += answering(work, Answer(view.request.id, view.request.to in ("", me.name), text))
    free = Compare(work.key(LEADER), CompareTarget.CREATE, 0)
    compares = [free, *(view.unchanged(name) for name in (EPOCH, SYNC, REQUEST))]
    if not is_forced:
        others = sorted((view.names | {*knows.known.members}) - {me.name})[:MAX_COMPARED]
        compares += [view.unchanged(MEMBERS + name) for name in others]
    try:
        is_won = yield from transact("take the lead", compares, writes)
    except CoordinatorUnavailable:
        is_won = (yield from read(work)).leader == leader  # if that fails, the next step finds out
    if is_won:
        before = view.status
        if before is None or before.epoch != view.epoch:
            before = Status(view.epoch, 0, me.end, stamp=me.log_of)
        try:
            yield from _become_leader(work, leader, history, sync, sent)
        except (DiskFull, NodeFailed) as error:
            yield from _give_back(work, leader, replace(before, epoch=epoch), error)
            raise


def new_history(work: Work, view: ClusterView, me: Member, entry: EpochEntry, is_forced: bool) -> History:
    """The changes of the leader with ours, which goes on from the keys, or from what we know if they are too old.

    With an operator's order to lead in any case it also ends what members know, or knew, of other leaderships.
    """
    history, after = view.history, 0 if view.sync is None else view.sync.number
    if work.knows.doubts_keys:
        history, after = work.knows.known.history, work.knows.known.number
    ends: dict[str, int] = {}
    for each in (*(member.newest_change for member in view.members.values()), *work.knows.known.doubters.values()):
        if each.stamp == history.stamp:
            after = max(after, each.number)
        elif each.stamp and is_forced:
            ends[each.stamp] = max(each.number, ends.get(each.stamp, 0))
    stamp = f"{me.session[:STAMP_CHARACTERS]}.{entry.n}"
    time = work.seen.wall.isoformat(timespec="milliseconds")
    return history.with_entry(replace(entry, time=time, stamp=stamp, after=after, ends=ends))


def _give_back(work: Work, leader: Leader, before: Status, error: Exception) -> Procedure[None]:
    """Let another one lead at once: we have taken the lead, and our store could not be made a master's.

    ``before`` is how far the log of the leader before us was.
    """
    end_right(work, f"its store could not be made a master's: {error}")
    until = max(work.knows.promised_until, work.now + work.knows.lease.ttl)
    work.knows = changed(work.knows, promised_until=until)
    status = replace(before, is_released=True, is_full=isinstance(error, DiskFull))
    key = work.key(LEADER)
    with suppress(CoordinatorError):  # the key then ends with its lease, or with the next step
        yield from transact(
            "give the lead back",
            [Compare(key, CompareTarget.VALUE, encode(leader))],
            [Delete(key), Put(work.key(STATUS), encode(status))],
        )


def _become_leader(work: Work, leader: Leader, history: History, sync: SyncSet, sent: float) -> Procedure[None]:
    """We lead, as soon as the store is a master's. Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
    cause = history.entries[-1].cause
    move(work, FailoverState.PROMOTING)
    give_reason(work, f"it makes its store a master's, epoch {leader.epoch}")
    until = sent + work.knows.lease.ttl - work.knows.config.margin
    begin_right(work, leader.epoch, until, sync.members)
    work.knows = changed(work.knows, history=history)
    yield from note_own(work, leader.epoch, sync)
    try:
        view = yield from read(work)
    except (CoordinatorError, InvalidKey) as error:  # renewals may be answered again, and nobody else could lead
        end_right(work, f"the keys could not be read before the store was a master's: {error}")
        raise
    held = view.held(LEADER)
    if view.leader == leader and held is not None and is_held(work):
        work.knows = changed(work.knows, created=held.create_revision, is_led=True)
        tell_sessions(work, view)
        yield from ask(Lead(cause), CallDone)
        if work.seen.members is not None and is_held(work):
            _begin_to_lead(work, leader, history, sync)
            return
    why = "the node stops" if work.knows.is_stopping else "the lease ended"
    end_right(work, f"{why} before the store was a master's")


def _begin_to_lead(work: Work, leader: Leader, history: History, sync: SyncSet) -> None:
    entry = history.entries[-1]
    keep_sync_set(work, SyncSetKeeper(work.knows.me.name, sync, sync.number))
    move(work, FailoverState.LEADER)
    give_reason(work, f"it leads since {entry.time}: {entry.cause}")
    work.log(Event.FAILOVER_LEADS, "this node leads, epoch {epoch}: {cause}", epoch=leader.epoch, cause=entry.cause)
    wake(work)


def _kept_holders(view: ClusterView, cause: Cause) -> dict[str, Holder]:
    """The members that hold every message, and run: puts wait for them from the start.

    An old leader is none of them: it may have lost its end, and comes back by itself. An operator's failover may have
    chosen a node with less than they have.
    """
    if view.sync is None or cause is Cause.FAILOVER:
        return {}
    return {
        name: holder
        for name, holder in view.sync.holders.items()
        if name != view.sync.leader
        and name in view.members
        and view.members[name].is_intact(holder)
        and not view.members[name].no_failover
    }
