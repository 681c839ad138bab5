"""A port that listens while a process runs."""

import os
import resource
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.application.service import Service
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTCP, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.tcp import Port
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from rmqha.ha.master.protocol import HAMasterFactory
from rmqha.kit.events import Event
from rmqha.net.endpoints import NamedServerEndpoint, is_address
from rmqha.ops.process import parse_port
from rmqha.settings.settings import SettingsError

HTTP_BACKLOG = 64
BACKLOG = 1024
"""How many connections may wait to be accepted. With fewer, slaves that reconnect all at once would lose seconds."""


def tcp_endpoint(reactor: Any, port: int, bind_address: str) -> IStreamServerEndpoint:
    """An endpoint for this port at ``bind_address``, or at all addresses if that is empty. It may be a name."""
    if not is_address(bind_address):
        return NamedServerEndpoint(reactor, bind_address, lambda address: tcp_endpoint(reactor, port, address))
    return TCP4ServerEndpoint(IReactorTCP(reactor), port, BACKLOG, bind_address)


LOOPBACK = "127.0.0.1"


class HttpPort(NamedTuple):
    """Where metrics, health checks and the status page are served."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HttpPort":
        """Parse the value of --http-port: PORT on loopback, or ADDRESS:PORT, ``*`` for all addresses.

        Raises SettingsError.
        """
        address, colon, port = text.rpartition(":")
        address = address.removeprefix("[").removesuffix("]")
        if colon and not address:
            raise SettingsError(f"http-port={text} has no address; *:PORT means all addresses")
        if not colon:
            address = LOOPBACK
        elif address == "*":
            address = ""
        elif not (isIPAddress(address) or isIPv6Address(address)):
            raise SettingsError(f"http-port={text}: {address!r} is not an address of this machine, such as 10.0.0.1")
        return cls(address, parse_port("http-port", port))

    def endpoint(self, reactor: Any) -> IStreamServerEndpoint:
        """What listens there."""
        kind = TCP6ServerEndpoint if isIPv6Address(self.address) else TCP4ServerEndpoint
        return kind(IReactorTCP(reactor), self.port, HTTP_BACKLOG, self.address)


SPARE_FILES = 12
"""Files that are reserved for the node itself. Connections that would use them are refused."""


ACCEPTS_A_TURN = 10
"""About this many connections are accepted in a reactor turn. Twisted accepts up to 20 more."""
MANY_FILES = 1_000_000
"""Used if the process has no limit of open files."""


class SparingFactory(Factory[Any]):
    """Builds another factory's connections, a few in each turn, unless the process is running out of files."""

    noisy = False
    _log = Logger()

    def __init__(self, factory: Factory[Any]) -> None:
        self._factory = factory
        self._is_short = False
        self._port: Port | None = None
        self._uncounted = 0
        """How many more connections may be made before the next count of open files, which is slow with many files."""

    def doStart(self) -> None:
        self._factory.doStart()

    def doStop(self) -> None:
        self._factory.doStop()

    def listens_at(self, port: IListeningPort) -> None:
        """The port whose connections these are."""
        if isinstance(port, Port):
            self._port = port
            self._slow_down(port)

    def _slow_down(self, port: Port) -> None:
        port.numberAccepts = min(port.numberAccepts, ACCEPTS_A_TURN)

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if self._port is not None:
            self._slow_down(self._port)
        self._uncounted -= 1
        if self._uncounted <= 0:
            self._count_open_files()
        return None if self._is_short else self._factory.buildProtocol(addr)

    def _count_open_files(self) -> None:
        """Find out whether too few files are left. Half of the rest are for connections until the next count."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = MANY_FILES if limit == resource.RLIM_INFINITY else limit - len(os.listdir("/proc/self/fd"))
        is_short = left < SPARE_FILES
        if is_short and not self._is_short:
            self._log.warn(
                "refusing connections: too few of the {limit} open files are left",
                event=Event.OPEN_FILES_SHORT,
                limit=limit,
            )
        self._is_short = is_short
        self._uncounted = max(0, left - SPARE_FILES) // 2


class IPortOwner(Interface):
    """The process that has a port."""

    def cannot_listen(reason: str) -> None:
        """The port cannot be opened: end the process."""


class ListeningService(Service):
    """Listens, and logs the port and its purpose. Stopping it closes an HA port's connections.

    ``failed`` is called with the reason if it cannot listen.
    """

    _log = Logger()

    def __init__(
        self,
        endpoint: IStreamServerEndpoint,
        factory: Factory[Any],
        purpose: str,
        security: str,
        failed: Callable[[str], None],
        listening: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._endpoint = endpoint
        self._factory = factory
        self._sparing = SparingFactory(factory)
        self._purpose = purpose
        self._security = security
        self._failed = failed
        self._tell_port = listening
        self._port: IListeningPort | None = None
        self._opening: Deferred[Any] | None = None

    def startService(self) -> None:
        Service.startService(self)
        self._opening = self._endpoint.listen(self._sparing)
        self._opening.addCallbacks(self._listening, self._cannot_listen)

    def _listening(self, port: IListeningPort) -> None:
        self._port = port
        self._sparing.listens_at(port)
        number = getattr(port.getHost(), "port", 0)
        self._tell_port(number)
        self._log.info(
            "{purpose} port is {port}, {security}",
            event=Event.LISTENING,
            purpose=self._purpose,
            port=number,
            security=self._security,
        )

    def _cannot_listen(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._failed(f"cannot listen for {self._purpose}: {failure.getErrorMessage()}")

    def stopService(self) -> Deferred[None] | None:
        Service.stopService(self)
        if self._opening is not None:
            self._opening.cancel()  # it may still wait for the address of a name
        if isinstance(self._factory, HAMasterFactory):
            self._factory.close_connections()
        return None if self._port is None else self._port.stopListening()
