# The twins of `chain_keys_plain` and `link_keys_plain` of `rmqha.store.derived.index`, a part of `_kernel.pyx`.

from cpython.buffer cimport PyBUF_WRITABLE
from libc.stdlib cimport calloc

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define rmqha_prefetch(at) __builtin_prefetch(at)
    #else
    #define rmqha_prefetch(at) ((void)(at))
    #endif
    """
    void rmqha_prefetch(const void *at) nogil

cdef enum:
    ENTRY_BYTES = 20
    SLOT_BYTES = 4
    MAX_SECONDS = 2147483647

cdef uint64_t CHAIN_SEED = int.from_bytes(_urandom(8), "big") | 1
"""Nobody outside can know which slots share a place: else keys of a client could make all of them share one."""


cdef class _ChainRoom:
    """Memory of a call, which goes when the call ends, however it ends."""

    cdef Py_ssize_t *rows  # at the place of a slot, the number of its newest row, counted from 1; 0 if there is none
    cdef int64_t *slots  # of each row

    def __cinit__(self, Py_ssize_t count, Py_ssize_t places):
        self.rows = <Py_ssize_t *>calloc(places, sizeof(Py_ssize_t))
        self.slots = <int64_t *>malloc((count + 1) * sizeof(int64_t))
        if self.rows == NULL or self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)
        free(self.slots)


def chain_keys(keys, slots, int64_t first_number, int64_t begin_timestamp):
    """The twin of `rmqha.store.derived.index.chain_keys_plain`."""
    cdef Py_buffer key_view, slot_view
    PyObject_GetBuffer(keys, &key_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(slots, &slot_view, PyBUF_SIMPLE)
        try:
            return chained(
                <const uint8_t *>key_view.buf,
                key_view.len // KEY_BYTES,
                <const uint8_t *>slot_view.buf,
                slot_view.len // SLOT_BYTES,
                first_number,
                begin_timestamp,
            )
        finally:
            PyBuffer_Release(&slot_view)
    finally:
        PyBuffer_Release(&key_view)


cdef object chained(
    const uint8_t *key,
    Py_ssize_t count,
    const uint8_t *slots,
    Py_ssize_t slot_count,
    int64_t first_number,
    int64_t begin_timestamp,
):
    cdef bytes entries = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t n, row, begun = 0
    cdef int bits = 1
    cdef uint64_t place, last
    cdef int32_t key_hash = 0
    cdef int64_t position = 0, timestamp = 0, slot, previous, seconds
    cdef _ChainRoom room
    if slot_count <= 0:
        raise ValueError("an index file without slots")
    while (<Py_ssize_t>1 << bits) < 2 * count:
        bits += 1
    last = (<uint64_t>1 << bits) - 1
    room = _ChainRoom(count, <Py_ssize_t>1 << bits)
    for n in range(count):  # slots are anywhere in many MiB: the processor fetches several at once
        memcpy(&key_hash, key + KEY_BYTES * n, 4)
        room.slots[n] = <int64_t>key_hash % slot_count
        rmqha_prefetch(slots + SLOT_BYTES * room.slots[n])
    for n in range(count):
        memcpy(&key_hash, key, 4)
        memcpy(&position, key + 4, 8)
        memcpy(&timestamp, key + 12, 8)
        key += KEY_BYTES
        slot = room.slots[n]
        place = (<uint64_t>slot * CHAIN_SEED) >> (64 - bits)
        while room.rows[place] != 0 and room.slots[room.rows[place] - 1] != slot:  # half of the places stay empty
            place = (place + 1) & last
        row = room.rows[place]
        if row != 0:
            previous = first_number + row - 1
        else:
            previous = int32_at(slots + SLOT_BYTES * slot)
            if previous < 0 or previous >= first_number:
                previous = 0
        if previous == 0:
            begun += 1
        room.rows[place] = n + 1
        seconds = 0
        if begin_timestamp > 0:
            seconds = <int64_t>(<uint64_t>timestamp - <uint64_t>begin_timestamp)
            seconds = 0 if seconds < 0 else min(seconds // 1000, <int64_t>MAX_SECONDS)
        to = put32(put32(put64(put32(to, key_hash), position), <uint32_t>seconds), <uint32_t>previous)
    return entries, begun


def link_keys(keys, slots, int64_t first_number):
    """The twin of `rmqha.store.derived.index.link_keys_plain`."""
    cdef Py_buffer key_view, slot_view
    PyObject_GetBuffer(keys, &key_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(slots, &slot_view, PyBUF_WRITABLE)
        try:
            link(
                <const uint8_t *>key_view.buf,
                key_view.len // KEY_BYTES,
                <uint8_t *>slot_view.buf,
                slot_view.len // SLOT_BYTES,
                first_number,
            )
        finally:
            PyBuffer_Release(&slot_view)
    finally:
        PyBuffer_Release(&key_view)


cdef int link(
    const uint8_t *key, Py_ssize_t count, uint8_t *slots, Py_ssize_t slot_count, int64_t first_number
) except -1:
    cdef Py_ssize_t n
    cdef int32_t key_hash = 0
    if slot_count <= 0:
        raise ValueError("an index file without slots")
    for n in range(count):
        memcpy(&key_hash, key + KEY_BYTES * n, 4)
        put32(slots + SLOT_BYTES * (<int64_t>key_hash % slot_count), <uint32_t>(first_number + n))
    return 0
