"""Streams of tests that run in this process."""

from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tests.pipeline.processes import TOO_SLOW_FOR_SPARK


def run_to_the_end(start: Callable[[], StreamingQuery]) -> list[Any]:
    """Run the query that ``start`` starts until it has ended. Returns the progress of each batch.

    It is started again, and goes on at its checkpoint, if a process of Python was too slow for Spark. Raises
    StreamingQueryException if it has failed.
    """
    progress: list[Any] = []
    while True:
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if TOO_SLOW_FOR_SPARK not in str(error):
                raise
        progress += query.recentProgress
        if query.exception() is None:
            return progress
