"""Reads the messages of a part of the log, many at a time, and proves them."""

from collections.abc import Iterator

import numpy as np

from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.stretches import WINDOW_BYTES, Progress
from rmqha.wire.columns import Records, proved_starts


def proved_records(log: CommitLog, start: int, end: int, progress: Progress = lambda _: None) -> Iterator[Records]:
    """Prove the messages from ``start``, the start of a record, to ``end``. Yields many at a time.

    Raises StoreError at the first bytes that are not a record, OSError.
    """
    at, window = start, WINDOW_BYTES
    while at < end:
        segment_end = at - at % log.segment_size + log.segment_size
        limit = min(at + window, segment_end, end)
        found = log.scan(at, limit)
        if found.problem is not None and (found.end > at or limit in (segment_end, end)):
            raise StoreError(
                f"the log is damaged at {found.end}: {found.problem}. 'rmqha repair' brings the bytes back from a "
                "replica, 'rmqha verify' shows the details"
            )
        if found.end == at:
            if limit in (segment_end, end):
                raise StoreError(f"the log is damaged at {at}: the record is incomplete")
            window *= 2  # one record that is longer than the window
            continue
        data = log.get_data(at, found.end - at)
        assert data is not None, "it was just proved"
        buffer = np.frombuffer(data, np.uint8)
        starts, _ = proved_starts(buffer, 0, len(buffer), len(buffer))
        if len(starts):
            yield Records(buffer, at, starts)
        at = found.end
        progress(at)
