"""The right to lead: when it ends, and when it takes no new messages although it goes on."""

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.master.leadership import Leadership


class LeadershipTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.leadership = Leadership(3, self.clock.seconds, until=10.0)

    def test_it_ends_at_its_time_and_not_before(self) -> None:
        self.clock.advance(9.5)
        self.assertTrue(self.leadership.is_held())
        self.clock.advance(0.5)
        self.assertFalse(self.leadership.is_held())
        self.assertFalse(self.leadership.takes_puts())

    def test_an_answer_that_comes_after_a_later_one_cuts_nothing_short(self) -> None:
        self.leadership.extend(20.0)
        self.leadership.extend(15.0)
        self.assertEqual(self.leadership.until, 20.0)
        self.clock.advance(19.5)
        self.assertTrue(self.leadership.is_held())

    def test_while_a_successor_catches_up_puts_are_answered_and_none_is_taken(self) -> None:
        self.leadership.hold_puts(True)
        self.assertTrue(self.leadership.is_held())
        self.assertFalse(self.leadership.takes_puts())
        self.leadership.hold_puts(False)
        self.assertTrue(self.leadership.takes_puts())

    def test_once_ended_it_is_not_held_whatever_comes(self) -> None:
        self.leadership.end()
        self.leadership.extend(20.0)
        self.leadership.hold_puts(False)
        self.assertFalse(self.leadership.is_held())
        self.assertFalse(self.leadership.takes_puts())
