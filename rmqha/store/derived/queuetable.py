"""All consume queues of a store. Uses no reactor: jobs and commands call it too."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zope.interface import Interface

from rmqha.settings.settings import Settings
from rmqha.store.derived.batchqueue import BATCH_QUEUE_FOLDER, BATCH_UNIT_SIZE, BatchConsumeQueue
from rmqha.store.derived.consumequeue import (
    CONSUME_QUEUE_FOLDER,
    ConsumeQueue,
    Marks,
    UnflushedQueues,
    queue_size_of,
)
from rmqha.store.derived.dispatchrequest import is_no_folder
from rmqha.store.derived.queuetypes import QueueTypes, read_queue_types
from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, MANY_FILES, MAX_UNFLUSHED_FILES, Disk, Syncable

MAX_OPEN_QUEUES = max(8, min(1024, MAX_UNFLUSHED_FILES))
"""With more queues than this, files are opened when they are needed and closed after each slice."""

QueueKey = tuple[str, int]


class IReadWatcher(Interface):
    """Wants to know when queues are read."""

    def queue_read() -> None:
        """A queue is read now, or its end is asked for. It is called for each read: it must be cheap."""


class QueueTable:
    """All consume queues of a store, by topic and queue id: simple ones, and batch queues of RocketMQ 5.x."""

    def __init__(
        self,
        folder: Path,
        file_size: int,
        owned: bool = True,
        problems: dict[QueueKey, str] | None = None,
        disk: Disk = DISK,
    ) -> None:
        """Opens the existing queues in ``folder``. Raises StoreError if a queue is damaged, OSError.

        With ``problems`` damaged queues are added to it instead, and left out.
        """
        self._folder = folder
        self.file_size = file_size
        self._owned = owned
        self._recently_read: OrderedDict[ConsumeQueue, None] = OrderedDict()
        self._disk = disk
        self._marks = Marks(disk=disk)
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.types = QueueTypes()
        """Which topics have batch queues."""
        self.misplaced: list[Path] = []
        """Folders of queues of the wrong type for their topic. They were not opened."""
        self._batch_folder: Path | None = None
        self._batch_file_size = 0
        self._topic_folder = folder
        """The folder of the last topic. Making paths is slow with many queues."""
        self._problems = problems
        self.watcher: IReadWatcher | None = None
        self._open_all(folder)

    def _open_all(self, folder: Path) -> None:
        for topic, queue_id in list_queues(folder, self._disk):
            if self.types.is_batch(topic) is not (folder == self._batch_folder):
                self.misplaced.append(folder / topic / str(queue_id))
                continue
            try:
                self._open(topic, queue_id)
            except StoreError as error:
                if self._problems is None:
                    raise
                self._problems[topic, queue_id] = str(error)

    def open_batch_queues(self, folder: Path, file_size: int, types: QueueTypes) -> None:
        """Open the existing batch queues too. Raises as the constructor does.

        A topic that the table does not have, but that has such queues, is one with batches.
        """
        self._batch_folder, self._batch_file_size, self.types = folder, file_size, types
        found = frozenset(topic for topic, _ in list_queues(folder, self._disk))
        if found:
            self.types = replace(types, seen=types.seen | found)
        for topic, queue_id in [key for key in self.queues if self.types.is_batch(key[0])]:
            self.forget(topic, queue_id)
            self.misplaced.append(self._folder / topic / str(queue_id))
        for topic, queue_id in [key for key in self._problems or () if self.types.is_batch(key[0])]:
            assert self._problems is not None, "it has this key"
            del self._problems[topic, queue_id]
            self.misplaced.append(self._folder / topic / str(queue_id))
        self._open_all(folder)

    @property
    def batch_file_size(self) -> int:
        """Bytes of each file of a batch queue."""
        return self._batch_file_size

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue: ConsumeQueue
        if self._batch_folder is not None and self.types.is_batch(topic):
            folder = self._batch_folder / topic / str(queue_id)
            queue = BatchConsumeQueue(folder, topic, queue_id, self._batch_file_size, self._owned, self._marks)
        else:
            folder = self.folder_of(topic, queue_id)
            queue = ConsumeQueue(folder, topic, queue_id, self.file_size, self._owned, self._marks)
        self.queues[topic, queue_id] = queue
        return queue

    def folder_of(self, topic: str, queue_id: int) -> Path:
        """Where the files of a simple queue are, or would be."""
        if self._topic_folder.name != topic or self._topic_folder.parent != self._folder:
            self._topic_folder = self._folder / topic
        return self._topic_folder / str(queue_id)

    def existing_folder_of(self, topic: str, queue_id: int) -> Path:
        """Where the files of a queue are, of the type that its topic has."""
        if self._batch_folder is not None and self.types.is_batch(topic):
            return self._batch_folder / topic / str(queue_id)
        return self.folder_of(topic, queue_id)

    def first_message(self, queue: ConsumeQueue) -> int | None:
        """Where the first message of a queue is in the log; None if no unit says it. Raises OSError."""
        unit = queue.unit(queue.min_offset)
        if self._has_many:
            queue.release_files()
        return None if unit is None or unit.is_blank else unit.physical_offset

    def forget(self, topic: str, queue_id: int) -> None:
        """Close a queue and remove it from the table."""
        queue = self.queues.pop((topic, queue_id))
        self._marks.forget(queue)
        self._recently_read.pop(queue, None)
        queue.close()

    def read(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, for a client that reads it now. None if it has never had a message."""
        if self.watcher is not None:
            self.watcher.queue_read()
        return self.get(topic, queue_id)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The same for the node's own use: the watcher is not called."""
        queue = self.queues.get((topic, queue_id))
        if queue is not None and self._has_many:
            self._recently_read[queue] = None
            self._recently_read.move_to_end(queue)
            if len(self._recently_read) > MAX_OPEN_QUEUES:
                self._recently_read.popitem(last=False)[0].release_files()
        return queue

    @property
    def _has_many(self) -> bool:
        """Whether there are too many queues to keep all their files open."""
        return len(self.queues) > MAX_OPEN_QUEUES

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, which is created if it is missing. Raises StoreError if the topic cannot be a folder's name."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if is_no_folder(topic):
                raise StoreError(f"topic {topic!r} cannot be a folder's name")
            queue = self._open(topic, queue_id)
        return queue

    @property
    def max_physical_offset(self) -> int:
        """The end, in the log, of the last message that any queue has. -1 without messages."""
        return max((queue.max_physical_offset for queue in self.queues.values()), default=-1)

    def take_unflushed(self) -> Sequence[Syncable]:
        """The files and folders written since the last call. Very many are one object."""
        taken = UnflushedQueues(self._marks.take_unflushed(), self._disk)
        return taken.files() if len(taken) <= MANY_FILES else [taken]

    @property
    def queues_to_write(self) -> int:
        """How many queues have units that are not written yet."""
        return len(self._marks.dirty)

    def write_pending(self) -> None:
        """Write what dispatch has added. Raises OSError."""
        has_many = self._has_many
        for queue in list(self._marks.dirty):
            queue.write_pending()
            if has_many:
                queue.release_files()
            del self._marks.dirty[queue]

    def close(self) -> None:
        """Close all files."""
        for queue in self.queues.values():
            queue.close()


def list_queues(folder: Path, disk: Disk = DISK) -> Iterator[QueueKey]:
    """Topic and id of each queue below ``folder``. Other names are ignored, as upstream does. Raises OSError."""
    for topic in sorted(disk.folders_in(folder)):
        ids = [name for name in disk.folders_in(folder / topic) if name.removeprefix("-").isdecimal()]
        for queue_id in sorted(ids):
            if str(int(queue_id)) == queue_id:
                yield topic, int(queue_id)


def open_queues(
    root: Path,
    settings: Settings,
    owned: bool = True,
    problems: dict[QueueKey, str] | None = None,
    disk: Disk = DISK,
) -> QueueTable:
    """The consume queues below ``root``. Raises StoreError, OSError.

    With ``problems`` damaged queues are added to it, and left out.
    """
    folder = root / CONSUME_QUEUE_FOLDER
    size = queue_size_of(folder, settings.mapped_file_size_consume_queue, disk)
    table = QueueTable(folder, size, owned, problems, disk)
    folder = root / BATCH_QUEUE_FOLDER
    size = queue_size_of(folder, settings.mapper_file_size_batch_consume_queue, disk, BATCH_UNIT_SIZE)
    table.open_batch_queues(folder, size, read_queue_types(root, disk))
    return table
