"""A master with a log in memory, on a Clock. The test plays its slaves."""

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission.limits import HALimits
from rmqha.ha.master.protocol import HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.testing.memory import MemoryCommitLog
from rmqha.wire.transfer import encode_report
from tests.ha.doubles import PEER, LineTransport, LogImage, append, make_image, memory_log

IMAGE = make_image([300] * 30)  # several segments
BATCH_BYTES = 1000


class SlowTransport(LineTransport):
    """Pauses its producer like a socket whose peer does not read: when more than ``bufferSize`` bytes wait."""

    bufferSize = 64 * 1024

    def write(self, data: bytes) -> None:
        super().write(data)
        if len(self.value()) > self.bufferSize and self.producer is not None:
            self.producer.pauseProducing()

    def drain(self) -> bytes:
        """The peer reads all that waits."""
        data = self.take()
        if self.producer is not None:
            self.producer.resumeProducing()
        return data


class MasterTestCase(SynchronousTestCase):
    """A master of one log on a clock; each slave is a transport that takes what is sent."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.factories: list[HAMasterFactory] = []
        self.transports: list[LineTransport] = []
        self.serve(memory_log(IMAGE))

    def serve(
        self,
        log: MemoryCommitLog,
        batch_bytes: int = BATCH_BYTES,
        limits: HALimits | None = None,
        max_rate: int | None = None,
    ) -> None:
        """Start again with this log."""
        self.log = log
        self.factory = HAMasterFactory(
            log, self.clock, MasterOptions(batch_bytes, limits=limits or HALimits(), max_rate=max_rate)
        )
        self.factory.doStart()
        self.factories.append(self.factory)

    def tearDown(self) -> None:
        """All connections end, and leave nothing on the clock."""
        self.clock.advance(0)
        for transport in self.transports:
            transport.lose(ConnectionLost())
        for factory in self.factories:
            factory.doStop()
            self.assertEqual(factory.connections, [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def connect(
        self, transport: LineTransport | None = None, peer: IPv4Address = PEER
    ) -> tuple[HAMasterProtocol, LineTransport]:
        """A slave connects."""
        connection = self.factory.buildProtocol(peer)
        assert connection is not None
        transport = LineTransport(self.clock) if transport is None else transport
        self.transports.append(transport)
        transport.attach(connection)
        return connection, transport

    def request(self, *reports: int) -> tuple[HAMasterProtocol, LineTransport]:
        """A slave connects and sends these reports, each in a read of its own."""
        connection, transport = self.connect()
        for offset in reports:
            transport.deliver(encode_report(offset))
        return connection, transport

    def grow(self, image: LogImage) -> None:
        """The log becomes this image, and what is new is sent."""
        append(self.log, image)
        self.clock.advance(0)
