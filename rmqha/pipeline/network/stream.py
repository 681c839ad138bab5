"""One connection to an HA port, which sends a log from an offset on (spec/ha.md 2, 4, 17).

Its only report is the offset at which it starts, again and again: so nobody counts it as a replica. One of our nodes
gets a mark before it, which only readers send. A SYNC_MASTER of Java takes even the first report for an
acknowledgement: it is sent when no producer can be waiting any more for the bytes before it.
"""

import time
from collections import deque

from rmqha.pipeline.address import Access, ServingNode
from rmqha.pipeline.network.lines import NodeFailed, connect
from rmqha.wire.transfer import FrameError, TransferDecoder, encode_reader, encode_report

RECEIVE_BYTES = 256 << 10
LEAST_RECEIVE_BYTES = 4 << 10
REPORT_SECONDS = 5.0
"""A master closes a connection that reports nothing for 20 s."""
HEARTBEATS_THAT_PROVE_SILENCE = 2
"""Java sends one heartbeat after any pause of 5 s, even if it has data."""


class EndOfLog(Exception):
    """The node has no bytes from the offset that comes next, or has them no more."""


class RateLimit:
    """Keeps a task at a rate: ``spend`` waits. Its steps are so small that heartbeats are not late."""

    def __init__(self, bytes_a_second: int | None) -> None:
        self._rate = bytes_a_second
        self._due = time.monotonic()

    @property
    def receive_bytes(self) -> int:
        """The most bytes to receive at once: those of a second, or all."""
        return RECEIVE_BYTES if self._rate is None else max(LEAST_RECEIVE_BYTES, min(RECEIVE_BYTES, self._rate // 8))

    def spend(self, count: int) -> None:
        """These bytes have come. Waits until the next may come."""
        if self._rate is not None:
            now = time.monotonic()
            self._due = max(self._due, now) + count / self._rate
            time.sleep(self._due - now)  # a rate is a matter of time


class LogStream:
    """The log of one node from an offset on.

    ``at`` is the offset of the next byte to be read, and ``began`` the one from which on its bytes are of use.
    """

    def __init__(self, node: ServingNode, access: Access, start: int, settled: int, limit: RateLimit) -> None:
        """Raises NodeFailed, OptionError."""
        self.node = node
        self.at = self.began = start
        self._has_heard = False
        self._access = access
        self._limit = limit
        self._decoder = TransferDecoder()
        self._pending: deque[memoryview] = deque()
        self._heartbeats_in_a_row = 0
        # A request for 0 makes a master send its last segment. Byte 0 of a log is the high byte of a size, so 0.
        if start == 0:
            self._pending.append(memoryview(b"\0"))
        self._next = self._request = max(start, 1)
        if node.settling_seconds and self._request > settled:
            time.sleep(node.settling_seconds)  # nobody tells which producers wait: only time shows it
        self._socket = connect(node.place, access.tls)
        self._socket.settimeout(min(REPORT_SECONDS, access.silence_seconds))
        try:
            self._report(encode_reader() if node.knows_readers else b"")
        except NodeFailed:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def read_into(self, view: memoryview) -> int:
        """Fill the start of ``view`` with the next bytes of the log, at least one; returns how many.

        Raises NodeFailed, EndOfLog.
        """
        while not self._pending:
            if self._heartbeats_in_a_row >= HEARTBEATS_THAT_PROVE_SILENCE:
                raise EndOfLog
            self._receive()
        done = 0
        while self._pending and done < len(view):
            piece = self._pending.popleft()
            taken = piece[: len(view) - done]
            view[done : done + len(taken)] = taken
            done += len(taken)
            if len(taken) < len(piece):
                self._pending.appendleft(piece[len(taken) :])
        self.at += done
        return done

    def _report(self, before: bytes = b"") -> None:
        try:
            self._socket.sendall(before + encode_report(self._request))
        except OSError as error:
            raise self._failed(f"the connection was lost: {error}") from error
        self._reported_at = time.monotonic()

    def _receive(self) -> None:
        data = self._received()
        try:
            for frame in self._decoder.feed(data):
                self._take(frame.physic_offset, memoryview(frame.body))
        except FrameError as error:
            raise self._failed(f"it is not an HA port, or it uses TLS: {error}") from error
        self._limit.spend(len(data))

    def _received(self) -> bytes:
        """The next bytes of the connection."""
        since = time.monotonic()
        while True:
            if time.monotonic() - self._reported_at >= REPORT_SECONDS:
                self._report()
            try:
                data = self._socket.recv(self._limit.receive_bytes)
            except TimeoutError:
                if time.monotonic() - since >= self._access.silence_seconds:
                    raise self._failed(f"nothing came for {self._access.silence_seconds:g} s") from None
                continue
            except OSError as error:
                raise self._failed(f"the connection was lost: {error}") from error
            if not data:
                refused = "it closed the connection at once: it does not allow this address, or has not these bytes"
                raise self._failed("it closed the connection" if self._has_heard else refused)
            self._has_heard = True
            return data

    def _take(self, offset: int, body: memoryview) -> None:
        if offset != self._next:
            raise self._failed(f"it sends {offset}, but {self._next} comes next")
        if not body:
            self._heartbeats_in_a_row += 1
            return
        self._heartbeats_in_a_row = 0
        self._next += len(body)
        self._pending.append(body)

    def _failed(self, reason: str) -> NodeFailed:
        return NodeFailed(f"{self.node.place} at offset {self.at}: {reason}")
