"""Doubles that our users' tests may use too.

In reading order:

- ``memory``: a commit log without a disk.
- ``archive``: unpacks archives of stores.
- ``records``: makes logs for tests and benchmarks.
- ``forkserver``: starts nodes and commands as forks of a process that has imported what they need.
- ``nodes``: runs nodes as processes.
- ``putnode``: a master that puts messages on command.
- ``proxy``: a TCP proxy that stages network faults.
- ``keystore``: the keys and leases of a coordinator in memory.
- ``coordinator``: a coordinator in memory, whose answers can be late or lost.
- ``etcd``: runs members of a real etcd.
- ``witness``: runs a witness.
- ``sim/``: a simulator of a master and its slaves, repeatable by seed.
"""
