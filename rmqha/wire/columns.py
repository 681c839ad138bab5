"""Many records at once, as columns: numpy gathers the headers and finds the parts of variable length.

Dispatch and the data pipeline share this module (spec/store.md 3). Records given here must be proved already, or come
from ``lay_out``, which says which records are sound. Python copies no single values.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rmqha.wire import layout
from rmqha.wire.layout import BODY_AT, FIELD_AT

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HEADER = np.dtype(
    [(field.name, f"V{field.bytes}" if field.code is None else f">{field.code}") for field in layout.HEADER_FIELDS]
)
"""The header of a record with two IPv4 hosts. With IPv6 hosts, the fields after the hosts have larger offsets."""
assert HEADER.itemsize == BODY_AT

ALIKE_BEFORE_A_GUESS, HOPS_BEFORE_A_GUESS, FIRST_GUESS = 8, 64, 64
NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2


def hop(buffer: Any, position: int, limit: int) -> tuple[list[int], int]:
    """Follow the sizes from ``position``: where messages start if every size is true, and where the last of them ends.

    Stops before a message that would end after ``limit``, and before bytes that are not a message. Runs of messages of
    one size are found together.
    """
    found: list[int] = []
    append, head_at = found.append, layout.BLANK_HEADER.unpack_from
    v1, v2, smallest = layout.MESSAGE_MAGIC_CODE, layout.MESSAGE_MAGIC_CODE_V2, layout.FIXED_BYTES
    last = limit - smallest
    while position <= last:
        for _ in range(HOPS_BEFORE_A_GUESS):
            if position > last:
                return found, position
            size, magic = head_at(buffer, position)
            if (magic != v1 and magic != v2) or size < smallest or size > limit - position:
                return found, position
            append(position)
            position += size
        if position - found[-ALIKE_BEFORE_A_GUESS] == ALIKE_BEFORE_A_GUESS * size:
            run = _run_of(buffer, position, limit, size, magic)
            found += run
            position += len(run) * size
    return found, position


def _run_of(buffer: Any, position: int, limit: int, size: int, magic: int) -> range:
    """Where consecutive messages of this size and magic code start. Looks further ahead the longer the run is."""
    head, first, guess = size << 32 | magic & 0xFFFFFFFF, position, FIRST_GUESS
    while (count := min(guess, (limit - position) // size)) > 0:
        heads: npt.NDArray[np.int64] = np.ndarray((count,), ">i8", buffer, position, (size,))
        alike = _run_length(heads == head)
        position += alike * size
        if alike < count:
            break
        guess *= 4
    return range(first, position, size)


def proved_starts(buffer: Bytes, position: int, limit: int, most: int) -> tuple[Ints, int]:
    """Where proved records start, from ``position``, and where the last of them ends.

    Stops before ``limit``, before a blank, and after about ``most`` records. Runs of records of one size are found
    together.
    """
    runs: list[Ints] = []
    found: list[int] = []
    head_at, blank = layout.BLANK_HEADER.unpack_from, layout.BLANK_MAGIC_CODE
    view, patience, last_size, alike = buffer.data, ALIKE_BEFORE_A_GUESS, 0, 0
    while position < limit and len(found) < most:
        size, magic = head_at(view, position)
        if magic == blank:
            break
        found.append(position)
        position += size
        alike = alike + 1 if size == last_size else 0
        last_size = size
        if alike >= patience:
            count = _alike(buffer, position, limit, size, most - len(found))
            if count > patience:
                runs += [np.array(found, np.int64), np.arange(position, position + count * size, size)]
                most -= len(found) + count
                found = []
            else:
                found += range(position, position + count * size, size)
            position += count * size
            alike, patience = 0, ALIKE_BEFORE_A_GUESS if count > patience else 2 * patience
    return np.concatenate([*runs, np.array(found, np.int64)]), position


def _alike(buffer: Bytes, position: int, limit: int, size: int, most: int) -> int:
    """Count the consecutive records of this size."""
    count = min(most, (limit - position) // size)
    if count <= 0:
        return 0
    heads: npt.NDArray[np.int64] = np.ndarray((count,), ">i8", buffer, position, (size,))
    sizes, magics = heads >> 32, heads & 0xFFFFFFFF
    return _run_length((sizes == size) & (magics != layout.BLANK_MAGIC_CODE & 0xFFFFFFFF))


@dataclass(frozen=True)
class Records:
    """Messages in a buffer whose first byte has the log offset ``base``. ``at`` holds their positions in the buffer."""

    buffer: Bytes
    base: int
    at: Ints

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Mask | Ints | slice) -> "Records":
        """A selection of these messages."""
        return Records(self.buffer, self.base, self.at[rows])

    @cached_property
    def header(self) -> npt.NDArray[np.void]:
        """The headers. Fields after the hosts are right only for messages without IPv6 hosts, see ``ints``."""
        if not len(self.at):
            return np.empty(0, HEADER)
        windows: npt.NDArray[np.void] = np.ndarray(
            (len(self.buffer) - BODY_AT + 1,), f"V{BODY_AT}", self.buffer, strides=(1,)
        )
        return windows[self.at].view(HEADER)

    @cached_property
    def sys_flag(self) -> Ints:
        """SYSFLAG of each message."""
        return self._native("sysFlag")

    @cached_property
    def flags(self) -> int:
        """All flags that the SYSFLAG of any message has."""
        return int(np.bitwise_or.reduce(self.sys_flag))

    @cached_property
    def _born_extra(self) -> Ints | int:
        return self._extra(layout.BORNHOST_V6_FLAG)

    @cached_property
    def _hosts_extra(self) -> Ints | int:
        """The extra bytes before each body if hosts are IPv6 addresses."""
        return self._born_extra + self._extra(layout.STOREHOSTADDRESS_V6_FLAG)

    def _extra(self, flag: int) -> Ints | int:
        if not self.flags & flag:
            return 0
        return np.where((self.sys_flag & flag) != 0, layout.IPV6_EXTRA_BYTES, 0)

    def _native(self, name: str) -> Ints:
        return self.header[name].astype(np.int64)

    def gather(self, positions: Ints, kind: str) -> Ints:
        """Gather integers of a numpy type at these positions of the buffer, aligned or not."""
        if not len(positions):
            return np.empty(0, np.int64)
        width = np.dtype(kind).itemsize
        windows: npt.NDArray[Any] = np.ndarray((len(self.buffer) - width + 1,), kind, self.buffer, strides=(1,))
        return windows[positions].astype(np.int64)

    def ints(self, name: str) -> Ints:
        """The values of a header field, by Java's name."""
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
        """The bytes that body, topic and properties share, computed from the record's size."""
        return self.ints("totalSize") - (layout.FIXED_BYTES + self._is_v2 + self._hosts_extra)

    @cached_property
    def body(self) -> tuple[Ints, Ints]:
        """Where each body starts, and its length in bytes."""
        return self.at + BODY_AT + self._hosts_extra, self.ints("bodyLength")

    @cached_property
    def topic(self) -> tuple[Ints, Ints]:
        """Where each topic starts, and its length in bytes."""
        begins, lengths = self.body
        at = begins + lengths
        length = self.gather(at, "i1")
        if self._is_v2.any():
            wide = self._is_v2.astype(bool)
            length[wide] = self.gather(at[wide], ">i2")
        return at + 1 + self._is_v2, length

    @cached_property
    def properties(self) -> tuple[Ints, Ints]:
        """Where the stored properties of each message start, and their length in bytes."""
        begins, lengths = self.topic
        at = begins + lengths
        return at + layout.INT16.size, self.gather(at, ">i2")

    @cached_property
    def physical_offset(self) -> Ints:
        """The offset of each message in the log."""
        return self.at + self.base

    @property
    def end(self) -> int:
        """The offset in the log after the last message."""
        return self.base + int(self.at[-1] + self.header["totalSize"][-1])


def lay_out(buffer: Bytes, base: int, at: Ints) -> Records:
    """The messages at these positions, up to the first one that is not sound. CRCs are not checked.

    A message is sound if its own offset equals its position in the log, and if its lengths add up to its size.
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


class PropertyPairs:
    """All names and values of many stored property strings, split at once by the rules of ``parse_properties``.

    ``data`` holds the strings one after another. String ``n`` lies between ``bounds[n]`` and ``bounds[n + 1]``.
    """

    def __init__(self, data: Bytes, bounds: Ints) -> None:
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
        """Which string each pair belongs to."""
        bounds = self._bounds
        if len(begins) == len(bounds) - 1 and bool(((begins >= bounds[:-1]) & (begins < bounds[1:])).all()):
            return np.arange(len(begins))
        return np.searchsorted(bounds, begins, side="right") - 1

    def places(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Which strings have the property of this name, where its last value starts in ``data``, and the value's
        length.
        """
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


def _middles(data: Bytes, begins: Ints, ends: Ints) -> Ints:
    """The position of the first separator between name and value at or after each start; the end of the data if there
    is none.
    """
    inner = np.flatnonzero(data == NAME_VALUE_SEPARATOR)
    if len(inner) == len(begins) and bool(((inner >= begins) & (inner < ends)).all()):
        return inner  # one each: the usual case
    inner = np.append(inner, len(data))
    return inner[np.searchsorted(inner, begins)]
