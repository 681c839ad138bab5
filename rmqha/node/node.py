"""A running node: opens its store, runs the services of its role, changes its role, and stops cleanly.

``makeService`` in ``tap`` builds it. Nothing runs before ``startService``, because twistd may become a daemon until
then, and the lock of a store does not survive that.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from rmqha.ha.slave.forkprobe import OurLog, find_fork_with_master
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import is_address, wait_for_address
from rmqha.node.masterendpoints import MasterEndpoints
from rmqha.node.opennode import FOUND_BY_NOBODY, OpenNode, Process
from rmqha.node.plan import NodePlan
from rmqha.node.replicating import (
    REWIND_PAUSE_SECONDS,
    CannotRepair,
    Machine,
    StoreOpening,
    reopen_as_master,
    rewind_slave,
    role_to_run,
)
from rmqha.node.rereading import Rereading, change_live
from rmqha.ops.control import ControlService, OrderRefused
from rmqha.ops.logs import NodeLogObserver
from rmqha.ops.places import Place, ProgressBarService
from rmqha.ops.process import Leave, ProcessService
from rmqha.remoting.asking import ask_master_range
from rmqha.settings.settings import BrokerRole, run_time_properties, with_properties
from rmqha.store.epochs import note_name_servers, promoted_name_servers
from rmqha.store.errors import StoreError, StoreInUse, UnsupportedStore, with_advice
from rmqha.store.log.recovery import Examination
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork, NothingInCommon
from rmqha.store.offline.promote import (
    PROMOTED,
    UNFIT,
    NotPromotable,
    Promotion,
    Reason,
    check_disk,
    check_popped,
    plan_promotion,
    promotion_as_json,
    unknown_deletions_in_words,
)
from rmqha.store.offline.rewind import check_room, fork_line, record_at
from rmqha.store.opening import OpeningStopped
from rmqha.store.popinflight import popped_in_words


class Phase(Enum):
    """What a node is doing."""

    NEW = "not started yet"
    OPENING = "opening its store"
    RUNNING = "running the services of its role"
    CHANGING = "being promoted, or cutting its log back: it closes its store and opens it again"
    STOPPING = "stopping, or stopped"


PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.OPENING, Phase.STOPPING}),
    Phase.OPENING: frozenset({Phase.RUNNING, Phase.STOPPING}),
    Phase.RUNNING: frozenset({Phase.CHANGING, Phase.STOPPING}),
    Phase.CHANGING: frozenset({Phase.OPENING, Phase.RUNNING, Phase.STOPPING}),
    Phase.STOPPING: frozenset(),
}
"""The allowed moves."""


class Node(ProcessService):
    """One node as a service. To end the process it calls ``leave`` with an exit code and the reason in one line."""

    _log = Logger()

    def __init__(self, plan: NodePlan, reactor: Any, leave: Leave) -> None:
        self._bar = plan.observer.bar if isinstance(plan.observer, NodeLogObserver) else None
        ProcessService.__init__(self, reactor, self._hiding_bar(leave), plan.observer, plan.manages_process)
        self._threads = ThreadPool(minthreads=1, maxthreads=1, name="rmqha-flush")
        self._table_threads = ThreadPool(minthreads=0, maxthreads=1, name="rmqha-tables")
        self._machine = Machine(IReactorTime(reactor), self._run_in_thread, self._disk_failed)
        self._phase = Phase.NEW
        self._use(plan)
        self._rereading = Rereading(plan.settings, plan.sources, self._run_in_table_thread)
        self._working: Deferred[None] | None = None
        """The opening of the store, or the change of the role. A stop waits for it."""
        self._open_node: OpenNode | None = None
        """None while the store is closed."""
        self._looking_up: Deferred[str] | None = None
        self._finding_fork: Deferred[Fork] | None = None
        self._next_rewind = 0.0
        self._control = ControlService(plan.settings.store_path_root_dir, {"promote": self._promote}, reactor)

    def _use(self, plan: NodePlan, known_log: Examination | None = None) -> None:
        """Open the store as the plan says, the next time. ``known_log``: see ``Opening``."""
        self._plan = plan
        self._master = MasterEndpoints(plan, self._reactor)
        self._opening = self._opening_of_plan(known_log)

    def _opening_of_plan(self, known_log: Examination | None = None) -> StoreOpening:
        plan = self._plan
        return StoreOpening(plan.settings, self._machine, self._master.before_open, plan.slave.once, known_log)

    def _enter(self, phase: Phase) -> None:
        assert phase in PHASES[self._phase], f"{self._phase} to {phase}"
        self._phase = phase

    @property
    def _is_stopping(self) -> bool:
        return self._phase is Phase.STOPPING

    def open(self) -> None:
        """Start to open the store. When it is open, the services of the node's role start."""
        self._threads.start()
        self._table_threads.start()
        self._enter(Phase.OPENING)
        self._serve_http()
        if self._bar is not None:
            ProgressBarService(self._bar, self._how_far, IReactorTime(self._reactor)).setServiceParent(self)
        self._work(self._open())

    def _serve_http(self) -> None:
        """Answer metrics, health checks and the status page from now on, also while the store is closed."""
        plan = self._plan
        if plan.http is None:
            return
        from rmqha.web.nodeweb import node_web  # a node without this port starts quicker

        endpoint = plan.http.endpoint(self._reactor)
        if plan.tls is not None:
            endpoint = plan.tls.endpoint(endpoint, IReactorTime(self._reactor), lambda host, reason: None)
        parts = lambda: self._plan.settings, self._shown_phase, lambda: self._open_node
        node_web(
            endpoint,
            plan.tls,
            parts,
            self._run_in_table_thread,
            self._reactor,
            lambda error: self.stop_with(ExitCode.IO_ERROR, error),
            self._how_far,
            self._plan.member.facts if self._plan.member is not None else None,
        ).setServiceParent(self)

    def _shown_phase(self) -> str:
        """What the node is doing, as its pages and metrics name it."""
        opening = self._opening.state_name if self._phase is Phase.OPENING else None
        return opening or self._phase.name

    def _how_far(self) -> Place | None:
        """How far the opening of the store, or a slave's copy of the log, has come; None while nothing takes long."""
        if self._phase is Phase.OPENING:
            return self._opening.place
        return None if self._open_node is None else self._open_node.place

    def _hiding_bar(self, leave: Leave) -> Leave:
        """``leave``, which prints a line, without the bar in front of it."""

        def hide_and_leave(code: ExitCode, reason: str) -> None:
            if self._bar is not None:
                self._bar.hide()
            leave(code, reason)

        return hide_and_leave

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        self._working = Deferred.fromCoroutine(work)
        self._working.addErrback(self._cannot_start)

    def _cannot_start(self, failure: Failure) -> None:
        self._log.failure("the node cannot start", failure, event=Event.NODE_START_FAILED)
        self.stop_with(ExitCode.IO_ERROR, f"the node cannot start: {failure.getErrorMessage()}")

    async def _open(self) -> None:
        try:
            await self._run_in_thread(self._take_kept_settings)
            await self._run_in_thread(self._take_promoted_role)
            self._check_not_stopping()
            await self._look_up_names()
            await self._run(await self._opening.run())
        except OpeningStopped:
            self._log.info("stopped before the store was open", event=Event.OPENING_STOPPED)
        except CannotRepair as error:
            self.stop_with(error.exit_code, str(error))
        except StoreInUse as error:
            self.stop_with(ExitCode.IN_USE, str(error))
        except UnsupportedStore as error:
            self.stop_with(ExitCode.USAGE, str(error))
        except StoreError as error:
            self.stop_with(ExitCode.CORRUPT, str(error))
        except OSError as error:
            root = self._plan.settings.store_path_root_dir
            self.stop_with(ExitCode.IO_ERROR, f"cannot open {root}: {with_advice(error, root)}")

    async def _look_up_names(self) -> None:
        """Wait until brokerIP1 and the address of --bind can be looked up. Raises OpeningStopped."""
        settings = self._plan.settings
        for what, name in (("brokerIP1", settings.broker_ip1), ("bind", self._plan.bind_address)):
            if is_address(name.strip("[]")) or name in self._plan.addresses:
                continue
            waiting = wait_for_address(what, name, self._run_in_thread, IReactorTime(self._reactor))
            self._looking_up = Deferred.fromCoroutine(waiting)
            try:
                address = await self._looking_up
            except CancelledError:
                self._check_not_stopping()
                raise
            self._plan = replace(self._plan, addresses={**self._plan.addresses, name: address})

    def _check_not_stopping(self) -> None:
        if self._is_stopping:
            raise OpeningStopped("the node stops before its store is open")

    def _take_kept_settings(self) -> None:
        """Use the settings that mqadmin changed in an earlier run. Raises OSError."""
        if not self._is_ready:  # after a rewind the plan has them
            settings = self._rereading.with_kept(self._plan.settings)
            self._use(replace(self._plan, settings=settings))

    def _take_promoted_role(self) -> None:
        """Run as the master that a promotion has made of this store, although the options say slave.

        Raises StoreError, OSError.
        """
        settings = self._plan.settings
        role = role_to_run(settings).broker_role
        if role is settings.broker_role:
            return
        if self._plan.slave.once:
            raise UnsupportedStore(f"{settings.store_path_root_dir} was promoted to {role.value}: it copies no master")
        self._log.warn(
            "the store was promoted to {role}: this node runs as {role}, not as a slave. Start it with --role of a "
            "master from now on; rmqha rewind makes the store a slave's again",
            event=Event.STORE_WAS_PROMOTED,
            role=role.value,
        )
        plan = self._plan.as_master(role)
        if plan.is_found_by_nobody:
            try:
                plan = plan.registering_with(promoted_name_servers(settings.store_path_root_dir))
            except ValueError as error:
                raise StoreError(
                    f"the promotion of {settings.store_path_root_dir} noted a wrong address: {error}"
                ) from error
        self._use(plan)

    async def _run(self, store: MessageStore) -> None:
        """Start the services of the node's role over its store. If the node stops, close the store. Raises OSError."""
        if self._is_stopping:
            await store.close()
            return
        await self._rereading.settle()
        store.settings = with_properties(store.settings, run_time_properties(self._plan.settings))  # SIGHUP came
        process = Process(
            self._reactor,
            self._machine,
            self._run_in_table_thread,
            self._leave,
            self.stop_with,
            self._start_rewind,
            self._describe_fork,
            self._keep_settings,
        )
        self._open_node = OpenNode(self._plan, store, self._master, process)
        self._open_node.services.setServiceParent(self)
        if self._plan.is_found_by_nobody:
            self._log.warn("{words}", event=Event.MASTER_FOUND_BY_NOBODY, words=FOUND_BY_NOBODY)
        if self._plan.is_promoted and self._open_node.broker is not None:
            self._open_node.broker.promoted()
        if self._control.parent is None:
            self._control.setServiceParent(self)
        self._enter(Phase.RUNNING)
        self.ready()

    async def _keep_settings(self, changes: Mapping[str, str], by: str) -> None:
        """Keep settings that mqadmin has changed, also if this node is promoted or started again. Raises OSError."""
        self._plan = replace(self._plan, settings=with_properties(self._plan.settings, changes))
        await self._rereading.keep(changes, by)

    async def reload(self) -> None:
        """Read certificates and settings again. New connections use the certificates."""
        await self._rereading.reread_certificates()
        await self._rereading.reread_credentials()
        changes = await self._rereading.reread_settings()
        self._plan = replace(self._plan, settings=with_properties(self._plan.settings, changes))
        if changes and self._open_node is not None and self._open_node.broker is not None:
            change_live(self._open_node.broker.live_settings, changes, self._log)

    def status_line(self) -> str:
        """The role, what the node does, and how far it is."""
        name = f"{self._plan.settings.broker_role.value} {self._plan.settings.broker_name}"
        node = self._open_node
        if node is not None and self._phase is Phase.RUNNING:
            return f"{name}: {node.summary()}"
        progress = self._opening.progress if self._phase is Phase.OPENING else None
        return f"{name}: {self._phase.value}{'' if progress is None else f', {progress}'}"

    def _run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        running: Deferred[Any] = deferToThreadPool(self._reactor, self._threads, function)
        return running

    def _run_in_table_thread(self, function: Callable[[], None]) -> Deferred[None]:
        running: Deferred[None] = deferToThreadPool(self._reactor, self._table_threads, function)
        return running

    def when_open(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the store is open and the services run; never if the node stops before that."""

        def opened(_: None) -> None:
            if self._open_node is not None:
                call()

        assert self._working is not None, "the node was started"
        self._working.addCallback(opened)

    @property
    def open_node(self) -> OpenNode:
        """The services of the node's role, while its store is open."""
        assert self._open_node is not None, "the store is open while a node runs"
        return self._open_node

    async def _promote(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order of ``rmqha promote``. Raises OrderRefused, StoreError, OSError."""
        try:
            role, dry_run, force = BrokerRole(order["role"]), bool(order["dryRun"]), bool(order["force"])
            abandons_popped = bool(order.get("abandonPopped"))
            names = [str(address) for address in order.get("nameServers") or ()]
            plan = self._plan.as_master(role).registering_with(names)
        except (KeyError, ValueError, TypeError) as error:
            raise OrderRefused(
                ExitCode.USAGE, f"the order does not say which role, or which name servers: {error}"
            ) from error
        self._check_promotable(force)
        try:
            check_disk(self._plan.settings.store_path_root_dir)
        except NotPromotable as error:
            raise OrderRefused(error.code, str(error)) from error
        settings, before = self._plan.settings, self.open_node.state()
        if dry_run:
            planning = partial(plan_promotion, settings, role, before)
            restarts = tuple(sorted(self.open_node.store.restarts.found))  # the note on the disk may be older
            found: Promotion = await deferToThreadPool(self._reactor, self._table_threads, planning)
            return self._promotion_answer(replace(found, restarts=restarts), plan)
        if not abandons_popped:
            checking = partial(check_popped, settings, role, before)
            try:
                await deferToThreadPool(self._reactor, self._table_threads, checking)
            except NotPromotable as error:
                raise OrderRefused(error.code, str(error)) from error
            self._check_promotable(force)  # it took its time
        self._enter(Phase.CHANGING)
        changed = self._working = Deferred()
        try:
            answer = self._promotion_answer(await self._become_master(plan, before), plan)
            if names:
                root = settings.store_path_root_dir
                await deferToThreadPool(self._reactor, self._table_threads, partial(note_name_servers, root, names))
            return answer
        finally:
            changed.callback(None)

    def _check_promotable(self, force: bool) -> None:
        """Raises OrderRefused for a node that is a master, or whose master is alive, or whose log does not fit."""
        if self._phase is not Phase.RUNNING:
            raise OrderRefused(ExitCode.IN_USE, f"the node is {self._phase.value}")
        node = self.open_node
        if node.slave is None:
            raise OrderRefused(ExitCode.USAGE, "its node is a master already")
        state, verdict = node.slave.replica.state, node.verdict
        if verdict in UNFIT and not force:
            why = verdict if node.slave.reason is None else f"{verdict} ({node.slave.reason})"
            reason = f"it is {why}: promote another slave. --force promotes this one"
            raise OrderRefused(UNFIT[verdict], reason)
        if state is not ReplicaState.CONNECTING and not force:
            raise OrderRefused(
                ExitCode.IN_USE,
                f"it is {state.name}: its master at {self._master.ha_address} is alive. Stop that one first; --force "
                "makes two masters",
            )

    @staticmethod
    def _promotion_answer(promotion: Promotion, plan: NodePlan) -> dict[str, Any]:
        names = [name for name, _ in plan.name_servers]
        return {**promotion_as_json(promotion), "nameServers": names, "foundByNobody": plan.is_found_by_nobody}

    async def _become_master(self, plan: NodePlan, before: NodeState) -> Promotion:
        """Stop being a slave, promote the store, and go on as its master. Raises OrderRefused, StoreError, OSError.

        After a failure the node ends. The disk then has a slave's store, or a promoted one.
        """
        try:
            return await self._reopen_as_master(plan, before)
        except OpeningStopped as error:
            raise OrderRefused(ExitCode.IN_USE, f"{error}: it is still a slave's") from error
        except Exception as error:  # of any kind: a node that is half promoted must not go on
            self.stop_with(ExitCode.IO_ERROR, f"the promotion failed: {error}")
            raise

    async def _reopen_as_master(self, plan: NodePlan, before: NodeState, reason: Reason = PROMOTED) -> Promotion:
        """Stop the services, promote the store, and start those of a master, unless the node stops meanwhile.

        Raises OpeningStopped if it stops before the store is promoted, StoreError, OSError.
        """
        role = plan.settings.broker_role
        self._log.warn(
            "promoted to {role}: this node stops following its master", event=Event.PROMOTION_STARTED, role=role.value
        )
        node = self.open_node
        await maybeDeferred(node.services.disownServiceParent)

        def opening(known: Examination) -> StoreOpening:
            self._use(plan, known)
            return self._opening

        close = self._close_to_open_again
        store, promotion = await reopen_as_master(node.store, close, opening, role, before, self._machine, reason)
        await self._run(store)
        if promotion.popped.count:
            words = popped_in_words(promotion.popped.as_json())
            self._log.warn("{words}", event=Event.POPPED_ABANDONED, words=words, count=promotion.popped.count)
            if self._open_node is not None:
                self._open_node.promotion_warning = words
        if promotion.restarts:
            self._log.warn(
                "{words}",
                event=Event.DELETIONS_NEVER_TOLD,
                words=unknown_deletions_in_words(promotion.restarts),
                topics=list(promotion.restarts),
            )
        self._log.warn(
            "this node is the {role} now, epoch {epoch}, from {end} on",
            event=Event.PROMOTED,
            role=role.value,
            epoch=promotion.epoch,
            end=promotion.end,
        )
        return promotion

    async def _close_to_open_again(self) -> None:
        """Close the store after its services have stopped. Raises OSError."""
        node = self.open_node
        await node.close_store()
        if node.store.is_broken:
            raise OSError("the disk refused the last flush")
        node.close_connections()
        self._open_node = None

    def _start_rewind(self) -> bool:
        """Cut the log back to where it and the master's part.

        False if that has just failed, if another change runs, or if the disk is too full to close the store.
        """
        now = IReactorTime(self._reactor).seconds()
        if self._phase is not Phase.RUNNING or now < self._next_rewind:
            return False
        self._next_rewind = now + REWIND_PAUSE_SECONDS
        try:
            self.open_node.store.check_room()
        except OSError as error:
            self._log.error("the log is not rewound: {reason}", event=Event.NOT_REWOUND, reason=reason_of(error))
            return False
        self._enter(Phase.CHANGING)
        self._work(self._rewind())
        return True

    async def _rewind(self) -> None:
        """Stop the services, cut the log back, and follow the master. Raises StoreError, OSError."""
        settings = self._plan.settings
        await deferLater(IReactorTime(self._reactor), 0)  # the caller is one of the services
        await maybeDeferred(self.open_node.services.disownServiceParent)
        found = await rewind_slave(settings, self._find_fork, self._close_to_open_again, self._machine)
        if found is not None:
            fork, done = found
            self._log.warn(
                "rewound to {end}, where the master's log and ours part: {size} bytes are cut, and kept in {kept}; "
                "epoch {epoch}",
                event=Event.REWOUND,
                end=done.end,
                size=fork.our_end - done.end,
                kept=str(done.kept_in),
                epoch=done.epoch,
            )
        if not self._is_stopping:
            self._enter(Phase.OPENING)
            self._opening = self._opening_of_plan()
            await self._open()

    async def _describe_fork(self) -> str:
        """A line that says where our log and the master's part. Raises what ``find_fork_with_master`` raises."""
        try:
            fork = await self._search_fork()
        except NothingInCommon as error:
            return str(error)
        first = await self._run_in_thread(partial(record_at, self.open_node.store.commit_log, fork))
        return fork_line(fork, first)

    def _search_fork(self) -> Deferred[Fork]:
        endpoint, remoting = self._master.both()
        clock, log = IReactorTime(self._reactor), self.open_node.store.commit_log
        ask_range = None if remoting is None else partial(ask_master_range, remoting, clock)
        finding = find_fork_with_master(
            OurLog(log, log.verified_offset, self.open_node.store.node_state.unproved_from),
            endpoint,
            ask_range,
            clock,
            run=self._run_in_thread,
        )
        self._finding_fork = Deferred.fromCoroutine(finding)
        return self._finding_fork

    async def _find_fork(self) -> Fork | None:
        """Where our log is to be cut; None if that is unknown, or what is cut could not be kept: the log says why."""
        try:
            fork = await self._search_fork()
            await self._run_in_thread(partial(check_room, self._plan.settings.store_path_root_dir, fork))
            return fork
        except Exception as error:  # of any kind: nothing was changed, and the slave tries again
            self._log.error("the log is not rewound: {reason}", event=Event.NOT_REWOUND, reason=reason_of(error))
            return None

    def _disk_failed(self, failure: Failure) -> None:
        self.stop_with(ExitCode.IO_ERROR, f"the disk failed, nothing more is acknowledged: {failure.getErrorMessage()}")

    def stopService(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._stop())

    def _stop_waiting(self) -> None:
        for waiting in (self._looking_up, self._finding_fork):
            if waiting is not None:
                waiting.cancel()

    async def _stop(self) -> None:
        self._enter(Phase.STOPPING)
        self.stopping()
        self._opening.stop()
        self._stop_waiting()
        if self._working is not None:
            await self._working
        node = self._open_node
        try:
            if node is not None:
                node.store.end_puts()
            await ProcessService.stopService(self)
            if node is not None:
                await node.close_store()
                if not node.store.is_broken:
                    await self._note_flushed()
                self._log.info(
                    "stopped at {offset}", event=Event.NODE_STOPPED, offset=node.store.commit_log.verified_offset
                )
                problems = node.stop_problems()
                if problems:
                    self.stop_with(ExitCode.IO_ERROR, "; ".join(problems))
        except (StoreError, OSError) as error:
            said = with_advice(error, self._plan.settings.store_path_root_dir)
            self.stop_with(ExitCode.IO_ERROR, f"the store could not be closed cleanly: {said}")
        finally:
            for threads in (self._table_threads, self._threads):
                if threads.started:
                    threads.stop()
            self.stopped()

    async def _note_flushed(self) -> None:
        """The store is closed, and all of it is on the disk. Raises StoreError, OSError."""
