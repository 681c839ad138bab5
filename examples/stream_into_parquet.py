"""Follows a store and archives it as Parquet, each message exactly once.

``python examples/stream_into_parquet.py STORE LAKE`` archives what there is and ends; with ``--follow`` it goes on
until Ctrl-C, and looks again every 5 seconds or as often as ``--follow "1 second"`` says. It may be killed and started
again at any time. Only descriptions of splits pass through Spark: its workers read the log and write the files.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmqha.pipeline.session import session

MAX_BYTES_PER_TRIGGER = "256m"
INTERVAL = "5 seconds"


def run(spark: SparkSession, store: str, lake: str, follow: str | None = None) -> StreamingQuery:
    """The running query, which looks again at this interval, if any. Its checkpoint lies beside the archive."""
    source = spark.readStream.format("rmqha").option("view", "splits")
    splits = source.option("maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER).load(store)
    checkpoint = Path(lake).absolute().with_name(f"{Path(lake).name}.checkpoint")
    writer = splits.writeStream.format("rmqha_archive").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(processingTime=follow) if follow else writer.trigger(availableNow=True)).start(lake)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("lake")
    parser.add_argument("--follow", nargs="?", const=INTERVAL, metavar="INTERVAL")
    arguments = parser.parse_args()
    run(session(), arguments.store, arguments.lake, arguments.follow).awaitTermination()
