"""Jobs on a whole log. A job is a pure function on one split, and a function that merges the summaries of all splits.

In reading order:

- ``engine``: runs a job's splits, in this process or in Spark.
- ``verify``: proves every record of the log.
- ``compare``: compares the log with that of another store, byte by byte.
- ``stats``: counts messages, bytes, rates and latencies by topic.
- ``table``: the result of ``stats`` as a table.
- ``chart``: the result of ``stats`` as a chart.
- ``manifest``: an archive folder, and which of its files count.
- ``manifestfields``: reads the fields of manifests.
- ``origin``: whose log a split is of, and which archive it belongs to.
- ``overlap``: proves that a log continues an archive.
- ``tablelog``: what the tables that an archive can be have in common.
- ``delta``: the log of a Delta table.
- ``iceberg``: the metadata of an Iceberg table.
- ``tableformats``: an archive as a table of Delta or Iceberg.
- ``replacing``: puts a manifest in the place of others.
- ``archive``: writes the log as Parquet files.
- ``logorder``: reads an archived file in the order of the log.
- ``compact``: makes large files of small ones.
- ``expire``: removes the oldest messages.
- ``rebuild``: builds consume queues and index from the log.
- ``restore``: makes a store from an archive.
- ``messages``: reads the messages of an archive one by one.
- ``rowfiles``: CSV, JSON lines and Parquet for people and other programs.
- ``entries``: a slim row for each message.
- ``sendlog``: reads a producer's own log of what it sent.
- ``reconcile``: finds what is missing between two clusters, or between a producer's log and a store.

::

    plan ─▶ [Split] ─▶ engine.run(job.on_split, splits) ─▶ [summary], in the order of the splits ─▶ job.merge ─▶ result

Bodies never pass through Spark: splits go to the workers, and summaries come back. Both engines give the same result.
"""
