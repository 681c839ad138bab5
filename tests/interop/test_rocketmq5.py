"""A master of 5.x: what it has and 4.9 has not is on our slave too, and serves after a promotion."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rmqha.broker.requests.transaction import TRANSACTION_GROUP
from rmqha.broker.tables.topics import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmqha.ha.slave.states import ReplicaState
from rmqha.store.metadata import CONFIG_FOLDER, ConfigTable, SubscriptionGroupTable, TopicConfigTable
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_strict, loads_lenient
from rmqha.wire.record import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE, Blank, Record, decode_record
from tests.interop import requests
from tests.interop.conftest import MasterFactory, SlaveNodeFactory
from tests.interop.nodes import RmqhaNode, ask
from tests.interop.rocketmq import V5, Broker, commit_log_bytes, free_ports
from tests.waiting import WAIT_SECONDS, wait_until

RMQHA = str(Path(sys.executable).with_name("rmqha"))
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


def promote(slave: RmqhaNode) -> None:
    """Make a running slave the master."""
    command = [str(RMQHA), "promote", str(slave.store), "--to", "async-master"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_SECONDS)
    wait_until(lambda: (state := slave.state()) is not None and state.role == "ASYNC_MASTER", f"{slave} to be a master")


def number(address: str, code: int, **fields: str) -> int:
    """The offset in an answer."""
    return int((requests.ask(address, code, fields).ext_fields or {})["offset"])


def records_of(store: Path, end: int, topic: str) -> list[Record]:
    """The messages of a topic in a store's log up to an offset."""
    data, found = commit_log_bytes(store, 0, end), []
    while data:
        raw, data = data[: int.from_bytes(data[:4])], data[int.from_bytes(data[:4]) :]
        record = decode_record(raw)
        if not isinstance(record, Blank) and record.topic == topic:
            found.append(record)
    return found


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


def test_ended_transactions_are_not_checked_again(java_master: MasterFactory, our_slave: SlaveNodeFactory) -> None:
    """5.x notes the ends of several in one operation message, some time later."""
    master = java_master(version=V5)
    create_topic(master, "TTx")
    count = 12
    for serial in range(count):
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01PTx\x02UNIQ_KEY\x01{serial:032X}\x02"
        fields = {"a": "PTx", "b": "TTx", "c": "TBW102", "d": "4", "e": "1", "f": "4", "g": "1795200000000", "h": "0"}
        sent = requests.ask(master.address, RequestCode.SEND_MESSAGE_V2, {**fields, "i": properties}, b"body")
        found = sent.ext_fields or {}
        end = {
            "producerGroup": "PTx",
            "tranStateTableOffset": found["queueOffset"],
            "commitLogOffset": str(int(found["msgId"][-16:], 16)),
            "commitOrRollback": str(TRANSACTION_COMMIT_TYPE if serial % 2 else TRANSACTION_ROLLBACK_TYPE),
            "fromTransactionCheck": "false",
            "msgId": f"{serial:032X}",
        }
        requests.ask(master.address, RequestCode.END_TRANSACTION, end)
    operations = {"topic": TRANS_OP_HALF_TOPIC, "queueId": "0"}
    wait_until(lambda: number(master.address, RequestCode.GET_MAX_OFFSET, **operations) > 0, "the ends to be noted")
    address = f"127.0.0.1:{free_ports()}"
    options = ("--set=transactionCheckInterval=500", "--set=transactionTimeOut=1")
    slave = our_slave(master, f"--port={address.rpartition(':')[2]}", *options)
    end_of_log = master.commit_log_range()[1]
    slave.wait_for_offset(end_of_log)
    wait_until(lambda: (slave.store / CONFIG_FOLDER / "topics.json").exists(), "the tables")
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    promote(slave)
    progress = {"consumerGroup": TRANSACTION_GROUP, "topic": TRANS_HALF_TOPIC, "queueId": "0"}
    wait_until(
        lambda: number(address, RequestCode.QUERY_CONSUMER_OFFSET, **progress) >= count,
        "all half messages to be checked",
    )
    half = number(address, RequestCode.GET_MAX_OFFSET, topic=TRANS_HALF_TOPIC, queueId="0")
    assert half == count, "a half message that is checked is put again"
    bodies = [record.body for record in records_of(slave.store, end_of_log, TRANS_OP_HALF_TOPIC)]
    assert max(body.count(b",") for body in bodies) > 1, "5.x wrote a batch"
    assert sum(body.count(b",") for body in bodies) == count
