"""Segments that brokers on other machines send over their HA ports. No reactor and no shared file system is needed.

In reading order:

- ``lines``: blocking connections, with TLS or without it.
- ``asking``: what nodes and name servers answer the driver.
- ``stream``: one connection to an HA port, which sends a log from an offset on.
- ``segment``: a segment of a remote log: what ``SegmentReader`` is for a file.
- ``columns``: the columns that name the broker of a message.

::

    driver  brokers.open_logs ─▶ LogPlan of each broker ─▶ splits, whose paths hold a RemoteLog
    task    segments.open_segment ─▶ NetworkSegment ─▶ LogStream of one node, or of another one when it dies
"""
