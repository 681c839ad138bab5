"""Queues, index and deliveries held against the log, by other means than the code that makes them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rmqha.store.derived.index import INDEX_FOLDER, index_paths, read_entries
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.messagestore import MessageStore
from rmqha.testing.sim.violation import Violation
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import Blank, Record, decode_record

DELAY_SECONDS = (1, 2, 5)
"""The delay levels of all simulated nodes, from level 1 on."""
END_OF_TIME_MS = 1 << 62
MAX_FOUND = 1000
PREPARED, ROLLED_BACK = TRANSACTION_TYPES = (0x1 << 2, 0x3 << 2)
"""Flags of messages that no queue has; the index has the former."""
TRANSACTION_TYPE_MASK = 0x3 << 2


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in the log, and where it lies."""

    offset: int
    record: Record


def messages(log: CommitLog, start: int | None = None, end: int | None = None) -> Iterator[Stored]:
    """Messages from ``start`` to before ``end``, by default all that are proved. Raises Violation for no record."""
    at = log.min_offset if start is None else start
    end = log.verified_offset if end is None else end
    while at < end:
        data = log.get_data(at, log.segment_size)
        if data is None:
            raise Violation(f"the log has nothing at {at}, {end} is its end")
        found = decode_record(data)
        if isinstance(found, Blank):
            at += found.size
            continue
        yield Stored(at, found)
        at += found.total_size


def check_derived(name: str, store: MessageStore) -> None:
    """Queues and index have each message of the log where it belongs, and nothing else. Raises Violation.

    A store that has not dispatched all of its log is passed over.
    """
    if store.derived.dispatcher.behind_bytes:
        return
    ends: dict[tuple[str, int], int] = {}
    keys: Counter[tuple[int, int]] = Counter()
    for stored in messages(store.commit_log):
        record = stored.record
        if record.sys_flag & TRANSACTION_TYPE_MASK not in TRANSACTION_TYPES:
            key = record.topic, record.queue_id
            if ends.get(key, record.queue_offset) != record.queue_offset:
                raise Violation(f"{name}: the message at {stored.offset} is number {record.queue_offset} of {key}")
            ends[key] = record.queue_offset + 1
            _check_unit(name, store, stored)
        if record.sys_flag & TRANSACTION_TYPE_MASK != ROLLED_BACK:
            keys += _keys_of(stored)
            _check_keys(name, store, stored)
    for key, queue in store.derived.queues.queues.items():
        if key in ends and queue.max_offset != ends[key]:
            raise Violation(f"{name}: queue {key} ends at {queue.max_offset}, the log says {ends[key]}")
    _check_entries(name, store, keys)


def _check_unit(name: str, store: MessageStore, stored: Stored) -> None:
    record = stored.record
    queue = store.derived.queues.queues.get((record.topic, record.queue_id))
    unit = None if queue is None else queue.unit(record.queue_offset)
    expected = (stored.offset, record.total_size, _tags_code(record))
    if unit != expected:
        raise Violation(
            f"{name}: unit {record.queue_offset} of queue {record.queue_id} of {record.topic} is {unit}, not {expected}"
        )


def _tags_code(record: Record) -> int:
    properties = record.properties
    if record.topic == SCHEDULE_TOPIC:
        return record.store_timestamp + 1000 * DELAY_SECONDS[int(properties["DELAY"]) - 1]
    return _java_hash(properties.get("TAGS", ""))


def _java_hash(text: str) -> int:
    """As Java's String.hashCode."""
    code = 0
    for char in text:
        code = (31 * code + ord(char)) % (1 << 32)
    return code - (1 << 32) if code >= 1 << 31 else code


def _texts(record: Record) -> list[str]:
    """The keys that the index has of this message."""
    properties = record.properties
    own = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return [*own, *properties.get("KEYS", "").split()]


def _keys_of(stored: Stored) -> "Counter[tuple[int, int]]":
    """The hash and the offset of each entry that the index has of this message."""
    topic = stored.record.topic
    return Counter((abs(_java_hash(f"{topic}#{key}")), stored.offset) for key in _texts(stored.record))


def _check_entries(name: str, store: MessageStore, keys: "Counter[tuple[int, int]]") -> None:
    """The index has these entries of messages that the log still has, and no others."""
    index, log = store.derived.index, store.commit_log
    assert index is not None, "simulated nodes have one"
    found: Counter[tuple[int, int]] = Counter()
    for path, geometry in zip(index_paths(store.root / INDEX_FOLDER, store.disk), index.geometries, strict=True):
        for hashed, offset, _, _ in read_entries(path, geometry, store.disk).tolist():
            if offset >= log.min_offset:
                found[hashed, offset] += 1
    if found != keys:
        more, missing = found - keys, keys - found
        raise Violation(f"{name}: the index has entries that it should not have: {more}, and misses: {missing}")


def _check_keys(name: str, store: MessageStore, stored: Stored) -> None:
    index, record = store.derived.index, stored.record
    for key in _texts(record):
        assert index is not None, "simulated nodes have one"
        if stored.offset not in index.query(record.topic, key, 0, END_OF_TIME_MS, MAX_FOUND):
            raise Violation(f"{name}: the index does not lead from {key} of {record.topic} to {stored.offset}")


def undelivered(log: CommitLog, clock_is_true: bool) -> list[str]:
    """The keys of delayed messages in the log that were not delivered. Raises Violation for one that came too early.

    Times are not judged if the wall clock has been set in between.
    """
    waiting: dict[str, Stored] = {}
    delivered: set[str] = set()
    for stored in messages(log):
        record = stored.record
        key = record.properties.get("UNIQ_KEY", "")
        if record.topic == SCHEDULE_TOPIC:
            waiting.setdefault(key, stored)
        elif key in waiting:
            delivered.add(key)
            before = waiting[key].record
            waited_ms = record.store_timestamp - before.store_timestamp
            if clock_is_true and waited_ms < 1000 * DELAY_SECONDS[int(before.properties["DELAY"]) - 1]:
                raise Violation(f"delayed message {key} was delivered after {waited_ms} ms")
    return [key for key in waiting if key not in delivered]
