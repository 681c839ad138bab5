"""A part of a segment, and a segment that is open for reading: here the file of one.

Files are read with ``preadv`` and never mapped. If a file is truncated while it is read, that is an error and not a
signal.
"""

import mmap
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from rmqha.store.errors import DataLossError
from rmqha.store.log.commitlog import segment_size_of
from rmqha.store.log.mappedfile import file_name, list_segments
from rmqha.store.log.pagecache import PagesBehind
from rmqha.wire import layout
from rmqha.wire.columns import Bytes, Ints, Records
from rmqha.wire.layout import MAGIC_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT

SEARCH_BYTES = 1 << 20
RECORD_START_BYTES = SYS_FLAG_AT
"""The first bytes of a record, up to its own offset: enough to recognize it."""
MAGICS = (layout.MESSAGE_MAGIC_CODE, layout.MESSAGE_MAGIC_CODE_V2)
(FIRST_OF_MAGIC,) = {code.to_bytes(4, "big", signed=True)[0] for code in MAGICS}


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a segment, by offsets in the log: from the start of a record to the end of another one or of a blank.

    ``path`` is the segment's file, or says who has it: see ``pipeline.address.RemoteLog``. The segment's first byte has
    the offset ``base``, and ``segment_end`` follows its last byte.
    """

    path: str
    base: int
    segment_end: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The size in bytes of log."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LogFile:
    """The file of a segment, or a segment of a remote log. It holds the log's bytes from ``base`` to before ``end``."""

    path: str
    base: int
    end: int

    def split(self, start: int, end: int) -> Split:
        """A part of the file, by offsets in the log."""
        return Split(self.path, self.base, self.end, start, end)


def log_files(folder: Path, configured_size: int | None) -> tuple[LogFile, ...]:
    """The segments of a folder. Raises StoreError, OSError."""
    found = list_segments(folder)
    size = segment_size_of(folder, configured_size)
    bases = [base for base, _ in found]
    limits = [*bases[1:], bases[-1] + size] if bases else []
    return tuple(
        LogFile(str(folder / file_name(base)), base, min(base + size, limit))
        for base, limit in zip(bases, limits, strict=True)
    )


class Segment(ABC):
    """A segment of a log, open for reading. A context manager. ``path`` is its name for people."""

    def __init__(self, path: str, base: int) -> None:
        self.path = path
        self.base = base

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Nothing more is read."""

    @abstractmethod
    def read(self, offset: int, size: int) -> Bytes:
        """The bytes from ``offset`` of the log on; fewer if the segment ends before. Raises StoreError, OSError."""

    def find_start(self, offset: int, end: int) -> int | None:
        """The first offset from ``offset`` to before ``end`` that looks like the start of a record, by magic code and
        own offset.

        A body can be made to look like one. Raises OSError.
        """
        while offset < end:
            window = self.read(offset, min(SEARCH_BYTES, end - offset) + RECORD_START_BYTES)
            found, _ = plausible_starts(window, offset)
            if len(found):
                return int(found[0]) if found[0] < end else None
            offset += SEARCH_BYTES
        return None


class SegmentReader(Segment):
    """The file of a segment, open for reading."""

    def __init__(self, path: str, base: int) -> None:
        """Raises DataLossError if there is no such file, and OSError."""
        super().__init__(path, base)
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise DataLossError(f"{path} is missing: it was deleted, or is not visible on this machine") from None

    def close(self) -> None:
        os.close(self._fd)

    def pages_behind(self, start: int, end: int) -> PagesBehind:
        """The pages of a range of the log that a reader need not leave in the page cache. Raises OSError."""
        return PagesBehind(self._fd, start - self.base, end - self.base)

    def read(self, offset: int, size: int) -> Bytes:
        """The bytes from ``offset`` of the log on; fewer if the file ends before. Raises OSError."""
        buffer = np.empty(size, np.uint8)
        done = 0
        while done < size:
            count = os.preadv(self._fd, [buffer.data[done:]], offset - self.base + done)
            if not count:
                break
            done += count
        return buffer[:done]

    def mapped(self) -> mmap.mmap:
        """The whole file, mapped. It stays so until nobody uses it any more. Raises OSError."""
        return mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)


def plausible_starts(buffer: Bytes, base: int) -> tuple[Ints, Ints]:
    """What looks like the start of a record, by magic code and own offset: ascending offsets in the log, and sizes.

    ``base`` is the offset of the first byte. A body can be made to look like a record.
    """
    last = len(buffer) - RECORD_START_BYTES
    at = np.flatnonzero(buffer[MAGIC_AT : max(0, last + MAGIC_AT + 1)] == FIRST_OF_MAGIC)
    everything = Records(buffer, base, at)
    at = at[np.isin(everything.gather(at + MAGIC_AT, ">i4"), MAGICS)]
    sizes = everything.gather(at, ">i4")
    sound = (everything.gather(at + PHYSICAL_OFFSET_AT, ">i8") == at + base) & (sizes >= layout.FIXED_BYTES)
    return at[sound] + base, sizes[sound]
