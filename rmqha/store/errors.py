"""Errors of a store. An I/O error stays an OSError."""

import errno
from pathlib import Path


class StoreError(Exception):
    """The store, or a request to it, is invalid. Nothing was changed."""


class NoStore(StoreError):
    """The folder does not exist or does not hold a store, so its name is probably a mistake."""


class StoreInUse(StoreError):
    """Another process holds the store's lock."""


class UnsupportedStore(NoStore):
    """The store is of a kind that rmqha cannot read; it is not damaged."""


def name_file(error: OSError, path: Path | str) -> None:
    """Add the file's name to the error, if it has none: errors of ``open`` name the file, those of ``write`` do not."""
    if error.filename is None:
        error.filename = str(path)


def with_advice(error: Exception, store: Path) -> str:
    """The error of an opening or a clean close, as a node tells it. On a full disk it says where, and what to do."""
    if isinstance(error, OSError) and is_disk_full(error):
        name_file(error, store)
        return f"{error}. The disk is full, and nothing is lost: make room, 4 MiB or more, then start the node again"
    return str(error)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk is full. Unlike other errors this one may go away."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class CorruptLogError(StoreError):
    """The bytes at ``offset`` of the log are not a record."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the bytes at {offset} are not a record: {reason} (onCorrupt=skip continues after them)")
        self.offset = offset
        self.reason = reason


class BoundaryError(StoreError):
    """A split did not end where the next one starts: the boundary between them lies inside a record."""

    def __init__(self, offset: int, boundary: int) -> None:
        super().__init__(
            f"the record at {offset} goes beyond the boundary of splits at {boundary}, which lies inside a body that "
            "looks like a record: read with boundaries=hop"
        )
        self.offset = offset


class DataLossError(StoreError):
    """Bytes that should be read do not exist any more."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} (failOnDataLoss=false continues without them)")
