"""Reads real nodes of ours over their HA ports, without Spark: what comes equals the store that they have."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmqha.cli import main
from rmqha.kit.events import Event
from rmqha.pipeline.brokers import open_logs
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.network.segment import NetworkSegment, NoNodeLeft
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import read_records
from rmqha.store.errors import DataLossError
from rmqha.testing.nodes import PutNode, free_port
from tests.net.tls.authority import Authority
from tests.pipeline.lake import archived_offsets
from tests.pipeline.nodes import Cluster, address, nodes_of
from tests.pipeline.stores import all_offsets, offsets_read
from tests.puts import NOT_AVAILABLE, assert_all

pytestmark = pytest.mark.process


def plans(path: str, **texts: Any) -> list[LogPlan]:
    return open_logs(parse_options({"path": path, **{name: str(text) for name, text in texts.items()}}))


def sha256_of(plan: LogPlan) -> str:
    """The SHA-256 of all bytes of a log, as it is read."""
    digest = hashlib.sha256()
    for split in plan.splits(plan.start(), plan.stop()):
        for _ in read_records(split, 1 << 16, passed=lambda passed: digest.update(passed.data)):
            pass
    return digest.hexdigest()


def test_a_node_sends_the_bytes_of_its_store(cluster: Cluster) -> None:
    node = cluster.master()
    (plan,) = plans(address(node), splitBytes="100k")
    local = open_log(parse_options({"path": str(node.store), "splitBytes": "100k"}))
    assert (plan.broker, plan.min_offset, plan.end) == ("broker-a", local.min_offset, local.end)
    assert len(plan.splits(0, plan.end)) > 4
    assert sha256_of(plan) == sha256_of(local)
    assert offsets_read(plan) == all_offsets(node.store)


def test_a_slave_is_asked_first_and_its_master_if_it_dies(cluster: Cluster) -> None:
    master = cluster.master()
    slave = cluster.slave(master)
    (plan,) = plans(address(master, slave))
    assert [node.broker_id for node in nodes_of(plan)] == [1, 0]
    reading = read_records(plan.splits(0, plan.end)[0], 50_000)
    found = next(reading).physical_offset.tolist()
    slave.kill()
    for records in reading:
        found += records.physical_offset.tolist()
    for split in plan.splits(0, plan.end)[1:]:
        for records in read_records(split, 50_000):
            found += records.physical_offset.tolist()
    assert found == all_offsets(master.store)


def test_a_reader_is_no_replica(cluster: Cluster, tmp_path: Path) -> None:
    """A SYNC_MASTER answers as if nobody was connected, and no slot keeps its files."""
    options = ["--role=sync-master", f"--port={free_port()}", "--set=slaveTimeout=60000", "--hold"]
    with PutNode(tmp_path, options, name="sync") as master:
        master.port("remoting")
        assert_all(master.put(50), NOT_AVAILABLE)
        (plan,) = plans(address(master), readUpTo="written")
        with NetworkSegment(plan.files[0].path, 0) as segment:
            assert len(segment.read(0, 1000)) == 1000
            master.wait_for_event(Event.SLAVE_TRANSFER_STARTED)
            assert_all(master.put(20), NOT_AVAILABLE)
        assert not list((master.store / "rmqha").glob("slots/*"))


def test_wrong_addresses_are_explained(cluster: Cluster) -> None:
    for path, reason in (
        ("rmqha://", "it is neither"),
        ("rmqha://host:99999", "a port is between"),
        ("rmqha://host?cluster=x", "has no parameter cluster"),
        ("namesrv://host;h:x", "is not HOST:PORT"),
    ):
        with pytest.raises(OptionError, match=reason):
            plans(path)


def test_a_port_with_tls_and_an_allow_list_serves_who_shows_the_right_certificate(
    cluster: Cluster, tmp_path: Path
) -> None:
    ca = Authority(tmp_path / "ca")
    node = cluster.master(
        "broker-a",
        f"--tls-cert={ca.issue('localhost')}",
        f"--tls-ca={ca.path}",
        "--tls-verify-slaves",
        "--allow-slaves=spark.example.com",
    )
    path = f"rmqha://localhost:{node.port()}"
    ours, others = ca.issue("spark.example.com"), ca.issue("other.example.com")
    (plan,) = plans(path, tlsCa=ca.path, tlsCert=ours)
    assert offsets_read(plan) == all_offsets(node.store)
    (plan,) = plans(path, tlsCa=ca.path, tlsCert=others)
    with pytest.raises(NoNodeLeft, match="it does not allow this address"):
        offsets_read(plan)
    with pytest.raises(DataLossError, match="no node of the broker answers"):
        plans(path)
    with pytest.raises(DataLossError, match="CERTIFICATE_VERIFY_FAILED"):
        plans(path, tls="true")
    with pytest.raises(OptionError, match="must name PEM files"):
        plans(path, tlsCa=tmp_path / "missing.pem")


def test_a_job_archives_a_broker_each_message_once(cluster: Cluster, tmp_path: Path) -> None:
    master = cluster.master()
    lake = tmp_path / "lake"

    def archive(path: object) -> dict[str, Any]:
        done = CliRunner().invoke(main, ["job", "archive", str(path), "--output", str(lake), "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    offsets = all_offsets(master.store)
    first = archive(address(master))
    assert first["messages"] == len(offsets)
    assert archived_offsets(lake) == offsets
    slave = cluster.slave(master)
    assert archive(address(slave))["messages"] == 0, "another store with the same log"
    assert archive(master.store)["messages"] == 0
