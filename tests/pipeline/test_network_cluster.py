"""A cluster of Java brokers under a producer, read by a Spark cluster over the network while slaves are killed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from rmqha.pipeline.brokers import open_logs
from rmqha.pipeline.options import parse_options
from rmqha.wire.layout import BLANK_MAGIC_CODE
from tests.interop import conftest as interop
from tests.interop.conftest import MasterFactory, SlaveFactory
from tests.interop.rocketmq import Broker, Driver, NameServer, commit_log_segments
from tests.pipeline import clusterreader
from tests.pipeline.cluster import PATIENCE_SECONDS, Host, SparkCluster, namespaces, one_machine
from tests.pipeline.clusterreader import BATCH, STREAM
from tests.pipeline.nodes import nodes_of
from tests.pipeline.processes import FAST_JVM
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.process, pytest.mark.story]
java_class_path, namesrv, java_brokers = interop.java_class_path, interop.namesrv, interop.java_brokers
java_master, java_slave, driver = interop.java_master, interop.java_slave, interop.driver

CLUSTER, TOPIC = "two-and-two", "TCluster"
BODY_BYTES, PRODUCERS, RATE = 4000, 8, 50.0
SOME_FOR_EACH = 16
"""A producer takes all queues in turn: so many messages go to both brokers."""
BUFFERS: Final = 3
"""Between a slave and the row that a task waits with: three connections, each with the buffers of two sockets."""
MARGIN_BYTES: Final = 16 << 20
Records = dict[int, bytes]
"""The SHA-256 of the record at each offset."""


@pytest.fixture
def hosts() -> Iterator[tuple[str, list[Host]]]:
    """The driver's address, and three hosts with networks of their own, where that is permitted."""
    with ExitStack() as stack:
        try:
            made = namespaces(stack)
        except (OSError, subprocess.CalledProcessError):
            made = one_machine(stack)
        yield made


@dataclass(frozen=True, slots=True)
class Pair:
    """A master and its slave."""

    master: Broker
    slave: Broker

    @property
    def name(self) -> str:
        return self.master.name


def bytes_on_the_way() -> int:
    """The most that the kernel keeps of what a slave has sent before a task that waits has taken it."""
    limits = (Path(f"/proc/sys/net/ipv4/tcp_{one}mem").read_text().split()[2] for one in "rw")
    return BUFFERS * sum(map(int, limits))


def records_on_disk(store: Path, end: int) -> Records:
    """Read with nothing of ours: all records of a log before ``end``."""
    found = {}
    for base in commit_log_segments(store):
        data = memoryview((store / "commitlog" / f"{base:020d}").read_bytes())
        at = 0
        while base + at < end and at < len(data):
            size, magic = struct.unpack_from(">ii", data, at)
            if magic == BLANK_MAGIC_CODE:
                break
            assert size > 0, f"{store} has no record at {base + at}"
            found[base + at] = sha256(data[at : at + size]).digest()
            at += size
    return found


@dataclass(frozen=True, slots=True)
class Rows:
    """What a run has read of a broker."""

    records: Records
    end: int
    count: int
    senders: dict[int, list[int]]
    """The brokerIds of each partition's rows, each once, in the order of the log."""


def rows_of(path: Path) -> dict[str, Rows]:
    """Each broker's."""
    table = pq.read_table(path).sort_by("physicalOffset")
    found = {}
    for name in table["brokerName"].unique().to_pylist():
        rows = [row for row in table.to_pylist() if row["brokerName"] == name]
        senders: dict[int, list[int]] = {}
        for row in rows:
            seen = senders.setdefault(row["partition"], [])
            if seen[-1:] != [row["brokerId"]]:
                seen.append(row["brokerId"])
        end = rows[-1]["physicalOffset"] + rows[-1]["size"]
        found[name] = Rows({row["physicalOffset"]: row["sha256"] for row in rows}, end, len(rows), senders)
    return found


def test_all_messages_come_once_although_slaves_are_killed_in_their_tasks(
    tmp_path: Path,
    hosts: tuple[str, list[Host]],
    java_master: MasterFactory,
    java_slave: SlaveFactory,
    namesrv: NameServer,
    driver: Driver,
) -> None:
    """A batch while one slave is killed, then a stream while the other one is."""
    address, machines = hosts
    segment_size = bytes_on_the_way() + MARGIN_BYTES
    common = {"brokerIP1": address, "brokerIP2": address}
    pairs = []
    for name, role in (("broker-a", "ASYNC_MASTER"), ("broker-b", "SYNC_MASTER")):
        master = java_master(name=name, cluster=CLUSTER, role=role, segment_size=segment_size, **common)
        pairs.append(Pair(master, java_slave(master, haSendHeartbeatInterval=1000, **common)))
        master.wait_for_slave()
    driver.create_topic(CLUSTER, TOPIC, 4)
    brokers = f"namesrv://{address}:{namesrv.listen_port}?cluster={CLUSTER}"
    count = len(pairs) * (segment_size + MARGIN_BYTES) // BODY_BYTES
    sent = driver.send(TOPIC, count, BODY_BYTES, threads=PRODUCERS)
    assert sent.stored == count
    ends = {pair.name: pair.master.commit_log_range()[1] for pair in pairs}
    for pair in pairs:
        assert ends[pair.name] > segment_size
        pair.slave.wait_for_offset(ends[pair.name])

    def asked_first() -> list[int]:
        return [nodes_of(plan)[0].broker_id for plan in open_logs(parse_options({"path": brokers}))]

    wait_until(lambda: asked_first() == [1, 1], "the name server to know the slaves")
    with (
        SparkCluster(tmp_path, machines) as cluster,
        driver.start_send(TOPIC, 0, BODY_BYTES, rate=RATE, first=count) as producer,
    ):
        process = start_reader(tmp_path, cluster.url, address, brokers, segment_size)
        try:
            for run, pair in zip((BATCH, STREAM), pairs, strict=True):
                wait_for_file(tmp_path / f"{run}-begun-{pair.name}-1", process)
                producer.wait_for_results(len(producer.results()) + SOME_FOR_EACH)
                pair.slave.kill()
                (tmp_path / f"{run}-go").touch()
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, (tmp_path / "reader.log").read_text()[-5000:]
        assert producer.is_running
    batch, stream = (rows_of(tmp_path / f"{run}.parquet") for run in (BATCH, STREAM))
    offsets = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    planned = {name: json.loads(text)["offset"] for name, text in offsets.items()}
    assert [one.name for one in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]
    for pair, killed_in in zip(pairs, (batch, stream), strict=True):
        assert batch[pair.name].end >= ends[pair.name]
        assert stream[pair.name].end == planned[pair.name] > batch[pair.name].end
        for rows in (batch[pair.name], stream[pair.name]):
            assert rows.count == len(rows.records), "no message comes twice"
            assert rows.records == records_on_disk(pair.master.store, rows.end)
        end = killed_in[pair.name].end
        assert killed_in[pair.name].records == records_on_disk(pair.slave.store, end)
        assert [1, 0] in killed_in[pair.name].senders.values(), "the master goes on within the task"


def wait_for_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until there is a file, or the process has ended."""
    wait_until(lambda: path.exists() or process.poll() is not None, path.name, PATIENCE_SECONDS)


def start_reader(folder: Path, master: str, address: str, brokers: str, split_bytes: int) -> subprocess.Popen[bytes]:
    """The program ``clusterreader``."""
    words = [master, address, brokers, str(folder), str(split_bytes), FAST_JVM]
    with (folder / "reader.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, clusterreader.__file__, *words],
            env={**os.environ, "SPARK_LOCAL_IP": address, "SPARK_LOCAL_HOSTNAME": address},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
