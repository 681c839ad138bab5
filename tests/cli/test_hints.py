"""What the commands tell somebody who mistypes, and what the environment says for them."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.cli.access import NameServersOption, namesrv_option


def errors(*words: str, **environ: str) -> str:
    return CliRunner(env=environ).invoke(main, words).output


class HintTests(SynchronousTestCase):
    def test_a_command_that_does_not_exist_is_answered_with_the_most_similar_one(self) -> None:
        for words, hint in (
            (("statsu",), "No such command 'statsu'. Did you mean status?"),
            (("restore_cut", "x"), "Did you mean restore-cut?"),
            (("job", "arhive"), "Did you mean archive?"),
            (("cluster", "sohw"), "Did you mean show?"),
        ):
            self.assertIn(hint, errors(*words))
        self.assertNotIn("Did you mean", errors("xyzzy"))
        self.assertEqual(CliRunner().invoke(main, ["statsu"]).exit_code, 2)


@pytest.mark.process
@pytest.mark.parametrize(
    ("plugin", "wrong", "hint"), [("rmqha", "--roel=slave", "role"), ("rmqha-namesrv", "--prot=1", "port")]
)
def test_an_option_that_does_not_exist_is_answered_with_the_most_similar_one(
    plugin: str, wrong: str, hint: str
) -> None:
    twistd = str(Path(sys.executable).with_name("twistd"))
    done = subprocess.run([twistd, "-n", "--pidfile=", plugin, wrong], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    option = wrong.partition("=")[0]
    assert (
        done.stderr == f"rmqha: option {option} not recognized (did you mean --{hint}?) (see twistd {plugin} --help)\n"
    )


@click.command()
@click.argument("store", required=False)
@click.argument("source", required=False)
@namesrv_option("Whom to ask.")
@click.option("--broker")
def asks(store: str | None, source: str | None, namesrv: str | None, broker: str | None) -> None:
    """Shows what it gets."""
    click.echo(f"{namesrv} {broker}")


class EnvironmentTests(SynchronousTestCase):
    def told(self, *words: str, name_servers: str = "ns:9876") -> str:
        return CliRunner(env={"RMQHA_NAMESRV": name_servers}).invoke(asks, words).output.strip()

    def test_the_environment_names_the_name_servers_if_the_command_line_says_nothing(self) -> None:
        self.assertEqual(self.told(), "ns:9876 None")
        self.assertEqual(self.told(name_servers=""), "None None")

    def test_the_command_line_wins(self) -> None:
        self.assertEqual(self.told("--namesrv=other:1"), "other:1 None")
        self.assertEqual(self.told("--broker=b:1"), "None b:1")
        self.assertEqual(self.told("a-store"), "None None")

    def test_every_command_with_name_servers_does_so(self) -> None:
        context = click.Context(main)
        found = 0
        for name in main.list_commands(context):
            command = main.get_command(context, name)
            assert command is not None
            for option in command.params:
                if option.name == "namesrv":
                    self.assertIsInstance(option, NameServersOption, name)
                    found += 1
        self.assertGreaterEqual(found, 8)
