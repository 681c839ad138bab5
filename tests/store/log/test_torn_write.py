"""A process that dies while it writes a record leaves the record's first part, followed by zeros."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.recovery import Recovery, has_unwritten_end, recover_log
from rmqha.testing.records import make_record
from rmqha.wire.record import Record, decode_record, encode_record
from tests.store.damages import UNHURRIED, logs, sound_pieces

SEGMENT_SIZE = 4096
SECTOR_BYTES = 512


class LostSectorTests(SynchronousTestCase):
    """After a loss of power, some sectors of what was not flushed read as zeros."""

    @UNHURRIED
    @given(st.data())
    def test_a_lost_sector_is_seen_unless_it_has_only_properties_and_topic(self, data: st.DataObject) -> None:
        """So the fields of the header need no proof of their own: a part of them cannot be lost unseen."""
        made = data.draw(logs())
        content = bytearray(made.content)
        lost = data.draw(st.sets(st.integers(0, (len(content) - 1) // SECTOR_BYTES), min_size=1))
        for sector in lost:
            at = slice(sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(content)))
            content[at] = bytes(at.stop - at.start)
        for start, end, is_message in sound_pieces(made, bytes(content)):
            if not is_message:
                continue
            was, found = decode_record(made.content[start:end]), decode_record(bytes(content[start:end]))
            assert isinstance(was, Record)
            assert isinstance(found, Record)
            if was.body:  # without a body all is in one sector with the sizes
                self.assertEqual(replace(found, topic=was.topic, properties_stored=was.properties_stored), was)
            else:
                self.assertTrue(found == was or has_unwritten_end(memoryview(content[start:end])))


class TornWriteTests(SynchronousTestCase):
    """Recovery after an unclean stop, a record cut at each of its bytes."""

    def recover(self, written: bytes) -> tuple[Recovery, bytes]:
        """What recovery finds in a log of these bytes and zeros, and the log after it."""
        folder = Path(self.mktemp())
        log = CommitLog(folder / "commitlog", SEGMENT_SIZE)
        log.append_data(0, written)
        log.close()
        log = CommitLog(folder / "commitlog", SEGMENT_SIZE)
        self.addCleanup(log.close)
        recovery = recover_log(log, Checkpoint(), clean_stop=False, cut_folder=folder / "cut")
        return recovery, (folder / "commitlog" / f"{0:020d}").read_bytes()

    def check_every_cut(self, record: Record) -> None:
        first = encode_record(make_record(0, b"whole"))
        second = encode_record(replace(record, physical_offset=len(first)))
        for size in range(len(second)):
            recovery, log = self.recover(first + second[:size])
            whole = second[size:].strip(b"\0") == b""
            kept = first + second * whole
            self.assertEqual((recovery.end, recovery.messages), (len(kept), 1 + whole), f"{size=}")
            self.assertEqual(log, kept.ljust(SEGMENT_SIZE, b"\0"), f"{size=}")

    @pytest.mark.long
    def test_a_record_cut_anywhere_is_cut_away(self) -> None:
        self.check_every_cut(make_record(1, b"some body"))

    def test_a_record_without_properties_cut_anywhere_is_cut_away(self) -> None:
        self.check_every_cut(Record("Topic", b"some body"))

    @pytest.mark.long
    def test_a_record_without_a_body_cut_anywhere_is_cut_away(self) -> None:
        self.check_every_cut(make_record(1, b""))

    def test_what_is_cut_away_is_kept_aside_with_the_reason(self) -> None:
        first = encode_record(make_record(0, b"whole"))
        second = encode_record(make_record(1, b"torn", physical_offset=len(first)))
        recovery, _ = self.recover(first + second[:-1])
        self.assertEqual(recovery.problem, "the end of the record was never written")
        assert recovery.kept_in is not None
        self.assertEqual(recovery.kept_in.read_bytes(), second[:-1])

    def test_a_record_before_a_blank_was_written_as_a_whole(self) -> None:
        folder = Path(self.mktemp())
        log = CommitLog(folder, SEGMENT_SIZE)
        odd = replace(make_record(0, bytes(3000)), properties_stored="KEYS\x01ends in zero\0")
        offsets = [log.append(odd), log.append(make_record(1, bytes(3000)))]
        log.truncate(offsets[1])
        self.assertEqual([b - a for a, b in pairwise(offsets)], [SEGMENT_SIZE])
        log.close()
        log = CommitLog(folder, SEGMENT_SIZE)
        self.addCleanup(log.close)
        recovery = recover_log(log, Checkpoint(), clean_stop=False, cut_folder=folder.parent / "cut")
        self.assertEqual((recovery.end, recovery.messages), (SEGMENT_SIZE, 1))
