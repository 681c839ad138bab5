"""MQClient: one connection for each address, and the routes of topics, for the producers and consumers of a process."""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar
from uuid import uuid4

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger

from rmqha.acl.signing import Credentials, Signer
from rmqha.client.errors import ClientStopped, InvalidAnswer, MQBrokerError, MQClientError, NoAnswer
from rmqha.client.membership import Membership
from rmqha.client.route import MASTER_ID, TopicRoute
from rmqha.connecting import reason_of
from rmqha.endpoints import SigningEndpoint, make_endpoint
from rmqha.events import Event
from rmqha.remoting.client import RemotingClient
from rmqha.remoting.protocol import CALL_TIMEOUT_SECONDS, Processor, RemotingError, RemotingProtocol
from rmqha.store.metadata import TopicConfigTable
from rmqha.tls.certificates import TLSError
from rmqha.tls.endpoints import ClientTLS
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient

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

Content = TypeVar("Content")


FindRoute = Callable[["MQClient", str], Awaitable[TopicRoute | None]]
"""Finds a topic's route; None for an unknown topic."""


def make_client_id() -> str:
    """A name for this client that no other one has, as brokers list it."""
    return f"{socket.gethostname()}@{os.getpid()}#{uuid4().hex[:12]}"


def _signing(endpoint: IStreamClientEndpoint, credentials: Credentials | None) -> IStreamClientEndpoint:
    """The endpoint; with credentials its connections sign their requests."""
    return endpoint if credentials is None else SigningEndpoint(endpoint, Signer(credentials))


def seconds_of(route: TopicRoute) -> float:
    """How long a route is used before it is asked for again."""
    return DOUBTED_ROUTE_SECONDS if route.lacks_master else POLL_NAME_SERVER_SECONDS


class MQClient:
    """Sends requests to brokers and name servers. A connection is made when it is first needed."""

    _log = Logger()

    def __init__(
        self, find_route: FindRoute, make_way: Callable[[str], IStreamClientEndpoint], clock: IReactorTime
    ) -> None:
        """``make_way`` returns the endpoint of an address, and raises ValueError if the address is invalid."""
        self.clock = clock
        self.client_id = make_client_id()
        self.processors: dict[int, Processor] = {}
        """What answers the requests of brokers, by request code."""
        self.is_stopped = False
        self._find_route = find_route
        self._make_way = make_way
        self._connections: dict[str, RemotingClient] = {}
        self._used_at: dict[str, float] = {}
        self._rest_until: dict[str, float] = {}
        self._routes: dict[str, tuple[float, TopicRoute]] = {}
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
        name_servers = [address.strip() for address in addresses.split(";") if address.strip()]
        if not name_servers:
            raise ValueError(f"{addresses!r} contains no name server")
        for address in name_servers:
            make_endpoint(reactor, address, tls)

        def make_way(address: str) -> IStreamClientEndpoint:
            over_tls = secure and address not in name_servers
            return _signing(make_endpoint(reactor, f"tls:{address}" if over_tls else address, tls), credentials)

        return cls(NameServers(list(name_servers)).find_route, make_way, reactor)

    @classmethod
    def of_broker(
        cls, reactor: Any, address: str, tls: ClientTLS | None = None, credentials: Credentials | None = None
    ) -> Self:
        """Make a client of one broker, master or slave. With ``credentials`` all requests are signed.

        Raises ValueError.
        """
        make_endpoint(reactor, address, tls)

        def make_way(address: str) -> IStreamClientEndpoint:
            return _signing(make_endpoint(reactor, address, tls), credentials)

        return cls(OneBroker(address).find_route, make_way, reactor)

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
                way = self._make_way(address)
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
        return NoAnswer(f"{address} does not answer: {reason_of(error)}")

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
        try:
            found = await self._find_route(self, topic)
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
            if len(self._routes) > MAX_ROUTES:
                del self._routes[next(iter(self._routes))]
        return found

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


class NameServers:
    """Finds routes at name servers: at one until it fails, then at the next."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

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
            return _content(answer, TopicRoute.from_json)
        raise failure


class OneBroker:
    """Routes that lead to one broker, which lists its topics."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def find_route(self, client: MQClient, topic: str) -> TopicRoute | None:
        """Raises MQClientError, MQBrokerError."""
        answer = await client.call(self._address, RequestCode.GET_ALL_TOPIC_CONFIG)

        def route(content: Any) -> TopicRoute | None:
            config = TopicConfigTable.from_json(content).topic_config_table.get(topic)
            return None if config is None else TopicRoute.of_broker(self._address, config)

        return _content(answer, route)


def _content(answer: RemotingCommand, parse: Callable[[Any], Content]) -> Content:
    try:
        return parse(loads_lenient(answer.body))
    except ValueError as error:
        raise InvalidAnswer(f"the answer cannot be read: {error}") from error
