"""Archives of some topics, queues or tags: each chosen message once, and never taken for a whole log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from rmqha.pipeline.jobs.archive import Archived, archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError, WrongArchive, archived_paths
from rmqha.pipeline.jobs.messages import archived_messages
from rmqha.pipeline.jobs.restore import NotRestorable, plan_restore
from rmqha.settings.settings import Settings
from rmqha.testing.records import make_record
from rmqha.wire.record import Record
from tests.pipeline.lake import archived_offsets, options_of
from tests.pipeline.stores import end_of, make_store, write_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def records(store: Path) -> list[Record]:
    """Messages of the topics A, B and C; a node of ours has confirmed them."""
    records = make_store(store, [make_record(n, b"x" * 300, topic="ABC"[n % 3]) for n in range(100)])
    write_state(store, end_of(records))
    return records


def run(store: Path, lake: Path, **texts: object) -> Archived:
    return archive(options_of(store, output=lake, **texts), LocalEngine(), commit_bytes=20_000)


def offsets_of(records: list[Record], topics: str) -> list[int]:
    return [record.physical_offset for record in records if record.topic in topics]


def test_an_archive_of_topics_has_each_of_their_messages_once(store: Path, lake: Path, records: list[Record]) -> None:
    """It goes on like any other, and knows how far of the log it has seen."""
    write_state(store, records[50].physical_offset)
    done = run(store, lake, topic="A, C")
    assert done.messages == len(offsets_of(records[:50], "AC"))
    assert done.end == records[50].physical_offset
    write_state(store, end_of(records))
    run(store, lake, topic="C,A")
    assert run(store, lake, topic="A,C").messages == 0
    assert archived_offsets(lake) == offsets_of(records, "AC")
    assert {topic for path in archived_paths(lake) for topic in pq.read_table(path)["topic"].to_pylist()} == {"A", "C"}


def test_ranges_without_chosen_messages_are_archived_too(store: Path, lake: Path, records: list[Record]) -> None:
    done = run(store, lake, topic="nobody")
    assert (done.messages, done.files, done.end) == (0, 0, end_of(records))
    assert run(store, lake, topic="nobody").start == end_of(records)


def test_an_archive_keeps_its_selection(store: Path, lake: Path, records: list[Record]) -> None:
    run(store, lake, topic="A", tags="TagA")
    before = archived_offsets(lake)
    for texts in ({}, {"topic": "A"}, {"topic": "A,B", "tags": "TagA"}, {"topicPattern": "A"}):
        with pytest.raises(WrongArchive, match="holds only messages with topic=A and tags=TagA, and not"):
            run(store, lake, **texts)
    assert archived_offsets(lake) == before


def test_a_whole_archive_stays_whole(store: Path, lake: Path, records: list[Record]) -> None:
    run(store, lake, endingOffset=records[50].physical_offset)
    with pytest.raises(WrongArchive, match="holds all messages, and not only messages with topic=A"):
        run(store, lake, topic="A")
    run(store, lake)
    assert archived_offsets(lake) == offsets_of(records, "ABC")


def test_no_store_is_made_of_a_part(store: Path, lake: Path, records: list[Record]) -> None:
    """Its messages can be sent again instead. Without the note of what it holds it is no whole archive either."""
    run(store, lake, topicPattern="A|B")
    with pytest.raises(NotRestorable, match=r"holds only messages with topicPattern=A\|B, .*'rmqha job replay'"):
        plan_restore(lake, Settings())
    assert [offset for offset, _, _ in archived_messages(lake)] == offsets_of(records, "AB")
    assert not any(manifest.restore.lossless for manifest in Archive(lake).manifests())


def test_an_unreadable_note_is_told(store: Path, lake: Path, records: list[Record]) -> None:
    run(store, lake, topic="A")
    (lake / "_manifest" / "selection.json").write_text("[]")
    with pytest.raises(ArchiveError, match=r"selection.json does not say what is selected"):
        run(store, lake, topic="A")


@pytest.mark.story
def test_a_query_archives_topics_too(spark: SparkSession, store: Path, lake: Path, records: list[Record]) -> None:
    splits = spark.read.format("rmqha").options(view="splits", splitBytes="9000").load(str(store))
    splits.write.format("rmqha_archive").mode("append").option("topic", "B").save(str(lake))
    assert archived_offsets(lake) == offsets_of(records, "B")
    with pytest.raises(Exception, match="holds only messages with topic=B, and not all messages"):
        splits.write.format("rmqha_archive").mode("append").save(str(lake))
