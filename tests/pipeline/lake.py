"""Logs to run jobs on, and archives to look into."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rmqha.pipeline.jobs.manifest import archived_paths
from rmqha.pipeline.options import Options, parse_options
from rmqha.testing.records import write_log

SEGMENT_SIZE = 16384
BODY_BYTES = 300


def make_store(root: Path, log_bytes: int = 60_000, seed: int = 1) -> Path:
    """A store of several small segments that no node has run; ``root`` itself."""
    write_log(root / "commitlog", log_bytes, BODY_BYTES, SEGMENT_SIZE, seed)
    return root


def options_of(store: Path, **texts: object) -> Options:
    """The options of a store, by their names; splits are small."""
    given = {"path": str(store), "splitBytes": "5000", "batchBytes": "2000"}
    return parse_options({**given, **{name: str(text) for name, text in texts.items()}})


def overwrite(store: Path, offset: int, content: bytes) -> None:
    """Change bytes of the log behind everybody's back, within one segment."""
    base = offset - offset % SEGMENT_SIZE
    with (store / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(offset - base)
        file.write(content)


def visible_files(root: Path) -> list[Path]:
    """The Parquet files that someone sees who knows nothing of manifests."""
    return sorted(path for path in root.rglob("*.parquet") if not path.name.startswith("."))


def rows_of(paths: list[Path]) -> list[dict[str, Any]]:
    """All rows of these files, by their places in the log."""
    rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(rows, key=lambda row: int(row["physicalOffset"]))


def archived_offsets(root: Path) -> list[int]:
    """Where the archived messages lie in the log, by the manifests."""
    return [row["physicalOffset"] for row in rows_of(list(archived_paths(root)))]


def as_old(lake: Path, keeps_hashes: bool = True) -> None:
    """Make an archive what it would be without the columns and the facts that a restore needs."""
    for path in visible_files(lake):
        table = pq.ParquetFile(path).read()
        pq.write_table(table.drop_columns(["recordCRC", "rawRecord"]), path)
    (lake / "_manifest" / "tables.json").unlink(missing_ok=True)
    for path in (lake / "_manifest").glob("*.json"):
        content = json.loads(path.read_text())
        for name in ("lossless", "segment_size", "blanks", *(() if keeps_hashes else ("hashes",))):
            del content[name]
        path.write_text(json.dumps(content))
