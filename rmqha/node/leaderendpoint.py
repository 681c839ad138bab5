"""How a member of a failover cluster reaches the leader before its store is open: to repair its log from it."""

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from zope.interface import implementer

from rmqha.broker.interfaces import Connect
from rmqha.coordination.interface import CoordinatorError, ICoordinator
from rmqha.failover.keys import InvalidKey, prefix_of
from rmqha.failover.view import ClusterView
from rmqha.settings.settings import Settings


@implementer(IStreamClientEndpoint)
class LeaderEndpoint:
    """Connects to the HA port of the node that leads, if that is another one. It asks the coordinator each time.

    The node has no session yet, so it shows none: it is served as a slave from outside the cluster, whom no put waits
    for. A repair proves each byte before it writes any.
    """

    def __init__(self, coordinator: ICoordinator, settings: Settings, member: str, connect: Connect) -> None:
        self._coordinator = coordinator
        self._prefix = prefix_of(settings.broker_cluster_name, settings.broker_name)
        self._member = member
        self._connect = connect

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._find_and_connect(protocolFactory))

    async def _find_and_connect(self, factory: IProtocolFactory) -> IProtocol:
        try:
            view = ClusterView.read(self._prefix, await self._coordinator.range(self._prefix))
        except (CoordinatorError, InvalidKey) as error:
            raise ConnectError(string=f"the coordinator does not say who leads: {error}") from error
        leader = None if view.leader is None else view.members.get(view.leader.node)
        if leader is None or leader.name == self._member:
            raise ConnectError(string="no other node leads the failover cluster")
        try:
            endpoint = self._connect(leader.ha)
        except ValueError as error:
            raise ConnectError(string=f"the leader's address cannot be used: {error}") from error
        protocol: IProtocol = await endpoint.connect(factory)
        return protocol
