"""What a user of Spark sees of nodes of ours that are read over the network: batch, stream and archive."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rmqha.kit.events import Event
from rmqha.pipeline.aggregate import in_workers
from rmqha.testing.nodes import NameServerNode
from rmqha.testing.records import make_record, write_log
from tests.pipeline.nodes import SEGMENT_SIZE, TOTAL_BYTES, Cluster, address, end_of
from tests.pipeline.streams import run_to_the_end
from tests.pipeline.test_aggregate import assert_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NETWORK_QUERIES = (
    "SELECT brokerName, topic, count(*) FROM log GROUP BY brokerName, topic",
    "SELECT topic, sum(totalSize), max(queueOffset), min(brokerName), max(brokerId) FROM log GROUP BY topic",
    "SELECT brokerId, queueId, min(storeTimestamp) FROM log WHERE brokerName = 'broker-b' GROUP BY brokerId, queueId",
    "SELECT brokerName AS b, count(*) FROM log WHERE topic > 'A' AND queueOffset BETWEEN 9 AND 70 GROUP BY brokerName",
    "SELECT count(*), max(brokerName) FROM log WHERE brokerName = 'nobody' OR brokerId > 0L",
    "SELECT count(*) FROM log",
)
"""For the view ``log`` of brokers."""


def read(spark: SparkSession, path: str | Path, **options: Any) -> DataFrame:
    return spark.read.format("rmqha").options(**options).load(str(path))


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: row.physicalOffset)


def test_spark_reads_a_node_as_it_reads_the_store(spark: SparkSession, cluster: Cluster) -> None:
    node = cluster.master()
    local = read(spark, node.store)
    remote = read(spark, address(node), splitBytes="100k")
    assert remote.columns == [*local.columns, "brokerName", "brokerId"]
    rows = rows_of(remote)
    assert [tuple(row)[:-2] for row in rows] == [tuple(row) for row in rows_of(local)]
    assert {tuple(row)[-2:] for row in rows} == {("broker-a", 0)}
    chosen = read(spark, address(node), columns="brokerName,keys").where("keys = 'k7'").collect()
    assert [tuple(row) for row in chosen] == [("broker-a", "k7")]
    counts = read(spark, address(node), view="stats").groupBy().sum("messages").first()
    assert counts is not None
    assert counts[0] == len(rows)
    by_queue = remote.where("queueId < 3").groupBy("brokerName", "queueId").count()
    assert sorted(in_workers(by_queue).collect()) == sorted(by_queue.collect())
    with pytest.raises(PySparkException, match="reads the files of a store"):
        read(spark, address(node), view="verify").collect()


@pytest.mark.story
def test_the_workers_count_all_brokers_of_a_cluster_as_spark_does(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Both brokers have the topics A and B, broker-a has C, too. ``rmqha://`` reads one of them."""
    with NameServerNode(tmp_path) as server:
        for name, topics in (("broker-a", "ABC"), ("broker-b", "BA")):
            records = [make_record(number, b"body", topics[number % len(topics)]) for number in range(1500)]
            node = cluster.master(name, f"--namesrv={server.address}", records=records)
            node.wait_for_event(Event.REGISTERED)
        for path in (f"namesrv://{server.address}?cluster=DefaultCluster", address(node)):
            read(spark, path, splitBytes="100k").createOrReplaceTempView("log")
            for query in NETWORK_QUERIES:
                assert_same(spark.sql(query))
        read(spark, f"namesrv://{server.address}", topic="A,C").createOrReplaceTempView("log")
        counted = in_workers(spark.sql("SELECT brokerName, topic, count(*) FROM log GROUP BY brokerName, topic"))
        assert sorted(map(tuple, counted.collect())) == [
            ("broker-a", "A", 500),
            ("broker-a", "C", 500),
            ("broker-b", "A", 750),
        ]


def streamed(spark: SparkSession, path: str, output: Path, checkpoint: Path, **options: Any) -> list[Any]:
    """All rows that a stream has written after it has read what there is."""
    stream = spark.readStream.format("rmqha").options(**options).load(path)
    writing = stream.select("brokerName", "physicalOffset", "body").writeStream.format("parquet")
    writing = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    run_to_the_end(lambda: writing.start(str(output)))
    return sorted(spark.read.parquet(str(output)).collect(), key=lambda row: (row.brokerName, row.physicalOffset))


@pytest.mark.story
def test_all_brokers_of_a_cluster_are_one_table(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with NameServerNode(tmp_path) as server:
        named = f"--namesrv={server.address}"
        nodes = {name: cluster.master(name, named, seed=seed) for seed, name in enumerate(("broker-a", "broker-b"))}
        for node in nodes.values():
            node.wait_for_event(Event.REGISTERED)
        path = f"namesrv://{server.address}?cluster=DefaultCluster"
        rows = read(spark, path).select("brokerName", "physicalOffset", "body").collect()
        wanted = {
            name: [(row.physicalOffset, row.body) for row in rows_of(read(spark, node.store))]
            for name, node in nodes.items()
        }
        assert {
            name: sorted((row.physicalOffset, row.body) for row in rows if row.brokerName == name) for name in wanted
        } == wanted
        with pytest.raises(PySparkException, match="there is no cluster other, only DefaultCluster"):
            read(spark, f"namesrv://{server.address}?cluster=other").collect()
        with pytest.raises(PySparkException, match="is an offset of one log"):
            read(spark, path, startingOffset="700").collect()


@pytest.mark.story
def test_a_stream_goes_on_where_it_was_with_brokers_that_come_and_go(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    with NameServerNode(tmp_path) as server:
        named = f"--namesrv={server.address}"
        path, output, checkpoint = f"namesrv://{server.address}", tmp_path / "rows", tmp_path / "checkpoint"
        one = cluster.master("broker-a", named)
        one.wait_for_event(Event.REGISTERED)
        rows = streamed(spark, path, output, checkpoint, maxBytesPerTrigger="200k")
        wanted = [("broker-a", row.physicalOffset) for row in rows_of(read(spark, one.store))]
        assert [tuple(row)[:2] for row in rows] == wanted
        other = cluster.master("broker-b", named, seed=2)
        other.wait_for_event(Event.REGISTERED)
        assert one.stop() == 0  # it takes leave of the name server
        wanted += [("broker-b", row.physicalOffset) for row in rows_of(read(spark, other.store))]
        for _ in range(2):  # the first batch of a new broker only says where it starts
            rows = streamed(spark, path, output, checkpoint)
        assert [tuple(row)[:2] for row in rows] == wanted
        one.start()
        one.wait_for_event(Event.REGISTERED)
        assert [tuple(row)[:2] for row in streamed(spark, path, output, checkpoint)] == wanted


@pytest.mark.story
def test_a_stream_refuses_another_log_at_the_same_address(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    one = cluster.master("broker-a")
    path = address(one)
    streamed(spark, path, tmp_path / "rows", tmp_path / "checkpoint")
    assert one.stop() == 0
    shutil.rmtree(one.store)
    write_log(one.store / "commitlog", 2 * TOTAL_BYTES, 700, SEGMENT_SIZE, seed=9)
    one.start()
    end_of(one)
    with pytest.raises(PySparkException, match="has other bytes before"):
        streamed(spark, path, tmp_path / "rows", tmp_path / "checkpoint")
