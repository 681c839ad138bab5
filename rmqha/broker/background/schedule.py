"""Delayed messages to where they belong, when their time has come (spec/store.md 12).

A delayed message lies in SCHEDULE_TOPIC_XXXX, whose queue is its level less one; with one delay to all of a level, the
queue is in the order of their times. Only masters deliver. A message may come twice after a crash, never not at all.
"""

from collections.abc import Callable
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.broker.tables.configmanager import ConfigManager, TableStorage
from rmqha.broker.tables.topics import TRANS_HALF_TOPIC
from rmqha.services import PeriodicService
from rmqha.settings import Settings
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.log.flush import RunInThread
from rmqha.store.message import Message, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import DelayOffsetTable
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import Record

FIRST_DELAY_SECONDS = 1.0
DELAY_FOR_A_WHILE_SECONDS = 0.1
DELAY_FOR_A_PERIOD_SECONDS = 10.0
LONGEST_SLEEP_SECONDS = 1.0
"""How soon a wall clock that was set forward is noticed."""
MOST_DELIVERIES_AT_ONCE = 32
"""Of one level; then others have their turn."""
NEVER_STORED = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)


class ScheduleMessageService(ConfigManager[DelayOffsetTable]):
    """Delivers what is due while it runs; ``table`` tells how far each level is, also while it does not."""

    def __init__(
        self,
        folder: Path,
        store: MessageStore,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        run_in_thread: RunInThread = execute,
    ) -> None:
        """Reads delayOffset.json of ``folder``. Raises StoreError, OSError."""
        super().__init__(TableStorage(folder, run_in_thread), DelayOffsetTable)
        self._store = store
        self._delay_levels = settings.message_delay_level
        self._delivery_clock = clock
        self._now_ms = now_ms
        seconds = settings.flush_delay_offset_interval_ms / 1000
        self._persisting = PeriodicService(
            "writing delay offsets", seconds, self._persist_changes, clock, first_after=seconds
        )
        self._written = dict(self.table.offset_table)
        self._levels: list[DelayLevelDelivery] = []

    def startService(self) -> None:
        """Start to deliver, on a master."""
        Service.startService(self)
        if self._store.is_slave:
            return
        offsets, store, clock = self.table.offset_table, self._store, self._delivery_clock
        self._levels = [
            DelayLevelDelivery(level, offsets, store, self._delay_levels.delay_ms(level), clock, self._now_ms)
            for level in range(1, self._delay_levels.max_level + 1)
        ]
        store.subscribe(self._message_arrived)
        self._persisting.startService()

    async def _stop(self) -> None:
        await self._persisting.stopService()
        levels, self._levels = self._levels, []
        for level in levels:
            level.stop()
        self._persist_changes()
        await super().stopService()

    def stopService(self) -> Deferred[None]:
        """Stop to deliver, and write how far it is."""
        return Deferred.fromCoroutine(self._stop())

    def replace(self, table: DelayOffsetTable) -> None:
        """Hold this table instead: a slave that follows its master."""
        self.table = table
        self._persist_changes()

    def progress(self) -> dict[int, tuple[int, int]]:
        """By level that ever had a message: the next offset to deliver, and the queue's end."""
        ends = {
            level: self._store.reader.max_offset(SCHEDULE_TOPIC, level - 1)
            for level in range(1, self._delay_levels.max_level + 1)
        }
        return {level: (self.table.offset_table.get(level, 0), end) for level, end in ends.items() if end}

    def _message_arrived(self, request: DispatchRequest, _: int) -> None:
        if request.topic == SCHEDULE_TOPIC and 0 <= request.queue_id < len(self._levels):
            self._levels[request.queue_id].message_arrived()

    def _persist_changes(self) -> None:
        if self.table.offset_table != self._written:
            self._written = dict(self.table.offset_table)
            self.persist()


class DelayLevelDelivery:
    """Delivers one level. ``offsets`` has the next queue offset of each level: it moves when a message is delivered."""

    _log = Logger()

    def __init__(
        self,
        level: int,
        offsets: dict[int, int],
        store: MessageStore,
        delay_ms: int,
        clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        self._level = level
        self._offsets = offsets
        self._store = store
        self._delay_ms = delay_ms
        self._clock = clock
        self._now_ms = now_ms
        self._next_look: IDelayedCall | None = None
        self._delivering: Deferred[float | None] | None = None
        self._is_stopped = False
        self._head_offset, self._head_stored_at = -1, 0  # of a message that is not due yet
        self._refused_as: PutMessageStatus | None = None
        self._correct_offset(store.derived.queues.get(SCHEDULE_TOPIC, level - 1))
        self._look_in(FIRST_DELAY_SECONDS)

    def _correct_offset(self, queue: ConsumeQueue | None) -> None:
        """Go on with what the queue has: retention may have taken messages, and a cut log given some back."""
        offset = self._offsets.get(self._level)
        if offset is not None:
            low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
            self._offsets[self._level] = min(max(offset, low), high)

    def message_arrived(self) -> None:
        """Another message of this level has its place in the queue: one looks for it, if nothing else is waited for."""
        if self._delivering is None:
            self._look_in(0.0)

    def stop(self) -> None:
        """Deliver no more."""
        self._is_stopped = True
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._delivering is not None:
            self._delivering.cancel()

    def _look_in(self, seconds: float) -> None:
        """Look for what is due then, if no look is to come anyway."""
        if self._next_look is None:
            self._next_look = self._clock.callLater(seconds, self._look)

    def _look(self) -> None:
        self._next_look = None
        self._delivering = Deferred.fromCoroutine(self._deliver_due())
        self._delivering.addCallback(self._delivered).addErrback(self._failed)

    def _delivered(self, again_in: float | None) -> None:
        self._delivering = None
        if again_in is not None and not self._is_stopped:
            self._look_in(again_in)

    def _failed(self, failure: Failure) -> None:
        self._delivering = None
        if not self._is_stopped:
            self._log.failure("delay level {delay_level} pauses", failure, delay_level=self._level)
            self._look_in(DELAY_FOR_A_PERIOD_SECONDS)

    async def _deliver_due(self) -> float | None:
        """Deliver what is due, up to a bound; in how many seconds to look again, None when a message arrives."""
        queue = self._store.derived.queues.get(SCHEDULE_TOPIC, self._level - 1)
        if queue is None:
            return None
        for _ in range(MOST_DELIVERIES_AT_ONCE):
            offset = max(self._offsets.get(self._level, 0), queue.min_offset)
            if offset >= queue.max_offset:
                return None
            wait_ms = self._wait_ms(self._head_stored_at) if offset == self._head_offset else 0
            record = self._record(queue, offset) if wait_ms == 0 else None
            if record is not None:
                self._head_offset, self._head_stored_at = offset, record.store_timestamp
                wait_ms = self._wait_ms(record.store_timestamp)
            if wait_ms > 0:
                return min(wait_ms / 1000, LONGEST_SLEEP_SECONDS)
            if record is not None and not await self._deliver(record):
                return DELAY_FOR_A_WHILE_SECONDS
            self._offsets[self._level] = offset + 1
        return 0.0

    def _record(self, queue: ConsumeQueue, offset: int) -> Record | None:
        """The message at a queue offset; None if the log no longer has it."""
        unit = queue.unit(offset)
        return None if unit is None or unit.is_blank else self._store.reader.message_at(unit.physical_offset)

    def _wait_ms(self, stored_at: int) -> int:
        """How long a message still has; one stored later than now, as a clock that was set back has it, has none."""
        wait_ms = stored_at + self._delay_ms - self._now_ms()
        return wait_ms if 0 < wait_ms <= self._delay_ms else 0

    async def _deliver(self, record: Record) -> bool:
        """Put the message where it belongs; whether it needs no more tries."""
        message = delivered_message(record)
        if message is None:
            self._log.error(
                "message {msg_id} of level {delay_level} has no place to go",
                msg_id=record.msg_id,
                delay_level=self._level,
            )
            return True
        result: PutMessageResult = await self._store.put_message(message)
        if result.is_stored:
            self._refused_as = None
            return True
        if result.status is not self._refused_as:  # once, however often it is tried
            self._refused_as = result.status
            self._tell_refused(record, result.status)
        return result.status in NEVER_STORED

    def _tell_refused(self, record: Record, status: PutMessageStatus) -> None:
        self._log.warn(
            "message {msg_id} of level {delay_level} is not delivered: {status}",
            msg_id=record.msg_id,
            delay_level=self._level,
            status=status.name,
        )


def delivered_message(record: Record) -> Message | None:
    """A delayed message as it is put at last; None if it does not say where, or may not go there.

    Its stored properties stay as they are, DELAY among them (spec/remoting.md 6.3): what is put looks at none of them.
    """
    properties = record.properties
    topic, queue_id = properties.get("REAL_TOPIC"), properties.get("REAL_QID", "")
    if topic is None or topic == TRANS_HALF_TOPIC or not (queue_id.isascii() and queue_id.isdecimal()):
        return None
    return Message(
        topic,
        record.body,
        {"WAIT": "false"},
        int(queue_id),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        properties_stored=record.properties_stored,
    )
