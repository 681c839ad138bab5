"""The body of REGISTER_BROKER, in its three forms (spec/remoting.md 2.22)."""

import zlib
from struct import Struct
from struct import error as StructError
from typing import Any

from rmqha.store.metadata import DataVersion, TopicConfig, TopicConfigTable, TopicFilterType
from rmqha.wire.fastjson import dumps_compact, loads_lenient

FIRST_VERSION_WITH_BODY = 37
"""Older brokers, and those that tell no version, send their topics alone."""
LARGEST_BODY_BYTES = 64 * 1024 * 1024
INT32 = Struct(">i")
CRC_MASK = 0x7FFFFFFF


def encode_body(table: TopicConfigTable) -> bytes:
    """A broker's topics, not compressed."""
    return dumps_compact({"filterServerList": [], "topicConfigSerializeWrapper": table.to_json()})


def body_crc32(body: bytes) -> int:
    """The header's bodyCrc32."""
    return zlib.crc32(body) & CRC_MASK


def decode_body(body: bytes, compressed: bool, version: int) -> TopicConfigTable:
    """A broker's topics, from a request of this version. Raises ValueError."""
    if not body:
        return TopicConfigTable()
    if version >= FIRST_VERSION_WITH_BODY and compressed:
        return _decode_compressed(body)
    content = loads_lenient(body)
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    if version >= FIRST_VERSION_WITH_BODY:
        content = content.get("topicConfigSerializeWrapper")
    return TopicConfigTable() if content is None else TopicConfigTable.from_json(content)


def _decode_compressed(body: bytes) -> TopicConfigTable:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(body, LARGEST_BODY_BYTES)
    except zlib.error as error:
        raise ValueError(f"the body is no zlib stream: {error}") from error
    if unpacker.unconsumed_tail:
        raise ValueError(f"the body has more than {LARGEST_BODY_BYTES} bytes")
    try:
        version_json, at = _text(data, 0)
        (count,) = INT32.unpack_from(data, at)
        at += INT32.size
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            text, at = _text(data, at)
            topic = _decode_topic(text)
            topics[topic.topic_name] = topic
    except StructError as error:
        raise ValueError(f"the body ends too early: {error}") from error
    return TopicConfigTable(DataVersion.from_json(loads_lenient(version_json.encode())), topics)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = INT32.unpack_from(data, at)
    at += INT32.size
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"a length of {length} where {len(data) - at} bytes are left")
    return data[at : at + length].decode("utf-8"), at + length


def _decode_topic(text: str) -> TopicConfig:
    fields: list[Any] = text.split(" ")
    if len(fields) < 5:
        raise ValueError(f"{text[:60]!r} is no topic")
    name, read, write, perm, filter_type = fields[:5]
    kind = TopicFilterType.__members__.get(filter_type, TopicFilterType.SINGLE_TAG)
    return TopicConfig(name, int(read), int(write), int(perm), kind)
