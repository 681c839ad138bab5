"""Limits on connections without a report: places, rates, log lines, memory. Slaves must not notice such connections."""

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission import limits
from rmqha.ha.admission.limits import HALimits, LineLimit, Places, WriteSize
from rmqha.ha.master.protocol import WRITE_BYTES, HAConnectionState
from rmqha.kit import rates
from rmqha.wire.transfer import TRANSFER_HEADER, encode_report
from tests.ha.doubles import (
    PEER,
    LineTransport,
    append,
    heartbeat,
    log_lines,
    make_image,
    memory_log,
    progress_of,
    transfers_in,
)
from tests.ha.masternode import IMAGE, MasterTestCase, SlowTransport

JAVA_SILENT_SECONDS = 6
"""A Java slave's first report comes so late, at most (spec/ha.md 5.1)."""
END = IMAGE.end
OTHER = IPv4Address("TCP", "192.0.2.8", 1)


class Visitor:
    """A connection, as far as places go."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.here = True

    def give_place(self) -> None:
        self.here = False


class PlacesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def serve(self, **bounds: int) -> None:
        self.places: Places[Visitor] = Places(HALimits(**bounds), self.clock)

    def visit(self, host: str = "a", reports: bool = False) -> Visitor | None:
        """Somebody connects; None if refused."""
        self.refusal = self.places.refusal(host)
        if self.refusal is not None:
            return None
        visitor = Visitor(host)
        self.places.enter(visitor)
        if reports:
            self.places.reported(visitor)
        return visitor

    def visits(self, count: int, host: str = "a", reports: bool = False) -> list[Visitor]:
        visitors = [self.visit(host, reports) for _ in range(count)]
        return [visitor for visitor in visitors if visitor is not None]

    def test_where_all_places_are_taken_the_oldest_silent_one_goes(self) -> None:
        self.serve(connections=3)
        silent = self.visits(3)
        self.assertIsNotNone(self.visit())
        self.assertEqual([visitor.here for visitor in silent], [False, True, True])

    def test_who_has_reported_keeps_its_place(self) -> None:
        self.serve(connections=3)
        slaves = self.visits(3, reports=True)
        self.assertEqual(self.visits(5), [])
        self.assertEqual(self.refusal, "3 slaves are connected")
        self.places.leave(slaves[0])
        self.assertEqual(len(self.visits(5)), 5, "each in the place of the one before")
        self.assertTrue(all(slave.here for slave in slaves))

    def test_silent_ones_never_take_all_places(self) -> None:
        self.serve(connections=100, silent_connections=10)
        silent = self.visits(100)
        self.assertEqual([visitor.here for visitor in silent], [False] * 90 + [True] * 10)
        slaves = self.visits(90, reports=True)
        self.assertEqual(len(slaves), 90)

    def test_many_idle_ones_of_one_address_cost_no_other_address_a_place(self) -> None:
        self.serve(connections=50)
        java_slave = self.visit("b")
        assert java_slave is not None
        idle = self.visits(500, "a")
        self.assertEqual(sum(visitor.here for visitor in idle), 49)
        self.assertTrue(java_slave.here)
        self.assertIsNotNone(self.visit("c"))
        self.assertTrue(java_slave.here)

    def test_an_address_has_its_share_of_places(self) -> None:
        self.serve(connections=100, connections_per_address=3)
        slaves = self.visits(3, "a", reports=True)
        self.assertIsNone(self.visit("a"))
        self.assertEqual(self.refusal, "its address has 3 slaves")
        self.assertEqual(len(self.visits(3, "b")), 3)
        self.places.leave(slaves[0])
        silent, newer = self.visits(2, "a")
        self.assertEqual((silent.here, newer.here), (False, True))

    def test_one_that_leaves_twice_leaves_one_place(self) -> None:
        self.serve(connections=2)
        first, _ = self.visits(2, reports=True)
        self.places.leave(first)
        self.places.leave(first)
        self.assertEqual(len(self.visits(2, reports=True)), 1)

    def test_an_address_may_come_back_with_all_its_slaves_at_once_and_then_at_a_rate(self) -> None:
        self.serve(connects_at_once=20, connects_per_second=10)
        self.assertEqual(len(self.visits(100, reports=True)), 20)
        self.assertEqual(self.refusal, "its address connects more than 10 times a second")
        self.assertEqual(len(self.visits(1, "b")), 1)
        self.clock.advance(0.5)
        self.assertEqual(len(self.visits(100, reports=True)), 5)
        self.clock.advance(1000)
        self.assertEqual(len(self.visits(100, reports=True)), 20)

    def test_by_default_no_slave_is_pushed_out_by_its_own_address_before_java_reports(self) -> None:
        """A slave keeps its place when a thousand slaves reconnect, or when a peer keeps reconnecting."""
        self.serve()
        for _ in range(3):
            first = self.visit()
            assert first is not None
            for _ in range(JAVA_SILENT_SECONDS * 100):
                self.clock.advance(0.01)
                self.visits(20)
            self.assertTrue(first.here)
            self.clock.advance(1000)

    def test_a_thousand_slaves_of_one_address_are_back_at_once(self) -> None:
        self.serve()
        slaves = self.visits(1000)
        self.clock.advance(JAVA_SILENT_SECONDS)
        self.assertEqual([slave.here for slave in slaves], [True] * 1000)

    def test_what_is_remembered_of_addresses_is_bounded(self) -> None:
        self.serve(connections=10)
        for number in range(3 * rates.MAX_ADDRESSES):
            visitor = self.visit(str(number))
            assert visitor is not None
            self.places.leave(visitor)
        self.assertEqual(len(self.places._rates), rates.MAX_ADDRESSES)
        self.assertEqual((len(self.places._places), len(self.places._silent), len(self.places.slaves)), (0, 0, 0))


class LineLimitTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.told: list[str] = []
        self.lines = LineLimit(self.clock, self.told.append)

    def test_a_storm_is_told_by_a_few_lines_and_a_summary_a_second(self) -> None:
        allowed = 0
        for _ in range(10_000):
            self.clock.advance(0.001)
            allowed += self.lines.allows("connected") + self.lines.allows("gone")
        self.clock.advance(1)
        self.assertLess(allowed, limits.LINES_BURST + 10 * limits.LINES_PER_SECOND + 2)
        self.assertLessEqual(len(self.told), 11)
        counted = sum(int(part.split()[0]) for line in self.told for part in line.split(", "))
        self.assertEqual(counted, 20_000 - allowed)
        self.assertRegex(self.told[1], r"^\d+ connected, \d+ gone$")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_is_still_to_be_told_is_told_at_the_end(self) -> None:
        while self.lines.allows("gone"):
            pass
        self.lines.stop()
        self.assertEqual((self.told, self.clock.getDelayedCalls()), (["1 gone"], []))
        self.lines.stop()
        self.assertEqual(len(self.told), 1)


class WriteSizeTests(SynchronousTestCase):
    def test_the_more_slaves_take_nothing_the_less_waits_for_each(self) -> None:
        size = WriteSize(WRITE_BYTES, 32 * 1024)
        waiting = 0
        for _ in range(2000):
            waiting += size.bytes
            size.paused(1)
        self.assertLess(waiting, 6 * limits.WAITING_BYTES)
        self.assertEqual(size.bytes, 32 * 1024)
        for _ in range(2000):
            size.paused(-1)
        self.assertEqual(size.bytes, WRITE_BYTES)

    def test_a_few_slow_slaves_change_nothing(self) -> None:
        size = WriteSize(WRITE_BYTES, 32 * 1024)
        for _ in range(10):
            size.paused(1)
        self.assertEqual(size.bytes, WRITE_BYTES)

    def test_batches_larger_than_a_write_are_cut(self) -> None:
        self.assertEqual(WriteSize(WRITE_BYTES, 4 * WRITE_BYTES).bytes, WRITE_BYTES)


class FirstReportTests(MasterTestCase):
    """The first report has a deadline of its own."""

    def test_it_may_be_shorter_than_any_other_silence(self) -> None:
        self.serve(self.log, limits=HALimits(first_report_seconds=8))
        _, silent = self.connect()
        _, slave = self.connect()
        self.clock.advance(7)
        slave.deliver(encode_report(1))
        with log_lines() as lines:
            self.clock.advance(1)
        self.assertTrue(silent.aborted)
        self.assertIn("has sent no report for 8 s: closing", lines())
        self.clock.pump([1] * 11)
        self.assertFalse(slave.aborted)

    def test_bytes_that_are_no_report_do_not_put_it_off(self) -> None:
        _, line = self.connect()
        for _ in range(7):
            line.deliver(b"\0")
            self.clock.advance(2.8)
        self.assertFalse(line.disconnecting)
        self.clock.advance(0.5)
        self.assertTrue(line.aborted)


class CrowdTests(MasterTestCase):
    """Many connections that are not slaves, and one slave."""

    @pytest.mark.long
    def test_2000_idle_and_dribbling_connections_do_not_keep_a_slave_out(self) -> None:
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[10])))
        for number in range(1000):
            self.clock.advance(0.01)
            self.connect()
            self.connect()[1].deliver(b"\0" * (number % 8))
        connection, line = self.request(1)
        self.assertEqual(transfers_in(line.take())[-1].end_offset, IMAGE.messages[10])
        self.grow(IMAGE)
        self.assertEqual(transfers_in(line.take())[-1].end_offset, END)
        for _ in range(30):
            self.clock.advance(1)
            line.deliver(encode_report(END))
        self.assertEqual(self.factory.connections, [connection])

    def test_a_slave_of_a_crowded_address_connects_and_the_oldest_idler_goes(self) -> None:
        self.serve(self.log, limits=HALimits(silent_connections=5))
        idle = [self.connect()[1] for _ in range(5)]
        with log_lines() as lines:
            connection, _ = self.request(1)
        self.clock.advance(0)
        self.assertEqual([line.over for line in idle], [True] + [False] * 4)
        self.assertIn("has sent no report yet, and a new connection takes its place: closing", lines())
        self.assertEqual(connection.state, HAConnectionState.TRANSFER)

    def test_one_that_loses_its_place_in_the_tls_handshake_is_closed_when_that_is_done(self) -> None:
        """Until then the protocol has no transport, and the handshake has a deadline of its own."""
        self.serve(self.log, limits=HALimits(silent_connections=1))
        waiting = self.factory.buildProtocol(PEER)
        assert waiting is not None
        self.connect()
        line = LineTransport(self.clock)
        line.attach(waiting)
        self.clock.advance(0)
        self.assertTrue(line.over)
        self.assertNotIn(waiting, self.factory.connections)

    def test_a_refused_slave_is_named_with_the_reason_and_may_come_again(self) -> None:
        self.serve(self.log, limits=HALimits(connects_at_once=1, connects_per_second=2))
        self.request(1)
        with log_lines() as lines:
            self.assertIsNone(self.factory.buildProtocol(PEER))
        self.assertIn("warn: refusing 192.0.2.7:40123: its address connects more than 2 times a second", lines())
        self.connect(peer=OTHER)
        self.clock.advance(0.5)
        self.connect()
        self.assertEqual(len(self.factory.connections), 3)

    def test_a_storm_of_connections_writes_few_lines_and_a_slave_s_own_all_the_same(self) -> None:
        with log_lines() as lines:
            for _ in range(5000):
                self.clock.advance(0.001)
                connection = self.factory.buildProtocol(PEER)
                if connection is not None:
                    line = LineTransport(self.clock)
                    line.attach(connection)
                    line.lose()
            _, slave = self.connect(peer=OTHER)
            slave.deliver(encode_report(1))
            slave.lose()
        self.assertLess(len(lines().splitlines()), 140)
        self.assertRegex(lines(), r"warn: connections without a report, not logged one by one: \d+ ")
        self.assertIn("slave 192.0.2.8:1 asks for 1", lines())
        self.assertIn("slave 192.0.2.8:1 is gone at 1", lines())

    def test_growth_is_offered_to_slaves_only(self) -> None:
        """A put costs no more for connections that have not reported."""
        idle = [self.connect()[0] for _ in range(10)]
        for connection in idle:
            self.patch(connection, "log_grew", lambda: self.fail("it has not asked for anything"))
        self.log.truncate(IMAGE.messages[20])
        _, line = self.request(1)
        line.take()
        append(self.log, IMAGE)
        self.clock.advance(0)
        self.assertEqual(transfers_in(line.take())[-1].end_offset, END)


class ReportFloodTests(MasterTestCase):
    def test_of_thousands_of_reports_in_a_read_only_the_last_is_acted_on(self) -> None:
        _connection, line = self.request(1)
        heard: list[int] = []
        self.patch(self.factory, "slave_reported", lambda progress: heard.append(progress.reported))
        line.deliver(b"".join(encode_report(min(offset, END)) for offset in range(2, 8192)))
        self.assertEqual(heard, [8191])
        line.deliver(encode_report(8191) * 1000)
        self.assertEqual(heard, [8191])

    def test_one_wrong_report_among_thousands_is_noticed(self) -> None:
        connection, line = self.request(1)
        line.deliver(encode_report(500) * 1000 + encode_report(499) + encode_report(500) * 1000)
        self.assertTrue(line.aborted)
        self.assertEqual(connection.state, HAConnectionState.CLOSED)


class InFlightTests(MasterTestCase):
    """What is sent and not acknowledged is bounded, if that is asked for."""

    LIMIT = 400_000

    def setUp(self) -> None:
        super().setUp()
        self.image = make_image([60_000] * 50, segment_size=1 << 20)
        self.serve(memory_log(self.image), 32 * 1024, limits=HALimits(bytes_in_flight=self.LIMIT))

    def test_no_more_is_sent_until_something_is_acknowledged(self) -> None:
        connection, line = self.request(1)
        self.assertEqual(progress_of(connection).sent, 1 + self.LIMIT)
        line.deliver(encode_report(1001))
        self.assertEqual(progress_of(connection).sent, 1001 + self.LIMIT)

    def test_all_arrives_in_the_end(self) -> None:
        connection, line = self.request(1)
        for _ in range(20):
            line.deliver(encode_report(progress_of(connection).sent))
        self.assertEqual(b"\0" + b"".join(frame.body for frame in transfers_in(line.take())), self.image.content)

    def test_heartbeats_go_on(self) -> None:
        _, line = self.request(1)
        line.take()
        self.clock.advance(2.5)
        self.assertEqual(line.take(), heartbeat(1 + self.LIMIT))

    def test_a_slave_that_asks_for_0_is_counted_from_where_it_was_sent_to(self) -> None:
        connection, _ = self.request(0)
        start = self.image.end - self.image.end % (1 << 20)
        self.assertEqual(progress_of(connection).sent, min(self.image.end, start + self.LIMIT))

    def test_an_observer_is_sent_all_by_default(self) -> None:
        """It acknowledges nothing beyond where it began."""
        self.serve(memory_log(self.image), 32 * 1024)
        connection, _ = self.request(1)
        self.assertEqual(progress_of(connection).sent, self.image.end)

    def test_bytes_that_wait_for_many_slow_slaves_are_bounded(self) -> None:
        self.patch(limits, "WAITING_BYTES", 4 * WRITE_BYTES)
        self.serve(memory_log(self.image), 32 * 1024)
        lines = []
        for _ in range(100):
            _, line = self.connect(SlowTransport(self.clock))
            line.deliver(encode_report(1))
            lines.append(line)
        waiting = sum(len(line.value()) for line in lines)
        each = SlowTransport.bufferSize + 32 * (1024 + TRANSFER_HEADER.size)
        self.assertLess(waiting, 6 * 4 * WRITE_BYTES + len(lines) * each)
        for line in lines:
            line.lose()
        self.assertEqual(self.factory.write_size.bytes, WRITE_BYTES)
