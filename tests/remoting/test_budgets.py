"""One memory budget for all connections of a port (attack finding D4)."""

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.budgets import GRACE_SECONDS, LOOK_SECONDS, MIN_BYTES, SMALL_FRAME_BYTES, PortBudget
from tests.ha.doubles import log_lines

MIB = 1024 * 1024


class FakeConnection:
    """A connection, as the budget sees it."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.rooms = 0
        self.is_open = True

    def room_given(self) -> None:
        self.rooms += 1

    def hang_up(self) -> None:
        self.is_open = False


class BudgetTestCase(SynchronousTestCase):
    """A budget of 16 MiB for requests and of 8 MiB for answers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.budget = PortBudget(self.clock, 16 * MIB, 8 * MIB)

    def crowd(self, count: int, length: int) -> list[FakeConnection]:
        """This many connections, each with an incomplete frame."""
        connections = [FakeConnection() for _ in range(count)]
        for connection in connections:
            self.budget.admit(connection, length, 0)
        return connections

    def pass_seconds(self, seconds: float) -> None:
        self.clock.pump([LOOK_SECONDS] * int(seconds / LOOK_SECONDS))


class FrameTests(BudgetTestCase):
    """Unfinished frames."""

    def test_large_frames_have_room_or_wait(self) -> None:
        first, second = FakeConnection(), FakeConnection()
        self.assertTrue(self.budget.admit(first, 10 * MIB, 0))
        self.assertTrue(self.budget.admit(first, 10 * MIB, 4096))
        self.assertFalse(self.budget.admit(second, 7 * MIB, 0))
        self.assertEqual(self.budget.used_bytes, 10 * MIB)
        self.budget.whole(first)
        self.assertEqual((second.rooms, self.budget.used_bytes), (1, 7 * MIB))

    def test_small_frames_wait_for_nobody(self) -> None:
        self.crowd(4, 4 * MIB)
        self.assertTrue(self.budget.admit(FakeConnection(), SMALL_FRAME_BYTES, 100))

    def test_a_frame_larger_than_the_budget_is_taken_alone(self) -> None:
        connection = FakeConnection()
        self.assertTrue(self.budget.admit(connection, 17 * MIB, 0))
        self.assertFalse(self.budget.admit(FakeConnection(), MIB, 0))

    def test_the_smallest_frame_that_waits_goes_first(self) -> None:
        (holder,) = self.crowd(1, 16 * MIB)
        hostile, honest = self.crowd(1, 16 * MIB)[0], self.crowd(1, 4 * MIB)[0]
        self.budget.whole(holder)
        self.assertEqual((hostile.rooms, honest.rooms), (0, 1))

    def test_a_crowd_of_smaller_frames_does_not_keep_a_larger_one_out_for_ever(self) -> None:
        """Each frame of the crowd is dropped after a second, and another one takes its place."""
        length = SMALL_FRAME_BYTES + 1
        crowd = self.crowd(16 * MIB // length, length)
        (honest,) = self.crowd(1, 4 * MIB)
        for _ in range(60):
            crowd = [held for held in crowd if held.is_open]
            crowd += self.crowd(600 - len(crowd), length)
            self.pass_seconds(LOOK_SECONDS)
            if honest.rooms:
                break
        self.assertEqual((honest.rooms, honest.is_open), (1, True))

    def test_who_holds_room_and_sends_nothing_is_dropped_for_who_waits(self) -> None:
        hostile = self.crowd(4, 4 * MIB)
        for connection in hostile:
            connection.received_bytes = 4 * MIB - 1
        (honest,) = self.crowd(1, 4 * MIB)
        with log_lines() as lines:
            self.pass_seconds(2 * GRACE_SECONDS + LOOK_SECONDS)
        self.assertEqual([connection.is_open for connection in hostile], [False, True, True, True])
        self.assertEqual(honest.rooms, 1)
        self.assertIn("arrives too slowly", lines())

    def test_who_sends_fast_enough_is_not_dropped(self) -> None:
        (fast,) = self.crowd(1, 16 * MIB)
        (waiting,) = self.crowd(1, 4 * MIB)
        for _ in range(10):
            fast.received_bytes += MIN_BYTES
            self.pass_seconds(GRACE_SECONDS)
        self.assertTrue(fast.is_open)
        self.budget.whole(fast)
        self.assertEqual(waiting.rooms, 1)

    def test_nobody_is_dropped_while_nobody_waits(self) -> None:
        slow = self.crowd(4, 4 * MIB)
        self.pass_seconds(100)
        self.assertTrue(all(connection.is_open for connection in slow))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_pieces_of_small_frames_are_bounded_too(self) -> None:
        connections = [FakeConnection() for _ in range(300)]
        for connection in connections:
            self.budget.admit(connection, SMALL_FRAME_BYTES, SMALL_FRAME_BYTES - 1)
        self.assertLessEqual(self.budget.small_bytes, 16 * MIB)
        self.assertFalse(connections[0].is_open)
        self.assertTrue(connections[-1].is_open)

    def test_a_connection_that_is_gone_leaves_nothing(self) -> None:
        connections = self.crowd(8, 4 * MIB)
        for connection in connections:
            self.budget.forget(connection)
        self.assertEqual((self.budget.used_bytes, self.budget.small_bytes), (0, 0))
        self.assertEqual(self.clock.getDelayedCalls(), [])


class RequestTests(BudgetTestCase):
    """Requests in progress."""

    def test_a_port_that_is_full_is_shared(self) -> None:
        greedy, modest = FakeConnection(), FakeConnection()
        for _ in range(16 * MIB // SMALL_FRAME_BYTES):
            self.assertTrue(self.budget.keep(greedy, SMALL_FRAME_BYTES))
        self.assertFalse(self.budget.keep(greedy, SMALL_FRAME_BYTES))
        self.assertTrue(self.budget.keep(modest, 1000))
        self.budget.let_go(greedy, SMALL_FRAME_BYTES)
        self.assertEqual(greedy.rooms, 0)
        self.budget.let_go(modest, 1000)
        self.assertEqual(greedy.rooms, 1)

    def test_large_ones_keep_their_room_until_they_are_answered(self) -> None:
        holder = FakeConnection()
        self.assertTrue(self.budget.keep(holder, 15 * MIB))
        waiting = FakeConnection()
        self.assertFalse(self.budget.admit(waiting, 2 * MIB, 0))
        self.budget.let_go(holder, 15 * MIB)
        self.assertEqual(waiting.rooms, 1)


class AnswerTests(BudgetTestCase):
    """Answers that nobody reads."""

    def test_who_reads_least_is_dropped(self) -> None:
        deaf, slow = FakeConnection(), FakeConnection()
        self.budget.unread(deaf, 5 * MIB)
        self.budget.unread(slow, 2 * MIB)
        self.assertTrue(deaf.is_open)
        self.budget.unread(slow, 2 * MIB)
        self.assertEqual((deaf.is_open, slow.is_open), (False, True))

    def test_a_slave_that_reads_a_large_table_is_not_dropped_for_many_who_read_nothing(self) -> None:
        for _ in range(4):
            deaf = [FakeConnection() for _ in range(3)]
            for connection in deaf:
                self.budget.unread(connection, 2 * MIB)
            self.clock.advance(1)
            slave = FakeConnection()
            self.budget.unread(slave, 5 * MIB)
            self.assertTrue(slave.is_open)
            self.budget.all_read(slave)
            self.assertLess(sum(connection.is_open for connection in deaf), 3)

    def test_a_crowd_is_logged_in_one_line(self) -> None:
        with log_lines() as lines:
            for _ in range(100):
                self.budget.unread(FakeConnection(), 3 * MIB)
        self.assertEqual(lines().count("closed"), 1)
