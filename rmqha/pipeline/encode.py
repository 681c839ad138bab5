"""Builds records from archived columns again: the reverse of ``decode`` (spec/store.md 3).

A record is the join of its parts, and Arrow joins them for many rows at once. Python copies no single values.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from rmqha.kit.times import EPOCH, MILLISECOND
from rmqha.wire import layout
from rmqha.wire.columns import HEADER, Bytes, Ints, Mask, Records
from rmqha.wire.layout import BORN_HOST_AT, FIELD_AT, INT32
from rmqha.wire.properties import PROPERTY_SEPARATOR
from rmqha.wire.record import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, Host, encoded_size, pack_record

NEEDED_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "totalSize",
    "flag",
    "sysFlag",
    "bodyCRC",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "properties",
    "body",
)
"""The columns that hold a whole record, except for what they cannot represent."""

HEAD = np.dtype([(name, HEADER[name]) for name, at in FIELD_AT.items() if at < BORN_HOST_AT])
TAIL = np.dtype([(name, HEADER[name]) for name in ("reconsumeTimes", "preparedTransactionOffset", "bodyLength")])
STORED_AT = np.dtype([("storeTimestamp", HEADER["storeTimestamp"])])


def encode(batch: pa.RecordBatch) -> pa.BinaryArray:
    """The record of each row, null if a value of the row is null.

    Where a column could not represent what the record held, the result differs from it. ``batch`` has the
    ``NEEDED_COLUMNS``.
    """
    topic, properties, body = (batch[name].cast(pa.binary()) for name in ("topic", "properties", "body"))
    ints = {name: _ints(batch[name]) for name in NEEDED_COLUMNS if not _is_text(batch[name].type)}
    lengths = {name: _lengths(array) for name, array in (("topic", topic), ("properties", properties), ("body", body))}
    born, stored = _hosts(batch["bornHost"]), _hosts(batch["storeHost"])
    least = layout.FIXED_BYTES - 2 * layout.IPV4_HOST_BYTES + _lengths(born) + _lengths(stored) + sum(lengths.values())
    is_v2 = ints["totalSize"] == least + 1
    ints["magic"] = np.where(is_v2, layout.MESSAGE_MAGIC_CODE_V2, layout.MESSAGE_MAGIC_CODE)
    ints["bodyLength"] = lengths["body"]
    parts = (
        _packed(HEAD, ints),
        born,
        _packed(STORED_AT, ints),
        stored,
        _packed(TAIL, ints),
        body,
        _topic_lengths(lengths["topic"], is_v2),
        topic,
        _fixed(lengths["properties"].astype(">i2")),
        properties,
    )
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    times = pc.and_(pc.is_valid(batch["bornTimestamp"]), pc.is_valid(batch["storeTimestamp"]))
    return joined if pc.all(times).as_py() in (True, None) else pc.if_else(times, joined, pa.scalar(None, pa.binary()))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _ints(values: pa.Array) -> Ints:
    """Numbers, and times in milliseconds; 0 for null."""
    if pa.types.is_timestamp(values.type):
        microseconds = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(microseconds // 1000, np.int64)
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _lengths(values: pa.BinaryArray) -> Ints:
    return np.asarray(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _packed(kind: np.dtype[np.void], ints: dict[str, Ints]) -> pa.BinaryArray:
    """Adjacent header fields of all rows."""
    rows = np.empty(len(ints["totalSize"]), kind)
    for name in kind.names or ():
        rows[name] = ints[name].astype(kind[name])
    return _fixed(rows)


def _fixed(rows: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Rows of one size as binary values, without a copy."""
    bounds = np.arange(len(rows) + 1, dtype=np.int32) * rows.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(rows.tobytes())])


def _topic_lengths(lengths: Ints, is_v2: Mask) -> pa.BinaryArray:
    narrow = _fixed(lengths.astype("i1"))
    return pc.if_else(pa.array(is_v2), _fixed(lengths.astype(">i2")), narrow) if is_v2.any() else narrow


def _hosts(texts: pa.StringArray) -> pa.BinaryArray:
    """Hosts as a record holds them. Few different hosts occur, so each is parsed once."""
    encoded = texts.dictionary_encode()
    return pa.array(list(map(_host, encoded.dictionary.to_pylist())), pa.binary()).take(encoded.indices)


def _host(text: str) -> bytes | None:
    """The address and the port of ``str(Host)``; None if the text is something else."""
    address, _, port = text.rpartition(":")
    try:
        if address.startswith("["):
            groups = [int(group, 16) for group in address[1:-1].split(":")]
            raw = b"".join(group.to_bytes(2, "big") for group in groups)
        else:
            raw = bytes(map(int, address.split(".")))
        return raw + INT32.pack(int(port)) if len(raw) in (layout.IPV4_BYTES, layout.IPV6_BYTES) else None
    except (ValueError, OverflowError):
        return None


def forced_record(values: Mapping[str, Any]) -> bytes | None:
    """A record of the size of the archived one, from values that do not represent it exactly; None if none can be made.

    What was not UTF-8 becomes question marks, and an unknown time 0. Separators of properties fill what is left.
    """
    topic, properties = (values[name].replace("\ufffd", "?").encode() for name in ("topic", "properties"))
    born, stored = host_of(values["bornHost"]), host_of(values["storeHost"])
    if born is None or stored is None:
        return None
    v2 = len(topic) > MAX_TOPIC_BYTES
    magic = layout.MESSAGE_MAGIC_CODE_V2 if v2 else layout.MESSAGE_MAGIC_CODE
    size = encoded_size(values["sysFlag"], len(values["body"]), len(topic), len(properties), magic)
    missing = values["totalSize"] - size
    if not 0 <= missing <= MAX_PROPERTIES_BYTES - len(properties):
        return None
    return pack_record(
        magic,
        values["bodyCRC"],
        values["queueId"],
        values["flag"],
        values["queueOffset"],
        values["physicalOffset"],
        values["sysFlag"],
        milliseconds_of(values["bornTimestamp"]),
        born,
        milliseconds_of(values["storeTimestamp"]),
        stored,
        values["reconsumeTimes"],
        values["preparedTransactionOffset"],
        values["body"],
        topic,
        properties + PROPERTY_SEPARATOR.encode() * missing,
    )


def milliseconds_of(time: datetime | None) -> int:
    """A time of a column in milliseconds; 0 for null."""
    return 0 if time is None else (time - EPOCH) // MILLISECOND


def host_of(text: str) -> Host | None:
    """The host of a column; None if the text is something else."""
    raw = _host(text)
    return None if raw is None else Host(raw[: -layout.PORT_BYTES], INT32.unpack(raw[-layout.PORT_BYTES :])[0])


def bounds_of(values: pa.BinaryArray) -> tuple[Ints, memoryview]:
    """Where each value lies in the bytes of all values: their bounds, one more than values, and the bytes."""
    _, bounds, data = values.buffers()
    count = len(values)
    found = np.frombuffer(bounds, np.int32)[values.offset : values.offset + count + 1] if count else np.zeros(1, "i4")
    return found.astype(np.int64), memoryview(data if data is not None else b"")


def bytes_of(records: Records) -> tuple[Ints, Bytes]:
    """Where each record lies in the buffer, and the bytes of all of them: their bounds, and the buffer."""
    return np.append(records.at, records.end - records.base), records.buffer


def record_crcs(bounds: Ints, data: memoryview) -> npt.NDArray[np.int32]:
    """CRC-32 of each record, as a signed number. The records follow each other between the bounds."""
    ends = bounds.tolist()
    crcs = [crc32(data[start:end]) for start, end in pairwise(ends)]
    return np.array(crcs, np.uint32).view(np.int32)


def proof_columns(records: Records, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """The columns ``recordCRC`` and ``rawRecord`` of decoded records, which follow each other in the log.

    A raw record is kept where ``encode`` does not give its bytes back, and is null elsewhere.
    """
    bounds, buffer = bytes_of(records)
    data = buffer.data
    rebuilt = encode(batch)
    crcs = pa.array(record_crcs(bounds, data), pa.int32())
    start, end = int(bounds[0]), int(bounds[-1])
    if not rebuilt.null_count and bounds_of(rebuilt)[1] == data[start:end]:
        return crcs, pa.nulls(len(records), pa.binary())
    ends = bounds.tolist()
    own = [bytes(data[low:high]) for low, high in pairwise(ends)]
    kept = [None if again.as_py() == raw else raw for again, raw in zip(rebuilt, own, strict=True)]
    return crcs, pa.array(kept, pa.binary())
