"""Counts durations in classes, cheaply enough for each put: one bisection and two additions."""

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""The upper bounds of the classes in seconds. One more class has no upper bound."""


class Histogram:
    """How many durations were in each class, and their sum in seconds. ``counts`` has one entry more than BOUNDS.

    Only the reactor's thread may use it: it has no locks.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, once or several times."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.sum += times * seconds

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The duration in seconds that this share (0 to 1) of the durations does not exceed; None if there are none.

    The answer lies between the bounds of a class, as if the durations were spread evenly in it. For durations beyond
    the last bound it is that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for at, count in enumerate(counts[: len(BOUNDS)]):
        if count and below + count >= rank:
            low = BOUNDS[at - 1] if at else 0.0
            return low + (BOUNDS[at] - low) * (rank - below) / count
        below += count
    return BOUNDS[-1]
