"""Ctrl-C while the command is still being imported."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process
INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "rmqha.cli.verify":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from rmqha.launch import main
main()
"""


def test_ctrl_c_while_the_command_is_imported_ends_with_130_and_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "rmqha: interrupted\n")


def test_the_command_runs() -> None:
    command = [sys.executable, "-m", "rmqha.launch", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rmqha, version ")
