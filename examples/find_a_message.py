"""Finds a lost message: was it stored, when, and where does it lie?

``python examples/find_a_message.py STORE TOPIC KEY [FROM [TO]]``: KEY is one of its keys or its unique key, FROM and TO
are times such as 2026-11-21T01:30+00:00 between which it was stored. The log itself is read, not the index, which may
have been lost; the times say which part of it.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from rmqha.pipeline.session import session

COLUMNS = "topic,keys,tags,queueId,queueOffset,physicalOffset,bornTimestamp,bornHost,storeTimestamp,propertiesMap"


def run(spark: SparkSession, store: str, topic: str, key: str, since: str = "", until: str = "") -> DataFrame:
    """The messages of this key, oldest first."""
    reader = spark.read.format("rmqha").options(columns=COLUMNS, topic=topic)
    for option, time in (("startingTimestamp", since), ("endingTimestamp", until)):
        if time:
            reader = reader.option(option, time)
    has_key = sql.array_contains(sql.split("keys", " "), key) | (sql.col("propertiesMap")["UNIQ_KEY"] == key)
    return reader.load(store).where(has_key).drop("propertiesMap").orderBy("physicalOffset")


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 6:
        raise SystemExit(f"usage: python {sys.argv[0]} STORE TOPIC KEY [FROM [TO]], times as 2026-11-21T01:30+00:00")
    run(session(), *sys.argv[1:6]).show(truncate=False)
