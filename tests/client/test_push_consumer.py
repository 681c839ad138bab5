"""A push consumer: which queues it takes, how it handles, retries, keeps offsets, stops (spec/remoting.md 8.3, 8.4)."""

import zlib
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from rmqha.client import (
    CacheLimits,
    ClientStopped,
    ConsumerOptions,
    ConsumerState,
    Edge,
    MessageModel,
    MessageQueue,
    NoAnswer,
    OffsetFileError,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StoredSince,
)
from rmqha.client.handling import SEND_BACK_AGAIN_SECONDS
from rmqha.client.locks import RENEW_SECONDS, VALID_SECONDS
from rmqha.client.membership import HEARTBEAT_SECONDS
from rmqha.client.pushconsumer import REBALANCE_SECONDS
from rmqha.kit.steps import at_once
from rmqha.remoting.calls import RemotingError
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.fastjson import dumps_strict
from rmqha.wire.offsettable import reading_offsets
from tests.client.groups import TOPIC, GroupTestCase

GROUP = "G"
NOW_MS = 1_795_000_000_000
FIRST = ConsumerOptions(start=Edge.MIN)
RETRY_TOPIC = f"%RETRY%{GROUP}"


class Handler:
    """Notes what it gets. It holds messages while ``holds``, and fails with those whose tag is ``fail``."""

    def __init__(self) -> None:
        self.got: list[ReceivedMessage] = []
        self.held: list[Deferred[None]] = []
        self.holds = False
        self.failure: Exception = RetryLater()
        self.at_once = self.most_at_once = 0

    def __call__(self, message: ReceivedMessage) -> Deferred[None] | None:
        self.got.append(message)
        if self.holds:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            held: Deferred[None] = Deferred()
            self.held.append(held)
            return held.addBoth(self._over)
        if message.tags == "fail":
            raise self.failure
        return None

    def _over(self, result: Any) -> Any:
        self.at_once -= 1
        return result

    def release(self) -> None:
        """Let all handlers end."""
        while self.held:
            self.held.pop(0).callback(None)

    def places(self) -> list[tuple[int, int]]:
        """The queues and offsets of what came."""
        return [(message.queue.queue_id, message.queue_offset) for message in self.got]


class PushConsumerTestCase(GroupTestCase):
    """A consumer, which the test starts."""

    def setUp(self) -> None:
        super().setUp()
        self.handler = Handler()
        self.consumers: list[PushConsumer] = []

    def stop(self) -> None:
        for consumer in self.consumers:
            self.end(consumer)
        super().stop()

    def make(self, options: ConsumerOptions = FIRST, expression: str = "*", group: str = GROUP) -> PushConsumer:
        consumer = PushConsumer(self.client, group, self.handler, options, now_ms=lambda: NOW_MS)
        consumer.subscribe(TOPIC, expression)
        self.consumers.append(consumer)
        return consumer

    def begin(self, options: ConsumerOptions = FIRST, expression: str = "*") -> PushConsumer:
        consumer = self.make(options, expression)
        starting = consumer.start()
        self.carry()
        self.successResultOf(starting)
        return consumer

    def end(self, consumer: PushConsumer) -> None:
        self.handler.holds = False
        self.handler.release()
        stopping = consumer.stop(grace_seconds=1)
        self.carry()
        self.pass_time(15)
        self.successResultOf(stopping)


class StartTests(PushConsumerTestCase):
    def test_the_heartbeat_says_what_java_says(self) -> None:
        self.begin(expression="A || B")
        (content,) = self.broker.heartbeats[:1]
        self.assertEqual(content["clientID"], self.client.client_id)
        self.assertEqual(content["producerDataSet"], [])
        (consumer,) = content["consumerDataSet"]
        subscriptions = consumer.pop("subscriptionDataSet")
        self.assertEqual(
            consumer,
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": GROUP,
                "messageModel": "CLUSTERING",
                "unitMode": False,
            },
        )
        wanted = [(one["topic"], one["subString"], one["tagsSet"], one["subVersion"]) for one in subscriptions]
        self.assertEqual(wanted, [(TOPIC, "A || B", ["A", "B"], NOW_MS), (RETRY_TOPIC, "*", [], NOW_MS)])

    def test_all_queues_are_consumed_and_each_message_comes_once(self) -> None:
        for queue_id in range(4):
            self.broker.put(queue_id, *"abcdefgh")
        consumer = self.begin()
        self.carry()
        self.assertIs(consumer.state, ConsumerState.RUNNING)
        self.assertEqual(self.queue_ids(consumer.queues), [0, 1, 2, 3])
        self.broker.put(2, "i")
        self.carry()
        self.assertEqual(sorted(self.handler.places()), [(q, n) for q in range(4) for n in range(9 if q == 2 else 8)])

    def test_a_message_has_all_that_an_application_needs(self) -> None:
        self.broker.put(1, "tag", body=zlib.compress(b"hello" * 100), sys_flag=1, properties={"mine": "x"})
        self.begin()
        self.carry()
        (message,) = self.handler.got
        self.assertEqual((message.topic, message.body, message.tags), (TOPIC, b"hello" * 100, "tag"))
        self.assertEqual((message.properties["mine"], message.msg_id), ("x", "T-1-0"))
        self.assertEqual((message.queue, message.reconsume_times), (MessageQueue(TOPIC, "a", 1), 0))

    def test_only_messages_with_the_wanted_tags_come_and_the_others_are_passed(self) -> None:
        self.broker.put(0, "A", "B", "C", "D")
        consumer = self.begin(expression="A || C")
        self.carry()
        self.assertEqual([message.tags for message in self.handler.got], ["A", "C"])
        self.end(consumer)
        self.assertEqual(self.broker.kept[TOPIC, 0], 4)

    def test_a_group_without_an_offset_starts_where_its_options_say(self) -> None:
        self.broker.put(0, *"abcd")
        for start, first in ((Edge.MIN, 0), (Edge.MAX, 4), (StoredSince(2), 2)):
            self.broker.kept.clear()
            consumer = self.begin(ConsumerOptions(start=start))
            self.end(consumer)
            self.assertEqual(self.handler.places(), [(0, offset) for offset in range(first, 4)])
            self.assertEqual(self.broker.kept[TOPIC, 0], 4)
            self.handler.got.clear()

    def test_a_group_with_an_offset_goes_on_there(self) -> None:
        self.broker.put(0, *"abcd")
        self.broker.put(1, "a")
        self.broker.kept.update({(TOPIC, 0): 3, (TOPIC, 1): 0})
        self.begin(ConsumerOptions(start=Edge.MAX))
        self.carry()
        self.assertEqual(self.handler.places(), [(0, 3), (1, 0)])

    def test_a_broker_that_does_not_tell_the_offset_is_asked_again(self) -> None:
        self.broker.put(0, *"abcd")
        self.broker.kept[TOPIC, 0] = 2
        self.broker.refuse[RequestCode.QUERY_CONSUMER_OFFSET] = 2
        self.begin(ConsumerOptions(start=Edge.MAX))
        self.pass_time(3)
        self.assertEqual(self.handler.got, [])
        del self.broker.refuse[RequestCode.QUERY_CONSUMER_OFFSET]
        self.pass_time(5)
        self.assertEqual(self.handler.places(), [(0, 2), (0, 3)])

    def test_without_a_name_server_the_start_fails_and_may_be_tried_again(self) -> None:
        for server in self.name_servers:
            server.is_up = False
        consumer = self.make()
        starting = consumer.start()
        self.pass_time(10)
        self.failureResultOf(starting, NoAnswer)
        for server in self.name_servers:
            server.is_up = True
        self.pass_time(5)
        starting = consumer.start()
        self.pass_time(5)
        self.successResultOf(starting)

    def test_a_topic_that_does_not_exist_yet_is_consumed_when_it_does(self) -> None:
        route = self.routes.pop(TOPIC)
        consumer = self.begin()
        self.assertEqual(consumer.queues, [])
        self.routes[TOPIC] = route
        self.pass_time(REBALANCE_SECONDS + 5)
        self.assertEqual(len(consumer.queues), 4)

    def test_wrong_arguments_are_refused(self) -> None:
        consumer = PushConsumer(self.client, GROUP, self.handler)
        self.assertRaises(ValueError, consumer.start)
        self.assertRaises(ValueError, consumer.subscribe, TOPIC, "||")
        for name in ("", "a b", "x" * 256, "../up"):
            self.assertRaises(ValueError, PushConsumer, self.client, name, self.handler)
        for wrong in (
            {"concurrency": 0},
            {"max_reconsume_times": -1},
            {"persist_seconds": 0},
            {"is_ordered": True, "model": MessageModel.BROADCASTING},
            {"instance": "a/b"},
        ):
            with self.assertRaises(ValueError, msg=str(wrong)):
                ConsumerOptions(**wrong)
        with self.assertRaises(ValueError):
            CacheLimits(bytes=0)

    def test_a_client_has_one_consumer_of_a_group(self) -> None:
        self.begin()
        second = self.make()
        starting = second.start()
        self.carry()
        self.failureResultOf(starting, ValueError)

    def test_it_subscribes_before_its_start_and_starts_once(self) -> None:
        consumer = self.begin()
        self.assertRaises(ClientStopped, consumer.subscribe, "U")
        self.assertRaises(RuntimeError, consumer.start)
        self.end(consumer)
        self.assertRaises(ClientStopped, consumer.start)


class SharingTests(PushConsumerTestCase):
    def test_the_clients_of_a_group_share_the_queues_as_javas_do(self) -> None:
        self.broker.clients = ["0-before-ours", "zzz-after-ours"]
        consumer = self.begin()
        self.assertEqual(self.queue_ids(consumer.queues), [2])

    def test_it_takes_and_leaves_queues_when_the_broker_says_that_clients_changed(self) -> None:
        for queue_id in range(4):
            self.broker.put(queue_id, "a", "b")
        consumer = self.begin()
        self.carry()
        self.broker.clients = ["0-before-ours"]
        self.broker.tell_clients(GROUP)
        self.carry()
        self.assertEqual(self.queue_ids(consumer.queues), [2, 3])
        self.assertEqual(self.broker.kept[TOPIC, 0], 2)  # kept at once, for its next consumer
        self.broker.put(0, "theirs")
        self.broker.put(3, "ours")
        self.carry()
        self.assertEqual([m.tags for m in self.handler.got if m.tags not in "ab"], ["ours"])
        self.broker.clients = []
        self.broker.tell_clients(GROUP)
        self.carry()
        self.assertIn("theirs", [message.tags for message in self.handler.got])

    def test_an_answer_that_fails_leaves_the_queues_as_they_are(self) -> None:
        consumer = self.begin()
        self.broker.refuse[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = 1
        self.broker.clients = ["0-before-ours"]
        self.broker.tell_clients(GROUP)
        self.pass_time(3)
        self.assertEqual(len(consumer.queues), 4)
        self.broker.refuse.clear()
        self.pass_time(2)
        self.assertEqual(len(consumer.queues), 2)

    def test_a_broker_that_comes_back_knows_the_client_at_once_and_messages_go_on(self) -> None:
        self.begin()
        self.server.go_down()
        self.pass_time(5)
        self.broker.heartbeats.clear()
        self.server.is_up = True
        self.broker.put(0, "after")
        asked = len(self.server.asked)
        self.pass_time(15)
        self.assertEqual(self.server.asked[asked].code, RequestCode.HEART_BEAT)
        self.assertEqual([message.tags for message in self.handler.got], ["after"])

    def test_a_client_that_the_broker_forgot_keeps_its_queues_and_says_so(self) -> None:
        consumer = self.begin()
        self.broker.known.clear()
        before = len(self.broker.heartbeats)
        self.pass_time(REBALANCE_SECONDS + 1)
        self.assertEqual(len(consumer.queues), 4)
        self.assertEqual(len(self.broker.heartbeats) - before, 1)

    def test_heartbeats_go_on(self) -> None:
        self.begin()
        before = len(self.broker.heartbeats)
        self.pass_time(2 * HEARTBEAT_SECONDS + 1)
        self.assertEqual(len(self.broker.heartbeats) - before, 2)

    def test_a_queue_whose_log_was_cut_or_deleted_is_read_where_the_broker_says(self) -> None:
        self.broker.first[TOPIC, 0] = 10
        self.broker.put(0, "first")
        self.broker.kept.update({(TOPIC, 0): 4, (TOPIC, 1): 50})
        self.begin()
        self.pass_time(5)
        self.broker.put(1, "new")
        self.pass_time(5)
        self.assertEqual(sorted(self.handler.places()), [(0, 10), (1, 0)])


class ResetTests(PushConsumerTestCase):
    """An operator resets the group's offsets, and asks where it is (requests 220 and 221)."""

    def tell(self, code: int, group: str = GROUP, body: bytes = b"", topic: str = TOPIC) -> RemotingCommand:
        """The answer of the client to a request of the broker."""
        (connection,) = self.broker.known
        asked = connection.call(code, {"topic": topic, "group": group, "timestamp": "0", "isForce": "false"}, body)
        self.carry()
        return self.successResultOf(asked)

    def reset(self, offsets: dict[int, int], **fields: str) -> None:
        rows = [
            {"brokerName": "a", "queueId": queue_id, "topic": TOPIC, "offset": offset}
            for queue_id, offset in offsets.items()
        ]
        self.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body=dumps_strict({"offsetTable": rows}), **fields)

    def test_it_goes_on_at_the_new_offset_of_each_queue(self) -> None:
        for queue_id in range(2):
            self.broker.put(queue_id, *["x"] * 6)
        self.begin()
        self.pass_time(6)  # its offsets are kept
        self.assertEqual(self.broker.kept[TOPIC, 0], 6)
        self.handler.got.clear()
        self.reset({0: 2, 1: 6})
        self.assertEqual(self.broker.kept[TOPIC, 0], 2)
        self.pass_time(2)
        self.assertEqual(sorted(self.handler.places()), [(0, 2), (0, 3), (0, 4), (0, 5)])
        self.pass_time(6)
        self.assertEqual((self.broker.kept[TOPIC, 0], self.broker.kept[TOPIC, 1]), (6, 6))

    def test_messages_that_were_not_handled_are_skipped(self) -> None:
        self.broker.put(0, *["x"] * 6)
        self.handler.holds = True
        self.begin(ConsumerOptions(start=Edge.MIN, concurrency=1))
        self.reset({0: 6})
        self.broker.put(0, "new")
        self.handler.release()
        self.pass_time(2)
        self.handler.release()
        self.assertEqual(self.handler.places(), [(0, 0), (0, 6)])

    def test_the_same_offset_as_before_is_kept_again(self) -> None:
        self.broker.put(0, *["x"] * 6)
        self.broker.kept[TOPIC, 0] = 2
        self.handler.holds = True
        self.begin()
        self.broker.kept[TOPIC, 0] = 5  # another client's late commit
        self.reset({0: 2})
        self.assertEqual(self.broker.kept[TOPIC, 0], 2)

    def test_other_groups_topics_and_queues_stay(self) -> None:
        self.broker.put(0, *["x"] * 6)
        self.begin()
        self.handler.got.clear()
        self.reset({0: 0}, group="GOther")
        self.reset({0: 0}, topic="TOther")
        self.reset({77: 0})
        self.pass_time(8)
        self.assertEqual(self.handler.got, [])
        self.assertEqual(self.broker.kept[TOPIC, 0], 6)

    def test_an_offset_table_that_cannot_be_read_changes_nothing(self) -> None:
        self.broker.put(0, "x")
        self.begin()
        (connection,) = self.broker.known
        asked = connection.call(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": TOPIC, "group": GROUP}, b'{"offsetTable":{{}'
        )
        self.carry()
        self.failureResultOf(asked, RemotingError)
        self.assertEqual(len(self.handler.got), 1)

    def test_it_tells_where_it_is(self) -> None:
        self.broker.put(1, *["x"] * 6)
        self.begin()
        answer = self.tell(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        offsets = at_once(reading_offsets(answer.body, "messageQueueTable"))
        self.assertEqual({queue.queue_id: at for queue, at in offsets.items()}, {0: 0, 1: 6, 2: 0, 3: 0})
        answer = self.tell(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, group="GOther")
        self.assertEqual(answer.body, b'{"messageQueueTable":{}}')


class HandlingTests(PushConsumerTestCase):
    def test_no_more_handlers_run_than_the_options_allow(self) -> None:
        self.handler.holds = True
        for queue_id in range(4):
            self.broker.put(queue_id, *"abc")
        self.begin(ConsumerOptions(start=Edge.MIN, concurrency=5))
        self.carry()
        self.assertEqual(self.handler.at_once, 5)
        while self.handler.held:
            self.handler.release()
            self.carry()
        self.assertEqual((self.handler.most_at_once, len(self.handler.got)), (5, 12))

    def test_cached_messages_and_bytes_have_bounds(self) -> None:
        self.handler.holds = True
        for queue_id in range(4):
            self.broker.put(queue_id, *["x"] * 100)
        some_bytes = 4 * self.broker.queues[TOPIC, 0][0].total_size
        for limits, most in (
            (CacheLimits(messages=20), 20 + 4 * 3),
            (CacheLimits(bytes=some_bytes), 4 * 3 + 4),
            (CacheLimits(messages_of_queue=6), 4 * (6 + 3)),
            (CacheLimits(span=6), 4 * (6 + 3)),
        ):
            self.handler.holds = True
            self.broker.kept.clear()
            consumer = self.begin(ConsumerOptions(start=Edge.MIN, concurrency=1000, cache=limits))
            self.carry()
            self.assertLessEqual(len(self.handler.got), most, limits)
            self.handler.holds = False
            for _ in range(200):
                self.handler.release()
                self.carry()
            self.assertEqual(len(set(self.handler.places())), 400, limits)
            self.end(consumer)
            self.handler.got.clear()

    def test_an_offset_is_kept_only_when_all_before_it_is_done(self) -> None:
        self.handler.holds = True
        self.broker.put(0, *"abc")
        self.begin()
        self.carry()
        for offset, done in ((0, 2), (0, 1), (3, 0)):
            self.handler.held[done].callback(None)
            self.pass_time(6)
            self.assertEqual(self.broker.kept[TOPIC, 0], offset)
        self.handler.held.clear()

    def test_an_offset_that_the_broker_does_not_take_is_kept_later(self) -> None:
        self.broker.put(0, *"abc")
        self.broker.refuse[RequestCode.UPDATE_CONSUMER_OFFSET] = 2
        self.begin()
        self.pass_time(6)
        self.assertEqual(self.broker.kept, {})
        self.broker.refuse.clear()
        self.pass_time(6)
        self.assertEqual(self.broker.kept[TOPIC, 0], 3)


class RetryTests(PushConsumerTestCase):
    def test_a_message_that_fails_is_given_back_to_its_broker(self) -> None:
        self.broker.put(0, "a", "fail", "b")
        self.begin()
        self.pass_time(6)
        self.assertEqual(self.broker.returned, [(1, 0)])
        self.assertEqual(self.broker.kept[TOPIC, 0], 3)

    def test_any_exception_counts_as_a_failure_and_is_logged(self) -> None:
        self.handler.failure = ZeroDivisionError("in the handler")
        self.broker.put(0, "fail")
        self.begin()
        self.carry()
        self.assertEqual(self.broker.returned, [(0, 0)])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_handler_chooses_the_delay_or_the_dead_letters(self) -> None:
        for level in (5, -1):
            self.handler.failure = RetryLater("not now", level)
            self.broker.put(0, "fail")
            if level == 5:
                self.begin()
            self.carry()
        self.assertEqual([level for _, level in self.broker.returned], [5, -1])

    def test_until_a_broker_takes_it_back_its_offset_is_not_passed(self) -> None:
        self.broker.refuse.update({RequestCode.CONSUMER_SEND_MSG_BACK: 2, RequestCode.SEND_MESSAGE_V2: 2})
        self.broker.put(0, "fail", "b")
        self.begin()
        self.pass_time(6)
        self.assertEqual(self.broker.kept[TOPIC, 0], 0)
        self.broker.refuse.clear()
        self.pass_time(SEND_BACK_AGAIN_SECONDS + 6)
        self.assertEqual(self.broker.returned, [(0, 0)])
        self.assertEqual(self.broker.kept[TOPIC, 0], 2)
        self.assertEqual(len(self.handler.got), 2)

    def test_a_copy_goes_to_the_retry_topic_where_its_broker_refuses(self) -> None:
        self.broker.refuse[RequestCode.CONSUMER_SEND_MSG_BACK] = 1
        self.routes[RETRY_TOPIC] = self.routes[TOPIC]
        self.broker.put(0, "fail")
        self.begin(ConsumerOptions(start=Edge.MIN, max_reconsume_times=7))
        self.carry()
        (request,) = self.broker.sent
        self.assertEqual((request.ext_fields["b"], request.ext_fields["j"]), (RETRY_TOPIC, "1"))
        self.assertEqual(request.ext_fields["l"], "7")
        self.assertIn("RETRY_TOPIC\x01T", request.ext_fields["i"])
        self.assertIn("DELAY\x013", request.ext_fields["i"])

    def test_a_message_that_comes_again_has_its_own_topic(self) -> None:
        self.routes[RETRY_TOPIC] = self.routes[TOPIC]
        again = {"RETRY_TOPIC": TOPIC, "UNIQ_KEY": "first"}
        self.broker.put(0, "a", topic=RETRY_TOPIC, properties=again, reconsume_times=2)
        self.begin(ConsumerOptions())
        self.carry()
        (message,) = self.handler.got
        self.assertEqual((message.topic, message.reconsume_times, message.msg_id), (TOPIC, 2, "first"))
        self.assertEqual(message.queue.topic, RETRY_TOPIC)

    def test_a_body_that_cannot_be_read_is_given_back_without_a_call(self) -> None:
        self.broker.put(0, "a", body=b"not zlib", sys_flag=1)
        self.begin()
        self.carry()
        self.assertEqual((self.handler.got, self.broker.returned), ([], [(0, 0)]))


class StopTests(PushConsumerTestCase):
    def test_it_waits_for_its_handlers_keeps_the_offsets_and_leaves(self) -> None:
        self.handler.holds = True
        self.broker.put(0, *"abcdef")
        consumer = self.begin(ConsumerOptions(start=Edge.MIN, concurrency=2))
        self.carry()
        stopping = consumer.stop()
        self.pass_time(5)
        self.assertNoResult(stopping)
        self.assertEqual(len(self.handler.got), 2)
        self.handler.release()
        self.carry()
        self.successResultOf(stopping)
        self.assertIs(consumer.state, ConsumerState.STOPPED)
        self.assertEqual(self.broker.kept[TOPIC, 0], 2)
        left = {"clientID": self.client.client_id, "consumerGroup": GROUP}
        self.assertEqual(self.broker.left, [left])

    def test_what_one_consumer_leaves_the_next_one_gets_and_nothing_twice(self) -> None:
        self.handler.holds = True
        for queue_id in range(4):
            self.broker.put(queue_id, *"abcdefghi")
        for _ in range(3):
            self.handler.holds = True
            consumer = self.begin(ConsumerOptions(start=Edge.MIN, concurrency=3))
            for _ in range(3):
                self.handler.release()
                self.carry()
            self.end(consumer)
        self.handler.holds = False
        self.begin()
        self.carry()
        self.assertEqual(sorted(self.handler.places()), [(q, n) for q in range(4) for n in range(9)])

    def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(self) -> None:
        self.handler.holds = True
        self.broker.put(0, "a", "b")
        consumer = self.begin()
        self.carry()
        self.handler.held.pop(0).callback(None)
        stopping = consumer.stop(grace_seconds=10)
        self.pass_time(9)
        self.assertNoResult(stopping)
        self.pass_time(2)
        self.successResultOf(stopping)
        self.assertEqual(self.broker.kept[TOPIC, 0], 1)
        self.assertEqual(self.broker.returned, [])
        self.handler.held.clear()

    def test_a_stop_while_it_starts_ends_the_start(self) -> None:
        self.server.is_mute = True
        consumer = self.make()
        starting = consumer.start()
        self.carry()
        stopping = consumer.stop()
        self.pass_time(5)
        self.successResultOf(stopping)
        self.failureResultOf(starting, ClientStopped)
        self.assertIs(consumer.state, ConsumerState.STOPPED)

    def test_it_stops_though_the_broker_is_gone(self) -> None:
        consumer = self.begin()
        self.server.go_down()
        stopping = consumer.stop()
        self.pass_time(30)
        self.successResultOf(stopping)

    def test_a_consumer_that_never_started_is_stopped_at_once(self) -> None:
        consumer = self.make()
        self.successResultOf(consumer.stop())
        self.assertIs(consumer.state, ConsumerState.STOPPED)


class OrderedTests(PushConsumerTestCase):
    options = ConsumerOptions(start=Edge.MIN, is_ordered=True, max_reconsume_times=2)

    def test_each_queue_has_one_handler_at_a_time_and_keeps_its_order(self) -> None:
        self.handler.holds = True
        for queue_id in range(4):
            self.broker.put(queue_id, *"abcde")
        self.begin(self.options)
        self.carry()
        while self.handler.held:
            self.assertEqual(self.handler.at_once, len(self.handler.held))
            self.assertLessEqual(self.handler.at_once, 4)
            self.handler.release()
            self.carry()
        for queue_id in range(4):
            self.assertEqual([n for q, n in self.handler.places() if q == queue_id], list(range(5)))

    def test_queues_that_another_client_has_are_taken_when_it_leaves_them(self) -> None:
        other = MessageQueue(TOPIC, "a", 2)
        self.broker.locks[other] = "another client"
        consumer = self.begin(self.options)
        self.carry()
        self.assertEqual(self.queue_ids(consumer.queues), [0, 1, 3])
        del self.broker.locks[other]
        self.pass_time(3)
        self.assertEqual(self.queue_ids(consumer.queues), [0, 1, 2, 3])
        self.end(consumer)
        self.assertEqual(self.broker.locks, {})

    def test_a_message_that_fails_holds_its_queue_until_it_is_dead(self) -> None:
        self.broker.put(0, "a", "fail", "b")
        self.begin(self.options)
        self.pass_time(1.5)
        self.assertEqual([(m.tags, m.reconsume_times) for m in self.handler.got], [("a", 0), ("fail", 0), ("fail", 1)])
        self.pass_time(6)
        tries = [(m.tags, m.reconsume_times) for m in self.handler.got]
        self.assertEqual(tries, [("a", 0), ("fail", 0), ("fail", 1), ("fail", 2), ("b", 0)])
        self.assertEqual(self.broker.returned, [(1, -1)])
        self.assertEqual(self.broker.kept[TOPIC, 0], 3)

    def test_without_a_renewed_lock_no_message_is_handled(self) -> None:
        self.begin(self.options)
        self.broker.refuse[RequestCode.LOCK_BATCH_MQ] = 1
        self.pass_time(VALID_SECONDS + 1)
        self.broker.put(0, "a")
        self.carry()
        self.assertEqual(self.handler.got, [])
        self.broker.refuse.clear()
        self.pass_time(RENEW_SECONDS + 1)
        self.assertEqual(self.handler.places(), [(0, 0)])

    def test_a_queue_whose_lock_is_lost_is_left_and_what_waits_is_the_others(self) -> None:
        self.handler.holds = True
        self.broker.put(0, "a", "b")
        consumer = self.begin(self.options)
        self.carry()
        self.broker.locks[MessageQueue(TOPIC, "a", 0)] = "another client"
        self.pass_time(RENEW_SECONDS + 1)
        self.assertEqual(self.queue_ids(consumer.queues), [1, 2, 3])
        self.handler.release()
        self.carry()
        self.assertEqual(self.handler.places(), [(0, 0)])

    def test_a_queue_that_goes_to_another_client_is_unlocked_after_its_handler(self) -> None:
        self.handler.holds = True
        self.broker.put(0, "a", "b")
        self.begin(self.options)
        self.carry()
        self.broker.clients = ["0-before-ours"]
        self.broker.tell_clients(GROUP)
        self.pass_time(2)
        queue = MessageQueue(TOPIC, "a", 0)
        self.assertEqual(self.broker.locks[queue], self.client.client_id)
        self.handler.release()
        self.pass_time(2)
        self.assertEqual(self.handler.places(), [(0, 0)])
        self.assertEqual(self.broker.kept[TOPIC, 0], 1)
        self.assertNotIn(queue, self.broker.locks)


class BroadcastTests(PushConsumerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.mktemp())
        self.options = ConsumerOptions(
            start=Edge.MIN, model=MessageModel.BROADCASTING, offset_folder=self.folder, instance="one"
        )
        self.file = self.folder / f"{GROUP}@one.json"

    def test_it_has_all_queues_and_keeps_its_offsets_in_a_file(self) -> None:
        self.broker.clients = ["0-before-ours"]
        self.broker.put(0, "a", "fail", "b")
        consumer = self.begin(self.options)
        self.carry()
        self.assertEqual(len(consumer.queues), 4)
        self.end(consumer)
        self.assertEqual((self.broker.kept, self.broker.returned), ({}, []))
        self.broker.put(0, "c")
        self.begin(self.options)
        self.carry()
        self.assertEqual([message.tags for message in self.handler.got], ["a", "fail", "b", "c"])
        (consumer_data,) = self.broker.heartbeats[0]["consumerDataSet"]
        self.assertEqual(consumer_data["messageModel"], "BROADCASTING")
        self.assertEqual([one["topic"] for one in consumer_data["subscriptionDataSet"]], [TOPIC])

    def test_a_file_that_cannot_be_read_is_an_error_and_stays_as_it_is(self) -> None:
        self.folder.mkdir(parents=True)
        for content in (b"{", b"[]", b'{"offsets":[{"topic":"T"}]}', b'{"offsets":5}'):
            self.file.write_bytes(content)
            starting = self.make(self.options).start()
            self.carry()
            self.assertIn(str(self.file), str(self.failureResultOf(starting, OffsetFileError).value))
            self.assertEqual(self.file.read_bytes(), content)

    def test_two_consumers_do_not_use_one_file(self) -> None:
        self.begin(self.options)
        starting = self.make(self.options, group=GROUP).start()
        self.carry()
        self.failureResultOf(starting, OffsetFileError)
