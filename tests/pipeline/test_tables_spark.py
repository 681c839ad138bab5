"""Spark's own readers of Delta and Iceberg read the tables of an archive.

They exist for Spark 4.1, and not for the release that this project uses: so a small program in Java does it, with the
jars that ``java/pom.xml`` names. Maven keeps them.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.compact import compact
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import archived_paths
from rmqha.pipeline.jobs.tablelog import TableFormat
from tests.interop.rocketmq import COMMAND_TIMEOUT_S, InteropError, built_class_path, java_home_problem
from tests.needs import need
from tests.pipeline.lake import archived_offsets, make_store, options_of, rows_of

pytestmark = [pytest.mark.java, pytest.mark.story]

HERE = Path(__file__).parent / "java"
OPENED = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch", "sun.security.action")
"""Packages of Java that Spark looks into."""


@pytest.fixture(scope="module")
def jars() -> str:
    """The class path with Spark, Delta and Iceberg."""
    need(java_home_problem())
    try:
        return built_class_path(HERE / "pom.xml", [HERE / "ReadTables.java"], {})
    except InteropError as error:
        need(f"the jars of Spark, Delta and Iceberg are neither here nor to be had: {error}")
        raise


def read_by_spark(jars: str, output: Path, *tables: tuple[str, Path, str, str]) -> list[list[dict[str, Any]]]:
    """The rows of tables, each given by its format, its path, and an option of the reader with its value."""
    output.mkdir()
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    words = [str(word) for table in tables for word in table]
    done = subprocess.run(
        ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens, "-cp", jars, "ReadTables", str(output), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=output,
        timeout=COMMAND_TIMEOUT_S,
        text=True,
        check=False,
    )
    assert done.returncode == 0, [line for line in done.stdout.splitlines() if "Exception" in line][:20]
    texts = [(output / str(number)).read_text() for number in range(len(tables))]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


def wanted(lake: Path, end: int | None = None) -> list[dict[str, Any]]:
    """The archived messages as the program shows them, up to an offset."""
    return [
        {
            "physicalOffset": row["physicalOffset"],
            "topic": row["topic"],
            "queueId": row["queueId"],
            **({} if row["keys"] is None else {"keys": row["keys"]}),
            "recordCRC": row["recordCRC"],
            "body": hashlib.sha256(row["body"]).hexdigest(),
            "stored": int(row["storeTimestamp"].timestamp() * 1000),
        }
        for row in rows_of(list(archived_paths(lake)))
        if end is None or row["physicalOffset"] < end
    ]


def metadata_of(lake: Path) -> Path:
    """The newest metadata of an Iceberg table, which Spark reads by its path."""
    folder = lake / "_iceberg" / "metadata"
    return folder / (folder / "version-hint.text").read_text()


def test_spark_reads_what_is_archived_now_and_in_an_earlier_version(jars: str, tmp_path: Path) -> None:
    """Delta and Iceberg; and once more after small files became large ones."""
    store = make_store(tmp_path / "store")
    lakes = {kind: tmp_path / kind.value for kind in (TableFormat.DELTA, TableFormat.ICEBERG)}
    first = archive(options_of(store, output=lakes[TableFormat.DELTA], endingOffset=20_000), LocalEngine()).end
    for kind, lake in lakes.items():
        for offset in (20_000, "latest"):
            archive(options_of(store, output=lake, endingOffset=offset), LocalEngine(), table=kind)
    from pyiceberg.table import StaticTable

    snapshot = StaticTable.from_metadata(str(lakes[TableFormat.ICEBERG] / "_iceberg")).snapshots()[0]
    delta, iceberg = lakes[TableFormat.DELTA], metadata_of(lakes[TableFormat.ICEBERG])
    found = read_by_spark(
        jars,
        tmp_path / "found",
        ("delta", delta, "", ""),
        ("iceberg", iceberg, "", ""),
        ("delta", delta, "versionAsOf", "1"),
        ("iceberg", iceberg, "versionAsOf", str(snapshot.snapshot_id)),
    )
    everything = wanted(delta)
    assert found[0] == found[1] == everything
    assert found[2] == found[3] == wanted(delta, first)
    assert 0 < len(found[2]) < len(everything)
    for lake in lakes.values():
        assert compact(lake, LocalEngine()).files_after
    found = read_by_spark(
        jars,
        tmp_path / "compacted",
        ("delta", delta, "", ""),
        ("iceberg", metadata_of(lakes[TableFormat.ICEBERG]), "", ""),
    )
    assert found[0] == found[1] == everything
    assert [row["physicalOffset"] for row in everything] == archived_offsets(delta)
