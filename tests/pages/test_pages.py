"""Every command that the documents show is typed by a test, or says why not; and every command and option exists."""

import ast
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.namesrv_tap import Options as NameServerOptions
from rmqha.tap import Options as NodeOptions
from tests.pages.pages import PAGES, ROOT, Block, all_blocks, blocks_of, command_lines, shell_blocks, shows
from tests.pages.test_page_stories import STORIES

NOT_RUN = {
    "CONTRIBUTING: Contributing": "CI does it, and this test is a part of it",
    "failover: etcd": "tests/coordination/test_members.py does it at an etcd of its own",
    "failover: The witness": "tests/coordination/test_members.py starts it at a free port",
    "operating: Reads that no failover takes back": (
        "mqadmin is RocketMQ's; tests/broker/requests/test_admin.py sends what it sends"
    ),
    "spark: On a cluster": "the processes go on until they are stopped, and tests/pipeline/test_cluster.py starts them",
    "name-servers: Name servers": "it needs machines of these names",
    "name-servers: Who may do what": "it needs a network",
}
"""All blocks that no test types, with the reason that their page gives."""
TYPED = re.compile(r'commands_of\("([^"]+)"\)')
TWISTD_OPTIONS = {"pidfile", "logfile", "nodaemon"}


def typed_sections() -> set[str]:
    """The sections whose commands a story of the tests types."""
    found = {section for path in (ROOT / "tests").rglob("test_*.py") for section in TYPED.findall(path.read_text())}
    return found | {block.section for block in shell_blocks() if block.page in STORIES}


def test_every_block_of_commands_is_typed_or_says_why_not() -> None:
    sections = {block.section for block in shell_blocks() if block.not_run is None}
    assert len(sections) > 20, "they are found"
    assert sections - typed_sections() == set(), "a story must type them: test_page_stories.py, test_readme.py"


def test_all_blocks_that_are_not_typed_are_listed_here() -> None:
    assert {block.section: block.not_run for block in shell_blocks() if block.not_run is not None} == NOT_RUN


def wrong_words(words: list[str]) -> list[str]:
    """The commands and options in a command line that do not exist."""
    if words[0] == "twistd":
        return _wrong_options_of_twistd(words[1:])
    command: click.Command = main
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-") and rest[0].islower():
        inner = command.get_command(click.Context(command), rest[0])
        if inner is None:
            return [rest[0]]
        command, rest = inner, rest[1:]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    known |= {"--help", "--version", "-h"}
    return [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


def _wrong_options_of_twistd(words: list[str]) -> list[str]:
    options: set[str] = set(TWISTD_OPTIONS)
    wrong = []
    for word in words:
        if word in ("rmqha", "rmqha-namesrv"):
            of_plugin = NodeOptions() if word == "rmqha" else NameServerOptions()
            options |= {*of_plugin.longOpt, *(f"{each}=" for each in of_plugin.longOpt)}
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and not {name, f"{name}="} & options:
            wrong.append(word)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.stem))
def test_every_command_and_option_that_a_page_names_exists(path: Path) -> None:
    assert {tuple(words): wrong for words in command_lines(path.read_text()) if (wrong := wrong_words(words))} == {}


PYTHON = [block for block in all_blocks() if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.section)
def test_python_imports_only_what_exists(block: Block) -> None:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for node in ast.walk(compile(dedent("\n".join(block.lines)), block.section, "exec", flags)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = import_module(node.module)
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_the_first_example_for_contributors_works() -> None:
    example = next(block for block in PYTHON if block.section == "CONTRIBUTING: How to write a test")
    names: dict[str, Any] = {}
    exec("\n".join(example.lines), names)
    names["test_a_put_waits_for_the_slave"]()


class PagesTests(SynchronousTestCase):
    """What reads the pages."""

    text = (
        "# A\nUse `rmqha verify\nSTORE --nope`.\n```sh\none \\\n two # why\nmake x\n# only a comment\n```\n"
        "<!-- not run: it needs root -->\n\n```sh\nthree\n```\n## B\n```console\n$ rmqha status s\nrole …\n```\n"
        "```text\nrmqha nonsense\n```\n"
    )

    def test_blocks(self) -> None:
        first, second, third, fourth = blocks_of("page", self.text)
        self.assertEqual((first.section, first.commands, first.not_run), ("page: A", ["one   two # why"], None))
        self.assertEqual((second.section, second.not_run), ("page: A", "it needs root"))
        self.assertEqual((third.commands, third.shown()), (["rmqha status s"], [("rmqha status s", ["role …"])]))
        self.assertEqual(fourth.language, "text")

    def test_a_text_between_ends_the_reason(self) -> None:
        (block,) = blocks_of("page", "<!-- not run: because -->\nBut:\n```sh\na\n```")
        self.assertIsNone(block.not_run)

    def test_commands_and_options_that_do_not_exist_are_found(self) -> None:
        found = [wrong_words(words) for words in command_lines(self.text)]
        self.assertEqual(sorted(found), [[], ["--nope"], ["nonsense"]])
        node = ["twistd", "-n", "--pidfile=", "rmqha", "--role=slave", "--rol=slave"]
        self.assertEqual(wrong_words(node), ["--rol=slave"])

    def test_shown_output(self) -> None:
        printed = "role   SLAVE\nlag    17 B\n"
        self.assertTrue(shows(printed, ["role   SLAVE  "]))
        self.assertTrue(shows(printed, ["role …", "…", "lag    … B"]))
        self.assertFalse(shows(printed, ["lag …", "role …"]))
        self.assertFalse(shows(printed, ["role"]))
