"""The gate between TLS and one of our protocols.

Nothing that the protocol writes is sent until the handshake is complete and the peer's certificate is accepted. The
handshake has a deadline, and so does a clean close.
"""

from collections.abc import Callable
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHandshakeListener,
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    IReactorTime,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import directlyProvides, implementer

from rmqha.kit.events import Event
from rmqha.net.tls.certificates import TLSError, names_in, words_of

HANDSHAKE_SECONDS = 10.0
"""A connection whose handshake takes longer is dropped."""
CLOSE_SECONDS = 2.0
"""After we close a connection, its peer has this time to close it too."""
NO_TLS_REASONS = ("wrong version number", "http request", "packet length too long", "record layer failure")
TLS_HANDSHAKE = 0x16
TLS_RECORD_TYPES = (0x15, TLS_HANDSHAKE)
"""An alert and a handshake: the first byte of a TLS peer is one of these."""


def looks_like_tls(data: bytes) -> bool:
    """Whether these can be the first bytes of a peer that uses TLS."""
    return len(data) > 2 and data[0] in TLS_RECORD_TYPES and data[1] == 3 and data[2] <= 4


def peer_names(transport: object) -> tuple[str, ...]:
    """The names in the peer's verified certificate: its dNSNames, or else its CN. Empty without a certificate."""
    names: tuple[str, ...] = getattr(transport, "peer_names", ())
    return names


class Gate(ProtocolWrapper):
    """Sits between TLS and our protocol. During the handshake, ``refuse`` is called with the reason to refuse."""

    _log = Logger()
    transport: Any
    wrappedProtocol: Any

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._timer: IDelayedCall | None = None
        self._refusal: str | None = None
        self._is_open = False
        self.peer_names: tuple[str, ...] = ()

    def refuse(self, reason: str) -> None:
        """Record why the peer is refused. Only the first reason is reported."""
        if self._refusal is None:
            self._refusal = reason

    def logPrefix(self) -> str:
        """The prefix for Twisted's log, which may ask for it before the protocol exists."""
        return type(self).__name__

    def makeConnection(self, transport: Any) -> None:
        self._connect(transport)
        self._timer = self._clock.callLater(HANDSHAKE_SECONDS, self._too_slow)

    def _connect(self, transport: Any) -> None:
        self.transport = transport
        if ITCPTransport.providedBy(transport):
            directlyProvides(self, ITCPTransport, IPushProducer)  # it passes their calls on

    def _too_slow(self) -> None:
        self._timer = None
        self.refuse(f"no handshake within {HANDSHAKE_SECONDS:g} s")
        self.abortConnection()

    def abortConnection(self) -> None:
        """Abort the connection immediately."""
        self.transport.abortConnection()

    def handshakeCompleted(self) -> None:
        """TLS calls this when the handshake has succeeded at both ends."""
        self._stop_timer()
        certificate = self.transport.getPeerCertificate()
        self.peer_names = names_in(certificate) if certificate is not None else ()
        self._is_open = True

    def _turned_away(self, reason: str) -> None:
        """The handshake failed, so the protocol gets no connection."""
        raise NotImplementedError

    def loseConnection(self) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(CLOSE_SECONDS, self._close_now)
        ProtocolWrapper.loseConnection(self)

    def _close_now(self) -> None:
        self._timer = None
        self.abortConnection()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._stop_timer()
        if self._is_open:
            self.wrappedProtocol.connectionLost(_in_words(reason))
        else:
            self._turned_away(self._refusal or _why_no_handshake(reason))


def _in_words(failure: Failure) -> Failure:
    """The failure with readable words, if an alert of the peer ended an open connection."""
    if isinstance(failure.value, SSL.Error):
        return Failure(TLSError(f"the peer ended TLS: {words_of(failure.value)}"))
    return failure


def _why_no_handshake(failure: Failure) -> str:
    if failure.check(ConnectionDone, ConnectionLost, ConnectionAborted) is not None:
        return "the connection ended before the handshake was complete: perhaps the other side does not use TLS"
    if not isinstance(failure.value, SSL.Error):
        return failure.getErrorMessage()
    words = words_of(failure.value)
    if "peer did not return a certificate" in words:
        return "it shows no certificate"
    if any(reason in words for reason in NO_TLS_REASONS):
        return f"it does not use TLS ({words})"
    return f"no agreement on TLS ({words})"


@implementer(IHandshakeListener)
class ServerGate(Gate):
    """The gate of a listening port. It connects the protocol immediately, so that the protocol's limits apply.

    ``refused`` is called with the host of a refused peer, and the reason.
    """

    def __init__(
        self, protocol: IProtocol, host: str, clock: IReactorTime, refused: Callable[[str, str], None]
    ) -> None:
        super().__init__(clock)
        self.wrappedProtocol = protocol
        self._host = host
        self._refused = refused

    def makeConnection(self, transport: Any) -> None:
        super().makeConnection(transport)
        self.wrappedProtocol.makeConnection(self)

    def _turned_away(self, reason: str) -> None:
        self._refused(self._host, reason)
        self.wrappedProtocol.connectionLost(Failure(TLSError(reason)))


class GateFactory(TLSMemoryBIOFactory):
    """Puts TLS and a gate in front of each protocol of a listening factory. If the factory refuses, nothing is sent."""

    def __init__(
        self, creator: Any, factory: IProtocolFactory, clock: IReactorTime, refused: Callable[[str, str], None]
    ) -> None:
        super().__init__(creator, False, factory, clock)
        self._refused = refused

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override]  # may refuse
        protocol = self.wrappedFactory.buildProtocol(addr)
        if protocol is None:
            return None
        gate = ServerGate(protocol, str(getattr(addr, "host", addr)), self._clock, self._refused)
        return self.protocol(self, gate)


@implementer(IHandshakeListener)
class ClientGate(Gate):
    """The gate of the connecting end. It makes the protocol after the handshake, and passes each read to it as a whole.

    TLS itself passes on 16 KiB at a time, and the protocol would verify and report each piece. ``opened`` fires with
    the connected protocol, or with TLSError.
    """

    def __init__(self, factory: IProtocolFactory, address: Any, clock: IReactorTime) -> None:
        super().__init__(clock)
        self._factory = factory
        self._address = address
        self._pieces: list[bytes] = []
        self._delivery: IDelayedCall | None = None
        self.opened: Deferred[IProtocol] = Deferred(lambda _: self.abortConnection())

    def handshakeCompleted(self) -> None:
        super().handshakeCompleted()
        self.wrappedProtocol = self._factory.buildProtocol(self._address)
        self.wrappedProtocol.makeConnection(self)
        self.opened.callback(self.wrappedProtocol)

    def dataReceived(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._delivery is None:
            self._delivery = self._clock.callLater(0, self._deliver)

    def _deliver(self) -> None:
        self._delivery = None
        pieces, self._pieces = self._pieces, []
        try:
            self.wrappedProtocol.dataReceived(b"".join(pieces))
        except Exception:  # the reactor also closes a connection whose protocol raises
            self._log.failure("closing a connection because of a bug", event=Event.CONNECTION_BUG)
            self.abortConnection()

    def abortConnection(self) -> None:
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        super().abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._delivery is not None:
            self._delivery.cancel()
            self._deliver()
        super().connectionLost(reason)

    def _turned_away(self, reason: str) -> None:
        if not self.opened.called:  # it was not cancelled
            self.opened.errback(TLSError(reason))


class ClientGateFactory(Factory[ClientGate]):
    """Builds a gate for each connection."""

    noisy = False

    def __init__(self, factory: IProtocolFactory, clock: IReactorTime) -> None:
        self._factory = factory
        self._clock = clock

    def buildProtocol(self, addr: IAddress | None) -> ClientGate:
        return ClientGate(self._factory, addr, self._clock)
