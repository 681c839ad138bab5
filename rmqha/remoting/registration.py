"""The body of REGISTER_BROKER, in its three forms (spec/remoting.md 2.22)."""

import zlib
from struct import Struct
from struct import error as StructError
from typing import Any

from rmqha.kit.steps import Steps, at_once
from rmqha.store.metadata import DataVersion, TopicConfig, TopicConfigTable, TopicFilterType
from rmqha.wire.fastjson import Document, dumping_strict, dumps_compact, loads_lenient, loads_table_in_steps

FIRST_VERSION_WITH_BODY = 37
"""Older brokers, and those that do not give a version, send only their topics."""
MAX_BODY_BYTES = 64 * 1024 * 1024
INFLATED_BATCH = 1024 * 1024
MAX_TOPICS = 131_072
"""The maximum number of a broker's topics. More do not fit an uncompressed frame."""
TOPICS_BATCH = 500
"""The topics that are read in one turn."""
INT32 = Struct(">i")
CRC_MASK = 0x7FFFFFFF


def encode_body(table: TopicConfigTable) -> bytes:
    """Encode a broker's topics, without compression."""
    return dumps_compact({"filterServerList": [], "topicConfigSerializeWrapper": table.to_json()})


def encoding_body(table: Document) -> Steps[bytes]:
    """As ``encode_body``, but from a table's document, and in steps."""
    topics = yield from dumping_strict(table)
    return b'{"filterServerList":[],"topicConfigSerializeWrapper":%s}' % topics


def body_crc32(body: bytes) -> int:
    """The value of the header field bodyCrc32."""
    return zlib.crc32(body) & CRC_MASK


def decode_body(body: bytes, compressed: bool, version: int) -> TopicConfigTable:
    """As ``decode_body_in_steps``, without steps."""
    return at_once(decode_body_in_steps(body, compressed, version))


def decode_body_in_steps(body: bytes, compressed: bool, version: int) -> Steps[TopicConfigTable]:
    """Decode a broker's topics from a request of this version. Raises ValueError, also for more than MAX_TOPICS."""
    if not body:
        return TopicConfigTable()
    if version >= FIRST_VERSION_WITH_BODY and compressed:
        compressed_table = yield from _decode_compressed(body)
        return compressed_table
    content, rows = yield from loads_table_in_steps(body, "topicConfigTable", MAX_TOPICS)
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    if version >= FIRST_VERSION_WITH_BODY:
        content = content.get("topicConfigSerializeWrapper")
    if content is None:
        return TopicConfigTable()
    table = TopicConfigTable.from_json(content)
    table.data_version, table.unknown = DataVersion.from_stranger(content.get("dataVersion")), {}
    for count, (name, topic) in enumerate(rows.items(), 1):
        table.topic_config_table[str(name)] = TopicConfig.from_json(topic, str(name))
        if count % TOPICS_BATCH == 0:
            yield
    return table


def _inflate(body: bytes) -> Steps[bytes]:
    unpacker = zlib.decompressobj()
    pieces: list[bytes] = []
    size = 0
    while body:
        try:
            piece = unpacker.decompress(body, INFLATED_BATCH)
        except zlib.error as error:
            raise ValueError(f"the body is not a zlib stream: {error}") from error
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise ValueError(f"the body has more than {MAX_BODY_BYTES} bytes")
        pieces.append(piece)
        body = unpacker.unconsumed_tail
        if body:
            yield
    return b"".join(pieces)


def _decode_compressed(body: bytes) -> Steps[TopicConfigTable]:
    data = yield from _inflate(body)
    try:
        version_json, at = _text(data, 0)
        (count,) = INT32.unpack_from(data, at)
        at += INT32.size
        if count > MAX_TOPICS:
            raise ValueError(f"{count} topics, more than {MAX_TOPICS}")
        topics: dict[str, TopicConfig] = {}
        for number in range(count):
            if number % TOPICS_BATCH == TOPICS_BATCH - 1:
                yield
            text, at = _text(data, at)
            topic = _decode_topic(text)
            topics[topic.topic_name] = topic
    except StructError as error:
        raise ValueError(f"the body ends too early: {error}") from error
    return TopicConfigTable(DataVersion.from_stranger(loads_lenient(version_json.encode())), topics)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = INT32.unpack_from(data, at)
    at += INT32.size
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"a length of {length}, but only {len(data) - at} bytes are left")
    return data[at : at + length].decode("utf-8"), at + length


def _decode_topic(text: str) -> TopicConfig:
    fields: list[Any] = text.split(" ")
    if len(fields) < 5:
        raise ValueError(f"{text[:60]!r} is not a topic")
    name, read, write, perm, filter_type = fields[:5]
    kind = TopicFilterType.__members__.get(filter_type, TopicFilterType.SINGLE_TAG)
    return TopicConfig(name, int(read), int(write), int(perm), kind)
