"""The columns value and bodyError of a log: by format, by topic, of compressed bodies, within limits."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqha.pipeline.bodies.reading import SAMPLE_MESSAGES, bodies_of, pieces
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.schema import COLUMNS
from rmqha.pipeline.sqltypes import parse_type, sql_type
from rmqha.pipeline.views import view_reader
from rmqha.testing.records import make_record
from rmqha.wire.columns import Records, hop, lay_out
from rmqha.wire.record import COMPRESSED_FLAG, Record, encode_record
from tests.pipeline.stores import SEGMENT_SIZE, end_of, make_store, options, write_state

ZSTD, LZ4 = 0x200, 0x100


def compressed(record: Record, kind: int = 0) -> Record:
    if kind == 0:
        body = zlib.compress(record.body)
    else:
        body = pa.compress(record.body, codec={ZSTD: "zstd", LZ4: "lz4"}[kind], asbytes=True)
    return replace(record, body=body, sys_flag=record.sys_flag | COMPRESSED_FLAG | kind)


def order(number: int, topic: str = "Orders") -> Record:
    return make_record(number, json.dumps({"id": number, "name": f"n{number}"}).encode(), topic=topic)


def lay_store(store: Path, records: Sequence[Record], segment_size: int = SEGMENT_SIZE) -> None:
    """A store whose node has confirmed all: without one, records with other bodies than their CRC end the log."""
    write_state(store, end_of(make_store(store, records, segment_size)))


def rows(store: Path, **texts: Any) -> list[dict[str, Any]]:
    """The rows of the view records."""
    opts = options(store, **texts)
    plan = open_log(opts)
    reader = view_reader(opts)
    splits = plan.splits(plan.start(), plan.stop())
    batches = [batch for split in splits for batch in reader.read(split)]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(reader.schema)
    return [row for batch in batches for row in batch.to_pylist()]


def test_bodies_are_decoded_and_bad_ones_have_a_reason(tmp_path: Path) -> None:
    bad = replace(order(2), body=b"{")
    records = [order(0), compressed(order(1)), bad, compressed(order(3), ZSTD), order(4)]
    lay_store(tmp_path, records)
    found = rows(tmp_path, bodyFormat="json", bodySchema="id int, name string")
    assert [row["value"] for row in found] == [None if n == 2 else {"id": n, "name": f"n{n}"} for n in range(5)]
    assert [bool(row["bodyError"]) for row in found] == [False, False, True, False, False]
    assert list(found[0]) == [*(name for name in COLUMNS if name != "body"), "value", "bodyError"]


def test_columns_are_chosen_with_the_decoded_body(tmp_path: Path) -> None:
    lay_store(tmp_path, [compressed(order(1)), order(2)])
    chosen = {"columns": "body,value,keys", "bodyFormat": "text", "decompress": "true"}
    texts = ['{"id": 1, "name": "n1"}', '{"id": 2, "name": "n2"}']
    expected = [{"body": text.encode(), "value": text, "keys": f"k{n}"} for n, text in enumerate(texts, 1)]
    assert rows(tmp_path, **chosen) == expected
    stored = rows(tmp_path, **{**chosen, "decompress": "false"})
    assert [row["value"] for row in stored] == texts
    assert stored[0]["body"] == zlib.compress(texts[0].encode())
    assert rows(tmp_path, columns="keys", bodyFormat="json") == [{"keys": "k1"}, {"keys": "k2"}]


def test_what_cannot_be_decompressed_has_a_reason(tmp_path: Path) -> None:
    bomb = compressed(make_record(0, b" " * 50_000_000))
    broken = replace(compressed(order(1)), body=b"junk")
    cut = compressed(order(2))
    unknown = replace(order(3), sys_flag=COMPRESSED_FLAG | 0x700)
    long = make_record(4, b'"' + b"x" * 3000 + b'"')
    lay_store(tmp_path, [bomb, broken, replace(cut, body=cut.body[:-5]), unknown, long, order(5)], 1 << 20)
    found = rows(tmp_path, bodyFormat="json", bodySchema="id int", bodyMaxBytes="2000", columns="value,bodyError")
    assert [row["value"] for row in found] == [None] * 5 + [{"id": 5}]
    told = ["longer than 2000 bytes (bodyMaxBytes)", "not compressed with zlib", "has no end", "unknown way (0x700)"]
    for row, text in zip(found, [*told, "longer than 2000 bytes (bodyMaxBytes)"], strict=False):
        assert text in row["bodyError"]


def lay(records: Sequence[Record]) -> Records:
    content = b"".join(encode_record(record) for record in records)
    buffer = np.frombuffer(content, np.uint8)
    return lay_out(buffer, 0, np.array(hop(buffer, 0, len(buffer))[0], np.int64))


def test_small_messages_with_large_contents_come_in_small_pieces() -> None:
    """One batch of the log may hold a thousand bombs of 4 MiB."""
    offsets = 0
    some = []
    for number in range(40):
        record = replace(compressed(make_record(number, b" " * 100_000)), physical_offset=offsets)
        some.append(record)
        offsets += record.total_size
    found = list(pieces(lay(some), 1 << 20, 300_000))
    assert [len(piece.records) for piece in found] == [3] * 13 + [1]
    assert all(len(piece.contents) == len(piece.reasons) == len(piece.records) for piece in found)
    assert [offset for piece in found for offset in piece.records.physical_offset.tolist()] == [
        record.physical_offset for record in some
    ]


def test_decompressed_bodies_alone_come_in_small_batches_too(tmp_path: Path) -> None:
    lay_store(tmp_path, [compressed(make_record(number, b" " * 100_000)) for number in range(10)], 1 << 20)
    opts = options(tmp_path, columns="body", decompress="true", batchBytes="100k")
    plan = open_log(opts)
    (split,) = plan.splits(plan.start(), plan.stop())
    batches = list(view_reader(opts).read(split))
    assert [batch.num_rows for batch in batches] == [2] * 5
    assert {row["body"] for batch in batches for row in batch.to_pylist()} == {b" " * 100_000}


@pytest.fixture
def by_topic(tmp_path: Path) -> Path:
    """A store with the orders, notes and others of several topics, and their formats in formats.json."""
    topics = ["Orders", "Notes", "Others"]
    records = [order(number, topics[number % 3]) for number in range(9)]
    records[3] = replace(records[3], body=b"{")
    lay_store(tmp_path, records)
    formats = {"Orders": {"format": "json", "schema": "id int"}, "Notes": {"format": "text"}}
    (tmp_path / "formats.json").write_text(json.dumps(formats))
    return tmp_path


def test_each_topic_has_a_schema_of_its_own(by_topic: Path) -> None:
    found = rows(by_topic, bodySchemas=by_topic / "formats.json", columns="topic,value,bodyError")
    for number, row in enumerate(found):
        if row["topic"] == "Others":
            assert (row["value"], row["bodyError"]) == (None, "bodySchemas has nothing for its topic")
        elif number == 3:
            assert row["value"] is None
            assert "not JSON" in row["bodyError"]
        else:
            text = f'{{"id": {number}, "name": "n{number}"}}'
            is_order = row["topic"] == "Orders"
            assert row["value"] == {"Orders": {"id": number} if is_order else None, "Notes": None if is_order else text}
            assert row["bodyError"] is None


def test_one_chosen_topic_has_no_struct_around_it(by_topic: Path) -> None:
    found = rows(by_topic, bodySchemas=by_topic / "formats.json", columns="value", topic="Orders")
    assert found == [{"value": {"id": 0}}, {"value": None}, {"value": {"id": 6}}]
    with pytest.raises(OptionError, match="bodySchemas has nothing for Others"):
        rows(by_topic, bodySchemas=by_topic / "formats.json", topic="Others")


def test_json_without_a_schema_is_inferred_for_its_topic(tmp_path: Path) -> None:
    lay_store(tmp_path, [replace(order(n, "AB"[n % 2]), body=b'{"%c": 1}' % b"ab"[n % 2]) for n in range(6)])
    (tmp_path / "formats.json").write_text('{"A": {"format": "json"}, "B": {"format": "json"}}')
    found = bodies_of(options(tmp_path, bodySchemas=tmp_path / "formats.json"))
    assert found is not None
    assert sql_type(found.type) == "struct<`A`:struct<`a`:bigint>,`B`:struct<`b`:bigint>>"
    alone = bodies_of(options(tmp_path, bodyFormat="json", topic="B"))
    assert alone is not None
    assert sql_type(alone.type) == "struct<`b`:bigint>"


def test_a_sample_has_messages_of_the_first_and_the_last_file(tmp_path: Path) -> None:
    count = 3 * SAMPLE_MESSAGES
    records = [make_record(n, b'{"old":1}' if n < count - SAMPLE_MESSAGES else b'{"new":1}') for n in range(count)]
    lay_store(tmp_path, records, 160_000)
    found = bodies_of(options(tmp_path, bodyFormat="json"))
    assert found is not None
    assert sql_type(found.type) == "struct<`old`:bigint,`new`:bigint>"


def test_a_type_that_is_given_is_not_inferred(tmp_path: Path) -> None:
    """Spark asks for the schema first, and then for the rows, when the log may already hold other bodies."""
    lay_store(tmp_path, [order(1)])
    opts = options(tmp_path, bodyFormat="json")
    given = parse_type("name string, more int")
    reader = view_reader(opts, [("value", given), ("topic", pa.string())])
    plan = open_log(opts)
    (split,) = plan.splits(plan.start(), plan.stop())
    assert [batch.to_pylist() for batch in reader.read(split)] == [
        [{"value": {"name": "n1", "more": None}, "topic": "Orders"}]
    ]
    with pytest.raises(OptionError, match="column value is string, not int"):
        view_reader(options(tmp_path, bodyFormat="text"), [("value", pa.int32())])


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"bodyFormat": "xml"}, "it must be one of json, avro, protobuf, text"),
        ({"bodySchema": "a int"}, "bodyFormat is not given"),
        ({"bodyFormat": "avro"}, "avro needs a schema"),
        ({"bodyFormat": "protobuf", "bodyMessage": "a.B"}, "needs a descriptor file"),
        ({"bodyFormat": "json", "bodyMessage": "a.B"}, "for protobuf, not for json"),
        ({"bodyFormat": "text", "bodySchema": "a int"}, "for json and avro, not for text"),
        ({"bodyFormat": "json", "bodySchema": " "}, "it is empty"),
        (
            {"bodyFormat": "json", "bodySchema": "/no/file"},
            "bodySchema=/no/file: the file cannot be read: No such file",
        ),
        ({"bodySchemas": "/no/file"}, "bodySchemas=/no/file: the file cannot be read"),
        ({"bodyFormat": "json", "bodySchemas": "FILE"}, "give one of them"),
        ({"bodyFormat": "json", "bodyMaxBytes": "0"}, "more than 0"),
        ({"bodyFormat": "json", "view": "stats"}, "for view=records, not for view=stats"),
        ({"columns": "topic,value"}, "the column value needs bodyFormat="),
        ({"bodyFormat": "json"}, "cannot be inferred: none of 1 bodies"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tmp_path: Path, texts: dict[str, str], told: str) -> None:
    lay_store(tmp_path, [make_record(0, b"x")])
    (tmp_path / "formats.json").write_text('{"A": {"format": "text"}}')
    given = {name: text.replace("FILE", str(tmp_path / "formats.json")) for name, text in texts.items()}
    with pytest.raises(OptionError, match=told):
        view_reader(options(tmp_path, **given))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "the file is not JSON"),
        ("[]", "the file is not like"),
        ('{"A": "json"}', "topic A: it needs a format"),
        ('{"A": {"format": "json", "shcema": "a int"}}', "topic A: there is no shcema"),
        ('{"A": {"format": "xml"}}', "topic A: it must be one of"),
    ],
)
def test_a_file_of_schemas_that_cannot_be_used_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "formats.json").write_text(content)
    with pytest.raises(OptionError, match=told):
        options(tmp_path, bodySchemas=tmp_path / "formats.json")


def test_a_schema_may_be_in_a_file(tmp_path: Path) -> None:
    lay_store(tmp_path, [order(1)])
    (tmp_path / "my schema.ddl").write_text("id int\n")
    for text in (str(tmp_path / "my schema.ddl"), (tmp_path / "my schema.ddl").as_uri()):
        assert rows(tmp_path, bodyFormat="json", bodySchema=text, columns="value") == [{"value": {"id": 1}}]
    (tmp_path / "formats.json").write_text('{"Orders": {"format": "avro", "schema": {"type": "string"}}}')
    found = rows(tmp_path, bodySchemas=tmp_path / "formats.json", columns="value,bodyError")
    assert "not Avro" in found[0]["bodyError"]
