"""What docs/spark.md shows of tables, large files and old messages works as written."""

from pathlib import Path

import pytest

from tests.needs import need
from tests.pages.pages import commands_of, python_of
from tests.pages.reader import Reader
from tests.pipeline.lake import make_store
from tests.pipeline.tables import PACKAGES

pytestmark = pytest.mark.process


def test_the_commands_and_the_python_of_the_page(tmp_path: Path) -> None:
    for package in PACKAGES.values():
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            need(str(error))
    reader = Reader(tmp_path)
    make_store(tmp_path / "replica")
    delta, iceberg, again = commands_of("spark: Tables of Delta and Iceberg")
    assert "122 messages from 0" in reader.runs(delta)
    assert "122 messages from 0" in reader.runs(iceberg)
    assert "0 messages" in reader.runs(again)
    counted = "assert DeltaTable('/lake/table', version=1).to_pyarrow_table(filesystem=files).num_rows == 122"
    reader.runs_python(f"{python_of('spark: Tables of Delta and Iceberg')}\n{counted}\n")
    reader.runs("rmqha job archive /data/replica --output /lake/orders")
    dry, compact = commands_of("spark: Large files")
    assert "4 files of" in reader.runs(dry)
    assert "MB/s of log" in reader.runs(compact)
    dry, expire = commands_of("spark: Old messages")
    for command in (dry, expire):
        assert "nothing of" in reader.runs(command)
