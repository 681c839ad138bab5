"""Compares the log with that of another store, byte by byte, where both have bytes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.engine import Engine, Progress, no_progress, run_range
from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.segments import SegmentReader, Split
from rmqha.settings import Settings
from rmqha.store.errors import StoreError


@dataclass(frozen=True, slots=True)
class Compared:
    """How two logs differ from ``start`` to ``end``: the first different offset, and the number of different bytes."""

    start: int
    end: int
    differs_at: int | None = None
    different_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two logs differ in the range that both have. ``end`` and ``other_end`` are their ends."""

    common: Compared
    end: int
    other_end: int

    @property
    def is_identical(self) -> bool:
        """Whether the logs are equal, except for bytes that one has deleted at its start."""
        return self.common.differs_at is None and self.end == self.other_end

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job compare --json``."""
        return {
            "from": self.common.start,
            "to": self.common.end,
            "end": self.end,
            "otherEnd": self.other_end,
            "differsAt": self.common.differs_at,
            "differentBytes": self.common.different_bytes,
            "identical": self.is_identical,
        }


def compare_split(split: Split, replica: str, window_bytes: int) -> Compared:
    """Compare a split with the same bytes in ``replica``, a folder of segments. Raises StoreError, OSError."""
    differs_at, different_bytes = None, 0
    other_path = str(Path(replica) / Path(split.path).name)
    with SegmentReader(split.path, split.base) as ours, SegmentReader(other_path, split.base) as theirs:
        for at in range(split.start, split.end, window_bytes):
            size = min(window_bytes, split.end - at)
            one, other = ours.read(at, size), theirs.read(at, size)
            for path, read in ((split.path, one), (other_path, other)):
                if len(read) < size:
                    raise StoreError(f"{path} ends at {at + len(read)}, before {split.end}")
            if not np.array_equal(one, other):
                different = np.flatnonzero(one != other)
                differs_at = at + int(different[0]) if differs_at is None else differs_at
                different_bytes += len(different)
    return Compared(split.start, split.end, differs_at, different_bytes)


def merge_compared(start: int, end: int, parts: Iterable[Compared]) -> Compared:
    """How the logs differ from ``start`` to ``end``."""
    parts = list(parts)
    first = min((part.differs_at for part in parts if part.differs_at is not None), default=None)
    return Compared(start, end, first, sum(part.different_bytes for part in parts))


def compare(options: Options, engine: Engine, progress: Progress = no_progress) -> Comparison:
    """Compare the log of ``options.path`` with that of ``options.replica``. Raises OptionError, StoreError, OSError."""
    if options.replica is None:
        raise OptionError("compare needs replica, the other store")
    ours = open_log(options)
    theirs = open_log(replace(options, path=options.replica, settings=Settings()))  # it may be made otherwise
    start, end = max(ours.min_offset, theirs.min_offset), min(ours.end, theirs.end)
    sizes = [plan.files[0].end - plan.files[0].base for plan in (ours, theirs) if plan.files]
    if len(set(sizes)) > 1:
        raise StoreError(f"the logs have segments of {sizes[0]} and of {sizes[1]} bytes: they cannot be equal")
    on_split = partial(compare_split, replica=str(theirs.folder), window_bytes=options.batch_bytes)
    parts = run_range(engine, on_split, ours, start, end, progress) if start < end else []
    return Comparison(merge_compared(start, max(start, end), parts), ours.end, theirs.end)
