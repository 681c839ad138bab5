"""Where each queue ended when the store was closed cleanly.

A queue's next offset is one more than its last unit's. If that unit rots to zeros, the files alone do not show that it
was ever there, and its offset would be assigned a second time. So a clean stop writes the ends to
``rmqha/queue-ends.json``, and the next start compares them with the queues. A store that was last closed by a Java
broker, or by an older version, has no such file, or an old one. The ends in an old file are lower, and do no harm.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.derived.dispatchrequest import is_possible_offset
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NODE_FOLDER

ENDS_FILE = "queue-ends.json"


class QueueEnd(NamedTuple):
    """The next queue offset, and where the last message ends in the log."""

    max_offset: int
    max_physical_offset: int


QueueEnds = dict[tuple[str, int], QueueEnd]


def ends_path(root: Path) -> Path:
    """The file that has the ends."""
    return root / NODE_FOLDER / ENDS_FILE


def end_of(queue: ConsumeQueue) -> QueueEnd:
    """Where a queue ends now."""
    return QueueEnd(queue.max_offset, queue.max_physical_offset)


def write_ends(root: Path, queues: Iterable[ConsumeQueue], log_end: int, disk: Disk = DISK) -> None:
    """Write where the queues end. ``log_end`` is the end of their log. Waits for the disk. Raises OSError."""
    topics: dict[str, dict[str, QueueEnd]] = {}
    for queue in queues:
        topics.setdefault(queue.topic, {})[str(queue.queue_id)] = end_of(queue)
    disk.replace(ends_path(root), json.dumps({"logEnd": log_end, "queues": topics}).encode("ascii"))


def read_ends(root: Path, log_end: int, warn: Callable[[str], None], disk: Disk = DISK) -> QueueEnds:
    """The ends that the last clean stop wrote, empty if there are none. ``log_end`` is where the log ends now.

    Ends of a longer log are ignored: it was cut since. An end that no queue of this log can have is ignored too. A
    file that cannot be read is ignored; ``warn`` is called with the reason. Raises OSError.
    """
    try:
        content = json.loads(disk.read(ends_path(root)))
        if content["logEnd"] > log_end:
            return {}
        ends = _ends_in(content["queues"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        warn(
            f"{ends_path(root)} cannot be read: {error}; the ends of the queues are not compared with it, and the next "
            "clean stop replaces it"
        )
        return {}
    return {key: end for key, end in ends.items() if is_possible_offset(end.max_offset - 1, log_end)}


def _ends_in(topics: Mapping[str, Mapping[str, Any]]) -> QueueEnds:
    return {
        (topic, int(queue_id)): QueueEnd(int(max_offset), int(max_physical_offset))
        for topic, queues in topics.items()
        for queue_id, (max_offset, max_physical_offset) in queues.items()
    }
