"""Request-reply with the official Java client: DefaultMQProducer.request(), and consumers that reply."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.conftest import MasterFactory, OurBrokerFactory, start_our_broker
from tests.interop.rocketmq import COMMAND_TIMEOUT_S, FAST_START, Driver, NameServer, java_command
from tests.interop.test_failover import wait_for_topics
from tests.interop.test_namesrv import wait_for_brokers
from tests.interop.test_promotion import promote
from tests.waiting import wait_until

QUESTIONS: Final = 20
EXPECTED: Final = sorted(f"re: question {number}" for number in range(QUESTIONS))


def ask(work: Path, namesrv: str, topic: str, group: str) -> dict[str, Any]:
    """What the Java class Requests prints: replies and errors."""
    command = java_command(work, FAST_START, "rmqha.Requests", "ask", namesrv, topic, group, QUESTIONS)
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def check(answer: dict[str, Any]) -> None:
    """Each question has its reply."""
    assert answer["errors"] == []
    assert sorted(answer["replies"]) == EXPECTED


@pytest.mark.java
@pytest.mark.story
def test_requests_at_a_java_broker(
    java_master: MasterFactory, driver: Driver, namesrv: NameServer, tmp_path: Path
) -> None:
    """What the next tests expect is what Java's broker does."""
    master = java_master()
    driver.create_topic(master.cluster, "TRequestJava", 2)
    check(ask(tmp_path, namesrv.address, "TRequestJava", "GRequestJava"))


@pytest.mark.java
def test_requests_are_answered(
    our_broker: OurBrokerFactory, driver: Driver, namesrv: NameServer, tmp_path: Path
) -> None:
    master = our_broker("async-master")
    driver.create_topic(master.cluster, "TRequest", 2)
    check(ask(tmp_path, namesrv.address, "TRequest", "GRequest"))
    topic = f"{master.cluster}_REPLY_TOPIC"
    wait_until(lambda: driver.queue_ends(topic) == {topic: {0: (0, QUESTIONS)}}, "the replies, which are stored last")


@pytest.mark.java
@pytest.mark.story
def test_requests_are_answered_after_a_failover(
    driver: Driver, namesrv: NameServer, java_brokers: ExitStack, tmp_path: Path
) -> None:
    """The second run has a topic of its own: the first one ends without storing how far its consumer got."""
    names: dict[str, Any] = {"name": "broker-request", "cluster": "cluster-request"}
    topics = {"TRequestFirst": 2, "TRequestSecond": 2}
    first = start_our_broker(namesrv, java_brokers, tmp_path, "sync-master", **names)
    second = start_our_broker(namesrv, java_brokers, tmp_path, "slave", master=first, **names)
    driver.create_topics(first.cluster, topics)
    wait_for_topics(second, topics)
    check(ask(tmp_path, namesrv.address, "TRequestFirst", "GRequestTwice"))
    first.kill()
    promote(second, "async-master")
    wait_for_brokers(namesrv.address, first.broker_name, (0, second))
    check(ask(tmp_path, namesrv.address, "TRequestSecond", "GRequestTwice"))
