"""The agent's step: it takes every event in every state, keeps the invariants, and a recorded run replays.

``Checker`` looks at each action from outside. It trusts nothing of what the step says of itself, only its actions and
the events that answered them.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from zope.interface.verify import verifyClass

from rmqha.coordination.interface import CompareTarget, CoordinatorError, Delete, KeyValue, Put, Snapshot
from rmqha.failover import agent as shell
from rmqha.failover.keys import (
    CONFIG,
    EPOCH,
    LEADER,
    MEMBERS,
    REQUEST,
    STATUS,
    SYNC,
    ClusterConfig,
    EpochEntry,
    History,
    Holder,
    Leader,
    Member,
    Mode,
    Order,
    Request,
    Status,
    SyncSet,
    ToldFacts,
    decode,
    encode,
)
from rmqha.failover.member import Following, Identity, INode, Known, NodeFacts, Promise
from rmqha.failover.states import FailoverState
from rmqha.failover.step import actions, events, following, leading, obeying, rights, trying, turns
from rmqha.failover.step.actions import Action, Call
from rmqha.failover.step.events import AgentEvent, Answered, Failed, Fault, Seen, SeenMember, SeenMembers, Timer
from rmqha.failover.step.rights import move
from rmqha.failover.step.step import AgentPhase, AgentState, first_state, step
from rmqha.failover.step.work import Procedure, Work, transact
from rmqha.failover.view import ClusterView
from rmqha.node.member import MemberNode
from rmqha.testing.coordinator import MemoryStore
from rmqha.testing.sim.walk import Story, run_seed
from tests import examples
from tests.testing.planted import (
    Patch,
    add_a_member_before_it_holds_everything,
    leave_a_member_out_before_the_key_says_so,
    note_no_epoch,
)

ME = Identity("C", "B", "a", b"a" * 16, is_founder=True)
OTHER = b"b" * 16
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = NodeFacts("boot-1", True, store="store-a", state="IN_SYNC", end=100, ha="a:1", remoting="a:2")
SETTINGS = ClusterConfig(failover_pause=0.0)


def seen(now: float, end: int = 100, members: SeenMembers | None = None, **facts: Any) -> Seen:
    return Seen(now, NOW + timedelta(seconds=now), 1, replace(FACTS, end=end, **facts), members)


def other(name: str = "b", **fields_: Any) -> Member:
    told = ToldFacts(store=f"store-{name}", state="IN_SYNC", end=100, ha=f"{name}:1", remoting=f"{name}:2").told()
    member = Member(name, (name.encode() * 16).hex(), "boot-1", **told)
    return replace(member, **fields_)


def view_of(keys: dict[str, Any], revision: int = 9, leases: dict[str, int] | None = None) -> ClusterView:
    """The keys of a cluster, as they are read."""
    held = {
        ME.prefix + name: KeyValue(ME.prefix + name, encode(value), 3, revision - 1, (leases or {}).get(name, 0))
        for name, value in keys.items()
    }
    return ClusterView.read(ME.prefix, Snapshot(revision, held))


@dataclass
class Checker:
    """Runs a step after another, and checks what it says."""

    state: AgentState
    now: float = 0.0
    open: dict[int, Call] = field(default_factory=dict)
    known: Known = field(default_factory=Known)
    """What was noted durably."""
    is_led: bool = False
    """Whether a right to lead has begun, and not ended."""
    until: float = 0.0
    required: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    """All that ``sync`` may name, as far as it was written in this leadership."""
    follows: bool = False
    """Whether the node may have a connection to a leader."""
    is_fence_due: bool = False
    sent: list[SyncSet] = field(default_factory=list)
    """What was sent to ``sync``, and may have been written or not."""
    since: dict[str, int] = field(default_factory=dict)
    """Where the log ended when puts began to wait for a member."""
    leaders: set[tuple[str, str, int]] = field(default_factory=set)
    """Those that the keys have named: name, session, epoch."""

    def take(self, event: AgentEvent) -> tuple[Action, ...]:
        self.now = event.seen.now
        before = self.state
        self.state, done = step(before, event)
        assert step(before, event) == (self.state, done), "a step is a function of its arguments"
        assert_is_data(done)
        if isinstance(event, Answered):
            call = self.open.get(event.number)
            if call is not None and is_answer(call.request, event):
                del self.open[event.number]
                self._heard(call.request, event)
        if isinstance(event, events.KeysRead) and event.view.leader is not None:
            leader = event.view.leader
            self.leaders.add((leader.node, leader.session, leader.epoch))
        for action in done:
            self._look(action, event.seen)
        self._check_time(event)
        assert not self.is_fence_due, "the end of a right to lead is told to the node in the same step"
        if self.state.knows.state is FailoverState.LEADER:
            assert self.is_led
        leads = self.state.knows.right is not None and not self.state.knows.right.is_ended
        assert leads == self.is_led
        return done

    def _check_time(self, event: AgentEvent) -> None:
        if isinstance(event, events.TimerFired) and event.timer is Timer.EXPIRY and self.is_led:
            assert self.now < self.until, "nobody leads after the lease's end"
        right = self.state.knows.right
        assert right is None or right.is_ended or right.until == self.until, "the right lasts as long as was said"

    def _heard(self, request: actions.AgentRequest, event: Answered) -> None:
        match request, event:
            case actions.WriteKnown(known), events.CallDone():
                self.known = known
            case actions.StopFollowing(), events.FollowingStopped():
                self.follows = False
            case actions.Follow(leader), events.CallDone():
                self.follows = leader is not None
            case actions.Transact(_, _, writes), events.TransactionAnswered(_, _, True):
                for write in writes:
                    if isinstance(write, Put) and write.key == ME.prefix + SYNC:
                        self._is_written(decode(SyncSet, SYNC, write.value))
            case actions.ReadKeys(), events.KeysRead(_, _, view):
                if view.sync is not None and view.sync in self.sent:
                    self._is_written(view.sync)

    def _is_written(self, sync: SyncSet) -> None:
        self.named, self.sent = sync.members, []

    def _look(self, action: Action, at: Seen) -> None:
        match action:
            case actions.BeginLeadership(_, until, required):
                assert not self.is_led
                self.is_led, self.until, self.required, self.named = True, until, required, required
                self.since = dict.fromkeys(required, 0)
            case actions.ExtendLeadership(until):
                self.until = max(self.until, until)
            case actions.EndLeadership():
                self.is_led, self.is_fence_due = False, True
            case actions.Fence():
                self.is_fence_due = False
            case actions.RequireMembers(names):
                assert self.named <= names, "puts wait for all that sync may name"
                self.since = {name: self.since.get(name, at.facts.end) for name in names}
                self.required = names
            case Call(number, request):
                assert number not in self.open
                self.open[number] = action
                self._look_at_request(request, at)

    def _look_at_request(self, request: actions.AgentRequest, at: Seen) -> None:
        match request:
            case actions.Follow(Following() as leader):
                epoch = leader.hello.epoch
                assert not self.is_led
                assert (leader.name, leader.session, epoch) in self.leaders, "it follows whom the keys name"
                assert self.known.epoch == epoch, "the epoch is noted durably before it acts in it"
                self.follows = True
            case actions.Lead():
                right = self.state.knows.right
                assert right is not None
                assert self.known.epoch == right.epoch, "the epoch is noted durably before it acts in it"
                assert self.is_led
                assert at.now < self.until, "nobody begins to lead after the lease's end"
            case actions.Transact(_, compares, writes):
                self._look_at_transaction(compares, writes, at)

    def _look_at_transaction(self, compares: Any, writes: Any, at: Seen) -> None:
        put = {write.key.removeprefix(ME.prefix): write.value for write in writes if isinstance(write, Put)}
        deleted = {write.key.removeprefix(ME.prefix) for write in writes if isinstance(write, Delete)}
        targets = {(compare.key.removeprefix(ME.prefix), compare.target) for compare in compares}
        if LEADER in deleted:
            assert not self.is_led, "the right ends before the coordinator is told"
            assert any(name == LEADER for name, _ in targets), "only our own key is deleted"
        if LEADER in put and not self.is_led:
            assert not self.follows, "a candidate has closed its connection before it tries for the key"
            assert (LEADER, CompareTarget.CREATE) in targets, "only if nobody leads"
            assert {EPOCH, SYNC} <= {name for name, _ in targets}
        if SYNC in put and LEADER not in put:
            sync = decode(SyncSet, SYNC, put[SYNC])
            assert self.is_led
            assert at.now < self.until, "nobody writes sync after the lease's end"
            assert {(LEADER, CompareTarget.CREATE), (SYNC, CompareTarget.MOD)} <= targets
            for name in sync.members - self.named:
                assert at.members is not None
                assert at.members.holds(name, self.since[name]), "it holds all that was answered without it"
        if SYNC in put and self.is_led:
            sync = decode(SyncSet, SYNC, put[SYNC])
            assert sync.members <= self.required
            assert sync.number > max((each.number for each in self.sent), default=0), "no number is used twice"
            self.named |= sync.members
            self.sent.append(sync)


def is_answer(request: actions.AgentRequest, event: Answered) -> bool:
    """Whether this is an answer that the request can have."""
    return event.fault in request.faults if isinstance(event, Failed) else isinstance(event, request.answer)


def assert_is_data(value: object) -> None:
    """Only frozen records, and what they are made of."""
    if is_dataclass(value):
        assert getattr(type(value), "__dataclass_params__").frozen, type(value)  # noqa: B009  # typeshed lacks it
        for each in fields(value):
            assert_is_data(getattr(value, each.name))
    elif isinstance(value, Mapping):
        for pair in value.items():
            assert_is_data(pair)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            assert_is_data(each)
    else:
        assert value is None or isinstance(value, str | bytes | int | float | Enum | datetime), type(value)


class World:
    """A coordinator, a node and another member around a step: what comes next is chosen by numbers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.checker = Checker(first_state(ME, 0.0))
        self.states: list[AgentState] = []
        self.timers: dict[Timer, float] = {}
        self.end = 100
        self.is_full = False
        self.held: int | None = None
        """Up to where the other member holds the log; None if it is not connected."""
        self.leads = False
        self.b = other()
        self.deeds = (
            *[self.run] * 6,
            *[self.answer] * 6,
            *[self.pass_time] * 4,
            self.fail,
            self.fail,
            self.connect,
            self.connect,
            self.register,
            self.take_over,
            self.let_go,
            self.order,
            self.order,
            self.silence,
            self.configure,
            self.fill,
            self.promise,
            self.nonsense,
            self.nonsense,
            self.stop,
        )
        self.set(CONFIG, SETTINGS)
        self.take(events.Started(self.seen()))

    def seen(self) -> Seen:
        members = {} if self.held is None else {"b": SeenMember(self.held, self.b.session)}
        led = SeenMembers(min(self.end, self.held or 0), members) if self.leads else None
        return seen(self.clock.seconds(), self.end, led, is_full=self.is_full)

    def set(self, name: str, value: Any, lease: int = 0) -> None:
        self.store.transact([], [Put(ME.prefix + name, encode(value), lease)])

    def view(self) -> ClusterView:
        return ClusterView.read(ME.prefix, self.store.range(ME.prefix))

    def take(self, event: AgentEvent) -> None:
        opened = set(self.checker.open)
        for action in self.checker.take(event):
            match action:
                case actions.SetTimer(timer, seconds):
                    self.timers[timer] = self.clock.seconds() + seconds
                case actions.CancelTimer(timer):
                    self.timers.pop(timer, None)
        assert set(self.checker.open) - opened <= {self.checker.state.calls, self.checker.state.calls - 1}
        assert not self.checker.is_led or Timer.EXPIRY in self.timers, "the end of the right is looked at"
        self.states.append(self.checker.state)

    def lead(self) -> None:
        """It leads, and the other member holds all."""
        self.register(1)
        for number in range(40):
            self.run(39)
            self.pass_time(8 + number % 2)
            self.connect(3)

    def hand_over(self) -> None:
        """It leads, and waits until the other member has the whole log."""
        self.lead()
        self.end += 1
        self.order(12)
        self.run(39)

    def copy_anew(self) -> None:
        """It follows the other member, and sets its log aside."""
        self.run(39)
        self.register(1)
        self.take_over(3)
        self.run(39)
        self.order(17)
        self.run(39)

    def do(self, numbers: Iterable[int]) -> None:
        """Each number says what happens, and with what."""
        for number in numbers:
            self.deeds[number % len(self.deeds)](number // len(self.deeds))

    # What happens

    def run(self, number: int) -> None:
        """Everything is answered, for some time."""
        for _ in range(number % 40):
            if not self.checker.open:
                break
            self.answer(number)

    def answer(self, number: int, is_told: bool = True) -> None:
        if not self.checker.open:
            return
        calls = list(self.checker.open.values())
        call = calls[number % len(calls)]
        try:
            event = self._answer(call.number, call.request)
        except CoordinatorError as error:
            event = Failed(self.seen(), call.number, Fault.of(error), str(error))
        if is_told:
            self.take(event)

    def _answer(self, number: int, request: actions.AgentRequest) -> AgentEvent:
        match request:
            case actions.ReadKeys():
                view = self.view()
                return events.KeysRead(self.seen(), number, view)
            case actions.Transact(_, compares, writes):
                done = self.store.transact(compares, writes).succeeded
                return events.TransactionAnswered(self.seen(), number, done)
            case actions.GrantLease(ttl):
                return events.LeaseGranted(self.seen(), number, self.store.grant(ttl))
            case actions.RenewLease(lease):
                return events.LeaseRenewed(self.seen(), number, self.store.keep_alive(lease))
            case actions.ReadKnown():
                return events.KnownRead(self.seen(), number, Known())
            case actions.StopFollowing():
                return events.FollowingStopped(self.seen(), number, self.end)
            case actions.AskPromises(members, _):
                return events.PromisesAnswered(self.seen(), number, tuple(True for _ in members))
            case actions.Lead():
                self.leads, self.held = True, None
            case actions.Follow():
                self.leads, self.held = False, None
        return events.CallDone(self.seen(), number)

    def fail(self, number: int) -> None:
        """A call fails. A write of the coordinator may have been done."""
        calls = [call for call in self.checker.open.values() if call.request.faults]
        if calls:
            call = calls[number % len(calls)]
            faults = sorted(call.request.faults, key=lambda fault: fault.name)
            fault = faults[number // 2 % len(faults)]
            if fault is Fault.UNAVAILABLE and number % 2:
                with suppress(CoordinatorError):
                    self._answer(call.number, call.request)
            self.take(Failed(self.seen(), call.number, fault, "planned"))

    def silence(self, number: int) -> None:
        """A renewal of the lease is not answered."""
        for call in list(self.checker.open.values()):
            if isinstance(call.request, actions.RenewLease):
                self.take(Failed(self.seen(), call.number, Fault.UNAVAILABLE, "planned"))

    def pass_time(self, number: int) -> None:
        """The log grows, and the timers that are due fire."""
        self.clock.advance((number % 64) / 8)
        self.end += number % 3
        for timer, due in list(self.timers.items()):
            if due <= self.clock.seconds() and self.timers.get(timer) == due:
                del self.timers[timer]
                self.take(events.TimerFired(self.seen(), timer))

    def connect(self, number: int) -> None:
        self.held = (None, 0, self.end - 1, self.end, self.end)[number % 5]

    def register(self, number: int) -> None:
        """The other member tells of itself; it may be another process, or have another store."""
        self.b = other(
            session=(OTHER if number % 5 else b"c" * 16).hex(),
            store="store-b" if number % 7 else "store-c",
            end=self.end - number % 4,
            is_candidate=number % 3 == 0,
            is_doubtful=number % 11 == 0,
            known_epoch=self.view().epoch,
        )
        self.set(MEMBERS + "b", self.b)
        self.changed(MEMBERS + "b")

    def take_over(self, number: int) -> None:
        """The other member leads, in a newer epoch, or in an older one from a copy."""
        view = self.view()
        epoch = view.epoch + (1 if number % 4 else 0)
        mine = {"a": Holder("store-a", "boot-1")} if number % 3 else {}
        self.set(MEMBERS + "b", self.b)
        self.set(EPOCH, History((EpochEntry(epoch, "b", self.end, NOW.isoformat(), "x", "b" * 12, 1),)))
        self.set(SYNC, SyncSet(epoch, "b", {"b": self.b.holder(), **mine}, 1, 1))
        self.set(LEADER, Leader("b", self.b.session, epoch, 1))
        self.changed(LEADER)

    def let_go(self, number: int) -> None:
        """The leader key ends, or comes back from a copy."""
        view = self.view()
        self.store.transact([], [Delete(ME.prefix + LEADER)])
        if number % 2 and view.sync is not None:
            self.set(STATUS, Status(view.epoch, self.end, self.end, is_released=True))
        self.changed(LEADER)

    def order(self, number: int) -> None:
        kind = list(Order)[number % 3]
        self.set(REQUEST, Request(f"r{number}", kind.value, ("", "a", "b", "c")[number // 3 % 4], number % 5 == 0))
        self.changed(REQUEST)

    def configure(self, number: int) -> None:
        mode = Mode.ASYNC if number % 3 == 0 else Mode.SYNC
        self.set(CONFIG, replace(SETTINGS, mode=mode.value, paused=number % 5 == 0))
        self.changed(CONFIG)

    def fill(self, number: int) -> None:
        self.is_full = number % 2 == 0

    def changed(self, name: str) -> None:
        self.take(events.KeysChanged(self.seen(), (ME.prefix + name,)))

    def promise(self, number: int) -> None:
        leader = self.view().leader
        if leader is not None:
            promise = Promise(leader.node, leader.epoch, leader.session, (0.0, 1.0, 15.0, 1e9)[number % 4])
            self.take(events.PromiseAsked(self.seen(), promise))

    def nonsense(self, number: int) -> None:
        """An event that nobody has waited for, or the answer to another question."""
        kinds = list(any_events(self.seen(), self.checker.state.calls - number % 4, self.view()))
        self.take(kinds[number // 4 % len(kinds)])

    def stop(self, number: int) -> None:
        if number % 4 == 0:
            self.take(events.StopRequested(self.seen()))


def any_events(at: Seen, number: int, view: ClusterView) -> Iterator[AgentEvent]:
    """An event of each kind. Those that end all are left to ``test_each_state_takes_each_event``."""
    yield events.Started(at)
    yield events.KeysChanged(at, (ME.prefix + LEADER,))
    yield from (events.TimerFired(at, timer) for timer in Timer)
    yield events.PromiseAsked(at, Promise("b", 1, OTHER.hex(), 5.0))
    yield events.CallDone(at, number)
    yield events.KnownRead(at, number, Known(epoch=3, leader="b"))
    yield events.FollowingStopped(at, number, 7)
    yield events.KeysRead(at, number, view)
    yield from (events.TransactionAnswered(at, number, succeeded) for succeeded in (False, True))
    yield events.LeaseGranted(at, number, 77)
    yield events.LeaseRenewed(at, number, 15)
    yield events.PromisesAnswered(at, number, (True, None, False))
    yield from (Failed(at, number, fault, "nonsense") for fault in Fault)


def last_events(at: Seen) -> Iterator[AgentEvent]:
    """Those that end all."""
    yield events.StopRequested(at)
    yield events.StopGivenUp(at)
    yield events.BugFound(at)


def nothing(world: World) -> None:
    """It has just started."""


BEGINNINGS: list[Callable[[World], None]] = [nothing, World.lead, World.hand_over, World.copy_anew]


@settings(max_examples=examples(100))
@given(st.sampled_from(BEGINNINGS), st.lists(st.integers(0, 4000), max_size=60))
def test_the_step_keeps_the_invariants_whatever_happens(begin: Callable[[World], None], numbers: list[int]) -> None:
    world = World()
    begin(world)
    world.do(numbers)


def walk(seed: int) -> World:
    """A long walk, always the same one."""
    world, random = World(), Random(seed)
    BEGINNINGS[seed % len(BEGINNINGS)](world)
    world.do(random.randrange(4000) for _ in range(150))
    return world


@cache
def walks() -> list[World]:
    return [walk(seed) for seed in range(30)]


@cache
def states_met() -> dict[tuple[object, ...], AgentState]:
    """A state of each kind: what the member does, what it waits for, and whether it renews its lease."""
    found: dict[tuple[object, ...], AgentState] = {(None,): first_state(ME, 0.0)}
    for world in walks():
        for state in world.states:
            awaited = None if state.script is None else type(state.script.request)
            found.setdefault((state.knows.state, state.phase, awaited, state.renewal is None), state)
    return found


def test_each_state_takes_each_event() -> None:
    states = states_met()
    assert {state.knows.state for state in states.values()} == set(FailoverState)
    assert {state.phase for state in states.values()} == set(AgentPhase)
    world = World()
    world.take_over(1)
    for state in states.values():
        assert_is_data(state)
        at = seen(world.clock.seconds() + 1000.0, members=SeenMembers(50, {"b": SeenMember(60, OTHER.hex())}))
        numbers = {script.number for script in (state.script, state.renewal) if script is not None} | {-1}
        given_ = [event for number in numbers for event in any_events(at, number, world.view())]
        for event in [*given_, *last_events(at)]:
            after, done = step(state, event)
            assert_is_data(done)
            if isinstance(event, Answered) and event.number == -1:
                assert (after, done) == (state, ()), "an answer that nobody waits for changes nothing"


def test_the_events_are_all_there_are() -> None:
    at = seen(0.0)
    kinds = {type(event) for event in (*any_events(at, 1, view_of({})), *last_events(at))}
    assert kinds == {kind for kind in vars(events).values() if is_event(kind)}


def is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, AgentEvent) and kind not in (AgentEvent, Answered)


def test_the_walks_do_all_that_a_member_can_ask_for() -> None:
    """Else the other tests here would prove little."""
    states = [state for world in walks() for state in world.states]
    asked = {type(script.request) for state in states for script in (state.script, state.renewal) if script is not None}
    kinds = {
        kind for kind in vars(actions).values() if isinstance(kind, type) and issubclass(kind, actions.AgentRequest)
    }
    assert asked == kinds - {actions.AgentRequest}


def test_a_leader_names_a_member_that_holds_all() -> None:
    world = World()
    world.lead()
    assert world.checker.state.knows.state is FailoverState.LEADER
    assert world.checker.named == {"b"}
    assert world.view().sync is not None


def test_a_leader_that_polls_keeps_no_more_with_each_look() -> None:
    world = World()
    world.hand_over()
    sizes = set()
    for _ in range(20):
        script = world.checker.state.script
        assert script is not None
        assert isinstance(script.request, actions.Poll)
        sizes.add(len(script.inputs))
        world.answer(0)
    assert len(sizes) == 1


@pytest.mark.parametrize("seed", [*range(4), 20, 186])
def test_a_recorded_run_replays_to_the_same_actions(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What is recorded is bytes: nothing that lives can help the replay."""
    runs: dict[Identity, list[bytes]] = {}

    def record(state: AgentState, event: AgentEvent) -> tuple[AgentState, tuple[Action, ...]]:
        after, done = step(state, event)
        runs.setdefault(state.knows.me, [pickle.dumps(state)]).append(pickle.dumps((event, done)))
        return after, done

    monkeypatch.setattr(shell, "step", record)
    assert run_seed(seed, Story.CLUSTER).violation is None
    assert len(runs) > 1
    for first, *recorded in runs.values():
        state = pickle.loads(first)
        assert state == first_state(state.knows.me, state.knows.born)
        for event, done in map(pickle.loads, recorded):
            state, again = step(state, event)
            assert again == done


def try_while_it_follows(patch: pytest.MonkeyPatch) -> None:
    """A candidate does not close its connection first."""

    def become_candidate(work: Work) -> Procedure[None]:
        move(work, FailoverState.CANDIDATE)
        yield from ()

    patch.setattr(trying, "_become_candidate", become_candidate)


def lead_after_the_end(patch: pytest.MonkeyPatch) -> None:
    """The time of the lease is not looked at."""

    def is_held(work: Work) -> bool:
        return work.knows.right is not None and not work.knows.right.is_ended

    for module in (rights, leading, trying):
        patch.setattr(module, "is_held", is_held)


def tell_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is told first that the lead is given up."""
    give_up_lead = obeying.give_up_lead

    def tell_first(work: Work, *more: Any, **named: Any) -> Procedure[None]:
        yield from transact("give up the lead", [work.still_ours()], [Delete(work.key(LEADER))])
        yield from give_up_lead(work, *more, **named)

    for module in (obeying, turns):
        patch.setattr(module, "give_up_lead", tell_first)


def follow_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """The epoch of a leader is not noted."""

    def note_nothing(work: Work, *_: Any) -> Procedure[None]:
        yield from ()

    patch.setattr(following, "note", note_nothing)


@pytest.mark.parametrize(
    "plant",
    [
        try_while_it_follows,
        lead_after_the_end,
        tell_before_the_end,
        follow_any_epoch,
        note_no_epoch,
        add_a_member_before_it_holds_everything,
        leave_a_member_out_before_the_key_says_so,
    ],
)
def test_a_step_that_keeps_no_invariant_is_found(monkeypatch: pytest.MonkeyPatch, plant: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        list(map(walk, range(60)))


def test_a_member_is_what_the_agent_asks() -> None:
    assert verifyClass(INode, MemberNode, tentative=False)
