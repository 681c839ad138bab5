"""Long work in slices, so that no request blocks the reactor for others (ARCHITECTURE.md, "Requests take turns").

Work that grows with a client's request, or with a table, waits for ``next`` regularly. All waiting work together gets
a limited time in each reactor turn, for any number of clients.
"""

from collections import deque
from math import inf
from time import perf_counter

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.kit.steps import Result, Steps

TURN_SECONDS = 0.01
"""In one reactor turn, no further slice starts after this time."""
MAX_REQUESTS_PER_TURN = 128
"""The requests of all connections that are accepted in one reactor turn. The others wait for later turns."""
REQUESTS_SECONDS = 0.015
"""In one reactor turn, no further request is accepted after this time. It begins with the first large answer, or when
requests go on that had to wait: reads of a file that is not in memory wait for the disk.
"""
SELDOM = (700, 10, 1000)
"""Thresholds for Python's garbage collector. A full collection of large tables takes longer than a turn, for nothing.
"""
COST_OF_LONG_REQUEST = 8
"""The first step of a long request counts as this many requests."""


ANSWER_BYTES_PER_TURN = 1024 * 1024
"""The bytes of answers that are written in one reactor turn. The transports copy them, and give them to the kernel."""
LARGE_FRAME_BYTES_PER_TURN = 1024 * 1024
"""The bytes of all large frames that are read in one reactor turn."""
REFUSED_BYTES_BATCH = 512 * 1024
REFUSED_BYTES_SECONDS = 0.005
"""The bodies of refused requests are skipped, for all connections together, at 100 MiB/s."""


class ReadPace:
    """Allows ``at_once`` bytes to be read in each period of ``seconds``. Later reads wait, in their order.

    The last read of a period may exceed its limit.
    """

    def __init__(self, clock: IReactorTime, at_once: int, seconds: float = 0.0) -> None:
        """A period of 0 seconds is a reactor turn."""
        self._clock = clock
        self._at_once = at_once
        self._seconds = seconds
        self._taken = 0
        self._waiting: deque[tuple[int, Deferred[None]]] = deque()

    def take(self, size: int) -> Deferred[None] | None:
        """Count ``size`` bytes that were read. Returns None if more may be read now, else a Deferred to wait for."""
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
    """Gives turns: first to requests that had to wait, then to long work, each in the order of waiting."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._requests: deque[Deferred[None]] = deque()
        self._waiting: deque[Deferred[None]] = deque()
        self._call: IDelayedCall | None = None
        self._taken = 0
        self._answer_bytes = 0
        self._until = inf
        """The time at which this reactor turn accepts no further requests."""
        self.large_frames = ReadPace(clock, LARGE_FRAME_BYTES_PER_TURN)
        """The pace of large frames for which memory is reserved."""
        self.refused_bodies = ReadPace(clock, REFUSED_BYTES_BATCH, REFUSED_BYTES_SECONDS)
        """The pace of skipped bodies."""

    @property
    def is_over(self) -> bool:
        """Whether this reactor turn has accepted enough requests, written enough answers, or taken enough time."""
        if self._taken >= MAX_REQUESTS_PER_TURN or self.has_answered_enough:
            return True
        return self._until != inf and self._clock.seconds() >= self._until

    @property
    def left(self) -> int:
        """How many more requests this reactor turn accepts."""
        return 0 if self.has_answered_enough else max(0, MAX_REQUESTS_PER_TURN - self._taken)

    @property
    def has_answered_enough(self) -> bool:
        """Whether the answers of this reactor turn have enough bytes: further ones should wait."""
        return self._answer_bytes >= ANSWER_BYTES_PER_TURN

    def take(self, cost: int = 1) -> None:
        """Count a request that is accepted in this reactor turn."""
        self._taken += cost
        if self._taken > MAX_REQUESTS_PER_TURN // 4:  # below that it does not matter which turn it was
            self._schedule()

    def answered(self, size: int) -> None:
        """Count ``size`` bytes of an answer that is written in this reactor turn."""
        self._answer_bytes += size
        self._schedule()

    def _schedule(self) -> None:
        if self._call is None:
            self._call = self._clock.callLater(0, self._go_on)
            if self._until == inf:
                self._until = self._clock.seconds() + REQUESTS_SECONDS

    def next_for_requests(self) -> Deferred[None]:
        """Fires in a later reactor turn that has time for further requests."""
        waiting: Deferred[None] = Deferred()
        self._requests.append(waiting)
        self._schedule()
        return waiting

    def next(self) -> Deferred[None]:
        """Fires in a later reactor turn, when the caller may continue."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        self._schedule()
        return waiting

    async def run(self, steps: Steps[Result]) -> Result:
        """Run the steps and return their result. Each step after the first waits for its turn."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: Result = done.value
                return result
            await self.next()

    def _go_on(self) -> None:
        self._call = None
        self._taken = self._answer_bytes = 0
        self._until = self._clock.seconds() + REQUESTS_SECONDS
        until = perf_counter() + TURN_SECONDS
        for _ in range(len(self._requests)):  # a request that waits again in this loop goes after the others
            if self.is_over:
                break
            self._requests.popleft().callback(None)
        for _ in range(len(self._waiting)):
            self._waiting.popleft().callback(None)
            if perf_counter() >= until or self.has_answered_enough:
                break
        if self._waiting or self._requests or self._taken:
            self._schedule()
        if self._call is None:
            self._until = inf
