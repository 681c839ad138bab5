"""Many messages sent: several at a time, and what a failure ends."""

from collections.abc import Iterator

from twisted.internet.defer import Deferred

from rmqha.client import Message, MQBrokerError, Producer, SendResult
from rmqha.client.bulk import IN_FLIGHT, put_all
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import RemotingCommand, RequestCode
from tests.client.cluster import ClusterTestCase, broker_data, queue_data


class PutAllTests(ClusterTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.answers: list[Deferred[RemotingCommand]] = []
        self.taken: list[bytes] = []
        self.stored: list[SendResult] = []
        self.serve("a:1", {RequestCode.SEND_MESSAGE_V2: self.take})
        self.routes["T"] = [broker_data("a", master="a:1")], [queue_data("a", 1, 1)]

    def take(self, _: RemotingProtocol, request: RemotingCommand) -> Deferred[RemotingCommand]:
        self.taken.append(request.body)
        self.answers.append(Deferred())
        return self.answers[-1]

    def messages(self, count: int) -> Iterator[Message]:
        return (Message("T", b"%d" % number) for number in range(count))

    def put(self, count: int) -> Deferred[None]:
        putting = Deferred.fromCoroutine(put_all(Producer(self.client, "PG"), self.messages(count), self.stored.append))
        self.carry()
        return putting

    def answer(self, code: int = 0) -> None:
        """The oldest request is answered."""
        fields = {"msgId": "ABC", "queueId": "0", "queueOffset": "0"}
        self.answers.pop(0).callback(RemotingCommand(code, ext_fields=fields))
        self.carry()

    def test_so_many_are_under_way_and_the_next_goes_when_one_is_answered(self) -> None:
        putting = self.put(IN_FLIGHT + 2)
        self.assertEqual(len(self.taken), IN_FLIGHT)
        self.answer()
        self.assertEqual(len(self.taken), IN_FLIGHT + 1)
        for _ in range(IN_FLIGHT):
            self.answer()
        self.assertNoResult(putting)
        self.answer()
        self.successResultOf(putting)
        self.assertEqual(self.taken, [b"%d" % number for number in range(IN_FLIGHT + 2)])
        self.assertEqual(len(self.stored), IN_FLIGHT + 2)

    def test_a_failure_ends_it_when_what_is_under_way_is_answered(self) -> None:
        putting = self.put(IN_FLIGHT + 2)
        self.answer(13)
        self.assertEqual(len(self.taken), IN_FLIGHT)
        for _ in range(IN_FLIGHT - 1):
            self.assertNoResult(putting)
            self.answer()
        self.assertEqual(self.failureResultOf(putting, MQBrokerError).value.code, 13)
        self.assertEqual(len(self.stored), IN_FLIGHT - 1)

    def test_nothing_to_send_is_done_at_once(self) -> None:
        self.successResultOf(self.put(0))
