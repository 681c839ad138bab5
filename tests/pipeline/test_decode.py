"""Many records decoded at once are what the record codec makes of each."""

import base64
import zlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, decode, inflate, select
from rmqha.pipeline.options import Selection
from rmqha.pipeline.schema import COLUMNS, PROPERTIES_MAP, records_schema
from rmqha.pipeline.sqltypes import STRING_MAP
from rmqha.wire.columns import Records, hop, lay_out
from rmqha.wire.properties import format_properties
from rmqha.wire.record import COMPRESSED_FLAG, Record, encode_record
from tests import fixtures
from tests.pipeline.stores import plain_records
from tests.strategies import Segment, records, segments

EVERYTHING = records_schema([*COLUMNS, PROPERTIES_MAP])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lay(content: bytes, base: int = 0) -> Records:
    """The messages at the beginning of these bytes."""
    buffer = np.frombuffer(content, np.uint8)
    return lay_out(buffer, base, np.array(hop(buffer, 0, len(buffer))[0], np.int64))


def laid(some: Iterable[Record]) -> tuple[list[Record], bytes]:
    """The records at their places, and their bytes."""
    placed, content = [], b""
    for record in some:
        placed.append(replace(record, physical_offset=len(content)))
        content += encode_record(placed[-1])
    return placed, content


def printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def timestamp(milliseconds: int) -> datetime | None:
    if not MIN_TIMESTAMP_MS <= milliseconds <= MAX_TIMESTAMP_MS:
        return None
    return EPOCH + timedelta(milliseconds=milliseconds)


def as_row(record: Record) -> dict[str, Any]:
    """The row that a record should be, by the record codec."""
    properties = {printable(name): printable(value) for name, value in record.properties.items()}
    exact = record.properties
    return {
        "topic": printable(record.topic),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "totalSize": record.total_size,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "bornTimestamp": timestamp(record.born_timestamp),
        "bornHost": str(record.born_host),
        "storeTimestamp": timestamp(record.store_timestamp),
        "storeHost": str(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "tags": printable(exact["TAGS"]) if "TAGS" in exact else None,
        "keys": printable(exact["KEYS"]) if "KEYS" in exact else None,
        "properties": printable(record.properties_stored),
        "body": record.body,
        "propertiesMap": properties if len(properties) == len(exact) else None,
    }


def assert_rows_equal(batch: pa.RecordBatch, expected: list[dict[str, Any]]) -> None:
    batch.validate(full=True)
    rows = batch.to_pylist()
    for row, wanted in zip(rows, expected, strict=True):
        if wanted["propertiesMap"] is None:  # names that only differ in bytes that are no UTF-8
            row["propertiesMap"] = None
        else:  # the order of properties means nothing (spec/store.md 3.4)
            row["propertiesMap"] = dict(row["propertiesMap"])
        assert row == wanted


@pytest.mark.long
@given(st.lists(records(any_crc=True), max_size=12))
def test_all_columns_are_what_the_record_codec_reads(some: list[Record]) -> None:
    placed, content = laid(some)
    assert_rows_equal(decode(lay(content), EVERYTHING), [as_row(record) for record in placed])


NAMES = st.sampled_from(["TAGS", "KEYS", "K", "a", "", "标签"])
PAIRS = st.tuples(NAMES, st.sampled_from(["\x01", "", "\x01\x01"]), st.sampled_from(["v", "", "w\x01x", "值"]))
PROPERTY_TEXTS = st.builds(
    lambda pairs, end: "\x02".join("".join(pair) for pair in pairs) + end,
    st.lists(PAIRS, max_size=6),
    st.sampled_from(["", "\x02"]),
)


@pytest.mark.long
@given(st.lists(PROPERTY_TEXTS, max_size=8))
def test_properties_of_both_styles_and_of_none_are_read_as_one_by_one(texts: list[str]) -> None:
    placed, content = laid(Record(topic="T", body=b"", properties_stored=text) for text in texts)
    assert_rows_equal(decode(lay(content), EVERYTHING), [as_row(record) for record in placed])


@pytest.mark.long
@given(segments(), st.data())
def test_bytes_that_are_no_record_end_the_messages(segment: Segment, data: st.DataObject) -> None:
    """Whatever byte is changed: what is taken for sound has its own offset and lengths that add up."""
    content = bytearray(segment.content)
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    found = lay(bytes(content), segment.base)
    decode(found, EVERYTHING).validate(full=True)
    ends = [segment.base, *(found.physical_offset + found.ints("totalSize")).tolist()]
    assert found.physical_offset.tolist() == ends[:-1]


@pytest.mark.parametrize("name", fixtures.STORES)
def test_what_java_wrote_is_read_as_java_reads_it(name: str) -> None:
    wanted = fixtures.expected() + (fixtures.expected_clean_extra() if name == "master-clean" else [])
    wanted = [one for one in wanted if "topic" in one]
    batches = [decode(lay(content, base), EVERYTHING) for base, content in fixtures.segments(name).items()]
    rows = pa.Table.from_batches(batches).to_pylist()
    assert len(rows) == len(wanted)
    for row, one in zip(rows, wanted, strict=True):
        assert row["body"] == base64.b64decode(one["body"])
        assert row["properties"] == one["propertiesStored"]
        assert dict(row["propertiesMap"]) == one["properties"]
        for column in ("bornTimestamp", "storeTimestamp"):
            assert row[column] == timestamp(one[column])
        for column in ("topic", "queueId", "queueOffset", "physicalOffset", "totalSize", "flag", "sysFlag", "bodyCRC"):
            assert row[column] == one[column]
        for column in ("bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset"):
            assert row[column] == one[column]


def test_a_map_can_stand_in_the_place_of_the_stored_properties() -> None:
    _, content = laid(plain_records(3))
    column = decode(lay(content), records_schema(["properties"], "map")).column(0)
    assert column.type == STRING_MAP
    assert dict(column[2].as_py())["TAGS"] == "TagC"


def test_no_messages_make_an_empty_batch() -> None:
    assert decode(lay(b""), EVERYTHING).num_rows == 0


def compressed(kind: int, body: bytes) -> Record:
    return Record(topic="T", body=body, sys_flag=COMPRESSED_FLAG | kind)


CONTENT = b"a body worth compressing " * 20


def framed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(CONTENT)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("kind", "body"),
    [(0, zlib.compress(CONTENT)), (0x300, zlib.compress(CONTENT)), (0x100, framed("lz4")), (0x200, framed("zstd"))],
)
def test_compressed_bodies_are_inflated_on_demand(kind: int, body: bytes) -> None:
    schema = records_schema(["body"])
    _, content = laid([Record(topic="T", body=b"plain"), compressed(kind, body)])
    assert decode(lay(content), schema, decompress=True).column(0).to_pylist() == [b"plain", CONTENT]
    assert decode(lay(content), schema).column(0).to_pylist() == [b"plain", body]


@pytest.mark.parametrize("kind", [0, 0x100, 0x200, 0x300, 0x400])
def test_a_body_that_cannot_be_inflated_stays_as_it_is(kind: int) -> None:
    assert inflate(b"not compressed at all", COMPRESSED_FLAG | kind) == b"not compressed at all"


@pytest.mark.long
def test_a_body_that_would_inflate_beyond_all_bounds_stays_as_it_is() -> None:
    bomb = zlib.compress(bytes(65 << 20))
    assert inflate(bomb, COMPRESSED_FLAG) == bomb


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(), list(range(12))),
        (Selection(topics=frozenset({"Other"})), [1, 4, 7, 10]),
        (Selection(topic_pattern="Bench.*"), [0, 2, 3, 5, 6, 8, 9, 11]),
        (Selection(topic_pattern="Bench"), []),
        (Selection(queue_ids=frozenset({0, 3})), [0, 3, 4, 7, 8, 11]),
        (Selection(tags=frozenset({"TagB"})), [1, 5, 9]),
        (Selection(queue_offsets=(1, 2)), [4, 5, 6, 7]),
        (Selection(queue_ids=frozenset({1}), tags=frozenset({"TagB"}), topics=frozenset({"BenchTopic"})), [5, 9]),
    ],
)
def test_only_messages_that_are_wanted_are_decoded(selection: Selection, numbers: list[int]) -> None:
    some = [replace(one, topic="Other") if i % 3 == 1 else one for i, one in enumerate(plain_records(12))]
    _, content = laid(replace(one, properties_stored=format_properties(one.properties)) for one in some)
    chosen = decode(select(lay(content), selection), records_schema(["keys"])).column(0).to_pylist()
    assert chosen == [f"k{number}" for number in numbers]
