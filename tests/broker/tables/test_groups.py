"""The consumer groups of a broker (spec/remoting.md 5.4)."""

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables.groups import SYSTEM_GROUPS, SubscriptionGroupManager
from rmqha.settings.settings import Settings
from rmqha.store.metadata import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from tests.broker.brokerstore import SetWallClock

NOW_MS = 1_795_000_000_000


class GroupTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(os, "fsync", lambda fd: None)
        self.folder = Path(self.mktemp())
        self.wall = SetWallClock()
        self.groups = self.make()

    def make(self, creates: bool = True) -> SubscriptionGroupManager:
        settings = Settings(auto_create_subscription_group=creates)
        return SubscriptionGroupManager(self.folder, settings, self.wall)

    def on_disk(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable.read(self.folder)

    def test_a_new_broker_has_the_systems_groups(self) -> None:
        self.assertEqual(set(self.groups.table.subscription_group_table), set(SYSTEM_GROUPS))
        self.assertIn("TOOLS_CONSUMER", SYSTEM_GROUPS)
        self.assertEqual(self.on_disk(), self.groups.table)
        self.assertEqual(self.groups.table.data_version, DataVersion(0, NOW_MS))

    def test_a_group_is_made_when_it_is_first_seen(self) -> None:
        self.assertIsNone(self.groups.get("G"))
        self.wall.ms += 5
        self.assertEqual(self.groups.find_or_create("G"), SubscriptionGroupConfig("G"))
        self.assertEqual(self.on_disk().subscription_group_table["G"], SubscriptionGroupConfig("G"))
        self.assertEqual(self.on_disk().data_version, DataVersion(1, NOW_MS + 5))

    def test_one_that_is_there_stays_as_it_is(self) -> None:
        config = SubscriptionGroupConfig("G", retry_max_times=3)
        self.groups.update(config)
        self.assertEqual(self.groups.find_or_create("G"), config)
        self.assertEqual(self.groups.table.data_version.counter, 1)

    def test_without_auto_creation_only_the_systems_own_are_made(self) -> None:
        groups = self.make(creates=False)
        self.assertIsNone(groups.find_or_create("G"))
        self.assertIsNotNone(groups.find_or_create("CID_RMQ_SYS_TRANS"))

    def test_a_restart_changes_nothing(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G", consume_enable=False))
        self.wall.ms += 1000
        self.assertEqual(self.make().table, self.groups.table)

    def test_a_group_of_the_systems_that_lacks_is_added_as_a_new_version(self) -> None:
        self.groups.delete("TOOLS_CONSUMER")
        again = self.make()
        self.assertIsNotNone(again.get("TOOLS_CONSUMER"))
        self.assertEqual(again.table.data_version.counter, 2)

    def test_a_group_is_deleted_once(self) -> None:
        self.groups.find_or_create("G")
        self.assertEqual((self.groups.delete("G"), self.groups.delete("G")), (True, False))
        self.assertNotIn("G", self.on_disk().subscription_group_table)

    def test_a_slave_takes_its_masters_table_with_its_version(self) -> None:
        table = SubscriptionGroupTable(DataVersion(9, 5), {"M": SubscriptionGroupConfig("M")})
        self.groups.replace(table)
        self.assertEqual((self.on_disk(), self.groups.table), (table, table))
