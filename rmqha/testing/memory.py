"""A commit log in memory: it keeps the promises of ``ICommitLog`` without a disk."""

from collections.abc import Callable

from zope.interface import implementer

from rmqha.store.errors import StoreError
from rmqha.store.interfaces import ICommitLog
from rmqha.wire.scan import scan_records
from rmqha.wire.scanned import Scan


@implementer(ICommitLog)
class MemoryCommitLog:
    """The log from ``min_offset`` on, with one buffer for each segment. Written bytes count as flushed."""

    def __init__(self, segment_size: int = 4096) -> None:
        self.segment_size = segment_size
        self._segments: dict[int, bytearray] = {}
        self._listeners: list[Callable[[], None]] = []
        self.min_offset = self.max_offset = self.verified_offset = 0
        self.last_message_offset: int | None = None
        self.last_store_timestamp = 0

    @property
    def flushed_offset(self) -> int:
        """Memory needs no flush."""
        return self.max_offset

    def _segment(self, base: int) -> bytearray:
        return self._segments.setdefault(base, bytearray(self.segment_size))

    def begin_at(self, offset: int) -> None:
        """Make an empty log start at the segment that contains ``offset``."""
        if self.max_offset != self.min_offset:
            raise StoreError(f"the log holds bytes from {self.min_offset} to {self.max_offset}")
        self._segments.clear()
        self.min_offset = self.verified_offset = offset - offset % self.segment_size
        self.max_offset = offset

    def append_data(self, offset: int, *pieces: bytes | memoryview) -> None:
        """Write raw bytes at the log's end, within one segment."""
        data = b"".join(pieces)
        position = offset % self.segment_size
        if offset != self.max_offset or position + len(data) > self.segment_size:
            raise StoreError(f"{len(data)} bytes for {offset} do not follow {self.max_offset} within one segment")
        self._segment(offset - position)[position : position + len(data)] = data
        self.max_offset += len(data)

    def verify(self) -> Scan:
        """Prove the bytes written since the last call."""
        found = Scan(end=self.verified_offset)
        while found.end < self.max_offset and found.problem is None:
            base = found.end - found.end % self.segment_size
            limit = min(self.max_offset, base + self.segment_size)
            found = found.then(scan_records(bytes(self._segment(base)), base, found.end, limit))
            if found.end < base + self.segment_size:
                break
        grew = found.end > self.verified_offset
        self.verified_offset = found.end
        if found.last_message is not None:
            self.last_message_offset, self.last_store_timestamp = found.last_message, found.store_timestamp
        if grew:
            for log_grew in list(self._listeners):
                log_grew()
        return found

    def get_data(self, offset: int, limit_bytes: int) -> memoryview | None:
        """A copy of up to ``limit_bytes`` written bytes at ``offset``, within one segment."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        position = offset % self.segment_size
        end = min(position + limit_bytes, self.segment_size, position + self.max_offset - offset)
        return memoryview(bytes(self._segment(offset - position)[position:end]))

    def truncate(self, offset: int) -> None:
        """Remove all bytes from ``offset`` on."""
        if not self.min_offset <= offset <= self.max_offset:
            raise StoreError(f"{offset} is outside the log, {self.min_offset} to {self.max_offset}")
        for base in [base for base in self._segments if base > offset]:
            del self._segments[base]
        position = offset % self.segment_size
        self._segment(offset - position)[position:] = bytes(self.segment_size - position)
        self.max_offset, self.verified_offset = offset, min(self.verified_offset, offset)
        if self.last_message_offset is not None and self.last_message_offset >= offset:
            self.last_message_offset, self.last_store_timestamp = None, 0

    def subscribe(self, log_grew: Callable[[], None]) -> Callable[[], None]:
        """Call ``log_grew`` each time the verified prefix grows, until the returned function is called."""
        self._listeners.append(log_grew)
        return lambda: self._listeners.remove(log_grew)
