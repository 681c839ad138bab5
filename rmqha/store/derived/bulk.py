"""Makes units of consume queues and keys of the index from many messages at once.

The rules are those of ``rmqha.store.derived.dispatchrequest``, which is the reference. Here numpy applies them to whole
columns. Python loops only over topics, and over texts that are not ASCII.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqha.store.deletions import NOTHING_DELETED, DeletedTopicTable
from rmqha.store.derived.consumequeue import UNIT_DTYPE
from rmqha.store.derived.dispatchrequest import SMALLEST_RECORD_BYTES, is_no_folder
from rmqha.store.derived.index import HASHED_KEY_DTYPE, HashedKeys
from rmqha.wire.columns import Bytes, Ints, Mask, PropertyPairs, Records
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import java_hash
from rmqha.wire.javahashes import row_hashes, stored_hashes, without_sign
from rmqha.wire.layout import INT16, MESSAGE_MAGIC_CODE
from rmqha.wire.record import (
    INNER_BATCH_FLAG,
    QUEUED_TRANSACTION_TYPES,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)

SPACE, LAST_ASCII = ord(" "), 0x7F
PLACED_DTYPE = np.dtype([("topic", "i4"), ("queue_id", "i4"), ("queue_offset", "i8"), ("unit", UNIT_DTYPE)])
PlacedUnits = npt.NDArray[np.void]
"""Units and their places in queues. The topic is an index of ``BulkDispatch.topics``."""
SHAPES_TRIED = 16
"""How many shapes of one length are tried. Messages of other shapes are dispatched column by column."""
FEW_ROWS = 8
"""If fewer messages than this have one length, their shapes are not tried."""
SMALLEST_TAIL_BYTES = 3
"""After the body at least the lengths of topic and properties follow."""
LENGTHS_BY_COLUMN = 64
"""Up to this many lengths of strings are gathered column by column. With more, strings are gathered one by one."""


class Dispatched(NamedTuple):
    """The units and keys of some messages, in the order of the log. ``refused`` counts messages that fit no queue.

    ``batch_topics`` are the topics with batches of 5.x, whose units belong into batch consume queues.
    """

    messages: int
    refused: int
    units: PlacedUnits
    keys: HashedKeys
    batch_topics: frozenset[str] = frozenset()


TOPIC_DTYPE = np.dtype([("number", "i4"), ("is_folder", "?"), ("is_schedule", "?"), ("hash", "i8")])
"""What is known of a topic. The hash is that of its name and the ``#`` after it in an index key."""


class BulkDispatch:
    """Dispatches messages. ``topics`` are those seen so far, ``deleted`` those whose messages get no units."""

    def __init__(self, delay_levels: DelayLevels | None = None, deleted: DeletedTopicTable = NOTHING_DELETED) -> None:
        self.topics: list[str] = []
        self.deleted = deleted
        self._known: dict[bytes, int] = {}
        self._facts: npt.NDArray[np.void] = np.empty(0, TOPIC_DTYPE)
        self._levels = delay_levels if delay_levels is not None else DelayLevels()
        self._shapes: dict[int, list[_Shape]] = {}
        """Known shapes, by the number of bytes after the body. The one used last comes first."""

    def __call__(self, records: Records) -> Dispatched:
        """The units and keys of these messages."""
        some = _Columns(records)
        rest = self._by_shape(some)
        if len(rest):
            self._by_columns(some, rest)
        queue_offset = records.ints("queueOffset")
        is_queued = np.ones(len(records), bool)
        if records.flags & TRANSACTION_TYPE_MASK:
            is_queued = np.logical_or.reduce([some.transaction_type == kind for kind in QUEUED_TRANSACTION_TYPES])
        has_place = (queue_offset >= 0) & (queue_offset <= records.physical_offset // SMALLEST_RECORD_BYTES)
        batch_topics = frozenset[str]()
        if records.flags & INNER_BATCH_FLAG:  # a batch takes many queue offsets
            is_batch = (records.sys_flag & INNER_BATCH_FLAG) != 0
            batch_topics = self._topics_of(some, is_batch)
            has_place |= is_batch & (queue_offset >= 0) & (queue_offset <= records.physical_offset)
        has_place &= self._facts["is_folder"][some.topic]
        units = np.empty(len(records), PLACED_DTYPE)
        units["topic"] = some.topic
        units["queue_id"] = records.ints("queueId")
        units["queue_offset"] = queue_offset
        units["unit"]["physical_offset"] = records.physical_offset
        units["unit"]["size"] = records.ints("totalSize")
        units["unit"]["tags_code"] = some.tags_code
        taken = is_queued & has_place
        if len(records) and int(records.physical_offset[0]) < self.deleted.end:
            marks = np.array([self.deleted.marks.get(topic, 0) for topic in self.topics], np.int64)
            taken &= records.physical_offset >= marks[some.topic]
        if not taken.all():
            units = units.compress(taken)
        return Dispatched(len(records), int((is_queued & ~has_place).sum()), units, some.keys(), batch_topics)

    def _topics_of(self, some: "_Columns", rows: Mask) -> frozenset[str]:
        return frozenset(self.topics[number] for number in np.unique(some.topic[rows]).tolist())

    def _by_shape(self, some: "_Columns") -> Ints:
        """Dispatch the messages that share their shape with many others. Returns the rows of the rest."""
        begins, lengths = some.tails
        rest = [some.odd_rows]
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            rows = np.flatnonzero(lengths == length)
            if length < SMALLEST_TAIL_BYTES:  # messages of another layout
                continue
            if len(rows) < FEW_ROWS:
                rest.append(rows)
                continue
            tails = _windows(some.records.buffer, length)[begins[rows]].view(np.uint8).reshape(-1, length)
            rest.append(rows[self._peel(some, rows, tails)])
        return np.sort(np.concatenate(rest))

    def _peel(self, some: "_Columns", rows: Ints, tails: npt.NDArray[np.uint8]) -> Ints:
        """Dispatch messages of a few shapes. Returns which rows of ``tails`` have other shapes."""
        shapes = self._shapes.setdefault(tails.shape[1], [])
        left = np.arange(len(rows))
        for number in range(SHAPES_TRIED):
            if not len(left):
                break
            if number < len(shapes):
                shape = shapes[number]
            else:
                found = self._shape_of(tails[left[0]].tobytes())
                if found is None:
                    break
                shape = found
                shapes.append(shape)
            has_it = shape.is_of(tails if len(left) == len(tails) else tails[left])
            if not has_it.any():
                continue
            shapes.insert(0, shapes.pop(number))
            which = left[has_it]
            some.add(rows[which], shape, tails if len(which) == len(tails) else tails[which])
            left = left[~has_it]
        del shapes[SHAPES_TRIED // 2 :]
        return left

    def _shape_of(self, tail: bytes) -> "_Shape | None":
        """The shape of a record's bytes after its body, None if it is unusual."""
        topic_end = 1 + tail[0]
        topic, stored = tail[1:topic_end], tail[topic_end + INT16.size :]
        number = self._number(topic, len(topic))
        if self.topics[number] == SCHEDULE_TOPIC:
            return None
        return _shape_of(tail, number, int(self._facts["hash"][number]), stored)

    def _number(self, name: bytes, length: int) -> int:
        name = name.ljust(length, b"\0")  # numpy removes zeros at the end
        number = self._known.get(name)
        if number is None:
            topic = name.decode("utf-8", "surrogateescape")
            number = self._known[name] = len(self.topics)
            facts = number, not is_no_folder(topic), topic == SCHEDULE_TOPIC, java_hash(f"{topic}#")
            self.topics.append(topic)
            if number == len(self._facts):
                self._facts = np.resize(self._facts, 2 * number + 16)
            self._facts[number] = facts
        return number

    def _by_columns(self, some: "_Columns", rows: Ints) -> None:
        """Dispatch messages of any shape."""
        few = _Messages(some.records if len(rows) == len(some.records) else some.records.take(rows))
        begins, lengths = few.records.topic
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            which = np.flatnonzero(lengths == length)
            names = _windows(few.records.buffer, length)[begins[which]].tolist()
            numbers = [self._number(name, length) for name in names]
            few.topic[which] = self._facts[numbers]
        some.topic[rows] = few.topic["number"]
        some.tags_code[rows] = self._tags_codes(few)
        owners, hashes = _key_hashes(few)
        some.add_keys(rows, owners, hashes)

    def _tags_codes(self, some: "_Messages") -> Ints:
        codes = np.zeros(len(some.records), np.int64)
        rows, begins, lengths = some.places("TAGS")
        codes[rows] = stored_hashes(some.properties.data, begins, lengths, np.zeros(len(rows), np.int64))
        if some.topic["is_schedule"].any():
            rows, delays = self._delays(some)
            codes[rows] = some.store_timestamp[rows] + delays
        return codes

    def _delays(self, some: "_Messages") -> tuple[Ints, Ints]:
        """Which messages are delayed, and by how many ms."""
        rows, begins, lengths = some.places("DELAY")
        delayed = some.topic["is_schedule"][rows]
        rows, begins, ends = rows[delayed], begins[delayed], (begins + lengths)[delayed]
        data, known = some.properties.data, dict[bytes, int | None]()
        delays = np.zeros(len(rows), np.int64)
        has_level = np.zeros(len(rows), bool)
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            text = data[begin:end].tobytes()
            if text not in known:
                known[text] = self._levels.tags_code(text.decode("utf-8", "surrogateescape"), 0)
            delay = known[text]
            if delay is not None:
                delays[row], has_level[row] = delay, True
        return rows[has_level], delays[has_level]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the bytes after the body of many records have in common: topic, names of properties, lengths of values.

    A tail has this shape if each byte is at most ``span`` above ``low``. ``keys`` and ``tags`` are the columns where
    index keys and TAGS start and end.
    """

    topic: int
    topic_hash: int
    low: npt.NDArray[np.uint8]
    span: npt.NDArray[np.uint8]
    keys: tuple[tuple[int, int], ...]
    tags: tuple[int, int] | None

    def is_of(self, tails: npt.NDArray[np.uint8]) -> Mask:
        """Which tails have this shape."""
        fits: Any = tails - self.low <= self.span
        if fits.all():
            return np.ones(len(tails), bool)
        has_it: Mask = fits.all(axis=1)
        return has_it


def _shape_of(tail: bytes, topic: int, topic_hash: int, stored: bytes) -> _Shape | None:
    """None if a value has a control or non-ASCII character, a name occurs twice, or a name or value is empty."""
    low = np.frombuffer(tail, np.uint8).copy()
    span = np.zeros(len(tail), np.uint8)
    places: dict[bytes, tuple[int, int]] = {}
    at = len(tail) - len(stored)
    for pair in stored.removesuffix(b"\x02").split(b"\x02") if stored else []:
        name, separator, value = pair.partition(b"\x01")
        if not (name and separator and value) or name in places or not value.isascii() or min(value) < SPACE:
            return None
        begin = at + len(name) + 1
        end = at = begin + len(value)
        at += 1
        places[name] = begin, end
        low[begin:end], span[begin:end] = SPACE, LAST_ASCII - SPACE
    words = _split(tail, *places[b"KEYS"]) if b"KEYS" in places else []
    for begin, end in words:
        low[begin:end], span[begin:end] = SPACE + 1, LAST_ASCII - SPACE - 1
    if b"KEYS" in places:
        begin, end = places[b"KEYS"]
        is_space = np.flatnonzero(np.frombuffer(tail, np.uint8)[begin:end] == SPACE) + begin
        low[is_space], span[is_space] = SPACE, 0
    keys = ([places[b"UNIQ_KEY"]] if b"UNIQ_KEY" in places else []) + words
    return _Shape(topic, topic_hash, low, span, tuple(keys), places.get(b"TAGS"))


def _split(tail: bytes, begin: int, end: int) -> list[tuple[int, int]]:
    """The start and end of each word of a value."""
    words = []
    for word in tail[begin:end].split(b" "):
        if word:
            words.append((begin, begin + len(word)))
        begin += len(word) + 1
    return words


class _Columns:
    """The units and keys of some messages, row by row, from shapes and from columns."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.topic = np.zeros(len(records), np.int64)
        self.tags_code = np.zeros(len(records), np.int64)
        self.transaction_type = records.sys_flag & TRANSACTION_TYPE_MASK
        self.is_indexed: Mask = self.transaction_type != TRANSACTION_ROLLBACK_TYPE
        self._key_count = np.zeros(len(records), np.int64)
        self._key_parts: list[tuple[Ints, Ints, Ints]] = []
        """For some keys: their rows, their numbers among the keys of the row, and their hashes."""

    @cached_property
    def tails(self) -> tuple[Ints, Ints]:
        """The start and the number of the bytes after the body. The number is 0 for messages of another layout."""
        begins, body_lengths = self.records.body
        begins = begins + body_lengths
        lengths = self.records.at + self.records.ints("totalSize") - begins
        lengths[self._is_odd] = 0
        return begins, lengths

    @cached_property
    def _is_odd(self) -> Mask:
        is_odd: Mask = self.records.header["magic"] != MESSAGE_MAGIC_CODE
        return is_odd

    @property
    def odd_rows(self) -> Ints:
        """The rows of messages of another layout (the second magic code)."""
        return np.flatnonzero(self._is_odd)

    def add(self, rows: Ints, shape: _Shape, tails: npt.NDArray[np.uint8]) -> None:
        """Add topic, tagsCode and keys of the messages in these rows. Their tails have this shape."""
        self.topic[rows] = shape.topic
        if shape.tags is not None:
            self.tags_code[rows] = row_hashes(tails[:, slice(*shape.tags)], 0)
        self._key_count[rows] = len(shape.keys)
        for number, columns in enumerate(shape.keys):
            hashes = row_hashes(tails[:, slice(*columns)], shape.topic_hash)
            self._key_parts.append((rows, np.full(len(rows), number), hashes))

    def add_keys(self, rows: Ints, owners: Ints, hashes: Ints) -> None:
        """Add hashes of keys, message by message. ``owners`` has the number in ``rows`` for each hash."""
        counts = np.bincount(owners, minlength=len(rows))
        self._key_count[rows] = counts
        first = np.cumsum(counts) - counts
        self._key_parts.append((rows[owners], np.arange(len(owners)) - first[owners], hashes))

    def keys(self) -> HashedKeys:
        """The keys of all indexed messages, in the order of the messages."""
        ends = np.cumsum(self._key_count)
        firsts = ends - self._key_count
        total = int(ends[-1]) if len(ends) else 0
        hashes, owners = np.empty(total, np.int64), np.empty(total, np.int64)
        for rows, numbers, some in self._key_parts:
            places = firsts[rows] + numbers
            hashes[places], owners[places] = some, rows
        if not self.is_indexed.all():
            taken = self.is_indexed[owners]
            hashes, owners = hashes[taken], owners[taken]
        keys = np.empty(len(hashes), HASHED_KEY_DTYPE)
        keys["hash"] = without_sign(hashes)
        keys["physical_offset"] = self.records.physical_offset[owners]
        keys["store_timestamp"] = self.records.ints("storeTimestamp")[owners]
        return keys


class _Messages:
    """Columns of some messages of any shape. What several callers need is computed once."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.topic: npt.NDArray[np.void] = np.zeros(len(records), TOPIC_DTYPE)
        data, bounds, self._rows = _gather(records.buffer, *records.properties)
        self.properties = PropertyPairs(data, bounds)
        self.store_timestamp = records.ints("storeTimestamp")

    def places(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Which messages have the property, and the start and length of its value in ``properties.data``."""
        strings, begins, lengths = self.properties.places(name)
        return self._rows[strings], begins, lengths


def _windows(buffer: Bytes, length: int) -> npt.NDArray[np.bytes_]:
    """A view of all stretches of ``length`` bytes. Take only those that are inside the buffer."""
    if not length:
        return np.zeros(len(buffer) + 1, "S1")
    return np.ndarray((len(buffer) - length + 1,), f"S{length}", buffer, strides=(1,))


def _gather(buffer: Bytes, begins: Ints, lengths: Ints) -> tuple[Bytes, Ints, Ints]:
    """Copies of stretches of the buffer, joined; their bounds; and the number of the stretch that each copies."""
    different = np.flatnonzero(np.bincount(lengths)) if len(lengths) else lengths
    if len(different) > LENGTHS_BY_COLUMN:
        view = buffer.data
        ends = (begins + lengths).tolist()
        data = b"".join([view[begin:end] for begin, end in zip(begins.tolist(), ends, strict=True)])
        return np.frombuffer(data, np.uint8), _bounds(lengths), np.arange(len(lengths))
    rows = [np.flatnonzero(lengths == length) for length in different.tolist()]
    columns = [
        _windows(buffer, length)[begins[some]].view(np.uint8)
        for some, length in zip(rows, different.tolist(), strict=True)
        if length
    ]
    order = np.concatenate(rows) if rows else np.empty(0, np.int64)
    data_of = np.concatenate(columns) if columns else np.empty(0, np.uint8)
    return data_of, _bounds(lengths[order]), order


def _bounds(lengths: Ints) -> Ints:
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _key_hashes(some: _Messages) -> tuple[Ints, Ints]:
    """The rows and hashes of all keys, message by message: UNIQ_KEY first, then each of KEYS."""
    parts = zip(some.places("UNIQ_KEY"), _words(some, "KEYS"), strict=True)
    rows, begins, lengths = (np.concatenate(part) for part in parts)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    before = some.topic["hash"][rows]
    return rows, stored_hashes(some.properties.data, begins[order], lengths[order], before)


def _words(some: _Messages, name: str) -> tuple[Ints, Ints, Ints]:
    """As ``_Messages.places``, but for each word of the value."""
    rows, starts, lengths = some.places(name)
    spaces = np.flatnonzero(some.properties.data == SPACE)  # spaces outside the values make no words
    if not len(spaces):
        return rows, starts, lengths
    begins = np.sort(np.concatenate([starts, spaces + 1]), kind="stable")
    ends = np.sort(np.concatenate([starts + lengths, spaces]), kind="stable")
    is_word = ends > begins
    begins, ends = begins[is_word], ends[is_word]
    return rows[np.searchsorted(starts, begins, side="right") - 1], begins, ends - begins
