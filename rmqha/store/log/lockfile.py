"""The store's ``lock``: only one process at a time may use a store, Java or ours (spec/store.md 1)."""

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rmqha.store.errors import StoreInUse

LOCK_CONTENT = b"lock"
LOCKED_BYTES = 1
FLOCK = "hhqqi"  # l_type, l_whence, l_start, l_len, l_pid
MAX_LOOKS = 100
Found = TypeVar("Found")

# We use open file description locks. They conflict with the POSIX lock of a Java process. They also refuse a second
# lock in this process, and checking the lock does not release it.


def _exclusive_lock() -> bytes:
    return struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, LOCKED_BYTES, 0)


class LockFile:
    """An exclusive lock on byte 0 of the file, as Java takes it. The kernel releases it if the process dies."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises StoreInUse if another process has it, OSError."""
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
        """Release the lock."""
        os.close(self._fd)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Changes nothing. Raises OSError."""
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


def while_files_go(live: bool, look: Callable[[], Found]) -> Found:
    """What ``look`` finds. It begins again if a file goes while it looks: a running node deletes expired files.

    Raises what ``look`` raises.
    """
    for _ in range(MAX_LOOKS if live else 0):
        with suppress(FileNotFoundError):
            return look()
    return look()
