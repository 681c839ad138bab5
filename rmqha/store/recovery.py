"""Where the log ends after a stop, clean or not (spec/store.md 9), stricter than upstream.

Every record looked at must also say that it lies where it lies. What follows the end is kept in a file beside the log,
then zeroed, durably, before anything is appended there: stale bytes can never pass for records, and nothing is lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rmqha.store.checkpoint import Checkpoint
from rmqha.store.commitlog import CommitLog
from rmqha.store.mappedfile import file_name
from rmqha.wire.record import (
    BORNHOST_V6_FLAG,
    INT32,
    INT64,
    IPV6_EXTRA_BYTES,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    Blank,
    decode_record,
)
from rmqha.wire.scan import MAGIC_AT, STORE_TIMESTAMP_AT, SYS_FLAG_AT, Scan

SEGMENTS_CHECKED_AFTER_CLEAN_STOP = 3
COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found. All are offsets in the log, but ``messages`` and the counts.

    ``cut_bytes`` reach from the end to the last byte that was not zero; ``problem`` tells what is wrong with them, and
    is None where only zeros followed. ``kept_in`` is the file that holds them now.
    """

    clean_stop: bool
    min_offset: int
    checked_from: int
    end: int
    messages: int
    cut_bytes: int = 0
    removed_segments: int = 0
    problem: str | None = None
    kept_in: Path | None = None


def recover_log(log: CommitLog, checkpoint: Checkpoint, clean_stop: bool, cut_folder: Path) -> Recovery:
    """Find the log's end, cut what is behind it, durably, and let the log go on from there.

    What is cut is kept in a file of ``cut_folder``. Raises OSError.
    """
    bases = log.segment_bases
    if not bases:
        return Recovery(clean_stop, 0, 0, 0, 0)
    start = _start_after_clean_stop(bases) if clean_stop else _start_after_crash(log, checkpoint)
    found = log.scan(start)
    if not clean_stop:
        found = _without_torn_end(log, found, start)
    stale_end = log.stale_end(found.end)
    kept_in = _keep(log, found.end, stale_end, cut_folder) if stale_end > found.end else None
    log.trust(found)
    if not clean_stop:  # perhaps because a flush has failed
        log.write_again(start)
    log.flushed_offset = max(log.flushed_offset, start)  # a clean stop has flushed it, or the checkpoint vouches for it
    log.sync()
    return Recovery(
        clean_stop=clean_stop,
        min_offset=log.min_offset,
        checked_from=start,
        end=found.end,
        messages=found.messages,
        cut_bytes=stale_end - found.end,
        removed_segments=len(set(bases) - set(log.segment_bases)),
        problem=(found.problem or "the record is not whole") if kept_in else None,
        kept_in=kept_in,
    )


def _without_torn_end(log: CommitLog, found: Scan, start: int) -> Scan:
    """What was found, less a last record of which only the beginning was written.

    What is missing of it reads as zeros. Where that begins among the properties, or in the topic of a message without
    any, no length and no CRC tells; but neither ever ends in a zero byte when it is whole.
    """
    at = found.last_message
    view = None if at is None else log.select(at, found.end - at)
    if at is None or view is None:
        return found
    record = decode_record(view)
    if isinstance(record, Blank) or record.total_size < len(view):  # a blank follows: it was written later
        return found
    if not (record.properties_stored or record.topic).endswith("\0"):
        return found
    return replace(log.scan(start, at), problem="the end of the record was never written")


def _start_after_clean_stop(bases: list[int]) -> int:
    return bases[max(0, len(bases) - SEGMENTS_CHECKED_AFTER_CLEAN_STOP)]


def _start_after_crash(log: CommitLog, checkpoint: Checkpoint) -> int:
    """The last segment whose first record was on disk at the checkpoint, or the first segment."""
    for base in reversed(log.segment_bases):
        if 0 < _first_store_timestamp(log, base) <= checkpoint.recovery_timestamp:
            return base
    return log.segment_bases[0]


def _first_store_timestamp(log: CommitLog, base: int) -> int:
    """STORETIMESTAMP of the segment's first record, 0 if none is there."""
    head = log.get_data(base, STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES + INT64.size)
    if head is None or INT32.unpack_from(head, MAGIC_AT)[0] not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2):
        return 0
    is_v6 = bool(INT32.unpack_from(head, SYS_FLAG_AT)[0] & BORNHOST_V6_FLAG)
    return int(INT64.unpack_from(head, STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES * is_v6)[0])


def _keep(log: CommitLog, start: int, end: int, folder: Path) -> Path:
    """Copy the log's bytes from ``start`` to ``end`` to a file named by ``start``, durably."""
    disk = log.disk
    disk.make_folder(folder)
    path, number = folder / file_name(start), 0
    while disk.exists(path):
        number += 1
        path = folder / f"{file_name(start)}.{number}"
    disk.write_new(path, _pieces(log, start, end))
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)
    return path


def _pieces(log: CommitLog, start: int, end: int) -> Iterator[memoryview]:
    """The log's bytes from ``start`` to ``end``."""
    while start < end:
        data = log.get_data(start, min(COPY_BYTES, end - start))
        assert data is not None, "recovery has not cut the log yet"
        yield data
        start += len(data)
