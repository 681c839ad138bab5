"""SQL over a log, in place: ``python examples/sql_over_the_log.py STORE [QUERY]``; the table is named ``log``."""

import sys

from pyspark.sql import DataFrame, SparkSession

from rmqha.pipeline.session import session

BUSIEST = """
    SELECT topic, tags, count(*) AS messages, sum(totalSize) AS bytes, max(storeTimestamp) AS last
    FROM log GROUP BY topic, tags ORDER BY messages DESC LIMIT 20
"""
COLUMNS = "topic,tags,keys,queueId,queueOffset,physicalOffset,totalSize,bornTimestamp,storeTimestamp"
"""Spark cannot tell a source which columns a query uses: to name them spares decoding bodies."""


def run(spark: SparkSession, store: str, query: str = BUSIEST) -> DataFrame:
    """The query's result."""
    spark.read.format("rmqha").option("columns", COLUMNS).load(store).createOrReplaceTempView("log")
    return spark.sql(query)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit(f"usage: python {sys.argv[0]} STORE [QUERY]")
    run(session(), *sys.argv[1:3]).show(truncate=False)
