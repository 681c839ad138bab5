"""The file ``rmqha/dispatched-from``: what the next start must build again, even if queues and index look sound.

It is on the disk before anything is set aside or removed, and until what replaces that is on the disk.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NODE_FOLDER

MARK_FILE = "dispatched-from"


@dataclass(frozen=True, slots=True)
class DispatchMark:
    """Units and keys of messages from ``start`` on may be missing. Other queues do not show that.

    ``damaged`` are topics and ids of queues that are to be set aside. After an unclean stop their files may not show
    the damage.
    """

    start: int
    damaged: Sequence[tuple[str, int]] = ()

    @classmethod
    def read(cls, root: Path, disk: Disk = DISK) -> "DispatchMark | None":
        """None if there is no mark. A damaged one says that all may be missing. Raises OSError."""
        try:
            content = json.loads(disk.read(mark_path(root)))
            if isinstance(content, int):
                return cls(max(0, content))
            return cls(
                max(0, int(content["from"])), [(str(topic), int(number)) for topic, number in content["damaged"]]
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return cls(0)

    def write(self, root: Path, disk: Disk = DISK) -> None:
        """Write it durably. Raises OSError."""
        content = {"from": self.start, "damaged": self.damaged} if self.damaged else self.start
        disk.replace(mark_path(root), json.dumps(content).encode("ascii"))


def mark_path(root: Path) -> Path:
    """The file that has the mark."""
    return root / NODE_FOLDER / MARK_FILE


def remove_mark(root: Path, disk: Disk = DISK) -> None:
    """All is built, and on the disk. Raises OSError."""
    disk.remove_durably(mark_path(root))
