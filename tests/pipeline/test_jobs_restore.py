"""The job ``restore``: a store made from an archive is the log that was archived, or is not made at all."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmqha.pipeline.decode import decode
from rmqha.pipeline.encode import encode, proof_columns
from rmqha.pipeline.jobs import restore as restoring
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compare import compare
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError
from rmqha.pipeline.jobs.restore import NotRestorable, RestoreChoices, Restored, plan_restore, restore
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.schema import records_schema
from rmqha.pipeline.segments import read_records
from rmqha.settings.settings import Settings, make_settings
from rmqha.store.errors import NoStore, StoreError
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, TopicConfigTable
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline import newstore
from rmqha.store.offline.newstore import NoRoom, OutputExists
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.archive import unpack
from rmqha.testing.records import make_record
from rmqha.wire.columns import hop, lay_out
from rmqha.wire.record import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Record,
    encode_record,
)
from tests import examples, strategies
from tests.fixtures import DATA, new_folder
from tests.pipeline.lake import as_old, visible_files
from tests.pipeline.stores import lay_records, options, plain_records
from tests.store.logs import file_bytes

SEGMENT_SIZES = (4096, 8192, 20_480)
FIRST_TIME = 1_795_000_000_000
DEFAULTS = Settings()
UNHURRIED = settings(deadline=None, max_examples=examples(25), suppress_health_check=list(HealthCheck))
STEPS = [
    *((newstore, name) for name in ("sync_file_system", "sync_folder", "LockFile")),
    *((restoring, name) for name in ("restore_range", "rebuild", "clamp_offsets", "Checkpoint", "NodeState")),
]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Record], int]:
    """Messages of all kinds that a broker keeps, with a clock that is set back, and the size of the log's segments."""
    size = draw(st.sampled_from(SEGMENT_SIZES))
    rng = draw(st.randoms(use_true_random=False))
    offsets: Counter[tuple[str, int]] = Counter()
    made, now = [], FIRST_TIME
    for _ in range(draw(st.integers(1, 40))):
        now += rng.choice([0, 1, 1000, -3, -5000])
        topic = rng.choice(["A", "%RETRY%G", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "Zé"])
        kind = rng.choice([0, 0, 0, TRANSACTION_COMMIT_TYPE, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE])
        queue_id = rng.randrange(3)
        counts = kind in (0, TRANSACTION_COMMIT_TYPE)
        other = draw(strategies.records())
        record = replace(
            other,
            topic=topic,
            body=rng.randbytes(rng.choice([0, 10, 700])),
            body_crc=None,
            properties_stored=rng.choice(
                ["KEYS\x01a b\x02TAGS\x01t", "DELAY\x013\x02REAL_TOPIC\x01A\x02", "x\x01\udcfe"]
            )
            + other.properties_stored,
            queue_id=queue_id,
            queue_offset=offsets[topic, queue_id] if counts else 0,
            sys_flag=kind | rng.choice([0, 1]),
            store_timestamp=rng.choice([now, now, now, other.store_timestamp]),
        )
        offsets[topic, queue_id] += counts
        made.append(replace(record, body_crc=None))
    return made, size


def lay(store: Path, records: list[Record], size: int, fill: bytes = b"") -> bytes:
    """Make a store with this log; returns its bytes up to the last record. ``fill`` is what blanks hold."""
    segments, laid = lay_records(records, size)
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    end = laid[-1].physical_offset + laid[-1].total_size
    content = bytearray(b"".join(segments.values()))
    for before, after in pairwise(laid):
        blank = before.physical_offset + before.total_size
        content[blank + 8 : after.physical_offset] = fill.ljust(after.physical_offset - blank, b"\0")[
            : max(0, after.physical_offset - blank - 8)
        ]
    for base in range(0, len(content), size):
        (folder / f"{base:020d}").write_bytes(content[base : base + size])
    return bytes(content[:end])


def result_of(done: Deferred[None]) -> None:
    failures: list[object] = []
    done.addErrback(failures.append)
    assert not failures, failures


def restored(lake: Path, output: Path, own: Settings = DEFAULTS, **choices: bool) -> Restored:
    return restore(plan_restore(lake, own), output, own, LocalEngine(), RestoreChoices(**choices))


def opened(store: Path) -> MessageStore:
    return MessageStore(make_settings({"storePathRootDir": str(store), "brokerRole": "ASYNC_MASTER"}))


class GeneratedTests(SynchronousTestCase):
    @UNHURRIED
    @given(made=logs(), fill=st.binary(max_size=30), decompress=st.booleans())
    @pytest.mark.long
    def test_the_restored_log_is_the_archived_one(
        self, made: tuple[list[Record], int], fill: bytes, decompress: bool
    ) -> None:
        records, size = made
        with TemporaryDirectory() as name:
            store, lake, output = (Path(name) / each for each in ("store", "lake", "output"))
            content = lay(store, records, size, fill)
            half = len(content) // 2
            for end in (half, "latest"):  # two runs, and two manifests
                archive(
                    options(store, output=lake, decompress=str(decompress).lower(), endingOffset=end, splitBytes=3000),
                    LocalEngine(),
                )
            done = restored(lake, output)
            self.assertTrue(done.is_identical)
            self.assertEqual((done.messages, done.unproved, done.changed), (len(records), 0, 0))
            self.assertEqual(
                file_bytes(output / "commitlog"), content.ljust(len(file_bytes(output / "commitlog")), b"\0")
            )
            fresh = opened(store)
            ends = fresh.derived.queue_offsets()
            result_of(fresh.close())
            after = opened(output)
            try:
                self.assertTrue(after.recovery.clean_stop)
                self.assertEqual(after.commit_log.verified_offset, len(content))
                self.assertEqual(after.derived.queue_offsets(), ends)
            finally:
                result_of(after.close())

    @UNHURRIED
    @given(st.lists(strategies.records(any_crc=True), min_size=1, max_size=8), st.booleans())
    def test_columns_and_raw_records_give_every_record_back(self, records: list[Record], decompress: bool) -> None:
        content = b""
        for record in records:
            content += encode_record(replace(record, physical_offset=len(content)))
        starts = np.array(hop(content, 0, len(content))[0], np.int64)
        found = lay_out(np.frombuffer(content, np.uint8), 0, starts)
        self.assertEqual(len(found), len(records))
        batch = decode(found, records_schema(), decompress)
        _, raw = proof_columns(found, batch)
        again = [
            kept if kept is not None else made
            for kept, made in zip(raw.to_pylist(), encode(batch).to_pylist(), strict=True)
        ]
        self.assertEqual(b"".join(again), content)


class RestoreTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.store, self.lake, self.output = (self.folder / name for name in ("store", "lake", "output"))
        self.records = plain_records(60, 200)
        self.content = lay(self.store, self.records, 4096)

    def archive(self, **texts: object) -> None:
        archive(options(self.store, output=self.lake, splitBytes=3000, **texts), LocalEngine())

    def refuses(self, reason: str, kind: type[Exception] = NotRestorable, **choices: bool) -> None:
        """Nothing is left of a restore that is refused."""
        before = sorted(self.folder.iterdir())
        with self.assertRaisesRegex(kind, reason):
            restored(self.lake, self.output, DEFAULTS, **choices)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_tables_id_and_epoch(self) -> None:
        config = self.store / CONFIG_FOLDER
        TopicConfigTable().write(config)
        ConsumerOffsetTable({"BenchTopic@G": {0: 7, 1: 9999}}).write(config)
        end = len(self.content)
        NodeState("1f", epoch=4, offsets=Offsets(0, end, end, end, end)).write(self.store)
        self.archive()
        done = restored(self.lake, self.output)
        self.assertEqual(done.tables, ("consumerOffset.json", "topics.json"))
        self.assertEqual(done.clamped, 1)
        offsets = ConsumerOffsetTable.read(self.output / CONFIG_FOLDER).offset_table
        self.assertEqual(offsets, {"BenchTopic@G": {0: 7, 1: 15}})
        state = NodeState.read(self.output)
        assert state is not None
        self.assertNotEqual(state.store_id, "1f")
        self.assertEqual((state.epoch, state.epoch_start, state.offsets.confirmed), (5, end, end))

    def test_a_log_that_starts_later_and_ends_with_a_blank(self) -> None:
        (self.store / "commitlog" / f"{0:020d}").unlink()
        self.archive(endingOffset=8192)
        done = restored(self.lake, self.output)
        self.assertEqual((done.start, done.end), (4096, 8192))
        self.assertEqual(file_bytes(self.output / "commitlog").rstrip(b"\0"), self.content[4096:8192].rstrip(b"\0"))
        again = opened(self.output)
        self.assertEqual((again.commit_log.min_offset, again.commit_log.verified_offset), (4096, 8192))
        result_of(again.close())

    def test_a_dry_run_proves_everything_and_writes_nothing(self) -> None:
        self.archive()
        before = sorted(self.folder.iterdir())
        done = restored(self.lake, self.output, dry_run=True)
        self.assertEqual((done.messages, done.is_identical, done.done), (60, True, False))
        self.assertEqual(sorted(self.folder.iterdir()), before)

    @pytest.mark.long
    def test_an_archive_from_before_is_proved_by_its_hashes(self) -> None:
        unpack(DATA / "old-archive.tar.xz", self.folder / "old")
        small = make_settings({"mappedFileSizeCommitLog": "4096"})
        done = restored(self.folder / "old" / "lake", self.output, small)
        self.assertTrue(done.is_identical)
        self.assertEqual(file_bytes(self.output / "commitlog"), file_bytes(self.folder / "old" / "store" / "commitlog"))
        self.assertEqual(set(TopicConfigTable.read(self.output / CONFIG_FOLDER).topic_config_table), {"BenchTopic"})
        with self.assertRaisesRegex(StoreError, "mappedFileSizeCommitLog"):
            restored(self.folder / "old" / "lake", self.folder / "other")

    def test_an_archive_from_before_is_continued_and_read_as_one(self) -> None:
        self.archive(endingOffset=self.content.index(b"k20\x02") - 300)
        as_old(self.lake)
        self.archive()
        dataset = pyarrow.dataset.dataset(self.lake, format="parquet", partitioning="hive")
        self.assertEqual(dataset.count_rows(), 60)
        files = visible_files(self.lake)
        self.assertNotIn("recordCRC", pq.read_schema(files[0]).names)
        self.assertIn("recordCRC", pq.read_schema(files[-1]).names)
        for order in (files, files[::-1]):
            table = pyarrow.dataset.dataset([str(path) for path in order], format="parquet").to_table()
            self.assertEqual(table.num_rows, 60)
        self.assertTrue(restored(self.lake, self.output).is_identical)

    @pytest.mark.long
    def test_what_no_hash_proves_is_refused_without_lossy(self) -> None:
        self.archive()
        as_old(self.lake, keeps_hashes=False)
        small = make_settings({"mappedFileSizeCommitLog": "4096"})
        with self.assertRaisesRegex(NotRestorable, "60 messages .* cannot be proved"):
            restored(self.lake, self.output, small)
        self.assertFalse(self.output.exists())
        done = restored(self.lake, self.output, small, lossy=True)
        self.assertEqual((done.unproved, done.is_identical), (60, False))
        self.assertEqual(file_bytes(self.output / "commitlog")[: len(self.content)], self.content)

    def test_properties_that_are_not_utf8_of_an_old_archive(self) -> None:
        shutil.rmtree(self.store)
        records = [
            *plain_records(3),
            replace(make_record(3, b"b"), properties_stored="a\x01\udcff\udcfe\x02", topic="T\udcff"),
        ]
        content = lay(self.store, records, 4096)
        self.archive()
        self.assertTrue(restored(self.lake, self.folder / "exact").is_identical)
        as_old(self.lake)
        small = make_settings({"mappedFileSizeCommitLog": "4096"})
        with self.assertRaisesRegex(StoreError, "not UTF-8"):
            restored(self.lake, self.output, small)
        done = restored(self.lake, self.output, small, lossy=True)
        self.assertEqual((done.changed, done.messages), (1, 4))
        again = opened(self.output)
        self.assertEqual(again.commit_log.verified_offset, len(content))
        result_of(again.close())

    def test_other_fill_bytes_are_not_a_difference_of_records(self) -> None:
        shutil.rmtree(self.store)
        self.content = lay(self.store, self.records, 4096, b"left over")
        self.archive()
        as_old(self.lake)
        small = make_settings({"mappedFileSizeCommitLog": "4096"})
        with self.assertRaisesRegex(NotRestorable, "cannot be proved"):
            restored(self.lake, self.output, small)
        self.assertFalse(restored(self.lake, self.output, small, lossy=True).is_identical)
        one, other = StoreReader(self.output), StoreReader(self.store)
        try:
            found = one.compare(len(self.content), other, len(self.content), lambda _: None)
        finally:
            one.close()
            other.close()
        fills = len(self.content) // 4096
        self.assertEqual((found.relation, found.different_fills), ("identical", fills))
        by_job = compare(options(self.output, replica=self.store, splitBytes=3000), LocalEngine())
        self.assertEqual((by_job.relation, by_job.different_fills), ("identical", fills))
        for offset in (4096 * 2 - 300, 4096 * 3 + 100):  # in a record
            with (self.store / "commitlog" / f"{offset - offset % 4096:020d}").open("r+b") as file:
                file.seek(offset % 4096)
                file.write(b"!!!!")
            again = compare(options(self.output, replica=self.store, splitBytes=3000), LocalEngine())
            self.assertEqual(again.relation, "different")
            self.assertLessEqual(again.differs_at or 0, 4096 * 2 - 296)

    def test_a_gap_is_refused(self) -> None:
        self.archive(endingOffset=5000)
        self.archive(startingOffset=9000)
        self.refuses("has a gap: nothing is archived from .* 'rmqha job replay'")

    def test_an_archive_that_starts_inside_a_segment_is_refused(self) -> None:
        self.archive(startingOffset=5000)
        self.refuses("inside the segment of 4096")

    def test_stretches_that_were_skipped_are_a_gap(self) -> None:
        with (self.store / "commitlog" / f"{4096:020d}").open("r+b") as file:
            file.write(b"\xff" * 20)  # where a record starts
        self.archive(onCorrupt="skip", startingOffset=4096)
        self.refuses("leaves out 1 stretches")

    def test_a_body_that_was_damaged_already_is_found(self) -> None:
        with (self.store / "commitlog" / f"{4096:020d}").open("r+b") as file:
            file.seek(120)
            file.write(b"\xff" * 20)  # in a body
        self.archive()
        self.refuses("is damaged: the body's CRC", StoreError)

    def test_chosen_columns_are_not_enough(self) -> None:
        self.archive(columns="topic,body,physicalOffset")
        self.refuses("has no column queueId", StoreError)

    def test_properties_as_a_map_are_not_enough(self) -> None:
        self.archive(properties="map")
        self.refuses("has no column properties", StoreError)

    def test_a_folder_that_is_no_archive_is_refused(self) -> None:
        self.lake.mkdir()
        self.refuses("is not an archive", NoStore)

    def test_the_output_is_never_overwritten(self) -> None:
        self.archive()
        self.output.mkdir()
        (self.output / "mine").touch()
        self.refuses("not empty", OutputExists)
        with self.assertRaises(OutputExists):
            restored(self.lake, self.lake / "inside")

    def test_a_disk_without_room(self) -> None:
        self.archive()
        self.patch(restoring, "ROOM_LEFT_BYTES", 1 << 62)
        self.refuses("nothing was changed", NoRoom)

    def test_a_value_that_was_changed_is_found(self) -> None:
        self.archive()
        path = visible_files(self.lake)[1]
        table = pq.ParquetFile(path).read()
        flags = [*table["flag"].to_pylist()[:-1], 77]
        number = table.schema.get_field_index("flag")
        pq.write_table(table.set_column(number, "flag", pa.array(flags, pa.int32())), path)
        self.refuses("is not the one that was archived", StoreError)

    def test_a_file_with_rot_is_found(self) -> None:
        self.archive()
        path = visible_files(self.lake)[1]
        path.write_bytes(path.read_bytes()[:-5])
        self.refuses("is damaged", StoreError)

    def test_a_row_that_is_missing_is_found(self) -> None:
        self.archive()
        for number, path in enumerate(visible_files(self.lake)[:2]):  # the second one ends with a blank
            table = pq.ParquetFile(path).read()
            pq.write_table(table.slice(1), path)
            self.refuses("has no message at", StoreError)
            pq.write_table(table.slice(0, len(table) - 1), path)
            self.refuses("are missing", StoreError)
            pq.write_table(table, path)
            self.assertGreater(len(table), 1, number)
        restored(self.lake, self.output)

    @pytest.mark.long
    def test_a_restore_that_dies_anywhere_leaves_the_old_or_the_new(self) -> None:
        self.archive()
        plan, steps = plan_restore(self.lake, Settings()), 0
        for step in range(200):
            died = self._die_at(step, lambda: restore(plan, self.output, Settings(), LocalEngine()))
            if self.output.exists():
                self.assertEqual(file_bytes(self.output / "commitlog")[: len(self.content)], self.content, step)
                again = opened(self.output)
                self.assertTrue(again.recovery.clean_stop)
                result_of(again.close())
                _rmtree(self.output)
            if not died:
                steps = step
                break
        self.assertGreater(steps, 10)

    def _die_at(self, step: int, work: Callable[[], object]) -> bool:
        """Whether the process died at this step; then what it had made is still there, as after SIGKILL."""
        left = [step]

        def dying(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                if not left[0]:
                    raise Died
                left[0] -= 1
                return real(*arguments, **named)

            return call

        class States:
            new = staticmethod(dying(NodeState.new))

        patches = [
            self.patch(module, name, States if name == "NodeState" else dying(getattr(module, name)))
            for module, name in STEPS
        ]
        patches += [self.patch(os, "pwrite", dying(os.pwrite)), self.patch(shutil, "rmtree", _keep)]
        try:
            work()
        except Died:
            return True
        finally:
            for patch in patches:
                patch.restore()
        return False

    @pytest.mark.long
    def test_ctrl_c_leaves_nothing(self) -> None:
        self.archive()

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        for name in ("restore_range", "rebuild", "clamp_offsets"):
            patch = self.patch(restoring, name, interrupt)
            before = sorted(self.folder.iterdir())
            with self.assertRaises(KeyboardInterrupt):
                restored(self.lake, self.output)
            self.assertEqual(sorted(self.folder.iterdir()), before)
            patch.restore()
        restored(self.lake, self.output)

    def test_only_the_last_tables_are_kept(self) -> None:
        for end, consumed in ((5000, 2), ("latest", 7)):
            ConsumerOffsetTable({"BenchTopic@G": {0: consumed}}).write(self.store / CONFIG_FOLDER)
            self.archive(endingOffset=end)
        self.assertEqual(set(Archive(self.lake).tables()), {"consumerOffset.json"})
        restored(self.lake, self.output)
        offsets = ConsumerOffsetTable.read(self.output / CONFIG_FOLDER).offset_table
        self.assertEqual(offsets, {"BenchTopic@G": {0: 7}})
        (self.lake / "_manifest" / "tables.json").write_text("[]")
        with self.assertRaisesRegex(ArchiveError, "move it elsewhere"):
            plan_restore(self.lake, DEFAULTS)

    def test_a_strange_folder_is_not_cleared(self) -> None:
        self.archive()
        strange = self.folder / ".output.incomplete"
        strange.mkdir()
        (strange / "mine").write_text("1")
        self.refuses("did not create it", OutputExists)
        self.assertEqual((strange / "mine").read_text(), "1")

    def test_facts_in_the_manifest(self) -> None:
        self.archive()
        (manifest,) = Archive(self.lake).manifests()
        self.assertTrue(manifest.restore.lossless)
        self.assertEqual(manifest.restore.segment_size, 4096)
        ends = [blank.end for blank in manifest.restore.blanks]
        self.assertEqual(ends, list(range(4096, len(self.content), 4096)))
        rows = sum(len(records) for split in _splits(self.store) for records in read_records(split, 4096))
        self.assertEqual(manifest.rows, rows)


def _splits(store: Path) -> list[Any]:
    plan = open_log(options(store))
    return plan.splits(plan.start(), plan.stop())


class Died(BaseException):
    """The process is gone."""


def _keep(path: Path, ignore_errors: bool = False) -> None:
    if not ignore_errors:  # only what cleans up after an error: a process that is gone cleans up nothing
        _rmtree(path)


_rmtree = shutil.rmtree
