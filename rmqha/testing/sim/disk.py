"""A disk in memory with two layers: what is written (the page cache) and what is durable.

A process that dies leaves what it has written. Without power, each sector that was not synced is the old one or the
new, and of what was done to folders and file sizes the last part may be missing, as a journal would have it.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from rmqha.store.errors import StoreInUse
from rmqha.store.log.mappedfile import (
    FILE_NAME_DIGITS,
    Disk,
    Fronted,
    Lock,
    MappedFile,
    Readable,
    Syncable,
    UnflushedFile,
    UnflushedFolder,
    Viewed,
)
from rmqha.wire.record import Buffer

SECTOR_BYTES = 512
LOG_FOLDER = "commitlog"


class Inode:
    """A file without its name. ``content`` has room for all it will ever hold; it never moves, so it can be mapped."""

    def __init__(self, capacity: int) -> None:
        self.content = bytearray(capacity)
        self.size = 0
        self.durable = bytes(capacity)
        self.durable_size = 0
        self.dirty: set[int] = set()
        self._clean_front = b""
        """What was clean of the bytes that are written through a mapping."""

    def write(self, position: int, data: Buffer) -> None:
        """Into the page cache."""
        end = position + len(data)
        self.content[position:end] = data
        self.dirty.update(range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def map_front(self, size: int) -> None:
        """From now on, this number of bytes may be written through a mapping."""
        if size > len(self._clean_front):
            self._clean_front = bytes(self.content[:size])

    def note_mapped_writes(self) -> None:
        """See which sectors were written through the mapping."""
        front = bytes(self.content[: len(self._clean_front)])
        for at in range(0, len(front), SECTOR_BYTES):
            if front[at : at + SECTOR_BYTES] != self._clean_front[at : at + SECTOR_BYTES]:
                self.dirty.add(at // SECTOR_BYTES)
        self._clean_front = front

    def sync(self) -> None:
        """Make what is written durable."""
        self.note_mapped_writes()
        durable = bytearray(self.durable)
        for sector in self.dirty:
            _copy_sector(sector, self.content, durable)
        self.durable = bytes(durable)
        self.dirty.clear()

    def after_power_loss(self, random: Random) -> "Inode":
        """The file as it is found when the power is back."""
        self.note_mapped_writes()
        found = Inode(len(self.content))
        found.size = found.durable_size = self.durable_size
        found.content[:] = self.durable
        chance = random.choice((0.0, 0.5, 1.0))
        for sector in sorted(self.dirty):
            if random.random() < chance:
                _copy_sector(sector, self.content, found.content)
        found.content[found.size :] = bytes(len(found.content) - found.size)
        found.durable = bytes(found.content)
        return found


def _copy_sector(sector: int, source: bytearray, target: bytearray) -> None:
    at = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
    target[at] = source[at]


class SimFile(MappedFile):
    """A segment on such a disk."""

    def __init__(self, disk: "SimDisk", path: Path, inode: Inode, file_size: int) -> None:
        self.path = path
        self.base_offset = int(path.name)
        self.file_size = file_size
        self.segment = memoryview(inode.content).toreadonly()
        self.close = lambda: None
        self._disk = disk
        self._inode = inode

    def write(self, position: int, *pieces: Buffer) -> None:
        self._disk.write(self.path, self._inode, position, b"".join(pieces))

    def zero_from(self, position: int) -> None:
        self._disk.zero_from(self.path, self._inode, position)

    def sync(self) -> None:
        self._disk.sync_file(self.path, self._inode)

    def data_ranges(self, position: int) -> Iterator[tuple[int, int]]:
        yield position, self.file_size


class SimPages:
    """A file of such a disk, read. Its content is that of the moment in which it was opened."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        self.size = inode.size
        self.content = bytes(inode.content[: inode.size])
        self.close = lambda: None

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes, as they are now."""
        return bytes(self._inode.content[position : min(position + size, self._inode.size)])

    def data_ranges(self, position: int, end: int) -> Iterator[tuple[int, int]]:
        """All of it: this disk does not tell of holes."""
        if position < end:
            yield position, end


class SimFronted:
    """A file of such a disk whose first bytes are written through ``front``: no system call tells of that."""

    def __init__(self, disk: "SimDisk", path: Path, inode: Inode, front_bytes: int) -> None:
        inode.map_front(front_bytes)
        self._disk = disk
        self._path = path
        self._inode = inode
        self.front = memoryview(inode.content)[:front_bytes]
        self.content = memoryview(inode.content).toreadonly()
        self.close = lambda: None

    def write(self, position: int, data: Buffer) -> None:
        """pwrite."""
        self._disk.write(self._path, self._inode, position, data)

    def sync(self) -> None:
        """fdatasync."""
        self._disk.sync_file(self._path, self._inode)


class SimLock:
    """A lock that is held until it is released, or its process ends."""

    def __init__(self, locks: dict[Path, "SimLock"], path: Path) -> None:
        self._locks = locks
        self._path = path
        locks[path] = self

    def release(self) -> None:
        """Let others have the file. A process that is dead holds nothing any more."""
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


class SimDisk(Disk):
    """A node's disk. It calls ``system_call`` before each system call; that may raise instead.

    ``full`` refuses writes and new files with ENOSPC; ``broken_writes`` and ``broken_syncs`` count those that will fail
    with EIO. A failed sync drops the sectors' dirt, as Linux does: no later sync will write them.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.locks: dict[Path, SimLock] = {}
        self._entries: dict[Path, Inode | None] = {}  # None for a folder
        self._durable_entries: dict[Path, Inode | None] = {}
        self._journal: list[tuple[Path | Inode, Callable[[dict[Path, Inode | None]], None]]] = []
        self.system_call: Callable[[str, Path], None] = lambda name, path: None
        self.full = False
        self.broken_writes = self.broken_syncs = 0
        self.folders_renamed = 0
        """How often a log's folder was renamed: a store does that to start with an empty log."""

    def heal(self) -> None:
        """No more errors."""
        self.full = False
        self.broken_writes = self.broken_syncs = 0

    def lose_power(self) -> None:
        """Forget what is not durable, but for what chance has brought to the disk."""
        for _, step in self._journal[: self._random.randint(0, len(self._journal))]:
            step(self._durable_entries)
        self._journal.clear()
        self._durable_entries = {
            path: inode if inode is None else inode.after_power_loss(self._random)
            for path, inode in self._durable_entries.items()
        }
        self._entries = dict(self._durable_entries)

    def wipe(self) -> None:
        """An empty disk in its place."""
        self._entries.clear()
        self._durable_entries.clear()
        self._journal.clear()
        self.heal()

    def rot(self, path: Path, start: int, damage: bytes) -> None:
        """These bytes are on the disk now, and nobody has written them."""
        inode = self._inode(path)
        inode.content[start : start + len(damage)] = damage
        inode.durable = inode.durable[:start] + damage + inode.durable[start + len(damage) :]

    def bytes_at(self, folder: Path, segment_size: int, start: int, end: int, durable: bool) -> bytes:
        """What the segments in ``folder`` hold from ``start`` to ``end``, on the disk or in the page cache too."""
        found = bytearray()
        while start + len(found) < end:
            at = start + len(found)
            base = at - at % segment_size
            path = folder / f"{base:0{FILE_NAME_DIGITS}d}"
            inode = (self._durable_entries if durable else self._entries).get(path)
            if inode is None:
                break
            content = inode.durable if durable else inode.content
            found += content[at - base : min(end - base, inode.durable_size if durable else inode.size)]
            if len(found) != min(end, base + segment_size) - start:
                break
        return bytes(found)

    def _change_entries(self, folder: Path, step: Callable[[dict[Path, Inode | None]], None]) -> None:
        step(self._entries)
        self._journal.append((folder, step))

    def write(self, path: Path, inode: Inode, position: int, data: Buffer) -> None:
        """pwrite."""
        self.system_call("pwrite", path)
        if self.full or self.broken_writes:
            inode.write(position, data[: self._random.randint(0, len(data))])
            self._refuse_if_full()
            self.broken_writes -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.write(position, data)

    def _refuse_if_full(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def set_size(self, path: Path, inode: Inode, size: int) -> None:
        """ftruncate."""
        self.system_call("ftruncate", path)
        inode.size = size

        def keep(_: object) -> None:
            inode.durable_size = size

        self._journal.append((inode, keep))

    def zero_from(self, path: Path, inode: Inode, position: int) -> None:
        """fallocate: a hole up to the file's end."""
        self.system_call("fallocate", path)
        inode.write(position, bytes(len(inode.content) - position))

    def sync_file(self, path: Path, inode: Inode) -> None:
        """fdatasync: the file's bytes and size; its name is another matter."""
        self.system_call("fdatasync", path)
        if self.broken_syncs:
            self.broken_syncs -= 1
            inode.note_mapped_writes()
            inode.dirty.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.sync()
        inode.durable_size = inode.size
        self._journal = [(of, step) for of, step in self._journal if of is not inode]

    def sync_folder(self, folder: Path) -> None:
        self.system_call("fsync", folder)
        done = max((at for at, (of, _) in enumerate(self._journal, 1) if of == folder), default=0)
        for _, step in self._journal[:done]:
            step(self._durable_entries)
        del self._journal[:done]

    def list_segments(self, folder: Path) -> list[tuple[int, int]]:
        return sorted((int(name), size) for name, size in self.files_in(folder))

    def open_segment(self, path: Path, file_size: int, writable: bool) -> MappedFile:
        return SimFile(self, path, self._inode(path), file_size)

    def create_segment(self, path: Path, file_size: int) -> MappedFile:
        inode = self._create(path, file_size)
        self.set_size(path, inode, file_size)
        return SimFile(self, path, inode, file_size)

    def _create(self, path: Path, capacity: int) -> Inode:
        self.system_call("create", path)
        self._refuse_if_full()
        if path in self._entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        inode = Inode(capacity)

        def add(entries: dict[Path, Inode | None]) -> None:
            entries[path] = inode

        self._change_entries(path.parent, add)
        return inode

    def _inode(self, path: Path) -> Inode:
        inode = self._entries.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def exists(self, path: Path) -> bool:
        return path in self._entries

    def is_folder(self, path: Path) -> bool:
        return self._entries.get(path, self) is None

    def folders_in(self, folder: Path) -> list[str]:
        return [path.name for path, inode in self._entries.items() if path.parent == folder and inode is None]

    def files_in(self, folder: Path) -> list[tuple[str, int]]:
        return [
            (path.name, inode.size)
            for path, inode in self._entries.items()
            if path.parent == folder and inode is not None
        ]

    def size(self, path: Path) -> int:
        return self._inode(path).size

    def make_folder(self, folder: Path) -> None:
        if folder in self._entries:
            return
        if folder != folder.parent:
            self.make_folder(folder.parent)
        self.system_call("mkdir", folder)

        def add(entries: dict[Path, Inode | None]) -> None:
            entries[folder] = None

        self._change_entries(folder.parent, add)

    def touch(self, path: Path) -> None:
        if not self.exists(path):
            self._create(path, 0)

    def remove(self, path: Path, missing_ok: bool = False) -> None:
        self.system_call("unlink", path)
        if missing_ok and not self.exists(path):
            return
        self._inode(path)
        self._drop_entry(path)

    def _remove_entry(self, path: Path) -> None:
        self.system_call("rmdir" if self.is_folder(path) else "unlink", path)
        self._drop_entry(path)

    def _drop_entry(self, path: Path) -> None:
        def drop(entries: dict[Path, Inode | None]) -> None:
            entries.pop(path, None)

        self._change_entries(path.parent, drop)

    def remove_tree(self, path: Path) -> None:
        """Each file and folder by a call of its own, as no file system does it at once."""
        below = [found for found in self._entries if path in found.parents]
        for found in sorted(below, key=lambda found: len(found.parts), reverse=True):
            self._remove_entry(found)
        if path in self._entries:
            self._remove_entry(path)

    def remove_if_empty(self, folder: Path) -> None:
        if self.is_folder(folder) and not any(folder in path.parents for path in self._entries):
            self._remove_entry(folder)

    def rename(self, path: Path, new_path: Path) -> None:
        self.system_call("rename", path)

        def move(entries: dict[Path, Inode | None]) -> None:
            for old in [old for old in entries if old == path or path in old.parents]:
                entries[new_path / old.relative_to(path)] = entries.pop(old)

        if self.is_folder(path) and path.name == LOG_FOLDER:
            self.folders_renamed += 1
        self._change_entries(new_path.parent, move)

    def modified_time(self, path: Path) -> float:
        return 0.0

    def read(self, path: Path) -> bytes:
        inode = self._inode(path)
        return bytes(inode.content[: inode.size])

    def overwrite(self, path: Path, content: bytes, file_size: int) -> None:
        inode = self._inode(path) if self.exists(path) else self._create(path, file_size)
        if inode.size != file_size:
            self.set_size(path, inode, file_size)
        self.write(path, inode, 0, content)
        self.sync_file(path, inode)

    def replace(self, path: Path, content: bytes) -> None:
        self.make_folder(path.parent)
        temporary = path.with_name(path.name + ".tmp")
        if self.exists(temporary):
            self.remove(temporary)
        self.write_new(temporary, [content])
        self.rename(temporary, path)
        self.sync_folder(path.parent)

    def open_pages(self, path: Path | str) -> Readable:
        return SimPages(self._inode(Path(path)))

    def open_view(self, path: Path) -> Viewed:
        return SimPages(self._inode(path))

    def open_fronted(self, path: Path, file_size: int, front_bytes: int, create: bool) -> Fronted:
        if create:
            inode = self._create(path, file_size)
            self.set_size(path, inode, file_size)
        else:
            inode = self._inode(path)
        return SimFronted(self, path, inode, front_bytes)

    def lock(self, path: Path) -> Lock:
        self.system_call("open", path)
        if path in self.locks:
            raise StoreInUse(f"{path.parent} is in use by another process: stop it first")
        self.touch(path)
        return SimLock(self.locks, path)

    def sync_all(self, files: Sequence[Syncable]) -> None:
        for file in files:
            if isinstance(file, UnflushedFolder):
                self.sync_folder(file.path)
            elif not isinstance(file, UnflushedFile):
                file.sync()
            elif inode := self._entries.get(file.path):
                self.sync_file(file.path, inode)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        content = b"".join(pieces)
        inode = self._create(path, len(content))
        self.write(path, inode, 0, content)
        self.set_size(path, inode, len(content))
        self.sync_file(path, inode)
