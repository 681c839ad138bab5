"""What dispatch makes of ordinary messages of the log, all in one pass of the compiled kernel.

Without a kernel there is no such pass: dispatch reads many messages with numpy (``rmqha.store.derived.bulk``), as it
reads those that the pass leaves out. Its rules are those of ``rmqha.store.derived.dispatchrequest``.
"""

from typing import NamedTuple

from rmqha.wire.compiled import compiled_or
from rmqha.wire.sends.run import Queue, QueueUnits


class OrdinaryUnits(NamedTuple):
    """Consecutive messages that end at ``end`` of the log: their units, and their keys as packed ``IndexKeys``.

    ``timestamp`` is STORETIMESTAMP (ms) of the last one.
    """

    end: int
    timestamp: int
    messages: int
    queues: dict[Queue, QueueUnits]
    keys: bytes
    key_count: int


def ordinary_units_plain(
    data: bytes | memoryview, base: int, limit: int, most: int, most_keys: int
) -> OrdinaryUnits | None:
    """The messages at the start of ``data``, which is the log from ``base`` on, up to the first one that is odd.

    At most ``most`` that end within the first ``limit`` bytes, and none after that with the ``most_keys``-th key. The
    units of each queue are consecutive. None if there is no such message, or if the messages are of very many queues.
    This plain one takes no message for ordinary.
    """
    return None


ordinary_units = compiled_or(ordinary_units_plain, "ordinary_units")
