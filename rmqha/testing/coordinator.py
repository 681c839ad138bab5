"""A coordinator in memory, with clients whose requests and answers can be late, lost or cut."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.coordination.interface import (
    DEFAULT_TIMEOUT_SECONDS,
    CoordinatorError,
    CoordinatorUnavailable,
    ICoordinator,
)
from rmqha.testing.keystore import Call, Client, KeyStore, Watch


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


class MemoryStore(KeyStore):
    """Keys and leases that several clients share."""

    def client(self, name: str) -> "MemoryCoordinator":
        """A new client."""
        return MemoryCoordinator(self, name)


@implementer(ICoordinator)
class MemoryCoordinator(Client):
    """A client of a MemoryStore. ``link`` says what happens on the way."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        super().__init__(store, name, store.clock, DEFAULT_TIMEOUT_SECONDS)
        self.link = Link()
        self._latest = 0.0
        self._calls: list[Call] = []
        self._watches: list[Watch] = []
        self._is_closed = False

    def send(self, call: Call) -> None:
        self._calls = [call, *(each for each in self._calls if not each.is_over)]
        if self._is_closed:
            self._end_calls()
        elif self.link.requests_pass:
            self.clock.callLater(self.link.request_delay(), self._at_store, call)

    def _at_store(self, call: Call) -> None:
        if self.store.is_up:
            call.execute()
            if self.link.answers_pass:
                self.clock.callLater(self.link.answer_delay(), self._answer, call)

    def _answer(self, call: Call) -> None:
        if self.link.answers_pass:
            call.arrive()

    def begin(self, watch: Watch, revision: int) -> None:
        self._watches = [watch, *(each for each in self._watches if not each.is_over)]
        self.ask("watch", partial(self.store.watch, watch, revision)).addErrback(self._did_not_begin, watch)

    def _did_not_begin(self, failure: Failure, watch: Watch) -> None:
        assert isinstance(failure.value, CoordinatorError), "calls fail with nothing else"
        watch.fail(failure.value)

    def pump(self, watch: Watch) -> None:
        """Changes keep their order, however late. The end of a watch arrives at once."""
        now = self.clock.seconds()
        while watch.coming and self.link.answers_pass:
            self._latest = max(self._latest, now + self.link.answer_delay())
            self.clock.callLater(self._latest - now, watch.hear, *watch.coming.popleft())
        if watch.is_broken:
            watch.arrive()

    def close(self) -> Deferred[None]:
        """See ``ICoordinator``."""
        self._is_closed = True
        for watch in self._watches:
            watch.stop()
        self._end_calls()
        return succeed(None)

    def _end_calls(self) -> None:
        for call in self._calls:
            call.fail(CoordinatorUnavailable("This client of the coordinator is closed."))
