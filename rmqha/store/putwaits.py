"""What a put waits for before it is answered: the disk, replicas, both or neither (spec/store.md 4, spec/ha.md 7)."""

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.settings import FlushDiskType, Settings
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import AppendMessageResult, PutMessageResult, PutMessageStatus


class Replication(Protocol):
    """What a SYNC_MASTER knows of its replicas."""

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are near enough for a put to be let in."""

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """PUT_OK once enough replicas hold all before ``next_offset``, else FLUSH_SLAVE_TIMEOUT at the deadline.

        SLAVE_NOT_AVAILABLE at once where too few replicas are near enough. Offsets never go back from call to call.
        """

    def give_up(self) -> None:
        """End all waits: nothing more will be replicated."""


class PutWaits:
    """Answers puts. ``replication`` is a SYNC_MASTER's, else None; ``flush`` brings what is written to the disk."""

    def __init__(self, settings: Settings, clock: IReactorTime, flush: Callable[[], None]) -> None:
        self._flushes = GroupCommit(clock, settings.sync_flush_timeout_ms / 1000)
        self._sync_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._flush = flush
        self.replication: Replication | None = None

    def enough_replicas(self) -> bool:
        """Whether a put may be let in as far as replicas are concerned."""
        return self.replication is None or self.replication.enough_for_puts()

    def answer(self, appended: AppendMessageResult, waits: bool) -> Deferred[PutMessageResult]:
        """The answer to a put of which this was appended; at once unless the sender ``waits``.

        Flush and replicas are waited for side by side; a replica's failure hides the disk's.
        """
        if not waits or not (self._sync_flush or self.replication is not None):
            return succeed(PutMessageResult(PutMessageStatus.PUT_OK, appended))
        next_offset = appended.wrote_offset + appended.wrote_bytes
        replicated = None if self.replication is None else self.replication.wait(next_offset)
        if not self._sync_flush:
            assert replicated is not None, "else there is nothing to wait for"
            return replicated.addCallback(lambda status: PutMessageResult(status, appended))
        flushed = self._flushes.wait(next_offset)
        self._flush()

        def answer_both(in_time: bool) -> Deferred[PutMessageResult] | PutMessageResult:
            of_disk = PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_DISK_TIMEOUT
            if replicated is None:
                return PutMessageResult(of_disk, appended)
            return replicated.addCallback(
                lambda status: PutMessageResult(of_disk if status is PutMessageStatus.PUT_OK else status, appended)
            )

        return flushed.addCallback(answer_both)

    def flushed(self, offset: int) -> None:
        """Everything before ``offset`` is on disk."""
        self._flushes.reached(offset)

    def give_up_replicas(self) -> None:
        """Wait for the disk only: nothing more will be replicated."""
        if self.replication is not None:
            self.replication.give_up()

    def give_up(self) -> None:
        """Answer all that wait: nothing more will be flushed or replicated."""
        self._flushes.give_up()
        self.give_up_replicas()
