"""docs/runbook.md: each state, exit code and warning has an entry, and the story of a lost master works as written."""

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.ops.status import EXIT_CODES, KILLED, UNKNOWN
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import STOPPED
from rmqha.web.watchednode import STATES

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SOURCES_OF_WARNINGS = {
    "rmqha/node/opennode.py": (
        *("did not stop cleanly", "building queues and index"),
        *("no name server knows this promoted master", "messages are with POP consumers"),
    ),
    "rmqha/broker/brokerservice.py": (),
    "rmqha/broker/background/outerapi.py": ("has another broker in our place", "not registered with name server"),
    "rmqha/acl/gate.py": ("the accounts stay as they were", "only the first counts"),
    "rmqha/ha/slave/slaveservice.py": (),
    "rmqha/ha/slave/questions.py": ("the master's ACL refuses this slave",),
}
"""The modules that give warnings for state.json, and phrases of these."""


def table(section: str) -> dict[str, str]:
    """The first cell of each row of a section's table, without backticks, and the last one."""
    _, _, text = RUNBOOK.partition(f"\n## {section}\n")
    rows = [line.strip("|").split(" | ") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return {LINK.sub(r"\1", row[0]).strip(" `"): row[-1].strip() for row in rows[1:]}


class RunbookTests(SynchronousTestCase):
    def test_every_state_has_an_entry(self) -> None:
        states = {state.name for state in ReplicaState} | {phase.name for phase in OpeningPhase}
        states |= set(STATES) - {"NEW"}  # a node in NEW has no page yet
        states |= {STOPPED, KILLED, UNKNOWN, *EXIT_CODES}
        self.assertEqual(set(table("States")), states)

    def test_every_exit_code_has_an_entry(self) -> None:
        self.assertEqual(set(table("Exit codes")), {str(int(code)) for code in ExitCode})

    def test_every_warning_has_an_entry(self) -> None:
        phrases = {phrase for found in SOURCES_OF_WARNINGS.values() for phrase in found}
        self.assertEqual(set(table("Warnings")), phrases)
        code = "".join(path.read_text() for path in sorted((ROOT / "rmqha").rglob("*.py")))
        for phrase in phrases:
            self.assertIn(phrase, code)
        with_warnings = {
            str(path.relative_to(ROOT))
            for path in (ROOT / "rmqha").rglob("*.py")
            if re.search(r"def _?warnings\(|self\.warnings: list", path.read_text())
        }
        self.assertEqual(with_warnings, set(SOURCES_OF_WARNINGS))

    def test_every_warning_names_its_event_in_the_log(self) -> None:
        _, _, text = RUNBOOK.partition("\n## Warnings\n")
        rows = [line.split(" | ")[1] for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
        self.assertEqual(len(rows), len(table("Warnings")))
        for cell in rows:
            names = re.findall(r"`(\w+)`", cell)
            self.assertTrue(names)
            self.assertEqual([name for name in names if name not in set(Event)], [])

    def test_every_entry_says_what_to_do(self) -> None:
        for section in ("States", "Exit codes", "Warnings"):
            for name, what in table(section).items():
                self.assertGreater(len(what), 5, (section, name))
