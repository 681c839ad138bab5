"""The part of a node that keeps and replicates its log, for processes and the simulator.

``StoreOpening`` opens the store, and repairs it before if need be. ``Replicating`` then makes the services that use it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.serving import LogServing, confirmed_offset
from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.questions import MasterAccess
from rmqha.ha.slave.selfrepair import SelfRepair, SourceUnreachable
from rmqha.ha.slave.slaveservice import ONCE_CONNECT_ATTEMPTS, HASlaveService, SlaveOptions
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.interfaces import IHost, IMachine
from rmqha.node.plan import NodePlan
from rmqha.ops.places import Place
from rmqha.ops.statefile import StateFileService
from rmqha.settings.settings import FlushDiskType, ReadUpTo, Settings
from rmqha.store.errors import StoreError
from rmqha.store.log.recovery import Examination, LogDamaged
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.storerepair import Mended, RepairError, StoreRepair
from rmqha.store.opening import Opening, OpeningStopped


class CannotRepair(StoreError):
    """A slave's log is damaged, and its master cannot help."""

    def __init__(self, damaged: LogDamaged, reason: Exception) -> None:
        unreachable = isinstance(reason, SourceUnreachable)
        self.exit_code = ExitCode.CANNOT_CONNECT if unreachable else ExitCode.CORRUPT
        super().__init__(f"{damaged}; its master cannot repair it: {reason}")


class StoreOpening:
    """Opens a node's store in a thread. A slave first fetches what is damaged in its log from its master."""

    _log = Logger()

    def __init__(self, plan: NodePlan, host: IHost, known_log: Examination | None = None) -> None:
        """``known_log`` is the end of a log that this process has just closed: see ``Opening``."""
        self._settings = plan.settings
        self._host = host
        self._once = plan.slave.once
        self._opening = Opening(host.clock.seconds, known_log)
        self._repairing: Deferred[list[Mended]] | None = None

    async def run(self) -> MessageStore:
        """The open store. Meanwhile the reactor answers signals.

        Raises OpeningStopped, CannotRepair for a slave, LogDamaged for a master, StoreError, OSError.
        """
        machine = self._host
        opening = partial(MessageStore, self._settings, self._opening, disk=machine.disk, wall=machine)
        store: MessageStore
        try:
            store = await machine.run_in_thread(opening)
        except LogDamaged as damaged:
            await self._repair(damaged)
            store = await machine.run_in_thread(opening)
        return store

    async def _repair(self, damaged: LogDamaged) -> None:
        """Recovery must not go on with the log as it is: fetch the bad bytes from the master again, once.

        Raises LogDamaged if there is no master, CannotRepair, OpeningStopped, StoreError, OSError.
        """
        machine, master = self._host, self._host.way_to_master()
        if master is None:
            raise damaged
        self._log.error(
            "REPAIRING from the master: {damage}", event=Event.LOG_REPAIR_STARTED, damage=str(damaged.damage)
        )
        await machine.run_in_thread(self._note_repairing)
        repair = SelfRepair(
            partial(StoreRepair, self._settings, disk=machine.disk),
            master,
            machine.clock,
            machine.run_in_thread,
            most_attempts=ONCE_CONNECT_ATTEMPTS if self._once else None,
        )
        self._repairing = Deferred.fromCoroutine(repair.run())
        try:
            done = await self._repairing
            self._repairing = None
        except CancelledError:
            raise OpeningStopped("the node is to stop before its log is repaired") from None
        except (RepairError, SourceUnreachable) as error:
            raise CannotRepair(damaged, error) from error
        self._log.info(
            "{count} bad stretches are repaired; opening the store", event=Event.LOG_REPAIR_DONE, count=len(done)
        )

    def _note_repairing(self) -> None:
        """Tell readers of state.json what keeps the store from being opened. Raises StoreError, OSError."""
        root, disk = self._settings.store_path_root_dir, self._host.disk
        known = NodeState.read(root, disk) or NodeState.new()
        role = self._settings.broker_role.value
        replace(known, role=role, state=ReplicaState.REPAIRING.name, peers=()).write(root, disk)

    @property
    def progress(self) -> str | None:
        """How far the opening is, in a few words; None if that is not known yet."""
        return "repairing the log from the master" if self._repairing is not None else self._opening.progress

    def stop(self) -> None:
        """Give up: ``run`` raises OpeningStopped as soon as it can."""
        self._opening.stop()
        if self._repairing is not None and not self._repairing.called:
            self._repairing.cancel()

    @property
    def state_name(self) -> str | None:
        """What the opening does, as state.json names it; None before its first step."""
        if self._repairing is not None and not self._repairing.called:
            return ReplicaState.REPAIRING.name
        return None if self._opening.place is None else self._opening.place[0].name

    @property
    def place(self) -> Place | None:
        """How far the opening has come, in bytes of the log; None if that is not known."""
        place = self._opening.place
        if place is None or self.state_name == ReplicaState.REPAIRING.name:
            return None
        phase, done, total = place
        return Place(phase.value, done, total, start=0)


@implementer(ISlaveOwner)
class Replicating:
    """The services of a node that keep its log and copy it: made here, started and stopped by their owner.

    ``flusher`` and the dispatch of the store run already. ``serving``, ``slave`` and ``state_file`` are None until they
    are made.
    """

    def __init__(self, store: MessageStore, settings: Settings, machine: IMachine) -> None:
        self._store = store
        self._settings = settings
        self._machine = machine
        if settings.read_up_to is ReadUpTo.CONFIRMED:
            store.limit_reads(machine.clock)
        else:
            store.lift_read_limit()
        self.flusher = store.start_flushing(machine.clock, machine.run_in_thread, machine.disk_failed)
        store.start_dispatching(machine.clock, machine.disk_failed)
        self.serving: LogServing | None = None
        self.slave: HASlaveService | None = None
        self.state_file: StateFileService | None = None

    def serve_slaves(
        self, check: SlaveCheck, max_connections: int | None = None, leadership: Leadership | None = None
    ) -> LogServing:
        """Make what serves the log on the HA port.

        ``max_connections`` is how many the process can have open, None for no limit. ``leadership`` is that of the
        leader of a failover cluster.
        """
        clock = self._machine.clock
        self.serving = LogServing(self._store, self._settings, clock, check, max_connections, leadership)
        if self._store.read_limit is not None and self._settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self.flusher.subscribe(self.serving.log_flushed)
        return self.serving

    def follow(
        self,
        options: SlaveOptions,
        master: MasterAccess,
        finished: Callable[[ExitCode, str], None],
        in_state: Callable[[ReplicaState], None] = lambda _: None,
        rewind: Callable[[], bool] = lambda: False,
    ) -> HASlaveService:
        """Make what copies the master's log. ``finished``, ``in_state`` and ``rewind`` are as in ISlaveOwner.

        A member of a failover cluster compares all that is not confirmed with the leader's log: another leader may have
        put it, or this node itself.
        """
        if options.hello and self._store.read_limit is not None:
            self._store.doubt_from(self._store.read_limit.offset)

        self._finished, self._in_state, self._rewind = finished, in_state, rewind
        self.slave = HASlaveService(self._store, self.flusher, options, master, self, self._machine.clock)
        return self.slave

    # What the slave asks: see ISlaveOwner

    def finished(self, code: ExitCode, reason: str) -> None:
        """A ``--once`` run is done."""
        self._finished(code, reason)

    def disk_failed(self, failure: Failure) -> None:
        """The disk refuses."""
        self._machine.disk_failed(failure)

    def in_state(self, state: ReplicaState) -> None:
        """The slave's state is another one."""
        if self.state_file is not None:  # its readers learn of the change as soon as readers of the log do
            self.state_file.write_soon()
        self._in_state(state)

    def queues_behind(self) -> int:
        """How many bytes of the log are in no queue yet."""
        return self._store.derived.dispatcher.behind_bytes

    def wall_seconds(self) -> float:
        """The seconds since 1970."""
        return self._machine.now_ms() / 1000

    def rewind(self) -> bool:
        """Cut the log back, unless that is not possible now."""
        return self._rewind()

    def state_written(self) -> Deferred[None]:
        """Fires when no thread writes state.json."""
        return succeed(None) if self.state_file is None else self.state_file.written()

    def keep_state(self, current: Callable[[], NodeState]) -> StateFileService:
        """Make what writes the node's state into state.json."""
        machine = self._machine
        self.state_file = StateFileService(
            self._store.root, current, machine.clock, machine.run_in_thread, machine.disk_failed, machine.disk
        )
        return self.state_file


def state_of_log(store: MessageStore, settings: Settings, serving: LogServing | None) -> NodeState:
    """The node's role, its log's offsets, and what its store knows of it: a part of state.json."""
    offsets = store.offsets(confirmed_offset(store, settings, serving))
    limit = None if store.read_limit is None or store.read_limit.is_lifted else store.read_limit.offset
    return replace(
        store.node_state,
        role=settings.broker_role.value,
        offsets=offsets,
        read_limit=limit,
        dispatched=store.derived.dispatcher.written_until,
        delay_levels=str(settings.message_delay_level),
    )
