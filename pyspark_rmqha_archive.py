"""The sink ``rmqha_archive``, found by Spark as ``pyspark_rmqha`` is: it must be light and must never raise."""

from contextlib import suppress

with suppress(Exception):  # without pyarrow, say, which only the extra `spark` brings
    from rmqha.pipeline.sink import ArchiveDataSource as DefaultSource

    __all__ = ["DefaultSource"]
