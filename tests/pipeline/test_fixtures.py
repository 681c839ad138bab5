"""Every recorded store of Java through every view, and through every job by both engines.

Each store is read twice: as Java left it, and as one whose node has confirmed only a part of it. What is right is found
by the record codec, one record after the other, and never by the pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow.dataset
import pytest
from pyspark.sql import functions as sql

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compare import compare
from rmqha.pipeline.jobs.engine import Engine, LocalEngine, SparkEngine
from rmqha.pipeline.jobs.rebuild import rebuild
from rmqha.pipeline.jobs.stats import stats
from rmqha.pipeline.jobs.verify import verify
from rmqha.pipeline.schema import PROPERTIES_MAP
from rmqha.store.derived.consumequeue import CQ_STORE_UNIT_SIZE, Unit
from rmqha.store.derived.index import KeyIndex
from rmqha.store.offline.findings import Comparison, Verification
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.layout import UNIT
from rmqha.wire.record import Blank, Record
from tests import fixtures
from tests.pipeline.lake import options_of, visible_files
from tests.pipeline.stores import write_state
from tests.pipeline.test_decode import as_row, timestamp
from tests.store.queues import FOREVER, MANY, Expected, expected_of_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.story

SPLIT_BYTES = {"master-crash": "150k", "slave": "1m", "master-clean": "200k"}
"""A task for each file of the log, or for a part of one."""
OTHERS = {"master-crash": "slave", "slave": "master-clean", "master-clean": "master-crash"}
"""With which store each is compared: all hold one log, to which master-clean has added."""
LATENCY_STEP = 1.1
"""Quantiles of latencies are told to a tenth."""


@dataclass(frozen=True)
class Log:
    """A store, where its log ends for readers, and the messages before that."""

    name: str
    store: Path
    end: int
    records: list[Record]

    def within(self, start: int, end: int) -> list[Record]:
        """The messages that begin between two offsets."""
        return [record for record in self.records if start <= record.physical_offset < end]

    @property
    def expected(self) -> Expected:
        """Queues and index."""
        return expected_of_records(self.records)

    @property
    def other(self) -> Path:
        """The store that this one is compared with."""
        return fixtures.unpacked(OTHERS[self.name])


def records_before(store: Path, end: int) -> list[Record]:
    reader = StoreReader(store)
    try:
        return [record for _, record in reader.records(0, end) if not isinstance(record, Blank)]
    finally:
        reader.close()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    """Every store whole, and every store cut: in the middle of a file, where a file ends, behind the first message."""
    whole = [
        Log(name, store, end, records_before(store, end))
        for name, store, end in ((name, fixtures.unpacked(name), fixtures.max_offset(name)) for name in fixtures.STORES)
    ]
    cuts = (whole[0].records[1000].physical_offset, 3 * fixtures.segment_size(), whole[2].records[1].physical_offset)
    parts = []
    for log, cut in zip(whole, cuts, strict=True):
        store = fixtures.copy_of(log.name, tmp_path_factory.mktemp("confirmed") / log.name)
        write_state(store, cut)
        parts.append(Log(log.name, store, cut, log.within(0, cut)))
    assert all(len(log.records) == fixtures.facts()["variants"][log.name]["records"] for log in whole)
    assert [len(log.records) for log in parts][::2] == [1000, 1]
    return whole + parts


@pytest.fixture
def engines(spark: SparkSession) -> tuple[Engine, Engine]:
    return LocalEngine(), SparkEngine(spark)


def rows_of_view(
    spark: SparkSession, logs: list[Log], view: str, own: Sequence[dict[str, str]] = (), **options: str
) -> list[list[dict[str, Any]]]:
    """The rows of each log, in its order, out of one query; ``own`` are options of each log."""
    frames = []
    for number, log in enumerate(logs):
        reading = spark.read.format("rmqha").options(view=view, splitBytes=SPLIT_BYTES[log.name], **options)
        frame = reading.options(**(own[number] if own else {})).load(str(log.store))
        frames.append(frame.withColumn("log", sql.lit(number)))
    found: list[list[dict[str, Any]]] = [[] for _ in logs]
    for row in reduce(lambda one, other: one.unionByName(other), frames).toArrow().to_pylist():
        found[row.pop("log")].append(row)
    order = {"records": "physicalOffset", "stats": "minQueueOffset"}.get(view, "startOffset")
    return [sorted(rows, key=lambda row: int(row[order])) for rows in found]


def as_map_row(record: Record) -> dict[str, Any]:
    """The row of a message whose properties are a map."""
    row = as_row(record)
    row["properties"] = row.pop(PROPERTIES_MAP)
    return row


def check_splits(log: Log, rows: list[dict[str, Any]]) -> None:
    """From 0 to the end without a gap, each within one file, and none begins inside a message."""
    size = fixtures.segment_size()
    starts = {record.physical_offset for record in log.records}
    assert [row["startOffset"] for row in rows] == [0, *(row["endOffset"] for row in rows[:-1])]
    assert rows[-1]["endOffset"] == log.end
    for start, end in ((row["startOffset"], row["endOffset"]) for row in rows):
        assert start in starts or start % size == 0, "a split begins inside a message"
        assert end <= start - start % size + size


def test_records_are_those_of_the_record_codec_in_all_columns(spark: SparkSession, logs: list[Log]) -> None:
    found = rows_of_view(spark, logs, "records", properties="map")
    for log, rows in zip(logs, found, strict=True):
        found_rows = [{**row, "properties": dict(row["properties"])} for row in rows]
        assert found_rows == [as_map_row(record) for record in log.records], log.name


def test_splits_cover_the_log_and_begin_with_records(spark: SparkSession, logs: list[Log]) -> None:
    size = fixtures.segment_size()
    for log, rows in zip(logs, rows_of_view(spark, logs, "splits"), strict=True):
        check_splits(log, rows)
        assert all(row["base"] == row["startOffset"] // size * size == row["segmentEnd"] - size for row in rows)
        assert all(row["path"] == str(log.store / "commitlog" / f"{row['base']:020d}") for row in rows)


def queue_facts(records: Iterable[Record]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Of each queue: messages, bytes, least and greatest queue offset, first and last time of storing."""
    by_queue: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        by_queue.setdefault((record.topic, record.queue_id), []).append(record)
    return {
        key: (
            len(some),
            sum(record.total_size for record in some),
            min(record.queue_offset for record in some),
            max(record.queue_offset for record in some),
            timestamp(min(record.store_timestamp for record in some)),
            timestamp(max(record.store_timestamp for record in some)),
        )
        for key, some in by_queue.items()
    }


def test_stats_sum_up_what_the_records_say(spark: SparkSession, logs: list[Log]) -> None:
    for log, rows in zip(logs, rows_of_view(spark, logs, "stats"), strict=True):
        parts: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in rows:
            parts.setdefault((row["topic"], row["queueId"]), []).append(row)
        found = {
            key: (
                sum(row["messages"] for row in some),
                sum(row["bytes"] for row in some),
                min(row["minQueueOffset"] for row in some),
                max(row["maxQueueOffset"] for row in some),
                min(row["firstStoreTimestamp"] for row in some),
                max(row["lastStoreTimestamp"] for row in some),
            )
            for key, some in parts.items()
        }
        assert found == queue_facts(log.records), log.name


def test_verify_proves_every_record_of_every_split(spark: SparkSession, logs: list[Log]) -> None:
    for log, rows in zip(logs, rows_of_view(spark, logs, "verify"), strict=True):
        assert [row["problem"] for row in rows] == [None] * len(rows)
        check_splits(log, rows)
        counts = [len(log.within(row["startOffset"], row["endOffset"])) for row in rows]
        assert [row["messages"] for row in rows] == counts, log.name


def differences(log: Log, start: int, end: int) -> list[int]:
    """Where the log's bytes are others than those of the store it is compared with."""
    size = fixtures.segment_size()
    found = []
    for base in range(start - start % size, end, size):
        ours, theirs = ((store / "commitlog" / f"{base:020d}").read_bytes() for store in (log.store, log.other))
        if ours != theirs:
            found += [base + i for i in range(size) if ours[i] != theirs[i] and start <= base + i < end]
    return found


def test_compare_finds_the_bytes_that_a_replica_lacks(spark: SparkSession, logs: list[Log]) -> None:
    own = [{"replica": str(log.other)} for log in logs]
    for log, rows in zip(logs, rows_of_view(spark, logs, "compare", own), strict=True):
        assert rows[-1]["endOffset"] == log.end
        wanted = [differences(log, row["startOffset"], row["endOffset"]) for row in rows]
        assert [(row["differsAt"], row["differentBytes"], row["problem"]) for row in rows] == [
            (found[0] if found else None, len(found), None) for found in wanted
        ]
        assert any(wanted) == (log.end > fixtures.max_offset(OTHERS[log.name]))


def units_below(folder: Path) -> dict[tuple[str, int], dict[int, Unit]]:
    """All units of queue files, by queue and queue offset."""
    found: dict[tuple[str, int], dict[int, Unit]] = {}
    for path in sorted((folder / "consumequeue").glob("*/*/*")):
        first = int(path.name) // CQ_STORE_UNIT_SIZE
        units = {first + i: Unit(*unit) for i, unit in enumerate(UNIT.iter_unpack(path.read_bytes())) if unit[1]}
        found.setdefault((path.parts[-3], int(path.parts[-2])), {}).update(units)
    return found


def test_queues_have_a_unit_for_each_message_of_theirs(spark: SparkSession, logs: list[Log], tmp_path: Path) -> None:
    outputs = [tmp_path / str(number) for number in range(len(logs))]
    own = [{"output": str(output)} for output in outputs]
    for log, output, rows in zip(logs, outputs, rows_of_view(spark, logs, "queues", own), strict=True):
        wanted = log.expected.units
        assert units_below(output) == wanted, log.name
        told: dict[tuple[str, int], set[int]] = {}
        for row in rows:
            offsets = range(row["firstQueueOffset"], row["endQueueOffset"])
            told.setdefault((row["topic"], row["queueId"]), set()).update(offsets)
        assert told == {key: set(units) for key, units in wanted.items()}, log.name


def test_the_job_verify_proves_every_record(engines: tuple[Engine, Engine], logs: list[Log]) -> None:
    """All of the log, whatever is confirmed: as ``rmqha verify``."""
    whole = {log.name: log for log in logs[: len(fixtures.STORES)]}
    for log in logs:
        all_of_it = whole[log.name]
        wanted = Verification(0, all_of_it.end, len(all_of_it.records), None, False)
        for engine in engines:
            assert verify(options_of(log.store, splitBytes=SPLIT_BYTES[log.name]), engine) == wanted, log.name


def test_the_job_compare_finds_where_two_logs_part(engines: tuple[Engine, Engine], logs: list[Log]) -> None:
    for log in logs:
        options = options_of(log.store, splitBytes=SPLIT_BYTES[log.name], replica=log.other)
        other_end = fixtures.max_offset(OTHERS[log.name])
        common_end = min(log.end, other_end)
        assert not differences(log, 0, common_end)
        for engine in engines:
            assert compare(options, engine) == Comparison(0, log.end, other_end, None), log.name


def test_the_job_stats_sums_up_what_the_records_say(engines: tuple[Engine, Engine], logs: list[Log]) -> None:
    for log in logs:
        by_topic: dict[str, list[Record]] = {}
        for record in log.records:
            by_topic.setdefault(record.topic, []).append(record)
        for engine in engines:
            found = stats(options_of(log.store, splitBytes=SPLIT_BYTES[log.name]), engine)
            assert list(found) == sorted(by_topic)
            for topic, some in by_topic.items():
                one = found[topic]
                latencies = sorted(max(0, record.store_timestamp - record.born_timestamp) for record in some)
                stored = [record.store_timestamp for record in some]
                assert (one.messages, one.bytes) == (len(some), sum(record.total_size for record in some))
                assert (one.first_store_ms, one.last_store_ms) == (min(stored), max(stored))
                assert (one.latency_sum_ms, one.latency_max_ms) == (sum(latencies), latencies[-1])
                assert one.queues == Counter(record.queue_id for record in some)
                assert one.minutes == Counter(time // 60_000 for time in stored)
                for quantile in (0.5, 0.9, 0.99):
                    exact = latencies[ceil(quantile * len(some)) - 1]
                    assert exact / LATENCY_STEP - 1 <= one.latency_ms(quantile) <= exact


def test_the_job_archive_keeps_every_message_whole(
    engines: tuple[Engine, Engine], logs: list[Log], tmp_path: Path
) -> None:
    for number, log in enumerate(logs):
        content = fixtures.log_bytes(log.name)
        wanted = [{**as_archived(record), **proof_of(record, content)} for record in log.records]
        for engine in engines:
            lake = tmp_path / f"{number} {type(engine).__name__}"
            done = archive(options_of(log.store, splitBytes=SPLIT_BYTES[log.name], output=lake), engine)
            assert (done.end, done.messages, done.files) == (log.end, len(wanted), len(visible_files(lake)))
            dataset = pyarrow.dataset.dataset(lake, format="parquet", partitioning="hive")
            rows = dataset.to_table().to_pylist()
            assert sorted(rows, key=lambda row: int(row["physicalOffset"])) == wanted, log.name


def as_archived(record: Record) -> dict[str, Any]:
    """The row of a message, with its folder's date and hour: no file here holds messages of two hours."""
    row = as_row(record)
    del row[PROPERTIES_MAP]
    stored = row["storeTimestamp"]
    return {**row, "date": f"{stored:%Y-%m-%d}", "hour": stored.hour}


def proof_of(record: Record, content: bytes) -> dict[str, Any]:
    """The columns from which a store can be made again. No column of these records loses anything."""
    start = record.physical_offset
    crc = crc32(content[start : start + record.total_size])
    return {"recordCRC": crc - (crc >> 31 << 32), "rawRecord": None}


def keys_below(folder: Path, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[int]]:
    """What an index says of these keys of topics."""
    index = KeyIndex(folder / "index", fixtures.facts()["maxHashSlotNum"], fixtures.facts()["maxIndexNum"])
    try:
        return {(topic, key): index.query(topic, key, 0, FOREVER, MANY) for topic, key in keys}
    finally:
        index.close()


def test_the_job_rebuild_makes_queues_and_index_anew(
    engines: tuple[Engine, Engine], logs: list[Log], tmp_path: Path
) -> None:
    for number, log in enumerate(logs):
        wanted = log.expected
        for engine in engines:
            output = tmp_path / f"{number} {type(engine).__name__}"
            done = rebuild(options_of(log.store, splitBytes=SPLIT_BYTES[log.name], output=output), engine)
            assert (done.end, done.messages, done.refused, done.mended) == (log.end, len(log.records), 0, 0)
            assert units_below(output) == wanted.units, log.name
            assert keys_below(output, wanted.keys) == wanted.keys, log.name
            assert done.keys == sum(len(offsets) for offsets in wanted.keys.values())
