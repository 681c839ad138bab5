"""Endpoints from addresses as people write them: ``host:port``, or a Twisted endpoint string.

``tls:`` and ``ssl:`` strings have the parameters of Twisted's, but create our own endpoint (``tls.addresses``). It
checks that the certificate is for the host, and connects when the handshake is complete.
"""

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.endpoints import HostnameEndpoint, clientFromString
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IAddress, IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.protocols.loopback import loopbackAsync
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.tls.addresses import MAX_PORT, AddressError, parse_tls_address, uses_tls
from rmqha.tls.certificates import TLSError
from rmqha.tls.endpoints import ClientTLS
from rmqha.wire.command import Sign

MAX_WAIT_SECONDS = 30.0
"""How long an attempt to connect waits for an address, by default."""
IN_THIS_PROCESS = IPv4Address("TCP", "127.0.0.1", 0)


def _split_host_port(address: str) -> tuple[str, int] | None:
    """The host and port of ``host:port`` or ``[v6]:port``; None for anything else."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return (host, int(port)) if host and ":" not in host else None


def host_and_port(host: str, port: int) -> str:
    """``host:port``, or ``[v6]:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_endpoint(reactor: Any, address: str, tls: ClientTLS | None = None) -> "CancellableEndpoint":
    """Make an endpoint from ``host:port`` or a Twisted client endpoint string. Raises ValueError.

    A ``tls:`` or ``ssl:`` string without certificates uses those of ``tls``, or else the platform's authorities. If
    ``tls`` signs requests, so do the remoting connections of this endpoint.
    """
    try:
        endpoint = _make_endpoint(reactor, address, tls or ClientTLS())
        sign = None if tls is None else tls.sign
        return CancellableEndpoint(endpoint if sign is None else SigningEndpoint(endpoint, sign))
    except (AddressError, TLSError) as error:
        raise ValueError(f"{address!r}: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise ValueError(f"{address!r} is neither HOST:PORT nor a Twisted client endpoint ({error})") from error


def _make_endpoint(reactor: Any, address: str, tls: ClientTLS) -> IStreamClientEndpoint:
    if uses_tls(address):
        return parse_tls_address(reactor, address).endpoint(tls)
    host_port = _split_host_port(address.removeprefix("tcp:"))
    if host_port is not None and not 0 < host_port[1] <= MAX_PORT:  # the system would take it modulo 65536
        raise AddressError(f"a port is between 1 and {MAX_PORT}")
    if host_port is not None and not address.startswith("tcp:"):
        return HostnameEndpoint(reactor, *host_port)
    endpoint: IStreamClientEndpoint = clientFromString(reactor, address)
    return endpoint


def remoting_address_of(ha_address: str) -> str | None:
    """The remoting port that belongs to an HA port: one below, with the same TLS; None if it is unknown."""
    return _address_below(ha_address, 1)


def fast_address_of(remoting_address: str) -> str | None:
    """The fast port that belongs to a remoting port: two below, with the same TLS; None if it is unknown."""
    return _address_below(remoting_address, 2)


def _address_below(address: str, distance: int) -> str | None:
    if uses_tls(address):
        try:
            return parse_tls_address(None, address).below(distance)
        except (ValueError, RuntimeError):  # ``make_endpoint`` reports the error
            return None
    host_port = _split_host_port(address.removeprefix("tcp:"))
    if host_port is None or host_port[1] <= distance:
        return None
    host, port = host_port
    return f"[{host}]:{port - distance}" if ":" in host else f"{host}:{port - distance}"


@implementer(IStreamClientEndpoint)
class CancellableEndpoint:
    """Connects through another endpoint. An attempt that is cancelled always fails with CancelledError.

    Twisted's HostnameEndpoint fails with DNSLookupError or ConnectingCancelledError then. Our code would take these for
    a failure of the other side, and try again.
    """

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return repr(self.endpoint)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        attempt = self.endpoint.connect(protocolFactory)
        is_cancelled = False

        def cancel(_: Deferred[IProtocol]) -> None:
            nonlocal is_cancelled
            is_cancelled = True
            attempt.cancel()

        def failed(failure: Failure) -> None:
            if not connecting.called:
                connecting.errback(Failure(CancelledError()) if is_cancelled else failure)

        connecting: Deferred[IProtocol] = Deferred(cancel)
        attempt.addCallbacks(lambda protocol: None if connecting.called else connecting.callback(protocol), failed)
        return connecting


@implementer(IProtocolFactory)
class _SigningFactory:
    """Builds the protocols of another factory. Those that send requests sign them."""

    def __init__(self, factory: IProtocolFactory, sign: Sign) -> None:
        self._factory = factory
        self._sign = sign

    def buildProtocol(self, addr: IAddress) -> IProtocol | None:
        protocol: IProtocol | None = self._factory.buildProtocol(addr)
        sign_with = getattr(protocol, "sign_with", None)
        if sign_with is not None:
            sign_with(self._sign)
        return protocol

    def doStart(self) -> None:
        self._factory.doStart()

    def doStop(self) -> None:
        self._factory.doStop()


@implementer(IStreamClientEndpoint)
class SigningEndpoint:
    """Connects through another endpoint. The connections sign their requests."""

    def __init__(self, endpoint: IStreamClientEndpoint, sign: Sign) -> None:
        self.endpoint = endpoint
        self._sign = sign

    def __repr__(self) -> str:
        return repr(self.endpoint)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        connecting: Deferred[IProtocol] = self.endpoint.connect(_SigningFactory(protocolFactory, self._sign))
        return connecting


@implementer(IStreamClientEndpoint)
class ToldEndpoint:
    """Connects to an address that ``tell`` gives later. An attempt before that waits, for a limited time."""

    def __init__(self, reactor: Any, wait_seconds: float = MAX_WAIT_SECONDS, sign: Sign | None = None) -> None:
        """``sign`` signs the requests of its connections."""
        self._reactor = reactor
        self._access = ClientTLS(sign=sign)
        self._wait_seconds = wait_seconds
        self._address: str | None = None
        self._waiting: list[Deferred[None]] = []

    def __repr__(self) -> str:
        return f"<to {self._address or 'nowhere yet'}>"

    @property
    def address(self) -> str | None:
        """The latest address; None before the first."""
        return self._address

    def tell(self, address: str) -> None:
        """Connect to this address from now on. Its format is that of ``make_endpoint``."""
        self._address = address
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            attempt.callback(None)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        if self._address is None:
            waiting: Deferred[None] = Deferred(lambda waiting: self._waiting.remove(waiting))
            self._waiting.append(waiting)
            try:
                await waiting.addTimeout(self._wait_seconds, self._reactor)
            except DeferredTimeoutError as error:
                raise ConnectError(string="the address is not known yet") from error
        assert self._address is not None, "tell was called"
        protocol: IProtocol = await make_endpoint(self._reactor, self._address, self._access).connect(factory)
        return protocol


@implementer(IStreamClientEndpoint)
class LoopbackEndpoint:
    """Connects to a server of this process through memory, without a port."""

    def __init__(self, server: IProtocolFactory, clock: IReactorTime) -> None:
        self._server = server
        self._clock = clock

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return deferLater(self._clock, 0, self._connect, protocolFactory)

    def _connect(self, client_factory: IProtocolFactory) -> IProtocol:
        client, server = (factory.buildProtocol(IN_THIS_PROCESS) for factory in (client_factory, self._server))
        if client is None or server is None:
            raise ConnectError(string="the connection was refused")
        loopbackAsync(server, client)
        return client
