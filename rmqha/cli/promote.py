"""``rmqha promote``: makes a slave a master, on the day the master is gone."""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IStreamClientEndpoint

from rmqha.cli.access import with_tls
from rmqha.cli.restore import DRY_RUN
from rmqha.cli.running import run_reactor, the_reactor
from rmqha.cli.shared import JSON, print_json
from rmqha.kit.connecting import reason_of
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.ops.control import NoNodeListens, OrderRefused, give_order
from rmqha.remoting.asking import ask_config, ask_runtime_info
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.epochs import note_name_servers
from rmqha.store.errors import StoreError
from rmqha.store.examining import LOCK_FILE
from rmqha.store.log.lockfile import is_locked
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.offline.promote import (
    NotPromotable,
    check_disk,
    check_popped,
    check_promotable,
    plan_promotion,
    promotion_as_json,
    unknown_deletions_in_words,
)
from rmqha.store.offline.promote import promote as promote_store
from rmqha.store.popinflight import popped_in_words
from rmqha.wire.brokerinfo import NODE_STATE_KEY

CONNECT_SECONDS = 3.0
MAX_ROWS_SHOWN = 20
ROLES = {"sync-master": BrokerRole.SYNC_MASTER, "async-master": BrokerRole.ASYNC_MASTER}


@click.command()
@click.argument("where", metavar="STORE|HOST:PORT")
@click.option(
    "--to",
    "role",
    type=click.Choice(list(ROLES)),
    default="async-master",
    show_default=True,
    help="The role. Until it has a slave, a sync-master answers SLAVE_NOT_AVAILABLE instead of SEND_OK.",
)
@click.option("--force", is_flag=True, help="Although the master may be alive, or the slave is in GAP or DIVERGED.")
@click.option(
    "--abandon-popped",
    is_flag=True,
    help="Although POP consumers of RocketMQ 5.x hold messages that no master of ours gives to their groups again.",
)
@click.option(
    "--namesrv",
    "name_servers",
    metavar="HOST:PORT;…",
    default="",
    help="Name servers that the new master registers with, also after later starts without --namesrv.",
)
@DRY_RUN
@with_tls
@SETTINGS
@JSON
def promote(
    where: str,
    role: str,
    force: bool,
    abandon_popped: bool,
    name_servers: str,
    dry_run: bool,
    tls: ClientTLS,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a slave the master, because its master is gone. Its node may run, and goes on as the master then.

    Give the slave's store, or the remoting port of its running node. The command must run on the slave's machine, as
    the node's user or as root. --dry-run shows the end of the log, the next offset of each queue, what may be lost,
    and which consumers read something again.

    When the old master comes back it must not run as a master: see rmqha rewind.
    """
    store, names = Path(where), _addresses(name_servers, tls)
    order = {
        "order": "promote",
        "role": ROLES[role].value,
        "dryRun": dry_run,
        "force": force,
        "abandonPopped": abandon_popped,
        "nameServers": names,
    }
    if store.is_dir() and not is_locked(store / LOCK_FILE):
        settings = settings_of(store, conf, sets)
        found = _offline(settings, ROLES[role], dry_run, force, abandon_popped)
        if names and not dry_run:
            note_name_servers(store, names)
        found = {**found, "nameServers": names, "foundByNobody": not (names or settings.namesrv_addr)}
    else:
        endpoint = None if store.is_dir() else _endpoint_of(where, tls)
        store, found = _ordered(where, endpoint, order)
    if as_json:
        print_json({**found, "applied": not dry_run})
    else:
        _tell(store, found, dry_run)


def _addresses(text: str, tls: ClientTLS) -> list[str]:
    """Addresses that are separated by semicolons. Raises Trouble."""
    addresses = [address.strip() for address in text.split(";") if address.strip()]
    for address in addresses:
        try:
            make_endpoint(the_reactor(), address, tls)
        except ValueError as error:
            raise Trouble(ExitCode.USAGE, f"--namesrv: {error}") from error
    return addresses


def _endpoint_of(address: str, tls: ClientTLS) -> IStreamClientEndpoint:
    try:
        return make_endpoint(the_reactor(), address, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{address}: there is no such store, and {error}") from error


def _ordered(
    where: str, endpoint: IStreamClientEndpoint | None, order: Mapping[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """Let the running node do it: that of a store, or that at a remoting port. Raises Trouble."""
    reactor = the_reactor()

    async def give() -> tuple[Path, dict[str, Any]]:
        store = Path(where) if endpoint is None else await _store_of(where, endpoint, reactor)
        return store, await give_order(store, order, reactor)

    try:
        return run_reactor(reactor, give)
    except OrderRefused as refused:
        raise Trouble(refused.code, f"{where} is not promoted: {refused}") from refused
    except NoNodeListens as error:
        raise Trouble(ExitCode.IN_USE, f"{where} is not promoted: {error}") from error


async def _store_of(address: str, endpoint: IStreamClientEndpoint, reactor: Any) -> Path:
    """The store, on this machine, of the node at this remoting port. Raises Trouble."""
    try:
        config, info = await ask_config(endpoint, reactor), await ask_runtime_info(endpoint, reactor)
    except CancelledError:
        raise
    except Exception as error:  # after any error, it does not tell
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not answer: {reason_of(error)}") from error
    if NODE_STATE_KEY not in info:
        raise Trouble(ExitCode.USAGE, f"{address} is not a node of rmqha: it cannot be promoted")
    try:
        theirs = NodeState.from_json(info[NODE_STATE_KEY])
    except ValueError as error:
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not say what a node says: {error}") from error
    store = Path(config.get("storePathRootDir", ""))
    ours = None
    with suppress(StoreError, OSError, ValueError):  # a stranger's text need not be a path
        ours = NodeState.read(store)
    if ours is None or ours.store_id != theirs.store_id:
        raise Trouble(
            ExitCode.USAGE,
            f"the node at {address} runs on another machine: run 'rmqha promote {store}' there. A node takes orders "
            "only from its own machine",
        )
    return store


def _offline(settings: Settings, role: BrokerRole, dry_run: bool, force: bool, abandon_popped: bool) -> dict[str, Any]:
    store = settings.store_path_root_dir
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    state = NodeState.read(store)
    try:
        check_promotable(store, state, force)
        check_disk(store)
    except NotPromotable as error:
        raise Trouble(error.code, str(error)) from error
    if not force and state is not None and state.master is not None and _is_alive(state.master):
        raise Trouble(
            ExitCode.IN_USE,
            f"{store} is not promoted: its master at {state.master} takes connections. Stop that one first; --force "
            "makes two masters",
        )
    if dry_run:
        return promotion_as_json(plan_promotion(settings, role, state))
    if not abandon_popped:
        try:
            check_popped(settings, role, state)
        except NotPromotable as error:
            raise Trouble(error.code, f"{store} is not promoted: {error}") from error
    return promotion_as_json(promote_store(settings, role, int(time.time() * 1000)))


def _is_alive(address: str) -> bool:
    """Whether somebody accepts connections there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _tell(store: Path, found: dict[str, Any], dry_run: bool) -> None:
    verb = "would be" if dry_run else "is now"
    say(f"{store} {verb} the {found['role']}, epoch {found['epoch']}; its log is {found['min']} to {found['end']}")
    if found["cutBytes"]:
        say(f"{found['cutBytes']} bytes after that are part of a record that never came whole")
    if found["unprovedFrom"] is not None:
        say(
            f"the last {found['end'] - found['unprovedFrom']} bytes were not certainly on the disk at an unclean stop, "
            "and no master was compared with them since: messages there may have lost properties. They are kept"
        )
    say(_risk(found))
    say(f"{found['delayedMessages']} delayed messages are still to be delivered")
    say(f"{found['halfMessages']} half messages are checked again, as far as they have not ended")
    if found["timerMessages"]:
        topics = ", ".join(
            f"{count} of {topic}" for topic, count in list(found["timerTopics"].items())[:MAX_ROWS_SHOWN]
        )
        least = "" if found["timersAreAll"] else "at least "
        say(
            f"{least}{found['timerMessages']} timer messages of RocketMQ 5.x wait ({topics}). This node delivers them "
            "when they are due. A Java 5.x broker that opens this store does so too, and delivers a few again"
        )
    if found.get("poppedMessages"):
        say(f"{popped_in_words(found)}. {'The promotion wants --abandon-popped' if dry_run else 'They were abandoned'}")
    if found.get("unknownDeletions"):
        say(unknown_deletions_in_words(found["unknownDeletions"]))
    moved = found["movedOffsets"]
    say(f"{len(moved)} consumer offsets {'would be' if dry_run else 'were'} set back to the end of their queues")
    for row in moved[:MAX_ROWS_SHOWN]:
        say(
            f"  {row['topic_at_group']} queue {row['queue_id']}: {row['offset']} to {row['end']}; it has read "
            f"{row['offset'] - row['end']} messages that are not here"
        )
    if len(moved) > MAX_ROWS_SHOWN:
        say(f"  and {len(moved) - MAX_ROWS_SHOWN} more; --json shows all")
    count = sum(map(len, found["queues"].values()))
    say(f"{count} queues of {len(found['queues'])} topics; --json shows the next offset of each")
    if found.get("foundByNobody"):
        say(
            "no name server is known for this master, so producers and consumers do not find it: give --namesrv, or "
            "start its node with --namesrv"
        )
    say("nothing was changed" if dry_run else "the old master must not come back as a master: see rmqha rewind")


def _risk(found: dict[str, Any]) -> str:
    if found["lagBytes"] is None:
        return "how far the old master was ahead is not known: what it had beyond this log is not here"
    if not found["lagBytes"]:
        return f"this log had all that the old master was known to have, at {found['lastContact']}"
    return (
        f"the old master was {found['lagBytes']} bytes ahead at {found['lastContact']}: those messages are not here. "
        "rmqha rewind keeps them when the old master comes back"
    )
