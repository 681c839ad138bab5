"""Sends stored messages again: those of a log, of bytes that were cut off one, or of an archive.

``Planner`` decides what becomes of a stored message (spec/store.md 3.6, 3.12, 12; spec/remoting.md 6.3). ``Replay``
sends the messages. It keeps the order of each queue, and goes on after a message that a broker refuses. If it is
repeated from where it stopped, up to ``IN_FLIGHT`` messages may be sent twice, and none is left out. With a ``Memory``
it first asks the brokers for these messages, by their ``MARK``.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import Interface

from rmqha.client.errors import MQBrokerError, MQClientError, TopicNotFound
from rmqha.client.message import UNIQ_KEY, Message, MessageQueue, SendStatus
from rmqha.client.producer import Producer
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.record import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    MULTI_TAGS_FLAG,
    QUEUED_TRANSACTION_TYPES,
    TRANSACTION_TYPE_MASK,
    Record,
)
from rmqha.wire.timers import (
    CANCELS,
    DELIVER_MS,
    TIMER_CANCELS,
    TIMER_OUT_MS,
    TIMER_PROPERTIES,
    TIMER_TOPIC,
    cancelled_or_own_key,
    rolls_of,
)
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, RETRY_PREFIX, SYSTEM_TOPICS

IN_FLIGHT = 32
MOST_DIGITS = 18
DELAYED_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Where messages wait for their time."""
MAX_FAILURES = 1000
KEPT_FLAGS = COMPRESSED_FLAG | COMPRESSION_TYPE_MASK | MULTI_TAGS_FLAG
BROKER_MADE = frozenset(
    {
        "CLUSTER",
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "WAIT",
        "MSG_REGION",
        "TRACE_ON",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "CONSUME_START_TIME",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "INNER_BASE",
        "DUP_INFO",
        "__CRC32#",
        *TIMER_PROPERTIES,
    }
)
"""Properties that brokers and clients make for one delivery (spec/store.md 3.12, spec/remoting.md 6.3): dropped.

A message of a retry topic keeps RETRY_TOPIC and ORIGIN_MESSAGE_ID, because its consumers need them.
"""
RETRY_PROPERTIES = frozenset({"RETRY_TOPIC", "ORIGIN_MESSAGE_ID"})


MARK = "RMQHA_REPLAY"
"""A property of each message that was sent again: the id of its source and its position there, as ``ID:POSITION``."""


class Fate(Enum):
    """What becomes of a stored message."""

    SENT = "to send"
    HALF = "half messages of transactions"
    OPERATION = "operations on half messages"
    DELIVERED = "delayed messages that were delivered later in the same source, cancelled, or are there twice"
    SYSTEM = "messages of system topics"
    UNSENDABLE = "messages that cannot be sent"
    OTHER = "not selected"


class Delayed(Enum):
    """How a delayed message is sent again: for the rest of its time, for all of it, or at once."""

    REMAINING = "remaining"
    LEVEL = "level"
    NOW = "now"


class Stored(NamedTuple):
    """A stored message. ``position`` orders the messages of its source: an offset in a log, or the number of a line.

    ``problem`` says why its content is not known exactly.
    """

    position: int
    record: Record
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages to send. None selects all. Times are in milliseconds; ranges are half open.

    A delayed message counts as one of the topic and the queue that it is for. ``keys`` are of KEYS or UNIQ_KEY.
    """

    topics: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    start: int = 0
    end: int | None = None
    start_time: int | None = None
    end_time: int | None = None

    def within(self, position: int) -> bool:
        """Whether the position is in the range."""
        return position >= self.start and (self.end is None or position < self.end)

    def accepts(self, target: "Target", properties: dict[str, str], store_timestamp: int) -> bool:
        """Whether a message is selected by all but its position."""
        keys = {*properties.get("KEYS", "").split(), properties.get(UNIQ_KEY, "")}
        return (
            (self.topics is None or target.topic in self.topics)
            and (self.queue_ids is None or target.queue_id in self.queue_ids)
            and (self.tags is None or properties.get("TAGS") in self.tags)
            and (self.keys is None or bool(self.keys & keys))
            and (self.start_time is None or store_timestamp >= self.start_time)
            and (self.end_time is None or store_timestamp < self.end_time)
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """How messages are sent: to ``topic`` instead of their own, with the ``MARK`` of a source of this id. None for
    neither.
    """

    topic: str | None = None
    source_id: str | None = None


class Target(NamedTuple):
    """Where a message was to be read: delayed and half messages lie elsewhere until then."""

    topic: str
    queue_id: int


class Outgoing(NamedTuple):
    """What becomes of a stored message. ``message`` is None, and ``problem`` may say why, unless it is sent."""

    position: int
    target: Target
    fate: Fate
    message: Message | None = None
    problem: str | None = None


@dataclass(slots=True)
class Survey:
    """What a look at a source has counted: messages to send by topic, and others by their fate.

    ``end`` is the position that follows all messages.
    """

    to_send: Counter[str] = field(default_factory=Counter)
    others: Counter[Fate] = field(default_factory=Counter)
    end: int = 0

    @property
    def messages(self) -> int:
        """How many messages are to be sent."""
        return self.to_send.total()


class WaitingMessages:
    """Which delayed messages and timer messages of a source need not be sent: those that it also has as delivered.

    Neither need timer messages that another message cancels, nor copies of those that were put again while they waited.
    """

    def __init__(self) -> None:
        self._noted_ends: array[int] = array("q")
        self._noted_originals: array[int] = array("q")
        self._waiting: dict[str, array[int]] = {}
        self._copies: dict[str, array[int]] = {}
        self._ends = self._originals = np.empty(0, np.int64)

    def note(self, record: Record, topic: str) -> None:
        """A message of the source, whose real topic is this."""
        properties = record.properties
        if record.topic in DELAYED_TOPICS:
            identity = _identity(record, topic)
            rolls = rolls_of(properties) if record.topic == TIMER_TOPIC else 0
            if rolls == CANCELS:
                self._noted_ends.append(identity)
                return
            self._waiting.setdefault(topic, array("q")).append(identity)
            noted = self._copies.setdefault(topic, array("q")) if rolls > 0 else self._noted_originals
            noted.append(identity)
        elif properties.get("REAL_TOPIC") == topic and ("DELAY" in properties or TIMER_OUT_MS in properties):
            self._noted_ends.append(_identity(record, topic))

    def settle(self) -> Iterator[tuple[str, int]]:
        """All was noted. Gives how many messages of each topic need not be sent."""
        self._ends = np.unique(np.array(self._noted_ends, np.int64))
        self._originals = np.unique(np.array(self._noted_originals, np.int64))
        for topic, noted in self._waiting.items():
            have_ended = np.isin(np.array(noted, np.int64), self._ends)
            copies = np.array(self._copies.get(topic, ()), np.int64)
            are_double = np.isin(copies, self._originals) & ~np.isin(copies, self._ends)
            yield topic, int(have_ended.sum() + are_double.sum())

    def is_needed(self, record: Record, topic: str) -> bool:
        """Whether the message must be sent, once all was noted. Before that it is, unless it cancels another one."""
        if record.topic not in DELAYED_TOPICS:
            return True
        rolls = rolls_of(record.properties) if record.topic == TIMER_TOPIC else 0
        identity = _identity(record, topic)
        is_double = rolls > 0 and _has(self._originals, identity)
        return rolls != CANCELS and not is_double and not _has(self._ends, identity)


def _has(identities: npt.NDArray[np.int64], identity: int) -> bool:
    """Whether a sorted array has the number."""
    at = int(np.searchsorted(identities, identity))
    return at < len(identities) and bool(identities[at] == identity)


class Planner:
    """Decides what becomes of each stored message. First it must ``survey`` the source."""

    def __init__(
        self,
        wanted: Wanted,
        delayed: Delayed = Delayed.REMAINING,
        levels: DelayLevels | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sent: Sent = Sent(),
    ) -> None:
        self._wanted = wanted
        self._sent = sent
        self._delayed = delayed
        self._levels = DelayLevels() if levels is None else levels
        self._now_ms = now_ms
        self._waiting = WaitingMessages()

    def survey(self, source: Iterable[Stored | None]) -> Survey:
        """Count what would be sent, and note which delayed messages need not be: 8 bytes of memory for each."""
        found = Survey()
        self._waiting = waiting = WaitingMessages()
        for stored in source:
            outgoing = None if stored is None else self.plan(stored)
            if stored is None or outgoing is None:
                continue
            found.end = stored.position + 1
            if outgoing.fate is Fate.SENT or self._cancels(stored):
                waiting.note(stored.record, outgoing.target.topic)
            if outgoing.fate is Fate.OTHER:
                continue
            if outgoing.fate is Fate.SENT:
                found.to_send[outgoing.target.topic] += 1
            else:
                found.others[outgoing.fate] += 1
        for topic, count in waiting.settle():
            found.to_send[topic] -= count
            found.others[Fate.DELIVERED] += count
        found.to_send, found.others = +found.to_send, +found.others
        return found

    def _cancels(self, stored: Stored) -> bool:
        """Whether the message cancels another one: that counts although it has other tags, or another queue."""
        is_timer = stored.record.topic == TIMER_TOPIC and self._wanted.within(stored.position)
        return is_timer and rolls_of(stored.record.properties) == CANCELS

    def plan(self, stored: Stored) -> Outgoing:
        """What becomes of a message."""
        record = stored.record
        properties = record.properties
        target = target_of(record, properties)
        is_wanted = self._wanted.within(stored.position)
        if not is_wanted or not self._wanted.accepts(target, properties, record.store_timestamp):
            return Outgoing(stored.position, target, Fate.OTHER)
        fate = self._fate(record, target)
        if fate is not Fate.SENT:
            return Outgoing(stored.position, target, fate)
        message = self._message(stored, target, properties)
        problem = stored.problem or _problem(message)
        if problem is not None:
            return Outgoing(stored.position, target, Fate.UNSENDABLE, None, problem)
        return Outgoing(stored.position, target, Fate.SENT, message)

    def _fate(self, record: Record, target: Target) -> Fate:
        if record.topic == OPERATION_TOPIC:
            return Fate.OPERATION
        is_queued = record.sys_flag & TRANSACTION_TYPE_MASK in QUEUED_TRANSACTION_TYPES
        if HALF_TOPIC in (record.topic, target.topic) or not is_queued:
            return Fate.HALF
        if target.topic in SYSTEM_TOPICS or target.topic in DELAYED_TOPICS:
            return Fate.SYSTEM
        return Fate.SENT if self._waiting.is_needed(record, target.topic) else Fate.DELIVERED

    def _message(self, stored: Stored, target: Target, properties: dict[str, str]) -> Message:
        record = stored.record
        dropped = BROKER_MADE if target.topic.startswith(RETRY_PREFIX) else BROKER_MADE | RETRY_PROPERTIES
        kept = {name: value for name, value in properties.items() if name not in dropped}
        if self._sent.source_id is not None:
            kept[MARK] = f"{self._sent.source_id}:{stored.position}"
            kept.setdefault(UNIQ_KEY, uuid5(NAMESPACE_OID, kept[MARK]).hex.upper())  # so that it can be asked for
        if record.topic == TIMER_TOPIC and self._waits(properties):
            kept[DELIVER_MS] = str(int(properties[TIMER_OUT_MS]) + 1)  # the broker takes one off, to find the second
        return Message(
            self._sent.topic or target.topic,
            record.body,
            kept.pop("TAGS", ""),
            kept.pop("KEYS", ""),
            kept,
            record.flag,
            self._level(record, properties) if record.topic == SCHEDULE_TOPIC else 0,
            sys_flag=record.sys_flag & KEPT_FLAGS,
            reconsume_times=record.reconsume_times,
        )

    def _waits(self, properties: dict[str, str]) -> bool:
        """Whether a timer message is to wait for the rest of its time."""
        due = properties.get(TIMER_OUT_MS, "")
        is_time = due.isascii() and due.isdecimal() and len(due) <= MOST_DIGITS
        return self._delayed is not Delayed.NOW and is_time and int(due) > self._now_ms()

    def _level(self, record: Record, properties: dict[str, str]) -> int:
        """The delay level to send with. The rest of the time is rounded up to the next level."""
        try:
            level = min(int(properties.get("DELAY", "0")), self._levels.max_level)
        except ValueError:
            return 0
        if self._delayed is Delayed.NOW or level <= 0:
            return 0
        if self._delayed is Delayed.LEVEL:
            return level
        left = self._levels.delivery_time(level, record.store_timestamp) - self._now_ms()
        if left <= 0:
            return 0
        fitting = [one for one in range(1, self._levels.max_level + 1) if self._levels.delay_ms(one) >= left]
        return min(fitting, key=self._levels.delay_ms, default=level)


def target_of(record: Record, properties: dict[str, str]) -> Target:
    """Where a message with these properties was to be read."""
    queue_id = properties.get("REAL_QID", "")
    if record.topic not in (*DELAYED_TOPICS, HALF_TOPIC) or not (queue_id.isascii() and queue_id.isdecimal()):
        return Target(record.topic, record.queue_id)
    return Target(properties.get("REAL_TOPIC", record.topic), int(queue_id))


def _identity(record: Record, topic: str) -> int:
    """A number that a delayed message and the message delivered from it share."""
    properties = record.properties
    if TIMER_CANCELS in properties or (TIMER_OUT_MS in properties and UNIQ_KEY in properties):
        own = cancelled_or_own_key(properties), properties.get(TIMER_OUT_MS)
        return hash((*own, record.reconsume_times))  # each retry of a delivered one waits for a delay of its own
    key = properties.get(UNIQ_KEY) or (record.born_timestamp, record.body_crc, len(record.body))
    return hash((topic, key, record.reconsume_times))


def _problem(message: Message) -> str | None:
    """Why a message cannot be sent; None if it can."""
    try:
        message.stored_properties(message.unique_key).encode()
        message.topic.encode()
    except UnicodeEncodeError:
        return "its topic or properties are not UTF-8, and a request must be"
    except ValueError as error:
        return str(error)
    return None


class Failure(NamedTuple):
    """A message that was not stored, and why."""

    position: int
    topic: str
    reason: str


@dataclass(slots=True)
class Progress:
    """How far a replay is. All before ``position`` is done, and nothing from ``reached`` on was sent.

    It ends before ``end``, None before the first look at the source: a source that is the broker's own store grows by
    what is sent. ``done`` are positions from ``position`` on that have a result, ``unknown`` those that were sent and
    have none. ``found`` counts messages that a broker had already; ``again`` those of ``unknown`` that none had.
    """

    position: int = 0
    reached: int = 0
    statuses: Counter[SendStatus] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    end: int | None = None
    done: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    found: int = 0
    again: int = 0

    @property
    def results(self) -> int:
        """How many messages have a result."""
        return self.statuses.total() + len(self.failures) + self.found


class TooManyFailures(Exception):
    """Many messages were refused, and the rest would be, too."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """``rate`` limits messages a second, None does not. With ``keeps_queues`` a message goes to the queue it had.

    After ``max_failures`` refused messages the replay ends.
    """

    rate: float | None = None
    keeps_queues: bool = True
    max_failures: int = MAX_FAILURES


class IReplayMemory(Interface):
    """What remembers how far a replay is."""

    def sends(position: int) -> None:
        """The message of this position is about to be sent."""

    def has_result(position: int, status: SendStatus | None) -> None:
        """It was stored, or, with None, refused."""

    def changed(progress: Progress) -> None:
        """This is the progress after a result."""

    async def is_there(message: Message) -> bool:
        """Whether a broker has this marked message already. Raises MQClientError, MQBrokerError."""


class Replay:
    """Sends planned messages. With ``asks_all`` the memory is asked whether each of them is there, else only those of
    ``Progress.unknown``.
    """

    def __init__(
        self,
        producer: Producer,
        clock: IReactorTime,
        memory: IReplayMemory,
        options: ReplayOptions = ReplayOptions(),
        progress: Progress | None = None,
        asks_all: bool = False,
    ) -> None:
        """``progress`` is that of an earlier run, which this one continues."""
        self.progress = Progress() if progress is None else progress
        self._memory = memory
        self._asks_all = asks_all
        self._asked = frozenset(self.progress.unknown)
        self._clock = clock
        self._producer = producer
        self._options = options
        self._under_way: dict[int, Target] = {}
        self._next_position = self.progress.position
        self._waiting: Deferred[None] | None = None
        self._ended_by: Exception | None = None
        self._next_at = clock.seconds()

    async def run(self, outgoing: Iterable[Outgoing | None]) -> None:
        """Send them in their order. None lets the reactor do other work.

        Raises MQClientError if no broker answers, TooManyFailures; what was sent before has its result.
        """
        try:
            for one in outgoing:
                if one is None:
                    await deferLater(self._clock, 0)
                elif one.message is not None and one.position not in self.progress.done:
                    await self._turn(one.target)
                    if self._ended_by is not None:
                        break
                    self._start(one, one.message)
                else:
                    self._pass(one)
        finally:
            while self._under_way:  # also after Ctrl-C: each has its result within the producer's time
                await self._some_result()
            self._memory.changed(self.progress)
        if self._ended_by is not None:
            raise self._ended_by

    def _pass(self, one: Outgoing) -> None:
        """Count a message that is not sent."""
        if one.fate is Fate.UNSENDABLE and one.position not in self.progress.done:
            self.progress.done.add(one.position)
            self._failed(one, one.problem or "it cannot be sent")
        self._next_position = one.position + 1
        self._move()

    async def _turn(self, target: Target) -> None:
        """Wait until a place is free, the last message for the queue has its result, and the rate allows the next."""
        while len(self._under_way) >= IN_FLIGHT or target in self._under_way.values():
            await self._some_result()
        if self._options.rate is not None:
            if (wait_seconds := self._next_at - self._clock.seconds()) > 0:
                await deferLater(self._clock, wait_seconds)
            self._next_at = max(self._next_at, self._clock.seconds()) + 1 / self._options.rate

    async def _some_result(self) -> None:
        self._waiting = Deferred()
        await self._waiting

    def _start(self, one: Outgoing, message: Message) -> None:
        self._under_way[one.position] = one.target
        self._next_position = one.position + 1
        self.progress.reached = max(self.progress.reached, self._next_position)
        self.progress.unknown.add(one.position)
        self._memory.sends(one.position)
        sending = Deferred.fromCoroutine(self._send(one, message))
        sending.addBoth(self._has_result, one)

    async def _send(self, one: Outgoing, message: Message) -> None:
        try:
            if await self._is_there(one.position, message):
                return
            queue = await self._queue(message.topic, one.target.queue_id) if self._options.keeps_queues else None
            result = await self._producer.send(message, queue)
            self.progress.statuses[result.status] += 1
            self._memory.has_result(one.position, result.status)
        except (MQBrokerError, TopicNotFound, ValueError) as error:
            self._failed(one, str(error))
            self._memory.has_result(one.position, None)

    async def _is_there(self, position: int, message: Message) -> bool:
        """Whether an earlier run has sent it."""
        was_sent = position in self._asked
        if not was_sent and not self._asks_all:
            return False
        is_there = await self._memory.is_there(message)
        self.progress.found += is_there
        self.progress.again += was_sent and not is_there
        return is_there

    async def _queue(self, topic: str, queue_id: int) -> MessageQueue | None:
        """The queue of this number, on the first master that has it; None if none has."""
        queues = await self._producer.queues_to_write(topic)
        return next((queue for queue in queues if queue.queue_id == queue_id), None)

    def _failed(self, one: Outgoing, reason: str) -> None:
        failures = self.progress.failures
        failures.append(Failure(one.position, one.target.topic, reason))
        if len(failures) >= self._options.max_failures and self._ended_by is None:
            self._ended_by = TooManyFailures(f"{len(failures)} messages were refused, the last one: {reason}")

    def _has_result(self, outcome: object, one: Outgoing) -> None:
        del self._under_way[one.position]
        if not isinstance(outcome, TwistedFailure):
            self.progress.unknown.discard(one.position)
            self.progress.done.add(one.position)
        elif self._ended_by is None:  # whether it is stored is not known
            self._ended_by = outcome.value if isinstance(outcome.value, Exception) else MQClientError("interrupted")
        self._move()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.callback(None)

    def _move(self) -> None:
        progress = self.progress
        position = min([self._next_position, *progress.unknown])
        if position != progress.position:  # while one message waits long, many behind it get their results
            progress.position = position
            progress.done = {one for one in progress.done if one >= position}
        self._memory.changed(progress)
