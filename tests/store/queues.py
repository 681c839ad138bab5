"""Logs of messages in queues, and what queues and index must say of them, found by reading the log from end to end."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.derived.consumequeue import Unit
from rmqha.store.derived.derived import Derived
from rmqha.store.derived.index import KeyIndex
from rmqha.store.log.commitlog import CommitLog
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import java_hash
from rmqha.wire.properties import format_properties
from rmqha.wire.record import (
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Blank,
    Record,
    check_record,
)
from tests.store.logs import FIRST_STORE_TIMESTAMP

FOREVER = 2**62
MANY = 1_000_000
TRANSACTION_TYPES = 0xC


class Writer:
    """Puts messages into a log as a broker does: offsets of each queue count up, every message a second later."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.offsets: Counter[tuple[str, int]] = Counter()
        self.number = 0

    def put(self, topic: str = "T", queue_id: int = 0, body: bytes = b"", **fields: Any) -> Record:
        """A message; ``fields`` in upper case are properties, others the record's. Gives the record as stored."""
        properties = {name: value for name, value in fields.items() if name.isupper()}
        others = {name: value for name, value in fields.items() if not name.isupper()}
        is_counted = others.get("sys_flag", 0) & TRANSACTION_TYPES not in (
            TRANSACTION_PREPARED_TYPE,
            TRANSACTION_ROLLBACK_TYPE,
        )
        record = Record(
            topic,
            body,
            format_properties(properties),
            queue_id=queue_id,
            queue_offset=self.offsets[topic, queue_id] if is_counted else 0,
            store_timestamp=FIRST_STORE_TIMESTAMP + 1000 * self.number,
        )
        record = replace(record, **others)
        offset = self.log.append(record)
        self.offsets[topic, queue_id] += is_counted
        self.number += 1
        return replace(record, physical_offset=offset)

    def put_many(self, count: int, queues: int = 3) -> list[Record]:
        """Messages of several queues, with keys and tags."""
        return [
            self.put(
                f"T{number % 2}",
                number % queues,
                b"b" * (number % 5 * 40),
                KEYS=f"k{number} all",
                UNIQ_KEY=f"u{number}",
                TAGS=f"Tag{number % 3}",
            )
            for number in range(self.number, self.number + count)
        ]


@dataclass
class Expected:
    """Queues and index of a log. Units by topic and queue, and then by queue offset; offsets in the log by key."""

    units: dict[tuple[str, int], dict[int, Unit]] = field(default_factory=dict)
    keys: dict[tuple[str, str], list[int]] = field(default_factory=dict)


def records_of(log: CommitLog, start: int | None = None) -> list[Record]:
    """All messages of the log, each proved."""
    found, at = [], log.min_offset if start is None else start
    while at < log.verified_offset:
        room = log.segment_size - at % log.segment_size
        data = log.get_data(at, room)
        assert data is not None
        record = check_record(data, 0, at, room)
        if isinstance(record, Blank):
            at += record.size
        else:
            found.append(record)
            at += record.total_size
    return found


def expected_of(log: CommitLog, start: int | None = None) -> Expected:
    """What store.md 3.11, 6 and 7.3 say of the log's messages."""
    return expected_of_records(records_of(log, start))


def expected_of_records(records: Iterable[Record]) -> Expected:
    """What they say of these messages, which are in the order of their log."""
    expected = Expected()
    for record in records:
        properties = record.properties
        kind = record.sys_flag & TRANSACTION_TYPES
        tags_code = java_hash(properties.get("TAGS", ""))
        if record.topic == SCHEDULE_TOPIC and int(properties.get("DELAY", 0)) > 0:
            level = min(int(properties["DELAY"]), 18)
            tags_code = DelayLevels().delivery_time(level, record.store_timestamp)
        if kind not in (TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE):
            units = expected.units.setdefault((record.topic, record.queue_id), {})
            units[record.queue_offset] = Unit(record.physical_offset, record.total_size, tags_code)
        if kind != TRANSACTION_ROLLBACK_TYPE:
            keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
            for key in filter(None, keys):
                expected.keys.setdefault((record.topic, key), []).append(record.physical_offset)
    return expected


def check_derived(test: SynchronousTestCase, log: CommitLog, derived: Derived, context: object = None) -> None:
    """Queues and index are what the log says, no more and no less."""
    expected = expected_of(log)
    found = {
        key: {offset: queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)}
        for key, queue in derived.queues.queues.items()
        if queue.max_offset > queue.min_offset
    }
    test.assertEqual(found, expected.units, context)
    if derived.index is not None:
        check_index(test, derived.index, expected, context, log.min_offset)


def check_index(
    test: SynchronousTestCase, index: KeyIndex, expected: Expected, context: object = None, min_offset: int = 0
) -> None:
    """Every key is found, and nothing else is, but for messages that the log no longer has."""
    for (topic, key), offsets in expected.keys.items():
        found = [offset for offset in index.query(topic, key, 0, FOREVER, MANY) if offset >= min_offset]
        test.assertEqual(found, offsets, (topic, key, context))
    test.assertEqual(index.query("nobody", "nothing", 0, FOREVER, MANY), [], context)
