"""A slave of ours at a Java master: the copy is equal byte for byte, and a Java broker can go on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.ha.slave.states import ReplicaState
from tests.commands import rmqha
from tests.interop.conftest import SEGMENT_SIZE, MasterFactory, SlaveNodeFactory
from tests.interop.nodes import Ended, RmqhaNode, assert_equal_logs
from tests.interop.rocketmq import (
    HA_PORT_STEP,
    LOCALHOST,
    PATIENT,
    SMALL_FILES,
    Broker,
    Driver,
    NameServer,
    SendRun,
    commit_log_segments,
    messages_sha256,
)
from tests.waiting import wait_until

TOPIC = "TCopy"
BODY_BYTES = 5_000
SEGMENTS = 5
LIVE_RATE = 200
HA_CHANNEL_ONLY = ("--master-remoting=none", f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}")
"""Nobody but the remoting port tells a slave how large segments are."""


@pytest.fixture(scope="module")
def long_log(namesrv: NameServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An ASYNC_MASTER whose log has more than SEGMENTS segments and still grows from test to test."""
    work = tmp_path_factory.mktemp("long-log")
    own = {"namesrv": namesrv.address, "name": "long-log", "cluster": "long-log", "segment_size": SEGMENT_SIZE}
    options: dict[str, Any] = {**SMALL_FILES, **own, "haSendHeartbeatInterval": 1000}
    master = Broker(work, **options)
    try:
        master.start()
        driver = Driver(namesrv.address, work / "driver")
        driver.create_topic(master.cluster, TOPIC)
        driver.send(TOPIC, SEGMENTS * SEGMENT_SIZE // BODY_BYTES + 20, BODY_BYTES)
        assert master.commit_log_range()[1] > SEGMENTS * SEGMENT_SIZE
        yield master
    finally:
        master.kill()


@pytest.fixture
def traffic(long_log: Broker, driver: Driver) -> Iterator[SendRun]:
    """Messages that keep coming until stopped; some have come when the test begins."""
    with driver.start_send(TOPIC, 0, 2_000, rate=LIVE_RATE) as run:
        run.wait_for_results(10)
        yield run
        if run.is_running:
            run.stop()  # what it has in progress belongs to this test, not to the next one


def follow_until_traffic_ends(slave: RmqhaNode, master: Broker, traffic: SendRun) -> int:
    """Let the slave catch up and then follow for a while; returns the log's end, which it has on disk, stopped."""
    slave.wait_for_offset(master.commit_log_range()[1])
    traffic.wait_for_results(len(traffic.results()) + LIVE_RATE // 2)
    assert traffic.is_running
    traffic.stop()
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    slave.stop_cleanly()
    assert slave.offsets.verified == slave.offsets.flushed == slave.offsets.confirmed == end
    return end


@pytest.mark.parametrize("options", [(), HA_CHANNEL_ONLY], ids=["remoting", "ha-channel-only"])
def test_a_fresh_slave_gets_all_history_while_messages_keep_coming(
    options: tuple[str, ...], long_log: Broker, traffic: SendRun, our_slave: SlaveNodeFactory
) -> None:
    slave = our_slave(long_log, *options)
    end = follow_until_traffic_ends(slave, long_log, traffic)
    assert slave.offsets.min == 0
    assert commit_log_segments(slave.store)[0] == 0
    assert_equal_logs(slave.store, long_log.store, 0, end)


@pytest.mark.story
def test_a_slave_from_the_last_segment_has_that_one_and_what_follows(
    long_log: Broker, traffic: SendRun, our_slave: SlaveNodeFactory
) -> None:
    earliest = long_log.commit_log_range()[1] // SEGMENT_SIZE * SEGMENT_SIZE
    slave = our_slave(long_log, "--from=last")
    end = follow_until_traffic_ends(slave, long_log, traffic)
    first = commit_log_segments(slave.store)[0]
    assert slave.offsets.min == first
    assert earliest <= first <= end
    assert_equal_logs(slave.store, long_log.store, first, end)


def test_a_slave_told_to_copy_once_has_what_the_master_had_and_ends(
    long_log: Broker, traffic: SendRun, our_slave: SlaveNodeFactory
) -> None:
    had = long_log.commit_log_range()[1]
    slave = our_slave(long_log, "--once")
    assert slave.ended() == Ended(0)
    assert traffic.is_running
    has = slave.offsets.verified
    assert has >= had
    assert_equal_logs(slave.store, long_log.store, 0, has)


@pytest.mark.story
def test_a_slave_told_to_copy_once_without_remoting_ends_when_the_master_is_quiet(
    long_log: Broker, our_slave: SlaveNodeFactory
) -> None:
    end = long_log.commit_log_range()[1]
    slave = our_slave(long_log, "--once", *HA_CHANNEL_ONLY)
    assert slave.ended() == Ended(0)
    assert slave.offsets.verified == end
    assert_equal_logs(slave.store, long_log.store, 0, end)


@pytest.mark.story
def test_the_reports_of_our_slave_are_what_a_sync_master_waits_for(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    master = java_master(role="SYNC_MASTER", **PATIENT)
    driver.create_topic(master.cluster, "TSync")
    assert driver.send("TSync", 1, BODY_BYTES).statuses == {"SLAVE_NOT_AVAILABLE": 1}
    slave = our_slave(master)
    slave.wait_for(ReplicaState.IN_SYNC)
    assert driver.send("TSync", 300, BODY_BYTES, threads=2).statuses == {"SEND_OK": 300}
    slave.pause()
    assert driver.send("TSync", 1, BODY_BYTES).statuses == {"FLUSH_SLAVE_TIMEOUT": 1}
    slave.resume()
    slave.wait_for_offset(master.commit_log_range()[1])
    slave.stop_cleanly()
    wait_until(
        lambda: driver.send("TSync", 1, BODY_BYTES).statuses == {"SLAVE_NOT_AVAILABLE": 1}, "the master to see it"
    )


@pytest.mark.story
def test_a_java_broker_serves_every_message_from_the_store_of_our_slave(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    master = java_master()
    slave = our_slave(master)  # at a master without a message
    driver.create_topic(master.cluster, "TPromote", 4)
    assert driver.send("TPromote", 300, BODY_BYTES, threads=2).statuses == {"SEND_OK": 300}
    slave.wait_for_offset(master.commit_log_range()[1])
    master.kill()
    slave.stop_cleanly()

    promoted = java_master(name=master.name, cluster=master.cluster, store=slave.store)
    driver.create_topic(promoted.cluster, "TPromote", 4)
    served = driver.consume("TPromote", "GPromote", 300)
    assert (served.count, served.sha256) == (300, messages_sha256(range(300), BODY_BYTES))
    assert driver.send("TPromote", 20, BODY_BYTES, first=300).statuses == {"SEND_OK": 20}
    served = driver.consume("TPromote", "GPromoteAndMore", 320)
    assert (served.count, served.sha256) == (320, messages_sha256(range(320), BODY_BYTES))


@pytest.mark.story
def test_a_repair_from_a_java_sync_master_does_not_affect_its_producers(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    """By command, and by the slave itself as it starts."""
    master = java_master(role="SYNC_MASTER", haSendHeartbeatInterval=1000, **PATIENT)
    driver.create_topic(master.cluster, "TRepair")
    slave = our_slave(master)
    slave.wait_for(ReplicaState.IN_SYNC)
    assert driver.send("TRepair", 300, BODY_BYTES, threads=2).statuses == {"SEND_OK": 300}
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    slave.stop_cleanly()
    wait_until(
        lambda: driver.send("TRepair", 1, BODY_BYTES).statuses == {"SLAVE_NOT_AVAILABLE": 1}, "the master to see it"
    )
    places = [7, 100, 2 * SEGMENT_SIZE + 10_000, 4 * SEGMENT_SIZE + 31, end - 3000]  # none in a blank
    spoil(slave.store, places)
    with driver.start_send("TRepair", 0, BODY_BYTES, rate=20) as sending:
        sending.wait_for_results(3)
        done = rmqha("repair", slave.store, "--from", f"{LOCALHOST}:{master.listen_port + HA_PORT_STEP}")
        statuses = sending.stop().statuses
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("repaired ") == 4, done.stdout
    assert "SEND_OK" not in statuses
    assert_equal_logs(slave.store, master.store, 0, end)

    spoil(slave.store, [end - 3000])
    again = our_slave(master, store=slave.store)
    again.wait_for_offset(master.commit_log_range()[1])
    again.wait_for(ReplicaState.IN_SYNC)
    assert_equal_logs(slave.store, master.store, 0, end)


def spoil(store: Path, places: list[int]) -> None:
    """Overwrite bytes of the log."""
    for place in places:
        with (store / "commitlog" / f"{place - place % SEGMENT_SIZE:020d}").open("r+b") as segment:
            segment.seek(place % SEGMENT_SIZE)
            segment.write(b"\xa5" * 120)
