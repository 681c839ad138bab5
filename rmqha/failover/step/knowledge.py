"""What a member knows, as data."""

from dataclasses import dataclass
from typing import TypeVar

from rmqha.failover.keys import ClusterConfig, History, Member
from rmqha.failover.member import Following, Identity, Known
from rmqha.failover.states import FailoverState
from rmqha.failover.step.syncset import SyncSetKeeper
from rmqha.failover.trust import Trust
from rmqha.failover.view import ClusterView

Record = TypeVar("Record")


def changed(record: Record, **changes: object) -> Record:
    """A record without slots with other values of these fields: ``replace`` takes ten times as long for many fields."""
    assert changes.keys() <= record.__dict__.keys(), f"{changes.keys()} are not all fields"
    new = object.__new__(type(record))
    new.__dict__.update(record.__dict__, **changes)
    return new


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of the node's keys. ``ttl`` is its time in seconds, as the coordinator has granted it."""

    id: int | None = None
    ttl: int = 0
    is_timed: bool = False
    """Whether the timer of the next renewal runs."""
    is_stopped: bool = False
    """Nothing is renewed any more."""


@dataclass(frozen=True, slots=True)
class Right:
    """The right to lead in an epoch, until a moment of ``now``. Puts wait for the members in ``required``."""

    epoch: int
    until: float
    required: frozenset[str]
    is_ended: bool = False

    def is_held(self, now: float) -> bool:
        """Whether the node may append and answer at this moment."""
        return not self.is_ended and now < self.until


@dataclass(frozen=True)
class Knowledge:
    """What a member knows of itself and of its cluster."""

    me: Identity
    born: float
    """When the process began to take part."""
    promised_until: float
    """Until then it has promised the leader not to try for the lead."""
    state: FailoverState = FailoverState.JOINING
    view: ClusterView | None = None
    """The keys as they were last read."""
    reason: str = "it has not heard from the coordinator yet"
    """Why the node does not lead, or what it waits for."""
    problem: str | None = None
    """What is wrong with the coordinator, or with its keys; None if nothing is."""
    is_silent: bool = False
    """The coordinator does not answer: which endpoint is silent in which way changes with each try."""

    known: Known = Known()
    """What the node keeps of its cluster on its disk."""
    started: Known | None = None
    """What this process is to note before it tells anybody of its log; None before it was read."""
    config: ClusterConfig = ClusterConfig()
    trust: Trust = Trust()
    doubts_keys: bool = False
    """Whether the coordinator's keys, when they were last read, were older than what this node knew then."""

    is_woken: bool = False
    """The next step comes now, and reads all keys."""
    is_stopping: bool = False
    next_read: float = 0.0
    leaderless_since: float | None = None
    lease: Lease = Lease()
    registered: Member | None = None
    next_telling: float = 0.0
    """When the end of our log may be told again, if nothing else has changed."""
    has_no_room: bool = False
    """The disk has no room for what a step should write."""

    following: Following | None = None
    follows_nobody: bool = False
    is_to_copy_anew: bool = False
    """An operator wants the log to be copied anew: first the leader must leave this member out of ``sync``."""
    let_first_until: float | None = None

    right: Right | None = None
    sync: SyncSetKeeper | None = None
    """For whom a leader's puts wait; None if this node does not lead."""
    history: History = History()
    created: int = 0
    """The revision at which our leader key was made."""
    is_led: bool = False
    """Whether the store is a master's, or was to become one: it must be opened as a slave's again."""
