"""Stand-ins for segment files that are missing or too short, so that a repair can fetch the missing bytes.

A stand-in is a sparse file of full size in a separate folder. It has the bytes of the short file. The log's folder
changes only when all bytes are there: ``install`` then moves the stand-ins to their places, one rename each.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from rmqha.store.errors import StoreError, name_file
from rmqha.store.log.commitlog import segment_size_of
from rmqha.store.log.mappedfile import Disk, MappedFile, file_name, list_segments, sync_folder

MAX_MISSING_FILES = 10_000
"""If more seem to be missing, the name of a file is wrong."""
COPY_BYTES = 1 << 20
WORK_SUFFIX = ".repair"


@dataclass(frozen=True, slots=True)
class FileFault:
    """A segment file at ``base`` that has only ``size`` of its ``full_size`` bytes; ``size`` None if it is missing."""

    path: Path
    base: int
    size: int | None
    full_size: int

    def __str__(self) -> str:
        if self.size is None:
            return f"{self.path} is missing"
        return f"{self.path} has only {self.size} of its {self.full_size} bytes"


def file_faults(folder: Path, configured_size: int | None) -> list[FileFault]:
    """The segment files of a log's folder that are missing between others, or too short. Raises StoreError, OSError.

    An empty last file is not a fault: a node deletes it and creates it again.
    """
    sizes = dict(list_segments(folder))
    if not any(sizes.values()):
        return []
    full_size = configured_size or segment_size_of(folder, None)
    first, last = min(sizes), max(sizes)
    if (last - first) // full_size + 1 - len(sizes) > MAX_MISSING_FILES:
        raise StoreError(f"{folder}: between {file_name(first)} and {file_name(last)} too many files are missing")
    bases = sorted({*sizes, *range(first, last, full_size)})
    return list(_faults(folder, bases, sizes, full_size))


def _faults(folder: Path, bases: list[int], sizes: dict[int, int], full_size: int) -> Iterator[FileFault]:
    for base in bases:
        size = sizes.get(base)
        is_empty_last = base == bases[-1] and not size
        if (size is None or size < full_size) and not is_empty_last:
            yield FileFault(folder / file_name(base), base, size, full_size)


class StandInDisk(Disk):
    """The file system, except that each file with a fault in ``folder`` seems to have its full size."""

    def __init__(self, folder: Path, faults: list[FileFault], changes: bool) -> None:
        """Without ``changes`` the stand-ins are in a temporary folder, and ``install`` must not be called.

        Raises StoreError, OSError.
        """
        self._folder = folder
        self.faults = faults
        self._stand_ins: dict[int, Path] = {}
        if not faults:
            self._work: Path | None = None
            return
        if changes:
            self._work = folder.with_name(folder.name + WORK_SUFFIX)
            if folder.stat().st_dev != folder.parent.stat().st_dev:
                raise StoreError(f"{faults[0]}: {folder} is a separate file system: copy the file from a replica")
            shutil.rmtree(self._work, ignore_errors=True)  # left by a killed process; the originals are still there
            self._work.mkdir()
        else:
            self._work = Path(mkdtemp(suffix=WORK_SUFFIX))
        try:
            for fault in faults:
                self._stand_ins[fault.base] = _make_stand_in(fault, self._work)
        except BaseException:  # a full disk, or Ctrl-C
            self.discard()
            raise

    def list_segments(self, folder: Path) -> list[tuple[int, int]]:
        """As the function of the same name, with the stand-ins."""
        found = dict(super().list_segments(folder))
        if folder == self._folder:
            found |= {fault.base: fault.full_size for fault in self.faults if fault.base in self._stand_ins}
        return sorted(found.items())

    def open_segment(self, path: Path, file_size: int, writable: bool) -> MappedFile:
        """The segment in this file, or in its stand-in."""
        stand_in = self._stand_ins.get(int(path.name)) if path.parent == self._folder else None
        return super().open_segment(path if stand_in is None else stand_in, file_size, writable)

    def install(self) -> None:
        """Move the stand-ins to their places in the log's folder, durably. Raises OSError."""
        for base, stand_in in sorted(self._stand_ins.items()):
            with stand_in.open("rb") as file:
                os.fsync(file.fileno())
            stand_in.rename(self._folder / stand_in.name)
            del self._stand_ins[base]
        sync_folder(self._folder)
        self.faults = []
        self.discard()

    def discard(self) -> None:
        """Delete the stand-ins that were not installed."""
        self._stand_ins.clear()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)


def _make_stand_in(fault: FileFault, work: Path) -> Path:
    """Make a file of full size with the bytes of the short one. Zeros become holes. Raises OSError."""
    path = work / fault.path.name
    try:
        with path.open("wb") as copy:
            if fault.size:
                with fault.path.open("rb") as short:
                    while piece := short.read(COPY_BYTES):
                        if any(piece):
                            copy.write(piece)
                        else:
                            copy.seek(len(piece), os.SEEK_CUR)
            copy.truncate(fault.full_size)
    except OSError as error:
        name_file(error, path)
        raise
    return path
