"""TLS for Twisted's endpoints: our certificate, and the authorities that we trust."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from OpenSSL import SSL, crypto
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.ssl import Certificate, CertificateOptions, platformTrust, trustRootFromCertificates
from twisted.logger import Logger
from zope.interface import implementer

from rmqha.tls.certificates import VERIFY_ERRORS, OwnCertificate, TLSError, common_name, load_authorities, make_options
from rmqha.tls.gate import ClientGate, ClientGateFactory, Gate, GateFactory
from rmqha.tls.permissive import PermissiveFactory

MUST_SHOW_CERTIFICATE = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT | SSL.VERIFY_CLIENT_ONCE


def _check_of(gate: Gate, service: DNS_ID | IPAddress_ID | None) -> Callable[..., bool]:
    """A callback for OpenSSL, which checks each certificate of a peer's chain. The gate gets the reason of a refusal.

    The certificate must name ``service``. Any error in the check refuses the certificate, because Twisted's own check
    accepts an unusual certificate (one without any subjectAltName).
    """

    def check(connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, is_good: int) -> bool:
        try:
            if not is_good:
                why = VERIFY_ERRORS.get(error, f"is refused, X.509 error {error}")
                gate.refuse(f"its certificate ({common_name(certificate)}) {why}")
                return False
            if depth == 0 and service is not None:
                verify_service_identity(extract_patterns(certificate), [service], [])
            return True
        except Exception as problem:  # of any kind: an identity that is not proved is refused
            gate.refuse(f"its certificate is not for this host: {problem}")
            return False

    return check


@implementer(IStreamServerEndpoint)
@dataclass(frozen=True)
class TLSServerEndpoint:
    """Listens through ``endpoint``, with TLS."""

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
    """The certificate of a listening port. With ``authorities`` peers must show one that is signed by one of them."""

    def __init__(self, own: OwnCertificate, authorities: Sequence[Certificate] | None = None) -> None:
        trust = None if authorities is None else trustRootFromCertificates(authorities)
        self._options = make_options(own, trust)
        self.expires_at = own.chain[0].to_cryptography().not_valid_after_utc.timestamp()
        """When our certificate ends, in seconds since 1970."""
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
        """Listen through ``endpoint``. ``refused`` is called with the host of a peer that is refused, and the reason.

        With ``takes_plain`` a peer whose first byte does not start a handshake is served without TLS.
        """
        return TLSServerEndpoint(endpoint, self, clock, refused, takes_plain)


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
    """Connects through ``endpoint``. A connection exists after its handshake. An attempt may fail with TLSError."""

    _log = Logger()

    def __init__(self, endpoint: IStreamClientEndpoint, creator: ClientConnections, host: str, clock: Any) -> None:
        self._endpoint = wrapClientTLS(creator, endpoint, clock)
        self._host = host
        self._clock = clock
        self._logged: str | None = None

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
            if self._logged != str(error):  # logged once for all attempts
                self._logged = str(error)
                self._log.warn("no TLS with {host}: {reason}", host=self._host, reason=str(error))
            raise
        self._logged = None
        return opened


@dataclass(frozen=True, slots=True)
class ClientTLS:
    """For outgoing connections: our certificate, if any, and the trusted authorities; None for the platform's."""

    own: OwnCertificate | None = None
    authorities: tuple[Certificate, ...] | None = None

    def endpoint(self, endpoint: IStreamClientEndpoint, host: str, clock: Any) -> IStreamClientEndpoint:
        """Connect through ``endpoint`` to a peer with a certificate for ``host``. Raises TLSError if it is invalid."""
        trust = platformTrust() if self.authorities is None else trustRootFromCertificates(self.authorities)
        try:
            creator = ClientConnections(make_options(self.own, trust), host)
        except ValueError as error:
            raise TLSError(f"{host!r} is not a host name ({error})") from error
        return TLSClientEndpoint(endpoint, creator, host, clock)


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The content of the files of the options --tls-cert, --tls-key and --tls-ca."""

    own: OwnCertificate | None = None
    authorities: tuple[Certificate, ...] | None = None

    @classmethod
    def load(cls, certificate: str | None, key: str | None, authorities: str | None) -> "TLSFiles":
        """Read the files. Raises TLSError."""
        if key is not None and certificate is None:
            raise TLSError("a key needs its certificate (--tls-cert)")
        return cls(
            None if certificate is None else OwnCertificate.load(certificate, key),
            None if authorities is None else load_authorities(authorities),
        )

    def client(self) -> ClientTLS:
        """For outgoing connections."""
        return ClientTLS(self.own, self.authorities)

    def server(self, verify_peers: bool) -> ServerTLS | None:
        """For our ports; None without a certificate. Raises TLSError."""
        if not verify_peers:
            return None if self.own is None else ServerTLS(self.own)
        if self.own is None or self.authorities is None:
            raise TLSError("--tls-verify-slaves needs --tls-cert and --tls-ca")
        return ServerTLS(self.own, self.authorities)
