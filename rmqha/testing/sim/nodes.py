"""Nodes of a simulation: the real services of each role, on a disk, a network and a clock in memory."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, execute, succeed
from twisted.internet.error import ConnectError, ConnectionClosed, TimeoutError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.ha.admission.allowlist import AllowList, SlaveCheck
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.forkprobe import OurLog, find_fork_with_master
from rmqha.ha.slave.questions import MasterAccess
from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.selfrepair import SourceUnreachable
from rmqha.ha.slave.slaveservice import HASlaveService, SlaveOptions
from rmqha.ha.slave.states import COPYING, VERDICTS, ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.wallclock import IWallClock
from rmqha.net.endpoints import ToldEndpoint
from rmqha.node.core import RoleChanger
from rmqha.node.interfaces import IHost, IOpenNode
from rmqha.node.plan import NodePlan
from rmqha.node.replicating import CannotRepair, Replicating, state_of_log
from rmqha.settings.settings import BrokerRole, Settings, make_settings
from rmqha.store.epochs import promoted_role
from rmqha.store.errors import StoreError
from rmqha.store.examining import examine_store, open_log
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.recovery import LogDamaged, MayCut
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import NotPromotable, Promotion, check_promotable, plan_promotion, promote
from rmqha.store.offline.rewind import Rewound, needs_rewind, rewind, tail_of
from rmqha.testing.sim.audit import DELAY_SECONDS
from rmqha.testing.sim.disk import SimDisk
from rmqha.testing.sim.network import End, Network
from rmqha.testing.sim.process import Process, ProcessDied
from rmqha.wire.brokerinfo import MasterRange

Work = Callable[[Process], Coroutine[Any, Any, str]]
"""What a command does; it returns a line for the trace."""
CORRUPT = "the store is corrupt"
EXPECTED = (StoreError, OSError, SourceUnreachable, ProcessDied, ConnectError, ConnectionClosed, TimeoutError)
"""What a command may fail with."""
MAX_CONNECTIONS = 500
"""Half of the files that a simulated process may open."""
COMMON_SETTINGS = {
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "7",
    "maxIndexNum": "30",
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAY_SECONDS),
}
"""Small files, so that queues and the index have several; short delays."""


@lru_cache(maxsize=256)
def settings_of(properties: tuple[tuple[str, str], ...]) -> Settings:
    """Settings by RocketMQ's keys."""
    return make_settings({**COMMON_SETTINGS, **dict(properties)})


@dataclass(frozen=True, slots=True)
class World:
    """What all nodes share.

    ``say`` writes a line of the trace for a name. ``note`` is called with what is wrong, the others with a node:
    ``not_repaired`` before it is opened by force, ``opened`` when its store is open, ``closed`` when it will be again,
    ``planned`` with what a promotion is to do, ``promoted`` with what it did, ``rewinding`` before a log is cut,
    ``rewound`` after that, and ``down`` when its process ends.
    """

    clock: Clock
    network: Network
    random: Random
    now_ms: Callable[[], int]
    say: Callable[[str, str], None]
    note: Callable[[str], None]
    not_repaired: Callable[["SimNode"], None]
    opened: Callable[["SimNode"], None]
    closed: Callable[["SimNode"], None]
    planned: Callable[["SimNode", Promotion, NodeState | None], None]
    promoted: Callable[["SimNode", Promotion], None]
    rewinding: Callable[["SimSlave", Fork], None]
    rewound: Callable[["SimSlave"], None]
    down: Callable[["SimNode", Process, str], None]


@implementer(IWallClock)
class WallClockOfWorld:
    """The time of day of all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_ms()


@implementer(IOpenNode)
class SimOpenNode:
    """The services of a node over its open store."""

    def __init__(self, host: "SimHost", store: MessageStore) -> None:
        self._host = host
        self._node = node = host.node
        self._plan = host.core.plan
        self.store = store
        self.slave: HASlaveService | None = None
        self.serving: LogServing | None = None
        self.replicating = Replicating(store, self._plan.settings, host, self)
        self.schedule = ScheduleMessageService(
            store.root / CONFIG_FOLDER, store, self._plan.settings, host.clock, WallClockOfWorld(node.world)
        )
        """What delivers delayed messages while it is a master, and takes its master's delay offsets otherwise."""

    def start(self) -> None:
        """Start the services."""
        plan, host, node = self._plan, self._host, self._node
        leadership = None if plan.member is None else plan.member.leadership
        check = SlaveCheck(host.clock, node.allow_list)
        self.serving = self.replicating.serve_slaves(check, MAX_CONNECTIONS, leadership)
        self.serving.factory.doStart()
        self.schedule.startService()
        if isinstance(node, SimSlave) and not node.is_master:
            access = MasterAccess(host.endpoint_of_master(), host.ask_master(), lambda: node.master_name)
            self.slave = self.replicating.follow(plan.slave, access)
            self.slave.startService()
        self.replicating.keep_state().startService()

    @property
    def has_no_room(self) -> bool:
        return self._node.is_full

    def state(self) -> NodeState:
        return self._node.state()

    def in_state(self, state: ReplicaState) -> None:
        assert isinstance(self._node, SimSlave), "it follows a master"
        self._node.in_state(state)

    def stop(self) -> Deferred[None]:
        return self.stop_following().addCallback(lambda _: self._stop_others())

    def stop_following(self) -> Deferred[None]:
        slave = self.slave
        return succeed(None) if slave is None or not slave.running else slave.stopService()

    def _stop_others(self) -> Deferred[None]:
        serving, state_file = self.serving, self.replicating.state_file
        assert serving is not None
        assert state_file is not None

        def undelivered(_: object) -> Deferred[None]:
            self.store.end_puts()
            serving.factory.close_connections()
            serving.factory.doStop()
            return state_file.stopService()

        return self.schedule.stopService().addCallback(undelivered)

    def close_store(self) -> Deferred[None]:
        return self.store.close(self.replicating.flusher, self.state)

    def closed(self) -> None:
        self._node.world.closed(self._node)
        self._host.opened = None

    def register_as_slave(self, broker_id: int) -> None:
        pass  # there are no name servers

    def fence(self, broker_id: int) -> None:
        self._node.say("is fenced")
        self.store.end_puts()
        if self.serving is not None:
            self.serving.factory.close_connections()

    def stop_problems(self) -> list[str]:
        return []


@implementer(IHost)
class SimHost:
    """A process of a simulated machine: a node runs there, as a real one runs in a real process."""

    core: RoleChanger

    def __init__(self, node: "SimNode", process: Process) -> None:
        self.node = node
        self.process = process
        self.clock = process.clock
        self.disk = node.disk
        self.opened: SimOpenNode | None = None
        self._was_open = False

    def now_ms(self) -> int:
        return self.node.world.now_ms()

    def run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        """The first opening of the store takes no time, unless the log is repaired."""
        return self.process.run_in_thread(function) if self._was_open else execute(function)

    def disk_failed(self, failure: Failure) -> None:
        if failure.check(OSError):
            self.clock.callLater(0, self.process.die, f"exit {ExitCode.IO_ERROR.value}: {failure.getErrorMessage()}")

    def use(self, plan: NodePlan) -> None:
        self.node.use(plan)

    async def prepare(self) -> None:
        self.core.take_role()

    def way_to_master(self) -> IStreamClientEndpoint | None:
        return None if self.node.is_master else self.core.plan.master

    def endpoint_of_master(self) -> IStreamClientEndpoint:
        """The way to the master; one that leads nowhere yet for a slave of nobody."""
        return self.core.plan.master or ToldEndpoint(self.clock)

    def ask_master(self) -> Callable[[bool], Awaitable[MasterView]] | None:
        """What asks the master's remoting port; None if the slave does not know that port."""
        node = self.node
        if not isinstance(node, SimSlave) or not node.remoting or self.core.plan.master is None:
            return None
        return lambda with_size: node.world.network.ask(self.process, node.master_name)

    async def open_store(self, opening: Awaitable[MessageStore]) -> MessageStore:
        """Do what an operator does who has no replica, or one that cannot help: go on without the bad bytes.

        No simulated disk takes back what was flushed, unless it rots, so that only unflushed bytes are cut by that: the
        oracle looks. Raises StoreError, OSError.
        """
        try:
            return await opening
        except (LogDamaged, CannotRepair) as error:
            if self._was_open:
                raise
            node = self.node
            node.say(f"is opened by force: {error}")
            node.world.not_repaired(node)
            return MessageStore(
                node.settings, may_cut=MayCut.ANYTHING, disk=node.disk, wall=WallClockOfWorld(node.world)
            )

    async def run(self, store: MessageStore) -> SimOpenNode:
        self._was_open = True
        self.opened = SimOpenNode(self, store)
        found = store.recovery
        problem = f", {found.problem}" if found.problem else ""
        self.node.say(f"recovered {found.min_offset}..{found.end}, checked from {found.checked_from}{problem}")
        self.opened.start()
        return self.opened

    def started(self) -> None:
        self.node.world.opened(self.node)

    async def find_fork(self) -> Fork:
        node = self.node
        assert isinstance(node, SimSlave)
        assert self.opened is not None
        store = self.opened.store
        node.say("looks for the place where its log and its master's part")
        try:
            end, doubted = store.commit_log.verified_offset, store.node_state.unproved_from
            fork = await node.find_fork(self.process, self.endpoint_of_master(), store.commit_log, end, doubted)
        except Exception as error:  # the core tells it to a log that nobody reads here
            node.say(f"is not rewound: {error}")
            raise
        if fork.offset < fork.our_end:
            node.world.rewinding(node, fork)
        return fork

    def rewound(self, fork: Fork, done: Rewound) -> None:
        assert isinstance(self.node, SimSlave)
        self.node.world.rewound(self.node)

    def promoted(self, promotion: Promotion) -> None:
        self.node.world.promoted(self.node, promotion)

    def stop_waiting(self) -> None:
        pass  # whom it waits for, answers or is gone

    async def stop_services(self) -> None:
        if self.opened is not None:
            await self.opened.stop()

    async def flushed(self) -> None:
        await self.node.flushed()

    def leave(self, code: ExitCode, reason: str) -> None:
        """A slave's work is done, or it cannot go on."""
        self.process.die(f"exit {code.value}: {reason}")

    def start_rewind(self) -> bool:
        return self.core.start_rewind()

    def stop_with(self, code: ExitCode, reason: str) -> None:
        found = f"{CORRUPT}: {reason}" if code is ExitCode.CORRUPT else f"exit {code.value}: {reason}"
        self.clock.callLater(0, self.process.die, found)

    @property
    def is_changing(self) -> bool:
        """Whether the role changes, or the log is rewound, also while the node is to stop."""
        return self._was_open and self.core.is_working

    async def stop(self) -> None:
        """As for SIGTERM: the process ends when all is flushed, or the repair is given up."""
        await self.node.leave()
        await self.core.stop()
        if self.opened is None:
            self.process.die("stopped before its store was open")
        else:
            self.clock.callLater(0, self.process.die, "stopped")


class SimNode:
    """A machine with a disk, and the process that runs on it, if one does.

    Only hosts of ``allow_list`` may be its slaves, None lets all.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        properties: Mapping[str, str],
        world: World,
        allow_list: AllowList | None = None,
    ) -> None:
        self.name = name
        root.mkdir()
        self.configured = replace(settings_of(tuple(properties.items())), store_path_root_dir=root)
        self.settings = self.configured
        """What it runs with: a promotion may have made a master of it."""
        self.disk = SimDisk(world.random)
        self.power = True
        self.process: Process | None = None
        self.host: SimHost | None = None
        """The node in the process."""
        self.allow_list = allow_list
        self.stopping = False
        self.is_full = False
        """Whether retention calls its disk too full to take messages."""
        self.runs_command = False
        self.world = world
        self.say: Callable[[str], None] = partial(world.say, name)

    @property
    def core(self) -> RoleChanger | None:
        """What opens its store, and changes its role, in its process."""
        return None if self.process is None or self.host is None else self.host.core

    @property
    def opened(self) -> SimOpenNode | None:
        """What runs over its open store."""
        return None if self.host is None else self.host.opened

    @property
    def store(self) -> MessageStore | None:
        """Its store, while that is open."""
        return None if self.opened is None else self.opened.store

    @property
    def log(self) -> CommitLog:
        """The log, while the node runs."""
        assert self.store is not None, "the node is down"
        return self.store.commit_log

    @property
    def serving(self) -> LogServing | None:
        """What serves the log, while the node runs."""
        return None if self.process is None or self.opened is None else self.opened.serving

    @property
    def schedule(self) -> ScheduleMessageService | None:
        """What delivers delayed messages, while the node runs."""
        return None if self.process is None or self.opened is None else self.opened.schedule

    @property
    def is_master(self) -> bool:
        """Whether it runs as a master, or ran as one the last time."""
        return self.settings.broker_role is not BrokerRole.SLAVE

    @property
    def runs(self) -> bool:
        """Whether its store is open and its services run."""
        return self.process is not None and self.store is not None

    @property
    def is_changing(self) -> bool:
        """Whether it is being promoted or rewound, by itself or by a command."""
        if self.process is None:
            return False
        return self.runs_command or (self.host is not None and self.host.is_changing)

    @property
    def repairs(self) -> bool:
        """Whether a process runs that has not opened its store yet: it repairs it."""
        return self.process is not None and self.store is None and not self.is_changing

    def start(self, system_calls_until_death: int | None = None) -> None:
        """Start a process: recovery, a repair if need be, then the services."""
        assert self.process is None, "it runs already"
        self.power, self.stopping, self.runs_command = True, False, False
        self.process = process = Process(self.name, self.world.clock, self._died, lambda: self.power)
        process.system_calls_until_death = system_calls_until_death
        self.disk.system_call = process.system_call
        self.host = host = SimHost(self, process)
        self.make_core(host)
        process.call(self.open, host)

    def make_core(self, host: SimHost) -> None:
        """Make what runs in a new process."""
        host.core = RoleChanger(self.plan(host.process), host)

    def use(self, plan: NodePlan) -> None:
        """Its process opens the store as the plan says, the next time."""
        self.settings = plan.settings

    def open(self, host: SimHost) -> None:
        """Start to open the store."""
        host.core.open()

    def plan(self, process: Process) -> NodePlan:
        """What it is configured to be, in this process."""
        return NodePlan(self.configured)

    def state(self) -> NodeState:
        """What it writes into its state.json now."""
        assert self.store is not None, "the node is down"
        return replace(state_of_log(self.store, self.settings, self.serving), state="RUNNING")

    def accept(self, far: End) -> None:
        """Somebody connects to its HA port, and this is the end of the line."""
        protocol = None if self.serving is None else self.build_protocol(far.getPeer())
        if protocol is None:  # it is not allowed, or the node has closed its port meanwhile
            far.loseConnection()
        else:
            far.attach(protocol)

    def build_protocol(self, addr: Any) -> HAMasterProtocol | None:
        """Somebody connects to the HA port."""
        assert self.serving is not None
        return self.serving.factory.buildProtocol(addr)

    def view(self, with_segment_size: bool = True) -> MasterView:
        """What its remoting port says now."""
        log = self.log
        empty = log.min_offset == log.verified_offset
        smallest = log.verified_offset if empty else log.min_offset
        return MasterView(smallest, log.verified_offset, segment_size=log.segment_size if with_segment_size else None)

    def stop(self) -> None:
        """Stop as for SIGTERM; the process ends when all is flushed, or the repair is given up."""
        assert self.process is not None
        assert self.host is not None
        self.stopping = True
        self.process.call(self._stop, self.host)

    def _stop(self, host: SimHost) -> None:
        Deferred.fromCoroutine(host.stop()).addErrback(partial(self.failed, host.process))

    def failed(self, process: Process, failure: Failure) -> None:
        """What the process did has ended with an error that it should have dealt with."""
        if process.alive and failure.check(ProcessDied) is None:
            self.world.note(failure.getTraceback())

    async def leave(self) -> None:
        """The node is to stop."""

    async def flushed(self) -> None:
        """The store is closed, and all of it is on the disk."""

    def _died(self, process: Process, reason: str) -> None:
        self.process = None
        self.runs_command = False
        self.disk.locks.clear()
        self.world.down(self, process, reason)
        self.host = None


class SimSlave(SimNode):
    """A slave of ``master_name``; ``options`` are the command line's; with ``remoting`` it asks the remoting port."""

    def __init__(self, *args: Any, master_name: str, options: SlaveOptions, remoting: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self.is_promotable = False
        """Whether its store was a slave's when an operator began to promote it."""
        self.verdict: str | None = None
        self.master_name = master_name
        self.options = options
        self.remoting = remoting

    @property
    def service(self) -> HASlaveService | None:
        """What copies the master's log, while the node runs."""
        return None if self.process is None or self.opened is None else self.opened.slave

    def start(self, system_calls_until_death: int | None = None) -> None:
        self.verdict = None
        super().start(system_calls_until_death)

    def plan(self, process: Process) -> NodePlan:
        return NodePlan(self.configured, self.options, self.world.network.endpoint(process, self.master_name))

    def state(self) -> NodeState:
        slave, state = self.service, super().state()
        if slave is None:
            return replace(state, state="SERVING", verdict=None, master=None, lag_bytes=None, last_contact=None)
        return replace(
            state,
            state=slave.replica.state.name,
            lag_bytes=slave.lag_bytes,
            lag_seconds=slave.lag_seconds,
            master=self.master_name,
            last_contact=slave.last_contact,
            contact_limit=slave.contact_limit,
            since=slave.since,
            reason=slave.reason,
            verdict=self.verdict,
        )

    def in_state(self, state: ReplicaState) -> None:
        """Its replica is in this state now."""
        if state in VERDICTS:
            self.verdict = state.name
        elif state in COPYING:
            self.verdict = None

    def configure_role(self, role: BrokerRole) -> None:
        """The next start is in this role, unless a promotion says otherwise."""
        self.configured = replace(self.configured, broker_role=role)

    def promote(self, role: BrokerRole) -> None:
        """What an order of rmqha promote does to a node that runs."""
        assert self.host is not None
        self.host.process.call(self._promote, self.host, role)

    def _promote(self, host: SimHost, role: BrokerRole) -> None:
        core = host.core
        done = core.change(core.become_master(core.plan.as_master(role)))
        done.addErrback(lambda failure: None if failure.check(OSError) else self.failed(host.process, failure))

    async def find_fork(
        self, process: Process, endpoint: IStreamClientEndpoint, log: CommitLog, end: int, doubted_from: int | None
    ) -> Fork:
        """Where this log and the master's part."""
        network, clock = self.world.network, process.clock

        async def ask_range() -> MasterRange:
            view = await network.ask(process, self.master_name)
            return MasterRange(view.min_offset or 0, view.max_offset or 0, is_ours=True, settling_seconds=0.0)

        ask = ask_range if self.remoting else None
        return await find_fork_with_master(OurLog(log, end, doubted_from), endpoint, ask, clock)

    # Commands, on a store whose node is stopped

    def command(self, name: str, work: Work, calls: int | None) -> None:
        """An operator runs a command on this store; it dies, or loses its machine's power, before a system call."""
        assert self.process is None, "its node runs"
        self.power, self.stopping = True, False
        self.process = process = Process(self.name, self.world.clock, self._died, lambda: self.power)
        self.runs_command, process.system_calls_until_death = True, calls
        self.disk.system_call = process.system_call
        self.say(f"rmqha {name}")

        def done(result: str | Failure) -> None:
            if not process.alive:
                return
            text = f"failed: {result.getErrorMessage()}" if isinstance(result, Failure) else result
            if isinstance(result, Failure) and not result.check(*EXPECTED):
                self.world.note(result.getTraceback())
            process.clock.callLater(0, process.die, f"rmqha {name}: {text}")

        process.call(lambda: Deferred.fromCoroutine(work(process)).addBoth(done))

    async def promote_offline(self, role: BrokerRole, force: bool) -> str:
        """As rmqha promote does to a store."""
        root, disk, settings = self.configured.store_path_root_dir, self.disk, self.configured
        state = NodeState.read(root, disk)
        try:
            check_promotable(root, state, force, disk)
        except NotPromotable as refused:
            if self.is_promotable and refused.code is ExitCode.USAGE and promoted_role(root, disk) is None:
                self.world.note(f"{self.name} was a slave before its promotion was interrupted, and now: {refused}")
            raise
        planned = plan_promotion(settings, role, state, disk)
        self.world.planned(self, planned, state)
        promotion = promote(settings, role, self.world.now_ms(), disk=disk)
        self.world.promoted(self, promotion)
        return f"promoted at {promotion.end}, epoch {promotion.epoch}"

    async def rewind_offline(self, process: Process) -> str:
        """As rmqha rewind does to a store."""
        settings, disk = self.configured, self.disk
        state = NodeState.read(settings.store_path_root_dir, disk)
        examined = examine_store(settings, disk=disk)
        if examined.damage is not None:  # the new master does not have these bytes: rmqha recover goes on without them
            self.say(f"rmqha recover: {LogDamaged(settings.store_path_root_dir, examined.damage)}")
            MessageStore(settings, may_cut=MayCut.ANYTHING, disk=disk, wall=WallClockOfWorld(self.world)).close_now()
            examined = examine_store(settings, disk=disk)
        log = open_log(settings, owned=False, disk=disk)
        endpoint = self.world.network.endpoint(process, self.master_name)
        try:
            doubted = None if state is None else state.doubted_from(examined.clean_stop, examined.checked_from)
            fork = await self.find_fork(process, endpoint, log, examined.found.end, doubted)
            tail = tail_of(log, fork, 0 if state is None else state.confirmed_offset)
        finally:
            log.close()
        if not needs_rewind(settings.store_path_root_dir, fork, disk):
            return "nothing to rewind"
        self.world.rewinding(self, fork)
        rewind(settings, fork.offset, disk)
        self.world.rewound(self)
        return f"rewound to {fork.offset}, {sum(tail.messages.values())} messages are cut"
