"""``rmqha cluster``: shows the clusters with automatic failover, and gives orders to their nodes.

An order is a key in the coordinator: no node listens for orders, and every order is done by the nodes themselves.
"""

import getpass
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from rmqha.cli.coordinator import Session, Way, unreadable, with_cluster, with_coordinator
from rmqha.cli.shared import JSON, json_line, print_json
from rmqha.cli.tables import Column, print_table
from rmqha.coordination.witness.journal import Journal, JournalError, JournalInUse
from rmqha.failover.configuring import ConfigError, ConfigRace, StoredConfig, parse_setting
from rmqha.failover.eligible import away_members, may_lead
from rmqha.failover.forgetting import forget_member
from rmqha.failover.keys import Answer, ClusterConfig, Mode, Order, Request
from rmqha.failover.orders import OrderError, OrderPending, Orders, OrderUnanswered, situation
from rmqha.failover.overview import Health, Overview, Unreadable, bytes_at_risk, history_as_json, overview_of
from rmqha.failover.view import ClusterView
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable
from rmqha.store.offline.commands import HelpfulGroup, Trouble, say

LIST_COLUMNS = (
    Column("cluster", is_name=True),
    Column("broker", is_name=True),
    Column("leader", is_name=True),
    Column("epoch", rank=2),
    Column("members", is_name=True, rank=3),
    Column("in sync", is_name=True, rank=1),
    Column("health", is_name=True),
    Column("what to do", is_name=True, rank=4),
)
MEMBER_COLUMNS = (
    Column("member", is_name=True),
    Column("role", is_name=True),
    Column("epoch", rank=2),
    Column("end", rank=3),
    Column("lag"),
    Column("in sync", is_name=True),
    Column("tags", is_name=True, rank=1),
    Column("why it cannot lead", is_name=True),
)
HISTORY_COLUMNS = (
    Column("epoch"),
    Column("node", is_name=True),
    Column("start", rank=1),
    Column("time", is_name=True),
    Column("cause", is_name=True),
)
FORCE_IS_LEFT = ". If no member that has all messages comes back: rmqha cluster failover --to NAME --force"
PAUSED = (
    "no node takes over by itself now: rmqha cluster resume. If the coordinator and another member are both away, "
    "the leader stops taking messages, and no node serves"
)
SPARE_SECONDS = 45.0
"""How long to wait for an answer, in addition to the lease of a leader that may be dead."""
EXIT_CODES = {
    Health.NO_LEADER: ExitCode.CANNOT_CONNECT,
    Health.SILENT: ExitCode.CANNOT_CONNECT,
    Health.TOO_SOON: ExitCode.STALLED,
    Health.DOUBTED: ExitCode.STALLED,
    Health.ALONE: ExitCode.STALLED,
}

TIMEOUT = click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=1, max=86_400),
    default=None,
    metavar="SECONDS",
    help="How long to wait for the answer. Then the order is withdrawn. Default: the cluster's ttl + 45.",
)
TO = click.option("--to", default="", metavar="NAME", help="The member that should lead. Default: the best one.")
YES = click.option("--yes", is_flag=True, help="Ask no question.")


@click.group(cls=HelpfulGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cluster() -> None:
    """Show the clusters with automatic failover, and give orders to their nodes.

    All commands ask the coordinator that the nodes were started with. An order is a key there: the nodes do it, and
    answer. Ctrl-C withdraws an order that no node has answered yet.

    At night: rmqha cluster show tells who leads, who could lead next, and why the others could not.
    """


# What there is


@cluster.command("list")
@with_coordinator
@JSON
def list_(way: Way, as_json: bool) -> None:
    """Show all clusters of the coordinator: who leads, which members run, and what to do."""

    async def ask(session: Session) -> list[dict[str, Any]]:
        return [(await session.overview(*each)).summary() for each in await session.clusters()]

    found = way.run(ask)
    if as_json:
        print_json({"clusters": found})
        return
    if not found:
        say(f"no cluster: start a node with --failover={way.address}")
        return
    print_table(LIST_COLUMNS, [_list_row(each) for each in found])


def _list_row(found: dict[str, Any]) -> list[str]:
    return [
        found["cluster"],
        found["broker"],
        found["leader"] or "-",
        "-" if found["epoch"] is None else str(found["epoch"]),
        ", ".join(found["members"]) or "-",
        ", ".join(found["sync"]) or "-",
        found["health"],
        found["advice"],
    ]


@cluster.command()
@with_cluster
@JSON
def show(way: Way, as_json: bool) -> None:
    """Show one cluster: its leader, its members, and why a member could not lead.

    The lag is how far a member's log is behind the leader's, in bytes, as both reported it last. A member that is in
    sync holds every message that was answered with SEND_OK.

    Made for checks, too: it ends with 0 if a node leads and another one could lead next, or if failover is paused.
    6: no other member could lead now, or a member knows more than the coordinator's keys say. 7: no node leads, or the
    leader has not renewed its lease in time.
    """

    async def ask(session: Session) -> tuple[Overview, str]:
        overview = _readable(await session.overview(*(await session.chosen())))
        number = session.coordinator.cluster_id
        return overview, "unknown" if number is None else f"{number:x}"

    found, coordinator_id = way.run(ask)
    if as_json:
        print_json({**found.as_json(), "coordinator": str(way.address), "coordinatorClusterId": coordinator_id})
    else:
        for name, value in _lines(found, f"{way.address}, its cluster id is {coordinator_id}"):
            say(f"{name:<11}  {value}")
        rows = [_member_row(each) for each in found.as_json()["members"]]
        if rows:
            print_table(MEMBER_COLUMNS, rows)
    if found.health in EXIT_CODES:
        raise Trouble(EXIT_CODES[found.health], f"{found.name}: {found.advice}")


def _readable(found: Overview | Unreadable) -> Overview:
    if isinstance(found, Unreadable):
        raise Trouble(ExitCode.CORRUPT, f"{found.name}: {unreadable(found.problem)}")
    return found


def _lines(found: Overview, coordinator: str) -> Iterator[tuple[str, object]]:
    facts = found.as_json()
    yield "cluster", found.name
    yield "coordinator", coordinator
    since = f", since {facts['since']}: {facts['cause']}" if facts["since"] else ""
    heard = "" if found.silent_seconds is None else f"; it renewed its lease about {found.silent_seconds} s ago"
    yield "leader", f"{found.leader or 'no node leads'}; epoch {found.view.epoch}{since}{heard}"
    yield "health", f"{found.health.name}: {found.advice}"
    if facts["confirmed"] is not None:
        yield "log", f"confirmed up to {facts['confirmed']}, ends at {facts['end']}"
    yield "in sync", f"{', '.join(facts['sync']) or 'no member'}; mode {facts['mode']}"
    if facts["paused"]:
        yield "paused", "no node takes over by itself: rmqha cluster resume"
    if found.view.request is not None:
        yield "order", _order_in_words(found.view.request)
    for name in facts["away"]:
        need = "While it is away, the leader needs the coordinator"
        yield "away", f"{name}: start it. {need}. If it is gone for good: rmqha cluster forget {name}"
    for name in facts["unreadable"]:
        yield "warning", f"the key of member {name} cannot be read"


def _order_in_words(order: Request) -> str:
    words = [order.order, *([f"to {order.to}"] if order.to else []), *(["by force"] if order.force else [])]
    return f"{' '.join(words)}, given by {order.by} at {order.time}: not answered yet"


def _member_row(member: dict[str, Any]) -> list[str]:
    tags = [*(["nofailover"] if member["noFailover"] else [])]
    if member["priority"] != 100:
        tags.append(f"priority={member['priority']}")
    return [
        member["name"],
        member["role"],
        str(member["epoch"]),
        str(member["end"]),
        "-" if member["lagBytes"] is None else str(member["lagBytes"]),
        "yes" if member["inSync"] else "no",
        ", ".join(tags) or "-",
        member["whyNot"] or "-",
    ]


@cluster.command()
@with_cluster
@JSON
def history(way: Way, as_json: bool) -> None:
    """Show each change of the leader: when, who, from which offset of the log on, and why."""

    async def ask(session: Session) -> Overview:
        return _readable(overview_of(*(await session.chosen()), datetime.now(UTC)))

    found = way.run(ask)
    entries = history_as_json(found.view)
    if as_json:
        print_json({"cluster": found.name.cluster, "broker": found.name.broker, "history": entries})
    elif not entries:
        say(f"{found.name} never had a leader")
    else:
        print_table(HISTORY_COLUMNS, [[str(value) for value in entry.values()] for entry in entries])


# Orders


@cluster.command()
@with_cluster
@TO
@TIMEOUT
@JSON
def switchover(way: Way, to: str, seconds: float | None, as_json: bool) -> None:
    """Let another member lead, without losing a message. Both nodes run: for maintenance.

    The leader takes no messages for up to 2 seconds, until the next leader has all. Producers send them again. If no
    member has all in time, the leader goes on.
    """

    def check(view: ClusterView) -> None:
        _need_members(view)
        if view.leader is None:
            raise Trouble(ExitCode.USAGE, "no node leads, so none can hand over: rmqha cluster failover")
        _check_successor(view, to)

    _give(way, Request(_new_id(), Order.SWITCHOVER.value, to), seconds, as_json, check)


@cluster.command()
@with_cluster
@TO
@click.option(
    "--force",
    is_flag=True,
    help="Although the leader runs, or the member may not have all messages. Needs --to. Messages can be lost.",
)
@YES
@TIMEOUT
@JSON
def failover(way: Way, to: str, force: bool, yes: bool, seconds: float | None, as_json: bool) -> None:
    """Let a member lead now because the leader is dead: also while failover is paused.

    Without --force a member leads only if it holds every message that was answered with SEND_OK. In mode async it may
    be behind by maximum_lag. With --force it leads with what it has. What is cut from the old leader is kept there: see
    rmqha replay.
    """
    if force and not to:
        raise Trouble(ExitCode.USAGE, "--force needs --to NAME: rmqha cluster show lists the members and their lag")

    order = Request(_new_id(), Order.FAILOVER.value, to, force)

    def check(view: ClusterView) -> None:
        _need_members(view)
        _check_successor(view, to)
        if to and not force:
            _check_may_lead(view, order)
        risk = _risk(view, to, force)
        if risk is not None and not yes:
            _confirm(risk)

    _give(way, order, seconds, as_json, check)


@cluster.command()
@with_cluster
@click.argument("name")
@YES
@TIMEOUT
@JSON
def reinit(way: Way, name: str, yes: bool, seconds: float | None, as_json: bool) -> None:
    """Let the member NAME copy the leader's log again from the start. Its old log is set aside, and kept.

    Its disk needs room for both. Until the copy is complete, the member cannot lead.
    """

    def check(view: ClusterView) -> None:
        _need_members(view)
        if view.leader is None:
            raise Trouble(ExitCode.USAGE, "no node leads: there is nothing to copy. See rmqha cluster show")
        if name == view.leader.node:
            raise Trouble(ExitCode.USAGE, f"{name} leads: choose another member, or first rmqha cluster switchover")
        _check_successor(view, name)
        if not yes:
            _confirm(
                f"{name} sets its log of {view.members[name].end} bytes aside, and cannot lead until it has copied the "
                "leader's"
            )

    _give(way, Request(_new_id(), Order.REINIT.value, name), seconds, as_json, check)


@cluster.command()
@with_cluster
@click.argument("name")
@YES
@JSON
def forget(way: Way, name: str, yes: bool, as_json: bool) -> None:
    """Forget the member NAME, which does not run and is gone for good.

    After the coordinator has lost its keys, or went back to older ones, the nodes wait for all members that they have
    ever heard of. A member that is forgotten is not waited for. If it comes back, it counts again.
    """

    async def work(session: Session) -> None:
        chosen, keys = await session.chosen()
        view = _readable(overview_of(chosen, keys, datetime.now(UTC))).view
        if name in view.members:
            raise Trouble(ExitCode.USAGE, f"{name} runs: stop it first")
        away = away_members(view)
        if name not in away:
            raise Trouble(
                ExitCode.USAGE, f"{name} is not a member that is away. These are: {', '.join(away) or 'none'}"
            )
        if not yes:
            _confirm(f"messages that only {name} has are lost, if it led last. {name} is not waited for any more")
        await session.reconnect()
        if not await forget_member(session.coordinator, view, name):
            raise Trouble(ExitCode.IN_USE, "the keys have just changed, and nothing was written. Type it again")

    way.run(work)
    if as_json:
        print_json({"forgotten": name})
    else:
        say(f"{name} is forgotten")


@cluster.command("renew-witness")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@JSON
def renew_witness(folder: Path, as_json: bool) -> None:
    """Give the witness whose journal is in FOLDER another cluster id. Its name server must be stopped.

    Type it before the name server starts on a disk that was put back as a whole: the witness cannot notice that. Its
    keys stay. The nodes do not trust them until the leader has written its own again.
    """
    try:
        journal = Journal(folder)
    except JournalInUse as error:
        raise Trouble(ExitCode.IN_USE, f"{error}: stop the name server first") from error
    except JournalError as error:
        raise Trouble(ExitCode.CORRUPT, str(error)) from error
    except OSError as error:
        raise Trouble(ExitCode.IO_ERROR, f"{folder}: {error.strerror}") from error
    try:
        if journal.is_new:
            say(f"{folder} had no journal: the witness begins as a new cluster", err=True)
        elif journal.renewed is None:
            journal.renew("an operator has said so")
        number = f"{journal.cluster_id:x}"
    except (JournalError, OSError) as error:
        raise Trouble(ExitCode.IO_ERROR, str(error)) from error
    finally:
        journal.close()
    if as_json:
        print_json({"coordinatorClusterId": number})
    else:
        say(f"the cluster id of the witness is {number} now")


def _new_id() -> str:
    return uuid4().hex


def _need_members(view: ClusterView) -> None:
    if not view.members:
        raise Trouble(
            ExitCode.CANNOT_CONNECT, "no node of this cluster runs, so none can do it. Start the nodes, then try again"
        )


def _check_successor(view: ClusterView, name: str) -> None:
    if not name:
        return
    if name not in view.members:
        raise Trouble(ExitCode.USAGE, f"{name} is not a member that runs. These run: {', '.join(sorted(view.members))}")


def _check_may_lead(view: ClusterView, order: Request) -> None:
    """Refuse at once what the member would refuse for as long as no node leads. Raises Trouble."""
    member = view.members[order.to]
    is_outside = view.sync is not None and member.name not in view.sync.holders
    if view.leader is not None or not (member.no_failover or is_outside):
        return
    verdict = may_lead(replace(view, request=order), member, False, datetime.now(UTC))
    if verdict.cause is None:
        raise Trouble(
            ExitCode.IO_ERROR,
            f"{member.name} cannot lead: {verdict.why_not}. Nothing was ordered. Start a member that can, or go on "
            f"without what {member.name} does not have: rmqha cluster failover --to {member.name} --force",
        )


def _risk(view: ClusterView, to: str, force: bool) -> str | None:
    """What a failover may lose, in words; None if it loses nothing."""
    if not force and view.config.mode == Mode.SYNC.value:
        return None
    if force and view.doubters:
        return _risk_in_doubt(view, to)
    leader = None if view.leader is None else view.leader.node
    names = [to] if to else [name for name in view.members if name != leader]
    risks = {name: bytes_at_risk(view, name) for name in names}
    if not risks or any(risk == 0 for risk in risks.values()):
        return None
    known = [risk for risk in risks.values() if risk is not None]
    who = to or "the best member"
    if not known:
        return f"it is not known how much {who} does not have: messages that were answered with SEND_OK may be lost"
    return f"about {min(known)} bytes of messages that were answered with SEND_OK may be lost: {who} does not have them"


def _risk_in_doubt(view: ClusterView, to: str) -> str:
    """The same if nobody can tell, because the coordinator went back to older keys."""
    ends = [f"{name} at {member.end}" for name, member in sorted(view.members.items())]
    away = away_members(view)
    missing = f" {', '.join(away)} is not there: messages that only it has are lost." if away else ""
    return (
        f"the coordinator's keys are older than what {', '.join(view.doubters)} knows.{missing} Messages that {to} "
        f"does not have are lost, also if they were answered with SEND_OK. The logs end: {', '.join(ends)}"
    )


def is_asked() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin.isatty()


def _confirm(question: str) -> None:
    """Ask on the terminal. Raises Trouble without a terminal, click.Abort after another answer than yes."""
    if not is_asked():
        raise Trouble(ExitCode.USAGE, f"{question}. If that is what you want, add --yes")
    with _default_interrupts():
        click.confirm(printable(f"{question}. Go on?"), abort=True, err=True)


@contextmanager
def _default_interrupts() -> Iterator[None]:
    """Ctrl-C ends a question. The reactor's own handler only notes it, and the question would go on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _give(way: Way, order: Request, seconds: float | None, as_json: bool, check: Callable[[ClusterView], None]) -> None:
    """Give an order, and tell the answer. ``check`` raises Trouble if it should not be given.

    An order that was given again, because its answer did not arrive in time, may have been carried out.
    """
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    given = Request(
        order.id, order.order, order.to, order.force, user, datetime.now(UTC).isoformat(timespec="milliseconds")
    )

    async def work(session: Session) -> Answer:
        name, keys = await session.chosen()
        view = _readable(overview_of(name, keys, datetime.now(UTC))).view
        leads = order.order != Order.REINIT.value and view.leader is not None and view.leader.node == order.to
        if leads and not (order.force and view.is_behind):
            return Answer(order.id, True, f"{situation(view)}. Nothing is to do")
        check(view)
        await session.reconnect()
        orders = Orders(session.coordinator, name.prefix, session.clock, _progress)
        patience = view.config.ttl + SPARE_SECONDS if seconds is None else seconds
        try:
            return await orders.give(given, patience)
        except OrderPending as error:
            raise Trouble(ExitCode.IN_USE, str(error)) from error
        except OrderUnanswered as error:
            by_force = "" if order.force or order.order != Order.FAILOVER.value else FORCE_IS_LEFT
            raise Trouble(
                ExitCode.STALLED, f"{error}. rmqha cluster show tells what each member waits for{by_force}"
            ) from error
        except OrderError as error:
            raise Trouble(ExitCode.IO_ERROR, f"{error}. rmqha cluster show tells who leads") from error

    answer = way.run(work)
    if as_json:
        click.echo(json_line({"done": answer.is_done, "text": answer.text, "id": answer.id}))
    elif answer.is_done:
        say(answer.text)
    if not answer.is_done:
        raise Trouble(ExitCode.IO_ERROR, f"the order is refused: {answer.text}")


def _progress(line: str) -> None:
    say(line, err=True)


# Settings


@cluster.command()
@with_cluster
@JSON
def pause(way: Way, as_json: bool) -> None:
    """Let no node take over by itself, for maintenance. Orders of operators are still done.

    Do not stop the coordinator meanwhile: if it and another member are both away, the leader stops taking messages.
    """
    _tell_config(_change(way, ["paused=true"]), as_json, PAUSED)


@cluster.command()
@with_cluster
@JSON
def resume(way: Way, as_json: bool) -> None:
    """Let nodes take over by themselves again."""
    _tell_config(_change(way, ["paused=false"]), as_json, "nodes take over by themselves again")


@cluster.command()
@with_cluster
@click.argument("settings", nargs=-1, metavar="[set KEY=VALUE…]")
@click.option("--reset", is_flag=True, help="Start from the defaults: also if the settings cannot be read.")
@JSON
def config(way: Way, settings: tuple[str, ...], reset: bool, as_json: bool) -> None:
    """Show the cluster's settings, or change some: set ttl=20 mode=async.

    ttl: seconds until a leader that does not renew its lease is replaced. renew: seconds between renewals. timeout:
    seconds of a call of the coordinator. margin: seconds by which a leader gives up before its lease ends. mode: sync
    or async. maximum_lag: in mode async, bytes by which the next leader may be behind. member_timeout: seconds until
    puts wait no more for a member that is behind. failover_pause: seconds between two automatic failovers. paused: true
    or false.

    All nodes use new settings at once, but a new ttl only with their next lease.
    """
    words = settings[1:] if settings and settings[0] == "set" else settings
    if settings and not words:
        raise Trouble(ExitCode.USAGE, "set what? For example: rmqha cluster config set ttl=20")
    if words or reset:
        _tell_config(_change(way, words, reset), as_json, None)
        return

    async def ask(session: Session) -> ClusterConfig:
        return (await _stored(session)).config

    _tell_config(way.run(ask), as_json, None)


async def _stored(session: Session) -> StoredConfig:
    name, _ = await session.chosen()
    return await StoredConfig.read(session.coordinator, name.prefix)


def _change(way: Way, words: Iterable[str], reset: bool = False) -> ClusterConfig:
    try:
        changes = dict(map(parse_setting, words))
    except ConfigError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error

    async def work(session: Session) -> ClusterConfig:
        return await (await _stored(session)).change(session.coordinator, changes, reset)

    try:
        return way.run(work)
    except ConfigError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    except ConfigRace as error:
        raise Trouble(ExitCode.IN_USE, f"{error}. Look at them with rmqha cluster config, and type it again") from error


def _tell_config(found: ClusterConfig, as_json: bool, words: str | None) -> None:
    values: dict[str, Any] = asdict(found)
    if as_json:
        print_json(values)
        return
    if words is not None:
        say(words)
        return
    for name, value in values.items():
        say(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
