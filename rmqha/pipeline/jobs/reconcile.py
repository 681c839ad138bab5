"""Finds what is missing: messages of one cluster in another one, or sends of a producer's log in a store.

Workers write a slim row for each message (``entries``). A query then groups the rows by what the same message has on
both sides, and returns the rows of groups that differ. DuckDB or Spark runs it, with intermediate results on the disk.
So memory holds the result of one group at a time, and the number of messages does not matter.
"""

import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqha.kit.progress import NO_BAR, IBar, PartBar
from rmqha.kit.times import EPOCH, MILLISECOND, iso_time
from rmqha.pipeline.address import address_text, names_cluster
from rmqha.pipeline.brokers import Brokers, open_logs
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import tables_at
from rmqha.pipeline.jobs.engine import Engine, run_range
from rmqha.pipeline.jobs.entries import (
    By,
    Period,
    QueueOffsets,
    Side,
    entries_of_archived,
    entries_of_split,
)
from rmqha.pipeline.jobs.manifest import Archive, archived_path
from rmqha.pipeline.jobs.messages import is_archive
from rmqha.pipeline.jobs.origin import broker_folders
from rmqha.pipeline.jobs.rowfiles import Row, Write, row_file
from rmqha.pipeline.jobs.sendlog import SendLog, sends_of_log
from rmqha.pipeline.options import Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.sqltypes import TIMESTAMP
from rmqha.store.log.splits import Split
from rmqha.store.metadata import ConsumerOffsetTable
from rmqha.store.offline.newstore import check_place

EXPECTED, FOUND = 0, 1
MAX_GROUPS = 32
"""Groups have one bit each in a row."""
FIRST_FINDINGS = 100
"""The number of findings in the result; a file gets all of them."""
FINDINGS = pa.schema(
    [
        ("problem", pa.string()),
        ("topic", pa.string()),
        ("keys", pa.string()),
        ("msgId", pa.string()),
        ("time", TIMESTAMP),
        ("source", pa.string()),
        ("place", pa.int64()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("groups", pa.string()),
    ]
)

COPIES = """greatest(
    sum(CASE WHEN side = {side} AND NOT waits THEN 1 ELSE 0 END),
    max(CASE WHEN side = {side} AND waits THEN 1 ELSE 0 END))"""
COUNTED = f"""
SELECT topic, ident, onlyOnce,
    least({COPIES.format(side=EXPECTED)}, CASE WHEN onlyOnce THEN 1 ELSE {1 << 62} END) AS expected,
    least({COPIES.format(side=FOUND)}, CASE WHEN onlyOnce THEN 1 ELSE {1 << 62} END) AS found,
    CASE WHEN onlyOnce AND min(bodyCRC) <> max(bodyCRC) THEN 1 ELSE 0 END AS differs,
    bit_or(CASE WHEN side = {FOUND} THEN consumed ELSE 0 END) AS by_any,
    bit_and(CASE WHEN side = {FOUND} THEN consumed ELSE -1 END) AS by_all
FROM entries GROUP BY topic, ident, onlyOnce"""
"""A row for each group of what counts as the same message. A delayed message and its delivery are one copy."""
TOTALS = f"""
SELECT topic,
    CAST(sum(expected) AS BIGINT) AS expected,
    CAST(sum(least(found, expected)) AS BIGINT) AS found,
    CAST(sum(greatest(found - expected, 0)) AS BIGINT) AS more
FROM ({COUNTED}) AS counted GROUP BY topic ORDER BY topic"""
DIFFERING = """
SELECT entries.*, counted.expected AS expected, counted.found AS found, counted.differs AS differs
FROM entries JOIN ({counted}) AS counted
ON entries.topic = counted.topic AND entries.ident = counted.ident AND entries.onlyOnce = counted.onlyOnce
WHERE counted.expected > 0 AND (counted.expected > counted.found OR counted.differs = 1
    OR (CASE WHEN counted.onlyOnce THEN counted.by_any ELSE counted.by_all END & {groups}) <> {groups})
ORDER BY entries.topic, entries.ident, entries.onlyOnce, entries.side, entries.time, entries.place"""


class Problem(Enum):
    """What is wrong with a message."""

    MISSING = "missing"
    CHANGED = "changed"
    NOT_CONSUMED = "notConsumed"


@dataclass(slots=True)
class TopicCounts:
    """The messages of a topic: those expected, those of them that were found, those that are there besides, and how
    many have each problem.
    """

    expected: int = 0
    found: int = 0
    more: int = 0
    problems: Counter[Problem] = field(default_factory=Counter)

    def as_json(self) -> dict[str, int]:
        """As in the output of ``rmqha job reconcile --json``."""
        counts = {problem.value: self.problems[problem] for problem in Problem}
        return {"expected": self.expected, "found": self.found, **counts, "more": self.more}


@dataclass(slots=True)
class Reconciled:
    """The result: counts by topic, and the first findings, as rows of ``FINDINGS``."""

    topics: dict[str, TopicCounts]
    first: list[Row]

    def count(self, problem: Problem) -> int:
        """How many messages have this problem."""
        return sum(one.problems[problem] for one in self.topics.values())

    @property
    def more(self) -> int:
        """How many messages were found that were not expected."""
        return sum(one.more for one in self.topics.values())

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job reconcile --json``. Times are ISO 8601."""
        return {
            **{problem.value: self.count(problem) for problem in Problem},
            "more": self.more,
            "topics": {topic: one.as_json() for topic, one in self.topics.items()},
            "first": [{**row, "time": shown_time(row)} for row in self.first],
        }


def shown_time(row: Row) -> str | None:
    """The time of a finding in ISO 8601; None if it has none."""
    return None if row["time"] is None else iso_time((row["time"] - EPOCH) // MILLISECOND)


@dataclass(frozen=True, slots=True)
class ToReconcile:
    """What to compare: messages of the sources ``expected``, or sends of producers' ``logs``, with those of ``found``.
    A source is a store, an archive, or an address of brokers. Its options are given, whose ``selection`` selects topics
    and tags.

    ``groups`` must have consumed the sends. ``period`` limits what is expected. ``output`` is a file for all findings,
    ``scratch`` a folder for intermediate results, which all workers see.
    """

    found: tuple[Options, ...]
    expected: tuple[Options, ...] = ()
    logs: tuple[Path, ...] = ()
    by: tuple[By, ...] = (By.ID,)
    log: SendLog = SendLog()
    groups: tuple[str, ...] = ()
    period: Period = (None, None)
    output: Path | None = None
    scratch: Path | None = None


def reconcile(asked: ToReconcile, engine: Engine, bar: IBar = NO_BAR) -> Reconciled:
    """Compare both sides. Raises OptionError, StoreError, OSError."""
    if len(asked.groups) > MAX_GROUPS:
        raise OptionError(f"at most {MAX_GROUPS} groups at a time")
    for written in (asked.output, asked.scratch):
        if written is not None:
            check_place(written)
    with (
        tempfile.TemporaryDirectory(prefix="rmqha-reconcile-", dir=asked.scratch) as folder,
        row_file(asked.output, FINDINGS) as write,
    ):
        work = _Work(engine, folder, _Parts(bar))
        files = _logs_and_stores(asked, work) if asked.logs else _both_sides(asked, work)
        if not files:
            return Reconciled({}, [])
        counts_more = not asked.logs and asked.period == (None, None)
        return _judge(work, files, asked.groups, write, counts_more)


class _Parts:
    """Adds up the parts of several sources, so that progress never goes back."""

    def __init__(self, bar: IBar) -> None:
        self._bar = bar
        self._part = PartBar(bar)

    def of_next_source(self) -> IBar:
        """The bar of the source that is read now."""
        self._part = PartBar(self._bar, self._part.done)
        return self._part


@dataclass(frozen=True, slots=True)
class _Work:
    engine: Engine
    folder: str
    parts: _Parts

    def query(self, files: Sequence[str], query: str) -> Iterator[Row]:
        return self.engine.query(files, query, Path(self.folder))


@dataclass(frozen=True, slots=True)
class _Source:
    """One log, or the archive of one. ``plan`` is None for an archive, whose folder is ``root``."""

    name: str
    options: Options
    root: Path
    plan: LogPlan | None = None


def _opened(options: Options) -> list[_Source]:
    """The logs and archives that a path or an address names. Raises StoreError, OSError, OptionError."""
    path = options.path
    if options.is_remote:
        address, in_cluster = address_text(path), names_cluster(path)
        return [
            _Source(f"{address}/{plan.name}" if in_cluster else address, options, path, plan)
            for plan in open_logs(options)
        ]
    if is_archive(path):
        return [_Source(str(path), options, path)]
    folders = broker_folders(path)
    if folders:
        return [_Source(str(folder), options, folder) for folder in folders]
    return [_Source(str(path), options, path, open_log(options))]


def _both_sides(asked: ToReconcile, work: _Work) -> list[str]:
    files: list[str] = []
    for number, given, period in ((EXPECTED, asked.expected, asked.period), (FOUND, asked.found, (None, None))):
        for source in chain.from_iterable(map(_opened, given)):
            side = Side(number, source.name, asked.by, selection=source.options.selection, period=period)
            files += _scan(source, side, work)
    return files


def _logs_and_stores(asked: ToReconcile, work: _Work) -> list[str]:
    """The rows of all logs, and of the stores only what can match one of them."""
    log = replace(asked.log, period=asked.period)
    sends = [sends_of_log(path, log, work.folder) for path in asked.logs]
    topics = frozenset(topic for one in sends for topic in one.topics)
    files = [one.path for one in sends if one.path is not None]
    if not files:
        return []
    ids, keys = any(one.ids for one in sends), any(one.keys for one in sends)
    sources = list(chain.from_iterable(map(_opened, asked.found)))
    offsets = [_offsets(source, asked.groups) for source in sources]  # after the logs' ends, so that they are as new
    for number, group in enumerate(asked.groups):
        if not any(known[number] for known in offsets):
            raise OptionError(f"group {group} has no offsets in {', '.join(one.name for one in sources)}")
    for source, consumed in zip(sources, offsets, strict=True):
        selection = replace(source.options.selection, topics=topics)
        side = Side(FOUND, source.name, None, ids, keys, consumed, selection)
        files += _scan(source, side, work)
    return files


def _scan(source: _Source, side: Side, work: _Work) -> list[str]:
    """The files of the rows of a log or an archive. Raises OptionError, StoreError, OSError."""
    bar = work.parts.of_next_source()
    if source.plan is None:
        on_file = partial(entries_of_archived, side=side, folder=work.folder)
        written = work.engine.run(on_file, _archived_splits(source.root), bar)
    else:
        start, end = source.plan.start(), source.plan.stop()
        on_split = partial(entries_of_split, side=side, options=source.options, folder=work.folder)
        written = run_range(work.engine, on_split, source.plan, start, end, bar) if start < end else []
    return [one.path for one in written if one.path is not None]


def _archived_splits(root: Path) -> list[Split]:
    return [
        Split(str(archived_path(root, file)), file.start, file.end, file.start, file.end)
        for manifest in Archive(root).manifests()
        for file in manifest.files
    ]


def _offsets(source: _Source, groups: Sequence[str]) -> tuple[QueueOffsets, ...]:
    """The offsets of each group, as of the end of what is read. Raises OptionError if there is no table of offsets,
    StoreError, OSError.
    """
    if not groups:
        return ()
    text = _offset_table(source)
    if text is None:
        raise OptionError(f"{source.name} has no offsets of consumers: nothing says what a group has consumed")
    found: dict[str, dict[tuple[str, int], int]] = {group: {} for group in groups}
    for key, queues in ConsumerOffsetTable.parse(text).offset_table.items():
        topic, _, group = key.rpartition("@")
        if group in found:
            found[group].update({(topic, queue): offset for queue, offset in queues.items()})
    return tuple(found[group] for group in groups)


def _offset_table(source: _Source) -> bytes | None:
    """The JSON of the offsets of consumers; None if there is none."""
    plan = source.plan
    if plan is not None and plan.broker is not None:
        if source.options.ending_timestamp is not None:
            raise OptionError(
                f"{source.name}: over the network there are only the offsets of now, so --group and endingTimestamp "
                "need a store"
            )
        return Brokers(source.options).consumer_offsets(plan.broker)
    tables = Archive(source.root).tables() if plan is None else tables_at(plan.store, plan.stop(), plan.end)
    text = tables.get(ConsumerOffsetTable.FILE_NAME)
    return None if text is None else text.encode()


def _judge(work: _Work, files: Sequence[str], groups: Sequence[str], write: Write, counts_more: bool) -> Reconciled:
    totals = work.query(files, TOTALS)
    topics = {
        row["topic"]: TopicCounts(row["expected"], row["found"], row["more"] if counts_more else 0)
        for row in totals
        if row["expected"] or counts_more
    }
    result = Reconciled(topics, [])
    everyone = (1 << len(groups)) - 1
    rows = work.query(files, DIFFERING.format(counted=COUNTED, groups=everyone))
    findings = _findings(rows, everyone, groups)
    while part := list(islice(findings, 1 << 12)):
        write(part)
        for row in part:
            topics[row["topic"]].problems[Problem(row["problem"])] += 1
        result.first += part[: max(0, FIRST_FINDINGS - len(result.first))]
    return result


def _findings(rows: Iterable[Row], everyone: int, groups: Sequence[str]) -> Iterator[Row]:
    for _, group in groupby(rows, itemgetter("topic", "ident", "onlyOnce")):
        same = list(group)
        expected = _copies([row for row in same if row["side"] == EXPECTED])
        found = _copies([row for row in same if row["side"] == FOUND])
        judge = _judge_one if same[0]["onlyOnce"] else _judge_several
        for problem, row, consumed in judge(expected, found, everyone):
            late = [name for number, name in enumerate(groups) if not consumed >> number & 1]
            yield _finding(problem, row, late if problem is Problem.NOT_CONSUMED else [])


def _copies(rows: list[Row]) -> list[Row]:
    """The rows but for those of delayed messages that were delivered, counted as the query counts them."""
    return [row for row in rows if not row["waits"]] or rows[:1]


Judged = Iterator[tuple[Problem, Row, int]]


def _judge_one(expected: list[Row], found: list[Row], everyone: int) -> Judged:
    """Of rows that are one message: the problem, a row that shows it, and the bits of the groups that consumed it."""
    if not found:
        yield Problem.MISSING, expected[0], 0
        return
    if expected[0]["differs"]:
        yield Problem.CHANGED, expected[0], 0
    consumed = 0
    for row in found:
        consumed |= row["consumed"]
    if consumed & everyone != everyone:
        yield Problem.NOT_CONSUMED, found[0], consumed


def _judge_several(expected: list[Row], found: list[Row], everyone: int) -> Judged:
    """Of rows that share a key: those sends count as missing that are left when each found message has taken the send
    that is nearest in time.
    """
    left = _without_nearest(expected, found) if expected[0]["expected"] > expected[0]["found"] else []
    for row in left:
        yield Problem.MISSING, row, 0
    for row in found:
        if row["consumed"] & everyone != everyone:
            yield Problem.NOT_CONSUMED, row, row["consumed"]


def _without_nearest(expected: list[Row], found: list[Row]) -> list[Row]:
    times = [row["time"] or 0 for row in expected]  # ascending, as the query gives them
    left = list(expected)
    for row in found:
        if not left:
            break
        time = row["time"] or 0
        at = bisect_left(times, time)
        if at == len(times) or (at and time - times[at - 1] <= times[at] - time):
            at -= 1
        del times[at], left[at]
    return left


def _finding(problem: Problem, row: Row, late: list[str]) -> Row:
    known = {name: row[name] for name in FINDINGS.names if name in row}
    time = None if row["time"] is None else EPOCH + row["time"] * MILLISECOND
    return {"problem": problem.value, **known, "time": time, "groups": ",".join(late) or None}
