"""Endpoints from addresses as people write them: ``host:port``, or a Twisted endpoint string.

``tls:`` and ``ssl:`` strings have the parameters of Twisted's, but create our own endpoint (``tls.addresses``). It
checks that the certificate is for the host, and connects when the handshake is complete.
"""

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.endpoints import HostnameEndpoint, clientFromString
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IResolutionReceiver,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.protocols.loopback import loopbackAsync
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.kit.events import Event
from rmqha.net.tls.addresses import MAX_PORT, AddressError, parse_tls_address, uses_tls
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.wire.command import Sign

_log = Logger()
RunInThread = Callable[[Callable[[], str]], Deferred[str]]
LookUp = Callable[[str], str]
MAX_WAIT_SECONDS = 30.0
"""How long an attempt to connect waits for an address, by default."""
LOOK_UP_SECONDS = 1.0
"""The pause between two attempts to look up a name of our own."""
MAX_MACHINES = 16
"""How many machines behind one name are used."""
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


def split_addresses(text: str) -> list[str]:
    """The addresses of name servers as people write them: with semicolons between them."""
    return [address.strip() for address in text.split(";") if address.strip()]


def is_address(host: str) -> bool:
    """Whether this is an address, and not a name. Empty text stands for all addresses."""
    return not host or isIPAddress(host) or isIPv6Address(host)


def look_up(name: str) -> str:
    """An address of a host's name, of IPv4 if there is one. It may take long: run it in a thread. Raises OSError."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{name!r} is not a host name") from error
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


async def wait_for_address(
    what: str, name: str, run_in_thread: RunInThread, clock: IReactorTime, look_up: LookUp = look_up
) -> str:
    """Look up a name of our own again and again, until it has an address. ``what`` names the setting that has it."""
    reason = ""
    while True:
        try:
            found: str = await run_in_thread(partial(look_up, name))
        except OSError as error:
            if reason != str(error):
                reason = str(error)
                _log.warn(
                    "{what}={name} cannot be looked up: {reason}. It is tried again each second; nothing starts before",
                    event=Event.NAME_UNKNOWN,
                    what=what,
                    name=name,
                    reason=reason,
                )
        else:
            if reason:
                _log.info("{what}={name} is {address}", event=Event.NAME_FOUND, what=what, name=name, address=found)
            return found
        await deferLater(clock, LOOK_UP_SECONDS)


@implementer(IStreamServerEndpoint)
class NamedServerEndpoint:
    """Listens at the address of a name. It waits until the name has one."""

    def __init__(self, reactor: Any, name: str, at: Callable[[str], IStreamServerEndpoint]) -> None:
        self._reactor = reactor
        self._name = name
        self._at = at

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        return Deferred.fromCoroutine(self._listen(protocolFactory))

    async def _listen(self, factory: IProtocolFactory) -> IListeningPort:
        def run_in_thread(function: Callable[[], str]) -> Deferred[str]:
            running: Deferred[str] = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function)
            return running

        address = await wait_for_address("bind", self._name, run_in_thread, self._reactor)
        port: IListeningPort = await self._at(address).listen(factory)
        return port


def make_endpoint(reactor: Any, address: str, tls: ClientTLS | None = None) -> "CancellableEndpoint":
    """Make an endpoint from ``host:port`` or a Twisted client endpoint string. Raises ValueError.

    A ``tls:`` or ``ssl:`` string without certificates uses those of ``tls``, or else the platform's authorities. If
    ``tls`` signs requests, so do the remoting connections of this endpoint.
    """
    try:
        return _finished(_make_endpoint(reactor, address, tls or ClientTLS()), tls)
    except (AddressError, TLSError) as error:
        raise ValueError(f"{address!r}: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise ValueError(f"{address!r} is neither HOST:PORT nor a Twisted client endpoint ({error})") from error


def _finished(endpoint: IStreamClientEndpoint, tls: ClientTLS | None) -> "CancellableEndpoint":
    sign = None if tls is None else tls.sign
    return CancellableEndpoint(endpoint if sign is None else SigningEndpoint(endpoint, sign))


async def endpoints_behind(
    reactor: Any, address: str, tls: ClientTLS | None = None
) -> list[tuple[str, "CancellableEndpoint"]]:
    """One endpoint for each machine behind a ``host:port`` or ``tls:host:port``, with a text that names it.

    Empty if there is one machine: the endpoint of the name itself finds it. A machine may have one address of IPv4 and
    one of IPv6, so the addresses of the kind that has more of them count. Raises DNSLookupError.
    """
    parsed = parse_tls_address(reactor, address) if uses_tls(address) else None
    if parsed is None:
        host_port = _split_host_port(address.removeprefix("tcp:"))
    else:
        host_port = None if "endpoint" in parsed.parameters else (parsed.host, parsed.port)
    if host_port is None or isIPAddress(host_port[0]) or isIPv6Address(host_port[0]):
        return []
    host, port = host_port
    found = await _addresses_of(reactor, host)
    v4 = {each.host for each in found if isinstance(each, IPv4Address)}
    v6 = {each.host for each in found if isinstance(each, IPv6Address)}
    hosts = sorted(v4 if len(v4) >= len(v6) else v6)[:MAX_MACHINES]
    if len(hosts) < 2:
        return []
    access = tls or ClientTLS()
    machines = []
    for machine in hosts:
        one = HostnameEndpoint(reactor, machine, port) if parsed is None else parsed.at(machine).endpoint(access)
        machines.append((f"{address} ({machine})", _finished(one, tls)))
    return machines


def _addresses_of(reactor: Any, host: str) -> Deferred[list[IAddress]]:
    """The addresses of a name. Fails with DNSLookupError if there are none."""
    found: list[IAddress] = []
    looked_up: Deferred[list[IAddress]] = Deferred()

    @implementer(IResolutionReceiver)
    class Receiver:
        def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
            pass

        def addressResolved(self, address: IAddress) -> None:
            found.append(address)

        def resolutionComplete(self) -> None:
            if found:
                looked_up.callback(found)
            else:
                looked_up.errback(DNSLookupError(f"no address is known for {host}"))

    reactor.nameResolver.resolveHostName(Receiver(), host)
    return looked_up


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
