"""Delivers delayed messages to their topics when they are due (spec/store.md 12).

A delayed message waits in SCHEDULE_TOPIC_XXXX, in the queue of its level (queue id = level - 1). All messages of a
level have the same delay, so the queue is ordered by time. Only masters deliver. After a crash a message may be
delivered twice, but it is never lost: delayOffset.json says that a message was delivered only when the log on the disk
has what was put in its place. A slave takes its master's offsets under the same condition.
"""

from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.broker.background.held import Held
from rmqha.broker.interfaces import IDelayLevels
from rmqha.broker.tables.configmanager import ConfigManager, TableStorage
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.threads import RunInThread
from rmqha.kit.wallclock import IWallClock
from rmqha.settings.settings import Settings
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.message import NEVER_STORED, Message, PutMessageResult, PutMessageStatus, put_again
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import DelayOffsetTable
from rmqha.store.readlimit import Wait
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import Record
from rmqha.wire.topics import NO_SENDS_TO

FIRST_DELAY_SECONDS = 1.0
DELAY_FOR_A_WHILE_SECONDS = 0.1
DELAY_FOR_A_PERIOD_SECONDS = 10.0
FLUSH_LOOK_SECONDS = 0.5
"""How often offsets look whether the log is flushed that they belong to."""
MAX_SLEEP_SECONDS = 1.0
"""The time until a wall clock that was set forward is noticed."""
MAX_QUEUE_DIGITS = 9
DELIVERY_BATCH = 32
"""Messages of one level that are delivered before other levels have their turn."""


@implementer(IDelayLevels)
class ScheduleMessageService(ConfigManager[DelayOffsetTable]):
    """Delivers messages that are due while it runs, on a master. ``table`` has the next offset of each level."""

    def __init__(
        self,
        folder: Path,
        store: MessageStore,
        settings: Settings,
        clock: IReactorTime,
        wall: IWallClock,
        run_in_thread: RunInThread = execute,
    ) -> None:
        """Reads delayOffset.json of ``folder``. Raises StoreError, OSError."""
        super().__init__(TableStorage(folder, run_in_thread, disk=store.disk), DelayOffsetTable)
        self._store = store
        self._delay_levels = settings.message_delay_level
        self._delivery_clock = clock
        self._wall = wall
        seconds = settings.flush_delay_offset_interval_ms / 1000
        self._persisting = PeriodicService(
            "writing delay offsets", seconds, self._persist_changes, clock, first_after=seconds
        )
        self._on_disk = self.table.snapshot()
        """What delayOffset.json has, or will have after the write that runs."""
        self._held: Held[DelayOffsetTable] | None = None
        """Offsets that wait until the log is flushed up to this place."""
        self._flush_look: IDelayedCall | None = None
        self._levels: list[DelayLevelDelivery] = []

    def startService(self) -> None:
        """Start to deliver, if this is a master."""
        Service.startService(self)
        if self._store.is_slave:
            return
        offsets, store, clock = self.table.offset_table, self._store, self._delivery_clock
        self._levels = [
            DelayLevelDelivery(level, offsets, store, self._delay_levels.delay_ms(level), clock, self._wall)
            for level in range(1, self._delay_levels.max_level + 1)
        ]
        store.subscribe(self._message_arrived)
        self._persisting.startService()

    async def _stop(self) -> None:
        await self._persisting.stopService()
        levels, self._levels = self._levels, []
        for level in levels:
            level.stop()
        if not self._store.is_slave:
            await self._store.flushed()
            self._held = None
            self._persist_changes()
        self._stop_looking()
        await super().stopService()

    def stopService(self) -> Deferred[None]:
        """Stop delivering, and write the offsets."""
        return Deferred.fromCoroutine(self._stop())

    def replace(self, table: DelayOffsetTable, log_end: int) -> None:
        """Replace the table, on a slave that copies its master's, once our log is flushed up to ``log_end``.

        ``log_end`` is the end of the master's log after it sent the table. Before that our log may not have a message
        that the table calls delivered: if this slave were promoted then, nobody would deliver it.
        """
        self._hold(table, log_end)

    def forget_held(self) -> None:
        """The slave has another master now: a table that waits is not for its log."""
        self._held = None

    def progress(self) -> dict[int, tuple[int, int]]:
        """For each level that ever had a message: the next offset to deliver, and the end of the queue."""
        ends = {
            level: self._store.reader.max_offset(SCHEDULE_TOPIC, level - 1)
            for level in range(1, self._delay_levels.max_level + 1)
        }
        return {level: (self.table.offset_table.get(level, 0), end) for level, end in ends.items() if end}

    def _message_arrived(self, request: DispatchRequest, _: int) -> None:
        if request.topic == SCHEDULE_TOPIC and 0 <= request.queue_id < len(self._levels):
            self._levels[request.queue_id].message_arrived()

    def _persist_changes(self) -> None:
        if self.table != self._on_disk:
            self._hold(self.table.snapshot(), self._store.commit_log.max_offset)

    def _hold(self, table: DelayOffsetTable, log_end: int) -> None:
        """Write the table when the log is flushed up to ``log_end``. One that waits already goes first."""
        if self._held is None:
            self._held = Held(log_end, table)
        self._write_held()

    def _write_held(self) -> None:
        self._stop_looking()
        if self._held is None:
            return
        held = self._held
        if held.needs_flush(self._store):
            self._store.flush()
        if not held.is_over(self._store):
            self._flush_look = self._delivery_clock.callLater(FLUSH_LOOK_SECONDS, self._write_held)
            return
        self._held = None
        if self._store.is_slave:
            self.table = held.thing
        is_gone = bool(held.thing.offset_table) and not self._file.is_there  # it was set aside with the log
        if held.thing != self._on_disk or is_gone:
            self._on_disk = held.thing
            self.persist()

    def _stop_looking(self) -> None:
        if self._flush_look is not None and self._flush_look.active():
            self._flush_look.cancel()
        self._flush_look = None

    def _to_write(self) -> DelayOffsetTable:
        return self._on_disk


class DelayLevelDelivery:
    """Delivers one level. ``offsets`` has the next queue offset of each level. It grows with each delivery."""

    _log = Logger()

    def __init__(
        self,
        level: int,
        offsets: dict[int, int],
        store: MessageStore,
        delay_ms: int,
        clock: IReactorTime,
        wall: IWallClock,
    ) -> None:
        self._level = level
        self._offsets = offsets
        self._store = store
        self._delay_ms = delay_ms
        self._clock = clock
        self._now_ms = wall.now_ms
        self._next_look: IDelayedCall | None = None
        self._delivering: Deferred[float | None] | None = None
        self._is_stopped = False
        self._head_offset, self._head_stored_at = -1, 0  # of the next message, if it is not due yet
        self._refused_as: PutMessageStatus | None = None
        self._confirming: Wait | None = None
        """The wait for the next message, if it is in the queue but not confirmed yet."""
        self._correct_offset(store.derived.queues.get(SCHEDULE_TOPIC, level - 1))
        self._look_in(FIRST_DELAY_SECONDS)

    def _correct_offset(self, queue: ConsumeQueue | None) -> None:
        """Move the offset into the queue: retention may have deleted its messages, or a cut may have removed some."""
        offset = self._offsets.get(self._level)
        if offset is not None:
            low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
            self._offsets[self._level] = min(max(offset, low), high)

    def message_arrived(self) -> None:
        """A message of this level was added to the queue. Look for it, unless a delivery is running.

        Do nothing either while an earlier message waits to be confirmed.
        """
        if self._delivering is None and self._confirming is None:
            self._look_in(0.0)

    def _confirmed(self) -> None:
        self._confirming = None
        self.message_arrived()

    def _await_confirmed(self, offset: int) -> None:
        """If the message at a queue offset is not confirmed, look again when it is. Raises OSError."""
        limit, end = self._store.read_limit, self._store.reader.confirmed_at(SCHEDULE_TOPIC, self._level - 1, offset)
        if limit is not None and end is not None and self._confirming is None:
            self._confirming = limit.wait(end, self._confirmed)

    def stop(self) -> None:
        """Stop delivering."""
        self._is_stopped = True
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._delivering is not None:
            self._delivering.cancel()
        if self._confirming is not None:
            self._confirming.cancel()

    def _look_in(self, seconds: float) -> None:
        """Look for due messages after this time, unless a look is already scheduled."""
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
            self._log.failure(
                "delivery of delay level {delay_level} pauses",
                failure,
                event=Event.DELAY_LEVEL_PAUSED,
                delay_level=self._level,
            )
            self._look_in(DELAY_FOR_A_PERIOD_SECONDS)

    async def _deliver_due(self) -> float | None:
        """Deliver a batch of due messages. Returns the seconds until the next look; None to wait for a message."""
        queue = self._store.derived.queues.get(SCHEDULE_TOPIC, self._level - 1)
        if queue is None:
            return None
        for _ in range(DELIVERY_BATCH):
            offset = max(self._offsets.get(self._level, 0), queue.min_offset)
            if offset >= self._store.reader.readable_end(queue):
                self._await_confirmed(offset)
                return None
            wait_ms = self._wait_ms(self._head_stored_at) if offset == self._head_offset else 0
            record = self._store.reader.message_in(queue, offset) if wait_ms == 0 else None
            if record is not None:
                self._head_offset, self._head_stored_at = offset, record.store_timestamp
                wait_ms = self._wait_ms(record.store_timestamp)
            if wait_ms > 0:
                return min(wait_ms / 1000, MAX_SLEEP_SECONDS)
            if record is not None and not await self._deliver(record):
                return DELAY_FOR_A_WHILE_SECONDS
            self._offsets[self._level] = offset + 1
        return 0.0

    def _wait_ms(self, stored_at: int) -> int:
        """The remaining delay in ms. It is 0 for a message stored in the future, after the clock was set back."""
        wait_ms = stored_at + self._delay_ms - self._now_ms()
        return wait_ms if 0 < wait_ms <= self._delay_ms else 0

    async def _deliver(self, record: Record) -> bool:
        """Put the message into its topic, unless that was deleted meanwhile. True if no more tries are needed."""
        message = delivered_message(record)
        if message is None:
            self._log.error(
                "message {msg_id} of level {delay_level} has no topic to go to",
                event=Event.DELAYED_MESSAGE_INVALID,
                msg_id=record.msg_id,
                delay_level=self._level,
            )
            return True
        if self._store.was_deleted(message.topic, record):
            return True
        result: PutMessageResult = await self._store.put_message(message)
        if result.is_stored:
            self._refused_as = None
            return True
        if result.status is not self._refused_as:  # logged once for all tries
            self._refused_as = result.status
            self._tell_refused(record, result.status)
        return result.status in NEVER_STORED

    def _tell_refused(self, record: Record, status: PutMessageStatus) -> None:
        self._log.warn(
            "message {msg_id} of level {delay_level} is not delivered: {status}",
            event=Event.DELAYED_MESSAGE_NOT_DELIVERED,
            msg_id=record.msg_id,
            delay_level=self._level,
            status=status.name,
        )


def delivered_message(record: Record) -> Message | None:
    """A delayed message as it is finally put; None if its topic is missing or not allowed.

    Its stored properties stay as they are, including DELAY (spec/remoting.md 6.3). The put ignores them.
    """
    properties = record.properties
    topic, queue_id = properties.get("REAL_TOPIC"), properties.get("REAL_QID", "")
    is_number = queue_id.isascii() and queue_id.isdecimal() and len(queue_id) <= MAX_QUEUE_DIGITS
    if topic is None or topic in NO_SENDS_TO or not is_number:
        return None
    return put_again(record, topic, int(queue_id), record.properties_stored)
