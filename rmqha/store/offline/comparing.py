"""Compares the bytes of two logs. A ``Read`` function reads each: from a mapping, or from files in Spark's workers."""

from collections.abc import Callable

import numpy as np

from rmqha.store.log.stretches import Progress
from rmqha.store.offline.findings import Difference
from rmqha.wire.columns import hop
from rmqha.wire.layout import BLANK_HEADER, BLANK_MAGIC_CODE
from rmqha.wire.record import Buffer

WINDOW_BYTES = 4 << 20
Read = Callable[[int, int], Buffer | None]
"""Reads at least one and at most this many bytes at an offset. None if the log does not hold the offset."""


def compare_range(ours: Read, theirs: Read, start: int, end: int, window_bytes: int, progress: Progress) -> Difference:
    """Compare two logs from ``start`` to ``end``, ``window_bytes`` at a time. Raises what reading raises."""
    found, at = Difference(), start
    while at < end:
        one = ours(at, min(window_bytes, end - at))
        other = theirs(at, len(one)) if one is not None else None
        if one is None or other is None:  # one log ends before ``end``
            return found.then(Difference(at, end - at))
        size = min(len(one), len(other))
        if one[:size] != other[:size]:
            arrays = [np.frombuffer(data, np.uint8, size) for data in (one, other)]
            different = np.flatnonzero(arrays[0] != arrays[1])
            found = found.then(Difference(at + int(different[0]), len(different)))
        at += size
        progress(at)
    return found


def compare_segment(ours: Read, theirs: Read, start: int, end: int, segment_end: int, progress: Progress) -> Difference:
    """Compare a part of one segment, from the start of a record on. Raises what reading raises.

    The bytes after the header of a blank belong to no record and may have any value: Java leaves there what was in its
    buffer (spec/store.md 3.7). They are compared apart.
    """
    found = compare_range(ours, theirs, start, end, WINDOW_BYTES, progress)
    if found.differs_at is None or end != segment_end:
        return found
    blank_at = _blank_start(ours, start, segment_end)
    if blank_at is None:
        return found
    fill_at = blank_at + BLANK_HEADER.size
    if bytes(theirs(blank_at, BLANK_HEADER.size) or b"") != BLANK_HEADER.pack(end - blank_at, BLANK_MAGIC_CODE):
        return found
    found = compare_range(ours, theirs, start, fill_at, WINDOW_BYTES, lambda _: None)
    fill = compare_range(ours, theirs, fill_at, end, WINDOW_BYTES, lambda _: None)
    return found if fill.differs_at is None else found.then(Difference(fills=1))


def _blank_start(read: Read, at: int, segment_end: int) -> int | None:
    """Where the blank of a segment starts, by the sizes of the records from ``at`` on; None if that leads to none."""
    window = WINDOW_BYTES
    while True:
        data = read(at, min(window, segment_end - at))
        if data is None or len(data) < BLANK_HEADER.size:
            return None
        size = hop(data, 0, len(data))[1]
        at += size
        window = WINDOW_BYTES if size else 2 * window  # one record that is longer than the window
        if not size and BLANK_HEADER.unpack_from(data) == (segment_end - at, BLANK_MAGIC_CODE):
            return at
        if not size and len(data) >= segment_end - at:
            return None
