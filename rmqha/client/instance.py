"""MQClient: one connection for each address, and the routes of topics, for the producers and consumers of a process."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater

from rmqha.client.route import TopicRoute
from rmqha.endpoints import make_endpoint
from rmqha.remoting.client import RemotingClient
from rmqha.remoting.protocol import CALL_TIMEOUT_SECONDS, RemotingError
from rmqha.store.metadata import TopicConfigTable
from rmqha.tls.certificates import TLSError
from rmqha.tls.endpoints import ClientTLS
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient

POLL_NAME_SERVER_SECONDS = 30.0
"""How long a route is used before it is asked for again."""
REST_SECONDS = 5.0
"""How long an address that failed is tried only after all others."""
MAX_RETRY_SECONDS = 1.0


Content = TypeVar("Content")


class MQClientError(Exception):
    """The queue has no known address, or no broker answers."""


class TopicNotFound(MQClientError):
    """No server that was asked knows the topic."""


class MQBrokerError(Exception):
    """A broker or a name server refuses a request: the code and the remark of its answer."""

    def __init__(self, answer: RemotingCommand) -> None:
        super().__init__(f"code {answer.code}: {answer.remark}")
        self.code = answer.code


FindRoute = Callable[["MQClient", str], Awaitable[TopicRoute | None]]
"""Finds a topic's route; None for an unknown topic."""


class MQClient:
    """Sends requests to brokers and name servers. A connection is made when it is first needed."""

    def __init__(
        self, find_route: FindRoute, make_way: Callable[[str], IStreamClientEndpoint], clock: IReactorTime
    ) -> None:
        """``make_way`` returns the endpoint of an address, and raises ValueError if the address is invalid."""
        self.clock = clock
        self._find_route = find_route
        self._make_way = make_way
        self._connections: dict[str, RemotingClient] = {}
        self._rest_until: dict[str, float] = {}
        self._routes: dict[str, tuple[float, TopicRoute]] = {}

    @classmethod
    def of_name_servers(cls, reactor: Any, addresses: str, tls: ClientTLS | None = None, secure: bool = False) -> Self:
        """Make a client of name servers, ``host:port;host:port``. Each may be ``tls:host:port``. ``secure`` uses TLS
        for brokers.

        Raises ValueError.
        """
        name_servers = [address.strip() for address in addresses.split(";") if address.strip()]
        if not name_servers:
            raise ValueError(f"{addresses!r} contains no name server")
        for address in name_servers:
            make_endpoint(reactor, address, tls)

        def make_way(address: str) -> IStreamClientEndpoint:
            over_tls = secure and address not in name_servers
            return make_endpoint(reactor, f"tls:{address}" if over_tls else address, tls)

        return cls(NameServers(list(name_servers)).find_route, make_way, reactor)

    @classmethod
    def of_broker(cls, reactor: Any, address: str, tls: ClientTLS | None = None) -> Self:
        """Make a client of one broker, master or slave. Raises ValueError."""
        make_endpoint(reactor, address, tls)
        return cls(OneBroker(address).find_route, lambda address: make_endpoint(reactor, address, tls), reactor)

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
            raise MQBrokerError(answer)
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
        if address not in self._connections:
            try:
                way = self._make_way(address)
            except ValueError as error:
                raise MQClientError(f"cannot connect to {address}: {error}") from error
            connection = RemotingClient(way, self.clock, longest_retry_seconds=MAX_RETRY_SECONDS)
            self._connections[address] = connection
            connection.start()
        return self._connections[address]

    def _failed(self, address: str, error: Exception) -> MQClientError:
        self._rest_until[address] = self.clock.seconds() + REST_SECONDS
        return MQClientError(f"{address} does not answer: {error or type(error).__name__}")

    def is_resting(self, address: str) -> bool:
        """Whether the address has failed recently."""
        return self._rest_until.get(address, 0.0) > self.clock.seconds()

    async def route(self, topic: str) -> TopicRoute | None:
        """The route of the topic, at most half a minute old; None for an unknown topic.

        Raises MQClientError, MQBrokerError.
        """
        known = self._routes.get(topic)
        if known is not None and known[0] > self.clock.seconds():
            return known[1]
        found = await self._find_route(self, topic)
        if found is not None:
            self._routes[topic] = self.clock.seconds() + POLL_NAME_SERVER_SECONDS, found
        return found

    def forget_route(self, topic: str) -> None:
        """Ask for the route again when it is next needed."""
        self._routes.pop(topic, None)

    def stop(self) -> Deferred[None]:
        """Disconnect in the next reactor turn, because the caller may run inside a callback of one of the
        connections.
        """
        connections, self._connections = self._connections, {}

        def disconnect() -> Deferred[list[None]]:
            return gatherResults([connection.stop() for connection in connections.values()])

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
                raise MQBrokerError(answer)
            return _content(answer, TopicRoute.from_json)
        raise failure


class OneBroker:
    """Routes that lead to one broker, which lists its topics."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def find_route(self, client: MQClient, topic: str) -> TopicRoute | None:
        """Raises MQClientError, MQBrokerError."""
        answer = await client.call(self._address, RequestCode.GET_ALL_TOPIC_CONFIG)
        config = _content(answer, TopicConfigTable.from_json).topic_config_table.get(topic)
        return None if config is None else TopicRoute.of_broker(self._address, config)


def _content(answer: RemotingCommand, parse: Callable[[Any], Content]) -> Content:
    try:
        return parse(loads_lenient(answer.body))
    except ValueError as error:
        raise MQClientError(f"the answer cannot be read: {error}") from error
