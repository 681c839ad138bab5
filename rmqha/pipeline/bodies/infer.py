"""Infers the type of JSON bodies from a sample, as Spark's JSON source does: columns that do not agree are strings."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from rmqha.pipeline.bodies.jsonbodies import NOT_DECODED
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.sqltypes import LARGEST_PRECISION, list_of

MAX_FIELDS = 1000
"""In one object, or in all bodies together: names may be data, such as ids. A schema, or a map, is better then."""
MAX_DEPTH = 50
UNKNOWN = pa.null()
INTEGERS = (pa.int64(), pa.decimal128(20, 0), pa.decimal128(LARGEST_PRECISION, 0))
"""Each holds all integers of those before it."""
INT64 = range(-(1 << 63), 1 << 63)


def infer_type(bodies: Iterable[bytes]) -> pa.DataType:
    """The type of which these bodies are. Bodies that are not JSON objects are left out.

    Raises OptionError if no body is one, or if their objects have too many names.
    """
    count, kinds = 0, []
    for body in bodies:
        count += 1
        try:
            value = msgspec.json.decode(body)  # orjson makes floating numbers of large integers
        except NOT_DECODED:
            continue
        if isinstance(value, dict) and value:
            kinds.append(_kind_of(value, 0))
    if not kinds:
        reason = f"none of {count} bodies is a JSON object" if count else "there is no message yet"
        raise OptionError(f"bodySchema is not given, and cannot be inferred: {reason}")
    return _known(_merged(kinds))


def _kind_of(value: Any, depth: int) -> pa.DataType:
    if depth > MAX_DEPTH:
        return pa.string()
    match value:
        case None:
            return UNKNOWN
        case bool():
            return pa.bool_()
        case int():
            return _kind_of_integer(value)
        case float():
            return pa.float64()
        case list():
            return list_of(_merged([UNKNOWN, *(_kind_of(item, depth + 1) for item in value)]))
        case dict():
            return _struct({name: _kind_of(item, depth + 1) for name, item in value.items()})
    return pa.string()


def _kind_of_integer(value: int) -> pa.DataType:
    """No digit is lost: a number with more digits than a decimal has is a string."""
    if value in INT64:
        return INTEGERS[0]
    return next((kind for kind in INTEGERS[1:] if abs(value) < 10**kind.precision), pa.string())


def _struct(fields: dict[str, pa.DataType]) -> pa.DataType:
    if len(fields) > MAX_FIELDS:
        raise OptionError(
            f"bodySchema is not given, and cannot be inferred: objects have more than {MAX_FIELDS} names, which may be "
            "data; a schema may have a map<string, …> there"
        )
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def _merged(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that holds the values of all. Neighbours are merged first: with many names that is much faster."""
    kinds = list(dict.fromkeys(kinds))
    while len(kinds) > 1:
        pairs = zip(kinds[::2], kinds[1::2], strict=False)
        kinds = [*(_common(*pair) for pair in pairs), *kinds[len(kinds) & ~1 :]]
    return kinds[0]


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both."""
    if one == other or other == UNKNOWN:
        return one
    if one == UNKNOWN:
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _common(fields.get(field.name, UNKNOWN), field.type)
        return _struct(fields)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return list_of(_common(one.value_type, other.value_type))
    if one in INTEGERS and other in INTEGERS:
        return max(one, other, key=INTEGERS.index)
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return pa.string()


def _known(kind: pa.DataType) -> pa.DataType:
    """With strings for what no body says: values that were always null, and objects that were always empty."""
    if pa.types.is_struct(kind) and kind.num_fields:
        return _struct({field.name: _known(field.type) for field in kind})
    if pa.types.is_list(kind):
        return list_of(_known(kind.value_type))
    return pa.string() if kind == UNKNOWN or pa.types.is_struct(kind) else kind
