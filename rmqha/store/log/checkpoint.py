"""``checkpoint``: store timestamps up to which the parts of a store are on disk (spec/store.md 5.5).

::

     0 i64 physicMsgTimestamp   8 i64 logicsMsgTimestamp   16 i64 indexMsgTimestamp   then zeros up to 4096 bytes
"""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from rmqha.store.log.mappedfile import DISK, Disk

CHECKPOINT = Struct(">qqq")
CHECKPOINT_FILE_BYTES = 4096
SAFETY_MARGIN_MS = 3000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Times in milliseconds since the epoch; 0 if nothing is on disk."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0

    @property
    def recovery_timestamp(self) -> int:
        """A record stored before this is certainly on disk in the commit log, and its unit in its consume queue."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MARGIN_MS)

    @classmethod
    def read(cls, path: Path, disk: Disk = DISK) -> "Checkpoint":
        """Read the file. A missing or short one counts as zeros, which only makes recovery slower. Raises OSError."""
        try:
            raw = disk.read(path)
        except FileNotFoundError:
            raw = b""
        return cls(*CHECKPOINT.unpack(raw[: CHECKPOINT.size].ljust(CHECKPOINT.size, b"\0")))

    def write(self, path: Path, disk: Disk = DISK) -> None:
        """Overwrite the file in one write, as Java does, and fdatasync it. Raises OSError."""
        raw = CHECKPOINT.pack(self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp)
        disk.overwrite(path, raw, CHECKPOINT_FILE_BYTES)
