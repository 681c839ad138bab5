"""A standalone Spark cluster of a master and two workers: queries and jobs are right although executors are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures import expected, facts, unpacked
from tests.pipeline.cluster import PATIENCE_SECONDS, Host, SparkCluster, namespaces, one_machine
from tests.pipeline.lake import archived_offsets
from tests.pipeline.processes import FAST_JVM
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.story]

DRIVER = """
import json, os, sys, time, uuid
from rmqha.pipeline.cli import job
from rmqha.pipeline.session import session

master, address, store, folder, jvm = sys.argv[1:]
hosts = {"spark.driver.host": address, "spark.driver.bindAddress": address, "spark.executor.extraJavaOptions": jvm}
spark = session(master, {**hosts, "spark.sql.shuffle.partitions": "2", "spark.executor.memory": "512m"})
log = spark.read.format("rmqha").option("splitBytes", "500k").option("columns", "topic,physicalOffset").load(store)

def held(batches):
    open(f"{folder}/begun-{uuid.uuid4().hex}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)  # a worker of Spark has no tests.waiting
    yield from batches

counts = log.mapInArrow(held, log.schema).groupBy("topic").count().collect()
print(json.dumps({row["topic"]: row["count"] for row in counts}), flush=True)
print(json.dumps(log.select("physicalOffset").distinct().count()), flush=True)
options = ["--master", master, "--json"]
job(["archive", store, "--output", f"{folder}/lake", "-o", "splitBytes=300k", *options])
"""


def three_hosts(stack: ExitStack) -> tuple[str, list[Host]]:
    """Hosts with networks of their own. Skips if we may not make them."""
    try:
        return namespaces(stack)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root and the command ip: {error}")


@pytest.fixture(params=[one_machine, three_hosts], ids=["one machine", "three hosts"])
def hosts(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Host]]]:
    with ExitStack() as stack:
        yield request.param(stack)


def test_the_result_is_right_although_executors_are_killed(tmp_path: Path, hosts: tuple[str, list[Host]]) -> None:
    address, machines = hosts
    with SparkCluster(tmp_path, machines) as cluster:
        arguments = [cluster.url, address, str(unpacked("slave")), str(tmp_path), FAST_JVM]
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            env={**os.environ, "SPARK_LOCAL_IP": address, "SPARK_LOCAL_HOSTNAME": address},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "driver.log").open("wb"),
            text=True,
        )
        try:
            wait_until(lambda: len(list(tmp_path.glob("begun-*"))) >= 2, "a task in each executor", PATIENCE_SECONDS)
            killed = cluster.kill_executors(0)
            assert killed
            wait_until(lambda: bool(set(cluster.executors(0)) - set(killed)), "another executor", PATIENCE_SECONDS)
            (tmp_path / "go").touch()
            staged = tmp_path / "lake" / "_staged"
            wait_until(lambda: any(staged.glob(".*")) or driver.poll() is not None, "a staged file", PATIENCE_SECONDS)
            cluster.kill_executors(1)
            out, _ = driver.communicate(timeout=PATIENCE_SECONDS)
        finally:
            driver.kill()
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-5000:]
    counts, distinct, archived = map(json.loads, out.splitlines())
    assert counts == Counter(line["topic"] for line in expected() if "blank" not in line)
    assert distinct == archived["messages"] == facts()["records"]
    offsets = archived_offsets(tmp_path / "lake")
    assert len(offsets) == len(set(offsets)) == facts()["records"]
