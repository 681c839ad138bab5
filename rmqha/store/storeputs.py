"""The puts of an open store: whether they are taken, what is appended, and what each answer waits for."""

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.threads import Failed
from rmqha.store.errors import is_disk_full
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.message import AppendMessageResult, Message, MessageBatch, PutMessageResult, PutMessageStatus
from rmqha.store.put import Appender, PreparedBatch, PutRefused
from rmqha.store.putfigures import PutFigures
from rmqha.store.putwaits import PutWaits, RightToLead
from rmqha.wire.sends.run import Place, SendRun

Put = TypeVar("Put", Message, MessageBatch, PreparedBatch)
Append = Callable[[Put], AppendMessageResult]
"""Appends a message, or several. Raises PutRefused, OSError."""


class PutPhase(Enum):
    """Whether a store takes puts."""

    NONE = "a slave's store, or one that is not flushed yet, or that closes"
    TAKEN = "a master's store, while it is flushed"
    BROKEN = "a write or a flush has failed"


class StorePuts:
    """Appends messages, and answers them when they are as safe as they ask for.

    ``log_broke`` is called with the first error of the disk, other than that it is full. ``leadership`` is asked before
    each append and each answer, with automatic failover.
    """

    _log = Logger()

    def __init__(self, log: CommitLog, appender: Appender, figures: PutFigures, log_broke: Failed) -> None:
        self._commit_log = log
        self.appender = appender
        self.figures = figures
        self._log_broke = log_broke
        self.phase = PutPhase.NONE
        self.waits: PutWaits | None = None
        self.leadership: RightToLead | None = None
        self.disk_full = False
        self._refused_at: int | None = None
        """The end of the log when the disk last had no room for a message."""

    def begin(self, waits: PutWaits, are_taken: bool) -> None:
        """Answer with ``waits`` from now on. A slave takes no puts."""
        self.waits = waits
        self.phase = PutPhase.TAKEN if are_taken else PutPhase.NONE

    def end(self) -> None:
        """Refuse new puts, and answer those that wait for replicas: their clients are still connected."""
        if self.phase is PutPhase.TAKEN:
            self.phase = PutPhase.NONE
        if self.waits is not None:
            self.waits.give_up_replicas()

    def broke(self) -> bool:
        """Acknowledge nothing more: a write or a flush has failed. False if one had before."""
        if self.phase is PutPhase.BROKEN:
            return False
        self.phase = PutPhase.BROKEN
        return True

    def give_up(self) -> None:
        """Answer all that wait."""
        if self.waits is not None:
            self.waits.give_up()

    @property
    def are_taken(self) -> bool:
        """Whether the store accepts messages: it is an open master's that may lead, its disk works and has room."""
        if self.phase is not PutPhase.TAKEN or self.disk_full:
            return False
        return self.leadership is None or self.leadership.takes_puts()

    @property
    def has_no_room(self) -> bool:
        """Whether the disk is too full for messages: by its numbers, or because it has refused what should come next.

        A quota refuses bytes, and a file system without inodes refuses files, while the numbers show room.
        """
        return self.disk_full or self._refused_at == self._commit_log.max_offset

    def still_leads(self) -> bool:
        """Whether the node may say that a message is stored."""
        return self.leadership is None or self.leadership.is_held()

    def put_message(self, message: Message) -> Deferred[PutMessageResult]:
        """``MessageStore.put_message``."""
        return self._put(self.appender.append, message, message.is_wait_store_msg_ok)

    def put_messages(self, batch: MessageBatch) -> Deferred[PutMessageResult]:
        """``MessageStore.put_messages``."""
        return self._put(self.appender.append_batch, batch, batch.is_wait_store_msg_ok)

    def put_prepared(self, prepared: PreparedBatch) -> Deferred[PutMessageResult]:
        """``MessageStore.put_prepared``."""
        return self._put(self.appender.append_prepared, prepared, prepared.batch.is_wait_store_msg_ok)

    def begin_run(self, place: Place) -> bool:
        """Fill in where in the log a pass over sends may put messages now. False if it may put none.

        What the disk has no room for is put one by one, until some message fits.
        """
        if self.has_no_room or self._refusal(waits=True) is not None:
            return False
        self.appender.begin_run(place)
        return True

    def put_run(self, run: SendRun) -> PutMessageStatus | Deferred[PutMessageStatus] | None:
        """Append what a pass took, right after ``begin_run``. Returns how the puts ended, or will end.

        None if the disk refuses the messages: nothing is appended then. They may fit one by one.
        """
        timed = self.figures.timed_of(run.count)
        started = self.figures.seconds() if timed else None
        try:
            self.appender.append_run(run)
        except OSError:  # it comes again for the message that it concerns
            return None
        assert self.waits is not None, "puts are taken only while flushing"
        return self.waits.answer_run(run.offset + len(run.records), run.count, started, timed)

    def _append(self, append: Append[Put], put: Put) -> AppendMessageResult | PutMessageResult:
        """Append something, or say why not."""
        if self.phase is PutPhase.BROKEN:
            return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        try:
            return append(put)
        except PutRefused as refused:
            return refused.result
        except OSError as error:
            return self._put_failed(error)

    def _put(self, append: Append[Put], put: Put, waits: bool) -> Deferred[PutMessageResult]:
        figures = self.figures
        started = figures.seconds() if figures.timed_of(1) else None
        refusal = self._refusal(waits)
        if refusal is not None:
            return self._not_put(PutMessageResult(refusal))
        appended = self._append(append, put)
        if isinstance(appended, PutMessageResult):
            return self._not_put(appended)
        assert self.waits is not None, "puts are taken only while flushing"
        return self.waits.answer(appended, waits, started)

    def _refusal(self, waits: bool) -> PutMessageStatus | None:
        """Why nothing can be put now; None if it can."""
        if not self.are_taken:
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert self.waits is not None, "puts are taken only while flushing"
        if waits and not self.waits.enough_replicas():
            return PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return None

    def _not_put(self, result: PutMessageResult) -> Deferred[PutMessageResult]:
        """Count a put that stored nothing, and answer it."""
        return succeed(self.figures.answered(result, None))

    def _put_failed(self, error: OSError) -> PutMessageResult:
        """A full disk refuses only this put: the next one may fit. Any other error breaks the store."""
        if not is_disk_full(error):
            self._log_broke(Failure(error))
            return PutMessageResult(PutMessageStatus.UNKNOWN_ERROR)
        if self._refused_at != self._commit_log.max_offset:  # not for each message, until one fits
            self._refused_at = self._commit_log.max_offset
            self._log.error(
                "refused a message, because the disk is full: {error}",
                event=Event.PUT_REFUSED_DISK_FULL,
                error=str(error),
            )
        return PutMessageResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED)
