"""docs/faults.md T1 to T4: wall clocks that jump, stand still and change for summer, under processes and retention."""

import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from struct import Struct

import pytest
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.events import Event
from rmqha.ops import cleaning
from rmqha.ops.cleaning import CleaningService, Hold
from rmqha.settings.settings import make_settings
from rmqha.store import retention
from rmqha.store.messagestore import MessageStore
from rmqha.testing.records import write_log
from tests.faults.pairs import Pair, shim, start_pair
from tests.faults.scenarios import proofs, scenario
from tests.store.logs import flush_derived

HOUR = 3600.0
TEN_YEARS = 3652 * 24 * HOUR
RATE_AND_OFFSET = Struct("dd")
SEGMENT_SIZE, SEGMENTS = 8192, 6


class WallClock:
    """The wall clock that nodes with its prefix see."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tell(1.0, 0.0)
        self.prefix = shim("CLOCK", path)

    def _tell(self, rate: float, offset: float) -> None:
        with self._path.open("r+b" if self._path.exists() else "wb") as file:  # the same file: nodes have it mapped
            file.write(RATE_AND_OFFSET.pack(rate, offset))

    def step(self, seconds: float) -> None:
        """Be so far from the true time."""
        self._tell(1.0, seconds)

    def stand_still(self) -> None:
        """Tell this moment from now on."""
        self._tell(0.0, time.time())


def assert_undisturbed(small: Pair, who: str, change: Callable[[WallClock], None]) -> None:
    """The wall clock of one end changes: the connection goes on, and silence is still noticed in time by both."""
    clock = WallClock(small.work / "clock")
    log = small.log.copied_to(small.work / "changing" / "store")
    with start_pair(
        small.work / "changing", log, prefix=clock.prefix if who == "master" else (), scale=small.scale
    ) as pair:
        slave = pair.slave(prefix=clock.prefix if who == "slave" else ())
        pair.wait_for_report(log.end)
        change(clock)
        time.sleep(1.5 * pair.housekeeping_seconds)  # only heartbeats keep the connection
        pair.check_connections()
        assert pair.proxy.facts().open == 1
        pair.proxy.command("both hold")
        slave.wait_for_event(Event.MASTER_SILENT)
        pair.master.wait_for_event(Event.SLAVE_SILENT)
        pair.proxy.cut()
        pair.proxy.command("both pass")
        pair.stop_and_check(slave)
        assert pair.master.stop() == 0


@scenario(("slave", HOUR), ("master", TEN_YEARS), *proofs(("master", -HOUR), ("slave", -TEN_YEARS)))
@pytest.mark.story
def test_t1_and_t4_a_wall_clock_that_jumps_ends_no_connection_and_no_timer(
    small: Pair, case: tuple[str, float]
) -> None:
    who, seconds = case
    assert_undisturbed(small, who, lambda clock: clock.step(seconds))


@scenario("slave", "master")
def test_t2_and_t4_a_wall_clock_that_stands_still_stops_nothing(small: Pair, who: str) -> None:
    assert_undisturbed(small, who, WallClock.stand_still)


@scenario(HOUR, -TEN_YEARS, *proofs(-HOUR, TEN_YEARS))
def test_t1_nodes_with_a_wrong_wall_clock_replicate_and_restart_with_a_right_one(pair: Pair, seconds: float) -> None:
    clock = WallClock(pair.work / "clock")
    clock.step(seconds)
    slave = pair.slave_with_half(prefix=clock.prefix)
    slave.kill()
    clock.step(0)
    pair.proxy.command("down pass")
    pair.stop_and_check(slave.start())


class RetentionTests(SynchronousTestCase):
    """T3. Central European time: the clock goes from 02:00 to 03:00 in March and from 03:00 to 02:00 in October."""

    NIGHTS = (datetime(2026, 3, 28, 12), datetime(2026, 10, 24, 12))
    """The noon before each of the two nights in question."""

    def setUp(self) -> None:
        self.addCleanup(time.tzset)
        self.patch(os, "environ", {**os.environ, "TZ": "CET-1CEST,M3.5.0,M10.5.0/3"})
        os.putenv("TZ", os.environ["TZ"])
        self.addCleanup(os.unsetenv, "TZ")
        time.tzset()
        self.patch(retention, "disk_used_ratio", lambda folder: 0.5)

    def deletions(self, noon: datetime, delete_when: str, hours: int) -> list[datetime]:
        """When retention deletes anything in so many hours from noon on, of segments that are all old enough then."""
        root, clock, failures = Path(self.mktemp()), Clock(), list[Failure]()
        write_log(root / "commitlog", SEGMENTS * SEGMENT_SIZE, 300, SEGMENT_SIZE)
        for path in (root / "commitlog").iterdir():
            os.utime(path, (0, 0))
        settings = {"storePathRootDir": str(root), "deleteWhen": delete_when, "cleanResourceInterval": "60000"}
        store = MessageStore(make_settings({**settings, "maxHashSlotNum": "100"}))
        flush_derived(store.commit_log, store)
        start, found = noon.timestamp(), list[datetime]()

        class LocalTime(datetime):
            @classmethod
            def now(cls, tz: object = None) -> "LocalTime":
                return cls.fromtimestamp(start + clock.seconds())

        self.patch(cleaning, "datetime", LocalTime)
        service = CleaningService(store, Hold(), dict, clock, failures.append)
        service.startService()
        for _ in range(hours * 60):
            before = len(store.commit_log.segment_bases)
            clock.advance(60)
            if len(store.commit_log.segment_bases) < before:
                found.append(LocalTime.now())
        service.stopService()
        self.successResultOf(store.close())
        self.assertEqual((failures, clock.getDelayedCalls()), ([], []))
        return found

    def test_t3_old_segments_are_deleted_at_four_local_time_when_the_clocks_change(self) -> None:
        for noon in self.NIGHTS:
            with self.subTest(noon):
                runs = self.deletions(noon, "04", 24)
                self.assertEqual({(at.day - noon.day, at.hour) for at in runs}, {(1, 4)})

    def test_t3_an_hour_that_does_not_exist_is_made_up_for_the_next_night(self) -> None:
        spring, autumn = self.NIGHTS
        self.assertEqual({(at.day - spring.day, at.hour) for at in self.deletions(spring, "02", 48)}, {(2, 2)})
        self.assertEqual({(at.day - autumn.day, at.hour) for at in self.deletions(autumn, "02", 48)}, {(1, 2)})
