"""A slave keeps the check point of its 5.x master's timer wheel, once it has what the check point calls delivered."""

from twisted.internet.defer import execute

from rmqha.broker.background.timercheck import TimerCheckPoints
from rmqha.remoting.turns import Turns
from rmqha.store.timers import CHECK_POINT, CHECK_POINT_FILE, TimerCheckPoint
from rmqha.wire.command import RequestCode
from rmqha.wire.timers import TIMER_TOPIC
from tests.broker.background.test_slavesync import MASTER, SlaveSyncTestCase, all_tables, runtime_info
from tests.store.queues import Writer

CODE = RequestCode.GET_TIMER_CHECK_POINT


class TimerCheckTests(SlaveSyncTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.master = self.serve(MASTER, *all_tables())

    def follow(self, configured: str | None = None) -> None:
        self.timers = TimerCheckPoints(self.folder, self.store, Turns(self.clock), execute)
        super().follow(configured)

    def receive(self, *due: int) -> None:
        """Timer messages come from the master."""
        for each in due:
            Writer(self.store.commit_log).put(TIMER_TOPIC, 0, b"later", TIMER_OUT_MS=str(each), queue_offset=self.count)
            self.count += 1
        self.store.commit_log.verify()
        self.dispatch()

    count = told = 0

    def tell_point(self, last_read: int, offset: int, log_end: int | None = None) -> None:
        """The master has come so far, and its log ends there: by default where ours does."""
        self.told = offset
        self.master.bodies[CODE] = CHECK_POINT.pack(last_read, 4711, offset - 1, offset, 0, 1_795_200_000_000, 5)
        end = self.store.commit_log.max_offset if log_end is None else log_end
        self.master.bodies[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime_info(end)

    def written(self) -> tuple[int, int] | None:
        """The time and the queue offset of the file."""
        point = TimerCheckPoint.read(self.folder)
        if point is None:
            return None
        self.assertEqual(point.log_flush_pos, 0)
        self.assertEqual(point.master_queue_offset, max(point.queue_offset, min(self.told, self.count)))
        return point.last_read_ms, point.queue_offset

    def test_a_master_without_timer_messages_is_not_asked(self) -> None:
        self.follow(MASTER)
        self.pass_by(30)
        self.assertNotIn(CODE, self.master.asked)
        self.assertIsNone(self.written())

    def test_the_check_point_is_written_and_goes_on(self) -> None:
        self.receive(10, 50, 30, 90)
        self.tell_point(20, 4)
        self.follow(MASTER)
        self.pass_by(4)
        self.assertEqual(self.written(), (20, 1))
        self.tell_point(60, 4)
        self.pass_by(14)
        self.assertEqual(self.written(), (60, 3))
        self.receive(70)
        self.tell_point(95, 5)
        self.pass_by(14)
        self.assertEqual(self.written(), (95, 5))
        self.tell_point(65, 5)  # another master, which is not as far
        self.pass_by(14)
        self.assertEqual(self.written(), (65, 3))
        (self.folder / CHECK_POINT_FILE).unlink()  # it was set aside with the log
        self.pass_by(14)
        self.assertEqual(self.written(), (65, 3))
        self.assertIs(self.sync.facts()["inSync"], True)

    def test_it_waits_for_the_log(self) -> None:
        """The master has delivered a message, but what it delivered has not come yet."""
        self.receive(10, 50)
        end = self.store.commit_log.max_offset
        self.tell_point(60, 2, log_end=end + 1)
        self.follow(MASTER)
        self.pass_by(30)
        self.assertIsNone(self.written())
        self.receive(70)
        self.pass_by(20)
        self.assertEqual(self.written(), (60, 2))

    def test_it_does_not_wait_for_what_comes_later(self) -> None:
        """A log that grows all the time is never dispatched to its end."""
        self.receive(10, 50)
        self.tell_point(60, 2)
        end = self.store.commit_log.max_offset
        self.follow(MASTER)
        self.store.derived.dispatcher.stop()
        Writer(self.store.commit_log).put("T", 0, b"now")
        self.store.commit_log.verify()
        self.pass_by(30)
        self.assertEqual(self.store.derived.dispatcher.reput_offset, end)
        self.assertEqual(self.written(), (60, 2))

    def test_a_restart_goes_on(self) -> None:
        self.receive(10, 50)
        TimerCheckPoint(40, 0, 1, 1).write(self.folder)
        self.tell_point(60, 2)
        self.follow(MASTER)
        self.pass_by(4)
        self.assertEqual(self.written(), (60, 2))

    def test_a_master_of_4_9_does_not_know_the_request(self) -> None:
        self.receive(10)
        self.follow(MASTER)
        self.master.unknown = {int(CODE)}
        self.pass_by(4)
        self.assertEqual(self.sync.facts()["inSync"], True)

    def test_a_bad_answer_is_told_and_changes_nothing(self) -> None:
        self.receive(10)
        TimerCheckPoint(5, 0, 0, 0).write(self.folder)
        self.master.bodies[CODE] = bytes(55)
        self.follow(MASTER)
        self.pass_by(4)
        self.assertEqual(self.sync.facts()["inSync"], False)
        self.assertIn("56 bytes, not 55", str(self.sync.facts()["reason"]))
        self.assertEqual(self.written(), (5, 0))
