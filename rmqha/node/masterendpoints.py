"""How a slave reaches its master: at a configured address, or at the one that name servers know."""

from typing import Any

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint

from rmqha.broker.addresses import MasterAddresses
from rmqha.broker.background.mastersearch import MasterSearch
from rmqha.net.endpoints import ToldEndpoint
from rmqha.node.plan import NodePlan
from rmqha.settings.settings import BrokerRole


class MasterEndpoints:
    """The endpoints of the master that a plan names. What name servers answer is kept while the process runs."""

    def __init__(self, plan: NodePlan, reactor: Any) -> None:
        self._plan = plan
        self._clock = IReactorTime(reactor)
        self._told = ToldEndpoint(reactor)
        self._told_remoting = ToldEndpoint(reactor, wait_seconds=0, sign=plan.sign)
        self._searched: MasterSearch | None = None

    @property
    def ha_address(self) -> str | None:
        """The address of the master's HA port, None while it is not known."""
        searched = None if self._searched is None else self._searched.ha_address
        return self._plan.settings.ha_master_address or searched or self._told.address

    def before_open(self) -> IStreamClientEndpoint | None:
        """How a slave reaches its master before its store is open; None for a master, or if the address is unknown."""
        plan = self._plan
        if plan.settings.broker_role is not BrokerRole.SLAVE:
            return None
        if plan.master is not None or not plan.name_servers or plan.member is not None:
            return plan.master if plan.master is not None or plan.member is None else plan.member.leader
        return self._search()

    def both(self) -> tuple[IStreamClientEndpoint, IStreamClientEndpoint | None]:
        """The endpoints of the master's HA port and remoting port; None if its remoting port must not be asked."""
        plan = self._plan
        if plan.master is not None:
            return plan.master, plan.master_remoting
        if plan.slave.once:  # it does not register, so no name server tells it by itself
            self._searched = self._search()
            return self._searched, self._searched.remoting
        return self._told, self._told_remoting

    def found(self, addresses: MasterAddresses) -> None:
        """Take the master's addresses from a name server. They stay when the master is gone: it may return.

        A member of a failover cluster follows only the leader that its coordinator names.
        """
        if self._plan.member is not None:
            return
        if addresses.master_addr is not None:
            self._told_remoting.tell(addresses.master_addr)
        if addresses.ha_server_addr is not None:
            self._told.tell(addresses.ha_server_addr)

    def _search(self) -> MasterSearch:
        """The way to the master for a slave that does not register with the name servers, or not yet."""
        plan = self._plan
        endpoints = [endpoint for _, endpoint in plan.name_servers]
        return MasterSearch(endpoints, plan.settings, plan.connect, self._clock)
