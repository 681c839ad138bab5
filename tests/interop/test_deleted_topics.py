"""A topic is deleted and made again on a Java master and on one of ours: its queues start again, on our slaves too.

A Java master that only loses a queue starts it again as well. Our slave keeps what it has.
"""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from rmqha.kit.events import Event
from rmqha.wire.command import RequestCode
from tests.interop import requests
from tests.interop.conftest import MasterFactory, OurBrokerFactory
from tests.interop.nodes import OurBroker, wait_until_dispatched
from tests.interop.rocketmq import V5, VERSION, Broker
from tests.waiting import wait_until

pytestmark = pytest.mark.story

AnyBroker = Broker | OurBroker

TOPIC = "TDeleted"
FIELDS = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
SEND_FIELDS = {
    "a": "PG",
    "b": TOPIC,
    "c": "TBW102",
    "d": "1",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
}
PULL_FIELDS = {
    "consumerGroup": "GDeleted",
    "topic": TOPIC,
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


def send(broker: AnyBroker, body: bytes, count: int, queue_id: int = 0) -> list[int]:
    """The queue offsets of what was sent."""
    code, fields = RequestCode.SEND_MESSAGE_V2, {**SEND_FIELDS, "e": str(queue_id)}
    answers = [requests.ask(broker.address, code, fields, body) for _ in range(count)]
    return [int(answer.ext_fields["queueOffset"]) for answer in answers]


def gives(broker: AnyBroker, old: int, new: int) -> bool:
    """Whether a pull from the start of the queue gets so many old and new messages."""
    pulled = requests.any_answer(broker.address, RequestCode.LITE_PULL_MESSAGE, PULL_FIELDS).body
    return (pulled.count(b"old message"), pulled.count(b"new message")) == (old, new)


@pytest.mark.parametrize("release", [VERSION, V5, "ours"])
def test_a_topic_that_was_deleted_starts_again(
    release: str, java_master: MasterFactory, our_broker: OurBrokerFactory
) -> None:
    master = our_broker("async-master") if release == "ours" else java_master(version=release)
    slave = our_broker("slave", master=master, brokerId=2)
    requests.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, FIELDS)
    assert send(master, b"old message", 20) == list(range(20))
    wait_until(partial(gives, slave, 20, 0), "the slave to have the old messages")
    requests.ask(master.address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    requests.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, FIELDS)
    assert send(master, b"new message", 5) == list(range(5))
    wait_until(partial(gives, slave, 0, 5), "the slave to have the new messages alone")
    wait_until_dispatched(master.address)
    end = requests.ask(master.address, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    assert end.ext_fields["offset"] == "5"


def test_a_java_master_that_loses_a_queue_has_not_deleted_the_topic(
    java_master: MasterFactory, our_broker: OurBrokerFactory
) -> None:
    master = java_master()
    slave = our_broker("slave", master=master, brokerId=2)
    two_queues = {**FIELDS, "readQueueNums": "2", "writeQueueNums": "2"}
    requests.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, two_queues)
    send(master, b"a message", 1, queue_id=1)
    assert send(master, b"old message", 5) == list(range(5))
    send(master, b"a message", 1, queue_id=1)  # so that Java does not build the queue again
    wait_until(partial(gives, slave, 5, 0), "the slave to have the messages")
    master.stop()
    shutil.rmtree(master.store / "consumequeue" / TOPIC / "0")
    master.start()
    assert send(master, b"new message", 1) == [0], "Java has lost the queue"
    slave.wait_for_event(Event.QUEUE_STARTS_AGAIN)
    assert gives(slave, 5, 0)
