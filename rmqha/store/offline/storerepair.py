"""Replaces bad bytes of a log by those of another copy. Uses no reactor: the caller feeds it the other copy's bytes.

Every step can be interrupted, even by a kill. The new bytes are staged in a temporary file, and proved record by
record. Then the bad bytes are kept in a file, durably. Only then the log is changed, and only in the bad stretch. A
stretch that is not mended is still bad, and the next repair finds it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from types import TracebackType
from typing import Self

from rmqha.settings.settings import Settings
from rmqha.store.errors import StoreError, StoreInUse, name_file
from rmqha.store.examining import CUT_FOLDER, LOCK_FILE, examine_store, open_log
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.mappedfile import DISK, Disk, file_name
from rmqha.store.log.recovery import has_unwritten_end, keep, log_pieces
from rmqha.store.log.stretches import Progress, Survey, survey
from rmqha.store.nodestate import NODE_FOLDER, NodeState
from rmqha.store.offline.audit import wrong_units
from rmqha.store.offline.standins import FileFault, StandInDisk, file_faults
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.layout import BLANK_MAGIC_CODE
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Blank, IncompleteRecord, RecordError, check_record, peek_size

COPY_BYTES = 1 << 20
MAX_RECORD_BYTES = 256 * 1024 * 1024
"""A record is proved in memory. RocketMQ writes no larger one."""
REPLACED_SUFFIX = ".replaced"
"""The suffix of files that keep what a repair replaced."""


class RepairError(StoreError):
    """The other copy cannot repair the log. The log was not changed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes to bring back, from ``start`` to ``end``. From ``anchor`` to ``start`` the log is sound.

    In the middle of the log the sound bytes continue at ``end``. At the log's end ``is_tail`` is true. Then the other
    copy must reach ``least``. If ``takes_all`` is true, its bytes past ``end`` are taken too.
    """

    anchor: int
    start: int
    end: int
    is_tail: bool = False
    least: int = 0
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done: the log is now sound from ``start`` to ``end``, with ``messages`` in between.

    ``kept_in`` is the file with the replaced bytes, None if they were only zeros. ``wrong_units`` counts the messages
    whose unit in a consume queue is missing or wrong, None if the queues cannot be read. ``differs_at`` is where a
    record next to the range differs from the other log's, in bytes that no check covers. That record was not changed.
    """

    start: int
    end: int
    messages: int
    kept_in: Path | None
    wrong_units: int | None
    differs_at: int | None


class Mend:
    """Mends one gap. Feed it the other log's bytes from ``ask`` on, in order, until it is ``done``."""

    def __init__(self, log: CommitLog, gap: Gap) -> None:
        self._commit_log = log
        self.gap = gap
        self.done = False
        self.messages = 0
        self.end = gap.start
        """The other log's bytes before this offset are proved and staged."""
        self.staged = TemporaryFile()  # noqa: SIM115  # it lives as long as this object
        self._compared = gap.anchor
        self._held = bytearray()
        self._blank_left = 0
        self._neighbour: memoryview | None = None
        self._passed = 0
        self.differs_at: int | None = None
        """Where a record next to the gap differs, in bytes that no check covers. It is not changed."""

    @property
    def ask(self) -> int:
        """The offset of the next byte of the other log to feed."""
        if self._compared < self.gap.start:
            return self._compared
        return self.end + self._passed + len(self._held)

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes of the other log. Raises RepairError if they do not fit, OSError."""
        view = memoryview(data)
        view = view[self._compare(view) :]
        self._held += view
        while not self.done and self._step():
            pass

    def source_ended(self, reason: str) -> None:
        """The other log has no more bytes. Raises RepairError if the gap needs more."""
        gap = self.gap
        if gap.is_tail and self._compared == gap.start and self.end > gap.start and self.end >= gap.least:
            self.done = True
        if not self.done:
            raise RepairError(f"the other log has nothing for {self.ask} ({reason}): it cannot repair this one")

    def _compare(self, theirs: memoryview) -> int:
        """Compare the bytes before the gap with ours. Returns how many of ``theirs`` were compared."""
        taken = 0
        while self._compared < self.gap.start and taken < len(theirs):
            ours = self._commit_log.get_data(self._compared, min(len(theirs) - taken, self.gap.start - self._compared))
            assert ours is not None, "what is before the gap is sound"
            if ours != theirs[taken : taken + len(ours)] and self.differs_at is None:
                self.differs_at = _first_difference(ours, theirs[taken : taken + len(ours)], self._compared)
                if self.gap.is_tail:
                    raise self._another_log(self.differs_at)
            taken += len(ours)
            self._compared += len(ours)
        return taken

    @staticmethod
    def _another_log(at: int) -> RepairError:
        return RepairError(f"it is another log: its byte at {at} differs from ours, which is sound there")

    def _step(self) -> bool:
        """Take one record, blank or neighbour from the held bytes. False if more bytes are needed."""
        if self._blank_left:
            return self._take_blank()
        if self._neighbour is not None or self._meets_ours():
            return self._take_neighbour()
        return self._take_record()

    def _meets_ours(self) -> bool:
        """Whether our log has a sound record at the end of the staged ones."""
        gap = self.gap
        if self.end < gap.end or self.end == gap.start:
            return False
        if gap.is_tail:
            self.done = not gap.takes_all
            return False
        self._neighbour = self._our_record_at(self.end)
        return self._neighbour is not None

    def _our_record_at(self, offset: int) -> memoryview | None:
        """Our record at ``offset``, or the head of our blank there. None if there is no sound record."""
        room = self._commit_log.segment_size - offset % self._commit_log.segment_size
        ours = self._commit_log.get_data(offset, room)
        if ours is None:
            return None
        try:
            found = check_record(ours, 0, offset, room)
        except RecordError:
            return None
        return ours[: END_FILE_MIN_BLANK_LENGTH if isinstance(found, Blank) else found.total_size]

    def _take_neighbour(self) -> bool:
        """Compare the record that follows the gap with ours: the last proof that it is the same log.

        No CRC covers some fields. So the record next to a bad stretch may be damaged too, and still seem sound. Then
        the record after it must be equal.
        """
        assert self._neighbour is not None, "it was met"
        size, at = len(self._neighbour), self.end + self._passed
        if len(self._held) < size:
            return False
        theirs = bytes(self._held[:size])
        if self._neighbour == theirs:
            self.done = True
            return True
        differs_at = _first_difference(self._neighbour, memoryview(theirs), at)
        following = self._our_record_at(at + size)
        if self.differs_at is not None or following is None or not self._is_sound(theirs, at):
            raise self._another_log(differs_at)
        self.differs_at = differs_at
        del self._held[:size]
        self._passed, self._neighbour = size, following
        return True

    def _is_sound(self, theirs: bytes, at: int) -> bool:
        """Whether these bytes are exactly one sound message."""
        try:
            found = check_record(theirs, 0, at, self._commit_log.segment_size - at % self._commit_log.segment_size)
        except RecordError:
            return False
        return not isinstance(found, Blank) and found.total_size == len(theirs)

    def _take_record(self) -> bool:
        if self.done:
            return False
        room = self._commit_log.segment_size - self.end % self._commit_log.segment_size
        try:
            size, magic = peek_size(self._held, 0, len(self._held))
            if magic == BLANK_MAGIC_CODE and size == room:
                self._blank_left = size
                return True
            if size > MAX_RECORD_BYTES:
                raise RecordError(f"a record of {size} bytes")
            found = check_record(self._held, 0, self.end, room)
        except IncompleteRecord:
            return False
        except RecordError as error:
            self.source_ended(f"its record there is bad too: {error}")
            return False
        assert not isinstance(found, Blank), "blanks were taken before"
        self.messages += 1
        self._stage(found.total_size)
        return True

    def _take_blank(self) -> bool:
        size = min(self._blank_left, len(self._held))
        self._blank_left -= size
        self._stage(size)
        return size > 0 and not self._blank_left

    def _stage(self, size: int) -> None:
        try:
            self.staged.write(self._held[:size])
        except OSError as error:
            name_file(error, gettempdir())
            raise
        del self._held[:size]
        self.end += size

    def rewind(self) -> None:
        """Make the staged bytes readable from the start. Raises OSError."""
        try:
            self.staged.seek(0)  # this also writes what Python has buffered
        except OSError as error:
            name_file(error, gettempdir())
            raise

    def discard(self) -> None:
        """Delete the staged bytes."""
        with suppress(OSError):  # on a full disk Python cannot write its buffer; that error was raised before
            self.staged.close()


def _first_difference(ours: memoryview, theirs: memoryview, at: int) -> int:
    return at + next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)


class StoreRepair:
    """A store that is being repaired. With ``changes`` it is locked, so that no node can open it meanwhile."""

    def __init__(self, settings: Settings, changes: bool = True, disk: Disk = DISK) -> None:
        """Raises StoreInUse, StoreError, OSError."""
        self.settings = settings
        self.root = settings.store_path_root_dir
        self.state = NodeState.read(self.root, disk)
        if not changes and is_locked(self.root / LOCK_FILE):
            raise StoreInUse(f"{self.root} is in use by another process: stop it first")
        self._lock_file = disk.lock(self.root / LOCK_FILE) if changes else None
        self._disk: StandInDisk | None = None
        self._mended_cuts: set[int] = set()
        """The ends of short files whose missing bytes are mended."""
        try:
            folder = settings.commit_log_folder
            if disk is DISK:
                faults = file_faults(folder, settings.mapped_file_size_commit_log)
                disk = self._disk = StandInDisk(folder, faults, changes)
            self.log = open_log(settings, changes, disk)
        except BaseException:  # of any kind: release the lock, then raise it again
            self._release()
            raise

    @property
    def faults(self) -> list[FileFault]:
        """The segment files that are missing or too short, until ``install``."""
        return [] if self._disk is None else self._disk.faults

    def install(self) -> None:
        """Move the stand-ins into the log's folder. Call it once all gaps are mended. Raises OSError."""
        if self._disk is not None and self._disk.faults:
            self._disk.install()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def find(self, progress: Progress = lambda _: None, start: int | None = None, takes_all: bool = True) -> list[Gap]:
        """The gaps from ``start``, the start of a record, on. If there are very many, only the first. Raises OSError.

        What a crash left at the log's end is not a gap: the next start cuts it.
        """
        log = self.log
        looked = survey(log, log.min_offset if start is None else start, log.max_offset, progress)
        gaps = [Gap(bad.anchor, bad.start, bad.end) for bad in looked.stretches]
        if looked.stretch_count == len(gaps):
            gaps += self._tail(looked, takes_all)
        gaps = self._with_unwritten_ends(gaps, looked.start)
        for fault in self.faults:
            if fault.size and fault.base + fault.size not in self._mended_cuts:
                gaps = self._with_cut_record(gaps, fault, looked.end)
        return gaps

    def _with_unwritten_ends(self, gaps: list[Gap], sound_from: int) -> list[Gap]:
        """Let a gap start with the record before it, if the end of that record was never written.

        A lost sector holds the end of one record and the start of the next. The first one still seems to be sound if
        only its properties, or its topic, are in that sector: no CRC covers them.
        """
        found = []
        for gap in gaps:
            view = self.log.select(gap.anchor, gap.start - gap.anchor) if gap.anchor < gap.start else None
            if view is not None and has_unwritten_end(view):
                base = gap.anchor - gap.anchor % self.log.segment_size
                anchor = self._anchor_of(gap.anchor, max(sound_from, base))
                found.append(replace(gap, anchor=anchor, start=gap.anchor))
            else:
                found.append(gap)
            sound_from = gap.end
        return found

    def _with_cut_record(self, gaps: list[Gap], fault: FileFault, log_end: int) -> list[Gap]:
        """Add the record in which a short file ends to the gaps. Its missing end may be bytes that no CRC covers."""
        assert fault.size is not None, "the file is there"
        cut, file_end = fault.base + fault.size, fault.base + fault.full_size
        sound_from = max([fault.base, *(gap.end for gap in gaps if fault.base < gap.end <= cut)])
        start = self.log.scan(sound_from, cut).end
        if any(gap.start <= start < gap.end for gap in gaps):
            return gaps
        anchor = self._anchor_of(start, sound_from)
        for at, gap in enumerate(gaps):
            if start < gap.start <= file_end:
                return [*gaps[:at], replace(gap, anchor=anchor, start=start), *gaps[at + 1 :]]
        end = file_end if log_end > file_end else log_end
        if end == log_end:  # that record is the log's last one
            confirmed = 0 if self.state is None else self.state.confirmed_offset
            if not start < end <= confirmed:  # if it is torn, the next start cuts it
                return gaps
            return [*gaps, Gap(anchor, start, end, is_tail=True, least=end)]
        return sorted([*gaps, Gap(anchor, start, end)], key=lambda gap: gap.start)

    def _anchor_of(self, start: int, sound_from: int) -> int:
        """The start of the last message before ``start``. The log is sound from ``sound_from`` on."""
        last = self.log.scan(sound_from, start).last_message
        if last is None and start % self.log.segment_size == 0 and start > self.log.min_offset:
            before = self.log.scan(start - self.log.segment_size, start)
            last = before.last_message if before.end == start else None
        return start if last is None else last

    def find_as_a_start_does(self) -> list[Gap]:
        """The gaps in the part of the log that recovery checks. Raises StoreError, OSError."""
        return self.find(start=examine_store(self.settings, disk=self.log.disk).checked_from, takes_all=False)

    def _tail(self, looked: Survey, takes_all: bool) -> Iterator[Gap]:
        confirmed = 0 if self.state is None else self.state.confirmed_offset
        if looked.end < confirmed:
            end = max(confirmed, self.log.stale_end(looked.end))
            yield Gap(looked.anchor, looked.end, end, is_tail=True, least=confirmed, takes_all=takes_all)

    def mend(self, gap: Gap) -> Mend:
        """Start to mend a gap. Waits for the disk. Raises OSError.

        A master takes a request for bytes as an acknowledgement of all bytes before them. So these are flushed first:
        the node may have died before it flushed them.
        """
        flushed = 0 if self.state is None else self.state.flushed_offset
        start = max(self.log.min_offset, min(flushed, gap.anchor))
        if self._lock_file is not None:
            self.log.write_again(start, gap.anchor)
        self.log.sync_range(start, gap.anchor)
        return Mend(self.log, gap)

    def place(self, mend: Mend) -> Mended:
        """Write the staged bytes to the log, durably. Raises RepairError, OSError."""
        assert mend.done, "all was proved"
        start, end = mend.gap.start, mend.end
        kept_in = self._keep(start, end)
        mend.rewind()
        at = start
        while at < end:
            piece = mend.staged.read(min(COPY_BYTES, end - at, self.log.segment_size - at % self.log.segment_size))
            self.log.mend(at, piece)
            at += len(piece)
        self.log.sync_range(start, end)
        cuts = {fault.base + fault.size for fault in self.faults if fault.size is not None}
        self._mended_cuts |= {cut for cut in cuts if start <= cut < end}
        found = self.log.scan(start, end)
        if found.end != end:
            raise RepairError(f"reading back what was written failed at {found.end}: {found.problem}")
        return Mended(start, end, mend.messages, kept_in, self._wrong_units(start, end), mend.differs_at)

    def _wrong_units(self, start: int, end: int) -> int | None:
        try:
            return wrong_units(self.root, self.log, self.settings, start, end)
        except StoreError:
            return None

    def _keep(self, start: int, end: int) -> Path | None:
        """Keep the bytes that will be replaced in a file, unless all are zeros. Raises OSError."""
        end = min(end, self.log.max_offset)
        if not any(bytes(piece).strip(b"\0") for piece in log_pieces(self.log, start, end)):
            return None
        folder = self.root / NODE_FOLDER / CUT_FOLDER
        return keep(self.log.disk, log_pieces(self.log, start, end), folder, file_name(start) + REPLACED_SUFFIX)

    def close(self) -> None:
        """Close the log and release the lock."""
        self.log.close()
        self._release()

    def _release(self) -> None:
        if self._disk is not None:
            self._disk.discard()
        lock_file, self._lock_file = self._lock_file, None
        if lock_file is not None:
            lock_file.release()


def feed_from_store(other: StoreReader, mend: Mend, progress: Progress = lambda _: None) -> None:
    """Feed a gap from another store on this machine. Raises RepairError, OSError."""
    log = other.log
    while not mend.done:
        at = mend.ask
        data = log.get_data(at, min(COPY_BYTES, other.limit - at)) if at < other.limit else None
        if not data:
            mend.source_ended(f"it is {log.min_offset} to {other.limit}")
            return
        mend.feed(data)
        progress(mend.end)
