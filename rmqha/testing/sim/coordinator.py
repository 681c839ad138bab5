"""A coordinator in the simulation: its keys and leases are real, and requests and answers are on their way in steps.

A request that was given up may still be done later, as in a real network. Requests and answers keep no order.

It can go back to an older copy of its keys, under its id or under another one. ``Truth`` notes what each node has acted
on. It does not ask the node.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from rmqha.coordination.interface import (
    Change,
    Compare,
    Delete,
    ICoordinator,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.coordination.state import End, KeysAndLeases
from rmqha.failover.keys import LEADER, SYNC
from rmqha.testing.keystore import Call, Client, KeyStore, Watch
from rmqha.testing.sim.histories import RecordedCoordinator, Recorder, keys_to_json, transaction_to_json
from rmqha.testing.sim.network import Network
from rmqha.testing.sim.process import Process, SortedClock

COORDINATOR = "coordinator"
TIMEOUT_SECONDS = 2.0
FORGOTTEN_SECONDS = 60.0
"""A request is on its way no longer than that."""


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

    def new_lease(self) -> int:
        """An id that no lease had before, as good as surely."""
        return self._random.getrandbits(62) + 1

    def changed(self, changes: tuple[Change, ...]) -> None:
        """The changes are on their way to the watches."""
        if any(change.key.endswith(f"/{SYNC}") for change in changes):
            self.truth.written()
        super().changed(changes)

    def end_lease(self, end: End) -> None:
        """It is a line of the trace."""
        self.say(COORDINATOR, f"lease {end.lease} ends")
        super().end_lease(end)

    # Steps

    def news(self) -> list[Call | Watch]:
        """What could get on now."""
        now = self.clock.seconds()
        self.calls = [call for call in self.calls if call.is_of_use and now - call.sent_at < FORGOTTEN_SECONDS]
        passes = self._network.passes
        found: list[Call | Watch] = [
            call
            for call in self.calls
            if (passes(COORDINATOR, call.client.name) if call.is_done else self._reaches(call.client))
        ]
        found += [
            watch
            for watch in self.watches
            if (watch.coming or watch.is_broken) and watch.is_of_use and passes(COORDINATOR, watch.client.name)
        ]
        return found

    def _reaches(self, client: Client) -> bool:
        return self.is_up and self._network.passes(client.name, COORDINATOR)

    def step(self, each: Call | Watch) -> None:
        """It gets on. A process that stands still reads what has arrived when it goes on, as its kernel has it."""
        if isinstance(each, Call) and not each.is_done:
            self.say(COORDINATOR, f"gets {each.what} of {each.client.name}")
            each.execute()
        else:
            if isinstance(each, Call):
                self.say(each.client.name, f"is answered {each.what}")
                self.calls.remove(each)
            each.arrive()

    def stop(self) -> None:
        """It is gone for some time; its keys stay."""
        super().stop()
        self.say(COORDINATOR, "is down")

    def start(self) -> None:
        """It is there again. Each lease has its whole time again."""
        if not self.is_up:
            self.say(COORDINATOR, "is up again")
        super().start()

    def save(self) -> None:
        """An operator keeps a copy of its keys."""
        self._copies.append((self.state.copy(), self.truth.write))

    def roll_back(self, is_same: bool = False) -> bool:
        """It is set back to a copy. False without one.

        With ``is_same`` it keeps its id, as a journal or a disk does that is put back. Else it is a new cluster.
        """
        if not self._copies:
            return False
        self._set(*self._random.choice(self._copies), is_same)
        return True

    def lose_all(self) -> None:
        """Its disk is gone."""
        self._set(KeysAndLeases(), 0, False)

    def _set(self, state: KeysAndLeases, write: int, is_same: bool) -> None:
        what = "goes back under its id" if is_same else "is set back"
        self.say(COORDINATOR, f"{what} from revision {self.state.revision} to {state.revision}")
        if self.history is not None:
            self.history.end()
        self.truth.gone_back(write, is_same)
        self.calls = [call for call in self.calls if call.is_done]
        self.set_back(state, is_same)


@implementer(ICoordinator)
class SimClient(Client):
    """A process's client."""

    def __init__(self, coordinator: SimCoordinator, process: Process) -> None:
        super().__init__(coordinator, process.name, process.clock, TIMEOUT_SECONDS)
        self._process = process
        self._coordinator = coordinator
        self._read: tuple[int, int] | None = None
        """The write of ``sync`` that was read last, and how often the coordinator had gone back then."""

    @property
    def is_alive(self) -> bool:
        return self._process.alive

    def send(self, call: Call) -> None:
        self._coordinator.say(self.name, f"sends {call.what}")
        self._coordinator.calls.append(call)

    def begin(self, watch: Watch, revision: int) -> None:
        watch.is_broken = self._coordinator.state.revision != revision or not self._coordinator.is_up
        self._coordinator.watches.append(watch)

    def pump(self, watch: Watch) -> None:
        """A step does it."""

    def hear(self, function: Callable[..., object], *args: object) -> None:
        self._process.call(function, *args)

    def _goes_on(self) -> None:
        """The process asks for more: it has acted on what it has read."""
        if self._read is not None:
            self._coordinator.truth.acts(self.name, self._read[0])

    def range(self, prefix: str) -> Deferred[Snapshot]:
        self._goes_on()
        truth = self._coordinator.truth

        def heard(answer: tuple[Snapshot, tuple[int, int]]) -> Snapshot:
            found, self._read = answer
            return found

        return self.ask(
            "range", lambda: (self._coordinator.range(prefix), (truth.write, truth.times_back))
        ).addCallback(heard)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        self._goes_on()
        what = ", ".join(each.key.rsplit("/", 1)[-1] for each in writes)
        return self.ask(f"transaction of {what}", partial(self._transact, compares, writes, self._read)).addCallback(
            self._heard
        )

    def _transact(
        self, compares: Sequence[Compare], writes: Sequence[Put | Delete], read: tuple[int, int] | None
    ) -> tuple[TransactionResult, int]:
        truth, name = self._coordinator.truth, self.name
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
            self._coordinator.truth.acts(self.name, write)
        return done

    def close(self) -> Deferred[None]:
        return succeed(None)
