"""Nodes that are forks: they are what twistd starts, and end as its processes do."""

import json
import os
import signal
from pathlib import Path

import pytest

from rmqha.testing.forkserver import ForkServer

pytestmark = pytest.mark.process
RECIPE = """
import json, os, signal, sys
from twisted.application.service import Application
print(json.dumps({
    "words": sys.argv, "folder": os.getcwd(), "shade": os.environ.get("SHADE"), "group": os.getpgid(0) == os.getpid(),
    "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "open": sorted(os.listdir("/proc/self/fd")),
}), flush=True)
application = Application("recipe")
"""


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer()


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipe.tac").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(log: Path) -> dict[str, object]:
    return next(json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))


def test_a_fork_is_as_a_process_that_was_just_started(
    server: ForkServer, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHADE", "blue")
    words = ["-noy", "recipe.tac", "--pidfile="]
    with (recipe / "log").open("wb") as log:
        node = server.start(words, log, 0)
    while "{" not in (recipe / "log").read_text():
        assert node.poll() is None
    os.kill(node.pid, signal.SIGTERM)
    assert node.wait(300) == node.poll() == -signal.SIGTERM  # twistd raises it again
    facts = told(recipe / "log")
    assert facts["words"] == ["twistd", *words]
    assert facts["folder"] == str(recipe)
    assert (facts["shade"], facts["group"], facts["interrupts"]) == ("blue", True, True)
    assert facts["open"] == ["0", "1", "2", "3"]  # the last one is that of listdir


def test_ends_are_told_by_status_and_by_signal(server: ForkServer, recipe: Path) -> None:
    with (recipe / "log").open("wb") as log:
        wrong, killed = server.start(["--no-such-option"], log), server.start(["-noy", "recipe.tac", "--pidfile="], log)
    assert wrong.wait() == 1
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    killed.kill()  # nothing of another process


def test_an_environment_that_is_too_large_is_refused(
    server: ForkServer, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHADE", "x" * 100_000)
    monkeypatch.setenv("SHADE_TOO", "x" * 100_000)
    with (recipe / "log").open("wb") as log, pytest.raises(ValueError, match="more than"):
        server.start(["--version"], log)


def test_a_server_that_has_ended_is_an_error(recipe: Path) -> None:
    server = ForkServer()
    with (recipe / "log").open("wb") as log:
        node = server.start(["-noy", "recipe.tac", "--pidfile="], log)
        status = Path(f"/proc/{node.pid}/status").read_text().splitlines()
        (parent,) = (int(line.split()[1]) for line in status if line.startswith("PPid:"))
        os.kill(parent, signal.SIGKILL)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            server.start(["--version"], log)
    os.kill(node.pid, signal.SIGKILL)
