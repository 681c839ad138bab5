"""Archives that are tables of Delta or Iceberg, killed at their steps: each message once in the table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqha.pipeline.jobs.manifest import MANIFEST_FOLDER, STAGING_FOLDER, Archive, archived_paths
from rmqha.pipeline.jobs.tablelog import TableFormat
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, make_store, visible_files
from tests.pipeline.test_jobs_archive import offsets_of
from tests.pipeline.test_tables import check_once

ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
ONE = """
import sys
from pathlib import Path
from rmqha.pipeline.jobs.tablelog import TableFormat
from tests.pipeline.killed_archiver import RUNS
RUNS[sys.argv[1]][1](Path(sys.argv[2]), Path(sys.argv[3]), TableFormat(sys.argv[4]))
"""
SOME = 9
"""`make stories` kills at one of so many steps; `make proofs` kills at each."""
KILLS = 20
EVERY = pytest.mark.parametrize(
    "every", [pytest.param(SOME, id="some"), pytest.param(1, marks=pytest.mark.proof, id="each")]
)


def killed(store: Path, folder: Path, who: str, every: int, table: TableFormat) -> list[dict[str, Any]]:
    """What ``killed_archiver`` says of each kill."""
    lines = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed_archiver", who, store, folder, str(every), table.value],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        check=True,
        timeout=3000,
    ).stdout.splitlines()
    runs = [json.loads(line) for line in lines]
    assert sum(not run["whole"] for run in runs) * every > KILLS
    return runs


@pytest.mark.process
@pytest.mark.story
@pytest.mark.parametrize("who", ["job", "stream"])
@EVERY
def test_no_kill_loses_or_doubles_a_message_of_the_table(
    tmp_path: Path, kind: TableFormat, who: str, every: int
) -> None:
    store = make_store(tmp_path / "short", log_bytes=2 * SEGMENT_SIZE)
    folder = tmp_path / "killed"
    runs = killed(store, folder, who, every, kind)
    whole = archived_offsets(folder / str(runs[-1]["step"]))
    for run in runs:
        check_once(folder / str(run["step"]), kind, whole)
        check_at_kill(run, whole)
        assert run["strays"] == [], run["step"]


@pytest.mark.process
def test_a_job_and_a_stream_at_once_add_each_message_once(tmp_path: Path, any_kind: TableFormat) -> None:
    """Two processes with splits of their own; both commit several times."""
    store, lake = make_store(tmp_path / "store"), tmp_path / "lake"
    processes = [
        subprocess.Popen([sys.executable, "-c", ONE, who, store, lake, any_kind.value], env=ENVIRON)
        for who in ("job", "stream")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert archived_offsets(lake) == offsets_of(store)
    assert visible_files(lake) == sorted(archived_paths(lake))
    if any_kind is not TableFormat.PARQUET:
        check_once(lake, any_kind)


def check_at_kill(run: dict[str, Any], whole: list[int]) -> None:
    """The table had no message twice, and none that is not archived."""
    assert len(set(run["rows"])) == len(run["rows"]), run["step"]
    assert set(run["rows"]) <= set(whole), run["step"]


@pytest.mark.process
@pytest.mark.story
@pytest.mark.parametrize("who", ["compact", "expire"])
@EVERY
def test_no_kill_of_a_job_that_replaces_files_does(tmp_path: Path, any_kind: TableFormat, who: str, every: int) -> None:
    """The manifests name each message once at any time; the folder and the table do so after the next run."""
    store = make_store(tmp_path / "short", log_bytes=2 * SEGMENT_SIZE)
    folder = tmp_path / "killed"
    runs = killed(store, folder, who, every, any_kind)
    last = folder / str(runs[-1]["step"])
    before, after = runs[0]["named"], archived_offsets(last)
    assert before == after if who == "compact" else before[-len(after) :] == after != before
    for run in runs:
        lake = folder / str(run["step"])
        if any_kind is TableFormat.PARQUET:
            assert archived_offsets(lake) == after
            assert visible_files(lake) == sorted(archived_paths(lake))
            assert len(set(run["listed"])) == len(run["listed"]), run["step"]
        else:
            check_once(lake, any_kind, after)
            check_at_kill(run, before)
            assert set(run["rows"]) >= set(after), run["step"]
        assert run["named"] == before[-len(run["named"]) :], run["step"]
        assert set(run["named"]) >= set(after), run["step"]
        assert list((lake / STAGING_FOLDER).iterdir()) == list((lake / MANIFEST_FOLDER / "replacing").iterdir()) == []
        assert [one.name for one in Archive(lake).manifests()] == [one.name for one in Archive(last).manifests()]
