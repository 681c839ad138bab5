"""What a put waits for before it is answered: the disk, replicas, both or neither (spec/store.md 4, spec/ha.md 7)."""

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.settings import FlushDiskType, Settings
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import AppendMessageResult, PutMessageResult, PutMessageStatus
from rmqha.store.putfigures import PutFigures


class Replication(Protocol):
    """A SYNC_MASTER's replicas."""

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas have a lag that is small enough to accept a put."""

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """PUT_OK once enough replicas hold the log up to ``next_offset``, or FLUSH_SLAVE_TIMEOUT at the deadline.

        SLAVE_NOT_AVAILABLE immediately if too few replicas have a small lag. Offsets never decrease from call to call.
        """

    def give_up(self) -> None:
        """End all waits, because nothing more will be replicated."""


class PutWaits:
    """Answers puts. ``replication`` is a SYNC_MASTER's, else None; ``flush`` starts a flush of the log.

    ``figures`` counts the answers.
    """

    def __init__(
        self, settings: Settings, clock: IReactorTime, flush: Callable[[], None], figures: PutFigures | None = None
    ) -> None:
        self._figures = PutFigures(clock.seconds) if figures is None else figures
        self._answered = self._figures.answered
        self._flushes = GroupCommit(clock, settings.sync_flush_timeout_ms / 1000)
        self._sync_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        if self._sync_flush:
            self._figures.untimed = 0
        self._flush = flush
        self.replication: Replication | None = None

    def enough_replicas(self) -> bool:
        """Whether enough replicas are in sync to accept a put."""
        return self.replication is None or self.replication.enough_for_puts()

    def answer(self, appended: AppendMessageResult, waits: bool, started: float | None) -> Deferred[PutMessageResult]:
        """The answer to a put that appended this; immediately unless the sender ``waits``.

        ``started`` is when the put began, in the clock's seconds; None if it is not timed.

        It waits for the flush and the replicas at the same time. If both fail, the answer names the replicas' failure.
        """
        if not waits or not (self._sync_flush or self.replication is not None):
            self._figures.stored += 1
            if started is not None:
                self._figures.durations.observe(self._figures.seconds() - started)
            return succeed(PutMessageResult(PutMessageStatus.PUT_OK, appended))
        next_offset = appended.wrote_offset + appended.wrote_bytes
        replicated = None if self.replication is None else self.replication.wait(next_offset)
        if not self._sync_flush:
            assert replicated is not None, "else there is nothing to wait for"
            return replicated.addCallback(lambda status: self._answered(PutMessageResult(status, appended), started))
        flushed = self._flushes.wait(next_offset)
        self._flush()

        def answer_both(in_time: bool) -> Deferred[PutMessageResult] | PutMessageResult:
            of_disk = PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_DISK_TIMEOUT
            if replicated is None:
                return self._answered(PutMessageResult(of_disk, appended), started)
            return replicated.addCallback(
                lambda status: self._answered(
                    PutMessageResult(of_disk if status is PutMessageStatus.PUT_OK else status, appended), started
                )
            )

        return flushed.addCallback(answer_both)

    def flushed(self, offset: int) -> None:
        """Everything before ``offset`` is on disk."""
        self._flushes.reached(offset)

    def give_up_replicas(self) -> None:
        """Stop waiting for replicas: nothing more will be replicated."""
        if self.replication is not None:
            self.replication.give_up()

    def give_up(self) -> None:
        """Answer all waiting puts: nothing more will be flushed or replicated."""
        self._flushes.give_up()
        self.give_up_replicas()
