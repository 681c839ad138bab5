"""When enough slaves hold a message: which reports count, how long puts wait, and how they end."""

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.master.enoughslaves import EnoughSlaves
from rmqha.ha.master.followers import Copies, Followers
from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.protocol import HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.settings.settings import make_settings
from rmqha.store.message import PutMessageStatus
from rmqha.wire.transfer import encode_report
from tests.ha.doubles import PEER, LineTransport, Socket, append, make_image, memory_log

IMAGE = make_image([300] * 30)
HELD = IMAGE.prefix(IMAGE.messages[20])
"""What the master's log holds as a test begins."""
TIMEOUT = 3.0
OK, TIMED_OUT, NOT_AVAILABLE = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)


class ReplicationTestCase(SynchronousTestCase):
    """The table of slaves of a SYNC_MASTER with a log that ends at ``HELD.end``; slaves are known by their names."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.log = memory_log(HELD)
        self.told: list[tuple[str, str, float]] = []
        self.begin()

    def begin(self, confirmed_offset: int = 0, **properties: str) -> None:
        settings = make_settings({"slaveTimeout": str(int(TIMEOUT * 1000)), **properties})
        self.replication = Followers(EnoughSlaves(Copies(self.log, confirmed_offset), settings), settings, self.clock)
        self.slaves: dict[str, SlaveProgress] = {}

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def connect(self, *names: str, at: int = HELD.end) -> None:
        """These slaves ask to begin there."""
        for name in names:
            self.report(name, at)

    def report(self, name: str, offset: int) -> None:
        """A slave that was sent all up to there reports it; its first report is a request."""
        slave = self.slaves.get(name)
        if slave is None:
            segment = self.log.segment_size
            start = offset or self.log.verified_offset - self.log.verified_offset % segment
            self.slaves[name] = SlaveProgress(name, offset, start, offset % segment == 0)
            self.replication.joined(self.slaves[name])
            return
        slave.send(max(slave.sent, offset))
        if slave.report(offset):
            self.replication.reported(slave)

    def forget(self, name: str) -> None:
        """The slave's connection is gone, if there was one."""
        slave = self.slaves.pop(name, None)
        if slave is not None:
            self.replication.forget(slave)

    def wait(self, name: str, next_offset: int) -> Deferred[PutMessageStatus]:
        """Somebody waits for this offset."""
        done = self.replication.wait(next_offset)

        def tell(status: PutMessageStatus) -> PutMessageStatus:
            self.told.append((name, status.name, self.clock.seconds()))
            return status

        return done.addCallback(tell)

    def put(self, number: int) -> Deferred[PutMessageStatus]:
        """The log grows by message ``number`` of the image; somebody waits for it."""
        prefix = IMAGE.prefix(IMAGE.messages[number + 1])
        append(self.log, prefix)
        return self.wait(str(number), prefix.end)

    def end_of(self, number: int) -> int:
        """Where message ``number`` of the image ends."""
        return IMAGE.messages[number + 1]

    def check_told(self, *expected: tuple[str, PutMessageStatus, float]) -> None:
        self.assertEqual(self.told, [(name, status.name, at) for name, status, at in expected])


class CompletionTests(ReplicationTestCase):
    """A slave's report completes what waits up to it, and nothing else."""

    def test_a_report_completes_the_waits_up_to_it_in_the_order_of_their_offsets(self) -> None:
        self.connect("a")
        for number in (20, 21, 22):
            self.put(number)
        self.report("a", self.end_of(20) - 1)
        self.check_told()
        self.report("a", self.end_of(21))
        self.check_told(("20", OK, 0), ("21", OK, 0))
        self.report("a", self.end_of(22))
        self.check_told(("20", OK, 0), ("21", OK, 0), ("22", OK, 0))

    def test_messages_of_one_batch_are_one_wait_for_their_end(self) -> None:
        self.connect("a")
        append(self.log, IMAGE)
        self.wait("batch", IMAGE.end)
        self.report("a", IMAGE.end - 1)
        self.check_told()
        self.report("a", IMAGE.end)
        self.check_told(("batch", OK, 0))

    def test_one_slave_of_several_is_enough(self) -> None:
        self.connect("a", "b")
        self.put(20)
        self.report("b", self.end_of(20))
        self.check_told(("20", OK, 0))

    def test_the_last_of_several_reports_is_what_counts(self) -> None:
        """Reports that come together are handed on one by one."""
        self.connect("a")
        self.put(20)
        for offset in (self.end_of(20) - 2, self.end_of(20) - 1, self.end_of(20)):
            self.report("a", offset)
        self.check_told(("20", OK, 0))

    def test_a_put_made_by_the_answer_to_another_waits_for_its_own_report(self) -> None:
        self.connect("a")
        self.put(20).addCallback(lambda _: self.put(21))
        self.report("a", self.end_of(20))
        self.check_told(("20", OK, 0))
        self.report("a", self.end_of(21))
        self.check_told(("20", OK, 0), ("21", OK, 0))

    def test_an_answer_that_fails_its_caller_holds_up_nobody(self) -> None:
        self.connect("a")
        failed = self.put(20).addCallback(lambda _: 1 // 0)
        self.put(21)
        self.report("a", self.end_of(21))
        self.check_told(("20", OK, 0), ("21", OK, 0))
        self.failureResultOf(failed, ZeroDivisionError)

    def test_a_wait_that_is_cancelled_is_forgotten(self) -> None:
        self.connect("a")
        cancelled = self.put(20)
        self.put(21)
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.report("a", self.end_of(21))
        self.check_told(("21", OK, 0))

    def test_what_is_confirmed_already_is_not_waited_for(self) -> None:
        self.connect("a")
        append(self.log, IMAGE)
        self.report("a", IMAGE.end)
        self.wait("late", IMAGE.end)
        self.check_told(("late", OK, 0))

    def test_a_thousand_slaves_are_told_apart(self) -> None:
        """Of 1,000 slaves 600 hold the message when the 600th says so."""
        self.begin(inSyncReplicas="601")
        names = [f"slave {number}" for number in range(1000)]
        self.connect(*names)
        self.put(20)
        for name in names[:599]:
            self.report(name, self.end_of(20))
        self.check_told()
        for name in names[:300]:
            self.forget(name)
        for name in names[600:900]:
            self.report(name, self.end_of(20))
        self.check_told()
        self.report(names[900], self.end_of(20))
        self.check_told(("20", OK, 0))
        for name in names:
            self.forget(name)
        self.wait("later", self.end_of(20) + 1)
        self.check_told(("20", OK, 0), ("later", NOT_AVAILABLE, 0))


class DeadlineTests(ReplicationTestCase):
    """Each wait ends at its own deadline."""

    def test_without_a_report_a_wait_ends_at_slave_timeout_to_the_moment(self) -> None:
        self.connect("a")
        self.put(20)
        self.clock.advance(TIMEOUT - 0.001)
        self.check_told()
        self.clock.advance(0.001)
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_a_wait_is_never_behind_a_slower_one(self) -> None:
        """Upstream completes in order: one that times out delays all behind it (spec/ha.md 7)."""
        self.connect("a")
        self.put(20)
        self.clock.advance(1)
        self.put(21)
        self.clock.advance(1)
        self.put(22)
        self.clock.advance(1)
        self.check_told(("20", TIMED_OUT, 3))
        self.report("a", self.end_of(21))
        self.check_told(("20", TIMED_OUT, 3), ("21", OK, 3))
        self.clock.advance(2)
        self.check_told(("20", TIMED_OUT, 3), ("21", OK, 3), ("22", TIMED_OUT, 5))

    def test_a_report_after_the_deadline_changes_nothing_that_was_said(self) -> None:
        self.connect("a")
        self.put(20)
        self.clock.advance(TIMEOUT)
        self.report("a", self.end_of(20))
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_giving_up_ends_all_waits_as_at_their_deadlines(self) -> None:
        self.connect("a")
        self.put(20)
        self.put(21)
        self.replication.give_up()
        self.check_told(("20", TIMED_OUT, 0), ("21", TIMED_OUT, 0))


class NearnessTests(ReplicationTestCase):
    """Nobody waits for slaves that are not there, or too far behind."""

    def test_no_slave_is_said_at_once(self) -> None:
        self.put(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_a_slave_that_is_gone_is_no_slave(self) -> None:
        self.connect("a", at=IMAGE.messages[10])
        self.report("a", HELD.end)
        self.forget("a")
        self.put(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_what_waits_when_the_slave_goes_waits_for_its_return_until_the_deadline(self) -> None:
        self.connect("a")
        for number in (20, 21):
            self.put(number)
        self.forget("a")
        self.clock.advance(1)
        self.put(22)
        self.check_told(("22", NOT_AVAILABLE, 1))
        self.connect("a", at=HELD.end)
        self.report("a", self.end_of(20))
        self.check_told(("22", NOT_AVAILABLE, 1), ("20", OK, 1))
        self.clock.advance(2)
        self.check_told(("22", NOT_AVAILABLE, 1), ("20", OK, 1), ("21", TIMED_OUT, 3))

    def test_a_slave_that_never_reported_is_forgotten_without_a_word(self) -> None:
        self.forget("a scanner")
        self.put(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_a_slave_is_near_below_ha_slave_fallbehind_max_and_not_at_it(self) -> None:
        behind = self.end_of(20) - IMAGE.messages[10]
        for limit, status in ((behind, NOT_AVAILABLE), (behind + 1, TIMED_OUT)):
            self.setUp()
            self.begin(haSlaveFallbehindMax=str(limit))
            self.connect("a", at=IMAGE.messages[10])
            self.put(20)
            self.clock.advance(TIMEOUT)
            self.check_told(("20", status, 0 if status is NOT_AVAILABLE else TIMEOUT))

    def test_a_slave_that_catches_up_is_near_again(self) -> None:
        self.begin(haSlaveFallbehindMax="2000")
        self.connect("a", at=IMAGE.messages[2])
        self.put(20)
        self.report("a", self.end_of(20))
        self.put(21)
        self.report("a", self.end_of(21))
        self.check_told(("20", NOT_AVAILABLE, 0), ("21", OK, 0))

    def test_a_silent_slave_is_waited_for(self) -> None:
        """As upstream does: it is connected, and not far behind (spec/ha.md 7)."""
        self.connect("a", at=0)
        self.put(20)
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))


class RequestTests(ReplicationTestCase):
    """The first report of a connection asks, and proves nothing."""

    def test_a_request_behind_what_is_waited_for_completes_nothing(self) -> None:
        """A slave with a log of its own, longer than where ours was, asks for its end: it has other bytes there."""
        self.connect("paused")
        self.put(20)
        self.put(21)
        self.connect("diverged", at=self.end_of(21))
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT), ("21", TIMED_OUT, TIMEOUT))
        self.assertEqual(self.replication.confirmed_offset, 0)

    def test_a_request_is_no_second_slaves_word_for_what_the_first_acknowledges(self) -> None:
        self.begin(inSyncReplicas="3")
        self.connect("a")
        append(self.log, IMAGE)
        self.connect("b", at=IMAGE.end)
        self.wait("put", IMAGE.end)
        self.report("a", IMAGE.end)
        self.clock.advance(TIMEOUT)
        self.check_told(("put", TIMED_OUT, TIMEOUT))

    def test_the_report_after_the_request_counts_for_all_before_it(self) -> None:
        self.connect("paused")
        self.put(20)
        self.put(21)
        self.connect("a", at=self.end_of(20))
        self.report("a", self.end_of(20) + 10)
        self.check_told(("20", OK, 0))
        self.report("a", self.end_of(21))
        self.check_told(("20", OK, 0), ("21", OK, 0))

    def test_a_new_connection_of_a_slave_begins_with_a_request_again(self) -> None:
        self.connect("a")
        self.put(20)
        self.forget("a")
        self.connect("a", at=self.end_of(20))
        self.check_told()
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))


class SeveralSlavesTests(ReplicationTestCase):
    """inSyncReplicas and minInSyncReplicas, in both of which the master is one."""

    def test_in_sync_replicas_is_how_many_must_hold_a_message_the_master_among_them(self) -> None:
        self.begin(inSyncReplicas="3")
        self.connect("a", "b", "c")
        self.put(20)
        self.put(21)
        self.report("a", self.end_of(21))
        self.check_told()
        self.report("c", self.end_of(20))
        self.check_told(("20", OK, 0))
        self.report("b", self.end_of(21))
        self.check_told(("20", OK, 0), ("21", OK, 0))

    def test_fewer_slaves_than_needed_are_none(self) -> None:
        self.begin(inSyncReplicas="3")
        self.connect("a")
        self.put(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_as_many_must_be_near_as_must_hold_it(self) -> None:
        self.begin(inSyncReplicas="3", haSlaveFallbehindMax="2000")
        self.connect("a")
        self.connect("b", at=IMAGE.messages[2])
        self.put(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_what_a_slave_acknowledged_is_forgotten_with_it(self) -> None:
        self.begin(inSyncReplicas="3")
        self.connect("a", "b", "c")
        self.put(20)
        self.report("a", self.end_of(20))
        self.forget("a")
        self.report("b", self.end_of(20))
        self.check_told()
        self.report("c", self.end_of(20))
        self.check_told(("20", OK, 0))

    def test_with_in_sync_replicas_1_nobody_waits_and_nothing_is_confirmed(self) -> None:
        self.begin(inSyncReplicas="1")
        self.put(20)
        self.check_told(("20", OK, 0))
        self.connect("a")
        self.report("a", self.end_of(20))
        self.assertEqual(self.replication.confirmed_offset, 0)

    def test_puts_are_let_in_with_min_in_sync_replicas_1_though_no_slave_is_there(self) -> None:
        self.assertTrue(self.replication.enough_for_puts())

    def test_puts_are_let_in_while_enough_slaves_are_near(self) -> None:
        self.begin(minInSyncReplicas="3", haSlaveFallbehindMax="2000")
        enough = [self.replication.enough_for_puts()]
        self.connect("a")
        enough.append(self.replication.enough_for_puts())
        self.connect("b", at=IMAGE.messages[2])
        self.report("b", HELD.end - 2000)
        enough.append(self.replication.enough_for_puts())
        self.report("b", HELD.end - 1999)
        enough.append(self.replication.enough_for_puts())
        self.forget("a")
        enough.append(self.replication.enough_for_puts())
        self.assertEqual(enough, [False, False, False, True, False])

    def test_an_observer_is_no_replica_for_puts_however_near(self) -> None:
        self.begin(minInSyncReplicas="2")
        self.connect("observer", at=IMAGE.messages[19])
        self.assertFalse(self.replication.enough_for_puts())

    def test_a_slave_that_asks_for_the_end_counts_for_puts_before_it_acknowledges(self) -> None:
        """As an empty slave of an empty master, and a Java slave in sync: else no first put would ever be let in."""
        self.begin(minInSyncReplicas="2")
        self.connect("a")
        self.assertTrue(self.replication.enough_for_puts())
        self.put(20)
        self.report("a", self.end_of(20))
        self.assertTrue(self.replication.enough_for_puts())


class ConfirmedTests(ReplicationTestCase):
    """``confirmed_offset``: what readers outside may take for safe."""

    def test_it_begins_as_given_and_only_grows(self) -> None:
        self.begin(confirmed_offset=IMAGE.messages[10])
        self.connect("a", at=IMAGE.messages[2])
        seen = []
        for number in (4, 9, 10, 12, 20):
            self.report("a", IMAGE.messages[number])
            seen.append(self.replication.confirmed_offset)
        self.forget("a")
        self.connect("b", at=IMAGE.messages[3])
        self.report("b", IMAGE.messages[15])
        seen.append(self.replication.confirmed_offset)
        expected = [IMAGE.messages[number] for number in (10, 10, 10, 12, 20, 20)]
        self.assertEqual(seen, expected)

    def test_it_is_what_as_many_slaves_hold_as_are_needed(self) -> None:
        self.begin(inSyncReplicas="3")
        self.connect("a", "b", "c", at=1)
        self.report("a", IMAGE.messages[9])
        self.assertEqual(self.replication.confirmed_offset, 0)
        self.report("b", IMAGE.messages[5])
        self.assertEqual(self.replication.confirmed_offset, IMAGE.messages[5])
        self.report("c", IMAGE.messages[7])
        self.assertEqual(self.replication.confirmed_offset, IMAGE.messages[7])
        for name in ("a", "c"):
            self.forget(name)
        self.connect("d", at=IMAGE.messages[6])
        self.report("d", IMAGE.messages[8])
        self.assertEqual(self.replication.confirmed_offset, IMAGE.messages[7], "what two held once is not taken back")


class WireTestCase(ReplicationTestCase):
    """With the master's end in front, as a node has it: reports are bytes from peers."""

    def setUp(self) -> None:
        ReplicationTestCase.setUp(self)
        self.transports: list[LineTransport | Socket] = []
        self.factories: list[HAMasterFactory] = []
        self.begin_with()

    def begin_with(self, **properties: str) -> None:
        """A master with these settings."""
        self.begin(0, **properties)
        self.factory = HAMasterFactory(self.log, self.clock, MasterOptions(1000), [self.replication])
        self.factory.doStart()
        self.factories.append(self.factory)

    def tearDown(self) -> None:
        self.clock.advance(0)
        for transport in self.transports:
            transport.lose()
        for factory in self.factories:
            factory.doStop()
        ReplicationTestCase.tearDown(self)

    def slave(self, *offsets: int) -> tuple[HAMasterProtocol, LineTransport]:
        """A slave connects and reports these offsets: the first one in a read of its own."""
        connection = self.factory.buildProtocol(PEER)
        assert connection is not None
        transport = LineTransport(self.clock)
        self.transports.append(transport)
        transport.attach(connection)
        self.more(transport, *offsets[:1])
        self.more(transport, *offsets[1:])
        return connection, transport

    def more(self, transport: LineTransport, *offsets: int) -> None:
        transport.deliver(b"".join(encode_report(offset) for offset in offsets))

    def send(self, number: int) -> None:
        """A put, as far as the slaves' transports."""
        self.put(number)
        self.clock.advance(0)


class WireTests(WireTestCase):
    """Whose bytes answer a put."""

    def test_a_slaves_report_answers_the_put(self) -> None:
        _, slave = self.slave(HELD.end)
        self.send(20)
        self.more(slave, self.end_of(20))
        self.check_told(("20", OK, 0))

    def test_a_first_report_out_of_range_is_no_slave_and_completes_nothing(self) -> None:
        self.slave(HELD.end)
        self.send(20)
        for bogus in (-1, -(2**63), 2**63 - 1, self.end_of(20) + 1, int.from_bytes(b"GET / HT")):
            _, peer = self.slave(bogus, self.end_of(20))
            self.assertTrue(peer.aborted, bogus)
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_a_peer_refused_at_its_first_report_is_not_waited_for(self) -> None:
        self.slave(HELD.end + 1)
        self.send(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_an_acknowledgement_of_what_was_never_sent_completes_nothing(self) -> None:
        _, slave = self.slave(HELD.end)
        self.send(20)
        self.more(slave, self.end_of(20) + 1)
        self.assertTrue(slave.aborted)
        self.more(slave, self.end_of(20))
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_an_acknowledgement_that_goes_back_ends_the_connection(self) -> None:
        _, slave = self.slave(HELD.end)
        self.send(20)
        self.more(slave, self.end_of(20))
        self.more(slave, HELD.end)
        self.assertTrue(slave.aborted)
        self.clock.advance(0)
        self.send(21)
        self.check_told(("20", OK, 0), ("21", NOT_AVAILABLE, 0))

    def test_a_heartbeat_is_the_last_report_again_and_completes_nothing_more(self) -> None:
        """So an observer's reports look, and those of a slave that was sent nothing yet."""
        self.slave(HELD.end)
        self.send(20)
        _, observer = self.slave(self.end_of(20))
        for _ in range(3):
            self.more(observer, self.end_of(20))
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))
        self.assertEqual(self.replication.confirmed_offset, 0)

    def test_reports_that_come_together_after_the_request_are_told_apart(self) -> None:
        self.slave(HELD.end)
        self.send(20)
        self.slave(IMAGE.messages[19], HELD.end, self.end_of(20))
        self.check_told(("20", OK, 0))

    def test_an_acknowledgement_in_the_read_of_the_request_completes_nothing(self) -> None:
        """Nothing had been sent when it came: it is a lie."""
        self.slave(HELD.end)
        self.send(20)
        for request in (1, HELD.end, IMAGE.messages[19]):
            _, liar = self.slave()
            self.more(liar, request, self.end_of(20))
            self.assertTrue(liar.aborted)
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_what_still_waits_in_our_transport_cannot_be_acknowledged(self) -> None:
        """It has not left this machine."""
        connection = self.factory.buildProtocol(PEER)
        assert connection is not None
        socket = Socket(self.clock)
        socket.attach(connection)
        self.transports.append(socket)
        socket.deliver(encode_report(HELD.end))
        self.send(20)
        socket.deliver(encode_report(HELD.end))  # a heartbeat
        self.assertFalse(socket.aborted)
        socket.deliver(encode_report(self.end_of(20)))
        self.assertTrue(socket.aborted)
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_a_lost_connection_is_forgotten(self) -> None:
        _, slave = self.slave(HELD.end)
        slave.lose()
        self.send(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_a_slave_dropped_for_its_silence_is_forgotten(self) -> None:
        self.slave(HELD.end)
        self.clock.pump([1.0] * 21)
        self.send(20)
        self.check_told(("20", NOT_AVAILABLE, 21))

    def test_a_slave_that_says_nothing_at_all_is_no_slave(self) -> None:
        self.slave()
        self.send(20)
        self.check_told(("20", NOT_AVAILABLE, 0))

    def test_one_slave_that_breaks_the_rules_takes_nothing_from_another(self) -> None:
        _, good = self.slave(HELD.end)
        _, bad = self.slave(HELD.end)
        self.send(20)
        self.more(bad, 2**62)
        self.clock.advance(0)
        self.more(good, self.end_of(20))
        self.check_told(("20", OK, 0))


class HalfOpenTests(WireTestCase):
    """A slave that came again while its last connection seems to live: one machine, counted once."""

    def setUp(self) -> None:
        super().setUp()
        self.begin_with(inSyncReplicas="3")

    def test_what_a_slave_acknowledged_on_its_last_connection_is_no_second_slaves_word(self) -> None:
        _, last = self.slave(HELD.messages[10], HELD.end)
        self.slave(HELD.messages[10], HELD.end)  # another slave, which stays silent from here on
        self.send(20)
        self.more(last, self.end_of(20))
        _, again = self.slave(HELD.messages[10])
        self.more(again, self.end_of(20))
        self.check_told()
        self.clock.advance(TIMEOUT)
        self.check_told(("20", TIMED_OUT, TIMEOUT))

    def test_a_doubted_connection_counts_only_beyond_what_it_had_been_sent(self) -> None:
        """It may be the last connection of the slave that came again: its late reports prove no second copy."""
        self.slave(HELD.end)  # another slave, which stays silent from here on
        _, last = self.slave(HELD.messages[10], HELD.end)
        self.send(20)
        _, again = self.slave(HELD.messages[10])
        self.more(again, self.end_of(20))
        self.more(last, self.end_of(20))  # sent before the other came
        self.check_told()
        self.assertEqual(self.replication.confirmed_offset, 0)
        self.send(21)
        self.more(again, self.end_of(21))
        self.check_told()
        self.more(last, self.end_of(21))
        self.check_told(("20", OK, 0), ("21", OK, 0))

    def test_two_slaves_of_one_address_count_once_both_hold_what_was_sent_since(self) -> None:
        _, first = self.slave(HELD.messages[10], HELD.end)
        _, second = self.slave(HELD.messages[10], HELD.end)
        self.send(20)
        for slave in (first, second):
            self.more(slave, self.end_of(20))
        self.check_told(("20", OK, 0))
