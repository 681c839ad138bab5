"""JSON as Java's fastjson 1.2 reads and writes it (spec/remoting.md 3, spec/store.md 13.1).

fastjson writes map keys that are not strings without quotes: ``{0:5,1:7}`` and ``{{"queueId":0}:5}``. Neither is JSON.
In its pretty form a line never starts with an unquoted key, but the closing brace starts a line::

    {
    →"TopicTest@g1":{0:5,1:7
    →}
    }
"""

import gc
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any

import orjson

from rmqha.kit.steps import Steps

MAX_DEPTH = 100
"""The nesting limit of a text that is not strict JSON. orjson limits strict JSON to 1024."""

# No possessive group in <number>: before 3.11.4, Python leaves such a group half matched ("1.5e").
_TOKEN = re.compile(
    r"""[ \t\r\n\f\b]*+(?:
        (?P<sign>[{}\[\],:])
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+')
      | (?P<number>-?[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?)
      | (?P<word>[^\W0-9][\w$]*+ | \$[\w$]*+)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}
_BEYOND_ORJSON = re.compile(r"(?:^|[:,\[\s])(?:[0-9]{20}|-[0-9]{19})")
"""orjson turns integers beyond 64 bits into floats. Such digits inside a string, as in Go's client ids, are not a
number.
"""
MAX_BYTES_SLOWLY = 16 * 1024
"""The limit for a request that is not strict JSON: the slow reader takes about 1.5 µs a byte."""
MAX_OBJECTS = 32 * 1024
"""The limit for a request: several megabytes of the JSON that clients really send."""
_DIGITS_AS_ZEROS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_MANY_DIGITS = b"0" * 19
ROWS_AT_ONCE = 256
"""Rows of a table that are read without a pause."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = dict(zip("\"'\\/btnvfr01234567", "\"'\\/\b\t\n\v\f\r\0\1\2\3\4\5\6\7", strict=True))
_SURROGATE = re.compile("[\ud800-\udfff]")

_LINE, _TAB = "\n\t", "\t"
_TO_ESCAPE = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class ObjectKey(str):
    """An object that is the key of a map, as its text. It is written without quotes."""

    __slots__ = ()


class Verbatim(dict[Any, Any]):
    """An object that is written with its null values. Of other objects they are left out, as Java does."""

    __slots__ = ()


class FastjsonError(ValueError):
    """The text is not JSON that fastjson writes. ``position`` counts its characters (its bytes, if it is not UTF-8)."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} at position {position}")
        self.position = position


def loads_request(text: bytes) -> Any:
    """Like ``loads_lenient``, for a client's request: at most ``MAX_BYTES_SLOWLY`` bytes if it is not strict JSON.

    A text with more than ``MAX_OBJECTS`` objects and arrays is refused too.
    """
    if text.count(b"{") + text.count(b"[") > MAX_OBJECTS:
        raise FastjsonError(f"more than {MAX_OBJECTS} objects and arrays", 0)
    return loads_lenient(text, MAX_BYTES_SLOWLY)


def loads_lenient(text: str | bytes, most_slowly: int | None = None) -> Any:
    """Parse JSON, and what fastjson writes and accepts beyond JSON.

    The extensions are: integer keys without quotes, which become ints (quoted ones stay strings); names without quotes
    as keys, also ``true``; objects as keys, which become their text; strings in single quotes; control characters in
    strings; a comma before the end. If a key occurs twice, the last value wins.

    A text longer than ``most_slowly`` that is not strict JSON is refused. Raises FastjsonError.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FastjsonError("not UTF-8", error.start) from error
    if not _may_have_large_numbers(text) or _BEYOND_ORJSON.search(text) is None:
        try:
            return _loads_strict(text)
        except orjson.JSONDecodeError as error:
            problem, position = error.msg, error.pos
    else:
        problem, position = "a number of more than 64 bits", 0
    if most_slowly is not None and len(text) > most_slowly:
        raise FastjsonError(f"more than {most_slowly} characters, and not strict JSON ({problem})", position)
    return _Reader(text).whole_text()


def _may_have_large_numbers(text: str) -> bool:
    """A quick check that takes a thirtieth of the time of the pattern."""
    return _MANY_DIGITS in text.encode("utf-8", "replace").translate(_DIGITS_AS_ZEROS)


def _loads_strict(text: str) -> Any:
    """Parse without garbage collection: the new objects contain no garbage, and looking for it takes longer than
    parsing.
    """
    looks = len(text) > ROWS_AT_ONCE and gc.isenabled()
    if looks:
        gc.disable()
    try:
        return orjson.loads(text)
    finally:
        if looks:
            gc.enable()


_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
MAX_ROW_DEPTH = 16


def _object_pattern(depth: int) -> bytes:
    inside = rb"[^{}\"]++|" + _TEXT
    pattern = rb"\{(?:" + inside + rb")*+\}"
    for _ in range(depth):
        pattern = rb"\{(?:" + inside + rb"|" + pattern + rb")*+\}"
    return pattern


_ROW = re.compile(rb"\s*+" + _TEXT + rb"\s*+:\s*+" + _object_pattern(MAX_ROW_DEPTH) + rb"\s*+(,?)", re.DOTALL)
"""A row of a table: a name and an object, in which objects may be nested up to MAX_ROW_DEPTH deep."""
MAX_BYTES_AT_ONCE = 64 * 1024
MAX_BYTES_BESIDE_ROWS = 1024 * 1024
"""Of what a table has besides its rows. orjson takes a few milliseconds for it."""


def loads_table_in_steps(text: bytes, table: str, most_rows: int) -> Generator[None, None, tuple[Any, dict[Any, Any]]]:
    """Parse a document in steps: return it, with an empty table of that name, and the rows of the table.

    A large text is parsed row by row, with a step after every few. A small text is parsed at once, and has no separate
    rows. Raises FastjsonError, also if a large text has another shape or more than ``most_rows`` rows.
    """
    found = re.search(rb'"' + re.escape(table.encode()) + rb'"\s*+:\s*+\{', text)
    if len(text) <= MAX_BYTES_AT_ONCE or found is None:
        return loads_lenient(text) if len(text) <= MAX_BYTES_AT_ONCE else _too_long(text, table), {}
    rows: dict[Any, Any] = {}
    start = at = found.end()
    count, more = 0, True
    while more and (row := _ROW.match(text, at)) is not None:
        at, more, count = row.end(), bool(row[1]), count + 1
        if count % ROWS_AT_ONCE == 0 or at - start >= MAX_BYTES_AT_ONCE or not more:
            rows.update(loads_lenient(b"{" + text[start:at].rstrip(b", \t\r\n") + b"}"))
            start = at
            if len(rows) > most_rows:
                raise FastjsonError(f"more than {most_rows} rows in {table}", at)
            yield
    if start != at:
        rows.update(loads_lenient(b"{" + text[start:at].rstrip(b", \t\r\n") + b"}"))
    rest = text[: found.end()] + text[at:]
    if len(rest) > MAX_BYTES_BESIDE_ROWS:
        raise FastjsonError(f"{table} has something other than rows", at)
    return loads_lenient(rest, MAX_BYTES_AT_ONCE), rows


def _too_long(text: bytes, table: str) -> Any:
    raise FastjsonError(f"{len(text)} bytes without a {table}", 0)


class _Reader:
    """A recursive descent parser: one method for each kind of value."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._start = 0  # of the latest token
        self._end = 0

    def whole_text(self) -> Any:
        value = self._value(*self._token(), depth=0)
        kind, token = self._token()
        if kind != "end":
            raise self._unexpected(token, "the end")
        return value

    def _token(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._end)
        if match is None or match.lastgroup is None:
            self._start = len(self._text) - len(self._text[self._end :].lstrip(" \t\r\n\f\b"))
            raise FastjsonError("neither a sign nor a whole string, number or word", self._start)
        self._start, self._end = match.span(match.lastgroup)
        return match.lastgroup, match[match.lastgroup]

    def _value(self, kind: str, token: str, depth: int) -> Any:
        if kind == "number":
            return self._number(token)
        if kind == "string":
            return self._string(token)
        if token == "{":
            return self._object(depth + 1)
        if token == "[":
            return self._array(depth + 1)
        if token in _WORDS:
            return _WORDS[token]
        raise self._unexpected(token, "a value")

    def _object(self, depth: int) -> dict[str | int, Any]:
        self._check_depth(depth)
        content: dict[str | int, Any] = {}
        kind, token = self._token()
        while token != "}":
            key = self._key(kind, token, depth)
            kind, token = self._token()
            if token != ":":
                raise self._unexpected(token, "':'")
            content[key] = self._value(*self._token(), depth)
            kind, token = self._next_item("}")
        return content

    def _array(self, depth: int) -> list[Any]:
        self._check_depth(depth)
        content = []
        kind, token = self._token()
        while token != "]":
            content.append(self._value(kind, token, depth))
            kind, token = self._next_item("]")
        return content

    def _next_item(self, closing: str) -> tuple[str, str]:
        kind, token = self._token()
        if token == ",":
            return self._token()
        if token != closing:
            raise self._unexpected(token, f"',' or {closing!r}")
        return kind, token

    def _key(self, kind: str, token: str, depth: int) -> str | int:
        if kind == "string":
            return self._string(token)
        if kind == "word":
            return token
        if kind == "number" and isinstance(number := self._number(token), int):
            return number
        if token == "{":
            start = self._start
            self._object(depth + 1)
            return self._text[start : self._end]
        raise self._unexpected(token, "a key")

    def _number(self, token: str) -> int | float:
        try:
            if not ("." in token or "e" in token or "E" in token):
                return int(token)
        except ValueError as error:  # more digits than Python converts
            raise FastjsonError("a number too long", self._start) from error
        number = float(token)
        if math.isinf(number):
            raise FastjsonError("a number too large", self._start)
        return number

    def _string(self, token: str) -> str:
        content = token[1:-1]
        if "\\" not in content:
            return content
        content = _ESCAPE.sub(self._unescaped, content)
        if _SURROGATE.search(content) is None:
            return content
        return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")

    def _unescaped(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2]
        if digits:
            return chr(int(digits, 16))
        if match[3] not in _ESCAPED:
            raise FastjsonError(f"unknown escape {match[0]!r}", self._start + 1 + match.start())
        return _ESCAPED[match[3]]

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise FastjsonError(f"nested more than {MAX_DEPTH} deep", self._start)

    def _unexpected(self, token: str, wanted: str) -> FastjsonError:
        return FastjsonError(f"{repr(token[:20]) if token else 'the end'} instead of {wanted}", self._start)


def dumps_compact(value: Any) -> bytes:
    """Format like Java for the network: no spaces, keys of type int or ObjectKey unquoted, entries with the value None
    left out.

    Entries keep their order. fastjson writes the fields of a bean in alphabetical order, so callers must do the same.
    Raises TypeError if a value cannot be written as JSON.
    """
    return _encode(_format(value, None))


def dumps_strict(value: Any) -> bytes:
    """Format as strict JSON: no spaces, int keys quoted. Java reads it equally, and this is many times faster."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a surrogate pair, perhaps
        return dumps_compact(value)


def dumps_pretty(value: Any) -> bytes:
    """Format like Java for files: with tabs and line breaks, but none at the end."""
    return _encode(_format(value, "\n"))


@dataclass(frozen=True, slots=True)
class Rows:
    """A table in a document: its keys, and how each value is written."""

    content: Mapping[Any, Any]
    to_json: Callable[[Any], Any]

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Keys, and values in the form that ``dumps_…`` accepts, created one by one."""
        to_json = self.to_json
        return ((key, to_json(value)) for key, value in self.content.items())


Document = Mapping[str, Any]
"""An object. A large table in it is a ``Rows``."""


def whole(document: Document) -> dict[str, Any]:
    """The document with ordinary dicts instead of ``Rows``."""
    kind = Verbatim if isinstance(document, Verbatim) else dict
    return kind((name, dict(part.items()) if isinstance(part, Rows) else part) for name, part in document.items())


def dumps_pretty_by_rows(document: Document, breathe: Callable[[], object]) -> bytes:
    """Like ``dumps_pretty`` of the whole, but calls ``breathe`` every few rows: for a thread that runs next to the
    reactor's.
    """
    pieces: list[bytes] = []
    rows: list[str] = []
    for row in _pretty_rows(document):
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            pieces.append(_encode("".join(rows)))
            rows.clear()
            breathe()
    pieces.append(_encode("".join(rows)))
    return b"".join(pieces)


def _pretty_rows(document: Document) -> Iterator[str]:
    comma = "{"
    for name, part in document.items():
        yield f"{comma}{_format_key(name, _LINE)}:"
        if isinstance(part, Rows) and part.content:
            inner = "{"
            for key, value in part.items():
                yield f"{inner}{_format_key(key, _LINE + _TAB)}:{_format(value, _LINE + _TAB)}"
                inner = ","
            yield f"{_LINE}}}"
        else:
            yield "{}" if isinstance(part, Rows) else _format(part, _LINE)
        comma = ","
    yield "\n}"


def dumping_strict(document: Document) -> Steps[bytes]:
    """Like ``dumps_strict`` of the whole, but in steps of a few rows: for the reactor's thread.

    The rows are those at the time of the first step.
    """
    pieces: list[bytes] = []
    parts = {
        name: Rows(dict(part.content), part.to_json) if isinstance(part, Rows) else part
        for name, part in document.items()
    }
    for name, part in parts.items():
        pieces.append((b"," if pieces else b"{") + orjson.dumps(name) + b":")
        if not isinstance(part, Rows):
            pieces.append(dumps_strict(part))
            continue
        pieces.append(b"{")
        for number, some in enumerate(_batches(part.items())):
            if number:
                yield
            pieces.append((b"," if number else b"") + dumps_strict(dict(some))[1:-1])
        pieces.append(b"}")
    return b"".join(pieces) + b"}" if pieces else b"{}"


def _batches(items: Iterable[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    iterator = iter(items)
    while some := list(islice(iterator, ROWS_AT_ONCE)):
        yield some


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # half a surrogate pair becomes "?", as in Java


def _format(value: Any, line: str | None) -> str:
    """Format a value. ``line`` is a line break with the indentation of the surrounding lines; None means the compact
    form.
    """
    if isinstance(value, str):
        return _quote(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _format_double(value)
    if isinstance(value, Mapping):
        return _format_map(value, line)
    if isinstance(value, list | tuple):
        return _format_list(value, line)
    raise TypeError(f"{value!r} cannot be written as JSON")


def _format_map(content: Mapping[Any, Any], line: str | None) -> str:
    if not content:
        return "{}"
    inner = None if line is None else line + "\t"
    keeps_null = isinstance(content, Verbatim)
    entries = (
        f"{_format_key(key, inner)}:{_format(value, inner)}"
        for key, value in content.items()
        if keeps_null or value is not None
    )
    return f"{{{','.join(entries)}{line or ''}}}"


def _format_key(key: Any, line: str | None) -> str:
    if isinstance(key, ObjectKey):
        return str(key)
    if isinstance(key, str):
        return (line or "") + _quote(key)
    if isinstance(key, int):
        return _format(key, None)
    raise TypeError(f"{key!r} is not a valid key")


def _format_list(content: list[Any] | tuple[Any, ...], line: str | None) -> str:
    if not content:
        return "[]"
    inner = "" if line is None else line + "\t"
    items = (inner + _format(value, inner or None) for value in content)
    return f"[{','.join(items)}{line or ''}]"


def _format_double(value: float) -> str:
    """Format like Java's Double.toString. NaN and the infinities become null, as in fastjson."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{mantissa[0]}.{mantissa[1:] or '0'}E{len(digits) - 1 + int(exponent)}"


def _quote(text: str) -> str:
    if _TO_ESCAPE.search(text) is None:
        return f'"{text}"'
    return f'"{_TO_ESCAPE.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}"
