"""Tables of queue offsets between brokers and clients: ``{"offsetTable":{{"queueId":0,…}:5}}`` (spec/remoting.md 2.21).

Brokers send them with a reset of a group's offsets (request 220). Clients answer with them what they have consumed
(request 221).
"""

import re
from typing import Any, NamedTuple

import orjson

from rmqha.kit.steps import Steps
from rmqha.wire.beans import LONG_BITS, read_bean, read_integer, read_objects

ROWS_AT_ONCE = 256
"""Rows read per step."""
OFFSET_TABLE = "offsetTable"
MESSAGE_QUEUE_TABLE = "messageQueueTable"

_ROW = re.compile(rb"\s*+(\{[^{}]*+\})\s*+:\s*+(-?[0-9]{1,19})\s*+([,}])")


class QueueName(NamedTuple):
    """A queue, as Java names it in the key of a table."""

    topic: str
    broker_name: str
    queue_id: int


def reading_offsets(body: bytes, name: str) -> Steps[dict[QueueName, int]]:
    """The offsets by queue in the field ``name`` of a body, read in steps. An empty body has none.

    Raises ValueError if the body has another form.
    """
    offsets: dict[QueueName, int] = {}
    if not body.strip():
        return offsets
    start = re.match(rb'\s*+\{\s*+"' + name.encode() + rb'"\s*+:\s*+\{\s*+(\}?)', body)
    if start is None:
        return _of_list(body, name)
    at, last = start.end(), start[1] or b","
    while last == b",":
        row = _ROW.match(body, at)
        if row is None:
            raise ValueError(f"{name} contains something other than a queue and its offset at byte {at}")
        offsets[read_bean(QueueName, orjson.loads(row[1]))] = int(row[2])
        at, last = row.end(), row[3]
        if len(offsets) % ROWS_AT_ONCE == 0:
            yield
    if re.fullmatch(rb"\s*+\}\s*+", body[at:]) is None:
        raise ValueError(f"{name} is followed by something else at byte {at}")
    return offsets


def _of_list(body: bytes, name: str) -> dict[QueueName, int]:
    """From the list that a broker sends if a C++ tool asked for the reset."""
    content: Any = orjson.loads(body)
    rows = read_objects(content, name)
    return {read_bean(QueueName, row): read_integer(row.get("offset"), LONG_BITS) for row in rows}
