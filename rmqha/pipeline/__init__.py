"""The replicated log as data. This package does not use a reactor, because Spark's executors have none.

In reading order. Reading:

- ``errors``: what can be wrong with a log that is read as data.
- ``address``: where brokers are, as people write it and as tasks get it.
- ``bodyformats``: what bodies are, and where their schema is.
- ``options``: the options of a query.
- ``sqltypes``: types of columns, in Arrow and in Spark SQL.
- ``schema``: the columns.
- ``network/``: a segment that brokers on other machines send, over their HA ports.
- ``segments``: reads the records of a split, from a file or over the network.
- ``decode``: turns the bytes of records into Arrow arrays.
- ``encode``: turns archived columns into the bytes of records.
- ``boundaries``: finds offsets at which a segment can be split.
- ``plan``: segments, splits and offsets.
- ``brokers``: finds the brokers of an address, and plans what is read of which node.
- ``sums``: sums of messages by group.
- ``sql``: SQL in this process.
- ``bodies/``: decodes bodies into columns.
- ``jobs/``: work on a whole log: verify, compare, stats, archive, rebuild, restore, reconcile.
- ``storeviews``: the rows of views of a store's queues and consumers.
- ``views``: what the rows of a query are.

Spark and the command line:

- ``logstream``: a stream of a log.
- ``clusterstream``: a stream of the logs of all brokers of a cluster.
- ``source``: ``format("rmqha")``: reads a log.
- ``aggregate``: a query with GROUP BY, counted in the workers.
- ``sink``: ``format("rmqha_archive")``: writes an archive.
- ``session``: a Spark session for a log on this machine, and the Java that runs it.
- ``workerdaemon``: starts Spark's Python workers.
- ``sparkerrors``: shortens Spark's errors to one line.
- ``cli``: ``rmqha job``.

::

    plan.open_log ─▶ LogPlan.splits ─▶ [Split] ─▶ segments.read_records ─▶ Records ─▶ decode.decode ─▶ RecordBatch
"""
