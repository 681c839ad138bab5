"""Exit codes: one table, which README and the command's help show."""

import re
from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.exitcodes import MEANINGS, ExitCode, table
from tests.test_cli import CommandTestCase

README = Path(__file__).parent.parent / "README.md"


class TableTests(SynchronousTestCase):
    """The table is the same wherever it is shown."""

    def test_every_code_has_a_meaning(self) -> None:
        self.assertEqual(set(MEANINGS), set(ExitCode))

    def test_readme_shows_it(self) -> None:
        shown = re.findall(r"^\| (\d+) \| (.+) \|$", README.read_text(), re.MULTILINE)
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
