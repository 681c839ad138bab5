"""JSON bodies: what their schema says, or a reason."""

import json
import math
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.bodies.codecs import codec_of, decode_bodies
from rmqha.pipeline.bodies.infer import infer_type
from rmqha.pipeline.bodies.jsonbodies import JsonCodec
from rmqha.pipeline.bodyformats import BodyFormat, Format
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.sqltypes import sql_type

ORDER = (
    "id bigint, name string, ok boolean, sum double, items array<struct<n: int, tag: string, `é`: int>>, "
    "m map<string, int>, `日本` string"
)
NOTHING: dict[str, Any] = dict.fromkeys(["id", "name", "ok", "sum", "items", "m", "日本"])


def decoded(schema: str, *bodies: bytes | None) -> tuple[list[Any], list[str | None]]:
    """The values and reasons."""
    reasons: list[str | None] = [None] * len(bodies)
    found = decode_bodies(codec_of(BodyFormat(Format.JSON, schema)), bodies, reasons)
    found.validate(full=True)
    return found.to_pylist(maps_as_pydicts="strict"), reasons


FRESH = """
from rmqha.pipeline.bodies.codecs import codec_of, decode_bodies
from rmqha.pipeline.bodyformats import BodyFormat, Format
from rmqha.pipeline.bodies.infer import infer_type
body = '{"日本":1,"o":{"é":"x"},"l":[{"😀":2}]}'.encode()
for codec in (
    codec_of(BodyFormat(Format.JSON, "`日本` int, o struct<`é`: string>, l array<struct<`😀`: int>>")),
    codec_of(BodyFormat(Format.JSON), infer_type([body])),
):
    print(ascii(decode_bodies(codec, [body], [None]).to_pylist()))
"""


@pytest.mark.process
def test_names_beyond_ascii_are_found_in_a_fresh_process() -> None:
    """What was encoded before in a process helps msgspec to find them."""
    found = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, check=True, text=True).stdout
    assert found.splitlines() == [ascii([{"日本": 1, "o": {"é": "x"}, "l": [{"😀": 2}]}])] * 2


def test_a_library_that_loses_a_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "encode", lambda value: json.dumps(value).encode())
    with pytest.raises(OptionError, match=f"msgspec {msgspec.__version__} does not find the field ð"):
        JsonCodec.of("`ð` int", None)


def texts(most: int = 20) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=most)


INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ORDERS = st.fixed_dictionaries(
    {
        "id": st.none() | INT64,
        "name": st.none() | texts(),
        "ok": st.none() | st.booleans(),
        "sum": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "items": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries({"n": st.none() | INT32, "tag": st.none() | texts(), "é": st.none() | INT32}),
            max_size=3,
        ),
        "m": st.none() | st.dictionaries(texts(), st.none() | INT32, max_size=3),
        "日本": st.none() | texts(),
    }
)


@given(st.lists(ORDERS, max_size=5), st.booleans())
def test_what_was_encoded_is_decoded(orders: list[dict[str, Any]], leaves_out: bool) -> None:
    """Names that are left out are null, and other names do not matter."""
    bodies = []
    for order in orders:
        kept = {name: value for name, value in order.items() if value is not None or not leaves_out}
        bodies.append(json.dumps({**kept, "other": [{"x": 1}]}).encode())
    assert decoded(ORDER, *bodies) == (orders, [None] * len(orders))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda some: (
        st.lists(some, max_size=4) | st.dictionaries(st.sampled_from([*NOTHING, "n", "tag", "é"]) | texts(), some)
    ),
    max_leaves=12,
)
HOSTILE = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.tuples(ORDERS, st.integers(0, 200), st.binary(max_size=4)).map(
        lambda one: (body := json.dumps(one[0]).encode())[: one[1] % (len(body) + 1)] + one[2]
    ),
)


@given(st.lists(HOSTILE, max_size=6))
def test_any_bytes_are_a_value_or_a_reason(bodies: list[bytes]) -> None:
    """A bad body spoils none of the others: each is what it is alone."""
    values, reasons = decoded(ORDER, *bodies)
    for body, value, reason in zip(bodies, values, reasons, strict=True):
        assert decoded(ORDER, body) == ([value], [reason])
        assert (value is None) == (reason is not None)
        if value is not None:
            assert_is_of_the_schema(orjson.loads(body) if is_json(body) else json.loads(body), value)


def is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def assert_is_of_the_schema(given: Any, found: dict[str, Any]) -> None:
    """A second reader of JSON agrees."""
    assert isinstance(given, dict)
    assert found["id"] == given.get("id")
    assert found["ok"] == given.get("ok")
    name = given.get("name")
    assert found["name"] == name if isinstance(name, str) or name is None else is_json(found["name"].encode())
    assert found["m"] == given.get("m")
    assert found["sum"] is None or math.isclose(found["sum"], given["sum"])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{}{}", "trailing characters"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"null", "Expected `object`, got `null`"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"id": NaN}', "not JSON"),
        (b'{"id": 9223372036854775808}', r"<= 9223372036854775807 - at `\$.id`"),
        (b'{"id": ' + b"9" * 100_000 + b"}", r"`\$.id`"),
        (b'{"id": 1.0}', r"Expected `int \| null`, got `float` - at `\$.id`"),
        (b'{"id": "1"}', "got `str`"),
        (b'{"id": true}', "got `bool`"),
        (b'{"sum": 1e999}', "out of range"),
        (b'{"items": [{"n": 2147483648}]}', r"at `\$.items\[0\].n`"),
        (b'{"items": {"n": 1}}', "got `object`"),
        (b'{"items": "abc"}', "got `str`"),
        (b'{"name": "\xff"}', "can't decode byte 0xff"),
        (b'{"name": "\\ud800"}', "not JSON"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"other": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"items": ' + b"[" * 100_000, "Expected `object"),
    ],
)
def test_a_bad_body_has_a_reason(body: bytes, told: str) -> None:
    (first, bad, last), reasons = decoded(ORDER, b'{"id":1}', body, b'{"id":3}')
    assert (first["id"], bad, last["id"]) == (1, None, 3)
    assert reasons[0] is reasons[2] is None
    assert re.search(told, str(reasons[1]))
    assert len(str(reasons[1])) <= 300


def test_a_string_takes_other_values_as_their_json() -> None:
    bodies = [b'{"a": %s, "b": [%s]}' % (value, value) for value in (b"1.50", b"true", b'{"x": ["\xc3\xa4"]}', b"null")]
    values, reasons = decoded("a string, b array<string>", *bodies, b'{"a": 123456789012345678901234567890}')
    assert [value["a"] for value in values] == ["1.5", "true", '{"x":["\xe4"]}', None, "123456789012345678901234567890"]
    assert [value["b"] for value in values[:4]] == [[value["a"]] for value in values[:4]]
    assert reasons == [None] * 5


def test_times_decimals_and_bytes_are_texts() -> None:
    schema = "t timestamp, l timestamp_ntz, d date, p decimal(5,2), b binary, f float"
    good = b'{"t":"2026-01-01T02:00:00+02:00","l":"2026-01-01T00:00:00","d":"2026-01-01","p":1.25,"b":"AP8=","f":1}'
    naive = b'{"t":"2026-01-01 00:00:00","p":"999.99"}'
    values, reasons = decoded(schema, good, naive)
    assert reasons == [None, None]
    time = datetime(2026, 1, 1, tzinfo=UTC)
    expected = {
        "t": time,
        "l": datetime(2026, 1, 1),
        "d": date(2026, 1, 1),
        "p": Decimal("1.25"),
        "b": b"\0\xff",
        "f": 1.0,
    }
    assert values[0] == expected
    assert (values[1]["t"], values[1]["p"]) == (time, Decimal("999.99"))


@pytest.mark.parametrize(
    "body",
    [
        b'{"t":"9999-12-31T23:59:59-14:00"}',
        b'{"t":"0001-01-01T00:00:00+14:00"}',
        b'{"t":"10000-01-01T00:00:00Z"}',
        b'{"t":17}',
        b'{"l":"2026-01-01T00:00:00Z"}',
        b'{"d":"2026-02-30"}',
        b'{"p":1.255}',
        b'{"p":1000}',
        b'{"p":1e999999999}',
        b'{"p":1e-999999999}',
        b'{"p":"NaN"}',
        b'{"p":"sNaN"}',
        b'{"p":"Infinity"}',
        b'{"p":' + b"9" * 1_000_000 + b"}",
        b'{"b":"!"}',
        b'{"f":1e300}',
    ],
)
def test_what_a_column_cannot_hold_has_a_reason(body: bytes) -> None:
    """Arrow itself crashes on the exponent of a billion, and makes infinity of 1e300."""
    (value,), (reason,) = decoded("t timestamp, l timestamp_ntz, d date, p decimal(5,2), b binary, f float", body)
    assert value is None
    assert reason is not None


def test_other_types_than_objects_are_possible() -> None:
    assert decoded("array<int>", b"[1,null]", b"{}")[0] == [[1, None], None]
    assert decoded("string", b'"a"', b'{"a":1}', b"null") == (["a", '{"a":1}', None], [None] * 3)
    assert decoded("map<bigint,string>", b'{"1":"a"}', b'{"a":"a"}')[0] == [{1: "a"}, None]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a foo", "no type foo"),
        ("a map<double,int>", "keys of JSON cannot be double"),
        ("a array<struct<>>", "a struct needs a field"),
        ("struct<>", "a struct needs a field"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: str, told: str) -> None:
    with pytest.raises(OptionError, match=f"bodySchema: .*{told}"):
        codec_of(BodyFormat(Format.JSON, schema))


@pytest.mark.parametrize(
    ("bodies", "kind"),
    [
        ([b'{"a":1,"b":"x"}', b'{"b":"y","c":true}', b"no JSON", b"[]"], "struct<`a`:bigint,`b`:string,`c`:boolean>"),
        ([b'{"a":1}', b'{"a":1.5}', b'{"a":null}'], "struct<`a`:double>"),
        ([b'{"a":1}', b'{"a":"x"}'], "struct<`a`:string>"),
        ([b'{"a":{"b":1}}', b'{"a":{"c":[1]}}'], "struct<`a`:struct<`b`:bigint,`c`:array<bigint>>>"),
        ([b'{"a":[]}', b'{"a":[null,{"x":1}]}'], "struct<`a`:array<struct<`x`:bigint>>>"),
        ([b'{"a":{},"b":null,"c":[[]]}'], "struct<`a`:string,`b`:string,`c`:array<array<string>>>"),
        ([b'{"a":18446744073709551615}'], "struct<`a`:decimal(20,0)>"),
        ([b'{"a":1}', b'{"a":-9223372036854775809}'], "struct<`a`:decimal(20,0)>"),
        ([b'{"a":1}', b'{"a":[]}', b'{"a":9223372036854775808}'], "struct<`a`:string>"),
        ([b'{"a":123456789012345678901234567890}', b'{"a":9223372036854775808}'], "struct<`a`:decimal(38,0)>"),
        ([b'{"a":1%s}' % (b"0" * 38)], "struct<`a`:string>"),
        ([b'{"a":9223372036854775808}', b'{"a":1.5}'], "struct<`a`:string>"),
        ([b'{"a":1,"":{"":2}}'], "struct<`a`:bigint,``:struct<``:bigint>>"),
        ([b'{"a":true}', b'{"a":1}'], "struct<`a`:string>"),
    ],
)
def test_a_type_is_inferred_from_bodies(bodies: list[bytes], kind: str) -> None:
    assert sql_type(infer_type(bodies)) == kind


@given(st.lists(ORDERS, min_size=1, max_size=6))
def test_an_inferred_type_takes_the_bodies_it_comes_from(orders: list[dict[str, Any]]) -> None:
    bodies = [orjson.dumps(order) for order in orders]
    reasons: list[str | None] = [None] * len(bodies)
    values = decode_bodies(codec_of(BodyFormat(Format.JSON), infer_type(bodies)), bodies, reasons)
    assert reasons == [None] * len(bodies)
    assert [value["id"] for value in values.to_pylist()] == [order["id"] for order in orders] or all(
        order["id"] is None for order in orders
    )


def test_an_inferred_integer_keeps_its_digits() -> None:
    ids = [1, 9223372036854775807, 9223372036854775808, 18446744073709551615]
    bodies = [b'{"id":%d}' % number for number in ids]
    values, reasons = decoded(sql_type(infer_type(bodies)), *bodies)
    assert ([int(value["id"]) for value in values], reasons) == (ids, [None] * 4)


FINITE = JSON.map(lambda value: json.dumps({"a": value}).encode()).filter(is_json)


@given(st.lists(FINITE, max_size=6))
def test_any_json_can_be_inferred_from(bodies: list[bytes]) -> None:
    if not bodies:
        return
    kind = infer_type(bodies)
    assert pa.types.is_struct(kind)
    codec_of(BodyFormat(Format.JSON), kind)


@pytest.mark.parametrize(
    ("bodies", "told"),
    [
        ([], "there is no message yet"),
        ([b"x", b"1", b"{}"], "none of 3 bodies is a JSON object"),
        ([json.dumps({str(n): n for n in range(1001)}).encode()], "more than 1000 names"),
        ([json.dumps({str(n): n}).encode() for n in range(1001)], "more than 1000 names"),
    ],
)
def test_what_cannot_be_inferred_is_refused(bodies: list[bytes], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        infer_type(bodies)


def test_a_deep_body_is_inferred_as_far_as_a_column_goes() -> None:
    kind = infer_type([b'{"a":' * 500 + b"1" + b"}" * 500])
    assert sql_type(kind).count("struct<") == 51
    (value,), reasons = decoded(sql_type(kind), b'{"a":' * 500 + b"1" + b"}" * 500)
    assert (reasons, value is None) == ([None], False)
