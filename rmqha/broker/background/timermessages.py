"""Delivers timer messages of RocketMQ 5.x when they are due, on a master.

They wait in the queue 0 of the topic ``rmq_sys_wheel_timer``. Unlike delayed messages they are not ordered by time. So
this service reads the queue once from the check point on, and keeps an index of what waits (``timerindex``). It
delivers nothing before it has read the queue to its end: a later message may cancel an earlier one.

A message is delivered at the first whole second after its time. After a crash some are delivered again, but none is
lost: the check point calls a message delivered only when the log on the disk has what was put in its place. Java's
masters and ours can take turns, because both go by the same check point.

**Cancelling.** A message with the property TIMER_DEL_UNIQKEY cancels the one with that unique key, if both have the
same topic and the same time, as in Java.

**Long waits.** Retention would delete a message that waits too long. So such a message is put again while it waits, as
Java does. Its copy has a higher TIMER_ROLL_TIMES. Of several copies only the last one is delivered.
"""

from time import perf_counter

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.broker.background.held import Held
from rmqha.broker.background.schedule import (
    DELAY_FOR_A_PERIOD_SECONDS,
    DELAY_FOR_A_WHILE_SECONDS,
    DELIVERY_BATCH,
    FIRST_DELAY_SECONDS,
    MAX_SLEEP_SECONDS,
    delivered_message,
)
from rmqha.broker.background.timerindex import Special, TimerIndex, Waiting
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import SLICE_SECONDS
from rmqha.kit.threads import RunInThread
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import Settings
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.message import NEVER_STORED, Message, PutMessageStatus, put_again
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.timers import MESSAGES_A_STEP, TimerCheckPoint
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from rmqha.wire.timers import (
    CANCELS,
    ROLL_TIMES,
    TIMER_PRECISION_MS,
    TIMER_QUEUE_ID,
    TIMER_TOPIC,
    cancelled_or_own_key,
    due_of,
    rolls_of,
)

CHECK_POINT_SECONDS = 1.0
HOUR_MS = 3_600_000
LATEST_MS = 2**62
NOTHING_DELIVERED = TimerCheckPoint(0, 0, 0, 0)
LONGEST_ROLL_MS = 48 * HOUR_MS
"""Java's brokers put a message again after two days."""


def roll_after_ms(settings: Settings) -> int:
    """After this time a message that waits is put again: long before retention could delete it. In ms."""
    return min(LONGEST_ROLL_MS, max(settings.file_reserved_time_hours, 2) * HOUR_MS // 2)


def time_to_look(due: int, stored_ms: int, roll_ms: int, cancels: bool) -> int:
    """When to do something with a message: to deliver it, or to put it again before. In ms.

    One that cancels others is needed until they were looked at.
    """
    if due - stored_ms > roll_ms + roll_ms // 2:
        return stored_ms + roll_ms
    return due + 1 if cancels else due


class TimerMessageService(Service):
    """Delivers timer messages while it runs, on a master."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        clock: IReactorTime,
        wall: IWallClock,
        turns: Turns,
        run_in_thread: RunInThread = execute,
    ) -> None:
        self._store = store
        self._config = store.root / CONFIG_FOLDER
        self._scratch = store.root / NODE_FOLDER
        self._roll_ms = roll_after_ms(settings)
        self._clock = clock
        self._now_ms = wall.now_ms
        self._turns = turns
        self._run_in_thread = run_in_thread
        self._persisting = PeriodicService(
            "writing the timer check point", CHECK_POINT_SECONDS, self._persist, clock, first_after=CHECK_POINT_SECONDS
        )
        self._on_disk = self._begun_at = NOTHING_DELIVERED
        self._held: Held[TimerCheckPoint] | None = None
        self.index: TimerIndex | None = None
        """What waits, as far as the queue was read; None before."""
        self._next = 0
        self._goal, self._goal_ms = 0, 0
        """Messages before this offset had come at that time. All are read before what is due then is delivered."""
        self._read_first = 0
        """The first goal. Before that it is not known what waits."""
        self._is_stale = False
        """The index is to be built again."""
        self._next_look: IDelayedCall | None = None
        self._working: Deferred[float] | None = None
        self._refused_as: PutMessageStatus | None = None

    @property
    def waiting(self) -> int:
        """How many messages wait, as far as the queue was read. Those that cancel others count too."""
        return 0 if self.index is None else self.index.count

    def settings_changed(self, settings: Settings) -> None:
        """What waits long must be put again earlier, or later."""
        if roll_after_ms(settings) != self._roll_ms:
            self._roll_ms, self._is_stale = roll_after_ms(settings), True
            if self.running and not self._store.is_slave:
                self._look_in(0.0)

    def startService(self) -> None:
        """Start to deliver, if this is a master."""
        Service.startService(self)
        if self._store.is_slave:
            return
        self._on_disk = TimerCheckPoint.read(self._config, self._store.disk) or NOTHING_DELIVERED
        self._store.subscribe(self._message_arrived)
        self._persisting.startService()
        self._look_in(FIRST_DELAY_SECONDS)

    def stopService(self) -> Deferred[None]:
        """Stop delivering, and write the check point."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        Service.stopService(self)
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._working is not None:
            self._working.cancel()
        if self._store.is_slave:
            return
        await self._persisting.stopService()
        await self._store.flushed()
        self._held = None  # what was delivered since it was made is on the disk too
        await self._persist()
        self._forget()

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self._store.derived.queues.get(TIMER_TOPIC, TIMER_QUEUE_ID)

    def _message_arrived(self, request: DispatchRequest, _: int) -> None:
        if request.topic == TIMER_TOPIC and self.running:
            self._look_in(DELAY_FOR_A_WHILE_SECONDS)

    def _look_in(self, seconds: float) -> None:
        """Look after this time, unless a look comes earlier, or runs."""
        if self._working is not None:
            return
        if self._next_look is not None:
            if self._next_look.getTime() <= self._clock.seconds() + seconds:
                return
            self._next_look.cancel()
        self._next_look = self._clock.callLater(seconds, self._look)

    def _look(self) -> None:
        self._next_look = None
        self._working = Deferred.fromCoroutine(self._work())
        self._working.addCallbacks(self._worked, self._failed)

    def _worked(self, again_in: float) -> None:
        self._working = None
        if self.running:
            self._look_in(again_in)

    def _failed(self, failure: Failure) -> None:
        self._working = None
        if failure.check(CancelledError) and not self.running:
            return
        if failure.check("sqlite3.Error"):  # by its name: see timerindex
            self._forget()
        self._log.failure("the delivery of timer messages pauses", failure, event=Event.TIMERS_PAUSED)
        if self.running:
            self._look_in(DELAY_FOR_A_PERIOD_SECONDS)

    def _forget(self) -> None:
        """Drop the index. It is built again from the check point on."""
        if self.index is not None:
            self.index.close()
            self.index = None

    async def _work(self) -> float:
        """Read what has come, and deliver what is due. Returns the seconds until the next look."""
        queue = self._queue
        if queue is None:
            return MAX_SLEEP_SECONDS
        known = self._on_disk
        if self._is_stale:  # what was delivered since the check point was written is known still
            known = self._point() or known
            self._forget()
        if self.index is None:
            self._begin(queue, known)
        while True:
            if self._next >= self._goal:
                self._goal, self._goal_ms = queue.max_offset, self._now_ms()
            while self._next < self._goal:
                if not self._read_some(queue):  # the rest is not confirmed yet, and may cancel what is due
                    return DELAY_FOR_A_WHILE_SECONDS
                await self._turns.next()
            again_in = await self._deliver_some(queue, self._goal_ms)
            if again_in > 0:
                return again_in
            await self._turns.next()

    def _begin(self, queue: ConsumeQueue, known: TimerCheckPoint) -> None:
        start = known.first_to_read(queue.min_offset, queue.max_offset)
        self._begun_at, self._is_stale = known, False
        self._next = self._goal = start
        self._read_first = queue.max_offset
        self.index = TimerIndex(self._scratch)
        if start < self._read_first:
            self._log.info(
                "reading {count} timer messages, to find those that wait",
                event=Event.TIMERS_READ,
                count=self._read_first - start,
            )

    def _read_some(self, queue: ConsumeQueue) -> bool:
        """Add the next messages to the index, up to the goal. Whether there were any. Raises OSError, sqlite3.Error."""
        assert self.index is not None, "_begin has made it"
        start = max(self._next, queue.min_offset)
        end = min(self._store.reader.readable_end(queue), self._goal, start + MESSAGES_A_STEP)
        if start >= end:
            is_deleted = start > self._next  # by retention
            self._next = start
            return is_deleted
        waiting: list[Waiting] = []
        special: list[Special] = []
        until, offset = perf_counter() + SLICE_SECONDS, start
        while offset < end:
            record = self._store.reader.message_in(queue, offset)
            properties = {} if record is None else record.properties
            due = due_of(properties)
            if record is None or due is None or not 0 <= due <= LATEST_MS:
                self._tell_invalid(record, offset)
            elif not self._begun_at.is_delivered(offset, due):
                key, rolls = cancelled_or_own_key(properties), rolls_of(properties)
                looked_at = time_to_look(due, record.store_timestamp, self._roll_ms, rolls == CANCELS)
                waiting.append(Waiting(looked_at, offset, due))
                if key is not None and rolls != 0:
                    special.append(Special(key, due, offset, rolls))
            offset += 1
            if perf_counter() >= until:
                break
        self.index.add(waiting, special)
        self._next = offset
        return True

    def _tell_invalid(self, record: Record | None, offset: int) -> None:
        """The message is skipped. If the log no longer has it, nothing is logged here."""
        if record is not None:
            self._log.error(
                "timer message {msg_id} has no valid time, or no topic to go to",
                event=Event.TIMER_MESSAGE_INVALID,
                msg_id=record.msg_id,
                queue_offset=offset,
            )

    async def _deliver_some(self, queue: ConsumeQueue, now: int) -> float:
        """Deliver a batch of what is due at ``now``, in ms. Returns the seconds until the next look.

        All that had come by then was read, so that what cancels is known. Raises OSError, sqlite3.Error.
        """
        assert self.index is not None, "_begin has made it"
        index, gone = self.index, 0
        until = perf_counter() + SLICE_SECONDS
        due = index.until(now - TIMER_PRECISION_MS, DELIVERY_BATCH)
        for waiting in due:
            record = self._store.reader.message_in(queue, waiting.queue_offset)
            if record is None:
                gone += 1
                index.remove(waiting)
            elif not await self._settle(index, record, waiting):
                return DELAY_FOR_A_WHILE_SECONDS
            if perf_counter() >= until:
                break
        if gone:
            self._log.error(
                "{count} timer messages were due, and the log does not have them any more",
                event=Event.TIMER_MESSAGES_GONE,
                count=gone,
            )
        if due:
            return 0.0
        first = index.first()
        if first is None:
            return MAX_SLEEP_SECONDS
        wait_ms = first[0] + TIMER_PRECISION_MS - self._now_ms()
        return min(max(wait_ms, 1) / 1000, MAX_SLEEP_SECONDS)

    async def _settle(self, index: TimerIndex, record: Record, waiting: Waiting) -> bool:
        """Deliver a message, put it again, or drop it: it is cancelled, or its topic was deleted meanwhile.

        True if no more tries are needed.
        """
        properties = record.properties
        rolls, key = rolls_of(properties), cancelled_or_own_key(properties)
        waits_on = waiting.at_ms < waiting.due_ms
        is_due = waiting.due_ms <= self._now_ms() - TIMER_PRECISION_MS  # also if nothing was delivered for so long
        if rolls == CANCELS:
            if waits_on:
                if not is_due and not await self._put(record, rolled_message(record)):
                    return False
                index.postpone(waiting, waiting.due_ms + 1)  # those that it cancels are not looked at yet
                return True
        elif self._store.was_deleted(properties.get("REAL_TOPIC", ""), record):
            pass
        elif key is None or not index.is_over(key, waiting.due_ms, rolls):
            message = delivered_message(record) if is_due else rolled_message(record)
            if message is None:
                self._tell_invalid(record, waiting.queue_offset)
            elif (status := await self._put(record, message)) is None:
                return False
            elif waits_on and not is_due and status in NEVER_STORED:  # the longer message does not fit: wait on without
                index.postpone(waiting, waiting.due_ms)
                return True
        index.remove(waiting)
        return True

    async def _put(self, record: Record, message: Message) -> PutMessageStatus | None:
        """The result; None if the put is to be tried again."""
        result = await self._store.put_message(message)
        if result.is_stored:
            self._refused_as = None
            return result.status
        if result.status is not self._refused_as:  # logged once for all tries
            self._refused_as = result.status
            self._log.warn(
                "timer message {msg_id} is not delivered: {status}",
                event=Event.TIMER_MESSAGE_NOT_DELIVERED,
                msg_id=record.msg_id,
                status=result.status.name,
            )
        return result.status if result.status in NEVER_STORED else None

    def _point(self) -> TimerCheckPoint | None:
        """How far the delivery is; None if that is not known yet. Raises sqlite3.Error."""
        if self.index is None or self._next < self._read_first:
            return None
        last_read, start = self.index.first() or (self._now_ms() - TIMER_PRECISION_MS, self._next)
        last = self._on_disk
        if (start, self._next) == (last.queue_offset, last.master_queue_offset) and not self.index.count:
            return last  # nothing waits, and nothing has come: only the time goes on
        return last._replace(
            last_read_ms=min(last_read, self._now_ms()),
            log_flush_pos=0,
            queue_offset=start,
            master_queue_offset=self._next,
        )

    async def _persist(self) -> None:
        """Write the check point, if it is another one, once the log has on the disk what it calls delivered."""
        log = self._store.commit_log
        if self._held is None:
            point = self._point()
            if point is None or point == self._on_disk:
                return
            self._held = Held(log.max_offset, point)
        held = self._held
        if held.needs_flush(self._store):
            self._store.flush()
        if not held.is_over(self._store):
            return
        self._held = None
        await self._run_in_thread(lambda: held.thing.write(self._config, self._store.disk))
        self._on_disk = held.thing


def rolled_message(record: Record) -> Message:
    """The message as it is put again, to wait further."""
    properties = record.properties
    properties[ROLL_TIMES] = str(max(rolls_of(properties), 0) + 1)
    return put_again(record, TIMER_TOPIC, TIMER_QUEUE_ID, format_properties(properties))
