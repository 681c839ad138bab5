"""Orders of operators: placed, answered, withdrawn."""

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import CoordinatorUnavailable
from rmqha.failover.keys import LEADER, REQUEST, Answer, Order, Request
from rmqha.failover.orders import SPARE_SECONDS, OrderError, OrderPending, Orders, OrderUnanswered
from rmqha.testing.coordinator import Link
from tests.failover.clusters import PREFIX, Keys, member

SWITCHOVER = Request("id-1", Order.SWITCHOVER.value, "node-b", by="me@here", time="today")


class OrderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.keys = Keys(self.clock)
        self.keys.lead(member("node-b"))
        self.client = self.keys.store.client("cli")
        self.told: list[str] = []
        self.orders = Orders(self.client, PREFIX, self.clock, self.told.append)

    def give(self, order: Request = SWITCHOVER, seconds: float = 30) -> Any:
        return self.orders.give(order, seconds)

    def waiting(self) -> "tuple[Deferred[Answer], list[Answer | Failure]]":
        """An order that is placed, and not answered."""
        results: list[Answer | Failure] = []
        giving: Deferred[Answer] = Deferred.fromCoroutine(self.give())
        giving.addBoth(results.append)
        self.clock.pump([0.1] * 5)
        self.assertEqual(self.keys.view().request, SWITCHOVER)
        return giving, results

    def test_an_answer_comes_back_with_the_situation_before_it(self) -> None:
        answer = self.keys.run(self.give(), self.keys.answering(lambda order: (True, f"{order.to} leads")))
        self.assertEqual((answer.is_done, answer.text), (True, "node-b leads"))
        self.assertEqual(self.told, ["node-a leads, epoch 1"])

    def test_the_situation_is_told_when_it_changes(self) -> None:
        _, results = self.waiting()
        self.keys.delete(LEADER)
        self.clock.pump([0.1] * 5)
        self.assertEqual(len(self.told), 2)
        self.assertIn("no node leads. node-a: it leads; node-b: node-a leads", self.told[1])
        self.assertEqual(results, [])

    def test_a_second_order_is_not_given(self) -> None:
        self.keys.put(REQUEST, Request("other", Order.FAILOVER.value, "node-c", by="you@there", time="yesterday"))
        with self.assertRaises(OrderPending) as caught:
            self.keys.run(self.give())
        self.assertIn("failover to node-c, given by you@there at yesterday", str(caught.exception))
        request = self.keys.view().request
        assert request is not None
        self.assertEqual(request.id, "other")

    def test_without_an_answer_it_is_withdrawn(self) -> None:
        with self.assertRaises(OrderUnanswered):
            self.keys.run(self.give(seconds=5))
        self.assertIsNone(self.keys.raw(REQUEST))

    def test_an_order_that_cannot_be_withdrawn_may_still_be_there(self) -> None:
        _, results = self.waiting()
        self.keys.store.stop()
        self.clock.pump([0.5] * 100)
        (failure,) = results
        assert isinstance(failure, Failure)
        failure.trap(OrderUnanswered)
        self.assertIn("the order may still be there", str(failure.value))
        self.assertIn(f"ends by itself {SPARE_SECONDS} s after", self.told[-1])

    def test_an_interrupted_command_withdraws_its_order(self) -> None:
        giving, results = self.waiting()
        giving.cancel()
        self.clock.pump([0.1] * 5)
        (failure,) = results
        assert isinstance(failure, Failure)
        failure.trap(CancelledError)
        self.assertIsNone(self.keys.raw(REQUEST))
        self.assertEqual(self.told[-1], "the order is withdrawn")

    def test_an_answer_that_came_before_ctrl_c_is_told(self) -> None:
        giving, _ = self.waiting()
        self.client.link.answers_pass = False  # the watch tells nothing of it
        self.keys.answering(lambda order: (True, "node-b leads"))()
        self.client.link = Link()
        giving.cancel()
        self.clock.pump([0.1] * 5)
        self.assertEqual(self.told[-1], "the order was answered already: node-b leads")

    def test_an_order_of_a_dead_command_ends_by_itself(self) -> None:
        self.waiting()
        self.client.link.requests_pass = False  # as if its process were gone
        self.clock.pump([1.0] * (30 + SPARE_SECONDS + 1))
        self.assertIsNone(self.keys.raw(REQUEST))

    def test_an_order_whose_transaction_had_no_answer_is_found(self) -> None:
        giving: Deferred[Answer] = Deferred.fromCoroutine(self.give())
        self.clock.advance(0)  # the lease is granted
        self.client.link.answers_pass = False
        self.clock.advance(0)
        results: list[Any] = []
        giving.addBoth(results.append)
        self.clock.advance(self.client.timeout)
        self.client.link = Link()
        self.clock.pump([0.1] * 30)
        if not results:
            self.keys.answering(lambda order: (True, "node-b leads"))()
            self.clock.pump([0.1] * 30)
        self.assertEqual([getattr(result, "text", result) for result in results], ["node-b leads"])

    def test_an_outage_while_it_waits_is_told_and_survived(self) -> None:
        _, results = self.waiting()
        self.keys.store.stop()
        self.clock.pump([0.5] * 12)
        self.assertTrue(any("did not answer" in line for line in self.told), self.told)
        self.keys.store.start()
        self.keys.answering(lambda order: (True, "node-b leads"))()
        self.clock.pump([0.5] * 12)
        self.assertEqual([getattr(result, "text", result) for result in results], ["node-b leads"])

    def test_an_order_that_somebody_removed_is_told(self) -> None:
        _, results = self.waiting()
        self.keys.delete(REQUEST)
        self.clock.pump([0.5] * 5)
        (failure,) = results
        assert isinstance(failure, Failure)
        failure.trap(OrderError)

    def test_without_a_coordinator_it_fails(self) -> None:
        self.keys.store.stop()
        with self.assertRaises(CoordinatorUnavailable):
            self.keys.run(self.give())
