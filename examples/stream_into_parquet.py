"""Follows a store and archives it as Parquet, each message exactly once.

``python examples/stream_into_parquet.py STORE LAKE`` archives what there is and ends; with ``--follow`` it goes on
until Ctrl-C. It may be killed and started again at any time. Only descriptions of splits pass through Spark: its
workers read the log and write the files.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmqha.pipeline.session import session

MAX_BYTES_PER_TRIGGER = "256m"


def run(spark: SparkSession, store: str, lake: str, follow: bool = False) -> StreamingQuery:
    """The running query. Its checkpoint lies beside the archive."""
    source = spark.readStream.format("rmqha").option("view", "splits")
    splits = source.option("maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER).load(store)
    checkpoint = Path(lake).absolute().with_name(f"{Path(lake).name}.checkpoint")
    writer = splits.writeStream.format("rmqha_archive").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(processingTime="5 seconds") if follow else writer.trigger(availableNow=True)).start(lake)


if __name__ == "__main__":
    run(session(), sys.argv[1], sys.argv[2], "--follow" in sys.argv).awaitTermination()
