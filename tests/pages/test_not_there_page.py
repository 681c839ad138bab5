"""docs/not-there.md says what is refused: its tables are those of the code."""

import re

from twisted.internet.defer import execute
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.broker.requests.later import ACL_CODES, LATER
from rmqha.broker.requests.pop import POP_CODES
from rmqha.broker.tables.attributes import NOT_DONE_HERE
from rmqha.settings.confkeys import REFUSED, judge_keys
from rmqha.settings.settings import SettingsError, make_settings
from tests.broker.brokerstore import BrokerStoreTestCase
from tests.pages.pages import ROOT

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
        found += re.sub(r"\[(\w+)\]\([^)]+\)", r"\1", row).strip("|").split("|")[number].strip().split(", ")
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
