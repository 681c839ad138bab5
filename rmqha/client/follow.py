"""Follows a topic: its last messages, and then the new ones of all its queues, for as long as wanted."""

from dataclasses import dataclass

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from zope.interface import Interface

from rmqha.client.bulk import AGAIN_SECONDS, SUSPEND_SECONDS, Edge, StoredSince
from rmqha.client.errors import MQBrokerError, MQClientError
from rmqha.client.instance import POLL_NAME_SERVER_SECONDS
from rmqha.client.message import MessageQueue
from rmqha.client.pull import MAX_MESSAGES, PullConsumer
from rmqha.wire.record import Record
from rmqha.wire.subscription import SUB_ALL

RETRY_SECONDS = 2.0
MAX_PULLS = 100
"""Pulls in a row that look for the last messages of a queue; a filter may match few of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: from ``start`` on, or the last ``last`` ones if that is not None, with matching tags."""

    start: Edge | StoredSince | int = Edge.MAX
    last: int | None = None
    expression: str = SUB_ALL


class IMessageView(Interface):
    """Shows the messages of a topic."""

    def got(record: Record) -> None:
        """A message has come: each queue's in their order. What this raises ends the reading."""

    def trouble(line: str) -> None:
        """A queue cannot be read, as this line says, or it can be read again."""


class Follower:
    """Reads the end of a topic, for a view."""

    def __init__(self, consumer: PullConsumer, clock: IReactorTime, wanted: Wanted, view: IMessageView) -> None:
        self._consumer = consumer
        self._clock = clock
        self._wanted = wanted
        self._view = view
        self._following: dict[MessageQueue, Deferred[None]] = {}

    async def last(self, topic: str) -> dict[MessageQueue, int]:
        """Give the last messages, oldest first. Returns where each queue goes on.

        Raises TopicNotFound, MQClientError, MQBrokerError.
        """
        count = self._wanted.last or 0
        queues = await self._consumer.fetch_queues(topic)
        reading = [Deferred.fromCoroutine(self._last_of(queue, count)) for queue in queues]
        try:
            found = await gatherResults(reading, consumeErrors=True)
        except FirstError as error:
            error.subFailure.raiseException()
        records = [record for part, _ in found for record in part]
        records.sort(key=lambda record: record.store_timestamp)
        for record in records[-count:] if count else []:
            self._view.got(record)
        return {queue: end for queue, (_, end) in zip(queues, found, strict=True)}

    async def _last_of(self, queue: MessageQueue, count: int) -> tuple[list[Record], int]:
        end = await self._consumer.max_offset(queue)
        low = await self._consumer.min_offset(queue)
        found: list[Record] = []
        upto, step = end, max(count, 1)
        for _ in range(MAX_PULLS):
            if len(found) >= count or upto <= low:
                break
            start = max(low, upto - step)
            found = [*await self._between(queue, start, upto), *found]
            upto, step = start, min(step * 2, MAX_MESSAGES * 8)
        return found[-count:] if count else [], end

    async def _between(self, queue: MessageQueue, start: int, end: int) -> list[Record]:
        found: list[Record] = []
        while start < end:
            result = await self._consumer.pull(queue, start, min(MAX_MESSAGES, end - start), self._wanted.expression)
            found += [record for record in result.messages if record.queue_offset < end]
            if result.next_begin_offset <= start:
                break
            start = result.next_begin_offset
        return found

    async def follow(self, topic: str, places: dict[MessageQueue, int] | None = None) -> None:
        """Give all further messages, until cancelled. New queues are noticed within half a minute.

        ``places`` says where queues go on. Raises TopicNotFound, MQClientError, MQBrokerError if it cannot start, and
        what the view raises.
        """
        ended: Deferred[None] = Deferred()
        if places is None:
            queues = await self._consumer.fetch_queues(topic)
            places = {queue: await self._first(queue) for queue in queues}
        for queue, offset in places.items():
            self._start(queue, offset, ended)
        looking = Deferred.fromCoroutine(self._look_for_queues(topic, ended))
        looking.addErrback(lambda failure: None if ended.called else ended.errback(failure))
        try:
            await ended
        finally:
            for each in (looking, *self._following.values()):
                each.cancel()

    def _start(self, queue: MessageQueue, offset: int, ended: Deferred[None]) -> None:
        following = Deferred.fromCoroutine(self._follow(queue, offset))
        self._following[queue] = following
        following.addErrback(lambda failure: None if ended.called else ended.errback(failure))

    async def _look_for_queues(self, topic: str, ended: Deferred[None]) -> None:
        """Also follow queues that the topic gets later, from their first message on."""
        while True:
            await deferLater(self._clock, POLL_NAME_SERVER_SECONDS)
            for queue in await self._queues(topic):
                if queue not in self._following:
                    self._start(queue, 0, ended)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The queues that are known now; those that are read already if nobody answers."""
        try:
            return await self._consumer.fetch_queues(topic)
        except (MQClientError, MQBrokerError):
            return list(self._following)

    async def _first(self, queue: MessageQueue) -> int:
        start = self._wanted.start
        if start is Edge.MAX:
            return await self._consumer.max_offset(queue)
        if isinstance(start, StoredSince):
            return await self._consumer.offset_at(queue, start.timestamp)
        low = await self._consumer.min_offset(queue)
        return low if isinstance(start, Edge) else max(low, start)

    async def _follow(self, queue: MessageQueue, offset: int) -> None:
        failing = False
        while True:
            asked_at = self._clock.seconds()
            try:
                result = await self._consumer.pull(
                    queue, offset, expression=self._wanted.expression, suspend_seconds=SUSPEND_SECONDS
                )
            except (MQClientError, MQBrokerError) as error:
                if not failing:
                    self._view.trouble(
                        f"queue {queue.queue_id} of {queue.broker_name} cannot be read, trying again: {error}"
                    )
                failing = True
                await deferLater(self._clock, RETRY_SECONDS)
                continue
            if failing:
                self._view.trouble(f"queue {queue.queue_id} of {queue.broker_name} can be read again")
            failing = False
            for record in filter(self._is_wanted, result.messages):
                self._view.got(record)
            if result.next_begin_offset <= offset:
                await deferLater(self._clock, max(0.0, asked_at + AGAIN_SECONDS - self._clock.seconds()))
            offset = result.next_begin_offset

    def _is_wanted(self, record: Record) -> bool:
        start = self._wanted.start
        return not isinstance(start, StoredSince) or record.store_timestamp >= start.timestamp
