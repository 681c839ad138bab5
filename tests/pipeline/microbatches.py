"""The sink as Spark uses it, without Spark: tasks write, the driver commits, and a batch not noted is run again."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.sink import ArchiveDataSource
from rmqha.pipeline.source import RmqhaDataSource
from rmqha.pipeline.views import SPLITS_SCHEMA
from tests.pipeline.lake import options_of

Message = WriterCommitMessage | None
SCHEMA = StructType([StructField(name, StringType()) for name in SPLITS_SCHEMA.names])
"""As much of it as the sink looks at: the names."""


class Query:
    """A stream of ``view=splits`` into an archive. ``texts`` are options of source and sink."""

    def __init__(self, store: Path, lake: Path, checkpoint: Path | None = None, **texts: object) -> None:
        self.log = open_log(options_of(store, **texts))
        self._checkpoint = checkpoint
        given = {name: str(text) for name, text in texts.items()}
        source = ArchiveDataSource({"batchBytes": "2000", **given, "path": str(lake)})
        self.writer = source.streamWriter(SCHEMA, overwrite=False)

    def rows(self, start: int, end: int) -> list[Row]:
        """The splits of a range of the log."""
        splits = self.log.splits(start, end, Boundaries.HOP)
        return [
            Row(path=one.path, base=one.base, segmentEnd=one.segment_end, startOffset=one.start, endOffset=one.end)
            for one in splits
        ]

    def write(self, rows: Iterable[Row]) -> list[Message]:
        """What the tasks tell the driver: one task a row, and one that had none."""
        return [*(self.writer.write(iter([row])) for row in rows), self.writer.write(iter([]))]

    def archive(self, start: int, end: int) -> None:
        """One batch."""
        self.writer.commit(self.write(self.rows(start, end)), 0)

    def run(self, batch_bytes: int) -> None:
        """All batches that the checkpoint has not noted; one that was begun ends where it was to end."""
        assert self._checkpoint is not None
        self._checkpoint.mkdir(parents=True, exist_ok=True)
        at = number = 0
        while at < self.log.end:
            begun, noted = (self._checkpoint / f"{kind}-{number}" for kind in ("offsets", "commits"))
            if not begun.exists():
                _write(begun, self.log.advance(at, batch_bytes))
            end = json.loads(begun.read_text())
            if not noted.exists():
                self.archive(at, end)
                _write(noted, end)
            at, number = end, number + 1


class NetworkQuery:
    """A stream of the logs of brokers into their archives, as Spark runs it: it notes how far a batch is to reach
    before it runs it, and that it is done. ``texts`` are options of the source, ``sink`` those of the sink.
    """

    def __init__(
        self, address: str, lake: Path, checkpoint: Path, sink: dict[str, str] | None = None, **texts: object
    ) -> None:
        given = {"splitBytes": "5000", "batchBytes": "2000", **{name: str(text) for name, text in texts.items()}}
        self.reader = RmqhaDataSource({**given, "path": address, "view": "splits"}).streamReader(SCHEMA)
        source = ArchiveDataSource({"batchBytes": "2000", **(sink or {}), "path": str(lake)})
        self.writer = source.streamWriter(SCHEMA, overwrite=False)
        self._checkpoint = checkpoint

    def run(self) -> int:
        """All batches until nothing is new; returns how many there were."""
        count = 0
        while self.batch():
            count += 1
        return count

    def batch(self) -> bool:
        """One batch, or the one that was begun and not done. Returns whether there was one."""
        self._checkpoint.mkdir(parents=True, exist_ok=True)
        number = len(list(self._checkpoint.glob("commits-*")))
        start = self._start(number)
        begun = self._checkpoint / f"offsets-{number}"
        if not begun.exists():
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start:
                return False
            _write(begun, end)
        end = json.loads(begun.read_text())
        self.writer.commit(self.write(start, end), number)
        _write(self._checkpoint / f"commits-{number}", end)
        return True

    def _start(self, number: int) -> dict[str, Any]:
        if number:
            return dict(json.loads((self._checkpoint / f"offsets-{number - 1}").read_text()))
        first = self._checkpoint / "first"
        if not first.exists():
            _write(first, self.reader.initialOffset())
        return dict(json.loads(first.read_text()))

    def write(self, start: dict[str, Any], end: dict[str, Any]) -> list[Message]:
        """What the tasks tell the driver."""
        messages: list[Message] = [self.writer.write(iter([]))]
        for partition in self.reader.partitions(start, end):
            table = pa.Table.from_batches(list(self.reader.read(partition)), SPLITS_SCHEMA)
            rows = [Row(**row) for row in table.to_pylist()]
            messages.append(self.writer.write(iter(rows)))
        return messages


def _write(path: Path, content: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.rename(path)
