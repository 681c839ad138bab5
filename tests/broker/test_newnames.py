"""How many new groups and topics are taken."""

from pathlib import Path

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.groups import MAX_GROUP_LENGTH, SubscriptionGroupManager, group_problem
from rmqha.broker.newnames import TELL_SECONDS, NewNameLimits, NewNames, Rate
from rmqha.broker.remoting import RequestRefused
from rmqha.settings import make_settings
from rmqha.wire.command import ResponseCode

from ..ha.doubles import log_lines


class Peer:
    """Stands for a connection."""


class NewNamesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.peer = Peer()
        self.names = NewNames("group", NewNameLimits(Rate(10, 5), Rate(4, 2), most=100), self.clock.seconds)

    def taken(self, by: object | None, held: int = 0) -> int:
        """How many are taken before one is refused."""
        for count in range(1000):
            try:
                self.names.take(held, by)
            except RequestRefused as refusal:
                self.assertEqual(refusal.answer.code, ResponseCode.SYSTEM_BUSY)
                return count
        return 1000

    def test_a_connection_has_its_burst_and_then_its_rate(self) -> None:
        self.assertEqual(self.taken(self.peer), 4)
        self.clock.advance(1)
        self.assertEqual(self.taken(self.peer), 2)

    def test_the_broker_has_its_own(self) -> None:
        self.assertEqual([self.taken(Peer()) for _ in range(4)], [4, 4, 2, 0])
        self.clock.advance(1)
        self.assertEqual(self.taken(None), 5)

    def test_what_is_refused_uses_up_nothing(self) -> None:
        self.taken(self.peer)
        self.assertEqual(self.taken(self.peer), 0)
        self.assertEqual(self.taken(None), 6)

    def test_there_may_be_so_many_in_all(self) -> None:
        self.assertEqual(self.taken(self.peer, held=100), 0)
        self.assertEqual(self.taken(self.peer, held=99), 4)

    def test_refusals_are_logged_once_in_a_while(self) -> None:
        self.taken(self.peer)
        with log_lines() as lines:
            for _ in range(50):
                self.taken(self.peer)
            self.assertEqual(lines().count("\n"), 0)
            self.clock.advance(TELL_SECONDS)
            self.names.take(0, self.peer)
            self.taken(self.peer)
        self.assertIn("refused 51 new groups", lines())

    def test_a_clock_that_goes_back_takes_nothing_away(self) -> None:
        times = iter([100.0, 100.0, 50.0, 50.0])
        names = NewNames("group", NewNameLimits(Rate(2, 1), Rate(2, 1), most=10), lambda: next(times))
        names.take(0, None)
        names.take(0, None)


class GroupNameTests(SynchronousTestCase):
    def manager(self, **properties: str) -> SubscriptionGroupManager:
        return SubscriptionGroupManager(Path(self.mktemp()), make_settings(properties), lambda: 1_795_000_000_000)

    def test_names_are_those_that_java_takes(self) -> None:
        for good in ("G", "please_rename-unique%group|1", "x" * MAX_GROUP_LENGTH):
            self.assertIsNone(group_problem(good))
        for bad in ("", " ", "../../g", "a b", "käse", "x" * (MAX_GROUP_LENGTH + 1)):
            self.assertIsNotNone(group_problem(bad))

    def test_a_group_that_is_there_is_always_served(self) -> None:
        groups = self.manager(maxNewGroupsAtOnce="1", maxNewGroupsPerSecond="1")
        made = groups.find_or_create("G")
        with self.assertRaises(RequestRefused):
            groups.find_or_create("H")
        self.assertEqual(groups.find_or_create("G"), made)

    def test_a_hundred_consumers_that_start_at_once_are_not_hindered(self) -> None:
        groups = self.manager()
        for number in range(100):
            self.assertIsNotNone(groups.find_or_create(f"G{number}", Peer()))
