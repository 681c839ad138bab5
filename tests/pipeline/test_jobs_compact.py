"""The job ``compact``: large files of small ones, sorted by topic and time, with the same messages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqha.kit.progress import IBar
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs import compact as compact_module
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compact import CompactChoices, Compacted, compact
from rmqha.pipeline.jobs.engine import LocalEngine, SparkEngine, Summary
from rmqha.pipeline.jobs.expire import expire
from rmqha.pipeline.jobs.manifest import STAGING_FOLDER, Archive, ArchivedFile, ArchiveError, archived_paths
from rmqha.pipeline.jobs.messages import archived_messages
from rmqha.pipeline.jobs.restore import plan_restore, restore
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.settings.settings import Settings
from rmqha.store.errors import NoStore, StoreError, StoreInUse
from rmqha.store.log.splits import Split
from tests.pipeline.lake import (
    SEGMENT_SIZE,
    archived_offsets,
    as_old,
    make_store,
    options_of,
    rows_of,
    visible_files,
)
from tests.pipeline.microbatches import Query
from tests.pipeline.stores import write_state
from tests.pipeline.tables import table_offsets, versions_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(mapped_file_size_commit_log=SEGMENT_SIZE)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of many small files in many manifests, of a store as each test has one."""
    folder: Path = tmp_path_factory.mktemp("archived")
    run_job(make_store(folder / "store"), folder / "lake")
    return folder / "lake"


@pytest.fixture
def lake(tmp_path: Path, archived: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(archived, tmp_path / "lake"))


def run_job(store: Path, lake: Path, table: TableFormat = TableFormat.PARQUET, **texts: object) -> None:
    options = options_of(store, **{"output": lake, "splitBytes": 1000, **texts})
    archive(options, LocalEngine(), commit_bytes=SEGMENT_SIZE // 2, table=table)


def run(lake: Path, engine: LocalEngine | None = None, **choices: Any) -> Compacted:
    return compact(lake, engine or LocalEngine(), CompactChoices(**choices))


def check_sound(lake: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The archive has these rows, each once, and for whoever lists the folder too; the manifests tell the truth."""
    assert rows_of(visible_files(lake)) == list(rows)
    assert visible_files(lake) == sorted(archived_paths(lake))
    assert list((lake / STAGING_FOLDER).iterdir()) == []
    for file in (file for one in Archive(lake).manifests() for file in one.files):
        assert (lake / file.path).stat().st_size == file.bytes
        assert pq.ParquetFile(lake / file.path).metadata.num_rows == file.rows


@pytest.mark.long
def test_small_files_become_large_ones_with_the_same_messages(lake: Path) -> None:
    rows = rows_of(visible_files(lake))
    before = len(visible_files(lake)), len(Archive(lake).manifests())
    done = run(lake)
    assert (done.files_before, done.manifests_before, done.messages) == (*before, len(rows))
    assert done.files_after == len(visible_files(lake)) == 4  # one for each segment
    assert done.manifests_after == len(Archive(lake).manifests()) == 1
    assert done.log_bytes == Archive(lake).manifests()[0].end
    assert done.bytes_after == sum(path.stat().st_size for path in visible_files(lake))
    check_sound(lake, rows)


def test_the_rows_are_sorted_by_topic_and_time_and_the_file_says_so(lake: Path) -> None:
    run(lake)
    names = ["topic", "storeTimestamp", "physicalOffset"]
    for path in visible_files(lake):
        with pq.ParquetFile(path) as file:
            table = file.read(columns=names)
            keys = [[row[name] for name in names] for row in table.to_pylist()]
            assert keys == sorted(keys)
            sorted_by = file.metadata.row_group(0).sorting_columns
            assert [file.schema_arrow.names[one.column_index] for one in sorted_by] == names


def test_a_second_run_finds_nothing_to_do(lake: Path) -> None:
    run(lake)
    before = visible_files(lake)
    done = run(lake)
    assert (done.files_before, done.manifests_before) == (0, 0)
    assert visible_files(lake) == before


@pytest.mark.long
def test_what_is_archived_later_is_compacted_with_the_rest(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "grown"
    run_job(store, lake, endingOffset=SEGMENT_SIZE // 2)
    run(lake)
    run_job(store, lake)
    rows = rows_of(visible_files(lake))
    run(lake)
    assert len(visible_files(lake)) == 4
    check_sound(lake, rows)


@pytest.mark.long
def test_a_file_holds_no_more_of_the_log_than_asked(lake: Path) -> None:
    rows = rows_of(visible_files(lake))
    run(lake, target_bytes=SEGMENT_SIZE // 3)
    files = [file for one in Archive(lake).manifests() for file in one.files]
    assert max(file.end - file.start for file in files) <= SEGMENT_SIZE // 3
    assert len(files) > 8
    check_sound(lake, rows)


def test_files_of_two_hours_stay_apart(lake: Path) -> None:
    for manifest in Archive(lake).manifests():
        files = []
        for file in manifest.files:
            path = file.path.replace("hour=", "hour=0" if file.start < 5000 else "hour=1")
            (lake / path).parent.mkdir(exist_ok=True)
            (lake / file.path).rename(lake / path)
            files.append(replace(file, path=path))
        Archive(lake).put(replace(manifest, files=tuple(files)))
    rows = rows_of(visible_files(lake))
    run(lake)
    assert len(visible_files(lake)) == 5
    check_sound(lake, rows)


def test_a_dry_run_says_the_same_and_changes_nothing(lake: Path) -> None:
    before = visible_files(lake)
    would = run(lake, dry_run=True)
    assert visible_files(lake) == before
    assert list((lake / STAGING_FOLDER).iterdir()) == []
    done = run(lake)
    for name in ("files_before", "files_after", "messages", "log_bytes", "manifests_before", "manifests_after"):
        assert getattr(would, name) == getattr(done, name), name
    assert (would.done, done.done) == (False, True)


def test_a_store_is_restored_from_a_compacted_archive(lake: Path, store: Path, tmp_path: Path) -> None:
    run(lake)
    done = restore(plan_restore(lake, SETTINGS), tmp_path / "again", SETTINGS, LocalEngine())
    assert done.is_identical
    for path in sorted((store / "commitlog").iterdir()):
        content = (tmp_path / "again" / "commitlog" / path.name).read_bytes()
        end = done.end - int(path.name)
        assert content[:end] == path.read_bytes()[:end]


def test_a_restore_in_small_batches_is_the_same(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(lake)
    monkeypatch.setattr("rmqha.pipeline.jobs.restore.ROWS_BYTES", 1500)
    assert restore(plan_restore(lake, SETTINGS), tmp_path / "again", SETTINGS, LocalEngine()).is_identical


def test_a_message_that_was_changed_after_compaction_is_not_restored(lake: Path, tmp_path: Path) -> None:
    run(lake)
    path = visible_files(lake)[1]
    with pq.ParquetFile(path) as file:
        table, sorting = file.read(), file.metadata.row_group(0).sorting_columns
    bodies = table["body"].to_pylist()
    bodies[3] = b"x" * len(bodies[3])
    at = table.schema.names.index("body")
    pq.write_table(table.set_column(at, "body", pa.array(bodies, pa.binary())), path, sorting_columns=sorting)
    offset = table["physicalOffset"][3].as_py()
    with pytest.raises(StoreError, match=f"the message at {offset} in {path} is not the one that was archived"):
        restore(plan_restore(lake, SETTINGS), tmp_path / "again", SETTINGS, LocalEngine())


def test_messages_are_sent_again_in_the_order_of_the_log(lake: Path) -> None:
    offsets = archived_offsets(lake)
    run(lake)
    assert [offset for offset, _, _ in archived_messages(lake)] == offsets
    assert [offset for offset, _, _ in archived_messages(lake, offsets[7], offsets[60])] == offsets[7:60]


@pytest.mark.long
def test_another_replica_continues_a_compacted_archive(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "of two"
    end = archive(options_of(store, output=tmp_path / "whole"), LocalEngine()).end
    write_state(store, end)
    run_job(store, lake, endingOffset=2 * SEGMENT_SIZE)
    run(lake)
    write_state(store, end, store_id="another")
    run_job(store, lake)
    assert archived_offsets(lake) == archived_offsets(tmp_path / "whole")


@pytest.mark.long
def test_an_archive_without_hashes_is_compared_by_its_messages(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "old"
    run_job(store, lake, endingOffset=2 * SEGMENT_SIZE)
    run(lake)
    for manifest in Archive(lake).manifests():
        Archive(lake).put(replace(manifest, hashes=()))
    run_job(store, lake)
    assert len(archived_offsets(lake)) == len(set(archived_offsets(lake)))


@pytest.mark.long
def test_files_of_before_and_after_stay_apart(store: Path, tmp_path: Path) -> None:
    """A file has either CRCs for all messages, or for none."""
    lake = tmp_path / "mixed"
    run_job(store, lake, endingOffset=SEGMENT_SIZE // 2)
    for path in visible_files(lake):
        pq.write_table(pq.ParquetFile(path).read().drop_columns(["recordCRC", "rawRecord"]), path)
    run_job(store, lake)
    rows = len(archived_offsets(lake))
    run(lake)
    crcs = [pq.ParquetFile(path).schema_arrow.names.count("recordCRC") for path in visible_files(lake)]
    assert sorted(crcs) == [0, 1, 1, 1, 1]
    assert len(archived_offsets(lake)) == rows
    done = restore(plan_restore(lake, SETTINGS), tmp_path / "again", SETTINGS, LocalEngine())
    assert done.is_identical


def test_an_archive_that_does_not_know_its_segments_stays(lake: Path) -> None:
    as_old(lake)
    before = visible_files(lake)
    done = run(lake)
    assert (done.files_before, done.left) == (0, len(before))
    assert visible_files(lake) == before


def test_files_without_offsets_stay(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "columns"
    run_job(store, lake, columns="topic,body")
    before = visible_files(lake)
    assert run(lake).left == len(before)
    assert visible_files(lake) == before


def test_chosen_columns_are_compacted_too(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "columns"
    run_job(store, lake, columns="body,physicalOffset,propertiesMap")
    rows = rows_of(visible_files(lake))
    run(lake)
    assert len(visible_files(lake)) == 4
    check_sound(lake, rows)


class Meanwhile(LocalEngine):
    """Compacts, and lets something happen before the commit."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], bar: IBar) -> list[Summary]:
        summaries = super().run(on_split, splits, bar)
        self._action()
        return summaries


@pytest.mark.long
def test_a_stream_archives_meanwhile(store: Path, tmp_path: Path) -> None:
    """It cleans up what it knows of, and that is not ours."""
    lake = tmp_path / "busy"
    run_job(store, lake, endingOffset=2 * SEGMENT_SIZE)
    query = Query(store, lake)
    run(lake, Meanwhile(lambda: query.archive(2 * SEGMENT_SIZE, query.log.end)))
    assert len(Archive(lake).manifests()) == 2
    run(lake)
    run_job(store, tmp_path / "whole")
    check_sound(lake, rows_of(visible_files(tmp_path / "whole")))


def test_no_job_runs_meanwhile(store: Path, lake: Path) -> None:
    with Archive(lake).job_locked():
        for other in (lambda: run(lake), lambda: expire(lake, 0), lambda: run_job(store, lake)):
            with pytest.raises(StoreInUse):
                other()


@pytest.mark.long
def test_manifests_that_were_changed_meanwhile_are_left(lake: Path) -> None:
    rows = rows_of(visible_files(lake))
    manifest = Archive(lake).manifests()[1]
    with pytest.raises(ArchiveError, match="another process has changed the manifests"):
        run(lake, Meanwhile(lambda: Archive(lake).put(replace(manifest, epoch=7))))
    assert rows_of(visible_files(lake)) == rows
    Archive(lake).put(manifest)
    run(lake)
    check_sound(lake, rows)


@pytest.mark.long
def test_what_does_not_come_back_from_the_disk_replaces_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, before = rows_of(visible_files(lake)), visible_files(lake)
    write = compact_module._write

    def write_other(rows: pa.RecordBatch, order: pa.Array, *others: Any) -> None:
        flags = pa.array([7] * len(rows), pa.int32())
        write(rows.set_column(rows.schema.names.index("flag"), "flag", flags), order, *others)

    monkeypatch.setattr(compact_module, "_write", write_other)
    with pytest.raises(StoreError, match="does not come back from the disk: the old files stay"):
        run(lake)
    assert visible_files(lake) == before
    monkeypatch.undo()
    run(lake)
    check_sound(lake, rows)


def damaged(lake: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    path = visible_files(lake)[2]
    pq.write_table(change(pq.ParquetFile(path).read()), path)
    return path


def test_a_file_with_other_messages_than_its_manifest_says_is_named(lake: Path) -> None:
    path = damaged(lake, lambda table: table.slice(1))
    before = visible_files(lake)
    with pytest.raises(StoreError, match=f"{path} has .* messages .*but its manifest says"):
        run(lake)
    assert visible_files(lake) == before


def test_a_message_that_is_there_twice_is_named(lake: Path) -> None:
    damaged(lake, lambda table: pa.concat_tables([table.slice(0, 1), table.slice(0, len(table) - 1)]))
    with pytest.raises(StoreError, match=r"the message at \d+ is there twice"):
        run(lake)


def test_a_file_that_is_no_parquet_or_missing_is_named(lake: Path) -> None:
    path = visible_files(lake)[2]
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(ArchiveError, match=f"{path} is not a Parquet file"):
        run(lake)
    path.unlink()
    with pytest.raises(ArchiveError, match=f"{path} is in a manifest, but the file is missing"):
        run(lake)


def test_an_intent_that_is_damaged_is_named(lake: Path) -> None:
    run(lake)
    path = lake / "_manifest" / "replacing" / Archive(lake).names()[0]
    path.write_bytes(b"{}")
    with pytest.raises(ArchiveError, match=f"{path} does not say what to replace"):
        run(lake)


def test_what_is_no_archive_and_sizes_that_are_none_are_refused(tmp_path: Path, lake: Path) -> None:
    with pytest.raises(NoStore, match="is not an archive"):
        run(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    for size in (0, (1 << 30) + 1):
        with pytest.raises(OptionError, match="between 1 byte and 1g"):
            run(lake, target_bytes=size)


@pytest.mark.story
def test_both_engines_make_the_same_files(store: Path, lake: Path, tmp_path: Path, spark: SparkSession) -> None:
    other = tmp_path / "by spark"
    run_job(store, other)
    run(lake)
    done = compact(other, SparkEngine(spark))
    assert done.processor_seconds > 0
    assert [one.as_posix() for one in relative(other)] == [one.as_posix() for one in relative(lake)]
    for one, two in zip(visible_files(other), visible_files(lake), strict=True):
        assert pq.ParquetFile(one).read().equals(pq.ParquetFile(two).read())


def relative(lake: Path) -> list[Path]:
    return [path.relative_to(lake) for path in visible_files(lake)]


@pytest.mark.long
def test_a_table_has_the_large_files_in_one_version(store: Path, tmp_path: Path, kind: TableFormat) -> None:
    lake = tmp_path / "table"
    run_job(store, lake, kind)
    offsets, before = archived_offsets(lake), len(versions_of(lake, kind))
    run(lake)
    assert table_offsets(lake, kind) == archived_offsets(lake) == offsets
    assert len(versions_of(lake, kind)) == before + 1
    files: list[ArchivedFile] = [file for one in Archive(lake).manifests() for file in one.files]
    assert len(files) == 4
