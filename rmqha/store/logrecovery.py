"""Recovers the log of a store that is opened: settles its end, and takes back what points beyond it."""

from dataclasses import replace
from pathlib import Path

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.errors import StoreError
from rmqha.store.examining import ABORT_FILE, CHECKPOINT_FILE, CUT_FOLDER
from rmqha.store.log.checkpoint import SAFETY_MARGIN_MS, Checkpoint
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import file_name
from rmqha.store.log.recovery import Examination, Recovery, keep, latest_vouched, log_pieces, settle
from rmqha.store.nodestate import NODE_FOLDER, NodeState, Offsets
from rmqha.store.setback import CutEnd, move_snapshots_aside, queues_on_disk, set_back, set_progress_aside
from rmqha.wire.scanned import Scan

_log = Logger()


def offsets_of(log: CommitLog, confirmed: int) -> Offsets:
    """The log's offsets now."""
    return Offsets(log.min_offset, log.max_offset, log.verified_offset, log.flushed_offset, confirmed)


def recover_log(
    settings: Settings, log: CommitLog, examined: Examination, state: NodeState
) -> tuple[Recovery, NodeState]:
    """Settle the log as it was examined, and take back what points beyond its end. Returns what state.json is to say.

    Raises StoreError, OSError.
    """
    root, disk = settings.store_path_root_dir, log.disk
    damage = examined.damage
    if damage is not None:
        disk.touch(root / ABORT_FILE)  # groups go back later: a death before that is an unclean stop
        end = max(examined.written_end, damage.confirmed)
        cut = CutEnd.of(log, examined.found.end, end)
        set_back(root, cut, queues_on_disk(settings, disk), disk)
    recovery = settle(log, examined, root / NODE_FOLDER / CUT_FOLDER)
    move_snapshots_aside(root, recovery.end, disk)
    lower_checkpoint(root, log, recovery)
    state = replace(state, unproved_from=_unproved_from(settings, recovery, state))
    state = tell_loss(root, log, state, recovery.end)
    _log.info(
        "log of {store} is {min_offset} to {end}, checked from {checked_from} after {stop} stop",
        event=Event.LOG_RECOVERED,
        clean_stop=recovery.clean_stop,
        store=str(root),
        min_offset=recovery.min_offset,
        end=recovery.end,
        checked_from=recovery.checked_from,
        stop="a clean" if recovery.clean_stop else "an unclean",
    )
    if recovery.problem is not None:
        _log.warn(
            "cut {cut_bytes} bytes at {end}: {problem}; they are kept in {kept_in}",
            event=Event.LOG_CUT,
            cut_bytes=recovery.cut_bytes,
            end=recovery.end,
            problem=recovery.problem,
            kept_in=str(recovery.kept_in),
        )
    if recovery.damage is not None:
        _log.warn(
            "opening the log up to {end}, although {damage}",
            event=Event.LOG_DAMAGE_ACCEPTED,
            end=recovery.end,
            damage=str(recovery.damage),
        )
    return recovery, state


def lower_checkpoint(root: Path, log: CommitLog, recovery: Recovery | None = None) -> None:
    """Take the checkpoint back to the log's end. Cut bytes may come again, and are not on the disk at first.

    After an unclean stop, queues and index are built again from where the log was checked. Until they are flushed,
    the next start must not start later. Raises OSError.
    """
    checkpoint = Checkpoint.read(root / CHECKPOINT_FILE, log.disk)
    lowered, physic = checkpoint, log.last_store_timestamp
    if checkpoint.physic_msg_timestamp > physic:
        lowered = replace(lowered, physic_msg_timestamp=physic)
    if recovery is not None and not recovery.clean_stop:
        latest = latest_vouched(log, recovery.checked_from)
        if latest is not None and lowered.recovery_timestamp > latest:
            lowered = replace(lowered, logics_msg_timestamp=latest + SAFETY_MARGIN_MS)
    if lowered != checkpoint:
        lowered.write(root / CHECKPOINT_FILE, log.disk)


def _unproved_from(settings: Settings, recovery: Recovery, state: NodeState) -> int | None:
    """From where on a slave's log must be compared with its master's (``NodeState.doubted_from``).

    A master's log has no other to be compared with.
    """
    known = state.doubted_from(recovery.clean_stop, recovery.checked_from)
    if known is None or settings.broker_role is not BrokerRole.SLAVE or known >= recovery.end:
        return None
    _log.warn(
        "the log from {start} to {end} was not certainly on the disk when the node stopped: it will be "
        "compared with the master's",
        event=Event.LOG_END_UNPROVED,
        start=known,
        end=recovery.end,
    )
    return known


def tell_loss(root: Path, log: CommitLog, state: NodeState, end: int) -> NodeState:
    """Start a new epoch, durably, if confirmed bytes from ``end`` on are missing. Raises OSError."""
    noted = state.after_loss(end)
    if noted is not state:
        noted = replace(noted, offsets=offsets_of(log, end))
        noted.write(root, log.disk)
    return noted


def set_log_aside(root: Path, log: CommitLog, state: NodeState, now_ms: int) -> tuple[Path, NodeState]:
    """Empty the log: move all segments, and what points into it, to a new folder below ``rmqha``.

    Returns the folder, and what state.json is to say. Raises OSError.
    """
    disk, aside = log.disk, root / NODE_FOLDER / f"aside-{now_ms}"
    disk.make_folder(aside.parent)
    log.sync()
    state = replace(state, offsets=offsets_of(log, log.verified_offset), unproved_from=None)
    set_progress_aside(root, aside.with_name(f"{aside.name}-timers"), disk)
    log.set_aside(aside)
    move_snapshots_aside(root, log.min_offset, disk)
    lower_checkpoint(root, log)
    return aside, tell_loss(root, log, state, log.min_offset)


def keep_cut(root: Path, log: CommitLog, state: NodeState, offset: int) -> tuple[Path | None, NodeState]:
    """Before the log is cut at ``offset``: keep the bytes after it, and write the new epoch to state.json.

    Returns the file that keeps the bytes, None without any, and what state.json says. Raises OSError.
    """
    kept_in = None
    if log.max_offset > offset:
        pieces = log_pieces(log, offset, log.max_offset)
        kept_in = keep(log.disk, pieces, root / NODE_FOLDER / CUT_FOLDER, file_name(offset))
    state = state.after_loss(offset)
    confirmed = min(offset, state.offsets.confirmed)
    unproved = state.unproved_from if state.unproved_from is not None and state.unproved_from < offset else None
    offsets = replace(offsets_of(log, confirmed), verified=offset, written=offset)
    state = replace(state, offsets=offsets, unproved_from=unproved)
    state.write(root, log.disk)
    return kept_in, state


def scan_to(log: CommitLog, offset: int) -> Scan:
    """Scan the last segment before ``offset``, the end of a record. Raises StoreError if it is not one, OSError."""
    found = log.scan(max(log.min_offset, (offset - 1) // log.segment_size * log.segment_size), offset)
    if found.end != offset:
        raise StoreError(f"{offset} is not the end of a record: the record before it ends at {found.end}")
    return found


def tell_proved(state: NodeState) -> NodeState:
    """All that was in doubt equals the master's log."""
    _log.info(
        "the log from {start} on equals the master's: all that was in doubt was compared",
        event=Event.LOG_END_PROVED,
        start=state.unproved_from,
    )
    return replace(state, unproved_from=None)
