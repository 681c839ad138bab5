"""What a broker needs of the node that it belongs to, and of the network."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import Interface, implementer

from rmqha.broker.addresses import MasterAddresses
from rmqha.remoting.header import refused

Connect = Callable[[str], IStreamClientEndpoint]
"""Makes an endpoint from an address. Raises ValueError for an invalid address."""
Machines = Sequence[tuple[str, IStreamClientEndpoint]]
"""Several machines behind the name of a name server: their names and endpoints. Empty if there is only one."""
FindMachines = Callable[[str], Awaitable[Machines]]
"""Looks up the name of a name server. Raises what a lookup raises."""


def connect_nowhere(address: str) -> IStreamClientEndpoint:
    """For a broker that makes no connections. Raises ValueError."""
    raise ValueError(f"this broker does not connect to {address}")


async def find_no_machines(name: str) -> Machines:
    """For names that stand for one machine."""
    return ()


class IBrokersNode(Interface):
    """The node of a broker."""

    def keep_settings(changes: Mapping[str, str], by: str) -> Awaitable[None]:
        """Keep what ``by`` has changed with mqadmin, texts by name, for the next start. May raise OSError."""

    def find_address(name: str) -> Awaitable[str]:
        """Look up a name. Raises OSError."""

    def master_found(addresses: MasterAddresses) -> None:
        """A name server says where a slave's master is."""

    def clean_now() -> Awaitable[None]:
        """Apply the retention rules, at any hour. It reports its errors itself. Raises RequestRefused."""

    def tables_in_sync_changed() -> None:
        """A slave's tables have become its master's, or are no longer."""

    def runtime_info() -> Mapping[str, str]:
        """What GET_BROKER_RUNTIME_INFO tells of the broker and its node. Raises OSError."""

    def ha_status() -> Mapping[str, Any]:
        """Java's HARuntimeInfo."""


class IDelayLevels(Interface):
    """What delivers delayed messages."""

    def progress() -> Mapping[int, tuple[int, int]]:
        """For each delay level that ever had a message, how many are delivered, and how many exist."""


class IConfigured(Interface):
    """A broker with settings."""

    def config() -> Mapping[str, str]:
        """The effective settings by RocketMQ's names, defaults included."""


@implementer(IBrokersNode)
class NoNode:
    """For a broker by itself: its changed settings last until it stops, and it deletes nothing."""

    async def keep_settings(self, changes: Mapping[str, str], by: str) -> None:
        pass

    async def find_address(self, name: str) -> str:
        raise OSError(f"nobody looks up {name}")

    def master_found(self, addresses: MasterAddresses) -> None:
        pass

    async def clean_now(self) -> None:
        raise refused("this broker deletes nothing by itself")

    def tables_in_sync_changed(self) -> None:
        pass

    def runtime_info(self) -> Mapping[str, str]:
        return {}

    def ha_status(self) -> Mapping[str, Any]:
        return {}


NO_NODE = NoNode()
