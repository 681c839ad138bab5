"""``rmqha top``: a live view of a pair or a cluster."""

import time

import click

from rmqha.cli.access import BROKERS_TLS, namesrv_option, with_tls
from rmqha.cli.live import screen, watch
from rmqha.cli.running import the_reactor
from rmqha.cli.shared import DEFAULT_SECONDS, INTERVAL, JSON, json_line
from rmqha.cli.tables import Column, table_text, terminal_width
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable
from rmqha.kit.times import iso_time
from rmqha.net.endpoints import split_addresses
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.ops.top import Row, Top
from rmqha.ops.ways import Ways
from rmqha.store.offline.commands import Trouble

UNKNOWN = "-"
MIB = 1 << 20
COLUMNS = (
    Column("broker", is_name=True),
    Column("address", is_name=True),
    Column("role", rank=6),
    Column("state"),
    Column("end", rank=5),
    Column("lag bytes", rank=8),
    Column("lag s", rank=7),
    Column("MiB/s", rank=4),
    Column("puts/s", rank=3),
    Column("gets/s", rank=1),
    Column("disk", rank=2),
    Column("slaves", rank=0),
)


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST:PORT]...")
@namesrv_option("Show all brokers that a name server lists.", default="")
@BROKERS_TLS
@with_tls
@click.option("--interval", type=INTERVAL, default=DEFAULT_SECONDS, show_default=True, metavar="SECONDS")
@click.option(
    "-n", "count", type=click.IntRange(min=1), default=None, metavar="COUNT", help="End after this many looks."
)
@click.option("--once", is_flag=True, help="The same as -n 1.")
@JSON
def top(
    hosts: tuple[str, ...],
    namesrv: str,
    over_tls: bool,
    tls: ClientTLS,
    interval: float,
    count: int | None,
    once: bool,
    as_json: bool,
) -> None:
    """Show brokers, ours or Java's, with their states, lag and rates, again and again until Ctrl-C.

    Give remoting ports, or --namesrv, or both. MiB/s is how fast a log has grown since the look before. Without a
    terminal the tables follow one another; --json prints a line for each broker and look.

    With --once or -n, exit code 7 if a broker does not answer in the last look.
    """
    name_servers = split_addresses(namesrv)
    if not hosts and not name_servers:
        raise Trouble(ExitCode.USAGE, "give brokers (HOST:PORT), or --namesrv")
    reactor = the_reactor()
    ways = Ways(reactor, tls)
    for address in (*hosts, *name_servers):
        try:
            ways.to(address)
        except ValueError as error:
            raise Trouble(ExitCode.USAGE, str(error)) from error
    looking = Top(ways, reactor, hosts, name_servers, over_tls)
    silent: list[str] = []

    with screen(as_json) as show:

        def shown(rows: list[Row]) -> None:
            silent[:] = [f"{row.address}: {row.problem}" for row in rows if row.log_end is None]
            if not rows and looking.problem is not None:
                silent.append(looking.problem)
            now = iso_time(time.time_ns() // 1_000_000)
            if not as_json:
                show(page(rows, looking.problem, now, terminal_width()))
            elif rows:
                show("\n".join(json_line({"time": now, **row.as_json()}) for row in rows))

        watch(reactor, looking.look, shown, interval, 1 if once else count)
    if silent:
        raise Trouble(ExitCode.CANNOT_CONNECT, "; ".join(silent))


def page(rows: list[Row], problem: str | None, now: str, width: int) -> str:
    """The text of one look: the time, the table, and what is wrong."""
    lines = [now, table_text(COLUMNS, [_cells(row) for row in rows], width) if rows else "no brokers"]
    lines += [printable(f"{row.address}: {row.problem}") for row in rows if row.problem is not None]
    if problem is not None:
        lines.append(printable(problem))
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    return [
        row.broker_name or UNKNOWN,
        row.address,
        row.role,
        row.state,
        _number(row.log_end),
        _number(row.lag_bytes),
        _number(row.lag_seconds, 1),
        _number(None if row.bytes_per_second is None else row.bytes_per_second / MIB, 1),
        _number(row.puts_per_second, 0),
        _number(row.gets_per_second, 0),
        UNKNOWN if row.disk_used is None else f"{row.disk_used:.0%}",
        _number(row.slaves),
    ]


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
