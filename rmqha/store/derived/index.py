"""Index files: messages by key and time (spec/store.md 7).

::

    header: 0 i64 beginTimestamp   8 i64 endTimestamp   16 i64 beginPhyOffset   24 i64 endPhyOffset
            32 i32 hashSlotCount   36 i32 indexCount (the next entry's number, from 1)
    then slots, i32 each: the newest entry's number;  then entries, 20 bytes each:
            0 i32 key hash   4 i64 physical offset   12 i32 seconds since beginTimestamp   16 i32 previous entry

Keys are hashed and chained many at a time. Slots are written at random, so header and slots are written through a
mapping whose blocks are reserved. Entries are appended by ``pwrite``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmqha.kit.steps import Steps, at_once
from rmqha.store.derived.geometry import (
    DEFAULT_GEOMETRY,
    ENTRIES_A_SLOT,
    ENTRY_BYTES,
    ENTRY_DTYPE,
    HEADER,
    Geometry,
    IndexContent,
    UnprovedIndexFile,
    geometry_of,
)
from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk, Syncable, UnflushedFolder
from rmqha.wire.compiled import compiled_or
from rmqha.wire.javahashes import index_hashes

NAME_FORMAT = "%Y%m%d%H%M%S"
MAX_SECONDS = 2**31 - 1
SLOT_ENDS = 1 << 16
"""How many values the last bits of a slot have. Keys whose values differ have different slots."""
INDEX_FOLDER = "index"
ZEROS_BATCH = 1 << 20
ENTRIES_A_STEP = 2048
"""How many entries of a chain a query reads in one step: about 3 ms."""
FILES_A_STEP = 64
"""How many files a query looks at in one step."""


class IndexedKey(NamedTuple):
    """A key of one message: ``topic#key``, the message's offset in the log, and STORETIMESTAMP in ms."""

    text: str
    physical_offset: int
    store_timestamp: int


HASHED_KEY_DTYPE = np.dtype([("hash", "i4"), ("physical_offset", "i8"), ("store_timestamp", "i8")])
HashedKeys = npt.NDArray[np.void]
"""Many keys, with the hashes of their texts."""
NO_KEYS: HashedKeys = np.empty(0, HASHED_KEY_DTYPE)


def hashed(keys: Sequence[tuple[str, int, int]]) -> HashedKeys:
    """The keys with the hashes of their texts. Each has the fields of IndexedKey."""
    found = np.empty(len(keys), dtype=HASHED_KEY_DTYPE)
    found["hash"] = index_hashes([text for text, _, _ in keys])
    found["physical_offset"] = [physical_offset for _, physical_offset, _ in keys]
    found["store_timestamp"] = [store_timestamp for _, _, store_timestamp in keys]
    return found


@dataclass(slots=True)
class IndexHeader:
    """An index file's header. Timestamps in ms, offsets in the log."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1


def _sharing_rows(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """All rows whose slot other rows have too, and a few others: those whose slots only end like that of another.

    Few have it: to sort only these takes a fraction of the time.
    """
    ends, rows = slots & (SLOT_ENDS - 1), np.arange(len(slots))
    last = np.empty(SLOT_ENDS, dtype=np.int64)
    last[ends] = rows
    is_shared = np.zeros(SLOT_ENDS, dtype=bool)
    is_shared[ends[last[ends] != rows]] = True
    return np.flatnonzero(is_shared[ends])


def chain_keys_plain(
    keys: HashedKeys, slots: npt.NDArray[np.int32], first_number: int, begin_timestamp: int
) -> tuple[bytes, int]:
    """The entries of keys, numbered from ``first_number`` on and chained into their slots; how many slots they begin.

    ``slots``, big-endian, and ``begin_timestamp`` (ms) are those of the file. Changes nothing. Specifies the kernel's.
    """
    entries = np.empty(len(keys), dtype=ENTRY_DTYPE)
    entries["hash"] = keys["hash"]
    entries["physical_offset"] = keys["physical_offset"]
    entries["seconds"] = 0
    if begin_timestamp > 0:
        entries["seconds"] = np.clip((keys["store_timestamp"] - begin_timestamp) // 1000, 0, MAX_SECONDS)
    slot_of = keys["hash"].astype(np.int64) % len(slots)
    numbers = np.arange(first_number, first_number + len(keys))
    previous = slots[slot_of].astype(np.int64)
    previous[(previous < 0) | (previous >= first_number)] = 0
    rows = _sharing_rows(slot_of)
    rows = rows[slot_of[rows].argsort(kind="stable")]
    follows = slot_of[rows[1:]] == slot_of[rows[:-1]]
    previous[rows[1:][follows]] = numbers[rows[:-1][follows]]
    entries["previous"] = previous
    return entries.tobytes(), int((previous == 0).sum())


def link_keys_plain(keys: HashedKeys, slots: npt.NDArray[np.int32], first_number: int) -> None:
    """Let the slots of keys lead to their entries, numbered from ``first_number`` on. Specifies the kernel's.

    If several have one slot, it leads to the last of them.
    """
    slots[keys["hash"].astype(np.int64) % len(slots)] = np.arange(first_number, first_number + len(keys))


chain_keys = compiled_or(chain_keys_plain, "chain_keys")
link_keys = compiled_or(link_keys_plain, "link_keys")


class IndexFile:
    """One index file."""

    def __init__(
        self, path: Path, slot_count: int, max_index_num: int, create: bool = False, disk: Disk = DISK
    ) -> None:
        """Raises StoreError for a file of another size, FileExistsError, OSError."""
        self.path = path
        self._slot_count = slot_count
        self._max_index_num = max_index_num
        self._entries_at = HEADER.size + 4 * slot_count
        size = self._entries_at + ENTRY_BYTES * max_index_num
        if not create and disk.size(path) != size:
            raise StoreError(f"{path} has {disk.size(path)} bytes, not {size} (maxHashSlotNum, maxIndexNum)")
        self._file = disk.open_fronted(path, size, self._entries_at, create)
        self.close = self._file.close
        """Closes the file. It also closes once nothing, in any thread, refers to this object."""
        self._front = self._file.front
        self._slots: npt.NDArray[np.int32] = np.frombuffer(self._front, ">i4", slot_count, HEADER.size)
        self.header = IndexHeader(*HEADER.unpack_from(self._front, 0))
        self.header.index_count = max(1, self.header.index_count)

    @property
    def geometry(self) -> Geometry:
        """How many slots and entries the file has."""
        return Geometry(self._slot_count, self._max_index_num)

    @property
    def is_full(self) -> bool:
        """Whether it has no room for another entry."""
        return self.header.index_count >= self._max_index_num

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry yet."""
        return self.header.index_count <= 1

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return max(0, self._max_index_num - self.header.index_count)

    def begin_after(self, previous: IndexHeader) -> None:
        """Take the end of the previous file as the start of this one."""
        header = self.header
        header.begin_timestamp = header.end_timestamp = previous.end_timestamp
        header.begin_phy_offset = header.end_phy_offset = previous.end_phy_offset
        self._write_header()

    def put(self, keys: Sequence[IndexedKey]) -> None:
        """Add keys, oldest first; they must have room. Raises OSError."""
        self.put_hashed(hashed(keys))

    def put_hashed(self, keys: HashedKeys) -> None:
        """Add keys, oldest first; they must have room. Raises OSError."""
        header = self.header
        if header.index_count <= 1:
            _, header.begin_phy_offset, header.begin_timestamp = keys[0].item()
        entries, slots_begun = chain_keys(keys, self._slots, header.index_count, header.begin_timestamp)
        self._file.write(self._entries_at + ENTRY_BYTES * header.index_count, memoryview(entries))
        link_keys(keys, self._slots, header.index_count)
        header.hash_slot_count += slots_begun
        header.index_count += len(keys)
        _, header.end_phy_offset, header.end_timestamp = keys[-1].item()
        self._write_header()

    def _write_header(self) -> None:
        header = self.header
        HEADER.pack_into(
            self._front,
            0,
            header.begin_timestamp,
            header.end_timestamp,
            header.begin_phy_offset,
            header.end_phy_offset,
            header.hash_slot_count,
            header.index_count,
        )

    def _entries(self, count: int) -> npt.NDArray[np.void]:
        return np.frombuffer(self._file.content, ENTRY_DTYPE, count, self._entries_at)

    def find(self, key_hash: int, begin: int, end: int, limit: int) -> Steps[list[int]]:
        """Physical offsets, newest first, of entries with this hash stored between ``begin`` and ``end`` (ms).

        A step reads a part of a long chain: all entries of the file may be in one slot.
        """
        header = self.header
        found: list[int] = []
        entries = self._entries(header.index_count)
        number = int(self._slots[key_hash % self._slot_count])
        left = ENTRIES_A_STEP
        while 0 < number < len(entries) and len(found) < limit:
            if not left:
                yield
                left = ENTRIES_A_STEP
            left -= 1
            hashed, physical_offset, seconds, previous = entries[number].item()
            stored = header.begin_timestamp + seconds * 1000
            if seconds < 0 or stored + 999 < begin:
                break
            if hashed == key_hash and stored <= end:
                found.append(physical_offset)
            if previous >= number:  # the chain goes in a circle
                break
            number = previous
        return found

    def truncate(self, physical_offset: int) -> None:
        """Drop the entries of messages at or after ``physical_offset``, and invalid entries."""
        kept = self._sound_count(physical_offset)
        self._zero_from(kept)
        entries = self._entries(kept)
        header = self.header
        if kept <= 1:
            self._slots[:] = 0
            self.header = IndexHeader(
                header.begin_timestamp, header.begin_timestamp, header.begin_phy_offset, header.begin_phy_offset
            )
        else:
            slots = (entries["hash"][1:].astype(np.int64)) % self._slot_count
            self._slots[:] = 0
            self._slots[slots] = np.arange(1, kept)  # of equal slots the last one stays: the newest
            last = entries[kept - 1]
            header.index_count = kept
            header.hash_slot_count = int((self._slots != 0).sum())
            header.end_phy_offset = int(last["physical_offset"])
            header.end_timestamp = min(header.end_timestamp, header.begin_timestamp + int(last["seconds"]) * 1000 + 999)
        self._write_header()

    def _zero_from(self, number: int) -> None:
        """Zero the entries from ``number`` on, so that they do not seem to be entries. Raises OSError."""
        count = min(self.header.index_count, self._max_index_num) - number
        at = self._entries_at + ENTRY_BYTES * number
        for begin in range(0, ENTRY_BYTES * max(0, count), ZEROS_BATCH):
            self._file.write(at + begin, bytes(min(ZEROS_BATCH, ENTRY_BYTES * count - begin)))

    def _sound_count(self, physical_offset: int) -> int:
        """The number after the last entry of the first unbroken run of entries before ``physical_offset``."""
        count = min(self.header.index_count, self._max_index_num)
        entries = self._entries(count)[1:]
        offsets = entries["physical_offset"].astype(np.int64)
        sound = (offsets < physical_offset) & (entries["previous"] >= 0) & (entries["seconds"] >= 0)
        sound &= entries["previous"] < np.arange(1, count)
        sound[1:] &= offsets[1:] >= offsets[:-1]
        return 1 + (len(sound) if sound.all() else int(np.argmin(sound)))

    def sync(self) -> None:
        """Flush it to the disk. May run in another thread. Raises OSError."""
        self._file.sync()


class KeyIndex:
    """All index files of a store, oldest first, as Java's IndexService."""

    def __init__(
        self,
        folder: Path,
        slot_count: int,
        max_index_num: int,
        files: Sequence[tuple[Path, Geometry]] | None = None,
        disk: Disk = DISK,
    ) -> None:
        """Raises StoreError for a file of another size, OSError.

        ``files`` are the existing index files with their geometries. By default they have the geometry of new files.
        """
        self._folder = folder
        self._slot_count = slot_count
        self._max_index_num = max_index_num
        self._disk = disk
        if files is None:
            files = [(path, Geometry(slot_count, max_index_num)) for path in used_index_paths(folder, disk)]
        self._files = [IndexFile(path, *geometry, disk=disk) for path, geometry in files]
        self._unflushed: list[IndexFile] = []
        self._has_changed_names = False
        self._left = NO_KEYS
        """Keys that the last ``put_hashed`` could not write. It may have written other keys of the same message."""
        self._added: list[tuple[str, int, int]] = []
        self._waiting: list[HashedKeys] = []
        """Keys that were added before those in ``_added``."""
        self.full_files_timestamp = self._files[-2].header.end_timestamp if len(self._files) > 1 else 0

    @property
    def geometries(self) -> list[Geometry]:
        """The geometry of each file, oldest first."""
        return [file.geometry for file in self._files]

    @property
    def file_settings(self) -> dict[str, str]:
        """The settings of new files, by their names in broker.conf."""
        return {"maxHashSlotNum": str(self._slot_count), "maxIndexNum": str(self._max_index_num)}

    @property
    def has_files(self) -> bool:
        """Whether there are any index files yet."""
        return bool(self._files)

    @property
    def end_phy_offset(self) -> int:
        """The offset of the last message that has an entry, -1 without entries."""
        last = self._files[-1] if self._files else None
        return last.header.end_phy_offset if last is not None and last.header.index_count > 1 else -1

    @property
    def last_update(self) -> tuple[int, int]:
        """STORETIMESTAMP in ms and physical offset of the last message that has an entry. 0 and 0 without entries."""
        last = self._files[-1].header if self._files else IndexHeader()
        return last.end_timestamp, last.end_phy_offset

    @property
    def pending(self) -> int:
        """How many added keys are not written yet."""
        return len(self._added) + sum(map(len, self._waiting))

    def add(self, keys: Sequence[tuple[str, int, int]]) -> None:
        """Add keys of messages, as ``put`` does. The next ``write_pending`` or ``query`` writes them."""
        self._added += keys

    def add_hashed(self, keys: HashedKeys) -> None:
        """The same for many keys that are already hashed."""
        self._hash_added()
        if len(keys):
            self._waiting.append(keys)

    def _hash_added(self) -> None:
        if self._added:
            self._waiting.append(hashed(self._added))
            self._added = []

    def write_pending(self) -> None:
        """Write the keys added since the last call. Raises OSError; then they stay pending."""
        self._hash_added()
        if len(self._waiting) > 1:  # one array costs a fraction of many small ones
            self._waiting = [np.concatenate(self._waiting)]
        if self._waiting:
            self._put_new(self._waiting[0], self._disk.now())
            self._waiting.clear()

    def put(self, keys: Sequence[IndexedKey], now: datetime) -> None:
        """Add keys of messages, oldest first. Skips messages that have entries already."""
        self._put_new(hashed(keys) if keys else NO_KEYS, now)

    def _put_new(self, keys: HashedKeys, now: datetime) -> None:
        self.put_hashed(self._left, now)
        if len(keys) and keys["physical_offset"].min() <= self.end_phy_offset:
            keys = keys.compress(keys["physical_offset"] > self.end_phy_offset)
        self.put_hashed(keys, now)

    def put_hashed(self, keys: HashedKeys, now: datetime) -> None:
        """Add keys, oldest first, none of which has an entry yet. Raises OSError."""
        self._left = keys
        while len(self._left):
            file = self._file_with_room(now)
            room = file.room
            file.put_hashed(self._left[:room])
            self._left = self._left[room:]
            if file not in self._unflushed:
                self._unflushed.append(file)

    def _file_with_room(self, now: datetime) -> IndexFile:
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        self._disk.make_folder(self._folder)
        while True:
            path = self._folder / f"{now.strftime(NAME_FORMAT)}{now.microsecond // 1000:03d}"
            try:
                file = IndexFile(path, self._slot_count, self._max_index_num, create=True, disk=self._disk)
                break
            except FileExistsError:
                now += timedelta(milliseconds=1)
        if last is not None:
            file.begin_after(last.header)
            self.full_files_timestamp = last.header.end_timestamp
        self._files.append(file)
        self._has_changed_names = True
        return file

    def query(self, topic: str, key: str, begin: int, end: int, limit: int) -> list[int]:
        """Physical offsets, ascending, of messages that may have this key. Hashes collide: check the messages.

        Raises OSError.
        """
        return at_once(self.query_in_steps(topic, key, begin, end, limit))

    def query_in_steps(self, topic: str, key: str, begin: int, end: int, limit: int) -> Steps[list[int]]:
        """The same, in steps. Files may be deleted between two steps."""
        self.write_pending()
        (key_hash,) = index_hashes([f"{topic}#{key}"]).tolist()
        found: list[int] = []
        for count, file in enumerate(reversed(list(self._files)), 1):
            if count % FILES_A_STEP == 0:
                yield
            header = file.header
            if header.begin_timestamp <= end and header.end_timestamp >= begin:
                found += yield from file.find(key_hash, begin, end, limit - len(found))
            if len(found) >= limit or header.begin_timestamp < begin:
                break
        return sorted(found)

    def truncate(self, physical_offset: int) -> None:
        """Drop the entries of messages at or after ``physical_offset``. Raises OSError."""
        while self._files and (self._files[-1].is_empty or self._files[-1].header.begin_phy_offset >= physical_offset):
            file = self._files.pop()
            self._unflushed = [other for other in self._unflushed if other is not file]
            self._disk.remove(file.path)
            self._has_changed_names = True  # a file that comes back leads to messages that may be other ones by then
        if self._files:
            self._files[-1].truncate(physical_offset)
            self._unflushed = [*(other for other in self._unflushed if other is not self._files[-1]), self._files[-1]]
            self._has_changed_names = True  # the process that made it may have died before it flushed its name
        self.full_files_timestamp = self._files[-2].header.end_timestamp if len(self._files) > 1 else 0

    def delete_files_before(self, min_physical_offset: int) -> int:
        """Delete files whose messages are all gone from the log, but not the last file. Returns how many."""
        deleted = 0
        while len(self._files) > 1 and self._files[0].header.end_phy_offset < min_physical_offset:
            file = self._files.pop(0)
            self._unflushed = [other for other in self._unflushed if other is not file]
            self._disk.remove(file.path)
            deleted += 1
        return deleted

    def take_unflushed(self) -> list[Syncable]:
        """The files with bytes written since the last call, and the folders with new or removed files."""
        unflushed: list[Syncable] = [*self._unflushed]
        if self._has_changed_names:
            unflushed += [UnflushedFolder(self._folder), UnflushedFolder(self._folder.parent)]
        self._unflushed, self._has_changed_names = [], False
        return unflushed

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            file.close()


def read_entries(path: Path, geometry: Geometry, disk: Disk = DISK) -> npt.NDArray[np.void]:
    """All entries of an index file, oldest first, as a view of the file. Raises StoreError, OSError."""
    with IndexContent(path, disk) as content:
        if not content.fits(geometry):
            raise UnprovedIndexFile(path, f"it is not a file of {geometry}")
        return content.entries(geometry)[1:]


def used_index_paths(folder: Path, disk: Disk = DISK) -> list[Path]:
    """The index files, except an empty last one.

    A crash leaves such a file if it comes before the file has its size. It is deleted. Raises OSError.
    """
    paths = list(index_paths(folder, disk))
    if paths and disk.size(paths[-1]) == 0:
        disk.remove(paths.pop())
    return paths


def new_geometry(folder: Path, max_hash_slot_num: int | None, max_index_num: int | None, disk: Disk = DISK) -> Geometry:
    """The geometry of new index files: as configured, else as the newest proved file, else the default.

    Raises OSError.
    """
    if max_hash_slot_num is None:
        for path in reversed(list(index_paths(folder, disk))):
            try:
                return geometry_of(path, disk=disk)
            except StoreError:
                continue
        max_hash_slot_num = DEFAULT_GEOMETRY.slots
    return configured_geometry(max_hash_slot_num, max_index_num) or DEFAULT_GEOMETRY


def configured_geometry(max_hash_slot_num: int | None, max_index_num: int | None) -> Geometry | None:
    """The geometry in the settings, None if they have none."""
    if max_hash_slot_num is None and max_index_num is None:
        return None
    if max_hash_slot_num is None:
        return Geometry(DEFAULT_GEOMETRY.slots, max_index_num or 0)
    return Geometry(max_hash_slot_num, max_index_num or max_hash_slot_num * ENTRIES_A_SLOT)


def index_paths(folder: Path, disk: Disk = DISK) -> Iterator[Path]:
    """The index files of a folder in the order of their names. Other names are ignored, as upstream does."""
    yield from sorted(folder / name for name, _ in disk.files_in(folder) if name.isdecimal())
