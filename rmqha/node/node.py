"""A running node: opens its store, runs the services of its role, changes its role, and stops cleanly.

``makeService`` in ``tap`` builds it. Nothing runs before ``startService``, because twistd may become a daemon until
then, and the lock of a store does not survive that.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from rmqha.ha.slave.forkprobe import OurLog, find_fork_with_master
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import is_address, wait_for_address
from rmqha.node.core import Phase, RoleChanger
from rmqha.node.interfaces import IHost, IProcess
from rmqha.node.masterendpoints import MasterEndpoints
from rmqha.node.opennode import FOUND_BY_NOBODY, OpenNode
from rmqha.node.plan import FailoverPlan, NodePlan
from rmqha.node.promotionorder import PromotionOrder
from rmqha.node.rereading import Rereading, change_live
from rmqha.ops.control import ControlService, OrderRefused
from rmqha.ops.logs import NodeLogObserver
from rmqha.ops.places import Place, ProgressBarService
from rmqha.ops.process import Leave, ProcessService
from rmqha.remoting.asking import ask_master_range
from rmqha.settings.settings import Settings, run_time_properties, with_properties
from rmqha.store.log.mappedfile import DISK
from rmqha.store.messagestore import MessageStore
from rmqha.store.offline.fork import Fork, NothingInCommon
from rmqha.store.offline.promote import Promotion, unknown_deletions_in_words
from rmqha.store.offline.rewind import Rewound, check_room, fork_line, record_at
from rmqha.store.popinflight import popped_in_words
from rmqha.web.interfaces import IShownNode

if TYPE_CHECKING:  # a node without failover starts quicker
    from rmqha.node.member import MemberNode


@implementer(IHost, IProcess, IShownNode)
class Node(ProcessService):
    """One node as a service. To end the process it calls ``leave`` with an exit code and the reason in one line."""

    _log = Logger()
    disk = DISK

    def __init__(self, plan: NodePlan, reactor: Any, leave: Leave, failover: FailoverPlan | None = None) -> None:
        """With ``failover`` it is a member of a failover cluster, and the coordinator says who leads."""
        self._bar = plan.observer.bar if isinstance(plan.observer, NodeLogObserver) else None
        ProcessService.__init__(self, reactor, self._hiding_bar(leave), plan.observer, plan.manages_process)
        self.reactor = reactor
        self.clock = IReactorTime(reactor)
        self._threads = ThreadPool(minthreads=1, maxthreads=1, name="rmqha-flush")
        self._table_threads = ThreadPool(minthreads=0, maxthreads=1, name="rmqha-tables")
        self._rereading = Rereading(plan.settings, plan.sources, self.run_in_table_thread)
        self._looking_up: Deferred[str] | None = None
        self._finding_fork: Deferred[Fork] | None = None
        self._promotion_warning: str | None = None
        self._control = ControlService(plan.settings.store_path_root_dir, {"promote": self._promote}, reactor)
        self._member: MemberNode | None = None
        if failover is None:
            self.core = RoleChanger(plan, self)
        else:
            from rmqha.node.memberprocess import make_member  # a node without failover starts quicker

            self._member = make_member(plan, failover, self)
            self.core = self._member.core

    @property
    def open_node(self) -> OpenNode:
        """The services of the node's role, while its store is open."""
        node = self.live_node()
        assert node is not None, "the store is open while a node runs"
        return node

    def open(self) -> None:
        """Start to open the store. When it is open, the services of the node's role start."""
        self._threads.start()
        self._table_threads.start()
        self._serve_http()
        if self._bar is not None:
            ProgressBarService(self._bar, self, self.clock).setServiceParent(self)
        if self._member is None:
            self.core.open()
        else:
            self._member.open()

    def _serve_http(self) -> None:
        """Answer metrics, health checks and the status page from now on, also while the store is closed."""
        plan = self.core.plan
        if plan.http is None:
            return
        from rmqha.web.nodeweb import node_web  # a node without this port starts quicker

        endpoint = plan.http.endpoint(self.reactor)
        if plan.tls is not None:
            endpoint = plan.tls.endpoint(endpoint, self.clock, lambda host, reason: None)
        node_web(endpoint, plan.tls, self, self.reactor).setServiceParent(self)

    def _hiding_bar(self, leave: Leave) -> Leave:
        """``leave``, which prints a line, without the bar in front of it."""

        def hide_and_leave(code: ExitCode, reason: str) -> None:
            if self._bar is not None:
                self._bar.hide()
            leave(code, reason)

        return hide_and_leave

    # IShownNode: what the pages ask

    def cannot_listen(self, reason: str) -> None:
        self.stop_with(ExitCode.IO_ERROR, reason)

    @property
    def settings(self) -> Settings:
        return self.core.plan.settings

    def cluster(self, changes: int) -> dict[str, Any] | None:
        return None if self._member is None else self._member.cluster_facts(changes)

    def live_node(self) -> OpenNode | None:
        node = self.core.open_node
        assert node is None or isinstance(node, OpenNode)
        return node

    def shown_phase(self) -> str:
        core = self.core
        opening = core.opening.state_name if core.phase is Phase.OPENING and core.opening is not None else None
        return opening or core.phase.name

    def how_far(self) -> Place | None:
        core, node = self.core, self.live_node()
        if core.phase is Phase.OPENING:
            return None if core.opening is None else core.opening.place
        return None if node is None else node.place

    def status_line(self) -> str:
        """The role, what the node does, and how far it is."""
        core, settings, node = self.core, self.core.plan.settings, self.live_node()
        name = f"{settings.broker_role.value} {settings.broker_name}"
        if node is not None and core.phase is Phase.RUNNING:
            return f"{name}: {node.summary()}"
        progress = core.opening.progress if core.phase is Phase.OPENING and core.opening is not None else None
        return f"{name}: {core.phase.value}{'' if progress is None else f', {progress}'}"

    async def reload(self) -> None:
        """Read certificates and settings again. New connections use the certificates."""
        await self._rereading.reread_certificates()
        await self._rereading.reread_credentials()
        changes = await self._rereading.reread_settings()
        self._change_settings(changes)
        node = self.live_node()
        if changes and node is not None and node.broker is not None:
            change_live(node.broker.live_settings, changes, self._log)

    def _change_settings(self, changes: Mapping[str, str]) -> None:
        """From now on, and also if the node is promoted or started again."""
        plan = self.core.plan
        self.core.plan = replace(plan, settings=with_properties(plan.settings, changes))

    def stopService(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._member is not None:
            await self._member.leave()
        self.stopping()
        try:
            await self.core.stop()
        finally:
            for threads in (self._table_threads, self._threads):
                if threads.started:
                    threads.stop()
            self.stopped()

    # IProcess: what the open node asks

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        running: Deferred[Any] = deferToThreadPool(self.reactor, self._threads, function)
        return running

    def run_in_table_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        running: Deferred[Any] = deferToThreadPool(self.reactor, self._table_threads, function)
        return running

    def disk_failed(self, failure: Failure) -> None:
        self.stop_with(ExitCode.IO_ERROR, f"the disk failed, nothing more is acknowledged: {failure.getErrorMessage()}")

    def leave(self, code: ExitCode, reason: str) -> None:
        self._leave(code, reason)

    def start_rewind(self) -> bool:
        return self.core.start_rewind()

    async def describe_fork(self) -> str:
        try:
            fork = await self._search_fork()
        except NothingInCommon as error:
            return str(error)
        first = await self.run_in_thread(partial(record_at, self.open_node.store.commit_log, fork))
        return fork_line(fork, first)

    async def keep_settings(self, changes: Mapping[str, str], by: str) -> None:
        self._change_settings(changes)
        await self._rereading.keep(changes, by)

    # IHost: what changes the role asks

    def use(self, plan: NodePlan) -> None:
        self._master = MasterEndpoints(plan, self.reactor)

    async def prepare(self) -> None:
        core = self.core
        await self.run_in_thread(core.take_role)
        core.check_not_stopping()
        if not self._is_ready:  # after a change of the role the plan has the settings that mqadmin changed earlier
            settings = await self.run_in_thread(partial(self._rereading.with_kept, core.plan.settings))
            core.use(replace(core.plan, settings=settings))
            core.check_not_stopping()
        await self._look_up_names()

    async def _look_up_names(self) -> None:
        """Wait until brokerIP1 and the address of --bind can be looked up. Raises OpeningStopped."""
        core = self.core
        for what, name in (("brokerIP1", core.plan.settings.broker_ip1), ("bind", core.plan.bind_address)):
            if is_address(name.strip("[]")) or name in core.plan.addresses:
                continue
            waiting = wait_for_address(what, name, self.run_in_thread, self.clock)
            self._looking_up = Deferred.fromCoroutine(waiting)
            try:
                address = await self._looking_up
            except CancelledError:
                core.check_not_stopping()
                raise
            core.plan = replace(core.plan, addresses={**core.plan.addresses, name: address})

    def way_to_master(self) -> IStreamClientEndpoint | None:
        return self._master.before_open()

    async def open_store(self, opening: Awaitable[MessageStore]) -> MessageStore:
        return await opening

    async def run(self, store: MessageStore) -> OpenNode:
        await self._rereading.settle()
        plan = self.core.plan
        store.settings = with_properties(store.settings, run_time_properties(plan.settings))  # SIGHUP came
        node = OpenNode(plan, store, self._master, self)
        node.promotion_warning, self._promotion_warning = self._promotion_warning, None
        node.services.setServiceParent(self)
        if plan.is_found_by_nobody:
            self._log.warn("{words}", event=Event.MASTER_FOUND_BY_NOBODY, words=FOUND_BY_NOBODY)
        if plan.is_promoted and node.broker is not None:
            node.broker.promoted()
        return node

    def started(self) -> None:
        if self._control.parent is None:
            self._control.setServiceParent(self)
        self.ready()

    def _search_fork(self) -> Deferred[Fork]:
        endpoint, remoting = self._master.both()
        store = self.open_node.store
        ask_range = None if remoting is None else partial(ask_master_range, remoting, self.clock)
        finding = find_fork_with_master(
            OurLog(store.commit_log, store.commit_log.verified_offset, store.node_state.unproved_from),
            endpoint,
            ask_range,
            self.clock,
            run=self.run_in_thread,
        )
        self._finding_fork = Deferred.fromCoroutine(finding)
        return self._finding_fork

    async def find_fork(self) -> Fork:
        fork = await self._search_fork()
        await self.run_in_thread(partial(check_room, self.core.plan.settings.store_path_root_dir, fork))
        return fork

    def rewound(self, fork: Fork, done: Rewound) -> None:
        self._log.warn(
            "rewound to {end}, where the master's log and ours part: {size} bytes are cut, and kept in {kept}; "
            "epoch {epoch}",
            event=Event.REWOUND,
            end=done.end,
            size=fork.our_end - done.end,
            kept=str(done.kept_in),
            epoch=done.epoch,
        )

    def promoted(self, promotion: Promotion) -> None:
        if promotion.popped.count:
            self._promotion_warning = words = popped_in_words(promotion.popped.as_json())
            self._log.warn("{words}", event=Event.POPPED_ABANDONED, words=words, count=promotion.popped.count)
        if promotion.restarts:
            self._log.warn(
                "{words}",
                event=Event.DELETIONS_NEVER_TOLD,
                words=unknown_deletions_in_words(promotion.restarts),
                topics=list(promotion.restarts),
            )

    def stop_waiting(self) -> None:
        for waiting in (self._looking_up, self._finding_fork):
            if waiting is not None:
                waiting.cancel()

    def stop_services(self) -> Deferred[None]:
        return ProcessService.stopService(self)

    async def flushed(self) -> None:
        if self._member is not None:
            await self._member.note_flushed()

    async def _promote(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order of ``rmqha promote``. Raises OrderRefused, StoreError, OSError."""
        if self._member is not None:
            reason = "its node is a member of a failover cluster: use rmqha cluster switchover or failover"
            raise OrderRefused(ExitCode.USAGE, reason)
        return await PromotionOrder(self.core, self).carry_out(order)
