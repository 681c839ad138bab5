"""Writes the log as Parquet files into a folder that any engine can read, each message exactly once.

A split becomes one file, named after its range of the log: a second attempt makes the same file. Manifests say which
files count, see ``manifest``. Bodies go from the log to the file within one process.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.bodies.reading import Bodies, bodies_of, check_names, chosen_formats, pieces, with_schemas
from rmqha.pipeline.brokers import open_one
from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, decode, select
from rmqha.pipeline.encode import proof_columns
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.engine import Engine, run_range
from rmqha.pipeline.jobs.manifest import (
    Archive,
    ArchivedBlank,
    ArchivedFile,
    Manifest,
    RangeHash,
    RestoreFacts,
    archived_path,
    open_staging,
    range_name,
    stage,
    uncovered,
)
from rmqha.pipeline.jobs.origin import check_layout
from rmqha.pipeline.jobs.overlap import Proof
from rmqha.pipeline.jobs.replacing import mend
from rmqha.pipeline.jobs.tableformats import begin_table, update_tables
from rmqha.pipeline.jobs.tablelog import TableFormat, schema_of
from rmqha.pipeline.options import Compression, OnCorrupt, Options, Properties, Selection
from rmqha.pipeline.plan import LogPlan
from rmqha.pipeline.schema import PROOF_COLUMNS, RECORD_CRC, VALUE, archive_schema
from rmqha.pipeline.segments import log, log_skipped, open_segment, read_records
from rmqha.pipeline.sqltypes import same_but_case
from rmqha.store.errors import CorruptLogError, DataLossError
from rmqha.store.log.splits import Split
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.newstore import check_place
from rmqha.store.tablesnapshots import read_snapshot, read_tables
from rmqha.wire.columns import Records
from rmqha.wire.layout import BLANK_HEADER, BLANK_MAGIC_CODE

Result = TypeVar("Result")
Ready = Mapping[str, pa.Array]
COMMIT_BYTES = 4 << 30
"""Bytes of log in one manifest: the most that is lost if the job is killed."""
ROW_GROUP_BYTES = 32 << 20
PLAIN_COLUMNS = ("body", "properties", "keys", *PROOF_COLUMNS)
"""Columns whose values rarely repeat. A dictionary would only make them larger."""


@dataclass(frozen=True, slots=True)
class ArchivedSplit:
    """The result of archiving a range of the log. There is no file if the range has no message. ``skipped`` stretches
    are not records.

    ``sha256`` is the hash of its bytes in the log, None if some were missing. ``blank`` is the end of its segment, if
    that has no message. ``is_lossless`` says that the file keeps all records exactly.
    """

    start: int
    end: int
    file: ArchivedFile | None
    skipped: int = 0
    sha256: str | None = None
    segment_size: int = 0
    blank: ArchivedBlank | None = None
    is_lossless: bool = False


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a run: ``end`` is how far the archive reaches now, ``log_end`` is the end of the log.

    ``proved`` is the range that was proved equal to the log of another store, to which the archive belonged before.
    """

    start: int
    end: int
    messages: int
    files: int
    skipped: int
    removed_files: int
    log_end: int
    proved: tuple[int, int] | None

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job archive --json``."""
        return {
            "from": self.start,
            "to": self.end,
            "messages": self.messages,
            "files": self.files,
            "skipped": self.skipped,
            "removedFiles": self.removed_files,
            "logEnd": self.log_end,
            "proved": self.proved,
        }


class _Staging:
    """A Parquet file that is being written. It is created with the first message, and staged when it is complete and on
    the disk.

    A context manager: if the file was not finished, nothing of it remains.
    """

    def __init__(self, root: Path, split: Split, schema: pa.Schema, compression: Compression) -> None:
        self._root = root
        self._split = split
        self._schema = schema
        self._compression = compression.value
        self._path: Path | None = None
        self._rows = 0
        self._timestamps: list[int] = []
        self._batches: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    def __enter__(self) -> "_Staging":
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            with suppress(OSError):  # on a full disk the writer still has its footer
                self._writer.close()
            with suppress(OSError):  # and the file what it has buffered
                self._file.close()
            self._temporary.unlink(missing_ok=True)

    def write(self, records: Records, batch: pa.RecordBatch) -> None:
        """Add decoded messages. Raises OSError."""
        stored = records.ints("storeTimestamp")
        if self._path is None:
            self._begin(int(stored[0]))
        self._rows += len(records)
        self._timestamps += [int(stored.min()), int(stored.max())]
        self._batches.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._write_pending()

    def _begin(self, first_timestamp: int) -> None:
        hour = datetime.fromtimestamp(min(max(0, first_timestamp), MAX_TIMESTAMP_MS) / 1000, UTC)
        self._temporary, self._file = open_staging(self._root, self._split.start, self._split.end)
        name = f"{range_name(self._split.start, self._split.end)}.parquet"
        self._path = Path(f"date={hour:%Y-%m-%d}") / f"hour={hour:%H}" / name
        dictionary = [name for name in self._schema.names if name not in PLAIN_COLUMNS]
        self._writer = pq.ParquetWriter(
            self._file, self._schema, compression=self._compression, use_dictionary=dictionary
        )

    def _write_pending(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._pending_bytes = [], 0

    def finish(self) -> ArchivedFile | None:
        """Bring the file to the disk and stage it. Returns None if there was no message. Raises OSError."""
        if self._path is None:
            return None
        self._write_pending()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        return ArchivedFile(
            path=str(self._path),
            start=self._split.start,
            end=self._split.end,
            rows=self._rows,
            bytes=size,
            min_store_timestamp=min(self._timestamps),
            max_store_timestamp=max(self._timestamps),
            staged=stage(self._temporary),
        )


def archived_columns(options: Options, archives: Iterable[Archive] = ()) -> pa.Schema:
    """The columns of the files to come. Raises OptionError if bodies cannot be decoded into them: all files must have
    the same columns, with names that engines can tell apart.

    An archive that has other names from before goes on with them, with a warning. Raises ArchiveError, OSError.
    """
    for _, one in chosen_formats(options):
        if one.is_inferred:
            raise OptionError(
                "a stream's archive of decoded JSON needs its schema (bodySchema=): later bodies may differ"
            )
    bodies = bodies_of(options, is_checked=True)
    if bodies is not None and (clash := same_but_case(bodies.type)) is not None:
        older = [one for one in archives if _archived_value(one) == bodies.type]
        if not older:
            check_names(bodies.type)
        log.warning(
            "%s has the fields %s, whose names differ only in case: Spark cannot read its column value, and its Delta "
            "table does not have it. To have it, archive to a new folder, with bodySchema=",
            ", ".join(str(one.root) for one in older),
            " and ".join(clash),
        )
    return _schema(options, bodies)


def archive_split(split: Split, root: str, options: Options) -> ArchivedSplit:
    """Stage the messages of a split as a file in ``root``. Raises StoreError, OSError."""
    bodies = bodies_of(options, is_checked=True)
    schema = _schema(options, bodies)
    skips: list[CorruptLogError] = []
    end = split.start

    def skipped(error: CorruptLogError, end: int) -> None:
        log_skipped(error, end)
        skips.append(error)

    with _Staging(Path(root), split, schema, options.compression) as staging:
        digest = sha256()
        is_whole = True
        try:
            for records in read_records(
                split,
                options.batch_bytes,
                options.verify_body,
                skipped if options.on_corrupt is OnCorrupt.SKIP else None,
                options.drop_behind,
                lambda passed: digest.update(passed.data),
            ):
                end = records.end
                wanted = select(records, options.selection)
                for piece, ready in _decoded(wanted, bodies, options):
                    staging.write(piece, _rows(piece, schema, options.decompress, ready))
        except DataLossError as error:
            if options.fail_on_data_loss:
                raise
            log.warning("%s", error)
            is_whole = False
        file = staging.finish()
        return ArchivedSplit(
            split.start,
            split.end,
            file,
            len(skips),
            digest.hexdigest() if is_whole else None,
            split.segment_end - split.base,
            _blank(split, end) if is_whole else None,
            is_whole and not skips and RECORD_CRC in schema.names and options.selection == Selection(),
        )


def _schema(options: Options, bodies: Bodies | None) -> pa.Schema:
    """The columns of the files. Raises OptionError."""
    value = None if bodies is None else bodies.type
    return archive_schema(options.columns, (options.properties or Properties.RAW).value, value)


def _decoded(records: Records, bodies: Bodies | None, options: Options) -> Iterator[tuple[Records, Ready]]:
    """The messages, and the columns of their decoded bodies."""
    if bodies is None:
        if len(records):
            yield records, {}
        return
    for piece in pieces(records, options.max_body_bytes, options.batch_bytes):
        yield piece.records, bodies.columns(piece)


def _rows(records: Records, schema: pa.Schema, decompress: bool, ready: Ready) -> pa.RecordBatch:
    """The rows of these messages."""
    if RECORD_CRC not in schema.names:
        return decode(records, schema, decompress, ready)
    columns = pa.schema([field for field in schema if field.name not in (*PROOF_COLUMNS, *ready)])
    batch = decode(records, columns, decompress)
    arrays = [*batch.columns, *proof_columns(records, batch), *ready.values()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _blank(split: Split, start: int) -> ArchivedBlank | None:
    """The blank that follows the last message of a split, if one does. Raises OSError."""
    if start >= split.end or split.end != split.segment_end or split.end - start < BLANK_HEADER.size:
        return None
    with open_segment(split.path, split.base) as segment:
        content = segment.read(start, split.end - start).tobytes()
    is_blank = BLANK_HEADER.unpack_from(content) == (split.end - start, BLANK_MAGIC_CODE)
    return ArchivedBlank.of(start, content) if is_blank else None


def merge_archived(start: int, end: int, parts: Sequence[ArchivedSplit], state: NodeState | None) -> Manifest:
    """The manifest of a range whose splits are staged, with the state of their store's node."""
    return Manifest(
        start,
        end,
        store_id=None if state is None else state.store_id,
        epoch=0 if state is None else state.epoch,
        files=tuple(part.file for part in parts if part.file is not None),
        skipped=sum(part.skipped for part in parts),
        hashes=tuple(RangeHash(part.start, part.end, part.sha256) for part in parts if part.sha256 is not None),
        restore=RestoreFacts(
            lossless=all(part.is_lossless for part in parts),
            segment_size=max((part.segment_size for part in parts), default=0) or None,
            blanks=tuple(part.blank for part in parts if part.blank is not None),
        ),
    )


def tables_at(store: Path, offset: int, end: int) -> Mapping[str, str]:
    """The tables of a store for a restore that ends at ``offset``: the last snapshot before it, or else those of now.

    They are those of now too if the log ends there, at ``end``. Raises OSError.
    """
    snapshot = read_snapshot(store, offset) if offset < end else None
    return read_tables(store) if snapshot is None else snapshot.tables


def commit_proved(archive: Archive, proof: Proof, commit: Callable[[], Result]) -> Result:
    """Call ``commit`` under the archive's lock, after the store's log is proved to be the archived one; returns its
    result.

    Raises WrongArchive, StoreError, OSError.
    """
    while True:
        with archive.locked():
            if not proof.pending():  # no other store's log was archived since the proof
                return commit()
        proof.prove()


def commit_everywhere(archive: Archive, manifest: Manifest, tables: Mapping[str, str]) -> bool:
    """``Archive.commit``, and the same in the tables that the archive is. Call it under ``locked``."""
    is_new = archive.commit(manifest, tables)
    update_tables(archive)
    return is_new


def archive(
    options: Options,
    engine: Engine,
    bar: IBar = NO_BAR,
    commit_bytes: int = COMMIT_BYTES,
    table: TableFormat = TableFormat.PARQUET,
) -> Archived:
    """Archive the part of the log of ``options.path`` that is not in the archive ``options.output`` yet.

    Only the selected messages are archived, and such an archive is not a whole log: no store can be made from it. A
    manifest covers about ``commit_bytes`` of log. Streams may archive meanwhile; another job may not. An archive of
    another store is continued if both logs are proved to be the same where both have bytes. The archive becomes a
    ``table``, and stays one. JSON bodies without a schema get that of the archive, or else one that is inferred.

    Raises OptionError, StoreInUse, WrongArchive, StoreError, OSError.
    """
    if options.output is None:
        raise OptionError("archive needs output, a folder to write to")
    check_place(options.output)
    check_layout(options.output, in_cluster=False)
    archive = Archive(options.output)
    if chosen_formats(options):
        options = with_schemas(options, _archived_value(archive))
    columns = archived_columns(options, [archive])
    plan = open_one(options)
    start, end = plan.start(), plan.stop()
    manifests = []
    with archive.job_locked():
        with archive.locked():
            archive.check_confirmed(plan.state, end)
            archive.select(options.selection.as_texts())
            begin_table(archive.root, table, columns)
            mend(archive)
        proof = Proof(archive, plan.state, lambda: plan, engine, bar)
        proof.prove()
        while following := _next_range(archive, plan, start, end, commit_bytes):
            on_split = partial(archive_split, root=str(options.output), options=options)
            parts = run_range(engine, on_split, plan, *following, bar)
            manifest = merge_archived(*following, parts, plan.state)
            tables = tables_at(plan.store, following[1], plan.end)
            if commit_proved(archive, proof, partial(commit_everywhere, archive, manifest, tables)):
                manifests.append(manifest)  # else a stream was faster, and there is less left to do
        with archive.locked():
            removed = archive.clean()
        covered = archive.covered()
    return Archived(
        start=manifests[0].start if manifests else covered[-1][1] if covered else plan.end,
        end=covered[-1][1] if covered else plan.end,
        messages=sum(manifest.rows for manifest in manifests),
        files=sum(len(manifest.files) for manifest in manifests),
        skipped=sum(manifest.skipped for manifest in manifests),
        removed_files=removed,
        log_end=end,
        proved=(proof.proved[0][0], proof.proved[-1][1]) if proof.proved and plan.state is not None else None,
    )


def _archived_value(archive: Archive) -> pa.DataType | None:
    """The type of the bodies in the newest file; None if there is none. All later files get the same."""
    files = [file for manifest in archive.manifests() for file in manifest.files]
    if not files:
        return None
    schema = schema_of(archived_path(archive.root, files[-1]))
    return schema.field(VALUE).type if VALUE in schema.names else None


def _next_range(archive: Archive, plan: LogPlan, start: int, end: int, commit_bytes: int) -> tuple[int, int] | None:
    """The next range to archive, which gets a manifest. Raises DataLossError, StoreError, OSError."""
    covered = archive.covered()
    if covered and plan.options.fail_on_data_loss and covered[-1][1] < plan.min_offset:
        raise DataLossError(f"{archive.root} ends at {covered[-1][1]}, but the log starts at {plan.min_offset}")
    left = uncovered(start, end, covered)
    if not left:
        return None
    low, high = left[0]
    return low, high if high - low <= commit_bytes else min(high, plan.record_start(low + commit_bytes))
