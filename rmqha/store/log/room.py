"""How much room a disk has."""

import shutil
from pathlib import Path
from typing import NamedTuple


class Room(NamedTuple):
    """Bytes of a disk, as ``df`` counts them for a user who is not root."""

    total: int
    used: int
    free: int

    @property
    def used_ratio(self) -> float:
        """How much of it is used, 0 to 1."""
        return self.used / max(1, self.used + self.free)


def room_of(folder: Path) -> Room:
    """Of the disk on which this folder is, or will be. Raises OSError."""
    usage = shutil.disk_usage(existing_folder(folder))
    return Room(usage.total, usage.used, usage.free)


def existing_folder(folder: Path) -> Path:
    """The folder, or its nearest existing parent: a store without messages has no folder for its log yet."""
    while not folder.exists():
        folder = folder.parent
    return folder
