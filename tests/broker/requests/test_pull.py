"""Pulling messages, from masters and slaves, and waiting for them (spec/remoting.md 2.3)."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import execute
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.requests import pull
from rmqha.broker.requests.pull import CHECK_SECONDS, MAX_HOLD_SECONDS, PullMessageProcessor, PullRequestHoldService
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import ClientChannelInfo, ConsumerData, ConsumerManager
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ALONE_SECONDS, NO_OFFSET, ConsumerOffsetManager
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.remoting.protocol import RemotingProtocol, RequestRefused
from rmqha.remoting.turns import ANSWER_BYTES_PER_TURN
from rmqha.settings.settings import make_settings
from rmqha.store import reading
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.metadata import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from rmqha.store.reading import GetMessageResult
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.heartbeat import MessageModel
from rmqha.wire.javahash import java_hash
from rmqha.wire.record import Record, encode_record
from rmqha.wire.subscription import SubscriptionData
from tests import examples
from tests.acl.granted import Granted
from tests.broker.brokerstore import (
    BrokerStoreTestCase,
    Client,
    SetWallClock,
    any_header,
    bodies_in,
    deleted_topics,
)
from tests.ha.doubles import LineTransport, log_lines

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
PUSH = SUSPEND
LITE_PULL = SUSPEND | SUBSCRIPTION | 16
ADMIN = SUBSCRIPTION
QUEUES = 4
HOLD_SECONDS = 15.0


class CountedReads(BrokerStats):
    """Remembers what was counted."""

    def __init__(self, reads: list[tuple[str, str, int, int]]) -> None:
        super().__init__("C", Clock(), SetWallClock())
        self._reads = reads

    def messages_got(self, group: str, topic: str, count: int, size: int) -> None:
        self._reads.append((group, topic, count, size))


class PullTestCase(BrokerStoreTestCase):
    """Has a store with topic T; ``serve`` answers pulls of it, ``pull`` asks as ``mqadmin queryMsgByOffset`` does."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.serve()

    def serve(self) -> None:
        """Answer pulls of the store that is open."""
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        self.topics.update(TopicConfig("T", read_queue_nums=QUEUES))
        self.groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        self.consumers = ConsumerManager(self.settings, self.groups)
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, 5_000, execute)
        self.held = PullRequestHoldService(self.clock, self.store)
        self.store.subscribe(self.held.message_arrived)
        self.held.startService()
        self.addCleanup(self.held.stopService)
        self.reads: list[tuple[str, str, int, int]] = []
        self.processor = PullMessageProcessor(
            self.store,
            self.settings,
            BrokerTables(self.topics, self.groups, self.offsets),
            self.consumers,
            self.held,
            CountedReads(self.reads),
        )
        self.peer = self.client(self.processor.processors())

    @staticmethod
    def fields(**fields: object) -> dict[str, object]:
        """A pull's header, with other fields if they are given; None leaves one out."""
        return {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": ADMIN,
            "commitOffset": 0,
            "suspendTimeoutMillis": int(HOLD_SECONDS * 1000),
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
            **fields,
        }

    def pull(self, **fields: object) -> RemotingCommand:
        """A pull that is answered at once."""
        return self.peer.ask(RequestCode.PULL_MESSAGE, **self.fields(**fields))

    def heartbeat(self, subscription: SubscriptionData, message_model: MessageModel = MessageModel.CLUSTERING) -> None:
        """A client of group G has said what it wants, on a connection of its own."""
        client = ClientChannelInfo(RemotingProtocol({}, self.clock), "client", "JAVA", 399, self.clock.seconds())
        consumer = ConsumerData("G", message_model=message_model, subscriptions=(subscription,))
        self.consumers.register(client, consumer)

    def hold(self, client: Client | None = None, **fields: object) -> None:
        """A pull that is not answered yet."""
        client = client or self.peer
        client.send(RequestCode.PULL_MESSAGE, self.fields(**{"sysFlag": LITE_PULL, **fields}))
        self.assertEqual(client.answers(), [])

    def answer(self) -> RemotingCommand:
        """What has come of the pull that was held."""
        (answer,) = self.peer.answers()
        return answer

    def assert_found(self, answer: RemotingCommand, records: Iterable[Record], next_begin: int, end: int) -> None:
        """The answer has these records of a queue that begins at 0."""
        self.assertEqual((answer.code, answer.remark), (ResponseCode.SUCCESS, "FOUND"))
        self.assertEqual(answer.body, b"".join(map(encode_record, records)))
        self.assert_header(answer, next_begin, 0, end)

    def assert_header(self, answer: RemotingCommand, next_begin: int, low: int, high: int, broker_id: int = 0) -> None:
        """The answer has exactly the fields of each answer to a pull."""
        names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
        values = (broker_id, next_begin, low, high)
        self.assertEqual(dict(answer.ext_fields), dict(zip(names, map(str, values), strict=True)))

    def assert_nothing(
        self, answer: RemotingCommand, code: int, remark: str, next_begin: int, low: int, high: int, broker_id: int = 0
    ) -> None:
        """The answer has no records, for this reason."""
        self.assertEqual((answer.code, answer.remark, answer.body), (code, remark, b""))
        self.assert_header(answer, next_begin, low, high, broker_id)


class FoundTests(PullTestCase):
    """Messages that are there."""

    def test_the_records_are_those_of_the_log_one_after_another(self) -> None:
        records = self.put(b"1", b"", b"\0" * 100, TAGS="TagA", KEYS="k")
        self.assert_found(self.pull(), records, 3, 3)
        self.assert_found(self.pull(queueOffset=1), records[1:], 3, 3)
        self.assert_found(self.pull(queueOffset=1, maxMsgNums=1), records[1:2], 2, 3)

    def test_each_queue_has_its_own(self) -> None:
        first, second = *self.put(b"1"), *self.put(b"2", queue_id=3)
        self.assert_found(self.pull(), [first], 1, 1)
        self.assert_found(self.pull(queueId=3), [second], 1, 1)

    def test_a_pull_of_5x_by_its_own_name_is_the_same(self) -> None:
        records = self.put(b"1")
        self.assert_found(self.peer.ask(RequestCode.LITE_PULL_MESSAGE, **self.fields()), records, 1, 1)

    def test_only_wanted_messages_are_given_but_all_are_passed(self) -> None:
        for tag in "ABAC":
            self.put(tag.encode(), TAGS=f"Tag{tag}")
        for expression, bodies in {
            "TagA": [b"A", b"A"],
            "TagB || TagC": [b"B", b"C"],
            "*": [b"A", b"B", b"A", b"C"],
            "": [b"A", b"B", b"A", b"C"],
        }.items():
            answer = self.pull(subscription=expression)
            self.assertEqual(bodies_in(answer.body), bodies)
            self.assert_header(answer, 4, 0, 4)
        self.assertEqual(bodies_in(self.pull(subscription=None).body), [b"A", b"B", b"A", b"C"])

    def test_without_a_wanted_message_the_consumer_goes_on_behind_those_looked_at(self) -> None:
        self.put(b"1", b"2", TAGS="TagA")
        for flags in (ADMIN, LITE_PULL):
            answer = self.pull(subscription="TagX", sysFlag=flags)
            self.assert_nothing(answer, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 2, 0, 2)

    def test_a_pull_for_all_there_can_be_looks_at_a_part(self) -> None:
        self.patch(reading, "MIN_UNITS_EXAMINED", 2)
        self.patch(reading, "MAX_UNITS_EXAMINED", 5)
        self.put(*[b"1"] * 7)
        for most, next_begin in ((1, 2), (4, 4), (2**63 - 1, 5)):
            answer = self.pull(subscription="TagX", maxMsgNums=most)
            self.assert_header(answer, next_begin, 0, 7)

    def test_what_was_read_is_told(self) -> None:
        records = self.put(b"1", b"22")
        self.pull()
        self.pull(queueOffset=2)
        size = sum(record.total_size for record in records)
        self.assertEqual(self.reads, [("G", "T", 2, size), ("G", "T", 0, 0)])

    @settings(max_examples=examples(30), deadline=None)
    @given(
        tags=st.lists(st.sampled_from(["", "A", "B", "C"]), min_size=1, max_size=40),
        wanted=st.sets(st.sampled_from("ABC")),
        most=st.integers(-1, 40),
    )
    def test_pulling_on_and_on_gives_each_wanted_message_once(
        self, tags: list[str], wanted: set[str], most: int
    ) -> None:
        begin = self.store.reader.max_offset("T", 0)
        for number, tag in enumerate(tags):
            self.put(b"%d" % number, TAGS=tag)
        expected = [b"%d" % number for number, tag in enumerate(tags) if not wanted or tag in wanted]
        at, bodies = begin, []
        while (answer := self.pull(queueOffset=at, maxMsgNums=most, subscription="||".join(wanted))).code in (0, 20):
            self.assertGreater(int(answer.ext_fields["nextBeginOffset"]), at, "or the consumer would spin")
            at = int(answer.ext_fields["nextBeginOffset"])
            bodies += bodies_in(answer.body)
        self.assertEqual((at, bodies), (begin + len(tags), expected))


class NothingTests(PullTestCase):
    """Offsets where nothing is, on a master: the table of 2.3, step 6."""

    def test_the_queues_end(self) -> None:
        self.put(b"1")
        self.assert_nothing(self.pull(queueOffset=1), ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 1, 0, 1)

    def test_an_empty_queue(self) -> None:
        answer = self.pull(queueOffset=0)
        self.assert_nothing(answer, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
        answer = self.pull(queueOffset=7)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)

    def test_beyond_the_queues_end(self) -> None:
        self.put(b"1")
        self.groups.find_or_create("G")
        with log_lines() as lines:
            answer = self.pull(queueOffset=5)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 1, 0, 1)
        self.assertEqual(lines(), "warn: group G pulls queue 0 of T at 5; it has 0 to 1")

    def test_after_a_reset_consumers_go_on_there(self) -> None:
        self.put(*[b"%d" % number for number in range(9)])
        self.groups.find_or_create("G")
        self.offsets.reset("G", "T", 0, 2, "an operator")
        commits = {"sysFlag": ADMIN | COMMIT}
        answer = self.pull(queueOffset=7, commitOffset=7, **commits)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, "a consumer that drops the queue must not do so twice")
        self.assertEqual(self.offsets.query("G", "T", 0), 2)
        self.clock.advance(ALONE_SECONDS)
        answer = self.pull(queueOffset=7, commitOffset=7, **commits)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", 2, 0, 9)
        self.assertEqual(self.offsets.query("G", "T", 0), 2)
        self.assertEqual(self.pull(queueOffset=2, commitOffset=2, **commits).code, ResponseCode.SUCCESS)
        self.assertEqual(self.pull(queueOffset=7, commitOffset=5, **commits).code, ResponseCode.SUCCESS)
        self.assertEqual(self.offsets.query("G", "T", 0), 5)

    def test_a_consumer_that_outlives_a_deletion_reads_the_new_topic_from_its_start(self) -> None:
        self.put(*[b"%d" % number for number in range(9)])
        self.groups.find_or_create("G")
        self.offsets.commit("G", "T", 0, 9, "client")
        deleting = deleted_topics(self, self.topics, self.offsets).delete("T")
        self.clock.pump([0] * 10)
        self.successResultOf(deleting)
        self.topics.update(TopicConfig("T", read_queue_nums=QUEUES))
        self.put(b"new", b"newer")
        answer = self.pull(queueOffset=9, commitOffset=9, sysFlag=ADMIN | COMMIT)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 0, 0, 2)
        self.assertEqual(self.offsets.query("G", "T", 0), NO_OFFSET, "it commits what it had read before")
        self.pull(queueOffset=2, commitOffset=2, sysFlag=ADMIN | COMMIT)
        self.assertEqual(self.offsets.query("G", "T", 0), 2)
        answer = self.pull(queueOffset=9)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2, 0, 2)

    def test_before_the_queues_begin(self) -> None:
        records = self.put(*[bytes(2_000)] * 100)
        self.store.commit_log.delete_first_segment()
        start = self.store.commit_log.min_offset
        self.store.derived.queues.queues["T", 0].correct_min_offset(start)
        low = sum(record.physical_offset < start for record in records)
        answer = self.pull(queueOffset=low - 1)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low, low, 100)
        answer = self.pull(queueOffset=105)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 100, low, 100)

    def test_messages_that_retention_has_just_deleted(self) -> None:
        records = self.put(*[bytes(2_000)] * 100)
        self.store.commit_log.delete_first_segment()
        gone = sum(record.physical_offset < self.store.commit_log.min_offset for record in records)
        answer = self.pull(queueOffset=0, maxMsgNums=1, subscription="TagX")
        self.assertEqual(answer.code, ResponseCode.PULL_RETRY_IMMEDIATELY)
        self.assertEqual(bodies_in(self.pull(queueOffset=0).body), [bytes(2_000)] * 32)
        self.assertGreater(gone, 0)

    def test_a_disk_that_cannot_be_read(self) -> None:
        self.put(b"1")
        self.groups.find_or_create("G")
        with log_lines() as lines, patch.object(self.store.reader, "get_message", side_effect=OSError(5, "broken")):
            answer = self.pull(sysFlag=LITE_PULL)
        self.assert_refused([answer], ResponseCode.SYSTEM_ERROR, "store getMessage return null")
        self.assertEqual(lines(), "error: a pull of T cannot be read: [Errno 5] broken")


class RefusedTests(PullTestCase):
    """Steps 1 to 5, in their order."""

    def test_a_broker_that_may_not_be_read(self) -> None:
        for permission, code in (("2", ResponseCode.NO_PERMISSION), ("4", ResponseCode.PULL_NOT_FOUND)):
            self.open(brokerPermission=permission)
            self.serve()
            self.assertEqual(self.pull().code, code, permission)

    def test_a_group_that_does_not_exist_and_is_not_made(self) -> None:
        self.open(autoCreateSubscriptionGroup="false")
        self.serve()
        answers = [self.pull(), self.pull(topic="unknown")]
        self.assert_refused(answers, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no subscription group G")
        self.assertEqual(self.pull(consumerGroup="TOOLS_CONSUMER").code, ResponseCode.PULL_NOT_FOUND)

    def test_a_group_that_is_new_is_made(self) -> None:
        self.assertIsNone(self.groups.get("G"))
        self.assertEqual(self.pull().code, ResponseCode.PULL_NOT_FOUND)
        self.assertEqual(self.groups.get("G"), SubscriptionGroupConfig("G"))

    def test_a_group_that_may_not_consume(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G", consume_enable=False))
        self.assert_refused([self.pull(), self.pull(topic="unknown")], ResponseCode.NO_PERMISSION, "group G")

    def test_a_topic_that_does_not_exist(self) -> None:
        self.assert_refused([self.pull(topic="unknown")], ResponseCode.TOPIC_NOT_EXIST, "topic unknown does not exist")
        self.assertIsNone(self.topics.get("unknown"))

    def test_a_topic_that_may_not_be_read(self) -> None:
        self.topics.update(TopicConfig("T", perm=PERM_WRITE))
        self.assert_refused([self.pull()], ResponseCode.NO_PERMISSION, "topic T may not be read from")

    def test_a_queue_that_the_topic_does_not_have(self) -> None:
        answers = [self.pull(queueId=queue_id) for queue_id in (-1, QUEUES, 2**31 - 1)]
        self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, "topic T has 4 queues to read")
        self.assertEqual(self.pull(queueId=QUEUES - 1).code, ResponseCode.PULL_NOT_FOUND)

    def test_an_expression_that_cannot_be_parsed(self) -> None:
        answers = [self.pull(subscription="||"), self.pull(subscription="", expressionType="SQL92")]
        self.assert_refused(answers, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "cannot be parsed")

    def test_an_expression_of_sql(self) -> None:
        self.heartbeat(SubscriptionData("T", "a > 1", 5, expression_type="SQL92"))
        answers = [self.pull(subscription="a > 1", expressionType="SQL92"), self.pull(sysFlag=0, subVersion=5)]
        self.assert_refused(answers, ResponseCode.SYSTEM_ERROR, "does not support consumer to filter message by SQL92")

    def test_a_field_that_lacks_is_named(self) -> None:
        optional = {"subscription", "expressionType"}
        for name in self.fields().keys() - optional:
            self.assert_refused([self.pull(**{name: None})], ResponseCode.SYSTEM_ERROR, f"<{name}>")
        for name in optional:
            self.assertEqual(self.pull(**{name: None}).code, ResponseCode.PULL_NOT_FOUND)

    @settings(max_examples=examples(200), deadline=None)
    @given(st.data())
    def test_whatever_a_pull_says_it_is_answered(self, data: st.DataObject) -> None:
        self.put(b"1")
        fields = {"topic": "T", "consumerGroup": "G", "queueId": 0, "sysFlag": ADMIN, "suspendTimeoutMillis": 0}
        asked = {**self.fields(), **fields, **data.draw(any_header(self.fields()))}
        peer = self.client(self.processor.processors())
        peer.send(RequestCode.PULL_MESSAGE, asked)
        self.assertEqual(len(peer.answers()) + self.held.count, 1)
        self.assertEqual(self.flushLoggedErrors(), [])
        self.clock.pump([MAX_HOLD_SECONDS / 4] * 4)
        self.assertEqual(self.held.count, 0)

    def test_a_refused_pull_commits_nothing_and_is_not_held(self) -> None:
        self.pull(topic="unknown", sysFlag=COMMIT | LITE_PULL, commitOffset=3)
        self.assertEqual((self.offsets.table.offset_table, self.held.count), ({}, 0))


class SubscriptionTests(PullTestCase):
    """Pulls of push consumers: what they want their heartbeats have said."""

    def subscribe(self, expression: str, version: int = 5, topic: str = "T", broadcasting: bool = False) -> None:
        """A heartbeat of group G has come."""
        model = MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING
        self.heartbeat(SubscriptionData(topic, expression, version), model)

    def push(self, **fields: object) -> RemotingCommand:
        """A push consumer's pull, answered at once."""
        return self.pull(**{"sysFlag": 0, "subscription": None, "expressionType": None, "subVersion": 5, **fields})

    def test_the_heartbeats_expression_counts(self) -> None:
        self.put(b"1", TAGS="TagA")
        self.put(b"2", TAGS="TagB")
        self.subscribe("TagB")
        self.assertEqual(bodies_in(self.push().body), [b"2"])
        self.assertEqual(bodies_in(self.push(subscription="TagA").body), [b"2"], "Go always sends one")

    def test_a_group_without_a_heartbeat(self) -> None:
        self.assert_refused([self.push()], ResponseCode.SUBSCRIPTION_NOT_EXIST, "no consumer of group G")

    def test_a_topic_that_the_group_does_not_subscribe_to(self) -> None:
        self.subscribe("*", topic="U")
        self.assert_refused([self.push()], ResponseCode.SUBSCRIPTION_NOT_EXIST, "does not subscribe to T")

    def test_a_subscription_newer_than_the_heartbeat(self) -> None:
        """The tags would be the old ones; the client tries again, and its heartbeat has come by then."""
        self.subscribe("*", version=4)
        self.assert_refused([self.push()], ResponseCode.SUBSCRIPTION_NOT_LATEST, "its heartbeat has not arrived yet")
        self.subscribe("*", version=5)
        self.assertEqual(self.push().code, ResponseCode.PULL_NOT_FOUND)
        self.assertEqual(self.push(subVersion=3).code, ResponseCode.PULL_NOT_FOUND)

    def test_a_group_that_may_not_consume_by_broadcast(self) -> None:
        self.groups.update(SubscriptionGroupConfig("G", consume_broadcast_enable=False))
        self.subscribe("*", broadcasting=True)
        self.assert_refused([self.push()], ResponseCode.NO_PERMISSION, "group G may not consume by broadcast")

    def test_others_may(self) -> None:
        self.subscribe("*", broadcasting=True)
        self.assertEqual(self.push().code, ResponseCode.PULL_NOT_FOUND)

    def test_a_subscription_that_changes_while_the_pull_is_held_counts_then(self) -> None:
        self.subscribe("*")
        self.hold(sysFlag=PUSH, subscription=None, subVersion=5)
        self.subscribe("TagB", version=6)
        self.put(b"1", TAGS="TagA")
        self.assert_nothing(self.answer(), ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 1, 0, 1)


class CommitTests(PullTestCase):
    """Offsets that pulls bring along."""

    def committed(self) -> int:
        return self.offsets.query("G", "T", 0)

    def test_a_pull_commits_whatever_it_finds(self) -> None:
        self.pull(sysFlag=ADMIN | COMMIT, commitOffset=3, queueOffset=100)
        self.assertEqual(self.committed(), 3)

    def test_without_the_bit_nothing_is_committed(self) -> None:
        self.pull(commitOffset=3)
        self.assertEqual(self.committed(), -1)

    def test_a_held_pull_commits_at_once_and_only_once(self) -> None:
        self.hold(sysFlag=LITE_PULL | COMMIT, commitOffset=3)
        self.assertEqual(self.committed(), 3)
        self.offsets.commit("G", "T", 0, 9, "test")
        self.put(b"1")
        self.assertEqual(self.answer().code, ResponseCode.SUCCESS)
        self.assertEqual(self.committed(), 9)

    def test_a_slave_leaves_that_to_its_master(self) -> None:
        self.put(b"1")
        self.copy_to_slave()
        self.serve()
        self.assertEqual(self.pull(sysFlag=ADMIN | COMMIT, commitOffset=1).code, ResponseCode.SUCCESS)
        self.assertEqual(self.committed(), -1)


class SuggestionTests(PullTestCase):
    """suggestWhichBrokerId."""

    def suggested(self, **properties: str) -> str:
        """What a broker so configured advises a group to do that has fallen behind."""
        self.open(**properties)
        self.serve()
        self.groups.update(SubscriptionGroupConfig("G", broker_id=3, which_broker_when_consume_slowly=4))
        self.put(b"1", b"2", b"3")
        return self.pull(maxMsgNums=1).ext_fields["suggestWhichBrokerId"]

    def test_the_master_unless_slaves_may_be_read_from(self) -> None:
        self.assertEqual(self.suggested(accessMessageInMemoryMaxRatio="0"), "0")

    def test_a_slave_begins_to_do_so_earlier(self) -> None:
        """The defaults of accessMessageInMemoryMaxRatio."""
        defaults = make_settings({})
        self.assertEqual((defaults.memory_ratio(is_slave=False), defaults.memory_ratio(is_slave=True)), (40, 30))
        configured = make_settings({"accessMessageInMemoryMaxRatio": "50"})
        self.assertEqual(configured.memory_ratio(is_slave=True), 50)

    def test_the_groups_own_choice_where_slaves_may_be_read_from(self) -> None:
        self.assertEqual(self.suggested(slaveReadEnable="true"), "3")
        self.assertEqual(self.suggested(slaveReadEnable="true", accessMessageInMemoryMaxRatio="0"), "4")


class HoldTests(PullTestCase):
    """Long polling (2.3.1)."""

    def test_a_pull_at_the_queues_end_waits_for_the_next_message(self) -> None:
        self.put(b"1")
        self.hold(queueOffset=1)
        self.assertEqual(self.held.count, 1)
        self.clock.advance(1)
        self.assertEqual(self.peer.answers(), [])
        records = self.put(b"2", b"3")
        answer = self.answer()
        self.assert_found(answer, records, 3, 3)
        self.assertEqual((answer.opaque, self.held.count), (1, 0))

    def test_a_pull_of_a_queue_that_has_never_had_a_message_waits_too(self) -> None:
        self.hold(queueId=2)
        self.put(b"1", queue_id=1)
        self.assertEqual(self.peer.answers(), [])
        records = self.put(b"2", queue_id=2)
        self.assert_found(self.answer(), records, 1, 1)

    def test_an_account_that_lost_its_permission_meanwhile_gets_no_message(self) -> None:
        for reads, code in (
            ({"T", "%RETRY%G"}, ResponseCode.SUCCESS),
            ({"T"}, ResponseCode.NO_PERMISSION),
            ({"%RETRY%G"}, ResponseCode.NO_PERMISSION),
        ):
            self.hold(queueOffset=self.store.reader.max_offset("T", 0))
            self.peer.protocol.rights = Granted(reads=reads)
            self.put(b"secret")
            answer = self.answer()
            self.assertEqual((answer.code, b"secret" in answer.body), (code, code is ResponseCode.SUCCESS))

    def count_reads(self) -> list[tuple[object, ...]]:
        """The reads of the store from now on."""
        reads: list[tuple[object, ...]] = []
        get_message = self.store.reader.get_message

        def counted(*question: Any) -> GetMessageResult:
            reads.append(question)
            return get_message(*question)

        self.patch(self.store.reader, "get_message", counted)
        return reads

    def test_pulls_that_a_message_wakes_share_a_read(self) -> None:
        """Those of the same place in a queue, with the same subscription. Each is counted for its group."""
        self.put(b"1")
        peers = [self.client(self.processor.processors()) for _ in range(6)]
        subscriptions = ("*", "*", "a || b", "a || b", "b", "*")
        for number, (peer, subscription) in enumerate(zip(peers, subscriptions, strict=True)):
            most = 1 if number == 5 else 32
            self.hold(peer, consumerGroup=f"G{number}", queueOffset=1, subscription=subscription, maxMsgNums=most)
        reads = self.count_reads()
        self.reads.clear()
        records = self.put(b"2", TAGS="b")
        for peer in peers:
            (answer,) = peer.answers()
            self.assert_found(answer, records, 2, 2)
        self.assertEqual(len(reads), 4)
        self.assertCountEqual(
            self.reads, [(f"G{number}", "T", 1, len(encode_record(records[0]))) for number in range(6)]
        )

    def test_a_read_is_shared_only_until_the_next_message(self) -> None:
        self.put(b"1", b"2")
        question = "T", 0, 0, 32, None
        reads, shared = self.count_reads(), self.held.reads
        shared.begin()
        self.assertEqual(len(shared.get_message(*question).sizes), 2)
        self.assertIs(shared.get_message(*question), shared.get_message(*question))
        self.assertEqual(len(reads), 1)
        self.put(b"3")
        self.assertEqual(len(shared.get_message(*question).sizes), 3)
        shared.end()
        shared.get_message(*question)
        self.assertEqual(len(reads), 3)

    def test_a_message_is_there_within_milliseconds(self) -> None:
        self.hold()
        before = self.clock.seconds()
        self.put(b"1")
        self.assertEqual(self.answer().code, ResponseCode.SUCCESS)
        self.assertLess(self.clock.seconds() - before, 0.05)

    def test_unwanted_messages_do_not_end_the_wait(self) -> None:
        self.hold(subscription="TagA")
        self.put(b"1", TAGS="TagB")
        self.assertEqual(self.peer.answers(), [])
        (wanted,) = self.put(b"2", TAGS="TagA")
        self.assert_found(self.answer(), [wanted], 2, 2)

    def test_unwanted_messages_are_passed_at_the_next_check(self) -> None:
        self.hold(subscription="TagA")
        self.put(b"1", b"2", TAGS="TagB")
        self.clock.advance(CHECK_SECONDS)
        self.clock.advance(0)
        self.assert_nothing(self.answer(), ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 2, 0, 2)

    def test_when_its_time_is_up_it_is_answered_as_it_would_have_been_at_first(self) -> None:
        self.put(b"1")
        self.hold(queueOffset=1)
        self.clock.advance(HOLD_SECONDS - 0.1)
        self.assertEqual(self.peer.answers(), [])
        self.clock.advance(0.1)
        self.clock.advance(0)
        self.assert_nothing(self.answer(), ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 1, 0, 1)
        self.put(b"2")
        self.assertEqual(self.peer.answers(), [], "once is enough")

    def test_a_client_that_gives_no_time_is_answered_at_once(self) -> None:
        for milliseconds in (0, -1, -(2**63)):
            answer = self.pull(sysFlag=LITE_PULL, suspendTimeoutMillis=milliseconds)
            self.assertEqual(answer.code, ResponseCode.PULL_NOT_FOUND)

    def test_a_client_that_gives_too_much_time_is_not_held_for_ever(self) -> None:
        self.hold(suspendTimeoutMillis=2**63 - 1)
        self.peer.line.protocol.setTimeout(None)  # type: ignore[union-attr]  # it would be idle by then
        self.clock.advance(120)
        self.clock.advance(0)
        self.assertEqual(self.answer().code, ResponseCode.PULL_NOT_FOUND)

    def test_without_the_bit_a_pull_is_answered_at_once(self) -> None:
        self.assertEqual(self.pull(sysFlag=ADMIN).code, ResponseCode.PULL_NOT_FOUND)
        self.assertEqual(self.held.count, 0)

    def test_an_offset_that_was_moved_is_answered_at_once(self) -> None:
        self.assertEqual(self.pull(sysFlag=LITE_PULL, queueOffset=7).code, ResponseCode.PULL_OFFSET_MOVED)

    def test_short_polling_waits_a_second(self) -> None:
        self.open(longPollingEnable="false")
        self.serve()
        self.hold()
        self.clock.advance(0.9)
        self.assertEqual(self.peer.answers(), [])
        self.clock.advance(0.1)
        self.clock.advance(0)
        self.assertEqual(self.answer().code, ResponseCode.PULL_NOT_FOUND)

    def test_several_pulls_of_a_queue_are_all_answered(self) -> None:
        clients = [self.client(self.processor.processors()) for _ in range(3)]
        for client in clients:
            self.hold(client)
            self.hold(client, consumerGroup="H", subscription="TagA")
        records = self.put(b"1")
        for client in clients:
            (answer,) = client.answers()
            self.assert_found(answer, records, 1, 1)
        self.assertEqual(self.held.count, 3)

    def test_what_has_changed_meanwhile_counts(self) -> None:
        self.hold()
        self.groups.update(SubscriptionGroupConfig("G", consume_enable=False))
        self.put(b"1")
        self.assert_refused([self.answer()], ResponseCode.NO_PERMISSION, "group G may not consume")

    def test_pulls_of_a_closed_connection_are_forgotten(self) -> None:
        other = self.client(self.processor.processors())
        for offset in range(3):
            self.hold(queueId=offset)
            self.hold(other, queueId=offset)
        self.peer.line.lose(ConnectionLost())
        self.assertEqual(self.held.count, 3)
        self.reads.clear()
        self.put(b"1")
        self.assertEqual(len(self.reads), 1, "nothing was read for the one that is gone")
        self.assertEqual(len(other.answers()), 1)

    def test_a_connection_that_closes_between_the_message_and_its_answer_costs_no_read(self) -> None:
        self.hold()
        self.reads.clear()
        self.held.message_arrived(DispatchRequest("T", 0, 0, 0, 100, 0, 0, {}), 0)
        self.peer.line.lose(ConnectionLost())
        self.clock.advance(0)
        self.assertEqual((self.reads, self.held.count), ([], 0))

    def test_a_connection_listens_for_its_end_once_however_often_it_waits(self) -> None:
        with patch.object(RemotingProtocol, "on_closed", autospec=True) as on_closed:
            client = self.client(self.processor.processors())
            for number in range(5):
                self.hold(client, queueOffset=number)
                self.put(b"1")
                self.assertEqual(len(client.answers()), 1)
        self.assertEqual(on_closed.call_count, 1)

    def test_queues_made_anew_still_wake(self) -> None:
        """A slave makes them anew when it learns how its master makes its files."""
        self.open("SLAVE")
        self.serve()
        self.hold()
        self.store._reopen_derived()
        content = self.make_content(b"1")
        self.store.commit_log.append_data(0, content)
        self.store.commit_log.verify()
        self.dispatch()
        self.assertEqual(self.answer().body, content)

    def make_content(self, *bodies: bytes) -> bytes:
        """The log of a master that has put these bodies."""
        slave, settings = self.store, self.settings
        self.open()
        content = b"".join(map(encode_record, self.put(*bodies)))
        self.store, self.settings = slave, settings
        return content


class SlaveTests(PullTestCase):
    """What a slave does otherwise (spec/remoting.md 2.3, 5.5)."""

    def become_slave(self, *bodies: bytes, **properties: str) -> list[Record]:
        """A slave of a master that has put these bodies."""
        records = self.put(*bodies)
        self.copy_to_slave(**properties)
        self.serve()
        self.groups.update(SubscriptionGroupConfig("G", broker_id=3, which_broker_when_consume_slowly=4))
        return records

    def test_it_serves_what_it_has(self) -> None:
        for properties in ({}, {"slaveReadEnable": "true"}):
            records = self.become_slave(b"1", b"2", **properties)
            answer = self.pull()
            self.assertEqual((answer.code, answer.body), (ResponseCode.SUCCESS, b"".join(map(encode_record, records))))
            self.open()

    def test_it_advises_to_ask_the_master_unless_slaves_may_be_read_from(self) -> None:
        self.become_slave(b"1", b"2")
        self.assertEqual(self.pull().ext_fields["suggestWhichBrokerId"], "0")
        self.open()
        self.become_slave(b"1", b"2", slaveReadEnable="true")
        self.assertEqual(self.pull().ext_fields["suggestWhichBrokerId"], "3")
        self.open()
        self.become_slave(b"1", b"2", slaveReadEnable="true", accessMessageInMemoryMaxRatio="0")
        self.assertEqual(self.pull(maxMsgNums=1).ext_fields["suggestWhichBrokerId"], "4")

    def test_it_wakes_as_soon_as_the_log_grows(self) -> None:
        first, second = self.put(b"1", b"2")
        self.open("SLAVE")
        self.serve()
        log = self.store.commit_log
        log.append_data(0, encode_record(first))
        log.verify()
        self.dispatch()
        self.hold(queueOffset=1)
        log.append_data(first.total_size, encode_record(second))
        log.verify()
        self.dispatch()
        self.assert_found(self.answer(), [second], 2, 2)

    def test_an_offset_that_it_does_not_have_is_left_as_it_is(self) -> None:
        """Its master may have more; a consumer that was moved back would consume twice (trap 11)."""
        self.become_slave(b"1", b"2")
        answer = self.pull(queueOffset=5)
        retry = ResponseCode.PULL_RETRY_IMMEDIATELY
        self.assert_nothing(answer, retry, "OFFSET_OVERFLOW_BADLY", 5, 0, 2, broker_id=3)
        answer = self.pull(queueOffset=5, queueId=1)
        self.assert_nothing(answer, retry, "NO_MESSAGE_IN_QUEUE", 5, 0, 0, broker_id=3)
        answer = self.pull(queueOffset=-1)
        self.assert_nothing(answer, retry, "OFFSET_TOO_SMALL", -1, 0, 2, broker_id=3)

    def test_a_consumer_that_is_ahead_waits_a_second_rather_than_ask_as_fast_as_it_can(self) -> None:
        self.become_slave(b"1", b"2")
        self.hold(queueOffset=5)
        self.clock.advance(0.9)
        self.assertEqual(self.peer.answers(), [])
        self.clock.advance(0.1)
        self.clock.advance(0)
        answer = self.answer()
        retry = ResponseCode.PULL_RETRY_IMMEDIATELY
        self.assert_nothing(answer, retry, "OFFSET_OVERFLOW_BADLY", 5, 0, 2, broker_id=3)

    def test_offset_check_in_slave_corrects_as_a_master_does(self) -> None:
        self.become_slave(b"1", b"2", offsetCheckInSlave="true")
        answer = self.pull(queueOffset=5)
        self.assert_nothing(answer, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2, 0, 2)


class HoldServiceTests(SynchronousTestCase):
    """The service by itself."""

    QUEUE = ("T", 0)

    def queues(self) -> Any:
        """A store that has only the ends of queues."""
        reader = SimpleNamespace(max_offset=lambda *queue: self.max_offsets[queue])
        return SimpleNamespace(read_limit=None, reader=reader)

    def setUp(self) -> None:
        self.clock = Clock()
        self.max_offsets = {self.QUEUE: 0}
        self.service = PullRequestHoldService(self.clock, self.queues())
        self.connection = RemotingProtocol({}, self.clock)
        LineTransport(self.clock).attach(self.connection)
        self.connection.setTimeout(None)
        self.woken: list[object] = []

    def hold(self, name: object, offset: int = 0, wanted: Callable[[int], bool] | None = None) -> None:
        """Hold a pull; ``woken`` tells its name when it is to be looked at again."""
        held = self.service.hold(self.connection, self.QUEUE, offset, wanted, HOLD_SECONDS)
        held.addCallback(lambda _: self.woken.append(name))

    def arrive(self, offset: int, tags: str = "") -> None:
        """A message has its place in the queue."""
        self.service.message_arrived(DispatchRequest(*self.QUEUE, offset, 0, 100, 0, 0, {}), java_hash(tags))
        self.clock.advance(0)

    def test_only_messages_at_or_behind_the_offset_wake(self) -> None:
        self.hold("0", 0)
        self.hold("1", 1)
        self.arrive(0)
        self.assertEqual(self.woken, ["0"])
        self.arrive(1)
        self.assertEqual(self.woken, ["0", "1"])

    def test_others_have_their_turn_while_many_are_woken(self) -> None:
        pulls = list(range(2 * pull.WOKEN_AT_ONCE + 1))
        for number in pulls:
            self.hold(number)
        self.service.message_arrived(DispatchRequest(*self.QUEUE, 0, 0, 100, 0, 0, {}), 0)
        self.clock.callLater(0, self.woken.append, "another")
        self.clock.advance(0)
        self.assertEqual(self.woken.index("another"), pull.WOKEN_AT_ONCE)
        self.assertCountEqual(self.woken, [*pulls, "another"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_turn_wakes_no_more_pulls_when_it_has_answered_enough(self) -> None:
        """One large message woke 64 pulls in a turn, and each of them read it."""

        def answer(_: None) -> None:
            self.woken.append("large")
            self.connection.turns.answered(ANSWER_BYTES_PER_TURN)

        for _ in range(3):
            self.service.hold(self.connection, self.QUEUE, 0, None, HOLD_SECONDS).addCallback(answer)
        self.service.message_arrived(DispatchRequest(*self.QUEUE, 0, 0, 100, 0, 0, {}), 0)
        self.clock.callLater(0, self.woken.append, "another")
        self.clock.advance(0)
        self.assertEqual(self.woken, ["large", "another", "large", "large"])

    def test_a_turn_wakes_no_more_pulls_when_they_have_taken_long(self) -> None:
        """Their reads wait for the disk if the messages are not in memory."""

        def answer(_: None) -> None:
            self.woken.append("slow")
            self.clock.rightNow += pull.WAKING_SECONDS

        for _ in range(3):
            self.service.hold(self.connection, self.QUEUE, 0, None, HOLD_SECONDS).addCallback(answer)
        self.service.message_arrived(DispatchRequest(*self.QUEUE, 0, 0, 100, 0, 0, {}), 0)
        self.clock.callLater(0, self.woken.append, "another")
        self.clock.advance(0)
        self.assertEqual(self.woken, ["slow", "another", "slow", "slow"])

    def test_no_more_are_held_than_there_is_room_for(self) -> None:
        self.patch(pull, "MAX_HELD_PULLS", 4)
        self.service = PullRequestHoldService(self.clock, self.queues())
        self.hold("1")
        self.hold("2")
        with self.assertRaises(RequestRefused) as refused:
            self.hold("3")
        self.assertEqual(refused.exception.answer.code, ResponseCode.SYSTEM_BUSY)
        own, self.connection = self.connection, RemotingProtocol({}, self.clock)
        LineTransport(self.clock).attach(self.connection)
        self.connection.setTimeout(None)
        self.connection.rights = Granted("another")  # whose pulls are not kept out by those of one
        self.hold("5")
        self.connection = own
        self.arrive(0)
        self.hold("4")
        self.assertEqual(self.service.count, 1)

    def test_the_check_wakes_pulls_whose_queue_has_grown(self) -> None:
        self.service.startService()
        self.hold("0", 0, lambda _: False)
        self.hold("1", 1, lambda _: False)
        self.arrive(0)
        self.max_offsets[self.QUEUE] = 1
        self.clock.advance(CHECK_SECONDS)
        self.clock.advance(0)
        self.assertEqual(self.woken, ["0"])
        self.service.stopService()

    def test_a_stopped_service_leaves_nothing_on_the_clock(self) -> None:
        self.service.startService()
        self.hold("1")
        self.hold("2")
        self.service.message_arrived(DispatchRequest(*self.QUEUE, 0, 0, 100, 0, 0, {}), 0)
        self.hold("3", 1)
        self.service.stopService()
        self.assertEqual((self.clock.getDelayedCalls(), self.service.count), ([], 0))
        self.connection.connectionLost()
        self.assertEqual(self.woken, [])

    def test_a_deadline_and_a_message_at_once_wake_once(self) -> None:
        self.hold("1")
        self.clock.callLater(HOLD_SECONDS, self.arrive, 0)
        self.clock.advance(HOLD_SECONDS)
        self.clock.advance(0)
        self.assertEqual(self.woken, ["1"])
