"""Requests that a broker passes on to connected consumers (spec/remoting.md 2.20)."""

import json

import pytest
from hypothesis import given, settings
from twisted.internet.defer import execute

from rmqha.broker.requests.toclients import CALL_TIMEOUT_SECONDS, STATUS_TIMEOUT_SECONDS, ToClientsProcessor
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import ClientManageProcessor, ConsumerManager, ProducerManager
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import RESET_SECONDS, ConsumerOffsetManager, OffsetProcessors
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.steps import at_once
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.offsettable import OFFSET_TABLE, reading_offsets
from tests import examples
from tests.acl.granted import Granted
from tests.broker.brokerstore import BrokerStoreTestCase, Client, SetWallClock, any_header
from tests.broker.tables.test_clients import consumer, heartbeat_body
from tests.remoting.test_protocol import frame

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
TOLD = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
SECOND = 1000
QUEUES = 2
TABLE = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:4}}'


class ToClientsTestCase(BrokerStoreTestCase):
    """A topic of two queues with ten messages each, stored a second apart, of which group G has consumed some."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        self.groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        self.consumers = ConsumerManager(self.settings, self.groups)
        tables = BrokerTables(self.topics, self.groups, self.offsets)
        self.processors = {
            **ToClientsProcessor(self.store, "broker-a", tables, self.consumers).processors(),
            **OffsetProcessors(self.store, self.offsets, self.consumers).processors(),
            **ClientManageProcessor(
                ProducerManager(), self.consumers, self.topics, self.groups, self.clock
            ).processors(),
        }
        self.topics.update(TopicConfig("T", QUEUES, QUEUES))
        for number in range(10):
            for queue_id in range(QUEUES):
                self.put(b"%d" % number, queue_id=queue_id)
            self.clock.advance(1)
        self.stored = [self.store.reader.message_store_timestamp("T", 0, offset) for offset in range(10)]
        self.tool = self.client(self.processors)

    def consume(self, *offsets: int, group: str = "G") -> None:
        for queue_id, offset in enumerate(offsets):
            self.offsets.commit(group, "T", queue_id, offset, "test")

    def join(self, client_id: str = "c1", version: int = 399, client: Client | None = None) -> Client:
        """A consumer of group G that is connected."""
        client = client or self.client(self.processors)
        body = heartbeat_body(consumer("G", "T"), client_id=client_id)
        client.line.deliver(frame(RemotingCommand(RequestCode.HEART_BEAT, 90_000, body=body, version=version)))
        self.clock.advance(0)
        client.answers()
        return client

    def carry(self) -> None:
        self.clock.pump([0] * 8)

    def reset(self, timestamp: int, **fields: object) -> RemotingCommand:
        header = {"topic": "T", "group": "G", "timestamp": timestamp, "isForce": "true", **fields}
        self.tool.send(RESET, header)
        self.carry()
        (answer,) = self.tool.answers()
        return answer

    def offsets_in(self, command: RemotingCommand) -> list[int]:
        """The offsets by queue."""
        table = at_once(reading_offsets(command.body, OFFSET_TABLE))
        self.assertEqual({(queue.topic, queue.broker_name) for queue in table}, {("T", "broker-a")})
        return [offset for _, offset in sorted((queue.queue_id, offset) for queue, offset in table.items())]


class ResetTests(ToClientsTestCase):
    """Codes 222 and 220."""

    def assert_reset(self, answer: RemotingCommand, client: Client, *offsets: int) -> None:
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        self.assertEqual(self.offsets_in(answer), list(offsets))
        (told,) = [command for command in client.answers() if command.code == TOLD]
        self.assertEqual(told.flag, ONEWAY_FLAG)
        self.assertEqual((told.ext_fields["topic"], told.ext_fields["group"]), ("T", "G"))
        self.assertEqual(self.offsets_in(told), list(offsets))

    def test_each_consumer_is_told_where_the_time_is_in_each_queue(self) -> None:
        self.consume(9, 8)
        clients = [self.join("c1"), self.join("c2")]
        for each in clients:
            each.answers()
        answer = self.reset(self.stored[4])
        for each in clients:
            self.assert_reset(answer, each, 4, 4)

    def test_the_newest_time_is_the_end_of_each_queue(self) -> None:
        self.consume(3, 3)
        self.put(b"more", queue_id=1)
        self.assert_reset(self.reset(-1), self.joined, 10, 11)

    def setUp(self) -> None:
        super().setUp()
        self.joined = self.join()

    def test_without_force_no_queue_moves_forward(self) -> None:
        self.consume(2, 9)
        self.assert_reset(self.reset(self.stored[5], isForce="false"), self.joined, 2, 5)

    def held(self) -> list[int]:
        return [self.offsets.query("G", "T", queue_id) for queue_id in range(QUEUES)]

    def test_what_was_in_flight_does_not_undo_a_reset(self) -> None:
        self.consume(9, 9)
        self.reset(self.stored[5])
        self.assertEqual(self.held(), [5, 5])
        self.consume(10, 7)
        self.assertEqual(self.held(), [5, 5], "no consumer has gone on there yet")
        self.offsets.went_on("G", "T", 0)
        self.consume(6, 8)
        self.assertEqual(self.held(), [6, 5])

    def test_a_consumer_that_follows_no_reset_may_commit_again_later(self) -> None:
        self.consume(9, 9)
        self.reset(self.stored[5])
        self.clock.advance(RESET_SECONDS)
        self.consume(10, 10)
        self.assertEqual(self.held(), [10, 10])

    def update(self, offset: int) -> RemotingCommand:
        """What a tool, or a consumer of Go, sends for queue 0."""
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}
        answer = self.tool.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
        self.assertEqual(answer.code, ResponseCode.SUCCESS)
        return answer

    def test_after_a_reset_a_tool_may_set_the_offset_of_a_group_whose_consumers_are_gone(self) -> None:
        self.consume(9, 9)
        self.reset(self.stored[5])
        self.assertIn("until a consumer reads there", self.update(7).remark or "")
        self.assertEqual(self.held(), [5, 5])
        self.joined.line.lose()
        self.carry()
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "8"}
        late = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, flag=ONEWAY_FLAG, ext_fields=fields)
        self.tool.line.deliver(frame(late))
        self.assertEqual(self.held(), [5, 5], "a consumer that lost its connection sends it so")
        self.assertIsNone(self.update(7).remark)
        self.assertEqual(self.held(), [7, 5])
        self.consume(8, 8)
        self.assertEqual(self.held(), [8, 5], "the order has ended the reset of its queue")

    def test_a_c_tool_lets_consumers_have_a_list(self) -> None:
        self.consume(9, 9)
        fields = {"topic": "T", "group": "G", "timestamp": str(self.stored[1]), "isForce": "true"}
        self.tool.line.deliver(frame(RemotingCommand(RESET, 7, ext_fields=fields, language="CPP")))
        self.carry()
        (told,) = [command for command in self.joined.answers() if command.code == TOLD]
        self.assertEqual(
            json.loads(told.body)["offsetTable"][1],
            {"brokerName": "broker-a", "offset": 1, "queueId": 1, "topic": "T"},
        )

    def test_what_java_refuses_is_refused_in_its_words(self) -> None:
        answer = self.reset(0, topic="TNone")
        self.assertEqual(answer.remark, "[reset-offset] reset offset failed, no topic in this broker. topic=TNone")
        self.consume(3)  # one of two queues
        answer = self.reset(0)
        self.assertEqual((answer.code, answer.remark), (1, "THe consumer group <G> not exist"))
        self.assertEqual(self.joined.answers(), [])

    def test_a_group_without_consumers_is_left_to_the_tool(self) -> None:
        self.consume(3, 3, group="GOffline")
        answer = self.reset(5, group="GOffline")
        self.assertEqual(answer.code, ResponseCode.CONSUMER_NOT_ONLINE)
        self.assertEqual(
            answer.remark, "Consumer not online, so can not reset offset, Group: GOffline Topic: T Timestamp: 5"
        )

    @pytest.mark.long
    def test_a_consumer_that_is_too_old_refuses_it_for_all(self) -> None:
        self.consume(3, 3)
        self.join("old", version=27)
        self.joined.answers()
        answer = self.reset(self.stored[0])
        self.assertIn("does not support this feature", answer.remark or "")
        self.assertEqual(self.joined.answers(), [])

    def test_a_tool_of_5_resets_one_queue_and_no_other(self) -> None:
        self.consume(9, 9)
        answer = self.reset(0, isForce="false", queueId=1, offset=3)
        table = at_once(reading_offsets(answer.body, OFFSET_TABLE))
        self.assertEqual({queue.queue_id: offset for queue, offset in table.items()}, {1: 3})
        for queue_id, offset in ((1, 11), (1, -2), (2, 3), (-1, 3)):
            refusal = self.reset(0, isForce="false", queueId=queue_id, offset=offset)
            self.assertEqual(refusal.code, ResponseCode.SYSTEM_ERROR)
            self.assertTrue(refusal.remark)

    @given(any_header(["topic", "group", "timestamp", "isForce", "queueId", "offset"]))
    @settings(max_examples=examples(100), deadline=None)
    def test_any_header_is_answered(self, fields: dict[str, object]) -> None:
        self.tool.send(RESET, fields)
        self.carry()
        (answer,) = self.tool.answers()
        self.assertIn(answer.code, (ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE))


class StatusTests(ToClientsTestCase):
    """Codes 223 and 221."""

    def ask(self, **fields: object) -> None:
        header = {"topic": "T", "group": "G", **fields}
        self.tool.send(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        self.carry()

    def answer(self, client: Client, code: int = 0, body: bytes = TABLE) -> None:
        (asked,) = [one for one in client.answers() if one.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT]
        self.assertEqual(dict(asked.ext_fields), {"topic": "T", "group": "G"})
        client.line.deliver(frame(RemotingCommand(code, asked.opaque, RESPONSE_FLAG, body=body)))
        self.carry()

    def told(self) -> RemotingCommand:
        (answer,) = self.tool.answers()
        return answer

    def test_each_consumer_tells_its_offsets(self) -> None:
        first, second = self.join("c1"), self.join("c2")
        self.ask()
        self.answer(first)
        self.answer(second, body=b'{"messageQueueTable":{}}')
        self.assertEqual(
            self.told().body,
            b'{"consumerTable":{"c1":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:4},"c2":{}}}',
        )

    def test_one_consumer_is_asked_by_its_id(self) -> None:
        first, second = self.join("c1"), self.join("c2")
        first.answers()
        self.ask(clientAddr="c2")
        self.answer(second)
        self.assertEqual(first.answers(), [])
        self.assertTrue(self.told().body.startswith(b'{"consumerTable":{"c2":{{'))

    def test_consumers_that_do_not_answer_are_left_out(self) -> None:
        clients = [self.join(name) for name in ("mute", "refusing", "lying", "sound")]
        self.ask()
        self.answer(clients[1], code=1)
        self.answer(clients[2], body=b"{")
        self.answer(clients[3])
        self.assertEqual(self.tool.answers(), [])
        self.clock.advance(STATUS_TIMEOUT_SECONDS)
        self.carry()
        self.assertEqual(self.told().body, b'{"consumerTable":{"sound":%s}}' % TABLE[len('{"messageQueueTable":') : -1])

    def test_a_consumer_that_is_gone_is_left_out(self) -> None:
        gone = self.join("c1")
        self.ask()
        gone.line.lose()
        self.carry()
        self.assertEqual(self.told().body, b'{"consumerTable":{}}')

    def test_a_group_without_consumers(self) -> None:
        self.ask()
        self.assertEqual(self.told().remark, "No Any Consumer online in the consumer group: [G]")

    def test_a_consumer_may_ask_about_itself_on_its_own_connection(self) -> None:
        self.join("c1", client=self.tool)
        self.ask()
        (asked,) = self.tool.answers()
        self.tool.line.deliver(frame(RemotingCommand(0, asked.opaque, RESPONSE_FLAG, body=TABLE)))
        self.carry()
        self.assertEqual(self.told().code, ResponseCode.SUCCESS)


class PassedOnTests(ToClientsTestCase):
    """Codes 307 and 309."""

    def ask(self, code: int = RequestCode.GET_CONSUMER_RUNNING_INFO, **fields: object) -> None:
        self.tool.send(code, {"consumerGroup": "G", "clientId": "c1", **fields})
        self.carry()

    def told(self) -> RemotingCommand:
        (answer,) = self.tool.answers()
        return answer

    def passed(self, client: Client) -> RemotingCommand:
        (asked,) = [one for one in client.answers() if one.code in (307, 309)]
        return asked

    def test_a_consumer_answers_through_the_broker(self) -> None:
        self.join("c2")
        client = self.join("c1")
        for code, remark, body in ((0, None, b'{"jstack":"x"}'), (1, "The Consumer Group <G> not exist", b"")):
            self.ask(jstackEnable="true")
            asked = self.passed(client)
            self.assertEqual(dict(asked.ext_fields), {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"})
            client.line.deliver(frame(RemotingCommand(code, asked.opaque, RESPONSE_FLAG, remark, body=body)))
            self.carry()
            answer = self.told()
            self.assertEqual((answer.code, answer.remark, answer.body), (code, remark, body))

    def test_a_consumer_gets_a_stored_message_to_handle(self) -> None:
        client = self.join("c1")
        (record,) = self.put(b"again")
        self.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=record.msg_id)
        asked = self.passed(client)
        self.assertEqual(asked.ext_fields["brokerName"], "broker-a")
        self.assertEqual(asked.body, self.store.reader.record_at(record.physical_offset))

    def test_a_message_that_is_not_there_is_told_in_words(self) -> None:
        client = self.join("c1")
        (record,) = self.put(b"x")
        for msg_id in ("7", "x" * 32, record.msg_id[:-2] + "01", None):
            self.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=msg_id)
            answer = self.told()
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
            self.assertNotIn("Error", answer.remark or "Error")
        self.assertEqual(client.answers(), [])

    def test_a_consumer_that_is_not_there(self) -> None:
        self.join("c2")
        for fields in ({}, {"clientId": None}, {"consumerGroup": "GNone"}):
            self.ask(**fields)
            self.assertIn("not online", self.told().remark or "")

    def test_a_consumer_that_does_not_answer(self) -> None:
        client = self.join("c1")
        self.ask()
        self.clock.advance(CALL_TIMEOUT_SECONDS)
        self.assertEqual(self.told().code, ResponseCode.CONSUME_MSG_TIMEOUT)
        self.ask()
        client.line.lose()
        self.carry()
        self.assertIn("the connection is gone", self.told().remark or "")


class AccountTests(ToClientsTestCase):
    """With accounts the account of a client's connection decides what it is sent, not its heartbeat."""

    def setUp(self) -> None:
        super().setUp()
        self.consume(9, 9)
        self.own, self.other = self.join("own"), self.join("other")
        self.own.protocol.rights = Granted("own", reads={"T", "%RETRY%G"})
        self.other.protocol.rights = Granted("other", reads={"U"})
        for client in (self.own, self.other):
            client.answers()

    def told(self) -> RemotingCommand:
        self.carry()
        (answer,) = self.tool.answers()
        return answer

    def test_resets_and_questions_for_offsets_go_to_those_who_may_consume(self) -> None:
        self.reset(self.stored[0])
        self.assertEqual([each.code for each in self.own.answers()], [TOLD])
        self.tool.send(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "G"})
        self.carry()
        self.assertEqual([each.code for each in self.own.answers()], [RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT])
        self.assertEqual(self.other.answers(), [])

    def test_a_message_to_handle_goes_to_who_may_read_its_topic(self) -> None:
        (secret,), (retried,), (own,) = (self.put(b"x", topic=topic) for topic in ("Secret", "%DLQ%G", "T"))
        for record, client_id, gets in (
            (own, "own", True),
            (retried, "own", True),
            (secret, "own", False),
            (own, "other", False),
        ):
            fields = {"consumerGroup": "G", "clientId": client_id, "msgId": record.msg_id}
            self.tool.send(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
            self.carry()
            asked = self.own.answers()
            self.assertEqual(([each.body[-1:] for each in asked] != [], self.other.answers()), (gets, []), record.topic)
            if not gets:
                self.assertEqual(self.told().code, ResponseCode.SYSTEM_ERROR)

    def test_nobody_looks_into_a_client_that_may_not_be_in_the_group(self) -> None:
        fields = {"consumerGroup": "G", "clientId": "other", "jstackEnable": "true"}
        self.tool.send(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        self.assertIn("not online", self.told().remark or "")
        self.assertEqual(self.other.answers(), [])

    def test_a_client_does_not_get_the_signature_of_who_asks(self) -> None:
        """ACL 1.0 signs values: with these a client could ask for something else, as an administrator."""
        signature = {"AccessKey": "administrator", "Signature": "c2lnbmVk", "SecurityToken": "t"}
        asked = {"consumerGroup": "G", "clientId": "own", "jstackEnable": "true"}
        self.tool.send(RequestCode.GET_CONSUMER_RUNNING_INFO, {**asked, **signature})
        self.carry()
        (passed,) = self.own.answers()
        self.assertEqual(dict(passed.ext_fields), asked)
