"""Reading messages by offset, key, id and time (spec/store.md 11)."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings
from rmqha.store.derived.consumequeue import Unit
from rmqha.store.reading import MIN_UNITS_EXAMINED, TAG_HASH_MASK, GetMessageResult, GetMessageStatus, MessageReader
from rmqha.wire.javahash import java_hash
from rmqha.wire.record import Host, Record, encode_record
from tests.store.derived.test_dispatch import DispatchTestCase
from tests.store.logs import SEGMENT_SIZE
from tests.store.queues import FOREVER

OVERHEAD = Record("T", b"").total_size
FILE_UNITS = 5


class ReadingTestCase(DispatchTestCase):
    """Has a log with queues of five units a file, and readers of it."""

    def reader(self, is_slave: bool = False, memory_bytes: int | None = None, **settings: Any) -> MessageReader:
        """A reader; ``memory_bytes`` of the log's end count as in memory."""
        self.dispatcher.catch_up()
        changed = replace(Settings(), access_message_in_memory_max_ratio=50, **settings)
        pages = {"SC_PHYS_PAGES": 2 * (FOREVER if memory_bytes is None else memory_bytes), "SC_PAGE_SIZE": 1}
        with patch("rmqha.store.reading.os.sysconf", pages.__getitem__):
            return MessageReader(self.log, self.queues, self.index, changed, is_slave)

    def raw(self, record: Record) -> bytes:
        return encode_record(record)

    def check_found(self, result: GetMessageResult, records: list[Record]) -> None:
        self.assertEqual(result.status, GetMessageStatus.FOUND)
        self.assertEqual(result.records, tuple(self.raw(record) for record in records))
        self.assertEqual(result.total_bytes, sum(record.total_size for record in records))


class StatusTests(ReadingTestCase):
    """The table of store.md 11.1; a slave leaves the offset as it was asked for, unless offsetCheckInSlave."""

    def check_nothing(self, offset: int, status: GetMessageStatus, corrected: int, low: int, high: int) -> None:
        for is_slave, checks, expected in (
            (False, False, corrected),
            (False, True, corrected),
            (True, False, offset),
            (True, True, corrected),
        ):
            reader = self.reader(is_slave, offset_check_in_slave=checks)
            result = reader.get_message("T", 0, offset, 32)
            self.assertEqual(result, GetMessageResult(status, expected, low, high), (is_slave, checks))

    def test_no_message_in_the_queue(self) -> None:
        for offset in (0, 5):
            self.check_nothing(offset, GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        self.writer.put("T", 1)
        self.check_nothing(0, GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        self.assertIsNone(self.queues.get("T", 0), "asking makes no queue")

    def test_offsets_outside_the_queue(self) -> None:
        for _ in range(7):
            self.writer.put()
        self.check_nothing(7, GetMessageStatus.OFFSET_OVERFLOW_ONE, 7, 0, 7)
        self.check_nothing(8, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 7, 0, 7)
        self.check_nothing(-1, GetMessageStatus.OFFSET_TOO_SMALL, 0, 0, 7)

    def test_offsets_outside_a_queue_that_begins_later(self) -> None:
        records = [self.writer.put() for _ in range(7)]
        self.dispatcher.catch_up()
        self.queues.queues["T", 0].correct_min_offset(records[3].physical_offset)
        self.check_nothing(2, GetMessageStatus.OFFSET_TOO_SMALL, 3, 3, 7)
        self.check_nothing(0, GetMessageStatus.OFFSET_TOO_SMALL, 3, 3, 7)
        self.check_nothing(7, GetMessageStatus.OFFSET_OVERFLOW_ONE, 7, 3, 7)
        self.check_nothing(8, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 7, 3, 7)
        self.check_found(self.reader().get_message("T", 0, 3, 32), records[3:5])

    def test_a_place_without_a_file(self) -> None:
        for _ in range(7):
            self.writer.put()
        self.dispatcher.catch_up()
        self.queues.queues["T", 0]._queue.remove_first()
        self.check_nothing(2, GetMessageStatus.OFFSET_FOUND_NULL, FILE_UNITS, 0, 7)

    def test_found(self) -> None:
        records = [self.writer.put(body=b"%d" % number) for number in range(7)]
        for is_slave in (False, True):
            result = self.reader(is_slave).get_message("T", 0, 1, 3)
            self.check_found(result, records[1:4])
            self.assertEqual((result.next_begin_offset, result.min_offset, result.max_offset), (4, 0, 7))

    def test_nothing_that_is_wanted(self) -> None:
        for _ in range(7):
            self.writer.put(TAGS="TagA")
        for is_slave in (False, True):
            result = self.reader(is_slave).get_message("T", 0, 1, 32, lambda _: False)
            self.assertEqual(result, GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, FILE_UNITS, 0, 7))

    def test_messages_that_are_being_removed(self) -> None:
        """The log has let go of segments, the queue does not know yet."""
        records = [self.writer.put(body=bytes(600)) for _ in range(12)]
        gone = sum(record.physical_offset < SEGMENT_SIZE for record in records)
        self.assertEqual(gone, FILE_UNITS)
        reader = self.reader()
        self.log.delete_first_segment()
        result = reader.get_message("T", 0, 2, 32)
        self.assertEqual(result, GetMessageResult(GetMessageStatus.MESSAGE_WAS_REMOVING, gone, 0, 12))
        self.check_found(reader.get_message("T", 0, gone, 32), records[gone : 2 * FILE_UNITS])

    def test_messages_behind_removed_ones_are_found(self) -> None:
        records = [self.writer.put(body=bytes(1300)) for _ in range(5)]
        reader = self.reader()
        self.log.delete_first_segment()
        first = next(number for number, record in enumerate(records) if record.physical_offset >= SEGMENT_SIZE)
        self.assertIn(first, range(1, 5))
        asked: list[int] = []
        select = self.log.select_from

        def counted(offset: int, size: int) -> memoryview | None:
            asked.append(offset)
            return select(offset, size)

        with patch.object(self.log, "select_from", counted):
            result = reader.get_message("T", 0, 0, 32)
        self.check_found(result, records[first:])
        self.assertEqual(result.next_begin_offset, 5)
        segments = {each.physical_offset // SEGMENT_SIZE: each.physical_offset for each in reversed(records)}
        self.assertGreater(len(segments), 2)
        self.assertEqual(asked, sorted(segments.values()), "each segment is asked for once, also one that is gone")

    def test_blanks_are_no_messages(self) -> None:
        first = self.writer.put(body=bytes(300))
        last = self.writer.put(queue_offset=3)
        reader = self.reader()
        self.check_found(reader.get_message("T", 0, 0, 32), [first, last])
        self.check_found(reader.get_message("T", 0, 1, 32), [last])
        self.assertEqual(reader.get_message("T", 0, 1, 32).next_begin_offset, 4)


class LimitTests(ReadingTestCase):
    segment_size = 1024 * 1024

    def setUp(self) -> None:
        super().setUp()
        self.queues.file_size = 2000 * 20

    def test_no_more_messages_than_asked_for(self) -> None:
        records = [self.writer.put() for _ in range(40)]
        reader = self.reader()
        for most in (1, 2, 31, 32):
            result = reader.get_message("T", 0, 5, most)
            self.check_found(result, records[5 : 5 + most])
            self.assertEqual(result.next_begin_offset, 5 + most)

    def test_counts_in_memory_and_on_disk(self) -> None:
        records = [self.writer.put() for _ in range(60)]
        for memory_bytes, count in ((None, 32), (0, 8)):
            result = self.reader(memory_bytes=memory_bytes).get_message("T", 0, 0, 1000)
            self.check_found(result, records[:count])
            self.assertEqual(result.next_begin_offset, count)

    def test_counts_as_configured(self) -> None:
        records = [self.writer.put() for _ in range(60)]
        for memory_bytes, count in ((None, 7), (0, 3)):
            reader = self.reader(
                memory_bytes=memory_bytes,
                max_transfer_count_on_message_in_memory=7,
                max_transfer_count_on_message_in_disk=3,
            )
            self.check_found(reader.get_message("T", 0, 0, 1000), records[:count])

    def test_bytes_in_memory_and_on_disk(self) -> None:
        records = [self.writer.put(body=bytes(1000 - OVERHEAD)) for _ in range(30)]
        for limit in (2999, 3000, 3001, 3999, 4000):
            for memory_bytes in (None, 0):
                reader = self.reader(
                    memory_bytes=memory_bytes,
                    max_transfer_bytes_on_message_in_memory=limit if memory_bytes is None else 1,
                    max_transfer_bytes_on_message_in_disk=limit if memory_bytes == 0 else 1,
                )
                self.check_found(reader.get_message("T", 0, 0, 1000), records[: limit // 1000])

    def test_a_batch_is_never_empty_because_of_limits(self) -> None:
        records = [self.writer.put(body=bytes(5000)) for _ in range(3)]
        for memory_bytes in (None, 0):
            reader = self.reader(
                memory_bytes=memory_bytes,
                max_transfer_bytes_on_message_in_memory=1,
                max_transfer_bytes_on_message_in_disk=1,
                max_transfer_count_on_message_in_memory=1,
                max_transfer_count_on_message_in_disk=1,
            )
            for offset in range(3):
                result = reader.get_message("T", 0, offset, 1)
                self.check_found(result, [records[offset]])
                self.assertEqual(result.next_begin_offset, offset + 1)

    def test_the_limits_change_where_the_disk_ends(self) -> None:
        """Each message counts by where it lies itself."""
        records = [self.writer.put(body=bytes(1000 - OVERHEAD)) for _ in range(40)]
        reader = self.reader(memory_bytes=35_000)
        self.check_found(reader.get_message("T", 0, 0, 1000), records[:32])
        reader = self.reader(memory_bytes=25_000)
        self.check_found(reader.get_message("T", 0, 0, 1000), records[:8])

    def test_a_read_ends_with_the_file_of_the_queue(self) -> None:
        self.queues.file_size = FILE_UNITS * 20
        records = [self.writer.put() for _ in range(12)]
        reader = self.reader()
        self.check_found(reader.get_message("T", 0, 3, 32), records[3:5])
        self.check_found(reader.get_message("T", 0, 5, 32), records[5:10])

    def test_not_more_units_are_looked_at_than_that(self) -> None:
        for number in range(MIN_UNITS_EXAMINED + 300):
            self.writer.put(TAGS=f"Tag{number}")
        reader = self.reader()
        asked: list[int] = []

        def unwanted(tags_code: int) -> bool:
            asked.append(tags_code)
            return False

        result = reader.get_message("T", 0, 0, 32, unwanted)
        self.assertEqual((len(asked), result.next_begin_offset), (MIN_UNITS_EXAMINED, MIN_UNITS_EXAMINED))
        result = reader.get_message("T", 0, 0, MIN_UNITS_EXAMINED + 100, unwanted)
        self.assertEqual(result.next_begin_offset, MIN_UNITS_EXAMINED + 100)


class FilterTests(ReadingTestCase):
    def test_messages_are_chosen_by_the_hash_of_their_tags(self) -> None:
        records = [self.writer.put(TAGS=f"Tag{'ABé'[number % 3]}") for number in range(5)]
        wanted = java_hash("TagB") & TAG_HASH_MASK
        result = self.reader().get_message("T", 0, 0, 32, lambda tags_code: tags_code & TAG_HASH_MASK == wanted)
        self.check_found(result, [records[1], records[4]])
        self.assertEqual(result.next_begin_offset, 5)

    def test_what_is_not_wanted_takes_no_room(self) -> None:
        records = [self.writer.put(TAGS=f"Tag{'AB'[number % 2]}") for number in range(5)]
        result = self.reader().get_message("T", 0, 0, 2, lambda tags_code: tags_code == java_hash("TagB"))
        self.check_found(result, [records[1], records[3]])
        self.assertEqual(result.next_begin_offset, 4)


class SuggestionTests(ReadingTestCase):
    segment_size = 1024 * 1024

    def test_reads_far_behind_are_the_slaves(self) -> None:
        """More than memory lies behind the last message looked at."""
        for _ in range(5):
            self.writer.put(body=bytes(1000 - OVERHEAD))
        for memory_bytes, expected in ((2000, True), (2999, True), (3000, False), (3001, False)):
            result = self.reader(memory_bytes=memory_bytes).get_message("T", 0, 0, 2)
            self.assertEqual((len(result.records), result.suggest_pulling_from_slave), (2, expected), memory_bytes)

    def test_without_a_message_nothing_is_suggested(self) -> None:
        self.writer.put()
        self.assertFalse(self.reader(memory_bytes=0).get_message("T", 0, 1, 32).suggest_pulling_from_slave)


class ByIdTests(ReadingTestCase):
    def test_a_message_by_its_id(self) -> None:
        for host in (Host(b"\x7f\0\0\x01", 10911), Host(bytes(range(16)), 10911)):
            record = self.writer.put(body=b"body", store_host=host)
            self.assertEqual(self.reader().message_by_id(record.msg_id), record)
            other = replace(record, store_host=replace_port(host))
            self.assertIsNone(self.reader().message_by_id(other.msg_id), "the id is another broker's")

    def test_what_is_no_id(self) -> None:
        for text in ("", "7F00", "x" * 32):
            with self.assertRaises(ValueError):
                self.reader().message_by_id(text)

    def test_only_where_a_message_begins(self) -> None:
        records = [self.writer.put(body=bytes(700)) for _ in range(8)]
        reader = self.reader()
        begins = {record.physical_offset: record for record in records}
        self.assertGreater(self.log.max_offset, SEGMENT_SIZE)
        for offset in range(-3, self.log.max_offset + 300):
            self.assertEqual(reader.message_at(offset), begins.get(offset))

    def test_a_message_within_a_body_is_none(self) -> None:
        inner = encode_record(Record("T", b"inner", physical_offset=7))
        self.writer.put(body=inner)
        reader = self.reader()
        self.assertEqual(self.log.get_data(88, len(inner)), inner)
        self.assertIsNone(reader.message_at(88))


def replace_port(host: Host) -> Host:
    return Host(host.address, host.port + 1)


class ByKeyTests(ReadingTestCase):
    def offsets(self, topic: str, key: str, most: int = 64, begin: int = 0, end: int = FOREVER, **s: Any) -> list[int]:
        found = self.reader(**s).query_message(topic, key, most, begin, end)
        return [record.physical_offset for record in found]

    def test_by_each_of_its_keys(self) -> None:
        record = self.writer.put(KEYS="a b", UNIQ_KEY="u")
        other = self.writer.put("U", KEYS="a", UNIQ_KEY="b")
        for key in ("a", "b", "u"):
            self.assertEqual(self.offsets("T", key), [record.physical_offset])
        self.assertEqual([self.offsets("U", key) for key in ("a", "b")], [[other.physical_offset]] * 2)
        self.assertEqual([self.offsets("T", key) for key in ("", "a b", "c")], [[], [], []])

    def test_only_messages_that_have_the_key(self) -> None:
        """``Aa`` and ``BB`` have one hash."""
        first = [self.writer.put(KEYS="Aa").physical_offset for _ in range(2)]
        second = [self.writer.put(KEYS="BB").physical_offset for _ in range(30)]
        self.assertEqual((self.offsets("T", "Aa"), self.offsets("T", "BB")), (first, second))
        self.assertEqual(self.offsets("T", "Aa", 1), first[1:], "others of the hash do not take its places")
        self.assertEqual(self.offsets("T", "Aa", 2), first)

    def test_a_key_that_a_message_has_twice_finds_it_once(self) -> None:
        records = [self.writer.put(KEYS="k k", UNIQ_KEY="k") for _ in range(3)]
        offsets = [record.physical_offset for record in records]
        self.assertEqual((self.offsets("T", "k"), self.offsets("T", "k", 2)), (offsets, offsets[1:]))

    def test_the_newest_win_and_come_oldest_first(self) -> None:
        offsets = [self.writer.put(KEYS="k").physical_offset for _ in range(100)]
        self.assertEqual(self.offsets("T", "k"), offsets[-64:])
        self.assertEqual(self.offsets("T", "k", 1000), offsets[-64:], "maxMsgsNumBatch")
        self.assertEqual(self.offsets("T", "k", 1000, max_msgs_num_batch=5), offsets[-5:])
        self.assertEqual(self.offsets("T", "k", 3), offsets[-3:])
        self.assertEqual(self.offsets("T", "k", 0), [])

    def test_only_messages_of_that_time_to_the_millisecond(self) -> None:
        records = [self.writer.put(KEYS="k", store_timestamp=1_795_000_000_000 + 250 * n) for n in range(12)]
        for begin in (0, 1, 3, 4, 7):
            for end in (begin, begin + 1, begin + 4, 20):
                low, high = 1_795_000_000_000 + 250 * begin, 1_795_000_000_000 + 250 * end
                expected = [record.physical_offset for record in records[begin : end + 1]]
                self.assertEqual(self.offsets("T", "k", 64, low, high), expected)
                self.assertEqual(self.offsets("T", "k", 64, low - 1, high + 1), expected)

    def test_messages_that_are_gone_are_not_found(self) -> None:
        offsets = [self.writer.put(KEYS="k", body=bytes(700)).physical_offset for _ in range(8)]
        reader = self.reader()
        self.log.delete_first_segment()
        found = reader.query_message("T", "k", 64, 0, FOREVER)
        self.assertEqual([r.physical_offset for r in found], [o for o in offsets if o >= SEGMENT_SIZE])

    def test_without_an_index_nothing_is_found(self) -> None:
        self.writer.put(KEYS="k")
        self.dispatcher.catch_up()
        reader = MessageReader(self.log, self.queues, None, Settings(), False)
        self.assertEqual(reader.query_message("T", "k", 64, 0, FOREVER), [])


class OffsetTests(ReadingTestCase):
    def test_ends_and_times_of_a_queue(self) -> None:
        records = [self.writer.put() for _ in range(7)]
        reader = self.reader()
        self.assertEqual((reader.min_offset("T", 0), reader.max_offset("T", 0)), (0, 7))
        times = [record.store_timestamp for record in records]
        self.assertEqual([reader.message_store_timestamp("T", 0, number) for number in range(8)], [*times, -1])
        self.assertEqual(reader.earliest_message_time("T", 0), times[0])
        asked = [times[3], times[3] + 499, times[3] + 501, times[0] - 1, times[6] + 10_000]
        self.assertEqual([reader.offset_by_time("T", 0, at) for at in asked], [3, 4, 4, 0, 7])
        self.queues.queues["T", 0].correct_min_offset(records[2].physical_offset)
        self.assertEqual((reader.min_offset("T", 0), reader.earliest_message_time("T", 0)), (2, times[2]))
        self.assertEqual(reader.message_store_timestamp("T", 0, 1), -1)

    def test_without_a_queue(self) -> None:
        reader = self.reader()
        self.assertEqual((reader.min_offset("T", 0), reader.max_offset("T", 0)), (-1, 0))
        self.assertEqual((reader.offset_by_time("T", 0, 1), reader.earliest_message_time("T", 0)), (0, -1))

    def test_a_blank_has_no_time(self) -> None:
        self.writer.put()
        self.writer.put(queue_offset=2)
        self.assertEqual(self.reader().message_store_timestamp("T", 0, 1), -1)


class UnitTests(SynchronousTestCase):
    def test_every_status_says_something(self) -> None:
        """NO_MATCHED_LOGIC_QUEUE and OFFSET_RESET are never given here (store.md 11.1), but responses to them exist."""
        self.assertEqual(len({status.value for status in GetMessageStatus}), 11)
        self.assertTrue(Unit(0, 0x7FFFFFFF, 0).is_blank)
