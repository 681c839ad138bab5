"""The job ``expire``: the oldest messages of an archive go, and the manifests stay true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compact import compact
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.expire import Expired, expire
from rmqha.pipeline.jobs.manifest import Archive, ArchivedFile, archived_paths
from rmqha.pipeline.jobs.restore import NotRestorable, plan_restore, restore
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.settings.settings import Settings
from rmqha.store.errors import NoStore
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, options_of, visible_files
from tests.pipeline.tables import table_offsets, versions_of

SETTINGS = Settings(mapped_file_size_commit_log=SEGMENT_SIZE)
HOUR_MS = 3600_000


@pytest.fixture
def lake(tmp_path: Path, store: Path) -> Path:
    """An archive whose files are an hour apart: their number in the log's order is the hour."""
    root = tmp_path / "lake"
    run_job(store, root)
    in_hours(root)
    return root


def run_job(store: Path, lake: Path, table: TableFormat = TableFormat.PARQUET) -> None:
    archive(options_of(store, output=lake), LocalEngine(), commit_bytes=SEGMENT_SIZE * 3 // 2, table=table)


def in_hours(lake: Path) -> None:
    hour = 0
    for manifest in Archive(lake).manifests():
        files = []
        for file in manifest.files:
            files.append(replace(file, min_store_timestamp=hour * HOUR_MS, max_store_timestamp=hour * HOUR_MS + 1))
            hour += 1
        Archive(lake).put(replace(manifest, files=tuple(files)))


def files_of(lake: Path) -> list[ArchivedFile]:
    return [file for one in Archive(lake).manifests() for file in one.files]


def run(lake: Path, hours: float, dry_run: bool = False) -> Expired:
    return expire(lake, int(hours * HOUR_MS), dry_run)


def check_expired(lake: Path, files: list[ArchivedFile], count: int) -> None:
    """The first files went, and the others stayed; the archive still covers the same range."""
    assert files_of(lake) == files[count:]
    assert visible_files(lake) == sorted(archived_paths(lake)) == sorted(lake / file.path for file in files[count:])


@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_files_go_whose_messages_are_all_older(lake: Path, count: int) -> None:
    files, covered = files_of(lake), Archive(lake).covered()
    done = run(lake, count)
    assert (done.start, done.end) == (0, files[count].start)
    assert (done.files, done.messages) == (count, sum(file.rows for file in files[:count]))
    assert done.bytes == sum(file.bytes for file in files[:count])
    assert done.oldest_left == count * HOUR_MS
    check_expired(lake, files, count)
    assert Archive(lake).covered() == covered


def test_a_file_stays_whole_for_its_last_message(lake: Path) -> None:
    files = files_of(lake)
    assert expire(lake, 3 * HOUR_MS + 1).files == 3
    check_expired(lake, files, 3)


def test_a_clock_that_stepped_back_takes_nothing_from_the_middle(lake: Path) -> None:
    (first, *_) = Archive(lake).manifests()
    late = replace(first.files[1], max_store_timestamp=100 * HOUR_MS)
    Archive(lake).put(replace(first, files=(first.files[0], late, *first.files[2:])))
    assert run(lake, 9).files == 1


def test_nothing_goes_that_is_not_that_old(lake: Path) -> None:
    files = files_of(lake)
    done = run(lake, 0)
    assert (done.files, done.start, done.end) == (0, 0, 0)
    check_expired(lake, files, 0)


def test_a_dry_run_says_the_same_and_removes_nothing(lake: Path) -> None:
    files = files_of(lake)
    would = run(lake, 5, dry_run=True)
    check_expired(lake, files, 0)
    assert replace(would, done=True) == run(lake, 5)


def test_a_second_run_goes_on_where_the_first_ended(lake: Path) -> None:
    files = files_of(lake)
    first = run(lake, 2)
    again = run(lake, 2)
    assert (again.files, again.start, again.end) == (0, first.end, first.end)
    assert run(lake, 6).start == first.end
    check_expired(lake, files, 6)


def test_everything_may_go_and_what_comes_later_is_archived(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "grown"
    archive(options_of(store, output=lake, endingOffset=SEGMENT_SIZE), LocalEngine())
    done = run(lake, 10**6)
    assert (done.oldest_left, done.restorable) == (None, None)
    assert archived_offsets(lake) == []
    run_job(store, lake)
    assert min(archived_offsets(lake)) == SEGMENT_SIZE


def test_what_was_removed_is_not_archived_again(store: Path, lake: Path) -> None:
    run(lake, 5)
    before = archived_offsets(lake)
    run_job(store, lake)
    assert archived_offsets(lake) == before


def test_a_restore_says_from_where_on_it_can_begin(lake: Path, tmp_path: Path) -> None:
    done = run(lake, 2)
    assert done.end % SEGMENT_SIZE != 0
    assert done.restorable == SEGMENT_SIZE
    with pytest.raises(NotRestorable, match=f"--whole-segments makes a store of the messages from {SEGMENT_SIZE} on"):
        plan_restore(lake, SETTINGS)
    plan = plan_restore(lake, SETTINGS, whole_segments=True)
    found = restore(plan, tmp_path / "again", SETTINGS, LocalEngine())
    assert (found.start, found.is_identical) == (SEGMENT_SIZE, True)
    assert found.messages == sum(offset >= SEGMENT_SIZE for offset in archived_offsets(lake))


def test_a_restore_from_the_begin_of_a_segment_needs_no_choice(lake: Path, tmp_path: Path) -> None:
    count = sum(file.start < SEGMENT_SIZE for file in files_of(lake))
    assert run(lake, count).restorable == SEGMENT_SIZE
    assert restore(plan_restore(lake, SETTINGS), tmp_path / "again", SETTINGS, LocalEngine()).is_identical


def test_the_rest_of_one_segment_makes_no_store(lake: Path) -> None:
    files = files_of(lake)
    assert files[-2].start // SEGMENT_SIZE == files[-1].start // SEGMENT_SIZE
    assert run(lake, len(files) - 1).restorable is None
    with pytest.raises(NotRestorable, match="and has no other one"):
        plan_restore(lake, SETTINGS, whole_segments=True)


@pytest.mark.long
def test_compaction_keeps_what_was_expired(store: Path, lake: Path, tmp_path: Path) -> None:
    run(lake, 2)
    offsets = archived_offsets(lake)
    compact(lake, LocalEngine())
    assert archived_offsets(lake) == offsets
    assert len(Archive(lake).manifests()) == 1
    run_job(store, lake)
    assert archived_offsets(lake) == offsets
    plan = plan_restore(lake, SETTINGS, whole_segments=True)
    assert restore(plan, tmp_path / "again", SETTINGS, LocalEngine()).is_identical


@pytest.mark.long
def test_the_table_loses_the_files_in_a_version_of_its_own(store: Path, tmp_path: Path, kind: TableFormat) -> None:
    lake = tmp_path / "table"
    run_job(store, lake, kind)
    in_hours(lake)
    before = len(versions_of(lake, kind))
    run(lake, 2)
    assert table_offsets(lake, kind) == archived_offsets(lake)
    assert len(versions_of(lake, kind)) == before + 1
    run(lake, 100)
    assert table_offsets(lake, kind) == []


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="is not an archive"):
        run(tmp_path / "nothing", 1)
    assert not (tmp_path / "nothing").exists()
