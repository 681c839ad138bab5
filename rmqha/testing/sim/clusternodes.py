"""Nodes with automatic failover: the product's agent, on nodes of a simulation."""

from datetime import UTC, datetime
from typing import Any

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from rmqha.failover.agent import FailoverAgent, Times
from rmqha.failover.member import Identity, Promise
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.node.member import Addresses, IMemberHost, MemberNode
from rmqha.node.plan import NodePlan
from rmqha.testing.sim.coordinator import SimCoordinator
from rmqha.testing.sim.network import Attempt
from rmqha.testing.sim.nodes import SimHost, SimSlave
from rmqha.testing.sim.process import Process

CLUSTER, BROKER = "sim", "broker"
PROMISE_SECONDS = 2.0


class PromiseQuestion(Attempt):
    """A leader asks a member for a promise. ``answer_on_way`` is what the member said."""

    def __init__(self, process: Process, target: str, over: Any, promise: Promise) -> None:
        super().__init__(process, target, PROMISE_SECONDS, over)
        self.promise = promise
        self.answer_on_way: bool | None = None


@implementer(IMemberHost)
class SimMember:
    """A process of a ``ClusterNode``, to the member in it."""

    leader = None

    def __init__(self, node: "ClusterNode", process: Process) -> None:
        self._node = node
        self._process = process

    def read_boot(self) -> Deferred[str]:
        return succeed(self._node.boot)

    def make_agent(self, member: MemberNode) -> FailoverAgent:
        node, process = self._node, self._process
        identity = Identity(
            CLUSTER,
            BROKER,
            node.name,
            node.world.random.randbytes(16),
            is_founder=node.name == "master",
            priority=node.priority,
        )
        client = node.coordinator.client(process)
        return FailoverAgent(identity, client, member, Times(process.clock, node.now, node.wall))

    def addresses(self) -> Addresses:
        return Addresses(self._node.name, self._node.name)

    def ask_promise(self, remoting: str, promise: Promise) -> Deferred[bool]:
        network = self._node.world.network
        question = PromiseQuestion(self._process, remoting, network.over, promise)
        network.attempts.append(question)
        return question.answer


class ClusterNode(SimSlave):
    """A node of a failover cluster.

    ``rate`` is how fast its clock goes, ``boots`` how often its machine started, and ``whole_since`` which of these
    starts was the first after the last one that may have taken the end of the log.
    """

    coordinator: SimCoordinator

    def __init__(self, *args: Any, rate: float = 1.0, priority: int = 100, **more: Any) -> None:
        super().__init__(*args, **more)
        self._rate = rate
        self._clock_began = self._clock_set = 0.0
        """What its clock showed when its rate was set, and when that was."""
        self.priority = priority
        self.boots = self.whole_since = 1
        self._member: MemberNode | None = None
        self._is_flushed = False

    def start(self, system_calls_until_death: int | None = None) -> None:
        self._is_flushed = False
        super().start(system_calls_until_death)

    def make_core(self, host: SimHost) -> None:
        self._member = MemberNode(self.plan(host.process), host, SimMember(self, host.process))
        host.core = self._member.core

    def plan(self, process: Process) -> NodePlan:
        network = self.world.network
        return NodePlan(self.configured, connect=lambda name: network.endpoint(process, name))

    def use(self, plan: NodePlan) -> None:
        super().use(plan)
        self.master_name = plan.settings.ha_master_address or ""

    def open(self, host: SimHost) -> None:
        self.member.open()

    async def leave(self) -> None:
        await self.member.leave()

    async def flushed(self) -> None:
        self._is_flushed = True
        await self.member.note_flushed()

    @property
    def member(self) -> MemberNode:
        """The member of its last process."""
        assert self._member is not None, "it was started"
        return self._member

    @property
    def agent(self) -> FailoverAgent | None:
        """The agent of its process, once the store has been open."""
        return None if self.process is None or self._member is None else self._member.agent

    @property
    def leadership(self) -> Leadership | None:
        """The right to lead that it has, or had in its last process."""
        member = None if self._member is None else self._member.core.plan.member
        return None if member is None else member.leadership

    @property
    def members(self) -> SyncMembers | None:
        """What its puts wait for while it leads."""
        return self.member.members

    @property
    def boot(self) -> str:
        """The id of its machine's boot."""
        return f"boot-{self.boots}"

    def lost_power(self) -> None:
        """Its machine starts again. The log loses nothing if the last process had flushed it, and had stopped."""
        self.boots += 1
        if not self._is_flushed:
            self.whole_since = self.boots

    def is_whole_since(self, boot: str) -> bool:
        """Whether its log has lost nothing since this boot of its machine."""
        return int(boot.removeprefix("boot-")) >= self.whole_since

    def now(self) -> float:
        """CLOCK_BOOTTIME of its machine."""
        return self._clock_began + (self.world.clock.seconds() - self._clock_set) * self._rate

    def mend_clock(self) -> None:
        """Its clock is right from now on; it does not jump."""
        self._clock_began, self._clock_set, self._rate = self.now(), self.world.clock.seconds(), 1.0

    def wall(self) -> datetime:
        """The time that its machine shows."""
        return datetime.fromtimestamp(self.world.now_ms() / 1000, UTC)
