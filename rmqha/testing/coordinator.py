"""A coordinator in memory, with clients whose requests and answers can be late, lost or cut."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.coordination.interface import (
    DEFAULT_TIMEOUT_SECONDS,
    Change,
    Compare,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    Delete,
    ICoordinator,
    IWatch,
    LeaseGone,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.coordination.state import Compacted, History, KeysAndLeases
from rmqha.testing.keystore import KeyStore

NO_ANSWER = "The coordinator did not answer in time."

Result = TypeVar("Result")


@dataclass
class Link:
    """What happens between one client and the store. All of it can change at any time."""

    request_delay: Callable[[], float] = lambda: 0.0
    """How many seconds the next request takes to the store."""
    answer_delay: Callable[[], float] = lambda: 0.0
    """How many seconds the next answer, or the next change of a watch, takes to the client."""
    requests_pass: bool = True
    """False: requests are lost. Nothing of them is done."""
    answers_pass: bool = True
    """False: answers are lost, and so are the changes of watches. What was asked is done."""


@dataclass(frozen=True)
class Saved:
    """The keys and leases at some moment."""

    state: KeysAndLeases


class MemoryStore(KeyStore):
    """Keys and leases that several clients share. Time is the clock's; leases end by it."""

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__(clock)
        self._last_lease = 0
        self._clients: list[MemoryCoordinator] = []
        self.history = History(self.state.revision)

    def client(self, name: str) -> "MemoryCoordinator":
        """A new client."""
        client = MemoryCoordinator(self, name)
        self._clients.append(client)
        return client

    @property
    def is_up(self) -> bool:
        """Whether the store answers. Its keys and leases outlive an outage; after it, each lease has its full ttl."""
        return self._is_up

    @is_up.setter
    def is_up(self, is_up: bool) -> None:
        if self._is_up and not is_up:
            self.go_down()
            self.end_watches(CoordinatorUnavailable("The coordinator ended the watch."))
        elif is_up and not self._is_up:
            self.go_up()

    def save(self) -> Saved:
        """The keys and leases now, for ``roll_back``."""
        return Saved(self.state.copy())

    def roll_back(self, saved: Saved) -> None:
        """Be as it was then, as from an old copy of its disk: revisions are given a second time."""
        self._replace(saved.state.copy())

    def lose(self) -> None:
        """Be a new cluster without keys."""
        self.cluster_id += 1
        self._replace(KeysAndLeases())

    def compact(self) -> None:
        """Forget the changes so far: a watch from an older revision ends."""
        self.history = History(self.state.revision)

    def _replace(self, state: KeysAndLeases) -> None:
        self.end_watches(CoordinatorUnavailable("The coordinator ended the watch."))
        self.start_again(state)

    def start_again(self, state: KeysAndLeases) -> None:
        """Go on with this state. No older change is known."""
        self.history = History(state.revision)
        super().start_again(state)

    def new_lease(self) -> int:
        """An id that no lease had before, not even in a state that was rolled back."""
        self._last_lease += 1
        return self._last_lease

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Keep the changes, and tell the watches."""
        self.history.add(self.state.revision, changes)
        for client in self._clients:
            client.store_changed(self.state.revision, changes)

    def end_watches(self, error: CoordinatorError) -> None:
        """End the watches of all clients."""
        for client in self._clients:
            client.end_watches(error)


@implementer(ICoordinator)
class MemoryCoordinator:
    """A client of a MemoryStore. ``link`` says what happens on the way."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.name = name
        self.timeout = DEFAULT_TIMEOUT_SECONDS
        self.cluster_id: int | None = None
        self.link = Link()
        self.store = store
        self._watches: dict[_Watch, None] = {}
        self._calls: dict[Deferred[Any], None] = {}
        self._is_closed = False

    def grant(self, ttl: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self._call(lambda: self.store.grant(ttl))

    def keep_alive(self, lease: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self._call(lambda: self.store.keep_alive(lease))

    def time_to_live(self, lease: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self._call(lambda: self.store.time_to_live(lease))

    def revoke(self, lease: int) -> Deferred[None]:
        """See ``ICoordinator``."""
        return self._call(lambda: self.store.revoke(lease))

    def range(self, prefix: str) -> Deferred[Snapshot]:
        """See ``ICoordinator``."""
        return self._call(lambda: self.store.range(prefix))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        """See ``ICoordinator``."""
        return self._call(lambda: self.store.transact(compares, writes))

    def watch(
        self,
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> IWatch:
        """See ``ICoordinator``."""
        watch = _Watch(self, prefix, changed, ended)
        self._watches[watch] = None
        self._call(lambda: watch.begin(revision)).addErrback(watch.failed)
        return watch

    def forget(self, watch: "_Watch") -> None:
        """A watch is over."""
        self._watches.pop(watch, None)

    def store_changed(self, revision: int, changes: tuple[Change, ...]) -> None:
        """The store has new changes."""
        for watch in list(self._watches):
            watch.pump()

    def end_watches(self, error: CoordinatorError) -> None:
        """End all watches, as a broken connection does."""
        for watch in list(self._watches):
            watch.fail(error)

    def close(self) -> Deferred[None]:
        """See ``ICoordinator``."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.stop()
        for call in list(self._calls):
            call.errback(CoordinatorUnavailable("This client of the coordinator is closed."))
        return succeed(None)

    def _call(self, work: Callable[[], Result]) -> Deferred[Result]:
        """Do the work at the store, and answer; each takes its time, or gets lost."""
        clock = self.store.clock
        answered: Deferred[Result] = Deferred()
        if self._is_closed:
            answered.errback(CoordinatorUnavailable("This client of the coordinator is closed."))
            return answered
        limit = clock.callLater(self.timeout, lambda: answered.errback(CoordinatorUnavailable(NO_ANSWER)))
        self._calls[answered] = None

        def ended(result: Result | Failure) -> Result | Failure:
            self._calls.pop(answered, None)
            if limit.active():
                limit.cancel()
            return result

        answered.addBoth(ended)

        if self.link.requests_pass:
            clock.callLater(self.link.request_delay(), self._at_store, work, answered)
        return answered

    def _at_store(self, work: Callable[[], Result], answered: Deferred[Result]) -> None:
        """The request has arrived."""
        if not self.store.is_up:
            return
        outcome: Result | Failure
        try:
            outcome = work()
        except (CoordinatorRefused, LeaseGone, Compacted):
            outcome = Failure()
        cluster_id = self.store.cluster_id

        def answer() -> None:
            if not answered.called and self.link.answers_pass:
                self.cluster_id = cluster_id
                answered.callback(outcome)

        if self.link.answers_pass:
            self.store.clock.callLater(self.link.answer_delay(), answer)


@implementer(IWatch)
class _Watch:
    """Gets changes in order, each after the link's time."""

    def __init__(
        self,
        client: MemoryCoordinator,
        prefix: str,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._changed = changed
        self._ended = ended
        self._revision: int | None = None
        self._latest = 0.0
        self._on_the_way: deque[tuple[int, Sequence[Change]]] = deque()
        self._is_over = False

    def begin(self, revision: int) -> None:
        """The store knows the watch from now on. Raises Compacted."""
        if not self._is_over:
            self._client.store.history.after(revision, self._prefix)
            self._revision = revision
            self.pump()

    def pump(self) -> None:
        """Send what is new."""
        link, clock = self._client.link, self._client.store.clock
        if self._revision is None or self._is_over or not link.answers_pass:
            return
        try:
            found = list(self._client.store.history.after(self._revision, self._prefix))
        except Compacted as error:
            self.fail(error)
            return
        for revision, changes in found:
            self._revision = revision
            self._latest = max(self._latest, clock.seconds() + link.answer_delay())
            self._on_the_way.append((revision, changes))
            clock.callLater(max(0.0, self._latest - clock.seconds()), self._arrive)

    def _arrive(self) -> None:
        revision, changes = self._on_the_way.popleft()
        if not self._is_over:
            self._changed(revision, changes)

    def failed(self, failure: Failure) -> None:
        """The watch did not begin."""
        assert isinstance(failure.value, CoordinatorError), "calls fail with nothing else"
        self.fail(failure.value)

    def fail(self, error: CoordinatorError) -> None:
        """The watch is over."""
        if not self._is_over:
            self.stop()
            self._ended(error)

    def stop(self) -> None:
        self._is_over = True
        self._client.forget(self)
