"""A coordinator in the simulation: its keys and leases are real, and requests and answers are on their way in steps.

A request that was given up may still be done later, as in a real network. Requests and answers keep no order.
"""

from collections import deque
from collections.abc import Callable, Sequence
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
from rmqha.testing.keystore import KeyStore
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


class SimCoordinator(KeyStore):
    """The coordinator, and what is on the way to it and from it."""

    def __init__(self, clock: SortedClock, network: Network, random: Random, say: Callable[[str, str], None]) -> None:
        super().__init__(clock)
        self._network = network
        self._random = random
        self.say = say
        self.calls: list[Call] = []
        self.watches: list[Watch] = []
        self._copies: list[KeysAndLeases] = []

    def client(self, process: Process) -> "SimClient":
        """A client for this process."""
        return SimClient(self, process)

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self._is_up

    def new_lease(self) -> int:
        """An id that no lease had before, as good as surely."""
        return self._random.getrandbits(62) + 1

    def changed(self, changes: tuple[Change, ...]) -> None:
        """The changes are on their way to the watches."""
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
        self._copies.append(self.state.copy())

    def roll_back(self) -> bool:
        """It is set back to a copy, or to nothing: a new cluster, as etcd makes of a snapshot. False without a copy."""
        if not self._copies:
            return False
        self._set(self._random.choice(self._copies).copy())
        return True

    def lose_all(self) -> None:
        """Its disk is gone."""
        self._set(KeysAndLeases())

    def _set(self, state: KeysAndLeases) -> None:
        self.say(COORDINATOR, f"is set back from revision {self.state.revision} to {state.revision}")
        self.cluster_id += 1
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

    def grant(self, ttl: int) -> Deferred[int]:
        return self._call("grant", lambda: self._coordinator.grant(ttl))

    def keep_alive(self, lease: int) -> Deferred[int]:
        return self._call("keep_alive", lambda: self._coordinator.keep_alive(lease))

    def time_to_live(self, lease: int) -> Deferred[int]:
        return self._call("time_to_live", lambda: self._coordinator.time_to_live(lease))

    def revoke(self, lease: int) -> Deferred[None]:
        return self._call("revoke", lambda: self._coordinator.revoke(lease))

    def range(self, prefix: str) -> Deferred[Snapshot]:
        return self._call("range", lambda: self._coordinator.range(prefix))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        what = ", ".join(each.key.rsplit("/", 1)[-1] for each in writes)
        return self._call(f"transaction of {what}", lambda: self._coordinator.transact(compares, writes))

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
