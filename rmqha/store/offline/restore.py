"""Puts bytes that recovery cut back into the log, where they fit."""

import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from rmqha.settings.settings import Settings
from rmqha.store.errors import StoreError, StoreInUse, name_file
from rmqha.store.examining import ABORT_FILE, CUT_FOLDER, LOCK_FILE, open_log
from rmqha.store.log.commitlog import segment_size_of
from rmqha.store.log.lockfile import LockFile, is_locked
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS, sync_folder
from rmqha.store.log.stretches import Survey, survey
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.wire.record import Blank, Record, RecordError, check_record
from rmqha.wire.scan import scan_records
from rmqha.wire.scanned import Scan

COPY_BYTES = 1 << 20


class DoesNotFit(StoreError):
    """The kept bytes cannot be put back. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of ``size`` bytes that recovery cut at ``offset``."""

    path: Path
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset that follows the bytes."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Restoration:
    """The result of putting kept bytes back. The log then ends at ``end``. ``messages`` counts the sound messages.

    ``bad_bytes`` are not records. ``left_bytes`` at the end of the file are an incomplete record, and stay there.
    """

    kept: Kept
    end: int
    messages: int
    bad_bytes: int
    left_bytes: int


def kept_files(root: Path) -> list[Kept]:
    """What recovery has cut off a store's log and kept, in the order of the log. Raises OSError."""
    folder = root / NODE_FOLDER / CUT_FOLDER
    if not folder.is_dir():
        return []
    found = [kept_file(path) for path in folder.iterdir()]
    return sorted((kept for kept in found if kept is not None), key=lambda kept: (kept.offset, kept.path.name))


def kept_file(path: Path) -> Kept | None:
    """The kept bytes of a file, None if its name is not that of a cut. What repairs replaced does not count."""
    name, dot, number = path.name.partition(".")
    if len(name) != FILE_NAME_DIGITS or not name.isdecimal() or (dot and not number.isdecimal()) or not path.is_file():
        return None
    return Kept(path, int(name), path.stat().st_size)


def _write_all(file: Any, piece: bytes) -> None:
    view = memoryview(piece)
    while view:  # a nearly full disk writes only a part at first
        view = view[file.write(view) :]


class KeptLog:
    """Kept bytes as the part of the log that they were, so that they can be proved without the log."""

    def __init__(self, kept: Kept, segment_size: int) -> None:
        self.segment_size = segment_size
        self._kept = kept
        self._base = -1
        self._view = memoryview(b"")

    @property
    def min_offset(self) -> int:
        """The offset of the first kept byte."""
        return self._kept.offset

    def segment_from(self, offset: int) -> tuple[int, memoryview]:
        """As the log's method. In the first segment only the kept bytes are there. Raises OSError."""
        start = offset - offset % self.segment_size
        base, end = max(self._kept.offset, start), start + self.segment_size
        if base != self._base:
            self._view = self._read(base, end)
            self._base = base
        return base, self._view

    def _read(self, base: int, end: int) -> memoryview:
        """Map the bytes, and the zeros that follow them in the segment, from a temporary file."""
        with TemporaryFile(buffering=0) as copy, self._kept.path.open("rb") as file:
            file.seek(base - self._kept.offset)
            left = end - base
            try:
                while piece := file.read(min(COPY_BYTES, left)):
                    left -= len(piece)
                    _write_all(copy, piece)
                copy.truncate(end - base)
            except OSError as error:
                name_file(error, gettempdir())
                raise
            return memoryview(mmap.mmap(copy.fileno(), end - base, access=mmap.ACCESS_READ))

    def scan(self, start: int, limit: int | None = None) -> Scan:
        """As the log's method. Raises OSError."""
        limit = self._kept.end if limit is None else min(limit, self._kept.end)
        result = Scan(end=start)
        while result.end < limit and result.problem is None:
            base, view = self.segment_from(result.end)
            segment_end = base + len(view)
            found = scan_records(view, base, result.end, min(limit, segment_end))
            result = result.then(found)
            if found.end < segment_end:
                break
        return result

    def data_ranges(self, start: int, limit: int) -> Iterator[tuple[int, int]]:
        """As the log's method. All bytes count as data. Raises OSError."""
        limit = min(limit, self._kept.end)
        while start < limit:
            end = min(limit, start - start % self.segment_size + self.segment_size)
            yield start, end
            start = end


class KeptReader:
    """The records of kept bytes, read as ``StoreReader`` reads those of a store."""

    def __init__(self, kept: Kept, settings: Settings) -> None:
        """``settings`` give the segment size if the store of the file does not show it. Raises StoreError, OSError."""
        store = kept.path.absolute().parent.parent.parent
        size = segment_size_of(store / "commitlog", settings.mapped_file_size_commit_log)
        self.log = KeptLog(kept, size)
        self.limit = kept.end

    def records(self, start: int, end: int | None) -> Iterator[tuple[int, Record | Blank]]:
        """Records and blanks with their offsets, proved one by one, from the first at or after ``start``.

        Ends before ``end``. Raises StoreError at bytes that are not a record, OSError.
        """
        at = self.log.min_offset
        limit = self.limit if end is None else min(end, self.limit)
        while at < limit:
            base, view = self.log.segment_from(at)
            try:
                found = check_record(view, at - base, at, self.log.segment_size - at % self.log.segment_size)
            except RecordError as error:
                raise StoreError(f"the bytes at {at} are not a record: {error}") from error
            if at >= start:
                yield at, found
            at += found.size if isinstance(found, Blank) else found.total_size


class Restorer:
    """Puts one file of kept bytes back into a store. Without ``changes`` it only looks."""

    def __init__(self, settings: Settings, kept: Kept, changes: bool) -> None:
        """Raises StoreInUse, StoreError, OSError."""
        self.root = settings.store_path_root_dir
        self.kept = kept
        if not changes and is_locked(self.root / LOCK_FILE):
            raise StoreInUse(f"{self.root} is in use by another process: stop it first")
        self._lock_file = LockFile(self.root / LOCK_FILE) if changes else None
        try:
            self.log = open_log(settings, owned=changes)
        except BaseException:  # of any kind: release the lock, then raise it again
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()
        self._release()

    def _release(self) -> None:
        if self._lock_file is not None:
            self._lock_file.release()

    def look(self) -> Restoration:
        """What putting the bytes back would give. Raises DoesNotFit, OSError."""
        with self.kept.path.open("rb") as file:
            self._check_place(file)
        proof: Survey = survey(KeptLog(self.kept, self.log.segment_size), self.kept.offset, self.kept.end)
        if not proof.messages:
            raise DoesNotFit("the kept bytes have no complete message")
        end = self.kept.end if proof.stretch_count else proof.end
        return Restoration(self.kept, end, proof.messages, proof.bad_bytes, self.kept.end - end)

    def _check_place(self, file: BinaryIO) -> None:
        """The log must end where the bytes start, or have the same bytes there. Raises DoesNotFit, OSError."""
        log, kept = self.log, self.kept
        if not log.min_offset <= kept.offset <= log.max_offset:
            raise DoesNotFit(
                f"the log is {log.min_offset} to {log.max_offset}, but the kept bytes start at {kept.offset}"
            )
        base = max(log.min_offset, (kept.offset - 1) // log.segment_size * log.segment_size)
        sound_end = log.scan(base, kept.offset).end if base < kept.offset else base
        if sound_end != kept.offset:
            raise DoesNotFit(f"the log is not sound up to {kept.offset}: its records end at {sound_end}")
        written_end = log.stale_end(kept.offset)
        if written_end > kept.end:
            raise DoesNotFit(f"the log goes on to {written_end}, past the end of the kept bytes")
        at = kept.offset
        while at < written_end:
            ours = log.get_data(at, min(COPY_BYTES, written_end - at))
            assert ours is not None, "what is written lies in the log"
            theirs = file.read(len(ours))
            written = np.frombuffer(ours, np.uint8)
            if ((written != 0) & (written != np.frombuffer(theirs, np.uint8))).any():
                raise DoesNotFit(f"the log has other bytes than these after {at}: it was written since the cut")
            at += len(ours)

    def apply(self, wanted: Restoration) -> None:
        """Put the bytes back, durably. Deletes the file once the log has all of it. Raises OSError.

        After an error or Ctrl-C the log is as it was before. A process that is killed meanwhile has stopped uncleanly:
        the next start checks the log, and this can be done again.
        """
        abort = self.root / ABORT_FILE
        was_clean = not abort.exists()
        written_end, bases = self.log.stale_end(wanted.kept.offset), self.log.segment_bases
        abort.touch()
        sync_folder(self.root)
        try:
            self._write(wanted)
        except BaseException:  # Ctrl-C too
            with suppress(OSError):  # if this fails, ``abort`` stays, and the next start checks the log
                self.log.take_back(written_end, bases)
                self._unmark(was_clean)
            raise
        self._unmark(was_clean)
        if not wanted.left_bytes:
            self.kept.path.unlink()
            sync_folder(self.kept.path.parent)

    def _write(self, wanted: Restoration) -> None:
        at = wanted.kept.offset
        with self.kept.path.open("rb") as file:
            while at < wanted.end:
                size = min(COPY_BYTES, wanted.end - at, self.log.segment_size - at % self.log.segment_size)
                self.log.mend(at, file.read(size))
                at += size
        self.log.sync_range(wanted.kept.offset, wanted.end)

    def _unmark(self, was_clean: bool) -> None:
        """Remove ``abort`` if it was not there before."""
        if was_clean:
            (self.root / ABORT_FILE).unlink()
            sync_folder(self.root)
