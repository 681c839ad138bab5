"""Sends and pulls many messages at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from twisted.internet.defer import Deferred, DeferredSemaphore, FirstError, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from rmqha.client.message import Message, MessageQueue, SendResult
from rmqha.client.producer import Producer
from rmqha.client.pull import PullConsumer
from rmqha.wire.record import Record
from rmqha.wire.subscription import SUB_ALL

IN_FLIGHT = 32
SUSPEND_SECONDS = 15.0
AGAIN_SECONDS = 1.0
"""The pause before a queue is pulled again if the last pull found nothing. Some brokers do not wait themselves."""


class Edge(Enum):
    """Where reading starts, if not at an offset."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class StoredSince:
    """Reading starts with the messages stored at this time (milliseconds since 1970) or later."""

    timestamp: int


async def put_all(producer: Producer, messages: Iterable[Message], sent: Callable[[SendResult], None]) -> None:
    """Send messages, several at a time. The first failure ends it. ``sent`` is called with each result."""
    places = DeferredSemaphore(IN_FLIGHT)
    failures: list[Failure] = []
    for message in messages:
        await places.acquire()
        if failures:
            places.release()
            break
        sending = producer.send(message).addCallback(sent).addErrback(failures.append)
        sending.addBoth(lambda _: places.release())
    for _ in range(IN_FLIGHT):  # all permits are free: no send is in progress
        await places.acquire()
    if failures:
        failures[0].raiseException()


class _Enough(Exception):
    """As many messages as requested have arrived."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of a topic to read: from ``start`` on, that match ``expression``, at most ``most`` if not None.

    With ``follows`` reading has no end.
    """

    start: "Edge | StoredSince | int" = Edge.MIN
    follows: bool = False
    expression: str = SUB_ALL
    most: int | None = None


class BulkPull:
    """Reads all queues of a topic at once: up to their ends at the time of the start, or with ``follows`` without
    end.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        clock: IReactorTime,
        got: Callable[[Record], None],
        selection: Selection = Selection(),
    ) -> None:
        """``got`` is called with each message."""
        self._consumer = consumer
        self._clock = clock
        self._got = got
        self._start = selection.start
        self._follows = selection.follows
        self._expression = selection.expression
        self._left = selection.most
        self._reading: list[Deferred[None]] = []

    async def run(self, topic: str) -> None:
        """Read the topic. Raises MQClientError, MQBrokerError."""
        queues = await self._consumer.fetch_queues(topic)
        self._reading = [Deferred.fromCoroutine(self._read(queue)) for queue in queues]
        try:
            await gatherResults(self._reading, consumeErrors=True)
        except FirstError as error:
            if error.subFailure.check(_Enough) is None:
                error.subFailure.raiseException()
        finally:
            for reading in self._reading:
                reading.cancel()

    async def _read(self, queue: MessageQueue) -> None:
        end = await self._consumer.max_offset(queue)
        offset = await self._first_offset(queue, end)
        while self._follows or offset < end:
            asked_at = self._clock.seconds()
            result = await self._consumer.pull(
                queue, offset, expression=self._expression, suspend_seconds=SUSPEND_SECONDS if self._follows else 0.0
            )
            for record in filter(self._is_wanted, result.messages):
                self._got(record)
                self._count()
            if result.next_begin_offset <= offset:
                if not self._follows:
                    return
                await deferLater(self._clock, max(0.0, asked_at + AGAIN_SECONDS - self._clock.seconds()))
            offset = result.next_begin_offset

    def _is_wanted(self, record: Record) -> bool:
        """Whether the message is recent enough: a search by time of a 4.9 broker finds the nearest one, which may be
        older.
        """
        return not isinstance(self._start, StoredSince) or record.store_timestamp >= self._start.timestamp

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise _Enough

    async def _first_offset(self, queue: MessageQueue, end: int) -> int:
        if self._start is Edge.MAX:
            return end
        if isinstance(self._start, StoredSince):
            return await self._consumer.offset_at(queue, self._start.timestamp)
        low = await self._consumer.min_offset(queue)
        return low if isinstance(self._start, Edge) else max(low, self._start)
