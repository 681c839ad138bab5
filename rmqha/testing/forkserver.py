"""Starts our programs as forks of a process that has imported what they need: a start takes a tenth of the time.

``ForkServer`` starts that process, ``python -m rmqha.testing.forkserver FD``, and talks to it over a socket: a
datagram with the words of a command and its three streams asks for a process, and each answer tells of one that has
started or ended. The reactor is not among what is imported: each process installs its own.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from threading import Lock
from typing import IO, Any, Final

MAX_REQUEST_BYTES = 1 << 17
POLL_SECONDS = 0.01
IMPORTED = ("twisted.scripts.twistd", "rmqha.tap", "rmqha.namesrv_tap", "rmqha.web.nodeweb", "rmqha.web.namesrvweb")
"""And the module of each command."""
OF_PYTHON = ("PYTHON", "LANG", "LC_", "COVERAGE")
"""So begin the variables that decide how Python starts: a fork has started already."""
EVENT = "rmqha.testing.fork"
"""The audit event of a start, as ``subprocess.Popen`` is one: tests/conftest.py knows it."""


class ForkedProcess:
    """A process that the server has started, with the part of ``subprocess.Popen`` that its users need."""

    def __init__(self, server: "ForkServer", pid: int, words: Sequence[str]) -> None:
        self.pid = pid
        self.args = words
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self._server = server

    @property
    def returncode(self) -> int | None:
        """The exit status of an ended process, or the negative number of the signal that ended it."""
        return self._server.ended.get(self.pid)

    def poll(self) -> int | None:
        """The same, after a look whether it has ended."""
        self._server.look()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_SECONDS)  # as subprocess does: threads share the socket that tells of ends
        return status

    def kill(self) -> None:
        """Send SIGKILL, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()


class ForkServer:
    """Starts the server with the first process. Threads may share it. Its processes outlive it."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        """The exit statuses of ended processes by id. An id may come again: each start forgets it."""
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._of_python: dict[str, str] = {}

    def start(
        self, words: Sequence[str], streams: Sequence[IO[bytes]], process_group: int | None = None
    ) -> ForkedProcess:
        """Run ``python`` with these words, in this process's folder and environment.

        A script's path comes first, or ``-m`` and a module. ``streams`` are its standard input, output and errors. Its
        umask and limits are those of the server.

        Raises ValueError if words and environment are longer than MAX_REQUEST_BYTES, or if a variable that decides how
        Python starts is not as it was when the server started; OSError.
        """
        sys.audit(EVENT, words)
        request = {"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ), "group": process_group}
        content = json.dumps(request).encode()
        if len(content) > MAX_REQUEST_BYTES:
            raise ValueError(f"words and environment have {len(content)} bytes: more than {MAX_REQUEST_BYTES}")
        with self._lock:
            server = self._connect()
            if _of_python() != self._of_python:
                raise ValueError(f"no fork gets {_of_python()}: the server started with {self._of_python}")
            socket.send_fds(server, [content], [stream.fileno() for stream in streams])
            while (pid := self._note(server.recv(MAX_REQUEST_BYTES))) is None:
                pass
            return ForkedProcess(self, pid, words)

    def look(self) -> None:
        """Note which processes have ended."""
        with self._lock:
            assert self._socket is not None, "a process was started"
            while True:
                try:
                    self._note(self._socket.recv(MAX_REQUEST_BYTES, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    return

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, "-P", "-m", __name__, str(other.fileno())]
                subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
            self._of_python = _of_python()
        return self._socket

    def _note(self, answer: bytes) -> int | None:
        """The id of the process that has started, if the answer is of one. Raises OSError if the server is gone."""
        if not answer:
            raise ConnectionResetError("the server of forks has ended")
        change: dict[str, int] = json.loads(answer)
        if "started" in change:
            self.ended.pop(change["started"], None)
            return change["started"]
        self.ended[change["ended"]] = change["status"]
        return None


SERVER: Final = ForkServer() if "RMQHA_FORKS" in os.environ else None
"""What starts nodes, proxies and the tests' commands, if the environment asks for forks."""


def start_with_pipes(
    module: str,
    options: Sequence[str],
    errors: IO[bytes],
    output: IO[bytes] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Run a module with pipes as its standard input and output: as a fork, if SERVER is there and there is no prefix.

    ``output`` takes the place of the second pipe. Raises ValueError, OSError.
    """
    if SERVER is None or prefix:
        words, pipe = [*prefix, sys.executable, "-m", module, *options], subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=output or pipe, stderr=errors)
    (its_input, ours), (theirs, its_output) = os.pipe(), os.pipe()
    with open(its_input, "rb") as stdin, open(its_output, "wb") as stdout:
        process = SERVER.start(["-m", module, *options], (stdin, output or stdout, errors))
    process.stdin, process.stdout = os.fdopen(ours, "wb"), os.fdopen(theirs, "rb")
    return process


def _of_python() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(OF_PYTHON)}


def serve(server: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Start a process for each request. Returns only in such a process: the request, and its three streams.

    The server ends when its client does.
    """
    ends, wakeup = socket.socketpair()
    with server, ends, wakeup, selectors.DefaultSelector() as selector:
        for each in (ends, wakeup):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wakeup.fileno())
        selector.register(server, selectors.EVENT_READ)
        selector.register(ends, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is ends:
                    ends.recv(4096)
                    _tell_ends(server)
                    continue
                message, streams, _, _ = socket.recv_fds(server, MAX_REQUEST_BYTES, 3)
                if not message:
                    os._exit(0)
                request: dict[str, Any] = json.loads(message)
                if pid := os.fork():
                    for stream in streams:
                        os.close(stream)
                    server.send(json.dumps({"started": pid}).encode())
                    continue
                signal.set_wakeup_fd(-1)
                return request, streams


def _tell_ends(server: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        server.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be as a process is that has just been started for the request."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["group"] is not None:
        os.setpgid(0, request["group"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    assert isinstance(sys.stdout, TextIOWrapper), "it is the interpreter's"
    sys.stdout.reconfigure(line_buffering=os.isatty(1) and not sys.stdout.write_through)


def _run(words: list[str]) -> None:
    """Do what ``python`` does with these words."""
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Import what programs need, serve, and be a program in each fork."""
    from rmqha.cli import MODULES

    for name in (*IMPORTED, *(f"rmqha.cli.{each}" for each in MODULES.values())):
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules, "a fork would share its descriptors"
    gc.collect()
    gc.freeze()  # a look for garbage would copy all pages that forks share
    request, streams = serve(socket.socket(fileno=int(sys.argv[1])))
    _become(request, streams)
    _run(request["words"])


if __name__ == "__main__":
    main()
