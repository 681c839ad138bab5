"""Spark's sink for an archive: ``df.write.format("rmqha_archive")`` and ``df.writeStream.format("rmqha_archive")``.

The rows are those of ``view=splits``. Workers read the log and write the files, so no body passes through Spark. Ranges
that are archived already are left out: if Spark repeats a batch, or another query runs, no message is added twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import ArchivedSplit, archive_split, commit_proved, merge_archived
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError, uncovered
from rmqha.pipeline.jobs.overlap import Proof
from rmqha.pipeline.options import Options, Selection, parse_options
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.segments import Split
from rmqha.pipeline.views import SPLITS_SCHEMA
from rmqha.store.nodestate import NodeState
from rmqha.store.tablesnapshots import read_tables

Part = tuple[Split, ArchivedSplit]


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged, of which store, and the state of its node before the read; None if the task had no
    rows.
    """

    parts: tuple[Part, ...]
    store: Path | None
    state: NodeState | None


class ArchiveDataSource(DataSource):
    """An archive folder: the path of ``save``."""

    @classmethod
    def name(cls) -> str:
        return "rmqha_archive"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises OptionError."""
        return ArchiveWriter(self._options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raises OptionError."""
        return ArchiveStreamWriter(self._options(schema, overwrite))

    def _options(self, schema: StructType, overwrite: bool) -> Options:
        if overwrite:
            raise OptionError("an archive can only be appended to: use mode append")
        if schema.names != SPLITS_SCHEMA.names:
            raise OptionError("an archive needs the splits of a log: read them with view=splits")
        given = {name: text for name, text in self.options.items() if name.lower() != "checkpointlocation"}
        options = parse_options(given)
        if options.selection != Selection():
            raise OptionError("an archive contains all messages: topics, queues or tags cannot be selected")
        return replace(options, output=options.path)


def _stage(options: Options, rows: Iterable[Row]) -> Staged:
    """Stage the messages of the splits, except for archived ranges. Raises StoreError, OSError."""
    splits = [Split(row.path, row.base, row.segmentEnd, row.startOffset, row.endOffset) for row in rows]
    if not splits:
        return Staged((), None, None)
    store = _only({Path(split.path).parent.parent for split in splits})
    state = NodeState.read(store)
    covered = _archive_of(options).covered()
    return Staged(tuple(part for split in splits for part in _stage_left(options, split, covered)), store, state)


def _stage_left(options: Options, split: Split, covered: Sequence[tuple[int, int]]) -> Iterator[Part]:
    """Stage the part of a split that is not archived."""
    for start, end in uncovered(split.start, split.end, covered):
        piece = replace(split, start=start, end=end)
        yield piece, archive_split(piece, str(options.output), options)


def _archive_of(options: Options) -> Archive:
    assert options.output is not None, "the data source has set it"
    return Archive(options.output)


def _only(stores: set[Path]) -> Path:
    """The only store of all. Raises ArchiveError if there are several."""
    if len(stores) > 1:
        raise ArchiveError(f"an archive belongs to one store, not to {' and '.join(sorted(map(str, stores)))}")
    return stores.pop()


def _commit(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Archive what all tasks have staged, except for what others have archived meanwhile. Raises StoreError,
    OSError.
    """
    staged = [message for message in messages if isinstance(message, Staged) and message.store is not None]
    archive = _archive_of(options)
    if not staged:
        with archive.locked():
            archive.complete()
            archive.clean()
        return
    store = _only({message.store for message in staged if message.store is not None})
    read_log = replace(options, path=store, output=None)
    proof = Proof(archive, NodeState.read(store), lambda: open_log(read_log), LocalEngine())

    def commit() -> None:
        archive.complete()
        state = _state_of(archive, staged, store)
        parts = sorted(chain.from_iterable(message.parts for message in staged), key=lambda part: part[0].start)
        tables = read_tables(store)
        for run in _runs(_left(options, parts, archive.covered())):
            is_new = archive.commit(merge_archived(run[0].start, run[-1].end, run, state), tables)
            assert is_new, "nobody else commits meanwhile"
        archive.clean()

    commit_proved(archive, proof, commit)


def _state_of(archive: Archive, staged: Sequence[Staged], store: Path) -> NodeState | None:
    """The state in which the store was read. Raises ArchiveError if it cannot be archived, or not any more."""
    now = NodeState.read(store)
    state = min((message.state for message in staged), key=lambda state: 0 if state is None else state.epoch)
    end = max((split.end for message in staged for split, _ in message.parts), default=0)
    if state is not None and (now is None or now.took_back(state.epoch, end)):
        raise ArchiveError("the store took back messages that were read, before they were archived: read them again")
    archive.check_confirmed(now, end)
    return state


def _left(options: Options, parts: Iterable[Part], covered: Sequence[tuple[int, int]]) -> Iterator[ArchivedSplit]:
    """The ascending parts that are not archived. If a part is archived partly, the rest of it is staged here."""
    reached = 0
    for split, part in parts:
        if split.start >= reached and uncovered(split.start, split.end, covered) == [(split.start, split.end)]:
            yield part
        elif split.end > reached:
            rest = replace(split, start=max(split.start, reached))
            yield from (piece for _, piece in _stage_left(options, rest, covered))
        reached = max(reached, split.end)


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

    def __init__(self, options: Options) -> None:
        self._archive_options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Raises StoreError, OSError."""
        return _stage(self._archive_options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raises StoreError, OSError."""
        _commit(self._archive_options, messages)


class ArchiveStreamWriter(DataSourceStreamWriter):
    """Archives the splits of each batch of a stream."""

    def __init__(self, options: Options) -> None:
        self._archive_options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Raises StoreError, OSError."""
        return _stage(self._archive_options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Raises StoreError, OSError."""
        _commit(self._archive_options, messages)
