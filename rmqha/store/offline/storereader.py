"""A store read from outside: by tools, while a node may be writing it. Changes nothing and takes no lock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmqha.settings import Settings
from rmqha.store.dledger import check_no_dledger
from rmqha.store.errors import NoStore, StoreError
from rmqha.store.log.commitlog import CommitLog, segment_size_of
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS
from rmqha.store.log.stretches import WINDOW_BYTES, BadStretch, Progress, Survey, prove, survey
from rmqha.store.messagestore import ABORT_FILE, LOCK_FILE
from rmqha.store.nodestate import NodeState
from rmqha.wire.record import Blank, Record, RecordError, check_record
from rmqha.wire.scan import Scan


@dataclass(frozen=True, slots=True)
class Verification:
    """What proving a log found: offsets in the log, and the number of messages.

    ``end`` follows the last sound message. ``stretches`` are the bad ones; of very many only the first are there, while
    ``stretch_count`` and ``bad_bytes`` count all. ``problem`` is what is wrong at the first one, None if there is none.
    ``torn_end`` is what the next start will cut: bytes after a stop that was not clean. ``gone_bytes`` were confirmed
    by the store's node, and are not there: so it is in a copy that was made while the node ran. ``live`` is true if
    another process has the store open: what it has not finished is no problem.
    """

    min_offset: int
    end: int
    messages: int
    problem: str | None
    live: bool
    stretches: tuple[BadStretch, ...] = ()
    stretch_count: int = 0
    bad_bytes: int = 0
    torn_end: BadStretch | None = None
    gone_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing two logs found, in the range that both hold.

    ``differs_at`` is the first offset that differs, and ``record_at`` is where our record with that byte begins.
    """

    start: int
    end: int
    other_end: int
    differs_at: int | None
    record_at: int | None = None

    @property
    def has_common_range(self) -> bool:
        """Whether both logs hold any offset; two logs of which one is empty have nothing that could differ."""
        return self.start <= min(self.end, self.other_end)


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
        return prove(self.log, start, self.limit, progress)

    def verify(self, progress: Progress) -> Verification:
        """Prove every record, also those that follow bad bytes. Raises OSError."""
        log = self.log
        looked = survey(log, log.min_offset, self.limit, progress)
        stretches, count, bad_bytes = list(looked.stretches), looked.stretch_count, looked.bad_bytes
        rest = self._rest(looked)
        torn_end = None
        if rest is not None and self._will_be_cut(rest):
            torn_end = rest
        elif rest is not None:
            stretches, count, bad_bytes = [*stretches, rest], count + 1, bad_bytes + rest.size
        confirmed = 0 if self.state is None or self.live else self.state.confirmed_offset
        return Verification(
            log.min_offset,
            looked.end,
            looked.messages,
            stretches[0].problem if stretches else None,
            self.live,
            tuple(stretches),
            count,
            bad_bytes,
            torn_end,
            max(0, confirmed - looked.end) if rest is None and log.segment_bases else 0,
        )

    def _rest(self, looked: Survey) -> BadStretch | None:
        """What follows the log's end and is not zero; None if nothing does."""
        if looked.end >= self.limit or (self.live and self.state is None):  # somebody else's node is busy there
            return None
        written_end = min(self.limit, self.log.stale_end(looked.end))
        if written_end <= looked.end:
            return None
        return BadStretch(looked.end, written_end, looked.problem or "the record is not complete", 0, 0, looked.anchor)

    def _will_be_cut(self, rest: BadStretch) -> bool:
        """Whether the bytes after the end are what a crash may leave, and a start may cut."""
        if self.live:
            return False
        is_confirmed = self.state is not None and rest.start < self.state.confirmed_offset
        return self.stopped_uncleanly and not is_confirmed

    @property
    def stopped_uncleanly(self) -> bool:
        """Whether the store was not closed cleanly, as far as that can be told: a folder of segments says nothing."""
        return self.log.folder == self.root or (self.root / ABORT_FILE).exists()

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
                arrays = [np.frombuffer(data, np.uint8, size) for data in (ours, theirs)]
                differs_at = at + int(np.argmax(arrays[0] != arrays[1]))
                return Comparison(start, end, other_end, differs_at, self._record_at(differs_at))
            at += size
            progress(at)
        return Comparison(start, end, other_end, None)

    def _record_at(self, offset: int) -> int:
        """Where the record that holds ``offset`` begins, going by the records before it in its segment."""
        base = max(self.log.min_offset, offset - offset % self.log.segment_size)
        return self.log.scan(base, offset).end

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
