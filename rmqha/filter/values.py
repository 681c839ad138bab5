"""Values in SQL92 filters, with Java's types, and how RocketMQ's filter compares them.

A property is a text. A constant is a text, a boolean, an Integer, a Long or a Double. None is null. Where RocketMQ's
filter fails with an exception, the message does not match: here that is ``NoMatch``.
"""

import math
import re

INT_BITS, LONG_BITS = 32, 64
MAX_DOUBLE = float.fromhex("0x1.fffffffffffffp+1023")
MIN_DOUBLE = 5e-324
WHOLE = re.compile(r"[+-]?\d+")
LAST_OF_BMP = 0xFFFF
"""Java's ``parseInt`` looks at UTF-16 units. So digits beyond this code point are none."""
JAVA_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
WORDS = re.compile(r"([+-]?)(NaN|Infinity)")
MAX_NUMBER_CHARACTERS = 512
"""Of a text that is read as a number. Java has no limit; Python refuses more than 4300 digits of whole numbers."""


class Long(int):
    """A whole number of Java's type Long. A plain ``int`` is an Integer."""

    __slots__ = ()


Number = bool | int | float
"""What a text is converted to. ``int`` includes Long."""
Value = str | Number | None


class NoMatch(Exception):
    """RocketMQ's filter fails for this message, so it does not match."""


def whole(text: str, bits: int) -> int:
    """A whole number as Java's ``Integer.valueOf`` and ``Long.valueOf`` read it. Raises NoMatch."""
    if len(text) > MAX_NUMBER_CHARACTERS or not WHOLE.fullmatch(text) or ord(max(text)) > LAST_OF_BMP:
        raise NoMatch
    number = int(text)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise NoMatch
    return number


def double(text: str) -> float:
    """A number as Java's ``Double.valueOf`` reads it. Raises NoMatch."""
    text = text.strip(JAVA_BLANKS)
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise NoMatch
    if DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    hexadecimal = HEXADECIMAL.fullmatch(text)
    if hexadecimal:
        try:
            return float.fromhex(hexadecimal[1])
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    word = WORDS.fullmatch(text)
    if word is None:
        raise NoMatch
    return float(text) if word[2] == "NaN" else float(f"{word[1]}inf")


def _compare_doubles(left: float, right: float) -> int:
    """As ``Double.compareTo``: NaN is the largest and equals itself, and -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) > math.copysign(1, right)) - int(
            math.copysign(1, left) < math.copysign(1, right)
        )
    return math.isnan(left) - math.isnan(right)


def _like(text: str, other: Number) -> Number:
    """A text read as a value of the other's type. Raises NoMatch."""
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, Long):
        return Long(whole(text, LONG_BITS))
    return whole(text, INT_BITS) if isinstance(other, int) else double(text)


def compare(left: str | Number, right: str | Number) -> int:
    """Negative if left is less, 0 if they are equal, positive if left is greater, as RocketMQ has it. Raises NoMatch.

    Texts are converted to the type of the other side. A boolean is less than any number, and a number
    is less than any boolean.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = _like(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise NoMatch  # RocketMQ tries to convert the wrong side
        right = _like(right, left)
    if isinstance(left, bool) != isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def is_equal(left: Value, right: Value) -> bool | None:
    """``left = right``. None, which is unknown, if only the left side is null. Raises NoMatch."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0


def order(left: Value, right: Value) -> int | None:
    """``compare`` for <, <=, > and >=: two texts are compared as numbers. None if a side is null. Raises NoMatch."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _compare_doubles(double(left), double(right))
    return compare(left, right)
