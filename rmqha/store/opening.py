"""Reports the progress of opening a store, and lets other threads stop it.

Opening can take long: recovery verifies up to three segments, and a master waits until its queues are built. So a node
opens its store in a thread, and can handle signals meanwhile.
"""

import threading
import time
from collections.abc import Callable
from enum import Enum

from twisted.logger import Logger

from rmqha.store.log.recovery import Examination

LOG_SECONDS = 5.0
STATE_SECONDS = 1.0


class OpeningPhase(Enum):
    """The steps of opening a store. state.json shows the names, the log the values."""

    RECOVERING = "verifying the log"
    DISPATCHING = "building queues and index"


class OpeningStopped(Exception):
    """The store is no longer needed, so opening it was stopped."""


class Opening:
    """The thread that opens a store reports its progress here. Any other thread may ``stop`` it."""

    _log = Logger()

    def __init__(self, seconds: Callable[[], float] = time.monotonic, known_log: Examination | None = None) -> None:
        """``seconds`` is a clock that never goes back; it is asked in the thread that opens the store.

        ``known_log`` tells the end of a log that this process has just closed: it is not proved again.
        """
        self.known_log = known_log
        self._stopped = threading.Event()
        self._seconds = seconds
        self._next_line = self._next_state = seconds()
        self._next_line += LOG_SECONDS
        self.write_state: Callable[[OpeningPhase], None] = lambda _: None
        """Called regularly with the current step, in the opening thread; may raise OSError."""

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
        if now >= self._next_line:
            self._next_line = now + LOG_SECONDS
            self._log.info("{what}: at {offset} of {end}", what=phase.value, offset=offset, end=end)
