"""A coordinator in the simulation: its keys and leases are real, and requests and answers are on their way in steps.

A request that was given up may still be done later, as in a real network. Requests and answers keep no order.

It can go back to an older copy of its keys, under its id or under another one. ``Truth`` notes what each node has acted
on. It does not ask the node.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from zope.interface import implementer

from rmqha.coordination.interface import (
    Change,
    Compare,
    CoordinatorError,
    CoordinatorUnavailable,
    Delete,
    ICoordinator,
    IWatch,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.coordination.state import KeysAndLeases
from rmqha.failover.keys import LEADER, SYNC
from rmqha.testing.keystore import KeyStore
from rmqha.testing.sim.histories import RecordedCoordinator, Recorder, keys_to_json, transaction_to_json
from rmqha.testing.sim.network import Network
from rmqha.testing.sim.process import Process, SortedClock

COORDINATOR = "coordinator"
TIMEOUT_SECONDS = 2.0
FORGOTTEN_SECONDS = 60.0
"""A request is on its way no longer than that."""


class Call:
    """A request, and then its answer, on the way. ``do`` is what the coordinator does."""

    def __init__(self, process: Process, what: str, do: Callable[[], Any]) -> None:
        self.process = process
        self.what = what
        self._do = do
        self.sent_at = process.clock.seconds()
        self.is_done = self._is_over = self._has_arrived = False
        self._result: Any = None
        self.answer: Deferred[Any] = Deferred(lambda _: self._give_up())
        self._timer: IDelayedCall = process.clock.callLater(TIMEOUT_SECONDS, self._timed_out)

    def _give_up(self) -> None:
        self._is_over = True
        if self._timer.active():
            self._timer.cancel()

    def _timed_out(self) -> None:
        self._is_over = True
        self.answer.errback(CoordinatorUnavailable(f"no answer to {self.what} within {TIMEOUT_SECONDS:g} s"))

    def execute(self) -> None:
        """The request has arrived."""
        self.is_done = True
        try:
            self._result = self._do()
        except CoordinatorError as error:
            self._result = error

    @property
    def is_of_use(self) -> bool:
        """Whether anything may still come of it."""
        return not self.is_done or (not self._is_over and not self._has_arrived and self.process.alive)

    def arrive(self) -> None:
        """The answer has arrived. A process that stands still reads it when it goes on, as its kernel has it."""
        self._has_arrived = True
        self.process.call(self._hear)

    def _hear(self) -> None:
        if self._is_over or not self.process.alive:
            return
        self._give_up()
        if isinstance(self._result, CoordinatorError):
            self.answer.errback(self._result)
        else:
            self.answer.callback(self._result)


@implementer(IWatch)
class Watch:
    """Changes on their way to a process."""

    def __init__(
        self,
        process: Process,
        prefix: str,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> None:
        self.process = process
        self.prefix = prefix
        self.coming: deque[tuple[int, Sequence[Change]]] = deque()
        self.is_broken = self.is_over = False
        self._changed = changed
        self._ended = ended

    def stop(self) -> None:
        self.is_over = True

    def arrive(self) -> None:
        """The next change, or the end, has arrived."""
        if self.coming:
            self.process.call(self._changed, *self.coming.popleft())
        elif self.is_broken:
            self.is_over = True
            self.process.call(self._ended, CoordinatorUnavailable("the watch broke"))


class Truth:
    """Which writes of ``sync`` each node has acted on, and which of them the coordinator has lost under its old id.

    A node acts on what it has read with its next question or transaction. No process has to remember it.
    """

    def __init__(self) -> None:
        self.write = 0
        """The number of the write that the coordinator holds."""
        self.times_back = 0
        """How often it has gone back."""
        self.knowers: frozenset[str] = frozenset()
        """When a leader was named last: it, and the registered nodes, as far as they knew of a lost write."""
        self._writes = 0
        self._acted: dict[str, set[int]] = {}
        self._lost: set[int] = set()
        self._registered: dict[str, int] = {}

    def written(self) -> None:
        """``sync`` was written."""
        self._writes += 1
        self.write = self._writes

    def gone_back(self, write: int, is_same: bool) -> None:
        """The coordinator holds this write again, under the same id or under another one."""
        if is_same:
            self._lost |= set(range(write + 1, self._writes + 1))
        self.write = write
        self.times_back += 1

    def acts(self, name: str, write: int) -> None:
        """The node has read this write, and goes on."""
        self._acted.setdefault(name, set()).add(write)

    def registers(self, name: str, times_back: int) -> None:
        """A node's own key is written. It had read the keys when the coordinator had gone back ``times_back`` times."""
        self._registered[name] = times_back

    def named(self, name: str) -> None:
        """The node's key as the leader is written."""
        there = {other for other, times in self._registered.items() if times == self.times_back} | {name}
        self.knowers = frozenset(other for other in there if self._lost & self._acted.get(other, set()))

    def settled(self) -> None:
        """An operator has decided, or the leader that knows all has written its keys again."""
        self._lost.clear()

    @property
    def has_lost(self) -> bool:
        """Whether the coordinator holds older keys than those that a node has acted on, under the same id."""
        return bool(self._lost & set().union(*self._acted.values()))

    def knows_all(self, name: str) -> bool:
        """Whether the node has acted on each lost write that any node has acted on."""
        acted: set[int] = set().union(*self._acted.values())
        return self._lost & acted <= self._acted.get(name, set())


class SimCoordinator(KeyStore):
    """The coordinator, and what is on the way to it and from it."""

    def __init__(self, clock: SortedClock, network: Network, random: Random, say: Callable[[str, str], None]) -> None:
        super().__init__(clock)
        self._network = network
        self._random = random
        self.say = say
        self.calls: list[Call] = []
        self.watches: list[Watch] = []
        self.truth = Truth()
        self._copies: list[tuple[KeysAndLeases, int]] = []
        self.history: Recorder | None = None
        """What clients ask for, if somebody wants to know, up to when it goes back."""

    def record(self) -> None:
        """Take down what clients ask for from now on."""
        self.history = Recorder(self.clock)
        self.history.note("init", revision=self.state.revision, keys=keys_to_json(self.state.keys))

    def write_as_operator(self, *writes: Put | Delete) -> None:
        """An operator's command writes keys."""
        done = self.transact([], writes)
        if self.history is not None:
            asked = self.history.invoke("transact", **transaction_to_json([], writes))
            asked.end("ok", succeeded=done.succeeded, revision=done.revision)

    def client(self, process: Process) -> ICoordinator:
        """A client for this process."""
        client: ICoordinator = SimClient(self, process)
        return client if self.history is None else RecordedCoordinator(client, self.history)

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self._is_up

    def new_lease(self) -> int:
        """An id that no lease had before, as good as surely."""
        return self._random.getrandbits(62) + 1

    def changed(self, changes: tuple[Change, ...]) -> None:
        """The changes are on their way to the watches."""
        if any(change.key.endswith(f"/{SYNC}") for change in changes):
            self.truth.written()
        for watch in self.watches:
            found = [change for change in changes if change.key.startswith(watch.prefix)]
            if found:
                watch.coming.append((self.state.revision, found))

    def lease_ends(self, lease: int) -> None:
        """It is a line of the trace."""
        self.say(COORDINATOR, f"lease {lease} ends")

    # Steps

    def news(self) -> list[Call | Watch]:
        """What could get on now."""
        now = self.clock.seconds()
        self.calls = [call for call in self.calls if call.is_of_use and now - call.sent_at < FORGOTTEN_SECONDS]
        self.watches = [watch for watch in self.watches if not watch.is_over and watch.process.alive]
        passes = self._network.passes
        found: list[Call | Watch] = [
            call
            for call in self.calls
            if (passes(COORDINATOR, call.process.name) if call.is_done else self._reaches(call.process))
        ]
        found += [
            watch
            for watch in self.watches
            if (watch.coming or watch.is_broken) and passes(COORDINATOR, watch.process.name)
        ]
        return found

    def _reaches(self, process: Process) -> bool:
        return self.is_up and self._network.passes(process.name, COORDINATOR)

    def step(self, each: Call | Watch) -> None:
        """It gets on."""
        if isinstance(each, Call) and not each.is_done:
            self.say(COORDINATOR, f"gets {each.what} of {each.process.name}")
            each.execute()
        else:
            if isinstance(each, Call):
                self.say(each.process.name, f"is answered {each.what}")
            each.arrive()

    def stop(self) -> None:
        """It is gone for some time; its keys stay."""
        self.go_down()
        self.say(COORDINATOR, "is down")
        self.break_watches()

    def start(self) -> None:
        """It is there again. Each lease has its whole time again."""
        if not self.is_up:
            self.say(COORDINATOR, "is up again")
            self.go_up()

    def break_watches(self) -> None:
        """All watches end."""
        for watch in self.watches:
            watch.coming.clear()
            watch.is_broken = True

    def save(self) -> None:
        """An operator keeps a copy of its keys."""
        self._copies.append((self.state.copy(), self.truth.write))

    def roll_back(self, is_same: bool = False) -> bool:
        """It is set back to a copy. False without one.

        With ``is_same`` it keeps its id, as a journal or a disk does that is put back. Else it is a new cluster.
        """
        if not self._copies:
            return False
        state, write = self._random.choice(self._copies)
        self._set(state.copy(), write, is_same)
        return True

    def lose_all(self) -> None:
        """Its disk is gone."""
        self._set(KeysAndLeases(), 0, False)

    def _set(self, state: KeysAndLeases, write: int, is_same: bool) -> None:
        what = "goes back under its id" if is_same else "is set back"
        self.say(COORDINATOR, f"{what} from revision {self.state.revision} to {state.revision}")
        if self.history is not None:
            self.history.end()
        if not is_same:
            self.cluster_id += 1
        self.truth.gone_back(write, is_same)
        self.calls = [call for call in self.calls if call.is_done]
        self.break_watches()
        self.start_again(state)


@implementer(ICoordinator)
class SimClient:
    """A process's client."""

    timeout = TIMEOUT_SECONDS

    def __init__(self, coordinator: SimCoordinator, process: Process) -> None:
        self._coordinator = coordinator
        self._process = process
        self.cluster_id: int | None = None
        self._read: tuple[int, int] | None = None
        """The write of ``sync`` that was read last, and how often the coordinator had gone back then."""

    def _call(self, what: str, do: Callable[[], Any]) -> Deferred[Any]:
        def do_and_note() -> tuple[int, Any]:
            try:
                return self._coordinator.cluster_id, do()
            except CoordinatorError as error:
                return self._coordinator.cluster_id, error

        call = Call(self._process, what, do_and_note)
        self._coordinator.say(self._process.name, f"sends {what}")
        self._coordinator.calls.append(call)
        return call.answer.addCallback(self._answered)

    def _answered(self, answer: tuple[int, Any]) -> Any:
        self.cluster_id, result = answer
        if isinstance(result, CoordinatorError):
            raise result
        return result

    def _goes_on(self) -> None:
        """The process asks for more: it has acted on what it has read."""
        if self._read is not None:
            self._coordinator.truth.acts(self._process.name, self._read[0])

    def grant(self, ttl: int) -> Deferred[int]:
        return self._call("grant", lambda: self._coordinator.grant(ttl))

    def keep_alive(self, lease: int) -> Deferred[int]:
        return self._call("keep_alive", lambda: self._coordinator.keep_alive(lease))

    def time_to_live(self, lease: int) -> Deferred[int]:
        return self._call("time_to_live", lambda: self._coordinator.time_to_live(lease))

    def revoke(self, lease: int) -> Deferred[None]:
        return self._call("revoke", lambda: self._coordinator.revoke(lease))

    def range(self, prefix: str) -> Deferred[Snapshot]:
        self._goes_on()
        truth = self._coordinator.truth

        def heard(answer: tuple[Snapshot, tuple[int, int]]) -> Snapshot:
            found, self._read = answer
            return found

        return self._call(
            "range", lambda: (self._coordinator.range(prefix), (truth.write, truth.times_back))
        ).addCallback(heard)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        self._goes_on()
        what = ", ".join(each.key.rsplit("/", 1)[-1] for each in writes)
        return self._call(f"transaction of {what}", partial(self._transact, compares, writes, self._read)).addCallback(
            self._heard
        )

    def _transact(
        self, compares: Sequence[Compare], writes: Sequence[Put | Delete], read: tuple[int, int] | None
    ) -> tuple[TransactionResult, int]:
        truth, name = self._coordinator.truth, self._process.name
        done = self._coordinator.transact(compares, writes)
        put = {each.key.rsplit("/", 1)[-1] for each in writes if isinstance(each, Put)} if done.succeeded else set()
        if name in put and read is not None:
            truth.registers(name, read[1])
        if LEADER in put:
            if truth.knows_all(name):
                truth.settled()
            truth.named(name)
        return done, truth.write if SYNC in put else 0

    def _heard(self, answer: tuple[TransactionResult, int]) -> TransactionResult:
        done, write = answer
        if write:
            self._coordinator.truth.acts(self._process.name, write)
        return done

    def watch(
        self,
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> Watch:
        watch = Watch(self._process, prefix, changed, ended)
        watch.is_broken = self._coordinator.state.revision != revision or not self._coordinator.is_up
        self._coordinator.watches.append(watch)
        return watch

    def close(self) -> Deferred[None]:
        closed: Deferred[None] = Deferred()
        closed.callback(None)
        return closed
