"""What dispatch needs of one message, and the rules for its unit and keys. Uses no reactor: jobs call it too."""

from struct import error as StructError
from typing import NamedTuple, Protocol

from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import tags_hash
from rmqha.wire.layout import (
    BLANK_HEADER,
    BLANK_MAGIC_CODE,
    BODY_LENGTH_AT,
    BORNHOST_V6_FLAG,
    FIXED_BYTES,
    HEAD_FROM_QUEUE_ID,
    INT16,
    INT32,
    INT64,
    IPV6_EXTRA_BYTES,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    QUEUE_ID_AT,
    STORE_TIMESTAMP_AT,
    STOREHOSTADDRESS_V6_FLAG,
    hosts_extra,
)
from rmqha.wire.properties import parse_properties
from rmqha.wire.record import (
    INNER_BATCH_FLAG,
    QUEUED_TRANSACTION_TYPES,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)

MAX_FOLDER_NAME_BYTES = 255
SMALLEST_RECORD_BYTES = FIXED_BYTES
"""A record without body, topic and properties, and with two IPv4 hosts (spec/store.md 3.1)."""
SEARCH_BYTES = 1 << 20
INNER_BASE, INNER_NUM = "INNER_BASE", "INNER_NUM"
MAX_BATCH_SIZE = 0x7FFF


class DispatchRequest(NamedTuple):
    """What dispatch needs of one message. Its record is proved."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int
    store_timestamp: int
    properties: dict[str, str]

    @property
    def is_queued(self) -> bool:
        """Whether it has a unit in a consume queue. Prepared and rolled-back messages have not."""
        return self.sys_flag & TRANSACTION_TYPE_MASK in QUEUED_TRANSACTION_TYPES

    @property
    def is_indexed(self) -> bool:
        """Whether its keys are in the index. Those of rolled-back messages are not."""
        return self.sys_flag & TRANSACTION_TYPE_MASK != TRANSACTION_ROLLBACK_TYPE

    def tags_code(self, delay_levels: DelayLevels) -> int:
        """The hash of its tags, or the delivery time in ms of a delayed message (spec/store.md 3.11)."""
        if self.topic == SCHEDULE_TOPIC and "DELAY" in self.properties:
            code = delay_levels.tags_code(self.properties["DELAY"], self.store_timestamp)
            if code is not None:
                return code
        return tags_hash(self.properties.get("TAGS", ""))

    @property
    def batch(self) -> tuple[int, int]:
        """The base offset in a batch consume queue, and how many queue offsets the message takes.

        A batch of 5.x (INNER_BATCH) says both in its properties. Any other message takes one. Raises ValueError if
        the properties are invalid, or if the messages of the queue do not fit into the log before it.
        """
        base_offset, batch_size = self.queue_offset, 1
        if INNER_BASE in self.properties and INNER_NUM in self.properties:
            base_offset, batch_size = int(self.properties[INNER_BASE]), int(self.properties[INNER_NUM])
        if not 0 < batch_size <= MAX_BATCH_SIZE or not 0 <= base_offset <= self.physical_offset:
            raise ValueError(f"a batch of {batch_size} messages at queue offset {base_offset} is impossible here")
        return base_offset, batch_size

    def index_keys(self) -> list[str]:
        """Its index keys: UNIQ_KEY first, then each of KEYS."""
        keys = [self.properties["UNIQ_KEY"]] if "UNIQ_KEY" in self.properties else []
        if "KEYS" in self.properties:
            keys += [key for key in self.properties["KEYS"].split(" ") if key]
        return keys


def read_dispatch_request(data: memoryview, position: int) -> DispatchRequest | int:
    """Read the proved record at ``position``. Returns the size in bytes if it is a blank."""
    size, magic = BLANK_HEADER.unpack_from(data, position)
    if magic == BLANK_MAGIC_CODE:
        return int(size)
    queue_id, _, queue_offset, physical_offset, sys_flag = HEAD_FROM_QUEUE_ID.unpack_from(data, position + QUEUE_ID_AT)
    born_extra = IPV6_EXTRA_BYTES if sys_flag & BORNHOST_V6_FLAG else 0
    store_extra = IPV6_EXTRA_BYTES if sys_flag & STOREHOSTADDRESS_V6_FLAG else 0
    (store_timestamp,) = INT64.unpack_from(data, position + STORE_TIMESTAMP_AT + born_extra)
    at = position + BODY_LENGTH_AT + born_extra + store_extra
    at += INT32.size + INT32.unpack_from(data, at)[0]
    if magic == MESSAGE_MAGIC_CODE_V2:
        topic_at, topic_length = at + 2, INT16.unpack_from(data, at)[0]
    else:
        topic_at, topic_length = at + 1, data[at]
    topic_end = topic_at + topic_length
    return DispatchRequest(
        str(data[topic_at:topic_end], "utf-8", "surrogateescape"),
        queue_id,
        queue_offset,
        physical_offset,
        size,
        sys_flag,
        store_timestamp,
        parse_properties(str(data[topic_end + INT16.size : position + size], "utf-8", "surrogateescape")),
    )


def read_if_sound(data: memoryview, base: int, position: int) -> DispatchRequest | int | None:
    """The same for a log that is not proved. ``data`` starts at ``base``. None if there is no record or blank."""
    if len(data) - position < BLANK_HEADER.size:
        return None
    size, magic = BLANK_HEADER.unpack_from(data, position)
    if size < BLANK_HEADER.size or position + size > len(data):
        return None
    if magic == BLANK_MAGIC_CODE:
        return int(size)
    if magic not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2) or size < SMALLEST_RECORD_BYTES:
        return None
    try:
        request = read_dispatch_request(data, position)
    except (StructError, IndexError):
        return None
    return request if isinstance(request, int) or request.physical_offset == base + position else None


def next_sound_position(data: memoryview, base: int, position: int) -> int:
    """The start of the first record at or after ``position``. Without one, where the search ended."""
    found = min(len(data), position + SEARCH_BYTES)
    content = bytes(data[position : found + BLANK_HEADER.size])
    for magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2):
        at = content.find(INT32.pack(magic))
        while at >= 0 and position + at - INT32.size < found:
            start = position + at - INT32.size
            if start >= position and read_if_sound(data, base, start) is not None:
                found = start
            at = content.find(INT32.pack(magic), at + 1)
    return found


class ReadsLog(Protocol):
    """Reads the first bytes of records."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of the log, fewer at its end. Raises OSError."""


def read_place(log: ReadsLog, offset: int, size: int) -> tuple[str, int, int] | None:
    """Topic, QUEUEID and QUEUEOFFSET of the record of this size at ``offset`` of the log. None without such a record.

    ``log`` is asked twice.
    """
    head = log.read(offset, BODY_LENGTH_AT + 2 * IPV6_EXTRA_BYTES + INT32.size)
    if len(head) < BODY_LENGTH_AT + 2 * IPV6_EXTRA_BYTES + INT32.size:
        return None
    total_size, magic = BLANK_HEADER.unpack_from(head, 0)
    queue_id, _, queue_offset, physical_offset, sys_flag = HEAD_FROM_QUEUE_ID.unpack_from(head, QUEUE_ID_AT)
    if magic not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2) or (total_size, physical_offset) != (size, offset):
        return None
    at = BODY_LENGTH_AT + hosts_extra(sys_flag)
    topic_at = at + INT32.size + max(0, INT32.unpack_from(head, at)[0])
    tail = log.read(offset + topic_at, min(INT16.size + MAX_FOLDER_NAME_BYTES, max(0, size - topic_at)))
    if len(tail) < INT16.size:
        return None
    width = INT16.size if magic == MESSAGE_MAGIC_CODE_V2 else 1
    topic = tail[width : width + int.from_bytes(tail[:width], "big")]
    return str(topic, "utf-8", "surrogateescape"), queue_id, queue_offset


def is_possible_offset(queue_offset: int, physical_offset: int, sys_flag: int = 0) -> bool:
    """Whether a message at this offset of the log can have this QUEUEOFFSET: whether enough messages fit before it.

    The messages of a batch of 5.x (INNER_BATCH) are smaller than records.
    No CRC covers the field (spec/store.md 3.1), so a flipped bit or a hostile master can give it any value.
    """
    smallest = 1 if sys_flag & INNER_BATCH_FLAG else SMALLEST_RECORD_BYTES
    return 0 <= queue_offset <= physical_offset // smallest


def is_no_folder(topic: str) -> bool:
    """Whether the topic cannot be the name of a folder. Then it cannot have queues."""
    is_too_long = len(topic.encode("utf-8", "surrogateescape")) > MAX_FOLDER_NAME_BYTES
    return not topic or "/" in topic or "\0" in topic or topic in (".", "..") or is_too_long
