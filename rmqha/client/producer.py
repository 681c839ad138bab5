"""Sending messages (spec/remoting.md 2.1, 4.2 and 8.2)."""

import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import deferLater

from rmqha.client.errors import (
    ClientStopped,
    InvalidAnswer,
    MessageTooLarge,
    MQBrokerError,
    MQClientError,
    NoAnswer,
    NoMaster,
    TooManyWaiting,
    TopicNotFound,
    Unreachable,
)
from rmqha.client.instance import MQClient, seconds_of
from rmqha.client.lookup import MAX_TIME, UNIQUE_KEY_FLAG, records_of
from rmqha.client.message import Message, MessageQueue, SendResult, SendStatus, make_unique_key
from rmqha.client.route import MASTER_ID, TopicRoute
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.javahash import java_hash
from rmqha.wire.properties import format_properties
from rmqha.wire.record import COMPRESSED_FLAG, TRANSACTION_TYPE_MASK, keys_of
from rmqha.wire.requestfields import V2_FIELDS
from rmqha.wire.timers import TIMER_PROPERTIES
from rmqha.wire.topics import AUTO_CREATE_TOPIC_KEY_TOPIC

SEND_TIMEOUT_SECONDS = 3.0
RETRY_TIMES_WHEN_SEND_FAILED = 2
LEADER_TIMEOUT_SECONDS = 30.0
"""Twice what a failover takes if the leader dies."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 1.0
"""While nobody leads, or it is not known whether a message is stored. Each pause is twice as long as the one before."""
DEFAULT_TOPIC_QUEUE_NUMS = 4
NO_BUYER_ID, NOT_IN_CURRENT_UNIT = 204, 205
RETRIED = (
    ResponseCode.SYSTEM_ERROR,
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
class Retries:
    """What a producer does if a send fails.

    Another broker is tried up to ``times`` times after an answer that another broker may not give. While nobody leads,
    the send waits, for up to ``leader_timeout`` seconds: the message is stored nowhere then.

    If a broker does not answer, it may have stored the message. ``is_idempotent`` says that the send then waits for the
    same broker, or who leads it next, for up to ``leader_timeout`` seconds. It looks there for the message, by its id
    (UNIQ_KEY), and sends it again only if it is not there. The broker needs its index (``messageIndexEnable``).
    """

    times: int = RETRY_TIMES_WHEN_SEND_FAILED
    leader_timeout: float = LEADER_TIMEOUT_SECONDS
    is_idempotent: bool = False


DEFAULT_RETRIES = Retries()


@dataclass(frozen=True, slots=True)
class SendLimits:
    """How many sends of a producer may wait for their answers at the same time, and how many bytes in their bodies."""

    waiting: int = 10_000
    waiting_bytes: int = 64 * 1024 * 1024


class Producer:
    """Sends to the queues of all masters in turn. If one fails, it tries another, as ``retries`` says. All answers
    together may take ``timeout`` seconds.
    """

    def __init__(
        self,
        client: MQClient,
        group: str,
        timeout: float = SEND_TIMEOUT_SECONDS,
        retries: Retries = DEFAULT_RETRIES,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        limits: SendLimits = SendLimits(),
    ) -> None:
        self.clock = client.clock
        self._client = client
        self._group = group
        self.timeout = timeout
        self.retries = retries
        self._now_ms = now_ms
        self._limits = limits
        self._waiting = 0
        self._waiting_bytes = 0
        self._next_queue = count()
        self._new_topics: dict[str, tuple[float, TopicRoute]] = {}

    def send(self, message: Message, queue: MessageQueue | None = None) -> Deferred[SendResult]:
        """Send a message, only to ``queue`` if it is given.

        Fails with MQBrokerError if a broker refuses the message finally, with NoMaster if nobody leads in time, with
        NoAnswer if no broker answers in time (one may have stored the message), with another MQClientError, with
        TooManyWaiting, and with ValueError if the message is too large or a property cannot be encoded. An idempotent
        producer refuses delayed messages and transactions so: they cannot be looked up.
        """
        return self._counted(len(message.body), self._send_one(message, queue))

    def send_ordered(self, message: Message, select: Select) -> Deferred[SendResult]:
        """Send a message to the queue that ``select`` chooses, and to no other one, so that the order within the queue
        is kept. Wait for the result before you send the next message of the same order.

        Fails like ``send``, and with NoMaster if the topic has no queue on a master.
        """
        return self._counted(len(message.body), self._send_ordered(message, select))

    async def _send_ordered(self, message: Message, select: Select) -> SendResult:
        return await self._send_one(message, None, select)

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
        return (await self.route(topic)).queues_to_write(topic)

    async def _send_one(self, message: Message, queue: MessageQueue | None, select: Select | None = None) -> SendResult:
        key = message.unique_key
        if self.retries.is_idempotent and not _can_be_found(message):
            raise ValueError("an idempotent producer cannot look up delayed messages and transactions")
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
        return await self._send(request, queue, select)

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

    async def _send(self, request: _Request, queue: MessageQueue | None, select: Select | None = None) -> SendResult:
        size = len(request.body) + len(request.properties.encode("utf-8", "surrogateescape"))
        if size > FRAME_MAX_LENGTH - HEADER_ROOM_BYTES:
            raise MessageTooLarge(f"a message of {size} bytes; a request has at most {FRAME_MAX_LENGTH}")
        return await _Sending(self, request, queue, select).run()

    def forget_route(self, topic: str) -> None:
        """Ask for the route again, and for that of the template if the topic was new."""
        if self._new_topics.pop(topic, None) is not None:
            self._client.forget_route(AUTO_CREATE_TOPIC_KEY_TOPIC)
        self._client.forget_route(topic)

    def doubt_route(self, topic: str) -> None:
        """Ask for the route again soon, perhaps another node leads then."""
        self._new_topics.pop(topic, None)
        self._client.doubt_route(topic)
        self._client.doubt_route(AUTO_CREATE_TOPIC_KEY_TOPIC)

    async def route(self, topic: str) -> TopicRoute:
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
            error = await self._client.without_route(topic)
            if isinstance(error, TopicNotFound):
                raise TopicNotFound(f"{error}, and none would create it")
            raise error
        route = template.as_template(DEFAULT_TOPIC_QUEUE_NUMS)
        self._new_topics[topic] = self._client.clock.seconds() + seconds_of(route), route
        return route

    def choose(self, route: TopicRoute, topic: str, failed: Collection[str]) -> MessageQueue:
        """The next queue. If possible, it is on none of the brokers that failed, nor on one that has failed recently.

        Raises NoMaster.
        """
        queues = route.queues_to_write(topic)
        queues = [queue for queue in queues if queue.broker_name not in failed] or queues
        awake = [
            queue for queue in queues if not self._client.is_resting(route.addresses[queue.broker_name][MASTER_ID])
        ]
        queues = awake or queues
        if not queues:
            raise NoMaster(f"topic {topic} has no queue on a master now")
        return queues[next(self._next_queue) % len(queues)]

    async def send_to(self, queue: MessageQueue, route: TopicRoute, request: _Request, seconds: float) -> SendResult:
        fields = self._fields(queue, request)
        address = _master(queue, route)
        answer = await self._client.ask(address, request.code, fields, request.body, seconds)
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise NoMaster(f"{address} does not take messages now: {answer.remark}")
        return _result(answer, queue, request)

    async def stored(
        self, queue: MessageQueue, route: TopicRoute, request: _Request, seconds: float
    ) -> SendResult | None:
        """Where the broker of a queue has the message, or the first one of a batch; None if it does not have it.

        Raises MQClientError, MQBrokerError, NoMaster.
        """
        address, found = _master(queue, route), []
        for key in request.msg_id.split(","):
            fields = {"topic": request.topic, "key": key, "maxNum": "1", UNIQUE_KEY_FLAG: "true"}
            fields |= {"beginTimestamp": "0", "endTimestamp": str(MAX_TIME)}
            answer = await self._client.ask(address, RequestCode.QUERY_MESSAGE, fields, timeout=seconds)
            records = [] if answer.code == ResponseCode.QUERY_NOT_FOUND else records_of(answer)
            found += [one for one in records if one.topic == request.topic and key in keys_of(one)][:1]
        if not found:
            return None
        if len(found) < len(request.msg_id.split(",")):
            raise NoAnswer(f"{address} does not find the whole batch yet")
        first, ids = found[0], ",".join(one.msg_id for one in found)
        status = SendStatus.FLUSH_SLAVE_TIMEOUT  # nobody says whether slaves have it
        return SendResult(status, request.msg_id, ids, queue._replace(queue_id=first.queue_id), first.queue_offset)

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


class _Sending:
    """One send, from its first try to its result."""

    def __init__(
        self, producer: Producer, request: _Request, queue: MessageQueue | None, select: Select | None
    ) -> None:
        self._producer = producer
        self._request = request
        self._queue = queue
        """The only one that may get the message, if it is known."""
        self._select = select
        self._tries_left = 1 if queue is not None or select is not None else 1 + producer.retries.times
        self._seconds_left = producer.timeout
        """How long answers may still take."""
        self._deadline = producer.clock.seconds() + producer.retries.leader_timeout
        self._pause = FIRST_PAUSE_SECONDS
        self._failed: set[str] = set()
        """The brokers that have failed since the last pause."""
        self._may_be_stored = False

    async def run(self) -> SendResult:
        """Raises as ``Producer.send``."""
        while True:
            try:
                route = await self._producer.route(self._request.topic)
                queue = self._next_queue(route)
            except NoMaster as error:
                await self._wait(error)
                continue
            began = self._producer.clock.seconds()
            try:
                return await self._try(queue, route)
            except (NoMaster, Unreachable) as error:
                await self._try_another_leader(queue, route, error)
            except (MQClientError, MQBrokerError) as error:
                self._seconds_left -= self._producer.clock.seconds() - began
                await self._try_again(queue, error)

    def _next_queue(self, route: TopicRoute) -> MessageQueue:
        """Raises NoMaster."""
        if self._select is not None and self._queue is None:
            queues = sorted(route.queues_to_write(self._request.topic))
            if not queues:
                raise NoMaster(f"topic {self._request.topic} has no queue on a master now")
            self._queue = self._select(queues)
        return self._queue or self._producer.choose(route, self._request.topic, self._failed)

    async def _try(self, queue: MessageQueue, route: TopicRoute) -> SendResult:
        seconds = self._seconds_left
        if self._may_be_stored:
            seconds = self._producer.timeout
            found = await self._producer.stored(queue, route, self._request, seconds)
            if found is not None:
                return found
        return await self._producer.send_to(queue, route, self._request, seconds)

    async def _try_another_leader(self, queue: MessageQueue, route: TopicRoute, error: MQClientError) -> None:
        """The broker has no leader now, so it did not store the message."""
        self._failed.add(queue.broker_name)
        self._producer.doubt_route(self._request.topic)
        others = {one.broker_name for one in route.queues_to_write(self._request.topic)} - self._failed
        if self._queue is not None or not others:
            await self._wait(error)

    async def _try_again(self, queue: MessageQueue, error: MQClientError | MQBrokerError) -> None:
        """Raises the error if there is no reason to try again, or no time."""
        if isinstance(error, MQBrokerError):
            if error.code not in RETRIED:
                raise error
        elif isinstance(error, ClientStopped):
            raise error
        else:
            self._producer.forget_route(self._request.topic)
            if self._producer.retries.is_idempotent:
                self._queue, self._may_be_stored = queue, True
                await self._wait(error)
                return
        self._failed = {queue.broker_name}
        self._tries_left -= 1
        if self._tries_left <= 0 or self._seconds_left <= 0:
            raise error

    async def _wait(self, error: MQClientError) -> None:
        """Wait a little, and longer each time. Raises the error if it is too late."""
        clock = self._producer.clock
        if clock.seconds() + self._pause > self._deadline:
            raise error
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        await deferLater(clock, pause)
        self._failed.clear()


def _can_be_found(message: Message) -> bool:
    """Whether the message gets into its topic at once, where it can be looked up."""
    is_half = message.sys_flag & TRANSACTION_TYPE_MASK
    return not message.delay_level and not is_half and message.properties.keys().isdisjoint(TIMER_PROPERTIES)


def _master(queue: MessageQueue, route: TopicRoute) -> str:
    """Raises NoMaster."""
    address = route.addresses.get(queue.broker_name, {}).get(MASTER_ID)
    if address is None:
        raise NoMaster(f"broker {queue.broker_name} has no master now")
    return address


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
