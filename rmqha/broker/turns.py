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


class Turns:
    """Whose turn it is, first come, first served."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: deque[Deferred[None]] = deque()
        self._call: IDelayedCall | None = None

    def next(self) -> Deferred[None]:
        """Fires when the caller may go on, in a later reactor turn."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        if self._call is None:
            self._call = self._clock.callLater(0, self._go_on)
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
        until = perf_counter() + TURN_SECONDS
        for _ in range(len(self._waiting)):  # who waits again meanwhile has its turn after the others'
            self._waiting.popleft().callback(None)
            if perf_counter() >= until:
                break
        if self._waiting and self._call is None:
            self._call = self._clock.callLater(0, self._go_on)
