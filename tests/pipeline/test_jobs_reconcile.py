"""``rmqha job reconcile``: what is missing between two clusters, or between a producer's log and a store."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.cli import main
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import Engine, LocalEngine, SparkEngine
from rmqha.pipeline.jobs.entries import By
from rmqha.pipeline.jobs.reconcile import Problem, Reconciled, ToReconcile, reconcile
from rmqha.pipeline.jobs.sendlog import SendLog
from rmqha.store.metadata import ConsumerOffsetTable
from rmqha.store.tablesnapshots import write_snapshot
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from tests import examples
from tests.pipeline.seenbar import SeenBar
from tests.pipeline.stores import make_store, options, write_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BORN = 1_795_000_000_000
LOCAL = LocalEngine()


def message(number: int, **fields: Any) -> Record:
    """A message of its own id and key, of one of two topics."""
    properties = {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number} all", "TAGS": "a", **fields.pop("properties", {})}
    return Record(
        fields.pop("topic", f"T{number % 2}"),
        fields.pop("body", b"body %d" % number),
        format_properties({name: value for name, value in properties.items() if value}),
        queue_id=fields.pop("queue_id", 0),
        queue_offset=fields.pop("queue_offset", number // 2),
        born_timestamp=fields.pop("born", BORN + number),
        store_timestamp=BORN + number + 5,
        **fields,
    )


def between(one: Path, other: Path, engine: Engine = LOCAL, **more: Any) -> Reconciled:
    return reconcile(ToReconcile(found=(options(other),), expected=(options(one),), **more), engine)


def summary(done: Reconciled) -> list[tuple[str, str | None]]:
    """Problems with the ids, or keys, of their messages."""
    return sorted((row["problem"], row["msgId"] or row["keys"]) for row in done.first)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A store, and one that lacks some of its messages and has them in another order, with two others."""
    one, other = tmp_path / "one", tmp_path / "other"
    messages = [message(number) for number in range(60)]
    make_store(one, messages)
    kept = [each for number, each in enumerate(messages) if number not in (7, 20, 59)]
    kept[3] = message(3, body=b"another body")
    make_store(other, [*reversed(kept), message(100), message(101)])
    return one, other


def test_what_the_other_cluster_lacks_is_found(pair: tuple[Path, Path]) -> None:
    done = between(*pair)
    assert summary(done) == [("changed", "U3"), ("missing", "U20"), ("missing", "U59"), ("missing", "U7")]
    assert done.topics["T0"].as_json() == {
        "expected": 30,
        "found": 29,
        "missing": 1,
        "changed": 0,
        "notConsumed": 0,
        "more": 1,
    }
    (seven,) = [row for row in done.first if row["msgId"] == "U7"]
    assert seven["time"] == datetime.fromtimestamp((BORN + 7) / 1000, UTC)
    assert (seven["topic"], seven["keys"], seven["queueOffset"]) == ("T1", "k7 all", 3)
    assert summary(between(pair[0], pair[0])) == []


@pytest.mark.long
def test_an_archive_stands_for_its_store(pair: tuple[Path, Path], tmp_path: Path) -> None:
    lakes = [tmp_path / "lake1", tmp_path / "lake2"]
    archive(options(pair[0], output=lakes[0], splitBytes=5000), LOCAL)
    archive(options(pair[1], output=lakes[1], properties="map"), LOCAL)
    expected = between(*pair)
    for one in (pair[0], lakes[0]):
        for other in (pair[1], lakes[1]):
            done = between(one, other)
            assert (done.topics, summary(done)) == (expected.topics, summary(expected))


def test_progress_never_goes_back(pair: tuple[Path, Path]) -> None:
    bar = SeenBar()
    asked = ToReconcile(found=(options(pair[1], splitBytes=3000),), expected=(options(pair[0], splitBytes=3000),))
    reconcile(asked, LOCAL, bar)
    seen = bar.seen
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 2


def test_a_cluster_of_several_brokers(pair: tuple[Path, Path], tmp_path: Path) -> None:
    third = tmp_path / "third"
    make_store(third, [message(7), message(20), message(59)])
    asked = ToReconcile(found=(options(pair[1]), options(third)), expected=(options(pair[0]),))
    assert summary(reconcile(asked, LOCAL)) == [("changed", "U3")]


@pytest.mark.long
def test_messages_without_an_id_and_other_columns(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    bare = [message(number, properties={"UNIQ_KEY": ""}) for number in (0, 2)]
    make_store(one, [*bare, bare[0], message(4)])
    make_store(other, [bare[0], replace(bare[1], born_timestamp=BORN + 77), message(4)])
    assert summary(between(one, other)) == [("missing", "k2 all")]  # its time of birth is another
    assert summary(between(one, other, by=(By.KEYS, By.BODY))) == [("missing", "k0 all")]  # there are two copies
    assert summary(between(one, other, by=(By.KEYS,))) == [("missing", "k0 all")]
    assert summary(between(other, one, by=(By.BODY,))) == []


@pytest.mark.long
def test_a_delayed_message_and_its_delivery_are_one(tmp_path: Path) -> None:
    waiting = message(
        2, topic=SCHEDULE_TOPIC, queue_id=3, properties={"REAL_TOPIC": "T0", "REAL_QID": "1", "DELAY": "4"}
    )
    one, other = tmp_path / "one", tmp_path / "other"
    make_store(one, [waiting, message(2)])
    make_store(other, [message(2)])
    for by in ((By.ID,), (By.KEYS,)):
        assert between(one, other, by=by).as_json()["missing"] == 0
        assert between(other, one, by=by).as_json()["missing"] == 0
    empty = tmp_path / "empty"
    make_store(empty, [message(1)])
    assert summary(between(one, empty)) == [("missing", "U2")]


def test_only_topics_of_applications_count_unless_they_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    names = ("%RETRY%g", "%DLQ%g", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TBW102", "T")
    make_store(one, [message(number, topic=name) for number, name in enumerate(names)])
    make_store(other, [message(9, topic="T")])
    assert summary(between(one, other)) == [("missing", "U5")]
    asked = ToReconcile(found=(options(other),), expected=(options(one, topic="%DLQ%g"),))
    assert summary(reconcile(asked, LOCAL)) == [("missing", "U1")]
    asked = ToReconcile(found=(options(other),), expected=(options(one, topicPattern="[^T]+"),))
    assert summary(reconcile(asked, LOCAL)) == []


def test_a_period_limits_what_is_expected(pair: tuple[Path, Path]) -> None:
    assert summary(between(*pair, period=(BORN + 8, BORN + 59))) == [("missing", "U20")]


def write_log(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A producer's log in the form that its name says."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def stored(store: Path, *logs: Path, engine: Engine = LOCAL, **more: Any) -> Reconciled:
    return reconcile(ToReconcile(found=(options(store),), logs=logs, **more), engine)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_sends_are_looked_for_by_id_or_key(pair: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    rows: list[dict[str, Any]] = [
        {"topic": f"T{number % 2}", "key": f"k{number}", "msgId": f"U{number}" if number % 3 else None, "time": None}
        for number in range(60)
    ]
    for number, row in enumerate(rows):
        row["time"] = BORN + number
    log = write_log(tmp_path / f"sent.{suffix}", rows)
    done = stored(pair[1], log)
    assert [(row["keys"], row["msgId"]) for row in sorted(done.first, key=lambda row: int(row["keys"][1:]))] == [
        ("k7", "U7"),
        ("k20", "U20"),
        ("k59", "U59"),
    ]
    assert summary(stored(pair[0], log)) == []
    assert done.topics["T0"].as_json()["found"] == 29
    assert done.more == 0
    assert summary(stored(pair[1], log, period=(BORN + 8, BORN + 59))) == [("missing", "U20")]


def test_of_a_key_the_send_is_missing_that_is_farthest_in_time(tmp_path: Path) -> None:
    store = tmp_path / "store"
    hours = [0, 3_600_000, 7_200_000, 10_800_000]
    make_store(store, [message(0, born=BORN + hour + 40, properties={"UNIQ_KEY": ""}) for hour in (hours[0], hours[2])])
    log = write_log(tmp_path / "sent.csv", [{"key": "k0", "sent": BORN + hour} for hour in hours])
    done = stored(store, log, log=SendLog({"time": "sent"}, "T0"))
    assert [(row["time"].timestamp() * 1000 - BORN, row["place"]) for row in done.first] == [
        (hours[1], 3),
        (hours[3], 5),
    ]
    assert done.topics["T0"].as_json()["found"] == 2


@pytest.mark.long
def test_what_groups_have_not_consumed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    laid = make_store(store, [message(2 * number, queue_offset=number) for number in range(10)])
    write_state(store, laid[-1].physical_offset + laid[-1].total_size)
    (store / "config").mkdir()
    table = {"T0@fast": {0: 10}, "T0@slow": {0: 8}, "T1@other": {0: 3}}
    (store / "config" / ConsumerOffsetTable.FILE_NAME).write_text(json.dumps({"offsetTable": table}))
    log = write_log(tmp_path / "sent.jsonl", [{"topic": "T0", "msgId": f"U{2 * number}"} for number in range(9)])
    assert summary(stored(store, log, groups=("fast",))) == []
    done = stored(store, log, groups=("fast", "slow"))
    assert [(row["problem"], row["msgId"], row["groups"]) for row in done.first] == [("notConsumed", "U16", "slow")]
    with pytest.raises(OptionError, match="group nobody has no offsets"):
        stored(store, log, groups=("nobody",))
    earlier = {**table, "T0@fast": {0: 3}}
    tables = {ConsumerOffsetTable.FILE_NAME: json.dumps({"offsetTable": earlier})}
    write_snapshot(store, laid[5].physical_offset, BORN, tables)
    then = options(store, endingTimestamp=laid[6].store_timestamp)
    early = write_log(tmp_path / "early.jsonl", [{"topic": "T0", "msgId": f"U{2 * number}"} for number in range(6)])
    done = reconcile(ToReconcile(found=(then,), logs=(early,), groups=("fast",)), LOCAL)
    assert [row["problem"] for row in done.first] == ["notConsumed"] * 3
    assert sorted(row["queueOffset"] for row in done.first) == [3, 4, 5]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", b"topic,colour\nT,red\n", "neither a column key nor msgId"),
        ("a.csv", b"key\nk\n", "row 2 of .* has no topic"),
        ("a.csv", b"topic,key\nT,\n", "neither a key nor a message id"),
        ("a.csv", b"topic,key,time\nT,k,soon\n", "'soon' is not a time"),
        ("a.csv", b"topic,key\nT,\xff\n", "cannot be read"),
        ("a.jsonl", b"{}\n[]\n", "neither a column key"),
        ("a.jsonl", b"[]\n", "line 1 of .* is not a JSON object"),
        ("a.jsonl", b"{\n", "line 1 of .* is not JSON"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.xls", b"", "must end with one of"),
    ],
)
def test_a_bad_log_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    make_store(tmp_path / "store", [message(0)])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=complaint):
        stored(tmp_path / "store", tmp_path / name)


numbers = st.lists(st.integers(0, 12), max_size=25)


@pytest.mark.long
@given(one=numbers, other=numbers, is_known=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_counts_are_those_of_sets_or_of_multisets(
    tmp_path_factory: pytest.TempPathFactory, one: list[int], other: list[int], is_known: bool
) -> None:
    folder = tmp_path_factory.mktemp("sets")
    for name, chosen in (("one", one), ("other", other)):
        make_store(folder / name, [message(99, topic="X"), *(message(number) for number in chosen)])
    done = between(folder / "one", folder / "other", by=(By.ID,) if is_known else (By.KEYS,))
    expected = set(one) - set(other) if is_known else range(13)
    missing = len(expected) if is_known else sum(max(0, one.count(each) - other.count(each)) for each in expected)
    assert done.count(Problem.MISSING) == missing
    assert done.count(Problem.CHANGED) == 0


@pytest.mark.story
def test_both_engines_find_the_same(spark: SparkSession, pair: tuple[Path, Path], tmp_path: Path) -> None:
    engine = SparkEngine(spark)
    asked = ToReconcile(found=(options(pair[1], splitBytes=3000),), expected=(options(pair[0], splitBytes=3000),))
    found = [reconcile(asked, one) for one in (LOCAL, engine)]
    assert found[0].as_json() == found[1].as_json()
    assert len(found[0].first) == 4
    rows = [{"topic": f"T{number % 2}", "key": f"k{number}", "time": BORN + number} for number in range(70)]
    log = write_log(tmp_path / "sent.parquet", rows)
    found = [stored(pair[1], log, engine=one) for one in (LOCAL, engine)]
    assert found[0].as_json() == found[1].as_json()
    assert found[0].count(Problem.MISSING) == 13


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["job", "reconcile", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_command_writes_all_findings_and_its_exit_code_tells(
    pair: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"found.{suffix}"
    status, said, complaint = run(pair[0], "--against", pair[1], "--output", output)
    assert (status, complaint) == (1, "rmqha: 3 messages are missing, 1 have other bodies, 2 are there besides\n")
    assert "T1: 28 of 30 messages are there, 2 missing, 1 with another body, 1 besides\n" in said
    assert f"missing: T1 keys k7 all id U7 2026-11-18T11:06:40.007Z ({pair[0]} at " in said
    assert sorted(row["msgId"] for row in rows_in(output)) == ["U20", "U3", "U59", "U7"]
    status, said, _ = run(pair[0], "--against", pair[1], "--json", "-o", "topic=T0")
    assert (status, json.loads(said)["missing"]) == (1, 1)


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of findings."""
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.long
def test_the_commands_other_ends(pair: tuple[Path, Path], tmp_path: Path) -> None:
    less = tmp_path / "less"
    make_store(less, [message(0)])
    assert run(less, "--against", pair[0])[::2] == (0, "")
    assert run(less, "--against", pair[0], "--exact")[0] == 1
    assert run(less, "--against", pair[0], "--also", pair[0])[0] == 0
    for wrong in ((less,), (less, "--against", less, "--sends", "x.csv"), (less, "--against", less, "--group", "g")):
        assert run(*wrong)[0] == 2
    assert "is not a store" in run(less, "--against", tmp_path)[2]
    assert run(less, "--sends", tmp_path / "x.csv")[0] == 8
    assert run(less, "--against", less, "--from", "soon")[0] == 2
    lake = tmp_path / "lake"
    archive(options(less, output=lake), LOCAL)
    assert "is an archive: endingTimestamp" in run(lake, "--against", less, "-o", "endingTimestamp=5")[2]
    log = write_log(tmp_path / "sent.csv", [{"what": "k0 x", "when": BORN}])
    arguments = (lake, "--sends", log, "--topic", "T0", "--column", "key=what", "--column", "time=when")
    assert run(*arguments)[0] == 0
    status, _, complaint = run(*arguments, "--group", "g")
    assert (status, complaint) == (
        2,
        f"rmqha: {lake} has no offsets of consumers: nothing says what a group has consumed\n",
    )
    (less / "config").mkdir()
    (less / "config" / ConsumerOffsetTable.FILE_NAME).write_text('{"offsetTable":{"T9@g":{"0":4}}}')
    status, said, complaint = run(less, *arguments[1:], "--group", "g")
    assert (status, complaint) == (6, "rmqha: nothing is missing, but 1 messages are not consumed\n")
    assert "not consumed by g: T0 keys k0 all id U0" in said
