"""``rmqha status``: shows the state of a store or of a broker."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.access import ACL, TLS, client_tls, signer_of
from rmqha.cli.shared import DEFAULT_SECONDS, INTERVAL, JSON, json_line, print_json, with_options
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable
from rmqha.kit.times import iso_time
from rmqha.ops.status import MaxLag, NodeStatus, judge, waits_in_words
from rmqha.store.offline.commands import Trouble, say

if TYPE_CHECKING:
    from rmqha.net.tls.endpoints import ClientTLS

SHOWN_LATER = ("peers", "tables", "warnings", "readLimit", "reads", "failover")
"""The values that get lines of their own."""


@click.command()
@click.argument("target", metavar="STORE|HOST:PORT")
@with_options((*TLS, ACL))
@click.option(
    "--max-lag",
    default=None,
    metavar="BYTES|SECONDS",
    help="A slave that is further behind ends with 6: 64m (k, m, g: KiB, MiB, GiB), or 30s. An unknown lag is further.",
)
@click.option(
    "--watch",
    "seconds",
    type=INTERVAL,
    is_flag=False,
    flag_value=str(DEFAULT_SECONDS),
    default=None,
    metavar="[SECONDS]",
    help="Show it again and again until Ctrl-C, every 2 seconds or as given. Put it after STORE|HOST:PORT.",
)
@click.option("-n", "count", type=click.IntRange(min=1), default=None, metavar="COUNT", help="With --watch: end then.")
@JSON
def status(
    target: str, max_lag: str | None, seconds: float | None, count: int | None, as_json: bool, **access: Any
) -> None:
    """Show role, state, offsets and lag: of a store here, or of a broker, ours or Java's, by its remoting port.

    tls:HOST:PORT asks over TLS. Made for checks, too: it ends with 0 only if the node runs and, if it is a slave,
    follows its master. 3 GAP, 4 AHEAD, 5 DIVERGED, 6 STALLED, more than --max-lag behind, or consumers wait for a slave
    (readUpTo=confirmed), 7 no contact to the master, or no node runs on the store (STOPPED; KILLED if it did not stop
    by itself), 8 topics, groups and offsets are not the master's although the log is. A store that no node of ours has
    run on is only shown. Ctrl-C ends --watch with 0.
    """
    tls = _tls(Path(target).is_dir(), **access)
    limit = _parse_lag(max_lag)
    if count is not None and seconds is None:
        raise Trouble(ExitCode.USAGE, "-n needs --watch")
    if seconds is not None:
        _watch(target, tls, limit, seconds, count, as_json)
        return
    found = _of_store(target) if tls is None else _of(target, tls)
    if as_json:
        print_json(found.as_json())
    else:
        for line in _lines(found):
            say(line)
    _judge(target, found, limit)


def _tls(
    of_store: bool, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, acl_file: Path | None
) -> "ClientTLS | None":
    """How to show a broker who we are; None for a store. What is given is checked in any case. Raises Trouble."""
    if of_store and (tls_ca, tls_cert, tls_key, acl_file) == (None, None, None, None):
        signer_of(None)
        return None
    tls = client_tls(tls_cert, tls_key, tls_ca, acl_file)
    return None if of_store else tls


def _of(address: str, tls: "ClientTLS") -> NodeStatus:
    from rmqha.cli.statusofbroker import ask_status  # who looks at a store is answered sooner

    return ask_status(address, tls)


def _of_store(target: str) -> NodeStatus:
    from rmqha.cli.stores import open_store  # who asks a broker is answered sooner
    from rmqha.ops.storestatus import status_of_store

    with open_store(Path(target)) as store:
        return status_of_store(store)


def _judge(target: str, found: NodeStatus, limit: MaxLag | None) -> None:
    """Raises Trouble unless all is fine."""
    code, reason = judge(found, limit, time.time())
    if code is not ExitCode.FINE:
        raise Trouble(code, f"{target}: {reason}")


def _watch(
    target: str, tls: "ClientTLS | None", limit: MaxLag | None, seconds: float, count: int | None, as_json: bool
) -> None:
    """Show the status again and again. What goes wrong meanwhile is shown, and may pass."""
    from twisted.internet.defer import CancelledError

    from rmqha.cli.live import screen, watch
    from rmqha.cli.running import the_reactor
    from rmqha.cli.statusofbroker import endpoint_of
    from rmqha.kit.connecting import reason_of
    from rmqha.ops.brokerstatus import status_of_broker

    reactor = the_reactor()
    endpoint = None if tls is None else endpoint_of(reactor, target, tls)
    last: list[NodeStatus | Trouble] = []

    async def look() -> NodeStatus | Trouble:
        try:
            return _of_store(target) if endpoint is None else await status_of_broker(endpoint, reactor)
        except CancelledError:  # Ctrl-C
            raise
        except Exception as error:  # of any kind: the next look may succeed
            return Trouble(ExitCode.CANNOT_CONNECT, f"{target} does not answer: {reason_of(error)}")

    with screen(as_json) as show:

        def shown(found: NodeStatus | Trouble) -> None:
            last[:] = [found]
            now = iso_time(time.time_ns() // 1_000_000)
            if as_json:
                facts = found.as_json() if isinstance(found, NodeStatus) else {"problem": str(found)}
                show(json_line({"time": now, **facts}))
            else:
                lines = _lines(found) if isinstance(found, NodeStatus) else [str(found)]
                show("\n".join(printable(line) for line in [now, *lines, ""]))

        watch(reactor, look, shown, seconds, count)
    if count is not None:
        (found,) = last
        if isinstance(found, Trouble):
            raise found
        _judge(target, found, limit)


def _parse_lag(text: str | None) -> MaxLag | None:
    try:
        return None if text is None else MaxLag.parse(text)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"--max-lag: {error}") from error


def _lines(found: NodeStatus) -> list[str]:
    """The status for people."""
    node = found.node
    known = {name: value for name, value in found.as_json().items() if value is not None}
    lines = [f"{name:<11}  {value}" for name, value in known.items() if name not in SHOWN_LATER]
    if node.tables is not None:
        lines.append(f"{'tables':<11}  {_tables_line(node.tables)}")
    if node.read_limit is not None:
        waits = "" if node.reads is None else f"; {waits_in_words(node.reads)}"
        lines.append(f"{'reads':<11}  end at {node.read_limit}{waits}")
    if node.failover is not None:
        lines.append(f"{'failover':<11}  {_failover_line(node.failover)}")
    lines += [f"{'warning':<11}  {warning}" for warning in node.warnings]
    for peer in node.peers:
        facts = "  ".join(f"{name} {value}" for name, value in peer.items() if value is not None)
        lines.append(f"{'peer':<11}  {facts}")
    return lines


def _failover_line(failover: Mapping[str, Any]) -> str:
    """What a member says of its failover cluster, in words."""
    leader, sync = failover.get("leader"), ", ".join(map(str, failover.get("sync") or ())) or "nobody"
    who = "nobody leads" if leader is None else f"{leader} leads"
    words = f"{who}, epoch {failover.get('epoch')}; {sync} hold every message; {failover.get('member')} is "
    words += f"{failover.get('state')}: {failover.get('reason')}"
    problem = failover.get("problem")
    return words if problem is None else f"{words}; {problem}"


def _tables_line(tables: Mapping[str, Any]) -> str:
    """The state of topics, groups and offsets, in words."""
    in_sync = tables.get("inSync")
    if in_sync is None:
        return "not asked for yet"
    words = "the master's" if in_sync else f"not the master's: {tables.get('reason')}"
    return f"{words}, since {tables.get('since')}"
