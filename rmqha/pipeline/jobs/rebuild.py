"""Consume queues and index anew from the log, without a shuffle.

A message says its place in its queue, so each split writes its units straight into the new files, and no two splits
write the same bytes. Only where offsets of a queue leave a gap or step back is it put right afterwards, as dispatch
would have it. Keys go through small files of hashes into the index, one chain from end to end. The rules are dispatch's
own.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rmqha.pipeline.jobs.engine import Engine, Progress, no_progress, run_range
from rmqha.pipeline.options import Boundaries, Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.pipeline.segments import Split, read_records
from rmqha.store.consumequeue import (
    CONSUME_QUEUE_FOLDER,
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    UNIT,
    ConsumeQueue,
    Unit,
    queue_size_of,
)
from rmqha.store.index import ENTRIES_A_SLOT, INDEX_FOLDER, IndexedKey, IndexService, hashed, slots_of
from rmqha.store.lockfile import LockFile
from rmqha.store.mappedfile import file_name, sync_folder
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.request import DispatchRequest, is_no_folder, read_dispatch_request
from rmqha.wire.delay import DelayLevels

QueueKey = tuple[str, int]
PARTS_FOLDER = "keys"
BLANKS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Run:
    """Units of one queue, by queue offsets: ``gaps`` of it are not written; irregular if offsets stepped back."""

    first: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    is_regular: bool = True

    def then(self, later: "Run") -> "Run":
        """Both, of which the other's messages follow in the log."""
        if later.first < self.end:
            return replace(self, end=max(self.end, later.end), is_regular=False)
        gap = ((self.end, later.first),) if later.first > self.end else ()
        return Run(self.first, later.end, self.gaps + gap + later.gaps, self.is_regular and later.is_regular)


Runs = dict[QueueKey, Run]


@dataclass(frozen=True, slots=True)
class RebuiltSplit:
    """What a split has written: its runs, and its keys in a file of their own. ``refused`` messages fit no queue."""

    messages: int
    refused: int
    keys: int
    runs: Runs


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was built from ``start`` to ``end`` of the log. ``mended`` queues had offsets with gaps, or out of order."""

    start: int
    end: int
    messages: int
    refused: int
    queues: int
    mended: int
    keys: int

    def as_json(self) -> dict[str, Any]:
        """What ``rmqha job rebuild --json`` prints."""
        return {
            "from": self.start,
            "to": self.end,
            "messages": self.messages,
            "refused": self.refused,
            "queues": self.queues,
            "mendedQueues": self.mended,
            "keys": self.keys,
        }


def rebuild_split(split: Split, folder: str, file_size: int, batch_bytes: int) -> RebuiltSplit:
    """Write the units and keys of a split below ``folder``. Raises StoreError, OSError."""
    levels = DelayLevels()
    runs: Runs = {}
    keys: list[IndexedKey] = []
    messages = refused = 0
    for batch in _requests(split, batch_bytes):
        units: dict[QueueKey, list[tuple[int, Unit]]] = defaultdict(list)
        for request in batch:
            messages += 1
            if request.is_queued and _has_no_place(request):
                refused += 1
            elif request.is_queued:
                units[request.topic, request.queue_id].append((request.queue_offset, _unit(request, levels)))
            keys += _keys(request)
        for key, placed in units.items():
            for run in _write_runs(_queue_folder(Path(folder), key), file_size, placed):
                runs[key] = runs[key].then(run) if key in runs else run
    np.save(_part_path(Path(folder), split.start), hashed(keys))
    return RebuiltSplit(messages, refused, len(keys), runs)


def _requests(split: Split, batch_bytes: int) -> Iterator[list[DispatchRequest]]:
    for records in read_records(split, batch_bytes):
        view = records.buffer.data
        found = [read_dispatch_request(view, position) for position in records.at.tolist()]
        yield [request for request in found if isinstance(request, DispatchRequest)]


def _has_no_place(request: DispatchRequest) -> bool:
    return is_no_folder(request.topic) or request.queue_offset < 0


def _unit(request: DispatchRequest, levels: DelayLevels) -> Unit:
    return Unit(request.physical_offset, request.size, request.tags_code(levels))


def _keys(request: DispatchRequest) -> list[IndexedKey]:
    if not request.is_indexed:
        return []
    return [
        IndexedKey(f"{request.topic}#{key}", request.physical_offset, request.store_timestamp)
        for key in request.index_keys()
    ]


def _queue_folder(folder: Path, key: QueueKey) -> Path:
    return folder / CONSUME_QUEUE_FOLDER / key[0] / str(key[1])


def _part_path(folder: Path, start: int) -> Path:
    return folder / PARTS_FOLDER / f"{start:020d}.npy"


def _write_runs(folder: Path, file_size: int, placed: Sequence[tuple[int, Unit]]) -> Iterator[Run]:
    """Write units to their places; gives the stretches of them that follow one another."""
    begin = 0
    for at in range(1, len(placed) + 1):
        if at == len(placed) or placed[at][0] != placed[at - 1][0] + 1:
            first = placed[begin][0]
            _write(folder, file_size, first, b"".join(UNIT.pack(*unit) for _, unit in placed[begin:at]))
            yield Run(first, first + at - begin)
            begin = at


def _write(folder: Path, file_size: int, first: int, units: bytes) -> None:
    """Write units from queue offset ``first`` on into the queue's files, made as they are needed. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    position = first * CQ_STORE_UNIT_SIZE
    while units:
        base = position - position % file_size
        piece = units[: base + file_size - position]
        fd = os.open(folder / file_name(base), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, file_size)
            os.pwrite(fd, piece, position - base)
        finally:
            os.close(fd)
        units, position = units[len(piece) :], position + len(piece)


def merge_runs(parts: Iterable[RebuiltSplit]) -> Runs:
    """The runs of all splits, which are in the order of the log."""
    merged: Runs = {}
    for part in parts:
        for key, run in part.runs.items():
            merged[key] = merged[key].then(run) if key in merged else run
    return merged


def rebuild(options: Options, engine: Engine, progress: Progress = no_progress) -> Rebuilt:
    """Build queues and index of the store ``options.path`` anew, in place of its own, or in ``options.output``.

    In place, nobody may have the store open. A death leaves the store as it was, or without queues and index, which its
    node then builds by itself. Raises StoreError, OSError.
    """
    plan = open_log(replace(options, boundaries=Boundaries.HOP))  # what a misled split writes could not be taken back
    root = plan.folder.parent
    target = options.output or root
    with ExitStack() as held:
        if options.output is None:
            held.callback(LockFile(root / "lock").release)
        folder = target / NODE_FOLDER / "rebuild"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / PARTS_FOLDER).mkdir(parents=True)
        done = _build(plan, engine, progress, root, folder)
        _swap(folder, target)
    return done


def _build(plan: LogPlan, engine: Engine, progress: Progress, root: Path, folder: Path) -> Rebuilt:
    start, end = plan.start(), plan.stop()
    file_size = queue_size_of(root / CONSUME_QUEUE_FOLDER, None)
    on_split = partial(rebuild_split, folder=str(folder), file_size=file_size, batch_bytes=plan.options.batch_bytes)
    parts = run_range(engine, on_split, plan, start, end, progress)
    runs = merge_runs(parts)
    (folder / CONSUME_QUEUE_FOLDER).mkdir(exist_ok=True)
    stepped_back = {key for key, run in runs.items() if not run.is_regular}
    for key in runs.keys() - stepped_back:
        _fill_gaps(_queue_folder(folder, key), file_size, runs[key])
    _dispatch_again(plan.splits(start, end), stepped_back, folder, file_size, plan.options.batch_bytes)
    _build_index(folder, slots_of(root / INDEX_FOLDER))
    return Rebuilt(
        start,
        end,
        messages=sum(part.messages for part in parts),
        refused=sum(part.refused for part in parts),
        queues=len(runs),
        mended=sum(not run.is_regular or bool(run.gaps) for run in runs.values()),
        keys=sum(part.keys for part in parts),
    )


def _fill_gaps(folder: Path, file_size: int, run: Run) -> None:
    """Blanks for what is missing, and for what came before the first unit in its file."""
    units_a_file = file_size // CQ_STORE_UNIT_SIZE
    for first, end in ((run.first - run.first % units_a_file, run.first), *run.gaps):
        for at in range(first, end, BLANKS_AT_ONCE):
            _write(folder, file_size, at, PRE_BLANK * min(BLANKS_AT_ONCE, end - at))


def _dispatch_again(
    splits: Sequence[Split], keys: set[QueueKey], folder: Path, file_size: int, batch_bytes: int
) -> None:
    """Build some queues message by message, as dispatch does."""
    if not keys:
        return
    for key in keys:
        shutil.rmtree(_queue_folder(folder, key))
    queues = {key: ConsumeQueue(_queue_folder(folder, key), *key, file_size) for key in keys}
    levels = DelayLevels()
    for split in splits:
        for request in (request for batch in _requests(split, batch_bytes) for request in batch):
            queue = queues.get((request.topic, request.queue_id))
            if queue is not None and request.is_queued and not _has_no_place(request):
                queue.put(request.queue_offset, _unit(request, levels))
    for queue in queues.values():
        queue.write_pending()
        queue.close()


def _build_index(folder: Path, slots: int) -> None:
    (folder / INDEX_FOLDER).mkdir()
    index = IndexService(folder / INDEX_FOLDER, slots, slots * ENTRIES_A_SLOT)
    for path in sorted((folder / PARTS_FOLDER).iterdir()):
        index.put_hashed(np.load(path), datetime.now())
    index.close()
    shutil.rmtree(folder / PARTS_FOLDER)


def _swap(folder: Path, target: Path) -> None:
    """Put the new queues and index, brought to the disk, in place of the old ones. Raises OSError."""
    os.sync()
    for name in (CONSUME_QUEUE_FOLDER, INDEX_FOLDER):
        if (target / name).exists():
            (target / name).rename(folder / f"old-{name}")
        (folder / name).rename(target / name)
    sync_folder(target)
    shutil.rmtree(folder)
