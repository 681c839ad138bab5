"""A store from its opening to its closing, and what is found when it was not closed."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.ha.master.serving import confirmed_offset
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store import opening
from rmqha.store.derived.consumequeue import Unit
from rmqha.store.derived.queuetable import open_queues
from rmqha.store.derived.replacing import doubt, is_doubted
from rmqha.store.errors import NoStore, StoreError, StoreInUse
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import segment_size_of
from rmqha.store.log.flush import Flusher
from rmqha.store.log.mappedfile import list_segments
from rmqha.store.log.recovery import LogDamaged, MayCut
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from tests import fixtures
from tests.fixtures import new_folder, open_files
from tests.store.log.test_flush import Thread
from tests.store.logs import SEGMENT_SIZE, encoded, file_bytes, held, make_log, sized_record, write_at


def contents(root: Path) -> dict[str, bytes]:
    """All files of a store but its lock."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


class MessageStoreTestCase(SynchronousTestCase):
    """Has a folder, and opens stores in it."""

    def setUp(self) -> None:
        self.root = new_folder(self) / "store"
        self.stores: list[MessageStore] = []
        self.addCleanup(self.let_go)

    def open(
        self,
        segment_size: int | None = SEGMENT_SIZE,
        root: Path | None = None,
        may_cut: MayCut = MayCut.TORN_END,
        role: BrokerRole = BrokerRole.ASYNC_MASTER,
    ) -> MessageStore:
        settings = Settings(
            store_path_root_dir=root or self.root, mapped_file_size_commit_log=segment_size, broker_role=role
        )
        store = MessageStore(settings, may_cut=may_cut)
        self.stores.append(store)
        return store

    def close(self, store: MessageStore) -> None:
        self.stores.remove(store)
        self.successResultOf(store.close())

    def crash(self, store: MessageStore) -> None:
        """Let go of the store as a killed process does."""
        self.stores.remove(store)
        store._release(None)

    def let_go(self) -> None:
        for store in list(self.stores):
            self.crash(store)

    @property
    def abort(self) -> bool:
        return (self.root / "abort").exists()


class OpenAndCloseTests(MessageStoreTestCase):
    def test_a_new_store_is_made_with_its_folder(self) -> None:
        store = self.open()
        self.assertEqual((store.commit_log.min_offset, store.commit_log.max_offset), (0, 0))
        self.assertEqual(sorted(os.listdir(self.root)), ["abort", "lock"])
        self.assertTrue(store.recovery.clean_stop)

    def test_the_segments_of_a_log_are_no_place_for_a_store(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(200))
        self.close(store)
        link = self.root.parent / "link"
        link.symlink_to(self.root / "commitlog")
        for place in (self.root / "commitlog", self.root / "commitlog" / "new", link):
            with self.subTest(place), self.assertRaisesRegex(NoStore, "the folder of segments .*: name another place"):
                self.open(root=place)
        (self.root.parent / "20261126020304567890").mkdir()  # a folder with a time as its name is no segment
        (self.root / "00000000000000000007").touch()  # nor is a file that lies among others
        self.assertEqual(self.open().commit_log.max_offset, 200)

    def test_a_closed_store_says_so(self) -> None:
        store = self.open()
        self.assertTrue(self.abort)
        store.commit_log.append(sized_record(200))
        self.close(store)
        self.assertFalse(self.abort)
        store = self.open()
        self.assertEqual((store.recovery.clean_stop, store.recovery.end, store.recovery.problem), (True, 200, None))

    def test_a_killed_store_does_not(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(200))
        self.crash(store)
        self.assertTrue(self.abort)
        self.assertEqual(self.open().recovery.clean_stop, False)

    def test_everything_is_on_the_disk_before_abort_goes(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(200))
        events: list[str] = []
        unlink, fdatasync = Path.unlink, os.fdatasync

        def synced(fd: int) -> None:
            events.append("fdatasync")
            fdatasync(fd)

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            events.append(path.name)
            unlink(path, missing_ok)

        self.patch(os, "fdatasync", synced)
        self.patch(Path, "unlink", unlinked)
        self.close(store)
        self.assertEqual((set(events[:-1]), events[-1]), ({"fdatasync"}, "abort"))

    def test_queues_have_what_the_log_has_when_closed(self) -> None:
        store = self.open()
        record = sized_record(200)
        store.commit_log.append(record)
        self.close(store)
        queues = open_queues(self.root, Settings(), owned=False)
        self.addCleanup(queues.close)
        queue = queues.get(record.topic, record.queue_id)
        assert queue is not None, "it is built before the store is closed, not by whoever opens it next"
        queue.find_end()
        self.assertEqual(queue.max_offset, record.queue_offset + 1)

    def test_half_a_record_is_cut_at_closing(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(200))
        store.commit_log.append_data(200, encoded(sized_record(200), 200)[:150])
        self.close(store)
        self.assertEqual(file_bytes(self.root / "commitlog").rstrip(b"\0"), encoded(sized_record(200), 0))
        self.assertEqual(self.open().recovery.end, 200)

    def test_a_full_last_segment_has_a_successor_when_closed(self) -> None:
        store = self.open()
        store.commit_log.begin_at(0)
        other = self.open(root=new_folder(self))
        for _ in range(2):
            other.commit_log.append(sized_record(3000))
        store.commit_log.append_data(0, held(other.commit_log, 0, SEGMENT_SIZE))
        store.commit_log.verify()
        self.close(store)
        self.assertEqual([base for base, _ in list_segments(self.root / "commitlog")], [0, SEGMENT_SIZE])

    def test_the_final_state_is_written_when_all_is_flushed(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(200))
        self.stores.remove(store)
        closing = store.close(None, lambda: replace(store.node_state, offsets=store.offsets(0)))
        self.successResultOf(closing)
        state = NodeState.read(self.root)
        assert state is not None
        self.assertEqual(state.offsets, Offsets(0, 200, 200, 200, 0))

    def test_closing_waits_for_the_flush_under_way(self) -> None:
        store, thread, clock = self.open(), Thread(), Clock()
        flusher = store.start_flushing(clock, thread, lambda _: None)
        store.commit_log.append(sized_record(200))
        flusher.flush()
        self.stores.remove(store)
        closing = store.close(flusher)
        self.assertNoResult(closing)
        self.assertTrue(self.abort)
        thread.run()
        self.successResultOf(closing)
        self.assertFalse(self.abort)
        self.assertEqual(clock.getDelayedCalls(), [])
        checkpoint = Checkpoint.read(self.root / "checkpoint")
        self.assertEqual(checkpoint.physic_msg_timestamp, sized_record(200).store_timestamp)

    def break_disk(self) -> None:
        def refuse(fd: int) -> None:
            raise OSError(5, "input/output error")

        self.patch(os, "fdatasync", refuse)

    def test_a_store_whose_flush_has_failed_is_not_closed_cleanly(self) -> None:
        store, thread = self.open(), Thread()
        flusher = store.start_flushing(Clock(), thread, lambda _: None)
        store.commit_log.append(sized_record(200))
        self.break_disk()
        flusher.flush()
        thread.run()
        self.stores.remove(store)
        self.successResultOf(store.close(flusher))
        self.assertTrue(self.abort)
        self.assertEqual(open_files(self.root), 0)

    def test_a_disk_that_refuses_at_closing_leaves_abort_and_lets_go(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(200))
        self.break_disk()
        self.stores.remove(store)
        closing: Deferred[None] = store.close()
        self.failureResultOf(closing, OSError)
        self.assertTrue(self.abort)
        del store
        self.assertEqual(open_files(self.root), 0)

    def test_the_checkpoint_is_not_ahead_of_the_log(self) -> None:
        """Bytes that recovery cut may come again; a crash then must not take them to be on disk."""
        make_log(self.root / "commitlog", 3000, 3000, 3000)
        (self.root / "abort").touch()
        write_at(self.root / "commitlog", SEGMENT_SIZE + 100, b"!")
        Checkpoint(sized_record(3000, 2).store_timestamp, 2, 3).write(self.root / "checkpoint")
        store = self.open(may_cut=MayCut.ANYTHING)
        self.assertEqual(store.recovery.end, SEGMENT_SIZE)
        lowered = Checkpoint(sized_record(3000, 0).store_timestamp, 2, 3)
        self.assertEqual(Checkpoint.read(self.root / "checkpoint"), lowered)

    def test_a_sound_log_keeps_its_checkpoint(self) -> None:
        make_log(self.root / "commitlog", 3000, 3000)
        for timestamp in (sized_record(1000, 1).store_timestamp, 5):
            Checkpoint(timestamp, 2, 3).write(self.root / "checkpoint")
            self.crash(self.open())
            self.assertEqual(Checkpoint.read(self.root / "checkpoint"), Checkpoint(timestamp, 2, 3))

    def test_what_was_cut_is_told(self) -> None:
        make_log(self.root / "commitlog", 500)
        write_at(self.root / "commitlog", 500, b"stale")
        with capturedLogs() as events:
            store = self.open()
        (cut,) = [event for event in events if "cut_bytes" in event]
        self.assertEqual((cut["cut_bytes"], cut["end"]), (5, 500))
        self.assertEqual(cut["kept_in"], str(store.recovery.kept_in))
        self.assertEqual(Path(cut["kept_in"]).read_bytes(), b"stale")
        self.assertEqual(Path(cut["kept_in"]).parent, self.root / "rmqha" / "cut")

    def test_what_a_killed_rebuild_left_is_removed(self) -> None:
        """Only queues and index are in it, which follow from the log. It took as much room as they, until a rebuild."""
        store = self.open()
        store.commit_log.append(sized_record(500))
        store.derived.dispatcher.catch_up()
        self.close(store)
        for aside in ("", "old-"):  # killed before the swap, and in it
            shutil.copytree(self.root / "consumequeue", self.root / "rmqha" / "rebuild" / f"{aside}consumequeue")
        shutil.rmtree(self.root / "consumequeue")
        with capturedLogs() as events:
            store = self.open()
        self.assertFalse((self.root / "rmqha" / "rebuild").exists())
        self.assertIn(Event.UNFINISHED_REBUILD_REMOVED, [event.get("event") for event in events])
        queue = store.derived.queues.get("T", 0)
        self.assertEqual(None if queue is None else queue.max_offset, 1, "built again from the log")

    def test_the_lock_is_let_go_of_when_opening_fails(self) -> None:
        (self.root / "commitlog" / "foreign").mkdir(parents=True)
        for _ in range(2):
            with self.assertRaises(StoreError) as caught:
                self.open()
            self.assertNotIsInstance(caught.exception, StoreInUse)
        (self.root / "commitlog" / "foreign").rmdir()
        self.open()

    def test_a_state_that_is_none_is_refused_and_nothing_is_touched(self) -> None:
        make_log(self.root / "commitlog", 500)
        write_at(self.root / "commitlog", 500, b"stale")
        before = file_bytes(self.root / "commitlog")
        (self.root / "rmqha").mkdir()
        (self.root / "rmqha" / "state.json").write_bytes(b"{")
        with self.assertRaises(StoreError):
            self.open()
        self.assertEqual(file_bytes(self.root / "commitlog"), before)
        self.assertFalse(self.abort)


class InUseTests(MessageStoreTestCase):
    def test_a_second_opening_in_this_process_is_refused(self) -> None:
        store = self.open()
        store.commit_log.append_data(0, b"unproved")
        with self.assertRaises(StoreInUse):
            self.open()
        self.assertEqual(held(store.commit_log), b"unproved")
        self.close(store)
        self.open()

    @pytest.mark.process
    def test_a_second_opening_in_another_process_is_refused(self) -> None:
        program = (
            "import pathlib, sys\n"
            "from rmqha.settings.settings import Settings\n"
            "from rmqha.store.errors import StoreInUse\n"
            "from rmqha.store.messagestore import MessageStore\n"
            "try: MessageStore(Settings(store_path_root_dir=pathlib.Path(sys.argv[1])))\n"
            "except StoreInUse as error: print(error)\n"
        )
        self.open()
        ran = subprocess.run([sys.executable, "-c", program, str(self.root)], stdout=subprocess.PIPE, check=True)
        self.assertIn(f"{self.root} is in use", ran.stdout.decode())


class SegmentSizeTests(MessageStoreTestCase):
    def test_another_size_than_configured_is_refused_by_name(self) -> None:
        make_log(self.root / "commitlog", 500)
        with self.assertRaises(StoreError) as caught:
            self.open(8192)
        for part in (str(self.root / "commitlog"), "4096", "mappedFileSizeCommitLog", "8192"):
            self.assertIn(part, str(caught.exception))

    def test_without_configuration_it_is_what_the_segments_have(self) -> None:
        make_log(self.root / "commitlog", 500)
        self.assertEqual(self.open(None).commit_log.segment_size, SEGMENT_SIZE)

    def test_segments_too_short_for_a_message_are_refused_in_words(self) -> None:
        """And none of that size is made: it would stay for ever."""
        for size in (1, 7, 90, 98):
            root = new_folder(self)
            (root / "commitlog").mkdir()
            (root / "commitlog" / f"{0:020d}").write_bytes(bytes(size))
            (root / "abort").touch()
            with self.assertRaisesRegex(StoreError, f"have {size} bytes, too few for a message"):
                MessageStore(Settings(store_path_root_dir=root))
            for command in ("recover", "verify", "dump", "rebuild"):
                result = CliRunner().invoke(main, [command, str(root)])
                self.assertEqual(result.exit_code, ExitCode.CORRUPT, (command, result.output))
                self.assertIn("too few for a message", result.stderr)

    def test_without_segments_it_is_as_configured_or_java_s(self) -> None:
        folder = self.root / "commitlog"
        self.assertEqual(segment_size_of(folder, None), 1 << 30)
        self.assertEqual(segment_size_of(folder, 4096), 4096)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").touch()
        self.assertEqual(segment_size_of(folder, 4096), 4096)

    def test_an_empty_log_takes_the_master_s(self) -> None:
        store = self.open(None)
        store.adopt_segment_size(8192)
        self.assertEqual(store.commit_log.segment_size, 8192)
        store.commit_log.append(sized_record(100))
        store.adopt_segment_size(SEGMENT_SIZE)
        self.assertEqual(store.commit_log.segment_size, 8192)


class EpochTests(MessageStoreTestCase):
    """Readers outside learn when what was confirmed is not true any more."""

    def confirm(self, store: MessageStore, confirmed: int) -> None:
        replace(store.node_state, offsets=store.offsets(confirmed)).write(self.root)

    def test_a_store_keeps_its_id_and_epoch(self) -> None:
        store = self.open()
        store.commit_log.append(sized_record(500))
        self.confirm(store, 500)
        first = store.node_state
        self.close(store)
        again = self.open().node_state
        self.assertEqual((again.store_id, again.epoch, again.epoch_start), (first.store_id, 1, 0))

    def test_confirmed_bytes_that_are_gone_begin_an_epoch_at_once(self) -> None:
        store = self.open()
        for n in range(3):
            store.commit_log.append(sized_record(500, n))
        self.confirm(store, 1500)
        self.crash(store)
        write_at(self.root / "commitlog", 1100, b"!")
        store = self.open(may_cut=MayCut.ANYTHING)
        state = NodeState.read(self.root)
        self.assertEqual(state, store.node_state)
        assert state is not None
        self.assertEqual((state.epoch, state.epoch_start, state.offsets.confirmed), (2, 1000, 1000))
        self.crash(store)
        self.assertEqual(self.open().node_state.epoch, 2)

    def test_the_confirmed_end_of_a_log_is_not_cut(self) -> None:
        """Whether it has rotted or was lost to a disk that lied about a flush."""
        store = self.open()
        for n in range(3):
            store.commit_log.append(sized_record(500, n))
        self.confirm(store, 1500)
        self.close(store)
        for stop in ("clean", "unclean"):
            for change, may_cut in ((b"!", MayCut.ANYTHING), (bytes(500), MayCut.LOST_END)):
                copy = new_folder(self) / "store"
                shutil.copytree(self.root, copy)
                if stop == "unclean":
                    (copy / "abort").touch()
                write_at(copy / "commitlog", 1000, change)
                before = contents(copy)
                for allowed in MayCut:
                    if allowed < may_cut:
                        error = self.assertRaises(LogDamaged, self.open, root=copy, may_cut=allowed)
                        self.assertEqual((error.damage.start, error.damage.confirmed), (1000, 1500))
                        self.assertEqual(contents(copy), before)
                store = self.open(root=copy, may_cut=may_cut)
                self.assertEqual((store.recovery.end, store.node_state.epoch), (1000, 2))
                self.crash(store)
                self.assertEqual(self.open(root=copy).recovery.end, 1000)

    def test_a_slave_whose_last_bytes_are_gone_opens(self) -> None:
        """Its master sends them again. Bytes that have rotted are another matter: a repair brings back those."""
        store = self.open()
        for n in range(3):
            store.commit_log.append(sized_record(500, n))
        self.confirm(store, 1500)
        self.crash(store)
        write_at(self.root / "commitlog", 1000, b"!")
        self.assertRaises(LogDamaged, self.open, role=BrokerRole.SLAVE)
        write_at(self.root / "commitlog", 1000, bytes(500))
        self.assertEqual(self.open(role=BrokerRole.SLAVE).recovery.end, 1000)

    def test_a_file_without_a_size_is_one_of_zeros_although_others_follow(self) -> None:
        """Power was lost before it had its size. The messages after it are cut only if that is asked for, and kept."""
        store = self.open()
        log, size = store.commit_log, store.commit_log.segment_size
        while len(log.segment_bases) < 4:
            log.append(sized_record(500, log.max_offset))
        self.crash(store)
        path = self.root / "commitlog" / f"{size:020d}"
        os.truncate(path, 0)
        for may_cut in (MayCut.TORN_END, MayCut.LOST_END):
            error = self.assertRaises(LogDamaged, self.open, may_cut=may_cut)
            self.assertEqual(error.damage.start, size)
            self.assertEqual((path.stat().st_size, path.read_bytes().strip(b"\0")), (size, b""))
        recovery = self.open(may_cut=MayCut.ANYTHING).recovery
        self.assertEqual((recovery.end, recovery.kept_in is not None), (size, True))

    def test_numbers_that_cannot_be_are_not_believed(self) -> None:
        """Bits flip in state.json too."""
        make_log(self.root / "commitlog", 500, 500)
        for confirmed, written, verified in (
            (2**62, 1000, 1000),
            (-5, 1000, 1000),
            (2**62, 2**62, 1000),
        ):
            self.root.joinpath("abort").touch()
            NodeState("1f", offsets=Offsets(0, written, verified, 2**63 - 1, confirmed)).write(self.root)
            store = self.open()
            self.assertEqual((store.recovery.end, store.recovery.checked_from), (1000, 0))
            self.crash(store)

    def test_an_empty_log_opens_whatever_was_confirmed(self) -> None:
        """Whoever moved the segments elsewhere, or was killed while reseeding, begins anew."""
        NodeState("1f", offsets=Offsets(0, 900, 900, 900, 900)).write(self.root)
        store = self.open()
        self.assertEqual((store.recovery.end, store.node_state.epoch), (0, 2))

    def test_bytes_nobody_confirmed_begin_none(self) -> None:
        store = self.open()
        for n in range(3):
            store.commit_log.append(sized_record(500, n))
        self.confirm(store, 1000)
        self.crash(store)
        write_at(self.root / "commitlog", 1100, b"!")
        self.assertEqual(self.open().node_state.epoch, 1)

    def test_a_log_set_aside_begins_an_epoch(self) -> None:
        """Also where the log was empty when the store was opened."""
        store = self.open()
        for n in range(6):
            store.commit_log.append(sized_record(1000, n))
        Checkpoint(sized_record(1000, 5).store_timestamp).write(self.root / "checkpoint")
        before = file_bytes(self.root / "commitlog")
        aside = store.set_aside(now_ms=77)
        self.assertEqual(aside, self.root / "rmqha" / "aside-77")
        self.assertEqual(file_bytes(aside), before)
        self.assertEqual((store.commit_log.min_offset, store.commit_log.max_offset), (0, 0))
        state = NodeState.read(self.root)
        assert state is not None
        self.assertEqual((state.epoch, state.epoch_start, state.offsets), (2, 0, Offsets()))
        self.assertEqual(Checkpoint.read(self.root / "checkpoint").physic_msg_timestamp, 0)

    def set_aside_with_queues(self) -> tuple[MessageStore, Flusher, Thread, Path]:
        """A store whose log was set aside, its flusher, and its thread, which has not removed the old queues yet."""
        store, thread = self.open(), Thread()
        flusher = store.start_flushing(Clock(), thread, self.fail)
        store.commit_log.append(sized_record(500, 0))
        store.derived.dispatcher.catch_up()
        store.set_aside(now_ms=77)
        retired = self.root / "rmqha" / "rebuild" / "old-0"
        self.assertTrue((retired / "consumequeue" / "T" / "0").is_dir())
        self.assertFalse(list(self.root.glob("consumequeue/T")))
        return store, flusher, thread, retired

    def test_a_thread_removes_the_queues_of_a_log_set_aside(self) -> None:
        """There may be very many. Closing waits for it."""
        store, flusher, thread, retired = self.set_aside_with_queues()
        self.stores.remove(store)
        closing = store.close(flusher)
        self.assertNoResult(closing)
        thread.run()
        self.successResultOf(closing)
        self.assertFalse(retired.parent.exists())

    def test_the_next_start_removes_them_if_the_process_is_killed(self) -> None:
        store, _, _, retired = self.set_aside_with_queues()
        self.crash(store)
        self.open()
        self.assertFalse(retired.parent.exists())

    def test_queues_that_cannot_be_removed_stop_nothing(self) -> None:
        store, _, thread, retired = self.set_aside_with_queues()

        def refuse(path: Path) -> None:
            raise OSError(30, "Read-only file system")

        self.patch(store.disk, "remove_tree", refuse)
        with capturedLogs() as events:
            thread.run()
        (event,) = (event for event in events if event.get("event") is Event.RETIRED_NOT_REMOVED)
        self.assertIn("Read-only", event["error"])
        self.assertFalse(store.is_broken)
        store.commit_log.append(sized_record(300, 0))
        store.derived.dispatcher.catch_up()
        self.assertIsNotNone(store.derived.queues.get("T", 0))
        self.assertTrue(retired.exists())

    def test_links_to_queues_are_no_obstacle(self) -> None:
        """Users move queues and index to other disks."""
        store = self.open()
        store.commit_log.append(sized_record(500, 0))
        store.derived.dispatcher.catch_up()
        self.close(store)
        elsewhere = self.root.parent / "elsewhere"
        (self.root / "consumequeue").rename(elsewhere)
        (self.root / "consumequeue").symlink_to(elsewhere)
        (self.root / "batchconsumequeue").symlink_to(self.root.parent / "nowhere")
        store = self.open()
        store.set_aside(now_ms=77)
        self.assertTrue((elsewhere / "T").is_dir())
        self.assertFalse((self.root / "consumequeue").is_symlink())
        self.assertFalse((self.root / "batchconsumequeue").is_symlink())

    def test_opening_a_store_writes_nothing_into_another(self) -> None:
        self.patch(opening, "STATE_SECONDS", 0.0)
        for _ in range(2):  # the second time it has a state, and says in it what it is at
            self.confirm(self.open(), 0)
            self.let_go()
        before = contents(self.root)
        make_log(self.root.parent / "other" / "commitlog", *[500] * 20)
        self.open(root=self.root.parent / "other")
        self.assertEqual(contents(self.root), before)

    def test_setting_an_empty_log_aside_begins_none(self) -> None:
        store = self.open()
        store.set_aside(now_ms=77)
        self.assertEqual(store.node_state.epoch, 1)

    def test_an_empty_log_that_begins_lower_gets_new_queues(self) -> None:
        """Seed 6039 of the simulator: a slave lost its whole log, its master too, and that begins again."""
        store = self.open(role=BrokerRole.SLAVE)
        for n in range(3):
            store.commit_log.append(sized_record(500, n))
        store.derived.dispatcher.catch_up()
        store.commit_log.set_aside(self.root / "lost")
        store.commit_log.begin_at(0)
        self.assertFalse(store.derived.queues.queues)
        store.commit_log.append(sized_record(300, 0))
        store.derived.dispatcher.catch_up()
        queue = store.derived.queues.get("T", 0)
        assert queue is not None
        self.assertEqual((queue.max_offset, queue.max_physical_offset), (1, 300))

    def test_a_queue_that_came_back_as_it_was_with_a_lost_log_is_built_again(self) -> None:
        """Seed 7174 of the simulator: power was lost twice. Its last unit is wrong, and so is the one before."""
        store = self.open()
        for n in range(2):
            store.commit_log.append(sized_record(500, n))
        store.derived.dispatcher.catch_up()
        self.crash(store)
        (path,) = (self.root / "consumequeue" / "T" / "0").iterdir()
        before = path.read_bytes()
        shutil.rmtree(self.root)
        store = self.open()
        store.commit_log.append(replace(sized_record(500, 0), topic="U"))
        store.commit_log.append(sized_record(700, 0))
        store.derived.dispatcher.catch_up()
        self.crash(store)
        path.write_bytes(before)
        queue = self.open().derived.queues.get("T", 0)
        assert queue is not None
        self.assertEqual((queue.max_offset, queue.unit(0)), (1, Unit(500, 700, 0)))

    def test_queues_that_may_not_match_a_repaired_log_are_built_again(self) -> None:
        """Seed 8101 of the simulator: a slave's bad bytes were replaced by those of a master that had begun anew."""
        store = self.open()
        store.commit_log.append(sized_record(500, 0))
        store.derived.dispatcher.catch_up()
        self.close(store)
        (path,) = (self.root / "consumequeue" / "T" / "0").iterdir()
        size = path.stat().st_size
        path.write_bytes(bytes(7) + b"\1" + path.read_bytes()[8:])
        doubt(self.root)
        store = self.open()
        queue = store.derived.queues.get("T", 0)
        assert queue is not None
        self.assertEqual((queue.unit(0), queue.file_size), (Unit(0, 500, 0), size))
        self.assertFalse(is_doubted(self.root))


class DurableTests(MessageStoreTestCase):
    def test_what_is_durable_ends_with_a_record_though_a_flush_came_within_one(self) -> None:
        store, thread, clock = self.open(role=BrokerRole.SLAVE), Thread(), Clock()
        flusher = store.start_flushing(clock, thread, self.fail)
        log, first, second = store.commit_log, encoded(sized_record(300, 0), 0), encoded(sized_record(300, 1), 300)
        log.append_data(0, first + second[:100])
        log.verify()
        flusher.flush()
        thread.run()
        self.assertEqual((log.flushed_offset, log.durable_offset), (400, 300))
        log.append_data(400, second[100:])
        log.verify()
        self.assertEqual((log.verified_offset, log.durable_offset), (600, 300))
        self.assertEqual(confirmed_offset(store, store.settings, None), 300)
        flusher.flush()
        thread.run()
        self.assertEqual((log.flushed_offset, log.durable_offset), (600, 600))


class JavaStoreTests(MessageStoreTestCase):
    def test_java_s_stores_open_to_what_java_says(self) -> None:
        for name in fixtures.STORES:
            known = fixtures.facts()["variants"][name]
            root = fixtures.copy_of(name, self.root / name)
            store = self.open(None, root)
            log = store.commit_log
            self.assertEqual(
                (log.min_offset, log.max_offset, log.verified_offset), (0, known["maxOffset"], known["maxOffset"])
            )
            self.assertEqual(hashlib.sha256(held(log)).hexdigest(), known["logSha256"])
            self.assertEqual(log.scan(0).messages, known["records"])
            self.assertEqual(store.recovery.clean_stop, not known["abort"])
            self.assertEqual((store.recovery.problem, store.recovery.cut_bytes), (None, 0))
            self.assertEqual(store.recovery.removed_segments, int(known["abort"]))
            self.assertEqual(log.last_store_timestamp, known["lastStoreTimestamp"])
            self.close(store)
            self.assertFalse((root / "abort").exists())
            self.assertEqual(self.open(262_144, root).recovery.end, known["maxOffset"])

    def test_java_s_other_files_are_left_alone(self) -> None:
        root = fixtures.copy_of("master-crash", self.root / "master")
        others = [path for path in root.rglob("*") if path.is_file() and "commitlog" not in path.parts]
        before = {path: path.read_bytes() for path in others if path.name not in ("abort", "checkpoint")}
        store = self.open(None, root)
        last = store.commit_log.last_store_timestamp
        self.close(store)
        checkpoint = Checkpoint.read(root / "checkpoint")
        self.assertEqual((checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp), (last, last))
        self.assertEqual({path: path.read_bytes() for path in before}, before)
