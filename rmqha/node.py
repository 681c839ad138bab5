"""A running node: opens its store, runs the services of its role, and stops cleanly.

``makeService`` in ``tap`` builds it. Nothing runs before ``startService``, because twistd may become a daemon until
then, and the lock of a store does not survive that.
"""

import gc
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from rmqha.broker.background.mastersearch import MasterSearch
from rmqha.broker.background.outerapi import MasterAddresses
from rmqha.broker.background.slavesync import Connect
from rmqha.broker.runtimeinfo import runtime_processors
from rmqha.broker.service import BrokerService, NameServers, Surroundings, broker_limits, connect_nowhere
from rmqha.connecting import reason_of
from rmqha.endpoints import LoopbackEndpoint, ToldEndpoint
from rmqha.exitcodes import ExitCode
from rmqha.ha.admission.allowlist import AllowList, SlaveCheck
from rmqha.ha.master.serving import LogServing
from rmqha.ha.slave.contact import iso_of
from rmqha.ha.slave.forkprobe import find_fork_with_master
from rmqha.ha.slave.service import HASlaveService, MasterAccess, SlaveOptions
from rmqha.ha.slave.states import VERDICTS, ReplicaState
from rmqha.namesrv.service import NameServerService, name_server_limits
from rmqha.ops.cleaning import CleaningService, Hold
from rmqha.ops.control import ControlService, OrderRefused
from rmqha.ops.listening import ListeningService, tcp_endpoint
from rmqha.ops.logs import NodeLogObserver, SyslogObserver
from rmqha.ops.process import MAX_FILES, Leave, ProcessService
from rmqha.ops.snapshots import SNAPSHOT_SECONDS, TableSnapshots
from rmqha.remoting.asking import NODE_STATE_KEY, ask_master_range, view_of_master
from rmqha.remoting.budgets import PortBudget
from rmqha.remoting.protocol import RemotingFactory
from rmqha.remoting.turns import SELDOM
from rmqha.replicating import CannotRepair, Machine, Replicating, StoreOpening, state_of_log
from rmqha.services import OrderedServices, PeriodicService
from rmqha.settings import BrokerRole, Settings, TlsMode
from rmqha.store.epochs import promoted_role
from rmqha.store.errors import StoreError, StoreInUse, UnsupportedStore
from rmqha.store.log.flush import Flusher
from rmqha.store.log.recovery import Examination
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import STOPPED, NodeState
from rmqha.store.offline.fork import Fork, NothingInCommon
from rmqha.store.offline.promote import UNFIT, Promotion, plan_promotion, promote_open_store, promotion_as_json
from rmqha.store.offline.rewind import Rewound, fork_line, record_at, rewind
from rmqha.store.opening import OpeningStopped
from rmqha.tls.endpoints import ServerTLS

REWIND_PAUSE_SECONDS = 60.0
"""After an attempt to rewind. The slave reconnects meanwhile, and stays AHEAD or DIVERGED."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The configuration of a node: its settings, and what only the command line gives.

    ``master`` and ``master_remoting`` are a slave's endpoints of its master. Both are None if name servers give the
    address, and ``master_remoting`` is None if the master has no remoting port. ``master_address`` is the address of
    ``master_remoting``. ``connect`` makes endpoints from addresses. ``tls`` is for our ports; None leaves them plain.
    ``allow_list`` limits the slaves; None allows all. The node registers with ``name_servers``, and runs a name server
    at ``embedded_port`` if that is not None. ``observer`` writes the node's log events; None leaves that to twistd. A
    node that manages its process handles signals.
    """

    settings: Settings
    slave: SlaveOptions = SlaveOptions()
    master: IStreamClientEndpoint | None = None
    master_remoting: IStreamClientEndpoint | None = None
    master_address: str | None = None
    connect: Connect = connect_nowhere
    bind_address: str = ""
    hold: Hold = Hold()
    tls: ServerTLS | None = None
    allow_list: AllowList | None = None
    name_servers: NameServers = ()
    embedded_port: int | None = None
    observer: NodeLogObserver | SyslogObserver | None = None
    manages_process: bool = False


class Node(ProcessService):
    """One node as a service. To end the process it calls ``leave`` with an exit code and the reason in one line."""

    _log = Logger()

    def __init__(self, plan: NodePlan, reactor: Any, leave: Leave) -> None:
        ProcessService.__init__(self, reactor, leave, plan.observer, plan.manages_process)
        self._plan = plan
        self._store: MessageStore | None = None
        self._machine = Machine(IReactorTime(reactor), self._run_in_thread, self._disk_failed)
        self._opening = self._opening_of_plan()
        self._opened: Deferred[None] | None = None
        self._is_stopping = False
        self._services = OrderedServices()
        self._replicating: Replicating | None = None
        self._flusher: Flusher | None = None
        self._slave: HASlaveService | None = None
        self._control: ControlService | None = None
        self._is_changing = False
        """Whether the node is being promoted, or cuts its log back: the store is closed and opened again."""
        self._is_promoted = False
        """Whether the node is a master because the store was promoted."""
        self._next_rewind = 0.0
        self._finding_fork: Deferred[Fork] | None = None
        self._verdict: str | None = None
        self._told_master = ToldEndpoint(reactor)
        self._told_master_remoting = ToldEndpoint(reactor, wait_seconds=0)
        self._searched_master: MasterSearch | None = None
        self._serving: LogServing | None = None
        self._broker: BrokerService | None = None
        self._answering: list[RemotingFactory] = []
        """What answers on the remoting ports."""
        self._slave_check = SlaveCheck(IReactorTime(reactor), plan.allow_list)
        self._started_at = time.time()
        self._threads = ThreadPool(minthreads=1, maxthreads=1, name="rmqha-flush")
        self._table_threads = ThreadPool(minthreads=0, maxthreads=1, name="rmqha-tables")

    def _opening_of_plan(self, known_log: Examination | None = None) -> StoreOpening:
        """What opens the store as the plan says. ``known_log``: see ``Opening``."""
        plan = self._plan
        return StoreOpening(plan.settings, self._machine, self._master_before_open, plan.slave.once, known_log)

    def open(self) -> None:
        """Start to open the store. When it is open, the services of the node's role start."""
        self._threads.start()
        self._table_threads.start()
        self._opened = Deferred.fromCoroutine(self._open())
        self._opened.addErrback(self._cannot_start)

    def _cannot_start(self, failure: Failure) -> None:
        self._log.failure("the node cannot start", failure)
        self.stop_with(ExitCode.IO_ERROR, f"the node cannot start: {failure.getErrorMessage()}")

    async def _open(self) -> None:
        try:
            await self._run_in_thread(self._take_promoted_role)
            self._check_not_stopping()
            store = self._store = await self._opening.run()
            if not self._is_stopping:
                self._start_services(store)
        except OpeningStopped:
            self._log.info("stopped before the store was open")
        except CannotRepair as error:
            self.stop_with(error.exit_code, str(error))
        except StoreInUse as error:
            self.stop_with(ExitCode.IN_USE, str(error))
        except UnsupportedStore as error:
            self.stop_with(ExitCode.USAGE, str(error))
        except StoreError as error:
            self.stop_with(ExitCode.CORRUPT, str(error))
        except OSError as error:
            self.stop_with(ExitCode.IO_ERROR, f"cannot open {self._plan.settings.store_path_root_dir}: {error}")

    def _check_not_stopping(self) -> None:
        if self._is_stopping:
            raise OpeningStopped("the node stops before its store is open")

    def _take_promoted_role(self) -> None:
        """Run as the master that a promotion has made of this store, although the options say slave.

        Raises StoreError, OSError.
        """
        settings = self._plan.settings
        role = promoted_role(settings.store_path_root_dir)
        if role is None or settings.broker_role is not BrokerRole.SLAVE:
            return
        if self._plan.slave.once:
            raise UnsupportedStore(f"{settings.store_path_root_dir} was promoted to {role}: it copies no master")
        self._log.warn(
            "the store was promoted to {role}: this node runs as {role}, not as a slave. Start it with --role of a "
            "master from now on; rmqha rewind makes the store a slave's again",
            role=role,
        )
        self._plan, self._is_promoted = _as_master(self._plan, BrokerRole(role)), True
        self._opening = self._opening_of_plan()

    def _master_before_open(self) -> IStreamClientEndpoint | None:
        """How a slave reaches its master before its store is open; None for a master, or if the address is unknown."""
        plan = self._plan
        if plan.settings.broker_role is not BrokerRole.SLAVE:
            return None
        if plan.master is not None or not plan.name_servers:
            return plan.master
        return self._search_master()

    def _search_master(self) -> MasterSearch:
        """The way to the master for a slave that does not register with the name servers, or not yet."""
        plan = self._plan
        endpoints = [endpoint for _, endpoint in plan.name_servers]
        return MasterSearch(endpoints, plan.settings, plan.connect, IReactorTime(self._reactor))

    def _ways_to_master(self) -> tuple[IStreamClientEndpoint, IStreamClientEndpoint | None]:
        """The endpoints of the master's HA port and remoting port; None if its remoting port must not be asked."""
        plan = self._plan
        if plan.master is not None:
            return plan.master, plan.master_remoting
        if plan.slave.once:  # it does not register, so no name server tells it by itself
            self._searched_master = self._search_master()
            return self._searched_master, self._searched_master.remoting
        return self._told_master, self._told_master_remoting

    def _start_services(self, store: MessageStore) -> None:
        """Create and start the services of the node's role."""
        plan, clock = self._plan, IReactorTime(self._reactor)
        self._replicating = replicating = Replicating(store, plan.settings, self._machine)
        self._flusher = replicating.flusher
        SERVICES[plan.settings.broker_role](self, store, self._flusher)
        acknowledged = self._serving.factory.acknowledged if self._serving is not None else dict
        self._services.add("retention", CleaningService(store, plan.hold, acknowledged, clock, self._disk_failed))
        self._services.add("state file", replicating.keep_state(self.state))
        snapshots = TableSnapshots(store, self._run_in_table_thread, self._machine.now_ms)
        self._services.add(
            "table snapshots",
            PeriodicService("a snapshot of the tables", SNAPSHOT_SECONDS, snapshots.write_if_changed, clock),
        )
        self._services.setServiceParent(self)
        if self._is_promoted and self._broker is not None:
            self._broker.promoted()
        if self._control is None:
            self._control = ControlService(store.root, {"promote": self._promote}, self._reactor)
            self._control.setServiceParent(self)
        gc.set_threshold(*SELDOM)
        gc.freeze()  # the tables stay in memory: a collection over 100,000 rows takes longer than a turn

    def _run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        running: Deferred[Any] = deferToThreadPool(self._reactor, self._threads, function)
        return running

    def _run_in_table_thread(self, function: Callable[[], None]) -> Deferred[None]:
        """For writes of tables, which would delay flushes that puts wait for."""
        running: Deferred[None] = deferToThreadPool(self._reactor, self._table_threads, function)
        return running

    def when_open(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the store is open and the services run; never if the node stops before that."""

        def opened(_: None) -> None:
            if self._services.running:
                call()

        assert self._opened is not None, "the node was started"
        self._opened.addCallback(opened)

    @property
    def store(self) -> MessageStore:
        """The node's store, open while the node runs."""
        assert self._store is not None, "the store is open while a node runs"
        return self._store

    def run_master(self, store: MessageStore, flusher: Flusher) -> None:
        """Serve the log on the HA port, and facts about it on the remoting ports."""
        self._serve_slaves(store)
        self._listen_for_remoting()

    def _serve_slaves(self, store: MessageStore) -> None:
        settings = self._plan.settings
        half_of_files = max(1, _open_files() // 2)  # the rest is for the store and the other ports
        assert self._replicating is not None, "the store is open"
        self._serving = self._replicating.serve_slaves(self._slave_check, half_of_files)
        factory = self._serving.factory
        self._listen("ha", settings.ha_port, factory, ": everyone who reaches it can read the log", self._ha_listening)

    def _ha_listening(self, port: int) -> None:
        if self._broker is not None:
            self._broker.ha_listening(port)

    def run_slave(self, store: MessageStore, flusher: Flusher) -> None:
        """Copy the master's log, serve it to slaves of this slave, and facts about it on the remoting ports."""
        plan, clock = self._plan, IReactorTime(self._reactor)
        master, remoting = self._ways_to_master()
        ask = None if remoting is None else partial(view_of_master, remoting, clock)
        access = MasterAccess(master, ask, self._master_ha_address)
        assert self._replicating is not None, "the store is open"
        self._slave = self._replicating.follow(
            plan.slave, access, self._leave, self._slave_in_state, self._start_rewind
        )
        self._slave.describe_fork = self._describe_fork
        self._services.add("slave", self._slave)
        if not plan.slave.once:
            self._serve_slaves(store)
            self._listen_for_remoting()

    def _listen_for_remoting(self) -> None:
        """Answer clients. A master takes their messages, a slave does not."""
        settings, clock = self._plan.settings, IReactorTime(self._reactor)
        broker = BrokerService(
            settings,
            self.store,
            clock,
            self._run_in_table_thread,
            Surroundings(
                self._plan.bind_address,
                [*self._plan.name_servers, *self._embed_name_server()],
                self._plan.connect,
                self._plan.master_address,
                self._master_found,
            ),
        )
        self._broker = broker
        about_node = runtime_processors(self._runtime_info, broker.config)
        limits = broker_limits(settings, _connections_of(settings))
        main, fast = [
            RemotingFactory(
                {**broker.processors(fast_port), **about_node},
                clock,
                limits,
                PortBudget(clock, settings.server_max_request_bytes, settings.server_max_answer_bytes),
                broker.turns,
            )
            for fast_port in (False, True)
        ]
        mode = settings.tls_server_mode
        self._listen(
            "remoting", settings.listen_port, main, listening=broker.listening, mode=mode, services=broker.ports
        )
        self._listen("fast remoting", settings.fast_port, fast, mode=mode, services=broker.ports)
        self._services.add("broker", broker)

    def _embed_name_server(self) -> NameServers:
        """Run a name server if the plan has one. Returns its name and an endpoint, which needs no port."""
        if self._plan.embedded_port is None:
            return ()
        clock, settings = IReactorTime(self._reactor), self._plan.settings
        name_server = NameServerService(clock, self.store.root / CONFIG_FOLDER, self._run_in_table_thread)
        self._services.add("name server", name_server)
        factory = RemotingFactory(
            name_server.processors(),
            clock,
            name_server_limits(_connections_of(settings), settings.server_max_requests_in_progress),
            PortBudget(clock, settings.server_max_request_bytes, settings.server_max_answer_bytes),
        )
        self._listen("name server", self._plan.embedded_port, factory, mode=settings.tls_server_mode)
        return [("of this node", LoopbackEndpoint(factory, clock))]

    def _master_found(self, addresses: MasterAddresses) -> None:
        """Take the master's addresses from a name server. They stay when the master is gone: it may return."""
        if addresses.master_addr is not None:
            self._told_master_remoting.tell(addresses.master_addr)
        if addresses.ha_server_addr is not None:
            self._told_master.tell(addresses.ha_server_addr)

    def _listen(
        self,
        name: str,
        port: int,
        factory: Any,
        if_plain: str = "",
        listening: Callable[[int], None] = lambda _: None,
        mode: TlsMode | None = None,
        services: OrderedServices | None = None,
    ) -> None:
        """Add a port to ``services``, or to the node's own."""
        if isinstance(factory, RemotingFactory):
            self._answering.append(factory)
        tls = None if mode is TlsMode.DISABLED else self._plan.tls
        takes_plain = mode is TlsMode.PERMISSIVE
        endpoint = tcp_endpoint(self._reactor, port, self._plan.bind_address)
        if tls is not None:
            endpoint = tls.endpoint(endpoint, IReactorTime(self._reactor), self._slave_check.refused, takes_plain)
        security = f"plain{if_plain}" if tls is None else f"{tls}{', or plain' if takes_plain else ''}"
        service = ListeningService(
            endpoint, factory, name, security, lambda error: self.stop_with(ExitCode.IO_ERROR, error), listening
        )
        (self._services if services is None else services).add(f"{name} port", service)

    def _runtime_info(self) -> dict[str, str]:
        assert self._broker is not None, "the broker answers this request"
        return {**self._broker.runtime_info.table(), NODE_STATE_KEY: orjson.dumps(self.state().as_json()).decode()}

    def _slave_in_state(self, state: ReplicaState) -> None:
        """Unregister a slave while its log does not fit its master's, so that it serves no consumers."""
        if state in VERDICTS:
            self._verdict = state.name
        elif state in (ReplicaState.CATCHING_UP, ReplicaState.IN_SYNC):
            self._verdict = None
        if self._broker is not None and self._plan.settings.unregister_unfit_slave:
            self._broker.set_fit(state not in VERDICTS, f"it is {state.name}: {state.value}")

    def _master_ha_address(self) -> str | None:
        searched = None if self._searched_master is None else self._searched_master.ha_address
        return self._plan.settings.ha_master_address or searched or self._told_master.address

    def state(self) -> NodeState:
        """The current state, for state.json."""
        return replace(
            state_of_log(self.store, self._plan.settings, self._serving),
            peers=self._peers(),
            **(_facts_of_master(self._started_at) if self._slave is None else self._facts_of_slave(self._slave)),
            warnings=tuple(self._warnings()),
        )

    def _facts_of_slave(self, slave: HASlaveService) -> dict[str, Any]:
        return {
            "state": slave.replica.state.name,
            "lag_bytes": slave.lag_bytes,
            "lag_seconds": slave.lag_seconds,
            "master": self._master_ha_address(),
            "last_contact": slave.last_contact,
            "contact_limit": slave.contact_limit,
            "since": slave.since,
            "reason": slave.reason,
            "tables": None if self._broker is None else self._broker.slave_synchronize.facts(),
            "verdict": self._verdict,
        }

    async def _promote(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order of ``rmqha promote``. Raises OrderRefused, StoreError, OSError."""
        try:
            role, dry_run, force = BrokerRole(order["role"]), bool(order["dryRun"]), bool(order["force"])
        except (KeyError, ValueError) as error:
            raise OrderRefused(ExitCode.USAGE, f"the order does not say which role: {error}") from error
        self._check_promotable(force)
        settings, before = self._plan.settings, self.state()
        if dry_run:
            planning = partial(plan_promotion, settings, role, before)
            found: Promotion = await deferToThreadPool(self._reactor, self._table_threads, planning)
            return self._promotion_answer(found)
        self._is_changing, self._opened = True, Deferred()  # a stop waits for it
        try:
            return self._promotion_answer(await self._become_master(role, before))
        finally:
            self._is_changing = False
            self._opened.callback(None)

    def _check_promotable(self, force: bool) -> None:
        """Raises OrderRefused for a node that is a master, or whose master is alive, or whose log does not fit."""
        if self._is_changing or self._is_stopping:
            raise OrderRefused(ExitCode.IN_USE, "the node is being promoted, rewound or stopped")
        if self._slave is None:
            raise OrderRefused(ExitCode.USAGE, "its node is a master already")
        state = self._slave.replica.state
        if self._verdict in UNFIT and not force:
            reason = f"it is {self._verdict} ({self._slave.reason}): promote another slave. --force promotes this one"
            raise OrderRefused(UNFIT[self._verdict], reason)
        if state is not ReplicaState.CONNECTING and not force:
            raise OrderRefused(
                ExitCode.IN_USE,
                f"it is {state.name}: its master at {self._master_ha_address()} is alive. Stop that one first; --force "
                "makes two masters",
            )

    def _promotion_answer(self, promotion: Promotion) -> dict[str, Any]:
        names = [name for name, _ in self._plan.name_servers]
        return {**promotion_as_json(promotion), "nameServers": names}

    async def _become_master(self, role: BrokerRole, before: NodeState) -> Promotion:
        """Stop being a slave, promote the store, and go on as its master. Raises StoreError, OSError.

        After a failure the node ends. The disk then has a slave's store, or a promoted one.
        """
        try:
            return await self._reopen_as_master(role, before)
        except Exception as error:
            self.stop_with(ExitCode.IO_ERROR, f"the promotion failed: {error}")
            raise

    async def _reopen_as_master(self, role: BrokerRole, before: NodeState) -> Promotion:
        self._log.warn("promoted to {role}: this node stops following its master", role=role.value)
        await maybeDeferred(self._services.disownServiceParent)
        known = self.store.known_log()
        await self._close_to_open_again()
        self._plan, self._is_promoted = _as_master(self._plan, role), True
        self._opening = self._opening_of_plan(known)
        self._store = await self._opening.run()
        now_ms = self._machine.now_ms()
        promoting = partial(promote_open_store, self._store, role, now_ms, before, "promoted")
        promotion: Promotion = await self._run_in_thread(promoting)
        self._started_at = time.time()
        if not self._is_stopping:
            self._start_services(self._store)
        self._log.warn(
            "this node is the {role} now, epoch {epoch}, from {end} on",
            role=role.value,
            epoch=promotion.epoch,
            end=promotion.end,
        )
        return promotion

    async def _close_to_open_again(self) -> None:
        """Close the store after its services have stopped. Raises OSError."""
        store = self.store
        await store.close(self._flusher, self._final_state)
        if store.is_broken:
            raise OSError("the disk refused the last flush")
        for factory in self._answering:  # clients that stay connected would ask the closed store
            factory.close_connections()
        self._answering = []
        self._store = self._slave = self._broker = self._serving = self._flusher = self._replicating = None
        self._services = OrderedServices()

    def _start_rewind(self) -> bool:
        """Cut the log back to where it and the master's part; false if that has just failed, or another change runs."""
        clock = IReactorTime(self._reactor)
        if self._is_changing or self._is_stopping or clock.seconds() < self._next_rewind:
            return False
        self._is_changing, self._next_rewind = True, clock.seconds() + REWIND_PAUSE_SECONDS
        self._opened = Deferred.fromCoroutine(self._rewind())  # a stop waits for it
        self._opened.addErrback(self._cannot_start)
        return True

    async def _rewind(self) -> None:
        """Stop the services, cut the log back, and follow the master. Raises StoreError, OSError."""
        settings = self._plan.settings
        await deferLater(IReactorTime(self._reactor), 0)  # the caller is one of the services
        await maybeDeferred(self._services.disownServiceParent)
        try:
            fork = await self._find_fork()
            await self._close_to_open_again()
            if fork is not None and fork.offset < fork.our_end:
                done: Rewound = await self._run_in_thread(partial(rewind, settings, fork.offset))
                self._log.warn(
                    "rewound to {end}, where the master's log and ours part: {size} bytes are cut, and kept in {kept}; "
                    "epoch {epoch}",
                    end=done.end,
                    size=fork.our_end - done.end,
                    kept=str(done.kept_in),
                    epoch=done.epoch,
                )
        finally:
            self._is_changing = False
        self._opening = self._opening_of_plan()
        if not self._is_stopping:
            await self._open()

    async def _describe_fork(self) -> str:
        """A line that says where our log and the master's part. Raises what ``find_fork_with_master`` raises."""
        try:
            fork = await self._search_fork()
        except NothingInCommon as error:
            return str(error)
        first = await self._run_in_thread(partial(record_at, self.store.commit_log, fork))
        return fork_line(fork, first)

    def _search_fork(self) -> Deferred[Fork]:
        master, remoting = self._ways_to_master()
        clock, log = IReactorTime(self._reactor), self.store.commit_log
        ask_range = None if remoting is None else partial(ask_master_range, remoting, clock)
        finding = find_fork_with_master(log, log.verified_offset, master, ask_range, clock, run=self._run_in_thread)
        self._finding_fork = Deferred.fromCoroutine(finding)
        return self._finding_fork

    async def _find_fork(self) -> Fork | None:
        """Where our log and the master's part; None if it is unknown: the log says why."""
        try:
            return await self._search_fork()
        except Exception as error:  # of any kind: nothing was changed, and the slave tries again
            self._log.error("the log is not rewound: {reason}", reason=reason_of(error))
            return None

    def _warnings(self) -> list[str]:
        """What an operator should know in any state."""
        found = [] if self._slave is None else self._slave.warnings
        progress = self.store.derived.dispatcher.progress
        if progress is not None:
            found = [*found, progress]
        if self._broker is not None:
            found = [*found, *self._broker.warnings()]
        return [*found, *self._stop_problems()]

    def _stop_problems(self) -> list[str]:
        """Services that did not stop cleanly, one line each."""
        return [*self._services.problems, *(() if self._broker is None else self._broker.stop_problems)]

    def _final_state(self) -> NodeState:
        """The state after a clean stop."""
        state = self.state()
        return state if self._slave is not None else replace(state, state=STOPPED, since=iso_of(time.time()))

    def _peers(self) -> tuple[dict[str, Any], ...]:
        return () if self._serving is None else tuple(each.facts() for each in self._serving.factory.connections)

    def _disk_failed(self, failure: Failure) -> None:
        self.stop_with(ExitCode.IO_ERROR, f"the disk failed, nothing more is acknowledged: {failure.getErrorMessage()}")

    def stopService(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._is_stopping = True
        self._opening.stop()
        if self._finding_fork is not None:
            self._finding_fork.cancel()
        if self._opened is not None:
            await self._opened
        try:
            if self._store is not None:
                self._store.end_puts()
            await ProcessService.stopService(self)
            if self._store is not None:
                await self._store.close(self._flusher, self._final_state if self._flusher is not None else None)
                self._log.info("stopped at {offset}", offset=self._store.commit_log.verified_offset)
            problems = self._stop_problems()
            if problems:
                self.stop_with(ExitCode.IO_ERROR, "; ".join(problems))
        except OSError as error:
            self.stop_with(ExitCode.IO_ERROR, f"the store could not be closed cleanly: {error}")
        finally:
            for threads in (self._table_threads, self._threads):
                if threads.started:
                    threads.stop()


def _as_master(plan: NodePlan, role: BrokerRole) -> NodePlan:
    """The plan of the same node as a master."""
    settings = replace(plan.settings, broker_role=role, broker_id=0, ha_master_address="")
    return replace(
        plan, settings=settings, slave=SlaveOptions(), master=None, master_remoting=None, master_address=None
    )


def _facts_of_master(started_at: float) -> dict[str, Any]:
    """The facts of a node that has no master."""
    unknown = ("lag_bytes", "lag_seconds", "master", "last_contact", "contact_limit", "reason", "tables", "verdict")
    return {"state": "SERVING", "since": iso_of(started_at), **dict.fromkeys(unknown)}


def _open_files() -> int:
    """How many files the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if files == resource.RLIM_INFINITY else files


def _connections_of(settings: Settings) -> int:
    """The limit of connections of each remoting port: at most an eighth of the files that the process may open."""
    return min(settings.server_max_connections, max(1, _open_files() // 8))


SERVICES: dict[BrokerRole, Callable[[Node, MessageStore, Flusher], None]] = {
    BrokerRole.ASYNC_MASTER: Node.run_master,
    BrokerRole.SYNC_MASTER: Node.run_master,
    BrokerRole.SLAVE: Node.run_slave,
}
