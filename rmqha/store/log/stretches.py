"""Finds the damaged parts of a log: bytes that are not records, with sound records after them (spec/store.md 9).

Verifying a log follows the sizes of its records, so it ends at the first damaged one. From there this module searches
for the next record that is valid and contains its own offset, and continues after it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from rmqha.wire.layout import MAGIC_AT
from rmqha.wire.scan import Effort, find_sound
from rmqha.wire.scanned import Scan

FIRST_WINDOW_BYTES = 64 * 1024
WINDOW_BYTES = 16 * 1024 * 1024
"""How many bytes are verified between two calls of ``progress``."""
MAX_STRETCHES = 1000
"""How many bad stretches are remembered one by one. Further ones are only counted."""
NOT_WHOLE = "the record is not complete"
"""What is wrong with a record that needs more bytes than there are."""

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
        """The bytes of the segment that holds ``offset``, up to its end, after the offset where they start."""

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


@dataclass(frozen=True, slots=True)
class Run:
    """Sound records and blanks from ``start`` on, without a gap. ``found`` says where they end, and why."""

    start: int
    found: Scan

    @property
    def anchor(self) -> int:
        """Where the last message of the run starts; the start of the run if it has no message."""
        return self.start if self.found.last_message is None else self.found.last_message


@dataclass(frozen=True, slots=True)
class FurtherRuns:
    """Runs that are only counted. The last of them ends at ``end``, and ``problem`` says why; see ``Run.anchor``."""

    stretch_count: int
    bad_bytes: int
    messages: int
    end: int
    problem: str | None
    anchor: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a look at a part of a log found: its first runs, those in between, which are only counted, and the last one.

    The runs ascend, and between two of them lie bad bytes. A part has a bounded size, and can be pickled.
    """

    runs: tuple[Run, ...]
    further: FurtherRuns | None = None
    last: Run | None = None
    unsure: bool = False


def look(log: Surveyed, start: int, limit: int, progress: Progress = lambda _: None) -> Part:
    """Look at a part of a log, from ``start``, where a record starts, to ``limit``. Changes nothing. Raises OSError.

    The time is proportional to the number of bytes.
    """
    effort = Effort()
    first: list[Run] = []
    further: FurtherRuns | None = None
    last: Run | None = None
    for run in _runs(log, start, limit, effort, progress):
        if len(first) <= MAX_STRETCHES:
            first.append(run)
            continue
        if last is not None:
            further = _counted(further or _nothing_after(first[-1]), last)
        last = run
    return Part(tuple(first), further, last, effort.gave_up)


def _runs(log: Surveyed, start: int, limit: int, effort: Effort, progress: Progress) -> Iterator[Run]:
    found = prove(log, start, limit, progress)
    yield Run(start, found)
    while found.end < limit:
        at = next_sound(log, found.end + 1, limit, effort, partial(progress, found.end))
        if at is None:
            return
        found = prove(log, at, limit, progress)
        yield Run(at, found)


def _nothing_after(run: Run) -> FurtherRuns:
    return FurtherRuns(0, 0, 0, run.found.end, run.found.problem, run.anchor)


def _counted(before: FurtherRuns, run: Run) -> FurtherRuns:
    """The run counted with those before it."""
    return FurtherRuns(
        before.stretch_count + 1,
        before.bad_bytes + run.start - before.end,
        before.messages + run.found.messages,
        run.found.end,
        run.found.problem,
        run.anchor,
    )


class _Stretches:
    """Collects the bad stretches. A stretch counts only after sound messages have been found after it."""

    def __init__(self) -> None:
        self.stretches: list[BadStretch] = []
        self.count = self.bad_bytes = 0
        self._open: list[BadStretch] = []
        self._open_count = self._open_bytes = 0

    def add(self, stretch: BadStretch) -> None:
        """Add a stretch. Messages after it settle it and those before it."""
        if len(self.stretches) + len(self._open) < MAX_STRETCHES:
            self._open.append(stretch)
        self._open_count += 1
        self._open_bytes += stretch.size
        if stretch.messages_after:
            self.settle()

    def settle(self) -> None:
        """Messages follow the stretches so far."""
        self.stretches += self._open
        self.count += self._open_count
        self.bad_bytes += self._open_bytes
        self._open, self._open_count, self._open_bytes = [], 0, 0

    def add_counted(self, further: FurtherRuns) -> None:
        """Count stretches that messages follow."""
        self.settle()
        self.count += further.stretch_count
        self.bad_bytes += further.bad_bytes


class _Merge:
    """Joins the runs of a log's parts, in the order of the log, into a ``Survey``."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._notes = _Stretches()
        self._run = Run(start, Scan(end=start))
        self._gap: BadStretch | None = None
        """The bad bytes before the current run."""
        self._first: Scan | None = None
        self._end = Run(start, Scan(end=start))
        """The last run with a message, or the first run."""
        self._messages = 0

    def add(self, run: Run) -> None:
        """Add the next run. One that continues the run before it, as at the border of two parts, is joined with it."""
        before = self._run
        if run.start == before.found.end:
            self._run = Run(before.start, before.found.then(run.found))
        elif run.found.end > run.start:  # else the part starts with bad bytes, as the one before it ended
            self._settle()
            self._begin(run, before.found.end, before.found.problem, before.anchor)

    def add_further(self, further: FurtherRuns, last: Run) -> None:
        """Count runs after the current one, and continue with ``last``."""
        self._settle()
        self._notes.add_counted(further)
        self._messages += further.messages
        self._begin(last, further.end, further.problem, further.anchor)

    def _begin(self, run: Run, bad_from: int, problem: str | None, anchor: int) -> None:
        self._gap = BadStretch(bad_from, run.start, problem or NOT_WHOLE, 0, 0, anchor)
        self._run = run

    def _settle(self) -> None:
        """The current run is complete."""
        run, gap = self._run, self._gap
        if gap is not None:
            size = run.found.end - run.start
            self._notes.add(replace(gap, messages_after=run.found.messages, bytes_after=size))
        if self._first is None:
            self._first = run.found
        if gap is None or run.found.messages:
            self._end = run
        self._messages += run.found.messages

    def survey(self, unsure: bool) -> Survey:
        """What was found in all parts."""
        self._settle()
        assert self._first is not None, "it is set when the first run is settled"
        notes, end = self._notes, self._end
        return Survey(
            self._start,
            self._first,
            end.found.end,
            self._messages,
            tuple(notes.stretches),
            notes.count,
            notes.bad_bytes,
            end.found.problem or NOT_WHOLE,
            unsure,
            end.anchor,
        )


def merge(start: int, parts: Iterable[Part]) -> Survey:
    """Join what was found in the parts of a log, in their order, from ``start``, where the first part starts."""
    merging, unsure = _Merge(start), False
    for part in parts:
        for run in part.runs:
            merging.add(run)
        if part.last is not None:
            if part.further is not None:
                merging.add_further(part.further, part.last)
            else:
                merging.add(part.last)
        unsure |= part.unsure
    return merging.survey(unsure)


def survey(log: Surveyed, start: int, limit: int, progress: Progress = lambda _: None) -> Survey:
    """Find all bad stretches from ``start``, where a record starts, to ``limit``. Changes nothing. Raises OSError.

    The time is proportional to the number of bytes.
    """
    return merge(start, [look(log, start, limit, progress)])
