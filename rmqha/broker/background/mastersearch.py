"""Finds a slave's master through the name servers, for a slave that has not registered yet, or does not register."""

from collections.abc import Sequence

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from zope.interface import implementer

from rmqha.broker.interfaces import Connect
from rmqha.kit.connecting import reason_of
from rmqha.remoting.asking import ask_config
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.protocol import call_once
from rmqha.settings.settings import Settings
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient

MASTER_ID = "0"
MAX_NAMES_SHOWN = 5


@implementer(IStreamClientEndpoint)
class MasterSearch:
    """Connects to the HA port of the master of our brokerName. Each attempt asks the name servers for its address.

    ``remoting`` connects to its remoting port in the same way. ``connect`` makes an endpoint from an address.
    """

    def __init__(
        self,
        name_servers: Sequence[IStreamClientEndpoint],
        settings: Settings,
        connect: Connect,
        clock: IReactorTime,
    ) -> None:
        self._name_servers = name_servers
        self._broker_name = settings.broker_name
        self._make_endpoint = connect
        self._clock = clock
        self.ha_address: str | None = None
        """The HA port that was found last, host:port; None before that."""
        self.remoting: IStreamClientEndpoint = _MasterRemoting(self)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        address = await self._master_address()
        config = await ask_config(self._make_endpoint(address), self._clock)
        host, _, port = address.rpartition(":")
        ha_port = config.get("haListenPort", "")
        self.ha_address = f"{host}:{ha_port if ha_port.isdecimal() else int(port) + 1}"
        protocol: IProtocol = await self._make_endpoint(self.ha_address).connect(factory)
        return protocol

    async def connect_to_remoting(self, factory: IProtocolFactory) -> IProtocol:
        """Connect to the master's remoting port. Raises ConnectError, or what connecting raises."""
        protocol: IProtocol = await self._make_endpoint(await self._master_address()).connect(factory)
        return protocol

    async def _master_address(self) -> str:
        """The address of the master's remoting port. Raises ConnectError."""
        reason = "there is no name server"
        for endpoint in self._name_servers:
            try:
                return await self._ask(endpoint)
            except CancelledError:
                raise
            except _MasterUnknown as error:
                reason = str(error)
            except Exception as error:  # of any kind: the next name server may know it
                reason = f"a name server does not answer: {reason_of(error)}"
        raise ConnectError(string=reason)

    async def _ask(self, endpoint: IStreamClientEndpoint) -> str:
        """What this name server says. Raises _MasterUnknown, RemotingError or what connecting raises."""
        answer = await call_once(endpoint, RequestCode.GET_BROKER_CLUSTER_INFO, self._clock)
        try:
            brokers = loads_lenient(answer.body)["brokerAddrTable"]
            addresses = brokers.get(self._broker_name, {"brokerAddrs": {}})["brokerAddrs"]
            found = {str(number): str(address) for number, address in addresses.items()}.get(MASTER_ID)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise RemotingError(f"the cluster info is invalid: {error!r}") from error
        if found is None:
            raise _MasterUnknown(self._broker_name, sorted(map(str, brokers)))
        return found


class _MasterUnknown(Exception):
    """A name server answered, and has no master of this brokerName."""

    def __init__(self, broker_name: str, known: Sequence[str]) -> None:
        more = ", …" if len(known) > MAX_NAMES_SHOWN else ""
        others = f": they know {', '.join(known[:MAX_NAMES_SHOWN])}{more} (--name)" if known else ""
        super().__init__(f"the name servers know no master of brokerName {broker_name}{others}")


@implementer(IStreamClientEndpoint)
class _MasterRemoting:
    """Connects to the remoting port of the master that a search finds."""

    def __init__(self, search: MasterSearch) -> None:
        self._search = search

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._search.connect_to_remoting(protocolFactory))
