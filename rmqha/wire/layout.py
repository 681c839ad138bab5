"""Where each field of a record lies (spec/store.md 3.1). All that reads or writes records takes its offsets from here.

A record is a header, then the body, topic and properties, each after its length::

     0 i32 TOTALSIZE        36 i32 SYSFLAG             72 i32 RECONSUMETIMES
     4 i32 MAGICCODE        40 i64 BORNTIMESTAMP       76 i64 PREPAREDTRANSACTIONOFFSET
     8 i32 BODYCRC          48     BORNHOST            84 i32 BODYLENGTH, then the body
    12 i32 QUEUEID          56 i64 STORETIMESTAMP         i8  TOPICLENGTH (V2: i16), then the topic
    16 i32 FLAG             64     STOREHOST              i16 PROPERTIESLENGTH, then the properties
    20 i64 QUEUEOFFSET
    28 i64 PHYSICALOFFSET

All integers are big-endian and signed. A host is 4 address bytes and an i32 port. If a bit of SYSFLAG says that it is
an IPv6 host, its address has 16 bytes, and all fields after it lie 12 bytes further.
"""

from struct import Struct
from typing import NamedTuple

MESSAGE_MAGIC_CODE = -626843481
MESSAGE_MAGIC_CODE_V2 = -626843477
BLANK_MAGIC_CODE = -875286124

BORNHOST_V6_FLAG = 0x10
STOREHOSTADDRESS_V6_FLAG = 0x20
IPV4_BYTES, IPV6_BYTES = 4, 16
IPV6_EXTRA_BYTES = IPV6_BYTES - IPV4_BYTES

INT64 = Struct(">q")
INT32 = Struct(">i")
INT16 = Struct(">h")
INT8 = Struct(">b")
PORT_BYTES = INT32.size
IPV4_HOST_BYTES, IPV6_HOST_BYTES = IPV4_BYTES + PORT_BYTES, IPV6_BYTES + PORT_BYTES


class Field(NamedTuple):
    """A field of the header: its name in Java's camel case, and its ``struct`` code. A host has no code."""

    name: str
    code: str | None

    @property
    def bytes(self) -> int:
        """The field's size in bytes; a host's if it is IPv4."""
        return IPV4_HOST_BYTES if self.code is None else Struct(f">{self.code}").size


HEADER_FIELDS = (
    Field("totalSize", "i"),
    Field("magic", "i"),
    Field("bodyCRC", "i"),
    Field("queueId", "i"),
    Field("flag", "i"),
    Field("queueOffset", "q"),
    Field("physicalOffset", "q"),
    Field("sysFlag", "i"),
    Field("bornTimestamp", "q"),
    Field("bornHost", None),
    Field("storeTimestamp", "q"),
    Field("storeHost", None),
    Field("reconsumeTimes", "i"),
    Field("preparedTransactionOffset", "q"),
    Field("bodyLength", "i"),
)
"""The fields before the body, in their order."""

FIELD_AT = {field.name: sum(before.bytes for before in HEADER_FIELDS[:n]) for n, field in enumerate(HEADER_FIELDS)}
"""Each field's offset from the start of the record, if both hosts are IPv4."""
NUMBERS = {field.name: n for n, field in enumerate(HEADER_FIELDS)}


def fields_from(first: str, last: str) -> Struct:
    """The ``Struct`` of some adjacent fields, by the names of the first and the last. There is no host among them."""
    codes = [field.code for field in HEADER_FIELDS[NUMBERS[first] : NUMBERS[last] + 1]]
    assert None not in codes, "a host's size differs from record to record"
    return Struct(">" + "".join(code for code in codes if code is not None))


def header_of(born_address_bytes: int, store_address_bytes: int) -> Struct:
    """The ``Struct`` of the whole header, for hosts of these sizes. Each host is two values: address and port."""
    sizes = {"bornHost": born_address_bytes, "storeHost": store_address_bytes}
    return Struct(">" + "".join(field.code or f"{sizes[field.name]}si" for field in HEADER_FIELDS))


MAGIC_AT = FIELD_AT["magic"]
CRC_AT = FIELD_AT["bodyCRC"]
QUEUE_ID_AT = FIELD_AT["queueId"]
QUEUE_OFFSET_AT = FIELD_AT["queueOffset"]
PHYSICAL_OFFSET_AT = FIELD_AT["physicalOffset"]
SYS_FLAG_AT = FIELD_AT["sysFlag"]
BORN_HOST_AT = FIELD_AT["bornHost"]
# The fields from here on lie further if there are IPv6 hosts before them.
STORE_TIMESTAMP_AT = FIELD_AT["storeTimestamp"]
STORE_HOST_AT = FIELD_AT["storeHost"]
BODY_LENGTH_AT = FIELD_AT["bodyLength"]
BODY_AT = BODY_LENGTH_AT + INT32.size

UNIT = Struct(">qiq")
"""A unit of a consume queue: offset in the log, size, tagsCode (spec/store.md 6)."""
BLANK_HEADER = fields_from("totalSize", "magic")
"""All fields of a blank, which fills a segment's end. A record starts with the same fields."""
FIXED_HEAD = fields_from("totalSize", "bornTimestamp")
HEAD_FROM_QUEUE_ID = fields_from("queueId", "sysFlag")
FIXED_TAIL = fields_from("reconsumeTimes", "bodyLength")
HEADS = {
    (born, store): header_of(born, store) for born in (IPV4_BYTES, IPV6_BYTES) for store in (IPV4_BYTES, IPV6_BYTES)
}
"""The whole header, by the bytes of the two addresses."""

FIXED_BYTES = BODY_AT + INT8.size + INT16.size
"""The smallest record: its body, topic and properties are empty, and its hosts are IPv4."""

assert HEADS[IPV4_BYTES, IPV4_BYTES].size == BODY_AT
assert (BLANK_HEADER.size, FIXED_HEAD.size, BODY_AT, FIXED_BYTES) == (8, 48, 88, 91)


def hosts_extra(sys_flag: int) -> int:
    """How many bytes further the body lies than with two IPv4 hosts."""
    return IPV6_EXTRA_BYTES * (bool(sys_flag & BORNHOST_V6_FLAG) + bool(sys_flag & STOREHOSTADDRESS_V6_FLAG))
