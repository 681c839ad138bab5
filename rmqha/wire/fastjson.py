"""JSON as Java's fastjson 1.2 reads and writes it (spec/remoting.md 3, spec/store.md 13.1).

It writes map keys that are not strings bare: ``{0:5,1:7}`` and ``{{"queueId":0}:5}``. Neither is JSON. In its pretty
form a bare key does not begin a line, and the closing brace does::

    {
    →"TopicTest@g1":{0:5,1:7
    →}
    }
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

MAX_DEPTH = 100
"""How deep a text that is not strict JSON may nest; a strict one may as deep as orjson goes (1024)."""

_TOKEN = re.compile(
    r"""[ \t\r\n\f\b]*+(?:
        (?P<sign>[{}\[\],:])
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+')
      | (?P<number>-?[0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?[0-9]++)?+)
      | (?P<word>[^\W0-9][\w$]*+ | \$[\w$]*+)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}
_BEYOND_ORJSON = re.compile("[0-9]{19}")
"""It makes floats of integers beyond 64 bits."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = dict(zip("\"'\\/btnvfr01234567", "\"'\\/\b\t\n\v\f\r\0\1\2\3\4\5\6\7", strict=True))
_SURROGATE = re.compile("[\ud800-\udfff]")

_TO_ESCAPE = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class ObjectKey(str):
    """An object that is a map's key, as its text: it is written without quotes."""

    __slots__ = ()


class FastjsonError(ValueError):
    """The text is none that fastjson writes; ``position`` counts its characters (bytes if they are no UTF-8)."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} at position {position}")
        self.position = position


def loads_lenient(text: str | bytes) -> Any:
    """What the text says, be it JSON or what fastjson writes, and accepts, beyond it.

    That is: bare integer keys, which become ints (quoted ones stay strings); bare names as keys, also ``true``; objects
    as keys, which become their text; single-quoted strings; control characters in strings; a comma before the end.
    Of equal keys the last wins. Raises FastjsonError.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FastjsonError("no UTF-8", error.start) from error
    if _BEYOND_ORJSON.search(text) is None:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    return _Reader(text).whole_text()


class _Reader:
    """A recursive descent through the text: one method for each thing that can stand somewhere."""

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
    """As Java sends it: no blanks, keys of type int or ObjectKey bare, entries whose value is None left out.

    Entries keep their order: who writes a bean gives its fields in alphabetical order, as fastjson does. Raises
    TypeError for what has no place in JSON.
    """
    return _encode(_format(value, None))


def dumps_strict(value: Any) -> bytes:
    """As JSON has it: no blanks, and keys of type int quoted. Java reads the same, and this is many times faster."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a surrogate pair, perhaps
        return dumps_compact(value)


def dumps_pretty(value: Any) -> bytes:
    """The same as Java writes it to files: with tabs and line breaks, none at the end."""
    return _encode(_format(value, "\n"))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # half a surrogate pair becomes "?", as in Java


def _format(value: Any, line: str | None) -> str:
    """``line`` is a line break and the indentation of the lines around; None for the compact form."""
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
    raise TypeError(f"{value!r} has no place in JSON")


def _format_map(content: Mapping[Any, Any], line: str | None) -> str:
    if not content:
        return "{}"
    inner = None if line is None else line + "\t"
    entries = (
        f"{_format_key(key, inner)}:{_format(value, inner)}" for key, value in content.items() if value is not None
    )
    return f"{{{','.join(entries)}{line or ''}}}"


def _format_key(key: Any, line: str | None) -> str:
    if isinstance(key, ObjectKey):
        return str(key)
    if isinstance(key, str):
        return (line or "") + _quote(key)
    if isinstance(key, int):
        return _format(key, None)
    raise TypeError(f"{key!r} is no key")


def _format_list(content: list[Any] | tuple[Any, ...], line: str | None) -> str:
    if not content:
        return "[]"
    inner = "" if line is None else line + "\t"
    items = (inner + _format(value, inner or None) for value in content)
    return f"[{','.join(items)}{line or ''}]"


def _format_double(value: float) -> str:
    """As Java's Double.toString, but for NaN and the infinities, which fastjson writes as null."""
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
