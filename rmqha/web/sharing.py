"""Makes answers that take long: one at a time, in steps, and at most for a tenth of the process's time.

Clients that ask for the same while it waits its turn share one answer. An answer is never older than its question.
"""

from collections.abc import Callable, Hashable
from time import perf_counter

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from rmqha.kit.steps import Steps
from rmqha.remoting.turns import Turns
from rmqha.web.server import BUSY, Page

PAUSE_PER_SECOND = 9.0
"""After work that took a second, nothing starts for this many seconds."""
PATIENCE_SECONDS = 10.0
"""A client that has waited this long is asked to come again."""

Work = Callable[[], Steps[Page]]


class SharedWork:
    """Runs one piece of work at a time. Those with the same ``key`` that wait together get one answer."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._turns = Turns(clock)
        self._waiting: dict[Hashable, tuple[Work, list[Deferred[Page]]]] = {}
        self._is_running = False
        self._is_resting = False

    def ask(self, key: Hashable, work: Work) -> Deferred[Page]:
        """The answer of the next run of this work, which starts later than this call."""
        answer: Deferred[Page] = Deferred()
        self._waiting.setdefault(key, (work, []))[1].append(answer)
        if not (self._is_running or self._is_resting):
            self._start()
        return answer.addTimeout(PATIENCE_SECONDS, self._clock, lambda *_: BUSY)

    def _start(self) -> None:
        """Run what has waited for longest."""
        key = next(iter(self._waiting))
        work, answers = self._waiting.pop(key)
        self._is_running = True
        spent = [0.0]
        running = Deferred.fromCoroutine(self._turns.run(_timed(work(), spent)))
        running.addBoth(self._done, answers, spent)

    def _done(self, result: Page | Failure, answers: list[Deferred[Page]], spent: list[float]) -> None:
        self._is_running, self._is_resting = False, True
        self._clock.callLater(spent[0] * PAUSE_PER_SECOND, self._rested)
        for answer in answers:
            if answer.called:
                continue  # it has waited for too long
            if isinstance(result, Failure):
                answer.errback(result)
            else:
                answer.callback(result)

    def _rested(self) -> None:
        self._is_resting = False
        if self._waiting and not self._is_running:
            self._start()


def _timed(steps: Steps[Page], spent: list[float]) -> Steps[Page]:
    """The same steps; their time is added to ``spent``."""
    while True:
        started = perf_counter()
        try:
            next(steps)
        except StopIteration as done:
            page: Page = done.value
            return page
        finally:
            spent[0] += perf_counter() - started
        yield
