"""When a slave last received something from its master, and how large its lag is."""

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.replica import Replica
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.times import iso_time, seconds_of
from rmqha.store.interfaces import ICommitLog
from rmqha.store.nodestate import NodeState

IN_TOUCH = frozenset({ReplicaState.CATCHING_UP, ReplicaState.IN_SYNC, ReplicaState.STALLED})
MIN_LAG_SECONDS = 0.001


def iso_of(seconds: float) -> str:
    """Format a time, in seconds since the epoch, as ISO 8601 in UTC with milliseconds."""
    return iso_time(round(seconds * 1000))


class Contact:
    """Remembers the last contact, the master's last known end, and when we last held the master's whole log.

    ``quiet_seconds`` is how long a connected master may be silent. ``earlier`` is the state.json that an
    earlier process wrote; its last contact is kept.
    """

    _log = Logger()

    def __init__(
        self,
        replica: Replica,
        commit_log: ICommitLog,
        clock: IReactorTime,
        owner: ISlaveOwner,
        quiet_seconds: float,
        earlier: NodeState,
    ) -> None:
        self.replica = replica
        self._commit_log = commit_log
        self._clock = clock
        self._owner = owner
        self._quiet_seconds = quiet_seconds
        self._heard_at: float | None = None
        self._held_all_at: float | None = None
        self._known_end: int | None = None
        self._progress_mark: tuple[float, int] | None = None
        self.last_contact = seconds_of(earlier.last_contact)
        self.reason = "started"
        self.since = owner.wall_seconds()
        if self.last_contact is not None and earlier.lag_bytes == 0:
            self._held_all_at = clock.seconds() - max(0.0, owner.wall_seconds() - self.last_contact)

    def heard(self) -> None:
        """The master has sent something, or has answered a request."""
        self.last_contact = self._owner.wall_seconds()
        self._heard_at = self._clock.seconds()
        self.look()

    def look(self) -> None:
        """Update from the replica's state."""
        if self.replica.state is ReplicaState.IN_SYNC and not self.lag_bytes:
            self._held_all_at = self._heard_at

    def master_ends_at(self, offset: int | None) -> None:
        """Take the master's end from its remoting port; None if that did not give one."""
        if offset is not None:
            self._known_end = offset

    def state_changed(self, state: ReplicaState, reason: str) -> None:
        """The replica has entered another state."""
        self.reason, self.since = reason, self._owner.wall_seconds()
        if state in IN_TOUCH:
            self.look()

    @property
    def lag_bytes(self) -> int | None:
        """The bytes from our end to the master's last known end; None if that end is not known.

        Also None if the logs do not fit together (AHEAD, DIVERGED): a 0 would claim that we hold the master's log.
        """
        if self._known_end is None or self.replica.state in (ReplicaState.AHEAD, ReplicaState.DIVERGED):
            return None
        return max(0, self._known_end - self._commit_log.verified_offset)

    @property
    def lag_seconds(self) -> float | None:
        """For how many seconds we have not held the master's whole log; it grows while the master is unreachable.

        0.0 only if we hold the whole log and the master is connected. None if we never held it all, or if the master's
        end is not known.
        """
        in_touch = (
            self.replica.state in IN_TOUCH
            and self._heard_at is not None
            and self._clock.seconds() - self._heard_at <= self._quiet_seconds
        )
        if in_touch and self.lag_bytes in (None, 0):
            return None if self.lag_bytes is None else 0.0
        if self._held_all_at is None:
            return None
        return round(max(MIN_LAG_SECONDS, self._clock.seconds() - self._held_all_at), 3)

    def tell_progress(self) -> None:
        """While catching up, log how much is left, the rate, and the remaining time."""
        lag, now, end = self.lag_bytes, self._clock.seconds(), self._commit_log.verified_offset
        if self.replica.state is not ReplicaState.CATCHING_UP or not lag:
            self._progress_mark = None
            return
        if self._progress_mark is not None and now > self._progress_mark[0]:
            rate = (end - self._progress_mark[1]) / (now - self._progress_mark[0])
            self._log.info(
                "copied up to {end}, {lag} bytes to go, {rate:.1f} MiB/s{left}",
                event=Event.CATCH_UP_PROGRESS,
                end=end,
                lag=lag,
                rate=rate / 2**20,
                left=f", about {lag / rate:.0f} s left" if rate else "",
            )
        self._progress_mark = now, end
