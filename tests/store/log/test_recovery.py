"""Where a log ends after a stop (spec/store.md 9), and what happens to the bytes after that (spec/store.md 2.6)."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log import mappedfile
from rmqha.store.log import recovery as recovery_module
from rmqha.store.log.checkpoint import SAFETY_MARGIN_MS, Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import list_segments
from rmqha.store.log.recovery import MayCut, Recovery, recover_log
from rmqha.wire.layout import MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Host, Record, encode_blank
from tests import fixtures
from tests.fixtures import new_folder
from tests.store.logs import (
    FIRST_STORE_TIMESTAMP,
    SEGMENT_SIZE,
    encoded,
    file_bytes,
    held,
    make_log,
    sized_record,
    write_at,
)


class RecoveryTestCase(SynchronousTestCase):
    """Has a folder for a store."""

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.folder = self.root / "commitlog"
        self.cut_folder = self.root / "rmqha" / "cut"

    def open(self, segment_size: int = SEGMENT_SIZE) -> CommitLog:
        log = CommitLog(self.folder, segment_size)
        self.addCleanup(log.close)
        return log

    def recover(
        self, clean_stop: bool = False, checkpoint: Checkpoint | None = None, segment_size: int = SEGMENT_SIZE
    ) -> tuple[CommitLog, Recovery]:
        log = self.open(segment_size)
        found = recover_log(log, checkpoint or Checkpoint(), clean_stop, self.cut_folder)
        return log, found

    def check_end(self, log: CommitLog, found: Recovery, end: int) -> None:
        """The log ends there in every respect, and only zeros follow."""
        self.assertEqual(found.end, end)
        self.assertEqual((log.max_offset, log.verified_offset, log.flushed_offset), (end, end, end))
        first = log.segment_bases[0] if log.segment_bases else 0
        self.assertEqual(file_bytes(self.folder)[end - first :].strip(b"\0"), b"")

    def kept(self) -> dict[str, bytes]:
        """What lies in the folder of cut bytes."""
        return {path.name: path.read_bytes() for path in self.cut_folder.iterdir()} if self.cut_folder.exists() else {}

    def again(self) -> None:
        """Begin with an empty folder once more, within one test."""
        shutil.rmtree(self.root)
        self.root.mkdir()


class SoundLogTests(RecoveryTestCase):
    def test_a_log_without_segments_is_empty(self) -> None:
        for clean_stop in (True, False):
            log, found = self.recover(clean_stop)
            self.assertEqual(found, Recovery(clean_stop, 0, 0, 0, 0))
            self.assertEqual(log.max_offset, 0)

    def test_a_sound_log_is_kept_as_it_is(self) -> None:
        make_log(self.folder, 500, 600, 700)
        before = file_bytes(self.folder)
        for clean_stop in (True, False):
            log, found = self.recover(clean_stop)
            self.check_end(log, found, 1800)
            self.assertEqual(found, Recovery(clean_stop, 0, 0, 1800, 3))
            self.assertEqual(file_bytes(self.folder), before)
            self.assertEqual(self.kept(), {})
            self.assertEqual((log.last_message_offset, log.last_store_timestamp), (1100, FIRST_STORE_TIMESTAMP + 2000))

    def test_the_log_goes_on_from_its_end(self) -> None:
        make_log(self.folder, 500)
        log, _ = self.recover()
        self.assertEqual(log.append(sized_record(500, 1)), 500)
        self.assertEqual(log.scan(0).messages, 2)

    def test_a_log_that_begins_later_keeps_its_beginning(self) -> None:
        log = self.open()
        log.begin_at(5 * SEGMENT_SIZE)
        log.append(sized_record(500))
        for clean_stop in (True, False):
            log, found = self.recover(clean_stop)
            self.assertEqual(found, Recovery(clean_stop, 5 * SEGMENT_SIZE, 5 * SEGMENT_SIZE, 5 * SEGMENT_SIZE + 500, 1))
            self.assertEqual(log.min_offset, 5 * SEGMENT_SIZE)

    def test_a_preallocated_segment_goes(self) -> None:
        """A Java broker that was killed leaves one, all zero."""
        make_log(self.folder, 500)
        write_at(self.folder, SEGMENT_SIZE, b"")
        log, found = self.recover()
        self.check_end(log, found, 500)
        self.assertEqual((found.removed_segments, found.problem, found.kept_in), (1, None, None))
        self.assertEqual(list_segments(self.folder), [(0, SEGMENT_SIZE)])

    def test_a_trailing_blank_stays_and_the_next_segment_exists(self) -> None:
        """ha.md 14, 23: taken back, it would differ from what slaves already have."""
        for clean_stop in (True, False):
            self.again()
            make_log(self.folder, 3000, 3000)
            (self.folder / f"{SEGMENT_SIZE:020d}").unlink()
            log, found = self.recover(clean_stop)
            self.assertEqual(found, Recovery(clean_stop, 0, 0, SEGMENT_SIZE, 1))
            self.assertEqual(list_segments(self.folder), [(0, SEGMENT_SIZE), (SEGMENT_SIZE, SEGMENT_SIZE)])
            self.assertEqual(log.append(sized_record(100)), SEGMENT_SIZE)

    def test_an_empty_segment_behind_a_blank_stays(self) -> None:
        make_log(self.folder, 3000, 3000)
        write_at(self.folder, SEGMENT_SIZE, bytes(3000))
        log, found = self.recover()
        self.check_end(log, found, SEGMENT_SIZE)
        self.assertEqual((found.removed_segments, found.problem), (0, None))

    def test_bytes_within_a_blank_are_its_own(self) -> None:
        """What lies behind a blank's header is arbitrary: store.md 16, 8."""
        make_log(self.folder, 3000, 3000)
        write_at(self.folder, 3500, encoded(sized_record(150), 3500))
        before = file_bytes(self.folder)
        _, found = self.recover()
        self.assertEqual((found.end, found.messages), (SEGMENT_SIZE + 3000, 2))
        self.assertEqual(file_bytes(self.folder), before)

    def test_a_log_with_only_byte_zero_is_empty(self) -> None:
        """A slave that asked for 1 and died before anything came."""
        for clean_stop in (True, False):
            self.again()
            log = self.open()
            log.begin_at(1)
            log.close()
            log, found = self.recover(clean_stop)
            self.check_end(log, found, 0)
            self.assertEqual((found.messages, found.problem, found.min_offset), (0, None, 0))
            log.begin_at(1)
            self.assertEqual((log.min_offset, log.max_offset), (0, 1))
            log.append_data(1, encoded(sized_record(200), 0)[1:])
            self.assertEqual(log.verify().messages, 1)


class TornTailTests(RecoveryTestCase):
    def setUp(self) -> None:
        super().setUp()
        for name in ("fsync", "fdatasync"):  # hundreds of them; that they come is for other tests
            self.patch(os, name, lambda fd: None)

    def torn(self, size: int, behind: bytes) -> tuple[Recovery, bytes]:
        """A log of three records, the last of which has ``size`` of its 180 bytes, followed by others."""
        self.again()
        *_, last = make_log(self.folder, 500, 600, 180)
        record = encoded(sized_record(180, 2), last)
        tail = record[:size] + behind[size:]
        write_at(self.folder, last, tail)
        log, found = self.recover()
        self.check_end(log, found, 1100)
        self.assertEqual(found.messages, 2)
        log.close()
        return found, tail

    @pytest.mark.long
    def test_a_record_cut_at_every_byte_is_cut_away(self) -> None:
        for size in range(180):
            found, tail = self.torn(size, bytes(180))
            rest = tail.rstrip(b"\0")
            self.assertEqual(found.cut_bytes, len(rest), f"{size=}")
            self.assertEqual(self.kept(), {f"{1100:020d}": rest} if rest else {}, f"{size=}")
            self.assertEqual(found.problem is None, not rest, f"{size=}")

    @pytest.mark.long
    def test_a_record_cut_at_every_byte_before_other_bytes_is_cut_away(self) -> None:
        """But for the properties: of those no length and no CRC tells."""
        for size in range(180 - len("k\x01v")):
            found, tail = self.torn(size, b"\xa5" * 200)
            self.assertEqual(self.kept(), {f"{1100:020d}": tail}, f"{size=}")
            self.assertEqual((found.cut_bytes, found.kept_in), (200, self.cut_folder / f"{1100:020d}"))
            self.assertIsNotNone(found.problem)

    @pytest.mark.long
    def test_a_flipped_bit_in_what_can_be_checked_cuts_the_record(self) -> None:
        make_log(self.folder, 500, 600, 180)
        body, properties = range(88, 180 - 91 - 1 - 3 + 88), 180 - 3
        for name, places in (
            ("TOTALSIZE", range(4)),
            ("MAGICCODE", range(4, 8)),
            ("BODYCRC", range(8, 12)),
            ("PHYSICALOFFSET", range(28, 36)),
            ("BODYLENGTH", range(84, 88)),
            ("BODY", body),
            ("TOPICLENGTH", range(body.stop, body.stop + 1)),
            ("PROPERTIESLENGTH", range(properties - 2, properties)),
        ):
            for at in places:
                for bit in (0, 7):
                    self.again()
                    *_, last = make_log(self.folder, 500, 600, 180)
                    record = bytearray(encoded(sized_record(180, 2), last))
                    record[at] ^= 1 << bit
                    write_at(self.folder, last, bytes(record))
                    log, found = self.recover()
                    self.check_end(log, found, 1100)
                    self.assertIsNotNone(found.problem, f"{name}, byte {at}")
                    self.assertEqual(self.kept(), {f"{1100:020d}": bytes(record)}, f"{name}, byte {at}")
                    log.close()

    def test_ipv6_flags_are_checked_by_the_size_they_give(self) -> None:
        for flags in (0x10, 0x20, 0x30):
            self.again()
            *_, last = make_log(self.folder, 500, 180)
            write_at(self.folder, last + 36, pack(">i", flags))
            _, found = self.recover()
            self.assertEqual((found.end, found.messages), (500, 1))


class StaleBytesTests(RecoveryTestCase):
    """Bytes behind the end can never pass for records later, and are not lost."""

    def test_a_stale_record_right_behind_the_end_is_refused(self) -> None:
        """Sound but for its offset: upstream would take it (store.md 2.6)."""
        make_log(self.folder, 500)
        stale = encoded(sized_record(300, 9), 8000)
        write_at(self.folder, 500, stale)
        log, found = self.recover()
        self.check_end(log, found, 500)
        self.assertIn("8000", found.problem or "")
        self.assertEqual(self.kept(), {f"{500:020d}": stale})

    def test_stale_bytes_behind_zeros_are_found(self) -> None:
        make_log(self.folder, 500)
        write_at(self.folder, 3000, b"stale")
        log, found = self.recover()
        self.check_end(log, found, 500)
        self.assertEqual(found.cut_bytes, 3005 - 500)
        self.assertEqual(self.kept(), {f"{500:020d}": bytes(2500) + b"stale"})

    def test_stale_bytes_of_later_segments_are_kept_in_one_file(self) -> None:
        make_log(self.folder, 500)
        write_at(self.folder, SEGMENT_SIZE, b"")
        write_at(self.folder, 2 * SEGMENT_SIZE + 7, b"stale")
        self.patch(recovery_module, "COPY_BYTES", 1000)
        log, found = self.recover()
        self.check_end(log, found, 500)
        self.assertEqual(found.removed_segments, 2)
        self.assertEqual(list_segments(self.folder), [(0, SEGMENT_SIZE)])
        self.assertEqual(self.kept(), {f"{500:020d}": bytes(2 * SEGMENT_SIZE + 7 - 500) + b"stale"})

    def test_what_was_kept_before_is_not_overwritten(self) -> None:
        for number in range(3):
            shutil.rmtree(self.folder, ignore_errors=True)
            make_log(self.folder, 500)
            write_at(self.folder, 500, b"stale %d" % number)
            log, _ = self.recover()
            log.close()
        name = f"{500:020d}"
        self.assertEqual(self.kept(), {name: b"stale 0", f"{name}.1": b"stale 1", f"{name}.2": b"stale 2"})

    def test_cut_bytes_are_first_kept_durably_and_then_zeroed_durably(self) -> None:
        make_log(self.folder, 500)
        write_at(self.folder, 500, b"stale")
        events: list[str] = []

        def watch(name: str) -> None:
            real = getattr(os, name)

            def call(fd: int, *arguments: int) -> None:
                path = Path(os.readlink(f"/proc/self/fd/{fd}"))
                events.append(f"{name} {path.relative_to(self.root)}")
                real(fd, *arguments)

            self.patch(os, name, call)

        for name in ("fsync", "fdatasync"):
            watch(name)
        punch_hole = mappedfile._punch_hole

        def punch(fd: int, position: int, size: int) -> None:
            events.append("zero")
            punch_hole(fd, position, size)

        self.patch(mappedfile, "_punch_hole", punch)
        self.recover()
        kept, segment = f"rmqha/cut/{500:020d}", f"commitlog/{0:020d}"
        first_cut = events.index("zero")
        self.assertLess(events.index(f"fsync {kept}"), first_cut)
        self.assertLess(events.index("fsync rmqha/cut"), first_cut)
        self.assertEqual(events[first_cut : first_cut + 2], ["zero", f"fdatasync {segment}"])

    def test_after_a_crash_what_is_kept_is_written_once_more(self) -> None:
        """A flush may have failed: then the kernel takes bytes for flushed that the disk does not have."""
        make_log(self.folder, 500, SEGMENT_SIZE - 600)
        content = file_bytes(self.folder)
        written = bytearray()
        write = mappedfile.MappedFile.write

        def watch(file: mappedfile.MappedFile, position: int, *pieces: bytes) -> None:
            self.assertEqual(position, len(written))
            written.extend(b"".join(pieces))
            write(file, position, *pieces)

        self.patch(mappedfile.MappedFile, "write", watch)
        self.recover(clean_stop=True)
        self.assertEqual(bytes(written), b"")
        log, found = self.recover()
        self.assertEqual(bytes(written), content[: found.end])
        self.assertEqual(file_bytes(self.folder), content)
        self.assertEqual(log.flushed_offset, found.end)

    def test_a_log_that_is_no_log_is_kept_as_a_whole(self) -> None:
        write_at(self.folder_made(), 0, b"GET / HTTP/1.1")
        log, found = self.recover(clean_stop=True)
        self.check_end(log, found, 0)
        self.assertEqual(self.kept(), {f"{0:020d}": b"GET / HTTP/1.1"})

    def folder_made(self) -> Path:
        self.folder.mkdir()
        return self.folder

    def test_recovering_again_finds_nothing_more(self) -> None:
        make_log(self.folder, 500)
        write_at(self.folder, 500, b"stale")
        self.recover()[0].close()
        _, found = self.recover()
        self.assertEqual(found, Recovery(False, 0, 0, 500, 1))


class StartTests(RecoveryTestCase):
    """From where on records are checked: a bit flipped in segment 1 tells, for it is found or not."""

    def setUp(self) -> None:
        super().setUp()
        make_log(self.folder, *[3000] * 6)
        self.broken_at = SEGMENT_SIZE + 200
        write_at(self.folder, self.broken_at, b"!")

    def timestamp(self, segment: int) -> int:
        return FIRST_STORE_TIMESTAMP + 1000 * segment

    def start(self, checkpoint_timestamp: int) -> Recovery:
        """What recovery after a crash finds, on a copy."""
        copy = new_folder(self) / "commitlog"
        shutil.copytree(self.folder, copy)
        log = CommitLog(copy, SEGMENT_SIZE)
        self.addCleanup(log.close)
        checkpoint = Checkpoint(checkpoint_timestamp, checkpoint_timestamp + 1)
        return recover_log(log, checkpoint, False, copy.parent / "cut", may_cut=MayCut.ANYTHING)

    def test_a_clean_stop_is_checked_from_the_third_last_segment(self) -> None:
        log, found = self.recover(clean_stop=True)
        self.check_end(log, found, 5 * SEGMENT_SIZE + 3000)
        self.assertEqual((found.checked_from, found.messages), (3 * SEGMENT_SIZE, 3))

    def test_a_crash_without_a_checkpoint_is_checked_from_the_first(self) -> None:
        found = self.start(0)
        self.assertEqual((found.checked_from, found.end, found.messages), (0, SEGMENT_SIZE, 1))
        self.assertEqual(found.removed_segments, 4)

    def test_a_crash_is_checked_from_the_last_segment_that_was_on_disk_at_the_checkpoint(self) -> None:
        for segment in (2, 3, 5):
            for later in (0, 999):
                found = self.start(self.timestamp(segment) + SAFETY_MARGIN_MS + later)
                self.assertEqual(found.checked_from, segment * SEGMENT_SIZE)
                self.assertEqual((found.end, found.messages), (5 * SEGMENT_SIZE + 3000, 6 - segment))

    def test_a_segment_that_began_later_than_the_checkpoint_is_not_relied_on(self) -> None:
        found = self.start(self.timestamp(2) + SAFETY_MARGIN_MS - 1)
        self.assertEqual((found.checked_from, found.end), (SEGMENT_SIZE, SEGMENT_SIZE))

    def test_a_checkpoint_before_all_records_checks_all(self) -> None:
        self.assertEqual(self.start(self.timestamp(0) + SAFETY_MARGIN_MS - 1).checked_from, 0)

    def test_a_segment_without_a_record_at_its_start_is_passed_over(self) -> None:
        for content in (bytes(100), encode_blank(SEGMENT_SIZE) + bytes(100)):
            write_at(self.folder, 5 * SEGMENT_SIZE, content)
            self.assertEqual(self.start(2**62).checked_from, 4 * SEGMENT_SIZE)

    def test_a_store_timestamp_of_zero_is_none(self) -> None:
        write_at(
            self.folder, 5 * SEGMENT_SIZE, encoded(replace(sized_record(3000), store_timestamp=0), 5 * SEGMENT_SIZE)
        )
        self.assertEqual(self.start(2**62).checked_from, 4 * SEGMENT_SIZE)

    def test_the_first_record_may_be_of_any_kind(self) -> None:
        """An IPv6 born host moves the store timestamp by 12 bytes."""
        for magic in (None, MESSAGE_MAGIC_CODE_V2):
            for host in ("127.0.0.1", "::1"):
                record = Record("T", b"x" * 50, born_host=Host.parse(host, 1), store_timestamp=self.timestamp(5))
                record = record if magic is None else replace(record, magic=magic)
                write_at(self.folder, 5 * SEGMENT_SIZE, encoded(record, 5 * SEGMENT_SIZE).ljust(3000, b"\0"))
                exactly = self.timestamp(5) + SAFETY_MARGIN_MS
                self.assertEqual(self.start(exactly).checked_from, 5 * SEGMENT_SIZE)
                self.assertEqual(self.start(exactly - 1).checked_from, 4 * SEGMENT_SIZE)

    def test_a_log_that_fills_its_segments_exactly(self) -> None:
        self.again()
        make_log(self.folder, *[SEGMENT_SIZE - END_FILE_MIN_BLANK_LENGTH] * 4)
        log, found = self.recover(clean_stop=True)
        self.check_end(log, found, 4 * SEGMENT_SIZE - 8)
        self.assertEqual(found.messages, 3)


class FixtureTests(RecoveryTestCase):
    """Logs that Java brokers left."""

    def check(self, name: str, clean_stop: bool, checkpoint: Checkpoint | None = None) -> Recovery:
        known = fixtures.facts()["variants"][name]
        self.again()
        fixtures.copy_of(name, self.root / "java")
        (self.root / "java" / "commitlog").rename(self.folder)
        before = list_segments(self.folder)
        checkpoint = checkpoint or Checkpoint.read(self.root / "java" / "checkpoint")
        log, found = self.recover(clean_stop, checkpoint, fixtures.segment_size())
        self.assertEqual((found.end, log.max_offset), (known["maxOffset"], known["maxOffset"]))
        self.assertEqual((found.problem, found.kept_in, found.cut_bytes), (None, None, 0))
        self.assertEqual(log.scan(0).messages, known["records"])
        self.assertEqual(log.last_store_timestamp, known["lastStoreTimestamp"])
        self.assertEqual(held(log), fixtures.log_bytes(name))
        self.assertEqual(found.removed_segments, len(before) - len(list_segments(self.folder)))
        log.close()
        return found

    def test_a_killed_master_s(self) -> None:
        for checkpoint in (None, Checkpoint()):
            found = self.check("master-crash", False, checkpoint)
            self.assertEqual(found.removed_segments, 1)
        self.assertEqual((found.checked_from, found.messages), (0, 2301))

    def test_those_stopped_cleanly(self) -> None:
        for name in ("slave", "master-clean"):
            found = self.check(name, True)
            self.assertEqual(found.removed_segments, 0)
            self.assertEqual(
                found.checked_from, int(fixtures.facts()["variants"][name]["lastCommitLogFile"]) - 2 * 262_144
            )
            self.assertEqual(
                self.check(name, False, Checkpoint()).messages, fixtures.facts()["variants"][name]["records"]
            )
