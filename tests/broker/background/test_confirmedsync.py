"""A slave asks its master what is confirmed, and serves no more than that and than what it has proved itself."""

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.background import confirmedsync
from rmqha.broker.background.confirmedsync import PAUSE_SECONDS, RETRY_SECONDS, UNKNOWN_TO_MASTER, ConfirmedFollower
from rmqha.remoting.calls import RemotingError
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.command import RemotingCommand, ResponseCode
from tests.ha.doubles import FakeEndpoint, append, log_lines, make_image, memory_log

IMAGE = make_image([300] * 10)


class FakeClient:
    """A connection to the master: the test answers."""

    clients: list["FakeClient"] = []

    def __init__(self, endpoint: object, clock: object) -> None:
        self.asked: list[Mapping[str, str]] = []
        self.stopped = False
        self._answer: Deferred[RemotingCommand] = Deferred()
        FakeClient.clients.append(self)

    def start(self) -> None:
        pass

    def stop(self) -> Deferred[None]:
        self.stopped = True
        return succeed(None)

    def call(self, code: int, fields: Mapping[str, str], timeout: float) -> Deferred[RemotingCommand]:
        self.asked.append(fields)
        self._answer = Deferred()
        return self._answer

    def answer(self, offset: object) -> None:
        self._answer.callback(RemotingCommand(ResponseCode.SUCCESS, ext_fields={"offset": str(offset)}))

    def fail(self, error: Exception) -> None:
        self._answer.errback(error)


class FollowerTests(SynchronousTestCase):
    """The master's answers, and what they allow."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.patch(confirmedsync, "RemotingClient", FakeClient)
        FakeClient.clients = []
        self.log = memory_log()
        self.limit = ReadLimit(self.clock, 0)
        self.holds: int | None = 1000
        self.start(FakeEndpoint(self.clock))

    def start(self, endpoint: Any) -> None:
        self.follower = ConfirmedFollower(self.limit, self.log, lambda: self.holds, endpoint, self.clock)
        self.follower.startService()
        self.addCleanup(self.follower.stopService)

    @property
    def master(self) -> FakeClient:
        return FakeClient.clients[-1]

    def test_it_asks_while_it_follows_and_goes_on_from_the_last_answer(self) -> None:
        self.assertEqual(FakeClient.clients, [])
        self.follower.follow(True)
        self.follower.follow(True)
        self.assertEqual(self.master.asked, [{"after": "-1"}])
        self.master.answer(400)
        self.assertEqual(self.limit.offset, 400)
        self.clock.advance(PAUSE_SECONDS)
        self.assertEqual(self.master.asked[1:], [{"after": "400"}])
        self.assertEqual(self.follower.why(), "its master has confirmed the log up to 400")

    def test_it_serves_no_more_than_it_has_proved(self) -> None:
        self.follower.follow(True)
        self.holds = 300
        self.master.answer(600)
        self.assertEqual(self.limit.offset, 300)
        self.holds = 500
        append(self.log, IMAGE)
        self.clock.advance(0)
        self.assertEqual(self.limit.offset, 500)

    def test_an_answer_counts_only_for_the_master_that_gave_it(self) -> None:
        self.follower.follow(True)
        self.holds = 300
        self.master.answer(600)
        first = self.master
        self.follower.follow(False)
        self.assertTrue(first.stopped)
        self.assertEqual(self.follower.why(), "the slave does not follow its master")
        self.follower.follow(True)
        self.holds = 900
        append(self.log, IMAGE)
        self.clock.advance(0)
        self.assertEqual(self.limit.offset, 300)
        self.assertEqual(self.master.asked, [{"after": "-1"}])

    def test_without_a_proved_log_it_serves_nothing(self) -> None:
        self.follower.follow(True)
        self.holds = None
        self.master.answer(600)
        self.assertEqual(self.limit.offset, 0)

    def test_a_master_that_cannot_say_it_is_named_once_and_asked_again(self) -> None:
        unknown = RemotingError("unknown", RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        with log_lines() as lines:
            self.follower.follow(True)
            for _ in range(3):
                self.master.fail(unknown)
                self.clock.advance(RETRY_SECONDS)
            self.assertEqual(lines().count(UNKNOWN_TO_MASTER), 1)
            self.assertEqual(self.follower.why(), UNKNOWN_TO_MASTER)
            self.master.answer(500)
            self.assertIn("the master says what is confirmed", lines())
        self.assertEqual((len(self.master.asked), self.limit.offset), (4, 500))

    def test_answers_that_are_no_offsets_and_errors_change_nothing(self) -> None:
        self.follower.follow(True)
        self.master.answer("x")
        self.assertEqual(self.follower.why(), "its master's answer is not an offset")
        self.clock.advance(RETRY_SECONDS)
        self.master.fail(TimeoutError("too late"))
        self.assertIn("too late", self.follower.why())
        self.assertEqual(self.limit.offset, 0)

    def test_a_stop_ends_the_question(self) -> None:
        self.follower.follow(True)
        self.successResultOf(self.follower.stopService())
        self.assertTrue(self.master.stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_without_a_remoting_port_it_says_so(self) -> None:
        self.start(None)
        self.follower.follow(True)
        self.assertEqual(FakeClient.clients, [])
        self.assertEqual(self.follower.why(), "its master's remoting port is not known")
