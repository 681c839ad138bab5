"""The log of a Delta Lake table, written by the package ``deltalake``."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from rmqha.pipeline.errors import one_line
from rmqha.pipeline.jobs.manifest import ArchivedFile, ArchiveError
from rmqha.pipeline.jobs.tablelog import FOLDERS, Change, TableFormat, columns_of, metadata_of, unified_schema
from rmqha.pipeline.sqltypes import same_but_case
from rmqha.store.log.mappedfile import sync_folder

FOLDER = FOLDERS[TableFormat.DELTA]
SKIPPING_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp")
"""Columns whose least and greatest values the log has, so that a query opens fewer files."""


class DeltaLog:
    """See ``TableLog``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def paths(self) -> set[str]:
        """See ``TableLog``."""
        with self._explained():
            return set() if not self._exists() else set(self._paths(DeltaTable(self._root)))

    def check(self, columns: pa.Schema) -> None:
        """See ``TableLog``."""
        with self._explained():
            self._schema([columns], DeltaTable(self._root) if self._exists() else None)

    @staticmethod
    def _paths(table: DeltaTable) -> list[str]:
        return pa.table(table.get_add_actions())["path"].to_pylist() if table.version() >= 0 else []

    def commit(self, change: Change) -> None:
        """See ``TableLog``."""
        with self._explained():
            table = self._table(change)
            actions: list[AddAction | RemoveAction] = [self._add(file, not change.keeps_rows) for file in change.adds]
            now = int(datetime.now().timestamp() * 1000)
            actions += [RemoveAction(path, not change.keeps_rows, now) for path in change.removes]
            facts = CommitProperties(custom_metadata=change.facts())
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=facts)
            self._sync()

    def remove_orphans(self, before: float) -> None:
        """See ``TableLog``. A commit of Delta is one file, so none dies with a part of its files written."""

    def _exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self._root))

    def _table(self, change: Change) -> DeltaTable:
        """The table with all columns of the new files."""
        columns = columns_of(self._root, change.adds)
        if not self._exists():
            DeltaTable.create(self._root, self._schema(columns, None))
            return DeltaTable(self._root)
        table = DeltaTable(self._root)
        known = {field.name for field in table.schema().fields}
        missing = [field for field in self._schema(columns, table).fields if field.name not in known]
        if missing:
            table.alter.add_columns(missing)
            return DeltaTable(self._root)
        return table

    def _schema(self, columns: Sequence[pa.Schema], table: DeltaTable | None) -> Schema:
        """All columns that the table has with files of these ``columns``.

        Delta takes names that differ only in case for one. Older archives may have a column with such fields: the
        table is without it.
        """
        known = None if table is None else pa.schema(table.schema().to_arrow())
        unified = unified_schema(self._root, columns, known)
        possible = pa.schema([field for field in unified if same_but_case(field.type) is None])
        try:
            return Schema.from_arrow(possible)
        except Exception as error:  # deltalake has no error of its own for it
            raise ArchiveError(f"the table in {self._root} cannot have these columns: {one_line(error)}") from error

    def _add(self, file: ArchivedFile, is_new: bool) -> AddAction:
        path = self._root / file.path
        return AddAction(
            file.path,
            file.bytes,
            {},
            int(path.stat().st_mtime * 1000),
            is_new,
            json.dumps(_statistics(metadata_of(path))),
        )

    def _sync(self) -> None:
        """Bring the log to the disk: the package leaves that to the system."""
        folder = self._root / FOLDER
        newest = max(folder.glob("*.json"))
        with newest.open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(folder)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DeltaError as error:
            raise ArchiveError(
                f"{self._root / FOLDER} cannot be used ({one_line(error)}): move it elsewhere, and "
                "'rmqha job archive --table delta' makes it again from the manifests"
            ) from error


def _statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """What Delta's log says of a file: the number of its rows, and the bounds of some columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    names = metadata.schema.to_arrow_schema().names
    paths = {metadata.row_group(0).column(at).path_in_schema: at for at in range(metadata.num_columns)}
    for name in (name for name in SKIPPING_COLUMNS if name in names):
        groups = [
            metadata.row_group(number).column(paths[name]).statistics for number in range(metadata.num_row_groups)
        ]
        if all(one is not None and one.has_min_max for one in groups):
            least[name] = _value(min(one.min for one in groups))
            greatest[name] = _value(max(one.max for one in groups))
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _value(value: Any) -> Any:
    """A value as Delta's log has it."""
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value
