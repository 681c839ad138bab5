"""Proving many records at once gives what proving them one by one gives."""

import random
from dataclasses import replace
from struct import pack, pack_into
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.testing.records import make_record
from rmqha.wire import scan
from rmqha.wire.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import Blank, IncompleteRecord, Record, RecordError, check_record, encode_blank, encode_record
from rmqha.wire.scan import scan_records
from rmqha.wire.scanned import Scan
from tests import examples, fixtures, strategies
from tests.twins import KernelTests, PlainTests


def scan_one_by_one(segment: bytes, base: int, start: int, limit: int) -> Scan:
    """The reference: a plain loop over ``check_record``."""
    found = Scan(end=start)
    written = memoryview(segment)[: limit - base]
    while found.end < limit:
        at = found.end - base
        try:
            record = check_record(written, at, found.end, len(segment) - at)
        except IncompleteRecord:
            break
        except RecordError as error:
            return found._replace(problem=str(error))
        if isinstance(record, Blank):
            found = found._replace(end=found.end + record.size)
        else:
            end = found.end + record.total_size
            found = Scan(end, found.messages + 1, found.end, record.store_timestamp)
    return found


class ScanRecordsTests(PlainTests):
    def check(self, segment: bytes, base: int, start: int, limit: int) -> Scan:
        """Few records and many are proved in two ways: by both."""
        expected = scan_one_by_one(segment, base, start, limit)
        for few in (scan.FEW_RECORDS, 1):
            with patch.object(scan, "FEW_RECORDS", few):
                self.assertEqual(scan_records(segment, base, start, limit), expected)
        return expected

    def test_a_java_log_is_sound_from_end_to_end(self) -> None:
        messages = 0
        for base, segment in fixtures.segments("master-clean").items():
            limit = min(base + len(segment), fixtures.max_offset("master-clean"))
            found = self.check(segment, base, base, limit)
            self.assertEqual((found.end, found.problem), (limit, None))
            messages += found.messages
        self.assertEqual(messages, fixtures.facts()["variants"]["master-clean"]["records"])
        self.assertEqual(found.store_timestamp, fixtures.facts()["variants"]["master-clean"]["lastStoreTimestamp"])

    def test_zeros_behind_the_last_record_are_no_record(self) -> None:
        base, segment = list(fixtures.segments("master-clean").items())[-1]
        found = self.check(segment, base, base, base + len(segment))
        self.assertEqual(found.end, fixtures.max_offset("master-clean"))
        self.assertIn("00000000", found.problem or "")

    def test_any_limit_and_any_start_in_a_java_log(self) -> None:
        rng = random.Random(20)
        starts = [line["offset"] if "blank" in line else line["physicalOffset"] for line in fixtures.expected()]
        size = fixtures.segment_size()
        for start in rng.sample(starts, 150):
            base = start - start % size
            segment = fixtures.segments("master-crash")[base]
            self.check(segment, base, start, min(base + size, start + rng.choice((0, 1, 7, 8, 90, 300, 5000, size))))
            self.check(segment, base, rng.randrange(base, base + size), base + size)

    @pytest.mark.long
    def test_one_wrong_byte_anywhere_in_a_java_log(self) -> None:
        rng = random.Random(21)
        for base, segment in fixtures.segments("master-crash").items():
            spoilt = bytearray(segment)
            for _ in range(15):
                at, bit = rng.randrange(len(segment)), 1 << rng.randrange(8)
                spoilt[at] ^= bit
                self.check(bytes(spoilt), base, base, base + len(segment))
                spoilt[at] ^= bit

    def test_each_byte_of_one_record_wrong(self) -> None:
        first, second, third = (make_record(n, b"body", physical_offset=0) for n in range(3))
        size = first.total_size
        segment = b"".join(
            encode_record(replace(record, physical_offset=4096 + n * size))
            for n, record in enumerate((first, second, third))
        ) + bytes(50)
        unproved = 0
        for at in range(size, 2 * size):
            for flip in (0x01, 0x80, 0xFF):
                spoilt = bytearray(segment)
                spoilt[at] ^= flip
                unproved += self.check(bytes(spoilt), 4096, 4096, 4096 + 3 * size).messages == 1
        self.assertGreater(unproved, 3 * (4 + 4 + 4 + 8 + 4 + 4 + 1 + 2))

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(250))
    @given(strategies.segments(), st.data())
    def test_any_segment_start_limit_and_wrong_byte(self, segment: strategies.Segment, data: st.DataObject) -> None:
        base, end = segment.base, segment.base + len(segment.content)
        start = data.draw(st.sampled_from(segment.starts) | st.integers(base, end), label="start")
        limit = data.draw(st.just(segment.written_end) | st.integers(base, end), label="limit")
        self.check(segment.content, base, start, limit)
        spoilt = bytearray(segment.content)
        spoilt[data.draw(st.integers(0, len(spoilt) - 1), label="at")] ^= data.draw(st.integers(1, 255), label="flip")
        self.check(bytes(spoilt), base, start, limit)
        self.check(bytes(spoilt), base, base, end)

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(150))
    @given(strategies.segments(), st.data())
    def test_any_field_wrong(self, segment: strategies.Segment, data: st.DataObject) -> None:
        """Lengths that are wild but not random: where gathering in bulk could reach outside of a record."""
        spoilt = bytearray(segment.content + bytes(8))
        at = data.draw(st.sampled_from(segment.starts)) - segment.base
        field = at + data.draw(st.sampled_from((0, 4, 8, 28, 36, 84, 96, 108)) | st.integers(0, 200))
        value = data.draw(st.sampled_from((-(2**31), -1, 0, 0x10, 0x30, 91, 92, 2**31 - 1)) | st.integers(0, 300))
        pack_into(">i", spoilt, min(field, len(spoilt) - 4), value)
        content = bytes(spoilt[: len(segment.content)])
        self.check(content, segment.base, segment.base, segment.base + len(content))

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(100))
    @given(strategies.segments())
    def test_a_sound_segment_is_proved_to_its_end(self, segment: strategies.Segment) -> None:
        found = self.check(segment.content, segment.base, segment.base, segment.written_end)
        self.assertEqual((found.end, found.problem), (segment.written_end, None))

    def test_more_records_than_one_pass_looks_at(self) -> None:
        for limit in (1, 2, 7):
            self.patch(scan, "HOP_LIMIT_RECORDS", limit)
            for base, segment in list(fixtures.segments("master-crash").items())[:3]:
                found = self.check(segment, base, base, base + len(segment))
                self.assertEqual((found.end, found.problem), (base + len(segment), None))

    def test_a_segment_cut_at_every_byte(self) -> None:
        """However many bytes have come, exactly the whole records among them are proved, and nothing is wrong."""
        segment = bytearray()
        ends = [0]
        for number in range(3):
            segment += encode_record(make_record(number, b"body", physical_offset=len(segment)))
            ends.append(len(segment))
        segment += encode_blank(20) + bytes(12)
        ends.append(len(segment))
        for limit in range(len(segment) + 1):
            found = self.check(bytes(segment), 0, 0, limit)
            self.assertEqual((found.end, found.problem), (max(end for end in ends if end <= limit), None))

    def test_memory_mapped_and_plain_bytes_are_alike(self) -> None:
        base, segment = next(iter(fixtures.segments("slave").items()))
        found = scan_records(memoryview(segment), base, base, base + len(segment))
        self.assertEqual(found, scan_records(segment, base, base, base + len(segment)))


class ForgedRecordTests(PlainTests):
    """A producer may put anything into a body, a whole record too: nothing in there is ever taken for one."""

    before = encode_record(make_record(0, b"before"))
    forged_at = len(before) + 88
    forged = encode_record(Record("Forged", b"forged", physical_offset=forged_at, store_timestamp=1))
    outer = make_record(1, forged + b"more of the body", physical_offset=len(before))
    segment = before + encode_record(outer) + bytes(100)

    def test_the_forged_record_alone_would_pass(self) -> None:
        found = check_record(self.segment, self.forged_at, self.forged_at, len(self.segment) - self.forged_at)
        assert isinstance(found, Record)
        self.assertEqual(found.topic, "Forged")

    def test_it_is_passed_over_as_body(self) -> None:
        end = len(self.before) + self.outer.total_size
        found = scan_records(self.segment, 0, 0, end)
        self.assertEqual(found, Scan(end, 2, len(self.before), self.outer.store_timestamp))

    def test_it_is_not_found_behind_a_wrong_size(self) -> None:
        """The size before it is spoilt such that the next record would begin in the body."""
        spoilt = bytearray(self.segment)
        pack_into(">i", spoilt, 0, self.forged_at)
        found = scan_records(bytes(spoilt), 0, 0, len(spoilt))
        self.assertEqual((found.end, found.messages), (0, 0))
        self.assertIsNotNone(found.problem)

    def test_it_is_not_found_behind_a_wrong_crc(self) -> None:
        spoilt = bytearray(self.segment)
        spoilt[len(self.before) + 8] ^= 1
        found = scan_records(bytes(spoilt), 0, 0, len(spoilt))
        self.assertEqual((found.end, found.messages), (len(self.before), 1))
        self.assertIn("CRC", found.problem or "")


class ForgedLengthTests(PlainTests):
    def test_a_negative_topic_length_does_not_read_the_next_length_out_of_the_body(self) -> None:
        """The body ends in just the PROPERTIESLENGTH that would make all lengths agree."""
        for magic, kind, length in ((MESSAGE_MAGIC_CODE, "b", -3), (MESSAGE_MAGIC_CODE_V2, "h", -4)):
            body = b"body" + pack(">h", len("Topic") + len("k\x01v") - length)
            segment = bytearray(encode_record(Record("Topic", body, "k\x01v", magic=magic)) + bytes(20))
            pack_into(f">{kind}", segment, 88 + len(body), length)
            found = scan_records(bytes(segment), 0, 0, len(segment))
            self.assertEqual(found, scan_one_by_one(bytes(segment), 0, 0, len(segment)))
            self.assertIn(f"TOPICLENGTH is {length}", found.problem or "")


class ScanRecordsKernelTests(KernelTests, ScanRecordsTests):
    """All of it with the compiled twin."""


class ForgedRecordKernelTests(KernelTests, ForgedRecordTests):
    """All of it with the compiled twin."""


class ForgedLengthKernelTests(KernelTests, ForgedLengthTests):
    """All of it with the compiled twin."""


class ScanThenTests(SynchronousTestCase):
    def test_two_scans_in_a_row_are_one(self) -> None:
        first = Scan(100, 2, 50, 7)
        self.assertEqual(first.then(Scan(200, 1, 150, 9)), Scan(200, 3, 150, 9))

    def test_a_scan_without_messages_keeps_the_last_one(self) -> None:
        first = Scan(100, 2, 50, 7)
        self.assertEqual(first.then(Scan(120, problem="bad")), Scan(120, 2, 50, 7, "bad"))

    def test_a_store_timestamp_of_zero_is_one(self) -> None:
        self.assertEqual(Scan(100, 1, 50, 7).then(Scan(200, 1, 100, 0)), Scan(200, 2, 100, 0))
