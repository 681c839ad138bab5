"""Rows of the views that sum up."""

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.sums import GROUPS, SUMS
from rmqha.pipeline.views import view_reader
from rmqha.testing.records import make_record
from rmqha.wire.record import Record
from tests.pipeline.stores import end_of, make_store, options

SIZES = st.sampled_from([300, 3000, 1 << 20])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_time(milliseconds: int) -> datetime | None:
    if not MIN_TIMESTAMP_MS <= milliseconds <= MAX_TIMESTAMP_MS:
        return None
    return EPOCH + timedelta(milliseconds=milliseconds)


def summed(records: list[Record]) -> dict[str, Any]:
    times = [time for time in (as_time(record.store_timestamp) for record in records) if time is not None]
    bounded = [
        [min(max(0, time), MAX_TIMESTAMP_MS) for time in (record.born_timestamp, record.store_timestamp)]
        for record in records
    ]
    latencies = [max(0, stored - born) for born, stored in bounded]
    return {
        "topic": records[0].topic,
        "queueId": records[0].queue_id,
        "messages": len(records),
        "bytes": sum(record.total_size for record in records),
        "minQueueOffset": min(record.queue_offset for record in records),
        "maxQueueOffset": max(record.queue_offset for record in records),
        "firstStoreTimestamp": min(times, default=None),
        "lastStoreTimestamp": max(times, default=None),
        "latencySumMs": sum(latencies),
        "latencyMaxMs": max(latencies),
        "latencyMinMs": min(latencies),
    }


def test_stats_of_a_split_are_those_of_its_messages_by_queue(tmp_path: Path) -> None:
    """However they come in batches; times that someone made up are left out."""
    wild = [0, -5, 10**12, -(2**63), 2**63 - 1, 3 * 10**12, MAX_TIMESTAMP_MS]
    records = make_store(
        tmp_path,
        [
            replace(
                make_record(number, bytes(number), topic="AB"[number % 7 % 2]),
                store_timestamp=-(2**63) if number % 4 == 3 else wild[number % 7],
                born_timestamp=wild[number % 5],
            )
            for number in range(90)
        ],
        1 << 20,
    )
    by_queue: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        by_queue[record.topic, record.queue_id].append(record)
    for batch_bytes in (500, 3000, 1 << 20):
        opts = options(tmp_path, view="stats", batchBytes=batch_bytes)
        (split,) = open_log(opts).splits(0, end_of(records))
        rows = [row for batch in view_reader(opts).read(split) for row in batch.to_pylist()]
        assert {(row["topic"], row["queueId"]): row for row in rows} == {
            key: summed(mine) for key, mine in by_queue.items()
        }
        assert len(rows) == len(by_queue) == 8


def test_a_split_without_wanted_messages_has_no_stats(tmp_path: Path) -> None:
    records = make_store(tmp_path, [make_record(0, b"")])
    opts = options(tmp_path, view="stats", topic="nobody")
    (split,) = open_log(opts).splits(0, end_of(records))
    assert [batch.num_rows for batch in view_reader(opts).read(split) if batch.num_rows] == []


@given(st.data())
def test_sums_are_of_the_groups_that_were_asked_for(data: st.DataObject) -> None:
    """In any order of columns, however messages come in batches, and even if each is a group of its own."""
    columns = data.draw(st.lists(st.sampled_from([*GROUPS, *SUMS]), unique=True, min_size=1))
    made = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40))
    whole = {name: kind for name, (_, kind, _) in SUMS.items() if name in columns}
    with TemporaryDirectory() as folder, patch("rmqha.pipeline.sums.MAX_GROUPS", data.draw(st.integers(1, 50))):
        records = make_store(
            Path(folder),
            [
                replace(
                    make_record(number, bytes(size), topic="AB"[kind % 2]),
                    properties_stored="TAGS\1x" if kind else "",
                    flag=kind,
                )
                for number, (kind, size) in enumerate(made)
            ],
            1 << 20,
        )
        opts = options(Path(folder), view="stats", columns=",".join(columns), batchBytes=data.draw(SIZES))
        (split,) = open_log(opts).splits(0, end_of(records))
        rows = [row for batch in view_reader(opts).read(split) for row in batch.to_pylist()]
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        assert list(row) == columns
        found[group_of(columns, row)].append(row)
    wanted: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        wanted[group_of(columns, shown(record))].append(record)
    assert found.keys() == wanted.keys()
    for key, group in found.items():
        sums = summed(wanted[key])
        for name, kind in whole.items():
            again = {"min": min, "max": max}.get(kind, sum)
            assert again(row[name] for row in group) == sums[name]


def group_of(columns: list[str], row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns if name in GROUPS)


def shown(record: Record) -> dict[str, Any]:
    """What the columns that group show of a message."""
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "tags": record.properties.get("TAGS"),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
    }
