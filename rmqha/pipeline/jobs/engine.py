"""Who runs a job's splits: this process, one after the other, or Spark's workers.

A summary is small and can be pickled, as can the function that makes it of a split. Both engines give the summaries in
the order of the splits, so that whatever is made of them is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rmqha.pipeline.errors import BoundaryError
from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import LogPlan
from rmqha.pipeline.segments import Split
from rmqha.store.errors import StoreError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PROGRESS_SECONDS = 0.25
Summary = TypeVar("Summary")
Progress = Callable[[int, int], None]
"""Told how many splits are done, of how many."""


def no_progress(done: int, total: int) -> None:
    """For those who do not watch."""


class WrongBoundary(StoreError):
    """A place that looks like a record's start lies inside a record: splits must be made by hopping."""


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[Summary]):
    """A split's summary, or what is wrong with the log: a second try cannot mend it, and Spark would bury it."""

    summary: Summary | None = None
    problem: str | None = None
    is_boundary: bool = False

    def result(self) -> Summary:
        if self.problem is not None:
            raise (WrongBoundary if self.is_boundary else StoreError)(self.problem)
        assert self.summary is not None, "a split without a problem has a summary"
        return self.summary


def _guarded(on_split: Callable[[Split], Summary], split: Split) -> _Outcome[Summary]:
    try:
        return _Outcome(on_split(split))
    except StoreError as error:
        return _Outcome(problem=str(error), is_boundary=isinstance(error, BoundaryError))


class Engine(Protocol):
    """Runs the splits of a job."""

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], progress: Progress) -> list[Summary]:
        """The summary of each split, in their order. Raises StoreError, OSError."""


class LocalEngine:
    """This process."""

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], progress: Progress) -> list[Summary]:
        """As ``Engine`` says."""
        summaries = []
        for split in splits:
            summaries.append(_guarded(on_split, split).result())
            progress(len(summaries), len(splits))
        return summaries


class SparkEngine:
    """The workers of a Spark session: each split is a task. Errors that are not the log's come as Spark has them."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], progress: Progress) -> list[Summary]:
        """As ``Engine`` says."""
        if not splits:
            return []
        group = f"rmqha-{uuid.uuid4().hex}"
        tasks = self._context.parallelize(list(splits), len(splits)).map(partial(_guarded, on_split))

        def collect() -> list[_Outcome[Summary]]:
            self._context.setJobGroup(group, "rmqha job", interruptOnCancel=True)
            return tasks.collect()

        with ThreadPoolExecutor(1) as pool:
            collected = pool.submit(collect)
            try:
                while not wait([collected], PROGRESS_SECONDS).done:
                    progress(_tasks_done(self._context, group), len(splits))
            except BaseException:  # whatever it is: nobody waits for the tasks any more
                self._context.cancelJobGroup(group)
                raise
        progress(len(splits), len(splits))
        return [outcome.result() for outcome in collected.result()]


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        information = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in information.stageIds] if information is not None else []
        done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return done


def run_range(
    engine: Engine,
    on_split: Callable[[Split], Summary],
    plan: LogPlan,
    start: int,
    end: int,
    progress: Progress = no_progress,
) -> list[Summary]:
    """The summaries of a range of the log, in its order; records begin at ``start`` and end at ``end``.

    Where a body misleads the search for boundaries, they are made and run anew by hopping. Raises StoreError, OSError.
    """
    try:
        return engine.run(on_split, plan.splits(start, end), progress)
    except WrongBoundary:
        return engine.run(on_split, plan.splits(start, end, Boundaries.HOP), progress)
