"""No page denies what exists. docs/not-there.md is the page of what is missing, and each of its rows is proved.

Every other sentence that denies something links there, or is in denials.toml with the reason why it is true.
"""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from rmqha import client
from rmqha.wire.command import RequestCode
from tests.pages.denying import CODE, REFUSES, denies, sentences
from tests.pages.pages import PAGES, ROOT
from tests.pages.test_reference import KINDS, names_of

DENIALS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("denials.toml").read_text())
MADE = ("commands", "events", "settings", "permissions", "checks", "states")
"""Pages whose sentences stand in the code, next to what they tell of."""
OTHER_PAGES = ("CONTRIBUTING", "NEWS")
"""Pages about tests, and about what was."""
BEGINNINGS = {"ARCHITECTURE": "\n## Decisions\n"}
"""Where the part begins that tells what rmqha does."""
NAMES = {name for kind in KINDS for name in kind.names if len(name) > 3} | {code.name for code in RequestCode}
NOT_THERE = "not-there.md"
PROOFS = {
    "POP consumption": "test_the_refused_requests_are_those_of_the_broker",
    "The controller": "test_the_refused_requests_are_those_of_the_broker",
    "Queues in RocksDB": "test_the_refused_requests_are_those_of_the_broker",
    "New topics": "test_the_refused_topics_are_those_of_a_broker",
    "The accounts of RocketMQ 5": "test_the_refused_requests_are_those_of_the_broker",
    "Timer messages": "test_a_broker_whose_log_has_none_refuses_one_and_does_not_deliver_it_at_once",
}
"""What the page says of RocketMQ 5, by the first words of each item, and the test that shows it."""

SPECIFICATIONS = {path.stem: path for path in sorted((ROOT / "docs" / "spec").glob("*.md"))}
OF_ROCKETMQ = ("ha", "remoting", "store")
"""They tell what RocketMQ does, and may deny that of it. Only names of ours count there."""
PROSE = {path.stem: path for path in PAGES if path.stem not in (*MADE, *OTHER_PAGES)} | SPECIFICATIONS


def denials_of(page: str, text: str) -> list[str]:
    """The sentences of a page that need a reason."""
    begin = max(0, text.find(BEGINNINGS.get(page, "")))
    return [
        sentence
        for sentence in sentences(text[begin:])
        if NOT_THERE not in sentence
        and (
            (denies(sentence) and page not in OF_ROCKETMQ)
            or (names_in(sentence) and (denies(sentence, REFUSES) or denies(sentence)))
        )
    ]


def names_in(sentence: str) -> set[str]:
    """What exists of the names in code font."""
    return {name for words in CODE.findall(sentence) for name in names_of(words)} & NAMES


@cache
def all_tests() -> frozenset[str]:
    """The names of all tests."""
    found = set[str]()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.update(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    return frozenset(found)


@pytest.mark.parametrize("page", PROSE)
def test_every_denial_has_a_reason(page: str) -> None:
    """If the sentence is true, write into denials.toml why: best the name of a test. Or let it link to the page."""
    denied = denials_of(page, PROSE[page].read_text())
    assert sorted(set(denied) - set(DENIALS.get(page, {}))) == [], "no reason"
    assert sorted(set(DENIALS.get(page, {})) - set(denied)) == [], "the page says this no more"


def test_every_page_with_denials_is_there() -> None:
    assert set(DENIALS) <= set(PROSE)


def test_every_test_that_is_a_reason_exists() -> None:
    reasons = {reason for page in DENIALS.values() for reason in page.values()} | set(PROOFS.values())
    assert sorted(reason for reason in reasons if reason.startswith("test_") and reason not in all_tests()) == []
    assert sum(reason.startswith("test_") for reason in reasons) > 25


def test_each_row_of_what_is_missing_is_proved() -> None:
    _, _, text = PROSE["not-there"].read_text().partition("\n## Brokers and clients of RocketMQ 5\n")
    items = re.findall(r"^- (?:\*\*(.+?)\.?\*\*)?", text.partition("\n## ")[0], re.MULTILINE)
    assert sorted(items) == sorted(PROOFS), "each begins with words in bold, which have a proof"


def test_the_client_has_none_of_these() -> None:
    """Message traces, request-reply, POP: as docs/not-there.md says."""
    names = {name.lower() for name in (*client.__all__, *dir(client.Producer), *dir(client.MQClient))}
    assert [name for name in names if re.search(r"trace|request|reply|pop(?!ulate)|grpc", name)] == []


def test_denials_are_found() -> None:
    denied = ["It has no TLS.", "`--once` is refused there.", "Delta is not supported, as we know."]
    other = "Nodes that are not there count;"
    table = "| a | It cannot fly |\n|---|---|\n```\ncannot\n```\n"
    text = f"# No title\n{' '.join([other, *denied])}\n\n- Nothing can be changed ([list](not-there.md)).\n\n{table}"
    assert denials_of("page", text) == [*denied, "It cannot fly"]
