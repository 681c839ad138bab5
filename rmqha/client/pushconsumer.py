"""A consumer that calls a handler for each message (spec/remoting.md 8.3, 8.4).

It shares the queues of its topics with the other consumers of its group, Java's among them, and tells the brokers how
far it is. A handler that fails gets its message again later, from the group's retry topic.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, gatherResults, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.client.allocation import allocate_averagely
from rmqha.client.caching import Usage
from rmqha.client.consuming import (
    CONSUMER_STATES,
    DEFAULT_OPTIONS,
    ConsumerOptions,
    ConsumerState,
    Handler,
    check_group,
)
from rmqha.client.errors import ClientError, ClientStopped, MQClientError
from rmqha.client.handling import ConcurrentHandling, Handling, IHandlingOwner, OrderedHandling
from rmqha.client.instance import MQClient
from rmqha.client.locks import RENEW_SECONDS, QueueLocks
from rmqha.client.membership import ConsumerGroup, IGroupMember
from rmqha.client.message import MessageQueue
from rmqha.client.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from rmqha.client.pull import PullConsumer
from rmqha.client.reading import IReaderOwner, QueueReader, Reading
from rmqha.client.retrying import SendBack
from rmqha.client.route import TopicRoute
from rmqha.client.runninginfo import RunningInfo
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.wire.beans import read_text
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.record import Record
from rmqha.wire.subscription import SUB_ALL, SubscriptionData, type_of
from rmqha.wire.topics import RETRY_PREFIX

REBALANCE_SECONDS = 20.0
REBALANCE_SOON_SECONDS = 1.0
"""The pause before the queues are shared out again, if something was missing this time."""
UNKNOWN_TOPIC_SECONDS = 5.0
"""The pause before a name server is asked again for a topic that it did not know."""
GRACE_SECONDS = 30.0


@implementer(IGroupMember, IHandlingOwner, IReaderOwner)
class PushConsumer:
    """Calls ``handler`` with the messages of topics. Make it, ``subscribe``, ``start``; at the end ``stop``.

    The handler may return a Deferred or be a coroutine. While it runs, other messages are handled, up to
    ``options.concurrency`` in all. If it fails, the message comes again later. Each message is handled at least once;
    it may come twice after a crash, or while queues go from one consumer to another.
    """

    _log = Logger()

    def __init__(
        self,
        client: MQClient,
        group: str,
        handler: Handler,
        options: ConsumerOptions = DEFAULT_OPTIONS,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Raises ValueError if no group can have this name."""
        check_group(group)
        self.state = ConsumerState.NEW
        self._client = client
        self._group = group
        self._options = options
        self._now_ms = now_ms
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._leaving: set[MessageQueue] = set()  # queues whose last handler runs, or whose offset is being kept
        self._usage = Usage(options.cache)
        self._puller = PullConsumer(client, group)
        self._offsets = self._make_offsets()
        self._locks = QueueLocks(client, group)
        self._info = RunningInfo(group, options, handler, client.clock, now_ms)
        self._handling = self._make_handling(self._info.figures.measured(handler))
        self._reading = Reading(self._puller, self._offsets, self._usage, client.clock, options.start, self)
        periodic = [
            ("sharing out queues", REBALANCE_SECONDS, self._rebalance),
            ("keeping offsets", options.persist_seconds, self._keep_offsets),
        ]
        if options.is_ordered:
            periodic.append(("renewing locks", RENEW_SECONDS, self._renew_locks))
        self._periodic = [
            PeriodicService(purpose, seconds, function, client.clock, first_after=seconds)
            for purpose, seconds, function in periodic
        ]
        self._starting: Deferred[None] | None = None
        self._sharing: Deferred[None] | None = None
        self._share_again = False
        self._soon: IDelayedCall | None = None
        self._unknown: set[str] = set()

    def _make_offsets(self) -> OffsetStore:
        if not self._options.broadcasts:
            return BrokerOffsets(self._puller)
        folder = self._options.offset_folder or Path.home() / ".rmqha" / "offsets"
        path = folder / f"{self._group}@{self._options.instance}.json"
        return LocalOffsets(path, self._client.clock)

    def _make_handling(self, handler: Handler) -> Handling:
        send_back = SendBack(self._client, self._group, self._options.max_tries)
        kind = OrderedHandling if self._options.is_ordered else ConcurrentHandling
        return kind(handler, self._options, send_back, self._client.clock, self)

    # -- its life -----------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = SUB_ALL) -> None:
        """Consume the messages of a topic whose tag matches ``expression``, such as ``TagA || TagB``, or whose
        properties match a ``SqlExpression``, if the broker has ``enablePropertyFilter=true``.

        All consumers of a group must subscribe to the same. Raises ValueError for an invalid expression, and
        ClientStopped after the start.
        """
        if self.state is not ConsumerState.NEW:
            raise ClientStopped("subscribe before the consumer starts")
        self._subscriptions[topic] = self._subscription(topic, expression)

    def _subscription(self, topic: str, expression: str) -> SubscriptionData:
        kind = type_of(expression)
        SubscriptionData.from_request(topic, expression, kind)
        return SubscriptionData(topic, expression or SUB_ALL, self._now_ms(), kind)

    def start(self) -> Deferred[None]:
        """Join the group and start to consume. Fires when the queues are shared out for the first time.

        Fails with ValueError if there is no subscription or the client is in the group already, with MQClientError if
        no name server answers, with ClientStopped if it was stopped, and with OffsetFileError. Then it may be started
        again, unless it was stopped.
        """
        if self.state in (ConsumerState.STOPPING, ConsumerState.STOPPED):
            raise ClientStopped("the consumer was stopped; make another one")
        if not self._subscriptions:
            raise ValueError("subscribe to a topic before the consumer starts")
        self._become(ConsumerState.STARTING)
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    def _become(self, state: ConsumerState) -> None:
        if state not in CONSUMER_STATES[self.state]:
            raise RuntimeError(f"the consumer is {self.state.name}; it cannot become {state.name}")
        self.state = state

    async def _start(self) -> None:
        joined = False
        try:
            await self._offsets.open()
            for topic in self._subscriptions:
                await self._route(topic)
            if not self._options.broadcasts:
                retry = f"{RETRY_PREFIX}{self._group}"
                self._subscriptions[retry] = self._subscription(retry, SUB_ALL)
            self._client.membership.join(self._as_group())
            joined = True
            await self._client.membership.beat()
            await self._rebalance()
        except BaseException as error:  # of any kind: leave the group and close the file first
            if joined:
                await self._client.membership.leave(self._group)
            self._offsets.close()
            if self.state is not ConsumerState.STARTING:
                raise ClientStopped("the consumer was stopped while it started") from error
            self._become(ConsumerState.NEW)
            raise
        self._become(ConsumerState.RUNNING)
        for service in self._periodic:
            service.startService()

    def _as_group(self) -> ConsumerGroup:
        where = self._options.consume_from_where
        return ConsumerGroup(self._group, self._options.model, where, tuple(self._subscriptions.values()), self)

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> Deferred[None]:
        """Stop: start no more handlers, wait for those that run, keep the offsets, and leave the group.

        Handlers that run longer than ``grace_seconds`` are cancelled; their messages come again. Never fails.
        """
        if self.state is ConsumerState.NEW:
            self._become(ConsumerState.STOPPED)
        if self.state not in (ConsumerState.STARTING, ConsumerState.RUNNING):
            return succeed(None)
        was_running = self.state is ConsumerState.RUNNING
        self._become(ConsumerState.STOPPING)
        if not was_running and self._starting is not None:
            self._starting.cancel()
        return Deferred.fromCoroutine(self._stop(was_running, grace_seconds))

    async def _stop(self, was_running: bool, grace_seconds: float) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._sharing is not None:
            self._sharing.cancel()
        for reader in self._readers.values():
            reader.drop()
        ended = self._handling.stop(grace_seconds)
        renewing = self._periodic[2:]
        if was_running:
            await gatherResults([service.stopService() for service in self._periodic[:2]])
        await ended
        await self._keep_offsets()
        if was_running:
            await gatherResults([service.stopService() for service in renewing])
            if self._options.is_ordered:
                await self._locks.unlock(self._readers)
            await self._client.membership.leave(self._group)
        self._offsets.close()
        self._readers.clear()
        self._become(ConsumerState.STOPPED)

    # -- which queues -------------------------------------------------------------------------------------------

    @property
    def queues(self) -> Sequence[MessageQueue]:
        """The queues that this consumer has now, sorted."""
        return sorted(self._readers)

    def _share_soon(self, seconds: float = 0.0) -> None:
        """Share out the queues again, after other calls of this turn or in ``seconds``."""
        if self.state not in (ConsumerState.STARTING, ConsumerState.RUNNING):
            return
        due = self._client.clock.seconds() + seconds
        if self._soon is not None and self._soon.getTime() <= due:
            return
        if self._soon is not None:
            self._soon.cancel()
        self._soon = self._client.clock.callLater(seconds, self._share_now)

    def _share_now(self) -> None:
        self._soon = None
        self._rebalance()

    def _rebalance(self) -> Deferred[None]:
        """Find out which queues are ours. Fires when they are shared out; if that is being done, it is done again."""
        waiting: Deferred[None] = Deferred()
        if self._sharing is not None:
            self._share_again = True
            self._sharing.addBoth(lambda _: waiting.callback(None))
            return waiting
        self._sharing = Deferred.fromCoroutine(self._share_out())

        def over(result: Any) -> None:
            self._sharing = None
            if isinstance(result, Failure) and result.check(CancelledError) is None:
                self._log.failure("sharing out queues failed", result, event=Event.REBALANCE_FAILED)
            waiting.callback(None)

        self._sharing.addBoth(over)
        return waiting

    async def _share_out(self) -> None:
        while True:
            self._share_again = False
            complete = True
            for topic in list(self._subscriptions):
                complete &= await self._share_out_topic(topic)
            if not self._share_again:
                break
        if not complete:
            self._share_soon(REBALANCE_SOON_SECONDS)
        elif self._unknown:
            self._share_soon(UNKNOWN_TOPIC_SECONDS)

    async def _share_out_topic(self, topic: str) -> bool:
        """Take the queues of a topic that are ours, and leave the others. False if this must be tried again soon."""
        try:
            route = await self._route(topic)
            if route is None:
                return True
            queues = route.queues_to_read(topic)
            if self._options.broadcasts:
                ours: Sequence[MessageQueue] = queues
            else:
                clients = await self._clients(route)
                if self._client.client_id not in clients:  # a broker was restarted
                    await self._client.membership.beat()
                    return False
                ours = allocate_averagely(queues, clients, self._client.client_id)
        except ClientError as error:
            self._log.info(
                "the queues of {topic} stay as they are: {error}",
                event=Event.REBALANCE_POSTPONED,
                topic=topic,
                error=str(error),
            )
            return False
        for queue in [queue for queue in self._readers if queue.topic == topic and queue not in ours]:
            self._leave(self._readers.pop(queue))
        return await self._take([queue for queue in ours if queue not in self._readers])

    async def _route(self, topic: str) -> TopicRoute | None:
        """The topic's route; None, and a warning the first time, if nobody knows it yet."""
        route = await self._client.route(topic)
        if route is not None:
            self._unknown.discard(topic)
        elif topic not in self._unknown:
            self._unknown.add(topic)
            if not topic.startswith(RETRY_PREFIX):  # a broker makes it after the first heartbeat
                self._log.warn(
                    "no broker carries topic {topic} now; it is consumed when one does",
                    event=Event.TOPIC_NOT_FOUND,
                    topic=topic,
                )
        return route

    async def _clients(self, route: TopicRoute) -> list[str]:
        """The ids of the group's clients. Raises MQClientError, MQBrokerError."""
        failure: ClientError = MQClientError("no broker is registered for it")
        by_id = sorted((number, address) for own in route.addresses.values() for number, address in own.items())
        addresses = [address for _, address in by_id]
        for address in sorted(addresses, key=self._client.is_resting):
            try:
                answer = await self._client.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group}
                )
                return _client_ids(answer.body)
            except ClientError as error:
                failure = error
        raise failure

    async def _take(self, queues: Iterable[MessageQueue]) -> bool:
        """Start to read these queues. False if some of them are still another client's."""
        free = [queue for queue in queues if queue not in self._leaving]
        held = len(free) == len(list(queues))
        if self._options.is_ordered and free:
            await self._locks.lock(free)
            held &= all(self._locks.is_held(queue) for queue in free)
            free = [queue for queue in free if self._locks.is_held(queue)]
        for queue in free:
            reader = QueueReader(queue, self._subscriptions[queue.topic].expression, self._reading)
            self._readers[queue] = reader
            reader.start()
        return held

    def _leave(self, reader: QueueReader, offset: int | None = None) -> None:
        """Leave a queue to others. The group goes on at ``offset``; if it is None, at the first unfinished message."""
        reader.drop()
        self._leaving.add(reader.queue)
        leaving = Deferred.fromCoroutine(self._left(reader, offset))
        leaving.addErrback(
            lambda failure: self._log.failure("leaving a queue failed", failure, event=Event.QUEUE_NOT_LEFT)
        )

    async def _left(self, reader: QueueReader, offset: int | None) -> None:
        try:
            while self._options.is_ordered and reader.running:  # others may start only after our handler
                await deferLater(self._client.clock, REBALANCE_SOON_SECONDS / 10)
            at = reader.commit_offset if offset is None else offset
            if at is not None and (offset is not None or at != reader.kept_offset):
                await self._offsets.put({reader.queue: at})
            if self._options.is_ordered and offset is None:
                await self._locks.unlock([reader.queue])
        finally:
            reader.forget()
            self._leaving.discard(reader.queue)
            self._usage.go_on()

    def _restart(self, reader: QueueReader, offset: int) -> None:
        if self._readers.get(reader.queue) is reader:
            self._leave(self._readers.pop(reader.queue), offset)
            self._share_soon(REBALANCE_SOON_SECONDS)

    # -- what brokers and operators ask of it: not for users ----------------------------------------------------------

    def clients_changed(self) -> None:
        """A client of the group has come or gone: share out the queues again."""
        self._share_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator wants us to go on at these offsets. Messages whose handlers run now may come again."""
        ours = [queue for queue in offsets if queue in self._readers]
        for queue in ours:
            offset = offsets[queue]
            self._log.warn(
                "an operator resets {queue} to offset {offset}",
                event=Event.QUEUE_OFFSET_RESET,
                queue=str(queue),
                offset=offset,
            )
            self._leave(self._readers.pop(queue), offset)
        if ours:
            self._share_soon(REBALANCE_SOON_SECONDS)

    def consumed_offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Where we are in the queues of a topic."""
        readers = {queue: reader for queue, reader in self._readers.items() if queue.topic == topic}
        return {queue: reader.commit_offset for queue, reader in readers.items() if reader.commit_offset is not None}

    def describe(self, with_stacks: bool) -> dict[str, Any]:
        """What operators want to know."""
        locked = {queue for queue in self._readers if self._options.is_ordered and self._locks.is_held(queue)}
        return self._info.describe(self._subscriptions.values(), self._readers, locked, with_stacks)

    async def handle_directly(self, record: Record, queue: MessageQueue) -> dict[str, Any]:
        """Let the handler handle one message for an operator."""
        return await self._info.handle_directly(record, queue)

    # -- what its readers and handlers tell it: not for users ------------------------------------------------------

    def messages_pulled(self, reader: QueueReader, records: Sequence[Record], seconds: float) -> None:
        """See ``IReaderOwner``."""
        self._info.figures.pulled(reader.queue.topic, len(records), seconds)
        self._handling.take(reader, records)

    def queue_moved(self, reader: QueueReader, offset: int) -> None:
        """A queue does not have the offset at which we read it: go on where the broker says, after a pause."""
        self._client.clock.callLater(0, self._restart, reader, offset)

    def handler_ended(self, reader: QueueReader) -> None:
        """See ``IHandlingOwner``."""
        reader.go_on()
        self._usage.go_on()

    def has_lock(self, reader: QueueReader) -> bool:
        """See ``IHandlingOwner``."""
        return self._locks.is_held(reader.queue)

    # -- what is done again and again ---------------------------------------------------------------------------

    def _keep_offsets(self) -> Deferred[None]:
        """Keep the offsets that have changed."""
        changed = {
            queue: reader.commit_offset
            for queue, reader in self._readers.items()
            if reader.commit_offset is not None and reader.commit_offset != reader.kept_offset
        }
        offsets: Mapping[MessageQueue, int] = {queue: at for queue, at in changed.items() if at is not None}
        if not offsets:
            return succeed(None)

        def kept(queues: set[MessageQueue]) -> None:
            for queue in queues:
                if queue in self._readers:
                    self._readers[queue].kept_offset = offsets[queue]

        return self._offsets.put(offsets).addCallback(kept)

    def _renew_locks(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._renew())

    async def _renew(self) -> None:
        lost = await self._locks.lock(list(self._readers))
        for queue in lost & self._readers.keys():
            self._log.warn("another client has {queue} now", event=Event.QUEUE_LOST, queue=str(queue))
            reader = self._readers.pop(queue)
            reader.drop()
            reader.forget()
            self._share_soon(REBALANCE_SOON_SECONDS)
        for reader in self._readers.values():
            self._handling.go_on(reader)


def _client_ids(body: bytes) -> list[str]:
    try:
        content = loads_lenient(body)
        return [read_text(name) for name in content["consumerIdList"]]
    except (ValueError, KeyError, TypeError) as error:
        raise MQClientError(f"the list of a group's clients cannot be read: {error!r}") from error
