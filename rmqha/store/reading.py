"""Reads messages by queue offset, key, id and time (spec/store.md 11)."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import accumulate, islice
from typing import NamedTuple, Protocol

from zope.interface import implementer

from rmqha.kit.steps import Steps, at_once
from rmqha.settings.settings import Settings
from rmqha.store.derived.batchqueue import BatchConsumeQueue, BatchUnit
from rmqha.store.derived.consumequeue import PRE_BLANK_SIZE, BoundaryType, ConsumeQueue, Unit
from rmqha.store.derived.dispatchrequest import read_dispatch_request
from rmqha.store.derived.index import KeyIndex
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.interfaces import IMessageTimes
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.layout import BLANK_HEADER, UNIT
from rmqha.wire.mixedtopics import is_internal
from rmqha.wire.record import Blank, Record, RecordError, decode_record, keys_of, parse_msg_id, peek_size

MIN_UNITS_EXAMINED = 800
MAX_UNITS_EXAMINED = 16_384
"""The units that one read examines at most, even if it requests more messages. A filter handles these quickly."""
RECORDS_BATCH = 128
"""The records that a query reads from the log in one step."""
MAX_RECORDS_WALKED = 4096
MAX_ENTRIES_QUERIED = 4096
"""The index entries that a query examines at most. Some may belong to other keys with the same hash."""
TAG_HASH_MASK = 0xFFFFFFFF
NOTHING = memoryview(b"")
TagFilter = Callable[[int], bool]
"""Whether a message with this tagsCode may be wanted. It compares hashes, so the message must be checked too."""
MAX_EFFORT = 12_000
"""Of one read that looks at properties: about as many calls of Python functions. The next read goes on from there."""
EFFORT_OF_MESSAGE, EFFORT_OF_PROPERTY, EFFORT_OF_PART = 80, 2, 8


class PropertyFilter(Protocol):
    """Decides by the properties of a message whether it is wanted. ``cost`` is about how many parts it looks at."""

    @property
    def cost(self) -> int: ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...


class GetMessageStatus(Enum):
    """The outcome of a read."""

    FOUND = "messages"
    NO_MATCHED_MESSAGE = "the filter matches none of the examined messages"
    MESSAGE_WAS_REMOVING = "the log no longer has the messages"
    OFFSET_FOUND_NULL = "the queue has no units at the offset"
    OFFSET_OVERFLOW_BADLY = "the offset is beyond the queue's end"
    OFFSET_OVERFLOW_ONE = "the offset is the queue's end"
    WAITS_FOR_A_SLAVE = "the next message is not confirmed yet"
    OFFSET_TOO_SMALL = "the offset is before the queue's start"
    OFFSET_RESET = "an operator has reset the group's offset"
    NO_MATCHED_LOGIC_QUEUE = "there is no such queue"
    NO_MESSAGE_IN_QUEUE = "the queue has never had a message"


class GetMessageResult(NamedTuple):
    """Raw records in ``body``, of these ``sizes``, and the offset of the next read. Offsets are queue offsets."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    sizes: tuple[int, ...] = ()
    suggest_pulling_from_slave: bool = False

    @property
    def records(self) -> tuple[bytes, ...]:
        """Each record by itself."""
        ends = accumulate(self.sizes)
        return tuple(self.body[end - size : end] for size, end in zip(self.sizes, ends, strict=True))

    @property
    def total_bytes(self) -> int:
        """Bytes of all records."""
        return len(self.body)


class _Batch:
    """What a read has collected so far: parts of the log, each of as many records as follow one another there.

    Records are added by ``look`` and then ``take``.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._window = NOTHING
        """The log from ``_start`` to ``_end``: a record, and what follows it in its segment."""
        self._start = self._end = 0
        self._part_start = self._part_end = 0
        """The last part, which is in the window."""
        self._parts: list[memoryview] = []
        self.sizes: list[int] = []
        self.total_bytes = 0

    def look(self, physical_offset: int, size: int) -> bool:
        """Whether the log has this record."""
        if self._start <= physical_offset and physical_offset + size <= self._end and size > 0:
            return True
        window = self._log.select_from(physical_offset, size)
        if window is None:
            return False
        self._end_part()
        self._window, self._start, self._end = window, physical_offset, physical_offset + len(window)
        self._part_start = self._part_end = physical_offset
        return True

    def record(self, physical_offset: int, size: int) -> memoryview:
        """The record that was looked for last."""
        at = physical_offset - self._start
        return self._window[at : at + size]

    def take(self, physical_offset: int, size: int) -> None:
        """Add the record that was looked for last."""
        if physical_offset != self._part_end:
            self._end_part()
            self._part_start = physical_offset
        self._part_end = physical_offset + size
        self.sizes.append(size)
        self.total_bytes += size

    def _end_part(self) -> None:
        if self._part_start < self._part_end:
            self._parts.append(self._window[self._part_start - self._start : self._part_end - self._start])

    def body(self) -> bytes:
        """All records, one after another. Nothing can be added afterwards."""
        self._end_part()
        return b"".join(self._parts)


class _Looking:
    """Looks at the properties of messages for one read, and counts the effort."""

    def __init__(self, wanted: PropertyFilter) -> None:
        self._wanted = wanted
        self._effort_of_each = EFFORT_OF_MESSAGE + EFFORT_OF_PART * wanted.cost
        self.effort = 0

    def matches(self, record: memoryview) -> bool:
        """Whether the message is wanted."""
        request = read_dispatch_request(record, 0)
        if isinstance(request, int):  # a blank, which a sound queue does not name
            return False
        self.effort += self._effort_of_each + EFFORT_OF_PROPERTY * len(request.properties)
        return self._wanted.matches(request.properties)


@implementer(IMessageTimes)
class MessageReader:
    """Reads a store's messages through its queues and index.

    With a ``limit`` everybody who asks sees a store that ends there: the last offset of a queue is that of its first
    message that is not confirmed.
    """

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: KeyIndex | None, settings: Settings, is_slave: bool
    ) -> None:
        self.limit: ReadLimit | None = None
        self._ends: dict[ConsumeQueue, int] = {}
        """The readable ends of queues that end after the limit, for the limit ``_ends_at``."""
        self._ends_at = -1
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._most_queried = settings.max_msgs_num_batch
        self._limits_in_memory = (
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_memory,
        )
        self._limits_in_disk = (
            settings.max_transfer_bytes_on_message_in_disk,
            settings.max_transfer_count_on_message_in_disk,
        )
        self._corrects_offsets = not is_slave or settings.offset_check_in_slave
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._memory_bytes = memory_bytes * settings.memory_ratio(is_slave) // 100

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        wanted: TagFilter | PropertyFilter | None = None,
    ) -> GetMessageResult:
        """Messages of a queue from ``offset`` on. Raises OSError."""
        queue = self._queues.read(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return self._nothing(GetMessageStatus.NO_MESSAGE_IN_QUEUE, offset, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset if self.limit is None else self.readable_end(queue)
        if offset < low:
            return self._nothing(GetMessageStatus.OFFSET_TOO_SMALL, offset, low, low, high)
        if offset >= high:
            return self._at_the_end(queue, offset, low, high)
        most = max(MIN_UNITS_EXAMINED, min(max_messages, MAX_UNITS_EXAMINED))
        if isinstance(queue, BatchConsumeQueue):
            return self._gather_batches(queue, offset, high, queue.batches(offset, most), max_messages, wanted)
        units = queue.units(offset, most if self.limit is None else min(most, high - offset))
        if not len(units):
            following = queue.next_file_offset(offset)
            return self._nothing(GetMessageStatus.OFFSET_FOUND_NULL, offset, following, low, high)
        if wanted is None:
            found = self._gather_all(queue, offset, high, UNIT.iter_unpack(units.data), max_messages)
            if found is not None:
                return found
        return self._gather(queue, offset, high, UNIT.iter_unpack(units.data), max_messages, wanted)

    def _at_the_end(self, queue: ConsumeQueue, offset: int, low: int, high: int) -> GetMessageResult:
        """The answer to a read at the queue's readable end ``high``, or after it."""
        if high < queue.max_offset and offset <= queue.max_offset:
            return self._nothing(GetMessageStatus.WAITS_FOR_A_SLAVE, offset, offset, low, high)
        if offset == high:
            return self._nothing(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, offset, low, high)
        # 4.9.3 goes back to a start at 0, so a group would consume all again. 4.9.4 and later do not.
        return self._nothing(GetMessageStatus.OFFSET_OVERFLOW_BADLY, offset, high, low, high)

    def _nothing(self, status: GetMessageStatus, offset: int, corrected: int, low: int, high: int) -> GetMessageResult:
        return GetMessageResult(status, corrected if self._corrects_offsets else offset, low, high)

    def _gather_all(
        self, queue: ConsumeQueue, offset: int, high: int, units: Iterator[tuple[int, int, int]], max_messages: int
    ) -> GetMessageResult | None:
        """The short way of a usual read: of all messages, which are in order in one segment. It equals ``_gather``.

        None for any other read.
        """
        start, first_size, _ = next(units)
        is_there = first_size > 0 and start >= self._commit_log.min_offset
        window = self._commit_log.select_from(start, first_size) if is_there else None
        if window is None:
            return None
        in_memory_from = self._commit_log.verified_offset - self._memory_bytes
        is_in_disk = start < in_memory_from
        limit_bytes, limit_count = self._limits_in_disk if is_in_disk else self._limits_in_memory
        segment_end = start + len(window)
        at = part_start = start
        end, total = start + first_size, first_size
        parts, sizes = list[memoryview](), [first_size]
        for at, size, _ in islice(units, max(0, min(max_messages, limit_count) - 1)):
            if at != end:
                if at < end:
                    return None
                parts.append(window[part_start - start : end - start])
                part_start = at
            total += size
            if total > limit_bytes:
                break
            end = at + size
            if not at < end <= segment_end:
                return None
            sizes.append(size)
        else:
            at = next(units, (end, 0, 0))[0]  # further limits, or a message that is gone, may be where the next one is
            if at < end:
                return None
        if is_in_disk and at >= in_memory_from:
            return None
        parts.append(window[part_start - start : end - start])
        body = b"".join(parts)
        return GetMessageResult(
            GetMessageStatus.FOUND, offset + len(sizes), queue.min_offset, high, body, tuple(sizes), is_in_disk
        )

    def _gather(
        self,
        queue: ConsumeQueue,
        offset: int,
        high: int,
        units: Iterable[tuple[int, int, int]],
        max_messages: int,
        wanted: TagFilter | PropertyFilter | None,
    ) -> GetMessageResult:
        looking = None if wanted is None or callable(wanted) else _Looking(wanted)
        tags_wanted = wanted if callable(wanted) else None
        log_end = self._commit_log.verified_offset
        in_memory_from = log_end - self._memory_bytes
        status, batch, examined = GetMessageStatus.NO_MATCHED_MESSAGE, _Batch(self._commit_log), 0
        removed_until, last_physical = 0, 0
        sizes, look, take = batch.sizes, batch.look, batch.take
        for physical_offset, size, tags_code in units:
            last_physical = physical_offset
            if physical_offset < removed_until or (physical_offset == 0 and size in (0, PRE_BLANK_SIZE)):
                status = self._unless_found(status, GetMessageStatus.MESSAGE_WAS_REMOVING)
                examined += 1
                continue
            if sizes:
                is_in_disk = physical_offset < in_memory_from
                limit_bytes, limit_count = self._limits_in_disk if is_in_disk else self._limits_in_memory
                count = len(sizes)
                if count >= max_messages or count >= limit_count or batch.total_bytes + size > limit_bytes:
                    break
            examined += 1
            if tags_wanted is not None and not tags_wanted(tags_code):
                status = self._unless_found(status, GetMessageStatus.NO_MATCHED_MESSAGE)
                continue
            if not look(physical_offset, size):
                status = self._unless_found(status, GetMessageStatus.MESSAGE_WAS_REMOVING)
                segment = self._commit_log.segment_size
                removed_until = physical_offset - physical_offset % segment + segment
                continue
            if looking is not None and not looking.matches(batch.record(physical_offset, size)):
                status = self._unless_found(status, GetMessageStatus.NO_MATCHED_MESSAGE)
            else:
                take(physical_offset, size)
                status = GetMessageStatus.FOUND
            if looking is not None and looking.effort > MAX_EFFORT:
                break
        return GetMessageResult(
            status,
            offset + examined,
            queue.min_offset,
            high,
            batch.body(),
            tuple(sizes),
            last_physical < in_memory_from,
        )

    def _gather_batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        high: int,
        units: list[BatchUnit],
        max_messages: int,
        wanted: TagFilter | PropertyFilter | None,
    ) -> GetMessageResult:
        """Whole batches: the first one may start before ``offset``. A client finds the messages in the body.

        Tags and properties are those of the batch.
        """
        looking = None if wanted is None or callable(wanted) else _Looking(wanted)
        tags_wanted = wanted if callable(wanted) else None
        log_end = self._commit_log.verified_offset
        status, batch, count = GetMessageStatus.NO_MATCHED_MESSAGE, _Batch(self._commit_log), 0
        following, last_physical = offset, 0
        for unit in units:
            if unit.base_offset >= high:
                break
            last_physical = unit.physical_offset
            if batch.sizes:
                limit_bytes, limit_count = self._limits(log_end - unit.physical_offset)
                if count + unit.batch_size > max_messages or count > limit_count - 1:
                    break
                if batch.total_bytes + unit.size > limit_bytes:
                    break
            following = unit.end_offset
            if tags_wanted is not None and not tags_wanted(unit.tags_code):
                continue
            if not batch.look(unit.physical_offset, unit.size):
                status = self._unless_found(status, GetMessageStatus.MESSAGE_WAS_REMOVING)
                continue
            if looking is None or looking.matches(batch.record(unit.physical_offset, unit.size)):
                batch.take(unit.physical_offset, unit.size)
                count += unit.batch_size
                status = GetMessageStatus.FOUND
            if looking is not None and looking.effort > MAX_EFFORT:
                break
        far_behind = log_end - last_physical > self._memory_bytes
        return GetMessageResult(status, following, queue.min_offset, high, batch.body(), tuple(batch.sizes), far_behind)

    def readable_end(self, queue: ConsumeQueue) -> int:
        """The queue offset where reads of a queue end. Raises OSError."""
        limit = self.limit
        if limit is None or limit.offset >= self._commit_log.verified_offset:
            return queue.max_offset
        if self._ends_at != limit.offset:
            self._ends.clear()
            self._ends_at = limit.offset
        end = self._ends.get(queue)
        if end is None:
            end = queue.end_before(limit.offset)
            if end < queue.max_offset:  # units that come later are after the limit too
                self._ends[queue] = end
        return end

    def confirmed_at(self, topic: str, queue_id: int, offset: int, wanted: TagFilter | None = None) -> int | None:
        """The offset in the log that must be confirmed before a read from a queue offset on gives a wanted message.

        If none of many messages is wanted, the read can go on after them. None if no message there is wanted. Raises
        OSError.
        """
        queue = self._queues.read(topic, queue_id)
        if queue is None:
            return None
        units, following = self._places(queue, offset)
        end: int | None = None
        for physical_offset, size, tags_code in units:
            if size > 0 and size != PRE_BLANK_SIZE:
                end = physical_offset + size
                if wanted is None or wanted(tags_code):
                    return end
        return end if following < queue.max_offset else None

    @staticmethod
    def _places(queue: ConsumeQueue, offset: int) -> tuple[Iterable[tuple[int, int, int]], int]:
        """Where some messages of a queue from ``offset`` on are in the log, and the queue offset after them."""
        if isinstance(queue, BatchConsumeQueue):
            batches = queue.batches(offset, MIN_UNITS_EXAMINED)
            return [batch[:3] for batch in batches], batches[-1].end_offset if batches else offset
        units = queue.units(offset, MIN_UNITS_EXAMINED)
        return UNIT.iter_unpack(units.data), offset + len(units)

    def _is_confirmed(self, record: Record) -> bool:
        return self.limit is None or record.physical_offset + record.total_size <= self.limit.offset

    def _limits(self, behind_bytes: int) -> tuple[int, int]:
        """The maximum bytes and messages of a read at a message this many bytes before the log's end."""
        return self._limits_in_disk if behind_bytes > self._memory_bytes else self._limits_in_memory

    @staticmethod
    def _unless_found(status: GetMessageStatus, other: GetMessageStatus) -> GetMessageStatus:
        return status if status is GetMessageStatus.FOUND else other

    def message_at(self, physical_offset: int) -> Record | None:
        """The message that starts at a physical offset, or None, also after the limit. Raises OSError.

        It is for the broker itself: what it puts because of a message is after that message in the log, and a failover
        takes both back.
        """
        found = self._message_at(physical_offset)
        return None if found is None else found[0]

    def delivered_at(self, physical_offset: int) -> Record | None:
        """The message that starts at a physical offset, if a consumer can have got it. Raises OSError.

        So it is in its queue, confirmed if reads have a limit, and of a topic that consumers read. What looks like a
        record inside the body of another message is in no queue.
        """
        record = self.message_at(physical_offset)
        if record is None or is_internal(record.topic) or not self._is_confirmed(record):
            return None
        return record if self.is_in_queue(record) else None

    def is_in_queue(self, record: Record) -> bool:
        """Whether the queue that a record names leads to this record. Raises OSError."""
        queue = self._queues.get(record.topic, record.queue_id)
        unit = None if queue is None else queue.unit(record.queue_offset)
        return unit is not None and unit.physical_offset == record.physical_offset

    def has_record(self, record: Record, dispatched_until: int) -> bool:
        """``MessageStore.has_record``. The queues have the messages before ``dispatched_until``. Raises OSError."""
        at = dispatched_until
        if record.physical_offset < at:
            return self.is_in_queue(record)
        for _ in range(MAX_RECORDS_WALKED):
            head = self._commit_log.select(at, BLANK_HEADER.size) if at < record.physical_offset else None
            if head is None:
                break
            try:
                at += peek_size(head, 0, len(head))[0]
            except RecordError:
                return False
        return at == record.physical_offset

    def message_in(self, queue: ConsumeQueue, offset: int) -> Record | None:
        """The same for the message at an offset of a queue."""
        unit = queue.unit(offset)
        return None if unit is None or unit.is_blank else self.message_at(unit.physical_offset)

    def record_at(self, physical_offset: int) -> bytes | None:
        """The bytes of the message that starts at a physical offset; None if it cannot be read. Raises OSError."""
        found = self._message_at(physical_offset)
        return None if found is None or not self._is_confirmed(found[0]) else bytes(found[1])

    def _message_at(self, physical_offset: int) -> tuple[Record, memoryview] | None:
        head = self._commit_log.select(physical_offset, BLANK_HEADER.size)
        if head is None:
            return None
        try:
            size, _ = peek_size(head, 0, len(head))
            data = self._commit_log.select(physical_offset, size)
            record = decode_record(data) if data is not None else None
        except RecordError:
            return None
        if data is None or record is None or isinstance(record, Blank) or record.physical_offset != physical_offset:
            return None
        return record, data

    def message_by_id(self, msg_id: str) -> Record | None:
        """The message with this offset message id, or None. Raises ValueError, OSError."""
        host, physical_offset = parse_msg_id(msg_id)
        record = self.message_at(physical_offset)
        return record if record is not None and record.store_host == host else None

    def query_message(self, topic: str, key: str, max_messages: int, begin: int, end: int) -> list[Record]:
        """Messages with this key, stored between ``begin`` and ``end`` (ms), oldest first. Raises OSError.

        All of them really have the key. Upstream also returns messages of keys with the same hash.
        """
        return at_once(self.query_message_in_steps(topic, key, max_messages, begin, end))

    def query_message_in_steps(
        self, topic: str, key: str, max_messages: int, begin: int, end: int, only_confirmed: bool = True
    ) -> Steps[list[Record]]:
        """The same in steps, because very many entries may share a slot. Raises OSError.

        With ``only_confirmed=False`` also what is after the limit, for the broker itself.
        """
        if self._index is None:
            return []
        limit = asked = min(max_messages, self._most_queried)
        while True:
            offsets = yield from self._index.query_in_steps(topic, key, begin, end, asked)
            found = []
            for count, offset in enumerate(dict.fromkeys(offsets), 1):
                if count % RECORDS_BATCH == 0:
                    yield
                record = self.message_at(offset)
                if record is None or (only_confirmed and not self._is_confirmed(record)):
                    continue
                if _has_key(record, topic, key) and begin <= record.store_timestamp <= end:
                    found.append(record)
            if len(found) >= limit or len(offsets) < asked or asked >= MAX_ENTRIES_QUERIED:
                return found[-limit:]
            asked *= 4  # some entries belong to other keys with this hash
            yield

    @property
    def index_last_update(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms and physical offset of the last message in the index; 0 and 0 for an empty index."""
        return (0, 0) if self._index is None else self._index.last_update

    def store_timestamp(self, physical_offset: int) -> int | None:
        """STORETIMESTAMP in ms of the message that starts at a physical offset, or None."""
        record = self.message_at(physical_offset)
        return None if record is None else record.store_timestamp

    def message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """STORETIMESTAMP in ms of the message at a queue offset; -1 without one."""
        queue = self._queues.read(topic, queue_id)
        unit = None if queue is None or offset >= self.readable_end(queue) else queue.unit(offset)
        stored = None if unit is None or unit.is_blank else self.store_timestamp(unit.physical_offset)
        return -1 if stored is None else stored

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """STORETIMESTAMP in ms of the queue's first message; -1 without one."""
        return self.message_store_timestamp(topic, queue_id, self.min_offset(topic, queue_id))

    def is_in_disk(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at a queue offset is too old to be surely in memory; false without one."""
        queue = self._queues.read(topic, queue_id)
        unit = None if queue is None else queue.unit(offset)
        return unit is not None and self._commit_log.verified_offset - unit.physical_offset > self._memory_bytes

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Where a time (ms) is in a queue; 0 without messages."""
        return at_once(self.finding_offset_by_time(topic, queue_id, timestamp, boundary))

    def finding_offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> Steps[int]:
        """Like ``offset_by_time``, in steps that read one message each."""
        queue = self._queues.read(topic, queue_id)
        if queue is None:
            return 0
        end = self.readable_end(queue)
        return (yield from queue.finding_offset_by_time(timestamp, boundary, self, end))

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit] | None:
        """At most ``count`` units of a queue from ``offset`` on, up to where reads end; None without a queue.

        Raises OSError.
        """
        queue = self._queues.read(topic, queue_id)
        if queue is None:
            return None
        if offset < queue.min_offset:
            return []
        count = min(count, self.readable_end(queue) - offset)
        return [Unit(*row.item()) for row in queue.units(offset, count)] if count > 0 else []

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The queue's first offset; -1 without a queue."""
        queue = self._queues.read(topic, queue_id)
        return -1 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset where reads end; 0 without a queue. Raises OSError."""
        queue = self._queues.read(topic, queue_id)
        return 0 if queue is None else self.readable_end(queue)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next put gets; 0 without a queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset


def _has_key(record: Record, topic: str, key: str) -> bool:
    return record.topic == topic and key in keys_of(record)
