"""What is deleted, when, and what is held (spec/store.md 10)."""

import os
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings
from rmqha.store.errors import StoreError
from rmqha.store.message import Message
from rmqha.store.retention import MAX_FILES_PER_RUN, Cleaning, HeldLog, Retention, Slot, SlotFolder, disk_used_ratio
from tests.fixtures import new_folder
from tests.store.derived.test_dispatch import DispatchTestCase
from tests.store.logs import SEGMENT_SIZE, flush_derived
from tests.store.queues import expected_of
from tests.store.test_put import PutTestCase

FOUR = datetime(2026, 11, 20, 4, 30)
FIVE = datetime(2026, 11, 20, 5, 0)
HOUR = 3600.0
RESERVED = 72 * HOUR


class RetentionTestCase(DispatchTestCase):
    """Has a log of sixteen segments, each an hour younger than the one before it, all over the age."""

    COUNT = 16

    def setUp(self) -> None:
        super().setUp()
        while len(self.log.segment_bases) < self.COUNT:
            self.writer.put_many(4)
        self.writer.put_many(6)
        self.assertEqual(len(self.log.segment_bases), self.COUNT)
        self.dispatcher.catch_up()
        self.flush_derived()
        self.ratio = 0.5
        self.held_from: int | None = None
        for number, base in enumerate(self.log.segment_bases):
            self.age(base, RESERVED + (self.COUNT - number) * HOUR)

    def age(self, base: int, seconds: float, now: datetime = FOUR) -> None:
        """Let a segment have been written to for the last time that long ago."""
        at = now.timestamp() - seconds
        os.utime(self.log.folder / f"{base:020d}", (at, at))

    def flush_derived(self) -> None:
        """As a checkpoint's flush does."""
        flush_derived(self.log, self.dispatcher)

    def make_retention(self, max_hold_bytes: int | None = None, **settings: Any) -> Retention:
        return Retention(
            self.log,
            self.queues,
            self.index,
            Settings(**settings),
            HeldLog(lambda: self.held_from, max_hold_bytes),
            lambda folder: self.ratio if folder == self.log.folder else 1.0,
        )

    def clean(self, now: datetime = FOUR, max_hold_bytes: int | None = None, **settings: Any) -> Cleaning:
        before = self.log.segment_bases
        cleaning = self.make_retention(max_hold_bytes, **settings).clean(now)
        self.assertEqual(self.log.segment_bases, before[cleaning.segments :])
        names = sorted(path.name for path in self.log.folder.iterdir())
        self.assertEqual(names, [f"{base:020d}" for base in self.log.segment_bases])
        self.assertEqual(self.log.min_offset, self.log.segment_bases[0])
        return cleaning


class WhenTests(RetentionTestCase):
    def test_at_the_hour_what_is_old_goes(self) -> None:
        for base in self.log.segment_bases[3:]:
            self.age(base, RESERVED - 1)
        self.assertEqual(self.clean(), Cleaning(3, False))

    def test_no_step_deletes_more_than_one_segment(self) -> None:
        """A segment has a GiB: a disk may take its time to free that."""
        left = [len(self.log.segment_bases)]
        left += [len(self.log.segment_bases) for _ in self.make_retention().cleaning(FOUR)]
        self.assertEqual(left[0] - left[-1], MAX_FILES_PER_RUN)
        self.assertEqual(max(before - after for before, after in pairwise(left)), 1)

    def test_an_age_is_reached_to_the_second(self) -> None:
        self.age(self.log.segment_bases[0], RESERVED)
        self.age(self.log.segment_bases[1], RESERVED - 0.5)
        self.assertEqual(self.clean().segments, 1)

    def test_at_other_hours_nothing_goes(self) -> None:
        self.assertEqual(self.clean(FIVE), Cleaning(0, False))
        self.assertEqual(self.clean(FOUR.replace(hour=16)), Cleaning(0, False))

    def test_an_operator_need_not_wait_for_the_hour_but_nothing_else_goes(self) -> None:
        for base in self.log.segment_bases[3:]:
            self.age(base, 0, FIVE)
        self.held_from = self.log.segment_bases[2]
        self.assertEqual(self.make_retention().clean(FIVE, at_any_hour=True).segments, 2)
        self.held_from = None
        self.assertEqual(self.make_retention().clean(FIVE, at_any_hour=True).segments, 1)
        self.assertEqual(self.make_retention().clean(FIVE, at_any_hour=True).segments, 0)

    def test_hours_and_age_as_configured(self) -> None:
        self.assertEqual(self.clean(FOUR, delete_when=(5, 23)).segments, 0)
        self.assertEqual(self.clean(FIVE, delete_when=(5, 23), file_reserved_time_hours=86).segments, 3)
        self.assertEqual(self.clean(FIVE.replace(hour=23), delete_when=(5, 23)).segments, MAX_FILES_PER_RUN)

    def test_only_ten_a_run_and_never_the_last(self) -> None:
        self.assertEqual(self.clean().segments, MAX_FILES_PER_RUN)
        self.assertEqual(self.clean().segments, self.COUNT - 1 - MAX_FILES_PER_RUN)
        self.assertEqual(self.clean().segments, 0)
        self.assertEqual(len(self.log.segment_bases), 1)

    def test_a_young_segment_keeps_old_ones_behind_it(self) -> None:
        self.age(self.log.segment_bases[2], 0)
        self.assertEqual(self.clean().segments, 2)

    def test_a_log_without_a_segment(self) -> None:
        self.log.truncate(0)
        self.assertEqual(self.clean(), Cleaning(0, False))


class DiskTests(RetentionTestCase):
    def rejuvenate(self, start: int = 0) -> None:
        for base in self.log.segment_bases[start:]:
            self.age(base, 0, FIVE)

    def test_a_disk_that_fills_up_needs_no_hour(self) -> None:
        self.rejuvenate(4)
        for ratio, count in ((0.75, 0), (0.7501, 4)):
            self.ratio = ratio
            self.assertEqual(self.clean(FIVE), Cleaning(count, False))

    def test_from_where_on_it_is_configured(self) -> None:
        self.rejuvenate(4)
        for ratio, count in ((0.6, 0), (0.61, 4)):
            self.ratio = ratio
            self.assertEqual(self.clean(FIVE, disk_max_used_space_ratio=60).segments, count)

    def test_a_fuller_one_needs_no_age(self) -> None:
        self.rejuvenate()
        for ratio, count, full in ((0.85, 0, False), (0.8501, MAX_FILES_PER_RUN, False), (0.9, 5, False)):
            self.ratio = ratio
            self.assertEqual(self.clean(FIVE), Cleaning(count, full))

    def test_a_full_one_is_told(self) -> None:
        self.rejuvenate()
        self.ratio = 0.9001
        self.assertEqual(self.clean(FIVE), Cleaning(MAX_FILES_PER_RUN, True))
        self.ratio = 0.9
        self.assertFalse(self.clean(FIVE).disk_full)

    def test_but_not_if_that_is_switched_off(self) -> None:
        self.rejuvenate(4)
        self.ratio = 0.99
        self.assertEqual(self.clean(FIVE, clean_file_forcibly_enable=False), Cleaning(4, True))

    def test_the_partition_as_df_counts(self) -> None:
        with patch("shutil.disk_usage") as usage:
            usage.return_value.used, usage.return_value.free = 60, 20
            self.assertEqual(disk_used_ratio(Path("/")), 0.75)
        self.assertTrue(0 < disk_used_ratio(self.root) < 1)

    def test_a_log_that_has_no_folder_yet_will_be_on_the_partition_of_its_store(self) -> None:
        """Else a node to which nothing comes in its first minute would stop."""
        with patch("shutil.disk_usage") as usage:
            usage.return_value.used, usage.return_value.free = 60, 20
            self.assertEqual(disk_used_ratio(self.root / "not" / "there"), 0.75)
        usage.assert_called_once_with(self.root)


class HoldTests(RetentionTestCase):
    def test_what_is_held_stays(self) -> None:
        bases = self.log.segment_bases
        for held_from, count in ((bases[2] - 1, 1), (bases[2], 1), (bases[3] - 1, 0), (bases[3] + 5, 1)):
            self.held_from = held_from
            with capturedLogs() as logs:
                cleaning = self.clean()
            self.assertEqual(cleaning, Cleaning(count, False, held_from))
            self.assertEqual([e["start"] for e in logs if "held" in e["log_format"]], [held_from])

    def test_though_the_disk_is_full(self) -> None:
        self.held_from, self.ratio = 0, 0.99
        self.assertEqual(self.clean(FIVE), Cleaning(0, True, 0))

    def test_a_hold_that_stops_nothing_is_not_told(self) -> None:
        self.held_from = self.log.max_offset
        self.assertEqual(self.clean(), Cleaning(MAX_FILES_PER_RUN, False))
        self.held_from = 0
        self.assertEqual(self.clean(FIVE), Cleaning(0, False))

    def test_no_more_is_held_than_the_bound(self) -> None:
        self.held_from = 0
        end = self.log.verified_offset
        bases = self.log.segment_bases
        bound = end - bases[3]
        self.assertEqual(self.clean(max_hold_bytes=bound), Cleaning(3, False, bases[3]))
        self.assertEqual(self.clean(max_hold_bytes=bound - SEGMENT_SIZE + 1), Cleaning(0, False, bases[4] - 1))
        self.assertEqual(self.clean(max_hold_bytes=0).segments, MAX_FILES_PER_RUN)

    def test_a_hold_within_the_bound_is_kept(self) -> None:
        self.held_from = self.log.segment_bases[2]
        self.assertEqual(self.clean(max_hold_bytes=10**9), Cleaning(2, False, self.held_from))

    def test_while_it_is_not_known_what_is_held_nothing_goes(self) -> None:
        slots = SlotFolder(self.root)
        slots.save(Slot("slave-b", 10**6))
        (self.root / "rmqha" / "slots" / "slave-a.json").write_text("{}")
        retention = Retention(
            self.log,
            self.queues,
            self.index,
            Settings(),
            HeldLog(lambda: min(slot.offset for slot in slots.slots())),
            used_ratio=lambda _: 0.99,
        )
        bases = self.log.segment_bases
        with self.assertRaisesRegex(StoreError, "slave-a.json is not a valid slot"):
            retention.clean(FOUR)
        self.assertEqual(self.log.segment_bases, bases)


class UnflushedTests(RetentionTestCase):
    """A segment stays until queues and index have its messages on the disk: without it they cannot be built again."""

    def build_again(self) -> None:
        self.dispatcher.go_back_to(self.log.segment_bases[3] + 1)
        self.dispatcher.catch_up()

    def test_what_is_dispatched_but_not_flushed_stays(self) -> None:
        self.build_again()
        with capturedLogs() as logs:
            self.assertEqual(self.clean(), Cleaning(3, False))
        self.assertEqual(len(logs), 3, "one line for each that goes, and none for one that stays")
        self.assertEqual(self.clean().segments, 0)
        self.flush_derived()
        self.assertEqual(self.clean().segments, MAX_FILES_PER_RUN)

    def test_a_flush_that_began_before_messages_were_dispatched_again_does_not_count(self) -> None:
        self.dispatcher.take_unflushed()
        self.build_again()
        self.log.derived_end.taken_is_flushed()
        self.assertEqual(self.clean().segments, 3)

    def test_on_a_disk_that_is_too_full_it_goes(self) -> None:
        """Dispatch may wait for just that room."""
        self.build_again()
        self.ratio = 0.86
        self.assertEqual(self.clean(clean_file_forcibly_enable=False).segments, 3)
        self.assertEqual(self.clean().segments, MAX_FILES_PER_RUN)


class StoreTests(PutTestCase):
    """What a store knows of its queues when it opens, runs and closes."""

    def put_segments(self) -> None:
        while len(self.log.segment_bases) < 3:
            self.put(Message("T", b"x" * 500))
        self.clock.pump([0.01] * 20)  # dispatch
        self.assertEqual(self.store.derived.dispatcher.behind_bytes, 0)

    def test_the_first_segment_must_stay_until_a_checkpoint(self) -> None:
        self.put_segments()
        self.assertTrue(self.log.needs_first_segment)
        self.reopen()  # it was killed
        self.assertTrue(self.log.needs_first_segment)
        self.clock.advance(self.settings.flush_commit_log_thorough_interval_ms / 1000)
        self.assertTrue(self.log.needs_first_segment)
        self.thread.run()
        self.assertFalse(self.log.needs_first_segment)
        self.assertEqual(self.log.derived_end.flushed, self.log.verified_offset)

    def test_a_clean_stop_has_flushed_all(self) -> None:
        self.put_segments()
        self.successResultOf(self.store.close(self.flusher))
        self.stores.remove(self.store)
        self.open()
        self.assertEqual(self.log.derived_end.flushed, self.log.verified_offset)
        self.assertFalse(self.log.needs_first_segment)


class DerivedTests(RetentionTestCase):
    def test_queues_and_index_follow(self) -> None:
        queue_files = {key: len(queue._queue.bases) for key, queue in self.queues.queues.items()}
        self.assertGreater(min(queue_files.values()), 1)
        index_files = len(list((self.root / "index").iterdir()))
        self.assertGreater(index_files, 1)
        for count in (MAX_FILES_PER_RUN, self.COUNT - 1 - MAX_FILES_PER_RUN):
            self.assertEqual(self.clean().segments, count)
            expected = expected_of(self.log)
            for key, queue in self.queues.queues.items():
                self.assertEqual(queue.min_offset, min(expected.units[key]))
                self.assertEqual(queue.max_offset, max(expected.units[key]) + 1)
                self.assertLess(queue.min_offset * 20 - queue._queue.bases[0], 100, "files before its begin are gone")
            self.check(expected)
        self.assertTrue(all(len(q._queue.bases) < queue_files[key] for key, q in self.queues.queues.items()))
        self.assertLess(len(list((self.root / "index").iterdir())), index_files)

    def test_a_queue_without_a_message_left_keeps_its_offset(self) -> None:
        queue = self.queues.get_or_make("quiet", 0)
        for number in range(3):
            unit = self.queues.queues["T0", 0].unit(number)
            assert unit is not None
            queue.put(number, unit)
        self.clean()
        self.assertEqual((queue.min_offset, queue.max_offset, queue.unit(2)), (3, 3, None))

    def test_nothing_is_looked_at_when_nothing_went(self) -> None:
        queue = self.queues.queues["T0", 0]
        with patch.object(queue, "delete_files_before") as delete:
            self.clean(FIVE)
            self.assertFalse(delete.called)
            self.clean(FOUR)
            self.assertTrue(delete.called)

    def test_without_an_index(self) -> None:
        retention = Retention(self.log, self.queues, None, Settings(), used_ratio=lambda _: 0.5)
        self.assertEqual(retention.clean(FOUR).segments, MAX_FILES_PER_RUN)

    def test_dispatch_that_was_behind_goes_on_at_the_begin(self) -> None:
        self.dispatcher.reput_offset = 0
        self.clean()
        self.dispatcher.catch_up()
        self.check()


class SlotFolderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = new_folder(self)
        self.slots = SlotFolder(self.root)
        self.folder = self.root / "rmqha" / "slots"

    def test_slots_are_kept(self) -> None:
        self.assertEqual(self.slots.slots(), [])
        self.slots.save(Slot("b", 5))
        self.slots.save(Slot("a", 7))
        self.slots.save(Slot("b", 6))
        self.assertEqual(SlotFolder(self.root).slots(), [Slot("a", 7), Slot("b", 6)])
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.json", "b.json"])

    def test_what_is_no_slot_is_told(self) -> None:
        for content in ("", "{", "[]", "{}", '{"offset": null}', '{"offset": "x"}', "7"):
            self.slots.save(Slot("a", 7))
            (self.folder / "a.json").write_text(content)
            with self.assertRaisesRegex(StoreError, "nothing is deleted"):
                self.slots.slots()

    def test_a_name_that_can_be_no_file_is_refused(self) -> None:
        for name in ("", "../a", "a/b", ".a"):
            with self.assertRaises(StoreError):
                self.slots.save(Slot(name, 1))
        self.assertFalse(self.folder.exists())

    def test_a_write_that_was_cut_short_leaves_the_old_slot(self) -> None:
        self.slots.save(Slot("a", 7))
        (self.folder / "a.json.tmp").write_text("{")
        self.assertEqual(self.slots.slots(), [Slot("a", 7)])
