"""The put path: checks, queue offsets, encoding, appending (spec/store.md 3.5, 3.9, 4).

Only one thread puts, and it assigns offsets and writes the bytes in one step, so this needs no lock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np

from rmqha.kit.steps import Steps, at_once
from rmqha.kit.wallclock import IWallClock
from rmqha.store.derived.dispatchrequest import is_no_folder
from rmqha.store.derived.putnotes import PutNote, PutNotes
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.message import (
    AppendMessageResult,
    AppendMessageStatus,
    Message,
    MessageBatch,
    PutMessageResult,
    PutMessageStatus,
)
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.layout import (
    BORN_HOST_AT,
    FIXED_BYTES,
    INT64,
    IPV6_EXTRA_BYTES,
    MESSAGE_MAGIC_CODE,
    PORT_BYTES,
    QUEUE_OFFSET_AT,
)
from rmqha.wire.properties import PROPERTY_SEPARATOR, format_properties
from rmqha.wire.record import (
    END_FILE_MIN_BLANK_LENGTH,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    QUEUED_TRANSACTION_TYPES,
    TRANSACTION_TYPE_MASK,
    RecordError,
    body_crc,
    pack_record,
)
from rmqha.wire.sends.run import Place, SendRun

MAX_INT32_DIGITS = 10
MESSAGES_AT_ONCE = 256
"""Of a batch, encoded in one step."""
LONG_BYTES = INT64.size
OFFSETS_BYTES = 2 * LONG_BYTES
"""QUEUEOFFSET, and PHYSICALOFFSET, which follows it."""
MANY_RECORDS = 64
"""From as many on arrays are faster than a loop."""


class PutRefused(Exception):
    """The message cannot be put; ``result`` is the answer."""

    def __init__(self, status: PutMessageStatus, append: AppendMessageStatus) -> None:
        super().__init__(status.value)
        self.result = PutMessageResult(status, AppendMessageResult(append))


class Appender:
    """Assigns offsets to messages and appends them to the log. ``wall`` gives their store timestamps.

    ``notes`` tells dispatch of them.

    ``queue_offsets`` (upstream's topicQueueTable) holds the next offset of each queue that ever had a message.
    ``closed_topics`` take no messages, because they are being deleted.
    """

    def __init__(
        self,
        log: CommitLog,
        queue_offsets: dict[tuple[str, int], int],
        delay_levels: DelayLevels,
        max_message_bytes: int,
        wall: IWallClock,
        notes: PutNotes,
    ) -> None:
        self._commit_log = log
        self._notes = notes
        self._delay_levels = delay_levels
        self._max_message_bytes = max_message_bytes
        self._wall = wall
        self._last_store_timestamp = log.last_store_timestamp
        self.queue_offsets = queue_offsets
        self.closed_topics: set[str] = set()

    def start_again(self, topic: str) -> None:
        """Give the queues of this topic offsets from 0 on: it was deleted."""
        for key in [key for key in self.queue_offsets if key[0] == topic]:
            del self.queue_offsets[key]
        self.closed_topics.discard(topic)

    def _check_open(self, topic: str) -> None:
        if topic in self.closed_topics:
            raise PutRefused(PutMessageStatus.SERVICE_NOT_AVAILABLE, AppendMessageStatus.UNKNOWN_ERROR)

    def _store_timestamp(self) -> int:
        """The time in ms, but never earlier than the last one: the wall clock may step back, the log must not."""
        self._last_store_timestamp = max(self._last_store_timestamp, self._wall.now_ms())
        return self._last_store_timestamp

    def begin_run(self, place: Place) -> None:
        """Fill in where in the log and in which segment the next messages go, and their time."""
        log = self._commit_log
        place.offset = log.max_offset
        place.limit = self._limit
        place.timestamp = self._store_timestamp()
        place.queue_ends = self.queue_offsets
        place.max_record_bytes = self._max_message_bytes

    @property
    def _limit(self) -> int:
        """Where in the log the records of its last segment end at the latest."""
        log = self._commit_log
        return log.max_offset - log.max_offset % log.segment_size + log.segment_size - END_FILE_MIN_BLANK_LENGTH

    def append_run(self, run: SendRun) -> None:
        """Append what a pass took. Raises OSError, and then nothing is appended."""
        self._commit_log.append_records(run.records, run.timestamp, run.last_at)
        for queue, units in run.queues.items():
            self.queue_offsets[queue] = units.first + units.count
        self._notes.add(PutNote.of(run))

    def append(self, message: Message) -> AppendMessageResult:
        """Append one message. Raises PutRefused before anything is written, OSError."""
        topic, queue_id, stored = self._destination(message)
        topic_bytes = self._checked_topic(topic, message, stored)
        is_queued = message.sys_flag & TRANSACTION_TYPE_MASK in QUEUED_TRANSACTION_TYPES
        queue_offset = self.queue_offsets.get((topic, queue_id), 0) if is_queued else 0
        timestamp = self._store_timestamp()
        offset, size = self._append_encoded(
            lambda at: _encode(message, topic_bytes, queue_id, stored, queue_offset, at, timestamp), timestamp
        )
        if is_queued:
            self.queue_offsets[topic, queue_id] = queue_offset + 1
        return AppendMessageResult(
            AppendMessageStatus.PUT_OK, offset, size, queue_offset, timestamp, message.store_host, (offset,)
        )

    def _checked_topic(self, topic: str, message: Message, stored: bytes) -> bytes:
        """The topic as stored. Raises PutRefused, also if the record is too large."""
        self._check_open(topic)
        topic_bytes = _topic_bytes(topic)
        most = FIXED_BYTES + len(message.body) + len(topic_bytes) + len(stored) + 2 * IPV6_EXTRA_BYTES
        if most > self._max_message_bytes and not message.is_again:
            self._check_size(message, topic_bytes, stored)
        return topic_bytes

    def _check_size(self, message: Message, topic: bytes, properties: bytes) -> None:
        extra = IPV6_EXTRA_BYTES * (message.born_host.is_ipv6 + message.store_host.is_ipv6)
        if FIXED_BYTES + extra + len(message.body) + len(topic) + len(properties) > self._max_message_bytes:
            raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)

    def _destination(self, message: Message) -> tuple[str, int, bytes]:
        """Topic, queue and properties as stored: a delayed message goes to the schedule topic first."""
        delay = message.properties.get("DELAY")
        level = 0
        if delay is not None and message.sys_flag & TRANSACTION_TYPE_MASK in QUEUED_TRANSACTION_TYPES:
            level = min(_delay_level(delay), self._delay_levels.max_level)
        if level <= 0:
            stored = message.properties_stored
            encoded = _properties_bytes(message.properties) if stored is None else _encoded_properties(stored)
            return message.topic, message.queue_id, encoded
        properties = {
            **message.properties,
            "DELAY": str(level),
            "REAL_TOPIC": message.topic,
            "REAL_QID": str(message.queue_id),
        }
        return SCHEDULE_TOPIC, level - 1, _properties_bytes(properties)

    def append_batch(self, batch: MessageBatch) -> AppendMessageResult:
        """Append all messages of a batch, one after another in one segment. Raises PutRefused, OSError."""
        return self.append_prepared(at_once(self.prepare_batch(batch)))

    def prepare_batch(self, batch: MessageBatch) -> Steps["PreparedBatch"]:
        """Encode the messages of a batch, except their offsets and store timestamp. Raises PutRefused."""
        if batch.sys_flag & TRANSACTION_TYPE_MASK or _has_delay(batch.properties):
            raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR)
        topic = _topic_bytes(batch.topic)
        added = _properties_text(batch.properties)
        prepared = PreparedBatch(batch)
        for message in batch.messages:
            if _has_delay(message.properties):
                raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR)
            whole, properties = _whole_message(batch, message), _batch_properties(batch, message, added)
            self._check_size(whole, topic, properties)
            prepared.starts.append(len(prepared.data))
            prepared.data += _encode(whole, topic, batch.queue_id, properties, 0, 0, 0)
            if len(prepared.data) > self._max_message_bytes:
                raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)
            if len(prepared.starts) % MESSAGES_AT_ONCE == 0:
                yield
        if not prepared.starts:
            raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR)
        yield from prepared.find_places()
        return prepared

    def append_prepared(self, prepared: "PreparedBatch") -> AppendMessageResult:
        """Append an encoded batch. Raises PutRefused, OSError."""
        batch = prepared.batch
        self._check_open(batch.topic)
        key = (batch.topic, batch.queue_id)
        first = self.queue_offsets.setdefault(key, 0)
        timestamp = self._store_timestamp()
        offset, size = self._append_encoded(lambda at: prepared.placed(first, at, timestamp), timestamp)
        self.queue_offsets[key] = first + len(prepared.starts)
        offsets = tuple(prepared.offsets_at(offset))
        return AppendMessageResult(
            AppendMessageStatus.PUT_OK, offset, size, first, timestamp, batch.store_host, offsets
        )

    def _append_encoded(self, encode: Callable[[int], bytes], timestamp: int) -> tuple[int, int]:
        """Append what ``encode`` returns for the log's end, in the next segment if it does not fit this one.

        Returns its offset and size.
        """
        log = self._commit_log
        data = encode(log.max_offset)
        room = log.segment_size - log.max_offset % log.segment_size
        if len(data) + END_FILE_MIN_BLANK_LENGTH > room:
            if len(data) + END_FILE_MIN_BLANK_LENGTH > log.segment_size:
                raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)
            log.roll()
            data = encode(log.max_offset)
        return log.append_records(data, timestamp), len(data)


@dataclass(slots=True)
class PreparedBatch:
    """The records of a batch, one after another; ``starts`` are their positions in ``data``."""

    batch: MessageBatch
    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    _many_starts: "np.ndarray[Any, np.dtype[np.int64]] | None" = None

    @property
    def _stamp_at(self) -> int:
        """Where a record's STORETIMESTAMP is."""
        return BORN_HOST_AT + len(self.batch.born_host.address) + PORT_BYTES

    def find_places(self) -> Steps[None]:
        """Prepare for ``placed`` what does not depend on the offsets. Of many records this takes steps of its own."""
        if len(self.starts) >= MANY_RECORDS:
            yield
            self._many_starts = np.array(self.starts, dtype=np.int64)
            yield

    def offsets_at(self, physical_offset: int) -> list[int]:
        """The offsets of the records, if the first one has this offset."""
        if self._many_starts is None:
            return [physical_offset + start for start in self.starts]
        offsets: list[int] = (self._many_starts + physical_offset).tolist()
        return offsets

    def placed(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """The records with their offsets and store timestamp (ms); the first record has the given offsets.

        No CRC covers these fields.
        """
        data = self.data
        between_at = QUEUE_OFFSET_AT + OFFSETS_BYTES
        if self._many_starts is not None:
            self._place_many(self._many_starts, queue_offset, physical_offset, store_timestamp)
            return bytes(data)
        between = bytes(data[between_at : self._stamp_at])  # all records of a batch have the same bytes between them
        pack_into = Struct(f">qq{len(between)}sq").pack_into
        for number, start in enumerate(self.starts, queue_offset):
            pack_into(data, start + QUEUE_OFFSET_AT, number, physical_offset + start, between, store_timestamp)
        return bytes(data)

    def _place_many(
        self,
        starts: "np.ndarray[Any, np.dtype[np.int64]]",
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
    ) -> None:
        """The same with arrays, which takes a hundredth of the time for each record."""
        data = np.frombuffer(self.data, dtype=np.uint8)
        offsets = np.empty((len(starts), 2), dtype=">i8")
        offsets[:, 0] = queue_offset + np.arange(len(starts))
        offsets[:, 1] = physical_offset + starts
        offsets_at = (starts + QUEUE_OFFSET_AT)[:, None] + np.arange(OFFSETS_BYTES)
        data[offsets_at] = offsets.view(np.uint8)
        stamp_at = (starts + self._stamp_at)[:, None] + np.arange(LONG_BYTES)
        data[stamp_at] = np.frombuffer(INT64.pack(store_timestamp), dtype=np.uint8)


def _has_delay(properties: Mapping[str, str]) -> bool:
    return _delay_level(properties.get("DELAY", "0")) > 0


def _delay_level(text: str) -> int:
    """The number in property DELAY; 0 if Java could not read it."""
    level = int(text) if text.isdecimal() and len(text) <= MAX_INT32_DIGITS else 0
    return level if level < 2**31 else 0


def _whole_message(batch: MessageBatch, message: Message) -> Message:
    """A message of a batch, with the topic, queue, hosts and flags of the batch."""
    return Message(
        topic=batch.topic,
        body=message.body,
        queue_id=batch.queue_id,
        flag=message.flag,
        sys_flag=batch.sys_flag,
        born_timestamp=batch.born_timestamp,
        born_host=batch.born_host,
        store_host=batch.store_host,
        reconsume_times=batch.reconsume_times,
    )


def _batch_properties(batch: MessageBatch, message: Message, added: str) -> bytes:
    """The properties stored for a message of a batch: its own and the batch's. ``added`` is the batch's, as text."""
    own = message.properties_stored
    if own is None:
        return _properties_bytes({**message.properties, **batch.properties})
    separator = PROPERTY_SEPARATOR if own and added and not own.endswith(PROPERTY_SEPARATOR) else ""
    return _encoded_properties(f"{own}{separator}{added}")


@lru_cache(maxsize=1024)
def _topic_bytes(topic: str) -> bytes:
    try:
        encoded = topic.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or len(encoded) > MAX_TOPIC_BYTES or is_no_folder(topic):
        raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR)
    return encoded


def _properties_bytes(properties: dict[str, str]) -> bytes:
    return _encoded_properties(_properties_text(properties))


def _properties_text(properties: dict[str, str]) -> str:
    try:
        return format_properties(properties)
    except ValueError as error:
        raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR) from error


def _encoded_properties(stored: str) -> bytes:
    try:
        encoded = stored.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR) from error
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise PutRefused(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED)
    return encoded


def _encode(
    message: Message,
    topic: bytes,
    queue_id: int,
    properties: bytes,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> bytes:
    """The record's bytes. Raises PutRefused for a number that its field cannot hold."""
    try:
        return pack_record(
            MESSAGE_MAGIC_CODE,
            body_crc(message.body),
            queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            store_timestamp,
            message.store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            message.body,
            topic,
            properties,
        )
    except RecordError as error:
        raise PutRefused(PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR) from error
