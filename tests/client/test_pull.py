"""A puller: what it asks, how it reads answers, and whom it asks where the master is gone (remoting.md 2.3, 8.6)."""

import sys
import zlib
from dataclasses import replace
from unittest.mock import patch

import lz4.frame
import pytest
import zstandard
from twisted.internet.defer import Deferred

from rmqha.client import (
    MessageQueue,
    MQBrokerError,
    MQClientError,
    PullConsumer,
    PullResult,
    PullStatus,
    ReceivedMessage,
    SqlExpression,
)
from rmqha.client.bulk import BulkPull, Edge, Selection
from rmqha.client.instance import REST_SECONDS
from rmqha.client.received import MAX_INFLATED_BYTES, BodyError
from rmqha.remoting.protocol import Answer, Processor, RemotingProtocol
from rmqha.testing.records import make_record
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.record import (
    COMPRESSED_FLAG,
    INNER_BATCH_FLAG,
    LZ4_COMPRESSION_TYPE,
    ZSTD_COMPRESSION_TYPE,
    Record,
    encode_blank,
    encode_record,
)
from tests.client.cluster import ClusterTestCase, Server, broker_data, queue_data

QUEUE = MessageQueue("T", "a", 1)
BATCH_OF_A = [(b"one", 4, 7, 0), (b"three", 6, 0, 0)]
"""Body, queue offset, flag and SYSFLAG."""
COMPRESSED = {
    0x0: zlib.compress,
    0x300: zlib.compress,
    LZ4_COMPRESSION_TYPE: lz4.frame.compress,
    ZSTD_COMPRESSION_TYPE: zstandard.ZstdCompressor(write_content_size=False).compress,
}
"""How bodies are compressed, by the bits of SYSFLAG that say so."""
OFFSETS = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET)


def record(number: int, tags: str = "") -> Record:
    """A message that may have a tag."""
    made = make_record(number, b"body %d" % number, topic="T", physical_offset=number * 100)
    return Record(
        topic=made.topic,
        body=made.body,
        properties_stored=f"TAGS\x01{tags}" if tags else "",
        queue_offset=number,
        physical_offset=made.physical_offset,
    )


class PullTestCase(ClusterTestCase):
    """A master and its slave, which both have ``messages`` in queue 1 and none in queue 0."""

    def setUp(self) -> None:
        super().setUp()
        self.messages: list[Record] = []
        self.portion = 3
        self.suggested = "0"
        self.answer: RemotingCommand | None = None
        self.committed: list[int] = []
        self.master, self.slave = (self.serve_queue(address) for address in ("a:1", "a:2"))
        self.routes["T"] = [broker_data("a", master="a:1", slave="a:2")], [queue_data("a", 2, 2)]
        self.consumer = PullConsumer(self.client, "G")

    def serve_queue(self, address: str) -> Server:
        processors: dict[int, Processor] = {
            RequestCode.PULL_MESSAGE: self.answer_pull,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            **dict.fromkeys(OFFSETS, self.tell_offset),
        }
        return self.serve(address, processors)

    def answer_pull(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        if self.answer is not None:
            return self.answer
        here = self.messages if request.ext_fields["queueId"] == "1" else []
        at = int(request.ext_fields["queueOffset"])
        found = here[at : at + self.portion]
        return self.pulled(0 if found else 19, at + len(found), b"".join(map(encode_record, found)))

    def pulled(self, code: int, next_begin_offset: int, body: bytes = b"") -> RemotingCommand:
        fields = {"suggestWhichBrokerId": self.suggested, "nextBeginOffset": str(next_begin_offset)}
        fields.update(minOffset="0", maxOffset=str(len(self.messages)))
        return RemotingCommand(code, ext_fields=fields, body=body)

    def tell_offset(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        if self.answer is not None:
            return self.answer
        has_messages = request.code == RequestCode.GET_MAX_OFFSET and request.ext_fields["queueId"] == "1"
        offset = len(self.messages) if has_messages else 0
        return RemotingCommand(0, ext_fields={"offset": str(offset)})

    def commit(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        self.committed.append(int(request.ext_fields["commitOffset"]))
        return RemotingCommand(0)

    def pull(self, offset: int = 0, expression: str = "*") -> PullResult:
        pulling = self.consumer.pull(QUEUE, offset, expression=expression)
        self.carry()
        return self.successResultOf(pulling)

    def bodies(self, result: PullResult) -> list[bytes]:
        return [message.body for message in result.messages]


class PullTests(PullTestCase):
    def test_messages_come_as_they_are_with_where_to_go_on(self) -> None:
        self.messages = [record(number) for number in range(5)]
        result = self.pull()
        self.assertEqual(result, PullResult(PullStatus.FOUND, 3, 0, 5, tuple(self.messages[:3])))
        self.assertEqual(self.pull(3).messages, tuple(self.messages[3:]))
        fields = self.master.asked[0].ext_fields
        self.assertEqual((fields["sysFlag"], fields["suspendTimeoutMillis"]), ("4", "0"))
        self.assertEqual((fields["consumerGroup"], fields["queueId"], fields["maxMsgNums"]), ("G", "1", "32"))

    def test_a_pull_may_wait_at_the_broker(self) -> None:
        self.master.is_mute = True
        pulling = self.consumer.pull(QUEUE, 0, suspend_seconds=15)
        self.carry()
        fields = self.master.asked[0].ext_fields
        self.assertEqual((fields["sysFlag"], fields["suspendTimeoutMillis"]), ("6", "15000"))
        self.clock.advance(20)
        self.assertNoResult(pulling)
        pulling.cancel()
        self.failureResultOf(pulling)

    def test_each_status_is_read(self) -> None:
        for code, status in (
            (19, PullStatus.NO_NEW_MSG),
            (20, PullStatus.NO_MATCHED_MSG),
            (21, PullStatus.OFFSET_ILLEGAL),
        ):
            self.answer = self.pulled(code, 9)
            self.assertEqual(self.pull(), PullResult(status, 9, 0, 0))

    def test_only_wanted_tags_are_given_whatever_the_broker_sends(self) -> None:
        self.messages = [record(0, "A"), record(1, "B"), record(2)]
        self.assertEqual(self.bodies(self.pull(expression="A || C")), [b"body 0"])
        self.assertEqual(self.master.asked[0].ext_fields["subscription"], "A || C")

    def test_with_sql_the_broker_alone_chooses(self) -> None:
        self.messages = [record(0, "A"), record(1, "B")]
        self.assertEqual(self.bodies(self.pull(expression=SqlExpression("a > 5"))), [b"body 0", b"body 1"])
        fields = self.master.asked[0].ext_fields
        self.assertEqual((fields["subscription"], fields["expressionType"]), ("a > 5", "SQL92"))
        self.pull(expression="A")
        self.assertEqual(self.master.asked[1].ext_fields["expressionType"], "TAG")

    def test_the_messages_of_a_batch_come_one_by_one(self) -> None:
        entries = [
            BatchEntry(b"one", "TAGS\x01A", 7),
            BatchEntry(b"two", "TAGS\x01B"),
            BatchEntry(b"three", "TAGS\x01A"),
        ]
        body = encode_batch(entries)
        for flags, content in ((0, body), (COMPRESSED_FLAG, zlib.compress(body))):
            batch = replace(record(4, "C"), body=content, sys_flag=INNER_BATCH_FLAG | flags, body_crc=None)
            self.answer = self.pulled(0, 7, encode_record(batch))
            found = self.pull(4, expression="A").messages
            self.assertEqual([(one.body, one.queue_offset, one.flag, one.sys_flag) for one in found], BATCH_OF_A)

    def test_a_batch_that_cannot_be_read_has_no_body(self) -> None:
        broken = replace(record(4), body=b"no batch", sys_flag=INNER_BATCH_FLAG, body_crc=None)
        self.answer = self.pulled(0, 7, encode_record(broken))
        (found,) = self.pull(4).messages
        self.assertEqual(found.queue_offset, 4)
        with self.assertRaisesRegex(ValueError, "is a batch of messages that cannot be read"):
            ReceivedMessage.of(found, QUEUE)

    def test_compressed_bodies_are_decompressed(self) -> None:
        content = b"hello " * 2000
        for kind, body in COMPRESSED.items():
            packed = replace(record(4), body=body(content), sys_flag=COMPRESSED_FLAG | kind, body_crc=None)
            self.assertEqual(ReceivedMessage.of(packed, QUEUE).body, content)
            for cut in (b"", packed.body[:3], packed.body[:-5], b"x" + packed.body):
                with self.assertRaisesRegex(BodyError, "cannot be decompressed"):
                    ReceivedMessage.of(replace(packed, body=cut), QUEUE)

    @pytest.mark.long
    def test_a_body_that_expands_to_too_much_is_refused(self) -> None:
        for kind, body in COMPRESSED.items():
            bomb = replace(record(4), body=body(bytes(MAX_INFLATED_BYTES + 1)), sys_flag=COMPRESSED_FLAG | kind)
            with self.assertRaisesRegex(BodyError, "expands to more than"):
                ReceivedMessage.of(bomb, QUEUE)
            with self.assertRaisesRegex(BodyError, "in an unknown way"):
                ReceivedMessage.of(replace(bomb, sys_flag=COMPRESSED_FLAG | 0x400), QUEUE)

    def test_without_its_library_a_body_says_what_to_install(self) -> None:
        for kind, module in ((LZ4_COMPRESSION_TYPE, "lz4.frame"), (ZSTD_COMPRESSION_TYPE, "zstandard")):
            packed = replace(record(4), body=COMPRESSED[kind](b"a"), sys_flag=COMPRESSED_FLAG | kind, body_crc=None)
            with (
                patch.dict(sys.modules, {module: None}),
                self.assertRaisesRegex(BodyError, r"pip install 'rmqha\[compression\]'"),
            ):
                ReceivedMessage.of(packed, QUEUE)

    def test_any_other_answer_is_an_error(self) -> None:
        self.answer = RemotingCommand(17, remark="no such topic")
        pulling = self.consumer.pull(QUEUE, 0)
        self.carry()
        self.assertEqual(self.failureResultOf(pulling, MQBrokerError).value.code, 17)

    def test_an_answer_that_makes_no_sense_is_an_error(self) -> None:
        whole = encode_record(record(0))
        for body in (whole[:-1], whole + b"x", encode_blank(8), b"\0" * 100):
            self.answer = self.pulled(0, 1, body)
            pulling = self.consumer.pull(QUEUE, 0)
            self.carry()
            self.failureResultOf(pulling, MQClientError)
        self.answer = RemotingCommand(0)
        pulling = self.consumer.pull(QUEUE, 0)
        self.carry()
        self.failureResultOf(pulling, MQClientError)


class WhomToAskTests(PullTestCase):
    def asked(self) -> tuple[int, int]:
        """How many requests the master and the slave have had."""
        return len(self.master.asked), len(self.slave.asked)

    def test_the_master_is_asked_while_it_is_there(self) -> None:
        for _ in range(3):
            self.pull()
        self.assertEqual(self.asked(), (3, 0))

    def test_the_slave_is_asked_when_the_master_says_so_and_no_longer_than_that(self) -> None:
        self.suggested = "1"
        self.pull()
        self.suggested = "0"
        self.pull()
        self.assertEqual(self.asked(), (1, 1))
        self.pull()
        self.assertEqual(self.asked(), (2, 1))

    def test_the_slave_takes_over_when_the_master_is_lost_with_a_pull_under_way(self) -> None:
        self.messages = [record(0)]
        self.master.is_mute = True
        pulling = self.consumer.pull(QUEUE, 0)
        self.carry()
        self.master.go_down()
        self.carry()
        self.assertEqual(self.bodies(self.successResultOf(pulling)), [b"body 0"])
        self.assertEqual(self.bodies(self.pull()), [b"body 0"])
        self.assertEqual(self.asked(), (1, 2))

    def test_pulls_go_back_to_the_master_when_it_is_there_again(self) -> None:
        self.master.is_up = False
        self.pull()
        self.master.is_up = True
        self.clock.pump([0.5] * int(2 * REST_SECONDS))
        self.pull()
        self.assertEqual(self.asked(), (1, 1))

    def test_a_route_without_a_master_leads_to_the_slave(self) -> None:
        self.routes["T"] = [broker_data("a", slave="a:2")], [queue_data("a", 2, 2)]
        self.pull()
        self.assertEqual(self.asked(), (0, 1))

    def test_a_new_topic_is_read_at_the_address_in_the_route_of_another(self) -> None:
        self.messages = [record(0)]
        new, template = MessageQueue("TNew", "a", 1), "TBW102"
        refused = self.consumer.pull(new, 0)
        self.carry()
        self.assertIn("broker a is not registered", str(self.failureResultOf(refused, MQClientError).value))
        self.routes[template] = [broker_data("b"), broker_data("a", master="a:1")], [queue_data("a", 2, 2)]
        asked = self.consumer.fetch_queues(template)
        self.carry()
        self.successResultOf(asked)
        found = self.consumer.pull(new, 0)
        self.carry()
        self.assertEqual(self.bodies(self.successResultOf(found)), [b"body 0"])
        self.assertEqual(self.master.asked[-1].ext_fields["topic"], "TNew")

    def test_nobody_there_is_an_error(self) -> None:
        self.master.is_up = self.slave.is_up = False
        pulling = self.consumer.pull(QUEUE, 0)
        self.carry()
        self.assertIn("a:2 does not answer", str(self.failureResultOf(pulling, MQClientError).value))
        unknown = self.consumer.pull(MessageQueue("T", "b", 0), 0)
        self.carry()
        self.assertIn("broker b is not registered", str(self.failureResultOf(unknown, MQClientError).value))

    def test_what_a_broker_refuses_is_not_asked_of_another(self) -> None:
        self.answer = RemotingCommand(16, remark="no")
        asking = self.consumer.max_offset(QUEUE)
        self.carry()
        self.failureResultOf(asking, MQBrokerError)
        self.assertEqual(self.asked(), (1, 0))


class OffsetTests(PullTestCase):
    def test_queues_are_those_to_read_of_all_brokers(self) -> None:
        brokers = [broker_data("a", slave="a:2"), broker_data("b", master="b:1"), broker_data("c", master="c:1")]
        self.routes["T"] = brokers, [queue_data("b", 1, 0), queue_data("a", 2, 4), queue_data("c", 1, 1, perm=2)]
        fetching = self.consumer.fetch_queues("T")
        self.carry()
        expected = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)]
        self.assertEqual(self.successResultOf(fetching), expected)
        unknown = self.consumer.fetch_queues("U")
        self.carry()
        self.failureResultOf(unknown, MQClientError)

    def test_offsets_are_asked_for_and_told(self) -> None:
        self.messages = [record(0), record(1)]
        low, high = self.consumer.min_offset(QUEUE), self.consumer.max_offset(QUEUE)
        own, told = self.consumer.query_offset(QUEUE), self.consumer.update_offset(QUEUE, 5)
        self.carry()
        self.assertEqual((self.successResultOf(low), self.successResultOf(high)), (0, 2))
        self.assertEqual(self.successResultOf(own), 0)
        self.successResultOf(told)
        self.assertEqual(self.committed, [5])

    def test_a_group_without_an_offset_has_none(self) -> None:
        self.answer = RemotingCommand(22, remark="not found")
        asking = self.consumer.query_offset(QUEUE)
        self.carry()
        self.assertIsNone(self.successResultOf(asking))

    def test_an_answer_without_an_offset_is_an_error(self) -> None:
        self.answer = RemotingCommand(0)
        for asking in (self.consumer.max_offset(QUEUE), self.consumer.query_offset(QUEUE)):
            self.carry()
            self.failureResultOf(asking, MQClientError)


class BulkPullTests(PullTestCase):
    def read(self, start: Edge | int = Edge.MIN, follows: bool = False, most: int | None = None) -> Deferred[None]:
        self.got: list[bytes] = []
        bulk = BulkPull(
            self.consumer,
            self.clock,
            lambda message: self.got.append(message.body),
            Selection(start, follows, most=most),
        )
        reading = Deferred.fromCoroutine(bulk.run("T"))
        self.carry()
        return reading

    def test_a_topic_is_read_to_its_end(self) -> None:
        self.messages = [record(number) for number in range(8)]
        self.successResultOf(self.read())
        self.assertEqual(self.got, [message.body for message in self.messages])

    def test_it_begins_where_it_is_told_to_and_ends_after_so_many(self) -> None:
        self.messages = [record(number) for number in range(8)]
        for start, most, expected in ((5, None, [5, 6, 7]), (Edge.MAX, None, []), (1, 4, [1, 2, 3, 4]), (99, None, [])):
            self.successResultOf(self.read(start, most=most))
            self.assertEqual(self.got, [b"body %d" % number for number in expected])

    def test_it_follows_what_comes(self) -> None:
        reading = self.read(follows=True, most=3)
        self.messages = [record(0)]
        self.clock.advance(1)
        self.carry()
        self.assertEqual(self.got, [b"body 0"])
        self.assertNoResult(reading)
        self.messages = [record(number) for number in range(3)]
        self.clock.advance(1)
        self.carry()
        self.successResultOf(reading)
        self.assertEqual(len(self.got), 3)

    def test_a_broker_that_refuses_ends_all_of_it(self) -> None:
        self.answer = RemotingCommand(16, remark="no")
        self.failureResultOf(self.read(), MQBrokerError)
