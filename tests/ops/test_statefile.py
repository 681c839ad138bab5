"""state.json while a node runs."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.events import Event
from rmqha.ops.statefile import WRITE_INTERVAL_SECONDS, StateFileService
from rmqha.store.log.mappedfile import Disk
from rmqha.store.nodestate import NodeState, Offsets, state_path
from tests.fixtures import new_folder


class StateFileTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self)
        self.clock = Clock()
        self.state = NodeState("1f" * 16, role="SLAVE", state="CATCHING_UP", offsets=Offsets(0, 10, 10, 0, 0))
        self.failures: list[Failure] = []
        self.writes: list[tuple[float, Callable[[], None], Deferred[None]]] = []

    def service(self, in_thread: bool = False) -> StateFileService:
        def run_at_once(function: Callable[[], None]) -> Deferred[None]:
            done: Deferred[None] = execute(function)
            self.writes.append((self.clock.seconds(), function, done))
            return done

        def run_later(function: Callable[[], None]) -> Deferred[None]:
            self.writes.append((self.clock.seconds(), function, Deferred()))
            return self.writes[-1][2]

        run = run_later if in_thread else run_at_once
        return StateFileService(self.store, lambda: self.state, self.clock, run, self.failures.append)

    def grow(self) -> None:
        written = self.state.offsets.written + 1
        self.state = replace(self.state, offsets=replace(self.state.offsets, written=written))

    @property
    def times(self) -> list[float]:
        return [time for time, _, _ in self.writes]


class WritingTests(StateFileTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.running = self.service()
        self.running.startService()

    def tearDown(self) -> None:
        self.successResultOf(self.running.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_state_is_there_as_soon_as_the_node_runs(self) -> None:
        self.assertEqual(NodeState.read(self.store), self.state)
        self.assertEqual([path.name for path in state_path(self.store).parent.iterdir()], ["state.json"])

    def test_a_full_disk_is_tried_again_and_told_once(self) -> None:
        refuse = patch.object(Disk, "replace", side_effect=OSError(errno.ENOSPC, "full"))
        with refuse, capturedLogs() as events:
            for _ in range(3):
                self.grow()
                self.clock.advance(1)
        told = [event["what"] for event in events if event.get("event") is Event.WAITS_FOR_ROOM]
        self.assertEqual((told, self.failures), (["state.json"], []))
        self.clock.advance(1)
        self.assertEqual(NodeState.read(self.store), self.state)

    def test_it_is_written_at_most_once_a_second(self) -> None:
        for _ in range(40):
            self.clock.advance(0.125)
            self.grow()
        self.assertEqual(self.times, [0, 1, 2, 3, 4, 5])
        found = NodeState.read(self.store)
        assert found is not None
        self.assertEqual(found.offsets.written, 10 + 39)

    def test_a_change_of_state_is_written_at_once(self) -> None:
        self.clock.advance(0.125)
        self.state = replace(self.state, state="IN_SYNC")
        self.running.write_soon()
        self.clock.advance(0)
        self.assertEqual(self.times, [0, 0.125])
        self.assertEqual(NodeState.read(self.store), self.state)

    def test_several_changes_of_one_turn_are_one_write(self) -> None:
        for _ in range(5):
            self.grow()
            self.running.write_soon()
        self.clock.advance(0)
        self.assertEqual(self.times, [0, 0])
        self.assertEqual(NodeState.read(self.store), self.state)

    def test_a_change_of_state_is_not_written_after_the_stop(self) -> None:
        self.grow()
        self.running.write_soon()
        self.successResultOf(self.running.stopService())
        self.running.write_soon()
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 3)
        self.assertEqual(self.times, [0])

    def test_what_has_not_changed_is_not_written(self) -> None:
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 10)
        self.assertEqual(self.times, [0])
        self.grow()
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 10)
        self.assertEqual(self.times, [0, 11])

    def test_a_state_that_came_back_is_written_again(self) -> None:
        first = self.state
        self.grow()
        self.clock.advance(WRITE_INTERVAL_SECONDS)
        self.state = first
        self.clock.advance(WRITE_INTERVAL_SECONDS)
        self.assertEqual(NodeState.read(self.store), first)

    def test_nothing_is_written_after_the_stop(self) -> None:
        self.successResultOf(self.running.stopService())
        self.grow()
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 3)
        self.assertEqual(self.times, [0])


class SlowDiskTests(StateFileTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.running = self.service(in_thread=True)
        self.running.startService()

    def finish_write(self, number: int) -> None:
        _, function, done = self.writes[number]
        done.callback(function())

    def test_one_write_waits_for_the_other(self) -> None:
        for _ in range(5):
            self.grow()
            self.clock.advance(WRITE_INTERVAL_SECONDS)
        self.assertEqual(self.times, [0])
        self.finish_write(0)
        self.clock.advance(WRITE_INTERVAL_SECONDS)
        self.assertEqual(self.times, [0, 6])
        self.finish_write(1)
        self.assertEqual(NodeState.read(self.store), self.state)
        self.successResultOf(self.running.stopService())

    def test_a_change_during_a_write_is_written_right_after_it(self) -> None:
        for _ in range(3):
            self.grow()
            self.running.write_soon()
            self.clock.advance(0)
        self.assertEqual(self.times, [0])
        self.finish_write(0)
        self.clock.advance(0)
        self.assertEqual(self.times, [0, 0])
        self.finish_write(1)
        self.assertEqual(NodeState.read(self.store), self.state)
        self.successResultOf(self.running.stopService())

    def test_a_store_that_writes_the_state_itself_waits_for_the_write_that_runs(self) -> None:
        self.grow()
        self.running.write_soon()
        self.clock.advance(0)
        begun_meanwhile: list[int] = []
        self.running.written().addCallback(lambda _: begun_meanwhile.append(len(self.writes)))
        self.assertEqual(begun_meanwhile, [])
        self.finish_write(0)
        self.assertEqual(begun_meanwhile, [1], "the next write starts in a later turn")
        self.clock.advance(0)
        self.finish_write(1)
        self.successResultOf(self.running.written())
        self.successResultOf(self.running.stopService())

    def test_stopping_waits_for_the_write_that_runs(self) -> None:
        stopped = self.running.stopService()
        self.assertNoResult(stopped)
        self.finish_write(0)
        self.successResultOf(stopped)
        self.assertEqual((self.failures, self.clock.getDelayedCalls()), ([], []))

    def test_stopping_ends_when_the_write_that_runs_fails(self) -> None:
        stopped = self.running.stopService()
        self.writes[0][2].errback(OSError(errno.EIO, "Input/output error"))
        self.successResultOf(stopped)
        self.assertEqual([failure.type for failure in self.failures], [OSError])

    def test_stopping_between_two_writes_waits_for_nothing(self) -> None:
        self.finish_write(0)
        self.clock.advance(0.5)
        self.successResultOf(self.running.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])


class RefusingDiskTests(StateFileTestCase):
    def test_a_failed_write_is_told_once_and_is_the_last(self) -> None:
        (self.store / "rmqha").write_text("a file where the folder should be")
        running = self.service()
        running.startService()
        self.assertEqual([type(failure.value) for failure in self.failures], [FileExistsError])
        self.grow()
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 3)
        self.assertEqual((len(self.failures), self.times), (1, [0]))
        self.successResultOf(running.stopService())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_change_of_state_after_a_failed_write_is_not_written(self) -> None:
        (self.store / "rmqha").write_text("a file where the folder should be")
        running = self.service()
        running.startService()
        self.grow()
        running.write_soon()
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 3)
        self.assertEqual((len(self.failures), self.times), (1, [0]))
        self.successResultOf(running.stopService())

    def test_a_failed_write_of_a_change_is_told_once(self) -> None:
        running = self.service()
        running.startService()
        (self.store / "rmqha" / "state.json.tmp").mkdir()
        self.grow()
        running.write_soon()
        self.clock.pump([WRITE_INTERVAL_SECONDS] * 3)
        self.assertEqual([type(failure.value) for failure in self.failures], [IsADirectoryError])
        self.assertEqual(len(self.writes), 2)
        self.successResultOf(running.stopService())

    def test_the_old_state_stays_whole_when_the_new_one_cannot_be_written(self) -> None:
        running = self.service()
        running.startService()
        old = self.state
        (self.store / "rmqha" / "state.json.tmp").mkdir()
        self.grow()
        self.clock.advance(WRITE_INTERVAL_SECONDS)
        self.assertEqual([type(failure.value) for failure in self.failures], [IsADirectoryError])
        self.assertEqual(NodeState.read(self.store), old)
        self.successResultOf(running.stopService())

    def test_a_temporary_file_left_by_a_dead_process_does_not_matter(self) -> None:
        folder = self.store / "rmqha"
        folder.mkdir()
        (folder / "state.json.tmp").write_bytes(b'{"storeId": "ha')
        running = self.service()
        running.startService()
        self.assertEqual(NodeState.read(Path(self.store)), self.state)
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["state.json"])
        self.successResultOf(running.stopService())
