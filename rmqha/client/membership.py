"""The groups of a client, and the heartbeats that tell brokers about them (spec/remoting.md 2.7, 8.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import Interface

from rmqha import __version__
from rmqha.client.errors import ClientError
from rmqha.client.message import MessageQueue
from rmqha.client.received import BodyError, ReceivedMessage
from rmqha.client.route import MASTER_ID
from rmqha.client.together import together
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Answer, Processor, RemotingProtocol
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import ObjectKey, dumps_compact, dumps_strict
from rmqha.wire.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from rmqha.wire.offsettable import MESSAGE_QUEUE_TABLE, OFFSET_TABLE, reading_offsets
from rmqha.wire.record import Blank, Record, RecordError, decode_record
from rmqha.wire.subscription import SubscriptionData

HEARTBEAT_SECONDS = 30.0
LEAVE_TIMEOUT_SECONDS = 3.0
CLIENT_VERSION_NAME = "V4_9_3"
"""Java's name of the version in our requests."""


class IGroupMember(Interface):
    """A consumer, as brokers and operators see it."""

    def clients_changed() -> None:
        """A client of the group has come or gone."""

    def reset_offsets(offsets: Mapping[MessageQueue, int]) -> None:
        """An operator wants the group to go on at these offsets."""

    def consumed_offsets(topic: str) -> Mapping[MessageQueue, int]:
        """Where this client is in the queues of a topic."""

    def describe(with_stacks: bool) -> dict[str, Any]:
        """What operators want to know, with the stacks of all threads if they want them."""

    async def handle_directly(record: Record, queue: MessageQueue) -> dict[str, Any]:
        """Let the handler handle one message for an operator."""


class ITransactionMember(Interface):
    """A transaction producer, as brokers see it."""

    def check_transaction(connection: RemotingProtocol, request: RemotingCommand, message: ReceivedMessage) -> None:
        """A broker asks how the transaction of a message has ended. The answer may come later, or not at all."""


class Caller(Protocol):
    """What heartbeats need of a client."""

    clock: IReactorTime
    client_id: str
    processors: dict[int, Processor]

    def brokers(self) -> dict[str, int]:
        """The addresses and ids of all known brokers."""

    async def call(
        self,
        address: str,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request and return the answer."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group as its heartbeats describe it, and the consumer that is in it."""

    name: str
    model: MessageModel
    start: ConsumeFromWhere
    subscriptions: Sequence[SubscriptionData]
    member: IGroupMember

    def to_json(self) -> dict[str, Any]:
        """A ConsumerData in Java's form and order."""
        return {
            "consumeFromWhere": self.start.name,
            "consumeType": ConsumeType.CONSUME_PASSIVELY.name,
            "groupName": self.name,
            "messageModel": self.model.name,
            "subscriptionDataSet": [subscription.to_json() for subscription in self.subscriptions],
            "unitMode": False,
        }


class Membership:
    """The groups of a client. While it has some, it sends heartbeats to each broker: every 30 s, and first of all on
    each new connection, so that a broker that was restarted knows the client at once.
    """

    _log = Logger()

    def __init__(self, client: Caller) -> None:
        self._client = client
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, ITransactionMember] = {}
        self._beats: PeriodicService | None = None
        self._failing: set[str] = set()
        client.processors[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._consumer_ids_changed
        client.processors[RequestCode.CHECK_TRANSACTION_STATE] = self._check_transaction_state
        client.processors[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._reset_offset
        client.processors[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = self._consumer_status
        client.processors[RequestCode.GET_CONSUMER_RUNNING_INFO] = self._running_info
        client.processors[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._handle_directly

    def join(self, group: ConsumerGroup) -> None:
        """Add a consumer group. Raises ValueError if this client has a consumer in it already."""
        if group.name in self._consumers:
            raise ValueError(f"this client has a consumer in group {group.name} already; use a client for each")
        self._consumers[group.name] = group
        self._start()

    def join_producer(self, group: str, producer: ITransactionMember) -> None:
        """Add a producer group, and tell each broker. Raises ValueError if this client is in it already."""
        if group in self._producers:
            raise ValueError(f"this client has a transaction producer in group {group} already")
        self._producers[group] = producer
        self._start()
        self.beat()

    def _start(self) -> None:
        if self._beats is None:
            self._beats = PeriodicService(
                "sending heartbeats", HEARTBEAT_SECONDS, self.beat, self._client.clock, first_after=HEARTBEAT_SECONDS
            )
            self._beats.startService()

    def beat(self) -> Deferred[int]:
        """Send a heartbeat to each known broker. Fires with the number of those that took it; never fails."""
        brokers = self._client.brokers()
        addresses = [address for address in brokers if self._consumers or brokers[address] == MASTER_ID]
        return together(self._beat_at(address) for address in addresses).addCallback(sum)

    async def _beat_at(self, address: str) -> bool:
        try:
            await self._client.call(address, RequestCode.HEART_BEAT, body=self._heartbeat())
        except ClientError as error:
            if address not in self._failing:  # once, until it works again
                self._log.warn(
                    "no heartbeat to {address}: {error}",
                    event=Event.HEARTBEAT_NOT_SENT,
                    address=address,
                    error=str(error),
                )
            self._failing.add(address)
            return False
        self._failing.discard(address)
        return True

    def introduce(self, connection: RemotingProtocol) -> None:
        """Send a heartbeat on a new connection to a broker."""
        if self._consumers or self._producers:
            connection.call(RequestCode.HEART_BEAT, body=self._heartbeat()).addErrback(
                lambda failure: self._log.warn(
                    "no first heartbeat: {error}", event=Event.HEARTBEAT_NOT_SENT, error=failure.getErrorMessage()
                )
            )

    def _heartbeat(self) -> bytes:
        return dumps_strict(
            {
                "clientID": self._client.client_id,
                "consumerDataSet": [group.to_json() for group in self._consumers.values()],
                "producerDataSet": [{"groupName": group} for group in sorted(self._producers)],
            }
        )

    def leave(self, group: str) -> Deferred[None]:
        """Leave a consumer group, and tell each broker. Never fails."""
        self._consumers.pop(group, None)
        return self._leave({"consumerGroup": group})

    def leave_producer(self, group: str) -> Deferred[None]:
        """Leave a producer group, and tell each broker. Never fails."""
        self._producers.pop(group, None)
        return self._leave({"producerGroup": group})

    def _leave(self, group: Mapping[str, str]) -> Deferred[None]:
        fields = {"clientID": self._client.client_id, **group}
        leaving = together(self._leave_at(address, fields) for address in self._client.brokers())
        if not self._consumers and not self._producers:
            leaving.addCallback(lambda _: self.stop())
        return leaving.addCallback(lambda _: None)

    async def _leave_at(self, address: str, fields: Mapping[str, str]) -> None:
        try:
            await self._client.call(address, RequestCode.UNREGISTER_CLIENT, fields, timeout=LEAVE_TIMEOUT_SECONDS)
        except ClientError as error:  # the broker forgets the client when the connection closes
            self._log.info(
                "{address} does not know that we leave: {error}",
                event=Event.LEAVING_NOT_SENT,
                address=address,
                error=str(error),
            )

    def stop(self) -> Deferred[None]:
        """Send no more heartbeats."""
        beats, self._beats = self._beats, None
        return succeed(None) if beats is None else beats.stopService()

    def _consumer_ids_changed(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        group = self._consumers.get(request.ext_fields.get("consumerGroup", ""))
        if group is not None:
            group.member.clients_changed()
        return RemotingCommand(ResponseCode.SUCCESS)

    def _reset_offset(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """An operator wants the group to go on at other offsets (spec/remoting.md 2.21)."""
        group = self._consumers.get(request.ext_fields.get("group", ""))
        if group is None:
            return RemotingCommand(ResponseCode.SUCCESS)
        return connection.turns.run(self._take_offsets(group, request))

    def _take_offsets(self, group: ConsumerGroup, request: RemotingCommand) -> Steps[RemotingCommand]:
        topic = request.ext_fields.get("topic", "")
        try:
            offsets = yield from reading_offsets(request.body, OFFSET_TABLE)
        except ValueError as error:
            self._log.error(
                "a reset of group {group} cannot be read: {error}",
                event=Event.RESET_INVALID,
                group=group.name,
                error=str(error),
            )
            raise refused(f"the offsets cannot be read: {error}") from error
        group.member.reset_offsets(
            {MessageQueue(*queue): offset for queue, offset in offsets.items() if queue.topic == topic}
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    def _consumer_status(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Where this client is in the queues of a topic (spec/remoting.md 2.21)."""
        group = self._consumers.get(request.ext_fields.get("group", ""))
        offsets = {} if group is None else group.member.consumed_offsets(request.ext_fields.get("topic", ""))
        table = {ObjectKey(dumps_strict(queue.to_json()).decode()): offset for queue, offset in sorted(offsets.items())}
        return RemotingCommand(ResponseCode.SUCCESS, body=dumps_compact({MESSAGE_QUEUE_TABLE: table}))

    def _asked_group(self, request: RemotingCommand) -> ConsumerGroup:
        """The group that a request names. Raises RequestRefused."""
        name = Header(request).text("consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            raise refused(f"The Consumer Group <{shown(name)}> not exist in this consumer")
        return group

    def _running_info(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        """What an operator wants to know about a consumer (spec/remoting.md 2.21)."""
        group = self._asked_group(request)
        info = group.member.describe(Header(request).boolean("jstackEnable", False))
        info["properties"] |= {
            "PROP_CLIENT_VERSION": CLIENT_VERSION_NAME,
            "clientId": self._client.client_id,
            "rmqhaVersion": __version__,
        }
        return RemotingCommand(ResponseCode.SUCCESS, body=dumps_compact(info))

    def _handle_directly(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """An operator wants the handler to handle a message now (spec/remoting.md 2.21)."""
        group = self._asked_group(request)
        record = _record_in(request)
        queue = MessageQueue(record.topic, request.ext_fields.get("brokerName", ""), record.queue_id)
        handling = Deferred.fromCoroutine(group.member.handle_directly(record, queue))
        return handling.addCallback(lambda done: RemotingCommand(ResponseCode.SUCCESS, body=dumps_compact(done)))

    def _check_transaction_state(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """A broker asks how the transaction of a message has ended. It asks again if it gets no answer."""
        record = _record_in(request)
        try:
            message = ReceivedMessage.of(record, MessageQueue(record.topic, "", record.queue_id))
        except BodyError as error:
            raise refused(f"the message cannot be read: {error}") from error
        producer = self._producers.get(message.properties.get("PGROUP", ""))
        if producer is not None:
            producer.check_transaction(connection, request, message)
        return RemotingCommand(ResponseCode.SUCCESS)


def _record_in(request: RemotingCommand) -> Record:
    """The message in the body of a request. Raises RequestRefused."""
    try:
        record = decode_record(request.body)
    except RecordError as error:
        raise refused(f"the message cannot be read: {error}") from error
    if isinstance(record, Blank):
        raise refused("the message cannot be read: the end of a segment")
    return record
