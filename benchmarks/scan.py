"""`make bench-scan`: proving records by the compiled kernel, many at once in plain Python, and one by one.

These are ``check_records`` and ``check_records_plain`` of ``rmqha.wire.scan``, and the reference ``rmqha.wire.record``.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from rmqha.testing.records import make_segments
from rmqha.wire import scan
from rmqha.wire.compiled import KERNEL, implementation
from rmqha.wire.record import Blank, check_record

SEGMENT_BYTES = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
MIB = 1024 * 1024


def many_at_once(check: Any, segment: bytes, end: int) -> None:
    """As a slave does: after each read, what has come."""
    position, limit = 0, 0
    with patch.object(scan, "check_records", check):
        while position < end:
            limit = min(limit + READ_BYTES, end)
            found = scan.scan_records(segment, 0, position, limit)
            assert found.problem is None, found.problem
            position = found.end


def one_by_one(segment: bytes, end: int) -> None:
    """The reference."""
    view, position = memoryview(segment), 0
    while position < end:
        record = check_record(view, position, position, len(segment) - position)
        position += record.size if isinstance(record, Blank) else record.total_size


def rate(prove: Callable[[bytes, int], None], segment: bytes) -> float:
    """MiB for each second of processor time, the better of two turns: nothing here waits."""
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        prove(segment, len(segment))
        best = min(best, time.process_time() - start)
    return len(segment) / best / MIB


def main() -> None:
    """The table, a line for each size of message."""
    print(f"MiB for each second of processor time; {implementation()}")
    print(f"{'message':>10} {'kernel MiB/s':>13} {'at once MiB/s':>14} {'one by one MiB/s':>17} {'ratio':>7}")
    for body_bytes in (100, 1024, 64 * 1024):
        _, segment = next(make_segments(2 * SEGMENT_BYTES, body_bytes, SEGMENT_BYTES))
        compiled = "-" if KERNEL is None else f"{rate(partial(many_at_once, KERNEL.check_records), segment):.0f}"
        fast, slow = rate(partial(many_at_once, scan.check_records_plain), segment), rate(one_by_one, segment)
        print(f"{body_bytes:>8} B {compiled:>13} {fast:>14.0f} {slow:>17.0f} {fast / slow:>7.1f}")


if __name__ == "__main__":
    main()
