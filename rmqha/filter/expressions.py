"""The parts of an SQL92 filter, and what each gives for the properties of a message.

A part is true, false, a value, or None, which is unknown. NOT, AND and OR have three values, as in SQL. A part that
RocketMQ's parser refuses raises ``SqlError``.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from rmqha.filter.values import MAX_DOUBLE, MIN_DOUBLE, Long, NoMatch, Value, is_equal, order

Properties = Mapping[str, str]
MAX_DEPTH = 100
"""Of parts within parts. AND and OR of many parts are one part."""
MAX_LONG, MAX_INTEGER = 2**63 - 1, 2**31 - 1
SHOWN_CHARACTERS = 60


class SqlError(ValueError):
    """An expression cannot be used. The text says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Part(ABC):
    """A part of an expression. ``depth`` counts the parts within it, ``size`` all of them."""

    is_boolean: ClassVar[bool] = False
    depth: int
    size: int

    @abstractmethod
    def value(self, properties: Properties) -> Value:
        """What it gives for a message. Raises NoMatch."""


def _above(*parts: Part) -> tuple[int, int]:
    """Depth and size of a part with these. Raises SqlError."""
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise SqlError(f"the expression is nested more than {MAX_DEPTH} deep")
    return depth, 1 + sum(part.size for part in parts)


@dataclass(frozen=True, slots=True)
class Constant(Part):
    """A constant."""

    constant: Value

    def value(self, _: Properties) -> Value:
        return self.constant


@dataclass(frozen=True, slots=True)
class BooleanConstant(Constant):
    """TRUE, FALSE or NULL, which may stand alone."""

    is_boolean: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Property(Part):
    """A property of the message."""

    name: str

    def value(self, properties: Properties) -> Value:
        return properties.get(self.name)


@dataclass(frozen=True, slots=True)
class HasTrue(Part):
    """A property where a condition should be. A property is a text, so it is false, or unknown if it is missing."""

    is_boolean: ClassVar[bool] = True
    name: str

    def value(self, properties: Properties) -> Value:
        return None if properties.get(self.name) is None else False


@dataclass(frozen=True, slots=True)
class Negation(Part):
    """``-x``: unknown unless x is a number."""

    part: Part

    def value(self, properties: Properties) -> Value:
        found = self.part.value(properties)
        if found is None or isinstance(found, bool | str):
            return None
        return Long(-found) if isinstance(found, Long) else -found


@dataclass(frozen=True, slots=True)
class Not(Part):
    """``NOT x``."""

    is_boolean: ClassVar[bool] = True
    part: Part

    def value(self, properties: Properties) -> Value:
        found = self.part.value(properties)
        return None if found is None else not found


@dataclass(frozen=True, slots=True)
class Junction(Part):
    """``x AND y AND …`` or ``x OR y OR …``. ``decides`` is what decides it: False decides AND, True decides OR."""

    is_boolean: ClassVar[bool] = True
    parts: tuple[Part, ...]
    decides: bool

    def value(self, properties: Properties) -> Value:
        unknown = False
        for part in self.parts:
            found = part.value(properties)
            if found is self.decides:
                return found
            unknown = unknown or found is None
        return None if unknown else not self.decides


@dataclass(frozen=True, slots=True)
class Equals(Part):
    """``x = y``."""

    is_boolean: ClassVar[bool] = True
    left: Part
    right: Part

    def value(self, properties: Properties) -> Value:
        return is_equal(self.left.value(properties), self.right.value(properties))


@dataclass(frozen=True, slots=True)
class Compares(Part):
    """``x < y`` and the like."""

    is_boolean: ClassVar[bool] = True
    left: Part
    right: Part
    signs: Container[int]

    def value(self, properties: Properties) -> Value:
        found = self.left.value(properties)
        if found is None:
            return None
        compared = order(found, self.right.value(properties))
        return None if compared is None else (compared > 0) - (compared < 0) in self.signs


@dataclass(frozen=True, slots=True)
class Between(Part):
    """``x BETWEEN low AND high``, or with NOT. ``x`` is looked at once."""

    is_boolean: ClassVar[bool] = True
    part: Part
    low: Part
    high: Part
    is_not: bool

    def value(self, properties: Properties) -> Value:
        found = self.part.value(properties)
        above = None if found is None else self._fits(found, self.low.value(properties), 1)
        decides = self.is_not
        if above is decides:
            return above
        below = None if found is None else self._fits(found, self.high.value(properties), -1)
        if below is decides:
            return below
        return None if above is None or below is None else not decides

    def _fits(self, found: Value, limit: Value, sign: int) -> bool | None:
        compared = order(found, limit)
        if compared is None:
            return None
        return compared * sign < 0 if self.is_not else compared * sign >= 0


@dataclass(frozen=True, slots=True)
class IsIn(Part):
    """``property IN ('a', 'b')``, or with NOT."""

    is_boolean: ClassVar[bool] = True
    name: str
    texts: frozenset[str]
    is_not: bool

    def value(self, properties: Properties) -> Value:
        found = properties.get(self.name)
        return None if found is None else (found in self.texts) is not self.is_not


class TextTest(Enum):
    """The words of RocketMQ 5 that test a text for another one."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"

    def holds(self, text: str, part: str) -> bool:
        """Whether the text has the part, at the place that the word names."""
        if self is TextTest.CONTAINS:
            return part in text
        return text.startswith(part) if self is TextTest.STARTSWITH else text.endswith(part)


@dataclass(frozen=True, slots=True)
class HasText(Part):
    """``x CONTAINS 'text'`` and the like, or with NOT. Both are false if x is no text, or if ``text`` is empty."""

    is_boolean: ClassVar[bool] = True
    part: Part
    test: TextTest
    text: str
    is_not: bool

    def value(self, properties: Properties) -> Value:
        found = self.part.value(properties)
        return bool(self.text) and isinstance(found, str) and self.test.holds(found, self.text) is not self.is_not


SIGNS: Mapping[str, Container[int]] = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
"""The signs of a comparison that fit an operator."""
NULL = BooleanConstant(1, 1, None)


def decimal(text: str) -> Constant:
    """A whole number. Raises SqlError."""
    number = int(text.rstrip("lL"))
    if number > MAX_LONG:
        raise SqlError(f"{text} is larger than {MAX_LONG}")
    return Constant(1, 1, number if number <= MAX_INTEGER else Long(number))


def floating(text: str) -> Constant:
    """A number with a point or an exponent. As in RocketMQ, 0.0 is too small. Raises SqlError."""
    number = float(text)
    if not MIN_DOUBLE <= number <= MAX_DOUBLE:
        raise SqlError(f"{text} is not between {MIN_DOUBLE} and {MAX_DOUBLE}")
    return Constant(1, 1, number)


def condition(part: Part) -> Part:
    """The part where a condition must be. Raises SqlError."""
    if part.is_boolean:
        return part
    if isinstance(part, Property):
        return HasTrue(1, 1, part.name)
    raise SqlError(f"{_shown(part)} is not a condition")


def _shown(part: Part) -> str:
    if not isinstance(part, Constant):
        return "a part of the expression"
    text = "NULL" if part.constant is None else str(part.constant)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def junction(parts: list[Part], decides: bool) -> Part:
    """AND or OR of these. Raises SqlError."""
    conditions = tuple(map(condition, parts))
    return Junction(*_above(*conditions), conditions, decides)


def equals(left: Part, right: Part) -> Part:
    """``left = right``. Raises SqlError."""
    for part in (left, right):
        if isinstance(part, Constant) and part.constant is None:
            raise SqlError("nothing equals NULL: use IS NULL")
    if isinstance(left, BooleanConstant) and isinstance(right, Constant) and not right.is_boolean:
        raise SqlError(f"{_shown(left)} cannot be compared with {_shown(right)}")
    return Equals(*_above(left, right), left, right)


def is_null(part: Part) -> Part:
    """``part IS NULL``. Raises SqlError."""
    return Equals(*_above(part), part, NULL)


def negation(part: Part) -> Part:
    """``-part``. Raises SqlError."""
    return Negation(*_above(part), part)


def not_(part: Part) -> Part:
    """``NOT part``. Raises SqlError."""
    found = condition(part)
    return Not(*_above(found), found)


def _check_ordered(part: Part) -> None:
    """Raises SqlError unless < and > can compare it."""
    is_number = isinstance(part, Constant) and isinstance(part.constant, int | float)
    if part.is_boolean or (isinstance(part, Constant) and not is_number):
        raise SqlError(f"{_shown(part)} cannot be compared by <, <=, > or >=, nor by BETWEEN")


def compares(left: Part, symbol: str, right: Part) -> Part:
    """``left < right`` and the like. Raises SqlError."""
    _check_ordered(left)
    _check_ordered(right)
    return Compares(*_above(left, right), left, right, SIGNS[symbol])


def between(part: Part, low: Part, high: Part, is_not: bool) -> Part:
    """``part BETWEEN low AND high``. Raises SqlError."""
    for each in (part, low, high):
        _check_ordered(each)
    upwards = order(high.constant, low.constant) if isinstance(low, Constant) and isinstance(high, Constant) else None
    if not is_not and upwards is not None and upwards < 0:
        raise SqlError(f"BETWEEN {_shown(low)} AND {_shown(high)}: the first must not be larger than the second")
    return Between(*_above(part, low, high), part, low, high, is_not)


def is_in(part: Part, texts: list[str], is_not: bool) -> Part:
    """``part IN (texts)``. Raises SqlError."""
    if not isinstance(part, Property):
        raise SqlError("only a property can be before IN")
    return IsIn(*_above(part), part.name, frozenset(texts), is_not)


def has_text(part: Part, word: str, text: str, is_not: bool) -> Part:
    """``part CONTAINS 'text'`` and the like; ``word`` is one of ``TextTest``. Raises SqlError."""
    return HasText(*_above(part), part, TextTest[word], text, is_not)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A whole expression. ``cost`` is about how many parts are looked at for a message."""

    text: str
    root: Part

    @property
    def cost(self) -> int:
        """How many parts it has."""
        return self.root.size

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is wanted."""
        try:
            return self.root.value(properties) is True
        except NoMatch:
            return False
