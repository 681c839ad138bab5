"""A follower of a topic: the last messages, new ones, new queues, and brokers that are away for a while."""

from twisted.internet.defer import CancelledError, Deferred
from zope.interface import implementer

from rmqha.client import TopicNotFound
from rmqha.client.bulk import Edge, StoredSince
from rmqha.client.follow import Follower, IMessageView, Wanted
from rmqha.client.instance import POLL_NAME_SERVER_SECONDS
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.record import Record
from tests.client.cluster import Server, broker_data, queue_data
from tests.client.test_pull import PullTestCase, record


@implementer(IMessageView)
class View:
    """Notes the messages, and the lines about trouble."""

    def __init__(self, messages: list[Record], lines: list[str]) -> None:
        self._messages = messages
        self._lines = lines

    def got(self, record: Record) -> None:
        self._messages.append(record)

    def trouble(self, line: str) -> None:
        self._lines.append(line)


class FollowTests(PullTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.got: list[Record] = []
        self.said: list[str] = []

    def serve_queue(self, address: str) -> Server:
        """A search by time finds the first message, which may be too old."""
        server = super().serve_queue(address)
        found = RemotingCommand(0, ext_fields={"offset": "0"})
        server._processors[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda _, __: found
        return server

    def follower(self, wanted: Wanted) -> Follower:
        return Follower(self.consumer, self.clock, wanted, View(self.got, self.said))

    def turns(self, seconds: float = 0.0) -> None:
        """Let requests and answers pass, and then some time."""
        for step in (0.0, seconds, 0.0):
            self.clock.advance(step)
            self.carry()

    def numbers(self) -> list[int]:
        return [each.queue_offset for each in self.got]

    def follow(self, wanted: Wanted, topic: str = "T") -> "Deferred[None]":
        following = Deferred.fromCoroutine(self.follower(wanted).follow(topic))
        for _ in range(5):
            self.turns()
        return following

    def end(self, following: "Deferred[None]") -> None:
        self.assertNoResult(following)
        following.cancel()
        self.failureResultOf(following, CancelledError)

    def test_the_last_messages(self) -> None:
        self.messages = [record(number) for number in range(50)]
        for count, expected in ((0, []), (1, [49]), (7, [*range(43, 50)]), (100, [*range(50)])):
            self.got.clear()
            looking = Deferred.fromCoroutine(self.follower(Wanted(last=count)).last("T"))
            for _ in range(30):
                self.turns()
            places = self.successResultOf(looking)
            self.assertEqual(self.numbers(), expected)
            self.assertEqual(sorted(places.values()), [0, 50])

    def test_the_last_messages_with_a_tag(self) -> None:
        self.messages = [record(number, "A" if number % 10 == 0 else "B") for number in range(50)]
        looking = Deferred.fromCoroutine(self.follower(Wanted(last=2, expression="A")).last("T"))
        for _ in range(60):
            self.turns()
        self.successResultOf(looking)
        self.assertEqual(self.numbers(), [30, 40])

    def test_new_messages_come_and_old_ones_do_not(self) -> None:
        self.messages = [record(number) for number in range(3)]
        following = self.follow(Wanted())
        self.assertEqual(self.numbers(), [])
        self.messages += [record(3), record(4)]
        self.turns(2)
        self.assertEqual(self.numbers(), [3, 4])
        self.end(following)

    def test_it_starts_where_it_is_wanted(self) -> None:
        self.messages = [record(number) for number in range(3)]
        for start, expected in (
            (Edge.MIN, [0, 1, 2]),
            (2, [2]),
            (StoredSince(0), [0, 1, 2]),
            (StoredSince(10**15), []),
        ):
            self.got.clear()
            self.end(self.follow(Wanted(start)))
            self.assertEqual(self.numbers(), expected, start)

    def test_a_slave_is_read_and_a_gap_is_said(self) -> None:
        following = self.follow(Wanted())
        self.master.go_down()
        self.messages.append(record(0))
        for _ in range(20):
            self.turns(1)
        self.assertEqual((self.numbers(), self.said), ([0], []))
        self.slave.go_down()
        for _ in range(20):
            self.turns(1)
        self.assertEqual(len(self.said), 2, self.said)  # one line for each queue, not one for each attempt
        self.master.is_up = True
        self.messages.append(record(1))
        for _ in range(20):
            self.turns(1)
        self.assertEqual(self.numbers(), [0, 1])
        self.assertEqual([line.endswith("can be read again") for line in self.said], [False, False, True, True])
        self.end(following)

    def test_new_queues_are_followed_from_their_first_message(self) -> None:
        self.routes["T"] = [broker_data("a", master="a:1", slave="a:2")], [queue_data("a", 1, 1)]
        self.messages = [record(0), record(1)]
        following = self.follow(Wanted())
        self.routes["T"] = [broker_data("a", master="a:1", slave="a:2")], [queue_data("a", 2, 2)]
        for _ in range(4):
            self.turns(POLL_NAME_SERVER_SECONDS)
        self.assertEqual(self.numbers(), [0, 1])
        self.end(following)

    def test_what_takes_the_messages_may_end_it(self) -> None:
        class Broken(View):
            def got(self, record: Record) -> None:
                raise BrokenPipeError

        self.messages = [record(0)]
        follower = Follower(self.consumer, self.clock, Wanted(Edge.MIN), Broken(self.got, self.said))
        following = Deferred.fromCoroutine(follower.follow("T"))
        for _ in range(5):
            self.turns()
        self.failureResultOf(following, BrokenPipeError)

    def test_an_unknown_topic_is_an_error(self) -> None:
        self.failureResultOf(self.follow(Wanted(), "Unknown"), TopicNotFound)

    def answer_pull(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """As a broker: at most as many messages as asked for."""
        at, most = int(request.ext_fields["queueOffset"]), int(request.ext_fields["maxMsgNums"])
        self.portion = most
        assert at >= 0
        answer = super().answer_pull(connection, request)
        assert isinstance(answer, RemotingCommand)
        return answer
