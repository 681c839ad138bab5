"""Answers pulls, and holds a pull until there is a message for it (spec/remoting.md 2.3)."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Self

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from rmqha.broker.requests.sharedreads import SharedReads
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import BYTES_OF_A_CHARACTER, ConsumerManager
from rmqha.broker.tables.filters import parse_failed
from rmqha.broker.tables.offsets import queue_id_of
from rmqha.broker.tables.shares import Shares, holder_of
from rmqha.broker.tables.stats import BrokerStats
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps
from rmqha.remoting.header import Header, refused
from rmqha.remoting.protocol import (
    SERVER_CHANNEL_MAX_IDLE_SECONDS,
    Answer,
    IConnectionObserver,
    Later,
    Processors,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.settings.settings import Settings
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import PERM_READ, SubscriptionGroupConfig
from rmqha.store.reading import GetMessageResult, GetMessageStatus, MessageReader, TagFilter
from rmqha.store.readlimit import Wait
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.heartbeat import MessageModel
from rmqha.wire.requestfields import COMMIT_OFFSET_FLAG, SUBSCRIPTION_FLAG, SUSPEND_FLAG
from rmqha.wire.subscription import SQL92, TAG, USUAL_EXPRESSION_LENGTH, SubscriptionData

if TYPE_CHECKING:  # most brokers have no such filters, and start quicker
    from rmqha.filter.expressions import SqlFilter

MASTER_ID = 0

CHECK_SECONDS = 5.0
MAX_HOLD_SECONDS = SERVER_CHANNEL_MAX_IDLE_SECONDS
"""A pull is not held for longer, because a silent connection does not last that long."""
MAX_HELD_PULLS = 100_000
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Limit for the expressions of held pulls."""
BYTES_OF_A_PARSED_CHARACTER = 200
"""About the memory that an SQL92 expression takes."""
USUAL_SUBSCRIPTIONS = 1024
"""How many subscriptions that came with pulls are remembered, so that the next pull does not make it again."""
WOKEN_AT_ONCE = 64
"""Held pulls that are answered per reactor turn."""
WAKING_SECONDS = 0.01
"""In one reactor turn, no further held pull is answered after this time."""

PULL_CODES = {
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.WAITS_FOR_A_SLAVE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
"""The answers to reads that found nothing."""
FOUND = GetMessageStatus.FOUND.name
REMARKS = {
    GetMessageStatus.WAITS_FOR_A_SLAVE: "WAITS_FOR_A_SLAVE: the next message is stored, but not confirmed by enough "
    "slaves; this broker has readUpTo=confirmed"
}
"""Instead of the name of the status."""
OF_AN_EMPTY_QUEUE = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)


class PullRequest(NamedTuple):
    """The header of a pull. ``sys_flag`` consists of the FLAG bits. ``subscription`` counts if its bit is set."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int
    subscription: str
    sub_version: int
    expression_type: str

    @classmethod
    def from_header(cls, header: Header) -> Self:
        """Raises RequestRefused."""
        return cls(
            header.text("consumerGroup"),
            header.text("topic"),
            queue_id_of(header),
            header.integer("queueOffset"),
            header.integer("maxMsgNums"),
            header.integer("sysFlag"),
            header.integer("commitOffset"),
            header.integer("suspendTimeoutMillis"),
            header.text("subscription", default=""),
            header.integer("subVersion"),
            header.text("expressionType", default=""),
        )


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits at the end of its queue. ``woken`` fires when the queue should be read again.

    ``confirming`` is its wait for a message that is in the queue, but not confirmed yet.
    """

    connection: RemotingProtocol
    queue: tuple[str, int]
    queue_offset: int
    wanted: TagFilter | None
    size: int = 0
    holder: str = ""
    woken: Deferred[None] = field(default_factory=Deferred)
    deadline: IDelayedCall | None = None
    confirming: Wait | None = None


@implementer(IConnectionObserver)
class PullRequestHoldService(PeriodicService):
    """Holds pulls by queue until a matching message may have arrived, their time is up, or their client is gone.

    If reads end at the confirmed end of the log, a pull whose next message is in the log waits until that message is
    confirmed. Meanwhile it is not in ``_queues``: further messages cost nothing.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        store: MessageStore,
    ) -> None:
        super().__init__("checking held pulls", CHECK_SECONDS, self.check, clock, first_after=CHECK_SECONDS)
        self.timer = clock
        self.reads = SharedReads(store)
        """Reads for all pulls. Those that wake in one turn share them."""
        self._store = store
        self._queues: dict[tuple[str, int], set[HeldPull]] = {}
        self._connections: dict[RemotingProtocol, set[HeldPull]] = {}
        self._woken: deque[HeldPull] = deque()
        self._waking: IDelayedCall | None = None
        self._size = 0
        self._shares = Shares(MAX_HELD_PULLS)

    @property
    def count(self) -> int:
        """The number of held pulls."""
        return self._shares.count

    def stopService(self) -> Deferred[None]:
        """Drop all held pulls. Their connections must be closed."""
        for pulls in list(self._connections.values()):
            for pull in list(pulls):
                self._forget(pull)
        self._woken.clear()
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        return super().stopService()

    def hold(
        self,
        connection: RemotingProtocol,
        queue: tuple[str, int],
        queue_offset: int,
        wanted: TagFilter | None,
        seconds: float,
        size: int = 0,
    ) -> Deferred[None]:
        """Fires when ``queue`` (topic and queue id) should be read again, after ``seconds`` at most.

        It does not fire after the connection is closed. ``size`` is about how many bytes ``wanted`` takes. Raises
        RequestRefused if too many pulls are held, or very many of this account; without accounts of this address.
        """
        if self._size + size > MAX_HELD_BYTES:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"the held pulls already take {self._size} bytes")
        holder = holder_of(connection)
        if not self._shares.take(holder):
            reason = f"{self.count} pulls are already held, and many of them of {holder}"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, reason)
        pull = HeldPull(connection, queue, queue_offset, wanted, size, holder)
        self._size += size
        if connection not in self._connections:
            self._connections[connection] = set()
            connection.on_closed(self)
        self._connections[connection].add(pull)
        self._queues.setdefault(queue, set()).add(pull)
        pull.deadline = self.timer.callLater(seconds, self._wake, pull)
        if self._store.read_limit is not None:
            self._await_confirmed(pull, self._store.reader)
        return pull.woken

    def _await_confirmed(self, pull: HeldPull, reader: MessageReader, end: int = 0) -> bool:
        """Let a pull wait until the next message that it wants is confirmed, if it is in the queue. Raises OSError.

        ``end`` is the end, in the log, of a message that it wants, in case the queue does not show it. False if nothing
        has to be confirmed.
        """
        limit = reader.limit
        assert limit is not None, "reads have a limit"
        end = reader.confirmed_at(*pull.queue, pull.queue_offset, pull.wanted) or end
        if end <= limit.offset:
            return False
        pull.confirming = limit.wait(end, lambda: self._wake(pull))
        self._leave_queue(pull)
        return True

    def message_arrived(self, message: DispatchRequest, tags_code: int) -> None:
        """A message was added to a queue."""
        pulls = self._queues.get((message.topic, message.queue_id))
        if pulls is None:
            return
        reader = None if self._store.read_limit is None else self._store.reader
        for pull in list(pulls):
            if pull.queue_offset <= message.queue_offset and (pull.wanted is None or pull.wanted(tags_code)):
                end = message.physical_offset + message.size
                if reader is None or not self._await_confirmed(pull, reader, end):
                    self._wake(pull)

    def check(self) -> None:
        """Wake the pulls whose queue has grown, even if no message matches: they can continue after those messages."""
        for queue, pulls in list(self._queues.items()):
            max_offset = self._store.reader.max_offset(*queue)
            for pull in list(pulls):
                if pull.queue_offset < max_offset:
                    self._wake(pull)

    def _wake(self, pull: HeldPull) -> None:
        """Wake a pull in the next turn: more messages may arrive in this one, and replication goes first."""
        self._forget(pull)
        self._woken.append(pull)
        if self._waking is None:
            self._waking = self.timer.callLater(0, self._wake_some)

    def _wake_some(self) -> None:
        self._waking = None
        connections: dict[RemotingProtocol, None] = {}
        until = self.timer.seconds() + WAKING_SECONDS
        self.reads.begin()
        for _ in range(min(WOKEN_AT_ONCE, len(self._woken))):
            pull = self._woken.popleft()
            if pull.connection.is_open:
                connections[pull.connection] = None
                pull.connection.begin_round()
                pull.woken.callback(None)
                if pull.connection.turns.has_answered_enough or self.timer.seconds() >= until:
                    break
        self.reads.end()
        for connection in connections:
            connection.end_round()
        if self._woken and self._waking is None:
            self._waking = self.timer.callLater(0, self._wake_some)

    def _forget(self, pull: HeldPull) -> None:
        self._shares.give_back(pull.holder)
        self._size -= pull.size
        self._connections[pull.connection].discard(pull)
        if pull.confirming is None:
            self._leave_queue(pull)
        else:
            pull.confirming.cancel()
        if pull.deadline is not None and pull.deadline.active():
            pull.deadline.cancel()

    def _leave_queue(self, pull: HeldPull) -> None:
        pulls = self._queues[pull.queue]
        pulls.discard(pull)
        if not pulls:
            del self._queues[pull.queue]

    def connection_closed(self, connection: RemotingProtocol) -> None:
        for pull in list(self._connections[connection]):
            self._forget(pull)
        del self._connections[connection]


class PullMessageProcessor:
    """Answers pulls."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        tables: BrokerTables,
        consumers: ConsumerManager,
        held_pulls: PullRequestHoldService,
        stats: BrokerStats,
    ) -> None:
        self._store = store
        self.settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._consumers = consumers
        self._consumer_offsets = tables.consumer_offsets
        self._held_pulls = held_pulls
        self._clock = held_pulls.timer
        self._pulled = stats.messages_got
        self._corrects_offsets = not store.is_slave or settings.offset_check_in_slave

    def processors(self) -> Processors:
        """By request code. Both codes mean the same."""
        return {RequestCode.PULL_MESSAGE: self.pull_message, RequestCode.LITE_PULL_MESSAGE: self.pull_message}

    def pull_message(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Answer with messages from an offset of a queue, later if there are no messages yet."""
        pull = PullRequest.from_header(Header(request))
        expression = self._sql_expression(pull)
        if expression is not None:
            return connection.turns.run(self._pull_by_sql(connection, pull, expression))
        if len(pull.subscription) > USUAL_EXPRESSION_LENGTH:
            return connection.turns.run(self._pull_with_long_expression(connection, pull))
        return self._pull(connection, pull)

    def _pull_with_long_expression(self, connection: RemotingProtocol, pull: PullRequest) -> Steps[Later]:
        """Parse a long expression in a turn of its own."""
        yield
        answer = self._pull(connection, pull)
        return Later(answer if isinstance(answer, Deferred) else succeed(answer))

    def _sql_expression(self, pull: PullRequest) -> str | None:
        """The SQL92 expression by which a pull filters; None if it filters by tags, or is going to be refused."""
        if pull.sys_flag & SUBSCRIPTION_FLAG:
            return pull.subscription if pull.expression_type == SQL92 else None
        consumers = self._consumers.get(pull.group)
        subscription = None if consumers is None else consumers.subscription(pull.topic)
        is_sql = subscription is not None and subscription.expression_type == SQL92
        return subscription.sub_string if subscription is not None and is_sql else None

    def _pull_by_sql(self, connection: RemotingProtocol, pull: PullRequest, expression: str) -> Steps[Later]:
        """Parse the expression, and read in a turn of its own: looking at properties takes long."""
        self._check(pull, connection, parsed="")
        found = yield from self._consumers.filters.parsing(expression)
        yield
        group, wanted = self._check(pull, connection, parsed=found)
        answer = self._read(pull, group, wanted)
        self._commit(connection, pull)
        seconds = self._hold_seconds(pull, answer)
        if not seconds > 0:
            return Later(succeed(answer))
        return Later(Deferred.fromCoroutine(self._hold_by_sql(connection, pull, found, seconds)))

    async def _hold_by_sql(
        self, connection: RemotingProtocol, pull: PullRequest, parsed: "SqlFilter | str", seconds: float
    ) -> RemotingCommand:
        """Hold a pull until there is a message that it wants. It goes on after those that it does not want."""
        until = self._clock.seconds() + seconds
        size = BYTES_OF_A_PARSED_CHARACTER * len(pull.subscription)
        queue = pull.topic, pull.queue_id
        end = pull.queue_offset
        while True:
            left = max(0.0, until - self._clock.seconds())
            if pull.queue_offset >= end and left:
                await self._held_pulls.hold(connection, queue, pull.queue_offset, None, left, size)
            await connection.turns.next()
            group, wanted = self._check_again(pull, connection, parsed)
            answer = self._read(pull, group, wanted)
            is_unwanted = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            following = int(answer.ext_fields["nextBeginOffset"])
            if not is_unwanted or following <= pull.queue_offset or not left:
                return answer
            pull = pull._replace(queue_offset=following)
            end = int(answer.ext_fields["maxOffset"])

    def _commit(self, connection: RemotingProtocol, pull: PullRequest) -> None:
        """Take the offset that a pull commits."""
        if not pull.sys_flag & COMMIT_OFFSET_FLAG or self._store.is_slave:
            return
        if not self._store.is_of_deleted(pull.topic, pull.queue_id, pull.commit_offset):
            host, port = connection.peer_host
            self._consumer_offsets.commit(pull.group, pull.topic, pull.queue_id, pull.commit_offset, f"{host}:{port}")

    def _pull(self, connection: RemotingProtocol, pull: PullRequest) -> RemotingCommand | Deferred[RemotingCommand]:
        group, wanted = self._check(pull, connection)
        answer = self._read(pull, group, wanted)
        self._commit(connection, pull)
        seconds = self._hold_seconds(pull, answer)
        if not seconds > 0:
            return answer
        assert wanted is None or callable(wanted), "other filters go another way"
        queue = pull.topic, pull.queue_id
        woken = self._held_pulls.hold(
            connection, queue, pull.queue_offset, wanted, seconds, BYTES_OF_A_CHARACTER * len(pull.subscription)
        )
        return woken.addCallback(lambda _: self._read(pull, *self._check_again(pull, connection)))

    def _check(
        self, pull: PullRequest, connection: RemotingProtocol, parsed: "SqlFilter | str | None" = None
    ) -> "tuple[SubscriptionGroupConfig, TagFilter | SqlFilter | None]":
        """The group's settings and subscription. Raises RequestRefused.

        ``parsed`` is the filter of an SQL92 expression, or what is wrong with it; empty if it is not parsed yet.
        """
        if not self.settings.broker_permission & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "this broker may not be read from")
        group = self._groups.find_or_create(pull.group, connection)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no subscription group {pull.group}"
            )
        if not group.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"group {pull.group} may not consume")
        self._check_queue(pull)
        subscription = self._subscription(pull, group)
        if subscription.is_tag_type:
            return group, subscription.wanted
        self._consumers.filters.check_type(subscription.expression_type)
        is_given = bool(pull.sys_flag & SUBSCRIPTION_FLAG)
        if parsed == "":
            return group, None
        if isinstance(parsed, str):
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED if is_given else ResponseCode.FILTER_DATA_NOT_EXIST
            raise parse_failed(parsed, code)
        if parsed is None or parsed.text != subscription.sub_string:  # None: it has become one by SQL92 meanwhile
            raise RequestRefused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's expression has changed")
        return group, parsed

    def _check_again(
        self, pull: PullRequest, connection: RemotingProtocol, parsed: "SqlFilter | str | None" = None
    ) -> "tuple[SubscriptionGroupConfig, TagFilter | SqlFilter | None]":
        """As above, of a pull that was held: its account may have lost its permissions meanwhile."""
        if not (connection.rights.may_read(pull.topic) and connection.rights.may_consume_in(pull.group)):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the account may no longer read topic {pull.topic}")
        return self._check(pull, connection, parsed)

    def _check_queue(self, pull: PullRequest) -> None:
        topic = self._topics.get(pull.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {pull.topic} does not exist")
        if not topic.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {pull.topic} may not be read from")
        if not 0 <= pull.queue_id < topic.read_queue_nums:
            raise refused(
                f"queueId {pull.queue_id} is illegal: topic {pull.topic} has {topic.read_queue_nums} queues to read"
            )

    def _subscription(self, pull: PullRequest, group: SubscriptionGroupConfig) -> SubscriptionData:
        """The subscription in the request, else the one in the group's heartbeats. Raises RequestRefused."""
        if pull.sys_flag & SUBSCRIPTION_FLAG:
            try:
                if pull.expression_type in ("", TAG) and len(pull.subscription) <= USUAL_EXPRESSION_LENGTH:
                    return _usual_subscription(pull.topic, pull.subscription, pull.expression_type)
                return SubscriptionData.from_request(pull.topic, pull.subscription, pull.expression_type)
            except ValueError as error:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription cannot be parsed: {error}"
                ) from error
        consumers = self._consumers.get(pull.group)
        if consumers is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"no consumer of group {pull.group} is known here"
            )
        if consumers.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"group {pull.group} may not consume by broadcast")
        subscription = consumers.subscription(pull.topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"group {pull.group} does not subscribe to {pull.topic}"
            )
        if subscription.sub_version < pull.sub_version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"group {pull.group} has a newer subscription to {pull.topic}; its heartbeat has not arrived yet",
            )
        return subscription

    def _read(
        self, pull: PullRequest, group: SubscriptionGroupConfig, wanted: "TagFilter | SqlFilter | None"
    ) -> RemotingCommand:
        moved = self._moved_by_reset(pull)
        if moved is not None:
            return moved
        try:
            found = self._held_pulls.reads.get_message(
                pull.topic, pull.queue_id, pull.queue_offset, pull.max_messages, wanted
            )
        except OSError as error:
            self._log.error(
                "a pull of {topic} cannot be read: {error}",
                event=Event.PULL_UNREADABLE,
                topic=pull.topic,
                error=str(error),
            )
            raise refused("store getMessage return null") from error
        if found.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY and self._has_read_no_new_message(pull):
            found = found._replace(next_begin_offset=found.min_offset)
        self._pulled(pull.group, pull.topic, len(found.sizes), found.total_bytes)
        broker_id = self._suggested_broker(found, group)
        if found.status is GetMessageStatus.FOUND:  # looked at before the tables, which take longer
            return _answer(ResponseCode.SUCCESS, FOUND, broker_id, found)
        code = PULL_CODES[found.status]
        if found.status in OF_AN_EMPTY_QUEUE and pull.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if code is ResponseCode.PULL_OFFSET_MOVED:
            self._log.warn(
                "group {group} pulls queue {queue_id} of {topic} at {offset}; it has {low} to {high}",
                event=Event.PULL_OUT_OF_RANGE,
                group=pull.group,
                queue_id=pull.queue_id,
                topic=pull.topic,
                offset=pull.queue_offset,
                low=found.min_offset,
                high=found.max_offset,
            )
            if not self._corrects_offsets:
                code, broker_id = ResponseCode.PULL_RETRY_IMMEDIATELY, group.broker_id
        return _answer(code, REMARKS.get(found.status, found.status.name), broker_id, found)

    def _has_read_no_new_message(self, pull: PullRequest) -> bool:
        """Whether a pull beyond the end goes on where its group was before the topic was deleted."""
        is_of_deleted = self._store.is_of_deleted(pull.topic, pull.queue_id, pull.queue_offset)
        return is_of_deleted and self._consumer_offsets.query(pull.group, pull.topic, pull.queue_id) < 0

    def _moved_by_reset(self, pull: PullRequest) -> RemotingCommand | None:
        """Sends a consumer to the offset to which an operator has reset its group, if it does not go there by itself;
        None if it is there, or may still go.
        """
        of_queue = pull.group, pull.topic, pull.queue_id
        wanted = self._consumer_offsets.reset_offset(*of_queue)
        if wanted is None or self._store.is_slave:
            return None
        if pull.queue_offset == wanted:
            self._consumer_offsets.went_on(*of_queue)
            return None
        if not self._consumer_offsets.must_send_to_reset(*of_queue):
            return None
        reader, queue = self._store.reader, (pull.topic, pull.queue_id)
        ends = max(0, reader.min_offset(*queue)), reader.max_offset(*queue)
        found = GetMessageResult(GetMessageStatus.OFFSET_RESET, wanted, *ends)
        return _answer(ResponseCode.PULL_OFFSET_MOVED, found.status.name, MASTER_ID, found)

    def _suggested_broker(self, found: GetMessageResult, group: SubscriptionGroupConfig) -> int:
        if not self.settings.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if found.suggest_pulling_from_slave else group.broker_id

    def _hold_seconds(self, pull: PullRequest, answer: RemotingCommand) -> float:
        """The time in seconds to hold the pull; 0 to answer at once.

        If a slave cannot correct an offset, upstream answers at once, and the consumer of a dead master repeats the
        pull as fast as it can. We hold it.
        """
        if not pull.sys_flag & SUSPEND_FLAG:
            return 0.0
        longest_ms = pull.suspend_timeout_ms
        if not self.settings.long_polling_enable:
            longest_ms = self.settings.short_polling_time_ms
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            stays = answer.ext_fields["nextBeginOffset"] == str(pull.queue_offset)
            longest_ms = min(longest_ms, self.settings.short_polling_time_ms) if stays else 0
        elif answer.code != ResponseCode.PULL_NOT_FOUND:
            longest_ms = 0
        return min(longest_ms / 1000, MAX_HOLD_SECONDS)


_usual_subscription = lru_cache(maxsize=USUAL_SUBSCRIPTIONS)(SubscriptionData.from_request)
"""Only for expressions of tags that are not long."""


def _answer(code: ResponseCode, remark: str, broker_id: int, found: GetMessageResult) -> RemotingCommand:
    return RemotingCommand(
        code,
        remark=remark,
        ext_fields={
            "suggestWhichBrokerId": str(broker_id),
            "nextBeginOffset": str(found.next_begin_offset),
            "minOffset": str(found.min_offset),
            "maxOffset": str(found.max_offset),
        },
        body=found.body,
    )
