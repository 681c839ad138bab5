"""Spark's source for a log: ``spark.read.format("rmqha")`` and ``spark.readStream.format("rmqha")``.

This module only connects the others: ``options`` parses, ``plan`` and ``views`` read. A stream's offset is always the
true start of a record. It contains the store and the epoch in which it was seen, so a log that took confirmed bytes
back, or that is another log, is never continued silently.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmqha.kit.times import EPOCH
from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from rmqha.pipeline.errors import DataLossError, OptionError
from rmqha.pipeline.network.address import is_network
from rmqha.pipeline.network.brokers import check_offsets, open_logs
from rmqha.pipeline.options import INT64_RANGE, Boundaries, Options, Selection, View, parse_options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.schema import to_ddl
from rmqha.pipeline.segments import Split, log
from rmqha.pipeline.views import ViewReader, view_reader, view_schema

NO_LIMIT_BYTES = 1 << 62
SELECTED_BY_VALUE = {"topic": "topics", "queueId": "queue_ids", "tags": "tags"}
SELECTED_BY_RANGE = {
    "queueOffset": "queue_offsets",
    "bornTimestamp": "born_timestamps",
    "storeTimestamp": "store_timestamps",
}
PHYSICAL_OFFSET = "physicalOffset"
NO_SINK = (
    "format('rmqha') only reads. format('rmqha_archive') archives the rows of view=splits, and 'rmqha job replay' "
    "sends stored messages to a topic"
)
MICROSECOND = timedelta(microseconds=1)

Offset = dict[str, Any]
Range = tuple[int, int]
Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


class RmqhaDataSource(DataSource):
    """The commit log of a RocketMQ store, as rows."""

    @classmethod
    def name(cls) -> str:
        return "rmqha"

    @property
    def _parsed(self) -> Options:
        return parse_options(dict(self.options))

    def schema(self) -> str:
        """Raises OptionError, and StoreError and OSError if the type of bodies is inferred."""
        return to_ddl(view_schema(self._parsed))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError."""
        return LogReader(self._view_reader(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises OptionError."""
        reader = self._view_reader(schema)
        if reader.is_of_store:
            raise OptionError(f"view={reader.options.view.value} shows a store as it is now: read it in a batch query")
        if is_network(reader.options.path):
            from rmqha.pipeline.clusterstream import ClusterStreamReader

            return ClusterStreamReader(reader)
        return LogStreamReader(reader)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """There is none. Raises OptionError, which says what to use."""
        raise OptionError(NO_SINK)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """There is none. Raises OptionError, which says what to use."""
        raise OptionError(NO_SINK)

    def _view_reader(self, schema: StructType) -> ViewReader:
        return view_reader(
            self._parsed, [(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in schema.fields]
        )


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


class LogReader(DataSourceReader):
    """Reads the log once, as it is now."""

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader
        self._range = INT64_RANGE
        if reader.options.pushdown and reader.options.view in (View.RECORDS, View.STATS):
            # On the instance: a class that overrides it fails where Spark's push-down is off (spec/pipeline.md 2).
            self.pushFilters = _Pushed(self)  # type: ignore[method-assign]

    def push(self, one: Filter) -> bool:
        """Apply a filter here if possible. Returns whether Spark can skip it."""
        column = ".".join(getattr(one, "attribute", ()))
        if column in SELECTED_BY_VALUE and isinstance(one, EqualTo | In):
            return self._push_values(SELECTED_BY_VALUE[column], one.value if isinstance(one, In) else (one.value,))
        if column in (PHYSICAL_OFFSET, *SELECTED_BY_RANGE) and isinstance(one, Comparison):
            limits = range_of(one)
            return limits is not None and self._push_range(column, limits)
        return False

    def _push_values(self, name: str, given: tuple[Any, ...]) -> bool:
        selection = self._reader.options.selection
        present = getattr(selection, name)
        values = frozenset(value for value in given if value is not None)  # null equals nothing
        chosen: Any = values if present is None else present & values
        self._choose(replace(selection, **{name: chosen}))
        return True

    def _push_range(self, column: str, limits: Range) -> bool:
        if column == PHYSICAL_OFFSET:
            self._range = common_range(self._range, limits)
            return False
        name = SELECTED_BY_RANGE[column]
        selection = self._reader.options.selection
        chosen: Any = common_range(getattr(selection, name) or INT64_RANGE, limits)
        self._choose(replace(selection, **{name: chosen}))
        return True

    def _choose(self, selection: Selection) -> None:
        self._reader = replace(self._reader, options=replace(self._reader.options, selection=selection))

    def partitions(self) -> list[InputPartition]:
        """Raises OptionError, StoreError, OSError."""
        options = self._reader.options
        if self._reader.is_of_store:
            return [StorePartition()]
        if not is_network(options.path):
            return self._partitions_of([open_log(options)])
        plans = open_logs(options)
        check_offsets(options, plans)
        return self._partitions_of(plans)

    def _partitions_of(self, plans: Sequence[LogPlan]) -> list[InputPartition]:
        ranges = [(plan, *self._range_of(plan)) for plan in plans]
        whole = sum(max(0, stop - start) for _, start, stop in ranges)
        return taking_turns(
            [
                [SplitPartition(split) for split in replace(plan, read_together=whole).splits(start, stop)]
                for plan, start, stop in ranges
            ]
        )

    def _range_of(self, plan: LogPlan) -> Range:
        start, stop = plan.start(), plan.stop()
        low, high = self._range
        if low > start:
            start = plan.record_start(min(low, plan.end))
        if high < stop:
            stop = plan.record_start(max(high, plan.min_offset))
        return start, stop

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises StoreError, OSError."""
        return read_partition(self._reader, partition)


def taking_turns(partitions: Sequence[Sequence[InputPartition]]) -> list[InputPartition]:
    """The partitions of several brokers, one of each in turn: so tasks that run together read different brokers."""
    return [one for turn in zip_longest(*partitions) for one in turn if one is not None]


def range_of(one: Comparison) -> Range | None:
    """The numbers, or the times in milliseconds, that pass a comparison; half open. None if it is of another type."""
    if isinstance(one.value, int):
        return _passing(one, one.value, one.value)
    return _milliseconds(one, one.value) if isinstance(one.value, datetime) else None


def _milliseconds(one: Comparison, value: datetime) -> Range:
    """The range of times, in milliseconds, that pass a comparison; half open. A time that a column shows as null never
    passes.
    """
    microseconds = (value - EPOCH) // MICROSECOND
    limits = _passing(one, microseconds // 1000, -(-microseconds // 1000))
    return common_range(limits, (MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1))


def _passing(one: Comparison, floor: int, ceiling: int) -> Range:
    """The range of whole numbers that pass a comparison; half open. The compared value lies between ``floor`` and
    ``ceiling``.
    """
    low, high = INT64_RANGE
    match one:
        case GreaterThan():
            low = floor + 1
        case GreaterThanOrEqual():
            low = ceiling
        case LessThan():
            high = ceiling
        case LessThanOrEqual():
            high = floor + 1
        case EqualTo():
            low, high = ceiling, floor + 1
    return low, high


def common_range(one: Range, other: Range) -> Range:
    """What lies in both ranges."""
    return max(one[0], other[0]), min(one[1], other[1])


class _Pushed:
    """``LogReader.pushFilters`` in a form that Spark 4.3 takes for the inherited one while push-down is off in its
    conf.

    If a class overrides the method, every query fails then, and a reader cannot ask for the conf.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return [one for one in filters if not self._reader.push(one)]


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
