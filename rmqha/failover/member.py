"""What the agent asks of the node around it. ``MemberNode`` does it, in a process and in the simulator."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from zope.interface import Attribute, Interface

from rmqha.failover.keys import History, Member, NewestChange, ToldFacts, prefix_of
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.wire.transfer import Hello


class NodeFailed(Exception):
    """The node could not do it, and stops: its disk failed, or its store is damaged."""


class DiskFull(Exception):
    """The disk has no room for what the node should write. Nothing was changed, and the node can try again."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is in its cluster. ``is_founder``: it may be the first leader of a cluster that never had one."""

    cluster: str
    broker: str
    name: str
    session: bytes
    is_founder: bool = False
    priority: int = 100
    no_failover: bool = False
    version: str = ""

    @property
    def prefix(self) -> str:
        """Where the keys of its cluster begin."""
        return prefix_of(self.cluster, self.broker)


@dataclass(frozen=True, slots=True)
class Known:
    """What a node keeps of its cluster (``rmqha/cluster.json``), durably before it acts on it.

    ``epoch`` is the newest one that it has acted in, ``leader`` who led then, ``cluster_id`` the coordinator's. The log
    has lost nothing since the machine's boot ``whole_since``. ``boot`` is that of the last process. ``is_flushed`` says
    that this process has stopped, and that all of the log is on the disk.

    ``history`` and ``number`` are the newest changes of the leader, and the number of the newest ``sync``, that the
    node has read or written. ``log_of`` is the stamp of the leadership whose log its own is the beginning of; empty if
    that is not known. ``members`` are the names of all members it has ever heard of, ``config`` is the JSON of
    the cluster's settings; empty if they are the defaults.

    ``doubters`` is what other members knew that said that the coordinator's keys are too old, by name. It is kept until
    the keys have it, or the member is forgotten: the member may be away when it matters.
    """

    epoch: int = 0
    leader: str = ""
    cluster_id: int | None = None
    whole_since: str = ""
    boot: str = ""
    is_flushed: bool = False
    history: History = History()
    number: int = 0
    members: tuple[str, ...] = ()
    config: str = ""
    log_of: str = ""
    doubters: Mapping[str, NewestChange] = field(default_factory=dict)

    def started(self, boot: str) -> Self:
        """What a process that starts in this boot of the machine notes before it tells anybody of its log.

        If the machine stopped while a process ran, the log may have lost its end with the memory. What the store says
        of its last stop cannot tell that: a process that opened it since then has recovered it, and stopped cleanly.
        """
        is_whole = bool(self.whole_since) and (self.is_flushed or self.boot == boot)
        return replace(self, whole_since=self.whole_since if is_whole else boot, boot=boot, is_flushed=False)


@dataclass(frozen=True, slots=True)
class NodeFacts(ToldFacts):
    """What the node knows of itself: what it tells, and the boot of its machine.

    With ``is_proved`` no byte of the log is left that must be compared with that of the leader.
    """

    boot: str
    is_proved: bool = False


@dataclass(frozen=True, slots=True)
class Following:
    """Whom a node follows, and what it shows there. ``session`` is that of the leader's process."""

    name: str
    session: str
    ha: str
    remoting: str
    hello: Hello


@dataclass(frozen=True, slots=True)
class Promise:
    """ "I follow this leader in this epoch, and will not try for the lead for ``seconds``.\""""

    leader: str
    epoch: int
    session: str
    seconds: float


class INode(Interface):
    """A node's store, its services and its disk. One call at a time, except for ``facts``, ``fence`` and promises.

    A call that cannot be done raises NodeFailed, and the node ends.
    """

    members: SyncMembers | None = Attribute("What a leader's puts wait for; None while the node does not lead.")

    def facts() -> NodeFacts:
        """What is known now, also while the node changes its role."""

    def read_known() -> Awaitable[Known]:
        """What an earlier process of this store has noted."""

    def write_known(known: Known) -> Awaitable[None]:
        """Note it durably. Raises DiskFull."""

    def check_room() -> Awaitable[None]:
        """Raises DiskFull if the disk has no room for what a new leader writes first."""

    def follow(leader: Following | None, broker_id: int) -> Awaitable[None]:
        """Be the leader's slave, or nobody's. The log is rewound if that needs it, and what is cut is kept.

        Raises DiskFull if the disk has no room to close the store and to open it again.
        """

    def stop_following() -> Awaitable[int]:
        """Close the connection to the leader for good: nothing is acknowledged any more. Returns the log's end."""

    def lead(leadership: Leadership, cause: str) -> Awaitable[int]:
        """Be the master in this leadership's epoch. Returns the offset at which the epoch starts."""

    def fence() -> None:
        """The lead is lost: close the connections of slaves when their buffers are sent, and end the waits of puts."""

    def give_up(reason: str) -> None:
        """The agent cannot go on: end the process, whoever watches over it starts it again."""

    def reinit() -> Awaitable[None]:
        """Set the log aside, where it is kept, and copy the leader's anew."""

    def ask_promise(member: Member, promise: Promise) -> Awaitable[bool | None]:
        """Ask a member for a promise. False if it refuses, None if it does not answer."""
