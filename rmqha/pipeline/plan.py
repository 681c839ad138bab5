"""What there is to read, and how it is split: segments, the log's end, record starts near offsets and times.

A split lies within one file, see ``boundaries``. Reading proves the boundaries: a split must end exactly where the next
one starts, and the first one of a file starts with the file. Offsets that outlive a query are found by following all
sizes.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from rmqha.pipeline.boundaries import HOP_BYTES, BoundaryQueues, cut_by_hop, cut_by_signs
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.options import EARLIEST, Boundaries, OnCorrupt, Options, TimestampStrategy
from rmqha.pipeline.segments import log_skipped, open_segment, read_records
from rmqha.settings.settings import Settings
from rmqha.store.derived.batchqueue import BATCH_QUEUE_FOLDER
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER
from rmqha.store.errors import BoundaryError, CorruptLogError, DataLossError, NoStore, StoreError
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS
from rmqha.store.log.records import Skipped
from rmqha.store.log.splits import MAGICS, RECORD_START_BYTES, LogFile, Split, log_files, plausible_starts
from rmqha.store.nodestate import NodeState, state_path
from rmqha.wire import layout
from rmqha.wire.record import RecordError, check_record

log = logging.getLogger(__name__)

FIRST_RECORD_BYTES = 1 << 12
LOG_FOLDER = "commitlog"
MIN_SPLIT_BYTES, MAX_SPLIT_BYTES, SPLITS_A_CORE = 32 << 20, 256 << 20, 2
DLEDGER_MAGIC = 1
"""The first bytes of a DLedger entry. A record starts with its size, which is larger."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """A log at the time when it was opened. For readers it ends at ``end``.

    ``store`` is the folder above it, which contains queues, index and state. ``state`` is None if no node of ours has
    run there. Of a remote log ``store`` and ``folder`` are its address, and ``broker`` is its brokerName. A query may
    read several logs, ``read_together`` bytes of all of them: then each needs fewer splits.
    """

    store: Path
    folder: Path
    files: tuple[LogFile, ...]
    end: int
    state: NodeState | None
    options: Options
    broker: str | None = None
    read_together: int = 0

    @property
    def name(self) -> str:
        """The log's name for people."""
        return str(self.folder) if self.broker is None else self.broker

    @property
    def min_offset(self) -> int:
        """The first offset of the log."""
        return self.files[0].base if self.files else self.end

    @property
    def _skipped(self) -> Skipped | None:
        return log_skipped if self.options.on_corrupt is OnCorrupt.SKIP else None

    def _split_bytes(self, size: int, piece: Split) -> int:
        """The approximate size of the splits for ``size`` bytes of log.

        By default there are several for each core of this machine. Each further split costs about 20 ms.
        """
        given = self.options.split_bytes
        if given is None:
            fitting = min(MAX_SPLIT_BYTES, max(MIN_SPLIT_BYTES, size // (SPLITS_A_CORE * (os.cpu_count() or 1))))
            given = -(-piece.size // max(1, round(piece.size / fitting)))
        return max(1, min(given, -(-size // self.options.min_partitions)))

    def splits(self, start: int, end: int, boundaries: Boundaries | None = None) -> list[Split]:
        """Splits of about ``splitBytes`` from ``start`` to ``end``, where records start. Raises StoreError, OSError.

        If a body is longer than a record of the default maxMessageSize, it may mislead a boundary that no queue gives.
        The read then fails as a whole with BoundaryError. ``Boundaries.HOP`` cannot be misled, but follows all sizes of
        the log here, before the read. A caller that can run all splits again uses it then.
        """
        if start >= end:
            return []
        by_hop = (boundaries or self.options.boundaries) is Boundaries.HOP
        found: list[Split] = []
        with BoundaryQueues(self.store / CONSUME_QUEUE_FOLDER) as queues:
            for piece in self.pieces(start, end):
                split_bytes = self._split_bytes(max(end - start, self.read_together), piece)
                try:
                    if by_hop:
                        found += cut_by_hop(piece, split_bytes, self._skipped)
                    else:
                        found += cut_by_signs(piece, split_bytes, queues)
                except DataLossError as error:
                    if self.options.fail_on_data_loss:
                        raise
                    found.append(piece)  # read as far as it exists
                    log.warning("%s", error)
        return found

    def pieces(self, start: int, end: int) -> Iterator[Split]:
        """One split for each file. Raises DataLossError if files are missing."""
        at = start
        for file in self.files:
            if file.end <= start or file.base >= end:
                continue
            self._expect(at, file.base)
            at = min(file.end, end)
            yield file.split(max(file.base, start), at)
        self._expect(at, end)

    def _expect(self, at: int, following: int) -> None:
        if at < following:
            problem = f"{self.name} has no bytes from {at} to {following}"
            if self.options.fail_on_data_loss:
                raise DataLossError(problem)
            log.warning("%s", problem)

    def record_start(self, offset: int) -> int:
        """Where the first record at or after ``offset`` starts, found by all sizes before it. Raises StoreError,
        OSError.
        """
        for file in self.files:
            if file.base >= offset:
                return file.base
            if offset < (end := min(file.end, self.end)):
                return self._start_within(file.split(file.base, end), offset)
        return self.end

    def whole_records(self, offset: int, known_start: int = 0) -> int:
        """Where the last record ends that ends at or before ``offset``: a flush, or a report of a slave, may have ended
        inside a record.

        If a sound record starts at ``offset``, that is the place. Otherwise it is found by all sizes from
        ``known_start``, where a record starts, or from the start of the file. If bad bytes reach ``offset``, it is that
        place too, so that they are reported. Raises StoreError, OSError.
        """
        for file in self.files:
            if offset in (file.base, file.end, self.end):
                return offset
            if file.base < offset < file.end and not _starts_a_record(file, offset):
                start = known_start if file.base <= known_start <= offset else file.base
                return _last_end(file, start, offset)
        return offset

    def _start_within(self, piece: Split, offset: int) -> int:
        for records in read_records(piece, HOP_BYTES, skipped=self._skipped):
            number = int(np.searchsorted(records.physical_offset, offset))
            if number < len(records):
                return int(records.physical_offset[number])
        return piece.end

    def advance(
        self,
        start: int,
        max_bytes: int | None = None,
        max_records: int | None = None,
        max_files: int | None = None,
    ) -> int:
        """How far records reach from ``start`` within these limits; at least one record. Raises StoreError, OSError."""
        at = start
        for number, piece in enumerate(self.pieces(start, self.end)):
            bytes_left = None if max_bytes is None else start + max_bytes - piece.start
            if number == max_files or max_records == 0 or (bytes_left is not None and bytes_left <= 0):
                break
            if max_records is None and (bytes_left is None or piece.size <= bytes_left):
                at = piece.end
                continue
            reached, count = _hop_within(piece, bytes_left, max_records, self._skipped)
            if at == start and reached == piece.start:
                reached, count = _hop_within(piece, None, 1, self._skipped)
            at = max(at, reached)
            if reached < piece.end:
                break
            max_records = None if max_records is None else max_records - count
        return at

    def offset_at(self, timestamp: int) -> int | None:
        """The offset of the first message stored at ``timestamp`` (milliseconds) or later; None if there is none.

        Files are ruled out by their first message. If a clock went back, the result is one of the first such messages.
        Raises StoreError, OSError.
        """
        pieces = list(self.pieces(self.min_offset, self.end))
        before = 0
        for number, piece in enumerate(pieces):
            first = next(read_records(piece, FIRST_RECORD_BYTES, skipped=self._skipped), None)
            if first is not None and first.ints("storeTimestamp")[0] >= timestamp:
                break
            before = number
        for piece in pieces[before:]:
            for records in read_records(piece, HOP_BYTES, skipped=self._skipped):
                late = records.ints("storeTimestamp") >= timestamp
                if late.any():
                    return int(records.physical_offset[int(np.argmax(late))])
        return None

    def start(self) -> int:
        """The offset at which the options start. Raises OptionError, StoreError, OSError."""
        options = self.options
        if options.starting_timestamp is None:
            return self._offset_of(options.starting_offset)
        found = self.offset_at(options.starting_timestamp)
        if found is None and options.timestamp_strategy is TimestampStrategy.ERROR:
            raise OptionError(
                f"startingTimestamp={options.starting_timestamp}: no message was stored then or later "
                "(startingOffsetsByTimestampStrategy=latest starts at the end)"
            )
        return self.end if found is None else found

    def stop(self) -> int:
        """The offset at which the options end. Raises StoreError, OSError."""
        if self.options.ending_timestamp is None:
            return self._offset_of(self.options.ending_offset)
        found = self.offset_at(self.options.ending_timestamp)
        return self.end if found is None else found

    def _offset_of(self, offset: int | str) -> int:
        if isinstance(offset, str):
            return self.min_offset if offset == EARLIEST else self.end
        if offset < self.min_offset:
            self._expect(offset, self.min_offset)
        if offset > self.end:
            log.warning("the offset %d is after the end of the log at %d: there is nothing yet", offset, self.end)
        return self.record_start(min(max(offset, self.min_offset), self.end))


def open_log(options: Options, known_end: int = 0, to_last_file: bool = False) -> LogPlan:
    """Open the log of a store, or a folder of segments, up to where its node says it may be read.

    If no node of ours has run, the log ends with the last sound record. ``known_end`` is its end at an earlier time;
    records before it are not proved again. With ``to_last_file`` it ends with the last file, sound or not. Raises
    StoreError, OSError.
    """
    store, folder = _folders(options.path, options.settings.store_path_commit_log)
    _warn_of_topics(store, options.selection.topics or frozenset())
    state = NodeState.read(store)  # before the files are listed, so that the files it mentions exist
    files = log_files(folder, options.settings.mapped_file_size_commit_log)
    plan = LogPlan(store, folder, files, 0, state, options)
    if state is None and to_last_file:
        if files:
            _refuse_dledger(files[0])
        return replace(plan, end=files[-1].end if files else 0)
    if state is None:
        return replace(plan, end=_sound_end(files, known_end))
    end: int = getattr(state.offsets, options.read_up_to.value)
    if not files:
        plan._expect(state.offsets.min, end)
        return replace(plan, end=end)
    plan._expect(files[-1].end, end)
    end = max(files[0].base, min(end, files[-1].end))
    return replace(plan, end=end if end == state.offsets.verified else plan.whole_records(end, known_end))


@cache
def _warn_of_topics(store: Path, topics: frozenset[str]) -> None:
    """Tell once which of the selected topics have no queue in the store."""
    known: set[str] = set()
    for folder in (CONSUME_QUEUE_FOLDER, BATCH_QUEUE_FOLDER):
        with suppress(OSError):
            known |= set(os.listdir(store / folder))
    if known and (strange := sorted(topics - known)):
        log.warning("%s has no queue of the topic %s: no message may be of it", store, ", ".join(strange))


def log_folder(path: Path, configured: Path | None = None) -> Path:
    """The folder of a store's segments. ``configured`` is storePathCommitLog. Raises StoreError, OSError."""
    return _folders(path, configured)[1]


def store_folder(path: Path, settings: Settings) -> Path:
    """The folder above a log, which has the queues and tables. Raises StoreError, OSError."""
    return _folders(path, settings.store_path_commit_log)[0]


def _folders(path: Path, configured: Path | None) -> tuple[Path, Path]:
    if not path.is_dir():
        raise NoStore(f"{path} is not a folder on this machine: executors and driver must both see the store there")
    folder = configured or path / LOG_FOLDER
    if folder.is_dir():
        return path, folder
    names = [entry.name for entry in path.iterdir()]
    if any(name.isdecimal() and len(name) == FILE_NAME_DIGITS for name in names):
        linked = path.resolve().parent
        return linked if state_path(linked).exists() else path.parent, path
    if (path / "rmqha").is_dir():  # a node without any bytes yet
        return path, folder
    raise NoStore(f"{path} is not a store: it has no {LOG_FOLDER}")


def _starts_a_record(file: LogFile, offset: int) -> bool:
    room = file.end - offset
    with open_segment(file.path, file.base) as segment:
        head = segment.read(offset, min(room, RECORD_START_BYTES))
        if len(head) < layout.BLANK_HEADER.size:
            return False
        size, magic = layout.BLANK_HEADER.unpack_from(head.data)
        if magic == layout.BLANK_MAGIC_CODE:
            return bool(size == room)
        if not len(plausible_starts(head, offset)[0]):
            return False
        try:
            check_record(segment.read(offset, min(size, room)).data, 0, offset, room)
        except RecordError:
            return False
    return True


def _last_end(file: LogFile, start: int, limit: int) -> int:
    """Where the last record before ``limit`` ends, by all sizes from ``start``; ``limit`` if bad bytes reach it.

    So a reader reports bad bytes before ``limit``, but waits for the rest of a record that continues after it. Raises
    OSError.
    """
    end, bad_from = start, limit

    def passed_over(error: CorruptLogError, resumed: int) -> None:
        nonlocal bad_from
        bad_from = error.offset if resumed == limit else limit

    try:
        for records in read_records(file.split(start, limit), HOP_BYTES, skipped=passed_over):
            end = records.end
    except (BoundaryError, DataLossError):
        return end
    if limit - bad_from < RECORD_START_BYTES:  # too few bytes to tell the start of a record from bad ones
        return end
    return _unfinished_record(file, bad_from, limit)


def _unfinished_record(file: LogFile, start: int, limit: int) -> int:
    """Where the first record from ``start`` on starts that continues after ``limit``; ``limit`` if there is none.

    Its last bytes may not have been written yet, so only its start is judged. Raises OSError.
    """
    with open_segment(file.path, file.base) as segment:
        while (found := segment.find_start(start, limit)) is not None:
            (size,) = plausible_starts(segment.read(found, RECORD_START_BYTES), found)[1]
            if limit - found < size <= file.end - found:
                return found
            start = found + 1
    return limit


def _sound_end(files: tuple[LogFile, ...], known_end: int) -> int:
    """Where the last sound record ends, its CRC included. ``known_end`` is an offset at which records are known to
    end.
    """
    for file in reversed(files):
        start = known_end if file.base < known_end <= file.end else file.base
        end = _sound_end_of(file, start)
        if end > file.base:
            return end
    if not files:
        return 0
    _refuse_another_frame(files[0])
    return files[0].base


def _refuse_another_frame(file: LogFile) -> None:
    """Raises StoreError if the log starts with something other than a record, unless it is empty."""
    if _refuse_dledger(file) not in (0, layout.BLANK_MAGIC_CODE, *MAGICS):
        raise CorruptLogError(file.base, "the log does not start with a record")


def _refuse_dledger(file: LogFile) -> int:
    """The magic code at the start of the file. Raises StoreError if the log is DLedger's."""
    with open_segment(file.path, file.base) as segment:
        start = segment.read(file.base, layout.BLANK_HEADER.size)
    size, magic = layout.BLANK_HEADER.unpack(start.tobytes().ljust(layout.BLANK_HEADER.size, b"\0"))
    if size == DLEDGER_MAGIC and magic not in (0, layout.BLANK_MAGIC_CODE, *MAGICS):
        raise StoreError(
            f"{file.path} is part of a DLedger log, whose records have another frame: only commit logs can be read"
        )
    return int(magic)


def _sound_end_of(file: LogFile, start: int) -> int:
    """Bytes after it are ignored: a Java broker's recovery may have cut them off and left them in the file."""
    end = start
    try:
        for records in read_records(file.split(start, file.end), HOP_BYTES, verify_body=True):
            end = records.end
    except CorruptLogError as error:
        return error.offset
    except DataLossError:
        return end
    return file.end


def _hop_within(
    piece: Split, max_bytes: int | None, max_records: int | None, skipped: Skipped | None
) -> tuple[int, int]:
    """How far records reach within both limits, and how many they are."""
    at, count = piece.start, 0
    for records in read_records(piece, HOP_BYTES, skipped=skipped):
        ends = records.physical_offset + records.ints("totalSize")
        fitting = len(ends) if max_bytes is None else int(np.searchsorted(ends, piece.start + max_bytes, side="right"))
        if max_records is not None:
            fitting = min(fitting, max_records - count)
        if fitting:
            at, count = int(ends[fitting - 1]), count + fitting
        if fitting < len(ends):
            return at, count
    return piece.end, count
