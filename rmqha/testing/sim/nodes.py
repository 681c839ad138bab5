"""Nodes of a simulation: the real services of each role, on a disk, a network and a clock in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.exitcodes import ExitCode
from rmqha.ha.admission.allowlist import AllowList, SlaveCheck
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.service import HASlaveService, MasterAccess, SlaveOptions
from rmqha.replicating import CannotRepair, Machine, Replicating, StoreOpening, state_of_log
from rmqha.settings import BrokerRole, Settings, make_settings
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.recovery import LogDamaged, MayCut
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NodeState
from rmqha.store.opening import OpeningStopped
from rmqha.testing.sim.audit import DELAY_SECONDS
from rmqha.testing.sim.disk import SimDisk
from rmqha.testing.sim.network import Network
from rmqha.testing.sim.process import Process, ProcessDied

CORRUPT = "the store is corrupt"
MOST_CONNECTIONS = 500
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
    ``not_repaired`` before it is opened by force, ``opened`` when its store is open, ``down`` when its process ends.
    """

    clock: Clock
    network: Network
    random: Random
    now_ms: Callable[[], int]
    say: Callable[[str, str], None]
    note: Callable[[str], None]
    not_repaired: Callable[["SimNode"], None]
    opened: Callable[["SimNode"], None]
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
        self.settings = replace(settings_of(tuple(properties.items())), store_path_root_dir=root)
        self.disk = SimDisk(world.random)
        self.power = True
        self.process: Process | None = None
        self.store: MessageStore | None = None
        self.replicating: Replicating | None = None
        self._opening: StoreOpening | None = None
        self._schedule: ScheduleMessageService | None = None
        self._allow_list = allow_list
        self.stopping = False
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
    def runs(self) -> bool:
        """Whether its store is open and its services run."""
        return self.process is not None and self.store is not None

    def start(self, system_calls_until_death: int | None = None) -> None:
        """Start a process: recovery, a repair if need be, then the services."""
        assert self.process is None, "it runs already"
        self.power, self.stopping = True, False
        self.process = process = Process(self.name, self.world.clock, self._died, lambda: self.power)
        process.system_calls_until_death = system_calls_until_death
        self.disk.system_call = process.system_call
        process.call(self._open, process)

    def _open(self, process: Process) -> None:
        """Open the store. That takes no time, unless it is repaired."""
        machine = Machine(process.clock, execute, self._disk_failed, self.disk, self.world.now_ms)
        self._opening = StoreOpening(self.settings, machine, partial(self._way_to_master, process))
        opened = Deferred.fromCoroutine(self._opening.run())
        opened.addErrback(self._open_by_force)
        opened.addCallback(lambda store: process.call(self._opened, process, store))
        opened.addErrback(partial(self._cannot_open, process))

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
        if failure.check(ProcessDied):
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
        serving = replicating.serve_slaves(SlaveCheck(process.clock, self._allow_list), MOST_CONNECTIONS)
        serving.factory.doStart()
        if self.settings.broker_role is not BrokerRole.SLAVE:
            assert self.store is not None
            folder = self.store.root / CONFIG_FOLDER
            now_ms = self.world.now_ms
            self._schedule = ScheduleMessageService(folder, self.store, self.settings, process.clock, now_ms)
            self._schedule.startService()

    @property
    def repairs(self) -> bool:
        """Whether a process runs that has not opened its store yet: it repairs it."""
        return self.process is not None and self.store is None

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
        assert self.replicating is not None
        serving, state_file = self.replicating.serving, self.replicating.state_file
        assert serving is not None
        assert state_file is not None
        if self._schedule is not None:
            self._schedule.stopService()
        store.end_puts()
        serving.factory.close_connections()
        serving.factory.doStop()
        state_file.stopService().addCallback(lambda _: process.call(self._close, process, store))

    def _close(self, process: Process, store: MessageStore) -> None:
        assert self.replicating is not None
        closing = store.close(self.replicating.flusher, self.state)
        closing.addCallbacks(
            lambda _: process.clock.callLater(0, process.die, "stopped"),
            lambda failure: process.clock.callLater(0, process.die, f"exit 8: {failure.getErrorMessage()}"),
        )

    def _died(self, process: Process, reason: str) -> None:
        self.process = self.replicating = self._opening = self._schedule = None
        self.disk.locks.clear()
        self.world.down(self, process, reason)
        self.store = None


class SimSlave(SimNode):
    """A slave of ``master_name``; ``options`` are the command line's; with ``remoting`` it asks the remoting port."""

    def __init__(self, *args: Any, master_name: str, options: SlaveOptions, remoting: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self.master_name = master_name
        self.options = options
        self.remoting = remoting

    @property
    def service(self) -> HASlaveService | None:
        """What copies the master's log, while the node runs."""
        return None if self.replicating is None else self.replicating.slave

    def _way_to_master(self, process: Process) -> IStreamClientEndpoint | None:
        return self.world.network.endpoint(process, self.master_name)

    def run(self, process: Process, replicating: Replicating) -> None:
        super().run(process, replicating)
        network = self.world.network
        ask = (lambda with_size: network.ask(process, self.master_name)) if self.remoting else None
        endpoint = network.endpoint(process, self.master_name)
        slave = replicating.follow(
            self.options,
            MasterAccess(endpoint, ask, lambda: self.master_name),
            finished=lambda code, reason: process.die(f"exit {code.value}: {reason}"),
        )
        slave.startService()

    def _stop(self, process: Process, store: MessageStore) -> None:
        assert self.service is not None
        stopped = self.service.stopService()
        stopped.addCallback(lambda _: process.call(SimNode._stop, self, process, store))
