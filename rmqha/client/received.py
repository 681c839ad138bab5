"""What a consumer's handler gets."""

from dataclasses import dataclass, replace
from typing import Self

from rmqha.client.inflating import InflateError, inflated
from rmqha.client.message import UNIQ_KEY, MessageQueue
from rmqha.wire.batch import BatchError, decode_batch
from rmqha.wire.record import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    INNER_BATCH_FLAG,
    Record,
)
from rmqha.wire.topics import RETRY_PREFIX

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""A compressed body that expands to more is not given to a handler."""


class BodyError(ValueError):
    """The body cannot be decompressed: it is damaged, expands to too much, or is compressed in an unknown way."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as a consumer gets it.

    ``topic`` is the one that the producer sent to, also if the message comes again from the group's retry topic.
    ``body`` is decompressed. ``queue`` and ``queue_offset`` say where this copy lies, and ``record`` is that copy as
    the broker has it. ``reconsume_times`` is 0 the first time. Times are milliseconds since 1970.
    """

    topic: str
    body: bytes
    tags: str
    keys: str
    properties: dict[str, str]
    flag: int
    msg_id: str
    """The producer's id (UNIQ_KEY). A message that comes again has the same one."""
    queue: MessageQueue
    queue_offset: int
    reconsume_times: int
    born_timestamp: int
    store_timestamp: int
    record: Record

    @classmethod
    def of(cls, record: Record, queue: MessageQueue, tries: int = 0) -> Self:
        """Make it of a record of this queue. ``tries`` counts earlier tries that the broker does not know of.

        Raises BodyError.
        """
        properties = record.properties
        topic = properties.get("RETRY_TOPIC") if record.topic.startswith(RETRY_PREFIX) else None
        return cls(
            topic or record.topic,
            inflated_body(record),
            properties.get("TAGS", ""),
            properties.get("KEYS", ""),
            properties,
            record.flag,
            properties.get(UNIQ_KEY) or record.msg_id,
            queue,
            record.queue_offset,
            record.reconsume_times + tries,
            record.born_timestamp,
            record.store_timestamp,
            record,
        )


def inflated_body(record: Record) -> bytes:
    """The body, decompressed if its producer has compressed it. Raises BodyError."""
    if record.sys_flag & INNER_BATCH_FLAG:
        raise BodyError(f"{record.msg_id} is a batch of messages that cannot be read")
    return _inflated(record)


def _inflated(record: Record) -> bytes:
    if not record.sys_flag & COMPRESSED_FLAG:
        return record.body
    try:
        return inflated(record.body, record.sys_flag, MAX_INFLATED_BYTES)
    except InflateError as error:
        raise BodyError(f"the body of {record.msg_id} cannot be decompressed: {error}") from error


def unwrapped(record: Record) -> list[Record]:
    """The messages of a record that holds a batch of 5.x, each with its queue offset.

    Any other record comes alone, and so does a batch that cannot be read: ``inflated_body`` refuses that. Messages of a
    batch share the place of the record in the log.
    """
    if not record.sys_flag & INNER_BATCH_FLAG:
        return [record]
    try:
        entries = decode_batch(_inflated(record))
    except (BodyError, BatchError):
        return [record]
    return [
        replace(
            record,
            body=entry.body,
            properties_stored=entry.properties,
            flag=entry.flag,
            queue_offset=record.queue_offset + number,
            sys_flag=record.sys_flag & ~(INNER_BATCH_FLAG | COMPRESSED_FLAG | COMPRESSION_TYPE_MASK),
            body_crc=None,
        )
        for number, entry in enumerate(entries)
    ]
