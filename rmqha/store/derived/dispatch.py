"""Dispatch ("reput"): builds consume queues and index from the log, in slices. Puts and transfers go first.

Everything built here is derived: it can be deleted and built again (spec/store.md 8).
"""

import time
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.kit.events import Event
from rmqha.kit.progress import NO_BAR, IBar
from rmqha.kit.threads import Failed
from rmqha.kit.trouble import Trouble
from rmqha.store.deletions import DeletedTopicTable
from rmqha.store.derived.bulk import SPACE, BulkDispatch, Dispatched, PlacedUnits
from rmqha.store.derived.consumequeue import (
    UNIT_DTYPE,
    ConsumeQueue,
    Units,
)
from rmqha.store.derived.dispatchlines import DispatchLines
from rmqha.store.derived.dispatchrequest import (
    SMALLEST_RECORD_BYTES,
    DispatchRequest,
    next_sound_position,
    read_if_sound,
)
from rmqha.store.derived.index import HASHED_KEY_DTYPE, IndexedKey, KeyIndex
from rmqha.store.derived.placing import MessageArrived, Placer
from rmqha.store.derived.putnotes import PutNote, PutNotes
from rmqha.store.derived.queuetable import IReadWatcher, QueueTable
from rmqha.store.errors import is_disk_full
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.derivedend import DerivedEnd
from rmqha.store.log.mappedfile import Syncable
from rmqha.wire.columns import Records, proved_starts
from rmqha.wire.delay import DelayLevels
from rmqha.wire.logunits import ordinary_units
from rmqha.wire.sends.run import QueueUnits

SLICE_BYTES = 1024 * 1024
SLICE_MESSAGES = 1000
SLICE_SECONDS = 0.004
FIRST_PAUSE_SECONDS = 0.001
"""The pause between a message and its dispatch. Sending it to slaves goes first."""
BUSY_PAUSE_SECONDS = 0.004
"""The pause between two slices while the log grows. Puts have half of the time, and dispatch keeps up."""
SLAVE_PAUSE_SECONDS = 0.02
"""Both pauses on a slave: many messages at once cost a fraction."""
UNREAD_PAUSE_SECONDS = 0.1
"""The first pause on a slave that nobody reads: it has even more messages at once. A read ends it early."""
UNREAD_BUSY_SECONDS = 0.02
"""The pause between two slices on a master that nobody reads. A read ends it early."""
READERS_STAY_SECONDS = 10.0
"""So long after a read others are expected. A held pull counts: it looks at its queue every 5 s."""
BULK_PAUSE_SECONDS = 0.036
BULK_BYTES_PER_SECOND = 150 * 1024 * 1024
"""If the log grows faster than this, a slave is copying it: its queues can wait until that ends."""
MAX_BULK_PAUSE_SECONDS = 0.5
DISK_FULL_PAUSE_SECONDS = 1.0
INDEX_PAUSE_SECONDS = 0.05
"""The longest time between a message's unit and its index keys. Writing many keys costs little more than one."""
INDEX_KEYS_BATCH = 2 * SLICE_MESSAGES


BULK_MESSAGES = 4096
"""At most this many small messages are dispatched at once in a slice, if a part of the log is waiting."""
BULK_MESSAGES_WAITED_FOR = 16_384
"""The same if the caller waits for dispatch."""
BULK_SECONDS = 0.02
"""After a slice that took longer, slices get smaller."""
MIN_BULK_MESSAGES = 64
MIN_BULK_BYTES = 16 * 1024
BULK_BYTES = 8 * 1024 * 1024
NOTED_AT_ONCE = 2048
"""At most this many messages that puts have noted are dispatched in a slice: about 4 ms."""
SLICE_KEYS = 4096
"""A slice that has this many index keys takes no further message. One message has up to 16,000."""
BULK_KEYS = 32_768
"""At most this many, about, of many messages dispatched at once: about 12 ms."""
LEAST_KEY_BYTES = 2
"""A key of one byte, and the space after it."""
SLICE_QUEUES = 128
"""At most this many queues whose files must be opened or created get units in one slice."""
OPEN_QUEUE_COST = 32
"""A queue with closed files costs as much of a slice as this many with open files."""
SLICE_RUNS = 512
"""If small messages are of more queues than this, a slice takes fewer messages."""


class _Run(NamedTuple):
    """Consecutive units of one queue, from ``queue_offset`` on."""

    queue: ConsumeQueue
    queue_offset: int
    units: Units


def _by_queue(units: PlacedUnits) -> tuple[PlacedUnits, list[int]]:
    """The units queue by queue, and the bounds of the runs: of consecutive units of one queue."""
    if not len(units):
        return units, []
    ids = units["queue_id"].astype(np.int64)
    least, most = int(ids.min()), int(ids.max())
    queues = units["topic"].astype(np.int64) * (most - least + 1) + ids - least
    if queues.max() < 1 << 16:
        queues = queues.astype(np.uint16)  # these are sorted several times as fast
    order = queues.argsort(kind="stable")
    units, queues = units.take(order), queues.take(order)  # a ``take`` of records is many times as fast as an index
    offsets = units["queue_offset"]
    begins = ((queues[1:] != queues[:-1]) | (offsets[1:] != offsets[:-1] + 1)).nonzero()[0] + 1
    return units, [0, *begins.tolist(), len(units)]


def _with_few_keys(records: Records, end: int) -> Records:
    """The first of the records, as many as have few keys together. They end at ``end`` of the buffer."""
    room = end - int(records.at[0]) - int(records.ints("bodyLength").sum()) - len(records) * SMALLEST_RECORD_BYTES
    if room <= BULK_KEYS * LEAST_KEY_BYTES:
        return records
    is_space = records.buffer[:end] == SPACE
    if np.count_nonzero(is_space) <= BULK_KEYS:
        return records
    spaces = np.flatnonzero(is_space)
    begins, lengths = records.properties
    keys = np.cumsum(np.searchsorted(spaces, begins + lengths) - np.searchsorted(spaces, begins))
    count = int(np.searchsorted(keys, BULK_KEYS, "right"))
    return records if count == len(records) else records.take(slice(0, count))


def _indexed_keys(request: DispatchRequest) -> list[IndexedKey]:
    """What the index gets of a message."""
    topic, at, timestamp = request.topic, request.physical_offset, request.store_timestamp
    return [IndexedKey(f"{topic}#{key}", at, timestamp) for key in request.index_keys()]


def _add_keys(index: KeyIndex, notes: Sequence[PutNote]) -> None:
    """Add the keys of these messages. The packed keys of many notes are one array."""
    packed: list[bytes] = []
    for note in notes:
        if isinstance(note.keys, bytes):
            packed.append(note.keys)
        elif note.keys:
            _add_packed(index, packed)
            index.add(note.keys)
    _add_packed(index, packed)


def _add_packed(index: KeyIndex, packed: list[bytes]) -> None:
    if packed:
        index.add_hashed(np.frombuffer(b"".join(packed), HASHED_KEY_DTYPE))
        packed.clear()


class Unscheduled(Enum):
    """Why slices run only when a caller runs them."""

    BUILDING = "the store opens, and waits for dispatch"
    STOPPED = "dispatch follows the log no longer"


@implementer(IReadWatcher)
class SliceSchedule:
    """When slices run, and when keys are written, while a dispatcher follows the log. It begins at once.

    The first ten seconds count as if somebody reads.
    """

    _log = Logger()

    def __init__(
        self, dispatcher: "Dispatcher", log: CommitLog, clock: IReactorTime, failed: Failed, is_slave: bool
    ) -> None:
        self._dispatcher = dispatcher
        self._commit_log = log
        self.clock = clock
        self._failed = failed
        self._is_slave = is_slave
        self._least_pause = self._first_pause = SLAVE_PAUSE_SECONDS if is_slave else FIRST_PAUSE_SECONDS
        """The pause before the next slice if dispatch is at the end of the log."""
        self._read_at = clock.seconds()
        self._unread_seconds = 0.0
        """How much longer the pause before the next slice is because nobody reads."""
        self._next_slice: IDelayedCall | None = None
        self._next_index_write: IDelayedCall | None = None
        self._end_at_last_slice, self._time_of_last_slice = -1, 0.0
        self._no_room = Trouble()
        self._unsubscribe = log.subscribe(self.log_grew)
        self.log_grew()

    def log_grew(self) -> None:
        """There may be more to dispatch."""
        if self._next_slice is None and self._dispatcher.behind_bytes > 0:
            now = self.clock.seconds()
            at = soonest = now + self._first_pause
            if now - self._read_at > READERS_STAY_SECONDS:
                gathered = (
                    now + UNREAD_PAUSE_SECONDS if self._is_slave else self._time_of_last_slice + UNREAD_BUSY_SECONDS
                )
                at = max(soonest, gathered)
            self._unread_seconds = at - soonest
            self._next_slice = self.clock.callLater(at - now, self._run_slice)

    def queue_read(self) -> None:
        """Somebody reads a queue: what waits for its slice waits no longer than with readers, and is read now if it
        would have had its slice by now.
        """
        now = self._read_at = self.clock.seconds()
        unread, self._unread_seconds = self._unread_seconds, 0.0
        if unread and self._next_slice is not None:
            left = self._next_slice.getTime() - unread - now
            if left > 0:
                self._next_slice.reset(left)
            else:
                self._next_slice.cancel()
                self._run_slice()

    def _run_slice(self) -> None:
        self._next_slice, self._unread_seconds = None, 0.0
        dispatcher, started_at = self._dispatcher, self.clock.seconds()
        try:
            dispatcher.run_slice(started_at + SLICE_SECONDS)
        except OSError as error:
            self._refused(error)
            return
        self._no_room.ends()
        now = self.clock.seconds()
        dispatcher.lines.reached(now, dispatcher.reput_offset, dispatcher.behind_bytes)
        pause = self._pause(now - started_at)
        self._first_pause = pause if pause >= BULK_PAUSE_SECONDS else self._least_pause
        if self._next_slice is None and dispatcher.behind_bytes > 0:  # not if the log grew within this slice
            self._next_slice = self.clock.callLater(pause, self._run_slice)

    def _refused(self, error: OSError) -> None:
        """Handle an error of the disk. If it is full, try again later."""
        if not is_disk_full(error):
            self._failed(Failure(error))
            return
        if self._no_room.begins():
            self._log.error(
                "queues and index wait for room on the disk: {error}",
                event=Event.DISPATCH_WAITS_FOR_DISK,
                error=str(error),
            )
        if self._next_slice is None:
            self._next_slice = self.clock.callLater(DISK_FULL_PAUSE_SECONDS, self._run_slice)

    def _pause(self, slice_seconds: float) -> float:
        """The pause until the next slice. It depends on how fast the log has grown since the last slice, and, while a
        slave catches up, on how long this slice took: many messages at once take longer than ``SLICE_SECONDS``.
        """
        end, now = self._commit_log.verified_offset, self.clock.seconds()
        grown, elapsed = end - self._end_at_last_slice, now - self._time_of_last_slice
        self._end_at_last_slice, self._time_of_last_slice = end, now
        if not grown:
            return 0.0
        if grown <= BULK_BYTES_PER_SECOND * elapsed:
            return max(BUSY_PAUSE_SECONDS, self._least_pause)
        return min(max(1.0, slice_seconds / SLICE_SECONDS) * BULK_PAUSE_SECONDS, MAX_BULK_PAUSE_SECONDS)

    def write_index_soon(self) -> None:
        """Keys wait to be written."""
        if self._next_index_write is None:
            self._next_index_write = self.clock.callLater(INDEX_PAUSE_SECONDS, self._write_index)

    def _write_index(self) -> None:
        self._next_index_write = None
        try:
            self._dispatcher.write_index()
        except OSError as error:
            self._refused(error)

    def stop(self) -> None:
        """Run no more slices."""
        self._unsubscribe()
        for call in (self._next_slice, self._next_index_write):
            if call is not None:
                call.cancel()


class Dispatcher:
    """Dispatches the log's proved prefix as it grows. ``reput_offset`` is the next offset to dispatch.

    Listeners are called with each message when it gets its unit in a queue.
    """

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        delay_levels: DelayLevels,
        start: int,
        is_slave: bool = False,
    ) -> None:
        """A slave's dispatches many messages at once: it begins later after a message has come."""
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._delay_levels = delay_levels
        self.placer = Placer(log, queues, delay_levels)
        """What puts messages into queues one by one, and tells listeners."""
        self._is_slave = is_slave
        self._phase: SliceSchedule | Unscheduled = Unscheduled.BUILDING
        self._is_unwritten = False
        self._indexed_timestamp = 0
        """STORETIMESTAMP of the last dispatched message when the index was last written."""
        self.notes = PutNotes()
        """What puts tell of the messages at the log's end."""
        self._bulk = BulkDispatch(delay_levels)
        self._bulk_messages = BULK_MESSAGES
        self._singly_until = 0
        """Messages before this offset are dispatched one by one."""
        self.lines = DispatchLines()
        """What tells how far dispatch is."""
        self.reput_offset = start
        self._written_until = start
        log.derived_end = DerivedEnd(start)
        self.last_store_timestamp = 0

    @property
    def behind_bytes(self) -> int:
        """How far dispatch is behind the log."""
        log = self._commit_log
        return log.verified_offset - max(self.reput_offset, log.min_offset)

    @property
    def written_until(self) -> int:
        """Units and keys of all messages before this offset of the log are in the files of queues and index."""
        return min(self._written_until, self.reput_offset)

    @property
    def progress(self) -> str | None:
        """How far dispatch is, if it has been behind the log for some seconds."""
        return self.lines.describe(self.reput_offset, self._commit_log.verified_offset)

    def subscribe(self, message_arrived: MessageArrived) -> None:
        """Call ``message_arrived`` with each queued message and its tagsCode."""
        self.placer.listeners.append(message_arrived)

    def start(self, clock: IReactorTime, failed: Failed) -> None:
        """Follow the log as it grows. ``failed`` is called with the error of the disk that ends this."""
        assert not isinstance(self._phase, SliceSchedule), "it has stopped, or was never started"
        self._phase = self._queues.watcher = SliceSchedule(self, self._commit_log, clock, failed, self._is_slave)

    def catch_up(self, bar: IBar = NO_BAR) -> None:
        """Dispatch all of the log, and return when it is done. ``bar`` shows the place reached. Raises OSError."""
        while self.behind_bytes > 0:
            self.run_slice()
            bar.show(self.reput_offset, self._commit_log.verified_offset)
        self.placer.notices.finish()

    def run_slice(self, deadline: float | None = None) -> None:
        """Dispatch a bounded number of messages, until ``deadline`` on the clock. Raises OSError."""
        log = self._commit_log
        if self.reput_offset < log.min_offset:
            self._log.warn(
                "dispatch goes on at {min}, the start of the log", event=Event.DISPATCH_SKIPS, min=log.min_offset
            )
            self.reput_offset = log.min_offset
        if self._is_unwritten:
            self.write_pending()
        self._is_unwritten = True
        keys: list[IndexedKey] = []
        try:
            self._dispatch_some(keys, deadline)
        finally:
            if self._index is not None:
                self._index.add(keys)
            self._write_slice()

    def _write_slice(self) -> None:
        """Write what a slice added. Keys are written now if there are many, or if the caller waits; else later."""
        pending = 0 if self._index is None else self._index.pending
        if self._phase is Unscheduled.BUILDING or pending >= INDEX_KEYS_BATCH:
            self.write_pending()
            return
        self._queues.write_pending()
        self._is_unwritten = False
        if not pending:
            self._written_until = self.reput_offset
        elif isinstance(self._phase, SliceSchedule):
            self._phase.write_index_soon()

    def write_index(self) -> None:
        """Write the keys that wait. Raises OSError; then the next slice writes them first."""
        try:
            self._write_index()
        except OSError:
            self._is_unwritten = True
            raise
        if not self._is_unwritten:
            self._written_until = self.reput_offset

    def finish(self, deadline: float) -> None:
        """Dispatch until the log's end, or until ``deadline`` of the monotonic clock. Raises OSError."""
        while self.behind_bytes > 0 and time.monotonic() < deadline:
            self.run_slice()
        self.write_pending()

    def write_pending(self) -> None:
        """Write what was added to queues and index. Raises OSError; then it stays pending."""
        self._queues.write_pending()
        self._write_index()
        self._is_unwritten = False
        self._written_until = self.reput_offset

    def _write_index(self) -> None:
        if self._index is not None:
            self._index.write_pending()
        self._indexed_timestamp = self.last_store_timestamp

    def _dispatch_some(self, keys: list[IndexedKey], deadline: float | None) -> None:
        log = self._commit_log
        data = log.get_data(self.reput_offset, log.segment_size)
        if data is None:
            return
        base, position = self.reput_offset, 0
        limit = min(len(data), log.verified_offset - base)
        noted = self.notes.take(base, NOTED_AT_ONCE, SLICE_KEYS)
        if noted and self._dispatch_noted(noted):
            return
        if limit >= MIN_BULK_BYTES and base >= self._singly_until:
            began = self._seconds()
            if self._dispatch_ordinary(data[:limit]) or self._dispatch_many(data[self.reput_offset - base : limit]):
                self._bulk_took(self._seconds() - began)
                return
            position = self.reput_offset - base
        for count in range(SLICE_MESSAGES):
            if position >= limit or self._is_full(position, keys):
                break
            if count % 64 == 63 and deadline is not None and self._seconds() >= deadline:
                break
            request = self._read(data[:limit], base, position)
            if isinstance(request, int):
                position += request
            elif self._dispatch(request, keys):
                position += request.size
            else:
                break
            self.reput_offset = base + position

    def _is_full(self, size: int, keys: Sequence[IndexedKey]) -> bool:
        """Whether a slice of this many bytes, with these keys, takes no further message."""
        return size >= SLICE_BYTES or len(keys) >= SLICE_KEYS or self._queues.queues_to_write >= SLICE_QUEUES

    def _read(self, data: memoryview, base: int, position: int) -> DispatchRequest | int:
        """The message at this position, or how many bytes of a blank or of damage to skip.

        After a clean stop only the last segments are proved: others may be damaged.
        """
        found = read_if_sound(data, base, position)
        if found is not None:
            return found
        end = next_sound_position(data, base, position + 1)
        self.placer.notices.add(
            Event.LOG_DAMAGE_SKIPPED,
            "the log is damaged at {at}: {size} bytes are not messages, and in no queue; rmqha verify shows details",
            at=base + position,
            size=end - position,
        )
        return end - position

    def _seconds(self) -> float:
        return self._phase.clock.seconds() if isinstance(self._phase, SliceSchedule) else 0.0

    def _bulk_took(self, seconds: float) -> None:
        """Take fewer messages at once on a slow machine, so that a slice does not block the reactor."""
        if seconds > BULK_SECONDS:
            self._bulk_messages = max(2 * MIN_BULK_MESSAGES, self._bulk_messages // 2)

    @property
    def _most_at_once(self) -> int:
        return BULK_MESSAGES_WAITED_FOR if self._phase is Unscheduled.BUILDING else self._bulk_messages

    def _dispatch_ordinary(self, data: memoryview) -> bool:
        """Dispatch the messages at the start of ``data`` that the kernel knows, if they are many and follow in open
        queues. Whether the slice has enough then.
        """
        base, most = self.reput_offset, self._most_at_once
        found = ordinary_units(data, base, BULK_BYTES, most, BULK_KEYS)
        if found is None or found.messages < MIN_BULK_MESSAGES:
            return False
        queues = [self._queues.queues.get(key) for key in found.queues]
        if any(queue is None or queue.max_physical_offset > base for queue in queues):
            return False  # it has no files yet, or has some of the messages
        if not self._dispatch_noted([PutNote(base, *found)]):
            return False
        self._bulk_messages = min(BULK_MESSAGES, 2 * self._bulk_messages)
        size = found.end - base
        is_half = 2 * found.messages >= most or 2 * found.key_count >= BULK_KEYS or 2 * size >= BULK_BYTES
        return is_half or size == len(data)

    def _dispatch_many(self, data: memoryview) -> bool:
        """Dispatch the messages in ``data`` many at once. False if they must be dispatched one by one."""
        is_waited_for = self._phase is Unscheduled.BUILDING
        most = self._most_at_once
        buffer = np.frombuffer(data, np.uint8)
        starts, end = proved_starts(buffer, 0, min(len(data), BULK_BYTES), most)
        if len(starts) < MIN_BULK_MESSAGES:
            self._singly_until = self.reput_offset + end
            return False
        records = Records(buffer, self.reput_offset, starts)
        if not is_waited_for:
            records = _with_few_keys(records, end)
            if len(records) < MIN_BULK_MESSAGES:
                self._singly_until = self.reput_offset + end
                return False
        found = self._bulk(records)
        if self._has_batch_topics(found):
            self._singly_until = self.reput_offset + end
            return False
        units, bounds = _by_queue(found.units)
        if not is_waited_for and len(starts) > 2 * MIN_BULK_MESSAGES and len(bounds) > SLICE_RUNS:
            self._bulk_messages = 2 * MIN_BULK_MESSAGES  # otherwise finding all these queues takes a whole turn
            return self._dispatch_many(data)
        runs = None if found.refused else self._runs_of(units, bounds)
        if runs is None:
            self._singly_until = self.reput_offset + end
            return False
        whole = records.end
        end = self._affordable_end(runs, whole)
        keys, last = found.keys, len(records) - 1
        if end < whole:
            runs = [run._replace(units=run.units[: run.units["physical_offset"].searchsorted(end)]) for run in runs]
            keys = keys[: keys["physical_offset"].searchsorted(end)]
            last = int(records.physical_offset.searchsorted(end)) - 1
        self._apply(runs)
        if self._index is not None:
            self._index.add_hashed(keys)
        self.last_store_timestamp = int(records.take(slice(last, last + 1)).ints("storeTimestamp")[0])
        self.reput_offset = end
        return True

    def _dispatch_noted(self, notes: Sequence[PutNote]) -> bool:
        """Dispatch consecutive messages by their queues. False if they must be read in the log."""
        runs = self._noted_runs(notes)
        if runs is None:
            return False
        self._apply(runs)
        if self._index is not None:
            _add_keys(self._index, notes)
        self.last_store_timestamp = notes[-1].timestamp
        self.reput_offset = notes[-1].end
        return True

    def _noted_runs(self, notes: Sequence[PutNote]) -> list[_Run] | None:
        """The units by queue. None if a queue is not open, or its messages do not simply continue it."""
        if self._queues.types.has_any:
            return None
        of_queues: dict[tuple[str, int], QueueUnits] = {}
        for note in notes:
            for key, some in note.queues.items():
                before = of_queues.get(key)
                if before is None:
                    if self.deleted.is_deleted(key[0], note.offset):
                        return None
                    of_queues[key] = QueueUnits(some.first, some.count, bytearray(some.units))
                elif before.first + before.count != some.first:
                    return None
                else:
                    before.units += some.units
                    before.count += some.count
        runs = []
        for key, some in of_queues.items():
            queue = self._queues.queues.get(key)
            if queue is None or not queue.is_open or not queue.follows(some.first):
                return None
            runs.append(_Run(queue, some.first, np.frombuffer(some.units, UNIT_DTYPE)))
        return runs if len(runs) <= SLICE_QUEUES else None

    def _has_batch_topics(self, found: Dispatched) -> bool:
        """Whether some messages may need a batch consume queue."""
        if found.batch_topics:
            return True
        types = self._queues.types
        if not types.has_any:
            return False
        return any(types.is_batch(self._bulk.topics[number]) for number in np.unique(found.units["topic"]).tolist())

    def _runs_of(self, units: PlacedUnits, bounds: Sequence[int]) -> list[_Run] | None:
        """The new units by queues, from ``_by_queue``. None if a queue's units do not simply continue the queue."""
        added = np.ascontiguousarray(units["unit"])
        message_ends = added["physical_offset"] + added["size"]
        runs: list[_Run] = []
        met: set[ConsumeQueue] = set()
        for begin, end in pairwise(bounds):
            topic, queue_id, queue_offset, (first, size, _) = units[begin].item()
            queue = self._queues.get_or_make(self._bulk.topics[topic], queue_id)
            if queue in met:
                return None
            met.add(queue)
            if first + size <= queue.max_physical_offset:
                known = int(message_ends[begin:end].searchsorted(queue.max_physical_offset, side="right"))
                if not queue_offset and self._queues.first_message(queue) != first:
                    return None  # the queue may start again here
                if known == end - begin:
                    continue
                begin, queue_offset = begin + known, queue_offset + known
            if not queue.follows(queue_offset):
                return None
            runs.append(_Run(queue, queue_offset, added[begin:end]))
        return runs

    def _affordable_end(self, runs: list[_Run], end: int) -> int:
        """How far in the log to go in one slice. Opening or creating the files of a queue is slow."""
        if self._phase is Unscheduled.BUILDING:
            return end
        self._bulk_messages = min(BULK_MESSAGES, 2 * self._bulk_messages)
        costs = [1 if run.queue.is_open else OPEN_QUEUE_COST for run in runs]
        if sum(costs) <= SLICE_QUEUES * OPEN_QUEUE_COST:
            return end
        self._bulk_messages, cost = MIN_BULK_MESSAGES * 2, 0
        for begin, one in sorted(
            (int(run.units["physical_offset"][0]), one) for run, one in zip(runs, costs, strict=True)
        ):
            cost += one
            if cost > SLICE_QUEUES * OPEN_QUEUE_COST:
                end = begin
                break
        return end

    def _apply(self, runs: list[_Run]) -> None:
        """Add the units to their queues."""
        for run in runs:
            queue, queue_offset, units = run
            if len(units):
                physical_offset, size, _ = units[-1].item()
                queue.put_run(queue_offset, units.tobytes(), physical_offset + size)
                if self.placer.listeners:
                    self._notify_of_many(run)

    def _notify_of_many(self, run: _Run) -> None:
        """Call listeners with the last message of each tagsCode: they only wait for the queue to grow."""
        queue, queue_offset, units = run
        lasts = dict(zip(units["tags_code"].tolist(), range(len(units)), strict=True))
        for tags_code, place in lasts.items():
            physical_offset, size, _ = units[place].item()
            request = DispatchRequest(
                queue.topic, queue.queue_id, queue_offset + place, physical_offset, size, 0, 0, {}
            )
            self.placer.tell(request, tags_code)

    def _dispatch(self, request: DispatchRequest, keys: list[IndexedKey]) -> bool:
        """Add a message's unit and keys. False if dispatch must stop before it: it is called with it again."""
        if not self.placer.place(request):
            return False
        self.last_store_timestamp = request.store_timestamp
        if self._index is not None and request.is_indexed:
            keys += _indexed_keys(request)
        return True

    @property
    def deleted(self) -> DeletedTopicTable:
        """The deleted topics: their messages get no units."""
        return self._bulk.deleted

    @deleted.setter
    def deleted(self, deleted: DeletedTopicTable) -> None:
        self._bulk.deleted = self.placer.deleted = deleted

    def go_back_to(self, offset: int) -> None:
        """Dispatch again from an offset of the log on. Queues and index skip what they have."""
        self.reput_offset = min(self.reput_offset, offset)
        self._written_until = min(self._written_until, offset)
        self._commit_log.derived_end.go_back_to(offset)
        self._singly_until = 0
        self.placer.filled = None
        if isinstance(self._phase, SliceSchedule):
            self._phase.log_grew()

    def take_unflushed(self) -> list[Syncable]:
        """The files of queues and index with bytes written since the last call."""
        self._commit_log.derived_end.take(self.written_until)
        return [*self._queues.take_unflushed(), *(self._index.take_unflushed() if self._index is not None else [])]

    def vouched(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms of the last dispatched message, and of the last one in a full index file."""
        if self._index is None:
            return self.last_store_timestamp, 0
        logics = self._indexed_timestamp if self._index.pending else self.last_store_timestamp
        return logics, self._index.full_files_timestamp

    def stop(self) -> None:
        """Stop following the log. The next start dispatches the rest."""
        if isinstance(self._phase, SliceSchedule):
            self._phase.stop()
            self._phase, self._queues.watcher = Unscheduled.STOPPED, None
        self.placer.notices.finish()
