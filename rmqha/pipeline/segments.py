"""The messages of a part of one segment, of a file or of a remote log, and of them those that the options select."""

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext

from rmqha.pipeline.address import is_network
from rmqha.pipeline.network.segment import NetworkSegment
from rmqha.pipeline.options import OnCorrupt, Options
from rmqha.store.errors import CorruptLogError, DataLossError
from rmqha.store.log import records as of_segment
from rmqha.store.log.records import Skipped
from rmqha.store.log.splits import Segment, SegmentReader, Split
from rmqha.wire.columns import Bytes, Records

log = logging.getLogger(__name__)


def open_segment(path: str, base: int) -> Segment:
    """Open the segment that a split lies in: a file, or that of a remote log. Raises StoreError, OSError."""
    return NetworkSegment(path, base) if is_network(path) else SegmentReader(path, base)


def log_skipped(error: CorruptLogError, end: int) -> None:
    """Log a warning about skipped bytes."""
    log.warning("skipped %d bytes of log from offset %d: %s", end - error.offset, error.offset, error.reason)


def read_records(
    split: Split,
    batch_bytes: int,
    verify_body: bool = False,
    skipped: Skipped | None = None,
    drop_behind: bool = False,
    passed: Callable[[Bytes], None] | None = None,
) -> Iterator[Records]:
    """As ``store.log.records.read_records``, from the split's segment.

    Raises the same, and DataLossError if the file is missing.
    """
    with open_segment(split.path, split.base) as opened:
        yield from of_segment.read_records(
            opened, split, of_segment.Manner(batch_bytes, verify_body, drop_behind), skipped, passed
        )


def read_selected(split: Split, options: Options, segment: Segment | None = None) -> Iterator[Records]:
    """Read the messages of the split that the options select, from ``segment`` if it is open already.

    Raises StoreError, OSError. Needs pyarrow.
    """
    from rmqha.pipeline.decode import select

    skipped = log_skipped if options.on_corrupt is OnCorrupt.SKIP else None
    try:
        with open_segment(split.path, split.base) if segment is None else nullcontext(segment) as opened:
            for records in of_segment.read_records(
                opened,
                split,
                of_segment.Manner(options.batch_bytes, options.verify_body, options.drop_behind),
                skipped,
            ):
                wanted = select(records, options.selection)
                if len(wanted):
                    yield wanted
    except DataLossError as error:
        if options.fail_on_data_loss:
            raise
        log.warning("%s", error)
