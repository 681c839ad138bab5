"""Tables are written by a thread, one write at a time, and nothing is lost or written backwards (finding D3)."""

from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.tables.configmanager import RETRY_SECONDS, ConfigManager, TableStorage
from rmqha.store.metadata import TopicConfig, TopicConfigTable
from tests.ha.doubles import log_lines


class Thread:
    """Runs nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Deferred[None]]] = []
        self.runs = 0

    def __call__(self, function: Callable[[], None], /) -> Deferred[None]:
        self.waiting.append((function, Deferred()))
        return self.waiting[-1][1]

    def run(self, error: OSError | None = None) -> None:
        """The function that waits, or its failure."""
        function, done = self.waiting.pop(0)
        self.runs += 1
        if error is not None:
            done.errback(Failure(error))
            return
        function()
        done.callback(None)


class ConfigManagerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.clock = Clock()
        self.thread = Thread()
        self.manager = ConfigManager(TableStorage(self.folder, self.thread, self.clock), TopicConfigTable)

    def change(self, name: str) -> None:
        self.manager.table.topic_config_table[name] = TopicConfig(name)
        self.manager.persist()

    def on_disk(self) -> list[str]:
        return list(TopicConfigTable.read(self.folder).topic_config_table)

    def test_a_thousand_changes_are_two_writes(self) -> None:
        names = [f"T{number}" for number in range(1000)]
        for name in names:
            self.change(name)
        written = self.manager.written()
        self.assertEqual(len(self.thread.waiting), 1)
        self.thread.run()
        self.assertNoResult(written)
        self.thread.run()
        self.successResultOf(written)
        self.assertEqual((self.thread.runs, self.thread.waiting, self.on_disk()), (2, [], names))

    def test_a_write_has_the_table_as_it_was_when_it_began(self) -> None:
        self.change("A")
        first = self.manager.written()
        self.change("B")
        second = self.manager.written()
        self.thread.run()
        self.assertEqual(self.on_disk(), ["A"])
        self.successResultOf(first)
        self.assertNoResult(second)
        self.thread.run()
        self.assertEqual(self.on_disk(), ["A", "B"])
        self.successResultOf(second)

    def test_without_a_change_there_is_nothing_to_wait_for(self) -> None:
        self.successResultOf(self.manager.written())
        self.successResultOf(self.manager.stopService())
        self.assertEqual(self.thread.waiting, [])

    def test_a_write_that_fails_is_told_and_tried_again(self) -> None:
        self.change("A")
        written = self.manager.written()
        with log_lines() as lines:
            self.thread.run(OSError("no room"))
            self.clock.advance(RETRY_SECONDS)
            self.thread.run(OSError("no room"))
        self.assertEqual(lines().count("topics.json is not written: no room"), 1, "once")
        self.failureResultOf(written, OSError)
        with log_lines() as lines:
            self.clock.advance(RETRY_SECONDS)
            self.thread.run(OSError("no room"))
        self.assertEqual(lines(), "")  # logged once for all tries
        self.clock.advance(RETRY_SECONDS)
        self.thread.run()
        self.assertEqual((self.on_disk(), self.clock.getDelayedCalls()), (["A"], []))

    def test_who_changed_something_during_a_write_that_failed_is_told_too(self) -> None:
        self.change("A")
        self.change("B")
        written = self.manager.written()
        self.thread.run(OSError("no room"))
        self.failureResultOf(written, OSError)
        self.change("C")
        self.thread.run()
        self.assertEqual((self.on_disk(), self.clock.getDelayedCalls()), (["A", "B", "C"], []))

    def test_the_end_waits_for_all_that_is_changed(self) -> None:
        self.change("A")
        self.change("B")
        finished = self.manager.stopService()
        self.thread.run()
        self.assertNoResult(finished)
        self.thread.run()
        self.successResultOf(finished)
        self.assertEqual(self.on_disk(), ["A", "B"])

    def test_the_end_tries_once_more_and_then_ends(self) -> None:
        self.change("A")
        self.thread.run(OSError("no room"))
        finished = self.manager.stopService()
        self.thread.run(OSError("no room"))
        self.successResultOf(finished)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_end_comes_also_if_the_last_write_fails_at_once(self) -> None:
        def refuse(_: Callable[[], None]) -> Deferred[None]:
            return fail(OSError("no room"))

        self.manager = ConfigManager(TableStorage(self.folder, refuse), TopicConfigTable)
        self.change("A")
        self.successResultOf(self.manager.stopService())
