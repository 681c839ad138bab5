"""A progress bar on the terminal of a node in the foreground, below the lines of its log."""

import threading
from collections.abc import Callable
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from rmqha.kit.bar import bar_columns
from rmqha.kit.printing import printable
from rmqha.kit.services import PeriodicService

LOOK_SECONDS = 0.25


class Place(NamedTuple):
    """How far a long work has come: at ``at`` of ``end``, in bytes. ``start`` None: where it was first seen."""

    title: str
    at: int
    end: int
    start: int | None = None


class TerminalBar:
    """Standard output of a process: lines of its log and, below them, a bar while there is something to show.

    Lines may come from any thread.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream)
        self._lock = threading.RLock()
        self._display: Progress | None = None
        self._task = TaskID(0)

    @classmethod
    def on(cls, stream: TextIO | None) -> "TerminalBar | None":
        """None if the stream is not a terminal that can show a bar."""
        if stream is None or not stream.isatty():
            return None
        bar = cls(stream)
        return None if bar._console.is_dumb_terminal else bar

    def write(self, text: str) -> None:
        """Write lines of the log above the bar."""
        with self._lock:
            if self._display is None:
                self._stream.write(text)
            else:
                self._console.print(Text(text.removesuffix("\n")), soft_wrap=True)

    def flush(self) -> None:
        """As of a file."""
        self._stream.flush()

    def show(self, title: str, done: int, total: int) -> None:
        """Show the bar, or move it."""
        with self._lock:
            if self._display is None:
                self._display = Progress(
                    *bar_columns(),
                    console=self._console,
                    auto_refresh=False,  # no thread: the reactor's thread moves the bar
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._task = self._display.add_task(printable(title), completed=done, total=total)
                self._display.start()
            self._display.update(self._task, description=printable(title), completed=done, total=total, refresh=True)

    def hide(self) -> None:
        """Take the bar away, if there is one. The lines of the log stay."""
        with self._lock:
            if self._display is not None:
                self._display.stop()
                self._display = None


class ProgressBarService(PeriodicService):
    """Moves a bar while ``how_far`` gives a place. It shows nothing of what is over after one look."""

    def __init__(self, bar: TerminalBar, how_far: Callable[[], Place | None], clock: IReactorTime) -> None:
        PeriodicService.__init__(self, "the progress bar", LOOK_SECONDS, self._look, clock, first_after=LOOK_SECONDS)
        self._bar = bar
        self._how_far = how_far
        self._title: str | None = None
        self._first = 0

    def _look(self) -> None:
        place = self._how_far()
        if place is None:
            self._title = None
            self._bar.hide()
        elif place.title != self._title:
            self._title, self._first = place.title, place.at if place.start is None else place.start
        else:
            self._bar.show(place.title, place.at - self._first, place.end - self._first)

    def stopService(self) -> Deferred[None]:
        self._bar.hide()
        return PeriodicService.stopService(self)
