"""A master is killed under load: what a Java producer was promised is read by Java consumers, from the slave."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import pytest

from rmqha.store.metadata import TopicConfigTable
from rmqha.testing.nodes import NameServerNode
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient
from tests.interop.conftest import MasterFactory, OurBrokerFactory, SlaveFactory
from tests.interop.nodes import OurBroker, ask
from tests.interop.rocketmq import Broker, ClientsReport, ClientsRun, Driver, SendResult, sha256_of_message
from tests.waiting import wait_until

TOPIC = "TFailover"
QUEUES = 4
BODY_BYTES = 1024
MAX_AT_HAND = QUEUES * (16 + 32)
"""Of a slow consumer: what it may have before it pulls no more, and what one more pull may bring."""
SLOW_MS = 1000
"""A slow consumer's pause for each message: its 20 threads take 20 a second, fewer than a busy machine sends."""
RATE = 200
"""Messages a second for a slow consumer, so that it has not too many left to read."""
FAILOVER_S = 600.0
"""A pull that the master held is given up after 30 s, and another may have been asked at the same time."""

AnyBroker = Broker | OurBroker


class Pair(NamedTuple):
    """A SYNC_MASTER, its slave, and the client of the name server that knows both."""

    master: AnyBroker
    slave: AnyBroker
    driver: Driver


@pytest.fixture
def ours_and_ours(our_broker: OurBrokerFactory, driver: Driver) -> Pair:
    master = our_broker("sync-master")
    return Pair(master, our_broker("slave", master=master), driver)


@pytest.fixture
def ours_and_java(our_broker: OurBrokerFactory, java_slave: SlaveFactory, driver: Driver) -> Pair:
    master = our_broker("sync-master")
    names: dict[str, Any] = {"name": master.broker_name, "cluster": master.cluster}
    return Pair(master, java_slave(ha_master=master.ha_address, haSendHeartbeatInterval=1000, **names), driver)


@pytest.fixture
def java_and_ours(
    java_master: MasterFactory, our_broker: OurBrokerFactory, our_namesrv: NameServerNode, our_driver: Driver
) -> Pair:
    """The name server is ours, too."""
    master = java_master(role="SYNC_MASTER", namesrv=our_namesrv.address, slaveTimeout=60_000)
    slave = our_broker("slave", master=master, namesrv=our_namesrv.address)
    return Pair(master, slave, our_driver)


def wait_for_topics(slave: AnyBroker, topics: Collection[str] = (TOPIC,)) -> None:
    """Wait until the slave has the topics from its master: until then it refuses to serve them."""

    def has_them() -> bool:
        table = TopicConfigTable.from_json(loads_lenient(ask(slave, RequestCode.GET_ALL_TOPIC_CONFIG)))
        return set(topics) <= set(table.topic_config_table)

    wait_until(has_them, f"{slave} to have the topics")


def consumer(driver: Driver, group: str, pause_ms: int = 0) -> ClientsRun:
    """A push consumer of the topic, until it is stopped; perhaps a slow one, which has few messages at hand."""
    plan: dict[str, Any] = {
        "topics": {TOPIC: QUEUES},
        "consumers": [{"name": group, "group": group, "topic": TOPIC, "kind": "concurrent", "pause_ms": pause_ms}],
        "until": [[[group], 10**9]],
        "seconds": 10**6,
    }
    return driver.start_clients(plan)


def promised_until_killed(
    driver: Driver, master: AnyBroker, enough: Callable[[int], bool], rate: float = 0
) -> list[SendResult]:
    """What was answered SEND_OK to a producer at work while the master is killed, once so many are ``enough``."""
    with driver.start_send(TOPIC, 0, BODY_BYTES, threads=16, rate=rate, send_timeout_ms=3000) as run:
        wait_until(lambda: enough(len(sends_ok(run.results()))), "SEND_OK")
        master.kill()
        run.stop()
        return sends_ok(run.results())


def sends_ok(results: list[SendResult]) -> list[SendResult]:
    return [result for result in results if result.status == "SEND_OK"]


def assert_whole(report: ClientsReport, group: str, promised: set[str]) -> None:
    """Each message promised was consumed as it was sent."""
    bodies = {message["properties"]["KEYS"]: message["body_sha256"] for message in report.received[group]}
    assert {key: bodies[key] for key in promised} == {
        key: sha256_of_message(int(key[1:]), BODY_BYTES) for key in promised
    }


@pytest.mark.java
@pytest.mark.parametrize("pair", ["ours_and_java", "java_and_ours"])
@pytest.mark.story
def test_a_consumer_reads_from_the_slave_all_that_a_killed_sync_master_has_promised(
    pair: str, request: pytest.FixtureRequest
) -> None:
    master, slave, driver = request.getfixturevalue(pair)
    driver.create_topic(master.cluster, TOPIC, QUEUES)
    wait_for_topics(slave)
    promised = {result.key for result in promised_until_killed(driver, master, lambda sent: sent >= 3000)}
    with consumer(driver, "GLate") as late:
        wait_until(lambda: promised <= set(late.consumed()), "all that was promised")
        assert_whole(late.stop(), "GLate", promised)


@pytest.mark.story
def test_consumers_go_on_at_our_slave_when_our_sync_master_is_killed(ours_and_ours: Pair) -> None:
    master, slave, driver = ours_and_ours
    driver.create_topic(master.cluster, TOPIC, QUEUES)
    wait_for_topics(slave)
    with consumer(driver, "GRunning", pause_ms=SLOW_MS) as running:
        assert driver.send(TOPIC, 1, BODY_BYTES, first=10**9).stored == 1
        wait_until(lambda: len(running.consumed()) == 1, "the consumer to run")

        def is_behind(sent: int) -> bool:
            """So far that it has many left after it has read what it has at hand."""
            had = len(running.consumed())
            return had > 1 and sent - had > 3 * MAX_AT_HAND

        promised = {result.key for result in promised_until_killed(driver, master, is_behind, RATE)}
        had = set(running.consumed())
        assert had & promised
        assert len(promised - had) > MAX_AT_HAND
        with consumer(driver, "GLate") as late:
            wait_until(lambda: promised <= set(late.consumed()), "all that was promised")
            assert_whole(late.stop(), "GLate", promised)
        wait_until(lambda: promised <= set(running.consumed()), "the consumer to go on at the slave", FAILOVER_S)
        report = running.stop()
    assert_whole(report, "GRunning", promised)
