"""Reports the progress of opening a store, and lets other threads stop it.

Opening can take long: recovery verifies up to three segments, and a master waits until its queues are built. So a node
opens its store in a thread, and can handle signals meanwhile.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.logger import Logger
from zope.interface import implementer

from rmqha.kit.events import Event
from rmqha.kit.progress import NO_BAR, IBar, Lines, Unit
from rmqha.store.nodefacts import OpeningPhase

if TYPE_CHECKING:  # who only needs a phase's name, such as rmqha status, starts quicker
    from rmqha.store.log.recovery import Examination

STATE_SECONDS = 1.0


class OpeningStopped(Exception):
    """The store is no longer needed, so opening it was stopped."""


class Opening:
    """The thread that opens a store reports its progress here. Any other thread may ``stop`` it."""

    _log = Logger()

    def __init__(
        self,
        seconds: Callable[[], float] = time.monotonic,
        known_log: "Examination | None" = None,
        of_node: bool = True,
        bar: IBar = NO_BAR,
    ) -> None:
        """``seconds`` is a clock that never goes back; it is asked in the thread that opens the store.

        ``known_log`` tells the end of a log that this process has just closed: it is not proved again. A command that
        opens a store is not ``of_node``. ``bar`` shows, in the same thread, how many bytes of how
        many a phase has done.
        """
        self.known_log = known_log
        self.is_of_node = of_node
        self._shown = bar
        self._firsts: dict[OpeningPhase, int] = {}
        self.place: tuple[OpeningPhase, int, int] | None = None
        """The phase, and how many bytes of how many it has done; None if nothing is known yet. Any thread may ask."""
        self._lines = Lines(OpeningPhase.RECOVERING.value, Unit.BYTES, self._log_line, seconds)
        self._stopped = threading.Event()
        self._seconds = seconds
        self._next_state = seconds()
        self.write_state: Callable[[OpeningPhase], None] = lambda _: None
        """Called regularly with the current step, in the opening thread; may raise OSError."""

    def _log_line(self, line: str) -> None:
        if self.is_of_node:
            self._log.info("{line}", event=Event.OPENING_PROGRESS, line=line)

    def stop(self) -> None:
        """Make ``reached`` and ``check`` raise OpeningStopped from now on."""
        self._stopped.set()

    def check(self) -> None:
        """Raises OpeningStopped after ``stop``."""
        if self._stopped.is_set():
            raise OpeningStopped("the node stops before its store is open")

    def reached(self, phase: OpeningPhase, offset: int, end: int) -> None:
        """Report that opening has reached ``offset`` of ``end`` in the log. Raises OpeningStopped, OSError."""
        self.check()
        now = self._seconds()
        if now >= self._next_state:
            self._next_state = now + STATE_SECONDS
            self.write_state(phase)
        first = self._firsts.setdefault(phase, offset)
        self.place = phase, offset - first, end - first
        self._shown.show(offset - first, end - first, phase.value)
        self._lines.show(offset - first, end - first, phase.value)

    def bar(self, phase: OpeningPhase) -> IBar:
        """What shows offsets that this phase has reached: it raises as ``reached`` does."""
        return _PhaseBar(self, phase)

    @property
    def progress(self) -> str | None:
        """How far the opening is, in a few words; None if nothing is known yet. Any thread may ask."""
        if self.place is None:
            return None
        phase, done, total = self.place
        return phase.value if total <= 0 else f"{phase.value}, {done / total:.0%}"


@implementer(IBar)
class _PhaseBar:
    def __init__(self, opening: Opening, phase: OpeningPhase) -> None:
        self._opening = opening
        self._phase = phase

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        """See ``IBar``. ``done`` and ``total`` are offsets of the log."""
        self._opening.reached(self._phase, done, done if total is None else total)
