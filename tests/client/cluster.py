"""Name servers and brokers in memory, which answer as a test says; a client that finds them by their addresses."""

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock, deferLater
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.client import MQClient
from rmqha.client.instance import Connector, NameServers
from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact
from tests.ha.doubles import PEER, LineTransport

QUIET_TURNS = 4
"""So many turns of the clock pass between a refused connection and the next request."""
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@implementer(IStreamClientEndpoint)
class Server:
    """Somebody at an address. ``asked`` are the requests that came; ``is_up`` says whether it takes connections."""

    def __init__(self, clock: Clock, processors: Processors) -> None:
        self.asked: list[RemotingCommand] = []
        self.is_up = True
        self.is_mute = False
        self._clock = clock
        self._processors = {code: self._noting(processor) for code, processor in processors.items()}
        self._lines: list[tuple[LineTransport, LineTransport]] = []

    def _noting(self, processor: Callable[[RemotingProtocol, RemotingCommand], object]) -> Callable[..., object]:
        def note(connection: RemotingProtocol, request: RemotingCommand) -> object:
            self.asked.append(request)
            return Deferred() if self.is_mute else processor(connection, request)

        return note

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        if not self.is_up:
            return deferLater(self._clock, 0, self._refuse)
        client = protocolFactory.buildProtocol(PEER)
        assert client is not None
        ends = LineTransport(self._clock), LineTransport(self._clock)
        ends[0].attach(client)
        ends[1].attach(RemotingProtocol(self._processors, self._clock))  # type: ignore[arg-type]
        self._lines.append(ends)
        return succeed(client)

    @staticmethod
    def _refuse() -> IProtocol:
        raise ConnectionRefusedError

    def carry(self) -> bool:
        """Deliver what waits on all connections; whether there was anything."""
        carried = False
        for client, server in self._lines:
            for source, target in ((client, server), (server, client)):
                data = source.take()
                if data and not target.over:
                    target.deliver(data)
                    carried = True
        return carried

    def go_down(self) -> None:
        """Drop all connections, and take no more."""
        self.is_up = False
        lines, self._lines = self._lines, []
        for client, server in lines:
            client.lose()
            server.lose()


def broker_data(name: str, **addresses: str) -> dict[str, object]:
    """A broker of a route: its addresses by role, ``master`` or ``slave``."""
    ids = {"master": 0, "slave": 1}
    return {"brokerName": name, "cluster": "C", "brokerAddrs": {ids[role]: at for role, at in addresses.items()}}


def queue_data(name: str, reads: int, writes: int, perm: int = 6) -> dict[str, object]:
    return {"brokerName": name, "readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicSysFlag": 0}


class Ways(NameServers):
    """Name servers in memory. They are asked for masters only if ``tells_masters``."""

    def __init__(self, clock: Clock, servers: Mapping[str, Server], *addresses: str, tells_masters: bool) -> None:
        super().__init__(addresses, Connector(clock))
        self._servers = servers
        self._tells_masters = tells_masters

    def endpoint(self, address: str) -> IStreamClientEndpoint:
        return self._servers[address]

    async def has_master(self, client: MQClient) -> bool:
        return not self._tells_masters or await super().has_master(client)


class ClusterTestCase(SynchronousTestCase):
    """A client of name servers ``ns1:1`` and ``ns2:1``, which tell ``routes``; servers are made by ``serve``."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.servers: dict[str, Server] = {}
        self.routes: dict[str, tuple[list[dict[str, object]], list[dict[str, object]]]] = {}
        self.name_servers = [self.serve(address, {ROUTE: self.tell_route}) for address in ("ns1:1", "ns2:1")]
        self.client = MQClient(self.ways("ns1:1", "ns2:1"), self.clock)
        self.addCleanup(self.stop)

    def way(self, address: str) -> IStreamClientEndpoint:
        return self.servers[address]

    def ways(self, *name_servers: str, tells_masters: bool = False) -> Ways:
        return Ways(self.clock, self.servers, *name_servers, tells_masters=tells_masters)

    def stop(self) -> None:
        stopped = self.client.stop()
        for _ in range(3):
            self.clock.advance(0)
        self.successResultOf(stopped)
        for server in self.servers.values():
            server.go_down()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def serve(self, address: str, processors: Processors) -> Server:
        self.servers[address] = Server(self.clock, processors)
        return self.servers[address]

    def tell_route(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        route = self.routes.get(request.ext_fields["topic"])
        if route is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return RemotingCommand(0, body=dumps_compact({"brokerDatas": route[0], "queueDatas": route[1]}))

    def carry(self) -> None:
        """Deliver all that waits anywhere, until nothing does."""
        quiet_turns = 0
        while quiet_turns < QUIET_TURNS:
            carried = [server.carry() for server in self.servers.values()]
            quiet_turns = 0 if any(carried) else quiet_turns + 1
            self.clock.advance(0)
