"""What points into a log goes back when the log loses its end, in whatever way that comes about."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, Settings, make_settings
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.recovery import MayCut
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, DelayOffsetTable
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.prefix import CopyKind, copy_store, examine_source, plan_copy
from rmqha.store.offline.rewind import rewind
from rmqha.store.setback import CutEnd, set_back_delays, set_back_timers
from rmqha.store.tablesnapshots import read_tables, snapshot_offsets, write_snapshot
from rmqha.store.timers import TimerCheckPoint
from rmqha.testing.records import make_record
from rmqha.testing.sim.disk import SimDisk
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import Record
from rmqha.wire.timers import TIMER_TOPIC
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, TRANSACTION_GROUP
from tests.fixtures import new_folder
from tests.store.logs import write_at
from tests.store.queues import Writer

OF_HALVES, OF_OPERATIONS = (f"{topic}@{TRANSACTION_GROUP}" for topic in (HALF_TOPIC, OPERATION_TOPIC))
SEGMENT_BYTES = 65536


def delayed(level: int) -> Record:
    """A message that waits in its level's queue."""
    properties = f"DELAY\x01{level}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    return Record(SCHEDULE_TOPIC, b"late", properties, queue_id=level - 1)


def delivered(level: int) -> Record:
    """The same message when it was delivered: a broker leaves its properties as they are."""
    return Record("T", b"late", delayed(level).properties_stored)


class DelayTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self)
        self.config = self.store / CONFIG_FOLDER
        self.log = CommitLog(self.store / "commitlog", 4096)
        self.addCleanup(self.log.close)

    def write(self, *records: Record) -> int:
        """Append to the log. Returns its end."""
        for record in records:
            self.log.append(record)
        return self.log.max_offset

    def test_each_level_goes_back_by_what_it_delivered_after_the_cut(self) -> None:
        waiting = [delayed(level) for level in (1, 1, 1, 2, 2)]
        cut = self.write(*waiting, delivered(1), delivered(2))
        ordinary = [make_record(0, b"DELAY\x011\x02REAL_TOPIC\x01T"), Record("U", b"", "DELAY\x011\x02REAL_TOPIC\x01T")]
        self.write(delivered(1), *ordinary, delayed(3), delivered(2), delivered(1), delivered(3))
        DelayOffsetTable({1: 3, 2: 2, 3: 1, 4: 9}).write(self.config)
        self.assertEqual(set_back_delays(self.config, CutEnd.of(self.log, cut)), {1: 2, 2: 1, 3: 1})
        self.assertEqual(DelayOffsetTable.read(self.config).offset_table, {1: 1, 2: 1, 3: 0, 4: 9})

    def test_offsets_that_are_older_than_the_log_do_not_become_negative(self) -> None:
        self.write(delayed(1), delivered(1), delivered(2))
        DelayOffsetTable({1: 0, 2: 1}).write(self.config)
        set_back_delays(self.config, CutEnd.of(self.log, 0))
        self.assertEqual(DelayOffsetTable.read(self.config).offset_table, {1: 0, 2: 0})


class TimerTests(SynchronousTestCase):
    def test_a_check_point_that_is_removed_does_not_come_back(self) -> None:
        """The log is cut after that, and a broker would take messages that come then as delivered."""
        log = CommitLog(new_folder(self), SEGMENT_BYTES)
        self.addCleanup(log.close)
        config = Path("/store") / CONFIG_FOLDER
        for seed in range(20):
            disk = SimDisk(Random(seed))
            point = TimerCheckPoint(7, 0, 7, 7)
            point.write(config, disk)
            set_back_timers(config, point, CutEnd(log, 0, (), 0), lambda topic, queue_id: None, disk)
            disk.lose_power()
            self.assertIsNone(TimerCheckPoint.read(config, disk), seed)


class WaysTests(SynchronousTestCase):
    """A log is cut in front of what it had delivered: two delayed messages, two timer messages, half message 1.

    A delayed message, a timer message and half message 0 were done with before the cut.
    """

    DONE = (
        {1: 1},
        TimerCheckPoint(30, 0, 1, 3),
        {OF_HALVES: {0: 1}, OF_OPERATIONS: {0: 1}, "T@G": {0: 2}},
    )
    """Delay offsets, timer check point and offsets of groups that belong to the log up to the cut."""

    def setUp(self) -> None:
        self.root = new_folder(self) / "store"
        self.settings = self.settings_of(BrokerRole.SLAVE)
        store = MessageStore(self.settings)
        writer = Writer(store.commit_log)

        def delay() -> Record:
            return writer.put(SCHEDULE_TOPIC, 0, b"late", DELAY="1", REAL_TOPIC="T", REAL_QID="0")

        def deliver() -> Record:
            return writer.put("T", 0, b"late", DELAY="1", REAL_TOPIC="T", REAL_QID="0")

        def timer(due: int, topic: str = TIMER_TOPIC) -> Record:
            return writer.put(topic, 0, b"timer", TIMER_OUT_MS=str(due), REAL_TOPIC="T")

        for _ in range(3):
            delay()
        for due in (10, 30, 40):
            timer(due)
        for _ in range(3):
            writer.put(HALF_TOPIC, 0, b"half")
        writer.put(OPERATION_TOPIC, 0, b"0", TAGS="d")
        deliver()
        self.cut = timer(10, "T").physical_offset
        self.cut = store.commit_log.max_offset
        deliver(), deliver()
        timer(30, "T"), timer(40, "T")
        writer.put(OPERATION_TOPIC, 0, b"1,", TAGS="d")
        store.derived.dispatcher.catch_up()
        self.end = store.commit_log.max_offset
        config = self.root / CONFIG_FOLDER
        config.mkdir(exist_ok=True)
        DelayOffsetTable({1: 3}).write(config)
        TimerCheckPoint(45, 4711, 3, 3).write(config)
        ConsumerOffsetTable({OF_HALVES: {0: 2}, OF_OPERATIONS: {0: 2}, "T@G": {0: 6}}).write(config)
        (self.root / "timerwheel").write_bytes(b"wheel")
        store.close_now(lambda: NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[self.end] * 4)))
        write_snapshot(self.root, self.end, 0, read_tables(self.root))

    def settings_of(self, role: BrokerRole, root: Path | None = None) -> Settings:
        return make_settings(
            {
                "storePathRootDir": str(root or self.root),
                "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
                "brokerRole": role.value,
            }
        )

    def set_back(self, root: Path) -> tuple[dict[int, int], TimerCheckPoint | None, dict[str, dict[int, int]]]:
        config = root / CONFIG_FOLDER
        consumers = ConsumerOffsetTable.read(config).offset_table
        return DelayOffsetTable.read(config).offset_table, TimerCheckPoint.read(config), consumers

    def recovered(self, may_cut: MayCut, role: BrokerRole = BrokerRole.ASYNC_MASTER) -> Path:
        MessageStore(self.settings_of(role), may_cut=may_cut).close_now()
        return self.root

    def force(self) -> Path:
        """The first record that is cut has rotted, and sound ones follow."""
        write_at(self.root / "commitlog", self.cut, b"\0\0\0\1", SEGMENT_BYTES)
        return self.recovered(MayCut.ANYTHING)

    def lose(self, role: BrokerRole = BrokerRole.ASYNC_MASTER) -> Path:
        """The disk has lost the end of the log."""
        os.truncate(self.root / "commitlog" / f"{0:020d}", self.cut)
        os.truncate(self.root / "commitlog" / f"{0:020d}", SEGMENT_BYTES)
        return self.recovered(MayCut.LOST_END, role)

    def rewind(self) -> Path:
        rewind(self.settings, self.cut)
        return self.root

    def restore(self) -> Path:
        output = self.root.with_name("restored")
        log = examine_source(self.settings, NodeState.read(self.root))
        copy_store(plan_copy(self.settings, output, CopyKind.RESTORE, log, self.cut), self.settings)
        return output

    def test_each_way_to_cut_sets_back_what_points_into_the_end(self) -> None:
        ways: dict[str, tuple[Callable[[], Path], bool]] = {
            "recover --apply --force": (self.force, False),
            "recover --apply": (self.lose, False),
            "the start of a slave": (lambda: self.lose(BrokerRole.SLAVE), False),
            "rewind": (self.rewind, True),
            "restore": (self.restore, True),
        }
        kept = self.root.with_name("kept")
        shutil.copytree(self.root, kept)
        for name, (way, is_exact) in ways.items():
            with self.subTest(way=name):
                shutil.rmtree(self.root)
                shutil.copytree(kept, self.root)
                root = way()
                delays, point, groups = self.set_back(root)
                self.assertEqual([path.name for path in root.glob("timer*")], [])
                self.assertEqual(snapshot_offsets(root), [])
                done_delays, done_point, done_groups = self.DONE
                assert point is not None
                if is_exact:
                    self.assertEqual((delays, point), (done_delays, done_point))
                    self.assertEqual(groups[OF_HALVES], done_groups[OF_HALVES])
                self.assertLessEqual(delays[1], done_delays[1])  # what cannot be read may have been a delivery
                self.assertLessEqual(point, done_point)
                self.assertLessEqual(groups[OF_HALVES][0], done_groups[OF_HALVES][0])
                if root is not self.root or "recover" in name:  # a slave's groups are its master's
                    self.assertEqual(groups["T@G"], done_groups["T@G"])

    def test_what_is_moved_is_kept(self) -> None:
        self.force()
        folder = self.root / "rmqha"
        self.assertEqual([path.read_bytes() for path in folder.glob("aside-timers-*/timerwheel")], [b"wheel"])
        self.assertEqual(len(list(folder.glob("aside-tables-*/tables/*.json"))), 1)

    def test_snapshots_up_to_the_cut_stay(self) -> None:
        write_snapshot(self.root, self.cut, 0, read_tables(self.root))
        self.force()
        self.assertEqual(snapshot_offsets(self.root), [self.cut])
        self.assertEqual(len(list((self.root / "rmqha").glob("aside-tables-*/*.json"))), 1)

    def test_a_log_that_begins_anew_has_delivered_nothing(self) -> None:
        store = MessageStore(self.settings)
        store.set_aside(1)
        store.close_now()
        self.assertEqual(self.set_back(self.root)[:2], ({}, None))
        moved = [path.name for path in (self.root / "rmqha" / "aside-1-timers").iterdir()]
        self.assertEqual(sorted(moved), ["delayOffset.json", "timercheck", "timerwheel"])

    def test_without_an_end_that_is_cut_nothing_goes_back(self) -> None:
        before = self.set_back(self.root)
        self.recovered(MayCut.ANYTHING)
        self.assertEqual((self.set_back(self.root), snapshot_offsets(self.root)), (before, [self.end]))

    def test_a_group_does_not_miss_what_a_master_takes_after_a_crash(self) -> None:
        """It had read messages that were not on the disk yet."""
        ConsumerOffsetTable({"T@G": {0: 9}, "T@H": {0: 3}}).write(self.root / CONFIG_FOLDER)
        (self.root / "abort").touch()
        self.recovered(MayCut.TORN_END)
        self.assertEqual(self.set_back(self.root)[2], {"T@G": {0: 6}, "T@H": {0: 3}})


class TransactionTests(SynchronousTestCase):
    def test_the_check_of_transactions_goes_back(self) -> None:
        """Half message 1 ended after the cut: it is open again. Half message 0 ended before; 3 is cut itself."""
        store = new_folder(self)
        config, log = store / CONFIG_FOLDER, CommitLog(store / "commitlog", 4096)
        halves = [Record(HALF_TOPIC, b"half", queue_offset=number) for number in range(4)]

        def ended(offsets: bytes, number: int) -> Record:
            return Record(OPERATION_TOPIC, offsets, "TAGS\x01d", queue_offset=number)

        for record in (halves[0], ended(b"0", 0), halves[1], halves[2], ended(b"2", 1)):
            log.append(record)
        cut = log.max_offset
        for record in (halves[3], ended(b"1,3", 2)):
            log.append(record)
        end = log.max_offset
        log.close()
        ConsumerOffsetTable({OF_HALVES: {0: 4}, OF_OPERATIONS: {0: 3}, "T@G": {0: 9}}).write(config)
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[end] * 4)).write(store)
        rewind(make_settings({"storePathRootDir": str(store), "brokerRole": "ASYNC_MASTER"}), cut)
        table = ConsumerOffsetTable.read(config).offset_table
        self.assertEqual(table, {OF_HALVES: {0: 1}, OF_OPERATIONS: {0: 1}, "T@G": {0: 9}})
