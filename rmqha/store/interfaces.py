"""What parts of a store need of each other, and of what the store runs on."""

from collections.abc import Callable

from zope.interface import Attribute, Interface

from rmqha.wire.scanned import Scan

Call = Callable[[], None]
"""Called when something has happened, or to end something."""


class IMessageTimes(Interface):
    """Knows when the messages of a log were stored."""

    def store_timestamp(physical_offset: int) -> int | None:
        """STORETIMESTAMP in ms of the message at this offset of the log; None without one. Raises OSError."""


class ICommitLog(Interface):
    """An append-only log of records in segments of equal size. Offsets count bytes from the log's start.

    ``min_offset <= flushed_offset <= max_offset`` and ``min_offset <= verified_offset <= max_offset``. All methods are
    called on one thread. A returned memoryview is valid until its segment is truncated or the log is closed.
    """

    segment_size: int = Attribute("The size of every segment in bytes.")
    min_offset: int = Attribute("The first offset that the log holds; equals max_offset in an empty log.")
    max_offset: int = Attribute("The offset after the last written byte.")
    verified_offset: int = Attribute("The end of the prefix whose records are verified.")
    flushed_offset: int = Attribute("The end of the prefix that is on disk.")
    last_message_offset: int | None = Attribute("The start of the last verified message, or None.")
    last_store_timestamp: int = Attribute("STORETIMESTAMP in ms of the last verified message, or 0.")

    def begin_at(offset: int) -> None:
        """Make an empty log start at ``offset``. Raises StoreError if the log is not empty."""

    def append_data(offset: int, *pieces: bytes | memoryview) -> None:
        """Write raw bytes, in one write, at ``offset``, which must be ``max_offset``, within one segment.

        Raises StoreError if they do not start at the log's end or cross a segment's end, OSError if the disk fails.
        """

    def verify() -> Scan:
        """Verify what was written since the last call, and advance ``verified_offset``. Returns what it found."""

    def get_data(offset: int, limit_bytes: int) -> memoryview | None:
        """Up to ``limit_bytes`` written bytes at ``offset``, within one segment; None if ``offset`` is not written."""

    def truncate(offset: int) -> None:
        """Remove all bytes from ``offset`` on. Raises OSError."""

    def subscribe(log_grew: Call) -> Call:
        """Call ``log_grew`` after each growth of the verified prefix, until the returned function is called."""
