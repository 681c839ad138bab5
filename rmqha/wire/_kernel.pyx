# cython: language_level=3
"""The compiled twins of a few plain functions. `rmqha.wire.compiled` says whether they are used.

The plain function is the specification of its twin. A twin gives the same results, or stops where it is not sure, and
plain Python goes on from there. It never judges what is unsound: it says nothing of it.

Rules of this file. Every read stands behind a check against the end of the buffer. A length comes from the bytes once,
into a variable that is checked and then used: the bytes may be a mapped file that changes. Sums of lengths stay far
below 2^63, because each length is checked against what is left before it is added. There is no recursion.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from os import urandom as _urandom

from isal.isal_zlib import crc32 as _long_crc32

from rmqha.wire import layout as _layout
from rmqha.wire import record as _record
from rmqha.wire.scanned import Scan as _Scan

cdef extern from *:
    """
    #ifndef RMQHA_VERSION
    #define RMQHA_VERSION ""
    #endif
    #ifndef RMQHA_SOURCE
    #define RMQHA_SOURCE ""
    #endif
    """
    const char *RMQHA_VERSION
    const char *RMQHA_SOURCE

CONTRACT = 2
"""That of `rmqha.wire.compiled`, which does not use a kernel with another one."""
VERSION = RMQHA_VERSION.decode("ascii")
"""The version of rmqha that this was built for."""
SOURCE = RMQHA_SOURCE.decode("ascii")
"""What `setup.py` calls the digest of the sources: a test holds it against the checkout."""

cdef int32_t MESSAGE_MAGIC_CODE = _layout.MESSAGE_MAGIC_CODE
cdef int32_t MESSAGE_MAGIC_CODE_V2 = _layout.MESSAGE_MAGIC_CODE_V2
cdef int32_t BORNHOST_V6_FLAG = _layout.BORNHOST_V6_FLAG
cdef int32_t STOREHOSTADDRESS_V6_FLAG = _layout.STOREHOSTADDRESS_V6_FLAG
cdef uint32_t CRC_MASK = _record.CRC_MASK
cdef object MAX_INT64 = 2**63 - 1

# Where the fields of a record lie, as in `rmqha.wire.layout`, which is compared below.
cdef enum:
    MAGIC_AT = 4
    CRC_AT = 8
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    STORE_TIMESTAMP_AT = 56
    BODY_AT = 88
    FIXED_BYTES = 91
    IPV6_EXTRA_BYTES = 12
    SHORT_BYTES = 192  # up to here a CRC by the tables costs less than a call of the library

if (MAGIC_AT, CRC_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT, STORE_TIMESTAMP_AT, BODY_AT, FIXED_BYTES, IPV6_EXTRA_BYTES) != (
    _layout.MAGIC_AT, _layout.CRC_AT, _layout.PHYSICAL_OFFSET_AT, _layout.SYS_FLAG_AT, _layout.STORE_TIMESTAMP_AT,
    _layout.BODY_AT, _layout.FIXED_BYTES, _layout.IPV6_EXTRA_BYTES,
):
    raise ImportError("the kernel has another layout of records than rmqha.wire.layout")


cdef inline int16_t int16_at(const uint8_t *at) noexcept nogil:
    return <int16_t>(<uint16_t>at[0] << 8 | at[1])


cdef inline uint32_t uint32_at(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>uint32_at(at)


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t>uint32_at(at) << 32 | uint32_at(at + 4))


# CRC-32 as zlib has it, eight bytes a step: table n is the CRC of a byte with n zeros behind it.
cdef uint32_t[8][256] CRC_TABLES


cdef void fill_crc_tables() noexcept nogil:
    cdef uint32_t crc
    cdef int byte, bit, n
    for byte in range(256):
        crc = <uint32_t>byte
        for bit in range(8):
            crc = (crc >> 1) ^ (0xEDB88320U if crc & 1 else 0)
        CRC_TABLES[0][byte] = crc
    for n in range(1, 8):
        for byte in range(256):
            crc = CRC_TABLES[n - 1][byte]
            CRC_TABLES[n][byte] = (crc >> 8) ^ CRC_TABLES[0][crc & 0xFF]


fill_crc_tables()


cdef uint32_t short_crc32(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    cdef uint32_t crc = 0xFFFFFFFFU
    while length >= 8:
        crc ^= at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
        crc = (
            CRC_TABLES[7][crc & 0xFF] ^ CRC_TABLES[6][(crc >> 8) & 0xFF]
            ^ CRC_TABLES[5][(crc >> 16) & 0xFF] ^ CRC_TABLES[4][crc >> 24]
            ^ CRC_TABLES[3][at[4]] ^ CRC_TABLES[2][at[5]] ^ CRC_TABLES[1][at[6]] ^ CRC_TABLES[0][at[7]]
        )
        at += 8
        length -= 8
    while length > 0:
        crc = (crc >> 8) ^ CRC_TABLES[0][(crc ^ at[0]) & 0xFF]
        at += 1
        length -= 1
    return crc ^ 0xFFFFFFFFU


cdef inline uint32_t crc32(const uint8_t *at, Py_ssize_t length) except? 0xFFFFFFFFU:
    """The CRC of these bytes: of many by the library of the plain functions, which has the processor's own instructions."""
    if length <= SHORT_BYTES:
        return short_crc32(at, length)
    return <uint32_t>_long_crc32(PyMemoryView_FromMemory(<char *>at, length, PyBUF_READ))


cdef struct Proved:
    Py_ssize_t end  # where the last sound message ends
    Py_ssize_t messages
    Py_ssize_t last  # where it begins
    int64_t store_timestamp


cdef struct Laid:
    Py_ssize_t size, body_at, body_length, topic_length, properties_length
    const uint8_t *topic
    const uint8_t *properties
    int32_t magic, sys_flag


cdef bint lay_out(const uint8_t *record, Py_ssize_t left, int64_t offset, Laid *found) noexcept nogil:
    """Whether a message that begins at ``offset`` of the log has lengths that add up. ``left`` bytes are there."""
    cdef Py_ssize_t room, wide
    cdef const uint8_t *topic_at
    if left < FIXED_BYTES:
        return False
    found.size = int32_at(record)
    if found.size < FIXED_BYTES or found.size > left:
        return False
    found.magic = int32_at(record + MAGIC_AT)
    if found.magic == MESSAGE_MAGIC_CODE:
        wide = 0
    elif found.magic == MESSAGE_MAGIC_CODE_V2:
        wide = 1
    else:
        return False
    if int64_at(record + PHYSICAL_OFFSET_AT) != offset:
        return False
    found.sys_flag = int32_at(record + SYS_FLAG_AT)
    found.body_at = BODY_AT
    if found.sys_flag & BORNHOST_V6_FLAG:
        found.body_at += IPV6_EXTRA_BYTES
    if found.sys_flag & STOREHOSTADDRESS_V6_FLAG:
        found.body_at += IPV6_EXTRA_BYTES
    room = found.size - found.body_at - (FIXED_BYTES - BODY_AT) - wide  # for body, topic and properties
    if room < 0:
        return False
    found.body_length = int32_at(record + found.body_at - 4)
    if found.body_length < 0 or found.body_length > room:
        return False
    room -= found.body_length
    topic_at = record + found.body_at + found.body_length  # at least 3 bytes before the end, 4 with a wide length
    if wide:
        found.topic_length = int16_at(topic_at)
    else:
        found.topic_length = <int8_t>topic_at[0]
    if found.topic_length < 0 or found.topic_length > room:
        return False
    found.topic = topic_at + 1 + wide
    found.properties_length = int16_at(found.topic + found.topic_length)
    found.properties = found.topic + found.topic_length + 2
    return found.properties_length == room - found.topic_length


cdef inline int64_t store_timestamp(const uint8_t *record, int32_t sys_flag) noexcept nogil:
    """STORETIMESTAMP of a message that is laid out."""
    return int64_at(record + STORE_TIMESTAMP_AT + (IPV6_EXTRA_BYTES if sys_flag & BORNHOST_V6_FLAG else 0))


cdef Py_ssize_t sound_size(const uint8_t *record, Py_ssize_t left, int64_t offset) except -1:
    """The size of a message that is sound, 0 if it is not clearly so. ``left`` bytes are there, from ``record`` on."""
    cdef Laid found
    if not lay_out(record, left, offset, &found):
        return 0
    if found.body_length:
        if crc32(record + found.body_at, found.body_length) & CRC_MASK != uint32_at(record + CRC_AT):
            return 0
    return found.size


cdef Proved prove(const uint8_t *segment, Py_ssize_t position, Py_ssize_t written, int64_t base) except *:
    cdef Proved found = Proved(position, 0, position, 0)
    cdef Py_ssize_t size
    cdef const uint8_t *last
    while found.end < written:
        size = sound_size(segment + found.end, written - found.end, base + found.end)
        if size == 0:
            break
        found.last = found.end
        found.end += size
        found.messages += 1
    if found.messages:
        last = segment + found.last
        found.store_timestamp = store_timestamp(last, int32_at(last + SYS_FLAG_AT))
    return found


def check_records(segment, base, start, limit):
    """The twin of `rmqha.wire.scan.check_records_plain`."""
    cdef Py_buffer view
    cdef Proved found
    if not 0 <= base <= start <= limit <= MAX_INT64:
        return _Scan(start)
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    try:
        found = prove(<const uint8_t *>view.buf, start - base, min(<int64_t>(limit - base), view.len), base)
    finally:
        PyBuffer_Release(&view)
    if found.messages == 0:
        return _Scan(start)
    return _Scan(base + found.end, found.messages, base + found.last, found.store_timestamp)


include "_sends.pxi"
include "_units.pxi"
include "_index.pxi"
