"""TLS for Twisted's endpoints: our certificate, and the authorities that we trust, read again when asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from weakref import WeakSet

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

from rmqha.kit.events import Event
from rmqha.net.tls.certificates import (
    VERIFY_ERRORS,
    OwnCertificate,
    TLSError,
    common_name,
    load_authorities,
    make_options,
)
from rmqha.net.tls.gate import ClientGate, ClientGateFactory, Gate, GateFactory
from rmqha.net.tls.permissive import PermissiveFactory
from rmqha.wire.command import Sign

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
        self.verifies_peers = authorities is not None
        self.renew(own, authorities)

    def renew(self, own: OwnCertificate, authorities: Sequence[Certificate] | None = None) -> None:
        """Use another certificate, and other authorities, for connections from now on."""
        assert self.verifies_peers is (authorities is not None), "whether peers are verified does not change"
        trust = None if authorities is None else trustRootFromCertificates(authorities)
        self._options = make_options(own, trust)
        self.expires_at = own.expires_at
        """When our certificate ends, in seconds since 1970."""

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
    """Makes connections that accept only a certificate for ``host``. ``tls`` gives the options at each connection."""

    def __init__(self, tls: "ClientTLS", host: str) -> None:
        self._tls = tls
        self._server_name: bytes | None = None
        try:
            self._service: DNS_ID | IPAddress_ID = IPAddress_ID(str(ip_address(host)))
        except ValueError:
            name = host.encode("idna")
            self._server_name = name
            self._service = DNS_ID(name.decode("ascii"))

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        connection = self._tls.options.clientConnectionForTLS(tlsProtocol)
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
                self._log.warn(
                    "no TLS with {host}: {reason}", event=Event.TLS_FAILED, host=self._host, reason=str(error)
                )
            raise
        self._logged = None
        return opened


class ClientTLS:
    """For outgoing connections: our certificate, if any, and the trusted authorities; None for the platform's.

    ``sign``, if any, signs our requests: with or without TLS, it is the other way to say who we are.
    """

    def __init__(
        self,
        own: OwnCertificate | None = None,
        authorities: tuple[Certificate, ...] | None = None,
        sign: Sign | None = None,
    ) -> None:
        self.sign = sign
        self._with_files: WeakSet[TLSSources] = WeakSet()
        self._sources: TLSSources | None = None  # keeps it alive
        self.renew(own, authorities)

    def renew(self, own: OwnCertificate | None, authorities: tuple[Certificate, ...] | None) -> None:
        """Use another certificate, and other authorities, for connections from now on."""
        self.own, self.authorities = own, authorities
        self._options: CertificateOptions | None = None

    @property
    def options(self) -> CertificateOptions:
        """What a connection needs."""
        if self._options is None:
            trust = platformTrust() if self.authorities is None else trustRootFromCertificates(self.authorities)
            self._options = make_options(self.own, trust)
        return self._options

    def endpoint(self, endpoint: IStreamClientEndpoint, host: str, clock: Any) -> IStreamClientEndpoint:
        """Connect through ``endpoint`` to a peer with a certificate for ``host``. Raises TLSError if it is invalid."""
        try:
            creator = ClientConnections(self, host)
        except ValueError as error:
            raise TLSError(f"{host!r} is not a host name ({error})") from error
        return TLSClientEndpoint(endpoint, creator, host, clock)

    def with_files(self, certificate: str | None, key: str | None, authorities: str | None) -> "ClientTLS":
        """The same for an address that names files of its own. They are read again when ours are. Raises TLSError."""
        sources = TLSSources(certificate, key, authorities)
        self._with_files.add(sources)
        sources.client._sources = sources
        return sources.client

    @property
    def sources_of_addresses(self) -> "list[TLSSources]":
        """The files of ``with_files`` that are still in use."""
        return list(self._with_files)


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

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        """What tells these files from others: the digests of their certificates."""
        own = () if self.own is None else self.own.chain
        trusted = () if self.authorities is None else tuple(each.original for each in self.authorities)
        return tuple(certificate.digest("sha256") for certificate in (*own, *trusted))

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


class TLSSources:
    """The paths of PEM files, and what was made of their content: it is replaced when the files are read again."""

    def __init__(
        self,
        certificate: str | None,
        key: str | None,
        authorities: str | None,
        verify_peers: bool = False,
        serves: bool = False,
    ) -> None:
        """``serves`` says that our ports use the certificate. Raises TLSError."""
        self._paths = [None if path is None else str(Path(path).absolute()) for path in (certificate, key, authorities)]
        self.files = TLSFiles.load(certificate, key, authorities)
        self.client = self.files.client()
        self.server = self.files.server(verify_peers) if serves else None

    @property
    def is_used(self) -> bool:
        """Whether there are any files."""
        return any(self._paths) or bool(self.client.sources_of_addresses)

    @property
    def certificate_path(self) -> str | None:
        """Where our certificate is; None if we have none."""
        return self._paths[0]

    def read(self, now: float) -> "list[tuple[TLSSources, TLSFiles]]":
        """Read all files again, also those that addresses name; nothing is replaced yet. ``now`` is the time.

        Raises TLSError, also for a certificate that would be refused now, if the present one is not.
        """
        found = TLSFiles.load(*self._paths)
        if self.files.own is not None and found.own is not None and self.files.own.is_valid_at(now):
            found.own.check_valid_at(now, str(self.certificate_path))
        return [(self, found), *(pair for each in self.client.sources_of_addresses for pair in each.read(now))]

    def use(self, files: TLSFiles) -> bool:
        """Use what was read, for connections from now on. Returns whether it differs from what was used before."""
        before, self.files = self.files, files
        self.client.renew(files.own, files.authorities)
        if self.server is not None:
            assert files.own is not None, "it was there before, and its path is the same"
            self.server.renew(files.own, files.authorities if self.server.verifies_peers else None)
        return before.fingerprints != files.fingerprints
