"""The client for asyncio programs: inside ``asyncio.run``, or under Twisted's asyncio reactor.

::

    async def main() -> None:
        async with Client("ns-a:9876;ns-b:9876") as client:
            producer = client.producer("PG")
            print(await producer.send(Message("TopicTest", b"hello")))

    asyncio.run(main())

A program needs no reactor of its own. If Twisted's asyncio reactor runs the loop, the client uses that one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from rmqha.acl.signing import Credentials
from rmqha.client import consuming, transaction
from rmqha.client.consuming import DEFAULT_OPTIONS, ConsumerOptions
from rmqha.client.errors import ClientStopped
from rmqha.client.instance import MQClient
from rmqha.client.loops import reactor_of_loop
from rmqha.client.message import Message, MessageQueue, SendResult
from rmqha.client.producer import DEFAULT_RETRIES, SEND_TIMEOUT_SECONDS, Retries, Select
from rmqha.client.producer import Producer as DeferredProducer
from rmqha.client.pull import MAX_MESSAGES, PullConsumer, PullResult
from rmqha.client.pushconsumer import GRACE_SECONDS
from rmqha.client.pushconsumer import PushConsumer as DeferredPushConsumer
from rmqha.client.received import ReceivedMessage
from rmqha.client.transaction import TransactionOutcome, TransactionResult
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.wire.subscription import SUB_ALL

Result = TypeVar("Result")
Argument = TypeVar("Argument")

Handler = Callable[[ReceivedMessage], Awaitable[object]]
"""Handles one message. If it raises, the message comes again later."""
Execute = Callable[[Message], Awaitable[TransactionOutcome]]
"""The local transaction. If it raises, the broker will ask."""
Check = Callable[[ReceivedMessage], Awaitable[TransactionOutcome]]
"""Answers how a transaction has ended."""


async def _wait(deferred: Deferred[Result]) -> Result:
    """Wait for a Deferred. It is cancelled with the waiting task."""
    return await deferred.asFuture(asyncio.get_running_loop())


def _in_task(function: Callable[[Argument], Awaitable[Result]]) -> Callable[[Argument], Deferred[Result]]:
    """The function with each call in a task of its own."""

    def call(argument: Argument) -> Deferred[Result]:
        async def run() -> Result:
            return await function(argument)

        task = asyncio.get_running_loop().create_task(run())
        return Deferred.fromFuture(task).addErrback(_as_cancelled)

    return call


def _as_cancelled(failure: Failure) -> Failure:
    return Failure(CancelledError()) if failure.check(asyncio.CancelledError) else failure


class Client:
    """Connections to a cluster. Use it with ``async with``: at the end it disconnects.

    Stop the consumers before that, or let ``async with`` do it.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        broker: str | None = None,
        tls: ClientTLS | None = None,
        secure: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        """Give either ``name_servers`` (``host:port;host:port``) or the address of one ``broker``.

        ``secure`` uses TLS for the brokers that name servers tell. With ``credentials`` all requests are signed. Raises
        ValueError unless exactly one of ``name_servers`` and ``broker`` is given.
        """
        if (name_servers is None) == (broker is None):
            raise ValueError("give either name_servers or broker")
        self._name_servers = name_servers
        self._broker = broker
        self._tls = tls
        self._secure = secure
        self._credentials = credentials
        self._stack = AsyncExitStack()
        self._client: MQClient | None = None

    async def __aenter__(self) -> Self:
        """Raises ValueError for an invalid address. Servers are connected to when they are first needed."""
        if self._client is not None:
            raise RuntimeError("the client is in use already")
        reactor = await self._stack.enter_async_context(reactor_of_loop())
        try:
            if self._name_servers is not None:
                self._client = MQClient.of_name_servers(
                    reactor, self._name_servers, self._tls, self._secure, self._credentials
                )
            else:
                self._client = MQClient.of_broker(reactor, self._broker or "", self._tls, self._credentials)
        except ValueError:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        try:
            if client is not None:
                await asyncio.shield(asyncio.ensure_future(_wait(client.stop())))
        finally:
            await self._stack.aclose()

    @property
    def instance(self) -> MQClient:
        """The client of Deferreds below this one. Raises ClientStopped outside ``async with``."""
        if self._client is None:
            raise ClientStopped("use the client inside `async with`")
        return self._client

    def producer(
        self,
        group: str,
        timeout: float = SEND_TIMEOUT_SECONDS,
        retries: Retries = DEFAULT_RETRIES,
        retry_times: int | None = None,
    ) -> "Producer":
        """Make a producer. Brokers may take ``timeout`` seconds for their answers; ``retries`` says what it does if
        they fail. ``retry_times`` is the older way to say ``Retries(times=…)``.
        """
        if retry_times is not None:
            retries = replace(retries, times=retry_times)
        return Producer(DeferredProducer(self.instance, group, timeout, retries))

    def transaction_producer(self, group: str, check: Check) -> "TransactionProducer":
        """Make a producer of transactions. Use it with ``async with``."""
        return TransactionProducer(transaction.TransactionProducer(self.instance, group, _in_task(check)))

    def push_consumer(
        self,
        group: str,
        handler: Handler,
        subscriptions: Mapping[str, str] | Sequence[str],
        options: ConsumerOptions = DEFAULT_OPTIONS,
    ) -> "PushConsumer":
        """Make a consumer of these topics, or of these topics with their tag expressions. Use it with ``async with``.

        Raises ValueError for an invalid group or expression.
        """
        return PushConsumer(self.instance, group, handler, subscriptions, options)

    def pull_consumer(self, group: str) -> "Puller":
        """Make a consumer that reads queues at any offset."""
        return Puller(PullConsumer(self.instance, group))


class Producer:
    """Sends messages. Errors are those of ``rmqha.client.Producer``."""

    def __init__(self, producer: DeferredProducer) -> None:
        self._producer = producer

    async def send(self, message: Message, queue: MessageQueue | None = None) -> SendResult:
        """Send a message, only to ``queue`` if it is given."""
        return await _wait(self._producer.send(message, queue))

    async def send_batch(self, messages: Sequence[Message], queue: MessageQueue | None = None) -> SendResult:
        """Send messages of one topic to one queue, all or none."""
        return await _wait(self._producer.send_batch(messages, queue))

    async def send_ordered(self, message: Message, select: Select) -> SendResult:
        """Send a message to the queue that ``select`` chooses, such as ``by_key("order-7")``."""
        return await _wait(self._producer.send_ordered(message, select))

    async def queues_to_write(self, topic: str) -> list[MessageQueue]:
        """The queues to which messages of the topic can go."""
        return await _wait(Deferred.fromCoroutine(self._producer.queues_to_write(topic)))


class TransactionProducer:
    """Sends messages that are delivered only if a local transaction succeeds."""

    def __init__(self, producer: transaction.TransactionProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        """Take checks of brokers. Raises ValueError if this client has such a producer in the group already."""
        self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _wait(self._producer.stop())

    async def send(self, message: Message, execute: Execute) -> TransactionResult:
        """Store a message that no consumer sees yet, run ``execute(message)``, and commit it or roll it back."""
        return await _wait(self._producer.send(message, _in_task(execute)))


class PushConsumer:
    """Calls a handler for each message. Inside ``async with`` it consumes; at the end it stops as ``stop`` says."""

    def __init__(
        self,
        client: MQClient,
        group: str,
        handler: Handler,
        subscriptions: Mapping[str, str] | Sequence[str],
        options: ConsumerOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._consumer = DeferredPushConsumer(client, group, _in_task(handler), options)
        if isinstance(subscriptions, str):
            raise ValueError("subscriptions is a list of topics, or a mapping of topics to expressions")
        expressions = subscriptions if isinstance(subscriptions, Mapping) else dict.fromkeys(subscriptions, SUB_ALL)
        for topic, expression in expressions.items():
            self._consumer.subscribe(topic, expression)

    @property
    def state(self) -> consuming.ConsumerState:
        """What it is doing."""
        return self._consumer.state

    @property
    def queues(self) -> Sequence[MessageQueue]:
        """The queues that it has now, sorted."""
        return self._consumer.queues

    async def start(self) -> None:
        """Join the group and start to consume. Raises MQClientError, OffsetFileError, ValueError."""
        await _wait(self._consumer.start())

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Wait for the handlers that run, keep the offsets, and leave the group.

        Handlers that run longer than ``grace_seconds`` are cancelled; their messages come again.
        """
        await asyncio.shield(asyncio.ensure_future(_wait(self._consumer.stop(grace_seconds))))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Puller:
    """Reads queues at any offset. Errors are those of ``rmqha.client.PullConsumer``."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic."""
        return await _wait(self._consumer.fetch_queues(topic))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = MAX_MESSAGES,
        expression: str = SUB_ALL,
        suspend_seconds: float = 0.0,
    ) -> PullResult:
        """Pull messages from ``offset`` on. If there are none, the broker may wait for ``suspend_seconds``."""
        return await _wait(self._consumer.pull(queue, offset, max_messages, expression, suspend_seconds))

    async def min_offset(self, queue: MessageQueue) -> int:
        """The queue's first offset."""
        return await _wait(self._consumer.min_offset(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset of the queue's next message."""
        return await _wait(self._consumer.max_offset(queue))

    async def offset_at(self, queue: MessageQueue, timestamp: int) -> int:
        """The offset of the first message stored at ``timestamp`` (ms since 1970) or later; see ``PullConsumer``."""
        return await _wait(self._consumer.offset_at(queue, timestamp))

    async def query_offset(self, queue: MessageQueue) -> int | None:
        """The offset that the group has committed; None without one."""
        return await _wait(self._consumer.query_offset(queue))

    async def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset."""
        await _wait(self._consumer.update_offset(queue, offset))
