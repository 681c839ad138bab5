"""Logs with ordinary and odd messages, and what the kernel's pass over them must give."""

from dataclasses import dataclass
from random import Random
from typing import Any

from rmqha.store.derived.dispatchrequest import DispatchRequest, is_no_folder, is_possible_offset, read_if_sound
from rmqha.store.derived.index import IndexedKey, hashed
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, UNIT
from rmqha.wire.logunits import OrdinaryUnits
from rmqha.wire.record import INNER_BATCH_FLAG, Host, Record, encode_blank, encode_record

HOSTS = (Host.parse("10.0.0.1", 10911), Host.parse("2001:db8::1", 10911))
BASES = (0, 91 * 5000, 1 << 30, (1 << 63) - (1 << 20))
TOPICS = ("Orders", "Orders", "Orders", "a", "x" * 127)
ODD_TOPICS = (SCHEDULE_TOPIC, "", ".", "..", "a/b", "n\0l", "é", "x" * 128)
TAGS = ("TagA", "TagB", "a\x01b", "polygenelubricants")
KEYS = ("k1", "k1 k2", " k ", "a  b", " ", "k" * 200)
ODD_PROPERTIES = ("TAGS\x01é", "KEYS\x01ü b", "UNIQ_KEY\x01", "TAGS\x01", "\x01v", "TAGS", "", "TAGS\x01x\x02TAGS\x01y")
ODD_INTEGERS = (0, 1, 2, 91, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
ODD_BYTES = (0, 1, 2, 0x20, 0x2F, 0x7F, 0x80, 0xFF)


def properties(rng: Random, oddness: float) -> str:
    """As stored."""
    found = [f"UNIQ_KEY\x017F0000010001{rng.getrandbits(80):020X}"] if rng.random() < 0.9 else []
    found += [f"TAGS\x01{rng.choice(TAGS)}"] if rng.random() < 0.6 else []
    found += [f"KEYS\x01{rng.choice(KEYS)}"] if rng.random() < 0.4 else []
    found += [f"p{n}\x01ü\x01v" for n in range(rng.choice((0, 0, 1, 3)))]
    rng.shuffle(found)
    if rng.random() < oddness:
        found.insert(rng.randrange(len(found) + 1), rng.choice(ODD_PROPERTIES))
    return "\x02".join(found) + rng.choice(("", "", "\x02"))


def a_log(rng: Random, base: int, oddness: float = 0.02) -> bytes:
    """Records one after another from ``base`` of the log on, of each field so many odd ones; a blank, and damage."""
    data, offsets = bytearray(), dict[tuple[str, int], int]()
    queues = rng.choice((1, 4, 8, 40, 200))
    for number in range(rng.choice((1, 3, 30, 300))):
        topic, queue_id = rng.choice(TOPICS), rng.randrange(queues)
        sys_flag, magic = rng.choice((0, 0, 0, 1, 2, 8, 0x100)), MESSAGE_MAGIC_CODE
        offset = offsets.setdefault((topic, queue_id), rng.choice((0, 7, 4000)) if base else 0)
        offsets[topic, queue_id] += 1
        if rng.random() < oddness:
            topic = rng.choice(ODD_TOPICS)
        if rng.random() < oddness:
            queue_id = rng.choice((-1, 1 << 30))
        if rng.random() < oddness:
            offset = rng.choice((-1, offset + 1, offset - 1, 1 << 62))
        if rng.random() < oddness:
            sys_flag |= rng.choice((4, 12, INNER_BATCH_FLAG))
        if rng.random() < oddness:
            magic = MESSAGE_MAGIC_CODE_V2
        record = Record(
            topic if magic == MESSAGE_MAGIC_CODE_V2 else topic[:127],
            rng.randbytes(rng.choice((0, 1, 100))),
            properties(rng, oddness),
            queue_id=queue_id,
            queue_offset=offset,
            sys_flag=sys_flag,
            physical_offset=base + len(data),
            born_host=rng.choice(HOSTS),
            store_host=rng.choice(HOSTS),
            store_timestamp=rng.choice((1_700_000_000_000 + number, -number)),
            magic=magic,
        )
        data += encode_record(record)
    if rng.random() < 0.3:
        data += encode_blank(40) + bytes(32)
    for _ in range(rng.choice((0, 0, 1, 2)) if oddness else 0):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.choice((*ODD_BYTES, rng.randrange(256)))
        else:
            data[at : at + 4] = rng.choice(ODD_INTEGERS).to_bytes(4, "big")
    return bytes(data)


@dataclass
class ComparedLogs:
    """How much of logs was compared."""

    passes: int = 0
    bytes: int = 0
    messages: int = 0


def compare(kernel: Any, data: bytes, base: int, limits: tuple[int, int, int], compared: ComparedLogs) -> None:
    """What the kernel says of a log is what each of its messages says. ``limits`` are of bytes, messages and keys.

    Raises AssertionError with the log.
    """
    found = kernel.ordinary_units(data, base, *limits)
    compared.passes += 1
    compared.bytes += max(0, min(limits[0], len(data)))
    if found is None:
        return
    try:
        _check(found, data, base, limits)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found} of {data!r} at {base}, limits {limits}") from error
    compared.messages += found.messages


def _check(found: OrdinaryUnits, data: bytes, base: int, limits: tuple[int, int, int]) -> None:
    at, requests = 0, list[DispatchRequest]()
    view = memoryview(data)
    for _ in range(found.messages):
        request = read_if_sound(view, base, at)
        assert isinstance(request, DispatchRequest), "it is a message"
        requests.append(request)
        at += request.size
    assert (found.end, found.timestamp) == (base + at, requests[-1].store_timestamp), "end or timestamp"
    assert at <= limits[0], "limit"
    assert 0 < len(requests) <= limits[1], "too many messages"
    keys = [key for request in requests for key in _keys(request)]
    assert len(keys) - len(_keys(requests[-1])) < limits[2], "too many keys"
    assert (found.key_count, found.keys) == (len(keys), hashed(keys).tobytes()), "keys"
    queues: dict[tuple[str, int], list[DispatchRequest]] = {}
    for request in requests:
        assert request.is_queued, "no unit"
        assert request.is_indexed, "no keys"
        assert not is_no_folder(request.topic), "topic"
        assert not request.sys_flag & INNER_BATCH_FLAG, "batch"
        assert is_possible_offset(request.queue_offset, request.physical_offset), "no place"
        some = queues.setdefault((request.topic, request.queue_id), [])
        some.append(request)
        assert request.queue_offset == some[0].queue_offset + len(some) - 1, "a gap"
    assert list(found.queues) == list(queues), "the order of queues"
    for queue, some in queues.items():
        units = b"".join(UNIT.pack(one.physical_offset, one.size, one.tags_code(DelayLevels())) for one in some)
        is_of = found.queues[queue]
        assert (is_of.first, is_of.count, bytes(is_of.units)) == (some[0].queue_offset, len(some), units), "units"


def _keys(request: DispatchRequest) -> list[IndexedKey]:
    at, timestamp = request.physical_offset, request.store_timestamp
    return [IndexedKey(f"{request.topic}#{key}", at, timestamp) for key in request.index_keys()]
