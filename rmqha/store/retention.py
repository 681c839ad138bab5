"""Deletes old segments by age, hour and disk space, and then the files derived from them (spec/store.md 10).

Only this module uses the wall clock for decisions. What a slot still needs is kept (``--hold``), up to a limit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson
from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.kit.steps import Steps, at_once
from rmqha.settings.settings import Settings
from rmqha.store.derived.index import KeyIndex
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK
from rmqha.store.log.room import room_of
from rmqha.store.nodestate import NODE_FOLDER

DISK_SPACE_WARNING_RATIO = 0.90
DISK_SPACE_CLEAN_FORCIBLY_RATIO = 0.85
MAX_FILES_PER_RUN = 10
QUEUES_AT_ONCE = 100
"""Queues examined per reactor turn."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The log from ``offset`` on is kept for the slave with this name."""

    name: str
    offset: int


class SlotFolder:
    """The slots of a store. Each is a file, ``<store>/rmqha/slots/NAME.json``."""

    def __init__(self, store: Path) -> None:
        self._folder = store / NODE_FOLDER / "slots"

    def slots(self) -> list[Slot]:
        """All slots. Raises StoreError if a file is invalid, because its offset is not known; OSError."""
        if not self._folder.is_dir():
            return []
        return [self._read(path) for path in sorted(self._folder.glob("*.json"))]

    @staticmethod
    def _read(path: Path) -> Slot:
        try:
            return Slot(path.stem, int(orjson.loads(path.read_bytes())["offset"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is not a valid slot ({error!r}): nothing is deleted until it is fixed") from error

    def save(self, slot: Slot) -> None:
        """Write a slot, durably. Raises StoreError if its name cannot be a file name, OSError."""
        if not slot.name or "/" in slot.name or slot.name.startswith("."):
            raise StoreError(f"a slot cannot be named {slot.name!r}")
        DISK.replace(self._folder / f"{slot.name}.json", orjson.dumps({"offset": slot.offset}) + b"\n")


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What one run deleted, and whether the disk is too full to accept messages."""

    segments: int
    disk_full: bool
    held_at: int | None = None


@dataclass(frozen=True, slots=True)
class HeldLog:
    """``first_offset`` gives the offset from which the log is held for slaves, None for no hold.

    No more than ``max_bytes`` before the log's end are held, if that is not None.
    """

    first_offset: Callable[[], int | None] = lambda: None
    max_bytes: int | None = None


class Retention:
    """Deletes old segments and the files derived from them. ``used_ratio`` returns how full a folder's partition is."""

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        settings: Settings,
        held: HeldLog = HeldLog(),
        used_ratio: Callable[[Path], float] | None = None,
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._settings = settings
        self._held_from = held.first_offset
        self._max_hold_bytes = held.max_bytes
        self._used_ratio = used_ratio if used_ratio is not None else disk_used_ratio

    def clean(self, now: datetime, at_any_hour: bool = False) -> Cleaning:
        """Delete at most MAX_FILES_PER_RUN segments, but never the last one. Raises StoreError, OSError.

        ``at_any_hour`` does not wait for deleteWhen. It deletes nothing that is not expired.
        """
        return at_once(self.cleaning(now, at_any_hour))

    def cleaning(self, now: datetime, at_any_hour: bool = False) -> Steps[Cleaning]:
        """The same in steps, each with one segment at most, or some queues: a store may have very many."""
        ratio = self._used_ratio(self._commit_log.folder)
        must_go = ratio > DISK_SPACE_CLEAN_FORCIBLY_RATIO
        deleted, held_at = 0, None
        if must_go or ratio > self._settings.disk_max_used_space_ratio / 100 or at_any_hour or self._is_hour(now):
            deleted, held_at = yield from self._deleting_segments(now, must_go)
        if deleted:
            yield from self.deleting_derived()
        return Cleaning(deleted, ratio > DISK_SPACE_WARNING_RATIO, held_at)

    def _is_hour(self, now: datetime) -> bool:
        return now.hour in self._settings.delete_when

    def _deleting_segments(self, now: datetime, must_go: bool) -> Steps[tuple[int, int | None]]:
        log, deleted = self._commit_log, 0
        held_from = self._hold()
        forced = must_go and self._settings.clean_file_forcibly_enable
        oldest_kept = now.timestamp() - self._settings.file_reserved_time_hours * 3600
        while deleted < MAX_FILES_PER_RUN and len(log.segment_bases) > 1:
            end = log.segment_bases[1]
            expired = log.first_segment_time() <= oldest_kept
            if not expired and not forced:
                break
            if held_from is not None and end > held_from:
                self._log.warn(
                    "the log before {end} is due for deletion, but is held from {start}",
                    event=Event.LOG_HELD,
                    end=end,
                    start=held_from,
                )
                return deleted, held_from
            if log.needs_first_segment and not forced:  # if forced, dispatch may wait for just this room
                break
            self._log.info(
                "deleting the log from {start} to {end}", event=Event.LOG_DELETED, start=log.segment_bases[0], end=end
            )
            log.delete_first_segment()
            deleted += 1
            yield
        return deleted, None

    def _hold(self) -> int | None:
        """The offset from which on the log is kept, within the limit; None for no hold."""
        held_from = self._held_from()
        if held_from is None or self._max_hold_bytes is None:
            return held_from
        return max(held_from, self._commit_log.verified_offset - self._max_hold_bytes)

    def delete_derived(self) -> None:
        """Delete the queue and index files whose messages are all deleted. Raises OSError."""
        at_once(self.deleting_derived())

    def deleting_derived(self) -> Steps[None]:
        """The same in steps."""
        min_offset = self._commit_log.min_offset
        for number, (key, queue) in enumerate(list(self._queues.queues.items())):
            if number and number % QUEUES_AT_ONCE == 0:
                yield
            if self._queues.queues.get(key) is queue:  # else its topic was deleted meanwhile
                queue.delete_files_before(min_offset)
        if self._index is not None:
            self._index.delete_files_before(min_offset)


def disk_used_ratio(folder: Path) -> float:
    """How much of the folder's partition is used, 0 to 1, as ``df`` computes it for a user who is not root."""
    return room_of(folder).used_ratio
