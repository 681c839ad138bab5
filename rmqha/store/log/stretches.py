"""Finds the damaged parts of a log: bytes that are not records, with sound records after them (spec/store.md 9).

Verifying a log follows the sizes of its records, so it ends at the first damaged one. From there this module searches
for the next record that is valid and contains its own offset, and continues after it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rmqha.wire.scan import MAGIC_AT, Effort, Scan, find_sound

FIRST_WINDOW_BYTES = 64 * 1024
WINDOW_BYTES = 16 * 1024 * 1024
"""How many bytes are verified between two calls of ``progress``."""
MAX_STRETCHES = 1000
"""How many bad stretches are remembered one by one. Further ones are only counted."""

Progress = Callable[[int], None]
"""Called with each offset that the work has reached."""


class Surveyed(Protocol):
    """What a survey reads: a log, or bytes that were once part of one. All raise OSError."""

    @property
    def segment_size(self) -> int:
        """The size of every segment in bytes."""

    def scan(self, start: int, limit: int | None = None) -> Scan:
        """Verify the records from ``start`` to ``limit``."""

    def segment_from(self, offset: int) -> tuple[int, memoryview]:
        """The start offset of the segment that holds ``offset``, and the segment's bytes to its end."""

    def data_ranges(self, start: int, limit: int) -> Iterator[tuple[int, int]]:
        """Ranges from ``start`` to before ``limit`` that are not holes of a sparse file; each is in one segment."""


@dataclass(frozen=True, slots=True)
class BadStretch:
    """Bytes from ``start`` to before ``end`` that are not records. A sound record or blank starts at ``end``.

    ``problem`` says why the bytes at ``start`` are not a record. ``messages_after`` and ``bytes_after`` count what is
    sound up to the next bad stretch. The bytes from ``anchor`` to ``start`` are sound: they are the last message before
    the stretch, if there is one.
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
    """What a survey of a log found, from ``start`` on, where a record starts. Offsets are log offsets.

    ``first`` is the scan up to the first byte that is not a record. ``end`` follows the last sound message and the
    blank after it, if there is one; it is ``first.end`` if no message follows that. ``stretches`` are the bad stretches
    before ``end``, up to MAX_STRETCHES; ``stretch_count`` counts all of them. ``problem`` says why the bytes at ``end``
    are not a record. ``unsure`` is true if a search had to give up (see ``Effort``), so that sound records may have
    been missed. ``anchor`` is like that of a stretch, for the bytes at ``end``.
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
    """Verify the records from ``start``, where one starts, to ``limit``, and report the progress. Raises OSError.

    The first steps are small. So with many bad stretches, each costs no more than the sound bytes before it.
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
    """The first offset from ``start`` on where a valid record or blank starts; None if there is none.

    It searches all segments up to ``limit``, except the holes of sparse files. It calls ``busy`` regularly. Raises
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
    """Collects the bad stretches. A stretch counts only after sound messages have been found after it."""

    def __init__(self) -> None:
        self.stretches: list[BadStretch] = []
        self.count = self.bad_bytes = 0
        self._open: list[BadStretch] = []
        self._open_count = self._open_bytes = 0

    def add(self, stretch: BadStretch) -> None:
        """Add a stretch. If messages follow it, the stretches before it count too."""
        if len(self.stretches) + len(self._open) < MAX_STRETCHES:
            self._open.append(stretch)
        self._open_count += 1
        self._open_bytes += stretch.size
        if stretch.messages_after:
            self.stretches += self._open
            self.count += self._open_count
            self.bad_bytes += self._open_bytes
            self._open, self._open_count, self._open_bytes = [], 0, 0


def survey(log: Surveyed, start: int, limit: int, progress: Progress = lambda _: None) -> Survey:
    """Find all bad stretches from ``start``, where a record starts, to ``limit``. Changes nothing. Raises OSError.

    The time is proportional to the number of bytes.
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
        problem = last.problem or "the record is not complete"
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
        end_problem or "the record is not complete",
        effort.gave_up,
        end_anchor,
    )


def _anchor(run: Scan, start: int) -> int:
    """The start of the last message of a sound run that starts at ``start``; ``start`` if it has no message."""
    return start if run.last_message is None else run.last_message
