"""docs/not-there.md says what is refused, and pages with a list of contents list all of their sections."""

import re
from pathlib import Path

import pytest
from click import Context, Group
from twisted.internet.defer import execute
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.requests.later import ACL_CODES, LATER
from rmqha.broker.requests.pop import POP_CODES
from rmqha.broker.service import BrokerService, Surroundings
from rmqha.broker.tables.attributes import NOT_DONE_HERE
from rmqha.cli import main
from rmqha.settings.confkeys import REFUSED, judge_keys
from rmqha.settings.settings import SettingsError, make_settings
from tests.broker.brokerstore import BrokerStoreTestCase
from tests.pages.pages import PAGES, ROOT

PAGE = (ROOT / "docs" / "not-there.md").read_text()
REFUSED_BY_ITSELF = {"enableDLegerCommitLog": "true", "storePathCommitLog": "/a,/b"}
"""Settings that their own type refuses, with a value."""


def column(heads: str, number: int) -> list[str]:
    """The words of a column of the table with these heads, which are separated by commas."""
    rows = PAGE.partition(f"| {heads} |\n")[2].splitlines()[1:]
    found: list[str] = []
    for row in rows:
        if not row.startswith("|"):
            break
        found += row.strip("|").split("|")[number].strip().split(", ")
    return found


def codes() -> set[int]:
    """The request codes that the page calls refused."""
    found = set[int]()
    for words in column("what | codes", 1):
        first, _, last = words.partition(" to ")
        found.update(range(int(first), int(last or first) + 1))
    return found


class RequestTests(BrokerStoreTestCase):
    def test_the_refused_requests_are_those_of_the_broker(self) -> None:
        """All that it refuses in words is on the page, and nothing that it serves."""
        refused = set(map(int, {*POP_CODES, *LATER} - set(ACL_CODES)))
        self.open()
        broker = BrokerService(self.settings, self.store, self.clock, execute, Surroundings("127.0.0.1"))
        served = set(map(int, broker.processors())) - refused
        self.assertGreater(len(served), 50)
        self.assertEqual((refused - codes(), served & codes()), (set(), set()))


class NotThereTests(SynchronousTestCase):
    def test_the_refused_settings_are_those_of_a_node(self) -> None:
        self.assertEqual(sorted(column("setting | if it is", 0)), sorted({*REFUSED, *REFUSED_BY_ITSELF}))
        for key in REFUSED:
            with self.assertRaises(SettingsError):
                judge_keys({key: "true"}, is_slave=False)
        for key, text in REFUSED_BY_ITSELF.items():
            with self.assertRaises(SettingsError):
                make_settings({key: text})

    def test_the_refused_topics_are_those_of_a_broker(self) -> None:
        for name, (value, _) in NOT_DONE_HERE.items():
            self.assertIn(f"`{name}={value}`", PAGE)


def sections_of(text: str) -> tuple[set[str], set[str]]:
    """The anchors of the sections that a list of contents links to, and of all sections; both empty without a list."""
    head, *_ = text.partition("\n## ")
    listed = set(re.findall(r"\]\(#([^)]+)\)", head))
    headings = re.findall(r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return (listed, anchors) if re.search(r"^- \[[^]]+\]\(#", head, re.MULTILINE) else (set(), set())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.stem))
def test_contents_list_all_sections(path: Path) -> None:
    listed, anchors = sections_of(path.read_text())
    assert anchors <= listed


def test_a_missing_section_is_found() -> None:
    listed, anchors = sections_of(
        "# A\n- [One thing](#one-thing)\n\n## One thing\n```sh\n## no\n```\n## Two, or more\n"
    )
    assert anchors - listed == {"two-or-more"}
    assert sum(bool(sections_of(path.read_text())[0]) for path in PAGES) >= 3


def test_the_page_of_commands_shows_which_arguments_may_be_left_out() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    context = Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, Group):
            continue
        pieces = command.collect_usage_pieces(Context(command))
        shown = re.search(rf"^rmqha {name} (.*)$", page, re.MULTILINE)
        assert shown is not None, name
        assert [
            piece for piece in pieces if piece.startswith("[") and piece != "[OPTIONS]" and piece not in shown[1]
        ] in (
            [],
            ["[ARGS]..."],
        ), name
