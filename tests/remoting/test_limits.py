"""The memory that one peer can use at a remoting port: incomplete frames, requests in progress, unread answers."""

import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest
from twisted.internet.address import IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import alsoProvides

from rmqha.remoting.budgets import PortBudget
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.protocol import (
    DEFAULT_LIMITS,
    SERVER_CHANNEL_MAX_IDLE_SECONDS,
    WRITTEN_AT_ONCE,
    BodyLimit,
    Later,
    Processors,
    RemotingFactory,
    RemotingLimits,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.remoting.turns import ANSWER_BYTES_PER_TURN, REFUSED_BYTES_BATCH, REFUSED_BYTES_SECONDS, ReadPace, Turns
from rmqha.wire.command import FRAME_MAX_LENGTH, ONEWAY_FLAG, RemotingCommand, ResponseCode, encode_command
from tests.ha.doubles import PEER, LineTransport, Socket, log_lines
from tests.remoting.test_protocol import commands_in, frame
from tests.remoting.test_turns import TurnClock

NOW, LATER, ODD = 28, 29, 31
LIMITS = RemotingLimits(connections=3, requests_in_progress=4, bytes_in_progress=1000, bytes_unread=5000)
MIB = 1024 * 1024


class LimitsTestCase(SynchronousTestCase):
    """A connection whose requests LATER are answered when the test says so."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.waiting: list[Deferred[RemotingCommand]] = []
        self.seen: list[int] = []
        self.protocol = RemotingProtocol({NOW: self.answer_now, LATER: self.answer_later}, self.clock, LIMITS)
        self.line = LineTransport(self.clock)
        alsoProvides(self.line, ITCPTransport)
        self.line.setTcpNoDelay = lambda enabled: None  # type: ignore[attr-defined]
        self.line.attach(self.protocol)

    def deliver_as_a_socket(self, data: bytes, size: int) -> None:
        """Bytes come in pieces while the connection is read."""
        for at in range(0, len(data), size):
            while self.line.producerState == "paused":
                self.clock.advance(REFUSED_BYTES_SECONDS)
            self.line.deliver(data[at : at + size])
        self.clock.advance(REFUSED_BYTES_SECONDS)

    def tearDown(self) -> None:
        self.line.lose()
        self.clock.advance(REFUSED_BYTES_SECONDS)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def answer_now(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request.opaque)
        return RemotingCommand(ResponseCode.SUCCESS, body=request.body)

    def answer_later(self, _: RemotingProtocol, request: RemotingCommand) -> Deferred[RemotingCommand]:
        self.seen.append(request.opaque)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def frames(self, code: int, *opaques: int, body: bytes = b"", flag: int = 0) -> bytes:
        return b"".join(frame(RemotingCommand(code, opaque, flag, body=body)) for opaque in opaques)

    def ask(self, code: int, *opaques: int, body: bytes = b"", flag: int = 0) -> None:
        self.line.deliver(self.frames(code, *opaques, body=body, flag=flag))

    def answered(self) -> list[tuple[int, int]]:
        """Opaque and code of what was written since the last call."""
        return [(answer.opaque, answer.code) for answer in commands_in(self.line.take())]

    def finish(self, at: int = 0) -> None:
        self.waiting.pop(at).callback(RemotingCommand(ResponseCode.SUCCESS))


class FrameTests(LimitsTestCase):
    """Frames in pieces."""

    def test_a_frame_is_kept_as_far_as_it_has_come_whatever_length_it_says(self) -> None:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            self.line.deliver(FRAME_MAX_LENGTH.to_bytes(4, "big"))
            for _ in range(1000):
                self.line.deliver(b"\0" * 7)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(after - before, 30_000)
        self.assertLess(peak - before, 60_000)

    @pytest.mark.long
    def test_a_long_frame_in_many_pieces_is_not_copied_with_each(self) -> None:
        """65536 pieces of a 16 MiB frame took minutes of copying."""
        content = encode_command(RemotingCommand(NOW, 5, body=bytes(16 * MIB - 1000)))
        whole = len(content).to_bytes(4, "big") + content
        self.deliver_as_a_socket(whole, 256)
        (answer,) = commands_in(self.line.take())
        self.assertEqual((answer.opaque, len(answer.body)), (5, 16 * MIB - 1000))

    def test_frames_cut_anywhere_are_whole_again(self) -> None:
        data = self.frames(NOW, 1, body=b"x" * 5) + self.frames(NOW, 2) + self.frames(NOW, 3, body=b"y" * 99)
        for cut in range(1, len(data)):
            self.line.deliver(data[:cut])
            self.line.deliver(data[cut:])
            self.clock.advance(0)
            self.assertEqual(self.answered(), [(1, 0), (2, 0), (3, 0)], cut)

    def test_what_follows_a_broken_frame_is_not_looked_at(self) -> None:
        self.line.deliver(self.frames(NOW, 1) + b"\0\0\0\4\x07abc" + self.frames(NOW, 2))
        self.assertTrue(self.line.aborted)
        self.assertEqual(self.seen, [1])
        self.line.lose()
        self.setUp()
        self.line.deliver(self.frames(NOW, 1) + b"\xff\xff\xff\xff" + self.frames(NOW, 2))
        self.assertTrue(self.line.aborted)
        self.assertEqual(self.seen, [1])

    def test_trickling_a_frame_is_no_sign_of_life(self) -> None:
        self.line.deliver(self.frames(NOW, 1, body=bytes(500))[:100])
        for _ in range(SERVER_CHANNEL_MAX_IDLE_SECONDS):
            self.line.deliver(b"\0")
            self.clock.advance(1)
        self.assertTrue(self.line.aborted)

    def test_a_call_on_a_connection_that_was_hung_up_fails_at_once(self) -> None:
        self.protocol.hang_up()
        self.failureResultOf(self.protocol.call(NOW), RemotingError)


class EncodingTests(LimitsTestCase):
    """Answers in the encoding of their request."""

    def test_an_answer_mirrors_its_request(self) -> None:
        for serialize_type in (1, 0):
            request = RemotingCommand(NOW, 5, body=b"body", serialize_type=serialize_type)
            self.line.deliver(frame(request))
            self.ask_unknown(serialize_type)
            answers = commands_in(self.line.take())
            self.assertEqual([answer.serialize_type for answer in answers], [serialize_type] * 2)
            self.assertEqual([answer.code for answer in answers], [0, 3])
            self.assertEqual(answers[0].body, b"body")

    def ask_unknown(self, serialize_type: int) -> None:
        self.line.deliver(frame(RemotingCommand(ODD, 6, serialize_type=serialize_type)))

    def test_an_answer_that_no_frame_can_hold_is_an_error(self) -> None:
        for answer in (
            RemotingCommand(ResponseCode.SUCCESS, body=bytes(FRAME_MAX_LENGTH)),
            RemotingCommand(ResponseCode.SUCCESS, remark="\udcff"),
        ):
            self.ask(LATER, 7)
            with log_lines() as lines:
                self.waiting.pop().callback(answer)
            self.assertEqual(self.answered(), [(7, ResponseCode.SYSTEM_ERROR)])
            self.assertIn(f"error: the answer to {LATER} cannot be sent", lines())

    def test_a_call_that_no_frame_can_hold_fails(self) -> None:
        call = self.protocol.call(NOW, body=bytes(FRAME_MAX_LENGTH))
        self.assertIn("longer than", str(self.failureResultOf(call, RemotingError).value))
        self.assertEqual(self.line.take(), b"")


class RequestsInProgressTests(LimitsTestCase):
    """Requests that wait for their answers."""

    def test_one_too_many_is_told_so_and_is_not_run(self) -> None:
        self.ask(LATER, 1, 2, 3, 4, 5)
        self.assertEqual(self.seen, [1, 2, 3, 4])
        self.assertEqual(self.answered(), [(5, ResponseCode.SYSTEM_BUSY)])
        self.finish()
        self.ask(LATER, 6)
        self.assertEqual(self.seen, [1, 2, 3, 4, 6])
        self.assertEqual(self.answered(), [(1, ResponseCode.SUCCESS)])

    def test_one_that_fails_makes_room_too(self) -> None:
        self.ask(LATER, 1, 2, 3, 4)
        self.waiting.pop().errback(KeyError("no"))
        self.ask(LATER, 5)
        self.assertEqual(self.seen, [1, 2, 3, 4, 5])
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_oneway_requests_count(self) -> None:
        self.ask(LATER, 1, 2, 3, 4, 5, flag=ONEWAY_FLAG)
        self.assertEqual(self.seen, [1, 2, 3, 4])
        self.assertEqual(self.answered(), [])

    def test_nothing_is_read_while_they_are_too_many_bytes(self) -> None:
        self.ask(LATER, 1, 2, 3, body=bytes(600))
        self.assertEqual(self.seen, [1, 2])
        self.assertEqual(self.line.producerState, "paused")
        self.finish()
        self.assertEqual(self.seen, [1, 2, 3], "600 bytes have room again, and one more frame to look at")
        self.assertEqual(self.line.producerState, "paused")
        self.finish()
        self.assertEqual(self.line.producerState, "producing")
        self.finish()
        self.assertEqual(self.answered(), [(1, 0), (2, 0), (3, 0)])

    def test_answers_at_once_take_no_room(self) -> None:
        self.ask(NOW, *range(20), body=bytes(200))
        self.assertEqual(self.seen, list(range(20)))
        self.assertEqual(self.line.producerState, "producing")


class UnreadAnswersTests(LimitsTestCase):
    """A peer that does not take what waits for it."""

    def test_its_requests_wait_even_those_that_have_come(self) -> None:
        write: Callable[[list[bytes]], None] = self.line.writeSequence

        def full(data: list[bytes]) -> None:
            write(data)
            self.protocol.pauseProducing()

        self.patch(self.line, "writeSequence", full)
        self.ask(NOW, 1, 2, 3)
        self.assertEqual(self.seen, [1])
        self.assertEqual(self.line.producerState, "paused")
        self.line.deliver(self.frames(NOW, 4)[:10])
        self.assertEqual(self.seen, [1])
        self.protocol.resumeProducing()
        self.assertEqual(self.seen, [1, 2])
        self.patch(self.line, "writeSequence", write)
        self.protocol.resumeProducing()
        self.assertEqual(self.seen, [1, 2, 3])
        self.assertEqual(self.line.producerState, "producing")
        self.line.deliver(self.frames(NOW, 4)[10:])
        self.assertEqual(self.answered(), [(1, 0), (2, 0), (3, 0), (4, 0)])

    def test_both_reasons_must_be_gone(self) -> None:
        self.ask(LATER, 1, 2, 3, body=bytes(600))
        self.protocol.pauseProducing()
        self.finish()
        self.assertEqual(self.seen, [1, 2])
        self.protocol.resumeProducing()
        self.assertEqual(self.seen, [1, 2, 3])
        self.assertEqual(self.line.producerState, "paused", "1200 bytes are in progress again")

    def test_one_that_lets_too_much_wait_is_dropped(self) -> None:
        self.protocol.pauseProducing()
        self.protocol.push(40, body=bytes(4000))
        self.assertFalse(self.line.aborted)
        with log_lines() as lines:
            self.protocol.push(40, body=bytes(4000))
        self.assertTrue(self.line.aborted)
        self.assertIn("it does not read", lines())

    def test_what_is_taken_counts_no_more(self) -> None:
        for _ in range(5):
            self.protocol.pauseProducing()
            self.protocol.push(40, body=bytes(4000))
            self.protocol.resumeProducing()
        self.assertFalse(self.line.aborted)


class ConnectionsTests(SynchronousTestCase):
    """Connections of a port."""

    def test_those_beyond_the_limit_are_refused_until_one_goes(self) -> None:
        clock = Clock()
        factory = RemotingFactory({}, clock, LIMITS)
        lines = []
        with log_lines() as logged:
            for _ in range(3):
                line = LineTransport(clock)
                protocol = factory.buildProtocol(PEER)
                assert protocol is not None
                line.attach(protocol)
                lines.append(line)
            for _ in range(5):
                self.assertIsNone(factory.buildProtocol(PEER))
            lines.pop().lose()
            protocol = factory.buildProtocol(PEER)
            self.assertIsNone(factory.buildProtocol(PEER))
        assert protocol is not None
        lines.append(LineTransport(clock))
        lines[-1].attach(protocol)
        self.assertEqual(logged().count("refusing connections: there are 3"), 2, logged())
        for line in lines:
            line.lose()
        self.assertEqual(factory.connections, 0)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_an_address_that_connects_too_fast_is_refused_and_others_are_not(self) -> None:
        clock = Clock()
        factory = RemotingFactory({}, clock, RemotingLimits(connects_at_once=3, connects_per_second=2))

        def accepted(host: str, count: int) -> int:
            """How many of so many new connections are accepted. They are closed again."""
            found = 0
            for _ in range(count):
                protocol = factory.buildProtocol(IPv6Address("TCP", host, 1))
                if protocol is not None:
                    line = LineTransport(clock)
                    line.attach(protocol)
                    line.lose()
                    found += 1
            return found

        with log_lines() as logged:
            self.assertEqual((accepted("2001:db8::1", 2), accepted("2001:db8::2", 5)), (2, 1), "one /64")
            self.assertEqual(accepted("2001:db8:1::1", 1), 1)
            clock.advance(1.0)
            self.assertEqual(accepted("2001:db8::3", 5), 2)
        self.assertEqual(factory.refused, 7)
        self.assertEqual(logged().count("it connects more than 2 times a second"), 1)


LONG = 30


class LongRequestTests(LimitsTestCase):
    """Requests that take several turns."""

    def setUp(self) -> None:
        super().setUp()
        self.long: list[Deferred[None]] = []
        self.later: Deferred[RemotingCommand] | None = None
        self.line.lose()
        self.protocol = RemotingProtocol({NOW: self.answer_now, LONG: self.answer_in_turns}, self.clock, LIMITS)
        self.line = LineTransport(self.clock)
        self.line.attach(self.protocol)

    async def answer_in_turns(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand | Later:
        self.seen.append(request.opaque)
        self.long.append(Deferred())
        await self.long[-1]
        return RemotingCommand(ResponseCode.SUCCESS) if self.later is None else Later(self.later)

    def test_what_follows_a_long_request_waits_for_it(self) -> None:
        self.line.deliver(self.frames(LONG, 1) + self.frames(NOW, 2))
        self.line.deliver(self.frames(NOW, 3))
        self.assertEqual((self.seen, self.line.producerState), ([1], "paused"))
        self.long[0].callback(None)
        self.clock.advance(0)
        self.assertEqual(self.answered(), [(1, 0), (2, 0), (3, 0)])
        self.assertEqual(self.line.producerState, "producing")

    def test_what_follows_does_not_wait_for_an_answer_that_comes_later(self) -> None:
        self.later = Deferred()
        self.line.deliver(self.frames(LONG, 1) + self.frames(NOW, 2))
        self.long[0].callback(None)
        self.clock.advance(0)
        self.assertEqual(self.answered(), [(2, 0)])
        self.later.callback(RemotingCommand(ResponseCode.SUCCESS))
        self.assertEqual(self.answered(), [(1, 0)])

    def test_one_that_fails_is_answered_and_holds_up_nobody(self) -> None:
        self.line.deliver(self.frames(LONG, 1) + self.frames(NOW, 2))
        self.long[0].errback(RequestRefused(ResponseCode.SYSTEM_BUSY, "no"))
        self.clock.advance(0)
        self.assertEqual(self.answered(), [(1, ResponseCode.SYSTEM_BUSY), (2, 0)])

    def test_a_connection_may_go_meanwhile(self) -> None:
        self.line.deliver(self.frames(LONG, 1) + self.frames(NOW, 2))
        self.line.lose()
        self.long[0].callback(None)
        self.clock.advance(0)
        self.assertEqual((self.seen, self.answered()), ([1], []))


class CrowdTests(LimitsTestCase):
    """What the pieces of many connections' frames take together."""

    BUDGET_BYTES = 4 * MIB

    def kept_of_crowd(self, *pieces: bytes) -> int:
        """Bytes kept of 100 connections, each of which sends these pieces while it is read."""
        budget = PortBudget(self.clock, self.BUDGET_BYTES)
        limits = RemotingLimits(header=256 * 1024)
        crowd = []
        for _ in range(100):
            protocol, line = RemotingProtocol({}, self.clock, limits, budget), LineTransport(self.clock)
            line.attach(protocol)
            crowd.append((protocol, line))
            for piece in pieces:
                if line.producerState == "producing":
                    line.deliver(piece)
        kept = sum(protocol.received_bytes for protocol, _ in crowd)
        for protocol, line in crowd:
            if protocol.is_open:
                line.lose()
        self.assertEqual((budget.small_bytes, budget.used_bytes), (0, 0))
        return kept

    def frame_with(self, field_bytes: int, body_bytes: int) -> bytes:
        fields = {"a": "x" * field_bytes}
        return frame(RemotingCommand(NOW, 1, ext_fields=fields, body=bytes(body_bytes)))

    def test_a_small_frame_that_comes_in_two_pieces_is_counted_whole(self) -> None:
        data = self.frame_with(0, 64_000)
        self.assertLessEqual(self.kept_of_crowd(data[:5], data[5:-1]), self.BUDGET_BYTES)

    def test_a_long_header_is_counted_while_it_comes(self) -> None:
        data = self.frame_with(200_000, 1000)
        self.assertLessEqual(self.kept_of_crowd(data[:20], data[20:150_000]), self.BUDGET_BYTES)

    def test_a_frame_with_a_long_header_reserves_all_of_its_bytes(self) -> None:
        data = self.frame_with(100_000, MIB)
        pieces = (data[:20], data[20:50_000], data[50_000:101_000], data[101_000:-1])
        self.assertLessEqual(self.kept_of_crowd(*pieces), 2 * self.BUDGET_BYTES)


class BodyLimitTests(LimitsTestCase):
    """A body that is too long for its request is neither kept nor waited for."""

    def setUp(self) -> None:
        super().setUp()
        limits = RemotingLimits(header=1000, bodies={NOW: BodyLimit(100_000, ResponseCode.MESSAGE_ILLEGAL)})
        self.line.lose()
        self.budget = PortBudget(self.clock, 16 * MIB)
        self.protocol = RemotingProtocol(
            {NOW: self.answer_now, LATER: self.answer_later}, self.clock, limits, self.budget
        )
        self.line = LineTransport(self.clock)
        self.line.attach(self.protocol)

    def test_it_is_refused_when_its_header_is_there_and_passed_over(self) -> None:
        data = self.frames(NOW, 1, body=bytes(15 * MIB)) + self.frames(NOW, 2)
        self.line.deliver(data[:70_000])
        self.assertEqual(self.answered(), [(1, ResponseCode.MESSAGE_ILLEGAL)])
        self.deliver_as_a_socket(data[70_000:], 65_536)
        self.assertEqual(self.answered(), [(2, 0)])
        self.assertEqual(self.budget.used_bytes, 0)

    def test_wherever_the_frame_is_cut(self) -> None:
        data = self.frames(NOW, 1, body=bytes(100_001)) + self.frames(NOW, 2)
        for cut in (1, 4, 5, 7, 8, 9, 50, 150, 1000, 100_000, len(data) - 5):
            self.line.deliver(data[:cut])
            self.line.deliver(data[cut:])
            self.clock.advance(0)
            self.assertEqual(self.answered(), [(1, ResponseCode.MESSAGE_ILLEGAL), (2, 0)], cut)

    def test_the_longest_that_is_taken_is_taken(self) -> None:
        data = self.frames(NOW, 1, body=bytes(100_000))
        self.deliver_as_a_socket(data, 4096)
        self.assertEqual((self.answered(), self.budget.used_bytes), ([(1, 0)], 0))

    def test_a_header_that_is_too_long_ends_the_connection(self) -> None:
        with log_lines() as lines:
            self.line.deliver((MIB).to_bytes(4, "big") + (70_000).to_bytes(4, "big"))
        self.assertFalse(self.protocol.is_open)
        self.assertIn("a header of 70004 bytes", lines())

    def test_a_frame_without_room_is_not_read_until_there_is_some(self) -> None:
        other = LineTransport(self.clock)
        other.attach(RemotingProtocol({LATER: self.answer_later}, self.clock, DEFAULT_LIMITS, self.budget))
        data = self.frames(LATER, 1, body=bytes(10 * MIB))
        other.deliver(data[:100_000])
        self.line.deliver(self.frames(LATER, 2, body=bytes(9 * MIB))[:100_000])
        self.assertEqual(self.line.producerState, "paused")
        other.deliver(data[100_000:])
        self.assertEqual(self.line.producerState, "paused")
        self.finish()
        self.assertEqual(self.line.producerState, "producing")
        other.lose()


class PaceTests(SynchronousTestCase):
    """Large frames of all connections share what is read in a turn."""

    @staticmethod
    def note(order: list[int], number: int, _: None) -> None:
        order.append(number)

    def test_who_comes_when_much_was_read_waits_for_a_later_turn(self) -> None:
        clock = Clock()
        pace = ReadPace(clock, 100, 1.0)
        self.assertEqual([pace.take(60), pace.take(60)], [None, None])
        order: list[int] = []
        for number in range(4):
            waiting = pace.take(70)
            assert waiting is not None
            waiting.addCallback(partial(self.note, order, number))
        clock.advance(1)
        self.assertEqual(order, [0, 1])
        self.assertIsNotNone(pace.take(1), "not before those who wait")
        clock.advance(1)
        self.assertEqual(order, [0, 1, 2, 3])
        clock.pump([1.0, 1.0])
        self.assertIsNone(pace.take(1))
        clock.advance(1)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_many_refused_bodies_are_passed_over_a_little_at_a_time(self) -> None:
        """200 of them held each turn for 20 ms and took a processor for themselves."""
        clock = Clock()
        turns = Turns(clock)
        limits = RemotingLimits(bodies={NOW: BodyLimit(1000)})
        lines = [LineTransport(clock) for _ in range(50)]
        content = encode_command(RemotingCommand(NOW, 1, body=bytes(10 * MIB)))
        data = len(content).to_bytes(4, "big") + content[: 2 * MIB]
        sent = dict.fromkeys(lines, 0)
        for line in lines:
            line.attach(RemotingProtocol({NOW: lambda _, request: request}, clock, limits, turns=turns))
        read = []
        for _ in range(100):
            before = sum(sent.values())
            for line in lines:
                if line.producerState != "paused":
                    line.deliver(data[sent[line] : sent[line] + 65_536])
                    sent[line] += 65_536
            read.append(sum(sent.values()) - before)
            clock.advance(REFUSED_BYTES_SECONDS)
        self.assertEqual(read[0], 50 * 65_536, "each once, to see what it is")
        self.assertLessEqual(max(read[10:]), REFUSED_BYTES_BATCH)
        self.assertLess(max(read[1:10]), 4 * REFUSED_BYTES_BATCH)
        self.assertGreaterEqual(min(read[1:]), REFUSED_BYTES_BATCH // 2, "but it goes on")
        self.assertLessEqual(max(sent.values()) - min(sent.values()), 3 * 65_536, "all alike")
        for line in lines:
            line.lose()


class LargeAnswersTests(SynchronousTestCase):
    """Large answers of all connections share what is written in a turn."""

    BODY = bytes(range(250)) * 1000
    CLIENTS = 100

    def setUp(self) -> None:
        self.clock = TurnClock()
        self.turns = Turns(self.clock)
        self.produced = 0
        self.sockets = [Socket(self.clock) for _ in range(self.CLIENTS)]
        processors: Processors = {NOW: self.answer_now, LATER: self.answer_in_turns}
        for socket in self.sockets:
            socket.attach(RemotingProtocol(processors, self.clock, turns=self.turns))

    def tearDown(self) -> None:
        for socket in self.sockets:
            socket.lose()
        self.clock.advance(1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def answer_now(self, _: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        self.produced += len(self.BODY)
        return RemotingCommand(ResponseCode.SUCCESS, body=self.BODY)

    async def answer_in_turns(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        await connection.turns.next()
        return self.answer_now(connection, request)

    def longest_turn(self, code: int) -> int:
        """All clients ask in one turn, and read nothing. Returns the most bytes of answers that a turn produced."""
        for socket in self.sockets:
            socket.deliver(frame(RemotingCommand(code, 1)))
        most = self.produced
        for _ in self.sockets:
            before = self.produced
            self.clock.advance(1)
            most = max(most, self.produced - before)
        self.assertEqual(self.produced, len(self.sockets) * len(self.BODY), "all are answered")
        return most

    def test_a_turn_answers_a_few_of_many_clients(self) -> None:
        self.assertLess(self.longest_turn(NOW), 2 * ANSWER_BYTES_PER_TURN)

    def test_a_turn_answers_a_few_of_many_long_requests(self) -> None:
        self.assertLess(self.longest_turn(LATER), 2 * ANSWER_BYTES_PER_TURN)

    def test_a_transport_holds_a_piece_of_an_answer_that_nobody_reads(self) -> None:
        """The answers to 100 clients were copied whole, all in one turn."""
        self.longest_turn(NOW)
        self.assertLess(max(socket.waiting for socket in self.sockets), WRITTEN_AT_ONCE + 1000)

    def test_all_pieces_arrive_in_order(self) -> None:
        self.longest_turn(NOW)
        socket = self.sockets[0]
        socket.deliver(frame(RemotingCommand(NOW, 2)))
        for size in (1, 70_000, WRITTEN_AT_ONCE, 10 * MIB):
            socket.take(size)
        answers = commands_in(bytes(socket.taken))
        self.assertEqual([(answer.opaque, answer.body == self.BODY) for answer in answers], [(1, True), (2, True)])

    def test_what_is_answered_meanwhile_waits_for_its_place(self) -> None:
        self.longest_turn(NOW)
        socket = self.sockets[0]
        protocol = socket.protocol
        assert isinstance(protocol, RemotingProtocol)
        protocol.push(40, body=b"small")
        socket.take(10 * MIB)
        self.assertEqual([command.body for command in commands_in(bytes(socket.taken))], [self.BODY, b"small"])

    def test_a_client_that_goes_leaves_nothing(self) -> None:
        self.longest_turn(NOW)
        protocol = self.sockets[0].protocol
        assert isinstance(protocol, RemotingProtocol)
        protocol.hang_up()
        protocol.resumeProducing()
        self.assertLess(self.sockets[0].waiting, WRITTEN_AT_ONCE + 1000)
