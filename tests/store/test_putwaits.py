"""What a put is answered: every outcome of the disk with every outcome of the replicas, and when."""

from itertools import product

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import make_settings
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import AppendMessageResult, AppendMessageStatus, PutMessageResult, PutMessageStatus
from rmqha.store.putwaits import PutWaits

OK = PutMessageStatus.PUT_OK
DISK_TIMED_OUT = PutMessageStatus.FLUSH_DISK_TIMEOUT
SLAVE_TIMED_OUT = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
NOT_AVAILABLE = PutMessageStatus.SLAVE_NOT_AVAILABLE
FLUSH_TIMEOUT, SLAVE_TIMEOUT = 5.0, 3.0
APPENDED = AppendMessageResult(AppendMessageStatus.PUT_OK, wrote_offset=100, wrote_bytes=50)
NEXT_OFFSET = 150


class FakeReplicas:
    """Replicas that do as the test says: ``here`` is whether any can be waited for, ``reached`` what they hold."""

    def __init__(self, clock: Clock) -> None:
        self._waits = GroupCommit(clock, SLAVE_TIMEOUT)
        self.here = self.enough = True
        self.asked: list[int] = []

    def enough_for_puts(self) -> bool:
        return self.enough

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        self.asked.append(next_offset)
        waits = self._waits.wait(next_offset)
        if not self.here:
            self._waits.give_up()
        failure = SLAVE_TIMED_OUT if self.here else NOT_AVAILABLE
        return waits.addCallback(lambda in_time: OK if in_time else failure)

    def reached(self, offset: int) -> None:
        """The log is replicated up to this offset."""
        self._waits.reached(offset)

    def give_up(self) -> None:
        self._waits.give_up()


class PutWaitsTestCase(SynchronousTestCase):
    """``self.flushes`` counts how often the disk was asked."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.replicas = FakeReplicas(self.clock)
        self.flushes = 0
        self.begin()

    def begin(self, sync_flush: bool = True, replicated: bool = True) -> None:
        """Answer puts of a broker that waits for its disk, and for replicas, as said."""
        settings = make_settings(
            {
                "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
                "syncFlushTimeout": str(int(FLUSH_TIMEOUT * 1000)),
            }
        )
        self.waits = PutWaits(settings, self.clock, self.flush)
        if replicated:
            self.waits.replication = self.replicas

    def flush(self) -> None:
        self.flushes += 1

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def check_answer(self, answer: Deferred[PutMessageResult], status: PutMessageStatus) -> None:
        self.assertEqual(self.successResultOf(answer), PutMessageResult(status, APPENDED))


class CombinationTests(PutWaitsTestCase):
    """Flush and replicas are independent; a replica's failure hides the disk's (spec/ha.md 7, 5)."""

    def test_every_outcome_of_the_disk_with_every_outcome_of_the_replicas(self) -> None:
        """An outcome is when it came, or that it never did; the answer comes with the later of both."""
        moments = (1.0, 2.0, None)
        for flushed, replicated, here in product(moments, moments, (True, False)):
            with self.subTest(flushed=flushed, replicated=replicated, here=here):
                self.setUp()
                self.replicas.here = here
                answer = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
                of_replicas = SLAVE_TIMED_OUT if replicated is None else OK
                status = of_replicas if here else NOT_AVAILABLE
                if status is OK and flushed is None:
                    status = DISK_TIMED_OUT
                known_at = max(flushed or FLUSH_TIMEOUT, (replicated or SLAVE_TIMEOUT) if here else 0)
                self.check_history(answer, flushed, replicated, known_at)
                self.check_answer(answer, status)
                self.assertEqual(self.clock.getDelayedCalls(), [])

    def check_history(
        self, answer: Deferred[PutMessageResult], flushed: float | None, replicated: float | None, known_at: float
    ) -> None:
        """Let time pass until the answer must be known; it is not known half a second before."""
        while self.clock.seconds() < known_at:
            self.assertNoResult(answer)
            self.clock.advance(0.5)
            if self.clock.seconds() == flushed:
                self.waits.flushed(NEXT_OFFSET)
            if self.clock.seconds() == replicated:
                self.replicas.reached(NEXT_OFFSET)

    def test_with_async_flush_only_replicas_count(self) -> None:
        self.begin(sync_flush=False)
        replicated, late = (
            self.waits.answer(APPENDED, waits=True, started=self.clock.seconds()),
            self.waits.answer(APPENDED, waits=True, started=self.clock.seconds()),
        )
        self.waits.flushed(NEXT_OFFSET)
        self.assertNoResult(replicated)
        self.replicas.reached(NEXT_OFFSET)
        self.check_answer(replicated, OK)
        self.check_answer(late, OK)
        late = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.clock.advance(SLAVE_TIMEOUT)
        self.check_answer(late, SLAVE_TIMED_OUT)
        self.replicas.here = False
        self.check_answer(self.waits.answer(APPENDED, waits=True, started=self.clock.seconds()), NOT_AVAILABLE)
        self.assertEqual(self.flushes, 0)

    def test_without_replicas_only_the_disk_counts(self) -> None:
        self.begin(replicated=False)
        answer = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.assertNoResult(answer)
        self.waits.flushed(NEXT_OFFSET)
        self.check_answer(answer, OK)
        answer = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.clock.advance(FLUSH_TIMEOUT)
        self.check_answer(answer, DISK_TIMED_OUT)
        self.assertEqual((self.flushes, self.replicas.asked), (2, []))

    def test_with_neither_the_answer_is_there_at_once(self) -> None:
        self.begin(sync_flush=False, replicated=False)
        self.check_answer(self.waits.answer(APPENDED, waits=True, started=self.clock.seconds()), OK)
        self.assertEqual(self.flushes, 0)

    def test_a_sender_who_does_not_wait_is_answered_at_once_and_asks_nobody(self) -> None:
        self.check_answer(self.waits.answer(APPENDED, waits=False, started=self.clock.seconds()), OK)
        self.assertEqual((self.flushes, self.replicas.asked), (0, []))

    def test_both_are_asked_for_the_offset_behind_the_message(self) -> None:
        answer = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.waits.flushed(NEXT_OFFSET - 1)
        self.replicas.reached(NEXT_OFFSET - 1)
        self.assertNoResult(answer)
        self.waits.flushed(NEXT_OFFSET)
        self.assertNoResult(answer)
        self.replicas.reached(NEXT_OFFSET)
        self.check_answer(answer, OK)
        self.assertEqual((self.flushes, self.replicas.asked), (1, [NEXT_OFFSET]))

    def test_a_disk_that_is_done_within_the_call_is_in_time(self) -> None:
        self.waits = PutWaits(make_settings({"flushDiskType": "SYNC_FLUSH"}), self.clock, self.flush_at_once)
        self.check_answer(self.waits.answer(APPENDED, waits=True, started=self.clock.seconds()), OK)

    def flush_at_once(self) -> None:
        self.waits.flushed(NEXT_OFFSET)


class GiveUpTests(PutWaitsTestCase):
    """A node that stops, or whose disk has failed, leaves nobody waiting."""

    def test_all_that_wait_are_answered_as_at_their_deadlines(self) -> None:
        first = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        second = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.replicas.reached(NEXT_OFFSET)
        third = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.waits.give_up()
        self.check_answer(first, DISK_TIMED_OUT)
        self.check_answer(second, DISK_TIMED_OUT)
        self.check_answer(third, SLAVE_TIMED_OUT)

    def test_so_they_are_without_replicas(self) -> None:
        self.begin(replicated=False)
        answer = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.waits.give_up()
        self.check_answer(answer, DISK_TIMED_OUT)

    def test_so_they_are_without_waiting_for_the_disk(self) -> None:
        self.begin(sync_flush=False)
        answer = self.waits.answer(APPENDED, waits=True, started=self.clock.seconds())
        self.waits.give_up()
        self.check_answer(answer, SLAVE_TIMED_OUT)


class AdmissionTests(PutWaitsTestCase):
    """Whether a put is let in at all."""

    def test_a_master_without_replicas_lets_all_in(self) -> None:
        self.begin(replicated=False)
        self.assertTrue(self.waits.enough_replicas())

    def test_else_the_replicas_say(self) -> None:
        for enough in (True, False):
            self.replicas.enough = enough
            self.assertEqual(self.waits.enough_replicas(), enough)
