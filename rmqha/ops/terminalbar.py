"""A progress bar on the terminal of a node in the foreground, below the lines of its log."""

import threading
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from rmqha.kit.bar import bar_columns
from rmqha.kit.printing import printable


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
