"""Jobs and queries as clusters run them: by ``spark-submit``, and with executors that are processes of their own."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

import rmqha.pipeline.__main__ as entry
from rmqha.testing.records import write_log
from tests.fixtures import expected, facts, max_offset, unpacked
from tests.pipeline.processes import FAST_JVM

SUBMIT = Path(sys.executable).with_name("spark-submit")
TIMEOUT_SECONDS = 1800.0
"""Several JVMs that start at once take minutes on a busy machine."""

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.story]


def submit(tmp_path: Path, *arguments: object) -> tuple[int, list[str]]:
    """The exit status of a submitted job, and the lines that its Python printed. Spark's own log is on stderr.

    A slow job also prints how far it is, every ten seconds.
    """
    done = subprocess.run(
        [SUBMIT, "--master", "local[2]", "--driver-java-options", FAST_JVM, entry.__file__, *map(str, arguments)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert ("Running Spark version" in done.stderr) == (done.returncode == 0), done.stderr  # only good ones need it
    return done.returncode, done.stdout.splitlines()


@pytest.mark.proof
def test_a_submitted_job_runs_on_spark(tmp_path: Path) -> None:
    messages, end = facts()["records"], max_offset("slave")
    status, lines = submit(tmp_path, "verify", unpacked("slave"))
    assert (status, lines[-1]) == (0, f"{messages} sound messages from 0 to {end}")


def test_a_submitted_job_takes_its_options(tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    status, (*_, line) = submit(tmp_path, "stats", unpacked("slave"), "--json", "-osplitBytes=1m", "--chart", chart)
    assert status == 0
    assert sum(topic["messages"] for topic in json.loads(line).values()) == facts()["records"]
    assert "TOrder1" in chart.read_text()


def test_a_submitted_jobs_failure_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    assert submit(tmp_path, "verify", tmp_path) == (2, [f"rmqha: {tmp_path} is not a store: it has no commitlog"])
    status, (line,) = submit(tmp_path, "verify", unpacked("slave"), "-ocolour=red")
    assert status == 2
    assert line.startswith("rmqha: verify has no option colour")


ON_EXECUTORS = """
import json, sys
from rmqha.pipeline.cli import job
from rmqha.pipeline.session import session

master, store = sys.argv[1:]
spark = session(master, {"spark.sql.shuffle.partitions": "2", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC"})
log = spark.read.format("rmqha").option("splitBytes", "1m").load(store)
print(json.dumps({row["topic"]: row["count"] for row in log.groupBy("topic").count().collect()}))
print(len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()))
job(["verify", store, "--master", master, "-o", "splitBytes=1m", "--json"])
"""


@pytest.mark.parametrize("executors", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_a_query_and_a_job_run_on_executors_that_are_processes_of_their_own(tmp_path: Path, executors: int) -> None:
    home = tmp_path / "spark"  # workers of a local cluster leave their files in Spark's home
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-c", ON_EXECUTORS, f"local-cluster[{executors},1,1024]", unpacked("slave")],
        env={**os.environ, "SPARK_HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    counts, processes, verified = map(json.loads, done.stdout.splitlines())
    assert counts == Counter(line["topic"] for line in expected() if "blank" not in line)
    assert processes == executors + 1  # the driver is counted
    assert (verified["messages"], verified["end"]) == (facts()["records"], max_offset("slave"))


STOPS_EARLY = """
import sys
from rmqha.pipeline.session import session
spark = session("local[2]", {"spark.driver.defaultJavaOptions": sys.argv[2]})
log = spark.read.format("rmqha").option("splitBytes", "64m").load(sys.argv[1])
log.show(2)
print(len(log.limit(3).collect()), len(log.toPandas().columns), log.first() is not None)
spark.stop()
"""


def test_a_query_that_stops_early_prints_no_traceback(tmp_path: Path) -> None:
    """Spark's own daemon prints the BrokenPipeError of a worker whose rows nobody wants any more."""
    write_log(tmp_path / "store" / "commitlog", 30 << 20, 1000, 1 << 26)
    done = subprocess.run(
        [sys.executable, "-c", STOPS_EARLY, str(tmp_path / "store"), FAST_JVM],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 18 True"
    assert "Traceback" not in done.stderr
