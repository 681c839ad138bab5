"""Answers that take long: made one at a time, shared, and never older than their questions."""

from itertools import count

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import Steps
from rmqha.web import sharing
from rmqha.web.server import BUSY, Page, text_page
from rmqha.web.sharing import PATIENCE_SECONDS, SharedWork


class SharedWorkTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.shared = SharedWork(self.clock)
        self.value = 0
        self.runs = 0
        self.running = 0

    def work(self, steps: int = 3) -> Steps[Page]:
        self.runs += 1
        self.running += 1
        self.assertEqual(self.running, 1)
        value = self.value
        for _ in range(steps):
            yield
        self.running -= 1
        return text_page(200, str(value))

    def ask(self, key: str = "a") -> Deferred[Page]:
        return self.shared.ask(key, self.work)

    def run_all(self) -> None:
        for _ in range(100):
            self.clock.advance(0.01)

    def test_an_answer_is_never_older_than_its_question(self) -> None:
        first = self.ask()
        self.clock.advance(0)
        self.value = 1
        second = self.ask()
        self.run_all()
        self.assertEqual([self.successResultOf(each).body for each in (first, second)], [b"0\n", b"1\n"])

    def test_those_who_wait_together_share_a_run(self) -> None:
        answers = [self.ask() for _ in range(100)]
        self.run_all()
        self.assertEqual(self.runs, 2)
        self.assertEqual({self.successResultOf(each).body for each in answers[1:]}, {text_page(200, "0").body})

    def test_different_work_takes_turns(self) -> None:
        answers = [self.ask(key) for key in "abc"]
        self.run_all()
        self.assertEqual(self.runs, 3)
        for each in answers:
            self.successResultOf(each)

    def test_after_long_work_others_wait_and_may_be_told_to_come_again(self) -> None:
        """Else a stranger could keep the node busy with metrics."""
        seconds = count(0.0, 5.0)
        self.patch(sharing, "perf_counter", lambda: next(seconds))
        self.successResultOf(self.shared.ask("long", lambda: self.work(steps=0)))
        answer = self.ask()
        self.clock.advance(PATIENCE_SECONDS - 1)
        self.assertNoResult(answer)
        self.clock.advance(1)
        self.assertEqual(self.successResultOf(answer), BUSY)
        self.assertEqual(self.runs, 1)

    def test_a_failure_is_the_answer_of_all_and_ends_nothing(self) -> None:
        def broken() -> Steps[Page]:
            yield
            raise RuntimeError("planned")

        answers = [self.shared.ask("broken", broken) for _ in range(2)]
        fine = self.ask()
        self.run_all()
        for answer in answers:
            self.failureResultOf(answer, RuntimeError)
        self.successResultOf(fine)
