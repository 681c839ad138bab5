"""An archive as a table of Delta Lake or Apache Iceberg: a log of the table next to the manifests.

::

    _delta_log/       Delta's log
    _iceberg/         Iceberg's metadata, and its catalog in SQLite

The files are the same Parquet files, and the manifests are the truth. A table's log names the same files. Who
commits a manifest then brings the table up to it, under the archive's lock: ``update_tables``. If a process dies
between the two, the next commit does it. A file's name is its range of the log, so a table shows by itself which
ranges it has. Each commit also notes the store, the epoch and the range.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError, Manifest, make_folder, range_of
from rmqha.pipeline.jobs.tablelog import FOLDERS, Change, TableFormat, TableLog

ORPHAN_SECONDS = 24 * 3600.0
"""No commit takes so long, not even that of a program that does not know the archive's lock."""
OUR_PATH = re.compile(r"date=[^/]+/hour=[^/]+/\d{20}-\d{20}(\.sorted)?\.parquet")


def check_package(table: TableFormat) -> None:
    """Raises OptionError if the package of a table's format is missing."""
    if table in FOLDERS:
        _log(Path(), table)


def begin_table(root: Path, table: TableFormat, columns: pa.Schema) -> None:
    """Make the archive a table, too. Its log is written with the next commit. ``columns`` are those of the files to
    come.

    Raises ArchiveError, before anything is written, if the archive's tables cannot take these columns; OptionError,
    OSError.
    """
    is_new = table in FOLDERS and not (root / FOLDERS[table]).is_dir()
    for log in [*table_logs(root), *([_log(root, table)] if is_new else [])]:
        log.check(columns)
    if is_new:
        make_folder(root / FOLDERS[table])


def table_logs(root: Path) -> list[TableLog]:
    """The logs of the tables that an archive is. Raises OptionError if a package for one of them is missing."""
    return [_log(root, table) for table, folder in FOLDERS.items() if (root / folder).is_dir()]


def _log(root: Path, table: TableFormat) -> TableLog:
    try:
        if table is TableFormat.DELTA:
            from rmqha.pipeline.jobs.delta import DeltaLog

            return DeltaLog(root)
        from rmqha.pipeline.jobs.iceberg import IcebergLog

        return IcebergLog(root)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{root} is a table of {table.value}, and {error.name} is not installed: pip install 'rmqha[{table.value}]'"
        ) from error


def update_tables(archive: Archive) -> None:
    """Add the manifests that a table does not have yet, each in a version of its own. Call it under ``locked``.

    Raises OptionError, ArchiveError, OSError.
    """
    for log in table_logs(archive.root):
        starts = sorted(range_of(archive.root / path)[0] for path in known_paths(archive.root, log))
        for name in archive.names():
            start, end = range_of(Path(name))
            at = bisect_left(starts, start)
            if at < len(starts) and starts[at] < end:
                continue
            manifest = archive.manifest(name)
            if manifest is not None:
                _add(log, manifest)


def add_to_tables(archive: Archive, manifest: Manifest) -> None:
    """Add a manifest that was committed just now to all tables, which have the others: they are not listed again.

    Call it under ``locked``. Raises OptionError, ArchiveError, OSError.
    """
    for log in table_logs(archive.root):
        _add(log, manifest)


def _add(log: TableLog, manifest: Manifest) -> None:
    if manifest.files:
        log.commit(Change(manifest, manifest.files))


def replace_in_tables(archive: Archive, removed: Iterable[str], manifest: Manifest, keeps_rows: bool) -> None:
    """Exchange files in all tables, in one version each. What is done already is left out. Call it under ``locked``.

    Raises OptionError, ArchiveError, OSError.
    """
    wanted = tuple(removed)
    for log in table_logs(archive.root):
        present = known_paths(archive.root, log)
        adds = tuple(file for file in manifest.files if file.path not in present)
        removes = tuple(path for path in wanted if path in present)
        if adds or removes:
            log.commit(Change(manifest, adds, removes, keeps_rows))


def remove_orphans(root: Path) -> None:
    """Remove what commits to the tables left when their process died, a day later. Call it under ``locked``.

    Raises OptionError, ArchiveError, OSError.
    """
    for log in table_logs(root):
        log.remove_orphans(time.time() - ORPHAN_SECONDS)


def known_paths(root: Path, log: TableLog) -> set[str]:
    """The files of a table. Raises ArchiveError if another program has written to it."""
    paths = log.paths()
    strange = sorted(path for path in paths if not OUR_PATH.fullmatch(path))
    if strange:
        raise ArchiveError(
            f"the table in {root} has the file {strange[0]}, which another program has written: rmqha cannot tell "
            "which messages it holds. Archive to a new folder, and leave its table to rmqha"
        )
    return paths
