"""The commit log as bytes and as records."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rmqha.store.errors import StoreError
from rmqha.store.interfaces import ICommitLog
from rmqha.store.log import mappedfile
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import MAX_OPEN_FILES, Disk, MappedFile, list_segments
from rmqha.wire.record import Blank, Record, check_record, encode_blank
from rmqha.wire.scanned import Scan
from tests import examples
from tests.fixtures import new_folder, open_files
from tests.store.logs import SEGMENT_SIZE, encoded, file_bytes, held, sized_record


class CommitLogTestCase(SynchronousTestCase):
    """Has an empty log of small segments."""

    def setUp(self) -> None:
        self.folder = new_folder(self) / "commitlog"
        self.log = self.open()

    def open(self, owned: bool = True) -> CommitLog:
        log = CommitLog(self.folder, SEGMENT_SIZE, owned)
        self.addCleanup(log.close)
        return log

    def fill_to(self, room: int) -> int:
        """Append records until exactly ``room`` bytes are left in the segment; the log's end then."""
        while (left := SEGMENT_SIZE - self.log.max_offset % SEGMENT_SIZE - room) > 1500:
            self.log.append(sized_record(1000))
        self.log.append(sized_record(left))
        assert SEGMENT_SIZE - self.log.max_offset % SEGMENT_SIZE == room
        return self.log.max_offset

    def offsets(self) -> tuple[int, int, int, int]:
        log = self.log
        return log.min_offset, log.verified_offset, log.flushed_offset, log.max_offset

    def record_at(self, offset: int) -> Record | Blank:
        room = SEGMENT_SIZE - offset % SEGMENT_SIZE
        data = self.log.get_data(offset, room)
        assert data is not None
        return check_record(data, 0, offset, room)


class AppendTests(CommitLogTestCase):
    def test_it_provides_the_interface(self) -> None:
        verifyObject(ICommitLog, self.log)

    def test_an_empty_log_begins_at_zero_and_makes_no_files(self) -> None:
        self.assertEqual(self.offsets(), (0, 0, 0, 0))
        self.assertIsNone(self.log.get_data(0, 10))
        self.assertFalse(self.folder.exists())

    def test_records_follow_one_another_and_know_their_place(self) -> None:
        first, second = sized_record(150, 1), sized_record(200, 2)
        self.assertEqual(self.log.append(first), 0)
        self.assertEqual(self.log.append(second), 150)
        self.assertEqual(self.offsets(), (0, 350, 0, 350))
        self.assertEqual(held(self.log), encoded(first, 0) + encoded(second, 150))
        self.assertEqual((self.log.last_message_offset, self.log.last_store_timestamp), (150, second.store_timestamp))

    def test_a_record_that_leaves_room_for_a_blank_stays(self) -> None:
        """Eight bytes are left: exactly a blank, which comes with the next record."""
        end = self.fill_to(room=8)
        self.assertEqual(end, SEGMENT_SIZE - 8)
        self.assertEqual(self.log.append(sized_record(100)), SEGMENT_SIZE)
        self.assertEqual(self.record_at(end), Blank(8))
        self.assertEqual(self.log.verified_offset, SEGMENT_SIZE + 100)

    def test_a_record_that_leaves_too_little_goes_to_the_next_segment(self) -> None:
        for n, left in enumerate((7, 1, 0)):
            end = self.fill_to(room=500)
            record = sized_record(500 - left)
            self.assertEqual(self.log.append(record), (n + 1) * SEGMENT_SIZE)
            self.assertEqual(self.record_at(end), Blank(500))
            self.assertEqual(held(self.log, end + 8, end + 500), bytes(492))

    def test_the_next_segment_exists_before_the_blank_is_written(self) -> None:
        """Else a Java broker's recovery would take the blank back (ha.md 14, 23)."""
        end = self.fill_to(room=100)
        (self.folder / f"{SEGMENT_SIZE:020d}").mkdir()
        with self.assertRaises(FileExistsError):
            self.log.append(sized_record(200))
        self.assertEqual(self.log.max_offset, end)
        self.assertEqual(file_bytes_of_first(self.folder)[end:], bytes(100))

    def test_a_record_for_no_segment_is_refused(self) -> None:
        largest = SEGMENT_SIZE - 8
        with self.assertRaises(StoreError):
            self.log.append(sized_record(largest + 1))
        self.assertEqual(self.offsets(), (0, 0, 0, 0))
        self.assertEqual(self.log.append(sized_record(largest)), 0)
        with self.assertRaises(StoreError):
            self.log.append(sized_record(largest + 1))
        self.assertEqual(self.log.max_offset, largest)
        self.assertEqual(self.log.append(sized_record(largest)), SEGMENT_SIZE)

    def test_a_record_behind_half_a_record_is_refused(self) -> None:
        self.log.append_data(0, encoded(sized_record(150), 0)[:100])
        with self.assertRaises(StoreError):
            self.log.append(sized_record(150))

    def test_a_disk_that_refuses_leaves_the_log_as_it_was(self) -> None:
        self.log.append(sized_record(150))

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

        restored = self.patch(os, "pwritev", full)
        with self.assertRaises(OSError):
            self.log.append(sized_record(150))
        restored.restore()
        self.assertEqual(self.offsets(), (0, 150, 0, 150))
        self.assertEqual(self.log.append(sized_record(150)), 150)

    @settings(deadline=None, max_examples=examples(40))
    @given(st.lists(st.integers(100, SEGMENT_SIZE - 8), max_size=12))
    def test_whatever_is_appended_is_a_sound_log(self, sizes: list[int]) -> None:
        """A reopened log verifies every record, and finds each at the offset that ``append`` returned."""
        self.setUp()
        records = [sized_record(size, n) for n, size in enumerate(sizes)]
        offsets = [self.log.append(record) for record in records]
        found = self.open(owned=False).scan(0)
        self.assertEqual(found.end, self.log.max_offset)
        self.assertEqual(found.messages, len(sizes))
        for offset, record in zip(offsets, records, strict=True):
            self.assertEqual(held(self.log, offset, offset + record.total_size), encoded(record, offset))


def file_bytes_of_first(folder: Path) -> bytes:
    return (folder / f"{0:020d}").read_bytes()


class AppendDataTests(CommitLogTestCase):
    def test_bytes_count_as_records_once_proved(self) -> None:
        content = encoded(sized_record(150), 0) + encoded(sized_record(200, 1), 150)
        grown: list[int] = []
        self.log.subscribe(lambda: grown.append(self.log.verified_offset))
        for at in range(0, 350, 70):
            self.log.append_data(at, memoryview(content)[at : at + 70])
            self.assertEqual(self.log.max_offset, at + 70)
            found = self.log.verify()
            proved = 350 if at + 70 == 350 else 150 if at + 70 >= 150 else 0
            self.assertEqual((self.log.verified_offset, found.end, found.problem), (proved, proved, None))
        self.assertEqual(grown, [150, 350])
        self.assertEqual(self.log.last_message_offset, 150)

    def test_what_can_be_no_record_is_told(self) -> None:
        self.log.append_data(0, encoded(sized_record(150), 0) + b"\xff" * 20)
        found = self.log.verify()
        self.assertEqual((found.end, self.log.verified_offset, self.log.max_offset), (150, 150, 170))
        self.assertIn("FFFFFFFF", found.problem or "")
        self.assertEqual(self.log.verify(), Scan(150, problem=found.problem))

    def test_a_gap_or_an_overlap_is_refused(self) -> None:
        self.log.append_data(0, b"12345")
        for offset in (0, 4, 6, SEGMENT_SIZE, -1):
            with self.assertRaises(StoreError):
                self.log.append_data(offset, b"x")
        self.assertEqual(held(self.log), b"12345")

    def test_bytes_across_a_segments_end_are_refused(self) -> None:
        self.log.append_data(0, bytes(SEGMENT_SIZE - 5))
        with self.assertRaises(StoreError):
            self.log.append_data(SEGMENT_SIZE - 5, b"123456")
        self.log.append_data(SEGMENT_SIZE - 5, b"12345")
        self.log.append_data(SEGMENT_SIZE, b"next")
        self.assertEqual(held(self.log, SEGMENT_SIZE - 5), b"12345next")
        self.assertEqual([base for base, _ in list_segments(self.folder)], [0, SEGMENT_SIZE])

    def test_several_pieces_are_one_run_of_bytes(self) -> None:
        self.log.append_data(0, b"ab", b"", memoryview(b"cd"))
        self.assertEqual(held(self.log), b"abcd")
        with self.assertRaises(StoreError):
            self.log.append_data(4, bytes(SEGMENT_SIZE - 5), b"12")
        self.assertEqual(held(self.log), b"abcd")
        self.log.append_data(4, bytes(SEGMENT_SIZE - 5), b"1")
        self.assertEqual(self.log.max_offset, SEGMENT_SIZE)

    def test_no_bytes_are_no_write(self) -> None:
        self.log.append_data(0)
        self.log.append_data(0, b"")
        self.assertEqual(self.offsets(), (0, 0, 0, 0))
        self.assertFalse(self.folder.exists())

    def test_records_are_proved_across_segments(self) -> None:
        other = CommitLog(new_folder(self), SEGMENT_SIZE)
        self.addCleanup(other.close)
        for n in range(20):
            other.append(sized_record(900, n))
        content = held(other)
        for at in range(0, len(content), 512):
            self.log.append_data(at, content[at : at + 512])
        found = self.log.verify()
        self.assertEqual((found.end, found.messages, found.problem), (other.max_offset, 20, None))
        self.assertEqual(file_bytes(self.folder), file_bytes(other.folder))


class BeginAtTests(CommitLogTestCase):
    def test_a_slave_may_begin_behind_byte_zero(self) -> None:
        """Byte 0 of a log is zero anyway, and asking a Java master for 0 would get its last segment only."""
        self.log.begin_at(1)
        self.assertEqual(self.offsets(), (0, 0, 0, 1))
        self.assertEqual(held(self.log), b"\0")
        self.log.append_data(1, encoded(sized_record(150), 0)[1:])
        self.assertEqual(self.log.verify().messages, 1)
        self.assertEqual(self.log.verified_offset, 150)

    def test_a_log_may_begin_at_any_segment(self) -> None:
        self.log.begin_at(3 * SEGMENT_SIZE)
        self.assertEqual(self.offsets(), (3 * SEGMENT_SIZE,) * 4)
        self.log.append(sized_record(150))
        self.assertEqual([base for base, _ in list_segments(self.folder)], [3 * SEGMENT_SIZE])
        self.assertIsNone(self.log.get_data(0, 1))

    def test_what_lies_before_in_the_segment_is_zero(self) -> None:
        self.log.begin_at(SEGMENT_SIZE + 100)
        self.assertEqual(self.offsets(), (SEGMENT_SIZE, SEGMENT_SIZE, SEGMENT_SIZE, SEGMENT_SIZE + 100))
        self.assertEqual(held(self.log), bytes(100))

    def test_a_log_that_holds_bytes_begins_nowhere_else(self) -> None:
        self.log.append(sized_record(150))
        with self.assertRaises(StoreError):
            self.log.begin_at(SEGMENT_SIZE)
        self.assertEqual(self.offsets(), (0, 150, 0, 150))

    def test_an_empty_log_may_begin_again(self) -> None:
        self.log.begin_at(2 * SEGMENT_SIZE + 1)
        self.log.truncate(2 * SEGMENT_SIZE)
        self.log.begin_at(1)
        self.assertEqual(self.offsets(), (0, 0, 0, 1))
        self.assertEqual([base for base, _ in list_segments(self.folder)], [0])


class GetDataTests(CommitLogTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log.begin_at(SEGMENT_SIZE)
        self.log.append_data(SEGMENT_SIZE, bytes(range(256)) * 16)
        self.log.append_data(2 * SEGMENT_SIZE, b"0123456789")

    def test_bytes_come_up_to_the_limit_the_segments_end_and_the_logs(self) -> None:
        for offset, limit, data in (
            (SEGMENT_SIZE, 3, b"\0\1\2"),
            (SEGMENT_SIZE + 5, 1, b"\5"),
            (2 * SEGMENT_SIZE - 2, 100, b"\xfe\xff"),
            (2 * SEGMENT_SIZE, 4, b"0123"),
            (2 * SEGMENT_SIZE + 8, 100, b"89"),
        ):
            self.assertEqual(self.log.get_data(offset, limit), data)

    def test_there_is_nothing_outside_of_the_log(self) -> None:
        for offset in (-1, 0, SEGMENT_SIZE - 1, 2 * SEGMENT_SIZE + 10, 3 * SEGMENT_SIZE):
            self.assertIsNone(self.log.get_data(offset, 10))

    def test_a_selection_is_whole_or_nothing(self) -> None:
        self.assertEqual(self.log.select(2 * SEGMENT_SIZE, 10), b"0123456789")
        self.assertEqual(self.log.select(2 * SEGMENT_SIZE - 2, 2), b"\xfe\xff")
        for offset, size in ((2 * SEGMENT_SIZE, 11), (2 * SEGMENT_SIZE - 2, 3), (0, 1), (2 * SEGMENT_SIZE + 10, 1)):
            self.assertIsNone(self.log.select(offset, size))

    def test_memory_handed_out_is_read_only(self) -> None:
        data = self.log.get_data(SEGMENT_SIZE, 3)
        assert data is not None
        self.assertTrue(data.readonly)


class TruncateTests(CommitLogTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.starts = [self.log.append(sized_record(1000, n)) for n in range(10)]
        self.log.sync()

    def test_bytes_behind_the_new_end_are_zero_and_segments_are_gone(self) -> None:
        before = held(self.log)
        end = SEGMENT_SIZE + 1500
        self.log.truncate(end)
        self.assertEqual(file_bytes(self.folder), before[:end].ljust(2 * SEGMENT_SIZE, b"\0"))
        self.assertEqual((self.log.max_offset, self.log.verified_offset, self.log.flushed_offset), (end, end, end))
        self.assertIsNone(self.log.get_data(end, 1))

    def test_the_log_goes_on_from_there(self) -> None:
        self.log.truncate(self.starts[5])
        self.assertEqual(self.log.append(sized_record(500)), self.starts[5])
        self.assertEqual(self.log.scan(0).messages, 6)

    def test_a_segments_start_keeps_that_segment_empty(self) -> None:
        self.log.truncate(SEGMENT_SIZE)
        self.assertEqual(file_bytes(self.folder)[SEGMENT_SIZE:], bytes(SEGMENT_SIZE))
        self.assertEqual([base for base, _ in list_segments(self.folder)], [0, SEGMENT_SIZE])

    def test_all_can_be_cut(self) -> None:
        self.log.truncate(0)
        self.assertEqual(self.offsets(), (0, 0, 0, 0))
        self.assertEqual(self.log.append(sized_record(100)), 0)

    def test_nothing_outside_of_the_log_can_be_cut(self) -> None:
        before = self.offsets()
        for offset in (-1, self.log.max_offset + 1):
            with self.assertRaises(StoreError):
                self.log.truncate(offset)
        self.assertEqual(self.offsets(), before)

    def test_the_last_message_is_forgotten_with_its_bytes(self) -> None:
        last = self.starts[-1]
        self.log.append_data(self.log.max_offset, b"half")
        self.log.truncate(last + 1000)
        self.assertEqual(self.log.last_message_offset, last)
        self.assertEqual(self.log.last_store_timestamp, sized_record(1000, 9).store_timestamp)
        self.log.truncate(last)
        self.assertIsNone(self.log.last_message_offset)
        self.assertEqual(self.log.last_store_timestamp, 0)

    def test_each_one_is_counted(self) -> None:
        self.log.truncate(self.log.max_offset)
        self.log.truncate(0)
        self.assertEqual(self.log.truncations, 2)

    def test_it_is_on_the_disk_when_it_returns(self) -> None:
        """Deleted segments stay deleted, and cut bytes are zeroed, before anything new is written."""
        events: list[str] = []
        self.patch(Disk, "sync_folder", lambda disk, folder: events.append(f"sync {folder.name}"))
        for name in ("zero_from", "sync"):
            self.patch(MappedFile, name, recording(events, name, getattr(MappedFile, name)))
        self.log.truncate(100)
        self.assertEqual(events, ["sync commitlog", "zero_from 0", "sync 0"])


def recording(events: list[str], name: str, method: object) -> object:
    def call(self: MappedFile, *arguments: int) -> None:
        events.append(f"{name} {self.base_offset}")
        method(self, *arguments)  # type: ignore[operator]

    return call


class OpenTests(CommitLogTestCase):
    def test_everything_in_the_files_counts_as_written_and_nothing_as_proved(self) -> None:
        self.log.append(sized_record(150))
        again = self.open()
        self.assertEqual((again.min_offset, again.max_offset), (0, SEGMENT_SIZE))
        self.assertEqual((again.verified_offset, again.flushed_offset), (0, 0))

    def test_a_scan_with_a_limit_looks_no_further(self) -> None:
        for n in range(10):
            self.log.append(sized_record(1000, n))
        for limit, messages, end in ((0, 0, 0), (999, 0, 0), (1000, 1, 1000), (SEGMENT_SIZE + 1000, 5, None)):
            found = self.log.scan(0, limit)
            self.assertEqual(
                (found.messages, found.end, found.problem), (messages, limit if end is None else end, None)
            )
        self.assertEqual(self.log.scan(0, 10**9), self.log.scan(0))
        self.assertEqual(self.log.scan(self.log.max_offset), Scan(self.log.max_offset))

    def test_a_scan_changes_nothing(self) -> None:
        self.log.append_data(0, encoded(sized_record(150), 0))
        self.assertEqual(self.log.scan(0).end, 150)
        self.assertEqual(self.log.verified_offset, 0)

    def test_the_segment_size_is_settled_by_the_first_segment(self) -> None:
        self.log.segment_size = 8192
        self.log.append(sized_record(5000))
        self.assertEqual(list_segments(self.folder), [(0, 8192)])
        with self.assertRaises(StoreError):
            self.log.segment_size = SEGMENT_SIZE

    def test_a_full_last_segment_gets_a_successor(self) -> None:
        self.log.append_data(0, encode_blank(SEGMENT_SIZE) + bytes(SEGMENT_SIZE - 8))
        self.log.prepare_next_segment()
        self.log.prepare_next_segment()
        self.assertEqual([base for base, _ in list_segments(self.folder)], [0, SEGMENT_SIZE])
        self.assertEqual(self.log.max_offset, SEGMENT_SIZE)

    def test_stale_bytes_are_found_in_any_segment(self) -> None:
        for n in range(10):
            self.log.append(sized_record(1000, n))
        self.assertEqual(self.log.stale_end(0), self.log.max_offset)
        self.assertEqual(self.log.stale_end(self.log.max_offset), self.log.max_offset)
        self.assertEqual(self.log.stale_end(self.log.max_offset - 1), self.log.max_offset)
        self.log.truncate(SEGMENT_SIZE + 5)
        self.log.prepare_next_segment()
        self.assertEqual(self.log.stale_end(SEGMENT_SIZE), SEGMENT_SIZE + 5)

    def test_listeners_hear_until_they_leave(self) -> None:
        heard: list[str] = []
        leave = self.log.subscribe(lambda: heard.append("first"))
        self.log.subscribe(lambda: heard.append("second"))
        self.log.append(sized_record(100))
        leave()
        self.log.append(sized_record(100))
        self.assertEqual(heard, ["first", "second", "second"])

    def test_a_listener_may_leave_while_it_is_told(self) -> None:
        heard: list[str] = []

        def once() -> None:
            heard.append("once")
            leave()

        leave = self.log.subscribe(once)
        self.log.subscribe(lambda: heard.append("always"))
        self.log.append(sized_record(100))
        self.log.append(sized_record(100))
        self.assertEqual(heard, ["once", "always", "always"])

    def test_a_log_set_aside_is_an_empty_log(self) -> None:
        for n in range(6):
            self.log.append(sized_record(1000, n))
        before = file_bytes(self.folder)
        aside = self.folder.parent / "aside"
        self.log.set_aside(aside)
        self.assertEqual(file_bytes(aside), before)
        self.assertEqual(self.offsets(), (0, 0, 0, 0))
        self.assertEqual((self.log.last_message_offset, self.log.last_store_timestamp), (None, 0))
        self.assertFalse(self.folder.exists())
        self.log.begin_at(5 * SEGMENT_SIZE)
        self.log.append(sized_record(100))
        self.assertEqual(self.log.scan(5 * SEGMENT_SIZE).messages, 1)

    def test_a_log_without_files_can_be_set_aside(self) -> None:
        self.log.set_aside(self.folder.parent / "aside")
        self.assertEqual(self.offsets(), (0, 0, 0, 0))


class OpenFilesTests(CommitLogTestCase):
    """However long a log is, few of its files are open."""

    segments = MAX_OPEN_FILES * 2
    most = 2 * (MAX_OPEN_FILES + 2)  # the file's descriptor and its mapping's

    def fill(self) -> None:
        for n in range(self.segments):
            self.log.append(sized_record(3000, n))
            if n % 10 == 0:
                self.log.sync()

    def test_while_it_grows(self) -> None:
        self.fill()
        self.assertEqual(len(list_segments(self.folder)), self.segments)
        self.assertLessEqual(open_files(self.folder), self.most + 2 * 10)

    def test_those_not_flushed_stay_open(self) -> None:
        """The kernel reports a failed write-back only to open descriptors, so the flush must use one of those."""
        for n in range(self.segments):
            self.log.append(sized_record(3000, n))
        self.assertEqual(open_files(self.folder), 2 * self.segments)  # a descriptor and a mapping each
        self.assertEqual(len(self.log.unflushed_files()), self.segments)

    @pytest.mark.long
    def test_segments_that_fill_faster_than_they_are_flushed_are_flushed_before_closing(self) -> None:
        """The number of open files is limited, for any size of segments."""
        self.patch(mappedfile, "MAX_OPEN_FILES", 8)
        self.patch(mappedfile, "MAX_UNFLUSHED_FILES", 8)
        synced: list[int] = []
        self.patch(os, "fdatasync", lambda fd: synced.append(int(Path(os.readlink(f"/proc/self/fd/{fd}")).name)))
        for n in range(self.segments):
            self.log.append(sized_record(3000, n))
            self.assertLessEqual(open_files(self.folder), 2 * (8 + 2))
        left = [f.base_offset for f in self.log.unflushed_files()]
        self.assertEqual(sorted([*synced, *left]), self.log.segment_bases)
        self.assertEqual(self.log.flushed_offset, 0)
        self.assertEqual(self.log.scan(0).messages, self.segments)
        self.assertLessEqual(open_files(self.folder), 2 * (8 + 2))
        self.log.truncate(SEGMENT_SIZE + 3000)
        self.log.append(sized_record(500))
        self.assertIn(SEGMENT_SIZE, [f.base_offset for f in self.log.unflushed_files()], "it was written again")

    def test_a_refusal_to_flush_one_of_too_many_stops_the_append(self) -> None:
        self.patch(mappedfile, "MAX_OPEN_FILES", 8)
        self.patch(mappedfile, "MAX_UNFLUSHED_FILES", 8)

        def refuse(fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(os, "fdatasync", refuse)
        with self.assertRaises(OSError) as refused:
            for n in range(self.segments):
                self.log.append(sized_record(3000, n))
        self.assertEqual(refused.exception.errno, errno.EIO, "bytes may be lost: no put may be tried again")

    @pytest.mark.long
    def test_while_it_is_read(self) -> None:
        self.fill()
        self.log.sync()
        for base in self.log.segment_bases:
            self.assertIsNotNone(self.log.get_data(base, 1))
            self.assertLessEqual(open_files(self.folder), self.most)

    @pytest.mark.long
    def test_while_it_is_proved_and_synced_after_opening(self) -> None:
        self.fill()
        self.log.close()
        most_open = 0
        fdatasync = os.fdatasync

        def count(fd: int) -> None:
            nonlocal most_open
            most_open = max(most_open, open_files(self.folder))
            fdatasync(fd)

        self.patch(os, "fdatasync", count)
        log = self.open()
        self.assertEqual(log.scan(0).messages, self.segments)
        self.assertLessEqual(open_files(self.folder), self.most)
        log.sync()
        self.assertEqual(log.flushed_offset, log.max_offset)
        self.assertLessEqual(most_open, self.most)


class SyncTests(CommitLogTestCase):
    def test_every_segment_with_new_bytes_reaches_the_disk(self) -> None:
        synced: list[str] = []
        self.patch(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        for n in range(10):
            self.log.append(sized_record(1000, n))
        self.assertEqual([f.base_offset for f in self.log.unflushed_files()], [n * SEGMENT_SIZE for n in range(3)])
        self.log.sync()
        self.assertEqual([int(Path(path).name) for path in synced], [n * SEGMENT_SIZE for n in range(3)])
        self.assertEqual(self.log.flushed_offset, self.log.max_offset)
        synced.clear()
        self.log.append(sized_record(100))
        self.log.sync()
        self.assertEqual([int(Path(path).name) for path in synced], [2 * SEGMENT_SIZE])

    def test_a_disk_that_refuses_is_no_flush(self) -> None:
        def refuse(fd: int) -> None:
            raise OSError(errno.EIO, "input/output error")

        self.log.append(sized_record(100))
        self.patch(os, "fdatasync", refuse)
        with self.assertRaises(OSError):
            self.log.sync()
        self.assertEqual(self.log.flushed_offset, 0)
