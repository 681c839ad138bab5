"""Every connection of a failover cluster's follower to its leader's HA port begins with a hello.

A node that does not lead, or leads in another epoch, refuses it. So a follower never compares its log with that of a
node that has lost the lead, nor cuts its log back to it.
"""

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocol, IProtocolFactory, IStreamClientEndpoint, ITransport
from zope.interface import implementer

from rmqha.wire.transfer import Hello


@implementer(IStreamClientEndpoint)
class GreetingEndpoint:
    """Connects through another endpoint, and sends a guest's hello first. A guest counts for no put."""

    def __init__(self, endpoint: IStreamClientEndpoint, hello: Hello) -> None:
        self._endpoint = endpoint
        self._greeting = hello.encode(is_guest=True)

    def __repr__(self) -> str:
        return repr(self._endpoint)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        connecting: Deferred[IProtocol] = self._endpoint.connect(_GreetingFactory(protocolFactory, self._greeting))
        return connecting


@implementer(IProtocolFactory)
class _GreetingFactory:
    """Builds the protocols of another factory."""

    def __init__(self, factory: IProtocolFactory, greeting: bytes) -> None:
        self._factory = factory
        self._greeting = greeting

    def buildProtocol(self, addr: IAddress) -> IProtocol | None:
        protocol: IProtocol | None = self._factory.buildProtocol(addr)
        if protocol is not None:
            connect = protocol.makeConnection

            def greet_and_connect(transport: ITransport) -> None:
                transport.write(self._greeting)
                connect(transport)

            protocol.makeConnection = greet_and_connect  # type: ignore[method-assign]  # any protocol may come
        return protocol

    def doStart(self) -> None:
        self._factory.doStart()

    def doStop(self) -> None:
        self._factory.doStop()
