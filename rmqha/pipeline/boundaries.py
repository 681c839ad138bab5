"""Where a segment can be split: offsets inside it at which records start, without reading all sizes before them.

A consume queue names such offsets. Without a queue, bytes that look like the start of a record may be the content of a
body, placed there by a producer who knows where the body will lie. But if every plausible start, in as many bytes as
the longest record has, leads from size to size to the same offset, then a record starts there: one of those starts was
real. Only a body longer than ``MAX_RECORD_BYTES`` can still mislead. Reading detects that, because a split must end
where the next one starts. ``cut_by_hop`` reads all sizes instead and cannot be misled.
"""

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np

from rmqha.pipeline.segments import open_segment, read_records
from rmqha.store.derived.consumequeue import ConsumeQueue, Unit
from rmqha.store.errors import StoreError
from rmqha.store.log.records import Skipped
from rmqha.store.log.splits import RECORD_START_BYTES, Segment, Split, plausible_starts

log = logging.getLogger(__name__)

HOP_BYTES = 1 << 22
MAX_RECORD_BYTES = (4 << 20) + (128 << 10)
"""The longest record of a broker with the default maxMessageSize, 4 MiB, with the longest topic and properties."""
QUEUES_ASKED = 4


class BoundaryQueues:
    """The longest queues of a store, if there are any. They are opened when they are first needed. A context
    manager.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queues: list[ConsumeQueue] | None = None

    def __enter__(self) -> "BoundaryQueues":
        return self

    def __exit__(self, *_: object) -> None:
        for queue in self._queues or ():
            queue.close()

    def first_units(self, offset: int) -> Iterator[Unit]:
        """For each queue, the first unit of a message at or after ``offset`` of the log, as long as units ascend."""
        if self._queues is None:
            self._queues = list(_open_longest(self._folder))
        for queue in self._queues:
            try:
                unit = _first_unit(queue, offset)
            except (OSError, ValueError) as error:  # the node deletes expired files
                log.info("consume queue %s/%d gives no boundary: %s", queue.topic, queue.queue_id, error)
                continue
            if unit is not None:
                yield unit


def _open_longest(folder: Path) -> Iterator[ConsumeQueue]:
    allocated: dict[Path, int] = defaultdict(int)
    sizes: dict[Path, int] = {}
    for path in folder.glob("*/[0-9]*/[0-9]*"):
        try:
            status = path.stat()
        except OSError:  # it was deleted meanwhile
            continue
        allocated[path.parent] += status.st_blocks  # a queue's last file has its full size from the start
        sizes[path.parent] = max(status.st_size, sizes.get(path.parent, 0))
    for queue_folder in sorted(allocated, key=lambda one: -allocated[one])[:QUEUES_ASKED]:
        try:
            number = int(queue_folder.name)
            queue = ConsumeQueue(queue_folder, queue_folder.parent.name, number, sizes[queue_folder], owned=False)
            queue.find_end()
        except (StoreError, OSError, ValueError, ZeroDivisionError) as error:
            log.info("%s gives no boundaries: %s", queue_folder, error)
            continue
        yield queue


def _first_unit(queue: ConsumeQueue, offset: int) -> Unit | None:
    def place(number: int) -> int:
        unit = queue.unit(number)
        return -1 if unit is None or unit.is_blank else unit.physical_offset

    numbers = range(queue.min_offset, queue.max_offset)
    found = bisect_left(numbers, offset, key=place)
    return queue.unit(numbers[found]) if found < len(numbers) else None


def cut_by_signs(piece: Split, split_bytes: int, queues: BoundaryQueues) -> list[Split]:
    """Splits of about ``split_bytes``, longer if no record start is known there. Raises DataLossError, OSError.

    They may be wrong if a body is longer than ``MAX_RECORD_BYTES`` or the log is corrupt. Reading detects it.
    """
    starts = [piece.start]
    target = piece.start + split_bytes
    with open_segment(piece.path, piece.base) as segment:
        while target < piece.end:
            found = _start_by_queues(segment, piece, target, target + split_bytes, queues)
            if found is None:
                found = _start_by_chains(segment, piece, target, starts[-1])
            if found is not None:
                starts.append(target := found)
            target += split_bytes
    return _between(piece, starts)


def _start_by_queues(segment: Segment, piece: Split, target: int, limit: int, queues: BoundaryQueues) -> int | None:
    """The nearest message from ``target`` to before ``limit`` that a queue names, if there is one."""
    named = [
        unit.physical_offset
        for unit in queues.first_units(target)
        if target <= unit.physical_offset < min(limit, piece.end)
        and _size_at(segment, unit.physical_offset) == unit.size <= piece.end - unit.physical_offset
    ]
    return min(named, default=None)


def start_before(piece: Split) -> int:
    """A record start near the end of ``piece``, which starts with a record. Raises DataLossError, OSError."""
    target = piece.end - MAX_RECORD_BYTES
    if target <= piece.start:
        return piece.start
    with open_segment(piece.path, piece.base) as segment:
        found = _start_by_chains(segment, piece, target, piece.start)
    return piece.start if found is None else found


def _start_by_chains(segment: Segment, piece: Split, target: int, known: int) -> int | None:
    """The first offset at or after ``target`` to which every plausible start leads. ``known`` is the start of a
    record.
    """
    low = max(known, target - MAX_RECORD_BYTES)
    starts, sizes = plausible_starts(segment.read(low, target - low + RECORD_START_BYTES), low)
    size_at = dict(zip(starts.tolist(), sizes.tolist(), strict=True))
    leading = [low] if low == known else np.setdiff1d(starts, starts + sizes).tolist()
    heapify(leading)
    while leading:
        at: int = heappop(leading)
        while leading and leading[0] == at:
            heappop(leading)
        size = size_at.get(at) if at <= target else _size_at(segment, at)
        if size is None or at + size > piece.end:  # leads nowhere: not a record, or the last one of this file
            continue
        if at >= target and not leading:
            return at
        heappush(leading, at + size)
    return None


def _size_at(segment: Segment, offset: int) -> int | None:
    """The size of what looks like the start of a record at this offset, or None."""
    starts, sizes = plausible_starts(segment.read(offset, RECORD_START_BYTES), offset)
    return int(sizes[0]) if len(starts) else None


def cut_by_hop(piece: Split, split_bytes: int, skipped: Skipped | None) -> list[Split]:
    """Splits of about ``split_bytes``, found by the sizes of all records. Raises StoreError, OSError."""
    starts = [piece.start]
    if piece.size > split_bytes:
        for records in read_records(piece, HOP_BYTES, skipped=skipped):
            offsets = records.physical_offset
            while (number := int(np.searchsorted(offsets, starts[-1] + split_bytes))) < len(offsets):
                starts.append(int(offsets[number]))
    return _between(piece, starts)


def _between(piece: Split, starts: list[int]) -> list[Split]:
    ends = [*starts[1:], piece.end]
    return [replace(piece, start=start, end=end) for start, end in zip(starts, ends, strict=True)]
