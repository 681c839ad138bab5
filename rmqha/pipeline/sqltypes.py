"""Types of columns, in Arrow and in Spark SQL: ``id bigint, items array<struct<name: string>>``."""

from functools import cache
from typing import Any

import pyarrow as pa
from lark import Lark, Token, Transformer
from lark.exceptions import LarkError, VisitError

TIMESTAMP = pa.timestamp("us", tz="UTC")
STRING_MAP = pa.map_(pa.string(), pa.string())
LARGEST_PRECISION = 38
NO_FIELDS = "{}"
"""What a string column has for an object whose type has no fields: a struct of Parquet needs one."""
MAX_TYPE_CHARACTERS = 1 << 20

SQL_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
"""The types without parts."""
OTHER_NAMES = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "real": pa.float32(),
    "timestamp_ltz": TIMESTAMP,
}
ARROW_TYPES = {sql: arrow for arrow, sql in SQL_TYPES.items()} | OTHER_NAMES
DECIMALS = ("decimal", "dec", "numeric")

GRAMMAR = r"""
start: arguments
arguments: argument ("," argument)*
argument: type | name ":"? type (NOT NULL)? (COMMENT STRING)?
name: NAME | QUOTED
type: NAME -> simple
    | NAME "(" NUMBER ("," NUMBER)? ")" -> sized
    | NAME "<" arguments? ">" -> nested
NOT.2: "not"i
NULL.2: "null"i
COMMENT.2: "comment"i
NAME: /[^\W\d]\w*/
QUOTED: /`(?:[^`]|``)*`/
STRING: /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"/
NUMBER: /[0-9]{1,3}/
%ignore /\s+/
"""


class TypeProblem(ValueError):
    """A text is not a type that a column can have."""


def list_of(item: pa.DataType) -> pa.DataType:
    """The type of Spark's ``array<item>``."""
    return pa.list_(pa.field("element", item))


def sql_type(kind: pa.DataType) -> str:
    """The type in the syntax of Spark SQL. Raises KeyError if Spark has none."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_type(kind.key_type)},{sql_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{quoted(field.name)}:{sql_type(field.type)}' for field in kind)}>"
    return SQL_TYPES[kind]


def quoted(name: str) -> str:
    """A name of a column or field in the syntax of Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def same_but_case(kind: pa.DataType, path: str = "") -> tuple[str, str] | None:
    """Two fields of a type whose names differ only in case, as ``items.id`` and ``items.ID``; None if there are none.

    Spark, DuckDB and Delta take such fields for one.
    """
    if pa.types.is_list(kind):
        return same_but_case(kind.value_type, path)
    if pa.types.is_map(kind):
        return same_but_case(kind.key_type, path) or same_but_case(kind.item_type, path)
    if not pa.types.is_struct(kind):
        return None
    known: dict[str, str] = {}
    for field in kind:
        name = path + field.name
        other = known.setdefault(field.name.lower(), name)
        if other != name:
            return other, name
        found = same_but_case(field.type, f"{name}.")
        if found is not None:
            return found
    return None


def parse_type(text: str) -> pa.DataType:
    """The Arrow type of a Spark SQL type, or of columns: ``a int, b string`` is a struct. All may be null.

    Raises TypeProblem.
    """
    if len(text) > MAX_TYPE_CHARACTERS:
        raise TypeProblem("it is too long")
    try:
        arguments = _Types().transform(_parser().parse(text))
    except VisitError as error:
        raise TypeProblem(str(error.orig_exc)) from error
    except LarkError as error:
        place = getattr(error, "column", None)
        where = f"column {place}" if isinstance(place, int) and place > 0 else "its end"
        raise TypeProblem(
            f"it is not a type of Spark SQL, such as 'id bigint, name string' (see {where}); types are "
            f"{', '.join(SQL_TYPES.values())}, decimal(10,2), array<…>, map<…,…> and struct<name: …>"
        ) from error
    except RecursionError as error:
        raise TypeProblem("its parts are nested too deeply") from error
    kind: pa.DataType = arguments[0][1] if len(arguments) == 1 and arguments[0][0] is None else _struct(arguments)
    return kind


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr")


Argument = tuple[str | None, pa.DataType]


def _struct(arguments: list[Argument]) -> pa.DataType:
    names = [name for name, _ in arguments]
    unnamed = next((kind for name, kind in arguments if name is None), None)
    if unnamed is not None:
        raise TypeProblem(f"a field has the type {sql_type(unnamed)}, but no name")
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise TypeProblem(f"two fields have the name {double}")
    return pa.struct([pa.field(name, kind) for name, kind in arguments])


class _Types(Transformer[Token, list[Argument]]):
    """Makes types from what the parser has found."""

    def start(self, children: list[Any]) -> list[Argument]:
        found: list[Argument] = children[0]
        return found

    def arguments(self, children: list[Any]) -> list[Argument]:
        return children

    def argument(self, children: list[Any]) -> Argument:
        return (None, children[0]) if len(children) == 1 else (children[0], children[1])

    def name(self, children: list[Token]) -> str:
        text = str(children[0])
        return text[1:-1].replace("``", "`") if children[0].type == "QUOTED" else text

    def simple(self, children: list[Token]) -> pa.DataType:
        name = str(children[0]).lower()
        if name in DECIMALS:
            return pa.decimal128(10, 0)
        try:
            return ARROW_TYPES[name]
        except KeyError:
            raise TypeProblem(f"there is no type {children[0]}: there are {', '.join(SQL_TYPES.values())}") from None

    def sized(self, children: list[Token]) -> pa.DataType:
        name, precision, scale = str(children[0]).lower(), int(children[1]), int(children[2]) if children[2:] else 0
        if name not in DECIMALS:
            raise TypeProblem(f"only decimal takes numbers, not {children[0]}")
        if not 1 <= precision <= LARGEST_PRECISION or scale > precision:
            raise TypeProblem(f"decimal({precision},{scale}) needs 1 to {LARGEST_PRECISION} digits, its scale included")
        return pa.decimal128(precision, scale)

    def nested(self, children: list[Any]) -> pa.DataType:
        name, arguments = str(children[0]).lower(), children[1] if children[1:] else []
        if name == "struct":
            return _struct(arguments)
        kinds = [kind for field, kind in arguments if field is None]
        if len(kinds) == len(arguments):
            if name == "array" and len(kinds) == 1:
                return list_of(kinds[0])
            if name == "map" and len(kinds) == 2:
                return pa.map_(*kinds)
        raise TypeProblem(f"{children[0]}<…> is not array<type>, map<type, type> or struct<name: type, …>")
