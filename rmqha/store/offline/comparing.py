"""Compares the bytes of two logs. A ``Read`` function reads each: from a mapping, or from files in Spark's workers."""

from collections.abc import Callable

import numpy as np

from rmqha.store.offline.findings import Difference
from rmqha.wire.layout import BLANK_HEADER, BLANK_MAGIC_CODE
from rmqha.wire.record import Buffer

Read = Callable[[int, int], Buffer | None]
"""Reads at least one and at most this many bytes at an offset. None if the log does not hold the offset."""


def compare_range(
    ours: Read, theirs: Read, start: int, end: int, window_bytes: int, progress: Callable[[int], None]
) -> Difference:
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


def is_fill(ours: Read, theirs: Read, record_at: int, segment_end: int) -> bool:
    """Whether both logs have the same blank at ``record_at``, up to the end of the segment. Raises what reading raises.

    The bytes after its header may have any value: Java leaves there what was in its buffer (spec/store.md 3.7).
    """
    heads = [read(record_at, BLANK_HEADER.size) for read in (ours, theirs)]
    wanted = BLANK_HEADER.pack(segment_end - record_at, BLANK_MAGIC_CODE)
    return all(head is not None and bytes(head) == wanted for head in heads)
