"""Sets back consumer and delay offsets that are past the end of their queues, after a cut (spec/store.md 13).

A group that continues past the end of its queue would miss the messages that are put there next.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.metadata import ConsumerOffsetTable, DelayOffsetTable
from rmqha.wire.delay import SCHEDULE_TOPIC

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
    moved = clamp_groups(config, ends, disk)
    delays = DelayOffsetTable.read(config, disk)
    late = late_delays(delays.offset_table, ends)
    if late:
        delays.offset_table.update(late)
        delays.write(config, disk)
    return moved + len(late)


def clamp_groups(config: Path, ends: QueueEnds, disk: Disk = DISK) -> int:
    """The same for the offsets of groups alone. Raises StoreError, OSError."""
    consumers = ConsumerOffsetTable.read(config, disk)
    moved = clamp_to_ends(consumers.offset_table, ends)
    if moved:
        consumers.write(config, disk)
    return len(moved)


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
