"""Retention while a node runs: when it starts, what slots keep, and what it logs."""

import errno
import os
from pathlib import Path
from unittest.mock import patch

from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ops.cleaning import FIRST_RUN_SECONDS, CleaningService, Hold
from rmqha.settings.settings import make_settings
from rmqha.store import retention
from rmqha.store.derived.consumequeue import ConsumeQueue
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.retention import Slot, SlotFolder
from rmqha.testing.records import write_log
from tests.ha.doubles import log_lines
from tests.store.logs import flush_derived

SEGMENT_SIZE = 8192
SEGMENTS = 6
ANY_HOUR = ";".join(str(hour) for hour in range(24))


class CleaningServiceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.patch(retention, "disk_used_ratio", lambda _: 0.5)  # that of this machine may be nearly full
        self.root = Path(self.mktemp())
        write_log(self.root / "commitlog", SEGMENTS * SEGMENT_SIZE, 300, SEGMENT_SIZE)
        self.age(0)
        settings = {"storePathRootDir": str(self.root), "deleteWhen": ANY_HOUR, "maxHashSlotNum": "100"}
        self.store = MessageStore(make_settings(settings))
        flush_derived(self.store.commit_log, self.store)
        self.acknowledged: dict[str, int] = {}
        self.failures: list[Failure] = []
        self.service: CleaningService | None = None

    def tearDown(self) -> None:
        if self.service is not None:
            self.service.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.successResultOf(self.store.close())
        self.assertEqual(self.failures, [])

    def age(self, hours: int) -> None:
        for path in (self.root / "commitlog").iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_atime - hours * 3600))

    def run_service(self, hold: Hold) -> None:
        self.age(1000)
        self.service = CleaningService(self.store, hold, lambda: self.acknowledged, self.clock, self.failures.append)
        self.service.startService()

    @property
    def segments(self) -> list[int]:
        return [base // SEGMENT_SIZE for base in self.store.commit_log.segment_bases]

    def test_queues_are_looked_at_in_turns_which_end_with_the_service(self) -> None:
        self.store.derived.dispatcher.catch_up()
        self.assertEqual(len(self.store.derived.queues.queues), 4)
        self.patch(retention, "QUEUES_AT_ONCE", 1)
        looked_at: list[ConsumeQueue] = []

        def look(queue: ConsumeQueue, offset: int) -> int:
            looked_at.append(queue)
            if len(looked_at) == 2:
                assert self.service is not None
                self.service.stopService()
            return 0

        self.patch(ConsumeQueue, "delete_files_before", look)
        self.run_service(Hold())
        self.clock.advance(FIRST_RUN_SECONDS)
        self.assertEqual((len(looked_at), len(self.segments)), (2, 1))
        self.service = None

    def test_nothing_is_deleted_in_the_first_minute(self) -> None:
        before = self.segments
        self.run_service(Hold())
        self.clock.advance(FIRST_RUN_SECONDS - 1)
        self.assertEqual(self.segments, before)
        self.clock.advance(1)
        self.assertEqual(len(self.segments), 1)

    def test_an_operator_has_it_clean_now(self) -> None:
        self.acknowledged = {"10.0.0.1": 3 * SEGMENT_SIZE}
        self.run_service(Hold(True))
        assert self.service is not None
        done = self.service.clean_now()
        self.clock.advance(0)
        self.successResultOf(done)
        self.assertEqual(self.segments[0], 3)
        self.acknowledged = {"10.0.0.1": 5 * SEGMENT_SIZE}
        for hours, first in ((0, 3), (1000, 5)):  # young files stay
            self.age(hours)
            again = self.service.clean_now()
            self.clock.advance(0)
            self.successResultOf(again)
            self.assertEqual(self.segments[0], first)

    def test_what_an_operator_wants_in_the_first_minute_ends_with_the_service(self) -> None:
        self.run_service(Hold())
        assert self.service is not None
        before = len(self.segments)
        done = self.service.clean_now()
        self.assertEqual(before - len(self.segments), 1, "the others go in later turns")
        self.service.stopService()
        self.service = None
        self.clock.advance(0)
        self.successResultOf(done)
        self.assertEqual(before - len(self.segments), 1)

    def test_stopping_before_the_first_run_leaves_nothing_scheduled(self) -> None:
        self.run_service(Hold())

    def test_a_slave_that_is_behind_holds_the_log(self) -> None:
        self.acknowledged = {"10.0.0.1": 3 * SEGMENT_SIZE + 5, "10.0.0.2": 5 * SEGMENT_SIZE}
        self.run_service(Hold(True))
        self.clock.advance(FIRST_RUN_SECONDS)
        self.assertEqual(self.segments[0], 3)
        self.assertEqual(
            SlotFolder(self.root).slots(), [Slot("10.0.0.1", 3 * SEGMENT_SIZE + 5), Slot("10.0.0.2", 5 * SEGMENT_SIZE)]
        )

    def test_a_slave_that_is_gone_still_holds_the_log(self) -> None:
        self.acknowledged = {"10.0.0.1": 2 * SEGMENT_SIZE}
        self.run_service(Hold(True))
        self.clock.advance(FIRST_RUN_SECONDS)
        self.acknowledged = {}
        self.clock.advance(10)
        self.assertEqual(self.segments[0], 2)

    def test_a_full_disk_keeps_the_slots_that_it_has(self) -> None:
        """They hold more of the log. The new ones are written as soon as there is room."""
        self.acknowledged = {"10.0.0.1": 2 * SEGMENT_SIZE}
        self.run_service(Hold(True))
        self.clock.advance(FIRST_RUN_SECONDS)
        self.acknowledged = {"10.0.0.1": 4 * SEGMENT_SIZE}
        with patch.object(Disk, "replace", side_effect=OSError(errno.ENOSPC, "full")):
            self.clock.advance(10)
        self.assertEqual((self.segments[0], SlotFolder(self.root).slots()), (2, [Slot("10.0.0.1", 2 * SEGMENT_SIZE)]))
        self.clock.advance(10)
        self.assertEqual((self.segments[0], SlotFolder(self.root).slots()), (4, [Slot("10.0.0.1", 4 * SEGMENT_SIZE)]))

    def test_a_full_disk_holds_the_log_for_a_new_slave_too(self) -> None:
        self.acknowledged = {"10.0.0.1": 2 * SEGMENT_SIZE}
        with patch.object(Disk, "replace", side_effect=OSError(errno.ENOSPC, "full")):
            self.run_service(Hold(True))
            self.clock.advance(FIRST_RUN_SECONDS)
        self.assertEqual((self.segments[0], SlotFolder(self.root).slots()), (2, []))

    def test_the_hold_is_bounded(self) -> None:
        self.acknowledged = {"10.0.0.1": 0}
        self.run_service(Hold(True, max_bytes=2 * SEGMENT_SIZE))
        self.clock.advance(FIRST_RUN_SECONDS)
        end = self.store.commit_log.verified_offset
        self.assertEqual(self.segments[0], (end - 2 * SEGMENT_SIZE) // SEGMENT_SIZE)

    def test_slots_that_wait_for_room_are_told_of_once(self) -> None:
        """Until there is room, and again if there is none later."""
        interval = self.store.settings.clean_resource_interval_ms / 1000
        no_room = OSError(errno.ENOSPC, "no room")
        self.acknowledged = {"10.0.0.1": 5}
        self.run_service(Hold(enabled=True))
        with log_lines() as lines:
            with patch.object(SlotFolder, "save", side_effect=no_room):
                self.clock.advance(FIRST_RUN_SECONDS)
                self.clock.pump([interval] * 3)
            self.assertEqual(lines().count("the slots are not written"), 1)
            self.clock.advance(interval)
            self.acknowledged = {"10.0.0.1": 6}
            with patch.object(SlotFolder, "save", side_effect=no_room):
                self.clock.pump([interval] * 3)
            self.assertEqual(lines().count("the slots are not written"), 2)

    def test_a_slot_that_cannot_be_read_stops_deletion_and_nothing_else(self) -> None:
        folder = self.root / "rmqha" / "slots"
        folder.mkdir(parents=True)
        (folder / "broken.json").write_text("{")
        before = self.segments
        self.run_service(Hold(True))
        self.clock.advance(FIRST_RUN_SECONDS)
        self.assertEqual(self.segments, before)
        (folder / "broken.json").unlink()
        self.clock.advance(10)
        self.assertEqual(len(self.segments), 1)
