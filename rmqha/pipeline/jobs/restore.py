"""Makes a store from an archive: the log as it was archived, byte for byte if the archive proves that.

An archived file holds the records of one range of the log. Each range is written directly to its place in a new
segment, so the ranges may be restored in any order, and in Spark's workers. ``encode`` builds the records. The CRC of
each record and the SHA-256 of each range prove them; a compacted file holds several ranges, and each keeps its SHA-256.
Queues and index are then built as the job ``rebuild`` does.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.encode import NEEDED_COLUMNS, bounds_of, encode, forced_record, record_crcs
from rmqha.pipeline.errors import one_line
from rmqha.pipeline.jobs.engine import Engine
from rmqha.pipeline.jobs.logorder import ROWS_BYTES, batches_in_log_order
from rmqha.pipeline.jobs.manifest import ArchivedBlank, Manifest, existing_archive, selection_words
from rmqha.pipeline.jobs.overlap import claims_of
from rmqha.pipeline.jobs.rebuild import rebuild
from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import LOG_FOLDER
from rmqha.pipeline.schema import COLUMNS, RAW_RECORD, RECORD_CRC
from rmqha.settings.settings import Settings
from rmqha.store.clamping import clamp_offsets
from rmqha.store.deletions import read_deletions
from rmqha.store.derived.rebuild import QueueKey
from rmqha.store.errors import StoreError
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.commitlog import DEFAULT_SEGMENT_SIZE
from rmqha.store.log.mappedfile import DISK, file_name
from rmqha.store.log.room import existing_folder
from rmqha.store.log.splits import Split
from rmqha.store.metadata import CONFIG_FOLDER, TopicConfig, TopicConfigTable
from rmqha.store.nodestate import STOPPED, NodeState, Offsets
from rmqha.store.offline.newstore import ROOM_LEFT_BYTES, NoRoom, check_output, new_store
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, encode_blank
from rmqha.wire.scan import scan_records

ZEROS = bytes(1 << 16)
CHECKPOINT_FILE = "checkpoint"
REPLAY = "'rmqha job replay' sends the messages to a broker instead, at new offsets"


class NotRestorable(StoreError):
    """The archive does not hold what a store needs. Nothing was written."""


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """A range of the log in the archive: the file of its messages, if it has any, and what is known of its bytes.

    ``proofs`` are the SHA-256 of its parts, which follow each other, with their ends; None where it is not known.
    """

    start: int
    end: int
    path: str | None = None
    proofs: tuple[tuple[int, str | None], ...] = ()
    blank: ArchivedBlank | None = None

    def followed_by(self, other: "ArchivedRange") -> "ArchivedRange":
        """Both as one range."""
        return replace(self, end=other.end, proofs=(*self.proofs, *other.proofs), blank=other.blank)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore will do: the log from ``start`` to before ``end``, in segments of ``segment_size`` bytes."""

    archive: Path
    ranges: tuple[ArchivedRange, ...]
    start: int
    end: int
    segment_size: int
    messages: int
    tables: Mapping[str, str]
    epoch: int

    def splits(self) -> list[Split]:
        """Each range with its place in a segment, as an engine takes it."""
        size = self.segment_size
        bases = [one.start - one.start % size for one in self.ranges]
        return [
            Split(one.path or "", base, base + size, one.start, one.end)
            for one, base in zip(self.ranges, bases, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class RestoredRange:
    """What was written for one range.

    ``is_identical`` says that the SHA-256 of its bytes is that of the archived log. ``unproved`` messages have neither
    that proof nor a CRC, and the first of them is at or after ``first_unproved``. ``changed`` ones are not what the log
    held.
    """

    messages: int
    is_identical: bool
    unproved: int = 0
    changed: int = 0
    first_unproved: int | None = None
    last_store_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore. ``is_identical``: every byte of the log is proved to be that of the archived log.

    ``tables`` are the names of those that the archive had. ``clamped`` counts the consumer and delay offsets that were
    past the end of their queues. Without ``done`` nothing was written.
    """

    output: Path
    start: int
    end: int
    messages: int
    is_identical: bool
    unproved: int
    changed: int
    tables: tuple[str, ...]
    done: bool
    queues: int = 0
    clamped: int = 0

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job restore --json``."""
        return {
            "output": str(self.output),
            "from": self.start,
            "to": self.end,
            "messages": self.messages,
            "identical": self.is_identical,
            "unproved": self.unproved,
            "changed": self.changed,
            "tables": list(self.tables),
            "done": self.done,
            "queues": self.queues,
            "clampedOffsets": self.clamped,
        }


def plan_restore(root: Path, settings: Settings, whole_segments: bool = False) -> RestorePlan:
    """What making a store from the archive ``root`` needs. Reads the manifests only. ``whole_segments`` leaves out the
    messages before the first segment that is archived from its begin.

    Raises NoStore if it is not an archive, NotRestorable if its range has gaps or does not start with a segment,
    ArchiveError, OSError.
    """
    archive = existing_archive(root)
    manifests, selection = archive.manifests(), archive.selection()
    if selection:
        raise NotRestorable(
            f"{root} holds {selection_words(selection)}, and a log has no gaps: no store can be made from it; {REPLAY}"
        )
    skipped = sum(manifest.skipped for manifest in manifests)
    if skipped:
        raise NotRestorable(
            f"{root} leaves out {skipped} stretches of the log that were not records (onCorrupt=skip): no store can be "
            f"made from it; {REPLAY}"
        )
    size = _segment_size(root, manifests, settings)
    ranges = tuple(_by_file(_gapless(root, manifests, size)))
    if not ranges:
        raise NotRestorable(f"{root} has no messages")
    start, end = ranges[0].start, ranges[-1].end
    if start % size:
        following = start - start % size + size
        if following >= end:
            raise NotRestorable(
                f"{root} starts at {start}, inside the segment of {start - start % size}, and has no other one: a log "
                f"starts with a segment; {REPLAY}"
            )
        if not whole_segments:
            raise NotRestorable(
                f"{root} starts at {start}, inside the segment of {start - start % size}: a log starts with a segment. "
                f"--whole-segments makes a store of the messages from {following} on; {REPLAY}"
            )
        ranges = tuple(one for one in ranges if one.start >= following)
        start = following
    return RestorePlan(
        root,
        ranges,
        start,
        end,
        size,
        sum(file.rows for manifest in manifests for file in manifest.files if file.start >= start),
        archive.tables(),
        max(manifest.epoch for manifest in manifests),
    )


def _segment_size(root: Path, manifests: Sequence[Manifest], settings: Settings) -> int:
    configured = settings.mapped_file_size_commit_log
    known = {one.restore.segment_size for one in manifests if one.restore.segment_size is not None}
    if len(known) > 1:
        raise NotRestorable(f"{root} was made from logs with segments of {' and '.join(map(str, sorted(known)))} bytes")
    size = next(iter(known), configured or DEFAULT_SEGMENT_SIZE)
    if configured is not None and configured != size:
        raise NotRestorable(
            f"the log of {root} had segments of {size} bytes; mappedFileSizeCommitLog says {configured}"
        )
    return size


def _gapless(root: Path, manifests: Sequence[Manifest], size: int) -> Iterator[ArchivedRange]:
    """All ranges in the order of the log. Raises NotRestorable at a gap, ArchiveError, OSError."""
    at = max([manifests[0].start, *(one.expired for one in manifests if one.expired is not None)])
    for manifest in manifests:
        blanks = {blank.end: blank for blank in manifest.restore.blanks}
        for claim in claims_of(root, manifest):
            yield from _between(root, at, claim.start, size)
            blank = blanks.get(claim.end)
            known = blank if blank is not None and blank.start >= claim.start else None
            path = None if claim.path is None else str(claim.path)
            if claim.start // size != (claim.end - 1) // size:
                raise NotRestorable(
                    f"the range of {root} from {claim.start} to {claim.end} does not fit a segment of {size} bytes: "
                    "give the size of the log's segments with --set mappedFileSizeCommitLog=BYTES"
                )
            yield ArchivedRange(claim.start, claim.end, path, ((claim.end, claim.sha256),), known)
            at = claim.end
    yield from _between(root, at, manifests[-1].end, size)


def _between(root: Path, at: int, following: int, size: int) -> Iterator[ArchivedRange]:
    """The blank between two ranges: an old manifest without hashes does not mention it. Raises NotRestorable."""
    if at == following:
        return
    is_blank = following % size == 0 and END_FILE_MIN_BLANK_LENGTH <= following - at < size
    if at > following or not is_blank:
        raise NotRestorable(
            f"{root} has a gap: nothing is archived from {at} to {following}, and a log has no gaps; {REPLAY}"
        )
    yield ArchivedRange(at, following, proofs=((following, None),))


def _by_file(ranges: Iterator[ArchivedRange]) -> Iterator[ArchivedRange]:
    """The ranges, with those of one file as one: a file is read once."""
    last: ArchivedRange | None = None
    for one in ranges:
        if last is not None and last.path is not None and last.path == one.path:
            last = last.followed_by(one)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def restore_range(split: Split, ranges: Mapping[int, ArchivedRange], folder: str | None, lossy: bool) -> RestoredRange:
    """Write the records of a range, and the blank after them, into its segment in ``folder``; None writes nothing.

    Raises StoreError, OSError.
    """
    source = ranges[split.start]
    writer = _Writer(folder, split, source)
    try:
        rows = _Rows(split, source.path, lossy, writer)
        if source.path is not None:
            rows.restore(source.path)
        if writer.at < split.end:
            writer.write(_blank(split, source, writer.at), split.end)
        writer.sync()
    finally:
        writer.close()
    is_identical = writer.is_identical
    unproved = 0 if is_identical else rows.unproved
    return RestoredRange(
        rows.messages,
        is_identical,
        unproved,
        rows.changed,
        split.start if unproved else None,
        rows.last_store_timestamp,
    )


def _blank(split: Split, source: ArchivedRange, at: int) -> bytes:
    """The bytes that end a segment after its last message. Raises NotRestorable."""
    size = split.end - at
    if split.end != split.segment_end or size < END_FILE_MIN_BLANK_LENGTH:
        raise NotRestorable(
            f"{source.path} ends at {at}: the messages up to {split.end} are missing, or the log's segments are not "
            f"of {split.segment_end - split.base} bytes (--set mappedFileSizeCommitLog=BYTES)"
        )
    if source.blank is None:
        return encode_blank(size)
    try:
        content = source.blank.content()
    except ValueError as error:
        raise NotRestorable(str(error)) from error
    if source.blank.start != at:
        raise NotRestorable(f"{source.path} ends at {at}: the messages up to {source.blank.start} are missing")
    return content


class _Writer:
    """Writes a range into its segment, from ``at`` on, and hashes its parts."""

    def __init__(self, folder: str | None, split: Split, source: ArchivedRange) -> None:
        self.at = split.start
        self.is_identical = True
        self._left = list(reversed(source.proofs))
        self._digest = sha256()
        self._base = split.base
        path = None if folder is None else Path(folder) / file_name(split.base)
        self._fd = None if path is None else os.open(path, os.O_WRONLY)

    def write(self, data: bytes | memoryview, end: int) -> None:
        """Write the bytes up to the offset ``end``; after ``data`` they are zeros. Raises OSError."""
        view, at = memoryview(data), self.at - self._base
        self._hash(view)
        for left in range(end - self.at, 0, -len(ZEROS)):
            self._hash(memoryview(ZEROS)[:left])
        while self._fd is not None and view:
            done = os.pwrite(self._fd, view, at)  # only a part, if the disk is filling up
            view, at = view[done:], at + done

    def _hash(self, view: memoryview) -> None:
        """Move on by these bytes. ``is_identical`` becomes false at the end of a part that is not the archived one."""
        while view:
            end, expected = self._left[-1]
            taken = view[: end - self.at]
            self._digest.update(taken)
            self.at += len(taken)
            view = view[len(taken) :]
            if self.at == end:
                self.is_identical &= self._digest.hexdigest() == expected
                self._digest = sha256()
                self._left.pop()

    def sync(self) -> None:
        """Bring it to the disk: a worker may be on another machine. Raises OSError."""
        if self._fd is not None:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the segment."""
        if self._fd is not None:
            os.close(self._fd)


class _Rows:
    """The records of an archived file, proved and written one batch after another."""

    def __init__(self, split: Split, path: str | None, lossy: bool, writer: _Writer) -> None:
        self.messages = self.unproved = self.changed = self.last_store_timestamp = 0
        self._split = split
        self._path = path
        self._lossy = lossy
        self._writer = writer

    def restore(self, path: str) -> None:
        """Write all records of the file. Raises StoreError, OSError."""
        try:
            for batch in _batches(Path(path)):
                self._restore(batch)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise StoreError(f"{path} is damaged: {one_line(error)}") from error

    def _restore(self, batch: pa.RecordBatch) -> None:
        rebuilt = encode(batch)
        if RAW_RECORD in batch.schema.names:
            rebuilt = pc.coalesce(batch[RAW_RECORD], rebuilt)
        wanted = batch["totalSize"].to_numpy(zero_copy_only=False)
        sizes = pc.binary_length(rebuilt).fill_null(-1).to_numpy(zero_copy_only=False)
        misfits = np.flatnonzero(sizes != wanted)
        if len(misfits):
            rebuilt = self._forced(batch, rebuilt, misfits.tolist())
        bounds, data = bounds_of(rebuilt)
        self._prove(batch, bounds, data[int(bounds[0]) : int(bounds[-1])], set(misfits.tolist()))
        self.messages += len(batch)
        self._writer.write(data[int(bounds[0]) : int(bounds[-1])], self._writer.at + int(bounds[-1] - bounds[0]))

    def _forced(self, batch: pa.RecordBatch, rebuilt: pa.BinaryArray, rows: list[int]) -> pa.BinaryArray:
        """The records, with those of ``rows`` made to have their sizes. Raises NotRestorable."""
        records = rebuilt.to_pylist()
        for row in rows:
            values = {name: batch[name][row].as_py() for name in NEEDED_COLUMNS}
            forced = forced_record(values) if self._lossy else None
            if forced is None:
                raise NotRestorable(
                    f"{self._path} does not keep the record at {values['physicalOffset']} exactly: its topic or "
                    "properties are not UTF-8, a time is outside of the years 1 to 9999, or its body was decompressed. "
                    f"--lossy makes the best of it, except for bodies; {REPLAY}"
                )
            records[row] = forced
            self.changed += 1
        return pa.array(records, pa.binary())

    def _prove(self, batch: pa.RecordBatch, bounds: Any, data: memoryview, changed: set[int]) -> None:
        """Raises StoreError if the records do not follow each other, are damaged, or are not the archived ones."""
        at = self._writer.at
        offsets = batch["physicalOffset"].to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(offsets != at + bounds[:-1] - bounds[0])
        if len(wrong):
            expected = at + int(bounds[wrong[0]] - bounds[0])
            raise NotRestorable(f"{self._path} has no message at {expected}: the next is at {int(offsets[wrong[0]])}")
        if RECORD_CRC in batch.schema.names:
            crcs = batch[RECORD_CRC].to_numpy(zero_copy_only=False)
            differ = np.flatnonzero(crcs != record_crcs(bounds - bounds[0], data))
            strange = [row for row in differ.tolist() if row not in changed]
            if strange:
                raise StoreError(
                    f"the message at {int(offsets[strange[0]])} in {self._path} is not the one that was archived: its "
                    "CRC differs"
                )
        else:
            self.unproved += len(batch)
        found = scan_records(data, at, at, at + len(data), self._split.segment_end)
        if found.end != at + len(data):
            raise StoreError(f"the message at {found.end} in {self._path} is damaged: {found.problem}")
        self.last_store_timestamp = found.store_timestamp


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file with the columns that make a record. Raises NotRestorable, pa.ArrowException, OSError."""
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for name in NEEDED_COLUMNS:
            if name not in schema.names or schema.field(name).type != COLUMNS[name]:
                raise NotRestorable(
                    f"{path} has no column {name} as the log held it (the archive was made with columns= or "
                    f"properties=): no store can be made from it; {REPLAY}"
                )
        names = [*NEEDED_COLUMNS, *(name for name in (RECORD_CRC, RAW_RECORD) if name in schema.names)]
        yield from batches_in_log_order(file, names, ROWS_BYTES)


@dataclass(frozen=True, slots=True)
class RestoreChoices:
    """How to restore. ``lossy`` takes what cannot be proved. ``dry_run`` proves everything, and writes nothing."""

    lossy: bool = False
    dry_run: bool = False


def restore(
    plan: RestorePlan,
    output: Path,
    settings: Settings,
    engine: Engine,
    choices: RestoreChoices = RestoreChoices(),
    bar: IBar = NO_BAR,
) -> Restored:
    """Make a store from an archive in ``output``, which must not exist or be empty. It gets an id and epoch of its own.

    ``settings`` are those of the new store: sizes of its queue and index files, delay levels. If it fails, nothing is
    left. Raises OutputExists, NoRoom, NotRestorable, StoreError, OSError.
    """
    check_output(plan.archive, output)
    _check_room(plan, output)
    if choices.dry_run:
        return _merged(plan, output, _run(plan, None, engine, choices, bar))
    facts = {"source": str(plan.archive), "end": plan.end, "kind": "archive"}
    with new_store(output, facts) as folder:
        _make_segments(folder / LOG_FOLDER, plan)
        parts = _run(plan, folder / LOG_FOLDER, engine, choices, bar)
        found = _merged(plan, output, parts)
        last = next((part.last_store_timestamp for part in reversed(parts) if part.messages), 0)
        Checkpoint(last, last, last).write(folder / CHECKPOINT_FILE)
        offsets = Offsets(plan.start, plan.end, plan.end, plan.end, plan.end)
        state = replace(NodeState.new(), epoch=plan.epoch + 1, epoch_start=plan.end, state=STOPPED, offsets=offsets)
        state.write(folder)
        own = replace(settings, store_path_root_dir=folder, store_path_commit_log=None)
        _write_tables(plan, folder)
        built = rebuild(Options(path=folder, settings=own), engine, bar)
        clamped = _fit_tables(folder / CONFIG_FOLDER, built.ends)
        return replace(found, done=True, queues=built.queues, clamped=clamped)


def _run(
    plan: RestorePlan, folder: Path | None, engine: Engine, choices: RestoreChoices, bar: IBar
) -> list[RestoredRange]:
    """Restore all ranges. Raises NotRestorable if some messages are not proved and that is not accepted."""
    on_split = partial(
        restore_range,
        ranges={one.start: one for one in plan.ranges},
        folder=None if folder is None else str(folder),
        lossy=choices.lossy,
    )
    parts = engine.run(on_split, plan.splits(), bar)
    unproved = sum(part.unproved for part in parts)
    if unproved and not choices.lossy:
        first = min(part.first_unproved for part in parts if part.first_unproved is not None)
        raise NotRestorable(
            f"{unproved} messages of {plan.archive}, the first at or after {first}, cannot be proved to be what the "
            "log held: the archive was made before archives kept a CRC of each record. --lossy takes them as they are"
        )
    return parts


def _merged(plan: RestorePlan, output: Path, parts: Sequence[RestoredRange]) -> Restored:
    return Restored(
        output,
        plan.start,
        plan.end,
        sum(part.messages for part in parts),
        all(part.is_identical for part in parts),
        sum(part.unproved for part in parts),
        sum(part.changed for part in parts),
        tuple(sorted(plan.tables)),
        done=False,
    )


def _check_room(plan: RestorePlan, output: Path) -> None:
    needed, parent = plan.end - plan.start + ROOM_LEFT_BYTES, existing_folder(output.absolute().parent)
    free = DISK.free_bytes(parent)
    if needed > free:
        raise NoRoom(f"the store needs {needed} bytes, but {parent} has room for {free}: nothing was changed")


def _make_segments(folder: Path, plan: RestorePlan) -> None:
    """Create the segments, without blocks. A segment follows a full one, as after a start (spec/ha.md 14)."""
    folder.mkdir()
    for base in range(plan.start, plan.end + 1, plan.segment_size):
        with (folder / file_name(base)).open("xb") as file:
            file.truncate(plan.segment_size)


def _write_tables(plan: RestorePlan, folder: Path) -> None:
    """Write the archived tables, with the deletions up to the store's end. Raises StoreError, OSError."""
    config = folder / CONFIG_FOLDER
    config.mkdir()
    for name, text in plan.tables.items():
        (config / Path(name).name).write_text(text)
    deleted = read_deletions(folder).up_to(plan.end)
    if deleted.deletions:
        deleted.write(config)


def _fit_tables(config: Path, ends: Mapping[QueueKey, int]) -> int:
    """Fit the tables to the queues; returns how many offsets were past the end of their queues. Raises OSError.

    Each topic with queues gets a row: the archived table may be older than it, and a broker serves only topics that it
    knows.
    """
    topics = TopicConfigTable.read(config)
    counts: dict[str, int] = {}
    for topic, queue_id in ends:
        if topic not in topics.rows:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    topics.rows.update({topic: TopicConfig(topic, count, count) for topic, count in counts.items()})
    if counts:
        topics.write(config)
    return clamp_offsets(config, ends)
