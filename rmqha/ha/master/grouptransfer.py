"""GroupTransferService: when enough slaves hold a message (spec/ha.md 7).

A slave counts by its connection's ``SlaveProgress``, and is forgotten with the connection: a report of a peer that is
gone, or that never could hold what it reports, completes nothing (spec/ha.md 14 row 2).
"""

from heapq import nlargest

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.ha.master.progress import SlaveProgress
from rmqha.interfaces import ICommitLog
from rmqha.settings import Settings
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import PutMessageStatus


class GroupTransferService:
    """Completes the waits of puts in the order of their offsets, each at the latest at its own deadline.

    ``confirmed_offset`` is how far enough slaves have confirmed the log; it begins as given and never goes back. A
    replica count of N, as in inSyncReplicas, includes the master itself; with 1 nobody waits and nothing is confirmed.
    """

    def __init__(self, commit_log: ICommitLog, settings: Settings, clock: IReactorTime, confirmed_offset: int) -> None:
        self._commit_log = commit_log
        self._slaves_needed = settings.in_sync_replicas - 1
        self._slaves_for_puts = settings.min_in_sync_replicas - 1
        self._near_bytes = settings.ha_slave_fallbehind_max_bytes
        self._waits = GroupCommit(clock, settings.slave_timeout_ms / 1000)
        self._slaves: dict[SlaveProgress, None] = {}
        self.confirmed_offset = confirmed_offset

    def joined(self, slave: SlaveProgress) -> None:
        """A slave's first report was accepted.

        It may have lost its last connection before we noticed. If several slaves must hold a message, the others of
        the same identity are doubted, so that one slave is not counted as two.
        """
        if self._slaves_needed > 1:
            for other in self._slaves:
                if other.identity == slave.identity:
                    other.doubt()
        self._slaves[slave] = None

    def reported(self, slave: SlaveProgress) -> None:
        """A slave that has joined reports more than before."""
        if slave.acknowledged is not None and slave.acknowledged > self.confirmed_offset and self._slaves_needed:
            self._confirm()

    def forget(self, slave: SlaveProgress) -> None:
        """The connection is gone."""
        self._slaves.pop(slave, None)

    def _confirm(self) -> None:
        """Complete the waits that enough slaves hold from the oldest one on."""
        oldest = self._waits.first_offset
        acknowledged = [
            slave.acknowledged for slave in self._slaves if slave.acknowledged is not None and slave.holds_from(oldest)
        ]
        reached = _held_by(self._slaves_needed, acknowledged)
        if reached is not None and reached > self.confirmed_offset:
            self.confirmed_offset = reached
            self._waits.reached(reached)

    def _is_slave_ok(self, offset: int) -> bool:
        """Whether as many slaves as are needed say that they are fewer than haSlaveFallbehindMax bytes behind."""
        held = _held_by(self._slaves_needed, [slave.reported for slave in self._slaves])
        return held is not None and offset - held < self._near_bytes

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are near enough, and are no observers: those ask for less than all and stay there.

        A slave that has acknowledged nothing yet counts where it asks for the log's end.
        """
        if not self._slaves_for_puts:
            return True
        end = self._commit_log.verified_offset
        near = 0
        for slave in self._slaves:
            is_near = end - slave.reported < self._near_bytes
            near += is_near and (slave.reported == end or slave.acknowledged is not None)
        return near >= self._slaves_for_puts

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """PUT_OK once inSyncReplicas hold all before ``next_offset``, FLUSH_SLAVE_TIMEOUT after slaveTimeout.

        SLAVE_NOT_AVAILABLE at once where too few slaves are near enough.
        """
        if self._slaves_needed == 0:
            return succeed(PutMessageStatus.PUT_OK)
        if not self._is_slave_ok(next_offset):
            return succeed(PutMessageStatus.SLAVE_NOT_AVAILABLE)
        if next_offset <= self.confirmed_offset:
            return succeed(PutMessageStatus.PUT_OK)
        return self._waits.wait(next_offset).addCallback(_status)

    def give_up(self) -> None:
        """End all waits, as at their deadlines."""
        self._waits.give_up()


def _held_by(slaves: int, offsets: list[int]) -> int | None:
    """The end of what so many slaves hold, None if there are fewer."""
    return nlargest(slaves, offsets)[-1] if len(offsets) >= slaves else None


def _status(in_time: bool) -> PutMessageStatus:
    return PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
