"""The views of a store's queues and consumers: one task reads them, without reading the log."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rmqha.pipeline.decode import microseconds_of
from rmqha.pipeline.options import Options, Selection, View
from rmqha.pipeline.plan import log_folder, store_folder
from rmqha.pipeline.sqltypes import TIMESTAMP
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.derived.queuetable import open_queues
from rmqha.store.log.splits import SegmentReader, log_files
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, TableFile
from rmqha.wire.record import Blank, RecordError, decode_record

QUEUE_OFFSETS_SCHEMA = pa.schema(
    [("topic", pa.string()), ("queueId", pa.int32()), ("minOffset", pa.int64()), ("maxOffset", pa.int64())]
)
CONSUMERS_SCHEMA = pa.schema(
    [
        ("consumerGroup", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("brokerOffset", pa.int64()),
        ("consumerOffset", pa.int64()),
        ("lag", pa.int64()),
        ("lastConsumed", TIMESTAMP),
    ]
)
STORE_SCHEMAS = {View.QUEUE_OFFSETS: QUEUE_OFFSETS_SCHEMA, View.CONSUMERS: CONSUMERS_SCHEMA}
"""The columns of these views. The names are those of ``rmqha lag --json``, and offsets those of queues."""


def store_rows(options: Options) -> pa.RecordBatch:
    """The rows of the view that the options name. Raises StoreError, OSError."""
    view = _Store(options)
    try:
        found = list(view.queues() if options.view is View.QUEUE_OFFSETS else view.consumers())
    finally:
        view.close()
    wanted = [row for row in found if _is_selected(options.selection, row["topic"], row["queueId"])]
    return pa.RecordBatch.from_pylist(wanted, STORE_SCHEMAS[options.view])


Row = dict[str, Any]


class _Store:
    """A store's queues, its log's files, and its table of consumers' offsets. Changes nothing."""

    def __init__(self, options: Options) -> None:
        """Raises StoreError, OSError."""
        settings = options.settings
        self._root = store_folder(options.path, settings)
        folder = log_folder(options.path, settings.store_path_commit_log)
        self._files = log_files(folder, settings.mapped_file_size_commit_log)
        self._queues = open_queues(self._root, settings, owned=False)

    def close(self) -> None:
        self._queues.close()

    def queues(self) -> Iterator[Row]:
        log_start = self._files[0].base if self._files else 0
        for topic, queue_id in sorted(self._queues.queues):
            with self._opened(topic, queue_id) as queue:
                assert queue is not None, "the table has it"
                queue.correct_min_offset(log_start)
                offsets = {"minOffset": queue.min_offset, "maxOffset": queue.max_offset}
            yield {"topic": topic, "queueId": queue_id, **offsets}

    def consumers(self) -> Iterator[Row]:
        table = TableFile(self._root / CONFIG_FOLDER, ConsumerOffsetTable).read()
        for key, offsets in sorted(table.offset_table.items()):
            topic, _, group = key.partition("@")
            for queue_id, offset in sorted(offsets.items()):
                with self._opened(topic, queue_id) as queue:
                    end = 0 if queue is None else queue.max_offset
                    consumed = None if queue is None else self._stored_at(queue, offset - 1)
                yield {
                    "consumerGroup": group,
                    "topic": topic,
                    "queueId": queue_id,
                    "brokerOffset": end,
                    "consumerOffset": offset,
                    "lag": max(0, end - offset),
                    "lastConsumed": consumed,
                }

    @contextmanager
    def _opened(self, topic: str, queue_id: int) -> Iterator[ConsumeQueue | None]:
        """A queue with its end; its files are closed afterwards, because there may be many queues."""
        queue = self._queues.get(topic, queue_id)
        if queue is not None:
            queue.find_end()
        yield queue
        if queue is not None:
            queue.release_files()

    def _stored_at(self, queue: ConsumeQueue, offset: int) -> int | None:
        """When the message at an offset of a queue was stored, in microseconds; None if the store does not tell."""
        unit = queue.unit(offset) if 0 <= offset < queue.max_offset else None
        if unit is None or unit.is_blank:
            return None
        for file in self._files:
            if file.base <= unit.physical_offset < file.end:
                with SegmentReader(file.path, file.base) as segment:
                    content = segment.read(unit.physical_offset, min(unit.size, file.end - unit.physical_offset))
                return _store_time(content.tobytes())
        return None


def _store_time(content: bytes) -> int | None:
    try:
        record = decode_record(content)
    except RecordError:
        return None
    return None if isinstance(record, Blank) else microseconds_of(record.store_timestamp)


def _is_selected(selection: Selection, topic: str, queue_id: int) -> bool:
    return (
        (selection.topics is None or topic in selection.topics)
        and (selection.topic_pattern is None or re.fullmatch(selection.topic_pattern, topic) is not None)
        and (selection.queue_ids is None or queue_id in selection.queue_ids)
    )
