"""Attributes of topics and groups: a map of texts that 5.x added (spec/remoting.md 11.2).

We keep them for the broker that will use them. A tool changes them with ``+key=value`` and ``-key``.
"""

from collections.abc import Container, Mapping
from typing import Any

from rmqha.store.metadata import ATTRIBUTES, BATCH_CQ, QUEUE_TYPE, SubscriptionGroupConfig, TopicConfig
from rmqha.wire.fastjson import dumps_strict

NOT_DONE_HERE = {
    QUEUE_TYPE: (BATCH_CQ, "this broker creates no topics with batch consume queues, but serves those of a 5.x master"),
    "cleanup.policy": ("COMPACTION", "this broker does not compact topics"),
}
"""Attribute values that would change what a broker writes, and why we refuse them in a request."""
REFUSED_KEYS = ("@type", "$ref")
"""Keys that fastjson in a Java broker would act on. We keep none that a client sends."""


SIGNED_VERSIONS = range(477, 481)
"""The versions in the headers of 5.3.2, 5.3.3 and the release after them. Their slaves read attributes as changes."""
MESSAGE_TYPES = frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"})


class ReserveTimes(Container[str]):
    """The values of reserve.time."""

    def __contains__(self, value: object) -> bool:
        text = str(value)
        return text == "-1" or (text.isascii() and text.isdecimal() and int(text) < 2**63)


OF_TOPICS_IN_5_3_3: Mapping[str, Container[str]] = {
    QUEUE_TYPE: {BATCH_CQ, "SimpleCQ"},
    "cleanup.policy": {"DELETE", "COMPACTION"},
    "message.type": MESSAGE_TYPES,
    "reserve.time": ReserveTimes(),
}
"""The attributes of topics that 5.3.3 knows, and the values that it takes. It knows none of groups."""


def as_additions(row: Mapping[str, Any], known: Mapping[str, Container[str]] = {}) -> dict[str, Any]:
    """A topic or group in Java's form, as slaves of ``SIGNED_VERSIONS`` read it.

    They take each attribute for a change, ``+key``. At one that they do not know they leave the whole table out.
    """
    found = row.get(ATTRIBUTES)
    if not isinstance(found, Mapping) or not found:
        return dict(row)
    takes = {key: value for key, value in found.items() if isinstance(value, str) and key in known}
    return {**row, ATTRIBUTES: {f"+{key}": value for key, value in takes.items() if value in known[key]}}


def attributes_of(row: TopicConfig | SubscriptionGroupConfig) -> dict[str, str]:
    """The attributes of a topic or group; empty if it has none, or if they are not a map of texts."""
    found = row.unknown.get(ATTRIBUTES)
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, str)}


def parse_changes(text: str) -> dict[str, str]:
    """The changes in ``+key=value,-key``, by signed key. Raises ValueError."""
    changes: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key[:1] not in ("+", "-") or (key[:1] == "+") is not bool(equals):
            raise ValueError(f"{part[:60]!r} is neither +key=value nor -key")
        changes[key] = value
    return changes


def altered(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes after changes, which are values by signed key. Raises ValueError."""
    found = dict(current)
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or not key or "+" in key or "-" in key:
            raise ValueError(f"the attribute {signed[:60]!r} needs a + or - before its name, and none in it")
        if sign == "-":
            if found.pop(key, None) is None:
                raise ValueError(f"there is no attribute {key[:60]!r} to delete")
            continue
        refused_value, reason = NOT_DONE_HERE.get(key, (None, ""))
        if value == refused_value and current.get(key) != value:
            raise ValueError(f"{key}={value} is refused: {reason}")
        found[key] = value
    return found


def refused_key(value: Any) -> str | None:
    """A key in this value that we do not keep; None if there is no such key.

    The value may have a hundred thousand parts, so its JSON is searched, not each part.
    """
    text = dumps_strict(value)
    return next((key for key in REFUSED_KEYS if b'"%s":' % key.encode() in text), None)
