"""The answers of one read go to an idle socket together, in their order."""

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.protocol import ROUND_BYTES, WRITTEN_AT_ONCE, Processors, RemotingProtocol
from rmqha.wire.command import RemotingCommand, ResponseCode
from tests.kit.test_sending import Line
from tests.remoting.test_protocol import commands_in, frame

ECHO, LATER, BREAK = 28, 29, 30


class CountingLine(Line):
    """Keeps how much was written at once."""

    def __init__(self, reactor: MemoryReactorClock) -> None:
        super().__init__(reactor)
        self.writes: list[int] = []

    def writeSomeData(self, data: bytes) -> int | Exception:
        taken = super().writeSomeData(data)
        self.writes.append(taken if isinstance(taken, int) else 0)
        return taken


class RoundTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.line = CountingLine(self.reactor)
        self.later: list[Deferred[RemotingCommand]] = []
        processors: Processors = {ECHO: self.echo, LATER: self.answer_later, BREAK: self.break_off}
        self.protocol = RemotingProtocol(processors, self.reactor)
        self.protocol.makeConnection(self.line)
        self.addCleanup(self.protocol.setTimeout, None)

    def echo(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(ResponseCode.SUCCESS, body=request.body)

    def answer_later(self, _: RemotingProtocol, request: RemotingCommand) -> Deferred[RemotingCommand]:
        self.later.append(Deferred())
        return self.later[-1]

    def break_off(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        connection.hang_up()
        return RemotingCommand(ResponseCode.SUCCESS)

    def ask(self, *bodies: bytes, code: int = ECHO, first: int = 1) -> None:
        requests = [RemotingCommand(code, number, body=body) for number, body in enumerate(bodies, first)]
        self.protocol.dataReceived(b"".join(map(frame, requests)))

    def answers(self) -> list[tuple[int, int]]:
        """Opaque and size of what the socket has."""
        return [(answer.opaque, len(answer.body)) for answer in commands_in(self.line.written)]

    def test_the_answers_of_one_read_are_one_write(self) -> None:
        self.ask(b"one", bytes(9000), b"three")
        self.assertEqual(self.answers(), [(1, 3), (2, 9000), (3, 5)])
        self.assertEqual(len(self.line.writes), 1)
        self.assertNotIn(self.line, self.reactor.writers, "the reactor did not have to write")

    def test_many_bytes_do_not_wait_for_the_end_of_the_read(self) -> None:
        self.ask(*[bytes(ROUND_BYTES // 2)] * 5)
        self.assertEqual([number for number, _ in self.answers()], [1, 2, 3, 4, 5])
        self.assertEqual(len(self.line.writes), 3)

    def test_a_long_body_comes_after_what_was_answered_before_it(self) -> None:
        self.ask(b"one", bytes(3 * WRITTEN_AT_ONCE), b"three")
        while self.line in self.reactor.writers:
            self.line.doWrite()
        self.assertEqual(self.answers(), [(1, 3), (2, 3 * WRITTEN_AT_ONCE), (3, 5)])

    def test_a_socket_that_takes_nothing_gets_the_rest_in_order(self) -> None:
        self.line.room = 10
        self.ask(*[bytes(ROUND_BYTES)] * 4)
        self.ask(b"five", first=5)
        self.line.room = None
        while self.line in self.reactor.writers:
            self.line.doWrite()
        self.assertEqual([number for number, _ in self.answers()], [1, 2, 3, 4, 5])

    def test_a_later_answer_comes_after_those_of_the_read(self) -> None:
        self.ask(b"", code=LATER)
        self.ask(b"two", first=2)
        self.later[0].callback(RemotingCommand(ResponseCode.SUCCESS))
        self.line.doWrite()
        self.assertEqual([number for number, _ in self.answers()], [2, 1])

    def test_a_connection_that_is_hung_up_has_the_answers_before_that_and_no_more(self) -> None:
        requests = [RemotingCommand(ECHO, 1, body=b"one"), RemotingCommand(BREAK, 2), RemotingCommand(ECHO, 3)]
        self.protocol.dataReceived(b"".join(map(frame, requests)))
        self.assertEqual(self.answers(), [(1, 3)])

    def test_answers_between_begin_and_end_are_one_write(self) -> None:
        self.ask(b"", b"", code=LATER)
        self.protocol.begin_round()
        for answer in self.later:
            answer.callback(RemotingCommand(ResponseCode.SUCCESS, body=b"held"))
        self.assertEqual(self.line.writes, [])
        self.protocol.end_round()
        self.assertEqual(self.answers(), [(1, 4), (2, 4)])
        self.assertEqual(len(self.line.writes), 1)
        self.ask(b"", code=LATER, first=3)
        self.later[-1].callback(RemotingCommand(ResponseCode.SUCCESS))
        self.assertIn(self.line, self.reactor.writers, "after the end the reactor writes")
