"""What a user of Spark sees: batch and stream, on one real session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.logstream import LogStreamReader, SplitPartition
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.source import LogReader
from rmqha.pipeline.views import view_reader
from rmqha.store.errors import DataLossError
from rmqha.store.log.mappedfile import file_name
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.testing.records import make_record
from rmqha.wire.record import Record
from tests import fixtures
from tests.pipeline.stores import SEGMENT_SIZE, end_of, make_store, plain_records, write_state
from tests.pipeline.streams import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def records(store: Path) -> list[Record]:
    """Those of a store of three segments, of which ours has confirmed all."""
    records = make_store(store, plain_records(80))
    write_state(store, end_of(records))
    return records


def read(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("rmqha").options(**options).load(str(path))


def offsets_of(frame: DataFrame) -> list[int]:
    return sorted(row.physicalOffset for row in frame.select("physicalOffset").collect())


def offsets(records: list[Record]) -> list[int]:
    return [record.physical_offset for record in records]


@pytest.mark.story
def test_a_store_of_java_is_read_by_its_name_alone(spark: SparkSession) -> None:
    """No registering: Spark finds the module by itself."""
    wanted = [one for one in fixtures.expected() if "topic" in one]
    frame = read(spark, fixtures.unpacked("slave"), splitBytes="100k")
    rows = {row.physicalOffset: row for row in frame.collect()}
    assert sorted(rows) == [one["physicalOffset"] for one in wanted]
    for one in wanted:
        row = rows[one["physicalOffset"]]
        assert (row.topic, row.queueId, row.queueOffset) == (one["topic"], one["queueId"], one["queueOffset"])
        assert (row.tags, row.keys) == (one["properties"].get("TAGS"), one["properties"].get("KEYS"))
        assert row.bornHost == one["bornHost"]


def test_sql_over_the_log(spark: SparkSession, store: Path, records: list[Record]) -> None:
    read(spark, store, properties="map").createOrReplaceTempView("log")
    found = spark.sql(
        "SELECT tags, count(*), max(properties['CLUSTER']) FROM log GROUP BY tags ORDER BY tags"
    ).collect()
    assert [tuple(row) for row in found] == [(f"Tag{letter}", 20, "DefaultCluster") for letter in "ABCD"]


def test_a_view_reads_by_dir(spark: SparkSession, store: Path, records: list[Record]) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING rmqha OPTIONS (dir '{store}', columns 'keys')")
    assert spark.sql("SELECT * FROM t WHERE keys = 'k7'").collect() == [("k7",)]


def test_a_table_of_the_catalog_is_refused_as_spark_would_lose_its_options(spark: SparkSession, store: Path) -> None:
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE messages USING rmqha OPTIONS (dir '{store}')")


def test_columns_are_those_asked_for(spark: SparkSession, store: Path, records: list[Record]) -> None:
    by_option = read(spark, store, columns="queueId,body,propertiesMap")
    assert by_option.columns == ["queueId", "body", "propertiesMap"]
    assert by_option.filter("queueId = 3").first().propertiesMap["KEYS"] == "k3"  # type: ignore[union-attr]  # there is a row
    by_schema = spark.read.format("rmqha").schema("keys string, storeTimestamp timestamp").load(str(store))
    assert by_schema.agg(sql.count_distinct("keys")).first()[0] == 80  # type: ignore[index]  # as above
    with pytest.raises(PySparkException, match="keys is string, not int"):
        spark.read.format("rmqha").schema("keys int").load(str(store)).collect()


@contextmanager
def push_down(spark: SparkSession, enabled: bool) -> Iterator[None]:
    conf = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(conf)
    spark.conf.set(conf, str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.set(conf, str(before))


@pytest.mark.parametrize("enabled", [True, False])
def test_filters_give_the_same_rows_pushed_down_or_not(
    spark: SparkSession, store: Path, records: list[Record], enabled: bool
) -> None:
    with push_down(spark, enabled):
        frame = read(spark, store, pushdown="true")
        middle = records[40].physical_offset
        chosen = frame.where(f"queueId IN (1, 2) AND tags = 'TagB' AND queueOffset > 3 AND physicalOffset <= {middle}")
        assert offsets_of(chosen) == offsets([records[n] for n in range(17, 41, 4)])
        assert offsets_of(frame.where("topic = 'nobody'")) == []
        assert len(offsets_of(frame.where("tags IN ('TagA', NULL) AND queueOffset = 3"))) == 1


def test_a_filter_leaves_other_queries_of_the_same_frame_alone(
    spark: SparkSession, store: Path, records: list[Record]
) -> None:
    """With push-down Spark 4.3 would read for all of them what the last filter has selected."""
    with push_down(spark, True):
        frame = read(spark, store)
        of_a, of_b = (frame.where(f"tags = 'Tag{letter}'").select("physicalOffset") for letter in "AB")
        assert offsets_of(of_a) == offsets(records[::4])
        assert offsets_of(frame) == offsets(records)
        assert offsets_of(of_a.union(of_b)) == sorted(offsets(records[::4] + records[1::4]))


TIMES = [0, 5, -1, 3, 1000, -(2**63), 7, 2**63 - 1, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1, MIN_TIMESTAMP_MS, 5, 4]
"""In ms; a clock that goes back, the ends of what a column can show, and times that someone made up beyond them."""
OF_TIMES = [
    "storeTimestamp > '1970-01-01 00:00:00.004'",
    "storeTimestamp > '1970-01-01 00:00:00.0041' AND storeTimestamp < '1970-01-01 00:00:00.0071'",
    "storeTimestamp >= '1970-01-01 00:00:00.0041' AND storeTimestamp <= '1970-01-01 00:00:00.0069'",
    "storeTimestamp = '1970-01-01 00:00:00.005'",
    "storeTimestamp IN ('1970-01-01 00:00:00.005', '1970-01-01 00:00:00.007')",
    "storeTimestamp <= '1969-12-31 23:59:59.9995'",
    "storeTimestamp >= '9999-12-31 23:59:59.999'",
    "storeTimestamp <= '0001-01-01 00:00:00'",
    "NOT storeTimestamp < '1970-01-01 00:00:00.005'",
    "storeTimestamp IS NULL",
    "storeTimestamp <=> '1970-01-01 00:00:00.005'",
    "bornTimestamp >= '1970-01-01 00:00:00.005' AND storeTimestamp < '1970-01-01 00:00:00.005'",
]
OF_NO_TIME = ["storeTimestamp = '1970-01-01 00:00:00.0050001'", "storeTimestamp > NULL"]


def test_times_give_the_same_rows_pushed_down_or_not(spark: SparkSession, store: Path) -> None:
    some = [(born, stored) for born in TIMES for stored in TIMES]
    records = make_store(
        store,
        [
            replace(make_record(number, b""), born_timestamp=born, store_timestamp=stored)
            for number, (born, stored) in enumerate(some)
        ],
    )
    write_state(store, end_of(records))
    frame = read(spark, store, columns="physicalOffset,bornTimestamp,storeTimestamp", pushdown="true")
    conditions = [*OF_TIMES, *OF_NO_TIME]
    rows = frame.select("physicalOffset", *(sql.expr(one) for one in conditions)).collect()
    with push_down(spark, True):
        found = [offsets_of(frame.where(condition)) for condition in conditions]
    assert found == [sorted(row[0] for row in rows if row[number + 1]) for number in range(len(conditions))]
    assert all(found[: len(OF_TIMES)]), "each of them chooses some"


@pytest.mark.parametrize(
    ("one", "times"),
    [
        (GreaterThan, [5, 7, 1000, MAX_TIMESTAMP_MS, 5]),
        (GreaterThanOrEqual, [5, 7, 1000, MAX_TIMESTAMP_MS, 5, 4]),
        (LessThan, [0, -1, 3, MIN_TIMESTAMP_MS]),
        (LessThanOrEqual, [0, -1, 3, MIN_TIMESTAMP_MS, 4]),
        (EqualTo, [4]),
    ],
)
def test_only_rows_of_a_pushed_time_leave_the_worker(store: Path, one: type[Any], times: list[int]) -> None:
    make_store(store, [replace(make_record(0, b""), store_timestamp=stored) for stored in TIMES])
    reader = LogReader(
        view_reader(parse_options({"path": str(store), "columns": "storeTimestamp", "pushdown": "true"}))
    )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert list(reader.pushFilters([one(("storeTimestamp",), epoch + timedelta(milliseconds=4))])) == []
    (part,) = reader.partitions()
    found = [value for batch in reader.read(part) for value in batch.column(0).cast(pa.int64()).to_pylist()]
    assert sorted(found) == sorted(1000 * time for time in times)


def test_only_the_rows_of_a_pushed_filter_leave_the_worker(records: list[Record], store: Path) -> None:
    reader = LogReader(view_reader(parse_options({"path": str(store), "pushdown": "true"})))
    contains = StringContains(("topic",), "Bench")
    taken = [EqualTo(("topic",), "BenchTopic"), In(("queueId",), (0, None, 1)), GreaterThan(("queueOffset",), 5)]
    rechecked = [LessThanOrEqual(("physicalOffset",), records[60].physical_offset), contains, EqualTo(("flag",), 0)]
    assert list(reader.pushFilters([*taken, *rechecked])) == rechecked
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["physicalOffset"] for row in rows] == offsets([r for r in records[24:61] if r.queue_id < 2])


def test_a_reader_passes_for_one_without_push_down(store: Path) -> None:
    """Spark would refuse a class that has it as long as the conf is off, which it is by default."""
    reader = LogReader(view_reader(parse_options({"path": str(store), "pushdown": "true"})))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


def test_a_log_without_messages_has_no_rows(spark: SparkSession, store: Path) -> None:
    write_state(store, 0)
    assert read(spark, store).collect() == []


def test_a_wrong_option_fails_with_our_words(spark: SparkSession, store: Path) -> None:
    with pytest.raises(PySparkException, match="there is no option topc"):
        read(spark, store, topc="A")


def test_loss_after_planning_fails_the_query_unless_it_is_accepted(
    spark: SparkSession, store: Path, records: list[Record]
) -> None:
    """The last file is cut to half its messages, as nobody but a broken disk does."""
    last = store / "commitlog" / file_name(2 * SEGMENT_SIZE)
    kept = records[75].physical_offset
    os.truncate(last, kept - 2 * SEGMENT_SIZE)
    with pytest.raises(PySparkException, match="failOnDataLoss=false"):
        read(spark, store).collect()
    assert offsets_of(read(spark, store, failOnDataLoss="false")) == offsets(records[:75])


def test_corruption_fails_the_query_unless_it_is_skipped(
    spark: SparkSession, store: Path, records: list[Record]
) -> None:
    with (store / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(records[7].physical_offset + 4)
        file.write(b"\0")
    with pytest.raises(PySparkException, match=f"the bytes at {records[7].physical_offset} are not a record"):
        read(spark, store).collect()
    assert offsets_of(read(spark, store, onCorrupt="skip")) == offsets(records[:7] + records[8:])


def test_the_other_views(spark: SparkSession, store: Path, records: list[Record], tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    make_store(replica, [*plain_records(50), make_record(50, b"other" * 60), *plain_records(80)[51:]])
    with (store / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(records[7].physical_offset + 100)
        file.write(b"\xff")
    splits = read(spark, store, view="splits").orderBy("startOffset").collect()
    assert [(row.startOffset, row.endOffset) for row in splits][-1] == (2 * SEGMENT_SIZE, end_of(records))
    stats = read(spark, store, view="stats", topic="BenchTopic").groupBy("queueId")
    totals = stats.agg(sql.sum("messages"), sql.sum("bytes"), sql.max("maxQueueOffset")).orderBy("queueId").collect()
    sizes = [sum(record.total_size for record in records if record.queue_id == queue) for queue in range(4)]
    assert [tuple(row) for row in totals] == [(queue, 20, sizes[queue], 19) for queue in range(4)]
    verified = read(spark, store, view="verify").orderBy("startOffset", "endOffset").collect()
    assert sum(row.messages for row in verified) == 79
    (problem,) = (row for row in verified if row.problem)
    assert (problem.startOffset, problem.endOffset) == (records[7].physical_offset, records[8].physical_offset)
    compared = read(spark, store, view="compare", replica=str(replica)).where("differsAt IS NOT NULL").collect()
    assert records[7].physical_offset + 100 in {row.differsAt for row in compared}
    assert any(records[50].physical_offset < row.differsAt < records[51].physical_offset for row in compared)


def test_queues_are_written_as_java_wrote_them(spark: SparkSession, tmp_path: Path) -> None:
    store = fixtures.unpacked("slave")
    for _ in range(2):  # a task that runs twice writes the same
        rows = read(spark, store, view="queues", output=str(tmp_path), splitBytes="1m").collect()
    ends = {(row.topic, row.queueId): row.endQueueOffset for row in sorted(rows, key=lambda row: row.startOffset)}
    assert all(row.isRegular for row in rows)
    written = [path.relative_to(tmp_path) for path in (tmp_path / "consumequeue").rglob("?" * 20)]
    assert {(path.parts[1], int(path.parts[2])) for path in written} == set(ends)
    for path in written:
        assert (tmp_path / path).read_bytes() == (store / path).read_bytes(), path


def stream(spark: SparkSession, store: Path, lake: Path, **options: Any) -> list[int]:
    """Read what there is into a lake of Parquet files; the rows of each batch."""
    chosen = {"columns": "physicalOffset,keys", **options}
    frame = spark.readStream.format("rmqha").options(**chosen).load(str(store))
    sink = frame.writeStream.format("parquet").option("checkpointLocation", str(lake / "checkpoint"))
    batches = run_to_the_end(lambda: sink.trigger(availableNow=True).start(str(lake / "rows")))
    return [progress["numInputRows"] for progress in batches if progress["numInputRows"]]


def in_lake(spark: SparkSession, lake: Path) -> list[int]:
    return offsets_of(spark.read.parquet(str(lake / "rows")))


def test_a_stream_reads_each_message_once_also_over_restarts(
    spark: SparkSession, store: Path, records: list[Record], tmp_path: Path
) -> None:
    """A restart may choose other columns, splits and limits."""
    write_state(store, records[30].physical_offset)
    assert sum(batches := stream(spark, store, tmp_path, maxBytesPerTrigger="5000")) == 30
    assert len(batches) > 1
    assert stream(spark, store, tmp_path) == []
    write_state(store, end_of(records))
    other = {"columns": "physicalOffset,keys,queueId", "splitBytes": "900", "maxRecordsPerTrigger": 20}
    assert max(stream(spark, store, tmp_path, **other)) == 20
    assert in_lake(spark, tmp_path) == offsets(records)


def test_a_stream_fails_if_its_log_took_confirmed_messages_back(
    spark: SparkSession, store: Path, records: list[Record], tmp_path: Path
) -> None:
    stream(spark, store, tmp_path)
    longer = make_store(store, [*records[:60], *plain_records(90)[60:]])
    write_state(store, end_of(longer), epoch=2, epoch_start=records[60].physical_offset)
    with pytest.raises(PySparkException, match="has taken back confirmed messages"):
        stream(spark, store, tmp_path)
    assert stream(spark, store, tmp_path, failOnDataLoss="false") == [10]


def stream_reader(store: Path, **options: str) -> LogStreamReader:
    return LogStreamReader(view_reader(parse_options({"path": str(store), **options})))


def test_a_stream_follows_a_store_that_no_node_of_ours_runs(store: Path) -> None:
    """A Java broker's, say: its log ends with its last sound record each time that it is looked at."""
    some = plain_records(80)
    make_store(store, some[:60])
    reader = stream_reader(store)
    ends = []
    start = reader.initialOffset()
    for count in (60, 61, 80):
        records = make_store(store, some[:count])
        ends.append(reader.latestOffset(start, ReadAllAvailable()))
    assert ends[0] == {"offset": records[60].physical_offset, "storeId": "", "epoch": 0}
    assert [end["offset"] for end in ends[1:]] == [records[61].physical_offset, end_of(records)]
    seen = [part.split for part in reader.partitions(ends[0], ends[2]) if isinstance(part, SplitPartition)]
    assert (seen[0].start, seen[-1].end) == (records[60].physical_offset, end_of(records))


def test_a_limit_is_kept_unless_spark_wants_all(store: Path, records: list[Record]) -> None:
    reader = stream_reader(store, maxFilesPerTrigger="1")
    start = reader.initialOffset()
    assert start == {"offset": 0, "storeId": "one store", "epoch": 1}
    limited = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert limited["offset"] == SEGMENT_SIZE
    assert reader.latestOffset(start, ReadAllAvailable())["offset"] == end_of(records)
    assert isinstance(stream_reader(store).getDefaultReadLimit(), ReadAllAvailable)


def test_what_is_there_when_a_query_starts_is_what_available_now_reads(store: Path, records: list[Record]) -> None:
    write_state(store, records[30].physical_offset)
    reader = stream_reader(store, maxBytesPerTrigger="1g")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    write_state(store, end_of(records))
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["offset"] == records[30].physical_offset
    assert reader.reportLatestOffset()["offset"] == end_of(records)


def test_a_batch_waits_for_enough_bytes_but_not_for_ever(store: Path, records: list[Record]) -> None:
    patient = stream_reader(store, minBytesPerTrigger="1g")
    start = patient.initialOffset()
    assert patient.latestOffset(start, patient.getDefaultReadLimit()) == start
    hasty = stream_reader(store, minBytesPerTrigger="1g", maxTriggerDelay="0s")
    assert hasty.latestOffset(start, hasty.getDefaultReadLimit())["offset"] == end_of(records)
    patient.prepareForTriggerAvailableNow()
    assert patient.latestOffset(start, patient.getDefaultReadLimit())["offset"] == end_of(records)


def test_a_stream_is_not_fooled_by_a_body_that_looks_like_a_record(store: Path) -> None:
    """Its splits are found by all sizes, so that no checkpoint can ever lie inside a body."""
    from tests.pipeline.test_segments import forged_in_a_body

    some, forged_at = forged_in_a_body()
    records = make_store(store, some)
    reader = stream_reader(store, splitBytes=str(forged_at - 100), maxBytesPerTrigger=str(forged_at - 100))
    at, seen = reader.initialOffset(), list[int]()
    while at["offset"] < end_of(records):
        end = reader.latestOffset(at, ReadMaxBytes(1))
        for part in reader.partitions(at, end):
            for batch in reader.read(part):
                seen += batch.column("physicalOffset").to_pylist()
        at = end
    assert seen == offsets(records)


def test_a_stream_reads_each_message_once_while_its_node_confirms_parts_of_records(
    store: Path, records: list[Record]
) -> None:
    """Also from a checkpoint of an earlier version, which may lie inside a record."""
    end, seen = end_of(records), list[int]()
    reader = stream_reader(store)
    at = {**checkpoint(records, 3), "offset": records[3].physical_offset + 7}
    for reached in [*range(records[5].physical_offset + 1, end, 1009), end]:
        NodeState("one store", offsets=Offsets(0, end, end, reached, reached)).write(store)
        following = reader.latestOffset(at, ReadAllAvailable())
        for part in reader.partitions(at, following):
            for batch in reader.read(part):
                seen += batch.column("physicalOffset").to_pylist()
        at = following
    assert seen == offsets(records[3:])


def checkpoint(records: list[Record], number: int, **changes: Any) -> dict[str, Any]:
    return {"offset": records[number].physical_offset, "storeId": "one store", "epoch": 1, **changes}


@pytest.mark.parametrize(
    ("changes", "state", "told"),
    [
        ({"storeId": "another"}, {}, "the checkpoint belongs to store another"),
        ({}, {"epoch": 2, "epoch_start": 100}, "taken back confirmed messages"),
        ({}, {"epoch": 4, "epoch_start": 1 << 40}, "taken back confirmed messages"),
        ({"offset": 1 << 40}, {}, f"the checkpoint is at {1 << 40}"),
    ],
)
def test_a_checkpoint_of_another_log_is_data_loss(
    store: Path, records: list[Record], changes: dict[str, Any], state: dict[str, Any], told: str
) -> None:
    write_state(store, end_of(records), **state)
    start = checkpoint(records, 40, **changes)
    with pytest.raises(DataLossError, match=told):
        stream_reader(store).latestOffset(start, ReadAllAvailable())
    accepted = stream_reader(store, failOnDataLoss="false").latestOffset(start, ReadAllAvailable())
    assert accepted["offset"] == max(start["offset"], end_of(records))


def test_a_stream_continues_at_a_record_after_the_log_has_grown_again(store: Path, records: list[Record]) -> None:
    """It was cut back and is another one now: where the checkpoint was, a body may be."""
    start = {**checkpoint(records, 40), "offset": records[40].physical_offset + 7}  # as another log had it
    reader = stream_reader(store, failOnDataLoss="false")
    write_state(store, records[30].physical_offset, epoch=2, epoch_start=records[20].physical_offset)
    waiting = reader.latestOffset(start, ReadAllAvailable())
    assert waiting == start, "there is nothing to read yet"
    write_state(store, end_of(records), epoch=2, epoch_start=records[20].physical_offset)
    end = reader.latestOffset(waiting, ReadAllAvailable())
    seen = [part.split for part in reader.partitions(waiting, end) if isinstance(part, SplitPartition)]
    assert (seen[0].start, seen[-1].end) == (records[41].physical_offset, end_of(records))
    with pytest.raises(DataLossError, match="taken back confirmed messages"):
        stream_reader(store).partitions(waiting, end)


def test_a_batch_that_was_to_end_in_what_was_taken_back_ends_where_a_record_does(
    store: Path, records: list[Record]
) -> None:
    """Its end is in the journal of the query, and of the log as it was before."""
    start = checkpoint(records, 10)
    end = checkpoint(records, 40, offset=records[40].physical_offset + 7)
    write_state(store, end_of(records), epoch=2, epoch_start=records[20].physical_offset)
    with pytest.raises(DataLossError, match=f"the checkpoint's offset {end['offset']} may be among them"):
        stream_reader(store).partitions(start, end)
    reader = stream_reader(store, failOnDataLoss="false")
    seen = [part.split for part in reader.partitions(start, end) if isinstance(part, SplitPartition)]
    assert (seen[0].start, seen[-1].end) == (records[10].physical_offset, records[41].physical_offset)
    following = reader.partitions(end, checkpoint(records, 79, epoch=2))[0]
    assert isinstance(following, SplitPartition)
    assert following.split.start == records[41].physical_offset


def test_a_store_whose_node_has_left_no_state_is_data_loss_unless_that_is_accepted(
    store: Path, records: list[Record]
) -> None:
    """Nobody says any more what is confirmed: what is read now may yet be taken back."""
    start = stream_reader(store).latestOffset(checkpoint(records, 3), ReadAllAvailable())
    (store / "rmqha" / "state.json").unlink()
    with pytest.raises(DataLossError, match="no state of a node any more"):
        stream_reader(store).latestOffset(start, ReadAllAvailable())
    accepted = stream_reader(store, failOnDataLoss="false").latestOffset(start, ReadAllAvailable())
    assert accepted == {"offset": end_of(records), "storeId": "", "epoch": 0}


def test_a_stream_cannot_start_behind_the_log(store: Path, records: list[Record]) -> None:
    with pytest.raises(OptionError, match=f"startingOffset={1 << 70}: .* ends at {end_of(records)}"):
        stream_reader(store, startingOffset=str(1 << 70)).initialOffset()
    at_end = stream_reader(store, startingOffset=str(end_of(records))).initialOffset()
    assert at_end["offset"] == end_of(records)


def test_a_checkpoint_that_a_new_epoch_does_not_touch_goes_on(store: Path, records: list[Record]) -> None:
    write_state(store, end_of(records), epoch=2, epoch_start=records[40].physical_offset)
    reached = stream_reader(store).latestOffset(checkpoint(records, 40), ReadAllAvailable())
    assert reached == {"offset": end_of(records), "storeId": "one store", "epoch": 2}


def test_a_checkpoint_before_the_first_file_is_data_loss_unless_that_is_accepted(
    store: Path, records: list[Record]
) -> None:
    os.unlink(store / "commitlog" / file_name(0))
    start, end = checkpoint(records, 3), checkpoint(records, 79)
    with pytest.raises(DataLossError, match=f"starts at {SEGMENT_SIZE}; the checkpoint is at {start['offset']}"):
        stream_reader(store).partitions(start, end)
    accepted = stream_reader(store, failOnDataLoss="false").partitions(start, end)
    assert isinstance(accepted[0], SplitPartition)
    assert accepted[0].split.start == SEGMENT_SIZE


def test_a_batch_beyond_what_is_confirmed_now_is_data_loss(store: Path, records: list[Record]) -> None:
    write_state(store, records[50].physical_offset)
    start, end = checkpoint(records, 40), checkpoint(records, 70)
    with pytest.raises(DataLossError, match="the batch ends at"):
        stream_reader(store).partitions(start, end)
    (accepted,) = stream_reader(store, failOnDataLoss="false").partitions(start, end)
    assert isinstance(accepted, SplitPartition)
    assert accepted.split == replace(accepted.split, start=start["offset"], end=records[50].physical_offset)
