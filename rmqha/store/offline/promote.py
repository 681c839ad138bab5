"""Makes a slave's store a master's, and says in advance what that changes (spec/ha.md 9, spec/store.md 9).

The steps reach the disk in this order. The unproved tail is cut, as at any start. The new epoch is written, then the
tables, then the note that the store was promoted, then the new role. After a power failure before the note the store is
still a slave's: it opens, and can be promoted again.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import iso_time
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.clamping import Moved, QueueEnds, clamp_offsets, clamp_to_ends
from rmqha.store.deletions import DeletedTopicTable, read_deletions
from rmqha.store.derived.batchqueue import BatchConsumeQueue
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, ConsumeQueue
from rmqha.store.derived.dispatchrequest import DispatchRequest, read_dispatch_request
from rmqha.store.derived.queuetable import QueueTable, open_queues
from rmqha.store.epochs import Epoch, add_epoch, next_epoch, note_promotion, promoted_role
from rmqha.store.errors import StoreError
from rmqha.store.examining import examine_store, open_log
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.log.provedrecords import proved_records
from rmqha.store.log.recovery import LogDamaged
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rmqha.store.nodestate import STOPPED, NodeState
from rmqha.store.popinflight import REVIVE_TOPIC_PREFIX, PopInFlight, PopNotes, popped_in_words
from rmqha.store.reading import MessageReader
from rmqha.store.restarts import read_restarts
from rmqha.store.timers import TimerCheckPoint, WaitingTimers, waiting_timers
from rmqha.wire.columns import Records
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import INNER_BATCH_FLAG, QUEUED_TRANSACTION_TYPES, TRANSACTION_TYPE_MASK
from rmqha.wire.timers import TIMER_QUEUE_ID, TIMER_TOPIC
from rmqha.wire.topics import HALF_TOPIC, LIGHT_QUEUE_PREFIX, TRANSACTION_GROUP

TIMER_TOPICS_NAMED = 20
TOPICS_NAMED = 20
NEW_TOPIC_MS = 60_000
"""Slaves copied their master's table of topics more often, before they noted its offset."""
SYSTEM_PREFIXES = ("rmq_sys_", SCHEDULE_TOPIC.lower(), LIGHT_QUEUE_PREFIX.lower())
MIN_FREE_BYTES = 16 << 20
"""Without this room a promotion is refused: its tables, and the first messages, could not be written."""
UNFIT = {"GAP": ExitCode.GAP, "DIVERGED": ExitCode.DIVERGED}
"""A slave in one of these states has another log than its master, or an old one."""


class NotPromotable(StoreError):
    """The store must not be promoted as it is. Nothing was changed. ``code`` is the exit code that says why."""

    def __init__(self, code: ExitCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a store is promoted. ``epoch`` is the one that a coordinator has given; None takes the next."""

    cause: str
    epoch: int | None = None


PROMOTED = Reason("promoted")
"""By an operator's command."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a promotion will do, or did. ``queue_ends`` and ``moved`` have queue offsets, the rest offsets of the log.

    The log will end at ``end``. After that a crash left ``cut_bytes``. At ``last_contact`` the old master was
    ``lag_bytes`` ahead: those bytes are not here. Each is None if it is unknown. ``delayed`` counts delayed
    messages that are not delivered yet. ``half_messages`` counts the messages of the half topic that the transaction
    check has not passed yet: some of these transactions have ended. ``timers`` are timer messages of 5.x that wait.
    ``popped`` are messages that POP consumers of 5.x hold: a master of ours does not give them again. From
    ``unproved_from`` on, the log was not flushed at an unclean stop, and was not compared with the old master since: a
    message there may have lost its properties. The table of topics has those of all messages before ``topics_up_to``,
    None if that is not known. Of the topics ``restarts`` queues start again from 0, and the old master, a Java broker,
    has not said whether it had deleted them.
    """

    role: BrokerRole
    epoch: int
    min_offset: int
    end: int
    cut_bytes: int
    confirmed: int
    lag_bytes: int | None
    last_contact: str | None
    master: str | None
    queue_ends: QueueEnds
    delayed: int
    half_messages: int
    timers: WaitingTimers
    moved: tuple[Moved, ...]
    unproved_from: int | None
    topics_up_to: int | None
    popped: PopInFlight
    restarts: tuple[str, ...]


def promotion_as_json(promotion: Promotion) -> dict[str, Any]:
    """The promotion as commands print it, and as a node answers."""
    queues: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in sorted(promotion.queue_ends.items()):
        queues.setdefault(topic, {})[str(queue_id)] = end
    return {
        "role": promotion.role.value,
        "epoch": promotion.epoch,
        "min": promotion.min_offset,
        "end": promotion.end,
        "cutBytes": promotion.cut_bytes,
        "unprovedFrom": promotion.unproved_from,
        "confirmed": promotion.confirmed,
        "lagBytes": promotion.lag_bytes,
        "lastContact": promotion.last_contact,
        "master": promotion.master,
        "delayedMessages": promotion.delayed,
        "halfMessages": promotion.half_messages,
        "timerMessages": promotion.timers.count,
        "timerTopics": dict(promotion.timers.topics.most_common(TIMER_TOPICS_NAMED)),
        "timersAreAll": promotion.timers.is_all,
        **promotion.popped.as_json(),
        "unknownDeletions": list(promotion.restarts),
        "movedOffsets": [moved._asdict() for moved in promotion.moved],
        "queues": queues,
    }


def unknown_deletions_in_words(topics: Sequence[str]) -> str:
    """What a promotion says of the topics that the old master may have deleted, in a sentence without an end."""
    more = f" and {len(topics) - TOPICS_NAMED} more" if len(topics) > TOPICS_NAMED else ""
    return (
        f"the old master has not said whether it had deleted {', '.join(topics[:TOPICS_NAMED])}{more}, of which a "
        "queue starts again from 0. The old messages stay in the queues. The new ones are in them only from where the "
        "old ones end"
    )


def check_promotable(store: Path, state: NodeState | None, force: bool, disk: Disk = DISK) -> None:
    """Raises NotPromotable for a master's store, one that was promoted already, or one that is in GAP or DIVERGED.

    Raises StoreError, OSError.
    """
    role = promoted_role(store, disk)
    if force:
        return
    if role is not None:
        reason = f"{store} was promoted to {role} already: start its node. --force gives it a new epoch"
        raise NotPromotable(ExitCode.USAGE, reason)
    if state is None:
        reason = f"{store} has no state.json: no node of ours has copied it from a master. --force promotes it"
        raise NotPromotable(ExitCode.USAGE, reason)
    if state.role != BrokerRole.SLAVE.value:
        reason = f"{store} is not a slave's store: its node was a {state.role or 'node without a role'}"
        raise NotPromotable(ExitCode.USAGE, reason)
    unfit = state.state if state.state in UNFIT else state.verdict
    if unfit in UNFIT:
        cause = state.reason or "its log is not its master's"
        reason = f"{store} is {unfit} ({cause}): promote another slave. --force promotes this one as it is"
        raise NotPromotable(UNFIT[unfit], reason)


def check_disk(store: Path, disk: Disk = DISK) -> None:
    """Raises NotPromotable if the disk is so full that the promotion could not be noted on it, OSError."""
    free = disk.free_bytes(store)
    if free < MIN_FREE_BYTES:
        reason = f"the disk of {store} is full, with {free} bytes free: make room first. Nothing was changed"
        raise NotPromotable(ExitCode.IO_ERROR, reason)


def plan_promotion(settings: Settings, role: BrokerRole, state: NodeState | None, disk: Disk = DISK) -> Promotion:
    """What promoting a store would do. No process may have it open. Changes nothing.

    Raises LogDamaged, StoreError, OSError.
    """
    root = settings.store_path_root_dir
    examined = examine_store(settings, disk=disk)
    if examined.damage is not None:
        raise LogDamaged(root, examined.damage)
    end = examined.found.end
    log = open_log(settings, owned=False, disk=disk)
    try:
        ends = ends_of_queues(settings, log, end)
        waiting = _waiting_in(settings, log, examined.found.store_timestamp)
    finally:
        log.close()
    epoch = next_epoch(root, 1 if state is None else state.epoch, disk)
    doubted = None if state is None else state.doubted_from(examined.clean_stop, examined.checked_from)
    found = _FoundLog(examined.min_offset, end, examined.written_end - end, doubted, ends)
    return _promotion(root, _Promoting(role, epoch, state), found, waiting, disk)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What waits in a store of 5.x, and for the master's answer."""

    timers: WaitingTimers
    popped: PopInFlight
    restarts: Iterable[str]


@dataclass(frozen=True, slots=True)
class _FoundLog:
    """The log of a slave's store and the ends of its queues. From ``doubted_from`` on it may differ from its master's.

    Its last ``cut_bytes`` are not sound.
    """

    min_offset: int
    end: int
    cut_bytes: int
    doubted_from: int | None
    ends: QueueEnds


@dataclass(frozen=True, slots=True)
class _Promoting:
    """What a slave's node becomes, and what state.json says of it as a slave."""

    role: BrokerRole
    epoch: int
    state: NodeState | None


def check_popped(settings: Settings, role: BrokerRole, state: NodeState | None, disk: Disk = DISK) -> None:
    """Raises NotPromotable if POP consumers hold messages of this store, which a master of ours does not give again.

    The store may be open. Raises LogDamaged, StoreError, OSError.
    """
    folder = settings.store_path_root_dir / CONSUME_QUEUE_FOLDER
    topics = disk.folders_in(folder) if disk.is_folder(folder) else []
    if not any(topic == TIMER_TOPIC or topic.startswith(REVIVE_TOPIC_PREFIX) for topic in topics):
        return
    popped = plan_promotion(settings, role, state, disk).popped
    if popped.count:
        words = popped_in_words(popped.as_json())
        raise NotPromotable(ExitCode.IN_USE, f"{words}. --abandon-popped promotes it anyway")


def _waiting_in(settings: Settings, log: CommitLog, stored_ms: int) -> _Waiting:
    """What waits, as far as the queues have it. Raises StoreError, OSError.

    ``stored_ms`` is when the last message of the log was stored.
    """
    root = settings.store_path_root_dir
    queues = open_queues(root, settings, owned=False, problems={}, disk=log.disk)
    try:
        for (topic, _), queue in queues.queues.items():
            if topic == TIMER_TOPIC or topic.startswith(REVIVE_TOPIC_PREFIX):
                queue.find_end()
                queue.correct_min_offset(log.min_offset)
        reader = MessageReader(log, queues, None, settings, is_slave=True)
        return _waiting(root, queues, reader, stored_ms, read_restarts(root, log.disk), log.disk)
    finally:
        queues.close()


def _waiting(
    root: Path, queues: QueueTable, reader: MessageReader, stored_ms: int, restarts: Iterable[str], disk: Disk
) -> _Waiting:
    point = TimerCheckPoint.read(root / CONFIG_FOLDER, disk)
    notes = PopNotes(read_deletions(root, disk))
    timers = waiting_timers(queues.get(TIMER_TOPIC, TIMER_QUEUE_ID), reader.message_at, point, stored_ms, notes.add)
    notes.add_revived(queues, reader.message_at, ConsumerOffsetTable.read(root / CONFIG_FOLDER, disk).offset_table)
    return _Waiting(timers, notes.in_flight(), restarts)


def _promotion(root: Path, promoting: _Promoting, log: _FoundLog, waiting: _Waiting, disk: Disk) -> Promotion:
    """What promoting the store would do. Raises StoreError, OSError."""
    state, end, ends, doubted_from = promoting.state, log.end, log.ends, log.doubted_from
    consumers = ConsumerOffsetTable.read(root / CONFIG_FOLDER, disk).offset_table
    delays = DelayOffsetTable.read(root / CONFIG_FOLDER, disk).offset_table
    moved = clamp_to_ends(consumers, ends)
    half_from = consumers.get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(0, 0)
    return Promotion(
        promoting.role,
        promoting.epoch,
        log.min_offset,
        end,
        log.cut_bytes,
        0 if state is None else state.confirmed_offset,
        None if state is None else _lag_at(end, state),
        None if state is None else state.last_contact,
        None if state is None else state.master,
        ends,
        sum(
            max(0, queue_end - delays.get(queue_id + 1, 0))
            for (topic, queue_id), queue_end in ends.items()
            if topic == SCHEDULE_TOPIC
        ),
        max(0, ends.get((HALF_TOPIC, 0), 0) - half_from),
        waiting.timers,
        tuple(moved),
        None if doubted_from is None or doubted_from >= end else doubted_from,
        None if state is None else state.topics_up_to,
        waiting.popped,
        tuple(sorted(waiting.restarts)),
    )


def _lag_at(end: int, state: NodeState) -> int | None:
    """How many bytes are missing, as far as the slave knew. A power failure may have taken some that it had."""
    if state.lag_bytes is None:
        return None
    return max(0, state.offsets.verified + state.lag_bytes - end)


def new_topics(
    opened: MessageStore, known: TopicConfigTable, up_to: int | None, undeleted: Container[str] = ()
) -> dict[str, TopicConfig]:
    """The topics of messages that are younger than the table of topics.

    The table has those of all messages before ``up_to``, so a topic with older messages only was deleted, unless it is
    ``undeleted``. Without ``up_to`` the last minute counts: a slave copied its master's table more often before it
    noted this offset. Raises OSError.
    """
    queues: dict[str, int] = {}
    since = opened.commit_log.last_store_timestamp - NEW_TOPIC_MS
    for topic, queue_id in opened.derived.queues.queues:
        if topic not in known.topic_config_table and not topic.lower().startswith(SYSTEM_PREFIXES):
            queue = opened.derived.queues.get(topic, queue_id)
            if queue is None or queue.max_offset <= queue.min_offset:
                continue
            offset = queue.last_unit[0]
            if topic in undeleted or (up_to is not None and offset >= up_to):
                is_new = True
            else:
                last = opened.reader.message_at(offset) if up_to is None else None
                is_new = last is not None and last.store_timestamp >= since
            if is_new:
                queues[topic] = max(queues.get(topic, 0), queue_id + 1)
    return {topic: TopicConfig(topic, count, count) for topic, count in queues.items()}


def ends_of_queues(settings: Settings, log: CommitLog, end: int) -> dict[tuple[str, int], int]:
    """The next offset of each queue once the log, which ends at ``end``, is dispatched. Changes nothing.

    Raises StoreError if the log is damaged after what the queues have, OSError.
    """
    queues = open_queues(settings.store_path_root_dir, settings, owned=False, problems={}, disk=log.disk)
    ends: dict[tuple[str, int], int] = {}
    deleted = read_deletions(settings.store_path_root_dir, log.disk).lowered_to(end)
    built_until = log.min_offset
    try:
        for key, queue in queues.queues.items():
            queue.find_end()
            ends[key] = _end_in_log(queue, end)
            if queue.max_physical_offset <= end and not queues.misplaced:
                built_until = max(built_until, queue.max_physical_offset)
            queue.release_files()
    finally:
        queues.close()
    for records in proved_records(log, built_until, end):
        if (records.sys_flag & INNER_BATCH_FLAG).any():
            _add_batch_ends(records, ends, deleted)
        begins, lengths = records.topic
        columns = (
            begins,
            lengths,
            records.ints("queueId"),
            records.ints("queueOffset"),
            records.sys_flag,
            records.physical_offset,
        )
        for at, length, queue_id, queue_offset, flags, offset in zip(*(one.tolist() for one in columns), strict=True):
            if flags & TRANSACTION_TYPE_MASK not in QUEUED_TRANSACTION_TYPES:
                continue
            topic = bytes(records.buffer[at : at + length]).decode("utf-8", "replace")
            if deleted.is_deleted(topic, offset):
                continue
            ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), queue_offset + 1)
    return ends


def _add_batch_ends(records: Records, ends: dict[tuple[str, int], int], deleted: DeletedTopicTable) -> None:
    """Count the messages of batches of 5.x: each takes as many queue offsets as its batch has messages."""
    for at in records.at[(records.sys_flag & INNER_BATCH_FLAG) != 0].tolist():
        request = read_dispatch_request(records.buffer.data, at)
        if isinstance(request, DispatchRequest) and request.is_queued:
            if deleted.is_deleted(request.topic, request.physical_offset):
                continue
            try:
                base_offset, batch_size = request.batch
            except ValueError:  # dispatch gives it no unit
                continue
            key = request.topic, request.queue_id
            ends[key] = max(ends.get(key, 0), base_offset + batch_size)


def _end_in_log(queue: ConsumeQueue, end: int) -> int:
    """The next offset of the queue, not counting units of messages past the log's end."""
    if isinstance(queue, BatchConsumeQueue):
        return queue.end_before(end)
    offset = queue.max_offset
    while offset > queue.min_offset:
        unit = queue.unit(offset - 1)
        if unit is None or unit.is_blank or unit.physical_offset + unit.size <= end:
            break
        offset -= 1
    return offset


def promote(
    settings: Settings, role: BrokerRole, now_ms: int, reason: Reason = PROMOTED, disk: Disk = DISK
) -> Promotion:
    """Make the store that of a master of this role. No process may have it open.

    It cuts only what any start cuts. The next node on this store runs as this master. Raises LogDamaged, StoreError,
    OSError.
    """
    root = settings.store_path_root_dir
    before = NodeState.read(root, disk)
    opened = MessageStore(replace(settings, broker_role=role), disk=disk)
    try:
        promotion = promote_open_store(opened, role, now_ms, before, reason)
    except BaseException:  # of any kind: close the store, then raise it again
        opened.abandon()
        raise
    state = replace(opened.node_state, offsets=opened.offsets(opened.confirmed_without_node()))
    opened.close_now(lambda: state)
    return promotion


def promote_open_store(
    opened: MessageStore, role: BrokerRole, now_ms: int, before: NodeState | None, reason: Reason
) -> Promotion:
    """The same for a store that is already open as a master's: write epoch, tables and the note of the promotion.

    Raises StoreError (also if the store knows the epoch of ``reason``, or a later one), OSError.
    """
    disk = opened.disk
    root, end, time = opened.root, opened.commit_log.verified_offset, iso_time(now_ms)
    epoch = next_epoch(root, opened.node_state.epoch, disk) if reason.epoch is None else reason.epoch
    add_epoch(root, Epoch(epoch, end, time, reason.cause), disk)
    slave = replace(opened.node_state, epoch=epoch, epoch_start=end, role=BrokerRole.SLAVE.value)
    slave.write(root, disk)  # a slave's until the promotion is noted: else it could not be promoted again
    opened.node_state = replace(
        slave,
        role=role.value,
        state=STOPPED,
        reason=f"{reason.cause} to {role.value} at {end}",
        since=time,
        verdict=None,
        peers=(),
        warnings=(),
        master=None,
        tables=None,
        lag_bytes=None,
        lag_seconds=None,
    )
    stored_ms = opened.commit_log.last_store_timestamp
    waiting = _waiting(root, opened.derived.queues, opened.reader, stored_ms, opened.restarts.found, disk)
    recovery = opened.recovery
    doubted = None if before is None else before.doubted_from(recovery.clean_stop, recovery.checked_from)
    found = _FoundLog(opened.commit_log.min_offset, end, recovery.cut_bytes, doubted, opened.derived.queue_offsets())
    promotion = _promotion(root, _Promoting(role, epoch, before), found, waiting, disk)
    _write_tables(opened, promotion, now_ms)
    note_promotion(root, role.value, epoch, time, disk)
    opened.node_state.write(root, disk)
    opened.restarts.clear()  # the old master is asked no more
    return promotion


def _write_tables(opened: MessageStore, promotion: Promotion, now_ms: int) -> None:
    """Set offsets back to the ends of their queues, add new topics, and raise the tables' versions.

    Raises StoreError, OSError.
    """
    config, disk = opened.root / CONFIG_FOLDER, opened.disk
    clamp_offsets(config, promotion.queue_ends, disk)
    topics = TopicConfigTable.read(config, disk)
    topics.topic_config_table.update(new_topics(opened, topics, promotion.topics_up_to))
    for table in (topics, SubscriptionGroupTable.read(config, disk)):
        if table.rows:
            table.data_version = table.data_version.next(now_ms)
            table.write(config, disk)
