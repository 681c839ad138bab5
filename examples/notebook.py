# %% [markdown]
# # A look at a RocketMQ log
#
# This file is a notebook in the form "py:percent": Jupyter (with jupytext), VS Code and PyCharm open it as cells.
# `python examples/notebook.py STORE FOLDER` runs it as a program, and writes the plots to FOLDER.

# %%
import sys
from pathlib import Path
from typing import Any

import matplotlib
from pyspark.sql import DataFrame

from rmqha.pipeline.session import session

matplotlib.use("Agg")  # leave this out in a notebook
import matplotlib.pyplot as plt


def table(found: DataFrame) -> Any:
    """The rows as a DataFrame of pandas, which draws."""
    return found.toPandas()


store, folder = sys.argv[1], Path(sys.argv[2])
spark = session()
log = spark.read.format("rmqha").load(store)
log.createOrReplaceTempView("log")

# %% [markdown]
# ## Which topics have the most messages?
# The view `stats` counts in Spark's workers, and reads no bodies.

# %%
sums = spark.read.format("rmqha").option("view", "stats").load(store)
topics = table(sums.groupBy("topic").sum("messages", "bytes")).set_index("topic").sort_values("sum(messages)")
print(topics)
axes = topics.tail(10)["sum(messages)"].plot.barh(figsize=(8, 4), title="Messages by topic")
axes.figure.savefig(folder / "topics.png", bbox_inches="tight")
plt.close(axes.figure)

# %% [markdown]
# ## When did they come?

# %%
times = table(
    spark.sql(
        """
    SELECT date_trunc('second', storeTimestamp) AS second, count(*) AS messages, sum(totalSize) AS bytes
    FROM log GROUP BY second ORDER BY second
    """
    )
)
print(times.describe())
axes = times.plot(x="second", y="messages", figsize=(8, 3), title="Messages each second", legend=False)
axes.figure.savefig(folder / "rate.png", bbox_inches="tight")
plt.close(axes.figure)

# %% [markdown]
# ## How long from birth to store?

# %%
latencies = table(
    spark.sql("SELECT unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS milliseconds FROM log").dropna()
)
print(latencies["milliseconds"].describe(percentiles=[0.5, 0.99]))
axes = latencies["milliseconds"].clip(0, 1000).plot.hist(bins=50, figsize=(8, 3), title="Latency in ms", logy=True)
axes.figure.savefig(folder / "latency.png", bbox_inches="tight")
plt.close(axes.figure)
