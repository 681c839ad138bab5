"""What ``reconcile`` compares: a row for each message of a store or an archive, and for each send of a producer.

A row has no body and no properties. Workers write the rows as Parquet files into a scratch folder, so that no process
holds all of them.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmqha.pipeline.decode import PropertyPairs, decode
from rmqha.pipeline.errors import one_line
from rmqha.pipeline.jobs.logorder import ROWS_BYTES, bounded_batches
from rmqha.pipeline.options import Options, Selection
from rmqha.pipeline.schema import records_schema
from rmqha.pipeline.segments import read_selected
from rmqha.pipeline.sqltypes import STRING_MAP
from rmqha.store.errors import StoreError
from rmqha.store.log.splits import Split
from rmqha.wire.columns import Ints
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.timers import TIMER_TOPIC
from rmqha.wire.topics import DEAD_PREFIX, HALF_TOPIC, OPERATION_TOPIC, RETRY_PREFIX, SYSTEM_TOPICS

ENTRIES = pa.schema(
    [
        ("side", pa.int8()),
        ("topic", pa.string()),
        ("ident", pa.string()),
        ("onlyOnce", pa.bool_()),
        ("waits", pa.bool_()),
        ("msgId", pa.string()),
        ("keys", pa.string()),
        ("time", pa.int64()),
        ("source", pa.string()),
        ("place", pa.int64()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("bodyCRC", pa.int32()),
        ("consumed", pa.int64()),
    ]
)
"""The columns of a row.

``side`` is 0 for what is expected, and 1 for what is compared with it. ``ident`` is what both must share. Of rows that
are ``onlyOnce``, one on each side is enough; of others, both sides must have as many. ``waits`` marks a delayed message
that is not delivered yet. ``time`` is the time of birth, or of sending, in milliseconds. ``place`` is an offset of the
log, or a line's number. ``consumed`` has one bit for each group that has consumed the message.
"""
SCANNED = records_schema(
    ["topic", "queueId", "queueOffset", "physicalOffset", "bodyCRC", "bornTimestamp", "keys", "tags", "properties"]
)
NEEDED = ("topic", "physicalOffset")
SEPARATOR = "\x1f"
ID_PREFIX, KEY_PREFIX = "id" + SEPARATOR, "key" + SEPARATOR
"""What the ``ident`` of a row for a message id, or for a key, starts with."""
DELAYED_TOPICS = {SCHEDULE_TOPIC, TIMER_TOPIC}
INTERNAL_TOPICS = SYSTEM_TOPICS | {HALF_TOPIC, OPERATION_TOPIC} | DELAYED_TOPICS

Period = tuple[int | None, int | None]
"""Times in milliseconds since 1970: from the first to before the second. None does not limit."""
QueueOffsets = Mapping[tuple[str, int], int]
"""The next offset of a group in each queue of each topic."""


class By(Enum):
    """What two messages must share to count as the same one."""

    ID = "id"
    KEYS = "keys"
    BORN = "born"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Side:
    """A store or an archive on one side.

    With ``by`` None the rows are those that a producer's log is compared with: one for the message id, if ``ids``, and
    one for each key, if ``keys``. ``consumed`` are the offsets of groups. ``selection`` selects topics and tags; a
    delayed message counts as one of the topic that it is for. ``period`` limits the time of birth.
    """

    number: int
    name: str
    by: tuple[By, ...] | None = (By.ID,)
    ids: bool = True
    keys: bool = True
    consumed: tuple[QueueOffsets, ...] = ()
    selection: Selection = Selection()
    period: Period = (None, None)


@dataclass(frozen=True, slots=True)
class Written:
    """A file of rows; no path if there are none."""

    path: str | None
    rows: int = 0


class EntryWriter:
    """Writes rows into a new file in a folder. The file is made with the first row. A context manager."""

    def __init__(self, folder: str) -> None:
        self._path = str(Path(folder) / f"{uuid.uuid4().hex}.parquet")
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def __enter__(self) -> "EntryWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows. Raises OSError."""
        for rows in batches:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, ENTRIES, compression="zstd")
            self._writer.write_batch(rows)
            self._rows += len(rows)

    def written(self) -> Written:
        """What was written. The file is complete when the context has ended."""
        return Written(None if self._writer is None else self._path, self._rows)


def entries_of_split(split: Split, side: Side, options: Options, folder: str) -> Written:
    """Write the rows of the messages of a split of a store. Raises StoreError, OSError."""
    topics = side.selection.topics
    fitting = Selection(topics=None if topics is None else topics | DELAYED_TOPICS)
    with EntryWriter(folder) as writer:
        for records in read_selected(split, replace(options, selection=fitting)):
            writer.write(_entries(decode(records, SCANNED), side))
    return writer.written()


def entries_of_archived(split: Split, side: Side, folder: str) -> Written:
    """Write the rows of the messages of an archived file, whose path the split has. Raises StoreError, OSError."""
    with EntryWriter(folder) as writer:
        for batch in _archived_batches(split.path):
            writer.write(_entries(batch, side))
    return writer.written()


def _archived_batches(path: str) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            missing = set(NEEDED) - set(schema.names)
            if missing:
                raise StoreError(f"{path} has no column {sorted(missing)[0]}: its messages cannot be compared")
            yield from bounded_batches(file, [name for name in SCANNED.names if name in schema.names], ROWS_BYTES)
    except pa.ArrowException as error:
        raise StoreError(f"{path} is damaged: {one_line(error)}") from error


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch[name]
    return pa.nulls(len(batch), SCANNED.field(name).type)


class _Properties:
    """Properties of the messages of a batch, stored as text or as a map."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        stored = _column(batch, "properties")
        self._map = stored if stored.type == STRING_MAP else None
        text = pa.nulls(len(batch), pa.string()) if self._map is not None else stored
        text = pc.fill_null(text, "").cast(pa.binary())
        if text.offset:  # the pairs are found in the buffers, which must begin with the first row
            text = text.take(pa.array(np.arange(len(text))))
        self._pairs = PropertyPairs(text)

    def values(self, name: str) -> pa.Array:
        """The value for each message; null if it has none."""
        if self._map is not None:
            return pc.map_lookup(self._map, pa.scalar(name), "last")
        return self._pairs.column(name)


def _entries(batch: pa.RecordBatch, side: Side) -> list[pa.RecordBatch]:
    properties = _Properties(batch)
    stored_topic = batch["topic"]
    waits = pc.is_in(stored_topic, value_set=pa.array(sorted(DELAYED_TOPICS), stored_topic.type))
    real = properties.values("REAL_TOPIC")
    topic = pc.if_else(pc.and_(waits, pc.is_valid(real)), real, stored_topic)
    columns = {
        "side": pa.array(np.full(len(batch), side.number, np.int8)),
        "topic": topic,
        "waits": waits,
        "msgId": properties.values("UNIQ_KEY"),
        "keys": _column(batch, "keys"),
        "time": _milliseconds(_column(batch, "bornTimestamp")),
        "source": pa.array([side.name] * len(batch), pa.string()),
        "place": batch["physicalOffset"],
        "queueId": _column(batch, "queueId"),
        "queueOffset": _column(batch, "queueOffset"),
        "bodyCRC": _column(batch, "bodyCRC"),
    }
    columns["consumed"] = pa.array(_consumed(columns, side.consumed))
    wanted = _compared(topic, side.selection)
    if side.selection.tags is not None:
        tags = _column(batch, "tags")
        wanted = pc.and_(wanted, pc.is_in(tags, value_set=pa.array(sorted(side.selection.tags), tags.type)))
    wanted = pc.and_(wanted, _within(columns["time"], side.period))
    table = pa.RecordBatch.from_pydict(columns).filter(wanted)
    return [_identified(table, side.by)] if side.by is not None else list(_identified_by_all(table, side))


def _milliseconds(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())


def _within(times: pa.Array, period: Period) -> pa.Array:
    """Which times are in the period. An unknown one is."""
    start, end = period
    inside = pa.array(np.ones(len(times), bool))
    if start is not None:
        inside = pc.and_(inside, pc.greater_equal(times, start))
    if end is not None:
        inside = pc.and_(inside, pc.less(times, end))
    return pc.fill_null(inside, True)


def _compared(topic: pa.Array, selection: Selection) -> pa.Array:
    """Which messages are compared: those of the selected topics, or else of all topics of applications."""
    encoded = topic.dictionary_encode()
    chosen = [_is_compared(name, selection) for name in encoded.dictionary.to_pylist()]
    return pa.array(chosen, pa.bool_()).take(encoded.indices)


def _is_compared(topic: str, selection: Selection) -> bool:
    if selection.topics is not None:
        return topic in selection.topics
    if topic in INTERNAL_TOPICS or topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
        return False
    return selection.topic_pattern is None or re.fullmatch(selection.topic_pattern, topic) is not None


def _consumed(columns: Mapping[str, pa.Array], groups: tuple[QueueOffsets, ...]) -> Ints:
    """For each message the bits of the groups whose offset is after it."""
    bits: Ints = np.zeros(len(columns["topic"]), np.int64)
    if not groups:
        return bits
    topics = columns["topic"].dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    queues = pc.fill_null(columns["queueId"], -1).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = pc.fill_null(columns["queueOffset"], 1 << 62).to_numpy(zero_copy_only=False)
    places, where = np.unique(np.stack([codes, queues]), axis=1, return_inverse=True)
    names = topics.dictionary.to_pylist()
    keys = [(names[code], queue) for code, queue in places.T.tolist()]
    waits = columns["waits"].to_numpy(zero_copy_only=False)
    for number, group in enumerate(groups):
        reached = np.array([group.get(key, 0) for key in keys], np.int64)[where.reshape(-1)]
        bits |= ((offsets < reached) & ~waits).astype(np.int64) << number
    return bits


def _identified(table: pa.RecordBatch, by: tuple[By, ...]) -> pa.RecordBatch:
    parts = {
        By.ID: pc.fill_null(table["msgId"], ""),
        By.KEYS: pc.fill_null(table["keys"], ""),
        By.BORN: pc.fill_null(table["time"].cast(pa.string()), ""),
        By.BODY: pc.fill_null(table["bodyCRC"].cast(pa.string()), ""),
    }
    ident = _joined([parts[one] for one in by])
    if By.ID in by:
        others = _joined([parts[By.KEYS], parts[By.BORN], parts[By.BODY]])
        ident = pc.if_else(pc.is_valid(table["msgId"]), ident, others)
    return _rows(table, ident, only_once=By.ID in by)


def _joined(parts: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, SEPARATOR)


def _prefixed(prefix: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(prefix, values, "")


def _identified_by_all(table: pa.RecordBatch, side: Side) -> Iterator[pa.RecordBatch]:
    """A row for the id of each message, and a row for each of its keys."""
    if side.ids:
        known = table.filter(pc.is_valid(table["msgId"]))
        yield _rows(known, _prefixed(ID_PREFIX, known["msgId"]), only_once=True)
    if side.keys:
        words = pc.split_pattern(pc.fill_null(table["keys"], ""), " ")
        each, owners = pc.list_flatten(words), pc.list_parent_indices(words)
        is_word = pc.not_equal(each, "")
        yield _rows(table.take(owners.filter(is_word)), _prefixed(KEY_PREFIX, each.filter(is_word)), only_once=False)


def _rows(table: pa.RecordBatch, ident: pa.Array, only_once: bool) -> pa.RecordBatch:
    columns = {name: table[name] for name in table.schema.names}
    columns["ident"] = ident
    columns["onlyOnce"] = pa.array(np.full(len(table), only_once))
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in ENTRIES], schema=ENTRIES)
