"""Sending messages (spec/remoting.md 2.1, 4.2 and 8.2)."""

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred, fail

from rmqha.client.errors import (
    InvalidAnswer,
    MessageTooLarge,
    MQBrokerError,
    MQClientError,
    NoMaster,
    TooManyWaiting,
    TopicNotFound,
)
from rmqha.client.instance import MQClient, seconds_of
from rmqha.client.message import Message, MessageQueue, SendResult, SendStatus, make_unique_key
from rmqha.client.route import MASTER_ID, TopicRoute
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.javahash import java_hash
from rmqha.wire.properties import format_properties
from rmqha.wire.record import COMPRESSED_FLAG
from rmqha.wire.requestfields import V2_FIELDS
from rmqha.wire.topics import AUTO_CREATE_TOPIC_KEY_TOPIC

SEND_TIMEOUT_SECONDS = 3.0
RETRY_TIMES_WHEN_SEND_FAILED = 2
DEFAULT_TOPIC_QUEUE_NUMS = 4
NO_BUYER_ID, NOT_IN_CURRENT_UNIT = 204, 205
RETRIED = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    NO_BUYER_ID,
    NOT_IN_CURRENT_UNIT,
)
"""After one of these codes another broker may succeed."""
HEADER_ROOM_BYTES = 4096
"""What the other fields of a request's header take at most."""
STORED = {status.value: status for status in SendStatus}


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to send, without its queue."""

    code: RequestCode
    topic: str
    flag: int
    properties: str
    body: bytes
    msg_id: str
    sys_flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


Select = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues. They are sorted by broker and number."""


def by_key(key: str) -> Select:
    """Choose the same queue for all messages with this key, while the topic keeps its queues.

    It is the queue that Java's SelectMessageQueueByHash chooses for the same text.
    """

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[abs(java_hash(key)) % len(queues)]

    return select


@dataclass(frozen=True, slots=True)
class SendLimits:
    """How many sends of a producer may wait for their answers at the same time, and how many bytes in their bodies."""

    waiting: int = 10_000
    waiting_bytes: int = 64 * 1024 * 1024


class Producer:
    """Sends to the queues of all masters in turn. If one fails, it tries another, for up to ``timeout`` seconds."""

    def __init__(
        self,
        client: MQClient,
        group: str,
        timeout: float = SEND_TIMEOUT_SECONDS,
        retry_times: int = RETRY_TIMES_WHEN_SEND_FAILED,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        limits: SendLimits = SendLimits(),
    ) -> None:
        self._client = client
        self._group = group
        self._timeout = timeout
        self._retry_times = retry_times
        self._now_ms = now_ms
        self._limits = limits
        self._waiting = 0
        self._waiting_bytes = 0
        self._next_queue = count()
        self._new_topics: dict[str, tuple[float, TopicRoute]] = {}

    def send(self, message: Message, queue: MessageQueue | None = None) -> Deferred[SendResult]:
        """Send a message, only to ``queue`` if it is given.

        Fails with MQBrokerError if a broker refuses the message finally, with MQClientError if no broker accepts it in
        time (one may have stored it nevertheless), with TooManyWaiting, and with ValueError if the message is too large
        or a property cannot be encoded.
        """
        return self._counted(len(message.body), self._send_one(message, queue))

    def send_ordered(self, message: Message, select: Select) -> Deferred[SendResult]:
        """Send a message to the queue that ``select`` chooses, and to no other one, so that the order within the queue
        is kept. Wait for the result before you send the next message of the same order.

        Fails like ``send``, and with NoMaster if the topic has no queue on a master.
        """
        return self._counted(len(message.body), self._send_ordered(message, select))

    async def _send_ordered(self, message: Message, select: Select) -> SendResult:
        queues = sorted(await self.queues_to_write(message.topic))
        if not queues:
            raise NoMaster(f"topic {message.topic} has no queue on a master now")
        return await self._send_one(message, select(queues))

    def _counted(self, size: int, sending: Coroutine[Any, Any, SendResult]) -> Deferred[SendResult]:
        """Send, if not too many sends wait already."""
        limits = self._limits
        if self._waiting >= limits.waiting or (self._waiting and self._waiting_bytes + size > limits.waiting_bytes):
            sending.close()
            what = f"{self._waiting} sends with {self._waiting_bytes} bytes wait for their answers"
            return fail(TooManyWaiting(what))
        self._waiting += 1
        self._waiting_bytes += size

        def over(result: Any) -> Any:
            self._waiting -= 1
            self._waiting_bytes -= size
            return result

        return Deferred.fromCoroutine(sending).addBoth(over)

    async def queues_to_write(self, topic: str) -> list[MessageQueue]:
        """The queues of masters to which messages of the topic can go; of a new topic those that it would get.

        Raises TopicNotFound if no broker has the topic or would create it, MQClientError, MQBrokerError.
        """
        return (await self._route(topic)).queues_to_write(topic)

    async def _send_one(self, message: Message, queue: MessageQueue | None) -> SendResult:
        key = message.unique_key
        request = _Request(
            RequestCode.SEND_MESSAGE_V2,
            message.topic,
            message.flag,
            message.stored_properties(key),
            message.body,
            key,
            message.sys_flag,
            message.reconsume_times,
            message.max_reconsume_times,
        )
        return await self._send(request, queue)

    def send_batch(self, messages: Sequence[Message], queue: MessageQueue | None = None) -> Deferred[SendResult]:
        """Send messages of one topic to one queue, all or none.

        Fails like ``send``, and with ValueError if the messages differ in topic or ``wait_store_msg_ok``, if one is
        delayed or compressed, or if the list is empty.
        """
        return self._counted(sum(len(message.body) for message in messages), self._send_batch(messages, queue))

    async def _send_batch(self, messages: Sequence[Message], queue: MessageQueue | None) -> SendResult:
        if len({(message.topic, message.wait_store_msg_ok) for message in messages}) != 1:
            raise ValueError("the messages of a batch must have the same topic and the same wait_store_msg_ok")
        if any(message.delay_level for message in messages):
            raise ValueError("the messages of a batch cannot be delayed")
        if any(message.sys_flag & COMPRESSED_FLAG for message in messages):
            raise ValueError("the messages of a batch cannot be compressed")
        keys = [make_unique_key() for _ in messages]
        entries = [
            BatchEntry(message.body, message.stored_properties(key), message.flag)
            for message, key in zip(messages, keys, strict=True)
        ]
        request = _Request(
            RequestCode.SEND_BATCH_MESSAGE,
            messages[0].topic,
            0,
            format_properties({"WAIT": str(messages[0].wait_store_msg_ok).lower()}),
            encode_batch(entries),
            ",".join(keys),
        )
        return await self._send(request, queue)

    async def _send(self, request: _Request, queue: MessageQueue | None) -> SendResult:
        size = len(request.body) + len(request.properties.encode("utf-8", "surrogateescape"))
        if size > FRAME_MAX_LENGTH - HEADER_ROOM_BYTES:
            raise MessageTooLarge(f"a message of {size} bytes; a request has at most {FRAME_MAX_LENGTH}")
        deadline = self._client.clock.seconds() + self._timeout
        failure: MQBrokerError | MQClientError = MQClientError(f"no broker was asked within {self._timeout:g} s")
        chosen, tries = queue, 1 if queue is not None else 1 + self._retry_times
        for _ in range(tries):
            route = await self._route(request.topic)
            if queue is None:
                chosen = self._choose(route, request.topic, chosen)
            assert chosen is not None, "one was given, or chosen"
            seconds = deadline - self._client.clock.seconds()
            if seconds <= 0:
                break
            try:
                return await self._send_to(chosen, route, request, seconds)
            except MQClientError as error:
                failure = error
                self._forget_route(request.topic)
            except MQBrokerError as error:
                if error.code not in RETRIED:
                    raise
                failure = error
                if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # perhaps another node leads now
                    self._new_topics.pop(request.topic, None)
                    self._client.doubt_route(request.topic)
                    self._client.doubt_route(AUTO_CREATE_TOPIC_KEY_TOPIC)
        raise failure

    def _forget_route(self, topic: str) -> None:
        """Ask for the route again, and for that of the template if the topic was new."""
        if self._new_topics.pop(topic, None) is not None:
            self._client.forget_route(AUTO_CREATE_TOPIC_KEY_TOPIC)
        self._client.forget_route(topic)

    async def _route(self, topic: str) -> TopicRoute:
        """The route of the topic. A new topic uses the route of its template for a while, so that each master may
        create it.
        """
        believed_until, route = self._new_topics.get(topic, (0.0, None))
        if route is not None and believed_until > self._client.clock.seconds():
            return route
        self._new_topics.pop(topic, None)
        return await self._client.route(topic) or await self._route_of_new(topic)

    async def _route_of_new(self, topic: str) -> TopicRoute:
        template = await self._client.route(AUTO_CREATE_TOPIC_KEY_TOPIC)
        if template is None:
            raise TopicNotFound(f"no broker carries topic {topic}, and none would create it")
        route = template.as_template(DEFAULT_TOPIC_QUEUE_NUMS)
        self._new_topics[topic] = self._client.clock.seconds() + seconds_of(route), route
        return route

    def _choose(self, route: TopicRoute, topic: str, failed: MessageQueue | None) -> MessageQueue:
        """The next queue. If possible, it is not on the broker that failed, nor on one that has failed recently."""
        queues = route.queues_to_write(topic)
        if failed is not None:
            queues = [queue for queue in queues if queue.broker_name != failed.broker_name] or queues
        awake = [
            queue for queue in queues if not self._client.is_resting(route.addresses[queue.broker_name][MASTER_ID])
        ]
        queues = awake or queues
        if not queues:
            raise NoMaster(f"topic {topic} has no queue on a master now")
        return queues[next(self._next_queue) % len(queues)]

    async def _send_to(self, queue: MessageQueue, route: TopicRoute, request: _Request, seconds: float) -> SendResult:
        address = route.addresses.get(queue.broker_name, {}).get(MASTER_ID)
        if address is None:
            raise NoMaster(f"broker {queue.broker_name} has no master now")
        fields = self._fields(queue, request)
        return _result(await self._client.ask(address, request.code, fields, request.body, seconds), queue, request)

    def _fields(self, queue: MessageQueue, request: _Request) -> dict[str, str]:
        names = V2_FIELDS
        limit = request.max_reconsume_times
        return {
            **({} if limit is None else {names.max_reconsume_times: str(limit)}),
            names.producer_group: self._group,
            names.topic: request.topic,
            names.default_topic: AUTO_CREATE_TOPIC_KEY_TOPIC,
            names.default_topic_queue_nums: str(DEFAULT_TOPIC_QUEUE_NUMS),
            names.queue_id: str(queue.queue_id),
            names.sys_flag: str(request.sys_flag),
            names.born_timestamp: str(self._now_ms()),
            names.flag: str(request.flag),
            names.properties: request.properties,
            names.reconsume_times: str(request.reconsume_times),
            names.unit_mode: "false",
            names.batch: str(request.code is RequestCode.SEND_BATCH_MESSAGE).lower(),
        }


def _result(answer: RemotingCommand, queue: MessageQueue, request: _Request) -> SendResult:
    status = STORED.get(ResponseCode(answer.code)) if answer.code in STORED else None
    if status is None:
        raise MQBrokerError.of(answer)
    fields = answer.ext_fields
    try:
        return SendResult(
            status,
            request.msg_id,
            fields["msgId"],
            queue._replace(queue_id=int(fields["queueId"])),
            int(fields["queueOffset"]),
        )
    except (KeyError, ValueError) as error:
        raise InvalidAnswer(f"the answer does not say where the message is: {error!r}") from error
