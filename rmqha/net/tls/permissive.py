"""A listening port for peers with and without TLS. The first byte that a peer sends decides."""

from typing import Any

from twisted.internet.interfaces import (
    IAddress,
    IHandshakeListener,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.net.tls.gate import TLS_HANDSHAKE, Gate, GateFactory, ServerGate


@implementer(IHandshakeListener)
class PermissiveGate(ServerGate):
    """The gate of a port for both kinds of peers. It has no TLS until its peer starts a handshake."""

    _producer: tuple[Any, bool] | None = None

    def makeConnection(self, transport: Any) -> None:
        if self._is_open:  # it was connected without TLS, and now gets TLS
            self._is_open = False
            Gate.makeConnection(self, transport)
        else:
            self._is_open = True
            self._connect(transport)
            self.wrappedProtocol.makeConnection(self)

    def begin_tls(self, tls: TLSMemoryBIOProtocol, plain: Any) -> None:
        """From now on the protocol reads and writes through ``tls``, whose transport is ``plain``."""
        producer = self._producer
        if producer is not None:
            self.unregisterProducer()
        tls.makeConnection(plain)
        if producer is not None:
            self.registerProducer(*producer)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer, streaming
        ServerGate.registerProducer(self, producer, streaming)

    def unregisterProducer(self) -> None:
        self._producer = None
        ServerGate.unregisterProducer(self)


class FirstByte(Protocol):
    """Looks at the first byte that a peer sends, and passes all bytes to the gate, or to the TLS in front of it."""

    transport: Any

    def __init__(self, gate: PermissiveGate, tls: TLSMemoryBIOProtocol) -> None:
        self._gate = gate
        self._tls = tls
        self._next: Any = gate
        self._is_decided = False

    def connectionMade(self) -> None:
        self._gate.makeConnection(self.transport)

    def dataReceived(self, data: bytes) -> None:
        if not self._is_decided:
            self._is_decided = True
            if data[0] == TLS_HANDSHAKE:
                self._next = self._tls
                self._gate.begin_tls(self._tls, self.transport)
        self._next.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._next.connectionLost(reason)


class PermissiveFactory(GateFactory):
    """Puts a gate in front of each protocol of a listening factory, and TLS in front of that if the peer uses it."""

    def buildProtocol(self, addr: IAddress | None) -> FirstByte | None:  # type: ignore[override]  # stands before TLS
        protocol = self.wrappedFactory.buildProtocol(addr)
        if protocol is None:
            return None
        gate = PermissiveGate(protocol, str(getattr(addr, "host", addr)), self._clock, self._refused)
        return FirstByte(gate, self.protocol(self, gate))
