"""When a slave dispatches: together what came together, and soon if somebody reads."""

from rmqha.store.derived.dispatch import (
    READERS_STAY_SECONDS,
    SLAVE_PAUSE_SECONDS,
    UNREAD_PAUSE_SECONDS,
    Dispatcher,
    SliceSchedule,
)
from rmqha.wire.delay import DelayLevels
from tests.store.derived.test_dispatch import DispatchTestCase


class SlavePauseTests(DispatchTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.dispatcher = Dispatcher(self.log, self.queues, self.index, DelayLevels(), 0, is_slave=True)
        self.addCleanup(self.dispatcher.stop)
        self.dispatcher.start(self.clock, self.failures.append)

    def pause(self) -> float:
        """How long the next slice waits."""
        schedule = self.dispatcher._phase
        assert isinstance(schedule, SliceSchedule)
        assert schedule._next_slice is not None
        return round(schedule._next_slice.getTime() - self.clock.seconds(), 6)

    def let_readers_go(self) -> None:
        self.clock.advance(READERS_STAY_SECONDS + 1)

    def test_the_first_messages_wait_as_if_somebody_reads(self) -> None:
        self.writer.put_many(3)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS)
        self.clock.advance(SLAVE_PAUSE_SECONDS)
        self.assertEqual(self.dispatcher.behind_bytes, 0)

    def test_messages_that_nobody_reads_wait_longer(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.assertEqual(self.pause(), UNREAD_PAUSE_SECONDS)
        self.clock.advance(UNREAD_PAUSE_SECONDS / 2)
        self.writer.put_many(1)
        self.clock.advance(UNREAD_PAUSE_SECONDS / 2)
        self.assertEqual(self.dispatcher.behind_bytes, 0)
        self.dispatcher.write_pending()
        self.check()

    def test_a_read_ends_the_longer_pause(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.clock.advance(SLAVE_PAUSE_SECONDS / 2)
        self.queues.get("T0", 0)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS / 2)
        self.queues.get("T0", 0)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS / 2)

    def test_who_reads_late_waits_for_the_next_turn_only(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.clock.advance(UNREAD_PAUSE_SECONDS - SLAVE_PAUSE_SECONDS)
        self.queues.get("T0", 0)
        self.clock.advance(0)
        self.assertEqual(self.dispatcher.behind_bytes, 0)

    def test_messages_after_a_read_wait_for_the_shorter_pause(self) -> None:
        self.let_readers_go()
        self.queues.get("T0", 0)
        self.clock.advance(READERS_STAY_SECONDS)
        self.writer.put_many(1)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS)

    def test_a_read_after_the_stop_does_nothing(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.dispatcher.stop()
        self.queues.get("T0", 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])
