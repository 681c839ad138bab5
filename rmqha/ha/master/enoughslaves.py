"""Java's GroupTransferService: when enough slaves hold a message (spec/ha.md 7).

A slave counts through its connection's ``SlaveProgress``, and is forgotten when the connection ends. So a report
completes nothing if its peer has disconnected, or if the peer cannot hold what it reports (spec/ha.md 14 row 2).
"""

from collections.abc import Sequence
from operator import attrgetter

from rmqha.ha.master.followers import Copies, FollowerPolicy
from rmqha.ha.master.progress import SlaveProgress
from rmqha.settings.settings import Settings
from rmqha.store.message import PutMessageStatus

ACKNOWLEDGED = attrgetter("acknowledged")


class EnoughSlaves(FollowerPolicy):
    """As many slaves count as inSyncReplicas asks for: those that hold most.

    A replica count of N, as in inSyncReplicas, includes the master itself. With 1, puts do not wait and nothing is
    confirmed.
    """

    def __init__(self, copies: Copies, settings: Settings) -> None:
        super().__init__(copies, settings)
        self._slaves_needed = settings.in_sync_replicas - 1
        self._slaves_for_puts = settings.min_in_sync_replicas - 1

    def joins(self, slave: SlaveProgress) -> bool:
        """Follow it.

        The slave may have lost an earlier connection without our noticing. If several slaves must hold a message, we
        stop counting the other connections with the same identity, so that one slave does not count as two.
        """
        if self._slaves_needed > 1:
            for other in self.copies.slaves:
                if other.identity == slave.identity:
                    other.doubt()
        return True

    def is_news(self, slave: SlaveProgress) -> bool:
        """Whether it holds more than is confirmed: with less, it adds nothing to those that hold most."""
        return slave.acknowledged is not None and slave.acknowledged > self.copies.confirmed_offset

    def counting(self, first_wait: int | None) -> Sequence[SlaveProgress] | None:
        """The needed number of slaves that have acknowledged most, and are sure to hold the message waited for."""
        needed = self._slaves_needed
        sure = [
            slave for slave in self.copies.slaves if slave.acknowledged is not None and slave.holds_from(first_wait)
        ]
        return sorted(sure, key=ACKNOWLEDGED, reverse=True)[:needed] if 0 < needed <= len(sure) else None

    def answer(self, next_offset: int) -> PutMessageStatus | None:
        """SLAVE_NOT_AVAILABLE if too few slaves report less than haSlaveFallbehindMax bytes before ``next_offset``."""
        needed = self._slaves_needed
        if needed == 0:
            return PutMessageStatus.PUT_OK
        near = [slave for slave in self.copies.slaves if next_offset - slave.reported < self._near_bytes]
        return None if len(near) >= needed else PutMessageStatus.SLAVE_NOT_AVAILABLE

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are reached by slaves less than haSlaveFallbehindMax bytes from the log's end.

        A slave counts if it has acknowledged something, or if its last report is the log's end. An observer does
        neither: it reports an offset before the end, and never acknowledges anything.
        """
        if not self._slaves_for_puts:
            return True
        end = self.copies.commit_log.verified_offset
        return sum(slave.is_near(end, self._near_bytes) for slave in self.copies.slaves) >= self._slaves_for_puts
