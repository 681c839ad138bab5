"""Messages that clients send: where they are put, what is stored and what is answered (spec/remoting.md 2.1, 2.9)."""

import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute, succeed
from twisted.internet.task import Clock
from zope.interface import implementer

from rmqha.broker.background.schedule import delivered_message
from rmqha.broker.requests.ordinarysends import OrdinarySends
from rmqha.broker.requests.recall import RecallProcessor
from rmqha.broker.requests.send import ITransactions, SendMessageProcessor, slave_processors
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.requests.timersends import RecallHandle
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.store.message import Message, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import SubscriptionGroupConfig, TopicConfig, TopicFilterType
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import ONEWAY_FLAG, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import format_properties
from rmqha.wire.record import COMPRESSED_FLAG, TRANSACTION_PREPARED_TYPE, Host, Record, encode_record, parse_msg_id
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS, SendFields
from rmqha.wire.timers import TIMER_TOPIC
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC
from tests import examples
from tests.acl.granted import Granted
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, Client, SetWallClock, own_addresses
from tests.ha.doubles import PEER, log_lines
from tests.remoting.test_protocol import commands_in, frame
from tests.store.test_putwaits import FakeReplicas

STORE_HOST = Host(bytes((192, 0, 2, 20)), 10911)
BORN_HOST = Host(bytes((192, 0, 2, 7)), PEER.port)
BORN_MS = NOW_MS - 20
IN_EVERY_ANSWER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
MULTI_TAGS = 2
BEFORE_BODY_BYTES = 88
"""Of a record, if both hosts are IPv4 addresses."""
STORED = {
    PutMessageStatus.PUT_OK: 0,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: 10,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: 11,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: 12,
}
NOT_STORED = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: 14,
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: 1,
    PutMessageStatus.MESSAGE_ILLEGAL: 13,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: 13,
    PutMessageStatus.OS_PAGECACHE_BUSY: 1,
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: 1,
    PutMessageStatus.UNKNOWN_ERROR: 1,
}


@implementer(ITransactions)
class PlayedTransactions:
    """Plays the transaction service, and remembers what it was given."""

    def __init__(self, store: MessageStore, prepared: list[Message]) -> None:
        self._store = store
        self._prepared = prepared

    def prepare(self, message: Message) -> Deferred[PutMessageResult]:
        self._prepared.append(message)
        return self._store.put_message(replace(message, topic="HALF", queue_id=0))


class CountedPuts(BrokerStats):
    """Remembers what was counted."""

    def __init__(self, counted: list[tuple[str, int, int]]) -> None:
        super().__init__("C", Clock(), SetWallClock())
        self._counted = counted

    def messages_put(self, topic: str, count: int, size: int, calls: int = 1) -> None:
        self._counted.append((topic, count, size))


class SendTestCase(BrokerStoreTestCase):
    """A master with topic T of four queues; ``send`` sends to it, ``stored`` is what lies in the log.

    ``peer`` is connected as to a port of a node: the pass takes its ordinary sends. ``slow_peer`` has only
    the processors.
    """

    def setUp(self) -> None:
        super().setUp()
        self.serve()

    def serve(self, role: str = "ASYNC_MASTER", **properties: str) -> None:
        """Begin anew with these settings."""
        self.open(role, **properties)
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        self.topics.update(TopicConfig("T", 4, 4))
        self.groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        self.prepared: list[Message] = []
        self.counted: list[tuple[str, int, int]] = []
        stamps, self.stats = Stamps(own_addresses(str(STORE_HOST)), SetWallClock()), CountedPuts(self.counted)
        self.processor = SendMessageProcessor(
            self.store,
            self.settings,
            BrokerTables(self.topics, self.groups, ConsumerOffsetManager(self.folder, self.clock, 5000, execute)),
            stamps,
            PlayedTransactions(self.store, self.prepared),
            self.stats,
        )
        self.ordinary_sends = OrdinarySends(self.store, self.settings, self.topics, stamps, self.stats, None)
        self.peer = self.client(self.processor.processors(), self.ordinary_sends)
        self.slow_peer = self.client(self.processor.processors())

    def request(
        self,
        code: int = RequestCode.SEND_MESSAGE_V2,
        body: bytes = b"hello",
        properties: dict[str, str] | str | None = None,
        names: SendFields = V2_FIELDS,
        **changed: object,
    ) -> RemotingCommand:
        """A request as a Java producer makes it; a field of None is left out."""
        values: dict[str, object] = {
            "producer_group": "PG",
            "topic": "T",
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 1,
            "sys_flag": 0,
            "born_timestamp": BORN_MS,
            "flag": 0,
            "properties": properties if isinstance(properties, str) else format_properties(properties or {}),
            "reconsume_times": 0,
            "unit_mode": "false",
            "batch": "false",
            **changed,
        }
        fields = {getattr(names, name): str(value) for name, value in values.items() if value is not None}
        return RemotingCommand(code, 7, ext_fields=fields, body=body)

    def deliver(self, request: RemotingCommand, client: Client | None = None) -> list[RemotingCommand]:
        """What is answered at once."""
        peer = self.peer if client is None else client
        peer.line.deliver(frame(request))
        return commands_in(peer.line.take())

    def send(self, request: RemotingCommand | None = None, **fields: object) -> RemotingCommand:
        """The answer to a request, of these fields if none is given."""
        (answer,) = self.deliver(request or self.request(**fields))  # type: ignore[arg-type]
        self.assertEqual(answer.opaque, 7)
        return answer

    def stored(self, answer: RemotingCommand) -> Record:
        """The message that this answer is about."""
        self.assertEqual(answer.code, 0, answer.remark)
        _, offset = parse_msg_id(answer.ext_fields["msgId"])
        record = self.store.reader.message_at(offset)
        assert record is not None
        return record

    def assert_not_put(self, answer: RemotingCommand, code: int, remark: str) -> None:
        """Refused, and nothing written."""
        self.assert_refused([answer], code, remark)
        self.assertEqual(dict(answer.ext_fields), IN_EVERY_ANSWER)
        self.assertEqual(self.store.commit_log.max_offset, 0)


class TogetherTests(SendTestCase):
    """Several sends in one read."""

    def answers(self, *requests: RemotingCommand) -> dict[int, RemotingCommand]:
        """The answers to requests that arrive in one read, by their opaques, which are the requests' numbers."""
        numbered = [request._replace(opaque=number) for number, request in enumerate(requests)]
        self.peer.line.deliver(b"".join(map(frame, numbered)))
        return {answer.opaque: answer for answer in commands_in(self.peer.line.take())}

    def count_growths(self) -> list[int]:
        """Where the log ends after each growth from now on."""
        ends: list[int] = []
        log = self.store.commit_log
        self.addCleanup(log.subscribe(lambda: ends.append(log.max_offset)))
        return ends

    def test_they_are_one_append(self) -> None:
        growths = self.count_growths()
        answers = self.answers(*(self.request(body=b"%d" % number, queue_id=number % 2) for number in range(5)))
        self.assertEqual(growths, [self.store.commit_log.max_offset])
        records = [self.stored(answers[number]) for number in range(5)]
        self.assertEqual([record.body for record in records], [b"0", b"1", b"2", b"3", b"4"])
        self.assertEqual([record.queue_offset for record in records], [0, 0, 1, 1, 2])
        for number, record in enumerate(records):
            fields = answers[number].ext_fields
            self.assertEqual((fields["queueId"], fields["queueOffset"]), (str(number % 2), str(record.queue_offset)))
            self.assertEqual(dict(fields) | IN_EVERY_ANSWER, dict(fields))
        sizes = [record.total_size for record in records]
        self.assertEqual(self.counted, [("T", 3, sum(sizes[::2])), ("T", 2, sum(sizes[1::2]))], "by queue")
        self.assertEqual(self.stats.sends_taken, 5)

    def test_one_that_is_refused_is_refused_alone(self) -> None:
        answers = self.answers(
            self.request(), self.request(topic="no topic"), self.request(queue_id=99), self.request()
        )
        self.assertEqual([answers[number].code for number in range(4)], [0, 1, 1, 0])
        self.assertEqual([self.stored(answers[number]).queue_offset for number in (0, 3)], [0, 1])

    def test_one_that_is_too_large_is_refused_alone(self) -> None:
        large = b"x" * (self.settings.max_message_size_bytes + 1)
        answers = self.answers(self.request(), self.request(body=large), self.request())
        self.assertEqual([answers[number].code for number in range(3)], [0, 13, 0])

    def test_other_requests_between_them_keep_the_order(self) -> None:
        delayed = self.request(properties={"DELAY": "3"})
        answers = self.answers(self.request(), delayed, self.request(), RemotingCommand(9999), self.request())
        offsets = [parse_msg_id(answers[number].ext_fields["msgId"])[1] for number in (0, 1, 2, 4)]
        self.assertEqual(offsets, sorted(offsets))
        self.assertEqual(answers[3].code, 3)

    def test_a_topic_that_is_being_deleted_takes_none(self) -> None:
        self.store.puts.appender.closed_topics = {"T"}
        answers = self.answers(self.request(), self.request())
        (slowly,) = self.deliver(self.request(), self.slow_peer)
        self.assertNotEqual(slowly.code, 0)
        self.assertEqual([answers[number].code for number in range(2)], [slowly.code] * 2)
        self.assertEqual(self.store.commit_log.max_offset, 0)

    def test_topics_are_counted_apart(self) -> None:
        self.topics.update(TopicConfig("U", 4, 4))
        self.answers(self.request(), self.request(topic="U"), self.request(topic="U"))
        self.assertEqual([(topic, count) for topic, count, _ in self.counted], [("T", 1), ("U", 2)])

    def test_one_way_requests_have_no_answer(self) -> None:
        answers = self.answers(self.request()._replace(flag=2), self.request())
        self.assertEqual(list(answers), [1])
        self.assertEqual(self.stored(answers[1]).queue_offset, 1)

    def test_answers_have_the_encoding_of_their_requests(self) -> None:
        answers = self.answers(self.request()._replace(serialize_type=1), self.request())
        self.assertEqual([answers[number].serialize_type for number in range(2)], [1, 0])
        for number in range(2):
            self.stored(answers[number])

    @pytest.mark.long
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["T", "U", "%RETRY%G", "no topic"]),
                st.integers(-1, 5),
                st.binary(max_size=600),
                st.sampled_from(
                    [{}, {"TAGS": "a"}, {"KEYS": "k l"}, {"DELAY": "2"}, {"WAIT": "true"}, {"WAIT": "false"}]
                ),
                st.sampled_from([0, 4, 8, 12]),
            ),
            max_size=30,
        )
    )
    def test_a_read_with_many_stores_what_reads_with_one_each_store(self, sends: list[Any]) -> None:
        logs = []
        for together in (True, False):
            self.serve(mappedFileSizeCommitLog="4096")
            self.topics.update(TopicConfig("U", 4, 4))
            random.seed(1)  # a negative queue id takes any queue
            requests = [
                self.request(topic=topic, queue_id=queue_id, body=body, properties=properties, sys_flag=sys_flag)
                for topic, queue_id, body, properties, sys_flag in sends
            ]
            if together:
                told = self.answers(*requests)
                answers = [told[number] for number in range(len(requests))]
            else:
                answers = [self.deliver(request, self.slow_peer)[0] for request in requests]
            log = self.store.commit_log
            logs.append(
                (
                    [(answer.code, answer.remark, dict(answer.ext_fields)) for answer in answers],
                    [bytes(log.get_data(at, 4096) or b"") for at in range(0, log.max_offset, 4096)],
                    self.store.puts.appender.queue_offsets,
                )
            )
        self.assertEqual(logs[0], logs[1])


class TimerTests(SendTestCase):
    """Timer messages of 5.x."""

    TIMES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")

    def refused(self, properties: dict[str, str], reason: str) -> None:
        answer = self.send(properties=properties)
        self.assertEqual(answer.code, ResponseCode.MESSAGE_ILLEGAL)
        self.assertIn(reason, answer.remark or "")

    def test_a_broker_whose_log_has_none_refuses_one_and_does_not_deliver_it_at_once(self) -> None:
        for name in (*self.TIMES, "TIMER_DEL_UNIQKEY"):
            for properties in (
                {name: "15000"},
                {"TAGS": "A", name: "15000", "WAIT": "true"},
                {"DELAY": "0", name: "1"},
            ):
                self.refused(properties, "only if its log has some already, or with timerWheelEnable=true")
                self.refused(properties, f"the property {name}")
        self.refused({"TRAN_MSG": "true", "PGROUP": "P", "TIMER_DELAY_MS": "1"}, "timerWheelEnable=true")
        self.assertEqual(self.store.commit_log.max_offset, 0)

    def test_with_the_setting_or_in_a_log_that_has_some_it_waits_in_its_topic(self) -> None:
        for is_set in (True, False):
            self.serve(**({"timerWheelEnable": "true"} if is_set else {}))
            if not is_set:
                self.put(b"of a 5.x master", topic=TIMER_TOPIC)
            properties = {"TIMER_DELAY_SEC": "5", "KEYS": "k", "WAIT": "true", "UNIQ_KEY": "K1"}
            answer = self.send(properties=properties, queue_id=3)
            record = self.stored(answer)
            self.assertEqual((record.topic, record.queue_id, answer.ext_fields["queueId"]), (TIMER_TOPIC, 0, "3"))
            self.assertEqual(
                record.properties,
                {
                    "TIMER_DELAY_SEC": "5",
                    "KEYS": "k",
                    "UNIQ_KEY": "K1",
                    "CLUSTER": "DefaultCluster",
                    "TIMER_OUT_MS": str(NOW_MS + 4000),
                    "REAL_TOPIC": "T",
                    "REAL_QID": "3",
                },
            )
        self.serve(timerWheelEnable="false")
        self.put(b"of a 5.x master", topic=TIMER_TOPIC)
        self.refused({"TIMER_DELAY_SEC": "5"}, "has timerWheelEnable=false")

    def test_each_property_tells_the_time_in_its_way(self) -> None:
        self.serve(timerWheelEnable="true")
        later = str(NOW_MS + 61_234)
        for properties, due in (
            ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "1"}, NOW_MS + 6000),
            ({"TIMER_DELAY_MS": "61234", "TIMER_DELIVER_MS": "1"}, NOW_MS + 61_000),
            ({"TIMER_DELIVER_MS": later}, NOW_MS + 61_000),
        ):
            self.assertEqual(self.stored(self.send(properties=properties)).properties["TIMER_OUT_MS"], str(due))
        for properties in ({"TIMER_DELAY_MS": "0"}, {"TIMER_DELAY_SEC": "-5"}, {"TIMER_DELIVER_MS": str(NOW_MS)}):
            self.assertEqual(self.stored(self.send(properties=properties)).topic, "T", "it is due already")

    def test_what_cannot_be_is_refused(self) -> None:
        self.serve(timerWheelEnable="true", timerMaxDelaySec="60")
        for text in ("soon", "1.5", "\u0661", "9" * 30, "--1"):
            self.refused({"TIMER_DELAY_MS": text}, "which is not a time")
        self.refused({"TIMER_DELAY_SEC": "61"}, "timerMaxDelaySec allows 60 s")
        self.refused({"TIMER_DEL_UNIQKEY": "k"}, "needs the time")
        self.refused(
            {"TIMER_DEL_UNIQKEY": "U+k", "TIMER_DELAY_MS": "5000"}, "cancels others of its own topic, as T+KEY"
        )
        self.refused({"TIMER_DEL_UNIQKEY": "k", "TIMER_DELAY_MS": "0"}, "is due already")
        self.refused({"TIMER_DELAY_SEC": "5", "TRAN_MSG": "true", "PGROUP": "P"}, "cannot be a timer message")
        self.assertEqual(self.store.commit_log.max_offset, 0)

    def test_one_that_would_not_fit_when_it_is_due_is_refused(self) -> None:
        """It is stored with a longer topic then, or with one more property while it waits."""
        self.serve(timerWheelEnable="true", maxMessageSize="5000")
        topic = "T" * 100
        self.topics.update(TopicConfig(topic, 1, 1))
        long = self.send(topic=topic, properties={"TIMER_DELAY_SEC": "5"}, body=bytes(4780), queue_id=0)
        self.assertEqual(long.code, ResponseCode.MESSAGE_ILLEGAL)
        self.assertIn("too long to wait", long.remark or "")
        self.stored(self.send(topic=topic, properties={"TIMER_DELAY_SEC": "5"}, body=bytes(4300), queue_id=0))
        self.serve(timerWheelEnable="true")
        self.refused({"TIMER_DELAY_SEC": "5", "own": "x" * 32_650}, "too long to wait")
        self.stored(self.send(properties={"TIMER_DELAY_SEC": "5", "own": "x" * 32_000}))

    def test_nobody_sends_to_the_topic_itself(self) -> None:
        """REAL_TOPIC would pass by the permissions of that topic."""
        self.serve(timerWheelEnable="true")
        self.topics.update(TopicConfig(TIMER_TOPIC, 1, 1))
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            answer = self.send(code=code, topic=TIMER_TOPIC, properties={"REAL_TOPIC": "T", "TIMER_OUT_MS": "1"})
            self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)

    def recall(self, topic: str, handle: str) -> RemotingCommand:
        stamps = Stamps(own_addresses(str(STORE_HOST)), SetWallClock())
        recalls = RecallProcessor(self.processor, self.store, self.topics, stamps)
        return self.client(recalls.processors()).ask(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle)

    def test_it_can_be_taken_back(self) -> None:
        self.serve(timerWheelEnable="true", recallMessageEnable="true")
        timed = self.send(properties={"TIMER_DELAY_SEC": "9", "UNIQ_KEY": "K1"})
        handle = timed.ext_fields["recallHandle"]
        self.assertEqual(
            urlsafe_b64decode(handle).decode(), f"v1 T {self.settings.broker_name} {NOW_MS + 8001} K1", "as Java's"
        )
        answer = self.recall("T", handle)
        self.assert_answer(answer, ResponseCode.SUCCESS, {"msgId": "K1"})
        waits, cancels = (self.store.reader.message_at(offset) for offset in self.offsets_of(TIMER_TOPIC))
        assert waits is not None
        assert cancels is not None
        self.assertEqual(cancels.properties["TIMER_DEL_UNIQKEY"], "T+K1")
        self.assertEqual(cancels.properties["TIMER_OUT_MS"], waits.properties["TIMER_OUT_MS"])
        keyless = self.stored(self.send(properties={"TIMER_DELAY_SEC": "9"}))
        self.assertRegex(keyless.properties["UNIQ_KEY"], "^[0-9A-F]{32}$", "copies of it must be known as such")
        self.assertNotIn("recallHandle", self.send(properties={"UNIQ_KEY": "K2"}).ext_fields)

    def offsets_of(self, topic: str) -> list[int]:
        self.dispatch()
        queue = self.store.derived.queues.get(topic, 0)
        assert queue is not None
        units = [queue.unit(offset) for offset in range(queue.max_offset)]
        return [unit.physical_offset for unit in units if unit is not None]

    def test_what_cannot_be_taken_back_is_refused(self) -> None:
        self.serve(timerWheelEnable="true", recallMessageEnable="true")
        name, later = self.settings.broker_name, str(NOW_MS + 5000)
        good = RecallHandle("T", name, later, "K")
        for topic, handle, reason in (
            ("U", str(good), "the topic[U] not exist"),
            ("T", "\u00e4", "handle is invalid"),
            ("T", "x", "handle is invalid"),
            ("T", "A" * 1000, "handle is invalid"),
            ("T", urlsafe_b64encode(b"v2 T b 1 K").decode(), "handle is invalid"),
            ("T", str(good._replace(topic="V")), "topic not match"),
            ("T", str(good._replace(broker_name="other")), "at broker other"),
            ("T", str(good._replace(due_ms=str(NOW_MS))), "is due already"),
            ("T", str(good._replace(due_ms="x")), "not a time"),
        ):
            answer = self.recall(topic, handle)
            self.assertNotEqual(answer.code, ResponseCode.SUCCESS, handle)
            self.assertIn(reason, answer.remark or "", handle)
        self.assertEqual(self.store.commit_log.max_offset, 0)
        self.serve(timerWheelEnable="true")
        self.assertIn("recallMessageEnable=false", self.recall("T", str(good)).remark or "")

    def test_others_are_sent(self) -> None:
        """One that has been through a timer wheel, one with a delay level, and one with such words in its values."""
        for properties in (
            {"TIMER_DELIVER_MS": "5", "TIMER_OUT_MS": "5"},
            {"DELAY": "3", "TIMER_DELAY_MS": "5"},
            {"KEYS": "TIMER_DELAY_MS", "TIMER_DELTA": "1"},
        ):
            self.stored(self.send(properties=properties))


class SendTests(SendTestCase):
    def test_a_message_is_stored_as_it_was_sent(self) -> None:
        body = bytes(range(256))
        answer = self.send(
            body=body, properties={"KEYS": "k0", "TAGS": "A"}, flag=-7, sys_flag=COMPRESSED_FLAG, queue_id=3
        )
        record = self.stored(answer)
        self.assertEqual((record.topic, record.queue_id, record.body), ("T", 3, body))
        self.assertEqual((record.flag, record.sys_flag), (-7, COMPRESSED_FLAG))
        self.assertEqual((record.born_timestamp, record.store_timestamp), (BORN_MS, NOW_MS))
        self.assertEqual((record.born_host, record.store_host), (BORN_HOST, STORE_HOST))
        self.assertEqual(record.properties, {"KEYS": "k0", "TAGS": "A", "CLUSTER": "DefaultCluster"})

    def test_the_answer_says_where_it_is(self) -> None:
        self.send()
        answer = self.send()
        record = self.stored(answer)
        fields = {**IN_EVERY_ANSWER, "msgId": record.msg_id, "queueId": 1, "queueOffset": 1}
        self.assert_answer(answer, ResponseCode.SUCCESS, fields)
        self.assertIsNone(answer.remark)

    def test_both_headers_mean_the_same(self) -> None:
        long = self.stored(self.send(code=RequestCode.SEND_MESSAGE, names=V1_FIELDS, properties={"TAGS": "A"}))
        short = self.stored(self.send(properties={"TAGS": "A"}))
        alike = replace(long, physical_offset=short.physical_offset, queue_offset=short.queue_offset)
        self.assertEqual(alike, short)

    def test_what_is_optional_may_lack(self) -> None:
        optional = {"properties": None, "reconsume_times": None, "unit_mode": None, "batch": None}
        record = self.stored(self.send(self.request(**optional)))  # type: ignore[arg-type]
        self.assertEqual(record.properties, {"CLUSTER": "DefaultCluster"})

    def test_a_field_that_lacks_is_named(self) -> None:
        for name in (*V2_FIELDS.texts, *V2_FIELDS.integers):
            request = self.request()
            fields = {key: value for key, value in request.ext_fields.items() if key != name}
            self.assert_refused(
                [self.send(request._replace(ext_fields=fields))], 1, f"the custom field <{name}> is null"
            )

    def test_a_number_that_is_none_is_named(self) -> None:
        for name in (*V2_FIELDS.integers[1:], V2_FIELDS.reconsume_times):
            request = self.request()
            broken = request._replace(ext_fields={**request.ext_fields, name: "1x"})
            self.assert_refused([self.send(broken)], 1, f"the custom field <{name}> is not a number")

    def test_a_number_too_large_for_its_place_is_refused(self) -> None:
        self.assert_not_put(self.send(flag=2**31), ResponseCode.MESSAGE_ILLEGAL, "illegal")

    def test_a_oneway_message_is_stored_and_not_answered(self) -> None:
        self.assertEqual(self.deliver(self.request()._replace(flag=ONEWAY_FLAG)), [])
        self.assertGreater(self.store.commit_log.max_offset, 0)

    def test_each_client_is_told_apart(self) -> None:
        delayed = self.request(properties={"DELAY": "1"})
        for request in (self.request(), delayed):
            other = self.client(self.processor.processors(), self.ordinary_sends)
            other.protocol._peer_host = ("192.0.2.99", 1)
            for client, host in ((self.peer, BORN_HOST), (other, Host.parse("192.0.2.99", 1)), (self.peer, BORN_HOST)):
                (answer,) = self.deliver(request, client)
                self.assertEqual(self.stored(answer).born_host, host)

    def test_what_is_stored_is_counted(self) -> None:
        size = self.stored(self.send()).total_size
        self.send(topic="no topic")
        self.assertEqual(self.counted, [("T", 1, size)])

    def test_a_topic_of_several_tags_marks_its_messages(self) -> None:
        self.topics.update(TopicConfig("T", 4, 4, topic_filter_type=TopicFilterType.MULTI_TAG))
        self.assertEqual(self.stored(self.send()).sys_flag, MULTI_TAGS)


class TopicTests(SendTestCase):
    def test_an_unknown_topic_is_made_after_the_template(self) -> None:
        self.stored(self.send(topic="New", default_topic_queue_nums=2))
        self.assertEqual(self.topics.get("New"), TopicConfig("New", 2, 2, 6))

    def test_without_a_template_it_is_refused(self) -> None:
        answer = self.send(topic="New", default_topic="SELF_TEST_TOPIC")
        self.assert_not_put(answer, ResponseCode.TOPIC_NOT_EXIST, "topic[New] not exist")

    def test_a_retry_topic_needs_none(self) -> None:
        self.stored(self.send(topic="%RETRY%G", default_topic="unheard of", queue_id=0))
        self.assertEqual(self.topics.get("%RETRY%G"), TopicConfig("%RETRY%G", 1, 1, 6))

    def test_names_that_cannot_be_are_refused(self) -> None:
        for name in ("", "a b", "../T", "x" * 128):
            self.assert_not_put(self.send(topic=name), ResponseCode.SYSTEM_ERROR, "The specified topic")

    def test_nobody_sends_to_the_schedule_topic(self) -> None:
        answer = self.send(topic="SCHEDULE_TOPIC_XXXX")
        self.assert_not_put(answer, ResponseCode.NO_PERMISSION, "Sending message to topic[SCHEDULE_TOPIC_XXXX]")

    def test_a_queue_that_the_topic_lacks_is_refused(self) -> None:
        self.assert_not_put(self.send(queue_id=4), ResponseCode.SYSTEM_ERROR, "request queueId[4] is illegal")

    def test_a_queue_that_is_only_read_still_takes_messages(self) -> None:
        self.topics.update(TopicConfig("T", 4, 2))
        self.assertEqual(self.stored(self.send(queue_id=3)).queue_id, 3)

    def test_the_broker_chooses_a_queue_where_the_client_does_not(self) -> None:
        self.topics.update(TopicConfig("T", 4, 2))
        queues = set()
        for _ in range(50):
            answer = self.send(queue_id=-1)
            self.assertEqual(answer.ext_fields["queueId"], str(self.stored(answer).queue_id))
            queues.add(self.stored(answer).queue_id)
        self.assertEqual(queues, {0, 1})

    def test_a_topic_without_queues_takes_nothing(self) -> None:
        self.topics.update(TopicConfig("T", 0, 0))
        for queue_id in (-1, 0):
            self.assert_not_put(self.send(queue_id=queue_id), ResponseCode.SYSTEM_ERROR, "is illegal")

    def test_a_broker_not_to_be_written_refuses_topics_of_order(self) -> None:
        self.serve(brokerPermission="4")
        self.topics.update(TopicConfig("T", 4, 4, order=True))
        self.assert_not_put(
            self.send(), ResponseCode.NO_PERMISSION, "the broker[broker-a] sending message is forbidden"
        )
        self.stored(self.send(topic="Other"))

    def test_it_takes_nothing_before_its_time(self) -> None:
        self.serve(startAcceptSendRequestTimeStamp=str(NOW_MS + 1))
        self.assert_not_put(self.send(), ResponseCode.SYSTEM_ERROR, "broker unable to service, until")
        self.serve(startAcceptSendRequestTimeStamp=str(NOW_MS))
        self.stored(self.send())


class PropertyTests(SendTestCase):
    def test_what_a_message_waits_for_is_not_stored(self) -> None:
        for text in ("true", "TRUE", "false", "maybe"):
            record = self.stored(self.send(properties={"KEYS": "k", "WAIT": text, "TAGS": "A"}))
            self.assertEqual(record.properties, {"KEYS": "k", "TAGS": "A", "CLUSTER": "DefaultCluster"})

    def test_but_it_is_obeyed(self) -> None:
        for text, waits in (("TRUE", True), ("false", False)):
            with patch.object(self.store, "put_message", return_value=Deferred()) as put:
                self.assertEqual(self.deliver(self.request(properties={"WAIT": text})), [])
            (message,) = put.call_args.args
            self.assertEqual(message.is_wait_store_msg_ok, waits, text)

    def test_those_of_one_read_wait_unless_they_say_otherwise(self) -> None:
        replicas = FakeReplicas(self.clock)
        self.store.replicate_by(replicas)
        waits = "true", None, "TRUE", "false"
        requests = [self.request(properties={} if text is None else {"WAIT": text}) for text in waits]
        self.peer.line.deliver(b"".join(frame(request._replace(opaque=at)) for at, request in enumerate(requests)))
        self.assertEqual([answer.opaque for answer in self.peer.answers()], [3])
        replicas.reached(self.store.commit_log.max_offset)
        self.assertEqual([(answer.code, answer.opaque) for answer in self.peer.answers()], [(0, 0), (0, 1), (0, 2)])
        self.assertEqual(self.stats.sends_taken, 2)

    def test_the_cluster_is_this_ones(self) -> None:
        record = self.stored(self.send(properties={"CLUSTER": "elsewhere", "TAGS": "A"}))
        self.assertEqual(record.properties, {"CLUSTER": "DefaultCluster", "TAGS": "A"})

    def test_a_trailing_separator_does_no_harm(self) -> None:
        record = self.stored(self.send(properties="TAGS\x01A\x02"))
        self.assertEqual(record.properties_stored, "TAGS\x01A\x02CLUSTER\x01DefaultCluster")

    def test_names_that_only_look_alike_are_left_alone(self) -> None:
        own = {"AWAIT": "true", "WAITS": "true", "DELAYED": "3", "X": "WAIT", "TRAN_MSGS": "true"}
        record = self.stored(self.send(properties=own))
        self.assertEqual(record.properties, {**own, "CLUSTER": "DefaultCluster"})

    @settings(max_examples=examples(60), deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(["A", "WAIT", "CLUSTER", "é漢", "TAGS", "KEYS", "MY_WAIT"]),
            st.text("trueabc漢 \x01", min_size=1, max_size=6),
        )
    )
    def test_all_others_are_stored_as_they_came(self, own: dict[str, str]) -> None:
        record = self.stored(self.send(properties=own))
        own.pop("WAIT", None)
        self.assertEqual(record.properties, {**own, "CLUSTER": "DefaultCluster"})

    def test_too_many_are_refused(self) -> None:
        answer = self.send(properties={"A": "x" * 32768})
        self.assert_not_put(answer, ResponseCode.MESSAGE_ILLEGAL, "longer than 32767")

    def test_a_delayed_message_goes_to_its_level_and_is_answered_as_asked_for(self) -> None:
        answer = self.send(properties={"DELAY": "3", "WAIT": "true", "TAGS": "A"}, queue_id=1)
        record = self.stored(answer)
        self.assertEqual((record.topic, record.queue_id), ("SCHEDULE_TOPIC_XXXX", 2))
        self.assertEqual(answer.ext_fields["queueId"], "1")
        real = {"REAL_TOPIC": "T", "REAL_QID": "1", "DELAY": "3", "WAIT": "true"}
        self.assertEqual(record.properties, {**real, "TAGS": "A", "CLUSTER": "DefaultCluster"})

    def test_no_delay_is_none(self) -> None:
        for text in ("0", "-1", "soon"):
            self.assertEqual(self.stored(self.send(properties={"DELAY": text})).topic, "T")

    def test_a_half_message_is_prepared_with_all_its_properties(self) -> None:
        half = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "K", "WAIT": "true"}
        answer = self.send(properties=half, sys_flag=TRANSACTION_PREPARED_TYPE, queue_id=2)
        (message,) = self.prepared
        self.assertEqual(message.properties, {**half, "CLUSTER": "DefaultCluster"})
        self.assertEqual((message.topic, message.queue_id, message.properties_stored), ("T", 2, None))
        self.assertEqual((answer.code, answer.ext_fields["queueId"]), (0, "2"))

    def test_a_broker_may_refuse_transactions(self) -> None:
        self.serve(rejectTransactionMessage="true")
        answer = self.send(properties={"TRAN_MSG": "true"})
        self.assert_not_put(answer, ResponseCode.NO_PERMISSION, "sending transaction message is forbidden")
        self.stored(self.send(properties={"TRAN_MSG": "false"}))
        self.assertEqual(self.prepared, [])


class BatchTests(SendTestCase):
    def batch(
        self, *entries: BatchEntry, code: int = RequestCode.SEND_BATCH_MESSAGE, **fields: object
    ) -> RemotingCommand:
        return self.request(code, encode_batch(entries), batch="true", **fields)  # type: ignore[arg-type]

    def records(self, answer: RemotingCommand) -> list[Record]:
        """The messages that this answer is about."""
        self.assertEqual(answer.code, 0, answer.remark)
        offsets = [parse_msg_id(msg_id)[1] for msg_id in answer.ext_fields["msgId"].split(",")]
        records = [self.store.reader.message_at(offset) for offset in offsets]
        return [record for record in records if record is not None]

    def test_each_message_is_stored_by_itself(self) -> None:
        self.send(queue_id=2)
        entries = [BatchEntry(b"one", "TAGS\x01A\x02", 5), BatchEntry(b"", "", -1), BatchEntry(b"three", "KEYS\x01k")]
        answer = self.send(self.batch(*entries, queue_id=2, properties={"WAIT": "true"}))
        records = self.records(answer)
        self.assertEqual([(record.body, record.flag) for record in records], [(b"one", 5), (b"", -1), (b"three", 0)])
        self.assertEqual([(record.queue_id, record.queue_offset) for record in records], [(2, 1), (2, 2), (2, 3)])
        self.assertEqual((answer.ext_fields["queueOffset"], answer.ext_fields["queueId"]), ("1", "2"))
        of_batch = {"WAIT": "true", "CLUSTER": "DefaultCluster"}
        self.assertEqual(records[0].properties, {"TAGS": "A", **of_batch})
        self.assertEqual((records[1].properties, records[2].properties), (of_batch, {"KEYS": "k", **of_batch}))
        self.assertEqual({record.born_host for record in records}, {BORN_HOST})

    def test_the_field_says_that_it_is_one_not_the_code(self) -> None:
        entry = BatchEntry(b"one")
        self.assertEqual(len(self.records(self.send(self.batch(entry, entry, code=RequestCode.SEND_MESSAGE_V2)))), 2)
        single = self.request(RequestCode.SEND_BATCH_MESSAGE, encode_batch([entry]))
        self.assertEqual(self.stored(self.send(single)).body, encode_batch([entry]))

    def test_it_is_counted_message_by_message(self) -> None:
        records = self.records(self.send(self.batch(BatchEntry(b"1"), BatchEntry(b"2"))))
        self.assertEqual(self.counted, [("T", 2, sum(record.total_size for record in records))])

    def test_it_waits_as_the_batch_says(self) -> None:
        for text, waits in (("true", True), ("false", False)):
            with patch.object(self.store, "put_prepared", return_value=Deferred()) as put:
                self.deliver(self.batch(BatchEntry(b"1"), properties={"WAIT": text}))
            batch = put.call_args.args[0].batch
            self.assertEqual(batch.is_wait_store_msg_ok, waits, text)

    def test_what_cannot_be_read_is_refused_whole(self) -> None:
        good = encode_batch([BatchEntry(b"one", "TAGS\x01A"), BatchEntry(b"two")])
        for bad in (good[:-1], good + b"\0", b"\xff" * 30, good[:3] + b"\xff" + good[4:]):
            answer = self.send(self.request(body=bad, batch="true"))
            self.assert_not_put(answer, ResponseCode.MESSAGE_ILLEGAL, "the batch is refused: the ")

    def test_an_empty_one_is_refused(self) -> None:
        self.assert_not_put(self.send(self.batch()), ResponseCode.MESSAGE_ILLEGAL, "illegal")

    def test_what_a_message_in_one_asks_for_in_vain_is_refused_in_words(self) -> None:
        asks = {
            "DELAY": "3",
            "TRAN_MSG": "true",
            "TIMER_DELAY_MS": "5000",
            "TIMER_DELAY_SEC": "5",
            "TIMER_DELIVER_MS": "1",
            "TIMER_DEL_UNIQKEY": "K",
        }
        for name, value in asks.items():
            entries = BatchEntry(b"one"), BatchEntry(b"two", format_properties({"TAGS": "A", name: value}))
            remark = f"a message has the property {name}={value}: send it alone"
            self.assert_not_put(self.send(self.batch(*entries)), ResponseCode.MESSAGE_ILLEGAL, remark)
            whole = self.batch(BatchEntry(b"one"), properties={name: value})
            self.assert_not_put(self.send(whole), ResponseCode.MESSAGE_ILLEGAL, remark)
        for properties in ({"DELAY": "0"}, {"TRAN_MSG": "false"}, {"X": "TRAN_MSG DELAY"}):
            self.assertEqual(self.send(self.batch(BatchEntry(b"one", format_properties(properties)))).code, 0)

    def test_one_of_retries_is_refused_as_in_5_x(self) -> None:
        self.topics.update(TopicConfig("%RETRY%G", 4, 4))
        request = self.request(body=encode_batch([BatchEntry(b"x")]), topic="%RETRY%G", batch="true")
        remark = "batch request does not support retry group %RETRY%G"
        self.assert_not_put(self.send(request), ResponseCode.MESSAGE_ILLEGAL, remark)

    def test_transactions_have_no_place_in_one(self) -> None:
        prepared = self.batch(BatchEntry(b"one"), sys_flag=TRANSACTION_PREPARED_TYPE)
        self.assert_not_put(self.send(prepared), ResponseCode.MESSAGE_ILLEGAL, "illegal")

    def test_one_larger_than_a_message_may_be_is_refused(self) -> None:
        self.serve(maxMessageSize="1024")
        answer = self.send(self.batch(*[BatchEntry(b"x" * 100)] * 9))
        self.assert_not_put(answer, ResponseCode.MESSAGE_ILLEGAL, "illegal")


class OutcomeTests(SendTestCase):
    def answer_to(self, status: PutMessageStatus, stored: bool) -> RemotingCommand:
        """What a put that ends so answers."""
        appended = self.successResultOf(self.store.put_message(Message("T", b"x", store_host=STORE_HOST))).append
        result = PutMessageResult(status, appended if stored else None)
        with (
            patch.object(self.store, "put_message", lambda message: succeed(result)),
            patch.object(self.store.puts, "put_run", return_value=status if stored else None) as put_run,
        ):
            (slowly,) = self.deliver(self.request(), self.slow_peer)
            put_run.assert_not_called()
            answer = self.send()
            put_run.assert_called_once()
        self.assertEqual(
            (answer.code, answer.remark, set(answer.ext_fields)), (slowly[0], slowly.remark, {*slowly.ext_fields})
        )
        return answer

    def test_what_is_stored_says_where_whatever_it_waited_for(self) -> None:
        for status, code in STORED.items():
            answer = self.answer_to(status, stored=True)
            self.assertEqual((answer.code, answer.remark), (code, None))
            self.assertLessEqual({"msgId", "queueId", "queueOffset"}, answer.ext_fields.keys())

    def test_what_is_not_stored_says_why(self) -> None:
        for status, code in NOT_STORED.items():
            answer = self.answer_to(status, stored=False)
            self.assertEqual((answer.code, dict(answer.ext_fields)), (code, IN_EVERY_ANSWER), status)
            self.assertTrue(answer.remark)

    def test_every_outcome_is_told(self) -> None:
        self.assertEqual({*STORED, *NOT_STORED}, set(PutMessageStatus))

    def test_an_answer_comes_when_the_put_ends(self) -> None:
        putting: Deferred[PutMessageResult] = Deferred()
        passing: Deferred[PutMessageStatus] = Deferred()
        appended = self.successResultOf(self.store.put_message(Message("T", b"x"))).append
        with (
            patch.object(self.store, "put_message", return_value=putting),
            patch.object(self.store.puts, "put_run", return_value=passing),
        ):
            self.assertEqual(self.deliver(self.request()), [])
            self.assertEqual(self.deliver(self.request(), self.slow_peer), [])
        passing.callback(PutMessageStatus.PUT_OK)
        putting.callback(PutMessageResult(PutMessageStatus.PUT_OK, appended))
        for peer in (self.peer, self.slow_peer):
            (answer,) = peer.answers()
            self.assertEqual((answer.code, answer.opaque), (0, 7))


class TransactionIdTests(SendTestCase):
    """Answers name the message's unique key, as those of 5.x do: by it their clients end a transaction."""

    def test_each_answer_to_a_stored_message_names_its_unique_key(self) -> None:
        self.serve(timerWheelEnable="true")
        for name in ("%RETRY%G", "%DLQ%G"):
            self.topics.update(TopicConfig(name, 4, 4))
        batch = encode_batch([BatchEntry(b"x", "", 0)])
        ways: dict[str, dict[str, Any]] = {
            "fast": {},
            "parsed": {"properties": {"DELAY": "1"}},
            "half": {"properties": {"TRAN_MSG": "true", "PGROUP": "P"}},
            "timer": {"properties": {"TIMER_DELIVER_MS": str(NOW_MS + 60_000)}},
            "retry": {"topic": "%RETRY%G"},
            "dead": {"topic": "%RETRY%G", "reconsume_times": 16},
            "batch": {"batch": "true", "body": batch},
        }
        for code, names in ((RequestCode.SEND_MESSAGE_V2, V2_FIELDS), (RequestCode.SEND_MESSAGE, V1_FIELDS)):
            for way, changed in ways.items():
                for key in ("C0A80001", 'an odd"\\key%s', "ключ", "1" * 1000):
                    properties = {"KEYS": "k", "UNIQ_KEY": key, **changed.get("properties", {})}
                    answer = self.send(self.request(code, names=names, **{**changed, "properties": properties}))
                    self.assertEqual((answer.code, answer.ext_fields.get("transactionId")), (0, key), way)

    def test_a_message_without_one_has_none_in_its_answer(self) -> None:
        for properties in ({}, {"DELAY": "1"}, {"XUNIQ_KEY": "1"}):
            self.assertNotIn("transactionId", self.send(properties=properties).ext_fields)

    def test_a_half_message_gets_one(self) -> None:
        answer = self.send(properties={"TRAN_MSG": "true", "PGROUP": "P"})
        self.assertEqual(self.stored(answer).properties["UNIQ_KEY"], answer.ext_fields["transactionId"])

    def test_what_is_no_text_is_left_out(self) -> None:
        answer = self.send(properties={"UNIQ_KEY": "a\x03b"})
        self.assertEqual((answer.code, answer.ext_fields.get("transactionId")), (0, None))


class RetryTests(SendTestCase):
    """What a consumer sends to its retry topic itself, when sending back failed."""

    def retry(self, reconsume_times: int, version: int = 399, **fields: object) -> Record:
        request = self.request(topic="%RETRY%G", queue_id=0, reconsume_times=reconsume_times, **fields)  # type: ignore[arg-type]
        return self.stored(self.send(request._replace(version=version)))

    def test_it_is_stored_with_the_times_it_was_tried(self) -> None:
        record = self.retry(2)
        self.assertEqual((record.topic, record.reconsume_times), ("%RETRY%G", 2))

    def test_after_too_many_times_it_is_a_dead_letter(self) -> None:
        self.assertEqual(self.retry(15, properties={"DELAY": "18"}).topic, "SCHEDULE_TOPIC_XXXX")
        record = self.retry(16, properties={"DELAY": "18", "TAGS": "A"})
        self.assertEqual((record.topic, record.queue_id), ("%DLQ%G", 0))
        self.assertEqual(record.properties, {"TAGS": "A", "CLUSTER": "DefaultCluster"})
        self.assertEqual(self.topics.get("%DLQ%G"), TopicConfig("%DLQ%G", 1, 1, 6))

    def test_the_client_may_say_how_many_are_too_many(self) -> None:
        self.assertEqual(self.retry(2, max_reconsume_times=2).topic, "%DLQ%G")
        self.assertEqual(self.retry(2, max_reconsume_times=3).topic, "%RETRY%G")
        self.assertEqual(self.retry(2, version=120, max_reconsume_times=2).topic, "%RETRY%G")

    def test_else_the_group_does(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G", retry_max_times=1))
        self.assertEqual(self.retry(1).topic, "%DLQ%G")

    def test_one_that_was_part_of_a_transaction_is_no_half_message(self) -> None:
        """Old clients send back with all properties. Its transaction was committed before it was consumed."""
        for topic in ("%RETRY%G", "%DLQ%G"):
            self.topics.update(TopicConfig(topic, 1, 1))
            for code, names in ((RequestCode.SEND_MESSAGE_V2, V2_FIELDS), (RequestCode.SEND_MESSAGE, V1_FIELDS)):
                for times in (0, 1, 16):  # with 16 it is a dead letter
                    for delay in ({}, {"DELAY": "3"}):
                        properties = {"TRAN_MSG": "true", "PGROUP": "P", **delay}
                        changed = {"topic": topic, "queue_id": 0, "reconsume_times": times}
                        self.stored(self.send(self.request(code, b"x", properties, names, **changed)))
        self.assertEqual(self.prepared, [])

    def test_an_unknown_group_may_be_refused(self) -> None:
        self.serve(autoCreateSubscriptionGroup="false")
        answer = self.send(topic="%RETRY%G", queue_id=0)
        self.assert_not_put(answer, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist, G")


class SendBackTests(SendTestCase):
    """A consumer gives back what it could not consume."""

    def setUp(self) -> None:
        super().setUp()
        self.record = self.stored(self.send(properties={"TAGS": "A", "KEYS": "k"}, flag=3))
        self.dispatch()

    def give_back(self, record: Record | None = None, **fields: int | None) -> RemotingCommand:
        offset = (record or self.record).physical_offset
        named = {"offset": offset, "group": "G", "delayLevel": 0, "maxReconsumeTimes": 16, **fields}
        return self.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **named)

    def last(self) -> Record:
        """The newest message in the log."""
        at = self.store.commit_log.last_message_offset
        assert at is not None
        record = self.store.reader.message_at(at)
        assert record is not None
        return record

    def come_back(self, record: Record | None = None, **fields: int | None) -> Record:
        """Give it back, and see what is stored."""
        answer = self.give_back(record, **fields)
        self.assertEqual((answer.code, answer.remark), (0, None))
        return self.last()

    def consumed_again(self) -> Record:
        """The newest message, which waits, as the group gets it from its retry topic."""
        message = delivered_message(self.last())
        assert message is not None
        self.successResultOf(self.store.put_message(message))
        self.dispatch()
        return self.last()

    def test_it_waits_for_its_next_try(self) -> None:
        back = self.come_back()
        self.assertEqual((back.topic, back.queue_id), ("SCHEDULE_TOPIC_XXXX", 2))
        self.assertEqual((back.body, back.flag), (self.record.body, 3))
        self.assertEqual((back.born_timestamp, back.born_host), (self.record.born_timestamp, self.record.born_host))
        self.assertEqual((back.store_host, back.reconsume_times), (STORE_HOST, 1))
        expected = {
            **self.record.properties,
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": self.record.msg_id,
            "WAIT": "false",
            "DELAY": "3",
            "REAL_TOPIC": "%RETRY%G",
            "REAL_QID": "0",
        }
        self.assertEqual(back.properties, expected)
        self.assertEqual(self.topics.get("%RETRY%G"), TopicConfig("%RETRY%G", 1, 1, 6))

    def test_it_waits_longer_each_time(self) -> None:
        levels = [self.come_back().queue_id + 1]
        levels += [self.come_back(self.consumed_again()).queue_id + 1 for _ in range(3)]
        self.assertEqual((levels, self.last().reconsume_times), ([3, 4, 5, 6], 4))
        self.assertEqual(self.last().properties["ORIGIN_MESSAGE_ID"], self.record.msg_id)
        self.assertEqual(self.last().properties["RETRY_TOPIC"], "T")

    def test_what_no_retry_topic_could_hold_is_refused(self) -> None:
        """A group of an older store: each record that it gave back was lost when its delay was over."""
        at = self.store.commit_log.max_offset
        for length in (121, 255):
            name = "g" * length
            self.groups.update(SubscriptionGroupConfig(name))
            for changed in ({}, {"delayLevel": -1}):
                answer = self.give_back(None, group=name, **changed)  # type: ignore[arg-type]
                self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, "longer than topic max length")
        self.assertEqual(self.store.commit_log.max_offset, at)

    def test_the_largest_message_comes_back_too(self) -> None:
        """It grows: it gets properties, and a topic with a longer name."""
        self.serve(maxMessageSize="2000")
        room = 2000 - self.stored(self.send(body=b"")).total_size - 24  # hosts of IPv6 would take 24 more
        self.record = self.stored(self.send(body=b"x" * room))
        self.dispatch()
        for changed in ({}, {"delayLevel": -1}):
            self.assertEqual(self.come_back(None, **changed).body, self.record.body)

    def test_one_whose_properties_leave_no_room_for_a_retry_is_a_dead_letter_as_it_is(self) -> None:
        room = 32767 - len(self.record.properties_stored.encode()) - len("\2X\1")
        for length in (room, room - 30):
            self.record = self.stored(self.send(properties={"TAGS": "A", "KEYS": "k", "X": "é" * (length // 2)}))
            self.dispatch()
            for changed in ({}, {"delayLevel": -1}):
                with log_lines() as lines:
                    dead = self.come_back(None, **changed)
                self.assertEqual((dead.topic, dead.reconsume_times), ("%DLQ%G", 1))
                self.assertEqual((dead.body, dead.properties), (self.record.body, self.record.properties))
                self.assertIn("becomes a dead letter of group G: its properties of", lines())

    def test_the_consumer_may_say_how_long(self) -> None:
        self.assertEqual(self.come_back(delayLevel=7).queue_id, 6)

    def test_after_the_last_try_it_is_a_dead_letter(self) -> None:
        self.come_back(maxReconsumeTimes=1)
        dead = self.come_back(self.consumed_again(), maxReconsumeTimes=1)
        self.assertEqual((dead.topic, dead.queue_id, dead.reconsume_times), ("%DLQ%G", 0, 2))

    def test_the_consumer_may_want_it_to_be_one_at_once(self) -> None:
        self.assertEqual(self.come_back(delayLevel=-1).topic, "%DLQ%G")

    def test_the_group_says_how_often_unless_the_consumer_does(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G", retry_max_times=0))
        self.assertEqual(self.come_back(maxReconsumeTimes=None).topic, "%DLQ%G")

    def test_a_group_without_retry_queues_gets_nothing_back(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G", retry_queue_nums=0))
        self.assertEqual(self.come_back(), self.record)

    def test_a_message_that_is_not_there_is_refused(self) -> None:
        missing = self.give_back(offset=self.record.physical_offset + 1)
        self.assert_refused([missing], ResponseCode.SYSTEM_ERROR, "look message by offset failed")

    def test_only_what_a_consumer_can_have_got_comes_back(self) -> None:
        """Whatever the request says of its topic: an offset may be that of any record, or of none."""
        waiting = self.come_back()
        hidden = [
            waiting,
            *self.put(b"half", topic=HALF_TOPIC, REAL_TOPIC="T", REAL_QID="0"),
            *self.put(b"operation", topic=OPERATION_TOPIC),
            *self.put(b"timer", topic=TIMER_TOPIC),
            *self.put(b"pop", topic="rmq_sys_REVIVE_LOG_DefaultCluster"),
        ]
        for record in hidden:
            self.assert_refused([self.give_back(record)], ResponseCode.SYSTEM_ERROR, "look message by offset failed")

    def test_what_looks_like_a_record_in_a_body_does_not_come_back(self) -> None:
        at = self.store.commit_log.max_offset + BEFORE_BODY_BYTES
        self.put(encode_record(replace(self.record, physical_offset=at)))
        self.assertEqual(getattr(self.store.reader.message_at(at), "topic", None), "T")
        self.assert_refused([self.give_back(offset=at)], ResponseCode.SYSTEM_ERROR, "look message by offset failed")

    def test_a_message_that_is_not_confirmed_does_not_come_back(self) -> None:
        limit = ReadLimit(self.clock, 0)
        with patch.object(self.store.reader, "limit", limit):
            self.assert_refused([self.give_back()], ResponseCode.SYSTEM_ERROR, "look message by offset failed")
        self.assertEqual(self.give_back().code, 0)

    def test_an_account_gives_back_what_it_may_read(self) -> None:
        rights = self.peer.protocol.rights = Granted(reads={"T", "%RETRY%G"})
        self.come_back()
        again = self.consumed_again()
        self.assertEqual(self.come_back(again).topic, "SCHEDULE_TOPIC_XXXX")
        rights.reads = {"%RETRY%G"}
        self.assert_refused([self.give_back()], ResponseCode.SYSTEM_ERROR, "look message by offset failed")
        self.assertEqual(self.give_back(again).code, 0)
        rights.reads = {"T"}
        self.assert_refused([self.give_back(again)], ResponseCode.SYSTEM_ERROR, "look message by offset failed")

    def test_an_unknown_group_may_be_refused(self) -> None:
        self.serve(autoCreateSubscriptionGroup="false")
        self.assert_refused([self.give_back()], ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "not exist, G")

    def test_a_broker_or_topic_not_to_be_written_refuses(self) -> None:
        self.topics.update(TopicConfig("%RETRY%G", perm=4))
        self.assert_refused([self.give_back()], ResponseCode.NO_PERMISSION, "the topic[%RETRY%G]")
        self.serve(brokerPermission="4")
        self.assert_refused([self.give_back()], ResponseCode.NO_PERMISSION, "the broker[broker-a]")

    @staticmethod
    def put_of(result: PutMessageResult, _: Message) -> Deferred[PutMessageResult]:
        """Plays the store."""
        return succeed(result)

    def test_anything_but_a_clean_put_is_an_error(self) -> None:
        for status in set(PutMessageStatus) - {PutMessageStatus.PUT_OK}:
            playing = partial(self.put_of, PutMessageResult(status))
            with patch.object(self.store, "put_message", side_effect=playing):
                answer = self.give_back()
            self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, status.name))


class SlaveTests(SendTestCase):
    def test_a_slave_takes_no_messages(self) -> None:
        self.open("SLAVE")
        slave = self.client(slave_processors(self.settings))
        for code, names in (
            (RequestCode.SEND_MESSAGE, V1_FIELDS),
            (RequestCode.SEND_MESSAGE_V2, V2_FIELDS),
            (RequestCode.SEND_BATCH_MESSAGE, V2_FIELDS),
        ):
            (answer,) = self.deliver(self.request(code, names=names), slave)
            self.assert_not_put(answer, ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave")

    def test_nor_does_it_take_any_back(self) -> None:
        self.open("SLAVE")
        answer = self.client(slave_processors(self.settings)).ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0)
        self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
