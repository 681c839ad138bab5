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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rmqha.pipeline.errors import OptionError, one_line
from rmqha.pipeline.jobs.manifest import Archive, ArchivedFile, ArchiveError, Manifest, make_folder, range_of

ORPHAN_SECONDS = 24 * 3600.0
"""No commit takes so long, not even that of a program that does not know the archive's lock."""
OUR_PATH = re.compile(r"date=[^/]+/hour=[^/]+/\d{20}-\d{20}(\.sorted)?\.parquet")


class TableFormat(Enum):
    """What an archive is besides Parquet files."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""The types in an archive's files, for what the packages of tables make of them."""
FOLDERS = {TableFormat.DELTA: "_delta_log", TableFormat.ICEBERG: "_iceberg"}


@dataclass(frozen=True, slots=True)
class Change:
    """One commit to a table: files of ``manifest`` to add, and paths to remove.

    ``keeps_rows`` says that the new files have the rows of the removed ones.
    """

    manifest: Manifest
    adds: tuple[ArchivedFile, ...]
    removes: tuple[str, ...] = ()
    keeps_rows: bool = False

    def facts(self) -> dict[str, str]:
        """What the table's history tells of the commit."""
        return {
            "rmqha.store": self.manifest.store_id or "",
            "rmqha.epoch": str(self.manifest.epoch),
            "rmqha.from": str(self.manifest.start),
            "rmqha.to": str(self.manifest.end),
        }


class TableLog(Protocol):
    """The log of a table. It is called under the archive's lock."""

    def paths(self) -> set[str]:
        """The files of the newest version, relative to the archive. Raises ArchiveError, OSError."""

    def check(self, columns: pa.Schema) -> None:
        """Raises ArchiveError if the table cannot take files with these columns, and OSError."""

    def commit(self, change: Change) -> None:
        """Make a new version, in one step. The table is created if it does not exist. Raises ArchiveError, OSError."""

    def remove_orphans(self, before: float) -> None:
        """Remove files of commits that died: no version refers to them, and they were written before a time, in
        seconds. Raises ArchiveError, OSError.
        """


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


def columns_of(root: Path, files: Sequence[ArchivedFile]) -> list[pa.Schema]:
    """The columns of each of these files. Raises ArchiveError, OSError."""
    return [schema_of(root / file.path) for file in files]


def unified_schema(root: Path, columns: Sequence[pa.Schema], known: pa.Schema | None) -> pa.Schema:
    """The columns of some files and those ``known`` before, which come first.

    Raises ArchiveError if a column has two types.
    """
    schemas = [] if known is None else [with_types(known, PLAIN)]
    try:
        return pa.unify_schemas([*schemas, *columns]).remove_metadata()
    except pa.ArrowException as error:
        raise ArchiveError(
            f"the table in {root} cannot take these files: a column has another type ({one_line(error)}). "
            "Archive with the same columns=, properties= and bodySchema=, or to a new folder"
        ) from error


def with_types(schema: pa.Schema, others: Mapping[pa.DataType, pa.DataType]) -> pa.Schema:
    """The columns, with other types in the place of some, at any depth, and with lists as archives have them."""
    return pa.schema([field.with_type(_other_type(field.type, others)).remove_metadata() for field in schema])


def _other_type(kind: pa.DataType, others: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_other_type(field.type, others))

    if pa.types.is_map(kind):
        return pa.map_(_other_type(kind.key_type, others), _other_type(kind.item_type, others))
    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(inner(kind.value_field))
    return others.get(kind, kind)


def schema_of(path: Path) -> pa.Schema:
    """The columns of a Parquet file. Raises ArchiveError, OSError."""
    return metadata_of(path).schema.to_arrow_schema().remove_metadata()


def metadata_of(path: Path) -> pq.FileMetaData:
    """The footer of an archived file. Raises ArchiveError if it is missing or damaged, and OSError."""
    try:
        return pq.read_metadata(path)
    except FileNotFoundError as error:
        raise ArchiveError(f"{path} is in a manifest, but the file is missing: somebody has removed it") from error
    except pa.ArrowException as error:
        raise ArchiveError(f"{path} is not a Parquet file: {one_line(error)}") from error
