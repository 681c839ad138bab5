"""What can be wrong with a store. An I/O error stays an OSError."""

import errno
from pathlib import Path


class StoreError(Exception):
    """The store, or what was asked of it, is not as it must be; nothing was changed."""


class NoStore(StoreError):
    """The folder holds no store, or is not there: whoever named it meant another."""


class StoreInUse(StoreError):
    """Another process holds the store's lock."""


class UnsupportedStore(NoStore):
    """The store is of a kind that rmqha cannot read; nothing is wrong with it."""


def name_file(error: OSError, path: Path | str) -> None:
    """Let the error say which file it is about, as those of ``open`` do and those of ``write`` do not."""
    if error.filename is None:
        error.filename = str(path)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk has no room just now: unlike other errors this one may pass."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
