# The twin of `rmqha.wire.sends.plain.take`, a part of `_kernel.pyx`. It knows the requests that the usual clients send:
# SEND_MESSAGE_V2 with a compact JSON header in ASCII. At anything else it stops, and the plain pass takes it or says why
# not. So each `return False` below means no more than "not sure": the rules and their reasons stand in `plain.py`.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

cdef int32_t SEND_MESSAGE_V2, RESPONSE_FLAG, ONEWAY_FLAG, V6_FLAGS, ORDINARY_SYS_FLAGS
cdef Py_ssize_t MOST_HEADER_BYTES, MOST_KEYS, MAX_PROPERTIES_BYTES
cdef object _loads, _take_plain, _QueueUnits, _SendRun, _UNFINISHED, _LIMIT, _SEGMENT
_SendRun = None


cdef int load_sends() except -1:
    """Take the constants from the plain modules, when the first sends come: who reads logs does not import them."""
    global SEND_MESSAGE_V2, RESPONSE_FLAG, ONEWAY_FLAG, V6_FLAGS, ORDINARY_SYS_FLAGS
    global MOST_HEADER_BYTES, MOST_KEYS, MAX_PROPERTIES_BYTES
    global _loads, _take_plain, _QueueUnits, _SendRun, _UNFINISHED, _LIMIT, _SEGMENT
    import orjson
    from rmqha.wire import command
    from rmqha.wire.sends import plain, run

    SEND_MESSAGE_V2 = command.RequestCode.SEND_MESSAGE_V2
    RESPONSE_FLAG, ONEWAY_FLAG = command.RESPONSE_FLAG, command.ONEWAY_FLAG
    V6_FLAGS, ORDINARY_SYS_FLAGS = plain.V6_FLAGS, plain.ORDINARY_SYS_FLAGS
    MOST_HEADER_BYTES, MOST_KEYS = plain.MOST_HEADER_BYTES, plain.MOST_KEYS
    MAX_PROPERTIES_BYTES = _record.MAX_PROPERTIES_BYTES
    _loads, _take_plain, _QueueUnits = orjson.loads, plain.take, run.QueueUnits
    _UNFINISHED, _LIMIT, _SEGMENT = run.Declined.UNFINISHED, run.Declined.LIMIT, run.Declined.SEGMENT
    _SendRun = run.SendRun
    return 0


cdef enum:
    FRAME_HEAD_BYTES = 8
    LEAST_FRAME_BYTES = 64  # no send that is taken is shorter: its header alone has more
    MOST_MESSAGES = 4096
    MOST_QUEUES = 64
    MAX_TOPIC_BYTES = 127
    MOST_FIELDS = 64  # far below the limit of the plain pass, which does not count a name twice
    UNIT_BYTES = 20
    KEY_BYTES = 20
    NUMBERS_BYTES = 16 + 20 + 20 + 11  # of an answer: an offset, two other numbers, opaque

# The fields of SEND_MESSAGE_V2, by their letters, that the pass looks at.
cdef enum:
    PRODUCER_GROUP, TOPIC, DEFAULT_TOPIC, DEFAULT_QUEUES, QUEUE_ID, SYS_FLAG, BORN_TIMESTAMP, FLAG, PROPERTIES
    RECONSUME_TIMES, UNIT_MODE, MAX_RECONSUME_TIMES, BATCH, LETTERS

cdef enum:
    REQUIRED_LETTERS = (1 << PROPERTIES) - 1

# The fields of a command.
cdef enum:
    CODE = 1
    COMMAND_FLAG = 2
    OPAQUE = 4
    VERSION_FIELD = 8
    EXT_FIELDS = 16
    LANGUAGE = 32
    SERIALIZE_TYPE = 64
    REMARK = 128
    REQUIRED_OF_COMMAND = 31


cdef struct Text:
    const uint8_t *at
    Py_ssize_t length
    bint has_escapes


cdef struct Header:
    int64_t code, flag, opaque
    int seen  # bits of the fields of a command
    int letters  # bits of the fields of a send
    Text[LETTERS] values


cdef struct MessageKeys:
    const uint8_t *unique_key  # NULL if it has none
    const uint8_t *words  # KEYS, NULL if it has none
    Py_ssize_t unique_key_length, words_length


cdef struct Message:
    const uint8_t *body
    Py_ssize_t body_length
    const uint8_t *own  # its properties as stored, without CLUSTER
    Py_ssize_t own_length
    MessageKeys keys
    int64_t position, queue_offset, born_timestamp, tags_code
    int32_t size, queue, opaque, flag, sys_flag, reconsume_times
    bint is_answered


cdef struct TargetQueue:
    const uint8_t *topic
    Py_ssize_t topic_length
    int32_t id
    int64_t first, count, record_bytes
    uint32_t topic_hash  # of the topic and `#`


cdef inline uint8_t *put16(uint8_t *to, uint16_t value) noexcept nogil:
    to[0] = <uint8_t>(value >> 8)
    to[1] = <uint8_t>value
    return to + 2


cdef inline uint8_t *put32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0] = <uint8_t>(value >> 24)
    to[1] = <uint8_t>(value >> 16)
    to[2] = <uint8_t>(value >> 8)
    to[3] = <uint8_t>value
    return to + 4


cdef inline uint8_t *put64(uint8_t *to, uint64_t value) noexcept nogil:
    return put32(put32(to, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t *put_bytes(uint8_t *to, const void *source, Py_ssize_t length) noexcept nogil:
    if length > 0:
        memcpy(to, source, length)
    return to + length


cdef uint8_t *put_decimal(uint8_t *to, int64_t value) noexcept nogil:
    """At most 20 characters."""
    cdef uint8_t[20] digits
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        to[0] = c"-"
        to += 1
        rest = 0 - rest
    while True:
        digits[count] = <uint8_t>(c"0" + rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to


cdef uint8_t *put_hex64(uint8_t *to, uint64_t value) noexcept nogil:
    cdef int n, digit
    for n in range(16):
        digit = <int>(value >> (60 - 4 * n)) & 15
        to[n] = <uint8_t>(c"0" + digit if digit < 10 else c"A" + digit - 10)
    return to + 16


cdef inline uint32_t java_hash(uint32_t value, const uint8_t *at, Py_ssize_t length) noexcept nogil:
    """Java's hash code of ASCII, after a text that has this one. Four characters a step: a processor does these at once."""
    cdef const uint8_t *end = at + length
    while end - at >= 4:
        value = 923521U * value + (29791U * at[0] + 961U * at[1] + 31U * at[2] + at[3])
        at += 4
    while at < end:
        value = 31 * value + at[0]
        at += 1
    return value


cdef inline bint is_text(const uint8_t *at, Py_ssize_t length, const char *text, Py_ssize_t text_length) noexcept nogil:
    return length == text_length and memcmp(at, text, text_length) == 0


cdef inline bint begins(const uint8_t *at, Py_ssize_t length, const char *text, Py_ssize_t text_length) noexcept nogil:
    return length >= text_length and memcmp(at, text, text_length) == 0


cdef inline int hex_digit(uint8_t character) noexcept nogil:
    """Its value, -1 if it is none."""
    if c"0" <= character <= c"9":
        return character - c"0"
    if c"a" <= character <= c"f":
        return character - c"a" + 10
    if c"A" <= character <= c"F":
        return character - c"A" + 10
    return -1


cdef int escaped(const uint8_t *at, const uint8_t *end, int *length) noexcept nogil:
    """The ASCII character of the escape at a backslash, -1 if it is another one. ``length`` is that of the escape."""
    cdef int high, low
    if end - at < 2:
        return -1
    length[0] = 2
    if at[1] == c'"' or at[1] == c"\\" or at[1] == c"/":
        return at[1]
    if at[1] == c"n":
        return 10
    if at[1] == c"t":
        return 9
    if at[1] == c"r":
        return 13
    if at[1] == c"b":
        return 8
    if at[1] == c"f":
        return 12
    if at[1] != c"u" or end - at < 6 or at[2] != c"0" or at[3] != c"0":
        return -1
    high, low = hex_digit(at[4]), hex_digit(at[5])
    if high < 0 or high > 7 or low < 0:
        return -1
    length[0] = 6
    return high << 4 | low


cdef const uint8_t *read_text(const uint8_t *at, const uint8_t *end, Text *found) noexcept nogil:
    """The JSON text at ``at``, between its quotes. What follows it; NULL if it is no text, or not one of ASCII."""
    cdef int length = 0
    if at >= end or at[0] != c'"':
        return NULL
    at += 1
    found.at = at
    found.has_escapes = False
    while at < end:
        if at[0] == c'"':
            found.length = at - found.at
            return at + 1
        if at[0] == c"\\":
            found.has_escapes = True
            if escaped(at, end, &length) < 0:
                return NULL
            at += length
        elif at[0] < 0x20 or at[0] >= 0x80:
            return NULL
        else:
            at += 1
    return NULL


cdef const uint8_t *read_integer(const uint8_t *at, const uint8_t *end, int64_t *value) noexcept nogil:
    """The JSON integer of 32 bits at ``at``. What follows it; NULL if it is not one, or minus zero."""
    cdef bint negative = False
    cdef int digits = 0
    cdef int64_t found = 0
    if at < end and at[0] == c"-":
        negative = True
        at += 1
    if at >= end or at[0] < c"0" or at[0] > c"9" or (at[0] == c"0" and negative):
        return NULL
    if at[0] == c"0":
        at += 1
    else:
        while at < end and c"0" <= at[0] <= c"9":
            digits += 1
            if digits > 10:
                return NULL
            found = 10 * found + (at[0] - c"0")
            at += 1
    if at < end and (at[0] == c"." or at[0] == c"e" or at[0] == c"E" or c"0" <= at[0] <= c"9"):
        return NULL
    if negative:
        found = -found
    if found < -2147483648 or found > 2147483647:
        return NULL
    value[0] = found
    return at


cdef bint number_in(const Text *text, int64_t least, int64_t most, int64_t *value) noexcept nogil:
    """Whether a text is a decimal number between these limits: digits, perhaps after a minus, and nothing else."""
    cdef const uint8_t *at = text.at
    cdef Py_ssize_t n = 0
    cdef bint negative
    cdef int64_t found = 0
    if text.has_escapes or text.length < 1:
        return False
    negative = at[0] == c"-"
    if negative:
        n = 1
    if text.length - n < 1 or text.length - n > 18:  # no number of 18 digits overflows
        return False
    while n < text.length:
        if at[n] < c"0" or at[n] > c"9":
            return False
        found = 10 * found + (at[n] - c"0")
        n += 1
    if negative:
        found = -found
    value[0] = found
    return least <= found <= most


cdef const uint8_t *read_ext_fields(const uint8_t *at, const uint8_t *end, Header *header) noexcept nogil:
    """The header fields of a send: an object of texts, of which no letter comes twice. NULL if it is anything else."""
    cdef Text name, value
    cdef int fields = 0, letter
    if at >= end or at[0] != c"{":
        return NULL
    at += 1
    while True:
        at = read_text(at, end, &name)
        if at == NULL or name.has_escapes or at >= end or at[0] != c":":
            return NULL
        at = read_text(at + 1, end, &value)
        fields += 1
        if at == NULL or at >= end or fields > MOST_FIELDS:
            return NULL
        if name.length == 1 and c"a" <= name.at[0] < c"a" + LETTERS:
            letter = name.at[0] - c"a"
            if header.letters & (1 << letter):
                return NULL
            header.letters |= 1 << letter
            header.values[letter] = value
        if at[0] == c"}":
            return at + 1
        if at[0] != c",":
            return NULL
        at += 1


cdef int field_of_command(const Text *name) noexcept nogil:
    """The bit of a field, 0 if it is another one."""
    if is_text(name.at, name.length, "code", 4):
        return CODE
    if is_text(name.at, name.length, "flag", 4):
        return COMMAND_FLAG
    if is_text(name.at, name.length, "opaque", 6):
        return OPAQUE
    if is_text(name.at, name.length, "version", 7):
        return VERSION_FIELD
    if is_text(name.at, name.length, "extFields", 9):
        return EXT_FIELDS
    if is_text(name.at, name.length, "language", 8):
        return LANGUAGE
    if is_text(name.at, name.length, "serializeTypeCurrentRPC", 23):
        return SERIALIZE_TYPE
    if is_text(name.at, name.length, "remark", 6):
        return REMARK
    return 0


cdef const uint8_t *read_value(const uint8_t *at, const uint8_t *end, int field, Header *header) noexcept nogil:
    """The value of a field of a command; NULL if it is not as clients send it."""
    cdef int64_t version
    cdef Text text
    if field == CODE:
        at = read_integer(at, end, &header.code)
        if at == NULL or at >= end or at[0] != c",":  # the plain pass looks for the comma
            return NULL
        return at
    if field == COMMAND_FLAG:
        return read_integer(at, end, &header.flag)
    if field == OPAQUE:
        return read_integer(at, end, &header.opaque)
    if field == VERSION_FIELD:
        return read_integer(at, end, &version)
    if field == EXT_FIELDS:
        return read_ext_fields(at, end, header)
    if field == REMARK and end - at >= 4 and memcmp(at, "null", 4) == 0:
        return at + 4
    return read_text(at, end, &text)


cdef bint read_header(const uint8_t *at, const uint8_t *end, Header *header) noexcept nogil:
    """Whether the header is one of SEND_MESSAGE_V2 in which nothing is odd."""
    cdef Text name
    cdef int field
    header.seen = header.letters = 0
    if at >= end or at[0] != c"{":
        return False
    at += 1
    while True:
        at = read_text(at, end, &name)
        if at == NULL or name.has_escapes or at >= end or at[0] != c":":
            return False
        field = field_of_command(&name)
        if field == 0 or header.seen & field:
            return False
        header.seen |= field
        at = read_value(at + 1, end, field, header)
        if at == NULL or at >= end:
            return False
        if at[0] == c"}":
            break
        if at[0] != c",":
            return False
        at += 1
    at += 1
    while at < end and (at[0] == c"\n" or at[0] == c" "):
        at += 1
    return (
        at == end
        and header.seen & REQUIRED_OF_COMMAND == REQUIRED_OF_COMMAND
        and header.letters & REQUIRED_LETTERS == REQUIRED_LETTERS
        and header.code == SEND_MESSAGE_V2
        and not header.flag & RESPONSE_FLAG
    )


cdef Py_ssize_t unescape(const Text *text, uint8_t *to) noexcept nogil:
    """Write the text, which was read before, and return its length: never more than that of the escaped one."""
    cdef const uint8_t *at = text.at
    cdef const uint8_t *end = text.at + text.length
    cdef uint8_t *begin = to
    cdef int length = 0
    while at < end:
        if at[0] == c"\\":
            to[0] = <uint8_t>escaped(at, end, &length)
            at += length
        else:
            to[0] = at[0]
            at += 1
        to += 1
    return to - begin


cdef bint read_properties(uint8_t *at, Py_ssize_t length, Message *message) noexcept nogil:
    """Look at each property, and take WAIT=true out. Whether none is odd, and none asks for more than to store it."""
    cdef uint8_t *end = at + length
    cdef uint8_t *to = at
    cdef uint8_t *begin
    cdef const uint8_t *tags = NULL
    cdef Py_ssize_t size, tags_length = 0
    cdef bint waits = False
    message.own = at
    message.keys = MessageKeys(NULL, NULL, 0, 0)
    while at < end:
        begin = at
        while at < end and at[0] != 2:
            at += 1
        size = at - begin
        if at < end:
            at += 1  # the separator; after the last property some versions write one too
        if size == 0:
            return False
        if begins(begin, size, "WAIT\1", 5):
            if waits or not is_text(begin, size, "WAIT\1true", 9):
                return False
            waits = True
            continue
        if (
            begins(begin, size, "DELAY\1", 6)
            or begins(begin, size, "TRAN_MSG\1", 9)
            or begins(begin, size, "CLUSTER\1", 8)
            or begins(begin, size, "TIMER_DEL", 9)
        ):
            return False
        if to != message.own:
            to[0] = 2
            to += 1
        # It moves towards the front, or stays: what is read later is not touched.
        if to != begin:
            move(to, begin, size)
        if begins(to, size, "UNIQ_KEY\1", 9):
            message.keys.unique_key, message.keys.unique_key_length = to + 9, size - 9
        elif begins(to, size, "KEYS\1", 5):
            message.keys.words, message.keys.words_length = to + 5, size - 5
        elif begins(to, size, "TAGS\1", 5):
            tags, tags_length = to + 5, size - 5
        to += size
    message.own_length = to - message.own
    if message.keys.unique_key != NULL and not is_alphanumeric(message.keys.unique_key, message.keys.unique_key_length):
        return False
    if (message.keys.words != NULL and message.keys.words_length == 0) or (tags != NULL and tags_length == 0):
        return False
    message.tags_code = 0 if tags == NULL else <int64_t><int32_t>java_hash(0, tags, tags_length)
    return True


cdef inline void move(uint8_t *to, const uint8_t *source, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(length):
        to[n] = source[n]


cdef bint is_alphanumeric(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    """Whether these are letters and digits of ASCII, at least one."""
    cdef Py_ssize_t n
    cdef uint8_t lower
    if length < 1:
        return False
    for n in range(length):
        lower = at[n] | 0x20
        if not (c"0" <= at[n] <= c"9" or c"a" <= lower <= c"z"):
            return False
    return True


cdef Py_ssize_t keys_in(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    """How many keys these are: words between spaces."""
    cdef Py_ssize_t n, count = 0
    for n in range(length):
        if at[n] != c" " and (n == 0 or at[n - 1] == c" "):
            count += 1
    return count


cdef inline uint8_t *put_key(uint8_t *to, uint32_t key_hash, int64_t position, int64_t timestamp) noexcept nogil:
    """A key as the index wants it: its hash without a sign, in the machine's order."""
    cdef int32_t value = <int32_t>key_hash
    if value < 0:
        value = 0 if key_hash == 0x80000000U else <int32_t>(0U - key_hash)
    to = put_bytes(to, &value, 4)
    to = put_bytes(to, &position, 8)
    return put_bytes(to, &timestamp, 8)


cdef uint8_t *put_keys(
    uint8_t *to, const uint8_t *end, const MessageKeys *keys, uint32_t topic_hash, int64_t position, int64_t timestamp
) noexcept nogil:
    """Write the keys of a message. Where they end; NULL if they have no room before ``end``."""
    cdef Py_ssize_t begin = 0, at
    if keys.unique_key != NULL:
        if end - to < KEY_BYTES:
            return NULL
        to = put_key(to, java_hash(topic_hash, keys.unique_key, keys.unique_key_length), position, timestamp)
    if keys.words == NULL:
        return to
    for at in range(keys.words_length + 1):
        if at == keys.words_length or keys.words[at] == c" ":
            if at > begin:
                if end - to < KEY_BYTES:
                    return NULL
                to = put_key(to, java_hash(topic_hash, keys.words + begin, at - begin), position, timestamp)
            begin = at + 1
    return to


cdef class _Room:
    """Memory of a pass, which goes when the pass ends, however it ends."""

    cdef Message *messages
    cdef uint8_t *texts
    cdef TargetQueue[MOST_QUEUES] queues

    def __cinit__(self, Py_ssize_t most, Py_ssize_t text_bytes):
        self.messages = <Message *>malloc(most * sizeof(Message))
        self.texts = <uint8_t *>malloc(text_bytes)
        if self.messages == NULL or self.texts == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.messages)
        free(self.texts)


cdef int find_queue(const TargetQueue *queues, int count, int hint, const Text *topic, int32_t queue_id) noexcept nogil:
    """The number of a queue among those of the pass, -1 if it is a new one. ``hint`` is looked at first."""
    cdef int n
    for n in range(hint, count):
        if queues[n].id == queue_id and queues[n].topic_length == topic.length:
            if memcmp(queues[n].topic, topic.at, topic.length) == 0:
                return n
    for n in range(0, hint):
        if queues[n].id == queue_id and queues[n].topic_length == topic.length:
            if memcmp(queues[n].topic, topic.at, topic.length) == 0:
                return n
    return -1


cdef bint read_send(const uint8_t *at, const uint8_t *end, uint8_t *texts, Header *header, Message *message) noexcept nogil:
    """Read a header and what its properties say. Whether nothing in it is odd. ``texts`` has room for all of it."""
    cdef int64_t value = 0
    cdef int letters
    if not read_header(at, end, header):
        return False
    letters = header.letters
    if header.values[TOPIC].has_escapes:
        return False
    if not number_in(&header.values[SYS_FLAG], 0, 2147483647, &value) or value & ~<int64_t>ORDINARY_SYS_FLAGS:
        return False
    message.sys_flag = <int32_t>value
    if not number_in(&header.values[BORN_TIMESTAMP], -1000000000000000000, 1000000000000000000, &value):
        return False
    message.born_timestamp = value
    if not number_in(&header.values[FLAG], -2147483648, 2147483647, &value):
        return False
    message.flag = <int32_t>value
    value = 0
    if letters & (1 << RECONSUME_TIMES):
        if not number_in(&header.values[RECONSUME_TIMES], -2147483648, 2147483647, &value):
            return False
    message.reconsume_times = <int32_t>value
    if letters & (1 << BATCH):
        if not is_text(header.values[BATCH].at, header.values[BATCH].length, "false", 5):
            return False
    message.opaque = <int32_t>header.opaque
    message.is_answered = not header.flag & ONEWAY_FLAG
    value = 0
    if letters & (1 << PROPERTIES):
        value = unescape(&header.values[PROPERTIES], texts)
    return read_properties(texts, value, message)


def take_sends(bytes data not None, Py_ssize_t at, place):
    """The twin of `rmqha.wire.sends.plain.take`. It may stop earlier, but not before the first send that is taken."""
    run = try_sends(data, at, place)
    return _take_plain(data, at, place) if run is None else run


def try_sends(bytes data not None, Py_ssize_t at, place):
    """The sends of which it is sure; None if there is none. ``keys``, if there are any, are packed with their hashes."""
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef const uint8_t *raw = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t offset = place.offset, limit = place.limit, timestamp = place.timestamp, position = place.offset
    cdef int64_t max_body = place.max_body_bytes, max_record = place.max_record_bytes, queue_id = 0, size, first
    cdef int32_t v6_flags = 0
    cdef Py_ssize_t most = min(<Py_ssize_t>place.most, MOST_MESSAGES), count = 0, key_count = 0, answer_bytes = 0
    cdef Py_ssize_t length, header_bytes, next_at, smallest, stored, unit_at
    cdef Py_ssize_t answer_most, text_used = 0
    cdef Header header
    cdef Message *message
    cdef TargetQueue *queue
    cdef int queue_count = 0, queue_number = 0
    cdef bint is_new
    cdef _Room room
    if _SendRun is None:
        load_sends()
    if not 0 <= at <= end or offset < 0 or limit < offset:
        return None
    most = min(most, (end - at) // LEAST_FRAME_BYTES)
    if most <= 0:
        return None
    room = _Room(most, end - at)
    access = place.access
    born, store = place.born_host, place.store_host
    cluster = (<str>place.cluster).encode()
    smallest = FIXED_BYTES
    if len(born.address) != 4:
        v6_flags |= BORNHOST_V6_FLAG
        smallest += IPV6_EXTRA_BYTES
    if len(store.address) != 4:
        v6_flags |= STOREHOSTADDRESS_V6_FLAG
        smallest += IPV6_EXTRA_BYTES
    answer_most = FRAME_HEAD_BYTES + NUMBERS_BYTES + sum([len(part) for part in place.answer])
    names = []
    declined = _UNFINISHED
    while True:
        if end - at < FRAME_HEAD_BYTES:
            break
        length = int32_at(raw + at)
        header_bytes = uint32_at(raw + at + 4)
        next_at = at + 4 + length
        if next_at > end:
            break
        declined = _LIMIT
        if count >= most or key_count >= MOST_KEYS or header_bytes > MOST_HEADER_BYTES or length < 4 + header_bytes:
            break
        message = room.messages + count
        # The escaped texts of a frame are shorter than the frame: they fit into the room as the frames do into the read.
        if not read_send(
            raw + at + FRAME_HEAD_BYTES, raw + at + FRAME_HEAD_BYTES + header_bytes, room.texts + text_used, &header, message
        ):
            break
        if not number_in(&header.values[QUEUE_ID], 0, 2147483647, &queue_id):
            break
        message.body = raw + at + FRAME_HEAD_BYTES + header_bytes
        message.body_length = length - 4 - header_bytes
        if message.body_length > max_body:
            break
        if queue_count:
            queue_number = find_queue(
                room.queues, queue_count, (queue_number + 1) % queue_count, &header.values[TOPIC], <int32_t>queue_id
            )
        else:
            queue_number = -1
        if queue_number < 0:
            if queue_count == MOST_QUEUES:
                break
            topic = PyUnicode_DecodeASCII(<const char *>header.values[TOPIC].at, header.values[TOPIC].length, NULL)
            found = place.topics.room_of(topic)
            if found is None or queue_id >= <int64_t>found.write_queues or header.values[TOPIC].length > MAX_TOPIC_BYTES:
                break
            key = topic, <int32_t>queue_id
            first = place.queue_ends.get(key, 0)
            queue = &room.queues[queue_count]
            queue.topic, queue.topic_length = header.values[TOPIC].at, header.values[TOPIC].length
            queue.id = <int32_t>queue_id
            queue.first, queue.count, queue.record_bytes = first, 0, 0
            queue.topic_hash = java_hash(java_hash(0, queue.topic, queue.topic_length), <const uint8_t *>"#", 1)
            if queue.first < 0:
                break
            queue_number = queue_count
            is_new = True
        else:
            queue = &room.queues[queue_number]
            is_new = False
        if access is not None:
            fields = _loads(data[at + FRAME_HEAD_BYTES:at + FRAME_HEAD_BYTES + header_bytes])["extFields"]
            body = data[at + FRAME_HEAD_BYTES + header_bytes:next_at]
            if not access.may_send(SEND_MESSAGE_V2, fields, body):
                break
        stored = PyBytes_GET_SIZE(cluster) + (message.own_length + 1 if message.own_length else 0)
        size = <int64_t>smallest + message.body_length + queue.topic_length + stored
        if size > max_record or stored > MAX_PROPERTIES_BYTES:
            break
        if size > 2147483647:
            break
        if size > limit - position:
            declined = _SEGMENT
            break

        # From here on the request is taken.
        if is_new:
            queue_count += 1
            names.append(key)
        text_used += next_at - at
        message.queue = queue_number
        message.queue_offset = queue.first + queue.count
        message.position = position
        message.size = <int32_t>size
        queue.count += 1
        queue.record_bytes += size
        if message.keys.unique_key != NULL:
            key_count += 1
        if message.keys.words != NULL:
            key_count += keys_in(message.keys.words, message.keys.words_length)
        if message.is_answered:
            answer_bytes += answer_most + message.keys.unique_key_length
        position += size
        count += 1
        at = next_at
        declined = _UNFINISHED
    if count == 0:
        return None
    queues = {}
    for queue_number in range(queue_count):
        queue = &room.queues[queue_number]
        queues[names[queue_number]] = _QueueUnits(
            queue.first, queue.count, units_of(room, count, queue_number), queue.record_bytes
        )
    return _SendRun(
        place.offset,
        place.timestamp,
        at,
        declined,
        count,
        records_of(room, count, position - offset, place, cluster, v6_flags),
        room.messages[count - 1].position - offset,
        answers_of(room, count, answer_bytes, place.answer),
        queues,
        keys_of(room, count, key_count, timestamp) if key_count else [],
        key_count,
    )


cdef object wrong_size():
    return AssertionError("something is longer or shorter than it was said to be")


cdef bytes records_of(_Room room, Py_ssize_t count, int64_t size, place, bytes cluster, int32_t v6_flags):
    """The records, one after another: ``size`` bytes in all."""
    cdef bytes records = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(records)
    cdef bytes born = place.born_host.address, store = place.store_host.address
    cdef int32_t born_port = place.born_host.port, store_port = place.store_host.port
    cdef int64_t timestamp = place.timestamp
    cdef const Message *message
    cdef const TargetQueue *queue
    cdef const uint8_t *end = to + size
    cdef Py_ssize_t n, stored, needed
    cdef uint32_t crc
    for n in range(count):
        message = room.messages + n
        queue = &room.queues[message.queue]
        stored = PyBytes_GET_SIZE(cluster) + (message.own_length + 1 if message.own_length else 0)
        needed = FIXED_BYTES - 8 + PyBytes_GET_SIZE(born) + PyBytes_GET_SIZE(store)
        needed += message.body_length + queue.topic_length + stored
        if needed != message.size or needed > end - to:
            raise wrong_size()
        crc = crc32(message.body, message.body_length) & CRC_MASK
        to = put32(to, message.size)
        to = put32(to, MESSAGE_MAGIC_CODE)
        to = put32(to, crc)
        to = put32(to, queue.id)
        to = put32(to, message.flag)
        to = put64(to, message.queue_offset)
        to = put64(to, message.position)
        to = put32(to, message.sys_flag & ~V6_FLAGS | v6_flags)
        to = put64(to, message.born_timestamp)
        to = put_bytes(to, PyBytes_AS_STRING(born), PyBytes_GET_SIZE(born))
        to = put32(to, born_port)
        to = put64(to, timestamp)
        to = put_bytes(to, PyBytes_AS_STRING(store), PyBytes_GET_SIZE(store))
        to = put32(to, store_port)
        to = put32(to, message.reconsume_times)
        to = put64(to, 0)
        to = put32(to, <uint32_t>message.body_length)
        to = put_bytes(to, message.body, message.body_length)
        to[0] = <uint8_t>queue.topic_length
        to = put_bytes(to + 1, queue.topic, queue.topic_length)
        to = put16(to, <uint16_t>stored)
        if message.own_length:
            to = put_bytes(to, message.own, message.own_length)
            to[0] = 2
            to += 1
        to = put_bytes(to, PyBytes_AS_STRING(cluster), PyBytes_GET_SIZE(cluster))
    if to != end:
        raise wrong_size()
    return records


cdef bytearray units_of(_Room room, Py_ssize_t count, int queue_number):
    """The units of one queue."""
    cdef Py_ssize_t size = room.queues[queue_number].count * UNIT_BYTES
    cdef bytearray units = PyByteArray_FromStringAndSize(NULL, size)
    cdef uint8_t *to = <uint8_t *>PyByteArray_AS_STRING(units)
    cdef const uint8_t *end = to + size
    cdef const Message *message
    cdef Py_ssize_t n
    for n in range(count):
        message = room.messages + n
        if message.queue == queue_number:
            if end - to < UNIT_BYTES:
                raise wrong_size()
            to = put64(put32(put64(to, message.position), message.size), message.tags_code)
    if to != end:
        raise wrong_size()
    return units


cdef bytes keys_of(_Room room, Py_ssize_t count, Py_ssize_t key_count, int64_t timestamp):
    """The index keys, packed."""
    cdef bytes keys = PyBytes_FromStringAndSize(NULL, key_count * KEY_BYTES)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(keys)
    cdef const uint8_t *end = to + key_count * KEY_BYTES
    cdef const Message *message
    cdef Py_ssize_t n
    for n in range(count):
        message = room.messages + n
        to = put_keys(to, end, &message.keys, room.queues[message.queue].topic_hash, message.position, timestamp)
        if to == NULL:
            raise wrong_size()
    if to != end:
        raise wrong_size()
    return keys


cdef bytes answers_of(_Room room, Py_ssize_t count, Py_ssize_t most_bytes, parts):
    """The answers, one frame after another: at most so many bytes."""
    cdef bytes offset, queue_id, queue_offset, key, opaque, rest
    cdef uint8_t *begin
    cdef uint8_t *to
    cdef uint8_t *frame
    cdef const uint8_t *end
    cdef const Message *message
    cdef Py_ssize_t n, fixed
    offset, queue_id, queue_offset, key, opaque, rest = parts
    fixed = FRAME_HEAD_BYTES + NUMBERS_BYTES + sum([len(part) for part in parts])
    begin = <uint8_t *>malloc(most_bytes + 1)
    if begin == NULL:
        raise MemoryError
    try:
        to = begin
        end = begin + most_bytes
        for n in range(count):
            message = room.messages + n
            if not message.is_answered:
                continue
            if end - to < fixed + message.keys.unique_key_length:
                raise wrong_size()
            frame = to
            to = put_bytes(to + FRAME_HEAD_BYTES, PyBytes_AS_STRING(offset), PyBytes_GET_SIZE(offset))
            to = put_hex64(to, message.position)
            to = put_bytes(to, PyBytes_AS_STRING(queue_id), PyBytes_GET_SIZE(queue_id))
            to = put_decimal(to, room.queues[message.queue].id)
            to = put_bytes(to, PyBytes_AS_STRING(queue_offset), PyBytes_GET_SIZE(queue_offset))
            to = put_decimal(to, message.queue_offset)
            if message.keys.unique_key != NULL:
                to = put_bytes(to, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
                to = put_bytes(to, message.keys.unique_key, message.keys.unique_key_length)
            to = put_bytes(to, PyBytes_AS_STRING(opaque), PyBytes_GET_SIZE(opaque))
            to = put_decimal(to, message.opaque)
            to = put_bytes(to, PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))
            put32(frame, <uint32_t>(to - frame - 4))
            put32(frame + 4, <uint32_t>(to - frame - FRAME_HEAD_BYTES))
        return PyBytes_FromStringAndSize(<const char *>begin, to - begin)
    finally:
        free(begin)
