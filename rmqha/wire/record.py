"""A record of the commit log: one message, or the blank that ends a segment (spec/store.md 3).

``layout`` says where its fields lie. Times are milliseconds since the epoch.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from isal.isal_zlib import crc32

from rmqha.wire.layout import (
    BLANK_HEADER,
    BLANK_MAGIC_CODE,
    BORNHOST_V6_FLAG,
    FIXED_BYTES,
    FIXED_HEAD,
    FIXED_TAIL,
    HEADS,
    INT8,
    INT16,
    INT32,
    INT64,
    IPV4_BYTES,
    IPV6_BYTES,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    STOREHOSTADDRESS_V6_FLAG,
    hosts_extra,
)
from rmqha.wire.properties import parse_properties

Buffer = bytes | bytearray | memoryview

END_FILE_MIN_BLANK_LENGTH = BLANK_HEADER.size
MAX_TOPIC_BYTES = 127
TOPIC_LENGTHS = [bytes([length]) for length in range(MAX_TOPIC_BYTES + 1)]
MAX_TOPIC_BYTES_V2 = 32767
MAX_PROPERTIES_BYTES = 32767
CRC_MASK = 0x7FFFFFFF

COMPRESSED_FLAG = 0x1
MULTI_TAGS_FLAG = 0x2
INNER_BATCH_FLAG = 0x80
"""The body is a batch of 5.x, which has queue offsets of its own for each of its messages (spec/store.md 3.6)."""
TRANSACTION_PREPARED_TYPE = 0x4
TRANSACTION_COMMIT_TYPE = 0x8
TRANSACTION_ROLLBACK_TYPE = 0xC
TRANSACTION_TYPE_MASK = 0xC
QUEUED_TRANSACTION_TYPES = (0, TRANSACTION_COMMIT_TYPE)
"""Messages of these types have a queue offset and an entry in a consume queue (spec/store.md 3.5)."""
COMPRESSION_TYPE_MASK = 0x700
ZLIB_COMPRESSION_TYPES = (0, 0x300)
LZ4_COMPRESSION_TYPE, ZSTD_COMPRESSION_TYPE = 0x100, 0x200
INFLATED_AT_ONCE_BYTES = 1 << 20


class RecordError(ValueError):
    """The bytes are not a record. The text names the rule that they break."""


class IncompleteRecord(RecordError):
    """The bytes may be the start of a record, but more bytes are needed."""


class Host(NamedTuple):
    """A peer's address in a record: 4 or 16 raw bytes, and the port."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, address: str, port: int) -> "Host":
        """Parse an address. An IPv4-mapped IPv6 address becomes IPv4, as in Java. Raises ValueError."""
        ip = ip_address(address)
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        return cls(ip.packed, port)

    @property
    def is_ipv6(self) -> bool:
        return len(self.address) == IPV6_BYTES

    def __str__(self) -> str:
        """``ip:port``. IPv6 as Java prints it: in brackets, and zeros are not compressed."""
        if not self.is_ipv6:
            return f"{IPv4Address(self.address)}:{self.port}"
        groups = (int.from_bytes(self.address[i : i + 2], "big") for i in range(0, 16, 2))
        return f"[{':'.join(f'{group:x}' for group in groups)}]:{self.port}"


def v6_flags(born: Host, store: Host) -> int:
    """The bits of SYSFLAG for these hosts."""
    return BORNHOST_V6_FLAG * born.is_ipv6 | STOREHOSTADDRESS_V6_FLAG * store.is_ipv6


LOOPBACK = Host(b"\x7f\0\0\x01", 0)


class Blank(NamedTuple):
    """The end of a segment: the ``size`` bytes from the record's position to the end of the segment."""

    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """A message as it lies in the commit log. The IPv6 bits of ``sys_flag`` always match the hosts."""

    topic: str
    body: bytes
    properties_stored: str = ""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = LOOPBACK
    store_timestamp: int = 0
    store_host: Host = LOOPBACK
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int | None = None
    magic: int = MESSAGE_MAGIC_CODE

    def __post_init__(self) -> None:
        v6_bits = v6_flags(self.born_host, self.store_host)
        cleared = self.sys_flag & ~(BORNHOST_V6_FLAG | STOREHOSTADDRESS_V6_FLAG)
        object.__setattr__(self, "sys_flag", cleared | v6_bits)
        if self.body_crc is None:
            object.__setattr__(self, "body_crc", body_crc(self.body))

    @property
    def properties(self) -> dict[str, str]:
        """The properties in stored order."""
        return parse_properties(self.properties_stored)

    @property
    def total_size(self) -> int:
        """TOTALSIZE: the encoded length in bytes."""
        return encoded_size(
            self.sys_flag,
            len(self.body),
            len(_to_bytes(self.topic)),
            len(_to_bytes(self.properties_stored)),
            self.magic,
        )

    @property
    def msg_id(self) -> str:
        """The offset message id: store host, port and physical offset in upper-case hex (spec/store.md 3.10)."""
        return format_msg_id(self.store_host, self.physical_offset)


def keys_of(record: Record) -> list[str]:
    """The keys by which a message is found: the id that its producer gave it (UNIQ_KEY), and those in KEYS."""
    properties = record.properties
    return [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]


def body_crc(body: Buffer) -> int:
    """CRC-32 of the stored body without its sign bit; 0 for an empty body (spec/store.md 3.3)."""
    return crc32(body) & CRC_MASK


def encoded_size(sys_flag: int, body_bytes: int, topic_bytes: int, properties_bytes: int, magic: int) -> int:
    """TOTALSIZE of a record whose parts have these sizes, in bytes."""
    wide_topic_length = magic == MESSAGE_MAGIC_CODE_V2
    return FIXED_BYTES + wide_topic_length + hosts_extra(sys_flag) + body_bytes + topic_bytes + properties_bytes


def format_msg_id(store_host: Host, physical_offset: int) -> str:
    """32 hex characters for an IPv4 store host, 56 for IPv6."""
    raw = store_host.address + INT32.pack(store_host.port) + INT64.pack(physical_offset)
    return raw.hex().upper()


def parse_msg_id(msg_id: str) -> tuple[Host, int]:
    """The store host and the physical offset of an offset message id. Raises ValueError."""
    if len(msg_id) not in (32, 56):
        raise ValueError(f"message id {msg_id!r} has {len(msg_id)} characters, not 32 or 56")
    raw = bytes.fromhex(msg_id)
    if 2 * len(raw) != len(msg_id):
        raise ValueError(f"message id {msg_id!r} contains spaces")
    return Host(raw[:-12], INT32.unpack(raw[-12:-8])[0]), INT64.unpack(raw[-8:])[0]


def encode_record(record: Record) -> bytes:
    """Encode a record. Raises RecordError if a length does not fit into its field."""
    topic, properties = _to_bytes(record.topic), _to_bytes(record.properties_stored)
    longest_topic = MAX_TOPIC_BYTES_V2 if record.magic == MESSAGE_MAGIC_CODE_V2 else MAX_TOPIC_BYTES
    if len(topic) > longest_topic:
        raise RecordError(f"a topic of {len(topic)} bytes is longer than {longest_topic}")
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise RecordError(f"properties of {len(properties)} bytes are longer than {MAX_PROPERTIES_BYTES}")
    assert record.body_crc is not None, "a record computes it when it is made"
    return pack_record(
        record.magic,
        record.body_crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body,
        topic,
        properties,
    )


def pack_record(
    magic: int,
    crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: Host,
    store_timestamp: int,
    store_host: Host,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """Pack the fields of a record, in their order. Faster than ``encode_record``, because it needs no ``Record``.

    The hosts set the IPv6 bits of ``sys_flag``. Topic and properties must have valid lengths. Raises RecordError if a
    number does not fit into its field.
    """
    sys_flag &= ~(BORNHOST_V6_FLAG | STOREHOSTADDRESS_V6_FLAG)
    born, store = born_host.address, store_host.address
    if len(born) != IPV4_BYTES:
        sys_flag |= BORNHOST_V6_FLAG
    if len(store) != IPV4_BYTES:
        sys_flag |= STOREHOSTADDRESS_V6_FLAG
    try:
        head = HEADS[len(born), len(store)].pack(
            encoded_size(sys_flag, len(body), len(topic), len(properties), magic),
            magic,
            crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born,
            born_host.port,
            store_timestamp,
            store,
            store_host.port,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except StructError as error:
        raise RecordError(f"a number does not fit into its field: {error}") from error
    topic_length = INT16.pack(len(topic)) if magic == MESSAGE_MAGIC_CODE_V2 else TOPIC_LENGTHS[len(topic)]
    return b"".join((head, body, topic_length, topic, INT16.pack(len(properties)), properties))


def encode_blank(size: int) -> bytes:
    """The first eight bytes of a blank of ``size`` bytes. The remaining bytes may have any value."""
    if size < END_FILE_MIN_BLANK_LENGTH:
        raise RecordError(f"a blank needs {END_FILE_MIN_BLANK_LENGTH} bytes, not {size}")
    return BLANK_HEADER.pack(size, BLANK_MAGIC_CODE)


def peek_size(view: Buffer, position: int, available: int) -> tuple[int, int]:
    """TOTALSIZE and MAGICCODE at ``position``, where ``available`` bytes of the segment exist.

    Raises IncompleteRecord if fewer than eight bytes exist, and RecordError if they cannot start a record.
    """
    if available < BLANK_HEADER.size:
        raise IncompleteRecord(f"{available} bytes, a record starts with {BLANK_HEADER.size}")
    total_size, magic = BLANK_HEADER.unpack_from(view, position)
    if magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2):
        smallest = FIXED_BYTES
    elif magic == BLANK_MAGIC_CODE:
        smallest = END_FILE_MIN_BLANK_LENGTH
    else:
        raise RecordError(f"magic code {magic & 0xFFFFFFFF:08X} is not that of a record")
    if total_size < smallest:
        raise RecordError(f"a size of {total_size} bytes is too small")
    return total_size, magic


def decode_record(view: Buffer, position: int = 0) -> Record | Blank:
    """Decode the record or blank at ``position``. Its body CRC is not checked, see ``check_record``.

    Raises IncompleteRecord if ``view`` ends before the record does, and RecordError if the lengths disagree.
    """
    available = len(view) - position
    total_size, magic = peek_size(view, position, available)
    if magic == BLANK_MAGIC_CODE:
        return Blank(total_size)
    if total_size > available:
        raise IncompleteRecord(f"{available} bytes of a record of {total_size}")
    end = position + total_size
    (_, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp) = FIXED_HEAD.unpack_from(
        view, position
    )
    at = position + FIXED_HEAD.size
    if total_size < FIXED_BYTES + hosts_extra(sys_flag):
        raise RecordError(f"a size of {total_size} bytes is too small for its hosts")
    born_host, at = _decode_host(view, at, sys_flag & BORNHOST_V6_FLAG)
    (store_timestamp,) = INT64.unpack_from(view, at)
    store_host, at = _decode_host(view, at + INT64.size, sys_flag & STOREHOSTADDRESS_V6_FLAG)
    reconsume_times, prepared_transaction_offset, body_length = FIXED_TAIL.unpack_from(view, at)
    body, at = _take(view, at + FIXED_TAIL.size, body_length, end, "BODYLENGTH")
    if magic == MESSAGE_MAGIC_CODE_V2:
        topic_length, at = _take_length(view, at, INT16, end, "TOPICLENGTH")
    else:
        topic_length, at = _take_length(view, at, INT8, end, "TOPICLENGTH")
    topic, at = _take(view, at, topic_length, end, "TOPICLENGTH")
    properties_length, at = _take_length(view, at, INT16, end, "PROPERTIESLENGTH")
    properties, at = _take(view, at, properties_length, end, "PROPERTIESLENGTH")
    if at != end:
        raise RecordError(f"the parts take {at - position} bytes, TOTALSIZE says {total_size}")
    return Record(
        topic=_to_str(topic),
        body=body,
        properties_stored=_to_str(properties),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=crc,
        magic=magic,
    )


def check_record(view: Buffer, position: int, physical_offset: int, segment_room: int) -> Record | Blank:
    """Prove the record at ``position``: its lengths, its body CRC, its own offset, and that it fits into its segment.

    ``physical_offset`` is the record's offset in the log, ``segment_room`` the number of bytes from there to the end of
    the segment. Raises IncompleteRecord or RecordError.
    """
    if segment_room < END_FILE_MIN_BLANK_LENGTH:
        raise RecordError(f"{segment_room} bytes before its segment's end are too few for a record or a blank")
    total_size, magic = peek_size(view, position, min(len(view) - position, segment_room))
    if magic == BLANK_MAGIC_CODE:
        if total_size != segment_room:
            raise RecordError(
                f"a blank of {total_size} bytes lies {segment_room} bytes before its segment's end: "
                "do the writer's segments have another size (mappedFileSizeCommitLog)?"
            )
    elif total_size > segment_room:
        raise RecordError(f"a record of {total_size} bytes lies {segment_room} bytes before its segment's end")
    if total_size > len(view) - position:
        raise IncompleteRecord(f"{len(view) - position} bytes of a record of {total_size}")
    record = decode_record(view, position)
    if isinstance(record, Blank):
        return record
    if record.physical_offset != physical_offset:
        raise RecordError(f"it says its offset is {record.physical_offset}")
    if record.body and record.body_crc != body_crc(record.body):
        raise RecordError(f"the body's CRC is {body_crc(record.body)}, BODYCRC says {record.body_crc}")
    return record


def record_as_json(record: Record) -> dict[str, Any]:
    """The record with Java's field names, as ``rmqha dump --json`` prints it. Bytes that are not UTF-8 become
    U+FFFD.
    """
    fields: dict[str, Any] = {
        "physicalOffset": record.physical_offset,
        "totalSize": record.total_size,
        "magic": record.magic,
        "bodyCRC": record.body_crc,
        "queueId": record.queue_id,
        "flag": record.flag,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": str(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": str(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyLength": len(record.body),
        "body": base64.b64encode(record.body).decode("ascii"),
    }
    if record.sys_flag & COMPRESSED_FLAG and record.sys_flag & COMPRESSION_TYPE_MASK in ZLIB_COMPRESSION_TYPES:
        fields |= _inflated_facts(record.body)
    fields["topic"] = _printable(record.topic)
    fields["properties"] = {_printable(k): _printable(v) for k, v in record.properties.items()}
    fields["propertiesStored"] = _printable(record.properties_stored)
    fields["msgId"] = record.msg_id
    return fields


def _inflated_facts(body: bytes) -> dict[str, Any]:
    """Length and hash of a decompressed body, computed piece by piece: a small body may expand to gigabytes."""
    stream = zlib.decompressobj()
    digest, length = hashlib.sha256(), 0
    rest = body
    try:
        while piece := stream.decompress(rest, INFLATED_AT_ONCE_BYTES):
            digest.update(piece)
            length += len(piece)
            rest = stream.unconsumed_tail
    except zlib.error:
        return {"inflatedLength": None}
    return {"inflatedLength": length, "inflatedSha256": digest.hexdigest()} if stream.eof else {"inflatedLength": None}


# Bytes that are not UTF-8 become lone surrogates, so that decoding and encoding give the same bytes back.


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _to_str(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _printable(text: str) -> str:
    return _to_bytes(text).decode("utf-8", "replace")


def _decode_host(view: Buffer, at: int, is_v6: int) -> tuple[Host, int]:
    end = at + (IPV6_BYTES if is_v6 else IPV4_BYTES)
    (port,) = INT32.unpack_from(view, end)
    return Host(bytes(view[at:end]), port), end + INT32.size


def _take(view: Buffer, at: int, length: int, end: int, name: str) -> tuple[bytes, int]:
    if not 0 <= length <= end - at:
        raise RecordError(f"{name} is {length}, {end - at} bytes are left")
    return bytes(view[at : at + length]), at + length


def _take_length(view: Buffer, at: int, field: Struct, end: int, name: str) -> tuple[int, int]:
    if at + field.size > end:
        raise RecordError(f"no room is left for {name}")
    unpack: Callable[[Buffer, int], tuple[int]] = field.unpack_from
    return unpack(view, at)[0], at + field.size
