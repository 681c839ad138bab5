"""Finds where two logs part, by comparing few of their bytes (spec/store.md 3).

Up to there both have the same records; from there on they are different logs, or one of them ends. Offsets are the same
in both, so that equal records lie at equal places.
"""

from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.provedrecords import proved_records

PROBE_BYTES = 4096
"""How much is compared at a place: more than a record's header, which has its time and its queue offset."""
STREAM_BYTES = 1 << 20
"""Places nearer to each other than this are not probed: all between them is compared."""
PROOF_BYTES = 16 << 20
"""How much before the found place is compared again, without gaps."""


class Compared(NamedTuple):
    """``end`` is how far the bytes were compared, ``differs_at`` the first byte that differs, or None."""

    differs_at: int | None
    end: int


Compare = Callable[[int, int], Awaitable[Compared]]
"""Compares our bytes from an offset to before another one with theirs. It ends early where theirs end."""


Found = TypeVar("Found")


class Run(Protocol):
    """Runs a function that takes long, perhaps in a thread."""

    def __call__(self, function: Callable[[], Found], /) -> Awaitable[Found]: ...


async def run_here(function: Callable[[], Found], /) -> Found:
    """Run it at once."""
    return function()


class NothingInCommon(StoreError):
    """No record of both logs is the same: they are not two copies of one log."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Where our log and theirs part.

    ``offset`` follows the last record that both have. ``our_end`` is the end of our log. ``is_theirs_shorter`` is true
    if their log ends there, false if a record differs. All bytes from ``proved_from`` to ``offset`` were compared.
    """

    offset: int
    our_end: int
    is_theirs_shorter: bool
    proved_from: int


@dataclass(frozen=True, slots=True)
class OtherLog:
    """The log of another node, which ``compare`` reads.

    ``min_offset`` is the first offset that it has, or the start of its last segment if ``end`` is None for not known.
    Then ``compare`` may be asked for earlier bytes, and ends at its start if they are deleted.
    """

    min_offset: int
    end: int | None
    compare: Compare


async def find_fork(
    log: CommitLog,
    our_end: int,
    theirs: OtherLog,
    run: Run = run_here,
    doubted_from: int | None = None,
) -> Fork:
    """Where the log, whose sound records end at ``our_end``, parts from another one.

    ``run`` runs what reads a whole segment. From ``doubted_from`` on all is compared: there our log may have other
    bytes even before equal records, for example because a disk had no power before they were flushed.

    Raises NothingInCommon, StoreError if our log is damaged, what ``theirs.compare`` raises, OSError.
    """
    their_min, their_end, compare = theirs.min_offset, theirs.end, theirs.compare
    if our_end == log.min_offset:
        return Fork(our_end, our_end, is_theirs_shorter=False, proved_from=our_end)
    fork: Fork | None = None
    if their_end is None:
        found = await compare(their_min, our_end) if their_min < our_end else Compared(None, our_end)
        if found.differs_at is None and their_min < found.end and their_min < our_end:
            fork = Fork(found.end, our_end, is_theirs_shorter=found.end < our_end, proved_from=their_min)
        their_end = found.end if found.differs_at is None else found.differs_at + 1  # an empty segment proves nothing
        their_min = log.min_offset
    while True:
        if fork is None:
            fork = await _search(log, our_end, their_min, their_end, compare, run)
        wanted_from = (
            fork.offset - PROOF_BYTES if doubted_from is None else min(doubted_from, fork.offset - PROOF_BYTES)
        )
        proved_from, differs_at = await _prove(log, max(log.min_offset, their_min, wanted_from), fork, compare)
        if differs_at is None:
            return replace(fork, proved_from=proved_from)
        fork, their_end = None, differs_at + 1  # the same delayed messages may be written again by two masters


async def _prove(log: CommitLog, start: int, fork: Fork, compare: Compare) -> tuple[int, int | None]:
    """Compare what comes before the proved part of the fork, from ``start`` on.

    If they have deleted that, it starts with the first segment that they have. Returns from where on all is compared,
    and the first byte that differs, or None.
    """
    for place in [start, *[base for base in log.segment_bases if base > start]]:
        if place >= fork.proved_from:
            break
        proof = await compare(place, fork.proved_from)
        if proof.differs_at is not None or proof.end >= fork.proved_from:
            return place, proof.differs_at
    return fork.proved_from, None


async def _search(log: CommitLog, our_end: int, their_min: int, their_end: int, compare: Compare, run: Run) -> Fork:
    """The fork, of which at least the records in its last segment are proved. Raises as ``find_fork``."""
    top = min(our_end, their_end)
    places = [base for base in log.segment_bases if max(log.min_offset, their_min) <= base < top]
    if not places:
        raise NothingInCommon(
            f"our log is {log.min_offset} to {our_end} and the other one {their_min} to {their_end}: no segment can be "
            "compared"
        )

    async def is_equal(at: int) -> bool:
        return (await compare(at, min(at + PROBE_BYTES, top))).differs_at is None

    equal, different = await _last_equal(places, is_equal)
    limit = min(top, places[different] + PROBE_BYTES if different < len(places) else top)
    bounds = await run(partial(_bounds, log, places[max(0, equal)], limit, our_end))
    low, high = 0, len(bounds)
    while high - low > 1 and (bounds[high] if high < len(bounds) else limit) - bounds[low] > STREAM_BYTES:
        middle = (low + high) // 2
        if bounds[middle] < top and await is_equal(bounds[middle]):
            low = middle
        else:
            high = middle
    if high < len(bounds):
        limit = min(limit, bounds[high] + PROBE_BYTES)
    fork = await _proved(bounds, await compare(bounds[low], limit), our_end, compare)
    if equal < 0 and fork.offset == places[0]:
        raise NothingInCommon(f"already the records at {places[0]} differ: these are not two copies of one log")
    return fork


async def _last_equal(places: list[int], is_equal: Callable[[int], Awaitable[bool]]) -> tuple[int, int]:
    """The last of the places that is equal, -1 for none, and the next one. Goes back from the end, ever faster."""
    different, at, step = len(places), len(places) - 1, 1
    while not await is_equal(places[at]):
        different = at
        if at == 0:
            return -1, 0
        at = max(0, at - step)
        step *= 2
    equal = at
    while different - equal > 1:
        middle = (equal + different) // 2
        if await is_equal(places[middle]):
            equal = middle
        else:
            different = middle
    return equal, different


def _bounds(log: CommitLog, start: int, limit: int, our_end: int) -> "array[int]":
    """Where records and the blank begin in the segment that begins at ``start``, and where the last of them ends.

    If ``limit`` is in a later segment, the same for those between, up to the limit. Each offset is there once, and they
    ascend. Raises StoreError, OSError.
    """
    at, edges, found = start, [start], []
    while True:
        segment_end = at - at % log.segment_size + log.segment_size
        edges.append(min(our_end, segment_end))
        for records in proved_records(log, at, min(our_end, segment_end)):
            found.append(records.physical_offset)
            edges.append(records.end)
            if at > start and records.end >= limit:
                break
        if segment_end >= min(limit, our_end):
            break
        at = segment_end
    offsets = np.sort(np.concatenate([np.array(edges, dtype=np.int64), *found]))
    return array("q", offsets[np.diff(offsets, prepend=-1) > 0].astype(np.int64).tobytes())


async def _proved(bounds: Sequence[int], found: Compared, our_end: int, compare: Compare) -> Fork:
    """The record at which a comparison ended, and the proof that all before it is equal for some way."""
    while True:
        fork = _bound_before(bounds, found.end if found.differs_at is None else found.differs_at)
        proved_from = _bound_before(bounds, max(bounds[0], fork - PROOF_BYTES))
        proof = await compare(proved_from, fork)
        if proof.differs_at is None and proof.end >= fork:
            return Fork(fork, our_end, found.differs_at is None and fork < our_end, proved_from)
        found = proof  # an earlier record differs: equal bytes after it prove nothing


def _bound_before(bounds: Sequence[int], offset: int) -> int:
    return bounds[max(0, bisect_right(bounds, offset) - 1)]
