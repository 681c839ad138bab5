"""Requests to sign, and what Java's AclSigner of 4.9.3 makes of them (tests/data/acl_vectors.json)."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import orjson

PATH = Path(__file__).parent.parent / "data" / "acl_vectors.json"
SECRET = "12345678"
CASES: list[dict[str, Any]] = [
    {"fields": fields, "body": b64encode(body).decode(), "secret": secret}
    for fields, body, secret in (
        ({"AccessKey": "RocketMQ"}, b"", SECRET),
        ({"AccessKey": "RocketMQ", "SecurityToken": "a token"}, b"", SECRET),
        ({"AccessKey": "RocketMQ", "topic": "TopicTest", "a": "", "queueId": "3", "Z": "z"}, b"body\0\xff", SECRET),
        ({"AccessKey": "RocketMQ", "Signature": "an older one", "i": "KEYS\x01k\x02TAGS\x01t"}, b"x" * 5000, SECRET),
        ({"AccessKey": "Zürich-Ключ", "topic": "日本", "é": "1", "e": "2", "z": "3"}, "ü".encode(), "geheim-日本語"),
        ({"AccessKey": "RocketMQ", "\U0001f600": "first by UTF-16", "\uffee": "last"}, b"", SECRET),
        ({}, b"only a body", "a secret of more characters than one block of SHA-1 has: " + "s" * 64),
    )
]


def of_java() -> list[dict[str, Any]]:
    """The cases, each with the ``signature`` that Java made."""
    found: list[dict[str, Any]] = orjson.loads(PATH.read_bytes())
    return found
