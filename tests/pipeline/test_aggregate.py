"""A GROUP BY in the workers gives what the same query over the records gives, or is refused."""

from __future__ import annotations

import tempfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as sql

from rmqha.pipeline.aggregate import NotInWorkers, in_workers
from rmqha.pipeline.sums import GROUPS
from rmqha.testing.records import FIRST_STORE_TIMESTAMP_MS
from rmqha.wire.properties import format_properties
from rmqha.wire.record import COMPRESSED_FLAG, Host, Record
from tests.pipeline.stores import end_of, make_store, plain_records, write_state
from tests.pipeline.streams import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Frames = dict[str, DataFrame]

MINUTE_MS = 60_000
TIMES_MS = (0, -5, 10**12, FIRST_STORE_TIMESTAMP_MS, FIRST_STORE_TIMESTAMP_MS + MINUTE_MS, 2**63 - 1, -(2**63))
MIDDLE = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=FIRST_STORE_TIMESTAMP_MS)).isoformat()
TOPICS = ("A", "B, C", "é", "%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
SUMS = (
    "count(*)",
    "count(1) AS n",
    "count(queueId, 'x')",
    "sum(totalSize)",
    "min(queueOffset)",
    "max(queueOffset) AS last",
    "min(storeTimestamp)",
    "max(storeTimestamp)",
    "max(topic)",
    "min(tags)",
)
CONDITIONS = (
    "topic = 'A'",
    "TOPIC IN ('A', 'B, C', '')",
    "topic LIKE '%R\\_%' OR queueId = 0",
    "'A' < topic",
    "startswith(topic, '%')",
    "tags = 'a'",
    "tags IS NULL",
    "tags <> 'a'",
    "NOT (tags IN ('a', NULL))",
    "tags <=> NULL",
    "queueId BETWEEN 1 AND 2",
    "queueId > 1L",
    "sysFlag = 0 OR flag IS NOT NULL",
    "queueOffset >= 3",
    "7 > queueOffset",
    "queueOffset BETWEEN 2 AND 40",
    f"storeTimestamp >= '{MIDDLE}'",
    f"storeTimestamp BETWEEN '2000-01-01' AND '{MIDDLE}'",
    f"bornTimestamp < '{MIDDLE}'",
    "bornTimestamp > date'1969-12-31'",
    f"storeTimestamp = '{MIDDLE}'",
)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Messages of applications and of brokers: of transactions, compressed ones, without tags, with times that someone
    made up.
    """
    return [
        Record(
            topic=draw(st.sampled_from(TOPICS)),
            body=zlib.compress(body) if flags & COMPRESSED_FLAG else body,
            properties_stored=format_properties({} if tags is None else {"TAGS": tags, "KEYS": "k"}),
            queue_id=draw(st.integers(0, 3)),
            flag=draw(st.integers(0, 1)),
            queue_offset=draw(st.integers(0, 50)),
            physical_offset=0,
            sys_flag=flags,
            born_timestamp=draw(st.sampled_from(TIMES_MS)),
            born_host=Host(b"\x7f\0\0\x01", draw(st.integers(1, 2))),
            store_timestamp=draw(st.sampled_from(TIMES_MS)),
            store_host=Host(b"\x7f\0\0\x01", 10911),
            reconsume_times=draw(st.integers(0, 1)),
        )
        for tags, flags, body in draw(
            st.lists(
                st.tuples(
                    st.sampled_from((None, "a", "A,b", "c ")),
                    st.sampled_from((0, 0, COMPRESSED_FLAG, PREPARED, COMMIT, ROLLBACK)),
                    st.binary(max_size=200),
                ),
                min_size=1,
                max_size=60,
            )
        )
    ]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A GROUP BY over the view ``log``."""
    groups = draw(st.lists(st.sampled_from(GROUPS), unique=True, max_size=3))
    asked = draw(st.lists(st.sampled_from(SUMS), min_size=0 if groups else 1, max_size=4))
    shown = [*draw(st.permutations(groups)), *asked]
    conditions = draw(st.lists(st.sampled_from(CONDITIONS), max_size=3))
    where = "".join(f" {'AND' if number else 'WHERE'} ({one})" for number, one in enumerate(conditions))
    return f"SELECT {', '.join(shown)} FROM log{where}{' GROUP BY ' + ', '.join(groups) if groups else ''}"


def assert_same(query: DataFrame) -> None:
    ours = in_workers(query)
    assert [(one.name, one.dataType) for one in ours.schema] == [(one.name, one.dataType) for one in query.schema]
    assert sorted(map(repr, map(tuple, ours.collect()))) == sorted(map(repr, map(tuple, query.collect())))


def read(spark: SparkSession, store: Path, **options: Any) -> DataFrame:
    return spark.read.format("rmqha").options(**options).load(str(store))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments with 80 messages, all confirmed. No test writes into it."""
    root = Path(tmp_path_factory.mktemp("log")) / "store"
    write_state(root, end_of(make_store(root, plain_records(80))))
    return root


@pytest.fixture(scope="module")
def frames(spark: SparkSession, store: Path) -> Frames:
    """What queries name ``log``, and its sums."""
    return {"log": read(spark, store), "sums": read(spark, store, view="stats")}


@pytest.mark.story
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(logs(), st.lists(queries(), min_size=3, max_size=3), st.sampled_from(("500", "2k", "1m")))
def test_the_workers_count_what_spark_counts(
    spark: SparkSession, messages: list[Record], asked: list[str], size: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder), messages, 4096)
        read(spark, Path(folder), splitBytes=size, batchBytes=size).createOrReplaceTempView("log")
        for one in asked:
            assert_same(spark.sql(one))


@pytest.mark.story
def test_a_query_of_each_kind(spark: SparkSession, store: Path) -> None:
    """By SQL with a view of the catalog, and by groupBy; below steps that only choose and rename."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW stored USING rmqha OPTIONS (path '{store}', queueId '0,1,2')")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW log AS SELECT queueId AS q, tags, queueOffset AS o FROM stored")
    assert_same(
        spark.sql("SELECT q, q AS again, count(*), max(o) FROM log l WHERE q < 2 AND o > 3 AND o < 15 GROUP BY q, tags")
    )
    assert_same(read(spark, store).where("tags = 'TagA'").groupBy("topic").count())
    assert_same(read(spark, store, queueOffset="2..9").where("queueOffset >= 4").groupBy("queueId").count())
    assert_same(read(spark, store, columns="topic,tags").groupBy("tags").agg(sql.count("topic").alias("n")))
    assert_same(spark.sql("SELECT topic FROM stored WHERE topic = 'nobody' GROUP BY topic"))
    assert_same(spark.sql("SELECT count(*), sum(totalSize), min(topic) FROM stored WHERE topic = 'nobody'"))


def test_the_log_is_read_once_and_only_sums_come_to_spark(spark: SparkSession, store: Path) -> None:
    rows = in_workers(read(spark, store).where("queueId < 3").groupBy("topic").count())
    plan = rows._jdf.queryExecution().analyzed().toString()
    (read_columns,) = (line for line in plan.splitlines() if "RelationV2" in line)
    assert [one.partition("#")[0] for one in read_columns.partition("[")[2].split(", ")] == [
        "queueId",
        "topic",
        "messages",
    ]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT topic, count(*) FROM log GROUP BY topic ORDER BY topic", "last step of this query is Sort"),
        (
            "SELECT topic, count(*) FROM log GROUP BY topic HAVING count(*) > 1",
            "last step of this query is (Filter|Project)",
        ),
        ("SELECT topic FROM log", "last step of this query is Project"),
        ("SELECT keys, count(*) FROM log GROUP BY keys", "group by topic, queueId, tags, .* not by .*keys"),
        ("SELECT upper(topic), count(*) FROM log GROUP BY 1", "not by upper"),
        ("SELECT topic, count(*) + 1 FROM log GROUP BY topic", "not by .*count"),
        ("SELECT count(tags) FROM log", "do not sum up count.*tags"),
        ("SELECT count(DISTINCT queueId) FROM log", "do not sum up count.*DISTINCT"),
        ("SELECT count(*) FILTER (WHERE queueId = 1) FROM log", "do not sum up count"),
        ("SELECT avg(totalSize) FROM log", "do not sum up avg"),
        ("SELECT max(bornTimestamp) FROM log", "do not sum up max"),
        ("SELECT count(*) FROM log WHERE keys = 'k7'", "group by topic, queueId, tags, .* not by .*keys"),
        ("SELECT count(*) FROM log WHERE physicalOffset > 7", "not by .*physicalOffset"),
        ("SELECT count(*) FROM log WHERE length(topic) = 1", "do not understand the condition length"),
        ("SELECT count(*) FROM log WHERE queueOffset = 1 OR queueId = 1", "not by .*queueOffset"),
        ("SELECT count(*) FROM log WHERE queueOffset > NULL", "compared with null"),
        (
            "SELECT count(*) FROM log WHERE storeTimestamp < timestamp'+90000-01-01'",
            "not a time in the years 1 to 9999",
        ),
        ("SELECT count(*) FROM log WHERE queueId < 1.5D", "do not understand the condition CAST"),
        ("SELECT count(*) FROM log JOIN log AS other USING (keys)", "the plan has Join"),
        ("SELECT topic, count(*) FROM log GROUP BY ROLLUP (topic)", "the plan has Expand"),
        ("SELECT count(*) FROM range(3)", "the plan has Range"),
        ("SELECT count(*) FROM sums", "reads view=stats"),
    ],
)
def test_what_cannot_be_counted_there_is_refused(spark: SparkSession, frames: Frames, query: str, told: str) -> None:
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    with pytest.raises(NotInWorkers, match=told):
        in_workers(spark.sql(query))


@pytest.mark.story
def test_a_stream_is_summed_by_the_view(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """Its rows are those of a split: they are summed once more."""
    stream = spark.readStream.format("rmqha").option("splitBytes", "4k")
    with pytest.raises(NotInWorkers, match="this is a stream: read view=stats"):
        in_workers(stream.load(str(store)).groupBy("topic").count())
    rows = stream.options(view="stats", columns="queueId,messages", queueOffset="5..").load(str(store))
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_the_end(lambda: writing.trigger(availableNow=True).start(str(tmp_path / "sums")))
    sums = spark.read.parquet(str(tmp_path / "sums")).groupBy("queueId").sum("messages").collect()
    assert sorted(map(tuple, sums)) == [(queue, 15) for queue in range(4)]
