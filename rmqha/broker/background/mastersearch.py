"""Finds a slave's master through the name servers, for a slave that has not registered yet."""

from collections.abc import Callable, Sequence

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from zope.interface import implementer

from rmqha.remoting.asking import ask_config
from rmqha.remoting.protocol import RemotingError, call_once
from rmqha.settings import Settings
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient

MASTER_ID = "0"


@implementer(IStreamClientEndpoint)
class MasterSearch:
    """Connects to the HA port of the master of our brokerName. Each attempt asks the name servers for its address.

    ``connect`` makes an endpoint from an address.
    """

    def __init__(
        self,
        name_servers: Sequence[IStreamClientEndpoint],
        settings: Settings,
        connect: Callable[[str], IStreamClientEndpoint],
        clock: IReactorTime,
    ) -> None:
        self._name_servers = name_servers
        self._broker_name = settings.broker_name
        self._make_endpoint = connect
        self._clock = clock

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        address = await self._master_address()
        config = await ask_config(self._make_endpoint(address), self._clock)
        host, _, port = address.rpartition(":")
        ha_port = config.get("haListenPort", "")
        ha_endpoint = self._make_endpoint(f"{host}:{ha_port if ha_port.isdecimal() else int(port) + 1}")
        protocol: IProtocol = await ha_endpoint.connect(factory)
        return protocol

    async def _master_address(self) -> str:
        """The address at which the master answers clients. Raises ConnectError."""
        reason = "no name server is configured"
        for endpoint in self._name_servers:
            try:
                address = await self._ask(endpoint)
            except CancelledError:
                raise
            except Exception as error:  # of any kind: the next name server may know it
                reason = f"a name server does not answer: {error or type(error).__name__}"
                continue
            if address is not None:
                return address
            reason = f"the name servers know no master of {self._broker_name}"
        raise ConnectError(string=reason)

    async def _ask(self, endpoint: IStreamClientEndpoint) -> str | None:
        answer = await call_once(endpoint, RequestCode.GET_BROKER_CLUSTER_INFO, self._clock)
        try:
            brokers = loads_lenient(answer.body)["brokerAddrTable"]
            addresses = {
                str(number): str(address) for number, address in brokers[self._broker_name]["brokerAddrs"].items()
            }
        except KeyError:
            return None
        except (ValueError, TypeError, AttributeError) as error:
            raise RemotingError(f"the cluster info is invalid: {error!r}") from error
        return addresses.get(MASTER_ID)
