"""Programs that are forks: they are as Python starts them, and end as its processes do."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from rmqha.testing.forkserver import ForkedProcess, ForkServer, start_with_pipes

pytestmark = pytest.mark.process
PROGRAM = """
import __main__, json, os, signal, sys
if __name__ == "__main__":
    typed = sys.stdin.readline()
    with open("facts", "w") as facts:
        json.dump({
            "words": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ), "path": sys.path,
            "own group": os.getpgid(0) == os.getpid(), "main": __main__.__file__, "open": os.listdir("/proc/self/fd"),
            "signals": [str(signal.getsignal(each)) for each in (1, 2, 13, 15, 17)], "typed": typed,
            "reactor": "twisted.internet.reactor" in sys.modules, "streams": [
                [each.fileno(), each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty()]
                for each in (sys.stdin, sys.stdout, sys.stderr)],
        }, facts)
    print("printed")
    print("complained", file=sys.stderr)
    sys.exit(7)
"""
SLEEPER = """
import signal, sys
print(*sys.argv[1:], sys.stdin.readline(), end="", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def files(folder: Path) -> Iterator[list[IO[bytes]]]:
    (folder / "typed").write_text("hello\n")
    with (folder / "typed").open("rb") as typed, (folder / "printed").open("wb") as printed:
        yield [typed, printed, printed]


@contextmanager
def terminal(folder: Path) -> Iterator[list[IO[bytes]]]:
    ours, theirs = pty.openpty()
    os.write(ours, b"hello\n")
    with open(theirs, "r+b", buffering=0) as shown:
        yield [shown] * 3
        (folder / "printed").write_bytes(os.read(ours, 4096))
    os.close(ours)


@pytest.mark.parametrize("words", [["FOLDER/program.py"], ["-m", "program"]])
@pytest.mark.parametrize("opened", [files, terminal])
def test_a_fork_is_as_a_process_that_was_just_started(
    server: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], opened: Any
) -> None:
    words = [word.replace("FOLDER", str(folder)) for word in words]
    monkeypatch.setenv("SHADE", "blue")
    found = []
    for is_fork in (True, False):
        with opened(folder) as streams:
            if is_fork:
                ended = server.start([*words, "a word"], streams, 0).wait(300)
            else:
                stdin, stdout, stderr = streams
                ended = subprocess.run(
                    [sys.executable, *words, "a word"],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=dict(os.environ),  # and no COLUMNS of readline's, which os.environ does not show
                    process_group=0,
                    timeout=300,
                    check=False,
                ).returncode
        shown = (folder / "printed").read_bytes()
        found.append({**json.loads((folder / "facts").read_text()), "status": ended, "shown": shown})
    fork, process = found
    for name, fact in process.items():
        assert fork[name] == fact, name
    assert (fork["status"], fork["typed"]) == (7, "hello\n")


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(folder: Path, by: signal.Signals) -> None:
    """While it writes into a pipe, too."""
    (folder / "sleeper.py").write_text(SLEEPER)
    with open(os.devnull, "r+b") as nothing, start_with_pipes("sleeper", ["a word"], nothing) as process:
        assert isinstance(process, ForkedProcess)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"a word hello\n"
        assert process.poll() is None
        os.kill(process.pid, by)
        assert process.wait(300) == process.poll() == -by
        process.kill()  # nothing of another process


def test_an_environment_that_is_too_large_is_refused(
    server: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHADE", "x" * 100_000)
    monkeypatch.setenv("SHADE_TOO", "x" * 100_000)
    with files(folder) as streams, pytest.raises(ValueError, match="more than"):
        server.start(["program.py"], streams)


def test_an_environment_that_a_fork_cannot_obey_is_refused(
    server: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files(folder) as streams:
        server.start(["program.py"], streams).wait(300)
        monkeypatch.setenv("PYTHONHASHSEED", "17")
        with pytest.raises(ValueError, match="PYTHONHASHSEED"):
            server.start(["program.py"], streams)


def test_a_server_that_has_ended_is_an_error(folder: Path) -> None:
    (folder / "sleeper.py").write_text(SLEEPER)
    server = ForkServer()
    with open(os.devnull, "r+b") as nothing:
        process = server.start(["-m", "sleeper"], [nothing] * 3)
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (parent,) = (int(line.split()[1]) for line in status if line.startswith("PPid:"))
        os.kill(parent, signal.SIGKILL)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            server.start(["program.py"], [nothing] * 3)
    os.kill(process.pid, signal.SIGKILL)
