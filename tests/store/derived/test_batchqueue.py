"""Batch consume queues of RocketMQ 5.x: units, dispatch, recovery, trimming, and topics that turn out to have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, Settings, make_settings
from rmqha.store.derived.batchqueue import BATCH_UNIT, BatchConsumeQueue, BatchUnit
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.derived.queuetypes import QueueTypes, queue_types_of
from rmqha.store.derived.rebuild import rebuild_in_place
from rmqha.store.examining import ABORT_FILE
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, TopicConfig, TopicConfigTable
from rmqha.store.offline.audit import audit
from rmqha.store.offline.prefix import CopyKind, copy_store, examine_source, plan_copy
from rmqha.store.offline.promote import ends_of_queues
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.javahash import java_hash
from rmqha.wire.record import INNER_BATCH_FLAG, Record, encode_record
from tests.fixtures import new_folder
from tests.store.queues import Writer, records_of

BATCH_TOPIC = TopicConfig("TBatch", unknown={"attributes": {"queue.type": "BatchCQ"}})
UNITS_A_FILE = 22
SIZES = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "1000",
    "mapperFileSizeBatchConsumeQueue": str(46 * UNITS_A_FILE),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
FLAGS = INNER_BATCH_FLAG | 0x40


def unit_bytes(record: Record, base: int, size: int) -> bytes:
    """As 5.3.3 packs a unit, field by field (spec/store.md 6)."""
    return (
        record.physical_offset.to_bytes(8)
        + record.total_size.to_bytes(4)
        + java_hash(record.properties.get("TAGS", "")).to_bytes(8, signed=True)
        + record.store_timestamp.to_bytes(8)
        + base.to_bytes(8)
        + size.to_bytes(2)
        + (0xFFFFFFFF).to_bytes(4)
        + bytes(4)
    )


@dataclass(frozen=True)
class InnerNum:
    """Wants the batches with so many messages."""

    count: str
    cost: int = 1

    def matches(self, properties: Mapping[str, str]) -> bool:
        return properties.get("INNER_NUM") == self.count


class BatchQueueTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = new_folder(self)
        self.stores: list[MessageStore] = []
        self.addCleanup(self.abandon)

    def abandon(self) -> None:
        for store in self.stores:
            store.abandon()
        self.stores.clear()

    def settings(self, **changes: str) -> Settings:
        return make_settings({"storePathRootDir": str(self.root), **SIZES, **changes})

    def open(self, role: BrokerRole = BrokerRole.ASYNC_MASTER) -> MessageStore:
        store = MessageStore(self.settings(brokerRole=role.value))
        self.stores.append(store)
        return store

    def close(self, store: MessageStore) -> None:
        store.close_now()
        self.stores.remove(store)

    def crash(self, store: MessageStore) -> None:
        store.abandon()
        self.stores.remove(store)
        self.assertTrue((self.root / ABORT_FILE).exists())

    def write_table(self, *topics: TopicConfig) -> None:
        table = TopicConfigTable(topic_config_table={topic.topic_name: topic for topic in topics})
        (self.root / CONFIG_FOLDER).mkdir(exist_ok=True)
        table.write(self.root / CONFIG_FOLDER)

    def put_batches(self, store: MessageStore, sizes: list[int], topic: str = "TBatch", **more: Any) -> list[bytes]:
        """Batches, and single messages for sizes of 0. Returns the units that they should have."""
        writer, units = Writer(store.commit_log), []
        queue = store.derived.queues.get(topic, 0)
        base = writer.offsets[topic, 0] = 0 if queue is None else queue.max_offset
        for number, size in enumerate(sizes):
            writer.put("TPlain", 1, b"x" * 50, KEYS=f"plain{number}")
            fields: dict[str, Any] = {"INNER_NUM": str(size), "INNER_BASE": str(base)} if size else {}
            flags = FLAGS if size else 0
            record = writer.put(
                topic, 0, b"b" * 40, sys_flag=flags, queue_offset=base, TAGS=f"Tag{number % 3}", **fields, **more
            )
            units.append(unit_bytes(record, base, max(1, size)))
            base += max(1, size)
        store.commit_log.sync()
        return units

    def files(self, topic: str = "TBatch") -> bytes:
        folder = self.root / "batchconsumequeue" / topic / "0"
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))

    def assert_units(self, units: list[bytes], topic: str = "TBatch") -> None:
        self.assertEqual(self.files(topic).rstrip(b"\0").ljust(46 * len(units), b"\0"), b"".join(units))
        self.assertFalse((self.root / "consumequeue" / topic).exists(), "no simple queue")

    def batch_queue(self, store: MessageStore, topic: str = "TBatch") -> BatchConsumeQueue:
        queue = store.derived.queues.get(topic, 0)
        assert isinstance(queue, BatchConsumeQueue)
        return queue

    def test_a_topic_of_the_table_gets_batch_units(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        sizes = [3, 0, 1, 60, 0] * 12  # of three files
        units = self.put_batches(store, sizes)
        store.derived.dispatcher.catch_up()
        self.assert_units(units)
        queue = self.batch_queue(store)
        self.assertEqual((queue.min_offset, queue.max_offset), (0, sum(max(1, size) for size in sizes)))
        self.assertEqual(store.derived.queue_offsets()["TBatch", 0], queue.max_offset)
        plain = store.derived.queues.get("TPlain", 1)
        self.assertEqual(None if plain is None else plain.max_offset, len(sizes))

    def test_many_messages_at_once_are_dispatched_alike(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        units = self.put_batches(store, [2, 0, 7] * 300)
        store.derived.dispatcher.catch_up()
        self.assert_units(units)

    def test_a_batch_shows_the_type_of_a_topic_that_the_table_does_not_have(self) -> None:
        """A slave has no table at first. Messages before the first batch got simple units."""
        store = self.open(BrokerRole.SLAVE)
        units = self.put_batches(store, [0, 0, 4, 0, 2])
        store.derived.dispatcher.catch_up()
        self.assert_units(units)
        self.close(store)
        store = self.open(BrokerRole.SLAVE)
        self.assertEqual(self.batch_queue(store).max_offset, 9)

    def test_the_table_comes_later(self) -> None:
        store = self.open(BrokerRole.SLAVE)
        units = self.put_batches(store, [0] * 40)
        store.derived.dispatcher.catch_up()
        self.assertTrue((self.root / "consumequeue" / "TBatch").exists())
        plain = store.derived.queues.get("TPlain", 1)
        store.set_queue_types(queue_types_of({"TBatch": BATCH_TOPIC, "TPlain": TopicConfig("TPlain")}))
        store.derived.dispatcher.catch_up()
        self.assert_units(units)
        self.assertIs(store.derived.queues.get("TPlain", 1), plain)
        self.assertTrue(list(self.root.glob("rmqha/misplaced-queues-aside-0/consumequeue/TBatch/0/*")), "kept")
        self.assertEqual(self.batch_queue(store).max_offset, 40)

    def test_a_crash_while_it_is_dispatched_again_loses_no_unit(self) -> None:
        store = self.open(BrokerRole.SLAVE)
        units = self.put_batches(store, [0] * 40)
        store.derived.dispatcher.catch_up()
        self.write_table(BATCH_TOPIC)
        store.set_queue_types(queue_types_of({"TBatch": BATCH_TOPIC}))
        self.crash(store)
        store = self.open(BrokerRole.SLAVE)
        store.derived.dispatcher.catch_up()
        self.assert_units(units)

    def test_queues_of_an_older_version_are_replaced_at_the_start(self) -> None:
        store = self.open()
        units = self.put_batches(store, [0] * 30)
        store.derived.dispatcher.catch_up()
        self.close(store)
        self.write_table(BATCH_TOPIC)
        store = self.open()
        self.assert_units(units)
        self.close(store)
        self.write_table(TopicConfig("TBatch"))  # and back: it was deleted and created as another type
        store = self.open()
        simple = store.derived.queues.get("TBatch", 0)
        self.assertEqual(None if simple is None else (type(simple).__name__, simple.max_offset), ("ConsumeQueue", 30))
        self.assertFalse((self.root / "batchconsumequeue" / "TBatch").exists())

    def test_recovery_makes_lost_and_torn_units_again(self) -> None:
        self.write_table(BATCH_TOPIC)
        for damage in (0, 1, 20, 45, 46, 46 * 5 + 30, 46 * 22, 46 * 30):
            with self.subTest(damage):
                store = self.open()
                self.put_batches(store, [3, 0, 5] * 10)
                store.derived.dispatcher.catch_up()
                whole = self.files().rstrip(b"\0")
                self.crash(store)
                last = sorted((self.root / "batchconsumequeue" / "TBatch" / "0").iterdir())[-1]
                end = len(last.read_bytes().rstrip(b"\0"))
                with last.open("r+b") as file:
                    file.seek(max(0, end - damage))
                    file.write(bytes(min(end, damage)))
                store = self.open()
                self.assertEqual(self.files().rstrip(b"\0"), whole)
                self.close(store)

    def test_a_cut_of_the_log_cuts_the_units(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open(BrokerRole.SLAVE)
        units = self.put_batches(store, [4, 0, 9, 0, 6] * 8)
        store.derived.dispatcher.catch_up()
        queue = self.batch_queue(store)
        bases = [BatchUnit(*BATCH_UNIT.unpack(unit)) for unit in units]
        for kept in (39, 23, 22, 21, 1):
            queue.truncate(bases[kept].physical_offset)
            self.assertEqual(queue.max_offset, bases[kept].base_offset)
            self.assert_units(units[:kept])
        queue.truncate(0)
        self.assertEqual((queue.min_offset, queue.max_offset), (0, 0))

    def test_retention_moves_the_start(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        units = self.put_batches(store, [4, 0, 9] * 40)
        store.derived.dispatcher.catch_up()
        queue = self.batch_queue(store)
        bases = [BatchUnit(*BATCH_UNIT.unpack(unit)) for unit in units]
        queue.delete_files_before(bases[50].physical_offset)
        self.assertEqual(queue.min_offset, bases[50].base_offset)
        self.assertEqual(sorted(path.name for path in queue.folder.iterdir())[0], f"{2 * UNITS_A_FILE * 46:020d}")
        self.assertIsNone(queue.batch(bases[49].base_offset))
        self.assertEqual(queue.batch(bases[50].base_offset), bases[50])
        self.assertEqual(queue.batch(bases[51].base_offset), bases[51])

    def test_reads_give_whole_batches(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        self.put_batches(store, [4, 0, 9, 2])  # 0 to 3, 4, 5 to 13, 14 and 15
        store.derived.dispatcher.catch_up()
        records = [record for record in records_of(store.commit_log) if record.topic == "TBatch"]
        read = store.reader.get_message
        for offset, most, found, following in (
            (0, 32, [0, 1, 2, 3], 16),
            (0, 4, [0], 4),
            (0, 5, [0, 1], 5),
            (0, 1, [0], 4),
            (2, 5, [0, 1], 5),
            (4, 1, [1], 5),
            (4, 9, [1], 5),
            (5, 1, [2], 14),
            (13, 11, [2, 3], 16),
            (15, 1, [3], 16),
        ):
            with self.subTest(offset=offset, most=most):
                got = read("TBatch", 0, offset, most)
                self.assertIs(got.status, GetMessageStatus.FOUND)
                self.assertEqual(got.records, tuple(encode_record(records[number]) for number in found))
                self.assertEqual((got.next_begin_offset, got.min_offset, got.max_offset), (following, 0, 16))
        self.assertIs(read("TBatch", 0, 16, 1).status, GetMessageStatus.OFFSET_OVERFLOW_ONE)
        beyond = read("TBatch", 0, 17, 1)
        self.assertEqual((beyond.status, beyond.next_begin_offset), (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 16))
        self.assertEqual(store.reader.message_store_timestamp("TBatch", 0, 9), records[2].store_timestamp)
        for number, base in enumerate((0, 4, 5, 14)):
            found_at = store.reader.offset_by_time("TBatch", 0, records[number].store_timestamp)
            self.assertEqual(found_at, base)

    def test_reads_by_properties_look_at_those_of_the_batch(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        self.put_batches(store, [4, 9, 2])
        store.derived.dispatcher.catch_up()
        got = store.reader.get_message("TBatch", 0, 0, 32, InnerNum("9"))
        records = [record for record in records_of(store.commit_log) if record.topic == "TBatch"]
        self.assertEqual(got.records, (encode_record(records[1]),))
        self.assertEqual(got.next_begin_offset, 15)

    def test_promotion_counts_the_messages_of_batches(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open(BrokerRole.SLAVE)
        self.put_batches(store, [4, 0, 9, 2])
        end = store.commit_log.verified_offset
        self.assertEqual(ends_of_queues(self.settings(), store.commit_log, end)["TBatch", 0], 16)
        store.derived.dispatcher.catch_up()
        self.assertEqual(ends_of_queues(self.settings(), store.commit_log, end)["TBatch", 0], 16)
        before_last = records_of(store.commit_log)[-2].physical_offset
        self.assertEqual(ends_of_queues(self.settings(), store.commit_log, before_last)["TBatch", 0], 14)

    def test_verify_compares_each_field(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        units = self.put_batches(store, [4, 0, 9, 2])
        self.close(store)
        log = self.open(BrokerRole.SLAVE).commit_log
        path = next(self.root.glob("batchconsumequeue/TBatch/0/*"))

        def problems() -> int:
            return audit(self.root, log, log.verified_offset, self.settings(), lambda _: None).problem_count

        self.assertEqual(problems(), 0)
        whole = path.read_bytes()
        for at in (7, 11, 19, 27, 35, 37):
            changed = bytearray(whole)
            changed[46 + at] ^= 1
            path.write_bytes(changed)
            self.assertGreater(problems(), 0, at)
        last = BatchUnit(*BATCH_UNIT.unpack(units[-1]))
        extra = BATCH_UNIT.pack(*last._replace(base_offset=last.end_offset))
        path.write_bytes(b"".join([*units, extra]).ljust(len(whole), b"\0"))
        self.assertGreater(problems(), 0, "the queue has more than the log")

    def test_a_rebuild_makes_the_same_files(self) -> None:
        """With the table, and without it: then only topics with batches have batch queues."""
        for topics in ((BATCH_TOPIC,), ()):
            with self.subTest(topics):
                self.root = new_folder(self)
                self.write_table(*topics)
                store = self.open()
                self.put_batches(store, [0, 3, 0, 70] * 12)
                self.close(store)
                store = self.open()
                whole, offsets = self.files(), store.derived.queue_offsets()
                log = store.commit_log
                done = rebuild_in_place(self.root, log, self.settings())
                self.assertEqual(self.files(), whole)
                self.assertEqual((done.refused, dict(done.ends)), (0, offsets))
                self.crash(store)

    def test_a_copy_of_the_start_of_a_store_has_the_units(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open()
        units = self.put_batches(store, [0, 3, 0, 70] * 12)
        end = BatchUnit(*BATCH_UNIT.unpack(units[30])).physical_offset
        self.close(store)
        before, output = self.root, self.root.with_name("copy")
        source = examine_source(self.settings(), None)
        plan = plan_copy(self.settings(), output, CopyKind.RESTORE, source, end)
        self.assertEqual(plan.left_out, ())
        copy_store(plan, self.settings())
        self.root = output
        self.assert_units(units[:30])
        self.root = before

    def test_impossible_batches_get_no_unit(self) -> None:
        self.write_table(BATCH_TOPIC)
        store = self.open(BrokerRole.SLAVE)
        writer = Writer(store.commit_log)
        writer.put("TPlain", 1, b"x" * 50)
        for base, size in (
            ("x", "1"),
            ("1", "0"),
            ("1", "-3"),
            ("-1", "3"),
            ("1", "32768"),
            (str(2**62), "3"),
        ):
            writer.put("TBatch", 0, b"b", sys_flag=FLAGS, INNER_BASE=base, INNER_NUM=size)
        writer.put("TBatch", 0, b"b", sys_flag=FLAGS, queue_offset=7, INNER_BASE="7", INNER_NUM="3")
        writer.put("TBatch", 0, b"b", sys_flag=FLAGS, queue_offset=9, INNER_BASE="9", INNER_NUM="3")  # overlaps
        store.derived.dispatcher.catch_up()
        queue = self.batch_queue(store)
        self.assertEqual((queue.min_offset, queue.max_offset), (7, 10))
        self.flushLoggedErrors()

    def test_a_queue_that_starts_again_from_0_is_told_of(self) -> None:
        """A Java master may have deleted the topic, and made it again."""
        store = self.open(BrokerRole.SLAVE)
        found: list[DispatchRequest] = []
        store.on_restart(found.append)
        self.put_batches(store, [3, 2])
        store.derived.dispatcher.catch_up()
        self.assertEqual(found, [])
        record = Writer(store.commit_log).put(
            "TBatch", 0, b"new", sys_flag=FLAGS, queue_offset=0, INNER_NUM="2", INNER_BASE="0"
        )
        store.derived.dispatcher.catch_up()
        self.assertEqual([request.physical_offset for request in found], [record.physical_offset])


class QueueTypesTests(SynchronousTestCase):
    def test_the_table_decides_before_the_log(self) -> None:
        types = QueueTypes(frozenset({"B"}), frozenset({"A", "B"}), frozenset({"A", "C"}))
        found = {topic: (types.is_batch(topic), types.is_batch(topic, INNER_BATCH_FLAG)) for topic in "ABCD"}
        self.assertEqual(found, {"A": (False, False), "B": (True, True), "C": (True, True), "D": (False, True)})
