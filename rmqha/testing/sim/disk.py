"""A disk in memory with two layers: what is written (the page cache) and what is durable.

A process that dies leaves what it has written. Without power, each sector that was not synced is the old one or the
new, and of what was done to folders and file sizes the last part may be missing, as a journal would have it.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER
from rmqha.store.derived.index import INDEX_FOLDER
from rmqha.store.errors import StoreInUse
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS, Disk, Lock, MappedFile, Readable, Syncable
from rmqha.wire.record import Buffer

SECTOR_BYTES = 512


class Inode:
    """A file without its name. ``content`` has room for all it will ever hold; it never moves, so it can be mapped."""

    def __init__(self, capacity: int) -> None:
        self.content = bytearray(capacity)
        self.size = 0
        self.durable = bytes(capacity)
        self.durable_size = 0
        self.dirty: set[int] = set()

    def write(self, position: int, data: Buffer) -> None:
        """Into the page cache."""
        end = position + len(data)
        self.content[position:end] = data
        self.dirty.update(range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def sync(self) -> None:
        """Make what is written durable."""
        durable = bytearray(self.durable)
        for sector in self.dirty:
            _copy_sector(sector, self.content, durable)
        self.durable = bytes(durable)
        self.dirty.clear()

    def after_power_loss(self, random: Random) -> "Inode":
        """The file as it is found when the power is back."""
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
    """A file of such a disk, read."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        self.close = lambda: None

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes."""
        return bytes(self._inode.content[position : min(position + size, self._inode.size)])


class SimLock:
    """A lock that is held until it is released, or its process ends."""

    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        """Let others have the file."""
        self._locked.discard(self._path)


class RealFiles:
    """Queues and index of a store: real files below ``root``, which is in memory; and what of them is durable.

    A process that dies leaves them as they are. Without power, each sector that was not synced is the old one or the
    new, and a file that never was may be missing.
    """

    def __init__(self, root: Path | None, random: Random) -> None:
        """Without a root there are none."""
        self._root = root
        self._random = random
        self._durable: dict[Path, bytes] = {}

    def _paths(self) -> list[Path]:
        if self._root is None:
            return []
        folders = (self._root / CONSUME_QUEUE_FOLDER, self._root / INDEX_FOLDER)
        return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())

    def sync(self, path: Path) -> None:
        """Make what is written to the file durable, if it is still there."""
        try:
            self._durable[path] = path.read_bytes()
        except FileNotFoundError:
            self._durable.pop(path, None)

    def lose_power(self) -> None:
        """Forget what is not durable, but for what chance has brought to the disk."""
        chance = self._random.choice((0.0, 0.5, 1.0))
        durable, self._durable = self._durable, {}
        for path in self._paths():
            content = path.read_bytes()
            known = durable.get(path)
            if known is None and self._random.random() >= chance:
                path.unlink()
                continue
            found = bytearray((known or b"").ljust(len(content), b"\0"))
            for at in range(0, len(content), SECTOR_BYTES):
                sector = slice(at, at + SECTOR_BYTES)
                if found[sector] != content[sector] and self._random.random() < chance:
                    found[sector] = content[sector]
            path.write_bytes(found)
            self._durable[path] = bytes(found)

    def wipe(self) -> None:
        """An empty disk in its place."""
        self._durable.clear()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root.mkdir(parents=True)


class SimDisk(Disk):
    """A node's disk. ``system_call`` hears of each before it is done, and may raise instead.

    Queues and index are in ``real_files`` below ``root``; all else is here.

    ``full`` refuses writes and new files with ENOSPC; ``broken_writes`` and ``broken_syncs`` count those that will fail
    with EIO. A failed sync drops the sectors' dirt, as Linux does: no later sync will write them.
    """

    def __init__(self, random: Random, root: Path | None = None) -> None:
        self._random = random
        self.real_files = RealFiles(root, random)
        self.locked: set[Path] = set()
        self._entries: dict[Path, Inode | None] = {}  # None for a folder
        self._durable_entries: dict[Path, Inode | None] = {}
        self._journal: list[tuple[Path | Inode, Callable[[dict[Path, Inode | None]], None]]] = []
        self.system_call: Callable[[str, Path], None] = lambda name, path: None
        self.full = False
        self.broken_writes = self.broken_syncs = 0
        self.folders_renamed = 0
        """A store renames its log's folder to begin anew, and no other folder."""

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
        self.real_files.lose_power()

    def wipe(self) -> None:
        """An empty disk in its place."""
        self._entries.clear()
        self._durable_entries.clear()
        self._journal.clear()
        self.real_files.wipe()
        self.heal()

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
        return sorted(
            (int(path.name), inode.size)
            for path, inode in self._entries.items()
            if path.parent == folder and inode is not None
        )

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

        def drop(entries: dict[Path, Inode | None]) -> None:
            entries.pop(path, None)

        self._change_entries(path.parent, drop)

    def rename(self, path: Path, new_path: Path) -> None:
        self.system_call("rename", path)

        def move(entries: dict[Path, Inode | None]) -> None:
            for old in [old for old in entries if old == path or path in old.parents]:
                entries[new_path / old.relative_to(path)] = entries.pop(old)

        if self._entries.get(path, self) is None:
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

    def open_pages(self, path: Path) -> Readable:
        return SimPages(self._inode(path))

    def lock(self, path: Path) -> Lock:
        self.system_call("open", path)
        if path in self.locked:
            raise StoreInUse(f"{path.parent} is in use by another process: stop it first")
        self.touch(path)
        self.locked.add(path)
        return SimLock(self.locked, path)

    def sync_all(self, files: Sequence[Syncable]) -> None:
        for file in files:
            if isinstance(file, SimFile):
                file.sync()
            else:
                path = cast(Any, file).path
                self.system_call("fdatasync", path)
                self.real_files.sync(path)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        content = b"".join(pieces)
        inode = self._create(path, len(content))
        self.write(path, inode, 0, content)
        self.set_size(path, inode, len(content))
        self.sync_file(path, inode)
