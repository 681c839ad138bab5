"""The slave's end of replication.

In reading order:

- ``states``: a slave's states and the allowed transitions.
- ``replica``: what a slave decides: what to request, accept and report. No sockets, no clocks.
- ``protocol``: the Protocol and the Factory of a slave.
- ``contact``: when a slave last heard from its master, and how large its lag is.
- ``service``: keeps a slave connected, and decides when it is done.
- ``repair``: fetches bad bytes of a log again over an HA connection.
- ``greeting``: each connection of a failover cluster's follower begins with a hello.
- ``forkprobe``: finds where our log parts from a master's.
"""
