"""The sink as Spark uses it, without Spark: tasks write, the driver commits, and a batch not noted is run again."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.sink import ArchiveDataSource
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


def _write(path: Path, content: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.rename(path)
