"""Long work in slices, so that no request keeps the reactor from the others (ARCHITECTURE, "Requests in turns").

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


class Turns:
    """Whose turn it is: first requests that had to wait, then long work; of each, first come, first served."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._requests: deque[Deferred[None]] = deque()
        self._waiting: deque[Deferred[None]] = deque()
        self._call: IDelayedCall | None = None
        self._taken = 0

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
