"""The scripts in ``examples`` do what they say."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures import expected, facts, unpacked
from tests.pipeline.lake import archived_offsets
from tests.pipeline.streams import run_to_the_end

pytestmark = pytest.mark.story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
MESSAGES = [line for line in expected() if "blank" not in line]


def run(name: str, *arguments: object, **options: object) -> Any:
    """What the example's function gives."""
    return runpy.run_path(str(EXAMPLES / name))["run"](*arguments, **options)


def test_sql_over_the_log_counts_as_java_does(spark: SparkSession) -> None:
    rows = run("sql_over_the_log.py", spark, str(unpacked("slave"))).collect()
    counts = Counter((line["topic"], line["properties"].get("TAGS")) for line in MESSAGES)
    assert rows
    assert {(row.topic, row.tags): row.messages for row in rows}.items() <= counts.items()
    assert rows[0].messages == max(counts.values())


def test_a_stream_into_parquet_archives_every_message_once(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):
        run_to_the_end(lambda: run("stream_into_parquet.py", spark, str(unpacked("slave")), str(tmp_path / "lake")))
    assert len(archived_offsets(tmp_path / "lake")) == facts()["records"]


def test_a_message_is_found_by_key_and_time(spark: SparkSession) -> None:
    sought = next(
        line for line in MESSAGES[1000:] if line["properties"].get("KEYS") and "UNIQ_KEY" in line["properties"]
    )
    stored = datetime.fromtimestamp(sought["storeTimestamp"] / 1000, UTC)
    before, after = (stored - timedelta(milliseconds=1)).isoformat(), (stored + timedelta(milliseconds=1)).isoformat()
    for key in (sought["properties"]["KEYS"].split(" ")[0], sought["properties"]["UNIQ_KEY"]):
        arguments = ("find_a_message.py", spark, str(unpacked("slave")), sought["topic"], key)
        found = [row.physicalOffset for row in run(*arguments, before, after).collect()]
        assert sought["physicalOffset"] in found
        assert sought["physicalOffset"] not in [row.physicalOffset for row in run(*arguments, after).collect()]


def test_the_notebook_runs_and_draws(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["notebook.py", str(unpacked("slave")), str(tmp_path)])
    found = runpy.run_path(str(EXAMPLES / "notebook.py"))
    assert found["spark"].sparkContext is spark.sparkContext
    assert found["topics"]["sum(messages)"].sum() == found["times"]["messages"].sum() == facts()["records"]
    for name in ("topics", "rate", "latency"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "99%" in capsys.readouterr().out
