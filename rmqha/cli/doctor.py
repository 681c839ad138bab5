"""``rmqha doctor``: checks brokers, stores and name servers, and says what to do."""

import shutil
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import click

from rmqha.cli.access import BROKERS_TLS, namesrv_option, with_tls
from rmqha.cli.running import run_reactor, the_reactor
from rmqha.cli.shared import JSON, print_json
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable
from rmqha.net.endpoints import split_addresses
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.ops.doctor.asking import AskedAbout, Asking
from rmqha.ops.doctor.checks import CHECKS, examine
from rmqha.ops.doctor.facts import Facts, Store
from rmqha.ops.doctor.findings import Check, CheckResult, Finding
from rmqha.ops.doctor.reading import read_store
from rmqha.ops.ways import Ways
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of

DEFAULT_PORT = 10911
COLORS = {CheckResult.PASS: "green", CheckResult.WARN: "yellow", CheckResult.FAIL: "red", CheckResult.SKIP: None}
MIN_WIDTH = 40
INDENT = " " * 6


@click.command()
@click.argument("targets", nargs=-1, metavar="[HOST[:PORT]|STORE]...")
@namesrv_option("Name servers. Without a HOST: all brokers they list.", default="")
@BROKERS_TLS
@with_tls
@SETTINGS
@click.option("--list", "lists", is_flag=True, help="List all checks, and end.")
@click.option("--all", "shows_all", is_flag=True, help="Also show what passes and what was skipped.")
@JSON
def doctor(
    targets: tuple[str, ...],
    namesrv: str,
    over_tls: bool,
    tls: ClientTLS,
    conf: Path | None,
    sets: tuple[str, ...],
    lists: bool,
    shows_all: bool,
    as_json: bool,
) -> None:
    """Check brokers, ours or Java's, and stores on this machine, and say what to do.

    Give the remoting ports of a broker and its slaves, folders of stores, or --namesrv, in any combination. Each check
    says PASS, WARN, FAIL or SKIP; what is not known is SKIP, with the reason. Without --all, WARN and FAIL are shown,
    and the others are counted. It only asks and reads, and writes nothing. --conf and --set are for stores.

    Exit status 0: nothing fails. 1: something must be changed. 2: wrong usage.
    """
    if lists:
        _list(as_json)
        return
    name_servers = tuple(split_addresses(namesrv))
    if not targets and not name_servers:
        raise Trouble(ExitCode.USAGE, "give brokers (HOST:PORT), folders of stores, or --namesrv")
    hosts = tuple(_address(target) for target in targets if not _is_store(target))
    stores = [_store(Path(target), conf, sets) for target in targets if _is_store(target)]
    found = examine(_gathered(AskedAbout(hosts, name_servers, over_tls), stores, tls))
    counts = Counter(finding.verdict for _, finding in found)
    if as_json:
        print_json({"findings": [_as_json(*each) for each in found], "counts": _counted(counts)})
    else:
        for check, finding in found:
            if shows_all or finding.verdict in (CheckResult.WARN, CheckResult.FAIL):
                _tell(check, finding)
        say(", ".join(f"{count} {name}" for name, count in _counted(counts).items()))
    if counts[CheckResult.FAIL]:
        failing = dict.fromkeys(check.name for check, finding in found if finding.verdict is CheckResult.FAIL)
        raise Trouble(ExitCode.CORRUPT, f"failed: {', '.join(failing)}")


def _counted(counts: Counter[CheckResult]) -> dict[str, int]:
    return {verdict.name: counts[verdict] for verdict in CheckResult}


def _is_store(target: str) -> bool:
    return "/" in target or Path(target).is_dir()


def _address(target: str) -> str:
    """The address of a broker. Without a port it is the default of listenPort."""
    return target if ":" in target else f"{target}:{DEFAULT_PORT}"


def _store(path: Path, conf: Path | None, sets: tuple[str, ...]) -> Store:
    return read_store(path, settings_of(path, conf, sets), has_settings=conf is not None or bool(sets))


def _gathered(asked: AskedAbout, stores: list[Store], tls: ClientTLS) -> Facts:
    """The facts. The reactor only runs if there is somebody to ask. Raises Trouble."""
    if not asked.hosts and not asked.name_servers and not any(store.config.get("namesrvAddr") for store in stores):
        return Facts(stores=tuple(stores))
    reactor = the_reactor()
    ways = Ways(reactor, tls)
    for address in (*asked.hosts, *asked.name_servers):
        try:
            ways.to(address)
        except ValueError as error:
            raise Trouble(ExitCode.USAGE, str(error)) from error
    asking = Asking(ways, reactor)
    return run_reactor(reactor, lambda: asking.facts(asked, stores))


def _list(as_json: bool) -> None:
    if as_json:
        print_json({"checks": [{"check": check.name, "passesIf": check.meaning} for check in CHECKS]})
        return
    for check in CHECKS:
        say(f"{check.name:<14}{check.meaning}")


def _as_json(check: Check, finding: Finding) -> dict[str, Any]:
    return {
        "check": check.name,
        "verdict": finding.verdict.name,
        "subject": finding.subject,
        "text": finding.text,
        "advice": finding.advice or None,
    }


def _tell(check: Check, finding: Finding) -> None:
    """Show a finding: the verdict, the check and the text, and below it the advice, as wide as the terminal is."""
    width = max(MIN_WIDTH, shutil.get_terminal_size().columns)
    verdict = click.style(finding.verdict.name, fg=COLORS[finding.verdict], bold=finding.verdict is CheckResult.FAIL)
    text = printable(f"{check.name}: {finding.subject}: {finding.text}")
    first, *others = textwrap.wrap(text, width - len(INDENT), break_on_hyphens=False)
    click.echo(f"{verdict}  {first}")
    for line in others:
        click.echo(INDENT + line)
    for line in textwrap.wrap(f"→ {printable(finding.advice)}" if finding.advice else "", width - len(INDENT)):
        click.echo(INDENT + line)
