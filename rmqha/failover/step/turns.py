"""A whole step of a member, its start and its stop, and what comes of a failure."""

from contextlib import suppress

from rmqha.coordination.interface import CoordinatorError, CoordinatorUnavailable
from rmqha.failover.keys import InvalidKey
from rmqha.failover.member import DiskFull, NodeFailed
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import CloseCoordinator, Left, ReadKnown, RevokeLease
from rmqha.failover.step.events import CallDone, KnownRead
from rmqha.failover.step.following import become_follower, follow
from rmqha.failover.step.knowledge import changed
from rmqha.failover.step.leading import lead, lead_on
from rmqha.failover.step.obeying import give_up_lead, hand_over_log, make_room
from rmqha.failover.step.reading import older, read, write_known
from rmqha.failover.step.rights import end_right, give_reason, move, stop_asking
from rmqha.failover.step.telling import register
from rmqha.failover.step.work import Procedure, Work, ask
from rmqha.kit.events import Event

LOOK_SECONDS = 0.25
"""How often a leader looks at its members, without asking the coordinator."""
RETRY_SECONDS = 1.0
"""After a step that failed."""


def begin(work: Work) -> Procedure[float | None]:
    """Note that this process has started. Returns the seconds until the next step, None if there is none."""
    try:
        if work.knows.started is None:
            known = (yield from ask(ReadKnown(), KnownRead)).known
            work.knows = changed(work.knows, started=known.started(work.seen.facts.boot))
        started = work.knows.started
        assert started is not None, "it was read"
        yield from write_known(work, started)
    except DiskFull as error:
        give_reason(work, _tell_no_room(work, error))
        return RETRY_SECONDS
    except NodeFailed as error:
        _node_failed(work, error)
        return None
    return 0.0


def turn(work: Work) -> Procedure[float | None]:
    """A step. Returns the seconds until the next one, None if there is none."""
    try:
        try:
            yield from _take_step(work)
            work.knows = changed(work.knows, has_no_room=False)
        except DiskFull as error:
            yield from _do_without_room(work, error)
    except (CoordinatorError, InvalidKey) as error:
        _tell_problem(work, str(error), is_silence=isinstance(error, CoordinatorUnavailable))
        work.knows = changed(work.knows, next_read=0.0)
        return RETRY_SECONDS
    except NodeFailed as error:
        _node_failed(work, error)
        return None
    _tell_problem(work, _doubt(work))
    if work.knows.has_no_room:
        return RETRY_SECONDS
    looks = work.knows.state in (FailoverState.LEADER, FailoverState.CANDIDATE)
    return LOOK_SECONDS if looks else work.knows.config.renew


def _take_step(work: Work) -> Procedure[None]:
    """Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
    knows = work.knows
    if knows.state is FailoverState.LEADER and work.now < knows.next_read and not knows.is_woken:
        yield from lead_on(work)
        return
    work.knows = changed(knows, is_woken=False)
    view = yield from read(work)
    work.knows = changed(work.knows, next_read=work.now + work.knows.config.renew)
    if work.knows.state is FailoverState.LEADER:
        yield from lead(work, view)
    if work.knows.state is FailoverState.FENCED:
        yield from become_follower(work, view)
        return
    if work.knows.state in (FailoverState.JOINING, FailoverState.FOLLOWER, FailoverState.CANDIDATE):
        yield from follow(work, view)


def stop(work: Work) -> Procedure[float | None]:
    """Leave the cluster. A leader hands over first, if a member has all."""
    try:
        if work.knows.state is FailoverState.LEADER:
            keeper = work.knows.sync
            if keeper is not None and keeper.written.members:
                yield from hand_over_log(work, keeper.written.members)
            yield from give_up_lead(work, "the node stops")
        end_right(work, "the node stops")
        if work.knows.lease.id is not None:
            yield from ask(RevokeLease(work.knows.lease.id), CallDone)
    except CoordinatorError as error:
        work.log(Event.FAILOVER_WAITS, "the coordinator does not know that this node stops: {error}", error=str(error))
    leave(work)
    with suppress(CoordinatorError):  # nobody asks it any more
        yield from ask(CloseCoordinator(), CallDone)
    work.do(Left())
    return None


def leave(work: Work) -> None:
    """Take no more part in the cluster, from now on."""
    end_right(work, "the node stops")
    stop_asking(work)
    move(work, FailoverState.STOPPED)


def _do_without_room(work: Work, error: DiskFull) -> Procedure[None]:
    """Tell the others that this member waits for room. A leader hands over, if it can.

    What was read is not noted, so nothing else is done that it says. Raises CoordinatorError, InvalidKey.
    """
    reason, view = _tell_no_room(work, error), work.knows.view
    work.knows = changed(work.knows, next_read=0.0)
    if work.knows.state is FailoverState.LEADER and view is not None:
        yield from make_room(work, view, is_full=True)
    elif view is not None:
        give_reason(work, reason)
        yield from register(work, view)


def _tell_no_room(work: Work, error: DiskFull) -> str:
    """Log it once. Returns why this member does not lead."""
    if not work.knows.has_no_room:
        work.knows = changed(work.knows, has_no_room=True)
        work.log(
            Event.WAITS_FOR_ROOM,
            "{what} is not written, so it neither takes the lead nor follows a new leader: {error}",
            what="what this node knows of its cluster",
            error=str(error),
        )
    return f"it waits for room on its disk: {error}"


def _node_failed(work: Work, error: NodeFailed) -> None:
    """The node ends."""
    if not work.knows.is_stopping:
        _tell_problem(work, str(error))
    end_right(work, str(error))


def _doubt(work: Work) -> str | None:
    """What is wrong with the keys, although the coordinator answers. A leader writes them again at once."""
    knows = work.knows
    if knows.state is FailoverState.LEADER or knows.view is None or not knows.doubts_keys:
        return None
    return older(knows.view, knows.known)


def _tell_problem(work: Work, problem: str | None, is_silence: bool = False) -> None:
    """Log what has changed. Which endpoint is silent in which way changes with each try: one line is enough."""
    is_known, before = is_silence and work.knows.is_silent, work.knows.problem
    work.knows = changed(work.knows, is_silent=is_silence, problem=problem)
    if problem == before:
        return
    if problem is None:
        work.log(Event.COORDINATOR_ANSWERS, "the coordinator answers again")
    elif not is_known:
        work.log(Event.COORDINATOR_PROBLEM, "failover cannot go on: {problem}", problem=problem)
