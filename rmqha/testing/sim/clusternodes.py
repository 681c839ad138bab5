"""Nodes with automatic failover: the product's agent, on nodes of a simulation."""

from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import deferLater
from zope.interface import implementer

from rmqha.failover.agent import FailoverAgent, Times
from rmqha.failover.keys import Member
from rmqha.failover.knownfile import note_flushed, read_known, write_known
from rmqha.failover.member import DiskFull, Following, Identity, INode, Known, NodeFacts, NodeFailed, Promise
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.ha.slave.greeting import GreetingEndpoint
from rmqha.ha.slave.service import OnFork, SlaveOptions
from rmqha.node.replicating import Replicating, StoreOpening, reopen_as_master
from rmqha.settings.settings import BrokerRole, FlushDiskType, Settings
from rmqha.store.epochs import forget_promotion, read_epochs
from rmqha.store.errors import StoreError, is_disk_full
from rmqha.store.log.recovery import Examination
from rmqha.store.messagestore import MessageStore
from rmqha.store.offline.promote import Reason
from rmqha.testing.sim.coordinator import SimCoordinator
from rmqha.testing.sim.network import Attempt
from rmqha.testing.sim.nodes import SimNode, SimSlave
from rmqha.testing.sim.process import Process, ProcessDied

CLUSTER, BROKER = "sim", "broker"
CHANGE_SECONDS = 0.01
"""Between two looks whether another change of the role is over."""
PROMISE_SECONDS = 2.0


class PromiseQuestion(Attempt):
    """A leader asks a member for a promise. ``answer_on_way`` is what the member said."""

    def __init__(self, process: Process, target: str, over: Any, promise: Promise) -> None:
        super().__init__(process, target, PROMISE_SECONDS, over)
        self.promise = promise
        self.answer_on_way: bool | None = None


@implementer(INode)
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
        self.is_full = False
        """Whether retention calls its disk too full to take messages."""
        self.agent: FailoverAgent | None = None
        self.following: Following | None = None
        self.leadership: Leadership | None = None
        self._is_leaving = self._is_flushed = False
        self._facts: NodeFacts | None = None
        self._log_epoch = 0

    def start(self, system_calls_until_death: int | None = None) -> None:
        self.agent = self.following = self.leadership = self._facts = None
        self.master_name = ""
        self._is_leaving = self._is_flushed = False
        super().start(system_calls_until_death)

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

    # What differs from a node whose roles an operator gives

    def _settings_to_run(self) -> Settings:
        return replace(self.configured, broker_role=BrokerRole.SLAVE)

    def _way_to_master(self, process: Process) -> IStreamClientEndpoint | None:
        return None if self.following is None else super()._way_to_master(process)

    def _endpoint_of_master(self, process: Process) -> IStreamClientEndpoint:
        assert self.following is not None, "it follows the leader"
        return GreetingEndpoint(super()._endpoint_of_master(process), self.following.hello)

    def _leadership(self) -> Leadership | None:
        return self.leadership if self.is_master else None

    def run(self, process: Process, replicating: Replicating) -> None:
        if not self.is_master and self.following is not None:
            hello = self.following.hello.encode()
            self.options = SlaveOptions(on_diverged=OnFork.REWIND, on_ahead=OnFork.REWIND, hello=hello)
            super().run(process, replicating)
        else:
            SimNode.run(self, process, replicating)

    def _opened(self, process: Process, store: MessageStore) -> None:
        super()._opened(process, store)
        listed = read_epochs(store.root, self.disk)
        self._log_epoch = listed[-1].epoch if listed else 0
        if self.agent is None:
            self.agent = self._make_agent(process)
            self.agent.startService()

    def _make_agent(self, process: Process) -> FailoverAgent:
        identity = Identity(
            CLUSTER,
            BROKER,
            self.name,
            self.world.random.randbytes(16),
            is_founder=self.name == "master",
            priority=self.priority,
        )
        client = self.coordinator.client(process)
        return FailoverAgent(identity, client, self, Times(process.clock, self.now, self.wall))

    def _stop(self, process: Process, store: MessageStore) -> None:
        """The agent leaves the cluster first, and a change of the role ends."""
        if self.agent is not None and not self._is_leaving:
            self._is_leaving = True
            self.agent.stopService().addBoth(lambda _: Deferred.fromCoroutine(self._stop_when_unchanged(process)))

    async def _stop_when_unchanged(self, process: Process) -> None:
        while self.is_changing:
            await deferLater(process.clock, CHANGE_SECONDS)
        if self.store is not None:
            process.call(SimSlave._stop, self, process, self.store)

    def _note_flushed(self, process: Process) -> Deferred[None]:
        self._is_flushed = True
        return process.run_in_thread(partial(note_flushed, self.configured.store_path_root_dir, self.boot, self.disk))

    # INode

    def facts(self) -> NodeFacts:
        store = self.store
        if store is not None:
            self._facts = NodeFacts(
                store.node_state.store_id,
                self.boot,
                self.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
                store.commit_log.verified_offset,
                store.commit_log.min_offset,
                max(self._log_epoch, store.node_state.epoch),
                "SERVING" if self.service is None else self.service.replica.state.name,
                self.name,
                self.name,
                is_full=self.is_full,
                is_proved=store.node_state.unproved_from is None,
            )
        assert self._facts is not None, "the store was open when the agent was made"
        return self._facts

    def read_known(self) -> Awaitable[Known]:
        return self._in_thread(partial(read_known, self.configured.store_path_root_dir, self.disk))

    def write_known(self, known: Known) -> Awaitable[None]:
        return self._in_thread(partial(write_known, self.configured.store_path_root_dir, known, self.disk))

    async def check_room(self) -> None:
        if self.disk.full:
            raise DiskFull("the disk is full")

    async def _in_thread(self, function: Any) -> Any:
        process = self.process
        assert process is not None
        try:
            return await process.run_in_thread(function)
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(str(error)) from error
            process.clock.callLater(0, process.die, f"exit 8: {error}")
            raise NodeFailed(str(error)) from error

    async def follow(self, leader: Following | None, broker_id: int) -> None:
        if leader is None and self.following is None and not self.is_master:
            return
        try:
            if self.store is not None:
                self.store.check_room()
        except OSError as error:
            raise DiskFull(str(error)) from error
        self.say(f"is to follow {'nobody' if leader is None else leader.name}")
        await self._change_role(partial(self._reopen_as_slave, leader))

    async def _change_role(self, change: Any) -> None:
        """One change at a time. Raises NodeFailed."""
        process = self.process
        assert process is not None
        while self.is_changing:
            await deferLater(process.clock, CHANGE_SECONDS)
        if self.store is None or self.stopping or not process.alive:
            raise NodeFailed("the node stops")
        self.is_changing = True
        try:
            opened = await change(process, self.store)
        except (StoreError, OSError) as error:
            process.clock.callLater(0, process.die, f"cannot change its role: {error}")
            raise NodeFailed(str(error)) from error
        self.is_changing = False
        self._opened(process, opened)
        if self.stopping:
            raise NodeFailed("the node stops")

    async def _reopen_as_slave(self, leader: Following | None, process: Process, store: MessageStore) -> MessageStore:
        await self._stop_services(store)
        await self._close_to_open_again()
        forget_promotion(store.root, self.disk)
        self.settings, self.following, self.leadership = self._settings_to_run(), leader, None
        self.master_name = "" if leader is None else leader.name
        machine = self._machine_of(process)
        return await StoreOpening(self.settings, machine, partial(self._way_to_master, process)).run()

    async def stop_following(self) -> int:
        process = self.process
        assert process is not None
        while self.is_changing:
            await deferLater(process.clock, CHANGE_SECONDS)
        if self.service is not None and self.service.running:
            await self.service.stopService()
        self.following, self.master_name = None, ""
        if self.store is None:
            raise NodeFailed("the node stops")
        self.say(f"follows nobody, its log ends at {self.log.verified_offset}")
        return self.log.verified_offset

    async def lead(self, leadership: Leadership, cause: str) -> int:
        self.say(f"is to lead in epoch {leadership.epoch}: {cause}")
        self.starts_at = -1
        await self._change_role(partial(self._reopen_as_leader, leadership, cause))
        return self.starts_at

    async def _reopen_as_leader(
        self, leadership: Leadership, cause: str, process: Process, store: MessageStore
    ) -> MessageStore:
        before, machine = self.state(), self._machine_of(process)
        await self._stop_services(store)

        def opening(known: Examination) -> StoreOpening:
            self.leadership = leadership
            self.settings = replace(self.configured, broker_role=BrokerRole.SYNC_MASTER)
            return StoreOpening(self.settings, machine, known_log=known)

        reason = Reason(cause, leadership.epoch)
        opened, promotion = await reopen_as_master(
            store, self._close_to_open_again, opening, BrokerRole.SYNC_MASTER, before, machine, reason
        )
        self.starts_at = promotion.end
        self.world.promoted(self, promotion)
        return opened

    def fence(self) -> None:
        if self.process is None or not self.process.alive or self.store is None:
            return
        self.say("is fenced")
        self.store.end_puts()
        if self.serving is not None:
            self.serving.factory.close_connections()

    def give_up(self, reason: str) -> None:
        process = self.process
        if process is not None and process.alive:
            self.world.note(f"{self.name}: {reason}")

    async def reinit(self) -> None:
        raise NodeFailed("not simulated")

    @property
    def members(self) -> SyncMembers | None:
        serving = self.serving
        return None if serving is None else serving.members

    async def ask_promise(self, member: Member, promise: Promise) -> bool:
        process, network = self.process, self.world.network
        assert process is not None
        question = PromiseQuestion(process, member.name, network.over, promise)
        network.attempts.append(question)
        try:
            return bool(await question.answer)
        except ProcessDied:
            raise
        except Exception:  # no answer, or a refusal
            return False
