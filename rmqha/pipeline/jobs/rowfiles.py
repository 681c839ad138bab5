"""Files of rows for people and other programs: CSV, JSON lines or Parquet, by the ending of the name."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rmqha.pipeline.errors import OptionError, one_line

ROWS_AT_ONCE = 1 << 15
CSV, PARQUET = ".csv", ".parquet"
JSON_LINES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (CSV, *JSON_LINES, PARQUET)
Row = dict[str, Any]
Write = Callable[[Sequence[Row]], None]


def check_suffix(path: Path) -> str:
    """The ending of the name. Raises OptionError if it is not one of ``SUFFIXES``."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"{path} must end with one of {', '.join(SUFFIXES)}")
    return suffix


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows with their numbers from 1 on; of a text file, the numbers of their lines.

    Raises OptionError if the file is not what its name says, OSError.
    """
    readers = {CSV: _read_csv, PARQUET: _read_parquet}
    reader = readers.get(check_suffix(path), _read_json)
    try:
        yield from reader(path)
    except (csv.Error, UnicodeDecodeError, pa.ArrowException) as error:
        raise OptionError(f"{path} cannot be read: {one_line(error)}") from error


def _read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(file, strict=True)
        for row in lines:
            yield lines.line_num, row


def _read_json(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except ValueError as error:
                raise OptionError(f"line {number} of {path} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise OptionError(f"line {number} of {path} is not a JSON object")
            yield number, row


def _read_parquet(path: Path) -> Iterator[tuple[int, Row]]:
    number = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield number, row


@contextmanager
def row_file(path: Path | None, schema: pa.Schema) -> Iterator[Write]:
    """A function that adds rows to a new file; with None it does nothing. Raises OptionError, OSError."""
    if path is None:
        yield lambda rows: None
        return
    suffix = check_suffix(path)
    if suffix == PARQUET:
        with pq.ParquetWriter(path, schema, compression="zstd") as parquet:
            yield lambda rows: parquet.write_batch(pa.RecordBatch.from_pylist(list(rows), schema))
    elif suffix == CSV:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, schema.names)
            table.writeheader()
            yield lambda rows: table.writerows(map(_as_texts, rows))
    else:
        with path.open("wb") as lines:
            yield lambda rows: lines.writelines(orjson.dumps(row, option=orjson.OPT_UTC_Z) + b"\n" for row in rows)


def _as_texts(row: Row) -> Row:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
