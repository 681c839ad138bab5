"""``rmqha repair`` and ``rmqha restore-cut``: bring bytes back into a log, from a replica or from kept files."""

from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import Interface, implementer

from rmqha.cli.access import with_tls
from rmqha.cli.running import result_of, run_reactor, the_reactor
from rmqha.cli.shared import JSON, STORE, print_json, progress_bar
from rmqha.cli.stores import open_store
from rmqha.ha.slave.selfrepair import SourceUnreachable, fetch
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.progress import OffsetBar, PartBar
from rmqha.kit.showing import progress
from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.examining import CUT_FOLDER
from rmqha.store.log.mappedfile import FILE_NAME_DIGITS
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.offline.restore import DoesNotFit, Kept, Restoration, Restorer, kept_file, kept_files
from rmqha.store.offline.standins import FileFault
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.offline.storerepair import Gap, Mend, Mended, RepairError, StoreRepair, feed_from_store


class ILogCopy(Interface):
    """Another copy of the log."""

    async def feed(mend: Mend, bar: OffsetBar) -> None:
        """Give the bytes of a gap. Raises SourceUnreachable, StoreError, OSError."""


@implementer(ILogCopy)
class StoredCopy:
    """Another store on this machine."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store

    async def feed(self, mend: Mend, bar: OffsetBar) -> None:
        """See ``ILogCopy``."""
        feed_from_store(self._store, mend, bar.reached)


@implementer(ILogCopy)
class RemoteCopy:
    """The log of a running node."""

    def __init__(self, endpoint: IStreamClientEndpoint, reactor: Any) -> None:
        self._endpoint = endpoint
        self._reactor = reactor

    async def feed(self, mend: Mend, bar: OffsetBar) -> None:
        """See ``ILogCopy``."""
        await fetch(self._endpoint, self._reactor, mend, bar.reached)


@dataclass(frozen=True, slots=True)
class Done:
    """One gap and its result; ``mended`` is None in a dry run."""

    gap: Gap
    end: int
    messages: int
    mended: Mended | None


@click.command()
@STORE
@click.option(
    "--from",
    "source",
    required=True,
    metavar="REPLICA|HOST:PORT",
    help="Another store on this machine, or the HA port of a node, ours or Java's; tls:HOST:PORT for TLS.",
)
@click.option("--dry-run", is_flag=True, help="Find, fetch and check, but change nothing.")
@with_tls
@SETTINGS
@JSON
def repair(
    store: Path,
    source: str,
    dry_run: bool,
    tls: ClientTLS,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replace bad stretches of the log with bytes from a replica: from another store, or from a running node.

    This checks the whole log. For each bad stretch it fetches the bytes, checks each record, and compares the bytes on
    both sides of the stretch. Then it moves the bad bytes to STORE/rmqha/cut and writes the good ones. It replaces
    segment files that are missing between others, or too short, in the same way. No node may have the store open. You
    can interrupt it at any time, and run it again.

    Exit status 0: repaired, or nothing to do. 1: the replica cannot help. 7: the node cannot be reached.
    """
    settings = _settings(store, conf, sets)
    if Path(source).is_dir() and Path(source).samefile(store):
        raise Trouble(ExitCode.USAGE, f"--from {source} is the damaged store itself: give another copy of its log")
    done: list[Done] = []
    faults: list[FileFault] = []
    try:
        with StoreRepair(settings, changes=not dry_run) as opened:
            faults = opened.faults
            if not as_json:
                for fault in faults:
                    say(str(fault))
            _repair(opened, source, tls, dry_run, done)
            if not dry_run:
                opened.install()
    except (RepairError, SourceUnreachable) as error:
        _tell(store, faults, done, dry_run, as_json)
        code = ExitCode.CORRUPT if isinstance(error, RepairError) else ExitCode.CANNOT_CONNECT
        raise Trouble(code, f"{store} is not repaired: {source}: {error}") from error
    _tell(store, faults, done, dry_run, as_json)


def _repair(opened: StoreRepair, source: str, tls: ClientTLS, dry_run: bool, done: list[Done]) -> None:
    """Repair all gaps, noting what was done. Raises RepairError, SourceUnreachable, Trouble, StoreError, OSError."""
    gaps = _find(opened, opened.log.min_offset)
    if Path(source).is_dir():
        with open_store(Path(source)) as other:
            ours, theirs = opened.log.segment_size, other.log.segment_size
            if ours != theirs and opened.log.segment_bases and other.log.segment_bases:
                raise RepairError(f"its segments have {theirs} bytes, ours {ours} (mappedFileSizeCommitLog)")
            result_of(Deferred.fromCoroutine(_mend_all(opened, gaps, StoredCopy(other), dry_run, done)))
        return
    reactor = the_reactor()
    try:
        endpoint = make_endpoint(reactor, source, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{source}: there is no such store, and {error}") from error
    if gaps:
        copy = RemoteCopy(endpoint, reactor)
        run_reactor(reactor, lambda: _run(_mend_all(opened, gaps, copy, dry_run, done)))


async def _run(work: Coroutine[Any, Any, None]) -> bool:
    await work
    return True


def _find(opened: StoreRepair, start: int) -> list[Gap]:
    is_slave = opened.state is not None and opened.state.role == BrokerRole.SLAVE.value
    with progress_bar("looking", start, opened.log.max_offset) as bar:
        return opened.find(bar.reached, start, takes_all=not is_slave)


async def _mend_all(opened: StoreRepair, gaps: list[Gap], source: ILogCopy, dry_run: bool, done: list[Done]) -> None:
    while gaps:
        with progress("repairing") as whole:
            finished, total = 0, sum(gap.end - gap.start for gap in gaps)
            whole.show(0, total)
            for gap in gaps:
                if not done or done[-1].end <= gap.start:  # otherwise the last repair has covered this gap too
                    part = OffsetBar(PartBar(whole, finished, total), gap.start, gap.end)
                    done.append(await _mend_one(opened, gap, source, dry_run, part))
                finished += gap.end - gap.start
        if dry_run or gaps[-1].is_tail:
            return
        # With very many gaps, only the first were found. The log is sound from the last gap's anchor to its end.
        gaps = _find(opened, done[-1].gap.anchor)


async def _mend_one(opened: StoreRepair, gap: Gap, source: ILogCopy, dry_run: bool, bar: OffsetBar) -> Done:
    mend = opened.mend(gap)
    try:
        await source.feed(mend, bar)
        return Done(gap, mend.end, mend.messages, None if dry_run else opened.place(mend))
    finally:
        mend.discard()


def _tell(store: Path, faults: list[FileFault], done: list[Done], dry_run: bool, as_json: bool) -> None:
    if as_json:
        files = [{"file": str(fault.path), "bytes": fault.size, "fullBytes": fault.full_size} for fault in faults]
        print_json({"dryRun": dry_run, "files": files, "stretches": [_as_json(each) for each in done]})
        return
    for each in done:
        range_text = f"{each.end - each.gap.start} bytes from {each.gap.start} to {each.end}, {each.messages} messages"
        if each.mended is None:
            say(f"can repair {range_text}")
            continue
        kept = f"the bad bytes are kept in {each.mended.kept_in}" if each.mended.kept_in else "there were only zeros"
        say(f"repaired {range_text}; {kept}")
        if each.mended.wrong_units is None or each.mended.wrong_units:
            say(f"queues do not match these messages: 'rmqha rebuild {store}' rebuilds queues and index")
        if each.mended.differs_at is not None:
            say(f"near it, at {each.mended.differs_at}, the logs differ in bytes without a checksum: left unchanged")
    if not done:
        say("nothing repaired")


def _as_json(done: Done) -> dict[str, Any]:
    mended = done.mended
    return {
        "start": done.gap.start,
        "end": done.end,
        "messages": done.messages,
        "keptIn": None if mended is None or mended.kept_in is None else str(mended.kept_in),
        "wrongUnits": None if mended is None else mended.wrong_units,
        "differsAt": None if mended is None else mended.differs_at,
    }


@click.command()
@STORE
@click.argument("which", required=False, metavar="[FILE|OFFSET]")
@click.option("--apply", "applies", is_flag=True, help="Do it; without this nothing is changed.")
@click.option("--force", is_flag=True, help="With --apply: put back bad bytes too, as they were before the cut.")
@SETTINGS
@JSON
def restore_cut(
    store: Path,
    which: str | None,
    applies: bool,
    force: bool,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Put back bytes that recovery has cut off the log and kept in STORE/rmqha/cut.

    Without FILE or OFFSET it lists the kept files. The bytes fit if the log ends exactly where they start, or already
    holds the same bytes. They must be valid records. A file is deleted when the log holds all its bytes again.

    If recovery cut at a damaged place, the kept bytes start with bad ones. --apply --force puts them back anyway, byte
    for byte. Then replace the bad ones with rmqha repair.

    Exit status 0: listed, put back, or they would fit. 1: they do not fit.
    """
    settings = _settings(store, conf, sets)
    if which is None:
        if applies or force:
            raise Trouble(ExitCode.USAGE, "--apply needs a FILE or an OFFSET")
        _list_kept(settings, as_json)
        return
    if force and not applies:
        raise Trouble(ExitCode.USAGE, "--force needs --apply: without --apply nothing is changed")
    kept = _choose(store, which)
    with Restorer(settings, kept, changes=applies) as restorer:
        try:
            found = restorer.look()
        except DoesNotFit as error:
            raise Trouble(ExitCode.CORRUPT, f"{kept.path} does not fit: {error}") from error
        if found.bad_bytes and not force:
            raise Trouble(
                ExitCode.CORRUPT,
                f"{kept.path}: {found.bad_bytes} of the {kept.size} bytes at {kept.offset} are not records; the others "
                f"hold {found.messages} sound messages. --apply --force puts all of them back as they were; then "
                f"'rmqha repair {store} --from REPLICA' replaces the bad ones",
            )
        if applies:
            restorer.apply(found)
    _tell_restored(found, applies, as_json)


def _settings(store: Path, conf: Path | None, sets: tuple[str, ...]) -> Settings:
    """The settings of an existing store. Raises Trouble."""
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    return settings


def _choose(store: Path, which: str) -> Kept:
    """The kept file that FILE or OFFSET names. Raises Trouble."""
    if which.isdecimal() and len(which) < FILE_NAME_DIGITS:
        found = [kept for kept in kept_files(store) if kept.offset == int(which)]
        if len(found) > 1:
            names = ", ".join(kept.path.name for kept in found)
            raise Trouble(ExitCode.USAGE, f"{len(found)} files are kept for {which}: give one of {names}")
        if found:
            return found[0]
    kept = kept_file(Path(which)) or kept_file(store / NODE_FOLDER / CUT_FOLDER / which)
    if kept is None:
        raise Trouble(ExitCode.USAGE, f"{which} is not a kept file ('rmqha restore-cut {store}' lists them)")
    return kept


def _list_kept(settings: Settings, as_json: bool) -> None:
    rows = [_row(settings, kept) for kept in kept_files(settings.store_path_root_dir)]
    if as_json:
        print_json({"kept": rows})
        return
    for row in rows:
        fits = f"{row['messages']} messages, fits" if row["problem"] is None else f"does not fit: {row['problem']}"
        if row["problem"] is None and row["badBytes"]:
            fits += f" with --force ({row['badBytes']} bad bytes)"
        say(f"{row['file']}  {row['bytes']} bytes at {row['offset']}: {fits}")
    if not rows:
        say("no files are kept")


def _row(settings: Settings, kept: Kept) -> dict[str, Any]:
    row: dict[str, Any] = {"file": str(kept.path), "offset": kept.offset, "bytes": kept.size}
    try:
        with Restorer(settings, kept, changes=False) as restorer:
            found = restorer.look()
    except DoesNotFit as error:
        return {**row, "messages": None, "badBytes": None, "problem": str(error)}
    return {**row, "messages": found.messages, "badBytes": found.bad_bytes, "problem": None}


def _tell_restored(found: Restoration, applied: bool, as_json: bool) -> None:
    kept = found.kept
    if as_json:
        print_json(
            {
                "applied": applied,
                "file": str(kept.path),
                "start": kept.offset,
                "end": found.end,
                "messages": found.messages,
                "badBytes": found.bad_bytes,
                "leftBytes": found.left_bytes,
            }
        )
        return
    verb = "put back" if applied else "would put back"
    left = (
        f"; the last {found.left_bytes} bytes are not a complete record and stay in the file"
        if found.left_bytes
        else ""
    )
    say(f"{verb} {found.messages} messages from {kept.offset} to {found.end}{left}")
