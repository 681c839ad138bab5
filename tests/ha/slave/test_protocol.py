"""The slave's end of a connection: when it reports what, and how the connection ends."""

from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.protocol import LEAST_READ_BYTES, READ_BYTES, ConnectionState, HASlaveFactory, HASlaveProtocol
from rmqha.ha.slave.replica import Ahead, CorruptTransfer, Diverged, Gap, MasterView, PeerBreach, Replica, StartFrom
from rmqha.ha.slave.states import ReplicaState
from rmqha.testing.memory import MemoryCommitLog
from rmqha.wire.transfer import TRANSFER_HEADER, Transfer
from tests.ha.doubles import (
    ConnectionOwner,
    LogImage,
    content_of,
    heartbeat,
    log_lines,
    make_image,
    memory_log,
    reports_in,
    wire,
)

IMAGE = make_image([300] * 30)
VIEW = MasterView(0, IMAGE.end)


class SlaveProtocolTestCase(SynchronousTestCase):
    """A slave on a string transport and a clock; ``self.asked`` is what it waits for before its first report."""

    def start(self, image: LogImage | None = None, log: MemoryCommitLog | None = None) -> None:
        """Connect a slave that holds the image."""
        self.clock = Clock()
        self.log = memory_log(image) if log is None else log
        self.questions_cancelled = 0
        self.asked: Deferred[MasterView | None] = Deferred(self.count_cancelled)
        self.durable: Callable[[], int] = lambda: self.log.max_offset
        self.failures: list[Failure] = []
        self.losses = 0
        self.replica = Replica(self.log, StartFrom(), lambda state, reason: None)
        self.slave = HASlaveProtocol(
            self.replica,
            self.log,
            self.clock,
            ConnectionOwner(
                ask=lambda: self.asked,
                completed=lambda: self.slave.report_progress(),
                durable=lambda: self.durable(),
                given_up=self.failures.append,
                lost=self.lose,
            ),
        )
        self.transport = StringTransport()
        self.slave.makeConnection(self.transport)
        self.addCleanup(self.end)

    def count_cancelled(self, question: object) -> None:
        self.questions_cancelled += 1

    def lose(self) -> None:
        self.losses += 1
        self.replica.connection_lost()

    def end(self) -> None:
        """The connection ends, and leaves nothing on the clock."""
        if not self.losses:
            self.slave.connectionLost(Failure(ConnectionLost()))
        self.assertEqual(self.losses, 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def reports(self) -> list[int]:
        """The reports since the last call."""
        reports = reports_in(self.transport.value())
        self.transport.clear()
        return reports

    def assert_gave_up(self, kind: type[Exception], text: str) -> None:
        """The slave ended the connection itself, for one reason."""
        self.assertTrue(self.transport.disconnected, "the connection is to be aborted")
        (failure,) = self.failures
        self.assertIsInstance(failure.value, kind)
        self.assertIn(text, str(failure.value))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def assert_open(self) -> None:
        """The connection stands, and nothing was complained of."""
        self.assertEqual(self.failures, [])
        self.assertFalse(self.transport.disconnecting)


class HandshakeTests(SlaveProtocolTestCase):
    """Nothing is said before it is known what can be asked for."""

    def test_the_first_report_waits_for_what_is_known_of_the_master(self) -> None:
        self.start()
        self.clock.advance(100)
        self.assertEqual(self.reports(), [])
        self.asked.callback(MasterView(8192, 9000))
        self.assertEqual(self.reports(), [8192])

    def test_it_goes_on_when_nothing_is_known(self) -> None:
        self.start()
        self.asked.callback(None)
        self.assertEqual(self.reports(), [1])

    def test_a_verdict_of_the_first_look_ends_the_connection_without_a_report(self) -> None:
        self.start(IMAGE)
        self.asked.callback(MasterView(0, 0))
        self.assert_gave_up(Ahead, f"{IMAGE.end} bytes before")
        self.assertEqual(self.reports(), [])

    def test_a_connection_goes_through_its_states(self) -> None:
        self.start(IMAGE)
        states = [self.slave.state]
        self.asked.callback(VIEW)
        states.append(self.slave.state)
        self.slave.dataReceived(b"\0")
        states.append(self.slave.state)
        self.slave.connectionLost(Failure(ConnectionLost()))
        states.append(self.slave.state)
        self.assertEqual([state.name for state in states], ["ASKING", "REQUESTED", "RECEIVING", "ENDED"])

    def test_other_moves_are_refused(self) -> None:
        order = list(ConnectionState)
        self.start(IMAGE)
        for old in order:
            for new in order:
                self.slave.state = old
                is_next = order.index(new) == order.index(old) + 1
                is_end = new is ConnectionState.ENDED and old not in (ConnectionState.NEW, ConnectionState.ENDED)
                with self.subTest(old=old, new=new):
                    if is_next or is_end:
                        self.slave._move(new)
                    else:
                        self.assertRaises(ValueError, self.slave._move, new)
        self.slave.state = ConnectionState.ASKING

    def test_a_connection_lost_while_asking_cancels_the_question(self) -> None:
        """Otherwise a stopped slave would continue its requests, and probe the master again."""
        self.start()
        self.slave.connectionLost(Failure(ConnectionLost()))
        self.assertEqual(self.questions_cancelled, 1)
        self.assertEqual((self.reports(), self.failures), ([], []))

    def test_a_frame_before_our_first_report_is_refused(self) -> None:
        for frame in (heartbeat(0), heartbeat(IMAGE.end), wire(IMAGE.transfers())):
            self.start(IMAGE)
            self.slave.dataReceived(frame)
            self.assert_gave_up(PeerBreach, "bytes before our first report")
            self.assertEqual(content_of(self.log), IMAGE.content)

    def test_reads_are_large_while_much_comes(self) -> None:
        """Proving many records at once is what makes it cheap."""
        self.start(log=memory_log(segment_size=1 << 22))
        self.asked.callback(MasterView(1 << 22, 1 << 23))
        self.assertEqual(vars(self.transport)["bufferSize"], LEAST_READ_BYTES)
        frames = wire(make_image([300] * 8000, segment_size=1 << 22, start=1 << 22).transfers())
        at = 0
        sizes = []
        while at < len(frames):
            sizes.append(size := vars(self.transport)["bufferSize"])
            self.slave.dataReceived(frames[at : at + size])
            at += size
        self.assertEqual(sizes, [LEAST_READ_BYTES, READ_BYTES, READ_BYTES])
        self.assert_open()
        self.slave.dataReceived(heartbeat(self.log.verified_offset))
        self.assertEqual(vars(self.transport)["bufferSize"], LEAST_READ_BYTES)

    def test_the_factory_remembers_the_connection_it_built_last(self) -> None:
        self.start()
        factory = HASlaveFactory(lambda: self.slave)
        self.assertIsNone(factory.connection)
        self.assertIs(factory.buildProtocol(None), self.slave)
        self.assertIs(factory.connection, self.slave)


class ReportTests(SlaveProtocolTestCase):
    """What is reported of what has come."""

    def setUp(self) -> None:
        self.start()
        self.asked.callback(VIEW)
        self.reports()

    def test_one_read_of_many_frames_is_one_report(self) -> None:
        self.slave.dataReceived(wire(IMAGE.transfers(1, batch_bytes=50)))
        self.assertEqual(self.reports(), [IMAGE.end])

    def test_a_read_that_completes_no_record_is_not_reported(self) -> None:
        self.slave.dataReceived(wire(IMAGE.transfers(1, IMAGE.messages[1] - 1)))
        self.assertEqual(self.reports(), [])
        self.slave.dataReceived(wire(IMAGE.transfers(IMAGE.messages[1] - 1, IMAGE.messages[1] + 1)))
        self.assertEqual(self.reports(), [IMAGE.messages[1]])

    @pytest.mark.long
    def test_bytes_one_by_one_make_the_same_log_and_report_the_records_of_each_frame(self) -> None:
        frames = IMAGE.transfers(1, batch_bytes=250)
        for byte in wire(frames):
            self.slave.dataReceived(bytes([byte]))
        self.assertEqual(content_of(self.log), IMAGE.content)
        proved = {max(offset for offset in IMAGE.boundaries if offset <= frame.end_offset) for frame in frames}
        self.assertEqual(self.reports(), sorted(proved - {0}))

    def test_a_heartbeat_is_not_answered(self) -> None:
        self.slave.dataReceived(heartbeat(1))
        self.assertEqual(self.reports(), [])

    def test_no_report_goes_beyond_what_is_on_disk(self) -> None:
        """flushDiskType=SYNC_FLUSH: the flush that follows the read lets the report go."""
        flushed = 0
        self.durable = lambda: flushed
        self.slave.dataReceived(wire(IMAGE.transfers(1)))
        self.assertEqual(self.reports(), [])
        flushed = IMAGE.messages[3] + 7
        self.slave.report_progress()
        self.assertEqual(self.reports(), [flushed])
        flushed = IMAGE.end
        self.slave.report_progress()
        self.slave.report_progress()
        self.assertEqual(self.reports(), [IMAGE.end])

    def test_a_gone_connection_is_not_reported_to(self) -> None:
        self.slave.dataReceived(wire(IMAGE.transfers(1)))
        self.slave.connectionLost(Failure(ConnectionLost()))
        self.reports()
        self.slave.report_progress()
        self.assertEqual(self.reports(), [])


class HeartbeatTests(SlaveProtocolTestCase):
    """The slave says that it lives, and judges the master's silence."""

    def setUp(self) -> None:
        self.start()
        self.asked.callback(VIEW)
        self.reports()

    def hear(self, data: bytes, every: float, times: int) -> None:
        for at in range(times):
            self.clock.advance(every)
            self.slave.dataReceived(data[at : at + 1])

    def test_heartbeats_repeat_the_last_report_every_half_interval(self) -> None:
        self.slave.dataReceived(wire(IMAGE.transfers(1, IMAGE.messages[4] + 9)))
        self.reports()
        told = []
        for second in range(1, 16):
            self.clock.advance(0.5)
            told += [(second / 2, report) for report in self.reports()]
        self.assertEqual(told, [(at, IMAGE.messages[4]) for at in (2.5, 5.0, 7.5)])

    def test_the_first_report_is_what_is_repeated_while_nothing_has_come(self) -> None:
        self.clock.advance(2.5)
        self.assertEqual(self.reports(), [1])

    def test_a_report_replaces_a_heartbeat_but_no_pause_exceeds_the_interval(self) -> None:
        self.clock.advance(1)
        self.slave.dataReceived(wire(IMAGE.transfers(1)))
        self.assertEqual(self.reports(), [IMAGE.end])
        self.clock.advance(1.5)
        self.assertEqual(self.reports(), [])
        self.clock.advance(2.5)
        self.assertEqual(self.reports(), [IMAGE.end])

    def test_a_master_silent_for_the_housekeeping_interval_is_left(self) -> None:
        """Our own writes are not a sign that the master lives."""
        for _ in range(159):
            self.clock.advance(0.125)
        self.assert_open()
        self.assertEqual(self.reports(), [1] * 7)
        self.clock.advance(0.125)
        self.assert_gave_up(PeerBreach, "nothing came from the master for 20 s")

    def test_a_master_that_dribbles_one_frame_byte_by_byte_is_heard(self) -> None:
        self.hear(wire(IMAGE.transfers(1)), every=19, times=400)
        self.assert_open()
        self.assertEqual(self.log.max_offset, 1)

    def test_heartbeats_keep_the_connection(self) -> None:
        self.slave.dataReceived(wire(IMAGE.transfers(1)))
        for _ in range(10):
            self.clock.advance(19)
            self.slave.dataReceived(heartbeat(IMAGE.end))
        self.assert_open()

    def test_the_master_may_be_silent_as_long_as_we_have_asked_nothing(self) -> None:
        self.end()
        self.start()
        self.clock.advance(1000)
        self.assert_open()
        self.asked.callback(VIEW)
        self.clock.advance(19)
        self.assert_open()


class EndTests(SlaveProtocolTestCase):
    """Every way in which a connection ends."""

    def setUp(self) -> None:
        self.start()
        self.asked.callback(VIEW)
        self.reports()

    def test_bytes_that_are_no_frames_abort(self) -> None:
        self.slave.dataReceived(TRANSFER_HEADER.pack(1, -1))
        self.assert_gave_up(PeerBreach, "body size of -1 bytes")

    def test_a_damaged_record_aborts_and_what_was_sound_before_it_stays(self) -> None:
        damaged = IMAGE.with_byte_changed(IMAGE.messages[5] + 100)
        self.slave.dataReceived(wire(damaged.transfers(1)))
        self.assert_gave_up(CorruptTransfer, f"for {IMAGE.messages[5]} is not a valid record")
        self.end()
        self.assertEqual(content_of(self.log), IMAGE.prefix(IMAGE.messages[5]).content)

    def test_nothing_is_taken_after_the_end(self) -> None:
        self.slave.dataReceived(TRANSFER_HEADER.pack(1, -1))
        self.slave.dataReceived(wire(IMAGE.transfers(1)))
        self.clock.advance(100)
        self.assertEqual((self.log.max_offset, self.reports(), len(self.failures)), (1, [], 1))

    def test_a_disk_that_refuses_is_told_of_and_nothing_reported(self) -> None:
        class FullLog(MemoryCommitLog):
            def append_data(self, offset: int, *pieces: bytes | memoryview) -> None:
                if offset + sum(len(piece) for piece in pieces) > IMAGE.messages[4]:
                    raise OSError(28, "No space left on device")
                super().append_data(offset, *pieces)

        self.end()
        self.start(log=FullLog())
        self.asked.callback(VIEW)
        self.slave.dataReceived(wire(IMAGE.transfers(1, batch_bytes=100)))
        self.assert_gave_up(OSError, "No space left on device")
        self.assertEqual(self.reports(), [1])

    def test_a_disk_that_refuses_at_the_start_is_told_of(self) -> None:
        class ReadOnlyLog(MemoryCommitLog):
            def begin_at(self, offset: int) -> None:
                raise OSError(30, "Read-only file system")

        self.end()
        self.start(log=ReadOnlyLog())
        self.asked.callback(VIEW)
        self.assert_gave_up(OSError, "Read-only file system")

    def test_a_look_that_finds_a_gap_ends_the_connection(self) -> None:
        self.slave.dataReceived(heartbeat(1))
        self.slave.look(MasterView(4096, 9000), 0)
        self.assert_gave_up(Gap, "starts at 4096")
        self.slave.look(MasterView(4096, 9000), 0)
        self.assertEqual(len(self.failures), 1)

    def test_a_look_before_the_first_report_is_for_nothing(self) -> None:
        self.end()
        self.start(IMAGE)
        self.slave.look(MasterView(0, 0), IMAGE.end)
        self.assert_open()

    def test_a_lost_connection_says_why_and_is_no_fault_of_ours(self) -> None:
        with log_lines() as lines:
            self.slave.connectionLost(Failure(ConnectionLost()))
        self.assertIn("info: the connection to the master is gone: Connection to the other side was lost", lines())
        self.assertEqual(self.failures, [])
        self.assertEqual(self.replica.state, ReplicaState.CONNECTING)

    def test_a_diverged_overlap_is_told_before_anything_is_appended(self) -> None:
        self.end()
        self.start(IMAGE)
        self.asked.callback(VIEW)
        other = make_image([300] * 31, seed=2)
        self.slave.dataReceived(wire(other.transfers(IMAGE.last_message)))
        self.assert_gave_up(Diverged, "the master's byte at")
        self.assertEqual(content_of(self.log), IMAGE.content)

    def test_a_frame_after_the_refused_one_in_the_same_read_is_not_looked_at(self) -> None:
        frames = [Transfer(5, b"x"), *IMAGE.transfers(1)]
        self.slave.dataReceived(wire(frames))
        self.assert_gave_up(PeerBreach, "a frame at 5 where 1 is next")
        self.assertEqual(self.log.max_offset, 1)
