"""Finds how many slots and entries an index file has: its size alone does not show it (spec/store.md 7.1).

The chains in the file prove a candidate. Each entry's slot must lead to it, or to a newer one of the same slot. Each
entry's predecessor must be older and have the same slot. The messages must be in the order of the log. The search only
reads. It ends with any content, and raises UnprovedIndexFile if nothing is proved.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk

HEADER = Struct(">qqqqii")
ENTRY_DTYPE = np.dtype(
    [("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")],
)
ENTRY_BYTES, SLOT_BYTES = 20, 4
assert (HEADER.size, ENTRY_DTYPE.itemsize) == (40, ENTRY_BYTES)
DEFAULT_HASH_SLOT_NUM = 5_000_000
ENTRIES_A_SLOT = 4
"""The default of maxIndexNum, divided by maxHashSlotNum."""
ENTRIES_PROVED = 2048
"""In a large file this many entries are proved at the start, at the end and in between."""
MAX_CANDIDATES = 4096
FEW_ENTRIES = 32
SEARCH_BYTES = 1 << 20
OFFSET = Struct(">q")


class Geometry(NamedTuple):
    """maxHashSlotNum and maxIndexNum."""

    slots: int
    entries: int

    @property
    def file_size(self) -> int:
        """In bytes."""
        return self.entries_at + ENTRY_BYTES * self.entries

    @property
    def entries_at(self) -> int:
        """The position of the first entry in the file."""
        return HEADER.size + SLOT_BYTES * self.slots

    def __str__(self) -> str:
        return f"maxHashSlotNum={self.slots} and maxIndexNum={self.entries}"


DEFAULT_GEOMETRY = Geometry(DEFAULT_HASH_SLOT_NUM, DEFAULT_HASH_SLOT_NUM * ENTRIES_A_SLOT)


class UnprovedIndexFile(StoreError):
    """Nothing proves how many slots and entries an index file has: it is damaged. The log can rebuild it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"index file {path}: {reason} (rmqha rebuild builds the index again)")


class IndexContent:
    """An index file for reading. Use it as a context."""

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        """Raises UnprovedIndexFile if the file is shorter than a header, OSError."""
        self.path = path
        self._file = disk.open_view(path)
        self.size = self._file.size
        self._view = self._file.content
        if self.size < HEADER.size:
            self._file.close()
            raise UnprovedIndexFile(path, f"it has only {self.size} bytes")
        header: tuple[int, ...] = HEADER.unpack_from(self._view, 0)
        self.end_phy_offset: int = header[3]
        self.slots_begun: int = header[4]
        self._stored_count: int = header[5]
        self.index_count: int = max(1, self._stored_count)

    def __enter__(self) -> "IndexContent":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry yet."""
        return self.index_count <= 1

    def fits(self, geometry: Geometry) -> bool:
        """Whether the file has the size of this geometry, and no more entries than fit."""
        if min(geometry) <= 0 or geometry.file_size != self.size:
            return False
        return self.index_count <= geometry.entries

    def entries(self, geometry: Geometry) -> npt.NDArray[np.void]:
        """All entries, oldest first, as a view of the file. The first one, number 0, is unused."""
        return np.frombuffer(self._view, ENTRY_DTYPE, self.index_count, geometry.entries_at)

    def slots(self, geometry: Geometry) -> npt.NDArray[np.int32]:
        """The number of each slot's newest entry, as a view of the file."""
        return np.frombuffer(self._view, ">i4", geometry.slots, HEADER.size)

    def problem(
        self, geometry: Geometry, with_slots: bool = True, all_of_it: bool = False, grows: bool = False
    ) -> str | None:
        """What is wrong with the chains if this is the geometry. Only a part of a large file is checked.

        Without ``with_slots`` only entries are checked: after an unclean stop slots may be older.
        """
        if not self.fits(geometry):
            return f"it is not a file of {geometry}"
        if self.is_empty:
            is_sound = self._stored_count >= 0 and (grows or self._nonzero_end() <= HEADER.size)
            return None if is_sound else "it has entries, or parts of them, that its header does not count"
        numbers = np.arange(1, self.index_count)
        if not all_of_it and len(numbers) > 4 * ENTRIES_PROVED:
            between = np.linspace(1, self.index_count - 1, ENTRIES_PROVED).astype(np.int64)
            numbers = np.unique(np.concatenate([numbers[:ENTRIES_PROVED], between, numbers[-ENTRIES_PROVED:]]))
        problem = self._problem_of_entries(geometry, numbers)
        if problem is None and with_slots:
            problem = self._problem_of_slots(geometry, numbers)
        if problem is None and all_of_it:
            problem = self._problem_of_chains(geometry)
        return problem

    def _problem_of_entries(self, geometry: Geometry, numbers: npt.NDArray[np.int64]) -> str | None:
        entries = self.entries(geometry)
        some = entries[numbers]
        hashes, previous = some["hash"].astype(np.int64), some["previous"].astype(np.int64)
        offsets = some["physical_offset"].astype(np.int64)
        if (hashes < 0).any() or (some["seconds"] < 0).any() or (offsets < 0).any():
            return "an entry has a negative number"
        if (np.diff(offsets) < 0).any():
            return "entries are not in the order of the log"
        if np.count_nonzero((hashes == 0) & (offsets == 0) & (some["seconds"] == 0) & (previous == 0)) > 1:
            return "several entries hold only zeros"  # the second one would follow the first one
        if ((previous < 0) | (previous >= numbers)).any():
            return "an entry follows itself, or a later one"
        linked = previous > 0
        before = entries["hash"][previous[linked]].astype(np.int64)
        if (before % geometry.slots != hashes[linked] % geometry.slots).any():
            return "an entry follows one of another slot"
        return None

    def _problem_of_slots(self, geometry: Geometry, numbers: npt.NDArray[np.int64]) -> str | None:
        entries, slots = self.entries(geometry), self.slots(geometry)
        places = entries["hash"][numbers].astype(np.int64) % geometry.slots
        newest = slots[places].astype(np.int64)
        if ((newest < numbers) | (newest >= self.index_count)).any():
            return "a slot does not lead to its entries"
        if (entries["hash"][newest].astype(np.int64) % geometry.slots != places).any():
            return "a slot leads to an entry of another one"
        return None

    def _problem_of_chains(self, geometry: Geometry) -> str | None:
        """What is wrong unless each entry is either a slot's newest or the predecessor of just one other."""
        slots, entries = self.slots(geometry), self.entries(geometry)
        heads, previous = slots[slots != 0], entries["previous"][1:]
        reached = np.concatenate([heads, previous[previous != 0]]).astype(np.int64)
        if ((reached < 1) | (reached >= self.index_count)).any():
            return "a slot or an entry leads to a missing entry"
        if len(reached) != self.index_count - 1 or (np.bincount(reached, minlength=self.index_count)[1:] != 1).any():
            return "not every entry can be reached"
        if len(heads) != self.slots_begun:
            return f"{len(heads)} slots are in use, the header says {self.slots_begun}"
        return None

    def candidates(self) -> Iterator[Geometry]:
        """Geometries that the file may have, derived from where its last entry may be."""
        seen = set()
        for at in self._last_entry_places():
            space = at - HEADER.size - ENTRY_BYTES * (self.index_count - 1)
            rest = self.size - HEADER.size - space
            if space <= 0 or space % SLOT_BYTES or rest % ENTRY_BYTES:
                continue
            geometry = Geometry(space // SLOT_BYTES, rest // ENTRY_BYTES)
            if geometry not in seen and self.fits(geometry):
                seen.add(geometry)
                yield geometry

    def ends_in(self, geometry: Geometry, grows: bool = False) -> bool:
        """Whether the last nonzero byte is in the last entry. Needed because a few entries alone prove little."""
        if self.index_count > FEW_ENTRIES or self.is_empty:
            return True
        last = geometry.entries_at + ENTRY_BYTES * (self.index_count - 1)
        end = self._nonzero_end()
        return last < end and (grows or end <= last + ENTRY_BYTES)

    def _last_entry_places(self) -> Iterator[int]:
        end = self._nonzero_end()
        yield from range(max(HEADER.size, end - ENTRY_BYTES), end)
        pattern = OFFSET.pack(self.end_phy_offset)
        if pattern != bytes(OFFSET.size):
            at = self._view.rfind(pattern)
            for _ in range(MAX_CANDIDATES):
                if at < HEADER.size:
                    break
                yield at - SLOT_BYTES
                at = self._view.rfind(pattern, 0, at + OFFSET.size - 1)

    def _nonzero_end(self) -> int:
        """Where the last nonzero byte ends. Holes of the file are not read."""
        for start, end in reversed(list(self._file.data_ranges(0, self.size))):
            for at in range(end, start, -SEARCH_BYTES):
                piece = self._view[max(start, at - SEARCH_BYTES) : at].rstrip(b"\0")
                if piece:
                    return max(start, at - SEARCH_BYTES) + len(piece)
        return 0


def geometry_of(
    path: Path,
    wanted: Geometry | None = None,
    known: Geometry = DEFAULT_GEOMETRY,
    with_slots: bool = True,
    disk: Disk = DISK,
    grows: bool = False,
) -> Geometry:
    """The proved geometry of an index file. It tries ``wanted``, ``known`` (that of other files) and more candidates.

    If the file ``grows``, a process is adding entries, so there may be more than the header counted when it was read.

    Raises UnprovedIndexFile, OSError.
    """
    with_slots = with_slots and not grows
    with IndexContent(path, disk) as content:
        problem = None
        for geometry in dict.fromkeys([wanted or known, known, DEFAULT_GEOMETRY, _by_ratio(content.size)]):
            if content.fits(geometry):
                found = content.problem(geometry, with_slots, grows=grows)
                if found is None and (geometry == wanted or content.ends_in(geometry, grows)):
                    return geometry
                problem = problem or found
        if content.is_empty:
            raise UnprovedIndexFile(path, problem or f"it has {content.size} bytes and no entry that proves more")
        for geometry in content.candidates():
            if content.problem(geometry, with_slots, grows=grows) is None and content.ends_in(geometry, grows):
                return geometry
        raise UnprovedIndexFile(path, problem or f"its {content.size} bytes hold no chain of entries")


def _by_ratio(size: int) -> Geometry:
    """The geometry of a file of this size with the default number of entries a slot."""
    slots = max(1, (size - HEADER.size) // (SLOT_BYTES + ENTRY_BYTES * ENTRIES_A_SLOT))
    return Geometry(slots, slots * ENTRIES_A_SLOT)
