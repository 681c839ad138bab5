"""Options are understood or refused, never ignored."""

from pathlib import Path

import pyarrow as pa
import pytest

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.options import Options, Properties, Selection, View, parse_duration, parse_options, parse_size
from rmqha.pipeline.schema import COLUMNS, check_records_schema, records_schema, to_ddl
from rmqha.pipeline.sqltypes import STRING_MAP
from rmqha.pipeline.views import view_reader


def test_a_path_is_all_that_is_needed() -> None:
    assert parse_options({"path": "/store"}) == Options(path=Path("/store"))
    assert parse_options({"dir": "/store"}) == Options(path=Path("/store"))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///my%20store", "/my store"),
        ("file:/store", "/store"),
        ("file://localhost/store", "/store"),
        ("/my%20store", "/my%20store"),
        ("/a/../store/", "/store"),
    ],
)
def test_a_path_may_be_a_url_of_this_machine(text: str, path: str) -> None:
    assert parse_options({"path": text}) == Options(path=Path(path))
    assert parse_options({"path": "/s", "replica": text}).replica == Path(path)


def test_a_tables_dir_counts_and_not_where_spark_would_keep_its_files() -> None:
    assert parse_options({"dir": "/store", "path": "/warehouse/t"}) == Options(path=Path("/store"))


def test_names_come_in_any_case() -> None:
    found = parse_options({"PATH": "/s", "splitbytes": "64M", "TOPIC": "A, B", "queueid": "1,2", "PROPERTIES": "map"})
    chosen = Selection(topics=frozenset({"A", "B"}), queue_ids=frozenset({1, 2}))
    assert found == Options(Path("/s"), selection=chosen, split_bytes=64 << 20, properties=Properties.MAP)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({}, "needs the path of a store"),
        ({}, "CREATE TEMPORARY VIEW"),
        ({"paths": '["/a", "/b"]'}, "one path"),
        ({"path": "hdfs://host/s"}, "path=hdfs://host/s: it must be a folder"),
        ({"path": "file://host/s"}, "it must be a folder"),
        ({"path": "/s", "topc": "A"}, "no option topc"),
        (
            {"path": "/s", "maxOffsetsPerTrigger": "5"},
            r"maxOffsetsPerTrigger of Kafka's source \(use maxRecordsPerTrigger\);",
        ),
        ({"path": "/s", "SUBSCRIBE": "A", "topc": "A"}, r"SUBSCRIBE of Kafka's source \(use topic\), topc \(did you"),
        ({"path": "/s", "view": "all"}, "view=all: it must be one of records, splits"),
        ({"path": "/s", "splitBytes": "many"}, "splitBytes=many"),
        ({"path": "/s", "splitBytes": "0"}, "more than 0"),
        ({"path": "/s", "batchBytes": "2g"}, "not be more than 1g"),
        ({"path": "/s", "minPartitions": "0"}, "at least 1"),
        ({"path": "/s", "startingOffset": "-1"}, "earliest, latest or an offset"),
        ({"path": "/s", "startingTimestamp": "yesterday"}, "startingTimestamp=yesterday"),
        ({"path": "/s", "startingTimestamp": "-5"}, "milliseconds since 1970"),
        ({"path": "/s", "topicPattern": "("}, "topicPattern"),
        ({"path": "/s", "queueOffset": "7"}, "queueOffset=7: it must be two limits, .* FROM..BEFORE"),
        ({"path": "/s", "queueOffset": "a..b"}, "queueOffset=a..b"),
        ({"path": "/s", "storeTimestamp": "2026-11-21T01:30:00.."}, "it has no zone"),
        ({"path": "/s", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"path": "/s", "maxTriggerDelay": "1 fortnight"}, "maxTriggerDelay"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(texts: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parse_options(texts)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("..", (-(2**63), 2**63)),
        ("5..7", (5, 7)),
        (" 5 .. 7 ", (5, 7)),
        ("-3..", (-3, 2**63)),
        ("..-62135596800000", (-(2**63), -62135596800000)),
    ],
)
def test_a_range_is_half_open_and_may_lack_a_limit(text: str, limits: tuple[int, int]) -> None:
    """What an archive notes of it selects the same again."""
    for option in ("queueOffset", "bornTimestamp", "storeTimestamp"):
        selection = parse_options({"path": "/s", option: text}).selection
        assert limits in (selection.queue_offsets, selection.born_timestamps, selection.store_timestamps)
        assert parse_options({"path": "/s", **selection.as_texts()}).selection == selection


def test_a_range_of_times_is_iso_8601_too() -> None:
    selection = parse_options({"path": "/s", "storeTimestamp": "2026-11-21T01:30:00Z..1795225200000"}).selection
    assert selection == Selection(store_timestamps=(1795224600000, 1795225200000))


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("64m", 64 << 20), ("1 G", 1 << 30), ("2kb", None)]
)
def test_sizes_have_units(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError, match="units"):
            parse_size(text)
    else:
        assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("10", 10.0), ("10s", 10.0), ("15m", 900.0), ("2h", 7200.0)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_columns_are_chosen_by_name_and_in_order() -> None:
    assert records_schema().names == list(COLUMNS)
    assert "properties" not in records_schema((), "none").names
    assert to_ddl(records_schema(["body", "topic", "propertiesMap"])) == (
        "`body` binary, `topic` string, `propertiesMap` map<string,string>"
    )
    with pytest.raises(OptionError, match="no column 'bodi'"):
        records_schema(["bodi"])


def test_a_users_own_schema_must_be_of_our_columns() -> None:
    assert check_records_schema([("queueId", pa.int32()), ("properties", STRING_MAP)]).names == [
        "queueId",
        "properties",
    ]
    with pytest.raises(OptionError, match="queueId is int, not bigint"):
        check_records_schema([("queueId", pa.int64())])
    with pytest.raises(OptionError, match="no column 'a'"):
        check_records_schema([("a", pa.int32())])


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"view": "splits", "columns": "topic"}, "columns="),
        ({"view": "verify", "topic": "A"}, "cannot be selected"),
        ({"view": "verify", "queueOffset": "..9"}, "cannot be selected"),
        ({"view": "stats", "columns": "topic,keys"}, "view=stats has no column 'keys'"),
        ({"view": "stats", "columns": "brokerName"}, "view=stats has no column 'brokerName'"),
        ({"view": "compare"}, "needs replica="),
        ({"view": "queues"}, "needs output="),
        ({"view": "queues", "output": "/s/../s"}, "other than the store's own"),
    ],
)
def test_a_view_refuses_options_that_it_would_ignore(texts: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        view_reader(parse_options({"path": "/s", **texts}))


def test_a_view_has_its_own_columns_only() -> None:
    options = parse_options({"path": "/s", "view": View.SPLITS.value})
    with pytest.raises(OptionError, match="view=splits has only the columns path"):
        view_reader(options, [("topic", pa.string())])


def test_a_users_schema_chooses_the_sums() -> None:
    options = parse_options({"path": "/s", "view": View.STATS.value})
    fields = [("messages", pa.int64()), ("tags", pa.string())]
    assert view_reader(options, fields).schema == pa.schema(fields)
    with pytest.raises(OptionError, match="columns as `messages` bigint, not as `messages` int"):
        view_reader(options, [("messages", pa.int32())])
