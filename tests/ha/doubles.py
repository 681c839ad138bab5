"""Logs for tests, transports that end like sockets, and endpoints whose answers the test gives."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactor, StringTransport
from twisted.logger import LogEvent, capturedLogs, formatEvent
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.protocol import HAMasterProtocol
from rmqha.ha.slave.protocol import IConnectionOwner
from rmqha.ha.slave.replica import MasterView
from rmqha.store.interfaces import ICommitLog
from rmqha.testing.memory import MemoryCommitLog
from rmqha.testing.records import make_record
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, encode_blank, encode_record
from rmqha.wire.transfer import TRANSFER_HEADER, ReportDecoder, Transfer, TransferDecoder, encode_transfer

SEGMENT_SIZE = 4096
PEER = IPv4Address("TCP", "192.0.2.7", 40123)
PEER_NAME = "192.0.2.7:40123"


@dataclass(frozen=True)
class LogImage:
    """A log's bytes from ``start`` on, and the offsets between its records and blanks, both ends among them."""

    content: bytes
    boundaries: tuple[int, ...]
    messages: tuple[int, ...]
    start: int = 0
    segment_size: int = SEGMENT_SIZE

    @property
    def end(self) -> int:
        return self.start + len(self.content)

    @property
    def last_message(self) -> int:
        return self.messages[-1]

    def bytes_at(self, start: int, end: int) -> bytes:
        """The bytes of these offsets."""
        return self.content[start - self.start : end - self.start]

    def transfers(self, start: int | None = None, end: int | None = None, batch_bytes: int = 1000) -> list[Transfer]:
        """These offsets as a master sends them: frames of at most ``batch_bytes``, none across a segment's end."""
        at = self.start if start is None else start
        end = self.end if end is None else end
        transfers = []
        while at < end:
            size = min(batch_bytes, end - at, self.segment_size - at % self.segment_size)
            transfers.append(Transfer(at, self.bytes_at(at, at + size)))
            at += size
        return transfers

    def with_byte_changed(self, offset: int, by: int = 0xFF) -> "LogImage":
        """This log with one byte changed. Its records are not verified again."""
        changed = bytearray(self.content)
        changed[offset - self.start] ^= by
        return LogImage(bytes(changed), self.boundaries, self.messages, self.start, self.segment_size)

    def prefix(self, end: int) -> "LogImage":
        """This log up to one of its boundaries."""
        assert end in self.boundaries
        return LogImage(
            self.bytes_at(self.start, end),
            tuple(offset for offset in self.boundaries if offset <= end),
            tuple(offset for offset in self.messages if offset < end),
            self.start,
            self.segment_size,
        )


def make_image(
    body_sizes: Sequence[int], segment_size: int = SEGMENT_SIZE, start: int = 0, seed: int = 1, topic: str = "T"
) -> LogImage:
    """A log of messages with bodies of these sizes, rolled to the next segment as a broker does."""
    rng = Random(seed)
    content = bytearray()
    boundaries, messages = [start], []
    for number, size in enumerate(body_sizes):
        room = segment_size - (start + len(content)) % segment_size
        record = _record(number, rng.randbytes(size), topic, start + len(content))
        if len(record) + END_FILE_MIN_BLANK_LENGTH > room:
            content += encode_blank(room) + bytes(room - END_FILE_MIN_BLANK_LENGTH)
            boundaries.append(start + len(content))
            record = _record(number, record_body(record, size), topic, start + len(content))
        messages.append(start + len(content))
        content += record
        boundaries.append(start + len(content))
    return LogImage(bytes(content), tuple(boundaries), tuple(messages), start, segment_size)


def record_body(record: bytes, size: int) -> bytes:
    """The body of an encoded record with IPv4 hosts."""
    return record[88 : 88 + size]


def _record(number: int, body: bytes, topic: str, offset: int) -> bytes:
    return encode_record(make_record(number, body, topic=topic, physical_offset=offset))


def memory_log(image: LogImage | None = None, segment_size: int = SEGMENT_SIZE) -> MemoryCommitLog:
    """A log in memory that holds the image, proved; an empty one without."""
    log = MemoryCommitLog(segment_size if image is None else image.segment_size)
    if image is not None:
        log.begin_at(image.start)
        append(log, image)
    return log


def append(log: ICommitLog, image: LogImage) -> None:
    """Append the missing part of the image to ``log``, and verify it."""
    for transfer in image.transfers(log.max_offset, batch_bytes=image.segment_size):
        log.append_data(transfer.physic_offset, transfer.body)
    found = log.verify()
    assert found.end == image.end, found


def content_of(log: ICommitLog) -> bytes:
    """All the log holds, from its min to its max."""
    content = bytearray()
    while log.min_offset + len(content) < log.max_offset:
        data = log.get_data(log.min_offset + len(content), log.segment_size)
        assert data is not None
        content += data
    return bytes(content)


def wire(transfers: Sequence[Transfer]) -> bytes:
    """The transfers' bytes, one after another."""
    return b"".join(encode_transfer(transfer) for transfer in transfers)


def heartbeat(offset: int) -> bytes:
    """A transfer frame with no body."""
    return TRANSFER_HEADER.pack(offset, 0)


def reports_in(data: bytes) -> list[int]:
    """The reports that these bytes are."""
    assert len(data) % 8 == 0, data
    return ReportDecoder().feed(data)


def transfers_in(data: bytes) -> list[Transfer]:
    """The whole transfer frames that these bytes are."""
    transfers = [Transfer(offset, bytes(body)) for offset, body in TransferDecoder().feed(data)]
    assert sum(len(body) + TRANSFER_HEADER.size for _, body in transfers) == len(data), "a frame is not whole"
    return transfers


def progress_of(connection: HAMasterProtocol) -> SlaveProgress:
    """Of a slave whose first report was accepted."""
    assert connection.progress is not None
    return connection.progress


class LineTransport(StringTransport):
    """A transport that ends like a socket: with ``connectionLost``, one reactor turn after the call."""

    def __init__(self, clock: Clock) -> None:
        StringTransport.__init__(self, peerAddress=PEER)
        self._clock = clock
        self.protocol: IProtocol | None = None
        self.aborted = False
        self.over = False

    def attach(self, protocol: IProtocol) -> None:
        """Connect the protocol to this transport."""
        self.protocol = protocol
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        if not self.disconnecting:
            StringTransport.write(self, data)

    def take(self) -> bytes:
        """What was written since the last call."""
        data: bytes = self.value()
        self.clear()
        return data

    def deliver(self, data: bytes) -> None:
        """Bytes have come; a transport that ends takes no more."""
        assert self.protocol is not None
        if not self.disconnecting:
            self.protocol.dataReceived(data)

    def abortConnection(self) -> None:
        self.aborted = True
        self._end(ConnectionAborted())

    def loseConnection(self) -> None:
        self._end(ConnectionDone())

    def _end(self, reason: Exception) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self._clock.callLater(0, self.lose, reason)

    def lose(self, reason: Exception | None = None) -> None:
        """The connection is gone."""
        if not self.over:
            self.over = self.disconnecting = True
            assert self.protocol is not None
            self.protocol.connectionLost(Failure(reason or ConnectionDone()))


class Socket(FileDescriptor):
    """A transport with Twisted's own buffers, whose socket takes as much as the test says; like LineTransport else."""

    def __init__(self, clock: Clock) -> None:
        FileDescriptor.__init__(self, MemoryReactor())
        self._clock = clock
        self.connected = 1
        self.room = 0
        self.taken = bytearray()
        self.aborted = False
        self.over = False

    def attach(self, protocol: IProtocol) -> None:
        """Connect the protocol to this transport."""
        self.protocol = protocol
        protocol.makeConnection(self)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """As a TCP transport has it."""

    def writeSomeData(self, data: bytes) -> int:
        piece = bytes(memoryview(data)[: self.room])
        self.room -= len(piece)
        self.taken += piece
        return len(piece)

    def take(self, size: int) -> None:
        """The peer reads this many bytes."""
        self.room += size
        while self.room and self.waiting:
            self.doWrite()

    @property
    def waiting(self) -> int:
        """How many bytes the socket has not taken yet."""
        return len(self.dataBuffer) - self.offset + self._tempDataLen

    def deliver(self, data: bytes) -> None:
        """Bytes have come."""
        assert self.protocol is not None
        if not self.aborted:
            self.protocol.dataReceived(data)

    def abortConnection(self) -> None:
        self.aborted = True
        self._clock.callLater(0, self.lose)

    def lose(self, reason: Exception | None = None) -> None:
        """The connection is gone."""
        if not self.over:
            self.over = self.aborted = True
            assert self.protocol is not None
            self.protocol.connectionLost(Failure(reason or ConnectionDone()))

    def getPeer(self) -> IPv4Address:
        return PEER


@dataclass
class Attempt:
    """Somebody connects: the test says how that ends."""

    factory: IProtocolFactory
    answer: Deferred[IProtocol]
    clock: Clock

    def accept(self) -> LineTransport:
        """The connection is there."""
        transport = LineTransport(self.clock)
        protocol = self.factory.buildProtocol(PEER)
        assert protocol is not None
        transport.attach(protocol)
        self.answer.callback(protocol)
        return transport

    def refuse(self) -> None:
        """Nobody listens."""
        self.answer.errback(Failure(ConnectionRefusedError()))


@implementer(IStreamClientEndpoint)
@dataclass
class FakeEndpoint:
    """An endpoint whose attempts wait in a list, the oldest first."""

    clock: Clock
    attempts: list[Attempt] = field(default_factory=list)

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        def cancelled(_: object) -> None:
            if attempt in self.attempts:
                self.attempts.remove(attempt)

        attempt = Attempt(factory, Deferred(cancelled), self.clock)
        self.attempts.append(attempt)
        return attempt.answer

    def next(self) -> Attempt:
        """The oldest attempt that has no answer yet."""
        return self.attempts.pop(0)


@contextmanager
def log_lines() -> Iterator[Callable[[], str]]:
    """What was logged since, one event a line, as an operator reads it: level and text."""
    with capturedLogs() as events:
        yield lambda: "\n".join(_line(event) for event in events)


def _line(event: LogEvent) -> str:
    return f"{event['log_level'].name}: {formatEvent(event)}"


@implementer(IConnectionOwner)
@dataclass(frozen=True, slots=True)
class ConnectionOwner:
    """Owns a slave's connection, with a function for each method."""

    ask: Callable[[], Deferred[MasterView | None]]
    completed: Callable[[], None]
    durable: Callable[[], int]
    given_up: Callable[[Failure], None]
    lost: Callable[[], None]
    ended: Callable[[str], None] = lambda _: None

    def ask_master(self) -> Deferred[MasterView | None]:
        return self.ask()

    def read_completed(self) -> None:
        self.completed()

    def durable_offset(self) -> int:
        return self.durable()

    def gave_up(self, failure: Failure) -> None:
        self.given_up(failure)

    def connection_lost(self) -> None:
        self.lost()

    def ended_by_peer(self, reason: str) -> None:
        self.ended(reason)
