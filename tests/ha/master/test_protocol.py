"""The master's end: where a transfer starts, its frames, a slave's valid reports, and the cost of a slow slave."""

from twisted.internet.address import IPv4Address

from rmqha.ha.admission.limits import HALimits
from rmqha.ha.master import protocol
from rmqha.ha.master.protocol import WRITE_BYTES, HAConnectionState, MasterOptions
from rmqha.testing.memory import MemoryCommitLog
from rmqha.wire.transfer import TRANSFER_HEADER, Transfer, encode_report
from tests.ha.doubles import (
    PEER,
    PEER_NAME,
    SEGMENT_SIZE,
    LineTransport,
    Socket,
    append,
    heartbeat,
    log_lines,
    make_image,
    memory_log,
    progress_of,
    transfers_in,
)
from tests.ha.masternode import BATCH_BYTES, IMAGE, MasterTestCase, SlowTransport


class StartTests(MasterTestCase):
    """Where a transfer begins (spec/ha.md 4.3)."""

    def test_nothing_is_sent_before_the_first_report(self) -> None:
        connection, transport = self.connect()
        self.clock.advance(19)
        self.assertEqual(transport.take(), b"")
        self.assertEqual(connection.state, HAConnectionState.REQUEST)

    def test_a_slave_that_asks_for_0_gets_the_last_segment(self) -> None:
        connection, transport = self.request(0)
        sent = transfers_in(transport.take())
        self.assertEqual(sent[0].physic_offset, IMAGE.end - IMAGE.end % SEGMENT_SIZE)
        self.assertEqual(sent, IMAGE.transfers(sent[0].physic_offset))
        self.assertEqual((progress_of(connection).request, progress_of(connection).sent), (0, IMAGE.end))

    def test_a_slave_that_asks_for_0_of_a_log_that_fills_its_segments_hears_of_the_next(self) -> None:
        """The last segment has just been made and is empty."""
        full = make_image([4096 - 8 - len(make_image([0]).content), 10]).prefix(SEGMENT_SIZE)
        self.serve(memory_log(full))
        _, transport = self.request(0)
        self.assertEqual(transport.take(), b"")
        self.clock.advance(2.5)
        self.assertEqual(transport.take(), heartbeat(SEGMENT_SIZE))

    def test_any_other_request_is_taken_by_its_word(self) -> None:
        for request in (1, 2, IMAGE.messages[5], IMAGE.messages[5] + 7, SEGMENT_SIZE, IMAGE.end - 1, IMAGE.end):
            _, transport = self.request(request)
            sent = transfers_in(transport.take())
            self.assertEqual(sent, IMAGE.transfers(request) if request < IMAGE.end else [], request)

    def test_what_comes_after_the_first_report_is_an_acknowledgement(self) -> None:
        connection, _ = self.request(1, IMAGE.messages[3])
        self.assertEqual((progress_of(connection).request, progress_of(connection).reported), (1, IMAGE.messages[3]))

    def test_what_comes_in_one_read_with_the_first_report_is_a_lie(self) -> None:
        """Nothing had been sent when it came; that also goes for what was written in answer to the first report."""
        for first, others in ((1, [IMAGE.messages[3]]), (1, [1, IMAGE.end]), (IMAGE.messages[2], [IMAGE.messages[3]])):
            with log_lines() as lines:
                connection, transport = self.connect()
                transport.deliver(b"".join(map(encode_report, [first, *others])))
            self.assertTrue(transport.aborted)
            self.assertEqual((connection.state, transport.take()), (HAConnectionState.CLOSED, b""))
            self.assertIn(f"together with its first report, {first}: nothing had been sent to it: closing", lines())

    def test_the_first_report_again_in_one_read_is_a_heartbeat(self) -> None:
        """A master that stood still finds several in its socket."""
        connection, transport = self.connect()
        transport.deliver(encode_report(IMAGE.messages[2]) * 3)
        self.assertEqual(
            (connection.state, progress_of(connection).reported), (HAConnectionState.TRANSFER, IMAGE.messages[2])
        )
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(IMAGE.messages[2]))

    def test_a_log_that_begins_later_serves_from_its_min(self) -> None:
        late = make_image([300] * 20, start=2 * SEGMENT_SIZE)
        self.serve(memory_log(late))
        _, transport = self.request(late.start)
        self.assertEqual(transfers_in(transport.take()), late.transfers())

    def test_an_empty_log_takes_a_request_for_0_and_sends_all_that_comes(self) -> None:
        self.serve(MemoryCommitLog(SEGMENT_SIZE))
        _, transport = self.request(0)
        self.assertEqual(transport.take(), b"")
        self.grow(IMAGE)
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers())

    def test_what_is_not_proved_is_not_sent(self) -> None:
        """The log of a slave that serves other slaves may end in an incomplete record."""
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[4])))
        self.log.append_data(self.log.max_offset, IMAGE.bytes_at(IMAGE.messages[4], IMAGE.messages[4] + 50))
        _, transport = self.request(1)
        self.assertEqual(transfers_in(transport.take())[-1].end_offset, IMAGE.messages[4])

    def test_it_says_who_asks_for_what(self) -> None:
        with log_lines() as lines:
            self.request(0)
        start = IMAGE.end - IMAGE.end % SEGMENT_SIZE
        self.assertIn(f"info: slave {PEER_NAME} connected", lines())
        self.assertIn(f"info: slave {PEER_NAME} asks for 0, sending from {start}", lines())


class FramingTests(MasterTestCase):
    """How the log is cut into frames."""

    def test_frames_keep_to_the_batch_size_and_to_their_segments(self) -> None:
        for batch_bytes in (1, 7, 100, BATCH_BYTES, SEGMENT_SIZE, 10 * SEGMENT_SIZE):
            self.serve(memory_log(IMAGE), batch_bytes)
            _, transport = self.request(1)
            sent = transfers_in(transport.take())
            self.assertEqual(sent, IMAGE.transfers(1, batch_bytes=batch_bytes))
            self.assertLessEqual(max(len(frame.body) for frame in sent), batch_bytes)
            for frame in sent:
                first, last = frame.physic_offset // SEGMENT_SIZE, (frame.end_offset - 1) // SEGMENT_SIZE
                self.assertEqual(first, last, frame.physic_offset)

    def test_growth_is_sent_at_once_to_every_slave(self) -> None:
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[4])))
        transports = [self.request(offset)[1] for offset in (1, IMAGE.messages[4])]
        for transport in transports:
            transport.take()
        self.grow(IMAGE.prefix(IMAGE.messages[5]))
        for transport in transports:
            self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(IMAGE.messages[4], IMAGE.messages[5]))

    def test_growth_is_nothing_to_a_slave_that_has_asked_for_nothing(self) -> None:
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[4])))
        _, transport = self.connect()
        self.grow(IMAGE)
        self.assertEqual(transport.take(), b"")

    def test_a_stopped_factory_hears_no_more_of_the_log(self) -> None:
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[4])))
        _, transport = self.request(1)
        transport.take()
        self.factory.doStop()
        self.grow(IMAGE)
        self.assertEqual(transport.take(), b"")


class GatheringTests(MasterTestCase):
    """When new bytes are sent: within their append, or together at the end of the reactor's round."""

    def begin(self, options: MasterOptions | None = None) -> LineTransport:
        """A slave holds the first four messages, and has said so."""
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[4])))
        if options is not None:
            self.factory.options = options
        _, transport = self.request(IMAGE.messages[4])
        transport.take()
        return transport

    def append(self, *numbers: int) -> None:
        """The log grows to the start of each of these messages, in one round."""
        for number in numbers:
            append(self.log, IMAGE.prefix(IMAGE.messages[number]))

    def check(self, transport: LineTransport, first: int, end: int) -> None:
        """Messages from one number to before another are what was sent."""
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(IMAGE.messages[first], IMAGE.messages[end]))

    def test_a_slave_that_holds_everything_gets_a_message_within_its_append(self) -> None:
        transport = self.begin()
        self.append(5)
        self.check(transport, 4, 5)
        self.assertFalse([call for call in self.clock.getDelayedCalls() if call.getTime() <= self.clock.seconds()])

    def test_what_comes_before_its_report_waits_for_the_end_of_the_round(self) -> None:
        transport = self.begin()
        self.append(5, 6)
        self.check(transport, 4, 5)
        self.clock.advance(0)
        self.check(transport, 5, 6)
        self.append(7)
        self.assertEqual(transport.take(), b"")
        self.clock.advance(0)
        transport.deliver(encode_report(IMAGE.messages[7]))
        transport.take()
        self.append(8)
        self.check(transport, 7, 8)

    def test_after_a_round_of_many_appends_the_first_waits_for_the_others(self) -> None:
        transport = self.begin()
        self.append(5, 6, 7)
        self.clock.advance(0)
        transport.deliver(encode_report(IMAGE.messages[7]))
        transport.take()
        self.append(8, 9)
        self.assertEqual(transport.take(), b"")
        self.clock.advance(0)
        self.check(transport, 7, 9)
        transport.deliver(encode_report(IMAGE.messages[9]))
        self.append(10)
        self.assertEqual(transport.take(), b"")
        self.clock.advance(0)
        self.check(transport, 9, 10)
        transport.deliver(encode_report(IMAGE.messages[10]))
        self.append(11)
        self.check(transport, 10, 11)

    def test_if_nobody_waits_for_slaves_a_message_waits_for_further_ones(self) -> None:
        transport = self.begin(MasterOptions(BATCH_BYTES, gather_seconds=0.002))
        self.append(5)
        self.clock.advance(0.001)
        self.assertEqual(transport.take(), b"")
        self.append(6)
        self.clock.advance(0.001)
        self.check(transport, 4, 6)

    def test_many_bytes_wait_for_nothing_although_nobody_waits_for_slaves(self) -> None:
        self.patch(protocol, "GATHERED_BYTES", IMAGE.messages[6] - IMAGE.messages[4])
        transport = self.begin(MasterOptions(BATCH_BYTES, gather_seconds=0.002))
        self.append(5)
        self.assertEqual(transport.take(), b"")
        self.append(6)
        self.check(transport, 4, 6)

    def test_what_a_busy_round_appends_goes_to_the_socket_without_a_turn_of_the_reactor(self) -> None:
        image = make_image([1000] * 90, segment_size=1 << 20)
        self.serve(memory_log(image.prefix(image.messages[1])))
        socket = Socket(self.clock)
        connection = self.factory.buildProtocol(PEER)
        assert connection is not None
        socket.attach(connection)
        socket.deliver(encode_report(image.messages[1]))
        socket.room = 1 << 20
        append(self.log, image)
        self.assertEqual(transfers_in(bytes(socket.taken)), image.transfers(image.messages[1], batch_bytes=BATCH_BYTES))
        socket.lose()


class HeartbeatTests(MasterTestCase):
    """The master says that it lives, and judges a slave's silence."""

    def test_heartbeats_tell_the_next_offset_after_half_an_interval_of_silence(self) -> None:
        _, transport = self.request(1)
        transport.take()
        told = []
        for half_second in range(1, 21):
            self.clock.advance(0.5)
            if data := transport.take():
                told.append((half_second / 2, data))
        self.assertEqual(told, [(second, heartbeat(IMAGE.end)) for second in (2.5, 5, 7.5, 10)])

    def test_data_replace_a_heartbeat(self) -> None:
        self.serve(memory_log(IMAGE.prefix(IMAGE.messages[4])))
        _, transport = self.request(1)
        self.clock.advance(2)
        self.grow(IMAGE)
        transport.take()
        self.clock.advance(1)
        self.assertEqual(transport.take(), b"")
        self.clock.advance(2)
        self.assertEqual(transport.take(), heartbeat(IMAGE.end))

    def test_a_slave_that_never_reports_is_closed_by_the_deadline(self) -> None:
        with log_lines() as lines:
            _, transport = self.connect()
            self.clock.advance(19.9)
            self.assertFalse(transport.disconnecting)
            self.clock.advance(0.2)
        self.assertTrue(transport.aborted)
        self.assertIn(f"warn: slave {PEER_NAME} has sent no report for 20.0 s: closing", lines())

    def test_a_java_slave_may_take_six_seconds_to_its_first_report(self) -> None:
        _, transport = self.connect()
        self.clock.advance(6)
        transport.deliver(encode_report(1))
        self.assertEqual(transfers_in(transport.take()), IMAGE.transfers(1))

    def test_only_whole_reports_are_signs_of_life(self) -> None:
        """A peer cannot keep its connection by sending single bytes."""
        _, transport = self.connect()
        for _ in range(3):
            self.clock.advance(6)
            transport.deliver(b"\0")
        self.assertFalse(transport.disconnecting)
        self.clock.advance(2)
        self.assertTrue(transport.aborted)

    def test_reports_keep_the_connection_and_their_end_ends_it(self) -> None:
        _, transport = self.request(1)
        for _ in range(10):
            self.clock.advance(19)
            transport.deliver(encode_report(1))
        self.assertFalse(transport.disconnecting)
        self.clock.pump([1] * 20)
        self.assertTrue(transport.aborted)


class AcknowledgementTests(MasterTestCase):
    """What a slave reports later."""

    def test_the_last_of_many_reports_counts(self) -> None:
        connection, transport = self.request(1)
        transport.deliver(b"".join(encode_report(offset) for offset in IMAGE.boundaries[1:]))
        self.assertEqual(progress_of(connection).reported, IMAGE.end)

    def test_reports_in_pieces_of_one_byte_count_when_they_are_whole(self) -> None:
        connection, transport = self.connect()
        for byte in encode_report(1) + encode_report(IMAGE.messages[3]):
            self.assertTrue(connection.progress is None or connection.progress.reported == 1)
            transport.deliver(bytes([byte]))
        self.assertEqual(progress_of(connection).reported, IMAGE.messages[3])

    def test_ten_thousand_reports_are_taken(self) -> None:
        connection, transport = self.request(1)
        for at in range(10_000):
            transport.deliver(encode_report(min(1 + at, IMAGE.end)))
        self.assertEqual(progress_of(connection).reported, min(10_000, IMAGE.end))
        self.assertFalse(transport.disconnecting)

    def test_facts_tell_where_a_slave_is(self) -> None:
        connection, transport = self.connect()
        self.assertEqual((connection.facts()["state"], connection.facts()["lagBytes"]), ("REQUEST", None))
        self.clock.advance(3)
        transport.deliver(encode_report(1))
        transport.deliver(encode_report(IMAGE.messages[3]))
        self.clock.advance(2)
        self.assertEqual(
            connection.facts(),
            {
                "peer": PEER_NAME,
                "identity": PEER.host,
                "state": "TRANSFER",
                "requestOffset": 1,
                "ackOffset": IMAGE.messages[3],
                "sentOffset": IMAGE.end,
                "lagBytes": IMAGE.end - IMAGE.messages[3],
                "connectedSeconds": 5.0,
                "silentSeconds": 2.0,
            },
        )

    def test_a_slave_gone_is_named_with_how_far_it_was(self) -> None:
        _, transport = self.request(1, IMAGE.messages[3])
        with log_lines() as lines:
            transport.lose()
        self.assertIn(f"info: slave {PEER_NAME} is gone at {IMAGE.messages[3]}: Connection was closed cleanly", lines())
        self.assertEqual(self.factory.connections, [])


class SlowSlaveTests(MasterTestCase):
    """A slave that does not read costs a bounded piece of memory, and nobody else anything."""

    def setUp(self) -> None:
        super().setUp()
        self.image = make_image([60_000] * 50, segment_size=1 << 20)
        self.assertGreater(len(self.image.content), 4 * WRITE_BYTES)
        self.serve(memory_log(self.image), 32 * 1024)

    def test_what_waits_for_a_slave_that_does_not_read_is_bounded(self) -> None:
        connection, transport = self.connect(SlowTransport(self.clock))
        transport.deliver(encode_report(1))
        frames = -(-WRITE_BYTES // (32 * 1024)) + 1
        limit = SlowTransport.bufferSize + WRITE_BYTES + frames * TRANSFER_HEADER.size
        waiting = len(transport.value())
        self.assertLessEqual(waiting, limit)
        for _ in range(7):  # neither heartbeats nor growth add to it
            self.clock.advance(2.5)
            self.factory._log_grew()
        self.assertEqual(len(transport.value()), waiting)
        self.assertLess(progress_of(connection).sent, self.image.end)

    def test_a_slow_slave_gets_the_whole_log_in_the_end(self) -> None:
        _, transport = self.connect(SlowTransport(self.clock))
        assert isinstance(transport, SlowTransport)
        transport.deliver(encode_report(1))
        sent: list[Transfer] = []
        while data := transport.drain():
            sent += transfers_in(data)
        self.assertEqual(b"\0" + b"".join(frame.body for frame in sent), self.image.content)

    def test_a_fast_slave_does_not_wait_for_a_slow_one(self) -> None:
        _, slow = self.connect(SlowTransport(self.clock))
        slow.deliver(encode_report(1))
        _, fast = self.request(1)
        self.assertEqual(b"\0" + b"".join(frame.body for frame in transfers_in(fast.take())), self.image.content)

    def test_a_paused_slave_is_still_timed_out(self) -> None:
        _, transport = self.connect(SlowTransport(self.clock))
        transport.deliver(encode_report(1))
        self.clock.pump([1] * 21)
        self.assertTrue(transport.aborted)

    def test_a_transport_that_is_gone_gets_nothing_more(self) -> None:
        connection, transport = self.request(1)
        transport.take()
        connection.stopProducing()
        self.clock.advance(5)
        self.factory._log_grew()
        self.assertEqual(transport.take(), b"")


class ChangingLogTests(MasterTestCase):
    """What is done to the log under a transfer."""

    def test_a_slave_whose_next_bytes_were_deleted_is_closed(self) -> None:
        """Retention has passed a slave that is too slow."""
        image = make_image([60_000] * 50, segment_size=1 << 20)
        self.serve(memory_log(image), 32 * 1024)
        connection, transport = self.connect(SlowTransport(self.clock))
        assert isinstance(transport, SlowTransport)
        transport.deliver(encode_report(1))
        at = progress_of(connection).sent
        self.log.min_offset = 2 << 20
        with log_lines() as lines:
            transport.drain()
        self.assertTrue(transport.aborted)
        self.assertIn(
            f"warn: slave {PEER_NAME} is at {at}, which was deleted; our log starts at {2 << 20}: closing", lines()
        )

    def test_a_slave_that_got_what_was_cut_since_is_closed(self) -> None:
        """Its log is no longer a prefix of ours, so we must not send any byte after it."""
        for regrown_to in (None, IMAGE.messages[15]):
            self.serve(memory_log(IMAGE))
            _, transport = self.request(1)
            transport.take()
            self.log.truncate(IMAGE.messages[10])
            with log_lines() as lines:
                if regrown_to is None:
                    self.clock.advance(2.5)
                else:
                    self.grow(IMAGE.prefix(regrown_to))
            self.assertTrue(transport.aborted)
            self.assertEqual(transport.take(), b"")
            end = regrown_to or IMAGE.messages[10]
            self.assertIn(f"is at {IMAGE.end}, our log was cut to {end}: closing", lines())


class FactoryTests(MasterTestCase):
    """Many connections."""

    def test_no_more_than_the_limit_are_connected(self) -> None:
        self.serve(self.log, limits=HALimits(connections=3))
        transports = [self.request(1)[1] for _ in range(3)]
        with log_lines() as lines:
            self.assertIsNone(self.factory.buildProtocol(PEER))
        self.assertIn("warn: refusing", lines())
        self.assertIn("192.0.2.7", lines())
        transports[0].lose()
        self.assertIsNotNone(self.factory.buildProtocol(PEER))
        self.factory.connections.pop()

    def test_each_slave_is_named_by_its_address(self) -> None:
        for address, name in ((IPv4Address("TCP", "192.0.2.8", 1), "192.0.2.8:1"), (None, "None")):
            connection = self.factory.buildProtocol(address)
            assert connection is not None
            self.assertEqual(connection.peer, name)
            self.factory.connections.remove(connection)

    def test_all_slaves_can_be_dropped_whether_they_asked_or_not(self) -> None:
        waiting, (connection, serving) = self.connect()[1], self.request(1)
        self.factory.close_connections()
        self.factory.close_connections()
        self.assertEqual(connection.state, HAConnectionState.CLOSED)
        self.clock.advance(0)
        self.assertTrue(waiting.over)
        self.assertTrue(serving.over)
        self.assertFalse(serving.aborted, "what was sent is delivered")

    def test_no_producer_keeps_a_dropped_slave_connected(self) -> None:
        """TLS closes a connection only when nothing is registered to produce more."""
        _, transport = self.request(1)
        self.assertIsNotNone(transport.producer)
        self.factory.close_connections()
        self.assertIsNone(transport.producer)

    def test_a_dropped_slave_that_reads_nothing_is_aborted_in_the_end(self) -> None:
        class DeafTransport(SlowTransport):
            def loseConnection(self) -> None:
                """Like a socket, waits until all is written."""

        connection, transport = self.connect(DeafTransport(self.clock))
        transport.deliver(encode_report(1))
        self.factory.close_connections()
        self.assertEqual(self.factory.connections, [connection])
        self.clock.pump([1] * 21)
        self.assertTrue(transport.aborted)
