"""A member of a failover cluster: its coordinator says who leads, the agent decides, and the node does it.

The node opens its store as a slave of nobody, even if it is configured as a master. Then the agent calls the methods of
``INode``.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from rmqha.broker.brokerservice import FIRST_SLAVE_ID
from rmqha.failover.agent import FailoverAgent
from rmqha.failover.facts import facts_of
from rmqha.failover.keys import Member
from rmqha.failover.knownfile import note_flushed, read_known, write_known
from rmqha.failover.member import DiskFull, Following, INode, Known, NodeFacts, NodeFailed, Promise
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.ha.slave.greeting import GreetingEndpoint
from rmqha.ha.slave.slaveservice import OnFork, SlaveOptions
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.core import Phase, RoleChanger
from rmqha.node.interfaces import IHost, IOpenNode
from rmqha.node.plan import IClusterMember, Membership, NodePlan
from rmqha.settings.settings import BrokerRole, FlushDiskType, Settings
from rmqha.store.errors import StoreError, is_disk_full
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.offline.promote import NotPromotable, Reason, check_disk
from rmqha.store.opening import OpeningStopped

LEAVE_SECONDS = 20.0
"""How long a stop waits until the agent has handed the lead over, and the coordinator knows it."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """How other members, and people, reach the node's ports. ``http`` is empty without that port."""

    ha: str
    remoting: str
    http: str = ""


class IMemberHost(Interface):
    """What a member needs of the process, or of the simulated machine, around it."""

    leader: IStreamClientEndpoint | None = Attribute(
        "The way to the leader's HA port before the store was open for the first time, if there is one."
    )

    def read_boot() -> Deferred[str]:
        """What tells this boot of the machine from others. Fails with OSError."""

    def make_agent(member: "MemberNode") -> FailoverAgent:
        """The agent that decides for this member."""

    def addresses() -> Addresses:
        """Those of the node, while its store is open."""

    def ask_promise(remoting: str, promise: Promise) -> Deferred[bool]:
        """Ask the member with this remoting port for a promise. False if it refuses; fails if it does not answer."""


def as_follower(settings: Settings, broker_id: int = 0, master: str = "") -> Settings:
    """The settings of the node while it is a slave: of the leader with this HA port, or of nobody."""
    return replace(
        settings,
        broker_role=BrokerRole.SLAVE,
        broker_id=broker_id or settings.broker_id,
        ha_master_address=master,
    )


@implementer(INode, IClusterMember)
class MemberNode:
    """What the agent asks (``INode``), done by a ``RoleChanger``."""

    _log = Logger()

    def __init__(self, plan: NodePlan, host: IHost, surroundings: IMemberHost) -> None:
        """``plan`` is as configured. ``core`` opens the store as a slave of nobody, even if the plan says master."""
        self._host = host
        self._surroundings = surroundings
        self.agent: FailoverAgent | None = None
        """It exists once the store has been open."""
        self._facts: NodeFacts | None = None
        self._boot = ""
        self._broker_id = FIRST_SLAVE_ID
        """The id under which name servers know the node while it is a slave."""
        self._is_leaving = False
        self._on_gap = plan.slave.on_gap
        membership = Membership(self, has_id=False, leader=surroundings.leader)
        self.core = RoleChanger(
            replace(
                plan,
                settings=as_follower(plan.settings),
                slave=self._options(None),
                master=None,
                master_remoting=None,
                master_address=None,
                member=membership,
            ),
            host,
        )

    # The start and the end

    def open(self) -> None:
        """Start to open the store. When it is open, take part in the cluster."""
        self.core.open()
        self.core.when_open().addCallback(self._join)

    def _join(self, _: object) -> None:
        self._surroundings.read_boot().addCallbacks(self._start_agent, self._host.disk_failed)

    def _start_agent(self, boot: str) -> None:
        self._boot = boot
        if not self._is_leaving:
            self.agent = self._surroundings.make_agent(self)
            self.agent.startService()

    async def leave(self) -> None:
        """Leave the cluster: a leader hands over. The node stops after that."""
        self._is_leaving = True
        self.core.give_up_opening()
        if self.agent is None:
            return
        try:
            await self.agent.stopService().addTimeout(LEAVE_SECONDS, self._host.clock)
        except (TookTooLong, CancelledError):
            self._log.info(
                "the coordinator does not know that this node stops: it did not answer in {seconds:g} s",
                event=Event.FAILOVER_WAITS,
                seconds=LEAVE_SECONDS,
            )

    async def note_flushed(self) -> None:
        """The store is closed for good, and all of it is on the disk. Raises StoreError, OSError."""
        await self._host.run_in_thread(partial(note_flushed, self._root, self._boot, self._host.disk))

    # IClusterMember

    def promise(self, promise: Promise) -> bool:
        return self.agent is not None and self.agent.promise(promise)

    def cluster_facts(self, changes: int) -> dict[str, Any]:
        return facts_of(self.agent, changes)

    # INode

    def facts(self) -> NodeFacts:
        node, phase = self.core.open_node, self.core.phase
        if node is not None:
            store, state = node.store, "SERVING" if node.slave is None else node.slave.replica.state.name
            addresses = self._surroundings.addresses()
            self._facts = NodeFacts(
                self._boot,
                store.node_state.unproved_from is None,
                store=store.node_state.store_id,
                state=state if phase is Phase.RUNNING else phase.name,
                end=store.commit_log.verified_offset,
                synced=store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH,
                log_epoch=max(self.core.log_epoch, store.node_state.epoch),
                ha=addresses.ha,
                remoting=addresses.remoting,
                http=addresses.http,
                is_full=node.has_no_room,
            )
        assert self._facts is not None, "the agent starts when the store is open"
        return self._facts if node is not None else replace(self._facts, state=phase.name)

    async def read_known(self) -> Known:
        known: Known = await self._on_disk(partial(read_known, self._root, self._host.disk))
        return known

    async def write_known(self, known: Known) -> None:
        await self._on_disk(partial(write_known, self._root, known, self._host.disk))

    async def check_room(self) -> None:
        await self._on_disk(partial(_check_room, self._root, self._host.disk))

    @property
    def _root(self) -> Path:
        return self.core.plan.settings.store_path_root_dir

    async def _on_disk(self, function: "partial[Any]") -> Any:
        """Run a function of the disk in a thread. Raises DiskFull; NodeFailed, and the node stops."""
        try:
            return await self._host.run_in_thread(function)
        except NotPromotable as error:
            raise DiskFull(str(error)) from error
        except StoreError as error:
            self._host.stop_with(ExitCode.CORRUPT, str(error))
            raise NodeFailed(str(error)) from error
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(str(error)) from error
            raise self._disk_failed(error) from error

    def _disk_failed(self, error: OSError) -> NodeFailed:
        self._host.disk_failed(Failure(error))
        return NodeFailed(f"the disk failed: {error}")

    async def _settled(self) -> IOpenNode:
        """The open node, when no change of the role runs. Raises NodeFailed if it cannot go on."""
        node = await self.core.settled()
        if node is None:
            raise NodeFailed(f"the node is {self.core.phase.value}")
        return node

    async def follow(self, leader: Following | None, broker_id: int) -> None:
        node = await self._settled()
        self._broker_id = broker_id
        is_slave_of_nobody = node.slave is not None and node.slave.running and self.core.plan.master is None
        if leader is None and is_slave_of_nobody:
            settings = self.core.plan.settings
            self.core.plan = replace(self.core.plan, settings=replace(settings, broker_id=broker_id))
            node.register_as_slave(broker_id)
            return
        await self._on_disk(partial(_check_reopening, node.store))
        await self._settled()  # a rewind may have begun meanwhile
        self.facts()
        self.core.follow(self._plan_to_follow(leader, broker_id))
        await self._settled()

    def _plan_to_follow(self, leader: Following | None, broker_id: int) -> NodePlan:
        """Raises NodeFailed for an address of the leader that cannot be used."""
        plan = self.core.plan
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
            member=self._membership(epoch if leader is None else max(epoch, leader.hello.epoch)),
        )

    def _membership(self, epoch: int, leadership: Leadership | None = None) -> Membership:
        return Membership(self, epoch, leadership)

    def _options(self, leader: Following | None) -> SlaveOptions:
        return SlaveOptions(
            on_gap=self._on_gap,
            on_diverged=OnFork.REWIND,
            on_ahead=OnFork.REWIND,
            hello=b"" if leader is None else leader.hello.encode(),
        )

    async def stop_following(self) -> int:
        node = await self._settled()
        await node.stop_following()
        end: int = node.store.commit_log.verified_offset
        return end

    async def lead(self, leadership: Leadership, cause: str) -> int:
        await self._settled()
        self.facts()
        plan = self.core.plan.as_master(BrokerRole.SYNC_MASTER)
        plan = replace(plan, member=self._membership(leadership.epoch, leadership))
        return await self.core.change(self._become_leader(plan, leadership, cause))

    async def _become_leader(self, plan: NodePlan, leadership: Leadership, cause: str) -> int:
        try:
            promotion = await self.core.become_master(plan, Reason(cause, leadership.epoch))
        except OpeningStopped as error:
            raise NodeFailed(f"{error}: it is still a slave's") from error
        except Exception as error:  # of any kind: the node ends
            raise NodeFailed(f"the promotion failed: {error}") from error
        if not leadership.is_held():  # the process may have stood still meanwhile
            self.fence()
        return promotion.end

    def fence(self) -> None:
        if self.core.open_node is not None:
            self.core.open_node.fence(self._broker_id)

    def give_up(self, reason: str) -> None:
        self._host.stop_with(ExitCode.IO_ERROR, reason)

    async def reinit(self) -> None:
        slave = (await self._settled()).slave
        if slave is not None and slave.holds_records():
            try:
                await slave.reseed()
            except OSError as error:
                raise self._disk_failed(error) from error

    @property
    def members(self) -> SyncMembers | None:
        node = self.core.open_node
        return None if node is None or node.serving is None else node.serving.members

    async def ask_promise(self, member: Member, promise: Promise) -> bool | None:
        try:
            return await self._surroundings.ask_promise(member.remoting, promise)
        except Exception as error:  # of any kind: without an answer there is no promise
            self._log.warn(
                "{member} does not promise to wait: {reason}",
                event=Event.PROMISE_NOT_GIVEN,
                member=member.name,
                reason=reason_of(error),
            )
            return None


def _check_room(store: Path, disk: Disk) -> None:
    """Raises NotPromotable if the disk has too little room, OSError if it takes no more files, as with a quota."""
    check_disk(store, disk)
    write_known(store, read_known(store, disk), disk)


def _check_reopening(store: MessageStore) -> None:
    """Raises OSError if the disk has too little room to close the store, or takes no more files, as with a quota."""
    store.check_room()
    write_known(store.root, read_known(store.root, store.disk), store.disk)
