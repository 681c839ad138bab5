"""A slave takes over its master's topics, groups, consumer offsets and delay offsets, whoever of the two is Java's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqha.store.errors import StoreError
from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConfigTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_compact, loads_lenient
from tests.interop.conftest import MasterFactory, OurBrokerFactory, SlaveFactory
from tests.interop.nodes import OurBroker, ask
from tests.interop.rocketmq import Broker
from tests.waiting import wait_until

pytestmark = pytest.mark.story

AnyBroker = Broker | OurBroker

TABLES: dict[type[ConfigTable], int] = {
    TopicConfigTable: RequestCode.GET_ALL_TOPIC_CONFIG,
    ConsumerOffsetTable: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DelayOffsetTable: RequestCode.GET_ALL_DELAY_OFFSET,
    SubscriptionGroupTable: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
TOPIC_FIELDS = {
    "topic": "TSync-1",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
GROUP = SubscriptionGroupConfig("GSync", consume_broadcast_enable=False, retry_max_times=3)
SEND_FIELDS = {"a": "PG", "b": "TSync-1", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}


def fill(master: AnyBroker, offset: int) -> None:
    """Change each of the master's tables."""
    ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC_FIELDS | {"readQueueNums": str(offset)})
    ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps_compact(GROUP.to_json()))
    where = {"consumerGroup": "GSync", "topic": "TSync-1", "queueId": "1", "commitOffset": str(offset)}
    ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, where)
    ask(master, RequestCode.SEND_MESSAGE_V2, SEND_FIELDS | {"i": "DELAY\x011\x02"}, b"late")


def tables_of(broker: AnyBroker) -> dict[type[ConfigTable], ConfigTable]:
    """As it answers them."""
    return {kind: kind.from_json(loads_lenient(ask(broker, code))) for kind, code in TABLES.items()}


def persisted(store: Path) -> dict[type[ConfigTable], ConfigTable]:
    """As they are on disk, so far."""
    found = {}
    for kind in TABLES:
        with suppress(FileNotFoundError, StoreError):
            found[kind] = kind.read(store / CONFIG_FOLDER)
    return found


def without_answers_version(tables: dict[type[ConfigTable], ConfigTable]) -> dict[type[ConfigTable], ConfigTable]:
    """The tables without the version that our answer about offsets has for 5.x slaves. A 4.9 slave does not keep it."""
    offsets = tables.get(ConsumerOffsetTable)
    if not isinstance(offsets, ConsumerOffsetTable):
        return tables
    return {**tables, ConsumerOffsetTable: replace(offsets, unknown={})}


def is_equal(master: AnyBroker, slave: AnyBroker) -> bool:
    """Whether the slave's files are what the master answers."""
    return without_answers_version(persisted(slave.store)) == without_answers_version(tables_of(master))


def test_four_tables_are_equal_on_the_slaves_of_all_pairings_and_follow_changes(
    java_master: MasterFactory, java_slave: SlaveFactory, our_broker: OurBrokerFactory
) -> None:
    masters: list[AnyBroker] = [java_master(), our_broker("async-master")]
    for master in masters:
        fill(master, 3)
    pairs: list[tuple[AnyBroker, AnyBroker]] = []
    for master in masters:
        names: dict[str, Any] = {"name": master.broker_name, "cluster": master.cluster}
        pairs.append((master, java_slave(ha_master=master.ha_address, broker_id=1, **names)))
        pairs.append((master, our_broker("slave", master=master, brokerId=2)))
    for times in (1, 2):
        for master, slave in pairs:
            wait_until(partial(is_equal, master, slave), f"{slave} to have the tables of {master}")
            offsets = tables_of(slave)[ConsumerOffsetTable]
            assert isinstance(offsets, ConsumerOffsetTable)
            assert offsets.offset_table["TSync-1@GSync"] == {1: 2 + times}
        if times == 1:
            for master in masters:
                fill(master, 4)
