"""Batch consume queues of RocketMQ 5.x: for each batch of a topic's queue, where it is in the log (spec/store.md 6).

::

    a unit: 0 i64 physical offset   8 i32 size           12 i64 tagsCode       20 i64 store time (ms)
           28 i64 base offset      36 i16 batch size     38 i32 compacted offset (-1)   42 i32 reserved (0)

Topics with ``queue.type=BatchCQ`` have them. One record of such a topic may hold a batch of messages (INNER_BATCH). It
then takes as many queue offsets as the batch has messages, from the base offset on. Units follow each other without
gaps, so the place of a unit does not tell its queue offset: it is found by bisection.
"""

from struct import Struct
from typing import ClassVar, NamedTuple

import numpy as np

from rmqha.kit.steps import Steps
from rmqha.store.derived.consumequeue import BoundaryType, ConsumeQueue, Unit
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.interfaces import IMessageTimes
from rmqha.wire.delay import DelayLevels

BATCH_QUEUE_FOLDER = "batchconsumequeue"
BATCH_UNIT = Struct(">qiqqqhii")
BATCH_UNIT_SIZE = 46
assert BATCH_UNIT.size == BATCH_UNIT_SIZE
BATCH_UNIT_DTYPE = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base_offset", ">i8"),
        ("batch_size", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
NOT_COMPACTED = -1


class BatchUnit(NamedTuple):
    """Where one batch is in the log, when it was stored (ms), and which queue offsets it takes."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    batch_size: int
    compacted_offset: int = NOT_COMPACTED
    reserved: int = 0

    @property
    def end_offset(self) -> int:
        """The queue offset after its last message."""
        return self.base_offset + self.batch_size


def batch_unit_of(request: DispatchRequest, delay_levels: DelayLevels) -> BatchUnit:
    """The unit of a message of a topic with batch consume queues. Raises ValueError if its properties are invalid."""
    base_offset, batch_size = request.batch
    return BatchUnit(
        request.physical_offset,
        request.size,
        request.tags_code(delay_levels),
        request.store_timestamp,
        base_offset,
        batch_size,
    )


class BatchConsumeQueue(ConsumeQueue):
    """One queue of a topic with batch consume queues. ``put_batch`` adds units, in the order of the log."""

    size_key: ClassVar = "mapperFileSizeBatchConsumeQueue"
    dtype: ClassVar = BATCH_UNIT_DTYPE
    unit_size: ClassVar = BATCH_UNIT_SIZE

    _next_offset = 0

    @property
    def max_offset(self) -> int:
        """The queue offset that comes next."""
        return self._next_offset

    @property
    def min_offset(self) -> int:
        """The first queue offset whose batch the log still has; the next one without batches. Raises OSError."""
        self.write_pending()
        return self._unit_at(self._min_at).base_offset if self._min_at < self._end else self._next_offset

    def put_batch(self, unit: BatchUnit) -> bool:
        """Add the unit of a batch. A batch that has its unit is ignored. Raises OSError.

        Returns False if the queue has later offsets already: its messages would come in another order.
        """
        if unit.physical_offset + unit.size <= self.max_physical_offset:
            return True
        if unit.base_offset < self._next_offset:
            return False
        self._add(BATCH_UNIT.pack(*unit))
        self.max_physical_offset = unit.physical_offset + unit.size
        self._next_offset = unit.end_offset
        return True

    def batches(self, offset: int, limit: int) -> list[BatchUnit]:
        """Up to ``limit`` batches of one file, from the one with ``offset`` on. Empty outside the queue.

        Raises OSError.
        """
        at = self._place_of(offset)
        if at is None:
            return []
        return [BatchUnit(*unit) for unit in self._units_at(at, limit).tolist()]

    def _place_of(self, offset: int) -> int | None:
        """Where the unit of the batch with this queue offset is, else of the next batch. None outside the queue."""
        self.write_pending()
        low, high = self._min_at, self._end
        if low >= high or not self._unit_at(low).base_offset <= offset < self._next_offset:
            return None
        while high - low > BATCH_UNIT_SIZE:
            middle = low + (high - low) // BATCH_UNIT_SIZE // 2 * BATCH_UNIT_SIZE
            if self._unit_at(middle).base_offset <= offset:
                low = middle
            else:
                high = middle
        return low if offset < self._unit_at(low).end_offset else low + BATCH_UNIT_SIZE

    def _unit_at(self, at: int) -> BatchUnit:
        mapped_file = self._file(at)
        return BatchUnit(*BATCH_UNIT.unpack_from(mapped_file.segment, at - mapped_file.base_offset))

    def batch(self, offset: int) -> BatchUnit | None:
        """The batch with this queue offset, None if the queue has none. Raises OSError."""
        found = self.batches(offset, 1)
        return found[0] if found and found[0].base_offset <= offset else None

    def unit(self, offset: int) -> Unit | None:
        """Where the batch with this queue offset is in the log, None if the queue has none. Raises OSError."""
        found = self.batch(offset)
        return None if found is None else Unit(*found[:3])

    def unit_of(self, request: DispatchRequest, delay_levels: DelayLevels) -> tuple[int, ...]:
        """The fields of the unit that this queue should have for a message."""
        try:
            return batch_unit_of(request, delay_levels)
        except ValueError:
            return ()

    def next_file_offset(self, offset: int) -> int:
        """Where a read continues that found nothing at ``offset``."""
        return self._next_offset

    def recover(self, checked_from: int | None = None) -> None:
        """As ``ConsumeQueue.recover``. Afterwards ``last_message`` has the base offset of the last batch."""
        super().recover(checked_from)
        self._read_end()

    def find_end(self) -> None:
        """Set the queue's end to the end of its last unit. Changes no file. Raises OSError."""
        super().find_end()
        self._read_end()

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of batches at or after ``physical_offset`` in the log. Raises OSError."""
        super().truncate(physical_offset)
        self._read_end()

    def _read_end(self) -> None:
        self._next_offset = 0
        if self.max_physical_offset >= 0:
            last = self._unit_at(self._end - BATCH_UNIT_SIZE)
            self._next_offset = last.end_offset
            if self.last_message is not None:
                self.last_message = (last.base_offset, *self.last_message[1:])

    def end_before(self, physical_offset: int) -> int:
        """The base offset of the first batch that ends after ``physical_offset`` in the log; the end without one.

        Raises OSError.
        """
        self.write_pending()
        low, high = self._min_at, self._end
        while low < high:
            middle = low + (high - low) // BATCH_UNIT_SIZE // 2 * BATCH_UNIT_SIZE
            unit = self._unit_at(middle)
            if unit.physical_offset + unit.size > physical_offset:
                high = middle
            else:
                low = middle + BATCH_UNIT_SIZE
        return self._unit_at(low).base_offset if low < self._end else self._next_offset

    def finding_offset_by_time(
        self,
        timestamp: int,
        boundary: BoundaryType,
        times: IMessageTimes,
        end: int | None = None,
    ) -> Steps[int]:
        """The base offset of the batch at ``timestamp`` (ms), as ``boundary`` says. 0 if the queue is empty."""
        found = yield from super().finding_offset_by_time(timestamp, boundary, times, end)
        unit = self.batch(found)
        return found if unit is None else unit.base_offset
