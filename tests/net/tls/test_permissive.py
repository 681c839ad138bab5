"""A port for peers with and without TLS. The first byte decides (spec/remoting.md 1.8)."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.test import iosim
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.net.tls.gate import HANDSHAKE_SECONDS
from rmqha.remoting.protocol import RemotingFactory, RemotingProtocol
from rmqha.wire.command import RemotingCommand
from tests.fixtures import new_folder
from tests.net.tls.authority import Authority
from tests.net.tls.line import PEER, Heard, MemoryPort, files_of

HOST = "broker-a.example"
ECHO = 28
BIG = bytes(300_000)


def echo(_: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand(0, body=request.body)


@implementer(IStreamClientEndpoint)
class Way:
    """The way to the port, and what carries bytes on it."""

    pump: Any = None

    def __init__(self, attach: Callable[[IProtocol], Any]) -> None:
        self._attach = attach

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        protocol = protocolFactory.buildProtocol(PEER)
        assert protocol is not None
        self.pump = self._attach(protocol)
        return succeed(protocol)


class PermissiveTests(SynchronousTestCase):
    """Our own remoting protocol behind such a port."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.ca = Authority(new_folder(self) / "ca")
        tls = files_of(self.ca.issue(HOST)).server(False)
        assert tls is not None
        port = MemoryPort()
        self.refused: list[tuple[str, str]] = []
        self.remoting = RemotingFactory({ECHO: echo}, self.clock)
        tls.endpoint(port, self.clock, lambda *told: self.refused.append(told), takes_plain=True).listen(self.remoting)
        self.factory = port.factory

    def attach(self, client: Any) -> Any:
        """Connect this protocol; gives the pump."""
        server = self.factory.buildProtocol(PEER)
        assert server is not None
        ends = [iosim.FakeTransport(server, isServer=True), iosim.FakeTransport(client, isServer=False)]
        return iosim.connect(server, ends[0], client, ends[1], greet=False, clock=self.clock)

    def connect_with_tls(self) -> tuple[RemotingProtocol, Any]:
        client, way = RemotingProtocol({}, self.clock), Way(self.attach)
        trusting = files_of(authority=self.ca.path).client()
        connecting = trusting.endpoint(way, HOST, self.clock).connect(Factory.forProtocol(lambda: client))
        way.pump.flush()
        self.successResultOf(connecting)
        return client, way.pump

    def assert_answers(self, client: RemotingProtocol, pump: Any) -> None:
        for body in (b"hello", BIG):
            call = client.call(ECHO, body=body)
            for _ in range(3):  # what TLS hands out comes a turn of the clock later
                pump.flush()
                self.clock.advance(0)
            self.assertEqual(self.successResultOf(call).body, body)

    def assert_over(self, pump: Any) -> None:
        pump.flush()
        self.clock.advance(0)
        pump.flush()
        self.assertEqual(self.remoting.connections, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_plain_peer_is_answered(self) -> None:
        client = RemotingProtocol({}, self.clock)
        pump = self.attach(client)
        self.assert_answers(client, pump)
        client.hang_up()
        self.assert_over(pump)
        self.assertEqual(self.refused, [])

    def test_a_peer_that_speaks_tls_is_answered(self) -> None:
        client, pump = self.connect_with_tls()
        self.assert_answers(client, pump)
        client.hang_up()
        self.assert_over(pump)
        self.assertEqual(self.refused, [])

    def test_a_peer_that_says_nothing_is_neither(self) -> None:
        pump = self.attach(Heard())
        self.clock.advance(HANDSHAKE_SECONDS + 1)
        self.assertEqual(self.remoting.connections, 1)
        pump.client.transport.loseConnection()
        self.assert_over(pump)
        self.assertEqual(self.refused, [])

    def test_a_handshake_that_goes_wrong_is_told(self) -> None:
        client = Heard()
        pump = self.attach(client)
        client.transport.write(b"\x16\x03\x01\x00\x05hello")
        self.assert_over(pump)
        self.assertEqual(len(self.refused), 1)

    def test_a_handshake_that_never_ends_is_given_up(self) -> None:
        client = Heard()
        pump = self.attach(client)
        client.transport.write(b"\x16")
        pump.flush()
        self.clock.advance(HANDSHAKE_SECONDS)
        self.assert_over(pump)
        self.assertIn("no handshake within", self.refused[0][1])

    def test_the_limit_of_connections_counts_both(self) -> None:
        plain = self.attach(RemotingProtocol({}, self.clock))
        client, encrypted = self.connect_with_tls()
        self.assertEqual(self.remoting.connections, 2)
        plain.client.hang_up()
        client.hang_up()
        for pump in (plain, encrypted):
            pump.flush()
        self.assert_over(encrypted)
