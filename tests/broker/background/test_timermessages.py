"""Timer messages of 5.x come to their topics at their time, once, and none is lost, whatever stops the broker."""

import sqlite3
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import succeed

from rmqha.broker.background.held import Held
from rmqha.broker.background.schedule import DELAY_FOR_A_PERIOD_SECONDS
from rmqha.broker.background.timerindex import TimerIndex
from rmqha.broker.background.timermessages import HOUR_MS, TimerMessageService
from rmqha.kit.steps import at_once
from rmqha.remoting.turns import Turns
from rmqha.store.deletions import DeletedTopicTable, Deletion
from rmqha.store.message import Message, PutMessageResult, PutMessageStatus
from rmqha.store.timers import MESSAGES_A_STEP, TimerCheckPoint
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record, decode_record
from rmqha.wire.timers import TIMER_TOPIC
from tests import examples
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase
from tests.ha.doubles import log_lines

HOUR = HOUR_MS / 1000
DAY = 24 * HOUR


class TimerMessagesTestCase(BrokerStoreTestCase):
    """``send`` puts a timer message, ``arrived`` are the bodies in topic T."""

    def setUp(self) -> None:
        super().setUp()
        self.begin()

    def begin(self, role: str = "ASYNC_MASTER", **properties: str) -> None:
        """Begin anew with a store with these settings."""
        self.open(role, **properties)
        self.service = self.serve()
        self.addCleanup(lambda: self.service.stopService())

    def serve(self) -> TimerMessageService:
        """Start to deliver, as a start of the broker does."""
        self.service = TimerMessageService(self.store, self.settings, self.clock, self.wall, Turns(self.clock))
        self.service.startService()
        return self.service

    def stop(self) -> None:
        """Stop the broker cleanly."""
        stopped = self.service.stopService()
        self.clock.pump([0.1] * 10)
        self.successResultOf(stopped)

    def crash(self) -> None:
        """The broker dies, and starts again with the check point that is on the disk."""
        with patch.object(TimerCheckPoint, "write"):
            self.stop()
        self.serve()

    def pass_time(self, seconds: float) -> None:
        """Time goes by: in small steps at the end, so that what is due then is delivered."""
        if seconds > 20:
            self.clock.advance(seconds - 10)
            seconds = 10
        self.clock.pump([0.05] * round(seconds * 20))

    def send(self, body: bytes, seconds: float, topic: str = "T", **properties: str) -> None:
        """Put a message that is due in this time."""
        due = self.wall.now_ms() + int(seconds * 1000)
        stored = {"TIMER_OUT_MS": str(due // 1000 * 1000), "REAL_TOPIC": topic, "REAL_QID": "0", **properties}
        text = format_properties({"UNIQ_KEY": body.decode(), **stored})
        message = Message(TIMER_TOPIC, body, born_timestamp=NOW_MS, properties_stored=text)
        self.assertTrue(self.successResultOf(self.store.put_message(message)).is_stored)

    def records(self, topic: str = "T") -> list[Record]:
        """What a queue has, oldest first."""
        self.dispatch()
        found: list[Record] = []
        while True:
            read = self.store.reader.get_message(topic, 0, len(found), 32)
            if not read.records:
                return found
            found += [record for data in read.records if isinstance(record := decode_record(memoryview(data)), Record)]

    def arrived(self) -> list[str]:
        return [record.body.decode() for record in self.records()]

    def point(self) -> TimerCheckPoint:
        found = TimerCheckPoint.read(self.folder)
        assert found is not None
        return found


class DeliveryTests(TimerMessagesTestCase):
    def test_each_comes_at_its_time_in_whatever_order_they_were_sent(self) -> None:
        for seconds in (9, 3, 6):
            self.send(b"%d" % seconds, seconds)
        self.pass_time(2.9)
        self.assertEqual(self.arrived(), [])
        self.pass_time(2)
        self.assertEqual(self.arrived(), ["3"])
        self.pass_time(3)
        self.assertEqual(self.arrived(), ["3", "6"])
        self.pass_time(3)
        self.assertEqual(self.arrived(), ["3", "6", "9"])
        self.assertEqual(self.service.waiting, 0)

    def test_it_is_stored_as_it_was_but_for_its_place(self) -> None:
        self.send(b"body", 2, TAGS="A")
        self.pass_time(5)
        (waited,), (record,) = self.records(TIMER_TOPIC), self.records()
        self.assertEqual(record.properties_stored, waited.properties_stored)
        self.assertEqual((record.topic, record.queue_id, record.properties["TAGS"]), ("T", 0, "A"))

    def test_it_does_not_come_into_a_topic_that_was_deleted_meanwhile(self) -> None:
        self.send(b"old", 2)
        mark = Deletion("T", self.store.close_topic("T"))
        at_once(self.store.setting_deleted(DeletedTopicTable((mark,))))
        self.send(b"new", 3)
        self.pass_time(6)
        self.assertEqual((self.arrived(), self.service.waiting), (["new"], 0))

    def test_there_may_be_many(self) -> None:
        count = 3 * MESSAGES_A_STEP + 5
        for number in range(count):
            self.send(b"%d" % number, 5 + number % 7)
        self.pass_time(15)
        self.assertEqual(Counter(self.arrived()), Counter(str(number) for number in range(count)))

    def test_one_that_has_no_place_to_go_to_keeps_no_other_back(self) -> None:
        odd = (
            {"TIMER_OUT_MS": "soon"},
            {"TIMER_OUT_MS": "-5"},
            {"TIMER_OUT_MS": "9" * 40},
            {"REAL_QID": "x"},
            {"REAL_QID": "9" * 12},
            {"REAL_TOPIC": TIMER_TOPIC},
            {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
        )
        with log_lines() as lines:
            for number, properties in enumerate(odd):
                self.send(b"odd%d" % number, 1, **properties)
            self.send(b"sound", 1)
            self.pass_time(5)
        self.assertEqual(self.arrived(), ["sound"])
        self.assertEqual(lines().count("no valid time, or no topic"), len(odd))
        self.assertEqual(len(self.records(TIMER_TOPIC)), len(odd) + 1)

    def test_a_slave_delivers_nothing(self) -> None:
        self.send(b"a", 1)
        self.copy_to_slave()
        self.serve()
        self.pass_time(10)
        self.assertEqual(self.arrived(), [])

    def test_what_is_not_stored_is_tried_again_and_told_once(self) -> None:
        refused = succeed(PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE))
        self.send(b"a", 1)
        self.dispatch()
        with log_lines() as lines, patch.object(self.store, "put_message", lambda message: refused):
            self.pass_time(5)
        self.assertEqual(lines().count("is not delivered: SERVICE_NOT_AVAILABLE"), 1)
        self.assertEqual(self.arrived(), [])
        self.pass_time(2)
        self.assertEqual(self.arrived(), ["a"])

    def test_an_index_that_fails_is_built_again(self) -> None:
        self.send(b"a", 5)
        self.send(b"b", 30)
        self.pass_time(2)
        with log_lines() as lines, patch.object(TimerIndex, "until", side_effect=sqlite3.OperationalError("full")):
            self.pass_time(5)
        self.assertIn("the delivery of timer messages pauses", lines())
        self.flushLoggedErrors(sqlite3.OperationalError)
        self.pass_time(DELAY_FOR_A_PERIOD_SECONDS + 2)
        self.assertEqual(self.arrived(), ["a"])
        self.pass_time(30)
        self.assertEqual(self.arrived(), ["a", "b"])


class CancelTests(TimerMessagesTestCase):
    def cancel(self, key: str, seconds: float, topic: str = "T", **properties: str) -> None:
        self.send(b"cancels", seconds, topic, TIMER_DEL_UNIQKEY=key, **properties)

    def test_it_takes_back_the_message_with_its_key_topic_and_time(self) -> None:
        self.send(b"short", 5)
        self.send(b"long", 5)
        self.send(b"stays", 5)
        self.cancel("short", 5)
        self.cancel("T+long", 5)
        self.cancel("other", 5)
        self.cancel("stays", 5, topic="U")
        self.cancel("U+stays", 5)
        self.cancel("stays", 6)
        self.pass_time(10)
        self.assertEqual(self.arrived(), ["stays"])
        self.assertEqual(self.records("U"), [])
        self.assertEqual(self.service.waiting, 0)

    def test_it_counts_although_many_others_came_between(self) -> None:
        time = {"TIMER_OUT_MS": str(NOW_MS + 10_000)}
        self.send(b"a", 0, **time)
        self.pass_time(10.95)
        for number in range(3 * MESSAGES_A_STEP):
            self.send(b"%d" % number, 500)
        self.cancel("a", 0, **time)
        self.pass_time(5)
        self.assertEqual(self.arrived(), [])

    def test_what_is_not_confirmed_yet_may_cancel_what_is_due(self) -> None:
        self.send(b"a", 5)
        self.cancel("a", 5)
        self.dispatch()
        with patch.object(self.store.reader, "readable_end", return_value=1):
            self.pass_time(10)
            self.assertEqual(self.records(), [])
        self.pass_time(2)
        self.assertEqual(self.arrived(), [])
        self.assertEqual(self.service.waiting, 0)

    def test_its_key_may_be_long_or_have_other_bytes(self) -> None:
        for number, key in enumerate(("k" * 30_000, "\udcff\udc80")):
            self.send(b"%d" % number, 5, UNIQ_KEY=key)
            self.cancel(key, 5)
        self.send(b"stays", 5)
        self.pass_time(10)
        self.assertEqual(self.arrived(), ["stays"])

    def test_it_counts_although_it_comes_first_or_after_a_restart(self) -> None:
        time = {"TIMER_OUT_MS": str(NOW_MS + 10_000)}
        self.cancel("early", 0, **time)
        self.send(b"early", 0, **time)
        self.send(b"late", 0, **time)
        self.pass_time(2)
        self.stop()
        self.serve()
        self.cancel("late", 0, **time)
        self.pass_time(20)
        self.assertEqual(self.arrived(), [])

    def test_it_is_read_before_anything_is_delivered(self) -> None:
        """The broker was stopped until both were due."""
        self.stop()
        self.send(b"a", 1)
        for number in range(2 * MESSAGES_A_STEP):
            self.send(b"%d" % number, 500)
        self.cancel("a", 1)
        self.pass_time(10)
        self.serve()
        self.pass_time(5)
        self.assertEqual(self.arrived(), [])


class LongWaitTests(TimerMessagesTestCase):
    """Retention deletes messages after 72 hours. Those that wait longer than 54 are put again after 36."""

    def rolled(self) -> list[tuple[str, str | None]]:
        return [
            (record.body.decode(), record.properties.get("TIMER_ROLL_TIMES")) for record in self.records(TIMER_TOPIC)
        ]

    def test_it_is_put_again_and_delivered_once(self) -> None:
        self.send(b"a", 3 * DAY)
        self.send(b"b", 2 * DAY)
        self.pass_time(36 * HOUR + 10)
        self.assertEqual(self.rolled(), [("a", None), ("b", None), ("a", "1")])
        self.pass_time(12 * HOUR)
        self.assertEqual(self.arrived(), ["b"])
        self.pass_time(DAY + 10)
        self.assertEqual(self.arrived(), ["b", "a"])

    def test_it_is_put_again_before_retention_can_delete_it_whatever_that_is(self) -> None:
        self.begin(fileReservedTime="6")
        self.send(b"a", 10 * HOUR)
        for hour in range(11):
            rolled = self.rolled()
            newest = self.records(TIMER_TOPIC)[-1].store_timestamp
            self.assertLess(self.wall.now_ms() - newest, 6 * HOUR_MS, (hour, rolled))
            if self.arrived():
                break
            self.pass_time(HOUR)
        self.pass_time(HOUR)
        self.assertEqual(self.arrived(), ["a"])
        self.assertEqual(self.rolled(), [("a", None), ("a", "1"), ("a", "2")])

    def test_a_shorter_retention_counts_for_those_that_wait_already(self) -> None:
        self.send(b"a", 50 * HOUR)
        self.pass_time(5)
        self.service.settings_changed(replace(self.settings, file_reserved_time_hours=24))
        self.pass_time(13 * HOUR)
        self.assertEqual(self.rolled(), [("a", None), ("a", "1")])
        self.pass_time(2 * DAY)
        self.assertEqual(self.arrived(), ["a"])

    def test_a_changed_retention_repeats_nothing(self) -> None:
        for seconds in (5, 500):
            self.send(b"%d" % seconds, seconds)
        with patch.object(Held, "is_over", return_value=False):  # the check point is not written meanwhile
            self.pass_time(8)
            self.service.settings_changed(replace(self.settings, file_reserved_time_hours=24))
            self.pass_time(3)
        self.assertEqual(self.arrived(), ["5"])

    def test_what_retention_has_deleted_is_told(self) -> None:
        self.send(b"a", 5)
        self.pass_time(2)
        with log_lines() as lines, patch.object(self.store.reader, "message_in", return_value=None):
            self.pass_time(6)
        self.assertIn("1 timer messages were due, and the log does not have them any more", lines())

    def test_a_larger_message_of_another_broker_is_delivered(self) -> None:
        """A broker of 5.x takes 64 KiB more than maxMessageSize."""
        self.send(b"x" * 30_000, 5, UNIQ_KEY="K")
        self.dispatch()
        with patch.object(self.store.puts.appender, "_max_message_bytes", 20_000):
            self.pass_time(8)
        self.assertEqual(self.arrived(), ["x" * 30_000])

    def test_of_copies_that_another_broker_made_the_last_is_delivered(self) -> None:
        for times in ({}, {"TIMER_ROLL_TIMES": "1"}, {"TIMER_ROLL_TIMES": "2"}):
            self.send(b"a", 5, **times)
        self.send(b"a", 6)
        self.pass_time(10)
        self.assertEqual(len(self.arrived()), 2)
        self.assertEqual(self.records()[0].properties["TIMER_ROLL_TIMES"], "2")

    def test_a_restart_after_it_was_put_again_delivers_it_once(self) -> None:
        self.send(b"first", 60 * HOUR)
        self.send(b"a", 3 * DAY)
        self.pass_time(40 * HOUR)
        for _ in range(2):
            self.stop()
            self.serve()
            self.pass_time(20)
        self.pass_time(3 * DAY)
        self.assertEqual(self.arrived(), ["first", "a"])

    def test_it_can_be_cancelled_before_and_after_it_was_put_again(self) -> None:
        for when in ("before", "after"):
            self.send(when.encode(), 3 * DAY, TIMER_OUT_MS=str(NOW_MS + 3 * 24 * HOUR_MS))
        time = {"TIMER_OUT_MS": str(NOW_MS + 3 * 24 * HOUR_MS)}
        self.send(b"cancels", 0, TIMER_DEL_UNIQKEY="before", **time)
        self.pass_time(40 * HOUR)
        self.send(b"cancels", 0, TIMER_DEL_UNIQKEY="after", **time)
        self.pass_time(3 * DAY)
        self.assertEqual(self.arrived(), [])

    def test_one_that_has_no_room_for_another_property_waits_on(self) -> None:
        self.send(b"a", 3 * DAY, own="x" * 32_690)
        self.pass_time(40 * HOUR)
        self.assertEqual(len(self.records(TIMER_TOPIC)), 1)
        self.pass_time(2 * DAY)
        self.assertEqual(self.arrived(), ["a"])

    def test_one_that_became_due_while_no_broker_ran_is_delivered_at_once(self) -> None:
        self.send(b"a", 3 * DAY)
        self.send(b"gone", 3 * DAY)
        self.send(b"cancels", 3 * DAY, TIMER_DEL_UNIQKEY="gone")
        self.stop()
        self.pass_time(4 * DAY)
        self.serve()
        self.pass_time(5)
        self.assertEqual(self.arrived(), ["a"])
        self.assertEqual(len(self.records(TIMER_TOPIC)), 3, "it need not be put again first")

    def test_one_that_cancels_counts_although_it_was_put_again_first(self) -> None:
        time = {"TIMER_OUT_MS": str(NOW_MS + 60 * HOUR_MS)}
        self.send(b"cancels", 0, TIMER_DEL_UNIQKEY="a", **time)
        self.pass_time(20 * HOUR)
        self.send(b"a", 0, **time)
        self.stop()
        self.pass_time(41 * HOUR)
        self.serve()
        self.pass_time(5)
        self.assertEqual(self.arrived(), [])
        self.assertEqual(self.service.waiting, 0)


class CheckPointTests(TimerMessagesTestCase):
    def test_a_restart_delivers_nothing_again_and_loses_nothing(self) -> None:
        for seconds in (100, 2, 3, 101):
            self.send(b"%d" % seconds, seconds)
        self.pass_time(6)
        self.stop()
        self.assertEqual((self.point().queue_offset, self.point().master_queue_offset), (0, 4))
        self.send(b"while it was stopped", 1)
        self.serve()
        self.pass_time(10)
        self.assertEqual(self.arrived(), ["2", "3", "while it was stopped"])
        self.pass_time(200)
        self.assertEqual(self.arrived()[3:], ["100", "101"])

    def test_a_stop_while_a_check_point_waits_for_a_flush_repeats_nothing(self) -> None:
        seldom = str(24 * HOUR_MS)
        self.begin(flushIntervalCommitLog=seldom, flushCommitLogThoroughInterval=seldom)
        for seconds in (2, 5, 500):
            self.send(b"%d" % seconds, seconds)
        with patch.object(Held, "needs_flush", return_value=False):
            self.pass_time(8)
            self.stop()
        self.serve()
        self.pass_time(5)
        self.assertEqual(self.arrived(), ["2", "5"])

    def test_it_tells_java_where_the_first_message_waits(self) -> None:
        for seconds in (2, 100, 3):
            self.send(b"%d" % seconds, seconds)
        self.pass_time(6)
        point = self.point()
        self.assertEqual((point.log_flush_pos, point.queue_offset), (0, 1))
        self.assertLessEqual(point.last_read_ms, self.wall.now_ms())
        self.pass_time(100)
        self.assertEqual(self.point().queue_offset, 3)

    def test_it_is_not_written_before_the_log_has_what_was_delivered(self) -> None:
        seldom = str(24 * HOUR_MS)
        self.begin(flushIntervalCommitLog=seldom, flushCommitLogThoroughInterval=seldom)
        self.send(b"a", 2)
        self.pass_time(1)
        with patch.object(Held, "needs_flush", return_value=False):
            self.pass_time(5)
            self.assertEqual(self.arrived(), ["a"])
            point = TimerCheckPoint.read(self.folder)
            self.assertTrue(point is None or point.queue_offset == 0, point)
        self.pass_time(3)
        self.assertEqual(self.point().queue_offset, 1)

    def test_it_calls_nothing_delivered_that_could_not_be_stored(self) -> None:
        refused = succeed(PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE))
        for seconds in (2, 500):
            self.send(b"%d" % seconds, seconds)
        self.dispatch()
        with patch.object(self.store, "put_message", lambda message: refused):
            self.pass_time(10)
            self.stop()
        self.serve()
        self.pass_time(5)
        self.assertEqual(self.arrived(), ["2"])

    def test_messages_in_the_wheel_of_a_java_broker_are_found(self) -> None:
        """Java has read the queue to its end: what waits is in its wheel, before the queue offset."""
        self.stop()
        for seconds in (1, 30, 2):
            self.send(b"%d" % seconds, seconds)
        self.pass_time(10)
        TimerCheckPoint(self.wall.now_ms(), 4711, 3, 3).write(self.folder)
        self.serve()
        self.pass_time(10)
        self.assertEqual(self.arrived(), [])
        self.pass_time(20)
        self.assertEqual(self.arrived(), ["30"])

    def test_without_timer_messages_nothing_is_written(self) -> None:
        self.put(b"a")
        self.pass_time(10)
        self.stop()
        self.assertIsNone(TimerCheckPoint.read(self.folder))
        self.assertEqual([path.name for path in self.store.root.glob("rmqha/*timers*")], [])


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 12) | st.integers(0, 300_000)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("pass"), st.integers(1, 8) | st.integers(1, 150_000)),
    st.tuples(st.just("stop"), st.integers(0, 5) | st.integers(0, 100_000)),
    st.tuples(st.just("crash"), st.just(0)),
)


class ModelTests(TimerMessagesTestCase):
    """Against a model: each message that is not cancelled comes at its time. None comes twice but by a crash."""

    @settings(max_examples=examples(20), deadline=None)
    @given(st.lists(OPERATIONS, max_size=25))
    @pytest.mark.long
    def test_all_come_and_once(self, operations: list[tuple[str, int]]) -> None:
        self.begin()
        due: dict[str, int] = {}
        cancelled, crashed = set(), False
        for number, (what, amount) in enumerate(operations):
            if what == "send":
                self.send(b"%d" % number, amount + 2)
                due[str(number)] = (self.wall.now_ms() + (amount + 2) * 1000) // 1000 * 1000
            elif what == "cancel" and due:
                key = list(due)[amount % len(due)]
                if due[key] > self.wall.now_ms() + 2000:
                    self.send(b"cancels", 0, TIMER_DEL_UNIQKEY=key, TIMER_OUT_MS=str(due[key]))
                    cancelled.add(key)
            elif what == "pass":
                self.pass_time(amount)
            elif what == "stop":
                self.stop()
                self.pass_time(amount)
                self.serve()
            elif what == "crash":
                self.crash()
                crashed = True
            self.check(due, cancelled, crashed)
        self.pass_time(400_000)
        self.check(due, cancelled, crashed)
        self.assertEqual(self.service.waiting, 0)
        self.stop()
        self.serve()
        before = self.arrived()
        self.pass_time(30)
        self.assertEqual(self.arrived(), before, "all was delivered before the stop")

    def check(self, due: dict[str, int], cancelled: set[str], crashed: bool) -> None:
        self.pass_time(2.5)
        arrived = Counter(self.arrived())
        now = self.wall.now_ms()
        for key, time in due.items():
            count = arrived.pop(key, 0)
            if key in cancelled or time > now:
                self.assertEqual(count, 0, key)
            elif time < now - 5000:
                self.assertGreaterEqual(count, 1, key)
            if not crashed:
                self.assertLessEqual(count, 1, key)
        self.assertEqual(arrived, Counter())
