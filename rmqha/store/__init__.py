"""The disk: a store as RocketMQ 4.9 lays it out (spec/store.md).

In reading order: ``errors``, ``mappedfile`` (one segment, and the queue of them), ``commitlog`` (the log as bytes and
records), ``checkpoint`` and ``nodestate`` (small files), ``recovery`` (where the log ends after a stop), ``flush``
(fdatasync in a thread), ``messagestore`` (the facade: opens, owns and closes all of it), ``reader`` (a store read
from outside).
"""
