"""Compares the log with that of another store, byte by byte, where both have bytes.

What is found, and the words for it, are those of ``rmqha verify --against``. This module only spreads the work over
splits.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.engine import Engine, run_range
from rmqha.pipeline.jobs.verify import SplitLog
from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.settings.settings import Settings
from rmqha.store.errors import DataLossError, StoreError
from rmqha.store.log.splits import LogFile, SegmentReader, Split, log_files
from rmqha.store.log.stretches import prove
from rmqha.store.offline.comparing import compare_segment
from rmqha.store.offline.findings import Comparison, Difference
from rmqha.wire.record import Buffer


class _Files:
    """The files of a log, read by offset. A context manager."""

    def __init__(self, folder: Path, files: tuple[LogFile, ...], end: int) -> None:
        self._folder = folder
        self._files = files
        self._end = end
        self._open = ExitStack()
        self._segment: tuple[LogFile, SegmentReader] | None = None

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, offset: int, size: int) -> Buffer:
        """Bytes of one file. Raises StoreError if there are none, OSError."""
        file, segment = self._segment_of(offset)
        size = min(size, file.end - offset)
        data = segment.read(offset, size)
        if len(data) < size:
            raise StoreError(f"{file.path} ends at {offset + len(data)}, before {self._end}")
        return data.data

    def _segment_of(self, offset: int) -> tuple[LogFile, SegmentReader]:
        if self._segment is None or not self._segment[0].base <= offset < self._segment[0].end:
            file = next((file for file in self._files if file.base <= offset < file.end), None)
            if file is None:
                raise DataLossError(f"{self._folder} has no bytes at {offset}")
            self._open.close()
            self._segment = file, self._open.enter_context(SegmentReader(file.path, file.base))
        return self._segment


def compare_split(split: Split, replica: str) -> Difference:
    """Compare a split with the same bytes in ``replica``, a folder of segments. Raises StoreError, OSError."""
    ours = LogFile(split.path, split.base, split.segment_end)
    theirs = Path(replica)
    with (
        _Files(Path(split.path).parent, (ours,), split.end) as one,
        _Files(theirs, log_files(theirs, None), split.end) as other,
    ):
        return compare_segment(one.read, other.read, split.start, split.end, split.segment_end, lambda _: None)


def compare(options: Options, engine: Engine, bar: IBar = NO_BAR) -> Comparison:
    """Compare the log of ``options.path`` with that of ``options.replica``. Raises OptionError, StoreError, OSError."""
    if options.replica is None:
        raise OptionError("compare needs replica, the other store")
    ours = open_log(options)
    theirs = open_log(replace(options, path=options.replica, settings=Settings()))  # it may be made otherwise
    start, end = max(ours.min_offset, theirs.min_offset), min(ours.end, theirs.end)
    on_split = partial(compare_split, replica=str(theirs.folder))
    parts = run_range(engine, on_split, ours, start, end, bar) if start < end else []
    found = reduce(Difference.then, parts, Difference())
    return Comparison(
        start,
        ours.end,
        theirs.end,
        found.differs_at,
        None if found.differs_at is None else _record_at(ours, found.differs_at),
        found.different_bytes,
        _segment_sizes(ours, theirs),
        found.fills,
    )


def _segment_sizes(ours: LogPlan, theirs: LogPlan) -> tuple[int, int] | None:
    """The sizes of the segments of both logs, if these differ."""
    if not ours.files or not theirs.files:
        return None
    one, other = (plan.files[0].end - plan.files[0].base for plan in (ours, theirs))
    return (one, other) if one != other else None


def _record_at(plan: LogPlan, offset: int) -> int:
    """Where the record that holds ``offset`` starts, by the records before it in its segment. Raises OSError."""
    (file,) = (file for file in plan.files if file.base <= offset < file.end)
    with SegmentReader(file.path, file.base) as segment:
        return prove(SplitLog(file.split(file.base, file.end), segment), file.base, offset, lambda _: None).end
