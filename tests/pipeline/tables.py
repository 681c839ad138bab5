"""Archives that are tables, read as their users do: by the packages of the formats, and without our manifests."""

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from rmqha.pipeline.jobs.tablelog import TableFormat
from tests.needs import need

PACKAGES = {TableFormat.DELTA: "deltalake", TableFormat.ICEBERG: "pyiceberg.catalog.sql"}


def with_package(table: TableFormat) -> TableFormat:
    """This format, if its package is there: without it tests are skipped, but on CI they fail."""
    try:
        if table in PACKAGES:
            importlib.import_module(PACKAGES[table])
    except ModuleNotFoundError as error:
        need(f"{error.name} is not installed: pip install 'rmqha[{table.value}]'")
    return table


def table_of(lake: Path, kind: TableFormat, version: int | None = None) -> pa.Table:
    """All rows of a table, now or in one of its versions; without rows if it was not created yet."""
    return _delta(lake, version) if kind is TableFormat.DELTA else _iceberg(lake, version)


def _delta(lake: Path, version: int | None) -> pa.Table:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(lake)):
        return pa.table({"physicalOffset": pa.array([], pa.int64())})
    files = SubTreeFileSystem(str(lake), LocalFileSystem())
    return DeltaTable(lake, version=version).to_pyarrow_table(filesystem=files)


def _iceberg(lake: Path, version: int | None) -> pa.Table:
    from pyiceberg.table import StaticTable

    if not (lake / "_iceberg" / "metadata" / "version-hint.text").exists():
        return pa.table({"physicalOffset": pa.array([], pa.int64())})
    table = StaticTable.from_metadata(str(lake / "_iceberg"))
    return table.scan(snapshot_id=None if version is None else table.snapshots()[version].snapshot_id).to_arrow()


def table_offsets(lake: Path, kind: TableFormat, version: int | None = None) -> list[int]:
    """Where the table's messages lie in the log, ascending."""
    return sorted(table_of(lake, kind, version)["physicalOffset"].to_pylist())


def versions_of(lake: Path, kind: TableFormat) -> list[dict[str, Any]]:
    """What the table's history says of each version that added or removed files: oldest first."""
    if kind is TableFormat.DELTA:
        from deltalake import DeltaTable

        history = reversed(DeltaTable(lake).history())
        return [one for one in history if "rmqha.from" in one]
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(lake / "_iceberg"))
    return [one.summary.additional_properties for one in table.snapshots() if one.summary is not None]


def manifests_of(lake: Path) -> set[str]:
    """The manifests of all versions of an Iceberg table; each is read."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(lake / "_iceberg"))
    found = [one for snapshot in table.snapshots() for one in snapshot.manifests(table.io)]
    for one in found:
        one.fetch_manifest_entry(table.io, discard_deleted=False)
    return {one.manifest_path for one in found}
