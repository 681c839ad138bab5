"""Stores for the tests, made record by record, with or without a node's state."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rmqha.pipeline.options import Options, parse_options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import read_records
from rmqha.store.log.mappedfile import file_name
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.testing.records import make_record
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Record, encode_blank, encode_record

SEGMENT_SIZE = 16384


def options(store: Path, **texts: object) -> Options:
    """Options as Spark would hand them on."""
    return parse_options({"path": str(store), **{name: str(text) for name, text in texts.items()}})


def lay_records(records: Sequence[Record], segment_size: int = SEGMENT_SIZE) -> tuple[dict[int, bytes], list[Record]]:
    """Segments by base, and the records with their places in the log. Bytes behind the last one are zero."""
    segments: dict[int, bytearray] = {0: bytearray()}
    base = 0
    laid = []
    for record in records:
        if len(segments[base]) + record.total_size + END_FILE_MIN_BLANK_LENGTH > segment_size:
            segments[base] += encode_blank(segment_size - len(segments[base]))
            segments[base] = segments[base].ljust(segment_size, b"\0")
            base += segment_size
            segments[base] = bytearray()
        laid.append(replace(record, physical_offset=base + len(segments[base])))
        segments[base] += encode_record(laid[-1])
    return {at: bytes(content.ljust(segment_size, b"\0")) for at, content in segments.items()}, laid


def make_store(store: Path, records: Sequence[Record], segment_size: int = SEGMENT_SIZE) -> list[Record]:
    """A store as a Java broker leaves it; the records with their places."""
    segments, laid = lay_records(records, segment_size)
    folder = store / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    for base, content in segments.items():
        (folder / file_name(base)).write_bytes(content)
    return laid


def plain_records(count: int, body_bytes: int = 300) -> list[Record]:
    """Messages of the usual kind, of four queues and tags."""
    return [make_record(number, bytes([number % 251]) * body_bytes) for number in range(count)]


def end_of(records: Sequence[Record]) -> int:
    """Where the last of them ends in the log."""
    return records[-1].physical_offset + records[-1].total_size


def write_state(store: Path, confirmed: int, **changes: object) -> NodeState:
    """The state that a node of ours leaves, with all its offsets at ``confirmed``."""
    offsets = Offsets(0, confirmed, confirmed, confirmed, confirmed)
    state = replace(NodeState(store_id="one store", offsets=offsets), **changes)  # type: ignore[arg-type]  # by names of fields
    state.write(store)
    return state


def offsets_read(plan: LogPlan) -> list[int]:
    """Where the messages lie that the plan's splits give, from its start to its stop."""
    splits = plan.splits(plan.start(), plan.stop())
    pieces = [read_records(split, plan.options.batch_bytes) for split in splits]
    return [offset for piece in pieces for records in piece for offset in records.physical_offset.tolist()]


def all_offsets(store: Path, **texts: object) -> list[int]:
    """The same of a store and options."""
    return offsets_read(open_log(options(store, **texts)))
