"""Long work shares the reactor with requests."""

from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import Steps, at_once
from rmqha.remoting import turns as turns_module
from rmqha.remoting.turns import MAX_REQUESTS_PER_TURN, REQUESTS_SECONDS, Turns


def work(count: int, done: list[int]) -> Steps[int]:
    for number in range(count):
        done.append(number)
        yield
    return count


class TurnClock(Clock):
    """Runs one reactor turn a second: what is asked for at once comes with the next."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kw: Any) -> IDelayedCall:
        return Clock.callLater(self, max(delay, 1), callable, *args, **kw)


class TurnsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = TurnClock()
        self.turns = Turns(self.clock)

    @staticmethod
    def note(order: list[str], name: str, _: object) -> None:
        order.append(name)

    def test_work_without_a_step_is_done_at_once(self) -> None:
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(self.turns.run(work(0, [])))), 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_each_step_after_the_first_has_a_turn_of_its_own(self) -> None:
        done: list[int] = []
        running = Deferred.fromCoroutine(self.turns.run(work(3, done)))
        seen = [len(done)]
        while not running.called:
            self.clock.advance(1)
            seen.append(len(done))
        self.assertEqual(seen, [1, 2, 3, 3])
        self.assertEqual(self.successResultOf(running), 3)

    def test_all_that_waits_shares_the_time_of_a_turn(self) -> None:
        """Without any time, each turn runs one step: the one that waited longest."""
        self.patch(turns_module, "TURN_SECONDS", 0.0)
        order: list[str] = []
        for name in "abc":
            for _ in range(2):
                self.turns.next().addCallback(partial(self.note, order, name))
        for count in range(1, 7):
            self.clock.advance(1)
            self.assertEqual(len(order), count)
        self.assertEqual(order, list("aabbcc"))

    def test_requests_go_before_long_work(self) -> None:
        self.patch(turns_module, "TURN_SECONDS", 0.0)
        order: list[str] = []
        for _ in range(3):
            self.turns.next().addCallback(lambda _: order.append("work"))
        self.turns.next_for_requests().addCallback(lambda _: order.append("request"))
        self.clock.advance(1)
        self.assertEqual(order, ["request", "work"])

    def test_a_turn_is_over_after_many_requests_and_the_next_one_is_not(self) -> None:
        for _ in range(MAX_REQUESTS_PER_TURN):
            self.assertFalse(self.turns.is_over)
            self.turns.take()
        self.assertTrue(self.turns.is_over)
        self.clock.advance(1)
        self.assertFalse(self.turns.is_over)

    def test_a_turn_is_over_when_its_answers_have_taken_long_and_the_next_one_is_not(self) -> None:
        self.turns.answered(1)
        self.assertFalse(self.turns.is_over)
        self.clock.rightNow += REQUESTS_SECONDS
        self.assertTrue(self.turns.is_over)
        for _ in range(3):  # nor is a later one, before which nothing happened
            self.clock.advance(1)
            self.assertFalse(self.turns.is_over)

    def test_requests_that_take_long_have_turns_of_their_own(self) -> None:
        order: list[int] = []

        def read(_: None, number: int) -> None:
            order.append(number)
            self.turns.take()
            self.clock.rightNow += REQUESTS_SECONDS

        for number in range(3):
            self.turns.next_for_requests().addCallback(read, number)
        for count in range(1, 4):
            self.clock.advance(1)
            self.assertEqual(order, list(range(count)))
            self.assertTrue(self.turns.is_over)
        for _ in range(2):
            self.clock.advance(1)
            self.assertFalse(self.turns.is_over)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_work_can_be_done_without_turns(self) -> None:
        done: list[int] = []
        self.assertEqual((at_once(work(5, done)), len(done)), (5, 5))
