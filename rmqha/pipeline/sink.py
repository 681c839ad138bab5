"""Spark's way into an archive: ``df.write.format("rmqha_archive")`` and ``df.writeStream.format("rmqha_archive")``.

The rows are those of ``view=splits``: workers read the log and write the files, and no body goes through Spark. What is
archived already is left out, so that a batch that Spark runs again, or another query, adds nothing twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import ArchivedSplit, archive_split, merge_archived
from rmqha.pipeline.jobs.manifest import Archive, uncovered
from rmqha.pipeline.options import Options, Selection, parse_options
from rmqha.pipeline.segments import Split
from rmqha.pipeline.views import SPLITS_SCHEMA
from rmqha.store.nodestate import NodeState


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged, of the store in which folder; none if it had no rows."""

    store: str | None
    parts: tuple[ArchivedSplit, ...]


class ArchiveDataSource(DataSource):
    """An archive folder: the path that is saved to."""

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
            raise OptionError("an archive is only appended to: mode append")
        if schema.names != SPLITS_SCHEMA.names:
            raise OptionError("an archive takes splits of a log: read them with view=splits")
        given = {name: text for name, text in self.options.items() if name.lower() != "checkpointlocation"}
        options = parse_options(given)
        if options.selection != Selection():
            raise OptionError("an archive is of all messages, without a choice of topics, queues or tags")
        return replace(options, output=options.path)


def _stage(options: Options, rows: Iterable[Row]) -> Staged:
    """Stage the messages of the splits, but for what is archived already. Raises StoreError, OSError."""
    assert options.output is not None, "the data source has set it"
    covered = Archive(options.output).covered()
    parts, store = [], None
    for row in rows:
        split = Split(row.path, row.base, row.segmentEnd, row.startOffset, row.endOffset)
        store = str(Path(split.path).parent.parent)
        for start, end in uncovered(split.start, split.end, covered):
            parts.append(archive_split(replace(split, start=start, end=end), str(options.output), options))
    return Staged(store, tuple(parts))


def _commit(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Archive what all tasks have staged. Raises StoreError, OSError."""
    assert options.output is not None, "the data source has set it"
    staged = [message for message in messages if isinstance(message, Staged) and message.store is not None]
    archive = Archive(options.output)
    with archive.locked():
        archive.complete()
        if staged and staged[0].store is not None:
            state = NodeState.read(Path(staged[0].store))
            archive.check_state(state)
            for run in _runs(
                sorted(chain.from_iterable(message.parts for message in staged), key=lambda part: part.start)
            ):
                archive.commit(merge_archived(run[0].start, run[-1].end, run, state))
        archive.clean()


def _runs(parts: Iterable[ArchivedSplit]) -> Iterator[list[ArchivedSplit]]:
    """The ascending parts, in runs without a gap between them."""
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
