"""The member's state, its lease, and its right to lead."""

from dataclasses import replace

from rmqha.coordination.interface import CoordinatorError, LeaseGone
from rmqha.failover.member import Promise
from rmqha.failover.states import FAILOVER_MOVES, FailoverState
from rmqha.failover.step.actions import (
    AskPromises,
    BeginLeadership,
    CancelTimer,
    EndLeadership,
    ExtendLeadership,
    Fence,
    GrantLease,
    RenewLease,
    RequireMembers,
    SetTimer,
    StopAsking,
)
from rmqha.failover.step.events import LeaseGranted, LeaseRenewed, PromisesAnswered, Timer
from rmqha.failover.step.knowledge import Right, changed
from rmqha.failover.step.syncset import SyncSetKeeper
from rmqha.failover.step.work import Procedure, Work, ask
from rmqha.kit.events import Event

LEASE_OVER = "the lease has ended, and not all other members have promised to wait"


def wake(work: Work) -> None:
    """Take the next step now, and read all keys for it."""
    work.knows = changed(work.knows, is_woken=True)


def give_reason(work: Work, reason: str) -> None:
    """Why the node does not lead, or what it waits for."""
    work.knows = changed(work.knows, reason=reason)


def move(work: Work, new: FailoverState) -> None:
    """Go into a state."""
    old = work.knows.state
    if new is not old:
        assert new in FAILOVER_MOVES[old], f"{old} to {new}"
        work.log(Event.FAILOVER_STATE, "failover: {old} to {new}", old=old.name, new=new.name)
        work.knows = changed(work.knows, state=new)


# The right to lead


def begin_right(work: Work, epoch: int, until: float, required: frozenset[str]) -> None:
    """A right to lead, until a moment of ``now``."""
    work.knows = changed(work.knows, right=Right(epoch, until, required))
    work.do(BeginLeadership(epoch, until, required))
    _expire_later(work)


def is_held(work: Work) -> bool:
    """Whether the node may append and answer now."""
    right = work.knows.right
    return right is not None and right.is_held(work.now)


def keep_sync_set(work: Work, keeper: SyncSetKeeper) -> None:
    """Puts wait for those that this says, from now on."""
    right = work.knows.right
    assert right is not None, "a leader has one"
    if keeper.required != right.required:
        right = replace(right, required=keeper.required)
        work.do(RequireMembers(keeper.required))
    work.knows = changed(work.knows, sync=keeper, right=right)


def end_right(work: Work, reason: str) -> None:
    """Do not lead any more, from this moment on."""
    right = work.knows.right
    work.do(CancelTimer(Timer.EXPIRY))
    if right is None or right.is_ended:
        return
    work.knows = changed(work.knows, right=replace(right, is_ended=True), reason=reason)
    work.do(EndLeadership())
    work.log(Event.FAILOVER_FENCED, "this node does not lead any more: {reason}", reason=reason)
    move(work, FailoverState.FENCED)
    work.do(Fence())
    wake(work)


def _expire_later(work: Work) -> None:
    """Look at the right to lead when it may have ended."""
    right = work.knows.right
    if right is not None and not right.is_ended:
        work.do(SetTimer(Timer.EXPIRY, max(0.001, right.until - work.now)))


def look_at_right(work: Work) -> None:
    """The right to lead may have ended."""
    if work.knows.right is not None and not is_held(work):
        end_right(work, LEASE_OVER)
    else:
        _expire_later(work)


# The lease


def grant(work: Work) -> Procedure[int]:
    """The current lease, or a new one. Raises CoordinatorError."""
    if work.knows.lease.id is None:
        sent, ttl = work.now, work.knows.config.ttl
        answer = yield from ask(GrantLease(ttl), LeaseGranted)
        work.knows = changed(work.knows, lease=replace(work.knows.lease, id=answer.lease, ttl=ttl))
        renewed(work, sent)
        renew_later(work)
    lease = work.knows.lease.id
    assert lease is not None, "it was just granted"
    return lease


def renew(work: Work) -> Procedure[float]:
    """Renew the lease now. Returns when the renewal was sent. Raises CoordinatorError."""
    lease = yield from grant(work)
    sent = work.now
    yield from _keep_alive(work, lease)
    return sent


def _keep_alive(work: Work, lease: int) -> Procedure[None]:
    """Raises CoordinatorError."""
    sent = work.now
    try:
        answer = yield from ask(RenewLease(lease), LeaseRenewed)
    except LeaseGone:
        if lease == work.knows.lease.id:
            work.knows = changed(work.knows, lease=replace(work.knows.lease, id=None))
            wake(work)
        raise
    if lease == work.knows.lease.id:
        ttl = min(work.knows.lease.ttl, answer.ttl)
        work.knows = changed(work.knows, lease=replace(work.knows.lease, ttl=ttl))
        renewed(work, sent)


def renew_later(work: Work) -> None:
    """The next renewal comes after ``renew`` seconds."""
    lease = work.knows.lease
    if not lease.is_timed and not lease.is_stopped:
        work.knows = changed(work.knows, lease=replace(lease, is_timed=True))
        work.do(SetTimer(Timer.RENEWAL, work.knows.config.renew))


def renew_once(work: Work) -> Procedure[None]:
    """A renewal in its time. If it is not answered, the other members are asked."""
    lease = work.knows.lease.id
    assert lease is not None, "it is renewed"
    try:
        yield from _keep_alive(work, lease)
    except LeaseGone:
        pass
    except CoordinatorError:
        yield from _go_on_by_promises(work)
    if work.knows.lease.id is not None:
        renew_later(work)


def renewed(work: Work, sent: float) -> None:
    """The coordinator has renewed the lease. It counts from the arrival of the renewal, which was sent before."""
    if work.knows.state in (FailoverState.LEADER, FailoverState.PROMOTING):
        extend(work, sent + work.knows.lease.ttl - work.knows.config.margin)


def extend(work: Work, until: float) -> None:
    """The right to lead lasts at least until then."""
    right = work.knows.right
    if right is not None:
        work.knows = changed(work.knows, right=replace(right, until=max(right.until, until)))
        work.do(ExtendLeadership(until))


def stop_asking(work: Work) -> None:
    """Nothing is renewed any more, and nobody waits for an answer or a change of the keys."""
    work.knows = changed(work.knows, lease=replace(work.knows.lease, is_stopped=True, is_timed=False))
    work.do(CancelTimer(Timer.RENEWAL))
    work.do(StopAsking())


def _go_on_by_promises(work: Work) -> Procedure[None]:
    """The coordinator does not answer: go on if all other members promise not to try for the lead."""
    right, view = work.knows.right, work.knows.view
    if work.knows.state is not FailoverState.LEADER or right is None or view is None or not is_held(work):
        return
    asked = members_to_ask(work, right)
    sent, seconds = work.now, float(work.knows.lease.ttl)
    promise = Promise(work.knows.me.name, right.epoch, work.knows.me.session.hex(), seconds)
    away = sorted(asked - frozenset(view.members))
    if away:
        work.log(
            Event.PROMISE_NOT_GIVEN,
            "{member} does not promise to wait: {reason}",
            member=", ".join(away),
            reason="it was away when the coordinator answered last",
        )
        return
    request = AskPromises(tuple(view.members[name] for name in sorted(asked)), promise)
    answer = yield from ask(request, PromisesAnswered)
    now = work.knows.right
    if now is not None and now.epoch == right.epoch and all(answer.given) and now.required <= asked:
        extend(work, sent + seconds - work.knows.config.margin)


def members_to_ask(work: Work, right: Right) -> frozenset[str]:
    """Who must promise: all members that it has ever heard of.

    The keys as they are let only the sync set lead. But the coordinator may have gone back to keys that let another
    member lead, one that has not heard of the newer ones, and no put waits for that one.
    """
    return right.required | frozenset(work.knows.known.members) - {work.knows.me.name}
