"""Reads Java's beans: cattrs makes dataclasses and named tuples of the dictionaries that ``fastjson`` gives.

The rules are fastjson's. A field that is missing or null has its default. Unknown fields are ignored. A number may be a
text, and so may true and false. An enum is a name or an ordinal; an unknown one is the default. A field has Java's name
for it, in camel case. An int has 32 bits, a ``Long`` 64. ``java`` gives a field another name, or a reader of its own.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_type_hints

from cattrs import ClassValidationError, Converter
from cattrs.cols import namedtuple_dict_structure_factory
from cattrs.gen import make_dict_structure_fn, override

from rmqha.wire.fastjson import Verbatim

Bean = TypeVar("Bean")
Read = Callable[[Any, Any], Any]
"""Makes a value, or a whole bean, of what was read and the type, as cattrs calls it. Raises ValueError."""

INT_BITS, LONG_BITS = 32, 64
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN = -(1 << 63)
Long = Annotated[int, LONG_BITS]
"""An integer of 64 bits. mypy takes it for an int."""
MAX_SHOWN = 60
"""Characters of a wrong value that an error shows."""

_fast, _detailed = Converter(detailed_validation=False), Converter(detailed_validation=True)


def java(name: str | None = None, read: Read | None = None, omit: bool = False, **given: Any) -> Any:
    """A dataclass field with Java's ``name`` for it, if that is not ours in camel case, or with its own reader.

    An omitted field is not read: it keeps its default. ``given`` is for ``field``.
    """
    return field(metadata={"java": name, "read": read, "omit": omit}, **given)


def read_bean(kind: type[Bean], content: Any) -> Bean:
    """Read a bean of this kind. Raises ValueError, which names the first wrong field and what was expected."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{shorten(content)} is not an object")
    if None in content.values():
        content = {name: value for name, value in content.items() if value is not None}
    try:
        bean: Bean = (_fast_readers.get(kind) or _new_reader(kind))(content, kind)
    except (ValueError, KeyError):
        raise ValueError(_explained(kind, content)) from None
    return bean


def _explained(kind: Any, content: Mapping[Any, Any]) -> str:
    """Read the bean once more, slowly, to find out which field is wrong."""
    try:
        _reader(kind, _detailed)(content, kind)
    except ClassValidationError as group:
        error, note = group.group_exceptions()[0][0]
        name = _option(kind, note.name).rename
        return f"{name} is missing" if isinstance(error, KeyError) else f"{name}: {error}"
    raise AssertionError("it was wrong before")


_fast_readers: dict[Any, Read] = {}


def _new_reader(kind: Any) -> Read:
    reader = _fast_readers[kind] = _reader(kind, _fast)
    return reader


@cache
def _reader(kind: Any, converter: Converter) -> Read:
    options: dict[str, Any] = {name: _option(kind, name) for name in _names(kind)}
    if issubclass(kind, tuple):
        return namedtuple_dict_structure_factory(kind, converter, "from_converter", False, True, **options)
    return make_dict_structure_fn(kind, converter, **options)


def _names(kind: Any) -> list[str]:
    return list(kind._fields) if issubclass(kind, tuple) else [each.name for each in fields(kind) if each.init]


@cache
def _option(kind: Any, name: str) -> Any:
    """How cattrs reads a field: its name in the bean, and what reads its value."""
    if issubclass(kind, tuple):
        known: Mapping[str, Any] = {}
        default = kind._field_defaults.get(name)
    else:
        (described,) = (each for each in fields(kind) if each.name == name)
        known, default = described.metadata, described.default
    if known.get("omit"):
        return override(omit=True)
    read = known.get("read") or _read_of(get_type_hints(kind, include_extras=True)[name], default)
    return override(rename=known.get("java") or camel_case(name), struct_hook=read)


def _read_of(hint: Any, default: Any) -> Read:
    """How a value of this type is read."""
    return partial(_enum_or_default, default) if isinstance(default, Enum) else READERS[hint]


def camel_case(name: str) -> str:
    """Java's name for a field of ours."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


MAX_UNKNOWN_DEPTH = 64
"""How deep the value of an unknown field may be nested. All that is kept must be written again."""


@cache
def field_names(kind: Any) -> frozenset[str]:
    """Java's names of the fields that ``read_bean`` reads for this kind."""
    options = [_option(kind, name) for name in _names(kind)]
    return frozenset(option.rename for option in options if not option.omit)


def unknown_fields(known: frozenset[str], content: Any) -> dict[Any, Any]:
    """The fields of a bean that have none of these names, as they are: null stays null.

    Raises ValueError if one is nested more than MAX_UNKNOWN_DEPTH deep.
    """
    if not isinstance(content, Mapping) or content.keys() <= known:
        return {}
    return {name: _verbatim(name, value) for name, value in content.items() if name not in known}


def _verbatim(name: Any, value: Any, depth: int = 1) -> Any:
    """A copy of the value that is written with its null values."""
    if not isinstance(value, dict | list):
        return value
    if depth > MAX_UNKNOWN_DEPTH:
        raise ValueError(f"{shorten(name)} is nested more than {MAX_UNKNOWN_DEPTH} deep")
    if isinstance(value, list):
        return [_verbatim(name, part, depth + 1) for part in value]
    return Verbatim({key: _verbatim(name, part, depth + 1) for key, part in value.items()})


def with_unknown(known: dict[str, Any], unknown: Mapping[Any, Any]) -> dict[str, Any]:
    """A bean's fields and its unknown ones together, in alphabetical order, as fastjson writes them."""
    if not unknown:
        return known
    return Verbatim(sorted({**unknown, **known}.items(), key=lambda field: str(field[0])))


def read_integer(value: Any, bits: int = INT_BITS) -> int:
    """A number with this many bits, or a text that is one. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{shorten(value)} is not an integer")
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{shorten(value)} is not an integer") from None
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{shorten(value)} has more than {bits} bits")
    return number


def _int(value: Any, _: Any) -> int:
    return value if type(value) is int and INT_MIN <= value <= INT_MAX else read_integer(value)


def _long(value: Any, _: Any) -> int:
    return read_integer(value, LONG_BITS)


def _boolean(value: Any, _: Any) -> bool:
    """True or false, or a text that says so. Raises ValueError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | str) and value in (0, 1, "true", "false"):
        return value in (1, "true")
    raise ValueError(f"{shorten(value)} is neither true nor false")


def read_text(value: Any, _: Any = None) -> str:
    """A text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{shorten(value)} is not a text")
    return value


def read_name(value: Any, _: Any = None) -> str:
    """A text that is not empty. Raises ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{shorten(value)} is not a name")
    return value


def _enum_or_default(default: Enum, value: Any, _: Any) -> Enum:
    """A member by its name or, as the C++ client has it, its ordinal; else the default."""
    kind = type(default)
    if isinstance(value, int):
        members = list(kind)
        return members[value] if 0 <= value < len(members) else default
    return kind.__members__.get(value, default) if isinstance(value, str) else default


def read_objects(content: Any, name: str, most: int | None = None) -> list[Any]:
    """The values in a list of a bean, which may be missing or null. Raises ValueError, also for more than ``most``."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{shorten(content)} is not an object")
    found = content.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"{name}: {shorten(found)} is not a list")
    if most is not None and len(found) > most:
        raise ValueError(f"{name} has {len(found)} objects, more than {most}")
    return found


def read_mapping(content: Any, name: str) -> Mapping[Any, Any]:
    """A map of a bean, which may be missing or null. Raises ValueError."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{shorten(content)} is not an object")
    found = content.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{name}: {shorten(found)} is not an object")
    return {} if found is None else found


def with_default(content: Any, name: str, value: str) -> Any:
    """The bean with this field, if it has none, as a row of a table has the name under which it stands there."""
    if isinstance(content, Mapping) and content.get(name) is None:
        return {**content, name: value}
    return content


def shorten(value: Any) -> str:
    """A value for an error: however large it is, this takes little time."""
    return reprlib.repr(value)[:MAX_SHOWN]


READERS: dict[Any, Read] = {
    int: _int,
    Long: _long,
    bool: _boolean,
    str: read_text,
}
"""How a field is read, by its type."""
