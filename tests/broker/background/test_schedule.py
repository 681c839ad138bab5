"""Delayed messages come to their topics when their time has come, once, in order, and after a restart too."""

import shutil
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from rmqha.broker.background.schedule import (
    DELAY_FOR_A_PERIOD_SECONDS,
    DELIVERY_BATCH,
    FIRST_DELAY_SECONDS,
    ScheduleMessageService,
)
from rmqha.kit.steps import at_once
from rmqha.store.deletions import DeletedTopicTable, Deletion
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.message import Message, PutMessageResult, PutMessageStatus
from rmqha.store.metadata import DelayOffsetTable
from rmqha.store.reading import MessageReader
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import Host, Record, decode_record
from tests import examples
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase
from tests.ha.doubles import log_lines

LEVELS = {1: 1.0, 2: 5.0, 3: 10.0}
HOST = Host(bytes((192, 0, 2, 30)), 1234)
FLUSH_SECONDS = 10.0


class ScheduleTestCase(BrokerStoreTestCase):
    """``delay`` puts a delayed message, ``arrived`` are those in topic T."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.services: list[ScheduleMessageService] = []
        self.addCleanup(self.stop_all)
        self.service = self.serve()

    def serve(self) -> ScheduleMessageService:
        """Start delivering, as a master's start does."""
        service = ScheduleMessageService(self.folder, self.store, self.settings, self.clock, self.wall)
        self.services.append(service)
        service.startService()
        return service

    def stop_all(self) -> None:
        for service in self.services:
            service.stopService()

    def pass_time(self, seconds: float) -> None:
        """Time goes by in small steps."""
        self.clock.pump([0.01] * round(seconds * 100))

    def delay(self, level: int, body: bytes = b"late", topic: str = "T", queue_id: int = 0, **fields: Any) -> None:
        """Put a message of this level."""
        properties = {"DELAY": str(level), "TAGS": "A", "WAIT": "true"}
        message = Message(topic, body, properties, queue_id, born_timestamp=NOW_MS - 5, **fields)
        result = self.successResultOf(self.store.put_message(message))
        self.assertTrue(result.is_stored)

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """What a queue has, oldest first."""
        self.dispatch()
        found: list[Record] = []
        while True:
            read = self.store.reader.get_message(topic, queue_id, len(found), 32)
            if not read.records:
                return found
            records = [decode_record(memoryview(data)) for data in read.records]
            found += [record for record in records if isinstance(record, Record)]

    def arrived(self) -> list[bytes]:
        """The bodies of what came to topic T."""
        return [record.body for record in self.records()]

    def restart(self) -> None:
        """The broker stops and starts."""
        self.service.stopService()
        self.service = self.serve()

    def crash(self) -> None:
        """The broker dies and starts: what it had not written is lost."""
        table, self.service.table = self.service.table, DelayOffsetTable.read(self.folder)
        self.service._on_disk = self.service.table.snapshot()
        self.service.stopService()
        table.offset_table.clear()
        self.service = self.serve()


class DeliveryTests(ScheduleTestCase):
    def test_a_message_comes_when_its_delay_has_passed_and_not_before(self) -> None:
        self.pass_time(FIRST_DELAY_SECONDS)
        for level, seconds in LEVELS.items():
            self.delay(level, b"%d" % level)
            before = len(self.arrived())
            self.pass_time(seconds - 0.1)
            self.assertEqual(len(self.arrived()), before, level)
            self.pass_time(0.15)
            self.assertEqual(self.arrived()[before:], [b"%d" % level])

    def test_it_is_stored_as_it_was_but_for_its_place(self) -> None:
        self.delay(1, b"body", "T", 3, flag=9, born_host=HOST, store_host=HOST, reconsume_times=4)
        self.pass_time(1.5)
        (late,) = self.records(SCHEDULE_TOPIC)
        (record,) = self.records("T", 3)
        self.assertEqual(record.properties_stored, late.properties_stored)
        self.assertLessEqual({"DELAY", "REAL_TOPIC", "REAL_QID", "WAIT"}, record.properties.keys())
        self.assertEqual((record.body, record.flag, record.reconsume_times), (b"body", 9, 4))
        self.assertEqual((record.born_host, record.store_host, record.born_timestamp), (HOST, HOST, NOW_MS - 5))
        self.assertGreater(record.store_timestamp, late.store_timestamp)

    def test_it_waits_for_nobody(self) -> None:
        with patch.object(self.store, "put_message", wraps=self.store.put_message) as put:
            self.delay(1)
            self.pass_time(1.5)
        self.assertFalse(put.call_args.args[0].is_wait_store_msg_ok)

    def test_it_does_not_come_into_a_topic_that_was_deleted_meanwhile(self) -> None:
        self.delay(1, b"old")
        mark = Deletion("T", self.store.close_topic("T"))
        at_once(self.store.setting_deleted(DeletedTopicTable((mark,))))
        self.delay(1, b"new")
        self.delay(1, b"other", topic="U")
        self.pass_time(2)
        self.assertEqual(self.arrived(), [b"new"])
        self.assertEqual([bytes(record.body) for record in self.records("U")], [b"other"])

    def test_it_comes_once(self) -> None:
        self.delay(1)
        self.pass_time(30)
        self.assertEqual(self.arrived(), [b"late"])

    def test_levels_do_not_wait_for_each_other(self) -> None:
        self.delay(3, b"slow")
        self.delay(1, b"fast")
        self.pass_time(2)
        self.assertEqual(self.arrived(), [b"fast"])
        self.pass_time(9)
        self.assertEqual(self.arrived(), [b"fast", b"slow"])

    def test_many_come_in_order_and_leave_others_their_turn(self) -> None:
        self.service.stopService()
        self.open(messageDelayLevel="1s 1s")
        self.service = self.serve()
        count = 3 * DELIVERY_BATCH + 1
        for number in range(count):
            self.delay(1, b"%d" % number)
            self.delay(2, b"%d" % number, "Other")
        with patch.object(self.store, "put_message", wraps=self.store.put_message) as put:
            self.pass_time(3)
        topics = [call.args[0].topic for call in put.call_args_list]
        self.assertLessEqual(topics.index("Other"), DELIVERY_BATCH)
        self.assertIn("T", topics[topics.index("Other") :])
        self.assertEqual(self.arrived(), [b"%d" % number for number in range(count)])
        self.assertEqual(len(self.records("Other")), count)

    def test_nothing_is_looked_for_where_nothing_is(self) -> None:
        self.pass_time(FIRST_DELAY_SECONDS + 0.1)
        with patch.object(QueueTable, "get") as looked_for:
            self.pass_time(FLUSH_SECONDS)
        self.assertEqual(looked_for.call_count, 0)

    def test_a_message_that_is_waited_for_is_read_once(self) -> None:
        self.delay(3)
        self.pass_time(2)
        with patch.object(MessageReader, "message_at") as read:
            self.pass_time(5)
        self.assertEqual(read.call_count, 0)

    def test_one_that_says_no_place_is_passed_over(self) -> None:
        for real in (
            {"REAL_QID": "0"},
            {"REAL_TOPIC": "T", "REAL_QID": "x"},
            {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
        ):
            properties = {"REAL_QID": "0", "DELAY": "0", **real}
            self.store.put_message(Message(SCHEDULE_TOPIC, b"lost", properties, queue_id=0))
        self.delay(1, b"good")
        with log_lines() as lines:
            self.pass_time(2)
        self.assertEqual((self.arrived(), lines().count("has no topic to go to")), ([b"good"], 3))
        self.assertEqual(self.records("RMQ_SYS_TRANS_HALF_TOPIC"), [])

    def test_how_far_it_is_can_be_seen(self) -> None:
        self.assertEqual(self.service.progress(), {})
        self.delay(1)
        self.delay(3)
        self.pass_time(2)
        self.assertEqual(self.service.progress(), {1: (1, 1), 3: (0, 1)})


class RestartTests(ScheduleTestCase):
    def test_what_was_delivered_does_not_come_again(self) -> None:
        self.delay(1, b"before")
        self.pass_time(2)
        self.restart()
        self.delay(1, b"after")
        self.pass_time(3)
        self.assertEqual(self.arrived(), [b"before", b"after"])

    def test_what_was_not_delivered_comes_after_the_start(self) -> None:
        self.delay(2)
        self.pass_time(2)
        self.service.stopService()
        self.pass_time(20)
        self.assertEqual(self.arrived(), [])
        self.service = self.serve()
        self.pass_time(FIRST_DELAY_SECONDS + 0.1)
        self.assertEqual(self.arrived(), [b"late"])

    def test_a_crash_may_double_but_loses_nothing(self) -> None:
        self.delay(1, b"1")
        self.delay(3, b"3")
        self.pass_time(2)
        self.crash()
        self.pass_time(12)
        self.assertEqual(self.arrived(), [b"1", b"1", b"3"])

    def test_progress_is_written_now_and_then(self) -> None:
        self.delay(1)
        self.pass_time(FLUSH_SECONDS - 1)
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {})
        self.pass_time(1.1)
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {1: 1})
        self.crash()
        self.pass_time(3)
        self.assertEqual(self.arrived(), [b"late"])

    def test_a_delivery_is_noted_after_it_is_on_the_disk(self) -> None:
        """If power is lost between the two, the message must be delivered again."""
        self.delay(1)
        refused = OSError(5, "Input/output error")
        with patch.object(self.store.disk, "sync_all", side_effect=refused):
            self.pass_time(3 * FLUSH_SECONDS)
        self.assertEqual(self.arrived(), [b"late"])
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {})
        self.successResultOf(self.service.stopService())
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {})

    def test_nothing_is_written_while_nothing_changes(self) -> None:
        with patch.object(DelayOffsetTable, "write") as write:
            self.pass_time(3 * FLUSH_SECONDS)
        self.assertEqual(write.call_count, 0)

    def test_an_offset_beyond_the_queue_is_corrected(self) -> None:
        """A log that was cut: what comes after must be delivered although the file says that it was."""
        self.delay(1, b"1")
        self.pass_time(2)
        self.service.stopService()
        DelayOffsetTable({1: 500, 2: 500}).write(self.folder)
        self.service = self.serve()
        self.delay(1, b"2")
        self.delay(2, b"3")
        self.pass_time(7)
        self.assertEqual(self.arrived(), [b"1", b"2", b"3"])

    def test_a_stopped_one_delivers_nothing(self) -> None:
        self.delay(1)
        self.pass_time(0.5)
        self.service.stopService()
        self.pass_time(30)
        self.assertEqual(self.arrived(), [])

    def test_delayed_messages_outlive_the_process_that_took_them(self) -> None:
        self.delay(2)
        self.pass_time(0.1)
        self.service.stopService()
        self.open(storePathRootDir=str(shutil.copytree(self.store.root, self.mktemp())))
        self.service = self.serve()
        self.pass_time(5)
        self.assertEqual(self.arrived(), [b"late"])

    def test_a_slave_holds_what_its_master_says(self) -> None:
        self.service.replace(DelayOffsetTable({2: 7}), 0)
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {2: 7})
        (self.folder / DelayOffsetTable.FILE_NAME).unlink()  # it was set aside with the log
        self.service.replace(DelayOffsetTable({2: 7}), 0)
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {2: 7})


class WallClockTests(ScheduleTestCase):
    def test_a_clock_set_forward_delivers_at_once(self) -> None:
        self.delay(3)
        self.pass_time(2)
        self.wall.ahead_ms = 3_600_000
        self.pass_time(1.1)
        self.assertEqual(self.arrived(), [b"late"])

    def test_a_clock_set_back_loses_nothing_and_does_not_spin(self) -> None:
        self.delay(3, b"before")
        self.pass_time(2)
        self.wall.ahead_ms = -3_600_000
        self.delay(3, b"after")  # stored as late as the one before: the log's times do not go back
        with patch.object(self.clock, "callLater", wraps=self.clock.callLater) as call_later:
            self.pass_time(20)
        self.assertEqual(self.arrived(), [b"before", b"after"])
        self.assertLess(call_later.call_count, 100)

    @settings(max_examples=examples(15), deadline=None)
    @given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(-8000, 8000)), min_size=1, max_size=6))
    def test_whatever_the_clock_does_each_comes_once_and_in_order(self, steps: list[tuple[int, int]]) -> None:
        already = len(self.arrived())
        sent: dict[int, list[bytes]] = {1: [], 2: []}
        for number, (level, jump_ms) in enumerate(steps):
            body = b"%d %d" % (level, number)
            sent[level].append(body)
            self.delay(level, body)
            self.pass_time(0.3)
            self.wall.ahead_ms += jump_ms
        self.pass_time(60)
        came = self.arrived()[already:]
        for level, bodies in sent.items():
            self.assertEqual([body for body in came if body.startswith(b"%d " % level)], bodies)


class TroubleTests(ScheduleTestCase):
    def outcomes(self, *statuses: PutMessageStatus) -> Any:
        """Puts of the service that end so, and then as they really do."""
        real, left = self.store.put_message, list(statuses)

        def put(message: Message) -> Deferred[PutMessageResult]:
            return succeed(PutMessageResult(left.pop(0))) if left else real(message)

        return patch.object(self.store, "put_message", put)

    def test_a_put_that_fails_is_tried_again(self) -> None:
        self.delay(1, b"1")
        self.delay(1, b"2")
        with self.outcomes(PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPEDFILE_FAILED):
            self.pass_time(2)
        self.assertEqual(self.arrived(), [b"1", b"2"])

    def test_a_message_that_no_put_takes_does_not_hold_up_the_others(self) -> None:
        self.delay(1, b"1")
        self.delay(1, b"2")
        with log_lines() as lines, self.outcomes(PutMessageStatus.MESSAGE_ILLEGAL):
            self.pass_time(2)
        self.assertEqual(self.arrived(), [b"2"])
        self.assertIn("of level 1 is not delivered: MESSAGE_ILLEGAL", lines())

    def test_a_disk_that_cannot_be_read_is_tried_again_later(self) -> None:
        self.delay(1)
        with patch.object(MessageReader, "message_at", side_effect=OSError("unreadable")):
            self.pass_time(2)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(self.arrived(), [])
        self.pass_time(DELAY_FOR_A_PERIOD_SECONDS)
        self.assertEqual(self.arrived(), [b"late"])

    def test_a_put_that_takes_long_is_waited_for_alone(self) -> None:
        self.delay(1, b"1")
        putting: Deferred[PutMessageResult] = Deferred()
        with patch.object(self.store, "put_message", return_value=putting) as put:
            self.pass_time(2)
        self.delay(1, b"2")
        self.pass_time(3)
        self.assertEqual((put.call_count, self.arrived()), (1, []))
        putting.callback(PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE))
        self.pass_time(1)
        self.assertEqual(self.arrived(), [b"1", b"2"])

    def test_it_can_be_stopped_meanwhile(self) -> None:
        self.delay(1)
        with patch.object(self.store, "put_message", return_value=Deferred()):
            self.pass_time(2)
        self.service.stopService()
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {})
