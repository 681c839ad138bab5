"""Reading a split proves what it reads, whatever lies there."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import read_records
from rmqha.store.errors import BoundaryError, CorruptLogError, DataLossError
from rmqha.store.log.mappedfile import file_name
from rmqha.store.log.splits import SegmentReader
from rmqha.testing.records import make_record
from rmqha.wire.columns import Records
from rmqha.wire.record import Record, encode_record
from tests.pipeline.stores import (
    SEGMENT_SIZE,
    all_offsets,
    end_of,
    make_store,
    options,
    plain_records,
    write_state,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def segment(store: Path, base: int = 0) -> Path:
    return store / "commitlog" / file_name(base)


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def forged_in_a_body() -> tuple[list[Record], int]:
    """Records of which one's body holds what looks like a record in its very place, and where that is."""
    before = plain_records(5)
    holder_at = sum(record.total_size for record in before)
    forged_at = holder_at + 88 + 1000
    forged = encode_record(replace(make_record(999, b"forged"), physical_offset=forged_at))
    holder = make_record(5, bytes(1000) + forged + bytes(4000 - len(forged)))
    return [*before, holder, *plain_records(8)], forged_at


@pytest.mark.parametrize("batch_bytes", [100, 512, 5000, 1 << 20])
@pytest.mark.parametrize("split_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("boundaries", list(Boundaries))
def test_splits_and_batches_of_any_size_give_each_message_once(
    store: Path, batch_bytes: int, split_bytes: int, boundaries: Boundaries
) -> None:
    records = make_store(store, plain_records(70))
    found = all_offsets(store, batchBytes=batch_bytes, splitBytes=split_bytes, boundaries=boundaries.value)
    assert found == [record.physical_offset for record in records]


def test_a_record_longer_than_a_batch_is_read_whole(store: Path) -> None:
    records = make_store(store, [*plain_records(3), make_record(3, bytes(9000)), *plain_records(3)])
    assert all_offsets(store, batchBytes=200) == [record.physical_offset for record in records]


def break_magic(path: Path, record: Record) -> None:
    overwrite(path, record.physical_offset + 4, b"\0")


def break_size(path: Path, record: Record) -> None:
    overwrite(path, record.physical_offset, b"\x7f")


def break_offset(path: Path, record: Record) -> None:
    overwrite(path, record.physical_offset + 30, b"\x55")


def break_topic_length(path: Path, record: Record) -> None:
    overwrite(path, record.physical_offset + 88 + len(record.body), b"\x7f")


def zero_it(path: Path, record: Record) -> None:
    overwrite(path, record.physical_offset, bytes(record.total_size))


BREAKS = [break_magic, break_size, break_offset, break_topic_length, zero_it]


def broken(store: Path, number: int, break_it: Callable[[Path, Record], None]) -> list[Record]:
    records = make_store(store, plain_records(20))
    write_state(store, end_of(records))
    break_it(segment(store), records[number])
    return records


@pytest.mark.parametrize("break_it", BREAKS)
def test_what_is_no_record_fails_the_read_and_names_the_offset(
    store: Path, break_it: Callable[[Path, Record], None]
) -> None:
    records = broken(store, 7, break_it)
    with pytest.raises(CorruptLogError) as caught:
        all_offsets(store)
    assert caught.value.offset == records[7].physical_offset


@pytest.mark.parametrize("break_it", BREAKS)
@pytest.mark.parametrize("batch_bytes", [600, 1 << 20])
def test_what_is_no_record_is_skipped_on_demand_and_told_of(
    store: Path, break_it: Callable[[Path, Record], None], batch_bytes: int
) -> None:
    records = broken(store, 7, break_it)
    told: list[tuple[int, int]] = []
    (split,) = open_log(options(store)).splits(0, end_of(records))
    pieces = list(read_records(split, batch_bytes, skipped=lambda error, end: told.append((error.offset, end))))
    found = [offset for piece in pieces for offset in piece.physical_offset.tolist()]
    assert found == [record.physical_offset for record in records[:7] + records[8:]]
    assert told == [(records[7].physical_offset, records[8].physical_offset)]


@pytest.mark.parametrize("number", ["last but one of its file", "last of its file", "last but one", "last"])
def test_skipping_ends_with_the_file_or_the_log(store: Path, number: str) -> None:
    records = make_store(store, plain_records(80))
    write_state(store, end_of(records))
    in_first = sum(record.physical_offset < SEGMENT_SIZE for record in records)
    ill = {"last but one of its file": in_first - 2, "last of its file": in_first - 1, "last but one": 78, "last": 79}[
        number
    ]
    base = records[ill].physical_offset // SEGMENT_SIZE * SEGMENT_SIZE
    overwrite(segment(store, base), records[ill].physical_offset - base + 4, b"\0")
    found = offsets_read_skipping(open_log(options(store)))
    assert found == [record.physical_offset for record in records[:ill] + records[ill + 1 :]]


@pytest.mark.long
@pytest.mark.parametrize("window", [37, 64, 500])
def test_a_start_is_found_wherever_a_search_window_ends(
    store: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("rmqha.store.log.splits.SEARCH_BYTES", window)
    records = make_store(store, plain_records(6))
    starts = [record.physical_offset for record in records]
    with SegmentReader(str(segment(store)), 0) as reader:
        for at in range(starts[-1] + 1):
            assert reader.find_start(at, SEGMENT_SIZE) == min(start for start in starts if start >= at)
        assert reader.find_start(starts[-1] + 1, SEGMENT_SIZE) is None
        assert reader.find_start(starts[-2] + 1, starts[-1]) is None


@pytest.mark.parametrize("left", [1, 7])
def test_an_end_inside_a_records_first_bytes_is_refused(store: Path, left: int) -> None:
    """As no node ever confirms, but a state file by hand may say."""
    records = make_store(store, plain_records(5))
    write_state(store, end_of(records[:4]) + left)
    with pytest.raises(CorruptLogError, match="a record starts with 8"):
        all_offsets(store)


def test_an_end_inside_a_record_is_refused(store: Path) -> None:
    records = make_store(store, plain_records(5))
    write_state(store, end_of(records) - 1)
    with pytest.raises(BoundaryError, match=f"the record at {records[4].physical_offset}"):
        all_offsets(store)


def test_skipping_goes_on_behind_a_forged_record_that_nothing_follows(store: Path) -> None:
    """The body of a broken record is searched for the next one: what it holds must not be taken for it."""
    records, _ = forged_in_a_body()
    records = make_store(store, records)
    write_state(store, end_of(records))
    break_magic(segment(store), records[5])
    found = offsets_read_skipping(open_log(options(store)))
    assert found == [record.physical_offset for record in records[:5] + records[6:]]


def offsets_read_skipping(plan: LogPlan) -> list[int]:
    pieces = [read_records(split, 1 << 20, skipped=lambda *_: None) for split in plan.splits(plan.min_offset, plan.end)]
    return [offset for piece in pieces for records in piece for offset in records.physical_offset.tolist()]


def test_a_body_with_another_crc_is_found_when_bodies_are_verified(store: Path) -> None:
    records = make_store(store, plain_records(20))
    write_state(store, end_of(records))
    overwrite(segment(store), records[7].physical_offset + 100, b"\xff")
    (split,) = open_log(options(store)).splits(0, end_of(records))
    assert sum(len(piece) for piece in read_records(split, 4096)) == 20
    pieces: list[Records] = []
    with pytest.raises(CorruptLogError, match="BODYCRC") as caught:
        pieces.extend(read_records(split, 4096, verify_body=True))
    told: list[tuple[int, int]] = []
    sound = list(
        read_records(split, 4096, verify_body=True, skipped=lambda error, end: told.append((error.offset, end)))
    )
    assert caught.value.offset == records[7].physical_offset
    assert sum(len(piece) for piece in sound) == 19
    assert told == [(records[7].physical_offset, records[8].physical_offset)]


def test_a_file_deleted_after_planning_is_data_loss(store: Path) -> None:
    make_store(store, plain_records(70))
    plan = open_log(options(store))
    splits = plan.splits(plan.min_offset, plan.end)
    os.unlink(segment(store, SEGMENT_SIZE))
    with pytest.raises(DataLossError, match=f"{SEGMENT_SIZE:020d} is missing"):
        list(read_records(splits[1], 4096))


def test_a_file_cut_after_planning_gives_what_is_left_and_then_data_loss(store: Path) -> None:
    records = make_store(store, plain_records(20))
    (split,) = open_log(options(store)).splits(0, end_of(records))
    os.truncate(segment(store), records[9].physical_offset + 10)
    pieces: list[Records] = []
    with pytest.raises(DataLossError, match=f"ends at {records[9].physical_offset + 10}, before {end_of(records)}"):
        pieces.extend(read_records(split, 1 << 20))
    assert sum(len(piece) for piece in pieces) == 9
