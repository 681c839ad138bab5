"""A master of 5.x: what it has and 4.9 has not is on our slave too, and serves after a promotion."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.metadata import CONFIG_FOLDER, ConfigTable, SubscriptionGroupTable, TopicConfigTable
from rmqha.store.timers import TimerCheckPoint
from rmqha.testing.nodes import NameServerNode
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import dumps_strict, loads_lenient
from rmqha.wire.layout import MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import (
    COMPRESSION_TYPE_MASK,
    INNER_BATCH_FLAG,
    LZ4_COMPRESSION_TYPE,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    ZLIB_COMPRESSION_TYPES,
    ZSTD_COMPRESSION_TYPE,
    Blank,
    Record,
    decode_record,
)
from rmqha.wire.timers import TIMER_TOPIC
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, TRANSACTION_GROUP
from tests.commands import output_of, rmqha
from tests.interop import requests
from tests.interop.conftest import (
    SEGMENT_SIZE,
    MasterFactory,
    OurBrokerFactory,
    SlaveFactory,
    SlaveNodeFactory,
    start_our_broker,
)
from tests.interop.nodes import OurBroker, RmqhaNode, ask, assert_equal_logs, log_end_of, wait_until_dispatched
from tests.interop.rocketmq import (
    SMALL_FILES,
    V5,
    Broker,
    Driver,
    NameServer,
    client_of_5,
    commit_log_bytes,
    free_ports,
)
from tests.interop.test_java_master import spoil
from tests.interop.test_namesrv import TOPIC_FIELDS, wait_for_brokers
from tests.waiting import wait_until

pytestmark = pytest.mark.story

TABLES: dict[type[ConfigTable], int] = {
    TopicConfigTable: RequestCode.GET_ALL_TOPIC_CONFIG,
    SubscriptionGroupTable: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
CHECKS_NOTHING = {"transactionCheckInterval": 3_600_000}
"""A master that checks no transaction during a test: what a check commits may come too late for the slave."""
HALF_PROGRESS = {"consumerGroup": TRANSACTION_GROUP, "topic": HALF_TOPIC, "queueId": "0"}
"""How far the check of transactions has come."""


def create_topic(broker: Broker, topic: str, attributes: str = "") -> None:
    """As ``mqadmin updateTopic -a`` of 5.x."""
    ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC_FIELDS, "topic": topic, "attributes": attributes})


def opened_by_java(master: Broker, slave: RmqhaNode, work: Path, brokers: ExitStack) -> Broker:
    """A master of the same release on the store of a slave that has ended."""
    options: dict[str, Any] = {**master.conf, "version": master.version, "segment_size": master.segment_size}
    broker = Broker(work, store=slave.store, name=master.name, cluster=master.cluster, **options)
    brokers.callback(broker.kill)
    return broker.start()


def promote(slave: RmqhaNode) -> None:
    """Make a running slave the master."""
    rmqha("promote", slave.store, "--to", "async-master").check_returncode()
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


def ends_noted(master: Broker) -> int:
    """How many transactions are ended, as the operation messages say."""
    end = master.commit_log_range()[1]
    return sum(record.body.count(b",") for record in records_of(master.store, end, OPERATION_TOPIC))


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


def test_answers_to_sends_have_the_fields_of_a_5_x_master(
    java_master: MasterFactory, our_broker: OurBrokerFactory
) -> None:
    """A proxy gives them to gRPC clients."""
    settings = {"timerWheelEnable": "true"}
    addresses = [java_master(version=V5).address, our_broker("async-master", **settings).address]
    due = str(time.time_ns() // 1_000_000 + 3_600_000)
    entries = encode_batch([BatchEntry(b"x", f"UNIQ_KEY\x01{number:032X}", 0) for number in range(2)])
    ways: dict[str, tuple[str, bytes, dict[str, str]]] = {
        "plain": ("", b"x", {}),
        "delayed": ("DELAY\x011\x02", b"x", {}),
        "half": ("TRAN_MSG\x01true\x02PGROUP\x01P\x02", b"x", {}),
        "timer": (f"TIMER_DELIVER_MS\x01{due}\x02", b"x", {}),
        "retry": ("", b"x", {"b": "%RETRY%G", "j": "1"}),
        "dead letter": ("", b"x", {"b": "%RETRY%G", "j": "17"}),
        "batch": ("", entries, {"m": "true"}),
    }
    answers: list[dict[str, set[str]]] = [{}, {}]
    for address, found in zip(addresses, answers, strict=True):
        for way, (properties, body, changed) in ways.items():
            for key in ("", f"UNIQ_KEY\x01{7:032X}\x02"):
                fields = {"a": "P", "b": "TAnswers", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795200000000"}
                fields |= {"h": "0", "i": f"{properties}{key}", **changed}
                code = RequestCode.SEND_BATCH_MESSAGE if "m" in changed else RequestCode.SEND_MESSAGE_V2
                said = requests.ask(address, code, fields, body).ext_fields or {}
                found[f"{way} {bool(key)}"] = set(said)
                assert said.get("transactionId") == f"{7:032X}" or not key, (way, said)
    java, ours = answers
    for way, names in java.items():
        made_by_java = set() if way.endswith("True") else {"transactionId"}  # it makes a key where there is none
        assert names - made_by_java == ours[way] - made_by_java, way


def test_a_5_x_slave_takes_topics_with_attributes(our_broker: OurBrokerFactory, java_slave: SlaveFactory) -> None:
    """The reader of 5.3.3 leaves all topics out if one attribute is not a change, or is one that it does not know."""
    master = our_broker("async-master")
    attributes = "+message.type=FIFO,+lite.topic.expiration=7"
    fields = {**TOPIC_FIELDS, "topic": "TFifoOurs", "attributes": attributes}
    requests.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    slave = java_slave(version=V5, name=master.broker_name, cluster=master.cluster)
    table = slave.store / CONFIG_FOLDER / "topics.json"
    wait_until(partial(holds, table, "TFifoOurs"), "the slave to have the topic")
    assert TopicConfigTable.read(slave.store / CONFIG_FOLDER).rows["TFifoOurs"].unknown["attributes"] == {
        "message.type": "FIFO"
    }


def test_ended_transactions_are_not_checked_again(java_master: MasterFactory, our_slave: SlaveNodeFactory) -> None:
    """5.x notes the ends of several in one operation message, some time later."""
    master = java_master(version=V5, **CHECKS_NOTHING)
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
    wait_until(lambda: ends_noted(master) >= count, "the ends to be noted")
    address = f"127.0.0.1:{free_ports()}"
    options = ("--set=transactionCheckInterval=500", "--set=transactionTimeOut=1")
    slave = our_slave(master, f"--port={address.rpartition(':')[2]}", *options)
    end_of_log = master.commit_log_range()[1]
    slave.wait_for_offset(end_of_log)
    wait_until(lambda: (slave.store / CONFIG_FOLDER / "topics.json").exists(), "the tables")
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    promote(slave)
    wait_until(
        lambda: number(address, RequestCode.QUERY_CONSUMER_OFFSET, **HALF_PROGRESS) >= count,
        "all half messages to be checked",
    )
    half = number(address, RequestCode.GET_MAX_OFFSET, topic=HALF_TOPIC, queueId="0")
    assert half == count, "a half message that is checked is put again"
    bodies = [record.body for record in records_of(slave.store, end_of_log, OPERATION_TOPIC)]
    assert max(body.count(b",") for body in bodies) > 1, "5.x wrote a batch"
    assert sum(body.count(b",") for body in bodies) == count


def test_a_producer_is_not_asked_about_ended_transactions(
    java_master: MasterFactory, our_broker: OurBrokerFactory, driver: Driver
) -> None:
    """Its listener counts the checks. It left some transactions open, so that the new master has some to check."""
    master = java_master(version=V5, **CHECKS_NOTHING)
    create_topic(master, "TTxListener")
    sender = {"name": "transaction", "topic": "TTxListener", "kind": "transaction", "count": 20}
    receiver = {"name": "of-transaction", "group": "GTx", "topic": "TTxListener", "kind": "concurrent"}
    plan = {
        "topics": {"TTxListener": 2},
        "producers": [sender],
        "consumers": [receiver],
        "seconds": 10**6,
        "until": [[["of-transaction"], 10**9]],
    }
    quick = {"transactionCheckInterval": 1000, "transactionTimeOut": 1, "transactionCheckMax": 1000}
    slave = our_broker("slave", master=master, **quick)

    def numbers(*clients: str) -> list[int]:
        return sorted(int(key.rpartition("-")[2]) for key in clients_run.consumed(*clients))

    with driver.start_clients(plan) as clients_run:
        wait_until(lambda: len(clients_run.consumed("transaction")) == 20, "all half messages to be sent")
        ended = [number for number in range(20) if number % 5 < 2]
        wait_until(lambda: ends_noted(master) >= len(ended), "the ends to be noted")
        assert not set(numbers("checks-of-transaction")) & set(ended)
        slave.wait_for_offset(master.commit_log_range()[1])
        wait_until(lambda: (slave.store / CONFIG_FOLDER / "topics.json").exists(), "the tables")
        master.kill()
        slave.wait_for(ReplicaState.CONNECTING)
        promote(slave)
        committed = [number for number in range(20) if number % 5 in (0, 3, 4)]
        wait_until(lambda: len(set(numbers("of-transaction"))) == len(committed), "all committed messages")
        wait_until(
            lambda: (
                number(slave.address, RequestCode.QUERY_CONSUMER_OFFSET, **HALF_PROGRESS)
                == number(slave.address, RequestCode.GET_MAX_OFFSET, topic=HALF_TOPIC, queueId="0")
            ),
            "all half messages to be ended",
        )
        checked = numbers("checks-of-transaction")
        assert set(checked) == {each for each in range(20) if each % 5 > 1}, "only open transactions are checked"
        received = numbers("of-transaction")
    assert received == committed, "none comes twice, and none that was rolled back"


def send(broker: Broker, topic: str, count: int) -> None:
    """Send messages to queue 0."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795200000000", "h": "0"}
    for serial in range(count):
        properties = f"UNIQ_KEY\x01{serial:032X}\x02"
        requests.ask(broker.address, RequestCode.SEND_MESSAGE_V2, {**fields, "i": properties}, b"body")


def send_batch(broker: Broker, topic: str, count: int, size: int = 20) -> None:
    """Send one batch to queue 0, as a 5.x producer does."""
    entries = [BatchEntry(bytes([65 + number % 26]) * size, f"KEYS\x01k{number}") for number in range(count)]
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795200000000", "h": "0"}
    fields |= {"i": f"UNIQ_KEY\x01{count:032X}\x02TAGS\x01Tag{count}\x02", "m": "true"}
    requests.ask(broker.address, RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(entries))


def queue_files(store: Path, folder: str) -> dict[str, bytes]:
    """The content of all queue files below a folder, without the zeros at the end."""
    paths = sorted((store / folder).glob("*/*/*"))
    return {str(path.relative_to(store)): path.read_bytes().rstrip(b"\0") for path in paths}


def pulled(address: str, topic: str, offset: int, most: int) -> tuple[int, Any, bytes]:
    """What the broker answers a pull: code, offsets and messages."""
    fields = {"consumerGroup": "G", "topic": topic, "queueId": "0", "queueOffset": str(offset), "sysFlag": "4"}
    fields |= {"maxMsgNums": str(most), "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    answer = requests.any_answer(address, RequestCode.PULL_MESSAGE, fields | {"subVersion": "0"})
    found = answer.ext_fields or {}
    return answer.code, [found.get(name) for name in ("nextBeginOffset", "minOffset", "maxOffset")], answer.body


def test_batch_queues_are_those_of_a_5_x_broker(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, java_brokers: ExitStack, tmp_path: Path
) -> None:
    """Byte for byte, in our slave and after a rebuild. A promoted slave serves them as the master did, and Java too."""
    unit, file_units = 46, 25
    master = java_master(version=V5, mapperFileSizeBatchConsumeQueue=unit * file_units)
    group = {"groupName": "G", "attributes": {}}
    ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps_strict(group))
    create_topic(master, "TBatch", "+queue.type=BatchCQ")
    create_topic(master, "TPlain")
    for number in range(1, 31):
        send_batch(master, "TBatch", number)
        send(master, "TBatch", number % 3)
        send(master, "TPlain", 1)
    count = 30 * 31 // 2 + 30
    wait_until(lambda: number_of(master.address, "TBatch") == count, "the master to have built its queue of batches")
    address = f"127.0.0.1:{free_ports()}"
    slave = our_slave(master, f"--port={address.rpartition(':')[2]}")
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    wait_until(lambda: bool(queue_files(slave.store, "batchconsumequeue")), "the slave to know the type of the topic")
    topics = slave.store / CONFIG_FOLDER / "topics.json"
    wait_until(partial(holds, topics, "TBatch"), "the slave to have the topics")
    batches = [record for record in records_of(slave.store, end, "TBatch") if record.sys_flag & INNER_BATCH_FLAG]
    assert len(batches) == 30, "5.3.3 stores each batch as one record"
    asked = [(0, 32), (0, 1), (3, 2), (17, 32), (count - 1, 1), (count, 1), (count + 5, 1), (250, 40)]
    pulls = [pulled(master.address, "TBatch", *each) for each in asked]
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    theirs = queue_files(master.store, "batchconsumequeue")
    assert len(theirs) == 3
    assert sum(map(len, theirs.values())) // unit >= 50
    wait_until(lambda: queue_files(slave.store, "batchconsumequeue") == theirs, "the queues to be those of the master")
    assert not (slave.store / "consumequeue" / "TBatch").exists()
    promote(slave)
    for each, expected in zip(asked, pulls, strict=True):
        assert pulled(address, "TBatch", *each) == expected, each
    send_to_ours = {
        "a": "P",
        "b": "TBatch",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1795200000000",
        "h": "0",
    }
    sent = requests.ask(address, RequestCode.SEND_MESSAGE_V2, send_to_ours, b"body").ext_fields or {}
    assert int(sent["queueOffset"]) == count, "the next offset counts the messages of batches"
    wait_until(lambda: number_of(address, "TBatch") == count + 1, "our master to have built its queue")
    slave.stop_cleanly()
    kept = queue_files(slave.store, "batchconsumequeue")
    for command in ("verify", "rebuild", "verify"):
        ended = rmqha(command, slave.store)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert queue_files(slave.store, "batchconsumequeue") == kept
    copy = opened_by_java(master, slave, tmp_path / "copy", java_brokers)
    wait_until(lambda: number_of(copy.address, "TBatch") == count + 1, "Java to serve all messages")
    for each, expected in list(zip(asked, pulls, strict=True))[:4]:
        assert pulled(copy.address, "TBatch", *each)[2] == expected[2], each
    send_batch(copy, "TBatch", 5)
    wait_until(lambda: number_of(copy.address, "TBatch") == count + 6, "Java to go on")


def number_of(address: str, topic: str) -> int:
    """The end of queue 0 of a topic."""
    return number(address, RequestCode.GET_MAX_OFFSET, topic=topic, queueId="0")


def send_timer(broker: Broker | OurBroker, topic: str, delay_ms: int) -> None:
    """Send a message that is due in this time, as ``setDelayTimeMs`` of 5.x."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795200000000", "h": "0"}
    properties = f"UNIQ_KEY\x01{delay_ms:032X}\x02TIMER_DELAY_MS\x01{delay_ms}\x02"
    requests.ask(broker.address, RequestCode.SEND_MESSAGE_V2, {**fields, "i": properties}, b"body")


def deliver_timers(master: Broker, count: int) -> None:
    """Timer messages come to the topic TTimer, and wait no more."""
    create_topic(master, "TTimer")
    for _ in range(count):
        send_timer(master, "TTimer", 3_000)
    wait_until(lambda: number_of(master.address, "TTimer") == count, "the messages that are due")


def test_timer_messages_are_neither_lost_nor_all_repeated(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, java_brokers: ExitStack, tmp_path: Path
) -> None:
    """A Java broker starts on our copy, which has the master's check point, but not its wheel."""
    master = java_master(version=V5, timerFlushIntervalMs=1_000)  # then it tells slaves how far it is
    delivered, waiting, wait_ms = 20, 7, 90_000
    deliver_timers(master, delivered)
    sent_at = time.time() * 1000
    for _ in range(waiting):
        send_timer(master, "TTimer", wait_ms)
    slave = our_slave(master)
    slave.wait_for_offset(master.commit_log_range()[1])

    def point() -> TimerCheckPoint | None:
        return TimerCheckPoint.read(slave.store / CONFIG_FOLDER)

    wait_until(lambda: (found := point()) is not None and found.queue_offset == delivered, "the check point")
    master.kill()
    slave.stop_cleanly()
    told = output_of("promote", slave.store, "--dry-run", "--force")
    assert f"{waiting} timer messages of RocketMQ 5.x wait ({waiting} of TTimer)" in told
    copy = opened_by_java(master, slave, tmp_path / "copy", java_brokers)
    send_timer(copy, "TTimer", 2_000)
    wait_until(lambda: number_of(copy.address, "TTimer") > delivered, "a message that came later to be delivered")
    if time.time() * 1000 < sent_at + wait_ms - 5_000:  # else a slow machine has let the others become due
        assert number_of(copy.address, "TTimer") == delivered + 1, "delivered messages are not delivered again"
    wait_until(lambda: number_of(copy.address, "TTimer") == delivered + 1 + waiting, "the messages that waited")


def test_our_slave_delivers_the_timer_messages_of_a_5_x_master_when_it_leads(
    java_master: MasterFactory, our_broker: OurBrokerFactory, java_brokers: ExitStack, tmp_path: Path
) -> None:
    """What waits is delivered, nothing twice. Then a Java broker takes over again, and loses nothing either."""
    master = java_master(version=V5, timerFlushIntervalMs=1_000)  # then it tells slaves how far it is
    delivered, waiting, wait_ms = 20, 7, 90_000  # time enough until the slave has the check point
    deliver_timers(master, delivered)
    slave = our_broker("slave", master=master)
    sent_at = time.time() * 1000
    for _ in range(waiting):
        send_timer(master, "TTimer", wait_ms)
    slave.wait_for_offset(master.commit_log_range()[1])

    def point() -> TimerCheckPoint | None:
        return TimerCheckPoint.read(slave.store / CONFIG_FOLDER)

    wait_until(lambda: (found := point()) is not None and found.queue_offset == delivered, "the check point")
    wait_until(partial(holds, slave.store / CONFIG_FOLDER / "topics.json", "TTimer"), "the slave to have the topics")
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    promote(slave)
    wait_until(lambda: number_of(slave.address, "TTimer") == delivered + waiting, "the messages that waited")
    assert time.time() * 1000 >= sent_at + wait_ms - 2000, "none came before its time"
    send_timer(slave, "TTimer", 2_000)
    wait_until(lambda: number_of(slave.address, "TTimer") == delivered + waiting + 1, "a message sent to our master")
    for _ in range(waiting):
        send_timer(slave, "TTimer", 30_000)
    slave.stop_cleanly()
    copy = opened_by_java(master, slave, tmp_path / "copy", java_brokers)
    wait_until(lambda: number_of(copy.address, "TTimer") == delivered + 1 + 2 * waiting, "what waited at our master")
    send_timer(copy, "TTimer", 2_000)
    wait_until(lambda: number_of(copy.address, "TTimer") == delivered + 2 + 2 * waiting, "Java to go on")


def test_timer_messages_of_a_5_x_client(
    our_broker: OurBrokerFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    """It tells the time in three ways, and takes one message back."""
    master = our_broker("async-master", timerWheelEnable="true", recallMessageEnable="true")
    driver.create_topic(master.cluster, "TTimer5", 1)
    seconds, count = 15, 9
    sent = client_of_5(tmp_path / "timer", "timer", namesrv.address, "TTimer5", count, seconds)
    assert sent == str(count)
    bodies = client_of_5(tmp_path / "consume", "consume", namesrv.address, "TTimer5", "GTimer5", count).split()
    assert bodies == sorted(f"body{number}" for number in range(count))
    found = records_of(master.store, log_end_of(master.address), "TTimer5")
    assert all(record.store_timestamp - record.born_timestamp >= (seconds - 1) * 1000 for record in found)
    waited = records_of(master.store, log_end_of(master.address), TIMER_TOPIC)
    assert len(waited) == count + 2, "one that was taken back, and what took it back"
    last = max(int(record.properties["TIMER_OUT_MS"]) for record in waited)
    wait_until(lambda: time.time() * 1000 > last + 5_000, "the time of the message that was taken back")
    assert number_of(master.address, "TTimer5") == count


def test_a_5_x_slave_copies_our_master(our_broker: OurBrokerFactory, java_slave: SlaveFactory, driver: Driver) -> None:
    """With ``haMasterAddress`` a slave of 5.3.3 does not connect. It finds its master by the name server.

    Our SYNC_MASTER waits for it.
    """
    master = our_broker("sync-master", inSyncReplicas=2)
    driver.create_topic(master.cluster, "TOurs5", 2)
    assert driver.send("TOurs5", 200, 500).statuses == {"SLAVE_NOT_AVAILABLE": 200}
    assert driver.consume("TOurs5", "GOurs5", 200).count == 200
    committed = {"consumerGroup": "GOurs5", "topic": "TOurs5", "queueId": "1", "commitOffset": "77"}
    requests.ask(master.address, RequestCode.UPDATE_CONSUMER_OFFSET, committed)
    slave = java_slave(version=V5, name=master.broker_name, cluster=master.cluster)
    slave.wait_for_offset(log_end_of(master.address))
    wait_until(lambda: driver.send("TOurs5", 1, 500).statuses == {"SEND_OK": 1}, "the slave to count")
    assert driver.send("TOurs5", 100, 500).statuses == {"SEND_OK": 100}
    end = log_end_of(master.address)
    slave.wait_for_offset(end)
    assert_equal_logs(slave.store, master.store, 0, end)
    for name, wanted in (("topics", "TOurs5"), ("subscriptionGroup", "GOurs5"), ("consumerOffset", "TOurs5@GOurs5")):
        table = slave.store / CONFIG_FOLDER / f"{name}.json"
        wait_until(partial(holds, table, wanted), f"the slave to have {wanted}")
    slave.kill()
    wait_until(lambda: set(driver.send("TOurs5", 1, 500).statuses) == {"SLAVE_NOT_AVAILABLE"}, "the slave to be missed")


def holds(path: Path, text: str) -> bool:
    """Whether the file is there and has the text."""
    return path.exists() and text.encode() in path.read_bytes()


def test_a_5_x_broker_and_ours_take_turns_on_one_store(
    our_broker: OurBrokerFactory, java_brokers: ExitStack, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    ours = our_broker("async-master")
    driver.create_topic(ours.cluster, "TTurns5", 2)
    assert driver.send("TTurns5", 100, 300).statuses == {"SEND_OK": 100}
    settings: dict[str, Any] = {**SMALL_FILES, "segment_size": SEGMENT_SIZE, "namesrv": namesrv.address}
    settings |= {"name": ours.broker_name, "cluster": ours.cluster, "listen_port": ours.listen_port}
    ours.stop_cleanly()
    java = Broker(tmp_path / "java5", store=ours.store, version=V5, **settings)
    java_brokers.callback(java.kill)
    java.start()
    assert driver.consume("TTurns5", "GTurns5", 100).count == 100
    assert driver.send("TTurns5", 50, 300).statuses == {"SEND_OK": 50}
    wait_until_dispatched(java.address)
    ends, log_end = driver.queue_ends("TTurns5"), java.commit_log_range()[1]
    java.stop()
    units = queue_files(ours.store, "consumequeue")
    ours.start()
    assert log_end_of(ours.address) >= log_end
    assert driver.queue_ends("TTurns5") == ends
    assert driver.consume("TTurns5", "GTurns5Again", 150).count == 150
    assert driver.send("TTurns5", 10, 300).statuses == {"SEND_OK": 10}
    ours.stop_cleanly()
    after = queue_files(ours.store, "consumequeue")
    assert all(after[name].startswith(data) for name, data in units.items())
    verified = rmqha("verify", ours.store)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    ours.start()
    assert driver.send("TTurns5", 20, 300).statuses == {"SEND_OK": 20}
    ours.kill()
    java.start()  # after our process was killed
    assert driver.consume("TTurns5", "GTurns5Killed", 180).count == 180


def test_messages_that_pop_consumers_hold_are_counted_before_a_promotion(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    """A Java master of 5.x dies before anybody has acknowledged what it had handed out."""
    master = java_master(version=V5)
    driver.create_topic(master.cluster, "TPopped", 1)
    assert driver.send("TPopped", 20, 100).statuses == {"SEND_OK": 20}
    wait_until_dispatched(master.address)
    slave = our_slave(master)
    pop = {"consumerGroup": "GPopped", "topic": "TPopped", "queueId": "0", "maxMsgNums": "32", "initMode": "0"}
    times = {"invisibleTime": "600000", "pollTime": "30000", "bornTime": str(int(time.time() * 1000)), "order": "false"}
    before = master.commit_log_range()[1]
    assert ask(master, RequestCode.POP_MESSAGE, {**pop, **times})
    wait_until(lambda: master.commit_log_range()[1] > before, "the master to note what it has handed out")
    slave.wait_for_offset(master.commit_log_range()[1])
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    said = output_of("promote", slave.store, "--dry-run", "--json")
    assert loads_lenient(said.encode())["poppedMessages"] == 20


def test_a_5_x_broker_works_with_our_name_server(
    our_namesrv: NameServerNode, our_driver: Driver, java_master: MasterFactory
) -> None:
    master = java_master(version=V5, namesrv=our_namesrv.address)
    our_driver.create_topic(master.cluster, "TNames5", 2)
    assert our_driver.send("TNames5", 40, 100).statuses == {"SEND_OK": 40}
    assert our_driver.consume("TNames5", "GNames5", 40).count == 40


def test_a_5_x_client_works_with_our_pair(
    our_broker: OurBrokerFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    """It sends to our master and consumes there; after a failover it goes on with our slave."""
    master = our_broker("async-master")
    driver.create_topic(master.cluster, "TClient5", 2)
    slave = our_broker("slave", master=master)
    sent = [client_of_5(tmp_path / "send", "send", namesrv.address, "TClient5", 30, batch) for batch in (1, 7)]
    assert sent == ["30", "30"]
    wanted = sorted(f"body{number}" for number in range(30) for _ in sent)
    assert client_of_5(tmp_path / "one", "consume", namesrv.address, "TClient5", "GOne", 60).split() == wanted
    slave.wait_for_offset(log_end_of(master.address))
    topics = slave.store / CONFIG_FOLDER / "topics.json"
    wait_until(partial(holds, topics, "TClient5"), "the slave to have the topics")
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    promote(slave)
    wait_for_brokers(namesrv.address, slave.broker_name, (0, slave))
    assert client_of_5(tmp_path / "more", "send", namesrv.address, "TClient5", 10, 1) == "10"
    more = sorted([*wanted, *(f"body{number}" for number in range(10))])
    assert client_of_5(tmp_path / "two", "consume", namesrv.address, "TClient5", "GTwo", 70).split() == more


def test_all_kinds_of_messages_of_a_5_x_client(
    our_broker: OurBrokerFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    """It sends to our master: delayed messages, transactions, and messages for an orderly consumer."""
    master = our_broker(
        "async-master",
        messageDelayLevel="1s 2s",
        transactionCheckInterval=1000,
        transactionTimeOut=10_000,  # else a check overtakes a slow producer, and commits what it rolls back
    )
    for topic in ("TDelay5", "TTransaction5", "TOrder5"):
        driver.create_topic(master.cluster, topic, 2)

    def asks(*words: object) -> list[str]:
        return client_of_5(tmp_path / str(words[0]), words[0], namesrv.address, *words[1:]).split()

    assert asks("delay", "TDelay5", 10) == ["10"]
    assert asks("consume", "TDelay5", "GDelay5", 10) == sorted(f"body{number}" for number in range(10))
    delayed = records_of(master.store, log_end_of(master.address), "TDelay5")
    assert all(record.store_timestamp - record.born_timestamp >= 1000 for record in delayed)
    committed = sorted(f"body{number}" for number in range(12) if number % 3 != 1)
    assert asks("transaction", "TTransaction5", "GTransaction5", 12) == committed
    assert asks("send", "TOrder5", 20, 1) == ["20"]
    consumed = [text.split(":") for text in asks("orderly", "TOrder5", "GOrder5", 20)]
    for queue in ("0", "1"):
        bodies = [int(body.removeprefix("body")) for number, body in consumed if number == queue]
        assert len(bodies) == 10
        assert bodies == sorted(bodies)


def test_our_pair_works_with_a_5_x_name_server(java_brokers: ExitStack, tmp_path: Path) -> None:
    """Our slave finds its master by it, a 5.x client both."""
    server = NameServer(tmp_path / "namesrv5", version=V5)
    java_brokers.callback(server.kill)
    server.start()
    names: dict[str, Any] = {"name": "broker-names5", "cluster": "cluster-names5"}
    master = start_our_broker(server, java_brokers, tmp_path, "async-master", **names)
    slave = start_our_broker(server, java_brokers, tmp_path, "slave", **names)
    Driver(server.address, tmp_path / "driver5").create_topic("cluster-names5", "TNamed5", 2)
    assert client_of_5(tmp_path / "send", "send", server.address, "TNamed5", 30, 1) == "30"
    slave.wait_for_offset(log_end_of(master.address))
    topics = slave.store / CONFIG_FOLDER / "topics.json"
    wait_until(partial(holds, topics, "TNamed5"), "the slave to have the topic")
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    wanted = sorted(f"body{number}" for number in range(30))
    assert client_of_5(tmp_path / "consume", "consume", server.address, "TNamed5", "GNamed5", 30).split() == wanted


def test_our_slave_finds_a_5_x_master_by_its_name_server(
    java_master: MasterFactory, our_broker: OurBrokerFactory, namesrv: NameServer
) -> None:
    master = java_master(version=V5)
    create_topic(master, "TFound5")
    send(master, "TFound5", 20)
    slave = our_broker("slave", name=master.name, cluster=master.cluster)
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    assert_equal_logs(slave.store, master.store, 0, end)


def test_a_5_x_slave_finds_our_master_by_our_name_server(
    our_namesrv: NameServerNode,
    our_driver: Driver,
    java_slave: SlaveFactory,
    java_brokers: ExitStack,
    tmp_path: Path,
) -> None:
    names: dict[str, Any] = {"name": "broker-slave5", "cluster": "cluster-slave5"}
    master = start_our_broker(our_namesrv, java_brokers, tmp_path, "async-master", **names)
    our_driver.create_topic(master.cluster, "TSlave5", 2)
    assert our_driver.send("TSlave5", 200, 500).statuses == {"SEND_OK": 200}
    slave = java_slave(version=V5, namesrv=our_namesrv.address, **names)
    end = log_end_of(master.address)
    slave.wait_for_offset(end)
    assert_equal_logs(slave.store, master.store, 0, end)
    wait_for_brokers(our_namesrv.address, master.broker_name, (0, master), (1, slave))


def test_our_master_takes_the_place_of_a_5_x_master(
    java_master: MasterFactory,
    java_slave: SlaveFactory,
    our_broker: OurBrokerFactory,
    namesrv: NameServer,
    driver: Driver,
) -> None:
    """On its store and its port. A slave of 5.3.3 that was away has the rest from it, and what comes then."""
    master = java_master(version=V5)
    names: dict[str, Any] = {"name": master.name, "cluster": master.cluster}
    slave = java_slave(version=V5, **names)
    wait_for_brokers(namesrv.address, master.name, (0, master), (1, slave))
    driver.create_topic(master.cluster, "TPlace5", 2)
    assert driver.send("TPlace5", 100, 500).statuses == {"SEND_OK": 100}
    slave.wait_for_offset(master.commit_log_range()[1])
    slave.stop()
    assert driver.send("TPlace5", 1_000, 500).statuses == {"SEND_OK": 1_000}
    assert master.commit_log_range()[1] > 2 * SEGMENT_SIZE
    master.stop()
    ours = our_broker("async-master", store=master.store, listen_port=master.listen_port, **names)
    slave.start()
    wait_until(lambda: driver.send("TPlace5", 1, 500).statuses == {"SEND_OK": 1}, "the producer to find our master")
    end = log_end_of(ours.address)
    slave.wait_for_offset(end)
    assert_equal_logs(slave.store, ours.store, 0, end)


def test_a_repair_from_a_5_x_master(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, namesrv: NameServer, driver: Driver
) -> None:
    """By command, and by the slave itself as it starts."""
    master = java_master(version=V5)
    wait_for_brokers(namesrv.address, master.name, (0, master))
    driver.create_topic(master.cluster, "TRepair5")
    assert driver.send("TRepair5", 300, 5_000).statuses == {"SEND_OK": 300}
    slave = our_slave(master)
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    slave.stop_cleanly()
    spoil(slave.store, [7, 100, 2 * SEGMENT_SIZE + 10_000, end - 3000])
    done = rmqha("repair", slave.store, "--from", master.ha_address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("repaired ") == 3, done.stdout
    assert_equal_logs(slave.store, master.store, 0, end)
    spoil(slave.store, [end - 3000])
    again = our_slave(master, store=slave.store)
    again.wait_for_offset(end)
    again.wait_for(ReplicaState.IN_SYNC)
    assert_equal_logs(slave.store, master.store, 0, end)


def test_what_a_5_x_client_fails_to_consume_is_tried_again_and_is_dead_at_last(
    our_broker: OurBrokerFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    master = our_broker("async-master", messageDelayLevel="1s 1s 1s 1s 1s")
    driver.create_topic(master.cluster, "TFail5", 2)
    assert client_of_5(tmp_path / "send", "send", namesrv.address, "TFail5", 5, 1) == "5"
    tries = client_of_5(tmp_path / "failing", "failing", namesrv.address, "TFail5", "GFail5", 5).split()
    assert tries == [f"body{number}:{times}" for number in range(5) for times in range(3)]

    def dead_letters() -> list[str]:
        found = records_of(master.store, log_end_of(master.address), "%DLQ%GFail5")
        return sorted(record.body.decode() for record in found)

    expected = [f"body{number}" for number in range(5)]
    wait_until(lambda: dead_letters() == expected, "the last tries to be dead letters")


def read_by_us(address: str, topic: str) -> list[str]:
    """The bodies of a topic, as our client reads them."""
    return sorted(output_of("pull", topic, f"--broker={address}", "--body").splitlines())


def test_bodies_that_a_5_x_client_compresses_are_read_by_us(
    our_broker: OurBrokerFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    master = our_broker("async-master")
    driver.create_topic(master.cluster, "TPacked5", 1)
    kinds = client_of_5(tmp_path / "packed", "compressed", namesrv.address, "TPacked5").split()
    assert kinds == ["LZ4", "ZSTD", "ZLIB"]

    found = records_of(master.store, log_end_of(master.address), "TPacked5")
    types = [LZ4_COMPRESSION_TYPE, ZSTD_COMPRESSION_TYPE, ZLIB_COMPRESSION_TYPES[1]]
    assert [record.sys_flag & COMPRESSION_TYPE_MASK for record in found] == types
    assert all(len(record.body) < 100 for record in found)
    bodies = sorted(" ".join([kind] * 500) for kind in kinds)
    wait_until(lambda: read_by_us(master.address, "TPacked5") == bodies, "our master to have built its queue")


def test_a_5_x_client_takes_the_messages_out_of_batches_that_we_serve(
    java_master: MasterFactory, our_broker: OurBrokerFactory, namesrv: NameServer, tmp_path: Path
) -> None:
    master = java_master(version=V5)
    create_topic(master, "TBatchClient", "+queue.type=BatchCQ")
    slave = our_broker("slave", master=master)
    sent = client_of_5(tmp_path / "send", "send", namesrv.address, "TBatchClient", 40, 7)
    assert sent == "40"
    bodies = sorted(f"body{number}" for number in range(40))
    wait_until(lambda: read_by_us(master.address, "TBatchClient") == bodies, "the master to have built its queues")
    slave.wait_for_offset(master.commit_log_range()[1])
    topics = slave.store / CONFIG_FOLDER / "topics.json"
    wait_until(partial(holds, topics, "TBatchClient"), "the slave to have the topics")
    master.kill()
    slave.wait_for(ReplicaState.CONNECTING)
    promote(slave)
    wait_for_brokers(namesrv.address, slave.broker_name, (0, slave))
    got = client_of_5(tmp_path / "consume", "consume", namesrv.address, "TBatchClient", "GBatch", 40).split()
    assert got == bodies
    assert read_by_us(slave.address, "TBatchClient") == bodies


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
    verified = rmqha("verify", slave.store)
    assert verified.returncode == 0, verified.stderr


def test_a_sync_master_that_waits_for_nobody_is_told(java_master: MasterFactory, our_slave: SlaveNodeFactory) -> None:
    master = java_master(version=V5, role="SYNC_MASTER")
    slave = our_slave(master)
    slave.wait_for_state(lambda state: any("inSyncReplicas=1" in warning for warning in state.warnings), "a warning")
    (told,) = slave.events(Event.MASTER_WARNING, level="warn")
    assert "inSyncReplicas=1" in told["warning"]


def test_a_master_in_controller_mode_is_refused(java_master: MasterFactory, tmp_path: Path) -> None:
    master = java_master(version=V5, enableControllerMode=True, controllerAddr=f"127.0.0.1:{free_ports()}")
    options = ["--role=slave", f"--master={master.ha_address}", f"--master-remoting={master.address}", "--port=0"]
    with RmqhaNode(tmp_path, [*options, "--once"], name="once") as once:
        ended = once.ended()
    assert ended.status == ExitCode.USAGE
    (complaint,) = ended.complaints
    assert "the master is in controller mode (enableControllerMode=true)" in complaint
