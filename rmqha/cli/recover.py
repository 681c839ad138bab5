"""``rmqha recover`` and ``rmqha rebuild``: recover a store, and rebuild its queues, while no node runs on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from rmqha.cli.shared import JSON, STORE, print_json
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.showing import progress
from rmqha.settings.settings import Settings
from rmqha.store.derived.rebuild import Rebuilt, rebuild_in_place
from rmqha.store.errors import StoreInUse
from rmqha.store.examining import LOCK_FILE, examine_store
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.mappedfile import list_segments
from rmqha.store.log.recovery import Damage, LogDamaged, MayCut, Recovery
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.opening import Opening


@contextmanager
def _opening_bar() -> Iterator[Opening]:
    """What to pass to a MessageStore that a command opens: it shows on stderr how far opening is."""
    with progress("opening the store") as bar:
        yield Opening(of_node=False, bar=bar)


@click.command()
@STORE
@click.option("--apply", "applies", is_flag=True, help="Do it; without this nothing is changed.")
@click.option("--force", is_flag=True, help="With --apply: cut even if this loses confirmed bytes or sound messages.")
@SETTINGS
@JSON
def recover(store: Path, applies: bool, force: bool, conf: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Show what a node would find and cut when it starts; with --apply, do it. Cut bytes are kept in STORE/rmqha/cut.

    A node cuts a torn end without asking: the remains of messages that were never confirmed, after a crash. It refuses
    to start if this would lose confirmed bytes or sound messages. Then use rmqha repair to bring the bad bytes back
    from a replica. To continue without them, give --apply --force; rmqha restore-cut undoes this.

    Exit status 0: the log is sound, or has a torn end. 1: it is damaged, and was not cut.
    """
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    if force and not applies:
        raise Trouble(ExitCode.USAGE, "--force needs --apply: without --apply nothing is changed")
    if applies:
        _tell(_applied(settings, MayCut.ANYTHING if force else MayCut.LOST_END), as_json)
        return
    examined = _examined(settings)
    _tell(examined, as_json)
    damage = examined.damage
    if damage is not None:
        raise LogDamaged(store, damage)


@dataclass(frozen=True, slots=True)
class Found:
    """What recovery did, or would do if it is not ``applied``."""

    recovery: Recovery
    applied: bool

    @property
    def damage(self) -> Damage | None:
        return self.recovery.damage


def _examined(settings: Settings) -> Found:
    store = settings.store_path_root_dir
    if is_locked(store / LOCK_FILE):
        raise StoreInUse(f"{store} is in use by another process: stop it first")
    with progress(str(store)) as bar:
        examined = examine_store(settings, bar)
    end, cut_bytes = examined.found.end, examined.written_end - examined.found.end
    removed = [base for base, _ in list_segments(settings.commit_log_folder) if base > end]
    recovery = Recovery(
        examined.clean_stop,
        examined.min_offset,
        examined.checked_from,
        end,
        examined.found.messages,
        cut_bytes,
        len(removed),
        (examined.found.problem or "the record is not complete") if cut_bytes else None,
        damage=examined.damage,
    )
    return Found(recovery, applied=False)


def _applied(settings: Settings, may_cut: MayCut) -> Found:
    with _opening_bar() as opening:
        opened = MessageStore(settings, opening, may_cut=may_cut)
    found, had_state = opened.recovery, NodeState.read(opened.root) is not None
    confirmed = min(found.end, opened.node_state.offsets.confirmed)
    final_state = replace(opened.node_state, state="STOPPED", offsets=opened.offsets(confirmed))
    opened.close_now(final_state=(lambda: final_state) if had_state else None)
    return Found(found, applied=True)


def _tell(found: Found, as_json: bool) -> None:
    recovery = found.recovery
    if as_json:
        print_json(_as_json(found))
        return
    say(
        f"log is {recovery.min_offset} to {recovery.end}; {recovery.messages} messages checked from "
        f"{recovery.checked_from} on, after {'a clean' if recovery.clean_stop else 'an unclean'} stop"
    )
    cut = f"{recovery.cut_bytes} bytes at {recovery.end}: {recovery.problem}"
    if found.applied:
        if recovery.problem is not None:
            say(f"cut {cut}; they are kept in {recovery.kept_in}")
        if recovery.removed_segments:
            say(f"removed {recovery.removed_segments} segments after the end")
    elif recovery.damage is None:
        if recovery.problem is not None:
            say(f"a start would cut {cut}; it would keep them")
        if recovery.removed_segments:
            say(f"a start would remove {recovery.removed_segments} segments after the end")


def _as_json(found: Found) -> dict[str, Any]:
    recovery, damage = found.recovery, found.damage
    return {
        "applied": found.applied,
        "cleanStop": recovery.clean_stop,
        "min": recovery.min_offset,
        "checkedFrom": recovery.checked_from,
        "end": recovery.end,
        "messages": recovery.messages,
        "cutBytes": recovery.cut_bytes,
        "removedSegments": recovery.removed_segments,
        "problem": recovery.problem,
        "keptIn": None if recovery.kept_in is None else str(recovery.kept_in),
        "damage": None
        if damage is None
        else {
            "start": damage.start,
            "end": damage.end,
            "problem": damage.problem,
            "messagesAfter": damage.messages_after,
            "bytesAfter": damage.bytes_after,
            "badStretchCount": damage.stretch_count,
            "confirmed": damage.confirmed,
            "isGone": damage.is_gone,
        },
    }


@click.command()
@STORE
@SETTINGS
def rebuild(store: Path, conf: Path | None, sets: tuple[str, ...]) -> None:
    """Rebuild consume queues and index from the log, after recovery.

    The old ones are not read, so any damage to them does not matter. They stay until the new ones are complete, so the
    disk needs room for both. Stop it with Ctrl-C at any time: the old ones stay then. The new files have the sizes that
    --set or --conf give. Without these they have the sizes of the old files if known, or else the default.

    rmqha job rebuild builds the same files, also on a cluster, or in another folder while a node runs.
    """
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    found: list[Rebuilt] = []
    with _opening_bar() as opening:

        def build(log: CommitLog, settings: Settings) -> None:
            def reached(offset: int) -> None:
                opening.reached(OpeningPhase.DISPATCHING, offset, log.verified_offset)

            found.append(rebuild_in_place(store, log, settings, reached))

        opened = MessageStore(settings, opening, build_derived=build)
    (built,) = found
    end = opened.commit_log.verified_offset
    confirmed = min(end, opened.node_state.offsets.confirmed)
    final_state = replace(opened.node_state, offsets=opened.offsets(confirmed))  # opening it has written another state
    had_state = NodeState.read(opened.root) is not None
    opened.close_now(final_state=(lambda: final_state) if had_state else None)
    what = f"{built.queues} queues and the index" if settings.message_index_enable else f"{built.queues} queues"
    say(f"rebuilt {what} from {built.start} to {built.end}")
    if built.refused:
        say(f"{built.refused} messages fit no queue, and are in none: 'rmqha verify {store}' shows them")
    if built.skipped:
        say(f"{built.skipped} parts of the log are not records, and were skipped: 'rmqha verify {store}' shows them")
