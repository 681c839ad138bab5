"""What dispatch makes of many messages at once: units of consume queues, and keys of the index.

The rules are those of ``rmqha.store.request``, which stays the reference. Here they are applied to whole columns; in
Python there is a loop only over topics, and over texts beyond ASCII.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqha.pipeline.decode import Ints, Mask, PropertyPairs, Records, slices
from rmqha.store.consumequeue import UNIT_DTYPE
from rmqha.store.index import HASHED_KEY_DTYPE, HashedKeys
from rmqha.store.request import is_no_folder
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import java_hash, stored_hashes, without_sign
from rmqha.wire.record import QUEUED_TRANSACTION_TYPES, TRANSACTION_ROLLBACK_TYPE, TRANSACTION_TYPE_MASK

KEY_SEPARATOR = ord(" ")
PLACED_DTYPE = np.dtype([("topic", "i4"), ("queue_id", "i4"), ("queue_offset", "i8"), ("unit", UNIT_DTYPE)])
PlacedUnits = npt.NDArray[np.void]
"""Units and their places; the topic is a number of ``BulkDispatch.topics``."""


class Dispatched(NamedTuple):
    """What some messages become, in the order of the log. ``refused`` messages fit no queue."""

    messages: int
    refused: int
    units: PlacedUnits
    keys: HashedKeys


TOPIC_DTYPE = np.dtype([("number", "i4"), ("is_folder", "?"), ("is_schedule", "?"), ("hash", "i8")])
"""What is known of a topic; the hash is that of its name and the ``#`` that follows it in an index key."""


class BulkDispatch:
    """Dispatches messages; ``topics`` are those that it has met."""

    def __init__(self, levels: DelayLevels | None = None) -> None:
        self.topics: list[str] = []
        self._known: dict[bytes, tuple[int, bool, bool, int]] = {}
        self._levels = levels or DelayLevels()

    def __call__(self, records: Records) -> Dispatched:
        """The units and keys of these messages, which have been laid out."""
        some = _Messages(records, self._topics_of(records))
        has_place = some.topic["is_folder"] & (some.queue_offset >= 0)
        return Dispatched(
            len(records),
            int((some.is_queued & ~has_place).sum()),
            self._units(some)[some.is_queued & has_place],
            _keys(some),
        )

    def _topics_of(self, records: Records) -> npt.NDArray[np.void]:
        names, which = _different(slices(records.buffer, *records.topic))
        known = [self._known.get(name) or self._meet(name) for name in names]
        topics: npt.NDArray[np.void] = np.array(known, TOPIC_DTYPE)
        return topics[which]

    def _meet(self, name: bytes) -> tuple[int, bool, bool, int]:
        topic = name.decode("utf-8", "surrogateescape")
        known = len(self.topics), not is_no_folder(topic), topic == SCHEDULE_TOPIC, java_hash(f"{topic}#")
        self.topics.append(topic)
        self._known[name] = known
        return known

    def _units(self, some: "_Messages") -> PlacedUnits:
        units = np.empty(len(some.records), PLACED_DTYPE)
        units["topic"] = some.topic["number"]
        units["queue_id"] = some.records.ints("queueId")
        units["queue_offset"] = some.queue_offset
        units["unit"]["physical_offset"] = some.records.physical_offset
        units["unit"]["size"] = some.records.ints("totalSize")
        units["unit"]["tags_code"] = self._tags_codes(some)
        return units

    def _tags_codes(self, some: "_Messages") -> Ints:
        codes = np.zeros(len(some.records), np.int64)
        rows, begins, lengths = some.properties.places("TAGS")
        codes[rows] = stored_hashes(some.properties.data, begins, lengths, np.zeros(len(rows), np.int64))
        if some.topic["is_schedule"].any():
            rows, delays = self._delays(some)
            codes[rows] = some.store_timestamp[rows] + delays
        return codes

    def _delays(self, some: "_Messages") -> tuple[Ints, Ints]:
        """Which messages are delayed, and by how many ms."""
        rows, begins, lengths = some.properties.places("DELAY")
        delayed = some.topic["is_schedule"][rows]
        texts, which = _different(slices(some.properties.data, begins[delayed], lengths[delayed]))
        delays = [self._levels.tags_code(text.decode("utf-8", "surrogateescape"), 0) for text in texts]
        has_level = np.array([delay is not None for delay in delays], bool)[which]
        return rows[delayed][has_level], np.array([delay or 0 for delay in delays], np.int64)[which][has_level]


class _Messages:
    """Columns of some messages; what several need is made once."""

    def __init__(self, records: Records, topic: npt.NDArray[np.void]) -> None:
        self.records = records
        self.topic = topic
        self.properties = PropertyPairs(slices(records.buffer, *records.properties))
        self.queue_offset = records.ints("queueOffset")
        self.store_timestamp = records.ints("storeTimestamp")

    @cached_property
    def _transaction_type(self) -> Ints:
        return self.records.sys_flag & TRANSACTION_TYPE_MASK

    @cached_property
    def is_queued(self) -> Mask:
        """Whether each has a place in a consume queue."""
        return np.isin(self._transaction_type, QUEUED_TRANSACTION_TYPES)

    @property
    def is_indexed(self) -> Mask:
        """Whether the keys of each are in the index."""
        indexed: Mask = self._transaction_type != TRANSACTION_ROLLBACK_TYPE
        return indexed


def _keys(some: _Messages) -> HashedKeys:
    """UNIQ_KEY first, then each of KEYS, message by message."""
    properties = some.properties
    parts = zip(properties.places("UNIQ_KEY"), _words(properties, "KEYS"), strict=True)
    rows, begins, lengths = (np.concatenate(part) for part in parts)
    order = np.argsort(rows, kind="stable")
    order = order[some.is_indexed[rows[order]]]
    rows = rows[order]
    keys = np.empty(len(rows), HASHED_KEY_DTYPE)
    keys["hash"] = without_sign(stored_hashes(properties.data, begins[order], lengths[order], some.topic["hash"][rows]))
    keys["physical_offset"] = some.records.physical_offset[rows]
    keys["store_timestamp"] = some.store_timestamp[rows]
    return keys


def _words(properties: PropertyPairs, name: str) -> tuple[Ints, Ints, Ints]:
    """As ``PropertyPairs.places``, but each word of the value by itself."""
    rows, starts, lengths = properties.places(name)
    spaces = np.flatnonzero(properties.data == KEY_SEPARATOR)  # one outside of the values makes no word
    begins = np.sort(np.concatenate([starts, spaces + 1]), kind="stable")
    ends = np.sort(np.concatenate([starts + lengths, spaces]), kind="stable")
    is_word = ends > begins
    begins, ends = begins[is_word], ends[is_word]
    return rows[np.searchsorted(starts, begins, side="right") - 1], begins, ends - begins


def _different(values: pa.BinaryArray) -> tuple[list[bytes], Ints]:
    """Different values, and which of them each is."""
    encoded = values.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
