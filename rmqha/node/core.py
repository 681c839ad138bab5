"""What opens a node's store, changes the node's role, and closes the store.

It has no reactor, no thread and no port: a host has them. A process is one (``node``), a simulated machine is another.
"""

from collections.abc import Coroutine
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.interfaces import IHost, IOpenNode
from rmqha.node.plan import NodePlan
from rmqha.node.replicating import CannotRepair, StoreOpening
from rmqha.settings.settings import BrokerRole
from rmqha.store.epochs import forget_promotion, promoted_name_servers, promoted_role, read_epochs
from rmqha.store.errors import StoreError, StoreInUse, UnsupportedStore, with_advice
from rmqha.store.log.mappedfile import Disk
from rmqha.store.log.recovery import Examination
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import PROMOTED, Promotion, Reason, promote_open_store
from rmqha.store.offline.rewind import Rewound, rewind
from rmqha.store.opening import OpeningStopped

REWIND_PAUSE_SECONDS = 60.0
"""After an attempt to rewind. The slave reconnects meanwhile, and stays AHEAD or DIVERGED."""

Result = TypeVar("Result")


class Phase(Enum):
    """What a node is doing."""

    NEW = "not started yet"
    OPENING = "opening its store"
    RUNNING = "running the services of its role"
    CHANGING = "changing its master or role, or cutting its log back: it closes its store and opens it again"
    STOPPING = "stopping, or stopped"


PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.OPENING, Phase.STOPPING}),
    Phase.OPENING: frozenset({Phase.RUNNING, Phase.STOPPING}),
    Phase.RUNNING: frozenset({Phase.CHANGING, Phase.STOPPING}),
    Phase.CHANGING: frozenset({Phase.OPENING, Phase.RUNNING, Phase.STOPPING}),
    Phase.STOPPING: frozenset(),
}
"""The allowed moves."""


class RoleChanger:
    """A node from its start to its stop: it opens the store, runs the services of the node's role, and changes it.

    A stop waits for a change that runs. An error ends the node by ``stop_with`` of its host.
    """

    _log = Logger()

    def __init__(self, plan: NodePlan, host: IHost) -> None:
        self._host = host
        self.phase = Phase.NEW
        self.open_node: IOpenNode | None = None
        """None while the store is closed."""
        self.log_epoch = 0
        """For a member of a failover cluster: the highest number that its store has given to an epoch."""
        self.opening: StoreOpening | None = None
        """What opens the store, or has opened it the last time."""
        self._is_to_stop = False
        self._working: Deferred[None] | None = None
        """The opening of the store, or the change of the role. A stop waits for it."""
        self._next_rewind = 0.0
        self.plan = plan
        """What the node is. Its settings may change while it runs."""
        host.use(plan)

    def use(self, plan: NodePlan) -> None:
        """Open the store as the plan says, the next time."""
        self.plan = plan
        self._host.use(plan)

    def _enter(self, phase: Phase) -> None:
        assert phase in PHASES[self.phase], f"{self.phase} to {phase}"
        self.phase = phase

    @property
    def is_stopping(self) -> bool:
        """Whether the node stops, or has stopped."""
        return self.phase is Phase.STOPPING

    @property
    def is_working(self) -> bool:
        """Whether the store is being opened, or the role changed, also while the node is to stop."""
        return self._working is not None and not self._working.called

    # Opening

    def open(self) -> None:
        """Start to open the store. When it is open, the services of the node's role start."""
        self._enter(Phase.OPENING)
        self._work(self._open())

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        self._working = Deferred.fromCoroutine(work)
        self._working.addErrback(self._cannot_start)

    def _cannot_start(self, failure: Failure) -> None:
        self._log.failure("the node cannot start", failure, event=Event.NODE_START_FAILED)
        self._host.stop_with(ExitCode.IO_ERROR, f"the node cannot start: {failure.getErrorMessage()}")

    async def _open(self, known_log: Examination | None = None) -> None:
        """``known_log``: see ``Opening``."""
        host = self._host
        try:
            await host.prepare()
            self.check_not_stopping()
            await self._run(await host.open_store(self._make_opening(known_log).run()))
        except OpeningStopped:
            self._log.info("stopped before the store was open", event=Event.OPENING_STOPPED)
        except (StoreError, OSError) as error:
            host.stop_with(*self._why_not_open(error))

    def take_role(self) -> None:
        """Use the role that the store says, before it is opened. Reads small files. Raises StoreError, OSError."""
        plan, disk = self.plan, self._host.disk
        if plan.member is None:
            self.use(as_promoted(plan, disk))
            return
        root = plan.settings.store_path_root_dir
        if plan.settings.broker_role is BrokerRole.SLAVE:  # the coordinator says who leads, not a note on the disk
            forget_promotion(root, disk)
        epochs = read_epochs(root, disk)
        self.log_epoch = epochs[-1].epoch if epochs else 0

    def check_not_stopping(self) -> None:
        """Raises OpeningStopped if the node is to stop."""
        if self._is_to_stop:
            raise OpeningStopped("the node stops before its store is open")

    def _make_opening(self, known_log: Examination | None) -> StoreOpening:
        self.opening = StoreOpening(self.plan, self._host, known_log)
        return self.opening

    def _why_not_open(self, error: StoreError | OSError) -> tuple[ExitCode, str]:
        if isinstance(error, OSError):
            root = self.plan.settings.store_path_root_dir
            return ExitCode.IO_ERROR, f"cannot open {root}: {with_advice(error, root)}"
        code = ExitCode.CORRUPT
        if isinstance(error, CannotRepair):
            code = error.exit_code
        elif isinstance(error, StoreInUse):
            code = ExitCode.IN_USE
        elif isinstance(error, UnsupportedStore):
            code = ExitCode.USAGE
        return code, str(error)

    async def _run(self, store: MessageStore) -> None:
        """Start the services of the node's role over its store. If the node stops, close the store. Raises OSError."""
        if self.is_stopping:
            await store.close()
            return
        self.open_node = await self._host.run(store)
        self._enter(Phase.RUNNING)
        self._host.started()

    def when_open(self) -> Deferred[None]:
        """Fires when the store is open and the services run; never if the node stops before that."""
        open_: Deferred[None] = Deferred()

        def worked(_: None) -> None:
            if self.open_node is not None:
                open_.callback(None)

        assert self._working is not None, "the node was started"
        self._working.addCallback(worked)
        return open_

    async def settled(self) -> IOpenNode | None:
        """Wait until no change of the role runs. None if no services run then: the node stops, or has failed."""
        while self.phase in (Phase.OPENING, Phase.CHANGING) and self._working is not None:
            working = self._working
            done: Deferred[None] = Deferred()
            working.addBoth(_pass_on, done)
            await done
            if self._working is working:
                break
        return self.open_node if self.phase is Phase.RUNNING else None

    # Changing the role

    def change(self, work: Coroutine[Any, Any, Result]) -> Deferred[Result]:
        """Begin work that changes the role: a stop waits for its end. Who cancels the Deferred ends the wait only."""
        self._enter(Phase.CHANGING)
        working: Deferred[None] = Deferred()
        waiting: Deferred[Result] = Deferred()
        self._working = working
        changing = Deferred.fromCoroutine(work)
        changing.addBoth(_pass_on, working).chainDeferred(waiting)
        return waiting

    async def become_master(self, plan: NodePlan, reason: Reason = PROMOTED) -> Promotion:
        """Promote the store of a slave that runs, and go on as its master, as the plan says. Call it in a change.

        Raises OpeningStopped if the node stops before the store is promoted, or any error, and the node ends. The disk
        then has a slave's store, or a promoted one.
        """
        role = plan.settings.broker_role
        self._log.warn(
            "promoted to {role}: this node stops following its master", event=Event.PROMOTION_STARTED, role=role.value
        )
        try:
            promotion = await self._reopen_as_master(plan, reason)
        except OpeningStopped:
            raise
        except Exception as error:  # of any kind: a node that is half promoted must not go on
            self._host.stop_with(ExitCode.IO_ERROR, f"the promotion failed: {error}")
            raise
        self._log.warn(
            "this node is the {role} now, epoch {epoch}, from {end} on",
            event=Event.PROMOTED,
            role=role.value,
            epoch=promotion.epoch,
            end=promotion.end,
        )
        return promotion

    async def _reopen_as_master(self, plan: NodePlan, reason: Reason) -> Promotion:
        node = self._opened()
        before = node.state()
        await node.stop()
        opened, promotion = await self._promote_store(plan, before, reason)
        self.log_epoch = promotion.epoch
        self._host.promoted(promotion)
        await self._run(opened)
        return promotion

    async def _promote_store(self, plan: NodePlan, before: NodeState, reason: Reason) -> tuple[MessageStore, Promotion]:
        """Close a slave's store, open it as a master's, and promote it. ``before`` is the slave's last state."""
        known = self._opened().store.known_log()
        await self._close_to_open_again()
        self.use(plan)
        opened = await self._host.open_store(self._make_opening(known).run())
        host, role = self._host, plan.settings.broker_role
        try:
            promotion: Promotion = await host.run_in_thread(
                partial(promote_open_store, opened, role, host.now_ms(), before, reason)
            )
        except (StoreError, OSError):
            opened.abandon()
            raise
        return opened, promotion

    def follow(self, plan: NodePlan) -> None:
        """Close the store, and open it as the slave that the plan says."""
        self._enter(Phase.CHANGING)
        self._work(self._follow(plan))

    async def _follow(self, plan: NodePlan) -> None:
        node = self._opened()
        await node.stop()
        try:
            known = node.store.known_log()
            await self._close_to_open_again()
        except OSError as error:
            self._host.stop_with(ExitCode.IO_ERROR, self._not_closed(error))
            return
        self.use(plan)
        self._next_rewind = 0.0
        await self._open_again(known)

    async def _open_again(self, known_log: Examination | None = None) -> None:
        if not self.is_stopping:
            self._enter(Phase.OPENING)
            await self._open(known_log)

    def start_rewind(self) -> bool:
        """Cut the log back to where it and the master's part.

        False within a minute after the last attempt, if another change runs, or if the disk is too full to close the
        store.
        """
        now = self._host.clock.seconds()
        if self.phase is not Phase.RUNNING or now < self._next_rewind:
            return False
        self._next_rewind = now + REWIND_PAUSE_SECONDS
        try:
            self._opened().store.check_room()
        except OSError as error:
            self._log.error("the log is not rewound: {reason}", event=Event.NOT_REWOUND, reason=reason_of(error))
            return False
        self._enter(Phase.CHANGING)
        self._work(self._rewind())
        return True

    async def _rewind(self) -> None:
        """Stop the services, cut the log back, and follow the master. Raises StoreError, OSError."""
        host, settings = self._host, self.plan.settings
        await deferLater(host.clock, 0)  # the caller is one of the services
        await self._opened().stop()
        fork = await self._find_fork()
        await self._close_to_open_again()
        if fork is not None and fork.offset < fork.our_end:
            done: Rewound = await host.run_in_thread(partial(rewind, settings, fork.offset, host.disk))
            host.rewound(fork, done)
        await self._open_again()

    async def _find_fork(self) -> Fork | None:
        """Where our log is to be cut; None if that is unknown, or what is cut could not be kept: the log says why."""
        try:
            return await self._host.find_fork()
        except Exception as error:  # of any kind: nothing was changed, and the slave tries again
            self._log.error("the log is not rewound: {reason}", event=Event.NOT_REWOUND, reason=reason_of(error))
            return None

    async def _close_to_open_again(self) -> None:
        """Close the store after its services have stopped. Raises OSError."""
        node = self._opened()
        await node.close_store()
        if node.store.is_broken:
            raise OSError("the disk refused the last flush")
        node.closed()
        self.open_node = None

    def _opened(self) -> IOpenNode:
        assert self.open_node is not None, "the store is open while a node runs"
        return self.open_node

    # Stopping

    def give_up_opening(self) -> None:
        """The node is to stop: an opening ends as soon as it can, and none begins."""
        self._is_to_stop = True
        if self.opening is not None:
            self.opening.stop()
        self._host.stop_waiting()

    async def stop(self) -> None:
        """Stop the services, and close the store. If a change runs, wait for its end before that."""
        self._enter(Phase.STOPPING)
        self.give_up_opening()
        if self._working is not None:
            await self._working
        node = self.open_node
        try:
            if node is not None:
                node.store.end_puts()
            await self._host.stop_services()
            if node is not None:
                await self._close_for_good(node)
        except (StoreError, OSError) as error:
            self._host.stop_with(ExitCode.IO_ERROR, self._not_closed(error))

    async def _close_for_good(self, node: IOpenNode) -> None:
        await node.close_store()
        if not node.store.is_broken:
            await self._host.flushed()
        self._log.info("stopped at {offset}", event=Event.NODE_STOPPED, offset=node.store.commit_log.verified_offset)
        problems = node.stop_problems()
        if problems:
            self._host.stop_with(ExitCode.IO_ERROR, "; ".join(problems))

    def _not_closed(self, error: StoreError | OSError) -> str:
        said = with_advice(error, self.plan.settings.store_path_root_dir)
        return f"the store could not be closed cleanly: {said}"


def as_promoted(plan: NodePlan, disk: Disk) -> NodePlan:
    """The plan of a master if a promotion has made one of the plan's store, although the plan says slave.

    Raises StoreError, OSError.
    """
    root = plan.settings.store_path_root_dir
    noted = promoted_role(root, disk)
    if noted is None or plan.settings.broker_role is not BrokerRole.SLAVE:
        return plan
    role = BrokerRole(noted)
    if plan.slave.once:
        raise UnsupportedStore(f"{root} was promoted to {role.value}: it copies no master")
    RoleChanger._log.warn(
        "the store was promoted to {role}: this node runs as {role}, not as a slave. Start it with --role of a "
        "master from now on; rmqha rewind makes the store a slave's again",
        event=Event.STORE_WAS_PROMOTED,
        role=role.value,
    )
    plan = plan.as_master(role)
    if not plan.is_found_by_nobody:
        return plan
    try:
        return plan.registering_with(promoted_name_servers(root, disk))
    except ValueError as error:
        raise StoreError(f"the promotion of {root} noted a wrong address: {error}") from error


def _pass_on(result: Any, waiting: Deferred[None]) -> Any:
    """Tell one that waits for a Deferred that it has fired, and leave its result as it is."""
    waiting.callback(None)
    return result
