"""What there is to read: how far, from where, in which pieces."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.store.errors import CorruptLogError, DataLossError, StoreError
from rmqha.store.log.mappedfile import file_name, list_segments
from rmqha.store.log.splits import RECORD_START_BYTES
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.testing.records import FIRST_STORE_TIMESTAMP_MS
from rmqha.wire.record import Record
from tests import fixtures
from tests.pipeline.stores import (
    SEGMENT_SIZE,
    all_offsets,
    end_of,
    make_store,
    offsets_read,
    options,
    plain_records,
    write_state,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def records(store: Path) -> list[Record]:
    """Those of a store of three segments, the last of which is not full."""
    return make_store(store, plain_records(80))


def offsets(records: list[Record]) -> list[int]:
    return [record.physical_offset for record in records]


@pytest.mark.parametrize("name", fixtures.STORES)
def test_a_store_of_java_ends_with_its_last_sound_record(name: str) -> None:
    plan = open_log(options(fixtures.unpacked(name)))
    assert (plan.min_offset, plan.end) == (0, fixtures.max_offset(name))


@pytest.mark.long
@pytest.mark.parametrize("read_up_to", ["confirmed", "flushed", "written"])
def test_a_log_ends_with_a_whole_record_wherever_its_node_is(
    store: Path, records: list[Record], read_up_to: str
) -> None:
    """A slave flushes, and reports, what came so far: that may end inside a record or a blank."""
    end, bases = end_of(records), [base for base, _ in list_segments(store / "commitlog")]
    boundaries = sorted(
        {*bases, *offsets(records), *(record.physical_offset + record.total_size for record in records)}
    )
    for reached in [*range(0, end, 997), *boundaries, *(boundary + 1 for boundary in boundaries[:-1])]:
        state = NodeState("one store", offsets=Offsets(0, reached, end, reached, reached))
        state.write(store)
        whole = max(boundary for boundary in boundaries if boundary <= reached)
        known = max(boundary for boundary in boundaries if boundary <= reached // 2)
        for known_end in (0, known):
            assert open_log(options(store, readUpTo=read_up_to), known_end).end == whole, reached
        assert all_offsets(store, readUpTo=read_up_to) == [at for at in offsets(records) if at < whole]


def put_into_last_segment(store: Path, offset: int, content: bytes) -> None:
    with (store / "commitlog" / file_name(2 * SEGMENT_SIZE)).open("r+b") as file:
        file.seek(offset - 2 * SEGMENT_SIZE)
        file.write(content)


@pytest.mark.parametrize("kept", [1, RECORD_START_BYTES - 1, RECORD_START_BYTES, 150])
@pytest.mark.parametrize("damaged", [None, 1, 3])
def test_a_log_ends_before_a_record_whose_end_is_not_written_yet(
    store: Path, records: list[Record], kept: int, damaged: int | None
) -> None:
    """Also if a record shortly before it is bad. Right after bad bytes, too short a start of it proves nothing."""
    last, end = records[-1], end_of(records)
    put_into_last_segment(store, last.physical_offset + kept, bytes(last.total_size - kept))
    if damaged is not None:
        put_into_last_segment(store, records[-1 - damaged].physical_offset + 5, b"\xff")
    reached = last.physical_offset + kept
    NodeState("one store", offsets=Offsets(0, reached, end, reached, reached)).write(store)
    plan = open_log(options(store, readUpTo="written"))
    assert plan.end == (reached if damaged == 1 and kept < RECORD_START_BYTES else last.physical_offset)


@pytest.mark.parametrize("content", [b"\0", b"\xff"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_bad_bytes_at_the_end_of_the_log_are_not_hidden(
    store: Path, records: list[Record], count: int, content: bytes
) -> None:
    """The node says that they are confirmed. So they are damaged, and a reader reports them."""
    end, start = end_of(records), records[-count].physical_offset
    put_into_last_segment(store, start, content * (end - start))
    NodeState("one store", offsets=Offsets(0, end, 0, end, end)).write(store)
    assert open_log(options(store)).end == end
    with pytest.raises(CorruptLogError, match=str(start)):
        all_offsets(store)


def test_a_record_half_written_is_not_yet_part_of_the_log(store: Path, records: list[Record]) -> None:
    """Its header is there and its lengths add up, the end of its body is still zero."""
    last = records[-1]
    with (store / "commitlog" / file_name(2 * SEGMENT_SIZE)).open("r+b") as file:
        file.seek(last.physical_offset + 200 - 2 * SEGMENT_SIZE)
        file.write(bytes(100))
    assert all_offsets(store) == offsets(records[:-1])


def test_a_log_that_nobody_vouches_for_ends_where_recovery_would_end_it(store: Path, records: list[Record]) -> None:
    """Whole records behind that place may be what a recovery has cut off: Java leaves it where it was."""
    with (store / "commitlog" / file_name(2 * SEGMENT_SIZE)).open("r+b") as file:
        file.seek(records[-3].physical_offset + 4 - 2 * SEGMENT_SIZE)
        file.write(b"\0")
    assert all_offsets(store) == offsets(records[:-3])


@pytest.mark.parametrize(("read_up_to", "count"), [("confirmed", 10), ("flushed", 20), ("written", 30)])
def test_a_nodes_state_says_how_far_to_read(store: Path, records: list[Record], read_up_to: str, count: int) -> None:
    confirmed, flushed, written = (records[number].physical_offset for number in (10, 20, 30))
    write_state(store, 0, offsets=Offsets(0, written, flushed, flushed, confirmed))
    assert all_offsets(store, readUpTo=read_up_to) == offsets(records[:count])


def test_the_folder_of_segments_will_do_and_its_state_is_found(store: Path, records: list[Record]) -> None:
    write_state(store, records[10].physical_offset)
    assert all_offsets(store / "commitlog") == offsets(records[:10])


def test_a_node_that_has_no_byte_yet_has_nothing_to_read(store: Path) -> None:
    write_state(store, 0)
    assert all_offsets(store) == []


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_what_is_no_store_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match=r"not a folder on this machine|is not a store"):
        open_log(options(tmp_path / name))


@pytest.mark.parametrize(
    ("texts", "first", "last"),
    [
        ({}, 0, 80),
        ({"startingOffset": "latest"}, 80, 80),
        ({"startingOffset": "=5"}, 5, 80),
        ({"startingOffset": "+5"}, 6, 80),
        ({"endingOffset": "=70"}, 0, 70),
        ({"endingOffset": "+70"}, 0, 71),
        ({"startingOffset": "+40", "endingOffset": "=40"}, 41, 41),
        ({"endingOffset": 1 << 40}, 0, 80),
    ],
)
def test_offsets_choose_records_that_begin_within_them(
    store: Path, records: list[Record], texts: dict[str, str], first: int, last: int
) -> None:
    """``=5`` is where record 5 begins, ``+5`` one byte behind that."""
    numbers = {name: _resolved(str(text), records) for name, text in texts.items()}
    assert all_offsets(store, **numbers) == offsets(records[first:last])


def _resolved(text: str, records: list[Record]) -> str:
    if text[0] not in "=+":
        return text
    return str(records[int(text[1:])].physical_offset + (text[0] == "+"))


@pytest.mark.parametrize(
    ("start", "end", "first", "last"), [(0, 8, 0, 70), (3, None, 20, 80), (2, 5, 10, 40), (7, 99, 60, 80)]
)
def test_timestamps_choose_records_stored_within_them(
    store: Path, records: list[Record], start: int, end: int | None, first: int, last: int
) -> None:
    """Ten records have each millisecond, the first ones that after the base's."""
    texts = {"startingTimestamp": FIRST_STORE_TIMESTAMP_MS + start}
    if end is not None:
        texts["endingTimestamp"] = FIRST_STORE_TIMESTAMP_MS + end
    assert all_offsets(store, **texts) == offsets(records[first:last])


def test_a_starting_timestamp_behind_all_records_is_an_error_or_the_end(store: Path, records: list[Record]) -> None:
    late = FIRST_STORE_TIMESTAMP_MS + 1000
    with pytest.raises(OptionError, match="no message was stored then or later"):
        all_offsets(store, startingTimestamp=late)
    assert all_offsets(store, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []


def test_more_partitions_can_be_asked_for(store: Path, records: list[Record]) -> None:
    few, many = (open_log(options(store, minPartitions=n)) for n in (1, 12))
    assert len(few.splits(0, few.end)) == 3
    assert len(many.splits(0, many.end)) >= 12


def test_logs_that_are_read_together_need_fewer_splits_each(store: Path, records: list[Record]) -> None:
    alone = open_log(options(store, minPartitions=12))
    one_of_four = replace(alone, read_together=4 * alone.end)
    assert len(one_of_four.splits(0, alone.end)) < len(alone.splits(0, alone.end))
    assert 4 * len(one_of_four.splits(0, alone.end)) >= 12
    assert offsets_read(one_of_four) == [record.physical_offset for record in records]


@pytest.mark.parametrize(
    ("cores", "least", "most", "splits"),
    [
        (1, 1 << 20, 1 << 30, 3),  # a split is never of two files
        (8, 100, 1 << 30, 16),
        (8, 100, SEGMENT_SIZE, 16),
        (1, 100, SEGMENT_SIZE // 4, 12),
        (64, SEGMENT_SIZE // 2, 1 << 30, 6),
    ],
)
def test_splits_are_by_the_cores_unless_their_size_is_asked_for(
    store: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch, cores: int, least: int, most: int, splits: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("rmqha.pipeline.plan.MIN_SPLIT_BYTES", least)
    monkeypatch.setattr("rmqha.pipeline.plan.MAX_SPLIT_BYTES", most)
    plan = open_log(options(store))
    found = plan.splits(0, plan.end)
    assert abs(len(found) - splits) <= 3, "the last file is not full, and a cut is where a record begins"
    assert offsets_read(plan) == [record.physical_offset for record in records]


def delete_middle(store: Path) -> None:
    os.unlink(store / "commitlog" / file_name(SEGMENT_SIZE))


def delete_first(store: Path) -> None:
    os.unlink(store / "commitlog" / file_name(0))


def test_a_missing_file_is_data_loss_unless_that_is_accepted(store: Path, records: list[Record]) -> None:
    delete_middle(store)
    with pytest.raises(DataLossError, match=f"no bytes from {SEGMENT_SIZE} to {2 * SEGMENT_SIZE}"):
        all_offsets(store)
    kept = [at for at in offsets(records) if not SEGMENT_SIZE <= at < 2 * SEGMENT_SIZE]
    assert all_offsets(store, failOnDataLoss=False) == kept


def test_a_start_before_the_first_file_is_data_loss_unless_that_is_accepted(store: Path, records: list[Record]) -> None:
    delete_first(store)
    with pytest.raises(DataLossError, match=f"from {records[3].physical_offset} to {SEGMENT_SIZE}"):
        all_offsets(store, startingOffset=records[3].physical_offset)
    kept = [at for at in offsets(records) if at >= SEGMENT_SIZE]
    assert all_offsets(store, startingOffset=records[3].physical_offset, failOnDataLoss=False) == kept
    assert all_offsets(store) == kept


def test_a_log_shorter_than_its_node_says_is_data_loss_unless_that_is_accepted(
    store: Path, records: list[Record]
) -> None:
    write_state(store, end_of(records))
    os.unlink(store / "commitlog" / file_name(2 * SEGMENT_SIZE))
    with pytest.raises(DataLossError, match=f"from {2 * SEGMENT_SIZE} to {end_of(records)}"):
        all_offsets(store)
    kept = [at for at in offsets(records) if at < 2 * SEGMENT_SIZE]
    assert all_offsets(store, failOnDataLoss=False) == kept


def advanced(plan: LogPlan, max_bytes: int | None, max_records: int | None, max_files: int | None) -> list[int]:
    """All offsets that a stream would pass, from the log's begin to its end."""
    reached = [plan.min_offset]
    while reached[-1] < plan.end:
        reached.append(plan.advance(reached[-1], max_bytes, max_records, max_files))
        assert reached[-1] > reached[-2], "a stream that stands still never ends"
    return reached


def test_batches_are_as_long_as_their_limit_allows(store: Path, records: list[Record]) -> None:
    plan = open_log(options(store))
    starts = {*offsets(records), plan.end, SEGMENT_SIZE, 2 * SEGMENT_SIZE}
    ends = {record.physical_offset + record.total_size for record in records}
    for limits in ((5000, None, None), (None, 7, None), (None, None, 1), (5000, 7, 1), (1, None, None)):
        assert set(advanced(plan, *limits)) <= starts | ends, limits
    steps = advanced(plan, 5000, None, None)
    assert all(after - before <= 5000 for before, after in pairwise(steps))
    counts = [sum(low <= at < high for at in offsets(records)) for low, high in pairwise(steps)]
    assert sum(counts) == len(records)
    assert advanced(plan, None, None, 1) == [0, SEGMENT_SIZE, 2 * SEGMENT_SIZE, plan.end]
    by_count = advanced(plan, None, 7, None)
    counts = [sum(low <= at < high for at in offsets(records)) for low, high in pairwise(by_count)]
    assert max(counts) == 7
    assert sum(counts) == len(records)


def test_a_record_longer_than_the_limit_is_a_batch_of_its_own(store: Path, records: list[Record]) -> None:
    plan = open_log(options(store))
    assert plan.advance(0, max_bytes=1) == records[1].physical_offset


def test_a_plan_reads_on_from_where_the_log_is_known_to_have_ended(store: Path, records: list[Record]) -> None:
    known = records[-2].physical_offset
    assert open_log(options(store), known_end=known).end == end_of(records)
    assert open_log(options(store), known_end=end_of(records)).end == end_of(records)


def test_splits_of_one_file_touch_each_other(store: Path, records: list[Record]) -> None:
    plan = open_log(options(store, splitBytes=3000))
    for boundaries in Boundaries:
        splits = plan.splits(0, plan.end, boundaries)
        assert [split.start for split in splits] == [0, *(split.end for split in splits[:-1])]
        assert splits[-1].end == plan.end


def test_a_dledger_log_is_refused_with_the_reason(store: Path) -> None:
    """Its entries have a header of their own: magic 1, size, index, term, position and so on."""
    folder = store / "dledger-n0" / "data"
    folder.mkdir(parents=True)
    entry = (1).to_bytes(4, "big") + (400).to_bytes(4, "big") + bytes(40) + bytes(range(250))
    (folder / file_name(0)).write_bytes(entry.ljust(SEGMENT_SIZE, b"\0"))
    with pytest.raises(StoreError, match="is part of a DLedger log"):
        open_log(options(folder))


def test_a_log_that_begins_with_no_record_is_not_taken_for_an_empty_one(store: Path, records: list[Record]) -> None:
    for base in range(0, 3 * SEGMENT_SIZE, SEGMENT_SIZE):
        (store / "commitlog" / file_name(base)).write_bytes(b"\x11" * SEGMENT_SIZE)
    with pytest.raises(CorruptLogError, match="does not start with a record"):
        open_log(options(store))


def test_a_log_made_but_not_written_yet_is_empty(store: Path) -> None:
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / file_name(0)).write_bytes(bytes(SEGMENT_SIZE))
    assert all_offsets(store) == []


def test_a_range_that_ends_before_it_starts_has_no_splits(store: Path, records: list[Record]) -> None:
    assert open_log(options(store)).splits(records[9].physical_offset, records[3].physical_offset) == []
    late, early = FIRST_STORE_TIMESTAMP_MS + 5, FIRST_STORE_TIMESTAMP_MS + 2
    assert all_offsets(store, startingTimestamp=late, endingTimestamp=early) == []


def test_a_store_may_be_linked(store: Path, records: list[Record], tmp_path: Path) -> None:
    """Also its commitlog alone: what the node has confirmed is told beside the folder that is meant."""
    write_state(store, records[10].physical_offset)
    (tmp_path / "whole").symlink_to(store)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "segments").symlink_to(store / "commitlog")
    disk = (tmp_path / "disk" / "segments").resolve()
    disk.parent.mkdir()
    for path in (tmp_path / "whole", tmp_path / "whole" / "commitlog", tmp_path / "elsewhere" / "segments"):
        assert all_offsets(path) == offsets(records[:10]), path
    (store / "commitlog").rename(disk)
    (store / "commitlog").symlink_to(disk)
    for path in (store, store / "commitlog"):
        assert all_offsets(path) == offsets(records[:10]), path


def test_a_relative_path_is_of_the_folder_where_it_was_named(
    store: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state(store, records[10].physical_offset)
    monkeypatch.chdir(store / "commitlog")
    here = [options(Path(".")), options(Path("..")), options(Path("../../store/commitlog"))]
    monkeypatch.chdir("/")
    for one in here:
        assert offsets_read(open_log(one)) == offsets(records[:10])


def test_a_log_that_gets_a_segment_while_it_is_looked_at_has_lost_nothing(
    store: Path, records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node fills one, and says so, between the looks at its state and at its files."""
    write_state(store, end_of(records))
    grown = make_store(tmp_path / "grown", plain_records(200))

    def then_grows(look: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def looked(path: Path) -> Any:
            seen = look(path)
            shutil.copytree(tmp_path / "grown", store, dirs_exist_ok=True)
            write_state(store, end_of(grown))
            return seen

        return looked

    monkeypatch.setattr("rmqha.store.log.splits.list_segments", then_grows(list_segments))
    monkeypatch.setattr(NodeState, "read", then_grows(NodeState.read))
    assert open_log(options(store)).end == end_of(records)
    assert open_log(options(store)).end == end_of(grown)


def test_a_start_after_the_end_and_a_topic_without_a_queue_are_told(
    store: Path, records: list[Record], caplog: pytest.LogCaptureFixture
) -> None:
    end = end_of(records)
    assert open_log(options(store, startingOffset=end)).start() == end
    assert open_log(options(store, topic="nosuch")).end == end  # without any queue nothing is known
    assert not caplog.records
    assert open_log(options(store, startingOffset=end + 1)).start() == end
    (store / "consumequeue" / "T").mkdir(parents=True)
    for _ in range(2):
        open_log(options(store, topic="T,nosuch,other"))
    expected = [
        f"the offset {end + 1} is after the end of the log at {end}: there is nothing yet",
        f"{store} has no queue of the topic nosuch, other: no message may be of it",
    ]
    assert [record.getMessage() for record in caplog.records] == expected
