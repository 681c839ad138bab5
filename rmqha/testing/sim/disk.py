"""A disk in memory with two layers: what is written (the page cache) and what is durable.

A process that dies leaves what it has written. Without power, each sector that was not synced is the old one or the
new, and of what was done to folders and file sizes the last part may be missing. What makes a folder's names durable
depends on the disk: a journal (ext4) writes all that was done before too, other file systems (POSIX asks for no more)
that folder alone, and the way to it.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count
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
FIRST_NAME = datetime(2026, 1, 1)
LOG_FOLDER = "commitlog"
ALL_FOLDERS = "*"
"""Whose step is the renaming of a folder: it comes to the disk after all that was done before, on every disk."""


class Inode:
    """A file without its name. ``content`` has room for all it will ever hold; it never moves, so it can be mapped."""

    numbers = count()

    def __init__(self, capacity: int) -> None:
        self.content = bytearray(capacity)
        self.size = 0
        self.durable = bytearray(capacity)
        self.durable_size = 0
        self.dirty: set[int] = set()
        self.writes = 0
        self.number = next(Inode.numbers)
        self._clean_front = b""
        """What was clean of the bytes that are written through a mapping."""

    def write(self, position: int, data: Buffer) -> None:
        """Into the page cache."""
        end = position + len(data)
        self.content[position:end] = data
        self.writes += 1
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
        for sector in self.dirty:
            _copy_sector(sector, self.content, self.durable)
        self.dirty.clear()

    def after_power_loss(self, random: Random) -> "Inode":
        """The file as it is found when the power is back."""
        self.note_mapped_writes()
        if not self.dirty and self.size == self.durable_size and self.content == self.durable:
            return self
        found = Inode(len(self.content))
        found.size = found.durable_size = self.durable_size
        found.content[:] = self.durable
        chance = random.choice((0.0, 0.5, 1.0))
        for sector in sorted(self.dirty):
            if random.random() < chance:
                _copy_sector(sector, self.content, found.content)
        found.content[found.size :] = bytes(len(found.content) - found.size)
        found.durable[:] = found.content
        return found


def _copy_sector(sector: int, source: bytearray, target: bytearray) -> None:
    at = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
    target[at] = source[at]


class Names:
    """Files and folders by their paths, as text: hashing and comparing that is cheap. None stands for a folder."""

    def __init__(self, inodes: dict[str, "Inode | None"] | None = None) -> None:
        self.inodes = {} if inodes is None else inodes
        self._children: dict[str, dict[str, None]] = {}
        for path in self.inodes:
            self._children.setdefault(path.rpartition("/")[0], {})[path] = None

    def add(self, path: str, inode: "Inode | None") -> None:
        """Another name, or another file for one."""
        self.inodes[path] = inode
        self._children.setdefault(path.rpartition("/")[0], {})[path] = None

    def drop(self, path: str) -> None:
        """The name is gone, if it was there."""
        if path in self.inodes:
            del self.inodes[path]
            del self._children[path.rpartition("/")[0]][path]

    def move(self, path: str, new_path: str) -> None:
        """Rename, with all that is in the folder."""
        if path in self.inodes:
            inode = self.inodes[path]
            self.drop(path)
            self.add(new_path, inode)
            for child in self.children(path):
                self.move(child, new_path + child[len(path) :])

    def children(self, folder: str) -> list[str]:
        """The paths in a folder."""
        return list(self._children.get(folder, ()))

    def below(self, folder: str) -> list[str]:
        """The paths in a folder and in the folders below it; the deepest last."""
        found = self.children(folder)
        for path in found:
            found += self.children(path)
        return found


Step = Callable[[Names], None]


def _leads_to(of: str | Inode, folder: str) -> bool:
    """Whether a step was done in this folder, or in one above it."""
    return isinstance(of, str) and (of == folder or folder.startswith(f"{of}/") or of == "/")


class SimFile(MappedFile):
    """A segment on such a disk."""

    def __init__(self, disk: "SimDisk", path: Path, inode: Inode, file_size: int) -> None:
        self.path = path
        self.base_offset = int(path.name)
        self.file_size = file_size
        self.segment = memoryview(inode.content).toreadonly()
        self._disk = disk
        self._inode = inode

    def close(self) -> None:
        """There is nothing to close."""

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

    def close(self) -> None:
        """There is nothing to close."""

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

    def close(self) -> None:
        """There is nothing to close."""

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
        self._names = Names()
        self._durable_names = Names()
        self._journal: list[tuple[str | Inode, Step]] = []
        self._named = 0
        self._has_one_journal = random.random() < 0.5
        self.system_call: Callable[[str, Path], None] = lambda name, path: None
        self.cutting: Callable[[Path, int], None] = lambda path, position: None
        """Called before bytes of the log's files are zeroed from a position on, or a file of it is deleted."""
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
        some = self._random.randint(0, len(self._journal))
        for _, step in self._journal[: self._random.choice((0, some, some))]:
            step(self._durable_names)
        self._journal.clear()
        found: dict[Inode, Inode] = {}  # a file may have two names
        for inode in self._durable_names.inodes.values():
            if inode is not None and inode not in found:
                found[inode] = inode.after_power_loss(self._random)
        self._durable_names = Names(
            {path: None if inode is None else found[inode] for path, inode in self._durable_names.inodes.items()}
        )
        self._names = Names(dict(self._durable_names.inodes))

    def wipe(self) -> None:
        """An empty disk in its place."""
        self._names = Names()
        self._durable_names = Names()
        self._journal.clear()
        self.heal()

    def rot(self, path: Path, start: int, damage: bytes) -> None:
        """These bytes are on the disk now, and nobody has written them."""
        inode = self._inode(path)
        inode.content[start : start + len(damage)] = damage
        inode.durable[start : start + len(damage)] = damage

    def bytes_at(self, folder: Path, segment_size: int, start: int, end: int, durable: bool) -> bytes:
        """What the segments in ``folder`` hold from ``start`` to ``end``, on the disk or in the page cache too."""
        found = bytearray()
        names = (self._durable_names if durable else self._names).inodes
        while start + len(found) < end:
            at = start + len(found)
            base = at - at % segment_size
            inode = names.get(f"{folder}/{base:0{FILE_NAME_DIGITS}d}")
            if inode is None:
                break
            content = inode.durable if durable else inode.content
            found += content[at - base : min(end - base, inode.durable_size if durable else inode.size)]
            if len(found) != min(end, base + segment_size) - start:
                break
        return bytes(found)

    def durable_file(self, path: Path) -> bytes | None:
        """What a file would hold if power were lost now and nothing came to the disk by chance; None if it is gone."""
        inode = self._durable_names.inodes.get(str(path))
        return None if inode is None else bytes(inode.durable[: inode.durable_size])

    def durable_files_in(self, folder: Path) -> list[Path]:
        """The files whose names are durable."""
        names = self._durable_names
        return [Path(path) for path in names.children(str(folder)) if names.inodes[path] is not None]

    def _change_names(self, folder: Path, step: Step) -> None:
        step(self._names)
        self._journal.append((str(folder), step))

    def write(self, path: Path, inode: Inode, position: int, data: Buffer) -> None:
        """pwrite."""
        self.system_call("pwrite", path)
        if self.full or self.broken_writes:
            inode.write(position, data[: self._random.randint(0, len(data))])
            self._refuse_if_full()
            self.broken_writes -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.write(position, data)

    def free_bytes(self, folder: Path) -> int:
        return 0 if self.full else 1 << 40

    def _refuse_if_full(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def set_size(self, path: Path, inode: Inode, size: int) -> None:
        """ftruncate."""
        self.system_call("ftruncate", path)
        inode.size = size

        def keep(_: Names) -> None:
            inode.durable_size = size

        self._journal.append((inode, keep))

    def zero_from(self, path: Path, inode: Inode, position: int) -> None:
        """fallocate: a hole up to the file's end."""
        self.system_call("fallocate", path)
        self.cutting(path, position)
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
        name = str(folder)
        done = max((at for at, (of, _) in enumerate(self._journal, 1) if of in (name, ALL_FOLDERS)), default=0)
        ordered = max((at for at, (of, _) in enumerate(self._journal[:done], 1) if of == ALL_FOLDERS), default=0)
        left: list[tuple[str | Inode, Step]] = []
        for at, (of, step) in enumerate(self._journal[:done]):
            if at < ordered or self._has_one_journal or _leads_to(of, name):
                step(self._durable_names)
            else:
                left.append((of, step))
        self._journal[:done] = left

    def list_segments(self, folder: Path) -> list[tuple[int, int]]:
        return sorted((int(name), size) for name, size in self.files_in(folder))

    def open_segment(self, path: Path, file_size: int, writable: bool) -> MappedFile:
        return SimFile(self, path, self._inode(path), file_size)

    def create_segment(self, path: Path, file_size: int) -> MappedFile:
        inode = self._create(path, file_size)
        self.set_size(path, inode, file_size)
        return SimFile(self, path, inode, file_size)

    def give_size(self, path: Path, size: int) -> None:
        self.set_size(path, self._inode(path), size)

    def _create(self, path: Path, capacity: int) -> Inode:
        self.system_call("create", path)
        self._refuse_if_full()
        name = str(path)
        if name in self._names.inodes:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        inode = Inode(capacity)
        self._change_names(path.parent, lambda names: names.add(name, inode))
        return inode

    def _inode(self, path: Path | str) -> Inode:
        inode = self._names.inodes.get(str(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def exists(self, path: Path) -> bool:
        return str(path) in self._names.inodes

    def is_folder(self, path: Path) -> bool:
        return self._names.inodes.get(str(path), self) is None

    def folders_in(self, folder: Path) -> list[str]:
        names = self._names
        return [path.rpartition("/")[2] for path in names.children(str(folder)) if names.inodes[path] is None]

    def files_in(self, folder: Path) -> list[tuple[str, int]]:
        names = self._names
        found = ((path.rpartition("/")[2], names.inodes[path]) for path in names.children(str(folder)))
        return [(name, inode.size) for name, inode in found if inode is not None]

    def size(self, path: Path) -> int:
        return self._inode(path).size

    def make_folder(self, folder: Path) -> None:
        name = str(folder)
        if name in self._names.inodes:
            return
        if folder != folder.parent:
            self.make_folder(folder.parent)
        self.system_call("mkdir", folder)
        self._change_names(folder.parent, lambda names: names.add(name, None))

    def touch(self, path: Path) -> None:
        if not self.exists(path):
            self._create(path, 0)

    def remove(self, path: Path, missing_ok: bool = False) -> None:
        self.system_call("unlink", path)
        if missing_ok and not self.exists(path):
            return
        self._inode(path)
        self.cutting(path, 0)
        self._drop_name(path)

    def _remove_name(self, path: Path) -> None:
        self.system_call("rmdir" if self.is_folder(path) else "unlink", path)
        self._drop_name(path)

    def _drop_name(self, path: Path) -> None:
        name = str(path)
        self._change_names(path.parent, lambda names: names.drop(name))

    def remove_tree(self, path: Path) -> None:
        """Each file and folder by a call of its own, as no file system does it at once."""
        for found in reversed(self._names.below(str(path))):
            self._remove_name(Path(found))
        if self.exists(path):
            self._remove_name(path)

    def remove_if_empty(self, folder: Path) -> None:
        if self.is_folder(folder) and not self._names.children(str(folder)):
            self._remove_name(folder)

    def rename(self, path: Path, new_path: Path) -> None:
        self.system_call("rename", path)
        name, new_name = str(path), str(new_path)

        def move(names: Names) -> None:
            if name in names.inodes:
                for old in [*reversed(names.below(new_name)), new_name]:
                    names.drop(old)
                names.move(name, new_name)

        is_folder = self.is_folder(path)
        if path.name == LOG_FOLDER and is_folder:
            self.folders_renamed += 1
        move(self._names)
        self._journal.append((ALL_FOLDERS if is_folder else str(new_path.parent), move))

    def link(self, path: Path, new_path: Path) -> None:
        self.system_call("link", path)
        inode, name = self._inode(path), str(new_path)
        if name in self._names.inodes:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._change_names(new_path.parent, lambda names: names.add(name, inode))

    def identity(self, path: Path) -> tuple[int, ...]:
        inode = self._inode(path)
        return inode.number, inode.size, inode.writes

    def now(self) -> datetime:
        self._named += 1
        return FIRST_NAME + timedelta(milliseconds=self._named)

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

    def replace(self, path: Path, content: bytes, mode: int | None = None) -> None:
        self.make_folder(path.parent)
        temporary = path.with_name(path.name + ".tmp")
        if self.exists(temporary):
            self.remove(temporary)
        self.write_new(temporary, [content])
        self.rename(temporary, path)
        self.sync_folder(path.parent)

    def open_pages(self, path: Path | str) -> Readable:
        return SimPages(self._inode(path))

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
            elif inode := self._names.inodes.get(str(file.path)):
                self.sync_file(file.path, inode)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        content = b"".join(pieces)
        inode = self._create(path, len(content))
        self.write(path, inode, 0, content)
        self.set_size(path, inode, len(content))
        self.sync_file(path, inode)
