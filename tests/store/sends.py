"""Sends that arrive in one read, put into a store as a broker's port does it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from rmqha.broker.requests import ordinarysends
from rmqha.store.message import Message, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import CommandError, RemotingCommand, RequestCode, encode_head
from rmqha.wire.layout import BLANK_HEADER
from rmqha.wire.properties import format_properties
from rmqha.wire.record import LOOPBACK, Host
from rmqha.wire.requestfields import V2_FIELDS
from rmqha.wire.sends.run import AnswerParts, ITopicRooms, Place, SendRun, TopicRoom

WRITE_QUEUES = 4


@implementer(ITopicRooms)
class AnyTopics:
    """Each topic takes ordinary messages."""

    def room_of(self, topic: str) -> TopicRoom | None:
        return TopicRoom.of(topic, WRITE_QUEUES)


class Put(NamedTuple):
    """How a put ends, and where its record begins in the log; None if there is none."""

    status: Deferred[PutMessageStatus]
    offset: int | None
    by_pass: bool


def frame_of(message: Message) -> bytes:
    """A request to send this message."""
    properties = message.properties_stored
    values = {
        "producer_group": "PG",
        "topic": message.topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": message.queue_id,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp,
        "flag": message.flag,
        "properties": format_properties(message.properties) if properties is None else properties,
    }
    fields = {getattr(V2_FIELDS, name): str(value) for name, value in values.items()}
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=fields, body=message.body)
    return encode_head(request) + message.body


class Sends:
    """Puts what arrives together with passes, and what they decline one by one. ``runs`` is what the passes took.

    ``cluster`` stands at the end of the properties of what passes take.
    """

    def __init__(self, store: MessageStore, born_host: Host = LOOPBACK, cluster: str = "") -> None:
        self._store = store
        max_bytes = store.settings.max_message_size_bytes
        self._place = Place(
            AnyTopics(), AnswerParts.of({}, LOOPBACK), cluster, max_bytes, born_host=born_host, most=128
        )
        self.runs: list[SendRun] = []

    def put(self, *messages: Message) -> list[Put]:
        """Put messages that arrive in one read."""
        puts: list[Put] = []
        while len(puts) < len(messages):
            taken = list(self._take(messages[len(puts) :]))
            puts += taken or [self._put_alone(messages[len(puts)])]
        return puts

    def _take(self, messages: tuple[Message, ...]) -> Iterator[Put]:
        puts = self._store.puts
        if not puts.begin_run(self._place):
            return
        frames: list[bytes] = []
        with suppress(CommandError):  # a text that no request can have: such messages are in stores only
            frames += map(frame_of, messages)
        run = vars(ordinarysends)["take"](b"".join(frames), 0, self._place)  # that one, which is the plain one or not
        ended = puts.put_run(run) if run.count else None
        if ended is None:
            return
        self.runs.append(run)
        statuses: list[Deferred[PutMessageStatus]] = [Deferred() for _ in range(run.count)]

        def end(status: PutMessageStatus) -> None:
            for each in statuses:
                each.callback(status)

        (ended if isinstance(ended, Deferred) else succeed(ended)).addCallback(end)
        at = 0
        for status in statuses:
            yield Put(status, run.offset + at, True)
            at += BLANK_HEADER.unpack_from(run.records, at)[0]

    def _put_alone(self, message: Message) -> Put:
        end = self._store.commit_log.max_offset
        status = self._store.put_message(message).addCallback(lambda result: result.status)
        at = self._store.commit_log.last_message_offset
        return Put(status, at if self._store.commit_log.max_offset > end else None, False)


def statuses_of(puts: list[Put]) -> list[PutMessageStatus]:
    """How puts that have ended ended."""
    found: list[PutMessageStatus] = []
    for each in puts:
        if each.status.called:
            assert isinstance(each.status.result, PutMessageStatus)
            found.append(each.status.result)
    return found


def offsets_of(puts: list[Put]) -> list[int]:
    """Where the records are that were put."""
    return [each.offset for each in puts if each.offset is not None]
