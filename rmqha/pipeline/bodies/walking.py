"""Changes the leaves of decoded values. Values without such leaves are not touched."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa

from rmqha.pipeline.errors import BodyError
from rmqha.pipeline.sqltypes import TIMESTAMP, sql_type

Change = Callable[[Any], Any]


def walker(kind: pa.DataType, changes: Mapping[pa.DataType, Change]) -> Change:
    """Changes values of a type: its leaves by their types, and decimals so that Arrow takes them (it crashes on an
    exponent of a billion).

    The values are dicts for structs and maps, and lists. The result raises BodyError for a decimal or a time that does
    not fit.
    """
    found = _walker(kind, changes)
    return _unchanged if found is None else found


def _unchanged(value: Any) -> Any:
    return value


def _walker(kind: pa.DataType, changes: Mapping[pa.DataType, Change]) -> Change | None:
    if kind in changes:
        return changes[kind]
    if pa.types.is_decimal128(kind):
        return partial(_fitting, kind)
    if kind == TIMESTAMP:
        return _within_years
    if pa.types.is_struct(kind):
        fields = {field.name: change for field in kind if (change := _walker(field.type, changes)) is not None}
        return partial(_of_struct, fields) if fields else None
    if pa.types.is_list(kind):
        item = _walker(kind.value_type, changes)
        return None if item is None else partial(_of_list, item)
    if pa.types.is_map(kind):
        item = _walker(kind.item_type, changes)
        return None if item is None else partial(_of_map, item)
    return None


def _of_struct(changes: dict[str, Change], value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return value | {name: change(value[name]) for name, change in changes.items() if name in value}


def _of_list(change: Change, values: list[Any] | None) -> list[Any] | None:
    return None if values is None else [change(value) for value in values]


def _of_map(change: Change, values: dict[Any, Any] | None) -> dict[Any, Any] | None:
    return None if values is None else {key: change(value) for key, value in values.items()}


def _within_years(value: datetime | None) -> datetime | None:
    """Without a zone a time is UTC. Spark's Python knows the years 1 to 9999 only."""
    if value is None or value.tzinfo is None:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise BodyError(f"the time {value.isoformat()} is not within the years 1 to 9999") from None


def _fitting(kind: pa.DataType, value: Decimal | None) -> Decimal | None:
    if value is None:
        return None
    exactly = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    try:
        found = value.quantize(Decimal(1).scaleb(-kind.scale), context=exactly)
    except (Inexact, InvalidOperation):
        raise BodyError(f"a number does not fit {sql_type(kind)}") from None
    if not found.is_finite():
        raise BodyError(f"a number does not fit {sql_type(kind)}")
    return found
