"""Turns many records into Arrow arrays at once (spec/store.md 3): headers by numpy, the rest by Arrow's ``take``.

Python copies no single values. The 88 bytes of all headers are gathered at once. A body, topic or property is one copy
in C, out of an Arrow array that covers the whole buffer.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqha.pipeline.options import Selection
from rmqha.pipeline.schema import PROPERTIES_MAP, PROPERTY_COLUMNS
from rmqha.pipeline.sqltypes import STRING_MAP, TIMESTAMP
from rmqha.wire import columns, layout, record
from rmqha.wire.columns import Bytes, Ints, Mask, Records
from rmqha.wire.layout import BORN_HOST_AT, IPV4_HOST_BYTES, IPV6_HOST_BYTES, PORT_BYTES, STORE_HOST_AT
from rmqha.wire.record import Host

MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. A time outside of them, which a producer may have made up, is null."""
MAX_INFLATED_BYTES = 64 << 20
ARROW_CODECS = {record.LZ4_COMPRESSION_TYPE: "lz4", record.ZSTD_COMPRESSION_TYPE: "zstd"}
NOTHING: Mapping[str, pa.Array] = {}


def slices(buffer: Bytes, begins: Ints, lengths: Ints) -> pa.BinaryArray:
    """Copies of parts of the buffer. The parts must ascend and not overlap.

    An array over the whole buffer, of alternating parts and gaps, costs nothing; every second element is taken.
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
    """Decode UTF-8. Invalid bytes become U+FFFD, because Spark does not check."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


class PropertyPairs(columns.PropertyPairs):
    """All names and values of many stored property strings, and Arrow columns made from them."""

    def __init__(self, stored: pa.BinaryArray) -> None:
        super().__init__(_data_of(stored), _offsets_of(stored).astype(np.int64))

    def column(self, name: str) -> pa.StringArray:
        """The value of the property with this name for each string: the last one if there are several, null if there is
        none.
        """
        owners, begins, lengths = self.places(name)
        values = to_text(slices(self.data, begins, lengths))
        count = len(self._bounds) - 1
        if len(owners) == count:
            return values
        places = np.full(count, -1, np.int64)
        places[owners] = np.arange(len(owners))
        return values.take(pa.array(places, mask=places < 0))

    def maps(self) -> pa.MapArray:
        """All properties of each string, in their order. If a name occurs twice, its last value takes the place of the
        first.
        """
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


def _data_of(values: pa.BinaryArray) -> Bytes:
    data = values.buffers()[2]
    return np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _offsets_of(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1] if len(values) else np.zeros(1, np.int32)


class _Columns:
    """Makes the columns of some messages. Intermediate results that several columns need are computed once."""

    def __init__(self, records: Records, decompress: bool, ready: Mapping[str, pa.Array] = NOTHING) -> None:
        self._records = records
        self._decompress = decompress
        self._ready = ready

    @cached_property
    def _stored(self) -> pa.BinaryArray:
        return slices(self._records.buffer, *self._records.properties)

    @cached_property
    def _pairs(self) -> PropertyPairs:
        return PropertyPairs(self._stored)

    def make(self, field: pa.Field) -> pa.Array:
        name: str = field.name
        if name in self._ready:
            return self._ready[name]
        if field.type == STRING_MAP:
            return self._pairs.maps()
        if name in PROPERTY_COLUMNS:
            return self.property(PROPERTY_COLUMNS[name])
        special = SPECIAL_COLUMNS.get(name)
        if special is not None:
            return special(self)
        if field.type == TIMESTAMP:
            return _timestamps(self._records.ints(name))
        return pa.array(self._records.ints(name).astype(field.type.to_pandas_dtype()))

    def topics(self) -> pa.Array:
        return to_text(slices(self._records.buffer, *self._records.topic))

    def property(self, name: str) -> pa.Array:
        return self._pairs.column(name)

    def stored_properties(self) -> pa.Array:
        return to_text(self._stored)

    def bodies(self) -> pa.Array:
        records = self._records
        raw = slices(records.buffer, *records.body)
        compressed = (records.sys_flag & record.COMPRESSED_FLAG) != 0
        if not self._decompress or not compressed.any():
            return raw
        bodies = raw.to_pylist()
        for row in np.flatnonzero(compressed).tolist():
            bodies[row] = inflate(bodies[row], int(records.sys_flag[row]))
        return pa.array(bodies, pa.binary())

    def born_hosts(self) -> pa.Array:
        records = self._records
        return _hosts(records, records.at + BORN_HOST_AT, layout.BORNHOST_V6_FLAG)

    def store_hosts(self) -> pa.Array:
        records = self._records
        places = records.at + STORE_HOST_AT + records._born_extra
        return _hosts(records, places, layout.STOREHOSTADDRESS_V6_FLAG)


SPECIAL_COLUMNS: dict[str, Callable[[_Columns], pa.Array]] = {
    "topic": _Columns.topics,
    "properties": _Columns.stored_properties,
    "body": _Columns.bodies,
    "bornHost": _Columns.born_hosts,
    "storeHost": _Columns.store_hosts,
}
assert PROPERTIES_MAP not in SPECIAL_COLUMNS


def decode(
    records: Records, schema: pa.Schema, decompress: bool = False, ready: Mapping[str, pa.Array] = NOTHING
) -> pa.RecordBatch:
    """The messages as a batch with this schema: columns of ``schema.COLUMNS``, the map of properties, and those that
    are ``ready``.

    With ``decompress``, a compressed body is decompressed if possible, and left unchanged otherwise.
    """
    columns = _Columns(records, decompress, ready)
    return pa.RecordBatch.from_arrays([columns.make(field) for field in schema], schema=schema)


def topics_of(records: Records) -> pa.StringArray:
    """The topics of the messages."""
    return _Columns(records, False).topics()


class NotInflated(ValueError):
    """A compressed body cannot be decompressed. The text is the reason."""


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The content of a compressed body. Returns the body itself if it is not compressed, or its content exceeds 64
    MiB.
    """
    try:
        return content_of(body, sys_flag, MAX_INFLATED_BYTES)
    except NotInflated:
        return body


def content_of(body: bytes, sys_flag: int, max_bytes: int) -> bytes:
    """The content of a compressed body. No more than ``max_bytes`` are decompressed. Raises NotInflated."""
    kind = sys_flag & record.COMPRESSION_TYPE_MASK
    name = "zlib" if kind in record.ZLIB_COMPRESSION_TYPES else ARROW_CODECS.get(kind)
    if name is None:
        raise NotInflated(f"it is compressed in an unknown way ({kind:#x})")
    try:
        if name == "zlib":
            stream = zlib.decompressobj()
            content = stream.decompress(body, max_bytes + 1)
            is_whole = stream.eof
        else:
            with pa.CompressedInputStream(pa.BufferReader(body), name) as compressed:
                content = compressed.read(max_bytes + 1)
            is_whole = True
    except (zlib.error, OSError, ValueError) as error:
        raise NotInflated(f"it is not compressed with {name}, as its sysFlag says: {error}") from error
    if len(content) > max_bytes:
        raise NotInflated(f"its decompressed content is longer than {max_bytes} bytes (bodyMaxBytes)")
    if not is_whole:
        raise NotInflated(f"its content, compressed with {name}, has no end")
    return content


def microseconds_of(milliseconds: int) -> int | None:
    """The value of a column of times, for one time in the log; None outside of the years 1 to 9999."""
    return milliseconds * 1000 if MIN_TIMESTAMP_MS <= milliseconds <= MAX_TIMESTAMP_MS else None


def _timestamps(milliseconds: Ints) -> pa.Array:
    known = (milliseconds >= MIN_TIMESTAMP_MS) & (milliseconds <= MAX_TIMESTAMP_MS)
    return pa.array(np.where(known, milliseconds, 0) * 1000, pa.int64(), mask=~known).cast(TIMESTAMP)


def _hosts(records: Records, places: Ints, v6_flag: int) -> pa.Array:
    """Hosts as text. Few different hosts occur, so each is formatted once."""
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
    texts = [
        str(Host(value[:-PORT_BYTES], layout.INT32.unpack(value[-PORT_BYTES:])[0]))
        for value in encoded.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.string()).take(encoded.indices)


def select(records: Records, selection: Selection) -> Records:
    """The messages that are selected. Bodies are not read."""
    if (queue_ids := selection.queue_ids) is not None:
        records = records.take(np.isin(records.ints("queueId"), list(queue_ids)))
    for name, limits in (
        ("queueOffset", selection.queue_offsets),
        ("bornTimestamp", selection.born_timestamps),
        ("storeTimestamp", selection.store_timestamps),
    ):
        if limits is not None:
            records = records.take(_is_within(records.ints(name), limits))
    if (topics := selection.topics) is not None:
        records = records.take(_is_in(topics_of(records), topics))
    if (pattern := selection.topic_pattern) is not None:
        records = records.take(_matches(topics_of(records), pattern))
    if (tags := selection.tags) is not None:
        records = records.take(_is_in(_Columns(records, False).property("TAGS"), tags))
    return records


def _is_within(values: Ints, limits: tuple[int, int]) -> Mask:
    mask: Mask = (values >= limits[0]) & (values < limits[1])
    return mask


def _is_in(values: pa.Array, wanted: frozenset[str]) -> Mask:
    mask: Mask = pc.is_in(values, value_set=pa.array(sorted(wanted), pa.string())).to_numpy(zero_copy_only=False)
    return mask


def _matches(topics: pa.Array, pattern: str) -> Mask:
    """Whether the whole topic matches, as in Kafka's subscribePattern. Each different topic is matched once."""
    if not len(topics):
        return np.empty(0, bool)
    encoded = topics.dictionary_encode()
    matching = np.array([re.fullmatch(pattern, topic) is not None for topic in encoded.dictionary.to_pylist()], bool)
    mask: Mask = matching[encoded.indices.to_numpy(zero_copy_only=False)]
    return mask
