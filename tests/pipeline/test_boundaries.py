"""Splits are cut where records begin, whatever a body holds and whatever a queue says."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.boundaries import MAX_RECORD_BYTES, start_before
from rmqha.pipeline.plan import open_log
from rmqha.store.derived.consumequeue import PRE_BLANK
from rmqha.store.errors import BoundaryError
from rmqha.store.log.mappedfile import file_name
from rmqha.testing.records import make_record
from rmqha.wire.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, UNIT
from rmqha.wire.record import Record
from tests.pipeline.stores import SEGMENT_SIZE, all_offsets, end_of, lay_records, make_store, options, plain_records

BODY_AT = 88
START_BYTES = 36
QUEUE_FILE_SIZE = 16 * UNIT.size


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def offsets(records: Sequence[Record]) -> list[int]:
    return [record.physical_offset for record in records]


def forged_start(at: int, size: int, magic: int = MESSAGE_MAGIC_CODE) -> bytes:
    """What a record's first bytes would be at ``at`` of the log."""
    start = bytearray(START_BYTES)
    start[0:8] = size.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big", signed=True)
    start[28:36] = at.to_bytes(8, "big")
    return bytes(start)


def with_forged(records: Sequence[Record], forged: dict[int, int], segment_size: int = SEGMENT_SIZE) -> list[Record]:
    """The same records, in whose bodies a record seems to begin at each offset of the log, of the size named with it.

    Those that do not fit into a body are left out.
    """
    laid = []
    for record in lay_records(records, segment_size)[1]:
        begin = record.physical_offset + BODY_AT
        body = bytearray(record.body)
        for at, size in forged.items():
            if begin <= at <= begin + len(body) - START_BYTES:
                body[at - begin : at - begin + START_BYTES] = forged_start(at, size)
        laid.append(replace(record, body=bytes(body), body_crc=None))
    return laid


def write_queue(store: Path, units: Sequence[bytes], queue_id: int = 0) -> None:
    """A queue of these units one behind the other, 16 to a file."""
    folder = store / "consumequeue" / "BenchTopic" / str(queue_id)
    folder.mkdir(parents=True)
    content = b"".join(units)
    for at in range(0, len(content), QUEUE_FILE_SIZE):
        (folder / file_name(at)).write_bytes(content[at : at + QUEUE_FILE_SIZE].ljust(QUEUE_FILE_SIZE, b"\0"))


def unit_of(record: Record) -> bytes:
    return UNIT.pack(record.physical_offset, record.total_size, 0)


@contextmanager
def longest_record(size: int) -> Iterator[None]:
    """As if no record were to be expected that is longer than this."""
    with mock.patch("rmqha.pipeline.boundaries.MAX_RECORD_BYTES", size):
        yield


def cuts(store: Path, split_bytes: int) -> list[int]:
    """Where splits begin."""
    plan = open_log(options(store, splitBytes=split_bytes))
    return [split.start for split in plan.splits(plan.min_offset, plan.end)]


def misleading(store: Path) -> tuple[list[Record], int, int]:
    """A body in which two records seem to follow one another; where the second begins, and what cuts there.

    A search that looks back no further than into the body sees nothing but them.
    """
    plain = [*plain_records(5), make_record(5, bytes(4000)), *plain_records(8)]
    holder = lay_records(plain)[1][5].physical_offset
    first, second = holder + BODY_AT + 1000, holder + BODY_AT + 1200
    records = make_store(store, with_forged(plain, {first: 200, second: 200}))
    return records, second, second - 100


def test_a_body_longer_than_expected_misleads_a_cut_but_never_a_reader(store: Path) -> None:
    records, forged_at, split_bytes = misleading(store)
    with longest_record(200):
        assert cuts(store, split_bytes)[1] == forged_at
        with pytest.raises(BoundaryError, match=f"at {records[5].physical_offset} .* at {forged_at}, .*boundaries=hop"):
            all_offsets(store, splitBytes=split_bytes)
        assert all_offsets(store, splitBytes=split_bytes, boundaries="hop") == offsets(records)


def test_a_queue_knows_better_than_such_a_body(store: Path) -> None:
    records, _, split_bytes = misleading(store)
    write_queue(store, [unit_of(record) for record in records])
    with longest_record(200):
        assert all_offsets(store, splitBytes=split_bytes) == offsets(records)
        assert cuts(store, split_bytes)[1] == records[6].physical_offset


def test_a_body_of_usual_length_does_not_even_mislead_the_cut(store: Path) -> None:
    records, _, split_bytes = misleading(store)
    with longest_record(5000):
        assert cuts(store, split_bytes)[1] == records[6].physical_offset
        assert all_offsets(store, splitBytes=split_bytes) == offsets(records)


def test_a_hostile_message_of_full_size_does_not_mislead_a_cut(store: Path) -> None:
    """A chain of forged starts through all of it, which joins the true records at its end."""
    body_bytes, segment_size, step = 4 << 20, 16 << 20, 1 << 12
    plain = [make_record(number, bytes(body_bytes)) for number in range(3)]
    hostile = lay_records(plain, segment_size)[1][1]
    chain = range(hostile.physical_offset + BODY_AT, hostile.physical_offset + body_bytes, step)
    forged = dict.fromkeys(chain, step)
    forged[chain[-1]] = hostile.physical_offset + hostile.total_size - chain[-1]
    records = make_store(store, with_forged(plain, forged, segment_size), segment_size)
    with longest_record(body_bytes // 2):
        assert cuts(store, chain[-2])[1] in chain, "it misleads one who looks back no further than into its body"
    assert hostile.total_size <= MAX_RECORD_BYTES
    assert cuts(store, chain[-2]) == offsets(records)[::2]
    for split_bytes in (chain[0], chain[5] + 1, chain[-2]):
        assert all_offsets(store, splitBytes=split_bytes) == offsets(records)


@st.composite
def hostile_logs(draw: st.DrawFn) -> list[Record]:
    """Two segments whose bodies hold forged starts anywhere, that lead to one another and to true records."""
    lengths = draw(st.lists(st.integers(0, 2500), min_size=5, max_size=25))
    plain = [make_record(number, bytes(length)) for number, length in enumerate(lengths)]
    laid = lay_records(plain)[1]
    forged_at = draw(st.lists(st.integers(0, end_of(laid)), max_size=40, unique=True))
    places = sorted({*forged_at, *offsets(laid), end_of(laid)})
    forged = {}
    for at in sorted(forged_at):
        following = places[places.index(at) + 1 :]
        forged[at] = draw(st.sampled_from(following[:6])) - at if following else 500
    return with_forged(plain, forged)


SPLIT_BYTES = st.integers(300, 6000)


@pytest.mark.long
@given(hostile_logs(), SPLIT_BYTES, st.integers(0, 500))
def test_no_body_misleads_a_cut(records: list[Record], split_bytes: int, more: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        laid = make_store(Path(folder), records)
        with longest_record(max(record.total_size for record in laid) + more):
            assert all_offsets(Path(folder), splitBytes=split_bytes) == offsets(laid)
            found = cuts(Path(folder), split_bytes)
    assert set(found) <= {*offsets(laid), SEGMENT_SIZE, 2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE}


@pytest.mark.long
@given(hostile_logs(), SPLIT_BYTES, st.data())
def test_no_queue_misleads_a_cut(records: list[Record], split_bytes: int, data: st.DataObject) -> None:
    """It may lag, lack units, have blanks, and name what is not there or what now lies inside a body."""
    with tempfile.TemporaryDirectory() as folder:
        laid = make_store(Path(folder), records)
        stale = [UNIT.pack(at, 300, 0) for at in data.draw(st.lists(st.integers(0, 1 << 40), max_size=3))]
        true = [unit_of(one) for one in laid if data.draw(st.booleans())]
        units = [one for one in [*true, *stale] for one in [one, *[PRE_BLANK] * data.draw(st.integers(0, 2))]]
        for queue_id, one in enumerate((units, units[::2])):
            write_queue(Path(folder), one, queue_id)
        with longest_record(max(record.total_size for record in laid)):
            assert all_offsets(Path(folder), splitBytes=split_bytes) == offsets(laid)


def test_a_queue_is_asked_before_bytes_are_searched(store: Path) -> None:
    records = make_store(store, plain_records(70))
    write_queue(store, [unit_of(record) for record in records[1::2]])
    with longest_record(0):
        assert set(cuts(store, 3000)[1:]) <= {*offsets(records[1::2]), SEGMENT_SIZE, 2 * SEGMENT_SIZE}
        assert all_offsets(store, splitBytes=3000) == offsets(records)


def test_a_record_near_the_end_is_the_first_in_as_many_bytes_as_the_longest_has(store: Path) -> None:
    records = make_store(store, plain_records(30))
    plan = open_log(options(store))
    piece = next(plan.pieces(plan.min_offset, plan.end))
    inside = [offset for offset in offsets(records) if offset < piece.end]
    for size in (1000, piece.size - 1, piece.size, piece.size + 1):
        with longest_record(size):
            assert start_before(piece) == min(offset for offset in inside if offset >= piece.end - size)


def test_where_queues_lag_the_bytes_are_searched(store: Path) -> None:
    records = make_store(store, plain_records(30))
    write_queue(store, [unit_of(record) for record in records[:10]])
    found = cuts(store, 2000)
    assert set(found) <= {*offsets(records), SEGMENT_SIZE}
    assert all(after - before < 2600 for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("size", "name"),
    [(QUEUE_FILE_SIZE - 1, file_name(0)), (QUEUE_FILE_SIZE, file_name(20)), (0, file_name(0)), (7, "0-copy")],
)
def test_a_queue_that_cannot_be_read_is_left_alone(store: Path, size: int, name: str) -> None:
    records = make_store(store, plain_records(30))
    folder = store / "consumequeue" / "BenchTopic" / "0"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"\x11" * size)
    assert all_offsets(store, splitBytes=2000) == offsets(records)


def test_a_queue_that_expires_while_it_is_asked_is_left_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = make_store(store, plain_records(70))
    write_queue(store, [unit_of(record) for record in records])
    from rmqha.store.derived.consumequeue import ConsumeQueue

    def find_end_and_lose_a_file(queue: ConsumeQueue) -> None:
        queue._end = len(records) * UNIT.size
        (store / "consumequeue" / "BenchTopic" / "0" / file_name(2 * QUEUE_FILE_SIZE)).unlink(missing_ok=True)

    monkeypatch.setattr(ConsumeQueue, "find_end", find_end_and_lose_a_file)
    assert all_offsets(store, splitBytes=2000) == offsets(records)


def test_a_record_longer_than_a_split_is_a_split_of_its_own(store: Path) -> None:
    records = make_store(store, [*plain_records(3), make_record(3, bytes(9000)), *plain_records(3)])
    with longest_record(1000):
        assert all_offsets(store, splitBytes=1500) == offsets(records)
    assert cuts(store, 1) == offsets(records)


@pytest.mark.parametrize("magic", [MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2])
def test_both_kinds_of_records_begin_a_split(store: Path, magic: int) -> None:
    sizes = [make_record(n, bytes(200)).total_size for n in range(20)]
    plain = [replace(make_record(n, bytes(200)), magic=magic) for n in range(20)]
    records = make_store(store, plain)
    assert all_offsets(store, splitBytes=700) == offsets(records)
    assert len(cuts(store, 700)) > sum(sizes) // 1400
    assert list(accumulate([0, *(record.total_size for record in records[:-1])])) == offsets(records)
