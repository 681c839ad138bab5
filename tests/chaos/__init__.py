"""Faults of every kind for a whole failover cluster, under the load of Java clients: ``python -m tests.chaos``.

- ``history``: what clients sent and read, and the promises that it must keep.
- ``cluster``: a coordinator, a name server, nodes of ours, the proxies between them, Java clients.
- ``faults``: what can happen to them.
- ``rounds``: a fault under load, and what came of it.
"""
