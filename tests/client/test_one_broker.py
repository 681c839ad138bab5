"""Routes of a client that knows one broker and no name server."""

from twisted.internet.defer import Deferred

from rmqha.client.errors import AccessDenied
from rmqha.client.instance import Connector, OneBroker
from rmqha.client.lookup import Brokers, Place
from rmqha.remoting.protocol import RemotingProtocol, RequestRefused
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact
from tests.client.cluster import ClusterTestCase

TOPIC = TopicConfig("T", 3, 2, 6)
DENIED = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T"


class OneBrokerTests(ClusterTestCase):
    """It asks for one topic, which needs a permission for this topic only."""

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[int] = []
        self.refusal: RequestRefused | None = None
        codes = (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG)
        self.serve("b:1", dict.fromkeys(codes, self.tell))

    def tell(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request.code)
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            return RemotingCommand(0, body=dumps_compact({"topicConfigTable": {"T": TOPIC.to_json()}}))
        if self.refusal is not None:
            raise self.refusal
        return RemotingCommand(0, body=dumps_compact(TOPIC.to_json()))

    def find(self, topic: str = "T") -> Deferred[list[int] | None]:
        """How many queues of the topic can be read and written."""

        async def finding() -> list[int] | None:
            route = await OneBroker("b:1", Connector(self.clock)).find_route(self.client, topic)
            return None if route is None else [route.queues[0].read_queue_nums, route.queues[0].write_queue_nums]

        found = Deferred.fromCoroutine(finding())
        self.carry()
        return found

    def test_a_broker_is_asked_for_the_topic(self) -> None:
        self.assertEqual(self.successResultOf(self.find()), [3, 2])
        self.assertEqual(self.asked, [RequestCode.GET_TOPIC_CONFIG])

    def test_a_topic_that_is_not_there(self) -> None:
        self.refusal = RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker")
        self.assertIsNone(self.successResultOf(self.find()))

    def test_a_broker_of_4_9_lists_all(self) -> None:
        self.refusal = RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 351 not supported")
        self.assertEqual(self.successResultOf(self.find()), [3, 2])
        self.assertIsNone(self.successResultOf(self.find("U")))

    def test_a_refused_question_to_several_brokers_is_told_as_such(self) -> None:
        self.refusal = RequestRefused(ResponseCode.SYSTEM_ERROR, DENIED)
        brokers = Brokers(self.client, broker="b:1")

        async def asking(place: Place) -> list[RemotingCommand]:
            return [await self.client.call(place.addresses[0], RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})]

        asked = Deferred.fromCoroutine(brokers.from_each([Place("b", {0: "b:1"})], asking))
        self.carry()
        self.failureResultOf(asked, AccessDenied)

    def test_a_refusal_is_told(self) -> None:
        self.refusal = RequestRefused(ResponseCode.SYSTEM_ERROR, DENIED)
        self.failureResultOf(self.find(), AccessDenied)
