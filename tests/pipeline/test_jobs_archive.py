"""The job ``archive``: every message is in the lake exactly once, whatever happens on the way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.pipeline.jobs.archive import Archived, archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import (
    STAGING_FOLDER,
    Archive,
    ArchiveError,
    archived_paths,
    open_staging,
    stage,
    uncovered,
)
from rmqha.pipeline.plan import open_log
from rmqha.store.errors import DataLossError, StoreError, StoreInUse
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Blank
from tests.fixtures import expected, new_folder, unpacked
from tests.pipeline.lake import (
    SEGMENT_SIZE,
    archived_offsets,
    make_store,
    options_of,
    overwrite,
    rows_of,
    visible_files,
)

KILLS = 20
"""The fewest steps that count: fewer would mean that the kills miss the work."""
SOME = 7
"""`make test` kills at one of so many steps; `make proofs` kills at each."""


def offsets_of(store: Path) -> list[int]:
    """Where all messages lie."""
    reader = StoreReader(store)
    try:
        return [offset for offset, record in reader.records(0, None) if not isinstance(record, Blank)]
    finally:
        reader.close()


def expected_end(store: Path) -> int:
    """Where the last message of a store ends."""
    return open_log(options_of(store)).end


class ArchiveTests(SynchronousTestCase):
    def setUp(self) -> None:
        folder = new_folder(self)
        self.store = make_store(folder / "store")
        self.lake = folder / "lake"

    def archive(self, commit_bytes: int = 1 << 30, **texts: object) -> Archived:
        return archive(options_of(self.store, output=self.lake, **texts), LocalEngine(), commit_bytes=commit_bytes)

    def check_once(self) -> None:
        """Each message is there once: by the manifests, and for those who only list the folder."""
        self.assertEqual(archived_offsets(self.lake), offsets_of(self.store))
        self.assertEqual(visible_files(self.lake), sorted(archived_paths(self.lake)))

    def test_every_message_is_there_once(self) -> None:
        done = self.archive()
        self.assertEqual(done.messages, len(offsets_of(self.store)))
        self.assertGreater(done.files, 4)
        self.check_once()

    @pytest.mark.long
    def test_the_columns_are_what_java_reads(self) -> None:
        self.store = unpacked("master-crash")
        self.archive(splitBytes="300k", batchBytes="100k")
        messages = [line for line in expected() if "blank" not in line]
        rows = rows_of(visible_files(self.lake))
        for name in (
            "topic",
            "queueId",
            "queueOffset",
            "physicalOffset",
            "totalSize",
            "bodyCRC",
            "bornHost",
            "storeHost",
        ):
            self.assertEqual([row[name] for row in rows], [line[name] for line in messages], name)
        self.assertEqual([len(row["body"]) for row in rows], [line["bodyLength"] for line in messages])
        stored = [round(row["storeTimestamp"].timestamp() * 1000) for row in rows]
        self.assertEqual(stored, [line["storeTimestamp"] for line in messages])

    def test_any_engine_reads_the_folder_by_date_and_hour(self) -> None:
        done = self.archive()
        dataset = pyarrow.dataset.dataset(self.lake, format="parquet", partitioning="hive")
        self.assertEqual(dataset.count_rows(), done.messages)
        self.assertLessEqual({"date", "hour"}, set(dataset.schema.names))

    @pytest.mark.long
    def test_the_codec_is_the_one_asked_for(self) -> None:
        for asked, written in (("snappy", "SNAPPY"), ("none", "UNCOMPRESSED"), ("zstd", "ZSTD")):
            lake = self.lake / asked
            archive(options_of(self.store, output=lake, compression=asked), LocalEngine())
            for path in visible_files(lake):
                group = pq.ParquetFile(path).metadata.row_group(0)
                self.assertEqual({group.column(i).compression for i in range(group.num_columns)}, {written})

    def test_a_second_run_finds_nothing_to_do(self) -> None:
        first = self.archive()
        before = visible_files(self.lake)
        second = self.archive()
        self.assertEqual((second.messages, second.files, second.end), (0, 0, first.end))
        self.assertEqual(visible_files(self.lake), before)

    @pytest.mark.long
    def test_what_has_grown_since_is_added(self) -> None:
        whole = make_store(self.store.parent / "whole", log_bytes=90_000)
        first = self.archive()
        shutil.copytree(whole, self.store, dirs_exist_ok=True)
        second = self.archive(splitBytes=777)
        self.assertEqual(second.start, first.end)
        self.assertGreater(second.messages, 0)
        self.check_once()

    def test_a_manifest_covers_a_bounded_range(self) -> None:
        self.archive(commit_bytes=SEGMENT_SIZE)
        manifests = Archive(self.lake).manifests()
        self.assertGreater(len(manifests), 2)
        self.assertEqual([one.end for one in manifests[:-1]], [one.start for one in manifests[1:]])
        self.check_once()

    def test_only_what_is_confirmed_is_archived(self) -> None:
        offsets = offsets_of(self.store)
        NodeState("id", offsets=Offsets(written=offsets[-1], confirmed=offsets[60])).write(self.store)
        self.archive()
        self.assertEqual(archived_offsets(self.lake), offsets[:60])

    def left_over(self, start: int, end: int) -> Path:
        """A file that somebody was writing who died."""
        path, file = open_staging(self.lake, start, end)
        file.close()
        return path

    def staging_files(self) -> list[Path]:
        return sorted((self.lake / STAGING_FOLDER).iterdir())

    def test_files_that_nobody_committed_are_removed(self) -> None:
        self.left_over(0, 700)
        stage(self.left_over(0, 700))
        behind = self.left_over(10**9, 10**9 + 700)  # somebody else's, at work
        self.assertEqual(self.archive().removed_files, 2)
        self.assertEqual(self.staging_files(), [behind])
        self.check_once()

    def test_a_file_that_is_being_written_is_nobodys_to_remove(self) -> None:
        path, file = open_staging(self.lake, 0, 700)
        self.archive()
        self.assertEqual(self.staging_files(), [path])
        file.close()
        self.assertEqual(self.archive().removed_files, 1)

    def test_a_committed_file_gets_its_name_from_the_next_run(self) -> None:
        self.archive()
        file = Archive(self.lake).manifests()[0].files[1]
        (self.lake / file.path).rename(self.lake / STAGING_FOLDER / file.staged)
        self.assertEqual(archived_offsets(self.lake), offsets_of(self.store))
        self.archive()
        self.check_once()

    def test_two_do_not_archive_to_one_folder_at_once(self) -> None:
        with Archive(self.lake).job_locked(), self.assertRaises(StoreInUse):
            self.archive()

    def test_a_store_that_took_back_what_is_archived_is_refused(self) -> None:
        offsets = offsets_of(self.store)
        NodeState("id", offsets=Offsets(written=offsets[-1], confirmed=offsets[-1])).write(self.store)
        self.archive()
        lost = Offsets(written=offsets[-1], confirmed=offsets[-1])
        NodeState("id", epoch=2, epoch_start=offsets[9], offsets=lost).write(self.store)
        with self.assertRaisesRegex(ArchiveError, f"took back messages after {offsets[9]}"):
            self.archive()

    def test_a_log_that_has_lost_what_was_not_archived_is_refused(self) -> None:
        offsets = offsets_of(self.store)
        self.archive(endingOffset=offsets[10])
        (self.store / "commitlog" / f"{0:020d}").unlink()
        with self.assertRaises(DataLossError):
            self.archive()
        self.archive(failOnDataLoss="false")
        there = [offset for offset in offsets if offset < offsets[10] or offset >= SEGMENT_SIZE]
        self.assertEqual(archived_offsets(self.lake), there)

    def test_corrupt_bytes_end_the_run_and_leave_nothing_of_it(self) -> None:
        overwrite(self.store, offsets_of(self.store)[60] + 28, b"\x7f")
        with self.assertRaisesRegex(StoreError, "not a record"):
            self.archive()
        self.assertEqual(list(archived_paths(self.lake)), [])
        self.assertEqual(visible_files(self.lake), [])

    def test_corrupt_bytes_are_skipped_on_demand_and_counted(self) -> None:
        offsets = offsets_of(self.store)
        overwrite(self.store, offsets[60] + 28, b"\x7f")
        self.assertEqual(self.archive(onCorrupt="skip").skipped, 1)
        self.assertEqual(archived_offsets(self.lake), offsets[:60] + offsets[61:])

    @pytest.mark.process
    def test_no_kill_at_some_steps_of_a_job_loses_or_doubles_a_message(self) -> None:
        self.check_kills("job", every=SOME)

    @pytest.mark.process
    def test_no_kill_at_some_steps_of_a_stream_loses_or_doubles_a_message(self) -> None:
        self.check_kills("stream", every=SOME)

    @pytest.mark.process
    def test_no_kill_at_some_steps_of_a_job_that_goes_on_from_another_store_does(self) -> None:
        self.check_kills("job", every=SOME, half_archived=True)

    @pytest.mark.process
    def test_no_kill_at_some_steps_of_a_stream_that_goes_on_from_another_store_does(self) -> None:
        self.check_kills("stream", every=SOME, half_archived=True)

    @pytest.mark.proof
    @pytest.mark.process
    def test_no_kill_at_any_step_of_a_job_loses_or_doubles_a_message(self) -> None:
        self.check_kills("job")

    @pytest.mark.proof
    @pytest.mark.process
    def test_no_kill_at_any_step_of_a_stream_loses_or_doubles_a_message(self) -> None:
        self.check_kills("stream")

    @pytest.mark.proof
    @pytest.mark.process
    def test_no_kill_of_a_job_that_goes_on_from_another_store_does(self) -> None:
        self.check_kills("job", half_archived=True)

    @pytest.mark.proof
    @pytest.mark.process
    def test_no_kill_of_a_stream_that_goes_on_from_another_store_does(self) -> None:
        self.check_kills("stream", half_archived=True)

    def check_kills(self, kind: str, every: int = 1, half_archived: bool = False) -> None:
        """Kill at one of ``every`` steps; ``half_archived`` has another store archive the first half before."""
        folder = self.lake.parent / "killed"
        self.store = make_store(self.lake.parent / "short", log_bytes=2 * SEGMENT_SIZE)
        end = expected_end(self.store)
        if half_archived:
            self.lake = folder / "before"
            NodeState("one", offsets=Offsets(written=end, verified=end, confirmed=end)).write(self.store)
            self.archive(endingOffset=SEGMENT_SIZE)
            NodeState("another", offsets=Offsets(written=end, verified=end, confirmed=end)).write(self.store)
        lines = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.killed_archiver", kind, self.store, folder, str(every)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            check=True,
            timeout=3000,
        ).stdout.splitlines()
        runs = [json.loads(line) for line in lines]
        self.assertGreater(sum(not run["whole"] for run in runs) * every, KILLS)
        for run in runs:
            self.lake = folder / str(run["step"])
            self.check_once()
            final = {str(path.relative_to(self.lake)) for path in visible_files(self.lake)}
            self.assertLessEqual(set(run["seen"]), final, run["step"])
            self.assertEqual(run["strays"], [], run["step"])
            self.assertEqual(self.staging_files(), [], run["step"])


class UncoveredTests(SynchronousTestCase):
    def test_what_is_left_of_a_range(self) -> None:
        covered = [(10, 20), (30, 40)]
        for range_, left in {
            (0, 50): [(0, 10), (20, 30), (40, 50)],
            (10, 20): [],
            (12, 35): [(20, 30)],
            (0, 5): [(0, 5)],
            (40, 40): [],
            (45, 50): [(45, 50)],
        }.items():
            self.assertEqual(uncovered(*range_, covered), left, range_)
