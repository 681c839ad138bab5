"""The metadata of an Iceberg table, written by the package ``pyiceberg``."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from rmqha.pipeline.errors import one_line
from rmqha.pipeline.jobs.manifest import ArchiveError, make_folder
from rmqha.pipeline.jobs.tablelog import FOLDERS, Change, TableFormat, columns_of, unified_schema, with_types
from rmqha.store.log.mappedfile import DISK

FOLDER = FOLDERS[TableFormat.ICEBERG]
CATALOG_NAME, NAMESPACE, TABLE = "rmqha", "rmqha", "archive"
CATALOG_FILE = "catalog.db"
METADATA_FOLDER = "metadata"
HINT_PATH = f"{METADATA_FOLDER}/version-hint.text"
"""Readers without the catalog find the newest metadata here: ``StaticTable.from_metadata(".../_iceberg")``."""
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OF_COMMITS = re.compile(rf"\d{{5,}}-{UUID}\.metadata\.json|{UUID}-m\d+\.avro|snap-\d+-\d+-{UUID}\.avro")
"""What a commit writes before it counts: a metadata file, manifests, and a list of manifests."""
WIDER = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
"""What Iceberg has in the place of types that it does not have."""
PROPERTIES = {
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}


log = logging.getLogger(__name__)


class IcebergLog:
    """See ``TableLog``. The paths in an Iceberg table are absolute."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._folder = self._root / FOLDER

    def paths(self) -> set[str]:
        """See ``TableLog``."""
        with self._explained():
            table = self._load()
            if table is None:
                return set()
            self._hint(table)  # a process may have died right after its commit
            return set(self._files(table))

    def check(self, columns: pa.Schema) -> None:
        """See ``TableLog``."""
        with self._explained():
            self._unified([columns], self._load())

    def commit(self, change: Change) -> None:
        """See ``TableLog``."""
        with self._explained():
            table = self._table(change)
            with table.transaction() as transaction:
                self._commit(table, transaction, change)
            self._hint(table)

    def remove_orphans(self, before: float) -> None:
        """See ``TableLog``."""
        with self._explained():
            table = self._load()
            if table is None:
                return
            needed = {Path(path).name for path in _needed(table)}
            orphans = [
                path
                for path in (self._folder / METADATA_FOLDER).iterdir()
                if OF_COMMITS.fullmatch(path.name) and path.name not in needed and path.stat().st_mtime < before
            ]
            for path in orphans:
                path.unlink()
            if orphans:
                log.warning("%d files of commits that died are removed from %s", len(orphans), self._folder)

    def _hint(self, table: Table) -> None:
        """Tell readers without the catalog where the newest metadata is."""
        path, name = self._folder / HINT_PATH, Path(table.metadata_location).name.encode()
        if not path.exists() or path.read_bytes() != name:
            DISK.replace(path, name)

    def _commit(self, table: Table, transaction: Transaction, change: Change) -> None:
        uris = [self._uri(file.path) for file in change.adds]
        if not change.removes:
            transaction.add_files(uris, snapshot_properties=change.facts(), check_duplicate_files=False)
            return
        known = self._files(table)
        with transaction.update_snapshot(snapshot_properties=change.facts()).overwrite() as snapshot:
            for path in change.removes:
                snapshot.delete_data_file(known[path])
            for uri in uris:
                snapshot.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, uri))

    def _uri(self, path: str) -> str:
        return f"file://{self._root / path}"

    def _files(self, table: Table) -> dict[str, DataFile]:
        """The files of the newest version, by their paths relative to the archive."""
        prefix = self._uri("") + "/"
        return {task.file.file_path.removeprefix(prefix): task.file for task in table.scan().plan_files()}

    def _catalog(self) -> SqlCatalog:
        make_folder(self._folder)
        uri = URL.create("sqlite", database=str(self._folder / CATALOG_FILE))
        return SqlCatalog(CATALOG_NAME, uri=uri.render_as_string(), warehouse=f"file://{self._folder}")

    def _load(self) -> Table | None:
        if not (self._folder / CATALOG_FILE).exists():
            return None
        try:
            return self._catalog().load_table((NAMESPACE, TABLE))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _table(self, change: Change) -> Table:
        """The table with all columns of the new files."""
        table, columns = self._load(), columns_of(self._root, change.adds)
        unified = self._unified(columns, table)
        if table is None:
            catalog = self._catalog()
            catalog.create_namespace_if_not_exists(NAMESPACE)
            location = f"file://{self._folder}"
            return catalog.create_table((NAMESPACE, TABLE), unified, location=location, properties=PROPERTIES)
        if len(unified) > len(table.schema().fields):
            with table.update_schema() as update:
                update.union_by_name(unified)
        return table

    def _unified(self, columns: Sequence[pa.Schema], table: Table | None) -> pa.Schema:
        """The columns of the table with those of some files. Raises ArchiveError if a column has two types."""
        return unified_schema(self._root, [with_types(each, WIDER) for each in columns], self._columns(table))

    @staticmethod
    def _columns(table: Table | None) -> pa.Schema | None:
        """The columns of the newest version; None if there is no table yet."""
        return None if table is None else schema_to_pyarrow(table.schema(), include_field_ids=False)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, ValidationError, CommitFailedException, ValueError, FileNotFoundError) as error:
            raise ArchiveError(
                f"{self._folder} cannot be used ({one_line(error)}): move it elsewhere, and "
                "'rmqha job archive --table iceberg' makes it again from the manifests"
            ) from error


def _needed(table: Table) -> Iterator[str]:
    """The files to which the newest metadata refers, and that itself, as paths or URIs."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (one.metadata_file for one in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        yield from (manifest.manifest_path for manifest in snapshot.manifests(table.io))
