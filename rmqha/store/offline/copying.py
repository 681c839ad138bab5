"""Copies files as cheaply as the file system can: shared blocks (reflinks) where it has them, holes stay holes."""

import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmqha.store.errors import name_file
from rmqha.store.log.mappedfile import data_ranges

FICLONE = 0x40049409
"""The ioctl that lets one file share all blocks of another one: linux/fs.h."""
STEP_BYTES = 64 << 20
"""How much is copied between two calls of ``progress``."""
CANNOT_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)
CANNOT_COPY_RANGE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EIO)

Progress = Callable[[int], None]
"""Called with the number of bytes that a step has copied or shared."""


@dataclass(slots=True)
class Copied:
    """What a copier has done so far, in bytes. ``copied`` were written; ``shared`` take no room of their own."""

    copied: int = 0
    shared: int = 0


class Copier:
    """Copies files. ``done`` counts the bytes. The caller must sync the file system afterwards."""

    def __init__(self, progress: Progress = lambda _: None) -> None:
        self.done = Copied()
        self._progress = progress
        self._clones = True

    def copy(self, source: Path, target: Path, limit: int, size: int) -> None:
        """Make ``target``, of ``size`` bytes, from the first ``limit`` bytes of ``source``. The rest are zeros.

        Holes of the source stay holes. Raises FileExistsError, OSError.
        """
        with source.open("rb") as old, target.open("xb") as new:
            try:
                if not (limit >= size == os.fstat(old.fileno()).st_size and self._clone(old.fileno(), new.fileno())):
                    for start, end in data_ranges(old.fileno(), 0, limit):
                        self._copy_range(old.fileno(), new.fileno(), start, end)
                    os.ftruncate(new.fileno(), size)
            except OSError as error:
                name_file(error, target)
                raise

    def _clone(self, old: int, new: int) -> bool:
        if not self._clones:
            return False
        try:
            fcntl.ioctl(new, FICLONE, old)
        except OSError as error:
            if error.errno not in CANNOT_CLONE:
                raise
            self._clones = False
            return False
        size = os.fstat(new).st_size
        self.done.shared += size
        self._progress(size)
        return True

    def _copy_range(self, old: int, new: int, start: int, end: int) -> None:
        while start < end:
            size = min(STEP_BYTES, end - start)
            try:
                done = os.copy_file_range(old, new, size, start, start)
            except OSError as error:
                if error.errno not in CANNOT_COPY_RANGE:
                    raise
                done = os.pwrite(new, os.pread(old, min(size, 1 << 20), start), start)
            if not done:  # the source was cut short meanwhile
                return
            start += done
            self.done.copied += done
            self._progress(done)


def data_bytes(path: Path, limit: int) -> int:
    """How many of the file's first ``limit`` bytes are not holes. Raises OSError."""
    with path.open("rb") as file:
        return sum(end - start for start, end in data_ranges(file.fileno(), 0, limit))
