"""One Spark session for all tests, with a JVM that starts fast; and a store and an archive for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.session import JavaError, find_java, session
from tests.needs import need
from tests.pipeline.lake import make_store
from tests.pipeline.nodes import Cluster
from tests.pipeline.processes import LOCAL_DRIVER
from tests.pipeline.sparkpython import python_for_spark
from tests.pipeline.tables import with_package

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


TABLES = [TableFormat.DELTA, TableFormat.ICEBERG]


@pytest.fixture(params=TABLES, ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> TableFormat:
    """A format of tables, whose package is there."""
    return with_package(request.param)


@pytest.fixture(params=[TableFormat.PARQUET, *TABLES], ids=lambda kind: kind.value)
def any_kind(request: pytest.FixtureRequest) -> TableFormat:
    """The same, or no table."""
    return with_package(request.param)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of several small segments; a module may have another."""
    return make_store(tmp_path / "store")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where an archive is to be made."""
    return tmp_path / "lake"


@pytest.fixture(scope="session")
def spark(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads, whose Pythons are forks, and whose tables and scratch files are pytest's to remove."""
    folder: Path = tmp_path_factory.mktemp("spark")
    conf = {
        **LOCAL_DRIVER,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with python_for_spark(folder) as python:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYSPARK_PYTHON", str(python))
            running = session("local[2]", conf)
        running.sparkContext.setLogLevel("OFF")
        yield running
        running.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes of ours with logs."""
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)
