"""The messages of a part of one segment, proved as they are read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from isal.isal_zlib import crc32

from rmqha.store.errors import BoundaryError, CorruptLogError, DataLossError
from rmqha.store.log.pagecache import is_hot
from rmqha.store.log.splits import RECORD_START_BYTES, SEARCH_BYTES, Segment, SegmentReader, Split, plausible_starts
from rmqha.wire import layout
from rmqha.wire.columns import Bytes, Mask, Records, hop, lay_out
from rmqha.wire.record import CRC_MASK, IncompleteRecord, RecordError, check_record

Passed = Callable[[Bytes], None]
"""Called with bytes of the log in their order."""

Skipped = Callable[[CorruptLogError, int], None]
"""Called with bytes that are not records, and with the offset where records continue (or the split ends)."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How records are read: in parts of about ``batch_bytes`` of log, and whether their bodies are verified.

    With ``drop_behind``, pages of a cold segment that only this reader has loaded are removed from the page cache.
    """

    batch_bytes: int
    verify_body: bool = False
    drop_behind: bool = False


def read_records(
    segment: Segment,
    split: Split,
    manner: Manner,
    skipped: Skipped | None = None,
    passed: Passed | None = None,
) -> Iterator[Records]:
    """Read all messages of the split, in parts with at least one message each.

    ``segment`` is the one that the split is a part of. ``passed`` gets all bytes of the split, in order, also those
    that are not records. With ``skipped``, bytes that are not records are skipped and reported.

    Raises CorruptLogError; BoundaryError if the last message continues after the split's end; DataLossError if the file
    is too short; OSError.
    """
    behind = None
    if manner.drop_behind and isinstance(segment, SegmentReader) and not is_hot(split.path):
        behind = segment.pages_behind(split.start, split.end)
    reading = _Reading(segment, split, manner.batch_bytes, manner.verify_body)
    while (start := reading.at) < split.end:
        try:
            records = reading.next()
        except CorruptLogError as error:
            if skipped is None:
                raise
            skipped(error, reading.resume_after(error.offset))
            reading.hand_on(start, passed)
            continue
        reading.hand_on(start, passed)
        if behind is not None:
            behind.passed(reading.at - split.base)
        if len(records):
            yield records


def body_crc_agrees(records: Records) -> Mask:
    """Whether the CRC of each body equals BODYCRC. The CRC of an empty body is ignored."""
    begins, lengths = records.body
    view = records.buffer.data
    crcs = [crc32(view[a:b]) for a, b in zip(begins.tolist(), (begins + lengths).tolist(), strict=True)]
    computed = np.array(crcs, np.int64) & CRC_MASK
    agrees: Mask = (computed == records.ints("bodyCRC")) | (lengths == 0)
    return agrees


def explain(buffer: Bytes, base: int, position: int, segment_room: int) -> CorruptLogError:
    """Why there is no sound message at a position of the buffer, ``segment_room`` bytes before the end of its
    segment.
    """
    try:
        check_record(buffer.data, position, base + position, segment_room)
    except RecordError as error:
        return CorruptLogError(base + position, str(error))
    return CorruptLogError(base + position, "it is not the record that was expected here")


class _Reading:
    """The progress of reading a split: ``at`` is the offset reached."""

    def __init__(self, segment: Segment, split: Split, batch_bytes: int, verify_body: bool) -> None:
        self.at = split.start
        self._segment = segment
        self._split = split
        self._batch_bytes = batch_bytes
        self._verify_body = verify_body
        self._problem: CorruptLogError | None = None
        self._buffer, self._buffer_at = np.empty(0, np.uint8), split.start

    def next(self) -> Records:
        """The next messages; none at a blank. Raises like ``read_records``."""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        buffer, records = self._read(self._batch_bytes)
        if not len(records):
            needed = self._needed(buffer)
            if needed is None:
                return records
            buffer, records = self._read(needed)
            if not len(records):
                raise explain(buffer, self.at, 0, self._split.segment_end - self.at)
        self.at = records.end
        return self._proved(records)

    def hand_on(self, start: int, passed: Passed | None) -> None:
        """Pass on the bytes from ``start`` to the current offset. Raises OSError."""
        if passed is None:
            return
        if start == self._buffer_at and self.at - start <= len(self._buffer):
            passed(self._buffer[: self.at - start])
            return
        for at in range(start, self.at, SEARCH_BYTES):
            passed(self._segment.read(at, min(SEARCH_BYTES, self.at - at)))

    def _read(self, size: int) -> tuple[Bytes, Records]:
        """Read that many bytes, and return the whole messages in them. Raises DataLossError if the file ends before."""
        size = min(size, self._split.end - self.at)
        buffer = self._segment.read(self.at, size)
        self._buffer, self._buffer_at = buffer, self.at
        records = lay_out(buffer, self.at, np.array(hop(buffer, 0, len(buffer))[0], np.int64))
        if len(buffer) < size and not len(records):
            raise DataLossError(f"{self._segment.path} ends at {self.at + len(buffer)}, before {self._split.end}")
        return buffer, records

    def _needed(self, buffer: Bytes) -> int | None:
        """How many bytes the next message needs; None for a blank, which is skipped. Raises like ``read_records``."""
        room = self._split.segment_end - self.at
        rest = self._split.end - self.at
        if len(buffer) < layout.BLANK_HEADER.size:
            raise explain(buffer, self.at, 0, room)
        size, magic = layout.BLANK_HEADER.unpack_from(buffer.data)
        if magic == layout.BLANK_MAGIC_CODE and size == room:
            self.at = self._split.end
            return None
        if not self._begins_a_record(buffer):
            raise explain(buffer, self.at, 0, room)
        if size > rest:
            raise self._beyond_the_end(size)
        return int(size)

    def _begins_a_record(self, buffer: Bytes) -> bool:
        return len(plausible_starts(buffer[:RECORD_START_BYTES], self.at)[0]) > 0

    def _beyond_the_end(self, size: int) -> Exception:
        """A message continues after the split. If it is sound, the boundary is wrong; otherwise the message is."""
        room = self._split.segment_end - self.at
        buffer = self._segment.read(self.at, min(size, room))
        try:
            check_record(buffer.data, 0, self.at, room)
        except IncompleteRecord:
            return DataLossError(
                f"{self._segment.path} ends at {self.at + len(buffer)}, within a record of {size} bytes"
            )
        except RecordError as error:
            return CorruptLogError(self.at, str(error))
        return BoundaryError(self.at, self._split.end)

    def _proved(self, records: Records) -> Records:
        """The messages before the first one with a wrong CRC. That one is the next problem."""
        if not self._verify_body:
            return records
        sound = body_crc_agrees(records)
        if sound.all():
            return records
        count = int(np.argmin(sound))
        self.at = int(records.physical_offset[count])
        self._problem = CorruptLogError(self.at, "its body is not what BODYCRC says")
        return records.take(slice(0, count))

    def resume_after(self, offset: int) -> int:
        """The next record whose lengths add up and that another record, or the end, follows; or the end."""
        end = self._split.end
        start = self._segment.find_start(offset + 1, end)
        while start is not None and not self._is_chained(start):
            start = self._segment.find_start(start + 1, end)
        self.at = end if start is None else start
        return self.at

    def _is_chained(self, start: int) -> bool:
        room = self._split.segment_end - start
        size, _ = layout.BLANK_HEADER.unpack(self._segment.read(start, layout.BLANK_HEADER.size).data)
        if size > self._split.end - start:
            return False
        head = self._segment.read(start, min(size + RECORD_START_BYTES, room))
        if not len(lay_out(head, start, np.zeros(1, np.int64))):
            return False
        follows = start + size
        if follows == self._split.end:
            return True
        next_size, magic = layout.BLANK_HEADER.unpack_from(head.data, size)
        if magic == layout.BLANK_MAGIC_CODE and next_size == room - size:
            return True
        return self._segment.find_start(follows, follows + 1) is not None
