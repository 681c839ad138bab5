"""A master of 5.x: what it has and 4.9 has not is on our slave too, and serves after a promotion."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rmqha.broker.requests.transaction import TRANSACTION_GROUP
from rmqha.broker.tables.topics import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmqha.exitcodes import ExitCode
from rmqha.ha.slave.states import ReplicaState
from rmqha.store.metadata import CONFIG_FOLDER, ConfigTable, SubscriptionGroupTable, TopicConfigTable
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_strict, loads_lenient
from rmqha.wire.record import (
    MESSAGE_MAGIC_CODE_V2,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Blank,
    Record,
    decode_record,
)
from tests.interop import requests
from tests.interop.conftest import MasterFactory, SlaveNodeFactory
from tests.interop.nodes import RmqhaNode, ask, assert_equal_logs
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


def send(broker: Broker, topic: str, count: int) -> None:
    """Send messages to queue 0."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795200000000", "h": "0"}
    for serial in range(count):
        properties = f"UNIQ_KEY\x01{serial:032X}\x02"
        requests.ask(broker.address, RequestCode.SEND_MESSAGE_V2, {**fields, "i": properties}, b"body")


def test_a_copy_with_batch_queues_serves_a_5_x_broker(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, java_brokers: ExitStack, tmp_path: Path
) -> None:
    """We do not write batch consume queues. The node says so, and the way out that it names works."""
    master = java_master(version=V5)
    create_topic(master, "TBatch", "+queue.type=BatchCQ")
    create_topic(master, "TPlain")
    send(master, "TBatch", 30)
    send(master, "TPlain", 20)
    slave = our_slave(master)
    slave.wait_for_offset(master.commit_log_range()[1])

    def warnings() -> str:
        state = slave.state()
        return "" if state is None else " ".join(state.warnings)

    wait_until(lambda: "queue.type=BatchCQ: TBatch" in warnings(), "the warning in state.json")
    assert "move the folders consumequeue and index away" in warnings()
    slave.stop_cleanly()
    verified = subprocess.run([RMQHA, "verify", slave.store], capture_output=True, text=True, check=False)
    assert "batch consume queues, which are not checked: TBatch" in verified.stdout + verified.stderr
    master.kill()
    for folder in ("consumequeue", "index"):
        (slave.store / folder).rename(tmp_path / folder)
    copy = opened_by_java(master, slave, tmp_path / "copy", java_brokers)

    def ends() -> list[int]:
        wanted = ({"topic": topic, "queueId": "0"} for topic in ("TBatch", "TPlain"))
        return [number(copy.address, RequestCode.GET_MAX_OFFSET, **fields) for fields in wanted]

    wait_until(lambda: ends() == [30, 20], "all messages of both topics")


def test_many_topics_and_long_ones_are_copied(java_master: MasterFactory, our_slave: SlaveNodeFactory) -> None:
    """A table of more than 2,000 topics, and a record of format V2: its topic is longer than 127 bytes."""
    master = java_master(version=V5)
    names = [f"TMany{serial:04d}{'x' * 60}" for serial in range(2_100)]
    for name in names:
        create_topic(master, name, "+message.type=DELAY")
    group = "G" * 200
    ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps_strict({"groupName": group}))
    send(master, names[-1], 5)
    for record in records_of(master.store, master.commit_log_range()[1], names[-1]):
        back = {"offset": str(record.physical_offset), "group": group, "delayLevel": "1", "maxReconsumeTimes": "16"}
        ask(master, RequestCode.CONSUMER_SEND_MSG_BACK, back)
    retries = {"topic": f"%RETRY%{group}", "queueId": "0"}
    wait_until(lambda: number(master.address, RequestCode.GET_MAX_OFFSET, **retries) == 5, "the messages to be retried")
    slave = our_slave(master)
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    assert_equal_logs(master.store, slave.store, 0, end)
    assert [record.magic for record in records_of(slave.store, end, f"%RETRY%{group}")] == [MESSAGE_MAGIC_CODE_V2] * 5

    def topics() -> Any:
        return rows_of(TopicConfigTable, TopicConfigTable.read(slave.store / CONFIG_FOLDER).to_json())

    said = rows_of(TopicConfigTable, loads_lenient(ask(master, TABLES[TopicConfigTable])))
    wait_until(lambda: topics() == said, "the slave's topics to be the master's")
    assert len(said) > 2_100
    slave.stop_cleanly()
    verified = subprocess.run([RMQHA, "verify", slave.store], capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stderr


def test_a_sync_master_that_waits_for_nobody_is_told(java_master: MasterFactory, our_slave: SlaveNodeFactory) -> None:
    master = java_master(version=V5, role="SYNC_MASTER")
    slave = our_slave(master)
    slave.wait_for_state(lambda state: any("inSyncReplicas=1" in warning for warning in state.warnings), "a warning")
    assert len([event for event in slave.events("inSyncReplicas=1") if event["level"] == "warn"]) == 1


def test_a_master_in_controller_mode_is_refused(java_master: MasterFactory, tmp_path: Path) -> None:
    master = java_master(version=V5, enableControllerMode=True, controllerAddr=f"127.0.0.1:{free_ports()}")
    options = ["--role=slave", f"--master={master.ha_address}", f"--master-remoting={master.address}", "--port=0"]
    with RmqhaNode(tmp_path, [*options, "--once"], name="once") as once:
        ended = once.ended()
    assert ended.status == ExitCode.USAGE
    (complaint,) = ended.complaints
    assert "the master is in controller mode (enableControllerMode=true)" in complaint
