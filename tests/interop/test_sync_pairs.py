"""SYNC_MASTER across the two houses: ours with a Java slave, and Java's with a slave of ours, killed and paused."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.testing.nodes import PutNode
from rmqha.wire.command import RequestCode
from tests.interop.conftest import SEGMENT_SIZE, MasterFactory, RelayFactory, SlaveFactory, SlaveNodeFactory
from tests.interop.nodes import RmqhaNode, ask, assert_equal_logs
from tests.interop.rocketmq import HA_PORT_STEP, LOCALHOST, Broker, Driver, SendResult, SendRun, free_ports
from tests.puts import (
    NOT_AVAILABLE,
    OK,
    TIMED_OUT,
    answers,
    assert_all,
    assert_waited,
    pause,
    promised_end,
    put,
    put_until_ok,
    resume,
    statuses_of,
)
from tests.waiting import wait_until

OUR_TIMEOUT_S = 20.0
"""A slave answers each put, however busy the machine, unless it is paused."""
SLAVE_TIMEOUT_S = 6.0
"""A slave answers some sends, however busy the machine; others time out."""
SEND_TIMEOUT_MS = 10_000
"""Of sends to a master that is killed: Java's client waits so long for the answers of a closed connection."""
KEEPS_CONNECTION: dict[str, Any] = {"haHousekeepingInterval": 120_000}
"""Who is paused has not gone."""
QUICK: dict[str, Any] = {"haSendHeartbeatInterval": 1000, **KEEPS_CONNECTION}
"""A Java slave reports within 2 s of connecting."""
TOPIC = "TSyncPair"
BODY_BYTES = 2_000
NEAR_BYTES = 100_000
PAUSE_S = SLAVE_TIMEOUT_S + 0.5


# Ours, and a Java slave


@pytest.fixture
def our_sync_master(tmp_path: Path) -> Iterator[PutNode]:
    """A SYNC_MASTER of ours with a message in its log; its HA port is one above its remoting port."""
    options = [
        "--role=sync-master",
        f"--port={free_ports()}",
        f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}",
        f"--set=slaveTimeout={int(OUR_TIMEOUT_S * 1000)}",
        *(f"--set={key}={value}" for key, value in KEEPS_CONNECTION.items()),
        f"--set=haSlaveFallbehindMax={NEAR_BYTES}",
    ]
    with PutNode(tmp_path, options, name="our-sync-master") as master:
        assert_all(master.put(1), NOT_AVAILABLE)
        yield master


def slave_of(master: PutNode, java_slave: SlaveFactory) -> Broker:
    """A Java slave that follows our master."""
    slave = java_slave(ha_master=f"{LOCALHOST}:{master.port('remoting') + HA_PORT_STEP}", **QUICK)
    put_until_ok(master)
    return slave


def assert_has_all(slave: Broker, master: PutNode, end: int) -> None:
    """The Java slave's log is our master's, up to its end."""
    slave.wait_for_offset(end)
    assert slave.commit_log_range() == (0, end)
    assert_equal_logs(slave.store, master.store, 0, end)


@pytest.mark.story
def test_our_sync_master_waits_for_a_java_slave_that_is_paused_killed_and_restarted(
    our_sync_master: PutNode, java_slave: SlaveFactory
) -> None:
    master = our_sync_master
    slave = slave_of(master, java_slave)
    assert put(master, 1000, in_flight=20) == {OK: 1000}

    slave.pause()
    result = master.put(10, in_flight=10)
    assert result["statuses"] == {TIMED_OUT: 10}
    assert_waited(result["latencies"]["max"], OUR_TIMEOUT_S)
    slave.resume()
    result = master.put(200, in_flight=20)
    assert result["statuses"] == {OK: 200}
    assert_has_all(slave, master, result["end"])

    master.tell(2000, in_flight=20, rate=1500, each=True)
    answered = answers(master, at_most=500)
    slave.kill()
    answered += answers(master)
    if NOT_AVAILABLE not in statuses_of(answered):  # nearly all puts were answered before the kill
        master.tell(50, in_flight=10, each=True)
        answered += answers(master)
    assert {OK, NOT_AVAILABLE} <= statuses_of(answered).keys() <= {OK, TIMED_OUT, NOT_AVAILABLE}
    assert_equal_logs(slave.store, master.store, 0, promised_end(answered))
    assert_all(master.put(5), NOT_AVAILABLE)
    slave.start()
    put_until_ok(master)
    result = master.put(200, in_flight=20)
    assert result["statuses"] == {OK: 200}
    assert_has_all(slave, master, result["end"])


@pytest.mark.story
def test_a_java_slave_with_a_large_lag_counts_only_after_it_has_caught_up(
    our_sync_master: PutNode, java_slave: SlaveFactory
) -> None:
    master = our_sync_master
    slave = slave_of(master, java_slave)
    end = put_until_ok(master)
    slave.pause()
    master.tell(200, in_flight=200, each=True)
    answered = answers(master)
    for answer in answered:
        behind_bytes = answer["offset"] + answer["size"] - end
        assert answer["status"] == (TIMED_OUT if behind_bytes < NEAR_BYTES else NOT_AVAILABLE)
    assert len(statuses_of(answered)) == 2
    assert_all(master.put(5), NOT_AVAILABLE)
    slave.resume()
    put_until_ok(master)
    assert_has_all(slave, master, master.put(1)["end"])


@pytest.mark.story
def test_our_killed_sync_master_confirmed_only_what_its_java_slave_holds(
    our_sync_master: PutNode, java_slave: SlaveFactory
) -> None:
    master = our_sync_master
    slave = slave_of(master, java_slave)
    master.tell(1_000_000, in_flight=32, each=True)
    answered = answers(master, at_most=2000)
    master.kill()
    answered += answers(master)
    promised = promised_end(answered)
    slave.wait_for_offset(promised)
    assert_equal_logs(slave.store, master.store, 0, promised)

    master.start()
    put_until_ok(master)
    master.tell(3000, in_flight=32, rate=3000, each=True)
    answered = answers(master, at_most=300)
    pause(master)
    time.sleep(OUR_TIMEOUT_S + 0.5)  # all its waits are over then; while it stands still there is nothing to wait for
    slave.wait_for_offset(promised_end(answered))
    resume(master)
    answered += answers(master)
    assert len(answered) == 3000
    assert set(statuses_of(answered)) <= {OK, TIMED_OUT}
    result = master.put(100, in_flight=10)
    assert result["statuses"] == {OK: 100}
    assert_has_all(slave, master, result["end"])


# Java's, and a slave of ours


@pytest.fixture
def java_sync_master(java_master: MasterFactory, driver: Driver) -> Broker:
    """A Java SYNC_MASTER with the topic."""
    master = java_master(role="SYNC_MASTER", slaveTimeout=int(SLAVE_TIMEOUT_S * 1000), **KEEPS_CONNECTION)
    driver.create_topic(master.cluster, TOPIC)
    return master


def statuses(results: list[SendResult]) -> Counter[str]:
    return Counter(result.status for result in results)


def wait_for_status(run: SendRun, status: str, count: int = 1) -> None:
    """Wait until, from now on, so many sends ended so."""
    before = len(run.results())
    wait_until(lambda: statuses(run.results()[before:])[status] >= count, f"{count} sends that end {status}")


def assert_holds_all_promised(slave: RmqhaNode, master: Broker, results: list[SendResult]) -> None:
    """The stopped slave's log is the master's, and each message answered SEND_OK is in it, whole."""
    has = slave.offsets.verified
    assert_equal_logs(slave.store, master.store, 0, has)
    promised = [result.physical_offset for result in results if result.status == "SEND_OK"]
    assert max(promised) < has


@pytest.mark.story
def test_our_killed_slave_holds_all_that_its_java_sync_master_confirmed(
    java_sync_master: Broker, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    master = java_sync_master
    slave = our_slave(master)
    with driver.start_send(TOPIC, 0, BODY_BYTES, threads=4, rate=300) as run:
        wait_for_status(run, "SEND_OK", 100)
        slave.kill()
        wait_for_status(run, "SLAVE_NOT_AVAILABLE", 10)
        slave.start()
        wait_for_status(run, "SEND_OK", 100)
        slave.pause()
        wait_for_status(run, "FLUSH_SLAVE_TIMEOUT", 4)
        slave.resume()
        wait_for_status(run, "SEND_OK", 100)
        report = run.stop()
        results = run.results()
    assert report.failures == {}
    assert report.statuses.keys() <= {"SEND_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    slave.stop_cleanly()
    assert slave.offsets.verified == end
    assert_holds_all_promised(slave, master, results)


def test_a_killed_java_sync_master_confirmed_only_what_our_slave_holds(
    java_sync_master: Broker, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    master = java_sync_master
    slave = our_slave(master)
    with driver.start_send(TOPIC, 0, BODY_BYTES, threads=4, rate=300, send_timeout_ms=SEND_TIMEOUT_MS) as run:
        wait_for_status(run, "SEND_OK", 100)
        master.pause()
        time.sleep(PAUSE_S)  # there is nothing to wait for
        master.resume()
        wait_for_status(run, "SEND_OK", 100)
        master.kill()
        report = run.stop()
        results = run.results()
    assert report.statuses.keys() <= {"SEND_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    slave.stop_cleanly()
    assert_holds_all_promised(slave, master, results)


@pytest.mark.story
def test_an_observer_never_completes_a_put_of_a_java_sync_master_even_on_reconnect(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, relay: RelayFactory, driver: Driver
) -> None:
    master = java_master(role="SYNC_MASTER", slaveTimeout=int(SLAVE_TIMEOUT_S * 1000), **KEEPS_CONNECTION)
    driver.create_topic(master.cluster, TOPIC)
    between = relay(master)
    between.let_through(math.inf)
    observer = our_slave(master, "--observer", relay=between)
    assert driver.send(TOPIC, 1, BODY_BYTES).stored == 1
    observer.wait_for(ReplicaState.IN_SYNC)
    with driver.start_send(TOPIC, 0, BODY_BYTES, threads=8, rate=20) as run:
        wait_for_status(run, "FLUSH_SLAVE_TIMEOUT", 8)
        said = len(between.reports)
        between.cut()
        wait_until(lambda: len(between.reports) > said, "the observer to ask again")
        wait_for_status(run, "FLUSH_SLAVE_TIMEOUT", 8)
        observer.kill()
        observer.start()
        said = len(between.reports)
        wait_until(lambda: len(between.reports) > said, "the observer to ask again")
        wait_for_status(run, "FLUSH_SLAVE_TIMEOUT", 8)
        report = run.stop()
    assert report.failures == {}
    assert report.statuses.keys() <= {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
    end = master.commit_log_range()[1]
    observer.wait_for_offset(end)
    observer.stop_cleanly()
    assert_equal_logs(observer.store, master.store, 0, end)
    slave = our_slave(master)
    slave.wait_for(ReplicaState.IN_SYNC)
    ask(master, RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveTimeout=60000")
    assert driver.send(TOPIC, 20, BODY_BYTES).statuses == {"SEND_OK": 20}
