"""TLS for the HA and remoting ports: certificates from PEM files, and the gate that every connection passes.

Behind a gate stands one of our protocols. It hears of the peer when the handshake is done and the peer's certificate
was found good, and nothing it writes leaves before. A handshake has a deadline, and so has a polite close. Certificates
are read once, when the process starts.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from re import compile as compile_pattern
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHandshakeListener,
    IListeningPort,
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.ssl import Certificate, CertificateOptions, TLSVersion, platformTrust, trustRootFromCertificates
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import directlyProvides, implementer

HANDSHAKE_SECONDS = 10.0
"""A connection whose handshake takes longer is dropped."""
CLOSE_SECONDS = 2.0
"""So long a closed connection waits for its peer to close it too."""
MUST_SHOW_CERTIFICATE = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT | SSL.VERIFY_CLIENT_ONCE
VERIFY_ERRORS = {  # the X509_V_ERR_… that peers meet; others are told by number
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself",
    19: "is signed by none of the authorities trusted here",
    20: "is signed by none of the authorities trusted here",
    21: "is signed by none of the authorities trusted here",
    26: "is not meant for this use",
}
NO_TLS_REASONS = ("wrong version number", "http request", "packet length too long", "record layer failure")
TLS_HANDSHAKE = 0x16
TLS_RECORD_TYPES = (0x15, TLS_HANDSHAKE)
"""An alert and a handshake: with one of these begins whatever a TLS peer sends first."""
_PEER_NAME = compile_pattern(r"[A-Za-z0-9_*][A-Za-z0-9_.*-]{0,199}")
"""A name may become that of a file (of a slot) and a part of a log line."""


class TLSError(ValueError):
    """A PEM file cannot be used, or a peer is not whom it should be."""


def looks_like_tls(data: bytes) -> bool:
    """Whether these are the first bytes of a peer that speaks TLS."""
    return len(data) > 2 and data[0] in TLS_RECORD_TYPES and data[1] == 3 and data[2] <= 4


def peer_names(transport: object) -> tuple[str, ...]:
    """The names in the certificate that the peer has proved to be its own: dNSNames, else the CN; none without one."""
    names: tuple[str, ...] = getattr(transport, "peer_names", ())
    return names


def _names_in(certificate: crypto.X509) -> tuple[str, ...]:
    with suppress(ValueError):  # of a certificate that is not well-formed no name counts
        content = certificate.to_cryptography()
        names: list[str] = []
        with suppress(x509.ExtensionNotFound):
            extension = content.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            names = extension.value.get_values_for_type(x509.DNSName)
        if not names:
            names = [str(attribute.value) for attribute in content.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return tuple(name.lower() for name in names if _PEER_NAME.fullmatch(name))
    return ()


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """What we show to peers: the key, and the certificate with those between it and its authority."""

    key: crypto.PKey
    chain: tuple[crypto.X509, ...]

    @classmethod
    def load(cls, certificate_path: str, key_path: str | None) -> "OwnCertificate":
        """From PEM files; without ``key_path`` the key is in the certificate's. Raises TLSError."""
        content = _read(certificate_path)
        chain = _certificates(content, certificate_path)
        place = key_path if key_path is not None else certificate_path
        key_content = content if key_path is None else _read(key_path)
        try:
            key = load_pem_private_key(key_content, password=None)
            own = cls(crypto.PKey.from_cryptography_key(key), chain)  # type: ignore[arg-type]  # others raise TypeError
        except TypeError as error:
            raise TLSError(f"{place}: the private key wants a password, or is of a kind unknown here") from error
        except ValueError as error:
            raise TLSError(f"{place}: there is no private key in PEM format") from error
        try:
            _make_options(own, None).getContext()
        except SSL.Error as error:
            raise TLSError(f"{place}: not the key of {certificate_path} ({_words_of(error)})") from error
        return own


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TLSError(f"{path}: {error.strerror}") from error


def _certificates(content: bytes, path: str) -> tuple[crypto.X509, ...]:
    try:
        return tuple(map(crypto.X509.from_cryptography, x509.load_pem_x509_certificates(content)))
    except ValueError as error:
        raise TLSError(f"{path}: there is no certificate in PEM format") from error


def load_authorities(path: str) -> tuple[Certificate, ...]:
    """The certificates of a PEM file, or of the ``.pem`` files of a folder. Raises TLSError."""
    folder = Path(path)
    files = [str(file) for file in sorted(folder.glob("*.pem"))] if folder.is_dir() else [path]
    found = tuple(Certificate(certificate) for file in files for certificate in _certificates(_read(file), file))
    if not found:
        raise TLSError(f"{path}: there is no .pem file in this folder")
    return found


def _make_options(own: OwnCertificate | None, trust: Any) -> CertificateOptions:
    return CertificateOptions(
        privateKey=own.key if own is not None else None,
        certificate=own.chain[0] if own is not None else None,
        extraCertChain=list(own.chain[1:]) if own is not None else None,
        trustRoot=trust,
        raiseMinimumTo=TLSVersion.TLSv1_2,
    )


class Gate(ProtocolWrapper):
    """Stands between TLS and our protocol; ``refuse`` hears, during the handshake, what is wrong with the peer."""

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
        """The peer is not whom it should be; the first reason is the one that is told."""
        if self._refusal is None:
            self._refusal = reason

    def logPrefix(self) -> str:
        """What Twisted asks for before there may be a protocol."""
        return type(self).__name__

    def makeConnection(self, transport: Any) -> None:
        self._connect(transport)
        self._timer = self._clock.callLater(HANDSHAKE_SECONDS, self._too_slow)

    def _connect(self, transport: Any) -> None:
        self.transport = transport
        if ITCPTransport.providedBy(transport):
            directlyProvides(self, ITCPTransport)

    def _too_slow(self) -> None:
        self._timer = None
        self.refuse(f"no handshake within {HANDSHAKE_SECONDS:g} s")
        self.abortConnection()

    def abortConnection(self) -> None:
        """Drop the connection at once."""
        self.transport.abortConnection()

    def handshakeCompleted(self) -> None:
        """TLS calls this when both ends are satisfied."""
        self._stop_timer()
        certificate = self.transport.getPeerCertificate()
        self.peer_names = _names_in(certificate) if certificate is not None else ()
        self._is_open = True

    def _turned_away(self, reason: str) -> None:
        """There will be no connection."""
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


def _words_of(error: SSL.Error) -> str:
    entries = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return ", ".join(str(entry[-1]) for entry in entries) or repr(error)


def _in_words(failure: Failure) -> Failure:
    """What ended an open connection: an alert of the peer's reads as such."""
    if isinstance(failure.value, SSL.Error):
        return Failure(TLSError(f"the peer ended TLS: {_words_of(failure.value)}"))
    return failure


def _why_no_handshake(failure: Failure) -> str:
    if failure.check(ConnectionDone, ConnectionLost, ConnectionAborted) is not None:
        return "the connection ended before the handshake did; is it a plain port there, or a plain peer?"
    if not isinstance(failure.value, SSL.Error):
        return failure.getErrorMessage()
    words = _words_of(failure.value)
    if "peer did not return a certificate" in words:
        return "it shows no certificate"
    if any(reason in words for reason in NO_TLS_REASONS):
        return f"it does not speak TLS ({words})"
    return f"no agreement on TLS ({words})"


def _check_of(gate: Gate, service: DNS_ID | IPAddress_ID | None) -> Callable[..., bool]:
    """For OpenSSL to call with each certificate of a peer's chain: judges, and tells the gate why not.

    ``service`` is whom the certificate must name. Whatever is wrong here, the answer is no: Twisted's own check takes
    an unusual certificate (one without any subjectAltName) for a good one.
    """

    def check(connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, is_good: int) -> bool:
        try:
            if not is_good:
                subject = certificate.get_subject().CN or "no CN"
                gate.refuse(
                    f"its certificate ({subject}) {VERIFY_ERRORS.get(error, f'is refused, X.509 error {error}')}"
                )
                return False
            if depth == 0 and service is not None:
                verify_service_identity(extract_patterns(certificate), [service], [])
            return True
        except Exception as problem:
            gate.refuse(f"its certificate is not for this host: {problem}")
            return False

    return check


@implementer(IHandshakeListener)
class ServerGate(Gate):
    """At a listening port: the protocol is connected at once, for its limits and deadlines count from there.

    ``refused`` hears of a peer that is turned away: its host, and why.
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
    """Puts TLS and a gate before every protocol of a listening factory; whom that refuses gets no byte of either."""

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
class PermissiveGate(ServerGate):
    """At a port that takes both: plain from the start, until its peer begins a handshake."""

    _producer: tuple[Any, bool] | None = None

    def makeConnection(self, transport: Any) -> None:
        if self._is_open:  # and now TLS stands before it
            self._is_open = False
            Gate.makeConnection(self, transport)
        else:
            self._is_open = True
            self._connect(transport)
            self.wrappedProtocol.makeConnection(self)

    def begin_tls(self, tls: TLSMemoryBIOProtocol, plain: Any) -> None:
        """From now on what our protocol reads and writes passes through ``tls``, and then ``plain``, its transport."""
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
    """Looks at the first byte that a peer sends, and hands all on: to the gate, or to TLS before it."""

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
    """Puts a gate before every protocol of a listening factory, and TLS before that where the peer speaks it."""

    def buildProtocol(self, addr: IAddress | None) -> FirstByte | None:  # type: ignore[override]  # stands before TLS
        protocol = self.wrappedFactory.buildProtocol(addr)
        if protocol is None:
            return None
        gate = PermissiveGate(protocol, str(getattr(addr, "host", addr)), self._clock, self._refused)
        return FirstByte(gate, self.protocol(self, gate))


@implementer(IStreamServerEndpoint)
@dataclass(frozen=True)
class TLSServerEndpoint:
    """Listens where ``endpoint`` does."""

    endpoint: IStreamServerEndpoint
    creator: "ServerTLS"
    clock: IReactorTime
    refused: Callable[[str, str], None]
    takes_plain: bool = False

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        make_factory = PermissiveFactory if self.takes_plain else GateFactory
        factory = make_factory(self.creator, protocolFactory, self.clock, self.refused)
        listening: Deferred[IListeningPort] = self.endpoint.listen(factory)
        return listening


@implementer(IOpenSSLServerConnectionCreator)
class ServerTLS:
    """What a listening port shows; given ``authorities``, peers must show a certificate signed by one of them."""

    def __init__(self, own: OwnCertificate, authorities: Sequence[Certificate] | None = None) -> None:
        trust = None if authorities is None else trustRootFromCertificates(authorities)
        self._options = _make_options(own, trust)
        self.verifies_peers = authorities is not None

    def __str__(self) -> str:
        return "TLS, peers must show a certificate" if self.verifies_peers else "TLS, peers need no certificate"

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        connection = self._options.serverConnectionForTLS(tlsProtocol)
        if self.verifies_peers:
            connection.set_verify(MUST_SHOW_CERTIFICATE, _check_of(tlsProtocol.wrappedProtocol, None))
        return connection

    def endpoint(
        self,
        endpoint: IStreamServerEndpoint,
        clock: IReactorTime,
        refused: Callable[[str, str], None],
        takes_plain: bool = False,
    ) -> IStreamServerEndpoint:
        """Listen where ``endpoint`` does; ``refused`` hears the host of a peer that is turned away, and why.

        With ``takes_plain`` a peer whose first byte begins no handshake is served without TLS.
        """
        return TLSServerEndpoint(endpoint, self, clock, refused, takes_plain)


@implementer(IHandshakeListener)
class ClientGate(Gate):
    """At the connecting end: the protocol is made when the handshake is done, and then gets all of a read at once.

    TLS itself hands out 16 KiB, and each piece would be proved and reported by itself. ``opened`` fires with the
    protocol when it is connected, or with TLSError.
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
        except Exception:  # as the reactor does with whatever a protocol lets through
            self._log.failure("dropping a connection over a bug")
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
        if not self.opened.called:  # it was not given up
            self.opened.errback(TLSError(reason))


class ClientGateFactory(Factory[ClientGate]):
    """Builds a gate for each connection."""

    noisy = False

    def __init__(self, factory: IProtocolFactory, clock: IReactorTime) -> None:
        self._factory = factory
        self._clock = clock

    def buildProtocol(self, addr: IAddress | None) -> ClientGate:
        return ClientGate(self._factory, addr, self._clock)


@implementer(IOpenSSLClientConnectionCreator)
class ClientConnections:
    """Makes connections that accept only a certificate for ``host``."""

    def __init__(self, options: CertificateOptions, host: str) -> None:
        self._options = options
        self._server_name: bytes | None = None
        try:
            self._service: DNS_ID | IPAddress_ID = IPAddress_ID(str(ip_address(host)))
        except ValueError:
            name = host.encode("idna")
            self._server_name = name
            self._service = DNS_ID(name.decode("ascii"))

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        connection = self._options.clientConnectionForTLS(tlsProtocol)
        if self._server_name is not None:
            connection.set_tlsext_host_name(self._server_name)
        connection.set_verify(MUST_SHOW_CERTIFICATE, _check_of(tlsProtocol.wrappedProtocol, self._service))
        return connection


@implementer(IStreamClientEndpoint)
class TLSClientEndpoint:
    """Connects as ``endpoint`` does; a connection is there when its handshake is done. Fails with TLSError, too."""

    _log = Logger()

    def __init__(self, endpoint: IStreamClientEndpoint, creator: ClientConnections, host: str, clock: Any) -> None:
        self._endpoint = wrapClientTLS(creator, endpoint, clock)
        self._host = host
        self._clock = clock
        self._told: str | None = None

    def __repr__(self) -> str:
        return f"<TLS to {self._host}>"

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        gate = await self._endpoint.connect(ClientGateFactory(factory, self._clock))
        assert isinstance(gate, ClientGate), "our factory has built it"
        try:
            opened = await gate.opened
        except TLSError as error:
            if self._told != str(error):  # once, however often somebody tries
                self._told = str(error)
                self._log.warn("no TLS with {host}: {reason}", host=self._host, reason=str(error))
            raise
        self._told = None
        return opened


@dataclass(frozen=True, slots=True)
class ClientTLS:
    """What we show where we connect, if anything, and whom we trust there; None is the platform's authorities."""

    own: OwnCertificate | None = None
    authorities: tuple[Certificate, ...] | None = None

    def endpoint(self, endpoint: IStreamClientEndpoint, host: str, clock: Any) -> IStreamClientEndpoint:
        """Connect as ``endpoint`` does, to a peer whose certificate is for ``host``. Raises TLSError for no host."""
        trust = platformTrust() if self.authorities is None else trustRootFromCertificates(self.authorities)
        try:
            creator = ClientConnections(_make_options(self.own, trust), host)
        except ValueError as error:
            raise TLSError(f"{host!r} is no host name ({error})") from error
        return TLSClientEndpoint(endpoint, creator, host, clock)


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """What the options --tls-cert, --tls-key and --tls-ca name, read."""

    own: OwnCertificate | None = None
    authorities: tuple[Certificate, ...] | None = None

    @classmethod
    def load(cls, certificate: str | None, key: str | None, authorities: str | None) -> "TLSFiles":
        """Raises TLSError."""
        if key is not None and certificate is None:
            raise TLSError("a key needs its certificate (--tls-cert)")
        return cls(
            None if certificate is None else OwnCertificate.load(certificate, key),
            None if authorities is None else load_authorities(authorities),
        )

    def client(self) -> ClientTLS:
        """For where we connect."""
        return ClientTLS(self.own, self.authorities)

    def server(self, verify_peers: bool) -> ServerTLS | None:
        """For where we listen; None where we have no certificate. Raises TLSError."""
        if not verify_peers:
            return None if self.own is None else ServerTLS(self.own)
        if self.own is None or self.authorities is None:
            raise TLSError("--tls-verify-slaves needs --tls-cert and --tls-ca")
        return ServerTLS(self.own, self.authorities)
