"""A producer's own log of what it sent: topics, keys, message ids and times, as rows for ``reconcile``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqha.kit.times import EPOCH, MILLISECOND, parse_time
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.entries import ENTRIES, ID_PREFIX, KEY_PREFIX, EntryWriter, Period
from rmqha.pipeline.jobs.rowfiles import ROWS_AT_ONCE, Row, read_rows

USUAL_NAMES = {
    "topic": ("topic",),
    "key": ("key", "keys"),
    "msgId": ("msgId", "msg_id", "messageId", "message_id", "id"),
    "time": ("time", "sendTime", "send_time", "timestamp", "bornTimestamp"),
}
"""The columns of a log, and the names that are looked for."""


@dataclass(frozen=True, slots=True)
class SendLog:
    """How to read a log. ``columns`` names columns that have other names than ``USUAL_NAMES``. ``topic`` is that of
    rows without one. Only rows of ``topics`` count, and those sent within ``period``.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    topics: frozenset[str] | None = None
    period: Period = (None, None)


@dataclass(frozen=True, slots=True)
class Sends:
    """What a log holds: the file of its rows, their number and topics, and whether they have ids, or only keys."""

    path: str | None
    rows: int
    topics: frozenset[str]
    ids: bool
    keys: bool


def sends_of_log(path: Path, log: SendLog, folder: str) -> Sends:
    """Write the rows of a log into a file in ``folder``. Raises OptionError, OSError."""
    topics: set[str] = set()
    has_ids = has_keys = False
    with EntryWriter(folder) as writer:
        rows = _sends(path, log)
        while part := list(islice(rows, ROWS_AT_ONCE)):
            batch = pa.RecordBatch.from_pylist(part, ENTRIES)
            writer.write([batch])
            topics.update(batch["topic"].unique().to_pylist())
            once = batch["onlyOnce"].true_count
            has_ids, has_keys = has_ids or once > 0, has_keys or once < len(batch)
    written = writer.written()
    return Sends(written.path, written.rows, frozenset(topics), has_ids, has_keys)


def _sends(path: Path, log: SendLog) -> Iterator[Row]:
    names: dict[str, str | None] | None = None
    for number, row in read_rows(path):
        if names is None:
            names = _names(path, row, log)
        send = {one: _text(row.get(name)) if name is not None else None for one, name in names.items()}
        topic = send["topic"] or log.topic
        if topic is None:
            raise OptionError(f"row {number} of {path} has no topic: name it with --topic")
        if log.topics is not None and topic not in log.topics:
            continue
        time = _time(path, number, row.get(names["time"] or ""))
        if not _is_within(time, log.period):
            continue
        keys = (send["key"] or "").split()
        if not send["msgId"] and not keys:
            raise OptionError(f"row {number} of {path} has neither a key nor a message id")
        for ident, once in _idents(send["msgId"], keys):
            yield {
                "side": 0,
                "topic": topic,
                "ident": ident,
                "onlyOnce": once,
                "waits": False,
                "msgId": send["msgId"],
                "keys": send["key"],
                "time": time,
                "source": str(path),
                "place": number,
                "consumed": 0,
            }


def _names(path: Path, row: Row, log: SendLog) -> dict[str, str | None]:
    """The names of the columns in this log, by the first row. Raises OptionError."""
    strange = [name for name in log.columns.values() if name not in row]
    if strange:
        raise OptionError(f"{path} has no column {strange[0]}: it has {', '.join(map(str, row))}")
    found = {
        one: log.columns.get(one) or next((name for name in usual if name in row), None)
        for one, usual in USUAL_NAMES.items()
    }
    if found["msgId"] is None and found["key"] is None:
        raise OptionError(f"{path} has neither a column key nor msgId; it has {', '.join(map(str, row))}: --column")
    return found


def _idents(msg_ids: str | None, keys: list[str]) -> Iterator[tuple[str, bool]]:
    """What the stored message must share with a send: its id, or else its first key. A batch has several ids."""
    if msg_ids:
        for msg_id in msg_ids.split(","):
            yield ID_PREFIX + msg_id.strip(), True
    else:
        yield KEY_PREFIX + keys[0], False


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _time(path: Path, number: int, value: Any) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - EPOCH) // MILLISECOND
    try:
        return parse_time(str(value))
    except ValueError as error:
        raise OptionError(f"row {number} of {path}: {value!r} is not a time: {error}") from error


def _is_within(time: int | None, period: Period) -> bool:
    start, end = period
    return time is None or ((start is None or time >= start) and (end is None or time < end))
