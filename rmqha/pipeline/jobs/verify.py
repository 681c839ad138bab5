"""Proves every record of the log: its magic code, its lengths, its own offset and the CRC of its body.

What is found, and the words for it, are those of ``rmqha verify``: ``stretches.look`` looks at each split, and
``stretches.merge`` joins what it found. This module only spreads the work over splits. It compares queues and index
with the log in this process.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from rmqha.kit.progress import NO_BAR, IBar, OffsetBar
from rmqha.pipeline.jobs.engine import Engine, run_range
from rmqha.pipeline.options import EARLIEST, LATEST, OnCorrupt, Options
from rmqha.pipeline.plan import LogPlan, log_folder, open_log
from rmqha.store.errors import BoundaryError, DataLossError, StoreError
from rmqha.store.log.commitlog import CommitLog, segment_size_of
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.pagecache import is_hot
from rmqha.store.log.splits import LogFile, SegmentReader, Split, log_files
from rmqha.store.log.stretches import BadStretch, Part, Survey, look, merge
from rmqha.store.offline.audit import QueueFindings, audit_proved
from rmqha.store.offline.findings import Circumstances, Verification, judge
from rmqha.wire.record import IncompleteRecord, RecordError, check_record
from rmqha.wire.scan import scan_records
from rmqha.wire.scanned import Scan

WINDOW_BYTES = 1 << 22


class SplitLog:
    """A split as ``stretches`` reads a log. The file is read; only a search for sound records after bad ones maps it.

    If a sound message continues after the split, the split's end is not a boundary of records. Bytes from ``judged_to``
    on are not read.
    """

    def __init__(
        self, split: Split, segment: SegmentReader, drop_behind: bool = False, judged_to: int | None = None
    ) -> None:
        self._split = split
        self._judged_to = split.segment_end if judged_to is None else min(judged_to, split.segment_end)
        self._segment = segment
        self._mapped: memoryview | None = None
        self._behind = segment.pages_behind(split.start, split.end) if drop_behind and not is_hot(split.path) else None

    @property
    def segment_size(self) -> int:
        """Bytes of the segment."""
        return self._split.segment_end - self._split.base

    def scan(self, start: int, limit: int | None = None) -> Scan:
        """Prove the records from ``start`` on, of the bytes before ``limit``. Raises BoundaryError, DataLossError,
        OSError.
        """
        split = self._split
        limit = split.end if limit is None else min(limit, split.end)
        data = self._segment.read(start, limit - start)
        if len(data) < limit - start:
            raise DataLossError(f"{split.path} ends at {start + len(data)}, before {split.end}")
        found = scan_records(data.data, start, start, limit, split.segment_end)
        if found.end < limit == split.end and found.problem is None:
            found = found._replace(problem=self._problem_beyond(found.end))
        if self._behind is not None:
            self._behind.passed(found.end - split.base)
        return found

    def _problem_beyond(self, at: int) -> str | None:
        """What is wrong with a record that reaches beyond the split. Raises BoundaryError if nothing is."""
        try:
            data = self._segment.read(at, self._judged_to - at).data
            check_record(data, 0, at, self._split.segment_end - at)
        except IncompleteRecord:
            return None
        except RecordError as error:
            return str(error)
        raise BoundaryError(at, self._split.end)

    def segment_from(self, offset: int) -> tuple[int, memoryview]:
        """All bytes of the segment, and the offset at which they start. Raises OSError."""
        if self._mapped is None:
            self._mapped = memoryview(self._segment.mapped())
        return self._split.base, self._mapped

    def data_ranges(self, start: int, limit: int) -> Iterator[tuple[int, int]]:
        """The range itself: holes are read as zeros."""
        if start < (end := min(limit, self._split.end)):
            yield start, end


@dataclass(frozen=True, slots=True)
class SplitFindings:
    """What was found in a split, and whether its last bytes, after all records, are zeros up to the segment's end."""

    start: int
    end: int
    part: Part
    ends_with_zeros: bool

    @property
    def found(self) -> Survey:
        """What was found, as of a log that is only this split."""
        return merge(self.start, [self.part])

    def bad_stretches(self) -> list[BadStretch]:
        """The bad stretches, also at the end, unless only zeros follow the records."""
        found = self.found
        stretches = list(found.stretches)
        if found.end < self.end and not self.ends_with_zeros:
            stretches.append(BadStretch(found.end, self.end, found.problem or "", 0, 0, found.anchor))
        return stretches


def verify_split(split: Split, drop_behind: bool = False, judged_to: int | None = None) -> SplitFindings:
    """Prove the records of one split. Bytes of the log from ``judged_to`` on are not read.

    Raises BoundaryError, DataLossError, OSError.
    """
    with SegmentReader(split.path, split.base) as segment:
        part = look(SplitLog(split, segment, drop_behind, judged_to), split.start, split.end)
        end = merge(split.start, [part]).end
        ends_with_zeros = split.end == split.segment_end and _nonzero_end(segment, end, split.end) is None
        return SplitFindings(split.start, split.end, part, ends_with_zeros)


def verify(options: Options, engine: Engine, bar: IBar = NO_BAR) -> Verification:
    """Prove the log of ``options.path``, as far as ``rmqha verify`` does.

    All bytes other than zero are judged, also after the last sound record, unless a broker is writing there. A running
    node of ours is judged up to what it has verified, a running Java broker up to its last sound record. Raises
    StoreError, OSError.
    """
    while True:
        first = _first_file(options)
        try:
            return _verify(options, engine, bar)
        except (StoreError, FileNotFoundError):
            if not is_locked(options.path / "lock") or _first_file(options) == first:
                raise  # else a running node has deleted an expired file meanwhile


def _first_file(options: Options) -> LogFile | None:
    """The first file of the log. Raises StoreError, OSError."""
    folder = log_folder(options.path, options.settings.store_path_commit_log)
    return next(iter(log_files(folder, options.settings.mapped_file_size_commit_log)), None)


def _verify(options: Options, engine: Engine, bar: IBar) -> Verification:
    plan, live = _plan(replace(options, on_corrupt=OnCorrupt.SKIP))
    start, end = plan.start(), plan.stop()
    is_whole = end == plan.end
    if is_whole and not (live and plan.state is not None):
        end = _end_of_last_file(plan)
    on_split = partial(verify_split, drop_behind=options.drop_behind, judged_to=end)
    parts = run_range(engine, on_split, plan, start, end, bar)
    looked = merge(start, [found.part for found in parts])
    for bad in looked.stretches if live and plan.state is None else ():
        again = run_range(engine, on_split, plan, bad.start, bad.end, NO_BAR)
        if merge(bad.start, [found.part for found in again]).end > bad.start:  # it has been written since
            parts = run_range(engine, on_split, plan, start, bad.start, bar)
            looked = merge(start, [found.part for found in parts])
            break
    return judge(looked, _circumstances(plan, looked.end, end, live, is_whole))


def is_of_whole_log(options: Options) -> bool:
    """Whether the options leave out no part of the log."""
    starts = options.starting_offset == EARLIEST and options.starting_timestamp is None
    return starts and options.ending_offset == LATEST and options.ending_timestamp is None


def verify_queues(options: Options, proof: Verification, bar: OffsetBar) -> QueueFindings:
    """Compare queues and index with the log, in which ``verify`` found ``proof``, as ``rmqha verify`` does.

    Each record is read here, one after the other. Raises StoreError, OSError.
    """
    configured = options.settings.mapped_file_size_commit_log
    folder = log_folder(options.path, options.settings.store_path_commit_log)
    log = CommitLog(folder, segment_size_of(folder, configured), owned=False)
    try:
        return audit_proved(options.path, log, proof, options.settings, bar.reached)
    finally:
        log.close()


def _plan(options: Options) -> tuple[LogPlan, bool]:
    """The log up to the end of what may be judged, and whether a process has the store open.

    Raises DataLossError, StoreError, OSError if files are missing, but not if the log ends too early.
    """
    plan = open_log(replace(options, fail_on_data_loss=False), to_last_file=True)
    live = is_locked(plan.store / "lock")
    if plan.state is not None and plan.files:
        written_end = plan.files[-1].end
        end = min(plan.state.offsets.verified, written_end) if live else written_end
        plan = replace(plan, end=max(plan.files[0].base, end))
    return replace(plan, options=options), live


def _circumstances(plan: LogPlan, found_end: int, end: int, live: bool, is_whole: bool) -> Circumstances:
    is_anothers = live and plan.state is None
    written_end = found_end if is_anothers else _written_end(plan, found_end, end)
    confirmed = plan.state.confirmed_offset if is_whole and plan.state is not None else 0
    unclean = plan.folder == plan.options.path or (plan.store / "abort").exists()
    return Circumstances(live, unclean, confirmed, written_end, bool(plan.files))


def _end_of_last_file(plan: LogPlan) -> int:
    """The end of the last file with a byte other than zero; the start of the log if there is none."""
    for file in reversed(plan.files):
        if _last_nonzero(file, file.base, file.end) is not None:
            return file.end
    return plan.min_offset


def _written_end(plan: LogPlan, start: int, end: int) -> int:
    """The end of the bytes from ``start`` to ``end`` that were written; ``start`` if there are none.

    Bytes were written if they, or any later bytes of the log, are not zero. A running node may have written bytes after
    ``end``, which are not judged; so zeros before ``end`` are written bytes too.
    """
    for file in reversed(plan.files):
        if start < end and file.end > start:
            found = _last_nonzero(file, start, file.end)
            if found is not None:
                return min(found, end)
    return start


def _last_nonzero(file: LogFile, start: int, end: int) -> int | None:
    with SegmentReader(file.path, file.base) as segment:
        return _nonzero_end(segment, max(start, file.base), min(end, file.end))


def _nonzero_end(segment: SegmentReader, start: int, end: int) -> int | None:
    """The offset after the last byte other than zero of a range; None if there is none. Raises OSError."""
    while end > start:
        at = max(start, end - WINDOW_BYTES)
        nonzero = segment.read(at, end - at).nonzero()[0]
        if len(nonzero):
            return at + int(nonzero[-1]) + 1
        end = at
    return None
