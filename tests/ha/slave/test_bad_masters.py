"""Masters that violate the protocol, for a slave that holds a log: rows M1 to M15 of docs/faults.md.

In every case: no crash, no hang (silence ends it), bounded memory, one clear line in the log, our log untouched.
"""

from dataclasses import dataclass, replace
from random import Random
from struct import pack

import pytest

from rmqha.ha.slave.protocol import READ_BYTES
from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.states import ReplicaState
from rmqha.testing.records import make_record
from rmqha.wire.layout import BLANK_MAGIC_CODE
from rmqha.wire.record import LOOPBACK, Host, Record, encode_record
from rmqha.wire.transfer import MAX_TRANSFER_BODY_BYTES, TRANSFER_HEADER, Transfer
from tests.ha.doubles import SEGMENT_SIZE, LineTransport, heartbeat, log_lines, make_image, reports_in, wire
from tests.ha.slavenode import SlaveNodeTestCase
from tests.ha.tables import one_test_a_row

IMAGE = make_image([300] * 30)
HELD = IMAGE.prefix(IMAGE.messages[12])
START = HELD.last_message
"""Where the slave asks to begin."""
OVERLAP = wire(IMAGE.transfers(START, HELD.end))
VIEW = MasterView(0, IMAGE.end)
SILENT = "nothing came from the master for 20 s"


def after_overlap(body: bytes) -> bytes:
    """What the slave holds, and then these bytes as one frame."""
    return OVERLAP + wire([Transfer(HELD.end, body)])


def record(**changes: object) -> Record:
    """The record that comes next, with some fields changed."""
    return replace(make_record(13, b"b" * 300, topic="T", physical_offset=HELD.end), **changes)  # type: ignore[arg-type]


def damaged(at: int, new: bytes) -> bytes:
    """The record that comes next, with some bytes changed."""
    whole = encode_record(record())
    return after_overlap(whole[:at] + new + whole[at + len(new) :])


TOPIC_LENGTH_AT = 88 + 300
PROPERTIES_LENGTH_AT = TOPIC_LENGTH_AT + 1 + 1


@dataclass(frozen=True)
class BadMaster:
    """What a master says after our first report, and what the log must say of it; ``state`` once the line is gone."""

    name: str
    says: bytes
    log: str
    state: ReplicaState = ReplicaState.CONNECTING


BAD_MASTERS = [
    BadMaster("m1_a_size_of_minus_1", TRANSFER_HEADER.pack(START, -1), "a body size of -1 bytes is not between"),
    BadMaster("m1_the_smallest_size", TRANSFER_HEADER.pack(START, -(2**31)), "a body size of -2147483648 bytes"),
    BadMaster("m2_a_size_of_2_gib", TRANSFER_HEADER.pack(START, 2**31 - 1), "a body size of 2147483647 bytes"),
    BadMaster(
        "m2_a_size_of_one_more_than_java_takes",
        TRANSFER_HEADER.pack(START, MAX_TRANSFER_BODY_BYTES + 1),
        "a body size of 4194293 bytes is not between 0 and 4194292",
    ),
    BadMaster("m3_a_storm_of_heartbeats_at_our_end", OVERLAP + heartbeat(HELD.end) * 50_000, SILENT),
    BadMaster("m3_a_storm_of_heartbeats_elsewhere", heartbeat(START + 1) * 50_000, f"a frame at {START + 1} where"),
    BadMaster("m4_a_frame_behind_ours", wire(IMAGE.transfers(START - 1)), f"a frame at {START - 1} where {START} is"),
    BadMaster("m4_a_frame_ahead_of_ours", wire(IMAGE.transfers(START + 1)), f"a frame at {START + 1} where {START}"),
    BadMaster("m4_the_log_from_0", wire(IMAGE.transfers(0)), f"a frame at 0 where {START} is next"),
    BadMaster("m4_the_first_frame_twice", OVERLAP * 2, f"a frame at {START} where {HELD.end} is next"),
    BadMaster("m4_one_frame_left_out", wire(IMAGE.transfers(START)[1:]), f"where {START} is next"),
    BadMaster("m5_an_offset_of_minus_1", TRANSFER_HEADER.pack(-1, 0), "an offset of -1 is negative"),
    BadMaster("m5_the_smallest_offset", TRANSFER_HEADER.pack(-(2**63), 5) + b"hello", "is negative"),
    BadMaster("m6_zeros_for_ever", bytes(100_000), f"a frame at 0 where {START} is next"),
    BadMaster("m6_all_bits_set", b"\xff" * 100_000, "a body size of -1 bytes"),
    BadMaster("m6_half_a_header", heartbeat(START)[:11], SILENT),
    BadMaster("m6_half_a_frame", wire(IMAGE.transfers(START))[:300], SILENT),
    BadMaster("m6_nothing", b"", SILENT),
    BadMaster("m7_a_tls_alert", b"\x15\x03\x01\x00\x02\x02\x46", "port uses TLS"),
    BadMaster("m7_a_tls_server_hello", b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + b"\x7f" * 80, "port uses TLS"),
    BadMaster("m7_an_http_answer", b"HTTP/1.1 400 Bad Request\r\n\r\n", "a body size of 540291120 bytes"),
    BadMaster("m7_an_ssh_banner", b"SSH-2.0-OpenSSH_9.6\r\n", "a body size of 1332766062 bytes"),
    BadMaster("m7_a_remoting_answer", pack(">ii", 120, 116) + b'{"code":0,"flag":1}', "a body size of"),
    BadMaster(
        "m8_a_frame_across_a_segments_end",
        TRANSFER_HEADER.pack(START, SEGMENT_SIZE) + IMAGE.bytes_at(START, START + SEGMENT_SIZE),
        f"a frame of {SEGMENT_SIZE} bytes at {START} crosses a segment's end: does the master have "
        "mappedFileSizeCommitLog=4096",
    ),
    BadMaster(
        "m9_a_blank_not_to_the_segments_end", after_overlap(pack(">ii", 100, BLANK_MAGIC_CODE)), "a blank of 100"
    ),
    BadMaster("m9_a_blank_beyond_it", after_overlap(pack(">ii", 4096, BLANK_MAGIC_CODE)), "a blank of 4096 bytes lies"),
    BadMaster("m9_a_blank_smaller_than_its_head", after_overlap(pack(">ii", 7, BLANK_MAGIC_CODE)), "a size of 7 bytes"),
    BadMaster("m10_a_wrong_crc", damaged(8, b"\0\0\0\1"), "the body's CRC is"),
    BadMaster("m10_a_body_of_other_bytes", damaged(88, b"B"), "the body's CRC is"),
    BadMaster("m10_a_wrong_magic", damaged(4, b"\xca\xfe\xba\xbe"), "magic code CAFEBABE is not that of a record"),
    BadMaster("m10_zeros_instead_of_a_record", after_overlap(bytes(300)), "magic code 00000000"),
    BadMaster("m10_a_size_below_the_header", damaged(0, pack(">i", 90)), "a size of 90 bytes is too small"),
    BadMaster("m10_a_negative_size", damaged(0, pack(">i", -5)), "a size of -5 bytes is too small"),
    BadMaster("m10_a_size_beyond_the_segment", damaged(0, pack(">i", SEGMENT_SIZE)), "before its segment's end"),
    BadMaster("m10_a_body_longer_than_the_record", damaged(84, pack(">i", 10_000)), "BODYLENGTH is 10000"),
    BadMaster("m10_a_negative_body", damaged(84, pack(">i", -1)), "BODYLENGTH is -1"),
    BadMaster("m10_a_topic_longer_than_the_rest", damaged(TOPIC_LENGTH_AT, b"\x7f"), "TOPICLENGTH is 127"),
    BadMaster("m10_a_negative_topic", damaged(TOPIC_LENGTH_AT, b"\xff"), "TOPICLENGTH is -1"),
    BadMaster("m10_properties_too_long", damaged(PROPERTIES_LENGTH_AT, b"\x7f\xff"), "PROPERTIESLENGTH is 32767"),
    BadMaster("m10_properties_too_short", damaged(PROPERTIES_LENGTH_AT, b"\0\0"), "TOTALSIZE says"),
    BadMaster(
        "m11_a_record_of_another_place",
        after_overlap(encode_record(record(physical_offset=HELD.end + 1))),
        f"it says its offset is {HELD.end + 1}",
    ),
    BadMaster(
        "m12_a_master_whose_tail_is_lost",
        heartbeat(START) * 2,
        f"AHEAD: the master's log ends at {START}, {HELD.end - START} bytes before ours",
        ReplicaState.AHEAD,
    ),
    BadMaster(
        "m12_a_master_that_lost_part_of_our_last_record",
        wire(IMAGE.transfers(START, HELD.end - 1)) + heartbeat(HELD.end - 1) * 2,
        f"AHEAD: the master's log ends at {HELD.end - 1}, 1 bytes before ours",
        ReplicaState.AHEAD,
    ),
    BadMaster(
        "m13_a_master_of_another_cluster",
        wire(make_image([310] * 30, seed=9).transfers(START)),
        f"DIVERGED: the master's byte at {START}",
        ReplicaState.DIVERGED,
    ),
    BadMaster("m15_a_batch_of_32_mib", TRANSFER_HEADER.pack(START, 32 << 20), "a body size of 33554432 bytes"),
]


def meet(test: "BadMasterTests", row: BadMaster) -> None:
    """A slave that holds a log meets such a master, and then silence."""
    for read_bytes in (READ_BYTES, 7) if len(row.says) < 2000 else (READ_BYTES,):
        test.view = VIEW
        with log_lines() as lines:
            test.start(HELD)
            line, request = test.connect()
            test.assertEqual(request, START)
            for at in range(0, len(row.says), read_bytes):
                line.deliver(row.says[at : at + read_bytes])
            test.assertLessEqual(test.held_bytes(line), TRANSFER_HEADER.size + MAX_TRANSFER_BODY_BYTES)
            test.clock.advance(0)
            if row.log == SILENT:
                test.assertFalse(line.disconnecting)
                test.silence(20)
            test.assert_left(line, lines(), row)
        test.stop()


@one_test_a_row(BAD_MASTERS, meet)
class BadMasterTests(SlaveNodeTestCase):
    """One test a row; each is heard in one read, and again in small pieces."""

    def assert_left(self, line: LineTransport, lines: str, row: BadMaster) -> None:
        """The line is gone, the log tells why, and the store is as it was."""
        self.assertTrue(line.over, "the slave has not left")
        self.assertTrue(line.aborted)
        self.assertIn(row.log, lines)
        level = "warn: closing the connection to the master: " if row.state is ReplicaState.CONNECTING else "error: "
        (reason,) = [text for text in lines.splitlines() if row.log in text and "slave is" not in text]
        self.assertTrue(reason.startswith(level), reason)
        self.assertEqual(self.service.replica.state, row.state)
        self.assertEqual(self.content(), HELD.content)
        self.assertEqual(self.log.verified_offset, HELD.end)
        reports = reports_in(line.take())
        self.assertEqual([offset for offset in reports if offset > HELD.end], [])
        self.assertEqual((self.ends, self.disk_failures), ([], []))
        self.next_attempt().refuse()  # it tries again


class OddMasterTests(SlaveNodeTestCase):
    """Masters that are odd and right, or wrong in more than one read."""

    def assert_taken(self, records: bytes, start: int, batch_bytes: int, segment_size: int = SEGMENT_SIZE) -> None:
        """A fresh slave takes these records, from ``start`` on, in frames of at most that size."""
        self.view = MasterView(start, start + len(records))
        self.start(mappedFileSizeCommitLog=str(segment_size))
        line, request = self.connect()
        at = request
        while at < start + len(records):
            end = min(at + batch_bytes, start + len(records), at - at % segment_size + segment_size)
            line.deliver(wire([Transfer(at, records[at - start : end - start])]))
            at = end
        self.assertEqual(self.content(), records)
        self.assertEqual(reports_in(line.take())[-1], start + len(records))
        self.stop()

    @pytest.mark.long
    def test_m9_records_and_blanks_may_be_cut_anywhere(self) -> None:
        for batch_bytes in (1, 3, 100, 475):
            self.assert_taken(IMAGE.prefix(IMAGE.messages[10]).content, 0, batch_bytes)

    def test_m9_a_filler_too_small_for_a_blank_is_refused(self) -> None:
        room = SEGMENT_SIZE - len(encode_record(make_record(0, b"", topic="T")))
        body = encode_record(make_record(0, b"b" * (room - 4), topic="T"))
        self.view = MasterView(0, 2 * SEGMENT_SIZE)
        self.start()
        line, _ = self.connect()
        with log_lines() as lines:
            line.deliver(wire([Transfer(1, body[1:] + bytes(4))]))
            self.clock.advance(0)
        self.assertTrue(line.over)
        self.assertIn(f"what the master sent for {len(body)} is not a valid record", lines())
        self.assertEqual(self.content(), body)

    def test_m14_heartbeats_for_ever_of_a_master_that_has_more_are_named_a_stall(self) -> None:
        self.view = VIEW
        self.start(HELD)
        line, _ = self.connect()
        line.deliver(OVERLAP)
        with log_lines() as lines:
            for _ in range(40):
                self.silence(1)
                line.deliver(heartbeat(HELD.end))
        self.assertIn(f"info: slave is STALLED: {IMAGE.end - HELD.end} bytes behind and nothing came", lines())
        self.assertEqual(self.service.replica.state, ReplicaState.STALLED)
        self.assertFalse(line.disconnecting, "data may still come")

    def test_m14_heartbeats_for_ever_where_an_empty_slave_waits_are_left(self) -> None:
        self.start(remoting=False)
        line = self.accept()
        self.next_attempt().refuse()
        self.assertEqual(reports_in(line.take()), [1])
        with log_lines() as lines:
            line.deliver(heartbeat(1))
            line.deliver(heartbeat(1))
        self.assertTrue(line.aborted)
        self.assertIn("the master sends nothing at 1, and we cannot find out what it has", lines())

    def test_m15_the_largest_frame_is_taken_and_memory_stays_bounded(self) -> None:
        size = 8 << 20
        body = make_record(0, bytes(MAX_TRANSFER_BODY_BYTES - 1000), topic="T")
        first = encode_record(body)
        content = first + encode_record(replace(body, physical_offset=len(first), body=bytes(2000), body_crc=None))
        self.view = MasterView(0, len(content))
        self.start(mappedFileSizeCommitLog=str(size))
        line, _ = self.connect()
        frame = wire([Transfer(1, content[1 : 1 + MAX_TRANSFER_BODY_BYTES])])
        self.assertEqual(len(frame), 4 << 20)
        for at in range(0, len(frame), 65536):
            line.deliver(frame[at : at + 65536])
            self.assertLessEqual(self.held_bytes(line), len(frame))
        self.assertEqual(self.held_bytes(line), 0)
        line.deliver(wire([Transfer(1 + MAX_TRANSFER_BODY_BYTES, content[1 + MAX_TRANSFER_BODY_BYTES :])]))
        self.assertEqual(self.content(), content)

    def test_m15_a_message_of_4_mib_is_taken_in_java_sized_frames(self) -> None:
        self.assert_taken(encode_record(make_record(0, bytes(4 << 20), topic="T")), 0, 32 << 10, segment_size=8 << 20)

    def test_m15_ipv6_hosts_are_taken(self) -> None:
        host = Host(b"\x20\x01\x0d\xb8" + bytes(11) + b"\1", 10911)
        content = b""
        for born_host, store_host in ((host, LOOPBACK), (LOOPBACK, host), (host, host)):
            plain = make_record(0, b"body", topic="T", physical_offset=len(content))
            content += encode_record(replace(plain, born_host=born_host, store_host=store_host))
        self.assert_taken(content, 0, 50)

    @pytest.mark.long
    def test_random_bytes_never_crash_a_slave_and_never_reach_its_log(self) -> None:
        for seed in range(60):
            rng = Random(seed)
            self.view = VIEW
            self.start(HELD)
            line, _ = self.connect()
            head = rng.choice((b"", OVERLAP, TRANSFER_HEADER.pack(START, rng.randrange(200))))
            line.deliver(head + rng.randbytes(rng.randrange(300)))
            self.silence(20.5)
            self.assertTrue(line.over, seed)
            self.assertEqual(self.content(), HELD.content, seed)
            self.stop()
