"""What a member is to do, as data: the shell does it in this order. Only a ``Call`` is answered, by an event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rmqha.coordination.interface import Compare, Delete, Put
from rmqha.failover.keys import Member
from rmqha.failover.member import Following, Known, Promise
from rmqha.failover.step.events import (
    Answered,
    CallDone,
    Fault,
    FollowingStopped,
    KeysRead,
    KnownRead,
    LeaseGranted,
    LeaseRenewed,
    PromisesAnswered,
    Timer,
    TransactionAnswered,
)
from rmqha.kit.events import Event

OF_NODE = frozenset({Fault.DISK_FULL, Fault.NODE_FAILED})
OF_COORDINATOR = frozenset(Fault) - OF_NODE - {Fault.INVALID_KEY}


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """Something that takes time: the shell tells what became of it."""

    answer: ClassVar[type[Answered]] = CallDone
    faults: ClassVar[frozenset[Fault]] = frozenset()


# Of the coordinator


@dataclass(frozen=True, slots=True)
class ReadKeys(AgentRequest):
    """Read all keys of the cluster, and watch them from there on."""

    answer = KeysRead
    faults = OF_COORDINATOR | {Fault.INVALID_KEY}


@dataclass(frozen=True, slots=True)
class Transact(AgentRequest):
    """Do all writes if all comparisons are true. ``purpose`` says what for."""

    purpose: str
    compares: Sequence[Compare]
    writes: Sequence[Put | Delete]
    answer = TransactionAnswered
    faults = OF_COORDINATOR


@dataclass(frozen=True, slots=True)
class GrantLease(AgentRequest):
    """Make a lease that ends after ``ttl`` seconds."""

    ttl: int
    answer = LeaseGranted
    faults = OF_COORDINATOR


@dataclass(frozen=True, slots=True)
class RenewLease(AgentRequest):
    """Start the lease's time anew."""

    lease: int
    answer = LeaseRenewed
    faults = OF_COORDINATOR


@dataclass(frozen=True, slots=True)
class RevokeLease(AgentRequest):
    """End the lease and its keys now."""

    lease: int
    faults = OF_COORDINATOR


@dataclass(frozen=True, slots=True)
class CloseCoordinator(AgentRequest):
    """End all calls of the coordinator."""

    faults = OF_COORDINATOR


# Of the node


@dataclass(frozen=True, slots=True)
class ReadKnown(AgentRequest):
    """What an earlier process of this store has noted."""

    answer = KnownRead
    faults = OF_NODE


@dataclass(frozen=True, slots=True)
class WriteKnown(AgentRequest):
    """Note it durably."""

    known: Known
    faults = OF_NODE


@dataclass(frozen=True, slots=True)
class CheckRoom(AgentRequest):
    """Whether the disk has room for what a new leader writes first."""

    faults = OF_NODE


@dataclass(frozen=True, slots=True)
class Follow(AgentRequest):
    """Be the leader's slave, or nobody's."""

    leader: Following | None
    broker_id: int
    faults = OF_NODE


@dataclass(frozen=True, slots=True)
class StopFollowing(AgentRequest):
    """Close the connection to the leader for good. That needs no room on the disk: a candidate relies on it."""

    answer = FollowingStopped
    faults = frozenset({Fault.NODE_FAILED})


@dataclass(frozen=True, slots=True)
class Lead(AgentRequest):
    """Be the master, by the right to lead that was begun last."""

    cause: str
    faults = OF_NODE


@dataclass(frozen=True, slots=True)
class Reinit(AgentRequest):
    """Set the log aside, and copy the leader's anew."""

    faults = OF_NODE


# Of others, and of time


@dataclass(frozen=True, slots=True)
class AskPromises(AgentRequest):
    """Ask each of these members for a promise."""

    members: tuple[Member, ...]
    promise: Promise
    answer = PromisesAnswered


@dataclass(frozen=True, slots=True)
class WaitSeconds(AgentRequest):
    """Go on after so many seconds; 0: at once, with what is seen then."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Poll(WaitSeconds):
    """A ``WaitSeconds`` of a procedure that looks again and again, and remembers nothing from one look to the next."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something to be done at once."""


@dataclass(frozen=True, slots=True)
class Call(Action):
    """Begin with the request. The event that answers it has this number."""

    number: int
    request: AgentRequest


@dataclass(frozen=True, slots=True)
class StopAsking(Action):
    """Nobody waits for the answers of the calls that are under way, nor for changes of the keys."""


@dataclass(frozen=True, slots=True)
class SetTimer(Action):
    """Tell when so many seconds have passed."""

    timer: Timer
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelTimer(Action):
    """The timer is of no more interest."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class BeginLeadership(Action):
    """A right to lead begins in this epoch, until a moment of ``now``. Puts wait for these members."""

    epoch: int
    until: float
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class ExtendLeadership(Action):
    """The right to lead lasts at least until then."""

    until: float


@dataclass(frozen=True, slots=True)
class RequireMembers(Action):
    """Puts wait for these members from now on."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class TellSessions(Action):
    """The members that may follow, by the sessions that they show."""

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HoldPuts(Action):
    """Refuse new messages, or take them again."""

    are_held: bool


@dataclass(frozen=True, slots=True)
class EndLeadership(Action):
    """The right to lead ends, for good."""


@dataclass(frozen=True, slots=True)
class Fence(Action):
    """Close the connections of slaves when their buffers are sent, and end the waits of puts."""


@dataclass(frozen=True, slots=True)
class AnswerPromise(Action):
    """Whether the promise that was asked for is given."""

    is_given: bool


@dataclass(frozen=True, slots=True)
class LogLine(Action):
    """A line of the log, at the level of its event."""

    event: Event
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Left(Action):
    """The member has left its cluster."""
