"""What is counted of puts: how many had which result, and how long they took."""

from collections import Counter
from collections.abc import Callable

from rmqha.kit.histogram import Histogram
from rmqha.store.message import PutMessageResult, PutMessageStatus

PUT_OK = PutMessageStatus.PUT_OK
ONE_IN = 8
"""Of puts that wait for nothing, one in this many is timed: two looks at the clock cost a part of such a put."""


class PutFigures:
    """Counts requests to put. A batch is one request. ``seconds`` is a clock that never goes back.

    ``durations`` has the times from the request to its answer, waits for the disk and slaves included, of messages that
    were stored. Refused messages have no duration. One put in ``one_in`` is timed.
    """

    __slots__ = ("_others", "durations", "one_in", "seconds", "stored")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self.durations = Histogram()
        self.one_in = ONE_IN
        self.stored = 0
        """How many requests were answered PUT_OK."""
        self._others: Counter[PutMessageStatus] = Counter()

    def timed_of(self, puts: int) -> int:
        """How many of the next puts are to be timed."""
        return (self.stored + puts - 1) // self.one_in - (self.stored - 1) // self.one_in

    def answered_run(self, status: PutMessageStatus, count: int, started: float | None, timed: int) -> None:
        """Count puts that are stored, and answered together now. ``timed`` of them are timed, from ``started`` on."""
        if status is PUT_OK:
            self.stored += count
        else:
            self._others[status] += count
        if started is not None:
            self.durations.observe(self.seconds() - started, timed)

    def answered(self, result: PutMessageResult, started: float | None) -> PutMessageResult:
        """Count a put that is answered now. Returns the result.

        It started at this time of the clock; None if it is not timed.
        """
        if result.status is PUT_OK:
            self.stored += 1
        else:
            self._others[result.status] += 1
        if started is not None and result.is_stored:
            self.durations.observe(self.seconds() - started)
        return result

    def by_status(self) -> dict[PutMessageStatus, int]:
        """How many requests had which result, for all results that there can be."""
        return {status: self.stored if status is PUT_OK else self._others[status] for status in PutMessageStatus}
