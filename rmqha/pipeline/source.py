"""Spark's source for a log: ``spark.read.format("rmqha")`` and ``spark.readStream.format("rmqha")``.

This module only connects the others: ``options`` parses, ``plan`` and ``views`` read, ``logstream`` and
``clusterstream`` follow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
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
from pyspark.sql.types import StructType

from rmqha.kit.times import EPOCH
from rmqha.pipeline.brokers import check_offsets, open_logs
from rmqha.pipeline.clusterstream import ClusterStreamReader
from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.logstream import LogStreamReader, SplitPartition, StorePartition, read_partition, taking_turns
from rmqha.pipeline.options import INT64_RANGE, Options, Selection, View, parse_options
from rmqha.pipeline.plan import LogPlan
from rmqha.pipeline.schema import to_ddl
from rmqha.pipeline.views import ViewReader, view_reader, view_schema

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
        if reader.options.is_remote:
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
