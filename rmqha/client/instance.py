"""MQClient: one connection for each address, and the routes of topics, for the producers and consumers of a process."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self
from uuid import uuid4

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface, implementer

from rmqha.acl.signing import Credentials, Signer
from rmqha.client.errors import (
    ClientStopped,
    InvalidAnswer,
    MQBrokerError,
    MQClientError,
    NoAnswer,
    NoMaster,
    TopicNotFound,
    Unreachable,
)
from rmqha.client.membership import Membership
from rmqha.client.route import MASTER_ID, TopicRoute
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.net.endpoints import SigningEndpoint, make_endpoint, split_addresses
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS, RemotingError
from rmqha.remoting.client import RemotingClient
from rmqha.remoting.protocol import Processor, RemotingProtocol
from rmqha.store.metadata import TopicConfig, TopicConfigTable
from rmqha.wire.brokerinfo import read_brokers
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.topics import AUTO_CREATE_TOPIC_KEY_TOPIC

POLL_NAME_SERVER_SECONDS = 30.0
"""How long a route is used before it is asked for again."""
DOUBTED_ROUTE_SECONDS = 1.0
"""The same for a route without a master, or with one that takes no messages: another may lead soon."""
REST_SECONDS = 5.0
"""How long an address that failed is tried only after all others."""
MAX_RETRY_SECONDS = 1.0
IDLE_SECONDS = 600.0
"""A connection that is not used for this time is closed."""
MAX_ROUTES = 1000
"""How many routes are kept. The one that was asked for the longest ago is forgotten first."""


class IBrokerWays(Interface):
    """How a client finds brokers and reaches them."""

    async def find_route(client: "MQClient", topic: str) -> TopicRoute | None:
        """A topic's route; None for an unknown topic. Raises MQClientError, MQBrokerError."""

    async def has_master(client: "MQClient") -> bool:
        """Whether any broker has a master now, as far as can be found out. Raises ClientStopped."""

    def endpoint(address: str) -> IStreamClientEndpoint:
        """The way to an address. Raises ValueError if the address is invalid."""


def make_client_id() -> str:
    """A name for this client that no other one has, as brokers list it."""
    return f"{socket.gethostname()}@{os.getpid()}#{uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class Connector:
    """Makes endpoints of addresses. With ``credentials`` their connections sign their requests."""

    reactor: Any
    tls: ClientTLS | None = None
    credentials: Credentials | None = None

    def endpoint(self, address: str) -> IStreamClientEndpoint:
        """Raises ValueError if the address is invalid."""
        endpoint = make_endpoint(self.reactor, address, self.tls)
        return endpoint if self.credentials is None else SigningEndpoint(endpoint, Signer(self.credentials))


def seconds_of(route: TopicRoute) -> float:
    """How long a route is used before it is asked for again."""
    return DOUBTED_ROUTE_SECONDS if route.lacks_master else POLL_NAME_SERVER_SECONDS


class MQClient:
    """Sends requests to brokers and name servers. A connection is made when it is first needed."""

    _log = Logger()

    def __init__(self, ways: IBrokerWays, clock: IReactorTime) -> None:
        self.clock = clock
        self.client_id = make_client_id()
        self.processors: dict[int, Processor] = {}
        """What answers the requests of brokers, by request code."""
        self.is_stopped = False
        self._ways = ways
        self._connections: dict[str, RemotingClient] = {}
        self._used_at: dict[str, float] = {}
        self._rest_until: dict[str, float] = {}
        self._routes: dict[str, tuple[float, TopicRoute]] = {}
        self._waiting_for_route: dict[str, list[Deferred[TopicRoute | None]]] = {}
        self._seen_topics: dict[str, float] = {}
        """Topics that had a route, and until when it is believed that they have none now: many sends may wait."""
        self.membership = Membership(self)
        """The groups of this client, which brokers learn from its heartbeats."""

    @classmethod
    def of_name_servers(
        cls,
        reactor: Any,
        addresses: str,
        tls: ClientTLS | None = None,
        secure: bool = False,
        credentials: Credentials | None = None,
    ) -> Self:
        """Make a client of name servers, ``host:port;host:port``. Each may be ``tls:host:port``. ``secure`` uses TLS
        for brokers. With ``credentials`` all requests are signed, for brokers with ``aclEnable``.

        Raises ValueError.
        """
        name_servers = split_addresses(addresses)
        if not name_servers:
            raise ValueError(f"{addresses!r} contains no name server")
        ways = NameServers(name_servers, Connector(reactor, tls, credentials), secure)
        for address in name_servers:
            ways.endpoint(address)
        return cls(ways, reactor)

    @classmethod
    def of_broker(
        cls, reactor: Any, address: str, tls: ClientTLS | None = None, credentials: Credentials | None = None
    ) -> Self:
        """Make a client of one broker, master or slave. With ``credentials`` all requests are signed.

        Raises ValueError.
        """
        ways = OneBroker(address, Connector(reactor, tls, credentials))
        ways.endpoint(address)
        return cls(ways, reactor)

    async def call(
        self,
        address: str,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request and return the answer. Raises MQBrokerError, or MQClientError after ``timeout`` seconds."""
        answer = await self.ask(address, code, ext_fields, body, timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise MQBrokerError.of(answer)
        return answer

    async def ask(
        self,
        address: str,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Like ``call``, but the answer may have any code."""
        try:
            answer = await self._connection(address).call(code, ext_fields, body, timeout)
        except RemotingError as error:
            if error.answer is None:
                raise self._failed(address, error) from error
            answer = error.answer
        except (DeferredTimeoutError, ConnectError, DNSLookupError, TLSError, OSError) as error:
            raise self._failed(address, error) from error
        self._rest_until.pop(address, None)
        return answer

    def _connection(self, address: str) -> RemotingClient:
        if self.is_stopped:
            raise ClientStopped("the client is stopped")
        if address not in self._connections:
            try:
                way = self._ways.endpoint(address)
            except ValueError as error:
                raise MQClientError(f"cannot connect to {address}: {error}") from error
            self._close_unused()
            self._connections[address] = RemotingClient(
                way, self.clock, self.processors, partial(self._connected, address), MAX_RETRY_SECONDS
            )
            self._connections[address].start()
        self._used_at[address] = self.clock.seconds()
        return self._connections[address]

    def _connected(self, address: str, connection: RemotingProtocol) -> None:
        if address in self.brokers():
            self.membership.introduce(connection)

    def _close_unused(self) -> None:
        """Close the connections to brokers that are gone for good."""
        since = self.clock.seconds() - IDLE_SECONDS
        for address in [address for address, used_at in self._used_at.items() if used_at < since]:
            self._connections.pop(address).stop()
            del self._used_at[address]
            self._rest_until.pop(address, None)

    def master_of(self, broker_name: str) -> str | None:
        """The address of a broker's master, from any known route."""
        for _, route in reversed(self._routes.values()):
            address = route.addresses.get(broker_name, {}).get(MASTER_ID)
            if address is not None:
                return address
        return None

    def brokers(self) -> dict[str, int]:
        """The addresses and ids of all brokers in the known routes."""
        routes = [route for _, route in self._routes.values()]
        return {
            address: broker_id
            for route in routes
            for addresses in route.addresses.values()
            for broker_id, address in addresses.items()
        }

    def _failed(self, address: str, error: Exception) -> MQClientError:
        if self.is_stopped:
            return ClientStopped("the client is stopped")
        self._rest_until[address] = self.clock.seconds() + REST_SECONDS
        kind = Unreachable if isinstance(error, (ConnectError, DNSLookupError)) else NoAnswer
        return kind(f"{address} does not answer: {reason_of(error)}")

    def is_resting(self, address: str) -> bool:
        """Whether the address has failed recently."""
        return self._rest_until.get(address, 0.0) > self.clock.seconds()

    async def route(self, topic: str) -> TopicRoute | None:
        """The route of the topic, at most half a minute old; None for an unknown topic.

        If no name server answers, a known route is used longer. Raises MQClientError, MQBrokerError.
        """
        until, known = self._routes.get(topic, (0.0, None))
        if known is not None and until > self.clock.seconds():
            return known
        if self._seen_topics.get(topic, 0.0) > self.clock.seconds():
            return None
        try:
            found = await self._fetch_route(topic)
        except NoAnswer as error:
            if known is None:
                raise
            self._log.warn(
                "using the old route of {topic}: {error}", event=Event.OLD_ROUTE_USED, topic=topic, error=str(error)
            )
            found = known
        self._routes.pop(topic, None)
        if found is not None:
            self._routes[topic] = self.clock.seconds() + seconds_of(found), found
            self._seen_topics.pop(topic, None)
            self._seen_topics[topic] = 0.0
            for kept in (self._routes, self._seen_topics):
                if len(kept) > MAX_ROUTES:
                    del kept[next(iter(kept))]
        elif topic in self._seen_topics or topic == AUTO_CREATE_TOPIC_KEY_TOPIC:
            self._seen_topics[topic] = self.clock.seconds() + DOUBTED_ROUTE_SECONDS
        return found

    def _fetch_route(self, topic: str) -> Deferred[TopicRoute | None]:
        """Ask for the route. Who asks meanwhile waits for the same answer: many sends may wait for a leader."""
        is_asked = topic in self._waiting_for_route
        one: Deferred[TopicRoute | None] = Deferred()
        self._waiting_for_route.setdefault(topic, []).append(one)
        if not is_asked:

            def tell(result: TopicRoute | Failure | None) -> None:
                for each in self._waiting_for_route.pop(topic):
                    if not each.called:  # it was not cancelled
                        each.callback(result)  # a Failure too: it fails each

            Deferred.fromCoroutine(self._ways.find_route(self, topic)).addBoth(tell)
        return one

    async def without_route(self, topic: str) -> NoMaster | TopicNotFound:
        """Why no server knows the topic: nobody leads now if it was there before, or if no broker has a master.

        Raises MQClientError.
        """
        if topic in self._seen_topics:
            return NoMaster(f"topic {topic} has no broker now: nobody leads, or somebody has deleted it")
        if not await self._ways.has_master(self):
            return NoMaster(f"topic {topic} has no broker now: no master is registered")
        return TopicNotFound(f"no broker carries topic {topic}")

    async def addresses_of(self, broker_name: str, topic: str) -> dict[int, str]:
        """The addresses of a broker by broker id, by the route of one of its topics.

        Name servers learn of a new topic a little after its first message is stored. Until then the address is the one
        in the newest route of another topic, as in Java. Empty if no route has the broker. Raises as ``route``.
        """
        route = await self.route(topic)
        if route is not None:
            return route.addresses.get(broker_name, {})
        others = (other.addresses for _, other in reversed(self._routes.values()))
        return next((addresses[broker_name] for addresses in others if broker_name in addresses), {})

    def forget_route(self, topic: str) -> None:
        """Ask for the route again when it is next needed."""
        if topic in self._routes:
            self._routes[topic] = 0.0, self._routes[topic][1]

    def doubt_route(self, topic: str) -> None:
        """Ask for the route again soon."""
        if topic in self._routes:
            until, route = self._routes[topic]
            self._routes[topic] = min(until, self.clock.seconds() + DOUBTED_ROUTE_SECONDS), route

    def stop(self) -> Deferred[None]:
        """Disconnect in the next reactor turn, because the caller may run inside a callback of one of the
        connections. Stop the consumers first.
        """
        self.is_stopped = True
        connections, self._connections = self._connections, {}

        def disconnect() -> Deferred[list[None]]:
            return gatherResults([self.membership.stop(), *(one.stop() for one in connections.values())])

        return deferLater(self.clock, 0, disconnect).addCallback(lambda _: None)


@implementer(IBrokerWays)
class NameServers:
    """Finds routes at name servers: at one until it fails, then at the next. ``secure`` uses TLS for the brokers."""

    def __init__(self, addresses: Iterable[str], connector: Connector, secure: bool = False) -> None:
        self._addresses = list(addresses)
        self._connector = connector
        self._secure = secure

    def endpoint(self, address: str) -> IStreamClientEndpoint:
        """See ``IBrokerWays``."""
        over_tls = self._secure and address not in self._addresses
        return self._connector.endpoint(f"tls:{address}" if over_tls else address)

    async def find_route(self, client: MQClient, topic: str) -> TopicRoute | None:
        """Raises MQClientError if no name server answers, and MQBrokerError."""
        failure = MQClientError("no name server is configured")
        for address in list(self._addresses):
            try:
                answer = await client.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            except MQClientError as error:
                failure = error
                self._addresses.append(self._addresses.pop(0))
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if answer.code != ResponseCode.SUCCESS:
                raise MQBrokerError.of(answer)
            with _readable():
                return TopicRoute.from_json(loads_lenient(answer.body))
        raise failure

    async def has_master(self, client: MQClient) -> bool:
        """Whether a name server knows a master; also if that cannot be found out. Raises ClientStopped."""
        for address in self._addresses:
            try:
                answer = await client.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            except NoAnswer:
                continue
            if answer.code == ResponseCode.SUCCESS:
                with suppress(ValueError):
                    brokers = read_brokers(loads_lenient(answer.body))
                    return any(MASTER_ID in addresses for addresses in brokers.values())
        return True


@implementer(IBrokerWays)
class OneBroker:
    """Routes that lead to one broker, which is asked for each topic. One of 4.9 only lists all its topics."""

    def __init__(self, address: str, connector: Connector) -> None:
        self._address = address
        self._connector = connector

    def endpoint(self, address: str) -> IStreamClientEndpoint:
        """See ``IBrokerWays``."""
        return self._connector.endpoint(address)

    async def has_master(self, client: MQClient) -> bool:
        """Always true: a broker that answers is taken for a master."""
        return True

    async def find_route(self, client: MQClient, topic: str) -> TopicRoute | None:
        """Raises MQClientError, MQBrokerError."""
        answer = await client.ask(self._address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            listed = await client.call(self._address, RequestCode.GET_ALL_TOPIC_CONFIG)
            with _readable():
                config = TopicConfigTable.from_json(loads_lenient(listed.body)).topic_config_table.get(topic)
                return None if config is None else TopicRoute.of_broker(self._address, config)
        if answer.code != ResponseCode.SUCCESS:
            raise MQBrokerError.of(answer)
        with _readable():
            found = TopicConfig.from_json(loads_lenient(answer.body), topic_name=topic)
            return TopicRoute.of_broker(self._address, found)


@contextmanager
def _readable() -> Iterator[None]:
    """Raises InvalidAnswer for a ValueError from within: what an answer contains cannot be read."""
    try:
        yield
    except ValueError as error:
        raise InvalidAnswer(f"the answer cannot be read: {error}") from error
