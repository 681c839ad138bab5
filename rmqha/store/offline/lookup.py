"""Finds messages of a store, and the lag of its consumer groups, while a node may run on it. Changes nothing."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmqha.settings.settings import Settings
from rmqha.store.derived.batchqueue import BatchConsumeQueue
from rmqha.store.derived.geometry import UnprovedIndexFile, geometry_of
from rmqha.store.derived.index import INDEX_FOLDER, configured_geometry, index_paths, read_entries
from rmqha.store.derived.queuetable import QueueTable, open_queues
from rmqha.store.derived.replacing import index_geometry
from rmqha.store.errors import StoreError
from rmqha.store.log.stretches import Progress
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, TableFile
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.reading import MessageReader
from rmqha.wire.javahashes import index_hashes
from rmqha.wire.record import Record, keys_of

Wants = Callable[[Record], bool]


class QueueProgress(NamedTuple):
    """A group's offset in a queue, the queue's end, and when its last consumed message was stored (ms; 0 unknown)."""

    group: str
    topic: str
    queue_id: int
    end: int
    offset: int
    last_consumed: int


class Lookup:
    """Looks into a store."""

    def __init__(self, store: StoreReader, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._log = store.log
        self.problems: list[str] = []
        """Places of the log that could not be read."""

    def at(self, offset: int) -> Record | None:
        """The message that starts at an offset of the log, or None. Raises OSError."""
        if not self._log.min_offset <= offset < self._store.limit:
            return None
        return self._reader(None).message_at(offset)

    def _reader(self, queues: QueueTable | None) -> MessageReader:
        table = queues if queues is not None else QueueTable(self._store.root / "no-queues", 20, owned=False)
        return MessageReader(self._log, table, None, self._settings, is_slave=True)

    def _queues(self) -> QueueTable:
        return open_queues(self._store.root, self._settings, owned=False)

    def in_queue(self, topic: str, queue_id: int, offset: int) -> Record | None:
        """The message at an offset of a queue, or None. Raises StoreError, OSError."""
        queues = self._queues()
        try:
            queue = queues.get(topic, queue_id)
            if queue is None:
                return None
            queue.find_end()
            unit = queue.unit(offset) if offset < queue.max_offset else None
            batch = queue.batch(offset) if isinstance(queue, BatchConsumeQueue) else None
            base = offset if batch is None else batch.base_offset
            found = None if unit is None or unit.is_blank else self.at(unit.physical_offset)
        finally:
            queues.close()
        is_it = found is not None and found.topic == topic and found.queue_offset in (offset, base)
        return found if is_it else None

    def by_key(self, topic: str, key: str, progress: Progress, wants: Wants = lambda _: True) -> Iterator[Record]:
        """The messages of a topic with this key: those that the index has, and those after its end. Oldest first.

        A damaged index file, and everything after it, is not used: that part of the log is read. Raises OSError.
        """
        offsets, end = self._indexed(topic, key)
        for offset in offsets:
            record = self.at(offset)
            if record is not None and record.topic == topic and key in keys_of(record) and wants(record):
                yield record
        seen = set(offsets)
        for record in self.scan(key, progress, lambda record: record.topic == topic and wants(record), end):
            if record.physical_offset not in seen:
                yield record

    def _indexed(self, topic: str, key: str) -> tuple[list[int], int]:
        """Offsets of messages that may have the key, ascending, and the end of what the index covers."""
        (key_hash,) = index_hashes([f"{topic}#{key}"]).tolist()
        settings, end = self._settings, self._log.min_offset
        wanted = configured_geometry(settings.max_hash_slot_num, settings.max_index_num)
        made = index_geometry(self._store.root, settings)
        found: set[int] = set()
        for path in index_paths(self._store.root / INDEX_FOLDER):
            try:
                entries = read_entries(path, geometry_of(path, wanted, made, False, grows=self._store.live))
            except UnprovedIndexFile:
                break
            offsets = entries["physical_offset"]
            found.update(offsets[entries["hash"] == key_hash].tolist())
            if len(offsets):
                end = max(end, int(offsets[-1]))
        return sorted(found), end

    def scan(self, key: str, progress: Progress, wants: Wants = lambda _: True, start: int = 0) -> Iterator[Record]:
        """The messages with this key, found in the log itself. Segments without the key's bytes are only skimmed.

        If bytes are not a record, ``problems`` says so, and the search goes on in the next segment. Raises OSError.
        """
        pattern = re.compile(re.escape(key.encode("utf-8", "surrogateescape")))
        at, log = max(start, self._log.min_offset), self._log
        while at < self._store.limit:
            end = min(at - at % log.segment_size + log.segment_size, self._store.limit)
            data = log.get_data(at, end - at)
            if data is not None and pattern.search(data) is not None:
                yield from self._scan_segment(at, end, lambda record: key in keys_of(record) and wants(record))
            at = end
            progress(at)

    def _scan_segment(self, start: int, end: int, wants: Wants) -> Iterator[Record]:
        """The wanted messages of a part of one segment, up to bytes that are not a record."""
        try:
            for _, record in self._store.records(start, end):
                if isinstance(record, Record) and wants(record):
                    yield record
        except StoreError as error:
            self.problems.append(str(error))

    def lag(self, group: str | None = None, topic: str | None = None) -> list[QueueProgress]:
        """The progress of a group, or of all groups, as consumerOffset.json has it. Raises StoreError, OSError."""
        table = TableFile(self._store.root / CONFIG_FOLDER, ConsumerOffsetTable).read()
        queues = self._queues()
        try:
            reader = self._reader(queues)
            rows = []
            for key, offsets in sorted(table.offset_table.items()):
                name, _, reading = key.partition("@")
                if group in (None, reading) and topic in (None, name):
                    rows += [self._progress(queues, reader, reading, name, *each) for each in sorted(offsets.items())]
            return rows
        finally:
            queues.close()

    def _progress(
        self, queues: QueueTable, reader: MessageReader, group: str, topic: str, queue_id: int, offset: int
    ) -> QueueProgress:
        queue = queues.get(topic, queue_id)
        if queue is None:
            return QueueProgress(group, topic, queue_id, 0, offset, 0)
        queue.find_end()
        last = reader.message_store_timestamp(topic, queue_id, offset - 1) if 0 < offset <= queue.max_offset else 0
        found = QueueProgress(group, topic, queue_id, queue.max_offset, offset, max(0, last))
        queue.release_files()
        return found
