"""Addresses as people write them: ``host:port``, or a Twisted endpoint string for everything else.

``tls:`` and ``ssl:`` strings take the parameters that Twisted's have, but lead to our endpoint (``tls.addresses``). It
checks the certificate, which must be for the host, and a connection exists when its handshake is done.
"""

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.endpoints import HostnameEndpoint, clientFromString
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.protocols.loopback import loopbackAsync
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.tls.addresses import MAX_PORT, AddressError, parse_tls_address, uses_tls
from rmqha.tls.certificates import TLSError
from rmqha.tls.endpoints import ClientTLS

TOLD_WITHIN_SECONDS = 30.0
"""So long an attempt to connect waits to be told where to, if nobody says otherwise."""
IN_THIS_PROCESS = IPv4Address("TCP", "127.0.0.1", 0)


def _split_host_port(address: str) -> tuple[str, int] | None:
    """Host and port of ``host:port`` or ``[v6]:port``, None for anything else."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return (host, int(port)) if host and ":" not in host else None


def make_endpoint(reactor: Any, address: str, tls: ClientTLS | None = None) -> "CancellableEndpoint":
    """From ``host:port`` or a Twisted client endpoint string. Raises ValueError.

    A ``tls:`` or ``ssl:`` string without certificates of its own uses those of ``tls``, or trusts as the platform does.
    """
    try:
        return CancellableEndpoint(_make_endpoint(reactor, address, tls or ClientTLS()))
    except (AddressError, TLSError) as error:
        raise ValueError(f"{address!r}: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise ValueError(f"{address!r} is neither HOST:PORT nor a Twisted client endpoint ({error})") from error


def _make_endpoint(reactor: Any, address: str, tls: ClientTLS) -> IStreamClientEndpoint:
    if uses_tls(address):
        return parse_tls_address(reactor, address).endpoint(tls)
    host_port = _split_host_port(address.removeprefix("tcp:"))
    if host_port is not None and not 0 < host_port[1] <= MAX_PORT:  # the system takes it modulo 65536
        raise AddressError(f"a port is between 1 and {MAX_PORT}")
    if host_port is not None and not address.startswith("tcp:"):
        return HostnameEndpoint(reactor, *host_port)
    endpoint: IStreamClientEndpoint = clientFromString(reactor, address)
    return endpoint


def remoting_address_of(ha_address: str) -> str | None:
    """The remoting port that belongs to an HA port: one below, with the same TLS; None if that cannot be told."""
    return _address_below(ha_address, 1)


def fast_address_of(remoting_address: str) -> str | None:
    """The fast port that belongs to a remoting port: two below, with the same TLS; None if that cannot be told."""
    return _address_below(remoting_address, 2)


def _address_below(address: str, distance: int) -> str | None:
    if uses_tls(address):
        try:
            return parse_tls_address(None, address).below(distance)
        except (ValueError, RuntimeError):  # ``make_endpoint`` says what is wrong with it
            return None
    host_port = _split_host_port(address.removeprefix("tcp:"))
    if host_port is None or host_port[1] <= distance:
        return None
    host, port = host_port
    return f"[{host}]:{port - distance}" if ":" in host else f"{host}:{port - distance}"


@implementer(IStreamClientEndpoint)
class CancellableEndpoint:
    """Connects as another endpoint does; an attempt that is cancelled always fails with CancelledError.

    Twisted's HostnameEndpoint fails with DNSLookupError or ConnectingCancelledError then. Our code would take these for
    the failure of the other end, and try again.
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


@implementer(IStreamClientEndpoint)
class ToldEndpoint:
    """Connects to the address that it was told last; an attempt that comes before waits for it, but not for ever."""

    def __init__(self, reactor: Any, wait_seconds: float = TOLD_WITHIN_SECONDS) -> None:
        self._reactor = reactor
        self._wait_seconds = wait_seconds
        self._address: str | None = None
        self._waiting: list[Deferred[None]] = []

    def __repr__(self) -> str:
        return f"<to {self._address or 'nowhere yet'}>"

    @property
    def address(self) -> str | None:
        """What it was told last; None for nothing yet."""
        return self._address

    def tell(self, address: str) -> None:
        """Connect there from now on, a text as of ``make_endpoint``."""
        self._address = address
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            attempt.callback(None)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        if self._address is None:
            told: Deferred[None] = Deferred(lambda told: self._waiting.remove(told))
            self._waiting.append(told)
            try:
                await told.addTimeout(self._wait_seconds, self._reactor)
            except DeferredTimeoutError as error:
                raise ConnectError(string="nobody has told where to yet") from error
        assert self._address is not None, "it was told"
        protocol: IProtocol = await make_endpoint(self._reactor, self._address).connect(factory)
        return protocol


@implementer(IStreamClientEndpoint)
class LoopbackEndpoint:
    """Connects to a server of this process through memory, whatever ports that listens at."""

    def __init__(self, server: IProtocolFactory, clock: IReactorTime) -> None:
        self._server = server
        self._clock = clock

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return deferLater(self._clock, 0, self._connect, protocolFactory)

    def _connect(self, client_factory: IProtocolFactory) -> IProtocol:
        client, server = (factory.buildProtocol(IN_THIS_PROCESS) for factory in (client_factory, self._server))
        if client is None or server is None:
            raise ConnectError(string="no connection is wanted")
        loopbackAsync(server, client)
        return client
