"""A TLS connection in memory, on a Clock. The test chooses both ends."""

from pathlib import Path
from typing import Any, Self

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.test import iosim
from zope.interface import implementer

from rmqha.net.tls.endpoints import ClientTLS, ServerTLS, TLSFiles

PEER = IPv4Address("TCP", "192.0.2.7", 40123)


class Heard(Protocol):
    """Keeps what came, piece by piece, and why it ended."""

    transport: Any = None

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.pieces.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason


@implementer(IStreamServerEndpoint)
class MemoryPort:
    """Keeps the factory that listens."""

    factory: IProtocolFactory

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        self.factory = protocolFactory
        return Deferred()


@implementer(IStreamClientEndpoint)
class Line:
    """A server with these files, and what becomes of those who connect to it."""

    def __init__(self, server: TLSFiles, verify: bool = False) -> None:
        self.clock = Clock()
        self.refused: list[tuple[str, str]] = []
        self.served: list[Heard] = []
        self.pump: Any = None
        tls = server.server(verify)
        assert tls is not None
        self.of(tls)

    def of(self, tls: ServerTLS) -> Self:
        """Serve with this TLS from now on."""
        port = MemoryPort()
        tls.endpoint(port, self.clock, lambda host, reason: self.refused.append((host, reason))).listen(
            Factory.forProtocol(self._serve)
        )
        self.factory = port.factory
        return self

    def heard(self) -> Heard:
        """A client's protocol."""
        return Heard()

    def _serve(self) -> Heard:
        self.served.append(Heard())
        return self.served[-1]

    def dial(self, client: ClientTLS, host: str) -> tuple[Deferred[IProtocol], Heard]:
        """Begin to connect to ``host``, which is the server; nothing has been carried yet."""
        heard = Heard()
        connecting = client.endpoint(self, host, self.clock).connect(Factory.forProtocol(lambda: heard))
        return connecting, heard

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """As an endpoint: the way to the server."""
        protocol = protocolFactory.buildProtocol(PEER)
        assert protocol is not None
        self.attach(protocol)
        return succeed(protocol)

    def attach(self, client: IProtocol) -> None:
        """Connect a client of any kind to the server."""
        server = self.factory.buildProtocol(PEER)
        assert server is not None
        transports = [
            iosim.FakeTransport(end, isServer=isServer) for end, isServer in ((server, True), (client, False))
        ]
        self.pump = iosim.connect(server, transports[0], client, transports[1], greet=False, clock=self.clock)

    def carry(self) -> None:
        """Deliver all that waits, in both directions."""
        self.pump.flush()


def files_of(certificate: Path | None = None, authority: Path | None = None) -> TLSFiles:
    """What these options name."""
    return TLSFiles.load(
        None if certificate is None else str(certificate), None, None if authority is None else str(authority)
    )
