"""A slave serves its own slaves only the bytes that it has verified."""

from rmqha.ha.master.protocol import HAMasterFactory, MasterOptions
from rmqha.ha.slave.replica import MasterView
from rmqha.ha.slave.slaveservice import OnGap
from rmqha.wire.transfer import encode_report
from tests.ha.doubles import PEER, SEGMENT_SIZE, LineTransport, make_image, transfers_in, wire
from tests.ha.slavenode import SlaveNodeTestCase

IMAGE = make_image([300] * 30)
PREFIX = IMAGE.prefix(IMAGE.messages[12])
VIEW = MasterView(0, IMAGE.end, segment_size=SEGMENT_SIZE)
BATCH_BYTES = 1000


class CascadeTests(SlaveNodeTestCase):
    """``self.start`` runs the slave in the middle; ``self.below`` connects one below it."""

    def setUp(self) -> None:
        SlaveNodeTestCase.setUp(self)
        self.view = VIEW
        self.lines_below: list[LineTransport] = []

    def serve(self) -> None:
        """Let the slave in the middle serve, as a node does."""
        self.factory = HAMasterFactory(self.log, self.clock, MasterOptions(BATCH_BYTES))
        self.factory.doStart()
        self.addCleanup(self.end_below)

    def end_below(self) -> None:
        for line in self.lines_below:
            line.lose()
        self.factory.doStop()

    def below(self, request: int) -> LineTransport:
        """A slave of the slave asks for this offset."""
        connection = self.factory.buildProtocol(PEER)
        assert connection is not None
        line = LineTransport(self.clock)
        self.lines_below.append(line)
        line.attach(connection)
        line.deliver(encode_report(request))
        return line

    def taken(self, line: LineTransport) -> bytes:
        """The log bytes that have been sent below since the last call."""
        self.clock.advance(0)
        return b"".join(bytes(transfer.body) for transfer in transfers_in(line.take()))

    def test_what_the_slave_holds_is_served_and_what_comes_is_passed_on(self) -> None:
        self.start(PREFIX)
        self.serve()
        above, request = self.connect()
        below = self.below(1)
        self.assertEqual(self.taken(below), PREFIX.content[1:])
        above.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.taken(below), IMAGE.bytes_at(PREFIX.end, IMAGE.end))

    def test_half_a_message_is_not_passed_on(self) -> None:
        self.start(PREFIX)
        self.serve()
        above, request = self.connect()
        below = self.below(PREFIX.end)
        middle_of_one = IMAGE.messages[14] + 100
        above.deliver(wire(IMAGE.transfers(request, middle_of_one)))
        self.assertEqual(self.taken(below), IMAGE.bytes_at(PREFIX.end, IMAGE.messages[14]))
        above.deliver(wire(IMAGE.transfers(middle_of_one)))
        self.assertEqual(self.taken(below), IMAGE.bytes_at(IMAGE.messages[14], IMAGE.end))

    def test_a_message_that_is_broken_is_not_passed_on(self) -> None:
        self.start(PREFIX)
        self.serve()
        above, request = self.connect()
        below = self.below(PREFIX.end)
        flipped = bytearray(IMAGE.content)
        flipped[IMAGE.messages[14] + 120] ^= 1
        broken = type(IMAGE)(bytes(flipped), IMAGE.boundaries, IMAGE.messages, IMAGE.start)
        above.deliver(wire(broken.transfers(request)))
        self.assertTrue(above.aborted)
        self.assertEqual(self.taken(below), IMAGE.bytes_at(PREFIX.end, IMAGE.messages[14]))
        self.clock.advance(0)
        above, request = self.connect()
        above.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.taken(below), IMAGE.bytes_at(IMAGE.messages[14], IMAGE.end))

    def test_the_slave_below_stays_when_the_master_above_is_lost(self) -> None:
        self.start(PREFIX)
        self.serve()
        above, _ = self.connect()
        below = self.below(PREFIX.end)
        self.lose(above)
        above, request = self.connect()
        above.deliver(wire(IMAGE.transfers(request)))
        self.assertFalse(below.aborted)
        self.assertEqual(self.taken(below), IMAGE.bytes_at(PREFIX.end, IMAGE.end))

    def test_what_the_slave_below_reports_is_none_of_the_masters_business(self) -> None:
        self.start(PREFIX)
        self.serve()
        above, request = self.connect()
        above.deliver(wire(IMAGE.transfers(request, PREFIX.end)))
        above.take()
        below = self.below(PREFIX.messages[11])
        below.deliver(encode_report(PREFIX.end))
        self.assertEqual(above.take(), b"")

    def test_a_slave_that_begins_anew_drops_those_below_which_must_find_their_own_gap(self) -> None:
        late = make_image([300] * 40, start=5 * SEGMENT_SIZE)
        self.view = MasterView(late.start, late.end, segment_size=SEGMENT_SIZE)
        self.start(PREFIX, on_gap=OnGap.RESEED)
        self.serve()
        below = self.below(PREFIX.end)
        self.accept()  # finds the gap, and sets its log aside
        above, request = self.connect()
        self.assertEqual(request, late.start)
        above.deliver(wire(late.transfers()))
        self.clock.advance(0)
        self.assertTrue(below.aborted)
        self.assertEqual(self.taken(below), b"")
        self.assertTrue(self.below(PREFIX.end).aborted, "it asks for what is deleted")
        self.assertEqual(self.taken(self.below(late.start)), late.content)

    def test_a_slave_below_an_empty_one_gets_all_from_where_the_empty_one_begins(self) -> None:
        self.start()
        self.serve()
        below = self.below(0)
        self.assertEqual(self.taken(below), b"")
        above, request = self.connect()
        above.deliver(wire(IMAGE.transfers(request)))
        self.assertEqual(self.taken(below), IMAGE.content)
