"""Compares queues and index with the log from which they were built. Changes nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmqha.settings.settings import Settings
from rmqha.store.deletions import read_deletions
from rmqha.store.derived.batchqueue import NOT_COMPACTED, BatchConsumeQueue, batch_unit_of
from rmqha.store.derived.consumequeue import ConsumeQueue, Unit, Units, are_messages
from rmqha.store.derived.dispatchrequest import (
    DispatchRequest,
    is_possible_offset,
    read_if_sound,
)
from rmqha.store.derived.geometry import UnprovedIndexFile, geometry_of
from rmqha.store.derived.index import INDEX_FOLDER, configured_geometry, index_paths, read_entries
from rmqha.store.derived.queuetable import QueueKey, QueueTable, open_queues
from rmqha.store.derived.replacing import index_geometry
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import is_locked, while_files_go
from rmqha.store.log.stretches import BadStretch, Progress
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.findings import Verification
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import tags_hash
from rmqha.wire.javahashes import index_hashes
from rmqha.wire.topics import LIGHT_QUEUE_PREFIX

MAX_PROBLEMS = 20
BATCH_BYTES = 4 * 1024 * 1024
UNITS_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found: the first problems as texts, the number of all problems, and of keys missing in the index.

    Queues are built up to ``built_until`` in the log; the next dispatch continues there, so later records are not
    checked. Missing keys are not a problem: a Java broker's recovery loses some, and ``rmqha rebuild`` adds them.
    ``lost_units`` counts units that point to damaged bytes of the log. They do not count as further problems.
    ``misplaced`` counts queues of the wrong type for their topic (``queue.type`` of 5.x). ``unqueued`` counts messages
    that can be in no queue, because their QUEUEOFFSET is impossible: building queues again leaves them out.
    """

    problems: tuple[str, ...]
    problem_count: int
    queues: int
    missing_keys: int
    built_until: int
    lost_units: int = 0
    misplaced: int = 0
    unqueued: int = 0


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
            if self.audit.unqueued:
                advice = (
                    f"{self.audit.unqueued} messages can be in no queue; 'rmqha rebuild' would leave them out, and "
                    f"'rmqha verify {store} --against REPLICA' shows whether a replica has them as they were"
                )
            else:
                advice = f"'rmqha rebuild {store}' rebuilds queues and index"
            yield f"{f'and {more} more; ' if more else ''}{advice}"

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
            "messagesInNoQueue": audited.unqueued,
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
    live = proof.live or is_locked(root / "lock")
    has_lost_end = proof.torn_end is not None or bool(proof.stretches and proof.stretches[-1].start == proof.end)
    end = audited_end(proof)
    lost_from = end if has_lost_end or end < proof.end else None
    known = KnownOfLog(_inner_stretches(proof), lost_from, live)
    try:
        return QueueFindings(while_files_go(live, lambda: audit(root, log, end, settings, progress, known)))
    except StoreError as error:
        return QueueFindings(trouble=str(error))


class _Auditor:
    def __init__(
        self, queues: QueueTable, delay_levels: DelayLevels, bad: "_BadBytes", log: CommitLog, root: Path
    ) -> None:
        self._queues = queues
        self._deleted = read_deletions(root)
        self._delay_levels = delay_levels
        self._bad = bad
        self._log = log
        self.problems: list[str] = []
        self.problem_count = 0
        self.unqueued = 0
        self.next_offsets: dict[QueueKey, int] = {}
        self._agreed: Counter[QueueKey] = Counter()
        """How many units of each queue are those of their messages."""

    def complain(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def expected_offset(self, request: DispatchRequest) -> int | None:
        """The offset at which the message's queue must have its unit. None if no queue has one."""
        if not request.is_queued or self._deleted.is_deleted(request.topic, request.physical_offset):
            return None
        if self._queues.types.is_batch(request.topic, request.sys_flag):
            try:
                return request.batch[0]
            except ValueError as error:
                self._complain_of_offset(request, str(error))
                return None
        if not is_possible_offset(request.queue_offset, request.physical_offset):
            self._complain_of_offset(request, f"QUEUEOFFSET {request.queue_offset} is impossible at this place")
            return None
        return request.queue_offset

    def _complain_of_offset(self, request: DispatchRequest, problem: str) -> None:
        self.unqueued += 1
        self.complain(
            f"the message at {request.physical_offset}, of queue {request.queue_id} of {request.topic}, can be in no "
            f"queue: {problem}"
        )

    def check_unit(self, request: DispatchRequest) -> None:
        """The queue must have a unit for the message, at the queue offset that the message contains."""
        offset = self.expected_offset(request)
        if offset is None:
            return
        if self._queues.types.is_batch(request.topic, request.sys_flag):
            self._check_batch(request)
            return
        key = request.topic, request.queue_id
        name = f"queue {request.queue_id} of {request.topic}"
        self.next_offsets[key] = offset + 1
        queue = self._queues.get(*key)
        unit = None if queue is None else queue.unit(offset)
        tags_code = request.tags_code(self._delay_levels)
        expected = Unit(request.physical_offset, request.size, tags_code)
        if unit is None:
            self.complain(f"{name} has no unit {offset}, for the message at {request.physical_offset}")
        elif unit == expected or _was_recovered_by_java(request, unit, expected):
            self._agreed[key] += 1
        else:
            self.complain(f"{name}: unit {offset} is {tuple(unit)}, not {tuple(expected)}")

    def _check_batch(self, request: DispatchRequest) -> None:
        """The same for a message of a topic with batch consume queues."""
        expected = batch_unit_of(request, self._delay_levels)
        name = f"batch queue {request.queue_id} of {request.topic}"
        self.next_offsets[request.topic, request.queue_id] = expected.end_offset
        queue = self._queues.get(request.topic, request.queue_id)
        unit = queue.batch(expected.base_offset) if isinstance(queue, BatchConsumeQueue) else None
        if unit is None:
            self.complain(f"{name} has no unit of offset {expected.base_offset}, for the message at {expected[0]}")
        elif unit._replace(compacted_offset=NOT_COMPACTED) != expected:
            self.complain(f"{name}: the unit of offset {expected.base_offset} is {tuple(unit)}, not {tuple(expected)}")

    def check_queues(self) -> None:
        """Each unit must be that of a message, and a queue must not continue after its last message in the log."""
        for key, queue in self._queues.queues.items():
            if key[0].startswith(LIGHT_QUEUE_PREFIX):  # its messages have another topic
                continue
            if self._deleted.is_deleted(
                key[0], queue.max_physical_offset - 1
            ):  # the node is removing it, or a start will
                continue
            end = self.next_offsets.get(key, queue.min_offset)
            if not isinstance(queue, BatchConsumeQueue):
                self._check_units(key, queue, min(end, queue.max_offset))
            if queue.max_offset > end and not self._bad.holds_all(queue, end):
                self.complain(f"queue {key[1]} of {key[0]} ends at {queue.max_offset}, the log's last is {end - 1}")

    def _check_units(self, key: QueueKey, queue: ConsumeQueue, end: int) -> None:
        """Name the units before ``end`` whose place in the log holds no message of this queue and queue offset."""
        if self._bad.count_sound(queue, end) == self._agreed[key]:
            return
        for offset, unit in self._bad.sound_units(queue, end):
            wrong = self._what_is_wrong(key, offset, unit)
            if wrong is not None:
                self.complain(
                    f"queue {key[1]} of {key[0]}: unit {offset} leads to {unit.physical_offset}, where {wrong}"
                )

    def _what_is_wrong(self, key: QueueKey, queue_offset: int, unit: Unit) -> str | None:
        """What is there instead of the unit's message; None if it is there."""
        data = self._log.get_data(unit.physical_offset, unit.size)
        found = None if data is None else read_if_sound(data, unit.physical_offset, 0)
        if not isinstance(found, DispatchRequest) or found.size != unit.size:
            return "no message of this size starts"
        if not found.is_queued:
            return "the message belongs to no queue, by its SYSFLAG"
        if (found.topic, found.queue_id, found.queue_offset) != (*key, queue_offset):
            return (
                f"there is the message of QUEUEOFFSET {found.queue_offset} in queue {found.queue_id} of {found.topic}"
            )
        return None


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

    def count_sound(self, queue: ConsumeQueue, end: int) -> int:
        """How many units before ``end``, other than blanks, point elsewhere."""
        return sum(len(offsets) for offsets, _ in self._sound(queue, end))

    def sound_units(self, queue: ConsumeQueue, end: int) -> Iterator[tuple[int, Unit]]:
        """These units, each after its queue offset."""
        for offsets, units in self._sound(queue, end):
            yield from zip(offsets.tolist(), (Unit(*unit) for unit in units.tolist()), strict=True)

    def _sound(self, queue: ConsumeQueue, end: int) -> Iterator[tuple[npt.NDArray[np.int64], Units]]:
        at = queue.min_offset
        while at < end and len(units := queue.units(at, min(UNITS_BATCH, end - at))):
            wanted = are_messages(units) & ~self._inside(units["physical_offset"].astype(np.int64))
            yield at + np.flatnonzero(wanted), units[wanted]
            at += len(units)
        queue.release_files()

    def _inside(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """For each of these offsets of the log, whether it is one of these bytes."""
        if not self:
            return np.zeros(len(offsets), np.bool_)
        nearest = np.searchsorted(self._starts, offsets, side="right") - 1
        return (nearest >= 0) & (offsets < self._ends[nearest])

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
            yield self._inside(units["physical_offset"].astype(np.int64))
            at += len(units)
        queue.release_files()

    def _look_at_batches(self, queue: BatchConsumeQueue, at: int) -> Iterator[npt.NDArray[np.bool_]]:
        while batches := queue.batches(at, UNITS_BATCH):
            yield self._inside(np.array([batch.physical_offset for batch in batches], np.int64))
            at = batches[-1].end_offset
        queue.release_files()


@dataclass(frozen=True, slots=True)
class KnownOfLog:
    """What a reader of the log has found already.

    ``stretches`` are not records, and neither is anything from ``lost_from`` on. Units that point there are only
    counted. If it is ``live``, another process is writing the store: units and keys of messages from the audited end on
    are not looked at, and neither is what it has deleted.
    """

    stretches: Sequence[BadStretch] = ()
    lost_from: int | None = None
    live: bool = False


NOTHING_KNOWN = KnownOfLog()


def audit(
    root: Path,
    log: CommitLog,
    end: int,
    settings: Settings,
    progress: Progress,
    known: KnownOfLog = NOTHING_KNOWN,
) -> Audit:
    """Compare queues and index below ``root`` with the log's records before ``end``. Raises StoreError, OSError."""
    stretches, lost_from, live = known.stretches, known.lost_from, known.live
    bad_queues: dict[QueueKey, str] = {}
    dispatched = _dispatched(root) if live else None
    queues = open_queues(root, settings, owned=False, problems=bad_queues)
    try:
        _find_ends(queues)
        log_end, end = end, min(end, queues.max_physical_offset)
        if live:
            end = end if dispatched is None else min(end, dispatched)
            _find_ends(queues)  # a queue may have been looked at before it got a message that is before another's last
            log.drop_deleted()
        end = max(log.min_offset, end)
        for queue in queues.queues.values():
            queue.correct_min_offset(log.min_offset)
            queue.release_files()
        bad = _BadBytes(stretches, lost_from)
        auditor = _Auditor(queues, settings.message_delay_level, _BadBytes(stretches, end) if live else bad, log, root)
        for folder in queues.misplaced:
            auditor.complain(f"{folder} is a queue of the wrong type for its topic (queue.type in topics.json)")
        for (topic, queue_id), problem in bad_queues.items():
            auditor.complain(f"queue {queue_id} of {topic} is damaged: {problem} (rmqha rebuild rebuilds it)")
        index = _IndexEntries(root, settings, auditor, live)
        missing_keys = 0
        for start, stop in _sound_ranges(log.min_offset, end, stretches):
            at = start
            while at < stop:
                keys: list[str] = []
                offsets: list[int] = []
                before, at = at, _audit_some(log, at, stop, auditor.check_unit, keys, offsets)
                expected = Counter(zip(offsets, index_hashes(keys).tolist(), strict=True)) if keys else Counter()
                missing_keys += (expected - index.between(before, at)).total()
                progress(at)
        auditor.check_queues()
        for at, stop in _sound_ranges(end, log_end, stretches):
            while at < stop:  # no queue has these messages yet
                at = _audit_some(log, at, stop, auditor.expected_offset, [], [])
                progress(at)
        lost_units = sum(map(bad.count, queues.queues.values())) if bad else 0
        return Audit(
            tuple(auditor.problems),
            auditor.problem_count,
            len(queues.queues),
            missing_keys,
            end,
            lost_units,
            len(queues.misplaced),
            auditor.unqueued,
        )
    finally:
        queues.close()


def _dispatched(root: Path) -> int | None:
    """Up to where in the log a running node has written its queues and index; None if it does not say."""
    state = NodeState.read(root)
    return None if state is None else state.dispatched


def _find_ends(queues: QueueTable) -> None:
    for queue in queues.queues.values():
        queue.find_end()
        queue.release_files()


def _sound_ranges(start: int, end: int, stretches: Sequence[BadStretch]) -> Iterator[tuple[int, int]]:
    """The ranges between bad stretches, from ``start`` to ``end``."""
    for bad in stretches:
        if bad.start > start:
            yield start, min(bad.start, end)
        start = max(start, bad.end)
    yield start, end


def _audit_some(
    log: CommitLog,
    start: int,
    end: int,
    check: Callable[[DispatchRequest], object],
    keys: list[str],
    offsets: list[int],
) -> int:
    data = log.get_data(start, log.segment_size)
    assert data is not None, "the end is inside the log"
    position, limit = 0, min(len(data), end - start)
    while position < min(limit, BATCH_BYTES):
        request = read_if_sound(data, start, position)
        if request is None:  # the log's records end before the given end
            return end
        if isinstance(request, int):
            position += request
            continue
        check(request)
        if request.is_indexed:
            own = [f"{request.topic}#{key}" for key in request.index_keys()]
            keys += own
            offsets += [request.physical_offset] * len(own)
        position += request.size
    return start + position


class _IndexEntries:
    """All entries of all index files, in the order of their messages."""

    def __init__(self, root: Path, settings: Settings, auditor: _Auditor, live: bool) -> None:
        arrays = []
        wanted = configured_geometry(settings.max_hash_slot_num, settings.max_index_num)
        for path in index_paths(root / INDEX_FOLDER):
            if live and not path.stat().st_size:  # it is just being created
                continue
            try:
                made = index_geometry(root, settings)
                arrays.append(read_entries(path, geometry_of(path, wanted, made, grows=live)))
            except UnprovedIndexFile as error:
                auditor.complain(str(error))
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
        _find_ends(queues)
        for queue in queues.queues.values():
            queue.correct_min_offset(log.min_offset)
            queue.release_files()
        auditor = _Auditor(queues, settings.message_delay_level, _BadBytes((), None), log, root)
        at, end = start, min(end, queues.max_physical_offset)
        while at < end:
            at = _audit_some(log, at, end, auditor.check_unit, [], [])
        return auditor.problem_count
    finally:
        queues.close()
