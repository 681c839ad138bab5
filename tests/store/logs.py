"""Small logs for the tests of the store."""

from dataclasses import replace
from pathlib import Path

from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.messagestore import MessageStore
from rmqha.wire.record import Record, encode_record

SEGMENT_SIZE = 4096
FIRST_STORE_TIMESTAMP = 1_795_000_000_000
OVERHEAD_BYTES = Record("T", b"", "k\x01v").total_size


def sized_record(size: int, number: int = 0) -> Record:
    """A record of exactly ``size`` bytes, the last of which is not zero; its number tells its time and place."""
    return Record(
        "T",
        bytes([65 + number % 26]) * (size - OVERHEAD_BYTES),
        "k\x01v",
        queue_offset=number,
        born_timestamp=FIRST_STORE_TIMESTAMP,
        store_timestamp=FIRST_STORE_TIMESTAMP + 1000 * number,
    )


def make_log(folder: Path, *sizes: int, segment_size: int = SEGMENT_SIZE) -> list[int]:
    """Write a log of records of these sizes, leave it as a dead process would, and tell where they begin."""
    log = CommitLog(folder, segment_size)
    offsets = [log.append(sized_record(size, number)) for number, size in enumerate(sizes)]
    log.close()
    return offsets


def held(log: CommitLog, start: int | None = None, end: int | None = None) -> bytes:
    """The log's bytes, across segments."""
    at, end = log.min_offset if start is None else start, log.max_offset if end is None else end
    found = b""
    while at < end:
        data = log.get_data(at, end - at)
        assert data is not None
        found += data
        at += len(data)
    return found


def file_bytes(folder: Path) -> bytes:
    """All segments of the folder, joined."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def write_at(folder: Path, offset: int, data: bytes, segment_size: int = SEGMENT_SIZE) -> None:
    """Overwrite bytes of the log behind everybody's back, within one segment."""
    base = offset - offset % segment_size
    path = folder / f"{base:020d}"
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(segment_size)
        file.seek(offset - base)
        file.write(data)


def encoded(record: Record, offset: int) -> bytes:
    """The record's bytes as they lie at ``offset``."""
    return encode_record(replace(record, physical_offset=offset))


def flush_derived(log: CommitLog, derived: Dispatcher | MessageStore) -> None:
    """Flush queues and index, as a checkpoint's flush does."""
    log.disk.sync_all(derived.take_unflushed())
    log.derived_end.taken_is_flushed()
