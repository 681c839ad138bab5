"""The facade: opens a store, owns it while a node runs, and closes it so that the next start is quick.

Order of opening: lock, segments, checkpoint, recovery, ``abort`` file. Order of closing: the reverse.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.settings import Settings
from rmqha.store.checkpoint import Checkpoint
from rmqha.store.commitlog import DEFAULT_SEGMENT_SIZE, CommitLog
from rmqha.store.errors import StoreError
from rmqha.store.flush import FlushService, RunInThread
from rmqha.store.lockfile import LockFile
from rmqha.store.mappedfile import list_segments, sync_folder
from rmqha.store.nodestate import NODE_FOLDER, NodeState, Offsets
from rmqha.store.recovery import Recovery, recover_log

ABORT_FILE = "abort"
CHECKPOINT_FILE = "checkpoint"
LOCK_FILE = "lock"


class MessageStore:
    """A store opened for writing. ``recovery`` tells what opening it found."""

    _log = Logger()

    def __init__(self, settings: Settings) -> None:
        """Opens it. Raises StoreInUse, StoreError, OSError."""
        self.settings = settings
        self.root = settings.store_path_root_dir
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock_file = LockFile(self.root / LOCK_FILE)
        try:
            self._open()
        except BaseException:
            self._lock_file.release()
            raise

    def _open(self) -> None:
        self.node_state = NodeState.read(self.root) or NodeState.new()
        self.commit_log = CommitLog(
            self.settings.commit_log_folder,
            segment_size_of(self.settings.commit_log_folder, self.settings.mapped_file_size_commit_log),
        )
        self.recovery = self._recover()
        (self.root / ABORT_FILE).touch()
        sync_folder(self.root)

    def _recover(self) -> Recovery:
        checkpoint = Checkpoint.read(self.root / CHECKPOINT_FILE)
        recovery = recover_log(
            self.commit_log,
            checkpoint,
            clean_stop=not (self.root / ABORT_FILE).exists(),
            cut_folder=self.root / NODE_FOLDER / "cut",
        )
        self._lower_checkpoint(checkpoint)
        self._tell_loss(recovery.end)
        self._log.info(
            "log of {store} is {min_offset} to {end}, checked from {checked_from} after {stop} stop",
            store=str(self.root),
            min_offset=recovery.min_offset,
            end=recovery.end,
            checked_from=recovery.checked_from,
            stop="a clean" if recovery.clean_stop else "an unclean",
        )
        if recovery.problem is not None:
            self._log.warn(
                "cut {cut_bytes} bytes at {end}: {problem}; they are kept in {kept_in}",
                cut_bytes=recovery.cut_bytes,
                end=recovery.end,
                problem=recovery.problem,
                kept_in=str(recovery.kept_in),
            )
        return recovery

    def _lower_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep the checkpoint from being ahead of the log: what was cut may come again, and not be on disk yet."""
        physic = self.commit_log.last_store_timestamp
        if checkpoint.physic_msg_timestamp > physic:
            replace(checkpoint, physic_msg_timestamp=physic).write(self.root / CHECKPOINT_FILE)

    def _tell_loss(self, end: int) -> None:
        """Begin a new epoch, durably, if bytes that were confirmed are gone from ``end`` on."""
        state = self.node_state.after_loss(end)
        if state is not self.node_state:
            self.node_state = replace(state, offsets=self.offsets(end))
            self.node_state.write(self.root)

    def start_flushing(
        self, clock: IReactorTime, run_in_thread: RunInThread, failed: Callable[[Failure], None]
    ) -> FlushService:
        """Begin to flush as configured. ``failed`` hears of the first flush that fails, which is the last."""
        flusher = FlushService(
            self.commit_log, self.settings, clock, run_in_thread, self.root / CHECKPOINT_FILE, failed
        )
        flusher.start()
        return flusher

    def adopt_segment_size(self, size: int) -> None:
        """Use the master's segment size for a log that has no segments yet."""
        if not self.commit_log.segment_bases and size != self.commit_log.segment_size:
            self.commit_log.segment_size = size
            self._log.info("segments will have {size} bytes, as the master's", size=size)

    def set_aside(self, now_ms: int) -> Path:
        """Move all segments to a folder of their own below ``rmqha``, to begin anew. Raises OSError."""
        log = self.commit_log
        aside = self.root / NODE_FOLDER / f"aside-{now_ms}"
        aside.parent.mkdir(exist_ok=True)
        log.sync()
        self.node_state = replace(self.node_state, offsets=self.offsets(log.verified_offset))
        log.set_aside(aside)
        self._lower_checkpoint(Checkpoint.read(self.root / CHECKPOINT_FILE))
        self._tell_loss(log.min_offset)
        return aside

    def offsets(self, confirmed: int) -> Offsets:
        """The log's offsets now."""
        log = self.commit_log
        return Offsets(log.min_offset, log.max_offset, log.verified_offset, log.flushed_offset, confirmed)

    def close(
        self, flusher: FlushService | None = None, final_state: Callable[[], NodeState] | None = None
    ) -> Deferred[None]:
        """Cut what is no whole record, flush, write checkpoint and state, remove ``abort`` and let go of the store.

        The Deferred fails with OSError if the disk refuses; then ``abort`` stays, for the next start to recover.
        """
        drained: Deferred[None] = Deferred()
        if flusher is None:
            drained.callback(None)
        else:
            drained = flusher.drained()
        return drained.addCallback(lambda _: self._close_cleanly(flusher, final_state)).addBoth(self._release)

    def _close_cleanly(self, flusher: FlushService | None, final_state: Callable[[], NodeState] | None) -> None:
        log = self.commit_log
        if flusher is not None and flusher.broken:
            return
        if log.verified_offset != log.max_offset:
            log.truncate(log.verified_offset)
        log.prepare_next_segment()
        if flusher is None:
            log.sync()
        else:
            flusher.stop()
        if final_state is not None:
            final_state().write(self.root)
        (self.root / ABORT_FILE).unlink(missing_ok=True)
        sync_folder(self.root)

    def _release(self, result: Failure | None) -> Failure | None:
        self.commit_log.close()
        self._lock_file.release()
        return result


def segment_size_of(folder: Path, configured: int | None) -> int:
    """The size of the segments in ``folder``; as configured, or 1 GiB, where there are none yet.

    Raises StoreError if segments have another size than configured.
    """
    counts = Counter(size for _, size in list_segments(folder) if size)
    if not counts:
        return configured or DEFAULT_SEGMENT_SIZE
    size = max(counts, key=lambda size: (counts[size], size))  # one that was cut short is then named as such
    if configured is not None and configured != size:
        raise StoreError(f"segments of {folder} have {size} bytes; mappedFileSizeCommitLog says {configured}")
    return size
