"""Contracts between rooms that have more than one implementation."""

from collections.abc import Callable

from zope.interface import Attribute, Interface

from rmqha.wire.scan import Scan


class ICommitLog(Interface):
    """An append-only log of records in segments of equal size. Offsets count bytes from the log's beginning.

    ``min_offset <= flushed_offset <= max_offset`` and ``min_offset <= verified_offset <= max_offset``. All is called on
    one thread; memory handed out is valid until that segment is truncated or the log closed.
    """

    segment_size: int = Attribute("Bytes of every segment.")
    min_offset: int = Attribute("The first offset held; equals max_offset in an empty log.")
    max_offset: int = Attribute("The offset that follows the last byte written.")
    verified_offset: int = Attribute("The end of the prefix whose records have been proved.")
    flushed_offset: int = Attribute("The end of the prefix that is on disk for good.")
    last_message_offset: int | None = Attribute("Where the last proved message starts, None if none is known.")
    last_store_timestamp: int = Attribute("STORETIMESTAMP in ms of the last proved message, 0 if none is known.")

    def begin_at(offset: int) -> None:
        """Make an empty log start at ``offset``. Raises StoreError if it holds anything beyond."""

    def append_data(offset: int, *pieces: bytes | memoryview) -> None:
        """Write raw bytes, in one go, at ``offset``, which must be ``max_offset``, within one segment.

        Raises StoreError when they do not follow or cross a segment's end, OSError when the disk refuses.
        """

    def verify() -> Scan:
        """Prove what has been written since; moves ``verified_offset``. The scan tells what stopped it."""

    def get_data(offset: int, limit_bytes: int) -> memoryview | None:
        """Up to ``limit_bytes`` written bytes at ``offset``, never past a segment's end; None where there are none."""

    def truncate(offset: int) -> None:
        """Forget all bytes from ``offset`` on; they read as zero. Raises OSError."""

    def subscribe(log_grew: Callable[[], None]) -> Callable[[], None]:
        """Call ``log_grew`` after each growth of the verified prefix; call the returned function to end that."""
