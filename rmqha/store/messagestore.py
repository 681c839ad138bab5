"""The facade: opens a store, owns it while a node runs, and closes it so that the next start is quick.

A store opens in this order: lock, segments, checkpoint, recovery, queues and index, which begin with the ``abort`` file
before they are changed. It closes in the reverse order.
"""

import errno
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.histogram import Histogram
from rmqha.kit.steps import Steps
from rmqha.kit.threads import Failed, RunInThread
from rmqha.kit.wallclock import WALL_CLOCK, IWallClock
from rmqha.settings.settings import BrokerRole, Settings, SettingsError, with_defaults
from rmqha.store.clamping import clamp_groups
from rmqha.store.deletions import DeletedTopicTable
from rmqha.store.derived.derived import Derived
from rmqha.store.derived.placing import FoundRestart, MessageArrived
from rmqha.store.derived.queuetypes import QueueTypes
from rmqha.store.derived.replacing import (
    forget_sizes,
    retire_derived,
)
from rmqha.store.dledger import check_no_dledger
from rmqha.store.examining import ABORT_FILE, CHECKPOINT_FILE, LOCK_FILE
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.flush import CheckpointFile, Flusher, next_checkpoint
from rmqha.store.log.mappedfile import DISK, Disk, Syncable, check_not_among_segments
from rmqha.store.log.recovery import (
    Examination,
    LogDamaged,
    MayCut,
    Recovery,
)
from rmqha.store.logopening import BuildDerived, LogOpening
from rmqha.store.logrecovery import (
    keep_cut,
    lower_checkpoint,
    offsets_of,
    scan_to,
    set_log_aside,
    tell_proved,
)
from rmqha.store.message import Message, MessageBatch, PutMessageResult
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.opening import Opening, OpeningStopped
from rmqha.store.put import Appender, PreparedBatch
from rmqha.store.putfigures import PutFigures
from rmqha.store.putwaits import PutWaits, Replication
from rmqha.store.reading import MessageReader
from rmqha.store.readlimit import LimitedReads, ReadLimit
from rmqha.store.removals import Removals
from rmqha.store.restarts import Restarts, read_restarts
from rmqha.store.setback import CutEnd, move_snapshots_aside, set_back
from rmqha.store.storeputs import PutPhase, StorePuts
from rmqha.wire.record import Record
from rmqha.wire.scanned import Scan

REOPENING_BYTES = 4 << 20
"""Without this room a running node does not close its store to open it again: if it cannot close it, it ends."""
LAST_DISPATCH_SECONDS = 5.0
"""How long queues may catch up with the log when a store closes. The next start dispatches the rest."""

FinalState = Callable[[], NodeState]
"""Gives the state at a clean stop, when all of the log is on the disk."""


class MessageStore:
    """A store opened for writing. ``recovery`` says what was found when it was opened."""

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        opening: Opening | None = None,
        may_cut: MayCut = MayCut.TORN_END,
        build_derived: BuildDerived | None = None,
        disk: Disk = DISK,
        wall: IWallClock = WALL_CLOCK,
    ) -> None:
        """Opens it. Recovery cuts what ``may_cut`` allows. ``wall`` gives the STORETIMESTAMP of puts.

        ``build_derived`` puts new queues and index in place of the old ones, which are not read. It is called after
        recovery. If it raises, the store is closed, and a store that was closed cleanly before counts as such again.

        A node passes its ``opening``. Then state.json says how far opening is, even if the store had no state yet.

        Raises StoreInUse, LogDamaged and other StoreErrors, OSError. Raises OpeningStopped if ``opening`` is stopped.
        """
        self._opening = Opening() if opening is None else opening
        self.root = settings.store_path_root_dir
        self.disk = disk
        self._wall = wall
        check_not_among_segments(self.root)
        disk.make_folder(self.root)
        check_no_dledger(self.root)
        self._lock_file = disk.lock(self.root / LOCK_FILE)
        try:
            log = LogOpening(settings, self._opening, opening is not None and opening.is_of_node, disk)
            try:
                log.check(may_cut)
                self._open(log, build_derived)
            except BaseException as error:  # of any kind: state.json says again what it said
                if isinstance(error, OpeningStopped | LogDamaged) or build_derived is not None:
                    log.write_back()
                raise
        except BaseException:  # of any kind: release the lock, then raise it again
            self._lock_file.release()
            raise
        finally:
            self._opening = Opening()  # the opening is over: its owner can no longer stop what follows

    def _open(self, opened: LogOpening, build_derived: BuildDerived | None) -> None:
        self.commit_log = opened.open()
        self.recovery, self.node_state, self.settings = opened.recovery, opened.node_state, opened.settings
        self.is_slave = self.settings.broker_role is BrokerRole.SLAVE
        noted = self.node_state.topics_up_to if self.is_slave else None
        self.topics_up_to = None if noted is None else min(noted, self.commit_log.verified_offset)
        """A slave's table of topics has those of all messages before this offset; None if that is not known.

        Where the log was cut, another master may put other messages.
        """
        self.has_masters_log = False
        """Whether a slave's log is the beginning of its master's. Each connection finds that out again."""
        self.clamped = 0
        """How many offsets of groups were past the end of their queues, and were set back."""
        self._flusher: Flusher | None = None
        self._failed: Failed | None = None
        self._removals = Removals(self.root, self.disk)
        self._dispatching: tuple[IReactorTime, Failed] | None = None
        self._arrival_listeners: list[MessageArrived] = []
        is_slaves = self.is_slave or self.node_state.role == BrokerRole.SLAVE.value
        self.restarts = Restarts(self.root, read_restarts(self.root, self.disk) if is_slaves else {}, self.disk)
        """Topics that the master of a slave may have deleted."""
        self.restarts.log_ends_at(self.recovery.end)
        self._found_restart: FoundRestart = lambda request: None
        if is_slaves:
            self._found_restart = self.restarts.add
        self._reads = LimitedReads(self.root, self.commit_log, self.commit_log.disk, self._limit_failed)
        self.put_figures = PutFigures(time.monotonic)
        try:
            self.settings = opened.tidied_settings()
            recovery = self.recovery if build_derived is None else opened.build(build_derived)
            self.derived = self._new_derived(recovery)
        except OpeningStopped:
            opened.stop(is_clean=self.recovery.clean_stop)
            raise
        try:
            self._serve_derived()
        except OpeningStopped:
            self.commit_log.sync()
            self._flush_derived()
            self.derived.settle()
            self.derived.close()
            opened.stop(is_clean=True)
            raise
        self.puts = StorePuts(self.commit_log, self._new_appender(), self.put_figures, self._log_broke)
        is_whole = self.recovery.clean_stop and self.recovery.damage is None
        if not is_slaves and not is_whole:  # groups may have read what the log has lost; a slave's master has them
            self.clamped = clamp_groups(self.root / CONFIG_FOLDER, self.derived.queue_offsets(), self.disk)
        self.commit_log.begun = self._log_begun
        if self.derived.shows_sizes:
            forget_sizes(self.root, self.disk)

    def _new_derived(self, recovery: Recovery) -> Derived:
        """Open queues and index."""
        derived = Derived(self.root, self.settings, self.commit_log, recovery, self._opening)
        for message_arrived in self._arrival_listeners:
            derived.dispatcher.subscribe(message_arrived)
        derived.dispatcher.placer.found_restart = self._found_restart
        return derived

    def _serve_derived(self) -> None:
        """Read with the queues and the index that are open now. A master's have all of the log then."""
        log = self.commit_log
        if not self.is_slave:  # puts need each queue's end; a slave takes no puts
            self.derived.dispatcher.catch_up(self._opening.bar(OpeningPhase.DISPATCHING))
        self.reader = MessageReader(log, self.derived.queues, self.derived.index, self.settings, self.is_slave)
        self.reader.limit = self.read_limit

    def _new_appender(self) -> Appender:
        """What puts into the queues that are open now."""
        return Appender(
            self.commit_log,
            self.derived.queue_offsets(),
            self.settings.message_delay_level,
            self.settings.max_message_size_bytes,
            self._wall,
            self.derived.dispatcher.notes,
        )

    def _open_derived_again(self, recovery: Recovery) -> None:
        """Open queues and index, which were closed, and go on with them."""
        self.derived = self._new_derived(recovery)
        self._serve_derived()
        self.puts.appender = self._new_appender()
        if self._dispatching is not None:
            self.derived.dispatcher.start(*self._dispatching)

    def doubt_from(self, offset: int) -> None:
        """A slave's log may be another one than its master's from here on: it will be compared with the master's."""
        known = self.node_state.unproved_from
        if offset < self.commit_log.verified_offset and (known is None or offset < known):
            self.node_state = replace(self.node_state, unproved_from=offset)

    def log_proved(self) -> None:
        """All that was in doubt equals the master's log."""
        self.node_state = tell_proved(self.node_state)

    def start_flushing(self, clock: IReactorTime, run_in_thread: RunInThread, failed: Failed) -> Flusher:
        """Start flushing as configured. ``failed`` is called with the first failure. No flush follows it."""
        self.put_figures.seconds = clock.seconds
        waits = PutWaits(self.settings, clock, lambda: flusher.flush(), self.put_figures, self.puts.still_leads)
        checkpoint = CheckpointFile(self.root / CHECKPOINT_FILE, derived=self)
        flusher = Flusher(self.commit_log, self.settings, clock, run_in_thread, checkpoint, self._log_broke)
        flusher.start()
        self._flusher, self._failed, self._removals.run_in_thread = flusher, failed, run_in_thread
        self.puts.begin(waits, are_taken=not self.is_slave)
        flusher.subscribe(lambda: waits.flushed(self.commit_log.flushed_offset))
        return flusher

    def _log_broke(self, failure: Failure) -> None:
        """The log cannot be written, or not flushed."""
        assert self._failed is not None, "puts are taken only while flushing"
        if self.puts.broke():
            self.puts.give_up()
            self._failed(failure)

    def replicate_by(self, replication: Replication) -> None:
        """Let puts wait for replicas too, from now on. Call ``start_flushing`` first."""
        assert self.puts.waits is not None, "puts are taken only while flushing"
        self.puts.waits.replication = replication
        self.put_figures.one_in = 1

    def confirmed_without_node(self) -> int:
        """The confirmed end of the log while no node runs: it is not after the limit that reads had. Raises OSError."""
        return self._reads.confirmed(self.node_state)

    def limit_reads(self, clock: IReactorTime) -> ReadLimit:
        """Let reads end at the confirmed end of the log from now on (``readUpTo=confirmed``). Raises OSError.

        The limit starts where it was when the node stopped, or at the end of a log that was cut since. If reads had no
        limit then, consumers have seen all of the log, and it starts at the log's end.
        """
        self.node_state = self._reads.settled(self.node_state)
        limit = self.reader.limit = self._reads.begin(clock, self.node_state)
        return limit

    def _limit_failed(self, failure: Failure) -> None:
        if self._failed is not None:
            self._log_broke(failure)

    @property
    def read_limit(self) -> ReadLimit | None:
        """Where reads end, if ``readUpTo=confirmed``: see ``limit_reads``."""
        return self._reads.limit

    def lift_read_limit(self) -> None:
        """Let reads end at the log's end again: an operator wants it, although a failover may take messages back.

        Raises OSError.
        """
        self._reads.lift()

    def start_dispatching(self, clock: IReactorTime, failed: Failed) -> None:
        """Start building queues and index as the log grows. ``failed`` is called with the error that ends this."""
        self._dispatching = clock, failed
        self.derived.dispatcher.start(clock, failed)

    def subscribe(self, message_arrived: MessageArrived) -> None:
        """Call ``message_arrived`` with each queued message and its tagsCode, also when queues are rebuilt."""
        self._arrival_listeners.append(message_arrived)
        self.derived.dispatcher.subscribe(message_arrived)

    def on_restart(self, found: FoundRestart) -> None:
        """Call ``found`` with each message that has queue offset 0, and comes after other messages of its queue."""
        self._found_restart = self.derived.dispatcher.placer.found_restart = found

    def set_queue_types(self, types: QueueTypes) -> None:
        """Use what the topics' table says now of batch consume queues. Raises OSError."""
        self.derived.set_queue_types(types)

    def close_topic(self, topic: str) -> int:
        """Take no more messages of a topic that is being deleted. Returns the end of the log, which is its mark."""
        self.puts.appender.closed_topics.add(topic)
        return self.commit_log.max_offset

    def setting_deleted(self, deleted: DeletedTopicTable) -> Steps[Deferred[None]]:
        """From now on this is what was deleted, and it is on the disk. Raises OSError.

        The queues of the topics start again from 0, and take messages: the Deferred fires then, or fails with OSError.
        A thread removes the old ones. If queues and index are opened again meanwhile, that does the rest.
        """
        former = self.derived.dispatcher.deleted
        rebuilt = yield from self.derived.setting_deleted(deleted)
        return Deferred.fromCoroutine(self._build_again(rebuilt, former))

    async def _build_again(self, rebuilt: Mapping[str, int], former: DeletedTopicTable) -> None:
        dispatcher = self.derived.dispatcher
        deleted = dispatcher.deleted
        try:
            is_done = await self._removals.build_again(self.derived, rebuilt)
        except OSError:
            dispatcher.deleted = former
            raise
        for topic in self.puts.appender.closed_topics & deleted.marks.keys() if is_done else ():
            self.puts.appender.start_again(topic)

    def was_deleted(self, topic: str, record: Record) -> bool:
        """Whether the topic that a waiting message goes to was deleted since the message was stored."""
        return self.derived.dispatcher.deleted.is_deleted(topic, record.physical_offset)

    def is_of_deleted(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether an offset is beyond the end of a queue that began again when its topic was deleted.

        A consumer that outlives the deletion has it from before. A slave cannot tell: its queue may be behind.
        """
        has_mark = not self.is_slave and topic in self.derived.dispatcher.deleted.marks
        return has_mark and offset > self.reader.next_offset(topic, queue_id)

    def take_unflushed(self) -> list[Syncable]:
        """The files of queues and index with bytes written since the last call."""
        return self.derived.dispatcher.take_unflushed()

    def take_notes(self) -> list[Syncable]:
        """What dispatch has found, and must be on the disk before a checkpoint counts it as dispatched."""
        return self.restarts.take_notes()

    def vouched(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms of the last dispatched message, and of the last one in a full index file."""
        return self.derived.dispatcher.vouched()

    def has_record(self, record: Record) -> bool:
        """Whether a record that was read at an offset is one of the log, and not inside the body of another.

        False if very many messages before it are not dispatched yet. Raises OSError.
        """
        return self.reader.has_record(record, self.derived.dispatcher.reput_offset)

    def put_message(self, message: Message) -> Deferred[PutMessageResult]:
        """Store one message. Fires when it is stored, flushed and replicated as the settings and the message ask."""
        return self.puts.put_message(message)

    def put_messages(self, batch: MessageBatch) -> Deferred[PutMessageResult]:
        """Store all messages of a batch or none. Fires as ``put_message`` does."""
        return self.puts.put_messages(batch)

    def prepare_messages(self, batch: MessageBatch) -> Steps[PreparedBatch]:
        """The first half of ``put_messages``, in steps. Raises PutRefused."""
        return self.puts.appender.prepare_batch(batch)

    def put_prepared(self, prepared: PreparedBatch) -> Deferred[PutMessageResult]:
        """The second half of ``put_messages``. Fires as ``put_message`` does."""
        return self.puts.put_prepared(prepared)

    def flush(self) -> None:
        """Start to flush all that is in the log now."""
        if self._flusher is not None:
            self._flusher.flush()

    async def flushed(self) -> None:
        """Return when all that is in the log now is on the disk, or the disk has refused it."""
        end, flusher = self.commit_log.max_offset, self._flusher
        while flusher is not None and not flusher.broken and self.commit_log.flushed_offset < end:
            flusher.flush()
            await flusher.drained()

    @property
    def takes_puts(self) -> bool:
        """Whether the store accepts messages: it is an open master's that may lead, its disk works and has room."""
        return self.puts.are_taken

    @property
    def has_no_room(self) -> bool:
        """Whether the disk is too full for messages: by its numbers, or because it has refused the last one."""
        return self.puts.has_no_room

    def check_room(self) -> None:
        """Raises OSError if the disk is too full to close the store, or to set its log aside, and to open it again."""
        free = self.disk.free_bytes(self.root)
        if free < REOPENING_BYTES:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, with {free} bytes free", str(self.root))

    @property
    def is_broken(self) -> bool:
        """Whether a write or a flush has failed. Nothing more is acknowledged then."""
        return self.puts.phase is PutPhase.BROKEN

    @property
    def flush_durations(self) -> Histogram | None:
        """How long flushes of the log took; None before ``start_flushing``."""
        return None if self._flusher is None else self._flusher.durations

    def end_puts(self) -> None:
        """Refuse new puts, and answer those that wait for replicas: their clients are still connected."""
        self.puts.end()

    def adopt_segment_size(self, size: int) -> None:
        """Use the master's segment size for a log that has no segments yet."""
        if not self.commit_log.segment_bases and size != self.commit_log.segment_size:
            self.commit_log.segment_size = size
            self._log.info("using the master's segment size, {size} bytes", event=Event.SEGMENT_SIZE_ADOPTED, size=size)

    def adopt_derived_file_settings(self, properties: Mapping[str, str]) -> None:
        """Use the master's sizes of queue and index files, if we have no such files yet. Raises OSError.

        Our own settings come first. Sizes that cannot be used are logged and ignored.
        """
        if self.derived.has_files:
            return
        try:
            settings = with_defaults(self.settings, properties)
        except SettingsError as error:
            self._log.warn(
                "cannot use the master's file sizes: {error}", event=Event.FILE_SIZES_UNUSABLE, error=str(error)
            )
            return
        if settings != self.settings:
            self.settings = settings
            self._reopen_derived()

    def _reopen_derived(self) -> None:
        """Start queues and index again from the log's start. A thread removes the old ones, which may be many."""
        log = self.commit_log
        self.derived.dispatcher.stop()
        self.derived.close()
        retired = retire_derived(self.root, self.disk)
        self.restarts.clear()  # dispatch finds them again
        self._removals.remove(retired)
        end = log.verified_offset
        self._open_derived_again(Recovery(True, log.min_offset, checked_from=end, end=end, messages=0))

    def _log_begun(self) -> None:
        """The empty log has a new start. What queues and index have of an earlier log from there on is wrong."""
        start = self.commit_log.min_offset
        if start < self.derived.dispatcher.reput_offset:
            self._log.info(
                "the log begins at {start}, before the end of an earlier log: queues and index begin again",
                event=Event.DERIVED_BEGINS_AGAIN,
                start=start,
            )
            self._reads.take_back(start)
            self._reopen_derived()

    def set_aside(self, now_ms: int) -> Path:
        """Empty the log: move all segments to a new folder below ``rmqha``. Returns that folder. Raises OSError.

        What points into the log moves with it.
        """
        log = self.commit_log
        aside, self.node_state = set_log_aside(self.root, log, self.node_state, now_ms)
        self._reads.take_back(log.min_offset)
        self._reopen_derived()
        return aside

    def known_log(self) -> Examination:
        """The log as it is now. An opening right after a clean close takes it, and need not prove the log again."""
        log = self.commit_log
        found = Scan(log.verified_offset, 0, log.last_message_offset, log.last_store_timestamp)
        return Examination(True, log.min_offset, log.verified_offset, found, log.verified_offset)

    def cut_back(self, offset: int) -> Path | None:
        """Cut the log at ``offset``, the end of a record. Returns the file that keeps the cut bytes, or None.

        Nothing may use the store meanwhile. The new epoch is on the disk before the log is cut. Raises StoreError,
        OSError.
        """
        log = self.commit_log
        found = scan_to(log, offset)
        self.derived.dispatcher.catch_up()
        set_back(self.root, CutEnd.of(log, offset, log.verified_offset), self.derived.queues.get, self.disk)
        self.derived.dispatcher.stop()
        self._flush_derived()
        dispatched = min(offset, log.verified_offset - self.derived.dispatcher.behind_bytes)
        kept_in, self.node_state = keep_cut(self.root, log, self.node_state, offset)
        self.derived.note_unfinished()
        self.derived.close()
        log.trust(found)
        self.restarts.log_ends_at(offset)
        log.sync()
        move_snapshots_aside(self.root, offset, self.disk)
        lower_checkpoint(self.root, log)
        # not as after a clean stop: queues may have more than the index
        self._open_derived_again(Recovery(False, log.min_offset, checked_from=dispatched, end=offset, messages=0))
        return kept_in

    def close_now(self, final_state: FinalState | None = None) -> None:
        """Close a store that has no flusher, as commands do. Raises OSError."""
        failures: list[Failure] = []
        self.close(final_state=final_state).addErrback(failures.append)
        if failures:
            failures[0].raiseException()

    def abandon(self) -> None:
        """Close the files without flushing, as if the process died. The next start recovers the store."""
        self.puts.broke()
        self._release(None)

    def offsets(self, confirmed: int) -> Offsets:
        """The log's offsets now."""
        return offsets_of(self.commit_log, confirmed)

    def close(self, flusher: Flusher | None = None, final_state: FinalState | None = None) -> Deferred[None]:
        """Cut an incomplete last record, flush, write checkpoint and state, remove ``abort`` and release the lock.

        The Deferred fails with OSError if the disk fails. Then ``abort`` stays, and the next start recovers the store.
        """
        self.end_puts()
        drained: Deferred[None] = Deferred()
        if flusher is None:
            drained.callback(None)
        else:
            drained = flusher.drained().addCallback(lambda _: self._removals.done)
        return drained.addCallback(lambda _: self._close_cleanly(flusher, final_state)).addBoth(self._release)

    def _close_cleanly(self, flusher: Flusher | None, final_state: FinalState | None) -> None:
        log = self.commit_log
        if self.is_broken or (flusher is not None and flusher.broken):
            return
        if log.verified_offset != log.max_offset:
            log.truncate(log.verified_offset)
        log.prepare_next_segment()
        self.derived.dispatcher.stop()
        self.derived.dispatcher.finish(time.monotonic() + LAST_DISPATCH_SECONDS)
        if flusher is None:
            self._flush_all()
        else:
            flusher.stop()
        self.derived.settle()
        if final_state is not None:
            final_state().write(self.root, self.disk)
        self.disk.remove(self.root / ABORT_FILE, missing_ok=True)
        self.disk.sync_folder(self.root)

    def _flush_derived(self) -> None:
        """Write and flush queues, index and notes. Raises OSError."""
        self.derived.dispatcher.write_pending()
        self.disk.sync_all([*self.take_unflushed(), *self.take_notes()])

    def _flush_all(self) -> None:
        """Flush log, queues and index, and write the checkpoint. Raises OSError."""
        self.commit_log.sync()
        checkpoint = next_checkpoint(Checkpoint(), self.commit_log, derived=self)
        self._flush_derived()
        checkpoint.write(self.root / CHECKPOINT_FILE, self.disk)

    def _release(self, result: Failure | None) -> Failure | None:
        self.puts.give_up()
        self._reads.close()
        self.derived.dispatcher.stop()
        self.derived.close()
        self.commit_log.close()
        self._lock_file.release()
        return result
