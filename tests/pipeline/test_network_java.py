"""Reads stock Java brokers over their HA ports: what comes equals the logs that they have."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqha.pipeline.brokers import open_logs
from rmqha.pipeline.jobs.origin import broker_folder
from rmqha.pipeline.network.segment import NetworkSegment
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.plan import LogPlan
from rmqha.pipeline.segments import read_records
from tests.interop import conftest as interop
from tests.interop.conftest import MasterFactory, SlaveFactory
from tests.interop.rocketmq import Driver, NameServer, commit_log_sha256
from tests.pipeline.lake import archived_offsets
from tests.pipeline.nodes import nodes_of
from tests.pipeline.stores import all_offsets
from tests.pipeline.test_network_reconcile import reconcile
from tests.pipeline.test_sink import stream
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.story
java_class_path, namesrv, java_brokers = interop.java_class_path, interop.namesrv, interop.java_brokers
java_master, java_slave, driver = interop.java_master, interop.java_slave, interop.driver
MESSAGES, MORE = 600, 7


def plans(path: str) -> list[LogPlan]:
    return open_logs(parse_options({"path": path, "splitBytes": "100k"}))


def read_all(plan: LogPlan) -> tuple[int, str]:
    """How many messages come, and the SHA-256 of all bytes of the log."""
    digest, count = hashlib.sha256(), 0
    for split in plan.splits(plan.start(), plan.stop()):
        for records in read_records(split, 1 << 16, True, passed=lambda passed: digest.update(passed.data)):
            count += len(records)
    return count, digest.hexdigest()


def test_a_master_and_its_slave_send_the_bytes_of_their_logs(
    java_master: MasterFactory, java_slave: SlaveFactory, namesrv: NameServer, driver: Driver
) -> None:
    master = java_master()
    slave = java_slave(master, haSendHeartbeatInterval=1000)
    driver.create_topic(master.cluster, "TNetwork", 4)
    assert driver.send("TNetwork", MESSAGES, 1024).statuses == {"SEND_OK": MESSAGES}
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    path = f"namesrv://{namesrv.address}?cluster={master.cluster}"
    wait_until(lambda: len(nodes_of(plans(path)[0])) == 2, "the name server to know the slave")
    (plan,) = plans(path)
    assert (plan.broker, plan.end) == (master.broker_name, end)
    assert [node.broker_id for node in nodes_of(plan)] == [1, 0]
    assert read_all(plan) == (MESSAGES, commit_log_sha256(slave.store, 0, end))
    (of_master,) = plans(f"rmqha://{master.ha_address}")
    assert read_all(of_master) == (MESSAGES, commit_log_sha256(master.store, 0, end))

    with NetworkSegment(plan.files[0].path, 0) as segment:
        before = segment.read(0, 10_000)
        assert segment.broker_id == 1
        slave.kill()
        after = segment.read(10_000, plan.files[0].end - 10_000)  # the kernel may still have all of the slave's bytes
        assert segment.read(0, 10_000).tobytes() == before.tobytes()
        assert segment.broker_id == 0
    assert before.tobytes() + after.tobytes() == (slave.store / "commitlog" / f"{0:020d}").read_bytes()


def test_a_sync_master_without_slaves_is_read_when_nobody_waits_for_the_bytes(
    java_master: MasterFactory, driver: Driver
) -> None:
    master = java_master(role="SYNC_MASTER")
    driver.create_topic(master.cluster, "TNetwork", 4)
    assert driver.send("TNetwork", 100, 1024).statuses == {"SLAVE_NOT_AVAILABLE": 100}
    (plan,) = plans(f"rmqha://{master.ha_address}")
    assert [node.settling_seconds for node in nodes_of(plan)] == [6.0]
    with NetworkSegment(plan.files[0].path, 0) as segment:
        segment.read(0, 1000)
        sent = driver.send("TNetwork", 1, 1024)
        assert sent.statuses == {"FLUSH_SLAVE_TIMEOUT": 1}, "it is counted as connected, and as no replica"
    assert read_all(plan) == (100, commit_log_sha256(master.store, 0, plan.end))


@pytest.mark.process
def test_reconcile_names_the_messages_that_came_after_the_archive(
    spark: SparkSession, java_master: MasterFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    """A stream archives a live broker's log; then archive and broker are compared, before and after further sends."""
    master = java_master()
    driver.create_topic(master.cluster, "TArchived", 4)
    assert driver.send("TArchived", MESSAGES, 1024).statuses == {"SEND_OK": MESSAGES}
    path, lake = f"namesrv://{namesrv.address}?cluster={master.cluster}", tmp_path / "lake"
    stream(spark, path, lake, tmp_path / "checkpoint", maxBytesPerTrigger="300k")
    archived = archived_offsets(broker_folder(lake, master.name))
    assert archived == all_offsets(master.store)
    assert len(archived) == MESSAGES
    for one, other in ((path, lake), (lake, path)):
        done, found = reconcile(one, "--against", other)
        assert done.exit_code == 0, done.output
        assert (found["missing"], found["more"], found["topics"]["TArchived"]["found"]) == (0, 0, MESSAGES)

    with driver.start_send("TArchived", MORE, 1024, first=MESSAGES) as run:
        assert run.wait().statuses == {"SEND_OK": MORE}
        sent = {(one.msg_id, one.key) for one in run.results()}
    done, found = reconcile(path, "--against", lake)
    assert done.exit_code == 1, done.output
    assert {row["problem"] for row in found["first"]} == {"missing"}
    assert {(row["msgId"], row["keys"]) for row in found["first"]} == sent
    assert (found["missing"], found["more"], len(sent)) == (MORE, 0, MORE)
    stream(spark, path, lake, tmp_path / "checkpoint")
    done, found = reconcile(path, "--against", lake)
    assert (done.exit_code, found["missing"], found["topics"]["TArchived"]["found"]) == (0, 0, MESSAGES + MORE)
