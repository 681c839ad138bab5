"""`make bench-scan`: proving records many at once (rmqha.wire.scan) against one by one (rmqha.wire.record)."""

import time
from collections.abc import Callable

from rmqha.testing.records import make_segments
from rmqha.wire.record import Blank, check_record
from rmqha.wire.scan import scan_records

SEGMENT_BYTES = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
MIB = 1024 * 1024


def many_at_once(segment: bytes, end: int) -> None:
    """As a slave does: after each read, what has come."""
    position, limit = 0, 0
    while position < end:
        limit = min(limit + READ_BYTES, end)
        found = scan_records(segment, 0, position, limit)
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
    print("MiB for each second of processor time")
    print(f"{'message':>10} {'at once MiB/s':>14} {'one by one MiB/s':>17} {'ratio':>7}")
    for body_bytes in (100, 1024, 64 * 1024):
        _, segment = next(make_segments(2 * SEGMENT_BYTES, body_bytes, SEGMENT_BYTES))
        fast, slow = rate(many_at_once, segment), rate(one_by_one, segment)
        print(f"{body_bytes:>8} B {fast:>14.0f} {slow:>17.0f} {fast / slow:>7.1f}")


if __name__ == "__main__":
    main()
