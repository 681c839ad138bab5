"""The rows of a query: each view turns a split into a few Arrow batches of its schema."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqha.pipeline.address import is_network
from rmqha.pipeline.bodies.reading import Bodies, bodies_of, pieces
from rmqha.pipeline.decode import MAX_INFLATED_BYTES, decode
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.compare import compare_split
from rmqha.pipeline.jobs.rebuild import rules_of
from rmqha.pipeline.jobs.verify import verify_split
from rmqha.pipeline.network.columns import broker_columns, check_view
from rmqha.pipeline.network.segment import NetworkSegment
from rmqha.pipeline.options import Options, Properties, Selection, View
from rmqha.pipeline.plan import log_folder
from rmqha.pipeline.schema import BODY_ERROR, VALUE, check_records_schema, records_schema, to_ddl
from rmqha.pipeline.segments import read_selected
from rmqha.pipeline.storeviews import STORE_SCHEMAS, store_rows
from rmqha.pipeline.sums import Sums, sums_schema
from rmqha.store.deletions import read_deletions
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, queue_size_of
from rmqha.store.derived.rebuild import PARTS_FOLDER, rebuild_split
from rmqha.store.errors import DataLossError, StoreError
from rmqha.store.log.splits import Split
from rmqha.wire.columns import Records

SPLITS_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("base", pa.int64()),
        ("segmentEnd", pa.int64()),
        ("startOffset", pa.int64()),
        ("endOffset", pa.int64()),
    ]
)
VERIFY_SCHEMA = pa.schema(
    [
        ("startOffset", pa.int64()),
        ("endOffset", pa.int64()),
        ("messages", pa.int64()),
        ("problem", pa.string()),
    ]
)
COMPARE_SCHEMA = pa.schema(
    [
        ("startOffset", pa.int64()),
        ("endOffset", pa.int64()),
        ("differsAt", pa.int64()),
        ("differentBytes", pa.int64()),
        ("problem", pa.string()),
    ]
)

QUEUES_SCHEMA = pa.schema(
    [
        ("startOffset", pa.int64()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("firstQueueOffset", pa.int64()),
        ("endQueueOffset", pa.int64()),
        ("isRegular", pa.bool_()),
    ]
)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class ViewReader:
    """Reads splits as rows of one view. It is pickled and sent to the executors."""

    options: Options
    schema: pa.Schema
    bodies: Bodies | None = None

    def read(self, split: Split) -> Batches:
        """The rows of a split. Raises StoreError, OSError."""
        return READERS[self.options.view](self, split)

    @property
    def is_of_store(self) -> bool:
        """Whether the view is of the store as a whole, and not of splits of its log."""
        return self.options.view in STORE_SCHEMAS

    def read_store(self) -> Batches:
        """The rows of a view of the store. Raises StoreError, OSError."""
        yield store_rows(self.options)


def view_reader(options: Options, fields: list[tuple[str, pa.DataType]] | None = None) -> ViewReader:
    """The reader for these options, or for a schema of names and types that the user gave. Raises OptionError, and
    StoreError and OSError if the type of bodies must be inferred.
    """
    if options.view is View.RECORDS:
        return _records_reader(options, fields)
    if options.view is View.STATS and fields is not None:
        options = replace(options, columns=tuple(name for name, _ in fields))
    schema = view_schema(options)
    if options.view is View.STATS and fields is not None and schema != pa.schema(fields):
        raise OptionError(f"view=stats has these columns as {to_ddl(schema)}, not as {to_ddl(pa.schema(fields))}")
    names = schema.names if fields is None else [name for name, _ in fields]
    if names != schema.names:
        raise OptionError(f"view={options.view.value} has only the columns {', '.join(schema.names)}")
    return ViewReader(options, schema)


def _records_reader(options: Options, fields: list[tuple[str, pa.DataType]] | None) -> ViewReader:
    wanted = dict(fields or ())
    names = set(options.columns if fields is None else wanted)
    is_decoded = not names or not names.isdisjoint({VALUE, BODY_ERROR})
    bodies = bodies_of(options, wanted.get(VALUE)) if is_decoded else None
    value = None if bodies is None else bodies.type
    is_remote = options.is_remote
    if fields is not None:
        schema = check_records_schema(fields, value, is_remote)
    else:
        schema = records_schema(options.columns, (options.properties or Properties.MAP).value, value, is_remote)
    return ViewReader(options, schema, bodies)


def view_schema(options: Options) -> pa.Schema:
    """The columns of the view that the options select. Raises like ``view_reader``."""
    if options.is_remote:
        check_view(options.view)
    if options.view is View.RECORDS:
        return _records_reader(options, None).schema
    if options.bodies is not None or options.body_schemas:
        raise OptionError(f"bodyFormat= and bodySchemas= are for view=records, not for view={options.view.value}")
    if options.view is View.STATS:
        return sums_schema(options.columns, options.is_remote)
    if options.columns:
        raise OptionError(f"columns= is for view=records and view=stats, not for view={options.view.value}")
    _check_parameters(options)
    return SCHEMAS[options.view]


def _check_parameters(options: Options) -> None:
    """Raises OptionError if a view cannot do what the options ask, or needs one that is missing."""
    selection = options.selection
    if options.view in STORE_SCHEMAS:  # there are messages behind each row, with tags of all kinds
        selection = replace(selection, topics=None, topic_pattern=None, queue_ids=None)
        if selection != Selection():
            raise OptionError(
                f"view={options.view.value} is of whole queues: offsets, times and tags cannot be selected"
            )
    if selection != Selection():
        raise OptionError(f"view={options.view.value} is of all messages: topics, queues and tags cannot be selected")
    if options.view is View.COMPARE and options.replica is None:
        raise OptionError("view=compare needs replica=, the path of the other store")
    if options.view is View.QUEUES and (options.output is None or options.output.resolve() == options.path.resolve()):
        raise OptionError("view=queues needs output=, a folder for the queues other than the store's own")


def _records(reader: ViewReader, split: Split) -> Batches:
    with _remote(split) as segment:
        yield from _decoded(reader, read_selected(split, reader.options, segment), segment)


def _remote(split: Split) -> AbstractContextManager[NetworkSegment | None]:
    """The segment of a split whose records name the broker that has sent them; nothing for a file."""
    return NetworkSegment(split.path, split.base) if is_network(split.path) else nullcontext()


def _decoded(reader: ViewReader, found: Iterable[Records], segment: NetworkSegment | None = None) -> Batches:
    """The rows of messages. Those of a remote ``segment`` name the broker that has sent them."""
    options = reader.options
    decompress = options.decompress and "body" in reader.schema.names
    for records in found:
        if reader.bodies is None and not decompress:
            yield decode(records, reader.schema, ready=broker_columns(segment, len(records)))
            continue
        max_bytes = MAX_INFLATED_BYTES if reader.bodies is None else options.max_body_bytes
        for piece in pieces(records, max_bytes, options.batch_bytes):
            ready = broker_columns(segment, len(piece.records))
            if reader.bodies is not None:
                ready |= reader.bodies.columns(piece)
            if decompress:
                ready["body"] = piece.bodies()
            yield decode(piece.records, reader.schema, ready=ready)


def _splits(reader: ViewReader, split: Split) -> Batches:
    row = (split.path, split.base, split.segment_end, split.start, split.end)
    yield _batch(reader.schema, [row])


def _stats(reader: ViewReader, split: Split) -> Batches:
    """One row for each group of messages; several if there are very many groups."""
    sums = Sums(reader.schema)
    with _remote(split) as segment:
        for records in read_selected(split, reader.options, segment):
            sums.add(records, broker_columns(segment, len(records)))
            if sums.is_full:
                yield from sums.take().to_batches()
    yield from sums.take().to_batches()


def _verify(reader: ViewReader, split: Split) -> Batches:
    """One row for the whole split, and one for each stretch of bytes that is not a record."""
    try:
        found = verify_split(split, reader.options.drop_behind)
    except DataLossError as error:
        yield _batch(reader.schema, [(split.start, split.end, 0, str(error))])
        return
    rows = [(bad.start, bad.end, 0, bad.problem) for bad in found.bad_stretches()]
    yield _batch(reader.schema, [(split.start, split.end, found.found.messages, None), *rows])


def _compare(reader: ViewReader, split: Split) -> Batches:
    """One row: whether the replica has the same bytes."""
    assert reader.options.replica is not None, "view_schema has seen to it"
    replica = str(log_folder(reader.options.replica))
    try:
        found = compare_split(split, replica)
    except StoreError as error:
        yield _batch(reader.schema, [(split.start, split.end, None, None, str(error))])
        return
    yield _batch(reader.schema, [(split.start, split.end, found.differs_at, found.different_bytes, None)])


def _batch(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _queues(reader: ViewReader, split: Split) -> Batches:
    """One row for each run of units that the split has written to ``output``. Writing them again gives the same."""
    assert reader.options.output is not None, "view_schema has seen to it"
    folder = reader.options.output
    (folder / PARTS_FOLDER).mkdir(parents=True, exist_ok=True)
    store = Path(split.path).parent.parent
    file_size = queue_size_of(store / CONSUME_QUEUE_FOLDER, None)
    found = rebuild_split(split, str(folder), file_size, rules_of(reader.options), read_deletions(store))
    if found.runs:
        runs = found.runs.items()
        yield _batch(reader.schema, [(split.start, *key, run.first, run.end, run.is_regular) for key, run in runs])


READERS: dict[View, Callable[[ViewReader, Split], Batches]] = {
    View.RECORDS: _records,
    View.SPLITS: _splits,
    View.STATS: _stats,
    View.VERIFY: _verify,
    View.COMPARE: _compare,
    View.QUEUES: _queues,
}
SCHEMAS = {
    View.SPLITS: SPLITS_SCHEMA,
    View.VERIFY: VERIFY_SCHEMA,
    View.COMPARE: COMPARE_SCHEMA,
    View.QUEUES: QUEUES_SCHEMA,
    **STORE_SCHEMAS,
}
