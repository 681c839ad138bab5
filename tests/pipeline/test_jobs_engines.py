"""The jobs by both engines: the result is the same, and so is what is said of a broken log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqha.kit.progress import NO_BAR
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compare import compare
from rmqha.pipeline.jobs.engine import Engine, LocalEngine, SparkEngine, WrongBoundary
from rmqha.pipeline.jobs.manifest import Archive
from rmqha.pipeline.jobs.restore import plan_restore, restore
from rmqha.pipeline.jobs.stats import stats, stats_of_split
from rmqha.pipeline.jobs.verify import verify
from rmqha.pipeline.plan import open_log
from rmqha.settings.settings import Settings
from rmqha.store.errors import StoreError
from rmqha.testing.records import make_record
from rmqha.wire.record import encode_record
from tests.fixtures import facts, unpacked
from tests.pipeline import stores
from tests.pipeline.lake import archived_offsets, as_old, make_store, options_of, overwrite, rows_of, visible_files
from tests.pipeline.seenbar import SeenBar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT_BYTES = "700k"


@pytest.fixture
def engines(spark: SparkSession) -> tuple[Engine, Engine]:
    return LocalEngine(), SparkEngine(spark)


@pytest.fixture
def wounded(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "store")
    overwrite(store, 20_100, b"\xff\0\xff\0")
    return store


def same(engines: tuple[Engine, Engine], run: Callable[[Engine], object]) -> object:
    """What both engines give."""
    one, other = (run(engine) for engine in engines)
    assert one == other
    return one


@pytest.mark.story
def test_verify_is_the_same_by_both_engines(engines: tuple[Engine, Engine], wounded: Path) -> None:
    options = options_of(unpacked("slave"), splitBytes=SPLIT_BYTES)
    assert verify(options, engines[1]).messages == facts()["records"]
    same(engines, lambda engine: verify(options, engine))
    same(engines, lambda engine: verify(options_of(wounded), engine))
    assert verify(options_of(wounded), engines[1]).stretch_count == 1


@pytest.mark.story
def test_compare_is_the_same_by_both_engines(engines: tuple[Engine, Engine], wounded: Path, tmp_path: Path) -> None:
    sound = make_store(tmp_path / "sound")
    options = options_of(sound, replica=wounded)
    same(engines, lambda engine: compare(options, engine))


def test_stats_are_the_same_by_both_engines(engines: tuple[Engine, Engine]) -> None:
    options = options_of(unpacked("master-clean"), splitBytes=SPLIT_BYTES)
    assert same(engines, lambda engine: stats(options, engine))


@pytest.mark.story
def test_the_archive_is_the_same_by_both_engines(engines: tuple[Engine, Engine], tmp_path: Path) -> None:
    lakes = [tmp_path / "one", tmp_path / "other"]
    for engine, lake in zip(engines, lakes, strict=True):
        archive(options_of(unpacked("slave"), splitBytes=SPLIT_BYTES, output=lake), engine)
    one, other = ([manifest.files for manifest in Archive(lake).manifests()] for lake in lakes)
    assert one == other
    assert rows_of(visible_files(lakes[0])) == rows_of(visible_files(lakes[1]))
    assert len(archived_offsets(lakes[1])) == facts()["records"]


@pytest.mark.story
def test_the_restored_store_is_the_same_by_both_engines(
    spark: SparkSession, engines: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """Of an archive whose first files are from before archives kept a CRC of each record."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    laid = stores.make_store(store, stores.plain_records(150))
    archive(stores.options(store, output=lake, endingOffset=laid[40].physical_offset), LocalEngine())
    as_old(lake)
    archive(stores.options(store, output=lake), engines[1])
    rows = spark.read.parquet(str(lake))
    assert rows.select("physicalOffset").distinct().count() == rows.count() == 150
    merged = spark.read.option("mergeSchema", "true").parquet(str(lake))
    assert merged.where("recordCRC IS NULL").count() == 40
    done = []
    for number, engine in enumerate(engines):
        output = tmp_path / str(number)
        found = restore(plan_restore(lake, Settings()), output, Settings(), engine)
        assert found.is_identical
        done.append(replace(found, output=lake))
        assert compare(stores.options(output, replica=store), LocalEngine()).relation == "identical"
    assert done[0] == done[1]
    files = [
        {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.glob("consumequeue/*/*/*"))}
        for output in (tmp_path / "0", tmp_path / "1")
    ]
    assert files[0] == files[1]
    (path,) = [file for file in visible_files(lake) if file.name.startswith(f"{0:020d}")]
    path.unlink()
    for engine in engines:
        with pytest.raises(StoreError, match="somebody has removed it"):
            restore(plan_restore(lake, Settings()), tmp_path / "none", Settings(), engine)
    assert not (tmp_path / "none").exists()


def test_a_broken_log_is_told_in_the_same_words_by_both_engines(
    engines: tuple[Engine, Engine], wounded: Path, tmp_path: Path
) -> None:
    told = []
    for number, engine in enumerate(engines):
        with pytest.raises(StoreError) as caught:
            archive(options_of(wounded, verifyBody="true", output=tmp_path / str(number), endingOffset=30_000), engine)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "not a record" in told[0]


@pytest.mark.story
def test_a_body_that_looks_like_a_record_misleads_no_job(
    engines: tuple[Engine, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is longer than those that the search for boundaries expects, and holds two records that follow each other."""
    monkeypatch.setattr("rmqha.pipeline.boundaries.MAX_RECORD_BYTES", 50)
    store = tmp_path / "store"
    plain = stores.plain_records(20)
    at = stores.make_store(tmp_path / "measured", plain)[10].physical_offset
    body_at = at + 88
    forged = encode_record(replace(make_record(99, b"forged" * 10), physical_offset=body_at + 50))
    forged += encode_record(replace(make_record(99, b""), physical_offset=body_at + 50 + len(forged)))
    hostile = make_record(10, b"x" * 50 + forged + b"y" * 500)
    laid = stores.make_store(store, [*plain[:10], hostile, *plain[11:]])
    assert laid[10].physical_offset == at
    end = stores.end_of(laid)
    options = options_of(store, splitBytes=body_at + 60)  # so that the search for a boundary begins within that body
    for engine in engines:
        with pytest.raises(WrongBoundary):
            engine.run(partial(stats_of_split, options=options), open_log(options).splits(0, end), NO_BAR)
    found = [
        same(engines, lambda engine: verify(options, engine)),
        same(engines, lambda engine: stats(options, engine)),
    ]
    assert found[0] == verify(options_of(store, boundaries="hop"), LocalEngine())
    for number, engine in enumerate(engines):
        lake = tmp_path / f"lake{number}"
        archive(replace(options, output=lake), engine)
        assert archived_offsets(lake) == [record.physical_offset for record in laid]


def test_progress_ends_with_all_splits(engines: tuple[Engine, Engine]) -> None:
    for engine in engines:
        bar = SeenBar()
        options = options_of(unpacked("slave"), splitBytes="1m")
        verify(options, engine, bar)
        seen = bar.seen
        assert seen[-1][0] == seen[-1][1] > 1
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
