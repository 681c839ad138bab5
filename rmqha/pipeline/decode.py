"""Many records to Arrow at once (spec/store.md 3): headers by numpy, everything of variable length by Arrow's ``take``.

Nothing is copied value by value in Python: the 88 bytes of all headers are gathered at once, and a body, topic or
property is one copy in C, out of an Arrow array that lies over the whole buffer.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from rmqha.pipeline.errors import CorruptLogError
from rmqha.pipeline.options import Selection
from rmqha.pipeline.schema import PROPERTIES_MAP, STRING_MAP, TIMESTAMP
from rmqha.wire import record as layout
from rmqha.wire.record import Host, RecordError, check_record

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HEADER = np.dtype(
    [
        ("totalSize", ">i4"),
        ("magic", ">i4"),
        ("bodyCRC", ">i4"),
        ("queueId", ">i4"),
        ("flag", ">i4"),
        ("queueOffset", ">i8"),
        ("physicalOffset", ">i8"),
        ("sysFlag", ">i4"),
        ("bornTimestamp", ">i8"),
        ("bornHost", "V8"),
        ("storeTimestamp", ">i8"),
        ("storeHost", "V8"),
        ("reconsumeTimes", ">i4"),
        ("preparedTransactionOffset", ">i8"),
        ("bodyLength", ">i4"),
    ]
)
"""A record up to its body, with two IPv4 hosts; with IPv6 hosts, what follows them lies further behind."""
BODY_AT = HEADER.itemsize
assert BODY_AT == 88 == layout.FIXED_BYTES - 1 - layout.INT16.size
FIELD_AT: dict[str, int] = {name: HEADER.fields[name][1] for name in HEADER.names or () if HEADER.fields}

MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: a time that a producer made up beyond them is null."""
MAX_INFLATED_BYTES = 64 << 20
NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2
ARROW_CODECS = {0x100: "lz4", 0x200: "zstd"}
IPV4_HOST_BYTES, IPV6_HOST_BYTES = 8, 20


def hop(buffer: Any, position: int, limit: int) -> tuple[list[int], int]:
    """Where messages begin if every size is true, from ``position`` on, and where the last of them ends.

    Ends before a message that would end behind ``limit``, and before whatever is no message.
    """
    found: list[int] = []
    append, head_at = found.append, layout.BLANK_HEADER.unpack_from
    v1, v2, smallest = layout.MESSAGE_MAGIC_CODE, layout.MESSAGE_MAGIC_CODE_V2, layout.FIXED_BYTES
    last = limit - smallest
    while position <= last:
        size, magic = head_at(buffer, position)
        if (magic != v1 and magic != v2) or size < smallest or size > limit - position:
            break
        append(position)
        position += size
    return found, position


@dataclass(frozen=True)
class Records:
    """Messages in a buffer whose first byte lies at ``base`` in the log. ``at`` are their places in the buffer."""

    buffer: Bytes
    base: int
    at: Ints

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Mask | slice) -> "Records":
        """Some of the messages."""
        return Records(self.buffer, self.base, self.at[rows])

    @cached_property
    def header(self) -> npt.NDArray[np.void]:
        """The headers; fields behind the hosts are right only for those without IPv6 hosts, see ``ints``."""
        if not len(self.at):
            return np.empty(0, HEADER)
        windows: npt.NDArray[np.void] = np.ndarray(
            (len(self.buffer) - BODY_AT + 1,), f"V{BODY_AT}", self.buffer, strides=(1,)
        )
        return windows[self.at].view(HEADER)

    @cached_property
    def sys_flag(self) -> Ints:
        """SYSFLAG of each."""
        return self._native("sysFlag")

    @cached_property
    def _born_extra(self) -> Ints | int:
        return self._extra(layout.BORNHOST_V6_FLAG)

    @cached_property
    def _hosts_extra(self) -> Ints | int:
        """By how much each body lies further behind than with two IPv4 hosts."""
        return self._born_extra + self._extra(layout.STOREHOSTADDRESS_V6_FLAG)

    def _extra(self, flag: int) -> Ints | int:
        is_v6 = (self.sys_flag & flag) != 0
        return np.where(is_v6, layout.IPV6_EXTRA_BYTES, 0) if is_v6.any() else 0

    def _native(self, name: str) -> Ints:
        return self.header[name].astype(np.int64)

    def gather(self, positions: Ints, kind: str) -> Ints:
        """The integers of a numpy type at these places of the buffer, aligned or not."""
        if not len(positions):
            return np.empty(0, np.int64)
        width = np.dtype(kind).itemsize
        windows: npt.NDArray[Any] = np.ndarray((len(self.buffer) - width + 1,), kind, self.buffer, strides=(1,))
        return windows[positions].astype(np.int64)

    def ints(self, name: str) -> Ints:
        """A field of the header, by Java's name, as numbers."""
        at = FIELD_AT[name]
        extra: Ints | int = 0
        if at > FIELD_AT["bornHost"]:
            extra = self._born_extra if at <= FIELD_AT["storeHost"] else self._hosts_extra
        if isinstance(extra, int):
            return self._native(name)
        return self.gather(self.at + at + extra, HEADER[name].str)

    @cached_property
    def _is_v2(self) -> Ints:
        is_v2: Ints = (self.header["magic"] == layout.MESSAGE_MAGIC_CODE_V2).astype(np.int64)
        return is_v2

    @cached_property
    def room(self) -> Ints:
        """The bytes that body, topic and properties share, by the record's size."""
        return self.ints("totalSize") - (layout.FIXED_BYTES + self._is_v2 + self._hosts_extra)

    @cached_property
    def body(self) -> tuple[Ints, Ints]:
        """Where bodies begin, and their lengths in bytes."""
        return self.at + BODY_AT + self._hosts_extra, self.ints("bodyLength")

    @cached_property
    def topic(self) -> tuple[Ints, Ints]:
        """Where topics begin, and their lengths in bytes."""
        begins, lengths = self.body
        at = begins + lengths
        length = self.gather(at, "i1")
        if self._is_v2.any():
            wide = self._is_v2.astype(bool)
            length[wide] = self.gather(at[wide], ">i2")
        return at + 1 + self._is_v2, length

    @cached_property
    def properties(self) -> tuple[Ints, Ints]:
        """Where the stored properties begin, and their lengths in bytes."""
        begins, lengths = self.topic
        at = begins + lengths
        return at + layout.INT16.size, self.gather(at, ">i2")

    @cached_property
    def physical_offset(self) -> Ints:
        """Where each lies in the log."""
        return self.at + self.base

    @property
    def end(self) -> int:
        """The offset in the log that follows the last one."""
        return self.base + int(self.at[-1] + self.header["totalSize"][-1])


def lay_out(buffer: Bytes, base: int, at: Ints) -> Records:
    """The messages at these places, from the first on to before the first that is not sound but for its CRC.

    Sound is: its own offset is its place, and its lengths add up to its size.
    """
    records = Records(buffer, base, at)
    for rule in (_begins_soundly, _holds_its_body, _holds_its_topic, _adds_up):
        if not len(records):
            break
        count = _run_length(rule(records))
        if count < len(records):
            records = records.take(slice(0, count))
    return records


def _begins_soundly(records: Records) -> Mask:
    sound: Mask = (records.ints("physicalOffset") == records.physical_offset) & (records.room >= 0)
    return sound


def _holds_its_body(records: Records) -> Mask:
    length = records.body[1]
    return (length >= 0) & (length <= records.room)


def _holds_its_topic(records: Records) -> Mask:
    length = records.topic[1]
    return (length >= 0) & (length <= records.room - records.body[1])


def _adds_up(records: Records) -> Mask:
    length = records.properties[1]
    sound: Mask = (length >= 0) & (length == records.room - records.body[1] - records.topic[1])
    return sound


def _run_length(sound: Mask) -> int:
    return len(sound) if sound.all() else int(np.argmin(sound))


def body_crc_agrees(records: Records) -> Mask:
    """Whether the CRC of each body is what its BODYCRC says; that of an empty body is not looked at."""
    begins, lengths = records.body
    view = records.buffer.data
    crcs = [crc32(view[a:b]) for a, b in zip(begins.tolist(), (begins + lengths).tolist(), strict=True)]
    computed = np.array(crcs, np.int64) & layout.CRC_MASK
    agrees: Mask = (computed == records.ints("bodyCRC")) | (lengths == 0)
    return agrees


def explain(buffer: Bytes, base: int, position: int, segment_room: int) -> CorruptLogError:
    """Why there is no sound message at a place of the buffer, ``segment_room`` bytes before its segment's end."""
    try:
        check_record(buffer.data, position, base + position, segment_room)
    except RecordError as error:
        return CorruptLogError(base + position, str(error))
    return CorruptLogError(base + position, "it is not what was expected here")


def slices(buffer: Bytes, begins: Ints, lengths: Ints) -> pa.BinaryArray:
    """Copies of parts of the buffer, which must ascend and not overlap.

    An array over all of the buffer, of parts and of gaps by turns, costs nothing; every other element is taken.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = begins
    bounds[1::2] = begins + lengths
    everything = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])
    return everything.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def to_text(values: pa.BinaryArray) -> pa.StringArray:
    """As UTF-8; what is none becomes U+FFFD, since Spark checks nothing."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


class PropertyPairs:
    """All names and values of many stored property strings: as ``parse_properties`` reads them, but all at once."""

    def __init__(self, stored: pa.BinaryArray) -> None:
        data = _data_of(stored)
        bounds = _offsets_of(stored).astype(np.int64)
        separators = np.flatnonzero(data == PROPERTY_SEPARATOR)
        begins = np.sort(np.concatenate([bounds[:-1], separators + 1]), kind="stable")
        ends = np.sort(np.concatenate([bounds[1:], separators]), kind="stable")
        middles = _middles(data, begins, ends)
        whole = (middles > begins) & (middles + 1 < ends)  # neither the name nor the value is empty
        self.data = data
        """The bytes of all strings."""
        self._bounds = bounds
        self._begins, self._middles, self._ends = begins[whole], middles[whole], ends[whole]

    def _owners(self, begins: Ints) -> Ints:
        """Which strings have the pairs that begin there."""
        bounds = self._bounds
        if len(begins) == len(bounds) - 1 and bool(((begins >= bounds[:-1]) & (begins < bounds[1:])).all()):
            return np.arange(len(begins))
        return np.searchsorted(bounds, begins, side="right") - 1

    def places(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Which strings have the property of this name; where in ``data`` its last value begins, and its length."""
        raw = name.encode("ascii")
        found = np.flatnonzero(self._middles - self._begins == len(raw))
        if len(found):
            names = np.ndarray((len(self.data) - len(raw) + 1,), f"S{len(raw)}", self.data, strides=(1,))
            found = found[names[self._begins[found]] == raw]
        owners = self._owners(self._begins[found])
        last = np.append(owners[1:] != owners[:-1], True) if len(owners) else np.empty(0, bool)
        found, owners = found[last], owners[last]
        begins = self._middles[found] + 1
        return owners, begins, self._ends[found] - begins

    def column(self, name: str) -> pa.StringArray:
        """The property of this name of each string, the last of several, or null."""
        owners, begins, lengths = self.places(name)
        values = to_text(slices(self.data, begins, lengths))
        count = len(self._bounds) - 1
        if len(owners) == count:
            return values
        places = np.full(count, -1, np.int64)
        places[owners] = np.arange(len(owners))
        return values.take(pa.array(places, mask=places < 0))

    def maps(self) -> pa.MapArray:
        """All properties of each string, in their order; of equal names the last value, at the first one's place."""
        names = slices(self.data, self._begins, self._middles - self._begins)
        values = slices(self.data, self._middles + 1, self._ends - self._middles - 1)
        owners = self._owners(self._begins)
        if len(owners):
            codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
            key = owners * (int(codes.max()) + 1) + codes
            _, first = np.unique(key, return_index=True)
            if len(first) < len(key):
                last = len(key) - 1 - np.unique(key[::-1], return_index=True)[1]
                order = np.argsort(first)
                names, values = names.take(pa.array(first[order])), values.take(pa.array(last[order]))
                owners = owners[first[order]]
        bounds = np.searchsorted(owners, np.arange(len(self._bounds))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(bounds), to_text(names), to_text(values))


def _middles(data: Bytes, begins: Ints, ends: Ints) -> Ints:
    """Where the first separator of name and value lies at or behind each begin; the data's end if there is none."""
    inner = np.flatnonzero(data == NAME_VALUE_SEPARATOR)
    if len(inner) == len(begins) and bool(((inner >= begins) & (inner < ends)).all()):
        return inner  # one each, as it nearly always is
    inner = np.append(inner, len(data))
    return inner[np.searchsorted(inner, begins)]


def _data_of(values: pa.BinaryArray) -> Bytes:
    data = values.buffers()[2]
    return np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _offsets_of(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1] if len(values) else np.zeros(1, np.int32)


class _Columns:
    """Makes the columns of some messages; what several columns share is made once."""

    def __init__(self, records: Records, decompress: bool) -> None:
        self._records = records
        self._decompress = decompress

    @cached_property
    def _stored(self) -> pa.BinaryArray:
        return slices(self._records.buffer, *self._records.properties)

    @cached_property
    def _pairs(self) -> PropertyPairs:
        return PropertyPairs(self._stored)

    def make(self, field: pa.Field) -> pa.Array:
        name: str = field.name
        if field.type == STRING_MAP:
            return self._pairs.maps()
        special = SPECIAL_COLUMNS.get(name)
        if special is not None:
            return special(self)
        if field.type == TIMESTAMP:
            return _timestamps(self._records.ints(name))
        return pa.array(self._records.ints(name).astype(field.type.to_pandas_dtype()))

    def topics(self) -> pa.Array:
        return to_text(slices(self._records.buffer, *self._records.topic))

    def tags(self) -> pa.Array:
        return self._pairs.column("TAGS")

    def keys(self) -> pa.Array:
        return self._pairs.column("KEYS")

    def stored_properties(self) -> pa.Array:
        return to_text(self._stored)

    def bodies(self) -> pa.Array:
        records = self._records
        raw = slices(records.buffer, *records.body)
        compressed = (records.sys_flag & layout.COMPRESSED_FLAG) != 0
        if not self._decompress or not compressed.any():
            return raw
        bodies = raw.to_pylist()
        for row in np.flatnonzero(compressed).tolist():
            bodies[row] = inflate(bodies[row], int(records.sys_flag[row]))
        return pa.array(bodies, pa.binary())

    def born_hosts(self) -> pa.Array:
        records = self._records
        return _hosts(records, records.at + FIELD_AT["bornHost"], layout.BORNHOST_V6_FLAG)

    def store_hosts(self) -> pa.Array:
        records = self._records
        places = records.at + FIELD_AT["storeHost"] + records._born_extra
        return _hosts(records, places, layout.STOREHOSTADDRESS_V6_FLAG)


SPECIAL_COLUMNS: dict[str, Callable[[_Columns], pa.Array]] = {
    "topic": _Columns.topics,
    "tags": _Columns.tags,
    "keys": _Columns.keys,
    "properties": _Columns.stored_properties,
    "body": _Columns.bodies,
    "bornHost": _Columns.born_hosts,
    "storeHost": _Columns.store_hosts,
}
assert PROPERTIES_MAP not in SPECIAL_COLUMNS


def decode(records: Records, schema: pa.Schema, decompress: bool = False) -> pa.RecordBatch:
    """The messages as a batch of this schema, made of columns of ``schema.COLUMNS`` and the properties' map.

    With ``decompress``, a compressed body is inflated where that is possible, and left as it is where not.
    """
    columns = _Columns(records, decompress)
    return pa.RecordBatch.from_arrays([columns.make(field) for field in schema], schema=schema)


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The content of a compressed body; the body itself if it is none, or would be longer than 64 MiB."""
    kind = sys_flag & layout.COMPRESSION_TYPE_MASK
    try:
        if kind in layout.ZLIB_COMPRESSION_TYPES:
            stream = zlib.decompressobj()
            content = stream.decompress(body, MAX_INFLATED_BYTES)
            return content if stream.eof else body
        with pa.CompressedInputStream(pa.BufferReader(body), ARROW_CODECS[kind]) as compressed:
            content = compressed.read(MAX_INFLATED_BYTES + 1)
        return body if len(content) > MAX_INFLATED_BYTES else content
    except (zlib.error, OSError, KeyError, ValueError):
        return body


def _timestamps(milliseconds: Ints) -> pa.Array:
    known = (milliseconds >= MIN_TIMESTAMP_MS) & (milliseconds <= MAX_TIMESTAMP_MS)
    return pa.array(np.where(known, milliseconds, 0) * 1000, pa.int64(), mask=~known).cast(TIMESTAMP)


def _hosts(records: Records, places: Ints, v6_flag: int) -> pa.Array:
    """Hosts as text; there are few different ones, and only those are spelt."""
    is_v6 = (records.sys_flag & v6_flag) != 0
    if not is_v6.any():
        return _spelt(records.buffer, places, IPV4_HOST_BYTES)
    parts = [
        _spelt(records.buffer, places[~is_v6], IPV4_HOST_BYTES),
        _spelt(records.buffer, places[is_v6], IPV6_HOST_BYTES),
    ]
    rows = np.argsort(is_v6, kind="stable")
    return pa.concat_arrays(parts).take(pa.array(np.argsort(rows)))


def _spelt(buffer: Bytes, places: Ints, width: int) -> pa.Array:
    if not len(places):
        return pa.array([], pa.string())
    windows: npt.NDArray[np.void] = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    raw = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(places), [None, pa.py_buffer(windows[places])])
    encoded = raw.dictionary_encode()
    texts = [str(Host(value[:-4], layout.INT32.unpack(value[-4:])[0])) for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def select(records: Records, selection: Selection) -> Records:
    """Those of the messages that are wanted, found without a look at bodies."""
    for keep in _masks(selection):
        records = records.take(keep(records))
    return records


def _masks(selection: Selection) -> Iterator[Callable[[Records], Mask]]:
    if (queue_ids := selection.queue_ids) is not None:
        yield lambda records: np.isin(records.ints("queueId"), list(queue_ids))
    for name, limits in (
        ("queueOffset", selection.queue_offsets),
        ("bornTimestamp", selection.born_timestamps),
        ("storeTimestamp", selection.store_timestamps),
    ):
        if limits is not None:
            yield partial(_is_within, name, limits)
    if (topics := selection.topics) is not None:
        yield lambda records: _is_in(_Columns(records, False).topics(), topics)
    if (pattern := selection.topic_pattern) is not None:
        yield lambda records: _matches(_Columns(records, False).topics(), pattern)
    if (tags := selection.tags) is not None:
        yield lambda records: _is_in(_Columns(records, False).tags(), tags)


def _is_within(name: str, limits: tuple[int, int], records: Records) -> Mask:
    values = records.ints(name)
    mask: Mask = (values >= limits[0]) & (values < limits[1])
    return mask


def _is_in(values: pa.Array, wanted: frozenset[str]) -> Mask:
    mask: Mask = pc.is_in(values, value_set=pa.array(sorted(wanted), pa.string())).to_numpy(zero_copy_only=False)
    return mask


def _matches(topics: pa.Array, pattern: str) -> Mask:
    """Whether all of the topic matches, as Kafka's subscribePattern has it; each topic is asked for once."""
    if not len(topics):
        return np.empty(0, bool)
    encoded = topics.dictionary_encode()
    matching = np.array([re.fullmatch(pattern, topic) is not None for topic in encoded.dictionary.to_pylist()], bool)
    mask: Mask = matching[encoded.indices.to_numpy(zero_copy_only=False)]
    return mask
