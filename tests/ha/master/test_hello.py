"""A failover cluster's followers show who they are: only members of this epoch count, and a guest never does."""

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.ha.admission.limits import HALimits
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.protocol import HAConnectionState
from rmqha.ha.slave.greeting import GreetingEndpoint
from rmqha.wire.transfer import Hello, encode_reader, encode_report
from tests.ha.doubles import PEER, LineTransport, memory_log, progress_of, transfers_in
from tests.ha.masternode import IMAGE, MasterTestCase

SESSION = bytes(range(16))
HELLO = Hello(epoch=5, session=SESSION)


class HelloTests(MasterTestCase):
    def lead(self) -> Leadership:
        """The node leads in epoch 5, and knows member ``b``."""
        leadership = Leadership(5, self.clock.seconds, until=1000.0)
        leadership.sessions = {SESSION.hex(): "b"}
        self.factory.leadership = leadership
        return leadership

    def test_a_member_is_known_by_its_session(self) -> None:
        self.lead()
        connection, transport = self.connect()
        transport.deliver(HELLO.encode() + encode_report(1))
        self.assertEqual((progress_of(connection).member, connection.identity), ("b", "b"))
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(1))

    def test_a_hello_may_come_in_pieces(self) -> None:
        self.lead()
        connection, transport = self.connect()
        for byte in HELLO.encode() + encode_report(1):
            self.assertIs(connection.state, HAConnectionState.REQUEST)
            transport.deliver(bytes([byte]))
        self.assertEqual(progress_of(connection).member, "b")

    def test_a_guest_gets_the_log_and_counts_for_nothing(self) -> None:
        self.lead()
        connection, transport = self.connect()
        transport.deliver(HELLO.encode(is_guest=True) + encode_report(1))
        self.assertIsNone(progress_of(connection).member)
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(1))

    def test_a_guest_may_say_that_it_is_a_member(self) -> None:
        self.lead()
        connection, transport = self.connect()
        transport.deliver(HELLO.encode(is_guest=True) + HELLO.encode() + encode_report(1))
        self.assertEqual(progress_of(connection).member, "b")

    def test_another_epoch_or_session_is_refused(self) -> None:
        self.lead()
        for hello in (Hello(4, SESSION), Hello(6, SESSION), Hello(5, bytes(16))):
            for is_guest in (False, True):
                connection, transport = self.connect()
                transport.deliver(hello.encode(is_guest) + encode_report(1))
                self.assertTrue(transport.aborted)
                self.assertIs(connection.state, HAConnectionState.CLOSED)
                self.assertEqual(transport.take(), b"")

    def test_a_node_that_leads_no_more_refuses_every_hello(self) -> None:
        leadership = self.lead()
        _, transport = self.connect()
        leadership.end()
        transport.deliver(HELLO.encode() + encode_report(1))
        self.assertTrue(transport.aborted)
        self.assertIsNone(self.factory.buildProtocol(PEER), "it serves nobody")

    def test_a_node_without_failover_refuses_every_hello(self) -> None:
        _, transport = self.connect()
        transport.deliver(HELLO.encode() + encode_report(1))
        self.assertTrue(transport.aborted)

    def test_a_stock_slave_needs_none(self) -> None:
        self.lead()
        connection, transport = self.request(1)
        self.assertIsNone(progress_of(connection).member)
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(1))


class GreetingTests(SynchronousTestCase):
    def test_the_hello_comes_before_anything_else(self) -> None:
        transport = StringTransport()

        class Speaks(Protocol):
            def connectionMade(self) -> None:
                transport.write(b"first report")

        @implementer(IStreamClientEndpoint)
        class Connects:
            def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
                protocol = protocolFactory.buildProtocol(None)  # type: ignore[arg-type]  # ours ignores it
                assert protocol is not None
                protocol.makeConnection(transport)
                return succeed(protocol)

        self.successResultOf(GreetingEndpoint(Connects(), HELLO).connect(Factory.forProtocol(Speaks)))
        self.assertEqual(transport.value(), HELLO.encode(is_guest=True) + b"first report")


class Follower:
    """Follows the slaves of a master."""

    def __init__(self, followed: list[SlaveProgress]) -> None:
        self.joined = self.reported = self.forget = followed.append


class ReaderTests(MasterTestCase):
    """A reader is sent the log. It is no replica, and no slave for retention."""

    def read_from(self, offset: int) -> LineTransport:
        _, transport = self.connect()
        transport.deliver(encode_reader() + encode_report(offset))
        return transport

    def test_it_gets_the_log(self) -> None:
        self.assertEqual(transfers_in(self.read_from(1).take()), IMAGE.transfers(1))

    def test_it_counts_for_nothing_even_if_it_reports_the_end(self) -> None:
        followed: list[SlaveProgress] = []
        self.factory._followers = [Follower(followed)]
        transport = self.read_from(1)
        transport.deliver(encode_report(IMAGE.end))
        self.assertEqual((followed, self.factory.acknowledged()), ([], {}))
        transport.lose()
        self.assertEqual((followed, self.factory.connections), ([], []))
        _, slave = self.connect()
        slave.deliver(encode_report(1))
        self.assertEqual(len(followed), 1)

    def test_what_is_in_flight_does_not_stop_it(self) -> None:
        self.serve(memory_log(IMAGE), limits=HALimits(bytes_in_flight=100))
        self.assertEqual(transfers_in(self.read_from(1).take()), IMAGE.transfers(1))

    def test_it_says_so_once_and_before_its_first_report(self) -> None:
        for said in (2 * encode_reader(), encode_report(1) + encode_reader()):
            connection, transport = self.connect()
            transport.deliver(said)
            self.assertIs(connection.state, HAConnectionState.CLOSED)
