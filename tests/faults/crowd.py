"""Many peers of a master in one process: raw sockets that report, or send what they like, and read all that comes."""

import selectors
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

from rmqha.wire.transfer import REPORT_HEADER, TransferDecoder
from tests.waiting import WAIT_SECONDS, wait_until

PEERS_OF_ONE_ADDRESS = 100
READ_BYTES = 1 << 16
FEW = 20
"""So many find place in the queue of a port that listens with the usual backlog."""


class Peer:
    """One connection. ``alive`` until the master ends it; ``read_bytes`` have come."""

    def __init__(self, number: int, port: int) -> None:
        self.alive = True
        self.read_bytes = 0
        self.socket = socket.socket()
        self.socket.bind((f"127.0.{1 + number // PEERS_OF_ONE_ADDRESS}.1", 0))
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        """Send it, or find out that the connection is gone."""
        try:
            self.socket.send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.alive = False

    def read(self) -> None:
        """Read what has come."""
        try:
            data = self.socket.recv(READ_BYTES)
        except OSError:
            data = b""
        self.read_bytes += len(data)
        self.alive = bool(data)


class Crowd:
    """So many peers; each sends ``data`` as soon as it has connected, and again every ``interval`` seconds.

    ``at_once`` of them connect in the same moment, then the next. A context manager, run by a thread.
    """

    def __init__(self, port: int, count: int, data: bytes, interval: float, at_once: int = FEW) -> None:
        self._at_once = at_once
        self._port = port
        self._count = count
        self._connecting = 0
        self._data = data
        self._interval = interval
        self._selector = selectors.DefaultSelector()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peers: list[Peer] = []

    @property
    def alive(self) -> int:
        """How many connections there are."""
        return sum(peer.alive for peer in self.peers)

    def wait_until_served(self) -> None:
        """Wait until the master has sent something to everyone."""
        self.wait_until_connected()
        wait_until(lambda: all(peer.read_bytes for peer in self.peers), "everyone to be served")

    def wait_until_connected(self) -> None:
        """Wait until all have connected, as far as they can know."""
        wait_until(lambda: len(self.peers) == self._count and not self._connecting, "everyone to be connected")

    def _run(self) -> None:
        next_round = time.monotonic() + self._interval
        while not self._ending.is_set():
            if not self._connecting:
                self._connect_some()
            for key, events in self._selector.select(0.05):
                self._serve(key.data, events)
            if time.monotonic() >= next_round:
                next_round += self._interval
                for peer in self.peers:
                    if peer.alive:
                        peer.send(self._data)

    def _connect_some(self) -> None:
        while self._connecting < self._at_once and len(self.peers) < self._count:
            self._connecting += 1
            self.peers.append(Peer(len(self.peers), self._port))
            self._selector.register(self.peers[-1].socket, selectors.EVENT_WRITE, self.peers[-1])

    def _serve(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._connecting -= 1
            peer.send(self._data)
            self._selector.modify(peer.socket, selectors.EVENT_READ, peer)
        else:
            peer.read()
        if not peer.alive:
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        for peer in self.peers:
            with suppress(OSError):
                peer.socket.close()
        self._selector.close()


def read_log(port: int, start: int, end: int) -> bytes:
    """What a master's slave that asks for ``start`` gets, up to ``end``."""
    decoder, content = TransferDecoder(), bytearray()
    with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as connection:
        connection.sendall(REPORT_HEADER.pack(start))
        while start + len(content) < end:
            data = connection.recv(READ_BYTES)
            assert data, f"the master ended it at {start + len(content)}"
            for transfer in decoder.feed(data):
                assert transfer.physic_offset == start + len(content)
                content += transfer.body
    return bytes(content)
