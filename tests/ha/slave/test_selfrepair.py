"""Fetches bad bytes over the HA channel: one connection for each gap, whose only report is its request."""

from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.selfrepair import MAX_RETRY_SECONDS, SILENCE_SECONDS, SelfRepair, SourceUnreachable, fetch
from rmqha.settings.settings import Settings
from rmqha.store.offline.storerepair import Mend, Mended, RepairError, StoreRepair
from rmqha.wire.transfer import Transfer
from tests.fixtures import new_folder
from tests.ha.doubles import FakeEndpoint, LineTransport, heartbeat, reports_in, wire
from tests.store.logs import SEGMENT_SIZE, file_bytes, make_log, write_at


class RepairTestCase(SynchronousTestCase):
    """A store with one bad record, and the good log."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = FakeEndpoint(self.clock)
        self.store = new_folder(self) / "store"
        self.offsets = make_log(self.store / "commitlog", *[500] * 20)
        self.good = file_bytes(self.store / "commitlog")
        self.bad = 10
        self.spoil(self.bad)

    def spoil(self, number: int) -> None:
        write_at(self.store / "commitlog", self.offsets[number] + 100, b"!")

    def log(self) -> bytes:
        return file_bytes(self.store / "commitlog")

    def frames(self, start: int, end: int, size: int = 177) -> bytes:
        """What a master sends for a range of the good log."""
        bounds = sorted(
            {start, end, *range(start, end, size), *range(0, end, SEGMENT_SIZE)} & set(range(start, end + 1))
        )
        return wire([Transfer(a, self.good[a:b]) for a, b in pairwise(bounds)])


class FetchTests(RepairTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.begin()

    def begin(self) -> None:
        self.repair = StoreRepair(Settings(store_path_root_dir=self.store))
        self.addCleanup(self.repair.close)
        (gap,) = self.repair.find()
        self.mend: Mend = self.repair.mend(gap)
        self.fetching: Deferred[None] = Deferred.fromCoroutine(fetch(self.endpoint, self.clock, self.mend))
        self.fetching.addErrback(self.note)
        self.failure: Any = None
        self.line: LineTransport = self.endpoint.next().accept()

    def note(self, failure: Any) -> None:
        self.failure = failure.value

    def test_it_asks_once_compares_proves_and_hangs_up(self) -> None:
        before = self.offsets[self.bad - 1]
        self.assertEqual(reports_in(self.line.take()), [before])
        frames = self.frames(before, self.offsets[self.bad + 1] + 500)
        for at in range(0, len(frames), 100):
            self.line.deliver(frames[at : at + 100])
            self.clock.advance(1)
        self.assertTrue(self.mend.done)
        self.successResultOf(self.fetching)
        self.assertEqual(reports_in(self.line.take()), [], "its request was its only report")
        self.assertTrue(self.line.aborted)
        self.clock.advance(0)
        mended = self.repair.place(self.mend)
        self.assertEqual((mended.start, mended.messages), (self.offsets[self.bad], 1))
        self.assertEqual(self.log(), self.good)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def check_failure(self, kind: type[Exception], words: str) -> None:
        self.clock.advance(0)
        self.assertIsInstance(self.failure, kind)
        self.assertRegex(str(self.failure), words)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_master_that_has_no_more_sends_heartbeats(self) -> None:
        """One proves nothing."""
        before = self.offsets[self.bad - 1]
        self.line.deliver(heartbeat(before))
        self.assertIsNone(self.failure)
        self.line.deliver(heartbeat(before))
        self.check_failure(RepairError, "the other log has nothing for")

    def test_bytes_of_another_place_or_log_are_refused(self) -> None:
        before = self.offsets[self.bad - 1]
        self.line.deliver(wire([Transfer(before + 1, b"x")]))
        self.check_failure(RepairError, f"but {before} comes next")

    def test_another_log_is_refused(self) -> None:
        before = self.offsets[self.bad - 1]
        gap = self.offsets[self.bad]
        content = b"x" * (gap - before) + self.good[gap : gap + 500] + b"y" * 500
        self.line.deliver(wire([Transfer(before, content[:1000]), Transfer(before + 1000, content[1000:])]))
        self.check_failure(RepairError, "another log")

    def test_bytes_that_are_no_record_are_refused(self) -> None:
        before = self.offsets[self.bad - 1]
        self.line.deliver(wire([Transfer(before, self.good[before : before + 500] + b"\xff" * 200)]))
        self.check_failure(RepairError, "its record there is bad too")

    def test_no_frames_are_refused(self) -> None:
        self.line.deliver(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.check_failure(RepairError, "not an HA port")

    def test_silence_ends_it(self) -> None:
        self.clock.advance(SILENCE_SECONDS)
        self.check_failure(SourceUnreachable, "nothing came for")

    def test_a_lost_connection_may_come_again(self) -> None:
        self.line.lose(ConnectionLost())
        self.check_failure(SourceUnreachable, "without sending anything")

    def test_the_first_byte_of_a_log_is_not_asked_for(self) -> None:
        """A request for 0 means the last segment."""
        self.line.lose(ConnectionLost())
        self.repair.close()
        write_at(
            self.store / "commitlog", self.offsets[self.bad] + 100, bytes([self.good[self.offsets[self.bad] + 100]])
        )
        self.spoil(0)
        self.begin()
        self.assertEqual(reports_in(self.line.take()), [1])
        self.line.deliver(self.frames(1, 1500))
        self.assertTrue(self.mend.done)
        self.repair.place(self.mend)
        self.assertEqual(self.log(), self.good)


class SelfRepairTests(RepairTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.opened: list[StoreRepair] = []

    def open_repair(self) -> StoreRepair:
        self.opened.append(StoreRepair(Settings(store_path_root_dir=self.store)))
        return self.opened[-1]

    def begin(self, most_attempts: int | None = None) -> "Deferred[list[Mended]]":
        repair = SelfRepair(
            self.open_repair, self.endpoint, self.clock, lambda function: succeed(function()), most_attempts
        )
        return Deferred.fromCoroutine(repair.run())

    def serve(self) -> None:
        """The master answers the next connection."""
        line = self.endpoint.next().accept()
        (request,) = reports_in(line.take())
        line.deliver(self.frames(request, len(self.good.rstrip(b"\0"))))

    def test_all_gaps_one_after_another(self) -> None:
        self.spoil(3)
        done = self.begin()
        self.serve()
        self.serve()
        self.assertEqual([each.start for each in self.successResultOf(done)], [self.offsets[3], self.offsets[self.bad]])
        self.assertEqual(self.log(), self.good)
        self.open_repair().close()  # the lock was let go of
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_it_tries_again_ever_more_slowly_while_the_master_is_away(self) -> None:
        done = self.begin()
        waited = 0.0
        for _ in range(12):
            self.endpoint.next().refuse()
            self.assertNoResult(done)
            (call,) = self.clock.getDelayedCalls()
            pause = call.getTime() - self.clock.seconds()
            self.assertLessEqual(pause, MAX_RETRY_SECONDS * 1.5)
            waited += pause
            self.clock.advance(pause)
        self.assertGreater(waited, 60)
        self.serve()
        self.successResultOf(done)
        self.assertEqual(self.log(), self.good)

    def test_attempts_can_be_limited(self) -> None:
        done = self.begin(most_attempts=2)
        for _ in range(2):
            self.endpoint.next().refuse()
            self.clock.advance(MAX_RETRY_SECONDS * 2)
        self.failureResultOf(done, SourceUnreachable)

    def test_a_master_that_closes_each_connection_lacks_the_bytes(self) -> None:
        """Ours does so when it has deleted them."""
        done = self.begin()
        for _ in range(4):
            self.endpoint.next().accept().lose(ConnectionLost())
            self.clock.advance(MAX_RETRY_SECONDS * 2)
        self.failureResultOf(done, RepairError)
        self.assertNotEqual(self.log(), self.good)

    def test_it_can_be_given_up_at_any_time(self) -> None:
        done = self.begin()
        self.endpoint.next().refuse()
        done.addErrback(lambda _: None)
        done.cancel()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        again = self.begin()  # the lock was let go of
        line = self.endpoint.next().accept()
        again.addErrback(lambda _: None)
        again.cancel()
        self.assertTrue(line.aborted)
        self.open_repair().close()
