"""Writes a node's log events, as text for people or as JSON lines for machines. SIGHUP reopens the file."""

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import orjson
from twisted.logger import FileLogObserver, ILogObserver, LogEvent, LogLevel, eventAsText, formatEvent
from twisted.python.reflect import safe_str
from twisted.python.syslog import SyslogObserver as TwistedSyslogObserver
from zope.interface import implementer

from rmqha.kit.printing import printable, printable_json

if TYPE_CHECKING:
    from rmqha.ops.terminalbar import TerminalBar

OWN_NAMESPACE = "rmqha"


class LogFormat(Enum):
    """The format of a log event."""

    TEXT = "text"
    JSON = "json"


def format_event_as_text(event: LogEvent) -> str | None:
    """Time, namespace and level, the text, and a traceback below it; None for an event without text.

    Much of the text may come from strangers. So unprintable characters are escaped, and an event of ours is one line.
    """
    is_ours = str(event.get("log_namespace")).partition(".")[0] == OWN_NAMESPACE
    text = eventAsText(event, includeTraceback=False)
    lines = [printable(text, keep="" if is_ours else "\n\t")]
    failure = event.get("log_failure")
    if failure is not None:
        lines.append(printable(failure.getTraceback(), keep="\n\t"))
    elif not formatEvent(event):
        return None
    return "\n".join(lines).replace("\n", "\n\t") + "\n"


def format_event_as_json(event: LogEvent) -> str:
    """One line: time in seconds, level, namespace, the text, and the event's own fields under their names."""
    line: dict[str, Any] = {
        "time": event.get("log_time"),
        "level": getattr(event.get("log_level"), "name", None),
        "namespace": event.get("log_namespace"),
        "message": formatEvent(event),
    }
    failure = event.get("log_failure")
    if failure is not None:
        line["traceback"] = failure.getTraceback()
    own_fields = {name: value for name, value in event.items() if not name.startswith("log_") and name not in line}
    fields = {**line, **own_fields}
    try:
        return _dump(fields)
    except TypeError:  # text that is not UTF-8, or integers beyond 64 bits: keep the event anyway
        return _dump({name: _plain(value) for name, value in fields.items()})


def _dump(fields: dict[str, Any]) -> str:
    return printable_json(orjson.dumps(fields, default=safe_str, option=orjson.OPT_NON_STR_KEYS).decode()) + "\n"


def _plain(value: object) -> object:
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return safe_str(value).encode("utf-8", "backslashreplace").decode()


@implementer(ILogObserver)
class SyslogObserver:
    """Writes a process's events to syslog, each with all escaped that a terminal would obey."""

    def __init__(self, prefix: str) -> None:
        self._emit = TwistedSyslogObserver(prefix).emit

    def __call__(self, event: LogEvent) -> None:
        text = format_event_as_text(event)
        if text is None:
            return
        level = event.get("log_level")
        _, _, rest = text.rstrip().partition("] ")  # Twisted's observer puts the namespace before each line
        system = f"{event.get('log_namespace', '-')}#{getattr(level, 'name', '-')}"
        is_error = level is not None and level >= LogLevel.error
        self._emit({"message": (rest,), "isError": is_error, "system": printable(system)})

    def reopen(self) -> None:
        """As SIGHUP asks: there is no file."""


class ReopenedFile:
    """A log file that other programs can move away. ``reopen`` then creates a new one."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path.absolute()  # a daemon may change its folder before the file is reopened
        self._file = self._open()

    def _open(self) -> TextIO:
        return self._path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)

    def reopen(self) -> None:
        """Continue in a new file of the same name. If it cannot be opened, keep the old file and raise OSError."""
        old, self._file = self._file, self._open()
        old.close()

    def write(self, text: str) -> None:
        self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


def _terminal_bar() -> "TerminalBar | None":
    """Standard output with a bar; None if it is not a terminal that can show one."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from rmqha.ops.terminalbar import TerminalBar  # what draws it takes long to import

    return TerminalBar.on(sys.stdout)


@implementer(ILogObserver)
class NodeLogObserver:
    """Writes a node's events to ``path``, or to standard output."""

    def __init__(self, log_format: LogFormat, path: Path | None) -> None:
        """Raises OSError."""
        self._file = ReopenedFile(path) if path is not None else None
        is_shown = path is None and log_format is LogFormat.TEXT
        self.bar = _terminal_bar() if is_shown else None
        """The terminal on which the events are shown; None without one."""
        stream: Any = self._file or self.bar or sys.stdout
        if log_format is LogFormat.JSON:
            self._write = FileLogObserver(stream, format_event_as_json)
        else:
            self._write = FileLogObserver(stream, format_event_as_text)

    def __call__(self, event: LogEvent) -> None:
        self._write(event)

    def reopen(self) -> None:
        """Reopen the log file, for SIGHUP. Raises OSError."""
        if self._file is not None:
            self._file.reopen()
