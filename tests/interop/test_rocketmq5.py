"""A master of 5.x: what it has and 4.9 has not is on our slave too, and serves after a promotion."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rmqha.store.metadata import CONFIG_FOLDER, ConfigTable, SubscriptionGroupTable, TopicConfigTable
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_strict, loads_lenient
from tests.interop.conftest import MasterFactory, SlaveNodeFactory
from tests.interop.nodes import RmqhaNode, ask
from tests.interop.rocketmq import V5, Broker
from tests.waiting import wait_until

TABLES: dict[type[ConfigTable], int] = {
    TopicConfigTable: RequestCode.GET_ALL_TOPIC_CONFIG,
    SubscriptionGroupTable: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
TOPIC = {
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def create_topic(broker: Broker, topic: str, attributes: str = "") -> None:
    """As ``mqadmin updateTopic -a`` of 5.x."""
    ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": topic, "attributes": attributes})


def opened_by_java(master: Broker, slave: RmqhaNode, work: Path, brokers: ExitStack) -> Broker:
    """A master of the same release on the store of a slave that has ended."""
    options: dict[str, Any] = {**master.conf, "version": master.version, "segment_size": master.segment_size}
    broker = Broker(work, store=slave.store, name=master.name, cluster=master.cluster, **options)
    brokers.callback(broker.kill)
    return broker.start()


def rows_of(kind: type[ConfigTable], content: Any) -> Any:
    """The rows of a table in Java's form."""
    return content["topicConfigTable" if kind is TopicConfigTable else "subscriptionGroupTable"]


def test_attributes_outlive_a_promotion(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, java_brokers: ExitStack, tmp_path: Path
) -> None:
    master = java_master(version=V5)
    create_topic(master, "TFifo", "+message.type=FIFO,+reserve.time=3600")
    group = {"groupName": "GFifo", "consumeMessageOrderly": True, "consumeTimeoutMinute": 7, "attributes": {}}
    ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps_strict(group))
    slave = our_slave(master)

    def said(broker: Broker, kind: type[ConfigTable]) -> Any:
        return loads_lenient(ask(broker, TABLES[kind]))

    def held(kind: type[ConfigTable]) -> Any:
        return kind.read(slave.store / CONFIG_FOLDER).to_json()

    wait_until(lambda: all(held(kind) == said(master, kind) for kind in TABLES), "the slave's files to be the master's")
    topic = rows_of(TopicConfigTable, held(TopicConfigTable))["TFifo"]
    assert topic["attributes"] == {"message.type": "FIFO", "reserve.time": "3600"}
    rows = {kind: rows_of(kind, said(master, kind)) for kind in TABLES}
    slave.stop_cleanly()
    master.kill()
    copy = opened_by_java(master, slave, tmp_path / "copy", java_brokers)
    for kind, before in rows.items():
        after = rows_of(kind, said(copy, kind))
        assert {name: after[name] for name in before} == before
