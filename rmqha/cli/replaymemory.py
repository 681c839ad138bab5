"""What a replay remembers when it is killed: the progress file, a journal of what was sent since, and the brokers.

The progress file is replaced about once a second, durably. Each position goes to the journal before its message is
sent, and again with its result. The kernel keeps the journal if only the process dies. So a second run knows which
messages have a result, and asks the brokers for those that were sent and have none. After the machine has stopped, the
end of the journal may be lost: the second run then asks for all messages.
"""

import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from zope.interface import implementer

from rmqha.client import SendStatus
from rmqha.client.errors import TopicNotFound
from rmqha.client.lookup import Brokers
from rmqha.client.message import UNIQ_KEY, Message
from rmqha.client.replay import MARK, Failure, IReplayMemory, Progress
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.log.mappedfile import DISK
from rmqha.store.offline.commands import Trouble
from rmqha.store.offline.newstore import check_place

SAVE_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""Brokers find a message by its id some time after they have read it from the connection of a run that was killed."""
ENTRY = struct.Struct(">qb")
SENDS, REFUSED = -1, -2
"""In place of a status: the message is about to be sent; a broker has refused it."""
STATUSES = tuple(SendStatus)
HEAD = struct.Struct(">q")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOST_WITH_ONE_ID = 64
REFUSED_BEFORE = "refused just before the run was killed"


class Saved:
    """The progress file and its journal. ``whose`` names the source, and the options that select messages. Without a
    path nothing is kept.

    ``machine_stopped`` says, after ``read``, that the machine has been started again since the earlier run, and
    ``unsettled_seconds`` for how long brokers may not find yet what that run has sent.
    """

    def __init__(self, path: Path | None, whose: dict[str, Any]) -> None:
        self._path = path
        self._whose = whose
        self._written_at = 0.0
        self._generation = 0
        self._fd: int | None = None
        self.machine_stopped = False
        self.unsettled_seconds = 0.0

    @property
    def _journal(self) -> Path:
        assert self._path is not None, "there is a journal only with a progress file"
        return self._path.with_name(f"{self._path.name}.journal")

    def read(self) -> Progress:
        """The progress of an earlier run; an empty one if there was none. Raises Trouble, OSError."""
        if self._path is None:
            return Progress()
        check_place(self._path)
        if not self._path.exists():
            return Progress()
        try:
            content = orjson.loads(self._path.read_bytes())
            whose, is_over = content["of"], content["isOver"]
            progress = _progress_of(content)
            self._generation = int(content.get("generation", 0))
            self.machine_stopped = content.get("bootId") != _boot_id()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Trouble(ExitCode.USAGE, f"{self._path} is not a progress file of rmqha replay: {error}") from error
        if whose != self._whose:
            raise Trouble(
                ExitCode.USAGE,
                f"{self._path} is of a replay of {whose.get('source')} with other options: name another file",
            )
        if is_over:
            raise Trouble(ExitCode.USAGE, f"{self._path} says that all was sent; remove the file to send it again")
        for position, kind in self._entries():
            _apply(progress, position, kind)
        if progress.unknown:
            changed_at = max(path.stat().st_mtime for path in (self._path, self._journal) if path.exists())
            self.unsettled_seconds = min(SETTLE_SECONDS, max(0.0, changed_at + SETTLE_SECONDS - time.time()))
        return progress

    def _entries(self) -> Iterator[tuple[int, int]]:
        """What was done after the progress file was written. A journal of another generation is older than the file."""
        try:
            content = self._journal.read_bytes()
        except FileNotFoundError:
            return
        if len(content) < HEAD.size or HEAD.unpack_from(content)[0] != self._generation:
            return
        whole = (len(content) - HEAD.size) // ENTRY.size * ENTRY.size
        yield from ENTRY.iter_unpack(content[HEAD.size : HEAD.size + whole])

    def sends(self, position: int) -> None:
        """A message is about to be sent. Raises OSError."""
        self._append(position, SENDS)

    def has_result(self, position: int, status: SendStatus | None) -> None:
        """A message was stored, or, with None, refused. Raises OSError."""
        self._append(position, REFUSED if status is None else STATUSES.index(status))

    def _append(self, position: int, kind: int) -> None:
        if self._fd is not None:
            os.write(self._fd, ENTRY.pack(position, kind))

    def write_now_and_then(self, progress: Progress) -> None:
        """Write the file if the last time was long ago. Raises OSError."""
        if time.monotonic() >= self._written_at + SAVE_SECONDS:
            self.write(progress)

    def write(self, progress: Progress, is_over: bool = False) -> None:
        """Replace the file, durably, and begin a new journal. Raises OSError."""
        self._written_at = time.monotonic()
        if self._path is None:
            return
        self._generation += 1
        content = {
            "of": self._whose,
            "isOver": is_over,
            **progress_as_json(progress),
            "done": sorted(progress.done),
            "unknown": sorted(progress.unknown),
            "again": progress.again,
            "generation": self._generation,
            "bootId": _boot_id(),
        }
        DISK.replace(self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2))
        self.close()
        if is_over:
            self._journal.unlink(missing_ok=True)
            return
        self._fd = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.write(self._fd, HEAD.pack(self._generation))

    def close(self) -> None:
        """Close the journal."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def progress_as_json(progress: Progress) -> dict[str, Any]:
    """What ``rmqha replay --json`` prints of it."""
    return {
        "position": progress.position,
        "reached": progress.reached,
        "end": progress.end,
        "statuses": {status.name: count for status, count in progress.statuses.items()},
        "failures": [failure._asdict() for failure in progress.failures],
        "found": progress.found,
    }


def _progress_of(content: dict[str, Any]) -> Progress:
    """Raises ValueError, KeyError, TypeError, AttributeError."""
    return Progress(
        int(content["position"]),
        int(content["reached"]),
        Counter({SendStatus[name]: int(count) for name, count in content["statuses"].items()}),
        [Failure(**failure) for failure in content["failures"]],
        int(content["end"]),
        set(map(int, content.get("done", ()))),
        set(map(int, content.get("unknown", ()))),
        int(content.get("found", 0)),
        int(content.get("again", 0)),
    )


def _apply(progress: Progress, position: int, kind: int) -> None:
    progress.reached = max(progress.reached, position + 1)
    if kind == SENDS:
        progress.unknown.add(position)
        return
    progress.unknown.discard(position)
    progress.done.add(position)
    if kind == REFUSED:
        progress.failures.append(Failure(position, "", REFUSED_BEFORE))
    else:
        progress.statuses[STATUSES[kind]] += 1


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class MessageBar:
    """A bar of messages on stderr, if that is a terminal. A context manager."""

    def __init__(self, title: str, total: int | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bar = Bar(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int) -> None:
        """This many messages are done."""
        self._bar.update(self._task, completed=done)


@implementer(IReplayMemory)
class Memory:
    """What is saved, what brokers have, and a bar with the number of results."""

    def __init__(self, saved: Saved, brokers: Brokers, bar: MessageBar) -> None:
        self._saved = saved
        self._brokers = brokers
        self._bar = bar

    def sends(self, position: int) -> None:
        """See ``IReplayMemory``. Raises OSError."""
        self._saved.sends(position)

    def has_result(self, position: int, status: SendStatus | None) -> None:
        """See ``IReplayMemory``. Raises OSError."""
        self._saved.has_result(position, status)

    def changed(self, progress: Progress) -> None:
        """See ``IReplayMemory``. Raises OSError."""
        self._bar.show(progress.results)
        self._saved.write_now_and_then(progress)

    async def is_there(self, message: Message) -> bool:
        """Whether a broker finds this marked message by its message id.

        Brokers do not find a delayed message before it is delivered. Raises MQClientError, MQBrokerError.
        """
        id_ = message.properties[UNIQ_KEY]
        try:
            found = await self._brokers.by_key(message.topic, id_, MOST_WITH_ONE_ID, unique=True)
        except TopicNotFound:  # a broker makes it with the first message
            return False
        return any(one.properties.get(MARK) == message.properties[MARK] for one in found)
