"""What is in the log, by topic: messages, bytes, rates, the time from a message's birth to the store, and queues."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rmqha.pipeline.decode import MAX_TIMESTAMP_MS, Ints, Records, decode
from rmqha.pipeline.jobs.engine import Engine, Progress, no_progress, run_range
from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import open_log
from rmqha.pipeline.schema import records_schema
from rmqha.pipeline.segments import Split
from rmqha.pipeline.views import ViewReader

TOPIC_SCHEMA = records_schema(["topic"])
MINUTE_MS = 60_000
QUANTILES = (0.5, 0.9, 0.99)


def _latency_bounds() -> Ints:
    """Where the buckets of latencies begin, in ms: one by one at first, then each a tenth above the last."""
    bounds = [0]
    while bounds[-1] < MAX_TIMESTAMP_MS:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 11 // 10))
    return np.array(bounds, dtype=np.int64)


LATENCY_BOUNDS_MS = _latency_bounds()


@dataclass(slots=True)
class TopicStats:
    """One topic's messages. Times are in ms, bytes those of whole records; a latency is that from birth to store.

    ``latencies`` counts by bucket of ``LATENCY_BOUNDS_MS``, ``minutes`` counts messages by STORETIMESTAMP // 60,000,
    ``queues`` by queue id.
    """

    messages: int = 0
    bytes: int = 0
    first_store_ms: int | None = None
    last_store_ms: int | None = None
    latency_sum_ms: int = 0
    latency_max_ms: int = 0
    latencies: Counter[int] = field(default_factory=Counter)
    queues: Counter[int] = field(default_factory=Counter)
    minutes: Counter[int] = field(default_factory=Counter)

    def add(self, other: "TopicStats") -> None:
        """Count the other's messages too."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.first_store_ms = _least(self.first_store_ms, other.first_store_ms)
        self.last_store_ms = _most(self.last_store_ms, other.last_store_ms)
        self.latency_sum_ms += other.latency_sum_ms
        self.latency_max_ms = max(self.latency_max_ms, other.latency_max_ms)
        self.latencies.update(other.latencies)
        self.queues.update(other.queues)
        self.minutes.update(other.minutes)

    @property
    def seconds(self) -> float:
        """The time between the first and the last message; never below 1 ms, so that rates are finite."""
        if self.first_store_ms is None or self.last_store_ms is None:
            return 0.001
        return max(1, self.last_store_ms - self.first_store_ms) / 1000

    def latency_ms(self, quantile: float) -> int:
        """This quantile of the latencies, to a tenth of its value; 0 without messages."""
        left = quantile * self.messages
        for bucket in sorted(self.latencies):
            left -= self.latencies[bucket]
            if left <= 0:
                return int(LATENCY_BOUNDS_MS[bucket])
        return 0

    def as_json(self) -> dict[str, Any]:
        """What ``rmqha job stats --json`` prints."""
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "firstStoreTimestamp": self.first_store_ms,
            "lastStoreTimestamp": self.last_store_ms,
            "messagesPerSecond": round(self.messages / self.seconds, 3),
            "bytesPerSecond": round(self.bytes / self.seconds, 3),
            "latencyMeanMs": round(self.latency_sum_ms / self.messages, 3) if self.messages else 0.0,
            **{f"latencyP{100 * quantile:g}Ms": self.latency_ms(quantile) for quantile in QUANTILES},
            "latencyMaxMs": self.latency_max_ms,
            "queues": {str(queue): self.queues[queue] for queue in sorted(self.queues)},
        }


Stats = dict[str, TopicStats]
"""By topic."""


def stats_of(records: Records) -> Stats:
    """Of some messages."""
    if not len(records):
        return {}
    topics = decode(records, TOPIC_SCHEMA).column(0).dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    queue_id, size = records.ints("queueId")[order], records.ints("totalSize")[order]
    stored = np.clip(records.ints("storeTimestamp")[order], 0, MAX_TIMESTAMP_MS)
    born = np.clip(records.ints("bornTimestamp")[order], 0, MAX_TIMESTAMP_MS)
    latency = np.maximum(0, stored - born)
    ends = np.cumsum(np.bincount(codes, minlength=len(topics.dictionary)))
    stats = {}
    for topic, begin, end in zip(topics.dictionary.to_pylist(), [0, *ends[:-1]], ends, strict=True):
        mine = slice(begin, end)
        stats[topic] = _topic_stats(queue_id[mine], size[mine], stored[mine], latency[mine])
    return stats


def _topic_stats(queue_id: Ints, size: Ints, stored: Ints, latency: Ints) -> TopicStats:
    return TopicStats(
        messages=len(size),
        bytes=int(size.sum()),
        first_store_ms=int(stored.min()),
        last_store_ms=int(stored.max()),
        latency_sum_ms=int(latency.sum()),
        latency_max_ms=int(latency.max()),
        latencies=_counts(np.searchsorted(LATENCY_BOUNDS_MS, latency, side="right") - 1),
        queues=_counts(queue_id),
        minutes=_counts(stored // MINUTE_MS),
    )


def _counts(values: Ints) -> Counter[int]:
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _least(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def merge_stats(parts: Iterable[Stats]) -> Stats:
    """All parts as one, by topic in their order."""
    merged: Stats = {}
    for part in parts:
        for topic, stats in part.items():
            merged.setdefault(topic, TopicStats()).add(stats)
    return dict(sorted(merged.items()))


def stats_of_split(split: Split, options: Options) -> Stats:
    """Of the messages of one split that the options select. Raises StoreError, OSError."""
    return merge_stats(stats_of(records) for records in ViewReader(options, TOPIC_SCHEMA).messages(split))


def stats(options: Options, engine: Engine, progress: Progress = no_progress) -> Stats:
    """Of the messages of the log of ``options.path`` that the options select. Raises StoreError, OSError."""
    plan = open_log(options)
    on_split = partial(stats_of_split, options=options)
    return merge_stats(run_range(engine, on_split, plan, plan.start(), plan.stop(), progress))
