"""A node as its own twistd process, for tests, benchmarks and the demo: start it, watch it, stop or kill it."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self, TypeVar

from rmqha.kit.events import Event
from rmqha.store.nodestate import NodeState
from rmqha.testing.forkserver import SERVER, ForkedProcess, start_with_pipes

POLL_SECONDS = 0.02
POLL_MOST_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
"""A wait that is over when something has happened; a busy machine may take long."""

Found = TypeVar("Found")


def pause_after(began: float, interval: float = POLL_SECONDS) -> None:
    """Sleep before another look: ``interval`` s, or three times as long as the look took that began then, up to 1 s.

    So who looks into a long log takes no more than a quarter of a processor, which the node needs to get on.
    """
    pause = max(interval, min(POLL_MOST_SECONDS, 3 * (time.monotonic() - began)))
    time.sleep(pause)  # a node in another process tells of itself in its log and its files only


def logged_events(path: Path, event: Event | None = None, start: int = 0, /, **fields: Any) -> list[dict[str, Any]]:
    """The lines of a JSON log from byte ``start`` on: all, or those of an event with these fields. Raises TypeError.

    A file that does not exist has no lines.
    """
    if event is not None and not isinstance(event, Event):
        raise TypeError(f"{event!r} is not an Event: the text of a log line may change")
    if not {"message", "event"}.isdisjoint(fields):
        raise TypeError("choose events by Event and fields, not by their text")
    if not path.exists():
        return []
    with path.open("rb") as log:
        log.seek(start)
        lines = log.read().splitlines()
    found = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    return [line for line in found if (event is None or line.get("event") == event) and fields.items() <= line.items()]


class NodeError(Exception):
    """A node did not do what was expected. The text ends with its last log lines."""


class TwistdNode:
    """``twistd -n rmqha`` with JSON logs, in the folder ``work``. A context manager: on exit it kills the process.

    ``twistd_options`` come before the plugin's name. ``prefix`` comes first: a command that executes the rest, from the
    next start on. Without it the process is a fork if ``forkserver.SERVER`` is there.
    """

    plugin: ClassVar[str] = "rmqha"
    process_group: int | None = None
    """0 puts the process into a group of its own, which a terminal's Ctrl-C does not reach. Set it before the start."""

    def __init__(
        self,
        work: Path,
        options: Sequence[str],
        store: Path | None = None,
        name: str = "node",
        twistd_options: Sequence[str] = ("--pidfile=",),
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.work = work
        self.store = store if store is not None else work / f"{name}-store"
        self._options = [f"--store={self.store}", "--bind=127.0.0.1", "--log-format=json", *options]
        self._twistd_options = twistd_options
        self.prefix = prefix
        self.log_path = work / f"{name}.log"
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._log_start = 0

    def start(self) -> Self:
        """Start the process. It runs when this returns, but may not have opened its store yet."""
        self.work.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = self._spawn(log)
        return self

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        twistd = str(Path(sys.executable).with_name("twistd"))
        words = [twistd, "-n", *self._twistd_options, self.plugin, *map(str, self._options)]
        with open(os.devnull, "rb") as nothing:
            if SERVER is not None and not self.prefix:
                return SERVER.start(words, (nothing, log, log), self.process_group)
            return subprocess.Popen(
                [*self.prefix, *words], stdin=nothing, stdout=log, stderr=log, process_group=self.process_group
            )

    @property
    def pid(self) -> int:
        """The process's id. Raises NodeError if it was never started."""
        if self._process is None:
            raise NodeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def events(self, event: Event | None = None, /, **fields: Any) -> list[dict[str, Any]]:
        """The lines of the log since the last start, oldest first: all, or those of an event with these fields.

        Lines are chosen by name and fields, not by their text: the text may change. Raises TypeError for a text.
        """
        return logged_events(self.log_path, event, self._log_start, **fields)

    def errors(self) -> list[str]:
        """Lines since the last start that are not events: the output on stderr."""
        return [line for line in self._tail().splitlines() if not line.startswith("{")]

    def _tail(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", "replace")

    def state(self) -> NodeState | None:
        """The content of state.json; None before the node has written one."""
        return NodeState.read(self.store)

    def wait_for_event(self, event: Event, /, **fields: Any) -> dict[str, Any]:
        """The first line since the last start of this event with all these fields. Raises NodeError, TypeError."""
        what = f"{event!s} with {fields}" if fields else f"{event!s}"
        return self.wait_until_found(lambda: next(iter(self.events(event, **fields)), None), what, PATIENCE_SECONDS)

    def wait_for_state(
        self, reached: Callable[[NodeState], bool], what: str, seconds: float = PATIENCE_SECONDS
    ) -> NodeState:
        """The first state.json that ``reached`` accepts. Raises NodeError."""

        def look() -> NodeState | None:
            state = self.state()
            return state if state is not None and reached(state) else None

        return self.wait_until_found(look, what, seconds)

    def wait_for_tables(self) -> None:
        """Until this slave has its master's topics, groups and offsets. Raises NodeError."""
        self.wait_for_state(lambda state: bool(state.tables and state.tables["inSync"]), "the master's tables")

    def wait_until_found(self, look: Callable[[], Found | None], what: str, seconds: float) -> Found:
        """The first result of ``look`` that is not None. ``what`` names it in the error. Raises NodeError."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            running = self.is_running  # check this before the look: what a process did before its end counts
            found = look()
            if found is not None:
                return found
            if not running:
                raise NodeError(f"{self.name} ended before {what}:\n{self._tail()[-3000:]}")
            if time.monotonic() > deadline:
                raise NodeError(f"{self.name}: no {what} within {seconds:g} s:\n{self._tail()[-3000:]}")
            pause_after(began)

    def port(self, purpose: str = "ha", seconds: float = PATIENCE_SECONDS) -> int:
        """The port on which the node listens for ``purpose``: ha, remoting or fast remoting. Raises NodeError."""

        def look() -> int | None:
            return next((int(event["port"]) for event in self.events(Event.LISTENING, purpose=purpose)), None)

        return self.wait_until_found(look, f"port of {purpose}", seconds)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait until the node exits by itself; returns the exit status. Raises NodeError."""
        assert self._process is not None, "it was started"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise NodeError(f"{self.name} did not end within {seconds:g} s:\n{self._tail()[-3000:]}") from None

    def stop(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Send SIGTERM; returns the exit status. Raises NodeError."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class NameServerNode(TwistdNode):
    """``twistd -n rmqha-namesrv``: a name server."""

    plugin = "rmqha-namesrv"

    def __init__(self, work: Path, options: Sequence[str] = ("--port=0",), name: str = "namesrv") -> None:
        TwistdNode.__init__(self, work, (), name=name)
        self.folder = work / name
        self._options = [f"--folder={self.folder}", "--bind=127.0.0.1", "--log-format=json", *options]

    @property
    def address(self) -> str:
        """Its address, host:port. Raises NodeError."""
        return f"127.0.0.1:{self.port('name server')}"


class PutNode(TwistdNode):
    """A master that puts messages on command: ``rmqha.testing.putnode`` in a process of its own."""

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        return start_with_pipes("rmqha.testing.putnode", [*map(str, self._options)], log, prefix=self.prefix)

    def tell(self, count: int, **load: Any) -> None:
        """Start putting ``count`` messages. ``load`` holds further fields of the command (see
        ``rmqha.testing.putnode``).
        """
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps({"count": count, **load}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """Wait for the next line of its answer; None when the node has ended."""
        assert self._process is not None, "it was started"
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def put(self, count: int, **load: Any) -> dict[str, Any]:
        """Put ``count`` messages and wait for all answers; returns the summary. Raises NodeError if the node ends
        before.
        """
        self.tell(count, **load)
        while (answer := self.answer()) is not None:
            if "statuses" in answer:
                return answer
        raise NodeError(f"{self.name} ended before it had put {count} messages:\n{self._tail()[-3000:]}")


PORTS = range(20_000, 32_000, 10)
"""The ports that ``free_port`` returns: below those that Linux gives to clients."""
_claims: dict[int, socket.socket] = {}


def free_port() -> int:
    """A free base port on 127.0.0.1. Its fast port, two below, and its HA port, one above, are free too.

    No other process gets the same port while this process lives. Raises NodeError if no port is free.
    """
    for base in random.sample(PORTS, len(PORTS)):
        if claim_port(base) and all(map(_is_free, (base - 2, base, base + 1))):
            return base
    raise NodeError(f"no free ports between {PORTS.start} and {PORTS.stop}")


def claim_port(base: int) -> bool:
    """Whether this base port is ours from now on: no process has claimed it before, this one included.

    A socket in Linux's abstract namespace is the claim. It goes when the process ends, however it ends.
    """
    if base in _claims:
        return False
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rmqha-port-{base}")
    except OSError:
        claim.close()
        return False
    _claims[base] = claim
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
