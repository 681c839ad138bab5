"""What is done with a whole log: each job is a pure function on one split, and a merge of the small summaries of all.

Read in this order: ``engine`` (who runs a job's splits: this process, or Spark), ``verify``, ``stats`` and ``chart``
(its picture), ``archive`` and ``manifest`` (which of its files count), ``compare``, ``rebuild``::

    plan ─▶ [Split] ─▶ engine.run(job.on_split, splits) ─▶ [summary], in the order of the splits ─▶ job.merge ─▶ result

Bodies never pass through Spark: splits go to the workers, summaries come back. Both engines give the same result.
"""
