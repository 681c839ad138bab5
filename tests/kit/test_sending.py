"""Immediate writes, on a transport like those of Twisted's sockets."""

from twisted.internet.abstract import FileDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.sending import send_at_once


class Line(FileDescriptor):
    """A socket that takes all that is written, or ``room`` bytes of it; a broken one fails."""

    def __init__(self, reactor: MemoryReactorClock) -> None:
        FileDescriptor.__init__(self, reactor)
        self.connected = 1
        self.written = b""
        self.room: int | None = None
        self.is_broken = False

    def writeSomeData(self, data: bytes) -> int | Exception:
        if self.is_broken:
            return CONNECTION_LOST
        taken = bytes(data[: self.room])
        self.written += taken
        self.room = None if self.room is None else self.room - len(taken)
        return len(taken)


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

    def test_what_the_socket_does_not_take_is_left_to_the_reactor(self) -> None:
        self.line.room = 4
        send_at_once(self.line, b"report")
        send_at_once(self.line, b", more")
        self.assertEqual(self.line.written, b"repo")
        self.assertIn(self.line, self.reactor.writers)
        self.line.room = None
        self.assertIsNone(self.line.doWrite())
        self.assertEqual(self.line.written, b"report, more")
        self.assertNotIn(self.line, self.reactor.writers)

    def test_bytes_that_wait_for_the_reactor_come_first(self) -> None:
        self.line.write(b"hello, ")
        send_at_once(self.line, b"report")
        self.assertEqual(self.line.written, b"hello, report")

    def test_the_reactor_meets_an_error_of_the_socket(self) -> None:
        self.line.is_broken = True
        send_at_once(self.line, b"report")
        self.assertIn(self.line, self.reactor.writers)
        self.assertIs(self.line.doWrite(), CONNECTION_LOST)

    def test_nothing_is_written_to_a_connection_that_is_over(self) -> None:
        self.line.connected = 0
        send_at_once(self.line, b"report")
        self.assertEqual((self.line.written, self.reactor.writers), (b"", set()))
