"""Exit codes: one table, which the command's help shows. docs/make/commands.py puts it into docs/commands.md."""

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.kit.exitcodes import MEANINGS, ExitCode, table
from tests.cli.test_cli import CommandTestCase


class TableTests(SynchronousTestCase):
    """The table is whole, and the help has it."""

    def test_every_code_has_a_meaning(self) -> None:
        self.assertEqual(set(MEANINGS), set(ExitCode))

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
