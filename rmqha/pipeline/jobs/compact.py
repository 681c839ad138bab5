"""Makes large files of an archive's small ones. The rows of a large file are sorted by topic and time.

Files of one hour's folder that follow each other in the log become one, up to a number of bytes of log. A file never
crosses a segment, so that a restore can write each file's records to one segment. The hash of each archived range stays
in the manifest: a restore still proves every byte.

A new file counts only after it was read back, and every value of it compared with the old ones. Then one manifest takes
the place of the old manifests, see ``replacing``, and the old files go.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmqha.kit.progress import NO_BAR, IBar, PartBar
from rmqha.pipeline.errors import OptionError, one_line
from rmqha.pipeline.jobs.archive import COMMIT_BYTES, PLAIN_COLUMNS, ROW_GROUP_BYTES
from rmqha.pipeline.jobs.engine import Engine
from rmqha.pipeline.jobs.logorder import OFFSET, ORDER, as_batch, is_compacted, rows_of
from rmqha.pipeline.jobs.manifest import (
    COMPACTED_SUFFIX,
    Archive,
    ArchivedFile,
    ArchiveError,
    Manifest,
    RestoreFacts,
    archived_path,
    existing_archive,
    open_compacted,
    range_name,
    remove_compacted,
    stage,
)
from rmqha.pipeline.jobs.replacing import mend, replace_manifests
from rmqha.pipeline.jobs.tableformats import remove_orphans
from rmqha.pipeline.jobs.tablelog import metadata_of
from rmqha.pipeline.options import Compression
from rmqha.pipeline.schema import RECORD_CRC
from rmqha.store.errors import StoreError
from rmqha.store.log.splits import Split

TARGET_BYTES = 128 << 20
"""Bytes of log in a large file. A task holds them in memory about twice."""
MAX_TARGET_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CompactChoices:
    """How to compact: bytes of log in a large file, the codec, and whether only to say what would be done."""

    target_bytes: int = TARGET_BYTES
    compression: Compression = Compression.ZSTD
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes one manifest: manifests that follow each other, and those of their files that become one, in
    groups.
    """

    manifests: tuple[Manifest, ...]
    groups: tuple[tuple[ArchivedFile, ...], ...]

    def splits(self) -> list[Split]:
        """Each group as an engine takes it."""
        return [Split("", group[0].start, group[-1].end, group[0].start, group[-1].end) for group in self.groups]

    def manifest(self, made: Mapping[int, ArchivedFile]) -> Manifest:
        """The manifest that takes the place of the others. ``made`` are the new files, by their starts."""
        replaced = {file.path for group in self.groups for file in group}
        kept = [file for one in self.manifests for file in one.files if file.path not in replaced]
        first, last = self.manifests[0], self.manifests[-1]
        facts = [one.restore for one in self.manifests]
        expired = [one.expired for one in self.manifests if one.expired is not None]
        return replace(
            last,
            start=first.start,
            files=tuple(sorted([*kept, *made.values()], key=lambda file: file.start)),
            skipped=sum(one.skipped for one in self.manifests),
            hashes=tuple(each for one in self.manifests for each in one.hashes),
            restore=RestoreFacts(
                lossless=all(one.lossless for one in facts),
                segment_size=facts[0].segment_size,
                blanks=tuple(blank for one in facts for blank in one.blanks),
            ),
            expired=max(expired, default=None),
        )


@dataclass(frozen=True, slots=True)
class CompactedGroup:
    """A new file, which is staged, and the seconds of processor time that it took."""

    file: ArchivedFile
    seconds: float


@dataclass(slots=True)
class Compacted:
    """The result: what was compacted into what. ``log_bytes`` are the bytes of log in it. Without ``done`` nothing was
    changed, and ``files_after`` and ``manifests_after`` say what there would be.

    ``left`` counts files that cannot be compacted, see ``_Planner``.
    """

    done: bool
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    messages: int = 0
    log_bytes: int = 0
    manifests_before: int = 0
    manifests_after: int = 0
    left: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0

    def count(self, batch: Batch) -> None:
        """Count what becomes of a batch."""
        old = [file for group in batch.groups for file in group]
        self.files_before += len(old)
        self.files_after += len(batch.groups)
        self.bytes_before += sum(file.bytes for file in old)
        self.messages += sum(file.rows for file in old)
        self.log_bytes += sum(file.end - file.start for file in old)
        self.manifests_before += len(batch.manifests)
        self.manifests_after += 1

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job compact --json``."""
        return {
            "done": self.done,
            "filesBefore": self.files_before,
            "filesAfter": self.files_after,
            "bytesBefore": self.bytes_before,
            "bytesAfter": self.bytes_after,
            "messages": self.messages,
            "logBytes": self.log_bytes,
            "manifestsBefore": self.manifests_before,
            "manifestsAfter": self.manifests_after,
            "filesLeft": self.left,
            "seconds": round(self.seconds, 3),
            "processorSeconds": round(self.processor_seconds, 3),
        }


def compact(root: Path, engine: Engine, choices: CompactChoices = CompactChoices(), bar: IBar = NO_BAR) -> Compacted:
    """Compact the archive ``root``. Streams may archive meanwhile; another job may not.

    Raises NoStore if it is not an archive, OptionError, StoreInUse, StoreError, OSError.
    """
    if not 0 < choices.target_bytes <= MAX_TARGET_BYTES:
        raise OptionError("a file may hold between 1 byte and 1g of log")
    archive = existing_archive(root)
    if choices.dry_run:
        return _compact(archive, engine, choices, bar)
    with archive.job_locked():
        with archive.locked():
            mend(archive)
            remove_orphans(root)
            remove_compacted(root)
        return _compact(archive, engine, choices, bar)


def _compact(archive: Archive, engine: Engine, choices: CompactChoices, bar: IBar) -> Compacted:
    started = time.monotonic()
    planner = _Planner(archive.root, choices.target_bytes)
    batches = list(planner.batches(archive.manifests()))
    found = Compacted(done=not choices.dry_run, left=planner.left)
    total, done = sum(len(batch.groups) for batch in batches), 0
    for batch in batches:
        found.count(batch)
        if choices.dry_run:
            continue
        on_split = partial(
            compact_group,
            groups={group[0].start: group for group in batch.groups},
            root=str(archive.root),
            compression=choices.compression,
        )
        parts = engine.run(on_split, batch.splits(), PartBar(bar, done, total))
        done += len(parts)
        found.bytes_after += sum(part.file.bytes for part in parts)
        found.processor_seconds += sum(part.seconds for part in parts)
        manifest = batch.manifest({part.file.start: part.file for part in parts})
        with archive.locked():
            if not replace_manifests(archive, batch.manifests, manifest, keeps_rows=True):
                raise ArchiveError(f"another process has changed the manifests of {archive.root}: run the job again")
    found.seconds = time.monotonic() - started
    return found


class _Planner:
    """Finds what belongs together. ``left`` counts files that stay as they are: a restore could not use them, because
    they have no offsets, or their manifest does not say the size of the log's segments.
    """

    def __init__(self, root: Path, target_bytes: int) -> None:
        self.left = 0
        self._root = root
        self._target = target_bytes

    def batches(self, manifests: Iterable[Manifest]) -> Iterator[Batch]:
        """What there is to do, in the order of the log. Raises StoreError, OSError."""
        run: list[Manifest] = []
        for manifest in manifests:
            if run and not _fits(run, manifest):
                yield from self._batch(run)
                run = []
            run.append(manifest)
        yield from self._batch(run)

    def _batch(self, run: Sequence[Manifest]) -> Iterator[Batch]:
        size = run[0].restore.segment_size if run else None
        groups: tuple[tuple[ArchivedFile, ...], ...] = ()
        if size is None:
            self.left += sum(len(one.files) for one in run)
        else:
            groups = tuple(self._groups(run, size))
        if groups or len(run) > 1:
            yield Batch(tuple(run), groups)

    def _groups(self, run: Sequence[Manifest], size: int) -> Iterator[tuple[ArchivedFile, ...]]:
        """The files that become one, group by group. A compacted file that would stay alone is left out."""
        group: list[ArchivedFile] = []
        schema: pa.Schema | None = None
        is_done = True
        for file in (file for one in run for file in one.files):
            metadata = metadata_of(archived_path(self._root, file))
            kind = metadata.schema.to_arrow_schema().remove_metadata()
            if OFFSET not in kind.names:
                self.left += 1
                continue
            if group and (kind != schema or not self._follows(group, file, size)):
                if not is_done:
                    yield tuple(group)
                group = []
            is_done = not group and is_compacted(metadata)
            schema = kind
            group.append(file)
        if not is_done:
            yield tuple(group)

    def _follows(self, group: Sequence[ArchivedFile], file: ArchivedFile, size: int) -> bool:
        """Whether a file may come into the same file as a group."""
        first, last = group[0], group[-1]
        return (
            last.end == file.start
            and first.start // size == (file.end - 1) // size
            and file.end - first.start <= self._target
            and Path(first.path).parent == Path(file.path).parent
        )


def _fits(run: Sequence[Manifest], manifest: Manifest) -> bool:
    """Whether manifests may become one: they follow each other, are of one store and epoch, and not too large."""
    last = run[-1]
    return (
        last.end == manifest.start
        and (last.store_id, last.epoch) == (manifest.store_id, manifest.epoch)
        and last.restore.segment_size == manifest.restore.segment_size
        and manifest.end - run[0].start <= COMMIT_BYTES
    )


def compact_group(
    split: Split, groups: Mapping[int, tuple[ArchivedFile, ...]], root: str, compression: Compression
) -> CompactedGroup:
    """Stage a file with the rows of a group, and prove it. Raises StoreError, OSError."""
    started = time.process_time()
    group = groups[split.start]
    pa.default_memory_pool().release_unused()  # what the last group has left
    rows = _read(Path(root), group)
    order = _order(rows)
    path, file = open_compacted(Path(root), split.start, split.end)
    try:
        with file:
            _write(rows, order, file, compression)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
            _prove(rows, order, path)
            staged = stage(path, COMPACTED_SUFFIX)
    except BaseException:  # any error: nothing of it remains
        path.unlink(missing_ok=True)
        raise
    made = ArchivedFile(
        path=str(Path(group[0].path).parent / f"{range_name(split.start, split.end)}.sorted.parquet"),
        start=split.start,
        end=split.end,
        rows=len(rows),
        bytes=size,
        min_store_timestamp=min(file.min_store_timestamp for file in group),
        max_store_timestamp=max(file.max_store_timestamp for file in group),
        staged=staged,
        merged=tuple(each for file in group for each in file.ranges),
    )
    return CompactedGroup(made, time.process_time() - started)


def _read(root: Path, group: Sequence[ArchivedFile]) -> pa.RecordBatch:
    """All rows of a group. Raises StoreError if they are not those that the manifests name, and OSError."""
    tables = []
    for file in group:
        path = archived_path(root, file)
        try:
            with pq.ParquetFile(path, pre_buffer=True) as opened:
                table = opened.read(use_threads=False)  # for small files, threads cost more than they bring
        except pa.ArrowException as error:
            raise StoreError(f"{path} is damaged: {one_line(error)}") from error
        bounds = pc.min_max(table[OFFSET]).as_py()
        if len(table) != file.rows or bounds["min"] < file.start or bounds["max"] >= file.end:
            raise StoreError(
                f"{path} has {len(table)} messages from {bounds['min']} to {bounds['max']}, but its manifest says "
                f"{file.rows} from {file.start} to before {file.end}: nothing was compacted of it"
            )
        tables.append(table.replace_schema_metadata())
    return as_batch(pa.concat_tables(tables))


def _order(rows: pa.RecordBatch) -> pa.Array:
    """Where the rows lie that come first, second and so on. Raises StoreError if a message is there twice."""
    offsets = np.sort(rows[OFFSET].to_numpy(zero_copy_only=False))
    twice = np.flatnonzero(offsets[1:] == offsets[:-1])
    if len(twice):
        raise StoreError(f"the message at {int(offsets[twice[0]])} is there twice: nothing was compacted")
    keys = {name: rows[name] for name in ORDER if name in rows.schema.names}
    if "topic" in keys:  # few topics: numbers sort faster than texts
        topics = keys["topic"].dictionary_encode()
        ranks = pc.rank(topics.dictionary, "ascending")
        keys["topic"] = ranks.take(topics.indices)
    return pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])


def _slices(rows: pa.RecordBatch, order: pa.Array) -> Iterator[pa.RecordBatch]:
    """The rows in order, a row group at a time."""
    count = rows_of(ROW_GROUP_BYTES, len(rows), rows.nbytes)
    for start in range(0, len(rows), count):
        yield rows.take(order.slice(start, count))


def _write(rows: pa.RecordBatch, order: pa.Array, file: Any, compression: Compression) -> None:
    schema = rows.schema
    writer = pq.ParquetWriter(
        file,
        schema,
        compression=compression.value,
        use_dictionary=[name for name in schema.names if name not in PLAIN_COLUMNS],
        sorting_columns=[pq.SortingColumn(schema.names.index(name)) for name in ORDER if name in schema.names],
    )
    with writer:
        for part in _slices(rows, order):
            writer.write_table(pa.Table.from_batches([part]), row_group_size=len(part))


def _prove(rows: pa.RecordBatch, order: pa.Array, path: Path) -> None:
    """Read the new file back, and compare it with the old rows. Raises StoreError, OSError."""
    again = []
    with pq.ParquetFile(path, pre_buffer=True) as file:
        for number, part in enumerate(_slices(rows, order)):
            back = as_batch(file.read_row_group(number, use_threads=False).replace_schema_metadata())
            if not back.equals(part):
                raise StoreError(f"what was written to {path} does not come back from the disk: the old files stay")
            again.append(back.select([name for name in (OFFSET, RECORD_CRC) if name in back.schema.names]))
    if _digest(as_batch(pa.Table.from_batches(again))) != _digest(rows):
        raise StoreError(f"{path} does not hold the messages of the old files: they stay")


def _digest(rows: pa.RecordBatch) -> tuple[int, str]:
    """The number of messages, and a hash over their offsets and CRCs in the order of the log."""
    order = np.argsort(rows[OFFSET].to_numpy(zero_copy_only=False))
    digest = sha256()
    for name in (OFFSET, RECORD_CRC):
        if name in rows.schema.names:
            digest.update(np.ascontiguousarray(rows[name].fill_null(0).to_numpy(zero_copy_only=False)[order]).data)
    return len(rows), digest.hexdigest()
