"""Java's GroupTransferService: when enough slaves hold a message (spec/ha.md 7).

A slave counts through its connection's ``SlaveProgress``, and is forgotten when the connection ends. So a report
completes nothing if its peer has disconnected, or if the peer cannot hold what it reports (spec/ha.md 14 row 2).
"""

from heapq import nlargest

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.ha.master.progress import SlaveProgress
from rmqha.kit.histogram import Histogram
from rmqha.settings.settings import Settings
from rmqha.store.interfaces import ICommitLog
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import PutMessageStatus


class GroupTransfer:
    """Completes the waits of puts in the order of their offsets, each no later than its own deadline.

    ``confirmed_offset`` is the end of the log that enough slaves have confirmed. It starts at the given value and never
    decreases. A replica count of N, as in inSyncReplicas, includes the master itself. With 1, puts do not wait and
    nothing is confirmed.
    """

    def __init__(self, commit_log: ICommitLog, settings: Settings, clock: IReactorTime, confirmed_offset: int) -> None:
        self._commit_log = commit_log
        self._slaves_needed = settings.in_sync_replicas - 1
        self._slaves_for_puts = settings.min_in_sync_replicas - 1
        self._near_bytes = settings.ha_slave_fallbehind_max_bytes
        self._waits = GroupCommit(clock, settings.slave_timeout_ms / 1000)
        self._slaves: dict[SlaveProgress, None] = {}
        self.confirmed_offset = confirmed_offset

    @property
    def waits(self) -> Histogram:
        """How long puts waited for slaves."""
        return self._waits.durations

    def joined(self, slave: SlaveProgress) -> None:
        """A slave's first report was accepted.

        The slave may have lost an earlier connection without our noticing. If several slaves must hold a message, we
        stop counting the other connections with the same identity, so that one slave does not count as two.
        """
        if self._slaves_needed > 1:
            for other in self._slaves:
                if other.identity == slave.identity:
                    other.doubt()
        self._slaves[slave] = None

    def reported(self, slave: SlaveProgress) -> None:
        """A slave that has joined has reported a higher offset."""
        if slave.acknowledged is not None and slave.acknowledged > self.confirmed_offset and self._slaves_needed:
            self._confirm()

    def forget(self, slave: SlaveProgress) -> None:
        """The slave's connection has ended."""
        self._slaves.pop(slave, None)

    def _confirm(self) -> None:
        """Complete the waits for messages that enough slaves now hold."""
        oldest = self._waits.first_offset
        acknowledged = [
            slave.acknowledged for slave in self._slaves if slave.acknowledged is not None and slave.holds_from(oldest)
        ]
        reached = _held_by(self._slaves_needed, acknowledged)
        if reached is not None and reached > self.confirmed_offset:
            self.confirmed_offset = reached
            self._waits.reached(reached)

    def _is_slave_ok(self, offset: int) -> bool:
        """Whether enough slaves report an offset less than haSlaveFallbehindMax bytes before ``offset``."""
        held = _held_by(self._slaves_needed, [slave.reported for slave in self._slaves])
        return held is not None and offset - held < self._near_bytes

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are reached by slaves less than haSlaveFallbehindMax bytes from the log's end.

        A slave counts if it has acknowledged something, or if its last report is the log's end. An observer does
        neither: it reports an offset before the end, and never acknowledges anything.
        """
        if not self._slaves_for_puts:
            return True
        end = self._commit_log.verified_offset
        return sum(slave.is_near(end, self._near_bytes) for slave in self._slaves) >= self._slaves_for_puts

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """Wait until inSyncReplicas hold the log up to ``next_offset``, and fire with PUT_OK.

        It fires with FLUSH_SLAVE_TIMEOUT after slaveTimeout, and with SLAVE_NOT_AVAILABLE at once if too few slaves are
        within haSlaveFallbehindMax bytes.
        """
        if self._slaves_needed == 0:
            return succeed(PutMessageStatus.PUT_OK)
        if not self._is_slave_ok(next_offset):
            return succeed(PutMessageStatus.SLAVE_NOT_AVAILABLE)
        if next_offset <= self.confirmed_offset:
            return succeed(PutMessageStatus.PUT_OK)
        return self._waits.wait(next_offset).addCallback(_status)

    def give_up(self) -> None:
        """End all waits, as if their deadlines had passed."""
        self._waits.give_up()


def _held_by(slaves: int, offsets: list[int]) -> int | None:
    """The highest offset that at least ``slaves`` of the offsets reach; None if there are fewer offsets than that."""
    return nlargest(slaves, offsets)[-1] if len(offsets) >= slaves else None


def _status(in_time: bool) -> PutMessageStatus:
    return PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
