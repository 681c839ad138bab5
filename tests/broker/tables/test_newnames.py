"""How many new groups and topics are taken."""

import os
from collections.abc import Iterable
from pathlib import Path

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.broker.tables import groups, newnames, topics
from rmqha.broker.tables.groups import MAX_GROUP_LENGTH, SubscriptionGroupManager, group_problem
from rmqha.broker.tables.newnames import LINES_AT_ONCE, TELL_SECONDS, NewNameLimits, NewNames
from rmqha.kit import rates
from rmqha.kit.rates import Rate
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.protocol import RemotingProtocol, RequestRefused
from rmqha.settings.settings import make_settings
from rmqha.store.metadata import SubscriptionGroupConfig, TopicConfig
from rmqha.wire.command import ResponseCode
from rmqha.wire.fastjson import dumps_strict
from rmqha.wire.topics import HALF_TOPIC
from tests.broker.brokerstore import SetWallClock, WallClockOf
from tests.ha.doubles import log_lines


class Peer:
    """Stands for a connection."""


@implementer(IWallClock)
class Times:
    """One time after another, in ms."""

    def __init__(self, times: Iterable[int]) -> None:
        self._times = iter(times)

    def now_ms(self) -> int:
        return next(self._times)


class NewNamesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.peer = Peer()
        self.limits = NewNameLimits(Rate(10, 5), Rate(4, 2), most=100)
        self.names = NewNames("group", self.limits, WallClockOf(self.clock, 0))

    @staticmethod
    def connection(address: str) -> RemotingProtocol:
        """A connection from this address."""
        protocol = RemotingProtocol({}, Clock())
        protocol.transport = StringTransport(peerAddress=IPv4Address("TCP", address, 1))
        return protocol

    def taken(self, by: object | None, held: int = 0) -> int:
        """How many are taken before one is refused."""
        for count in range(1000):
            try:
                self.names.take("name", held, by)
            except RequestRefused as refusal:
                self.assertEqual(refusal.answer.code, ResponseCode.SYSTEM_BUSY)
                return count
        return 1000

    def test_a_connection_has_its_burst_and_then_its_rate(self) -> None:
        self.assertEqual(self.taken(self.peer), 4)
        self.clock.advance(1)
        self.assertEqual(self.taken(self.peer), 2)

    def test_the_broker_has_its_own(self) -> None:
        peers = [self.connection(f"192.0.2.{number}") for number in range(4)]
        self.assertEqual([self.taken(peer) for peer in peers], [4, 4, 2, 0])
        self.clock.advance(1)
        self.assertEqual(self.taken(None), 5)

    def test_no_address_uses_up_what_all_others_may_make(self) -> None:
        """A stranger with a few connections did."""
        self.assertEqual([self.taken(self.connection("192.0.2.1")) for _ in range(3)], [4, 1, 0])
        self.assertEqual([self.taken(self.connection("192.0.2.2")) for _ in range(3)], [4, 1, 0])

    def test_only_so_many_addresses_are_remembered(self) -> None:
        self.patch(rates, "MAX_ADDRESSES", 2)
        self.names = NewNames("group", self.limits, WallClockOf(self.clock, 0))
        first = self.connection("192.0.2.1")
        self.assertEqual(self.taken(first), 4)
        self.names.take("name", 0, self.connection("192.0.2.2"))
        self.names.take("name", 0, self.connection("192.0.2.3"))
        self.assertEqual(len(self.names._addresses), 2)

    def test_the_table_has_room_for_so_many_bytes(self) -> None:
        names = NewNames("topic", self.limits, WallClockOf(self.clock, 0), longest_row=80, most_bytes=300)
        names.hold(["a" * 10])
        names.take("b" * 10, 1)
        names.added("b" * 10)
        with self.assertRaises(RequestRefused) as caught:
            names.take("c" * 11, 2)
        self.assertIn("take 200 bytes", str(caught.exception))
        names.take("c" * 10, 2)
        names.removed("b" * 10)
        names.take("c" * 60, 1)

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
            self.names.take("name", 0, self.peer)
            self.taken(self.peer)
        self.assertIn("refused 51 new groups", lines())

    def test_a_crowd_of_new_groups_does_not_fill_the_log(self) -> None:
        with log_lines() as lines:
            named = sum(self.names.gets_line() for _ in range(1000))
            self.assertEqual((named, lines().count("groups were created")), (LINES_AT_ONCE, 1))
            self.clock.advance(TELL_SECONDS)
            self.assertTrue(self.names.gets_line())
        self.assertIn(f"{LINES_AT_ONCE} groups were created", lines())

    def test_a_clock_that_goes_back_takes_nothing_away(self) -> None:
        times = Times([100_000, 100_000, 50_000, 50_000])
        names = NewNames("group", NewNameLimits(Rate(2, 1), Rate(2, 1), most=10), times)
        names.take("name", 0, None)
        names.take("name", 0, None)


class TableBytesTests(SynchronousTestCase):
    """Tables of names as long as may be still fit the frame in which slaves get them."""

    def test_a_row_is_never_longer_than_is_counted(self) -> None:
        for longest, row in (
            (groups.MAX_ROW_BYTES, SubscriptionGroupConfig("x" * 20)),
            (topics.MAX_ROW_BYTES, TopicConfig("x" * 20, 65_536, 65_536, 15, topic_sys_flag=2**31 - 1)),
        ):
            written = len(dumps_strict({"x" * 20: row.to_json()}))
            self.assertLessEqual(written, longest + newnames.TIMES_A_NAME_STANDS * 20)

    def test_long_names_end_before_the_frame_does(self) -> None:
        """Counted by number alone, 50,000 groups and 100,000 topics of long names had some 40 MB each."""
        for patched in ("fsync", "fdatasync"):
            self.patch(os, patched, lambda fd: None)
        settings = make_settings({})
        manager = topics.TopicConfigManager(Path(self.mktemp()), settings, SetWallClock(1_795_000_000_000))
        names = [f"{number:0127d}" for number in range(100)]
        room = 50 * (topics.MAX_ROW_BYTES + 2 * 127)
        body = len(dumps_strict(manager.table.to_json()))
        self.patch(manager._new, "_most_bytes", manager._new._table_bytes + room)
        made = 0
        with self.assertRaises(RequestRefused):
            for name in names:
                manager.take_new(name, None)
                manager.update(TopicConfig(name, 65_536, 65_536))
                made += 1
        self.assertEqual(made, 50)
        self.assertLessEqual(len(dumps_strict(manager.table.to_json())) - body, room)
        manager.create_in_send_back("%RETRY%G", 1)
        manager.delete(names[0])
        manager.delete("%RETRY%G")
        manager.take_new("y" * 127, None)

    def test_the_topics_that_groups_bring_have_a_limit_too(self) -> None:
        manager = topics.TopicConfigManager(Path(self.mktemp()), make_settings({}), SetWallClock(1_795_000_000_000))
        manager._new.hold(["x" * 127] * (newnames.MAX_TABLE_BYTES // topics.MAX_ROW_BYTES))
        with self.assertRaises(RequestRefused):
            manager.create_in_send_back("%RETRY%G", 1)
        manager.create_in_send_back(HALF_TOPIC, 1)


class GroupNameTests(SynchronousTestCase):
    def manager(self, **properties: str) -> SubscriptionGroupManager:
        return SubscriptionGroupManager(Path(self.mktemp()), make_settings(properties), SetWallClock(1_795_000_000_000))

    def test_names_are_those_that_java_takes(self) -> None:
        for good in ("G", "please_rename-unique%group|1", "x" * MAX_GROUP_LENGTH):
            self.assertIsNone(group_problem(good))
        for bad in ("", " ", "../../g", "a b", "käse", "x" * (MAX_GROUP_LENGTH + 1)):
            self.assertIsNotNone(group_problem(bad))

    def test_a_group_that_is_there_is_always_served(self) -> None:
        managed = self.manager(maxNewGroupsAtOnce="1", maxNewGroupsPerSecond="1")
        made = managed.find_or_create("G")
        with self.assertRaises(RequestRefused):
            managed.find_or_create("H")
        self.assertEqual(managed.find_or_create("G"), made)

    def test_a_hundred_consumers_that_start_at_once_are_not_hindered(self) -> None:
        managed = self.manager()
        for number in range(100):
            self.assertIsNotNone(managed.find_or_create(f"G{number}", Peer()))
