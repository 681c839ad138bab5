"""Finds where two logs part, by comparing few of their bytes (spec/store.md 3).

Up to there both have the same records; from there on they are different logs, or one of them ends. Offsets are the same
in both, so that equal records lie at equal places.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.offline.target import proved_records

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
    if their log ends there, false if a record differs.
    """

    offset: int
    our_end: int
    is_theirs_shorter: bool


async def find_fork(
    log: CommitLog, our_end: int, their_min: int, their_end: int | None, compare: Compare, run: Run = run_here
) -> Fork:
    """Where the log, whose sound records end at ``our_end``, parts from the one that ``compare`` reads.

    ``run`` runs what reads a whole segment.

    ``their_min`` is the first offset that the other log has, or the start of its last segment if ``their_end`` is None
    for not known. Raises NothingInCommon, StoreError if our log is damaged, what ``compare`` raises, OSError.
    """
    if our_end == log.min_offset:
        return Fork(our_end, our_end, is_theirs_shorter=False)
    if their_end is None:
        found = await compare(their_min, our_end) if their_min < our_end else Compared(None, our_end)
        if found.differs_at is None and their_min < found.end and their_min < our_end:
            return Fork(found.end, our_end, is_theirs_shorter=found.end < our_end)
        their_end = found.end if found.differs_at is None else found.differs_at + 1  # an empty segment proves nothing
        return (await _search(log, our_end, log.min_offset, their_end, compare, run))[0]
    while True:
        fork, searched_from = await _search(log, our_end, their_min, their_end, compare, run)
        proved_from = max(log.min_offset, their_min, fork.offset - PROOF_BYTES)
        proof = Compared(None, 0)
        if proved_from < searched_from:
            proof = await compare(proved_from, searched_from)
        if proof.differs_at is None:
            return fork
        their_end = proof.differs_at + 1  # two masters that both ran may have written the same delayed messages again


async def _search(
    log: CommitLog, our_end: int, their_min: int, their_end: int, compare: Compare, run: Run
) -> tuple[Fork, int]:
    """The fork, and the start of the segment from which on all was compared. Raises as ``find_fork``."""
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
    return fork, bounds[0]


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


def _bounds(log: CommitLog, start: int, limit: int, our_end: int) -> list[int]:
    """Where records and the blank begin in the segment that begins at ``start``, and where the last of them ends.

    If ``limit`` is in a later segment, the same for those between, up to the limit. Raises StoreError, OSError.
    """
    found, at = {start}, start
    while True:
        segment_end = at - at % log.segment_size + log.segment_size
        found.add(min(our_end, segment_end))
        for records in proved_records(log, at, min(our_end, segment_end)):
            found.update([*records.physical_offset.tolist(), records.end])
            if at > start and records.end >= limit:
                break
        if segment_end >= min(limit, our_end):
            return sorted(found)
        at = segment_end


async def _proved(bounds: list[int], found: Compared, our_end: int, compare: Compare) -> Fork:
    """The record at which a comparison ended, and the proof that all before it is equal for some way."""
    while True:
        fork = _bound_before(bounds, found.end if found.differs_at is None else found.differs_at)
        proof = await compare(_bound_before(bounds, max(bounds[0], fork - PROOF_BYTES)), fork)
        if proof.differs_at is None and proof.end >= fork:
            return Fork(fork, our_end, is_theirs_shorter=found.differs_at is None and fork < our_end)
        found = proof  # an earlier record differs: equal bytes after it prove nothing


def _bound_before(bounds: list[int], offset: int) -> int:
    return bounds[max(0, bisect_right(bounds, offset) - 1)]
