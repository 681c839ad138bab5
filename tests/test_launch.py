"""What the start of a command imports, and Ctrl-C meanwhile."""

import subprocess
import sys

import click
import pytest

from rmqha.cli import main

pytestmark = pytest.mark.process
INTERRUPTING = """
import os, signal, sys

MODULE = sys.argv[1]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from rmqha.launch import main
sys.argv[1:] = ["verify", "/nowhere"]
main()
"""
IMPORTED = """
import sys
from rmqha.cli import main
main(["put", "--help"], standalone_mode=False)
print(*(name for name in sys.modules if name.startswith("rmqha.")), file=sys.stderr)
"""


@pytest.mark.parametrize("module", ["rmqha.cli.shared", "rmqha.cli.verify"])
def test_ctrl_c_while_the_command_is_imported_ends_with_130_and_one_line(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTING, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "rmqha: interrupted\n")


def test_the_command_runs() -> None:
    command = [sys.executable, "-m", "rmqha.launch", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rmqha, version ")


def test_a_command_does_not_import_all_others() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    imported = done.stderr.split()
    assert "rmqha.cli.messages" in imported
    others = ("rmqha.pipeline", "rmqha.ops", "rmqha.web", "rmqha.cli.restore", "rmqha.cli.doctor")
    assert [name for name in imported if name.startswith(others)] == []


def test_every_command_is_found_by_its_name() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    assert [name for name, command in commands.items() if command is None or command.name != name] == []
