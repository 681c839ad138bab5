"""Decodes JSON bodies with msgspec, which checks their types while it parses them (RFC 8259).

A column of strings also takes other values: it then holds their JSON, as with Spark's ``from_json``. Names that the
schema does not have are ignored, and names that a body does not have are null.
"""

import json
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from rmqha.pipeline.bodies.walking import walker
from rmqha.pipeline.errors import BodyError, OptionError
from rmqha.pipeline.sqltypes import TIMESTAMP, TypeProblem, parse_type, sql_type

LARGEST_FLOAT = float(np.finfo(np.float32).max)
PYTHON_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    **{
        getattr(pa, f"int{bits}")(): Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]
        for bits in (8, 16, 32, 64)
    },
    pa.float32(): Annotated[float, msgspec.Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)],
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): date,
    TIMESTAMP: datetime,
    pa.timestamp("us"): Annotated[datetime, msgspec.Meta(tz=False)],
}
"""Types that msgspec knows. Bytes are Base64; times are RFC 3339, and without a zone they are UTC."""
KEY_TYPES = (pa.string(), pa.int32(), pa.int64())
NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


class JsonCodec:
    """Bodies of JSON, as values of an Arrow type."""

    def __init__(self, kind: pa.DataType) -> None:
        """Raises OptionError if JSON has no values of this type."""
        self.type = kind
        self._strict = msgspec.json.Decoder(_python_type(kind, str))
        self._checked = walker(kind, {})
        self._repaired = walker(kind, {pa.string(): _as_text})

    @classmethod
    def of(cls, schema: str | None, kind: pa.DataType | None) -> "JsonCodec":
        """For the type, or else for a schema of Spark SQL. Raises OptionError."""
        if kind is None:
            assert schema is not None, "a schema is given, or was inferred"
            try:
                kind = parse_type(schema)
            except TypeProblem as error:
                raise OptionError(f"bodySchema: {error}") from error
        return cls(kind)

    @cached_property
    def _lenient(self) -> "msgspec.json.Decoder[Any]":
        """Takes any value where the type has a string."""
        return msgspec.json.Decoder(_python_type(self.type, Any))

    def parse(self, body: bytes) -> Any:
        """See ``Codec``."""
        try:
            return self._checked(self._strict.decode(body))
        except msgspec.ValidationError:  # perhaps only because a string has another value
            pass
        except NOT_DECODED as error:
            raise _bad(error) from error
        try:
            return self._repaired(self._lenient.decode(body))
        except NOT_DECODED as error:
            raise _bad(error) from error


def _bad(error: Exception) -> BodyError:
    if isinstance(error, msgspec.ValidationError):
        return BodyError(f"it is not of the schema: {error}")
    if isinstance(error, RecursionError):
        return BodyError("its JSON is nested too deeply")
    return BodyError(f"it is not JSON: {error}")


def _python_type(kind: pa.DataType, text: Any) -> Any:
    """The Python type of values of an Arrow type; ``text`` is that of its strings. Raises OptionError."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise OptionError("bodySchema: a struct needs a field. A string takes objects of any kind, as their JSON")
        return _object_type({field.name: _python_type(field.type, text) | None for field in kind})
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type, text) | None]  # type: ignore[misc]  # its items are known only here
    if pa.types.is_map(kind):
        if kind.key_type not in KEY_TYPES:
            raise OptionError(f"bodySchema: keys of JSON cannot be {sql_type(kind.key_type)}: a map needs string keys")
        key: Any = str if kind.key_type == pa.string() else PYTHON_TYPES[kind.key_type]
        return dict[key, _python_type(kind.item_type, text) | None]  # type: ignore[misc]  # as above
    if pa.types.is_decimal128(kind):
        return Decimal
    return text if kind == pa.string() else PYTHON_TYPES[kind]


def _object_type(fields: dict[str, Any]) -> Any:
    """The type of objects with these fields. Raises OptionError if msgspec would not find one of them.

    msgspec 0.22 finds a name beyond ASCII only if the string knows its own UTF-8, which it does once it was encoded
    (https://github.com/msgspec/msgspec/pull/1126).
    """
    kind = TypedDict("object", fields, total=False)  # type: ignore[misc]  # its fields are known only here
    found = msgspec.json.decode(msgspec.json.encode(dict.fromkeys(fields)), type=kind)
    lost = next((name for name in fields if name not in found), None)
    if lost is not None:
        raise OptionError(f"bodySchema: msgspec {msgspec.__version__} does not find the field {lost}: use another one")
    return kind


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
