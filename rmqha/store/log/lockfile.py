"""The store's ``lock``: one process at a time, Java's or ours (spec/store.md 1)."""

import fcntl
import os
import struct
from pathlib import Path

from rmqha.store.errors import StoreInUse

LOCK_CONTENT = b"lock"
LOCKED_BYTES = 1
FLOCK = "hhqqi"  # l_type, l_whence, l_start, l_len, l_pid

# Open file description locks: Java's (POSIX) lock of another process and ours shut each other out, a second opening in
# this process is refused like any other's, and looking at the lock does not drop it.


def _exclusive_lock() -> bytes:
    return struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, LOCKED_BYTES, 0)


class LockFile:
    """An exclusive lock over byte 0 of the file, as Java takes it; released by the kernel if the process dies."""

    def __init__(self, path: Path) -> None:
        """Raises StoreInUse, OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _exclusive_lock())
            os.pwrite(self._fd, LOCK_CONTENT, 0)
        except (BlockingIOError, PermissionError):
            os.close(self._fd)
            raise StoreInUse(f"{path.parent} is in use by another process: stop it first") from None
        except BaseException:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Let others have the store."""
        os.close(self._fd)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock. Changes nothing. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _exclusive_lock())
    finally:
        os.close(fd)
    lock_type: int = struct.unpack(FLOCK, found)[0]
    return lock_type != fcntl.F_UNLCK
