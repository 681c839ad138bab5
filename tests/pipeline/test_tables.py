"""Archives that are tables of Delta or Iceberg: each message once in the table, and the manifests are the truth."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs import archive as archives
from rmqha.pipeline.jobs import tableformats
from rmqha.pipeline.jobs.archive import Archived, archive
from rmqha.pipeline.jobs.compact import compact
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.expire import expire
from rmqha.pipeline.jobs.manifest import Archive, ArchivedFile, ArchiveError, archived_paths
from rmqha.pipeline.jobs.restore import plan_restore, restore
from rmqha.pipeline.jobs.tablelog import FOLDERS, Change, TableFormat
from rmqha.pipeline.schema import archive_schema
from rmqha.settings.settings import Settings
from tests.pipeline.bodies.test_archived import lay
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, as_old, options_of, visible_files
from tests.pipeline.microbatches import Query
from tests.pipeline.tables import PACKAGES, manifests_of, table_of, table_offsets, versions_of, with_package

pytestmark = pytest.mark.long


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "a lake, 100% 日本"  # a path that a URL would write in another way


def run_job(store: Path, lake: Path, kind: TableFormat = TableFormat.PARQUET, **texts: object) -> Archived:
    options = options_of(store, output=lake, **texts)
    return archive(options, LocalEngine(), commit_bytes=SEGMENT_SIZE, table=kind)


def check_once(lake: Path, kind: TableFormat, offsets: Sequence[int] | None = None) -> None:
    """The table has what the manifests have, each message once."""
    archived = archived_offsets(lake)
    assert table_offsets(lake, kind) == archived
    assert offsets is None or archived == list(offsets)
    assert visible_files(lake) == sorted(archived_paths(lake))


def test_the_table_has_the_archived_messages(store: Path, lake: Path, kind: TableFormat) -> None:
    done = run_job(store, lake, kind)
    assert len(table_offsets(lake, kind)) == done.messages
    check_once(lake, kind)
    rows = table_of(lake, kind).sort_by("physicalOffset").to_pylist()
    archived = [pq.ParquetFile(path).read() for path in archived_paths(lake)]
    assert rows == pa.concat_tables(archived).to_pylist()


def test_a_version_for_each_manifest_says_its_store_epoch_and_range(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind)
    manifests = Archive(lake).manifests()
    assert len(manifests) > 2
    wanted = [(one.store_id or "", str(one.epoch), str(one.start), str(one.end)) for one in manifests]
    names = ("rmqha.store", "rmqha.epoch", "rmqha.from", "rmqha.to")
    assert [tuple(one[name] for name in names) for one in versions_of(lake, kind)] == wanted


def test_an_older_version_has_what_was_archived_then(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind, endingOffset=2 * SEGMENT_SIZE)
    before = archived_offsets(lake)
    version = len(versions_of(lake, kind)) - (0 if kind is TableFormat.DELTA else 1)  # Delta's first one creates it
    run_job(store, lake)
    check_once(lake, kind)
    assert table_offsets(lake, kind, version) == before


def test_it_stays_a_table_in_runs_that_do_not_say_so(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind, endingOffset=SEGMENT_SIZE)
    query = Query(store, lake)
    query.archive(0, 2 * SEGMENT_SIZE)
    check_once(lake, kind)
    run_job(store, lake)
    check_once(lake, kind)
    versions = len(versions_of(lake, kind))
    run_job(store, lake)  # nothing is new
    assert len(versions_of(lake, kind)) == versions


@pytest.mark.parametrize("job", [partial(expire, before=0), partial(compact, engine=LocalEngine())])
def test_what_dead_commits_left_is_removed_a_day_later(store: Path, lake: Path, job: Callable[[Path], object]) -> None:
    with_package(TableFormat.ICEBERG)

    def files() -> set[Path]:
        return set(metadata.iterdir())

    run_job(store, lake, TableFormat.ICEBERG, endingOffset=SEGMENT_SIZE)
    folder = lake / FOLDERS[TableFormat.ICEBERG]
    metadata, catalog, strange = folder / "metadata", folder / "catalog.db", folder / "metadata" / "notes.avro"
    strange.touch()
    before, as_of_then = files(), catalog.read_bytes()
    run_job(store, lake)
    catalog.write_bytes(as_of_then)  # as if the later commits had died before they counted
    orphans = files() - before
    assert {path.name[-5:] for path in orphans} == {".avro", ".json"}
    tableformats.remove_orphans(lake)
    assert files() == orphans | before, "a commit may be at work"
    for path in files():
        os.utime(path, times=(0, 0))
    job(lake)
    assert not orphans & files()
    assert before < files()
    check_once(lake, TableFormat.ICEBERG)
    assert len(manifests_of(lake)) > 1


def test_an_archive_of_files_becomes_a_table_later(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake)
    run_job(store, lake, kind)
    check_once(lake, kind)
    assert len(versions_of(lake, kind)) == len(Archive(lake).manifests())


def test_an_archive_may_be_both_tables(store: Path, lake: Path) -> None:
    for one in PACKAGES:
        with_package(one)
    run_job(store, lake, TableFormat.DELTA, endingOffset=SEGMENT_SIZE)
    run_job(store, lake, TableFormat.ICEBERG)
    check_once(lake, TableFormat.DELTA)
    check_once(lake, TableFormat.ICEBERG)


def test_files_of_before_and_after_are_one_table(store: Path, lake: Path, kind: TableFormat) -> None:
    """Old files have neither recordCRC nor rawRecord."""
    run_job(store, lake, endingOffset=2 * SEGMENT_SIZE)
    as_old(lake)
    old = len(archived_offsets(lake))
    for manifest in Archive(lake).manifests():
        files = tuple(replace(file, bytes=(lake / file.path).stat().st_size) for file in manifest.files)
        Archive(lake).put(replace(manifest, files=files))
    run_job(store, lake, kind)
    check_once(lake, kind)
    crcs = table_of(lake, kind).sort_by("physicalOffset")["recordCRC"]
    assert crcs.slice(0, old).null_count == old
    assert crcs.slice(old).null_count == 0


def test_a_column_of_another_type_is_refused_and_named(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind, endingOffset=SEGMENT_SIZE)
    before = table_offsets(lake, kind)
    with pytest.raises(ArchiveError, match="properties has incompatible types"):
        run_job(store, lake, properties="map")
    assert table_offsets(lake, kind) == before
    check_once(lake, kind, before)
    run_job(store, lake)
    check_once(lake, kind)


@pytest.mark.parametrize(
    "schema",
    [None, "s struct<t: string, l: array<struct<k: string>>>, m: map<string, array<binary>>, n array<array<tinyint>>"],
)
def test_columns_of_bodies_stay_as_they_are_in_later_runs(
    tmp_path: Path, lake: Path, kind: TableFormat, schema: str | None
) -> None:
    bodies = [b'{"s": {"t": "x", "l": [{"k": "y"}, {}]}, "m": {"z": ["AA=="]}, "n": [[1], []], "o": [{"p": ["q"]}]}']
    texts: dict[str, Any] = {"bodyFormat": "json", **({} if schema is None else {"bodySchema": schema})}
    lay(tmp_path / "bodies", bodies * 30)
    run_job(tmp_path / "bodies", lake, kind, **texts)
    lay(tmp_path / "bodies", bodies * 60)
    run_job(tmp_path / "bodies", lake, **texts)
    run_job(tmp_path / "bodies", lake, **texts)
    check_once(lake, kind)
    values = table_of(lake, kind)["value"].to_pylist()
    assert values == [values[0]] * 60
    assert values[0]["s"] == {"t": "x", "l": [{"k": "y"}, {"k": None}]}


def test_an_archive_whose_names_differ_only_in_case_goes_on(
    tmp_path: Path, lake: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions have committed such files and their manifest, before Delta refused them."""
    store = tmp_path / "bodies"
    bodies = [b'{"id":1,"ID":2}'] * 60
    lay(store, bodies)
    lake.mkdir()
    (lake / FOLDERS[kind]).mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(archives, "check_names", lambda kind: None)
        patched.setattr(tableformats, "table_logs", lambda root: [])
        run_job(store, lake, bodyFormat="json")
    assert not table_offsets(lake, kind)
    lay(store, bodies * 2)
    run_job(store, lake, bodyFormat="json")
    Query(store, lake, bodyFormat="json", bodySchema="id bigint, ID bigint")  # as does a stream
    rows = table_of(lake, kind)
    assert len(rows) == len(archived_offsets(lake)) == 120
    assert ("value" in rows.column_names) == (kind is TableFormat.ICEBERG)


def test_a_table_that_lags_behind_its_manifests_catches_up(
    store: Path, lake: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(store, lake, kind, endingOffset=SEGMENT_SIZE)
    with monkeypatch.context() as patched:
        patched.setattr(tableformats, "table_logs", lambda root: [])
        run_job(store, lake)
    assert len(table_offsets(lake, kind)) < len(archived_offsets(lake))
    run_job(store, lake)
    check_once(lake, kind)


def test_a_table_that_was_removed_is_made_again(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind)
    shutil.rmtree(lake / FOLDERS[kind])
    run_job(store, lake, kind)
    check_once(lake, kind)


def test_two_archivers_at_once_add_each_message_once(store: Path, lake: Path, kind: TableFormat) -> None:
    """Both have read the same before one of them commits."""
    tableformats.begin_table(lake, kind, archive_schema())
    one, other = Query(store, lake, splitBytes=5000), Query(store, lake, splitBytes=7001)
    read, again = (query.write(query.rows(0, query.log.end)) for query in (one, other))
    one.writer.commit(read, 0)
    other.writer.commit(again, 0)
    check_once(lake, kind)


def test_a_table_that_others_have_written_to_is_refused(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind, endingOffset=SEGMENT_SIZE)
    (log,) = tableformats.table_logs(lake)
    (manifest,) = Archive(lake).manifests()
    strange = pq.ParquetFile(lake / manifest.files[0].path).read()
    pq.write_table(strange, lake / "part-0.parquet")
    size = (lake / "part-0.parquet").stat().st_size
    file = ArchivedFile("part-0.parquet", 0, 1, 1, size, 0, 0, "")
    log.commit(Change(manifest, (file,)))
    with pytest.raises(ArchiveError, match=r"the file part-0\.parquet, which another program has written"):
        run_job(store, lake)


def test_a_broken_table_is_named_with_the_way_out(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake, kind, endingOffset=SEGMENT_SIZE)
    for path in (lake / FOLDERS[kind]).rglob("*.json"):
        path.write_bytes(b"not json")
    with pytest.raises(ArchiveError, match=f"move it elsewhere, and 'rmqha job archive --table {kind.value}'"):
        run_job(store, lake)
    shutil.rmtree(lake / FOLDERS[kind])
    run_job(store, lake, kind)
    check_once(lake, kind)


def test_a_missing_file_is_named(store: Path, lake: Path, kind: TableFormat) -> None:
    run_job(store, lake)
    path = visible_files(lake)[2]
    path.unlink()
    with pytest.raises(ArchiveError, match=f"{path.name} is in a manifest, but the file is missing"):
        run_job(store, lake, kind)


def test_without_its_package_nothing_is_read(
    store: Path, lake: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[kind], None)
    monkeypatch.delitem(sys.modules, f"rmqha.pipeline.jobs.{kind.value}", raising=False)
    with pytest.raises(OptionError, match=rf"is not installed: pip install 'rmqha\[{kind.value}\]'"):
        run_job(store, lake, kind)
    assert not visible_files(lake)


def test_a_store_is_restored_from_a_table(store: Path, lake: Path, kind: TableFormat, tmp_path: Path) -> None:
    done = run_job(store, lake, kind)
    settings = Settings(mapped_file_size_commit_log=SEGMENT_SIZE)
    found = restore(plan_restore(lake, settings), tmp_path / "again", settings, LocalEngine())
    assert (found.messages, found.is_identical) == (done.messages, True)
