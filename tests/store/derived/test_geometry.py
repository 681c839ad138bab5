"""The slots and entries of index files are proved by what is in them (spec/store.md 7.1)."""

import contextlib
import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import succeed
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.settings.settings import make_settings
from rmqha.store.derived.geometry import Geometry, IndexContent, UnprovedIndexFile, geometry_of
from rmqha.store.derived.index import IndexedKey, KeyIndex, index_paths
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.offline.audit import audit
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.sim.simulation import memory_folder
from tests import examples
from tests.fixtures import copy_of, new_folder
from tests.store.queues import Writer, check_derived

NOW = datetime(2026, 11, 22)
GEOMETRIES = st.builds(Geometry, st.integers(1, 300), st.integers(2, 1200))
SMALL = Geometry(61, 250)
"""Not by the default's ratio; a hundred messages or so fill a file."""


def write_index(folder: Path, geometry: Geometry, count: int, start: int = 0) -> list[Path]:
    """Index files with so many keys, two of each message."""
    index = KeyIndex(folder, *geometry)
    index.put(
        [IndexedKey(f"T#{number % 97}", start + number // 2 * 91, 10**12 + number) for number in range(count)], NOW
    )
    index.close()
    return list(index_paths(folder))


@pytest.mark.long
@settings(deadline=None, max_examples=examples(150))
@given(GEOMETRIES, st.integers(1, 2500), st.sampled_from((0, 91, 10**12)))
def test_a_geometry_is_found_by_the_entries_alone(geometry: Geometry, count: int, start: int) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        for path in write_index(Path(folder) / "index", geometry, min(count, 3 * geometry.entries - 3), start):
            assert geometry_of(path) == geometry
            assert geometry_of(path, with_slots=False) == geometry
            assert geometry_of(path, geometry) == geometry
            with IndexContent(path) as content:
                assert content.problem(geometry, all_of_it=True) is None


@pytest.mark.long
@settings(deadline=None, max_examples=examples(150))
@given(GEOMETRIES, st.integers(1, 500), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=5))
def test_whatever_is_in_a_file_an_answer_comes(geometry: Geometry, count: int, changes: list[tuple[int, int]]) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        path = write_index(Path(folder) / "index", geometry, min(count, geometry.entries - 1), 91)[0]
        content = bytearray(path.read_bytes())
        for at, value in changes:
            content[at % len(content)] = value
        path.write_bytes(content)
        with contextlib.suppress(UnprovedIndexFile):
            found = geometry_of(path)
            assert found.file_size == len(content)
            index = KeyIndex(path.parent, *found, [(path, found)])
            index.query("T", "5", 0, 2**62, 100)
            index.truncate(91 * count // 4)
            index.query("T", "5", 0, 2**62, 100)
            index.close()


@settings(deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_are_no_error_but_a_named_one(content: bytes) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        path = Path(folder) / "20261122000000000"
        path.write_bytes(content)
        with contextlib.suppress(UnprovedIndexFile):
            assert geometry_of(path).file_size == len(content)


class GeometryTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = self.new_root()

    def new_root(self) -> Path:
        """Where a store can be made; in memory if that can be, for these tests do not lose power."""
        folder = Path(mkdtemp(prefix="rmqha-geometry-", dir=memory_folder()))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder / "store"

    def open(self, **more: object) -> MessageStore:
        texts = {
            "storePathRootDir": self.root,
            "mappedFileSizeCommitLog": 65536,
            "mappedFileSizeConsumeQueue": 200,
            **more,
        }
        (self.root / NODE_FOLDER).mkdir(parents=True, exist_ok=True)  # a node of ours has run on it
        return MessageStore(make_settings({key: str(value) for key, value in texts.items()}))

    def grow(self, count: int, geometry: Geometry = SMALL) -> Writer:
        store = self.open(maxHashSlotNum=geometry.slots, maxIndexNum=geometry.entries)
        writer = Writer(store.commit_log)
        writer.put_many(count)
        self.successResultOf(store.close())
        return writer

    def check_sound(self) -> None:
        reader = StoreReader(self.root)
        proof = reader.verify(lambda _: None)
        audited = audit(
            reader.root, reader.log, proof.end, make_settings({"storePathRootDir": str(self.root)}), lambda _: None
        )
        reader.close()
        self.assertEqual((audited.problems, audited.missing_keys), ((), 0))

    @pytest.mark.long
    def test_a_store_is_opened_verified_and_rebuilt_without_being_told(self) -> None:
        self.grow(120)
        sizes = {path.stat().st_size for path in index_paths(self.root / "index")}
        self.assertEqual(sizes, {SMALL.file_size})
        self.check_sound()
        store = self.open()
        check_derived(self, store.commit_log, store.derived)
        self.successResultOf(store.close())
        result = CliRunner().invoke(main, ["rebuild", str(self.root)])
        self.assertEqual(result.exit_code, 0, result.stderr)
        store = self.open()
        check_derived(self, store.commit_log, store.derived)
        self.successResultOf(store.close())
        self.assertEqual({path.stat().st_size for path in index_paths(self.root / "index")}, sizes)
        (self.root / "abort").touch()
        store = self.open()
        check_derived(self, store.commit_log, store.derived)
        self.successResultOf(store.close())
        self.check_sound()

    @pytest.mark.long
    def test_other_sizes_in_the_settings_are_a_warning_that_names_the_remedy(self) -> None:
        writer = self.grow(120)
        before = [path.stat().st_size for path in index_paths(self.root / "index")]
        other = Geometry(62, 250)
        changes = {"maxHashSlotNum": 62, "maxIndexNum": 250, "mappedFileSizeConsumeQueue": 400}
        with capturedLogs() as logs:
            store = self.open(**changes)
        told = [formatEvent(event) for event in logs if event["log_level"] is LogLevel.warn]
        self.assertEqual(len(told), 2)
        self.assertIn("queue files have 200 bytes, and mappedFileSizeConsumeQueue says 400", told[0])
        self.assertIn(f"index files have {SMALL}, and the settings say {other}", told[1])
        for line in told:
            self.assertIn("rmqha rebuild", line)
        writer.log = store.commit_log
        writer.put_many(200)
        store.derived.dispatcher.catch_up()
        check_derived(self, store.commit_log, store.derived)
        self.successResultOf(store.close())
        sizes = [path.stat().st_size for path in index_paths(self.root / "index")]
        self.assertEqual(sizes[: len(before)], before)
        self.assertEqual(sizes[-1], other.file_size)
        self.check_sound()

    @pytest.mark.long
    def test_rebuild_minds_no_file_of_old_queues_and_index_and_follows_the_settings(self) -> None:
        wanted = Geometry(7, 100)
        options = [f"--set={name}" for name in ("mappedFileSizeConsumeQueue=60", "maxHashSlotNum=7", "maxIndexNum=100")]

        def other_sizes() -> None:
            pass

        def odd_sizes() -> None:
            for path in [*(self.root / "consumequeue").rglob("0*0"), *index_paths(self.root / "index")]:
                if path.is_file():
                    os.truncate(path, path.stat().st_size - 7)

        def files_for_folders() -> None:
            for name in ("consumequeue", "index"):
                shutil.rmtree(self.root / name)
                (self.root / name).write_bytes(b"x")

        for rewrite in (other_sizes, odd_sizes, files_for_folders):
            for job in (["rebuild"], ["job", "rebuild"]):
                self.root = self.new_root()
                self.grow(300)
                rewrite()
                result = CliRunner().invoke(main, [*job, str(self.root), *options])
                self.assertEqual(result.exit_code, 0, (rewrite, job, result.output, result.stderr))
                sizes = {path.stat().st_size for path in index_paths(self.root / "index")}
                self.assertEqual(sizes, {wanted.file_size})
                queue = self.root / "consumequeue" / "T0" / "0"
                self.assertEqual({path.stat().st_size for path in queue.iterdir()}, {60})
                result = CliRunner().invoke(main, ["verify", str(self.root)])
                self.assertEqual(result.exit_code, 0, (rewrite, job, result.output, result.stderr))

    def test_rebuild_of_a_slave_is_not_over_before_the_log_is(self) -> None:
        self.grow(300)
        with patch.object(MessageStore, "close", lambda store, final_state: succeed(store._release(None))):
            result = CliRunner().invoke(main, ["rebuild", str(self.root), "--set=brokerRole=SLAVE", "--set=brokerId=1"])
        self.assertEqual(result.exit_code, 0, result.stderr)
        self.check_sound()
        reader = StoreReader(self.root)
        end = reader.verify(lambda _: None).end
        audited = audit(
            reader.root, reader.log, end, make_settings({"storePathRootDir": str(self.root)}), lambda _: None
        )
        reader.close()
        self.assertEqual(audited.built_until, end)

    @pytest.mark.long
    def test_damaged_files_are_kept_and_made_anew(self) -> None:
        self.grow(300)
        paths = list(index_paths(self.root / "index"))
        self.assertGreater(len(paths), 2)
        for number, damage in ((1, b"\xff" * 40), (len(paths) - 1, b"\0\0\0\7" * 500)):
            path = list(index_paths(self.root / "index"))[number]
            content = bytearray(path.read_bytes())
            content[: len(damage)] = damage
            path.write_bytes(content)
            with capturedLogs() as logs:
                store = self.open()
            self.assertTrue([event for event in logs if "are kept in" in event["log_format"]], number)
            kept = list((self.root / "rmqha").glob(f"index-aside-*/{path.name}"))
            self.assertEqual([one.read_bytes() for one in kept], [bytes(content)])
            check_derived(self, store.commit_log, store.derived)
            self.successResultOf(store.close())
            self.check_sound()

    def test_a_damaged_queue_is_kept_and_made_anew(self) -> None:
        for name, content in (
            ("-0000000000006000000", b"\0" * 200),
            ("00000000000000000200", b"short"),
            ("stranger", b""),
        ):
            self.root = self.new_root()
            self.grow(100)
            (self.root / "consumequeue" / "T0" / "0" / name).write_bytes(content)
            store = self.open()
            check_derived(self, store.commit_log, store.derived)
            self.successResultOf(store.close())
            (kept,) = (self.root / "rmqha").glob(f"consumequeue-aside-*/T0/0/{name}")
            self.assertEqual(kept.read_bytes(), content)
            self.check_sound()

    @pytest.mark.long
    def test_a_rotten_old_segment_hangs_nobody(self) -> None:
        """Old segments are not proved after a clean stop: what follows the damage is dispatched all the same."""
        texts = {"mappedFileSizeCommitLog": 8192}
        for damage in (bytes(100), bytes(4), b"\xff" * 8, b"\0\0\0\5"):
            self.root = self.new_root()
            store = self.open(**texts)
            records = Writer(store.commit_log).put_many(400)
            self.successResultOf(store.close())
            with (self.root / "commitlog" / f"{8192:020d}").open("r+b") as file:
                file.seek(next(r.physical_offset for r in records if r.physical_offset > 9000) - 8192)
                file.write(damage)
            result = CliRunner().invoke(main, ["rebuild", str(self.root)])
            self.assertEqual(result.exit_code, 0, result.stderr)
            store = self.open(**texts)
            ends = {key: queue.max_offset for key, queue in store.derived.queues.queues.items()}
            self.assertEqual(
                ends, {(r.topic, r.queue_id): r.queue_offset + 1 for r in records}, "queues go on where the log does"
            )
            self.successResultOf(store.close())

    def test_a_rotten_last_unit_gives_no_offset_twice(self) -> None:
        """The unit leads elsewhere, or the queue is another one's: the next offset is the log's all the same."""
        queue = "consumequeue/T0/0"
        for damage in (b"\0\0\0\0\0\0\0\x7e", b"\0\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\5"):
            self.root = self.new_root()
            self.grow(100)
            (path,) = sorted((self.root / queue).iterdir())[-1:]
            content = bytearray(path.read_bytes())
            end = len(content.rstrip(b"\0"))
            last = end - end % 20 - (0 if end % 20 else 20)
            content[last : last + 8] = damage
            path.write_bytes(content)
            with capturedLogs() as logs:
                store = self.open()
            told = [formatEvent(event) for event in logs if event["log_level"] is LogLevel.error]
            self.assertIn("its last unit, 16, points to", told[0])
            check_derived(self, store.commit_log, store.derived)
            self.successResultOf(store.close())
            self.check_sound()
        self.root = self.new_root()
        self.grow(100)
        shutil.rmtree(self.root / queue)
        shutil.copytree(self.root / "consumequeue/T1/1", self.root / queue)
        store = self.open()
        check_derived(self, store.commit_log, store.derived)
        self.successResultOf(store.close())

    def test_last_units_that_rot_to_zeros_are_missed_after_a_clean_stop(self) -> None:
        """Zeros look like the place of the next unit: what the clean stop noted tells that units were there."""
        for units in (1, 3, 17):
            for role in ("ASYNC_MASTER", "SLAVE"):
                self.root = self.new_root()
                self.grow(100)
                path = sorted((self.root / "consumequeue/T0/0").iterdir())[-1]
                content = bytearray(path.read_bytes())
                end = -(-len(content.rstrip(b"\0")) // 20) * 20
                begin = max(0, end - 20 * units)
                content[begin:end] = bytes(end - begin)
                path.write_bytes(content)
                with capturedLogs() as logs:
                    store = self.open(brokerRole=role)
                told = [formatEvent(event) for event in logs if event["log_level"] is LogLevel.error]
                self.assertIn("queue 0 of T0 ends at", told[0])
                store.derived.dispatcher.catch_up()
                check_derived(self, store.commit_log, store.derived)
                self.successResultOf(store.close())
                self.check_sound()

    def test_a_queue_that_is_gone_after_a_clean_stop_is_missed(self) -> None:
        self.grow(100)
        shutil.rmtree(self.root / "consumequeue/T0/0")
        store = self.open()
        check_derived(self, store.commit_log, store.derived)
        self.successResultOf(store.close())

    def test_noted_ends_that_rotted_do_no_harm(self) -> None:
        """Unreadable, of a longer log, impossible, or simply wrong: the store opens, and no offset goes down."""
        self.grow(100)
        path = self.root / "rmqha" / "queue-ends.json"
        sound = json.loads(path.read_text())
        queue = sound["queues"]["T0"]["0"]
        sound_end = queue[0]
        for content in (
            "\0" * 50,
            "[]",
            '{"logEnd": "x", "queues": {}}',
            '{"logEnd": 1, "queues": {"T0": {"0": 7}}}',
            json.dumps({**sound, "logEnd": sound["logEnd"] + 1}),
            json.dumps({**sound, "queues": {"T0": {"0": [2**62, 5]}}}),
            json.dumps({**sound, "queues": {"T0": {"0": [sound_end, 5]}, "Unknown": {"3": [2, 9]}}}),
            json.dumps({**sound, "queues": {"T0": {"0": [sound_end - 5, queue[1]]}}}),
        ):
            path.write_text(content)
            store = self.open()
            check_derived(self, store.commit_log, store.derived)
            self.assertEqual(store.derived.queue_offsets()["T0", 0], sound_end)
            self.successResultOf(store.close())
            self.assertEqual(json.loads(path.read_text()), sound)

    def test_a_death_while_a_queue_is_made_anew_loses_no_unit(self) -> None:
        self.grow(100)
        (self.root / "consumequeue" / "T0" / "0" / "stranger").touch()
        store = self.open(brokerRole="SLAVE")
        store.commit_log.close()
        store.derived.close()
        store._lock_file.release()
        again = self.open()
        check_derived(self, again.commit_log, again.derived)
        self.successResultOf(again.close())
        self.assertFalse((self.root / "rmqha" / "dispatched-from").exists())

    def test_the_recorded_files_are_proved_to_the_last_chain(self) -> None:
        for name in ("slave", "master-clean", "master-crash"):
            store = copy_of(name, new_folder(self) / name)
            paths = list(index_paths(store / "index"))
            self.assertTrue(paths)
            for path in paths:
                with IndexContent(path) as content:
                    self.assertEqual(content.problem(geometry_of(path), all_of_it=True), None, path)
