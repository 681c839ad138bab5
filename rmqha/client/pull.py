"""Pulling messages (spec/remoting.md 2.3 to 2.5 and 8.6)."""

from enum import Enum
from typing import NamedTuple

from twisted.internet.defer import Deferred

from rmqha.client.errors import InvalidAnswer, MQBrokerError, MQClientError
from rmqha.client.instance import MQClient
from rmqha.client.message import MessageQueue
from rmqha.client.received import unwrapped
from rmqha.client.route import MASTER_ID
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.javahash import java_hash
from rmqha.wire.record import Blank, Record, RecordError, decode_record
from rmqha.wire.requestfields import SUBSCRIPTION_FLAG, SUSPEND_FLAG
from rmqha.wire.subscription import SUB_ALL, SubscriptionData, type_of

PULL_TIMEOUT_SECONDS = 10.0
"""How much longer than the broker may hold a pull we wait for the answer."""
MAX_MESSAGES = 32


class PullStatus(Enum):
    """What a pull has found."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


class PullResult(NamedTuple):
    """The messages found, and where to continue. Messages are records as they are in the log; a body may be
    compressed. Those of a batch of 5.x are records of their own.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Record, ...] = ()


class PullConsumer:
    """Reads queues at any offset, from a slave if the master is unreachable. Keeps no position of its own."""

    def __init__(self, client: MQClient, group: str) -> None:
        self._client = client
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}

    def fetch_queues(self, topic: str) -> Deferred[list[MessageQueue]]:
        """The queues of a topic, on all brokers. Fails with TopicNotFound if the topic is unknown, with NoMaster if
        nobody leads it, with MQClientError if no server answers.
        """
        return Deferred.fromCoroutine(self._fetch_queues(topic))

    async def _fetch_queues(self, topic: str) -> list[MessageQueue]:
        route = await self._client.route(topic)
        if route is None:
            raise await self._client.without_route(topic)
        return route.queues_to_read(topic)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = MAX_MESSAGES,
        expression: str = SUB_ALL,
        suspend_seconds: float = 0.0,
    ) -> Deferred[PullResult]:
        """Pull messages whose tag matches ``expression``, from queue offset ``offset`` on, as many as a broker returns
        at once. With a ``SqlExpression`` their properties must match.

        If there are none yet, the broker may wait for ``suspend_seconds``. Fails with MQClientError, MQBrokerError.
        """
        return Deferred.fromCoroutine(self._pull(queue, offset, max_messages, expression, suspend_seconds))

    async def _pull(
        self, queue: MessageQueue, offset: int, max_messages: int, expression: str, suspend_seconds: float
    ) -> PullResult:
        fields = {
            "consumerGroup": self._group,
            "queueOffset": str(offset),
            "maxMsgNums": str(max_messages),
            "sysFlag": str(SUBSCRIPTION_FLAG | (SUSPEND_FLAG if suspend_seconds > 0 else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(suspend_seconds * 1000)),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": type_of(expression),
        }
        answer = await self._ask(
            RequestCode.PULL_MESSAGE,
            queue,
            fields,
            PULL_TIMEOUT_SECONDS + suspend_seconds,
            self._suggested.get(queue, MASTER_ID),
        )
        wanted = SubscriptionData(queue.topic, expression, expression_type=type_of(expression)).wanted
        try:
            result = _result(answer)
            self._suggested[queue] = int(answer.ext_fields["suggestWhichBrokerId"])
        except (KeyError, ValueError) as error:
            raise InvalidAnswer(f"the answer to a pull cannot be read: {error!r}") from error
        if wanted is None:
            return result
        matching = [record for record in result.messages if wanted(java_hash(record.properties.get("TAGS", "")))]
        return result._replace(messages=tuple(matching))

    def min_offset(self, queue: MessageQueue) -> Deferred[int]:
        """The queue's first offset. Fails with MQClientError, MQBrokerError, like all methods below."""
        return Deferred.fromCoroutine(self._offset(RequestCode.GET_MIN_OFFSET, queue))

    def max_offset(self, queue: MessageQueue) -> Deferred[int]:
        """The offset of the queue's next message."""
        return Deferred.fromCoroutine(self._offset(RequestCode.GET_MAX_OFFSET, queue))

    def offset_at(self, queue: MessageQueue, timestamp: int) -> Deferred[int]:
        """The offset of the first message stored at ``timestamp`` (ms since 1970) or later, or the queue's end.

        A Java broker of 4.9 gives the message stored nearest to it, which may be an older one.
        """
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return Deferred.fromCoroutine(self._offset(code, queue, {"timestamp": str(timestamp), "boundaryType": "LOWER"}))

    async def _offset(self, code: RequestCode, queue: MessageQueue, fields: dict[str, str] | None = None) -> int:
        answer = await self._ask(code, queue, fields or {})
        return _offset_in(answer)

    def query_offset(self, queue: MessageQueue) -> Deferred[int | None]:
        """The offset that the group has committed in the queue; None if the broker has none."""
        return Deferred.fromCoroutine(self._query_offset(queue))

    async def _query_offset(self, queue: MessageQueue) -> int | None:
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, queue, {"consumerGroup": self._group})
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset_in(answer)

    def update_offset(self, queue: MessageQueue, offset: int) -> Deferred[None]:
        """Commit the group's offset. A commit to a slave is lost when the master returns."""
        return Deferred.fromCoroutine(self._update_offset(queue, offset))

    async def _update_offset(self, queue: MessageQueue, offset: int) -> None:
        fields = {"consumerGroup": self._group, "commitOffset": str(offset)}
        answer = await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise MQBrokerError.of(answer)

    async def _ask(
        self,
        code: RequestCode,
        queue: MessageQueue,
        fields: dict[str, str],
        timeout: float = PULL_TIMEOUT_SECONDS,
        broker_id: int = MASTER_ID,
    ) -> RemotingCommand:
        """Ask the broker with this id, or another one of its name that answers."""
        fields = {**fields, "topic": queue.topic, "queueId": str(queue.queue_id)}
        failure = MQClientError(f"broker {queue.broker_name} is not registered now")
        for address in await self._addresses(queue, broker_id):
            try:
                return await self._client.ask(address, code, fields, timeout=timeout)
            except MQClientError as error:
                failure = error
        self._client.forget_route(queue.topic)
        raise failure

    async def _addresses(self, queue: MessageQueue, broker_id: int) -> list[str]:
        """The addresses to ask, the best first: those that answer, then the suggested one, then by id."""
        brokers = await self._client.addresses_of(queue.broker_name, queue.topic)
        ordered = sorted(brokers, key=lambda key: (self._client.is_resting(brokers[key]), key != broker_id, key))
        return [brokers[key] for key in ordered]


def _offset_in(answer: RemotingCommand) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise MQBrokerError.of(answer)
    try:
        return int(answer.ext_fields["offset"])
    except (KeyError, ValueError) as error:
        raise InvalidAnswer(f"the answer contains no offset: {error!r}") from error


def _result(answer: RemotingCommand) -> PullResult:
    """Raises MQBrokerError, KeyError, ValueError."""
    if answer.code not in {status.value for status in PullStatus}:
        raise MQBrokerError.of(answer)
    fields = answer.ext_fields
    return PullResult(
        PullStatus(answer.code),
        int(fields["nextBeginOffset"]),
        int(fields["minOffset"]),
        int(fields["maxOffset"]),
        tuple(one for record in read_records(answer.body) for one in unwrapped(record)),
    )


def read_records(body: bytes) -> list[Record]:
    """The messages in the body of an answer. Raises RecordError."""
    records, at, view = [], 0, memoryview(body)
    while at < len(view):
        record = decode_record(view, at)
        if isinstance(record, Blank):
            raise RecordError("the end of a segment among messages")
        records.append(record)
        at += record.total_size
    return records
