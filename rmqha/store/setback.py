"""What points into a log is set back when the log loses its end (spec/store.md 13.6).

The log's end goes when a start or ``rmqha recover`` cuts damage off, when a node or ``rmqha rewind`` goes back to where
two logs part, and when a copy ends earlier than its source. What was delivered, answered or asked there has not
happened then. So these files go back: the offsets of delays, the check point of timer messages and the wheel of a Java
broker, the progress of transactions, and the snapshots of tables. It is done before the log is cut: after a death in
between it is done again. Then messages are delivered twice, and none is lost.

Queues and index are built from the log. The deletions of topics and the offsets of groups follow the queues.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import count
from pathlib import Path

import numpy as np

from rmqha.settings.settings import Settings
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, ConsumeQueue, Marks, queue_size_of
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK, Disk, file_name
from rmqha.store.log.provedrecords import proved_records
from rmqha.store.log.stretches import survey
from rmqha.store.metadata import BACKUP_SUFFIX, CONFIG_FOLDER, ConsumerOffsetTable, DelayOffsetTable
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.tablesnapshots import snapshot_offsets, snapshot_path
from rmqha.store.timers import CHECK_POINT_FILE, MOST_COUNTED, WHEEL_FILES, TimerCheckPoint, due_ms, first_waiting
from rmqha.wire.columns import Records
from rmqha.wire.layout import FIXED_BYTES
from rmqha.wire.properties import parse_properties
from rmqha.wire.record import Record, RecordError, decode_record
from rmqha.wire.timers import TIMER_QUEUE_ID, TIMER_TOPIC
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, TRANSACTION_GROUP

SMALLEST_ANSWER_BYTES = 2
"""An operation message names several half messages, each with a digit and a comma."""

QueueOf = Callable[[str, int], ConsumeQueue | None]
"""The queue of a topic and a queue id; None if it has had no message, or cannot be read."""


@dataclass(frozen=True, slots=True)
class CutEnd:
    """The end of a log, from ``start`` on, that a store loses, or that a copy does not have. ``log`` still has it.

    ``sound`` are the ranges of records there. ``unreadable_bytes`` are between them, or gone: they count as all
    the deliveries that fit into them.
    """

    log: CommitLog
    start: int
    sound: tuple[tuple[int, int], ...]
    unreadable_bytes: int

    @classmethod
    def of(cls, log: CommitLog, start: int, end: int | None = None) -> "CutEnd":
        """What follows ``start``, up to ``end``, or to the last sound record. Raises OSError."""
        looked = survey(log, start, log.max_offset if end is None else min(end, log.max_offset))
        sound, at = [], start
        for bad in looked.stretches:
            sound.append((at, bad.start))
            at = bad.end
        if looked.stretch_count == len(looked.stretches):
            sound.append((at, looked.end))
        end = looked.end if end is None else max(end, looked.end)
        return cls(log, start, tuple(sound), end - start - sum(last - first for first, last in sound))

    def records(self) -> Iterator[Records]:
        """The messages, many at a time. Raises StoreError, OSError."""
        for first, last in self.sound:
            yield from proved_records(self.log, first, last)

    def messages(self) -> Iterator[Record]:
        """The messages one by one. Raises StoreError, OSError."""
        for records in self.records():
            for at in records.physical_offset.tolist():
                found = self.message_at(at)
                if found is not None:
                    yield found

    def message_at(self, offset: int) -> Record | None:
        """The message of the log at an offset, None if there is none. Raises OSError."""
        try:
            found = decode_record(self.log.get_data(offset, self.log.segment_size) or b"")
        except RecordError:
            return None
        return found if isinstance(found, Record) and found.physical_offset == offset else None


def set_back(root: Path, cut: CutEnd, queue_of: QueueOf, disk: Disk = DISK) -> None:
    """Set back what points into the end of the log of the store at ``root``. Raises StoreError, OSError."""
    config = root / CONFIG_FOLDER
    point = TimerCheckPoint.read(config, disk)
    set_back_delays(config, cut, disk)
    set_back_timers(config, point, cut, queue_of, disk)
    if point is not None:
        _move_aside(root, "timers", cut.start, [root / name for name in WHEEL_FILES], disk)
    set_back_transactions(config, cut, queue_of, disk)


def set_back_delays(config: Path, cut: CutEnd, disk: Disk = DISK) -> Counter[int]:
    """Set delay offsets back by the deliveries in the cut end. Returns how many deliveries each level loses.

    Each level delivers its messages in their order, so these are its last ones. Raises StoreError, OSError.
    """
    delays = DelayOffsetTable.read(config, disk)
    if not any(delays.offset_table.values()):
        return Counter()
    delivered = Counter(level for records in cut.records() for level in _deliveries(records))
    unreadable = cut.unreadable_bytes // FIXED_BYTES
    earlier = {
        level: max(0, offset - delivered[level] - unreadable)
        for level, offset in delays.offset_table.items()
        if delivered[level] + unreadable
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


def set_back_timers(
    config: Path, point: TimerCheckPoint | None, cut: CutEnd, queue_of: QueueOf, disk: Disk = DISK
) -> None:
    """Set a timer check point of 5.x back by the deliveries in the cut end, and write it to ``config``.

    What is written is for a store without a timer wheel. Without the queue of timer messages no check point stays:
    then a broker delivers all of them again. Raises StoreError, OSError.
    """
    queue = None if point is None else queue_of(TIMER_TOPIC, TIMER_QUEUE_ID)
    if point is None or queue is None:
        disk.remove_durably(config / CHECK_POINT_FILE)  # before the log is cut
        return
    end = queue.end_before(cut.start)
    dues = [due for message in cut.messages() if message.topic != TIMER_TOPIC and (due := due_ms(message)) is not None]
    if cut.unreadable_bytes:
        dues.append(_earliest_of_last(queue, cut, point, cut.unreadable_bytes // FIXED_BYTES))
    earlier = point._replace(
        last_read_ms=min([point.last_read_ms, *dues]), master_queue_offset=min(point.master_queue_offset, end)
    )
    start = first_waiting(queue, cut.message_at, 0, earlier)
    earlier.from_offset(min(start, end), end).write(config, disk)


def _earliest_of_last(queue: ConsumeQueue, cut: CutEnd, point: TimerCheckPoint, most: int) -> int:
    """The smallest time among the last ``most`` messages that were delivered, 0 if these are too many to look at.

    A message is delivered when it is due, or when it is put after that.
    """
    low, high = queue.min_offset, min(queue.max_offset, point.master_queue_offset)
    if high - low > MOST_COUNTED:
        return 0

    def delivered() -> Iterator[tuple[int, int]]:
        for offset in range(low, high):
            unit = queue.unit(offset)
            message = None if unit is None or unit.is_blank else cut.message_at(unit.physical_offset)
            due = due_ms(message)
            if message is not None and due is not None and due < point.last_read_ms:
                yield max(due, message.store_timestamp), due

    return min((due for _, due in nlargest(most, delivered())), default=point.last_read_ms)


def set_back_transactions(config: Path, cut: CutEnd, queue_of: QueueOf, disk: Disk = DISK) -> None:
    """Set the check of transactions back by the operation messages in the cut end.

    A half message is open again if the message that ended it is cut. Done twice, producers are asked twice, and no
    transaction is forgotten. Raises StoreError, OSError.
    """
    consumers = ConsumerOffsetTable.read(config, disk)
    half, operation = (
        consumers.offset_table.get(f"{topic}@{TRANSACTION_GROUP}", {}) for topic in (HALF_TOPIC, OPERATION_TOPIC)
    )
    if 0 not in half:
        return
    halves, operations = queue_of(HALF_TOPIC, 0), queue_of(OPERATION_TOPIC, 0)
    reached = 0 if halves is None else min(half[0], halves.end_before(cut.start))
    for records in cut.records():
        _, topic_lengths = records.topic
        for at in records.physical_offset[topic_lengths == len(OPERATION_TOPIC)].tolist():
            message = cut.message_at(at)
            if message is not None and message.topic == OPERATION_TOPIC:
                reached = min([reached, *(int(part) for part in message.body.split(b",") if part.isdigit())])
    reached = max(0, reached - cut.unreadable_bytes // SMALLEST_ANSWER_BYTES)
    first = None if halves is None else halves.unit(reached)
    place = cut.start if first is None or first.is_blank else first.physical_offset
    half[0] = reached
    if 0 in operation:
        operation[0] = 0 if operations is None else min(operation[0], operations.end_before(min(place, cut.start)))
    consumers.write(config, disk)


def move_snapshots_aside(root: Path, end: int, disk: Disk = DISK) -> Path | None:
    """Move the snapshots of tables aside that belong to a log that went beyond ``end``.

    Other messages may come there, and the tables are not theirs. Returns the folder that keeps them, None if there are
    none. Raises OSError.
    """
    offsets = snapshot_offsets(root, disk)
    later = [snapshot_path(root, offset) for offset in offsets if offset > end]
    whole = [later[0].parent] if later and len(later) == len(offsets) else later  # quick, however many there are
    return _move_aside(root, "tables", end, whole, disk)


def set_progress_aside(root: Path, folder: Path, disk: Disk = DISK) -> None:
    """Move what points into a log that a store loses as a whole to ``folder``: its deliveries are not in the next one.

    Raises OSError.
    """
    tables = [root / CONFIG_FOLDER / f"{DelayOffsetTable.FILE_NAME}{suffix}" for suffix in ("", BACKUP_SUFFIX)]
    _move(folder, [root / CONFIG_FOLDER / CHECK_POINT_FILE, *tables, *(root / name for name in WHEEL_FILES)], disk)


def _move_aside(root: Path, what: str, offset: int, paths: list[Path], disk: Disk) -> Path | None:
    base = root / NODE_FOLDER / f"aside-{what}-{file_name(offset)}"
    folder = next(path for number in count() if not disk.exists(path := base.with_name(f"{base.name}-{number}")))
    return folder if _move(folder, paths, disk) else None


def _move(folder: Path, paths: list[Path], disk: Disk) -> bool:
    found = [path for path in paths if disk.exists(path)]
    if found:
        disk.make_folder(folder)
    for path in found:
        disk.rename(path, folder / path.name)
    for changed in (folder, *dict.fromkeys(path.parent for path in found)) if found else ():
        disk.sync_folder(changed)
    return bool(found)


def queues_on_disk(settings: Settings, disk: Disk = DISK) -> QueueOf:
    """The queues of a store that has no queues open. One that is damaged is None."""
    folder = settings.store_path_root_dir / CONSUME_QUEUE_FOLDER

    def queue_of(topic: str, queue_id: int) -> ConsumeQueue | None:
        if not disk.is_folder(folder / topic / str(queue_id)):
            return None
        try:
            size = queue_size_of(folder, settings.mapped_file_size_consume_queue, disk)
            path = folder / topic / str(queue_id)
            queue = ConsumeQueue(path, topic, queue_id, size, owned=False, marks=Marks(disk=disk))
            queue.find_end()
        except StoreError:
            return None
        return queue

    return queue_of
