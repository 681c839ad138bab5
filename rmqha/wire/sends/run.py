"""What a pass over ordinary sends gets, and what it finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from zope.interface import Interface

from rmqha.wire.command import (
    FRAME_HEAD,
    HEADER_LENGTH,
    MARK_OPAQUE,
    RESPONSE_FLAG,
    TOTAL_LENGTH_BYTES,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_json,
)
from rmqha.wire.record import LOOPBACK, TOPIC_LENGTHS, Host, format_msg_id

OFFSET_DIGITS = 16
"""Of the log's offset at the end of a message id."""
TRANSACTION_ID = "transactionId"
"""The field of an answer by which clients of 5.x name a transaction: the message's unique key."""
VARYING_FIELDS = ("msgId", "queueId", "queueOffset", TRANSACTION_ID)

V1_CODE, V2_CODE = b'"code":%d,' % RequestCode.SEND_MESSAGE, b'"code":%d,' % RequestCode.SEND_MESSAGE_V2
"""The headers of sends have one of these, as their clients write them."""

Queue = tuple[str, int]
"""A topic, and the id of one of its queues."""


class Declined(Enum):
    """Why a pass stops before a request, or before the end of what was read."""

    UNFINISHED = "nothing more, or only a part of a request, has arrived"
    LIMIT = "the turn, the connection or the pass has taken enough"
    NO_SEND = "it is another request, an answer, or its header is binary"
    HEADER = "the header is large, or has other values than clients send"
    BATCH = "it is a batch"
    PROPERTIES = "a property asks for more than to store the message, or is odd"
    TOPIC = "the topic is unknown, a system topic, or takes no ordinary messages now"
    QUEUE = "the topic has no such queue to write to"
    SIZE = "the message is larger than maxMessageSize, or a text longer than its field"
    SEGMENT = "it must begin a segment"
    ACCESS = "the account was not seen to send to this topic before, or the signature is wrong"
    STORE = "the disk has refused what the pass took: it may fit one by one"

    @property
    def is_final(self) -> bool:
        """Whether a further pass would decline the request too."""
        return self not in (Declined.UNFINISHED, Declined.LIMIT)

    @property
    def is_counted(self) -> bool:
        """Whether there is a send that the pass declines."""
        return self.is_final and self is not Declined.NO_SEND


def may_be_send(data: bytes, at: int) -> bool:
    """Whether the header of the whole frame at ``at`` in ``data`` looks like that of a send. It costs little to ask."""
    header_at = at + FRAME_HEAD.size
    if header_at > len(data):
        return False
    _, header_bytes = FRAME_HEAD.unpack_from(data, at)
    body_at = header_at + header_bytes
    return data.find(V2_CODE, header_at, body_at) >= 0 or data.find(V1_CODE, header_at, body_at) >= 0


class TopicRoom(NamedTuple):
    """A topic that takes ordinary messages: its length and name as stored, and the number of its write queues."""

    length: bytes
    encoded: bytes
    write_queues: int

    @classmethod
    def of(cls, topic: str, write_queues: int) -> "TopicRoom":
        """Of a topic whose name has at most MAX_TOPIC_BYTES."""
        encoded = topic.encode("utf-8", "surrogateescape")
        return cls(TOPIC_LENGTHS[len(encoded)], encoded, write_queues)


class ITopicRooms(Interface):
    """Knows the topics that take ordinary messages now."""

    def room_of(topic: str) -> TopicRoom | None:
        """A topic's; None if it takes none, or if its messages are not ordinary."""


class ISendAccess(Interface):
    """Knows who may send."""

    def may_send(code: int, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether a request is allowed as one before it was: its signature is right. False says nothing."""


class AnswerParts(NamedTuple):
    """The header of a successful answer, cut where its values go: they stand between these texts, in this order.

    The values: the log's offset in the message id, queueId, queueOffset, the unique key, opaque. Without a unique key
    ``before_key`` is left out too.
    """

    before_offset: bytes
    before_queue_id: bytes
    before_queue_offset: bytes
    before_key: bytes
    before_opaque: bytes
    after_opaque: bytes

    @classmethod
    def of(cls, ext_fields: Mapping[str, str], store_host: Host) -> "AnswerParts":
        """Of the answers that have these fields too."""
        marks = {name: f"\1{name}" for name in VARYING_FIELDS}
        answer = RemotingCommand(ResponseCode.SUCCESS, MARK_OPAQUE, RESPONSE_FLAG, None, {**ext_fields, **marks})
        fields, _, after_opaque = encode_json(answer).rpartition(b"%d" % MARK_OPAQUE)
        parts = []
        for name in VARYING_FIELDS:
            before, _, fields = fields.partition(b"\\u0001%s" % name.encode())
            parts.append(before)
        offset, queue_id, queue_offset, key = parts
        host = format_msg_id(store_host, 0)[:-OFFSET_DIGITS].encode()
        return cls(offset + host, queue_id, queue_offset, key, fields, after_opaque)


def with_code(answers: bytes, code: int) -> bytes:
    """Answers of a pass, with another code than that of success."""
    changed: list[bytes] = []
    at = 0
    while at < len(answers):
        length, header_bytes = FRAME_HEAD.unpack_from(answers, at)
        header = answers[at + FRAME_HEAD.size : at + FRAME_HEAD.size + header_bytes]
        header = header.replace(b'"code":%d' % ResponseCode.SUCCESS, b'"code":%d' % code, 1)
        changed += FRAME_HEAD.pack(HEADER_LENGTH.size + len(header), len(header)), header
        at += TOTAL_LENGTH_BYTES + length
    return b"".join(changed)


@dataclass(slots=True)
class Place:
    """Where the messages of a read go, and under which conditions. The pass changes nothing of it.

    All messages have ``timestamp`` (ms) as STORETIMESTAMP, and CLUSTER, which is stored as ``cluster``.
    """

    topics: ITopicRooms
    answer: AnswerParts
    cluster: str
    max_body_bytes: int
    max_record_bytes: int = 0
    """maxMessageSize, which counts whole records."""
    queue_ends: Mapping[Queue, int] = field(default_factory=dict)
    """The next offset of each queue that ever had a message."""
    access: ISendAccess | None = None
    """Asked about each request, if access is controlled."""
    born_host: Host = LOOPBACK
    store_host: Host = LOOPBACK
    offset: int = 0
    """Where in the log the first record goes."""
    limit: int = 0
    """Where in the log the records end at the latest: a segment's blank must fit behind them."""
    timestamp: int = 0
    most: int = 0
    """The most requests to take."""


@dataclass(slots=True)
class QueueUnits:
    """Consecutive units of a consume queue (spec/store.md 6), as they are in its file. ``first`` is a queue offset.

    ``record_bytes`` are those of the messages in the log.
    """

    first: int
    count: int = 0
    units: bytearray = field(default_factory=bytearray)
    record_bytes: int = 0


IndexKeys = list[tuple[str, int, int]] | bytes
"""Keys in the order of the log: ``topic#key``, offset in the log, STORETIMESTAMP. Or packed with the hashes of their
texts instead: i32 hash, i64 offset, i64 timestamp, in the machine's order.
"""


@dataclass(slots=True)
class SendRun:
    """The sends that a pass took, which go to the log together.

    ``end`` is where in the read it stopped, and ``declined`` says why. ``records`` begin at ``offset`` of the log; the
    last one begins at ``last_at`` in them. ``answers`` are whole frames, one for each request that wants one.
    """

    offset: int
    timestamp: int
    end: int
    declined: Declined
    count: int
    records: bytes
    last_at: int
    answers: bytes
    queues: dict[Queue, QueueUnits]
    keys: IndexKeys
    key_count: int
