"""Addresses as people write them: ``host:port``, or a Twisted endpoint string for everything else.

``tls:`` and ``ssl:`` strings take the parameters that Twisted's have, but are made here: with both, the certificate is
checked and must be for the host, and a connection is one when its handshake is done.
"""

from re import compile as compile_pattern
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.endpoints import HostnameEndpoint, clientFromString, quoteStringArgument
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.protocols.loopback import loopbackAsync
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.tls.certificates import TLSError
from rmqha.tls.endpoints import ClientTLS, TLSFiles

LARGEST_PORT = 65535
TLS_PREFIXES = ("tls", "ssl")
TLS_PARAMETERS = {  # Twisted's names of them in tls: and, where others, in ssl: strings
    "host": "host",
    "port": "port",
    "timeout": "timeout",
    "bindAddress": "bindAddress",
    "endpoint": "endpoint",
    "hostname": "hostname",
    "certificate": "certificate",
    "certKey": "certificate",
    "privateKey": "privateKey",
    "trustRoots": "trustRoots",
    "caCertsDir": "trustRoots",
}
_PIECES = compile_pattern(r"((?:[^\\:]|\\.)*)(?::|$)")
_ESCAPED = compile_pattern(r"\\(.)")
_CONNECT_SECONDS = "30"
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
    parameters = _tls_parameters(address)
    host_port = _split_host_port(address.removeprefix("tcp:")) if parameters is None else _host_port_of(parameters)
    if host_port is not None and not 0 < host_port[1] <= LARGEST_PORT:  # the system takes it modulo 65536
        raise ValueError(f"{address!r}: a port is between 1 and {LARGEST_PORT}")
    if host_port is not None and parameters is None and not address.startswith("tcp:"):
        return CancellableEndpoint(HostnameEndpoint(reactor, *host_port))
    try:
        if parameters is not None:
            return CancellableEndpoint(_make_tls_endpoint(reactor, parameters, tls or ClientTLS()))
        return CancellableEndpoint(clientFromString(reactor, address))
    except TLSError as error:
        raise ValueError(f"{address!r}: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{address!r} is neither HOST:PORT nor a Twisted client endpoint ({error})") from error


def uses_tls(address: str) -> bool:
    """Whether the address is of a kind that ``make_endpoint`` makes with TLS."""
    return address.partition(":")[0] in TLS_PREFIXES


def _tls_parameters(address: str) -> dict[str, str] | None:
    """The parameters of a ``tls:`` or ``ssl:`` string, None for other addresses. Raises ValueError."""
    if not uses_tls(address):
        return None
    prefix, _, rest = address.partition(":")
    positions, found = ["port", "host"], dict[str, str]()
    for piece in _pieces(rest):
        name, separator, value = piece.partition("=")
        if separator and name not in TLS_PARAMETERS:
            raise ValueError(f"{address!r}: {name}= is no parameter of {prefix}:")
        if not separator and not positions:
            raise ValueError(f"{address!r}: {name} is one too many after host and port")
        key = TLS_PARAMETERS[name] if separator else positions.pop()
        found[key] = _ESCAPED.sub(r"\1", value if separator else name)
    return found


def _pieces(rest: str) -> list[str]:
    """What stands between colons; a bracketed IPv6 address is one piece."""
    host, bracket, after = rest.partition("]")
    if bracket and host.startswith("["):
        return [quoteStringArgument(host[1:]), *_pieces(after.removeprefix(":"))]
    return [match.group(1) for match in _PIECES.finditer(rest) if match.group(1)]


def _host_port_of(parameters: dict[str, str]) -> tuple[str, int] | None:
    host, port = parameters.get("host"), parameters.get("port", "")
    return (host, int(port)) if host is not None and port.isdecimal() else None


def _make_tls_endpoint(reactor: Any, parameters: dict[str, str], tls: ClientTLS) -> IStreamClientEndpoint:
    host, port = parameters["host"], int(parameters["port"])
    bind_address = parameters.get("bindAddress")
    if "endpoint" in parameters:
        carrier: IStreamClientEndpoint = clientFromString(reactor, parameters["endpoint"])
    else:
        timeout = int(parameters.get("timeout", _CONNECT_SECONDS))
        carrier = HostnameEndpoint(reactor, host, port, timeout, None if bind_address is None else (bind_address, 0))
    if parameters.keys() & {"certificate", "privateKey", "trustRoots"}:
        files = (parameters.get(name) for name in ("certificate", "privateKey", "trustRoots"))
        tls = TLSFiles.load(*files).client()
    return tls.endpoint(carrier, parameters.get("hostname", host), reactor)


def remoting_address_of(ha_address: str) -> str | None:
    """The remoting port that belongs to an HA port: one below, with the same TLS; None if that cannot be told."""
    return _address_below(ha_address, 1)


def fast_address_of(remoting_address: str) -> str | None:
    """The fast port that belongs to a remoting port: two below, with the same TLS; None if that cannot be told."""
    return _address_below(remoting_address, 2)


def _address_below(address: str, distance: int) -> str | None:
    parameters = _tls_parameters(address)
    if parameters is not None:
        return _tls_address_below(parameters, distance)
    host_port = _split_host_port(address.removeprefix("tcp:"))
    if host_port is None or host_port[1] <= distance:
        return None
    host, port = host_port
    return f"[{host}]:{port - distance}" if ":" in host else f"{host}:{port - distance}"


def _tls_address_below(parameters: dict[str, str], distance: int) -> str | None:
    host_port = _host_port_of(parameters)
    if host_port is None or host_port[1] <= distance or "endpoint" in parameters:
        return None
    moved = {**parameters, "port": str(host_port[1] - distance)}
    return ":".join(["tls", *(f"{name}={quoteStringArgument(value)}" for name, value in moved.items())])


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
