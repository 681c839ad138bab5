"""The JSON of etcd v3's calls: how the client writes and reads it, and what errors mean.

Facts come from etcd 3.5.1's gateway: numbers of 64 bits are texts, bytes are base64, fields that are zero are left
out, and the keepalive of a lease that has ended is an answer without a ``TTL``.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from rmqha.coordination.interface import (
    Compare,
    CompareTarget,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    Delete,
    KeyValue,
    LeaseGone,
    NoCoordinator,
    Put,
)

GRPC_UNKNOWN, GRPC_NOT_FOUND, GRPC_BUSY, GRPC_UNAUTHENTICATED = 2, 5, 8, 16
MOVES_ON = {1, GRPC_UNKNOWN, 4, 10, 13, 14}
"""gRPC's Cancelled, Unknown, DeadlineExceeded, Aborted, Internal and Unavailable: another endpoint may do better."""
NO_LEADER = "etcdserver: no leader"
TOKEN_ERRORS = ("invalid auth token", "revision of auth store is old", "user name is empty")
NO_LOGINS = "authentication is not enabled"


class NothingDone(CoordinatorUnavailable):
    """This endpoint cannot answer, and has certainly done nothing."""


class TokenInvalid(CoordinatorError):
    """The token must be renewed."""


def text64(text: str) -> str:
    """A text as base64 of its UTF-8."""
    return b64encode(text.encode()).decode("ascii")


def range_of(prefix: str) -> dict[str, str]:
    """The fields ``key`` and ``range_end`` that select the keys that start with ``prefix``."""
    start = prefix.encode() or b"\0"
    end = prefix.encode().rstrip(b"\xff")
    end = end[:-1] + bytes([end[-1] + 1]) if end else b"\0"
    return {"key": b64encode(start).decode("ascii"), "range_end": b64encode(end).decode("ascii")}


def key_value_of(found: Mapping[str, Any]) -> KeyValue:
    """Raises KeyError, ValueError, TypeError."""
    return KeyValue(
        b64decode(found["key"], validate=True).decode(),
        b64decode(found.get("value", ""), validate=True),
        int(found.get("create_revision", 0)),
        int(found.get("mod_revision", 0)),
        int(found.get("lease", 0)),
    )


def compare_json(compare: Compare) -> dict[str, str]:
    """A comparison as a transaction has it."""
    fields = {"key": text64(compare.key), "target": compare.target.value, "result": "EQUAL"}
    match compare.target:
        case CompareTarget.VALUE:
            assert isinstance(compare.value, bytes), "a value is bytes"
            return fields | {"value": b64encode(compare.value).decode("ascii")}
        case CompareTarget.CREATE:
            return fields | {"create_revision": str(compare.value)}
        case CompareTarget.MOD:
            return fields | {"mod_revision": str(compare.value)}


def write_json(write: Put | Delete) -> dict[str, Any]:
    """A write as a transaction has it."""
    if isinstance(write, Delete):
        return {"request_delete_range": {"key": text64(write.key)}}
    put = {"key": text64(write.key), "value": b64encode(write.value).decode("ascii"), "lease": str(write.lease)}
    return {"request_put": put}


def error_of(status: int, answer: object, where: str) -> CoordinatorError:
    """What an answer with an error means. ``answer`` is its JSON, or None if it is none."""
    if not isinstance(answer, dict):
        if status >= 500 or status == 429:
            return CoordinatorUnavailable(f"{where} answers with HTTP status {status}.")
        return NoCoordinator(f"{where} is not a coordinator: it answers with HTTP status {status}.")
    code = answer.get("code", answer.get("grpc_code", GRPC_UNKNOWN))
    text = str(answer.get("message") or answer.get("error") or f"HTTP status {status}")[:300]
    told = f"{where} answers: {text}"
    if code == GRPC_UNAUTHENTICATED or any(words in text for words in TOKEN_ERRORS):
        return TokenInvalid(told)
    if code == GRPC_NOT_FOUND and "lease" in text:
        return LeaseGone(told)
    if NO_LEADER in text or (code == GRPC_BUSY and "too many" in text):
        return NothingDone(told)
    return CoordinatorUnavailable(told) if code in MOVES_ON else CoordinatorRefused(told)
