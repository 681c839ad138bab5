"""What happens while a store is opened, as far as others are to know of it, and how they end it early.

Opening may take long: recovery proves up to three segments, and a master waits until its queues are built. A node opens
its store in a thread, so that it answers signals meanwhile.
"""

import threading
import time
from collections.abc import Callable
from enum import Enum

from twisted.logger import Logger

LOG_SECONDS = 5.0
STATE_SECONDS = 1.0


class OpeningPhase(Enum):
    """What opening a store is at; the names stand in state.json."""

    RECOVERING = "proving the log"
    DISPATCHING = "building queues and index"


class OpeningStopped(Exception):
    """Whoever wanted the store no longer does."""


class Opening:
    """Told by the thread that opens a store how far it is; any other thread may ``stop`` it."""

    _log = Logger()

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """``seconds`` is a clock that never goes back; it is asked in the thread that opens the store."""
        self._stopped = threading.Event()
        self._seconds = seconds
        self._next_line = self._next_state = seconds()
        self._next_line += LOG_SECONDS
        self.write_state: Callable[[OpeningPhase], None] = lambda _: None
        """Called now and then with what opening is at, in its thread; may raise OSError."""

    def stop(self) -> None:
        """Let ``reached`` and ``check`` raise OpeningStopped from now on."""
        self._stopped.set()

    def check(self) -> None:
        """Raises OpeningStopped if that is asked for."""
        if self._stopped.is_set():
            raise OpeningStopped("the node is to stop before its store is open")

    def reached(self, phase: OpeningPhase, offset: int, end: int) -> None:
        """Opening has come to ``offset`` of the log, on its way to ``end``. Raises OpeningStopped, OSError."""
        self.check()
        now = self._seconds()
        if now >= self._next_state:
            self._next_state = now + STATE_SECONDS
            self.write_state(phase)
        if now >= self._next_line:
            self._next_line = now + LOG_SECONDS
            self._log.info("{what}: at {offset} of {end}", what=phase.value, offset=offset, end=end)
