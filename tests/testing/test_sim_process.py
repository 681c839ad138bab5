"""The simulator's clock calls everybody at the right time."""

from random import Random

from twisted.internet.interfaces import IDelayedCall
from twisted.trial.unittest import SynchronousTestCase

from rmqha.testing.sim.process import SortedClock


class SortedClockTests(SynchronousTestCase):
    def test_a_postponed_call_holds_up_no_other(self) -> None:
        """As the deadline of a connection that goes on does, which every byte that arrives postpones."""
        clock, called = SortedClock(), list[str]()
        first = clock.callLater(1, called.append, "first")
        clock.callLater(2, called.append, "second")
        first.reset(10)
        self.assertEqual(clock.next_time, 2)
        clock.advance(2)
        self.assertEqual(called, ["second"])
        self.assertEqual(clock.next_time, 10)
        clock.advance(8)
        self.assertEqual(called, ["second", "first"])

    def test_calls_come_when_they_are_due_in_whatever_way_they_were_moved(self) -> None:
        for seed in range(200):
            self._move_at_random(Random(seed))

    def _move_at_random(self, random: Random) -> None:
        clock, due, called = SortedClock(), dict[int, float](), dict[int, float]()
        calls: dict[int, IDelayedCall] = {}
        for number in range(30):
            seconds = random.uniform(0, 10)
            due[number] = clock.seconds() + seconds
            calls[number] = clock.callLater(seconds, lambda number=number: called.setdefault(number, clock.seconds()))
            moved = random.choice(list(calls))
            if calls[moved].active() and random.random() < 0.7:
                seconds = random.uniform(0, 10)
                due[moved] = clock.seconds() + seconds
                calls[moved].reset(seconds)
            if random.random() < 0.3:
                self._step(clock)
        while clock.next_time is not None:
            self._step(clock)
        self.assertEqual(called.keys(), due.keys())
        for number, time in due.items():
            self.assertAlmostEqual(called[number], time)

    def _step(self, clock: SortedClock) -> None:
        assert clock.next_time is not None
        clock.advance(clock.next_time - clock.seconds())
