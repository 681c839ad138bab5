"""Waits for an offset: when each wait ends, and with which result."""

import sys

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.groupcommit import GroupCommit

TIMEOUT = 5.0


class GroupCommitTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.commits = GroupCommit(self.clock, TIMEOUT)
        self.told: list[tuple[str, bool, float]] = []

    def wait(self, name: str, offset: int) -> Deferred[bool]:
        done = self.commits.wait(offset)

        def tell(in_time: bool) -> bool:
            self.told.append((name, in_time, self.clock.seconds()))
            return in_time

        return done.addCallback(tell)

    def check_idle(self) -> None:
        self.assertEqual((len(self.commits), self.clock.getDelayedCalls()), (0, []))

    def test_an_offset_that_is_reached_ends_all_waits_up_to_it_oldest_first(self) -> None:
        for name, offset in (("a", 100), ("b", 200), ("c", 300)):
            self.wait(name, offset)
        self.commits.reached(99)
        self.assertEqual(self.told, [])
        self.commits.reached(200)
        self.assertEqual(self.told, [("a", True, 0.0), ("b", True, 0.0)])
        self.assertEqual(len(self.commits), 1)
        self.commits.reached(1000)
        self.assertEqual(self.told[2:], [("c", True, 0.0)])
        self.check_idle()

    def test_no_wait_ends_one_byte_early_beside_another_that_ends(self) -> None:
        self.wait("a", 100)
        self.wait("b", 101)
        self.commits.reached(100)
        self.assertEqual(self.told, [("a", True, 0.0)])
        self.commits.reached(101)
        self.assertEqual(self.told[1:], [("b", True, 0.0)])

    def test_messages_of_one_batch_share_an_offset(self) -> None:
        self.wait("a", 100)
        self.wait("b", 100)
        self.commits.reached(100)
        self.assertEqual([name for name, _, _ in self.told], ["a", "b"])

    def test_each_wait_ends_at_its_deadline_to_the_moment(self) -> None:
        self.wait("a", 100)
        self.clock.advance(1.5)
        self.wait("b", 200)
        self.clock.advance(3.4)
        self.assertEqual(self.told, [])
        self.clock.advance(0.25)
        self.assertEqual([(name, in_time) for name, in_time, _ in self.told], [("a", False)])
        self.clock.advance(1.25)
        self.assertEqual([name for name, _, _ in self.told], ["a"])
        self.clock.advance(0.25)
        self.assertEqual([name for name, _, _ in self.told], ["a", "b"])
        self.check_idle()

    def test_no_deadline_is_late_however_many_wait(self) -> None:
        for number in range(40):
            self.wait(str(number), 100 * number)
            self.clock.advance(0.125)
        for _ in range(40):
            self.clock.advance(0.125)
        self.assertEqual(self.told, [(str(number), False, TIMEOUT + 0.125 * number) for number in range(40)])
        self.check_idle()

    def test_the_end_of_many_waits_costs_each_the_same(self) -> None:
        """A master whose slave is silent lets go of thousands a second, while thousands more begin to wait."""

        def calls(count: int) -> int:
            clock = Clock()
            commits = GroupCommit(clock, TIMEOUT)
            for number in range(count):
                clock.advance(TIMEOUT / count)
                commits.wait(number)
            made = 0

            def count_call(*_: object) -> None:
                nonlocal made
                made += 1

            sys.setprofile(count_call)
            try:
                for _ in range(count + 1):
                    clock.advance(TIMEOUT / count)
            finally:
                sys.setprofile(None)
            self.assertEqual(len(commits), 0)
            return made

        self.assertLess(calls(800) / calls(200), 4 * 1.5)

    def test_one_that_expired_is_not_told_again(self) -> None:
        self.wait("a", 100)
        self.clock.advance(5.0)
        self.commits.reached(100)
        self.assertEqual(self.told, [("a", False, 5.0)])

    def test_one_behind_an_expired_one_is_still_reached(self) -> None:
        self.wait("a", 100)
        self.clock.advance(4.0)
        self.wait("b", 200)
        self.clock.advance(1.0)
        self.commits.reached(200)
        self.assertEqual(self.told, [("a", False, 5.0), ("b", True, 5.0)])
        self.check_idle()

    def test_a_cancelled_wait_leaves_nothing_behind(self) -> None:
        done = self.wait("a", 100)
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.check_idle()
        self.commits.reached(100)
        self.assertEqual(self.told, [])

    def test_cancelling_one_leaves_the_others(self) -> None:
        self.wait("a", 100)
        middle = self.wait("b", 200)
        self.wait("c", 300)
        middle.cancel()
        self.failureResultOf(middle, CancelledError)
        self.clock.advance(2.0)
        self.commits.reached(100)
        self.clock.advance(3.0)
        self.assertEqual(self.told, [("a", True, 2.0), ("c", False, 5.0)])
        self.check_idle()

    def test_giving_up_ends_all_waits_unreached(self) -> None:
        self.wait("a", 100)
        self.wait("b", 200)
        self.commits.give_up()
        self.assertEqual(self.told, [("a", False, 0.0), ("b", False, 0.0)])
        self.check_idle()
        self.commits.give_up()
        self.assertEqual(len(self.told), 2)

    def test_a_wait_begun_by_the_end_of_another_counts(self) -> None:
        self.commits.wait(100).addCallback(lambda _: [self.wait("next", 200)])
        self.clock.advance(5.0)
        self.clock.advance(4.9)
        self.assertEqual(self.told, [])
        self.clock.advance(0.2)
        self.assertEqual([name for name, _, _ in self.told], ["next"])
        self.commits.wait(300).addCallback(lambda _: [self.wait("last", 400)])
        self.commits.reached(300)
        self.commits.reached(400)
        self.assertEqual([(name, in_time) for name, in_time, _ in self.told], [("next", False), ("last", True)])
        self.check_idle()
