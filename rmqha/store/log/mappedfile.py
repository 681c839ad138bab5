"""Segments: files of one size, named by the offset of their first byte (spec/store.md 2).

They are written with ``pwrite`` and read through a read-only mapping. The kernel keeps both coherent. A full or broken
disk raises OSError instead of sending a signal, and segments stay sparse (ARCHITECTURE.md, "Writes use pwritev").
"""

import ctypes
import errno
import mmap
import os
import resource
import shutil
import stat
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import IO, Protocol

from rmqha.store.errors import NoStore, StoreError, name_file
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.room import room_of
from rmqha.wire.record import Buffer

FILE_NAME_DIGITS = 20
SOFT_LIMIT, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
OTHER_FILES = 32
MAX_UNFLUSHED_FILES = max(4, (SOFT_LIMIT - OTHER_FILES) // 7) if SOFT_LIMIT != resource.RLIM_INFINITY else 1 << 16
"""How many unflushed segments a queue keeps open. Each takes two of the process's file descriptors, and
two more while a flush uses it."""
MAX_OPEN_FILES = min(64, MAX_UNFLUSHED_FILES)
"""If a queue has more segments open than this, it closes flushed ones."""
SEARCH_BYTES = 1 << 20
ZEROS = bytes(SEARCH_BYTES)
COMMIT_LOG_SIZE_KEY = "mappedFileSizeCommitLog"
MAX_PIECES = os.sysconf("SC_IOV_MAX")


_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_syncfs = ctypes.CDLL(None, use_errno=True).syncfs
_syncfs.argtypes = (ctypes.c_int,)
MANY_FILES = 256
"""More unflushed files than this are flushed by one call for the whole file system."""
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def _punch_hole(fd: int, position: int, size: int) -> None:
    """Free the blocks of a range of the file, which then reads as zero. Raises OSError."""
    if size and _fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, position, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def data_ranges(fd: int, position: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of a sparse file from ``position`` to ``end`` that are not holes. Raises OSError.

    If the file system cannot tell holes from data, all of it is one range.
    """
    while position < end:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            position = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            if error.errno != errno.EINVAL:
                raise
            start, position = position, end
        if start < end:
            yield start, min(position, end)


def file_name(base_offset: int) -> str:
    """The name of the segment that starts at ``base_offset``: 20 digits."""
    return f"{base_offset:0{FILE_NAME_DIGITS}d}"


class MappedFile:
    """One segment of full size. ``segment`` is its read-only content."""

    def __init__(self, path: Path, file_size: int, writable: bool = True) -> None:
        self.path = path
        self.base_offset = int(path.name)
        self.file_size = file_size
        self._fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            self.segment: mmap.mmap | memoryview = mmap.mmap(self._fd, file_size, access=mmap.ACCESS_READ)
        except BaseException:  # of any kind: close the file, then raise it again
            os.close(self._fd)
            raise
        self._finalizer = weakref.finalize(self, os.close, self._fd)

    def close(self) -> None:
        """Close the file. It also closes once nothing, in any thread, refers to this object."""
        self._finalizer()

    @classmethod
    def create(cls, path: Path, file_size: int) -> "MappedFile":
        """Create a sparse segment. Raises FileExistsError, OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(fd, file_size)
            return cls(path, file_size)
        except BaseException as error:  # of any kind: close the file, then raise it again
            path.unlink()  # otherwise the next attempt would fail because it exists
            if isinstance(error, OSError):
                name_file(error, path)
            raise
        finally:
            os.close(fd)

    @property
    def end_offset(self) -> int:
        """The offset that follows the segment."""
        return self.base_offset + self.file_size

    def holds(self, offset: int) -> bool:
        """Whether this offset is in the segment."""
        return self.base_offset <= offset < self.base_offset + self.file_size

    def write(self, position: int, *pieces: Buffer) -> None:
        """Write all pieces at ``position``, one after another. Raises OSError."""
        try:
            self._write(position, *pieces)
        except OSError as error:
            name_file(error, self.path)
            raise

    def _write(self, position: int, *pieces: Buffer) -> None:
        if len(pieces) == 1 and os.pwritev(self._fd, pieces, position) == len(pieces[0]):
            return
        for start in range(0, len(pieces), MAX_PIECES):
            some = pieces[start : start + MAX_PIECES]
            size = sum(map(len, some))
            written = os.pwritev(self._fd, some, position)
            if written < size:  # a signal, or a nearly full disk: the next write raises its error
                rest = memoryview(b"".join(some))
                while written < size:
                    written += os.pwrite(self._fd, rest[written:], position + written)
            position += size

    def zero_from(self, position: int) -> None:
        """Make everything from ``position`` on read as zero, and sparse if the file system can. Raises OSError.

        The file keeps its size throughout, because a shorter file could not be opened after a crash.
        """
        try:
            _punch_hole(self._fd, position, self.file_size - position)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            for start, end in self.data_ranges(position):
                for at in range(start, end, SEARCH_BYTES):
                    self.write(at, bytes(min(SEARCH_BYTES, end - at)))

    def sync(self) -> None:
        """Flush every byte written so far to the disk. May run in another thread. Raises OSError."""
        os.fdatasync(self._fd)

    def nonzero_end(self, position: int) -> int | None:
        """Where the last nonzero byte from ``position`` on ends. None if all are zero."""
        found = None
        for start, end in self.data_ranges(position):
            for at in range(start, end, SEARCH_BYTES):
                piece = bytes(self.segment[at : min(at + SEARCH_BYTES, end)])
                if piece != ZEROS[: len(piece)]:  # comparing is much faster than stripping
                    found = at + len(piece.rstrip(b"\0"))
        return found

    def data_ranges(self, position: int) -> Iterator[tuple[int, int]]:
        """Ranges from ``position`` on that are not holes of the sparse file."""
        return data_ranges(self._fd, position, self.file_size)


class Syncable(Protocol):
    """A file that can be flushed to the disk, also in another thread."""

    def sync(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UnflushedFile:
    """A closed file that is to be flushed to the disk. There may be more of these than can be open at once."""

    path: Path

    @property
    def base_offset(self) -> int:
        """The offset that is the file's name."""
        return int(self.path.name)

    def sync(self) -> None:
        """Flush every byte written so far to the disk. Ignores a file that was deleted. Raises OSError."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class UnflushedFolder:
    """A folder with new files, whose names are to be flushed. Flushing the files themselves does not ensure that."""

    path: Path

    def sync(self) -> None:
        """Flush the names to the disk. Ignores a folder that was deleted. Raises OSError."""
        with suppress(FileNotFoundError):
            sync_folder(self.path)


def sync_all(files: Sequence[Syncable]) -> None:
    """Flush these files to the disk. If they are very many, flush their whole file system at once. Raises OSError."""
    few = [file for file in files if not isinstance(file, UnflushedFile | UnflushedFolder)]
    many = [file for file in files if isinstance(file, UnflushedFile | UnflushedFolder)]
    if len(many) > MANY_FILES:
        sync_file_system(many[0].path.parent)
    else:
        few += many
    for file in few:
        file.sync()


def sync_file_system(folder: Path) -> None:
    """Flush all that was written to the file system of this folder. Raises OSError."""
    while not folder.exists():  # it was deleted meanwhile
        folder = folder.parent
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


class Readable(Protocol):
    """A file for reading a few bytes at a time, at any position."""

    def read(self, position: int, size: int) -> bytes: ...

    def data_ranges(self, position: int, end: int) -> Iterator[tuple[int, int]]: ...

    def close(self) -> None: ...


class Viewed(Protocol):
    """A whole file for reading. ``content`` stays valid after ``close``."""

    @property
    def size(self) -> int: ...

    @property
    def content(self) -> mmap.mmap | bytes: ...

    def data_ranges(self, position: int, end: int) -> Iterator[tuple[int, int]]: ...

    def close(self) -> None: ...


class Fronted(Protocol):
    """A file whose first bytes are written through ``front``, and the rest by ``write``. ``content`` is all of it."""

    @property
    def front(self) -> mmap.mmap | memoryview: ...

    @property
    def content(self) -> mmap.mmap | memoryview: ...

    def write(self, position: int, data: Buffer) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that is held."""

    def release(self) -> None: ...


class PagesRead:
    """A file read without read-ahead, so that only the pages in use enter the page cache. Several threads may read."""

    def __init__(self, path: Path | str) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes. Raises OSError."""
        return os.pread(self._fd, size, position)

    def data_ranges(self, position: int, end: int) -> Iterator[tuple[int, int]]:
        """As the function of the same name."""
        return data_ranges(self._fd, position, end)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class FileView:
    """A whole file, read through a mapping."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY)
        try:
            self.size: int = os.fstat(self._fd).st_size
            self.content: mmap.mmap | bytes = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) if self.size else b""
        except BaseException:  # of any kind: close the file, then raise it again
            os.close(self._fd)
            raise

    def data_ranges(self, position: int, end: int) -> Iterator[tuple[int, int]]:
        """As the function of the same name."""
        return data_ranges(self._fd, position, end)

    def close(self) -> None:
        """Close the file; ``content`` stays."""
        os.close(self._fd)


class FrontMappedFile:
    """A sparse file whose first bytes are written at random places through a mapping. The rest is appended.

    The blocks of the mapping are reserved: otherwise a write to a full disk would send a signal, not raise OSError.
    """

    def __init__(self, path: Path, file_size: int, front_bytes: int, create: bool) -> None:
        """Raises FileExistsError, OSError."""
        self._path = path
        fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o644)
        try:
            if create:
                os.ftruncate(fd, file_size)
            # Whole pages: a write to the mapping allocates all blocks of a page, and SIGBUS is the error if that fails.
            os.posix_fallocate(fd, 0, min(file_size, -(-front_bytes // mmap.PAGESIZE) * mmap.PAGESIZE))
            self.content: mmap.mmap | memoryview = mmap.mmap(fd, file_size, access=mmap.ACCESS_READ)
            self.front: mmap.mmap | memoryview = mmap.mmap(fd, front_bytes)
        except BaseException as error:  # of any kind: close the file, then raise it again
            os.close(fd)
            if create:  # otherwise the next attempt would fail because it exists
                path.unlink()
            if isinstance(error, OSError):
                name_file(error, path)
            raise
        self._fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd)

    def close(self) -> None:
        """Close the file. It also closes once nothing, in any thread, refers to this object."""
        self._finalizer()

    def write(self, position: int, data: Buffer) -> None:
        """Write all of ``data`` at ``position``. Raises OSError."""
        try:
            while data:  # a nearly full disk writes only a part at first
                written = os.pwrite(self._fd, data, position)
                data, position = memoryview(data)[written:], position + written
        except OSError as error:
            name_file(error, self._path)
            raise

    def sync(self) -> None:
        """Flush every byte written so far to the disk. May run in another thread. Raises OSError."""
        os.fdatasync(self._fd)


class Disk:
    """The file system as a store uses it. ``rmqha.testing.sim`` has one in memory. All methods raise OSError."""

    def list_segments(self, folder: Path) -> list[tuple[int, int]]:
        """As the function of the same name."""
        return list_segments(folder)

    def open_segment(self, path: Path, file_size: int, writable: bool) -> MappedFile:
        """Open the segment in an existing file."""
        return MappedFile(path, file_size, writable)

    def create_segment(self, path: Path, file_size: int) -> MappedFile:
        """Create a sparse segment. Raises FileExistsError."""
        return MappedFile.create(path, file_size)

    def give_size(self, path: Path, size: int) -> None:
        """Let a file have this size. What it gains is zeros."""
        os.truncate(path, size)

    def free_bytes(self, folder: Path) -> int:
        """How many bytes its file system has room for."""
        return room_of(folder).free

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder of this name."""
        return path.exists()

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder of this name."""
        return path.is_dir()

    def folders_in(self, folder: Path) -> list[str]:
        """The names of the folders in a folder, unsorted. Empty if the folder is missing."""
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files_in(self, folder: Path) -> list[tuple[str, int]]:
        """Names and sizes in bytes of the files in a folder, unsorted. Empty if the folder is missing."""
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # a running node deletes expired files
                        if entry.is_file():
                            found.append((entry.name, entry.stat().st_size))
        except (FileNotFoundError, NotADirectoryError):
            pass
        return found

    def make_folder(self, folder: Path) -> None:
        """Make a folder and its parents, if they are missing."""
        folder.mkdir(parents=True, exist_ok=True)

    def remove(self, path: Path, missing_ok: bool = False) -> None:
        """Delete a file. Raises FileNotFoundError, unless ``missing_ok``."""
        path.unlink(missing_ok)

    def remove_durably(self, path: Path) -> None:
        """Delete a file, if there is one, so that it does not come back when power is lost. Raises OSError."""
        if self.exists(path):
            self.remove(path)
            self.sync_folder(path.parent)

    def remove_tree(self, path: Path) -> None:
        """Delete a file, or a folder with its content. Ignores a missing one. Of a link only the link is deleted."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def remove_if_empty(self, folder: Path) -> None:
        """Delete a folder if it is empty. Ignores a missing one."""
        with suppress(OSError):
            folder.rmdir()

    def touch(self, path: Path) -> None:
        """Create an empty file if there is no file of this name."""
        path.touch()

    def rename(self, path: Path, new_path: Path) -> None:
        """Give a file or folder another name."""
        path.rename(new_path)

    def sync_folder(self, folder: Path) -> None:
        """Flush a folder's entries to the disk: files created, renamed and deleted in it."""
        sync_folder(folder)

    def size(self, path: Path) -> int:
        """The size of a file in bytes. Raises FileNotFoundError."""
        return path.stat().st_size

    def link(self, path: Path, new_path: Path) -> None:
        """Give a file a second name."""
        os.link(path, new_path)

    def identity(self, path: Path) -> tuple[int, ...]:
        """Inode, size in bytes, and time of the last change in ns. If all are equal, the file has not changed."""
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def now(self) -> datetime:
        """The time that names of files are made of."""
        return datetime.now()

    def modified_time(self, path: Path) -> float:
        """When the file was last written to, in seconds since the epoch."""
        return path.stat().st_mtime

    def read(self, path: Path) -> bytes:
        """The content of a file. Raises FileNotFoundError."""
        return path.read_bytes()

    def overwrite(self, path: Path, content: bytes, file_size: int) -> None:
        """Overwrite the first bytes of a file in one write, and flush it. Gives the file ``file_size`` bytes."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size != file_size:
                os.ftruncate(fd, file_size)
            os.pwrite(fd, content, 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        """Write these pieces to a new file, and flush it. Pieces of zeros become holes."""
        try:
            with path.open("wb") as file:
                for piece in pieces:
                    if piece == bytes(len(piece)):
                        file.seek(len(piece), os.SEEK_CUR)
                    else:
                        file.write(piece)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            name_file(error, path)
            raise

    def replace(self, path: Path, content: bytes, mode: int | None = None) -> None:
        """Replace a file atomically and durably. Makes its folder if it is missing.

        The new file has the permissions ``mode``, if given, before it has any content: a secret is never readable for
        others. Else it has those of any new file.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        try:
            with temporary.open("wb") if mode is None else _created(temporary, mode) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            name_file(error, temporary)
            raise
        temporary.rename(path)
        sync_folder(path.parent)

    def open_pages(self, path: Path | str) -> Readable:
        """Open a file for reading a few bytes at a time."""
        return PagesRead(path)

    def open_view(self, path: Path) -> Viewed:
        """Open a whole file for reading."""
        return FileView(path)

    def open_fronted(self, path: Path, file_size: int, front_bytes: int, create: bool) -> Fronted:
        """Open a file of this size whose first bytes are written through a mapping. Raises FileExistsError."""
        return FrontMappedFile(path, file_size, front_bytes, create)

    def lock(self, path: Path) -> Lock:
        """Lock a file for this process alone. Creates it if it is missing. Raises StoreInUse."""
        return LockFile(path)

    def sync_all(self, files: Sequence[Syncable]) -> None:
        """As the function of the same name."""
        sync_all(files)


def _created(path: Path, mode: int) -> IO[bytes]:
    """A new file with these permissions, open for writing. A file that a crash has left is deleted first."""
    path.unlink(missing_ok=True)
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600), "wb")
    os.fchmod(file.fileno(), mode)
    return file


DISK = Disk()


class MappedFileQueue:
    """The segments of one folder: contiguous, of equal size, and opened when they are needed."""

    def __init__(
        self,
        folder: Path,
        file_size: int,
        writable: bool = True,
        syncs_parent: bool = False,
        size_key: str = COMMIT_LOG_SIZE_KEY,
        disk: Disk = DISK,
    ) -> None:
        """Raises StoreError if the folder's files cannot be such segments, OSError.

        With ``syncs_parent`` a new folder is flushed to the disk before its first file. ``size_key`` is the setting
        that has the file size.
        """
        self._disk = disk
        self._size_key = size_key
        self._syncs_parent = syncs_parent
        self.folder = folder
        self.file_size = file_size
        self._writable = writable
        self._open: OrderedDict[int, MappedFile] = OrderedDict()
        self.flushed_early: set[int] = set()
        """The base offsets of segments that ``flush_surplus`` has flushed. Clear it when one is written again."""
        sizes = self._disk.list_segments(self.folder)
        self._bases = [base for base, _ in self._checked(sizes)]

    def _checked(self, sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        first_empty = next((at for at, (_, size) in enumerate(sizes) if size == 0), len(sizes))
        if all(self._is_unwritten(base, size) for base, size in sizes[first_empty:]):
            while len(sizes) > first_empty:  # a crash came before they got their sizes
                unwritten, _ = sizes.pop()
                if self._writable:
                    self._disk.remove(self.folder / file_name(unwritten))
        expected = sizes[0][0] if sizes else 0
        for base, size in sizes:
            if size != self.file_size or base % self.file_size or base != expected:
                raise StoreError(self._problem_of(base, size, expected))
            expected = base + self.file_size
        return sizes

    def _is_unwritten(self, base: int, size: int) -> bool:
        """Whether the file has no byte other than zero.

        A file without a size may have one after it that was flushed earlier: after a loss of power, because a slave
        had cut an incomplete record there.
        """
        if size != self.file_size:
            return size == 0
        mapped_file = self._disk.open_segment(self.folder / file_name(base), size, writable=False)
        try:
            return mapped_file.nonzero_end(0) is None
        finally:
            mapped_file.close()

    def _problem_of(self, base: int, size: int, expected: int) -> str:
        path = self.folder / file_name(base)
        if size != self.file_size:
            problem = f"{path} has {size} bytes, not {self.file_size} ({self._size_key})"
            return problem + self._remedy() if size < self.file_size else problem
        if base % self.file_size:
            return f"{path}: the name is not a multiple of the file size {self.file_size}"
        missing = self.folder / file_name(expected)
        return f"{missing} is missing; the next segment is {path.name}{self._remedy()}"

    def _remedy(self) -> str:
        if self._size_key != COMMIT_LOG_SIZE_KEY:
            return ""
        return f": 'rmqha repair {quote(str(self.folder.parent))} --from REPLICA' brings the bytes back"

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def has_open_files(self) -> bool:
        """Whether any segment is open."""
        return bool(self._open)

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments, ascending."""
        return list(self._bases)

    @property
    def first_base(self) -> int | None:
        """The base offset of the first segment. None without segments."""
        return self._bases[0] if self._bases else None

    @property
    def end_offset(self) -> int:
        """The offset that follows the last segment. 0 without segments."""
        return self._bases[-1] + self.file_size if self._bases else 0

    def find(self, offset: int) -> MappedFile | None:
        """The segment that holds ``offset``, None if no segment does. Raises OSError."""
        if not self._bases or not self._bases[0] <= offset < self.end_offset:
            return None
        base = offset - offset % self.file_size
        mapped_file = self._open.get(base)
        if mapped_file is None:
            mapped_file = self._disk.open_segment(self.folder / file_name(base), self.file_size, self._writable)
            self._open[base] = mapped_file
        self._open.move_to_end(base)
        return mapped_file

    def create(self, base_offset: int) -> MappedFile:
        """Create a segment after the last one. Raises StoreError if ``base_offset`` does not follow it, OSError."""
        if base_offset % self.file_size or (self._bases and base_offset != self.end_offset):
            raise StoreError(f"the new segment must start at {self.end_offset}, not at {base_offset}")
        if not self._disk.exists(self.folder):
            self._disk.make_folder(self.folder)
            if self._syncs_parent:
                self._disk.sync_folder(self.folder.parent)
        mapped_file = self._disk.create_segment(self.folder / file_name(base_offset), self.file_size)
        self._bases.append(base_offset)
        self._open[base_offset] = mapped_file
        return mapped_file

    def remove_last(self) -> None:
        """Delete the last segment. Raises OSError."""
        base = self._bases.pop()
        self._forget(base)
        self._disk.remove(self.folder / file_name(base))

    def remove_first(self) -> None:
        """Delete the first segment. Raises OSError."""
        base = self._bases.pop(0)
        self._forget(base)
        self._disk.remove(self.folder / file_name(base))

    def drop_deleted(self) -> int:
        """Forget the first segments, if another process has deleted their files. Returns where the first one starts.

        Raises StoreError, OSError.
        """
        first = min((base for base, _ in self._disk.list_segments(self.folder)), default=self.end_offset)
        while self._bases and self._bases[0] < first:
            self._forget(self._bases.pop(0))
        return first

    def trim_open(self, flushed_offset: int) -> None:
        """Close the least recently used segments, if too many are open. Unflushed ones stay open."""
        if len(self._open) <= MAX_OPEN_FILES:
            return
        for base in list(self._open)[: max(0, len(self._open) - MAX_OPEN_FILES)]:
            if base + self.file_size <= flushed_offset or base in self.flushed_early:
                self._forget(base)

    def flush_surplus(self, before: int) -> None:
        """Flush and close segments that end at or before ``before``, if too many are open. Waits for the disk.

        Only tiny segments need this: a broker's take longer to fill than the time between two flushes. Raises OSError.
        """
        for base in list(self._open)[: max(0, len(self._open) - MAX_UNFLUSHED_FILES)]:
            if base + self.file_size <= before:
                try:
                    self._open[base].sync()
                except OSError as error:  # of any kind: a failed flush, unlike a write, cannot be undone
                    raise OSError(errno.EIO, f"cannot flush {self._open[base].path}: {error}") from error
                self.flushed_early.add(base)
                self._forget(base)

    def _forget(self, base: int) -> None:
        """Close the segment's file as soon as no flush uses it."""
        self._open.pop(base, None)

    def close(self) -> None:
        """Close all files."""
        for mapped_file in self._open.values():
            mapped_file.close()
        self._open.clear()

    def release(self) -> None:
        """Close the files as soon as nothing uses them. They are opened again when they are needed."""
        self._open.clear()


def list_segments(folder: Path) -> list[tuple[int, int]]:
    """Base offset and size in bytes of each segment, ascending. Empty if the folder is missing.

    Raises StoreError if the folder has anything that is not a segment, OSError.
    """
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    segments = []
    for entry in entries:
        name = entry.name
        try:
            status = entry.stat()
        except FileNotFoundError:  # a running node deletes expired files
            continue
        if len(name) != FILE_NAME_DIGITS or not name.isdecimal() or not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{entry.path} is not a segment: move it elsewhere, such as by: mv {quote(entry.path)} ~")
        segments.append((int(name), status.st_size))
    segments.sort()
    return segments


def _is_segment(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file whose name is that of a segment."""
    return len(entry.name) == FILE_NAME_DIGITS and entry.name.isdecimal() and entry.is_file()


def has_segments(folder: Path) -> bool:
    """Whether a folder has a file whose name is that of a segment. False if it cannot be read. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        return any(map(_is_segment, entries))
    return False


def check_not_among_segments(folder: Path) -> None:
    """Call it before a process keeps files of its own in a folder. Links are followed.

    Another file among the segments keeps the node of that log from starting. A folder that has other files too is not
    the folder of a log. Raises NoStore, OSError.
    """
    place = folder.resolve()
    with suppress(PermissionError):
        around = next(each for each in (place, *place.parents) if each.is_dir())  # those above it hold a folder
        with os.scandir(around) as entries:
            are_segments = map(_is_segment, entries)
            is_of_a_log = next(are_segments, False) and all(are_segments)
        if is_of_a_log:
            raise NoStore(
                f"{folder} is{'' if around == place else ' inside'} the folder of segments {around}: name another "
                "place. A store is the folder above its commitlog"
            )


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk: files created, renamed and deleted in it. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
