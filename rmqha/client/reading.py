"""Reads one queue for a push consumer: asks where to start, and pulls for as long as there is room (8.3)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from rmqha.client.bulk import AGAIN_SECONDS, SUSPEND_SECONDS, Edge, StoredSince
from rmqha.client.caching import QueueCache, Usage
from rmqha.client.errors import ClientError
from rmqha.client.message import MessageQueue
from rmqha.client.offsets import OffsetStore
from rmqha.client.pull import MAX_MESSAGES, PullConsumer, PullResult, PullStatus
from rmqha.kit.events import Event
from rmqha.wire.record import Record
from rmqha.wire.topics import RETRY_PREFIX

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 4.0
"""The pauses after a queue could not be read."""


class IReaderOwner(Interface):
    """The consumer whose queues are read."""

    def messages_pulled(reader: "QueueReader", records: Sequence[Record], seconds: float) -> None:
        """A pull brought messages. It took ``seconds``."""

    def queue_moved(reader: "QueueReader", offset: int) -> None:
        """The queue does not have the offset at which it is read. It goes on at this one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the readers of a consumer share."""

    puller: PullConsumer
    offsets: OffsetStore
    usage: Usage
    clock: IReactorTime
    start: Edge | StoredSince
    owner: IReaderOwner


class QueueReader:
    """Reads a queue until it is dropped. ``waiting`` holds the messages that no handler has got yet."""

    _log = Logger()

    def __init__(self, queue: MessageQueue, expression: str, reading: Reading) -> None:
        self.queue = queue
        self.waiting: deque[Record] = deque()
        self.running = 0
        """How many handlers have a message of this queue."""
        self.is_dropped = False
        self.kept_offset: int | None = None
        """The offset that was kept last."""
        self.pulled_at: float | None = None
        self.finished_at: float | None = None
        """When it was pulled last, and when a message was done last, in seconds of the clock."""
        self._expression = expression
        self._reading = reading
        self._cache: QueueCache | None = None
        self._pulling: Deferred[None] | None = None
        self._room: Deferred[None] | None = None
        self._problem = ""
        self._has_moved = False

    def start(self) -> None:
        """Start to read."""
        self._pulling = Deferred.fromCoroutine(self._run())
        self._pulling.addErrback(self._ended)

    def _ended(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("reading {queue} ended", failure, event=Event.READING_FAILED, queue=str(self.queue))

    def drop(self) -> None:
        """Read no more, and forget the messages that no handler has got yet."""
        self.is_dropped = True
        self.stop_pulling()
        self.waiting.clear()  # they stay unfinished: no offset after them is kept

    def stop_pulling(self) -> None:
        """Read no more."""
        pulling, self._pulling = self._pulling, None
        self._room = None
        self._reading.usage.waiting.pop(self.go_on, None)
        if pulling is not None:
            pulling.cancel()

    def forget(self) -> None:
        """Count none of its messages any more."""
        if self._cache is not None:
            self._cache.clear()

    @property
    def commit_offset(self) -> int | None:
        """All messages before this offset are done; None if the queue was not read yet."""
        return None if self._cache is None else self._cache.commit_offset

    @property
    def cached(self) -> tuple[int, int, int, int]:
        """The smallest and the largest offset, the number and the bytes of the unfinished messages."""
        return (0, 0, 0, 0) if self._cache is None else self._cache.summary

    def finish(self, record: Record) -> None:
        """A message is done."""
        self.finished_at = self._reading.clock.seconds()
        if self._cache is not None:
            self._cache.finish(record.queue_offset)

    def go_on(self) -> None:
        """There may be room for more messages of this queue."""
        if self._room is not None and self._cache is not None and not self._cache.is_full:
            room, self._room = self._room, None
            room.callback(None)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._has_moved:
            try:
                if self._cache is None:
                    self._cache = QueueCache(self._reading.usage, await self._first_offset())
                await self._pull(self._cache)
            except ClientError as error:
                self._tell(str(error))
                await deferLater(self._reading.clock, pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
                self._tell("")

    def _tell(self, problem: str) -> None:
        """Log a problem once, and its end."""
        if problem and not self._problem:
            self._log.warn(
                "{queue} cannot be read: {problem}",
                event=Event.QUEUE_UNREADABLE,
                queue=str(self.queue),
                problem=problem,
            )
        elif self._problem and not problem:
            self._log.info("{queue} can be read again", event=Event.QUEUE_READABLE, queue=str(self.queue))
        self._problem = problem

    async def _first_offset(self) -> int:
        known = await self._reading.offsets.get(self.queue)
        if known is not None and known >= 0:
            self.kept_offset = known
            return known
        puller, start = self._reading.puller, self._reading.start
        if start is Edge.MIN or self.queue.topic.startswith(RETRY_PREFIX):
            return await puller.min_offset(self.queue)
        if isinstance(start, StoredSince):
            return await puller.offset_at(self.queue, start.timestamp)
        return await puller.max_offset(self.queue)

    async def _pull(self, cache: QueueCache) -> None:
        clock = self._reading.clock
        while cache.is_full:
            self._room = Deferred()
            if self._reading.usage.is_full:
                self._reading.usage.waiting[self.go_on] = None
            await self._room
        asked_at, offset = clock.seconds(), cache.next_offset
        self.pulled_at = asked_at
        result = await self._reading.puller.pull(self.queue, offset, MAX_MESSAGES, self._expression, SUSPEND_SECONDS)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._moved(offset, result)
            return
        records = [record for record in result.messages if record.queue_offset >= offset]
        for record in records:
            cache.add(record)
        cache.next_offset = max(offset, result.next_begin_offset)
        if records:
            self._reading.owner.messages_pulled(self, records, clock.seconds() - asked_at)
        elif cache.next_offset == offset:  # some brokers do not wait
            await deferLater(clock, max(0.0, asked_at + AGAIN_SECONDS - clock.seconds()))

    def _moved(self, offset: int, result: PullResult) -> None:
        self._log.warn(
            "{queue} has offsets {low} to {high}, not {offset}: it is read from {next} on",
            event=Event.QUEUE_OFFSET_CORRECTED,
            queue=str(self.queue),
            low=result.min_offset,
            high=result.max_offset,
            offset=offset,
            next=result.next_begin_offset,
        )
        self._has_moved = True
        self._reading.owner.queue_moved(self, result.next_begin_offset)
