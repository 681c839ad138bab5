"""What goes wrong between a Java master and a slave of ours: kills, restarts, lost, replaced and deleted logs."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.wire.transfer import TRANSFER_HEADER
from tests.interop.conftest import SEGMENT_SIZE, MasterFactory, RelayFactory, SlaveNodeFactory
from tests.interop.nodes import Ended, assert_equal_logs
from tests.interop.rocketmq import Broker, Driver, commit_log_bytes, commit_log_segments
from tests.waiting import wait_until

TOPIC = "TFault"
BODY_BYTES = 5_000
KILLS = 8
BATCH_BYTES = 4_000
MESSAGES_A_SEGMENT = SEGMENT_SIZE // BODY_BYTES


def fill(master: Broker, driver: Driver, segments: int, body_bytes: int = BODY_BYTES) -> int:
    """Send so many segments of messages; returns the log's end."""
    driver.create_topic(master.cluster, TOPIC)
    count = segments * SEGMENT_SIZE // body_bytes
    assert driver.send(TOPIC, count, body_bytes, threads=2).statuses == {"SEND_OK": count}
    return master.commit_log_range()[1]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_complains(ended: Ended, code: ExitCode, about: str) -> None:
    """It ended with this status, and said why in one line."""
    assert ended.status == code
    (line,) = ended.complaints
    assert line.startswith(f"rmqha: {code.name}: ")
    assert about in line


# -- crashes -------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_a_slave_killed_at_random_moments_has_every_byte_it_reported_and_ends_equal(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, relay: RelayFactory, driver: Driver
) -> None:
    seed = secrets.randbits(32)
    print(f"{seed=}")
    rng = random.Random(seed)
    master = java_master(haTransferBatchSize=BATCH_BYTES)
    end = fill(master, driver, segments=6, body_bytes=500)
    whole_log = commit_log_bytes(master.store, 0, end)
    between = relay(master)
    slave = our_slave(master, relay=between)
    greatest = advances = 0
    for kill in range(KILLS):
        asked_from = slave.wait_for_event(Event.TRANSFER_REQUESTED)["request_offset"]
        doubts = slave.events(Event.LOG_END_UNPROVED)  # what may not have reached its disk is compared again
        new_bytes = rng.randrange(1, end // KILLS) if kill % 2 else end // KILLS
        size = new_bytes + (doubts[-1]["end"] - asked_from if doubts else 0)
        between.let_through(size + (size // BATCH_BYTES + 1) * TRANSFER_HEADER.size)
        between.wait_until_passed()
        if kill % 2 == 0:
            between.wait_until_quiet()  # this slave has reported what is new
        time.sleep(rng.uniform(0, 0.02))
        slave.kill()
        between.wait_until_quiet()
        assert slave.events(Event.SLAVE_VERDICT, state="DIVERGED") == []
        reported = max(report.offset for report in between.reports)
        assert greatest <= reported < end
        advances += reported > greatest
        greatest = reported
        assert commit_log_bytes(slave.store, 0, reported) == whole_log[:reported]
        slave.start()
    assert advances > KILLS // 4

    between.let_through(math.inf)
    slave.wait_for_offset(end)
    slave.stop_cleanly()
    between.wait_until_quiet()
    assert between.reports[-1].offset == end
    assert commit_log_bytes(slave.store, 0, end) == whole_log


@pytest.mark.parametrize("end_it", [Broker.kill, Broker.stop], ids=["killed", "stopped"])
@pytest.mark.story
def test_a_slave_goes_on_by_itself_when_its_master_was_restarted_in_mid_transfer(
    end_it: Callable[[Broker], None],
    java_master: MasterFactory,
    our_slave: SlaveNodeFactory,
    relay: RelayFactory,
    driver: Driver,
) -> None:
    master = java_master()
    end = fill(master, driver, segments=4)
    between = relay(master)
    between.let_through(end // 3)
    slave = our_slave(master, relay=between)
    wait_until(lambda: any(report.offset for report in between.reports), "the slave to have a part")
    between.wait_until_passed()
    end_it(master)
    between.cut()
    slave.wait_for_event(Event.SLAVE_STATE, state="CONNECTING")
    assert 0 < between.reports[-1].offset < end
    between.let_through(math.inf)
    master.start()
    assert driver.send(TOPIC, 50, BODY_BYTES).statuses == {"SEND_OK": 50}
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    slave.stop_cleanly()
    assert_equal_logs(slave.store, master.store, 0, end)


# -- another log at the same address -------------------------------------------------------------------------


@pytest.mark.story
def test_a_slave_says_so_when_its_master_lost_the_log_and_when_that_then_outgrows_it(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    first = java_master()
    end = fill(first, driver, segments=2)
    slave = our_slave(first)
    slave.wait_for_offset(end)
    first.kill()

    second = java_master(listen_port=first.listen_port, haSendHeartbeatInterval=1000)
    shorter = fill(second, driver, segments=1, body_bytes=1_000)
    assert shorter < end
    slave.wait_for(ReplicaState.AHEAD)
    slave.stop_cleanly()
    log = files_of(slave.store / "commitlog")

    once = our_slave(second, "--once", store=slave.store)
    assert_complains(once.ended(), ExitCode.AHEAD, f"{end - shorter} bytes before")
    once = our_slave(second, "--once", "--master-remoting=none", store=slave.store)
    assert_complains(once.ended(), ExitCode.AHEAD, "before ours")

    assert fill(second, driver, segments=3) > end
    once = our_slave(second, "--once", store=slave.store)
    assert_complains(once.ended(), ExitCode.DIVERGED, "these are not two copies of one log")
    assert files_of(slave.store / "commitlog") == log
    assert_equal_logs(slave.store, first.store, 0, end)


# -- a master that has deleted its first segments ------------------------------------------------------------


def delete_first_segments(master: Broker, count: int) -> int:
    """As a Java broker does when they are too old; returns the log's new min offset."""
    *deleted, first = commit_log_segments(master.store)[: count + 1]
    master.stop()
    for offset in deleted:
        (master.store / "commitlog" / f"{offset:020d}").unlink()
    master.start()
    assert master.commit_log_range()[0] == first
    return first


@pytest.fixture
def shortened_master(java_master: MasterFactory, driver: Driver) -> Broker:
    """A master whose first three segments are gone."""
    master = java_master(haSendHeartbeatInterval=1000)
    fill(master, driver, segments=5)
    delete_first_segments(master, 3)
    return master


@pytest.mark.story
def test_a_fresh_slave_begins_at_the_min_of_a_master_that_has_deleted_segments(
    shortened_master: Broker, our_slave: SlaveNodeFactory
) -> None:
    start, end = shortened_master.commit_log_range()
    slave = our_slave(shortened_master, "--once")
    assert slave.ended() == Ended(0)
    assert (start, end) == (slave.offsets.min, slave.offsets.verified)
    assert start == 3 * SEGMENT_SIZE == commit_log_segments(slave.store)[0]
    assert_equal_logs(slave.store, shortened_master.store, start, end)

    blind = our_slave(
        shortened_master, "--once", "--master-remoting=none", f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}"
    )
    assert_complains(blind.ended(), ExitCode.GAP, "its first segments were deleted")


@pytest.mark.story
def test_a_slave_before_its_masters_min_reports_a_gap_and_reseeds_only_if_allowed(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver
) -> None:
    master = java_master(haSendHeartbeatInterval=1000)
    fill(master, driver, segments=1)
    slave = our_slave(master, "--once")
    assert slave.ended() == Ended(0)
    fill(master, driver, segments=4)
    start = delete_first_segments(master, 3)
    assert slave.offsets.verified < start
    log = files_of(slave.store / "commitlog")

    slave.start()
    assert_complains(slave.ended(), ExitCode.GAP, f"starts at {start}")
    blind = our_slave(master, "--once", "--master-remoting=none", store=slave.store)
    assert_complains(blind.ended(), ExitCode.GAP, "its first segments were deleted")
    waiting = our_slave(master, store=slave.store)
    waiting.wait_for(ReplicaState.GAP)
    waiting.stop_cleanly()
    assert files_of(slave.store / "commitlog") == log

    reseeded = our_slave(master, "--on-gap=reseed", store=slave.store)
    reseeded.wait_for(ReplicaState.IN_SYNC)
    assert driver.send(TOPIC, 50, BODY_BYTES).statuses == {"SEND_OK": 50}
    end = master.commit_log_range()[1]
    reseeded.wait_for_offset(end)
    reseeded.stop_cleanly()
    assert (start, end) == (reseeded.offsets.min, reseeded.offsets.verified)
    assert_equal_logs(slave.store, master.store, start, end)
    aside = next((slave.store / "rmqha").glob(f"aside-*/{0:020d}")).parent
    assert files_of(aside) == log
