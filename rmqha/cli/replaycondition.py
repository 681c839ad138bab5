"""The option ``--where`` of ``rmqha replay``: stored messages as rows for a condition in SQL."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from rmqha.client.message import UNIQ_KEY
from rmqha.client.replay import Stored, target_of
from rmqha.pipeline.decode import microseconds_of
from rmqha.pipeline.sql import CONDITION_COLUMNS, Condition

ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 4 << 20


def passing(source: Iterable[Stored | None], condition: Condition) -> Iterator[Stored | None]:
    """The messages for which the condition is true, in their order. None lets the reactor do other work."""
    waiting: list[Stored] = []
    size = 0
    for stored in source:
        if stored is None:
            yield None
            continue
        waiting.append(stored)
        size += len(stored.record.body)
        if len(waiting) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield from _passing(waiting, condition)
            yield None
            waiting, size = [], 0
    yield from _passing(waiting, condition)


def _passing(waiting: list[Stored], condition: Condition) -> Iterator[Stored]:
    rows = pa.Table.from_pylist([_row(stored, condition.uses_body) for stored in waiting], CONDITION_COLUMNS)
    chosen = condition.rows(rows)
    return (stored for number, stored in enumerate(waiting) if number in chosen)


def _row(stored: Stored, with_body: bool) -> dict[str, Any]:
    record = stored.record
    properties = record.properties
    target = target_of(record, properties)
    return {
        "topic": _text(target.topic),
        "queueId": target.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": stored.position,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": microseconds_of(record.born_timestamp),
        "bornHost": str(record.born_host),
        "storeTimestamp": microseconds_of(record.store_timestamp),
        "reconsumeTimes": record.reconsume_times,
        "tags": _text(properties.get("TAGS")),
        "keys": _text(properties.get("KEYS")),
        "msgId": _text(properties.get(UNIQ_KEY)),
        "properties": [(_text(name), _text(value)) for name, value in properties.items()],
        "body": record.body if with_body else None,
    }


def _text(text: str | None) -> str | None:
    """A text without the lone surrogates that stand for bytes that are not UTF-8."""
    return None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
