"""Slaves and other peers that violate a master's protocol: rows M20 to M27 of docs/faults.md.

In every case: no crash, no hang (silence ends it), bounded memory, a log line that names the peer and the reason, and
no other slave feels anything of it.
"""

from dataclasses import dataclass
from random import Random

from rmqha.ha.master.protocol import HAConnectionState, HAMasterProtocol
from rmqha.wire.transfer import REPORT_HEADER, encode_report
from tests.ha.doubles import (
    PEER,
    PEER_NAME,
    LineTransport,
    append,
    content_of,
    log_lines,
    memory_log,
    progress_of,
    transfers_in,
)
from tests.ha.masternode import IMAGE, MasterTestCase, SlowTransport
from tests.ha.tables import one_test_a_row

END = IMAGE.end
MIDDLE = IMAGE.messages[12]
TEXT = b"GET / HTTP/1.1\r\nHost: broker-a\r\n\r\n"
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + b"\x55" * 190
DEADLINE = "has sent no report for 20.0 s"


def reports(*offsets: int) -> bytes:
    """These reports, one after another."""
    return b"".join(encode_report(offset) for offset in offsets)


def ahead(data: bytes) -> str:
    """What is said of a stranger whose first eight bytes are these."""
    (offset,) = REPORT_HEADER.unpack(data[:8])
    return f"asks for {offset}, {offset - END} bytes ahead of our end at {END}"


@dataclass(frozen=True)
class BadSlave:
    """What a slave says, and for what reason it is closed; ``served`` if it gets something before that."""

    name: str
    says: bytes
    reason: str
    served: bool = False


BAD_SLAVES = [
    BadSlave("m20_a_first_report_of_minus_1", reports(-1), "asks for -1"),
    BadSlave("m20_the_smallest_first_report", reports(-(2**63)), f"asks for {-(2**63)}"),
    BadSlave("m20_a_first_report_one_beyond_our_end", reports(END + 1), f"asks for {END + 1}, 1 bytes ahead"),
    BadSlave("m20_the_largest_first_report", reports(2**63 - 1), f"asks for {2**63 - 1}"),
    BadSlave("m21_a_report_below_the_first", reports(MIDDLE, MIDDLE - 1), f"reports {MIDDLE - 1}, which", served=True),
    BadSlave("m21_a_report_below_a_later_one", reports(1, MIDDLE, 1), "reports 1, which is not between", served=True),
    BadSlave("m21_a_negative_report", reports(1, -1), "reports -1, which is not between", served=True),
    BadSlave("m21_a_jump_beyond_our_end", reports(1, END + 1), f"and what was sent, {END}", served=True),
    BadSlave("m21_a_jump_to_the_largest", reports(1, 2**63 - 1), f"reports {2**63 - 1}, which", served=True),
    BadSlave("m22_one_stray_byte_and_silence", b"\x01", DEADLINE),
    BadSlave("m22_seven_stray_bytes_and_silence", b"\0" * 7, DEADLINE),
    BadSlave("m22_a_stray_byte_before_a_report", b"\x7f" + reports(1), ahead(b"\x7f" + bytes(7))),
    BadSlave("m22_stray_bytes_of_ones_before_a_report", b"\xff" * 3 + reports(1), "asks for -1099511627776"),
    BadSlave("m22_three_zeros_before_reports", bytes(3) + reports(1, 1), f"reports {1 << 40}, which", served=True),
    BadSlave("m22_a_stray_byte_between_reports", reports(1) + b"\x01" + reports(1), "is not between", served=True),
    BadSlave("m22_an_http_request", TEXT, ahead(TEXT)),
    BadSlave("m22_a_tls_hello", TLS_HELLO, "starts a TLS handshake"),
    BadSlave("m22_an_ssh_banner", b"SSH-2.0-OpenSSH_9.6\r\n", ahead(b"SSH-2.0-")),
    BadSlave("m22_a_remoting_request", b"\0\0\0\x80\0\0\0\x7c" + b'{"code":28}', ahead(b"\0\0\0\x80\0\0\0\x7c")),
    BadSlave("m22_a_slave_of_controller_mode", bytes.fromhex("00000001000100000000000000000002"), "asks for "),
    BadSlave("m21_a_first_report_below_0_with_others", reports(-1, END), "asks for -1"),
    BadSlave("m23_no_report", b"", DEADLINE),
    BadSlave("m23_no_report_after_the_first", reports(1), DEADLINE, served=True),
]


def meet(test: "BadSlaveTests", row: BadSlave) -> None:
    """A master that serves a good slave meets a bad one, heard in one read and again byte by byte.

    Of one that is served the first report is a read of its own: what comes with that is refused for that alone.
    """
    first = REPORT_HEADER.size if row.served else 0
    for read_bytes in (len(row.says) or 1, 1):
        good, good_line = test.request(1)
        before = content_of(test.log)
        with log_lines() as lines:
            bad, line = test.connect()
            line.deliver(row.says[:first])
            for at in range(first, len(row.says), read_bytes):
                line.deliver(row.says[at : at + read_bytes])
            test.clock.advance(0)
            if row.reason == DEADLINE:
                test.assertFalse(line.disconnecting)
                test.wait(20, good_line)
        test.assert_closed(bad, line, lines(), row)
        test.assertEqual(content_of(test.log), before)
        test.assertIn(good, test.factory.connections)
        test.assertEqual(good.state, HAConnectionState.TRANSFER)
        good_line.lose()


@one_test_a_row(BAD_SLAVES, meet)
class BadSlaveTests(MasterTestCase):
    """One test a row."""

    def wait(self, seconds: int, good: LineTransport) -> None:
        """Time passes; the good slave goes on reporting."""
        for _ in range(2 * seconds):
            self.clock.advance(0.5)
            good.deliver(encode_report(END))

    def assert_closed(self, bad: HAMasterProtocol, line: LineTransport, lines: str, row: BadSlave) -> None:
        """The bad slave is gone, and one line says who and why."""
        self.assertTrue(line.over, "the master has not closed")
        self.assertTrue(line.aborted)
        (reason,) = [text for text in lines.splitlines() if row.reason in text]
        self.assertTrue(reason.startswith(f"warn: slave {PEER_NAME} "), reason)
        self.assertTrue(reason.endswith(": closing"), reason)
        self.assertNotIn(bad, self.factory.connections)
        self.assertEqual(bad.state, HAConnectionState.CLOSED)
        sent = line.take()
        self.assertEqual(bool(sent), row.served, sent[:50])
        if bad.progress is not None:
            self.assertTrue(0 <= bad.progress.reported <= bad.progress.sent, bad.progress)

    def test_m20_first_reports_of_0_and_1_and_up_to_our_end_are_served(self) -> None:
        for offset in (0, 1, 2, MIDDLE, MIDDLE + 1, END):
            connection, line = self.request(offset)
            self.assertFalse(line.disconnecting, offset)
            self.assertEqual(progress_of(connection).reported, offset)
            self.assertEqual(progress_of(connection).sent, END)

    def test_m20_a_first_report_below_our_min_is_refused_with_what_we_have(self) -> None:
        late = memory_log(IMAGE)
        late.min_offset = 4096
        self.serve(late)
        for offset in (1, 4095):
            with log_lines() as lines:
                _, line = self.request(offset)
            self.assertTrue(line.aborted)
            self.assertIn(f"warn: slave {PEER_NAME} asks for {offset}, our log starts at 4096: closing", lines())
        _, line = self.request(4096)
        self.assertFalse(line.disconnecting)

    def test_m21_reports_inside_records_are_nobody_elses_business(self) -> None:
        """A Java slave reports the end of its last frame, which may be anywhere in a record."""
        connection, line = self.request(1)
        for offset in range(2, 3000, 7):
            line.deliver(encode_report(offset))
        self.assertEqual(progress_of(connection).reported, offset)
        self.assertFalse(line.disconnecting)

    def test_m22_stray_bytes_behind_a_report_wait_for_the_rest(self) -> None:
        for count in range(1, 8):
            connection, line = self.request(1)
            line.deliver(encode_report(MIDDLE)[:count])
            self.assertEqual(progress_of(connection).reported, 1)
            line.deliver(encode_report(MIDDLE)[count:])
            self.assertEqual(progress_of(connection).reported, MIDDLE)

    def test_m24_bytes_not_sent_yet_cannot_be_acknowledged(self) -> None:
        """Our log holds these bytes, but this slave cannot: a SYNC_MASTER would count a copy that does not exist."""
        self.serve(memory_log(IMAGE.prefix(MIDDLE)))
        connection, line = self.connect(SlowTransport(self.clock))
        line.deliver(encode_report(1))
        connection.pauseProducing()
        append(self.log, IMAGE)
        self.assertEqual(progress_of(connection).sent, MIDDLE)
        line.deliver(encode_report(MIDDLE))
        with log_lines() as lines:
            line.deliver(encode_report(MIDDLE + 1))
        self.assertEqual(progress_of(connection).reported, MIDDLE)
        self.assertTrue(line.aborted)
        self.assertIn(f"reports {MIDDLE + 1}, which is not between its last report {MIDDLE} and", lines())

    def test_m24_a_slave_that_starts_at_the_last_segment_acknowledges_no_earlier_bytes(self) -> None:
        connection, _ = self.request(0)
        self.assertEqual(progress_of(connection).reported, 0)

    def test_m25_ten_thousand_reports_in_pieces_of_any_size(self) -> None:
        for seed in range(5):
            rng = Random(seed)
            connection, line = self.connect()
            stream = reports(*[min(number + 1, END) for number in range(10_000)])
            line.deliver(stream[:8])
            at = 8
            while at < len(stream):
                size = rng.choice((1, 3, 8, 1000, 4096))
                line.deliver(stream[at : at + size])
                at += size
            self.assertEqual(progress_of(connection).reported, 10_000)
            self.assertFalse(line.disconnecting)

    def test_m26_a_scan_of_ten_thousand_connections_leaves_nothing(self) -> None:
        _, good = self.request(1)
        good.take()
        for _ in range(10_000):
            connection = self.factory.buildProtocol(PEER)
            if connection is not None:  # not refused: they come too fast
                line = LineTransport(self.clock)
                line.attach(connection)
                line.lose()
        self.assertEqual(len(self.factory.connections), 1)
        self.assertLessEqual(len(self.clock.getDelayedCalls()), 3, "only the good slave's, and a summary for the log")

    def test_m27_a_log_deleted_under_a_slow_slave_closes_it_alone(self) -> None:
        first = IMAGE.prefix(MIDDLE)
        self.serve(memory_log(first))
        slow, slow_line = self.request(1)
        _, quick_line = self.request(1)
        quick_line.take()
        slow.pauseProducing()
        self.grow(IMAGE)
        self.assertEqual(transfers_in(quick_line.take()), IMAGE.transfers(MIDDLE))
        self.log.min_offset = END - END % 4096
        with log_lines() as lines:
            slow.resumeProducing()
        self.assertTrue(slow_line.aborted)
        self.assertFalse(quick_line.disconnecting)
        self.assertIn(f"warn: slave {PEER_NAME} is at {MIDDLE}, which was deleted; our log starts at", lines())

    def test_random_bytes_never_crash_a_master(self) -> None:
        for seed in range(300):
            rng = Random(seed)
            connection, line = self.connect()
            line.deliver(rng.choice((b"", reports(1), reports(0, END))) + rng.randbytes(rng.randrange(64)))
            self.clock.pump([1] * 21)
            self.assertTrue(line.over, seed)
            self.assertNotIn(connection, self.factory.connections)
