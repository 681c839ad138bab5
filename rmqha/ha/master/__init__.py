"""The master's end of replication.

In reading order:

- ``progress``: what a master knows about one slave.
- ``handed``: how many bytes of the log the kernel has taken from a connection.
- ``followers``: the one table of slaves, what their copies confirm, and the waits of puts.
- ``enoughslaves``: its policy for a SYNC_MASTER: when enough slaves hold a message.
- ``insyncslaves``: its policy for reads: what slaves confirm, so that consumers may read it.
- ``protocol``: the Protocol and the Factory of a master.
- ``leadership``: with automatic failover, the right to act as the leader.
- ``syncmembers``: its policy with automatic failover: the members that puts wait for.
- ``serving``: how a node serves its log to slaves; nodes and the simulator share it.
"""
