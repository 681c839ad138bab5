"""The number of the last answered entry of the witness's journal, kept in a second place.

A journal that was put back from a copy, or whose last entry has rotted, looks like a sound one. This number tells. It
is beside the folder of the journal, so that a copy of the folder does not bring it along.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Self
from zlib import crc32

NAME = "answered"
RECORD = Struct(">4sQQI")
"""A magic, the cluster's id, the entry's number, and a CRC of the three."""
MAGIC = b"RWA\x01"
MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class AnsweredUpTo:
    """Entries up to ``number`` of this cluster were answered."""

    cluster_id: int
    number: int

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """None if this was not written as a whole."""
        if len(data) != RECORD.size:
            return None
        magic, cluster_id, number, crc = RECORD.unpack(data)
        is_sound = magic == MAGIC and crc32(data[:-4]) == crc
        return cls(cluster_id, number) if is_sound else None

    def encode(self) -> bytes:
        """The bytes of the file."""
        head = RECORD.pack(MAGIC, self.cluster_id, self.number, 0)[:-4]
        return head + crc32(head).to_bytes(4, "big")


class CountedFile:
    """The file of a journal's folder. All methods block."""

    def __init__(self, folder: Path) -> None:
        """Open or create it: beside the folder, or in it if nobody may write beside it. Raises OSError."""
        folder = Path(os.path.normpath(folder.absolute()))  # "." has no name
        beside, within = folder.with_name(f"{folder.name}.{NAME}"), folder / NAME
        found = [data for path in (beside, within) if path.exists() and (data := path.read_bytes())]
        self.is_there = bool(found)
        """Whether an earlier process has counted."""
        self.read = [AnsweredUpTo.decode(data) for data in found]
        """What it has noted; None for a file that cannot be read."""
        self._other: Path | None = within
        """A file that is of no use as soon as ours is written."""
        try:
            self._fd = _open(beside)
        except OSError as error:
            if error.errno not in MAY_NOT_WRITE:
                raise
            self._fd, self._other = _open(within), beside

    def write(self, counted: AnsweredUpTo) -> None:
        """Note it durably. Raises OSError."""
        os.pwrite(self._fd, counted.encode(), 0)
        os.fdatasync(self._fd)
        if self._other is not None:
            try:
                self._other.unlink(missing_ok=True)
            except OSError as error:
                if error.errno not in MAY_NOT_WRITE:
                    raise
            self._other = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return fd
