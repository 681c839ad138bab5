"""Bugs planted into the product that the simulator must find, and the search for them.

Each is a change of what the product does: a method is replaced, whatever its source says. ``PLANTS`` says which seed
found it, for the tests to start there. ``python -m tests.testing.planted [NAME…]`` searches from seed 0 and tells where
each is found; it ends with 1 if one is not. Take over what it says after a change of the simulator.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path
from struct import error as StructError
from typing import Any

import pytest
from twisted.logger import globalLogBeginner

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.failover import eligible
from rmqha.failover.keys import History, Member
from rmqha.failover.member import Known
from rmqha.failover.step import reading, rights, syncset, trying, turns
from rmqha.failover.step.syncset import Growth, LookAtMembers, SyncSetKeeper
from rmqha.failover.step.work import Procedure, Work
from rmqha.ha.master.insyncslaves import InSyncSlaves
from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.ha.slave import forkprobe
from rmqha.ha.slave.greeting import GreetingEndpoint
from rmqha.ha.slave.protocol import HASlaveProtocol
from rmqha.ha.slave.replica import MasterView, Replica
from rmqha.node import core
from rmqha.node.core import RoleChanger
from rmqha.node.member import MemberNode
from rmqha.settings.settings import Settings
from rmqha.store import epochs, logrecovery
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.derived.index import KeyIndex
from rmqha.store.epochs import forget_promotion
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import DelayOffsetTable
from rmqha.store.nodestate import NodeState
from rmqha.store.offline import promote as promotion
from rmqha.store.offline import rewind as rewinding
from rmqha.store.offline import storerepair
from rmqha.store.offline.fork import Fork, OtherLog, _bounds
from rmqha.testing.sim import nodes
from rmqha.testing.sim.disk import SimFile
from rmqha.testing.sim.walk import Story, run_seed
from rmqha.wire import layout, record, scan
from rmqha.wire.delay import DelayLevels
from rmqha.wire.layout import INT32

SEEDS_UNTIL_FOUND = 2000

Patch = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_write(patch: pytest.MonkeyPatch) -> None:
    """A slave reports what it has received, written or not."""
    read_completed: Callable[[HASlaveProtocol], None] = HASlaveProtocol.read_completed

    def report_first(connection: Any) -> None:
        connection._report(connection._replica._next)
        read_completed(connection)

    patch.setattr(HASlaveProtocol, "read_completed", report_first)


def believe_every_report(patch: pytest.MonkeyPatch) -> None:
    """A master takes any offset for an acknowledgement."""

    def acknowledge(connection: HAMasterProtocol, reports: list[int]) -> None:
        progress = connection.progress
        assert progress is not None
        for offset in reports:
            progress.reported = progress.acknowledged = offset
            connection._port.slave_reported(progress)

    patch.setattr(HAMasterProtocol, "_acknowledge", acknowledge)


def begin_segments_one_byte_late(patch: pytest.MonkeyPatch) -> None:
    """A master that goes on behind a segment's end skips a byte."""
    get_data: Callable[[CommitLog, int, int], memoryview | None] = CommitLog.get_data

    def late(log: CommitLog, offset: int, limit_bytes: int) -> memoryview | None:
        data = get_data(log, offset, limit_bytes)
        return data[1:] if data is not None and len(data) > 1 and offset and offset % log.segment_size == 0 else data

    patch.setattr(CommitLog, "get_data", late)


def end_segments_one_byte_late(patch: pytest.MonkeyPatch) -> None:
    """A slave writes what it has collected when a segment is full and one byte more."""

    def take(replica: Any, offset: int, body: bytes | memoryview) -> None:
        size = replica._commit_log.segment_size
        replica._pending.append(body[max(0, replica._commit_log.max_offset - offset) :])
        replica._next = offset + len(body)
        if replica._next % size == 1:
            replica._write_pending()

    patch.setattr(Replica, "_take", take)


def shorten_files_to_zero_them(patch: pytest.MonkeyPatch) -> None:
    """Found once: a file's end was zeroed by making it shorter for a moment, in which power could be lost."""

    def zero_from(file: Any, position: int) -> None:
        for size in (position, file.file_size):
            file._disk.set_size(file.path, file._inode, size)
        file._inode.write(position, bytes(file.file_size - position))

    patch.setattr(SimFile, "zero_from", zero_from)


def ask_for_more_than_is_flushed(patch: pytest.MonkeyPatch) -> None:
    """Found once: a slave with SYNC_FLUSH began a connection with a report of what it had not flushed."""
    request: Callable[[Replica, MasterView], int] = Replica.request
    patch.setattr(Replica, "request", lambda replica, master, durable_offset: request(replica, master))


def believe_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """Found once: after a failed flush and a restart, a flush that did nothing passed for one that worked."""
    patch.setattr(CommitLog, "write_again", lambda log, start, end=None: None)


def look_at_no_crc(patch: pytest.MonkeyPatch) -> None:
    """A body that has rotted on its way passes for a sound one."""
    plainly_sound, check_record = scan._is_plainly_sound, record.check_record

    def plainly(view: memoryview, base: int, begin: int, end: int) -> bool:
        patched = bytearray(view[:end])
        _mend_crc(patched, begin)
        return plainly_sound(memoryview(patched), base, begin, end)

    def check(buffer: Any, position: int, offset: int, room: int) -> Any:
        patched = bytearray(buffer)
        _mend_crc(patched, position)
        return check_record(patched, position, offset, room)

    patch.setattr(scan, "check_records", scan.check_records_plain)  # not the compiled one
    patch.setattr(scan, "_is_plainly_sound", plainly)
    patch.setattr(scan, "_check_bodies", lambda segment, body_at, body_length, stored_crc: len(body_at))
    patch.setattr(record, "check_record", check)


def _mend_crc(data: bytearray, begin: int) -> None:
    """Make BODYCRC of the record there what its body says, if there is a body."""
    try:
        (size,) = INT32.unpack_from(data, begin + layout.BODY_LENGTH_AT)
        body_at = begin + layout.BODY_LENGTH_AT + INT32.size
        if 0 < size <= len(data) - body_at:
            INT32.pack_into(data, begin + layout.CRC_AT, record.body_crc(data[body_at : body_at + size]))
    except StructError:
        pass


def compare_half_of_the_overlap(patch: pytest.MonkeyPatch) -> None:
    """A slave does not look at the second half of what it holds and the master sends again."""
    compare: Callable[[Replica, int, bytes], None] = Replica._compare
    patch.setattr(Replica, "_compare", lambda replica, at, theirs: compare(replica, at, theirs[: len(theirs) // 2]))


def truncate_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """What was cut off the log comes back when power is lost."""
    truncate: Callable[[CommitLog, int], None] = CommitLog.truncate

    def leave_it_to_the_kernel(log: CommitLog, offset: int) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(SimFile, "sync", lambda file: None)
            truncate(log, offset)

    patch.setattr(CommitLog, "truncate", leave_it_to_the_kernel)


def end_waits_one_byte_early(patch: pytest.MonkeyPatch) -> None:
    """A put is answered when all but its last byte is held."""
    reached: Callable[[GroupCommit, int], None] = GroupCommit.reached
    patch.setattr(GroupCommit, "reached", lambda waits, offset: reached(waits, offset + 1))


def invert_a_deadline(patch: pytest.MonkeyPatch) -> None:
    """When the first wait times out, those do too whose time is not over."""

    def expire(waits: Any) -> None:
        waits._timer = None
        now = waits._clock.seconds()
        while waits._requests and waits._requests[0].deadline >= now:
            waits._requests.popleft().done.callback(False)
        if waits._requests:
            waits._timer = waits._clock.callLater(max(0.1, waits._requests[0].deadline - now), waits._expire)

    patch.setattr(GroupCommit, "_expire", expire)


def skip_a_delay_level(patch: pytest.MonkeyPatch) -> None:
    """Nobody delivers the messages of the first level."""
    start: Callable[[ScheduleMessageService], None] = ScheduleMessageService.startService

    def skip(service: Any) -> None:
        start(service)
        for level in service._levels[:1]:  # a slave has none
            level.stop()

    patch.setattr(ScheduleMessageService, "startService", skip)


def put_delays_one_level_too_high(patch: pytest.MonkeyPatch) -> None:
    """A delayed message lies in the next level's queue."""
    tags_code: Callable[[DispatchRequest, DelayLevels], int] = DispatchRequest.tags_code

    def skip(request: DispatchRequest, levels: DelayLevels) -> int:
        delay = request.properties.get("DELAY")
        if delay is None:
            return tags_code(request, levels)
        return tags_code(request._replace(properties={**request.properties, "DELAY": str(int(delay) + 1)}), levels)

    patch.setattr(DispatchRequest, "tags_code", skip)


def forget_keys(patch: pytest.MonkeyPatch) -> None:
    """The index has the first key of each message only."""
    index_keys: Callable[[DispatchRequest], list[str]] = DispatchRequest.index_keys
    patch.setattr(DispatchRequest, "index_keys", lambda request: index_keys(request)[:1])


def begin_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Confirmed bytes are taken back, and nobody who has read them is told."""
    patch.setattr(NodeState, "after_loss", lambda state, offset: state)


def keep_units_of_lost_records(patch: pytest.MonkeyPatch) -> None:
    """A unit was on the disk before its record was, power is lost, and the queue keeps the unit."""
    patch.setattr(ConsumeQueue, "truncate", lambda queue, physical_offset: None)


def leave_the_index_uncut(patch: pytest.MonkeyPatch) -> None:
    """What recovery has cut from the log stays in the index."""
    patch.setattr(KeyIndex, "truncate", lambda index, physical_offset: None)


def repair_with_unproved_bytes(patch: pytest.MonkeyPatch) -> None:
    """A slave's repair of its own log puts bytes in place whose CRC is wrong."""
    check_record = record.check_record

    def check(buffer: Any, position: int, offset: int, room: int) -> Any:
        patched = bytearray(buffer)
        _mend_crc(patched, position)
        return check_record(patched, position, offset, room)

    patch.setattr(storerepair, "check_record", check)


def vouch_for_unflushed_queues(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint says that queues and index are on the disk, and nobody has flushed them."""
    patch.setattr(MessageStore, "take_unflushed", lambda store: [])


def flush_no_names(patch: pytest.MonkeyPatch) -> None:
    """The bytes of a new queue file are flushed, and its name is not."""
    patch.setattr(ConsumeQueue, "folders", lambda queue: [])


# Promotion and rewind


def cut_before_the_tail_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A rewind cuts the log, and what it cuts is in no file yet."""
    patch.setattr(logrecovery, "keep", lambda disk, pieces, folder, name: folder / name)


def cut_before_bytes_are_compared(patch: pytest.MonkeyPatch) -> None:
    """A rewind believes that the logs part where the shorter one ends."""

    async def believe(log: CommitLog, our_end: int, theirs: OtherLog, *_: object) -> Fork:
        top = min(our_end, our_end if theirs.end is None else theirs.end)
        bases = [base for base in log.segment_bases if base < top]
        bounds = _bounds(log, bases[-1], top, our_end) if bases else [our_end]
        offset = max(bound for bound in bounds if bound <= top)
        return Fork(offset, our_end, is_theirs_shorter=False, proved_from=offset)

    patch.setattr(forkprobe, "find_fork", believe)


def queue_offsets_from_the_queue_files(patch: pytest.MonkeyPatch) -> None:
    """A promoted slave gives out queue offsets before its queues have all messages of its log."""
    patch.setattr(Dispatcher, "catch_up", lambda dispatcher, progress=None: None)


def clamp_no_offsets(patch: pytest.MonkeyPatch) -> None:
    """After a promotion consumers and delay levels go on past the ends of their queues."""
    patch.setattr(promotion, "clamp_offsets", lambda config, ends, disk: 0)


def write_the_epoch_after_the_cut(patch: pytest.MonkeyPatch) -> None:
    """A rewind cuts confirmed bytes, and tells who has read them afterwards."""
    cut_back: Callable[[MessageStore, int], Path | None] = MessageStore.cut_back

    def late(store: MessageStore, offset: int) -> Path | None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(NodeState, "write", lambda state, root, disk: None)
            kept_in = cut_back(store, offset)
        store.node_state.write(store.root, store.disk)
        return kept_in

    patch.setattr(MessageStore, "cut_back", late)


def forget_the_promotion_after_the_cut(patch: pytest.MonkeyPatch) -> None:
    """Found once: a rewind that was killed left a log without its tail, and a node that ran on it as a master."""
    rewind = rewinding.rewind

    def late(settings: Settings, offset: int, disk: Disk) -> rewinding.Rewound:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(rewinding, "forget_promotion", lambda root, disk: None)
            done = rewind(settings, offset, disk)
        forget_promotion(settings.store_path_root_dir, disk)
        return done

    patch.setattr(nodes, "rewind", late)
    patch.setattr(core, "rewind", late)


def tell_the_lag_of_before_the_power_failure(patch: pytest.MonkeyPatch) -> None:
    """Found once: a promotion said that nothing was lost, and the slave had lost its own end."""
    patch.setattr(promotion, "_lag_at", lambda end, state: state.lag_bytes)


def note_the_role_before_the_promotion(patch: pytest.MonkeyPatch) -> None:
    """Found once: a promotion that was killed between two steps was refused when it was repeated."""
    note_promotion = epochs.note_promotion

    def note(root: Path, role: str, epoch: int, time: str, disk: Disk) -> None:
        state = NodeState.read(root, disk)
        assert state is not None
        replace(state, role=role).write(root, disk)
        note_promotion(root, role, epoch, time, disk)

    patch.setattr(promotion, "note_promotion", note)


def take_delay_offsets_at_once(patch: pytest.MonkeyPatch) -> None:
    """Found once: a slave was promoted whose log had no delivery that its master's delay offsets knew of."""
    hold: Callable[[ScheduleMessageService, DelayOffsetTable, int], None] = ScheduleMessageService._hold
    patch.setattr(ScheduleMessageService, "replace", lambda service, table, log_end: hold(service, table, 0))


def note_deliveries_before_they_are_flushed(patch: pytest.MonkeyPatch) -> None:
    """Found once: power was lost after the delay offsets were written, and before the delivery was flushed."""
    hold: Callable[[ScheduleMessageService, DelayOffsetTable, int], None] = ScheduleMessageService._hold
    patch.setattr(ScheduleMessageService, "_hold", lambda service, table, log_end: hold(service, table, 0))


def let_consumers_read_what_one_slave_holds(patch: pytest.MonkeyPatch) -> None:
    """With readUpTo=confirmed, messages are served that only the fastest of several slaves in sync has."""
    counting: Callable[[InSyncSlaves, int | None], Sequence[SlaveProgress] | None] = InSyncSlaves.counting

    def count_the_fastest(policy: Any, first_wait: int | None) -> Sequence[SlaveProgress] | None:
        found = counting(policy, first_wait)
        return found and [max(found, key=policy.copies.held)]

    patch.setattr(InSyncSlaves, "counting", count_the_fastest)


def count_the_lease_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The right to lead is counted from when the coordinator's answer came."""
    renewed = rights.renewed
    patch.setattr(rights, "renewed", lambda work, sent: renewed(work, work.now))


def leave_a_member_out_before_the_key_says_so(patch: pytest.MonkeyPatch) -> None:
    """Puts no longer wait for a member as soon as it is to be left out of ``sync``."""

    def required(keeper: SyncSetKeeper) -> frozenset[str]:
        named = keeper.written.members if keeper.attempted is None else keeper.attempted.members
        return named | (frozenset() if keeper.attempted is not None else frozenset(keeper.growing))

    patch.setattr(SyncSetKeeper, "required", property(required))


def add_a_member_before_it_holds_everything(patch: pytest.MonkeyPatch) -> None:
    """A member is written into ``sync`` as soon as it is connected."""
    begin = syncset.begin_growth

    def begin_at_zero(keeper: SyncSetKeeper, look: LookAtMembers) -> dict[str, Growth]:
        return {name: replace(growth, end=0) for name, growth in begin(keeper, look).items()}

    patch.setattr(syncset, "begin_growth", begin_at_zero)


def take_the_report_of_any_member(patch: pytest.MonkeyPatch) -> None:
    """A put is complete when one member of the sync set holds it, whichever."""

    def count_any(policy: Any, first_wait: int | None) -> Sequence[SlaveProgress] | None:
        if policy.leadership.is_ended or not policy.leadership.required:
            return None if policy.leadership.is_ended else ()
        known = [slave for slave in policy.in_sync if policy.copies.held(slave) >= 0]
        return [max(known, key=policy.copies.held)] if known else None

    patch.setattr(SyncMembers, "counting", count_any)


def note_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """What a node knows of its cluster is kept in memory only."""

    def remember(work: Work, known: Known) -> Procedure[None]:
        work.knows = replace(work.knows, known=known)
        yield from ()

    for module in (reading, turns):
        patch.setattr(module, "write_known", remember)


def forget_the_newest_keys_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Found once: a node that was restarted did not know any more how new the coordinator's keys must be."""

    write_known = MemberNode.write_known

    def write_some(node: MemberNode, known: Known) -> Awaitable[None]:
        return write_known(node, replace(known, history=History(), number=0))

    patch.setattr(MemberNode, "write_known", write_some)


def lead_although_another_one_knows_more(patch: pytest.MonkeyPatch) -> None:
    """Found once: a node that knew nothing newer led, and ended the doubt of one that did."""
    patch.setattr(Member, "doubts", False)
    hear_nothing_of_doubts(patch)


def hear_nothing_of_doubts(patch: pytest.MonkeyPatch) -> None:
    """Found once: when a node that knew more had left, another one led from the old keys that it had doubted."""
    patch.setattr(reading, "doubters_of", lambda view, me, known: {})


def go_on_alone_without_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Found once: a leader asked only those that puts wait for, and if there was none, it led for ever."""
    patch.setattr(rights, "members_to_ask", lambda work, right: right.required)


def believe_a_leader_that_lost_its_end(patch: pytest.MonkeyPatch) -> None:
    """A leader whose machine lost power takes its key again, whatever its log has lost."""
    patch.setattr(Member, "is_intact", lambda member, holder: True)
    confirmed = eligible._lacks
    patch.setattr(eligible, "_lacks", lambda view, me: confirmed(replace(view, status=None), me))


def believe_the_last_stop(patch: pytest.MonkeyPatch) -> None:
    """A log that was flushed when its process stopped counts as one that has never lost anything."""
    started = Known.started

    def start(known: Known, boot: str) -> Known:
        noted = started(known, boot)
        return replace(noted, whole_since="boot-1") if known.is_flushed else noted

    patch.setattr(Known, "started", start)


def forget_promises(patch: pytest.MonkeyPatch) -> None:
    """A member tries for the lead although it has promised the leader not to."""
    patch.setattr(trying, "wait_seconds", lambda work, view, me: 0.0)


def compare_with_any_node(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts its log back to that of a node that leads no more."""
    patch.setattr(GreetingEndpoint, "connect", lambda endpoint, factory: endpoint._endpoint.connect(factory))


def acknowledge_after_candidacy(patch: pytest.MonkeyPatch) -> None:
    """A candidate says where its log ends, follows the old leader on, and then leads with no more than it has said."""
    told: dict[Path, int] = {}
    promote_store = RoleChanger._promote_store

    async def say_the_end(member: MemberNode) -> int:
        assert member.core.open_node is not None
        store = member.core.open_node.store
        told[store.root] = store.commit_log.verified_offset
        return told[store.root]

    async def promote_what_was_told(changer: RoleChanger, *more: Any) -> Any:
        assert changer.open_node is not None
        store = changer.open_node.store
        if told[store.root] < store.commit_log.verified_offset:
            store.cut_back(told[store.root])
        return await promote_store(changer, *more)

    patch.setattr(MemberNode, "stop_following", say_the_end)
    patch.setattr(RoleChanger, "_promote_store", promote_what_was_told)


CLUSTER_PLANTS: dict[Patch, int] = {
    leave_a_member_out_before_the_key_says_so: 20,
    take_the_report_of_any_member: 33,
    add_a_member_before_it_holds_everything: 0,
    note_no_epoch: 0,
    believe_a_leader_that_lost_its_end: 235,
    compare_with_any_node: 1528,
    forget_promises: 1651,
}
"""Those that only automatic failover shows, each with the first seed of that story that finds it."""

RARE_CLUSTER_PLANTS: tuple[Patch, ...] = (
    forget_the_newest_keys_at_a_restart,
    lead_although_another_one_knows_more,
    hear_nothing_of_doubts,
    go_on_alone_without_the_coordinator,
    acknowledge_after_candidacy,
    count_the_lease_from_the_answer,
    believe_the_last_stop,
)
"""Chance may need more seeds than that. ``tests/failover/test_sim_cluster.py`` has a scenario that finds each.

The command searches for those that it is given by name.
"""

FAILOVER_PLANTS: dict[Patch, int] = {
    cut_before_the_tail_is_kept: 0,
    cut_before_bytes_are_compared: 3,
    queue_offsets_from_the_queue_files: 19,
    clamp_no_offsets: 6,
    write_the_epoch_after_the_cut: 8,
    forget_the_promotion_after_the_cut: 442,
    tell_the_lag_of_before_the_power_failure: 13,
    note_the_role_before_the_promotion: 71,
    take_delay_offsets_at_once: 256,
}
"""Those that only failovers show, each with the first seed of that story that finds it.

``let_consumers_read_what_one_slave_holds`` is not here: ``test_sim_found`` has a scenario that finds it.
"""

PLANTS: dict[Patch, int] = {
    flush_no_names: 724,
    begin_no_epoch: 10,
    look_at_no_crc: 2,
    compare_half_of_the_overlap: 573,
    truncate_without_fsync: 4,
    end_waits_one_byte_early: 315,
    invert_a_deadline: 10,
    skip_a_delay_level: 0,
    put_delays_one_level_too_high: 0,
    forget_keys: 0,
    acknowledge_before_write: 0,
    believe_every_report: 77,
    begin_segments_one_byte_late: 0,
    end_segments_one_byte_late: 2,
    shorten_files_to_zero_them: 20,
    ask_for_more_than_is_flushed: 5,
    believe_the_page_cache: 1088,
    keep_units_of_lost_records: 3,
    leave_the_index_uncut: 38,
    repair_with_unproved_bytes: 268,
    vouch_for_unflushed_queues: 116,
    note_deliveries_before_they_are_flushed: 49,
}
"""Each with the first seed that finds it."""


def story_of(plant: Patch) -> Story:
    """The story in which the bug shows."""
    if plant in CLUSTER_PLANTS or plant in RARE_CLUSTER_PLANTS:
        return Story.CLUSTER
    return Story.FAILOVER if plant in FAILOVER_PLANTS else Story.REPLICATION


def first_seed(plant: Patch, seeds: Iterable[int]) -> int | None:
    """The first of these seeds that finds the bug, None if none does.

    Raises AssertionError if the plant itself fails: it does not fit the product any more.
    """
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in seeds:
            violation = run_seed(seed, story_of(plant)).violation
            if violation is not None:
                assert not _is_of_plant(violation, plant), f"{plant.__name__} does not fit the product: {violation}"
                return seed
    return None


def _is_of_plant(violation: str, plant: Patch) -> bool:
    """Whether it is an error that was raised in this file, or by a call of what the plant has put in place."""
    *_, where = ["", *(line for line in violation.splitlines() if line.startswith("  File "))]
    return __file__ in where or f"{plant.__name__}.<locals>" in violation.rstrip().rpartition("\n")[2]


def _search(name: str) -> tuple[str, int | None]:
    return name, first_seed(globals()[name], range(SEEDS_UNTIL_FOUND))


def _log_nothing() -> None:
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)


def main(names: list[str]) -> int:
    """Search from seed 0 for the bugs of these names, or for all. Gives the exit code."""
    names = names or [plant.__name__ for plant in {**PLANTS, **FAILOVER_PLANTS, **CLUSTER_PLANTS}]
    missed = 0
    with Pool(2, _log_nothing, maxtasksperchild=1) as pool:
        for name, seed in pool.imap_unordered(_search, names):
            print(f"    {name}: {seed}," if seed is not None else f"{name} is not found", flush=True)
            missed += seed is None
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
