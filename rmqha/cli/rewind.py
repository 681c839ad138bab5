"""``rmqha rewind``: takes a store back to where its log parts from a master's."""

from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IStreamClientEndpoint

from rmqha.cli.access import with_tls
from rmqha.cli.restore import DRY_RUN
from rmqha.cli.running import run_reactor, the_reactor
from rmqha.cli.shared import JSON, STORE, print_json, progress_bar
from rmqha.ha.slave.forkprobe import OurLog, find_fork_with_master
from rmqha.ha.slave.selfrepair import SourceUnreachable
from rmqha.kit.connecting import reason_of
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable
from rmqha.kit.showing import progress
from rmqha.kit.times import iso_time
from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.remoting.asking import ask_master_range
from rmqha.settings.settings import Settings
from rmqha.store.epochs import promoted_role
from rmqha.store.errors import StoreInUse
from rmqha.store.examining import LOCK_FILE, examine_store, open_log
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.recovery import LogDamaged
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.offline.fork import Fork, NothingInCommon
from rmqha.store.offline.newstore import NoRoom
from rmqha.store.offline.rewind import Rewound, Tail, check_room, needs_rewind, tail_of
from rmqha.store.offline.rewind import rewind as rewind_store
from rmqha.store.offline.storerepair import RepairError
from rmqha.wire.brokerinfo import MasterRange

MAX_TOPICS_SHOWN = 20


@click.command()
@STORE
@click.option(
    "--to",
    "master",
    required=True,
    metavar="HOST:PORT",
    help="The HA port of the master to follow, ours or Java's; tls:HOST:PORT for TLS.",
)
@click.option(
    "--master-remoting",
    default=None,
    metavar="HOST:PORT|none",
    help="Its remoting port; default: one below the HA port. none: it cannot be asked; then more bytes are compared.",
)
@DRY_RUN
@with_tls
@SETTINGS
@JSON
def rewind(
    store: Path,
    master: str,
    master_remoting: str | None,
    dry_run: bool,
    tls: ClientTLS,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Cut STORE back to the last record that it has in common with a master, so that it can follow that master.

    This is for the old master after another node took its place, and for a slave that is AHEAD or DIVERGED. The cut
    messages are kept in a file below STORE/rmqha/cut: rmqha dump shows them, and rmqha restore-cut puts them back. Stop
    the node first; then start it with --role=slave.

    Exit status 0: rewound, or nothing was to do. 5: the logs have nothing in common. 7: the master cannot be reached.
    """
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    if is_locked(store / LOCK_FILE):
        raise StoreInUse(f"{store} is in use by another process: stop it first")
    state = NodeState.read(store)
    with progress(str(store)) as bar:
        examined = examine_store(settings, bar)
    if examined.damage is not None:
        raise Trouble(
            ExitCode.CORRUPT,
            f"{LogDamaged(store, examined.damage)}. Then type the same rewind again. A rewind cuts all that follows "
            "the place where the logs part: if the damage is after it, 'recover' cuts nothing that a rewind would not",
        )
    way = Way(master, master_remoting, tls)
    log = open_log(settings, owned=False)
    try:
        doubted_from = None if state is None else state.doubted_from(examined.clean_stop, examined.checked_from)
        fork = _find(store, way, log, examined.found.end, doubted_from)
        with progress_bar("counting what is cut", fork.offset, fork.our_end) as bar:
            tail = tail_of(log, fork, 0 if state is None else state.confirmed_offset, bar.reached)
    finally:
        log.close()
    try:
        check_room(store, fork)
    except NoRoom as error:
        raise Trouble(ExitCode.IO_ERROR, f"{store} is not rewound: {error}") from error
    done, was_promoted = None, promoted_role(store) is not None
    if needs_rewind(store, fork) and not dry_run:
        rewound = rewind_store(settings, fork.offset)
        done = rewound if fork.offset < fork.our_end else None  # else it only forgets a promotion
    if as_json:
        print_json({**_as_json(fork, tail, done), "wasPromoted": was_promoted})
    else:
        _tell(settings, fork, tail, done)
        if was_promoted:
            say(f"{store} was promoted; it {'would be' if dry_run else 'is'} a slave's store again")


class Way:
    """How the master is reached: ``master`` is its HA port, ``ask_range`` asks its remoting port, if there is one."""

    def __init__(self, master: str, remoting: str | None, tls: ClientTLS) -> None:
        """Raises Trouble."""
        self._tls = tls
        self._reactor = the_reactor()
        self.name = master
        self.master = self._endpoint_of(master)
        self.remoting = _remoting_of(master) if remoting is None else remoting
        self._asked = None if self.remoting == "none" else self._endpoint_of(self.remoting)
        self.ask_range = None if self._asked is None else self._ask_range

    def _endpoint_of(self, text: str) -> IStreamClientEndpoint:
        try:
            return make_endpoint(self._reactor, text, self._tls)
        except ValueError as error:
            raise Trouble(ExitCode.USAGE, str(error)) from error

    async def _ask_range(self) -> MasterRange:
        assert self._asked is not None, "there is a remoting port"
        try:
            return await ask_master_range(self._asked, self._reactor)
        except CancelledError:  # Ctrl-C
            raise
        except Exception as error:  # of any kind: the range stays unknown
            raise _NoRange(
                f"{self.remoting} does not tell the range of the master's log ({reason_of(error)}). --to must be "
                f"an HA port, which is listenPort + 1 by default: is {self.name} one? If its remoting port is not "
                "one below it, give --master-remoting=HOST:PORT, or none"
            ) from error

    def find_fork(self, log: CommitLog, end: int, doubted_from: int | None) -> Fork:
        """Where the logs part. Raises as ``find_fork_with_master``."""
        return run_reactor(
            self._reactor,
            lambda: find_fork_with_master(
                OurLog(log, end, doubted_from),
                self.master,
                self.ask_range,
                self._reactor,
                lambda line: say(line, err=True),
            ),
        )


class _NoRange(Exception):
    """The remoting port does not tell the range of the master's log."""


def _find(store: Path, way: Way, log: CommitLog, end: int, doubted_from: int | None) -> Fork:
    try:
        return way.find_fork(log, end, doubted_from)
    except NothingInCommon as error:
        raise Trouble(ExitCode.DIVERGED, f"{store} is not rewound: {error}") from error
    except (SourceUnreachable, RepairError) as error:
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{store} is not rewound: {way.name}: {error}") from error
    except _NoRange as error:
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{store} is not rewound: {error}") from error


def _remoting_of(master: str) -> str:
    """The default of a master whose HA port this is: listenPort is one below haListenPort."""
    host, _, port = master.rpartition(":")
    try:
        return f"{host}:{int(port) - 1}"
    except ValueError:
        raise Trouble(ExitCode.USAGE, f"{master} is not HOST:PORT") from None


def _tell(settings: Settings, fork: Fork, tail: Tail, done: Rewound | None) -> None:
    store = settings.store_path_root_dir
    if fork.offset == fork.our_end:
        say(f"nothing to rewind: the master has all that {store} has, up to {fork.offset}")
        if done is not None:
            say("its promotion is forgotten: start it with --role=slave")
        return
    why = "the master's log ends there" if fork.is_theirs_shorter else "the next record differs"
    say(f"both logs are the same up to {fork.offset}: {why}")
    say(f"all bytes from {fork.proved_from} to {fork.offset} were compared")
    if tail.first is not None:
        first = tail.first
        say(
            f"the first message that only {store} has: queue {first.queue_id} of {printable(first.topic)}, offset "
            f"{first.queue_offset}, stored {iso_time(first.store_timestamp)}"
        )
    verb = "cut" if done is not None else "would cut"
    say(f"{verb} {tail.end - tail.start} bytes with {sum(tail.messages.values())} messages")
    if tail.confirmed_bytes:
        say(f"{tail.confirmed_bytes} of these bytes were confirmed")
    for topic, count in tail.messages.most_common(MAX_TOPICS_SHOWN):
        say(f"{count:>12}  {printable(topic)}")
    if len(tail.messages) > MAX_TOPICS_SHOWN:
        say(f"and {len(tail.messages) - MAX_TOPICS_SHOWN} more topics")
    if done is None:
        say("nothing was changed")
    else:
        say(f"{store} ends at {done.end} now, epoch {done.epoch}; the cut messages are kept in {done.kept_in}")
        say(f"next: start it with --role=slave. 'rmqha dump {done.kept_in}' shows the cut messages")


def _as_json(fork: Fork, tail: Tail, done: Rewound | None) -> dict[str, Any]:
    return {
        "offset": fork.offset,
        "comparedFrom": fork.proved_from,
        "ourEnd": fork.our_end,
        "masterIsShorter": fork.is_theirs_shorter,
        "cutBytes": tail.end - tail.start,
        "confirmedBytes": tail.confirmed_bytes,
        "messages": dict(tail.messages),
        "applied": done is not None,
        "epoch": None if done is None else done.epoch,
        "keptIn": None if done is None or done.kept_in is None else str(done.kept_in),
    }
