"""Jobs on a whole log. A job is a pure function on one split, and a function that merges the summaries of all splits.

In reading order:

- ``engine``: runs a job's splits, in this process or in Spark.
- ``verify``: proves every record of the log.
- ``compare``: compares the log with that of another store, byte by byte.
- ``stats``: counts messages, bytes, rates and latencies by topic.
- ``table``: the result of ``stats`` as a table.
- ``chart``: the result of ``stats`` as a chart.
- ``manifest``: an archive folder, and which of its files count.
- ``overlap``: proves that a log continues an archive.
- ``archive``: writes the log as Parquet files.
- ``rebuild``: builds consume queues and index from the log.
- ``restore``: makes a store from an archive.
- ``messages``: reads the messages of an archive one by one.

::

    plan ─▶ [Split] ─▶ engine.run(job.on_split, splits) ─▶ [summary], in the order of the splits ─▶ job.merge ─▶ result

Bodies never pass through Spark: splits go to the workers, and summaries come back. Both engines give the same result.
"""
