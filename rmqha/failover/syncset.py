"""Who holds every message that is answered with SEND_OK: how a member is added to ``sync``, and left out of it.

The order is what makes it safe. To add a member, puts wait for it first, and the key is written when it holds all that
was answered without it. To leave one out, the key is written first, and then puts wait for it no more. If it is not
known whether a key was written, puts wait for all that it may name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rmqha.failover.keys import ClusterConfig, Holder, Member, Mode, SyncSet
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.syncmembers import SyncMembers


@dataclass(frozen=True, slots=True)
class Growth:
    """A member that puts wait for, but that ``sync`` does not name yet: until it holds the log up to ``end``."""

    holder: Holder
    end: int
    begun: float


class SyncSetKeeper:
    """The sync set of one leadership. ``written`` is what ``sync`` holds, as far as we know."""

    def __init__(
        self, me: str, leadership: Leadership, members: SyncMembers, written: SyncSet, now: Callable[[], float]
    ) -> None:
        self._me = me
        self._leadership = leadership
        self._members = members
        self._now = now
        self.written = written
        self._number = written.number
        self._attempted: SyncSet | None = None
        """What was sent, and may have been written or not."""
        self._growing: dict[str, Growth] = {}
        self._well_at: dict[str, float] = {}
        """When a member was last seen to hold the log's end, or to have come nearer to it."""
        self._held: dict[str, int | None] = {}
        self._require()

    def _require(self) -> None:
        named = self.written.members | (frozenset() if self._attempted is None else self._attempted.members)
        self._leadership.require(named | frozenset(self._growing))

    def look(self, end: int, known: dict[str, Member], config: ClusterConfig) -> SyncSet | None:
        """See who holds what. ``end`` is the log's. Returns what should be written to ``sync`` now, or None."""
        if self._attempted is not None:
            return None  # first it must be known whether that was written
        now = self._now()
        if config.mode != Mode.SYNC.value:
            self._growing.clear()
            self._require()
            return self._with(self._only(frozenset())) if self.written.members else None
        for name in self.written.members | self._members.connected:
            self._watch(name, end, now)
        self._begin_growth(end, known, config, now)
        self._end_growth(known, config, now)
        lost = {name for name in self.written.members if now - self._well_at.get(name, now) >= config.member_timeout}
        lost |= {name for name in self.written.members if name in known and self._has_given_up(name, known[name])}
        if lost:
            return self._with(self._only(self.written.members - lost))
        grown = {name: growth.holder for name, growth in self._growing.items() if self._members.holds(name, growth.end)}
        return self._with({**self.written.holders, **grown}) if grown else None

    def _has_given_up(self, name: str, member: Member) -> bool:
        """Whether it will not lead next, whatever it holds: by its tag, or because its store is another one now."""
        return member.no_failover or member.store != self.written.holders[name].store

    def _watch(self, name: str, end: int, now: float) -> None:
        held = self._members.held(name)
        before = self._held.get(name)
        if name not in self._well_at or (held is not None and (held >= end or before is None or held > before)):
            self._well_at[name] = now
        self._held[name] = held

    def _begin_growth(self, end: int, known: dict[str, Member], config: ClusterConfig, now: float) -> None:
        for name in self._members.connected:
            member, held = known.get(name), self._members.held(name)
            if member is None or held is None or name == self._me or member.no_failover or name in self._growing:
                continue
            if self._members.session(name) != member.session:  # what an earlier process held, may be lost since
                continue
            if self.written.holders.get(name) == member.holder() or end - held > config.maximum_lag:
                continue
            self._growing[name] = Growth(member.holder(), end, now)
        self._require()

    def _end_growth(self, known: dict[str, Member], config: ClusterConfig, now: float) -> None:
        """Give up on members that do not hold up: they would delay each put. ``sync`` does not name them."""
        for name, growth in list(self._growing.items()):
            member = known.get(name)
            is_same = member is not None and member.holder() == growth.holder
            if not is_same or self._members.held(name) is None or now - growth.begun >= config.member_timeout:
                del self._growing[name]
        self._require()

    def _only(self, names: frozenset[str]) -> dict[str, Holder]:
        return {name: holder for name, holder in self.written.holders.items() if name in names or name == self._me}

    def _with(self, holders: dict[str, Holder]) -> SyncSet:
        return SyncSet(self.written.epoch, self._me, holders)

    def numbered(self, new: SyncSet, cluster_id: int | None) -> SyncSet:
        """``new`` with a number that was never used, for the coordinator with this id."""
        self._number += 1
        return replace(new, number=self._number, cluster_id=cluster_id)

    def attempt(self, new: SyncSet) -> None:
        """``new`` is about to be sent. Until it is known whether it was written, puts wait for all it may name."""
        self._attempted = new
        self._require()

    def settled(self, written: SyncSet) -> None:
        """``sync`` is known to hold this."""
        self.written, self._attempted = written, None
        for name, growth in list(self._growing.items()):
            if written.holders.get(name) == growth.holder:
                del self._growing[name]
        self._require()

    def has_attempted(self, written: SyncSet) -> bool:
        """Whether this is what was sent."""
        return self._attempted == written

    def counts_from(self, name: str) -> int:
        """A required member holds each answered put that ends after this offset.

        Of one that grows, only ``sync`` says that it holds the puts before, too: they were not to wait for it.
        """
        growth = self._growing.get(name)
        is_named = name in self.written.members or (self._attempted is not None and name in self._attempted.members)
        return 0 if growth is None or is_named else growth.end

    @property
    def is_settled(self) -> bool:
        """Whether it is known what ``sync`` holds."""
        return self._attempted is None
