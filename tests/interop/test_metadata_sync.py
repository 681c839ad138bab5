"""Topics, groups and offsets of a master are its slave's too, whichever of them is Java's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConfigTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_compact, loads_lenient

from .conftest import SEGMENT_SIZE, MasterFactory, SlaveFactory
from .nodes import RmqhaNode, wait_until
from .requests import ask
from .rocketmq import HA_PORT_STEP, LOCALHOST, NameServer, free_ports

NAME, CLUSTER = "broker-sync", "cluster-sync"
TOPIC, OTHER_TOPIC = TopicConfig("TSync", 3, 5), TopicConfig("TOther", 1, 1)
GROUP = SubscriptionGroupConfig("GSync", retry_max_times=3, consume_broadcast_enable=False)
REQUEST_CODES: dict[type[ConfigTable], RequestCode] = {
    TopicConfigTable: RequestCode.GET_ALL_TOPIC_CONFIG,
    ConsumerOffsetTable: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DelayOffsetTable: RequestCode.GET_ALL_DELAY_OFFSET,
    SubscriptionGroupTable: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
NODE_OPTIONS = (
    "--bind=127.0.0.1",
    f"--name={NAME}",
    f"--cluster={CLUSTER}",
    f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}",
    "--set=maxHashSlotNum=1000",
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Where nodes are left that must be killed at the end."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def master_node(namesrv: NameServer, stack: ExitStack, tmp_path: Path) -> RmqhaNode:
    """A master of ours that the name server knows."""
    port = free_ports()
    options = ("--role=async-master", f"--port={port}", f"--namesrv={namesrv.address}", *NODE_OPTIONS)
    node = _start(RmqhaNode(tmp_path, options, name="our-master"), stack)
    wait_until(lambda: _knows(namesrv, f"{LOCALHOST}:{port}"), "the name server to know our master")
    return node


def _knows(namesrv: NameServer, address: str) -> bool:
    clusters = loads_lenient(ask(namesrv.address, RequestCode.GET_BROKER_CLUSTER_INFO).body)
    return address in clusters["brokerAddrTable"].get(NAME, {}).get("brokerAddrs", {}).values()


def _start(node: RmqhaNode, stack: ExitStack) -> RmqhaNode:
    stack.callback(node.kill)
    node.start()
    return node


def start_slave_node(stack: ExitStack, tmp_path: Path, way_to_master: str) -> RmqhaNode:
    """A slave of ours."""
    options = ("--role=slave", "--port=0", way_to_master, *NODE_OPTIONS)
    return _start(RmqhaNode(tmp_path, options, name="our-slave"), stack)


def address_of(node: RmqhaNode) -> str:
    return f"{LOCALHOST}:{node.port('remoting')}"


def make_topic(address: str, topic: TopicConfig) -> None:
    header = {name: str(value).lower() for name, value in topic.to_json().items()}
    names = {"topic": topic.topic_name, "defaultTopic": "TBW102", "topicFilterType": topic.topic_filter_type.name}
    ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header | names)


def commit(address: str, queue_id: int, offset: int) -> None:
    where = {"topic": TOPIC.topic_name, "consumerGroup": GROUP.group_name, "queueId": str(queue_id)}
    ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, where | {"commitOffset": str(offset)})


def send_delayed(address: str) -> None:
    fields = {"a": "PG", "b": TOPIC.topic_name, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000"}
    ask(address, RequestCode.SEND_MESSAGE_V2, {**fields, "h": "0", "i": "DELAY\x011"}, b"delayed")


def fill(address: str) -> None:
    """Give the master something for each table, and wait until its delayed message is delivered."""
    make_topic(address, TOPIC)
    make_topic(address, OTHER_TOPIC)
    ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps_compact(GROUP.to_json()))
    commit(address, 0, 12)
    commit(address, 2, 7)
    send_delayed(address)
    delivered = DelayOffsetTable({1: 1})
    wait_until(lambda: table_of(address, DelayOffsetTable) == delivered, "the delayed message")


def table_of(address: str, kind: type[ConfigTable]) -> ConfigTable:
    """A table that the broker answers with."""
    return kind.from_json(loads_lenient(ask(address, REQUEST_CODES[kind]).body))


def wait_until_equal(master: str, slave_store: Path) -> None:
    """Wait until all that the master answers with is in the slave's files, too."""
    folder = slave_store / CONFIG_FOLDER
    for kind in REQUEST_CODES:
        wait_until(lambda kind=kind: kind.read(folder) == table_of(master, kind), f"the slave's {kind.FILE_NAME}")  # type: ignore[misc]


def check_that_it_follows(master: str, slave_store: Path) -> None:
    """What the master has, and what changes there, comes to the slave."""
    fill(master)
    wait_until_equal(master, slave_store)
    topics = TopicConfigTable.read(slave_store / CONFIG_FOLDER).topic_config_table
    assert topics[TOPIC.topic_name] == TOPIC
    assert SubscriptionGroupTable.read(slave_store / CONFIG_FOLDER).subscription_group_table["GSync"] == GROUP
    offsets = ConsumerOffsetTable.read(slave_store / CONFIG_FOLDER).offset_table["TSync@GSync"]
    assert offsets == {0: 12, 2: 7}

    ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": OTHER_TOPIC.topic_name})
    commit(master, 0, 5)
    commit(master, 1, 1)
    wait_until_equal(master, slave_store)
    assert OTHER_TOPIC.topic_name not in TopicConfigTable.read(slave_store / CONFIG_FOLDER).topic_config_table
    offsets = ConsumerOffsetTable.read(slave_store / CONFIG_FOLDER).offset_table["TSync@GSync"]
    assert offsets == {0: 5, 1: 1, 2: 7}


def test_a_slave_of_ours_has_the_tables_of_the_java_master_that_the_name_server_knows(
    namesrv: NameServer, java_master: MasterFactory, stack: ExitStack, tmp_path: Path
) -> None:
    master = java_master(name=NAME, cluster=CLUSTER)
    slave = start_slave_node(stack, tmp_path, f"--namesrv={namesrv.address}")
    check_that_it_follows(master.address, slave.store)
    for kind in REQUEST_CODES:
        assert table_of(address_of(slave), kind) == table_of(master.address, kind)
    slave.stop_cleanly()
    for kind in REQUEST_CODES:
        assert kind.read(slave.store / CONFIG_FOLDER) == table_of(master.address, kind)


def test_a_java_slave_has_the_tables_of_its_master_of_ours(master_node: RmqhaNode, java_slave: SlaveFactory) -> None:
    port = master_node.port("remoting")
    slave = java_slave(name=NAME, cluster=CLUSTER, ha_master=f"{LOCALHOST}:{port + HA_PORT_STEP}")
    check_that_it_follows(address_of(master_node), slave.store)


def test_a_slave_of_ours_has_the_tables_of_the_master_of_ours_that_it_is_told_of(
    master_node: RmqhaNode, stack: ExitStack, tmp_path: Path
) -> None:
    slave = start_slave_node(stack, tmp_path, f"--master={LOCALHOST}:{master_node.port('ha')}")
    check_that_it_follows(address_of(master_node), slave.store)
