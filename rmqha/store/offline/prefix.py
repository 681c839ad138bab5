"""Copies the start of a store into a new one: what ``rmqha restore`` and ``rmqha backup`` do.

Every prefix of the log is a consistent store (spec/store.md 8): queues and index are trimmed to it, and tables are
taken as they were then. ``newstore`` says what a copy is until it is complete.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from struct import Struct

from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.clamping import clamp_offsets
from rmqha.store.deletions import NOTHING_DELETED, DeletedTopicTable, drop_offsets, read_deletions
from rmqha.store.derived.batchqueue import BATCH_QUEUE_FOLDER
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER
from rmqha.store.derived.dispatchmark import DispatchMark, mark_path
from rmqha.store.derived.index import INDEX_FOLDER
from rmqha.store.derived.queueends import ends_path
from rmqha.store.errors import StoreError
from rmqha.store.examining import ABORT_FILE, CHECKPOINT_FILE, LOCK_FILE, examine_store, open_log
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.mappedfile import DISK, file_name, list_segments
from rmqha.store.log.recovery import Examination, LogDamaged, Vouched, examine
from rmqha.store.log.room import existing_folder
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, TopicConfigTable
from rmqha.store.nodestate import NODE_FOLDER, STOPPED, NodeState, Offsets
from rmqha.store.offline.copying import Copied, Copier, data_bytes
from rmqha.store.offline.newstore import ROOM_LEFT_BYTES, NoRoom, check_output, new_store
from rmqha.store.offline.promote import new_topics
from rmqha.store.opening import Opening
from rmqha.store.restarts import read_restarts, write_restarts
from rmqha.store.setback import CutEnd, set_back, set_back_timers
from rmqha.store.tablesnapshots import TABLES_FOLDER, read_snapshot, read_tables, snapshot_offsets, snapshot_path
from rmqha.store.timers import TimerCheckPoint

FIRST_UNIT = Struct(">qi")
INDEX_HEADER = Struct(">qqqq")
QUEUE_FOLDERS = (CONSUME_QUEUE_FOLDER, BATCH_QUEUE_FOLDER)
COPIED_NAMES = frozenset({*QUEUE_FOLDERS, INDEX_FOLDER, CONFIG_FOLDER, NODE_FOLDER, CHECKPOINT_FILE, "commitlog"})
IGNORED_NAMES = frozenset({LOCK_FILE, ABORT_FILE})

Progress = Callable[[int], None]
"""Called with the number of bytes copied or shared so far."""


class CopyKind(Enum):
    """What the copy is for."""

    BACKUP = "backup"
    """A second copy of the same store. It keeps id and epoch, and has the tables of now."""
    RESTORE = "restore"
    """A new store with a new id and epoch. It has the tables as they were at its end."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy will do. Its log ends at ``end``. ``bytes`` counts what is to be copied or shared.

    ``tables_from`` is the offset of the table snapshot to use, None for the tables of now. Its topics are those of all
    messages before ``topics_up_to``. ``left_out`` are files and folders of the source that are not copied. ``known`` is
    what is known of the log, if the whole log is copied after a clean stop. ``deleted`` are the deletions of topics
    that a restored store has.
    """

    source: Path
    output: Path
    kind: CopyKind
    min_offset: int
    end: int
    bytes: int
    tables_from: int | None
    left_out: tuple[str, ...]
    topics_up_to: int | None
    deleted: DeletedTopicTable
    known: Examination | None = None


@dataclass(frozen=True, slots=True)
class CopyDone:
    """What a copy did. ``clamped`` counts the consumer and delay offsets that were past the end of their queues."""

    copied: Copied
    queues: int
    clamped: int


@dataclass(frozen=True, slots=True)
class SourceLog:
    """Where copies of a log end: ``end``. ``known`` is what a start would find after a clean stop; None otherwise."""

    end: int
    known: Examination | None = None


def examine_source(settings: Settings, state: NodeState | None) -> SourceLog:
    """Where a copy of the log ends: at the confirmed offset if a node of ours runs, else where a start would end it.

    If our node stopped cleanly, and the log still ends where state.json says, only its last segment is proved here.
    ``rmqha verify`` proves a whole store. Raises LogDamaged, StoreError, OSError.
    """
    root = settings.store_path_root_dir
    if is_locked(root / LOCK_FILE):
        return SourceLog(_end_of_others(settings) if state is None else _last_end(settings, state.confirmed_offset))
    examined = _examine_as_stopped(settings, state) or examine_store(settings)
    if examined.damage is not None:
        raise LogDamaged(root, examined.damage)
    ends_in_zeros = examined.written_end == examined.found.end
    return SourceLog(examined.found.end, examined if examined.clean_stop and ends_in_zeros else None)


def _examine_as_stopped(settings: Settings, state: NodeState | None) -> Examination | None:
    """Prove the last segment. None if the log does not end where our node ended it with its last clean stop."""
    if state is None or state.state != STOPPED or (settings.store_path_root_dir / ABORT_FILE).exists():
        return None
    end = state.offsets.verified
    log = open_log(settings, owned=False)
    try:
        bases = [base for base in log.segment_bases if base < end]
        if not bases:
            return None
        vouched = Vouched(state.confirmed_offset, state.flushed_offset)
        examined = examine(log, Checkpoint(), clean_stop=True, vouched=vouched, start=bases[-1])
        return examined if examined.found.end == end and examined.damage is None else None
    finally:
        log.close()


def _last_end(settings: Settings, confirmed: int) -> int:
    """Where the last record ends that is confirmed as a whole. Raises StoreError, OSError."""
    log = open_log(settings, owned=False)
    try:
        bases = [base for base in log.segment_bases if base < confirmed]
        found = log.scan(bases[-1], confirmed) if bases else None
        return confirmed if found is None or found.problem is not None else found.end
    finally:
        log.close()


def _end_of_others(settings: Settings) -> int:
    """The end of the last complete record of a log that a Java broker is writing. Raises StoreError, OSError."""
    log = open_log(settings, owned=False)
    try:
        end = log.min_offset
        for base in reversed(log.segment_bases):
            end = log.scan(base).end
            if end > base:
                break
        return end
    finally:
        log.close()


def plan_copy(
    settings: Settings, output: Path, kind: CopyKind, log: SourceLog, end: int, before_ms: int | None = None
) -> CopyPlan:
    """What copying the store of ``settings`` up to ``end``, the end of a record, will do. Changes nothing.

    ``log`` is what ``examine_source`` found. What was deleted after the last record of a restored store, and before the
    next one, is deleted there if that was before ``before_ms``, milliseconds since 1970; None: it is there.

    Raises OutputExists, StoreError, OSError.
    """
    source = settings.store_path_root_dir
    check_output(source, output)
    deletions = read_deletions(source)
    deleted = deletions.before(end, before_ms)
    # a snapshot at the end itself may be without the groups' offsets in a topic that is to be there again
    is_back = deletions.up_to(end) != deleted
    snapshot = read_snapshot(source, end - 1 if is_back else end) if kind is CopyKind.RESTORE else None
    segments = list_segments(settings.commit_log_folder)
    known = log.known if end == log.end else None
    bytes_ = sum(data_bytes(path, limit) for path, limit, _ in _log_files(settings, end, known is not None))
    bytes_ += sum(data_bytes(path, path.stat().st_size) for path in _derived_files(source, end))
    left_out = sorted(path.name for path in source.iterdir() if path.name not in COPIED_NAMES | IGNORED_NAMES)
    return CopyPlan(
        source,
        output,
        kind,
        min((base for base, _ in segments), default=0),
        end,
        bytes_,
        None if snapshot is None else snapshot.offset,
        tuple(left_out),
        _topics_up_to(source, end) if snapshot is None else snapshot.topics_up_to,
        deleted,
        known,
    )


def _topics_up_to(source: Path, end: int) -> int:
    """How far the tables of now reach: a slave's may be a little older than its log."""
    state = NodeState.read(source)
    up_to = None if state is None else state.topics_up_to
    return end if up_to is None else min(up_to, end)


def _log_files(settings: Settings, end: int, whole: bool) -> Iterator[tuple[Path, int, int]]:
    """Each segment that starts before ``end``: its path, how many of its bytes to copy, and its size.

    If the log is copied ``whole``, only zeros follow its end, and the last segment can share all its blocks.
    """
    folder = settings.commit_log_folder
    for base, size in list_segments(folder):
        if base < end:
            yield folder / file_name(base), size if whole else min(size, end - base), size


def _derived_files(source: Path, end: int) -> Iterator[Path]:
    """The files of queues and index with entries for the log before ``end``. Raises OSError."""
    for name in QUEUE_FOLDERS:
        for path in sorted((source / name).glob("*/*/*")):
            if path.is_file() and _first_numbers(path, FIRST_UNIT)[0] < end:
                yield path
    for path in sorted((source / INDEX_FOLDER).glob("*")):
        if path.is_file() and _first_numbers(path, INDEX_HEADER)[2] < end:
            yield path


def _first_numbers(path: Path, layout: Struct) -> tuple[int, ...]:
    with path.open("rb") as file:
        return layout.unpack(file.read(layout.size).ljust(layout.size, b"\0"))


def copy_store(plan: CopyPlan, settings: Settings, progress: Progress = lambda _: None) -> CopyDone:
    """Make the copy. Raises StoreInUse if another copy is being made there, StoreError, OSError.

    If it fails or is interrupted, what was made of it is removed.
    """
    _check_room(plan)
    facts = {"source": str(plan.source), "end": plan.end, "kind": plan.kind.value}
    with new_store(plan.output, facts) as folder:
        copied = _copy_files(plan, settings, folder, progress)
        undeleted = _write_tables(plan, folder)
        return _settle(plan, settings, folder, copied, undeleted)


def _check_room(plan: CopyPlan) -> None:
    """Raises NoRoom if the disk has no room for the copy and cannot share blocks."""
    parent = existing_folder(plan.output.absolute().parent)
    free = DISK.free_bytes(parent)
    if plan.bytes + ROOM_LEFT_BYTES > free and not _shares_blocks(plan.source, parent):
        raise NoRoom(f"the copy needs {plan.bytes} bytes, but {parent} has room for {free}: nothing was changed")


def _shares_blocks(source: Path, parent: Path) -> bool:
    """Whether files of the source can share their blocks with files of this folder."""
    from tempfile import NamedTemporaryFile, TemporaryDirectory

    if source.stat().st_dev != parent.stat().st_dev:
        return False
    with TemporaryDirectory(dir=parent, prefix=".rmqha-") as name, NamedTemporaryFile(dir=name) as file:
        file.write(b"1" * 4096)
        file.flush()
        copier = Copier()
        copier.copy(Path(file.name), Path(name) / "copy", 4096, 4096)
        return bool(copier.done.shared)


def _copy_files(plan: CopyPlan, settings: Settings, folder: Path, progress: Progress) -> Copied:
    source = plan.source
    total = 0

    def step(size: int) -> None:
        nonlocal total
        total += size
        progress(total)

    copier = Copier(step)
    if (source / CHECKPOINT_FILE).exists():  # first: the files copied later hold all that it covers
        copier.copy(
            source / CHECKPOINT_FILE, folder / CHECKPOINT_FILE, *[(source / CHECKPOINT_FILE).stat().st_size] * 2
        )
    for path in (ends_path(source), mark_path(source)):  # what the last clean stop noted of the queues
        if plan.known is not None and path.exists():
            copier.copy(path, folder / NODE_FOLDER / path.name, *[path.stat().st_size] * 2)
    (folder / "commitlog").mkdir()
    try:
        for path, limit, size in _log_files(settings, plan.end, plan.known is not None):
            copier.copy(path, folder / "commitlog" / path.name, limit, size)
        for path in _derived_files(source, plan.end):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            size = path.stat().st_size
            copier.copy(path, target, size, size)
    except FileNotFoundError as error:
        raise StoreError(f"{error.filename} is gone: the source's node deleted it meanwhile. Try again") from error
    write_restarts(folder, read_restarts(source))
    return copier.done


def _write_tables(plan: CopyPlan, folder: Path) -> frozenset[str]:
    """Write the tables of the plan, and the table snapshots up to the copy's end.

    Returns the topics that were deleted later. Raises StoreError, OSError.
    """
    snapshot = None if plan.tables_from is None else read_snapshot(plan.source, plan.tables_from)
    tables = read_tables(plan.source) if snapshot is None else snapshot.tables
    (folder / CONFIG_FOLDER).mkdir(exist_ok=True)
    for name, text in tables.items():
        (folder / CONFIG_FOLDER / Path(name).name).write_text(text)
    for path in sorted((plan.source / CONFIG_FOLDER).glob("*.json")):
        if not (folder / CONFIG_FOLDER / path.name).exists():  # a table that no snapshot has, such as consumerFilter
            shutil.copyfile(path, folder / CONFIG_FOLDER / path.name)
    snapshots = folder / NODE_FOLDER / TABLES_FOLDER
    snapshots.mkdir()
    newest = plan.end if plan.kind is CopyKind.BACKUP else -1 if plan.tables_from is None else plan.tables_from
    for offset in snapshot_offsets(plan.source):
        if offset <= newest:
            path = snapshot_path(plan.source, offset)
            shutil.copyfile(path, snapshots / path.name)
    if plan.kind is not CopyKind.RESTORE:
        return frozenset()
    written = tables.get(DeletedTopicTable.FILE_NAME)
    then = NOTHING_DELETED if written is None else DeletedTopicTable.parse(written.encode())
    return _take_deletions(plan, folder, then)


def _take_deletions(plan: CopyPlan, folder: Path, then: DeletedTopicTable) -> frozenset[str]:
    """Delete in the copy what was deleted between its tables and its end, and nothing that was deleted later.

    ``then`` is what its tables know of. Queues of later deletions are gone in the source: the copy builds them again.
    Returns the topics of these. Raises StoreError, OSError.
    """
    config = folder / CONFIG_FOLDER
    now = read_deletions(plan.source)
    undeleted = frozenset(deletion.topic for deletion in now.without(plan.deleted))
    since = {deletion.topic for deletion in plan.deleted.without(then)}
    if now.deletions:
        plan.deleted.write(config)
    if undeleted:
        DispatchMark(plan.min_offset).write(folder)
    if since:
        topics, offsets = TopicConfigTable.read(config), ConsumerOffsetTable.read(config)
        for topic in since:
            topics.rows.pop(topic, None)
        drop_offsets(offsets.offset_table, since)
        topics.write(config)
        offsets.write(config)
    return undeleted


def _settle(plan: CopyPlan, settings: Settings, folder: Path, copied: Copied, undeleted: frozenset[str]) -> CopyDone:
    """Open the copy, so that queues and index are trimmed to the log, and close it cleanly.

    It is opened as the source would be after its clean stop. If the source was not stopped, or the copy ends earlier,
    it is opened as after a crash. Raises StoreError, OSError.
    """
    known_log = None if is_locked(plan.source / LOCK_FILE) else plan.known
    known = NodeState.read(plan.source)
    state = NodeState.new() if known is None or plan.kind is CopyKind.RESTORE else known
    if plan.kind is CopyKind.RESTORE and known is not None:
        state = replace(state, epoch=known.epoch + 1, epoch_start=plan.end, delay_levels=known.delay_levels)
    elif known is not None:  # a running node has confirmed more meanwhile
        state = replace(known, offsets=Offsets(plan.min_offset, *[plan.end] * 4))
    if known_log is None:
        _end_log(plan, settings, folder)
        (folder / ABORT_FILE).touch()
    own = replace(
        settings,
        store_path_root_dir=folder,
        store_path_commit_log=None,
        broker_role=BrokerRole.ASYNC_MASTER,
    )
    state.write(folder)
    opened = MessageStore(own, Opening(known_log=known_log, of_node=False))
    end = opened.commit_log.verified_offset
    if end != plan.end:
        opened.abandon()
        raise StoreError(f"the copy's log ends at {end}, not at {plan.end}: see 'rmqha verify {plan.source}'")
    _set_back(plan, settings, opened)
    ends = {key: queue.max_offset for key, queue in opened.derived.queues.queues.items()}
    if plan.kind is CopyKind.RESTORE:
        topics = TopicConfigTable.read(folder / CONFIG_FOLDER)
        added = new_topics(opened, topics, plan.topics_up_to, undeleted)
        if added:
            topics.rows.update(added)
            topics.write(folder / CONFIG_FOLDER)
    clamped = opened.clamped + clamp_offsets(folder / CONFIG_FOLDER, ends)
    final = replace(state, role="", state=STOPPED, offsets=opened.offsets(end), peers=(), warnings=())
    opened.close_now(lambda: final)
    return CopyDone(copied, len(ends), clamped)


def _set_back(plan: CopyPlan, settings: Settings, opened: MessageStore) -> None:
    """Set back what points into the part of the log that the copy does not have. Raises StoreError, OSError.

    The log's end is looked for last: it moves on while the source's node runs.
    """
    point = TimerCheckPoint.read(plan.source / CONFIG_FOLDER)
    if point is not None:
        point.write(opened.root / CONFIG_FOLDER)
    log = opened.commit_log if plan.known is not None else open_log(settings, owned=False)
    try:
        cut, config, queue_of = CutEnd.of(log, plan.end), opened.root / CONFIG_FOLDER, opened.derived.queues.get
        if plan.tables_from is None:
            set_back(opened.root, cut, queue_of)
        else:  # the tables are older than the end
            set_back_timers(config, point, cut, queue_of)
    finally:
        if log is not opened.commit_log:
            log.close()


def _end_log(plan: CopyPlan, settings: Settings, folder: Path) -> None:
    """Zero what follows the end of the copied log: a node that started meanwhile may have written there.

    Raises OSError.
    """
    for path, _, size in _log_files(settings, plan.end, whole=False):
        if int(path.name) + size > plan.end:
            os.truncate(folder / "commitlog" / path.name, plan.end - int(path.name))
            os.truncate(folder / "commitlog" / path.name, size)
