"""Consume queues: for each message of a topic's queue, where it lies in the log (spec/store.md 6).

::

    a unit: 0 i64 physical offset   8 i32 size   12 i64 tagsCode         unit n of the queue lies at byte 20·n

Derived from the log, and written in pieces: what a slice of dispatch adds is kept until ``write_pending``.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from rmqha.store.mappedfile import MappedFile, MappedFileQueue, UnflushedFile, file_name

UNIT = Struct(">qiq")
CQ_STORE_UNIT_SIZE = 20
assert UNIT.size == CQ_STORE_UNIT_SIZE
UNIT_DTYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)
FILES_CHECKED = 3
CONSUME_QUEUE_FOLDER = "consumequeue"
DEFAULT_QUEUE_FILE_SIZE = 6_000_000

Units = npt.NDArray[np.void]


class Unit(NamedTuple):
    """Where one message lies, and the hash of its tags (or, of a delayed message, its delivery time in ms)."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_blank(self) -> bool:
        """Whether the unit only fills a place: its message is not in this store."""
        return self.size == PRE_BLANK_SIZE and self.physical_offset == 0


def queue_file_size(configured: int) -> int:
    """``mappedFileSizeConsumeQueue`` rounded up to whole units, in bytes."""
    return -(-configured // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE


def queue_size_of(folder: Path, configured: int | None) -> int:
    """Bytes of each file of the queues in ``folder``: as configured, as they are, or by default. Raises OSError."""
    if configured is not None:
        return queue_file_size(configured)
    sizes = Counter(path.stat().st_size for path in folder.glob("*/*/[0-9]*") if path.is_file())
    sizes.pop(0, None)  # one that was cut short is then named as such
    return max(sizes, key=lambda size: (sizes[size], size), default=DEFAULT_QUEUE_FILE_SIZE)


class ConsumeQueue:
    """One queue of one topic. Offsets are queue offsets: ordinals of messages, unless they are named physical."""

    def __init__(self, folder: Path, topic: str, queue_id: int, file_size: int, owned: bool = True) -> None:
        """Opens it as its files are. Raises StoreError, OSError."""
        self.topic = topic
        self.queue_id = queue_id
        self._queue = MappedFileQueue(folder, file_size, owned, size_key="mappedFileSizeConsumeQueue")
        self._pending = bytearray()
        self._end = self._queue.end_offset  # in bytes, what is pending not counted
        self._min = self._queue.first_base or 0
        self._unflushed_from: int | None = None
        self.max_physical_offset = -1
        self.order_breaches = 0

    @property
    def max_offset(self) -> int:
        """The queue offset that comes next."""
        return (self._end + len(self._pending)) // CQ_STORE_UNIT_SIZE

    @property
    def min_offset(self) -> int:
        """The first queue offset whose message the log still has."""
        return self._min // CQ_STORE_UNIT_SIZE

    @property
    def file_size(self) -> int:
        """Bytes of each file."""
        return self._queue.file_size

    def put(self, queue_offset: int, unit: Unit) -> None:
        """Add the unit of a message at ``queue_offset``; one that is there already is left alone.

        A unit that does not follow leaves blanks for those missing, counts in ``order_breaches``, and lies where it
        belongs: offsets of a queue never shift.
        """
        if unit.physical_offset + unit.size <= self.max_physical_offset:
            return
        at, end = queue_offset * CQ_STORE_UNIT_SIZE, self._end + len(self._pending)
        if not self._pending and not len(self._queue):
            self._begin(at)
        elif at < end:
            return
        elif at > end:
            self.order_breaches += 1
            self._fill_with_blanks(end, at)
        self.max_physical_offset = unit.physical_offset + unit.size
        self._add(UNIT.pack(*unit))

    def _begin(self, at: int) -> None:
        """The first unit of a queue without files: blanks stand for what came before it in its file."""
        base = at - at % self.file_size
        self._end = base
        self._min = at
        self._fill_with_blanks(base, at)

    def _fill_with_blanks(self, start: int, end: int) -> None:
        for _ in range((end - start) // CQ_STORE_UNIT_SIZE):
            self._add(PRE_BLANK)

    def _add(self, unit: bytes) -> None:
        self._pending += unit
        if (self._end + len(self._pending)) % self.file_size == 0:
            self.write_pending()

    def write_pending(self) -> None:
        """Write the units added since the last time. Raises OSError; then they stay pending."""
        if not self._pending:
            return
        if not len(self._queue) or self._end == self._queue.end_offset:
            self._queue.create(self._end)
        mapped_file = self._file(self._end)
        if self._unflushed_from is None:
            self._unflushed_from = self._end
        mapped_file.write(self._end - mapped_file.base_offset, self._pending)
        self._end += len(self._pending)
        self._pending = bytearray()
        self._queue.trim_open(self._end)

    def _file(self, at: int) -> MappedFile:
        mapped_file = self._queue.find(at)
        assert mapped_file is not None, "a byte before the queue's end lies in one of its files"
        return mapped_file

    def units(self, offset: int, limit: int) -> Units:
        """Up to ``limit`` units from ``offset`` on, of one file; empty outside the queue. A view: use it at once."""
        self.write_pending()
        at = offset * CQ_STORE_UNIT_SIZE
        first = self._queue.first_base
        if first is None or not max(first, self._min) <= at < self._end:
            return np.empty(0, dtype=UNIT_DTYPE)
        return self._units_at(at, limit)

    def _units_at(self, at: int, limit: int) -> Units:
        mapped_file = self._file(at)
        count = min(limit, (min(self._end, mapped_file.end_offset) - at) // CQ_STORE_UNIT_SIZE)
        return cast(Units, np.frombuffer(mapped_file.segment, UNIT_DTYPE, count, at - mapped_file.base_offset))

    def unit(self, offset: int) -> Unit | None:
        """The unit at ``offset``, None outside the queue."""
        found = self.units(offset, 1)
        return Unit(*found[0].item()) if len(found) else None

    def next_file_offset(self, offset: int) -> int:
        """The first queue offset of the file behind the one that ``offset`` belongs to."""
        at = offset * CQ_STORE_UNIT_SIZE
        return (at - at % self.file_size + self.file_size) // CQ_STORE_UNIT_SIZE

    def _files(self, bases: list[int]) -> Iterator[tuple[int, Units]]:
        """Each file's base and all its units, written or not."""
        for base in bases:
            yield base, np.frombuffer(self._file(base).segment, UNIT_DTYPE)

    def recover(self) -> None:
        """Find the end after any stop, and cut what follows. Raises OSError."""
        self.find_end()
        self._cut(self._end)
        if self.max_physical_offset < 0:  # whoever made its first file died before the first unit was in it
            self._forget_all()

    def find_end(self) -> None:
        """Let the queue end behind the last unit that can be one. Changes no file."""
        bases = self._queue.bases[-FILES_CHECKED:]
        end = bases[0] if bases else 0
        for base, units in self._files(bases):
            valid = (units["physical_offset"] >= 0) & (units["size"] > 0)
            count = len(units) if valid.all() else int(np.argmin(valid))
            end = base + count * CQ_STORE_UNIT_SIZE
            if count < len(units):
                break
        self._end = end
        self.max_physical_offset = self._last_physical_end()

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of all that lies at or behind ``physical_offset`` in the log. Raises OSError."""
        self.write_pending()
        for base in reversed(self._queue.bases):
            units = self._units_at(base, self.file_size) if base < self._end else np.empty(0, dtype=UNIT_DTYPE)
            kept = _count_before(units, physical_offset)
            if kept or base == self._queue.first_base:
                self._cut(base + kept * CQ_STORE_UNIT_SIZE)
                break
        if self._end <= self._min or self.max_physical_offset < 0:
            self._forget_all()

    def drop_last_from(self, physical_offset: int) -> None:
        """Drop the last unit if its message lies at or behind ``physical_offset``: it may be written in part."""
        last = self.unit(self.max_offset - 1)
        if last is not None and last.physical_offset >= physical_offset:
            self.truncate(last.physical_offset)

    def _cut(self, end: int) -> None:
        while len(self._queue) and self._queue.bases[-1] >= end:  # no empty file stays: it might once be the only one
            self._queue.remove_last()
        mapped_file = self._queue.find(end)
        if mapped_file is not None and mapped_file.nonzero_end(end - mapped_file.base_offset) is not None:
            mapped_file.zero_from(end - mapped_file.base_offset)
            mapped_file.sync()
        if self._unflushed_from is not None:
            self._unflushed_from = min(self._unflushed_from, end)
        self._end = end
        self.max_physical_offset = self._last_physical_end()

    def _last_physical_end(self) -> int:
        """The end, in the log, of the last message that has a unit; -1 without any."""
        at = self._end - CQ_STORE_UNIT_SIZE
        while self._queue.first_base is not None and at >= self._queue.first_base:
            unit = Unit(*self._units_at(at, 1)[0].item())
            if not unit.is_blank:
                return unit.physical_offset + unit.size
            at -= CQ_STORE_UNIT_SIZE
        return -1

    def _forget_all(self) -> None:
        while len(self._queue):
            self._queue.remove_last()
        self._end = self._min = 0
        self.max_physical_offset = -1

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Let the queue begin at its first message that the log still has."""
        self.write_pending()
        for base in self._queue.bases:
            if base >= self._end:
                break
            units = self._units_at(base, self.file_size)
            is_there = (units["physical_offset"] >= min_physical_offset) & (units["size"] != PRE_BLANK_SIZE)
            if is_there.any():
                self._min = base + int(np.argmax(is_there)) * CQ_STORE_UNIT_SIZE
                return
        self._min = self._end

    def delete_files_before(self, min_physical_offset: int) -> int:
        """Delete files, never the last, all of whose messages the log no longer has; gives their number."""
        self.write_pending()
        deleted = 0
        while len(self._queue) > 1:
            base = self._queue.bases[0]
            last = Unit(*self._units_at(base + self.file_size - CQ_STORE_UNIT_SIZE, 1)[0].item())
            if last.physical_offset >= min_physical_offset:
                break
            self._queue.remove_first()
            deleted += 1
        self.correct_min_offset(min_physical_offset)
        return deleted

    def offset_by_time(self, timestamp: int, store_timestamp: Callable[[int], int | None]) -> int:
        """The queue offset stored nearest to ``timestamp`` (ms): at it, else just before or after; 0 if it is empty.

        ``store_timestamp`` gives STORETIMESTAMP by physical offset, None where the log has no such message.
        """

        def stored_at(offset: int) -> int | None:
            unit = self.unit(offset)
            return None if unit is None or unit.is_blank else store_timestamp(unit.physical_offset)

        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            stored = stored_at(middle)
            if stored is None or stored < timestamp:
                low = middle + 1
            else:
                high = middle
        after, before = stored_at(low), stored_at(low - 1)
        if after is None or before is None:
            return low if before is None else low - 1
        return low if after - timestamp < timestamp - before else low - 1

    def take_unflushed(self) -> list[UnflushedFile]:
        """The files with bytes written since the last call."""
        start, self._unflushed_from = self._unflushed_from, None
        if start is None:
            return []
        folder, bases = self._queue.folder, self._queue.bases
        return [UnflushedFile(folder / file_name(base)) for base in bases if base + self.file_size > start]

    def release_files(self) -> None:
        """Give the files' descriptors back until they are needed again."""
        self._queue.release()

    def close(self) -> None:
        """Close all files; what is pending must have been written."""
        self._queue.close()


def _count_before(units: Units, physical_offset: int) -> int:
    """How many stay of these units up to the last of a message before ``physical_offset``; blanks follow none."""
    is_message = units["size"] != PRE_BLANK_SIZE
    behind = is_message & (units["physical_offset"] >= physical_offset)
    before = np.flatnonzero(is_message[: int(np.argmax(behind)) if behind.any() else len(units)])
    return int(before[-1]) + 1 if len(before) else 0
