"""What the start of a command imports, and Ctrl-C meanwhile."""

import json
import subprocess
import sys

import click
import pytest

from rmqha.cli import SUMMARIES, main

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
import json, os, sys
from rmqha.cli import main

for command in sys.argv[1:]:
    if not os.fork():
        sys.stdout = open(os.devnull, "w")
        main([command, "--help"], standalone_mode=False)
        print(json.dumps([command, sorted(sys.modules)]), file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()
"""
"""What each command imports before it does anything."""
NEVER = (
    "importlib.metadata",
    "twisted.internet.reactor",
    "rmqha.broker",
    "rmqha.web",
    "pyspark",
    "pyarrow",
    "lark",
    "jinja2",
)
ON_A_STORE = (*NEVER, "twisted", "asyncio", "OpenSSL", "cryptography", "rich", "yaml", "javaproperties", "rmqha.client")
ON_BROKERS = (*NEVER, "numpy", "rich", "rmqha.store.messagestore", "rmqha.ops", "rmqha.pipeline", "rmqha.cli.restore")
NOT_IMPORTED = {
    "dump": ON_A_STORE,
    "queues": ON_A_STORE,
    "verify": ON_A_STORE,
    "rebuild": (*NEVER, "OpenSSL", "cryptography", "rich", "rmqha.client", "rmqha.remoting"),
    "put": ON_BROKERS,
    "pull": ON_BROKERS,
    "tail": ON_BROKERS,
    "status": (*ON_A_STORE, "numpy", "rmqha.pipeline", "rmqha.cli.doctor"),
    "lag": (*NEVER, "numpy", "rmqha.store.messagestore", "rmqha.ops", "rmqha.pipeline"),
    "top": (*NEVER, "numpy", "rmqha.store.messagestore", "rmqha.client", "rmqha.pipeline"),
    "cluster": (*NEVER, "numpy", "rmqha.client", "rmqha.pipeline", "rmqha.store.messagestore"),
}
"""Most of these took 20 ms or more of each start, together more than half of it."""


@pytest.mark.parametrize("module", ["rmqha.cli.shared", "rmqha.cli.verify"])
def test_ctrl_c_while_the_command_is_imported_ends_with_130_and_one_line(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTING, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "rmqha: interrupted\n")


def test_the_command_runs() -> None:
    command = [sys.executable, "-m", "rmqha.launch", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rmqha, version ")


def test_a_command_imports_only_what_it_needs() -> None:
    words = [sys.executable, "-c", IMPORTED, *NOT_IMPORTED]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = dict(map(json.loads, done.stderr.splitlines()))
    assert "rmqha.cli.messages" in found["put"]
    heavy = {
        command: [name for name in names if any(f"{name}.".startswith(f"{each}.") for each in NOT_IMPORTED[command])]
        for command, names in found.items()
    }
    assert heavy == {command: [] for command in NOT_IMPORTED}


def test_every_command_is_found_by_its_name() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    assert [name for name, command in commands.items() if command is None or command.name != name] == []


def test_the_help_lists_the_first_sentence_of_each_commands_own_help() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    assert {name: each.get_short_help_str(1000) for name, each in commands.items() if each is not None} == SUMMARIES


def test_the_help_imports_no_command() -> None:
    code = "import sys; from rmqha.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = [name for name in done.stdout.split() if name.startswith("rmqha.cli")]
    assert imported == ["rmqha.cli"]
