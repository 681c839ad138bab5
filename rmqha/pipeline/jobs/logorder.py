"""Reads Parquet files in bounded memory, and archived ones in the order of the log.

`rmqha job compact` makes files that are sorted by topic and time.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ORDER = ("topic", "storeTimestamp", "physicalOffset")
"""How the rows of a compacted file are sorted. The file says so itself."""
OFFSET = "physicalOffset"
ROWS_BYTES = 32 << 20
"""Rows of an archive in memory at a time, in bytes."""


def is_compacted(metadata: pq.FileMetaData) -> bool:
    """Whether the rows of a file are in another order than the log's."""
    return bool(metadata.num_row_groups and metadata.row_group(0).sorting_columns)


def bounded_batches(file: pq.ParquetFile, names: Sequence[str], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file as they are, about ``batch_bytes`` at a time. Raises pa.ArrowException, OSError."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        rows = rows_of(batch_bytes, group.num_rows, group.total_byte_size)
        yield from file.iter_batches(rows, row_groups=[number], columns=list(names))


def batches_in_log_order(file: pq.ParquetFile, names: Sequence[str], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, about ``batch_bytes`` at a time. ``names`` contains ``OFFSET`` if the file is compacted.

    A compacted file is held in memory as a whole: `rmqha job compact` limits the bytes of log in it. Raises
    pa.ArrowException, OSError.
    """
    if is_compacted(file.metadata):
        yield from _sorted_batches(file, names, batch_bytes)
    else:
        yield from bounded_batches(file, names, batch_bytes)


def _sorted_batches(file: pq.ParquetFile, names: Sequence[str], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    whole = as_batch(file.read(columns=list(names)).select(list(names)))
    order = pa.array(np.argsort(whole[OFFSET].to_numpy(zero_copy_only=False), kind="stable"))
    rows = rows_of(batch_bytes, len(whole), whole.nbytes)
    for start in range(0, len(whole), rows):
        yield whole.take(order.slice(start, rows))


def rows_of(batch_bytes: int, rows: int, size: int) -> int:
    """How many of ``rows`` rows, which are ``size`` bytes together, make up about ``batch_bytes``."""
    return max(1, rows * batch_bytes // max(batch_bytes, size))


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table in one batch. It must have less than 2 GiB of texts."""
    columns = [_one_chunk(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
