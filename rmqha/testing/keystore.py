"""What both coordinators for tests have: keys, leases and changes in memory, and what is on its way to a client.

Leases end by a clock.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from rmqha.coordination.interface import (
    Change,
    Compare,
    CoordinatorError,
    CoordinatorUnavailable,
    Delete,
    IWatch,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.coordination.state import End, History, KeysAndLeases, Operation


class KeyStore:
    """Does what clients ask, at once. Time is the clock's; leases end by it."""

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self.cluster_id = 1
        self.state = KeysAndLeases()
        self.watches: list[Watch] = []
        self.is_up = True
        """Whether it answers. Its keys and leases outlive an outage; after it, each lease has its full ttl."""
        self._changes = History(self.state.revision)
        self._last_lease = 0
        self._expiry: IDelayedCall | None = None

    def new_lease(self) -> int:
        """An id that no lease had before, not even in a state that was set back."""
        self._last_lease += 1
        return self._last_lease

    # What a client asks. All raise CoordinatorError.

    def grant(self, ttl: int) -> int:
        """A new lease."""
        operation = self.state.grant(ttl, self.new_lease())
        self.do(operation)
        return operation.lease

    def keep_alive(self, lease: int) -> int:
        """The lease's ttl, which begins again."""
        ttl = self.state.keep_alive(lease, self.clock.seconds())
        self._schedule_expiry()
        return ttl

    def time_to_live(self, lease: int) -> int:
        """For how many seconds the lease lives."""
        return self.state.time_to_live(lease, self.clock.seconds())

    def revoke(self, lease: int) -> None:
        """The lease ends, if there is one."""
        self.do(End(lease))

    def range(self, prefix: str) -> Snapshot:
        """The keys that start with this."""
        return self.state.range(prefix)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        """Write, if all comparisons are true."""
        write = self.state.transaction(compares, writes)
        if write is not None:
            self.do(write)
        return self.state.result(write)

    def watch(self, watch: "Watch", revision: int) -> None:
        """Send the watch each change after this revision. Raises Compacted."""
        watch.coming.extend(self._changes.after(revision, watch.prefix))
        self.watches.append(watch)
        watch.client.pump(watch)

    # What happens to it

    def do(self, operation: Operation) -> None:
        """Change the state, and tell the watches."""
        changes = self.state.apply(operation, self.clock.seconds())
        if changes:
            self.changed(changes)
        self._schedule_expiry()

    def changed(self, changes: tuple[Change, ...]) -> None:
        """The state has these changes, at its newest revision."""
        self._changes.add(self.state.revision, changes)
        self.watches = [watch for watch in self.watches if watch.is_of_use]
        for watch in self.watches:
            found = [change for change in changes if change.key.startswith(watch.prefix)]
            if found:
                watch.coming.append((self.state.revision, found))
                watch.client.pump(watch)

    def compact(self) -> None:
        """Forget the changes so far: no watch begins from an older revision."""
        self._changes = History(self.state.revision)

    def break_watches(self) -> None:
        """All watches end."""
        for watch in self.watches:
            watch.coming.clear()
            watch.is_broken = True
            watch.client.pump(watch)

    def stop(self) -> None:
        """It is gone for some time; its keys stay. No lease ends."""
        self.is_up = False
        self._schedule_expiry()
        self.break_watches()

    def start(self) -> None:
        """It is there again. Each lease has its whole time again."""
        if not self.is_up:
            self.is_up = True
            self._start_again()

    def set_back(self, state: KeysAndLeases, is_same: bool) -> None:
        """Go on with a copy of this state: revisions are given a second time.

        With ``is_same`` it keeps its id, as a journal or a disk does that is put back. Else it is a new cluster.
        """
        if not is_same:
            self.cluster_id += 1
        self.break_watches()
        self.state = state.copy()
        self._start_again()

    def _start_again(self) -> None:
        self.compact()
        self.state.start_leases(self.clock.seconds())
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()
        self._expiry = None
        end = self.state.next_end
        if end is not None and self.is_up:
            self._expiry = self.clock.callLater(max(0.0, end - self.clock.seconds()), self._expire)

    def _expire(self) -> None:
        for end in self.state.overdue(self.clock.seconds()):
            self.end_lease(end)
        self._schedule_expiry()

    def end_lease(self, end: End) -> None:
        """The time of a lease is over."""
        self.do(end)


class Client(ABC):
    """Asks the store. ``name`` says whose client it is. Subclasses say when requests, answers and changes get on."""

    def __init__(self, store: KeyStore, name: str, clock: IReactorTime, timeout: float) -> None:
        self.store = store
        self.name = name
        self.clock = clock
        self.timeout = timeout
        self.cluster_id: int | None = None

    @abstractmethod
    def send(self, call: "Call") -> None:
        """A request sets out."""

    @abstractmethod
    def begin(self, watch: "Watch", revision: int) -> None:
        """A watch of what comes after this revision sets out."""

    @abstractmethod
    def pump(self, watch: "Watch") -> None:
        """More is coming to this watch."""

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return True

    def hear(self, function: Callable[..., object], *args: object) -> None:
        """Let its process call the function."""
        function(*args)

    def ask(self, what: str, do: Callable[[], Any]) -> Deferred[Any]:
        """Do this at the store, and answer."""
        call = Call(self, what, do)
        self.send(call)
        return call.answer

    def grant(self, ttl: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self.ask("grant", partial(self.store.grant, ttl))

    def keep_alive(self, lease: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self.ask("keep_alive", partial(self.store.keep_alive, lease))

    def time_to_live(self, lease: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self.ask("time_to_live", partial(self.store.time_to_live, lease))

    def revoke(self, lease: int) -> Deferred[None]:
        """See ``ICoordinator``."""
        return self.ask("revoke", partial(self.store.revoke, lease))

    def range(self, prefix: str) -> Deferred[Snapshot]:
        """See ``ICoordinator``."""
        return self.ask("range", partial(self.store.range, prefix))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        """See ``ICoordinator``."""
        return self.ask("transaction", partial(self.store.transact, compares, writes))

    def watch(
        self,
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> IWatch:
        """See ``ICoordinator``."""
        watch = Watch(self, prefix, changed, ended)
        self.begin(watch, revision)
        return watch


class Call:
    """A request, and then its answer, on the way. ``do`` is what the coordinator does."""

    def __init__(self, client: Client, what: str, do: Callable[[], Any]) -> None:
        self.client = client
        self.what = what
        self.sent_at = client.clock.seconds()
        self.is_done = self.is_over = False
        self.answer: Deferred[Any] = Deferred(lambda _: self._give_up())
        self._do = do
        self._cluster_id = 0
        self._result: Any = None
        no_answer = CoordinatorUnavailable("The coordinator did not answer in time.")
        self._timer: IDelayedCall = client.clock.callLater(client.timeout, self.fail, no_answer)

    def _give_up(self) -> None:
        self.is_over = True
        if self._timer.active():
            self._timer.cancel()

    def fail(self, error: CoordinatorError) -> None:
        """It is over."""
        if not self.is_over:
            self._give_up()
            self.answer.errback(error)

    def execute(self) -> None:
        """The request has arrived."""
        self.is_done = True
        self._cluster_id = self.client.store.cluster_id
        try:
            self._result = self._do()
        except CoordinatorError as error:
            self._result = error

    @property
    def is_of_use(self) -> bool:
        """Whether anything may still come of it."""
        return not self.is_done or (not self.is_over and self.client.is_alive)

    def arrive(self) -> None:
        """The answer has arrived."""
        self.client.hear(self._hear)

    def _hear(self) -> None:
        if self.is_over:
            return
        self.client.cluster_id = self._cluster_id
        if isinstance(self._result, CoordinatorError):
            self.fail(self._result)
        else:
            self._give_up()
            self.answer.callback(self._result)


@implementer(IWatch)
class Watch:
    """Changes on their way to a client."""

    def __init__(
        self,
        client: Client,
        prefix: str,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.coming: deque[tuple[int, Sequence[Change]]] = deque()
        """What was not sent yet."""
        self.is_broken = self.is_over = False
        self._changed = changed
        self._ended = ended

    @property
    def is_of_use(self) -> bool:
        """Whether anybody listens."""
        return not self.is_over and self.client.is_alive

    def stop(self) -> None:
        self.is_over = True

    def arrive(self) -> None:
        """What comes next, or the end, has arrived."""
        if self.coming:
            self.hear(*self.coming.popleft())
        elif self.is_broken:
            self.fail(CoordinatorUnavailable("The coordinator ended the watch."))

    def hear(self, revision: int, changes: Sequence[Change]) -> None:
        """Changes have arrived."""
        if not self.is_over:
            self.client.hear(self._changed, revision, changes)

    def fail(self, error: CoordinatorError) -> None:
        """It is over."""
        if not self.is_over:
            self.is_over = True
            self.client.hear(self._ended, error)
