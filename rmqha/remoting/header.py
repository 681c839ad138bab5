"""A request's header fields, read one by one; a missing or invalid one refuses the request (spec/remoting.md 1.4)."""

from typing import TypeVar, overload

from rmqha.remoting.protocol import RequestRefused
from rmqha.wire.command import RemotingCommand, ResponseCode

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
USUAL_DIGITS = 18
"""A number with at most 18 digits fits into a Java long."""
assert LONG_MAX >= 10**USUAL_DIGITS
MAX_DIGITS = 100
MAX_SHOWN = 255
"""The maximum number of characters of a client's text in a log line."""

Default = TypeVar("Default")


class Required:
    """Marks a field without a default."""


REQUIRED = Required()


class Header:
    """The ``extFields`` of a request by name. A missing field has its default; without one the request is refused."""

    __slots__ = ("_fields",)

    def __init__(self, request: RemotingCommand) -> None:
        self._fields = request.ext_fields

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: Default) -> str | Default: ...
    def text(self, name: str, default: object = REQUIRED) -> object:
        """The field's text, which may be empty. Raises RequestRefused."""
        found = self._fields.get(name)
        return self._default(name, default) if found is None else found

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: Default) -> int | Default: ...
    def integer(self, name: str, default: object = REQUIRED) -> object:
        """The field as a Java long: decimal digits with an optional sign. Raises RequestRefused."""
        found = self._fields.get(name)
        if found is None:
            return self._default(name, default)
        if len(found) <= USUAL_DIGITS and found.isascii() and found.isdigit():  # nearly always
            return int(found)
        return java_long(name, found)

    @overload
    def boolean(self, name: str) -> bool: ...
    @overload
    def boolean(self, name: str, default: bool) -> bool: ...
    @overload
    def boolean(self, name: str, default: None) -> bool | None: ...
    def boolean(self, name: str, default: object = REQUIRED) -> object:
        """True for ``true`` in upper or lower case, false for anything else, as in Java. Raises RequestRefused."""
        found = self._fields.get(name)
        return self._default(name, default) if found is None else found.lower() == "true"

    @staticmethod
    def _default(name: str, default: object) -> object:
        if isinstance(default, Required):
            raise refused(f"the custom field <{name}> is null")
        return default


def java_long(name: str, text: str) -> int:
    """The number in a field, if Java reads it too; Python alone reads more. Raises RequestRefused."""
    digits = text[1:] if text.startswith(("-", "+")) else text
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS else None
    if number is None or not LONG_MIN <= number <= LONG_MAX:
        raise refused(f"the custom field <{name}> is not a number: {text[:40]!r}")
    return number


def refused(remark: str) -> RequestRefused:
    """The exception for an invalid request: code 1."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, remark)


def shown(text: str) -> str:
    """A client's text for a log line: shortened, and with unprintable characters escaped."""
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return cut if cut.isprintable() else repr(cut)
