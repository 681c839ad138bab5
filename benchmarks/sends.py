"""`make bench-sends`: taking the sends of a read, by the compiled kernel and by the plain pass (rmqha.wire.sends).

From the bytes of requests to those of the log, of queues, of index keys and of answers; nothing is written. Processor
time a message, the better of some alternating turns.
"""

import time
from itertools import islice
from typing import Any

from benchmarks.store import BODY_SIZES, POOL, TOGETHER, new_place, reads
from rmqha.wire.compiled import KERNEL, implementation
from rmqha.wire.sends import plain

TURNS = 5
READS = POOL // TOGETHER


def microseconds(take: Any, body_bytes: int) -> float:
    """Processor time a message, in µs."""
    place = new_place()
    place.limit, place.timestamp = 1 << 30, 1_700_000_000_000
    all_reads = list(islice(reads(body_bytes), READS))
    start = time.process_time()
    for data in all_reads:
        assert take(data, 0, place).count == TOGETHER, "all of them are ordinary"
    return (time.process_time() - start) / POOL * 1e6


def main() -> None:
    """The table, a line for each size of message."""
    if KERNEL is None:
        raise SystemExit(f"nothing to compare: {implementation()}")
    print(f"{TOGETHER} sends a read, µs of processor time a message")
    print(f"{'message':>10} {'kernel':>8} {'plain':>8} {'ratio':>7}")
    for body_bytes in BODY_SIZES:
        turns = [
            (microseconds(KERNEL.take_sends, body_bytes), microseconds(plain.take, body_bytes)) for _ in range(TURNS)
        ]
        kernel, slow = (min(times) for times in zip(*turns, strict=True))
        print(f"{body_bytes:>8} B {kernel:>8.2f} {slow:>8.2f} {slow / kernel:>7.1f}")


if __name__ == "__main__":
    main()
