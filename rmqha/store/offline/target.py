"""Finds where a restore ends: before a time, at an offset, or at a message (spec/store.md 3).

A prefix of a log that ends between two records is a log. A target names the first record that is left out. If it is
``inclusive``, it names the last one that is kept.
"""

from dataclasses import dataclass

import numpy as np

from rmqha.settings.settings import Settings
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, ConsumeQueue, queue_size_of
from rmqha.store.derived.dispatchrequest import is_no_folder
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.provedrecords import proved_records
from rmqha.store.log.stretches import Progress
from rmqha.wire.record import Record, RecordError, check_record


class NoSuchTarget(StoreError):
    """The log has no such place."""


@dataclass(frozen=True, slots=True)
class Target:
    """The place that the user named. Exactly one of the first three is set.

    ``time_ms`` is a STORETIMESTAMP in milliseconds since 1970, ``offset`` an offset in the log, ``message`` a topic, a
    queue id and a queue offset.
    """

    time_ms: int | None = None
    offset: int | None = None
    message: tuple[str, int, int] | None = None
    inclusive: bool = False

    @property
    def before_ms(self) -> int | None:
        """What happened at this time or later, in milliseconds since 1970, is left out. None: no time was named."""
        return None if self.time_ms is None else self.time_ms + self.inclusive


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the restored log ends.

    ``end`` is the offset that follows the last record kept. ``last_timestamp`` is that record's STORETIMESTAMP in
    milliseconds, None if it was not read. ``earlier_after`` counts the records left out although their
    STORETIMESTAMP is before the wanted time: the clock was set back between them.
    """

    end: int
    last_timestamp: int | None = None
    earlier_after: int = 0


def find_cut(log: CommitLog, end: int, target: Target, settings: Settings, progress: Progress) -> Cut:
    """Find the target in a log whose sound records end at ``end``.

    Raises NoSuchTarget if the log does not reach it, StoreError if the log is damaged before it, OSError.
    """
    if target.before_ms is not None:
        return _before_time(log, end, target.before_ms, progress)
    if target.message is not None:
        start, record = _message(log, end, target.message, settings, progress)
        return Cut(start + record.total_size if target.inclusive else start)
    assert target.offset is not None, "a target names something"
    return Cut(_boundary(log, end, target.offset, target.inclusive))


def _before_time(log: CommitLog, end: int, first_left_out: int, progress: Progress) -> Cut:
    cut, last_timestamp, earlier_after = None, None, 0
    for records in proved_records(log, log.min_offset, end, progress):
        times = records.ints("storeTimestamp")
        if cut is None:
            late = np.flatnonzero(times >= first_left_out)
            kept = len(times) if not len(late) else int(late[0])
            if kept:
                last_timestamp = int(times[kept - 1])
            if len(late):
                cut = int(records.physical_offset[kept])
                earlier_after = int((times[kept:] < first_left_out).sum())
        else:
            earlier_after += int((times < first_left_out).sum())
    return Cut(end if cut is None else cut, last_timestamp, earlier_after)


def _boundary(log: CommitLog, end: int, offset: int, inclusive: bool) -> int:
    if not log.min_offset <= offset <= end:
        raise NoSuchTarget(f"the log is {log.min_offset} to {end}: it does not hold {offset}")
    if offset == end:
        return end
    segment = offset - offset % log.segment_size
    start, limit = max(log.min_offset, segment), min(segment + log.segment_size, end)
    before = start
    for records in proved_records(log, start, limit):
        if records.end > offset:
            row = int(np.searchsorted(records.physical_offset, offset, side="right")) - 1
            at = int(records.physical_offset[row])
            return at + int(records.ints("totalSize")[row]) if inclusive else at
        before = records.end
    return limit if inclusive else before  # the offset is in the blank that fills the segment


def _message(
    log: CommitLog, end: int, message: tuple[str, int, int], settings: Settings, progress: Progress
) -> tuple[int, Record]:
    """The offset and the record of the message. Uses its queue, or searches the log if the queue does not help."""
    found = _by_queue(log, end, message, settings)
    if found is None:
        found = _by_search(log, end, message, progress)
    if found is None:
        topic, queue_id, queue_offset = message
        raise NoSuchTarget(f"the log has no message {queue_offset} of queue {queue_id} of topic {topic}")
    return found


def _by_queue(log: CommitLog, end: int, message: tuple[str, int, int], settings: Settings) -> tuple[int, Record] | None:
    topic, queue_id, queue_offset = message
    folder = settings.store_path_root_dir / CONSUME_QUEUE_FOLDER
    if is_no_folder(topic) or not (folder / topic / str(queue_id)).is_dir():
        return None
    try:
        size = queue_size_of(folder, settings.mapped_file_size_consume_queue)
        queue = ConsumeQueue(folder / topic / str(queue_id), topic, queue_id, size, owned=False)
    except StoreError:  # damaged queue files: the log is searched instead
        return None
    try:
        unit = queue.unit(queue_offset)
    finally:
        queue.close()
    if unit is None or not log.min_offset <= unit.physical_offset < end:
        return None
    return _record_at(log, unit.physical_offset, message)


def _by_search(
    log: CommitLog, end: int, message: tuple[str, int, int], progress: Progress
) -> tuple[int, Record] | None:
    _, queue_id, queue_offset = message
    for records in proved_records(log, log.min_offset, end, progress):
        fits = (records.ints("queueId") == queue_id) & (records.ints("queueOffset") == queue_offset)
        for at in records.physical_offset[fits].tolist():
            found = _record_at(log, at, message)
            if found is not None:
                return found
    return None


def _record_at(log: CommitLog, at: int, message: tuple[str, int, int]) -> tuple[int, Record] | None:
    room = log.segment_size - at % log.segment_size
    data = log.get_data(at, room)
    if data is None:
        return None
    try:
        record = check_record(data, 0, at, room)
    except RecordError:
        return None
    is_it = isinstance(record, Record) and (record.topic, record.queue_id, record.queue_offset) == message
    return (at, record) if is_it and isinstance(record, Record) else None
