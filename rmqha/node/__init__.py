"""A node: one process with one store, which is a master or a slave, and may change its role.

In reading order:

- ``rereading``: settings and certificates that change while a node runs.
- ``plan``: what a node is configured to be.
- ``interfaces``: what the parts of a node need of each other, and of what the node runs on.
- ``replicating``: what keeps and copies a log.
- ``core``: opens the store, changes the role, and stops. A process and the simulator both run it.
- ``masterendpoints``: how a slave reaches its master.
- ``opennode``: a node while its store is open: the services of its role.
- ``promotionorder``: the order of ``rmqha promote`` to a slave that runs.
- ``node``: a running node: the process around all that.
- ``member``: does what the agent of ``failover`` decides. A process and the simulator both run it.
- ``memberprocess``: what a process has for a member.
- ``leaderendpoint``: how a member of a failover cluster reaches the leader before its store is open.
- ``promising``: a leader asks a member of its failover cluster not to try for the lead.
- ``failoveroptions``: the options of such a node.

``tap`` makes one of these from its options. Only ``tap`` and ``testing`` import this room.
"""
