"""``rmqha status``: shows the state of a store or of a broker."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rmqha.cli.shared import (
    JSON,
    Interrupted,
    Trouble,
    open_store,
    print_json,
    run_reactor,
    say,
    the_reactor,
    with_tls,
)
from rmqha.connecting import reason_of
from rmqha.endpoints import make_endpoint
from rmqha.exitcodes import ExitCode
from rmqha.ops.status import MaxLag, Status, judge, status_of_broker, status_of_store, waits_in_words
from rmqha.tls.endpoints import ClientTLS


@click.command()
@click.argument("target", metavar="STORE|HOST:PORT")
@with_tls
@click.option(
    "--max-lag",
    default=None,
    metavar="BYTES|SECONDS",
    help="A slave that is further behind ends with 6: 64m (k, m, g: KiB, MiB, GiB), or 30s. An unknown lag is further.",
)
@JSON
def status(target: str, tls: ClientTLS, max_lag: str | None, as_json: bool) -> None:
    """Show role, state, offsets and lag: of a store here, or of a broker, ours or Java's, by its remoting port.

    tls:HOST:PORT asks over TLS. Made for checks, too: it ends with 0 only if the node runs and, if it is a slave,
    follows its master. 3 GAP, 4 AHEAD, 5 DIVERGED, 6 STALLED, more than --max-lag behind, or consumers wait for a slave
    (readUpTo=confirmed), 7 no contact to the master, or no node runs on the store (STOPPED; KILLED if it did not stop
    by itself), 8 topics, groups and offsets are not the master's although the log is. A store that no node of ours has
    run on is only shown.
    """
    limit = _parse_lag(max_lag)
    if Path(target).is_dir():
        with open_store(Path(target)) as store:
            found = status_of_store(store)
    else:
        found = _ask(target, tls)
    if as_json:
        print_json(found.as_json())
    else:
        _print(found)
    code, reason = judge(found, limit, time.time())
    if code is not ExitCode.FINE:
        raise Trouble(code, f"{target}: {reason}")


def _parse_lag(text: str | None) -> MaxLag | None:
    try:
        return None if text is None else MaxLag.parse(text)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"--max-lag: {error}") from error


def _print(found: Status) -> None:
    for name, value in found.as_json().items():
        if name not in ("peers", "tables", "warnings", "readLimit", "reads") and value is not None:
            say(f"{name:<11}  {value}")
    if found.tables is not None:
        say(f"{'tables':<11}  {_tables_line(found.tables)}")
    if found.read_limit is not None:
        waits = "" if found.reads is None else f"; {waits_in_words(found.reads)}"
        say(f"{'reads':<11}  end at {found.read_limit}{waits}")
    for warning in found.warnings:
        say(f"{'warning':<11}  {warning}")
    for peer in found.peers:
        facts = "  ".join(f"{name} {value}" for name, value in peer.items() if value is not None)
        say(f"{'peer':<11}  {facts}")


def _tables_line(tables: Mapping[str, Any]) -> str:
    """The state of topics, groups and offsets, in words."""
    in_sync = tables.get("inSync")
    if in_sync is None:
        return "not asked for yet"
    words = "the master's" if in_sync else f"not the master's: {tables.get('reason')}"
    return f"{words}, since {tables.get('since')}"


def _ask(address: str, tls: ClientTLS) -> Status:
    reactor = the_reactor()
    try:
        endpoint = make_endpoint(reactor, address, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{address}: there is no such store, and {error}") from error
    try:
        return run_reactor(reactor, lambda: status_of_broker(endpoint, reactor))
    except Interrupted:
        raise
    except Exception as error:  # the user gets one line for any error
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not answer: {reason_of(error)}") from error
