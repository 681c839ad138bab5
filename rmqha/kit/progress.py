"""Shows on stderr how far a long work has come: a bar on a terminal, else a line every ten seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

from rmqha.kit.printing import printable

LINE_SECONDS = 10.0
MIB = 1 << 20


class Unit(Enum):
    """What is counted."""

    BYTES = "bytes"
    PARTS = "parts"


class Show(Protocol):
    """Called with what is done, and with the total if it is known. A ``title`` replaces the title from then on.

    It may be called very often.
    """

    def __call__(self, done: int, total: int | None = None, title: str | None = None) -> None: ...


class Lines:
    """Calls ``say`` with a line every ``LINE_SECONDS``: what is done, the rate since the line before, the time left.

    ``seconds`` is a clock that never goes back.
    """

    def __init__(
        self, title: str, unit: Unit, say: Callable[[str], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._unit = unit
        self._say = say
        self._seconds = seconds
        self._since = seconds()
        self._done_then: int | None = None

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        """As ``Show``."""
        if title is not None and title != self._title:
            self._title, self._done_then, self._since = title, None, self._seconds()
        if self._done_then is None:
            self._done_then = done
        now = self._seconds()
        if now - self._since < LINE_SECONDS:
            return
        self._say(f"{self._title}: {pace(done, total, done - self._done_then, now - self._since, self._unit)}")
        self._since, self._done_then = now, done


def pace(done: int, total: int | None, lately: int, seconds: float, unit: Unit = Unit.BYTES) -> str:
    """How far something is, at which rate, and how long it still takes: ``lately`` was done in ``seconds``."""
    rate = lately / seconds if seconds > 0 else 0.0
    end = "" if total is None else f" of {_amount(total, unit)}"
    share = "" if not total else f" ({done / total:.0%})"
    left = "" if total is None or rate <= 0 or done >= total else f", {left_of(total - done, rate)}"
    shown_rate = f"{rate / MIB:.1f} MiB/s" if unit is Unit.BYTES else f"{rate:.1f}/s"
    return f"{_amount(done, unit)}{end}{share}, {shown_rate}{left}"


def left_of(amount: int, rate: float) -> str:
    """The time that an amount still takes, as text: "about 31 s left"."""
    return f"about {_duration(amount / rate)} left"


def _amount(count: int, unit: Unit) -> str:
    return f"{count / MIB:.1f} MiB" if unit is Unit.BYTES else str(count)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def progress(title: str, unit: Unit = Unit.BYTES, shown: bool = True) -> Iterator[Show]:
    """Show progress on stderr. It yields a function to call with each place reached; not ``shown``, it does nothing."""
    if not shown:
        yield _nothing
        return
    if not sys.stderr.isatty():
        yield Lines(title, unit, _say).show
        return
    from rmqha.kit.bar import bar_on_terminal  # what draws it takes longer to import than most commands to work

    with bar_on_terminal(title, unit is Unit.BYTES) as bar:
        yield Lines(title, unit, _say).show if bar is None else bar.show


def _nothing(done: int, total: int | None = None, title: str | None = None) -> None:
    pass


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def from_offset(show: Show, start: int, end: int) -> Callable[[int], None]:
    """Report offsets between ``start`` and ``end``."""
    total = max(0, end - start)

    def reached(offset: int) -> None:
        show(offset - start, total)

    return reached
