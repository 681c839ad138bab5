"""Flushing the log, with a clock and a thread that the test controls."""

import errno
import os
from collections.abc import Callable

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.flush import OS_PAGE_SIZE, CheckpointFile, Flusher
from rmqha.store.log.mappedfile import Syncable
from tests.fixtures import new_folder
from tests.store.logs import SEGMENT_SIZE, encoded, sized_record

SETTINGS = Settings(
    flush_interval_commit_log_ms=500, flush_commit_log_least_pages=4, flush_commit_log_thorough_interval_ms=10_000
)


class Thread:
    """A thread that runs its functions when the test calls it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Deferred[None]]] = []
        self.calls = 0

    def __call__(self, function: Callable[[], None], /) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.waiting.append((function, done))
        self.calls += 1
        return done

    def run(self) -> None:
        """Do what has waited for longest, and tell so."""
        function, done = self.waiting.pop(0)
        try:
            function()
        except OSError:
            done.errback(Failure())
        else:
            done.callback(None)


class FlushTestCase(SynchronousTestCase):
    """Has a log, a clock, a thread and a service on them."""

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.log = CommitLog(self.root / "commitlog", 16 * SEGMENT_SIZE)
        self.addCleanup(self.log.close)
        self.clock = Clock()
        self.thread = Thread()
        self.failures: list[Failure] = []
        self.checkpoint_path = self.root / "checkpoint"
        self.service = self.make()
        self.flushed: list[int] = []
        self.service.subscribe(lambda: self.flushed.append(self.log.flushed_offset))

    def make(self, settings: Settings = SETTINGS) -> Flusher:
        return Flusher(
            self.log, settings, self.clock, self.thread, CheckpointFile(self.checkpoint_path), self.failures.append
        )

    def grow(self, size: int = 100, number: int = 0) -> int:
        self.log.append(sized_record(size, number))
        return self.log.max_offset

    def break_disk(self) -> None:
        def refuse(fd: int) -> None:
            raise OSError(errno.EIO, "input/output error")

        self.patch(os, "fdatasync", refuse)

    def checkpoint(self) -> int:
        return Checkpoint.read(self.checkpoint_path).physic_msg_timestamp


class ByTheClockTests(FlushTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.service.start()
        self.addCleanup(self.service.stop)

    def test_enough_pages_are_flushed_at_the_next_interval(self) -> None:
        end = self.grow(4 * OS_PAGE_SIZE)
        self.clock.advance(0.499)
        self.assertEqual(self.thread.calls, 0)
        self.clock.advance(0.001)
        self.assertEqual(self.thread.calls, 1)
        self.assertEqual(self.log.flushed_offset, 0)
        self.thread.run()
        self.assertEqual((self.log.flushed_offset, self.flushed), (end, [end]))

    def test_fewer_pages_wait_for_the_thorough_interval(self) -> None:
        end = self.grow(4 * OS_PAGE_SIZE - 1)
        self.clock.pump([0.5] * 19)
        self.assertEqual(self.thread.calls, 0)
        self.clock.advance(0.5)
        self.thread.run()
        self.assertEqual(self.log.flushed_offset, end)
        self.grow()
        self.clock.pump([0.5] * 19)
        self.assertEqual(self.thread.calls, 1)
        self.clock.advance(0.5)
        self.assertEqual(self.thread.calls, 2)
        self.thread.run()

    def test_nothing_new_is_no_flush(self) -> None:
        self.clock.pump([0.5] * 50)
        self.assertEqual(self.thread.calls, 0)
        self.grow()
        self.clock.advance(0.5)
        self.thread.run()
        self.clock.pump([0.5] * 50)
        self.assertEqual(self.thread.calls, 1)

    def test_no_pages_at_least_means_anything_is_enough(self) -> None:
        service = self.make(Settings(flush_commit_log_least_pages=0, flush_interval_commit_log_ms=100))
        service.start()
        self.addCleanup(service.stop)
        self.grow(100)
        self.clock.advance(0.1)
        self.assertEqual(self.thread.calls, 1)
        self.thread.run()

    def test_the_checkpoint_is_written_with_a_thorough_flush(self) -> None:
        self.grow(4 * OS_PAGE_SIZE, number=3)
        self.clock.advance(0.5)
        self.thread.run()
        self.assertEqual(self.checkpoint(), 0)
        self.grow(100, number=5)
        self.clock.advance(9.5)
        self.grow(100, number=6)
        self.thread.run()
        self.assertEqual(self.checkpoint(), sized_record(100, 5).store_timestamp)

    def test_the_checkpoint_is_written_only_once_its_records_are_on_disk(self) -> None:
        """Never ahead of the data: store.md 16, 6."""
        self.break_disk()
        self.grow()
        self.clock.advance(10)
        self.thread.run()
        self.assertFalse(self.checkpoint_path.exists())
        self.assertEqual(len(self.failures), 1)


class Queues:
    """Derived files that have all messages before ``written``."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.written = 0
        self.notes: list[Syncable] = []

    def take_unflushed(self) -> list[Syncable]:
        self.log.derived_end.take(self.written)
        return []

    def take_notes(self) -> list[Syncable]:
        return self.notes

    def vouched(self) -> tuple[int, int]:
        return 0, 0


class RefusedNote:
    """A small file for which the disk has no room."""

    def sync(self) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")


class DerivedTests(FlushTestCase):
    """Up to where queues and index are on the disk: retention waits for that."""

    def setUp(self) -> None:
        super().setUp()
        self.queues = Queues(self.log)
        checkpoint = CheckpointFile(self.checkpoint_path, self.queues)
        self.service = Flusher(self.log, SETTINGS, self.clock, self.thread, checkpoint, self.failures.append)
        self.service.start()
        self.addCleanup(self.service.stop)

    def test_what_was_written_before_a_flush_with_a_checkpoint_is_on_the_disk_after_it(self) -> None:
        self.queues.written = self.grow()
        self.clock.advance(10)
        self.assertEqual(self.log.derived_end.flushed, 0)
        before, self.queues.written = self.queues.written, self.grow()
        self.thread.run()
        self.assertEqual(self.log.derived_end.flushed, before)

    def test_other_flushes_leave_queues_in_memory(self) -> None:
        self.queues.written = self.grow(4 * OS_PAGE_SIZE)
        self.clock.advance(0.5)
        self.thread.run()
        self.assertEqual((self.log.flushed_offset, self.log.derived_end.flushed), (self.queues.written, 0))

    def test_when_no_more_messages_come_the_queues_are_flushed_all_the_same(self) -> None:
        end = self.grow()
        self.clock.advance(10)
        self.thread.run()
        self.queues.written = end
        self.clock.pump([0.5] * 19)
        self.assertEqual(self.thread.calls, 1)
        self.clock.advance(0.5)
        self.thread.run()
        self.assertEqual(self.log.derived_end.flushed, end)
        self.clock.pump([0.5] * 50)
        self.assertEqual(self.thread.calls, 2)

    def test_a_checkpoint_that_a_full_disk_refuses_proves_nothing(self) -> None:
        self.queues.notes = [RefusedNote()]
        self.queues.written = end = self.grow()
        self.clock.advance(10)
        self.thread.run()
        self.assertEqual((self.log.flushed_offset, self.log.derived_end.flushed), (end, 0))
        self.queues.notes = []
        self.clock.advance(10)
        self.thread.run()
        self.assertEqual((self.log.derived_end.flushed, self.failures), (end, []))

    def test_a_log_that_begins_later_and_is_empty_needs_no_flush(self) -> None:
        self.log.begin_at(16 * SEGMENT_SIZE)
        self.clock.advance(10)
        self.assertEqual(self.thread.calls, 0)


class FlushTests(FlushTestCase):
    def test_the_flushed_prefix_grows_when_the_disk_has_it(self) -> None:
        end = self.grow()
        synced: list[str] = []
        self.patch(os, "fdatasync", lambda fd: synced.append("data"))
        self.patch(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        self.service.flush()
        self.assertEqual((self.log.flushed_offset, synced), (0, []))
        self.thread.run()
        self.assertEqual((self.log.flushed_offset, self.flushed), (end, [end]))
        self.assertEqual(synced, ["data", str((self.root / "commitlog").resolve())])

    def test_a_synchronous_thread_will_do(self) -> None:
        self.service = Flusher(
            self.log, SETTINGS, self.clock, execute, CheckpointFile(self.checkpoint_path), self.failures.append
        )
        for _ in range(3):
            end = self.grow()
            self.service.flush()
            self.assertEqual(self.log.flushed_offset, end)

    def test_a_log_without_new_bytes_needs_no_flush(self) -> None:
        self.service.flush()
        self.grow()
        self.service.flush()
        self.thread.run()
        self.service.flush()
        self.assertEqual(self.thread.calls, 1)

    def test_calls_during_a_flush_make_one_more_follow(self) -> None:
        first = self.grow()
        self.service.flush()
        last = self.grow()
        for _ in range(5):
            self.service.flush()
        self.assertEqual(self.thread.calls, 1)
        self.thread.run()
        self.assertEqual((self.log.flushed_offset, self.thread.calls), (first, 2))
        self.thread.run()
        self.assertEqual((self.log.flushed_offset, self.thread.calls, self.thread.waiting), (last, 2, []))
        self.assertEqual(self.flushed, [first, last])

    def test_bytes_that_came_during_a_flush_are_not_flushed_by_it(self) -> None:
        first = self.grow()
        self.service.flush()
        self.grow()
        self.thread.run()
        self.assertEqual(self.log.flushed_offset, first)
        self.assertEqual(self.thread.calls, 1)

    def test_raw_bytes_are_flushed_too(self) -> None:
        self.log.append_data(0, b"half a record")
        self.service.flush()
        self.thread.run()
        self.assertEqual(self.log.flushed_offset, 13)

    def test_a_flush_over_several_segments_syncs_them_all(self) -> None:
        synced: list[str] = []
        self.patch(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")[-20:]))
        for _ in range(3):
            self.grow(15 * SEGMENT_SIZE)
        self.service.flush()
        self.thread.run()
        self.assertEqual(synced, [f"{n * 16 * SEGMENT_SIZE:020d}" for n in range(3)])

    def test_a_truncation_during_a_flush_keeps_the_flushed_prefix_where_it_is(self) -> None:
        """Cut bytes may have been rewritten while the thread was flushing."""
        self.grow()
        self.service.flush()
        self.log.truncate(0)
        self.log.append_data(0, encoded(sized_record(100, 7), 0) + encoded(sized_record(100, 8), 100))
        self.thread.run()
        self.assertEqual(self.log.flushed_offset, 0)
        self.service.flush()
        self.thread.run()
        self.assertEqual(self.log.flushed_offset, 200)

    def test_a_failed_flush_is_told_once_and_is_the_last(self) -> None:
        self.service.start()
        self.grow()
        self.break_disk()
        self.service.flush()
        self.service.flush()
        self.thread.run()
        self.assertEqual(len(self.failures), 1)
        self.failures[0].trap(OSError)
        self.assertTrue(self.service.broken)
        self.assertEqual((self.log.flushed_offset, self.flushed), (0, []))
        self.grow(4 * OS_PAGE_SIZE)
        self.service.flush()
        self.clock.advance(100)
        self.assertEqual((self.thread.calls, len(self.failures), self.log.flushed_offset), (1, 1, 0))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_listener_that_fails_does_not_stop_flushing(self) -> None:
        def fail() -> None:
            raise RuntimeError("a bug of the listener's")

        self.service.subscribe(fail)
        self.grow()
        self.service.flush()
        self.thread.run()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        end = self.grow()
        self.service.flush()
        self.thread.run()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual((self.log.flushed_offset, self.failures), (end, []))


class StopTests(FlushTestCase):
    def test_stopping_flushes_the_rest_and_writes_the_checkpoint(self) -> None:
        self.service.start()
        end = self.grow(100, number=4)
        self.service.stop()
        self.assertEqual((self.log.flushed_offset, self.flushed), (end, [end]))
        self.assertEqual(self.checkpoint(), sized_record(100, 4).store_timestamp)
        self.assertEqual((self.thread.calls, self.clock.getDelayedCalls()), (0, []))

    def test_the_checkpoint_keeps_the_other_times(self) -> None:
        Checkpoint(1, 2, 3).write(self.checkpoint_path)
        service = self.make()
        self.grow(100, number=4)
        service.stop()
        expected = Checkpoint(sized_record(100, 4).store_timestamp, 2, 3)
        self.assertEqual(Checkpoint.read(self.checkpoint_path), expected)

    def test_the_checkpoint_follows_the_log_back(self) -> None:
        """After a reseed nothing of the old log's time may be relied on."""
        self.grow(100, number=4)
        self.service.stop()
        self.log.set_aside(self.root / "aside")
        self.grow(100, number=1)
        self.service.stop()
        self.assertEqual(self.checkpoint(), sized_record(100, 1).store_timestamp)

    def test_a_disk_that_refuses_fails_the_stop(self) -> None:
        self.grow()
        self.break_disk()
        with self.assertRaises(OSError):
            self.service.stop()
        self.assertEqual(self.log.flushed_offset, 0)

    def test_drained_fires_when_the_flush_under_way_has_ended(self) -> None:
        self.successResultOf(self.service.drained())
        self.grow()
        self.service.flush()
        drained = self.service.drained()
        self.assertNoResult(drained)
        self.thread.run()
        self.successResultOf(drained)

    def test_drained_does_not_wait_for_calls_that_had_not_begun(self) -> None:
        self.grow()
        self.service.flush()
        self.grow()
        self.service.flush()
        drained = self.service.drained()
        self.thread.run()
        self.successResultOf(drained)
        self.assertEqual((self.thread.calls, self.thread.waiting), (1, []))

    def test_drained_waits_for_a_flush_that_a_listener_began(self) -> None:
        """As SYNC_FLUSH does: what is flushed then must not be closed under the thread."""
        self.service.subscribe(self.service.flush)
        self.grow()
        self.service.flush()
        drained = self.service.drained()
        end = self.grow()
        self.thread.run()
        self.assertNoResult(drained)
        self.thread.run()
        self.successResultOf(drained)
        self.assertEqual((self.log.flushed_offset, self.thread.waiting), (end, []))

    def test_drained_fires_after_a_failure_too(self) -> None:
        self.grow()
        self.service.flush()
        drained = self.service.drained()
        self.break_disk()
        self.thread.run()
        self.successResultOf(drained)
        self.assertEqual(len(self.failures), 1)
