"""What is counted of puts: how many had which result, and how long they took."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

from rmqha.histogram import BOUNDS, Histogram
from rmqha.store.message import PutMessageResult, PutMessageStatus

PUT_OK = PutMessageStatus.PUT_OK


class PutFigures:
    """Counts requests to put. A batch is one request. ``seconds`` is a clock that never goes back.

    ``durations`` has the times from the request to its answer, waits for the disk and slaves included, of all messages
    that were stored. Refused messages have no duration.
    """

    __slots__ = ("_others", "_stored_others", "durations", "seconds")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self.durations = Histogram()
        self._others: Counter[PutMessageStatus] = Counter()
        self._stored_others = 0

    def answered(self, result: PutMessageResult, started: float) -> PutMessageResult:
        """Count a put that started at this time of the clock and is answered now. Returns the result."""
        if result.status is not PUT_OK:  # seldom
            self._others[result.status] += 1
            if not result.is_stored:
                return result
            self._stored_others += 1
        self.stored(started)
        return result

    def stored(self, started: float) -> None:
        """The shortest way to count a put that is stored, and answered PUT_OK."""
        seconds = self.seconds() - started
        durations = self.durations
        durations.counts[bisect_left(BOUNDS, seconds)] += 1  # as in ``observe``, without another call
        durations.sum += seconds

    def by_status(self) -> dict[PutMessageStatus, int]:
        """How many requests had which result, for all results that there can be."""
        fine = self.durations.count - self._stored_others
        return {status: fine if status is PUT_OK else self._others[status] for status in PutMessageStatus}
