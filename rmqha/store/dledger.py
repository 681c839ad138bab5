"""Recognizes a DLedger store by its files: ``dledger-ID/data`` with entries, which wrap the records of a log.

An entry has a header of 48 bytes (magic, size, index, term, position …) before each record. The queues of such a store
hold offsets in the entries' files. If there is a ``commitlog`` too, it ends where DLedger started.
"""

from pathlib import Path
from struct import Struct

from rmqha.store.errors import UnsupportedStore
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS

ENTRY_HEAD = Struct(">iiqqq")
"""Magic, size, index, term, and the entry's own position."""
ENTRY_MAGIC_CODE = 1
MIN_ENTRY_BYTES = 48


def check_no_dledger(root: Path) -> None:
    """Raises UnsupportedStore if a broker in DLedger mode has written into the store at ``root``, OSError."""
    for folder in sorted(root.glob("dledger-*/data")):
        for segment in sorted(folder.iterdir()):
            if _holds_entries(segment):
                raise UnsupportedStore(
                    f"{root} is the store of a broker in DLedger mode ({folder.parent.name}), which rmqha cannot read: "
                    "its messages are in DLedger's files, not in a commit log"
                )


def _holds_entries(segment: Path) -> bool:
    """Whether a file starts with an entry whose position is the file's name."""
    if not (segment.name.isdecimal() and len(segment.name) == FILE_NAME_DIGITS):
        return False
    with segment.open("rb") as file:
        head = file.read(ENTRY_HEAD.size)
    if len(head) < ENTRY_HEAD.size:
        return False
    magic, size, index, _, position = ENTRY_HEAD.unpack(head)
    is_entry: bool = magic == ENTRY_MAGIC_CODE and size >= MIN_ENTRY_BYTES and index >= 0
    return is_entry and position == int(segment.name)
