"""Puts the ordinary sends of each read at once (``rmqha.wire.sends``), on a master.

Everything else goes to the processor of its code: see ``send``.
"""

from collections.abc import Mapping

from twisted.internet.defer import Deferred
from zope.interface import implementer

from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.remoting.protocol import IRequestPass, Passed, RemotingProtocol
from rmqha.settings.settings import Settings
from rmqha.store.derived.dispatchrequest import is_no_folder
from rmqha.store.message import PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import PERM_WRITE, TopicConfig, TopicFilterType
from rmqha.wire.command import ResponseCode
from rmqha.wire.properties import NAME_VALUE_SEPARATOR
from rmqha.wire.record import MAX_TOPIC_BYTES
from rmqha.wire.sends import take
from rmqha.wire.sends.run import (
    AnswerParts,
    Declined,
    ISendAccess,
    ITopicRooms,
    Place,
    Queue,
    QueueUnits,
    TopicRoom,
    may_be_send,
    with_code,
)
from rmqha.wire.topics import NO_SENDS_TO, RETRY_PREFIX

MAX_KEPT_ROOMS = 10_000
KEYS_A_REQUEST = 32
"""Keys beyond this number take as much of a turn as further requests."""
CODES = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}
"""The answer to the producer for the result of a put. Others give SYSTEM_ERROR."""


def answer_fields(settings: Settings) -> dict[str, str]:
    """The fields of every answer to a send, successful or not."""
    return {"MSG_REGION": settings.region_id, "TRACE_ON": str(settings.trace_on).lower()}


def cluster_property(settings: Settings) -> str:
    """The property that a broker adds to each message, as it is stored."""
    return f"CLUSTER{NAME_VALUE_SEPARATOR}{settings.broker_cluster_name}"


@implementer(IRequestPass, ITopicRooms)
class OrdinarySends:
    """Puts and answers ordinary sends. ``stats`` counts them, and why others are left to their processor."""

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        topics: TopicConfigManager,
        stamps: Stamps,
        stats: BrokerStats,
        access: ISendAccess | None,
    ) -> None:
        self.settings = settings
        """The settings now."""
        self._puts = store.puts
        self._topics = topics
        self._own = stamps.own
        self._now_ms = stamps.wall.now_ms
        self._stats = stats
        self._rooms: dict[str, tuple[TopicConfig, TopicRoom]] = {}
        self._place = Place(
            self,
            AnswerParts.of(answer_fields(settings), self._own.store_host),
            cluster_property(settings),
            settings.max_message_size_bytes,
            access=access,
            store_host=self._own.store_host,
        )

    def take(self, connection: RemotingProtocol, data: bytes, at: int, most: int) -> Passed | None:
        if not may_be_send(data, at):
            return None
        place, settings = self._place, self.settings
        since = settings.start_accept_send_request_time_stamp
        if (since and self._now_ms() < since) or not self._puts.begin_run(place):
            return None
        place.most = most
        place.born_host = connection.born_host
        if place.store_host is not self._own.store_host:
            place.store_host = self._own.store_host
            place.answer = AnswerParts.of(answer_fields(settings), place.store_host)
        run = take(data, at, place)
        if run.declined.is_counted:
            self._stats.sends_declined[run.declined] += 1
        if not run.count:
            return None
        status = self._puts.put_run(run)
        if status is None:
            self._stats.sends_declined[Declined.STORE] += 1
            return None
        self._stats.sends_taken += run.count
        if run.key_count > run.count * KEYS_A_REQUEST:  # a message may have 8,000
            connection.turns.take(run.key_count // KEYS_A_REQUEST)
        answers: bytes | Deferred[bytes]
        if isinstance(status, Deferred):
            answers = status.addCallback(self._answers, run.queues, run.answers)
        else:
            answers = self._answers(status, run.queues, run.answers)
        return Passed(run.end, run.count, answers, run.declined.is_final)

    def _answers(self, status: PutMessageStatus, queues: Mapping[Queue, QueueUnits], answers: bytes) -> bytes:
        """The answers to messages that are stored, and counted now."""
        for (topic, _), units in queues.items():
            self._stats.messages_put(topic, units.count, units.record_bytes, units.count)
        return answers if status is PutMessageStatus.PUT_OK else with_code(answers, CODES[status])

    def room_of(self, topic: str) -> TopicRoom | None:
        config = self._topics.get(topic)
        if config is None or not self.settings.broker_permission & PERM_WRITE:
            return None
        if topic in self._puts.appender.closed_topics:
            return None
        kept = self._rooms.get(topic)
        if kept is not None and kept[0] is config:
            return kept[1]
        return self._new_room(topic, config)

    def _new_room(self, topic: str, config: TopicConfig) -> TopicRoom | None:
        """Of a topic with these settings, kept until they change."""
        if topic in NO_SENDS_TO or topic.startswith(RETRY_PREFIX) or is_no_folder(topic):
            return None
        if config.topic_filter_type is TopicFilterType.MULTI_TAG or len(topic.encode()) > MAX_TOPIC_BYTES:
            return None
        if len(self._rooms) >= MAX_KEPT_ROOMS:
            self._rooms.clear()
        room = TopicRoom.of(topic, config.write_queue_nums)
        self._rooms[topic] = config, room
        return room
