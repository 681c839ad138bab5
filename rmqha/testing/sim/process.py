"""A process that can die at any moment: nothing it would do afterwards has an effect."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from twisted.internet.base import DelayedCall
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.store.errors import StoreError


class ProcessDied(BaseException):
    """Unwinds the stack of a process that is dead. Code that catches it can do nothing more."""


_TIME = attrgetter("time")
FROZEN_SECONDS = 1e9
"""Longer than any simulation."""


class SortedClock(Clock):
    """The world's clock. It puts each call where it belongs, instead of sorting all of them for each.

    The calls are sorted by ``time``. A call that was postponed has an earlier ``time`` than ``getTime`` says, until it
    is the first one: then it is put where it belongs, as Twisted's reactors do.
    """

    @property
    def next_time(self) -> float | None:
        """When the next call is due, None if there is none."""
        calls = self.calls
        while calls and calls[0].delayed_time:
            call = calls.pop(0)
            call.activate_delay()
            insort(calls, call, key=_TIME)
        return calls[0].time if calls else None

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object) -> IDelayedCall:
        call = DelayedCall(
            self.seconds() + delay, callable, args, kwargs, self.calls.remove, self._moved_forward, self.seconds
        )
        insort(self.calls, call, key=_TIME)
        return call

    def _moved_forward(self, call: DelayedCall) -> None:
        self.calls.sort(key=_TIME)

    def advance(self, amount: float) -> None:
        self.rightNow += amount
        while (next_time := self.next_time) is not None and next_time <= self.rightNow:
            call = self.calls.pop(0)
            call.called = 1
            call.func(*call.args, **call.kw)


@implementer(IReactorTime)
class ProcessClock:
    """The world's clock; it calls nobody who is dead."""

    def __init__(self, clock: Clock, call: Callable[..., None]) -> None:
        self._clock = clock
        self._call = call
        self._calls: list[IDelayedCall] = []
        self._frozen: list[tuple[IDelayedCall, float]] = []

    def seconds(self) -> float:
        return self._clock.seconds()

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object) -> IDelayedCall:
        if len(self._calls) > 50:
            self._calls = self.getDelayedCalls()
        call = self._clock.callLater(delay, self._call, callable, *args, **kwargs)
        self._calls.append(call)
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return [call for call in self._calls if call.active()]

    def stop(self) -> None:
        """Call nobody any more."""
        for call in self.getDelayedCalls():
            call.cancel()

    def freeze(self) -> None:
        """Call nobody until ``go_on``."""
        self._frozen = [(call, call.getTime()) for call in self.getDelayedCalls()]
        for call, _ in self._frozen:
            call.delay(FROZEN_SECONDS)

    def go_on(self) -> None:
        """Make the calls that have become due, and the others in their time."""
        for call, due in self._frozen:
            if call.active():
                call.reset(max(0.0, due - self.seconds()))
        self._frozen = []


class Process:
    """A run of a node. ``died`` is called once, with the reason.

    Its flush thread does one job after another, when a step says so; another step tells the reactor.
    """

    def __init__(
        self, name: str, clock: Clock, died: Callable[["Process", str], None], machine_has_power: Callable[[], bool]
    ) -> None:
        self.name = name
        self.alive = True
        self.clock = ProcessClock(clock, self.call)
        self.machine_has_power = machine_has_power
        self.system_calls_until_death: int | None = None
        self.dies_after: str | None = None
        """The name of a file: the process dies at its first system call after this file was flushed."""
        self.takes_power = False
        """Whether the machine loses its power with the process."""
        self.is_stopped = False
        """Whether it got SIGSTOP: all that its reactor would do waits."""
        self._held: deque[Callable[[], object]] = deque()
        self._flushed = ""
        self._died = died
        self._jobs: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self._done: tuple[Deferred[Any], Any] | None = None

    def call(self, function: Callable[..., object], *args: object, **kw: object) -> None:
        """Let the reactor call this, if the process is there."""
        if self.is_stopped:
            self._held.append(partial(function, *args, **kw))
        elif self.alive:
            try:
                function(*args, **kw)
            except ProcessDied:
                assert not self.alive

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        self.clock.freeze()

    def go_on(self) -> None:
        """SIGCONT: what waited is done now, in its order."""
        self.is_stopped = False
        self.clock.go_on()
        while self._held and self.alive and not self.is_stopped:
            self.call(self._held.popleft())

    def die(self, reason: str) -> None:
        """End at once. Call it from outside of the process."""
        if self.alive:
            self._held.clear()
            self.alive = False
            self.clock.stop()
            self._jobs.clear()
            self._done = None
            self._died(self, reason)

    def system_call(self, name: str, path: Path) -> None:
        """A call to the kernel begins. Raises ProcessDied when it is not to be done."""
        if self.alive and self.system_calls_until_death is not None:
            self.system_calls_until_death -= 1
            if self.system_calls_until_death < 0:
                self.die(f"killed before {name} {path.name}")
        if self.alive and self.dies_after is not None:
            if self._flushed == self.dies_after:
                self.die(f"killed before {name} {path.name}, after {self._flushed} was flushed")
            self._flushed = path.name if name == "fdatasync" else ""
        if not self.alive:
            raise ProcessDied

    def disarm(self) -> None:
        """The deaths that were to come do not come."""
        self.system_calls_until_death = self.dies_after = None
        self.takes_power = False

    def run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        """The flush thread will do it."""
        done: Deferred[Any] = Deferred()
        self._jobs.append((function, done))
        return done

    @property
    def has_job(self) -> bool:
        """Whether the thread could do something."""
        return self._done is None and bool(self._jobs)

    @property
    def has_done(self) -> bool:
        """Whether a job is done that the reactor does not know of yet."""
        return self._done is not None

    def do_job(self) -> str:
        """The thread does its next job; gives what came of it."""
        function, done = self._jobs.popleft()
        try:
            result = function()
        except ProcessDied:
            return "died"
        except (OSError, StoreError):
            result = Failure()
        self._done = (done, result)
        return result.getErrorMessage() if isinstance(result, Failure) else "done"

    def hear_done(self) -> None:
        """Call the reactor with what came of the job."""
        assert self._done is not None
        (done, result), self._done = self._done, None
        self.call(done.callback, result)


def no_machine(*_: Any) -> bool:
    """For strangers' processes: their machine never fails."""
    return True
