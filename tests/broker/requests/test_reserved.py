"""Topics that only the broker itself writes to: no request of a client stores a message there."""

import json
from base64 import urlsafe_b64encode

from twisted.internet.defer import execute

from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.store.message import Message
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from rmqha.wire.topics import HALF_TOPIC, NO_SENDS_TO, OPERATION_TOPIC
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, WallClockOf
from tests.broker.tables.test_clients import heartbeat_body

JAVAS = {
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
}
"""TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET of 4.9.7 and of 5.3.3."""
V1 = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag")
COMMIT = 8


class ReservedTopicTests(BrokerStoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.open(timerWheelEnable="true")
        broker = BrokerService(
            self.settings,
            self.store,
            self.clock,
            execute,
            Surroundings("127.0.0.1"),
            wall=WallClockOf(self.clock),
        )
        broker.startService()
        broker.addresses.listening(20911)
        self.addCleanup(lambda: self.successResultOf(broker.stopService()))
        self.peer = self.client(broker.processors())
        self.peer.ask(RequestCode.HEART_BEAT, heartbeat_body(client_id="asker", producers=("P",)))

    def send(self, code: int, topic: str, body: bytes = b"x", /, **properties: str) -> RemotingCommand:
        """The answer to a send of this code."""
        values = ("P", topic, "TBW102", 4, 0, 0, NOW_MS, 0, format_properties(properties))
        short = code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
        names = (*V1, "properties") if short else tuple("abcdefghi")
        batch = {"m": "true"} if code == RequestCode.SEND_BATCH_MESSAGE else {}
        return self.peer.ask(code, body, **dict(zip(names, values, strict=True)), **batch)

    def half_for(self, topic: str) -> Record:
        """A half message for this topic, as older brokers took it from anyone."""
        (half,) = self.put(b"0", topic=HALF_TOPIC, REAL_TOPIC=topic, REAL_QID="0", PGROUP="P", UNIQ_KEY="K")
        return half

    def test_the_table_has_all_that_java_refuses(self) -> None:
        self.assertLessEqual(JAVAS, NO_SENDS_TO)

    def test_no_way_leads_there(self) -> None:
        batch = encode_batch([BatchEntry(b"x", "", 0)])
        for topic in sorted(NO_SENDS_TO):
            due = str(NOW_MS + 60_000)
            handle = urlsafe_b64encode(f"v1 {topic} {self.settings.broker_name} {due} K".encode()).decode()
            half = self.half_for(topic)
            config = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            end = self.store.commit_log.max_offset
            answers = {
                "send": self.send(RequestCode.SEND_MESSAGE, topic),
                "send v2": self.send(RequestCode.SEND_MESSAGE_V2, topic),
                "batch": self.send(RequestCode.SEND_BATCH_MESSAGE, topic, batch),
                "delayed": self.send(RequestCode.SEND_MESSAGE_V2, topic, DELAY="1"),
                "transaction": self.send(RequestCode.SEND_MESSAGE_V2, topic, TRAN_MSG="true", PGROUP="P"),
                "timer": self.send(RequestCode.SEND_MESSAGE_V2, topic, TIMER_DELIVER_MS=due),
                "reply": self.send(RequestCode.SEND_REPLY_MESSAGE, topic, REPLY_TO_CLIENT="asker"),
                "reply v2": self.send(RequestCode.SEND_REPLY_MESSAGE_V2, topic, REPLY_TO_CLIENT="asker"),
                "recall": self.peer.ask(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle),
                "commit": self.peer.ask(
                    RequestCode.END_TRANSACTION,
                    producerGroup="P",
                    tranStateTableOffset=half.queue_offset,
                    commitLogOffset=half.physical_offset,
                    commitOrRollback=COMMIT,
                ),
                "create": self.peer.ask(
                    RequestCode.UPDATE_AND_CREATE_TOPIC,
                    topic=topic,
                    defaultTopic="TBW102",
                    readQueueNums=1,
                    writeQueueNums=1,
                    perm=6,
                    topicFilterType="SINGLE_TAG",
                    topicSysFlag=0,
                    order="false",
                ),
                "create several": self.peer.ask(
                    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": [config]}).encode()
                ),
                "delete": self.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic),
            }
            self.clock.advance(1)
            taken = sorted(way for way, answer in answers.items() if answer.code == ResponseCode.SUCCESS)
            self.assertEqual((taken, self.store.commit_log.max_offset), ([], end), topic)
            for way in ("send", "send v2", "batch", "delayed", "transaction", "timer", "reply", "reply v2"):
                refused = (ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
                self.assertEqual((answers[way].code, answers[way].remark), refused, way)

    def test_a_delayed_message_for_such_a_topic_is_not_delivered(self) -> None:
        """Brokers of 4.9.3 take one from anyone."""
        for topic in sorted(NO_SENDS_TO):
            properties = {"REAL_TOPIC": topic, "REAL_QID": "0", "DELAY": "1"}
            message = Message("SCHEDULE_TOPIC_XXXX", b"0", properties_stored=format_properties(properties))
            self.successResultOf(self.store.put_message(message))
        end = self.store.commit_log.max_offset
        self.clock.pump([1.0] * 5)
        self.assertEqual(self.store.commit_log.max_offset, end)
        self.assertEqual(self.store.reader.next_offset(OPERATION_TOPIC, 0), 0)
        self.flushLoggedErrors()
