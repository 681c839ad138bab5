"""Runs the splits of a job: in this process, one after the other, or in Spark's workers.

A summary is small and can be pickled, and so can the function that makes it from a split. Both engines return the
summaries in the order of the splits, so the result is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import LogPlan
from rmqha.store.errors import BoundaryError, StoreError
from rmqha.store.log.splits import Split

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PROGRESS_SECONDS = 0.25
Summary = TypeVar("Summary")


class WrongBoundary(StoreError):
    """An offset that looks like the start of a record lies inside a record. The splits must be found by hopping."""


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[Summary]):
    """A split's summary, or the error in the log. A second attempt could not repair it, and Spark would hide it."""

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
    """Runs the splits of a job. The bar shows how many are done."""

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], bar: IBar) -> list[Summary]:
        """The summary of each split, in their order. Raises StoreError, OSError."""

    def query(self, files: Sequence[str], query: str, scratch: Path) -> Iterator[dict[str, Any]]:
        """The rows of a SQL query over Parquet files, which it calls ``entries``. All of them are never in memory at
        once. ``scratch`` is a folder for intermediate results. Raises OSError.
        """


class LocalEngine:
    """Runs splits in this process, and queries in DuckDB."""

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], bar: IBar) -> list[Summary]:
        """See ``Engine``."""
        summaries = []
        for split in splits:
            summaries.append(_guarded(on_split, split).result())
            bar.show(len(summaries), len(splits))
        return summaries

    def query(self, files: Sequence[str], query: str, scratch: Path) -> Iterator[dict[str, Any]]:
        """See ``Engine``."""
        from rmqha.pipeline.sql import query_files  # it needs pyarrow and DuckDB, which are an extra

        return query_files(files, query, scratch)


class SparkEngine:
    """Runs splits in the workers of a Spark session, one task each. Errors that are not of the log come from Spark
    unchanged.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    def run(self, on_split: Callable[[Split], Summary], splits: Sequence[Split], bar: IBar) -> list[Summary]:
        """See ``Engine``."""
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
                    bar.show(_tasks_done(self._context, group), len(splits))
            except BaseException:  # any error: nobody waits for the tasks any more
                self._context.cancelJobGroup(group)
                raise
        bar.show(len(splits), len(splits))
        return [outcome.result() for outcome in collected.result()]

    def query(self, files: Sequence[str], query: str, scratch: Path) -> Iterator[dict[str, Any]]:
        """See ``Engine``. Spark keeps intermediate results where it is configured to."""
        entries = self._spark.read.parquet(*files)
        found = self._spark.sql(query.replace("entries", "{entries}"), entries=entries)
        yield from (row.asDict() for row in found.toLocalIterator(prefetchPartitions=True))


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
    bar: IBar = NO_BAR,
) -> list[Summary]:
    """The summaries of a range of the log, in its order. ``start`` and ``end`` are boundaries of records.

    If a body misleads the search for boundaries, all splits are found by hopping and run again. Raises StoreError,
    OSError.
    """
    try:
        return engine.run(on_split, plan.splits(start, end), bar)
    except WrongBoundary:
        return engine.run(on_split, plan.splits(start, end, Boundaries.HOP), bar)
