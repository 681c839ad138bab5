"""Replies to request(): who gets them, what is stored and what is answered (spec/remoting.md 2.2)."""

from typing import Any

from rmqha.broker.requests import reply
from rmqha.broker.requests.reply import PUSH_TIMEOUT_SECONDS, ReplyProcessor
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.tables.clients import ClientManageProcessor, ConsumerManager, ProducerManager
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import RESPONSE_FLAG, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import parse_properties
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS
from tests.acl.granted import Granted
from tests.broker.brokerstore import EVERYBODY, NOW_MS, Client, SetWallClock, own_addresses
from tests.broker.requests.test_send import BORN_MS, IN_EVERY_ANSWER, STORE_HOST, SendTestCase
from tests.broker.tables.test_clients import heartbeat_body
from tests.ha.doubles import PEER_NAME
from tests.remoting.test_protocol import frame

REPLIES = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2


class ReplyTestCase(SendTestCase):
    """A broker to which the client ``asker`` is connected as a producer."""

    def serve(self, role: str = "ASYNC_MASTER", **properties: str) -> None:
        super().serve(role, **properties)
        self.topics.update(TopicConfig(REPLIES, 1, 1))
        self.producers = ProducerManager()
        stamps = Stamps(own_addresses(str(STORE_HOST)), SetWallClock())
        consumers = ConsumerManager(self.settings, self.groups)
        self.processors = {
            **ReplyProcessor(self.processor, self.store, self.producers, stamps).processors(),
            **ClientManageProcessor(self.producers, consumers, self.topics, self.groups, self.clock).processors(),
        }
        self.peer = self.client(self.processors)
        self.asker = self.join("asker")

    def join(self, client_id: str, *groups: str) -> Client:
        """A producer that is connected."""
        client = self.client(self.processors)
        body = heartbeat_body(client_id=client_id, producers=groups or ("PG", "PG2"))
        client.line.deliver(frame(RemotingCommand(RequestCode.HEART_BEAT, 90_000, body=body)))
        self.clock.advance(0)
        client.answers()
        return client

    def reply(self, body: bytes = b"pong", to: str | None = "asker", **changed: Any) -> list[RemotingCommand]:
        """Send a reply. What is answered at once."""
        properties = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply"}
        if to is not None:
            properties["REPLY_TO_CLIENT"] = to
        request = self.request(REPLY, body, properties, topic=REPLIES, queue_id=0, **changed)
        return self.deliver(request)

    def pushed(self, client: Client | None = None) -> list[RemotingCommand]:
        """What the client got since the last call."""
        return [each for each in (client or self.asker).answers() if each.code == PUSH]

    def take(self, push: RemotingCommand, code: int = 0, client: Client | None = None) -> list[RemotingCommand]:
        """The client answers. What the replier gets then."""
        answer = RemotingCommand(code, push.opaque, RESPONSE_FLAG, "no" if code else None)
        (client or self.asker).line.deliver(frame(answer))
        self.clock.advance(0)
        return self.peer.answers()

    def end(self) -> int:
        """The log's end."""
        return self.store.commit_log.max_offset


class ReplyTests(ReplyTestCase):
    """What becomes of a reply."""

    def test_the_client_that_asked_gets_it_and_it_is_stored(self) -> None:
        for code, names in ((REPLY, V2_FIELDS), (RequestCode.SEND_REPLY_MESSAGE, V1_FIELDS)):
            properties = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker"}
            at = self.end()
            self.assertEqual(
                self.deliver(self.request(code, b"pong", properties, names, topic=REPLIES, queue_id=0)), []
            )
            self.assertEqual(self.end(), at, "as in Java it is stored after the client has it")
            (push,) = self.pushed()
            fields = dict(push.ext_fields)
            self.assertEqual(parse_properties(fields.pop("properties")), {**properties, "PUSH_REPLY_TIME": str(NOW_MS)})
            self.assertEqual(push.body, b"pong")
            self.assertEqual(
                fields,
                {
                    "producerGroup": "PG",
                    "topic": REPLIES,
                    "defaultTopic": "TBW102",
                    "defaultTopicQueueNums": "4",
                    "queueId": "0",
                    "sysFlag": "0",
                    "bornTimestamp": str(BORN_MS),
                    "flag": "0",
                    "reconsumeTimes": "0",
                    "unitMode": "false",
                    "bornHost": PEER_NAME,
                    "storeHost": str(STORE_HOST),
                    "storeTimestamp": str(NOW_MS),
                },
            )
            (answer,) = self.take(push)
            record = self.store.reader.message_at(at)
            assert record is not None
            self.assertEqual((record.topic, record.body, record.properties), (REPLIES, b"pong", properties))
            self.assert_answer(
                answer, 0, {**IN_EVERY_ANSWER, "msgId": record.msg_id, "queueId": 0, "queueOffset": record.queue_offset}
            )

    def test_without_storing(self) -> None:
        self.serve(storeReplyMessageEnable="false")
        self.reply()
        (push,) = self.pushed()
        (answer,) = self.take(push)
        self.assert_answer(answer, 0, {**IN_EVERY_ANSWER, "msgId": "0", "queueId": 0, "queueOffset": 0})
        self.assertEqual(self.end(), 0)

    def test_nobody_to_push_to(self) -> None:
        for to, problem in ((None, "properties[REPLY_TO_CLIENT] is null"), ("gone", "channel of <gone> not found.")):
            at = self.end()
            answers = self.reply(to=to)
            self.assertEqual(len(answers), 1)
            self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, problem)
            self.assertGreater(self.end(), at, "as in Java it is stored")

    def test_a_client_that_does_not_take_it(self) -> None:
        self.reply()
        (push,) = self.pushed()
        answers = self.take(push, 1)
        self.assertEqual(len(answers), 1)
        self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, "push reply message to asker fail.")

    def test_a_client_that_does_not_answer(self) -> None:
        self.reply()
        self.clock.advance(PUSH_TIMEOUT_SECONDS)
        self.assert_refused(self.peer.answers(), ResponseCode.SYSTEM_ERROR, "push reply message to asker fail.")

    def test_a_client_that_goes(self) -> None:
        self.reply()
        self.asker.line.lose()
        self.clock.advance(0)
        self.assert_refused(self.peer.answers(), ResponseCode.SYSTEM_ERROR, "push reply message to asker fail.")
        self.assert_refused(self.reply(), ResponseCode.SYSTEM_ERROR, "channel of <asker> not found.")

    def test_a_client_may_answer_itself(self) -> None:
        """It asks and answers on one connection."""
        self.peer = self.asker
        (push,) = self.reply()
        (answer,) = [each for each in self.take(push) if each.is_response]
        self.assertEqual(answer.code, 0)

    def test_a_client_that_came_back_gets_it_on_its_new_connection(self) -> None:
        new = self.join("asker")
        self.reply()
        self.assertEqual(self.pushed(), [])
        (push,) = self.pushed(new)
        (answer,) = self.take(push, client=new)
        self.assertEqual(answer.code, 0)
        new.line.lose()
        self.clock.advance(0)
        self.reply()
        self.assertEqual(len(self.pushed()), 1)

    def test_replies_that_a_client_does_not_take_are_few(self) -> None:
        self.patch(reply, "MAX_PUSHES", 5)
        for _ in range(5):
            self.assertEqual(self.reply(), [])
        self.assert_refused(self.reply(), ResponseCode.SYSTEM_ERROR, "It has not taken 5 others yet")
        self.take(self.pushed()[0])
        self.assertEqual(self.reply(), [])

    def test_replies_that_a_client_does_not_take_are_small(self) -> None:
        self.patch(reply, "MAX_PUSHED_BYTES", 1000)
        self.assertEqual(self.reply(bytes(600)), [])
        self.assertEqual(len(self.reply(bytes(600))), 1)
        self.assertEqual(self.reply(bytes(400)), [])
        self.clock.advance(PUSH_TIMEOUT_SECONDS)
        self.peer.answers()
        self.assertEqual(self.reply(bytes(1000)), [])

    def test_a_wrong_reply_is_refused_before_it_is_pushed(self) -> None:
        wrong: list[dict[str, Any]] = [{"topic": "no such topic"}, {"queue_id": 7}, {"flag": None}]
        for changed in wrong:
            request = self.request(REPLY, properties={"REPLY_TO_CLIENT": "asker"}, **{"topic": REPLIES, **changed})
            (answer,) = self.deliver(request)
            self.assertNotEqual(answer.code, 0)
        self.assertEqual(self.pushed(), [])


class AccountTests(ReplyTestCase):
    """With accounts a client gets answers of those who can have had its question."""

    def test_who_cannot_have_had_a_question_answers_none(self) -> None:
        self.asker.protocol.rights = Granted("asker", sends={"Asked"})
        self.peer.protocol.rights = Granted("stranger", reads={"T"})
        answers = self.reply()
        self.assertEqual(len(answers), 1)
        self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, "channel of <asker> not found.")
        self.assertEqual(self.pushed(), [])
        self.peer.protocol.rights = Granted("replier", reads={"Asked"})
        self.reply()
        self.assertEqual(len(self.pushed()), 1)

    def test_who_calls_itself_by_the_name_of_another_gets_no_answer_of_that_one(self) -> None:
        self.asker.protocol.rights = Granted("asker", sends={"Asked"})
        thief = self.join("asker")
        thief.protocol.rights = Granted("stranger", sends={"T"})
        self.peer.protocol.rights = Granted("replier", reads={"Asked"})
        self.reply()
        self.assertEqual((len(self.pushed(thief)), len(self.pushed())), (0, 1))

    def test_a_name_is_of_the_account_that_has_it_first(self) -> None:
        """Both may send to the topic: the answer to a question of the one is not for the other."""
        self.asker.protocol.rights = Granted("asker", sends={"Asked"})
        thief, again = self.join("asker"), self.join("asker")
        thief.protocol.rights = Granted("thief", sends={"Asked"})
        again.protocol.rights = self.asker.protocol.rights
        self.peer.protocol.rights = Granted("replier", reads={"Asked"})
        self.reply()
        self.assertEqual([len(self.pushed(each)) for each in (self.asker, thief, again)], [0, 0, 1])
        self.take(RemotingCommand(PUSH, 1), client=again)
        again.line.lose()
        self.clock.advance(0)
        self.reply()
        self.assertEqual([len(self.pushed(each)) for each in (self.asker, thief)], [1, 0])

    def test_a_reply_goes_to_the_topic_of_replies_or_where_its_account_may_send(self) -> None:
        self.asker.protocol.rights = Granted("asker", sends={"Asked"})
        for topic in ("Other_REPLY_TOPIC", "New_REPLY_TOPIC"):
            if topic.startswith("Other"):
                self.topics.update(TopicConfig(topic, 1, 1))
            self.peer.protocol.rights = Granted("replier", reads={"Asked"})
            request = self.request(REPLY, properties={"REPLY_TO_CLIENT": "asker"}, topic=topic, queue_id=0)
            self.assert_refused(self.deliver(request), ResponseCode.NO_PERMISSION, f"may not send to topic {topic}")
            self.assertEqual((self.end(), self.pushed()), (0, []))
        self.assertIsNone(self.topics.get("New_REPLY_TOPIC"))
        self.peer.protocol.rights = Granted("replier", reads={"Asked"}, sends={"Other_REPLY_TOPIC"})
        self.deliver(
            self.request(REPLY, properties={"REPLY_TO_CLIENT": "asker"}, topic="Other_REPLY_TOPIC", queue_id=0)
        )
        self.assertEqual(len(self.pushed()), 1)


class ClientIdTests(ReplyTestCase):
    """Which connection a client has."""

    def test_a_client_is_forgotten_with_its_last_group(self) -> None:
        for group in ("PG", "PG2"):
            self.assertIsNotNone(self.producers.of_client("asker", EVERYBODY))
            self.asker.ask(RequestCode.UNREGISTER_CLIENT, clientID="asker", producerGroup=group)
        self.assertIsNone(self.producers.of_client("asker", EVERYBODY))

    def test_a_client_that_changes_its_id(self) -> None:
        body = heartbeat_body(client_id="other", producers=("PG", "PG2"))
        self.asker.ask(RequestCode.HEART_BEAT, body)
        self.assertIsNone(self.producers.of_client("asker", EVERYBODY))
        self.assertIs(self.producers.of_client("other", EVERYBODY), self.asker.protocol)

    def test_a_heartbeat_again_changes_nothing(self) -> None:
        for _ in range(3):
            self.asker.ask(RequestCode.HEART_BEAT, heartbeat_body(client_id="asker", producers=("PG", "PG2")))
        self.asker.line.lose()
        self.clock.advance(0)
        self.assertIsNone(self.producers.of_client("asker", EVERYBODY))
        self.assertEqual(self.producers._by_id, {})
