"""The job ``rebuild``: queues and index are byte for byte what a broker makes of the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.progress import IBar
from rmqha.pipeline.jobs.engine import Engine, LocalEngine, SparkEngine, Summary, WrongBoundary
from rmqha.pipeline.jobs.rebuild import rebuild
from rmqha.settings.settings import Settings
from rmqha.store.derived import rebuild as rebuild_module
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.derived.rebuild import Rebuilt
from rmqha.store.errors import StoreInUse
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.splits import Split
from rmqha.store.offline.audit import audit
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.records import make_record
from rmqha.wire.delay import DelayLevels
from rmqha.wire.record import TRANSACTION_PREPARED_TYPE
from tests.fixtures import copy_of, new_folder, unpacked
from tests.pipeline import stores
from tests.pipeline.lake import options_of
from tests.pipeline.test_segments import forged_in_a_body

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE_FILE_SIZE = 2000


def queue_files(root: Path) -> dict[str, str]:
    """A digest of each queue file with a unit in it, by its path."""
    folder = root / "consumequeue"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*/*")}
    return {path: sha256(content).hexdigest() for path, content in files.items() if content.strip(b"\0")}


def index_files(root: Path) -> list[str]:
    """A digest of each index file; their names are times."""
    return [sha256(path.read_bytes()).hexdigest() for path in sorted((root / "index").iterdir())]


def rebuilt(store: Path, **texts: object) -> Rebuilt:
    return rebuild(options_of(store, **{"splitBytes": "300k", "batchBytes": "60k", **texts}), LocalEngine())


class RebuildTests(SynchronousTestCase):
    @pytest.mark.long
    def test_the_files_are_those_that_java_wrote(self) -> None:
        for name in ("slave", "master-clean"):
            store = copy_of(name, new_folder(self) / name)
            shutil.rmtree(store / "index")
            for path in (store / "consumequeue").glob("*/*/*"):
                path.write_bytes(bytes(QUEUE_FILE_SIZE))
            with self.subTest(name):
                done = rebuilt(store)
                self.assertEqual(queue_files(store), queue_files(unpacked(name)))
                self.assertEqual(done.queues, len({Path(path).parent for path in queue_files(store)}))
                self.assertFalse((store / "rmqha" / "rebuild").exists())

    def test_the_index_is_the_one_that_java_wrote(self) -> None:
        for name in ("slave", "master-crash"):  # that of master-clean was recovered by Java, which lost a part
            store = copy_of(name, new_folder(self) / name)
            rebuilt(store)
            self.assertEqual(index_files(store), index_files(unpacked(name)), name)

    def test_what_is_written_in_several_rounds_or_parts_is_the_same(self) -> None:
        def pwrite_a_part(fd: int, data: bytes, offset: int) -> int:
            return pwrite(fd, data[:1000], offset)

        pwrite, output = os.pwrite, new_folder(self) / "output"
        with mock.patch.object(rebuild_module, "ROWS_AT_ONCE", 70), mock.patch("os.pwrite", pwrite_a_part):
            rebuilt(unpacked("slave"), output=output)
        self.assertEqual(queue_files(output), queue_files(unpacked("slave")))
        self.assertEqual(index_files(output), index_files(unpacked("slave")))

    @pytest.mark.long
    def test_the_audit_finds_nothing_missing(self) -> None:
        store = copy_of("slave", new_folder(self) / "store")
        rebuilt(store, splitBytes="50k")
        reader = StoreReader(store)
        self.addCleanup(reader.close)
        found = audit(reader.root, reader.log, reader.limit, Settings(), lambda _: None)
        self.assertEqual((found.problems, found.missing_keys), ((), 0))

    def test_a_store_in_use_is_built_elsewhere_only(self) -> None:
        store, output = copy_of("slave", new_folder(self) / "store"), new_folder(self) / "elsewhere"
        lock = LockFile(store / "lock")
        self.addCleanup(lock.release)
        with self.assertRaises(StoreInUse):
            rebuilt(store)
        rebuilt(store, output=output)
        self.assertEqual(queue_files(output), queue_files(unpacked("slave")))

    def store_of(self, queue_offsets: Iterable[int]) -> Path:
        """Messages of one queue, and a queue file that says which size such files have."""
        store = new_folder(self) / "store"
        stores.make_store(store, [replace(make_record(0, b"b" * 300), queue_offset=at) for at in queue_offsets])
        (store / "consumequeue" / "Seen" / "0").mkdir(parents=True)
        (store / "consumequeue" / "Seen" / "0" / f"{0:020d}").write_bytes(bytes(QUEUE_FILE_SIZE))
        return store

    def test_gaps_and_steps_back_become_what_dispatch_makes_of_them(self) -> None:
        for offsets in ([7, 8, 12, 13, 140, 141], [3, 4, 5, 4, 5, 6, 7], [150, 151, 2], [0, 0, 0, 1], [99, 100, 101]):
            store = self.store_of(offsets)
            with self.subTest(offsets=offsets):
                rebuilt(store, splitBytes=900, batchBytes=500)
                self.assertEqual(queue_files(store), self.dispatched(store))

    def test_a_queue_of_very_many_gaps_is_built_as_dispatch_builds_it(self) -> None:
        self.patch(rebuild_module, "MAX_GAPS", 3)
        self.patch(rebuild_module, "_fill_gaps", None)  # nobody calls it
        store = self.store_of(range(0, 60, 3))
        done = rebuilt(store, splitBytes=900, batchBytes=500)
        self.assertEqual((done.queues, done.mended), (1, 1))
        self.assertEqual(queue_files(store), self.dispatched(store))

    def test_what_a_split_that_began_in_a_body_has_written_is_thrown_away(self) -> None:
        records, forged_at = forged_in_a_body()
        forged_end = forged_at + make_record(999, b"forged").total_size

        class MisledEngine(LocalEngine):
            """Takes the forged record for one of the log's, until a read finds it out."""

            def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], bar: IBar) -> list[Summary]:
                if not written:
                    written.append(on_split(replace(splits[0], start=forged_at, end=forged_end)))
                    raise WrongBoundary("found out")
                return super().run(on_split, splits, bar)

        store, written = new_folder(self) / "store", list[object]()
        stores.make_store(store, records)
        shutil.copytree(unpacked("slave") / "index", store / "index")  # it says how large such files are: small
        outputs = [new_folder(self) / "misled", new_folder(self) / "not"]
        engines: tuple[Engine, Engine] = (MisledEngine(), LocalEngine())
        for engine, output in zip(engines, outputs, strict=True):
            rebuild(options_of(store, output=output), engine)
        self.assertEqual(len(written), 1)
        self.assertEqual(queue_files(outputs[0]), queue_files(outputs[1]))
        self.assertEqual(index_files(outputs[0]), index_files(outputs[1]))

    def dispatched(self, store: Path) -> dict[str, str]:
        """What the dispatcher makes of the log."""
        root = new_folder(self)
        log = CommitLog(store / "commitlog", stores.SEGMENT_SIZE, owned=False)
        log.verify()
        queues = QueueTable(root / "consumequeue", QUEUE_FILE_SIZE)
        Dispatcher(log, queues, None, DelayLevels(), 0).catch_up()
        queues.close()
        log.close()
        self.flushLoggedErrors()
        return queue_files(root)

    def test_a_message_whose_topic_is_no_folder_is_counted_and_left_out(self) -> None:
        store = new_folder(self) / "store"
        stores.make_store(store, [make_record(0, b"b", topic="a/b"), make_record(0, b"b", topic="T")])
        done = rebuilt(store)
        self.assertEqual((done.messages, done.refused, done.queues), (2, 1, 1))

    def test_a_log_whose_messages_all_have_no_queue_gives_none(self) -> None:
        store = new_folder(self) / "store"
        stores.make_store(store, [replace(make_record(0, b"b"), sys_flag=TRANSACTION_PREPARED_TYPE)])
        done = rebuilt(store)
        self.assertEqual((done.messages, done.refused, done.queues, done.keys), (1, 0, 0, 2))


@pytest.mark.story
def test_both_engines_build_the_same(spark: SparkSession, tmp_path: Path) -> None:
    outputs = [tmp_path / "one", tmp_path / "other"]
    engines: tuple[Engine, Engine] = (LocalEngine(), SparkEngine(spark))
    done = [
        rebuild(options_of(unpacked("slave"), splitBytes="300k", output=output), engine)
        for engine, output in zip(engines, outputs, strict=True)
    ]
    assert done[0] == done[1]
    assert queue_files(outputs[0]) == queue_files(outputs[1])
    assert index_files(outputs[0]) == index_files(outputs[1])
