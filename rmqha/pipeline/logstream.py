"""A stream of a log: its offsets, and the partitions of its batches.

An offset is always the true start of a record. It contains the store and the epoch in which it was seen, so a log that
took confirmed bytes back, or that is another log, is never continued silently.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import log
from rmqha.pipeline.views import ViewReader
from rmqha.store.errors import DataLossError
from rmqha.store.log.splits import Split

NO_LIMIT_BYTES = 1 << 62

Offset = dict[str, Any]


class SplitPartition(InputPartition):
    """One split, for one task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class StorePartition(InputPartition):
    """The whole store, for one task."""

    def __init__(self) -> None:
        super().__init__(None)


def read_partition(reader: ViewReader, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. If there are no partitions, Spark makes one of its own, which has no rows."""
    if isinstance(partition, SplitPartition):
        yield from reader.read(partition.split)
    elif isinstance(partition, StorePartition):
        yield from reader.read_store()


def taking_turns(partitions: Sequence[Sequence[InputPartition]]) -> list[InputPartition]:
    """The partitions of several brokers, one of each in turn: so tasks that run together read different brokers."""
    return [one for turn in zip_longest(*partitions) for one in turn if one is not None]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log as it grows."""

    boundaries: Boundaries | None = Boundaries.HOP

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader
        self._initial: Offset | None = None
        self._known_end = 0
        self._available_now: int | None = None
        self._waiting_since: float | None = None

    def initialOffset(self) -> Offset:
        """Raises OptionError, StoreError, OSError."""
        if self._initial is None:
            plan = self._open()
            asked = self._reader.options.starting_offset
            if isinstance(asked, int) and asked > plan.end:
                raise OptionError(f"startingOffset={asked}: {plan.name} ends at {plan.end} (latest starts there)")
            self._initial = self.offset_of(plan, plan.start())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """One limit stands for all of them; ``latestOffset`` knows them from the options."""
        options = self._reader.options
        limits = (options.max_bytes_per_trigger, options.max_records_per_trigger, options.max_files_per_trigger)
        if not any(limits) and not options.min_bytes_per_trigger:
            return ReadAllAvailable()
        return ReadMaxBytes(options.max_bytes_per_trigger or NO_LIMIT_BYTES)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; ``start`` if it must wait. Raises StoreError, OSError."""
        plan = self._open()
        at = self._resume(plan, start)
        if self._available_now is not None:
            plan = replace(plan, end=min(plan.end, self._available_now))
        if plan.end < start["offset"]:
            return start  # with its epoch: once the log is as long again, that tells that it is another
        if plan.end <= at:
            return self.offset_of(plan, at)
        if isinstance(limit, ReadAllAvailable):
            return self.offset_of(plan, plan.end)
        if self._waits_for_more(plan.end - at):
            return start
        options = self._reader.options
        reached = plan.advance(
            at, options.max_bytes_per_trigger, options.max_records_per_trigger, options.max_files_per_trigger
        )
        return self.offset_of(plan, reached)

    def reportLatestOffset(self) -> Offset:
        """The end of the log. Raises StoreError, OSError."""
        plan = self._open()
        return self.offset_of(plan, plan.end)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Raises StoreError, OSError."""
        plan = self._open()
        at, stop = self._resume(plan, start), end["offset"]
        if stop > plan.end:
            self._lost(f"{plan.name} ends at {plan.end}; the batch ends at {stop}")
            stop = plan.end
        stop = self._resume(plan, {**end, "offset": stop})
        return [SplitPartition(split) for split in plan.splits(at, stop, self.boundaries)] if at < stop else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises StoreError, OSError."""
        return read_partition(self._reader, partition)

    def prepareForTriggerAvailableNow(self) -> None:
        """All batches together read what the log contains now. Raises StoreError, OSError."""
        self._available_now = self._open().end

    def _open(self) -> LogPlan:
        plan = open_log(self._reader.options, self._known_end)
        self._known_end = plan.end
        return plan

    def _waits_for_more(self, available: int) -> bool:
        """Whether fewer than ``minBytesPerTrigger`` are new, and ``maxTriggerDelay`` has not passed yet."""
        options = self._reader.options
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        waits = (
            self._available_now is None
            and available < options.min_bytes_per_trigger
            and now - self._waiting_since < options.max_trigger_delay
        )
        if not waits:
            self._waiting_since = None
        return waits

    def _resume(self, plan: LogPlan, start: Offset) -> int:
        """Where to continue from a checkpoint's offset. Raises DataLossError if the log is not the one that was
        read.
        """
        at: int = start["offset"]
        state = plan.state
        if state is None and start["storeId"]:
            self._lost(
                f"{plan.name} has no state of a node any more; the checkpoint belongs to store {start['storeId']}"
            )
            return plan.record_start(max(at, plan.min_offset))
        if state is not None and start["storeId"] and start["storeId"] != state.store_id:
            self._lost(f"{plan.name} is store {state.store_id}; the checkpoint belongs to store {start['storeId']}")
            return plan.record_start(max(at, plan.min_offset))
        if state is not None and start["epoch"] and state.took_back(start["epoch"], at):
            self._lost(f"{plan.name} has taken back confirmed messages; the checkpoint's offset {at} may be among them")
            return plan.record_start(max(at, plan.min_offset))
        if at > plan.end:
            self._lost(f"{plan.name} ends at {plan.end}; the checkpoint is at {at}")
        elif at < plan.min_offset:
            self._lost(f"{plan.name} starts at {plan.min_offset}; the checkpoint is at {at}")
            return plan.min_offset
        return plan.whole_records(at)  # checkpoints of earlier versions may be inside a record

    def _lost(self, problem: str) -> None:
        if self._reader.options.fail_on_data_loss:
            raise DataLossError(problem)
        log.warning("%s", problem)

    def offset_of(self, plan: LogPlan, offset: int) -> Offset:
        """An offset for the checkpoint. Without a node of ours, store and epoch are unknown."""
        state = plan.state
        return {
            "offset": offset,
            "storeId": "" if state is None else state.store_id,
            "epoch": 0 if state is None else state.epoch,
        }
