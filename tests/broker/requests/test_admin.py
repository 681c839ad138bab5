"""What operators' tools ask, and what whole tables slaves get (spec/remoting.md 2.12 to 2.19, 9.1)."""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.requests.admin import (
    MAX_PARTS,
    MAX_QUEUES,
    MAX_ROW_BYTES,
    StatsProcessor,
    TableProcessor,
    TopicAdminProcessor,
    by_queue,
)
from rmqha.broker.tables.attributes import attributes_of
from rmqha.broker.tables.brokertables import CopiedTables
from rmqha.broker.tables.clients import ClientManageProcessor, ConsumerManager, ProducerManager
from rmqha.broker.tables.configmanager import ConfigManager, TableStorage
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.newnames import MAX_TABLE_BYTES
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.steps import at_once
from rmqha.remoting.protocol import RequestRefused
from rmqha.store.message import Message, PutMessageStatus
from rmqha.store.metadata import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicFilterType,
)
from rmqha.store.timers import TimerCheckPoint
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from tests import examples
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, ToldRows, any_header, deleted_topics
from tests.ha.doubles import PEER_NAME, log_lines
from tests.remoting.test_protocol import frame

TOPIC: dict[str, object] = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": 8,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}
HEARTBEAT_OF_A_CONSUMER = """{"clientID":"c","consumerDataSet":[{"groupName":"%s","consumeType":"CONSUME_PASSIVELY",
"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"%s",
"subString":"*","subVersion":1}],"unitMode":false}],"producerDataSet":[]}"""


class AdminTestCase(BrokerStoreTestCase):
    """Has a master's store, its tables and a peer that asks about them."""

    def setUp(self) -> None:
        super().setUp()
        self.serve()

    def serve(self, is_slave: bool = False, **properties: str) -> None:
        """Answer requests about a new store."""
        self.open("SLAVE" if is_slave else "ASYNC_MASTER", **properties)
        self.topics = TopicConfigManager(self.folder, self.settings, self.wall)
        self.groups = SubscriptionGroupManager(self.folder, self.settings, self.wall)
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        self.consumers = ConsumerManager(self.settings, self.groups)
        self.stats = BrokerStats("C", self.clock, self.wall)
        self.stats.startService()
        self.addCleanup(self.stats.stopService)
        self.deleted = deleted_topics(self, self.topics, self.offsets)
        tables = CopiedTables(self.topics, self.groups, self.offsets, self.deleted)
        delay_offsets = ConfigManager(TableStorage(self.folder, execute), DelayOffsetTable)
        delay_offsets.table = DelayOffsetTable({1: 3, 3: 2})
        self.peer = self.client(
            {
                **TopicAdminProcessor(tables, self.stats, is_slave).processors(),
                **TableProcessor(
                    self.topics,
                    self.groups,
                    self.offsets,
                    delay_offsets,
                    self.store,
                ).processors(),
                **StatsProcessor(
                    self.store,
                    "broker-a",
                    tables,
                    self.consumers,
                    self.stats,
                    self.wall,
                ).processors(),
            }
        )

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A group has consumed up to ``offset``."""
        self.offsets.commit(group, topic, queue_id, offset, "test")

    def body(self, code: int, body: bytes = b"", /, **fields: object) -> bytes:
        """The body of a success."""
        answer = self.peer.ask(code, body, **fields)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        return answer.body

    def assert_success(self, answer: RemotingCommand) -> None:
        self.assertEqual((answer.code, answer.body), (ResponseCode.SUCCESS, b""), answer.remark)


class TopicAdminTests(AdminTestCase):
    """Codes 17 and 215."""

    def change(self, **fields: object) -> RemotingCommand:
        """What mqadmin updateTopic sends, with other fields if they are given."""
        return self.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**TOPIC, **fields})

    def delete(self, topic: str | None) -> RemotingCommand:
        """What mqadmin deleteTopic sends."""
        return self.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)

    def test_a_topic_is_made_with_what_was_asked_for(self) -> None:
        before = self.topics.table.data_version
        self.assert_success(self.change(perm=4, topicFilterType="MULTI_TAG", topicSysFlag=3))
        expected = TopicConfig("T", 8, 4, 4, TopicFilterType.MULTI_TAG, 3)
        self.assertEqual(self.topics.get("T"), expected)
        self.assertEqual(TopicConfigTable.read(self.folder).topic_config_table["T"], expected)
        self.assertEqual(self.topics.table.data_version.counter, before.counter + 1)

    def test_a_topic_that_is_there_gets_the_new_settings(self) -> None:
        self.change()
        self.assert_success(self.change(readQueueNums=1, writeQueueNums=2, topicSysFlag=None))
        self.assertEqual(self.topics.get("T"), TopicConfig("T", 1, 2))

    def test_a_change_keeps_the_fields_that_we_do_not_know(self) -> None:
        """A 4.9 tool names none of them; a 5.x tool sends changes of attributes."""
        unknown = {"attributes": {"message.type": "FIFO", "queue.type": "BatchCQ"}, "later": [1, None]}
        self.topics.update(TopicConfig("T", 1, 1, unknown=unknown))
        self.assert_success(self.change())
        self.assertEqual(self.topics.get("T"), TopicConfig("T", 8, 4, unknown=unknown))
        self.assertEqual(TopicConfigTable.read(self.folder).topic_config_table["T"].unknown, unknown)
        self.assert_success(self.change(attributes="+reserve.time=5,-message.type"))
        changed = {"queue.type": "BatchCQ", "reserve.time": "5"}
        self.assertEqual(self.topics.table.rows["T"].unknown, {"attributes": changed, "later": [1, None]})
        served = orjson.loads(self.body(RequestCode.GET_ALL_TOPIC_CONFIG))
        self.assertEqual(served["topicConfigTable"]["T"]["attributes"], changed)

    def test_attributes_that_we_cannot_keep_true_are_refused(self) -> None:
        for changes, reason in (
            ("+queue.type=BatchCQ", "this broker creates no topics with batch consume queues"),
            ("+cleanup.policy=COMPACTION", "this broker does not compact topics"),
            ("-message.type", "no attribute 'message.type' to delete"),
            ("message.type=FIFO", "neither .key=value nor -key"),
            ("+message.type", "neither .key=value nor -key"),
            ("+message-type=FIFO", "needs a . or - before its name, and none in it"),
            ("+a=" + "x" * 20_000, "more than 16384"),
        ):
            answer = self.change(attributes=changes)
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
            self.assertRegex(str(answer.remark), reason)
            self.assertIsNone(self.topics.get("T"))
        self.assert_success(self.change(attributes="+queue.type=SimpleCQ,+message.type=DELAY"))
        self.assertEqual(
            attributes_of(self.topics.table.rows["T"]), {"queue.type": "SimpleCQ", "message.type": "DELAY"}
        )

    def test_order_is_asked_for_and_not_kept_as_in_java(self) -> None:
        self.assert_success(self.change(order="true"))
        self.assertEqual(self.topics.get("T"), TopicConfig("T", 8, 4))

    def test_name_servers_are_told(self) -> None:
        told = ToldRows()
        self.topics.subscribe(told)
        self.change()
        self.delete("T")
        self.assertEqual(told.rows, [TopicConfig("T", 8, 4), None])

    def test_the_log_says_who_did_it(self) -> None:
        with log_lines() as lines:
            self.change()
            self.delete("T")
        made, deleted, _ = lines().splitlines()
        self.assertTrue(made.startswith(f"info: {PEER_NAME} creates or changes TopicConfig(topic_name='T'"), made)
        self.assertEqual(deleted, f"info: {PEER_NAME} deletes topic T")

    def test_system_topics_are_neither_changed_nor_deleted(self) -> None:
        for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x", "DefaultCluster"):
            before = dict(self.topics.table.topic_config_table)
            remark = f"The topic[{topic}] is conflict with system topic."
            self.assert_refused([self.change(topic=topic), self.delete(topic)], ResponseCode.SYSTEM_ERROR, remark)
            self.assertEqual(self.topics.table.topic_config_table, before)

    def test_what_no_topic_can_be_named_is_refused(self) -> None:
        for topic, remark in ((" ", "blank"), ("T/1", "illegal characters"), ("T" * 128, "longer than")):
            self.assert_refused([self.change(topic=topic), self.delete(topic)], ResponseCode.SYSTEM_ERROR, remark)

    def test_a_field_that_lacks_is_named(self) -> None:
        for name in TOPIC.keys() - {"topicSysFlag"}:
            self.assert_refused([self.change(**{name: None})], ResponseCode.SYSTEM_ERROR, f"<{name}> is null")
        self.assert_refused([self.delete(None)], ResponseCode.SYSTEM_ERROR, "<topic> is null")
        self.assertIsNone(self.topics.get("T"))

    def test_numbers_that_no_topic_has_are_refused(self) -> None:
        """Else a table would be written that no start could read, or a listing would name two billion queues."""
        for name, most in (
            ("readQueueNums", MAX_QUEUES),
            ("writeQueueNums", MAX_QUEUES),
            ("perm", 15),
            ("topicSysFlag", 2**31 - 1),
        ):
            for value in (-1, most + 1, 2**63 - 1):
                answer = self.change(**{name: value})
                self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, f"<{name}> is not between 0 and {most}")
            self.assert_success(self.change(**{name: most}))
        self.assertEqual(TopicConfigTable.read(self.folder), self.topics.table)

    def test_an_unknown_filter_type_is_refused(self) -> None:
        self.assert_refused(
            [self.change(topicFilterType="NO_TAG")], ResponseCode.SYSTEM_ERROR, "not a TopicFilterType: 'NO_TAG'"
        )

    def test_a_topic_is_deleted(self) -> None:
        self.change()
        self.put(b"1")
        self.stats.messages_put("T", 1, 1)
        self.assert_success(self.delete("T"))
        self.assertIsNone(self.topics.get("T"))
        self.assertIsNone(self.stats.view("TOPIC_PUT_NUMS", "T"))

    def test_a_topic_that_was_deleted_begins_anew(self) -> None:
        """Its old messages are in no queue any more, its groups have read nothing, and its queues begin with 0."""
        self.change()
        self.put(*[b"%d" % number for number in range(20)])
        self.put(b"other", topic="Other")
        self.commit("G", "T", 0, 20)
        self.commit("G", "Other", 0, 1)
        self.assert_success(self.delete("T"))
        self.assertEqual(self.store.reader.max_offset("T", 0), 0)
        self.change()
        (record,) = self.put(b"new")
        self.assertEqual(record.queue_offset, 0)
        self.assertEqual(self.store.reader.message_in(self.store.derived.queues.queues["T", 0], 0), record)
        self.assertEqual(self.offsets.table.offset_table, {"Other@G": {0: 1}})
        self.assertEqual(ConsumerOffsetTable.read(self.folder), self.offsets.table)
        self.assertEqual(self.store.reader.max_offset("Other", 0), 1)
        self.assertEqual([path.name for path in (self.store.root / "rmqha").glob("rebuild/*")], [])

    def test_a_topic_takes_no_messages_until_its_deletion_is_on_the_disk(self) -> None:
        """Else a death in between would give one that was answered to the deleted topic."""
        self.change()
        self.put(b"1")
        writes: list[Callable[[], None]] = []

        def write_later(function: Callable[[], None]) -> Deferred[None]:
            writes.append(function)
            return Deferred()

        self.deleted._run_in_thread = write_later
        self.peer.send(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        self.clock.advance(0)
        self.assertEqual((self.peer.answers(), len(writes)), ([], 1))
        result = self.successResultOf(self.store.put_message(Message("T", b"2")))
        self.assertEqual(result.status, PutMessageStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual(self.store.reader.max_offset("T", 0), 1)

    def test_a_deletion_that_the_disk_refuses_can_be_made_again(self) -> None:
        self.change()
        self.put(b"1")
        writing: Deferred[None] = Deferred()
        self.deleted._run_in_thread = lambda function: writing
        self.peer.send(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        self.clock.advance(0)
        writing.errback(OSError(errno.ENOSPC, "full"))
        (answer,) = self.peer.answers()
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertIn("delete it again", answer.remark or "")
        self.deleted._run_in_thread = execute
        self.flushLoggedErrors()
        self.assert_success(self.delete("T"))
        self.assertEqual([record.queue_offset for record in self.put(b"2", b"3")], [0, 1])

    def test_deletions_of_what_is_not_there_leave_no_marks(self) -> None:
        for number in range(5):
            self.assert_success(self.delete(f"T{number}"))
        self.assertEqual(self.deleted.table.deletions, ())

    def test_to_delete_what_is_not_there_is_no_error(self) -> None:
        before = self.topics.table.data_version
        self.assert_success(self.delete("T"))
        self.assertEqual(self.topics.table.data_version, before)

    @settings(max_examples=examples(50))
    @given(any_header(TOPIC))
    def test_any_header_is_answered_and_the_table_stays_readable(self, fields: dict[str, object]) -> None:
        for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER):
            self.assertIn(self.peer.ask(code, **fields).code, (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR))
        self.assertEqual(TopicConfigTable.read(self.folder), self.topics.table)


class ListTests(AdminTestCase):
    """Codes 18 and 225: what mqadmin 5.x's updateTopicList and updateSubGroupList send."""

    def change_topics(self, *topics: object) -> RemotingCommand:
        return self.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, orjson.dumps({"topicConfigList": topics}))

    def change_groups(self, *groups: object) -> RemotingCommand:
        body = orjson.dumps({"groupConfigList": groups})
        return self.peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)

    def test_topics_are_made_and_changed(self) -> None:
        unknown = {"attributes": {"a": "1"}, "later": 7}
        self.topics.update(TopicConfig("Held", 4, 4, unknown=unknown))
        new = {"topicName": "New", "readQueueNums": 2, "writeQueueNums": 3, "perm": 4, "attributes": {"+b": "2"}}
        self.assert_success(self.change_topics({"topicName": "Held", "attributes": {}}, new))
        self.assertEqual(self.topics.get("Held"), TopicConfig("Held", 16, 16, unknown=unknown))
        self.assertEqual(self.topics.get("New"), TopicConfig("New", 2, 3, 4, unknown={"attributes": {"b": "2"}}))
        self.assertEqual(TopicConfigTable.read(self.folder), self.topics.table)

    def test_groups_are_made_and_changed(self) -> None:
        self.groups.update(SubscriptionGroupConfig("Held", retry_max_times=3, unknown={"later": 7}))
        self.assert_success(self.change_groups({"groupName": "Held"}, {"groupName": "New", "retryMaxTimes": 5}))
        self.assertEqual(self.groups.get("Held"), SubscriptionGroupConfig("Held", unknown={"later": 7}))
        self.assertEqual(self.groups.get("New"), SubscriptionGroupConfig("New", retry_max_times=5))
        self.assertEqual(SubscriptionGroupTable.read(self.folder), self.groups.table)

    def test_a_list_with_a_bad_entry_changes_nothing(self) -> None:
        good = {"topicName": "Good"}
        for bad, reason in (
            ({"topicName": "a b"}, "illegal characters"),
            ({"topicName": "TBW102"}, "conflict with system topic"),
            ({"topicName": "T", "readQueueNums": MAX_QUEUES + 1}, "readQueueNums of topic T is not between"),
            ({"topicName": "T", "writeQueueNums": -1}, "writeQueueNums of topic T is not between"),
            ({"topicName": "T", "perm": 16}, "perm of topic T is not between"),
            ({"topicName": "T", "topicSysFlag": -1}, "topicSysFlag of topic T is not between"),
            ({"topicName": "T", "attributes": {"b": "2"}}, "the attribute 'b' needs a"),
            ({"topicName": "T", "x": {"@type": "y"}}, "the key @type is not accepted"),
            ({"topicName": "T", "x": "y" * MAX_ROW_BYTES}, f"more than {MAX_ROW_BYTES}"),
            ({"topicName": "T", "x": [{}] * MAX_PARTS}, f"or {MAX_PARTS} parts"),
            ([], "a topic is invalid"),
            (None, "a topic is invalid"),
        ):
            self.assert_refused([self.change_topics(good, bad)], ResponseCode.SYSTEM_ERROR, reason)
        self.assertIsNone(self.topics.get("Good"))
        bad_group = self.change_groups({"groupName": "Good"}, {"groupName": "a b"})
        self.assert_refused([bad_group], ResponseCode.SYSTEM_ERROR, "a group cannot be named")
        self.assertIsNone(self.groups.get("Good"))

    def test_what_has_no_list_is_refused(self) -> None:
        for body, reason in ((b"", "the body is invalid"), (b"[]", "has no list"), (b'{"x":[]}', "has no list")):
            for code in (
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            ):
                self.assert_refused([self.peer.ask(code, body)], ResponseCode.SYSTEM_ERROR, reason)

    def test_where_too_many_are_new_the_answer_says_how_far_it_came(self) -> None:
        self.serve(maxNewTopicsAtOncePerConnection="20")
        most = self.settings.max_new_topics_at_once_per_connection
        answer = self.change_topics(*({"topicName": f"T{at}"} for at in range(most + 5)))
        self.assertEqual(answer.code, ResponseCode.SYSTEM_BUSY)
        self.assertIn(f"(done: {most} of {most + 5})", str(answer.remark))
        self.assertIsNotNone(self.topics.get(f"T{most - 1}"))
        self.assertIsNone(self.topics.get(f"T{most}"))

    def test_a_slave_refuses_lists(self) -> None:
        self.serve(is_slave=True)
        answers = [self.change_topics({"topicName": "T"}), self.change_groups({"groupName": "G"})]
        self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, "slave broker")


class GroupAdminTests(AdminTestCase):
    """Codes 200 and 207."""

    def change(self, body: bytes) -> RemotingCommand:
        return self.peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    def test_a_change_keeps_the_fields_that_we_do_not_know(self) -> None:
        """A 4.9 tool names none of them. A 5.x tool names all, and sends changes of attributes."""
        unknown = {"attributes": {"a": "1"}, "consumeMessageOrderly": True, "later": {"x": [None]}}
        self.groups.update(SubscriptionGroupConfig("G", unknown=unknown))
        self.assert_success(self.change(b'{"groupName":"G","retryMaxTimes":3}'))
        self.assertEqual(self.groups.get("G"), SubscriptionGroupConfig("G", retry_max_times=3, unknown=unknown))
        body = {"groupName": "G", "consumeMessageOrderly": False, "attributes": {"-a": "", "+b": "2"}, "new": 7}
        self.assert_success(self.change(orjson.dumps(body)))
        wanted = {"attributes": {"b": "2"}, "consumeMessageOrderly": False, "later": {"x": [None]}, "new": 7}
        self.assertEqual(self.groups.table.rows["G"].unknown, wanted)
        self.assertEqual(SubscriptionGroupTable.read(self.folder).rows["G"].unknown, wanted)
        served = orjson.loads(self.body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        self.assertEqual({name: served["subscriptionGroupTable"]["G"][name] for name in wanted}, wanted)

    def test_fields_that_would_harm_others_are_refused(self) -> None:
        for unknown, reason in (
            ({"x": [{"@type": "java.lang.Runtime"}]}, "the key @type is not accepted"),
            ({"x": {"$ref": "$"}}, "the key .ref is not accepted"),
            ({"x": "y" * 20_000}, "more than 16384"),
            ({"attributes": {"b": "2"}}, "the attribute 'b' needs a"),
        ):
            answer = self.change(orjson.dumps({"groupName": "G", **unknown}))
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
            self.assertRegex(str(answer.remark), reason)
            self.assertIsNone(self.groups.get("G"))

    def test_unknown_fields_count_for_the_room_in_the_table(self) -> None:
        body = orjson.dumps({"groupName": "G", "x": "y" * 15_000})
        self.groups._new.hold([], MAX_TABLE_BYTES - 10_000)
        self.assertEqual(self.change(body).code, ResponseCode.SYSTEM_BUSY)
        self.groups._new.hold([], MAX_TABLE_BYTES - 20_000)
        self.assert_success(self.change(body))
        self.assert_success(self.change(body))
        other = self.change(body.replace(b'"G"', b'"H"'))
        self.assertEqual(other.code, ResponseCode.SYSTEM_BUSY)
        self.groups.delete("G")
        self.assert_success(self.change(body.replace(b'"G"', b'"H"')))

    def test_a_group_is_made_and_changed(self) -> None:
        group = SubscriptionGroupConfig("G", retry_max_times=3, consume_broadcast_enable=False)
        self.assert_success(self.change(orjson.dumps(group.to_json())))
        self.assertEqual(self.groups.get("G"), group)
        self.assert_success(self.change(b'{"groupName":"G","whichBrokerWhenConsumeSlowly":2}'))
        self.assertEqual(self.groups.get("G"), SubscriptionGroupConfig("G", which_broker_when_consume_slowly=2))
        self.assertEqual(SubscriptionGroupTable.read(self.folder), self.groups.table)

    def test_what_is_no_group_is_refused(self) -> None:
        bodies = (b"", b"[]", b"null", b"{", b'{"groupName":7}', b'{"groupName":"G","retryMaxTimes":"many"}')
        self.assert_refused(map(self.change, bodies), ResponseCode.SYSTEM_ERROR, "the subscription group is invalid")
        self.assertIsNone(self.groups.get("G"))

    def test_what_no_group_can_be_named_is_refused(self) -> None:
        bodies = [orjson.dumps({"groupName": name}) for name in ("", "a@b", "a b", "G" * 121)]
        self.assert_refused(map(self.change, [*bodies, b"{}"]), ResponseCode.SYSTEM_ERROR, "a group cannot be named")
        self.assert_success(self.change(orjson.dumps({"groupName": "G" * 120})))
        self.groups.update(SubscriptionGroupConfig("G" * 255))  # an older broker made it
        self.assert_success(self.change(orjson.dumps({"groupName": "G" * 255, "retryMaxTimes": 1})))

    def test_a_group_is_deleted_and_keeps_its_offsets(self) -> None:
        self.groups.find_or_create("G")
        self.commit("G", "T", 0, 7)
        self.stats.messages_got("G", "T", 1, 1)
        self.assert_success(self.peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G"))
        self.assertIsNone(self.groups.get("G"))
        self.assertEqual(self.offsets.query("G", "T", 0), 7)
        self.assertIsNone(self.stats.view("GROUP_GET_NUMS", "T@G"))

    def test_its_offsets_go_if_that_is_asked_for(self) -> None:
        for release, field in (("4.9", "removeOffset"), ("5.x", "cleanOffset")):
            for group in ("G", "H"):
                self.commit(group, "T", 0, 7)
                self.commit(group, "%RETRY%GG", 0, 7)
            with self.subTest(release):
                fields = {"groupName": "G", field: "true"}
                self.assert_success(self.peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, **fields))
                self.successResultOf(self.offsets.persist())
                self.assertEqual(set(ConsumerOffsetTable.read(self.folder).offset_table), {"T@H", "%RETRY%GG@H"})

    def test_a_strangers_name_reaches_the_log_short_and_without_control_characters(self) -> None:
        with log_lines() as lines:
            self.assert_success(
                self.peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="\x1b[2J\nforged " + "x" * 10_000)
            )
        (line,) = [line for line in lines().split("\n") if "deletes group" in line]
        self.assertIn(r"\x1b[2J\nforged", line)
        self.assertTrue(line.isprintable())
        self.assertLess(len(line), 500)

    def test_a_group_that_is_deleted_with_its_offsets_loses_its_retries_too(self) -> None:
        """A new group of the name begins without offsets, so it would read the old one's retries from the start."""
        self.topics.create_in_send_back("%RETRY%G", 1)
        self.put(b"retry", topic="%RETRY%G")
        self.put(b"dead", topic="%DLQ%G")
        self.commit("G", "%RETRY%G", 0, 1)
        self.assert_success(self.peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", removeOffset="true"))
        self.assertEqual(self.store.reader.max_offset("%RETRY%G", 0), 0)
        self.assertEqual(self.store.reader.max_offset("%DLQ%G", 0), 1, "dead letters stay until their topic is deleted")
        self.assertNotIn("%RETRY%G", self.topics.table.rows)
        (record,) = self.put(b"retry", topic="%RETRY%G")
        self.assertEqual(record.queue_offset, 0)

    def test_to_delete_none_in_particular_is_refused(self) -> None:
        answer = self.peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP)
        self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, "<groupName> is null")


class LargeAnswerTests(SynchronousTestCase):
    """A table of more queues than a frame has room for."""

    def test_it_is_refused_as_soon_as_that_is_seen(self) -> None:
        taken = 0

        def rows() -> Iterator[tuple[str, Any]]:
            nonlocal taken
            while True:
                taken += 1
                yield "x" * 1000, taken

        with self.assertRaises(RequestRefused) as caught:
            at_once(by_queue({}, "offsetTable", rows()))
        self.assertIn("too many queues for one answer", str(caught.exception))
        self.assertLess(taken, FRAME_MAX_LENGTH // 1000 + 2)


class SlaveTests(AdminTestCase):
    """What a slave refuses."""

    def test_topics_and_groups_are_its_masters_matter(self) -> None:
        self.serve(is_slave=True)
        before = self.topics.table, self.groups.table
        answers = [
            self.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC),
            self.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"),
            self.peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G"}'),
            self.peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="TOOLS_CONSUMER"),
        ]
        remark = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
        self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, remark)
        self.assertEqual((self.topics.table, self.groups.table), before)


class TableTests(AdminTestCase):
    """Codes 21, 43, 45, 60, 201 and 305."""

    def test_all_topics_with_their_version(self) -> None:
        content = orjson.loads(self.body(RequestCode.GET_ALL_TOPIC_CONFIG))
        self.assertEqual(TopicConfigTable.from_json(content), self.topics.table)
        self.assertEqual(content["dataVersion"], {"counter": 0, "timestamp": NOW_MS})

    def test_all_groups_with_their_version(self) -> None:
        content = orjson.loads(self.body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        self.assertEqual(SubscriptionGroupTable.from_json(content), self.groups.table)
        self.assertEqual(content["dataVersion"], {"counter": 0, "timestamp": NOW_MS})

    def test_a_slave_of_5_3_3_gets_attributes_as_changes_and_only_those_that_it_knows(self) -> None:
        """Its reader drops the whole table at a key without a plus, or one that it does not know."""
        attributes = {"message.type": "FIFO", "reserve.time": "5", "lite.expiration": "7", "queue.type": "no type"}
        self.topics.update(TopicConfig("T", 1, 1, unknown={"attributes": attributes, "later": 1}))
        self.groups.update(SubscriptionGroupConfig("G", unknown={"attributes": attributes, "later": 1}))
        for code, table, name, taken in (
            (
                RequestCode.GET_ALL_TOPIC_CONFIG,
                "topicConfigTable",
                "T",
                {"+message.type": "FIFO", "+reserve.time": "5"},
            ),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable", "G", {}),
        ):
            for version in (399, 476, 477, 479, 480, 481, 515):
                self.peer.line.deliver(frame(RemotingCommand(code, 7, version=version)))
                self.clock.advance(0)
                (answer,) = self.peer.answers()
                content = orjson.loads(answer.body)
                wanted = taken if 477 <= version <= 480 else attributes
                self.assertEqual(content[table][name]["attributes"], wanted, version)
                self.assertEqual((content[table][name]["later"], content["dataVersion"]["counter"]), (1, 1))

    def test_a_table_says_how_many_rows_it_has(self) -> None:
        """A slave of 5.5.0 asks until it has as many."""
        for code, field, rows in (
            (RequestCode.GET_ALL_TOPIC_CONFIG, "totalTopicNum", self.topics.table.rows),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "totalGroupNum", self.groups.table.rows),
        ):
            self.assertEqual(dict(self.peer.ask(code).ext_fields), {field: str(len(rows))})

    def test_all_consumer_offsets_with_a_version_for_5x(self) -> None:
        self.commit("G", "T", 0, 12)
        self.commit("G", "T", 1, 7)
        self.assertEqual(
            self.body(RequestCode.GET_ALL_CONSUMER_OFFSET),
            b'{"dataVersion":{"counter":0,"timestamp":0},"offsetTable":{"T@G":{"0":12,"1":7}}}',
        )

    def test_a_broker_without_consumer_offsets_says_so(self) -> None:
        self.assertEqual(
            self.body(RequestCode.GET_ALL_CONSUMER_OFFSET),
            b'{"dataVersion":{"counter":0,"timestamp":0},"offsetTable":{}}',
        )

    def test_all_delay_offsets(self) -> None:
        self.assertEqual(self.body(RequestCode.GET_ALL_DELAY_OFFSET), b'{"offsetTable":{"1":3,"3":2}}')

    def test_the_timer_check_point_of_an_earlier_5_x_master(self) -> None:
        self.assertEqual(self.peer.ask(RequestCode.GET_TIMER_CHECK_POINT).code, 3)
        point = TimerCheckPoint(1_795_000_000_000, 0, 17, 18)
        point.write(self.folder)
        body = self.body(RequestCode.GET_TIMER_CHECK_POINT)
        self.assertEqual(TimerCheckPoint.parse(body), point)

    def test_system_topics_are_listed(self) -> None:
        topics = orjson.loads(self.body(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
        self.assertEqual(set(topics), self.topics.system_topics)

    def test_one_topic_and_one_group_for_tools_of_5(self) -> None:
        topic = TopicConfig("T", 1, 2)
        self.topics.update(topic)
        self.assertEqual(orjson.loads(self.body(RequestCode.GET_TOPIC_CONFIG, topic="T", lo="true")), topic.to_json())
        group = SubscriptionGroupConfig("G", retry_max_times=3)
        self.groups.update(group)
        self.assertEqual(orjson.loads(self.body(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")), group.to_json())
        for code, fields, expected in (
            (RequestCode.GET_TOPIC_CONFIG, {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
            (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ):
            self.assertEqual(self.peer.ask(code, **fields).code, expected)


class TopicStatsTests(AdminTestCase):
    """Code 202."""

    def test_each_queue_to_write_is_told_as_java_writes_it(self) -> None:
        self.topics.update(TopicConfig("T", 1, 2))
        first, second = self.put(b"1", b"2", queue_id=1)
        self.assertGreaterEqual(second.store_timestamp, first.store_timestamp)
        self.assertEqual(
            self.body(RequestCode.GET_TOPIC_STATS_INFO, topic="T").decode(),
            '{"offsetTable":{'
            '{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
            '{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
            f'{{"lastUpdateTimestamp":{second.store_timestamp},"maxOffset":2,"minOffset":0}}'
            "}}",
        )

    def test_an_unknown_topic_is_not_found(self) -> None:
        answer = self.peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
        self.assert_refused([answer], ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")


class ConsumeStatsTests(AdminTestCase):
    """Code 208."""

    def setUp(self) -> None:
        super().setUp()
        self.topics.update(TopicConfig("T", 2, 1))
        self.topics.update(TopicConfig("U", 1, 1))

    def stats_of(self, group: str, topic: str | None = None) -> Any:
        return loads_lenient(self.body(RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=topic))

    def queues(self, group: str, topic: str | None = None) -> dict[tuple[str, int], tuple[int, int, int]]:
        """Broker's and consumer's offset, and when that was stored, by topic and queue."""
        found = {}
        for key, value in self.stats_of(group, topic)["offsetTable"].items():
            queue = orjson.loads(key)
            self.assertEqual(queue["brokerName"], "broker-a")
            found[queue["topic"], queue["queueId"]] = (
                value["brokerOffset"],
                value["consumerOffset"],
                value["lastTimestamp"],
            )
        return found

    def online(self, group: str, topic: str) -> None:
        """A consumer of the group is there, and subscribes to the topic."""
        processor = ClientManageProcessor(ProducerManager(), self.consumers, self.topics, self.groups, self.clock)
        consumer = self.client(processor.processors())
        consumer.send(RequestCode.HEART_BEAT, {}, (HEARTBEAT_OF_A_CONSUMER % (group, topic)).encode())
        self.assertIn(topic, getattr(self.consumers.get(group), "subscriptions", {}))

    def test_each_queue_to_read_is_told_as_java_writes_it(self) -> None:
        first, _ = self.put(b"1", b"2")
        self.commit("G", "T", 0, 1)
        self.assertEqual(
            self.body(RequestCode.GET_CONSUME_STATS, consumerGroup="G").decode(),
            '{"consumeTps":0.0,"offsetTable":{'
            '{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
            f'{{"brokerOffset":2,"consumerOffset":1,"lastTimestamp":{first.store_timestamp},'
            '"pullOffset":1},'
            '{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
            '{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}'
            "}}",
        )

    def test_a_group_without_offsets_is_nowhere(self) -> None:
        body = self.body(RequestCode.GET_CONSUME_STATS, consumerGroup="G")
        self.assertEqual(body, b'{"consumeTps":0.0,"offsetTable":{}}')

    def test_a_topic_may_be_asked_for_though_the_group_has_no_offset_in_it(self) -> None:
        self.commit("G", "T", 0, 1)
        self.assertEqual(self.queues("G", "U"), {("U", 0): (0, 0, 0)})

    def test_a_topic_that_is_gone_is_passed_over(self) -> None:
        self.commit("G", "gone", 0, 1)
        self.commit("G", "U", 0, 0)
        self.assertEqual(set(self.queues("G")), {("U", 0)})
        self.assertEqual(self.queues("G", "gone"), {})

    def test_of_a_group_that_is_online_only_what_it_subscribes_to_counts(self) -> None:
        for topic in ("T", "U"):
            self.commit("G", topic, 0, 0)
        self.assertEqual(set(self.queues("G")), {("T", 0), ("T", 1), ("U", 0)})
        self.online("G", "U")
        self.assertEqual(set(self.queues("G")), {("U", 0)})

    def test_a_commit_behind_the_end_or_of_what_is_gone_has_no_time(self) -> None:
        self.put(b"1")
        self.commit("G", "T", 0, 100)
        self.assertEqual(self.queues("G")["T", 0], (1, 100, 0))

    def test_how_fast_the_group_is_sums_up_its_topics(self) -> None:
        for topic, count in (("T", 40), ("U", 20)):
            self.commit("G", topic, 0, 0)
            self.stats.messages_got("G", topic, count, 1)
        self.clock.advance(10)
        self.assertEqual(self.stats_of("G")["consumeTps"], 6.0)
        self.assertEqual(self.stats_of("G", "U")["consumeTps"], 2.0)

    def test_who_consumes_a_topic_is_online_or_has_been(self) -> None:
        self.commit("G", "T", 0, 1)
        self.commit("H", "U", 0, 1)
        self.online("I", "T")
        content = orjson.loads(self.body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T"))
        self.assertEqual(content, {"groupList": ["G", "I"]})
        content = orjson.loads(self.body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="V"))
        self.assertEqual(content, {"groupList": []})


class TimeSpanTests(AdminTestCase):
    """Code 303."""

    def spans(self) -> list[dict[str, Any]]:
        content = orjson.loads(self.body(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G"))
        found: list[dict[str, Any]] = content["consumeTimeSpanSet"]
        return found

    def test_what_a_group_has_yet_to_consume_is_as_old_as_its_next_message(self) -> None:
        self.topics.update(TopicConfig("T", 1, 2))
        times = []
        for body in (b"1", b"2", b"3"):
            times += [record.store_timestamp for record in self.put(body)]
            self.clock.advance(30)
        self.commit("G", "T", 0, 2)
        first, second = self.spans()
        self.assertEqual(
            first,
            {
                "consumeTimeStamp": times[1],
                "delayTime": self.wall.now_ms() - times[2],
                "maxTimeStamp": times[2],
                "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
                "minTimeStamp": times[0],
            },
        )
        self.assertEqual(second["messageQueue"]["queueId"], 1)
        times_of_nothing = [second[name] for name in ("consumeTimeStamp", "delayTime", "maxTimeStamp", "minTimeStamp")]
        self.assertEqual(times_of_nothing, [-1, 0, -1, -1])

    def test_a_group_that_has_consumed_nothing_is_at_the_first_message(self) -> None:
        self.topics.update(TopicConfig("T", 1, 1))
        (record,) = self.put(b"1")
        self.clock.advance(30)
        (span,) = self.spans()
        self.assertEqual(span["consumeTimeStamp"], record.store_timestamp)
        self.assertEqual(span["delayTime"], self.wall.now_ms() - record.store_timestamp)

    def test_a_group_that_has_consumed_all_is_not_late(self) -> None:
        self.topics.update(TopicConfig("T", 1, 1))
        self.put(b"1")
        self.commit("G", "T", 0, 1)
        self.clock.advance(30)
        (span,) = self.spans()
        self.assertEqual(span["delayTime"], 0)

    def test_an_unknown_topic_is_not_found(self) -> None:
        answer = self.peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")
        self.assert_refused([answer], ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")


class StatsDataTests(AdminTestCase):
    """Code 315."""

    def test_the_windows_are_told_as_java_writes_them(self) -> None:
        self.stats.messages_put("T", 60, 600)
        self.clock.advance(10)
        body = self.body(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
        self.assertEqual(
            body,
            b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
            b'"statsMinute":{"avgpt":60.0,"sum":60,"tps":6.0}}',
        )

    def test_a_statistic_that_is_not_there_is_refused_as_java_does(self) -> None:
        answer = self.peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
        self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, "The stats <TOPIC_PUT_NUMS> <T> not exist")


class AnyHeaderTests(AdminTestCase):
    """Nothing that a client writes into a header is met with an exception."""

    @settings(max_examples=examples(50))
    @given(any_header(["topic", "consumerGroup", "group", "statsName", "statsKey"]), st.booleans())
    def test_any_header_is_answered(self, fields: dict[str, object], has_topic: bool) -> None:
        if has_topic:
            self.topics.update(TopicConfig("T", 2, 2))
        for code in (
            RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.GET_CONSUME_STATS,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            RequestCode.VIEW_BROKER_STATS_DATA,
        ):
            answer = self.peer.ask(code, **fields)
            expected = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST)
            self.assertIn(answer.code, expected, answer.remark)
        self.assertEqual(self.flushLoggedErrors(), [])
