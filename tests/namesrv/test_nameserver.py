"""The name server at its port: registrations belong to connections, and every request of spec/remoting.md 2.22."""

import zlib
from pathlib import Path

import orjson
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.namesrv.kvconfig import KVConfigManager
from rmqha.namesrv.nameserver import ORDER_TOPIC_CONFIG, NameServerService
from rmqha.remoting.registration import body_crc32, encode_body
from rmqha.store.metadata import DataVersion, TopicConfig, TopicConfigTable
from rmqha.wire.command import ONEWAY_FLAG, RemotingCommand, RequestCode, ResponseCode
from tests.broker.brokerstore import Client
from tests.remoting.test_protocol import frame

ALL_TOPICS = ("SELF_TEST_TOPIC", "C", "broker-a", "T")
TABLE = TopicConfigTable(DataVersion(2, 1_795_000_000_000), {name: TopicConfig(name, 4, 4) for name in ALL_TOPICS})
BODY = encode_body(TABLE)
MASTER_FIELDS: dict[str, object] = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "brokerId": 0,
}
SLAVE_FIELDS: dict[str, object] = {**MASTER_FIELDS, "brokerAddr": "10.0.0.2:10911", "brokerId": 1}
MASTER = {**MASTER_FIELDS, "haServerAddr": "10.0.0.1:10912", "bodyCrc32": body_crc32(BODY)}
SLAVE = {**SLAVE_FIELDS, "haServerAddr": "10.0.0.2:10912", "bodyCrc32": 0}
BARE_TOPICS = orjson.dumps(TABLE.to_json())
"""What a broker sends that tells no version, or an old one."""


class NameServerTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.server = NameServerService(self.clock, Path(self.mktemp()))
        self.server.startService()
        self.addCleanup(self.server.stopService)
        self.broker, self.client = self.connect(), self.connect()

    def connect(self, host: str = "127.0.0.1") -> Client:
        return Client(self.server.processors(), self.clock, host)

    def ok(self, client: Client, code: int, body: bytes = b"", /, **fields: object) -> RemotingCommand:
        """The answer, which is a success."""
        answer = client.ask(code, body, **fields)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        return answer

    def content(self, code: int, /, **fields: object) -> object:
        """The body of a successful answer; it is strict JSON."""
        return orjson.loads(self.ok(self.client, code, **fields).body)

    def has_route(self, topic: str = "T") -> bool:
        answer = self.connect().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        return answer.code == ResponseCode.SUCCESS


class RegisterTests(NameServerTestCase):
    def test_a_client_finds_the_topics_of_a_registered_master(self) -> None:
        answer = self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)
        self.assertEqual((answer.ext_fields, answer.body), ({}, b""))
        self.assertEqual(
            self.content(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T"),
            {
                "brokerDatas": [
                    {"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"},
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
                ],
            },
        )

    def test_a_slave_is_told_its_master(self) -> None:
        self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)
        answer = self.ok(self.connect(), RequestCode.REGISTER_BROKER, **SLAVE)
        self.assertEqual(answer.ext_fields, {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"})

    def test_a_body_that_was_damaged_is_refused(self) -> None:
        answer = self.broker.ask(RequestCode.REGISTER_BROKER, BODY.replace(b"4", b"5"), **MASTER)
        self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, "crc32 not match"))
        self.assertFalse(self.has_route())

    def test_no_checksum_is_not_checked(self) -> None:
        for crc in (0, None):
            with self.subTest(crc):
                self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **{**MASTER, "bodyCrc32": crc})

    def test_a_compressed_body(self) -> None:
        version = b'{"counter":0,"timestamp":5}'
        topic = b"T 4 4 6 SINGLE_TAG"
        plain = b"".join(
            (len(version).to_bytes(4, "big"), version, b"\0\0\0\1", len(topic).to_bytes(4, "big"), topic, b"\0\0\0\2[]")
        )
        body = zlib.compress(plain, 9)
        self.ok(
            self.broker,
            RequestCode.REGISTER_BROKER,
            body,
            **{**MASTER, "compressed": "true", "bodyCrc32": body_crc32(body)},
        )
        self.assertTrue(self.has_route())

    def test_a_body_that_is_none_is_refused(self) -> None:
        for body, compressed in ((b"{", "false"), (b"[]", "false"), (b"no zlib", "true")):
            with self.subTest(body):
                answer = self.broker.ask(
                    RequestCode.REGISTER_BROKER, body, **{**MASTER, "compressed": compressed, "bodyCrc32": 0}
                )
                self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
                self.assertIn("the body cannot be read", str(answer.remark))
        self.assertFalse(self.has_route())

    def test_a_broker_that_tells_no_version_sends_its_topics_alone(self) -> None:
        fields = {name: str(value) for name, value in MASTER.items() if name != "bodyCrc32"}
        for version, body in ((0, BARE_TOPICS), (36, BARE_TOPICS), (37, BODY)):
            with self.subTest(version):
                broker = self.connect()
                request = RemotingCommand(RequestCode.REGISTER_BROKER, 1, ext_fields=fields, body=body, version=version)
                broker.line.deliver(frame(request))
                self.assertTrue(self.has_route())
                broker.line.lose()
                self.assertFalse(self.has_route())

    def test_a_header_that_lacks_something_is_refused_by_name(self) -> None:
        for name in ("clusterName", "brokerName", "brokerAddr", "brokerId", "haServerAddr"):
            with self.subTest(name):
                answer = self.broker.ask(RequestCode.REGISTER_BROKER, BODY, **{**MASTER, name: None})
                self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
                self.assertIn(name, str(answer.remark))
        self.assertEqual(
            self.content(RequestCode.GET_BROKER_CLUSTER_INFO), {"brokerAddrTable": {}, "clusterAddrTable": {}}
        )

    def test_a_registration_without_an_answer_counts_too(self) -> None:
        fields = {name: str(value) for name, value in MASTER.items()}
        request = RemotingCommand(RequestCode.REGISTER_BROKER, 1, ONEWAY_FLAG, ext_fields=fields, body=BODY)
        self.broker.line.deliver(frame(request))
        self.assertEqual(self.broker.answers(), [])
        self.assertTrue(self.has_route())

    def test_order_topics_are_told_to_brokers(self) -> None:
        self.ok(self.client, RequestCode.PUT_KV_CONFIG, namespace=ORDER_TOPIC_CONFIG, key="T", value="broker-a:4")
        answer = self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)
        self.assertEqual(orjson.loads(answer.body), {"table": {"T": "broker-a:4"}})


class EndTests(NameServerTestCase):
    def setUp(self) -> None:
        NameServerTestCase.setUp(self)
        self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)

    def test_a_broker_is_gone_with_its_connection(self) -> None:
        self.broker.line.lose()
        self.assertFalse(self.has_route())

    def test_an_old_connection_may_close_when_the_broker_is_registered_on_another(self) -> None:
        second = self.connect()
        self.ok(second, RequestCode.REGISTER_BROKER, BODY, **MASTER)
        self.broker.line.lose()
        self.assertTrue(self.has_route())
        second.line.lose()
        self.assertFalse(self.has_route())

    def test_a_broker_is_gone_when_it_says_goodbye(self) -> None:
        self.ok(self.broker, RequestCode.UNREGISTER_BROKER, **MASTER_FIELDS)
        self.assertFalse(self.has_route())

    def test_a_broker_that_registers_no_more_is_dropped_though_it_is_connected(self) -> None:
        for _ in range(4):
            self.clock.pump([1] * 30)
            self.assertTrue(self.has_route())
            self.ok(self.broker, RequestCode.GET_BROKER_CLUSTER_INFO)
        self.clock.pump([1] * 11)
        self.assertFalse(self.has_route())
        self.ok(self.broker, RequestCode.GET_BROKER_CLUSTER_INFO)

    def test_one_that_asks_every_now_and_then_whether_it_has_changed_is_not(self) -> None:
        version = orjson.dumps(TABLE.data_version.to_json())
        for _ in range(12):
            self.clock.pump([1] * 30)
            self.ok(self.broker, RequestCode.QUERY_DATA_VERSION, version, **MASTER_FIELDS)
        self.assertTrue(self.has_route())

    def test_stopping_leaves_nothing_on_the_clock(self) -> None:
        for seconds in (0, 20):
            with self.subTest(seconds):
                clock = Clock()
                server = NameServerService(clock)
                server.startService()
                clock.pump([1] * seconds)
                server.stopService()
                self.assertEqual(clock.getDelayedCalls(), [])


class QueryTests(NameServerTestCase):
    def setUp(self) -> None:
        NameServerTestCase.setUp(self)
        self.ok(self.broker, RequestCode.REGISTER_BROKER, BODY, **MASTER)

    def test_an_unknown_topic_is_told_as_such(self) -> None:
        answer = self.client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Other")
        self.assertEqual(answer.code, ResponseCode.TOPIC_NOT_EXIST)
        self.assertEqual(answer.remark, "No topic route info in name server for the topic: Other")

    def test_its_settings_are_shown_and_do_not_change(self) -> None:
        shown = self.ok(self.client, RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
        self.assertIn("rmqha=true", shown)
        self.assertTrue(any(line.startswith("kvConfigPath=/") and line.endswith("/kvConfig.json") for line in shown))
        answer = self.client.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"rmqha=false\n")
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertIn("do not change while it runs", answer.remark or "")

    def test_whether_a_broker_has_changed(self) -> None:
        same, other = (orjson.dumps({"counter": counter, "timestamp": 1_795_000_000_000}) for counter in (2, 3))
        for body, changed in ((same, "false"), (other, "true"), (b"", "true")):
            with self.subTest(body):
                answer = self.ok(self.broker, RequestCode.QUERY_DATA_VERSION, body, **MASTER_FIELDS)
                self.assertEqual(answer.ext_fields, {"changed": changed})
                self.assertEqual(orjson.loads(answer.body), {"counter": 2, "timestamp": 1_795_000_000_000})
        unknown = self.ok(self.broker, RequestCode.QUERY_DATA_VERSION, same, **SLAVE_FIELDS)
        self.assertEqual((unknown.ext_fields, unknown.body), ({"changed": "true"}, b""))
        broken = self.broker.ask(RequestCode.QUERY_DATA_VERSION, b"[]", **MASTER_FIELDS)
        self.assertEqual(broken.code, ResponseCode.SYSTEM_ERROR)

    def test_lists(self) -> None:
        for code, fields, expected in (
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, {"topicList": sorted(ALL_TOPICS)}),
            (
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
                {},
                {"brokerAddr": "10.0.0.1:10911", "topicList": ["C", "broker-a"]},
            ),
            (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}, {"topicList": sorted(ALL_TOPICS)}),
            (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "D"}, {"topicList": []}),
        ):
            with self.subTest(code):
                self.assertEqual(self.content(code, **fields), expected)

    def test_no_broker_has_no_address(self) -> None:
        self.broker.line.lose()
        self.assertEqual(self.content(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS), {"topicList": []})

    def test_a_topic_is_deleted(self) -> None:
        self.ok(self.client, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        self.assertFalse(self.has_route())

    def test_permission_to_write_goes_and_comes(self) -> None:
        fields = {"brokerName": "broker-a"}
        self.assertEqual(
            self.ok(self.client, RequestCode.WIPE_WRITE_PERM_OF_BROKER, **fields).ext_fields, {"wipeTopicCount": "4"}
        )
        self.assertEqual(
            self.ok(self.client, RequestCode.ADD_WRITE_PERM_OF_BROKER, **fields).ext_fields, {"addTopicCount": "4"}
        )

    def test_texts_by_namespace_and_key(self) -> None:
        where = {"namespace": "N", "key": "k"}
        missing = self.client.ask(RequestCode.GET_KV_CONFIG, **where)
        self.assertEqual(missing.code, ResponseCode.QUERY_NOT_FOUND)
        self.assertEqual(missing.remark, "No config item, Namespace: N Key: k")
        self.assertEqual(
            self.client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N").code, ResponseCode.QUERY_NOT_FOUND
        )
        self.ok(self.client, RequestCode.PUT_KV_CONFIG, **where, value="v")
        self.assertEqual(self.ok(self.client, RequestCode.GET_KV_CONFIG, **where).ext_fields, {"value": "v"})
        self.assertEqual(self.content(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N"), {"table": {"k": "v"}})
        self.ok(self.client, RequestCode.DELETE_KV_CONFIG, **where)
        self.assertEqual(self.client.ask(RequestCode.GET_KV_CONFIG, **where).code, ResponseCode.QUERY_NOT_FOUND)

    def test_texts_are_kept_in_the_folder(self) -> None:
        folder = Path(self.mktemp())
        client = Client(NameServerService(self.clock, folder).processors(), self.clock, "127.0.0.1")
        self.ok(client, RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")
        self.assertEqual(KVConfigManager(folder).get("N", "k"), "v")

    def test_what_it_does_not_know_is_answered_too(self) -> None:
        answer = self.client.ask(RequestCode.SEND_MESSAGE_V2)
        self.assertEqual(answer.code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
