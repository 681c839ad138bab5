"""A real Java broker, our slave, and Spark: archived once whatever is killed, and counted as Java counts."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql.functions import col

from rmqha.cli import main
from rmqha.kit.events import Event
from rmqha.pipeline.jobs.manifest import Archive, archived_paths
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Record
from tests.freezing import freeze, thaw
from tests.interop import conftest as interop
from tests.interop.conftest import MasterFactory, SlaveNodeFactory
from tests.interop.nodes import RmqhaNode
from tests.interop.rocketmq import Broker, Driver, SendResult, SendRun, message_body
from tests.pipeline.lake import make_store, visible_files
from tests.pipeline.processes import WAIT_SECONDS, Stage, StreamProcess, open_files, signal_all, spark_workers
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.story]
java_class_path, namesrv, java_brokers = interop.java_class_path, interop.namesrv, interop.java_brokers
java_master, our_slave, driver = interop.java_master, interop.our_slave, interop.driver

TOPIC: Final = "TLive"
SEGMENT_SIZE: Final = 4 << 20
BODY_BYTES: Final = 2_000
RATE: Final = 200.0
MAX_PAUSE_S: Final = 1.0
SOME_KILLS: Final = ("driver", "master")
ALL_KILLS: Final = ("driver", "driver", "worker", "slave", "slave", "master")
"""`make test` does some, `make proofs` all."""


# -- kills ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Live:
    """All that is at work."""

    master: Broker
    slave: RmqhaNode
    stream: StreamProcess
    run: SendRun
    rng: random.Random
    stages: list[Stage]

    @property
    def archived(self) -> int:
        """How far the archive reaches, from the log's start on without a gap."""
        covered = Archive(self.stream.lake).covered()
        assert [start for start, _ in covered] in ([], [0])
        return covered[0][1] if covered else 0

    def wait_for_archived(self, offset: int) -> None:
        """Wait until the archive reaches an offset."""

        def is_archived() -> bool:
            self.stream.keep_running()
            return self.archived >= offset

        wait_until(is_archived, f"the archive to reach {offset}, it is at {self.archived}", WAIT_SECONDS)

    def wait_for_progress(self) -> None:
        """Wait until a message is in a new manifest that was sent, and promised, from now on."""
        manifests, sent = len(Archive(self.stream.lake).manifests()), len(self.run.results())
        wait_until(lambda: bool(sends_ok(self.run.results()[sent:])), "SEND_OK")
        self.wait_for_archived(sends_ok(self.run.results()[sent:])[0].physical_offset + 1)
        assert len(Archive(self.stream.lake).manifests()) > manifests

    @property
    def unconfirmed(self) -> int:
        """Bytes of the master's log that readers of the slave's may not read yet."""
        return self.master.commit_log_range()[1] - self.slave.offsets.confirmed

    def kill(self, kind: str) -> str:
        """SIGKILL one of these at a random moment of its work, and start it again; tells what the kill hit."""
        if kind == "driver":
            stage = self.stages.pop()
            self.stream.kill_in_a_batch(stage)
            self.stream.start()
            return f"a batch was {stage.value}"
        if kind == "worker":
            return f"process {self.stream.kill_writing_worker()}"  # Spark starts another one
        time.sleep(self.rng.uniform(0, MAX_PAUSE_S))  # the moment is a drawn one, whatever is going on
        if kind == "slave":
            wait_until(lambda: self.unconfirmed > 0, "bytes that the slave has not confirmed")
            self.slave.kill()
            unconfirmed = self.unconfirmed
            self.slave.start()
            return f"{unconfirmed} bytes were not confirmed"
        self.master.kill()
        answered = len(sends_ok(self.run.results()))
        self.master.start()
        return f"{answered} messages promised"


def sends_ok(results: list[SendResult]) -> list[SendResult]:
    return [result for result in results if result.status == "SEND_OK"]


def hashed(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


Place = tuple[int, str, int, int, str]
"""Physical offset, topic, queue id, queue offset and the body's digest."""


def in_the_log(store: Path, end: int) -> list[Place]:
    """The messages up to an offset, as the reference codec reads them."""
    reader = StoreReader(store)
    try:
        return [
            (offset, record.topic, record.queue_id, record.queue_offset, hashed(record.body))
            for offset, record in reader.records(0, end)
            if isinstance(record, Record)
        ]
    finally:
        reader.close()


def in_the_lake(lake: Path) -> list[dict[str, Any]]:
    """The rows of every Parquet file that is to be seen, by their places in the log."""
    columns = ["physicalOffset", "topic", "queueId", "queueOffset", "keys", "body"]
    rows = [row for path in visible_files(lake) for row in pq.ParquetFile(path).read(columns).to_pylist()]
    return sorted(rows, key=lambda row: int(row["physicalOffset"]))


def assert_each_message_once(lake: Path, store: Path, end: int) -> None:
    """The lake is the log up to ``end``, body for body; nobody sees a file that is in no manifest."""
    places = [
        (row["physicalOffset"], row["topic"], row["queueId"], row["queueOffset"], hashed(row["body"]))
        for row in in_the_lake(lake)
    ]
    assert places == in_the_log(store, end)
    assert visible_files(lake) == sorted(archived_paths(lake))
    assert list(lake.rglob(".*.parquet.*")) == []
    assert Archive(lake).covered() == [(0, end)]


def assert_holds_all_promised(lake: Path, results: list[SendResult]) -> None:
    """Each message answered SEND_OK is in the lake where the answer said, whole; none is there twice."""
    rows = [row for row in in_the_lake(lake) if row["topic"] == TOPIC]
    by_key = {row["keys"]: (row["physicalOffset"], row["queueId"], row["queueOffset"], row["body"]) for row in rows}
    assert len(by_key) == len(rows)
    for result in sends_ok(results):
        body = message_body(int(result.key[1:]), BODY_BYTES)
        place = (result.physical_offset, result.queue_id, result.queue_offset)
        assert by_key[result.key] == (*place, body)


@pytest.mark.parametrize("kills", [SOME_KILLS, pytest.param(ALL_KILLS, marks=pytest.mark.proof)], ids=["some", "all"])
def test_each_message_is_archived_once_although_processes_are_killed(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver, tmp_path: Path, kills: tuple[str, ...]
) -> None:
    seed = secrets.randbits(32)
    print(f"{seed=}")
    rng = random.Random(seed)
    master = java_master(segment_size=SEGMENT_SIZE)
    slave = our_slave(master)
    slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
    lake = tmp_path / "lake"
    with StreamProcess(tmp_path, slave.store, lake) as stream:
        driver.create_topic(master.cluster, TOPIC)
        with driver.start_send(TOPIC, 0, BODY_BYTES, threads=4, rate=RATE, send_timeout_ms=10_000) as run:
            live = Live(master, slave, stream, run, rng, rng.sample(list(Stage), kills.count("driver")))
            live.wait_for_progress()
            for kind in rng.sample(kills, len(kills)):
                hit = live.kill(kind)
                print(f"killed the {kind}: {hit}; {len(live.run.results())} sent, {live.archived} bytes archived")
                live.wait_for_progress()
            report = run.stop()
            results = run.results()
        end = master.commit_log_range()[1]
        slave.wait_for_offset(end)
        live.wait_for_archived(end)
        stream.wait_for_batch()
    print(f"{report.statuses} {report.failures}, {end} bytes, {len(Archive(lake).manifests())} manifests")
    assert report.failures, "the master was killed while messages were sent"
    slave.stop_cleanly()
    assert slave.offsets.confirmed == end
    assert_each_message_once(lake, slave.store, end)
    assert_holds_all_promised(lake, results)
    state = slave.state()
    assert state is not None
    assert state.epoch == 1, "nothing confirmed was ever taken back"


# -- a worker alone, in a query ------------------------------------------------------------------------------

LOG_BYTES: Final = 1_000_000


def killed_in_mid_read(store: Path) -> bool:
    """Whether one of Spark's workers was found, and killed, with the log open."""
    workers = spark_workers(os.getpid())
    freeze(*workers)
    reading = [pid for pid in workers if any(path.startswith(str(store)) for path in open_files(pid))][:1]
    signal_all(reading, signal.SIGKILL)
    thaw(*workers)
    return bool(reading)


def test_a_query_whose_worker_is_killed_fails_and_a_second_one_is_right(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", LOG_BYTES)
    slow = spark.read.format("rmqha").option("batchBytes", "1000").load(str(store))

    def ask() -> list[int]:
        return sorted(row.physicalOffset for row in slow.collect())

    def failed() -> bool:
        """Whether a query has failed; it may end before a worker is found."""
        asked = pool.submit(ask)
        wait_until(lambda: asked.done() or killed_in_mid_read(store), "a worker that reads", WAIT_SECONDS)
        errors.append(asked.exception(WAIT_SECONDS))
        return errors[-1] is not None

    errors = list[BaseException | None]()
    with ThreadPoolExecutor(1) as pool:
        wait_until(failed, "a kill that hits a query", WAIT_SECONDS)
    assert "Python worker exited unexpectedly" in str(errors[-1])
    assert ask() == [offset for offset, *_ in in_the_log(store, LOG_BYTES)]


# -- counts --------------------------------------------------------------------------------------------------

PRODUCERS: Final[Sequence[Mapping[str, Any]]] = (
    {"name": "sync", "topic": "TCountSync", "kind": "sync", "count": 203},
    {"name": "large", "topic": "TCountSync", "kind": "async", "count": 30, "body_bytes": 60_000},
    {"name": "batch", "topic": "TCountBatch", "kind": "batch", "count": 159},
    {"name": "ordered", "topic": "TCountOrdered", "kind": "orderly", "count": 101},
)
TOPICS: Final = {"TCountSync": 4, "TCountBatch": 3, "TCountOrdered": 5}


def test_spark_and_a_job_count_at_our_slave_what_java_counts_at_its_broker(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, driver: Driver, spark: SparkSession
) -> None:
    master = java_master()
    slave = our_slave(master)
    driver.create_topics(master.cluster, TOPICS)
    clients = driver.clients({"producers": PRODUCERS, "until": [], "seconds": 300})
    assert clients.troubles == []
    end = master.commit_log_range()[1]
    slave.wait_for_state(lambda state: state.offsets.confirmed == end, f"all to be confirmed, up to {end}")
    of_java = {
        (topic, queue): high - low
        for topic, queues in driver.queue_ends(*TOPICS).items()
        for queue, (low, high) in queues.items()
        if high > low
    }
    assert sum(of_java.values()) == sum(producer["count"] for producer in PRODUCERS)
    assert {topic for topic, _ in of_java} == TOPICS.keys()

    rows = spark.read.format("rmqha").load(str(slave.store)).where(col("topic").isin(*TOPICS))
    counted = rows.groupBy("topic", "queueId").count().collect()
    assert {(row.topic, row.queueId): row["count"] for row in counted} == of_java

    stats = json.loads(CliRunner().invoke(main, ["job", "stats", str(slave.store), "--json"]).stdout)
    assert {
        (topic, int(queue)): count for topic in TOPICS for queue, count in stats[topic]["queues"].items()
    } == of_java
    messages = {topic: sum(count for (of, _), count in of_java.items() if of == topic) for topic in TOPICS}
    assert {topic: stats[topic]["messages"] for topic in TOPICS} == messages

    sent = [message for messages in clients.sent.values() for message in messages]
    marks = Counter((one["topic"], one["properties"]["TAGS"], one["keys"]) for one in sent)
    assert (
        Counter((row.topic, row.tags, row["keys"]) for row in rows.select("topic", "tags", "keys").collect()) == marks
    )
