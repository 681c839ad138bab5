"""Somebody who types the commands of the documents, with real nodes, in one folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import POLL_SECONDS, free_port
from tests.pages.pages import Block, shows
from tests.waiting import wait_until

PATIENCE_SECONDS = 900.0
"""For one command: Spark on a busy machine takes minutes."""


class Reader:
    """Somebody who types the documents' commands, all in one folder. ``data`` stands for their /data.

    Each is what bash makes of it, with the real programs: here, at least, nothing is a fork of ``tests/commands.py``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master, self.slave, self.name_server = free_port(), free_port(), free_port()
        self.other, self.http, self.name_server_http = free_port(), free_port(), free_port()
        self.data = folder
        self.noted_time = ""
        self.kept = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._serial = count()
        self._environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def typed(self, command: str) -> str:
        """The command for this machine."""
        for words, others in (
            ("/data", str(self.data)),
            ("/lake", str(self.data / "lake")),
            ("/backup", str(self.data / "backup")),
            ("new-master:", "127.0.0.1:"),
            ("2026-11-22T09:30:00Z", self.noted_time),
            ("00000000000012345678", self.kept),
            ("ns-a:", "127.0.0.1:"),
            ("ns-b:", "127.0.0.1:"),
            ("broker-a.example.com:", "localhost:"),
            ("broker-b:10911", f"127.0.0.1:{self.slave}"),
            ("broker-a:", "127.0.0.1:"),
            ("10911", str(self.master)),
            ("10912", str(self.master + 1)),
            ("10921", str(self.slave)),
            ("10931", str(self.other)),
            ("9876", str(self.name_server)),
            ("9878", str(self.name_server_http)),
            ("9879", str(self.http)),
            ("local[*]", "local[2]"),
        ):
            command = command.replace(words, others)
        return command

    def starts(self, command: str, port: int) -> Path:
        """Start a node and wait for its port; returns its log. Adds ``--port`` if the command has none."""
        command = self.typed(command).partition(" #")[0]
        if "--port" not in command:
            command += f" --port={port}"
        log = self.folder / f"{next(self._serial)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._environ, stdout=output, stderr=output
            )
        self._processes.append(process)
        self.waits(lambda: _answers(port), process, log)
        return log

    def types(self, block: Block) -> None:
        """Type a block's commands in order: nodes go on in the background, and all others must end with 0.

        In a block ``console`` they must print what the page shows.
        """
        expected = dict(block.shown()) if block.language == "console" else {}
        for command in block.commands:
            if command.startswith("rmqha status "):  # until what was started before has come so far
                self.waits_until_it_runs(command)
            if command.startswith("twistd ") and "--once" not in command:
                log = self.starts(command, self._port_of(command))
                if "--role=slave" in command:
                    self.waits_for_line(log, "slave is IN_SYNC")
                continue
            printed = self.runs(command)
            lines = [self.typed(line) for line in expected.get(command, ())]
            assert shows(printed, lines), (command, lines, printed)

    def _port_of(self, command: str) -> int:
        """The port on which a node of this command listens."""
        if "rmqha-namesrv" in command:
            return self.name_server
        return self.slave if "--role=slave" in command else self.master

    def waits(self, reached: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(POLL_SECONDS)  # a process tells nobody what it has reached

    def waits_for_line(self, log: Path, text: str) -> None:
        self.waits(lambda: text in log.read_text(), self._processes[-1], log)

    def waits_until_copied(self, log: Path, store: str) -> None:
        """Until the state of a slave's store says that it has all that the master has now, queues and topics too."""
        end: int = json.loads(self.runs("rmqha status 127.0.0.1:10911 --json"))["written"]

        def is_copied() -> bool:
            state = NodeState.read(Path(self.typed(store)))
            if state is None or not (state.tables and state.tables["inSync"]):
                return False
            return end <= min(state.offsets.verified, state.dispatched or 0, state.topics_up_to or 0)

        self.waits(is_copied, self._processes[-1], log)

    def waits_until_confirmed(self, store: str) -> None:
        """Until the state of the last started node says that all of its log is confirmed. Jobs read no further."""

        def is_confirmed() -> bool:
            state = NodeState.read(Path(self.typed(store)))
            return state is not None and state.offsets.confirmed == state.offsets.written

        wait_until(is_confirmed, f"all of {store} is confirmed", PATIENCE_SECONDS)

    def runs(self, command: str) -> str:
        """A command that ends well; what it prints."""
        done = subprocess.run(
            ["bash", "-c", self.typed(command)],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def runs_python(self, program: str) -> str:
        """A program that ends well; what it prints."""
        path = self.folder / f"{next(self._serial)}.py"
        path.write_text(self.typed(program))
        return self.runs(f"python {path}")

    def waits_until_it_runs(self, command: str) -> None:
        """Run a command again and again until it ends with 0."""

        def runs() -> bool:
            typed = ["bash", "-c", self.typed(command)]
            return not subprocess.run(typed, cwd=self.folder, env=self._environ, capture_output=True).returncode

        wait_until(runs, command, PATIENCE_SECONDS, interval=0.5)

    def fails(self, command: str, code: int) -> str:
        """A command that ends with this exit code; what it prints."""
        done = subprocess.run(
            ["bash", "-c", self.typed(command)], cwd=self.folder, env=self._environ, capture_output=True, text=True
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def stops_last(self) -> None:
        """Ctrl-C for the node that was started last: it ends well."""
        process = self._processes.pop()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()

    def swaps_last_two(self) -> None:
        """Let ``stops_last`` stop the master, which was started before its slave."""
        self._processes[-2:] = reversed(self._processes[-2:])

    def stops(self) -> None:
        """Ctrl-C for all nodes, the last one first: each ends well."""
        while self._processes:
            self.stops_last()

    def kills(self) -> None:
        """End what still runs, at the end of a test."""
        for process in self._processes:
            process.kill()
            process.wait()

    def moves(self, section: str) -> None:
        """All nodes stopped, and an empty /data for the next section; the folder is the same."""
        self.stops()
        self.data = self.folder / section
        self.data.mkdir()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
