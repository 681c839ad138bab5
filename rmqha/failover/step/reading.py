"""Reads the keys of the cluster, and notes durably what they say before the node acts on it."""

from contextlib import suppress
from dataclasses import replace

from rmqha.failover.eligible import away_members
from rmqha.failover.keys import CONFIG, ClusterConfig, SyncSet, decode
from rmqha.failover.member import DiskFull, Known
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import ReadKeys, WriteKnown
from rmqha.failover.step.events import CallDone, KeysRead
from rmqha.failover.step.knowledge import changed
from rmqha.failover.step.work import Procedure, Work, ask
from rmqha.failover.trust import doubters_of
from rmqha.failover.view import ClusterView


def read(work: Work) -> Procedure[ClusterView]:
    """All keys. Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
    view = (yield from ask(ReadKeys(), KeysRead)).view
    cluster_id, kept = work.seen.cluster_id, work.knows.known.config
    if kept and view.held(CONFIG) is None:  # lost with the coordinator's disk: the leader writes it
        view = replace(view, config=decode(ClusterConfig, CONFIG, kept.encode()))
    trust = work.knows.trust.look(view, cluster_id)
    since = work.now if work.knows.leaderless_since is None else work.knows.leaderless_since
    work.knows = changed(
        work.knows,
        view=view,
        config=view.config,
        trust=trust,
        doubts_keys=trust.is_doubtful(view, cluster_id, work.knows.known),
        leaderless_since=since if view.leader is None else None,
    )
    yield from _learn(work, view)
    return view


def is_in_doubt(work: Work, view: ClusterView) -> bool:
    """Whether this node knows that these keys are too old, or has heard it of another one."""
    me, known = work.knows.me.name, work.knows.known
    return work.knows.doubts_keys or bool(known.doubters) or any(name != me for name in view.doubters)


def _learn(work: Work, view: ClusterView) -> Procedure[None]:
    """Note durably what these keys say, before the node acts on it. Keys that are too old teach only who says so.

    A node that has just lost the lead only gives it back, which needs no room on its disk. Raises DiskFull, NodeFailed.
    """
    if work.knows.state is FailoverState.FENCED:
        return
    known = replace(work.knows.known, doubters=doubters_of(view, work.knows.me.name, work.knows.known))
    if work.knows.doubts_keys:
        with suppress(DiskFull):  # its own doubt holds it back too; and a leader must write its keys again
            yield from write_known(work, known)
        return
    held = view.held(CONFIG)
    yield from write_known(
        work,
        replace(
            known,
            history=view.history,
            number=0 if view.sync is None else view.sync.number,
            members=tuple(sorted(view.names.union(known.members) - view.forgotten)),
            config=known.config if held is None else held.value.decode(),
        ),
    )


def write_known(work: Work, known: Known) -> Procedure[None]:
    """Note it durably. It counts as known only then. Raises DiskFull, NodeFailed."""
    if known != work.knows.known:
        yield from ask(WriteKnown(known), CallDone)
        work.knows = changed(work.knows, known=known)


def note(work: Work, epoch: int, leader: str) -> Procedure[None]:
    """Note the epoch durably, before the node acts in it. Raises DiskFull, NodeFailed."""
    known = work.knows.known
    newest = max(epoch, known.epoch)
    yield from write_known(work, replace(known, epoch=newest, leader=leader, cluster_id=work.seen.cluster_id))


def note_log(work: Work, stamp: str) -> Procedure[None]:
    """Note durably whose log ours is the beginning of. Raises DiskFull, NodeFailed."""
    yield from write_known(work, replace(work.knows.known, log_of=stamp))


def note_own(work: Work, epoch: int, sync: SyncSet) -> Procedure[None]:
    """Note durably what we have written as the leader, before we act on it. Raises DiskFull, NodeFailed."""
    history = work.knows.history
    known = replace(work.knows.known, history=history, number=sync.number, log_of=history.stamp)
    yield from write_known(work, known)
    yield from note(work, epoch, work.knows.me.name)


def older(view: ClusterView, known: Known) -> str:
    """Why nobody acts on these keys, and what helps."""
    what = (
        f"the coordinator's keys, of epoch {view.epoch}, may be older than what the cluster has done (epoch "
        f"{max([known.epoch, view.newest_known, *(each.epoch for each in known.doubters.values())])})"
    )
    if view.leader is not None:
        return (
            f"{what}: {view.leader.node}, which leads, may lack messages that this member or another one has. If it "
            "does not write its keys again by itself, name the node that is to lead, also if it leads already: rmqha "
            "cluster failover --to NAME --force"
        )
    away = away_members(view)
    if away:
        return (
            f"{what}: start {', '.join(away)}, then the node that led last leads. If a node is gone for good: "
            "rmqha cluster forget NAME. To go on without its messages: rmqha cluster failover --to NAME --force"
        )
    if view.config.paused:
        return f"{what}, and automatic failover is paused: rmqha cluster resume"
    return (
        f"{what}: the members find out whether the one that led last has most of the log. If that does not end: rmqha "
        "cluster failover --to NAME --force"
    )
