"""Who holds every message that is answered with SEND_OK: how a member is added to ``sync``, and left out of it.

The order is what makes it safe. To add a member, puts wait for it first, and the key is written when it holds all that
was answered without it. To leave one out, the key is written first, and then puts wait for it no more. If it is not
known whether a key was written, puts wait for all that it may name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rmqha.failover.keys import ClusterConfig, Holder, Member, Mode, SyncSet
from rmqha.failover.step.events import SeenMembers


@dataclass(frozen=True, slots=True)
class Growth:
    """A member that puts wait for, but that ``sync`` does not name yet: until it holds the log up to ``end``."""

    holder: Holder
    end: int
    begun: float


@dataclass(frozen=True, slots=True)
class LookAtMembers:
    """What a leader sees when it looks at its members. ``end`` is that of its log, ``known`` are the members that run.

    ``now`` is in seconds of CLOCK_BOOTTIME.
    """

    now: float
    end: int
    members: SeenMembers
    known: Mapping[str, Member]
    config: ClusterConfig


@dataclass(frozen=True, slots=True)
class SyncSetKeeper:
    """The sync set of the leadership of ``me``. ``written`` is what ``sync`` holds, as far as we know.

    ``number`` is the last one that was used.
    """

    me: str
    written: SyncSet
    number: int
    attempted: SyncSet | None = None
    """What was sent, and may have been written or not."""
    growing: Mapping[str, Growth] = field(default_factory=dict)
    well_at: Mapping[str, float] = field(default_factory=dict)
    """When a member was last seen to hold the log's end, or to have come nearer to it."""
    last_held: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def required(self) -> frozenset[str]:
        """For whom puts wait."""
        named = self.written.members | (frozenset() if self.attempted is None else self.attempted.members)
        return named | frozenset(self.growing)

    def look(self, look: LookAtMembers) -> tuple["SyncSetKeeper", SyncSet | None]:
        """See who holds what. Also returns what should be written to ``sync`` now, or None."""
        if self.attempted is not None:
            return self, None  # first it must be known whether that was written
        if look.config.mode != Mode.SYNC.value:
            return replace(self, growing={}), self._with(self._only(frozenset())) if self.written.members else None
        keeper = self._watched(look)
        keeper = replace(keeper, growing=end_growth(keeper, look, begin_growth(keeper, look)))
        return keeper, keeper._to_write(look)

    def _to_write(self, look: LookAtMembers) -> SyncSet | None:
        now, timeout, named = look.now, look.config.member_timeout, self.written.members
        lost = {name for name in named if now - self.well_at.get(name, now) >= timeout}
        lost |= {name for name in named if name in look.known and self._has_given_up(name, look.known[name])}
        if lost:
            return self._with(self._only(named - lost))
        grown = {name: growth.holder for name, growth in self.growing.items() if look.members.holds(name, growth.end)}
        return self._with({**self.written.holders, **grown}) if grown else None

    def _has_given_up(self, name: str, member: Member) -> bool:
        """Whether it will not lead next, whatever it holds: by its tag, or because its store is another one now."""
        return member.no_failover or member.store != self.written.holders[name].store

    def _watched(self, look: LookAtMembers) -> "SyncSetKeeper":
        well_at, last_held = dict(self.well_at), dict(self.last_held)
        for name in self.written.members | look.members.connected:
            held, before = look.members.held(name), last_held.get(name)
            if name not in well_at or (held is not None and (held >= look.end or before is None or held > before)):
                well_at[name] = look.now
            last_held[name] = held
        return replace(self, well_at=well_at, last_held=last_held)

    def _only(self, names: frozenset[str]) -> dict[str, Holder]:
        return {name: holder for name, holder in self.written.holders.items() if name in names or name == self.me}

    def _with(self, holders: dict[str, Holder]) -> SyncSet:
        return SyncSet(self.written.epoch, self.me, holders)

    def numbered(self, new: SyncSet, cluster_id: int | None) -> tuple["SyncSetKeeper", SyncSet]:
        """``new`` with a number that was never used, for the coordinator with this id."""
        keeper = replace(self, number=self.number + 1)
        return keeper, replace(new, number=keeper.number, cluster_id=cluster_id)

    def attempt(self, new: SyncSet) -> "SyncSetKeeper":
        """``new`` is about to be sent. Until it is known whether it was written, puts wait for all it may name."""
        return replace(self, attempted=new)

    def settled(self, written: SyncSet) -> "SyncSetKeeper":
        """``sync`` is known to hold this."""
        growing = {name: growth for name, growth in self.growing.items() if written.holders.get(name) != growth.holder}
        return replace(self, written=written, attempted=None, growing=growing)

    def has_attempted(self, written: SyncSet) -> bool:
        """Whether this is what was sent."""
        return self.attempted == written

    def counts_from(self, name: str) -> int:
        """A required member holds each answered put that ends after this offset.

        Of one that grows, only ``sync`` says that it holds the puts before, too: they were not to wait for it.
        """
        growth = self.growing.get(name)
        is_named = name in self.written.members or (self.attempted is not None and name in self.attempted.members)
        return 0 if growth is None or is_named else growth.end

    @property
    def is_settled(self) -> bool:
        """Whether it is known what ``sync`` holds."""
        return self.attempted is None


def begin_growth(keeper: SyncSetKeeper, look: LookAtMembers) -> dict[str, Growth]:
    """Those that puts are to wait for, with the members that may be added to ``sync``."""
    growing, members = dict(keeper.growing), look.members
    for name in sorted(members.connected):
        member, held = look.known.get(name), members.held(name)
        if member is None or held is None or name == keeper.me or member.no_failover or name in growing:
            continue
        if members.session(name) != member.session:  # what an earlier process held, may be lost since
            continue
        if keeper.written.holders.get(name) == member.holder() or look.end - held > look.config.maximum_lag:
            continue
        if look.now - keeper.well_at.get(name, look.now) >= look.config.member_timeout:  # it hangs
            continue
        growing[name] = Growth(member.holder(), look.end, look.now)
    return growing


def end_growth(keeper: SyncSetKeeper, look: LookAtMembers, growing: dict[str, Growth]) -> dict[str, Growth]:
    """Give up on members that do not hold up: they would delay each put. ``sync`` does not name them.

    One that hangs is waited for again once it holds more than it did.
    """

    def holds_up(name: str, growth: Growth) -> bool:
        member = look.known.get(name)
        is_same = member is not None and member.holder() == growth.holder
        is_there = look.members.held(name) is not None
        return is_same and is_there and look.now - growth.begun < look.config.member_timeout

    return {name: growth for name, growth in growing.items() if holds_up(name, growth)}
