"""A segment of a remote log. If the node that sends it dies, another one goes on at the same byte."""

import time

import numpy as np

from rmqha.pipeline.address import RemoteLog, ServingNode, shown
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.pipeline.network.stream import EndOfLog, LogStream, RateLimit
from rmqha.store.errors import StoreError
from rmqha.store.log.splits import Segment
from rmqha.wire.columns import Bytes

PAUSES_SECONDS = (0.5, 2.0)
"""After each node has failed in vain, before all are tried again."""
SKIP_BYTES = 1 << 20
"""A gap of at most this size is received and dropped; a longer one costs a new connection."""
COMPARED_BYTES = 4 << 10
"""Of what one node has sent, the next one must send the same last bytes."""


class NoNodeLeft(StoreError):
    """No node of a broker sends the bytes that a task needs."""


class NetworkSegment(Segment):
    """The bytes of a remote log, requested where they are read and received as far as they are read.

    What was read last is kept, because a reader begins again with the record that was cut off.
    """

    def __init__(self, path: str, base: int) -> None:
        """``path`` is that of a ``RemoteLog``. Nothing is connected yet."""
        super().__init__(shown(path), base)
        self._log = RemoteLog.parse(path)
        self._limit = RateLimit(self._log.access.max_rate)
        self._stream: LogStream | None = None
        self._turn = 0
        self._kept: Bytes = np.empty(0, np.uint8)
        self._kept_at = base
        self._sender: ServingNode | None = None

    @property
    def broker(self) -> str:
        """The brokerName."""
        return self._log.broker

    @property
    def broker_id(self) -> int:
        """The brokerId of the node that has sent the last bytes."""
        return (self._sender or self._log.nodes[0]).broker_id

    def close(self) -> None:
        self._hang_up()

    def read(self, offset: int, size: int) -> Bytes:
        """The bytes from ``offset`` of the log on; fewer if all nodes say that their logs end before.

        Raises NoNodeLeft, OptionError.
        """
        size = max(0, min(size, self._log.limit - offset))
        kept_end = self._kept_at + len(self._kept)
        if self._kept_at <= offset and offset + size <= kept_end:
            return self._kept[offset - self._kept_at :][:size]
        buffer = np.empty(size, np.uint8)
        known = max(0, kept_end - offset) if self._kept_at <= offset else 0
        if known:
            buffer[:known] = self._kept[offset - self._kept_at :]
        found = buffer[: self._fill(buffer, offset, known)]
        self._kept, self._kept_at = found, offset
        return found

    def _fill(self, buffer: Bytes, offset: int, done: int) -> int:
        """Receive the bytes of the buffer after the first ``done``; returns how many there are now."""
        failures: list[str] = []
        ended: set[ServingNode] = set()
        while done < len(buffer):
            try:
                stream = self._stream_at(offset + done, buffer[:done], offset)
                count = stream.read_into(buffer.data[done:])
            except EndOfLog:
                ended.add(self._node)
                if ended == set(self._log.nodes):
                    break
                self._failed(NodeFailed(f"{self._node.place} has no bytes from {offset + done} on"), failures)
            except NodeFailed as error:
                self._failed(error, failures)
            else:
                done += count
                self._sender = stream.node
                failures, ended = [], set()
        return done

    @property
    def _node(self) -> ServingNode:
        return self._log.nodes[self._turn % len(self._log.nodes)]

    def _failed(self, error: NodeFailed, failures: list[str]) -> None:
        """Turn to the next node, or to the same one if it has sent what we needed. Raises NoNodeLeft in the end."""
        has_helped = self._stream is not None and self._stream.at > self._stream.began
        self._hang_up()
        if has_helped:
            return  # our own pause may have been too long for it
        failures.append(str(error))
        self._turn += 1
        rounds, left = divmod(len(failures), len(self._log.nodes))
        if left:
            return
        if rounds > len(PAUSES_SECONDS):
            raise NoNodeLeft(f"no node sends the log of {self.broker}: {'; '.join(dict.fromkeys(failures))}") from error
        time.sleep(PAUSES_SECONDS[rounds - 1])  # a node that starts, or leads from now on, tells us nothing

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _stream_at(self, at: int, before: Bytes, before_at: int) -> LogStream:
        """The connection, of which ``at`` is the next byte. ``before`` are bytes of the log from ``before_at`` on.

        Raises NodeFailed, EndOfLog, OptionError.
        """
        if self._stream is not None and self._stream.at <= at <= self._stream.at + SKIP_BYTES:
            self._skip(self._stream, at)
            return self._stream
        self._hang_up()
        known = before[:0] if self._sender in (None, self._node) else self._last_bytes(before, before_at)
        self._stream = self._opened(at - len(known))
        if len(known):
            self._compare(self._stream, known)
        return self._stream

    def _last_bytes(self, before: Bytes, before_at: int) -> Bytes:
        """The last bytes that were received: ``before``, which start at ``before_at``, and those of the read before."""
        earlier = self._kept[: max(0, before_at - self._kept_at)]
        follows = self._kept_at + len(earlier) == before_at
        return np.concatenate([earlier if follows else before[:0], before])[-COMPARED_BYTES:]

    def _opened(self, start: int) -> LogStream:
        return LogStream(self._node, self._log.access, start, self._log.settled, self._limit)

    @staticmethod
    def _skip(stream: LogStream, at: int) -> None:
        with memoryview(bytearray(min(SKIP_BYTES, at - stream.at))) as dropped:
            while stream.at < at:
                stream.read_into(dropped[: at - stream.at])

    def _compare(self, stream: LogStream, known: Bytes) -> None:
        start, end = stream.at, stream.at + len(known)
        stream.began = end
        received = np.empty(len(known), np.uint8)
        while stream.at < end:
            stream.read_into(received.data[stream.at - start :])
        if not np.array_equal(received, known):
            raise NodeFailed(f"{stream.node.place} has other bytes before {end} than the node that sent them first")
