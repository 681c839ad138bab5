"""RocketMQ's broker.conf, and the options that set the same keys.

In reading order:

- ``settings``: every setting with its key, its default and its limits, as one frozen ``Settings``.
- ``confkeys``: the keys that a broker.conf may contain, and what we do with those that we do not know.
"""
