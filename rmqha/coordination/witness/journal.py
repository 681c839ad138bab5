"""The witness's journal: one file of entries. All functions here block, and are called in one thread at a time.

The file begins with an entry that holds the whole state; each further entry holds the operations of one commit. The
next entry is written only after the one before it has reached the disk. So a crash can leave only the last entry
incomplete, and anything else is damage. The number of each entry is noted in a second place before it is answered
(``counted``): a journal that lacks answered entries is an older copy, and its cluster gets another id. A file that has
grown is replaced by a new one, which begins with the state at that moment.
"""

import errno
import fcntl
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Never
from zlib import crc32

import orjson

from rmqha.coordination.interface import KeyValue
from rmqha.coordination.state import KeysAndLeases, Operation, from_json, to_json
from rmqha.coordination.witness.counted import AnsweredUpTo, CountedFile

MAGIC = b"\xf7RW\x01"
"""Begins each entry. It is not UTF-8, so no content of an entry contains it."""
HEAD = Struct(">4sIQI")
"""The magic, the content's length, the entry's number, and a CRC of the three other parts."""
MAX_ENTRY_BYTES = 64 * 1024**2
ROTATE_BYTES = 4 * 1024**2
"""The file is replaced when it has this much more than its first entry."""
NAME = "journal-"
TEMPORARY = ".new"


class JournalError(Exception):
    """The journal cannot be used. The text says why, and what to do."""


class JournalInUse(JournalError):
    """Another process has the folder."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
COUNTED_MARK = "counted"
"""In the lock file: the answered number was noted."""
RENEW = (
    "Then start the name server: the witness goes on as another cluster, and the leader, which knows better, writes "
    "its keys again"
)


class DiskFull(Exception):
    """An entry was not written: the disk is full. The journal is as it was before."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An incomplete last entry that was cut: where it began, and the file that has it now."""

    offset: int
    kept: Path


def encode_entry(number: int, content: bytes) -> bytes:
    """The bytes of an entry."""
    checked = HEAD.pack(MAGIC, len(content), number, 0)
    return HEAD.pack(MAGIC, len(content), number, crc32(content, crc32(checked))) + content


def entry_at(data: bytes, offset: int) -> tuple[int, bytes] | None:
    """The number and the content of the entry that begins here; None if there is no sound one."""
    if len(data) - offset < HEAD.size:
        return None
    magic, length, number, crc = HEAD.unpack_from(data, offset)
    start = offset + HEAD.size
    if magic != MAGIC or length > min(MAX_ENTRY_BYTES, len(data) - start):
        return None
    content = data[start : start + length]
    return (number, content) if crc32(content, crc32(HEAD.pack(magic, length, number, 0))) == crc else None


def _sound_entry_after(data: bytes, offset: int) -> int | None:
    """Where the first sound entry behind this offset begins; None if there is none."""
    while (offset := data.find(MAGIC, offset + 1)) >= 0:
        if entry_at(data, offset) is not None:
            return offset
    return None


def _state_to_json(cluster_id: int, state: KeysAndLeases) -> bytes:
    keys = [
        [each.key, b64encode(each.value).decode("ascii"), each.create_revision, each.mod_revision, each.lease]
        for each in state.keys.values()
    ]
    leases = list(state.leases.items())
    return orjson.dumps({"cluster": cluster_id, "revision": state.revision, "keys": keys, "leases": leases})


def _state_from_json(content: bytes) -> tuple[int, KeysAndLeases]:
    """Raises ValueError, KeyError, TypeError."""
    found = orjson.loads(content)
    keys = [KeyValue(key, b64decode(value), *rest) for key, value, *rest in found["keys"]]
    return int(found["cluster"]), KeysAndLeases(int(found["revision"]), keys, dict(found["leases"]))


class Journal:
    """The open journal of a folder that no other process has. ``state`` is what it held when it was opened."""

    def __init__(self, folder: Path, rotate_bytes: int = ROTATE_BYTES) -> None:
        """Open or create it. Raises JournalError, OSError."""
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self.cut: Cut | None = None
        """The incomplete entry that was found at the end, if any."""
        self.is_new = False
        """Whether the folder had no journal."""
        self.renewed: str | None = None
        """Why the cluster got another id; None if it has the one that it had."""
        self._fd = -1
        self._number = self._generation = 0
        self.state = KeysAndLeases()
        self._path = folder
        self._counted: CountedFile | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._counted = CountedFile(folder)
            self._open()
            self._check_count(self._counted)
        except BaseException:  # of any kind: no file stays open, and the caller sees it
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(f"{self._folder} is in use by another process") from None

    def _open(self) -> None:
        found = sorted(self._folder.glob(f"{NAME}*[0-9a-f]"))
        for leftover in self._folder.glob(f"{NAME}*{TEMPORARY}"):
            leftover.unlink()
        if found:
            self._read(found[-1])
            for older in found[:-1]:  # a crash came between the new file and the end of this one
                older.unlink()
        else:
            self._create()

    def _check_count(self, counted: CountedFile) -> None:
        """The cluster gets another id if the journal lacks what was answered. Then all that is here counts."""
        was_counted = self._marks()[1:] == [COUNTED_MARK]
        newest = AnsweredUpTo(self.cluster_id, self._number)
        if self.is_new:
            reason = None
        elif not counted.is_there:
            reason = "the number of its last answered entry is gone" if was_counted else None
        elif None in counted.read:
            reason = "the number of its last answered entry cannot be read"
        elif any(each.cluster_id != self.cluster_id for each in counted.read if each is not None):
            reason = "the last answers were of another cluster"
        else:
            number = max(each.number for each in counted.read if each is not None)
            is_behind = number > self._number
            reason = f"entry {number} was answered, and its last one is {self._number}" if is_behind else None
        if reason is None:
            counted.write(newest)
            self._mark()
        else:
            self.renew(reason)

    def _marks(self) -> list[str]:
        """What the lock file says: the cluster's id, and whether answers are counted."""
        return os.pread(self._lock_fd, 100, 0).decode("ascii", "replace").split()

    def _mark(self) -> None:
        if self._marks() != [f"{self.cluster_id:x}", COUNTED_MARK]:
            mark = f"{self.cluster_id:x} {COUNTED_MARK}\n".encode()
            os.pwrite(self._lock_fd, mark, 0)
            os.ftruncate(self._lock_fd, len(mark))
            os.fsync(self._lock_fd)

    def renew(self, reason: str) -> None:
        """Give the cluster another id, with the keys that are here. Raises OSError, JournalError."""
        assert self._counted is not None, "it is open"
        before = self._path
        self.cluster_id = secrets.randbits(62) + 1
        self.renewed = reason
        self._begin(self.state)
        before.unlink()
        self._counted.write(AnsweredUpTo(self.cluster_id, self._number))
        self._mark()

    def _create(self) -> None:
        known = self._marks()
        if known:
            raise JournalError(
                f"{self._folder} had the journal of the cluster {known[0]}, and has none now. Leave the nodes running. "
                f"Put a copy of the file {NAME}… back, or delete {self._folder / 'lock'} to begin without keys. {RENEW}"
            )
        self.is_new = True
        self.cluster_id = secrets.randbits(62) + 1
        self._begin(self.state)

    def _begin(self, state: KeysAndLeases) -> None:
        """Write a new file, which begins with this state, and use it from now on.

        Raises OSError if nothing was changed, JournalError if neither file can be used further.
        """
        generation = self._generation + 1
        path = self._folder / f"{NAME}{generation:016x}"
        temporary = path.with_name(path.name + TEMPORARY)
        entry = encode_entry(self._number, _state_to_json(self.cluster_id, state))
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, entry, 0)
            os.fsync(fd)
        except BaseException:  # of any kind: no half file stays, and the caller sees it
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        try:
            temporary.rename(path)
            self._sync_folder()
        except OSError as error:
            os.close(fd)
            raise JournalError(
                f"{self._folder}: nobody knows which journal the next start would find: {error}"
            ) from error
        before, self._fd = self._fd, fd
        if before >= 0:
            os.close(before)
        self._generation, self._path = generation, path
        self._end = self._first_end = len(entry)

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self, path: Path) -> None:
        self._path = path
        self._generation = int(path.name.removeprefix(NAME), 16)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        data = path.read_bytes()
        first = entry_at(data, 0)
        if first is None:
            raise self._damaged(0)
        self._number = first[0]
        try:
            self.cluster_id, self.state = _state_from_json(first[1])
        except (ValueError, KeyError, TypeError):
            raise self._damaged(0) from None
        self._end = self._first_end = HEAD.size + len(first[1])
        self._replay(data)
        if self._end < len(data):
            self._cut_tail(data)

    def _replay(self, data: bytes) -> None:
        while self._end < len(data):
            found = entry_at(data, self._end)
            if found is None:
                if _sound_entry_after(data, self._end) is not None:
                    raise self._damaged(self._end)
                return
            number, content = found
            try:
                self._do_again(number, orjson.loads(content))
            except (ValueError, KeyError, TypeError):
                raise self._damaged(self._end) from None
            self._end += HEAD.size + len(content)

    def _do_again(self, number: int, entry: Any) -> None:
        """Raises ValueError, KeyError, TypeError for an entry that does not follow."""
        if number != self._number + 1:
            raise ValueError("an entry is missing")
        for operation in entry["operations"]:
            self.state.apply(from_json(operation), 0.0)
        if entry["revision"] != self.state.revision:
            raise ValueError("the revision is another")
        self._number = number

    def _damaged(self, offset: int) -> JournalError:
        return JournalError(
            f"{self._path} is damaged at byte {offset}. Nothing was changed. Leave the nodes running. Put back a sound "
            f"copy of this file, also an old one, or move {self._folder} away to begin without keys. {RENEW}"
        )

    def _cut_tail(self, data: bytes) -> None:
        folder = self._folder / "cut"
        folder.mkdir(exist_ok=True)
        kept = folder / f"{self._path.name}-{self._end}-{secrets.token_hex(4)}"
        with kept.open("xb") as file:
            file.write(data[self._end :])
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)
        self.cut = Cut(self._end, kept)

    def append(self, operations: Sequence[Operation], revision: int) -> None:
        """Write the operations of a commit. They are on the disk when this returns. ``revision`` is that after them.

        Raises DiskFull. Any other OSError leaves it unknown what the disk has: the journal may not be used further.
        """
        content = orjson.dumps({"revision": revision, "operations": [to_json(each) for each in operations]})
        entry = encode_entry(self._number + 1, content)
        try:
            _write_all(self._fd, entry, self._end)
        except OSError as error:
            self._take_back(error)
        os.fdatasync(self._fd)
        try:
            assert self._counted is not None, "it is open"
            self._counted.write(AnsweredUpTo(self.cluster_id, self._number + 1))
        except OSError as error:
            self._take_back(error)
        self._end += len(entry)
        self._number += 1

    def _take_back(self, error: OSError) -> Never:
        """The entry is not to be answered. Raises DiskFull, or the error."""
        os.ftruncate(self._fd, self._end)
        if error.errno in FULL:
            raise DiskFull(os.strerror(error.errno)) from error
        raise error

    @property
    def is_long(self) -> bool:
        """Whether it should be replaced by a shorter one."""
        return self._end - self._first_end > self._rotate_bytes

    def rotate(self, state: KeysAndLeases) -> None:
        """Replace the file by one that begins with this state.

        Raises OSError; the old file is then used further. Raises JournalError if neither can be used further.
        """
        before = self._path
        try:
            self._begin(state)
        except OSError:
            self._first_end = self._end  # not again for a while
            raise
        before.unlink()

    def close(self) -> None:
        """Close the file, and give the folder up."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1
        if self._counted is not None:
            self._counted.close()
            self._counted = None


def _write_all(fd: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written
