"""Who is connected: producers and consumers, by their heartbeats (spec/remoting.md 2.7, 2.8, 2.17).

A client is in a group by the connection that its heartbeat came on. It leaves when it says so, when that connection
closes, or when it is silent for two minutes; each change of a consumer group is told to all its clients (push 40).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from rmqha.broker.filters import SubscriptionData
from rmqha.broker.groups import SubscriptionGroupManager
from rmqha.broker.header import Header, refused
from rmqha.broker.remoting import Processors, RemotingProtocol, RequestRefused
from rmqha.broker.topics import RETRY_GROUP_TOPIC_PREFIX, UNIT_SUB_FLAG, TopicConfigManager, topic_problem
from rmqha.settings import Settings
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact, loads_lenient

CHANNEL_EXPIRED_SECONDS = 120.0
HOUSEKEEPING_SECONDS = 10.0
MOST_IN_A_SET = 4096
"""Groups in a heartbeat, and subscriptions in a group."""


class ConsumeType(Enum):
    """Whether a consumer asks when it likes, or is served as messages come; in the order of the ordinals."""

    CONSUME_ACTIVELY = "pull"
    CONSUME_PASSIVELY = "push"


class MessageModel(Enum):
    """Whether each client of a group gets all messages, or they share them; in the order of the ordinals."""

    BROADCASTING = "all"
    CLUSTERING = "shared"


class ConsumeFromWhere(Enum):
    """Where a group without an offset begins; in the order of the ordinals."""

    CONSUME_FROM_LAST_OFFSET = "at the end"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "at the end, but the first time at the begin"
    CONSUME_FROM_MIN_OFFSET = "at the smallest offset"
    CONSUME_FROM_MAX_OFFSET = "at the largest offset"
    CONSUME_FROM_FIRST_OFFSET = "at the begin"
    CONSUME_FROM_TIMESTAMP = "at a time"


Member = TypeVar("Member", bound=Enum)


def _member(default: Member, text: Any) -> Member:
    """From its name or, as the C++ client has it, its ordinal; the default for anything else."""
    kind = type(default)
    if isinstance(text, int):
        members = list(kind)
        return members[text] if 0 <= text < len(members) else default
    return kind.__members__.get(text, default) if isinstance(text, str) else default


def _objects(content: Any, name: str) -> list[dict[str, Any]]:
    """The objects in a set, which may lack. Raises ValueError."""
    found = (content.get(name) if isinstance(content, dict) else None) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"{name} is no list of objects")
    if len(found) > MOST_IN_A_SET:
        raise ValueError(f"{name} has {len(found)} objects, more than {MOST_IN_A_SET}")
    return found


def _text(content: Any, name: str) -> str:
    """A text that must be there. Raises ValueError."""
    found = content.get(name) if isinstance(content, dict) else None
    if not isinstance(found, str) or not found:
        raise ValueError(f"there is no {name}")
    return found


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """What a heartbeat says of one consumer group."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From a client's form, where all but the name may lack. Raises ValueError."""
        return cls(
            _text(content, "groupName"),
            _member(ConsumeType.CONSUME_PASSIVELY, content.get("consumeType")),
            _member(MessageModel.CLUSTERING, content.get("messageModel")),
            _member(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, content.get("consumeFromWhere")),
            tuple(map(SubscriptionData.from_json, _objects(content, "subscriptionDataSet"))),
            content.get("unitMode") in (True, "true"),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """The body of HEART_BEAT: which groups a client is in."""

    client_id: str
    consumers: tuple[ConsumerData, ...]
    producer_groups: tuple[str, ...]

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From a client's form, where sets may be null, or lack. Raises ValueError."""
        return cls(
            _text(content, "clientID"),
            tuple(map(ConsumerData.from_json, _objects(content, "consumerDataSet"))),
            tuple(_text(producer, "groupName") for producer in _objects(content, "producerDataSet")),
        )


@dataclass(frozen=True, slots=True)
class ClientChannelInfo:
    """A client in a group. ``last_heartbeat`` is the clock's time in seconds."""

    connection: RemotingProtocol
    client_id: str
    language: str
    version: int
    last_heartbeat: float

    def to_json(self) -> dict[str, Any]:
        """A Connection in Java's form and order."""
        host, port = self.connection.peer_host
        return {
            "clientAddr": f"{host}:{port}",
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


Channels = dict[RemotingProtocol, ClientChannelInfo]


class ProducerManager:
    """The producers that are connected, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, Channels] = {}
        self._turns = 0

    def get(self, group: str) -> Channels | None:
        """A group's clients, by their connections; None if there are none."""
        return self._groups.get(group)

    def register(self, group: str, client: ClientChannelInfo) -> None:
        """The client is in the group, as its heartbeat says."""
        self._groups.setdefault(group, {})[client.connection] = client

    def unregister(self, group: str, connection: RemotingProtocol) -> None:
        """The client on this connection has left the group, if it was in it."""
        channels = self._groups.get(group, {})
        channels.pop(connection, None)
        if not channels:
            self._groups.pop(group, None)

    def forget(self, connection: RemotingProtocol) -> None:
        """The connection is gone."""
        for group in list(self._groups):
            self.unregister(group, connection)

    def available(self, group: str) -> RemotingProtocol | None:
        """A connection of the group, another one each time; None if there is none."""
        connections = list(self._groups.get(group, ()))
        self._turns += 1
        return connections[self._turns % len(connections)] if connections else None

    def all_clients(self) -> Iterator[ClientChannelInfo]:
        """Each client, once a group."""
        return chain.from_iterable(channels.values() for channels in self._groups.values())


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A consumer group that is online: what its heartbeats said last, and its clients by their connections."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    channels: Channels = field(default_factory=dict)

    def subscription(self, topic: str) -> SubscriptionData | None:
        """What the group wants of a topic; None if it does not subscribe to it."""
        return self.subscriptions.get(topic)

    @property
    def client_ids(self) -> list[str]:
        """Each client once: one that has connected anew may still have its old connection."""
        return list(dict.fromkeys(client.client_id for client in self.channels.values()))

    def update(self, client: ClientChannelInfo, data: ConsumerData) -> bool:
        """Take a heartbeat over. Whether its clients must share the queues anew: a client or a topic came or went."""
        is_new = client.connection not in self.channels
        self.channels[client.connection] = client
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.consume_from_where = data.consume_from_where
        topics = self.subscriptions.keys()
        wanted = {subscription.topic: self._newer(subscription) for subscription in data.subscriptions}
        has_other_topics = wanted.keys() != topics
        self.subscriptions = wanted
        return is_new or has_other_topics

    def _newer(self, subscription: SubscriptionData) -> SubscriptionData:
        held = self.subscriptions.get(subscription.topic)
        return subscription if held is None or subscription.sub_version > held.sub_version else held

    def to_json(self) -> dict[str, Any]:
        """A ConsumerConnection in Java's form and order."""
        return {
            "connectionSet": [client.to_json() for client in self.channels.values()],
            "consumeFromWhere": self.consume_from_where.name,
            "consumeType": self.consume_type.name,
            "messageModel": self.message_model.name,
            "subscriptionTable": {topic: found.to_json() for topic, found in self.subscriptions.items()},
        }


class ConsumerManager:
    """The consumers that are connected, by group. Tells a group's clients when they must share its queues anew."""

    def __init__(self, settings: Settings, groups: SubscriptionGroupManager) -> None:
        self._notifies = settings.notify_consumer_ids_changed_enable
        self._configs = groups
        self._groups: dict[str, ConsumerGroupInfo] = {}

    def get(self, group: str) -> ConsumerGroupInfo | None:
        """The group; None if it is not online."""
        return self._groups.get(group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that are online and subscribe to a topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def register(self, client: ClientChannelInfo, data: ConsumerData) -> None:
        """The client is in the group, as its heartbeat says."""
        group = self._groups.setdefault(data.group_name, ConsumerGroupInfo(data.group_name))
        if group.update(client, data):
            self._tell(group)

    def unregister(self, name: str, connection: RemotingProtocol) -> None:
        """The client on this connection has left the group, if it was in it."""
        group = self._groups.get(name)
        if group is None or group.channels.pop(connection, None) is None:
            return
        if group.channels:
            self._tell(group)
        else:
            del self._groups[name]

    def forget(self, connection: RemotingProtocol) -> None:
        """The connection is gone."""
        for name in list(self._groups):
            self.unregister(name, connection)

    def _tell(self, group: ConsumerGroupInfo) -> None:
        config = self._configs.get(group.group_name)
        if self._notifies and (config is None or config.notify_consumer_ids_changed_enable):
            for connection in list(group.channels):
                connection.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.group_name})

    def all_clients(self) -> Iterator[ClientChannelInfo]:
        """Each client, once a group."""
        return chain.from_iterable(group.channels.values() for group in self._groups.values())


class ClientHousekeepingService:
    """Closes the connections of clients that send no heartbeats any more; that they are closed does the rest."""

    _log = Logger()

    def __init__(self, producers: ProducerManager, consumers: ConsumerManager, clock: IReactorTime) -> None:
        self._managers = (producers, consumers)
        self._clock = clock
        self._loop = LoopingCall(self.scan)
        self._loop.clock = clock

    def start(self) -> None:
        """Look every 10 s from now on."""
        self._loop.start(HOUSEKEEPING_SECONDS, now=False).addErrback(
            lambda failure: self._log.failure("silent clients are looked for no longer", failure)
        )

    def stop(self) -> None:
        """Look no more."""
        if self._loop.running:
            self._loop.stop()

    def scan(self) -> None:
        """Close what has been silent for two minutes, be it in one group only: its client has left that one."""
        since = self._clock.seconds() - CHANNEL_EXPIRED_SECONDS
        clients = chain.from_iterable(manager.all_clients() for manager in self._managers)
        silent = {client.connection: client.client_id for client in clients if client.last_heartbeat < since}
        for connection, client_id in silent.items():
            self._log.warn("closing the connection of {client}: no heartbeat for two minutes", client=client_id)
            connection.hang_up()


class ClientManageProcessor:
    """Answers what clients say of themselves, and questions for them."""

    _log = Logger()

    def __init__(
        self,
        producers: ProducerManager,
        consumers: ConsumerManager,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        clock: IReactorTime,
    ) -> None:
        self._producers = producers
        self._consumers = consumers
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._watched: set[RemotingProtocol] = set()

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.HEART_BEAT: self._heart_beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister_client,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_client_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._get_consumer_list_by_group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._get_consumer_connection_list,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._get_producer_connection_list,
        }

    def _heart_beat(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        try:
            heartbeat = HeartbeatData.from_json(loads_lenient(request.body))
        except ValueError as error:
            raise refused(f"no heartbeat: {error}") from error
        client = ClientChannelInfo(
            connection, heartbeat.client_id, request.language, request.version, self._clock.seconds()
        )
        self._watch(connection)
        for consumer in heartbeat.consumers:
            self._make_retry_topic(consumer)
            self._consumers.register(client, consumer)
        for group in heartbeat.producer_groups:
            self._producers.register(group, client)
        return RemotingCommand(ResponseCode.SUCCESS)

    def _make_retry_topic(self, consumer: ConsumerData) -> None:
        """A group's %RETRY% topic, which its clients subscribe to, unless its name is none that a topic can have."""
        retry_topic = f"{RETRY_GROUP_TOPIC_PREFIX}{consumer.group_name}"
        group = self._groups.find_or_create(consumer.group_name) if topic_problem(retry_topic) is None else None
        if group is not None:
            sys_flag = UNIT_SUB_FLAG if consumer.unit_mode else 0
            self._topics.create_in_send_back(retry_topic, group.retry_queue_nums, topic_sys_flag=sys_flag)

    def _watch(self, connection: RemotingProtocol) -> None:
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_closed(partial(self._connection_closed, connection))

    def _connection_closed(self, connection: RemotingProtocol) -> None:
        self._watched.discard(connection)
        self._producers.forget(connection)
        self._consumers.forget(connection)

    def _unregister_client(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header = Header(request)
        header.text("clientID")
        self._producers.unregister(header.text("producerGroup", ""), connection)
        self._consumers.unregister(header.text("consumerGroup", ""), connection)
        return RemotingCommand(ResponseCode.SUCCESS)

    def _check_client_config(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """Whether we can serve what a client is about to subscribe to: tags, and nothing else."""
        try:
            content = loads_lenient(request.body) if request.body else {}
            found = content.get("subscriptionData") if isinstance(content, dict) else None
            subscription = SubscriptionData.from_json(found) if found is not None else None
        except ValueError as error:
            raise refused(f"no client's config: {error}") from error
        if subscription is not None and not subscription.is_tag_type:
            raise refused(f"The broker does not support consumer to filter message by {subscription.expression_type}")
        return RemotingCommand(ResponseCode.SUCCESS)

    def _get_consumer_list_by_group(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        name = Header(request).text("consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            raise refused(f"no consumer for this group, {name}")
        return _json_answer({"consumerIdList": group.client_ids})

    def _get_consumer_connection_list(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        name = Header(request).text("consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        return _json_answer(group.to_json())

    def _get_producer_connection_list(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        name = Header(request).text("producerGroup")
        channels = self._producers.get(name)
        if channels is None:
            raise refused(f"the producer group[{name}] not exist")
        return _json_answer({"connectionSet": [client.to_json() for client in channels.values()]})


def _json_answer(content: dict[str, Any]) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, body=dumps_compact(content))
