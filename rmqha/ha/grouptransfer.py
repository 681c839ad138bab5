"""GroupTransferService: when enough slaves hold a message (spec/ha.md 7).

Acknowledgements are kept for each connection and forgotten with it: one that came from a peer that is gone, or that
never could hold what it claims, completes nothing (spec/ha.md 14 row 2).

The first report of a connection is a request, and proves nothing: a slave whose log has diverged and an observer send
one like any other. Whoever reports more later has taken what we sent from there on, and counts.
"""

from collections.abc import Mapping
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

    ``confirmed_offset`` is how far enough slaves have confirmed the log; it begins as given and never goes back. A
    replica count of N, as in inSyncReplicas, includes the master itself; with 1 nobody waits and nothing is confirmed.
    """

    def __init__(self, commit_log: ICommitLog, settings: Settings, clock: IReactorTime, confirmed_offset: int) -> None:
        self._commit_log = commit_log
        self._slaves_needed = settings.in_sync_replicas - 1
        self._slaves_for_puts = settings.min_in_sync_replicas - 1
        self._near_bytes = settings.ha_slave_fallbehind_max_bytes
        self._waits = GroupCommit(clock, settings.slave_timeout_ms / 1000)
        self._reported: dict[Any, int] = {}
        self._acknowledged: dict[Any, int] = {}
        self._begins: dict[Any, int] = {}
        self.confirmed_offset = confirmed_offset

    def acknowledged(self, connection: Any, offset: int) -> None:
        """A connection's slave reports ``offset``: first where it asks to begin, from then on always more."""
        if connection not in self._reported:
            self._reported[connection] = offset
            if offset % self._commit_log.segment_size == 0:
                self._begins[connection] = offset or self._last_segment()
            return
        self._reported[connection] = self._acknowledged[connection] = offset
        if offset > self.confirmed_offset and self._slaves_needed:
            self._confirm()

    @property
    def counts_several(self) -> bool:
        """Whether more than one slave must hold a message."""
        return self._slaves_needed > 1

    def doubt(self, connection: Any) -> None:
        """What the connection has acknowledged counts no more; what it acknowledges from now on does."""
        self._acknowledged.pop(connection, None)

    def forget(self, connection: Any) -> None:
        """The connection is gone, if it ever was one that counts."""
        self._reported.pop(connection, None)
        self._acknowledged.pop(connection, None)
        self._begins.pop(connection, None)

    def _last_segment(self) -> int:
        end = self._commit_log.verified_offset
        return end - end % self._commit_log.segment_size

    def _confirm(self) -> None:
        reached = _held_by(self._slaves_needed, self._acknowledged_from_the_oldest_wait_on())
        if reached is not None and reached > self.confirmed_offset:
            self.confirmed_offset = reached
            self._waits.reached(reached)

    def _acknowledged_from_the_oldest_wait_on(self) -> Mapping[Any, int]:
        """What counts: whoever asked for a segment's begin may be empty before it, where a put may still wait."""
        oldest = self._waits.first_offset
        if not self._begins:
            return self._acknowledged
        self._begins = {each: begin for each, begin in self._begins.items() if oldest is not None and oldest <= begin}
        return {each: offset for each, offset in self._acknowledged.items() if each not in self._begins}

    def _is_slave_ok(self, offset: int) -> bool:
        """Whether as many slaves as are needed say that they are fewer than haSlaveFallbehindMax bytes behind."""
        held = _held_by(self._slaves_needed, self._reported)
        return held is not None and offset - held < self._near_bytes

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are near enough, and are no observers: those ask for less than all and stay there.

        A slave that has acknowledged nothing yet counts where it asks for the log's end.
        """
        if not self._slaves_for_puts:
            return True
        end = self._commit_log.verified_offset
        near = (
            connection
            for connection, offset in self._reported.items()
            if end - offset < self._near_bytes and (offset == end or connection in self._acknowledged)
        )
        return len(list(near)) >= self._slaves_for_puts

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


def _held_by(slaves: int, offsets: Mapping[Any, int]) -> int | None:
    """The end of what so many slaves hold, None if there are fewer."""
    return nlargest(slaves, offsets.values())[-1] if len(offsets) >= slaves else None


def _status(in_time: bool) -> PutMessageStatus:
    return PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
