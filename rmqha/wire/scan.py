"""Proves many records at once: what a slave does with every byte before it acknowledges it.

The rules are those of ``record.check_record``, which remains the reference: it judges every record that is not clearly
sound here. Python hops from size to size, numpy gathers the fields of all records, and a C library computes CRCs. This
is about five times as fast as one ``check_record`` for each record (``make bench-scan``). ``check_records_plain`` has a
compiled twin, which takes its place if it is there (``compiled``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from rmqha.wire import layout, record
from rmqha.wire.compiled import compiled_or
from rmqha.wire.layout import (
    BODY_AT,
    CRC_AT,
    INT16,
    INT32,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from rmqha.wire.layout import FIXED_BYTES as MIN_RECORD_BYTES
from rmqha.wire.scanned import Scan

INT16_AT: Callable[[Any, int], tuple[int]] = layout.INT16.unpack_from
INT32_AT: Callable[[Any, int], tuple[int]] = layout.INT32.unpack_from
INT64_AT: Callable[[Any, int], tuple[int]] = layout.INT64.unpack_from
HEAD_AT: Callable[[Any, int], tuple[int, ...]] = layout.FIXED_HEAD.unpack_from
IPV6_FLAGS = layout.BORNHOST_V6_FLAG | layout.STOREHOSTADDRESS_V6_FLAG
HOP_LIMIT_RECORDS = 16384
"""Records that one pass examines. This limits the memory of the arrays."""
FEW_RECORDS = 64
"""Fewer records are proved one by one, because arrays would cost more than they save."""


def scan_records(
    segment: "mmap | bytes | memoryview", base: int, start: int, limit: int, segment_end: int | None = None
) -> Scan:
    """Prove the records of one segment from ``start`` on.

    ``segment`` holds a segment from the log offset ``base`` on. ``start`` is the start of a record, and ``limit`` is
    the end of the written bytes. Both are offsets in the log. ``segment_end`` is the offset after the segment's last
    byte. It is needed only if ``segment`` holds less than that.
    """
    segment_end = base + len(segment) if segment_end is None else segment_end
    result = several = check_records(segment, base, start, limit)
    while result.end < limit:
        few = _scan_singly(segment, base, result.end, limit, segment_end, 1 if several.messages else FEW_RECORDS)
        goes_on = few.end > result.end and few.problem is None
        result = result.then(few)
        if not goes_on:
            break
        several = check_records(segment, base, result.end, limit)
        result = result.then(several)
    return result


def _scan_singly(
    segment: "mmap | bytes | memoryview", base: int, start: int, limit: int, segment_end: int, count: int
) -> Scan:
    """Prove up to ``count`` records from ``start`` on, by the reference rules."""
    messages, last_message, store_timestamp, end, problem = 0, None, 0, start, None
    with memoryview(segment) as whole, whole[: limit - base] as written:
        for _ in range(count):
            if end >= limit:
                break
            try:
                found = record.check_record(written, end - base, end, segment_end - end)
            except record.IncompleteRecord:
                break
            except record.RecordError as error:
                problem = str(error)
                break
            if isinstance(found, record.Blank):
                end += found.size
            else:
                messages, last_message, store_timestamp = messages + 1, end, found.store_timestamp
                end += found.total_size
    return Scan(end, messages, last_message, store_timestamp, problem)


def check_records_plain(segment: "mmap | bytes | memoryview", base: int, start: int, limit: int) -> Scan:
    """Find the unbroken run of sound messages at ``start``. Stops, without a verdict, before a record that is not
    clearly sound, and after as many as it likes, but not before the first.
    """
    positions, end = _hop(segment, start - base, limit - base)
    if len(positions) < FEW_RECORDS:
        return _scan_few(segment, base, [*positions, end])
    at = np.array(positions, dtype=np.int64)
    total_size = np.diff(at, append=end)
    body_at, body_length, sound = _check_lengths(segment, at, total_size)
    sound &= _gather(segment, at + PHYSICAL_OFFSET_AT, ">i8") == at + base
    count = _run_length(sound)
    count = _check_bodies(segment, body_at[:count], body_length[:count], _gather(segment, at[:count] + CRC_AT, ">i4"))
    if not count:
        return Scan(end=start)
    last = at[count - 1 : count]
    store_timestamp = _gather(segment, last + STORE_TIMESTAMP_AT + _born_host_extra(segment, last), ">i8")
    return Scan(
        end=base + int(last[0] + total_size[count - 1]),
        messages=count,
        last_message=base + int(last[0]),
        store_timestamp=int(store_timestamp[0]),
    )


def _scan_few(segment: "mmap | bytes | memoryview", base: int, bounds: list[int]) -> Scan:
    """The same for a few messages. If they are sound, each starts at one of these positions and ends at the next."""
    count = 0
    with memoryview(segment) as view:
        for begin, end in pairwise(bounds):
            if not _is_plainly_sound(view, base, begin, end):
                break
            count += 1
    if not count:
        return Scan(end=base + bounds[0])
    last = bounds[count - 1]
    return Scan(base + bounds[count], count, base + last, INT64_AT(segment, last + STORE_TIMESTAMP_AT)[0])


check_records = compiled_or(check_records_plain, "check_records")


def _is_plainly_sound(view: memoryview, base: int, begin: int, end: int) -> bool:
    """Whether the bytes between two positions are a sound message of the usual kind: without IPv6 hosts or a long
    topic.
    """
    _, magic, crc, _, _, _, physical_offset, sys_flag, _ = HEAD_AT(view, begin)
    if magic != layout.MESSAGE_MAGIC_CODE or physical_offset != base + begin or sys_flag & IPV6_FLAGS:
        return False
    body_at = begin + BODY_AT
    topic_at = body_at + INT32_AT(view, body_at - INT32.size)[0]
    if not body_at <= topic_at < end:
        return False
    properties_at = topic_at + 1 + view[topic_at] + INT16.size
    if view[topic_at] > record.MAX_TOPIC_BYTES or properties_at > end:
        return False
    (properties_length,) = INT16_AT(view, properties_at - INT16.size)
    if properties_length < 0 or properties_at + properties_length != end:
        return False
    return topic_at == body_at or crc32(view[body_at:topic_at]) & record.CRC_MASK == crc


Positions = npt.NDArray[np.int64]


def _hop(segment: "mmap | bytes | memoryview", position: int, limit: int) -> tuple[list[int], int]:
    """Where records start if every size is true, and where the last of them ends."""
    positions: list[int] = []
    found = positions.append
    last = limit - MIN_RECORD_BYTES
    bound = position + HOP_LIMIT_RECORDS * MIN_RECORD_BYTES
    while position <= last and position < bound:
        (size,) = INT32_AT(segment, position)
        if size < MIN_RECORD_BYTES or position + size > limit:
            break
        found(position)
        position += size
    return positions, position


def _check_lengths(
    segment: "mmap | bytes | memoryview", at: Positions, total_size: Positions
) -> tuple[Positions, Positions, npt.NDArray[np.bool_]]:
    """For each record: the position and the length of its body, and whether its magic code and lengths are sound.

    A position outside the record is replaced by the record's own position, so that gathering is always safe.
    """
    magic = _gather(segment, at + MAGIC_AT, ">i4")
    is_v2 = magic == layout.MESSAGE_MAGIC_CODE_V2
    sound = is_v2 | (magic == layout.MESSAGE_MAGIC_CODE)
    sys_flag = _gather(segment, at + SYS_FLAG_AT, ">i4")
    v6_hosts = ((sys_flag & layout.BORNHOST_V6_FLAG) != 0).astype(np.int64)
    v6_hosts += (sys_flag & layout.STOREHOSTADDRESS_V6_FLAG) != 0
    body_at = BODY_AT + layout.IPV6_EXTRA_BYTES * v6_hosts
    room = total_size - body_at - (MIN_RECORD_BYTES - BODY_AT) - is_v2  # for body, topic and properties
    sound &= room >= 0
    body_length = _gather(segment, at + np.where(sound, body_at - INT32.size, 0), ">i4")
    sound &= (body_length >= 0) & (body_length <= room)
    topic_length_at = at + np.where(sound, body_at + body_length, 0)
    topic_length = _gather(segment, topic_length_at, "i1")
    if is_v2.any():
        topic_length = np.where(is_v2, _gather(segment, topic_length_at, ">i2"), topic_length)
    sound &= (topic_length >= 0) & (topic_length <= room - body_length)
    properties_length_at = np.where(sound, topic_length_at + 1 + is_v2 + topic_length, at)
    properties_length = _gather(segment, properties_length_at, ">i2")
    sound &= (properties_length >= 0) & (properties_length == room - body_length - topic_length)
    return at + body_at, body_length, sound


def _check_bodies(
    segment: "mmap | bytes | memoryview", body_at: Positions, body_length: Positions, stored_crc: Positions
) -> int:
    """How many of the bodies, from the first, match their CRC. The CRC of an empty body is ignored."""
    if not len(body_at):
        return 0
    with memoryview(segment) as view:
        crcs = [crc32(view[a:b]) for a, b in zip(body_at.tolist(), (body_at + body_length).tolist(), strict=True)]
    computed = np.array(crcs, dtype=np.int64) & record.CRC_MASK
    return _run_length((computed == stored_crc) | (body_length == 0))


def _born_host_extra(segment: "mmap | bytes | memoryview", at: Positions) -> Positions:
    is_v6 = (_gather(segment, at + SYS_FLAG_AT, ">i4") & layout.BORNHOST_V6_FLAG) != 0
    return np.where(is_v6, layout.IPV6_EXTRA_BYTES, 0)


def _gather(segment: "mmap | bytes | memoryview", positions: Positions, kind: str) -> Positions:
    """Gather integers of the numpy type ``kind`` at these positions, aligned or not."""
    width = np.dtype(kind).itemsize
    everywhere: npt.NDArray[Any] = np.ndarray((len(segment) - width + 1,), kind, segment, strides=(1,))
    return cast(Positions, everywhere[positions].astype(np.int64))


def _run_length(sound: npt.NDArray[np.bool_]) -> int:
    """How many values are true before the first false one."""
    return len(sound) if sound.all() else int(np.argmin(sound))


FIRST_SEARCH_BYTES, SEARCH_BYTES = 16 * 1024, 4 * 1024 * 1024
"""How much of a segment one step of a search examines. This limits the memory of the arrays."""
FREE_PROOF_BYTES = 256 * 1024 * 1024
PROOF_BYTES_PER_BYTE = 16
_MAGIC_HEAD = INT32.pack(layout.MESSAGE_MAGIC_CODE)[:3]
assert INT32.pack(layout.MESSAGE_MAGIC_CODE_V2)[:3] == _MAGIC_HEAD


@dataclass(slots=True)
class Effort:
    """What a search for records may spend on bodies whose CRC is wrong.

    A body can be full of false heads of long records. Without a limit each of them would be proved, and the search
    would take hours. ``gave_up`` is true if the limit was reached; a sound record may then have been missed.
    """

    searched_bytes: int = 0
    wasted_bytes: int = 0
    gave_up: bool = False

    def allows(self, size: int) -> bool:
        """Whether a body of ``size`` bytes may still be proved."""
        if self.wasted_bytes + size <= FREE_PROOF_BYTES + PROOF_BYTES_PER_BYTE * self.searched_bytes:
            return True
        self.gave_up = True
        return False


def find_sound(
    segment: "mmap | bytes | memoryview", base: int, start: int, end: int, limit: int, effort: Effort
) -> int | None:
    """The first sound record or blank whose magic code lies between ``start`` and ``end``; None if there is none.

    The search does not follow sizes: it is for bytes where sizes are wrong. ``segment`` holds a whole segment that
    starts at ``base``. All positions are offsets in the log, and ``limit`` is the end of the written bytes. The time is
    proportional to the bytes examined, for any content.
    """
    at, step = start, FIRST_SEARCH_BYTES
    while at < end:
        after, step = min(at + step, end), min(2 * step, SEARCH_BYTES)
        effort.searched_bytes += after - at
        magic_at = _magic_codes(segment, at - base, after - base, limit - base)
        positions: list[int] = _plausible(segment, base, magic_at - MAGIC_AT, limit).tolist()
        for position in positions:
            if _proves_itself(segment, base, position, limit, effort):
                return base + position
        at = after
    return None


def _magic_codes(segment: "mmap | bytes | memoryview", start: int, end: int, limit: int) -> Positions:
    """Where magic codes of any kind start, from ``start`` to before ``end``, as positions in the segment."""
    width = INT32.size
    last = min(end, limit - width + 1)
    if last <= start:
        return np.empty(0, dtype=np.int64)
    data = np.frombuffer(segment, np.uint8, last - start + width - 1, start)
    found = []
    for head in (_MAGIC_HEAD, INT32.pack(layout.BLANK_MAGIC_CODE)[:3]):
        at = np.flatnonzero(data[: last - start] == head[0])
        for number in (1, 2):
            at = at[data[at + number] == head[number]]
        found.append(at)
    return np.sort(np.concatenate(found)).astype(np.int64) + start


def _plausible(segment: "mmap | bytes | memoryview", base: int, at: Positions, limit: int) -> Positions:
    """The positions at which the bytes claim to lie there: by PHYSICALOFFSET of a record, or by the size of a blank."""
    at = at[at >= 0]
    magic = _gather(segment, at + MAGIC_AT, ">i4")
    room = len(segment) - at
    is_blank = (magic == layout.BLANK_MAGIC_CODE) & (_gather(segment, at, ">i4") == room)
    may_hold = ((magic == layout.MESSAGE_MAGIC_CODE) | (magic == layout.MESSAGE_MAGIC_CODE_V2)) & (
        at <= limit - base - MIN_RECORD_BYTES
    )
    own_offset = _gather(segment, np.where(may_hold, at + PHYSICAL_OFFSET_AT, 0), ">i8")
    is_record = may_hold & (own_offset == at + base)
    size = _gather(segment, at, ">i4")
    is_record &= (size >= MIN_RECORD_BYTES) & (size <= limit - base - at)
    at_records = at[is_record]
    sound = np.zeros(len(at), dtype=np.bool_)
    if len(at_records):
        sound[is_record] = _check_lengths(segment, at_records, size[is_record])[2]
    kept: Positions = at[is_blank | sound]
    return kept


def _proves_itself(segment: "mmap | bytes | memoryview", base: int, position: int, limit: int, effort: Effort) -> bool:
    """Whether a plausible position holds a sound record, by the reference rules. A wrong CRC is charged to
    ``effort``.
    """
    with memoryview(segment) as whole, whole[: limit - base] as written:
        size, magic = layout.BLANK_HEADER.unpack_from(written, position)
        if magic != layout.BLANK_MAGIC_CODE and not effort.allows(size):
            return False
        try:
            record.check_record(written, position, base + position, len(whole) - position)
        except record.RecordError:
            effort.wasted_bytes += size
            return False
    return True
