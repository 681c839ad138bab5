"""docs/failover.md: what the page tells to paste starts a pair that survives its leader, and upgrades a pair."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.nodes import free_port
from tests.commands import TRIES
from tests.pages.pages import commands_of
from tests.upgrade.conftest import before
from tests.waiting import wait_until

__all__ = ["before"]
pytestmark = [pytest.mark.process, pytest.mark.story]
PORTS = ("9876", "9877", "10911", "10921")
PID_FILES = ("a.pid", "b.pid", "names.pid")
PATIENT_RMQHA = f"""rmqha() {{
    for try in {{1..{TRIES}}}; do
        command rmqha "$@" && return
        status=$?
        [ $status = {ExitCode.CANNOT_CONNECT.value} ] || break
    done
    return $status
}}"""
"""A command that did not reach the coordinator in its 2 seconds, on a busy machine, is typed again."""


class Shell:
    """Somebody's shell, which goes on until all that is pasted has been done, or a command fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: str(free_port()) for port in PORTS}
        self._path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": self._path}
        self.environ.pop("PYTHONPATH", None)

    def paste(self, lines: list[str]) -> str:
        """What the commands print. They must end well."""
        script = "\n".join(["set -e", PATIENT_RMQHA, *lines])
        script = re.sub(r"\b\d{4,5}\b", lambda found: self.ports.get(found[0], found[0]), script)
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    def pulls(self, commands: list[str]) -> int:
        """How many messages can be read. A broker has a message in its queue a moment after it has answered."""
        return len(self.paste([*commands, "rmqha pull TopicTest --namesrv=127.0.0.1:9876"]).splitlines())

    def pids(self) -> list[int]:
        """Of the processes that run in the background."""
        found = (self.folder / "pair" / name for name in PID_FILES)
        return [int(path.read_text()) for path in found if path.exists()]

    def version(self, pid: int) -> str:
        """Whether the process was started with the program of before on its path."""
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        return "before" if b"PYTHONPATH=" in environ else "today"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    for pid in found.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_what_the_page_tells_to_paste_starts_a_pair_that_survives_its_leader(shell: Shell) -> None:
    lines = commands_of("failover: Set it up")
    (kill,) = (number for number, line in enumerate(lines) if line.startswith("kill -9"))
    assert lines[-1].startswith("kill $(cat")
    started = shell.paste(lines[:kill])
    assert "FINE: b can lead next" in started
    assert "SEND_OK 100" in started
    in_folder = ["cd pair", lines[1]]  # the same shell's: its folder, and the coordinator
    assert lines[1].startswith("export RMQHA_FAILOVER=")
    assert "SEND_OK 1" in shell.paste([*in_folder, *lines[kill:-1]])
    wait_until(lambda: shell.pulls(in_folder) > 100, "all messages to be read")
    follows = [
        *in_folder,
        "until rmqha cluster show | grep -E '^in sync +a, b;'; do sleep 1; done",
        "rmqha cluster show || true",
    ]
    assert re.search(r"^leader +b; epoch", shell.paste(follows), re.MULTILINE)
    assert len(shell.pids()) == 3
    shell.paste([*in_folder, lines[-1]])
    wait_until(lambda: not shell.pids(), "all processes to end")


def test_what_the_page_tells_to_paste_upgrades_a_pair_of_before(shell: Shell, before: tuple[str, ...]) -> None:
    """The pair is of the tree of commit 8200a57. It becomes one of today, and has all messages."""
    lines = commands_of("failover: Set it up")
    (kill,) = (number for number, line in enumerate(lines) if line.startswith("kill -9"))
    program = [f"export {before[-1]}", 'rmqha() { python -m rmqha.cli "$@"; }']
    assert "SEND_OK 100" in shell.paste([*program, *lines[:kill]])
    in_folder = ["cd pair", lines[1]]
    assert {shell.version(pid) for pid in shell.pids()} == {"before"}
    shown = shell.paste([*in_folder, *commands_of("failover: Upgrade")])
    assert "FINE: a can lead next" in shown
    assert len(shell.pids()) == 3
    assert {shell.version(pid) for pid in shell.pids()} == {"today"}
    assert "SEND_OK 10" in shell.paste([*in_folder, "rmqha put TopicTest more --count=10 --namesrv=127.0.0.1:9876"])
    wait_until(lambda: shell.pulls(in_folder) == 110, "all messages to be read")
    shell.paste([*in_folder, lines[-1]])
    wait_until(lambda: not shell.pids(), "all processes to end")
