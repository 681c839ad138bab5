"""Ordinary sends: all that one read of a connection brings, from the bytes of requests to the bytes of the log.

``take`` does for many requests at once what the processors of a broker do for each: it checks them, encodes their
records, units of consume queues, index keys and answers. It stops at the first request that is not ordinary, and the
processors take that one. They are the definition of what is right: it equals them, byte for byte.

In reading order:

- ``run``: what the pass gets, and what it finds.
- ``plain``: the specification of ``take``. Its compiled twin takes its place if it is there (``rmqha.wire.compiled``).
"""

from rmqha.wire.compiled import compiled_or
from rmqha.wire.sends import plain

take = compiled_or(plain.take, "take_sends")
