"""The rows of a query: each view turns a split into a few Arrow batches of its schema."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqha.pipeline.decode import decode
from rmqha.pipeline.errors import DataLossError, OptionError
from rmqha.pipeline.jobs.compare import compare_split
from rmqha.pipeline.jobs.rebuild import PARTS_FOLDER, rebuild_split
from rmqha.pipeline.jobs.stats import QUEUE_SUMS_SCHEMA, queue_sums_of_split
from rmqha.pipeline.jobs.verify import verify_split
from rmqha.pipeline.options import Options, Selection, View
from rmqha.pipeline.plan import log_folder
from rmqha.pipeline.schema import check_records_schema, records_schema
from rmqha.pipeline.segments import Split, read_selected
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, queue_size_of
from rmqha.store.errors import StoreError

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

    def read(self, split: Split) -> Batches:
        """The rows of a split. Raises StoreError, OSError."""
        return READERS[self.options.view](self, split)


def view_reader(options: Options, fields: list[tuple[str, str]] | None = None) -> ViewReader:
    """The reader for these options, or for a schema of names and SQL types that the user gave. Raises OptionError."""
    schema = view_schema(options)
    if fields is None:
        return ViewReader(options, schema)
    if options.view is View.RECORDS:
        return ViewReader(options, check_records_schema(fields))
    names = [name for name, _ in fields]
    if names != schema.names:
        raise OptionError(f"view={options.view.value} has only the columns {', '.join(schema.names)}")
    return ViewReader(options, schema)


def view_schema(options: Options) -> pa.Schema:
    """The columns of the view that the options select. Raises OptionError."""
    if options.view is View.RECORDS:
        return records_schema(options.columns, options.properties.value)
    if options.columns:
        raise OptionError(f"columns= is for view=records, not for view={options.view.value}")
    if options.view is not View.STATS and options.selection != Selection():
        raise OptionError(f"view={options.view.value} is of all messages: topics, queues or tags cannot be selected")
    if options.view is View.COMPARE and options.replica is None:
        raise OptionError("view=compare needs replica=, the path of the other store")
    if options.view is View.QUEUES and (options.output is None or options.output.resolve() == options.path.resolve()):
        raise OptionError("view=queues needs output=, a folder for the queues other than the store's own")
    return SCHEMAS[options.view]


def _records(reader: ViewReader, split: Split) -> Batches:
    for records in read_selected(split, reader.options):
        yield decode(records, reader.schema, reader.options.decompress)


def _splits(reader: ViewReader, split: Split) -> Batches:
    row = (split.path, split.base, split.segment_end, split.start, split.end)
    yield _batch(reader.schema, [row])


def _stats(reader: ViewReader, split: Split) -> Batches:
    """One row for each queue."""
    yield from queue_sums_of_split(split, reader.options).to_batches()


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
    file_size = queue_size_of(Path(split.path).parent.parent / CONSUME_QUEUE_FOLDER, None)
    found = rebuild_split(split, str(folder), file_size, reader.options)
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
    View.STATS: QUEUE_SUMS_SCHEMA,
    View.VERIFY: VERIFY_SCHEMA,
    View.COMPARE: COMPARE_SCHEMA,
    View.QUEUES: QUEUES_SCHEMA,
}
