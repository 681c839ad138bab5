"""How much of the log has left a transport: exact for plain sockets, never too low with TLS."""

import contextlib
import tempfile
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, create_connection, create_server
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission.limits import HALimits
from rmqha.ha.master.handed import PIECES_KEPT, HandedOffset
from rmqha.ha.master.protocol import HAConnectionState, HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.net.tls.endpoints import TLSFiles
from rmqha.testing.memory import MemoryCommitLog
from rmqha.wire.transfer import TransferDecoder, encode_report
from tests import examples
from tests.ha.doubles import PEER, LineTransport, Socket, make_image, memory_log, progress_of
from tests.net.tls.authority import Authority

LARGE = make_image([3000] * 200, segment_size=1024 * 1024)
SMALL = make_image([3000] * 30, segment_size=1024 * 1024)
TLS_OVERHEAD = 600
"""Of what TLS adds to one write of up to 64 KiB in these tests."""


def held_by(taken: bytes, start: int) -> int:
    """The end of the log that these bytes of frames bring."""
    decoder = TransferDecoder()
    end = start
    for offset, body in decoder.feed(taken):
        end = offset + len(body)
    rest = taken[sum_of_whole_frames(taken) :]
    return end + max(0, len(rest) - 12)


def sum_of_whole_frames(data: bytes) -> int:
    at = 0
    while len(data) - at >= 12:
        size = int.from_bytes(data[at + 8 : at + 12], "big")
        if len(data) - at < 12 + size:
            break
        at += 12 + size
    return at


class PlainTests(SynchronousTestCase):
    """A socket that takes what it likes."""

    def serve(self, batch_bytes: int, limits: HALimits | None = None, max_rate: int | None = None) -> Clock:
        clock = Clock()
        self.log = memory_log(SMALL)
        self.factory = HAMasterFactory(
            self.log, clock, MasterOptions(batch_bytes, limits=limits or HALimits(), max_rate=max_rate)
        )
        self.factory.doStart()
        return clock

    def connect(self, clock: Clock) -> tuple[HAMasterProtocol, Socket]:
        connection, socket = self.factory.buildProtocol(PEER), Socket(clock)
        assert connection is not None
        socket.attach(connection)
        return connection, socket

    @settings(deadline=None, max_examples=examples(40))
    @given(
        batch_bytes=st.sampled_from([50, 1000, 32 * 1024]),
        takes=st.lists(st.integers(0, 40_000), min_size=1, max_size=8),
        start=st.sampled_from([1, SMALL.messages[3], SMALL.messages[28], SMALL.end]),
        rate=st.sampled_from([None, 100_000]),
    )
    def test_the_bound_is_what_the_socket_has_taken(
        self, batch_bytes: int, takes: list[int], start: int, rate: int | None
    ) -> None:
        clock = self.serve(batch_bytes, max_rate=rate)
        connection, socket = self.connect(clock)
        socket.deliver(encode_report(start))
        for take in takes:
            socket.take(take)
            truth = held_by(bytes(socket.taken), start)
            assert connection._handed is not None
            self.assertEqual(connection._handed.offset, truth)
            if truth < SMALL.end:
                self.check_refused_beyond(truth, start, socket, clock)
            socket.deliver(encode_report(truth))
            self.assertEqual((socket.aborted, progress_of(connection).reported), (False, truth))
            clock.advance(1.3)  # heartbeats and turns of the throttle
        socket.deliver(encode_report(held_by(bytes(socket.taken), start) + 1))
        self.assertTrue(socket.aborted)
        socket.lose()
        clock.advance(0)
        self.factory.doStop()

    def check_refused_beyond(self, truth: int, start: int, like: Socket, clock: Clock) -> None:
        """Another slave that has taken as much, and says one byte more, is refused."""
        liar, socket = self.connect(clock)
        socket.deliver(encode_report(start))
        assert liar._handed is not None
        socket.deliver(encode_report(liar._handed.offset + 1))
        self.assertTrue(socket.aborted)
        socket.lose()

    def test_slaves_that_share_frames_are_judged_each_by_its_own_socket(self) -> None:
        clock = self.serve(1000)
        lines = [self.connect(clock) for _ in range(3)]
        for _, socket in lines:
            socket.deliver(encode_report(SMALL.messages[20]))
        sizes = (0, 5000, 10**6)
        for (_, socket), size in zip(lines, sizes, strict=True):
            socket.take(size)
        for connection, socket in lines:
            assert connection._handed is not None
            self.assertEqual(connection._handed.offset, held_by(bytes(socket.taken), SMALL.messages[20]))
        lines[2][1].deliver(encode_report(SMALL.end))
        self.assertFalse(lines[2][1].aborted)
        lines[1][1].deliver(encode_report(SMALL.end))
        self.assertTrue(lines[1][1].aborted)
        for _, socket in lines:
            socket.lose()
        clock.advance(0)
        self.factory.doStop()

    def test_what_lies_in_our_kernel_has_not_arrived(self) -> None:
        """The peer's TCP takes less than ours."""
        with create_server(("127.0.0.1", 0)) as server:
            server.setsockopt(SOL_SOCKET, SO_RCVBUF, 8192)
            near = create_connection(server.getsockname())
            far, _ = server.accept()
        self.addCleanup(near.close)
        self.addCleanup(far.close)
        near.setblocking(False)
        transport = SimpleNamespace(socket=near, writeSomeData=near.send)
        handed = HandedOffset(transport, 1000)
        handed.begin(0)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                handed.will_write(1012, (1000 * count, 1000 * count + 1000))
                if transport.writeSomeData(bytes(1012)) < 1012:
                    break
                count += 1
        self.assertGreater(count, PIECES_KEPT)
        self.assertLess(handed.offset, 1000 * count)
        far.setblocking(False)
        while handed.offset < 1000 * count:
            with contextlib.suppress(BlockingIOError):
                far.recv(1 << 20)

    def test_it_leaves_the_transport_as_it_was(self) -> None:
        clock = self.serve(1000)
        _, socket = self.connect(clock)
        self.assertIn("writeSomeData", vars(socket))
        socket.lose()
        self.assertNotIn("writeSomeData", vars(socket))
        self.factory.doStop()

    def test_a_transport_without_a_socket_hands_on_what_it_gets(self) -> None:
        handed = HandedOffset(LineTransport(Clock()), 1000)
        handed.begin(70)
        handed.will_write(112, (70, 170))
        handed.will_write(12)
        self.assertEqual(handed.offset, 170)


class MemoryPort:
    """Keeps the factory that listens."""

    factory: Any = None

    def listen(self, protocolFactory: IProtocolFactory) -> "Deferred[IListeningPort]":
        self.factory = protocolFactory
        return Deferred()


class TLSTests(SynchronousTestCase):
    """Below TLS bytes are counted, and the bound is never below what the peer can read."""

    def setUp(self) -> None:
        folder = Path(tempfile.mkdtemp())
        self.certificate = Authority(folder, "ca").issue("broker")
        self.clock = Clock()

    def connect(self, protocol: Protocol) -> tuple[Socket, SSL.Connection]:
        """A server's end on a socket, and OpenSSL as its peer, shaken hands."""
        tls = TLSFiles.load(str(self.certificate), None, None).server(False)
        assert tls is not None
        port = MemoryPort()
        tls.endpoint(port, self.clock, lambda *_: None).listen(Factory.forProtocol(lambda: protocol))  # type: ignore[arg-type]
        end = port.factory.buildProtocol(PEER)
        socket = Socket(self.clock)
        socket.attach(end)
        peer = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
        peer.set_connect_state()
        for _ in range(4):
            with contextlib.suppress(SSL.WantReadError):
                peer.do_handshake()
            self.to_server(peer, socket)
            self.to_peer(peer, socket)
        return socket, peer

    def to_server(self, peer: SSL.Connection, socket: Socket) -> None:
        with contextlib.suppress(SSL.WantReadError):
            while True:
                socket.deliver(peer.bio_read(65536))

    def to_peer(self, peer: SSL.Connection, socket: Socket, size: int = 10**6) -> bytes:
        """The socket takes this many bytes, and the peer reads what it can."""
        socket.taken.clear()
        socket.take(size)
        socket.room = 0
        if socket.taken:
            peer.bio_write(bytes(socket.taken))
        read = bytearray()
        with contextlib.suppress(SSL.WantReadError):
            while True:
                read += peer.recv(65536)
        return bytes(read)

    @settings(deadline=None, max_examples=examples(25))
    @given(takes=st.lists(st.integers(1, 70_000), min_size=1, max_size=12))
    def test_an_honest_slave_is_believed_and_a_liar_is_not(self, takes: list[int]) -> None:
        log = memory_log(LARGE)
        factory = HAMasterFactory(log, self.clock, MasterOptions(32 * 1024))
        factory.doStart()
        connection = factory.buildProtocol(PEER)
        assert connection is not None
        socket, peer = self.connect(connection)
        peer.send(encode_report(1))
        self.to_server(peer, socket)
        self.clock.advance(0)
        got = bytearray()
        for take in takes:
            got += self.to_peer(peer, socket, take)
            self.clock.advance(0)
            truth = held_by(bytes(got), 1)
            assert connection._handed is not None
            handed = connection._handed.offset
            self.assertGreaterEqual(handed, truth)
            peer.send(encode_report(truth))
            self.to_server(peer, socket)
            self.assertEqual((connection.state, progress_of(connection).reported), (HAConnectionState.TRANSFER, truth))
        handed = connection._handed.offset if connection._handed is not None else 0
        self.assertLessEqual(handed, min(LARGE.end, truth + 16 * 1024 + TLS_OVERHEAD), "a record, and what TLS adds")
        if handed < LARGE.end:
            peer.send(encode_report(handed + 1))
            self.to_server(peer, socket)
            self.assertIs(connection.state, HAConnectionState.CLOSED)
        socket.lose()
        self.clock.advance(0)
        factory.doStop()

    def test_a_put_that_waits_in_tls_has_not_left(self) -> None:
        log = MemoryCommitLog(LARGE.segment_size)
        log.begin_at(0)
        first = LARGE.transfers(0, LARGE.messages[1])[0]
        factory = HAMasterFactory(log, self.clock, MasterOptions(32 * 1024))
        factory.doStart()
        connection = factory.buildProtocol(PEER)
        assert connection is not None
        socket, peer = self.connect(connection)
        peer.send(encode_report(0))
        self.to_server(peer, socket)
        log.append_data(first.physic_offset, first.body)
        socket.take(10**6)  # the kernel has room, but TLS writes in the next round of the reactor
        socket.room = 0
        for put in LARGE.transfers(first.end_offset, LARGE.messages[1], 10**6):
            log.append_data(put.physic_offset, put.body)
        log.verify()
        self.clock.advance(0)
        assert connection._handed is not None
        self.assertEqual(connection._handed.offset, 0)
        peer.send(encode_report(LARGE.messages[1]))
        self.to_server(peer, socket)
        self.assertIs(connection.state, HAConnectionState.CLOSED)
        socket.lose()
        self.clock.advance(0)
        factory.doStop()
