"""The disk: a store as RocketMQ 4.9 lays it out (spec/store.md).

In reading order. The log: ``errors``, ``mappedfile`` (one segment, and the queue of them), ``commitlog`` (the log as
bytes and records), ``checkpoint``, ``lockfile`` and ``nodestate`` (small files), ``recovery`` (where the log ends
after a stop), ``flush`` (fdatasync in a thread), ``groupcommit`` (waiting for an offset). Made from it:
``consumequeue``, ``index``, ``dispatch`` (builds both), ``derived`` (opens both). In and out: ``message`` and
``put``, ``reading``, ``retention``, ``metadata`` (topics.json and its sisters). ``messagestore`` is the facade:
opens, owns and closes all of it. ``reader`` and ``audit`` look at a store from outside.
"""
