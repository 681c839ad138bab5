"""A node of a failover cluster: its coordinator says who leads, the agent decides, and the node does it.

The node opens its store as a slave of nobody, even if --role is a master's. Then the agent calls the
methods of ``INode``.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha import __version__
from rmqha.broker.brokerservice import FIRST_SLAVE_ID
from rmqha.coordination.interface import ICoordinator
from rmqha.failover.agent import FailoverAgent, Identity, Times
from rmqha.failover.facts import facts_of
from rmqha.failover.keys import Member
from rmqha.failover.knownfile import note_flushed, read_known, write_known
from rmqha.failover.member import DiskFull, Following, Known, NodeFacts, NodeFailed, Promise
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.ha.slave.greeting import GreetingEndpoint
from rmqha.ha.slave.service import OnFork, SlaveOptions
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import host_and_port
from rmqha.node.leaderendpoint import LeaderEndpoint
from rmqha.node.node import Node, Phase
from rmqha.node.plan import Membership, NodePlan
from rmqha.node.promising import ask_for_promise
from rmqha.ops.control import OrderRefused
from rmqha.ops.process import Leave
from rmqha.settings.settings import BrokerRole, FlushDiskType, Settings, TlsMode
from rmqha.store.epochs import forget_promotion, read_epochs
from rmqha.store.errors import StoreError, is_disk_full, with_advice
from rmqha.store.messagestore import MessageStore
from rmqha.store.offline.promote import NotPromotable, Reason, check_disk
from rmqha.store.opening import OpeningStopped

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LEAVE_SECONDS = 20.0
"""How long a stop waits until the agent has handed the lead over, and the coordinator knows it."""
ANY_ADDRESSES = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """How a node takes part in a failover cluster. ``coordinator`` makes the client of the coordinator.

    ``name`` is the member's; None takes the host's name and the remoting port.
    """

    coordinator: Callable[[], ICoordinator]
    name: str | None = None
    is_founder: bool = False
    priority: int = 100
    no_failover: bool = False


def boot_time() -> float:
    """Seconds of a clock that goes on while the machine sleeps, and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """What tells this boot of the machine from others. Raises OSError."""
    return BOOT_ID.read_text().strip()


def as_follower(settings: Settings, broker_id: int = 0, master: str = "") -> Settings:
    """The settings of the node while it is a slave: of the leader with this HA port, or of nobody."""
    return replace(
        settings,
        broker_role=BrokerRole.SLAVE,
        broker_id=broker_id or settings.broker_id,
        ha_master_address=master,
    )


class ClusterNode(Node):
    """A member of a failover cluster (``INode``)."""

    _log = Logger()

    def __init__(self, plan: NodePlan, failover: FailoverPlan, reactor: Any, leave: Leave) -> None:
        self._failover = failover
        self.agent: FailoverAgent | None = None
        """It exists once the store has been open."""
        self._facts: NodeFacts | None = None
        self._boot = ""
        self._log_epoch = 0
        self._broker_id = FIRST_SLAVE_ID
        """The id under which name servers know the node while it is a slave."""
        self._is_leaving = False
        self._configured = plan.settings
        self._on_gap = plan.slave.on_gap
        name = self._name(plan.settings.listen_port)
        leader = LeaderEndpoint(failover.coordinator, plan.settings, name, plan.connect)
        membership = Membership(self._promise, self._cluster_facts, has_id=False, leader=leader)
        settings = as_follower(plan.settings)
        plan = replace(plan, settings=settings, slave=self._options(None), member=membership)
        plan = replace(plan, master=None, master_remoting=None, master_address=None)
        super().__init__(plan, reactor, leave)

    # The first start

    def _take_promoted_role(self) -> None:
        """The coordinator says which role the node has, not what it was promoted to. Raises StoreError, OSError."""
        root = self._plan.settings.store_path_root_dir
        if self._plan.settings.broker_role is BrokerRole.SLAVE:
            forget_promotion(root)
        epochs = read_epochs(root)
        self._log_epoch = epochs[-1].epoch if epochs else 0

    async def _run(self, store: MessageStore) -> None:
        await super()._run(store)
        if self.agent is None and self._open_node is not None and not self._is_stopping:
            self.when_open(self._join)

    def _join(self) -> None:
        """Take part in the cluster from now on."""
        self._run_in_thread(self._read_boot).addCallbacks(lambda _: self._start_agent(), self._disk_failed)

    def _read_boot(self) -> None:
        self._boot = boot_id()

    def _start_agent(self) -> None:
        if self._is_leaving:
            return
        failover, settings = self._failover, self._configured
        broker = self.open_node.broker
        assert broker is not None, "a member serves clients"
        identity = Identity(
            settings.broker_cluster_name,
            settings.broker_name,
            self._name(broker.addresses.store_host.port),
            os.urandom(16),
            failover.is_founder,
            failover.priority,
            failover.no_failover,
            __version__,
        )
        times = Times(IReactorTime(self._reactor), boot_time)
        self.agent = FailoverAgent(identity, failover.coordinator(), self, times)
        self.agent.startService()

    def _name(self, port: int) -> str:
        """The member's name, if its remoting port is this one."""
        return self._failover.name or f"{socket.gethostname()}-{port}"

    def _promise(self, promise: Promise) -> bool:
        return self.agent is not None and self.agent.promise(promise)

    def _cluster_facts(self, changes: int) -> dict[str, Any]:
        return facts_of(self.agent, changes)

    # What the agent asks: INode

    def facts(self) -> NodeFacts:
        node = self._open_node
        if node is not None and node.broker is not None:
            log, settings = node.store.commit_log, node.store.settings
            state = "SERVING" if node.slave is None else node.slave.replica.state.name
            self._facts = NodeFacts(
                node.store.node_state.store_id,
                self._boot,
                settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
                log.verified_offset,
                log.min_offset,
                max(self._log_epoch, node.store.node_state.epoch),
                state if self._phase is Phase.RUNNING else self._phase.name,
                self._published(node.broker.addresses.ha_server_addr, None),
                self._published(node.broker.addresses.broker_addr, settings.tls_server_mode),
                self._http_address(node.broker.addresses.broker_ip1),
                node.store.has_no_room,
                node.store.node_state.unproved_from is None,
            )
        assert self._facts is not None, "the agent starts when the store is open"
        if node is None:
            return replace(self._facts, state=self._phase.name)
        return self._facts

    def _published(self, address: str, mode: TlsMode | None) -> str:
        """An address of ours, as other members connect to it."""
        uses_tls = self._plan.tls is not None and mode is not TlsMode.DISABLED
        return f"tls:{address}" if uses_tls else address

    def _http_address(self, host: str) -> str:
        http = self._plan.http
        if http is None or not http.port:
            return ""
        return host_and_port(host if http.address in ANY_ADDRESSES else http.address, http.port)

    async def read_known(self) -> Known:
        known: Known = await self._on_disk(read_known, self._root)
        return known

    async def write_known(self, known: Known) -> None:
        await self._on_disk(write_known, self._root, known)

    async def check_room(self) -> None:
        await self._on_disk(_check_room, self._root)

    @property
    def _root(self) -> Path:
        return self._plan.settings.store_path_root_dir

    async def _on_disk(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of the disk in a thread. Raises DiskFull; NodeFailed, and the node stops."""
        try:
            return await self._run_in_thread(partial(function, *arguments))
        except NotPromotable as error:
            raise DiskFull(str(error)) from error
        except StoreError as error:
            self.stop_with(ExitCode.CORRUPT, str(error))
            raise NodeFailed(str(error)) from error
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(str(error)) from error
            self._disk_failed(Failure(error))
            raise NodeFailed(f"the disk failed: {error}") from error

    async def follow(self, leader: Following | None, broker_id: int) -> None:
        await self._settled()
        self._broker_id = broker_id
        node = self.open_node
        is_slave_of_nobody = node.slave is not None and node.slave.running and self._plan.master is None
        if leader is None and is_slave_of_nobody:
            self._plan = replace(self._plan, settings=replace(self._plan.settings, broker_id=broker_id))
            if node.broker is not None:
                node.broker.register_as_slave(broker_id)
            return
        await self._on_disk(_check_reopening, node.store)
        self.facts()
        plan = self._plan_to_follow(leader, broker_id)
        self._enter(Phase.CHANGING)
        self._work(self._reopen(plan))
        await self._settled()

    def _plan_to_follow(self, leader: Following | None, broker_id: int) -> NodePlan:
        """Raises NodeFailed for an address of the leader that cannot be used."""
        plan = self._plan
        epoch = plan.member.epoch if plan.member is not None else 0
        try:
            master = None if leader is None else GreetingEndpoint(plan.connect(leader.ha), leader.hello)
            remoting = None if leader is None else plan.connect(leader.remoting)
        except ValueError as error:
            raise NodeFailed(f"the leader's address cannot be used: {error}") from error
        return replace(
            plan,
            settings=as_follower(plan.settings, broker_id, "" if leader is None else leader.ha),
            slave=self._options(leader),
            master=master,
            master_remoting=remoting,
            master_address=None if leader is None else leader.remoting,
            is_promoted=False,
            member=Membership(
                self._promise, self._cluster_facts, epoch if leader is None else max(epoch, leader.hello.epoch)
            ),
        )

    def _options(self, leader: Following | None) -> SlaveOptions:
        return SlaveOptions(
            on_gap=self._on_gap,
            on_diverged=OnFork.REWIND,
            on_ahead=OnFork.REWIND,
            hello=b"" if leader is None else leader.hello.encode(),
        )

    async def _reopen(self, plan: NodePlan) -> None:
        """Close the store, and open it as the slave that the plan says."""
        node = self.open_node
        await maybeDeferred(node.services.disownServiceParent)
        try:
            known = node.store.known_log()
            await self._close_to_open_again()
        except OSError as error:
            said = with_advice(error, self._plan.settings.store_path_root_dir)
            self.stop_with(ExitCode.IO_ERROR, f"the store could not be closed cleanly: {said}")
            return
        self._use(plan, known)
        self._next_rewind = 0.0
        if not self._is_stopping:
            self._enter(Phase.OPENING)
            await self._open()

    async def _settled(self) -> None:
        """Wait until no change of the role runs. Raises NodeFailed if the node cannot go on."""
        while self._phase in (Phase.OPENING, Phase.CHANGING) and self._working is not None:
            working = self._working
            done: Deferred[None] = Deferred()
            working.addBoth(_pass_on, done)
            await done
            if self._working is working:
                break
        if self._phase is not Phase.RUNNING or self._open_node is None:
            raise NodeFailed(f"the node is {self._phase.value}")

    async def stop_following(self) -> int:
        await self._settled()
        node = self.open_node
        if node.slave is not None:
            await maybeDeferred(node.slave.stopService)
        end: int = node.store.commit_log.verified_offset
        return end

    async def lead(self, leadership: Leadership, cause: str) -> int:
        await self._settled()
        self.facts()
        plan = self._plan.as_master(BrokerRole.SYNC_MASTER)
        plan = replace(plan, member=Membership(self._promise, self._cluster_facts, leadership.epoch, leadership))
        self._enter(Phase.CHANGING)
        waiting: Deferred[int] = Deferred()  # who cancels it ends the wait, not the change
        Deferred.fromCoroutine(self._become_leader(plan, leadership, cause)).chainDeferred(waiting)
        return await waiting

    async def _become_leader(self, plan: NodePlan, leadership: Leadership, cause: str) -> int:
        changed = self._working = Deferred()
        try:
            promotion = await self._reopen_as_master(plan, self.open_node.state(), Reason(cause, leadership.epoch))
        except OpeningStopped as error:
            raise NodeFailed(f"{error}: it is still a slave's") from error
        except Exception as error:  # of any kind: a node that is half promoted must not go on
            self.stop_with(ExitCode.IO_ERROR, f"the promotion failed: {error}")
            raise NodeFailed(f"the promotion failed: {error}") from error
        finally:
            changed.callback(None)
        self._log_epoch = leadership.epoch
        if not leadership.is_held():  # the process may have stood still meanwhile
            self.fence()
        return promotion.end

    def fence(self) -> None:
        if self._open_node is not None:
            self._open_node.fence(self._broker_id)

    def give_up(self, reason: str) -> None:
        self.stop_with(ExitCode.IO_ERROR, reason)

    async def reinit(self) -> None:
        await self._settled()
        slave = self.open_node.slave
        if slave is not None and slave.holds_records():
            try:
                await slave.reseed()
            except OSError as error:
                self._disk_failed(Failure(error))
                raise NodeFailed(f"the disk failed: {error}") from error

    @property
    def members(self) -> SyncMembers | None:
        node = self._open_node
        return None if node is None or node.serving is None else node.serving.members

    async def ask_promise(self, member: Member, promise: Promise) -> bool | None:
        try:
            return await ask_for_promise(self._plan.connect(member.remoting), promise, IReactorTime(self._reactor))
        except Exception as error:  # of any kind: without an answer there is no promise
            self._log.warn(
                "{member} does not promise to wait: {reason}",
                event=Event.PROMISE_NOT_GIVEN,
                member=member.name,
                reason=reason_of(error),
            )
            return None

    # Orders, and the end

    async def _promote(self, order: Mapping[str, Any]) -> dict[str, Any]:
        raise OrderRefused(
            ExitCode.USAGE, "its node is a member of a failover cluster: use rmqha cluster switchover or failover"
        )

    async def _stop(self) -> None:
        """Leave the cluster first: a leader hands over."""
        self._is_leaving = True
        self._opening.stop()
        if self._finding_fork is not None:
            self._finding_fork.cancel()
        if self.agent is not None:
            leaving = self.agent.stopService()
            try:
                await leaving.addTimeout(LEAVE_SECONDS, IReactorTime(self._reactor))
            except (TookTooLong, CancelledError):
                self._log.info(
                    "the coordinator does not know that this node stops: it did not answer in {seconds:g} s",
                    event=Event.FAILOVER_WAITS,
                    seconds=LEAVE_SECONDS,
                )
        await super()._stop()

    async def _note_flushed(self) -> None:
        await self._run_in_thread(partial(note_flushed, self._root, self._boot))


def _check_room(store: Path) -> None:
    """Raises NotPromotable if the disk has too little room, OSError if it takes no more files, as with a quota."""
    check_disk(store)
    write_known(store, read_known(store))


def _check_reopening(store: MessageStore) -> None:
    """Raises OSError if the disk has too little room to close the store, or takes no more files, as with a quota."""
    store.check_room()
    write_known(store.root, read_known(store.root))


def _pass_on(result: Any, waiting: Deferred[None]) -> Any:
    """Tell one that waits for a Deferred that it has fired, and leave its result as it is."""
    waiting.callback(None)
    return result
