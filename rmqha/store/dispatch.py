"""Dispatch ("reput"): builds consume queues and index from the log, in slices, behind puts and transfers.

Everything here is derived: it can be thrown away and built again (spec/store.md 8).
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.store.commitlog import CommitLog
from rmqha.store.consumequeue import ConsumeQueue, Unit
from rmqha.store.errors import StoreError, is_disk_full
from rmqha.store.flush import Syncable
from rmqha.store.index import IndexedKey, IndexService
from rmqha.store.mappedfile import MAX_UNFLUSHED_FILES, UnflushedFile
from rmqha.store.request import DispatchRequest, is_no_folder, read_dispatch_request
from rmqha.wire.delay import DelayLevels

MAX_OPEN_QUEUES = max(8, min(1024, MAX_UNFLUSHED_FILES))
"""With more queues than this, files are opened as they are needed and let go after each slice."""
SLICE_BYTES = 1024 * 1024
SLICE_MESSAGES = 1000
SLICE_SECONDS = 0.004
FIRST_PAUSE_SECONDS = 0.001
"""Between a message and its dispatch: what waits for it to be replicated goes first."""
BUSY_PAUSE_SECONDS = 0.004
"""Between two slices while the log grows: puts have half of the time, and dispatch keeps up with them."""
BULK_PAUSE_SECONDS = 0.036
BULK_BYTES_PER_SECOND = 150 * 1024 * 1024
"""A log that grows faster than this is being copied by a slave: its queues can wait for the end of that."""
DISK_FULL_PAUSE_SECONDS = 1.0
INDEX_PAUSE_SECONDS = 0.05
"""Between a message's place in its queue and its keys in the index, at most: many keys cost little more than one."""
INDEX_KEYS_AT_ONCE = 2 * SLICE_MESSAGES


MessageArrived = Callable[[DispatchRequest, int], None]
"""Hears of a message that has its place in a queue, and of its tagsCode."""


class QueueTable:
    """All consume queues of a store, by topic and queue id."""

    def __init__(self, folder: Path, file_size: int, owned: bool = True) -> None:
        """Opens those there are. Raises StoreError, OSError."""
        self._folder = folder
        self.file_size = file_size
        self._owned = owned
        self._recently_read: OrderedDict[ConsumeQueue, None] = OrderedDict()
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        if folder.is_dir():
            for topic in sorted(path for path in folder.iterdir() if path.is_dir()):
                for queue in topic.iterdir():
                    if queue.name.removeprefix("-").isdecimal() and queue.is_dir():
                        self._open(topic.name, int(queue.name))

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        folder = self._folder / topic / str(queue_id)
        queue = ConsumeQueue(folder, topic, queue_id, self.file_size, self._owned)
        self.queues[topic, queue_id] = queue
        return queue

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None if it has never had a message."""
        queue = self.queues.get((topic, queue_id))
        if queue is not None and self._has_many:
            self._recently_read[queue] = None
            self._recently_read.move_to_end(queue)
            if len(self._recently_read) > MAX_OPEN_QUEUES:
                self._recently_read.popitem(last=False)[0].release_files()
        return queue

    @property
    def _has_many(self) -> bool:
        """Whether there are more queues than may keep their files open."""
        return len(self.queues) > MAX_OPEN_QUEUES

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new if need be. Raises StoreError for a topic that can be no folder's name."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if is_no_folder(topic):
                raise StoreError(f"topic {topic!r} cannot be a folder's name")
            queue = self._open(topic, queue_id)
        return queue

    @property
    def max_physical_offset(self) -> int:
        """The end, in the log, of the last message that any queue has; -1 without any."""
        return max((queue.max_physical_offset for queue in self.queues.values()), default=-1)

    def take_unflushed(self) -> list[UnflushedFile]:
        """The files with bytes written since the last call."""
        return [file for queue in self.queues.values() for file in queue.take_unflushed()]

    def write_pending(self) -> None:
        """Write what dispatch has added. Raises OSError."""
        has_many = self._has_many
        for queue in self.queues.values():
            queue.write_pending()
            if has_many:
                queue.release_files()

    def close(self) -> None:
        """Close all files."""
        for queue in self.queues.values():
            queue.close()


class Dispatcher:
    """Follows the log's proved prefix. ``reput_offset`` is where it is.

    Listeners are called with each message as it gets its place in a queue.
    """

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: IndexService | None,
        delay_levels: DelayLevels,
        start: int,
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._delay_levels = delay_levels
        self._listeners: list[MessageArrived] = []
        self._clock: IReactorTime | None = None
        self._next_slice: IDelayedCall | None = None
        self._next_index_write: IDelayedCall | None = None
        self._failed: Callable[[Failure], None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._end_at_last_slice, self._time_of_last_slice = -1, 0.0
        self._is_unwritten = False
        self._indexed_timestamp = 0
        """STORETIMESTAMP of the last dispatched message when all keys there were had been written."""
        self.reput_offset = start
        self.last_store_timestamp = 0

    @property
    def behind_bytes(self) -> int:
        """How far dispatch is behind the log."""
        return self._commit_log.verified_offset - self.reput_offset

    def subscribe(self, message_arrived: MessageArrived) -> None:
        """Call ``message_arrived`` with each queued message and its tagsCode."""
        self._listeners.append(message_arrived)

    def start(self, clock: IReactorTime, failed: Callable[[Failure], None]) -> None:
        """Follow the log as it grows; ``failed`` hears what the disk said when it refuses."""
        self._clock, self._failed = clock, failed
        self._unsubscribe = self._commit_log.subscribe(self._log_grew)
        self._log_grew()

    def _log_grew(self) -> None:
        if self._next_slice is None and self.behind_bytes > 0:
            assert self._clock is not None, "it was started"
            self._next_slice = self._clock.callLater(FIRST_PAUSE_SECONDS, self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._next_slice = None
        assert self._clock is not None, "it was started"
        try:
            self.run_slice(self._clock.seconds() + SLICE_SECONDS)
        except OSError as error:
            self._refused(error)
            return
        if self.behind_bytes > 0:
            self._next_slice = self._clock.callLater(self._pause(), self._run_scheduled)

    def _refused(self, error: OSError) -> None:
        """The disk takes nothing: if it is full, try again later."""
        if not is_disk_full(error):
            assert self._failed is not None, "it was started"
            self._failed(Failure(error))
            return
        self._log.error("queues and index wait for room on the disk: {error}", error=str(error))
        if self._next_slice is None:
            assert self._clock is not None, "it was started"
            self._next_slice = self._clock.callLater(DISK_FULL_PAUSE_SECONDS, self._run_scheduled)

    def _pause(self) -> float:
        """How long to leave to others, by how fast the log has grown since the last slice."""
        end, now = self._commit_log.verified_offset, self._seconds()
        grown, elapsed = end - self._end_at_last_slice, now - self._time_of_last_slice
        self._end_at_last_slice, self._time_of_last_slice = end, now
        if not grown:
            return 0.0
        return BULK_PAUSE_SECONDS if grown > BULK_BYTES_PER_SECOND * elapsed else BUSY_PAUSE_SECONDS

    def catch_up(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Dispatch all there is, waiting for it. Raises OSError."""
        while self.behind_bytes > 0:
            self.run_slice()
            progress(self.reput_offset)

    def run_slice(self, deadline: float | None = None) -> None:
        """Dispatch a bounded number of messages, until ``deadline`` on the clock. Raises OSError."""
        log = self._commit_log
        if self.reput_offset < log.min_offset:
            self._log.warn("dispatch goes on at {min}, the log's begin", min=log.min_offset)
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
        """Write what a slice added: keys only where there are many, or nobody is kept from working by them."""
        pending = 0 if self._index is None else self._index.pending
        if self._clock is None or pending >= INDEX_KEYS_AT_ONCE:
            self.write_pending()
            return
        self._queues.write_pending()
        self._is_unwritten = False
        if pending and self._next_index_write is None:
            self._next_index_write = self._clock.callLater(INDEX_PAUSE_SECONDS, self._write_index_scheduled)

    def _write_index_scheduled(self) -> None:
        self._next_index_write = None
        try:
            self._write_index()
        except OSError as error:
            self._is_unwritten = True
            self._refused(error)

    def finish(self, deadline: float) -> None:
        """Dispatch what is there until ``deadline`` of the monotonic clock, waiting for it. Raises OSError."""
        while self.behind_bytes > 0 and time.monotonic() < deadline:
            self.run_slice()
        self.write_pending()

    def write_pending(self) -> None:
        """Write what has been added to queues and index. Raises OSError; then it stays pending."""
        self._queues.write_pending()
        self._write_index()
        self._is_unwritten = False

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
        for count in range(SLICE_MESSAGES):
            if position >= limit or position >= SLICE_BYTES:
                break
            if count % 64 == 63 and deadline is not None and self._seconds() >= deadline:
                break
            request = read_dispatch_request(data, position)
            if isinstance(request, int):
                position += request
            else:
                self._dispatch(request, keys)
                position += request.size
            self.reput_offset = base + position

    def _seconds(self) -> float:
        return self._clock.seconds() if self._clock is not None else 0.0

    def _dispatch(self, request: DispatchRequest, keys: list[IndexedKey]) -> None:
        if request.is_queued:
            tags_code = request.tags_code(self._delay_levels)
            try:
                queue = self._queues.get_or_make(request.topic, request.queue_id)
            except StoreError as error:
                self._log.error("message at {at} is in no queue: {error}", at=request.physical_offset, error=str(error))
                return
            breaches = queue.order_breaches
            queue.put(request.queue_offset, Unit(request.physical_offset, request.size, tags_code))
            if queue.order_breaches > breaches:
                self._log.error(
                    "queue {queue_id} of {topic} lacks units before {queue_offset}: rmqha rebuild makes it anew",
                    queue_id=request.queue_id,
                    topic=request.topic,
                    queue_offset=request.queue_offset,
                )
            for message_arrived in self._listeners:
                message_arrived(request, tags_code)
        self.last_store_timestamp = request.store_timestamp
        if self._index is not None and request.is_indexed:
            keys += [
                IndexedKey(f"{request.topic}#{key}", request.physical_offset, request.store_timestamp)
                for key in request.index_keys()
            ]

    def take_unflushed(self) -> list[Syncable]:
        """The files of queues and index with bytes written since the last call."""
        return [*self._queues.take_unflushed(), *(self._index.take_unflushed() if self._index is not None else [])]

    def vouched(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms of the last dispatched message, and of the last one in a full index file."""
        if self._index is None:
            return self.last_store_timestamp, 0
        logics = self._indexed_timestamp if self._index.pending else self.last_store_timestamp
        return logics, self._index.full_files_timestamp

    def stop(self) -> None:
        """End following the log; what is not dispatched yet is so after the next start."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for call in (self._next_slice, self._next_index_write):
            if call is not None:
                call.cancel()
        self._next_slice = self._next_index_write = None
