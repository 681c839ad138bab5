"""Master and slave in one process: after any cut the slave gets the log, and never reports more than it has."""

from collections.abc import Iterator
from random import Random

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.test import iosim
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.master.protocol import HAConnectionState, HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.ha.slave.protocol import HASlaveProtocol
from rmqha.ha.slave.replica import MasterView, PeerBreach, Replica, StartFrom
from rmqha.ha.slave.states import ReplicaState
from tests.ha.doubles import PEER, ConnectionOwner, LogImage, append, content_of, make_image, memory_log, progress_of

EVERYTHING = 1 << 30


class Line:
    """One connection that the test carries: some bytes in each direction, and then a cut."""

    def __init__(self, master: HAMasterProtocol, slave: HASlaveProtocol, clock: Clock) -> None:
        _, _, self.pump = iosim.connectedServerAndClient(lambda: master, lambda: slave, greet=False, clock=clock)
        self.master, self.slave = master, slave
        self.to_slave, self.to_master = b"", b""
        self.carried_to_slave = self.carried_to_master = 0

    def carry(self, to_slave_bytes: int, to_master_bytes: int) -> None:
        """Deliver up to this many of the waiting bytes."""
        self.to_slave += self.pump.serverIO.getOutBuffer() or b""
        self.to_master += self.pump.clientIO.getOutBuffer() or b""
        down, self.to_slave = self.to_slave[:to_slave_bytes], self.to_slave[to_slave_bytes:]
        up, self.to_master = self.to_master[:to_master_bytes], self.to_master[to_master_bytes:]
        self.carried_to_slave += len(down)
        self.carried_to_master += len(up)
        if down and not self.pump.clientIO.disconnecting:
            self.slave.dataReceived(down)
        if up and not self.pump.serverIO.disconnecting:
            self.master.dataReceived(up)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be carried."""
        return not (self.to_slave or self.to_master or self.pump.serverIO.stream or self.pump.clientIO.stream)

    @property
    def closing(self) -> bool:
        """Whether an end has hung up."""
        return bool(self.pump.serverIO.disconnecting or self.pump.clientIO.disconnecting)

    def cut(self) -> None:
        """The connection is lost at both ends, with all that was under way."""
        self.slave.connectionLost(Failure(ConnectionLost()))
        self.master.connectionLost(Failure(ConnectionLost()))


class Pair:
    """A master and its slave, each with a log, connected again and again."""

    def __init__(self, image: LogImage, held: LogImage | None = None, batch_bytes: int = 1000) -> None:
        self.clock = Clock()
        self.image = image
        self.master_log = memory_log(image)
        self.slave_log = memory_log(held, image.segment_size)
        self.factory = HAMasterFactory(self.master_log, self.clock, MasterOptions(batch_bytes))
        self.factory.doStart()
        self.states: list[ReplicaState] = []
        self.replica = Replica(self.slave_log, StartFrom(), lambda state, _: self.states.append(state))
        self.failures: list[Failure] = []
        self.knows_master = True

    def ask(self) -> Deferred[MasterView | None]:
        log = self.master_log
        return succeed(MasterView(log.min_offset, log.verified_offset) if self.knows_master else None)

    def connect(self) -> Line:
        """A new connection; nothing has been carried yet."""
        master = self.factory.buildProtocol(PEER)
        assert master is not None
        slave = HASlaveProtocol(
            self.replica,
            self.slave_log,
            self.clock,
            ConnectionOwner(
                ask=self.ask,
                completed=lambda: slave.report_progress(),
                durable=lambda: self.slave_log.max_offset,
                given_up=self.gave_up,
                lost=self.replica.connection_lost,
            ),
        )
        return Line(master, slave, self.clock)

    def gave_up(self, failure: Failure) -> None:
        """The slave ended a connection: never needed, but when an empty master grew while our 0 was on its way."""
        if " where 0 is next" not in failure.getErrorMessage():
            self.failures.append(failure)

    def check(self, line: Line, note: object) -> None:
        """What must hold at every moment: equal bytes, and no report beyond what is proved."""
        ours, theirs = content_of(self.slave_log), content_of(self.master_log)
        assert ours == theirs[: len(ours)], note
        if line.master.progress is not None:
            most = max(1, self.slave_log.verified_offset)  # 1: an empty slave's first report
            assert line.master.progress.reported <= most, note
        assert not self.failures, (note, self.failures)


class CopyTests(SynchronousTestCase):
    """A connection that lives."""

    def copy(self, pair: Pair) -> None:
        line = pair.connect()
        line.pump.flush()
        pair.check(line, "at the end")
        self.assertEqual(content_of(pair.slave_log), content_of(pair.master_log))
        self.assertEqual(progress_of(line.master).reported, pair.master_log.max_offset)
        self.assertEqual(pair.replica.state, ReplicaState.IN_SYNC)
        line.cut()
        pair.factory.doStop()
        self.assertEqual(pair.clock.getDelayedCalls(), [])

    def test_an_empty_slave_gets_all_history_over_several_segments(self) -> None:
        self.copy(Pair(make_image([300] * 40)))

    def test_a_slave_behind_at_each_record_resumes(self) -> None:
        image = make_image([100, 900, 0, 2000] * 4)
        for held in image.boundaries[1:]:
            self.copy(Pair(image, image.prefix(held)))

    def test_an_empty_slave_begins_at_the_masters_min(self) -> None:
        self.copy(Pair(make_image([300] * 40, start=3 * 4096)))

    def test_growth_arrives_and_is_acknowledged_without_waiting_for_the_clock(self) -> None:
        image = make_image([300] * 40)
        pair = Pair(image.prefix(image.messages[3]))
        line = pair.connect()
        line.pump.flush()
        for end in image.boundaries[4:]:
            append(pair.master_log, image.prefix(end))
            line.pump.flush()
            self.assertEqual(progress_of(line.master).reported, end)
        pair.check(line, "at the end")
        line.cut()

    def test_a_slave_with_half_a_record_at_its_end_goes_on(self) -> None:
        image = make_image([300] * 40)
        for extra in (1, 7, 50, 300):
            pair = Pair(image, image.prefix(image.messages[12]))
            pair.slave_log.append_data(
                image.messages[12], image.bytes_at(image.messages[12], image.messages[12] + extra)
            )
            self.copy(pair)

    def test_a_slave_that_holds_all_needs_nothing(self) -> None:
        image = make_image([300] * 40)
        self.copy(Pair(image, image))

    def test_heartbeats_of_both_ends_keep_an_idle_connection(self) -> None:
        pair = Pair(make_image([300]))
        line = pair.connect()
        for _ in range(120):
            pair.clock.advance(1)
            line.pump.flush()
        self.assertFalse(line.closing)
        self.assertTrue(pair.replica.holds_all)
        line.cut()
        self.assertEqual(pair.clock.getDelayedCalls(), [])

    def test_without_remoting_two_heartbeats_prove_that_all_is_held(self) -> None:
        pair = Pair(make_image([300] * 40))
        pair.knows_master = False
        line = pair.connect()
        line.pump.flush()
        self.assertFalse(pair.replica.holds_all)
        for _ in range(2):
            pair.clock.advance(2.5)
            line.pump.flush()
        self.assertTrue(pair.replica.holds_all)
        line.cut()

    def test_a_line_that_carries_nothing_more_is_dropped_by_both_ends(self) -> None:
        """A peer that lost its power sends no FIN; our own writes prove nothing."""
        pair = Pair(make_image([300] * 40))
        line = pair.connect()
        line.pump.flush()
        pair.clock.pump([0.5] * 41)
        self.assertTrue(line.pump.serverIO.disconnecting)
        self.assertTrue(line.pump.clientIO.disconnecting)
        self.assertEqual(line.master.state, HAConnectionState.CLOSED)
        self.assertIsInstance(pair.failures[0].value, PeerBreach)
        line.cut()
        self.assertEqual(pair.clock.getDelayedCalls(), [])


class CutTests(SynchronousTestCase):
    """The connection is cut after each byte of a conversation, and made again."""

    def setUp(self) -> None:
        self.image = make_image([10, 60, 0, 130, 20], segment_size=512)
        self.assertGreater(self.image.end, 2 * 512)

    def converse(self, pair: Pair, to_slave_bytes: int, to_master_bytes: int) -> Line:
        """Carry in small pieces until that many bytes went either way, or nothing more is said."""
        line = pair.connect()
        while True:
            down = min(90, to_slave_bytes - line.carried_to_slave)
            up = min(13, to_master_bytes - line.carried_to_master)
            line.carry(down, up)
            pair.check(line, (to_slave_bytes, to_master_bytes))
            if line.idle or line.carried_to_slave == to_slave_bytes or line.carried_to_master == to_master_bytes:
                return line

    def places(self) -> Iterator[tuple[int, int]]:
        pair = Pair(self.image, batch_bytes=200)
        whole = self.converse(pair, EVERYTHING, EVERYTHING)
        self.assertEqual(content_of(pair.slave_log), self.image.content)
        whole.cut()
        self.assertGreater(whole.carried_to_slave, len(self.image.content))
        self.assertGreater(whole.carried_to_master, 8 * 4)
        for place in range(whole.carried_to_slave):
            yield place, EVERYTHING
        for place in range(whole.carried_to_master):
            yield EVERYTHING, place

    @pytest.mark.long
    def test_a_cut_at_any_byte_leaves_a_slave_that_gets_the_rest(self) -> None:
        for knows_master in (True, False):
            for place in self.places():
                pair = Pair(self.image, batch_bytes=200)
                pair.knows_master = knows_master
                self.converse(pair, *place).cut()
                self.assertIn(pair.slave_log.max_offset, self.image.boundaries, place)
                line = self.converse(pair, EVERYTHING, EVERYTHING)
                self.assertEqual(content_of(pair.slave_log), self.image.content, place)
                self.assertEqual(progress_of(line.master).reported, self.image.end, place)
                line.cut()
                self.assertEqual(pair.clock.getDelayedCalls(), [])


class RandomWalkTests(SynchronousTestCase):
    """Grow, carry some bytes, wait, cut: in any order. A failure names its seed."""

    @pytest.mark.long
    def test_a_slave_survives_whatever_the_line_does(self) -> None:
        for seed in range(60):
            self.walk(Random(seed), seed)

    def walk(self, rng: Random, seed: int) -> None:
        image = make_image([rng.choice((0, 10, 200, 900)) for _ in range(40)], segment_size=2048, seed=seed)
        grown = rng.randrange(len(image.boundaries) // 2)
        pair = Pair(image.prefix(image.boundaries[grown]), batch_bytes=rng.choice((1, 50, 1000, 5000)))
        pair.knows_master = not grown or rng.random() < 0.7
        line = pair.connect()
        for step in range(150):
            action = rng.choices(("carry", "grow", "tick", "cut"), (10, 3, 1, 1))[0]
            if action == "carry":
                line.carry(rng.choice((0, 1, 11, 300, 5000)), rng.choice((0, 1, 9, 100)))
            elif action == "grow" and grown + 1 < len(image.boundaries):
                grown += 1
                append(pair.master_log, image.prefix(image.boundaries[grown]))
            elif action == "tick":
                line.carry(EVERYTHING, EVERYTHING)
                pair.clock.advance(rng.choice((0.5, 2.5, 6)))
            if action == "cut" or line.closing:
                line.cut()
                line = pair.connect()
            pair.check(line, f"{seed=} {step=} {action=}")
        for _ in range(8):
            line.carry(EVERYTHING, EVERYTHING)
            pair.clock.advance(2.5)
            if line.closing:
                line.cut()
                line = pair.connect()
        pair.check(line, f"{seed=}")
        self.assertEqual(content_of(pair.slave_log), content_of(pair.master_log), f"{seed=}")
        line.cut()
        self.assertEqual(pair.clock.getDelayedCalls(), [])
