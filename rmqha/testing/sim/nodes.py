"""Nodes of a simulation: the real services of each role, on a disk, a network and a clock in memory."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, execute, succeed
from twisted.internet.error import ConnectError, ConnectionClosed, TimeoutError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock, deferLater
from twisted.python.failure import Failure

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.ha.admission.allowlist import AllowList, SlaveCheck
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.forkprobe import MasterRange, OurLog, find_fork_with_master
from rmqha.ha.slave.questions import MasterAccess
from rmqha.ha.slave.repair import SourceUnreachable
from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.service import HASlaveService, SlaveOptions
from rmqha.ha.slave.states import VERDICTS, ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.replicating import (
    REWIND_PAUSE_SECONDS,
    CannotRepair,
    Machine,
    Replicating,
    StoreOpening,
    reopen_as_master,
    rewind_slave,
    role_to_run,
    state_of_log,
)
from rmqha.settings.settings import BrokerRole, Settings, make_settings
from rmqha.store.epochs import promoted_role
from rmqha.store.errors import StoreError
from rmqha.store.examining import examine_store, open_log
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.recovery import Examination, LogDamaged, MayCut
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import NotPromotable, Promotion, check_promotable, plan_promotion, promote
from rmqha.store.offline.rewind import needs_rewind, rewind, tail_of
from rmqha.store.opening import OpeningStopped
from rmqha.testing.sim.audit import DELAY_SECONDS
from rmqha.testing.sim.disk import SimDisk
from rmqha.testing.sim.network import Network
from rmqha.testing.sim.process import Process, ProcessDied

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
        self.store: MessageStore | None = None
        self.replicating: Replicating | None = None
        self._opening: StoreOpening | None = None
        self.schedule: ScheduleMessageService | None = None
        """What delivers delayed messages while it is a master, and takes its master's delay offsets otherwise."""
        self._allow_list = allow_list
        self.stopping = False
        self.is_changing = False
        """Whether it is being promoted or rewound, by itself or by a command."""
        self.world = world
        self.say: Callable[[str], None] = partial(world.say, name)

    @property
    def log(self) -> CommitLog:
        """The log, while the node runs."""
        assert self.store is not None, "the node is down"
        return self.store.commit_log

    @property
    def serving(self) -> LogServing | None:
        """What serves the log, while the node runs."""
        return None if self.replicating is None else self.replicating.serving

    @property
    def is_master(self) -> bool:
        """Whether it runs as a master, or ran as one the last time."""
        return self.settings.broker_role is not BrokerRole.SLAVE

    @property
    def runs(self) -> bool:
        """Whether its store is open and its services run."""
        return self.process is not None and self.store is not None

    def start(self, system_calls_until_death: int | None = None) -> None:
        """Start a process: recovery, a repair if need be, then the services."""
        assert self.process is None, "it runs already"
        self.power, self.stopping, self.is_changing = True, False, False
        self.process = process = Process(self.name, self.world.clock, self._died, lambda: self.power)
        process.system_calls_until_death = system_calls_until_death
        self.disk.system_call = process.system_call
        process.call(self._open, process)

    def _open(self, process: Process) -> None:
        """Open the store. That takes no time, unless it is repaired."""
        self.settings = self._settings_to_run()
        machine = Machine(process.clock, execute, self._disk_failed, self.disk, self.world.now_ms)
        self._opening = StoreOpening(self.settings, machine, partial(self._way_to_master, process))
        opened = Deferred.fromCoroutine(self._opening.run())
        opened.addErrback(self._open_by_force)
        opened.addCallback(lambda store: process.call(self._opened, process, store))
        opened.addErrback(partial(self._cannot_open, process))

    def _settings_to_run(self) -> Settings:
        """With the role of a promotion."""
        return role_to_run(self.configured, self.disk)

    def _way_to_master(self, process: Process) -> IStreamClientEndpoint | None:
        """Where a slave repairs its log from."""
        return None

    def _open_by_force(self, failure: Failure) -> MessageStore:
        """Do what an operator does who has no replica, or one that cannot help: go on without the bad bytes.

        No simulated disk takes back what was flushed, unless it rots, so that only unflushed bytes are cut by that: the
        oracle looks. Raises StoreError, OSError.
        """
        failure.trap(LogDamaged, CannotRepair)
        self.say(f"is opened by force: {failure.getErrorMessage()}")
        self.world.not_repaired(self)
        return MessageStore(self.settings, may_cut=MayCut.ANYTHING, disk=self.disk, now_ms=self.world.now_ms)

    def _cannot_open(self, process: Process, failure: Failure) -> None:
        if not process.alive or failure.check(ProcessDied):
            return
        if failure.check(OpeningStopped):
            process.die("stopped before its store was open")
        elif failure.check(OSError):
            process.die(f"cannot open the store: {failure.getErrorMessage()}")
        elif failure.check(StoreError):
            process.die(f"{CORRUPT}: {failure.getErrorMessage()}")
        else:
            self.world.note(failure.getTraceback())

    def _opened(self, process: Process, store: MessageStore) -> None:
        self.store = store
        machine = Machine(process.clock, process.run_in_thread, self._disk_failed, self.disk, self.world.now_ms)
        self.replicating = replicating = Replicating(store, self.settings, machine)
        found = store.recovery
        problem = f", {found.problem}" if found.problem else ""
        self.say(f"recovered {found.min_offset}..{found.end}, checked from {found.checked_from}{problem}")
        self.run(process, replicating)
        replicating.keep_state(self.state).startService()
        self.world.opened(self)

    def run(self, process: Process, replicating: Replicating) -> None:
        """Start the services."""
        check = SlaveCheck(process.clock, self._allow_list)
        serving = replicating.serve_slaves(check, MAX_CONNECTIONS, self._leadership())
        serving.factory.doStart()
        assert self.store is not None
        folder, now_ms = self.store.root / CONFIG_FOLDER, self.world.now_ms
        self.schedule = ScheduleMessageService(folder, self.store, self.settings, process.clock, now_ms)
        self.schedule.startService()

    def _leadership(self) -> Leadership | None:
        """The right to lead, with automatic failover."""
        return None

    @property
    def repairs(self) -> bool:
        """Whether a process runs that has not opened its store yet: it repairs it."""
        return self.process is not None and self.store is None and not self.is_changing

    def state(self) -> NodeState:
        """What it writes into its state.json now."""
        assert self.store is not None, "the node is down"
        return replace(state_of_log(self.store, self.settings, self.serving), state="RUNNING")

    def _disk_failed(self, failure: Failure) -> None:
        reason = f"exit {ExitCode.IO_ERROR.value}: {failure.getErrorMessage()}"
        if self.process is not None and failure.check(OSError):
            self.process.clock.callLater(0, self.process.die, reason)

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
        assert self._opening is not None
        self.stopping = True
        if self.store is None:
            self.process.call(self._opening.stop)
        else:
            self.process.call(self._stop, self.process, self.store)

    def _stop(self, process: Process, store: MessageStore) -> None:
        self._stop_services(store).addCallback(lambda _: process.call(self._close, process, store))

    def _stop_services(self, store: MessageStore) -> Deferred[None]:
        assert self.replicating is not None
        serving, state_file = self.replicating.serving, self.replicating.state_file
        assert serving is not None
        assert state_file is not None
        assert self.schedule is not None

        def undelivered(_: object) -> Deferred[None]:
            store.end_puts()
            serving.factory.close_connections()
            serving.factory.doStop()
            return state_file.stopService()

        return self.schedule.stopService().addCallback(undelivered)

    def _close(self, process: Process, store: MessageStore) -> None:
        assert self.replicating is not None
        closing = store.close(self.replicating.flusher, self.state)
        closing.addCallback(lambda _: None if store.is_broken else self._note_flushed(process))
        closing.addCallbacks(
            lambda _: process.clock.callLater(0, process.die, "stopped"),
            lambda failure: process.clock.callLater(0, process.die, f"exit 8: {failure.getErrorMessage()}"),
        )

    def _note_flushed(self, process: Process) -> Deferred[None]:
        """The store is closed, and all of it is on the disk."""
        return succeed(None)

    def _died(self, process: Process, reason: str) -> None:
        self.process = self.replicating = self._opening = self.schedule = None
        self.is_changing = False
        self.disk.locks.clear()
        self.world.down(self, process, reason)
        self.store = None


class SimSlave(SimNode):
    """A slave of ``master_name``; ``options`` are the command line's; with ``remoting`` it asks the remoting port."""

    def __init__(self, *args: Any, master_name: str, options: SlaveOptions, remoting: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self.is_promotable = False
        """Whether its store was a slave's when an operator began to promote it."""
        self.verdict: str | None = None
        self._next_rewind = 0.0
        self.master_name = master_name
        self.options = options
        self.remoting = remoting

    @property
    def service(self) -> HASlaveService | None:
        """What copies the master's log, while the node runs."""
        return None if self.replicating is None else self.replicating.slave

    def _way_to_master(self, process: Process) -> IStreamClientEndpoint | None:
        return None if self.is_master else self._endpoint_of_master(process)

    def _endpoint_of_master(self, process: Process) -> IStreamClientEndpoint:
        return self.world.network.endpoint(process, self.master_name)

    def start(self, system_calls_until_death: int | None = None) -> None:
        self.verdict, self._next_rewind = None, 0.0
        super().start(system_calls_until_death)

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

    def _in_state(self, state: ReplicaState) -> None:
        if state in VERDICTS:
            self.verdict = state.name
        elif state in (ReplicaState.CATCHING_UP, ReplicaState.IN_SYNC):
            self.verdict = None

    def run(self, process: Process, replicating: Replicating) -> None:
        super().run(process, replicating)
        if self.is_master:
            return
        network = self.world.network
        ask = (lambda with_size: network.ask(process, self.master_name)) if self.remoting else None
        endpoint = self._endpoint_of_master(process)
        slave = replicating.follow(
            self.options,
            MasterAccess(endpoint, ask, lambda: self.master_name),
            finished=lambda code, reason: process.die(f"exit {code.value}: {reason}"),
            in_state=self._in_state,
            rewind=self._start_rewind,
        )
        slave.startService()

    def _stop(self, process: Process, store: MessageStore) -> None:
        self._stop_services(store).addCallback(lambda _: process.call(self._close, process, store))

    def _stop_services(self, store: MessageStore) -> Deferred[None]:
        stopped = succeed(None) if self.service is None else self.service.stopService()
        return stopped.addCallback(lambda _: SimNode._stop_services(self, store))

    def configure_role(self, role: BrokerRole) -> None:
        """The next start is in this role, unless a promotion says otherwise."""
        self.configured = replace(self.configured, broker_role=role)

    # Promotion and rewind: what Node does around the store. Both end with services that run, or with the process.

    def promote(self, role: BrokerRole) -> None:
        """What an order of rmqha promote does to a node that runs."""
        assert self.process is not None
        self.process.call(self._change, self.process, partial(self._promote, self.process, role))

    def _start_rewind(self) -> bool:
        process = self.process
        assert process is not None
        if self.is_changing or self.stopping or process.clock.seconds() < self._next_rewind:
            return False
        self._next_rewind = process.clock.seconds() + REWIND_PAUSE_SECONDS
        self._change(process, partial(self._rewind, process))
        return True

    def _change(self, process: Process, change: Callable[[], Coroutine[Any, Any, MessageStore]]) -> None:
        self.is_changing = True
        changed = Deferred.fromCoroutine(change())
        changed.addCallback(partial(self._changed, process))
        changed.addErrback(partial(self._cannot_open, process))

    def _changed(self, process: Process, store: MessageStore) -> None:
        self.is_changing = False
        process.call(self._opened, process, store)
        if self.stopping:
            process.call(self._stop, process, store)

    async def _close_to_open_again(self) -> None:
        store, replicating = self.store, self.replicating
        assert store is not None
        assert replicating is not None
        await store.close(replicating.flusher, self.state)
        if store.is_broken:
            raise OSError("the disk refused the last flush")
        self.world.closed(self)
        self.store = self.replicating = self.schedule = None

    async def _promote(self, process: Process, role: BrokerRole) -> MessageStore:
        before, store, machine = self.state(), self.store, self._machine_of(process)
        assert store is not None
        await self._stop_services(store)

        def opening(known: Examination) -> StoreOpening:
            self.settings = replace(self.settings, broker_role=role, broker_id=0, ha_master_address="")
            return StoreOpening(self.settings, machine, known_log=known)

        opened, promotion = await reopen_as_master(store, self._close_to_open_again, opening, role, before, machine)
        self.world.promoted(self, promotion)
        return opened

    async def _rewind(self, process: Process) -> MessageStore:
        store, machine = self.store, self._machine_of(process)
        assert store is not None
        await deferLater(process.clock, 0)
        await self._stop_services(store)
        self.say("looks for the place where its log and its master's part")

        async def find_fork() -> Fork | None:
            try:
                end, doubted = store.commit_log.verified_offset, store.node_state.unproved_from
                fork = await self.find_fork(process, store.commit_log, end, doubted)
            except ProcessDied:
                raise
            except Exception as error:  # as Node does: the slave tries again
                self.say(f"is not rewound: {error}")
                return None
            if fork.offset < fork.our_end:
                self.world.rewinding(self, fork)
            return fork

        await rewind_slave(self.settings, find_fork, self._close_to_open_again, machine)
        self.world.rewound(self)
        return await StoreOpening(self.settings, machine, partial(self._way_to_master, process)).run()

    def _machine_of(self, process: Process) -> Machine:
        return Machine(process.clock, process.run_in_thread, self._disk_failed, self.disk, self.world.now_ms)

    async def find_fork(self, process: Process, log: CommitLog, end: int, doubted_from: int | None) -> Fork:
        """Where this log and the master's part."""
        network, clock = self.world.network, process.clock

        async def ask_range() -> MasterRange:
            view = await network.ask(process, self.master_name)
            return MasterRange(view.min_offset or 0, view.max_offset or 0, is_ours=True, settling_seconds=0.0)

        ask = ask_range if self.remoting else None
        endpoint = self._endpoint_of_master(process)
        return await find_fork_with_master(OurLog(log, end, doubted_from), endpoint, ask, clock)

    # Commands, on a store whose node is stopped

    def command(self, name: str, work: Work, calls: int | None) -> None:
        """An operator runs a command on this store; it dies, or loses its machine's power, before a system call."""
        assert self.process is None, "its node runs"
        self.power, self.stopping = True, False
        self.process = process = Process(self.name, self.world.clock, self._died, lambda: self.power)
        self.is_changing, process.system_calls_until_death = True, calls
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
            MessageStore(settings, may_cut=MayCut.ANYTHING, disk=disk, now_ms=self.world.now_ms).close_now()
            examined = examine_store(settings, disk=disk)
        log = open_log(settings, owned=False, disk=disk)
        try:
            doubted = None if state is None else state.doubted_from(examined.clean_stop, examined.checked_from)
            fork = await self.find_fork(process, log, examined.found.end, doubted)
            tail = tail_of(log, fork, 0 if state is None else state.confirmed_offset)
        finally:
            log.close()
        if not needs_rewind(settings.store_path_root_dir, fork, disk):
            return "nothing to rewind"
        self.world.rewinding(self, fork)
        rewind(settings, fork.offset, disk)
        self.world.rewound(self)
        return f"rewound to {fork.offset}, {sum(tail.messages.values())} messages are cut"
