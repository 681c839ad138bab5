"""The pass over ordinary sends, in plain Python. It is the specification of the compiled one.

Each rule that makes a request extraordinary has its line and its reason here. Where the processors of a broker would
do anything else than to store a message and say so, or might, the pass stops before the request.
"""

from functools import lru_cache
from struct import error as StructError

import orjson
from isal.isal_zlib import crc32

from rmqha.wire.command import (
    FOUR_INT32,
    FRAME_HEAD,
    HEADER_LENGTH,
    MAX_EXT_FIELDS,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    TOTAL_LENGTH_BYTES,
    RequestCode,
    texts_of,
)
from rmqha.wire.javahash import tags_hash
from rmqha.wire.layout import (
    BORNHOST_V6_FLAG,
    FIXED_BYTES,
    HEADS,
    INT16,
    MESSAGE_MAGIC_CODE,
    STOREHOSTADDRESS_V6_FLAG,
    UNIT,
    hosts_extra,
)
from rmqha.wire.properties import WAIT_TRUE
from rmqha.wire.record import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    CRC_MASK,
    MAX_PROPERTIES_BYTES,
    MULTI_TAGS_FLAG,
    v6_flags,
)
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS
from rmqha.wire.sends.run import (
    V1_CODE,
    V2_CODE,
    AnswerParts,
    Declined,
    Place,
    Queue,
    QueueUnits,
    SendRun,
    TopicRoom,
)

MOST_HEADER_BYTES = 16 * 1024
MOST_KEYS = 1024
"""A pass takes no further request when its messages have as many index keys."""
V6_FLAGS = BORNHOST_V6_FLAG | STOREHOSTADDRESS_V6_FLAG
ORDINARY_SYS_FLAGS = COMPRESSED_FLAG | MULTI_TAGS_FLAG | V6_FLAGS | COMPRESSION_TYPE_MASK
"""Other bits are those of transactions and of batches that stay one message."""
UNIQUE_KEY, KEYS, TAGS = "\2UNIQ_KEY\1", "\2KEYS\1", "\2TAGS\1"


def take(data: bytes, at: int, place: Place) -> SendRun:  # noqa: C901  # one rule after another, read once from top to bottom
    """Take the sends from ``at`` in ``data`` on, up to the first request that is not ordinary."""
    end, offset, timestamp = len(data), place.offset, place.timestamp
    born, store = place.born_host, place.store_host
    head_pack, host_flags = HEADS[len(born.address), len(store.address)].pack, v6_flags(born, store)
    smallest = FIXED_BYTES + hosts_extra(host_flags)
    with_key, without_key = _answer_forms(place.answer)
    count, position = 0, offset
    last = offset
    pieces: list[bytes] = []
    answers: list[bytes] = []
    queues: dict[Queue, QueueUnits] = {}
    rooms: dict[Queue, TopicRoom] = {}
    keys: list[tuple[str, int, int]] = []
    while True:
        # The read ends here, or a limit is reached.
        if end - at < FRAME_HEAD.size:
            declined = Declined.UNFINISHED
            break
        length, header_bytes = FRAME_HEAD.unpack_from(data, at)
        header_at = at + FRAME_HEAD.size
        body_at, next_at = header_at + header_bytes, at + TOTAL_LENGTH_BYTES + length
        if next_at > end:
            declined = Declined.UNFINISHED
            break
        if count >= place.most or len(keys) >= MOST_KEYS:
            declined = Declined.LIMIT
            break

        # Another request or an answer, or the header is binary: then its first byte is not 0.
        if header_bytes > MOST_HEADER_BYTES or next_at < body_at:
            declined = Declined.NO_SEND if header_bytes > 0xFFFFFF else Declined.HEADER
            break
        header = data[header_at:body_at]
        if V2_CODE in header:
            expected, names = RequestCode.SEND_MESSAGE_V2, V2_FIELDS
        elif V1_CODE in header:
            expected, names = RequestCode.SEND_MESSAGE, V1_FIELDS
        else:
            declined = Declined.NO_SEND
            break

        # The header has all fields that a send needs, and each has the type that clients send.
        try:
            content = orjson.loads(header)
            code, opaque, flag, fields = content["code"], content["opaque"], content["flag"], content["extFields"]
            FOUR_INT32.pack(code, opaque, flag, content["version"])
            required, properties = names.required(fields), fields.get(names.properties, "")
            retries = fields.get(names.reconsume_times, "0")
            try:
                "".join((*required, properties, retries))  # raises TypeError for anything but a text
            except TypeError:
                fields = texts_of(fields)
                required, properties = names.required(fields), fields.get(names.properties, "")
                retries = fields.get(names.reconsume_times, "0")
            _, topic, _, _, *numbers = required
            queue_id, sys_flag, born_at, message_flag = map(int, numbers)
            reconsume_times = int(retries)
            batch = fields.get(names.batch)
        except (ValueError, KeyError, TypeError, AttributeError, StructError):
            declined = Declined.HEADER
            break
        if code != expected or flag & RESPONSE_FLAG:
            declined = Declined.NO_SEND
            break
        if sys_flag & ~ORDINARY_SYS_FLAGS or len(content["extFields"]) > MAX_EXT_FIELDS:
            declined = Declined.HEADER
            break
        if batch in ("true", True):  # other texts are false: C++ sends 0, and 1
            declined = Declined.BATCH
            break

        # No property asks for more than to store the message. WAIT=true is the default, and is not stored.
        padded = f"\2{properties}\2"
        if WAIT_TRUE in padded:
            padded = padded.replace(WAIT_TRUE, "\2")
        if "\2WAIT\1" in padded or "\2DELAY\1" in padded or "\2TRAN_MSG\1" in padded:
            declined = Declined.PROPERTIES
            break
        if "\2CLUSTER\1" in padded or "\2TIMER_DEL" in padded:
            declined = Declined.PROPERTIES
            break
        unique_key, own_keys, tags = _value(padded, UNIQUE_KEY), _value(padded, KEYS), _value(padded, TAGS)
        if own_keys == "" or tags == "":  # an empty value does not count, but one before it may
            declined = Declined.PROPERTIES
            break
        if unique_key is not None and not (unique_key.isascii() and unique_key.isalnum()):  # its answer needs escapes
            declined = Declined.PROPERTIES
            break

        # The topic and the queue take messages, and the account may send them.
        key = topic, queue_id
        queue = queues.get(key)
        if queue is not None:
            room = rooms[key]
        else:
            found = place.topics.room_of(topic)
            if found is None:
                declined = Declined.TOPIC
                break
            if not 0 <= queue_id < found.write_queues:
                declined = Declined.QUEUE
                break
            room, queue = found, QueueUnits(place.queue_ends.get(key, 0))
        if next_at - body_at > place.max_body_bytes:  # before it is copied, and its signature computed
            declined = Declined.SIZE
            break
        body = data[body_at:next_at]
        if place.access is not None and not place.access.may_send(code, fields, body):
            declined = Declined.ACCESS
            break

        # The record fits its limits, and the segment.
        own = padded.strip("\2")
        stored = (f"{own}\2{place.cluster}" if own else place.cluster).encode()
        size = smallest + len(body) + len(room.encoded) + len(stored)
        if size > place.max_record_bytes or len(stored) > MAX_PROPERTIES_BYTES:
            declined = Declined.SIZE
            break
        if position + size > place.limit:
            declined = Declined.SEGMENT
            break
        queue_offset = queue.first + queue.count
        try:
            head = head_pack(
                size,
                MESSAGE_MAGIC_CODE,
                crc32(body) & CRC_MASK,
                queue_id,
                message_flag,
                queue_offset,
                position,
                sys_flag & ~V6_FLAGS | host_flags,
                born_at,
                *born,
                timestamp,
                *store,
                reconsume_times,
                0,
                len(body),
            )
        except StructError:  # a number does not fit its field
            declined = Declined.HEADER
            break

        # From here on the request is taken.
        pieces += head, body, room.length, room.encoded, INT16.pack(len(stored)), stored
        if not queue.count:
            queues[key], rooms[key] = queue, room
        queue.units += UNIT.pack(position, size, tags_hash(tags) if tags else 0)
        queue.count += 1
        queue.record_bytes += size
        if unique_key is not None:
            keys.append((f"{topic}#{unique_key}", position, timestamp))
        if own_keys is not None:
            keys += [(f"{topic}#{key}", position, timestamp) for key in own_keys.split(" ") if key]
        if not flag & ONEWAY_FLAG:
            if unique_key is not None:
                answer = with_key % (position, queue_id, queue_offset, unique_key.encode(), opaque)
            else:
                answer = without_key % (position, queue_id, queue_offset, opaque)
            answers += FRAME_HEAD.pack(HEADER_LENGTH.size + len(answer), len(answer)), answer
        last = position
        position += size
        count += 1
        at = next_at
    return SendRun(
        offset,
        timestamp,
        at,
        declined,
        count,
        b"".join(pieces),
        last - offset,
        b"".join(answers),
        queues,
        keys,
        len(keys),
    )


def _value(padded: str, name: str) -> str | None:
    """The value of the last property of this name, which may be empty; None if there is none."""
    _, found, rest = padded.rpartition(name)
    return rest.partition("\2")[0] if found else None


@lru_cache(maxsize=16)
def _answer_forms(parts: AnswerParts) -> tuple[bytes, bytes]:
    """The header of an answer with a unique key, and without one, as formats of their values."""
    offset, queue_id, queue_offset, key, opaque, after = (part.replace(b"%", b"%%") for part in parts)
    begin = b"%b%%016X%b%%d%b%%d" % (offset, queue_id, queue_offset)
    end = b"%b%%d%b" % (opaque, after)
    return begin + key + b"%b" + end, begin + end
