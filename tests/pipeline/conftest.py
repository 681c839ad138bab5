"""One Spark session for all tests, with a JVM that starts fast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqha.pipeline.session import JavaError, find_java, session
from tests.needs import need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def java() -> Path:
    """What Spark runs on: without it tests are skipped, but on CI they fail."""
    try:
        return find_java()
    except JavaError as error:
        need(str(error))
        raise


@pytest.fixture(scope="session")
def spark(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads, whose tables and scratch files are pytest's to remove."""
    folder: Path = tmp_path_factory.mktemp("spark")
    running = session(
        "local[2]",
        {
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()
