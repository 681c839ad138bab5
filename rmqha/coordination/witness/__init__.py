"""The witness: a small coordinator in the process of a name server, for two nodes that have no etcd.

It answers those calls of etcd v3's JSON gateway that our client uses. It is one process with one journal: it does not
replicate itself. While it is away the nodes go on, because they promise each other not to race (docs/failover.md).

In reading order:

- ``journal``: what is kept on the disk: one file, each entry with a CRC, flushed before an answer.
- ``counted``: the number of the last answered entry, in a second place.
- ``witnessservice``: puts calls in order, commits them together, ends leases, and tells watches.
- ``shares``: how much one address may use.
- ``calls``: the JSON of requests and answers, and logins.
- ``http``: the port, and the limits that keep it cheap.
"""
