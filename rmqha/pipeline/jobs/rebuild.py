"""Builds consume queues and index from the log, without a shuffle.

A message contains its position in its queue. Each split therefore writes its units directly into the new files, and no
two splits write the same bytes. If the offsets of a queue have a gap or step back, the queue is corrected afterwards by
the rules of dispatch. Keys go through small files of hashes into the index, in one chain. The rules are those of
dispatch (``rmqha.store.derived.bulk``).
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rmqha.pipeline.jobs.engine import Engine, Progress, WrongBoundary, no_progress
from rmqha.pipeline.options import Boundaries, Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import Split, read_records
from rmqha.store.derived.bulk import PLACED_DTYPE, BulkDispatch, PlacedUnits
from rmqha.store.derived.consumequeue import (
    BLANKS_ALLOWED_BYTES,
    CONSUME_QUEUE_FOLDER,
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    ConsumeQueue,
    Unit,
    new_queue_size,
)
from rmqha.store.derived.geometry import Geometry
from rmqha.store.derived.index import HASHED_KEY_DTYPE, INDEX_FOLDER, KeyIndex, new_geometry
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.mappedfile import file_name, sync_folder
from rmqha.store.nodestate import NODE_FOLDER

QueueKey = tuple[str, int]
PARTS_FOLDER = "keys"
BLANKS_AT_ONCE = 4096
MAX_GAPS = 1000
"""The most gaps of one queue. A queue with more is built message by message, and its gaps are not kept."""
ROWS_AT_ONCE = 1 << 18
"""How many units, or keys, are written together. This limits their memory."""


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
        """Join two runs; the messages of ``other`` follow in the log."""
        if later.first < self.end:
            return Run(self.first, max(self.end, later.end), is_regular=False)
        gap = ((self.end, later.first),) if later.first > self.end else ()
        gaps = self.gaps + gap + later.gaps
        is_regular = self.is_regular and later.is_regular and len(gaps) <= MAX_GAPS
        return Run(self.first, later.end, gaps if is_regular else (), is_regular)


Runs = dict[QueueKey, Run]


@dataclass(frozen=True, slots=True)
class RebuiltSplit:
    """What a split has written: its runs, and a file with its keys. ``refused`` messages fit into no queue."""

    messages: int
    refused: int
    keys: int
    runs: Runs


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was built from ``start`` to ``end`` of the log. ``mended`` counts queues whose offsets had gaps or were out
    of order. ``ends`` are the next offsets of all queues.
    """

    start: int
    end: int
    messages: int
    refused: int
    queues: int
    mended: int
    keys: int
    ends: Mapping[QueueKey, int] = field(default_factory=dict)

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


def rebuild_split(split: Split, folder: str, file_size: int, options: Options) -> RebuiltSplit:
    """Write the units and keys of a split into ``folder``. Raises StoreError, OSError."""
    dispatch = BulkDispatch(options.settings.message_delay_level)
    queues = _QueueWriter(Path(folder), file_size, dispatch.topics)
    messages = refused = keys = 0
    with _part_path(Path(folder), split.start).open("wb") as part:
        for found in map(dispatch, read_records(split, options.batch_bytes)):
            queues.add(found.units)
            part.write(found.keys.tobytes())
            messages, refused, keys = messages + found.messages, refused + found.refused, keys + len(found.keys)
    queues.write_waiting()
    return RebuiltSplit(messages, refused, keys, queues.runs)


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


def _write(folder: Path, file_size: int, first: int, units: bytes) -> None:
    """Write units from queue offset ``first`` on into the queue's files, which are created as needed. Raises
    OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    position = first * CQ_STORE_UNIT_SIZE
    while units:
        base = position - position % file_size
        piece = units[: base + file_size - position]
        fd = os.open(folder / file_name(base), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, file_size)
            written = os.pwrite(fd, piece, position - base)  # only a part, if the disk is filling up
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


def rebuild(options: Options, engine: Engine, progress: Progress = no_progress) -> Rebuilt:
    """Build the queues and the index of the store ``options.path``, in place of its own or in ``options.output``.

    In place, nobody may have the store open. If the job is killed, the store is unchanged, or without queues and index;
    its node then builds them. Raises StoreError, OSError.
    """
    plan = open_log(options)
    root = plan.store
    target = options.output or root
    with ExitStack() as held:
        if options.output is None:
            held.callback(LockFile(root / "lock").release)
        folder = target / NODE_FOLDER / "rebuild"
        done = _build(plan, engine, progress, root, folder)
        _swap(folder, target)
    return done


def _build(plan: LogPlan, engine: Engine, progress: Progress, root: Path, folder: Path) -> Rebuilt:
    start, end = plan.start(), plan.stop()
    settings = plan.options.settings
    file_size = new_queue_size(root / CONSUME_QUEUE_FOLDER, settings.mapped_file_size_consume_queue)
    on_split = partial(rebuild_split, folder=str(folder), file_size=file_size, options=plan.options)
    _begin(folder)
    try:
        parts = engine.run(on_split, plan.splits(start, end), progress)
    except WrongBoundary:  # splits with wrong boundaries have written wrong units
        _begin(folder)
        parts = engine.run(on_split, plan.splits(start, end, Boundaries.HOP), progress)
    runs = merge_runs(parts)
    units_a_file = file_size // CQ_STORE_UNIT_SIZE
    irregular = {key for key, run in runs.items() if not run.is_regular or run.longest_gap > units_a_file}
    allowed_bytes = BLANKS_ALLOWED_BYTES + end - start
    for key in sorted(runs.keys() - irregular):
        allowed_bytes -= _fill_gaps(_queue_folder(folder, key), file_size, runs[key], allowed_bytes)
    _dispatch_again(list(plan.pieces(start, end)), irregular, folder, file_size, plan.options)
    _build_index(folder, new_geometry(root / INDEX_FOLDER, settings.max_hash_slot_num, settings.max_index_num))
    return Rebuilt(
        start,
        end,
        messages=sum(part.messages for part in parts),
        refused=sum(part.refused for part in parts),
        queues=len(runs),
        mended=sum(not run.is_regular or bool(run.gaps) for run in runs.values()),
        keys=sum(part.keys for part in parts),
        ends={key: run.end for key, run in runs.items()},
    )


def _begin(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in (PARTS_FOLDER, CONSUME_QUEUE_FOLDER):
        (folder / name).mkdir(parents=True)


def _fill_gaps(folder: Path, file_size: int, run: Run, allowed_bytes: int) -> int:
    """Fill gaps with blanks, also before the first unit in its file; returns the number of bytes.

    If there is no room for blanks before the first unit, a hole remains there, as dispatch leaves one.
    """
    units_a_file, written = file_size // CQ_STORE_UNIT_SIZE, 0
    before = run.first - run.first % units_a_file, run.first
    head = (before,) if (run.first - before[0]) * CQ_STORE_UNIT_SIZE <= allowed_bytes else ()
    for first, end in (*head, *run.gaps):
        for at in range(first, end, BLANKS_AT_ONCE):
            _write(folder, file_size, at, PRE_BLANK * min(BLANKS_AT_ONCE, end - at))
        written += (end - first) * CQ_STORE_UNIT_SIZE
    return written


def _dispatch_again(
    splits: Sequence[Split], keys: set[QueueKey], folder: Path, file_size: int, options: Options
) -> None:
    """Build some queues message by message, like dispatch."""
    if not keys:
        return
    for key in keys:
        shutil.rmtree(_queue_folder(folder, key))
    queues = {key: ConsumeQueue(_queue_folder(folder, key), *key, file_size) for key in keys}
    dispatch = BulkDispatch(options.settings.message_delay_level)
    for split in splits:
        for records in read_records(split, options.batch_bytes):
            for topic, queue_id, queue_offset, unit in dispatch(records).units.tolist():
                queue = queues.get((dispatch.topics[topic], queue_id))
                if queue is not None:
                    queue.put(queue_offset, Unit(*unit))
    for queue in queues.values():
        queue.write_pending()
        queue.close()


def _build_index(folder: Path, geometry: Geometry) -> None:
    (folder / INDEX_FOLDER).mkdir()
    index = KeyIndex(folder / INDEX_FOLDER, *geometry)
    for path in sorted((folder / PARTS_FOLDER).iterdir()):
        with path.open("rb") as part:
            while len(keys := np.fromfile(part, HASHED_KEY_DTYPE, ROWS_AT_ONCE)):
                index.put_hashed(keys, datetime.now())
    index.close()
    shutil.rmtree(folder / PARTS_FOLDER)


def _swap(folder: Path, target: Path) -> None:
    """Bring the new queues and index to the disk, and put them in place of the old ones. Raises OSError."""
    os.sync()
    for name in (CONSUME_QUEUE_FOLDER, INDEX_FOLDER):
        if (target / name).exists():
            (target / name).rename(folder / f"old-{name}")
        (folder / name).rename(target / name)
    sync_folder(target)
    shutil.rmtree(folder)
