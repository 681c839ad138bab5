"""``rmqha`` as somebody types it, with the words of a test."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.forkserver import SERVER
from tests.waiting import WAIT_SECONDS

RMQHA: Final = str(Path(sys.executable).with_name("rmqha"))
"""The command itself: for a test that sends it signals, gives it a terminal, a limit or an environment of its own."""
TRIES: Final = 20
"""Of a command that could not reach the coordinator."""


def rmqha_bytes(*words: object, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A whole run, with these lines as its input.

    Under pytest it is a fork of a process that has imported all commands: the import takes longer than most of them.
    """
    command = [RMQHA, *map(str, words)]
    if SERVER is None:
        return subprocess.run(command, input=lines, capture_output=True, timeout=WAIT_SECONDS, check=False)
    with TemporaryFile() as typed, TemporaryFile() as printed, TemporaryFile() as complained:
        typed.write(lines)
        typed.seek(0)
        process = SERVER.start(command, (typed, printed, complained))
        try:
            status = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
        printed.seek(0)
        complained.seek(0)
        return subprocess.CompletedProcess(command, status, printed.read(), complained.read())


def rmqha(*words: object, lines: str = "") -> subprocess.CompletedProcess[str]:
    """The same, and what it prints as text."""
    done = rmqha_bytes(*words, lines=lines.encode())
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def until_connected(run: Callable[[], subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """Run ``rmqha cluster``; again if it could not reach the coordinator in its 2 seconds, on a busy machine."""
    for _ in range(TRIES):
        done = run()
        if done.returncode != ExitCode.CANNOT_CONNECT:
            break
    return done


def output_of(*words: object) -> str:
    """What a run that ends well prints."""
    done = rmqha(*words)
    assert done.returncode == 0, done
    return done.stdout
