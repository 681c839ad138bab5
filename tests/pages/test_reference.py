"""Everything that users meet by name has its entry on exactly one page: settings, metrics, events, commands, codes …

An entry is a heading, or the first cell of a row of a table, that consists of names. A first cell that is a link leads
to an entry, and is not one itself. Sentences may name anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path

import click
import pytest

from rmqha import client
from rmqha.cli import main
from rmqha.client.replay import MARK
from rmqha.failover.keys import ClusterConfig
from rmqha.failover.states import FailoverState
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.namesrv_tap import Options as NameServerOptions
from rmqha.ops.doctor.checks import CHECKS
from rmqha.ops.doctor.findings import CheckResult
from rmqha.ops.status import KILLED, UNKNOWN
from rmqha.pipeline import schema
from rmqha.pipeline.bodyformats import Format
from rmqha.pipeline.options import KNOWN, View
from rmqha.pipeline.sqltypes import STRING_MAP, sql_type
from rmqha.settings.settings import SETTING_KEYS
from rmqha.store.message import PutMessageStatus
from rmqha.tap import Options as NodeOptions
from rmqha.web import health
from rmqha.web.catalogue import NAME_SERVER, NODE
from rmqha.web.watchednode import STATES
from rmqha.wire.command import RequestCode
from tests.pages.pages import PAGES, ROOT
from tests.pages.test_runbook import SOURCES_OF_WARNINGS

SEPARATOR = re.compile(r"\|[ :]*--")
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
VARIABLE = re.compile(r"\bRMQHA_[A-Z_]+")
OURS = range(47000, 48000)
"""Request codes that RocketMQ does not have."""


def commands(group: click.Group = main, prefix: str = "rmqha") -> Iterator[tuple[str, click.Command]]:
    """All commands by name, but for ``rmqha`` itself."""
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        yield f"{prefix} {word}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {word}")


def options() -> Iterator[str]:
    """All options of commands and of twistd's plugins."""
    for _, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                yield from parameter.opts
    for plugin in (NodeOptions(), NameServerOptions()):
        yield from (f"--{name.rstrip('=')}" for name in plugin.longOpt)


def variables() -> set[str]:
    """The environment variables that users may set: those in the code, the units, and the image."""
    files = [path for path in (ROOT / "rmqha").rglob("*.py") if "testing" not in path.parts]
    files += [path for name in ("container", "systemd") for path in (ROOT / "packaging" / name).iterdir()]
    found = {name for path in files for name in VARIABLE.findall(path.read_text())}
    return found - {MARK} | {"ROCKETMQ_HOME"}


def columns() -> set[str]:
    """The columns of the view ``records`` and of archives."""
    on_demand = {schema.PROPERTIES_MAP, schema.VALUE, schema.BODY_ERROR}
    return {*schema.COLUMNS, *on_demand, *schema.BROKER_COLUMNS, *schema.PROOF_COLUMNS}


def errors() -> set[str]:
    """What a client raises. The bases of these have a sentence, and handlers raise RetryLater."""
    found = {name for name in client.__all__ if isinstance(getattr(client, name), type)}
    found = {name for name in found if issubclass(getattr(client, name), Exception)}
    return found - {"ClientError", "MQClientError", "RetryLater"}


def warnings() -> set[str]:
    """What `rmqha status` may warn of: phrases of the sentences."""
    return {phrase for phrases in SOURCES_OF_WARNINGS.values() for phrase in phrases}


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", (ROOT / "ops" / "alerts.yml").read_text()))


def health_paths() -> set[str]:
    source = (ROOT / "rmqha" / "web" / "health.py").read_text()
    return {*health.CHECKS, *re.findall(r'"(/\w+)": lambda', source)}


@dataclass(frozen=True, slots=True)
class Kind:
    """Names of one kind, and their page. ``heads``: only tables whose first head is one of these list the kind.

    A kind whose names are everyday words needs ``heads``. Its tables on the page then have no other rows. RocketMQ has
    names that are ``shared`` too, and docs/spec tells of those.
    """

    what: str
    page: str
    names: frozenset[str]
    heads: tuple[str, ...] = ()
    shared: bool = False


STATES_OF_SLAVES = {state.name for state in ReplicaState}
KINDS = (
    Kind("setting", "settings", SETTING_KEYS, ("key", "setting"), shared=True),
    Kind("metric", "observability", frozenset(metric.name for metric in (*NODE, *NAME_SERVER)), ("metric",)),
    Kind("event", "events", frozenset(map(str, Event)), ("event",)),
    Kind("command", "commands", frozenset(name for name, _ in commands())),
    Kind("option", "commands", frozenset(options())),
    Kind("exit code", "commands", frozenset(str(int(code)) for code in ExitCode), ("exit code", "code"), shared=True),
    Kind("environment variable", "commands", frozenset(variables()), ("variable",)),
    Kind(
        "state of a slave or member", "states", frozenset({*STATES_OF_SLAVES, *FailoverState.__members__}), shared=True
    ),
    Kind("other state", "runbook", frozenset({*STATES, KILLED, UNKNOWN} - STATES_OF_SLAVES - {"NEW"})),
    Kind("warning", "runbook", frozenset(warnings()), ("warning",)),
    Kind("result of a put", "operating", frozenset(PutMessageStatus.__members__), ("result",), shared=True),
    Kind(
        "request code of ours",
        "permissions",
        frozenset(f"{int(code)} {code.name}" for code in RequestCode if code in OURS),
    ),
    Kind("health check", "observability", frozenset(health_paths()), ("path",)),
    Kind("alert", "observability", frozenset(alerts()), ("alert",)),
    Kind("check of doctor", "checks", frozenset(check.name for check in CHECKS), ("check",)),
    Kind("verdict of doctor", "checks", frozenset(CheckResult.__members__), ("verdict",)),
    Kind("view", "spark", frozenset(view.value for view in View), ("view",)),
    Kind("option of Spark", "spark", frozenset(KNOWN) - {"path"}, ("option",)),
    Kind("format of bodies", "spark", frozenset(each.value for each in Format), ("format",)),
    Kind("column", "spark", frozenset(columns()), ("column",)),
    Kind("error of the client", "client", frozenset(errors()), ("error",)),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The names in a heading or a first cell. ``head`` is that of its column; ``target`` is where a link leads."""

    names: tuple[str, ...]
    head: str = ""
    target: str | None = None


def names_of(text: str) -> tuple[str, ...]:
    """Names without their values: ``--port=PORT`` is ``--port``, ``rmqha status STORE`` is ``rmqha status``."""
    return tuple(_name_of(name.strip("`* ")) for name in text.split(", ") if name.strip())


def _name_of(name: str) -> str:
    if name.startswith("rmqha "):
        return " ".join(takewhile(re.compile(r"[a-z][a-z-]*$").match, name.split()))
    return re.split(r"[= ]", name)[0] if name.startswith("-") else re.sub(r"[=?].*", "", name)


def entries_of(text: str) -> Iterator[Entry]:
    """The entries of a page, and the links that lead to entries."""
    head = ""
    lines = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("#"):
            yield Entry(names_of(line.lstrip("# ")))
        elif line.startswith("|") and SEPARATOR.match(after):
            head = first_cell(line)
        elif line.startswith("|") and not SEPARATOR.match(line):
            cell = first_cell(line)
            yield from (Entry(names_of(words), head, target) for words, target in LINK.findall(cell))
            yield Entry(names_of(LINK.sub("", cell)), head)


def first_cell(row: str) -> str:
    """The text of a row up to the second bar. ``\\|`` is a bar within a text."""
    return re.split(r"(?<!\\)\|", row)[1].strip().replace("\\|", "|")


ENTRIES = {path.stem: list(entries_of(path.read_text())) for path in PAGES}
SPECIFICATIONS = {path.stem: list(entries_of(path.read_text())) for path in (ROOT / "docs" / "spec").glob("*.md")}
"""The same of docs/spec."""


def of_kind(kind: Kind, page: str) -> Iterator[Entry]:
    """The entries of a page that name nothing but this kind, and the links to such."""
    for entry in (ENTRIES | SPECIFICATIONS)[page]:
        if entry.names and kind.names.issuperset(entry.names) and (not kind.heads or entry.head in kind.heads):
            yield entry


def names_on(kind: Kind, page: str) -> set[str]:
    """What has its entry on this page."""
    return {name for entry in of_kind(kind, page) if entry.target is None for name in entry.names}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.what))
def test_each_name_has_its_entry_on_its_page(kind: Kind) -> None:
    assert kind.names
    missing = sorted(kind.names - names_on(kind, kind.page))
    assert not missing, f"docs/{kind.page}.md has no entry for {missing}. If it is made from the code: run make pages"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.what))
def test_no_other_page_has_an_entry(kind: Kind) -> None:
    """Tell there what to do with it, in a sentence, or let the row begin with a link to the entry."""
    pages = {*ENTRIES, *(() if kind.shared else SPECIFICATIONS)} - {kind.page}
    others = {page: names for page in sorted(pages) if (names := names_on(kind, page))}
    assert others == {}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.what))
def test_a_row_that_begins_with_a_link_leads_to_the_entry(kind: Kind) -> None:
    targets = {
        entry.target for page in ENTRIES | SPECIFICATIONS for entry in of_kind(kind, page) if entry.target is not None
    }
    pages = {Path(target.partition("#")[0]).stem for target in targets}
    assert pages <= {kind.page}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.heads], ids=lambda kind: str(kind.what))
def test_no_entry_is_of_something_that_does_not_exist(kind: Kind) -> None:
    rows = {name for entry in ENTRIES[kind.page] if entry.head == kind.heads[0] for name in entry.names}
    assert sorted(rows - kind.names) == []


def test_the_settings_of_a_cluster_are_in_the_help_that_the_page_of_commands_shows() -> None:
    _, _, text = (ROOT / "docs" / "commands.md").read_text().partition("\n## rmqha cluster config\n")
    section = text.partition("\n## ")[0]
    assert [field.name for field in fields(ClusterConfig) if f"{field.name}: " not in section] == []


def test_entries_are_found() -> None:
    table = (
        "| option | x |\n|---|---|\n| `--port=N`, `--name A\\|B` | [c](d) |\n| [`GAP`](s.md#a) | |\n| `A` or B | |\n"
    )
    assert list(entries_of(f"# A\n## rmqha job stats\n{table}")) == [
        Entry(("A",)),
        Entry(("rmqha job stats",)),
        Entry(("--port", "--name"), "option"),
        Entry(("GAP",), "option", "s.md#a"),
        Entry((), "option"),
        Entry(("A` or B",), "option"),
    ]
    assert names_of("`rmqha cluster failover --to NAME`") == ("rmqha cluster failover",)


def test_the_types_of_columns_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "spark.md").read_text().partition("\n### Columns\n")[2].partition("\n##")[0]
    shown = {name: kind.strip("` ") for name, kind in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE)}
    types = {**schema.COLUMNS, **schema.BROKER_COLUMNS, **schema.PROOF_COLUMNS, "properties": STRING_MAP}
    assert {name: shown[name] for name in types} == {name: sql_type(kind) for name, kind in types.items()}


def test_the_page_of_commands_shows_which_arguments_may_be_left_out() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            continue
        pieces = command.collect_usage_pieces(click.Context(command))
        shown = re.search(rf"^rmqha {name} (.*)$", page, re.MULTILINE)
        assert shown is not None, name
        assert [
            piece for piece in pieces if piece.startswith("[") and piece != "[OPTIONS]" and piece not in shown[1]
        ] in (
            [],
            ["[ARGS]..."],
        ), name
