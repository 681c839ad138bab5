"""Takes timer messages back that are not delivered yet: RECALL_MESSAGE (370) of RocketMQ 5.3.

The answer to a timer message has a handle. With it a client asks for the message to be cancelled. The broker puts a
message that cancels it, as any client may by the property TIMER_DEL_UNIQKEY.
"""

from rmqha.broker.requests.send import SendMessageProcessor
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.requests.timersends import RecallHandle, TimerRefused
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.remoting.header import Header
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused
from rmqha.store.message import Message, PutMessageResult
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import PERM_WRITE
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.timers import DELIVER_MS, TIMER_CANCELS, UNIQUE_KEY
from rmqha.wire.topics import NO_SENDS_TO

RECALL_TAG = "_RECALL_TAG_"
BODY = b"0"


def _refused(code: ResponseCode, reason: str) -> RequestRefused:
    return RequestRefused(code, f"recall failed, {reason}")


class RecallProcessor:
    """Puts messages that cancel others, on a master with ``recallMessageEnable``."""

    def __init__(
        self, sends: SendMessageProcessor, store: MessageStore, topics: TopicConfigManager, stamps: Stamps
    ) -> None:
        self._sends = sends
        self._store = store
        self._topics = topics
        self._stamps = stamps

    def processors(self) -> Processors:
        """By request code."""
        return {RequestCode.RECALL_MESSAGE: self._recall}

    def _recall(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        header, settings = Header(request), self._sends.settings
        topic, text = header.text("topic"), header.text("recallHandle")
        if not settings.recall_message_enable:
            raise _refused(
                ResponseCode.NO_PERMISSION, "operation is forbidden: the broker has recallMessageEnable=false"
            )
        if not settings.broker_permission & PERM_WRITE:
            raise _refused(ResponseCode.SERVICE_NOT_AVAILABLE, "broker service not available")
        if topic in NO_SENDS_TO:
            raise _refused(ResponseCode.NO_PERMISSION, f"sending message to topic[{topic}] is forbidden")
        if self._topics.get(topic) is None:
            raise _refused(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{topic}] not exist")
        try:
            handle = RecallHandle.parse(text)
        except ValueError as error:
            raise _refused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from error
        if handle.topic != topic:
            raise _refused(ResponseCode.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != settings.broker_name:
            raise _refused(ResponseCode.ILLEGAL_OPERATION, f"the message is at broker {handle.broker_name}")
        properties = {
            TIMER_CANCELS: f"{topic}+{handle.unique_key}",
            UNIQUE_KEY: handle.unique_key,
            DELIVER_MS: handle.due_ms,
            "TAGS": RECALL_TAG,
        }
        message = Message(
            topic, BODY, {}, 0, 0, 0, self._stamps.wall.now_ms(), connection.born_host, self._stamps.own.store_host
        )
        try:
            waiting = self._sends.timers.waiting(message, properties, settings)
        except TimerRefused as refusal:
            raise _refused(ResponseCode.ILLEGAL_OPERATION, str(refusal)) from refusal
        assert waiting is not None, "it has a time, and what cancels and is due already is refused"
        return self._store.put_message(waiting).addCallback(self._answer, handle)

    @staticmethod
    def _answer(result: PutMessageResult, handle: RecallHandle) -> RemotingCommand:
        if not result.is_stored:
            raise _refused(ResponseCode.SYSTEM_ERROR, f"execute error: {result.status.name}")
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={"msgId": handle.unique_key})
