"""The timer messages that wait, in the order in which something is to be done with them.

They are in an SQLite database, because there may be millions of them, and memory must not grow with them. The database
is only for this process: it is built from the log at each start, and its file has no name, so that nothing is left of
it. Only these columns are needed: the messages themselves are in the log.
"""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from rmqha.wire.timers import CANCELS

CACHE_KIB = 4096
TABLES = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -{CACHE_KIB};
CREATE TABLE waiting (at_ms INTEGER, queue_offset INTEGER, due_ms INTEGER, PRIMARY KEY (at_ms, queue_offset))
    WITHOUT ROWID;
CREATE UNIQUE INDEX by_offset ON waiting (queue_offset);
CREATE TABLE special (key BLOB, due_ms INTEGER, queue_offset INTEGER, rolls INTEGER,
    PRIMARY KEY (key, due_ms, queue_offset)) WITHOUT ROWID;
CREATE INDEX special_by_offset ON special (queue_offset);
"""


class Waiting(NamedTuple):
    """A message that waits: when to look at it, its queue offset, and when it is due. Times are in ms."""

    at_ms: int
    queue_offset: int
    due_ms: int


class Special(NamedTuple):
    """A message that decides about others with the same key and the same time: it cancels them, or it replaces them.

    ``rolls`` is CANCELS, or how often the message was put again while it waited.
    """

    key: str
    due_ms: int
    queue_offset: int
    rolls: int


class TimerIndex:
    """The messages that wait. Its methods raise sqlite3.Error, for example if the disk is full.

    After an error the index is of no more use: make a new one.
    """

    def __init__(self, folder: Path) -> None:
        """Make an empty index on the disk of ``folder``, which is made if it is missing. Raises OSError too."""
        folder.mkdir(exist_ok=True)
        path = folder / "timers.waiting"
        path.unlink(missing_ok=True)
        import sqlite3  # most masters have no timer messages, and start quicker

        self._base = sqlite3.connect(path, isolation_level=None)
        try:
            self._base.executescript(TABLES)
        finally:
            path.unlink(missing_ok=True)
        self.count = 0
        """How many messages wait."""

    def close(self) -> None:
        """Forget all."""
        self._base.close()

    @property
    def size_bytes(self) -> int:
        """What it takes on the disk."""
        ((pages, size),) = self._base.execute("SELECT * FROM pragma_page_count(), pragma_page_size()")
        return int(pages * size)

    def add(self, waiting: Iterable[Waiting], special: Iterable[Special]) -> None:
        """Add messages. No queue offset may be there already."""
        self._base.execute("BEGIN")
        found = self._base.executemany("INSERT INTO waiting VALUES (?, ?, ?)", waiting)
        self.count += found.rowcount
        keyed = ((_digest(each.key), *each[1:]) for each in special)
        self._base.executemany("INSERT INTO special VALUES (?, ?, ?, ?)", keyed)
        self._base.execute("COMMIT")

    def until(self, at_ms: int, most: int) -> list[Waiting]:
        """The first messages to look at, of those until this time."""
        found = self._base.execute(
            "SELECT * FROM waiting WHERE at_ms <= ? ORDER BY at_ms, queue_offset LIMIT ?", (at_ms, most)
        )
        return [Waiting(*row) for row in found]

    def remove(self, waiting: Waiting) -> None:
        """Remove a message, and what it decides about others."""
        self._base.execute("DELETE FROM waiting WHERE at_ms = ? AND queue_offset = ?", waiting[:2])
        self._base.execute("DELETE FROM special WHERE queue_offset = ?", (waiting.queue_offset,))
        self.count -= 1

    def postpone(self, waiting: Waiting, at_ms: int) -> None:
        """Look at a message at another time."""
        self._base.execute("UPDATE waiting SET at_ms = ? WHERE queue_offset = ?", (at_ms, waiting.queue_offset))

    def is_over(self, key: str, due_ms: int, rolls: int) -> bool:
        """Whether a message with this key and time is cancelled, or was put again since."""
        found = self._base.execute(
            f"SELECT 1 FROM special WHERE key = ? AND due_ms = ? AND (rolls = {CANCELS} OR rolls > ?) LIMIT 1",
            (_digest(key), due_ms, rolls),
        )
        return found.fetchone() is not None

    def first(self) -> tuple[int, int] | None:
        """The earliest time and the lowest queue offset of all that wait; None if nothing waits."""
        ((at_ms, queue_offset),) = self._base.execute(
            "SELECT (SELECT MIN(at_ms) FROM waiting), (SELECT MIN(queue_offset) FROM waiting)"
        )
        return None if at_ms is None else (at_ms, queue_offset)


def _digest(key: str) -> bytes:
    """A key may be as long as all properties of a message, and may have bytes that are not UTF-8."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
