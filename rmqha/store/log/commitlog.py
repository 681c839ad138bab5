"""The commit log: segments as one continuous sequence of bytes, of which a prefix is verified to be records."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from zope.interface import implementer

from rmqha.store.errors import StoreError
from rmqha.store.interfaces import Call, ICommitLog
from rmqha.store.log.derivedend import DerivedEnd
from rmqha.store.log.mappedfile import DISK, Disk, MappedFile, MappedFileQueue, file_name
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Record, encode_blank, encode_record
from rmqha.wire.scan import scan_records
from rmqha.wire.scanned import Scan

MIN_SEGMENT_BYTES = 91 + END_FILE_MIN_BLANK_LENGTH
"""The smallest message, and the blank after it."""
DEFAULT_SEGMENT_SIZE = 1024 * 1024 * 1024
REWRITE_BYTES = 1 << 20


@implementer(ICommitLog)
class CommitLog:
    """The log in a folder of segments. When it is opened, all bytes of its files count as written, until recovery.

    With ``owned`` false the files are only read.
    """

    def __init__(
        self, folder: Path, segment_size: int = DEFAULT_SEGMENT_SIZE, owned: bool = True, disk: Disk = DISK
    ) -> None:
        """Raises StoreError if the folder holds anything but segments of this size."""
        self.disk = disk
        self._queue = MappedFileQueue(folder, segment_size, writable=owned, syncs_parent=True, disk=disk)
        self._listeners: tuple[Call, ...] = ()
        self._tail: MappedFile | None = None  # the segment last appended to
        self._start: int = self._queue.first_base or 0
        self.max_offset: int = self._queue.end_offset
        self.verified_offset: int = self._start
        self.flushed_offset: int = self._start
        self.durable_offset: int = self._start
        """The end of the last verified record that is on the disk. ``flushed_offset`` may be inside a record."""
        self.derived_end = DerivedEnd(self._start)
        """How far queues and index are on the disk. Each new dispatcher puts its own here."""
        self.truncations = 0
        self.begun: Call = lambda: None
        """Called after ``begin_at``."""
        self._untouched_end = self.max_offset
        """Nothing before it was written since the log was opened, so segments before it may close without a flush."""
        self.last_message_offset: int | None = None
        self.last_store_timestamp: int = 0

    @property
    def folder(self) -> Path:
        """The folder of segments."""
        return self._queue.folder

    @property
    def segment_size(self) -> int:
        """The size of every segment in bytes (mappedFileSizeCommitLog)."""
        return self._queue.file_size

    @segment_size.setter
    def segment_size(self, size: int) -> None:
        if len(self._queue):
            raise StoreError(f"the log has segments of {self.segment_size} bytes already")
        self._queue.file_size = size

    @property
    def segment_bases(self) -> list[int]:
        """The start offsets of the segments, ascending."""
        return self._queue.bases

    @property
    def min_offset(self) -> int:
        """The first offset that the log holds."""
        return self._start

    def begin_at(self, offset: int) -> None:
        """Make an empty log start at ``offset``. The bytes before it in its segment read as zeros."""
        if self.max_offset != self._start:
            raise StoreError(f"the log holds bytes from {self._start} to {self.max_offset}")
        while len(self._queue):
            self._remove_last()
        base = offset - offset % self.segment_size
        if offset != base:
            self._queue.create(base)
        self._start = self._untouched_end = base
        self.max_offset = offset
        self.verified_offset = self.flushed_offset = self.durable_offset = base
        self.begun()

    def append_data(self, offset: int, *pieces: bytes | memoryview) -> None:
        """Write raw bytes, as a slave receives them, at the log's end."""
        size = sum(map(len, pieces))
        if offset != self.max_offset:
            raise StoreError(f"bytes for {offset} do not follow {self.max_offset}")
        if offset % self.segment_size + size > self.segment_size:
            raise StoreError(f"{size} bytes at {offset} cross a segment's end; segments have {self.segment_size} bytes")
        if not size:
            return
        self._write(self._file_for_append(), offset, *pieces)
        self.max_offset += size

    def append(self, record: Record) -> int:
        """Write one message at the log's end, in the next segment if this one has too little room. Returns its offset.

        PHYSICALOFFSET is filled in. Raises RecordError, StoreError if the record is larger than a segment, OSError.
        """
        if self.verified_offset != self.max_offset:
            raise StoreError(f"the log's last {self.max_offset - self.verified_offset} bytes are not a complete record")
        room = self.segment_size - self.max_offset % self.segment_size
        if record.total_size + END_FILE_MIN_BLANK_LENGTH > room:
            if record.total_size + END_FILE_MIN_BLANK_LENGTH > self.segment_size:
                raise StoreError(f"a record of {record.total_size} bytes does not fit a segment of {self.segment_size}")
            self._append_blank(room)
        offset = self.max_offset
        self.append_data(offset, encode_record(replace(record, physical_offset=offset)))
        self._advance(Scan(self.max_offset, 1, offset, record.store_timestamp))
        return offset

    def append_records(self, data: bytes, store_timestamp: int, last_at: int = 0) -> int:
        """Write encoded records that fit the last segment. Returns the offset of the first.

        All of them have this ``store_timestamp``. One of them starts at ``last_at`` in ``data``. Raises OSError.
        """
        offset = self.max_offset
        self._write(self._file_for_append(), offset, data)
        self.max_offset = self.verified_offset = offset + len(data)
        self.last_message_offset, self.last_store_timestamp = offset + last_at, store_timestamp
        for log_grew in self._listeners:
            log_grew()
        return offset

    def roll(self) -> None:
        """End the last segment with a blank. Raises OSError."""
        self._append_blank(self.segment_size - self.max_offset % self.segment_size)

    def first_segment_time(self) -> float:
        """When the first segment was last written to, in seconds since the epoch. Raises OSError."""
        return self.disk.modified_time(self.folder / file_name(self._queue.bases[0]))

    def _remove_last(self) -> None:
        self._tail = None
        self._queue.remove_last()

    @property
    def needs_first_segment(self) -> bool:
        """Whether messages of the first segment may be in no queue and no index on the disk: then it must stay.

        If power is lost, a queue without its last units starts again at numbers that other messages had.
        """
        return self._queue.bases[0] + self.segment_size > self.derived_end.flushed

    def delete_first_segment(self) -> None:
        """Delete the first segment, so that the log starts at the next one. Raises OSError."""
        self._queue.remove_first()
        self._start = self._queue.bases[0]

    def drop_deleted(self) -> None:
        """Forget the first segments, if another process has deleted them: the log is only read. Raises OSError."""
        self._start = max(self._start, self._queue.drop_deleted())
        self.max_offset = max(self.max_offset, self._start)

    def _append_blank(self, size: int) -> None:
        """Fill the last segment with a blank. The next segment is created first, so that recovery keeps the blank."""
        offset = self.max_offset
        if self._queue.end_offset == offset + size:  # otherwise an earlier, failed attempt has created it
            self._queue.create(offset + size)
        self._write(self._find(offset), offset, encode_blank(size))
        self.max_offset += size
        self._advance(Scan(self.max_offset))

    @staticmethod
    def _write(mapped_file: MappedFile, offset: int, *pieces: bytes | memoryview) -> None:
        """Write all pieces. If that fails, zero what was written of them. Raises OSError."""
        try:
            mapped_file.write(offset - mapped_file.base_offset, *pieces)
        except OSError:
            with suppress(OSError):
                mapped_file.zero_from(offset - mapped_file.base_offset)
            raise

    def _file_for_append(self) -> MappedFile:
        tail = self._tail
        if tail is None or not tail.holds(self.max_offset):
            base = self.max_offset - self.max_offset % self.segment_size
            self._trim_open()
            self._queue.flush_surplus(base)
            tail = self._tail = self._queue.find(base) or self._queue.create(base)
        return tail

    def _trim_open(self) -> None:
        self._queue.trim_open(max(self.flushed_offset, self._untouched_end))

    def _find(self, offset: int) -> MappedFile:
        tail = self._tail
        if tail is not None and tail.holds(offset):  # nearly always
            return tail
        mapped_file = self._queue.find(offset)
        if mapped_file is None:
            raise StoreError(f"no segment holds {offset}; the log is {self.min_offset} to {self.max_offset}")
        self._trim_open()
        return mapped_file

    def verify(self) -> Scan:
        """Verify what was written since the last call."""
        found = self.scan(self.verified_offset)
        self._advance(found)
        return found

    def scan(self, start: int, limit: int | None = None) -> Scan:
        """Verify the records from ``start`` to ``limit``, without changing anything. Raises OSError."""
        limit = self.max_offset if limit is None else min(limit, self.max_offset)
        result = Scan(end=start)
        while result.end < limit and result.problem is None:
            mapped_file = self._find(result.end)
            segment_end = mapped_file.end_offset
            found = scan_records(mapped_file.segment, mapped_file.base_offset, result.end, min(limit, segment_end))
            result = found if result.end == start else result.then(found)
            if found.end < segment_end:
                break
        return result

    def _advance(self, found: Scan) -> None:
        if found.end == self.verified_offset:
            return
        self.verified_offset = found.end
        if found.last_message is not None:
            self.last_message_offset = found.last_message
            self.last_store_timestamp = found.store_timestamp
        for log_grew in self._listeners:
            log_grew()

    def get_data(self, offset: int, limit_bytes: int) -> memoryview | None:
        """Up to ``limit_bytes`` written bytes at ``offset``, within one segment; None if ``offset`` is not written."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        mapped_file = self._find(offset)
        position = offset - mapped_file.base_offset
        end = min(position + limit_bytes, self.max_offset - mapped_file.base_offset, mapped_file.file_size)
        return memoryview(mapped_file.segment)[position:end]

    def select(self, offset: int, size: int) -> memoryview | None:
        """Exactly ``size`` bytes at ``offset``; None if they are not all written, or cross a segment's end."""
        view = self.get_data(offset, size)
        return view if view is not None and len(view) == size else None

    def select_from(self, offset: int, size: int) -> memoryview | None:
        """As ``select``, with all written bytes that follow in the segment."""
        view = self.get_data(offset, self.segment_size)
        return view if view is not None and 0 <= size <= len(view) else None

    def truncate(self, offset: int) -> None:
        """Remove all bytes from ``offset`` on, durably, and delete later segments. Waits for the disk.

        Raises StoreError if ``offset`` is outside the log, OSError.
        """
        if not self.min_offset <= offset <= self.max_offset:
            raise StoreError(f"{offset} is outside the log, {self.min_offset} to {self.max_offset}")
        removes = bool(self._queue.bases) and self._queue.bases[-1] > offset
        while len(self._queue) and self._queue.bases[-1] > offset:
            self._remove_last()
        if removes:
            self.disk.sync_folder(self.folder)
        mapped_file = self._queue.find(offset)
        if mapped_file is not None:
            mapped_file.zero_from(offset - mapped_file.base_offset)
            mapped_file.sync()
        self.truncations += 1
        self._queue.flushed_early.clear()
        self.max_offset = offset
        self.verified_offset = min(self.verified_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self.durable_offset = min(self.durable_offset, offset)
        self._untouched_end = min(self._untouched_end, offset)
        if self.last_message_offset is not None and self.last_message_offset >= offset:
            self.last_message_offset, self.last_store_timestamp = None, 0

    def trust(self, found: Scan) -> None:
        """End the log at ``found.end``, and take everything before it as verified: recovery has checked it."""
        self.truncate(found.end)
        self._advance(found)
        self.prepare_next_segment()

    def prepare_next_segment(self) -> None:
        """Create the next segment if the last one is full.

        Without it a Java broker's recovery would remove the blank at the end of the full one (spec/ha.md 14 row 23).
        """
        if len(self._queue) and self.max_offset == self._queue.end_offset:
            self._queue.create(self.max_offset)

    def set_aside(self, folder: Path) -> None:
        """Move the segments to ``folder``, so that the log is empty. Raises OSError."""
        self._tail = None
        self._queue.close()
        if self.disk.exists(self.folder):
            self.disk.rename(self.folder, folder)
            self.disk.sync_folder(folder.parent)
        self._queue = MappedFileQueue(self.folder, self.segment_size, syncs_parent=True, disk=self.disk)
        self.truncations += 1
        self._start = self.max_offset = self.verified_offset = self._untouched_end = 0
        self.flushed_offset = self.durable_offset = 0
        self.last_message_offset, self.last_store_timestamp = None, 0

    def unflushed_files(self) -> list[MappedFile]:
        """The segments with bytes from ``flushed_offset`` to ``max_offset`` that are not on disk yet."""
        start = self.flushed_offset - self.flushed_offset % self.segment_size
        bases = [base for base in self._queue.bases if start <= base < self.max_offset]
        return [self._find(base) for base in bases if base not in self._queue.flushed_early]

    def sync(self) -> None:
        """Flush the whole log, and wait for the disk. Raises OSError."""
        start = self.flushed_offset - self.flushed_offset % self.segment_size
        for base in self._queue.bases:
            if start <= base < self.max_offset:  # open one at a time: right after opening these are all segments
                self._find(base).sync()
        if self.disk.exists(self.folder):
            self.disk.sync_folder(self.folder)
        self.flushed_offset, self.durable_offset = self.max_offset, self.verified_offset

    def write_again(self, start: int, end: int | None = None) -> None:
        """Write the log's bytes from ``start`` to ``end``, or all, once more, for a flush to bring to the disk.

        After a flush that failed, the kernel may take them for flushed although the disk does not have them. Raises
        OSError.
        """
        end = self.max_offset if end is None else min(end, self.max_offset)
        while start < end:
            data = self.get_data(start, min(end - start, REWRITE_BYTES - start % REWRITE_BYTES))
            assert data is not None, "they were just found"
            if data != bytes(len(data)):
                self._find(start).write(start % self.segment_size, bytes(data))
            start += len(data)

    def stale_end(self, offset: int) -> int:
        """The offset after the last byte other than zero in the segments from ``offset`` on; ``offset`` if none."""
        for base in reversed(self._queue.bases):
            if base + self.segment_size <= offset:
                break
            end = self._find(base).nonzero_end(max(0, offset - base))
            if end is not None:
                return base + end
        return offset

    def data_ranges(self, start: int, limit: int) -> Iterator[tuple[int, int]]:
        """Ranges from ``start`` to before ``limit`` that are not holes of a sparse file; each is in one segment.

        Raises OSError.
        """
        size = self.segment_size
        first = max(self._start, start - start % size)
        for base in range(first, min(limit, self._queue.end_offset), size):
            for low, high in self._find(base).data_ranges(max(0, start - base)):
                if base + low >= limit:
                    break
                yield base + low, min(base + high, limit)

    def segment_from(self, offset: int) -> tuple[int, memoryview]:
        """The start of the segment that holds ``offset``, and all its bytes. Raises StoreError, OSError."""
        mapped_file = self._find(offset)
        return mapped_file.base_offset, memoryview(mapped_file.segment)

    def mend(self, offset: int, data: bytes | memoryview) -> None:
        """Write these bytes at ``offset``, within one segment, which is created if it is the next one. Raises OSError.

        Repairs use this while nothing else uses the log. ``sync_range`` makes the bytes durable.
        """
        base = offset - offset % self.segment_size
        if self._queue.find(base) is None:
            self._queue.create(base)
            self.max_offset = self._queue.end_offset
        self._find(base).write(offset - base, data)

    def take_back(self, offset: int, bases: list[int]) -> None:
        """Undo ``mend``, durably: only zeros follow ``offset``; the segments are those at ``bases``. Raises OSError."""
        while len(self._queue) and self._queue.bases[-1] not in bases:
            self._remove_last()
        for base in self._queue.bases:
            if base + self.segment_size > offset:
                segment = self._find(base)
                segment.zero_from(max(0, offset - base))
                segment.sync()
        self.disk.sync_folder(self.folder)
        self.max_offset = self._queue.end_offset

    def sync_range(self, start: int, end: int) -> None:
        """Flush the segments from ``start`` to before ``end``, and the folder with their names. Raises OSError."""
        for base in self._queue.bases:
            if start < base + self.segment_size and base < end:
                self._find(base).sync()
        self.disk.sync_folder(self.folder)

    def subscribe(self, log_grew: Call) -> Call:
        """Call ``log_grew`` after each growth of the verified prefix, until the returned function is called."""
        self._listeners = (*self._listeners, log_grew)  # a new tuple, because the old one may be in use

        def unsubscribe() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not log_grew)

        return unsubscribe

    def close(self) -> None:
        """Close all files, without a flush."""
        self._tail = None
        self._queue.close()


def segment_size_of(folder: Path, configured: int | None, disk: Disk = DISK) -> int:
    """The size of the segments in ``folder``. If there are none yet, the configured size, or 1 GiB.

    Raises StoreError if the segments' size differs from the configured one, or is too small for a message.
    """
    counts = Counter(size for _, size in disk.list_segments(folder) if size)
    if not counts:
        return configured or DEFAULT_SEGMENT_SIZE
    size = max(counts, key=lambda size: (counts[size], size))  # a truncated segment is then reported as such
    if configured is not None and configured != size:
        raise StoreError(f"segments of {folder} have {size} bytes; mappedFileSizeCommitLog says {configured}")
    if size < MIN_SEGMENT_BYTES:
        raise StoreError(
            f"segments of {folder} have {size} bytes, too few for a message: they were truncated. Replace them with a "
            "copy from a backup or a replica"
        )
    return size
