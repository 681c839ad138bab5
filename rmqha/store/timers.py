"""Timer messages of RocketMQ 5.x: which of them wait in the log, and the check point of the timer wheel.

A 5.x master puts timer messages into the topic ``rmq_sys_wheel_timer``, and delivers them with the help of files that
are not replicated (``timerwheel``, ``timerlog``). Its check point says how far it is. A Java broker that starts on a
copy of the log, without these files, reads the topic from the check point's queue offset on. It delivers what is due
already at once, and what is due later in time. Without a check point it delivers all messages of the topic again.

Our master has no wheel: its check point has the timerlog position 0. The queue offset is that of the first message
that waits. The master's queue offset is where it will read on. So it knows after a restart which messages between
both were delivered.

::

    config/timercheck: seven i64: next time to deliver (ms), timerlog position, queue offset, the master's queue
    offset, stateVersion, timestamp (ms) and counter of the data version; then zeros up to 4096 bytes
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from rmqha.kit.steps import Steps, at_once
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.wire.record import Record
from rmqha.wire.timers import REAL_TOPIC, TIMER_TOPIC, due_of

CHECK_POINT_FILE = "timercheck"
WHEEL_FILES = ("timerwheel", "timerlog")
"""In the root of a store of a Java 5.x broker: the wheel, and its folder of entries that point into the log."""
CHECK_POINT = Struct(">7q")
FILE_BYTES = 4096
MESSAGES_A_STEP = 64
MOST_COUNTED = 200_000
"""A promotion looks at no more messages than this to count those that wait."""

ReadMessage = Callable[[int], Record | None]
"""The message that starts at an offset of the log, or None."""


class TimerCheckPoint(NamedTuple):
    """How far a master has come: messages before both queue offsets, due before ``last_read_ms``, are delivered."""

    last_read_ms: int
    log_flush_pos: int
    queue_offset: int
    master_queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    @classmethod
    def parse(cls, data: bytes) -> "TimerCheckPoint":
        """From a file or an answer. Raises ValueError if it is too short, or has a negative time or offset."""
        if len(data) < CHECK_POINT.size:
            raise ValueError(f"a timer check point has {CHECK_POINT.size} bytes, not {len(data)}")
        found = cls(*CHECK_POINT.unpack_from(data))
        if min(found[:4]) < 0:
            raise ValueError(f"a timer check point with a negative time or offset: {tuple(found)}")
        return found

    def encode(self) -> bytes:
        """The body of an answer."""
        return CHECK_POINT.pack(*self)

    @classmethod
    def read(cls, config: Path, disk: Disk = DISK) -> "TimerCheckPoint | None":
        """The check point of a store's config folder. None if there is none, or an invalid one. Raises OSError."""
        try:
            return cls.parse(disk.read(config / CHECK_POINT_FILE))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, config: Path, disk: Disk = DISK) -> None:
        """Write it, durably, as a Java broker would. Raises OSError."""
        disk.replace(config / CHECK_POINT_FILE, self.encode().ljust(FILE_BYTES, b"\0"))

    @property
    def is_of_a_wheel(self) -> bool:
        """Whether messages before the queue offset may wait, because they are in the wheel of a Java broker."""
        return self.log_flush_pos > 0

    def from_offset(self, queue_offset: int, end: int) -> "TimerCheckPoint":
        """For a store without the wheel: the broker that starts on it reads the topic from this offset on.

        ``end`` is the end of the topic's queue there.
        """
        known = max(queue_offset, min(self.master_queue_offset, end))
        return self._replace(log_flush_pos=0, queue_offset=queue_offset, master_queue_offset=known)

    def is_delivered(self, queue_offset: int, due: int) -> bool:
        """Whether the message at this queue offset, due at this time, was delivered."""
        return queue_offset < self.master_queue_offset and due < self.last_read_ms

    def first_to_read(self, low: int, high: int) -> int:
        """The first queue offset, from ``low`` to ``high``, where a message may wait."""
        return low if self.is_of_a_wheel else min(max(self.queue_offset, low), high)


def due_ms(message: Record | None) -> int | None:
    """When a timer message is to be delivered. None for any other message, or none."""
    return None if message is None else due_of(message.properties)


def finding_first_waiting(queue: ConsumeQueue, read: ReadMessage, start: int, point: TimerCheckPoint) -> Steps[int]:
    """The offset of the first message, from ``start`` on, that ``point`` does not call delivered. In steps.

    The offset of the master, or the queue's end, if all before it are delivered. Raises OSError.
    """
    at = max(start, queue.min_offset)
    end = min(point.master_queue_offset, queue.max_offset)
    while at < end:
        due = _due_at(queue, read, at)
        if due is not None and due >= point.last_read_ms:
            break
        at += 1
        if at % MESSAGES_A_STEP == 0:
            yield
    return min(at, queue.max_offset)


def first_waiting(queue: ConsumeQueue, read: ReadMessage, start: int, point: TimerCheckPoint) -> int:
    """The same at once."""
    return at_once(finding_first_waiting(queue, read, start, point))


def _due_at(queue: ConsumeQueue, read: ReadMessage, offset: int) -> int | None:
    unit = queue.unit(offset)
    return None if unit is None or unit.is_blank else due_ms(read(unit.physical_offset))


@dataclass(frozen=True, slots=True)
class WaitingTimers:
    """How many timer messages wait, by their real topics. Not ``is_all`` if there may be more."""

    topics: Counter[str]
    is_all: bool = True

    @property
    def count(self) -> int:
        """How many there are."""
        return self.topics.total()


def waiting_timers(
    queue: ConsumeQueue | None,
    read: ReadMessage,
    point: TimerCheckPoint | None,
    now_ms: int,
    each: Callable[[Record], None] = lambda _: None,
) -> WaitingTimers:
    """The timer messages that nobody has delivered. Without a check point: those that are due at ``now_ms`` or later.

    Cancelled messages count too. ``each`` is called with each of them. Raises OSError.
    """
    topics: Counter[str] = Counter()
    if queue is None:
        return WaitingTimers(topics)
    low, high = queue.min_offset, queue.max_offset
    start = low if point is None else point.first_to_read(low, high)
    for offset in range(start, min(high, start + MOST_COUNTED)):
        unit = queue.unit(offset)
        message = None if unit is None or unit.is_blank else read(unit.physical_offset)
        due = due_ms(message)
        if message is None or due is None:
            continue
        if due < now_ms if point is None else point.is_delivered(offset, due):
            continue
        topics[message.properties.get(REAL_TOPIC, TIMER_TOPIC)] += 1
        each(message)
    return WaitingTimers(topics, high - start <= MOST_COUNTED)
