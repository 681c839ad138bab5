"""Rates: they are exact over any two seconds, shared in turns, and other work continues meanwhile."""

from random import Random

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission.throttle import ReceiveThrottle, SendThrottle
from rmqha.ha.master.protocol import HAConnectionState, HAMasterProtocol
from rmqha.ha.slave.protocol import ConnectionOptions, HASlaveProtocol
from rmqha.ha.slave.replica import MasterView, Replica, StartFrom
from rmqha.testing.memory import MemoryCommitLog
from rmqha.wire.transfer import TRANSFER_HEADER, Transfer, encode_report
from tests.ha.doubles import (
    ConnectionOwner,
    LineTransport,
    heartbeat,
    make_image,
    memory_log,
    progress_of,
    transfers_in,
    wire,
)
from tests.ha.masternode import MasterTestCase

KIB, MIB = 1024, 1024 * 1024
RATES = (KIB, 10 * KIB, 64 * KIB, MIB, 10 * MIB, 100 * MIB, 1024 * MIB)
WRITE_BYTES = 512 * KIB
PARTS = 0.05


def most_in_any_window(arrivals: list[tuple[float, int]], seconds: float) -> int:
    """The maximum number of bytes that arrived within any period of this many seconds."""
    most = held = first = 0
    for now, size in arrivals:
        held += size
        while arrivals[first][0] < now - seconds:
            held -= arrivals[first][1]
            first += 1
        most = max(most, held)
    return most


class GreedySender:
    """Sends as much as it may, and remembers when."""

    def __init__(self, clock: Clock, throttle: SendThrottle, wanted_bytes: int = WRITE_BYTES) -> None:
        self.clock = clock
        self.throttle = throttle
        self.wanted_bytes = wanted_bytes
        self.sent: list[tuple[float, int]] = []

    @property
    def total(self) -> int:
        return sum(size for _, size in self.sent)

    def log_grew(self) -> None:
        while allowed := self.throttle.allowance(self, self.wanted_bytes):
            assert 0 < allowed <= self.wanted_bytes
            self.throttle.sent(allowed)
            self.sent.append((self.clock.seconds(), allowed))


class SendThrottleTests(SynchronousTestCase):
    def run_for(self, seconds: float, seed: int | None = None) -> None:
        """Time passes, in steps of 1 ms, or as a busy machine has it: up to 30 ms late."""
        rng, end = Random(seed), self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.advance(0.001 if seed is None else rng.uniform(0.0005, 0.03))

    def senders(self, rate: int, *wanted: int) -> list[GreedySender]:
        self.clock = Clock()
        throttle = SendThrottle(rate, self.clock)
        senders = [GreedySender(self.clock, throttle, size) for size in wanted]
        for sender in senders:
            sender.log_grew()
        return senders

    def test_a_rate_is_kept_exactly(self) -> None:
        for rate in RATES:
            for seed in (None, 1, 2):
                (sender,) = self.senders(rate, WRITE_BYTES)
                self.run_for(5, seed)
                elapsed = self.clock.seconds()
                self.assertLess(abs(sender.total / (rate * elapsed) - 1), 0.02, (rate, seed))

    def test_no_two_seconds_have_five_percent_more_even_after_a_quiet_time(self) -> None:
        for rate in RATES:
            for seed in (None, 1, 2):
                (sender,) = self.senders(rate, WRITE_BYTES)
                self.run_for(2.5, seed)
                wanted, sender.wanted_bytes = sender.wanted_bytes, 0
                self.run_for(2, seed)
                sender.wanted_bytes = wanted
                sender.log_grew()
                self.run_for(3, seed)
                self.assertLessEqual(most_in_any_window(sender.sent, 2), 2 * rate * (1 + PARTS) + 1, (rate, seed))

    def test_the_first_piece_goes_at_once_after_a_quiet_time(self) -> None:
        (sender,) = self.senders(MIB, 300)
        self.assertEqual(sender.sent[0], (0, 300))

    def test_several_get_equal_parts(self) -> None:
        senders = self.senders(MIB, *[WRITE_BYTES] * 7)
        self.run_for(0.5)  # what had been saved up went to the first
        for sender in senders:
            sender.sent.clear()
        self.run_for(5)
        self.assertLess(abs(sum(sender.total for sender in senders) / (5 * MIB) - 1), 0.02)
        for sender in senders:
            self.assertLess(abs(sender.total / (5 * MIB / 7) - 1), PARTS)

    def test_one_that_wants_little_does_not_wait_behind_those_that_want_all(self) -> None:
        """A put's few bytes for a slave in sync, while others catch up."""
        greedy = self.senders(MIB, *[WRITE_BYTES] * 9)
        self.run_for(1)
        modest = GreedySender(self.clock, greedy[0].throttle, 300)
        for _ in range(50):
            asked, before = self.clock.seconds(), len(modest.sent)
            modest.log_grew()
            while len(modest.sent) == before:
                self.clock.advance(0.001)
            self.assertLess(self.clock.seconds() - asked, 0.05)
            modest.throttle.forget(modest)

    def test_what_is_sent_without_asking_is_paid_for(self) -> None:
        (sender,) = self.senders(MIB, WRITE_BYTES)
        sender.throttle.sent(MIB)
        self.run_for(4)
        self.assertLess(abs((sender.total + MIB) / (4 * MIB) - 1), 0.02)

    def test_one_that_is_gone_leaves_its_turn_to_the_next_and_nothing_on_the_clock(self) -> None:
        first, second = self.senders(MIB, WRITE_BYTES, WRITE_BYTES)
        first.throttle.forget(first)
        self.run_for(1)
        self.assertGreater(second.total, 0.9 * MIB)
        second.throttle.forget(second)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_one_that_takes_no_turn_costs_the_others_nothing(self) -> None:
        """Its transport was paused since it asked."""
        idle, busy = self.senders(MIB, WRITE_BYTES, WRITE_BYTES)
        idle.wanted_bytes = 0
        self.run_for(2)
        self.assertGreater(busy.total, 1.9 * MIB)


class MasterTests(MasterTestCase):
    """A master with a rate; the log is far longer than what may be sent."""

    RATE = 256 * KIB

    def setUp(self) -> None:
        super().setUp()
        self.image = make_image([60_000] * 60, segment_size=1 << 20)
        self.serve(memory_log(self.image), 32 * 1024, max_rate=self.RATE)

    def pass_seconds(self, seconds: int, *lines: LineTransport) -> None:
        """The slaves report what they have."""
        for _ in range(seconds * 50):
            self.clock.advance(0.02)
        for line in lines:
            assert isinstance(line.protocol, HAMasterProtocol)
            line.deliver(encode_report(progress_of(line.protocol).sent))

    def test_all_slaves_together_get_the_rate_each_the_same(self) -> None:
        lines = [self.request(1)[1] for _ in range(4)]
        self.pass_seconds(8, *lines)
        received = [len(line.value()) for line in lines]
        self.assertLess(abs(sum(received) / (8 * self.RATE) - 1), PARTS / 2, received)
        for size in received:
            self.assertLess(abs(size / (2 * self.RATE) - 1), PARTS, received)

    def test_what_arrives_are_whole_frames_of_the_log_and_all_of_it_in_the_end(self) -> None:
        _, line = self.request(1)
        sent: list[Transfer] = []
        while sum(len(frame.body) for frame in sent) < len(self.image.content) - 1:
            self.pass_seconds(1, line)
            sent += transfers_in(line.take())
        self.assertEqual(b"\0" + b"".join(frame.body for frame in sent), self.image.content)

    def test_heartbeats_go_out_to_a_slave_whose_turn_is_far_away(self) -> None:
        self.serve(memory_log(self.image), 32 * 1024, max_rate=KIB)
        lines = [self.request(1)[1] for _ in range(300)]
        for line in lines:
            line.take()
        self.pass_seconds(5)
        for line in lines:
            self.assertNotEqual(line.take(), b"")

    def test_a_slave_that_was_sent_all_hears_of_growth_at_once(self) -> None:
        self.serve(memory_log(self.image.prefix(self.image.messages[3])), 32 * 1024, max_rate=self.RATE)
        _, line = self.request(self.image.messages[3])
        self.clock.advance(1)
        line.take()
        self.grow(self.image.prefix(self.image.messages[4]))
        self.assertNotEqual(line.take(), b"")

    def test_a_slave_that_is_gone_waits_for_no_turn(self) -> None:
        _, line = self.request(1)
        line.lose()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_without_a_rate_all_goes_at_once(self) -> None:
        self.serve(memory_log(self.image), 32 * 1024)
        _, line = self.request(1)
        self.assertEqual(b"\0" + b"".join(frame.body for frame in transfers_in(line.take())), self.image.content)


class Wire(StringTransport):
    """A socket with a full buffer: each millisecond, if it is not paused, one read of at most ``bufferSize``."""

    bufferSize = 64 * 1024

    def __init__(self, clock: Clock, stream: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.stream = memoryview(stream)
        self.reads: list[tuple[float, int]] = []

    def read(self, protocol: HASlaveProtocol) -> None:
        if self.producerState == "producing" and self.stream:
            data, self.stream = bytes(self.stream[: self.bufferSize]), self.stream[self.bufferSize :]
            self.reads.append((self.clock.seconds(), len(data)))
            protocol.dataReceived(data)


class SlaveTests(SynchronousTestCase):
    """A slave with a rate, whose master sends as fast as it can."""

    image = make_image([60_000] * 80, segment_size=1 << 20)

    def start(self, rate: int, stream: bytes | None = None) -> None:
        self.clock = Clock()
        self.log = MemoryCommitLog(self.image.segment_size)
        self.lost: list[object] = []
        self.asked: Deferred[MasterView | None] = Deferred()
        self.slave = HASlaveProtocol(
            Replica(self.log, StartFrom(), lambda state, reason: None),
            self.log,
            self.clock,
            ConnectionOwner(
                ask=lambda: self.asked,
                completed=lambda: self.slave.report_progress(),
                durable=lambda: self.log.max_offset,
                given_up=self.lost.append,
                lost=lambda: None,
            ),
            ConnectionOptions(throttle=ReceiveThrottle(rate, self.clock)),
        )
        self.wire = Wire(self.clock, wire(self.image.transfers(1)) if stream is None else stream)
        self.slave.makeConnection(self.wire)
        self.asked.callback(MasterView(0, self.image.end))
        self.addCleanup(self.end)

    def end(self) -> None:
        self.slave.connectionLost()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def run_for(self, seconds: float) -> None:
        for _ in range(int(seconds * 1000)):
            self.clock.advance(0.001)
            self.wire.read(self.slave)

    def test_a_rate_is_kept_exactly(self) -> None:
        for rate in (KIB, 64 * KIB, MIB):
            self.start(rate)
            self.run_for(4)
            received = sum(size for _, size in self.wire.reads)
            self.assertLess(abs(received / (4 * rate) - 1), PARTS / 2, rate)
            self.assertLessEqual(most_in_any_window(self.wire.reads, 2), 2 * rate * (1 + PARTS), rate)

    def test_all_arrives_and_is_reported(self) -> None:
        self.start(4 * MIB)
        self.run_for(2)
        self.assertEqual(self.log.verified_offset, self.image.end)
        self.assertTrue(self.wire.value().endswith(encode_report(self.image.end)))

    def test_a_read_is_no_larger_than_what_goes_at_once(self) -> None:
        self.start(MIB)
        self.assertEqual(self.wire.bufferSize, MIB // 50)

    def test_silence_of_our_own_making_is_not_the_masters(self) -> None:
        """TLS may hand out far more than a read: at a low rate that is paid for longer than a master may be silent."""
        self.start(KIB, stream=b"")
        self.slave.dataReceived(wire(self.image.transfers(1, 60_000)))
        self.assertEqual(self.wire.producerState, "paused")
        self.clock.pump([1] * 50)
        self.assertEqual((self.lost, self.wire.producerState), ([], "paused"))
        self.clock.pump([1] * 10)
        self.assertEqual((self.lost, self.wire.producerState), ([], "producing"))
        self.clock.pump([1] * 20)
        self.assertEqual(len(self.lost), 1, "from then on it is")

    def test_our_heartbeats_go_out_meanwhile(self) -> None:
        self.start(KIB, stream=b"")
        self.slave.dataReceived(wire(self.image.transfers(1, 60_000)))
        self.wire.clear()
        self.clock.pump([0.5] * 20)
        self.assertGreaterEqual(len(self.wire.value()), 2 * 8)

    def test_more_that_comes_while_paused_makes_the_pause_longer(self) -> None:
        self.start(10 * KIB, stream=b"")
        frames = self.image.transfers(1)
        for at in range(20):
            self.slave.dataReceived(wire(frames[at : at + 1]))
        self.clock.pump([0.1] * 15)
        self.assertEqual(self.wire.producerState, "paused")
        self.clock.pump([0.1] * 10)
        self.assertEqual(self.wire.producerState, "producing")

    def test_a_connection_that_ends_while_paused_leaves_nothing(self) -> None:
        self.start(KIB, stream=b"")
        self.slave.dataReceived(wire(self.image.transfers(1, 60_000)))
        self.slave.connectionLost()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class OverheadTests(MasterTestCase):
    def test_heartbeats_are_paid_for(self) -> None:
        self.serve(self.log, max_rate=KIB)
        connection, line = self.request(self.log.verified_offset)
        self.clock.advance(2.5)
        self.assertEqual(line.take(), heartbeat(self.log.verified_offset))
        self.assertEqual(connection.state, HAConnectionState.TRANSFER)
        throttle = self.factory.throttle
        assert throttle is not None
        bucket = throttle._bucket
        self.assertEqual(bucket.rate.at_once - bucket.tokens(self.clock.seconds()), TRANSFER_HEADER.size)
