"""Replication: the master sends its log; the slave verifies it and reports what it holds (spec/ha.md).

In reading order:

- ``framing``: splits received bytes into reports and transfers, in the manner of ``twisted.protocols.basic``.
- ``slave/``: the slave's end.
- ``master/``: the master's end.
- ``admission/``: who may connect, and how much a connection may cost.

::

    master.protocol.HAMasterProtocol ──transfer frames──▶ slave.protocol.HASlaveProtocol ──▶ Replica ──▶ ICommitLog
                                     ◀──────reports──────
"""
