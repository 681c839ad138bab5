"""Consume queues: for each message of a topic's queue, where it is in the log (spec/store.md 6).

::

    a unit: 0 i64 physical offset   8 i32 size   12 i64 tagsCode         unit n of the queue is at byte 20·n

They are derived from the log. What a slice of dispatch adds is kept in memory until ``write_pending``.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from rmqha.kit.steps import Steps, at_once
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.errors import StoreError
from rmqha.store.interfaces import IMessageTimes
from rmqha.store.log.mappedfile import (
    DISK,
    Disk,
    MappedFile,
    MappedFileQueue,
    Readable,
    Syncable,
    UnflushedFile,
    UnflushedFolder,
    file_name,
)
from rmqha.wire.delay import DelayLevels
from rmqha.wire.layout import UNIT

PLACE = Struct(">qi")
"""The start of a unit: which bytes of the log are its message."""
CQ_STORE_UNIT_SIZE = 20
assert UNIT.size == CQ_STORE_UNIT_SIZE
UNIT_DTYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)
BLANKS_BATCH = 4096
FILES_WITHOUT_HOLES = 3
"""A queue's last files, which a Java broker's recovery reads. It would take a hole in them for the queue's end."""
HOLE_FILE_COST_BYTES = 65536
"""What a file that is left as a hole costs, compared with bytes of blanks."""
BLANKS_ALLOWED_BYTES = 1 << 30
"""All queues together may have this many bytes of blanks, plus the log's size: a hostile master invents offsets."""
PAGE_BYTES = 4096
BYTES_BATCH = 1 << 20
UNITS_LOOKED_AT = 64
"""The last units, which are looked at together to find where reads end. More of them are bisected."""
UNITS_PROVED = 4096
"""After an unclean stop at most this many units are checked one by one."""
FILES_THAT_TELL = 1000
"""The file size of queues is taken from about this many files, because some may be damaged."""
CONSUME_QUEUE_FOLDER = "consumequeue"
DEFAULT_UNITS = 300_000
"""How many units a file has by default."""
DEFAULT_QUEUE_FILE_SIZE = DEFAULT_UNITS * CQ_STORE_UNIT_SIZE

Units = npt.NDArray[np.void]


class BoundaryType(Enum):
    """Which message a search by time finds. RocketMQ 5 knows ``LOWER`` and ``UPPER``."""

    LOWER = "the first one stored at the time or later; the queue's end if there is none"
    UPPER = "the last one stored at the time or earlier; the queue's first one if there is none"
    NEAREST = "as 4.9: the first one stored at the time, else the one stored nearest to it"


class Unit(NamedTuple):
    """Where one message is in the log, and the hash of its tags (for a delayed message its delivery time in ms)."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_blank(self) -> bool:
        """Whether the unit only fills a gap: its message is not in this store."""
        return self.physical_offset == 0 and self.size in (0, PRE_BLANK_SIZE)


def queue_file_size(configured: int, unit_size: int = CQ_STORE_UNIT_SIZE) -> int:
    """A configured file size, such as ``mappedFileSizeConsumeQueue``, rounded up to whole units, in bytes."""
    return -(-configured // unit_size) * unit_size


def queue_size_of(folder: Path, configured: int | None, disk: Disk = DISK, unit_size: int = CQ_STORE_UNIT_SIZE) -> int:
    """Bytes of each queue file in ``folder``: as most files are, else as configured, else the default.

    The files win over the setting, so that a store opens with any settings. Sizes that no queue file can have are
    ignored: such a file is damaged. Raises OSError.
    """
    wanted = queue_file_size(configured, unit_size) if configured is not None else DEFAULT_UNITS * unit_size
    sizes = {size: count for size, count in _file_sizes(folder, disk).items() if size and size % unit_size == 0}
    return max(sizes, key=lambda size: (sizes[size], size == wanted, size), default=wanted)


def new_queue_size(folder: Path, configured: int | None, disk: Disk = DISK, unit_size: int = CQ_STORE_UNIT_SIZE) -> int:
    """Bytes of each file of queues that replace those in ``folder``: as configured, else as these are.

    Raises OSError.
    """
    if configured is not None:
        return queue_file_size(configured, unit_size)
    return queue_size_of(folder, None, disk, unit_size)


def _file_sizes(folder: Path, disk: Disk) -> Counter[int]:
    """How many files there are of each size. Reads only ``FILES_THAT_TELL`` files or a few more."""
    sizes: Counter[int] = Counter()
    for topic in disk.folders_in(folder):
        for queue in disk.folders_in(folder / topic):
            sizes.update(size for name, size in disk.files_in(folder / topic / queue) if name[:1].isdecimal())
            if sizes.total() > FILES_THAT_TELL:
                return sizes
    return sizes


class QueueDamaged(StoreError):
    """A queue's files are damaged. The log can rebuild them."""


@dataclass(slots=True)
class Marks:
    """Which of a store's queues have something to write or to flush.

    ``dirty`` queues have units to write. ``unflushed`` queues have files not flushed from this byte on. ``grown``
    queues have files that are new or removed, and folders that are not flushed. Each keeps the order in which that
    came about. All are on ``disk``.
    """

    dirty: dict["ConsumeQueue", None] = field(default_factory=dict)
    unflushed: dict["ConsumeQueue", int] = field(default_factory=dict)
    grown: dict["ConsumeQueue", None] = field(default_factory=dict)
    disk: Disk = DISK

    def forget(self, queue: "ConsumeQueue") -> None:
        """Remove this queue."""
        self.dirty.pop(queue, None)
        self.unflushed.pop(queue, None)
        self.grown.pop(queue, None)

    def take_unflushed(self) -> "Marks":
        """Take over what is not flushed: it no longer counts as unflushed here."""
        taken = Marks(unflushed=self.unflushed, grown=self.grown)
        self.unflushed, self.grown = {}, {}
        return taken


class ConsumeQueue:
    """One queue of one topic. Offsets are queue offsets: ordinals of messages, unless they are named physical.

    It adds itself to the ``marks`` when it has units to write, and when it has written some.
    """

    size_key: ClassVar = "mappedFileSizeConsumeQueue"
    dtype: ClassVar = UNIT_DTYPE
    unit_size: ClassVar = CQ_STORE_UNIT_SIZE

    def __init__(
        self,
        folder: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        owned: bool = True,
        marks: Marks | None = None,
    ) -> None:
        """Opens its files. Raises StoreError, OSError."""
        self.topic = topic
        self.queue_id = queue_id
        self._marks = marks = Marks() if marks is None else marks
        self._disk = marks.disk
        self._queue = MappedFileQueue(folder, file_size, owned, size_key=self.size_key, disk=marks.disk)
        self._pending = bytearray()
        self._end = self._queue.end_offset  # in bytes, without pending units
        self._min = self._queue.first_base or 0
        self._min_physical_offset: int | None = None
        """The log's first offset, until the queue's first message in the log is searched; then None."""
        self._filling_to: int | None = None
        self._kept_from: int | None = None
        """Where the units start that ``recover`` kept after an unclean stop, in bytes. None after a clean one."""
        self.last_message: tuple[int, int, int] | None = None
        """Queue offset, physical offset and size of the last message, as ``recover`` found it."""
        self.max_physical_offset = -1
        self.order_breaches = 0

    def _unit_reader(self) -> "UnitReader":
        return UnitReader(self._queue, self._disk, self.dtype)

    @property
    def max_offset(self) -> int:
        """The queue offset that comes next."""
        return (self._end + len(self._pending)) // self.unit_size

    @property
    def min_offset(self) -> int:
        """The first queue offset whose message the log still has. Raises OSError."""
        return self._min_at // self.unit_size

    @property
    def _min_at(self) -> int:
        if self._min_physical_offset is not None:
            self._min = self._find_min(self._min_physical_offset)
            self._min_physical_offset = None
        return self._min

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self._queue.folder

    @property
    def file_size(self) -> int:
        """Bytes of each file."""
        return self._queue.file_size

    @property
    def is_open(self) -> bool:
        """Whether the queue has open files, so that writing is cheap."""
        return self._queue.has_open_files

    def put(self, queue_offset: int, unit: Unit) -> None:
        """Add the unit of a message at ``queue_offset``. An existing unit is not changed.

        If units are missing before it, blanks take their place, and ``order_breaches`` counts that: offsets of a queue
        never shift.
        """
        if self.has(unit):
            return
        while not self.make_room(queue_offset, self.file_size):
            pass
        if queue_offset * self.unit_size < self._end + len(self._pending):
            return
        self.max_physical_offset = unit.physical_offset + unit.size
        self._add(UNIT.pack(*unit))

    def has(self, unit: Unit) -> bool:
        """Whether the unit of this message, or of a later one, is there already."""
        return unit.physical_offset + unit.size <= self.max_physical_offset

    def follows(self, queue_offset: int) -> bool:
        """Whether ``queue_offset`` is the next one, so that its unit needs no blanks before it."""
        at, is_new = queue_offset * self.unit_size, not self._pending and not len(self._queue)
        return at % self.file_size == 0 if is_new else at == self._end + len(self._pending)

    def put_run(self, queue_offset: int, units: bytes, end: int) -> None:
        """Add consecutive units. ``follows`` must be true for the first. Raises OSError.

        Their messages must be after those that have units; the last one ends at ``end`` in the log.
        """
        if not self._pending and not len(self._queue):
            self._end = self._min = queue_offset * self.unit_size
            self._min_physical_offset = None
        data = memoryview(units)
        while data:
            room = self.file_size - (self._end + len(self._pending)) % self.file_size
            self._add(data[:room])
            data = data[room:]
        self.max_physical_offset = end

    def blank_bytes_before(self, queue_offset: int) -> int:
        """The cost of room for a unit at ``queue_offset``: bytes of blanks, plus a fixed cost for each empty file."""
        at, end = queue_offset * self.unit_size, self._end + len(self._pending)
        if not self._pending and not len(self._queue):
            return at % self.file_size
        holes = self._holes_from(end + -end % self.file_size, at)
        return max(0, at - end - holes * (self.file_size - HOLE_FILE_COST_BYTES))

    def _holes_from(self, base: int, at: int) -> int:
        """How many files from ``base`` to ``at`` need no blanks: neither Java's recovery nor ours reads them."""
        return max(0, (at - at % self.file_size - base) // self.file_size - FILES_WITHOUT_HOLES + 1)

    def begin_without_blanks(self, queue_offset: int) -> None:
        """Start a queue without files at ``queue_offset``, with a hole before it in its file. Raises OSError."""
        at = queue_offset * self.unit_size
        self._create_file(at - at % self.file_size)
        self._end = self._min = at
        self._min_physical_offset = None

    def make_room(self, queue_offset: int, max_bytes: int) -> bool:
        """Fill the queue with blanks up to ``queue_offset``. False if ``max_bytes`` of blanks were not enough.

        Then call it again. Raises OSError.
        """
        at = queue_offset * self.unit_size
        if not self._pending and not len(self._queue):
            self._end = at - at % self.file_size
            self._min, self._min_physical_offset = at, None
            self._filling_to = at
        elif at > self._end + len(self._pending) and at != self._filling_to:
            self.order_breaches += 1
            self._filling_to = at
        while max_bytes > 0 and (end := self._end + len(self._pending)) < at:
            max_bytes -= self._fill_some(end, at, max_bytes)
        if self._end + len(self._pending) < at:
            return False
        self._filling_to = None
        return True

    def _fill_some(self, end: int, at: int, max_bytes: int) -> int:
        """Add blanks in one file, or leave a file as a hole. Returns the cost in bytes."""
        if end % self.file_size == 0 and len(self._queue) and self._holes_from(end, at):
            self.write_pending()
            self._create_file(end)
            self._queue.release()
            self._end = end + self.file_size
            return HOLE_FILE_COST_BYTES
        room = min(at, end - end % self.file_size + self.file_size) - end
        count = min(BLANKS_BATCH, room // self.unit_size, max_bytes // self.unit_size + 1)
        self._add(PRE_BLANK * count)
        return count * self.unit_size

    def _add(self, units: bytes | memoryview) -> None:
        """Add units that are all in one file."""
        if not self._pending:
            self._marks.dirty[self] = None
        self._pending += units
        if (self._end + len(self._pending)) % self.file_size == 0:
            self.write_pending()

    def write_pending(self) -> None:
        """Write the units added since the last call. Raises OSError; then they stay pending."""
        if not self._pending:
            return
        if not len(self._queue) or self._end == self._queue.end_offset:
            self._create_file(self._end)
        mapped_file = self._file(self._end)
        self._marks.unflushed.setdefault(self, self._end)
        mapped_file.write(self._end - mapped_file.base_offset, self._pending)
        self._end += len(self._pending)
        self._pending = bytearray()
        self._queue.trim_open(self._end)

    def _create_file(self, base: int) -> None:
        self._queue.create(base)
        self._marks.unflushed.setdefault(self, base)
        self._marks.grown[self] = None

    def _file(self, at: int) -> MappedFile:
        mapped_file = self._queue.find(at)
        assert mapped_file is not None, "a byte before the queue's end lies in one of its files"
        return mapped_file

    def units(self, offset: int, limit: int) -> Units:
        """Up to ``limit`` units from ``offset`` on, of one file. Empty outside the queue. A view: use it at once."""
        self.write_pending()
        at = offset * self.unit_size
        first = self._queue.first_base
        if first is None or not max(first, self._min_at) <= at < self._end:
            return np.empty(0, dtype=self.dtype)
        return self._units_at(at, limit)

    def _units_at(self, at: int, limit: int) -> Units:
        mapped_file = self._file(at)
        count = min(limit, (min(self._end, mapped_file.end_offset) - at) // self.unit_size)
        return cast(Units, np.frombuffer(mapped_file.segment, self.dtype, count, at - mapped_file.base_offset))

    def unit(self, offset: int) -> Unit | None:
        """The unit at ``offset``, None outside the queue."""
        found = self.units(offset, 1)
        return Unit(*found[0].item()) if len(found) else None

    def unit_of(self, request: DispatchRequest, delay_levels: DelayLevels) -> tuple[int, ...]:
        """The fields of the unit that this queue should have for a message."""
        return Unit(request.physical_offset, request.size, request.tags_code(delay_levels))

    @property
    def last_unit(self) -> tuple[int, ...]:
        """The last unit's fields, first its physical offset. The queue must have units. Raises OSError."""
        with self._unit_reader() as units:
            return tuple(units.read(self._end - self.unit_size, 1)[0].item())

    def next_file_offset(self, offset: int) -> int:
        """The first queue offset of the file after the one that ``offset`` belongs to."""
        at = offset * self.unit_size
        return (at - at % self.file_size + self.file_size) // self.unit_size

    def recover(self, checked_from: int | None = None) -> None:
        """Find the end, and cut what follows it. Raises QueueDamaged, OSError.

        After an unclean stop pass ``checked_from``: the units of all messages before this offset of the log are on
        the disk. Later units are kept up to the first break; the last of them may be torn. If there are very many, all
        later ones are dropped unread. Dispatch makes dropped units again.
        """
        with self._unit_reader() as units:
            self._end = units.end()
            if checked_from is None and units.goes_on_at(self._end):
                raise QueueDamaged(f"{self._queue.folder} has units after its end, {self._end // self.unit_size}")
            if checked_from is not None:
                self._kept_from = units.end_before(checked_from, self._end)
                self._end = units.sound_end(self._kept_from, checked_from, self._end)
            self._cut(self._end, units, looks_after=checked_from is not None)
        if self.max_physical_offset < 0:  # the process died after it created the first file, before it wrote a unit
            self._forget_all()

    def mark_kept_units(self) -> None:
        """Count the later units that ``recover`` has kept as not flushed, and the names of their files.

        The process that wrote them may have left them in the page cache only. A checkpoint after the next flush vouches
        for them.
        """
        if self._kept_from is not None and self._kept_from < self._end:
            self._marks.unflushed[self] = min(self._marks.unflushed.get(self, self._end), self._kept_from)
            self._marks.grown[self] = None

    def find_end(self) -> None:
        """Set the queue's end to the end of its last unit. Changes no file. Raises OSError."""
        with self._unit_reader() as units:
            self._end = units.end()
            self.max_physical_offset = units.last_physical_end(self._end)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of messages at or after ``physical_offset`` in the log. Raises OSError."""
        self.write_pending()
        with self._unit_reader() as units:
            self._cut(units.end_before(physical_offset, self._end), units)
        if self._end <= self._min_at or self.max_physical_offset < 0:
            self._forget_all()

    def _cut(self, end: int, units: "UnitReader", looks_after: bool = True) -> None:
        while len(self._queue) and self._queue.bases[-1] >= end:  # keep no empty file: it could become the only one
            self._remove_last_file()
        self.last_message = units.last_message(end)
        self.max_physical_offset = -1 if self.last_message is None else sum(self.last_message[1:])
        if looks_after and units.has_bytes_after(end):
            mapped_file = self._file(end)
            mapped_file.zero_from(end - mapped_file.base_offset)
            mapped_file.sync()
        if self in self._marks.unflushed:
            self._marks.unflushed[self] = min(self._marks.unflushed[self], end)
        self._end = end
        self._filling_to = None

    def _forget_all(self) -> None:
        while len(self._queue):
            self._remove_last_file()
        self._marks.unflushed.pop(self, None)  # the next first file may begin before the former one
        self._end = self._min = 0
        self._min_physical_offset = None
        self.max_physical_offset = -1

    def _remove_last_file(self) -> None:
        self._queue.remove_last()
        self._marks.grown[self] = None  # a file that comes back has units of messages that may be other ones by then

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Start the queue at its first message that the log still has. The search runs when ``min_offset`` is read."""
        self.write_pending()
        self._min_physical_offset = min_physical_offset

    def _find_min(self, min_physical_offset: int) -> int:
        if self._queue.first_base is None:
            return self._end
        with self._unit_reader() as units:
            return units.first_from(min_physical_offset, self._end)

    def delete_files_before(self, min_physical_offset: int) -> int:
        """Delete files whose messages are all gone from the log, but not the last file. Returns how many."""
        self.write_pending()
        deleted = 0
        with self._unit_reader() as units:
            while len(self._queue) > 1:
                base = self._queue.bases[0]
                if units.last_physical_end(base + self.file_size, base) > min_physical_offset:
                    break
                self._queue.remove_first()
                deleted += 1
        self.correct_min_offset(min_physical_offset)
        return deleted

    def end_before(self, physical_offset: int) -> int:
        """The queue offset after the last message before which all end, in the log, at ``physical_offset`` or earlier.

        In other words, that of the first message that ends after ``physical_offset``; the queue's end without one.
        Raises OSError.
        """
        self.write_pending()
        low, high = self.min_offset, self.max_offset
        if low >= high:
            return high
        last_file = (self._end - 1) // self.file_size * self.file_size // self.unit_size
        at = max(low, high - UNITS_LOOKED_AT, last_file)
        units = self._units_at(at * self.unit_size, high - at)
        ends = units["physical_offset"] + units["size"]
        after = np.flatnonzero((ends > physical_offset) & are_messages(units))
        if not len(after):
            return high
        first = at + int(after[0])
        return first if first > at or at == low else self._end_before(physical_offset, at)

    def _end_before(self, physical_offset: int, end: int) -> int:
        """The same, if the message at ``end`` is one that ends after ``physical_offset``."""
        with self._unit_reader() as units:
            place = units.end_before(physical_offset, end * self.unit_size)
            last = units.last_message(place)
        if last is not None and last[1] + last[2] > physical_offset:
            return last[0]
        return max(self.min_offset, place // self.unit_size)

    def offset_by_time(
        self,
        timestamp: int,
        boundary: BoundaryType,
        times: IMessageTimes,
        end: int | None = None,
    ) -> int:
        """The queue offset at ``timestamp`` (ms), as ``boundary`` says. 0 if the queue is empty.

        Messages from ``end`` on do not count; None for the queue's end. ``times``
        returns STORETIMESTAMP of a physical offset, None if the log has no such message.
        """
        return at_once(self.finding_offset_by_time(timestamp, boundary, times, end))

    def finding_offset_by_time(
        self,
        timestamp: int,
        boundary: BoundaryType,
        times: IMessageTimes,
        end: int | None = None,
    ) -> Steps[int]:
        """Like ``offset_by_time``, in steps that read one message each."""
        end = self.max_offset if end is None else end

        def stored_at(offset: int) -> int | None:
            unit = self.unit(offset) if offset < end else None
            return None if unit is None or unit.is_blank else times.store_timestamp(unit.physical_offset)

        first_after = timestamp + 1 if boundary is BoundaryType.UPPER else timestamp
        low, high = self.min_offset, end
        while low < high:
            middle = (low + high) // 2
            stored = stored_at(middle)
            if stored is None or stored < first_after:
                low = middle + 1
            else:
                high = middle
            yield
        if boundary is BoundaryType.LOWER:
            return low
        after, before = stored_at(low), stored_at(low - 1)
        if before is None:
            return low
        is_before = boundary is BoundaryType.UPPER or after is None or after - timestamp >= timestamp - before
        return low - 1 if is_before else low

    def files_after(self, start: int) -> list[Syncable]:
        """The files that end after this byte. May run in another thread."""
        folder, bases = self._queue.folder, self._queue.bases
        return [UnflushedFile(folder / file_name(base)) for base in bases if base + self.file_size > start]

    def folders(self) -> list[Syncable]:
        """The folders on the way to the files: those of the queue, the topic, all queues and the store."""
        folder = self._queue.folder
        return [UnflushedFolder(each) for each in (folder, *list(folder.parents)[:3])]

    def release_files(self) -> None:
        """Close the files until they are needed again."""
        self._queue.release()

    def close(self) -> None:
        """Close all files. Call ``write_pending`` before."""
        self._queue.close()


class BlankBudget:
    """Limits the blanks of all queues of a log together, because a hostile master invents offsets."""

    def __init__(self) -> None:
        self._taken = 0

    def has_room(self, queue: ConsumeQueue, queue_offset: int, log_bytes: int) -> bool:
        """Whether the queue of a log of this many bytes may have blanks up to ``queue_offset``. Counts them then.

        If not, a queue with units cannot have the message. A queue without files starts there, without blanks. Raises
        OSError.
        """
        blank_bytes = queue.blank_bytes_before(queue_offset)
        if blank_bytes and blank_bytes + self._taken > BLANKS_ALLOWED_BYTES + log_bytes:
            if queue.max_offset:
                return False
            queue.begin_without_blanks(queue_offset)
            return True
        self._taken += blank_bytes
        return True


class UnflushedQueues:
    """Files of very many queues that are to be flushed. The flushing thread lists them."""

    def __init__(self, queues: Marks, disk: Disk) -> None:
        self._queues = queues
        self._disk = disk

    def __len__(self) -> int:
        return len(self._queues.unflushed)

    def files(self) -> list[Syncable]:
        """The files, and the folders with new files."""
        files = [file for queue, start in self._queues.unflushed.items() for file in queue.files_after(start)]
        folders = dict.fromkeys(folder for queue in self._queues.grown for folder in queue.folders())
        return [*files, *folders]

    def sync(self) -> None:
        """Flush every byte written so far to the disk. Raises OSError."""
        self._disk.sync_all(self.files())


class UnitReader:
    """Reads units of a queue's files, one or a few at a time. Only pages that are read enter the page cache.

    Places are byte offsets: unit n of the queue is at n times a unit's size. It is a context, which closes the file.
    """

    def __init__(self, queue: MappedFileQueue, disk: Disk, dtype: np.dtype[np.void] = UNIT_DTYPE) -> None:
        self._queue = queue
        self._dtype = dtype
        self._unit_size = dtype.itemsize
        self._disk = disk
        self._folder = str(queue.folder)
        self._file: Readable | None = None
        self._base = -1
        self._data_end = queue.file_size
        """Where the open file ends in a hole, as far as that is known."""
        self._page, self._page_at = b"", 0

    def __enter__(self) -> "UnitReader":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, base: int) -> Readable:
        if self._file is not None:
            if base == self._base:
                return self._file
            self._file.close()
            self._file = None
        self._file = self._disk.open_pages(f"{self._folder}/{file_name(base)}")
        self._base, self._data_end = base, self._queue.file_size
        return self._file

    def read(self, at: int, count: int) -> Units:
        """Up to ``count`` units of one file. Raises OSError."""
        base = at - at % self._queue.file_size
        count = min(count, (base + self._queue.file_size - at) // self._unit_size)
        data = self._open(base).read(at - base, count * self._unit_size)
        return cast(Units, np.frombuffer(data.ljust(count * self._unit_size, b"\0"), self._dtype))

    def _one(self, at: int) -> tuple[int, int]:
        """Physical offset and size."""
        if not self._page_at <= at <= self._page_at + len(self._page) - self._unit_size:
            self._read_page(at)
        found: tuple[int, int] = PLACE.unpack_from(self._page, at - self._page_at)
        return found

    def _read_page(self, at: int) -> None:
        """Read the page of the unit at ``at``, from its first whole unit on: the next reads are for its neighbours."""
        base = at - at % self._queue.file_size
        file, position = self._open(base), at - base
        page = position - position % PAGE_BYTES
        start = page + -page % self._unit_size
        if position + self._unit_size > page + PAGE_BYTES:  # the unit extends into the next page
            start = position
        self._page_at = base + start
        size = max(self._unit_size, page + PAGE_BYTES - start)
        self._page = file.read(start, size).ljust(at - self._page_at + self._unit_size, b"\0")

    def _can_be_one(self, at: int) -> bool:
        physical_offset, size = self._one(at)
        return physical_offset >= 0 and size > 0

    def _is_message(self, at: int) -> bool:
        physical_offset, size = self._one(at)
        return physical_offset >= 0 and size > 0 and not (physical_offset == 0 and size == PRE_BLANK_SIZE)

    def end(self) -> int:
        """Where the last unit ends, of a message or a blank. Zeros or a hole follow it. Raises OSError.

        After a clean stop only the first unit may have zeros before it. After an unclean stop there may be zeros
        between units too. Then the end of any run of units may be returned.
        """
        for base in reversed(self._queue.bases):
            ranges = list(self._data_ranges(base))
            self._data_end = ranges[-1][1] if ranges else 0
            for start, end in reversed(ranges):
                found = self._last_run_end(base + start - start % self._unit_size, base + end)
                if found is not None:
                    return found
        return self._queue.first_base or 0

    def _data_ranges(self, base: int, position: int = 0) -> Iterator[tuple[int, int]]:
        """Ranges of a file that are not holes. One range if the file system cannot tell holes from data."""
        return self._open(base).data_ranges(position, self._queue.file_size)

    def _last_run_end(self, low: int, end: int) -> int | None:
        high = end + -(end - low) % self._unit_size
        if not self._can_be_one(low):
            return self._last_end_by_reading(low, high)
        while high - low > self._unit_size:
            middle = low + (high - low) // self._unit_size // 2 * self._unit_size
            if self._can_be_one(middle):
                low = middle
            else:
                high = middle
        return low + self._unit_size

    def _last_end_by_reading(self, low: int, high: int) -> int | None:
        while high > low:
            start = max(low, high - BLANKS_BATCH * self._unit_size)
            units = self.read(start, (high - start) // self._unit_size)
            found = np.flatnonzero((units["physical_offset"] >= 0) & (units["size"] > 0))
            if len(found):
                return start + (int(found[-1]) + 1) * self._unit_size
            high = start
        return None

    def goes_on_at(self, at: int) -> bool:
        """Whether the page after the end of the units has nonzero bytes. Raises OSError."""
        if not self._queue.bases or at >= self._queue.end_offset or at % self._queue.file_size == 0:
            return False
        base = at - at % self._queue.file_size
        file, position = self._open(base), at - base
        data = file.read(position, max(0, min(2 * PAGE_BYTES - position % PAGE_BYTES, self._data_end - position)))
        return data != bytes(len(data))

    def has_bytes_after(self, at: int) -> bool:
        """Whether any byte from ``at`` to the end of its file is not zero. Raises OSError."""
        if not self._queue.bases or not self._queue.bases[0] <= at < self._queue.end_offset:
            return False
        base = at - at % self._queue.file_size
        for start, end in self._data_ranges(base, at - base):
            for position in range(start, end, BYTES_BATCH):
                data = self._open(base).read(position, min(BYTES_BATCH, end - position))
                if data != bytes(len(data)):
                    return True
        return False

    def _last_message_before(self, at: int, first: int) -> int | None:
        """The place of the last message's unit between ``first`` and ``at``. None without one."""
        if at > first and self._is_message(at - self._unit_size):  # the usual case
            return at - self._unit_size
        count = 16
        while at > first:
            base = (at - 1) - (at - 1) % self._queue.file_size
            start = max(base, first, at - count * self._unit_size)
            units = self.read(start, (at - start) // self._unit_size)
            found = np.flatnonzero(are_messages(units))
            if len(found):
                return start + int(found[-1]) * self._unit_size
            at, count = start, min(BLANKS_BATCH, 16 * count)
        return None

    def last_message(self, end: int) -> tuple[int, int, int] | None:
        """Queue offset, physical offset and size of the last message with a unit before ``end``. Raises OSError."""
        first = self._queue.first_base
        found = None if first is None else self._last_message_before(end, first)
        return None if found is None else (found // self._unit_size, *self._one(found))

    def last_physical_end(self, end: int, first: int | None = None) -> int:
        """The end, in the log, of the last message with a unit before ``end``. -1 without one. Raises OSError."""
        first = self._queue.first_base if first is None else first
        found = None if first is None else self._last_message_before(end, first)
        return -1 if found is None else sum(self._one(found))

    def end_before(self, physical_offset: int, end: int) -> int:
        """Where the last unit before ``end`` ends whose message is before ``physical_offset`` in the log.

        Raises OSError.
        """
        first = self._queue.first_base
        if first is None:
            return 0
        found = self._last_message_before(self._bisect(physical_offset, end), first)
        return first if found is None else found + self._unit_size

    def sound_end(self, at: int, checked_from: int, end: int) -> int:
        """As ``end_before``, which gave ``at``, but keeps a few later units, if they are sound and in order.

        Raises OSError.
        """
        if end - at > UNITS_PROVED * self._unit_size:
            return at
        found, last = at, checked_from - 1
        while at < end:
            units = self.read(at, (end - at) // self._unit_size)
            for number, (physical_offset, size, *_) in enumerate(units.tolist()):
                if size == PRE_BLANK_SIZE and physical_offset == 0:
                    continue
                if physical_offset <= last or size <= 0:
                    return found
                last, found = physical_offset, at + (number + 1) * self._unit_size
            at += len(units) * self._unit_size
        return found

    def _bisect(self, physical_offset: int, end: int) -> int:
        """The place of the first unit whose message is at or after ``physical_offset``. ``end`` without one.

        Messages are in the order of the log. A blank counts as the message before it.
        """
        first = self._queue.first_base or 0
        low, high = first, end
        while low < high:
            middle = low + (high - low) // self._unit_size // 2 * self._unit_size
            found = self._last_message_before(middle + self._unit_size, low)
            if found is None or self._one(found)[0] < physical_offset:
                low = middle + self._unit_size
            else:
                high = found
        return low

    def first_from(self, physical_offset: int, end: int) -> int:
        """The place of the first unit, not a blank, whose message is at or after ``physical_offset``. Else ``end``.

        Raises OSError.
        """
        at, count = self._bisect(physical_offset, end), 1
        while at < end:  # blanks of missing messages may be there
            units = self.read(at, min(count, (end - at) // self._unit_size))
            found = np.flatnonzero(are_messages(units) & (units["physical_offset"] >= physical_offset))
            if len(found):
                return at + int(found[0]) * self._unit_size
            at, count = at + len(units) * self._unit_size, min(BLANKS_BATCH, 16 * count)
        return end


def are_messages(units: Units) -> npt.NDArray[np.bool_]:
    """Which units are of messages, and not blanks or holes."""
    offsets, sizes = units["physical_offset"], units["size"]
    is_blank = (sizes == PRE_BLANK_SIZE) & (offsets == 0)
    messages: npt.NDArray[np.bool_] = (sizes > 0) & (offsets >= 0) & ~is_blank
    return messages
