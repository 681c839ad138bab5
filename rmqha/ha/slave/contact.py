"""What a slave knows of how it stands to its master: when it last heard from it, and how far it is behind."""

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from rmqha.ha.slave.replica import Replica
from rmqha.ha.slave.states import ReplicaState
from rmqha.interfaces import ICommitLog
from rmqha.store.nodestate import NodeState
from rmqha.times import iso_time, parse_time

IN_TOUCH = frozenset({ReplicaState.CATCHING_UP, ReplicaState.IN_SYNC, ReplicaState.STALLED})
LEAST_LAG_SECONDS = 0.001


def iso_of(seconds: float) -> str:
    """A time of the wall clock, in seconds since the epoch, as ISO 8601 in UTC, to the millisecond."""
    return iso_time(round(seconds * 1000))


def seconds_of(text: str | None) -> float | None:
    """From what ``iso_of`` gave; None for None, and for what is no time."""
    try:
        return None if text is None else parse_time(text) / 1000
    except ValueError:
        return None


class Contact:
    """Remembers the last contact, the master's last known end, and when we last held all that it had.

    ``quiet_seconds`` is how long a master in touch may be silent. ``wall_clock`` gives seconds since the epoch. What an
    earlier process told in state.json is taken up.
    """

    def __init__(
        self,
        replica: Replica,
        commit_log: ICommitLog,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        quiet_seconds: float,
        earlier: NodeState,
    ) -> None:
        self._replica = replica
        self._commit_log = commit_log
        self._clock = clock
        self._wall_clock = wall_clock
        self._quiet_seconds = quiet_seconds
        self._heard_at: float | None = None
        self._held_all_at: float | None = None
        self._known_end: int | None = None
        self.last_contact = seconds_of(earlier.last_contact)
        self.reason = "started"
        self.since = wall_clock()
        if self.last_contact is not None and earlier.lag_bytes == 0:
            self._held_all_at = clock.seconds() - max(0.0, wall_clock() - self.last_contact)

    def heard(self) -> None:
        """The master has sent something, or answered."""
        self.last_contact = self._wall_clock()
        self._heard_at = self._clock.seconds()
        self.look()

    def look(self) -> None:
        """Take up what the replica knows now."""
        if self._replica.state is ReplicaState.IN_SYNC and not self.lag_bytes:
            self._held_all_at = self._heard_at

    def master_ends_at(self, offset: int | None) -> None:
        """Its remoting port says so; None if it does not."""
        if offset is not None:
            self._known_end = offset

    def state_changed(self, state: ReplicaState, reason: str) -> None:
        """The replica is in another state."""
        self.reason, self.since = reason, self._wall_clock()
        if state in IN_TOUCH:
            self.look()

    @property
    def lag_bytes(self) -> int | None:
        """How far the master's last known end is ahead of what we hold, at least; None if no end is known.

        Also None where the two logs do not fit: a number would say that we hold all.
        """
        if self._known_end is None or self._replica.state in (ReplicaState.AHEAD, ReplicaState.DIVERGED):
            return None
        return max(0, self._known_end - self._commit_log.verified_offset)

    @property
    def lag_seconds(self) -> float | None:
        """Since when we do not hold all that the master has, as far as is known; it grows while the master is away.

        0.0 only if we hold all and the master is in touch. None if we never held all, or its end is not known.
        """
        in_touch = (
            self._replica.state in IN_TOUCH
            and self._heard_at is not None
            and self._clock.seconds() - self._heard_at <= self._quiet_seconds
        )
        if in_touch and self.lag_bytes in (None, 0):
            return None if self.lag_bytes is None else 0.0
        if self._held_all_at is None:
            return None
        return round(max(LEAST_LAG_SECONDS, self._clock.seconds() - self._held_all_at), 3)
