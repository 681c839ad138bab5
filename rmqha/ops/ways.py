"""How commands reach brokers and name servers: by the addresses that people write."""

from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import Interface, implementer

from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.endpoints import ClientTLS


class IWays(Interface):
    """Makes ways to those who are asked."""

    def to(address: str) -> IStreamClientEndpoint:
        """The endpoint of an address. Raises ValueError for an invalid one."""


@implementer(IWays)
@dataclass(frozen=True, slots=True)
class Ways:
    """Ways over the network."""

    reactor: Any
    tls: ClientTLS

    def to(self, address: str) -> IStreamClientEndpoint:
        """See ``IWays``."""
        return make_endpoint(self.reactor, address, self.tls)
