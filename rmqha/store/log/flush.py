"""Flushes the log to the disk: fdatasync in one thread, in order (spec/store.md 5).

ASYNC_FLUSH flushes periodically; SYNC_FLUSH flushes whenever a put waits. A failed flush is fatal. The kernel may have
dropped the bytes after it, so a second attempt proves nothing, and nothing after them may be acknowledged.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.histogram import Histogram
from rmqha.kit.services import PeriodicService
from rmqha.kit.threads import Failed, RunInThread
from rmqha.settings.settings import Settings
from rmqha.store.errors import is_disk_full
from rmqha.store.interfaces import Call
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.derivedend import DerivedEnd
from rmqha.store.log.mappedfile import Syncable

OS_PAGE_SIZE = 4096


class DerivedFiles(Protocol):
    """The files that are built from the log. They are flushed before a checkpoint that covers them is written."""

    def take_unflushed(self) -> list[Syncable]:
        """The files that were written to since the last call."""

    def take_notes(self) -> list[Syncable]:
        """Small files that are written before the checkpoint. What a full disk refuses comes again."""

    def vouched(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms of the last dispatched message, and of the last one in a full index file."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """The path of the checkpoint, and the files that it vouches for besides the log."""

    path: Path
    derived: DerivedFiles | None = None


def next_checkpoint(last: Checkpoint, log: CommitLog, derived: DerivedFiles | None) -> Checkpoint:
    """The checkpoint that is true as soon as all that is verified now is on disk. ``last`` is the one before it."""
    checkpoint = replace(last, physic_msg_timestamp=log.last_store_timestamp)
    if derived is None:
        return checkpoint
    logics, index = derived.vouched()
    return replace(checkpoint, logics_msg_timestamp=logics, index_msg_timestamp=index)


class Flusher:
    """Keeps ``log.flushed_offset`` moving (Java's FlushCommitLogService). ``failed`` is called once, with the error."""

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        settings: Settings,
        clock: IReactorTime,
        run_in_thread: RunInThread,
        checkpoint: CheckpointFile,
        failed: Failed,
    ) -> None:
        self._commit_log = log
        self._derived = checkpoint.derived
        self._interval = settings.flush_interval_commit_log_ms / 1000
        self._thorough_interval = settings.flush_commit_log_thorough_interval_ms / 1000
        self._least_bytes = settings.flush_commit_log_least_pages * OS_PAGE_SIZE
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._checkpoint_path = checkpoint.path
        self._failed = failed
        self._listeners: list[Call] = []
        self._running: Deferred[None] | None = None
        self._again = False
        self.broken = False
        self.durations = Histogram()
        """How long flushes took, the wait for the thread included."""
        self._checkpoint_is_written = False
        """Whether the last flush has written a checkpoint. The thread changes it; nobody reads it before that ends."""
        self._started = 0.0
        self._last_thorough = clock.seconds()
        self._checkpoint = Checkpoint.read(checkpoint.path, log.disk)
        self._loop = PeriodicService(
            "flushing the log", self._interval, self._flush_if_due, clock, first_after=self._interval
        )

    def start(self) -> None:
        """Start the periodic flush."""
        self._loop.startService()

    def subscribe(self, log_flushed: Call) -> None:
        """Call ``log_flushed`` after each growth of the flushed prefix."""
        self._listeners.append(log_flushed)

    def _flush_if_due(self) -> None:
        dirty_bytes = self._commit_log.max_offset - self._commit_log.flushed_offset
        if self._is_thorough_due or dirty_bytes >= self._least_bytes:
            self.flush()

    @property
    def _is_thorough_due(self) -> bool:
        return self._clock.seconds() - self._last_thorough >= self._thorough_interval

    @property
    def _is_derived_dirty(self) -> bool:
        """Whether messages of the log are not in queues and index on the disk yet, so that its segments must stay."""
        log = self._commit_log
        return self._derived is not None and max(log.derived_end.flushed, log.min_offset) < log.verified_offset

    def flush(self) -> None:
        """Flush all that is written now. If a flush is running, one more follows it."""
        if self._running is not None:
            self._again = True
            return
        log = self._commit_log
        write_checkpoint = self._is_thorough_due
        is_dirty = log.max_offset != log.flushed_offset or (write_checkpoint and self._is_derived_dirty)
        if self.broken or not is_dirty:
            return
        target, verified, truncations = log.max_offset, log.verified_offset, log.truncations
        now = self._clock.seconds()
        if write_checkpoint:
            self._last_thorough = now
        files: list[Syncable] = [*log.unflushed_files()]
        checkpoint, notes = None, list[Syncable]()
        if write_checkpoint:
            checkpoint = self._next_checkpoint()
            if self._derived is not None:
                files += self._derived.take_unflushed()
                notes = self._derived.take_notes()
        self._started, derived_end = now, log.derived_end
        self._running = self._run_in_thread(partial(self._sync, files, notes, checkpoint))
        self._running.addCallbacks(
            lambda _: self._flushed(target, verified, truncations, derived_end), self._fail_for_good
        ).addErrback(lambda failure: self._log.failure("after a flush", failure, event=Event.FLUSH_CALLBACK_FAILED))

    def _sync(self, files: list[Syncable], notes: list[Syncable], checkpoint: Checkpoint | None) -> None:
        """Runs in the thread, and uses no state that the reactor thread changes."""
        self._checkpoint_is_written = False
        self._commit_log.disk.sync_all(files)
        self._commit_log.disk.sync_folder(self._commit_log.folder)
        if checkpoint is not None:
            try:
                for note in notes:
                    note.sync()
                checkpoint.write(self._checkpoint_path, self._commit_log.disk)
                self._checkpoint_is_written = True
            except OSError as error:  # without a new checkpoint recovery is slower, but nothing is lost
                if not is_disk_full(error):
                    raise

    def _next_checkpoint(self) -> Checkpoint:
        """The checkpoint that is true as soon as all that is verified now is on disk."""
        self._checkpoint = next_checkpoint(self._checkpoint, self._commit_log, self._derived)
        return self._checkpoint

    def _flushed(self, target: int, verified: int, truncations: int, derived_end: DerivedEnd) -> None:
        self._running = None
        self.durations.observe(self._clock.seconds() - self._started)
        log = self._commit_log
        if truncations == log.truncations:  # otherwise bytes may have been rewritten while the thread was flushing
            log.flushed_offset, log.durable_offset = target, verified
        if self._checkpoint_is_written:
            derived_end.taken_is_flushed()
        self._tell()
        if self._again:
            self._again = False
            self.flush()

    def _tell(self) -> None:
        for log_flushed in self._listeners:
            log_flushed()

    def _fail_for_good(self, failure: Failure) -> None:
        self._running = None
        self.broken = True
        self._loop.stopService()
        self._failed(failure)

    def stop(self) -> None:
        """Flush the rest, wait for it, and write the checkpoint. Call this after ``drained`` fired. Raises OSError."""
        self._loop.stopService()
        self._commit_log.sync()
        checkpoint = self._next_checkpoint()
        if self._derived is not None:
            self._commit_log.disk.sync_all([*self._derived.take_unflushed(), *self._derived.take_notes()])
        checkpoint.write(self._checkpoint_path, self._commit_log.disk)
        self._tell()

    def drained(self) -> Deferred[None]:
        """Fires when no flush is running and none is due after it."""
        done: Deferred[None] = Deferred()

        def look(_: object) -> None:
            if self._running is None:
                done.callback(None)
            else:
                self._again = False
                self._running.addBoth(look)

        look(None)
        return done
