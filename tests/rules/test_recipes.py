"""CONTRIBUTING's *A change from outside*: a change that is only half made fails with the file that is missing.

The other halves: tests/rules/test_events.py (events), tests/pages/test_permissions.py (requests),
tests/settings/test_confkeys.py (settings that Java does not know), tests/pages (pages).
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from rmqha.cli import MODULES
from rmqha.pipeline.decode import SPECIAL_COLUMNS
from rmqha.pipeline.schema import COLUMNS, PROPERTY_COLUMNS
from rmqha.settings.settings import Settings
from rmqha.web.catalogue import NAME_SERVER, NODE
from rmqha.wire.command import RequestCode
from rmqha.wire.layout import FIELD_AT
from tests.attacks.test_every_code import OF_A_BROKER, OF_A_NAME_SERVER
from tests.permissions import ACCOUNT_CODES, ROWS, Surface

ROOT = Path(__file__).parents[2]
ONLY_REFUSED = {"enable_dledger_commit_log"}
"""Settings that may have one value, so that nobody reads them."""
MAX_FILES = 4
MAX_LINES = 6


@cache
def sources(folder: str) -> Mapping[str, str]:
    """The modules of a folder, by path."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / folder).rglob("*.py")}


def all_but(path: str, modules: Mapping[str, str]) -> str:
    """The text of all modules but one."""
    return "\n".join(text for name, text in modules.items() if name != path)


def unread_settings(names: Iterable[str], text: str) -> list[str]:
    """The settings that nothing in the text reads."""
    read = set(re.findall(r"\.([a-z]\w+)", text))
    return [f"no module of rmqha/ reads settings.{name}" for name in names if name not in read]


def unwritten_metrics(names: Iterable[str], text: str, writers: str) -> list[str]:
    """The metrics that nothing in the text writes."""
    return [f"{writers} does not write the metric {name}" for name in names if f'"{name}"' not in text]


def commands_in(path: str, source: str) -> Iterator[tuple[str, str]]:
    """Each command that a module of rmqha/cli defines, with the module's name."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            made_by = [ast.unparse(each) for each in node.decorator_list]
            if any(re.match(r"click\.(command|group)\b", each) for each in made_by):
                yield node.name.replace("_", "-"), Path(path).stem


def unknown_commands(modules: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """The commands that ``rmqha`` does not find."""
    found = [each for path, source in modules.items() for each in commands_in(path, source)]
    return [
        f"MODULES in rmqha/cli/__init__.py does not name the command {name} of rmqha/cli/{module}.py"
        for name, module in found
        if known.get(name) != module and name != "main"
    ]


def untried_commands(names: Iterable[str], text: str) -> list[str]:
    """The commands that no test runs."""
    return [f"no test in tests/cli runs the command {name}" for name in names if f'"{name}"' not in text]


def without_worst(rows: Iterable[RequestCode], worst: Iterable[int]) -> list[str]:
    """The requests whose worst nobody has thought of."""
    return [f"tests/attacks/test_every_code.py has no worst request {code.name}" for code in rows if code not in worst]


def undecoded_columns(names: Iterable[str], made: Iterable[str]) -> list[str]:
    """The columns that no code makes."""
    return [
        f"SPECIAL_COLUMNS in rmqha/pipeline/decode.py does not make the column {name}, "
        "which is neither a property nor a number of the header"
        for name in names
        if name not in made
    ]


def codes_of(surface: Surface) -> list[RequestCode]:
    """The requests that have a row."""
    return [row.what for row in ROWS if row.surface is surface and isinstance(row.what, RequestCode)]


def check(missing: list[str]) -> None:
    """Fail with all that is missing."""
    assert not missing, "\n".join(missing)


def test_each_setting_is_read() -> None:
    names = {field.name for field in fields(Settings)} - ONLY_REFUSED
    check(unread_settings(names, "\n".join(sources("rmqha").values())))


def test_each_metric_is_written() -> None:
    text = all_but("rmqha/web/catalogue.py", sources("rmqha/web"))
    of_node = text + (ROOT / "rmqha/store/nodestate.py").read_text()
    check(unwritten_metrics([metric.name for metric in NODE], of_node, "rmqha/web/nodemetrics.py"))
    check(unwritten_metrics([metric.name for metric in NAME_SERVER], text, "rmqha/web/namesrvweb.py"))


def test_each_command_is_known_and_tried() -> None:
    check(unknown_commands(sources("rmqha/cli"), MODULES))
    check(untried_commands(MODULES, "\n".join(sources("tests").values())))


def test_each_request_has_a_worst() -> None:
    of_brokers = [code for code in codes_of(Surface.BROKER) if code not in ACCOUNT_CODES]
    check(without_worst(of_brokers, OF_A_BROKER))
    check(without_worst(codes_of(Surface.NAME_SERVER), OF_A_NAME_SERVER))


def test_each_column_is_decoded() -> None:
    check(undecoded_columns(COLUMNS, {*FIELD_AT, *SPECIAL_COLUMNS, *PROPERTY_COLUMNS}))


def test_a_half_made_change_is_found() -> None:
    assert unread_settings(["rest_ms", "nap_ms"], "settings.rest_ms, rest.of") == [
        "no module of rmqha/ reads settings.nap_ms"
    ]
    assert unwritten_metrics(["rmqha_a", "rmqha_b"], 'common.value("rmqha_a", 1)', "x.py") == [
        "x.py does not write the metric rmqha_b"
    ]
    source = "@click.command()\ndef one_way(): ...\n@click.group()\ndef two(): ...\ndef three(): ..."
    assert unknown_commands({"rmqha/cli/ways.py": source}, {"one-way": "ways"}) == [
        "MODULES in rmqha/cli/__init__.py does not name the command two of rmqha/cli/ways.py"
    ]
    assert untried_commands(["one-way", "two"], 'run("two")') == ["no test in tests/cli runs the command one-way"]
    assert without_worst([RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT], [11]) == [
        "tests/attacks/test_every_code.py has no worst request HEART_BEAT"
    ]
    (message,) = undecoded_columns(["topic", "day"], ["topic"])
    assert message.startswith("SPECIAL_COLUMNS in rmqha/pipeline/decode.py does not make the column day")


RECIPES = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## A change from outside\n")[2].partition("\n## ")[0]
PATH = re.compile(r"`?((?:rmqha|tests|docs)/[\w/]+\.(?:py|md))")
EXAMPLES = re.findall(r"^\*\*(.+?)\*\*.*?```diff\n(.*?)```", RECIPES, re.MULTILINE | re.DOTALL)


NEW = re.compile(r"^ *(\w+)(?:: [\w |]+)? = |^ *(\w+) = |^def (\w+)", re.MULTILINE)
"""What a line of an example makes."""


def pieces(example: str) -> Iterator[tuple[str, str]]:
    """The pieces of an example: the file that a piece is for, and the lines that it adds."""
    for path, lines in re.findall(r"^\+\+\+ (\S+)\n((?:\+(?!\+\+).*\n)+)", example, re.MULTILINE):
        yield path, re.sub(r"^\+", "", lines, flags=re.MULTILINE)


def words_of(code: str) -> set[str]:
    """The names in a piece, without texts and comments."""
    return set(re.findall(r"[A-Za-z_]\w+", re.sub(r'"[^"\n]*"|#.*', "", code)))


def test_the_recipes_are_found() -> None:
    assert [title for title, _ in EXAMPLES] == [
        *("A log event", "A setting", "A metric", "A fact of a node", "A request", "A command", "A column")
    ]


@pytest.mark.parametrize(("title", "example"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_a_recipe_is_short_and_like_the_code(title: str, example: str) -> None:
    """What its lines use is in the file that it names, unless an earlier line has made it."""
    made = {"def", "yield", "None", *RequestCode.__members__}
    found = list(pieces(example))
    assert 2 <= len(found) <= MAX_FILES, "the files of a change"
    assert sum(len(code.strip().splitlines()) for _, code in found) <= MAX_LINES
    for path, code in found:
        if not path.endswith(".py"):
            continue
        made |= {name for names in NEW.findall(code) for name in names}
        assert words_of(code) - made <= words_of((ROOT / path).read_text()), f"{path} has no such names"


def test_each_file_that_the_recipes_name_is_there() -> None:
    named = set(PATH.findall(RECIPES))
    assert len(named) > 12
    assert {path for path in named if not (ROOT / path).is_file()} == set()
