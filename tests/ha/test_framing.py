"""Immediate writes, on a transport like Twisted's sockets."""

from twisted.internet.abstract import FileDescriptor
from twisted.internet.main import CONNECTION_DONE
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.framing import send_at_once


class Line(FileDescriptor):
    """A socket that takes all that is written."""

    def __init__(self, reactor: MemoryReactorClock) -> None:
        FileDescriptor.__init__(self, reactor)
        self.connected = 1
        self.written = b""

    def writeSomeData(self, data: bytes) -> int:
        self.written += data
        return len(data)


class SendAtOnceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.line = Line(self.reactor)

    def test_the_socket_has_it_before_the_call_returns(self) -> None:
        send_at_once(self.line, b"report")
        self.assertEqual(self.line.written, b"report")
        self.assertNotIn(self.line, self.reactor.writers)

    def test_a_connection_that_is_to_close_still_closes(self) -> None:
        """A report that was sent after loseConnection kept the connection, and a stop, waiting for 20 seconds."""
        self.line.loseConnection()
        send_at_once(self.line, b"report")
        self.assertIn(self.line, self.reactor.writers, "the reactor writes, and then closes")
        self.assertIs(self.line.doWrite(), CONNECTION_DONE)
        self.assertEqual(self.line.written, b"report")
