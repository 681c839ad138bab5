"""``--observer``: a copy that a SYNC_MASTER must not count as a replica (spec/ha.md 7)."""

from dataclasses import replace

from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.states import ReplicaState
from rmqha.wire.brokerinfo import settling_seconds
from rmqha.wire.transfer import Transfer
from tests.ha.doubles import SEGMENT_SIZE, LineTransport, heartbeat, make_image, reports_in, wire
from tests.ha.slavenode import SlaveNodeTestCase

IMAGE = make_image([300] * 30)
PREFIX = IMAGE.prefix(IMAGE.messages[12])
VIEW = MasterView(0, IMAGE.end, segment_size=SEGMENT_SIZE)
UPSTREAM_LONGEST_WAIT_SECONDS = 5.0
"""syncFlushTimeout, which SYNC_MASTERs up to 4.9.2 wait for; since then it is slaveTimeout, 3 s."""


class ObserverTests(SlaveNodeTestCase):
    def setUp(self) -> None:
        SlaveNodeTestCase.setUp(self)
        self.view = VIEW

    def all_reports(self, line: LineTransport, seconds: float) -> list[int]:
        """What it reports in this time, while the master sends its heartbeats."""
        reports = []
        for _ in range(int(seconds)):
            self.silence(1)
            line.deliver(heartbeat(self.log.max_offset))
            reports += reports_in(line.take())
        return reports

    def test_it_copies_and_proves_all_the_same(self) -> None:
        self.start(observer=True)
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.content(), IMAGE.content)
        self.assertEqual(self.log.verified_offset, IMAGE.end)
        self.assertEqual(self.service.replica.state, ReplicaState.IN_SYNC)

    def test_its_heartbeats_keep_the_offset_where_it_began(self) -> None:
        self.start(observer=True)
        line, request = self.connect()
        self.assertEqual(request, 1)
        line.deliver(wire(IMAGE.transfers(request)))
        reports = self.all_reports(line, 20)
        self.assertEqual(set(reports), {1})
        self.assertGreater(len(reports), 3, "the master must hear of it")

    def test_so_they_do_with_sync_flush(self) -> None:
        self.start(observer=True, flushDiskType="SYNC_FLUSH")
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.log.flushed_offset, IMAGE.end)
        self.assertEqual(set(self.all_reports(line, 20)), {1})

    def test_one_that_is_no_observer_reports_what_it_has(self) -> None:
        self.start()
        line, request = self.connect()
        line.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(reports_in(line.take()), [IMAGE.end])

    def test_an_empty_one_begins_at_once(self) -> None:
        self.start(observer=True)
        self.accept()
        self.assertEqual(self.clock.seconds(), 0)

    def test_one_that_has_bytes_names_them_only_when_nobody_can_wait_for_them_any_more(self) -> None:
        """Its first report would complete what waits at a Java master, for which every report is an acknowledgement."""
        self.start(observer=True)
        line, request = self.connect()
        self.silence(2)
        line.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        came_at = self.clock.seconds()
        self.lose(line)
        line = self.accept()
        self.assertLess(self.clock.seconds(), came_at + 3, "it connects again soon")
        while not (said := line.take()):
            self.silence(0.125)
        self.assertEqual(reports_in(said), [PREFIX.last_message])
        self.assertGreater(self.clock.seconds() - came_at, UPSTREAM_LONGEST_WAIT_SECONDS)
        self.assertLess(self.clock.seconds() - came_at, settling_seconds({}) + 1)

    def test_so_does_one_that_has_just_been_started(self) -> None:
        """Its last bytes may have come the moment before."""
        self.start(PREFIX, observer=True)
        line = self.accept()
        self.silence(UPSTREAM_LONGEST_WAIT_SECONDS)
        self.assertEqual(line.take(), b"")
        self.silence(2)
        self.assertEqual(reports_in(line.take()), [PREFIX.last_message])

    def test_it_waits_as_long_as_the_masters_puts_do(self) -> None:
        self.view = replace(VIEW, settling_seconds=settling_seconds({"slaveTimeout": "20000"}))
        self.start(PREFIX, observer=True)
        line = self.accept()
        self.silence(20)
        self.assertEqual(line.take(), b"")
        self.silence(2)
        self.assertEqual(reports_in(line.take()), [PREFIX.last_message])

    def test_it_waits_twice_its_own_slave_timeout_if_the_master_is_silent(self) -> None:
        self.start(PREFIX, observer=True, slaveTimeout="10000")
        line = self.accept()
        self.silence(10)
        self.assertEqual(line.take(), b"")
        self.silence(11)
        self.assertEqual(reports_in(line.take()), [PREFIX.last_message])

    def test_a_connection_lost_while_it_keeps_quiet_asks_nothing(self) -> None:
        self.start(PREFIX, observer=True)
        line = self.accept()
        asked = len(self.questions)
        self.lose(line)
        self.silence(0.5)
        self.assertEqual((line.take(), len(self.questions)), (b"", asked))

    def test_it_finds_a_diverged_log_as_any_slave(self) -> None:
        other = make_image([300] * 30, seed=7)
        self.start(PREFIX, observer=True)
        line = self.accept()
        self.silence(7)
        (request,) = reports_in(line.take())
        line.deliver(wire([Transfer(request, other.bytes_at(request, request + 200))]))
        self.assertEqual(self.service.replica.state, ReplicaState.DIVERGED)
        self.assertEqual(self.content(), PREFIX.content)
