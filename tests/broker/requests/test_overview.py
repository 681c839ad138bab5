"""Requests about all groups, all producers and single queues, and those that clean (spec/remoting.md 2.19)."""

from hypothesis import given, settings
from twisted.internet.defer import Deferred, execute

from rmqha.broker.interfaces import NoNode
from rmqha.broker.requests.admin import StatsProcessor
from rmqha.broker.requests.overview import UNITS_AT_ONCE, CleaningProcessor, OverviewProcessor
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import ClientManageProcessor, ConsumerManager, ProducerManager
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.store.metadata import SubscriptionGroupConfig, TopicConfig
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from tests import examples
from tests.broker.brokerstore import BrokerStoreTestCase, any_header, own_addresses
from tests.broker.tables.test_clients import consumer, heartbeat_body


class OverviewTestCase(BrokerStoreTestCase):
    """A topic T of two queues with messages, and a peer that asks."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.topics = TopicConfigManager(self.folder, self.settings, self.wall)
        self.groups = SubscriptionGroupManager(self.folder, self.settings, self.wall)
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        self.consumers, self.producers = ConsumerManager(self.settings, self.groups), ProducerManager()
        stats = BrokerStats("C", self.clock, self.wall)
        stats.startService()
        self.addCleanup(stats.stopService)
        tables = BrokerTables(self.topics, self.groups, self.offsets)
        progress = StatsProcessor(self.store, "broker-a", tables, self.consumers, stats, self.wall)
        self.node = NoNode()
        overview = OverviewProcessor(
            self.store,
            tables,
            (self.producers, self.consumers),
            progress,
            own_addresses("192.0.2.1:10911"),
            (self.clock, self.wall),
        )
        clients = ClientManageProcessor(self.producers, self.consumers, self.topics, self.groups, self.clock)
        self.peer = self.client(
            {
                **overview.processors(),
                **CleaningProcessor(self.node).processors(),
                **clients.processors(),
            }
        )
        self.topics.update(TopicConfig("T", 2, 2))
        self.put(b"0", b"1", b"2", TAGS="A")
        self.put(b"3", queue_id=1)

    def ask(self, code: int, **fields: object) -> RemotingCommand:
        self.peer.send(code, fields)
        self.clock.pump([0] * 40)
        (answer,) = self.peer.answers()
        return answer

    def body(self, code: int, **fields: object) -> bytes:
        answer = self.ask(code, **fields)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        return answer.body

    def commit(self, group: str, *offsets: int, topic: str = "T") -> None:
        for queue_id, offset in enumerate(offsets):
            self.offsets.commit(group, topic, queue_id, offset, "test")

    def heartbeat(self, group: str, *topics: str, producers: tuple[str, ...] = ()) -> None:
        self.peer.send(RequestCode.HEART_BEAT, {}, heartbeat_body(consumer(group, *topics), producers=producers))
        self.clock.pump([0] * 4)
        self.assertEqual(self.peer.answers()[-1].code, ResponseCode.SUCCESS)


class AllGroupsTests(OverviewTestCase):
    """Code 317."""

    def groups_told(self, **fields: object) -> tuple[dict[str, dict[int, tuple[int, int]]], int]:
        """The broker's and the group's offset by queue of each group that has some, and the total."""
        content = loads_lenient(self.body(RequestCode.GET_BROKER_CONSUME_STATS, **{"isOrder": "false", **fields}))
        self.assertEqual(content["brokerAddr"], "192.0.2.1:10911")
        told: dict[str, dict[int, tuple[int, int]]] = {}
        for of_group in content["consumeStatsList"]:
            for name, stats in of_group.items():
                for one in stats:
                    self.assertEqual(one["consumeTps"], 0.0)
                    told[name] = {
                        loads_lenient(queue)["queueId"]: (row["brokerOffset"], row["consumerOffset"])
                        for queue, row in one["offsetTable"].items()
                    }
        return told, content["totalDiff"]

    def test_each_group_tells_how_far_it_is(self) -> None:
        for name in ("G1", "G2", "G3"):
            self.groups.update(SubscriptionGroupConfig(name))
        self.commit("G1", 3, 0)
        self.commit("G2", 1)
        self.commit("G2", 1, topic="TGone")
        self.assertEqual(self.groups_told(), ({"G1": {0: (3, 3), 1: (1, 0)}, "G2": {0: (3, 1), 1: (1, 0)}}, 1 + 3))
        content = loads_lenient(self.body(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
        self.assertIn({"G3": []}, content["consumeStatsList"])

    def test_a_connected_group_tells_only_topics_to_which_it_subscribes(self) -> None:
        self.commit("G1", 1, 1)
        self.heartbeat("G1", "TOther")
        self.assertEqual(self.groups_told(), ({}, 0))

    def test_no_topic_is_ordered(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G1"))
        self.commit("G1", 1, 1)
        self.assertEqual(self.groups_told(isOrder="true"), ({}, 0))
        self.assertEqual(self.ask(RequestCode.GET_BROKER_CONSUME_STATS).code, ResponseCode.SYSTEM_ERROR)


class ProducerTests(OverviewTestCase):
    """Code 328."""

    def test_all_producers_are_told_by_group(self) -> None:
        self.assertEqual(self.body(RequestCode.GET_ALL_PRODUCER_INFO), b'{"data":{}}')
        self.heartbeat("G", "T", producers=("P1", "P2"))
        self.clock.advance(3)
        host, port = self.peer.protocol.peer_host
        one = (
            f'[{{"clientId":"c1","language":"PYTHON","lastUpdateTimestamp":{self.wall.now_ms() - 3000},'
            f'"remoteIP":"/{host}:{port}","version":399}}]'
        )
        expected = f'{{"data":{{"P1":{one},"P2":{one}}}}}'
        self.assertEqual(self.body(RequestCode.GET_ALL_PRODUCER_INFO).decode(), expected)


class QueueTests(OverviewTestCase):
    """Code 321."""

    def queue(self, **fields: object) -> RemotingCommand:
        return self.ask(
            RequestCode.QUERY_CONSUME_QUEUE, **{"topic": "T", "queueId": 0, "index": 0, "count": 10, **fields}
        )

    def test_it_tells_where_messages_are(self) -> None:
        content = loads_lenient(self.queue(index=1, count=1).body)
        unit = self.store.derived.queues.queues["T", 0].unit(1)
        assert unit is not None
        self.assertEqual(
            content,
            {
                "maxQueueIndex": 3,
                "minQueueIndex": 0,
                "queueData": [
                    {
                        "eval": False,
                        "physicOffset": unit.physical_offset,
                        "physicSize": unit.size,
                        "tagsCode": ord("A"),
                    }
                ],
            },
        )

    def test_a_long_queue_is_told_in_turns(self) -> None:
        self.put(*[b""] * (UNITS_AT_ONCE + 10), topic="TLong")
        content = loads_lenient(self.queue(topic="TLong", count=10_000).body)
        offsets = [row["physicOffset"] for row in content["queueData"]]
        self.assertEqual(len(offsets), UNITS_AT_ONCE + 10)
        self.assertEqual(offsets, sorted(set(offsets)))

    def test_an_index_outside_the_queue_gives_no_units(self) -> None:
        for index in (3, -1, 2**62):
            answer = self.queue(index=index)
            self.assertEqual(answer.remark, f"Index {index} of 0@T is not exist!")
            self.assertEqual(loads_lenient(answer.body)["queueData"], [])

    def test_a_queue_that_is_not_there(self) -> None:
        self.assertEqual(self.queue(queueId=7).remark, "7@T is not exist!")
        self.assertEqual(self.queue(topic="TNone").code, ResponseCode.SYSTEM_ERROR)

    def test_it_tells_the_subscription_of_a_group(self) -> None:
        content = loads_lenient(self.queue(consumerGroup="G").body)
        self.assertEqual(content["filterData"], "G@T is not online!")
        self.heartbeat("G", "T")
        content = loads_lenient(self.queue(consumerGroup="G").body)
        self.assertEqual(content["filterData"], "null")
        self.assertEqual(content["subscriptionData"]["topic"], "T")

    @given(any_header(["topic", "queueId", "index", "count", "consumerGroup"]))
    @settings(max_examples=examples(100), deadline=None)
    def test_any_header_is_answered(self, fields: dict[str, object]) -> None:
        self.assertIn(self.ask(RequestCode.QUERY_CONSUME_QUEUE, **fields).code, (0, 1))


class CloneTests(OverviewTestCase):
    """Code 314."""

    def clone(self, **fields: object) -> None:
        self.body(RequestCode.CLONE_GROUP_OFFSET, **{"srcGroup": "G1", "destGroup": "G2", **fields})

    def test_a_group_gets_the_offsets_of_another_one(self) -> None:
        self.topics.update(TopicConfig("TOther", 2, 2))
        self.commit("G1", 3, 1)
        self.commit("G1", 5, topic="TOther")
        self.clone(topic="T")
        self.assertEqual(self.offsets.of_queues("G2", "T"), {0: 3, 1: 1})
        self.assertEqual(self.offsets.of_queues("G2", "TOther"), {})
        self.clone()
        self.assertEqual(self.offsets.of_queues("G2", "TOther"), {0: 5})
        self.assertEqual(self.offsets.of_queues("G1", "T"), {0: 3, 1: 1})

    def test_a_reset_that_waits_for_consumers_does_not_hinder(self) -> None:
        self.commit("G1", 3, 1)
        self.offsets.reset("G2", "T", 0, 1, "an operator")
        self.clone()
        self.assertEqual(self.offsets.of_queues("G2", "T"), {0: 3, 1: 1})

    def test_topics_to_which_the_connected_group_does_not_subscribe_are_left_out(self) -> None:
        self.commit("G1", 3, 1)
        self.heartbeat("G1", "TOther")
        self.clone()
        self.assertEqual(self.offsets.of_queues("G2", "T"), {})
        self.clone(offline="true")
        self.assertEqual(self.offsets.of_queues("G2", "T"), {0: 3, 1: 1})

    def test_a_topic_that_was_deleted_is_left_out(self) -> None:
        self.commit("G1", 3, topic="TGone")
        self.clone()
        self.assertEqual(self.offsets.of_queues("G2", "TGone"), {})


class CleaningTests(OverviewTestCase):
    """Codes 306, 316 and 329."""

    CODES = (306, 316, 329)

    def test_each_applies_the_retention_rules(self) -> None:
        runs: list[Deferred[None]] = []

        def clean() -> Deferred[None]:
            runs.append(Deferred())
            return runs[-1]

        self.patch(self.node, "clean_now", clean)
        for code in self.CODES:
            self.peer.send(code, {})
            self.clock.advance(0)
            self.assertEqual(self.peer.answers(), [])
            runs[-1].callback(None)
            self.clock.advance(0)
            (answer,) = self.peer.answers()
            self.assertEqual(answer.code, ResponseCode.SUCCESS)
            self.assertIn("nothing else", answer.remark or "")
        self.assertEqual(len(runs), len(self.CODES))

    def test_a_broker_that_deletes_nothing_says_so(self) -> None:
        for code in self.CODES:
            answer = self.ask(code)
            self.assertEqual((answer.code, answer.remark), (1, "this broker deletes nothing by itself"))
