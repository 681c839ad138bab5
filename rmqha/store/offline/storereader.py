"""A store read from outside: by tools, while a node may be writing it. Changes nothing and takes no lock."""

from collections.abc import Iterator
from pathlib import Path

from rmqha.settings.settings import Settings
from rmqha.store.dledger import check_no_dledger
from rmqha.store.errors import NoStore, StoreError
from rmqha.store.examining import ABORT_FILE, LOCK_FILE
from rmqha.store.log.commitlog import CommitLog, segment_size_of
from rmqha.store.log.lockfile import is_locked, while_files_go
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS
from rmqha.store.log.stretches import Progress, prove, survey
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.comparing import compare_segment
from rmqha.store.offline.findings import Circumstances, Comparison, Difference, Verification, judge
from rmqha.wire.record import Blank, Record, RecordError, check_record
from rmqha.wire.scanned import Scan


class StoreReader:
    """A store of a node or of a Java broker: the folder that holds ``commitlog``, or that folder itself."""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        """``settings`` say where the log is, and how long its segments are if the store does not show it.

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
        """The end of the bytes that may be judged. A running node of ours says how far it has proved the log."""
        if self.live and self.state is not None:
            return min(self.state.offsets.verified, self.log.max_offset)
        return self.log.max_offset

    def scan(self, start: int, progress: Progress) -> Scan:
        """Prove the records from ``start``, the start of one, on. Raises OSError."""
        return prove(self.log, start, self.limit, progress)

    def verify(self, progress: Progress) -> Verification:
        """Prove every record, also those that follow bad bytes. Raises OSError."""
        return while_files_go(self.live, lambda: self._verify(progress))

    def _verify(self, progress: Progress) -> Verification:
        self._drop_deleted()
        looked = survey(self.log, self.log.min_offset, self.limit, progress)
        is_anothers = self.live and self.state is None  # a Java broker is writing after the end
        for bad in looked.stretches if is_anothers else ():
            if self.log.scan(bad.start, bad.end).end > bad.start:  # it has written the record since we looked there
                looked = survey(self.log, self.log.min_offset, bad.start, progress)
                break
        written_end = looked.end if is_anothers else min(self.limit, self.log.stale_end(looked.end))
        confirmed = 0 if self.state is None else self.state.confirmed_offset
        has_segments = bool(self.log.segment_bases)
        return judge(looked, Circumstances(self.live, self.stopped_uncleanly, confirmed, written_end, has_segments))

    def _drop_deleted(self) -> None:
        if self.live:
            self.log.drop_deleted()

    @property
    def stopped_uncleanly(self) -> bool:
        """Whether the store was not closed cleanly. A bare folder of segments counts as unclean."""
        return self.log.folder == self.root or (self.root / ABORT_FILE).exists()

    def compare(self, end: int, other: "StoreReader", other_end: int, progress: Progress) -> Comparison:
        """Compare the bytes up to ``end`` with those of a log proved up to ``other_end``. Raises OSError."""
        return while_files_go(self.live or other.live, lambda: self._compare(end, other, other_end, progress))

    def _compare(self, end: int, other: "StoreReader", other_end: int, progress: Progress) -> Comparison:
        self._drop_deleted()
        other._drop_deleted()
        start = max(self.log.min_offset, other.log.min_offset)
        common_end = min(end, other_end)
        found = Difference()
        for at in range(start, common_end, self.log.segment_size):
            segment_end = at + self.log.segment_size
            limit = min(segment_end, common_end)
            part = compare_segment(self.log.get_data, other.log.get_data, at, limit, segment_end, progress)
            found = found.then(part)
        sizes = self.log.segment_size, other.log.segment_size
        return Comparison(
            start,
            end,
            other_end,
            found.differs_at,
            None if found.differs_at is None else self._record_at(found.differs_at),
            found.different_bytes,
            sizes if sizes[0] != sizes[1] else None,
            found.fills,
        )

    def _record_at(self, offset: int) -> int:
        """The start of the record that holds ``offset``. Found by the records before it in its segment."""
        base = max(self.log.min_offset, offset - offset % self.log.segment_size)
        return self.log.scan(base, offset).end

    def records(self, start: int, end: int | None) -> Iterator[tuple[int, Record | Blank]]:
        """Records and blanks with their offsets, proved one by one, from the first at or after ``start``.

        Ends before ``end`` or at the log's end. Raises StoreError at bytes that are not a record, OSError.
        """
        log = self.log
        limit = self.limit if end is None else min(end, self.limit)
        at = max(log.min_offset, start - start % log.segment_size)
        while at < limit:
            room = log.segment_size - at % log.segment_size
            try:
                data = log.get_data(at, room)
            except FileNotFoundError:
                if not self.live or log.min_offset > at:
                    raise
                log.drop_deleted()
                at = max(at, log.min_offset)
                continue
            assert data is not None, "the limit lies within the log"
            try:
                record = check_record(data, 0, at, room)
            except RecordError as error:
                if log.stale_end(at) > at and not (self.live and self.state is None):
                    raise StoreError(f"the bytes at {at} are not a record: {error}") from error
                return
            if at >= start:
                yield at, record
            at += record.size if isinstance(record, Blank) else record.total_size

    def close(self) -> None:
        """Close all files."""
        self.log.close()


def _log_folder(path: Path) -> Path:
    """The folder of the store's segments. It may be missing before the first byte. Raises StoreError, OSError."""
    if not path.is_dir():
        raise NoStore(f"{path} is not a store: there is no such folder")
    folder = path / "commitlog"
    names = [entry.name for entry in path.iterdir()]
    if not names or LOCK_FILE in names or folder.is_dir():  # before its first byte a node has no commitlog
        return folder
    if not any(name.isdecimal() and len(name) == FILE_NAME_DIGITS for name in names):
        raise NoStore(f"{path} is not a store: it has no commitlog")
    return path
