"""Replication: the master sends its log; the slave proves it and reports how far it has got (spec/ha.md).

In reading order. The slave:

- ``states``: a slave's states and the allowed transitions.
- ``replica``: what a slave decides: what to request, accept and report. No sockets, no clocks.
- ``receivers``: framing, in the manner of ``twisted.protocols.basic``.
- ``slave``: the Protocol and the Factory of a slave.
- ``contact``: when a slave last heard from its master, and how large its lag is.
- ``service``: keeps a slave connected, and decides when it is done.
- ``repair``: fetches bad bytes of a log again over an HA connection.

The master:

- ``progress``: what a master knows of one slave.
- ``master``: the Protocol and the Factory of a master.
- ``serving``: how a node serves its log to slaves; nodes and the simulator share it.
- ``handed``: how many bytes of the log the kernel has taken from a connection.
- ``grouptransfer``: when enough slaves hold a message.
- ``limits``: limits on connections, on memory and on log lines.
- ``throttle``: limits on bytes a second, for a master and for a slave.
- ``allowlist``: which hosts and certificates may be slaves.

::

    master.HAMasterProtocol ──transfer frames──▶ slave.HASlaveProtocol ──▶ replica.Replica ──▶ ICommitLog
                            ◀──────reports──────
"""
