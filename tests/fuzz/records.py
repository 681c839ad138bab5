"""Records of the commit log: proved one by one, proved many at once, decoded, printed."""

import zlib
from dataclasses import replace
from random import Random
from unittest.mock import patch

import orjson

from rmqha.testing.records import make_record
from rmqha.wire import layout, scan
from rmqha.wire import record as coding
from rmqha.wire.record import Host, IncompleteRecord, Record, RecordError
from rmqha.wire.scanned import Scan
from tests import fixtures
from tests.fuzz.target import Field, Shape, Target, choices, require
from tests.wire.test_scan import scan_one_by_one

BASE = 1 << 40
"""Where in the log every segment of this target lies."""
V6_HOST = Host.parse("2001:db8::1", 10911)


def check_records(data: bytes) -> int:
    """All ways of proving agree, in pieces too; what is proved is encoded to its own bytes and can be printed."""
    used = scan.scan_records(data, BASE, BASE, BASE + len(data))
    with patch.object(scan, "check_records", scan.check_records_plain):
        found = scan.scan_records(data, BASE, BASE, BASE + len(data))
        require(used == found, "what runs proves what plain Python proves", used, found)
        return _check_plain(data)


def _check_plain(data: bytes) -> int:
    rng = choices(data)
    end = BASE + len(data)
    found = scan.scan_records(data, BASE, BASE, end)
    walked = walk_by_the_book(data)
    require((found.end - BASE, found.problem is None) == walked, "a log is as sound as the format says", found, walked)
    one_by_one = scan_one_by_one(data, BASE, BASE, end)
    require(found == one_by_one, "many at once finds what one by one does", found, one_by_one)
    with patch.object(scan, "FEW_RECORDS", 1):
        in_arrays = scan.scan_records(data, BASE, BASE, end)
    require(in_arrays == found, "few and many records are proved alike", in_arrays, found)
    starts = _check_proved(data, found.end - BASE, rng)
    limits = sorted(rng.randrange(BASE, end + 1) for _ in range(3))
    in_pieces = Scan(end=BASE)
    for limit in (*limits, end):
        if in_pieces.problem is None:
            in_pieces = in_pieces.then(scan.scan_records(data, BASE, in_pieces.end, max(limit, in_pieces.end)))
    require(in_pieces == found, "a log that comes in pieces gives what it gives as a whole", in_pieces, found)
    if starts:
        _check_prefix(data, rng.choice(starts), rng)
    _check_anywhere(data, rng.randrange(len(data) + 1))
    return min(found.end - BASE + layout.FIXED_BYTES, len(data))


def walk_by_the_book(data: bytes) -> tuple[int, bool]:
    """How far the records are sound, and whether all are: as the format's table reads."""
    at = 0
    while at < len(data):
        size = size_by_the_book(data, at)
        if not size:
            return at, False
        at += size
    return at, True


def size_by_the_book(data: bytes, at: int) -> int:
    """The size of the sound record or blank that starts here; 0 without one."""

    def number(place: int, width: int) -> int:
        return int.from_bytes(data[place : place + width], "big", signed=True)

    room = len(data) - at
    size, magic, sys_flag = number(at, 4), number(at + 4, 4), number(at + 36, 4)
    if magic == layout.BLANK_MAGIC_CODE:
        return size if size == room >= 8 else 0
    is_v2 = magic == layout.MESSAGE_MAGIC_CODE_V2
    body_at = 88 + 12 * (sys_flag >> 4 & 1) + 12 * (sys_flag >> 5 & 1)
    if not (is_v2 or magic == layout.MESSAGE_MAGIC_CODE) or not body_at + is_v2 + 3 <= size <= room:
        return 0
    body_length = number(at + body_at - 4, 4)
    topic_length_at = body_at + body_length
    if body_length < 0 or topic_length_at + is_v2 + 3 > size or number(at + 28, 8) != BASE + at:
        return 0
    topic_length = number(at + topic_length_at, 1 + is_v2)
    properties_length_at = topic_length_at + 1 + is_v2 + topic_length
    if topic_length < 0 or properties_length_at + 2 > size:
        return 0
    properties_length = number(at + properties_length_at, 2)
    if properties_length < 0 or properties_length_at + 2 + properties_length != size:
        return 0
    crc = zlib.crc32(data[at + body_at : at + topic_length_at]) & 0x7FFFFFFF
    return size if not body_length or crc == number(at + 8, 4) else 0


def _check_proved(data: bytes, end: int, rng: Random) -> list[int]:
    """Where the proved records and blanks start."""
    starts, at = [], 0
    while at < end:
        starts.append(at)
        record = coding.decode_record(data, at)
        if isinstance(record, Record):
            size = record.total_size
            require(coding.encode_record(record) == data[at : at + size], "a proved record keeps its bytes", record)
            if rng.random() < 0.1:
                orjson.dumps(coding.record_as_json(record))
        else:
            size = record.size
            require(coding.encode_blank(size) == data[at : at + 8], "a proved blank keeps its bytes", record)
        at += size
    require(at == end, "what is proved ends where its last record ends", at, end)
    return starts


def _check_prefix(data: bytes, start: int, rng: Random) -> None:
    """The start of something sound is incomplete, never wrong."""
    size = int.from_bytes(data[start : start + 4], "big")
    written = memoryview(data)[: start + rng.randrange(size)]
    try:
        found = coding.check_record(written, start, BASE + start, len(data) - start)
    except IncompleteRecord:
        return
    require(False, "a piece of a record is incomplete", found)


def _check_anywhere(data: bytes, at: int) -> None:
    """Wherever decoding starts, it ends with a record or a RecordError."""
    try:
        record = coding.decode_record(data, at)
    except RecordError:
        return
    if isinstance(record, Record):
        require(coding.encode_record(record) == data[at : at + record.total_size], "a record keeps its bytes", record)


def parse_records(data: bytes) -> object:
    """The scan alone."""
    return scan.scan_records(data, BASE, BASE, BASE + len(data))


def record_seeds(rng: Random) -> list[bytes]:
    """Segments with every kind of record, some ended by a blank, some not full yet; and one of Java's records."""
    kinds = [
        make_record(1, b"body"),
        make_record(2, b""),
        make_record(3, rng.randbytes(1000), topic="T" * 127),
        Record("", b""),
        Record("t" * 300, b"wide topic", "k\x01v", magic=layout.MESSAGE_MAGIC_CODE_V2),
        Record("V6", b"both", born_host=V6_HOST, store_host=V6_HOST),
        Record("V6", b"born", "p\x01" + "v" * 500, born_host=V6_HOST),
        Record("V6", b"store", store_host=V6_HOST, magic=layout.MESSAGE_MAGIC_CODE_V2),
        Record("\udcff", b"not UTF-8", "\udc80\x01\udcc3"),
        Record("Zip", b"x\x9cK\x04\x00\x00b\x00b", sys_flag=coding.COMPRESSED_FLAG),
    ]
    short = [kind for kind in kinds if kind.total_size < 150]
    many = [[rng.choice(short) for _ in range(rng.randrange(16, 24))] for _ in range(30)]
    mixed = [[rng.choice(kinds) for _ in range(count)] for count in (2, 3, 10, 20, 50, 400)]
    alone = [[kind] for kind in kinds]
    seeds = [_segment(chosen, rng.choice((0, 0, 8, 9, 90, 91, 500))) for chosen in (*alone, *many, *mixed)]
    seeds += [_segment(chosen, 0) + bytes(200) for chosen in mixed]
    return [*seeds, *_java_segments()]


def _segment(records: list[Record], blank: int) -> bytes:
    content = bytearray()
    for record in records:
        content += coding.encode_record(replace(record, physical_offset=BASE + len(content)))
    return bytes(content + (coding.encode_blank(blank) if blank else b"")).ljust(len(content) + blank, b"\0")


def _java_segments() -> list[bytes]:
    log = bytearray(fixtures.segments("master-clean")[0][: 32 * 1024])
    _repair(log)
    return [bytes(log), bytes(log[:3000])]


def record_starts(data: bytes) -> list[int]:
    """Where records would start if every size that can be followed were true."""
    starts, at = [], 0
    while at + 8 <= len(data):
        starts.append(at)
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size < coding.END_FILE_MIN_BLANK_LENGTH:
            break
        at += size
    return starts


def _body_at(data: bytes, start: int) -> int:
    """Where this record's body would start."""
    sys_flag = int.from_bytes(data[start + 36 : start + 40], "big")
    v6_hosts = bool(sys_flag & layout.BORNHOST_V6_FLAG) + bool(sys_flag & layout.STOREHOSTADDRESS_V6_FLAG)
    return start + 88 + layout.IPV6_EXTRA_BYTES * v6_hosts


def _is_v2(data: bytes, start: int) -> bool:
    return int.from_bytes(data[start + 4 : start + 8], "big", signed=True) == layout.MESSAGE_MAGIC_CODE_V2


def record_fields(data: bytes, start: int) -> list[Field]:
    """TOTALSIZE, MAGICCODE, BODYCRC, PHYSICALOFFSET, SYSFLAG and the lengths."""
    body_at = _body_at(data, start)
    topic_length_at = body_at + int.from_bytes(data[body_at - 4 : body_at], "big")
    is_v2 = _is_v2(data, start)
    topic_at = topic_length_at + 1 + is_v2
    properties_length_at = topic_at + int.from_bytes(data[topic_length_at:topic_at], "big")
    lengths = [Field(body_at - 4, 4), Field(topic_length_at, 1 + is_v2), Field(properties_length_at, 2)]
    return [
        Field(start, 4),
        Field(start + 4, 4),
        Field(start + 8, 4),
        Field(start + 28, 8),
        Field(start + 36, 4),
        *lengths * 2,
    ]


def _forge(data: bytearray, rng: Random) -> None:
    """A record with any BODYLENGTH or TOPICLENGTH, and a PROPERTIESLENGTH where it is then looked for."""
    whole = bytes(data)
    start = rng.choice(record_starts(whole) or [0])
    body_at, end = _body_at(whole, start), start + int.from_bytes(whole[start : start + 4], "big")
    body_length, width = int.from_bytes(whole[body_at - 4 : body_at], "big", signed=True), 1 + _is_v2(whole, start)
    if rng.random() < 0.5:
        body_length = rng.randrange(-80, 80)
        _put(data, body_at - 4, 4, body_length)
        _put(data, start + 8, 4, 0)  # the CRC of nothing
    topic_at = body_at + body_length + width
    topic_length = rng.randrange(-80, 80)
    _put(data, topic_at - width, width, topic_length)
    properties_at = topic_at + topic_length + 2
    _put(data, properties_at - 2, 2, end - properties_at)


def _put(data: bytearray, at: int, width: int, value: int) -> None:
    if 0 <= at <= len(data) - width:
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")


def _repair(data: bytearray) -> None:
    """Offsets and CRCs as they should be; sizes stay as they are."""
    whole = bytes(data)
    for start in record_starts(whole):
        body_at = _body_at(whole, start)
        body_length = int.from_bytes(whole[body_at - 4 : body_at], "big", signed=True)
        if 0 <= body_length <= len(data) - body_at:
            data[start + 28 : start + 36] = (BASE + start).to_bytes(8, "big")
            crc = coding.body_crc(whole[body_at : body_at + body_length])
            data[start + 8 : start + 12] = crc.to_bytes(4, "big")


RECORD = Target(
    name="record",
    seeds=record_seeds,
    shape=Shape(
        record_starts,
        record_fields,
        _repair,
        _forge,
        numbers=(
            layout.MESSAGE_MAGIC_CODE,
            layout.MESSAGE_MAGIC_CODE_V2,
            layout.BLANK_MAGIC_CODE,
            layout.FIXED_BYTES,
            layout.FIXED_BYTES + layout.IPV6_EXTRA_BYTES,
            layout.FIXED_BYTES + 2 * layout.IPV6_EXTRA_BYTES,
            coding.MAX_TOPIC_BYTES,
            coding.MAX_PROPERTIES_BYTES,
            BASE,
            layout.BORNHOST_V6_FLAG,
            layout.STOREHOSTADDRESS_V6_FLAG,
        ),
    ),
    check=check_records,
    parse=parse_records,
    weight=10,
)
