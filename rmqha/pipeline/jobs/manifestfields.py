"""Reads the fields of manifests. A stranger may have written to the archive's folder, so any value is possible.

All functions raise ValueError, which names the field.
"""

from collections.abc import Mapping, Sequence
from typing import Any

MAX_NUMBER = 2**63 - 1
MAX_SEGMENT_BYTES = 2**31 - 1
MAX_PATH_CHARACTERS = 1024
OWN_FOLDERS = ("_manifest", "_staged")


def field_of(content: Mapping[str, Any], name: str) -> Any:
    """The value of a field that must be there."""
    if name not in content:
        raise ValueError(f"{name} is missing")
    return content[name]


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """The value, which must be an object of JSON."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_shown(value)}, not an object")
    return value


def items(value: Any, what: str) -> Sequence[Any]:
    """The value, which must be a list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is {_shown(value)}, not a list")
    return value


def number(value: Any, what: str, low: int = 0, high: int = MAX_NUMBER) -> int:
    """The value, which must be a whole number from ``low`` to ``high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{what} is {_shown(value)}, not a number from {low} to {high}")
    return value


def number_of(content: Mapping[str, Any], name: str, low: int = 0, high: int = MAX_NUMBER) -> int:
    """A field with such a number."""
    return number(field_of(content, name), name, low, high)


def range_in(start: Any, end: Any, what: str, low: int = 0, high: int = MAX_NUMBER) -> tuple[int, int]:
    """A range of the log, which must lie between two offsets."""
    first = number(start, f"the start of {what}", low, high)
    return first, number(end, f"the end of {what}", first, high)


def text(value: Any, what: str) -> str:
    """The value, which must be a text without control characters."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{what} is {_shown(value)}, not a printable text")
    return value


def path_in_archive(value: Any, what: str) -> str:
    """The path of an archived file, relative to the archive. It must lead to a Parquet file inside of it."""
    path = text(value, what)
    parts = path.split("/")
    is_inside = all(part and not part.startswith(".") for part in parts) and parts[0] not in OWN_FOLDERS
    if not is_inside or not path.endswith(".parquet") or len(path) > MAX_PATH_CHARACTERS:
        raise ValueError(f"{what} is {_shown(value)}, not the path of a Parquet file inside the archive")
    return path


def file_name(value: Any, what: str) -> str:
    """The name of a file, without a folder."""
    name = text(value, what)
    if not name or "/" in name or name in (".", "..") or len(name) > 255:
        raise ValueError(f"{what} is {_shown(value)}, not the name of a file")
    return name


def _shown(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
