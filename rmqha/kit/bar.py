"""A bar on the terminal: how far a long work has come."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from zope.interface import implementer

from rmqha.kit.printing import printable
from rmqha.kit.progress import IBar

BAR_SECONDS = 0.1


@implementer(IBar)
class Bar:
    """A task of rich's Progress, updated at most every ``BAR_SECONDS``."""

    def __init__(self, bar: Progress, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(printable(title), total=None)
        self._next = 0.0
        self._last: tuple[int, int | None] | None = None

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        self._last = done, total
        now = time.monotonic()
        if now < self._next and title is None:
            return
        self._next = now + BAR_SECONDS
        self._update()
        if title is not None:
            self._bar.update(self._task, description=printable(title))

    def _update(self) -> None:
        if self._last is not None:
            done, total = self._last
            self._bar.update(self._task, completed=done, total=total)

    def finish(self) -> None:
        """Show what was reported last."""
        self._update()


def bar_columns(in_bytes: bool = True) -> list[ProgressColumn]:
    """Title, bar, amount, rate and time left; for what is not ``in_bytes``, no rate. The title is not markup."""
    title = TextColumn("{task.description}", markup=False)
    if not in_bytes:
        return [title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    return [title, BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()]


@contextmanager
def bar_on_terminal(title: str, in_bytes: bool) -> Iterator[Bar | None]:
    """Show a bar on stderr, which is a terminal. None if it is one that cannot show a bar."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(*bar_columns(in_bytes), console=console) as display:
        bar = Bar(display, title)
        try:
            yield bar
        finally:
            bar.finish()
