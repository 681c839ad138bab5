"""What a node is configured to be: its settings, and what only the command line gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import Interface

from rmqha.broker.brokerservice import NameServers
from rmqha.broker.interfaces import Connect, FindMachines, connect_nowhere, find_no_machines
from rmqha.ha.admission.allowlist import AllowList
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.slave.slaveservice import SlaveOptions
from rmqha.net.tls.endpoints import ServerTLS
from rmqha.node.rereading import Sources
from rmqha.ops.cleaning import Hold
from rmqha.ops.listening import HttpPort
from rmqha.ops.logs import NodeLogObserver, SyslogObserver
from rmqha.settings.settings import BrokerRole, Settings, as_master
from rmqha.wire.command import Sign

if TYPE_CHECKING:  # a node without access control and failover starts quicker
    from rmqha.acl.files import AclFiles
    from rmqha.coordination.interface import ICoordinator
    from rmqha.failover.member import Promise


class IClusterMember(Interface):
    """What a node asks the member of a failover cluster in it."""

    def promise(promise: "Promise") -> bool:
        """The leader asks not to try for the lead for some time. Returns whether the member promises it."""

    def cluster_facts(changes: int) -> dict[str, Any] | None:
        """What state.json and pages show of the cluster, with this number of changes of its leader."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a node is in its failover cluster now. A leader has ``leadership``. ``epoch`` is 0 before the first.

    With ``has_id`` the coordinator has given the node its brokerId. ``leader`` leads to the leader's HA port before the
    store is open for the first time.
    """

    member: IClusterMember
    epoch: int = 0
    leadership: Leadership | None = None
    has_id: bool = True
    leader: IStreamClientEndpoint | None = None


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """How a node takes part in a failover cluster. ``coordinator`` is the client of the coordinator.

    ``name`` is the member's; None takes the host's name and the remoting port.
    """

    coordinator: "ICoordinator"
    name: str | None = None
    is_founder: bool = False
    priority: int = 100
    no_failover: bool = False


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The configuration of a node: its settings, and what only the command line gives.

    ``master`` and ``master_remoting`` are a slave's endpoints of its master. Both are None if name servers give the
    address, and ``master_remoting`` is None if the master has no remoting port. ``master_address`` is the address of
    ``master_remoting``. ``connect`` makes endpoints from addresses. ``tls`` is for our ports; None leaves them plain.
    ``allow_list`` limits the slaves; None allows all. The node registers with ``name_servers``, and runs a name server
    at ``embedded_port`` if that is not None, and answers HTTP at ``http`` if that is not None. ``observer`` writes the
    node's log events; None leaves that to twistd. ``sources`` are read again after SIGHUP. A node that manages its
    process handles signals. ``sign`` signs the node's requests; None leaves them unsigned. ``acl`` are the files of the
    accounts that the remoting ports serve; None serves all. ``is_promoted`` says that it is a master because its store
    was promoted. ``member`` is for a member of a failover cluster: it follows the leader that its coordinator names.
    ``addresses`` has those of our own names that were looked up. ``find_machines`` looks up a name server's name.
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
    http: HttpPort | None = None
    observer: NodeLogObserver | SyslogObserver | None = None
    manages_process: bool = False
    sources: Sources | None = None
    sign: Sign | None = None
    acl: "AclFiles | None" = None
    is_promoted: bool = False
    member: Membership | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    find_machines: FindMachines = find_no_machines

    def registering_with(self, addresses: Sequence[str]) -> "NodePlan":
        """The plan of the same node with these name servers, or with its own if there are none. Raises ValueError."""
        if not addresses:
            return self
        return replace(self, name_servers=[(address, self.connect(address)) for address in addresses])

    @property
    def is_found_by_nobody(self) -> bool:
        """Whether clients cannot find it, although it has taken the place of a master: no name server knows it."""
        return self.is_promoted and not self.name_servers and self.embedded_port is None

    def as_master(self, role: BrokerRole) -> "NodePlan":
        """The plan of the same node as a master."""
        return replace(
            self,
            settings=as_master(self.settings, role),
            slave=SlaveOptions(),
            master=None,
            master_remoting=None,
            master_address=None,
            is_promoted=True,
        )
