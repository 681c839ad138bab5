"""A stream of the logs of all brokers of a cluster: an offset of each in the stream's checkpoint.

An offset of a remote log has a proof: a CRC of the bytes before it. So a log that is another one now is noticed, also
where a Java broker, or another node of the same broker, is asked than before.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from rmqha.pipeline.address import RemoteLog
from rmqha.pipeline.brokers import Brokers, check_offsets
from rmqha.pipeline.logstream import LogStreamReader, Offset, read_partition, taking_turns
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.pipeline.network.segment import NoNodeLeft
from rmqha.pipeline.options import Boundaries
from rmqha.pipeline.plan import LogPlan
from rmqha.pipeline.segments import log, open_segment
from rmqha.pipeline.views import ViewReader
from rmqha.store.errors import DataLossError

PROOF_BYTES = 4 << 10
PROOF = "proof"


class BrokerStream(LogStreamReader):
    """Follows the log of one broker. ``plan`` is its log as the cluster's reader has opened it last."""

    boundaries: Boundaries | None = None  # to follow all sizes here would fetch each byte twice

    def __init__(self, reader: ViewReader, plan: LogPlan) -> None:
        super().__init__(reader)
        self.plan = plan
        self._proved_of: str | None = None
        self._proofs: dict[int, int | None] = {}

    @property
    def known_end(self) -> int:
        """Where records are known to end."""
        return self._known_end

    def _open(self) -> LogPlan:
        self._known_end = self.plan.end
        return self.plan

    def offset_of(self, plan: LogPlan, offset: int) -> Offset:
        """An offset for the checkpoint."""
        if offset not in self._proofs:
            self._proofs = {offset: _proof(plan, offset)}
        return {"offset": offset, PROOF: self._proofs[offset]}

    def _resume(self, plan: LogPlan, start: Offset) -> int:
        at: int = start["offset"]
        if at > plan.end:
            self._lost(f"{plan.name} ends at {plan.end}; the checkpoint is at {at}")
        elif at < plan.min_offset:
            self._lost(f"{plan.name} starts at {plan.min_offset}; the checkpoint is at {at}")
            return plan.min_offset
        elif start[PROOF] is not None and self._proved_of != (asked := _first_node(plan)):
            if _proof(plan, at) not in (None, start[PROOF]):
                self._lost(f"{plan.name} has other bytes before {at} than those that the checkpoint vouches for")
                return plan.record_start(at)
            self._proved_of = asked
        return at


def _first_node(plan: LogPlan) -> str:
    return str(RemoteLog.parse(plan.files[-1].path).nodes[0].place) if plan.files else ""


def _proof(plan: LogPlan, offset: int) -> int | None:
    """The CRC of the last bytes of the same segment before an offset; None if the log has not got them."""
    for file in plan.files:
        if file.base < offset <= file.end and offset <= plan.end:
            start = max(file.base, offset - PROOF_BYTES)
            with open_segment(file.path, file.base) as segment:
                return crc32(segment.read(start, offset - start).data)
    return None


class ClusterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs of all brokers. The limits of a batch are limits for each broker.

    A broker that appears is read from the start of its log. One that does not answer keeps its offset, and the stream
    goes on without it. Only a query that ends by itself fails then (``Trigger.AvailableNow``): it would end too early.
    So does a batch that was planned already, and is run again later.
    """

    def __init__(self, reader: ViewReader) -> None:
        """Raises OptionError."""
        self._reader = reader
        self._brokers = Brokers(reader.options)
        self._streams: dict[str, BrokerStream] = {}
        self._goes_on = True

    def initialOffset(self) -> Offset:
        """Raises OptionError, StoreError, OSError."""
        streams = self._open(away=None)
        check_offsets(self._reader.options, [stream.plan for stream in streams.values()])
        return _encoded({name: stream.initialOffset() for name, stream in streams.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """See ``LogStreamReader``."""
        return LogStreamReader(self._reader).getDefaultReadLimit()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch. Raises StoreError, OSError."""
        reached = _decoded(start)
        for name, stream in self._open({} if self._goes_on else None, reached).items():
            with self._unless_it_dies():
                if name in reached:
                    reached[name] = stream.latestOffset(reached[name], limit)
                else:  # its start is journalled first, so that a repeated batch begins there too
                    reached[name] = stream.offset_of(stream.plan, stream.plan.min_offset)
        return _encoded(reached)

    def reportLatestOffset(self) -> Offset:
        """The ends of the logs. Raises StoreError, OSError."""
        ends: dict[str, Offset] = {}
        for name, stream in self._open({}).items():
            with self._unless_it_dies():
                ends[name] = stream.reportLatestOffset()
        return _encoded(ends)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Raises StoreError, OSError."""
        first, last = _decoded(start), _decoded(end)
        grown = {name: each for name, each in last.items() if each["offset"] != first.get(name, each)["offset"]}
        if not grown:
            return []
        away: dict[str, str] = {}
        streams = self._open(away, grown)
        for name in sorted(grown.keys() - streams.keys()):
            reason = away.get(name) or away.get("") or "the name servers do not know it"
            self._lost(f"{name} has messages of this batch, and cannot be read: {reason}; run the query again later")
        whole = sum(each["offset"] - first[name]["offset"] for name, each in grown.items())
        found = []
        for name, stream in streams.items():
            if name not in grown:
                continue
            stream.plan = replace(stream.plan, read_together=whole)
            found.append(stream.partitions(first[name], grown[name]))
        return taking_turns(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises StoreError, OSError."""
        return read_partition(self._reader, partition)

    def prepareForTriggerAvailableNow(self) -> None:
        """All batches together read what the logs contain now. Raises StoreError, OSError."""
        self._goes_on = False
        for stream in self._open(away=None).values():
            stream.prepareForTriggerAvailableNow()

    @contextmanager
    def _unless_it_dies(self) -> Iterator[None]:
        """Go on with the other brokers if all nodes of one die right after their answer."""
        try:
            yield
        except (NodeFailed, NoNodeLeft) as error:
            if not self._goes_on:
                raise
            log.warning("%s", error)

    def _open(self, away: dict[str, str] | None, needed: dict[str, Offset] | None = None) -> dict[str, BrokerStream]:
        """The streams of the brokers that answer, with their logs as they are now.

        Those that do not go to ``away``, with the reason; without it that is an error.
        """
        known = {name: stream.known_end for name, stream in self._streams.items()}
        least = {name: int(each["offset"]) for name, each in (needed or {}).items()}
        found = {}
        for plan in self._brokers.plans(known, least, away):
            stream = self._streams.setdefault(plan.name, BrokerStream(self._reader, plan))
            stream.plan = plan
            found[plan.name] = stream
        return found

    def _lost(self, problem: str) -> None:
        if self._reader.options.fail_on_data_loss:
            raise DataLossError(problem)
        log.warning("%s", problem)


def _encoded(offsets: dict[str, Offset]) -> dict[str, Any]:
    """Spark's offsets are dictionaries of plain values."""
    return {name: json.dumps(offset) for name, offset in sorted(offsets.items())}


def _decoded(offset: dict[str, Any]) -> dict[str, Offset]:
    return {name: json.loads(text) for name, text in offset.items()}
