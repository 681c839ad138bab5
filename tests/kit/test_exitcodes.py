"""Exit codes: one table, which docs/operating.md and the command's help show."""

import re
from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.kit.exitcodes import MEANINGS, ExitCode, table
from tests.cli.test_cli import CommandTestCase

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


class TableTests(SynchronousTestCase):
    """The table is the same wherever it is shown."""

    def test_every_code_has_a_meaning(self) -> None:
        self.assertEqual(set(MEANINGS), set(ExitCode))

    def test_the_page_on_operating_shows_it(self) -> None:
        _, _, section = OPERATING.read_text().partition("\n## Exit codes\n")
        shown = re.findall(r"^\| (\d+) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
        self.assertEqual(shown, table())

    def test_the_help_shows_it(self) -> None:
        for arguments in (["--help"], ["job", "--help"]):
            told = " ".join(CliRunner().invoke(main, arguments).stdout.split())
            for code, meaning in table():
                self.assertIn(f"{code} {meaning}", told)


class WrongUsageTests(CommandTestCase):
    """What is no store is not a store that is corrupt."""

    def test_a_folder_that_is_no_store(self) -> None:
        for command in ("verify", "dump", "queues", "recover", "rebuild"):
            with self.subTest(command):
                self.complaint(2, command, "/etc")
                self.complaint(2, command, "/nope")
