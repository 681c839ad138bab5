"""Compares queues and index with the log from which they were built. Changes nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmqha.settings import Settings
from rmqha.store.deletions import read_deletions
from rmqha.store.derived.batchqueue import NOT_COMPACTED, BatchConsumeQueue, batch_unit_of
from rmqha.store.derived.consumequeue import ConsumeQueue, Unit
from rmqha.store.derived.dispatchrequest import DispatchRequest, is_possible_offset, read_dispatch_request
from rmqha.store.derived.geometry import UnprovedIndexFile, geometry_of
from rmqha.store.derived.index import INDEX_FOLDER, configured_geometry, index_paths, read_entries
from rmqha.store.derived.queuetable import QueueTable, open_queues
from rmqha.store.derived.replacing import index_geometry
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.stretches import BadStretch, Progress
from rmqha.store.offline.findings import Verification
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import index_hashes, tags_hash

MAX_PROBLEMS = 20
BATCH_BYTES = 4 * 1024 * 1024
UNITS_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found: the first problems as texts, the number of all problems, and of keys missing in the index.

    Queues are built up to ``built_until`` in the log; the next dispatch continues there, so later records are not
    checked. Missing keys are not a problem: a Java broker's recovery loses some, and ``rmqha rebuild`` adds them.
    ``lost_units`` counts units that point to damaged bytes of the log. They do not count as further problems.
    ``misplaced`` counts queues of the wrong type for their topic (``queue.type`` of 5.x).
    """

    problems: tuple[str, ...]
    problem_count: int
    queues: int
    missing_keys: int
    built_until: int
    lost_units: int = 0
    misplaced: int = 0


@dataclass(frozen=True, slots=True)
class QueueFindings:
    """What was found in queues and index, and the words for it. ``rmqha verify`` and ``rmqha job verify`` share them.

    ``audit`` is None if they could not be read because of ``trouble``, or if they were not checked.
    """

    audit: Audit | None = None
    trouble: str | None = None

    def lines(self, store: Path) -> Iterator[str]:
        """The findings as lines for people."""
        audited = self.audit
        if audited is None:
            return
        if not audited.problems:
            line = f"{audited.queues} queues agree with the log up to {audited.built_until}"
            if audited.missing_keys:
                line += f"; {audited.missing_keys} keys are missing in the index ('rmqha rebuild {store}' adds them)"
            yield line
        if audited.lost_units:
            yield (
                f"{audited.lost_units} units of queues point to bytes that are not records, because of the damage above"
            )

    def problems(self, store: Path) -> Iterator[str]:
        """What makes the exit status 1."""
        if self.trouble is not None:
            yield self.trouble
        if self.audit is not None and self.audit.problems:
            yield from self.audit.problems
            more = self.audit.problem_count - len(self.audit.problems)
            yield f"{f'and {more} more; ' if more else ''}'rmqha rebuild {store}' rebuilds queues and index"

    def as_json(self) -> dict[str, Any]:
        """The findings for ``--json``."""
        audited = self.audit
        if audited is None:
            return {"queues": None, "queuesProblem": self.trouble}
        return {
            "queues": audited.queues,
            "queuesBuiltUntil": audited.built_until,
            "queueProblems": audited.problem_count,
            "missingKeys": audited.missing_keys,
            "lostUnits": audited.lost_units,
            "misplacedQueues": audited.misplaced,
        }


def audited_end(proof: Verification) -> int:
    """Up to where queues and index of a log can be compared with what was found in the log."""
    return proof.end if proof.stretch_count <= len(proof.stretches) else _inner_stretches(proof)[-1].start


def _inner_stretches(proof: Verification) -> list[BadStretch]:
    return [bad for bad in proof.stretches if bad.start < proof.end]


def audit_proved(
    root: Path, log: CommitLog, proof: Verification, settings: Settings, progress: Progress
) -> QueueFindings:
    """Compare the queues and the index below ``root`` with their log, in which ``proof`` was found. Raises OSError."""
    has_lost_end = proof.torn_end is not None or bool(proof.stretches and proof.stretches[-1].start == proof.end)
    end = audited_end(proof)
    lost_from = end if has_lost_end or end < proof.end else None
    try:
        return QueueFindings(audit(root, log, end, settings, progress, _inner_stretches(proof), lost_from))
    except StoreError as error:
        return QueueFindings(trouble=str(error))


class _Auditor:
    def __init__(self, queues: QueueTable, delay_levels: DelayLevels, bad: "_BadBytes", root: Path) -> None:
        self._queues = queues
        self._deleted = read_deletions(root)
        self._delay_levels = delay_levels
        self._bad = bad
        self.problems: list[str] = []
        self.problem_count = 0
        self.next_offsets: dict[tuple[str, int], int] = {}

    def complain(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def check_unit(self, request: DispatchRequest) -> None:
        """The queue must have a unit for the message, at the queue offset that the message contains."""
        if self._deleted.is_deleted(request.topic, request.physical_offset):
            return
        if request.is_queued and self._queues.types.is_batch(request.topic, request.sys_flag):
            self._check_batch(request)
            return
        if not request.is_queued or not is_possible_offset(request.queue_offset, request.physical_offset):
            return
        name = f"queue {request.queue_id} of {request.topic}"
        self.next_offsets[request.topic, request.queue_id] = request.queue_offset + 1
        queue = self._queues.get(request.topic, request.queue_id)
        unit = None if queue is None else queue.unit(request.queue_offset)
        tags_code = request.tags_code(self._delay_levels)
        expected = Unit(request.physical_offset, request.size, tags_code)
        if unit is None:
            self.complain(f"{name} has no unit {request.queue_offset}, for the message at {request.physical_offset}")
        elif unit != expected and not _was_recovered_by_java(request, unit, expected):
            self.complain(f"{name}: unit {request.queue_offset} is {tuple(unit)}, not {tuple(expected)}")

    def _check_batch(self, request: DispatchRequest) -> None:
        """The same for a message of a topic with batch consume queues."""
        try:
            expected = batch_unit_of(request, self._delay_levels)
        except ValueError:  # dispatch gives it no unit
            return
        name = f"batch queue {request.queue_id} of {request.topic}"
        self.next_offsets[request.topic, request.queue_id] = expected.end_offset
        queue = self._queues.get(request.topic, request.queue_id)
        unit = queue.batch(expected.base_offset) if isinstance(queue, BatchConsumeQueue) else None
        if unit is None:
            self.complain(f"{name} has no unit of offset {expected.base_offset}, for the message at {expected[0]}")
        elif unit._replace(compacted_offset=NOT_COMPACTED) != expected:
            self.complain(f"{name}: the unit of offset {expected.base_offset} is {tuple(unit)}, not {tuple(expected)}")

    def check_ends(self) -> None:
        """A queue must not continue after its last message in the log."""
        for key, queue in self._queues.queues.items():
            end = self.next_offsets.get(key, queue.min_offset)
            if queue.max_offset > end and not self._bad.holds_all(queue, end):
                self.complain(f"queue {key[1]} of {key[0]} ends at {queue.max_offset}, the log's last is {end - 1}")


def _was_recovered_by_java(request: DispatchRequest, unit: Unit, expected: Unit) -> bool:
    """Whether 4.9.2 to 4.9.8 recovered it: they give delayed messages the hash of their tags (spec/store.md 9.3)."""
    by_tags = expected._replace(tags_code=tags_hash(request.properties.get("TAGS", "")))
    return request.topic == SCHEDULE_TOPIC and unit == by_tags


class _BadBytes:
    """Bytes of the log that are not records: bad stretches, and everything from ``lost_from`` on."""

    def __init__(self, stretches: Sequence[BadStretch], lost_from: int | None) -> None:
        ends = [
            *((bad.start, bad.end) for bad in stretches),
            *([(lost_from, 1 << 62)] if lost_from is not None else []),
        ]
        self._starts = np.array([start for start, _ in ends], dtype=np.int64)
        self._ends = np.array([end for _, end in ends], dtype=np.int64)

    def __bool__(self) -> bool:
        return len(self._starts) > 0

    def count(self, queue: ConsumeQueue) -> int:
        """How many units of the queue point to these bytes."""
        return sum(int(inside.sum()) for inside in self._look(queue, queue.min_offset))

    def holds_all(self, queue: ConsumeQueue, start: int) -> bool:
        """Whether all units from ``start`` on point to these bytes."""
        return bool(self) and all(inside.all() for inside in self._look(queue, start))

    def _look(self, queue: ConsumeQueue, at: int) -> Iterator[npt.NDArray[np.bool_]]:
        """For each unit from ``at`` on, whether it points to these bytes; in batches."""
        if isinstance(queue, BatchConsumeQueue):
            yield from self._look_at_batches(queue, at)
            return
        while len(units := queue.units(at, UNITS_BATCH)):
            offsets = units["physical_offset"].astype(np.int64)
            nearest = np.searchsorted(self._starts, offsets, side="right") - 1
            yield (nearest >= 0) & (offsets < self._ends[nearest])
            at += len(units)
        queue.release_files()

    def _look_at_batches(self, queue: BatchConsumeQueue, at: int) -> Iterator[npt.NDArray[np.bool_]]:
        while batches := queue.batches(at, UNITS_BATCH):
            offsets = np.array([batch.physical_offset for batch in batches], np.int64)
            nearest = np.searchsorted(self._starts, offsets, side="right") - 1
            yield (nearest >= 0) & (offsets < self._ends[nearest])
            at = batches[-1].end_offset
        queue.release_files()


def audit(
    root: Path,
    log: CommitLog,
    end: int,
    settings: Settings,
    progress: Progress,
    stretches: Sequence[BadStretch] = (),
    lost_from: int | None = None,
) -> Audit:
    """Compare queues and index below ``root`` with the log's records before ``end``. Raises StoreError, OSError.

    ``stretches`` are not records, and neither is anything from ``lost_from`` on. Units that point there are only
    counted.
    """
    bad_queues: dict[tuple[str, int], str] = {}
    queues = open_queues(root, settings, owned=False, problems=bad_queues)
    bad = _BadBytes(stretches, lost_from)
    try:
        for queue in queues.queues.values():
            queue.find_end()
            queue.correct_min_offset(log.min_offset)
            queue.release_files()
        end = max(log.min_offset, min(end, queues.max_physical_offset))
        auditor = _Auditor(queues, settings.message_delay_level, bad, root)
        for folder in queues.misplaced:
            auditor.complain(f"{folder} is a queue of the wrong type for its topic (queue.type in topics.json)")
        for (topic, queue_id), problem in bad_queues.items():
            auditor.complain(f"queue {queue_id} of {topic} is damaged: {problem} (rmqha rebuild rebuilds it)")
        index = _IndexEntries(root, settings, auditor.complain)
        missing_keys = 0
        for start, stop in _sound_ranges(log.min_offset, end, stretches):
            at = start
            while at < stop:
                keys: list[str] = []
                offsets: list[int] = []
                before, at = at, _audit_some(log, at, stop, auditor, keys, offsets)
                expected = Counter(zip(offsets, index_hashes(keys).tolist(), strict=True)) if keys else Counter()
                missing_keys += (expected - index.between(before, at)).total()
                progress(at)
        auditor.check_ends()
        lost_units = sum(map(bad.count, queues.queues.values())) if bad else 0
        return Audit(
            tuple(auditor.problems),
            auditor.problem_count,
            len(queues.queues),
            missing_keys,
            end,
            lost_units,
            len(queues.misplaced),
        )
    finally:
        queues.close()


def _sound_ranges(start: int, end: int, stretches: Sequence[BadStretch]) -> Iterator[tuple[int, int]]:
    """The ranges between bad stretches, from ``start`` to ``end``."""
    for bad in stretches:
        yield start, min(bad.start, end)
        start = max(start, bad.end)
    yield start, end


def _audit_some(log: CommitLog, start: int, end: int, auditor: _Auditor, keys: list[str], offsets: list[int]) -> int:
    data = log.get_data(start, log.segment_size)
    assert data is not None, "the end is inside the log"
    position, limit = 0, min(len(data), end - start)
    while position < min(limit, BATCH_BYTES):
        request = read_dispatch_request(data, position)
        if isinstance(request, int):
            position += request
            continue
        auditor.check_unit(request)
        if request.is_indexed:
            own = [f"{request.topic}#{key}" for key in request.index_keys()]
            keys += own
            offsets += [request.physical_offset] * len(own)
        position += request.size
    return start + position


class _IndexEntries:
    """All entries of all index files, in the order of their messages."""

    def __init__(self, root: Path, settings: Settings, complain: Callable[[str], None]) -> None:
        arrays = []
        wanted = configured_geometry(settings.max_hash_slot_num, settings.max_index_num)
        for path in index_paths(root / INDEX_FOLDER):
            try:
                arrays.append(read_entries(path, geometry_of(path, wanted, index_geometry(root, settings))))
            except UnprovedIndexFile as error:
                complain(str(error))
        self._offsets = _joined([array["physical_offset"] for array in arrays])
        self._hashes = _joined([array["hash"] for array in arrays])
        order = np.argsort(self._offsets, kind="stable")  # files of a Java recovery may overlap
        self._offsets, self._hashes = self._offsets[order], self._hashes[order]

    def between(self, start: int, end: int) -> Counter[tuple[int, int]]:
        """The physical offsets and hashes of the entries from ``start`` to before ``end``, with their counts."""
        low, high = np.searchsorted(self._offsets, [start, end])
        return Counter(zip(self._offsets[low:high].tolist(), self._hashes[low:high].tolist(), strict=True))


def _joined(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.empty(0, dtype=np.int64)


def wrong_units(root: Path, log: CommitLog, settings: Settings, start: int, end: int) -> int:
    """How many dispatched messages of a sound range have a missing or wrong unit in their queue.

    Raises StoreError, OSError.
    """
    queues = open_queues(root, settings, owned=False, disk=log.disk)
    try:
        for queue in queues.queues.values():
            queue.find_end()
            queue.correct_min_offset(log.min_offset)
            queue.release_files()
        auditor = _Auditor(queues, settings.message_delay_level, _BadBytes((), None), root)
        at, end = start, min(end, queues.max_physical_offset)
        while at < end:
            at = _audit_some(log, at, end, auditor, [], [])
        return auditor.problem_count
    finally:
        queues.close()
