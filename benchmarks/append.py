"""`make bench-append`: writing a segment by pwrite against copying into a writable mapping, in one run.

Why writes use pwrite is in ARCHITECTURE.md, "Writes use pwritev": a sparse mapping needs its blocks reserved, or a full
disk kills the process. Both write the same pieces to fresh segments, then flush; the better of three turns counts.
"""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from rmqha.store.log.mappedfile import MappedFile, file_name

WORK = Path(__file__).resolve().parent.parent / ".bench" / "append"
SEGMENT_BYTES = 256 * 1024 * 1024
MIB = 1024 * 1024


def by_pwrite(path: Path, piece: bytes) -> float:
    """Processor seconds to fill the segment, without the flush."""
    mapped_file = MappedFile.create(path, SEGMENT_BYTES)
    start = time.process_time()
    for position in range(0, SEGMENT_BYTES - len(piece) + 1, len(piece)):
        mapped_file.write(position, piece)
    seconds = time.process_time() - start
    mapped_file.sync()
    mapped_file.close()
    return seconds


def by_mapping(path: Path, piece: bytes) -> float:
    """Processor seconds to reserve the segment's blocks and fill it, without the flush."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    start = time.process_time()
    os.posix_fallocate(fd, 0, SEGMENT_BYTES)
    with mmap.mmap(fd, SEGMENT_BYTES) as mapping:
        for position in range(0, SEGMENT_BYTES - len(piece) + 1, len(piece)):
            mapping[position : position + len(piece)] = piece
        seconds = time.process_time() - start
    os.fdatasync(fd)
    os.close(fd)
    return seconds


def best(write: Callable[[Path, bytes], float], piece: bytes) -> float:
    """MiB for each second of processor time, the best of three turns."""
    seconds = []
    for _ in range(3):
        path = WORK / file_name(0)
        seconds.append(write(path, piece))
        path.unlink()
    return SEGMENT_BYTES / min(seconds) / MIB


def main() -> None:
    """The table, a line for each size of piece."""
    WORK.mkdir(parents=True, exist_ok=True)
    print("MiB for each second of processor time")
    print(f"{'piece':>10} {'pwrite MiB/s':>13} {'mapping MiB/s':>14} {'ratio':>7}")
    for piece_bytes in (256, 1024, 32 * 1024, 1024 * 1024):
        piece = os.urandom(piece_bytes)
        written, mapped = best(by_pwrite, piece), best(by_mapping, piece)
        print(f"{piece_bytes:>8} B {written:>13.0f} {mapped:>14.0f} {written / mapped:>7.2f}")
    WORK.rmdir()


if __name__ == "__main__":
    main()
