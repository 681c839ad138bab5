# Reads the ordinary messages of the log for dispatch, a part of `_kernel.pyx`. `rmqha.wire.logunits` says what it gives. It stops
# at the first message in which anything is odd: dispatch reads that one itself. So each `return False` below means no more than
# "not sure": the rules and their reasons stand in `rmqha.store.derived.dispatchrequest` and `rmqha.wire.properties`.

cdef int32_t INNER_BATCH_FLAG = _record.INNER_BATCH_FLAG
cdef int32_t TRANSACTION_TYPE_MASK = _record.TRANSACTION_TYPE_MASK
cdef object _OrdinaryUnits = None
cdef bytes _SCHEDULE_TOPIC = b""

cdef enum:
    MOST_LOG_MESSAGES = 16384
    MOST_LOG_QUEUES = 128
    MOST_LOG_KEYS = 32768  # a message that begins below this limit has all of its keys
    MOST_KEYS_OF_MESSAGE = 16386  # each has a byte and a space, and all properties are shorter than 32768 bytes
    QUEUE_ID_AT = 12
    QUEUE_OFFSET_AT = 20
    COMMITTED = 8

if (QUEUE_ID_AT, QUEUE_OFFSET_AT, _record.QUEUED_TRANSACTION_TYPES) != (
    _layout.FIELD_AT["queueId"], _layout.FIELD_AT["queueOffset"], (0, COMMITTED)
):
    raise ImportError("the kernel has other rules for records than rmqha.wire")


cdef int load_units() except -1:
    """Take what the results are made of, when they are first wanted."""
    global _OrdinaryUnits, _QueueUnits, _SCHEDULE_TOPIC
    from rmqha.wire import delay, logunits
    from rmqha.wire.sends import run

    _SCHEDULE_TOPIC = delay.SCHEDULE_TOPIC.encode()
    _QueueUnits = run.QueueUnits
    _OrdinaryUnits = logunits.OrdinaryUnits
    return 0


cdef struct LogRecord:
    const uint8_t *topic
    MessageKeys keys
    Py_ssize_t size, topic_length
    int64_t queue_offset, timestamp, tags_code
    int32_t queue_id


cdef struct LogUnit:
    int64_t position, tags_code
    int32_t size, queue


cdef struct LogQueue:
    uint8_t[MAX_TOPIC_BYTES] topic
    Py_ssize_t topic_length
    int64_t first, count
    int32_t id
    uint32_t topic_hash  # of the topic and `#`


cdef class _LogRoom:
    """Memory of a pass, which goes when the pass ends, however it ends."""

    cdef LogUnit *units
    cdef uint8_t *keys
    cdef LogQueue[MOST_LOG_QUEUES] queues

    def __cinit__(self, Py_ssize_t messages, Py_ssize_t keys):
        self.units = <LogUnit *>malloc(messages * sizeof(LogUnit))
        self.keys = <uint8_t *>malloc(keys * KEY_BYTES)
        if self.units == NULL or self.keys == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.units)
        free(self.keys)


cdef inline bint is_ascii(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    cdef const uint8_t *end = at + length
    cdef uint64_t seen = 0, eight
    while end - at >= 8:
        memcpy(&eight, at, 8)
        seen |= eight
        at += 8
    while at < end:
        seen |= at[0]
        at += 1
    return seen & 0x8080808080808080U == 0


cdef bint take_value(
    const uint8_t *at, Py_ssize_t length, const uint8_t **value, Py_ssize_t *value_length
) noexcept nogil:
    """Note the value of a property. Whether it is the first of this name, and ASCII."""
    if value[0] != NULL or not is_ascii(at, length):
        return False
    value[0], value_length[0] = at, length
    return True


cdef bint read_log_properties(const uint8_t *at, Py_ssize_t length, LogRecord *found) noexcept nogil:
    """Whether each property has a name and a value, and those that dispatch wants come once, in ASCII."""
    cdef const uint8_t *end = at + length
    cdef const uint8_t *begin
    cdef const uint8_t *middle
    cdef const uint8_t *tags = NULL
    cdef Py_ssize_t name, size, tags_length = 0
    found.keys = MessageKeys(NULL, NULL, 0, 0)
    while at < end:
        begin = at
        at = <const uint8_t *>memchr(begin, 2, end - begin)
        if at == NULL:
            at = end
        middle = <const uint8_t *>memchr(begin, 1, at - begin)
        if middle == NULL or middle == begin or middle + 1 == at:
            return False
        name = middle - begin
        middle += 1
        size = at - middle
        if at < end:
            at += 1  # the separator; after the last property some versions write one too
        if is_text(begin, name, "UNIQ_KEY", 8):
            if not take_value(middle, size, &found.keys.unique_key, &found.keys.unique_key_length):
                return False
        elif is_text(begin, name, "KEYS", 4):
            if not take_value(middle, size, &found.keys.words, &found.keys.words_length):
                return False
        elif is_text(begin, name, "TAGS", 4):
            if not take_value(middle, size, &tags, &tags_length):
                return False
    found.tags_code = 0 if tags == NULL else <int64_t><int32_t>java_hash(0, tags, tags_length)
    return True


cdef bint read_log_record(const uint8_t *record, Py_ssize_t left, int64_t offset, LogRecord *found) noexcept nogil:
    """Read a message that begins at ``offset`` of the log. Whether it is plainly ordinary. ``left`` bytes are there."""
    cdef Laid laid
    cdef int32_t transaction_type
    if not lay_out(record, left, offset, &laid) or laid.magic != MESSAGE_MAGIC_CODE or laid.topic_length < 1:
        return False
    found.queue_id = int32_at(record + QUEUE_ID_AT)
    found.queue_offset = int64_at(record + QUEUE_OFFSET_AT)
    if found.queue_id < 0 or found.queue_offset < 0 or found.queue_offset > offset // FIXED_BYTES:
        return False
    transaction_type = laid.sys_flag & TRANSACTION_TYPE_MASK
    if laid.sys_flag & INNER_BATCH_FLAG or (transaction_type != 0 and transaction_type != COMMITTED):
        return False
    found.size, found.topic, found.topic_length = laid.size, laid.topic, laid.topic_length
    found.timestamp = store_timestamp(record, laid.sys_flag)
    return read_log_properties(laid.properties, laid.properties_length, found)


cdef int find_log_queue(const LogQueue *queues, int count, int hint, const LogRecord *record) noexcept nogil:
    """The number of a message's queue, -1 if it is a new one. ``hint`` is looked at first."""
    cdef int n, number = hint
    for n in range(count):
        if number >= count:
            number = 0
        if queues[number].id == record.queue_id and queues[number].topic_length == record.topic_length:
            if memcmp(queues[number].topic, record.topic, record.topic_length) == 0:
                return number
        number += 1
    return -1


cdef bint begin_log_queue(LogQueue *queue, const LogRecord *record) noexcept:
    """Make the queue of its first message. Whether its topic may be the name of a folder, and has no rules of its own."""
    cdef Py_ssize_t n
    memcpy(queue.topic, record.topic, record.topic_length)
    queue.topic_length, queue.id = record.topic_length, record.queue_id
    queue.first, queue.count = record.queue_offset, 0
    queue.topic_hash = 0
    for n in range(queue.topic_length):
        if queue.topic[n] == c"/" or queue.topic[n] == 0 or queue.topic[n] >= 0x80:
            return False
    if is_text(queue.topic, queue.topic_length, ".", 1) or is_text(queue.topic, queue.topic_length, "..", 2):
        return False
    if is_text(
        queue.topic, queue.topic_length, PyBytes_AS_STRING(_SCHEDULE_TOPIC), PyBytes_GET_SIZE(_SCHEDULE_TOPIC)
    ):
        return False
    queue.topic_hash = java_hash(java_hash(0, queue.topic, queue.topic_length), <const uint8_t *>"#", 1)
    return True


def ordinary_units(data, base, limit, most, most_keys):
    """See `rmqha.wire.logunits.ordinary_units`."""
    cdef Py_buffer view
    if _OrdinaryUnits is None:
        load_units()
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= base <= MAX_INT64 - view.len or limit < 0 or most < 0 or most_keys < 0:
            return None
        return read_units(
            <const uint8_t *>view.buf,
            base,
            min(limit, view.len),
            min(most, MOST_LOG_MESSAGES),
            min(most_keys, MOST_LOG_KEYS),
        )
    finally:
        PyBuffer_Release(&view)


cdef object read_units(const uint8_t *data, int64_t base, Py_ssize_t limit, Py_ssize_t most, Py_ssize_t most_keys):
    cdef _LogRoom room
    cdef LogRecord record
    cdef LogQueue *queue
    cdef LogUnit *unit
    cdef uint8_t *key_at
    cdef uint8_t *to
    cdef uint8_t *keys_end
    cdef const uint8_t *keys_limit
    cdef Py_ssize_t position = 0, count = 0
    cdef int64_t timestamp = 0
    cdef int queue_count = 0, number = 0
    most = min(most, limit // FIXED_BYTES)
    if most <= 0 or most_keys <= 0:
        return None
    room = _LogRoom(most, most_keys + MOST_KEYS_OF_MESSAGE)
    key_at = room.keys
    keys_limit = room.keys + most_keys * KEY_BYTES
    keys_end = room.keys + (most_keys + MOST_KEYS_OF_MESSAGE) * KEY_BYTES
    while count < most and key_at < keys_limit:
        if not read_log_record(data + position, limit - position, base + position, &record):
            break
        number = find_log_queue(room.queues, queue_count, number + 1, &record)
        if number < 0:
            if queue_count == MOST_LOG_QUEUES:
                return None  # more files than a slice may write
            if not begin_log_queue(&room.queues[queue_count], &record):
                break
            number = queue_count
            queue_count += 1
        queue = &room.queues[number]
        if record.queue_offset - queue.first != queue.count:
            break
        to = put_keys(key_at, keys_end, &record.keys, queue.topic_hash, base + position, record.timestamp)
        if to == NULL:
            raise wrong_size()
        key_at = to
        unit = room.units + count
        unit.position, unit.size = base + position, <int32_t>record.size
        unit.tags_code, unit.queue = record.tags_code, number
        timestamp = record.timestamp
        queue.count += 1
        position += record.size
        count += 1
    if count == 0:
        return None
    return _OrdinaryUnits(
        base + position,
        timestamp,
        count,
        queues_of_log(room, count, queue_count),
        PyBytes_FromStringAndSize(<const char *>room.keys, key_at - room.keys),
        (key_at - room.keys) // KEY_BYTES,
    )


cdef dict queues_of_log(_LogRoom room, Py_ssize_t count, int queue_count):
    """The units by topic and queue id, in the order of their first messages."""
    cdef uint8_t* ats[MOST_LOG_QUEUES]
    cdef const uint8_t* ends[MOST_LOG_QUEUES]
    cdef bytearray units
    cdef const LogUnit *unit
    cdef LogQueue *queue
    cdef Py_ssize_t n
    cdef int number
    found, kept = {}, []  # two queues have one name if the bytes have changed meanwhile
    for number in range(queue_count):
        queue = &room.queues[number]
        units = PyByteArray_FromStringAndSize(NULL, queue.count * UNIT_BYTES)
        ats[number] = <uint8_t *>PyByteArray_AS_STRING(units)
        ends[number] = ats[number] + queue.count * UNIT_BYTES
        topic = PyUnicode_DecodeASCII(<const char *>queue.topic, queue.topic_length, NULL)
        found[topic, queue.id] = _QueueUnits(queue.first, queue.count, units)
        kept.append(units)
    for n in range(count):
        unit = room.units + n
        if ends[unit.queue] - ats[unit.queue] < UNIT_BYTES:
            raise wrong_size()
        ats[unit.queue] = put64(put32(put64(ats[unit.queue], unit.position), unit.size), unit.tags_code)
    return found
