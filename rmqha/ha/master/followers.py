"""The table of those that follow our log: up to where each holds it, what they confirm, and which puts wait for that.

A policy says whose copies count: ``EnoughSlaves`` for the puts of a SYNC_MASTER, ``InSyncSlaves`` for what consumers
may read, ``SyncMembers`` for both with automatic failover.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.ha.master.progress import SlaveProgress
from rmqha.kit.histogram import Histogram
from rmqha.settings.settings import FlushDiskType, Settings
from rmqha.store.interfaces import ICommitLog
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import PutMessageStatus
from rmqha.store.readlimit import ReadLimit


@dataclass(slots=True, eq=False)
class Copies:
    """The connected slaves, and up to where each is known to hold the log.

    ``confirmed_offset`` is the end of the log that all copies that count hold, as far as they ever did. ``slaves`` are
    in the order in which they joined. The value says whether a slave's first report shows what it holds.
    """

    commit_log: ICommitLog
    confirmed_offset: int
    slaves: dict[SlaveProgress, bool] = field(default_factory=dict)

    def held(self, slave: SlaveProgress) -> int:
        """Up to where a slave is known to hold the log; -1 if that is not known."""
        if slave.acknowledged is not None:
            return slave.acknowledged
        return slave.request if self.slaves[slave] else -1


class FollowerPolicy(ABC):
    """Whose copies count.

    Without more methods of its own, all slaves are followed, and puts wait until they are confirmed.
    """

    def __init__(self, copies: Copies, settings: Settings) -> None:
        self.copies = copies
        self._near_bytes = settings.ha_slave_fallbehind_max_bytes

    def joins(self, slave: SlaveProgress) -> bool:
        """Whether to follow a slave whose first report was accepted. Its earlier connections may lose their say."""
        return True

    def shows(self, slave: SlaveProgress) -> bool:
        """Whether a slave that joins holds all before its first report. That is rarely known: it only asks."""
        return False

    def is_news(self, slave: SlaveProgress) -> bool:
        """Whether the first report of a slave, or a further one, can change what is confirmed, or who counts."""
        return True

    def left(self, slave: SlaveProgress) -> bool:
        """A slave that was followed is gone. Returns whether those that are left may confirm more now."""
        return False

    @abstractmethod
    def counting(self, first_wait: int | None) -> Sequence[SlaveProgress] | None:
        """Those whose copies count now; None while too few do. If nobody is needed, the sequence is empty.

        ``first_wait`` is the lowest offset that a put waits for; None without such puts.
        """

    def answer(self, next_offset: int) -> PutMessageStatus | None:
        """The answer to a put that need not wait; None if it must, unless it is confirmed already."""
        return None

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are reached."""
        return True


class Followers:
    """Follows slaves through their ``SlaveProgress``, and completes the waits of puts in the order of their offsets.

    Each wait ends no later than its own deadline. With a ``limit``, consumers may read what is confirmed.

    Invariant: ``min of what counts <= confirmed <= verified`` after each look at who counts. "What counts" are the
    offsets up to which the copies hold the log that the policy names, or the log's verified end if it needs none. When
    ``confirmed_offset`` grows, the two on the left are equal, and so each copy that counts holds all before it. It
    never decreases. Reads end at ``confirmed``; with SYNC_FLUSH at ``min(confirmed, flushed)``. Whenever their end
    grows, it is not after these.
    """

    def __init__(
        self, policy: FollowerPolicy, settings: Settings, clock: IReactorTime, limit: ReadLimit | None = None
    ) -> None:
        self._policy = policy
        self._copies = policy.copies
        self._slaves = policy.copies.slaves
        self._log = policy.copies.commit_log
        self._waits = GroupCommit(clock, settings.slave_timeout_ms / 1000)
        self._limit = limit
        self._needs_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def waits(self) -> Histogram:
        """How long puts waited for slaves."""
        return self._waits.durations

    @property
    def confirmed_offset(self) -> int:
        """The confirmed end of the log."""
        return self._copies.confirmed_offset

    def joined(self, slave: SlaveProgress) -> None:
        """A slave's first report was accepted."""
        if self._policy.joins(slave):
            self._slaves[slave] = self._policy.shows(slave)
            self.reported(slave)

    def reported(self, slave: SlaveProgress) -> None:
        """A slave that has joined has reported a higher offset."""
        if self._policy.is_news(slave):
            self.look()

    def forget(self, slave: SlaveProgress) -> None:
        """The slave's connection has ended."""
        if self._slaves.pop(slave, None) is not None and self._policy.left(slave):
            self.look()

    def look(self) -> None:
        """See who counts, and complete the waits for messages that all of them hold now. Raises OSError."""
        counting = self._policy.counting(self._waits.first_offset)
        if counting is None:
            return
        end = self._log.verified_offset
        held = min(map(self._copies.held, counting), default=end)
        if held > self._copies.confirmed_offset:
            assert held <= end, f"slaves hold the log up to {held}, and it ends at {end}"
            self._copies.confirmed_offset = held
            self.let_read()
            self._waits.reached(held)

    def let_read(self) -> None:
        """The confirmed part of the log, or the flushed one, has grown: consumers may read more. Raises OSError."""
        if self._limit is None:
            return
        readable, before = self._copies.confirmed_offset, self._limit.offset
        self._limit.grow(min(readable, self._log.flushed_offset) if self._needs_flush else readable)
        if before < (end := self._limit.offset):
            is_flushed = not self._needs_flush or end <= self._log.flushed_offset
            assert end <= readable, f"reads end at {end}, and the log is confirmed up to {readable}"
            assert is_flushed, f"reads end at {end}, and the log is flushed up to {self._log.flushed_offset}"

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are reached by slaves that are near enough to the log's end."""
        return self._policy.enough_for_puts()

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """Wait until all copies that count hold the log up to ``next_offset``, and fire with PUT_OK.

        It fires with FLUSH_SLAVE_TIMEOUT after slaveTimeout, and at once if the policy has an answer.
        """
        answer = self._policy.answer(next_offset)
        if answer is None and next_offset <= self._copies.confirmed_offset:
            answer = PutMessageStatus.PUT_OK
        return self._waits.wait(next_offset).addCallback(_status) if answer is None else succeed(answer)

    def give_up(self) -> None:
        """End all waits, as if their deadlines had passed."""
        self._waits.give_up()


def _status(in_time: bool) -> PutMessageStatus:
    return PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
