"""Avro bodies: what their schema says, or a reason."""

import json
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.bodies.codecs import codec_of, decode_bodies
from rmqha.pipeline.bodyformats import BodyFormat, Format
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.sqltypes import sql_type

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": ["null", "int"]},
        {"name": "name", "type": ["string", "null"]},
        {"name": "sum", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": ["int", "long"]}]},
            },
        },
        {"name": "first", "type": ["null", "Line"]},
        {"name": "m", "type": {"type": "map", "values": {"type": "fixed", "name": "Two", "size": 2}}},
    ],
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encoded(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas={}), value)
    return stream.getvalue()


def decoded(schema: Any, *bodies: bytes | None) -> tuple[list[Any], list[str | None]]:
    """The values and reasons."""
    reasons: list[str | None] = [None] * len(bodies)
    found = decode_bodies(codec_of(BodyFormat(Format.AVRO, json.dumps(schema))), bodies, reasons)
    found.validate(full=True)
    return found.to_pylist(maps_as_pydicts="strict"), reasons


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LINES = st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1)})
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "count": st.none() | st.integers(-(2**31), 2**31 - 1),
        "name": st.none() | TEXTS,
        "sum": st.floats(allow_nan=False),
        "ok": st.booleans(),
        "raw": st.binary(max_size=20),
        "price": st.decimals(Decimal("-999999.99"), Decimal("999999.99"), places=2, allow_nan=False),
        "at": st.datetimes(timezones=st.just(UTC)),
        "day": st.dates(),
        "color": st.sampled_from(["RED", "BLUE"]),
        "lines": st.lists(LINES, max_size=3),
        "first": st.none() | LINES,
        "m": st.dictionaries(TEXTS, st.binary(min_size=2, max_size=2), max_size=3),
    }
)


@given(st.lists(ORDERS, max_size=4))
def test_what_was_encoded_is_decoded(orders: list[dict[str, Any]]) -> None:
    assert decoded(ORDER, *(encoded(ORDER, order) for order in orders)) == (orders, [None] * len(orders))


@given(ORDERS)
def test_an_order_that_is_cut_or_continued_has_a_reason(order: dict[str, Any]) -> None:
    body = encoded(ORDER, order)
    values, reasons = decoded(ORDER, *(body[:size] for size in range(len(body))), body + b"\0", body)
    assert values == [None] * (len(body) + 1) + [order]
    assert None not in reasons[:-1]


def changed(one: tuple[dict[str, Any], int, bytes]) -> bytes:
    """An order with some bytes replaced."""
    body = encoded(ORDER, one[0])
    place = one[1] % len(body)
    return body[:place] + one[2] + body[place + len(one[2]) :]


HOSTILE = st.binary(max_size=40) | st.tuples(ORDERS, st.integers(0), st.binary(max_size=9)).map(changed)


@given(st.lists(HOSTILE, max_size=5))
def test_any_bytes_are_a_value_or_a_reason(bodies: list[bytes]) -> None:
    """A bad body spoils none of the others: each is what it is alone."""
    values, reasons = decoded(ORDER, *bodies)
    for body, value, reason in zip(bodies, values, reasons, strict=True):
        alone = decoded(ORDER, body)
        assert (str(alone[0]), alone[1]) == (str([value]), [reason])  # as texts: a double may be no number
        assert (value is None) == (reason is not None)


def varint(number: int) -> bytes:
    """As Avro writes a long."""
    return encoded("long", number)


@pytest.mark.parametrize(
    ("schema", "body", "told"),
    [
        ("string", b"", "not Avro"),
        ("string", b"\xff" * 50, "not Avro"),
        ("string", varint(2**62) + b"abc", "Expected"),
        ("string", varint(-(2**62)) + b"abc", "Expected"),
        ("string", varint(1) + b"\xff", "0xff"),
        ("int", varint(2**31), "does not fit"),
        ("bytes", varint(3) + b"abcd", "1 bytes follow"),
        (["null", "int"], varint(7), "index out of range"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, varint(7), "index out of range"),
        ({"type": "array", "items": "int"}, varint(2**62) + b"\0\0", "not Avro"),
        ({"type": "array", "items": "int"}, varint(-(2**63)) + b"\0" * 30, "not Avro"),
        ({"type": "map", "values": "int"}, varint(2**62) + b"\0\0", "not Avro"),
        ({"type": "long", "logicalType": "timestamp-millis"}, varint(2**62), "not Avro"),
        ({"type": "int", "logicalType": "date"}, varint(-(2**31)), "not Avro"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, varint(1) + b"\x7f", "more digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, varint(10**6) + b"\x7f" * 10**6, "more digits"),
    ],
)
def test_a_bad_body_has_a_reason(schema: Any, body: bytes, told: str) -> None:
    (value,), (reason,) = decoded(schema, body)
    assert value is None
    assert re.search(told, str(reason))


def test_other_types_than_records_are_possible() -> None:
    assert decoded("string", encoded("string", "a"))[0] == ["a"]
    assert decoded(["null", "long"], encoded(["null", "long"], None), encoded(["null", "long"], 5))[0] == [None, 5]
    numbers = {"type": "array", "items": "int"}
    assert decoded({"type": numbers}, encoded(numbers, [1]))[0] == [[1]]
    fixed = {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 1}
    assert decoded(fixed, encoded(fixed, Decimal("-12.5")))[0] == [Decimal("-12.5")]
    assert decoded(fixed, b"\0\0\0\x05")[0] == [Decimal("0.5")]


def test_logical_types_that_no_column_has_are_what_they_are_stored_as() -> None:
    time = {"type": "int", "logicalType": "time-millis"}
    local = {"type": "long", "logicalType": "local-timestamp-millis"}
    assert decoded(time, varint(1000))[0] == [1000]
    assert decoded(local, varint(1000))[0] == [(EPOCH + timedelta(seconds=1)).replace(tzinfo=None)]
    assert decoded({"type": "string", "logicalType": "uuid"}, encoded("string", "not one"))[0] == ["not one"]
    assert decoded({"type": "int", "logicalType": "date"}, varint(1))[0] == [date(1970, 1, 2)]


def test_a_schema_has_the_type_of_its_column() -> None:
    kind = codec_of(BodyFormat(Format.AVRO, json.dumps(ORDER))).type
    assert sql_type(kind) == (
        "struct<`id`:bigint,`count`:int,`name`:string,`sum`:double,`ok`:boolean,`raw`:binary,`price`:decimal(8,2),"
        "`at`:timestamp,`day`:date,`color`:string,`lines`:array<struct<`n`:bigint>>,`first`:struct<`n`:bigint>,"
        "`m`:map<string,binary>>"
    )
    assert codec_of(BodyFormat(Format.AVRO, '"float"')).type == pa.float32()


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("{", "JSON, and this is not"),
        ("5", "not a schema of Avro"),
        ('"foo"', "no type foo"),
        ('{"type": "map"}', "not a schema of Avro: KeyError: 'values'"),
        ('{"type": "record", "fields": []}', "KeyError: 'name'"),
        ('["int", "string"]', "null and one more type"),
        ("[]", "null and one more type"),
        ('{"type": "array", "items": "null"}', "any number"),
        ('{"type": "array", "items": {"type": "record", "name": "R", "fields": []}}', "any number"),
        ('{"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}', "any number"),
        ('{"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}', "N contains itself"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 39}', "38 digits"),
        ('{"type": "array", "items": ' * 2000 + '"int"' + "}" * 2000, "JSON, and this is not"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        codec_of(BodyFormat(Format.AVRO, schema))
