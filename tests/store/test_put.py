"""Puts: what lies in the log, what is answered and when, and what is refused (spec/store.md 3.5-3.12, 4, 5.2)."""

import errno
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from struct import pack
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import at_once
from rmqha.settings.settings import BrokerRole, FlushDiskType, Settings
from rmqha.store import put
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.message import (
    AppendMessageResult,
    AppendMessageStatus,
    Message,
    MessageBatch,
    PutMessageResult,
    PutMessageStatus,
)
from rmqha.store.messagestore import MessageStore
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.layout import BLANK_MAGIC_CODE
from rmqha.wire.properties import format_properties
from rmqha.wire.record import (
    END_FILE_MIN_BLANK_LENGTH,
    MAX_PROPERTIES_BYTES,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Blank,
    Host,
    Record,
    check_record,
    decode_record,
    encode_record,
    format_msg_id,
)
from rmqha.wire.sends.run import Declined, SendRun
from tests import examples
from tests.fixtures import new_folder
from tests.ha.doubles import log_lines
from tests.store.log.test_flush import Thread
from tests.store.logs import held
from tests.store.sends import Sends, offsets_of, statuses_of
from tests.store.test_putwaits import FakeReplicas
from tests.strategies import HOSTS, INT32, INT64

OK = PutMessageStatus.PUT_OK
NOW_MS = 1_795_000_000_000
SEGMENT_SIZE = 4096
OVERHEAD_BYTES = Record("T", b"").total_size
UNCOUNTED_TYPES = (TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE)
TYPES = (0, TRANSACTION_COMMIT_TYPE, *UNCOUNTED_TYPES)


def sized(size: int, **fields: Any) -> Message:
    """A message whose record has exactly this size."""
    return Message("T", b"x" * (size - OVERHEAD_BYTES), **fields)


class PutTestCase(SynchronousTestCase):
    """Has a store that takes puts, a clock and a flushing thread that do what the test says, and the time of day."""

    settings = Settings(
        mapped_file_size_commit_log=SEGMENT_SIZE, max_hash_slot_num=10, max_index_num=100, max_message_size_bytes=3000
    )

    def setUp(self) -> None:
        self.now_ms = NOW_MS
        self.patch(time, "time_ns", lambda: self.now_ms * 1_000_000)
        self.failures: list[Failure] = []
        self.stores: list[MessageStore] = []
        self.addCleanup(lambda: [store._release(None) for store in self.stores])
        self.open_new()

    def open_new(self, **changed: Any) -> None:
        """Go on with a new, empty store."""
        self.root = new_folder(self)
        self.open(**changed)

    def open(self, **changed: Any) -> None:
        self.clock, self.thread = Clock(), Thread()
        self.store = MessageStore(replace(self.settings, store_path_root_dir=self.root, **changed))
        self.stores.append(self.store)
        self.flusher = self.store.start_flushing(self.clock, self.thread, self.failures.append)
        self.store.start_dispatching(self.clock, self.failures.append)
        self.log = self.store.commit_log

    def reopen(self) -> None:
        """As a node's restart after it was killed."""
        self.stores.remove(self.store)
        self.store._release(None)
        self.open()

    def put(self, message: Message) -> AppendMessageResult:
        """Of a put that ends well at once."""
        return self.stored(self.store.put_message(message))

    def put_batch(self, batch: MessageBatch) -> AppendMessageResult:
        return self.stored(self.store.put_messages(batch))

    def stored(self, putting: "Deferred[PutMessageResult]") -> AppendMessageResult:
        result = self.successResultOf(putting)
        self.assertEqual(result.status, PutMessageStatus.PUT_OK)
        self.assertTrue(result.is_stored)
        assert result.append is not None
        return result.append

    def record_at(self, offset: int) -> Record:
        """What lies there, proved."""
        room = SEGMENT_SIZE - offset % SEGMENT_SIZE
        data = self.log.get_data(offset, room)
        assert data is not None
        record = check_record(data, 0, offset, room)
        assert isinstance(record, Record)
        return record

    def assert_refused(
        self, putting: "Deferred[PutMessageResult]", status: PutMessageStatus, append: AppendMessageStatus | None
    ) -> None:
        """With this answer, and not a byte written."""
        result = self.successResultOf(putting)
        self.assertEqual((result.status, result.append and result.append.status), (status, append))
        self.assertFalse(result.is_stored)

    def written(self) -> tuple[int, list[int], bytes]:
        log = self.log
        return log.max_offset, log.segment_bases, held(log)


PROPERTIES = st.dictionaries(
    st.text("ABCé漢😀", min_size=1, max_size=4), st.text("abcé漢😀 \x01", min_size=1, max_size=8), max_size=4
)
BODIES = st.binary(max_size=200)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Of every kind, but not delayed."""
    return Message(
        topic=draw(st.text("aZ%-_é", min_size=1, max_size=20)),
        body=draw(BODIES),
        properties=draw(PROPERTIES),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        flag=draw(INT32),
        sys_flag=draw(st.sampled_from(TYPES)) | draw(st.sampled_from((0, 1, 2, 0x40, 0x301, 0x30))),
        born_timestamp=draw(INT64),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
    )


def record_of(message: Message, result: AppendMessageResult, **changed: Any) -> Record:
    """The record that a message must have become."""
    record = Record(
        topic=message.topic,
        body=message.body,
        properties_stored=format_properties(message.properties),
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=result.logics_offset,
        physical_offset=result.wrote_offset,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=result.store_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
    return replace(record, **changed)


class BytesTests(PutTestCase):
    """3.1-3.4: the bytes are those of the reference encoder."""

    @pytest.mark.long
    @settings(max_examples=examples(150), deadline=None)
    @given(st.lists(messages(), min_size=1, max_size=5))
    def test_a_message_of_any_kind_is_written_as_the_reference_encodes_it(self, some: list[Message]) -> None:
        for message in some:
            result = self.put(message)
            data = self.log.select(result.wrote_offset, result.wrote_bytes)
            assert data is not None
            self.assertEqual(bytes(data), encode_record(record_of(message, result)))
            self.assertEqual(self.log.verified_offset, result.wrote_offset + result.wrote_bytes)
            self.assertEqual(result.store_timestamp, NOW_MS)

    @settings(max_examples=examples(100), deadline=None)
    @given(
        st.lists(st.tuples(BODIES, PROPERTIES, INT32), min_size=1, max_size=6),
        st.dictionaries(st.just("CLUSTER"), st.text("xy", min_size=1, max_size=5)),
        HOSTS,
        HOSTS,
        st.sampled_from((0, 1, 0x30)),
    )
    def test_a_batch_is_written_as_its_messages_with_what_the_batch_says(
        self,
        parts: list[tuple[bytes, dict[str, str], int]],
        added: dict[str, str],
        born_host: Host,
        store_host: Host,
        sys_flag: int,
    ) -> None:
        inner = [
            Message("ignored", body, properties, queue_id=9, flag=flag, sys_flag=2, born_timestamp=1, reconsume_times=8)
            for body, properties, flag in parts
        ]
        batch = MessageBatch("Topic", inner, added, 3, sys_flag, 77, born_host, store_host, 5)
        result = self.put_batch(batch)
        expected, at = b"", result.wrote_offset
        for number, message in enumerate(inner):
            record = Record(
                topic="Topic",
                body=message.body,
                properties_stored=format_properties({**message.properties, **added}),
                queue_id=3,
                flag=message.flag,
                queue_offset=result.logics_offset + number,
                physical_offset=at,
                sys_flag=sys_flag,
                born_timestamp=77,
                born_host=born_host,
                store_timestamp=NOW_MS,
                store_host=store_host,
                reconsume_times=5,
            )
            self.assertEqual(result.message_offsets[number], at)
            expected += encode_record(record)
            at += record.total_size
        data = self.log.select(result.wrote_offset, result.wrote_bytes)
        assert data is not None
        self.assertEqual(bytes(data), expected)

    def test_the_golden_record_of_the_specification(self) -> None:
        """3.13, but for the store's clock: IPv6 born and store host."""
        self.now_ms = 0x1A1FA5B8723
        self.put(
            Message(
                "T",
                b"hi",
                queue_id=3,
                born_timestamp=1_600_000_000_000,
                born_host=Host.parse("2001:db8::1", 40000),
                store_host=Host.parse("2001:db8::2", 10911),
            )
        )
        self.assertEqual(
            held(self.log).hex().upper(),
            "00000076DAA320A758932AAC0000000300000000000000000000000000000000000000000000003000000174876E8000"
            "20010DB800000000000000000000000100009C40000001A1FA5B872320010DB800000000000000000000000200002A9F"
            "0000000000000000000000000000000268690154" + "0000",
        )


class QueueOffsetTests(PutTestCase):
    """3.5."""

    def test_each_queue_counts_its_messages_from_0(self) -> None:
        order = [("A", 0), ("A", 1), ("B", 0), ("A", 0), ("B", 0), ("A", 0)]
        results = [self.put(Message(topic, b"", queue_id=queue)) for topic, queue in order]
        self.assertEqual([result.logics_offset for result in results], [0, 0, 0, 1, 1, 2])
        self.assertEqual([self.record_at(r.wrote_offset).queue_offset for r in results], [0, 0, 0, 1, 1, 2])

    def test_commit_counts_and_prepared_and_rollback_are_0_and_do_not(self) -> None:
        kinds = [0, TRANSACTION_PREPARED_TYPE, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE, 0]
        results = [self.put(Message("T", b"", sys_flag=kind)) for kind in kinds]
        expected = [0, 0, 1, 0, 2]
        self.assertEqual([self.record_at(result.wrote_offset).queue_offset for result in results], expected)
        self.assertEqual([result.logics_offset for result in results], expected)

    def test_a_batch_has_consecutive_ones(self) -> None:
        self.put(Message("T", b""))
        result = self.put_batch(MessageBatch("T", [Message("", b"x")] * 3))
        self.assertEqual(result.logics_offset, 1)
        self.assertEqual([self.record_at(at).queue_offset for at in result.message_offsets], [1, 2, 3])
        self.assertEqual(self.put(Message("T", b"")).logics_offset, 4)

    def test_one_that_is_rolled_to_the_next_segment_keeps_it(self) -> None:
        offsets = [self.put(sized(1500)).logics_offset for _ in range(5)]
        self.assertEqual(offsets, [0, 1, 2, 3, 4])
        self.assertEqual([self.record_at(at).queue_offset for at in (0, 1500, 4096, 5596, 8192)], offsets)

    def test_a_refused_one_takes_none(self) -> None:
        self.put(Message("T", b""))
        self.store.put_message(sized(3001))
        self.assertEqual(self.put(Message("T", b"")).logics_offset, 1)

    def test_they_go_on_after_any_stop(self) -> None:
        self.put_batch(MessageBatch("T", [Message("", b"x")] * 3, queue_id=2))
        self.put(Message("T", b"", queue_id=-1))
        self.put(Message("T", b"", queue_id=2, sys_flag=TRANSACTION_PREPARED_TYPE))
        for number in range(1, 3):
            self.reopen()
            self.assertEqual(self.put(Message("T", b"", queue_id=2)).logics_offset, 2 + number)
            self.assertEqual(self.put(Message("T", b"", queue_id=-1)).logics_offset, number)
        self.stores.remove(self.store)
        self.successResultOf(self.store.close(self.flusher))
        self.open()
        self.assertEqual(self.put(Message("T", b"", queue_id=2)).logics_offset, 5)


class PlaceTests(PutTestCase):
    """3.7: how segments end."""

    def assert_blank(self, at: int, size: int) -> None:
        data = self.log.get_data(at, SEGMENT_SIZE)
        assert data is not None
        self.assertEqual(decode_record(data), Blank(size))
        self.assertEqual(bytes(data), pack(">ii", size, BLANK_MAGIC_CODE).ljust(size, b"\0"))

    def test_a_record_may_leave_exactly_eight_bytes_which_a_blank_takes_later(self) -> None:
        self.put(sized(2000))
        self.put(sized(SEGMENT_SIZE - 2000 - 8))
        self.assertEqual((self.log.max_offset, self.log.segment_bases), (SEGMENT_SIZE - 8, [0]))
        self.assertEqual(self.put(sized(100)).wrote_offset, SEGMENT_SIZE)
        self.assert_blank(SEGMENT_SIZE - 8, 8)

    def test_one_byte_more_goes_to_the_next_segment_whole(self) -> None:
        self.put(sized(2000))
        result = self.put(sized(SEGMENT_SIZE - 2000 - 7))
        self.assertEqual(result.wrote_offset, SEGMENT_SIZE)
        self.assert_blank(2000, SEGMENT_SIZE - 2000)
        self.assertEqual(self.record_at(SEGMENT_SIZE).total_size, SEGMENT_SIZE - 2000 - 7)

    def test_a_batch_is_never_split(self) -> None:
        self.put(sized(2500))
        batch = MessageBatch("T", [Message("", b"x" * 400)] * 4)
        result = self.put_batch(batch)
        self.assertGreater(result.wrote_bytes, SEGMENT_SIZE - 2500 - 8)
        self.assertEqual(result.message_offsets[0], SEGMENT_SIZE)
        self.assertEqual({at // SEGMENT_SIZE for at in result.message_offsets}, {1})
        self.assert_blank(2500, SEGMENT_SIZE - 2500)

    def test_every_size_around_the_end_is_placed_by_the_rule(self) -> None:
        for left in range(200, 220):
            self.open_new()
            self.put(sized(2000))
            self.put(sized(SEGMENT_SIZE - 2000 - left))
            result = self.put(sized(206))
            fits = left >= 206 + 8
            self.assertEqual(result.wrote_offset, SEGMENT_SIZE - left if fits else SEGMENT_SIZE, left)

    def test_what_fits_no_segment_is_refused_and_wastes_none(self) -> None:
        self.open_new(max_message_size_bytes=2**20)
        self.put(sized(200))
        before = self.written()
        refused = (PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)
        self.assert_refused(self.store.put_message(sized(SEGMENT_SIZE - 7)), *refused)
        self.assert_refused(self.store.put_messages(MessageBatch("T", [Message("", b"x" * 1400)] * 3)), *refused)
        self.assertEqual(self.written(), before)
        self.assertEqual(self.put(sized(SEGMENT_SIZE - 8)).wrote_offset, SEGMENT_SIZE)


class DelayTests(PutTestCase):
    """12.1."""

    def test_a_delayed_message_goes_to_the_schedule_topic_and_keeps_where_it_came_from(self) -> None:
        result = self.put(Message("Orders", b"x", {"DELAY": "4", "TAGS": "A"}, queue_id=7))
        record = self.record_at(result.wrote_offset)
        self.assertEqual((record.topic, record.queue_id, record.queue_offset), (SCHEDULE_TOPIC, 3, 0))
        self.assertEqual(record.properties, {"DELAY": "4", "TAGS": "A", "REAL_TOPIC": "Orders", "REAL_QID": "7"})
        self.assertEqual(self.put(Message("Others", b"", {"DELAY": "4"})).logics_offset, 1)
        self.assertEqual(self.put(Message("Orders", b"", queue_id=7)).logics_offset, 0)

    def test_its_queue_says_when_it_is_due(self) -> None:
        self.put(Message("Orders", b"x", {"DELAY": "4", "TAGS": "A"}))
        self.clock.advance(1)
        unit = self.store.derived.queues.queues[SCHEDULE_TOPIC, 3].unit(0)
        assert unit is not None
        self.assertEqual(unit.tags_code, NOW_MS + 30_000)

    def test_a_level_beyond_the_last_is_the_last(self) -> None:
        for text in ("18", "19", "2147483647"):
            record = self.record_at(self.put(Message("Orders", b"x", {"DELAY": text})).wrote_offset)
            self.assertEqual((record.queue_id, record.properties["DELAY"]), (17, "18"))

    def test_what_is_no_level_is_no_delay(self) -> None:
        for text in ("0", "-1", "x", "1.5", "2147483648", "9" * 5000):
            record = self.record_at(self.put(Message("Orders", b"x", {"DELAY": text[:1000]})).wrote_offset)
            self.assertEqual((record.topic, record.properties["DELAY"]), ("Orders", text[:1000]))
        self.open_new(max_message_size_bytes=2**20, mapped_file_size_commit_log=2**20)
        result = self.put(Message("Orders", b"x", {"DELAY": "9" * 5000}))  # more digits than Python's int() takes
        self.assertEqual(result.wrote_bytes, Record("Orders", b"x", "DELAY\x01" + "9" * 5000).total_size)

    def test_prepared_and_rolled_back_messages_are_not_delayed(self) -> None:
        for kind in UNCOUNTED_TYPES:
            record = self.record_at(self.put(Message("T", b"x", {"DELAY": "3"}, sys_flag=kind)).wrote_offset)
            self.assertEqual((record.topic, record.properties), ("T", {"DELAY": "3"}))
        result = self.put(Message("T", b"x", {"DELAY": "3"}, sys_flag=TRANSACTION_COMMIT_TYPE))
        self.assertEqual(self.record_at(result.wrote_offset).topic, SCHEDULE_TOPIC)


class StoredPropertiesTests(PutTestCase):
    """Properties that are text already, as clients send them and records have them."""

    def test_they_are_stored_as_they_are_and_only_the_others_are_looked_at(self) -> None:
        text = "TAGS\x01A\x02DELAY\x013\x02"
        result = self.put(Message("T", b"x", {"WAIT": "false"}, properties_stored=text))
        record = self.record_at(result.wrote_offset)
        self.assertEqual((record.topic, record.properties_stored), ("T", text))

    def test_a_delayed_message_is_stored_with_all_it_has(self) -> None:
        result = self.put(Message("T", b"x", {"DELAY": "3", "WAIT": "true"}, properties_stored="TAGS\x01A"))
        record = self.record_at(result.wrote_offset)
        self.assertEqual(record.topic, SCHEDULE_TOPIC)
        self.assertEqual(record.properties, {"DELAY": "3", "WAIT": "true", "REAL_TOPIC": "T", "REAL_QID": "0"})

    def test_those_of_a_batch_follow_each_messages_own(self) -> None:
        own = ("", "TAGS\x01A", "TAGS\x01A\x02")
        messages = [Message("T", b"x", properties_stored=text) for text in own]
        for added, stored in (({}, own), ({"CLUSTER": "C"}, ("CLUSTER\x01C", *["TAGS\x01A\x02CLUSTER\x01C"] * 2))):
            result = self.put_batch(MessageBatch("T", messages, added))
            records = [self.record_at(offset) for offset in result.message_offsets]
            self.assertEqual(tuple(record.properties_stored for record in records), stored)

    def test_too_long_or_no_text_at_all_is_refused(self) -> None:
        too_long = Message("T", b"x", properties_stored="x" * 32768)
        exceeded = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED
        self.assert_refused(self.store.put_message(too_long), *exceeded)
        illegal = PutMessageStatus.MESSAGE_ILLEGAL, AppendMessageStatus.UNKNOWN_ERROR
        self.assert_refused(self.store.put_message(Message("T", b"x", properties_stored="\ud800")), *illegal)


class RefusalTests(PutTestCase):
    """4.1-4.3: each with its answer, and nothing written."""

    def setUp(self) -> None:
        super().setUp()
        self.put(sized(200))
        self.before = self.written()

    def tearDown(self) -> None:
        self.assertEqual(self.written(), self.before)

    def assert_message_refused(
        self, message: Message, append: AppendMessageStatus, status: PutMessageStatus = PutMessageStatus.MESSAGE_ILLEGAL
    ) -> None:
        self.assert_refused(self.store.put_message(message), status, append)

    def assert_batch_refused(
        self,
        inner: Sequence[Message],
        append: AppendMessageStatus = AppendMessageStatus.UNKNOWN_ERROR,
        status: PutMessageStatus = PutMessageStatus.MESSAGE_ILLEGAL,
        **fields: Any,
    ) -> None:
        self.assert_refused(
            self.store.put_messages(MessageBatch(fields.pop("topic", "T"), inner, **fields)), status, append
        )

    def test_a_topic_that_is_too_long_or_none_at_all(self) -> None:
        for topic in ("t" * 128, "é" * 64, "", "a/b", "..", "nul\0", "lone \ud800 surrogate"):
            with self.subTest(topic):
                self.assert_message_refused(Message(topic, b""), AppendMessageStatus.UNKNOWN_ERROR)
                self.assert_batch_refused([Message("", b"")], topic=topic)

    def test_a_record_larger_than_allowed(self) -> None:
        self.assert_message_refused(sized(3001), AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)
        v6 = replace(sized(2989), born_host=Host(bytes(16), 0))
        self.assert_message_refused(v6, AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)

    def test_properties_longer_than_their_length_can_say(self) -> None:
        for properties in ({"k": "v" * (MAX_PROPERTIES_BYTES - 1)}, {"k": "é" * (MAX_PROPERTIES_BYTES // 2)}):
            self.assert_message_refused(
                Message("T", b"", properties),
                AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
            )
            self.assert_batch_refused(
                [Message("", b"", properties)],
                AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
            )

    def test_properties_that_could_not_be_read_back(self) -> None:
        for properties in ({"": "v"}, {"k": ""}, {"k\x01": "v"}, {"k": "a\x02b"}, {"k": "\ud800"}):
            with self.subTest(properties):
                self.assert_message_refused(Message("T", b"", properties), AppendMessageStatus.UNKNOWN_ERROR)

    def test_numbers_that_have_no_room_in_their_field(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"queue_id": 2**31},
            {"flag": -(2**31) - 1},
            {"born_timestamp": 2**63},
            {"sys_flag": 2**32},
        ]
        for fields in wrong:
            with self.subTest(fields):
                message = replace(Message("T", b""), **fields)
                self.assert_message_refused(message, AppendMessageStatus.UNKNOWN_ERROR)

    def test_batches_that_may_not_be(self) -> None:
        plain = [Message("", b"x")]
        self.assert_batch_refused([])
        for kind in (TRANSACTION_PREPARED_TYPE, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE):
            self.assert_batch_refused(plain, sys_flag=kind)
        self.assert_batch_refused([*plain, Message("", b"x", {"DELAY": "1"})])
        self.assert_batch_refused(plain, properties={"DELAY": "1"})

    def test_a_batch_with_one_message_too_large_or_too_large_as_a_whole(self) -> None:
        exceeded = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
        self.assert_batch_refused([Message("", b"x"), Message("", b"x" * 3000)], exceeded)
        self.assert_batch_refused([Message("", b"x" * 700)] * 4, exceeded)

    def test_a_store_marked_full(self) -> None:
        self.store.puts.disk_full = True
        self.assert_refused(self.store.put_message(sized(200)), PutMessageStatus.SERVICE_NOT_AVAILABLE, None)

    def test_a_closed_store_and_one_that_is_closing(self) -> None:
        self.flusher.flush()
        self.stores.remove(self.store)
        closing = self.store.close(self.flusher)
        self.assertNoResult(closing)
        self.assert_refused(self.store.put_message(sized(200)), PutMessageStatus.SERVICE_NOT_AVAILABLE, None)
        self.thread.run()
        self.successResultOf(closing)
        batch = MessageBatch("T", [sized(200)])
        self.assert_refused(self.store.put_messages(batch), PutMessageStatus.SERVICE_NOT_AVAILABLE, None)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.open()

    def test_a_slave(self) -> None:
        before = self.before
        self.open_new(broker_role=BrokerRole.SLAVE)
        self.assert_refused(self.store.put_message(sized(200)), PutMessageStatus.SERVICE_NOT_AVAILABLE, None)
        self.assertEqual(self.log.segment_bases, [])
        self.log = self.stores[0].commit_log
        self.assertEqual(self.written(), before)


class TimeTests(PutTestCase):
    def test_store_timestamps_never_go_back_though_the_clock_does(self) -> None:
        stamps = []
        for step in (0, 5, -3_600_000, 1, 3_600_005, 10):
            self.now_ms += step
            stamps.append(self.put(sized(100)).store_timestamp)
        self.assertEqual(stamps, [NOW_MS, NOW_MS + 5, NOW_MS + 5, NOW_MS + 5, NOW_MS + 11, NOW_MS + 21])

    def test_nor_over_a_restart(self) -> None:
        self.put(sized(100))
        self.now_ms -= 10_000
        self.reopen()
        self.assertEqual(self.put(sized(100)).store_timestamp, NOW_MS)

    def test_a_batch_has_one(self) -> None:
        moments = iter(range(NOW_MS, NOW_MS + 100))
        self.patch(time, "time_ns", lambda: next(moments) * 1_000_000)
        result = self.put_batch(MessageBatch("T", [Message("", b"x")] * 3))
        self.assertEqual({self.record_at(at).store_timestamp for at in result.message_offsets}, {NOW_MS})


class MsgIdTests(PutTestCase):
    """3.10."""

    def test_it_is_store_host_and_offset(self) -> None:
        host = Host.parse("127.0.0.1", 10911)
        self.assertEqual(self.put(Message("T", b"", store_host=host)).msg_id, "7F00000100002A9F0000000000000000")
        second = self.put(Message("T", b"", store_host=Host.parse("2001:db8::2", 1)))
        self.assertEqual(second.msg_id, "20010DB8000000000000000000000002" + "00000001" + f"{second.wrote_offset:016X}")
        record = self.store.reader.message_by_id(second.msg_id)
        assert record is not None
        self.assertEqual(record.physical_offset, second.wrote_offset)

    def test_that_of_a_batch_is_all_of_them(self) -> None:
        result = self.put_batch(MessageBatch("T", [Message("", b"x")] * 3))
        ids = result.msg_id.split(",")
        self.assertEqual([int(msg_id[16:], 16) for msg_id in ids], list(result.message_offsets))

    def test_those_of_any_batch_are_those_of_its_messages(self) -> None:
        for host in (Host.parse("127.0.0.1", 10911), Host.parse("2001:db8::2", 1)):
            for offsets in ((), (0, 2**62), tuple(range(0, 10_000, 97))):
                of_batch = AppendMessageResult(AppendMessageStatus.PUT_OK, store_host=host, message_offsets=offsets)
                self.assertEqual(of_batch.msg_id, ",".join(format_msg_id(host, offset) for offset in offsets))


class LongBatchTests(PutTestCase):
    """What cannot be done in steps, because no other put may come between, does nothing for each message in Python."""

    settings = replace(PutTestCase.settings, mapped_file_size_commit_log=1 << 20, max_message_size_bytes=1 << 20)

    def lines_run(self, count: int) -> int:
        """How many lines of Python the append of a prepared batch and its answer run."""
        batch = MessageBatch("T", [Message("", b"x")] * count)
        prepared = at_once(self.store.prepare_messages(batch))
        lines = 0

        def trace(_: FrameType, event: str, __: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            result = self.successResultOf(self.store.put_prepared(prepared))
            assert result.append is not None
            ids = result.append.msg_id
        finally:
            sys.settrace(before)
        self.assertEqual(ids.count(",") + 1, count)
        return lines

    def test_a_longer_batch_runs_no_more_lines(self) -> None:
        self.lines_run(100)
        self.assertLess(self.lines_run(5000), 2 * self.lines_run(100))


class SyncFlushTests(PutTestCase):
    """5.2: nothing is acknowledged before it is on the disk."""

    settings = replace(PutTestCase.settings, flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=5000)

    def status_of(self, putting: "Deferred[PutMessageResult]") -> PutMessageStatus:
        return self.successResultOf(putting).status

    def test_a_put_is_answered_only_after_its_flush(self) -> None:
        synced: list[int] = []
        fdatasync = os.fdatasync

        def record(fd: int) -> None:
            synced.append(fd)
            fdatasync(fd)

        self.patch(os, "fdatasync", record)
        putting = self.store.put_message(sized(200))
        self.assertNoResult(putting)
        self.assertEqual(synced, [])
        self.thread.run()
        self.assertEqual(len(synced), 1)
        self.assertEqual(self.status_of(putting), PutMessageStatus.PUT_OK)
        self.assertEqual(self.log.flushed_offset, 200)
        self.assertNotIn(5.0, [call.getTime() for call in self.clock.getDelayedCalls()])

    def test_one_that_comes_while_a_flush_runs_waits_for_the_next(self) -> None:
        first = self.store.put_message(sized(200))
        second = self.store.put_messages(MessageBatch("T", [sized(200)]))
        self.thread.run()
        self.successResultOf(first)
        self.assertNoResult(second)
        self.thread.run()
        self.assertEqual(self.status_of(second), PutMessageStatus.PUT_OK)

    def test_all_that_wait_at_once_are_served_by_one_flush(self) -> None:
        first = self.store.put_message(sized(200))
        others = [self.store.put_message(sized(300)) for _ in range(50)]  # several segments
        self.thread.run()
        self.successResultOf(first)
        self.thread.run()
        self.assertEqual({self.status_of(putting) for putting in others}, {PutMessageStatus.PUT_OK})
        self.assertEqual((self.thread.calls, self.thread.waiting), (2, []))

    def test_at_the_deadline_it_is_stored_but_not_on_the_disk(self) -> None:
        first = self.store.put_message(sized(200))
        self.clock.advance(1)
        second = self.store.put_message(sized(200))
        self.clock.advance(3.999)
        self.assertNoResult(first)
        self.clock.advance(0.001)
        result = self.successResultOf(first)
        self.assertEqual((result.status, result.is_stored), (PutMessageStatus.FLUSH_DISK_TIMEOUT, True))
        self.assertNoResult(second)
        self.thread.run()
        self.assertNoResult(second)
        self.thread.run()
        self.assertEqual(self.status_of(second), PutMessageStatus.PUT_OK)

    def test_who_does_not_wait_is_answered_at_once(self) -> None:
        for text in ("false", "FALSE", "no", "1", "yes"):
            self.assertEqual(
                self.status_of(self.store.put_message(sized(300, properties={"WAIT": text}))), PutMessageStatus.PUT_OK
            )
        batch = MessageBatch("T", [sized(200)], is_wait_store_msg_ok=False)
        self.assertEqual(self.status_of(self.store.put_messages(batch)), PutMessageStatus.PUT_OK)
        self.assertEqual(self.log.flushed_offset, 0)

    def test_who_says_true_waits(self) -> None:
        for text in ("true", "True", "TRUE"):
            self.assertNoResult(self.store.put_message(sized(300, properties={"WAIT": text})))

    def test_without_sync_flush_nobody_waits(self) -> None:
        self.open_new(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
        self.assertEqual(self.status_of(self.store.put_message(sized(200))), PutMessageStatus.PUT_OK)
        self.assertEqual(self.thread.calls, 0)

    def test_closing_answers_who_still_waits(self) -> None:
        first, second = self.store.put_message(sized(200)), self.store.put_message(sized(200))
        self.stores.remove(self.store)
        closing = self.store.close(self.flusher)
        self.thread.run()
        self.successResultOf(closing)
        self.assertEqual([self.status_of(first), self.status_of(second)], [PutMessageStatus.PUT_OK] * 2)
        self.assertEqual(self.log.flushed_offset, 400)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_flush_that_fails_ends_all_waits_and_all_puts(self) -> None:
        def refuse(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        waiting = [self.store.put_message(sized(200)) for _ in range(3)]
        with patch.object(os, "fdatasync", refuse):
            self.thread.run()
        self.assertEqual([self.status_of(putting) for putting in waiting], [PutMessageStatus.FLUSH_DISK_TIMEOUT] * 3)
        late = self.store.put_message(sized(200))
        self.assert_refused(late, PutMessageStatus.SERVICE_NOT_AVAILABLE, None)
        self.clock.pump([0.5] * 100)
        self.assertEqual((len(self.failures), self.thread.calls), (1, 1))
        error = self.failures[0].value
        assert isinstance(error, OSError)
        self.assertEqual(error.errno, errno.EIO)
        self.assertEqual(self.log.flushed_offset, 0)
        self.stores.remove(self.store)
        self.successResultOf(self.store.close(self.flusher))
        self.assertTrue((self.root / "abort").exists())
        self.assertEqual(self.log.flushed_offset, 0)


class TogetherTests(PutTestCase):
    """Messages that arrived together: a pass takes them, and what it declines is put alone."""

    def open(self, **changed: Any) -> None:
        super().open(**changed)
        self.sends = Sends(self.store)

    def test_they_go_on_in_the_next_segment(self) -> None:
        puts = self.sends.put(*(sized(900) for _ in range(9)))
        self.assertEqual(statuses_of(puts), [PutMessageStatus.PUT_OK] * 9)
        offsets = offsets_of(puts)
        self.assertEqual(offsets, [0, 900, 1800, 2700, *(SEGMENT_SIZE + 900 * at for at in range(4)), 2 * SEGMENT_SIZE])
        for number, offset in enumerate(offsets):
            self.assertEqual(self.record_at(offset).queue_offset, number)
        self.assertEqual(self.log.last_message_offset, offsets[-1])
        self.assertEqual([put.by_pass for put in puts], [True] * 4 + [False] + [True] * 3 + [False])
        self.assertEqual([run.declined for run in self.sends.runs], [Declined.SEGMENT] * 2)

    def test_a_segment_is_filled_to_its_last_byte(self) -> None:
        """But for the blank that ends it."""
        room = SEGMENT_SIZE - END_FILE_MIN_BLANK_LENGTH
        for missing in (-1, 0, 1):
            self.open_new(max_message_size_bytes=10_000)
            puts = self.sends.put(sized(1000), sized(room - 1000 - missing), sized(100))
            self.assertEqual(statuses_of(puts), [OK] * 3)
            fits = missing >= 0
            self.assertEqual([put.by_pass for put in puts], [True, fits, not fits])
            after = [1000, SEGMENT_SIZE] if fits else [SEGMENT_SIZE, SEGMENT_SIZE + room - 999]
            self.assertEqual(offsets_of(puts), [0, *after])

    def test_one_that_fits_no_segment_is_refused_alone(self) -> None:
        self.open_new(max_message_size_bytes=10_000)
        puts = self.sends.put(sized(200), sized(SEGMENT_SIZE), sized(200))
        self.assertEqual(
            statuses_of(puts), [PutMessageStatus.PUT_OK, PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PUT_OK]
        )
        self.assertEqual(offsets_of(puts), [0, 200])

    def test_all_wait_for_the_last(self) -> None:
        self.open_new(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        puts = self.sends.put(sized(200), sized(200))
        self.assertEqual(statuses_of(puts), [])
        self.thread.run()
        self.assertEqual(statuses_of(puts), [PutMessageStatus.PUT_OK] * 2)
        self.assertEqual(self.store.put_figures.durations.count, 2)

    def test_none_is_ok_if_the_flush_is_late(self) -> None:
        self.open_new(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        puts = self.sends.put(sized(200), sized(200))
        self.clock.advance(10)
        self.assertEqual(statuses_of(puts), [PutMessageStatus.FLUSH_DISK_TIMEOUT] * 2)
        self.assertEqual(self.store.put_figures.by_status()[PutMessageStatus.FLUSH_DISK_TIMEOUT], 2)

    def test_a_store_that_takes_none_refuses_all(self) -> None:
        self.store.end_puts()
        puts = self.sends.put(sized(200), sized(200))
        self.assertEqual(statuses_of(puts), [PutMessageStatus.SERVICE_NOT_AVAILABLE] * 2)
        self.assertEqual(self.store.put_figures.by_status()[PutMessageStatus.SERVICE_NOT_AVAILABLE], 2)
        self.assertEqual((self.sends.runs, self.log.max_offset), ([], 0))

    def test_too_few_replicas_refuse_all(self) -> None:
        replicas = FakeReplicas(self.clock)
        replicas.enough = False
        self.store.replicate_by(replicas)
        puts = self.sends.put(sized(200), sized(200))
        self.assertEqual(statuses_of(puts), [PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH] * 2)
        self.assertEqual((self.sends.runs, self.log.max_offset), ([], 0))

    def test_a_store_that_takes_no_more_answers_those_that_wait_for_replicas(self) -> None:
        """Their clients are still connected."""
        self.store.replicate_by(FakeReplicas(self.clock))
        puts = self.sends.put(sized(200), sized(200))
        self.assertEqual(statuses_of(puts), [])
        self.store.end_puts()
        self.assertEqual(statuses_of(puts), [PutMessageStatus.FLUSH_SLAVE_TIMEOUT] * 2)

    def test_one_in_eight_is_timed(self) -> None:
        for count in (3, 2, 2, 1, 8, 16):
            self.assertEqual(statuses_of(self.sends.put(*(sized(100) for _ in range(count)))), [OK] * count)
        self.assertEqual(self.store.put_figures.durations.count, 4)


class FullDiskTests(PutTestCase):
    """A disk with room for only this many more bytes."""

    def limit(self, room: int, code: int = errno.ENOSPC) -> Any:
        """A patch of ``os.pwritev`` and ``os.pwrite``: what goes beyond ``room`` bytes is refused."""
        pwrite, left = os.pwrite, [room]

        def take(fd: int, data: bytes | memoryview, at: int) -> int:
            if not left[0]:
                raise OSError(code, os.strerror(code))
            taken = min(left[0], len(data))
            left[0] -= taken
            return pwrite(fd, data[:taken], at)

        return patch.multiple(os, pwrite=take, pwritev=lambda fd, pieces, at: take(fd, b"".join(pieces), at))

    def assert_recovers(self, offsets: list[int]) -> None:
        """After a kill the log is these messages, and nothing was cut."""
        end = self.log.max_offset
        self.reopen()
        self.assertEqual((self.store.recovery.end, self.store.recovery.cut_bytes), (end, 0))
        for number, offset in enumerate(offsets):
            self.assertEqual(self.record_at(offset).queue_offset, number)

    def test_whatever_the_room_the_put_is_refused_and_the_next_one_works(self) -> None:
        for room in (0, 1, 7, 8, 50, 199):
            with self.subTest(room):
                self.open_new()
                self.put(sized(300))
                before = held(self.log)
                with self.limit(room), log_lines() as lines:
                    for _ in range(3):
                        self.assert_refused(
                            self.store.put_message(sized(200)), PutMessageStatus.CREATE_MAPEDFILE_FAILED, None
                        )
                    self.assertEqual(lines().count("refused a message"), 1)
                    self.assertEqual((self.log.max_offset, held(self.log)), (300, before))
                    self.assertIsNone(self.log.get_data(300, 1))
                self.assertEqual(self.log.stale_end(300), 300)
                result = self.put(sized(120))
                self.assertEqual((result.wrote_offset, result.logics_offset), (300, 1))
                self.assertEqual(self.failures, [])
                self.assert_recovers([0, 300])

    def test_of_those_that_arrive_together_the_ones_that_fit_are_stored(self) -> None:
        pwrite, end = os.pwrite, 520

        def write(fd: int, data: bytes | memoryview, at: int) -> int:
            if at >= end:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return pwrite(fd, data[: end - at], at)

        with patch.multiple(os, pwrite=write, pwritev=lambda fd, pieces, at: write(fd, b"".join(pieces), at)):
            puts = Sends(self.store).put(sized(200), sized(200), sized(300), sized(100))
        self.assertEqual(statuses_of(puts), [OK, OK, PutMessageStatus.CREATE_MAPEDFILE_FAILED, OK])
        self.assertEqual(offsets_of(puts), [0, 200, 400])
        self.assertEqual((self.log.max_offset, self.log.stale_end(500)), (500, 500))
        self.assertEqual(self.failures, [])
        self.assert_recovers([0, 200, 400])

    def test_a_pass_is_not_tried_for_each_message_while_there_is_no_room(self) -> None:
        """Else a read of many messages is encoded as many times."""
        sends = Sends(self.store)
        tried: list[int] = []
        put_run = self.store.puts.put_run

        def count(run: SendRun) -> Any:
            tried.append(run.count)
            return put_run(run)

        self.patch(self.store.puts, "put_run", count)
        with self.limit(0):
            self.assertEqual(
                statuses_of(sends.put(*[sized(200)] * 20)), [PutMessageStatus.CREATE_MAPEDFILE_FAILED] * 20
            )
        self.assertEqual(tried, [20])
        self.assertEqual(statuses_of(sends.put(sized(200), sized(200), sized(200))), [OK] * 3)
        self.assertEqual(tried, [20, 2], "the first shows that there is room again")
        self.assert_recovers([0, 200, 400])

    def test_at_the_end_of_a_segment_too(self) -> None:
        """The blank and the record, which are two writes."""
        for room in (0, 1, 7, 8, 9, 100):
            with self.subTest(room):
                self.open_new()
                self.put(sized(2000))
                self.put(sized(2000))
                with self.limit(room):
                    for _ in range(3):
                        self.assert_refused(
                            self.store.put_message(sized(200)), PutMessageStatus.CREATE_MAPEDFILE_FAILED, None
                        )
                result = self.put(sized(200))
                self.assertEqual((result.wrote_offset, result.logics_offset), (SEGMENT_SIZE, 2))
                self.assert_recovers([0, 2000, SEGMENT_SIZE])

    def test_a_segment_that_cannot_be_made(self) -> None:
        def refuse(fd: int, size: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.put(sized(2000))
        self.put(sized(2000))
        with patch.object(os, "ftruncate", refuse):
            for _ in range(2):
                self.assert_refused(self.store.put_message(sized(200)), PutMessageStatus.CREATE_MAPEDFILE_FAILED, None)
        self.assertEqual(self.put(sized(200)).wrote_offset, SEGMENT_SIZE)
        self.assert_recovers([0, 2000, SEGMENT_SIZE])

    def test_a_store_says_that_it_has_no_room_until_something_fits(self) -> None:
        """A failover cluster asks this: another node with room leads then, whatever the disk's numbers say."""
        self.put(sized(300))
        self.assertFalse(self.store.has_no_room)
        with self.limit(0):
            self.store.put_message(sized(200))
            self.assertTrue(self.store.has_no_room)
            self.assertFalse(self.store.puts.disk_full)
        self.assertTrue(self.store.has_no_room)
        self.put(sized(200))
        self.assertFalse(self.store.has_no_room)

    def test_a_refused_batch_leaves_none_of_its_messages(self) -> None:
        batch = MessageBatch("T", [sized(200)] * 5)
        with self.limit(450):
            self.assert_refused(self.store.put_messages(batch), PutMessageStatus.CREATE_MAPEDFILE_FAILED, None)
        self.assertEqual(self.log.max_offset, 0)
        result = self.put_batch(batch)
        self.assertEqual((result.logics_offset, len(result.message_offsets)), (0, 5))

    def test_a_store_stopped_while_its_disk_is_full_is_sound(self) -> None:
        self.put(sized(300))
        with self.limit(100):
            self.store.put_message(sized(200))
        self.stores.remove(self.store)
        self.successResultOf(self.store.close(self.flusher))
        (segment,) = (self.root / "commitlog").iterdir()
        self.assertEqual(segment.read_bytes()[300:].strip(b"\0"), b"")

    def test_queues_and_index_wait_for_room_and_lose_nothing(self) -> None:
        keys = [f"k{number}" for number in range(150)]  # more than one index file holds
        for room in (0, 10, 30, 700, 3000):
            with self.subTest(room):
                self.open_new(mapped_file_size_consume_queue=200)
                self.store.put_message(Message("T", b"", {"KEYS": "before"}))
                self.clock.advance(1)
                for key in keys:
                    self.put(Message("T", b"", {"KEYS": key}))
                with self.limit(room):
                    self.clock.pump([0.5] * 20)
                    self.assertEqual(self.failures, [])
                self.clock.pump([0.5] * 10)
                self.assertEqual(self.store.derived.dispatcher.behind_bytes, 0)
                self.assertEqual(self.store.reader.max_offset("T", 0), 151)
                for number, key in enumerate(["before", *keys]):
                    (found,) = self.store.reader.query_message("T", key, 10, 0, 2**62)
                    self.assertEqual(found.queue_offset, number)

    def test_without_room_for_a_checkpoint_flushes_go_on(self) -> None:
        self.put(sized(300))
        with self.limit(0):
            self.clock.advance(10)
            self.thread.run()
        self.assertEqual((self.failures, self.log.flushed_offset), ([], 300))
        self.put(sized(300))
        self.clock.pump([0.5] * 20)
        self.thread.run()
        self.assertEqual((self.failures, self.log.flushed_offset), ([], 600))
        self.assertEqual(Checkpoint.read(self.root / "checkpoint").physic_msg_timestamp, NOW_MS)

    def test_any_other_error_is_the_end(self) -> None:
        self.open_new(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        earlier = self.store.put_message(sized(200))
        with self.limit(100, errno.EIO):
            self.assert_refused(self.store.put_message(sized(200)), PutMessageStatus.UNKNOWN_ERROR, None)
        self.assertIs(self.successResultOf(earlier).status, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        for _ in range(2):
            refused = self.store.put_message(sized(200))
            self.assert_refused(refused, PutMessageStatus.SERVICE_NOT_AVAILABLE, None)
        self.assertEqual(len(self.failures), 1)
        self.thread.run()
        self.stores.remove(self.store)
        self.successResultOf(self.store.close(self.flusher))
        self.assertTrue((self.root / "abort").exists())


class PlacedBatchTests(SynchronousTestCase):
    """The places of a batch's records, written with arrays or one by one."""

    @given(
        st.lists(st.integers(0, 40), min_size=1, max_size=200),
        HOSTS,
        INT64.filter(lambda number: number < 2**62),
        INT64.filter(lambda number: number < 2**62),
        INT64,
    )
    def test_both_ways_write_the_same(
        self, sizes: list[int], host: Host, queue_offset: int, physical_offset: int, timestamp: int
    ) -> None:
        written = []
        for many in (1, 10**9):
            with patch.object(put, "MANY_RECORDS", many):
                batch = put.PreparedBatch(MessageBatch("T", [], {}, born_host=host))
                for size in sizes:
                    batch.starts.append(len(batch.data))
                    batch.data += encode_record(Record("T", b"x" * size, born_host=host))
                written.append(batch.placed(queue_offset, physical_offset, timestamp))
        self.assertEqual(written[0], written[1])
        first = decode_record(written[0])
        assert isinstance(first, Record)
        self.assertEqual(
            (first.queue_offset, first.physical_offset, first.store_timestamp),
            (queue_offset, physical_offset, timestamp),
        )
