"""The coordinator in memory: late, lost and cut requests and answers, outages, roll backs."""

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rmqha.coordination.interface import (
    Change,
    CoordinatorError,
    CoordinatorUnavailable,
    ICoordinator,
    IWatch,
    LeaseGone,
    Put,
)
from rmqha.coordination.state import KeysAndLeases
from rmqha.testing.coordinator import MemoryStore


class MemoryTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.client = self.store.client("a")
        self.other = self.store.client("b")

    def result(self, call: Deferred[Any]) -> Any:
        self.clock.advance(0)
        return self.successResultOf(call)

    def put(self, key: str, value: bytes = b"", lease: int = 0) -> int:
        revision: int = self.result(self.client.transact([], [Put(key, value, lease)])).revision
        return revision

    def heard(self, revision: int) -> tuple[list[tuple[int, list[str]]], list[CoordinatorError]]:
        """What a watch of the other client tells from now on."""
        told: list[tuple[int, list[str]]] = []
        errors: list[CoordinatorError] = []

        def changed(at: int, changes: Sequence[Change]) -> None:
            told.append((at, [each.key for each in changes]))

        self.other.watch("", revision, changed, errors.append)
        self.clock.advance(0)
        return told, errors

    def test_its_client_and_its_watch_have_all_that_the_interfaces_name(self) -> None:
        verifyObject(ICoordinator, self.client)
        verifyObject(IWatch, self.client.watch("", 1, lambda revision, changes: None, lambda error: None))

    def test_a_lost_request_does_nothing_and_a_lost_answer_hides_what_was_done(self) -> None:
        self.client.link.requests_pass = False
        lost = self.client.transact([], [Put("/lost", b"")])
        self.client.link.requests_pass, self.client.link.answers_pass = True, False
        unheard = self.client.transact([], [Put("/done", b"")])
        self.clock.advance(self.client.timeout)
        for call in (lost, unheard):
            self.failureResultOf(call, CoordinatorUnavailable)
        self.assertEqual(list(self.result(self.other.range("")).keys), ["/done"])

    def test_late_requests_arrive_out_of_order_and_after_their_time(self) -> None:
        delays = iter((3.0, 1.0))
        self.client.link.request_delay = lambda: next(delays)
        first, second = (self.client.transact([], [Put("/k", value)]) for value in (b"1", b"2"))
        self.clock.pump([0.5] * 5)
        self.successResultOf(second)
        self.failureResultOf(first, CoordinatorUnavailable)
        self.clock.advance(1)
        self.assertEqual(self.store.state.keys["/k"].value, b"1")

    def test_changes_come_in_order_however_late(self) -> None:
        told, errors = self.heard(1)
        delays = iter((2.0, 0.5))
        self.other.link.answer_delay = lambda: next(delays)
        self.put("/a")
        self.put("/b")
        self.clock.advance(1)
        self.assertEqual(told, [])
        self.clock.advance(1)
        self.assertEqual((told, errors), ([(2, ["/a"]), (3, ["/b"])], []))

    def test_a_lease_ends_by_the_clock(self) -> None:
        lease = self.result(self.client.grant(3))
        self.put("/leader", b"a", lease)
        told, _ = self.heard(2)
        self.clock.advance(2)
        self.assertEqual(self.result(self.client.keep_alive(lease)), 3)
        self.clock.advance(2.9)
        self.assertEqual(list(self.store.state.keys), ["/leader"])
        self.clock.advance(0.1)
        self.clock.advance(0)
        self.assertEqual((list(self.store.state.keys), told), ([], [(3, ["/leader"])]))
        call = self.client.keep_alive(lease)
        self.clock.advance(0)
        self.failureResultOf(call, LeaseGone)

    def test_an_outage_ends_watches_and_no_lease(self) -> None:
        lease = self.result(self.client.grant(3))
        self.put("/leader", b"a", lease)
        _, errors = self.heard(2)
        self.store.stop()
        self.assertEqual(len(errors), 1)
        call = self.client.range("")
        self.clock.advance(60)
        self.failureResultOf(call, CoordinatorUnavailable)
        self.store.start()
        self.clock.advance(2)
        self.assertEqual(self.result(self.client.keep_alive(lease)), 3)
        self.clock.advance(3)
        self.assertEqual(list(self.store.state.keys), [])

    def test_a_roll_back_gives_revisions_a_second_time_but_no_lease(self) -> None:
        self.put("/k", b"old")
        saved = self.store.state.copy()
        lost = self.result(self.client.grant(60))
        revision = self.put("/k", b"new", lost)
        _, errors = self.heard(revision)
        self.store.set_back(saved, is_same=True)
        self.assertEqual(len(errors), 1)
        self.assertEqual(self.result(self.client.range("")).keys["/k"].value, b"old")
        self.assertNotEqual(self.result(self.client.grant(60)), lost)
        self.assertEqual(self.put("/k", b"other"), revision)
        self.assertEqual(self.client.cluster_id, 1)

    def test_a_store_that_lost_everything_is_another_cluster(self) -> None:
        self.put("/k")
        self.assertEqual(self.client.cluster_id, 1)
        self.store.set_back(KeysAndLeases(), is_same=False)
        self.assertEqual(self.result(self.client.range("")).keys, {})
        self.assertEqual(self.client.cluster_id, 2)
