"""Consume queues: units, files, recovery, cuts, and offsets by time (spec/store.md 6)."""

import os
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.store.derived import consumequeue
from rmqha.store.derived.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    DEFAULT_QUEUE_FILE_SIZE,
    UNIT_DTYPE,
    BoundaryType,
    ConsumeQueue,
    Marks,
    QueueDamaged,
    UnflushedQueues,
    Unit,
    queue_file_size,
)
from rmqha.store.errors import StoreError
from rmqha.store.interfaces import IMessageTimes
from rmqha.store.log.mappedfile import DISK, MAX_OPEN_FILES, Syncable, UnflushedFile
from rmqha.testing.sim.disk import SimDisk
from tests import examples
from tests.fixtures import new_folder, open_files

FILE_UNITS = 5
FILE_SIZE = FILE_UNITS * CQ_STORE_UNIT_SIZE
BLANK_BYTES = bytes.fromhex("0000000000000000 7FFFFFFF 0000000000000000")
BLANK = Unit(0, 0x7FFFFFFF, 0)


def unit(number: int) -> Unit:
    """Of a queue that has every third message or so of its log."""
    return Unit(1000 + number * 300, 100 + number, -(number * 0x0101_0101_0101) - 1)


class ConsumeQueueTestCase(SynchronousTestCase):
    """Has a folder, and queues in it."""

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.folders = 0
        self.marks = Marks()
        self.again()

    def again(self) -> None:
        """Take another folder, within one test."""
        self.folders += 1
        self.folder = self.root / str(self.folders) / "T" / "0"

    def open(self, owned: bool = True) -> ConsumeQueue:
        """As its files are."""
        queue = ConsumeQueue(self.folder, "T", 0, FILE_SIZE, owned, self.marks)
        self.addCleanup(queue.close)
        return queue

    def make(self, count: int, begin: int = 0) -> ConsumeQueue:
        """A queue of so many units, written."""
        queue = self.open()
        for number in range(begin, begin + count):
            queue.put(number, unit(number))
        queue.write_pending()
        return queue

    def recovered(self, checked_from: int | None = None) -> ConsumeQueue:
        queue = self.open()
        queue.recover(checked_from)
        return queue

    def take_unflushed(self) -> list[Syncable]:
        """Files and folders to be flushed, told once."""
        return UnflushedQueues(self.marks.take_unflushed(), DISK).files()

    def taken(self) -> list[int]:
        """Where the files begin that are to be flushed."""
        return [file.base_offset for file in self.take_unflushed() if isinstance(file, UnflushedFile)]

    def files(self) -> dict[int, bytes]:
        """The queue's files by the number in their name."""
        if not self.folder.is_dir():
            return {}
        return {int(path.name): path.read_bytes() for path in sorted(self.folder.iterdir())}

    def content(self) -> bytes:
        """All files, joined."""
        return b"".join(self.files().values())

    def write(self, at: int, data: bytes) -> None:
        """Change the bytes at ``at`` of the queue and behind, across files."""
        for base, old in self.files().items():
            new = bytearray(old)
            for place in range(max(at, base), min(at + len(data), base + FILE_SIZE)):
                new[place - base] = data[place - at]
            (self.folder / f"{base:020d}").write_bytes(new)

    def check_units(self, queue: ConsumeQueue, count: int, begin: int = 0) -> None:
        """It has just these, by every way of asking."""
        self.assertEqual(queue.max_offset, begin + count if count else 0)
        numbers = range(begin, begin + count)
        self.assertEqual([queue.unit(number) for number in numbers], [unit(number) for number in numbers])
        self.assertIsNone(queue.unit(queue.max_offset))
        last = unit(begin + count - 1)
        self.assertEqual(queue.max_physical_offset, last.physical_offset + last.size if count else -1)


class UnitTests(ConsumeQueueTestCase):
    def test_a_unit_is_the_place_the_size_and_the_hash_of_the_tags(self) -> None:
        """store.md 3.13: the unit of the golden record."""
        queue = self.open()
        queue.put(0, Unit(0x76, 0x8C, 2598919))
        queue.write_pending()
        golden = bytes.fromhex("0000000000000076 0000008C 000000000027A807")
        self.assertEqual(self.files(), {0: golden + bytes(FILE_SIZE - 20)})

    def test_a_negative_hash_keeps_its_sign(self) -> None:
        self.open_with(Unit(7, 100, -2))
        self.assertEqual(self.content()[12:20], b"\xff" * 7 + b"\xfe")
        self.assertEqual(self.recovered().unit(0), Unit(7, 100, -2))

    def open_with(self, *units: Unit) -> ConsumeQueue:
        queue = self.open()
        for number, each in enumerate(units):
            queue.put(number, each)
        queue.write_pending()
        return queue

    def test_a_file_is_a_whole_number_of_units(self) -> None:
        self.assertEqual([queue_file_size(size) for size in (20, 21, 39, 40, 2000)], [20, 40, 40, 40, 2000])

    def test_an_empty_queue_has_nothing(self) -> None:
        queue = self.recovered()
        self.check_units(queue, 0)
        self.assertEqual((queue.min_offset, len(queue.units(0, 9)), queue.unit(-1)), (0, 0, None))
        self.assertFalse(self.folder.exists())


class PutTests(ConsumeQueueTestCase):
    def test_units_are_there_at_once_and_in_the_file_when_written(self) -> None:
        queue = self.make(2)
        queue.put(2, unit(2))
        self.assertEqual((queue.max_offset, self.content()[40:60]), (3, bytes(20)))
        self.check_units(queue, 3)
        self.assertNotEqual(self.content()[40:60], bytes(20))

    def test_files_follow_one_another(self) -> None:
        for count in range(1, 3 * FILE_UNITS + 2):
            self.again()
            self.check_units(self.make(count), count)
            bases = list(range(0, count * CQ_STORE_UNIT_SIZE, FILE_SIZE))
            self.assertEqual(
                [(base, len(data)) for base, data in self.files().items()], [(b, FILE_SIZE) for b in bases]
            )
            self.check_units(self.recovered(), count)

    def test_a_slice_of_dispatch_may_span_files(self) -> None:
        queue = self.open()
        for number in range(13):
            queue.put(number, unit(number))
        self.check_units(queue, 13)

    def test_units_are_given_within_one_file(self) -> None:
        queue = self.make(12)
        self.assertEqual([len(queue.units(0, 3)), len(queue.units(3, 9)), len(queue.units(10, 9))], [3, 2, 2])
        self.assertEqual([Unit(*each) for each in queue.units(3, 9).tolist()], [unit(3), unit(4)])
        self.assertEqual([queue.next_file_offset(offset) for offset in (0, 4, 5)], [5, 5, 10])

    def test_a_unit_that_is_there_is_left_alone(self) -> None:
        queue = self.make(7)
        before = self.content()
        for number in range(7):
            queue.put(number, unit(number))
            queue.put(number, Unit(9000, 9, 9))
        queue.write_pending()
        self.assertEqual((self.content(), queue.order_breaches), (before, 0))
        self.check_units(queue, 7)

    def test_a_message_that_is_there_is_not_added_again(self) -> None:
        queue = self.make(7)
        queue.put(7, unit(6))
        self.check_units(queue, 7)

    def test_a_queue_that_begins_late_has_blanks_in_its_first_file(self) -> None:
        """store.md 6.2, 3: as on a slave that got the log from its middle on."""
        for begin in (1, 4, 5, 6, 7, 14, 100):
            self.again()
            queue = self.make(2, begin)
            base = begin // FILE_UNITS * FILE_SIZE
            self.assertEqual((queue.min_offset, queue.max_offset, queue.order_breaches), (begin, begin + 2, 0))
            self.assertEqual(min(self.files()), base)
            self.assertEqual(self.content()[: 20 * (begin % FILE_UNITS)], BLANK_BYTES * (begin % FILE_UNITS))
            self.assertIsNone(queue.unit(begin - 1))
            self.check_units(queue, 2, begin)
            again = self.recovered()
            again.correct_min_offset(unit(begin).physical_offset)
            self.assertEqual((again.min_offset, again.max_offset), (begin, begin + 2))
            again.correct_min_offset(0)
            self.assertEqual(again.min_offset, begin, "blanks are of no message, be the log's begin 0")

    def test_a_gap_is_filled_and_offsets_do_not_shift(self) -> None:
        for gap in (1, 2, 5, 12):
            self.again()
            queue = self.make(3)
            for number in (3 + gap, 4 + gap):
                queue.put(number, unit(number))
            self.assertEqual((queue.order_breaches, queue.max_offset), (1, 5 + gap))
            numbers = range(5 + gap)
            expected = [BLANK if 3 <= number < 3 + gap else unit(number) for number in numbers]
            self.assertEqual([queue.unit(number) for number in numbers], expected)
            self.assertTrue(expected[3].is_blank)
            again = self.recovered()
            self.assertEqual([again.unit(number) for number in numbers], expected)

    def test_units_that_cannot_be_written_stay_pending(self) -> None:
        queue = self.make(4)
        queue.put(4, unit(4))
        self.assertEqual(len(self.files()), 1)
        blocker = self.folder / f"{FILE_SIZE:020d}"
        blocker.mkdir()
        queue.put(5, unit(5))
        with self.assertRaises(OSError):
            queue.write_pending()
        self.assertEqual(queue.max_offset, 6)
        blocker.rmdir()
        queue.write_pending()
        self.check_units(queue, 6)
        self.check_units(self.recovered(), 6)

    def test_not_all_files_stay_open(self) -> None:
        queue = self.make((MAX_OPEN_FILES + 20) * FILE_UNITS)
        self.assertLessEqual(open_files(self.folder), 2 * (MAX_OPEN_FILES + 1))
        self.check_units(queue, (MAX_OPEN_FILES + 20) * FILE_UNITS)


def pread_args(pread: mock.Mock) -> list[tuple[int, int, int]]:
    """Descriptor, size and place of each read."""
    return [call.args for call in pread.call_args_list]


class RecoveryTests(ConsumeQueueTestCase):
    COUNT = 13

    def damage(self, at: int, tail: bytes, begin: int = 0) -> bytes:
        """Make the queue, and let its bytes from ``at`` on be the tail and zeros; gives what they were."""
        self.again()
        self.make(self.COUNT, begin).close()
        before = self.content()
        self.write(at, tail.ljust(len(before), b"\0"))
        return before

    def check_recovered(self, count: int, before: bytes) -> None:
        """The first units are there, zeros follow, and putting all again gives what was."""
        queue = self.recovered(unit(count).physical_offset)
        self.check_units(queue, count)
        content = self.content()
        kept = count * CQ_STORE_UNIT_SIZE
        self.assertEqual((content[:kept], content[kept:].strip(b"\0")), (before[:kept], b""))
        self.assertLess(len(content) - kept, FILE_SIZE, "no file without a unit stays")
        for number in range(self.COUNT):
            queue.put(number, unit(number))
        queue.write_pending()
        self.assertEqual((self.content(), queue.order_breaches), (before, 0))

    def test_zeros_at_every_unit(self) -> None:
        for count in range(self.COUNT + 1):
            before = self.damage(count * CQ_STORE_UNIT_SIZE, b"")
            self.check_recovered(count, before)

    @pytest.mark.long
    def test_a_unit_torn_at_every_byte(self) -> None:
        for count in range(self.COUNT):
            at = count * CQ_STORE_UNIT_SIZE
            for torn in range(1, CQ_STORE_UNIT_SIZE):
                before = self.damage(at + torn, b"")
                queue = self.recovered(unit(count).physical_offset)
                self.assertEqual(queue.max_offset, count + (torn >= 12), "offset and size make it look whole")
                queue.truncate(unit(count).physical_offset)
                self.check_units(queue, count)
                for number in range(self.COUNT):
                    queue.put(number, unit(number))
                queue.write_pending()
                self.assertEqual((self.content(), queue.order_breaches), (before, 0))
                queue.close()

    def test_garbage_at_every_unit(self) -> None:
        garbage_units = (
            b"\xff" * 100,
            bytes.fromhex("8000000000000401 00000064 1111111111111111") * 3,
            bytes.fromhex("0000000000000401 00000000 1111111111111111") * 3,
            bytes.fromhex("0000000000000401 80000001 1111111111111111"),
        )
        for count in range(self.COUNT + 1):
            for garbage in garbage_units:
                before = self.damage(count * CQ_STORE_UNIT_SIZE, garbage)
                self.check_recovered(count, before)

    def test_a_lost_page_in_the_middle_cuts_all_behind_it(self) -> None:
        for count in range(self.COUNT):
            self.again()
            self.make(self.COUNT).close()
            before = self.content()
            self.write(count * CQ_STORE_UNIT_SIZE, bytes(CQ_STORE_UNIT_SIZE))
            self.check_recovered(count, before)

    def test_after_a_clean_stop_units_behind_zeros_tell_of_damage(self) -> None:
        for count in range(1, self.COUNT - 1):
            self.again()
            self.make(self.COUNT).close()
            self.write(count * CQ_STORE_UNIT_SIZE, bytes(CQ_STORE_UNIT_SIZE))
            damaged = self.files()
            queue = self.open()
            try:
                queue.recover()
            except QueueDamaged:
                self.assertEqual(self.files(), damaged)
            else:
                self.assertEqual(queue.max_offset, self.COUNT)

    def test_a_file_that_was_only_just_created_goes(self) -> None:
        for last in (b"", bytes(FILE_SIZE)):
            self.again()
            self.make(2 * FILE_UNITS).close()
            (self.folder / f"{2 * FILE_SIZE:020d}").write_bytes(last)
            self.check_units(self.recovered(), 2 * FILE_UNITS)
            self.assertEqual(list(self.files()), [0, FILE_SIZE])

    def test_a_queue_whose_writer_died_in_its_first_file_begins_anew(self) -> None:
        """No unit or only blanks are there: what comes next is no breach, and no message before it is missed."""
        for written in range(8 % FILE_UNITS + 1):
            self.again()
            self.make(2, begin=8).close()
            before = self.content()
            self.write(FILE_SIZE + written * CQ_STORE_UNIT_SIZE, bytes(FILE_SIZE))
            queue = self.recovered()
            self.assertEqual((queue.max_offset, queue.max_physical_offset), (0, -1))
            for number in (8, 9):
                queue.put(number, unit(number))
            queue.write_pending()
            self.assertEqual((queue.order_breaches, queue.min_offset, self.content()), (0, 8, before))

    def test_a_queue_is_recovered_by_a_few_of_its_units(self) -> None:
        """Of the 1,465 pages of 300,000 units, wherever they end, before holes or zeros, fewer than 30 are read."""
        for count in (1, 203, 204, 205, 150_000, 299_999, 300_000):
            for holes in (True, False):
                self.again()
                self.write_big(count, holes)
                queue = ConsumeQueue(self.folder, "T", 0, DEFAULT_QUEUE_FILE_SIZE)
                with mock.patch("os.pread", wraps=os.pread) as pread:
                    queue.recover(unit(count).physical_offset if holes else None)
                    queue.correct_min_offset(0)
                    self.assertEqual((queue.min_offset, queue.max_offset), (0, count))
                reads = [range(at // 4096, (at + size - 1) // 4096 + 1) for _, size, at in pread_args(pread) if size]
                self.assertLess(len({page for pages in reads for page in pages}), 30)
                self.assertLess(len(reads), 40)
                queue.close()

    def write_big(self, count: int, holes: bool) -> None:
        """A queue's file of the usual size; with holes, or with zeros that are really there."""
        units = np.zeros(count, UNIT_DTYPE)
        units["physical_offset"] = 1000 + 300 * np.arange(count)
        units["size"] = 100
        self.folder.mkdir(parents=True)
        with (self.folder / f"{0:020d}").open("wb") as file:
            file.write(units.tobytes())
            if not holes:
                file.write(bytes(DEFAULT_QUEUE_FILE_SIZE - count * CQ_STORE_UNIT_SIZE))
            file.truncate(DEFAULT_QUEUE_FILE_SIZE)

    def test_finding_the_end_changes_nothing(self) -> None:
        self.damage(7 * CQ_STORE_UNIT_SIZE, b"\xff" * 100)
        damaged = self.files()
        queue = self.open(owned=False)
        queue.find_end()
        self.assertEqual((queue.max_offset, queue.unit(6), queue.unit(7)), (7, unit(6), None))
        self.assertEqual(self.files(), damaged)

    def test_a_queue_with_a_missing_file_or_another_size_is_refused(self) -> None:
        self.make(13).close()
        (self.folder / f"{FILE_SIZE:020d}").unlink()
        with self.assertRaisesRegex(StoreError, "is missing"):
            self.open()
        with self.assertRaisesRegex(StoreError, "has 100 bytes, not 200"):
            ConsumeQueue(self.folder, "T", 0, 2 * FILE_SIZE)


class GapTests(ConsumeQueueTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.patch(consumequeue, "UNITS_PROVED", 0)

    def test_a_gap_is_filled_in_pieces(self) -> None:
        queue = self.make(2)
        rounds = 0
        while not queue.make_room(63, 40):
            rounds += 1
        self.assertGreater(rounds, 2)
        queue.put(63, unit(63))
        queue.write_pending()
        self.assertEqual((queue.order_breaches, queue.max_offset), (1, 64))
        self.check_gap(queue, 63)

    def check_gap(self, queue: ConsumeQueue, number: int) -> None:
        found = [queue.unit(offset) for offset in range(number + 1)]
        self.assertEqual(found[:2] + found[-1:], [unit(0), unit(1), unit(number)])
        self.assertTrue(all(one is not None and one.is_blank for one in found[2:-1]))

    def test_files_of_a_gap_stay_holes_but_for_those_that_a_java_broker_reads(self) -> None:
        queue = self.make(2)
        self.assertLess(queue.blank_bytes_before(63), 4 * FILE_SIZE + 9 * 65536)
        queue.put(63, unit(63))
        queue.write_pending()
        files = self.files()
        self.assertEqual(list(files), list(range(0, 13 * FILE_SIZE, FILE_SIZE)))
        self.assertEqual(files[0][2 * CQ_STORE_UNIT_SIZE :], BLANK_BYTES * 3)
        holes = [base for base, content in files.items() if content == bytes(FILE_SIZE)]
        self.assertEqual(holes, list(range(FILE_SIZE, 10 * FILE_SIZE, FILE_SIZE)))
        self.assertEqual(files[10 * FILE_SIZE] + files[11 * FILE_SIZE], BLANK_BYTES * 10)
        for checked_from in (None, 10**9, unit(63).physical_offset + 1):
            again = self.recovered(checked_from)
            self.check_gap(again, 63)
            again.correct_min_offset(unit(1).physical_offset)
            self.assertEqual(again.min_offset, 1)
            again.correct_min_offset(unit(1).physical_offset + 1)
            self.assertEqual((again.min_offset, again.max_offset), (63, 64))

    def test_what_a_gap_is_followed_by_is_cut_with_it(self) -> None:
        queue = self.make(2)
        queue.put(63, unit(63))
        queue.write_pending()
        again = self.recovered(unit(63).physical_offset)
        self.check_units(again, 2)

    def test_a_queue_that_begins_in_a_file_without_blanks_is_recovered(self) -> None:
        for begin in range(1, 2 * FILE_UNITS):
            for count in (1, 3, 8):
                self.again()
                queue = self.open()
                queue.begin_without_blanks(begin)
                for number in range(begin, begin + count):
                    queue.put(number, unit(number))
                queue.write_pending()
                self.assertEqual(queue.order_breaches, 0)
                for checked_from in (None, 10**9):
                    again = self.recovered(checked_from)
                    again.correct_min_offset(0)
                    self.assertEqual((again.min_offset, again.max_offset), (begin, begin + count))

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(200))
    @given(st.lists(st.integers(1, 23), min_size=1, max_size=12), st.integers(0, 13), st.data())
    def test_any_gaps_leave_a_queue_that_is_cut_where_it_is_told(
        self, steps: list[int], begin: int, data: st.DataObject
    ) -> None:
        self.again()
        queue, numbers = self.open(), []
        number = begin
        for step in steps:
            queue.put(number, unit(number))
            numbers.append(number)
            number += step
        queue.write_pending()
        queue.close()
        cut = data.draw(st.integers(0, len(numbers)))
        low = data.draw(st.integers(0, len(numbers) - 1))
        checked_from = unit(numbers[cut]).physical_offset if cut < len(numbers) else 10**9
        again = self.recovered(checked_from)
        kept = numbers[:cut]
        self.assertEqual(again.max_offset, kept[-1] + 1 if kept else 0)
        again.correct_min_offset(unit(numbers[low]).physical_offset)
        self.assertEqual(again.min_offset, numbers[low] if low < cut else again.max_offset)
        for number in range(again.max_offset):
            found = again.unit(number) if number >= again.min_offset else None
            if found is not None:
                self.assertEqual(found if not found.is_blank else None, unit(number) if number in kept else None)


class TruncateTests(ConsumeQueueTestCase):
    def check_truncate(self, count: int, begin: int, physical_offset: int) -> None:
        self.again()
        queue = self.make(count, begin)
        before = self.content()
        kept = sum(unit(number).physical_offset < physical_offset for number in range(begin, begin + count))
        queue.truncate(physical_offset)
        self.check_units(queue, kept, begin)
        files = self.files()
        last = (begin + kept - 1) // FILE_UNITS * FILE_SIZE
        self.assertEqual(list(files), list(range(begin // FILE_UNITS * FILE_SIZE, last + 1, FILE_SIZE)) if kept else [])
        self.check_units(self.recovered(), kept, begin)
        for number in range(begin, begin + count):
            queue.put(number, unit(number))
        queue.write_pending()
        self.assertEqual((self.content(), queue.order_breaches), (before, 0))
        self.assertEqual(queue.min_offset, begin)

    @pytest.mark.long
    def test_at_every_boundary_and_between(self) -> None:
        for begin in (0, 3, 5, 7):
            for number in range(begin, begin + 14):
                for more in (-1, 0, 1):
                    self.check_truncate(13, begin, unit(number).physical_offset + more)

    def test_to_nothing(self) -> None:
        for begin in (0, 3, 5):
            self.check_truncate(13, begin, 0)

    def test_what_is_pending_is_cut_too(self) -> None:
        queue = self.make(3)
        queue.put(3, unit(3))
        queue.put(4, unit(4))
        queue.truncate(unit(4).physical_offset)
        self.check_units(queue, 4)

    def test_blanks_of_a_gap_do_not_hide_what_is_to_go(self) -> None:
        for gap in (1, 4, 5, 6, 11):
            for kept in range(5):
                self.again()
                queue = self.make(3)
                queue.put(3 + gap, unit(3 + gap))
                queue.put(4 + gap, unit(4 + gap))
                numbers = [0, 1, 2, 3 + gap, 4 + gap]
                queue.truncate(unit(numbers[kept]).physical_offset)
                self.assertEqual(queue.max_offset, numbers[kept - 1] + 1 if kept else 0, f"{gap=} {kept=}")

    def test_what_was_cut_can_be_put_and_is_flushed(self) -> None:
        queue = self.make(12)
        self.taken()
        queue.put(12, unit(12))
        queue.truncate(unit(3).physical_offset)
        for number in range(3, 5):
            queue.put(number, unit(number))
        queue.write_pending()
        self.assertEqual(self.taken(), [0])

    def test_a_queue_that_begins_again_before_its_former_first_file_is_flushed(self) -> None:
        queue = self.make(2, begin=2 * FILE_UNITS)
        queue.truncate(0)
        queue.put(0, unit(0))
        queue.write_pending()
        self.assertEqual(self.taken(), [0])


class MinOffsetTests(ConsumeQueueTestCase):
    def test_the_queue_begins_where_the_log_does(self) -> None:
        queue = self.make(13)
        for number in range(13):
            for physical_offset in (unit(number).physical_offset - 299, unit(number).physical_offset):
                queue.correct_min_offset(physical_offset)
                self.assertEqual((queue.min_offset, queue.max_offset), (number, 13))
        self.assertEqual((queue.unit(11), queue.unit(12)), (None, unit(12)))
        self.assertEqual(len(queue.units(11, 2)), 0)

    def test_a_queue_without_a_message_left_is_empty_at_its_end(self) -> None:
        queue = self.make(13)
        queue.correct_min_offset(unit(13).physical_offset)
        self.assertEqual((queue.min_offset, queue.max_offset), (13, 13))
        queue.put(13, unit(13))
        self.assertEqual((queue.min_offset, queue.unit(13)), (13, unit(13)))

    def test_blanks_are_passed_over(self) -> None:
        queue = self.make(2)
        queue.put(9, unit(9))
        for physical_offset, begin in ((0, 0), (unit(1).physical_offset, 1), (unit(1).physical_offset + 1, 9)):
            queue.correct_min_offset(physical_offset)
            self.assertEqual(queue.min_offset, begin)

    def test_files_whose_messages_are_gone_are_deleted_but_never_the_last(self) -> None:
        for count in (1, 4, 5, 6, 13, 15):
            for number in range(count + 1):
                self.again()
                queue = self.make(count)
                deleted = queue.delete_files_before(unit(number).physical_offset)
                last = (count - 1) // FILE_UNITS
                self.assertEqual(deleted, min(number // FILE_UNITS, last))
                self.assertEqual(list(self.files()), [file * FILE_SIZE for file in range(deleted, last + 1)])
                self.assertEqual((queue.min_offset, queue.max_offset), (number, count))
                again = self.recovered()
                again.correct_min_offset(unit(number).physical_offset)
                self.assertEqual((again.min_offset, again.max_offset), (number, count))

    def test_a_queue_keeps_its_offsets_though_all_its_messages_expire(self) -> None:
        """A cut at a file's end, then retention: the next message must not begin at 0 again."""
        queue = self.make(2 * FILE_UNITS + 1)
        queue.truncate(unit(2 * FILE_UNITS).physical_offset)
        queue.delete_files_before(unit(100).physical_offset)
        queue.close()
        again = self.recovered()
        self.assertEqual(again.max_offset, 2 * FILE_UNITS)


def searched(stored: dict[int, int], timestamp: int, boundary: BoundaryType) -> int:
    """The queue offset by looking at all."""
    before = [offset for offset, at in stored.items() if at < timestamp]
    exact = [offset for offset, at in stored.items() if at == timestamp]
    after = [offset for offset, at in stored.items() if at > timestamp]
    if boundary is BoundaryType.LOWER:
        return (exact + after or [max(stored) + 1])[0]
    if boundary is BoundaryType.UPPER:
        return (before + exact or after)[-1 if before + exact else 0]
    if exact or not before or not after:
        return exact[0] if exact else after[0] if after else before[-1]
    is_after = stored[after[0]] - timestamp < timestamp - stored[before[-1]]
    return after[0] if is_after else before[-1]


@implementer(IMessageTimes)
class Times:
    """The times of messages, by their places in the log."""

    def __init__(self, times: dict[int, int]) -> None:
        self._times = times

    def store_timestamp(self, physical_offset: int) -> int | None:
        return self._times.get(physical_offset)


class OffsetByTimeTests(ConsumeQueueTestCase):
    def ask(
        self, queue: ConsumeQueue, times: dict[int, int], timestamp: int, boundary: BoundaryType = BoundaryType.NEAREST
    ) -> int:
        by_place = {unit(number).physical_offset: at for number, at in times.items()}
        return queue.offset_by_time(timestamp, boundary, Times(by_place))

    def test_exact_between_before_and_after(self) -> None:
        queue = self.make(8)
        times = {number: 1000 + 100 * number for number in range(8)}
        for asked, nearest, lower, upper in (
            (1000, 0, 0, 0),
            (1300, 3, 3, 3),
            (1349, 3, 4, 3),
            (1350, 3, 4, 3),
            (1351, 4, 4, 3),
            (1700, 7, 7, 7),
            (1, 0, 0, 0),
            (999, 0, 0, 0),
            (1701, 7, 8, 7),
            (10**15, 7, 8, 7),
            (-5, 0, 0, 0),
        ):
            found = [self.ask(queue, times, asked, boundary) for boundary in BoundaryType]
            self.assertEqual(found, [lower, upper, nearest], asked)

    def test_of_messages_of_one_moment(self) -> None:
        queue = self.make(6)
        times = dict(enumerate([10, 20, 20, 20, 20, 30]))
        for boundary, found in (
            (BoundaryType.NEAREST, [1, 1, 4, 5]),
            (BoundaryType.LOWER, [1, 1, 5, 5]),
            (BoundaryType.UPPER, [4, 0, 4, 4]),
        ):
            self.assertEqual([self.ask(queue, times, timestamp, boundary) for timestamp in (20, 19, 21, 26)], found)

    def test_an_empty_queue(self) -> None:
        for boundary in BoundaryType:
            self.assertEqual(self.ask(self.open(), {}, 1000, boundary), 0)

    @given(st.data())
    @settings(max_examples=examples(60), deadline=None)
    def test_any_queue(self, data: st.DataObject) -> None:
        self.again()
        begin = data.draw(st.integers(0, 7))
        count = data.draw(st.integers(1, 14))
        steps = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
        times = {begin + number: 100 + sum(steps[: number + 1]) for number in range(count)}
        queue = self.make(count, begin)
        first = data.draw(st.integers(begin, begin + count - 1))
        queue.correct_min_offset(unit(first).physical_offset)
        there = {number: at for number, at in times.items() if number >= first}
        for timestamp in range(98, 100 + sum(steps) + 3):
            for boundary in BoundaryType:
                self.assertEqual(self.ask(queue, there, timestamp, boundary), searched(there, timestamp, boundary))
        queue.close()


def disk_with_store(seed: int) -> SimDisk:
    """Its folder of the store survives a loss of power."""
    disk = SimDisk(Random(seed))
    disk.make_folder(Path("/store"))
    disk.sync_folder(Path("/"))
    return disk


def queue_of(marks: Marks) -> ConsumeQueue:
    """A queue in the store of its disk."""
    return ConsumeQueue(Path("/store/consumequeue/T/0"), "T", 0, FILE_SIZE, True, marks)


def flush(marks: Marks) -> None:
    """Flush all queues."""
    marks.disk.sync_all(UnflushedQueues(marks.take_unflushed(), marks.disk).files())


class TakeUnflushedTests(ConsumeQueueTestCase):
    def test_files_are_told_once_since_they_were_written(self) -> None:
        queue = self.open()
        self.assertEqual(self.taken(), [])
        queue.put(0, unit(0))
        self.assertEqual(self.taken(), [], "it is not written yet")
        queue.write_pending()
        self.assertEqual(self.taken(), [0])
        self.assertEqual(self.taken(), [])
        for number in range(1, 13):
            queue.put(number, unit(number))
        queue.write_pending()
        self.assertEqual(self.taken(), [0, FILE_SIZE, 2 * FILE_SIZE])
        queue.put(13, unit(13))
        queue.write_pending()
        self.assertEqual(self.taken(), [2 * FILE_SIZE])

    def test_files_can_be_synced_when_the_queue_has_let_them_go(self) -> None:
        count = MAX_OPEN_FILES + 20
        queue = self.make(count * FILE_UNITS)
        files = self.take_unflushed()
        bases = [file.base_offset for file in files if isinstance(file, UnflushedFile)]
        self.assertEqual(bases, [number * FILE_SIZE for number in range(count)])
        queue.release_files()
        for file in files:
            file.sync()

    def test_a_flushed_file_is_found_after_a_loss_of_power(self) -> None:
        """With its name, whatever the file system promises of names: those of its folders too."""
        for seed in range(20):
            disk = disk_with_store(seed)
            marks = Marks(disk=disk)
            queue = queue_of(marks)
            for number in range(2 * FILE_UNITS):
                queue.put(number, unit(number))
            flush(marks)
            disk.lose_power()
            again = queue_of(marks)
            again.recover()
            self.assertEqual(again.max_offset, 2 * FILE_UNITS)

    def test_the_units_of_a_killed_process_are_flushed_by_the_next_one(self) -> None:
        """They are only in the page cache. A checkpoint that is written after a flush vouches for them too."""
        for seed in range(20):
            disk = disk_with_store(seed)
            killed = queue_of(Marks(disk=disk))
            for number in range(2 * FILE_UNITS):
                killed.put(number, unit(number))
            killed.write_pending()
            marks = Marks(disk=disk)
            opened = queue_of(marks)
            opened.recover(unit(3).physical_offset)
            opened.mark_kept_units()
            flush(marks)
            disk.lose_power()
            again = queue_of(Marks(disk=disk))
            again.recover()
            self.assertEqual(again.max_offset, 2 * FILE_UNITS)

    def test_a_file_that_was_cut_does_not_come_back(self) -> None:
        """Not after a flush: its messages may be other ones then, and the queue would keep them."""
        for kept in (0, 3):
            for seed in range(20):
                disk = disk_with_store(seed)
                marks = Marks(disk=disk)
                queue = queue_of(marks)
                for number in range(2 * FILE_UNITS):
                    queue.put(number, unit(number))
                flush(marks)
                queue.truncate(unit(kept).physical_offset)
                flush(marks)
                disk.lose_power()
                again = queue_of(Marks(disk=disk))
                again.recover()
                self.assertEqual(again.max_offset, kept, seed)

    def test_an_opened_queue_has_nothing_to_flush(self) -> None:
        self.make(7).close()
        self.taken()
        self.recovered()
        self.assertEqual(self.taken(), [])
