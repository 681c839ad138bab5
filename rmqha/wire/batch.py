"""The body of a batch send: one entry for each message (spec/remoting.md 6.4).

::

    0 i32 size of the entry   8 i32 CRC, 0     16 i32 bodyLength, then the body
    4 i32 magic, 0           12 i32 flag          i16 propertiesLength, then the properties
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

ENTRY_HEAD = Struct(">iiiii")
PROPERTIES_LENGTH = Struct(">h")
ENTRY_FIXED_BYTES = ENTRY_HEAD.size + PROPERTIES_LENGTH.size
assert ENTRY_FIXED_BYTES == 22


class BatchError(ValueError):
    """The bytes are not a batch."""


class BatchEntry(NamedTuple):
    """One message of a batch. ``properties`` are in their stored form."""

    body: bytes
    properties: str = ""
    flag: int = 0


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Encode the body of a batch of these messages. Raises BatchError if a number does not fit into its field."""
    parts: list[bytes] = []
    for body, properties, flag in entries:
        stored = properties.encode("utf-8", "surrogateescape")
        try:
            parts += (
                ENTRY_HEAD.pack(ENTRY_FIXED_BYTES + len(body) + len(stored), 0, 0, flag, len(body)),
                body,
                PROPERTIES_LENGTH.pack(len(stored)),
                stored,
            )
        except StructError as error:
            raise BatchError(f"a number does not fit into its field: {error}") from error
    return b"".join(parts)


def decode_batch(body: bytes) -> list[BatchEntry]:
    """Decode the messages of a batch, in their order. Raises BatchError."""
    return list(entries_of(body))


def entries_of(body: bytes) -> Iterator[BatchEntry]:
    """Yield the messages of a batch one by one. Raises BatchError."""
    at, end = 0, len(body)
    while at < end:
        try:
            size, _, _, flag, body_length = ENTRY_HEAD.unpack_from(body, at)
            body_end = at + ENTRY_HEAD.size + body_length
            (properties_length,) = PROPERTIES_LENGTH.unpack_from(body, body_end)
        except StructError as error:
            raise BatchError(f"the entry at {at} is cut off: the body has only {end} bytes") from error
        properties_at = body_end + PROPERTIES_LENGTH.size
        next_at = properties_at + properties_length
        if body_length < 0 or properties_length < 0 or next_at > end or size != next_at - at:
            raise BatchError(f"the lengths of the entry at {at} disagree, or lie beyond the body's {end} bytes")
        properties = body[properties_at:next_at].decode("utf-8", "surrogateescape")
        yield BatchEntry(body[at + ENTRY_HEAD.size : body_end], properties, flag)
        at = next_at
