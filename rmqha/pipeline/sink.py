"""Spark's sink for an archive: ``df.write.format("rmqha_archive")`` and ``df.writeStream.format("rmqha_archive")``.

The rows are those of ``view=splits``. Workers read the log and write the files, so no body passes through Spark. Ranges
that are archived already are left out: if Spark repeats a batch, or another query runs, no message is added twice. The
brokers of a cluster have an archive each, see ``jobs.origin``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import (
    ArchivedSplit,
    archive_split,
    archived_columns,
    commit_proved,
    merge_archived,
)
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError, uncovered
from rmqha.pipeline.jobs.origin import Origin, archives_in, check_origins
from rmqha.pipeline.jobs.overlap import Proof
from rmqha.pipeline.jobs.replacing import mend
from rmqha.pipeline.jobs.tableformats import add_to_tables, begin_table, check_package
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.options import Options, parse_options
from rmqha.pipeline.views import SPLITS_SCHEMA
from rmqha.store.log.splits import Split
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.newstore import check_place

TABLE_OPTION = "table"
NOT_OF_THE_LOG = ("checkpointlocation", TABLE_OPTION)

Part = tuple[Split, ArchivedSplit]


@dataclass(frozen=True)
class StagedLog:
    """What a task has staged of one log, and the state of its node before the read. ``split`` is one of the log's."""

    origin: Origin
    split: Split
    state: NodeState | None
    parts: tuple[Part, ...]


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged; nothing if it had no rows."""

    logs: tuple[StagedLog, ...]


class ArchiveDataSource(DataSource):
    """An archive folder: the path of ``save``."""

    @classmethod
    def name(cls) -> str:
        return "rmqha_archive"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises OptionError."""
        return ArchiveWriter(self._target(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raises OptionError."""
        return ArchiveStreamWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> "_Target":
        if overwrite:
            raise OptionError("an archive can only be appended to: use mode append")
        if schema.names != SPLITS_SCHEMA.names:
            raise OptionError("an archive needs the splits of a log: read them with view=splits")
        given = {name: text for name, text in self.options.items() if name.lower() not in NOT_OF_THE_LOG}
        options = parse_options(given)
        check_place(options.path)
        columns = archived_columns(options, archives_in(options.path))
        tables = [text for name, text in self.options.items() if name.lower() == TABLE_OPTION]
        return _Target(options, columns, _table(tables[0]) if tables else TableFormat.PARQUET)


def _table(text: str) -> TableFormat:
    try:
        table = TableFormat(text.strip().lower())
    except ValueError:
        raise OptionError(f"table={text}: it must be one of {', '.join(one.value for one in TableFormat)}") from None
    check_package(table)
    return table


@dataclass(frozen=True)
class _Target:
    """Where to archive to, and how."""

    options: Options
    columns: pa.Schema
    table: TableFormat

    @property
    def output(self) -> Path:
        """The folder that was given."""
        return self.options.path

    def stage(self, rows: Iterable[Row]) -> Staged:
        """Stage the messages of the splits, except for archived ranges. Raises StoreError, OSError."""
        splits: dict[Origin, list[Split]] = {}
        for row in rows:
            split = Split(row.path, row.base, row.segmentEnd, row.startOffset, row.endOffset)
            splits.setdefault(Origin.of(split), []).append(split)
        check_origins(splits)
        return Staged(tuple(self._staged(origin, found) for origin, found in splits.items()))

    def _staged(self, origin: Origin, splits: Sequence[Split]) -> StagedLog:
        archive = origin.archive(self.output)
        state, covered = origin.state(splits[0]), archive.covered()
        parts = tuple(part for split in splits for part in self._stage_left(archive, split, covered))
        return StagedLog(origin, splits[0], state, parts)

    def _stage_left(self, archive: Archive, split: Split, covered: Sequence[tuple[int, int]]) -> Iterator[Part]:
        """Stage the part of a split that is not archived."""
        for start, end in uncovered(split.start, split.end, covered):
            piece = replace(split, start=start, end=end)
            yield piece, archive_split(piece, str(archive.root), self.options)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Archive what all tasks have staged, except for what others have archived meanwhile. If there are several
        logs, a process that dies has archived some of them, and the batch is run again.

        Raises StoreError, OSError.
        """
        staged: dict[Origin, list[StagedLog]] = {}
        for one in chain.from_iterable(message.logs for message in messages if isinstance(message, Staged)):
            staged.setdefault(one.origin, []).append(one)
        check_origins(staged)
        for origin, found in staged.items():
            self._commit_log(origin, found)
        if not staged:
            for archive in archives_in(self.output):
                with archive.locked():
                    mend(archive)
                    archive.clean()

    def _commit_log(self, origin: Origin, staged: Sequence[StagedLog]) -> None:
        archive, newest = origin.archive(self.output), staged[-1].split
        proof = Proof(archive, origin.state(newest), lambda: origin.plan(newest, self.options), LocalEngine())

        def commit() -> None:
            archive.select(self.options.selection.as_texts())
            begin_table(archive.root, self.table, self.columns)
            mend(archive)
            state = _state_of(archive, staged, origin.state(newest))
            parts = sorted(chain.from_iterable(one.parts for one in staged), key=lambda part: part[0].start)
            tables = origin.tables()
            for run in _runs(self._left(archive, parts)):
                manifest = merge_archived(run[0].start, run[-1].end, run, state)
                is_new = archive.commit(manifest, tables)
                assert is_new, "nobody else commits meanwhile"
                add_to_tables(archive, manifest)
            archive.clean()

        commit_proved(archive, proof, commit)

    def _left(self, archive: Archive, parts: Iterable[Part]) -> Iterator[ArchivedSplit]:
        """The ascending parts that are not archived. If a part is archived partly, the rest of it is staged here."""
        reached, covered = 0, archive.covered()
        for split, part in parts:
            if split.start >= reached and uncovered(split.start, split.end, covered) == [(split.start, split.end)]:
                yield part
            elif split.end > reached:
                rest = replace(split, start=max(split.start, reached))
                yield from (piece for _, piece in self._stage_left(archive, rest, covered))
            reached = max(reached, split.end)


def _state_of(archive: Archive, staged: Sequence[StagedLog], now: NodeState | None) -> NodeState | None:
    """The state in which the log was read. Raises ArchiveError if it cannot be archived, or not any more."""
    state = min((one.state for one in staged), key=lambda state: 0 if state is None else state.epoch)
    end = max((split.end for one in staged for split, _ in one.parts), default=0)
    if state is not None and (now is None or now.took_back(state.epoch, end)):
        raise ArchiveError("the store took back messages that were read, before they were archived: read them again")
    archive.check_confirmed(now, end)
    return state


def _runs(parts: Iterable[ArchivedSplit]) -> Iterator[list[ArchivedSplit]]:
    """The ascending parts, grouped into runs without gaps."""
    run: list[ArchivedSplit] = []
    for part in parts:
        if run and part.start != run[-1].end:
            yield run
            run = []
        run.append(part)
    if run:
        yield run


class ArchiveWriter(DataSourceWriter):
    """Archives the splits of one query."""

    def __init__(self, target: _Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Raises StoreError, OSError."""
        return self._target.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raises StoreError, OSError."""
        self._target.commit(messages)


class ArchiveStreamWriter(DataSourceStreamWriter):
    """Archives the splits of each batch of a stream."""

    def __init__(self, target: _Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Raises StoreError, OSError."""
        return self._target.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Raises StoreError, OSError."""
        self._target.commit(messages)
