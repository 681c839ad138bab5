"""Which timer messages of 5.x wait, and the check point that a broker without the wheel needs."""

import struct

from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER
from rmqha.store.offline.prefix import CopyKind, copy_store, examine_source, plan_copy
from rmqha.store.offline.promote import plan_promotion
from rmqha.store.offline.rewind import rewind
from rmqha.store.timers import CHECK_POINT_FILE, TimerCheckPoint, first_waiting, waiting_timers
from rmqha.wire.timers import TIMER_QUEUE_ID, TIMER_TOPIC
from tests.fixtures import new_folder
from tests.store.queues import Writer, records_of


class CheckPointTests(SynchronousTestCase):
    def test_the_file_is_as_java_writes_it(self) -> None:
        folder = new_folder(self)
        point = TimerCheckPoint(1_795_000_000_000, 0, 17, 18, 3, 1_795_000_000_001, 9)
        point.write(folder)
        data = (folder / CHECK_POINT_FILE).read_bytes()
        self.assertEqual(data, struct.pack(">7q", *point) + bytes(4096 - 56))
        self.assertEqual(TimerCheckPoint.read(folder), point)

    def test_what_is_no_check_point(self) -> None:
        folder = new_folder(self)
        self.assertIsNone(TimerCheckPoint.read(folder))
        for data in (
            b"",
            bytes(55),
            struct.pack(">7q", 1, 0, -1, 0, 0, 0, 0),
            struct.pack(">7q", -1, 0, 0, 0, 0, 0, 0),
        ):
            self.assertRaises(ValueError, TimerCheckPoint.parse, data)
            (folder / CHECK_POINT_FILE).write_bytes(data)
            self.assertIsNone(TimerCheckPoint.read(folder))


class WaitingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = new_folder(self)
        self.settings = make_settings(
            {"storePathRootDir": str(self.root), "mappedFileSizeCommitLog": "65536", "brokerRole": "SLAVE"}
        )
        self.store = MessageStore(self.settings)
        self.is_closed = False
        self.addCleanup(lambda: None if self.is_closed else self.store.abandon())
        self.writer = Writer(self.store.commit_log)

    def put(self, *due: int | None, topic: str = "T") -> None:
        for each in due:
            fields = {} if each is None else {"TIMER_OUT_MS": str(each), "REAL_TOPIC": topic}
            self.writer.put(TIMER_TOPIC, 0, b"later", **fields)
        self.store.derived.dispatcher.catch_up()

    def first(self, point: TimerCheckPoint, start: int = 0) -> int:
        queue = self.store.derived.queues.get(TIMER_TOPIC, TIMER_QUEUE_ID)
        assert queue is not None
        return first_waiting(queue, self.store.reader.message_at, start, point)

    def waiting(self, point: TimerCheckPoint | None, now: int = 0) -> dict[str, int]:
        queue = self.store.derived.queues.get(TIMER_TOPIC, TIMER_QUEUE_ID)
        return dict(waiting_timers(queue, self.store.reader.message_at, point, now).topics)

    def test_the_first_message_that_is_not_delivered(self) -> None:
        self.put(10, 50, None, 20, 30, 90, 40)
        for last_read, master_offset, expected in (
            (5, 7, 0),
            (10, 7, 0),
            (11, 7, 1),
            (50, 7, 1),
            (51, 7, 5),
            (91, 7, 7),
            (91, 3, 3),  # the master has not read the later ones: they are not in its wheel
            (91, 100, 7),
            (5, 0, 0),
        ):
            with self.subTest(last_read=last_read, master_offset=master_offset):
                self.assertEqual(self.first(TimerCheckPoint(last_read, 4711, 0, master_offset)), expected)
        self.assertEqual(self.first(TimerCheckPoint(5, 0, 0, 7), start=4), 4)

    def test_no_message_is_lost_wherever_the_master_was(self) -> None:
        """A broker that starts at the check point has every message that the master has not delivered."""
        dues = [50, 10, 30, 30, 80, 20, 70, 60]
        self.put(*dues)
        for last_read, master_offset in ((last_read, offset) for last_read in range(0, 91, 10) for offset in range(9)):
            start = self.first(TimerCheckPoint(last_read, 0, 0, master_offset))
            undelivered = [at for at, due in enumerate(dues) if due >= last_read or at >= master_offset]
            self.assertEqual(start, min(undelivered, default=len(dues)))

    def test_waiting_messages_are_counted_by_topic(self) -> None:
        self.assertEqual(self.waiting(None), {})
        self.put(10, 50, topic="A")
        self.put(None, 60, topic="B")
        self.assertEqual(self.waiting(None), {"A": 2, "B": 1})
        self.assertEqual(self.waiting(None, 50), {"A": 1, "B": 1})
        self.assertEqual(self.waiting(TimerCheckPoint(51, 0, 2, 2)), {"B": 1})
        self.assertEqual(self.waiting(TimerCheckPoint(50, 0, 1, 1)), {"A": 1, "B": 1})
        self.assertEqual(self.waiting(TimerCheckPoint(50, 0, 99, 99)), {})

    def test_a_plan_of_a_promotion_names_them(self) -> None:
        self.put(10, 50, topic="A")
        (self.root / CONFIG_FOLDER).mkdir(exist_ok=True)
        TimerCheckPoint(20, 0, 1, 1).write(self.root / CONFIG_FOLDER)
        self.store.close_now()
        self.is_closed = True
        plan = plan_promotion(self.settings, BrokerRole.ASYNC_MASTER, None)
        self.assertEqual((dict(plan.timers.topics), plan.timers.is_all), ({"A": 1}, True))

    def test_a_rewind_takes_back_the_deliveries_that_it_cuts(self) -> None:
        self.put(10, 50, 30, 40, topic="A")
        for due in (10, 30, 40):
            self.writer.put("A", 0, b"now", TIMER_OUT_MS=str(due), REAL_TOPIC="A")
        self.put(60, topic="A")
        (self.root / CONFIG_FOLDER).mkdir(exist_ok=True)
        TimerCheckPoint(45, 0, 1, 1).write(self.root / CONFIG_FOLDER)
        places = [record.physical_offset for record in records_of(self.store.commit_log)]
        self.store.close_now()
        self.is_closed = True
        for cut, last_read, offset in ((7, 45, 1), (6, 40, 1), (5, 30, 1), (4, 10, 0), (3, 10, 0), (1, 10, 0)):
            rewind(self.settings, places[cut])
            found = TimerCheckPoint.read(self.root / CONFIG_FOLDER)
            assert found is not None
            self.assertEqual((found.last_read_ms, found.queue_offset), (last_read, offset), cut)

    def test_a_rewind_moves_the_wheel_of_a_java_broker_aside(self) -> None:
        """It points into the log: a Java broker that started with it delivered its messages again."""
        self.make_delivered(TimerCheckPoint(45, 4711, 4, 4))
        (self.root / "timerwheel").write_bytes(b"wheel")
        (self.root / "timerlog").mkdir()
        (self.root / "timerlog" / f"{0:020d}").write_bytes(b"entries")
        rewind(self.settings, self.places[5])
        self.assertEqual([name for name in ("timerwheel", "timerlog") if (self.root / name).exists()], [])
        (kept,) = (self.root / "rmqha").glob("aside-timers-*")
        self.assertEqual((kept / "timerwheel").read_bytes(), b"wheel")
        self.assertEqual((kept / "timerlog" / f"{0:020d}").read_bytes(), b"entries")
        self.assertEqual(TimerCheckPoint.read(self.root / CONFIG_FOLDER), TimerCheckPoint(30, 0, 1, 4))

    def test_a_restore_and_a_backup_have_the_check_point_for_their_log(self) -> None:
        self.make_delivered(TimerCheckPoint(45, 4711, 4, 4))
        log = examine_source(self.settings, None)
        for number, (kind, cut, expected) in enumerate(
            (
                (CopyKind.RESTORE, 5, TimerCheckPoint(30, 0, 1, 4)),
                (CopyKind.RESTORE, 3, TimerCheckPoint(10, 0, 0, 3)),
                (CopyKind.BACKUP, None, TimerCheckPoint(45, 0, 1, 4)),
            )
        ):
            end = log.end if cut is None else self.places[cut]
            copy = self.root.with_name(f"copy{number}")
            copy_store(plan_copy(self.settings, copy, kind, log, end), self.settings)
            self.assertEqual(TimerCheckPoint.read(copy / CONFIG_FOLDER), expected)

    def make_delivered(self, point: TimerCheckPoint) -> None:
        """Four timer messages, three of them delivered, and one more."""
        self.put(10, 50, 30, 40, topic="A")
        for due in (10, 30, 40):
            self.writer.put("A", 0, b"now", TIMER_OUT_MS=str(due), REAL_TOPIC="A")
        self.put(60, topic="A")
        (self.root / CONFIG_FOLDER).mkdir(exist_ok=True)
        point.write(self.root / CONFIG_FOLDER)
        self.places = [record.physical_offset for record in records_of(self.store.commit_log)]
        self.store.close_now()
        self.is_closed = True
