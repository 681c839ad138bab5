"""What hypothesis makes for the tests: hosts, records, and segments full of them."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from rmqha.wire.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Host, Record, encode_blank, encode_record

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), INT32)


def any_text(max_bytes: int) -> st.SearchStrategy[str]:
    """Text as a record's bytes may spell it, whether they are UTF-8 or not."""
    usual = st.text("aé漢😀 \x01\x02", max_size=max_bytes // 4)
    return usual | st.binary(max_size=max_bytes).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@st.composite
def records(draw: st.DrawFn, any_crc: bool = False) -> Record:
    """Records of every kind; sound ones, but for the offset, unless any CRC will do."""
    magic = draw(st.sampled_from((MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)))
    return Record(
        topic=draw(any_text(127 if magic == MESSAGE_MAGIC_CODE else 300)),
        body=draw(st.binary(max_size=60)),
        properties_stored=draw(any_text(60)),
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=draw(INT32),
        born_timestamp=draw(INT64),
        born_host=draw(HOSTS),
        store_timestamp=draw(INT64),
        store_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body_crc=draw(INT32) if any_crc else None,
        magic=magic,
    )


@dataclass(frozen=True)
class Segment:
    """A segment that a broker could have written: where it lies, its bytes, and where things begin in it."""

    base: int
    content: bytes
    starts: tuple[int, ...]
    written_end: int


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """A segment of sound records, ended by a blank or not full yet."""
    base = draw(st.integers(0, 3)) * 4096
    content = bytearray()
    starts = []
    for record in draw(st.lists(records(), min_size=1, max_size=6)):
        starts.append(base + len(content))
        content += encode_record(replace(record, physical_offset=starts[-1]))
    rest = draw(st.integers(END_FILE_MIN_BLANK_LENGTH, 200))
    if draw(st.booleans()):
        starts.append(base + len(content))
        content += encode_blank(rest) + draw(st.binary(max_size=rest - END_FILE_MIN_BLANK_LENGTH))
        content += bytes(rest - (len(content) + base - starts[-1]))
        return Segment(base, bytes(content), tuple(starts), base + len(content))
    return Segment(base, bytes(content) + bytes(rest), tuple(starts), base + len(content))
