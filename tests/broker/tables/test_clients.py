"""Clients: heartbeats, groups, and who is told of whom."""

import json
import os
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables import clients
from rmqha.broker.tables.clients import (
    CHANNEL_EXPIRED_SECONDS,
    GROUPS_AT_ONCE,
    HOUSEKEEPING_SECONDS,
    MAX_IN_A_SET,
    SUBSCRIPTIONS_AT_ONCE,
    ClientHousekeepingService,
    ClientManageProcessor,
    ConsumerGroupInfo,
    ConsumerManager,
    ProducerManager,
)
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.steps import at_once
from rmqha.remoting import turns
from rmqha.settings.settings import make_settings
from rmqha.store.metadata import SubscriptionGroupConfig
from rmqha.wire.command import ONEWAY_FLAG, OUR_VERSION, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from tests.acl.granted import Granted
from tests.broker.brokerstore import EVERYBODY, Client, SetWallClock
from tests.ha.doubles import PEER_NAME, log_lines

JAVA_HEARTBEAT = (
    b'{"clientID":"192.0.2.2@20783#1205678504408","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG1","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795200168840,'
    b'"tagsSet":[],"topic":"%RETRY%CG1"},{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG",'
    b'"subString":"TagA","subVersion":1795200168832,"tagsSet":["TagA"],"topic":"TopicT1"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)
"""As a 4.9.3 client sent it (spec/remoting.md 2.7)."""


def consumer(group: str = "G", *topics: str, version: int = 1, tag: str = "*", **fields: object) -> dict[str, Any]:
    """A consumer group in a heartbeat, of a client that subscribes to these topics."""
    subscriptions = [{"topic": topic, "subString": tag, "subVersion": version} for topic in topics]
    return {"groupName": group, "subscriptionDataSet": subscriptions, **fields}


def heartbeat_body(*consumers: dict[str, Any], client_id: str = "c1", producers: tuple[str, ...] = ()) -> bytes:
    """A heartbeat of a client in these groups."""
    producer_groups = [{"groupName": group} for group in producers]
    return json.dumps(
        {"clientID": client_id, "consumerDataSet": consumers, "producerDataSet": producer_groups}
    ).encode()


class ClientsTestCase(SynchronousTestCase):
    """A broker's front that knows of clients, and no more."""

    def setUp(self) -> None:
        for name in ("fsync", "fdatasync"):  # what they promise is no matter here
            self.patch(os, name, lambda fd: None)
        self.clock = Clock()
        self.serve()

    def serve(self, **properties: str) -> None:
        """Begin anew with these settings."""
        settings = make_settings(properties)
        folder = Path(self.mktemp())
        self.topics = TopicConfigManager(folder, settings, SetWallClock())
        self.groups = SubscriptionGroupManager(folder, settings, SetWallClock())
        self.producers = ProducerManager()
        self.consumers = ConsumerManager(settings, self.groups)
        self.housekeeping = ClientHousekeepingService(self.producers, self.consumers, self.clock)
        self.processors = ClientManageProcessor(
            self.producers, self.consumers, self.topics, self.groups, self.clock
        ).processors()

    def connect(self) -> Client:
        """Another client's connection."""
        client = Client(self.processors, self.clock)
        self.addCleanup(client.line.lose)
        return client

    def heartbeat(
        self, client: Client, *consumers: dict[str, Any], client_id: str = "c1", producers: tuple[str, ...] = ()
    ) -> list[RemotingCommand]:
        """Send one; the pushes that came before its answer."""
        return self.raw_heartbeat(client, heartbeat_body(*consumers, client_id=client_id, producers=producers))

    def raw_heartbeat(self, client: Client, body: bytes) -> list[RemotingCommand]:
        """Send these bytes as one."""
        client.send(RequestCode.HEART_BEAT, {}, body)
        *pushes, answer = client.answers()
        self.assertEqual((answer.code, answer.version), (ResponseCode.SUCCESS, OUR_VERSION), answer.remark)
        return pushes

    def online(self, group: str) -> ConsumerGroupInfo:
        """A group that is online."""
        found = self.consumers.get(group)
        assert found is not None
        return found

    def pushed(self, client: Client) -> list[str]:
        """The groups of whose changes the client was told since."""
        return self.told(client.answers())

    def told(self, commands: list[RemotingCommand]) -> list[str]:
        """The groups that these pushes are about."""
        for command in commands:
            self.assertEqual((command.code, command.flag), (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ONEWAY_FLAG))
            self.assertEqual(list(command.ext_fields), ["consumerGroup"])
        return [command.ext_fields["consumerGroup"] for command in commands]


class HeartbeatTests(ClientsTestCase):
    """What clients say, in all their dialects."""

    def test_a_java_clients_heartbeat_makes_its_group_known(self) -> None:
        client = self.connect()
        self.assertEqual(self.told(self.raw_heartbeat(client, JAVA_HEARTBEAT)), ["CG1"])
        group = self.online("CG1")
        self.assertEqual(group.client_ids, ["192.0.2.2@20783#1205678504408"])
        self.assertEqual(
            (group.consume_type, group.message_model, group.consume_from_where),
            (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        )
        subscription = group.subscription("TopicT1")
        assert subscription is not None
        self.assertEqual((subscription.sub_string, subscription.sub_version), ("TagA", 1795200168832))
        self.assertIsNone(group.subscription("TopicT2"))
        self.assertEqual(list(self.producers.get("CLIENT_INNER_PRODUCER") or ()), [client.protocol])

    def test_a_heartbeat_makes_the_group_and_its_retry_topic(self) -> None:
        self.heartbeat(self.connect(), consumer("CG1"))
        self.assertEqual(self.groups.get("CG1"), SubscriptionGroupConfig("CG1"))
        topic = self.topics.get("%RETRY%CG1")
        assert topic is not None
        self.assertEqual(
            (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag), (1, 1, 6, 0)
        )

    def test_the_retry_topic_is_as_the_group_wants_it(self) -> None:
        self.groups.update(SubscriptionGroupConfig("CG1", retry_queue_nums=3))
        self.heartbeat(self.connect(), consumer("CG1", unitMode=True))
        topic = self.topics.get("%RETRY%CG1")
        assert topic is not None
        self.assertEqual((topic.write_queue_nums, topic.topic_sys_flag), (3, 2))

    def test_where_groups_are_not_made_the_client_is_registered_all_the_same(self) -> None:
        self.serve(autoCreateSubscriptionGroup="false")
        self.heartbeat(self.connect(), consumer("CG1"))
        self.assertEqual((self.groups.get("CG1"), self.topics.get("%RETRY%CG1")), (None, None))
        self.assertEqual(self.online("CG1").client_ids, ["c1"])

    def test_a_name_that_no_topic_can_have_makes_none(self) -> None:
        content = {"clientID": "c", "consumerDataSet": [consumer("../../x")], "producerDataSet": []}
        answer = self.connect().ask(RequestCode.HEART_BEAT, json.dumps(content).encode())
        self.assertEqual(answer.code, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        self.assertIn("group[../../x] contains illegal characters", answer.remark or "")
        self.assertEqual((self.groups.get("../../x"), self.topics.get("%RETRY%../../x")), (None, None))

    def test_a_group_whose_retry_topic_would_have_too_long_a_name_cannot_join(self) -> None:
        self.heartbeat(self.connect(), consumer("g" * 120))
        name = "g" * 121
        content = {"clientID": "c", "consumerDataSet": [consumer(name)], "producerDataSet": []}
        answer = self.connect().ask(RequestCode.HEART_BEAT, json.dumps(content).encode())
        self.assertEqual(answer.code, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        self.assertIn("the specified group has 121 characters, at most 120 are possible", answer.remark or "")
        self.groups.update(SubscriptionGroupConfig(name))  # one that an older broker made
        self.heartbeat(self.connect(), consumer(name))
        self.assertEqual(self.online(name).client_ids, ["c1"])

    def test_a_cpp_client_sends_ordinals_and_leaves_sets_out(self) -> None:
        data = consumer("CG1", "T", consumeType=0, messageModel=0, consumeFromWhere=5)
        self.raw_heartbeat(self.connect(), json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode())
        group = self.online("CG1")
        self.assertEqual(
            (group.consume_type, group.message_model, group.consume_from_where),
            (ConsumeType.CONSUME_ACTIVELY, MessageModel.BROADCASTING, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
        )

    def test_sets_may_be_null_and_enums_unknown(self) -> None:
        data = {"groupName": "CG1", "subscriptionDataSet": None, "messageModel": "SHOUTING", "consumeType": -2}
        content = {"clientID": "c", "consumerDataSet": [data], "producerDataSet": None, "heartbeatFingerprint": 7}
        self.raw_heartbeat(self.connect(), json.dumps(content).encode())
        group = self.online("CG1")
        self.assertEqual(
            (group.consume_type, group.message_model), (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING)
        )
        self.assertEqual(group.subscriptions, {})
        self.heartbeat(self.connect(), consumer("CG1", consumeType=2, messageModel=[0]))
        self.assertEqual(
            (group.consume_type, group.message_model), (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING)
        )

    def test_what_is_no_heartbeat_is_refused_and_changes_nothing(self) -> None:
        client = self.connect()
        many = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "P"}] * (MAX_IN_A_SET + 1)})
        for body, reason in (
            (b"", "position 0"),
            (b"[]", "is not an object"),
            (b'{"clientID":""}', "clientID: '' is not a name"),
            (b'{"clientID":"c","consumerDataSet":{}}', None),
            (b'{"clientID":"c","consumerDataSet":7}', "consumerDataSet: 7 is not a list"),
            (b'{"clientID":"c","consumerDataSet":[{"groupName":"A"},{}]}', "groupName is missing"),
            (
                b'{"clientID":"c","consumerDataSet":[{"groupName":"A","subscriptionDataSet":[{}]}]}',
                "topic is missing",
            ),
            (
                b'{"clientID":"c","consumerDataSet":[{"groupName":"A",'
                b'"subscriptionDataSet":[{"topic":"T","subVersion":[1]}]}]}',
                "subVersion",
            ),
            (many.encode(), f"more than {MAX_IN_A_SET}"),
        ):
            answer = client.ask(RequestCode.HEART_BEAT, body)
            if reason is None:  # an empty set, whatever its form
                self.assertEqual(answer.code, ResponseCode.SUCCESS)
            else:
                self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR, body[:60])
                self.assertIn(reason, answer.remark or "")
        self.assertIsNone(self.consumers.get("A"))
        self.assertIsNone(self.producers.get("P"))

    def test_no_account_keeps_the_clients_of_others_out(self) -> None:
        """Anybody may be a producer of as many groups as there are names. Without accounts addresses share the room."""
        self.patch(clients, "MAX_MEMBERSHIPS", 8)
        for accounts in (("greedy", "other"), (None, None)):
            self.serve()
            greedy, again, other = (self.connect() for _ in range(3))
            if accounts[0] is None:
                other.protocol._peer_host = ("192.0.2.99", 1)
            for client, account in zip((greedy, again, other), (accounts[0], *accounts), strict=True):
                client.protocol.rights = Granted(account)
            self.heartbeat(greedy, producers=("P1", "P2", "P3", "P4"))
            again.send(RequestCode.HEART_BEAT, {}, heartbeat_body(client_id="c2", producers=("Q",)))
            (answer,) = again.answers()
            self.assertEqual(answer.code, ResponseCode.SYSTEM_BUSY)
            self.heartbeat(other, client_id="c3", producers=("Q1", "Q2"))
            greedy.line.lose()
            self.clock.advance(0)
            self.heartbeat(again, client_id="c2", producers=("Q",))
            self.assertEqual(self.producers.memberships, 3)

    def test_a_newer_subscription_takes_the_older_ones_place(self) -> None:
        client = self.connect()
        for version, tag, held in ((5, "A", "A"), (5, "B", "A"), (4, "C", "A"), (6, "D", "D")):
            self.heartbeat(client, consumer("G", "T", version=version, tag=tag))
            subscription = self.online("G").subscription("T")
            assert subscription is not None
            self.assertEqual(subscription.sub_string, held)

    def test_a_topic_no_longer_subscribed_to_is_forgotten(self) -> None:
        client = self.connect()
        self.heartbeat(client, consumer("G", "T", "U"))
        self.assertEqual(at_once(self.consumers.finding_groups("U")), ["G"])
        self.heartbeat(client, consumer("G", "T"))
        self.assertIsNone(self.online("G").subscription("U"))
        found = [at_once(self.consumers.finding_groups(topic)) for topic in ("U", "T")]
        self.assertEqual(found, [[], ["G"]])


class NotificationTests(ClientsTestCase):
    """Push 40: all clients of a group rebalance when one comes or goes."""

    def setUp(self) -> None:
        super().setUp()
        self.first, self.second = self.connect(), self.connect()
        self.heartbeat(self.first, consumer("G", "T"))

    def test_all_clients_are_told_of_a_new_one(self) -> None:
        self.assertEqual(self.told(self.heartbeat(self.second, consumer("G", "T"), client_id="c2")), ["G"])
        self.assertEqual(self.pushed(self.first), ["G"])

    def test_the_next_heartbeat_of_a_known_one_tells_nobody(self) -> None:
        self.assertEqual(self.heartbeat(self.first, consumer("G", "T", version=2)), [])

    def test_a_topic_that_comes_or_goes_is_told(self) -> None:
        self.assertEqual(self.told(self.heartbeat(self.first, consumer("G", "T", "U"))), ["G"])
        self.assertEqual(self.told(self.heartbeat(self.first, consumer("G", "U"))), ["G"])

    def test_other_groups_are_left_alone(self) -> None:
        self.heartbeat(self.second, consumer("H", "T"), client_id="c2", producers=("G",))
        self.assertEqual(self.pushed(self.first), [])

    def test_those_left_are_told_when_one_unregisters(self) -> None:
        self.heartbeat(self.second, consumer("G", "T"), client_id="c2")
        self.first.answers()
        answer = self.second.ask(RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup="G")
        self.assertEqual(answer.code, ResponseCode.SUCCESS)
        self.assertEqual(self.pushed(self.first), ["G"])
        self.assertEqual(self.online("G").client_ids, ["c1"])

    def test_those_left_are_told_when_a_connection_closes(self) -> None:
        self.heartbeat(self.second, consumer("G", "T"), consumer("H", "T"), client_id="c2", producers=("P",))
        self.first.answers()
        self.second.line.lose()
        self.assertEqual(self.pushed(self.first), ["G"])
        self.assertEqual(self.online("G").client_ids, ["c1"])
        self.assertEqual((self.consumers.get("H"), self.producers.get("P")), (None, None))

    def test_a_group_may_not_want_to_be_told(self) -> None:
        self.groups.update(SubscriptionGroupConfig("Q", notify_consumer_ids_changed_enable=False))
        self.assertEqual(self.heartbeat(self.first, consumer("Q", "T"), consumer("G", "T")), [])

    def test_who_may_no_longer_consume_in_the_group_is_not_told(self) -> None:
        self.first.protocol.rights = Granted(reads={"T"})
        self.assertEqual(self.told(self.heartbeat(self.second, consumer("G", "T"), client_id="c2")), ["G"])
        self.assertEqual(self.pushed(self.first), [])

    def test_a_broker_may_be_told_to_tell_nobody(self) -> None:
        self.serve(notifyConsumerIdsChangedEnable="false")
        self.assertEqual(self.heartbeat(self.connect(), consumer("G", "T")), [])


class ClosedConnectionTests(ClientsTestCase):
    """What is left of a client whose connection is gone: nothing, however many groups it was in."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(turns, "TURN_SECONDS", 0.0)

    def test_a_client_in_many_groups_leaves_them_in_turns(self) -> None:
        client = self.connect()
        names = tuple(f"P{number}" for number in range(3 * GROUPS_AT_ONCE))
        client.send(RequestCode.HEART_BEAT, {}, heartbeat_body(producers=names))
        self.clock.pump([0.0] * 10)
        self.assertEqual([name for name in names if self.producers.get(name) is None], [])
        client.line.lose()
        left = [name for name in names if self.producers.get(name) is not None]
        self.assertEqual(len(left), 2 * GROUPS_AT_ONCE)
        self.assertIsNone(self.producers.available(left[0], EVERYBODY), "it is closed: nobody is there to be asked")
        self.clock.pump([0.0] * 10)
        self.assertEqual([name for name in names if self.producers.get(name) is not None], [])

    def test_a_client_that_goes_while_its_heartbeat_is_read_is_in_no_group(self) -> None:
        """Its connection was closed before it joined: nothing would have made it leave again."""
        client = self.connect()
        topics = tuple(f"T{number}" for number in range(SUBSCRIPTIONS_AT_ONCE + 1))
        client.send(RequestCode.HEART_BEAT, {}, heartbeat_body(consumer("G", *topics), producers=("P",)))
        client.line.lose()
        self.clock.pump([0.0] * 10)
        self.assertEqual((self.consumers.get("G"), self.producers.get("P")), (None, None))


class UnregisterTests(ClientsTestCase):
    """UNREGISTER_CLIENT."""

    def test_the_last_client_takes_its_group_with_it(self) -> None:
        client = self.connect()
        self.heartbeat(client, consumer("G", "T"), producers=("P", "CLIENT_INNER_PRODUCER"))
        client.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="P")
        self.assertIsNone(self.producers.get("P"))
        self.assertIsNotNone(self.producers.get("CLIENT_INNER_PRODUCER"))
        self.assertEqual(self.online("G").client_ids, ["c1"])
        client.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="G")
        self.assertIsNone(self.consumers.get("G"))

    def test_a_stranger_takes_nobody_with_it(self) -> None:
        client = self.connect()
        self.heartbeat(client, consumer("G", "T"), producers=("P",))
        answer = self.connect().ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="G", producerGroup="P")
        self.assertEqual(answer.code, ResponseCode.SUCCESS)
        self.assertEqual(self.online("G").client_ids, ["c1"])
        self.assertIsNotNone(self.producers.get("P"))

    def test_the_clients_name_is_required(self) -> None:
        answer = self.connect().ask(RequestCode.UNREGISTER_CLIENT, consumerGroup="G")
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertIn("clientID", answer.remark or "")


class HousekeepingTests(ClientsTestCase):
    """Clients that are silent."""

    def setUp(self) -> None:
        super().setUp()
        self.housekeeping.startService()
        self.addCleanup(self.assert_nothing_scheduled)
        self.addCleanup(self.housekeeping.stopService)

    def assert_nothing_scheduled(self) -> None:
        """But the connections' own timeouts, which end with them."""
        self.assertEqual([call for call in self.clock.getDelayedCalls() if "LoopingCall" in str(call)], [])

    def pass_time(self, seconds: float, *speaking: Client) -> None:
        """These clients ask for something now and then."""
        for _ in range(int(seconds / HOUSEKEEPING_SECONDS)):
            self.clock.advance(HOUSEKEEPING_SECONDS)
            for client in speaking:
                client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="none")

    def test_a_client_without_heartbeats_is_disconnected_though_it_asks_other_things(self) -> None:
        silent, other = self.connect(), self.connect()
        self.heartbeat(silent, consumer("G", "T"))
        self.heartbeat(other, consumer("G", "T"), client_id="c2")
        silent.answers()
        self.pass_time(CHANNEL_EXPIRED_SECONDS, silent, other)
        self.assertFalse(silent.line.disconnecting, "not before two minutes are over")
        self.heartbeat(other, consumer("G", "T"), client_id="c2")
        with log_lines() as lines:
            self.clock.advance(HOUSEKEEPING_SECONDS)
            self.clock.advance(0)
        self.assertIn("closing the connection of c1", lines())
        self.assertTrue(silent.line.disconnecting)
        self.assertFalse(other.line.disconnecting)
        self.assertEqual(self.pushed(other), ["G"])
        self.assertEqual(self.online("G").client_ids, ["c2"])

    def test_a_producer_without_heartbeats_is_disconnected(self) -> None:
        silent = self.connect()
        self.heartbeat(silent, producers=("P",))
        self.pass_time(CHANNEL_EXPIRED_SECONDS, silent)
        self.clock.advance(HOUSEKEEPING_SECONDS)
        self.clock.advance(0)
        self.assertTrue(silent.line.disconnecting)
        self.assertIsNone(self.producers.get("P"))

    def test_one_that_speaks_of_one_of_its_groups_only_is_disconnected(self) -> None:
        """As upstream: it left the other without a word, and comes back with all it is in."""
        client = self.connect()
        self.heartbeat(client, consumer("G", "T"), consumer("H", "T"))
        for _ in range(13):
            self.heartbeat(client, consumer("G", "T"))
            self.clock.advance(HOUSEKEEPING_SECONDS)
        self.clock.advance(0)
        self.assertTrue(client.line.disconnecting)
        self.assertEqual((self.consumers.get("G"), self.consumers.get("H")), (None, None))


class QuestionTests(ClientsTestCase):
    """Who is there."""

    def test_the_ids_of_a_groups_clients(self) -> None:
        for client_id in ("c1", "c2", "c1"):
            self.heartbeat(self.connect(), consumer("G", "T"), client_id=client_id)
        answer = self.connect().ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        self.assertEqual(answer.body, b'{"consumerIdList":["c1","c2"]}', "one that has connected anew counts once")

    def test_a_group_that_is_not_online_has_no_ids(self) -> None:
        answer = self.connect().ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, "no consumer for this group, G"))

    def test_the_connections_of_a_consumer_group(self) -> None:
        self.raw_heartbeat(self.connect(), JAVA_HEARTBEAT)
        answer = self.connect().ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG1")
        sent = json.loads(JAVA_HEARTBEAT)["consumerDataSet"][0]
        self.assertEqual(
            json.loads(answer.body),
            {
                "connectionSet": [
                    {
                        "clientAddr": PEER_NAME,
                        "clientId": "192.0.2.2@20783#1205678504408",
                        "language": "PYTHON",
                        "version": OUR_VERSION,
                    }
                ],
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "subscriptionTable": {found["topic"]: found for found in sent["subscriptionDataSet"]},
            },
        )

    def test_the_connections_of_a_group_that_is_not_online(self) -> None:
        answer = self.connect().ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
        self.assertEqual(
            (answer.code, answer.remark), (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[G] not online")
        )

    def test_the_connections_of_a_producer_group(self) -> None:
        client = self.connect()
        self.heartbeat(client, producers=("P",))
        (found,) = json.loads(client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P").body)[
            "connectionSet"
        ]
        self.assertEqual((found["clientAddr"], found["clientId"]), (PEER_NAME, "c1"))
        answer = client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="Q")
        self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, "the producer group[Q] not exist"))

    def test_a_producers_connections_take_turns_and_closed_ones_are_passed_over(self) -> None:
        clients = [self.connect() for _ in range(3)]
        for client in clients:
            self.heartbeat(client, producers=("P",))
        chosen = [self.producers.available("P", EVERYBODY) for _ in range(6)]
        self.assertEqual({chosen.count(client.protocol) for client in clients}, {2})
        for client in clients[1:]:
            client.line.lose()
        self.assertIs(self.producers.available("P", EVERYBODY), clients[0].protocol)
        clients[0].line.lose()
        self.assertIsNone(self.producers.available("P", EVERYBODY))


class CheckClientConfigTests(ClientsTestCase):
    """CHECK_CLIENT_CONFIG: only tags can be subscribed to."""

    def check(self, body: bytes) -> RemotingCommand:
        """What is answered to it."""
        return self.connect().ask(RequestCode.CHECK_CLIENT_CONFIG, body)

    def test_tags_are_welcome(self) -> None:
        for body in (
            b"",
            b"{}",
            b'{"clientId":"c","group":"G"}',
            b'{"subscriptionData":{"topic":"T","subString":"a","expressionType":"TAG"}}',
            b'{"subscriptionData":{"topic":"T","expressionType":null}}',
        ):
            self.assertEqual(self.check(body).code, ResponseCode.SUCCESS, body)

    def test_other_expressions_are_not(self) -> None:
        answer = self.check(b'{"subscriptionData":{"topic":"T","subString":"a > 1","expressionType":"SQL92"}}')
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertIn("SQL92", answer.remark or "")

    def test_what_is_no_config_is_refused(self) -> None:
        for body in (b"{", b'{"subscriptionData":7}'):
            self.assertEqual(self.check(body).code, ResponseCode.SYSTEM_ERROR)
