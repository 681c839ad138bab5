"""The topics of a broker: those it begins with, those it makes, and what each change does (spec/remoting.md 5)."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables.topics import TopicConfigManager, topic_problem
from rmqha.settings.settings import Settings
from rmqha.store.metadata import DataVersion, TableFile, TopicConfig, TopicConfigTable, TopicFilterType
from tests.broker.brokerstore import SetWallClock, ToldRows
from tests.ha.doubles import log_lines

NOW_MS = 1_795_000_000_000
SYSTEM_TOPICS = {
    "SELF_TEST_TOPIC": (1, 6),
    "TBW102": (8, 7),
    "BenchmarkTest": (1024, 6),
    "DefaultCluster": (16, 7),
    "broker-a": (1, 7),
    "OFFSET_MOVED_EVENT": (1, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
}


class TopicsTestCase(SynchronousTestCase):
    """``make`` gives a manager of the folder, as a start of the broker does."""

    def setUp(self) -> None:
        self.patch(os, "fsync", lambda fd: None)
        self.folder = Path(self.mktemp())
        self.wall = SetWallClock()
        self.topics = self.make()

    def make(self, **settings: Any) -> TopicConfigManager:
        return TopicConfigManager(self.folder, Settings(**settings), self.wall)

    def on_disk(self) -> TopicConfigTable:
        return TopicConfigTable.read(self.folder)


class BeginTests(TopicsTestCase):
    def test_a_new_broker_has_the_system_topics(self) -> None:
        table = self.topics.table.topic_config_table
        found = {name: (topic.read_queue_nums, topic.perm) for name, topic in table.items()}
        self.assertEqual(found, SYSTEM_TOPICS)
        self.assertTrue(all(topic.read_queue_nums == topic.write_queue_nums for topic in table.values()))

    def test_they_are_on_disk_with_a_version_of_their_own(self) -> None:
        self.assertEqual(self.on_disk(), self.topics.table)
        self.assertEqual(self.topics.table.data_version, DataVersion(0, NOW_MS))

    def test_settings_say_which_of_them_there_are(self) -> None:
        self.folder = Path(self.mktemp())
        table = self.make(
            auto_create_topic_enable=False,
            trace_topic_enable=True,
            cluster_topic_enable=False,
            broker_topic_enable=False,
            default_topic_queue_nums=3,
        ).table.topic_config_table
        self.assertNotIn("TBW102", table)
        self.assertIn("RMQ_SYS_TRACE_TOPIC", table)
        self.assertEqual((table["DefaultCluster"].perm, table["broker-a"].perm), (1, 1))
        self.folder = Path(self.mktemp())
        self.assertEqual(self.make(default_topic_queue_nums=3).table.topic_config_table["TBW102"].write_queue_nums, 3)

    def test_a_restart_changes_nothing(self) -> None:
        self.topics.update(TopicConfig("T"))
        version = self.topics.table.data_version
        self.wall.ms += 1000
        again = self.make()
        self.assertEqual((again.table.data_version, again.get("T")), (version, TopicConfig("T")))

    def test_what_the_file_says_of_a_system_topic_counts(self) -> None:
        changed = TopicConfig("TBW102", 2, 2, 7)
        self.topics.update(changed)
        self.assertEqual(self.make().get("TBW102"), changed)

    def test_a_system_topic_that_lacks_is_added_as_a_new_version(self) -> None:
        self.topics.delete("BenchmarkTest")
        version = self.topics.table.data_version
        self.wall.ms += 1000
        again = self.make()
        self.assertIsNotNone(again.get("BenchmarkTest"))
        self.assertEqual(again.table.data_version, DataVersion(version.counter + 1, self.wall.ms))


class AutoCreationTests(TopicsTestCase):
    def test_a_topic_is_made_after_its_template(self) -> None:
        self.topics.update(TopicConfig("TBW102", 8, 8, 7, TopicFilterType.MULTI_TAG))
        made = self.topics.create_in_send("T", "TBW102", 4)
        self.assertEqual(made, TopicConfig("T", 4, 4, 6, TopicFilterType.MULTI_TAG))
        self.assertEqual(self.on_disk().topic_config_table["T"], made)

    def test_it_has_no_more_queues_than_the_template(self) -> None:
        made = self.topics.create_in_send("T", "TBW102", 100)
        assert made is not None
        self.assertEqual((made.read_queue_nums, made.write_queue_nums), (8, 8))

    def test_less_than_no_queues_are_none(self) -> None:
        made = self.topics.create_in_send("T", "TBW102", -1)
        assert made is not None
        self.assertEqual(made.write_queue_nums, 0)

    def test_one_that_is_there_stays_as_it_is(self) -> None:
        self.topics.update(TopicConfig("T", 2, 3))
        version = self.topics.table.data_version
        self.assertEqual(self.topics.create_in_send("T", "TBW102", 4), TopicConfig("T", 2, 3))
        self.assertEqual(self.topics.create_in_send_back("T", 4), TopicConfig("T", 2, 3))
        self.assertEqual(self.topics.table.data_version, version)

    def test_only_what_may_be_inherited_is_a_template(self) -> None:
        for template in ("SELF_TEST_TOPIC", "unheard of"):
            self.assertIsNone(self.topics.create_in_send("T", template, 4))
        self.assertIsNone(self.topics.get("T"))
        self.assertIsNotNone(self.topics.create_in_send("T", "DefaultCluster", 4))

    def test_a_template_of_former_days_does_not_count_once_auto_creation_is_off(self) -> None:
        topics = self.make(auto_create_topic_enable=False)
        self.assertIsNotNone(topics.get("TBW102"))
        self.assertIsNone(topics.create_in_send("T", "TBW102", 4))

    def test_consumers_make_topics_without_a_template(self) -> None:
        self.assertEqual(self.topics.create_in_send_back("%RETRY%G", 2), TopicConfig("%RETRY%G", 2, 2, 6))


class ChangeTests(TopicsTestCase):
    def test_each_change_is_a_new_version_and_is_told(self) -> None:
        told = ToldRows()
        self.topics.subscribe(told)
        self.wall.ms += 7
        self.topics.update(TopicConfig("T"))
        self.assertEqual(self.topics.table.data_version, DataVersion(1, NOW_MS + 7))
        self.assertTrue(self.topics.delete("T"))
        self.assertEqual(self.on_disk().data_version, DataVersion(2, NOW_MS + 7))
        self.assertEqual(told.rows, [TopicConfig("T"), None])

    def test_what_is_not_there_cannot_be_deleted(self) -> None:
        self.assertFalse(self.topics.delete("T"))
        self.assertEqual(self.topics.table.data_version, DataVersion(0, NOW_MS))

    def test_a_slave_takes_its_masters_table_with_its_version(self) -> None:
        told = ToldRows()
        self.topics.subscribe(told)
        table = TopicConfigTable(DataVersion(41, 5), {"M": TopicConfig("M")})
        self.topics.replace(table)
        self.assertEqual((self.on_disk(), self.topics.get("TBW102"), told.rows), (table, None, [None]))

    def test_a_disk_that_refuses_is_logged_and_the_topic_is_there_all_the_same(self) -> None:
        with log_lines() as lines, patch.object(TableFile, "write", side_effect=OSError("no room")):
            self.topics.update(TopicConfig("T"))
        self.assertIn("error: topics.json is not written: no room", lines())
        self.assertIsNotNone(self.topics.get("T"))


class NameTests(TopicsTestCase):
    def test_topics_of_the_system_are_known_by_name(self) -> None:
        for name in (*SYSTEM_TOPICS, "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_anything"):
            self.assertTrue(self.topics.is_system(name), name)
        for name in ("T", "%RETRY%G", "RMQ_SYS_TRANS_HALF"):
            self.assertFalse(self.topics.is_system(name), name)

    def test_names_have_few_characters_and_an_end(self) -> None:
        for name in ("T", "%RETRY%G-1", "a|b_c", "x" * 127):
            self.assertIsNone(topic_problem(name), name)
        for name in ("", "  ", "a b", "a/b", "../a", "a.b", "漢", "x" * 128):
            self.assertIsNotNone(topic_problem(name), name)
