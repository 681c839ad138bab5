"""Our nodes beside Java brokers, and a relay that sees what passes between them on the HA channel.

Needs no pytest. Every call blocks, and every wait has a deadline.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqha.ha.states import ReplicaState
from rmqha.store.nodestate import Offsets
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.transfer import ReportDecoder

from .rocketmq import LOCALHOST, POLL_INTERVAL_S, InteropError, commit_log_sha256, runtime_info

WAIT_S: Final = 60.0
RELAY_READ_BYTES: Final = 16 << 10


def wait_until(condition: Callable[[], bool], what: str, timeout: float = WAIT_S) -> None:
    """Wait until the condition holds; `what` completes "waited for" in the error if it never does."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise InteropError(f"waited {timeout} s for {what}")
        time.sleep(POLL_INTERVAL_S)


def assert_equal_logs(one: Path, other: Path, start: int, end: int) -> None:
    """The commit logs of two stores hold the same bytes from `start` up to `end`."""
    same = commit_log_sha256(one, start, end) == commit_log_sha256(other, start, end)
    assert same, f"{one} and {other} differ between {start} and {end}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a node ended: its exit status, and the lines that it said on stderr."""

    status: int
    complaints: tuple[str, ...] = ()


class RmqhaNode(TwistdNode):
    """A node of ours beside Java brokers. It may be started again once it ended."""

    def ended(self) -> Ended:
        """Wait until it ended by itself."""
        return Ended(self.wait(WAIT_S), tuple(self.errors()))

    def stop_cleanly(self) -> None:
        """SIGTERM must end it with status 0 and without a word on stderr."""
        self.stop(WAIT_S)
        assert self.ended() == Ended(0)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def offsets(self) -> Offsets:
        """The offsets that state.json tells."""
        state = self.state()
        assert state is not None, "a node writes state.json as it starts"
        return state.offsets

    def wait_for(self, wanted: ReplicaState) -> None:
        """Wait until state.json names this state."""
        self.wait_for_state(lambda state: state.state == wanted.name, f"the state {wanted.name}", WAIT_S)

    def wait_for_offset(self, offset: int) -> None:
        """Wait until its proved log reaches `offset`, as it tells on its remoting port."""
        address = f"{LOCALHOST}:{self.port('remoting')}"

        def reached() -> bool:
            assert self.is_running, self.events()[-10:]
            return int(runtime_info(address)["commitLogMaxOffset"]) >= offset

        wait_until(reached, f"our node to reach {offset}")


@dataclass(frozen=True, slots=True)
class SeenReport:
    """A report of a slave: when (monotonic seconds), on which connection (from 0 on), and the offset."""

    time: float
    connection: int
    offset: int


class RecordingRelay:
    """Stands between slaves and the HA port of their master; keeps every report, and passes on as much as it is told.

    It has no opinion on what passes. A slave's connection lasts as long as the one to the master, and no longer.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._changed = threading.Condition()
        self._allowance: float = 0
        self._open: dict[int, tuple[socket.socket, ...]] = {}
        self._connections = 0
        self.reports: list[SeenReport] = []
        self._listener = socket.create_server((LOCALHOST, 0))
        self.address = f"{LOCALHOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Drop all connections and accept no more."""
        _shut_down(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def let_through(self, count: float) -> None:
        """Pass so many more bytes on to slaves, then hold back the rest; `math.inf` is all."""
        with self._changed:
            self._allowance += count
            self._changed.notify_all()

    def wait_until_passed(self) -> None:
        """Wait until all that was to be let through has passed."""
        wait_until(lambda: self._allowance <= 0, f"{self._allowance} bytes to pass to a slave")

    def wait_until_quiet(self) -> None:
        """Wait until no connection is left, so that every report made on one is in `reports`."""
        wait_until(lambda: not self._open, "the end of the connections")

    def cut(self) -> None:
        """Drop the connections that are there; what was held back is lost."""
        with self._changed:
            for one in (one for pair in self._open.values() for one in pair):
                _shut_down(one, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                slave, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                number, self._connections = self._connections, self._connections + 1
                self._open[number] = (slave,)
            threading.Thread(target=self._relay, args=(slave, number), daemon=True).start()

    def _relay(self, slave: socket.socket, number: int) -> None:
        try:
            with slave, suppress(OSError), _connect(self._target) as master:
                with self._changed:
                    self._open[number] = (slave, master)
                down = threading.Thread(target=self._pass_log, args=(master, slave, number), daemon=True)
                down.start()
                self._pass_reports(slave, master, number)
                down.join()
        finally:
            with self._changed:
                self._open.pop(number, None)

    def _pass_log(self, master: socket.socket, slave: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := master.recv(self._allowed(number)):
                slave.sendall(data)
                with self._changed:
                    self._allowance -= len(data)
        _shut_down(slave, socket.SHUT_WR)  # a slave may still have something to say

    def _allowed(self, number: int) -> int:
        """How much may pass now, at least something; 0 once the slave is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._allowance > 0 or number not in self._open)
            return int(min(RELAY_READ_BYTES, self._allowance)) if number in self._open else 0

    def _pass_reports(self, slave: socket.socket, master: socket.socket, number: int) -> None:
        decoder = ReportDecoder()
        with suppress(OSError):
            while data := slave.recv(RELAY_READ_BYTES):
                now = time.monotonic()
                self.reports += [SeenReport(now, number, offset) for offset in decoder.feed(data)]
                with suppress(OSError):  # what a slave says counts though its master is gone
                    master.sendall(data)
        _shut_down(master, socket.SHUT_RDWR)
        with self._changed:
            self._open.pop(number, None)
            self._changed.notify_all()


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), WAIT_S)
    connection.settimeout(None)
    return connection


def _shut_down(one: socket.socket, how: int) -> None:
    with suppress(OSError):
        one.shutdown(how)
