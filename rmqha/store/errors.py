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


def with_advice(error: Exception) -> str:
    """The error of an opening or a clean close, as a node tells it. On a full disk it says what to do."""
    if isinstance(error, OSError) and is_disk_full(error):
        return f"{error}. The disk is full, and nothing is lost: make room, 4 MiB or more, then start the node again"
    return str(error)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk is full. Unlike other errors this one may go away."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
