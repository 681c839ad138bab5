"""A Java broker reads the config files that we write, answers with their content, and we read what it writes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConfigTable,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicFilterType,
    topic_at_group,
)
from rmqha.testing.archive import unpack
from rmqha.wire.fastjson import dumps_compact, dumps_pretty, loads_lenient
from tests.interop.conftest import SEGMENT_SIZE, MasterFactory
from tests.interop.nodes import ask
from tests.interop.rocketmq import PROJECT_ROOT, Broker

UPDATE_AND_CREATE_TOPIC = 17
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
REQUEST_CODES: dict[type[ConfigTable], int] = {
    TopicConfigTable: 21,
    ConsumerOffsetTable: 43,
    DelayOffsetTable: 45,
    SubscriptionGroupTable: 201,
}

Table = TypeVar("Table", bound=ConfigTable)

NAME, CLUSTER = "broker-a", "FixtureA"
FIXTURE_OPTIONS: dict[str, Any] = {
    "name": NAME,
    "cluster": CLUSTER,
    "segment_size": SEGMENT_SIZE,
    "mappedFileSizeConsumeQueue": 2000,
}
VERSION = DataVersion(41, 1_795_200_000_123)

TOPICS = TopicConfigTable(
    VERSION,
    {
        topic.topic_name: topic
        for topic in (
            # What a broker creates at its start, some of it otherwise: what the file says counts.
            TopicConfig("SELF_TEST_TOPIC", 1, 1),
            TopicConfig("TBW102", 3, 5, perm=7),
            TopicConfig("BenchmarkTest", 7, 7),
            TopicConfig(CLUSTER, 16, 16, perm=7),
            TopicConfig(NAME, 1, 1, perm=7),
            TopicConfig("OFFSET_MOVED_EVENT", 1, 1),
            TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18),
            TopicConfig(f"{CLUSTER}_REPLY_TOPIC", 1, 1),
            # What it creates when it checks transactions, as it also does at its end.
            TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1),
            # Ours.
            TopicConfig("TOurs", 4, 2, perm=4, topic_sys_flag=3, order=True),
            TopicConfig("TMany-tags_1", 8, 8, topic_filter_type=TopicFilterType.MULTI_TAG),
            TopicConfig("%RETRY%GOurs", 1, 1),
        )
    },
)
GROUPS = SubscriptionGroupTable(
    VERSION,
    {
        group.group_name: group
        for group in (
            SubscriptionGroupConfig("TOOLS_CONSUMER"),
            SubscriptionGroupConfig("FILTERSRV_CONSUMER"),
            SubscriptionGroupConfig("SELF_TEST_C_GROUP"),
            SubscriptionGroupConfig("CID_ONS-HTTP-PROXY"),
            SubscriptionGroupConfig("CID_ONSAPI_PULL"),
            SubscriptionGroupConfig("CID_ONSAPI_PERMISSION"),
            SubscriptionGroupConfig("CID_ONSAPI_OWNER", consume_broadcast_enable=False),
            SubscriptionGroupConfig("GOurs", False, False, False, 3, 5, 2**40, 2, False),
        )
    },
)
CONSUMER_OFFSETS = ConsumerOffsetTable(
    {
        topic_at_group("TOurs", "GOurs"): {17: 7_000_000_000, 0: 5, 1: 7},
        topic_at_group("%RETRY%GOurs", "GOurs"): {},
        topic_at_group("TMany-tags_1", "GOurs"): {3: 0},
        # All transactions of the fixture's store are checked.
        topic_at_group("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"): {0: 39},
        topic_at_group("RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS"): {0: 25},
    }
)
DELAY_OFFSETS = DelayOffsetTable({1: 25, 3: 27})
"""As many as the fixture's store has, so that the broker neither corrects them nor has anything to deliver."""

TABLES: tuple[ConfigTable, ...] = (TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS)


def answered(broker: Broker, kind: type[Table]) -> Table:
    return kind.from_json(loads_lenient(ask(broker, REQUEST_CODES[kind])))


def as_restarted(table: ConfigTable, found: ConfigTable) -> ConfigTable:
    """The table as a Java broker has it after its start: to 4.9.3 the version of its groups is new."""
    if not (isinstance(table, SubscriptionGroupTable) and isinstance(found, SubscriptionGroupTable)):
        return table
    return replace(table, data_version=DataVersion(0, found.data_version.timestamp))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of a Java master that was stopped cleanly, with config files of ours alone."""
    store = tmp_path / "fixture"
    unpack(PROJECT_ROOT / "tests" / "data" / "master-clean.tar.xz", store)
    shutil.rmtree(store / CONFIG_FOLDER)
    for table in TABLES:
        table.write(store / CONFIG_FOLDER)
    return store


def test_a_java_master_reads_the_tables_that_we_write_and_we_read_its_tables(
    store: Path, java_master: MasterFactory
) -> None:
    files = {type(table): store / CONFIG_FOLDER / table.FILE_NAME for table in TABLES}
    written_by_us = {kind: path.stat().st_mtime_ns for kind, path in files.items()}
    master = java_master(store=store, **FIXTURE_OPTIONS)
    for table in TABLES:
        found = answered(master, type(table))
        assert found == as_restarted(table, found)
        assert dumps_compact(found.to_json()) == ask(master, REQUEST_CODES[type(table)])

    # A topic and a group that are as they were: Java writes their tables again, with the next version.
    topic = TOPICS.topic_config_table["TMany-tags_1"]
    header = {name: str(value) for name, value in topic.to_json().items()}
    ask(
        master,
        UPDATE_AND_CREATE_TOPIC,
        header | {"order": "false", "topic": topic.topic_name, "defaultTopic": "TBW102"},
    )
    group = GROUPS.subscription_group_table["GOurs"]
    ask(master, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps_compact(group.to_json()))
    topics, groups = answered(master, TopicConfigTable), answered(master, SubscriptionGroupTable)
    assert topics.data_version == VERSION.next(topics.data_version.timestamp)
    assert topics.data_version.timestamp > VERSION.timestamp
    assert groups.data_version.counter == 1
    assert topics == replace(TOPICS, data_version=topics.data_version)
    assert groups == replace(GROUPS, data_version=groups.data_version)

    master.stop()
    for table in (topics, groups, CONSUMER_OFFSETS, DELAY_OFFSETS):
        path = files[type(table)]
        assert path.stat().st_mtime_ns > written_by_us[type(table)], path
        found = type(table).read(path.parent)
        assert found == table
        assert dumps_pretty(found.to_json()) == path.read_bytes()


@pytest.mark.story
def test_a_java_master_takes_our_backup_where_the_file_is_broken(store: Path, java_master: MasterFactory) -> None:
    for table in TABLES:
        table.write(store / CONFIG_FOLDER)
        (store / CONFIG_FOLDER / table.FILE_NAME).write_bytes(b"{")
    master = java_master(store=store, **FIXTURE_OPTIONS)
    for table in TABLES:
        found = answered(master, type(table))
        assert found == as_restarted(table, found)
