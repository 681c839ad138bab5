"""The store's ``lock``: one process at a time, Java's or ours (spec/store.md 1)."""

import fcntl
import os
from pathlib import Path

from rmqha.store.errors import StoreInUse

LOCK_CONTENT = b"lock"
LOCKED_BYTES = 1


class LockFile:
    """An exclusive lock over byte 0 of the file, as Java takes it; released by the kernel if the process dies."""

    def __init__(self, path: Path) -> None:
        """Raises StoreInUse, OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCKED_BYTES, 0)
        except (BlockingIOError, PermissionError):
            os.close(self._fd)
            raise StoreInUse(f"{path.parent} is in use by another process: stop it first") from None
        os.pwrite(self._fd, LOCK_CONTENT, 0)

    def release(self) -> None:
        """Let others have the store."""
        os.close(self._fd)


def is_locked(path: Path) -> bool:
    """Whether some other process holds the lock. Changes nothing. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCKED_BYTES, 0)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(fd)
    return False
