"""Spark imports every top-level module named ``pyspark_*`` at its first look for a data source: this one is ours.

It must be light and must never raise: one that does hides all data sources of this kind.
"""

from contextlib import suppress

with suppress(Exception):  # without pyarrow, say, which only the extra `spark` brings
    from rmqha.pipeline.source import RmqhaDataSource as DefaultSource

    __all__ = ["DefaultSource"]
