"""Archives a store again and again, each time into a new folder, killed one step later, and then once more to its end.

``python -m tests.pipeline.killed_archiver KIND STORE FOLDER EVERY [TABLE]`` kills at each EVERY-th step. For each kill
it makes a folder in FOLDER, with the step's number as its name, and prints a line of JSON: the files that were to be
seen in it at the kill, those of them that were in no manifest, and which messages were in the table, in the files of
the folder, and in those that the manifests name. It ends with the first run that nobody had to kill. If there is
FOLDER/before, each folder is a copy of that to begin with.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compact import CompactChoices, compact
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.expire import expire
from rmqha.pipeline.jobs.manifest import Archive
from rmqha.pipeline.jobs.tableformats import begin_table
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.schema import archive_schema
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, options_of, rows_of, visible_files
from tests.pipeline.microbatches import Query
from tests.pipeline.tables import table_offsets

SPLIT_BYTES = SEGMENT_SIZE * 3 // 4
STEPS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
TABLE_STEPS = {
    TableFormat.PARQUET: (),
    TableFormat.DELTA: (("deltalake", "DeltaTable", ("create", "create_write_transaction")),),
    TableFormat.ICEBERG: (
        ("pyiceberg.catalog.sql", "SqlCatalog", ("create_namespace", "create_table", "commit_table")),
        ("pyiceberg.io.pyarrow", "PyArrowFile", ("create",)),
    ),
}
"""Functions of packages: each call is two steps, before and after it. In them a kill is the package's own business."""


def run_job(store: Path, lake: Path, table: TableFormat) -> None:
    """Archive, with several manifests."""
    options = options_of(store, output=lake, splitBytes=SPLIT_BYTES)
    archive(options, LocalEngine(), commit_bytes=SEGMENT_SIZE, table=table)


def run_stream(store: Path, lake: Path, table: TableFormat) -> None:
    """Archive by the sink, as Spark's driver and workers use it; a batch that is run again has other splits."""
    begin_table(lake, table, archive_schema())
    checkpoint = lake.with_name(f"{lake.name}.checkpoint")
    query = Query(store, lake, checkpoint, splitBytes=SPLIT_BYTES // (2 if checkpoint.exists() else 1))
    query.run(SEGMENT_SIZE * 5 // 4)


def archived(store: Path, lake: Path, table: TableFormat) -> None:
    """An archive of many small files and manifests."""
    archive(options_of(store, output=lake, splitBytes=1000), LocalEngine(), commit_bytes=SEGMENT_SIZE // 2, table=table)


def run_compact(store: Path, lake: Path, table: TableFormat) -> None:
    """Compact, with several files and one manifest."""
    compact(lake, LocalEngine(), CompactChoices(target_bytes=SEGMENT_SIZE // 2))


def run_expire(store: Path, lake: Path, table: TableFormat) -> None:
    """Remove the begin, up to a place inside of a manifest. The file that begins there is always there."""
    files = [file for one in Archive(lake).manifests() for file in one.files]
    expire(lake, min(file.min_store_timestamp for file in files if file.start >= SEGMENT_SIZE * 5 // 4))


def nothing(store: Path, lake: Path, table: TableFormat) -> None:
    """No archive."""


Run = Callable[[Path, Path, TableFormat], None]
RUNS: dict[str, tuple[Run, Run]] = {
    "job": (nothing, run_job),
    "stream": (nothing, run_stream),
    "compact": (archived, run_compact),
    "expire": (archived, run_expire),
}
"""What is done before, which nobody kills, and what is killed."""


def kill_at(step: int, lake: Path, table: TableFormat) -> None:
    """Let this process die right before its step of this number that touches the archive; a flush is a step too."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and str(arguments[0]).startswith(str(lake)):
            count()

    flush = os.fsync

    def counted_flush(fd: int) -> None:
        count()
        flush(fd)

    def stepwise(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            count()
            result = function(*arguments, **settings)
            count()
            return result

        return call

    for module, owner, names in TABLE_STEPS[table]:
        for name in names:
            kind = getattr(import_module(module), owner)
            setattr(kind, name, stepwise(getattr(kind, name)))
    sys.addaudithook(audited)
    setattr(os, "fsync", counted_flush)  # noqa: B010 - it is a function of another type, says mypy


def in_a_child(work: Callable[[], None]) -> bool:
    """Whether a child came to the end of the work."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"a child failed: {status}")
    return os.WIFEXITED(status)


def rows_in_table(lake: Path, table: TableFormat) -> list[int]:
    """Where the rows of the table lie in the log. A child reads them: Delta's package does not survive a fork."""
    if table is TableFormat.PARQUET:
        return []
    path = lake.with_name(f"{lake.name}.rows")

    def read() -> None:
        path.write_text(json.dumps(table_offsets(lake, table)))

    assert in_a_child(read), "nobody killed it"
    return [int(offset) for offset in json.loads(path.read_text())]


def offsets_in(paths: list[Path]) -> list[int]:
    """Where the messages of files lie in the log."""
    return [int(row["physicalOffset"]) for row in rows_of(paths)]


def main(runs: tuple[Run, Run], store: Path, folder: Path, every: int, table: TableFormat) -> None:
    """See above."""
    for module, _, _ in TABLE_STEPS[table]:
        import_module(module)  # not in each child
    pyarrow.array([])  # the first one imports pandas, which takes longer than a run: not in each child
    before, run = runs
    step, is_whole = 1 - every, False
    while not is_whole:
        step += every
        lake = folder / str(step)
        if (folder / "before").is_dir():
            shutil.copytree(folder / "before", lake)
        assert in_a_child(partial(before, store, lake, table)), "nobody killed it"

        def killed(step: int = step, lake: Path = lake) -> None:
            kill_at(step, lake, table)
            run(store, lake, table)

        is_whole = in_a_child(killed)
        seen = {str(path.relative_to(lake)) for path in visible_files(lake)}
        archived = {file.path for manifest in Archive(lake).manifests() for file in manifest.files}
        rows, listed, named = rows_in_table(lake, table), offsets_in(visible_files(lake)), archived_offsets(lake)
        assert in_a_child(partial(run, store, lake, table)), "nobody killed it"
        found = {"step": step, "whole": is_whole, "seen": [*seen], "strays": [*seen - archived], "rows": rows}
        found |= {"listed": listed, "named": named}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asked = TableFormat(sys.argv[5]) if len(sys.argv) > 5 else TableFormat.PARQUET
    main(RUNS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), asked)
