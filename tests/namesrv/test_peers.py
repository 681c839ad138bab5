"""Who may change what a name server says: what a connection shows decides, not what a request says."""

from typing import ClassVar

import orjson
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission.allowlist import AllowList
from rmqha.namesrv.nameserver import NameServerService
from rmqha.namesrv.peers import PROBE_SECONDS, PROVED_SECONDS, Access, Peer
from rmqha.remoting.registration import encode_body
from rmqha.store.metadata import DataVersion, TopicConfigTable
from rmqha.wire.command import RESPONSE_FLAG, RemotingCommand, RequestCode, ResponseCode
from tests.broker.brokerstore import OWN_HOST, Client
from tests.namesrv.test_nameserver import BODY, MASTER, MASTER_FIELDS, SLAVE, TABLE, NameServerTestCase
from tests.remoting.test_protocol import frame

HOST, SLAVE_HOST, STRANGER, HERE = "10.0.0.1", "10.0.0.2", "10.66.6.6", "127.0.0.1"
THEIRS = f"{STRANGER}:10911"


def body_of(epoch: int) -> bytes:
    """The topics of a failover cluster's leader."""
    version = DataVersion(3, 1_795_000_000_000, unknown={"stateVersion": epoch})
    return encode_body(TopicConfigTable(version, TABLE.topic_config_table))


class PeersTestCase(NameServerTestCase):
    """A pair that is registered from two hosts, and a stranger."""

    ACCESS: ClassVar = Access()

    def setUp(self) -> None:
        NameServerTestCase.setUp(self)
        self.server = NameServerService(self.clock, access=self.ACCESS)
        self.broker, self.slave, self.stranger = (self.connect(host) for host in (HOST, SLAVE_HOST, STRANGER))
        self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)
        self.ok(self.slave, RequestCode.REGISTER_BROKER, b"", **SLAVE)

    def register(self, client: Client, body: bytes = b"", /, **fields: object) -> None:
        """Ask for broker-a's place with these fields; the answer comes later if a probe has to be answered first."""
        client.send(RequestCode.REGISTER_BROKER, {**MASTER, "bodyCrc32": 0, **fields}, body or BODY)

    def answer_probe(self, client: Client) -> None:
        """The broker answers as Java does: it does not know this request."""
        (probe,) = client.answers()
        answer = RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, probe.opaque, RESPONSE_FLAG)
        client.line.deliver(frame(answer))
        self.clock.advance(0)

    def assert_refused(self, client: Client, *words: str) -> None:
        (answer,) = client.answers()
        self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)
        for word in words:
            self.assertIn(word, answer.remark or "")

    def assert_unchanged(self) -> None:
        """Clients are still sent to both nodes, and may write."""
        route = self.server.route_info.route_info("T")
        assert route is not None
        (broker,) = route["brokerDatas"]
        self.assertEqual(broker["brokerAddrs"], {"0": f"{HOST}:10911", "1": f"{SLAVE_HOST}:10911"})
        self.assertEqual((broker["cluster"], route["queueDatas"][0]["perm"]), ("C", 6))


class StrangerTests(PeersTestCase):
    def test_it_takes_nobody_off_and_changes_nothing(self) -> None:
        for code, fields in (
            (RequestCode.UNREGISTER_BROKER, MASTER_FIELDS),
            (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
            (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
            (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
            (RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "x"}),
            (RequestCode.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}),
        ):
            with self.subTest(code):
                self.stranger.send(code, fields)
                self.assert_refused(self.stranger, STRANGER)
                self.assert_unchanged()

    def test_it_gets_no_place_of_a_living_broker(self) -> None:
        for fields in (
            {"brokerAddr": THEIRS},  # as the master at another address
            {"brokerAddr": THEIRS, "brokerId": 1},
            {},  # the same address
            {"brokerId": 7},  # the master's address as that of a slave: it would lose its place as the master
            {"brokerName": "broker-x"},
        ):
            with self.subTest(fields):
                holder = self.slave if fields.get("brokerId") == 1 else self.broker
                self.register(self.stranger, body_of(99), **fields)
                self.answer_probe(holder)
                self.assert_refused(self.stranger, "is alive")
                self.assert_unchanged()
                self.clock.advance(PROVED_SECONDS)

    def test_nor_if_it_has_registered_as_a_slave_before(self) -> None:
        """Anybody may say that it is one more slave. That gives it nothing of the others."""
        self.ok(self.stranger, RequestCode.REGISTER_BROKER, b"", **{**SLAVE, "brokerAddr": THEIRS, "brokerId": 7})
        for holder, body, broker_id in ((self.broker, BODY, 0), (self.broker, body_of(99), 0), (self.slave, BODY, 1)):
            self.register(self.stranger, body, brokerAddr=THEIRS, brokerId=broker_id)
            self.answer_probe(holder)
            self.assert_refused(self.stranger, "is alive")
            self.clock.advance(PROVED_SECONDS)
        for code, fields in (
            (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
            (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
            (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
        ):
            self.stranger.send(code, fields)
            self.assert_refused(self.stranger, STRANGER)
        queues = {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
        self.stranger.send(
            RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}, orjson.dumps({"queueDatas": [queues]})
        )
        self.assert_refused(self.stranger, STRANGER)
        self.ok(self.stranger, RequestCode.UNREGISTER_BROKER, **{**MASTER_FIELDS, "brokerAddr": THEIRS, "brokerId": 7})
        self.assert_unchanged()

    def test_a_flood_of_its_registrations_asks_the_broker_once(self) -> None:
        for _ in range(20):
            self.register(self.connect(STRANGER), brokerAddr=THEIRS)
        self.answer_probe(self.broker)
        for _ in range(20):
            self.register(self.connect(STRANGER), brokerAddr=THEIRS)
        self.assertEqual(self.broker.answers(), [])
        self.assert_unchanged()

    def test_it_does_not_move_a_broker_to_another_cluster(self) -> None:
        self.register(self.stranger, brokerAddr=THEIRS, brokerId=7, clusterName="X")
        self.assertEqual(self.server.route_info.cluster_info()["clusterAddrTable"], {"C": ["broker-a"]})

    def test_its_questions_are_no_sign_of_life_of_a_broker(self) -> None:
        version = b'{"counter":2,"timestamp":1795000000000}'
        self.server.startService()
        for _ in range(5):
            self.clock.pump([1] * 30)
            self.ok(self.stranger, RequestCode.QUERY_DATA_VERSION, version, **MASTER_FIELDS)
            self.ok(self.slave, RequestCode.QUERY_DATA_VERSION, version, **MASTER_FIELDS)
        self.assertFalse(self.has_route())
        self.server.stopService()


class OwnerTests(PeersTestCase):
    def test_a_clean_stop_may_use_a_new_connection(self) -> None:
        self.ok(self.connect(HOST), RequestCode.UNREGISTER_BROKER, **MASTER_FIELDS)
        self.assertEqual(
            list(self.server.route_info.cluster_info()["brokerAddrTable"]["broker-a"]["brokerAddrs"]), ["1"]
        )

    def test_a_late_goodbye_of_the_connection_before_takes_nothing_off(self) -> None:
        self.ok(self.connect(HOST), RequestCode.REGISTER_BROKER, BODY, **MASTER)
        self.broker.send(RequestCode.UNREGISTER_BROKER, MASTER_FIELDS)
        self.assert_refused(self.broker, "another connection after this one")
        self.broker.line.lose()
        self.assert_unchanged()

    def test_a_broker_administers_what_it_has_registered(self) -> None:
        fields = {"brokerName": "broker-a"}
        self.ok(self.broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, **fields)
        self.ok(self.connect(HOST), RequestCode.ADD_WRITE_PERM_OF_BROKER, **fields)
        other = {"brokerName": "broker-b", "brokerAddr": "10.0.0.3:10911", "bodyCrc32": 0}
        self.ok(self.connect("10.0.0.3"), RequestCode.REGISTER_BROKER, BODY, **{**MASTER, **other})
        self.ok(self.connect(HOST), RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        route = self.server.route_info.route_info("T")
        self.assertEqual([each["brokerName"] for each in route["brokerDatas"]] if route else [], ["broker-b"])

    def test_a_broker_of_5_may_register_one_topic_alone_and_nobody_else_may(self) -> None:
        queues = {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
        body = orjson.dumps({"brokerDatas": [], "queueDatas": [queues]})
        self.stranger.send(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "One"}, body)
        self.assert_refused(self.stranger, STRANGER)
        self.ok(self.broker, RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="One")
        self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)  # it was on its way before
        route = self.server.route_info.route_info("One")
        self.assertEqual(route["queueDatas"] if route else None, [queues])
        for wrong in (
            b"",
            b"[]",
            b"{}",
            b'{"queueDatas":[{}]}',
            b'{"queueDatas":5}',
            b'{"queueDatas":[{"brokerName":"b"}]}',
        ):
            self.broker.send(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "One"}, wrong)
            (answer,) = self.broker.answers()
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR, wrong)

    def test_this_machine_administers_all(self) -> None:
        self.ok(self.connect(OWN_HOST), RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        here = self.connect(HERE)
        self.ok(here, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        self.ok(here, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        self.assertFalse(self.has_route())


class FailoverTests(PeersTestCase):
    """A real failover is not held up."""

    def master_address(self) -> str:
        address: str = self.server.route_info.cluster_info()["brokerAddrTable"]["broker-a"]["brokerAddrs"]["0"]
        return address

    def test_a_member_becomes_the_master_at_once_although_the_old_one_is_connected(self) -> None:
        self.ok(self.broker, RequestCode.REGISTER_BROKER, body_of(1), **{**MASTER, "bodyCrc32": 0})
        self.register(self.slave, body_of(2), brokerAddr=f"{SLAVE_HOST}:10911")
        self.assertEqual([answer.code for answer in self.slave.answers()], [ResponseCode.SUCCESS])
        self.assertEqual(self.broker.answers(), [])
        self.assertEqual(self.master_address(), f"{SLAVE_HOST}:10911")

    def test_a_stranger_of_a_later_epoch_becomes_no_master(self) -> None:
        self.ok(self.broker, RequestCode.REGISTER_BROKER, body_of(1), **{**MASTER, "bodyCrc32": 0})
        self.register(self.stranger, body_of(99), brokerAddr=THEIRS)
        self.answer_probe(self.broker)
        self.assert_refused(self.stranger, "is alive")
        self.assertEqual(self.master_address(), f"{HOST}:10911")

    def test_nor_does_a_member_of_the_same_epoch_or_an_earlier_one(self) -> None:
        self.ok(self.broker, RequestCode.REGISTER_BROKER, body_of(5), **{**MASTER, "bodyCrc32": 0})
        for epoch in (5, 4, 0):
            self.register(self.slave, body_of(epoch), brokerAddr=f"{SLAVE_HOST}:10911")
            self.answer_probe(self.broker)
            self.assert_refused(self.slave, "is alive")
            self.assertEqual(self.master_address(), f"{HOST}:10911")
            self.clock.advance(PROVED_SECONDS)

    def test_a_promoted_slave_becomes_the_master_once_the_old_one_answers_no_more(self) -> None:
        """A master without an epoch is in no failover cluster: nobody but itself knows that it is not one any more."""
        self.register(self.slave, body_of(2), brokerAddr=f"{SLAVE_HOST}:10911")
        self.assertEqual(self.slave.answers(), [])
        self.clock.advance(PROBE_SECONDS)
        self.clock.advance(0)
        self.assertEqual([answer.code for answer in self.slave.answers()], [ResponseCode.SUCCESS])
        self.assertEqual(self.master_address(), f"{SLAVE_HOST}:10911")

    def test_another_host_gets_the_place_of_one_that_answers_no_more(self) -> None:
        self.register(self.stranger, brokerAddr=THEIRS)
        self.assertEqual(self.stranger.answers(), [])
        self.clock.advance(PROBE_SECONDS)
        self.clock.advance(0)
        self.assertEqual([answer.code for answer in self.stranger.answers()], [ResponseCode.SUCCESS])
        self.assertEqual(self.master_address(), THEIRS)

    def test_and_at_once_if_its_connection_is_gone(self) -> None:
        self.broker.line.lose()
        self.register(self.stranger, brokerAddr=THEIRS)
        self.assertEqual([answer.code for answer in self.stranger.answers()], [ResponseCode.SUCCESS])

    def test_a_broker_that_moves_to_another_address_of_its_host_is_not_asked(self) -> None:
        self.register(self.connect(HOST), brokerAddr=f"{HOST}:11911")
        self.assertEqual(self.broker.answers(), [])
        self.assertEqual(self.master_address(), f"{HOST}:11911")


class ListedTests(PeersTestCase):
    """With --allow-brokers and --allow-admin."""

    ACCESS: ClassVar = Access(AllowList.parse("10.0.0.0/24"), AllowList.parse(STRANGER))

    def test_only_listed_hosts_register_brokers(self) -> None:
        self.stranger.send(RequestCode.REGISTER_BROKER, {**MASTER, "brokerName": "x", "brokerAddr": THEIRS}, BODY)
        self.assert_refused(self.stranger, "not in --allow-brokers")

    def test_listed_hosts_administer(self) -> None:
        self.ok(self.stranger, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        self.ok(self.stranger, RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")
        self.assertFalse(self.has_route())


class PeerTests(SynchronousTestCase):
    def test_a_certificate_counts_more_than_an_address(self) -> None:
        owner = Peer("line 1", HOST, frozenset({"broker-a.example.com"}))
        self.assertTrue(owner.is_same(Peer("line 2", STRANGER, owner.names)))
        self.assertFalse(owner.is_same(Peer("line 2", HOST, frozenset({"other"}))))
        self.assertFalse(owner.is_same(Peer("line 2", HOST)))
        self.assertTrue(Peer("line 1", HOST).is_same(Peer("line 2", HOST, owner.names)))

    def test_a_name_in_a_certificate_may_be_listed(self) -> None:
        access = Access(AllowList.parse("broker-a.example.com"), AllowList.parse("operator"))
        self.assertTrue(access.may_register(Peer("line", HOST, frozenset({"broker-a.example.com"}))))
        self.assertFalse(access.may_register(Peer("line", HERE)))
        self.assertTrue(access.may_administer(Peer("line", HOST, frozenset({"operator"}))))

    def test_addresses_of_this_machine(self) -> None:
        for host, is_local in (
            (HERE, True),
            ("127.1.2.3", True),
            ("::1", True),
            ("::ffff:127.0.0.1", True),
            (HOST, False),
        ):
            self.assertEqual(Peer("line", host).is_local, is_local, host)
