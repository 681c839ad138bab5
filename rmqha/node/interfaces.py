"""What a node's parts need of each other, and of what the node runs on."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface

from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.slaveservice import HASlaveService
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.wallclock import IWallClock
from rmqha.node.plan import NodePlan
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import Promotion
from rmqha.store.offline.rewind import Rewound


class IMachine(IWallClock):
    """A clock, a disk, and the thread that waits for the disk."""

    clock: IReactorTime = Attribute("The reactor, as a clock.")
    disk: Disk = Attribute("The disk of the store.")

    def run_in_thread(function: Callable[[], Any]) -> Deferred[Any]:
        """Run a function in the thread that waits for the disk."""

    def disk_failed(failure: Failure) -> None:
        """The disk has refused, with this error."""


class IProcess(IMachine):
    """The process that a node runs in."""

    reactor: Any = Attribute("Twisted's reactor.")

    def run_in_table_thread(function: Callable[[], Any]) -> Deferred[Any]:
        """Run a function in the thread for writes of tables, which would delay the flushes that puts wait for."""

    def leave(code: ExitCode, reason: str) -> None:
        """End the process after a slave's work is done, with this exit code and its reason in one line."""

    def stop_with(code: ExitCode, reason: str) -> None:
        """Log the reason, and end the process after an error."""

    def start_rewind() -> bool:
        """Cut the log of a slave back. False if that cannot be done now."""

    def describe_fork() -> Awaitable[str]:
        """A line that says where a slave's log and its master's part. Raises what ``find_fork_with_master`` raises."""

    def keep_settings(changes: Mapping[str, str], by: str) -> Awaitable[None]:
        """Keep what ``by`` has changed with mqadmin, for the next start too. Raises OSError."""


class IOpenNode(Interface):
    """A node while its store is open: the services of its role."""

    store: MessageStore = Attribute("The open store.")
    slave: HASlaveService | None = Attribute("What copies the master's log; None for a master.")
    serving: LogServing | None = Attribute("What serves the log on the HA port, if anything does.")
    has_no_room: bool = Attribute("Whether the disk is too full to take messages.")

    def state() -> NodeState:
        """The current state, for state.json."""

    def stop() -> Deferred[None]:
        """Stop the services. The store stays open."""

    def close_store() -> Deferred[None]:
        """Close the store, after the services have stopped. Fails with OSError."""

    def closed() -> None:
        """The store is closed, and is to be opened again: hang up on clients, which would ask a closed store."""

    def stop_following() -> Deferred[None]:
        """Close the connection to the master for good."""

    def register_as_slave(broker_id: int) -> None:
        """Be a slave of this id for name servers."""

    def fence(broker_id: int) -> None:
        """The right to lead has ended: serve no slave, answer puts that wait, and be a slave for name servers."""

    def stop_problems() -> list[str]:
        """Services that did not stop cleanly, one line each."""


class IHost(IMachine):
    """What a node runs on, for ``RoleChanger``: a process, or a simulated machine."""

    def use(plan: NodePlan) -> None:
        """The store will be opened as this plan says, the next time."""

    def prepare() -> Awaitable[None]:
        """Complete the plan before the store is opened: the core takes its role, and the host looks up what it needs.

        Raises OpeningStopped after ``stop_waiting``, StoreError, OSError.
        """

    def way_to_master() -> IStreamClientEndpoint | None:
        """How a slave reaches its master before its store is open; None for a master, or if the address is unknown."""

    def open_store(opening: Awaitable[MessageStore]) -> Awaitable[MessageStore]:
        """Wait for the opening. Raises what it raises, unless the host has another way to open the store."""

    def run(store: MessageStore) -> Awaitable[IOpenNode]:
        """Start the services of the plan's role over the open store. Raises StoreError, OSError."""

    def started() -> None:
        """The node counts as running from now on."""

    def find_fork() -> Awaitable[Fork]:
        """Where our log and the master's part. Raises an error that says why nothing is to be cut."""

    def rewound(fork: Fork, done: Rewound) -> None:
        """The log was cut back to the fork. No service runs yet."""

    def promoted(promotion: Promotion) -> None:
        """The store was promoted. No service runs yet."""

    def stop_waiting() -> None:
        """Give up what ``prepare`` and ``find_fork`` wait for: the node stops."""

    def stop_services() -> Awaitable[None]:
        """Stop all services, those of the open node and the others."""

    def flushed() -> Awaitable[None]:
        """The store is closed for good, and all of it is on the disk. Raises StoreError, OSError."""

    def stop_with(code: ExitCode, reason: str) -> None:
        """End with this exit code and its reason."""
