"""Doubles of what a node runs on."""

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute, fail, succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.failover.agent import FailoverAgent
from rmqha.failover.member import Promise
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.core import RoleChanger
from rmqha.node.interfaces import IHost, IMachine, IOpenNode, IProcess
from rmqha.node.member import Addresses, IMemberHost, MemberNode
from rmqha.node.plan import IClusterMember, NodePlan
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import Promotion
from rmqha.store.offline.rewind import Rewound


@implementer(IMachine)
class MachineDouble:
    """Threads do their work at once. ``ends`` has the reasons for which the process was to end."""

    disk: Disk = DISK

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ends: list[tuple[ExitCode, str]] = []

    def run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        return execute(function)

    def disk_failed(self, failure: Failure) -> None:
        self.stop_with(ExitCode.IO_ERROR, failure.getErrorMessage())

    def now_ms(self) -> int:
        return 1_795_000_000_000

    def leave(self, code: ExitCode, reason: str) -> None:
        self.ends.append((code, reason))

    def start_rewind(self) -> bool:
        return False

    def stop_with(self, code: ExitCode, reason: str) -> None:
        self.ends.append((code, reason))


@implementer(IProcess)
class ProcessDouble(MachineDouble):
    """The process of an open node."""

    def __init__(self, clock: MemoryReactorClock) -> None:
        super().__init__(clock)
        self.reactor = clock

    def run_in_table_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        return execute(function)

    async def describe_fork(self) -> str:
        return "nobody asked"

    async def keep_settings(self, changes: Mapping[str, str], by: str) -> None:
        pass


@implementer(IHost)
class HostDouble(MachineDouble):
    """Opens stores, and runs ``node`` over them. ``told`` has what the role changer has said to it."""

    def __init__(self) -> None:
        super().__init__(MemoryReactorClock())
        self.told: list[str] = []
        self.core: RoleChanger
        self.preparing: Deferred[None] = succeed(None)
        self._store: MessageStore | None = None

    def use(self, plan: NodePlan) -> None:
        self.plan = plan

    async def prepare(self) -> None:
        self.told.append("prepare")
        self.core.take_role()
        await self.preparing

    def way_to_master(self) -> IStreamClientEndpoint | None:
        return None

    async def open_store(self, opening: Awaitable[MessageStore]) -> MessageStore:
        self._store = await opening
        return self._store

    def abandon(self) -> None:
        """Let go of the store that was opened last, if it was not closed."""
        if self._store is not None and (self._store.root / ABORT_FILE).exists():
            self._store.abandon()

    async def run(self, store: MessageStore) -> "OpenNodeDouble":
        self.told.append("run")
        return OpenNodeDouble(store)

    def started(self) -> None:
        self.told.append("started")

    async def find_fork(self) -> Fork:
        raise OSError("nobody answers")

    def rewound(self, fork: Fork, done: Rewound) -> None:
        self.told.append("rewound")

    def promoted(self, promotion: Promotion) -> None:
        self.told.append("promoted")

    def stop_waiting(self) -> None:
        self.told.append("stop waiting")

    async def stop_services(self) -> None:
        self.told.append("stop services")

    async def flushed(self) -> None:
        self.told.append("flushed")


@implementer(IOpenNode)
class OpenNodeDouble:
    """A slave of nobody over a real store, without services."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.slave: Any = SimpleNamespace(running=True, replica=SimpleNamespace(state=ReplicaState.CONNECTING))
        self.serving = None
        self.has_no_room = False
        self.told: list[str] = []

    def state(self) -> NodeState:
        return self.store.node_state

    def in_state(self, state: ReplicaState) -> None:
        self.told.append(f"in state {state.name}")

    def stop(self) -> Deferred[None]:
        self.told.append("stop")
        return succeed(None)

    def close_store(self) -> Deferred[None]:
        self.told.append("close store")
        return self.store.close()

    def closed(self) -> None:
        self.told.append("closed")

    def stop_following(self) -> Deferred[None]:
        self.slave.running = False
        return succeed(None)

    def register_as_slave(self, broker_id: int) -> None:
        self.told.append(f"register as slave {broker_id}")

    def fence(self, broker_id: int) -> None:
        self.told.append(f"fence {broker_id}")

    def stop_problems(self) -> list[str]:
        return []


@implementer(IMemberHost)
class MemberHostDouble:
    """The surroundings of a member whose agent does nothing."""

    leader = None

    def read_boot(self) -> Deferred[str]:
        return succeed("boot-1")

    def make_agent(self, member: MemberNode) -> FailoverAgent:
        return cast(FailoverAgent, Service())

    def addresses(self) -> Addresses:
        return Addresses("a:10912", "a:10911")

    def ask_promise(self, remoting: str, promise: Promise) -> Deferred[bool]:
        return fail(OSError("nobody answers"))


@implementer(IClusterMember)
class Promising:
    """A member that promises, or does not. ``asked`` has what it was asked for."""

    def __init__(self, is_given: bool = True) -> None:
        self.is_given = is_given
        self.asked: list[Promise] = []

    def promise(self, promise: Promise) -> bool:
        self.asked.append(promise)
        return self.is_given

    def cluster_facts(self, changes: int) -> dict[str, Any] | None:
        return None
