"""What happens to a member, as data. Each event has what the member sees at that moment: the step asks nobody."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from rmqha.coordination.interface import CoordinatorError, CoordinatorRefused, CoordinatorUnavailable, LeaseGone
from rmqha.failover.keys import InvalidKey
from rmqha.failover.member import DiskFull, Known, NodeFacts, NodeFailed, Promise
from rmqha.failover.view import ClusterView


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A connected member: up to where it is known to hold the log, and the session of its process."""

    held: int | None
    session: str | None


@dataclass(frozen=True, slots=True)
class SeenMembers:
    """What a leader's puts wait for (``SyncMembers``), as it was at one moment."""

    confirmed_offset: int
    seen: Mapping[str, SeenMember] = field(default_factory=dict)

    @property
    def connected(self) -> frozenset[str]:
        """The names of the members that are connected."""
        return frozenset(self.seen)

    def held(self, name: str) -> int | None:
        """Up to where a member is known to hold the log; None if it is not connected, or has shown nothing yet."""
        return self.seen[name].held if name in self.seen else None

    def session(self, name: str) -> str | None:
        """The session of the process that shows what a member holds; None if it is not connected."""
        return self.seen[name].session if name in self.seen else None

    def holds(self, name: str, offset: int) -> bool:
        """Whether a member is known to hold the log up to an offset."""
        held = self.held(name)
        return held is not None and held >= offset


@dataclass(frozen=True, slots=True)
class Seen:
    """What a member sees at one moment.

    ``now`` is in seconds of a clock that never stops and is never set (CLOCK_BOOTTIME), ``wall`` is the time in UTC.
    ``cluster_id`` is that of the coordinator that answered last. ``members`` is None while the node does not lead.
    """

    now: float
    wall: datetime
    cluster_id: int | None
    facts: NodeFacts
    members: SeenMembers | None = None


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """Something happened."""

    seen: Seen


class Timer(Enum):
    """What a member waits for."""

    SLEEP = "the next look at the keys, or at the members"
    LOOK = "another look at the keys, while it lets another candidate go first"
    RENEWAL = "the next renewal of the lease"
    EXPIRY = "the end of the right to lead"


@dataclass(frozen=True, slots=True)
class Started(AgentEvent):
    """The member takes part in its cluster from now on."""


@dataclass(frozen=True, slots=True)
class StopRequested(AgentEvent):
    """The member is to leave its cluster."""


@dataclass(frozen=True, slots=True)
class StopGivenUp(AgentEvent):
    """Nobody waits any longer until the member has left its cluster."""


@dataclass(frozen=True, slots=True)
class BugFound(AgentEvent):
    """Something failed that should never fail: the member takes no more part in its cluster."""


@dataclass(frozen=True, slots=True)
class KeysChanged(AgentEvent):
    """The watch has told that these keys of the cluster have changed."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimerFired(AgentEvent):
    """The time of this timer has come."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class PromiseAsked(AgentEvent):
    """The leader asks us not to try for the lead for some time."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class Answered(AgentEvent):
    """What became of the call with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class CallDone(Answered):
    """It was done."""


@dataclass(frozen=True, slots=True)
class KnownRead(Answered):
    """What an earlier process of this store has noted."""

    known: Known


@dataclass(frozen=True, slots=True)
class FollowingStopped(Answered):
    """The connection to the leader is closed for good. ``end`` is that of the log."""

    end: int


@dataclass(frozen=True, slots=True)
class KeysRead(Answered):
    """All keys of the cluster."""

    view: ClusterView


@dataclass(frozen=True, slots=True)
class TransactionAnswered(Answered):
    """Whether the transaction was done. If that is not known, the call has ``Failed``."""

    succeeded: bool


@dataclass(frozen=True, slots=True)
class LeaseGranted(Answered):
    """The coordinator has made a lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed(Answered):
    """The lease lives ``ttl`` seconds more."""

    ttl: int


@dataclass(frozen=True, slots=True)
class PromisesAnswered(Answered):
    """What each member that was asked has said: None if it did not answer."""

    given: tuple[bool | None, ...]


class Fault(Enum):
    """Why a call failed."""

    UNAVAILABLE = CoordinatorUnavailable
    REFUSED = CoordinatorRefused
    LEASE_GONE = LeaseGone
    INVALID_KEY = InvalidKey
    DISK_FULL = DiskFull
    NODE_FAILED = NodeFailed
    COORDINATOR = CoordinatorError

    @classmethod
    def of(cls, error: Exception) -> "Fault":
        """What kind of failure this is. Raises the error itself if it is of no kind that a call may fail with."""
        for fault in cls:
            if isinstance(error, fault.value):
                return fault
        raise error


@dataclass(frozen=True, slots=True)
class Failed(Answered):
    """The call failed. ``text`` is a sentence for people."""

    fault: Fault
    text: str
