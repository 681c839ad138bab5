"""Statistics of the log by topic: messages, bytes, rates, latency from a message's birth to the store, and queues."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.kit.times import EPOCH, MILLISECOND
from rmqha.pipeline.brokers import open_one
from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, topics_of
from rmqha.pipeline.jobs.engine import Engine, run_range
from rmqha.pipeline.options import Options
from rmqha.pipeline.segments import read_selected
from rmqha.pipeline.sums import LATENCY, Sums, latency_ms, store_time_ms
from rmqha.store.log.splits import Split
from rmqha.wire.columns import Ints, Records

MINUTE_MS = 60_000
VALUE_BITS = 33
VALUE_MASK = (1 << VALUE_BITS) - 1
assert MAX_TIMESTAMP_MS // MINUTE_MS <= VALUE_MASK
QUANTILES = (0.5, 0.9, 0.99)


def _latency_bounds() -> Ints:
    """Where the buckets of latencies start, in milliseconds: 1 ms apart at first, then each one tenth larger."""
    bounds = [0]
    while bounds[-1] < MAX_TIMESTAMP_MS:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 11 // 10))
    return np.array(bounds, dtype=np.int64)


LATENCY_BOUNDS_MS = _latency_bounds()


@dataclass(slots=True)
class TopicStats:
    """The messages of one topic. Times are in milliseconds, bytes are those of whole records. A latency is the time
    from birth to store.

    ``latencies`` counts messages by bucket of ``LATENCY_BOUNDS_MS``, ``minutes`` by STORETIMESTAMP // 60,000,
    ``queues`` by queue id.
    """

    messages: int = 0
    bytes: int = 0
    first_store_ms: int | None = None
    last_store_ms: int | None = None
    latency_sum_ms: int = 0
    latency_min_ms: int | None = None
    latency_max_ms: int = 0
    latencies: Counter[int] = field(default_factory=Counter)
    queues: Counter[int] = field(default_factory=Counter)
    minutes: Counter[int] = field(default_factory=Counter)

    def add(self, other: "TopicStats") -> None:
        """Add the counts of another object."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.first_store_ms = _least(self.first_store_ms, other.first_store_ms)
        self.last_store_ms = _most(self.last_store_ms, other.last_store_ms)
        self.latency_sum_ms += other.latency_sum_ms
        self.latency_min_ms = _least(self.latency_min_ms, other.latency_min_ms)
        self.latency_max_ms = max(self.latency_max_ms, other.latency_max_ms)
        self.latencies.update(other.latencies)
        self.queues.update(other.queues)
        self.minutes.update(other.minutes)

    @property
    def seconds(self) -> float:
        """The time between the first and the last message; at least 1 ms, so that rates are finite."""
        if self.first_store_ms is None or self.last_store_ms is None:
            return 0.001
        return max(1, self.last_store_ms - self.first_store_ms) / 1000

    def latency_ms(self, quantile: float) -> int:
        """A quantile of the latencies, with an error of at most a tenth, within the observed range; 0 without
        messages.
        """
        left = quantile * self.messages
        for bucket in sorted(self.latencies):
            left -= self.latencies[bucket]
            if left <= 0:
                return min(max(int(LATENCY_BOUNDS_MS[bucket]), self.latency_min_ms or 0), self.latency_max_ms)
        return 0

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job stats --json``."""
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "firstStoreTimestamp": self.first_store_ms,
            "lastStoreTimestamp": self.last_store_ms,
            "messagesPerSecond": round(self.messages / self.seconds, 3),
            "bytesPerSecond": round(self.bytes / self.seconds, 3),
            "latencyMinMs": self.latency_min_ms or 0,
            "latencyMeanMs": round(self.latency_sum_ms / self.messages, 3) if self.messages else 0.0,
            **{f"latencyP{100 * quantile:g}Ms": self.latency_ms(quantile) for quantile in QUANTILES},
            "latencyMaxMs": self.latency_max_ms,
            "queues": {str(queue): self.queues[queue] for queue in sorted(self.queues)},
        }


Stats = dict[str, TopicStats]
"""By topic."""


class _Frame:
    """The columns of some messages that are counted."""

    def __init__(self, records: Records) -> None:
        self.topics = topics_of(records)
        self.latency = latency_ms(records)
        self._topic = self.topics.dictionary_encode()
        self._stored = store_time_ms(records)

    def count_latencies(self, counts: dict[str, Counter[int]]) -> None:
        """Count the messages of each topic by bucket of latency."""
        self._count(np.searchsorted(LATENCY_BOUNDS_MS, self.latency, side="right") - 1, counts)

    def count_minutes(self, counts: dict[str, Counter[int]]) -> None:
        """Count the messages of each topic by the minute of their store time."""
        self._count(self._stored // MINUTE_MS, counts)

    def _count(self, values: Ints, counts: dict[str, Counter[int]]) -> None:
        codes = self._topic.indices.to_numpy().astype(np.int64)
        found, numbers = np.unique(codes << VALUE_BITS | values, return_counts=True)
        topics = self._topic.dictionary.take(pa.array(found >> VALUE_BITS)).to_pylist()
        for topic, value, number in zip(topics, (found & VALUE_MASK).tolist(), numbers.tolist(), strict=True):
            counts[topic][value] += number


def _least(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def merge_stats(parts: Iterable[Stats]) -> Stats:
    """Merge all parts, ordered by topic."""
    merged: Stats = {}
    for part in parts:
        for topic, stats in part.items():
            merged.setdefault(topic, TopicStats()).add(stats)
    return dict(sorted(merged.items()))


def stats_of_split(split: Split, options: Options) -> Stats:
    """The statistics of the messages of one split that the options select. Raises StoreError, OSError."""
    sums = Sums()
    latencies: dict[str, Counter[int]] = defaultdict(Counter)
    minutes: dict[str, Counter[int]] = defaultdict(Counter)
    for records in read_selected(split, options):
        frame = _Frame(records)
        sums.add(records, {"topic": frame.topics, LATENCY: pa.array(frame.latency)})
        frame.count_latencies(latencies)
        frame.count_minutes(minutes)
    stats: Stats = defaultdict(TopicStats)
    for row in sums.take().to_pylist():
        stats[row["topic"]].add(_of_queue(row))
    for topic, one in stats.items():
        one.latencies, one.minutes = latencies[topic], minutes[topic]
    return dict(stats)


def _of_queue(row: dict[str, Any]) -> TopicStats:
    return TopicStats(
        messages=row["messages"],
        bytes=row["bytes"],
        first_store_ms=_in_ms(row["firstStoreTimestamp"]),
        last_store_ms=_in_ms(row["lastStoreTimestamp"]),
        latency_sum_ms=row["latencySumMs"],
        latency_min_ms=row["latencyMinMs"],
        latency_max_ms=row["latencyMaxMs"],
        queues=Counter({row["queueId"]: row["messages"]}),
    )


def _in_ms(time: datetime | None) -> int | None:
    return None if time is None else (time - EPOCH) // MILLISECOND


def stats(options: Options, engine: Engine, bar: IBar = NO_BAR) -> Stats:
    """The statistics of the messages of ``options.path`` that the options select. Raises StoreError, OSError."""
    plan = open_one(options)
    on_split = partial(stats_of_split, options=options)
    return merge_stats(run_range(engine, on_split, plan, plan.start(), plan.stop(), bar))
