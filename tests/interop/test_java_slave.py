"""A Java slave at a master of ours: its log is ours, byte for byte, from the offset on at which it begins."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures
from tests.interop.conftest import SEGMENT_SIZE, MasterFactory, MasterNodeFactory, SlaveFactory
from tests.interop.nodes import assert_equal_logs
from tests.interop.rocketmq import (
    HA_PORT_STEP,
    HERE,
    LOCALHOST,
    Broker,
    Driver,
    commit_log_bytes,
    commit_log_segments,
    free_ports,
)

FIXTURE_OPTIONS: dict[str, Any] = {
    "name": "broker-a",
    "cluster": "FixtureA",
    "segment_size": SEGMENT_SIZE,
    "mappedFileSizeConsumeQueue": 2000,
    "haSendHeartbeatInterval": 1000,
}
TOPIC = "TServe"
BODY_BYTES = 5_000


def ha_address(listen_port: int) -> str:
    return f"{LOCALHOST}:{listen_port + HA_PORT_STEP}"


def last_segment(end: int) -> int:
    return end - end % SEGMENT_SIZE


def assert_has_log(slave: Broker, ours: Path, start: int, end: int) -> None:
    """The slave's log reaches from `start` to `end` and is ours."""
    slave.wait_for_offset(end)
    assert slave.commit_log_range() == (start, end)
    assert_equal_logs(slave.store, ours, start, end)


@pytest.mark.story
def test_java_slaves_copy_a_crashed_java_masters_store_from_our_master(
    our_master: MasterNodeFactory, java_slave: SlaveFactory, tmp_path: Path
) -> None:
    store, end = fixtures.copy_of("master-crash", tmp_path / "master-crash"), fixtures.max_offset("master-crash")
    behind = tmp_path / "behind"
    (behind / "commitlog").mkdir(parents=True)
    for offset in range(0, 5 * SEGMENT_SIZE, SEGMENT_SIZE):
        shutil.copy(store / "commitlog" / f"{offset:020d}", behind / "commitlog")
    listen_port = free_ports()
    our_master(store, listen_port)
    empty_slave = java_slave(ha_master=ha_address(listen_port), **FIXTURE_OPTIONS)
    slave_behind = java_slave(ha_master=ha_address(listen_port), broker_id=2, store=behind, **FIXTURE_OPTIONS)
    assert_has_log(empty_slave, store, last_segment(end), end)
    assert_has_log(slave_behind, store, 0, end)
    assert commit_log_bytes(slave_behind.store, 0, end) == fixtures.log_bytes("master-crash")


@pytest.mark.story
def test_a_java_slave_resumes_when_our_master_replaces_its_java_master(
    java_master: MasterFactory, our_master: MasterNodeFactory, java_slave: SlaveFactory, driver: Driver
) -> None:
    master = java_master()
    slave = java_slave(master, haSendHeartbeatInterval=1000)
    master.wait_for_slave()
    driver.create_topic(master.cluster, TOPIC)
    driver.send(TOPIC, 80, BODY_BYTES)
    half_way = master.commit_log_range()[1]
    slave.wait_for_offset(half_way)
    slave.stop()
    driver.send(TOPIC, 180, BODY_BYTES)
    start, end = master.commit_log_range()
    assert (start, end - half_way > 3 * SEGMENT_SIZE) == (0, True)
    master.stop()

    our_master(master.store, master.listen_port)
    slave.start()
    empty_slave = java_slave(master, broker_id=2, haSendHeartbeatInterval=1000)
    assert_has_log(slave, master.store, 0, end)
    assert_has_log(empty_slave, master.store, last_segment(end), end)


class GrowingMaster:
    """The process of growing_master.py."""

    def __init__(self, store: Path, listen_port: int) -> None:
        words = (sys.executable, HERE / "growing_master.py", store, listen_port + HA_PORT_STEP, SEGMENT_SIZE)
        pipe = subprocess.PIPE
        self.store = store
        self.process = subprocess.Popen([str(word) for word in words], stdin=pipe, stdout=pipe, text=True)

    def append(self, count: int, body_bytes: int) -> int:
        """Append records with bodies of about this size; returns the log's end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count} {body_bytes}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture
def growing_master(tmp_path: Path) -> Iterator[tuple[GrowingMaster, str]]:
    """A master of ours without a record, and the address of its HA port."""
    listen_port = free_ports()
    master = GrowingMaster(tmp_path / "growing", listen_port)
    try:
        yield master, ha_address(listen_port)
    finally:
        master.process.kill()
        master.process.communicate()


def test_a_java_slave_follows_a_growing_log_from_segment_to_segment(
    growing_master: tuple[GrowingMaster, str], java_slave: SlaveFactory
) -> None:
    master, address = growing_master
    slave = java_slave(ha_master=address, haSendHeartbeatInterval=1000)
    end = master.append(1, 100)
    slave.wait_for_offset(end)  # it is connected now
    rng = random.Random(2)
    while end < 4 * SEGMENT_SIZE:
        body_bytes = rng.choice((50, 2_000, 30_000))
        end = master.append(rng.randint(1, 200_000 // body_bytes), body_bytes)
        if rng.random() < 0.5:
            slave.wait_for_offset(end)
    assert_has_log(slave, master.store, 0, end)
    assert set(range(0, end, SEGMENT_SIZE)) <= set(commit_log_segments(slave.store))
