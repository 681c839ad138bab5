"""The jobs by both engines: the result is the same, and so is what is said of a broken log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compare import compare
from rmqha.pipeline.jobs.engine import Engine, LocalEngine, SparkEngine, WrongBoundary, no_progress
from rmqha.pipeline.jobs.manifest import Archive
from rmqha.pipeline.jobs.stats import stats, stats_of_split
from rmqha.pipeline.jobs.verify import verify
from rmqha.pipeline.plan import open_log
from rmqha.store.errors import StoreError
from rmqha.testing.records import make_record
from rmqha.wire.record import encode_record
from tests.fixtures import facts, unpacked
from tests.pipeline import stores
from tests.pipeline.lake import archived_offsets, make_store, options_of, overwrite, rows_of, visible_files

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


def test_verify_is_the_same_by_both_engines(engines: tuple[Engine, Engine], wounded: Path) -> None:
    options = options_of(unpacked("slave"), splitBytes=SPLIT_BYTES)
    assert verify(options, engines[1]).messages == facts()["records"]
    same(engines, lambda engine: verify(options, engine))
    same(engines, lambda engine: verify(options_of(wounded), engine))
    assert verify(options_of(wounded), engines[1]).stretch_count == 1


def test_compare_is_the_same_by_both_engines(engines: tuple[Engine, Engine], wounded: Path, tmp_path: Path) -> None:
    sound = make_store(tmp_path / "sound")
    options = options_of(sound, replica=wounded)
    same(engines, lambda engine: compare(options, engine))


def test_stats_are_the_same_by_both_engines(engines: tuple[Engine, Engine]) -> None:
    options = options_of(unpacked("master-clean"), splitBytes=SPLIT_BYTES)
    assert same(engines, lambda engine: stats(options, engine))


def test_the_archive_is_the_same_by_both_engines(engines: tuple[Engine, Engine], tmp_path: Path) -> None:
    lakes = [tmp_path / "one", tmp_path / "other"]
    for engine, lake in zip(engines, lakes, strict=True):
        archive(options_of(unpacked("slave"), splitBytes=SPLIT_BYTES, output=lake), engine)
    one, other = ([manifest.files for manifest in Archive(lake).manifests()] for lake in lakes)
    assert one == other
    assert rows_of(visible_files(lakes[0])) == rows_of(visible_files(lakes[1]))
    assert len(archived_offsets(lakes[1])) == facts()["records"]


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


def test_a_body_that_looks_like_a_record_misleads_no_job(
    engines: tuple[Engine, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is longer than those that the search for boundaries expects, and holds two records that follow each other."""
    monkeypatch.setattr("rmqha.pipeline.boundaries.LONGEST_RECORD_BYTES", 50)
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
            engine.run(partial(stats_of_split, options=options), open_log(options).splits(0, end), no_progress)
    found = [
        same(engines, lambda engine: verify(options, engine)),
        same(engines, lambda engine: stats(options, engine)),
    ]
    assert found[0] == verify(options_of(store, boundaries="hop"), LocalEngine())
    for number, engine in enumerate(engines):
        lake = tmp_path / f"lake{number}"
        archive(replace(options, output=lake), engine)
        assert archived_offsets(lake) == [record.physical_offset for record in laid]


def note(seen: list[tuple[int, int]], done: int, total: int) -> None:
    seen.append((done, total))


def test_progress_ends_with_all_splits(engines: tuple[Engine, Engine]) -> None:
    for engine in engines:
        seen: list[tuple[int, int]] = []
        options = options_of(unpacked("slave"), splitBytes="1m")
        verify(options, engine, partial(note, seen))
        assert seen[-1][0] == seen[-1][1] > 1
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
