"""What the tables that an archive can be have in common: the log of a table, its commits, and its columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rmqha.pipeline.errors import one_line
from rmqha.pipeline.jobs.manifest import ArchivedFile, ArchiveError, Manifest


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
