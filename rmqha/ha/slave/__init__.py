"""The slave's end of replication.

In reading order:

- ``states``: a slave's states and the allowed transitions.
- ``replica``: what a slave decides: what to request, accept and report. No sockets, no clocks.
- ``protocol``: the Protocol and the Factory of a slave.
- ``contact``: when a slave last heard from its master, and how large its lag is.
- ``owner``: what a slave asks of the node around it.
- ``attempts``: what connections have brought, and so how long the next one waits.
- ``probe``: where the last segment of a master's log starts, as its HA port says.
- ``questions``: what a slave asks about its master's log.
- ``oncerun``: when a ``--once`` run is done.
- ``verdicts``: what the log says if our log and the master's do not fit together.
- ``slaveservice``: keeps a slave connected, and acts on verdicts.
- ``selfrepair``: fetches bad bytes of a log again over an HA connection.
- ``greeting``: each connection of a failover cluster's follower begins with a hello.
- ``forkprobe``: finds where our log parts from a master's.
"""
