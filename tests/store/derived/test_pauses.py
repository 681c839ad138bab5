"""When a node dispatches: together what came together, and soon if somebody reads."""

from rmqha.settings.settings import Settings
from rmqha.store.derived.dispatch import (
    FIRST_PAUSE_SECONDS,
    READERS_STAY_SECONDS,
    SLAVE_PAUSE_SECONDS,
    UNREAD_BUSY_SECONDS,
    UNREAD_PAUSE_SECONDS,
    Dispatcher,
    SliceSchedule,
)
from rmqha.store.reading import MessageReader
from rmqha.wire.delay import DelayLevels
from tests.store.derived.test_dispatch import DispatchTestCase


class PauseTestCase(DispatchTestCase):
    is_slave: bool

    def setUp(self) -> None:
        super().setUp()
        self.dispatcher = Dispatcher(self.log, self.queues, self.index, DelayLevels(), 0, is_slave=self.is_slave)
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


class SlavePauseTests(PauseTestCase):
    is_slave = True

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
        self.queues.read("T0", 0)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS / 2)
        self.queues.read("T0", 0)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS / 2)

    def test_who_reads_late_reads_all(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.clock.advance(UNREAD_PAUSE_SECONDS - SLAVE_PAUSE_SECONDS)
        self.assertGreater(self.dispatcher.behind_bytes, 0)
        self.queues.read("T0", 0)
        self.assertEqual(self.dispatcher.behind_bytes, 0)

    def test_messages_after_a_read_wait_for_the_shorter_pause(self) -> None:
        self.let_readers_go()
        self.queues.read("T0", 0)
        self.clock.advance(READERS_STAY_SECONDS)
        self.writer.put_many(1)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS)

    def test_a_read_after_the_stop_does_nothing(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.dispatcher.stop()
        self.queues.read("T0", 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_nodes_own_looks_are_not_reads(self) -> None:
        reader = MessageReader(self.log, self.queues, self.index, Settings(), is_slave=True)
        self.let_readers_go()
        self.writer.put_many(1)
        reader.next_offset("T0", 0)
        self.assertEqual(self.pause(), UNREAD_PAUSE_SECONDS)
        reader.max_offset("T0", 0)
        self.assertEqual(self.pause(), SLAVE_PAUSE_SECONDS)


class MasterPauseTests(PauseTestCase):
    is_slave = False

    def test_a_message_after_a_rest_waits_as_if_somebody_reads(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.assertEqual(self.pause(), FIRST_PAUSE_SECONDS)

    def test_many_messages_that_nobody_reads_are_gathered(self) -> None:
        self.let_readers_go()
        self.writer.put_many(1)
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual(self.dispatcher.behind_bytes, 0)
        self.writer.put_many(1)
        self.assertEqual(self.pause(), UNREAD_BUSY_SECONDS)
        self.queues.read("T0", 0)
        self.assertEqual(self.pause(), FIRST_PAUSE_SECONDS)
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual(self.dispatcher.behind_bytes, 0)
