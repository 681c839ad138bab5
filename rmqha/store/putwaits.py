"""What a put waits for before it is answered: the disk, replicas, both or neither (spec/store.md 4, spec/ha.md 7)."""

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.settings.settings import FlushDiskType, Settings
from rmqha.store.interfaces import Call
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


class RightToLead(Protocol):
    """Whether a node may act as the leader, with automatic failover. It is asked at each use, for it ends by time."""

    def takes_puts(self) -> bool:
        """Whether the node may take a new message now."""

    def is_held(self) -> bool:
        """Whether the node may answer PUT_OK now."""


class PutWaits:
    """Answers puts. ``replication`` is a SYNC_MASTER's, else None; ``flush`` starts a flush of the log.

    ``figures`` counts the answers. ``still_leads`` is asked before each answer: whether the node may say PUT_OK.
    """

    def __init__(
        self,
        settings: Settings,
        clock: IReactorTime,
        flush: Call,
        figures: PutFigures | None = None,
        still_leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._still_leads = still_leads
        self._figures = PutFigures(clock.seconds) if figures is None else figures
        self._answered = self._figures.answered
        self._flushes = GroupCommit(clock, settings.sync_flush_timeout_ms / 1000)
        self._sync_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        if self._sync_flush:
            self._figures.one_in = 1
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
            return succeed(self._result(PutMessageStatus.PUT_OK, appended, started))
        return self._held_up_to(appended.wrote_offset + appended.wrote_bytes).addCallback(
            self._result, appended, started
        )

    def answer_run(
        self, end: int, count: int, started: float | None, timed: int
    ) -> PutMessageStatus | Deferred[PutMessageStatus]:
        """How ``count`` puts end, whose last record ends at ``end``; immediately if there is nothing to wait for.

        All wait for the last one. ``timed`` of them are timed, from ``started`` on.
        """

        def counted(status: PutMessageStatus) -> PutMessageStatus:
            status = self._if_leading(status)
            self._figures.answered_run(status, count, started, timed)
            return status

        if self._sync_flush or self.replication is not None:
            return self._held_up_to(end).addCallback(counted)
        return counted(PutMessageStatus.PUT_OK)

    def _result(
        self, status: PutMessageStatus, appended: AppendMessageResult, started: float | None
    ) -> PutMessageResult:
        return self._answered(PutMessageResult(self._if_leading(status), appended), started)

    def _if_leading(self, status: PutMessageStatus) -> PutMessageStatus:
        """Not PUT_OK if the node has lost the right to lead since it stored the message."""
        if status is PutMessageStatus.PUT_OK and not self._still_leads():
            return PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        return status

    def _held_up_to(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """Fires when the log is on the disk and on the replicas up to ``next_offset``, as the settings ask for."""
        replicated = None if self.replication is None else self.replication.wait(next_offset)
        if not self._sync_flush:
            assert replicated is not None, "else there is nothing to wait for"
            return replicated
        flushed = self._flushes.wait(next_offset)
        self._flush()

        def both(in_time: bool) -> Deferred[PutMessageStatus] | PutMessageStatus:
            of_disk = PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_DISK_TIMEOUT
            if replicated is None:
                return of_disk
            return replicated.addCallback(lambda status: of_disk if status is PutMessageStatus.PUT_OK else status)

        return flushed.addCallback(both)

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
