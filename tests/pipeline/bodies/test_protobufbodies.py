"""Protobuf bodies: what their descriptor says, or a reason."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.bodies.codecs import codec_of, decode_bodies
from rmqha.pipeline.bodyformats import BodyFormat, Format
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.sqltypes import sql_type

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def descriptors() -> FileDescriptorSet:
    """What protoc writes for a message Order."""
    found = FileDescriptorSet()
    for known in (timestamp_pb2, wrappers_pb2):
        found.file.add().ParseFromString(known.DESCRIPTOR.serialized_pb)
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    kinds: list[tuple[str, Any, str, bool]] = [
        ("id", Field.TYPE_UINT64, "", False),
        ("name", Field.TYPE_STRING, "", False),
        ("count", Field.TYPE_SINT32, "", False),
        ("size", Field.TYPE_FIXED32, "", False),
        ("sum", Field.TYPE_DOUBLE, "", False),
        ("ok", Field.TYPE_BOOL, "", False),
        ("raw", Field.TYPE_BYTES, "", False),
        ("color", Field.TYPE_ENUM, ".shop.Color", False),
        ("at", Field.TYPE_MESSAGE, ".google.protobuf.Timestamp", False),
        ("limit", Field.TYPE_MESSAGE, ".google.protobuf.Int64Value", False),
        ("tags", Field.TYPE_STRING, "", True),
        ("numbers", Field.TYPE_INT64, "", True),
        ("parent", Field.TYPE_MESSAGE, ".shop.Order", False),
        ("m", Field.TYPE_MESSAGE, ".shop.Order.MEntry", True),
    ]
    for number, (name, kind, type_name, is_repeated) in enumerate(kinds, 1):
        label = Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL
        order.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=label)
    order.oneof_decl.add(name="_note")
    order.field.add(
        name="note", number=20, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL, proto3_optional=True, oneof_index=0
    )
    return found


DESCRIPTORS = descriptors()
ORDER = BodyFormat(Format.PROTOBUF, descriptor=DESCRIPTORS.SerializeToString(), message="shop.Order")


def order_class() -> Any:
    pool = DescriptorPool()
    for file in DESCRIPTORS.file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


Order = order_class()


def encoded(order: dict[str, Any]) -> bytes:
    message = Order(**{name: order[name] for name in ("id", "name", "count", "size", "sum", "ok", "raw", "tags", "m")})
    message.numbers.extend(order["numbers"])
    message.color = {"RED": 0, "BLUE": 1}.get(order["color"], 7)
    if order["at"] is not None:
        message.at.FromDatetime(order["at"])
    if order["limit"] is not None:
        message.limit.value = order["limit"]["value"]
    if order["parent"] is not None:
        message.parent.MergeFromString(order["parent"])
        message.parent.SetInParent()
    if order["note"] is not None:
        message.note = order["note"]
    return bytes(message.SerializeToString())


def decoded(*bodies: bytes | None) -> tuple[list[Any], list[str | None]]:
    """The values and reasons."""
    reasons: list[str | None] = [None] * len(bodies)
    found = decode_bodies(codec_of(ORDER), bodies, reasons)
    found.validate(full=True)
    return found.to_pylist(maps_as_pydicts="strict"), reasons


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**64 - 1),
        "name": TEXTS,
        "count": INT32,
        "size": st.integers(0, 2**32 - 1),
        "sum": st.floats(allow_nan=False),
        "ok": st.booleans(),
        "raw": st.binary(max_size=20),
        "color": st.sampled_from(["RED", "BLUE", "7"]),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "limit": st.none() | st.fixed_dictionaries({"value": INT64}),
        "tags": st.lists(TEXTS, max_size=3),
        "numbers": st.lists(INT64, max_size=3),
        "parent": st.none() | st.builds(lambda number: Order(id=number).SerializeToString(), st.integers(0, 9)),
        "m": st.dictionaries(TEXTS, INT32, max_size=3),
        "note": st.none() | TEXTS,
    }
)


@given(st.lists(ORDERS, max_size=4))
def test_what_was_encoded_is_decoded(orders: list[dict[str, Any]]) -> None:
    values, reasons = decoded(*(encoded(order) for order in orders))
    assert reasons == [None] * len(orders)
    assert values == [{**order, "id": Decimal(order["id"])} for order in orders]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.tuples(ORDERS, st.integers(0), st.binary(max_size=9)).map(
                lambda one: (body := encoded(one[0]))[: one[1] % (len(body) + 1)] + one[2]
            ),
        ),
        max_size=6,
    )
)
def test_any_bytes_are_a_value_or_a_reason(bodies: list[bytes]) -> None:
    """A bad body spoils none of the others; what Google's parser takes is a value."""
    values, reasons = decoded(*bodies)
    for body, value, reason in zip(bodies, values, reasons, strict=True):
        alone = decoded(body)
        assert (str(alone[0]), alone[1]) == (str([value]), [reason])  # as texts: a double may be no number
        assert (value is None) == (reason is not None)
        message = parsed(body)
        if message is None:
            assert value is None
        elif value is not None:
            assert (value["name"], value["tags"]) == (message.name, list(message.tags))


def parsed(body: bytes) -> Any:
    try:
        return Order.FromString(body)
    except (DecodeError, UnicodeDecodeError, OverflowError):
        return None


def field(number: int, content: bytes) -> bytes:
    """A field of variable length, as Protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def nested(depth: int) -> bytes:
    body = b""
    for _ in range(depth):
        body = field(13, body)
    return body


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xff" * 100, "not Protobuf"),
        (b"\x08" + b"\x80" * 100 + b"\x01", "not Protobuf"),
        (b"\x08" + b"\xff" * 1_000_000, "not Protobuf"),
        (varint(2 << 3 | 2) + varint(2**40) + b"abc", "not Protobuf"),
        (field(2, b"\xff"), "UTF-8"),
        (field(9, b"\x08" + varint(2**60)), "not Protobuf"),
        (nested(5000), "MaxDepth"),
        (b"\x00\x01", "not Protobuf"),
    ],
)
def test_a_bad_body_has_a_reason(body: bytes, told: str) -> None:
    (value, good), (reason, none) = decoded(body, b"")
    assert (value, none) == (None, None)
    assert good["name"] == ""
    assert re.search(told, str(reason))


def test_unknown_fields_are_ignored() -> None:
    values, reasons = decoded(field(100, b"new") + field(2, b"a"), varint(101 << 3) + varint(5))
    assert ([value["name"] for value in values], reasons) == (["a", ""], [None, None])


def test_a_message_within_itself_is_bytes() -> None:
    (value,), _ = decoded(nested(3))
    assert value["parent"] == nested(2)


def test_a_message_has_the_type_of_its_column() -> None:
    assert sql_type(codec_of(ORDER).type) == (
        "struct<`id`:decimal(20,0),`name`:string,`count`:int,`size`:bigint,`sum`:double,`ok`:boolean,`raw`:binary,"
        "`color`:string,`at`:timestamp,`limit`:struct<`value`:bigint>,`tags`:array<string>,`numbers`:array<bigint>,"
        "`parent`:binary,`m`:map<string,int>,`note`:string>"
    )


def without_imports() -> bytes:
    found = FileDescriptorSet()
    found.file.add().CopyFrom(DESCRIPTORS.file[-1])
    return found.SerializeToString()


@pytest.mark.parametrize(
    ("descriptor", "message", "told"),
    [
        (b"", "shop.Order", "it has no files"),
        (b"text", "shop.Order", "not a file that protoc"),
        (without_imports(), "shop.Order", "--include_imports"),
        (ORDER.descriptor, "shop.Ordr", "no such message; there are .*shop.Order"),
    ],
)
def test_a_descriptor_that_cannot_be_used_is_refused(descriptor: bytes, message: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        codec_of(BodyFormat(Format.PROTOBUF, descriptor=descriptor, message=message))


def test_a_time_is_as_exact_as_a_column() -> None:
    message: Message = Order()
    message.at.seconds, message.at.nanos = -1, 123_456_789  # type: ignore[attr-defined]  # known only here
    (value,), _ = decoded(message.SerializeToString())
    assert value["at"] == EPOCH - timedelta(seconds=1) + timedelta(microseconds=123_456)
