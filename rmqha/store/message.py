"""Messages to put into a store, and the results of puts (spec/store.md 4)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rmqha.wire.layout import INT64
from rmqha.wire.record import LOOPBACK, Host, Record, format_msg_id


class PutMessageStatus(Enum):
    """How a put ended. With the first four the message is in the log."""

    PUT_OK = "stored as requested"
    FLUSH_DISK_TIMEOUT = "stored, but not on disk in time"
    FLUSH_SLAVE_TIMEOUT = "stored, but no slave had it in time"
    SLAVE_NOT_AVAILABLE = "stored, but no slave is near enough"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "fewer replicas are near enough than minInSyncReplicas"
    SERVICE_NOT_AVAILABLE = "the store takes no messages"
    CREATE_MAPEDFILE_FAILED = "no new segment could be made"
    MESSAGE_ILLEGAL = "the message breaks a limit"
    PROPERTIES_SIZE_EXCEEDED = "the properties are too long"
    OS_PAGECACHE_BUSY = "the disk is too slow"
    UNKNOWN_ERROR = "something else"


NEVER_STORED = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
"""Another try ends in the same way."""

OFFSET_DIGITS = 16


class AppendMessageStatus(Enum):
    """How the append to the log ended."""

    PUT_OK = "appended"
    END_OF_FILE = "the segment was full"
    MESSAGE_SIZE_EXCEEDED = "too large"
    PROPERTIES_SIZE_EXCEEDED = "properties too long"
    UNKNOWN_ERROR = "something else"


@dataclass(slots=True)
class Message:
    """A message to put. The store fills in offsets, the store timestamp and the CRC. Times are in ms.

    ``properties`` do not include those that the store adds. If ``properties_stored`` is given, it is stored instead of
    them, and ``properties`` only control how the message is handled. A delayed message ignores ``properties_stored``.
    """

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = LOOPBACK
    store_host: Host = LOOPBACK
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties_stored: str | None = None
    is_again: bool = False
    """Whether it is in the log already. Then maxMessageSize does not count: its topic may be longer now, and a broker
    of RocketMQ 5 takes larger messages than one of 4.9 with the same setting."""

    @property
    def is_wait_store_msg_ok(self) -> bool:
        """Whether the sender waits for flush and replicas: property WAIT, true by default."""
        return self.properties.get("WAIT", "true").lower() == "true"


def put_again(record: Record, topic: str, queue_id: int, properties_stored: str) -> Message:
    """The message of a record, to be put into another queue of ours. Its put does not wait."""
    return Message(
        topic,
        record.body,
        {"WAIT": "false"},
        queue_id,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        properties_stored=properties_stored,
        is_again=True,
    )


@dataclass(slots=True)
class MessageBatch:
    """Messages for one queue, put together: all or none. Topic, queue, hosts and flags come from the batch.

    ``properties`` are added to those of each message, as a broker adds CLUSTER. ``messages`` is iterated only once.
    """

    topic: str
    messages: Iterable[Message]
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = LOOPBACK
    store_host: Host = LOOPBACK
    reconsume_times: int = 0
    is_wait_store_msg_ok: bool = True


class AppendMessageResult(NamedTuple):
    """Where the message is: its physical offset, its bytes (all records of a batch), and its first queue offset."""

    status: AppendMessageStatus
    wrote_offset: int = 0
    wrote_bytes: int = 0
    logics_offset: int = 0
    store_timestamp: int = 0
    store_host: Host = LOOPBACK
    message_offsets: tuple[int, ...] = ()

    @property
    def msg_id(self) -> str:
        """The offset message id; for a batch, all ids separated by commas."""
        if len(self.message_offsets) == 1:
            return format_msg_id(self.store_host, self.message_offsets[0])
        import numpy as np  # who only names results imports no numpy

        host = bytes.fromhex(format_msg_id(self.store_host, 0)[:-OFFSET_DIGITS])
        size = len(host) + INT64.size
        ids = np.empty((len(self.message_offsets), size), np.uint8)
        ids[:, : len(host)] = np.frombuffer(host, np.uint8)
        ids[:, len(host) :] = np.array(self.message_offsets, ">i8").view(np.uint8).reshape(-1, INT64.size)
        return ids.tobytes().hex(",", size).upper()


class PutMessageResult(NamedTuple):
    """The result of a put; ``append`` is None if nothing was appended."""

    status: PutMessageStatus
    append: AppendMessageResult | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the message is in the log."""
        return self.append is not None and self.append.status is AppendMessageStatus.PUT_OK
