"""Consume queues and index of a store, opened, recovered and removed together: what the log is made into."""

import shutil
from pathlib import Path

from twisted.logger import Logger

from rmqha.settings import Settings
from rmqha.store.commitlog import CommitLog
from rmqha.store.consumequeue import CONSUME_QUEUE_FOLDER, queue_size_of
from rmqha.store.dispatch import Dispatcher, QueueTable
from rmqha.store.errors import StoreError
from rmqha.store.index import ENTRIES_A_SLOT, INDEX_FOLDER, IndexService, slots_of
from rmqha.store.recovery import Recovery


def open_queues(root: Path, settings: Settings, owned: bool = True) -> QueueTable:
    """The consume queues below ``root``. Raises StoreError, OSError."""
    folder = root / CONSUME_QUEUE_FOLDER
    size = queue_size_of(folder, settings.mapped_file_size_consume_queue)
    return QueueTable(folder, size, owned)


def open_index(root: Path, settings: Settings) -> IndexService | None:
    """The index below ``root``, None if messageIndexEnable is false. Raises StoreError, OSError."""
    if not settings.message_index_enable:
        return None
    slots = index_slots(root, settings)
    return IndexService(root / INDEX_FOLDER, slots, settings.max_index_num or slots * ENTRIES_A_SLOT)


def index_slots(root: Path, settings: Settings) -> int:
    """maxHashSlotNum as configured; else by the size of the files there are, else the default. Raises OSError."""
    configured = settings.max_hash_slot_num
    return slots_of(root / INDEX_FOLDER) if configured is None else configured


class Derived:
    """The queues and the index of a log that has been recovered, and the dispatcher that goes on with them."""

    _log = Logger()

    def __init__(self, root: Path, settings: Settings, log: CommitLog, recovery: Recovery) -> None:
        """Recovers them to agree with the log's end. Raises StoreError, OSError."""
        self.queues = open_queues(root, settings)
        for queue in self.queues.queues.values():
            queue.recover()
            if queue.max_physical_offset > recovery.end:
                queue.truncate(recovery.end)
            if not recovery.clean_stop:
                queue.drop_last_from(recovery.checked_from)
            queue.correct_min_offset(log.min_offset)
            queue.release_files()
        built_until = max(log.min_offset, self.queues.max_physical_offset)
        start = built_until if recovery.clean_stop else min(built_until, max(log.min_offset, recovery.checked_from))
        try:
            self.index = open_index(root, settings)
        except StoreError as error:
            if recovery.clean_stop:
                raise
            self._log.warn("an index file is broken, the index is built anew: {error}", error=str(error))
            shutil.rmtree(root / INDEX_FOLDER)
            self.index, start = open_index(root, settings), log.min_offset
        self._cut_index(recovery, start)
        self.dispatcher = Dispatcher(log, self.queues, self.index, settings.message_delay_level, start)
        if log.last_message_offset is not None and log.last_message_offset < start:
            self.dispatcher.last_store_timestamp = log.last_store_timestamp

    def _cut_index(self, recovery: Recovery, start: int) -> None:
        """Cut the index to what can be trusted."""
        if self.index is not None:
            if not recovery.clean_stop:
                self.index.truncate(start)
            elif self.index.end_phy_offset >= recovery.end:
                self.index.truncate(recovery.end)

    @property
    def file_settings(self) -> dict[str, str]:
        """The settings that the files are made by, under their names in broker.conf."""
        return {
            "mappedFileSizeConsumeQueue": str(self.queues.file_size),
            **(self.index.file_settings if self.index is not None else {}),
        }

    @property
    def has_files(self) -> bool:
        """Whether there is any queue or index file yet."""
        return bool(self.queues.queues) or (self.index is not None and self.index.has_files)

    def queue_offsets(self) -> dict[tuple[str, int], int]:
        """The next offset of each queue (upstream's topicQueueTable). Right only when dispatch has caught up."""
        return {key: queue.max_offset for key, queue in self.queues.queues.items()}

    def close(self) -> None:
        """Close all files. Nothing is flushed."""
        self.queues.close()
        if self.index is not None:
            self.index.close()


def remove_derived(root: Path) -> None:
    """Remove queues and index: the next opening builds them anew. Raises OSError."""
    for name in (CONSUME_QUEUE_FOLDER, INDEX_FOLDER):
        if (root / name).exists():
            shutil.rmtree(root / name)
