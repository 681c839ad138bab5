"""Nodes of a simulation: the real services of each role, on a disk, a network and a clock in memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.exitcodes import ExitCode
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.master.serving import LogServing, confirmed_offset
from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.service import HASlaveService, SlaveOptions
from rmqha.ops.statefile import StateFileService
from rmqha.settings import BrokerRole, Settings, make_settings
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.flush import FlushService
from rmqha.store.log.recovery import LogDamaged, MayCut
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NodeState
from rmqha.testing.sim.audit import DELAY_SECONDS
from rmqha.testing.sim.disk import SimDisk
from rmqha.testing.sim.network import Network
from rmqha.testing.sim.process import Process

CORRUPT = "the store is corrupt"
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


class SimNode:
    """A machine with a disk, and the process that runs on it, if one does.

    ``say`` writes a line of the trace; ``down`` hears when the process has ended, and why.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        properties: Mapping[str, str],
        clock: Clock,
        network: Network,
        random: Random,
        now_ms: Callable[[], int],
        say: Callable[[str, str], None],
        down: Callable[["SimNode", Process, str], None],
    ) -> None:
        self.name = name
        root.mkdir()
        self.settings = replace(settings_of(tuple(properties.items())), store_path_root_dir=root)
        self.disk = SimDisk(random)
        self.power = True
        self.process: Process | None = None
        self.store: MessageStore | None = None
        self.flusher: FlushService | None = None
        self.serving: LogServing | None = None
        self._state_file: StateFileService | None = None
        self._schedule: ScheduleMessageService | None = None
        self.stopping = False
        self.network = network
        self._clock = clock
        self._now_ms = now_ms
        self.say: Callable[[str], None] = partial(say, name)
        self._down = down

    @property
    def log(self) -> CommitLog:
        """The log, while the node runs."""
        assert self.store is not None, "the node is down"
        return self.store.commit_log

    @property
    def runs(self) -> bool:
        """Whether its store is open and its services run."""
        return self.process is not None and self.store is not None

    def start(self, system_calls_until_death: int | None = None) -> None:
        """Begin a process: recovery, then the services."""
        assert self.process is None, "it runs already"
        self.power, self.stopping = True, False
        self.process = process = Process(self.name, self._clock, self._died, lambda: self.power)
        process.system_calls_until_death = system_calls_until_death
        self.disk.system_call = process.system_call
        process.call(self._open, process)

    def _open(self, process: Process) -> None:
        try:
            store = self._open_store()
        except OSError as error:
            process.die(f"cannot open the store: {error}")
            return
        except StoreError as error:
            process.die(f"{CORRUPT}: {error}")
            return
        self.store = store
        self.flusher = store.start_flushing(process.clock, process.run_in_thread, self._disk_failed)
        store.start_dispatching(process.clock, self._disk_failed)
        found = store.recovery
        problem = f", {found.problem}" if found.problem else ""
        self.say(f"recovered {found.min_offset}..{found.end}, checked from {found.checked_from}{problem}")
        self.run(process, store)
        self._state_file = StateFileService(
            store.root, self.state, process.clock, process.run_in_thread, self._disk_failed, self.disk
        )
        self._state_file.startService()

    def _open_store(self) -> MessageStore:
        """Open the store; where a loss of power has damaged the log, do what an operator without a replica does.

        No simulated disk takes back what was flushed, so that nothing but unflushed bytes is ever cut by that: the
        oracle looks. Raises StoreError, OSError.
        """
        opening = partial(MessageStore, self.settings, disk=self.disk, now_ms=self._now_ms)
        try:
            return opening()
        except LogDamaged as damaged:
            self.say(f"is opened by force: {damaged.damage}")
            return opening(may_cut=MayCut.ANYTHING)

    def run(self, process: Process, store: MessageStore) -> None:
        """Start the services."""
        self.serving = LogServing(store, self.settings, process.clock)
        self.serving.factory.doStart()
        if self.settings.broker_role is not BrokerRole.SLAVE:
            folder = store.root / CONFIG_FOLDER
            self._schedule = ScheduleMessageService(folder, store, self.settings, process.clock, self._now_ms)
            self._schedule.start()

    def state(self) -> NodeState:
        """What it writes into its state.json now."""
        assert self.store is not None, "the node is down"
        store = self.store
        offsets = store.offsets(confirmed_offset(store, self.settings, self.serving))
        return replace(store.node_state, role=self.settings.broker_role.value, state="RUNNING", offsets=offsets)

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
        """Stop as for SIGTERM; the process ends when all is flushed."""
        assert self.process is not None
        assert self.store is not None
        self.stopping = True
        self.process.call(self._stop, self.process, self.store)

    def _stop(self, process: Process, store: MessageStore) -> None:
        assert self.serving is not None
        assert self._state_file is not None
        if self._schedule is not None:
            self._schedule.stop()
        store.end_puts()
        self.serving.factory.close_connections()
        self.serving.factory.doStop()
        self._state_file.stopService().addCallback(lambda _: process.call(self._close, process, store))

    def _close(self, process: Process, store: MessageStore) -> None:
        closing = store.close(self.flusher, self.state)
        closing.addCallbacks(
            lambda _: process.clock.callLater(0, process.die, "stopped"),
            lambda failure: process.clock.callLater(0, process.die, f"exit 8: {failure.getErrorMessage()}"),
        )

    def _died(self, process: Process, reason: str) -> None:
        self.process = self.flusher = self.serving = self._state_file = self._schedule = None
        self.disk.locked.clear()
        self._down(self, process, reason)
        self.store = None


class SimSlave(SimNode):
    """A slave of ``master_name``; ``options`` are the command line's; with ``remoting`` it asks the remoting port."""

    def __init__(self, *args: Any, master_name: str, options: SlaveOptions, remoting: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self.master_name = master_name
        self.options = options
        self.remoting = remoting
        self.service: HASlaveService | None = None

    def run(self, process: Process, store: MessageStore) -> None:
        super().run(process, store)
        assert self.flusher is not None
        ask = (lambda with_size: self.network.ask(process, self.master_name)) if self.remoting else None
        self.service = HASlaveService(
            store,
            self.flusher,
            self.options,
            self.network.endpoint(process, self.master_name),
            ask,
            process.clock,
            finished=lambda code, reason: process.die(f"exit {code.value}: {reason}"),
            disk_failed=self._disk_failed,
        )
        self.service.startService()

    def _stop(self, process: Process, store: MessageStore) -> None:
        assert self.service is not None
        stopped = self.service.stopService()
        stopped.addCallback(lambda _: process.call(SimNode._stop, self, process, store))

    def _died(self, process: Process, reason: str) -> None:
        self.service = None
        super()._died(process, reason)
