"""A store read from outside: by tools, while a node may be writing it. Changes nothing and takes no lock."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rmqha.settings import Settings
from rmqha.store.commitlog import CommitLog, segment_size_of
from rmqha.store.dledger import check_no_dledger
from rmqha.store.errors import NoStore, StoreError
from rmqha.store.lockfile import is_locked
from rmqha.store.mappedfile import FILE_NAME_DIGITS
from rmqha.store.messagestore import LOCK_FILE
from rmqha.store.nodestate import NodeState
from rmqha.wire.record import Blank, Record, RecordError, check_record
from rmqha.wire.scan import Scan

WINDOW_BYTES = 16 * 1024 * 1024
"""How much is proved or compared between two looks at the progress."""

Progress = Callable[[int], None]
"""Told of each offset that has been reached."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What proving a log found: offsets in the log, and the number of messages.

    ``problem`` says why the bytes at ``end`` are no record, None where the records simply end there. ``live`` is true
    if another process has the store open: what it has not finished is no problem.
    """

    min_offset: int
    end: int
    messages: int
    problem: str | None
    live: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing two logs found, in the range that both hold. ``differs_at`` is the first offset that differs."""

    start: int
    end: int
    other_end: int
    differs_at: int | None


class StoreReader:
    """A store of a node or of a Java broker: the folder that holds ``commitlog``, or that folder itself."""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        """``settings`` say where the log is and how long its segments are, if the store does not show it.

        Raises StoreError if there is no log, OSError.
        """
        self.root = path
        folder = settings.store_path_commit_log if settings is not None else None
        folder = folder or _log_folder(path)
        size = settings.mapped_file_size_commit_log if settings is not None else None
        check_no_dledger(path)
        self.live = is_locked(path / LOCK_FILE)
        self.state = NodeState.read(path)
        self.log = CommitLog(folder, segment_size_of(folder, size), owned=False)
        self.limit = self._limit()

    def _limit(self) -> int:
        """Where the bytes end that may be judged: a running node of ours says how far it has proved."""
        if self.live and self.state is not None:
            return min(self.state.offsets.verified, self.log.max_offset)
        return self.log.max_offset

    def scan(self, start: int, progress: Progress) -> Scan:
        """Prove the records from ``start``, where one begins, on. Raises OSError."""
        found = Scan(end=start)
        while found.end < self.limit and found.problem is None:
            boundary = found.end - found.end % self.log.segment_size + self.log.segment_size
            step = self.log.scan(found.end, min(found.end + WINDOW_BYTES, boundary, self.limit))
            if step.end == found.end and step.problem is None:  # one record longer than the window, or the end
                step = self.log.scan(found.end, min(boundary, self.limit))
            if step.end == found.end:
                return found.then(step)
            found = found.then(step)
            progress(found.end)
        return found

    def verify(self, progress: Progress) -> Verification:
        """Prove every record. Raises OSError."""
        log = self.log
        found = self.scan(log.min_offset, progress)
        problem = None
        if found.end < self.limit and log.stale_end(found.end) > found.end:
            problem = found.problem or "the record is not whole"
            if self.live and self.state is None:  # somebody else's node, in the middle of a record
                problem = None
        return Verification(log.min_offset, found.end, found.messages, problem, self.live)

    def compare(self, end: int, other: "StoreReader", other_end: int, progress: Progress) -> Comparison:
        """Compare the bytes up to ``end`` with those of a log proved up to ``other_end``. Raises OSError."""
        start = max(self.log.min_offset, other.log.min_offset)
        common_end = min(end, other_end)
        at = start
        while at < common_end:
            ours = self.log.get_data(at, min(WINDOW_BYTES, common_end - at))
            theirs = other.log.get_data(at, len(ours) if ours is not None else 0)
            if ours is None or theirs is None:
                return Comparison(start, end, other_end, at)
            size = min(len(ours), len(theirs))
            if ours[:size] != theirs[:size]:
                first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
                return Comparison(start, end, other_end, at + first)
            at += size
            progress(at)
        return Comparison(start, end, other_end, None)

    def records(self, start: int, end: int | None) -> Iterator[tuple[int, Record | Blank]]:
        """Records and blanks with their offsets, proved one by one, from the first at or after ``start``.

        Ends before ``end``, at the log's end, or with StoreError at what is neither record nor end. Raises OSError.
        """
        log = self.log
        limit = self.limit if end is None else min(end, self.limit)
        at = max(log.min_offset, start - start % log.segment_size)
        while at < limit:
            room = log.segment_size - at % log.segment_size
            data = log.get_data(at, room)
            assert data is not None, "the limit lies within the log"
            try:
                record = check_record(data, 0, at, room)
            except RecordError as error:
                if log.stale_end(at) > at and not (self.live and self.state is None):
                    raise StoreError(f"the bytes at {at} are no record: {error}") from error
                return
            if at >= start:
                yield at, record
            at += record.size if isinstance(record, Blank) else record.total_size

    def close(self) -> None:
        """Close all files."""
        self.log.close()


def _log_folder(path: Path) -> Path:
    """Where the segments of the store are, or will be. Raises StoreError, OSError."""
    if not path.is_dir():
        raise NoStore(f"{path} is no store: there is no such folder")
    folder = path / "commitlog"
    names = [entry.name for entry in path.iterdir()]
    if not names or LOCK_FILE in names or folder.is_dir():  # a node that has no byte yet has no commitlog either
        return folder
    if not any(name.isdecimal() and len(name) == FILE_NAME_DIGITS for name in names):
        raise NoStore(f"{path} is no store: it has no commitlog")
    return path
