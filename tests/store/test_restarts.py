"""What a slave does not know yet of its Java master's deletions outlives its process (spec/store.md 13.5)."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.derived.dispatch import MIN_BULK_MESSAGES
from rmqha.store.errors import StoreError
from rmqha.store.examining import CHECKPOINT_FILE
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.promote import plan_promotion, promote, unknown_deletions_in_words
from rmqha.store.restarts import MAX_RESTARTS, Restart, read_restarts, restarts_path, write_restarts
from tests.store.queues import Writer

SETTINGS = Settings(mapped_file_size_commit_log=1 << 20, broker_role=BrokerRole.SLAVE)
NOW_MS = 1_795_000_000_000


class RestartsTestCase(SynchronousTestCase):
    """A slave's store with a queue of messages; then the queue starts again from 0."""

    def setUp(self) -> None:
        self.settings = replace(SETTINGS, store_path_root_dir=Path(self.mktemp()))
        self.root = self.settings.store_path_root_dir
        self.opened: list[MessageStore] = []
        self.addCleanup(self.abandon)

    def abandon(self) -> None:
        for store in self.opened:
            store.abandon()

    def open(self, root: Path | None = None, disk: Disk = DISK) -> MessageStore:
        store = MessageStore(replace(self.settings, store_path_root_dir=root or self.root), disk=disk)
        self.opened.append(store)
        return store

    def close(self, store: MessageStore, state: NodeState | None = None) -> None:
        self.opened.remove(store)
        store.close_now(None if state is None else lambda: state)

    def restart(self, store: MessageStore, later: int = 1) -> dict[str, Restart]:
        """Copy such a log, with some later messages. Returns what is there to be asked."""
        writer = Writer(store.commit_log)
        for _ in range(3):
            writer.put("Gone", 0)
        writer.offsets["Gone", 0] = 0
        first = writer.put("Gone", 0)
        for _ in range(later):
            writer.put("Gone", 0)
        writer.put("Other", 0)  # dispatch begins here after a clean stop
        return {"Gone": Restart(0, first.physical_offset)}


class DeathTests(RestartsTestCase):
    def test_after_a_death_before_the_note_dispatch_finds_it_again(self) -> None:
        """Also if the queue has got later messages meanwhile, which have their place there."""
        for later in (1, 5, 2 * MIN_BULK_MESSAGES):
            with self.subTest(later=later):
                self.root = Path(self.mktemp())
                store = self.open()
                expected = self.restart(store, later)
                store.derived.dispatcher.catch_up()
                self.assertEqual(store.restarts.found, expected)
                left = Path(shutil.copytree(store.root, self.mktemp()))
                self.assertEqual(read_restarts(left), {}, "the note is not there yet")
                again = self.open(left)
                again.derived.dispatcher.catch_up()
                self.assertEqual(again.restarts.found, expected)

    def test_no_checkpoint_counts_the_message_before_the_note_is_on_the_disk(self) -> None:
        """A full disk that refuses the note only makes the checkpoint wait."""
        disk = LookingDisk()
        store, clock, failures = self.open(disk=disk), Clock(), list[Failure]()
        store.start_flushing(clock, execute, failures.append)
        expected = self.restart(store)
        store.derived.dispatcher.catch_up()
        writer = Writer(store.commit_log)
        for disk.is_full in (True, False):
            self.assertEqual(disk.notes, [])
            for _ in range(30):
                writer.put("Other", 0)
                clock.advance(0.5)
        self.assertEqual((disk.notes[:1], failures), ([expected], []))


class LookingDisk(Disk):
    """Sees what the note says whenever a checkpoint is written. ``is_full`` refuses new files."""

    def __init__(self) -> None:
        self.notes: list[dict[str, Restart]] = []
        self.is_full = False

    def replace(self, path: Path, content: bytes, mode: int | None = None) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().replace(path, content, mode)

    def overwrite(self, path: Path, content: bytes, size: int) -> None:
        if path.name == CHECKPOINT_FILE:
            self.notes.append(read_restarts(path.parent))
        super().overwrite(path, content, size)


class NoteTests(RestartsTestCase):
    def test_it_is_there_after_a_clean_stop_and_gone_once_it_is_answered(self) -> None:
        store = self.open()
        expected = self.restart(store)
        self.close(store)
        again = self.open()
        self.assertEqual(again.restarts.found, expected)
        again.restarts.drop(["Gone"])
        self.close(again)
        self.assertFalse(restarts_path(self.root).exists())

    def test_what_the_log_has_lost_is_forgotten(self) -> None:
        """Other messages may come there. If the same ones come again, dispatch finds them again."""
        store = self.open()
        self.restart(store)
        end = store.commit_log.verified_offset
        self.close(store)
        write_restarts(self.root, {"Gone": Restart(0, end), "Old": Restart(0, end - 1)})
        self.assertEqual(set(self.open().restarts.found), {"Old"})

    def test_a_broken_note_is_one_clear_sentence_and_nothing_is_changed(self) -> None:
        restarts_path(self.root).parent.mkdir(parents=True)
        for text in (b"", b"[]", b'{"T": 1}', b'{"T": {"queueId": 0}}', b'{"T": {"queueId": 0, "at": -1}}'):
            restarts_path(self.root).write_bytes(text)
            with self.subTest(text=text), self.assertRaisesRegex(StoreError, "Move the file away"):
                MessageStore(self.settings)
            self.assertEqual(restarts_path(self.root).read_bytes(), text)

    def test_it_has_a_bound(self) -> None:
        write_restarts(self.root, {f"T{number}": Restart(0, number) for number in range(MAX_RESTARTS + 5)})
        self.assertEqual(len(read_restarts(self.root)), MAX_RESTARTS)


class PromotionTests(RestartsTestCase):
    def test_a_promotion_names_the_topics_of_which_nobody_can_tell_any_more(self) -> None:
        store = self.open()
        self.restart(store)
        end = store.commit_log.verified_offset
        state = NodeState("1f", role="SLAVE", state="IN_SYNC", offsets=Offsets(0, *[end] * 4))
        self.close(store, state)
        foretold = plan_promotion(self.settings, BrokerRole.ASYNC_MASTER, state)
        self.assertEqual(foretold.restarts, ("Gone",))
        done = promote(self.settings, BrokerRole.ASYNC_MASTER, NOW_MS)
        self.assertEqual(done.restarts, foretold.restarts)
        self.assertEqual(done.queue_ends["Gone", 0], 3, "the old messages stay")
        self.assertIn("whether it had deleted Gone,", unknown_deletions_in_words(done.restarts))
        self.assertFalse(restarts_path(self.root).exists(), "it is a master now")
