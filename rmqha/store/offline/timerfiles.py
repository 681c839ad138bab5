"""What a cut of the log means for the timer messages of a Java 5.x broker: its check point and its wheel."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK, Disk, file_name
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.offline.target import proved_records
from rmqha.store.timers import WHEEL_FILES, TimerCheckPoint, due_ms, first_waiting
from rmqha.wire.record import Record, decode_record
from rmqha.wire.timers import TIMER_QUEUE_ID, TIMER_TOPIC


def set_back_timers(opened: MessageStore, point: TimerCheckPoint | None, log: CommitLog, offset: int) -> bool:
    """Set a timer check point of 5.x back by the deliveries from ``offset`` of ``log`` on, and write it to ``opened``.

    ``opened`` does not have these deliveries, or is about to lose them. What is written is for a store without a timer
    wheel. Done twice, messages are delivered twice, and none is lost. False if there is no check point, or no timer
    message.

    Raises StoreError, OSError.
    """
    queue = opened.derived.queues.get(TIMER_TOPIC, TIMER_QUEUE_ID)
    if point is None or queue is None:
        return False
    end = queue.end_before(offset)
    earlier = point._replace(
        last_read_ms=min([point.last_read_ms, *_dues(log, offset)]),
        master_queue_offset=min(point.master_queue_offset, end),
    )
    start = first_waiting(queue, opened.reader.message_at, 0, earlier)
    earlier.from_offset(min(start, end), end).write(opened.root / CONFIG_FOLDER, opened.disk)
    return True


def _dues(log: CommitLog, offset: int) -> Iterator[int]:
    """When the timer messages were due that were delivered from ``offset`` of the log on."""
    for records in proved_records(log, offset, log.verified_offset):
        for at in records.physical_offset.tolist():
            found = decode_record(log.get_data(at, log.segment_size) or b"")
            due = due_ms(found) if isinstance(found, Record) and found.topic != TIMER_TOPIC else None
            if due is not None:
                yield due


def retire_wheel(root: Path, has_check_point: bool, offset: int, disk: Disk = DISK) -> Path | None:
    """Move the timer wheel of a Java 5.x broker aside: it points into the log, which is about to be cut at ``offset``.

    A broker that starts without the wheel reads from the check point on what waits. Without a check point, it reads all
    timer messages. Returns the folder that keeps the files, None if there are none. Raises OSError.
    """
    names = [name for name in WHEEL_FILES if disk.exists(root / name)]
    if not names or not has_check_point:
        return None
    base = root / NODE_FOLDER / f"aside-timers-{file_name(offset)}"
    folder = next(path for number in count() if not disk.exists(path := base.with_name(f"{base.name}-{number}")))
    disk.make_folder(folder)
    for name in names:
        disk.rename(root / name, folder / name)
    disk.sync_folder(folder)
    disk.sync_folder(root)
    return folder
