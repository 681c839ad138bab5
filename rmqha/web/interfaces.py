"""What the pages ask of those that they show."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from rmqha.broker.brokerservice import BrokerService
from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.slaveservice import HASlaveService
from rmqha.ops.listening import IPortOwner
from rmqha.ops.places import IWorker
from rmqha.settings.settings import Settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState


class ILiveNode(Interface):
    """A node while its store is open: ``OpenNode``."""

    store: MessageStore = Attribute("The open store.")
    slave: HASlaveService | None = Attribute("What copies the master's log; None for a master.")
    serving: LogServing | None = Attribute("What serves the log to slaves.")
    broker: BrokerService | None = Attribute("What answers clients.")
    factories: dict[str, Any] = Attribute("What builds the connections of each port, by the port's name.")

    def state() -> NodeState:
        """The content of state.json."""


class IShownNode(IPortOwner, IWorker):
    """A node as its pages see it: ``Node``. All of it is live, and may be asked at any time."""

    settings: Settings = Attribute("The current settings: a promotion changes them.")

    def shown_phase() -> str:
        """What the node is doing."""

    def live_node() -> ILiveNode | None:
        """The open node; None while its store is closed."""

    def cluster(changes: int) -> dict[str, Any] | None:
        """What a member knows of its failover cluster, with this number of changes of the leader.

        None if the node is not a member.
        """

    def run_in_table_thread(function: Callable[[], Any]) -> Deferred[Any]:
        """Run what may wait for the disk."""
