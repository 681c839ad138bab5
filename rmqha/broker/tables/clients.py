"""The connected producers and consumers, from their heartbeats (spec/remoting.md 2.7, 2.8, 2.17).

A client belongs to a group through the connection that its heartbeat came on. It leaves the group when it says so,
when that connection closes, or after two minutes without a heartbeat. The clients of a consumer group are notified of
each change of the group (request code 40).
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Self

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from rmqha.broker.tables.filters import SqlFilters, parse_failed
from rmqha.broker.tables.groups import MAX_GROUP_LENGTH, SubscriptionGroupManager, check_new_group
from rmqha.broker.tables.shares import Shares, holder_of
from rmqha.broker.tables.topics import UNIT_SUB_FLAG, TopicConfigManager, topic_problem
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps, at_once
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Answer, IConnectionObserver, Processors, RemotingProtocol, RequestRefused
from rmqha.remoting.rights import Rights
from rmqha.settings.settings import Settings
from rmqha.wire.beans import java, read_bean, read_name, read_objects
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact, loads_request
from rmqha.wire.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from rmqha.wire.record import Host
from rmqha.wire.subscription import MAX_EXPRESSION_CHARS, SubscriptionData
from rmqha.wire.topics import RETRY_PREFIX

CHANNEL_EXPIRED_SECONDS = 120.0
HOUSEKEEPING_SECONDS = 10.0
MAX_IN_A_SET = 4096
"""Limits the groups of a heartbeat, the groups of a connection, and the subscriptions of a group."""
MAX_SUBSCRIPTIONS = 8192
"""Per heartbeat, for all its groups together."""
MAX_MEMBERSHIPS = 200_000
"""Of all clients in groups of one kind (producer or consumer groups)."""
MAX_SUBSCRIPTION_BYTES = 64 * 1024 * 1024
"""Approximate limit for the subscriptions of all groups."""
BYTES_OF_A_SUBSCRIPTION = 200
BYTES_OF_A_CHARACTER = 40
"""A short tag takes this much: its hash, and its entry in a set."""
SUBSCRIPTIONS_AT_ONCE = 128
GROUPS_AT_ONCE = 8
NAMES_AT_ONCE = 1000
"""Groups handled per reactor turn."""
CLIENTS_AT_ONCE = 64
"""Clients notified, or listed, per reactor turn."""


def _is_true(value: Any, _: Any) -> bool:
    """Anything but true is false, as for fastjson."""
    return value in (True, "true")


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """What a heartbeat says about one consumer group."""

    group_name: str = java(read=read_name)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = java(omit=True, default=())
    unit_mode: bool = java(read=_is_true, default=False)
    subscription_bytes: int = java(omit=True, default=0)
    """About how many bytes of memory the subscriptions take."""

    @classmethod
    def read(cls, content: Any) -> Steps[Self]:
        """From a client's form, in which only the name is required. Raises ValueError."""
        consumer = read_bean(cls, content)
        subscriptions: list[SubscriptionData] = []
        characters = size = 0
        for item in read_objects(content, "subscriptionDataSet", MAX_IN_A_SET):
            subscription = SubscriptionData.from_json(item)
            subscriptions.append(subscription)
            characters += len(subscription.sub_string)
            size += BYTES_OF_A_SUBSCRIPTION + BYTES_OF_A_CHARACTER * len(subscription.sub_string)
            if len(subscriptions) % SUBSCRIPTIONS_AT_ONCE == 0 or characters > MAX_EXPRESSION_CHARS:
                characters = 0
                yield
        return replace(consumer, subscriptions=tuple(subscriptions), subscription_bytes=size)


@dataclass(frozen=True, slots=True)
class ProducerData:
    """What a heartbeat says of one producer group."""

    group_name: str = java(read=read_name)


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """The body of HEART_BEAT: the groups of a client."""

    client_id: str = java("clientID", read=read_name)
    consumers: tuple[ConsumerData, ...] = java(omit=True, default=())
    producer_groups: tuple[str, ...] = java(omit=True, default=())

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Like ``read``, without pauses."""
        return at_once(cls.read(content))

    @classmethod
    def read(cls, content: Any) -> Steps[Self]:
        """From a client's form, in which sets may be null or missing. Raises ValueError."""
        heartbeat = read_bean(cls, content)
        consumers: list[ConsumerData] = []
        subscriptions = 0
        for item in read_objects(content, "consumerDataSet", MAX_IN_A_SET):
            consumer = yield from ConsumerData.read(item)
            consumers.append(consumer)
            subscriptions += len(consumer.subscriptions)
            if subscriptions > MAX_SUBSCRIPTIONS:
                raise ValueError(f"more than {MAX_SUBSCRIPTIONS} subscriptions")
            if len(consumers) % SUBSCRIPTIONS_AT_ONCE == 0:
                yield
        producers: list[str] = []
        for item in read_objects(content, "producerDataSet", MAX_IN_A_SET):
            producers.append(read_bean(ProducerData, item).group_name)
            if len(producers[-1]) > MAX_GROUP_LENGTH:
                raise ValueError(f"a producer group longer than {MAX_GROUP_LENGTH}")
            if len(producers) % NAMES_AT_ONCE == 0:
                yield
        return replace(heartbeat, consumers=tuple(consumers), producer_groups=tuple(producers))


@dataclass(frozen=True, slots=True)
class ClientChannelInfo:
    """A client in a group. ``last_heartbeat`` is the clock's time in seconds."""

    connection: RemotingProtocol
    client_id: str
    language: str
    version: int
    last_heartbeat: float

    def may_consume_in(self, group: str) -> bool:
        """Whether its account may be a consumer of the group now. Its heartbeat only says that it is one."""
        return self.connection.rights.may_consume_in(group)

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


class Allowed(dict[Rights, bool]):
    """Asks about each account once: very many connections of one may be in a group."""

    def __missing__(self, rights: Rights) -> bool:
        found = self[rights] = self.may(rights)
        return found

    @abstractmethod
    def may(self, rights: Rights) -> bool:
        """Whether an account with these rights may do it."""


class AllowedToConsume(Allowed):
    """Who may be a consumer of a group and, if a topic is named, read that."""

    def __init__(self, group: str, topic: str | None = None) -> None:
        super().__init__()
        self._group = group
        self._topic = topic

    def may(self, rights: Rights) -> bool:
        return rights.may_consume_in(self._group) and (self._topic is None or rights.may_read(self._topic))


class AllowedToHaveAsked(Allowed):
    """Whose questions this account may have read: it may answer them."""

    def __init__(self, answering: Rights) -> None:
        super().__init__()
        self._answering = answering

    def may(self, rights: Rights) -> bool:
        return self._answering.may_answer(rights)


class Memberships:
    """The groups of each connection. Both the groups of one connection and the sum over all connections are limited,
    and no account takes all of it; without accounts no address.
    """

    def __init__(self) -> None:
        self._groups: dict[RemotingProtocol, set[str]] = {}
        self._holders: dict[RemotingProtocol, str] = {}
        self._shares = Shares(MAX_MEMBERSHIPS)

    @property
    def count(self) -> int:
        """Of all connections together."""
        return self._shares.count

    def join(self, connection: RemotingProtocol, group: str) -> None:
        """Add the connection to the group. Raises RequestRefused if there are too many."""
        groups = self._groups.get(connection, set())
        if group in groups:
            return
        if len(groups) >= MAX_IN_A_SET:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"this connection is in {len(groups)} groups already")
        holder = self._holders.get(connection) or holder_of(connection)
        if not self._shares.take(holder):
            reason = f"clients are in {self.count} groups already, and those of {holder} in many of them"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, reason)
        groups.add(group)
        self._groups[connection], self._holders[connection] = groups, holder

    def leave(self, connection: RemotingProtocol, group: str) -> None:
        """Remove the connection from the group."""
        groups = self._groups.get(connection, set())
        if group in groups:
            groups.discard(group)
            self._shares.give_back(self._holders[connection])
            if not groups:
                del self._groups[connection], self._holders[connection]

    def has(self, connection: RemotingProtocol) -> bool:
        """Whether the connection is in any group."""
        return connection in self._groups

    def of(self, connection: RemotingProtocol) -> list[str]:
        """The groups that the connection is in."""
        return list(self._groups.get(connection, ()))


class ProducerManager:
    """The connected producers, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, Channels] = {}
        self._memberships = Memberships()
        self._by_id: dict[str, dict[RemotingProtocol, int]] = {}
        self._by_host: dict[Host, RemotingProtocol] = {}
        self._turns = 0

    @property
    def memberships(self) -> int:
        """How many clients there are, each counted once for each of its groups."""
        return self._memberships.count

    def get(self, group: str) -> Channels | None:
        """The clients of a group, by their connections; None if it has no clients."""
        return self._groups.get(group)

    def register(self, group: str, client: ClientChannelInfo) -> None:
        """Add a client to the group, after its heartbeat. Raises RequestRefused if there are too many."""
        self._memberships.join(client.connection, group)
        channels = self._groups.setdefault(group, {})
        known = channels.get(client.connection)
        channels[client.connection] = client
        if known is None or known.client_id != client.client_id:
            if known is not None:
                self._forget_id(known)
            self._by_host[client.connection.born_host] = client.connection
            connections = self._by_id.setdefault(client.client_id, {})
            connections[client.connection] = connections.get(client.connection, 0) + 1

    def _forget_id(self, client: ClientChannelInfo) -> None:
        """The client is in one group less by this id."""
        connections = self._by_id[client.client_id]
        connections[client.connection] -= 1
        if not connections[client.connection]:
            del connections[client.connection]
            if not connections:
                del self._by_id[client.client_id]

    def of_client(self, client_id: str, allowed: Allowed) -> RemotingProtocol | None:
        """The newest open connection that names itself so, of the account that has had the name for longest; None if
        there is none.

        Only connections of those who are ``allowed`` count.
        """
        connections = self._by_id.get(client_id, {})
        first = next((each for each in connections if each.is_open and allowed[each.rights]), None)
        if first is None:
            return None
        account = first.rights.account
        of_account = (each for each in reversed(connections) if each.is_open and each.rights.account == account)
        return next(each for each in of_account if allowed[each.rights])

    def account_at(self, host: Host) -> str | None:
        """The account of the producer that is connected from this address; None without one, or if it need not sign."""
        connection = self._by_host.get(host)
        return None if connection is None or not connection.is_open else connection.rights.account

    def unregister(self, group: str, connection: RemotingProtocol) -> None:
        """Remove the client on this connection from the group, if it is in it."""
        channels = self._groups.get(group, {})
        client = channels.pop(connection, None)
        if client is not None:
            self._forget_id(client)
        self._memberships.leave(connection, group)
        if not self._memberships.has(connection):
            host = connection.born_host
            if self._by_host.get(host) is connection:
                del self._by_host[host]
        if not channels:
            self._groups.pop(group, None)

    def forgetting(self, connection: RemotingProtocol) -> Steps[None]:
        """The connection is closed: remove it from its groups, in steps."""
        for count, group in enumerate(self._memberships.of(connection), 1):
            self.unregister(group, connection)
            if count % GROUPS_AT_ONCE == 0:
                yield

    def available(self, group: str, allowed: Allowed) -> RemotingProtocol | None:
        """An open connection of the group that is allowed, a different one for each call; None if it has none."""
        connections = self._groups.get(group, {})
        self._turns += 1
        first = self._turns % len(connections) if connections else 0
        candidates = chain(islice(connections, first, None), islice(connections, first))
        return next((each for each in candidates if each.is_open and allowed[each.rights]), None)

    @property
    def groups(self) -> Mapping[str, Channels]:
        """The groups that have connected clients."""
        return self._groups

    def all_clients(self) -> Iterator[ClientChannelInfo]:
        """Each client, once for each of its groups."""
        return chain.from_iterable(channels.values() for channels in self._groups.values())


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A consumer group with connected clients: the content of its latest heartbeats, and its clients by connection."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    channels: Channels = field(default_factory=dict)
    subscription_bytes: int = 0
    """About how many bytes of memory its subscriptions take."""

    def subscription(self, topic: str) -> SubscriptionData | None:
        """The group's subscription to a topic; None if it does not subscribe to it."""
        return self.subscriptions.get(topic)

    @property
    def client_ids(self) -> list[str]:
        """Each client once. A client that reconnected may still have its old connection, too."""
        return list(dict.fromkeys(client.client_id for client in self.channels.values()))

    def update(self, client: ClientChannelInfo, data: ConsumerData) -> bool:
        """Apply a heartbeat. True if the clients must redistribute the queues: a client or a topic came or went."""
        is_new = client.connection not in self.channels
        self.channels[client.connection] = client
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.consume_from_where = data.consume_from_where
        topics = self.subscriptions.keys()
        wanted = {subscription.topic: self._newer(subscription) for subscription in data.subscriptions}
        has_other_topics = wanted.keys() != topics
        self.subscriptions, self.subscription_bytes = wanted, data.subscription_bytes
        return is_new or has_other_topics

    def _newer(self, subscription: SubscriptionData) -> SubscriptionData:
        held = self.subscriptions.get(subscription.topic)
        return subscription if held is None or subscription.sub_version > held.sub_version else held

    def to_json(self) -> Steps[bytes]:
        """A ConsumerConnection in Java's form and order, as text."""
        subscriptions = [f"{dumps_compact(topic).decode()}:" for topic in self.subscriptions]
        clients = yield from _joined(client.to_json() for client in list(self.channels.values()))
        wanted = yield from _joined(found.to_json() for found in list(self.subscriptions.values()))
        rest = {
            "consumeFromWhere": self.consume_from_where.name,
            "consumeType": self.consume_type.name,
            "messageModel": self.message_model.name,
        }
        table = b",".join(name.encode() + found for name, found in zip(subscriptions, wanted, strict=True))
        return b'{"connectionSet":[%s],%s,"subscriptionTable":{%s}}' % (
            b",".join(clients),
            dumps_compact(rest)[1:-1],
            table,
        )


def _joined(items: Iterable[Mapping[str, Any]]) -> Steps[list[bytes]]:
    """The items as texts."""
    texts: list[bytes] = []
    for item in items:
        texts.append(dumps_compact(item))
        if len(texts) % CLIENTS_AT_ONCE == 0:
            yield
    return texts


class ConsumerManager:
    """The connected consumers, by group. Notifies the clients of a group when they must redistribute its queues."""

    _log = Logger()

    def __init__(self, settings: Settings, groups: SubscriptionGroupManager) -> None:
        self.filters = SqlFilters(settings)
        self._notifies = settings.notify_consumer_ids_changed_enable
        self._configs = groups
        self._groups: dict[str, ConsumerGroupInfo] = {}
        self._memberships = Memberships()
        self._subscription_bytes = 0
        self._to_tell: dict[str, None] = {}

    def get(self, group: str) -> ConsumerGroupInfo | None:
        """The group; None if it has no connected client."""
        return self._groups.get(group)

    def find_client(self, group: str, client_id: str) -> ClientChannelInfo | None:
        """The client with this id in a group; None if it is not connected, or its account may not consume there."""
        found = self._groups.get(group)
        clients = () if found is None else found.channels.values()
        return next((one for one in clients if one.client_id == client_id and one.may_consume_in(group)), None)

    @property
    def groups(self) -> Mapping[str, ConsumerGroupInfo]:
        """The groups that have connected clients."""
        return self._groups

    def finding_groups(self, topic: str) -> Steps[list[str]]:
        """The groups with connected clients that subscribe to a topic, found in steps."""
        found: list[str] = []
        for count, (name, group) in enumerate(list(self._groups.items()), 1):
            if topic in group.subscriptions:
                found.append(name)
            if count % NAMES_AT_ONCE == 0:
                yield
        return found

    def register(self, client: ClientChannelInfo, data: ConsumerData) -> None:
        """Add a client to the group, after its heartbeat. Raises RequestRefused if there are too many."""
        asked = data.subscription_bytes
        group = self._groups.get(data.group_name)
        held = 0 if group is None else group.subscription_bytes
        if self._subscription_bytes - held + asked > MAX_SUBSCRIPTION_BYTES:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "the subscriptions of all groups are too many bytes")
        self._memberships.join(client.connection, data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroupInfo(data.group_name)
        if group.update(client, data):
            self._tell(group)
        self._subscription_bytes += group.subscription_bytes - held

    def unregister(self, name: str, connection: RemotingProtocol) -> None:
        """Remove the client on this connection from the group, if it is in it."""
        group = self._groups.get(name)
        self._memberships.leave(connection, name)
        if group is None or group.channels.pop(connection, None) is None:
            return
        if group.channels:
            self._tell(group)
        else:
            self._subscription_bytes -= group.subscription_bytes
            del self._groups[name]

    def forgetting(self, connection: RemotingProtocol) -> Steps[None]:
        """The connection is closed: remove it from its groups, in steps."""
        for count, name in enumerate(self._memberships.of(connection), 1):
            self.unregister(name, connection)
            if count % GROUPS_AT_ONCE == 0:
                yield

    def _tell(self, group: ConsumerGroupInfo) -> None:
        config = self._configs.get(group.group_name)
        if not self._notifies or not (config is None or config.notify_consumer_ids_changed_enable):
            return
        if len(group.channels) <= CLIENTS_AT_ONCE:
            self._push(group.group_name, group.channels)
        elif group.group_name not in self._to_tell:
            self._to_tell[group.group_name] = None
            turns = next(iter(group.channels)).turns
            Deferred.fromCoroutine(turns.run(self._tell_many(group))).addErrback(
                lambda failure: self._log.failure(
                    "the clients of group {group} are not notified",
                    failure,
                    event=Event.CLIENTS_NOT_NOTIFIED,
                    group=group.group_name,
                )
            )

    def _tell_many(self, group: ConsumerGroupInfo) -> Steps[None]:
        """Notify a large group in turns. Changes before the first turn are notified once."""
        yield
        self._to_tell.pop(group.group_name, None)
        connections = list(group.channels)
        for at in range(0, len(connections), CLIENTS_AT_ONCE):
            self._push(group.group_name, connections[at : at + CLIENTS_AT_ONCE])
            yield

    @staticmethod
    def _push(name: str, connections: Iterable[RemotingProtocol]) -> None:
        allowed = AllowedToConsume(name)
        for connection in [each for each in connections if allowed[each.rights]]:
            connection.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})

    def all_clients(self) -> Iterator[ClientChannelInfo]:
        """Each client, once for each of its groups."""
        return chain.from_iterable(group.channels.values() for group in self._groups.values())


class ClientHousekeepingService(PeriodicService):
    """Closes the connections of clients that stopped sending heartbeats. Closed connections leave their groups."""

    _log = Logger()

    def __init__(self, producers: ProducerManager, consumers: ConsumerManager, clock: IReactorTime) -> None:
        super().__init__("looking for silent clients", HOUSEKEEPING_SECONDS, self.scan, clock, HOUSEKEEPING_SECONDS)
        self._managers = (producers, consumers)
        self._clock = clock

    def scan(self) -> None:
        """Close each connection that is silent for two minutes in any of its groups: its client has left that group."""
        since = self._clock.seconds() - CHANNEL_EXPIRED_SECONDS
        clients = chain.from_iterable(manager.all_clients() for manager in self._managers)
        silent = {client.connection: client.client_id for client in clients if client.last_heartbeat < since}
        for connection, client_id in silent.items():
            self._log.warn(
                "closing the connection of {client}: no heartbeat for two minutes",
                event=Event.CLIENT_SILENT,
                client=shown(client_id),
            )
            connection.hang_up()


@implementer(IConnectionObserver)
class ClientManageProcessor:
    """Answers heartbeats and other requests by which clients come and go, and requests that list clients."""

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

    def _heart_beat(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return connection.turns.run(self._take_heart_beat(connection, request))

    def _take_heart_beat(self, connection: RemotingProtocol, request: RemotingCommand) -> Steps[RemotingCommand]:
        """Add the client to its groups. Groups that cannot be created are left out, and the answer says so."""
        try:
            heartbeat = yield from HeartbeatData.read(loads_request(request.body))
        except ValueError as error:
            raise refused(f"the heartbeat is invalid: {error}") from error
        for count, consumer in enumerate(heartbeat.consumers, 1):
            if self._groups.get(consumer.group_name) is None:
                check_new_group(consumer.group_name)
            if count % NAMES_AT_ONCE == 0:
                yield
        client = ClientChannelInfo(
            connection, heartbeat.client_id, request.language, request.version, self._clock.seconds()
        )
        refusal: RequestRefused | None = None
        joined: Iterable[ConsumerData | str] = chain(heartbeat.consumers, heartbeat.producer_groups)
        for count, group in enumerate(joined, 1):
            if not connection.is_open:  # closed during our turns: nothing would remove it from the groups again
                raise refused("the connection is gone")
            self._watch(connection)
            try:
                self._join(client, group)
            except RequestRefused as refused_group:
                refusal = refused_group
            if count % GROUPS_AT_ONCE == 0:
                yield
        if refusal is not None:
            raise refusal
        return RemotingCommand(ResponseCode.SUCCESS)

    def _join(self, client: ClientChannelInfo, group: ConsumerData | str) -> None:
        """A text is the name of a producer group."""
        if isinstance(group, str):
            self._producers.register(group, client)
            return
        self._make_retry_topic(group, client.connection)
        self._consumers.register(client, group)

    def _make_retry_topic(self, consumer: ConsumerData, connection: RemotingProtocol) -> None:
        """Create the %RETRY% topic of a group, to which its clients subscribe.

        Groups of older stores may have names that are too long for one.
        """
        retry_topic = f"{RETRY_PREFIX}{consumer.group_name}"
        if topic_problem(retry_topic) is not None:
            return
        group = self._groups.find_or_create(consumer.group_name, connection)
        if group is not None:
            sys_flag = UNIT_SUB_FLAG if consumer.unit_mode else 0
            self._topics.create_in_send_back(retry_topic, group.retry_queue_nums, topic_sys_flag=sys_flag)

    def _watch(self, connection: RemotingProtocol) -> None:
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_closed(self)

    def connection_closed(self, connection: RemotingProtocol) -> None:
        self._watched.discard(connection)
        Deferred.fromCoroutine(connection.turns.run(self._forgetting(connection))).addErrback(
            lambda failure: self._log.failure(
                "a closed connection does not leave its groups", failure, event=Event.CLIENT_NOT_REMOVED
            )
        )

    def _forgetting(self, connection: RemotingProtocol) -> Steps[None]:
        yield from self._producers.forgetting(connection)
        yield from self._consumers.forgetting(connection)

    def _unregister_client(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        header = Header(request)
        header.text("clientID")
        self._producers.unregister(header.text("producerGroup", ""), connection)
        self._consumers.unregister(header.text("consumerGroup", ""), connection)
        return RemotingCommand(ResponseCode.SUCCESS)

    def _check_client_config(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Answer whether we support what a client is going to subscribe to."""
        try:
            content = loads_request(request.body) if request.body else {}
            found = content.get("subscriptionData") if isinstance(content, dict) else None
            subscription = SubscriptionData.from_json(found) if found is not None else None
        except ValueError as error:
            raise refused(f"the client's config is invalid: {error}") from error
        if subscription is None or subscription.is_tag_type:
            return RemotingCommand(ResponseCode.SUCCESS)
        self._consumers.filters.check_type(subscription.expression_type)
        return connection.turns.run(self._check_sql(subscription.sub_string))

    def _check_sql(self, expression: str) -> Steps[RemotingCommand]:
        found = yield from self._consumers.filters.parsing(expression)
        if isinstance(found, str):
            raise parse_failed(found)
        return RemotingCommand(ResponseCode.SUCCESS)

    def _get_consumer_list_by_group(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        name = Header(request).text("consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            raise refused(f"no consumer for this group, {name}")
        return _json_answer({"consumerIdList": group.client_ids})

    def _get_consumer_connection_list(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        name = Header(request).text("consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        return connection.turns.run(_text_answer(group.to_json()))

    def _get_producer_connection_list(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        name = Header(request).text("producerGroup")
        channels = self._producers.get(name)
        if channels is None:
            raise refused(f"the producer group[{name}] not exist")
        return connection.turns.run(_text_answer(_connection_set(list(channels.values()))))


def _connection_set(clients: list[ClientChannelInfo]) -> Steps[bytes]:
    """A ProducerConnection in Java's form, as text."""
    texts = yield from _joined(client.to_json() for client in clients)
    return b'{"connectionSet":[%s]}' % b",".join(texts)


def _text_answer(text: Steps[bytes]) -> Steps[RemotingCommand]:
    body = yield from text
    return RemotingCommand(ResponseCode.SUCCESS, body=body)


def _json_answer(content: dict[str, Any]) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, body=dumps_compact(content))
