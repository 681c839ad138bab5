"""What operators order of a leader, and how it gives up the lead."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from rmqha.coordination.interface import Delete, Put
from rmqha.failover.eligible import seconds_of_pause
from rmqha.failover.keys import ANSWER, LEADER, REQUEST, STATUS, Answer, Cause, Mode, Order, Request, Status, encode
from rmqha.failover.member import Promise
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import AskPromises, HoldPuts, Poll
from rmqha.failover.step.events import CallDone, PromisesAnswered
from rmqha.failover.step.reading import is_in_doubt, older
from rmqha.failover.step.rights import end_right, is_held, wake
from rmqha.failover.step.syncset import SyncSetKeeper
from rmqha.failover.step.work import Procedure, Work, ask, transact
from rmqha.failover.view import ClusterView

HAND_OVER_SECONDS = 2.0
"""How long a leader that hands over takes no messages, until the successor has all; then it goes on."""
POLL_SECONDS = 0.01
"""How often it then looks whether a successor has all."""
ALIVE_SECONDS = 1.0
"""For how long a member is asked not to try for the lead when the question is only whether it answers."""


def obey(work: Work, view: ClusterView) -> Procedure[None]:
    """Do what an operator asks of the leader. Raises CoordinatorError."""
    order, keeper = view.request, work.knows.sync
    if order is None or order.order == Order.REINIT.value or keeper is None:
        return
    if work.knows.state is not FailoverState.LEADER:
        return
    refusal = _refusal(work, view, order, keeper)
    if refusal is not None:
        yield from answer(work, view, order, False, refusal)
        return
    successors = {order.to} if order.to else keeper.written.members
    there = [] if order.force else (yield from _that_answer(work, view, successors))
    successor = order.to if order.force else (yield from hand_over_log(work, there))
    if successor is None:
        names = ", ".join(sorted(successors))
        text = f"{names} did not answer, or did not have the whole log within {HAND_OVER_SECONDS:g} s"
        yield from answer(work, view, order, False, f"{text}: nothing was changed")
        return
    reason = Cause.FAILOVER if order.force else Cause.SWITCHOVER
    held = view.held(REQUEST)
    named = Put(work.key(REQUEST), encode(replace(order, to=successor)), 0 if held is None else held.lease)
    yield from give_up_lead(work, reason.value, [named])


def make_room(work: Work, view: ClusterView, is_full: bool) -> Procedure[None]:
    """Hand over if the disk is too full to take messages, and a member has room and the whole log.

    Raises CoordinatorError.
    """
    keeper, members = work.knows.sync, work.seen.members
    if keeper is None or members is None or work.knows.state is not FailoverState.LEADER:
        return
    if not is_full or view.request is not None or view.config.paused or view.sync is None or is_in_doubt(work, view):
        return
    end = work.seen.facts.end
    names = keeper.written.members & view.sync.members & frozenset(view.members)
    successors = [name for name in names if members.holds(name, end)]
    has_room = any(not view.members[name].is_full for name in successors)
    if seconds_of_pause(view, work.seen.wall) == 0 and has_room:
        yield from give_up_lead(work, Cause.DISK_FULL.value, is_full=True)


def _refusal(work: Work, view: ClusterView, order: Request, keeper: SyncSetKeeper) -> str | None:
    """Why the leader does not hand over."""
    me = work.knows.me.name
    if order.to == me:
        # a member that knows more follows nobody before we lead in a newer epoch
        return None if order.force and view.is_behind else f"{order.to} leads already"
    if order.force:
        if order.to in view.members:
            return None
        return f"{order.to or 'the successor'} is not there: name a member that runs"
    if is_in_doubt(work, view):
        return f"{older(view, work.knows.known)}. Without --force no node would lead then"
    if order.order == Order.FAILOVER.value:
        return f"{me} leads, and is alive: use rmqha cluster switchover. --force makes it stop leading"
    if order.to and order.to not in view.members:
        return f"{order.to} is no member that runs: {', '.join(sorted(view.members))} do"
    if order.to and view.members[order.to].no_failover:
        return f"{order.to} has the tag nofailover"
    if work.knows.config.mode == Mode.SYNC.value and order.to and order.to not in keeper.written.members:
        return f"{order.to} does not hold every message yet: it is not in the sync set"
    if not order.to and not keeper.written.members:
        return "no member holds every message"
    return None


def _that_answer(work: Work, view: ClusterView, names: Collection[str]) -> Procedure[list[str]]:
    """Those of these members that answer: one that stands still could not lead, and nobody would for seconds.

    Any answer will do. A promise does not bind: the leader frees its members when it gives up the lead.
    """
    right, there = work.knows.right, sorted(name for name in names if name in view.members)
    assert right is not None, "a leader has one"
    me = work.knows.me
    promise = Promise(me.name, right.epoch, me.session.hex(), ALIVE_SECONDS)
    request = AskPromises(tuple(view.members[name] for name in there), promise)
    given = (yield from ask(request, PromisesAnswered)).given
    return [name for name, promised in zip(there, given, strict=False) if promised is not None]


def hand_over_log(work: Work, successors: Collection[str]) -> Procedure[str | None]:
    """Take no messages, and wait until one of these has the whole log. If none has in time, take messages again.

    Returns the one that has, None if none has. Of several it is the one with the highest priority.
    """
    view = work.knows.view
    if work.knows.right is None or work.seen.members is None or view is None:
        return None
    work.do(HoldPuts(True))
    deadline = work.now + HAND_OVER_SECONDS
    while is_held(work) and work.now < deadline:
        end, members = work.seen.facts.end, work.seen.members
        if members is not None:
            names = [name for name in successors if name in view.members and members.holds(name, end)]
            ready = [view.members[name] for name in names]
            if ready:
                return max(ready, key=lambda member: (member.priority, member.name)).name
        yield from ask(Poll(POLL_SECONDS), CallDone)
    work.do(HoldPuts(False))
    return None


def give_up_lead(work: Work, reason: str, writes: Sequence[Put] = (), is_full: bool = False) -> Procedure[None]:
    """Stop leading, and tell the coordinator, so that another one need not wait for the lease to end.

    Raises CoordinatorError.
    """
    right, members = work.knows.right, work.seen.members
    assert right is not None, "a leader has one"
    confirmed = 0 if members is None else members.confirmed_offset
    end_right(work, reason)  # first: nothing is promised after the coordinator knows it
    end, stamp = work.seen.facts.end, work.knows.history.stamp
    status = Status(right.epoch, confirmed, end, is_released=True, is_full=is_full, stamp=stamp)
    released: list[Put | Delete] = [Delete(work.key(LEADER)), Put(work.key(STATUS), encode(status)), *writes]
    yield from transact("give up the lead", [work.still_ours()], released)


def answer(work: Work, view: ClusterView, order: Request, is_done: bool, text: str) -> Procedure[None]:
    """Write what became of an order. Raises CoordinatorError."""
    writes = answering(work, Answer(order.id, is_done, text))
    yield from transact("answer an order", [view.unchanged(REQUEST)], writes)
    wake(work)


def answering(work: Work, answer: Answer) -> list[Put | Delete]:
    """What takes the order away, and writes the answer."""
    return [Delete(work.key(REQUEST)), Put(work.key(ANSWER), encode(answer))]
