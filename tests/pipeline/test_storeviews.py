"""The views of a store's queues and of its consumers."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.storeviews import CONSUMERS_SCHEMA, QUEUE_OFFSETS_SCHEMA, store_rows
from rmqha.pipeline.views import view_reader
from rmqha.store.errors import NoStore
from rmqha.store.log.mappedfile import list_segments
from tests import fixtures
from tests.pipeline.stores import options
from tests.pipeline.streams import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Key = tuple[str, int]


def queues_by_record() -> dict[Key, list[int]]:
    """The queue offsets of the records of the store, as Java's decoder reads them."""
    found: dict[Key, list[int]] = defaultdict(list)
    for one in fixtures.expected():
        if "topic" in one:
            found[one["topic"], one["queueId"]].append(one["queueOffset"])
    return found


def rows(store: Path, view: str, **texts: Any) -> list[dict[str, Any]]:
    found = store_rows(options(store, view=view, **texts))
    found.validate(full=True)
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def test_queues_have_the_offsets_of_their_messages() -> None:
    store = fixtures.unpacked("slave")
    found = {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in rows(store, "queueOffsets")
    }
    expected = {key: (min(offsets), max(offsets) + 1) for key, offsets in queues_by_record().items()}
    assert {key: found[key] for key in expected} == expected
    assert store_rows(options(store, view="QUEUEOFFSETS")).schema == QUEUE_OFFSETS_SCHEMA


def test_a_queue_starts_where_the_log_does(tmp_path: Path) -> None:
    """Retention deletes segments first, and files of queues later."""
    store = fixtures.copy_of("slave", tmp_path / "store")
    segments = list_segments(store / "commitlog")
    start = segments[1][0]
    (store / "commitlog" / f"{segments[0][0]:020d}").unlink()
    left: dict[Key, list[int]] = defaultdict(list)
    for one in fixtures.expected():
        if "topic" in one and one["physicalOffset"] >= start:
            left[one["topic"], one["queueId"]].append(one["queueOffset"])
    found = {(row["topic"], row["queueId"]): row["minOffset"] for row in rows(store, "queueOffsets")}
    assert {key: found[key] for key in left} == {key: min(offsets) for key, offsets in left.items()}


@pytest.fixture
def consumed(tmp_path: Path) -> tuple[Path, Key, int]:
    """A store where the group G has consumed one message of a queue, the queue, and its end."""
    store = fixtures.copy_of("slave", tmp_path / "store")
    (topic, queue_id), offsets = max(queues_by_record().items(), key=lambda one: len(one[1]))
    table = {"offsetTable": {f"{topic}@G": {queue_id: min(offsets) + 1}, "nobody@Other": {0: 5}}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps(table))
    return store, (topic, queue_id), max(offsets) + 1


def test_consumers_have_their_lag(consumed: tuple[Path, Key, int]) -> None:
    store, (topic, queue_id), end = consumed
    ours, strange = rows(store, "consumers")
    time = ours.pop("lastConsumed")
    assert ours == {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": queue_id,
        "brokerOffset": end,
        "consumerOffset": end - ours["lag"],
        "lag": ours["lag"],
    }
    assert ours["lag"] == len(queues_by_record()[topic, queue_id]) - 1
    place = (topic, queue_id, ours["consumerOffset"] - 1)
    (first,) = (
        one for one in fixtures.expected() if (one.get("topic"), one.get("queueId"), one.get("queueOffset")) == place
    )
    assert round(time.timestamp() * 1000) == first["storeTimestamp"]
    assert (strange["brokerOffset"], strange["lag"], strange["lastConsumed"]) == (0, 0, None)


def test_topics_and_queues_are_chosen(consumed: tuple[Path, Key, int]) -> None:
    store, (topic, queue_id), _ = consumed
    assert [row["consumerGroup"] for row in rows(store, "consumers", topic=topic)] == ["G"]
    assert rows(store, "consumers", topic=topic, queueId=queue_id + 1) == []
    chosen = rows(store, "queueOffsets", topicPattern=f"{re.escape(topic[:3])}.*", queueId=queue_id)
    assert {row["topic"] for row in chosen} == {name for name, n in queues_by_record() if name.startswith(topic[:3])}
    with pytest.raises(OptionError, match="tags cannot be selected"):
        view_reader(options(store, view="consumers", tags="A"))


def test_no_consumers_are_no_rows(tmp_path: Path) -> None:
    store = fixtures.copy_of("slave", tmp_path / "store")
    shutil.rmtree(store / "config")
    found = store_rows(options(store, view="consumers"))
    assert (found.num_rows, found.schema) == (0, CONSUMERS_SCHEMA)
    with pytest.raises(NoStore):
        rows(tmp_path / "nothing", "consumers")


def test_sql_over_lag(spark: SparkSession, consumed: tuple[Path, Key, int]) -> None:
    store, (topic, queue_id), end = consumed
    for name in ("consumers", "queueOffsets"):
        spark.read.format("rmqha").option("view", name).load(str(store)).createOrReplaceTempView(name)
    found = spark.sql(
        "SELECT c.topic, c.queueId, q.maxOffset - c.consumerOffset = c.lag, q.maxOffset FROM consumers c "
        "JOIN queueOffsets q USING (topic, queueId) WHERE lag > 0"
    ).collect()
    assert [tuple(row) for row in found] == [(topic, queue_id, True, end)]
    stream = spark.readStream.format("rmqha").option("view", "consumers").load(str(store)).writeStream
    writing = stream.format("noop").option("checkpointLocation", str(store / "c"))
    with pytest.raises(PySparkException, match="read it in a batch query"):
        run_to_the_end(writing.start)
