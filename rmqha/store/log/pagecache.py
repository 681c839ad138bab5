"""Returns the page cache that only a query has used, out of consideration for a broker on the same machine."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from rmqha.store.log.mappedfile import FILE_NAME_DIGITS

PAGE = mmap.PAGESIZE
HOT_SEGMENTS = 2
"""The last segments of a log: a broker writes them, and its consumers and slaves read them."""

AHEAD_BYTES = 8 << 20

_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def is_hot(path: str) -> bool:
    """Whether a segment is one of the last of its folder. Raises OSError."""
    names = [name for name in os.listdir(Path(path).parent) if name.isdecimal() and len(name) == FILE_NAME_DIGITS]
    return Path(path).name in sorted(names)[-HOT_SEGMENTS:]


def cached_pages(fd: int, position: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each page of a range of a file is in the page cache. ``position`` is the start of a page. Raises OSError.

    Looking loads no pages. For a file that we may neither write nor own, Linux reports that all pages are cached.
    """
    size = min(size, os.fstat(fd).st_size - position)
    if size <= 0:
        return np.empty(0, bool)
    pages = np.empty(-(-size // PAGE), np.uint8)
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ, offset=position) as mapped:
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        if _mincore(address, size, pages.ctypes.data):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return (pages & 1).astype(bool)


class PagesBehind:
    """A range of a file that will be read once. Pages that are not cached now are removed from the cache afterwards.

    The system's read-ahead is turned off: it would load pages of the next range, which would then seem to have been
    cached before.
    """

    def __init__(self, fd: int, start: int, end: int) -> None:
        """For the bytes from ``start`` to ``end`` of the file. Raises OSError."""
        self._fd = fd
        self._end = end
        self._page = self._first = start // PAGE
        self._ours = ~cached_pages(fd, self._first * PAGE, end - self._first * PAGE)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.passed(start)

    def passed(self, position: int) -> None:
        """Everything before ``position`` has been read. Raises OSError."""
        page = position // PAGE
        changes = np.diff(self._ours[self._page - self._first : page - self._first], prepend=False, append=False)
        for first, last in (np.flatnonzero(changes) + self._page).reshape(-1, 2).tolist():
            os.posix_fadvise(self._fd, first * PAGE, (last - first) * PAGE, os.POSIX_FADV_DONTNEED)
        self._page = page
        if position < self._end:
            os.posix_fadvise(self._fd, position, min(AHEAD_BYTES, self._end - position), os.POSIX_FADV_WILLNEED)
