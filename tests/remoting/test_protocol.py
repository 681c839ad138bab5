"""Both ends of remoting: requests are answered, calls end, and peers with another protocol are closed."""

from collections.abc import Mapping

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import alsoProvides

from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS, RemotingError
from rmqha.remoting.protocol import SERVER_CHANNEL_MAX_IDLE_SECONDS, Processors, RemotingProtocol, call_once
from rmqha.wire.command import (
    FRAME_MAX_LENGTH,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    RemotingCommand,
    ResponseCode,
    decode_command,
    encode_command,
)
from tests.ha.doubles import FakeEndpoint, LineTransport, log_lines

ECHO, FAIL, UNKNOWN = 28, 29, 30


def echo(_: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
    """An answer that has the request's fields and body."""
    return RemotingCommand(ResponseCode.SUCCESS, ext_fields=request.ext_fields, body=request.body)


def break_down(_: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
    """No answer at all."""
    raise KeyError("nothing here")


PROCESSORS: Processors = {ECHO: echo, FAIL: break_down}


def frame(command: RemotingCommand) -> bytes:
    """The command's bytes on the wire."""
    content = encode_command(command)
    return len(content).to_bytes(4, "big") + content


def commands_in(data: bytes) -> list[RemotingCommand]:
    """The commands that these bytes are."""
    commands = []
    while data:
        size = int.from_bytes(data[:4], "big")
        assert len(data) >= 4 + size
        commands.append(decode_command(data[4 : 4 + size]))
        data = data[4 + size :]
    return commands


class RemotingTestCase(SynchronousTestCase):
    """One connection on a string transport and a clock."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.protocol = RemotingProtocol(PROCESSORS, self.clock)
        self.line = LineTransport(self.clock)
        self.line.attach(self.protocol)

    def tearDown(self) -> None:
        """The connection ends, and leaves nothing on the clock."""
        self.line.lose(ConnectionLost())
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def ask(self, code: int, flag: int = 0, body: bytes = b"", fields: Mapping[str, str] | None = None) -> None:
        """The peer sends a request."""
        self.line.deliver(frame(RemotingCommand(code, opaque=77, flag=flag, body=body, ext_fields=fields or {})))

    def answers(self) -> list[RemotingCommand]:
        """What was written since the last call."""
        return commands_in(self.line.take())


class AnswerTests(RemotingTestCase):
    """Requests of the peer."""

    def test_a_request_is_answered_under_its_opaque(self) -> None:
        self.ask(ECHO, body=b"body", fields={"a": "1"})
        (answer,) = self.answers()
        self.assertEqual((answer.code, answer.opaque, answer.flag), (ResponseCode.SUCCESS, 77, RESPONSE_FLAG))
        self.assertEqual((answer.ext_fields, answer.body), ({"a": "1"}, b"body"))

    def test_requests_in_one_read_and_in_pieces_are_answered_alike(self) -> None:
        data = b"".join(frame(RemotingCommand(ECHO, opaque=number, body=b"x" * number)) for number in range(5))
        self.line.deliver(data)
        whole = self.answers()
        for byte in data:
            self.line.deliver(bytes([byte]))
        self.assertEqual(self.answers(), whole)
        self.assertEqual([answer.opaque for answer in whole], list(range(5)))

    def test_an_unknown_request_is_answered_with_an_error(self) -> None:
        """5.x slaves ask for things that 4.x masters never heard of, and only log the answer."""
        self.ask(UNKNOWN)
        (answer,) = self.answers()
        self.assertEqual((answer.code, answer.opaque), (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 77))
        self.assertEqual(answer.remark, f" request type {UNKNOWN} not supported")

    def test_a_processor_that_breaks_down_is_answered_for_and_logged(self) -> None:
        self.ask(FAIL)
        (answer,) = self.answers()
        self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, "KeyError: 'nothing here'"))
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.assertFalse(self.line.disconnecting)

    def test_one_way_requests_are_never_answered(self) -> None:
        for code in (ECHO, UNKNOWN, FAIL):
            self.ask(code, flag=ONEWAY_FLAG)
        self.assertEqual(self.answers(), [])
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1, "it was run all the same")


class StrangerTests(RemotingTestCase):
    """Peers that speak something else, or nothing."""

    def assert_dropped(self, data: bytes, reason: str) -> None:
        with log_lines() as lines:
            self.line.deliver(data)
        self.assertTrue(self.line.disconnecting)
        self.assertEqual(self.line.take(), b"")
        self.assertIn("warn: closing IPv4Address", lines())
        self.assertIn("192.0.2.7", lines())
        self.assertIn(reason, lines())

    def test_a_frame_longer_than_the_limit_is_dropped_by_its_length_alone(self) -> None:
        self.assert_dropped((FRAME_MAX_LENGTH + 1).to_bytes(4, "big"), f"a frame of {FRAME_MAX_LENGTH + 1} bytes")

    def test_text_is_dropped(self) -> None:
        self.assert_dropped(b"GET / HTTP/1.1\r\n\r\n", f"a frame of {int.from_bytes(b'GET ', 'big')} bytes")

    def test_a_tls_hello_is_dropped(self) -> None:
        self.assert_dropped(bytes.fromhex("16030100c8010000c40303"), "it uses TLS")

    def test_a_frame_of_garbage_is_dropped(self) -> None:
        for garbage in (b"", b"\0", b"\x07\0\0\0", b"\0\0\0\x05{", b"\0\0\0\x02[]", b"\0\0\0\x02{}", b"\x01\0\0\x02ab"):
            self.setUp()
            self.assert_dropped(len(garbage).to_bytes(4, "big") + garbage, "closing")
            self.tearDown()

    def test_a_silent_peer_is_dropped_after_the_idle_time_and_requests_keep_it(self) -> None:
        for _ in range(3):
            self.clock.advance(SERVER_CHANNEL_MAX_IDLE_SECONDS - 1)
            self.ask(UNKNOWN)
        self.assertFalse(self.line.disconnecting)
        self.clock.advance(SERVER_CHANNEL_MAX_IDLE_SECONDS)
        self.assertTrue(self.line.disconnecting)

    def test_half_a_frame_is_no_sign_of_life(self) -> None:
        self.clock.advance(SERVER_CHANNEL_MAX_IDLE_SECONDS - 1)
        self.line.deliver(frame(RemotingCommand(ECHO))[:20])
        self.clock.advance(1)
        self.assertTrue(self.line.disconnecting)

    def test_a_socket_is_aborted_however_much_waits_to_be_written(self) -> None:
        def idle() -> None:
            self.clock.advance(SERVER_CHANNEL_MAX_IDLE_SECONDS)

        def garbage() -> None:
            self.line.deliver(b"\0\0\0\0")

        for end in (idle, garbage):
            self.setUp()
            alsoProvides(self.line, ITCPTransport)
            end()
            self.assertTrue(self.line.aborted, end.__name__)
            self.tearDown()


class CallTests(RemotingTestCase):
    """Requests of ours."""

    def answer(self, opaque: int, code: int = ResponseCode.SUCCESS, **fields: str) -> None:
        """The peer answers."""
        command = RemotingCommand(code, opaque=opaque, flag=RESPONSE_FLAG, remark="because", ext_fields=fields)
        self.line.deliver(frame(command))

    def test_a_call_gets_its_answer(self) -> None:
        call = self.protocol.call(ECHO)
        (request,) = self.answers()
        self.assertEqual((request.code, request.flag), (ECHO, 0))
        self.assertNoResult(call)
        self.answer(request.opaque, a="1")
        self.assertEqual(self.successResultOf(call).ext_fields, {"a": "1"})

    def test_answers_in_any_order_reach_their_calls(self) -> None:
        calls = [self.protocol.call(ECHO) for _ in range(3)]
        opaques = [request.opaque for request in self.answers()]
        self.assertEqual(len(set(opaques)), 3)
        for at in (2, 0, 1):
            self.answer(opaques[at], at=str(at))
        self.assertEqual([self.successResultOf(call).ext_fields["at"] for call in calls], ["0", "1", "2"])

    def test_an_answer_that_says_no_fails_the_call(self) -> None:
        call = self.protocol.call(ECHO)
        self.answer(self.answers()[0].opaque, ResponseCode.SYSTEM_ERROR)
        self.assertEqual(str(self.failureResultOf(call, RemotingError).value), "code 1: because")

    def test_a_call_without_an_answer_times_out_and_a_late_answer_is_for_nobody(self) -> None:
        call = self.protocol.call(ECHO)
        (request,) = self.answers()
        self.clock.advance(CALL_TIMEOUT_SECONDS - 0.1)
        self.assertNoResult(call)
        self.clock.advance(0.1)
        self.failureResultOf(call, DeferredTimeoutError)
        self.answer(request.opaque)
        self.assertFalse(self.line.disconnecting)

    def test_a_cancelled_call_is_forgotten(self) -> None:
        call = self.protocol.call(ECHO)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        self.answer(self.answers()[0].opaque)
        self.assertFalse(self.line.disconnecting)

    def test_an_answer_to_nothing_is_passed_over(self) -> None:
        self.answer(12345)
        self.assertFalse(self.line.disconnecting)
        self.ask(ECHO)
        self.assertEqual(len(self.answers()), 1)

    def test_a_second_answer_is_passed_over(self) -> None:
        call = self.protocol.call(ECHO)
        (request,) = self.answers()
        self.answer(request.opaque, at="1")
        self.answer(request.opaque, at="2")
        self.assertEqual(self.successResultOf(call).ext_fields, {"at": "1"})

    def test_a_lost_connection_fails_all_calls_at_once(self) -> None:
        calls = [self.protocol.call(ECHO) for _ in range(3)]
        self.line.lose(ConnectionLost())
        for call in calls:
            error = self.failureResultOf(call, RemotingError).value
            self.assertIn("the connection is gone: Connection to the other side was lost", str(error))

    def test_garbage_instead_of_an_answer_fails_the_call(self) -> None:
        call = self.protocol.call(ECHO)
        self.line.deliver(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.clock.advance(0)
        self.failureResultOf(call, RemotingError)


class CallOnceTests(SynchronousTestCase):
    """A connection for one question."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = FakeEndpoint(self.clock)
        self.call: Deferred[RemotingCommand] = Deferred.fromCoroutine(call_once(self.endpoint, ECHO, self.clock))

    def tearDown(self) -> None:
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def answer(self, line: LineTransport) -> None:
        """Another protocol of ours is the peer."""
        server = RemotingProtocol(PROCESSORS, self.clock)
        other = LineTransport(self.clock)
        other.attach(server)
        other.deliver(line.take())
        line.deliver(other.take())
        other.lose()

    def test_it_asks_and_hangs_up(self) -> None:
        line = self.endpoint.next().accept()
        self.answer(line)
        self.assertEqual(self.successResultOf(self.call).code, ResponseCode.SUCCESS)
        self.assertTrue(line.disconnecting)

    def test_a_refused_connection_fails_it(self) -> None:
        self.endpoint.next().refuse()
        self.failureResultOf(self.call, ConnectionRefusedError)

    def test_a_connection_that_is_never_made_times_out(self) -> None:
        self.clock.advance(CALL_TIMEOUT_SECONDS)
        self.failureResultOf(self.call, DeferredTimeoutError)
        self.assertEqual(self.endpoint.attempts, [])

    def test_a_peer_that_does_not_answer_is_hung_up_on(self) -> None:
        line = self.endpoint.next().accept()
        self.clock.advance(CALL_TIMEOUT_SECONDS)
        self.failureResultOf(self.call, DeferredTimeoutError)
        self.assertTrue(line.disconnecting)

    def test_cancelling_gives_up_the_connection_in_every_phase(self) -> None:
        self.call.cancel()
        self.failureResultOf(self.call, CancelledError)
        self.assertEqual(self.endpoint.attempts, [])
        self.setUp()
        line = self.endpoint.next().accept()
        self.call.cancel()
        self.failureResultOf(self.call, CancelledError)
        self.assertTrue(line.disconnecting)
