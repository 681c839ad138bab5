"""What the log and users read of connections that fail."""

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.error import TimeoutError as ConnectTimeoutError
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.connecting import GROWING_RETRIES, SUMMARY_SECONDS, RetryLines, connect_protocol, reason_of
from tests.ha.doubles import FakeEndpoint, log_lines


class ReasonTests(SynchronousTestCase):
    def test_errors_are_told_in_words(self) -> None:
        waiting: Deferred[None] = Deferred()
        clock = Clock()
        waiting.addTimeout(2.99992, clock)
        clock.advance(3)
        for error, words in (
            (self.failureResultOf(waiting).value, "no answer within 3 s"),
            (DeferredTimeoutError(), "no answer in time"),
            (ConnectTimeoutError(), "the connection attempt timed out"),
            (ConnectionRefusedError(), "Connection was refused by other side"),
            (ValueError(), "ValueError"),
            (OSError("the cable is out."), "the cable is out"),
        ):
            self.assertEqual(reason_of(error), words)


class QuietTests(SynchronousTestCase):
    def test_connecting_once_tells_the_log_nothing(self) -> None:
        endpoint, protocol = FakeEndpoint(Clock()), Protocol()
        connecting = connect_protocol(endpoint, protocol)
        with log_lines() as lines:
            attempt = endpoint.next()
            attempt.factory.doStart()
            attempt.accept()
            attempt.factory.doStop()
        self.assertIs(self.successResultOf(connecting), protocol)
        self.assertEqual(lines(), "")


class RetryLinesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.lines = RetryLines(Logger(), lambda: "the master at m:1", self.clock)

    def retry(self, times: int, reason: str = "refused") -> list[str]:
        with log_lines() as lines:
            for _ in range(times):
                self.lines.retry(reason, 30.0)
                self.clock.advance(30)
        return lines().splitlines()

    def test_many_are_told_together_and_none_is_left_out_of_the_count(self) -> None:
        self.assertEqual(len(self.retry(GROWING_RETRIES)), GROWING_RETRIES + 1)
        told = self.retry(int(3 * SUMMARY_SECONDS / 30))
        self.assertEqual(len(told), 3, told)
        for line in told:
            self.assertRegex(line, r"no connection to the master at m:1: refused \(\d+ attempts in the last 10 min\)")

    def test_another_reason_is_told_with_the_next_summary_at_the_latest(self) -> None:
        self.retry(GROWING_RETRIES)
        self.assertEqual(len(self.retry(1, "no route")), 1)

    def test_what_works_again_begins_anew(self) -> None:
        self.retry(GROWING_RETRIES + 5)
        self.lines.connected()
        self.assertEqual(len(self.retry(1)), 1)

    def test_a_reason_that_is_told_already_is_not_told_again(self) -> None:
        with log_lines() as lines:
            self.lines.retry("the line broke", 1.5, reason_is_told=True)
        self.assertEqual(lines(), "info: connecting to the master at m:1 again in 1.5 s")
