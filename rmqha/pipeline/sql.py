"""SQL in this process, by DuckDB: over Parquet files, and on the rows of a batch.

DuckDB keeps to ``MEMORY_LIMIT``; what does not fit goes to files in a folder that the caller gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmqha.pipeline.errors import OptionError, one_line
from rmqha.pipeline.sqltypes import STRING_MAP, TIMESTAMP

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "512MiB"
CONDITION_COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("physicalOffset", pa.int64()),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bornTimestamp", TIMESTAMP),
        ("bornHost", pa.string()),
        ("storeTimestamp", TIMESTAMP),
        ("reconsumeTimes", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("msgId", pa.string()),
        ("properties", STRING_MAP),
        ("body", pa.binary()),
    ]
)
"""The columns of a ``Condition``. ``msgId`` is UNIQ_KEY."""
THREADS = 2
ROWS_AT_ONCE = 1 << 15


@contextmanager
def _connected(scratch: Path) -> Iterator[DuckDBPyConnection]:
    import duckdb

    connection = duckdb.connect(
        config={
            "memory_limit": MEMORY_LIMIT,
            "threads": THREADS,
            "preserve_insertion_order": False,
            "temp_directory": str(scratch),
        }
    )
    try:
        yield connection
    finally:
        connection.close()


def query_files(files: Sequence[str], query: str, scratch: Path) -> Iterator[dict[str, Any]]:
    """The rows of a query over Parquet files, which it calls ``entries``. DuckDB's own files go to ``scratch``.

    Raises OSError if the disk is full.
    """
    import duckdb

    with _connected(scratch) as connection:
        connection.read_parquet(list(files)).create_view("entries")
        try:
            for batch in connection.sql(query).to_arrow_reader(ROWS_AT_ONCE):
                yield from batch.to_pylist()
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            raise OSError(f"DuckDB could not finish in {scratch}: {one_line(error)}") from error


class Condition:
    """A condition in DuckDB's SQL on rows with ``CONDITION_COLUMNS``. It can read no files."""

    def __init__(self, where: str) -> None:
        """Raises OptionError if it is not a condition on these columns."""
        import duckdb

        self._connection = duckdb.connect(
            config={
                "threads": 1,
                "memory_limit": MEMORY_LIMIT,
                "enable_external_access": False,
                "autoload_known_extensions": False,
            }
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        self._query = f"SELECT row FROM batch WHERE (\n{where}\n)"
        self.uses_body = "body" in where.lower()
        self.rows(CONDITION_COLUMNS.empty_table())

    def rows(self, table: pa.Table) -> set[int]:
        """The numbers of the rows for which the condition is true. Raises OptionError."""
        import duckdb

        numbered = table.append_column("row", pa.array(range(len(table)), pa.int64()))
        self._connection.register("batch", numbered)
        try:
            return {row for (row,) in self._connection.execute(self._query).fetchall()}
        except duckdb.Error as error:
            raise OptionError(one_line(error)) from error
        finally:
            self._connection.unregister("batch")
