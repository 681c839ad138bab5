"""What a process has for a member of a failover cluster: its boot, its addresses, and the agent."""

import os
import socket
import time
from pathlib import Path

from twisted.internet.defer import Deferred
from zope.interface import implementer

from rmqha import __version__
from rmqha.failover.agent import FailoverAgent, Times
from rmqha.failover.member import Identity, Promise
from rmqha.net.endpoints import host_and_port
from rmqha.node.interfaces import IHost
from rmqha.node.leaderendpoint import LeaderEndpoint
from rmqha.node.member import Addresses, IMemberHost, MemberNode
from rmqha.node.opennode import OpenNode
from rmqha.node.plan import FailoverPlan, NodePlan
from rmqha.node.promising import ask_for_promise
from rmqha.settings.settings import TlsMode

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ANY_ADDRESSES = ("", "0.0.0.0", "::")


def boot_time() -> float:
    """Seconds of a clock that goes on while the machine sleeps, and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """What tells this boot of the machine from others. Raises OSError."""
    return BOOT_ID.read_text().strip()


@implementer(IMemberHost)
class MemberProcess:
    """The process of a member. ``plan`` is as configured."""

    def __init__(self, plan: NodePlan, failover: FailoverPlan, host: IHost) -> None:
        self._plan = plan
        self._failover = failover
        self._host = host
        self._member: MemberNode | None = None
        name = self._name(plan.settings.listen_port)
        self.leader = LeaderEndpoint(failover.coordinator, plan.settings, name, plan.connect)

    def _name(self, port: int) -> str:
        """The member's name, if its remoting port is this one."""
        return self._failover.name or f"{socket.gethostname()}-{port}"

    def read_boot(self) -> Deferred[str]:
        return self._host.run_in_thread(boot_id)

    def make_agent(self, member: MemberNode) -> FailoverAgent:
        self._member = member
        failover, settings = self._failover, self._plan.settings
        broker = self._open_node.broker
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
        return FailoverAgent(identity, failover.coordinator, member, Times(self._host.clock, boot_time))

    @property
    def _open_node(self) -> OpenNode:
        node = None if self._member is None else self._member.core.open_node
        assert isinstance(node, OpenNode), "the store is open"
        return node

    def addresses(self) -> Addresses:
        node = self._open_node
        broker = node.broker
        assert broker is not None, "a member serves clients"
        mode = node.store.settings.tls_server_mode
        return Addresses(
            self._published(broker.addresses.ha_server_addr, None),
            self._published(broker.addresses.broker_addr, mode),
            self._http_address(broker.addresses.broker_ip1),
        )

    def _published(self, address: str, mode: TlsMode | None) -> str:
        """An address of ours, as other members connect to it."""
        uses_tls = self._plan.tls is not None and mode is not TlsMode.DISABLED
        return f"tls:{address}" if uses_tls else address

    def _http_address(self, host: str) -> str:
        http = self._plan.http
        if http is None or not http.port:
            return ""
        return host_and_port(host if http.address in ANY_ADDRESSES else http.address, http.port)

    def ask_promise(self, remoting: str, promise: Promise) -> Deferred[bool]:
        asking = ask_for_promise(self._plan.connect(remoting), promise, self._host.clock)
        return Deferred.fromCoroutine(asking)


def make_member(plan: NodePlan, failover: FailoverPlan, host: IHost) -> MemberNode:
    """A member of the failover cluster of the plan's broker."""
    return MemberNode(plan, host, MemberProcess(plan, failover, host))
