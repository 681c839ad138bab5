"""The sink ``rmqha_archive``: splits of a log become an archive, by a query or a stream, each message once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import STAGING_FOLDER, Archive, archived_paths, open_staging
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Blank
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, make_store, options_of, visible_files
from tests.pipeline.microbatches import Query
from tests.pipeline.streams import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def offsets_of(store: Path) -> list[int]:
    """Where all messages lie."""
    reader = StoreReader(store)
    offsets = [offset for offset, record in reader.records(0, None) if not isinstance(record, Blank)]
    reader.close()
    return offsets


def check_once(store: Path, lake: Path) -> None:
    assert archived_offsets(lake) == offsets_of(store)
    assert visible_files(lake) == sorted(archived_paths(lake))


def save(spark: SparkSession, store: Path, lake: Path, **options: Any) -> None:
    """Archive by a query."""
    splits = spark.read.format("rmqha").options(view="splits", splitBytes="9000", **options).load(str(store))
    splits.write.format("rmqha_archive").mode("append").save(str(lake))


def stream(spark: SparkSession, store: Path | str, lake: Path, checkpoint: Path, **options: Any) -> int:
    """Archive what there is by a stream; how many batches that took. ``store`` may be an address of brokers."""
    splits = spark.readStream.format("rmqha").options(view="splits", **options).load(str(store))
    writing = splits.writeStream.format("rmqha_archive").option("checkpointLocation", str(checkpoint))
    return len(run_to_the_end(lambda: writing.trigger(availableNow=True).start(str(lake))))


def take_names_back(lake: Path) -> None:
    """As if the process had died right behind the last manifest."""
    for file in Archive(lake).manifests()[-1].files:
        (lake / file.path).rename(lake / STAGING_FOLDER / file.staged)


def test_a_query_archives_every_message_once_however_often_it_runs(
    spark: SparkSession, store: Path, lake: Path
) -> None:
    save(spark, store, lake)
    check_once(store, lake)
    save(spark, store, lake)
    assert len(Archive(lake).manifests()) == 1
    check_once(store, lake)


@pytest.mark.story
def test_a_stream_archives_what_has_come_since(spark: SparkSession, store: Path, lake: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert stream(spark, store, lake, checkpoint, maxBytesPerTrigger="20k") > 1
    check_once(store, lake)
    first = len(Archive(lake).manifests())
    shutil.copytree(make_store(tmp_path / "grown", 90_000), store, dirs_exist_ok=True)
    stream(spark, store, lake, checkpoint)
    assert len(Archive(lake).manifests()) > first
    check_once(store, lake)


@pytest.mark.story
def test_a_stream_that_lost_its_checkpoint_adds_nothing_twice(
    spark: SparkSession, store: Path, lake: Path, tmp_path: Path
) -> None:
    stream(spark, store, lake, tmp_path / "one", maxBytesPerTrigger="20k")
    stream(spark, store, lake, tmp_path / "other", maxBytesPerTrigger="31k", splitBytes="7000")
    check_once(store, lake)


def forget_last_batch(checkpoint: Path) -> None:
    """Let Spark run the last batch again: it does where it has not noted that one's end."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.story
def test_a_batch_that_died_after_its_manifest_is_completed(
    spark: SparkSession, store: Path, lake: Path, tmp_path: Path
) -> None:
    """The batch that Spark runs again is one whose files had no names yet."""
    checkpoint = tmp_path / "checkpoint"
    stream(spark, store, lake, checkpoint, maxBytesPerTrigger="20k")
    forget_last_batch(checkpoint)
    take_names_back(lake)
    stream(spark, store, lake, checkpoint)
    check_once(store, lake)


def test_a_batch_that_died_before_its_manifest_is_run_again(
    spark: SparkSession, store: Path, lake: Path, tmp_path: Path
) -> None:
    """The same, in other splits than before: what the first try staged is removed."""
    checkpoint = tmp_path / "checkpoint"
    stream(spark, store, lake, checkpoint, maxBytesPerTrigger="20k")
    forget_last_batch(checkpoint)
    manifest = max((lake / "_manifest").glob("*.json"))
    take_names_back(lake)
    manifest.unlink()
    stream(spark, store, lake, checkpoint, splitBytes="3000")
    check_once(store, lake)
    assert list(lake.rglob(".*.parquet.*")) == []


@pytest.mark.story
def test_a_stream_goes_on_where_a_job_has_archived(
    spark: SparkSession, store: Path, lake: Path, tmp_path: Path
) -> None:
    archive(options_of(store, output=lake, endingOffset=SEGMENT_SIZE + 100), LocalEngine())
    stream(spark, store, lake, tmp_path / "checkpoint")
    check_once(store, lake)
    assert len(Archive(lake).manifests()) == 2


def test_spark_reads_the_folder_by_date_and_hour_and_nothing_that_is_not_archived(
    spark: SparkSession, store: Path, lake: Path
) -> None:
    """Another query has staged all that was not archived, and has died in the middle of another file."""
    query = Query(store, lake)
    middle = query.log.advance(0, 2 * SEGMENT_SIZE)
    save(spark, store, lake, endingOffset=middle)
    query.write(query.rows(middle, query.log.end))
    open_staging(lake, middle, query.log.end)[1].close()
    frame = spark.read.parquet(str(lake))
    rows = frame.select("physicalOffset", "date", "hour", "storeTimestamp").collect()
    assert sorted(row.physicalOffset for row in rows) == archived_offsets(lake)
    assert rows
    utc = frame.selectExpr("to_date(storeTimestamp) AS date", "hour(storeTimestamp) AS hour").distinct().collect()
    assert {(row.date, row.hour) for row in rows} == {(row.date, row.hour) for row in utc}


@pytest.mark.story
def test_another_store_goes_on_if_its_log_is_the_same(spark: SparkSession, store: Path, lake: Path) -> None:
    for name, end in (("one", 16384), ("other", 32768)):
        NodeState(name, offsets=Offsets(written=end, confirmed=end)).write(store)
        save(spark, store, lake)
    assert [manifest.store_id for manifest in Archive(lake).manifests()] == ["one", "other"]
    offsets = [offset for offset in offsets_of(store) if offset < 32768]
    assert archived_offsets(lake) == offsets


@pytest.mark.story
def test_another_log_is_refused(spark: SparkSession, store: Path, lake: Path, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other", seed=2)
    NodeState("one", offsets=Offsets(written=16384, confirmed=16384)).write(store)
    save(spark, store, lake)
    NodeState("other", offsets=Offsets(written=32768, confirmed=32768)).write(other)
    with pytest.raises(Exception, match=r"archive of store one .*; the log of store other differs from it at 0"):
        save(spark, other, lake)
    assert {manifest.store_id for manifest in Archive(lake).manifests()} == {"one"}


@pytest.mark.parametrize(
    ("view", "mode", "told"), [("stats", "append", "view=splits"), ("splits", "overwrite", "append")]
)
def test_what_is_no_archiving_is_refused(
    spark: SparkSession, store: Path, lake: Path, view: str, mode: str, told: str
) -> None:
    rows = spark.read.format("rmqha").option("view", view).load(str(store))
    with pytest.raises(Exception, match=told):
        rows.write.format("rmqha_archive").mode(mode).save(str(lake))
    assert not lake.exists()
