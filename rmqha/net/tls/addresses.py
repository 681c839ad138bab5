"""TLS addresses as Twisted's endpoint strings: ``rmqtls:HOST:PORT`` and its parameters.

Twisted parses the strings; our plugin (``twisted/plugins/rmqha_plugin.py``) gets their pieces. The prefix is our own,
because Twisted has plugins for ``tls:`` and ``ssl:``, and takes any one of two plugins with the same prefix.
Twisted's own endpoints accept certificates that ours refuse (ARCHITECTURE.md, "We judge certificates ourselves").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, clientFromString, quoteStringArgument
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from zope.interface import implementer

from rmqha.net.tls.endpoints import ClientTLS

PREFIX = "rmqtls"
OTHER_PREFIXES = ("tls", "ssl")
"""Prefixes that our options take too, for a string with the same parameters."""
MAX_PORT = 65535
NAMES = {  # each parameter by its names in Twisted's tls: strings and, if they differ, in its ssl: strings
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
POSITIONS = ("host", "port")
FILES = ("certificate", "privateKey", "trustRoots")
CONNECT_SECONDS = "30"


class AddressError(ValueError):
    """An address whose parameters are wrong."""


def uses_tls(address: str) -> bool:
    """Whether an address is a TLS address. Case does not matter, as in Twisted."""
    return address.partition(":")[0].lower() in (PREFIX, *OTHER_PREFIXES)


@implementer(IStreamClientEndpoint)
@dataclass(frozen=True, slots=True)
class TLSAddress:
    """Where a TLS server is, and the files with which to connect to it.

    ``connect`` trusts the authorities that the address names, else those of the platform. It fails with TLSError too.
    """

    reactor: Any
    parameters: Mapping[str, str]
    host: str
    port: int

    def endpoint(self, tls: ClientTLS) -> IStreamClientEndpoint:
        """Connect with the files that the address names or, if it names none, with those of ``tls``.

        Raises TLSError for files that cannot be used, ValueError for other parameters that are wrong.
        """
        given = self.parameters
        bind_address = given.get("bindAddress")
        if "endpoint" in given:
            carrier: IStreamClientEndpoint = clientFromString(self.reactor, given["endpoint"])
        else:
            bound_to = None if bind_address is None else (bind_address, 0)
            timeout = int(given.get("timeout", CONNECT_SECONDS))
            carrier = HostnameEndpoint(self.reactor, self.host, self.port, timeout, bound_to)
        if given.keys() & set(FILES):
            tls = tls.with_files(*[given.get(name) for name in FILES])
        return tls.endpoint(carrier, given.get("hostname", self.host), self.reactor)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        protocol: IProtocol = await self.endpoint(ClientTLS()).connect(factory)
        return protocol

    def at(self, address: str) -> "TLSAddress":
        """The same server at one of its addresses. Its certificate must still be for the host's name."""
        parameters = {"hostname": self.host, **self.parameters}
        return TLSAddress(self.reactor, parameters, address, self.port)

    def below(self, distance: int) -> str | None:
        """The address ``distance`` ports below, as text; None if there is no such port, or if it cannot be known."""
        if self.port <= distance or "endpoint" in self.parameters:
            return None
        moved = {**self.parameters, "port": str(self.port - distance)}
        return ":".join(["tls", *(f"{name}={quoteStringArgument(value)}" for name, value in moved.items())])


def parse_parameters(reactor: Any, *args: str, **kwargs: str) -> TLSAddress:
    """An address from the pieces of its string, as Twisted gives them to a plugin. Raises AddressError, ValueError."""
    found = {}
    positions = [name for name in POSITIONS if name not in kwargs]
    for value in filter(None, args):
        if not positions:
            raise AddressError(f"{value} is one too many after host and port")
        found[positions.pop(0)] = value
    for name, value in kwargs.items():
        if name not in NAMES:
            raise AddressError(f"{name}= is not a parameter of a TLS address")
        found[NAMES[name]] = value
    host, port = found.get("host"), found.get("port", "")
    if not host or not (port.isascii() and port.isdecimal()):
        raise ValueError("a TLS address needs a host and a port")
    if not 0 < int(port) <= MAX_PORT:  # the system takes a port modulo 65536
        raise AddressError(f"a port is between 1 and {MAX_PORT}")
    return TLSAddress(reactor, found, host, int(port))


def parse_tls_address(reactor: Any, address: str) -> TLSAddress:
    """An address from its string; ``tls:[::1]:10912`` is one too. Raises AddressError, ValueError, RuntimeError."""
    _, _, rest = address.partition(":")
    host, bracket, after = rest.partition("]")
    if bracket and host.startswith("["):
        rest = quoteStringArgument(host[1:]) + after
    found = clientFromString(reactor, f"{PREFIX}:{rest}")
    assert isinstance(found, TLSAddress), "our plugin has made it"
    return found
