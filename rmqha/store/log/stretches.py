"""Where a log is damaged: stretches that are no records, although sound records follow them (spec/store.md 9).

Proving a log goes from size to size, and so ends at the first byte that rotted. From there this module searches for the
next record that proves itself at its own place, and goes on after it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rmqha.wire.scan import MAGIC_AT, Effort, Scan, find_sound

FIRST_WINDOW_BYTES = 64 * 1024
WINDOW_BYTES = 16 * 1024 * 1024
"""How much is proved between two looks at the progress."""
MOST_STRETCHES = 1000
"""How many bad stretches are remembered one by one; more are counted."""

Progress = Callable[[int], None]
"""Told of each offset that has been reached."""


class Surveyed(Protocol):
    """What a survey reads: a log, or bytes that were once part of one. All raise OSError."""

    @property
    def segment_size(self) -> int:
        """Bytes of every segment."""

    def scan(self, start: int, limit: int | None = None) -> Scan:
        """Prove the records from ``start`` on, of the bytes before ``limit``."""

    def segment_from(self, offset: int) -> tuple[int, memoryview]:
        """The bytes of the segment that holds ``offset``, up to its end, and the offset at which they begin."""

    def data_ranges(self, start: int, limit: int) -> Iterator[tuple[int, int]]:
        """Ranges from ``start`` to before ``limit`` that are no holes, none across segments."""


@dataclass(frozen=True, slots=True)
class BadStretch:
    """Bytes from ``start`` to before ``end`` that are no records. What begins at ``end`` is sound.

    ``problem`` says why the bytes at ``start`` are no record. ``messages_after`` and ``bytes_after`` are sound, and
    reach up to the next bad stretch. The bytes from ``anchor`` to ``start`` are sound: the last message before the
    stretch, if there is one.
    """

    start: int
    end: int
    problem: str
    messages_after: int
    bytes_after: int
    anchor: int

    @property
    def size(self) -> int:
        """Bytes of the stretch."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Survey:
    """What a look at a log found, from ``start``, where a record begins, on. All but counts are offsets in the log.

    ``first`` is the scan up to the first byte that is no record. ``end`` follows the last sound message, and a blank
    right after it; it is ``first.end`` if no message follows that. ``stretches`` are the first bad ones before ``end``,
    ``stretch_count`` is the number of all. ``problem`` says why the bytes at ``end`` are no record. ``unsure`` is true
    if a search had to give up (see ``Effort``): sound records may lie where none was found. ``anchor`` is as that of a
    stretch, for the bytes at ``end``.
    """

    start: int
    first: Scan
    end: int
    messages: int
    stretches: tuple[BadStretch, ...] = ()
    stretch_count: int = 0
    bad_bytes: int = 0
    problem: str | None = None
    unsure: bool = False
    anchor: int = 0

    @property
    def messages_after(self) -> int:
        """Sound messages that follow the first bad stretch."""
        return self.messages - self.first.messages

    @property
    def bytes_after(self) -> int:
        """Sound bytes that follow the first bad stretch."""
        return self.end - self.first.end - self.bad_bytes


def prove(log: Surveyed, start: int, limit: int, progress: Progress) -> Scan:
    """Prove the records from ``start``, where one begins, to ``limit``, telling of the progress. Raises OSError.

    The first looks are at few bytes: where bad stretches are many, each costs no more than the sound bytes before it.
    """
    found, window = Scan(end=start), FIRST_WINDOW_BYTES
    while found.end < limit and found.problem is None:
        boundary = min(limit, found.end - found.end % log.segment_size + log.segment_size)
        step_end = min(found.end + window, boundary)
        step = log.scan(found.end, step_end)
        if step.end > found.end:
            window = min(2 * window, WINDOW_BYTES)
        elif step.problem is None and step_end < boundary:  # one record that is longer than the window
            window *= 2
            continue
        else:
            return found.then(step)
        found = found.then(step)
        progress(found.end)
    return found


def next_sound(
    log: Surveyed, start: int, limit: int, effort: Effort, busy: Callable[[], None] = lambda: None
) -> int | None:
    """The first place from ``start`` on where a record or a blank proves itself; None if there is none.

    Looks at all segments up to ``limit``, but not at the holes of sparse files. ``busy`` is called now and then. Raises
    OSError.
    """
    for low, high in log.data_ranges(start, limit):
        base, segment = log.segment_from(low)
        written_end = min(base + len(segment), limit)
        at, end = max(low, start + MAGIC_AT, base + MAGIC_AT), min(high, written_end)
        while at < end:
            busy()
            found = find_sound(segment, base, at, min(at + WINDOW_BYTES, end), written_end, effort)
            if found is not None:
                return found
            at += WINDOW_BYTES
    return None


class _Notes:
    """The bad stretches as they are found. One that only blanks follow is not settled yet."""

    def __init__(self) -> None:
        self.stretches: list[BadStretch] = []
        self.count = self.bad_bytes = 0
        self._open: list[BadStretch] = []
        self._open_count = self._open_bytes = 0

    def add(self, stretch: BadStretch) -> None:
        """Note a stretch; messages after it settle those before it."""
        if len(self.stretches) + len(self._open) < MOST_STRETCHES:
            self._open.append(stretch)
        self._open_count += 1
        self._open_bytes += stretch.size
        if stretch.messages_after:
            self.stretches += self._open
            self.count += self._open_count
            self.bad_bytes += self._open_bytes
            self._open, self._open_count, self._open_bytes = [], 0, 0


def survey(log: Surveyed, start: int, limit: int, progress: Progress = lambda _: None) -> Survey:
    """Find all bad stretches from ``start``, where a record begins, to ``limit``. Changes nothing. Raises OSError.

    Takes time in proportion to the bytes there are.
    """
    first = last = prove(log, start, limit, progress)
    notes, effort = _Notes(), Effort()
    end, messages, end_problem = first.end, first.messages, first.problem
    anchor = end_anchor = _anchor(first, start)
    while last.end < limit:
        at = next_sound(log, last.end + 1, limit, effort, partial(progress, last.end))
        if at is None:
            break
        run = prove(log, at, limit, progress)
        problem = last.problem or "the record is not whole"
        notes.add(BadStretch(last.end, at, problem, run.messages, run.end - at, anchor))
        anchor = _anchor(run, at)
        if run.messages:
            end, messages, end_problem, end_anchor = run.end, messages + run.messages, run.problem, anchor
        last = run
    return Survey(
        start,
        first,
        end,
        messages,
        tuple(notes.stretches),
        notes.count,
        notes.bad_bytes,
        end_problem or "the record is not whole",
        effort.gave_up,
        end_anchor,
    )


def _anchor(run: Scan, start: int) -> int:
    """Where the last message of a sound run that begins at ``start`` begins, or the run if it has none."""
    return start if run.last_message is None else run.last_message
