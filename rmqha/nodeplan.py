"""What a node is configured to be: its settings, and what only the command line gives."""

from dataclasses import dataclass, replace

from twisted.internet.interfaces import IStreamClientEndpoint

from rmqha.acl.files import AclFiles
from rmqha.broker.background.slavesync import Connect
from rmqha.broker.service import NameServers, connect_nowhere
from rmqha.ha.admission.allowlist import AllowList
from rmqha.ha.slave.service import SlaveOptions
from rmqha.ops.cleaning import Hold
from rmqha.ops.listening import HttpPort
from rmqha.ops.logs import NodeLogObserver, SyslogObserver
from rmqha.rereading import Sources
from rmqha.settings import BrokerRole, Settings, as_master
from rmqha.tls.endpoints import ServerTLS
from rmqha.wire.command import Sign


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
    was promoted.
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
    acl: AclFiles | None = None
    is_promoted: bool = False

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
