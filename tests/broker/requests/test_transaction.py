"""Transactions: half messages, how they end, and what producers are asked."""

import base64
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, execute

from rmqha.broker.requests import transaction
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.requests.transaction import (
    STEPS_AT_ONCE,
    CheckAction,
    HalfMessage,
    TransactionalMessageService,
)
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import ClientManageProcessor, ConsumerManager, ProducerManager
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.remoting.rights import Rights
from rmqha.settings.settings import make_settings
from rmqha.store.message import Message, PutMessageStatus
from rmqha.store.metadata import ConsumerOffsetTable, TopicConfig
from rmqha.wire.command import ONEWAY_FLAG, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import format_properties
from rmqha.wire.record import MAX_PROPERTIES_BYTES, Host, Record, decode_record, encode_record, record_as_json
from rmqha.wire.topics import TRANSACTION_GROUP
from tests import examples
from tests.acl.granted import Granted
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, Client, own_addresses
from tests.fixtures import expected
from tests.ha.doubles import log_lines

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
BORN_HOST = Host.parse("192.0.2.7", 40123)
STORE_HOST = Host.parse("192.0.2.20", 10911)
CHECK_SECONDS = 60
BEFORE_BODY_BYTES = 88
"""Of a record, if both hosts are IPv4 addresses."""


class TransactionTestCase(BrokerStoreTestCase):
    """A master with a producer of group P, whose connection is ``producer``."""

    def setUp(self) -> None:
        super().setUp()
        self.serve()

    def serve(self, role: str = "ASYNC_MASTER", **properties: str) -> None:
        """Begin anew with a store of its own."""
        self.open(role, **properties)
        self.topics = TopicConfigManager(self.folder, self.settings, self.wall)
        self.consumer_offsets = ConsumerOffsetManager(self.folder, self.clock, 5_000, execute)
        self.groups = groups = SubscriptionGroupManager(self.folder, self.settings, self.wall)
        self.producers = ProducerManager()
        consumers = ConsumerManager(self.settings, groups)
        self.clients_processors = ClientManageProcessor(
            self.producers, consumers, self.topics, groups, self.clock
        ).processors()
        self.begin()
        self.producer = self.connect_producer()

    def begin(self) -> None:
        """A service that knows only what the store and the offsets tell."""
        self.transactions = TransactionalMessageService(
            self.store,
            self.settings,
            BrokerTables(self.topics, self.groups, self.consumer_offsets),
            self.producers,
            Stamps(own_addresses(str(STORE_HOST)), self.wall),
            self.clock,
        )

    def start(self) -> None:
        """Check every minute from now on."""
        self.transactions.startService()
        self.addCleanup(self.transactions.stopService)

    def connect_producer(self, group: str = "P") -> Client:
        """A producer's connection."""
        client = self.client({**self.clients_processors, **self.transactions.processors()})
        client.ask(RequestCode.HEART_BEAT, _heartbeat(group))
        return client

    def prepare(self, body: bytes = b"b", /, born_ms: int | None = None, **properties: str) -> Record:
        """Put a half message for queue 3 of topic T; its record. Properties that are empty are left out."""
        properties = {name: value for name, value in properties.items() if value}
        message = Message(
            "T",
            body,
            {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": f"U-{body.decode()}", **properties},
            queue_id=3,
            flag=5,
            sys_flag=1,
            born_timestamp=self.wall.now_ms() if born_ms is None else born_ms,
            born_host=BORN_HOST,
            store_host=STORE_HOST,
        )
        result = self.successResultOf(self.transactions.prepare(message))
        assert result.append is not None
        record = self.store.reader.message_at(result.append.wrote_offset)
        assert record is not None
        self.assertEqual(record.queue_offset, result.append.logics_offset)
        return record

    def end(self, half: Record, how: int, client: Client | None = None, /, **changed: object) -> RemotingCommand:
        """How a half message's transaction ends; header fields may be changed."""
        fields: dict[str, object] = {
            "producerGroup": "P",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "commitOrRollback": how,
            "fromTransactionCheck": "false",
            "msgId": half.properties.get("UNIQ_KEY"),
            **changed,
        }
        peer = client or self.producer
        peer.send(RequestCode.END_TRANSACTION, fields)
        answers = peer.answers()
        for _ in range(100):  # the end of an old one waits until the index has come to the log's end
            if answers:
                break
            self.clock.advance(0.01)
            answers = peer.answers()
        (answer,) = [each for each in answers if each.is_response]
        return answer

    def assert_ends(self, half: Record, how: int) -> None:
        """It is answered with success."""
        answer = self.end(half, how)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)

    def stored(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All messages of a queue."""
        self.dispatch()
        records: list[Record] = []
        while True:
            found = self.store.reader.get_message(topic, queue_id, len(records), 32)
            if not found.records:
                return records
            for raw in found.records:
                record = decode_record(raw)
                assert isinstance(record, Record)
                records.append(record)

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """The bodies of all messages of a queue."""
        return [record.body for record in self.stored(topic, queue_id)]

    def check(self, seconds: float = CHECK_SECONDS) -> list[RemotingCommand]:
        """Time passes until the next check is over; what the producer was asked."""
        self.dispatch()
        if not self.producer.line.over:  # it would be closed as idle
            self.producer.send(RequestCode.HEART_BEAT, {}, _heartbeat("P"))
        self.clock.advance(seconds)
        self.dispatch()
        return self.questions()

    def questions(self) -> list[RemotingCommand]:
        """What the producer was asked since."""
        commands = [command for command in self.producer.answers() if not command.is_response]
        for command in commands:
            self.assertEqual((command.code, command.flag), (RequestCode.CHECK_TRANSACTION_STATE, ONEWAY_FLAG))
        return commands

    def asked_about(self, command: RemotingCommand) -> Record:
        """The half message in a question."""
        record = decode_record(command.body)
        assert isinstance(record, Record)
        return record

    def reply(self, command: RemotingCommand, how: int) -> None:
        """The producer says how it ends."""
        fields: dict[str, object] = {
            name: command.ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId")
        }
        answer = self.end(self.asked_about(command), how, fromTransactionCheck="true", **fields)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)

    def offsets(self) -> tuple[int, int]:
        """How far the half queue and the operation queue are done with."""
        return (
            self.consumer_offsets.query(TRANSACTION_GROUP, HALF, 0),
            self.consumer_offsets.query(TRANSACTION_GROUP, OP, 0),
        )


class PrepareTests(TransactionTestCase):
    """What is put for a send with TRAN_MSG."""

    def test_a_half_message_waits_in_a_topic_of_its_own(self) -> None:
        half = self.prepare(WAIT="true", KEYS="k")
        self.assertEqual((half.topic, half.queue_id, half.flag, half.sys_flag), (HALF, 0, 5, 1))
        self.assertEqual(
            half.properties,
            {
                "TRAN_MSG": "true",
                "PGROUP": "P",
                "UNIQ_KEY": "U-b",
                "WAIT": "true",
                "KEYS": "k",
                "REAL_TOPIC": "T",
                "REAL_QID": "3",
            },
        )
        self.assertEqual([self.stored(HALF), self.stored("T", 3)], [[half], []])
        self.assertIsNotNone(self.topics.get(HALF))

    def test_transaction_bits_of_the_producer_do_not_keep_it_out_of_its_queue(self) -> None:
        message = Message("T", b"b", {"TRAN_MSG": "true", "PGROUP": "P"}, sys_flag=4)
        self.successResultOf(self.transactions.prepare(message))
        self.assertEqual([record.sys_flag for record in self.stored(HALF)], [0])

    def test_a_transaction_does_not_delay(self) -> None:
        """A half message in the schedule topic would never come out of it again; Java's producer takes DELAY away."""
        half = self.prepare(DELAY="3")
        self.assertEqual((half.topic, half.properties.get("DELAY")), (HALF, None))


class EndTests(TransactionTestCase):
    """END_TRANSACTION."""

    def test_the_largest_message_can_be_committed(self) -> None:
        """The name of its topic may be longer than that of the half messages."""
        self.serve(maxMessageSize="2000")
        room = 2000 - self.prepare(b"").total_size - 24  # hosts of IPv6 would take 24 more
        half = self.prepare(b"", REAL_TOPIC="T")
        self.topics.update(TopicConfig("t" * 127, 4, 4))
        message = Message("t" * 127, b"x" * (room - 126), dict(half.properties))
        result = self.successResultOf(self.transactions.prepare(message))
        assert result.append is not None, result.status
        large = self.store.reader.message_at(result.append.wrote_offset)
        assert large is not None
        self.assert_ends(large, COMMIT)
        self.assertEqual(self.bodies("t" * 127), [message.body])

    def test_a_transaction_leaves_the_records_that_a_java_broker_leaves(self) -> None:
        """The first one of the recorded store: half message, message, operation message."""
        theirs = [row for row in expected() if row.get("topic") in (HALF, OP, "TTrans")][:3]
        half = theirs[0]
        properties = {key: value for key, value in half["properties"].items() if not key.startswith("REAL_")}
        message = Message(
            "TTrans",
            base64.b64decode(half["body"]),
            properties,
            queue_id=3,
            flag=half["flag"],
            born_timestamp=half["bornTimestamp"],
            born_host=Host.parse("127.0.0.1", 53840),
            store_host=Host.parse("127.0.0.1", 30911),
        )
        self.successResultOf(self.transactions.prepare(message))
        (ours,) = self.stored(HALF)
        self.assertEqual(self.end(ours, COMMIT, producerGroup="PG_tx").code, ResponseCode.SUCCESS)
        records = [*self.stored(HALF), *self.stored("TTrans", 3), *self.stored(OP)]
        own = ("physicalOffset", "storeTimestamp", "preparedTransactionOffset", "msgId", "propertiesStored")
        for number, (record, their) in enumerate(zip(records, theirs, strict=True)):
            left_out = (*own, "bornTimestamp", "bornHost", "storeHost") if number == 2 else own
            ours_json = record_as_json(record)
            self.assertEqual(
                {key: ours_json[key] for key in their if key not in left_out},
                {key: value for key, value in their.items() if key not in left_out},
            )
        self.assertEqual(records[1].prepared_transaction_offset, records[0].physical_offset)
        self.assertEqual(records[1].properties_stored, records[0].properties_stored)
        self.assertEqual(records[2].properties_stored, theirs[2]["propertiesStored"])
        self.assertEqual((records[2].born_host, records[2].store_host), (STORE_HOST, STORE_HOST))
        self.assertIsNotNone(self.topics.get(OP))

    def test_a_rollback_leaves_only_a_note_of_it(self) -> None:
        halves = [self.prepare(b"a"), self.prepare(b"b")]
        self.assert_ends(halves[1], ROLLBACK)
        self.assertEqual((self.bodies(OP), self.stored("T", 3)), ([b"1"], []))

    def test_who_does_not_know_yet_changes_nothing(self) -> None:
        half = self.prepare()
        for how in (UNKNOWN, 4, -1):
            self.assert_ends(half, how)
        self.assertEqual((self.stored(OP), self.stored("T", 3)), ([], []))

    def test_what_does_not_fit_together_is_refused_and_changes_nothing(self) -> None:
        half, other = self.prepare(b"a"), self.prepare(b"b")
        (ordinary,) = self.put(b"x", PGROUP="P", REAL_TOPIC="T", REAL_QID="3")
        end = self.store.commit_log.max_offset
        for changed, reason in (
            ({"producerGroup": "Q"}, "producer group"),
            ({"tranStateTableOffset": other.queue_offset}, "state table offset"),
            ({"commitLogOffset": other.physical_offset}, "state table offset"),
            ({"commitLogOffset": half.physical_offset + 1}, "Find prepared transaction message failed"),
            ({"commitLogOffset": end + 1000}, "Find prepared transaction message failed"),
            ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
            ({"commitLogOffset": ordinary.physical_offset, "tranStateTableOffset": 0}, "Find prepared"),
            ({"commitLogOffset": None}, "commitLogOffset"),
            ({"producerGroup": None}, "producerGroup"),
            ({"commitOrRollback": None}, "commitOrRollback"),
        ):
            for how in (COMMIT, ROLLBACK):
                answer = self.end(half, how, **{"commitOrRollback": how, **changed})
                self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, reason)
        self.assertEqual((self.stored(OP), self.stored("T", 3)), ([], []))

    def test_a_half_message_that_somebody_sent_as_an_ordinary_one_cannot_be_committed(self) -> None:
        (half,) = self.put(b"x", topic=HALF, PGROUP="P")
        self.assert_refused([self.end(half, COMMIT)], ResponseCode.SYSTEM_ERROR, "has no valid destination")

    def test_a_half_message_with_transaction_bits_is_committed_like_any_other(self) -> None:
        self.store.put_message(Message(HALF, b"b", {"PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "3"}, sys_flag=4 | 1))
        half = self.store.reader.message_at(0)
        assert half is not None
        self.assert_ends(half, COMMIT)
        self.assertEqual([record.sys_flag for record in self.stored("T", 3)], [8 | 1])

    def test_a_message_that_cannot_be_stored_has_not_ended(self) -> None:
        half = self.prepare()
        self.store.puts.disk_full = True
        self.assert_refused([self.end(half, COMMIT)], ResponseCode.SERVICE_NOT_AVAILABLE, "disk is full")
        self.assert_refused([self.end(half, ROLLBACK)], ResponseCode.SERVICE_NOT_AVAILABLE, "disk is full")
        self.store.puts.disk_full = False
        self.assertEqual((self.stored(OP), self.stored("T", 3)), ([], []))
        self.assert_ends(half, COMMIT)
        self.assertEqual((self.bodies(OP), self.bodies("T", 3)), ([b"0"], [b"b"]))

    def test_a_slave_ends_no_transactions(self) -> None:
        half = self.prepare()
        self.dispatch()
        self.copy_to_slave()
        self.begin()
        slave = self.client(self.transactions.processors())
        for how in (COMMIT, ROLLBACK, UNKNOWN):
            self.assertEqual(self.end(half, how, slave).code, ResponseCode.SLAVE_NOT_AVAILABLE)


class AccountTests(TransactionTestCase):
    """With accounts the half message itself says who may end it, and who is asked about it."""

    def connect_as(self, rights: Rights, port: int = 1) -> Client:
        """A producer of group P with these rights. What it says of its group proves nothing."""
        client = self.client({**self.clients_processors, **self.transactions.processors()})
        client.line.peerAddr = IPv4Address("TCP", "192.0.2.7", port)
        client.protocol.rights = rights
        client.ask(RequestCode.HEART_BEAT, _heartbeat("P"))
        return client

    def test_only_who_may_send_to_its_topic_ends_it(self) -> None:
        half = self.prepare()
        other = self.connect_as(Granted("other", sends={"U", HALF}))
        for how in (COMMIT, ROLLBACK):
            self.assert_refused([self.end(half, how, other)], ResponseCode.SYSTEM_ERROR, "Find prepared transaction")
        self.assertEqual((self.stored(OP), self.stored("T", 3)), ([], []))
        own = self.connect_as(Granted("own", sends={"T"}))
        self.assertEqual(self.end(half, COMMIT, own).code, ResponseCode.SUCCESS)

    def test_who_may_not_learns_nothing_of_it(self) -> None:
        """The answer is the one for an offset where nothing is."""
        half = self.prepare()
        other = self.connect_as(Granted("other", sends={"U"}))
        nothing = self.end(half, COMMIT, other, commitLogOffset=half.physical_offset + 1)
        for changed in ({}, {"producerGroup": "Q"}, {"tranStateTableOffset": 7}):
            answer = self.end(half, COMMIT, other, **changed)
            self.assertEqual((answer.code, answer.remark), (nothing.code, nothing.remark))

    def test_while_the_producer_that_sent_it_is_connected_its_account_alone_ends_it(self) -> None:
        both = {"T"}
        own, other = (
            self.connect_as(Granted("own", sends=both), BORN_HOST.port),
            self.connect_as(Granted("other", sends=both), 2),
        )
        halves = [self.prepare(b"a"), self.prepare(b"b")]
        self.assert_refused([self.end(halves[0], COMMIT, other)], ResponseCode.SYSTEM_ERROR, "Find prepared")
        self.assertEqual(self.end(halves[0], COMMIT, own).code, ResponseCode.SUCCESS)
        own.line.lose()
        self.clock.advance(0)
        self.assertEqual(self.end(halves[1], COMMIT, other).code, ResponseCode.SUCCESS, "another instance goes on")

    def test_only_who_may_send_to_its_topic_is_asked_about_it(self) -> None:
        """A check has the whole message. Any account can become a producer of the group by its heartbeat."""
        self.start()
        self.producer.line.lose()
        own = self.connect_as(Granted("own", sends={"T"}), 1)
        others = [self.connect_as(Granted(f"other-{number}", sends={"U"}), 2 + number) for number in range(3)]
        half = self.prepare(b"secret")
        self.dispatch()
        for _ in range(4):
            for client in (own, *others):
                client.send(RequestCode.HEART_BEAT, {}, _heartbeat("P"))
            self.clock.advance(CHECK_SECONDS)
            self.dispatch()
        asked = [[each for each in client.answers() if not each.is_response] for client in (own, *others)]
        self.assertGreater(len(asked[0]), 1)
        self.assertEqual(self.asked_about(asked[0][0]).body, half.body)
        self.assertEqual(asked[1:], [[], [], []])

    def test_a_half_message_inside_the_body_of_another_message_is_none(self) -> None:
        """Its queue offset would end the transaction of somebody else."""
        victim = self.prepare(b"victim")
        for is_dispatched in (False, True):
            at = self.store.commit_log.max_offset + BEFORE_BODY_BYTES
            planted = replace(victim, physical_offset=at)
            self.successResultOf(self.store.put_message(Message("T", encode_record(planted))))
            if is_dispatched:
                self.dispatch()
            self.assertEqual(getattr(self.store.reader.message_at(at), "topic", None), HALF)
            self.assert_refused([self.end(planted, ROLLBACK)], ResponseCode.SYSTEM_ERROR, "Find prepared transaction")
        self.assertEqual(self.stored(OP), [])
        self.assert_ends(victim, COMMIT)

    def test_one_that_nobody_gave_up_is_not_taken_from_a_body_either(self) -> None:
        (given_up,) = self.put(b"x", topic=GIVEN_UP, PGROUP="P", REAL_TOPIC="T", REAL_QID="0")
        at = self.store.commit_log.max_offset + BEFORE_BODY_BYTES
        planted = replace(given_up, physical_offset=at)
        self.put(encode_record(planted))
        answers = [
            self.producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=record.msg_id)
            for record in (planted, given_up)
        ]
        self.assertEqual([answer.code for answer in answers], [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS])


class Replicas:
    """None is there, but puts are let in: each is stored, and waits if it is asked to."""

    def __init__(self) -> None:
        self.waits: list[Deferred[PutMessageStatus]] = []

    def enough_for_puts(self) -> bool:
        return True

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        self.waits.append(Deferred())
        return self.waits[-1]

    def give_up(self) -> None:
        pass


class SyncMasterTests(TransactionTestCase):
    """Of the messages that a transaction puts, the one that counts waits for the slaves."""

    def setUp(self) -> None:
        super().setUp()
        self.replicas = Replicas()
        self.store.replicate_by(self.replicas)

    def test_a_commit_is_noted_when_slaves_have_the_message_or_are_known_not_to(self) -> None:
        for status in (PutMessageStatus.PUT_OK, PutMessageStatus.SLAVE_NOT_AVAILABLE):
            half = self.prepare_waiting()
            self.producer.send(RequestCode.END_TRANSACTION, self.commit_fields(half))
            self.assertEqual(self.producer.answers(), [])
            noted = len(self.stored(OP))
            self.replicas.waits.pop().callback(status)
            (answer,) = self.producer.answers()
            self.assertEqual(answer.code, ResponseCode.SUCCESS, "it is stored")
            self.assertEqual(len(self.stored(OP)), noted + 1)
            self.assertEqual(self.replicas.waits, [], "nobody waits for the note")

    def prepare_waiting(self) -> Record:
        """A half message whose producer wants to wait."""
        message = Message("T", b"b", {"TRAN_MSG": "true", "PGROUP": "P"}, queue_id=3)
        self.transactions.prepare(message)
        self.replicas.waits.pop().callback(PutMessageStatus.PUT_OK)
        return self.stored(HALF)[-1]

    def commit_fields(self, half: Record) -> dict[str, object]:
        """The header of its commit."""
        return {
            "producerGroup": "P",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "commitOrRollback": COMMIT,
        }

    def test_a_message_whose_sender_does_not_wait_is_committed_without_waiting(self) -> None:
        self.assert_ends(self.prepare(WAIT="false"), COMMIT)
        self.assertEqual(self.replicas.waits, [])

    def test_asking_waits_for_nobody(self) -> None:
        self.prepare(WAIT="false")
        self.start()
        self.assertEqual(len(self.check()), 1)
        self.assertEqual(self.replicas.waits, [])


class CheckTests(TransactionTestCase):
    """Producers are asked about half messages that do not end."""

    def setUp(self) -> None:
        super().setUp()
        self.start()

    def test_a_producer_is_asked_about_what_does_not_end_and_says_how_it_ends(self) -> None:
        half = self.prepare(KEYS="k", WAIT="true")
        (question,) = self.check()
        first, again = self.stored(HALF)
        self.assertEqual(first, half)
        self.assertEqual(again.properties, {**half.properties, "TRANSACTION_CHECK_TIMES": "1"})
        self.assertEqual((again.body, again.flag, again.sys_flag), (b"b", 5, 1))
        self.assertEqual((again.born_timestamp, again.born_host), (half.born_timestamp, BORN_HOST))
        self.assertEqual(
            question.ext_fields,
            {
                "tranStateTableOffset": "1",
                "commitLogOffset": str(again.physical_offset),
                "offsetMsgId": again.msg_id,
                "msgId": "U-b",
                "transactionId": "U-b",
            },
        )
        asked = self.asked_about(question)
        self.assertEqual((asked.topic, asked.queue_id, asked.body), ("T", 3, b"b"))
        self.assertEqual(
            (asked.queue_offset, asked.physical_offset, asked.properties),
            (1, again.physical_offset, again.properties),
        )
        self.reply(question, COMMIT)
        self.assertEqual(self.bodies("T", 3), [b"b"])
        self.assertEqual(self.check(), [])
        self.assertEqual(self.offsets(), (2, 1))

    def test_who_commits_late_and_then_is_asked_commits_once(self) -> None:
        """The late commit names the first place, the answer to the question names the place of the copy."""
        self.put(b"at offset 0")
        for seconds in (0, 1):
            half = self.prepare(b"%d" % seconds)
            (question,) = self.check()
            self.assert_ends(half, COMMIT)
            self.clock.advance(seconds)
            self.reply(question, COMMIT)
            self.assertEqual((self.check(), self.bodies("T", 3).count(half.body)), ([], 1))
            self.reply(question, COMMIT)
            self.assert_ends(half, COMMIT)
            self.assertEqual((self.check(), self.bodies("T", 3).count(half.body)), ([], 1))

    def test_what_ended_late_is_not_asked_about_again(self) -> None:
        """The end names the place of the first, and a check has put it again."""
        halves = [self.prepare(body) for body in (b"a", b"b")]
        self.assertEqual(len(self.check()), 2)
        self.assert_ends(halves[0], COMMIT)
        self.assert_ends(halves[1], ROLLBACK)
        self.assertEqual((self.check(), self.bodies("T", 3)), ([], [b"a"]))

    def test_what_has_ended_is_not_asked_about(self) -> None:
        halves = [self.prepare(body) for body in (b"a", b"b", b"c")]
        self.assert_ends(halves[0], COMMIT)
        self.assert_ends(halves[2], ROLLBACK)
        (question,) = self.check()
        self.assertEqual(self.asked_about(question).body, b"b")
        self.assertEqual(self.offsets(), (3, 2))

    def test_a_young_one_is_left_to_the_next_check(self) -> None:
        self.check(CHECK_SECONDS - 5)
        self.prepare()
        self.assertEqual(self.check(5), [])
        self.assertEqual(self.offsets()[0], 0)
        self.assertEqual(len(self.check()), 1)

    def test_how_young_is_a_setting(self) -> None:
        self.serve(transactionTimeOut="30000", transactionCheckInterval="10000")
        self.start()
        self.prepare()
        self.assertEqual([len(self.check(10)) for _ in range(4)], [0, 0, 1, 1])

    def test_one_from_the_future_is_asked_about(self) -> None:
        self.prepare(born_ms=NOW_MS + 3_600_000)
        self.assertEqual(len(self.check()), 1)

    def test_after_so_many_questions_it_is_given_up_and_kept_aside(self) -> None:
        self.serve(transactionCheckMax="3")
        self.start()
        self.prepare(KEYS="k")
        self.assertEqual([len(self.check()) for _ in range(3)], [1, 1, 1])
        with log_lines() as lines:
            self.assertEqual(self.check(), [])
        self.assertIn("error: half message", lines())
        self.assertIn("of group P is given up after 3 checks", lines())
        (kept,) = self.stored(GIVEN_UP)
        self.assertEqual((kept.body, kept.flag, kept.properties["REAL_TOPIC"]), (b"b", 5, "T"))
        self.assertEqual(kept.properties["TRANSACTION_CHECK_TIMES"], "3")
        self.assertIsNotNone(self.topics.get(GIVEN_UP))
        self.assertEqual((self.check(), len(self.stored(HALF))), ([], 4))

    def test_an_operator_has_one_that_was_given_up_checked_again(self) -> None:
        self.serve(transactionCheckMax="1")
        self.start()
        half = self.prepare()
        self.assertEqual([len(self.check()) for _ in range(2)], [1, 0])
        (kept,) = self.stored(GIVEN_UP)
        answer = self.producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=kept.msg_id)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        (question,) = self.check()
        asked = self.asked_about(question)
        self.assertEqual((asked.body, asked.properties["TRANSACTION_CHECK_TIMES"]), (b"b", "1"))
        for msg_id in (half.msg_id, "7", None, kept.msg_id[:-1] + "1"):
            answer = self.producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=msg_id)
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR, msg_id)
        self.assertEqual(len(self.stored(GIVEN_UP)), 1)

    def test_one_older_than_the_log_keeps_messages_is_given_up_unasked(self) -> None:
        self.serve(fileReservedTime="1")
        self.start()
        self.prepare(b"old", born_ms=NOW_MS - 3_600_000)
        self.prepare(b"new", born_ms=NOW_MS - 3_500_000)
        self.assertEqual([self.asked_about(question).body for question in self.check()], [b"new"])
        self.assertEqual(self.bodies(GIVEN_UP), [b"old"])

    def test_one_that_nobody_can_be_asked_about_is_given_up(self) -> None:
        self.put(b"x", b"y", topic=HALF, PGROUP="P")
        self.put(b"z", topic=HALF, REAL_TOPIC="T", REAL_QID="3")
        self.put(b"w", topic=HALF, REAL_TOPIC="T", REAL_QID="-3", PGROUP="P")
        self.assertEqual(self.check(), [])
        self.assertEqual(self.bodies(GIVEN_UP), [b"x", b"y", b"z", b"w"])

    def test_where_no_producer_is_there_it_is_asked_about_later(self) -> None:
        self.producer.line.lose()
        self.prepare()
        with log_lines() as lines:
            self.check()
        self.assertIn("no producer of group P is connected", lines())
        self.producer = self.connect_producer("P")
        (question,) = self.check()
        self.assertEqual(self.asked_about(question).properties["TRANSACTION_CHECK_TIMES"], "1")

    def test_only_questions_that_a_producer_gets_count(self) -> None:
        """It is away for twenty minutes. Then it is asked as often as any other."""
        self.serve(transactionCheckMax="3")
        self.start()
        half = self.prepare()
        self.producer.line.lose()
        ended = self.prepare(b"ended")
        for _ in range(20):
            self.check()
        self.assertEqual(len(self.stored(HALF)), 2 * 5, "the log does not grow with each check")
        self.assertEqual(self.stored(GIVEN_UP), [])
        other = self.connect_producer("Q")
        self.assertEqual(self.end(ended, ROLLBACK, other).code, 0)
        self.producer = self.connect_producer("P")
        self.assertEqual([len(self.check()) for _ in range(4)], [1, 1, 1, 0])
        self.assertEqual(self.bodies(GIVEN_UP), [half.body])
        self.check()
        self.assertEqual(self.offsets(), (len(self.stored(HALF)), len(self.stored(OP))))

    def test_those_of_other_producers_do_not_wait_for_one_that_is_away(self) -> None:
        self.prepare(b"away", PGROUP="Away")
        self.prepare(b"there")
        (question,) = self.check()
        self.assertEqual(self.asked_about(question).body, b"there")
        self.reply(question, COMMIT)
        self.assertEqual(self.offsets(), (0, 0), "a restart must find the one that waits")
        self.transactions.stopService()
        self.begin()
        self.start()
        self.assertEqual((self.check(), self.bodies("T", 3)), ([], [b"there"]))
        away = self.connect_producer("Away")
        self.check()
        (question,) = [each for each in away.answers() if not each.is_response]
        self.assertEqual(self.asked_about(question).body, b"away")

    def test_what_ends_while_nobody_can_be_asked_is_done_with(self) -> None:
        half = self.prepare(PGROUP="Away")
        self.check()
        self.assert_ends_of("Away", half)
        self.check()
        self.assertEqual((self.offsets(), self.bodies("T", 3)), ((1, 1), [b"b"]))

    def assert_ends_of(self, group: str, half: Record) -> None:
        """A producer of another group commits."""
        answer = self.end(half, COMMIT, producerGroup=group)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)

    def test_more_than_so_many_that_wait_count_each_check(self) -> None:
        self.patch(transaction, "MAX_UNASKED", 2)
        for number in range(4):
            self.prepare(b"%d" % number, PGROUP="Away")
        self.check()
        counted = [record.body for record in self.stored(HALF) if "TRANSACTION_CHECK_TIMES" in record.properties]
        self.assertEqual(counted, [b"2", b"3"])

    def test_the_producers_of_a_group_are_asked_in_turn(self) -> None:
        other = self.connect_producer("P")
        self.connect_producer("Q")
        for body in (b"a", b"b", b"c", b"d"):
            self.prepare(body)
        self.assertEqual((len(self.check()), len(other.answers())), (2, 2))

    def test_a_check_that_cannot_be_stored_is_left_to_the_next_time(self) -> None:
        self.prepare()
        self.store.puts.disk_full = True
        with log_lines() as lines:
            self.assertEqual(self.check(), [])
        self.assertIn("is not put again: SERVICE_NOT_AVAILABLE", lines())
        self.assertEqual(self.offsets()[0], 0)
        self.store.puts.disk_full = False
        self.assertEqual(len(self.check()), 1)

    def test_one_that_cannot_be_given_up_now_is_given_up_the_next_time(self) -> None:
        self.put(b"x", topic=HALF)
        self.store.puts.disk_full = True
        self.check()
        self.store.puts.disk_full = False
        self.check()
        self.assertEqual(self.bodies(GIVEN_UP), [b"x"])

    def test_one_with_no_room_for_another_property_is_asked_about_before_it_is_given_up(self) -> None:
        """A master of Java takes it. Ours refuses it at once."""
        half = self.prepare()
        room = MAX_PROPERTIES_BYTES - len(half.properties_stored) - len("\x02KEYS\x01")
        too_long = {**half.properties, "KEYS": "k" * room}
        message = Message("T", b"f", dict(too_long), queue_id=3, born_timestamp=NOW_MS)
        refused = self.successResultOf(self.transactions.prepare(message))
        self.assertIs(refused.status, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
        self.assertEqual(self.bodies(HALF), [b"b"])
        self.assert_ends(half, ROLLBACK)
        (half,) = self.put(b"f", topic=HALF, queue_id=0, **too_long)
        (question,) = self.check()
        self.assertEqual((self.bodies(GIVEN_UP), self.bodies("T", 3)), ([b"f"], []))
        self.assertEqual(self.asked_about(question).queue_offset, half.queue_offset)
        self.reply(question, COMMIT)
        self.assertEqual((self.bodies("T", 3), self.check()), ([b"f"], []))

    @pytest.mark.long
    def test_each_half_message_that_is_taken_can_be_put_again(self) -> None:
        self.serve(transactionCheckMax="99")
        self.start()
        half = self.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        taken = []
        for room in range(MAX_PROPERTIES_BYTES - len(half.properties_stored) - 200, MAX_PROPERTIES_BYTES, 7):
            body = b"%d" % room
            message = Message("T", body, {**half.properties, "KEYS": "k" * room}, 3, born_timestamp=NOW_MS)
            if self.successResultOf(self.transactions.prepare(message)).is_stored:
                taken.append(body)
        self.assertGreater(len(taken), 3)
        for _ in range(12):
            self.check()
        self.assertEqual(self.stored(GIVEN_UP), [])

    def test_a_disk_that_does_not_read_ends_this_check_but_not_the_next(self) -> None:
        self.prepare()
        reader = self.store.reader
        patch = self.patch(reader, "get_message", self.no_message)
        self.assertEqual(self.check(), [])
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        patch.restore()
        self.assertEqual(len(self.check()), 1)

    @staticmethod
    def no_message(*_: object) -> None:
        raise OSError("the disk is gone")

    def test_what_is_no_operation_is_told_and_passed_over(self) -> None:
        half = self.prepare()
        self.put(b"0", topic=OP, TAGS="x")
        self.put(b"zero", topic=OP, TAGS="d")
        self.assert_ends(half, COMMIT)
        with log_lines() as lines:
            self.assertEqual(self.check(), [])
        self.assertEqual(lines().count("is not an operation message"), 2)
        self.assertEqual(self.offsets(), (1, 3))

    def test_an_operation_of_5_x_ends_several(self) -> None:
        halves = [self.prepare(b"%d" % number) for number in range(6)]
        self.put(b"0,1,", b"4,3,", topic=OP, TAGS="d")
        (asked, other) = self.check()
        self.assertEqual([self.asked_about(question).body for question in (asked, other)], [b"2", b"5"])
        self.assertEqual(self.offsets(), (6, 2), "both operations are done with")
        self.assert_ends(halves[2], ROLLBACK)

    def test_an_offset_that_is_no_number_spoils_no_other(self) -> None:
        for _ in range(3):
            self.prepare()
        self.put(b"0,x,-1,2,", b",", topic=OP, TAGS="d")
        with log_lines() as lines:
            self.assertEqual(len(self.check()), 1)
        self.assertIn("2 of its 4 offsets are invalid: 0,x,-1,2,", lines())
        self.assertEqual(lines().count("is not an operation message"), 2)
        self.assertEqual(self.offsets(), (3, 2))

    def test_one_that_is_ended_twice_leaves_nothing_behind(self) -> None:
        half, other = self.prepare(b"a"), self.prepare(b"b")
        for ended in (half, half, other):
            self.assert_ends(ended, COMMIT)
        self.assertEqual(self.check(), [])
        self.assertEqual(self.offsets(), (2, 3))

    def test_operations_are_kept_until_all_before_them_are_done_with(self) -> None:
        halves = [self.prepare(body) for body in (b"a", b"b")]
        self.check(CHECK_SECONDS - 5)
        young = self.prepare(b"young")
        for half in (young, *halves):
            self.assert_ends(half, COMMIT)
        self.prepare(b"last")
        self.check(5)
        self.assertEqual(self.offsets(), (3, 3), "all had ended")
        later = [self.prepare(body) for body in (b"c", b"d")]
        for half in reversed(later):
            self.assert_ends(half, COMMIT)
        self.store.puts.disk_full = True
        self.check()
        self.assertEqual(self.offsets(), (3, 3), "the one before them could not be put again")
        self.store.puts.disk_full = False
        self.check()
        self.assertEqual(self.offsets(), (6, 5))

    def test_it_stops_in_the_middle_and_goes_on_there(self) -> None:
        for number in range(3 * STEPS_AT_ONCE):
            self.prepare(b"%d" % number, born_ms=NOW_MS - 60_000)
        self.dispatch()
        checked = self.transactions.check()
        self.assertNoResult(checked)
        self.assertEqual(len(self.questions()), STEPS_AT_ONCE, "now others have their turn")
        self.assertEqual(self.offsets()[0], STEPS_AT_ONCE, "a crash does not begin anew")
        self.transactions.stopService()
        self.successResultOf(checked)
        self.dispatch()
        self.assertEqual(self.questions(), [])
        self.begin()
        self.start()
        self.assertEqual(self.offsets()[0], STEPS_AT_ONCE)
        self.assertEqual(len(self.check()), 3 * STEPS_AT_ONCE, "the rest, and those that were put again")

    def test_many_are_asked_about_in_one_check(self) -> None:
        count = 3 * STEPS_AT_ONCE + 7
        for number in range(count):
            self.prepare(b"%d" % number)
        self.assertEqual([self.asked_about(q).body for q in self.check()], [b"%d" % n for n in range(count)])


class ImmunityTests(TransactionTestCase):
    """CHECK_IMMUNITY_TIME_IN_SECONDS: a producer that needs more time."""

    def setUp(self) -> None:
        super().setUp()
        self.start()

    def test_it_is_asked_about_when_its_time_is_over(self) -> None:
        self.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        self.assertEqual(self.check(), [])
        (_, postponed) = self.stored(HALF)
        self.assertEqual(postponed.properties["TRAN_PREPARED_QUEUE_OFFSET"], "0")
        self.assertNotIn("TRANSACTION_CHECK_TIMES", postponed.properties)
        (question,) = self.check()
        self.assertEqual(self.asked_about(question).queue_offset, 2)

    def test_it_is_asked_about_at_once_when_it_wants_less_than_others(self) -> None:
        self.check(CHECK_SECONDS - 3)
        self.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="2")
        self.assertEqual(len(self.check(3)), 1)

    def test_those_behind_it_do_not_wait_for_it(self) -> None:
        self.prepare(b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
        self.prepare(b"quick")
        (question,) = self.check()
        self.assertEqual(self.asked_about(question).body, b"quick")

    def test_its_producer_ends_it_where_it_was_first(self) -> None:
        half = self.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="150")
        self.assertEqual([self.check(), self.check()], [[], []])
        self.assert_ends(half, COMMIT)
        self.assertEqual([self.check(), self.check()], [[], []])
        self.assertEqual(len(self.stored(HALF)), 3, "it is not put again")
        self.assertEqual(self.bodies("T", 3), [b"b"])
        self.assertEqual(self.offsets(), (3, 1))

    def test_what_is_no_time_is_none(self) -> None:
        for text in ("-1", "soon", "1.5", "9" * 30):
            self.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
        self.assertEqual(len(self.check()), 4)


class RestartTests(TransactionTestCase):
    """All that is known is in the store."""

    @pytest.mark.long
    def test_a_store_that_another_node_opens_after_a_crash_is_gone_on_with(self) -> None:
        self.start()
        halves = [self.prepare(body) for body in (b"a", b"b", b"c")]
        self.assert_ends(halves[0], COMMIT)
        self.assertEqual(len(self.check()), 2)
        self.successResultOf(self.consumer_offsets.persist())
        self.assert_ends(halves[1], COMMIT)
        crashed = Path(self.mktemp())
        shutil.copytree(self.store.root, crashed)
        self.serve(storePathRootDir=str(crashed))
        self.start()
        self.assertEqual(self.offsets(), (3, 1))
        asked = [self.asked_about(question).body for question in self.check()]
        self.assertEqual(asked, [b"c"], "b was put again before, and is committed since")

    def test_offsets_that_were_lost_begin_with_the_first_message(self) -> None:
        halves = [self.prepare(b"%d" % number) for number in range(3)]
        for half in halves[:2]:
            self.assert_ends(half, ROLLBACK)
        self.start()
        (question,) = self.check()
        self.assertEqual(self.asked_about(question).body, b"2")

    def test_a_log_that_has_lost_its_tail_gives_its_offsets_anew(self) -> None:
        """A slave takes over with the offsets of a master that was ahead of it."""
        self.consumer_offsets.commit(TRANSACTION_GROUP, HALF, 0, 50, "the master")
        self.consumer_offsets.commit(TRANSACTION_GROUP, OP, 0, 40, "the master")
        self.start()
        self.assertEqual(self.offsets(), (0, 0))
        halves = [self.prepare(body) for body in (b"a", b"b")]
        self.assert_ends(halves[0], COMMIT)
        self.assertEqual(len(self.check()), 1)

    def test_progress_counts_when_the_log_is_flushed_as_far(self) -> None:
        """Without power the log may lose a half message that was put again. Its progress must not pass it by then."""
        self.start()
        self.prepare()
        flushed: list[Deferred[None]] = []

        async def wait() -> None:
            flushed.append(Deferred())
            await flushed[-1]

        self.patch(self.store, "flushed", wait)
        self.assertEqual(len(self.check()), 1)
        self.assertEqual(self.offsets(), (0, 0))
        flushed[0].callback(None)
        self.assertEqual(self.offsets(), (1, 0))

    @pytest.mark.long
    def test_a_promoted_slave_forgets_no_open_transaction_and_decides_no_ended_one_again(self) -> None:
        """Its log ends before a half message was put again, and before another one ended."""
        self.start()
        halves = [self.prepare(body) for body in (b"committed", b"rolled back", b"open", b"ended later")]
        self.assert_ends(halves[0], COMMIT)
        self.assert_ends(halves[1], ROLLBACK)
        self.dispatch()
        before = self.offsets()
        end = self.store.commit_log.verified_offset
        self.assertEqual(len(self.check()), 2)
        self.assert_ends(halves[3], COMMIT)
        self.transactions.stopService()
        self.producer.line.lose()
        prefix = Path(self.mktemp())
        shutil.copytree(self.store.root, prefix)
        self.serve(storePathRootDir=str(prefix))
        self.store.cut_back(end)
        # a slave does not take newer progress before its log is there: see test_slavesync
        self.consumer_offsets.commit(TRANSACTION_GROUP, HALF, 0, before[0], "the master")
        self.consumer_offsets.commit(TRANSACTION_GROUP, OP, 0, before[1], "the master")
        self.start()
        questions = self.check()
        self.assertEqual([self.asked_about(question).body for question in questions], [b"open", b"ended later"])
        for question in questions:
            self.reply(question, COMMIT)
        self.assertEqual(self.bodies("T", 3), [b"committed", b"open", b"ended later"])
        self.assertEqual(self.check(), [])

    def take_over_with(self, offsets: tuple[int, int]) -> None:
        """Another node continues with this progress."""
        self.transactions.stopService()
        for topic, offset in zip((HALF, OP), offsets, strict=True):
            self.consumer_offsets.commit(TRANSACTION_GROUP, topic, 0, offset, "the master")
        self.begin()
        self.start()

    def test_a_node_that_takes_over_with_old_progress_decides_nothing_twice(self) -> None:
        """The progress is copied every ten seconds. All of them were checked since, and then ended."""
        self.serve(transactionCheckMax="1")
        self.put(b"at offset 0")
        self.start()
        self.prepare(b"given up")
        self.check()
        for body in (b"committed", b"rolled back", b"open"):
            self.prepare(body)
        before = self.offsets()
        ends = {b"committed": COMMIT, b"rolled back": ROLLBACK}
        for question in self.check():
            body = self.asked_about(question).body
            if body in ends:
                self.reply(question, ends[body])
        self.assertEqual(self.bodies(GIVEN_UP), [b"given up"])
        self.take_over_with(before)
        self.assertEqual(self.check(), [], "the open one was asked about once, and is given up")
        self.assertEqual(self.bodies("T", 3), [b"committed"])
        self.assertEqual(self.bodies(GIVEN_UP), [b"given up", b"open"])

    def test_a_half_message_of_somebody_else_with_the_same_key_proves_nothing(self) -> None:
        self.start()
        half = self.prepare()
        for changed in ({"born_host": Host.parse("192.0.2.8", 1)}, {"body": b"other"}, {"topic": "U"}):
            message = Message(
                "T", b"b", {**half.properties, "TRANSACTION_CHECK_TIMES": "1"}, 3, 5, 1, half.born_timestamp, BORN_HOST
            )
            self.successResultOf(self.transactions.prepare(replace(message, **changed)))
        forged = {"UNIQ_KEY": "U-b", "PGROUP": "P", "TRAN_MSG": "true"}
        self.successResultOf(self.store.put_message(Message("T", b"b", forged, 3, sys_flag=8, born_timestamp=NOW_MS)))
        asked = [self.asked_about(question) for question in self.check()]
        self.assertIn((b"b", BORN_HOST, "T"), [(each.body, each.born_host, each.topic) for each in asked])

    def test_what_retention_took_is_passed_over(self) -> None:
        self.start()
        halves = [self.prepare(b"%d" % number) for number in range(5)]
        for half in halves[1:3]:
            self.assert_ends(half, ROLLBACK)
        self.store.puts.disk_full = True
        self.check()
        self.store.puts.disk_full = False
        self.assertEqual(self.offsets(), (0, 0), "the first one could not be put again")
        queue = self.store.derived.queues.get(HALF, 0)
        self.patch(type(queue), "min_offset", property(lambda found: min(4, found.max_offset)))
        self.assertEqual([self.asked_about(question).body for question in self.check()], [b"4"])
        self.assertEqual(self.offsets(), (5, 2))

    @pytest.mark.long
    def test_random_histories_lose_nothing_and_bring_nothing_back(self) -> None:
        for seed in range(12):
            with self.subTest(seed=seed):
                self.serve()
                self.walk(Random(seed))

    def walk(self, rng: Random) -> None:
        """Transactions begin, end, are asked about and forgotten; now and then another node takes over."""
        self.transactions.startService()
        fates: dict[bytes, int] = {}
        open_halves: list[Record] = []
        for step in range(60):
            move = rng.choice(("prepare", "prepare", "end", "end", "time", "answer", "takeover"))
            if move == "prepare":
                immunity = rng.choice(("", str(rng.randrange(200))))
                body = b"m%d" % step
                fates[body] = rng.choice((COMMIT, ROLLBACK))
                open_halves.append(self.prepare(body, CHECK_IMMUNITY_TIME_IN_SECONDS=immunity))
            elif move == "end" and open_halves:
                half = open_halves.pop(rng.randrange(len(open_halves)))
                if rng.random() < 0.7:  # else the producer forgets it
                    self.assert_ends(half, fates[half.body])
            elif move == "time":
                self.check(rng.randrange(1, 90))
            elif move == "answer":
                self.answer_all(fates, self.questions(), rng.random())
            elif move == "takeover":
                self.take_over(rng)
        for _ in range(8):
            self.answer_all(fates, self.check(), 1.0)
        self.transactions.stopService()
        delivered = Counter(self.bodies("T", 3))
        self.assertEqual(delivered, Counter(body for body, fate in fates.items() if fate == COMMIT))
        self.assertEqual(self.offsets(), (len(self.stored(HALF)), len(self.stored(OP))))
        self.assertEqual(self.stored(GIVEN_UP), [])

    def answer_all(self, fates: dict[bytes, int], questions: list[RemotingCommand], likely: float) -> None:
        """The producer answers most of these questions."""
        for number, question in enumerate(questions):
            if number <= likely * len(questions):
                self.reply(question, fates[self.asked_about(question).body])

    def take_over(self, rng: Random) -> None:
        """Another node, with the offsets of some time before."""
        table = self.consumer_offsets.table
        older = ConsumerOffsetTable(json.loads(json.dumps(table.offset_table), object_hook=_with_numbers))
        if rng.random() < 0.5:
            self.check(30)
            self.producer.answers()
        self.transactions.stopService()
        table.offset_table.clear()
        table.offset_table.update(older.offset_table)
        self.producer.line.lose()
        self.begin()
        self.producer = self.connect_producer()
        self.transactions.startService()


def _with_numbers(content: dict[str, Any]) -> dict[Any, Any]:
    return {int(key) if key.isdecimal() else key: value for key, value in content.items()}


def _heartbeat(group: str) -> bytes:
    return json.dumps({"clientID": "c1", "producerDataSet": [{"groupName": group}]}).encode()


class OperationsTests(BrokerStoreTestCase):
    """What is kept of the operations."""

    def test_the_oldest_of_those_that_came_late_are_forgotten_first(self) -> None:
        self.patch(transaction, "MAX_LATE_ENDS", 3)
        self.open()
        self.put(b"0", b"1", b"2", b"3", b"4", topic=OP, TAGS="d")
        operations = transaction.Operations(self.store, 0)
        self.assertTrue(operations.read_more(10))
        self.assertEqual(
            [operations.ended_late(offset) for offset in range(6)], [False, False, True, True, True, False]
        )
        self.assertEqual((operations.offset, operations.read_more(10)), (5, False))

    def test_those_that_retention_took_are_done_with(self) -> None:
        self.open()
        self.put(b"7", topic=OP, TAGS="d")
        operations = transaction.Operations(self.store, 0)
        operations.read_more(0)
        self.put(*(b"%d" % number for number in range(8, 13)), topic=OP, TAGS="d")
        self.patch(type(self.store.derived.queues.get(OP, 0)), "min_offset", 4)
        while operations.read_more(0):
            pass
        self.assertEqual(operations.offset, 4)
        self.assertEqual([operations.take(offset) for offset in range(7, 13)], [True, *[False] * 3, True, True])
        self.assertEqual(operations.offset, 6)

    def test_those_of_half_messages_that_are_gone_are_done_with(self) -> None:
        self.open()
        self.put(b"3", b"7", topic=OP, TAGS="d")
        operations = transaction.Operations(self.store, 0)
        operations.read_more(0)
        self.assertEqual(operations.offset, 0)
        operations.skip_to(7)
        self.assertEqual((operations.offset, operations.take(3), operations.take(7)), (1, False, True))
        self.assertEqual(operations.offset, 2)

    def test_an_operation_is_needed_until_all_it_ended_were_checked(self) -> None:
        """A node that continues from ``offset`` must find each end that the half queue still waits for."""
        self.open()
        self.put(b"0,2,", b"1", b"3,1,2,", topic=OP, TAGS="d")
        operations = transaction.Operations(self.store, 0)
        operations.read_more(0)
        kept = [(operations.take(half), operations.offset) for half in range(4)]
        self.assertEqual(kept, [(True, 0), (True, 0), (True, 2), (True, 3)])

    def test_an_operation_that_is_far_too_long_is_passed_over(self) -> None:
        self.patch(transaction, "MAX_OPERATION_BYTES", 100)
        self.open()
        self.put(b"1," * 51, topic=OP, TAGS="d")
        operations = transaction.Operations(self.store, 0)
        with log_lines() as lines:
            operations.read_more(0)
        self.assertIn("is not an operation message", lines())
        self.assertEqual((operations.take(1), operations.offset), (False, 1))

    @settings(deadline=None, max_examples=examples(100))
    @given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=8), st.integers(0, 30))
    def test_any_batches_are_read_whole(self, batches: list[list[int]], first: int) -> None:
        self.open()
        bodies = ["".join(f"{offset}," for offset in batch).encode() for batch in batches]
        self.put(*bodies, topic=OP, TAGS="d")
        operations = transaction.Operations(self.store, 0)
        while operations.read_more(first):
            pass
        ended = {offset for batch in batches for offset in batch}
        self.assertEqual(
            {half for half in range(first) if operations.ended_late(half)}, {h for h in ended if h < first}
        )
        for half in range(first, 31):
            needed = [at for at, batch in enumerate(batches) if any(offset >= half for offset in batch)]
            if needed and half == first:
                self.assertLessEqual(operations.offset, needed[0], "it is needed again after a restart")
            self.assertEqual(operations.take(half), half in ended)
        self.assertEqual(operations.offset, len(batches), "nothing is needed any more")


class VerdictTests(BrokerStoreTestCase):
    """What is to be done about a half message, to the millisecond."""

    def verdicts(self, *ages_ms: int, **properties: str) -> list[CheckAction]:
        """Of one with these properties, at these ages."""
        of_broker = make_settings({"transactionTimeOut": "6000", "transactionCheckMax": "3", "fileReservedTime": "1"})
        stored = format_properties({"PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "0", **properties})
        half = HalfMessage.from_record(Record(HALF, b"", stored, born_timestamp=NOW_MS))
        return [half.verdict(of_broker, NOW_MS + age_ms) for age_ms in ages_ms]

    def test_it_waits_until_its_time_is_over(self) -> None:
        self.assertEqual(self.verdicts(0, 5_999), [CheckAction.WAIT] * 2)
        self.assertEqual(self.verdicts(-1, 6_000, 3_600_000), [CheckAction.CHECK] * 3)
        self.assertEqual(self.verdicts(3_600_001), [CheckAction.DISCARD])

    def test_a_time_of_its_own_counts_instead(self) -> None:
        verdicts = self.verdicts(-1, 1_999, 2_000, CHECK_IMMUNITY_TIME_IN_SECONDS="2")
        self.assertEqual(verdicts, [CheckAction.POSTPONE, CheckAction.POSTPONE, CheckAction.CHECK])
        self.assertEqual(self.verdicts(3_600_001, CHECK_IMMUNITY_TIME_IN_SECONDS="9999"), [CheckAction.DISCARD])

    def test_so_many_checks_are_enough_whatever_its_age(self) -> None:
        self.assertEqual(self.verdicts(0, TRANSACTION_CHECK_TIMES="2"), [CheckAction.WAIT])
        self.assertEqual(self.verdicts(0, TRANSACTION_CHECK_TIMES="3"), [CheckAction.DISCARD])
