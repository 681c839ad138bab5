"""The replicated log as data. Nothing here knows of a reactor: executors have none.

Read in this order: ``errors``, ``options`` (what a user asks for), ``schema`` (what columns there are), ``decode``
(bytes to Arrow), ``segments`` (the records of a split, proved) and ``pagecache``, ``boundaries`` (where a segment can
be cut), ``plan`` (files, splits, offsets), ``views`` (what the rows are), ``source`` (Spark's view of all this),
``session``. Of these only the last two import pyspark::

    plan.open_log ─▶ LogPlan.splits ─▶ [Split] ─▶ segments.read_records ─▶ Records ─▶ decode.decode ─▶ RecordBatch
"""
