"""Follows the address that the name of brokerIP1 stands for."""

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.addresses import OwnAddresses
from rmqha.broker.interfaces import IBrokersNode
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.wire.record import Host


class OwnAddressLookup(PeriodicService):
    """Has the node look up brokerIP1 every ``seconds``. A stop does not wait for a slow answer."""

    _log = Logger()

    def __init__(self, own: OwnAddresses, node: IBrokersNode, seconds: float, clock: IReactorTime) -> None:
        super().__init__("looking up brokerIP1", seconds, self._look_up, clock)
        self._own = own
        self._node = node

    def _look_up(self) -> None:
        Deferred.fromCoroutine(self._follow())

    async def _follow(self) -> None:
        """New messages have the address that the name has now. Without an answer it stays as it is."""
        own = self._own
        try:
            found = Host.parse(await self._node.find_address(own.broker_ip1), own.store_host.port)
        except OSError:
            return
        if found.address != own.store_host.address:
            own.store_host = own.store_host._replace(address=found.address)
            self._log.info(
                "{what}={name} is {address}",
                event=Event.NAME_FOUND,
                what="brokerIP1",
                name=own.broker_ip1,
                address=str(own.store_host),
            )
