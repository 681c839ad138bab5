"""Offsets of consumers and of queues (spec/remoting.md 2.4, 2.5)."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute
from twisted.python.failure import Failure

from rmqha.broker.tables.clients import ConsumerManager
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import V5_0_0, ConsumerOffsetManager, OffsetLimits, OffsetProcessors
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.steps import at_once
from rmqha.kit.threads import RunInThread
from rmqha.remoting.protocol import RequestRefused
from rmqha.store.metadata import ConsumerOffsetTable
from rmqha.wire.command import ONEWAY_FLAG, OUR_VERSION, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_strict
from tests import examples
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, SetWallClock, any_header, deleted_topics
from tests.ha.doubles import PEER_NAME, log_lines
from tests.remoting.test_protocol import frame

INTERVAL_MS = 5_000
QUEUE_0 = {"topic": "T", "queueId": 0}
ALL_CODES = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)


class OffsetsTestCase(BrokerStoreTestCase):
    """Has a store and its consumer offsets, which ``serve`` reads."""

    def serve(self, run_in_thread: RunInThread = execute) -> None:
        """Answer requests about the store that is open."""
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, INTERVAL_MS, run_in_thread)
        groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        self.consumers = ConsumerManager(self.settings, groups)
        self.peer = self.client(OffsetProcessors(self.store, self.offsets, self.consumers).processors())

    def commit(self, offset: int, queue_id: int = 0, group: str = "G") -> None:
        """A consumer commits."""
        fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
        self.assert_answer(self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields), ResponseCode.SUCCESS, {})

    def query(self, queue_id: int = 0, group: str = "G") -> RemotingCommand:
        """A consumer asks where to go on."""
        fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id}
        return self.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)

    def written(self) -> dict[str, dict[int, int]]:
        """The offsets on disk."""
        return ConsumerOffsetTable.read(self.folder).offset_table


class ConsumerOffsetTests(OffsetsTestCase):
    """Codes 14 and 15."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.serve()

    def test_what_was_committed_is_answered(self) -> None:
        self.commit(7)
        self.commit(9, queue_id=1)
        self.commit(11, group="H")
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 7})
        self.assert_answer(self.query(queue_id=1), ResponseCode.SUCCESS, {"offset": 9})
        self.assert_answer(self.query(group="H"), ResponseCode.SUCCESS, {"offset": 11})

    def test_a_smaller_offset_counts_but_is_logged(self) -> None:
        self.commit(7)
        with log_lines() as lines:
            self.commit(7)
            self.commit(8)
        self.assertEqual(lines(), "")
        with log_lines() as lines:
            self.commit(3)
        self.assertEqual(lines(), f"warn: {PEER_NAME} moves group G back in queue 0 of T, from 8 to 3")
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 3})

    def test_commits_are_mostly_one_way(self) -> None:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "5"}
        self.peer.line.deliver(
            frame(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, flag=ONEWAY_FLAG, ext_fields=fields))
        )
        self.assertEqual(self.peer.answers(), [])
        self.assertEqual(self.offsets.query("G", "T", 0), 5)

    def test_what_was_read_before_a_deletion_is_not_committed_after_it(self) -> None:
        self.put(b"1", b"2", b"3")
        topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        deleting = deleted_topics(self, topics, self.offsets).delete("T")
        self.clock.pump([0] * 10)
        self.successResultOf(deleting)
        late = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 3}
        for end in (0, 1, 2):
            refusal = self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **late)
            words = f"queue 0 of T began again when the topic was deleted, and ends at {end}: 3 is an offset of before"
            self.assert_refused([refusal], ResponseCode.SYSTEM_ERROR, words)
            self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 0})
            self.put(b"new")
        self.commit(3)
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 3})

    def test_a_new_group_begins_a_young_topic_at_0(self) -> None:
        """Or it would miss the topic's first messages (trap 10)."""
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 0})
        self.put(b"1", b"2")
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 0})

    def test_a_client_of_5_x_may_ask_not_to_be_told_0(self) -> None:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "setZeroIfNotFound": "false"}
        refusal = self.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        self.assert_refused([refusal], ResponseCode.QUERY_NOT_FOUND, "group G has no offset in queue 0 of T")
        fields["setZeroIfNotFound"] = "true"
        self.assert_answer(
            self.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields), ResponseCode.SUCCESS, {"offset": 0}
        )

    def test_a_new_group_may_choose_where_to_begin_a_queue_that_lost_its_first_messages(self) -> None:
        records = self.put(*[bytes(2_000)] * 100)
        self.store.commit_log.delete_first_segment()
        self.store.derived.queues.queues["T", 0].correct_min_offset(self.store.commit_log.min_offset)
        gone = sum(record.physical_offset < self.store.commit_log.min_offset for record in records)
        self.assert_answer(self.peer.ask(RequestCode.GET_MIN_OFFSET, **QUEUE_0), ResponseCode.SUCCESS, {"offset": gone})
        self.assert_refused([self.query()], ResponseCode.QUERY_NOT_FOUND, "group G has no offset in queue 0 of T")
        self.commit(50)
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 50})

    def test_a_field_that_lacks_or_is_no_number_is_named(self) -> None:
        whole = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1, "timestamp": 1}
        needs: dict[int, tuple[str, ...]] = dict.fromkeys(ALL_CODES, ("topic", "queueId"))
        needs[RequestCode.QUERY_CONSUMER_OFFSET] += ("consumerGroup",)
        needs[RequestCode.UPDATE_CONSUMER_OFFSET] += ("consumerGroup", "commitOffset")
        needs[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] += ("timestamp",)
        for code, names in needs.items():
            for name in names:
                without = [self.peer.ask(code, **{**whole, name: None})]
                if isinstance(whole[name], int):
                    without.append(self.peer.ask(code, **{**whole, name: "many"}))
                self.assert_refused(without, ResponseCode.SYSTEM_ERROR, f"<{name}>")
        self.assertEqual(self.offsets.table.offset_table, {})

    @settings(max_examples=examples(200), deadline=None)
    @given(
        code=st.sampled_from(ALL_CODES),
        fields=any_header(["consumerGroup", "topic", "queueId", "commitOffset", "timestamp"]),
    )
    @pytest.mark.long
    def test_whatever_a_request_says_it_is_answered(self, code: int, fields: dict[str, object]) -> None:
        self.put(b"1")
        answer = self.peer.ask(code, **fields)
        refused = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        self.assertIn(answer.code, (ResponseCode.SUCCESS, *refused, ResponseCode.QUERY_NOT_FOUND))
        self.assertEqual(self.flushLoggedErrors(), [])
        self.successResultOf(self.offsets.stopService())
        self.assertEqual(self.written(), self.offsets.table.offset_table, "whatever was committed can be read again")

    def test_queue_ids_that_java_cannot_hold_do_not_spoil_the_table(self) -> None:
        fields = {"consumerGroup": "G", "topic": "T", "commitOffset": 1}
        refused = [
            self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, queueId=queue_id, **fields)
            for queue_id in (2**31, -(2**31) - 1, 2**62)
        ]
        self.assert_refused(refused, ResponseCode.SYSTEM_ERROR, "<queueId>")
        self.commit(1, queue_id=2**31 - 1)
        self.successResultOf(self.offsets.stopService())
        self.assertEqual(self.written(), {"T@G": {2**31 - 1: 1}})


class HostileCommitTests(OffsetsTestCase):
    """Offsets that a stranger commits (code 15)."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.serve()

    def test_names_that_nothing_can_have_are_refused(self) -> None:
        """64 names of 250 kB made a table that fits no frame: no slave could take it over any more."""
        for group, topic in (("x" * 250_000, "T"), ("G", "x" * 250_000), ("../g", "T"), ("G", "\x1b[2J"), ("", "T")):
            fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1}
            answer = self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
            self.assertNotEqual(answer.code, ResponseCode.SUCCESS, (group[:10], topic[:10]))
        self.assertEqual(self.offsets.table.offset_table, {})

    def test_a_group_that_is_in_the_table_goes_on_whatever_its_name_is(self) -> None:
        self.offsets.merge(ConsumerOffsetTable({"T@old group": {0: 1}}))
        self.commit(5, group="old group")
        self.assertEqual(self.offsets.query("old group", "T", 0), 5)

    @pytest.mark.long
    def test_the_table_always_fits_a_frame(self) -> None:
        self.offsets = ConsumerOffsetManager(
            self.folder, self.clock, INTERVAL_MS, execute, limits=OffsetLimits(table_bytes=100_000)
        )
        self.peer = self.client(OffsetProcessors(self.store, self.offsets, self.consumers).processors())
        last = 2**63 - 1
        answers = []
        for number in range(3000):
            fields = {"consumerGroup": f"{number % 500}".rjust(255, "g"), "topic": "t" * 127, "commitOffset": last}
            answers.append(self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, queueId=2**31 - 1 - number, **fields))
        self.assertEqual({answer.code for answer in answers}, {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY})
        encoded = len(dumps_strict(self.offsets.table.to_json()))
        self.assertTrue(50_000 < encoded <= 100_000, encoded)

    def test_a_group_that_is_deleted_leaves_its_room(self) -> None:
        self.offsets = ConsumerOffsetManager(
            self.folder, self.clock, INTERVAL_MS, execute, limits=OffsetLimits(table_bytes=100)
        )
        for _ in range(10):
            self.offsets.commit("G", "T", 0, 1, "client")
            self.offsets.commit("G", "T", 1, 1, "client")
            self.assertRaises(RequestRefused, self.offsets.commit, "G", "T", 2, 1, "client")
            at_once(self.offsets.removing("G"))


class InDiskTests(OffsetsTestCase):
    """A message that may have left memory."""

    def test_a_new_group_may_choose_where_to_begin_a_queue_whose_first_message_is_old(self) -> None:
        self.open(accessMessageInMemoryMaxRatio="0")
        self.serve()
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 0})
        self.put(b"1")
        self.assert_refused([self.query()], ResponseCode.QUERY_NOT_FOUND, "no offset")
        self.assert_answer(self.query(queue_id=1), ResponseCode.SUCCESS, {"offset": 0})


class QueueOffsetTests(OffsetsTestCase):
    """Codes 29 to 32."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.serve()

    def test_an_unknown_queue_is_no_error(self) -> None:
        for topic in ("T", "unknown"):
            queue = {"topic": topic, "queueId": 3}
            for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
                self.assert_answer(self.peer.ask(code, **queue), ResponseCode.SUCCESS, {"offset": 0})
            answer = self.peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, **queue)
            self.assert_answer(answer, ResponseCode.SUCCESS, {"offset": 0})
            answer = self.peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
            self.assert_answer(answer, ResponseCode.SUCCESS, {"timestamp": -1})

    def test_a_queues_ends_and_times(self) -> None:
        times = []
        for body in (b"1", b"2", b"3"):
            times += [record.store_timestamp for record in self.put(body)]
            self.clock.advance(10)
        self.assertLess(times[0] + 10_000, times[1])
        self.assert_answer(self.peer.ask(RequestCode.GET_MAX_OFFSET, **QUEUE_0), ResponseCode.SUCCESS, {"offset": 3})
        self.assert_answer(self.peer.ask(RequestCode.GET_MIN_OFFSET, **QUEUE_0), ResponseCode.SUCCESS, {"offset": 0})
        earliest = self.peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **QUEUE_0)
        self.assert_answer(earliest, ResponseCode.SUCCESS, {"timestamp": times[0]})
        self.assertGreaterEqual(times[0], NOW_MS)
        for timestamp, offset in (
            (0, 0),
            (times[0] + 1_000, 0),
            (times[1] - 1_000, 1),
            (times[1], 1),
            (times[1] + 1_000, 1),
            (times[2], 2),
            (2**63 - 1, 2),
        ):
            answer = self.peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=timestamp, **QUEUE_0)
            self.assert_answer(answer, ResponseCode.SUCCESS, {"offset": offset})

    def test_a_search_by_time_is_that_of_the_clients_release(self) -> None:
        first = self.put(b"1")[0].store_timestamp
        self.clock.advance(10)
        self.put(b"2")
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        fields = {**QUEUE_0, "timestamp": first + 1}
        for version, boundary, offset in (
            (OUR_VERSION, {}, 0),
            (V5_0_0, {}, 1),
            *((version, {"boundaryType": name}, 1) for version in (OUR_VERSION, V5_0_0) for name in ("LOWER", "lower")),
            *((version, {"boundaryType": name}, 0) for version in (OUR_VERSION, V5_0_0) for name in ("UPPER", "upper")),
        ):
            self.peer.version = version
            self.assert_answer(self.peer.ask(code, **fields, **boundary), ResponseCode.SUCCESS, {"offset": offset})
        answer = self.peer.ask(code, **fields, boundaryType="NEAREST")
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertIn("boundaryType", answer.remark)

    def test_a_slave_answers_from_its_own_copy(self) -> None:
        self.put(b"1", b"2")
        self.copy_to_slave()
        self.serve()
        self.assert_answer(self.peer.ask(RequestCode.GET_MAX_OFFSET, **QUEUE_0), ResponseCode.SUCCESS, {"offset": 2})
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 0})
        self.commit(2)
        self.assert_answer(self.query(), ResponseCode.SUCCESS, {"offset": 2})


class PersistenceTests(OffsetsTestCase):
    """consumerOffset.json."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.serve()

    def test_offsets_are_written_now_and_then_and_at_the_end(self) -> None:
        self.offsets.startService()
        self.commit(1)
        self.clock.advance(INTERVAL_MS / 1000 - 0.1)
        self.assertEqual(self.written(), {})
        self.clock.advance(0.1)
        self.assertEqual(self.written(), {"T@G": {0: 1}})
        self.commit(2, queue_id=1)
        self.successResultOf(self.offsets.stopService())
        self.assertEqual(self.written(), {"T@G": {0: 1, 1: 2}})
        self.commit(3, queue_id=2)
        self.clock.advance(2 * INTERVAL_MS / 1000)
        self.assertEqual(self.written(), {"T@G": {0: 1, 1: 2}}, "it has stopped")
        self.serve()
        self.assert_answer(self.query(queue_id=1), ResponseCode.SUCCESS, {"offset": 2})

    def test_nothing_is_written_while_nothing_changes(self) -> None:
        runs: list[Callable[[], None]] = []

        def run(function: Callable[[], None]) -> Deferred[None]:
            runs.append(function)
            return execute(function)

        self.serve(run)
        self.offsets.startService()
        self.commit(1)
        self.clock.pump([INTERVAL_MS / 1000] * 3)
        self.commit(1)
        self.clock.pump([INTERVAL_MS / 1000] * 3)
        self.assertEqual(len(runs), 1)
        self.commit(2)
        self.clock.pump([INTERVAL_MS / 1000] * 3)
        self.assertEqual(len(runs), 2)
        self.successResultOf(self.offsets.stopService())
        self.assertEqual(len(runs), 2)

    def test_writing_elsewhere_sees_the_offsets_of_its_moment_and_the_end_waits_for_it(self) -> None:
        waiting: list[tuple[Callable[[], None], Deferred[None]]] = []

        def run(function: Callable[[], None]) -> Deferred[None]:
            waiting.append((function, Deferred()))
            return waiting[-1][1]

        def go_on() -> None:
            function, ended = waiting.pop()
            function()
            ended.callback(None)

        self.serve(run)
        self.offsets.startService()
        self.commit(1)
        self.clock.advance(INTERVAL_MS / 1000)
        self.commit(2)
        self.clock.advance(INTERVAL_MS / 1000)
        self.assertEqual(len(waiting), 1, "one after the other: both write the same file")
        stopped = self.offsets.stopService()
        go_on()
        self.assertEqual(self.written(), {"T@G": {0: 1}})
        self.assertNoResult(stopped)
        go_on()
        self.successResultOf(stopped)
        self.assertEqual(self.written(), {"T@G": {0: 2}})

    def test_a_disk_that_refuses_is_told_of_and_tried_again(self) -> None:
        refusing = True

        def run(function: Callable[[], None]) -> Deferred[None]:
            if refusing:
                failed: Deferred[None] = Deferred()
                failed.errback(Failure(OSError(28, "no room")))
                return failed
            return execute(function)

        self.serve(run)
        self.offsets.startService()
        self.commit(1)
        with log_lines() as lines:
            self.clock.pump([INTERVAL_MS / 1000] * 3)
        self.assertEqual(lines(), "error: consumer offsets are not written: [Errno 28] no room", "once")
        refusing = False
        self.clock.advance(INTERVAL_MS / 1000)
        self.assertEqual(self.written(), {"T@G": {0: 1}})
        self.successResultOf(self.offsets.stopService())


class MergeTests(OffsetsTestCase):
    """A slave takes its master's table over (spec/remoting.md 9.1)."""

    def setUp(self) -> None:
        super().setUp()
        self.open("SLAVE")
        self.serve()

    def merge(self, table: dict[str, dict[int, int]]) -> str:
        """The master's table has come; what was logged."""
        with log_lines() as lines:
            self.offsets.merge(ConsumerOffsetTable(table))
        return lines()

    def test_all_offsets_of_a_topics_group_are_replaced_and_others_stay(self) -> None:
        self.assertEqual(self.merge({"T@G": {0: 5, 1: 6}, "T@H": {0: 1}}), "")
        self.assertEqual(self.merge({"T@G": {0: 7, 1: 6, 2: 1}, "U@G": {0: 3}}), "")
        self.assertEqual(self.offsets.table.offset_table, {"T@G": {0: 7, 1: 6, 2: 1}, "T@H": {0: 1}, "U@G": {0: 3}})
        self.successResultOf(self.offsets.stopService())
        self.assertEqual(self.written(), self.offsets.table.offset_table)

    def test_the_masters_offsets_count_but_moving_back_is_logged(self) -> None:
        self.commit(5)
        self.commit(6, queue_id=1)
        self.commit(7, queue_id=2)
        self.assertEqual(
            self.merge({"T@G": {0: 5, 1: 4}}),
            "warn: the master's offsets move T@G back: queue 1 from 6 to 4, queue 2 from 7 to none",
        )
        self.assertEqual(self.offsets.table.offset_table, {"T@G": {0: 5, 1: 4}})
        self.assertEqual(self.merge({"T@G": {0: 5, 1: 4}}), "")

    def test_what_is_taken_over_is_not_the_masters_table_itself(self) -> None:
        table = {"T@G": {0: 5}}
        self.merge(table)
        self.commit(6)
        self.assertEqual(table, {"T@G": {0: 5}})
