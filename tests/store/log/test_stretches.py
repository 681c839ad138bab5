"""Finds bad stretches of a log and the sound parts around them, in generated logs with generated damage."""

import os
import shutil
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.recovery import Damage, LogDamaged, MayCut, Vouched, recover_log
from rmqha.store.log.stretches import Survey, next_sound, survey
from rmqha.wire import scan
from rmqha.wire.layout import MESSAGE_MAGIC_CODE
from rmqha.wire.record import Record
from tests.fixtures import new_folder
from tests.store.damages import UNHURRIED, damages, logs, on_disk, sound_pieces
from tests.store.logs import SEGMENT_SIZE, encoded, make_log, write_at


class GeneratedDamageTests(SynchronousTestCase):
    @UNHURRIED
    @given(st.data())
    def test_every_sound_message_is_found_and_every_bad_byte_is_in_a_stretch(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        content = data.draw(damages(made))
        sound = sound_pieces(made, content)
        with on_disk(made, content) as folder:
            log = CommitLog(folder, made.segment_size, owned=False)
            found = survey(log, 0, log.max_offset)
            log.close()
        messages = [(start, end) for start, end, is_message in sound if is_message]
        assert found.messages == len(messages)
        assert found.end >= max([end for _, end in messages], default=0)
        for start, end, _ in sound:
            assert not any(bad.start < end and start < bad.end for bad in found.stretches), (start, end, found)
        covered = sum(end - start for start, end, _ in sound if end <= found.end)
        assert covered + found.bad_bytes == found.end
        assert found.stretch_count == len(found.stretches)
        assert found.bytes_after == found.end - found.first.end - found.bad_bytes

    @pytest.mark.long
    @UNHURRIED
    @given(st.data())
    def test_recovery_cuts_nothing_sound(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        content = data.draw(damages(made))
        clean_stop = data.draw(st.booleans())
        confirmed = data.draw(st.sampled_from([0, *(end for _, end in made.messages)]))
        sound = [(start, end) for start, end, is_message in sound_pieces(made, content) if is_message]
        with on_disk(made, content) as folder:
            before = {path.name: path.read_bytes() for path in folder.iterdir()}
            log = CommitLog(folder, made.segment_size)
            cut = folder.parent / "cut"
            damage: Damage | None = None
            try:
                recovered = recover_log(log, Checkpoint(), clean_stop, cut, Vouched(confirmed, confirmed))
            except LogDamaged as error:
                damage = error.damage
            if damage is not None:
                log.close()
                assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
                assert not cut.exists()
                is_followed = any(start >= damage.start for start, _ in sound)
                assert is_followed or damage.start < confirmed
                return
            kept = log.max_offset
            log.close()
            assert kept == recovered.end >= min(confirmed, recovered.end)
            torn = "the end of the record was never written"  # the one case in which lengths and CRC are not enough
            assert recovered.problem == torn or all(end <= kept for _, end in sound)
            assert recovered.end >= confirmed
            after = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
            assert after[:kept] == content[:kept]

    @UNHURRIED
    @given(st.data())
    def test_any_prefix_of_the_last_append_is_cut_as_ever(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        start, end = made.messages[-1]
        size = data.draw(st.integers(0, end - start - 1))
        with on_disk(made, made.content[: start + size]) as folder:
            log = CommitLog(folder, made.segment_size)
            found = recover_log(log, Checkpoint(), False, folder.parent / "cut", Vouched(start, start))
            log.close()
        lost = made.content[start + size : end]
        assert found.end == (end if not lost.strip(b"\0") else start), found

    @UNHURRIED
    @given(st.data())
    def test_a_forced_cut_keeps_every_byte(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        content = data.draw(damages(made))
        with on_disk(made, content) as folder:
            log = CommitLog(folder, made.segment_size)
            found = recover_log(log, Checkpoint(), True, folder.parent / "cut", may_cut=MayCut.ANYTHING)
            log.close()
            kept = found.kept_in.read_bytes() if found.kept_in is not None else b""
            after = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
            assert after[: found.end] == content[: found.end]
            assert kept == content[found.end :].rstrip(b"\0")
            assert not after[found.end :].strip(b"\0")


class StretchTests(SynchronousTestCase):
    """Single cases, each of them a way in which disks and producers are unkind."""

    def setUp(self) -> None:
        self.folder = new_folder(self) / "commitlog"

    def look(self) -> Survey:
        log = CommitLog(self.folder, SEGMENT_SIZE, owned=False)
        self.addCleanup(log.close)
        return survey(log, 0, log.max_offset)

    def test_rot_in_one_record(self) -> None:
        offsets = make_log(self.folder, *[500] * 20)
        for position in (0, 1, 2, 3, 4, 7, 10, 28, 35, 84, 87, 200):
            with self.subTest(position):
                shutil.rmtree(self.folder)
                offsets = make_log(self.folder, *[500] * 20)
                at = offsets[7]
                write_at(self.folder, at + position, b"\xa5")
                (bad,) = self.look().stretches
                self.assertEqual((bad.start, bad.end, bad.messages_after), (at, at + 500, 12))

    def test_several_stretches_are_told_each(self) -> None:
        offsets = make_log(self.folder, *[500] * 40)
        for number in (3, 4, 10, 25):
            write_at(self.folder, offsets[number] + 100, b"!")
        found = self.look()
        self.assertEqual(
            [(bad.start, bad.end, bad.messages_after) for bad in found.stretches],
            [
                (offsets[3], offsets[5], 5),
                (offsets[10], offsets[11], 14),
                (offsets[25], offsets[25] + 500, 14),
            ],
        )
        self.assertEqual((found.stretch_count, found.messages, found.first.messages), (3, 36, 3))

    def test_a_rotten_blank_reaches_to_the_next_segment(self) -> None:
        make_log(self.folder, 3000, 3000, 500)
        write_at(self.folder, 3003, b"\xff")
        (bad,) = self.look().stretches
        self.assertEqual((bad.start, bad.end), (3000, SEGMENT_SIZE))

    def test_a_zeroed_segment_in_the_middle(self) -> None:
        offsets = make_log(self.folder, *[3000] * 4)
        (self.folder / f"{SEGMENT_SIZE:020d}").unlink()
        write_at(self.folder, SEGMENT_SIZE, b"")
        (bad,) = self.look().stretches
        self.assertEqual((bad.start, bad.end, bad.messages_after), (SEGMENT_SIZE, offsets[2], 2))

    def test_rot_across_a_segments_end(self) -> None:
        offsets = make_log(self.folder, *[1000] * 10)
        write_at(self.folder, offsets[3] + 800, bytes(SEGMENT_SIZE - offsets[3] - 800))
        write_at(self.folder, SEGMENT_SIZE, bytes(100))
        (bad,) = self.look().stretches
        self.assertEqual((bad.start, bad.end), (offsets[3], offsets[5]))

    def test_what_only_blanks_follow_is_a_torn_end(self) -> None:
        make_log(self.folder, 500, 3000, 600)
        write_at(self.folder, SEGMENT_SIZE, bytes(600))
        write_at(self.folder, 600, b"!")
        found = self.look()
        self.assertEqual((found.end, found.stretches, found.messages_after), (500, (), 0))

    def test_a_record_elsewhere_than_it_says_is_not_sound(self) -> None:
        make_log(self.folder, 500)
        write_at(self.folder, 600, encoded(Record("T", b"stale"), 700))
        self.assertEqual(self.look().stretches, ())

    def test_a_body_full_of_heads_is_searched_in_bounded_time(self) -> None:
        """Each is the head of a long record whose CRC is wrong: proving them one by one would take hours."""
        size = 1 << 20
        body = bytearray(size)
        end = size - 4096
        heads = range(8, end - 200, 124)
        for at in heads:
            pack_into(">iii", body, at, end - at, MESSAGE_MAGIC_CODE, 1)
            pack_into(">q", body, at + 28, at)
            pack_into(">i", body, at + 84, end - at - 92)
        body[end - 4 : end] = b"\x01T\0\0"
        self.patch(scan, "FREE_PROOF_BYTES", size)
        effort = scan.Effort()
        self.assertIsNone(scan.find_sound(bytes(body), 0, 4, size, size, effort))
        self.assertTrue(effort.gave_up)
        self.assertLessEqual(effort.wasted_bytes, size + scan.PROOF_BYTES_PER_BYTE * effort.searched_bytes)
        self.folder.mkdir()
        (self.folder / f"{0:020d}").write_bytes(body)
        log = CommitLog(self.folder, size)
        self.addCleanup(log.close)
        error = self.assertRaises(LogDamaged, recover_log, log, Checkpoint(), False, self.folder.parent / "cut")
        self.assertIn("more sound messages may follow", str(error))

    def test_a_record_whose_first_bytes_lie_in_a_hole_is_found(self) -> None:
        """The first byte of a size is zero: a sparse file may have a hole up to it."""
        page = os.sysconf("SC_PAGE_SIZE")
        size = 4 * page
        record = Record("T", b"x" * 300)
        for at in range(page - 3, page + 1):
            with self.subTest(at):
                shutil.rmtree(self.folder, ignore_errors=True)
                write_at_folder(self.folder)
                write_at(self.folder, at, encoded(record, at), size)
                log = CommitLog(self.folder, size)
                self.addCleanup(log.close)
                self.assertEqual(next_sound(log, 1, size, scan.Effort()), at)


def write_at_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
