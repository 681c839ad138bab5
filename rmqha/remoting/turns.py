"""Long work in slices, so that no request keeps the reactor from the others (ARCHITECTURE.md, "Requests take turns").

Work that grows with what a client sends, or with a table, waits for ``next`` every so often. All that waits shares the
time of one reactor turn, however many clients ask at once.
"""

from collections import deque
from time import perf_counter

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.steps import Result, Steps

TURN_SECONDS = 0.01
"""How long the slices of one reactor turn take together, and the last one longer."""
MOST_REQUESTS_A_TURN = 128
"""Of all connections: the others are taken in later turns."""
SELDOM = (700, 10, 1000)
"""Thresholds of Python's garbage collector: a look through large tables takes longer than a turn, and finds nothing."""
COST_OF_LONG_REQUEST = 8
"""Of its first step, in usual requests."""


LARGE_FRAME_BYTES_A_TURN = 1024 * 1024
"""Of all large frames, read in one reactor turn."""
REFUSED_BYTES_AT_ONCE = 512 * 1024
REFUSED_BYTES_SECONDS = 0.005
"""What is passed over is worth nothing to anybody: all connections together send 100 MiB/s of it."""


class Pace:
    """Lets so many bytes be read in each period of ``seconds``. Who comes later waits: first come, first served.

    The last one in a period may have more bytes than are left of it.
    """

    def __init__(self, clock: IReactorTime, at_once: int, seconds: float = 0.0) -> None:
        """A period of 0 seconds is a reactor turn."""
        self._clock = clock
        self._at_once = at_once
        self._seconds = seconds
        self._taken = 0
        self._waiting: deque[tuple[int, Deferred[None]]] = deque()

    def take(self, size: int) -> Deferred[None] | None:
        """Count bytes that were read. None if more may be read, else what fires when that is so."""
        if self._taken < self._at_once and not self._waiting:
            self._count(size)
            return None
        waiting: Deferred[None] = Deferred()
        self._waiting.append((size, waiting))
        return waiting

    def _count(self, size: int) -> None:
        if not self._taken:
            self._clock.callLater(self._seconds, self._next_period)
        self._taken += size

    def _next_period(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < self._at_once:
            size, waiting = self._waiting.popleft()
            self._count(size)
            waiting.callback(None)


class Turns:
    """Whose turn it is: first requests that had to wait, then long work; of each, first come, first served."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._requests: deque[Deferred[None]] = deque()
        self._waiting: deque[Deferred[None]] = deque()
        self._call: IDelayedCall | None = None
        self._taken = 0
        self.large_frames = Pace(clock, LARGE_FRAME_BYTES_A_TURN)
        """Of frames that have room."""
        self.refused_bodies = Pace(clock, REFUSED_BYTES_AT_ONCE, REFUSED_BYTES_SECONDS)
        """Of bodies that are passed over."""

    @property
    def is_over(self) -> bool:
        """Whether enough requests were taken in this reactor turn."""
        return self._taken >= MOST_REQUESTS_A_TURN

    def take(self, cost: int = 1) -> None:
        """A request is taken in this reactor turn."""
        self._taken += cost
        if self._taken > MOST_REQUESTS_A_TURN // 4:  # below that it does not matter which turn it was
            self._schedule()

    def _schedule(self) -> None:
        if self._call is None:
            self._call = self._clock.callLater(0, self._go_on)

    def next_for_requests(self) -> Deferred[None]:
        """Fires in a later reactor turn, in which there is time for further requests."""
        waiting: Deferred[None] = Deferred()
        self._requests.append(waiting)
        self._schedule()
        return waiting

    def next(self) -> Deferred[None]:
        """Fires when the caller may go on, in a later reactor turn."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        self._schedule()
        return waiting

    async def run(self, steps: Steps[Result]) -> Result:
        """The result of the work; each step after the first has a turn of its own."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: Result = done.value
                return result
            await self.next()

    def _go_on(self) -> None:
        self._call = None
        self._taken = 0
        until = perf_counter() + TURN_SECONDS
        for _ in range(len(self._requests)):  # who waits again meanwhile has its turn after the others'
            if self.is_over:
                break
            self._requests.popleft().callback(None)
        for _ in range(len(self._waiting)):
            self._waiting.popleft().callback(None)
            if perf_counter() >= until:
                break
        if self._waiting or self._requests:
            self._schedule()
