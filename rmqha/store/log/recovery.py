"""Finds where the log ends after a stop, clean or not (spec/store.md 9). It is stricter than upstream.

Each record must also have its own offset in its PHYSICALOFFSET field. Bytes after the end are copied to a file next to
the log and then zeroed, durably, before anything is appended there. So stale bytes can never pass for records, and
nothing is lost.

Recovery cuts a torn end without asking: bytes that were never confirmed, with no sound message after them. Anything
else is damage: recovery changes nothing and raises LogDamaged, unless it is allowed to cut that too.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rmqha.store.errors import StoreError
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import Disk, file_name
from rmqha.store.log.stretches import Progress, Survey, survey
from rmqha.wire.layout import (
    BORNHOST_V6_FLAG,
    INT32,
    INT64,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from rmqha.wire.record import Blank, decode_record
from rmqha.wire.scanned import Scan

SEGMENTS_CHECKED_AFTER_CLEAN_STOP = 3
COPY_BYTES = 1 << 20


class MayCut(IntEnum):
    """What recovery may cut off the log's end. Each member includes those before it."""

    TORN_END = 0
    """Bytes that were never confirmed, with no sound message after them."""
    LOST_END = 1
    """Also confirmed bytes that are lost: only zeros are in their place, so nothing real is cut."""
    ANYTHING = 2
    """Also confirmed bytes and sound messages. They are kept in a file."""


@dataclass(frozen=True, slots=True)
class Vouched:
    """What state.json says about the log: the offsets up to which it was confirmed and flushed. 0 if unknown."""

    confirmed: int = 0
    flushed: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a log must not simply end at its first bad bytes. ``start``, ``end`` and ``confirmed`` are log offsets.

    The bad bytes reach from ``start`` to ``end``. ``messages_after`` and ``bytes_after`` count what is sound after
    them. ``stretch_count`` counts the bad stretches, this one included. The log was confirmed up to ``confirmed``.
    ``is_gone`` is true if nothing is written from ``start`` on. ``unsure`` is true if the search for sound messages had
    to give up.
    """

    start: int
    end: int
    problem: str
    messages_after: int
    bytes_after: int
    stretch_count: int
    confirmed: int
    is_gone: bool = False
    unsure: bool = False

    def __str__(self) -> str:
        return "; ".join(self._facts())

    def _facts(self) -> Iterator[str]:
        size = self.end - self.start
        if self.is_gone:
            yield f"its log ends at {self.start}, but was confirmed up to {self.confirmed}: {size} bytes are gone"
            return
        yield f"its log is damaged at {self.start}: {size} bytes up to {self.end} are not records ({self.problem})"
        if self.messages_after:
            yield f"{self.messages_after} sound messages ({self.bytes_after} bytes) follow"
        if self.stretch_count > 1:
            yield f"among them are {self.stretch_count - 1} more bad stretches"
        if self.start < self.confirmed:
            yield f"the log was confirmed up to {self.confirmed}"
        if self.unsure:
            yield "more sound messages may follow: the bytes there look too much like records to search them all"


class LogDamaged(StoreError):
    """Recovery would have to remove confirmed bytes or sound messages. Nothing was changed."""

    def __init__(self, store: Path, damage: Damage) -> None:
        self.store = store
        self.damage = damage
        force = "" if damage.is_gone else " --force"
        super().__init__(
            f"{store}: {damage}. Nothing was changed. 'rmqha repair {store} --from REPLICA' brings the bytes back from "
            f"a replica's folder or HA port (HOST:PORT); 'rmqha recover {store} --apply{force}' goes on without them"
        )


@dataclass(frozen=True, slots=True)
class Examination:
    """What recovery found, before it changes anything. ``written_end`` follows the last byte that is not zero."""

    clean_stop: bool
    min_offset: int
    checked_from: int
    found: Scan
    written_end: int
    damage: Damage | None = None

    def needs(self) -> MayCut:
        """What recovery would have to cut."""
        if self.damage is None:
            return MayCut.TORN_END
        return MayCut.LOST_END if self.damage.is_gone else MayCut.ANYTHING


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found and did. ``min_offset``, ``checked_from`` and ``end`` are log offsets.

    ``cut_bytes`` counts the bytes from the end to the last one that was not zero. ``problem`` says what is wrong with
    them; it is None if only zeros followed. ``kept_in`` is the file that holds them now. ``damage`` is what recovery
    was explicitly allowed to cut; None for a torn end.
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
    damage: Damage | None = None


def examine(
    log: CommitLog,
    checkpoint: Checkpoint,
    clean_stop: bool,
    vouched: Vouched = Vouched(),
    progress: Progress = lambda _: None,
    start: int | None = None,
) -> Examination:
    """Find the log's end, and whether it is damaged. Changes nothing. Raises OSError.

    It checks from ``start``, the start of a segment. Without it, it checks the last three segments after a clean stop,
    else from the last segment whose start was certainly on disk, by the checkpoint and by state.json.
    """
    bases = log.segment_bases
    if not bases:
        return Examination(clean_stop, 0, 0, Scan(end=0), 0)
    if start is None:
        start = _start_after_clean_stop(bases) if clean_stop else _start_after_crash(log, checkpoint, vouched)
    looked = survey(log, start, log.max_offset, progress)
    found = looked.first
    if not clean_stop and _may_be_torn(found.end, vouched):
        found = _without_torn_end(log, found, start)
    written_end = log.stale_end(found.end)
    damage = _damage(looked, found, written_end, vouched)
    return Examination(clean_stop, log.min_offset, start, found, written_end, damage)


def _may_be_torn(end: int, vouched: Vouched) -> bool:
    """Whether the last record may be incomplete although its lengths and CRC match."""
    if end <= vouched.flushed:
        return False
    return end > vouched.confirmed or end < vouched.confirmed


def _damage(looked: Survey, found: Scan, written_end: int, vouched: Vouched) -> Damage | None:
    """The damage, if the log's end is more than a torn end; else None."""
    end = found.end
    is_torn_end = not looked.messages_after and not looked.unsure and end >= vouched.confirmed
    if is_torn_end:
        return None
    stretch_end = looked.stretches[0].end if looked.stretches else max(written_end, vouched.confirmed)
    return Damage(
        start=end,
        end=stretch_end,
        problem=found.problem or "the record is not complete",
        messages_after=looked.messages_after,
        bytes_after=looked.bytes_after,
        stretch_count=max(1, looked.stretch_count),
        confirmed=vouched.confirmed,
        is_gone=written_end <= end,
        unsure=looked.unsure,
    )


def recover_log(
    log: CommitLog,
    checkpoint: Checkpoint,
    clean_stop: bool,
    cut_folder: Path,
    vouched: Vouched = Vouched(),
    may_cut: MayCut = MayCut.TORN_END,
) -> Recovery:
    """Find the log's end, and durably cut what follows it, so that the log can continue from there.

    What is cut is kept in a file of ``cut_folder``. Raises LogDamaged, before any change, if it would have to cut more
    than ``may_cut`` allows; OSError.
    """
    examined = examine(log, checkpoint, clean_stop, vouched)
    check_may_cut(examined, may_cut, log.folder.parent)
    return settle(log, examined, cut_folder)


def check_may_cut(examined: Examination, may_cut: MayCut, store: Path) -> None:
    """Raises LogDamaged if recovery would have to cut more than ``may_cut`` allows."""
    if examined.damage is not None and examined.needs() > may_cut:
        raise LogDamaged(store, examined.damage)


def settle(log: CommitLog, examined: Examination, cut_folder: Path) -> Recovery:
    """Durably cut what follows the log's end that ``examine`` found. Raises OSError."""
    bases, found, start = log.segment_bases, examined.found, examined.checked_from
    if not bases:
        return Recovery(examined.clean_stop, 0, 0, 0, 0)
    written_end = examined.written_end
    kept_in = None
    if written_end > found.end:
        kept_in = keep(log.disk, log_pieces(log, found.end, written_end), cut_folder, file_name(found.end))
    log.trust(found)
    if not examined.clean_stop:  # a flush may have failed before the stop
        log.write_again(start)
    log.flushed_offset = max(log.flushed_offset, start)  # flushed by the clean stop, or before the checkpoint
    log.sync()
    return Recovery(
        clean_stop=examined.clean_stop,
        min_offset=log.min_offset,
        checked_from=start,
        end=found.end,
        messages=found.messages,
        cut_bytes=written_end - found.end,
        removed_segments=len(set(bases) - set(log.segment_bases)),
        problem=(found.problem or "the record is not complete") if kept_in else None,
        kept_in=kept_in,
        damage=examined.damage,
    )


def _without_torn_end(log: CommitLog, found: Scan, start: int) -> Scan:
    """The scan without its last record, if only the first part of that record was written."""
    at = found.last_message
    view = None if at is None else log.select(at, found.end - at)
    if at is None or view is None or INT32.unpack_from(view)[0] < len(view):  # a blank follows: it was written later
        return found
    if not has_unwritten_end(view):
        return found
    return log.scan(start, at)._replace(problem="the end of the record was never written")


def has_unwritten_end(view: memoryview) -> bool:
    """Whether only the first part of the sound record in ``view`` was written.

    The missing part reads as zeros. If it is inside the properties (or inside the topic, in a message without
    properties), the lengths and the CRC still match. But a complete topic or property string never ends in a zero byte.
    Any other part that is lost breaks the lengths or the CRC.
    """
    record = decode_record(view)
    return not isinstance(record, Blank) and (record.properties_stored or record.topic).endswith("\0")


def _start_after_clean_stop(bases: list[int]) -> int:
    return bases[max(0, len(bases) - SEGMENTS_CHECKED_AFTER_CLEAN_STOP)]


def _start_after_crash(log: CommitLog, checkpoint: Checkpoint, vouched: Vouched) -> int:
    """The last segment whose first record was on disk at the checkpoint, or the first segment.

    A damaged checkpoint may claim too much. If state.json says how far the log was flushed, the start is never in a
    segment after that.
    """
    bases = log.segment_bases
    if vouched.flushed:
        bases = [base for base in bases if base <= vouched.flushed] or bases[:1]
    for base in reversed(bases):
        if 0 < _first_store_timestamp(log, base) <= checkpoint.recovery_timestamp:
            return base
    return bases[0]


def latest_vouched(log: CommitLog, start: int) -> int | None:
    """The latest time of a checkpoint, in ms, with which a recovery checks the log from ``start`` on, or earlier.

    None if any does, because no segment follows the one of ``start``.
    """
    later = [_first_store_timestamp(log, base) for base in log.segment_bases if base > start]
    times = [time for time in later if time > 0]
    return min(times) - 1 if times else None


def _first_store_timestamp(log: CommitLog, base: int) -> int:
    """STORETIMESTAMP of the segment's first record in ms; 0 if it has no record there."""
    head = log.get_data(base, STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES + INT64.size)
    if head is None or INT32.unpack_from(head, MAGIC_AT)[0] not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2):
        return 0
    is_v6 = bool(INT32.unpack_from(head, SYS_FLAG_AT)[0] & BORNHOST_V6_FLAG)
    return int(INT64.unpack_from(head, STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES * is_v6)[0])


def keep(disk: Disk, pieces: Iterator[memoryview], folder: Path, name: str) -> Path:
    """Write the pieces durably to a new file of this name, with a number added if it exists. Raises OSError."""
    disk.make_folder(folder)
    path, number = folder / name, 0
    while disk.exists(path):
        number += 1
        path = folder / f"{name}.{number}"
    try:
        disk.write_new(path, pieces)
    except BaseException:  # a full disk, or Ctrl-C: an incomplete copy is useless, and each attempt would leave another
        with suppress(OSError):
            disk.remove(path)
        raise
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)
    return path


def log_pieces(log: CommitLog, start: int, end: int) -> Iterator[memoryview]:
    """The log's bytes from ``start`` to ``end``."""
    while start < end:
        data = log.get_data(start, min(COPY_BYTES, end - start))
        assert data is not None, "recovery has not cut the log yet"
        yield data
        start += len(data)
