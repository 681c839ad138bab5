"""A kept connection: it is made again when it is lost, and calls wait for it only until their timeout."""

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS, RemotingError
from rmqha.remoting.client import MAX_RETRY_SECONDS, RemotingClient
from rmqha.remoting.protocol import Processors, RemotingProtocol
from rmqha.wire.command import RESPONSE_FLAG, RemotingCommand, ResponseCode
from tests.ha.doubles import FakeEndpoint, LineTransport
from tests.remoting.test_protocol import ECHO, PROCESSORS, commands_in, frame

MAX_JITTER_SECONDS = 1.0


class ClientTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = FakeEndpoint(self.clock)
        self.connections: list[RemotingProtocol] = []
        self.client = self.make()
        self.client.start()

    def make(self, processors: Processors | None = None) -> RemotingClient:
        return RemotingClient(self.endpoint, self.clock, processors, self.connections.append)

    def call(self, timeout: float = CALL_TIMEOUT_SECONDS) -> Deferred[RemotingCommand]:
        return Deferred.fromCoroutine(self.client.call(ECHO, {"a": "b"}, b"body", timeout))

    def answer(self, line: LineTransport, code: int = ResponseCode.SUCCESS) -> None:
        """The other end answers the one request that it has got."""
        (request,) = commands_in(line.take())
        self.assertEqual((request.code, request.ext_fields, request.body), (ECHO, {"a": "b"}, b"body"))
        line.deliver(frame(RemotingCommand(code, request.opaque, RESPONSE_FLAG, remark="so be it", body=b"yes")))

    def accept(self) -> LineTransport:
        """The connection is there, and those who wait for it know."""
        line = self.endpoint.next().accept()
        self.clock.advance(0)
        return line

    def retry(self) -> None:
        """Wait until it connects again."""
        self.clock.advance(MAX_RETRY_SECONDS + MAX_JITTER_SECONDS)
        self.assertEqual(len(self.endpoint.attempts), 1)

    def stop(self) -> None:
        """Stop it, and see that nothing is left."""
        stopped = self.client.stop()
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual((self.clock.getDelayedCalls(), self.endpoint.attempts), ([], []))


class CallTests(ClientTestCase):
    def test_calls_go_over_one_connection(self) -> None:
        line = self.endpoint.next().accept()
        for _ in range(2):
            asked = self.call()
            self.answer(line)
            self.assertEqual(self.successResultOf(asked).body, b"yes")
        self.assertEqual(self.endpoint.attempts, [])
        line.lose()
        self.stop()

    def test_a_call_waits_for_the_connection(self) -> None:
        asked = self.call()
        self.clock.advance(CALL_TIMEOUT_SECONDS - 0.5)
        line = self.accept()
        self.answer(line)
        self.successResultOf(asked)
        self.stop()

    def test_waiting_for_the_connection_counts(self) -> None:
        asked = self.call(timeout=3)
        self.clock.advance(2)
        line = self.endpoint.next().accept()
        self.clock.advance(0.9)
        self.assertNoResult(asked)
        self.clock.advance(0.1)
        self.failureResultOf(asked, DeferredTimeoutError)
        line.take()
        self.stop()

    def test_a_call_fails_when_no_connection_comes(self) -> None:
        asked = self.call(timeout=3)
        self.clock.advance(3)
        self.failureResultOf(asked, DeferredTimeoutError)
        self.stop()

    def test_a_call_fails_as_the_attempt_does_that_it_waits_for(self) -> None:
        asked = self.call()
        self.endpoint.next().refuse()
        self.clock.advance(0)
        self.failureResultOf(asked, ConnectionRefusedError)
        self.stop()

    def test_who_hears_of_a_failure_may_ask_again_at_once(self) -> None:
        """Code that requests several tables does so. ClientService must not be called while it fires its Deferreds."""
        failures: list[str] = []

        async def ask_twice() -> None:
            for _ in range(2):
                try:
                    await self.client.call(ECHO)
                except Exception as error:
                    failures.append(type(error).__name__)

        asking = Deferred.fromCoroutine(ask_twice())
        self.endpoint.next().refuse()
        self.retry()
        self.endpoint.next().refuse()
        self.clock.advance(0)
        self.successResultOf(asking)
        self.assertEqual(failures, ["ConnectionRefusedError"] * 2)
        self.stop()

    def test_who_hears_of_the_connection_may_ask_for_it_again_at_once(self) -> None:
        found: list[RemotingProtocol] = []

        async def ask_twice() -> None:
            found.append(await self.client.when_connected())
            found.append(await self.client.when_connected())

        asking = Deferred.fromCoroutine(ask_twice())
        self.accept()
        self.successResultOf(asking)
        self.assertEqual((len(found), len(set(found))), (2, 1))
        self.stop()

    def test_an_answer_other_than_success_is_an_error(self) -> None:
        line = self.endpoint.next().accept()
        asked = self.call()
        self.answer(line, ResponseCode.SYSTEM_ERROR)
        self.assertIn("so be it", str(self.failureResultOf(asked, RemotingError).value))
        self.stop()

    def test_a_call_fails_with_its_connection_and_the_next_one_has_another(self) -> None:
        line = self.endpoint.next().accept()
        asked = self.call()
        line.lose(ConnectionLost())
        self.failureResultOf(asked, RemotingError)
        self.retry()
        asked = self.call()
        self.answer(self.accept())
        self.successResultOf(asked)
        self.stop()

    def test_one_that_waits_when_the_client_stops_ends(self) -> None:
        asked = self.call()
        self.stop()
        self.failureResultOf(asked, CancelledError)


class ConnectionTests(ClientTestCase):
    def test_it_is_told_of_each_connection_before_anybody_waits_for_it(self) -> None:
        known_before: list[int] = []
        self.client.when_connected().addCallback(lambda _: known_before.append(len(self.connections)))
        self.accept()
        self.assertEqual(known_before, [1])

    def test_a_lost_connection_is_made_anew(self) -> None:
        for number in range(3):
            self.endpoint.next().accept().lose()
            self.assertEqual(len(self.connections), number + 1)
            self.retry()
        self.stop()

    def test_it_does_not_give_up(self) -> None:
        for _ in range(20):
            self.endpoint.next().refuse()
            self.retry()
        self.endpoint.next().accept()
        self.assertEqual(len(self.connections), 1)

    def test_stopping_closes_the_connection(self) -> None:
        line = self.endpoint.next().accept()
        self.stop()
        self.assertTrue(line.over)

    def test_requests_of_the_other_end_are_answered(self) -> None:
        self.stop()
        self.client = self.make(PROCESSORS)
        self.client.start()
        line = self.endpoint.next().accept()
        line.deliver(frame(RemotingCommand(ECHO, 7, body=b"hello")))
        (answer,) = commands_in(line.take())
        self.assertEqual((answer.opaque, answer.body), (7, b"hello"))
