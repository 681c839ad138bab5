"""The shell of a member's decisions: it does what the step says, and tells it what became of that.

The step (``rmqha.failover.step``) decides. It knows no reactor, no clock, no coordinator and no node. What protects
messages is at the data: puts ask the ``Leadership`` before each append and each answer, and wait for each member of the
sync set. The leadership ends in the same turn in which the step decides it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from rmqha.coordination.interface import Change, CoordinatorError, ICoordinator
from rmqha.failover.keys import InvalidKey, Member
from rmqha.failover.member import DiskFull, Identity, INode, Known, NodeFailed, Promise
from rmqha.failover.states import FailoverState
from rmqha.failover.step import actions, events
from rmqha.failover.step.actions import Action, AgentRequest, Call
from rmqha.failover.step.events import AgentEvent, Answered, Fault, Seen, SeenMember, SeenMembers, Timer
from rmqha.failover.step.step import first_state, step
from rmqha.failover.step.syncset import SyncSetKeeper
from rmqha.failover.view import ClusterView
from rmqha.failover.watching import KeyWatch
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.kit.events import Event

Kind = TypeVar("Kind", bound=AgentEvent)


@dataclass(frozen=True, slots=True)
class Times:
    """A node's clocks. ``now`` never stops and is never set (CLOCK_BOOTTIME), ``wall`` is the time in UTC."""

    clock: IReactorTime
    now: Callable[[], float]
    wall: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))


class FailoverAgent(Service):
    """A member of a cluster."""

    _log = Logger()

    def __init__(self, identity: Identity, coordinator: ICoordinator, node: INode, times: Times) -> None:
        self._coordinator = coordinator
        self._node = node
        self._times = times
        self._state = first_state(identity, times.now())
        self.leadership: Leadership | None = None
        self._watch = KeyWatch(coordinator, identity.prefix, self._keys_changed)
        self._timers: dict[Timer, IDelayedCall] = {}
        self._calls: dict[int, Deferred[None] | None] = {}
        """Those whose answers somebody waits for, by their numbers; None while one begins."""
        self._coming: deque[AgentEvent] = deque()
        self._is_busy = False
        self._has_promised = False
        """The answer to the promise that was asked for last."""
        self._leaving: list[Deferred[None]] = []

    # What others see

    @property
    def identity(self) -> Identity:
        """Who this member is."""
        return self._state.knows.me

    @property
    def state(self) -> FailoverState:
        """What the member does."""
        return self._state.knows.state

    @property
    def view(self) -> ClusterView | None:
        """The keys as they were last read."""
        return self._state.knows.view

    @property
    def reason(self) -> str:
        """Why the node does not lead, or what it waits for."""
        return self._state.knows.reason

    @property
    def problem(self) -> str | None:
        """What is wrong with the coordinator, or with its keys; None if nothing is."""
        return self._state.knows.problem

    @property
    def doubts_keys(self) -> bool:
        """Whether the coordinator's keys, when they were last read, were older than what this node knew then."""
        return self._state.knows.doubts_keys

    @property
    def known(self) -> Known:
        """What the node keeps of its cluster on its disk."""
        return self._state.knows.known

    @property
    def sync_set(self) -> SyncSetKeeper | None:
        """For whom a leader's puts wait; None if this node does not lead."""
        return self._state.knows.sync

    @property
    def seconds_of_lease(self) -> float:
        """For how long the node may lead without another answer of the coordinator; 0 if it does not lead."""
        return 0.0 if self.leadership is None else max(0.0, self.leadership.until - self._times.now())

    # What happens

    def startService(self) -> None:
        Service.startService(self)
        self._happens(partial(events.Started))

    def stopService(self) -> Deferred[None]:
        """Leave the cluster. A leader hands over first, if a member has all; fires when the coordinator knows it.

        Who cancels it ends the wait. The member then takes no more part in its cluster, whether that is known or not.
        """
        Service.stopService(self)
        left: Deferred[None] = Deferred(self._give_up_stop)
        self._leaving.append(left)
        self._happens(partial(events.StopRequested))
        return left

    def _give_up_stop(self, left: Deferred[None]) -> None:
        self._leaving.remove(left)
        self._happens(partial(events.StopGivenUp))

    def promise(self, promise: Promise) -> bool:
        """The leader asks us not to try for the lead for some time. Returns whether we promise it."""
        self._has_promised = False
        self._happens(partial(events.PromiseAsked, promise=promise))
        return self._has_promised

    def _keys_changed(self, revision: int, changes: Sequence[Change]) -> None:
        self._happens(partial(events.KeysChanged, keys=tuple(change.key for change in changes)))

    def _fired(self, timer: Timer) -> None:
        self._happens(partial(events.TimerFired, timer=timer))

    def _seen(self) -> Seen:
        members = self._node.members
        return Seen(
            self._times.now(),
            self._times.wall(),
            self._coordinator.cluster_id,
            self._node.facts(),
            None if members is None else seen_members(members),
        )

    def _happens(self, what: partial[Kind]) -> None:
        """Let the step take an event that is no answer, with what is seen now."""
        try:
            event = what(seen=self._seen())
        except Exception:  # of any kind: an agent that sees nothing must not go on
            self._bug(Failure())
        else:
            self._take(event)

    def _take(self, event: AgentEvent) -> None:
        """Let the step take an event, after those that came before, and do what it says."""
        self._coming.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._coming:
                self._step(self._coming.popleft())
        except Exception:  # of any kind: a node must not go on with an agent that has a bug
            self._coming.clear()
            self._bug(Failure())
        finally:
            self._is_busy = False

    def _step(self, event: AgentEvent) -> None:
        self._state, to_do = step(self._state, event)
        for action in to_do:
            self._do(action)

    def _bug(self, failure: Failure) -> None:
        """End the process: a node without its agent would keep the lead, or never take it."""
        self._log.failure("the failover agent failed", failure, event=Event.FAILOVER_BUG)
        try:
            self._step(events.BugFound(self._seen()))
        except Exception:  # of any kind: the bug is told already, and the process ends
            self._end_leadership()
        self._node.give_up(f"a bug in automatic failover: {failure.getErrorMessage()}")

    # What is to be done

    def _do(self, action: Action) -> None:
        match action:
            case actions.LogLine(event, text, fields):
                self._log.emit(LogLevel.lookupByName(event.level), text, event=event, **fields)
            case Call(number, request):
                self._begin(number, request)
            case actions.SetTimer(timer, seconds):
                self._timers[timer] = self._times.clock.callLater(seconds, self._fired, timer)
            case actions.CancelTimer(timer):
                self._cancel_timer(timer)
            case actions.StopAsking():
                self._watch.stop()
                self._cancel_calls()
            case actions.AnswerPromise(is_given):
                self._has_promised = is_given
            case actions.Fence():
                self._node.fence()
            case actions.Left():
                self._fire_left()
            case _:
                self._do_to_leadership(action)

    def _do_to_leadership(self, action: Action) -> None:
        if isinstance(action, actions.BeginLeadership):
            self.leadership = Leadership(action.epoch, self._times.now, action.until)
            self.leadership.require(action.required)
            return
        leadership = self.leadership
        assert leadership is not None, "it has begun"
        match action:
            case actions.ExtendLeadership(until):
                leadership.extend(until)
            case actions.RequireMembers(names):
                leadership.require(names)
            case actions.TellSessions(names):
                leadership.sessions = names
            case actions.HoldPuts(are_held):
                leadership.hold_puts(are_held)
            case actions.EndLeadership():
                leadership.end()
            case _:
                raise AssertionError(f"nobody knows how to do {action}")

    def _cancel_timer(self, timer: Timer) -> None:
        if timer in self._timers and self._timers[timer].active():
            self._timers[timer].cancel()

    def _end_leadership(self) -> None:
        if self.leadership is not None and not self.leadership.is_ended:
            self.leadership.end()

    def _fire_left(self) -> None:
        leaving, self._leaving = self._leaving, []
        for left in leaving:
            left.callback(None)

    def _cancel_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if call is not None:
                call.cancel()

    # Calls

    def _begin(self, number: int, request: AgentRequest) -> None:
        self._calls[number] = None
        call = Deferred.fromCoroutine(self._call(number, request)).addErrback(self._call_failed, number)
        if number in self._calls:
            self._calls[number] = call

    def _call_failed(self, failure: Failure, number: int) -> None:
        """A bug, unless nobody waits for the call any more."""
        if number in self._calls:
            del self._calls[number]
            self._bug(failure)

    async def _call(self, number: int, request: AgentRequest) -> None:
        """Do what a request says, and tell what became of it."""
        try:
            answer = await self._answer(number, request)
        except (CoordinatorError, InvalidKey, DiskFull, NodeFailed) as error:
            fault = Fault.of(error)
            if fault not in request.faults:
                raise
            answer = events.Failed(self._seen(), number, fault, str(error))
        if number in self._calls:
            del self._calls[number]
            self._take(answer)

    async def _answer(self, number: int, request: AgentRequest) -> Answered:
        """Raises CoordinatorError, InvalidKey, DiskFull, NodeFailed."""
        match request:
            case actions.ReadKeys():
                view = await self._read_keys()
                return events.KeysRead(self._seen(), number, view)
            case actions.Transact(_, compares, writes):
                done = await self._coordinator.transact(compares, writes)
                return events.TransactionAnswered(self._seen(), number, done.succeeded)
            case actions.GrantLease(ttl):
                lease = await self._coordinator.grant(ttl)
                return events.LeaseGranted(self._seen(), number, lease)
            case actions.RenewLease(lease):
                ttl = await self._coordinator.keep_alive(lease)
                return events.LeaseRenewed(self._seen(), number, ttl)
            case actions.ReadKnown():
                known = await self._node.read_known()
                return events.KnownRead(self._seen(), number, known)
            case actions.StopFollowing():
                end = await self._node.stop_following()
                return events.FollowingStopped(self._seen(), number, end)
            case actions.AskPromises(members, promise):
                asked = [Deferred.fromCoroutine(self._ask(member, promise)) for member in members]
                given = await DeferredList(asked)
                promised = tuple(answer if success else None for success, answer in given)
                return events.PromisesAnswered(self._seen(), number, promised)
        await self._done(request)
        return events.CallDone(self._seen(), number)

    async def _done(self, request: AgentRequest) -> None:
        """Do what has no other answer than that it is done. Raises CoordinatorError, DiskFull, NodeFailed."""
        match request:
            case actions.WriteKnown(known):
                await self._node.write_known(known)
            case actions.CheckRoom():
                await self._node.check_room()
            case actions.Follow(leader, broker_id):
                await self._node.follow(leader, broker_id)
            case actions.Lead(cause):
                assert self.leadership is not None, "it has begun"
                await self._node.lead(self.leadership, cause)
            case actions.Reinit():
                await self._node.reinit()
            case actions.RevokeLease(lease):
                await self._coordinator.revoke(lease)
            case actions.CloseCoordinator():
                await self._coordinator.close()
            case actions.WaitSeconds(seconds):
                if seconds:
                    await deferLater(self._times.clock, seconds)
            case _:
                raise AssertionError(f"nobody knows how to do {request}")

    async def _read_keys(self) -> ClusterView:
        """All keys, which are watched from there on. Raises CoordinatorError, InvalidKey."""
        prefix = self.identity.prefix
        snapshot = await self._coordinator.range(prefix)
        if self.running:
            self._watch.go_on_from(snapshot.revision)
        return ClusterView.read(prefix, snapshot)

    async def _ask(self, member: Member, promise: Promise) -> bool | None:
        return await self._node.ask_promise(member, promise)


def seen_members(members: SyncMembers) -> SeenMembers:
    """What a leader's puts wait for, as it is now."""
    seen = {name: SeenMember(members.held(name), members.session(name)) for name in members.connected}
    return SeenMembers(members.confirmed_offset, seen)
