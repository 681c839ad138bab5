"""Decodes Avro bodies with fastavro: one datum without a header, as the schema of its writer describes it.

Logical types that a column can have are decimal, date, timestamps and local timestamps; uuid is a string, and others
are what they are stored as. A record without fields is the string ``{}``. A union may have null and one more type, or
two kinds of numbers.
"""

from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import orjson
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from rmqha.pipeline.bodies.walking import Change, walker
from rmqha.pipeline.errors import BodyError, OptionError, one_line
from rmqha.pipeline.sqltypes import LARGEST_PRECISION, NO_FIELDS, TIMESTAMP, list_of

PRIMITIVES = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
TIMES = {
    "date": ("int", pa.date32()),
    "timestamp-millis": ("long", TIMESTAMP),
    "timestamp-micros": ("long", TIMESTAMP),
    "local-timestamp-millis": ("long", pa.timestamp("us")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
}
"""Logical types that fastavro decodes, with what they are stored as."""
NUMBERS = [({"int", "long"}, pa.int64()), ({"float", "double"}, pa.float64())]
NOT_A_SCHEMA = (SchemaParseException, UnknownType, TypeError, KeyError, AttributeError, ValueError)
MAX_DECIMAL_BYTES = 64
"""More than 38 digits take: others may write leading zeros. Longer numbers would take long to convert."""


class AvroCodec:
    """Bodies of Avro, as values of the Arrow type of their schema."""

    def __init__(self, schema: str) -> None:
        """Raises OptionError if it is not a schema, or no column can have its values."""
        try:
            given = orjson.loads(schema)
        except orjson.JSONDecodeError as error:
            raise OptionError(f"bodySchema: a schema of Avro is JSON, and this is not: {error}") from error
        try:
            resolver = _Resolver()
            resolved = resolver.resolve(given)
            self._schema = fastavro.parse_schema(resolved.schema, named_schemas={})
        except OptionError:
            raise
        except (*NOT_A_SCHEMA, RecursionError) as error:
            raise OptionError(f"bodySchema: it is not a schema of Avro: {type(error).__name__}: {error}") from error
        self.type = resolved.kind
        self._changed = walker(resolved.kind, resolver.changes)

    def parse(self, body: bytes) -> Any:
        """See ``Codec``."""
        stream = BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # fastavro has no error of its own: bad bytes raise EOFError, IndexError and others
            text = one_line(error) or "it ends too early"
            raise BodyError(f"it is not Avro of the schema: {text}") from error
        left = len(body) - stream.tell()
        if left:
            raise BodyError(f"it is not Avro of the schema: {left} bytes follow its value")
        return self._changed(value)


class _Type(NamedTuple):
    """A resolved schema, and the Arrow type of its values. Empty values take no bytes at all."""

    schema: Any
    kind: pa.DataType
    is_empty: bool = False


class _Resolver:
    """Resolves schemas: their logical types are then only those that fastavro decodes safely. Raises OptionError."""

    def __init__(self) -> None:
        self.changes: dict[pa.DataType, Change] = {}
        self._named: dict[str, _Type | None] = {}

    def resolve(self, given: Any, namespace: str = "") -> _Type:
        if isinstance(given, str):
            return self._by_name(given, namespace)
        if isinstance(given, list):
            return self._union([self.resolve(branch, namespace) for branch in given])
        kind = given["type"]
        if not isinstance(kind, str):
            return self.resolve(kind, namespace)
        if kind in ("record", "enum", "fixed"):
            return self._define(kind, given, namespace)
        if kind == "array":
            items = self.resolve(given["items"], namespace)
            if items.is_empty:
                raise OptionError(
                    "bodySchema: items of an array that take no bytes cannot be read: a body could claim any number"
                )
            return _Type({"type": "array", "items": items.schema}, list_of(items.kind))
        if kind == "map":
            values = self.resolve(given["values"], namespace)
            return _Type({"type": "map", "values": values.schema}, pa.map_(pa.string(), values.kind))
        return self._logical(given, kind) or self._by_name(kind, namespace)

    def _logical(self, given: dict[str, Any], kind: str) -> _Type | None:
        logical = given.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _Type("bytes", self._decimal(given))
        stored, found = TIMES.get(str(logical), ("", None))
        return None if found is None or stored != kind else _Type({"type": kind, "logicalType": logical}, found)

    def _decimal(self, given: dict[str, Any]) -> pa.DataType:
        precision, scale = given["precision"], given.get("scale", 0)
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= LARGEST_PRECISION):
            raise OptionError(
                f"bodySchema: decimal({precision},{scale}) is not possible: Spark has {LARGEST_PRECISION} digits"
            )
        kind = pa.decimal128(precision, scale)
        self.changes[kind] = partial(_decimal_of, scale, 10**precision)
        return kind

    def _by_name(self, name: str, namespace: str) -> _Type:
        if name in PRIMITIVES:
            return _Type(name, PRIMITIVES[name], is_empty=name == "null")
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise OptionError(f"bodySchema: {full} contains itself, and a column of Spark cannot")
                return found._replace(schema=full)
        raise OptionError(f"bodySchema: there is no type {name}")

    def _define(self, kind: str, given: dict[str, Any], namespace: str) -> _Type:
        full = _full_name(given["name"], given.get("namespace", namespace))
        self._named[full] = None
        found = self._defined(kind, given, full)
        self._named[full] = found
        return found

    def _defined(self, kind: str, given: dict[str, Any], full: str) -> _Type:
        if kind == "enum":
            return _Type({"type": "enum", "name": full, "symbols": given["symbols"]}, pa.string())
        if kind == "fixed":
            column = self._decimal(given) if given.get("logicalType") == "decimal" else pa.binary()
            return _Type({"type": "fixed", "name": full, "size": given["size"]}, column, given["size"] == 0)
        inside = full.rpartition(".")[0]
        fields = [(field["name"], self.resolve(field["type"], inside)) for field in given["fields"]]
        schema = {
            "type": "record",
            "name": full,
            "fields": [{"name": name, "type": one.schema} for name, one in fields],
        }
        column = pa.struct([pa.field(name, one.kind) for name, one in fields])
        if not fields:
            column = pa.string()
            self.changes[column] = _text_of
        return _Type(schema, column, all(one.is_empty for _, one in fields))

    @staticmethod
    def _union(branches: list[_Type]) -> _Type:
        schemas = [branch.schema for branch in branches]
        others = [branch for branch in branches if branch.schema != "null"]
        if len(others) == 1:
            return _Type(schemas, others[0].kind)
        names = {branch.schema for branch in others if isinstance(branch.schema, str)}
        for numbers, kind in NUMBERS:
            if len(names) == len(others) == 2 and names <= numbers:
                return _Type(schemas, kind)
        raise OptionError(f"bodySchema: the union {schemas} is not possible: a column has null and one more type")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _text_of(value: str | dict[str, Any] | None) -> str | None:
    """A string, or that of a record without fields."""
    return NO_FIELDS if isinstance(value, dict) else value


def _decimal_of(scale: int, limit: int, value: bytes | None) -> Decimal | None:
    if value is None:
        return None
    number = int.from_bytes(value, "big", signed=True) if len(value) <= MAX_DECIMAL_BYTES else limit
    if not -limit < number < limit:
        raise BodyError("a decimal has more digits than the schema says")
    return Decimal(number).scaleb(-scale)
