"""Which messages a consumer wants: tag expressions such as ``TagA || TagB`` (spec/remoting.md 2.3.2)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

from rmqha.wire.beans import LONG_BITS, java, read_bean, read_integer
from rmqha.wire.javahash import java_hash

TAG = "TAG"
SQL92 = "SQL92"
SUB_ALL = "*"
TAG_SEPARATOR = "||"
JAVA_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
"""What Java's ``String.trim`` takes away."""
USUAL_EXPRESSION_LENGTH = 512
MAX_EXPRESSION_CHARS = 16 * 1024
"""In characters: some thousand tags. Reading one takes 0.5 µs a character."""
INT32_SIGN = 1 << 31
INT32_MASK = (1 << 32) - 1


class SqlExpression(str):
    """An expression over the properties of messages, such as ``a > 5``. Any other text is an expression of tags."""

    __slots__ = ()


def type_of(expression: str) -> str:
    """SQL92 or TAG."""
    return SQL92 if isinstance(expression, SqlExpression) else TAG


def check_expression(sub_string: str) -> None:
    """Raises ValueError for an expression that is too long."""
    if len(sub_string) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"an expression of {len(sub_string)} characters; at most {MAX_EXPRESSION_CHARS} are taken")


def _read_expression(value: Any, _: Any) -> str:
    """It is checked before anybody splits it into tags."""
    expression = str(value or SUB_ALL)
    check_expression(expression)
    return expression


def _read_version(value: Any, _: Any) -> int:
    return read_integer(value or 0, LONG_BITS)


def _read_type(value: Any, _: Any) -> str:
    return str(value or TAG)


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a consumer subscribes to. An expression that is None, empty or ``*`` stands for every message.

    ``codes`` are the hashes of the wanted tags, None for all messages and for an expression that is not of tags.
    ``sub_version`` is the client's time in ms.
    """

    topic: str
    sub_string: str = java(read=_read_expression, default=SUB_ALL)
    sub_version: int = java(read=_read_version, default=0)
    expression_type: str = java(read=_read_type, default=TAG)
    codes: frozenset[int] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", tag_codes(self.sub_string) if self.is_tag_type else None)

    @property
    def expression(self) -> str:
        """The expression, as a ``SqlExpression`` if it is one."""
        return self.sub_string if self.is_tag_type else SqlExpression(self.sub_string)

    @property
    def is_tag_type(self) -> bool:
        """Whether it is an expression of tags."""
        return self.expression_type in ("", TAG)

    @property
    def wanted(self) -> Callable[[int], bool] | None:
        """Whether a message with this tagsCode can be wanted; None if all messages are."""
        return None if self.codes is None else self._is_wanted

    def _is_wanted(self, tags_code: int) -> bool:
        assert self.codes is not None, "else nothing is left to ask"
        return ((tags_code + INT32_SIGN) & INT32_MASK) - INT32_SIGN in self.codes

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From a heartbeat, where any field can be missing. Raises ValueError."""
        return read_bean(cls, content)

    def to_json(self) -> dict[str, Any]:
        """In Java's form and order."""
        names_tags = self.codes is not None
        return {
            "classFilterMode": False,
            "codeSet": sorted(self.codes or ()) if names_tags else [],
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": _tags(self.sub_string) if names_tags else [],
            "topic": self.topic,
        }

    @classmethod
    def from_request(cls, topic: str, sub_string: str, expression_type: str) -> Self:
        """From the fields of a pull. Raises ValueError for an expression that no client could have subscribed to."""
        check_expression(sub_string)
        if expression_type in ("", TAG):
            if sub_string and not any(sub_string.split(TAG_SEPARATOR)):
                raise ValueError(f"{sub_string!r} names no tag")
        elif not sub_string:
            raise ValueError(f"an expression of type {expression_type} is empty")
        return cls(topic, sub_string, expression_type=expression_type)


def tag_codes(sub_string: str) -> frozenset[int] | None:
    """The hashes of the tags that an expression names; None if it stands for all messages."""
    return _usual_tag_codes(sub_string) if len(sub_string) <= USUAL_EXPRESSION_LENGTH else _tag_codes(sub_string)


def _tag_codes(sub_string: str) -> frozenset[int] | None:
    if sub_string in ("", SUB_ALL):
        return None
    return frozenset(java_hash(tag) for tag in _tags(sub_string))


_usual_tag_codes = lru_cache(maxsize=1024)(_tag_codes)


def _tags(sub_string: str) -> list[str]:
    tags = (tag.strip(JAVA_BLANKS) for tag in sub_string.split(TAG_SEPARATOR))
    return [tag for tag in dict.fromkeys(tags) if tag]
