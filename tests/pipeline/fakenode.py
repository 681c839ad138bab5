"""A false HA port for tests: it sends what a test tells it to, and remembers what it was told."""

import socket
import threading
from collections.abc import Callable
from typing import Self

from rmqha.pipeline.address import Place
from rmqha.wire.transfer import READER, TRANSFER_HEADER, ReportDecoder

Behaviour = Callable[["FakeNode", socket.socket, int], None]
"""What happens on a connection after its first report, which is given. Then the connection is closed."""


class FakeNode:
    """Serves ``log`` at a port of this machine, by ``behaviours`` in turn; the last one stays. A context manager."""

    def __init__(self, log: bytes, *behaviours: Behaviour, batch_bytes: int = 1000) -> None:
        self.log = log
        self.reports: list[list[int]] = []
        """All reports of each connection; READER is one too."""
        self._batch_bytes = batch_bytes
        self._behaviours = list(behaviours or [send_all])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def place(self) -> Place:
        """Where it listens."""
        return Place(*self._listener.getsockname()[:2])

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._lines.append(line)
            behaviour = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
            thread = threading.Thread(target=self._serve, args=(line, behaviour), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket, behaviour: Behaviour) -> None:
        reports: list[int] = []
        self.reports.append(reports)
        decoder = ReportDecoder()
        try:
            while not [report for report in reports if report != READER]:
                reports += decoder.feed(line.recv(64))
            behaviour(self, line, reports[-1])
            line.shutdown(socket.SHUT_WR)
            while data := line.recv(64):
                reports += decoder.feed(data)
        except OSError:
            pass
        finally:
            line.close()

    def frames(self, start: int, end: int | None = None) -> bytes:
        """The log from ``start`` on, in frames."""
        end = len(self.log) if end is None else end
        pieces = [(at, self.log[at : min(end, at + self._batch_bytes)]) for at in range(start, end, self._batch_bytes)]
        return b"".join(frame(at, piece) for at, piece in pieces)


def frame(offset: int, body: bytes = b"") -> bytes:
    """A transfer frame; without a body it is a heartbeat."""
    return TRANSFER_HEADER.pack(offset, len(body)) + body


def send_all(node: FakeNode, line: socket.socket, start: int) -> None:
    """As a master does: the whole log, and then two heartbeats."""
    line.sendall(node.frames(start) + 2 * frame(len(node.log)))
    line.recv(1)


def send_to(end: int) -> Behaviour:
    """Send the log up to ``end``, and close the connection."""
    return lambda node, line, start: line.sendall(node.frames(start, max(start, end)))


def send(data: bytes) -> Behaviour:
    """Send these bytes, and close the connection."""
    return lambda node, line, start: line.sendall(data)


def send_nothing(node: FakeNode, line: socket.socket, start: int) -> None:
    """Keep the connection, and say nothing."""
    line.recv(1)
