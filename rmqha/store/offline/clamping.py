"""Sets back consumer and delay offsets that are past the end of their queues, after a cut (spec/store.md 13).

A group that continues past the end of its queue would miss the messages that are put there next. A delay level that
counts a message as delivered whose delivery was cut off would never deliver it.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.metadata import ConsumerOffsetTable, DelayOffsetTable
from rmqha.store.offline.target import proved_records
from rmqha.wire.columns import Records
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import parse_properties

QueueEnds = Mapping[tuple[str, int], int]
"""The next offset of each queue, by topic and queue id."""


class Moved(NamedTuple):
    """A consumer group whose offset in a queue was past the queue's end."""

    topic_at_group: str
    queue_id: int
    offset: int
    end: int


def clamp_offsets(config: Path, ends: QueueEnds, disk: Disk = DISK) -> int:
    """Set the offsets in a config folder back to the ends of their queues. Returns how many were past them.

    Raises StoreError, OSError.
    """
    consumers = ConsumerOffsetTable.read(config, disk)
    moved = clamp_to_ends(consumers.offset_table, ends)
    if moved:
        consumers.write(config, disk)
    delays = DelayOffsetTable.read(config, disk)
    late = late_delays(delays.offset_table, ends)
    if late:
        delays.offset_table.update(late)
        delays.write(config, disk)
    return len(moved) + len(late)


def clamp_to_ends(offsets: dict[str, dict[int, int]], ends: QueueEnds) -> list[Moved]:
    """Set ``offsets`` of groups back to the ends of their queues. Returns those that were past them."""
    moved = []
    for key, queues in offsets.items():
        topic = key.partition("@")[0]
        for queue_id, offset in queues.items():
            end = ends.get((topic, queue_id), 0)
            if offset > end:
                moved.append(Moved(key, queue_id, offset, end))
                queues[queue_id] = end
    return moved


def late_delays(offsets: Mapping[int, int], ends: QueueEnds) -> dict[int, int]:
    """The delay levels whose offset is past the end of their queue, with that end."""
    return {
        level: end for level, offset in offsets.items() if offset > (end := ends.get((SCHEDULE_TOPIC, level - 1), 0))
    }


def set_back_delays(config: Path, log: CommitLog, start: int, end: int, disk: Disk = DISK) -> Counter[int]:
    """Set delay offsets back by the deliveries between two offsets of the log, which are about to be cut.

    Each level delivers its messages in their order, so these are its last ones. Done twice, messages are delivered
    twice, and none is lost. Returns how many deliveries each level loses. Raises StoreError, OSError.
    """
    delivered = Counter(level for records in proved_records(log, start, end) for level in _deliveries(records))
    delays = DelayOffsetTable.read(config, disk)
    earlier = {
        level: max(0, offset - delivered[level]) for level, offset in delays.offset_table.items() if delivered[level]
    }
    if earlier:
        delays.offset_table.update(earlier)
        delays.write(config, disk)
    return delivered


def _deliveries(records: Records) -> list[int]:
    """The levels of the messages that were delivered: their properties say where they waited, and where they go."""
    levels, buffer = [], np.asarray(records.buffer)
    columns = (column.tolist() for column in (*records.topic, *records.properties))
    for topic_at, topic_length, at, length in zip(*columns, strict=True):
        stored = buffer[at : at + length].tobytes()
        if b"REAL_TOPIC\x01" in stored and b"DELAY\x01" in stored:
            properties = parse_properties(stored.decode("utf-8", "replace"))
            topic = buffer[topic_at : topic_at + topic_length].tobytes().decode("utf-8", "replace")
            if properties.get("REAL_TOPIC") == topic and properties.get("DELAY", "").isdecimal():
                levels.append(int(properties["DELAY"]))
    return levels
