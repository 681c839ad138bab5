"""A node: one process with one store, which is a master or a slave, and may change its role.

In reading order:

- ``rereading``: settings and certificates that change while a node runs.
- ``plan``: what a node is configured to be.
- ``replicating``: what keeps and copies a log, made for ``node`` and for the simulator.
- ``masterendpoints``: how a slave reaches its master.
- ``opennode``: a node while its store is open: the services of its role.
- ``node``: a running node: opens its store, changes its role, and stops.
- ``leaderendpoint``: how a member of a failover cluster reaches the leader before its store is open.
- ``promising``: a leader asks a member of its failover cluster not to try for the lead.
- ``clusternode``: a node whose role the agent of ``failover`` decides.
- ``failoveroptions``: the options of such a node.

``tap`` makes one of these from its options. Only ``tap``, ``namesrv_tap`` and ``testing`` import this room.
"""
