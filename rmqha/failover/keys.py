"""What a cluster keeps in the coordinator, below ``/rmqha/<cluster>/<brokerName>/``: one JSON object a key.

A reader ignores fields that it does not know, so that nodes of two versions can be members of one cluster.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

import cattrs
import orjson

ROOT = "/rmqha"
LEADER, EPOCH, SYNC, STATUS, CONFIG, REQUEST, ANSWER, IDS, FORGOTTEN = (
    "leader",
    "epoch",
    "sync",
    "status",
    "config",
    "request",
    "answer",
    "ids",
    "forgotten",
)
MEMBERS = "members/"
MAX_HISTORY = 100
"""Changes of the leader that are kept."""

Value = TypeVar("Value")
_CONVERTER = cattrs.Converter()


class InvalidKey(ValueError):
    """A key of the cluster holds something that no version of ours has written."""


class Mode(Enum):
    """What a message waits for."""

    SYNC = "sync"
    """Each member that may lead next holds a message before it is answered with SEND_OK: none is lost."""
    ASYNC = "async"
    """A message waits for no member. A failover may lose the last ones."""


class Cause(Enum):
    """Why a leader began to lead."""

    FIRST = "the cluster's first leader"
    LEASE_ENDED = "the leader's lease ended"
    RELEASED = "the leader stopped"
    SWITCHOVER = "switchover"
    FAILOVER = "failover by an operator"
    AGAIN = "the same node leads again"
    DISK_FULL = "the leader's disk was full"
    TOGETHER = "all members agreed after the coordinator had lost what it kept"


AUTOMATIC = frozenset({Cause.LEASE_ENDED.value, Cause.DISK_FULL.value})
"""Causes that count for the pause between two automatic failovers."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads: the name of the member, and the session of its process. The key ends with its lease.

    ``cluster_id`` is the coordinator's when the key was written. ``floor`` is for members of an older version: no lower
    than any revision that one of them had seen when it doubted the coordinator (``Trust``).
    """

    node: str
    session: str
    epoch: int
    cluster_id: int | None = None
    floor: int = 0


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A change of the leader. ``start`` is the log offset of its first byte, ``time`` is ISO 8601, UTC.

    ``stamp`` is a random name of this leadership: an epoch's number can come again after the coordinator went back.
    ``after`` is the number of the last ``sync`` of the leadership before. ``ends`` has, by their stamps, the last
    ``sync`` of leaderships that an operator has overruled. Leaders of an older version write none of these.
    """

    n: int
    node: str
    start: int
    time: str
    cause: str
    stamp: str = ""
    after: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """The changes of the leader, oldest first: the last 100 (``MAX_HISTORY``).

    A member that has followed no leader for longer than that finds none that it knows. It then doubts the keys until
    the members agree, or an operator decides: nobody can tell any more whether its log is part of theirs.
    """

    entries: tuple[EpochEntry, ...] = ()

    @property
    def epoch(self) -> int:
        """The newest epoch, 0 before the first."""
        return self.entries[-1].n if self.entries else 0

    @property
    def stamp(self) -> str:
        """Of the newest leadership; empty if it is none of this version."""
        return self.entries[-1].stamp if self.entries else ""

    def covers(self, number: int, epoch: int, stamp: str, other: int) -> bool:
        """Whether all that was done up to the ``sync`` with the number ``other`` of a leadership came before this.

        ``number`` is that of the newest ``sync`` of this history. ``epoch`` is that of the leadership ``stamp``.
        """
        for entry in reversed(self.entries):
            if entry.stamp == stamp:
                return other <= number
            if other <= entry.ends.get(stamp, 0) or (not entry.stamp and entry.n > epoch):
                return True
            number = entry.after
        return False

    def with_entry(self, entry: EpochEntry) -> "History":
        """One more change."""
        return History((*self.entries, entry)[-MAX_HISTORY:])


@dataclass(frozen=True, slots=True)
class NewestChange:
    """The newest change that a member knows: its newest epoch, and the newest ``sync`` of the leadership ``stamp``."""

    epoch: int
    stamp: str
    number: int


@dataclass(frozen=True, slots=True)
class Holder:
    """What was known of a member's store when it was counted as holding every confirmed message.

    ``boot`` is the boot of its machine since which its log had lost nothing, or empty if a loss of power takes nothing
    that the member has reported.
    """

    store: str
    boot: str


@dataclass(frozen=True, slots=True)
class SyncSet:
    """Who holds every message that was answered with SEND_OK: the leader, and those that puts wait for.

    ``number`` counts what one leadership has written here; no number is used twice. ``cluster_id`` is that of the
    coordinator to which it was written. A leader of an older version writes neither.
    """

    epoch: int
    leader: str
    holders: Mapping[str, Holder] = field(default_factory=dict)
    number: int = 0
    cluster_id: int | None = None

    @property
    def members(self) -> frozenset[str]:
        """Those that puts wait for."""
        return frozenset(self.holders) - {self.leader}


@dataclass(frozen=True, slots=True)
class Status:
    """How far the leader's log is confirmed, and where it ends. In bytes."""

    epoch: int
    confirmed: int
    end: int
    is_released: bool = False
    """The leader has given up the lead: another one may lead at once."""
    is_full: bool = False
    """It has done so because its disk is full."""
    stamp: str = ""
    """Of the leadership whose log this tells of. Leaders of an older version write none."""


class ShownBy(Enum):
    """What shows a fact of a member."""

    NODE = "each member, in state.json and on its pages"
    COMMAND = "rmqha cluster show"


def shown(key: str, *places: ShownBy, default: Any = MISSING) -> Any:
    """A field of ``Member`` that is shown by this name in JSON: at these places, or at all."""
    return field(default=default, metadata=dict.fromkeys(places or ShownBy, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFacts:
    """What a node knows of itself and tells its cluster: one more field is one more fact of each member.

    ``ha``, ``remoting`` and ``http`` are its addresses. ``end`` is the end of its proved log. ``log_epoch`` is the
    highest number that its store has given to an epoch, also to one that began with a cut: it says nothing of what the
    log holds. With ``synced`` a loss of power takes nothing that it reports. With ``is_full`` its disk is too full to
    take messages.
    """

    store: str
    state: str = shown("state", ShownBy.NODE)
    end: int = shown("end", default=0)
    synced: bool = False
    log_epoch: int = shown("logEpoch", ShownBy.COMMAND, default=0)
    ha: str = shown("ha")
    remoting: str = shown("remoting")
    http: str = shown("http", default="")
    is_full: bool = False

    def told(self) -> dict[str, Any]:
        """These facts by name, without what a subclass adds."""
        return {each.name: getattr(self, each.name) for each in fields(ToldFacts)}


@dataclass(frozen=True, slots=True)
class Member(ToldFacts):
    """A node that runs. The key ends with its lease.

    ``end`` stays as it is while the member is a candidate. ``known_epoch`` is the newest epoch that it has acted in.
    Since ``boot``, a boot of its machine, the log has lost nothing.
    """

    name: str
    session: str
    boot: str
    is_candidate: bool = False
    known_epoch: int = shown("epoch", ShownBy.COMMAND, default=0)
    follows: str = shown("follows", ShownBy.COMMAND, default="")
    reason: str = shown("reason", ShownBy.NODE, default="")
    priority: int = shown("priority", default=100)
    no_failover: bool = shown("noFailover", default=False)
    version: str = shown("version", default="")
    doubts_below: int = 0
    """Of a member of an older version: the revision that the leader's key must name before it trusts the keys."""
    is_doubtful: bool = False
    """It knows more of the cluster than the coordinator's keys say: they are older than what was done."""
    stamp: str = ""
    """Of the newest leadership that it knows, and ``number`` of that one's newest ``sync``."""
    number: int = 0
    knows: tuple[str, ...] = ()
    """The names of all members that it has ever heard of, without the forgotten ones."""
    has_read: tuple[str, ...] = ()
    """While the keys are too old: the sessions of the members whose keys it has read.

    A key that has come back with an older copy, and whose node does not run, does not have the sessions of now.
    """
    has_no_room: bool = False
    """Its disk had no room for what it should write about the cluster: it does not lead, and its reason says so."""
    log_of: str = ""
    """The stamp of the leadership whose log, up to ``end``, its own is; empty if that is not known."""
    doubters: Mapping[str, NewestChange] = field(default_factory=dict)
    """What other members knew that said that the keys are too old, by name, while the keys do not have it."""

    def in_json(self, place: ShownBy) -> dict[str, Any]:
        """What is shown there, by its name in JSON."""
        return {each.metadata[place]: getattr(self, each.name) for each in fields(self) if place in each.metadata}

    @property
    def doubts(self) -> bool:
        """Whether it knows that the coordinator's keys are too old."""
        return self.is_doubtful or self.doubts_below > 0

    @property
    def newest_change(self) -> NewestChange:
        """The newest change that it knows."""
        return NewestChange(self.known_epoch, self.stamp, self.number)

    def holder(self) -> Holder:
        """What ``sync`` keeps of it."""
        return Holder(self.store, "" if self.synced else self.boot)

    def is_intact(self, holder: Holder) -> bool:
        """Whether it still holds all that it held as this holder."""
        return holder.store == self.store and holder.boot in ("", self.boot)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The cluster's settings. Times are in seconds, ``maximum_lag`` is in bytes.

    ``ttl`` is the time after which a leader that does not renew its lease is replaced. ``failover_pause`` is the time
    between two automatic failovers.
    """

    ttl: int = 15
    renew: float = 3.0
    timeout: float = 2.0
    margin: float = 2.0
    mode: str = Mode.SYNC.value
    maximum_lag: int = 1024 * 1024
    member_timeout: float = 3.0
    failover_pause: float = 600.0
    paused: bool = False

    def problem(self) -> str | None:
        """Why these settings cannot be used together; None if they can."""
        if self.ttl < 6:
            return f"ttl={self.ttl} is less than 6 s"
        if self.ttl > 3600:
            return f"ttl={self.ttl} is more than 3600 s"
        for name in ("renew", "timeout", "margin", "member_timeout"):
            if not 0.1 <= getattr(self, name) <= 3600:
                return f"{name}={getattr(self, name):g} is not between 0.1 and 3600 s"
        if self.renew + 2 * self.timeout > self.ttl - self.margin:
            return (
                f"renew + 2 * timeout = {self.renew + 2 * self.timeout:g} s is more than ttl - margin = "
                f"{self.ttl - self.margin:g} s: a single lost answer could end the lease"
            )
        if self.mode not in (mode.value for mode in Mode):
            return f"mode={self.mode} is neither sync nor async"
        if self.maximum_lag < 0 or self.failover_pause < 0:
            return "maximum_lag and failover_pause cannot be negative"
        return None


class Order(Enum):
    """What an operator asks of a cluster."""

    SWITCHOVER = "switchover"
    FAILOVER = "failover"
    REINIT = "reinit"


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's order. ``to`` is the member that should lead, or be copied anew; empty for any."""

    id: str
    order: str
    to: str = ""
    force: bool = False
    by: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request."""

    id: str
    is_done: bool
    text: str


@dataclass(frozen=True, slots=True)
class BrokerIds:
    """The brokerId that each member has while it is a slave."""

    ids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The names of members that are gone for good, as an operator has said."""

    names: tuple[str, ...] = ()


def prefix_of(cluster: str, broker: str) -> str:
    """Where the keys of a broker's nodes begin."""
    return f"{ROOT}/{cluster}/{broker}/"


def encode(value: Any) -> bytes:
    """A key's value."""
    return orjson.dumps(value)


def decode(kind: type[Value], key: str, content: bytes) -> Value:
    """The value of a key. Raises InvalidKey."""
    try:
        return _CONVERTER.structure(orjson.loads(content), kind)
    except Exception as error:  # cattrs raises groups of many kinds
        raise InvalidKey(f"the coordinator's key {key} is not a {kind.__name__}: {error!r:.200}") from error
