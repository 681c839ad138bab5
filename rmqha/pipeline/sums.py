"""Messages summed up in the workers: one row for each group of them, with the sums that were asked for.

The reader of all splits sums up their rows once more: ``messages`` and ``bytes`` are added, of the others
the least or the greatest counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, NOTHING, decode
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.schema import BROKER_COLUMNS, column_type
from rmqha.pipeline.sqltypes import TIMESTAMP
from rmqha.wire.columns import Ints, Records

GROUPS = ("topic", "queueId", "tags", "flag", "sysFlag", "reconsumeTimes", "bornHost", "storeHost")
LATENCY = "latency"
SUMS: dict[str, tuple[str, str, pa.DataType]] = {
    "messages": ("", "count_all", pa.int64()),
    "bytes": ("totalSize", "sum", pa.int64()),
    "minQueueOffset": ("queueOffset", "min", pa.int64()),
    "maxQueueOffset": ("queueOffset", "max", pa.int64()),
    "firstStoreTimestamp": ("storeTimestamp", "min", TIMESTAMP),
    "lastStoreTimestamp": ("storeTimestamp", "max", TIMESTAMP),
    "latencySumMs": (LATENCY, "sum", pa.int64()),
    "latencyMaxMs": (LATENCY, "max", pa.int64()),
    "latencyMinMs": (LATENCY, "min", pa.int64()),
}
"""Of which column each sum is, how it is made, and its type. Impossible times are ignored."""
SUMS_SCHEMA = pa.schema(
    [
        *((name, column_type(name)) for name in ("topic", "queueId")),
        *((name, kind) for name, (_, _, kind) in SUMS.items()),
    ]
)
"""The columns by default."""
MAX_GROUPS = 1 << 17
"""A worker hands on its rows when it has more: each message may be a group of its own."""


def groups_of(is_remote: bool) -> tuple[str, ...]:
    """The columns by which messages can be grouped."""
    return (*GROUPS, *BROKER_COLUMNS) if is_remote else GROUPS


def sums_schema(columns: Sequence[str] = (), is_remote: bool = False) -> pa.Schema:
    """The schema of these columns, in this order. Raises OptionError for one that is neither a group nor a sum."""
    if not columns:
        return SUMS_SCHEMA
    groups = groups_of(is_remote)
    for name in columns:
        if name not in groups and name not in SUMS:
            raise OptionError(
                f"view=stats has no column {name!r}: messages are grouped by {', '.join(groups)}, "
                f"and summed as {', '.join(SUMS)}"
            )
    return pa.schema(
        [(name, SUMS[name][2] if name in SUMS else column_type(name, is_remote=is_remote)) for name in columns]
    )


class Sums:
    """Sums of messages, by group: the columns of ``schema`` that are not sums."""

    def __init__(self, schema: pa.Schema = SUMS_SCHEMA) -> None:
        """``schema`` is one of ``sums_schema``."""
        self._schema = schema
        self._groups = [name for name in schema.names if name not in SUMS]
        self._sums = {name: SUMS[name] for name in schema.names if name in SUMS}
        sources = {column for column, _, _ in self._sums.values()} - {""}
        self._needs_latency = LATENCY in sources
        names = [*self._groups, *sorted(sources - {LATENCY})] or ["flag"]  # a batch without columns has no rows
        self._read = pa.schema([(name, column_type(name, is_remote=True)) for name in names])
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, records: Records, ready: Mapping[str, pa.Array] = NOTHING) -> None:
        """Add messages. Columns that are ``ready`` are not made again."""
        table = pa.Table.from_batches([self._decoded(records, ready)])
        asked: list[tuple[Any, str]] = [(column or [], kind) for column, kind, _ in self._sums.values()]
        made = [f"{column}_{kind}" if column else kind for column, kind, _ in self._sums.values()]
        self._keep(self._grouped(table, asked, made))

    def _decoded(self, records: Records, ready: Mapping[str, pa.Array]) -> pa.RecordBatch:
        batch = decode(records, self._read, ready=ready)
        if self._needs_latency:
            batch = batch.append_column(LATENCY, ready.get(LATENCY, pa.array(latency_ms(records))))
        return batch

    def _grouped(self, table: pa.Table, asked: list[tuple[Any, str]], made: list[str]) -> pa.Table:
        grouped = table.group_by(self._groups, use_threads=False).aggregate(asked)
        names = dict(zip(self._sums, made, strict=True))
        return pa.table([grouped[names.get(name, name)] for name in self._schema.names], schema=self._schema)

    def _keep(self, part: pa.Table) -> None:
        self._parts.append(part)
        self._rows += part.num_rows
        if self._rows > MAX_GROUPS:
            self._merge()

    def _merge(self) -> None:
        """Make one part of all."""
        if len(self._parts) > 1:
            again = [(name, "sum" if kind == "count_all" else kind) for name, (_, kind, _) in self._sums.items()]
            made = [f"{name}_{kind}" for name, kind in again]
            self._parts = [self._grouped(pa.concat_tables(self._parts), again, made)]
        self._rows = sum(part.num_rows for part in self._parts)

    @property
    def is_full(self) -> bool:
        """Whether there are more groups than should be kept: take them."""
        return self._rows > MAX_GROUPS // 2 and len(self._parts) == 1

    def take(self) -> pa.Table:
        """The sums of what was added since the last call, one row for each group."""
        self._merge()
        taken = self._parts[0] if self._parts else self._schema.empty_table()
        self._parts, self._rows = [], 0
        return taken


def latency_ms(records: Records) -> Ints:
    """The time from each message's birth to its store, within what is possible."""
    return np.maximum(0, store_time_ms(records) - np.clip(records.ints("bornTimestamp"), 0, MAX_TIMESTAMP_MS))


def store_time_ms(records: Records) -> Ints:
    """When each message was stored, within what is possible."""
    return np.clip(records.ints("storeTimestamp"), 0, MAX_TIMESTAMP_MS)
