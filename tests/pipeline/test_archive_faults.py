"""An archive with several writers, on a full disk, after a hand has reached into it: each message once, or an error."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from rmqha.kit.progress import IBar
from rmqha.pipeline.jobs import manifest
from rmqha.pipeline.jobs.archive import Archived, archive
from rmqha.pipeline.jobs.engine import LocalEngine, Summary
from rmqha.pipeline.jobs.manifest import MANIFEST_FOLDER, STAGING_FOLDER, Archive, ArchiveError, archived_paths
from rmqha.store.errors import DataLossError, StoreInUse
from rmqha.store.log.mappedfile import file_name
from rmqha.store.log.splits import Split
from rmqha.store.nodestate import Offsets
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Blank
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, make_store, options_of, rows_of, visible_files
from tests.pipeline.microbatches import Query
from tests.pipeline.stores import write_state
from tests.store.test_disk_faults import small_disk
from tests.waiting import WAIT_SECONDS

HOLDER = """
import sys
from pathlib import Path
from rmqha.pipeline.jobs.manifest import Archive
with Archive(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def offsets(store: Path) -> list[int]:
    """Where all messages lie."""
    reader = StoreReader(store)
    found = [offset for offset, record in reader.records(0, None) if not isinstance(record, Blank)]
    reader.close()
    return found


def run_job(store: Path, lake: Path, engine: LocalEngine | None = None, **texts: object) -> Archived:
    return archive(options_of(store, output=lake, **texts), engine or LocalEngine())


def check_once(lake: Path, offsets: Sequence[int]) -> None:
    """Each message is there once, by the manifests and for whoever lists the folder, and manifests tell the truth."""
    assert archived_offsets(lake) == list(offsets)
    assert visible_files(lake) == sorted(archived_paths(lake))
    for file in (file for one in Archive(lake).manifests() for file in one.files):
        assert (lake / file.path).stat().st_size == file.bytes
        assert pq.ParquetFile(lake / file.path).metadata.num_rows == file.rows
    assert list((lake / STAGING_FOLDER).iterdir()) == []


@pytest.fixture
def holder(lake: Path) -> subprocess.Popen[bytes]:
    """Another process that commits to the archive, until its stdin ends."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lake)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.process
@pytest.mark.parametrize("kind", ["stream", "job"])
def test_who_commits_waits_for_another_process_that_does(
    store: Path,
    lake: Path,
    offsets: list[int],
    holder: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    waits = []

    def let_go(seconds: float) -> None:
        waits.append(seconds)
        holder.communicate(timeout=WAIT_SECONDS)

    monkeypatch.setattr(manifest, "time", SimpleNamespace(monotonic=time.monotonic, sleep=let_go))
    if kind == "job":
        run_job(store, lake)
    else:
        query = Query(store, lake)
        query.archive(0, query.log.end)
    assert len(waits) == 1
    assert holder.returncode == 0
    check_once(lake, offsets)


@pytest.mark.process
def test_nobody_waits_for_ever(lake: Path, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(StoreInUse, match="another process archives"), Archive(lake).locked(patience_seconds=0.01):
        pass
    holder.communicate(timeout=WAIT_SECONDS)


class Meanwhile(LocalEngine):
    """Reads the log, and lets something happen before what was read is archived."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._actions = [action]

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], bar: IBar) -> list[Summary]:
        summaries = super().run(on_split, splits, bar)
        while self._actions:
            self._actions.pop()()
        return summaries


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1, 30, 60, 100])
def test_a_job_goes_on_behind_what_a_stream_archives_meanwhile(
    store: Path, lake: Path, offsets: list[int], number: int
) -> None:
    """Their splits do not agree, and the stream may have got anywhere."""
    query = Query(store, lake, splitBytes=7001)
    done = run_job(store, lake, Meanwhile(lambda: query.archive(0, offsets[number])), splitBytes=5000)
    assert done.messages == len(offsets) - number
    check_once(lake, offsets)


@pytest.mark.parametrize(("start", "end"), [(0, 20), (13, 41), (25, 26), (90, 110), (0, 110)])
def test_of_two_streams_the_later_adds_what_the_earlier_has_not(
    store: Path, lake: Path, offsets: list[int], start: int, end: int
) -> None:
    """Both have read before one of them commits; that one removes what it sees of the other's."""
    one, other = Query(store, lake, splitBytes=5000), Query(store, lake, splitBytes=7001)
    read = one.write(one.rows(0, one.log.end))
    other.archive(offsets[start], offsets[end])
    one.writer.commit(read, 0)
    check_once(lake, offsets)


@pytest.mark.long
def test_splits_that_overlap_are_archived_once(store: Path, lake: Path, offsets: list[int]) -> None:
    """As in a union of two frames of one store."""
    one, other = Query(store, lake, splitBytes=5000), Query(store, lake, splitBytes=7001)
    rows = [*one.rows(0, one.log.end), *other.rows(offsets[9], other.log.end), *one.rows(0, offsets[40])]
    one.writer.commit(one.write(rows), 0)
    check_once(lake, offsets)


def test_splits_of_two_stores_are_refused(store: Path, lake: Path, tmp_path: Path) -> None:
    one, other = Query(store, lake), Query(make_store(tmp_path / "other", seed=2), lake)
    rows = [*one.rows(0, one.log.end), *other.rows(0, other.log.end)]
    with pytest.raises(ArchiveError, match=r"one store, not to .*other and .*store"):
        one.writer.commit(one.write(rows), 0)
    with pytest.raises(ArchiveError, match="one store"):
        one.writer.write(iter(rows))
    assert visible_files(lake) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_second_try_of_a_task_changes_nothing_of_the_first(
    store: Path, lake: Path, offsets: list[int], is_late: bool
) -> None:
    """Also where it finds less than the first: the log's begin was deleted in between, and that is accepted."""
    query = Query(store, lake, failOnDataLoss="false")
    rows = query.rows(0, query.log.end)
    first = query.write(rows)
    if is_late:
        query.writer.commit(first, 0)
    (store / "commitlog" / file_name(0)).unlink()
    query.write(rows)
    query.writer.commit(first, 0)
    check_once(lake, offsets)


@pytest.mark.parametrize("accepted", ["true", "false"])
def test_a_log_whose_begin_is_deleted_before_a_task_reads_it(
    store: Path, lake: Path, offsets: list[int], accepted: str
) -> None:
    query = Query(store, lake, failOnDataLoss="false" if accepted == "true" else "true")
    rows = query.rows(0, query.log.end)
    (store / "commitlog" / file_name(0)).unlink()
    if accepted == "false":
        with pytest.raises(DataLossError):
            query.write(rows)
        assert list(lake.rglob("*.parquet*")) == []
    else:
        query.writer.commit(query.write(rows), 0)
        check_once(lake, [offset for offset in offsets if offset >= SEGMENT_SIZE])


def test_what_was_taken_back_while_it_was_read_is_not_archived(store: Path, lake: Path, offsets: list[int]) -> None:
    write_state(store, offsets[-1])
    query = Query(store, lake)
    read = query.write(query.rows(0, query.log.end))
    write_state(store, offsets[-1], epoch=2, epoch_start=offsets[50])
    with pytest.raises(ArchiveError, match="took back messages that were read"):
        query.writer.commit(read, 0)
    assert archived_paths(lake) == []


def test_a_store_of_a_later_epoch_is_archived_on_if_it_took_nothing_archived_back(
    store: Path, lake: Path, offsets: list[int]
) -> None:
    write_state(store, offsets[40])
    Query(store, lake).archive(0, offsets[40])
    write_state(store, offsets[90], epoch=2, epoch_start=offsets[50])
    later = Query(store, lake)
    later.archive(offsets[40], offsets[90])
    check_once(lake, offsets[:90])


def test_two_epochs_later_nobody_knows_what_was_taken_back(store: Path, lake: Path, offsets: list[int]) -> None:
    """Only where the last epoch begins is known; the one before it may have begun in what is archived."""
    write_state(store, offsets[40])
    run_job(store, lake)
    write_state(store, offsets[90], epoch=3, epoch_start=offsets[80])
    with pytest.raises(ArchiveError, match="took back"):
        run_job(store, lake)


def test_what_is_not_confirmed_is_not_archived(store: Path, lake: Path, offsets: list[int]) -> None:
    """It may be cut off at any time, and no epoch would tell."""
    write_state(store, offsets[40], offsets=Offsets(0, offsets[90], offsets[90], offsets[90], offsets[40]))
    query = Query(store, lake, readUpTo="written")
    for run in (lambda: run_job(store, lake, readUpTo="written"), lambda: query.archive(0, query.log.end)):
        with pytest.raises(
            ArchiveError, match=f"only confirmed messages can be archived, up to {offsets[40]} and not to"
        ):
            run()
    assert archived_paths(lake) == []


@pytest.mark.process
def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(store: Path, offsets: list[int], tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 40_000) as disk:
        lake = disk / "lake"
        query = Query(store, lake)
        for run in (lambda: run_job(store, lake), lambda: query.archive(0, query.log.end)):
            with pytest.raises(OSError, match="No space left"):
                run()
            assert set(visible_files(lake)) == set(archived_paths(lake))
            assert list((lake / STAGING_FOLDER).glob(".*.tmp")) == []
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        run_job(store, lake)
        check_once(lake, offsets)


def test_a_folder_that_cannot_be_made_is_an_os_error(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        run_job(store, tmp_path / "file" / "lake")


def test_a_corrupt_manifest_is_named(store: Path, lake: Path) -> None:
    run_job(store, lake)
    (path,) = (lake / MANIFEST_FOLDER).glob("*.json")
    path.write_bytes(path.read_bytes()[:-40])
    for use in (lambda: run_job(store, lake), lambda: archived_paths(lake)):
        with pytest.raises(ArchiveError, match=f"{path} is not a manifest"):
            use()


@pytest.mark.long
def test_files_whose_manifest_was_removed_are_not_doubled(store: Path, lake: Path, offsets: list[int]) -> None:
    run_job(store, lake)
    (path,) = (lake / MANIFEST_FOLDER).glob("*.json")
    path.rename(lake / "kept")
    with pytest.raises(ArchiveError, match="but no manifest contains it: restore the manifest"):
        run_job(store, lake, splitBytes=7001)
    (lake / "kept").rename(path)
    run_job(store, lake, splitBytes=7001)
    check_once(lake, offsets)
    path.unlink()
    run_job(store, lake)  # the same files anew, in place of those
    check_once(lake, offsets)


def test_a_file_that_was_removed_is_named(store: Path, lake: Path) -> None:
    run_job(store, lake)
    path = visible_files(lake)[2]
    path.unlink()
    with pytest.raises(ArchiveError, match=f"{path} is in a manifest, but the file is missing"):
        archived_paths(lake)


def test_who_only_lists_the_folder_sees_nothing_that_is_not_archived(
    store: Path, lake: Path, offsets: list[int]
) -> None:
    """Another query is at work: it has staged all, and has died in the middle of a file."""
    run_job(store, lake, endingOffset=offsets[50])
    query = Query(store, lake)
    query.write(query.rows(offsets[50], query.log.end))
    assert list((lake / STAGING_FOLDER).iterdir()) != []
    dataset = pyarrow.dataset.dataset(lake, format="parquet", partitioning="hive")
    assert sorted(dataset.to_table()["physicalOffset"].to_pylist()) == offsets[:50]
    assert dataset.schema.names[-2:] == ["date", "hour"]
    listed = list(lake.glob("**/*.parquet"))  # hidden names too
    assert [row["physicalOffset"] for row in rows_of(listed)] == offsets[:50]
