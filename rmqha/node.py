"""A running node: opens its store, runs the services of its role, and leaves everything clean.

``makeService`` in ``tap`` builds it; nothing of it runs before ``startService``, for twistd may change into a daemon
until then, and a store's lock does not survive that.
"""

import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IListeningPort, IReactorCore, IReactorTCP, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThreadPool
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from rmqha.broker.remoting import RemotingFactory
from rmqha.broker.runtimeinfo import NODE_STATE_KEY, runtime_processors, view_of_master
from rmqha.exitcodes import ExitCode
from rmqha.ha.grouptransfer import GroupTransferService
from rmqha.ha.master import HAMasterFactory, MasterTimes
from rmqha.ha.service import HASlaveService, SlaveOptions
from rmqha.ops.cleaning import CleaningService, Hold
from rmqha.ops.logs import NodeLogObserver
from rmqha.ops.statefile import StateFileService
from rmqha.settings import BrokerRole, Settings
from rmqha.store.errors import StoreError, StoreInUse
from rmqha.store.flush import FlushService
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState


@dataclass(frozen=True, slots=True)
class NodePlan:
    """All that a node is told: its settings, and what only the command line says.

    ``master`` and ``master_remoting`` are a slave's ways to its master; the latter is None where there is none.
    ``observer`` writes the node's events, None leaves that to twistd. A node that manages its process handles signals.
    """

    settings: Settings
    slave: SlaveOptions = SlaveOptions()
    master: IStreamClientEndpoint | None = None
    master_remoting: IStreamClientEndpoint | None = None
    bind_address: str = ""
    hold: Hold = Hold()
    observer: NodeLogObserver | None = None
    manages_process: bool = False


class Node(MultiService):
    """One node as a service. When it ends by itself it calls ``leave`` with an exit code and the reason in one line."""

    _log = Logger()

    def __init__(self, plan: NodePlan, reactor: Any, leave: Callable[[ExitCode, str], None]) -> None:
        MultiService.__init__(self)
        self._plan = plan
        self._reactor = reactor
        self._leave = leave
        self._store: MessageStore | None = None
        self._flusher: FlushService | None = None
        self._slave: HASlaveService | None = None
        self._ha_factory: HAMasterFactory | None = None
        self._group_transfer: GroupTransferService | None = None
        self._threads = ThreadPool(minthreads=1, maxthreads=1, name="rmqha-flush")

    def setServiceParent(self, parent: Any) -> None:
        """Become an application's service, and the place where its events go."""
        MultiService.setServiceParent(self, parent)
        if self._plan.observer is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._plan.observer)

    def startService(self) -> None:
        try:
            self._open()
        except StoreInUse as error:
            self._stop_with(ExitCode.IN_USE, str(error))
        except StoreError as error:
            self._stop_with(ExitCode.CORRUPT, str(error))
        except OSError as error:
            self._stop_with(ExitCode.IO_ERROR, f"cannot open {self._plan.settings.store_path_root_dir}: {error}")
        if self._plan.manages_process:
            self._handle_signals()
            IReactorCore(self._reactor).callWhenRunning(self._handle_signals)  # the reactor has put its own there
        MultiService.startService(self)

    def _handle_signals(self) -> None:
        """SIGTERM and SIGINT end in exit status 0, as twistd's own handlers do not; SIGHUP reopens the log file."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._stop_reactor))
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._reopen_logs))

    def _stop_reactor(self) -> None:
        with suppress(ReactorNotRunning):  # a second signal, while the first is being obeyed
            self._reactor.stop()

    def _reopen_logs(self) -> None:
        if self._plan.observer is not None:
            try:
                self._plan.observer.reopen()
            except OSError as error:
                self._log.error("cannot reopen the log file: {error}", error=str(error))
            else:
                self._log.info("log file reopened")

    def _open(self) -> None:
        plan, clock = self._plan, IReactorTime(self._reactor)
        if plan.manages_process:
            _raise_file_limit()
        self._threads.start()
        store = MessageStore(plan.settings)
        self._store = store
        self._flusher = store.start_flushing(clock, self._run_in_thread, self._disk_failed)
        store.start_dispatching(clock, self._disk_failed)
        SERVICES[plan.settings.broker_role](self, store, self._flusher)
        acknowledged = self._ha_factory.acknowledged if self._ha_factory is not None else dict
        CleaningService(store, plan.hold, acknowledged, clock, self._disk_failed).setServiceParent(self)
        state_file = StateFileService(store.root, self.state, clock, self._run_in_thread, self._disk_failed)
        state_file.setServiceParent(self)

    def _run_in_thread(self, function: Callable[[], None]) -> Deferred[None]:
        running: Deferred[None] = deferToThreadPool(self._reactor, self._threads, function)
        return running

    @property
    def store(self) -> MessageStore:
        """The node's store, open while the node runs."""
        assert self._store is not None, "the store is open while a node runs"
        return self._store

    def run_master(self, store: MessageStore, flusher: FlushService) -> None:
        """Serve the log on the HA port, and facts about it on the remoting ports."""
        self._serve_slaves(store)
        self._listen_for_remoting()

    def run_sync_master(self, store: MessageStore, flusher: FlushService) -> None:
        """As ``run_master``; puts wait for slaves."""
        log = store.commit_log
        confirmed = max(log.min_offset, min(log.verified_offset, store.node_state.offsets.confirmed))
        self._group_transfer = GroupTransferService(
            log, self._plan.settings, IReactorTime(self._reactor), confirmed_offset=confirmed
        )
        store.replicate_by(self._group_transfer)
        self.run_master(store, flusher)

    def _serve_slaves(self, store: MessageStore) -> None:
        settings = self._plan.settings
        times = MasterTimes(settings.ha_send_heartbeat_interval_ms / 1000, settings.ha_housekeeping_interval_ms / 1000)
        self._ha_factory = HAMasterFactory(
            store.commit_log,
            settings.ha_transfer_batch_size_bytes,
            times,
            IReactorTime(self._reactor),
            self._group_transfer,
        )
        self._listen("ha", settings.ha_port, self._ha_factory)

    def run_slave(self, store: MessageStore, flusher: FlushService) -> None:
        """Copy the master's log, serve it to slaves of this slave, and facts about it on the remoting ports."""
        plan, clock = self._plan, IReactorTime(self._reactor)
        assert plan.master is not None, "a slave's plan has its master"
        ask = None if plan.master_remoting is None else partial(view_of_master, plan.master_remoting, clock)
        self._slave = HASlaveService(
            store,
            flusher,
            plan.slave,
            plan.master,
            ask,
            clock,
            finished=self._leave,
            disk_failed=self._disk_failed,
        )
        self._slave.setServiceParent(self)
        if not plan.slave.once:
            self._serve_slaves(store)
            self._listen_for_remoting()

    def _listen_for_remoting(self) -> None:
        settings = self._plan.settings
        factory = RemotingFactory(runtime_processors(self._runtime_info, self._config), IReactorTime(self._reactor))
        self._listen("remoting", settings.listen_port, factory)
        self._listen("fast remoting", settings.fast_port, factory)

    def _listen(self, name: str, port: int, factory: Any) -> None:
        endpoint = TCP4ServerEndpoint(IReactorTCP(self._reactor), port, interface=self._plan.bind_address)
        service = ListeningService(endpoint, factory, name, lambda error: self._stop_with(ExitCode.IO_ERROR, error))
        service.setServiceParent(self)

    def _runtime_info(self) -> dict[str, str]:
        state = self.state()
        empty = state.offsets.min == state.offsets.verified
        return {
            "brokerVersionDesc": "V4_9_3",
            "commitLogMinOffset": "-1" if empty else str(state.offsets.min),
            "commitLogMaxOffset": str(state.offsets.verified),
            NODE_STATE_KEY: orjson.dumps(state.as_json()).decode(),
        }

    def _config(self) -> dict[str, str]:
        settings = self._plan.settings
        return {
            "brokerName": settings.broker_name,
            "brokerClusterName": settings.broker_cluster_name,
            "brokerRole": settings.broker_role.value,
            "mappedFileSizeCommitLog": str(self.store.commit_log.segment_size),
            **self.store.derived.file_settings,
        }

    def state(self) -> NodeState:
        """What this node tells of itself now."""
        role = self._plan.settings.broker_role
        return replace(
            self.store.node_state,
            role=role.value,
            state=self._slave.replica.state.name if self._slave is not None else "SERVING",
            offsets=self.store.offsets(self._confirmed_offset()),
            lag_bytes=self._slave.replica.lag_bytes if self._slave is not None else None,
            lag_seconds=self._slave.lag_seconds if self._slave is not None else None,
            peers=tuple(connection.facts() for connection in self._ha_factory.connections) if self._ha_factory else (),
        )

    def _confirmed_offset(self) -> int:
        """What no failover can take back: confirmed by enough slaves where puts wait for them, else on our own disk."""
        log = self.store.commit_log
        if self._group_transfer is not None and self._plan.settings.in_sync_replicas > 1:
            return min(log.verified_offset, max(log.min_offset, self._group_transfer.confirmed_offset))
        return max(log.min_offset, min(log.verified_offset, log.flushed_offset))

    def _stop_with(self, code: ExitCode, reason: str) -> None:
        self._log.critical("{reason}", reason=reason)
        self._leave(code, reason)

    def _disk_failed(self, failure: Failure) -> None:
        self._stop_with(
            ExitCode.IO_ERROR, f"the disk refuses, nothing more is acknowledged: {failure.getErrorMessage()}"
        )

    def stopService(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._plan.manages_process:
            self._reactor._exitSignal = None  # of a signal between the reactor's handlers and ours; twistd looks at it
        try:
            await MultiService.stopService(self)
            if self._store is not None:
                await self._store.close(self._flusher, self.state)
                self._log.info("stopped at {offset}", offset=self._store.commit_log.verified_offset)
        except OSError as error:
            self._stop_with(ExitCode.IO_ERROR, f"the store could not be closed cleanly: {error}")
        finally:
            if self._threads.started:
                self._threads.stop()


MOST_FILES = 65536


def _raise_file_limit() -> None:
    """Let the process open as many files as it is allowed to: a broker has several for each queue."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


SERVICES: dict[BrokerRole, Callable[[Node, MessageStore, FlushService], None]] = {
    BrokerRole.ASYNC_MASTER: Node.run_master,
    BrokerRole.SYNC_MASTER: Node.run_sync_master,
    BrokerRole.SLAVE: Node.run_slave,
}


class ListeningService(Service):
    """Listens, and says where; a port that cannot be had ends the node. Stopping it drops its connections."""

    _log = Logger()

    def __init__(
        self, endpoint: TCP4ServerEndpoint, factory: Factory[Any], purpose: str, failed: Callable[[str], None]
    ) -> None:
        self._endpoint = endpoint
        self._factory = factory
        self._purpose = purpose
        self._failed = failed
        self._port: IListeningPort | None = None

    def startService(self) -> None:
        Service.startService(self)
        self._endpoint.listen(self._factory).addCallbacks(self._listening, self._cannot_listen)

    def _listening(self, port: IListeningPort) -> None:
        self._port = port
        self._log.info("{purpose} port is {port}", purpose=self._purpose, port=getattr(port.getHost(), "port", None))

    def _cannot_listen(self, failure: Failure) -> None:
        self._failed(f"cannot listen for {self._purpose}: {failure.getErrorMessage()}")

    def stopService(self) -> Deferred[None] | None:
        Service.stopService(self)
        if isinstance(self._factory, HAMasterFactory):
            self._factory.close_connections()
        return None if self._port is None else self._port.stopListening()
