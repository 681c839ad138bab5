"""Tells how far dispatch is, while it is behind the log for long."""

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.kit.progress import LINE_SECONDS, MIB, left_of
from rmqha.store.nodefacts import OpeningPhase


class DispatchLines:
    """Logs a line about dispatch every ``LINE_SECONDS``, and one when it has caught up."""

    _log = Logger()

    def __init__(self) -> None:
        self._next_line: float | None = None
        """When to log how far dispatch is, if it is still behind the log then."""
        self._mark = (0.0, 0)
        """Time and offset of the last line, or of the start."""
        self.is_late = False
        """Whether dispatch has been behind the log for some seconds."""

    def describe(self, offset: int, end: int) -> str | None:
        """How far dispatch is; None if it is not late."""
        return f"{OpeningPhase.DISPATCHING.value}: at {offset} of {end}" if self.is_late else None

    def reached(self, now: float, offset: int, behind_bytes: int) -> None:
        """If dispatch has been behind for a while, log how far it is, regularly, and when it has caught up."""
        if self._next_line is None:
            self._next_line, self._mark = now + LINE_SECONDS, (now, offset)
        elif now >= self._next_line and behind_bytes > 0:
            then, before = self._mark
            self._next_line, self._mark, self.is_late = now + LINE_SECONDS, (now, offset), True
            rate = (offset - before) / (now - then)
            left = f", {left_of(behind_bytes, rate)}" if rate > 0 else ""
            self._log.info(
                "{progress}, {rate:.1f} MiB/s{left}",
                event=Event.DISPATCH_PROGRESS,
                progress=self.describe(offset, offset + behind_bytes),
                rate=rate / MIB,
                left=left,
            )
        if behind_bytes <= 0:
            if self.is_late:
                self._log.info("queues and index are built, up to {end}", event=Event.DISPATCH_DONE, end=offset)
            self._next_line, self.is_late = None, False
