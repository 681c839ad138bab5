"""Replication: the master sends its log, the slave proves it and reports how far it has got (spec/ha.md).

In reading order: ``states`` (a slave's named states), ``replica`` (what a slave decides: no sockets, no clocks),
``receivers`` (framing, in the manner of ``twisted.protocols.basic``), ``slave`` and ``master`` (a Protocol and a
Factory each), ``service`` (keeps a slave connected and knows when it is done).

::

    master.HAMasterProtocol ──transfer frames──▶ slave.HASlaveProtocol ──▶ replica.Replica ──▶ ICommitLog
                            ◀──────reports──────
"""
