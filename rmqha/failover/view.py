"""All keys of a cluster at one revision, and what they mean for a node."""

from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from rmqha.coordination.interface import Compare, CompareTarget, KeyValue, Snapshot
from rmqha.failover.keys import (
    ANSWER,
    CONFIG,
    EPOCH,
    FORGOTTEN,
    IDS,
    LEADER,
    MEMBERS,
    REQUEST,
    STATUS,
    SYNC,
    Answer,
    BrokerIds,
    ClusterConfig,
    Forgotten,
    History,
    InvalidKey,
    Leader,
    Member,
    NewestChange,
    Request,
    Status,
    SyncSet,
    decode,
)

MAX_KEYS = 500
"""Of a cluster: each member has one, and there are a few others. More would take too long to read in a turn."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class ClusterView:
    """The keys of a cluster. What is missing is None, or empty."""

    prefix: str
    snapshot: Snapshot
    leader: Leader | None = None
    history: History = History()
    sync: SyncSet | None = None
    status: Status | None = None
    config: ClusterConfig = ClusterConfig()
    request: Request | None = None
    answer: Answer | None = None
    ids: BrokerIds = BrokerIds()
    forgotten: frozenset[str] = frozenset()
    members: dict[str, Member] = field(default_factory=dict)

    @classmethod
    def read(cls, prefix: str, snapshot: Snapshot) -> "ClusterView":
        """Decode the keys. Raises InvalidKey, also for more keys than a cluster has.

        A member's key that cannot be read is left out: it concerns that member only.
        """
        if len(snapshot.keys) > MAX_KEYS:
            raise InvalidKey(
                f"there are {len(snapshot.keys)} keys below {prefix}, and a cluster has no more than {MAX_KEYS}"
            )
        get = partial(_get, prefix, snapshot)
        members = {}
        for key, held in snapshot.keys.items():
            if key.startswith(prefix + MEMBERS):
                try:
                    member = decode(Member, key, held.value)
                except InvalidKey:
                    continue
                members[key.removeprefix(prefix + MEMBERS)] = member
        return cls(
            prefix,
            snapshot,
            get(LEADER, Leader),
            get(EPOCH, History) or History(),
            get(SYNC, SyncSet),
            get(STATUS, Status),
            _usable(get(CONFIG, ClusterConfig) or ClusterConfig()),
            get(REQUEST, Request),
            get(ANSWER, Answer),
            get(IDS, BrokerIds) or BrokerIds(),
            frozenset((get(FORGOTTEN, Forgotten) or Forgotten()).names),
            members,
        )

    def held(self, name: str) -> KeyValue | None:
        """A key as the coordinator holds it."""
        return self.snapshot.keys.get(self.prefix + name)

    def unchanged(self, name: str) -> Compare:
        """That the key is as in this view: it has not been written since, or still does not exist."""
        held = self.held(name)
        return Compare(self.prefix + name, CompareTarget.MOD, 0 if held is None else held.mod_revision)

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return self.history.epoch

    @property
    def newest_known(self) -> int:
        """The newest epoch that a registered member knows. It is above ``epoch`` if the coordinator was set back."""
        return max((member.known_epoch for member in self.members.values()), default=0)

    @property
    def doubters(self) -> list[str]:
        """The members that know that these keys are too old: registered ones, and others that those have heard of."""
        heard = {name for name, change in self.heard if self.lacks(name, change)}
        return sorted(heard.union(name for name, member in self.members.items() if member.doubts))

    @property
    def is_behind(self) -> bool:
        """Whether a member knows more than these keys say, or knows of a newer epoch."""
        return self.newest_known > self.epoch or bool(self.doubters)

    @property
    def heard(self) -> list[tuple[str, NewestChange]]:
        """What registered members have heard of members that doubted: their names, and what they knew."""
        return [each for member in self.members.values() for each in member.doubters.items()]

    def lacks(self, name: str, change: NewestChange) -> bool:
        """Whether these keys do not have all that this member knew, and it is not forgotten."""
        return name not in self.forgotten and (self.epoch < change.epoch or not self.has_writes_of(change))

    def has_writes_of(self, change: NewestChange) -> bool:
        """Whether these keys have all that was written up to this change; true without a stamp."""
        number = 0 if self.sync is None else self.sync.number
        return not change.stamp or self.history.covers(number, change.epoch, change.stamp, change.number)

    @property
    def names(self) -> frozenset[str]:
        """All members that these keys name, without the forgotten ones."""
        holders = () if self.sync is None else self.sync.holders
        return frozenset((*self.ids.ids, *self.members, *holders)) - self.forgotten

    @property
    def exists(self) -> bool:
        """Whether the cluster ever had a leader."""
        return self.history.epoch > 0


def _get(prefix: str, snapshot: Snapshot, name: str, kind: type[Value]) -> Value | None:
    held = snapshot.keys.get(prefix + name)
    return None if held is None else decode(kind, held.key, held.value)


def _usable(config: ClusterConfig) -> ClusterConfig:
    """The settings. Raises InvalidKey if they cannot be used."""
    problem = config.problem()
    if problem is not None:
        raise InvalidKey(f"the cluster's settings cannot be used: {problem}")
    return config
