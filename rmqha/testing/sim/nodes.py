"""Nodes of a simulation: the real services of each role, on a disk, a network and a clock in memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.exitcodes import ExitCode
from rmqha.ha.grouptransfer import GroupTransferService
from rmqha.ha.master import HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.ha.replica import MasterView
from rmqha.ha.service import HASlaveService, SlaveOptions
from rmqha.settings import BrokerRole, Settings, make_settings
from rmqha.store.checkpoint import Checkpoint
from rmqha.store.commitlog import CommitLog
from rmqha.store.errors import StoreError
from rmqha.store.flush import FlushService, Syncable
from rmqha.store.messagestore import ABORT_FILE, CHECKPOINT_FILE, MessageStore
from rmqha.store.nodestate import NODE_FOLDER, NodeState
from rmqha.store.put import Appender
from rmqha.store.recovery import LogDamaged, MayCut, Recovery, recover_log
from rmqha.testing.sim.disk import SimDisk
from rmqha.testing.sim.network import Network
from rmqha.testing.sim.process import Process

ROOT = Path("/store")
CORRUPT = "the store is corrupt"


@lru_cache(maxsize=256)
def settings_of(properties: tuple[tuple[str, str], ...]) -> Settings:
    """Settings by RocketMQ's keys."""
    return make_settings({"storePathRootDir": str(ROOT), **dict(properties)})


class NothingDerived:
    """In the place of queues, index and dispatcher: as if all that is proved were dispatched and on the disk."""

    has_files = True

    def __init__(self, log: CommitLog) -> None:
        self._commit_log = log
        self.dispatcher = self

    def start(self, clock: Any, failed: Callable[[Failure], None]) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

    def write_pending(self) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def take_unflushed(self) -> list[Syncable]:
        """None."""
        return []

    def vouched(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms of the last message, and 0."""
        return self._commit_log.last_store_timestamp, 0


class SimStore(MessageStore):
    """The real store's log, flushing and puts on a disk in memory, without queues, index and lock."""

    def __init__(self, settings: Settings, disk: SimDisk, now_ms: Callable[[], int]) -> None:
        """Opens it. Raises StoreError, OSError."""
        self.settings = settings
        self.root = settings.store_path_root_dir
        self._disk = disk
        self._now_ms = now_ms
        self.setting_aside = False
        self.set_asides = 0
        disk.make_folder(self.root)
        self._open()

    def _open(self) -> None:
        self.node_state = NodeState("sim")
        assert self.settings.mapped_file_size_commit_log is not None, "a simulated node's settings have it"
        self.commit_log = CommitLog(
            self.settings.commit_log_folder, self.settings.mapped_file_size_commit_log, disk=self._disk
        )
        self.recovery = self._recover()
        self.is_slave = self.settings.broker_role is BrokerRole.SLAVE
        self.disk_full = False
        self._flusher = self._put_waits = self._failed = self._dispatching = None
        self._takes_puts = self._broken = False
        if not self._disk.exists(self.root / ABORT_FILE):
            self._disk.write_new(self.root / ABORT_FILE, [])
        self._disk.sync_folder(self.root)
        self._open_derived(self.recovery)

    def _recover(self) -> Recovery:
        """Recover; where a loss of power has damaged the log, do what an operator without a replica does.

        No simulated disk takes back what was flushed, so that nothing but unflushed bytes is ever cut by that: the
        oracle looks.
        """
        checkpoint = Checkpoint.read(self.root / CHECKPOINT_FILE, self._disk)
        recover = partial(
            recover_log,
            self.commit_log,
            checkpoint,
            clean_stop=not self._disk.exists(self.root / ABORT_FILE),
            cut_folder=self.root / NODE_FOLDER / "cut",
        )
        try:
            recovery = recover()
        except LogDamaged:
            recovery = recover(may_cut=MayCut.ANYTHING)
        self._lower_checkpoint(checkpoint)
        return recovery

    def _lower_checkpoint(self, checkpoint: Checkpoint) -> None:
        physic = self.commit_log.last_store_timestamp
        if checkpoint.physic_msg_timestamp > physic:
            replace(checkpoint, physic_msg_timestamp=physic).write(self.root / CHECKPOINT_FILE, self._disk)

    def _open_derived(self, recovery: Recovery, progress: Callable[[int], None] = lambda _: None) -> None:
        self.derived: Any = NothingDerived(self.commit_log)
        levels, size = self.settings.message_delay_level, self.settings.max_message_size_bytes
        self.appender = Appender(self.commit_log, {}, levels, size, self._now_ms)

    def set_aside(self, now_ms: int) -> Path:
        log = self.commit_log
        aside = self.root / NODE_FOLDER / f"aside-{self._now_ms()}"
        self._disk.make_folder(aside.parent)
        log.sync()
        self.setting_aside = True
        log.set_aside(aside)
        self._lower_checkpoint(Checkpoint.read(self.root / CHECKPOINT_FILE, self._disk))
        self.setting_aside = False
        self.set_asides += 1
        return aside

    def adopt_derived_file_settings(self, properties: Mapping[str, str]) -> None:
        """There are no such files."""

    def _close_cleanly(self, flusher: FlushService | None, final_state: Callable[[], NodeState] | None) -> None:
        log = self.commit_log
        if self._broken or flusher is None or flusher.broken:
            return
        if log.verified_offset != log.max_offset:
            log.truncate(log.verified_offset)
        log.prepare_next_segment()
        flusher.stop()
        self._disk.remove(self.root / ABORT_FILE)
        self._disk.sync_folder(self.root)

    def _release(self, result: Failure | None) -> Failure | None:
        if self._put_waits is not None:
            self._put_waits.give_up()
        return result


class SimNode:
    """A machine with a disk, and the process that runs on it, if one does.

    ``say`` writes a line of the trace; ``down`` hears when the process has ended, and why.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        clock: Clock,
        network: Network,
        random: Random,
        now_ms: Callable[[], int],
        say: Callable[[str, str], None],
        down: Callable[["SimNode", Process, str], None],
    ) -> None:
        self.name = name
        self.settings = settings_of(tuple(properties.items()))
        self.disk = SimDisk(random)
        self.power = True
        self.process: Process | None = None
        self.store: SimStore | None = None
        self.flusher: FlushService | None = None
        self.served: HAMasterFactory | None = None
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
            store = SimStore(self.settings, self.disk, self._now_ms)
        except OSError as error:
            process.die(f"cannot open the store: {error}")
            return
        except StoreError as error:
            process.die(f"{CORRUPT}: {error}")
            return
        self.store = store
        self.flusher = store.start_flushing(process.clock, process.run_in_thread, self._disk_failed)
        found = store.recovery
        problem = f", {found.problem}" if found.problem else ""
        self.say(f"recovered {found.min_offset}..{found.end}, checked from {found.checked_from}{problem}")
        self.run(process, store)

    def run(self, process: Process, store: SimStore) -> None:
        """Start the services."""
        settings, log = self.settings, store.commit_log
        transfer = None
        if settings.broker_role is BrokerRole.SYNC_MASTER:
            transfer = GroupTransferService(log, settings, process.clock, confirmed_offset=log.min_offset)
            store.replicate_by(transfer)
        self.served = HAMasterFactory(log, process.clock, MasterOptions.of(settings), transfer)
        self.served.doStart()

    def _disk_failed(self, failure: Failure) -> None:
        reason = f"exit {ExitCode.IO_ERROR.value}: {failure.getErrorMessage()}"
        if self.process is not None and failure.check(OSError):
            self.process.clock.callLater(0, self.process.die, reason)

    def build_protocol(self, addr: Any) -> HAMasterProtocol | None:
        """Somebody connects to the HA port."""
        assert self.served is not None
        return self.served.buildProtocol(addr)

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

    def _stop(self, process: Process, store: SimStore) -> None:
        assert self.served is not None
        self.served.close_connections()
        self.served.doStop()
        closing = store.close(self.flusher)
        closing.addCallbacks(
            lambda _: process.clock.callLater(0, process.die, "stopped"),
            lambda failure: process.clock.callLater(0, process.die, f"exit 8: {failure.getErrorMessage()}"),
        )

    def _died(self, process: Process, reason: str) -> None:
        self.process = self.flusher = self.served = None
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

    def run(self, process: Process, store: SimStore) -> None:
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

    def _stop(self, process: Process, store: SimStore) -> None:
        assert self.service is not None
        stopped = self.service.stopService()
        stopped.addCallback(lambda _: process.call(SimNode._stop, self, process, store))

    def _died(self, process: Process, reason: str) -> None:
        self.service = None
        super()._died(process, reason)
