"""Replication: the master sends its log; the slave proves it and reports how far it has got (spec/ha.md).

In reading order:

- ``framing``: cuts what arrives into reports and transfers, in the manner of ``twisted.protocols.basic``.
- ``slave/``: the slave's end.
- ``master/``: the master's end.
- ``admission/``: who may connect, and how much a connection may cost.

::

    master.protocol.HAMasterProtocol ──transfer frames──▶ slave.protocol.HASlaveProtocol ──▶ Replica ──▶ ICommitLog
                                     ◀──────reports──────
"""
