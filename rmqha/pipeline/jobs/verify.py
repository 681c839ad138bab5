"""Proves every record of the log: its magic, its lengths, its own offset and the CRC of its body."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rmqha.pipeline.errors import CorruptLogError
from rmqha.pipeline.jobs.engine import Engine, Progress, no_progress, run_range
from rmqha.pipeline.options import OnCorrupt, Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import SegmentReader, Split, read_records
from rmqha.store.log.lockfile import is_locked

WINDOW_BYTES = 1 << 22
MOST_PROBLEMS = 100
"""Problems that are listed for each split. Further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Bytes that are not a record, from ``offset`` of the log to before ``end``, where records continue."""

    offset: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of proving ``start`` to ``end`` of the log: the first problems, and the number of all."""

    start: int
    end: int
    messages: int = 0
    problems: tuple[Problem, ...] = ()
    problem_count: int = 0

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job verify --json``."""
        return {
            "from": self.start,
            "to": self.end,
            "messages": self.messages,
            "problems": [asdict(problem) for problem in self.problems],
            "problemCount": self.problem_count,
        }


def verify_split(split: Split, batch_bytes: int, drop_behind: bool = False) -> Verified:
    """Prove the records of one split. Raises BoundaryError, DataLossError, OSError."""
    problems: list[Problem] = []
    count = 0

    def skipped(error: CorruptLogError, end: int) -> None:
        nonlocal count
        if end == split.segment_end and _is_zero(split, error.offset, end):  # not written yet
            return
        count += 1
        if len(problems) < MOST_PROBLEMS:
            problems.append(Problem(error.offset, end, error.reason))

    proved = read_records(split, batch_bytes, verify_body=True, skipped=skipped, drop_behind=drop_behind)
    messages = sum(len(records) for records in proved)
    return Verified(split.start, split.end, messages, tuple(problems), count)


def merge_verified(start: int, end: int, parts: Iterable[Verified]) -> Verified:
    """Merge the results from ``start`` to ``end``."""
    messages, problems, count = 0, tuple[Problem, ...](), 0
    for part in parts:
        messages, count = messages + part.messages, count + part.problem_count
        problems += part.problems
    return Verified(start, end, messages, problems[:MOST_PROBLEMS], count)


def verify(options: Options, engine: Engine, progress: Progress = no_progress) -> Verified:
    """Prove the log of ``options.path``.

    If no node of ours has run on the store, and nobody uses it now, all bytes other than zero are judged, also after
    the last sound record. Raises StoreError, OSError.
    """
    plan = open_log(replace(options, on_corrupt=OnCorrupt.SKIP))
    start, end = plan.start(), plan.stop()
    if plan.state is None and end == plan.end and not is_locked(plan.store / "lock"):
        end = _written_end(plan)
    on_split = partial(verify_split, batch_bytes=options.batch_bytes, drop_behind=options.drop_behind)
    parts = run_range(engine, on_split, plan, start, end, progress)
    return merge_verified(start, end, parts)


def _written_end(plan: LogPlan) -> int:
    """The end of the last file with a byte other than zero after the last sound record; else the end of that record."""
    end = plan.end
    for file in plan.files:
        if file.end > plan.end and not _is_zero(file.split(max(file.base, plan.end), file.end), plan.end, file.end):
            end = file.end
    return end


def _is_zero(split: Split, start: int, end: int) -> bool:
    with SegmentReader(split.path, split.base) as segment:
        return not any(
            segment.read(at, min(WINDOW_BYTES, end - at)).any()
            for at in range(max(start, split.base), end, WINDOW_BYTES)
        )
