"""The coordinator: keys on leases that the nodes of a cluster share, so that they agree on one leader.

In reading order:

- ``interface``: what every coordinator does, and its values and errors.
- ``address``: where a coordinator is, as people write it, and how we log in there.
- ``gateway``: the JSON of etcd's calls, as the client writes and reads it.
- ``streams``: the client's connections, and answers of limited size.
- ``watch``: a watch at etcd or at a witness.
- ``etcd``: the client.
- ``state``: keys and leases as one state machine, for the witness and for the model of tests.
- ``witness/``: the small coordinator in a name server.
"""
