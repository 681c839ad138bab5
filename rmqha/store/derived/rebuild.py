"""Builds consume queues and index from the log, without a shuffle.

A message contains its position in its queue. Each split therefore writes its units directly into the new files, and no
two splits write the same bytes. If the offsets of a queue have a gap or step back, the queue is corrected afterwards by
the rules of dispatch. Keys go through small files of hashes into the index, in one chain. The rules are those of
dispatch (``rmqha.store.derived.bulk``), and what is built is what a node's dispatcher makes of the log.

``rmqha rebuild`` calls ``rebuild_in_place``, and ``rmqha job rebuild`` calls ``build``, and runs the splits in its own
way. Both build into a folder of their own first, so the old files stay until the new ones are complete.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rmqha.settings.settings import Settings
from rmqha.store.deletions import DeletedTopicTable, read_deletions
from rmqha.store.derived import consumequeue
from rmqha.store.derived.batchqueue import BATCH_QUEUE_FOLDER, BatchConsumeQueue, batch_unit_of
from rmqha.store.derived.bulk import PLACED_DTYPE, BulkDispatch, PlacedUnits
from rmqha.store.derived.consumequeue import (
    CONSUME_QUEUE_FOLDER,
    CQ_STORE_UNIT_SIZE,
    HOLE_FILE_COST_BYTES,
    PRE_BLANK,
    BlankBudget,
    ConsumeQueue,
    Marks,
    Unit,
)
from rmqha.store.derived.dispatchrequest import (
    DispatchRequest,
    is_no_folder,
    is_possible_offset,
    read_dispatch_request,
)
from rmqha.store.derived.geometry import Geometry
from rmqha.store.derived.index import HASHED_KEY_DTYPE, INDEX_FOLDER, KeyIndex
from rmqha.store.derived.queuetypes import read_queue_types
from rmqha.store.derived.replacing import STAGING_FOLDER, index_geometry, noted_sizes, settings_for_rebuild, swap
from rmqha.store.errors import CorruptLogError, name_file
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import file_name, sync_file_system
from rmqha.store.log.records import Manner, read_records
from rmqha.store.log.splits import SegmentReader, Split, log_files
from rmqha.store.log.stretches import Progress
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.wire.columns import Records

QueueKey = tuple[str, int]
PARTS_FOLDER = "keys"
BLANKS_AT_ONCE = 4096
MAX_GAPS = 1000
"""The most gaps of one queue. A queue with more is built message by message, and its gaps are not kept."""
ROWS_AT_ONCE = 1 << 18
"""How many units, or keys, are written together. This limits their memory."""
BATCH_BYTES = 4 << 20
"""How much of the log is read at once."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the log is read, and by which settings its queues are built. Workers get it pickled.

    Without ``skips_damage`` a part of the log that is not a record is an error.
    """

    settings: Settings
    skips_damage: bool = True
    batch_bytes: int = BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Source:
    """What is built from: the log of the store ``root`` from ``start`` to ``end``; one of ``pieces`` for each file."""

    root: Path
    start: int
    end: int
    pieces: Sequence[Split]
    rules: Rules


@dataclass(frozen=True, slots=True)
class Run:
    """Units of one queue, by queue offset. ``gaps`` are not written. Irregular if offsets stepped back, or if there are
    more than ``MAX_GAPS`` gaps.
    """

    first: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    is_regular: bool = True

    @property
    def longest_gap(self) -> int:
        """The longest gap, in units."""
        return max((end - first for first, end in self.gaps), default=0)

    def then(self, later: "Run") -> "Run":
        """Join two runs; the messages of ``later`` follow in the log."""
        if later.first < self.end:
            return Run(self.first, max(self.end, later.end), is_regular=False)
        gap = ((self.end, later.first),) if later.first > self.end else ()
        gaps = self.gaps + gap + later.gaps
        is_regular = self.is_regular and later.is_regular and len(gaps) <= MAX_GAPS
        return Run(self.first, later.end, gaps if is_regular else (), is_regular)


Runs = dict[QueueKey, Run]


@dataclass(frozen=True, slots=True)
class RebuiltSplit:
    """What a split has written: its runs, and a file with its keys. ``refused`` messages fit into no queue.

    ``skipped`` counts parts of the log that are not records. ``batch_topics`` are those with batches of 5.x.
    """

    messages: int
    refused: int
    keys: int
    runs: Runs
    skipped: int = 0
    batch_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was built from ``start`` to ``end`` of the log. ``mended`` counts queues whose offsets had gaps or were out
    of order. ``ends`` are the next offsets of all queues. ``skipped`` counts parts of the log that are not records.
    """

    start: int
    end: int
    messages: int
    refused: int
    queues: int
    mended: int
    keys: int
    ends: Mapping[QueueKey, int] = field(default_factory=dict)
    skipped: int = 0

    def as_json(self) -> dict[str, Any]:
        """The output of ``rmqha job rebuild --json``."""
        return {
            "from": self.start,
            "to": self.end,
            "messages": self.messages,
            "refused": self.refused,
            "queues": self.queues,
            "mendedQueues": self.mended,
            "keys": self.keys,
        }


def nobody_watches(_: int) -> None:
    """Progress within a split that nobody watches."""


def rebuild_split(
    split: Split,
    folder: str,
    file_size: int,
    rules: Rules,
    deleted: DeletedTopicTable,
    reached: Progress = nobody_watches,
) -> RebuiltSplit:
    """Write the units and keys of a split into ``folder``. Raises StoreError, OSError."""
    dispatch = BulkDispatch(rules.settings.message_delay_level, deleted)
    queues = _QueueWriter(Path(folder), file_size, dispatch.topics)
    messages = refused = keys = 0
    batch_topics: frozenset[str] = frozenset()
    damages = _Damages(rules)
    path = _part_path(Path(folder), split.start)
    with path.open("wb", buffering=0) as part:
        for records in damages.read(split):
            found = dispatch(records)
            queues.add(found.units)
            _write_all(part.fileno(), path, found.keys.tobytes())
            messages, refused, keys = messages + found.messages, refused + found.refused, keys + len(found.keys)
            batch_topics |= found.batch_topics
            reached(records.end)
    queues.write_waiting()
    return RebuiltSplit(messages, refused, keys, queues.runs, damages.count, batch_topics)


class _Damages:
    """Reads splits, and counts the parts of the log that are skipped."""

    def __init__(self, rules: Rules) -> None:
        self.count = 0
        self._rules = rules

    def read(self, split: Split) -> Iterator[Records]:
        """The messages of a split. Raises StoreError, OSError."""
        skipped = self._skip if self._rules.skips_damage else None
        with SegmentReader(split.path, split.base) as segment:
            yield from read_records(segment, split, Manner(self._rules.batch_bytes), skipped)

    def _skip(self, error: CorruptLogError, end: int) -> None:
        self.count += 1


class _QueueWriter:
    """Buffers units and writes them in large batches, so that each queue gets more than a few per write."""

    def __init__(self, folder: Path, file_size: int, topics: Sequence[str]) -> None:
        self.runs: Runs = {}
        self._folder = folder
        self._file_size = file_size
        self._topics = topics
        self._waiting: list[PlacedUnits] = []

    def add(self, units: PlacedUnits) -> None:
        """Add units that follow the previous ones in the log. Raises OSError."""
        if len(units):
            self._waiting.append(units)
        if sum(map(len, self._waiting)) >= ROWS_AT_ONCE:
            self.write_waiting()

    def write_waiting(self) -> None:
        """Write all buffered units. Raises OSError."""
        if not self._waiting:
            return
        placed = np.concatenate(self._waiting, dtype=PLACED_DTYPE)  # else it would no longer be big-endian
        self._waiting.clear()
        queues = placed["topic"].astype(np.int64) << 32 | placed["queue_id"].view(np.uint32)
        placed = placed[np.argsort(queues, kind="stable")]
        follows = np.diff(placed["queue_offset"]) == 1
        for name in ("topic", "queue_id"):
            follows &= np.diff(placed[name]) == 0
        for begin, end in pairwise([0, *(np.flatnonzero(~follows) + 1).tolist(), len(placed)]):
            self._write_run(placed[begin:end])

    def _write_run(self, placed: PlacedUnits) -> None:
        topic, queue_id, first, _ = placed[0].item()
        key = self._topics[topic], queue_id
        _write(_queue_folder(self._folder, key), self._file_size, first, placed["unit"].tobytes())
        run = Run(first, first + len(placed))
        self.runs[key] = self.runs[key].then(run) if key in self.runs else run


def _queue_folder(folder: Path, key: QueueKey) -> Path:
    return folder / CONSUME_QUEUE_FOLDER / key[0] / str(key[1])


def _part_path(folder: Path, start: int) -> Path:
    return folder / PARTS_FOLDER / f"{start:020d}"


def _write_all(fd: int, path: Path, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError as error:
        name_file(error, path)
        raise


def _write(folder: Path, file_size: int, first: int, units: bytes) -> None:
    """Write units from queue offset ``first`` on into the queue's files, which are created as needed. Raises
    OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    position = first * CQ_STORE_UNIT_SIZE
    while units:
        base = position - position % file_size
        piece = units[: base + file_size - position]
        path = folder / file_name(base)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, file_size)
            written = os.pwrite(fd, piece, position - base)  # only a part, if the disk is filling up
        except OSError as error:
            name_file(error, path)
            raise
        finally:
            os.close(fd)
        units, position = units[written:], position + written


def merge_runs(parts: Iterable[RebuiltSplit]) -> Runs:
    """Join the runs of all splits, in the order of the log."""
    merged: Runs = {}
    for part in parts:
        for key, run in part.runs.items():
            merged[key] = merged[key].then(run) if key in merged else run
    return merged


class OnSplit(Protocol):
    """What is done with each split; see ``rebuild_split``."""

    def __call__(self, split: Split, *, reached: Progress = nobody_watches) -> RebuiltSplit: ...


Runner = Callable[[OnSplit, Callable[[], None]], list[RebuiltSplit]]
"""Runs the splits of a log. Before it runs them again it calls its second argument, which removes what they wrote."""


def rebuild_in_place(root: Path, log: CommitLog, settings: Settings, reached: Progress = nobody_watches) -> Rebuilt:
    """Build the queues and the index of a recovered log in this process, in place of those below ``root``.

    The caller has locked the store. Parts of the log that are not records are skipped, and counted. As ``build``, if it
    fails. Raises StoreError, OSError.
    """
    end, files = log.verified_offset, log_files(log.folder, log.segment_size)
    pieces = [file.split(file.base, min(file.end, end)) for file in files if file.base < end]

    def run(on_split: OnSplit, _: Callable[[], None]) -> list[RebuiltSplit]:
        return [on_split(piece, reached=reached) for piece in pieces]

    return build(Source(root, files[0].base if files else end, end, pieces, Rules(settings)), root, run)


def build(source: Source, target: Path, run: Runner) -> Rebuilt:
    """Build queues and index in a folder of their own. If all are complete, put them in place of those in ``target``.

    If it fails or is interrupted, the old ones are unchanged. Raises StoreError, OSError.
    """
    root, folder = source.root, target / NODE_FOLDER / STAGING_FOLDER
    settings = settings_for_rebuild(root, noted_sizes(root, source.rules.settings))
    try:
        done = _build(replace(source, rules=replace(source.rules, settings=settings)), run, folder)
        sync_file_system(folder)
        with ThreadPoolExecutor(1) as thread:  # Ctrl-C does not interrupt it halfway
            thread.submit(swap, folder, target, settings).result()
        return done
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # it is not empty
            folder.parent.rmdir()


def _build(source: Source, run: Runner, folder: Path) -> Rebuilt:
    rules, settings, log_bytes = source.rules, source.rules.settings, source.end - source.start
    file_size = settings.mapped_file_size_consume_queue
    assert file_size is not None, "settings_for_rebuild has set it"
    _begin(folder)
    deleted = read_deletions(source.root)
    on_split = partial(rebuild_split, folder=str(folder), file_size=file_size, rules=rules, deleted=deleted)
    parts = run(on_split, partial(_begin, folder))
    runs = merge_runs(parts)
    batch_topics = _batch_topics(source.root, parts)
    batch_keys = {key for key in runs if key[0] in batch_topics}
    for key in batch_keys:
        del runs[key]
        shutil.rmtree(_queue_folder(folder, key))
        with suppress(OSError):  # it is not empty
            _queue_folder(folder, key).parent.rmdir()
    slow = _runs_for_dispatch(runs, file_size, log_bytes)
    for key in sorted(runs.keys() - slow):
        _fill_gaps(_queue_folder(folder, key), file_size, runs[key])
    refused = _dispatch_again(source.pieces, slow, folder, log_bytes, rules, deleted)
    batch_ends: dict[QueueKey, int] = {}
    if batch_topics:
        batch_ends, more = _build_batch_queues(source.pieces, batch_topics, folder, rules, deleted)
        refused += more
    if settings.message_index_enable:
        _build_index(folder, index_geometry(source.root, settings))
    shutil.rmtree(folder / PARTS_FOLDER)
    return Rebuilt(
        source.start,
        source.end,
        messages=sum(part.messages for part in parts),
        refused=sum(part.refused for part in parts) + refused,
        queues=len(runs) + len(batch_ends),
        mended=sum(not run.is_regular or bool(run.gaps) for run in runs.values()),
        keys=sum(part.keys for part in parts) if settings.message_index_enable else 0,
        ends={**{key: run.end for key, run in runs.items()}, **batch_ends},
        skipped=sum(part.skipped for part in parts),
    )


def _runs_for_dispatch(runs: Runs, file_size: int, log_bytes: int) -> set[QueueKey]:
    """The queues that must be built message by message.

    Offsets stepped back there, or a gap is so long that dispatch leaves holes. If all queues together may need more
    blanks than dispatch allows, it depends on the order of the messages which queue gets them; so these are all queues
    that need some.
    """
    units_a_file = file_size // CQ_STORE_UNIT_SIZE
    slow = {key for key, run in runs.items() if not run.is_regular or run.longest_gap > units_a_file}
    needed = 0
    for key, run in runs.items():
        head = run.first % units_a_file
        blanks = head + (run.end - run.first if key in slow else sum(end - first for first, end in run.gaps))
        needed += blanks * CQ_STORE_UNIT_SIZE
        if key in slow:
            needed += blanks // units_a_file * max(0, HOLE_FILE_COST_BYTES - file_size)
    if needed > consumequeue.BLANKS_ALLOWED_BYTES + log_bytes:
        slow |= {key for key, run in runs.items() if run.gaps or run.first % units_a_file}
    return slow


def _begin(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in (PARTS_FOLDER, CONSUME_QUEUE_FOLDER):
        (folder / name).mkdir(parents=True)


def _fill_gaps(folder: Path, file_size: int, run: Run) -> None:
    """Fill gaps with blanks, also before the first unit in its file."""
    head = run.first - run.first % (file_size // CQ_STORE_UNIT_SIZE), run.first
    for first, end in (head, *run.gaps):
        for at in range(first, end, BLANKS_AT_ONCE):
            _write(folder, file_size, at, PRE_BLANK * min(BLANKS_AT_ONCE, end - at))


def _dispatch_again(
    splits: Sequence[Split],
    keys: set[QueueKey],
    folder: Path,
    log_bytes: int,
    rules: Rules,
    deleted: DeletedTopicTable,
) -> int:
    """Build some queues message by message, like dispatch. Returns how many messages fit into none of them."""
    if not keys:
        return 0
    for key in keys:
        shutil.rmtree(_queue_folder(folder, key))
    file_size = rules.settings.mapped_file_size_consume_queue
    assert file_size is not None, "settings_for_rebuild has set it"
    marks, blanks, refused = Marks(), BlankBudget(), 0
    queues = {key: ConsumeQueue(_queue_folder(folder, key), *key, file_size, marks=marks) for key in keys}
    dispatch = BulkDispatch(rules.settings.message_delay_level, deleted)
    for split in splits:
        for records in _Damages(rules).read(split):
            for topic, queue_id, queue_offset, unit in dispatch(records).units.tolist():
                queue = queues.get((dispatch.topics[topic], queue_id))
                if queue is None:
                    continue
                if blanks.has_room(queue, queue_offset, log_bytes):
                    queue.put(queue_offset, Unit(*unit))
                else:
                    refused += 1
            _write_queues(marks)
    for queue in queues.values():
        queue.close()
    return refused


def _write_queues(marks: Marks) -> None:
    """Write what the queues have collected, and close their files: there may be very many. Raises OSError."""
    for queue in list(marks.dirty):
        queue.write_pending()
        queue.release_files()
    marks.dirty.clear()


def _batch_topics(store: Path, parts: Sequence[RebuiltSplit]) -> frozenset[str]:
    """The topics of the log with batch consume queues. Raises OSError."""
    types = read_queue_types(store)
    in_log = frozenset(topic for part in parts for topic in part.batch_topics)
    return types.batch | {topic for topic in in_log if topic not in types.known}


def _build_batch_queues(
    splits: Sequence[Split], topics: frozenset[str], folder: Path, rules: Rules, deleted: DeletedTopicTable
) -> tuple[dict[QueueKey, int], int]:
    """Build the batch consume queues of these topics message by message, like dispatch. They are few.

    Returns the next offset of each queue, and how many more messages fit into none than ``BulkDispatch`` has refused.
    Raises StoreError, OSError.
    """
    file_size = rules.settings.mapper_file_size_batch_consume_queue
    assert file_size is not None, "settings_for_rebuild has set it"
    marks, refused = Marks(), 0
    queues: dict[QueueKey, BatchConsumeQueue] = {}
    for split in splits:
        for records in _Damages(rules).read(split):
            for request in _requests_of(records, topics):
                if deleted.is_deleted(request.topic, request.physical_offset):
                    continue
                key = request.topic, request.queue_id
                if key not in queues:
                    queue_folder = folder / BATCH_QUEUE_FOLDER / key[0] / str(key[1])
                    queues[key] = BatchConsumeQueue(queue_folder, *key, file_size, marks=marks)
                try:
                    refused += not queues[key].put_batch(batch_unit_of(request, rules.settings.message_delay_level))
                except ValueError:
                    refused += 1
                refused -= not is_possible_offset(request.queue_offset, request.physical_offset, request.sys_flag)
            _write_queues(marks)
    for queue in queues.values():
        queue.close()
    return {key: queue.max_offset for key, queue in queues.items() if queue.max_offset}, refused


def _requests_of(records: Records, topics: frozenset[str]) -> Iterator[DispatchRequest]:
    """The messages of these topics that have units."""
    names = {topic.encode("utf-8", "surrogateescape") for topic in topics if not is_no_folder(topic)}
    begins, lengths = records.topic
    data = records.buffer.data
    for at, begin, length in zip(records.at.tolist(), begins.tolist(), lengths.tolist(), strict=True):
        if bytes(data[begin : begin + length]) in names:
            request = read_dispatch_request(data, at)
            if isinstance(request, DispatchRequest) and request.is_queued:
                yield request


def _build_index(folder: Path, geometry: Geometry) -> None:
    (folder / INDEX_FOLDER).mkdir()
    index = KeyIndex(folder / INDEX_FOLDER, *geometry)
    for path in sorted((folder / PARTS_FOLDER).iterdir()):
        with path.open("rb") as part:
            while len(keys := np.fromfile(part, HASHED_KEY_DTYPE, ROWS_AT_ONCE)):
                index.put_hashed(keys, datetime.now())
    index.close()
