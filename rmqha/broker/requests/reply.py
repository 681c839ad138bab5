"""Passes replies on to the producers that asked: SEND_REPLY_MESSAGE (324, 325; spec/remoting.md 2.2).

A consumer answers a message of ``DefaultMQProducer.request`` with a reply. The reply names the client that asked. The
broker pushes it to the connection of that client, and with ``storeReplyMessageEnable`` also stores it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError

from rmqha.broker.requests.send import SendMessageProcessor
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.tables.clients import AllowedToHaveAsked, ProducerManager
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.header import shown
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import format_properties, parse_properties
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS, SendFields
from rmqha.wire.topics import reply_topic

REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
NO_MSG_ID = "0"
PUSH_TIMEOUT_SECONDS = 10.0
MAX_PUSHED_BYTES = 16 * 1024 * 1024
"""Of the replies that one client has not taken yet. So nobody's replies fill the buffer of another's connection."""
MAX_PUSHES = 1024
"""Replies that one client has not taken yet."""


@dataclass(slots=True)
class _Pushed:
    """What a client has not taken yet."""

    count: int = 0
    size: int = 0


class ReplyProcessor:
    """Pushes replies to the clients that they name."""

    def __init__(
        self, sends: SendMessageProcessor, store: MessageStore, producers: ProducerManager, stamps: Stamps
    ) -> None:
        self._sends = sends
        self._store = store
        self._producers = producers
        self._stamps = stamps
        self._replies = reply_topic(sends.settings.broker_cluster_name)
        self._pushed: dict[RemotingProtocol, _Pushed] = {}

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: lambda connection, request: self._reply(connection, request, V1_FIELDS),
            RequestCode.SEND_REPLY_MESSAGE_V2: lambda connection, request: self._reply(connection, request, V2_FIELDS),
        }

    def _reply(self, connection: RemotingProtocol, request: RemotingCommand, names: SendFields) -> Answer:
        """A client may ask and answer on one connection, so this does not hold up its connection."""
        topic = request.ext_fields.get(names.topic)
        if topic is not None and topic != self._replies and not connection.rights.may_send_to(topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the account may not send to topic {shown(topic)}, and replies go to {self._replies}",
                self._sends.in_every_answer,
            )
        message = self._sends.message_of(connection, request, names)
        message.properties_stored = request.ext_fields.get(names.properties) or ""
        message.properties = parse_properties(message.properties_stored)
        return Deferred.fromCoroutine(self._pass_on(connection, request, names, message))

    async def _pass_on(
        self, connection: RemotingProtocol, request: RemotingCommand, names: SendFields, message: Message
    ) -> RemotingCommand:
        """As in Java the answer says whether the reply was pushed, even if it could not be stored."""
        problem = await self._push(connection, request, names, message)
        msg_id, queue_offset = NO_MSG_ID, 0
        if self._sends.settings.store_reply_message_enable:
            _, appended = await self._store.put_message(message)
            if appended is not None:
                msg_id, queue_offset = appended.msg_id, appended.logics_offset
        if problem is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, problem, self._sends.in_every_answer)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            ext_fields={
                **self._sends.in_every_answer,
                "msgId": msg_id,
                "queueId": str(message.queue_id),
                "queueOffset": str(queue_offset),
            },
        )

    async def _push(
        self, connection: RemotingProtocol, request: RemotingCommand, names: SendFields, message: Message
    ) -> str | None:
        """Push the reply. Returns why the client did not get it, None if it did."""
        client_id = message.properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = self._producers.of_client(client_id, AllowedToHaveAsked(connection.rights))
        if client is None:
            return f"push reply message fail, channel of <{shown(client_id)}> not found."
        failed = f"push reply message to {shown(client_id)} fail."
        pushed = self._pushed.setdefault(client, _Pushed())
        if pushed.count >= MAX_PUSHES or pushed.size + len(message.body) > MAX_PUSHED_BYTES:
            return f"{failed} It has not taken {pushed.count} others yet"
        pushed.count += 1
        pushed.size += len(message.body)
        try:
            await client.call(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                self._fields(connection, request, names, message),
                message.body,
                PUSH_TIMEOUT_SECONDS,
            )
        except (RemotingError, DeferredTimeoutError) as error:
            return f"{failed} {error}"
        finally:
            pushed.count -= 1
            pushed.size -= len(message.body)
            if not pushed.count:
                self._pushed.pop(client, None)
        return None

    def _fields(
        self, connection: RemotingProtocol, request: RemotingCommand, names: SendFields, message: Message
    ) -> Mapping[str, str]:
        """The header of the push: that of the reply by its long names, and where it comes from."""
        host, port = connection.peer_host
        now_ms = self._stamps.wall.now_ms()
        given = {
            long: request.ext_fields[short]
            for long, short in zip(V1_FIELDS.names, names.names, strict=True)
            if short in request.ext_fields and long not in (V1_FIELDS.max_reconsume_times, V1_FIELDS.batch)
        }
        return {
            **given,
            V1_FIELDS.properties: format_properties({**message.properties, PUSH_REPLY_TIME: str(now_ms)}),
            "bornHost": f"{host}:{port}",
            "storeHost": str(self._stamps.own.store_host),
            "storeTimestamp": str(now_ms),
        }
