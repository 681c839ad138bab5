"""Dispatch: what it makes of each message, how much at a time, and when (spec/store.md 8)."""

import errno
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.kit.progress import IBar
from rmqha.store.derived import consumequeue, dispatch, placing
from rmqha.store.derived.consumequeue import ConsumeQueue, Unit
from rmqha.store.derived.dispatch import (
    BULK_PAUSE_SECONDS,
    BUSY_PAUSE_SECONDS,
    DISK_FULL_PAUSE_SECONDS,
    FIRST_PAUSE_SECONDS,
    INDEX_PAUSE_SECONDS,
    MIN_BULK_MESSAGES,
    SLICE_BYTES,
    SLICE_MESSAGES,
    Dispatcher,
    SliceSchedule,
)
from rmqha.store.derived.dispatchrequest import DispatchRequest, read_dispatch_request, read_if_sound
from rmqha.store.derived.index import IndexFile, KeyIndex
from rmqha.store.derived.putnotes import PutNote
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import MappedFile, UnflushedFolder
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.javahash import java_hash
from rmqha.wire.layout import MESSAGE_MAGIC_CODE_V2, UNIT
from rmqha.wire.record import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Host,
    Record,
)
from rmqha.wire.sends.run import QueueUnits
from tests.fixtures import new_folder
from tests.store.logs import SEGMENT_SIZE
from tests.store.queues import FOREVER, Expected, Writer, check_index, expected_of, expected_of_records, records_of
from tests.twins import KernelTests, PlainTests

V4, V6 = Host(b"\x0a\1\2\3", 40000), Host(bytes(range(16)), 40000)


def note_of(record: Record) -> PutNote:
    """What a pass notes of a message."""
    offset, size, timestamp = record.physical_offset, record.total_size, record.store_timestamp
    queue = record.topic, record.queue_id
    request = DispatchRequest(*queue, record.queue_offset, offset, size, record.sys_flag, timestamp, record.properties)
    units = QueueUnits(record.queue_offset, 1, bytearray(UNIT.pack(offset, size, request.tags_code(DelayLevels()))))
    keys = [(f"{record.topic}#{key}", offset, timestamp) for key in request.index_keys()]
    return PutNote(offset, offset + size, timestamp, 1, {queue: units}, keys, len(keys))


class DispatchTestCase(SynchronousTestCase):
    """Has a log, and what is made of it, in a folder."""

    segment_size = SEGMENT_SIZE

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.log = CommitLog(self.root / "commitlog", self.segment_size)
        self.addCleanup(self.log.close)
        self.writer = Writer(self.log)
        self.clock = Clock()
        self.failures: list[Failure] = []
        self.make(self.root)

    def make(self, root: Path, start: int = 0) -> None:
        """Queues, index and a dispatcher, from nothing."""
        self.queues = QueueTable(root / "consumequeue", 100)
        self.addCleanup(self.queues.close)
        self.index = KeyIndex(root / "index", 50, 400)
        self.addCleanup(self.index.close)
        self.dispatcher = Dispatcher(self.log, self.queues, self.index, DelayLevels(), start)

    def start(self) -> None:
        self.dispatcher.start(self.clock, self.failures.append)

    def units(self) -> dict[tuple[str, int], dict[int, Unit | None]]:
        return {
            key: {offset: queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)}
            for key, queue in self.queues.queues.items()
        }

    def check(self, expected: Expected | None = None) -> None:
        """All is dispatched, and as the log says."""
        expected = expected or expected_of(self.log)
        self.assertEqual(self.dispatcher.behind_bytes, 0)
        self.assertEqual(self.units(), expected.units)
        check_index(self, self.index, expected, min_offset=self.log.min_offset)

    def unit_of(self, record: Record) -> Unit:
        unit = self.queues.queues[record.topic, record.queue_id].unit(record.queue_offset)
        assert unit is not None
        return unit

    def found(self, topic: str, key: str) -> list[int]:
        return self.index.query(topic, key, 0, FOREVER, 100)


class MessageTests(DispatchTestCase):
    def test_each_message_gets_its_unit_and_its_keys(self) -> None:
        records = self.writer.put_many(60)
        self.dispatcher.catch_up()
        self.check()
        for record in records:
            tags = java_hash(record.properties["TAGS"])
            self.assertEqual(self.unit_of(record), Unit(record.physical_offset, record.total_size, tags))
            self.assertEqual(self.found(record.topic, record.properties["UNIQ_KEY"]), [record.physical_offset])
        self.assertEqual(len(self.found("T0", "all")), 30)

    def test_a_request_says_all_of_its_message(self) -> None:
        """store.md 3.1: IPv6 hosts and the wide topic length move what follows them."""
        for magic, topic in ((None, "T"), (MESSAGE_MAGIC_CODE_V2, "%RETRY%" + "é" * 100)):
            for born in (V4, V6):
                for store in (V4, V6):
                    fields = {"magic": magic} if magic is not None else {}
                    record = self.writer.put(
                        topic, 5, b"body\x01", born_host=born, store_host=store, KEYS="k1  k2", TAGS="é😀", **fields
                    )
                    data = self.log.get_data(record.physical_offset, 4096)
                    assert data is not None
                    expected = DispatchRequest(
                        topic,
                        5,
                        record.queue_offset,
                        record.physical_offset,
                        record.total_size,
                        record.sys_flag,
                        record.store_timestamp,
                        {"KEYS": "k1  k2", "TAGS": "é😀"},
                    )
                    self.assertEqual(read_dispatch_request(data, 0), expected)
        self.dispatcher.catch_up()
        self.check()

    def test_bytes_that_are_no_utf8_keep_their_queue_and_keys(self) -> None:
        record = self.writer.put("T\udcff", 0, KEYS="k\udcfe")
        self.dispatcher.catch_up()
        self.check()
        self.assertTrue((self.root / "consumequeue" / "T\udcff" / "0").is_dir())
        self.assertEqual(self.found("T\udcff", "k\udcfe"), [record.physical_offset])

    def test_prepared_and_rolled_back_messages_are_in_no_queue(self) -> None:
        """store.md 3.5, 7.3; rolled-back ones are in no index either."""
        for kind, is_queued, is_indexed in (
            (0, True, True),
            (TRANSACTION_COMMIT_TYPE, True, True),
            (TRANSACTION_PREPARED_TYPE, False, True),
            (TRANSACTION_ROLLBACK_TYPE, False, False),
        ):
            record = self.writer.put(f"T{kind}", KEYS="k", UNIQ_KEY="u", sys_flag=kind)
            self.dispatcher.catch_up()
            self.assertEqual(self.queues.get(f"T{kind}", 0) is not None, is_queued)
            for key in ("k", "u"):
                self.assertEqual(self.found(f"T{kind}", key), [record.physical_offset] if is_indexed else [])
        self.check()

    def test_the_tags_code_of_a_delayed_message_is_its_time(self) -> None:
        for topic, properties, delay_ms in (
            (SCHEDULE_TOPIC, {"DELAY": "3", "TAGS": "TagA"}, 10_000),
            (SCHEDULE_TOPIC, {"DELAY": "99"}, 7_200_000),
            (SCHEDULE_TOPIC, {"DELAY": "0", "TAGS": "TagA"}, None),
            (SCHEDULE_TOPIC, {"DELAY": "soon", "TAGS": "TagA"}, None),
            (SCHEDULE_TOPIC, {"TAGS": "TagA"}, None),
            ("T", {"DELAY": "3", "TAGS": "TagA"}, None),
        ):
            record = self.writer.put(topic, 2, b"", **properties)
            self.dispatcher.catch_up()
            expected = java_hash("TagA") if delay_ms is None else record.store_timestamp + delay_ms
            self.assertEqual(self.unit_of(record).tags_code, expected)

    def test_a_message_without_properties_has_no_keys(self) -> None:
        record = self.writer.put(body=b"x")
        self.dispatcher.catch_up()
        self.assertEqual(self.unit_of(record).tags_code, 0)
        self.assertEqual((self.index.has_files, (self.root / "index").exists()), (False, False))

    def test_several_blanks_between_keys_make_no_key(self) -> None:
        record = self.writer.put(KEYS=" a  b ")
        self.dispatcher.catch_up()
        self.assertEqual([self.found("T", key) for key in ("a", "b", "")], [[record.physical_offset]] * 2 + [[]])

    def test_dispatch_goes_on_behind_blanks(self) -> None:
        """An 8-byte one too, and one of most of a segment."""
        overhead = Record("T", b"").total_size
        for left in (8, 9, 150, 2000):
            room = SEGMENT_SIZE - self.log.max_offset % SEGMENT_SIZE
            self.writer.put(body=b"x" * (room - left - overhead))
            self.assertEqual(self.log.max_offset % SEGMENT_SIZE, SEGMENT_SIZE - left)
            self.writer.put(body=b"x" * (left - overhead + 1 if left > 100 else 50))
        self.dispatcher.catch_up()
        self.check()
        self.assertEqual(self.log.max_offset // SEGMENT_SIZE, 4)

    def test_topics_that_can_be_no_folder_are_logged_and_passed_over(self) -> None:
        bad = ["a/b", "..", ".", "a\0b", "/etc"]
        for topic in bad:
            self.writer.put(topic, KEYS="k")
            self.writer.put("good")
        long = self.writer.put("x" * 256, magic=MESSAGE_MAGIC_CODE_V2)
        self.writer.put("y" * 255, magic=MESSAGE_MAGIC_CODE_V2)
        self.patch(placing, "NOTICE_SECONDS", 0.0)
        with capturedLogs() as logs:
            self.dispatcher.catch_up()
        errors = [event["at"] for event in logs if "is in no queue" in event["log_format"]]
        self.assertEqual((len(errors), errors[-1]), (len(bad) + 1, long.physical_offset))
        self.assertEqual(self.dispatcher.behind_bytes, 0)
        self.assertEqual(sorted(self.queues.queues), [("good", 0), ("y" * 255, 0)])
        self.assertEqual(self.queues.queues["good", 0].max_offset, 5)
        with self.assertRaises(StoreError):
            self.queues.get_or_make("", 0)

    def test_a_queue_of_a_negative_number_is_found_again(self) -> None:
        record = self.writer.put("T", -7)
        self.dispatcher.catch_up()
        again = QueueTable(self.root / "consumequeue", 100)
        self.addCleanup(again.close)
        queue = again.queues["T", -7]
        queue.recover()
        self.assertEqual(queue.unit(0), self.unit_of(record))

    def test_a_unit_that_does_not_follow_is_an_error(self) -> None:
        self.writer.put(body=bytes(400))
        self.writer.put(queue_offset=4)
        with capturedLogs() as logs:
            self.dispatcher.catch_up()
        (event,) = [event for event in logs if "has no units" in event["log_format"]]
        self.assertEqual((event["topic"], event["queue_id"], event["queue_offset"]), ("T", 0, 4))
        self.assertEqual(self.queues.queues["T", 0].max_offset, 5)

    def test_what_was_dispatched_before_changes_nothing(self) -> None:
        self.writer.put_many(40)
        self.dispatcher.catch_up()
        before = self.files()
        self.dispatcher.reput_offset = 0
        self.dispatcher.catch_up()
        self.assertEqual(self.files(), before)

    def files(self) -> dict[Path, bytes]:
        folders = (self.root / "consumequeue", self.root / "index")
        return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}

    def test_a_log_whose_begin_is_gone_is_dispatched_from_there(self) -> None:
        self.writer.put_many(60)
        self.log.delete_first_segment()
        with capturedLogs() as logs:
            self.dispatcher.catch_up()
        self.assertEqual([event["min"] for event in logs if "start of the log" in event["log_format"]], [SEGMENT_SIZE])
        self.check()

    def test_without_an_index_queues_are_built_all_the_same(self) -> None:
        self.writer.put_many(10)
        dispatcher = Dispatcher(self.log, self.queues, None, DelayLevels(), 0)
        dispatcher.catch_up()
        self.assertEqual(self.units(), expected_of(self.log).units)
        self.assertEqual((dispatcher.vouched()[1], (self.root / "index").exists()), (0, False))


class BehindTests(DispatchTestCase):
    def test_an_empty_log_that_starts_later_leaves_nothing_to_do(self) -> None:
        """A slave with --once would wait for ever for the bytes before its log's start."""
        self.log.begin_at(SEGMENT_SIZE)
        self.assertEqual(self.dispatcher.behind_bytes, 0)
        self.dispatcher.catch_up()
        self.assertEqual(self.dispatcher.behind_bytes, 0)


class ListenerTests(DispatchTestCase):
    def test_they_hear_of_each_queued_message_when_it_can_be_read(self) -> None:
        heard: list[tuple[str, int, int, int]] = []

        def message_arrived(request: DispatchRequest, tags_code: int) -> None:
            queue = self.queues.queues[request.topic, request.queue_id]
            unit = queue.unit(request.queue_offset)
            self.assertEqual(unit, Unit(request.physical_offset, request.size, tags_code))
            heard.append((request.topic, request.queue_id, request.queue_offset, tags_code))

        for _ in range(2):
            self.dispatcher.subscribe(message_arrived)
        for kind in (0, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE, TRANSACTION_COMMIT_TYPE):
            self.writer.put("T", 3, TAGS="TagA", sys_flag=kind)
        self.dispatcher.catch_up()
        first, second = ("T", 3, 0, java_hash("TagA")), ("T", 3, 1, java_hash("TagA"))
        self.assertEqual(heard, [first, first, second, second])


class VouchedTests(DispatchTestCase):
    def test_the_last_dispatched_message_is_vouched_for(self) -> None:
        records = self.writer.put_many(5)
        self.assertEqual(self.dispatcher.vouched(), (0, 0))
        self.dispatcher.catch_up()
        self.assertEqual(self.dispatcher.vouched(), (records[-1].store_timestamp, 0))
        rolled_back = self.writer.put(sys_flag=TRANSACTION_ROLLBACK_TYPE)
        self.dispatcher.catch_up()
        self.assertEqual(self.dispatcher.vouched()[0], rolled_back.store_timestamp)

    def test_of_the_index_only_full_files_are(self) -> None:
        records = self.writer.put_many(150)
        self.dispatcher.catch_up()
        self.assertEqual(self.dispatcher.vouched()[1], records[399 // 3 - 1].store_timestamp)

    def test_files_written_are_told_once(self) -> None:
        self.writer.put_many(8)
        self.dispatcher.catch_up()
        files = self.dispatcher.take_unflushed()
        self.assertEqual(
            len([file for file in files if not isinstance(file, UnflushedFolder)]), len(self.queues.queues) + 1
        )
        for file in files:
            file.sync()
        self.assertEqual(self.dispatcher.take_unflushed(), [])


class TickingClock(Clock):
    """Each look at it takes a while."""

    step = 0.0

    def seconds(self) -> float:
        self.rightNow += self.step
        return self.rightNow


class BulkTests(PlainTests, DispatchTestCase):
    """Many messages at once become what they become one by one."""

    segment_size = 64 * 1024

    def setUp(self) -> None:
        super().setUp()
        self.patch(dispatch, "MIN_BULK_BYTES", 1)
        self.patch(dispatch, "MIN_BULK_MESSAGES", 1)
        self.patch(dispatch, "BULK_MESSAGES", 64)
        self.patch(dispatch, "BULK_MESSAGES_WAITED_FOR", 100)

    def dispatched_singly(self) -> int:
        """How many messages were looked at one by one while all there is was dispatched."""
        with patch.object(dispatch, "read_if_sound", wraps=read_if_sound) as read:
            self.dispatcher.catch_up()
        return read.call_count

    @pytest.mark.long
    def test_a_log_is_dispatched_many_messages_at_once(self) -> None:
        self.writer.put_many(1500, queues=7)
        self.assertEqual(self.dispatched_singly(), len(self.log.segment_bases) - 1, "blanks alone")
        self.check()

    def test_files_are_byte_for_byte_the_same(self) -> None:
        self.writer.put_many(700, queues=5)
        self.dispatcher.catch_up()
        folders = [path.name for path in self.root.iterdir() if path.name in ("consumequeue", "index")]
        bulk = {name: self.bytes_of(self.root / name) for name in folders}
        other = self.root / "other"
        self.make(other)
        self.patch(dispatch, "MIN_BULK_BYTES", 1 << 40)
        self.dispatcher.catch_up()
        self.assertEqual({name: self.bytes_of(other / name) for name in folders}, bulk)
        self.assertEqual(sorted(folders), ["consumequeue", "index"])

    def bytes_of(self, folder: Path) -> list[bytes]:
        """Of all files in order of their names; those of the index have times for names."""
        return [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]

    def test_what_was_dispatched_before_changes_nothing(self) -> None:
        self.writer.put_many(300)
        self.dispatcher.catch_up()
        before = self.bytes_of(self.root / "consumequeue"), self.bytes_of(self.root / "index")
        self.dispatcher.reput_offset = 0
        self.dispatcher.catch_up()
        self.assertEqual((self.bytes_of(self.root / "consumequeue"), self.bytes_of(self.root / "index")), before)

    def test_gaps_and_impossible_offsets_are_left_to_the_other_way(self) -> None:
        self.writer.put_many(150)
        self.writer.put(queue_offset=40)
        self.writer.put(queue_offset=2**40)
        self.writer.offsets["T", 0] = 41
        self.writer.put()
        self.writer.put_many(150)
        expected = expected_of_records(record for record in records_of(self.log) if record.queue_offset < 2**40)
        self.dispatcher.catch_up()
        units = {
            key: {at: unit for at, unit in found.items() if unit and not unit.is_blank}
            for key, found in self.units().items()
        }
        self.assertEqual(units, expected.units)

    def test_a_slice_gives_few_new_queues_their_units(self) -> None:
        """Opening files takes long."""
        self.patch(dispatch, "SLICE_QUEUES", 8)
        for number in range(300):
            self.writer.put(f"T{number % 100}", KEYS=f"k{number}")
        self.start()
        most = 0
        while self.dispatcher.behind_bytes:
            with patch.object(MappedFile, "write", autospec=True, side_effect=MappedFile.write) as write:
                self.dispatcher.run_slice()
                most = max(most, write.call_count)
        self.clock.advance(1)
        self.check()
        self.assertTrue(0 < most <= 64, most)
        self.dispatcher.stop()

    def test_listeners_hear_of_each_tag_with_the_last_message_that_has_it(self) -> None:
        heard: dict[tuple[str, int, int], int] = {}
        self.dispatcher.subscribe(
            lambda request, tags_code: heard.update(
                {(request.topic, request.queue_id, tags_code): request.queue_offset}
            )
        )
        records = self.writer.put_many(90)
        self.dispatcher.catch_up()
        last = {(one.topic, one.queue_id, java_hash(one.properties["TAGS"])): one.queue_offset for one in records}
        self.assertEqual(heard, last)

    def test_a_full_disk_is_gone_on_from(self) -> None:
        self.writer.put_many(400)
        refuse = OSError(errno.ENOSPC, "No space left on device")
        for name in ("rmqha.store.log.mappedfile.MappedFile.write", "rmqha.store.derived.index.IndexFile.put_hashed"):
            with patch(name, side_effect=refuse), self.assertRaises(OSError):
                self.dispatcher.run_slice()
        self.dispatcher.catch_up()
        self.check()


class BulkKernelTests(KernelTests, BulkTests):
    """And by the kernel."""


class ImpossibleOffsetTests(DispatchTestCase):
    """QUEUEOFFSET is under no CRC: whatever it is, the rest is served."""

    segment_size = 1024 * 1024

    def test_the_bound_is_what_fits_before_the_message(self) -> None:
        for _ in range(30):
            self.writer.put("Fill")
        at = self.log.max_offset
        bound = at // 91
        for queue_id, queue_offset in enumerate((bound, bound + 1, -1, -(2**63), 2**63 - 1, 2**30, 2**40)):
            self.writer.put("T", queue_id, queue_offset=queue_offset)
            bound = self.log.max_offset // 91
        with capturedLogs() as logs:
            self.dispatcher.catch_up()
        found = {key[1]: queue.max_offset for key, queue in self.queues.queues.items() if key[0] == "T"}
        self.assertEqual(found[0], at // 91 + 1)
        self.assertEqual({queue_id for queue_id, end in found.items() if end and queue_id > 1}, set())
        lines = [event for event in logs if "is in no queue" in event["log_format"]]
        self.assertEqual(len(lines), 1, "the rest is summed up")
        self.assertIn("more messages", [event["log_format"] for event in logs][-1])

    @pytest.mark.long
    def test_no_slice_fills_more_than_its_part_of_a_gap(self) -> None:
        self.patch(placing, "FILL_BYTES", 400)
        for _ in range(60):
            self.writer.put(body=bytes(8000))
        self.writer.put("Gap")
        self.writer.put("Gap", queue_offset=self.log.max_offset // 91)
        self.writer.put("After")
        self.start()
        rounds = 0
        while self.dispatcher.behind_bytes:
            with patch.object(MappedFile, "write", autospec=True, side_effect=MappedFile.write) as write:
                self.dispatcher.run_slice()
                self.assertLess(write.call_count, 80)
            rounds += 1
        self.assertGreater(rounds, 10)
        self.assertEqual(self.queues.queues["After", 0].max_offset, 1)
        self.assertEqual(self.units()["Gap", 0][0], self.unit_of(records_of(self.log)[60]))
        self.dispatcher.stop()

    def test_blanks_of_made_up_offsets_do_not_fill_the_disk(self) -> None:
        self.patch(consumequeue, "BLANKS_ALLOWED_BYTES", 0)
        self.queues.file_size = 100_000
        self.writer.put(body=bytes(400_000))
        self.writer.put("Old")
        for queue_id in range(100):
            self.writer.put("New", queue_id, queue_offset=4000 + queue_id)
            self.writer.put("New", queue_id, queue_offset=4001 + queue_id)
        for queue_offset in range(1000, 4000, 100):
            self.writer.put("Old", queue_offset=queue_offset)
        self.dispatcher.catch_up()
        files = [path for path in (self.root / "consumequeue").rglob("0*") if path.is_file()]
        self.assertLess(sum(path.stat().st_blocks * 512 for path in files), 2 * self.log.max_offset + 150 * 4096)
        for queue_id in range(100):
            queue = self.queues.queues["New", queue_id]
            self.assertEqual((queue.min_offset, queue.max_offset), (4000 + queue_id, 4002 + queue_id))


@implementer(IBar)
class SeenPlaces:
    """A bar that keeps what it was to show."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, int | None]] = []

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        self.shown.append((done, total))


class SliceTests(DispatchTestCase):
    segment_size = 16 * 1024 * 1024

    def setUp(self) -> None:
        super().setUp()
        self.patch(dispatch, "MIN_BULK_BYTES", 1 << 40)

    def dispatched(self) -> int:
        return sum(queue.max_offset for queue in self.queues.queues.values())

    @pytest.mark.long
    def test_a_slice_has_so_many_messages(self) -> None:
        self.writer.put_many(2 * SLICE_MESSAGES + 100)
        for count in (SLICE_MESSAGES, 2 * SLICE_MESSAGES, 2 * SLICE_MESSAGES + 100):
            self.dispatcher.run_slice()
            self.assertEqual(self.dispatched(), count)
        self.check()

    def test_a_slice_has_so_many_bytes(self) -> None:
        for _ in range(10):
            self.writer.put(body=bytes(SLICE_BYTES // 4))
        self.dispatcher.run_slice()
        self.assertEqual(self.dispatched(), 4)
        self.dispatcher.run_slice()
        self.assertEqual(self.dispatched(), 8)

    def test_a_message_larger_than_a_slice_is_one(self) -> None:
        for _ in range(2):
            self.writer.put(body=bytes(3 * SLICE_BYTES))
        self.dispatcher.run_slice()
        self.assertEqual(self.dispatched(), 1)
        self.dispatcher.run_slice()
        self.check()

    def put_with_keys(self, count: int) -> list[Record]:
        """Messages with 30 keys each, and 29 spaces between them. Their bodies have spaces too."""
        keys = " ".join(f"k{number}" for number in range(30))
        return [self.writer.put(body=b" " * 99, KEYS=keys) for _ in range(count)]

    def assert_slices(self, *dispatched: int) -> None:
        for count in dispatched:
            self.dispatcher.run_slice()
            self.assertEqual(self.dispatched(), count)

    def test_a_slice_has_so_many_keys(self) -> None:
        """A message may have 16,000 keys. A MiB of such messages would take most of a second."""
        self.patch(dispatch, "SLICE_KEYS", 100)
        self.put_with_keys(10)
        self.assert_slices(4, 8, 10)
        self.check()

    def test_a_slice_has_so_many_keys_of_noted_messages(self) -> None:
        self.patch(dispatch, "SLICE_KEYS", 100)
        self.writer.put()
        self.assert_slices(1)  # its queue is open
        for record in self.put_with_keys(10):
            self.dispatcher.notes.add(note_of(record))
        self.assert_slices(4, 7, 10, 11)
        self.check()

    def test_a_slice_has_so_many_keys_of_many_messages(self) -> None:
        self.patch(dispatch, "MIN_BULK_BYTES", 1)
        self.patch(dispatch, "BULK_KEYS", 29 * (MIN_BULK_MESSAGES + 3))
        self.patch(dispatch, "SLICE_KEYS", 100)
        self.put_with_keys(2 * MIN_BULK_MESSAGES)
        self.start()  # a node runs: somebody waits for the reactor
        self.assert_slices(MIN_BULK_MESSAGES + 3, MIN_BULK_MESSAGES + 3 + 4)
        self.dispatcher.catch_up()
        self.dispatcher.write_pending()
        self.check()

    @pytest.mark.long
    def test_a_slice_has_so_much_time(self) -> None:
        """However slow the machine is, the reactor gets its turn."""
        self.writer.put_many(SLICE_MESSAGES)
        self.clock = TickingClock()
        self.clock.step = dispatch.SLICE_SECONDS
        dispatched: list[int] = []
        run_slice = self.dispatcher.run_slice

        def run(deadline: float | None) -> None:
            run_slice(deadline)
            dispatched.append(self.dispatched())

        with patch.object(self.dispatcher, "run_slice", run):
            self.start()
            self.clock.pump([1.0] * SLICE_MESSAGES)
        self.check()
        steps = [later - earlier for earlier, later in zip([0, *dispatched], dispatched, strict=False)]
        self.assertLessEqual(max(steps), 64)
        self.assertGreater(min(steps), 0)

    def test_catching_up_tells_how_far_it_is(self) -> None:
        self.writer.put_many(2 * SLICE_MESSAGES + 100)
        bar = SeenPlaces()
        self.dispatcher.catch_up(bar)
        told, end = [done for done, _ in bar.shown], self.log.verified_offset
        self.assertEqual((len(told), told[-1], told), (3, end, sorted(set(told))))
        self.assertEqual({total for _, total in bar.shown}, {end})

    def test_units_are_readable_though_their_slice_goes_on(self) -> None:
        self.writer.put_many(10)
        with patch.object(dispatch, "SLICE_MESSAGES", 4):
            self.dispatcher.run_slice()
        self.assertEqual(self.dispatched(), 4)
        raw = b"".join(path.read_bytes() for path in (self.root / "consumequeue").rglob("0*") if path.is_file())
        self.assertEqual(len(raw.replace(bytes(20), b"")) > 0, True)


class FollowTests(DispatchTestCase):
    segment_size = 16 * 1024 * 1024

    def setUp(self) -> None:
        super().setUp()
        self.patch(dispatch, "MIN_BULK_BYTES", 1 << 40)
        self.addCleanup(lambda: self.assertEqual((self.failures, self.clock.getDelayedCalls()), ([], [])))

    def pause(self) -> float:
        """How long the next slice waits; beside it at most the index waits for keys."""
        schedule = self.dispatcher._phase
        assert isinstance(schedule, SliceSchedule)
        call = schedule._next_slice
        assert call is not None, "one waits"
        self.assertLessEqual(len(self.clock.getDelayedCalls()), 2)
        return round(call.getTime() - self.clock.seconds(), 9)

    def test_growth_is_not_answered_on_the_spot(self) -> None:
        """The log tells of its growth within a put or a transfer."""
        self.start()
        for _ in range(3):
            self.writer.put_many(1)
            self.assertEqual(self.queues.queues, {})
            self.assertEqual(self.pause(), FIRST_PAUSE_SECONDS)
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual(self.dispatched(), 3)
        self.clock.advance(INDEX_PAUSE_SECONDS)
        self.check()

    def test_a_message_put_by_a_listener_waits_for_one_slice_only(self) -> None:
        """If two were scheduled, ``stop`` would forget one, which then runs on a closed store."""
        more = [1]

        def put_another(request: DispatchRequest, tags_code: int) -> None:
            self.writer.put_many(more.pop() if more else 0)

        self.dispatcher.subscribe(put_another)
        self.start()
        self.writer.put_many(1)
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertGreater(self.dispatcher.behind_bytes, 0)
        self.dispatcher.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.dispatcher.catch_up()
        self.dispatcher.write_pending()
        self.check()

    def test_what_is_there_at_the_start_is_dispatched(self) -> None:
        self.writer.put_many(5)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual(self.dispatched(), 5)
        self.clock.advance(INDEX_PAUSE_SECONDS)
        self.check()

    def test_keys_are_written_together(self) -> None:
        """A few cost as much as many: those of several slices wait for each other, but not for long."""
        self.start()
        with patch.object(IndexFile, "put_hashed", autospec=True, side_effect=IndexFile.put_hashed) as put:
            for _ in range(4):
                self.writer.put_many(2)
                self.clock.advance(FIRST_PAUSE_SECONDS)
            put.assert_not_called()
            self.clock.advance(INDEX_PAUSE_SECONDS)
            put.assert_called_once()
        self.check()

    @pytest.mark.long
    def test_very_many_keys_do_not_wait(self) -> None:
        self.writer.put_many(SLICE_MESSAGES)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual(self.index.pending, 0)
        self.clock.advance(INDEX_PAUSE_SECONDS)
        self.check()

    def test_who_looks_for_a_key_finds_it_before_it_is_written(self) -> None:
        (record,) = self.writer.put_many(1)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertGreater(self.index.pending, 0)
        self.assertEqual(self.found(record.topic, record.properties["UNIQ_KEY"]), [record.physical_offset])
        self.clock.advance(INDEX_PAUSE_SECONDS)

    def test_messages_are_vouched_for_when_their_keys_are_written(self) -> None:
        """A checkpoint that says more would let the next start leave them out."""
        (first,) = self.writer.put_many(1)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.clock.advance(INDEX_PAUSE_SECONDS)
        self.assertEqual(self.dispatcher.vouched()[0], first.store_timestamp)
        (second,) = self.writer.put_many(1)
        self.assertGreater(second.store_timestamp, first.store_timestamp)
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual((self.dispatched(), self.dispatcher.vouched()[0]), (2, first.store_timestamp))
        self.clock.advance(INDEX_PAUSE_SECONDS)
        self.assertEqual(self.dispatcher.vouched()[0], second.store_timestamp)

    @pytest.mark.long
    def test_slices_come_in_pauses_while_the_log_grows(self) -> None:
        """A pause is longer while a slave copies a log than while producers send."""
        self.writer.put_many(5 * SLICE_MESSAGES)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        for count in (2, 3, 4):
            self.assertIn(self.pause(), (BUSY_PAUSE_SECONDS, BULK_PAUSE_SECONDS))
            before, began = self.log.verified_offset, self.clock.seconds()
            self.writer.put_many(count)
            self.assertGreater(self.pause(), 0.0, "growth does not hurry it")
            grown = self.log.verified_offset - before
            rate = grown if count == 3 else grown * 10**6
            self.clock.advance(self.pause() - 0.001)
            with patch.object(dispatch, "BULK_BYTES_PER_SECOND", rate):
                self.clock.advance(0.001 + 1e-9)
            self.assertGreater(self.clock.seconds() - began, 1e-6)
            self.assertEqual(self.dispatched(), count * SLICE_MESSAGES)
            self.assertEqual(self.pause(), BULK_PAUSE_SECONDS if count == 3 else BUSY_PAUSE_SECONDS)
        self.clock.pump([1.0, 1.0])
        self.check()

    def test_while_a_slave_copies_it_waits_even_if_it_keeps_up(self) -> None:
        self.start()
        pauses = []
        for rate in (1, 10**9, 10**9):  # of growth, above which a log counts as being copied
            self.writer.put_many(5)
            pauses.append(min(call.getTime() for call in self.clock.getDelayedCalls()) - self.clock.seconds())
            with patch.object(dispatch, "BULK_BYTES_PER_SECOND", rate):
                self.clock.advance(pauses[-1])
            self.assertEqual(self.dispatcher.behind_bytes, 0)
            self.clock.advance(INDEX_PAUSE_SECONDS)
        self.assertEqual(
            [round(pause, 6) for pause in pauses], [FIRST_PAUSE_SECONDS, BULK_PAUSE_SECONDS, FIRST_PAUSE_SECONDS]
        )
        self.check()

    @pytest.mark.long
    def test_and_without_pauses_when_it_does_not(self) -> None:
        self.writer.put_many(5 * SLICE_MESSAGES)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.assertEqual(self.dispatched(), SLICE_MESSAGES)
        self.clock.advance(self.pause())
        self.check()

    def dispatched(self) -> int:
        return sum(queue.max_offset for queue in self.queues.queues.values())

    @pytest.mark.long
    def test_stopped_it_follows_no_longer_and_can_be_started_again(self) -> None:
        self.writer.put_many(SLICE_MESSAGES + 1)
        self.start()
        self.clock.advance(FIRST_PAUSE_SECONDS)
        self.dispatcher.stop()
        self.writer.put_many(1)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertGreater(self.dispatcher.behind_bytes, 0)
        self.dispatcher.stop()
        self.start()
        self.clock.pump([1.0, 1.0])
        self.check()

    def test_a_full_disk_is_waited_for_and_nothing_is_lost(self) -> None:
        self.writer.put_many(7)
        self.start()
        refuse = OSError(errno.ENOSPC, "No space left on device")
        heard: list[int] = []
        self.dispatcher.subscribe(lambda request, _: heard.append(request.physical_offset))
        for name, pauses in (
            ("rmqha.store.log.mappedfile.MappedFile.write", [FIRST_PAUSE_SECONDS]),
            ("rmqha.store.derived.index.IndexFile.put_hashed", [FIRST_PAUSE_SECONDS, INDEX_PAUSE_SECONDS]),
        ):
            self.writer.put_many(33)
            with patch(name, side_effect=refuse), capturedLogs() as logs:
                self.clock.pump(pauses)
                self.assertEqual(self.pause(), DISK_FULL_PAUSE_SECONDS)
                self.clock.pump([DISK_FULL_PAUSE_SECONDS] * 3)
            told = [event["error"] for event in logs if "wait for room" in event["log_format"]]
            self.assertEqual(told, [str(refuse)], "once, until there is room")
            self.writer.put_many(2)
            self.clock.advance(DISK_FULL_PAUSE_SECONDS)
            self.clock.advance(1.0)
            self.check()
            self.assertEqual(heard, [record.physical_offset for record in records_of(self.log)])


class FailureTests(DispatchTestCase):
    def test_a_broken_disk_is_told_and_ends_it(self) -> None:
        self.writer.put_many(3)
        self.start()
        with patch.object(ConsumeQueue, "write_pending", side_effect=OSError(errno.EIO, "Input/output error")):
            self.clock.advance(FIRST_PAUSE_SECONDS)
        (failure,) = self.failures
        self.assertIsNotNone(failure.check(OSError))
        self.assertEqual(self.clock.getDelayedCalls(), [])


class QueueTableTests(SynchronousTestCase):
    def test_folders_that_are_no_queues_are_passed_over(self) -> None:
        root = new_folder(self)
        for name in ("T/0", "T/x", "T/12", "U"):
            (root / name).mkdir(parents=True)
        (root / "file").touch()
        (root / "T" / "5").touch()
        table = QueueTable(root, 100)
        self.assertEqual(sorted(table.queues), [("T", 0), ("T", 12)])
        self.assertEqual((table.max_physical_offset, table.get("U", 0)), (-1, None))


SLICES = """
import sys
from pathlib import Path
from twisted.internet.task import Clock
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.wire.record import Record

store = MessageStore(make_settings({"storePathRootDir": sys.argv[1], "mappedFileSizeCommitLog": "1048576"}))
for number in range(2000):
    properties = f"TAGS\\1t{number % 3}\\2KEYS\\1k{number}"
    store.commit_log.append(Record("T", b"x", properties, queue_id=number % 4, queue_offset=number // 4))
store.subscribe(lambda request, tags_code: None)
clock = Clock()
store.start_dispatching(clock, lambda failure: failure.printTraceback())
before = set(sys.modules)
while store.derived.dispatcher.behind_bytes:
    clock.advance(0.05)
print(*sorted(set(sys.modules) - before))
store.abandon()
"""


@pytest.mark.process
def test_no_slice_imports_a_module(tmp_path: Path) -> None:
    """The first one imported numpy.ma, from a disk that was perhaps busy: the longest turn of all."""
    done = subprocess.run(
        [sys.executable, "-c", SLICES, tmp_path / "store"], capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == ([], "")
