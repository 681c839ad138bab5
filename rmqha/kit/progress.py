"""What shows how far a long work has come: lines, parts of a bar, or nothing."""

import time
from collections.abc import Callable
from enum import Enum

from zope.interface import Interface, implementer

LINE_SECONDS = 10.0
MIB = 1 << 20


class Unit(Enum):
    """What is counted."""

    BYTES = "bytes"
    PARTS = "parts"


class IBar(Interface):
    """Shows how far something is."""

    def show(done: int, total: int | None = None, title: str | None = None) -> None:
        """``done`` is done, of ``total`` if that is known. A ``title`` replaces the title from then on.

        It may be called very often.
        """


@implementer(IBar)
class NoBar:
    """Progress that nobody watches."""

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        """See ``IBar``."""


NO_BAR = NoBar()


@implementer(IBar)
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
        """See ``IBar``."""
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


class OffsetBar:
    """Shows offsets between ``start`` and ``end``."""

    def __init__(self, bar: IBar, start: int, end: int) -> None:
        self._bar = bar
        self._start = start
        self._total = max(0, end - start)

    def reached(self, offset: int) -> None:
        """The work has come to this offset."""
        self._bar.show(offset - self._start, self._total)


@implementer(IBar)
class PartBar:
    """Shows a part of a work, of which ``done`` was done before. Without a ``total`` the work ends with this part."""

    def __init__(self, bar: IBar, done: int = 0, total: int | None = None) -> None:
        self.done = done
        """How much of the whole work is done."""
        self._bar = bar
        self._before = done
        self._total = total

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        """See ``IBar``. The numbers are those of the part."""
        self.done = self._before + done
        if self._total is not None or total is None:
            self._bar.show(self.done, self._total, title)
        else:
            self._bar.show(self.done, self._before + total, title)
