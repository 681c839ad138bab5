"""GroupTransferService: when enough slaves hold a message (spec/ha.md 7).

Acknowledgements are kept for each connection and forgotten with it: one that came from a peer that is gone, or that
never could hold what it claims, completes nothing (spec/ha.md 14, 2).
"""

from heapq import nlargest
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.interfaces import ICommitLog
from rmqha.settings import Settings
from rmqha.store.groupcommit import GroupCommit
from rmqha.store.message import PutMessageStatus


class GroupTransferService:
    """Completes the waits of puts in the order of their offsets, each at the latest at its own deadline.

    ``confirmed_offset`` is how far enough slaves have confirmed the log since ``confirmed_offset`` was given; it never
    goes back. A replica count of N, as in inSyncReplicas, includes the master itself.
    """

    def __init__(self, commit_log: ICommitLog, settings: Settings, clock: IReactorTime, confirmed_offset: int) -> None:
        self._commit_log = commit_log
        self._slaves_needed = settings.in_sync_replicas - 1
        self._slaves_for_puts = settings.min_in_sync_replicas - 1
        self._near_bytes = settings.ha_slave_fallbehind_max_bytes
        self._timeout = settings.slave_timeout_ms / 1000
        self._waits = GroupCommit(clock)
        self._acknowledged: dict[Any, int] = {}
        self.confirmed_offset = confirmed_offset

    def acknowledged(self, connection: Any, offset: int) -> None:
        """A connection's slave holds everything before ``offset``."""
        self._acknowledged[connection] = offset
        if offset > self.confirmed_offset:
            self._confirm()

    def forget(self, connection: Any) -> None:
        """The connection is gone, if it ever was one that counts."""
        self._acknowledged.pop(connection, None)

    def _confirm(self) -> None:
        reached = self._held_by(self._slaves_needed)
        if reached is not None and reached > self.confirmed_offset:
            self.confirmed_offset = reached
            self._waits.reached(reached)

    def _held_by(self, slaves: int) -> int | None:
        """The end of what so many slaves hold; the log's own for none, None if there are fewer."""
        if slaves == 0:
            return self._commit_log.verified_offset
        if len(self._acknowledged) < slaves:
            return None
        return nlargest(slaves, self._acknowledged.values())[-1]

    def _is_slave_ok(self, slaves: int, offset: int) -> bool:
        """Whether so many slaves are fewer than haSlaveFallbehindMax bytes behind ``offset``."""
        held = self._held_by(slaves)
        return held is not None and offset - held < self._near_bytes

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are near enough."""
        return self._is_slave_ok(self._slaves_for_puts, self._commit_log.verified_offset)

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """PUT_OK once inSyncReplicas hold all before ``next_offset``, FLUSH_SLAVE_TIMEOUT after slaveTimeout.

        SLAVE_NOT_AVAILABLE at once where too few slaves are near enough.
        """
        if self._slaves_needed == 0:
            return succeed(PutMessageStatus.PUT_OK)
        if not self._is_slave_ok(self._slaves_needed, next_offset):
            return succeed(PutMessageStatus.SLAVE_NOT_AVAILABLE)
        if next_offset <= self.confirmed_offset:
            return succeed(PutMessageStatus.PUT_OK)
        return self._waits.wait(next_offset, self._timeout).addCallback(_status)

    def give_up(self) -> None:
        """End all waits, as at their deadlines."""
        self._waits.give_up()


def _status(in_time: bool) -> PutMessageStatus:
    return PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
