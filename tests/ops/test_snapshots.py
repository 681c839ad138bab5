"""Snapshots of the tables while a node runs: when one is written, and when one goes."""

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.services import PeriodicService
from rmqha.ops.snapshots import SNAPSHOT_SECONDS, TableSnapshots
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable
from rmqha.store.tablesnapshots import read_snapshot, snapshot_offsets, snapshot_path
from tests.fixtures import new_folder


class TableSnapshotsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = new_folder(self)
        self.log = SimpleNamespace(verified_offset=100, min_offset=0)
        self.clock = Clock()
        store = cast(MessageStore, SimpleNamespace(root=self.root, commit_log=self.log, is_slave=False))
        self.topics_written: Deferred[None] = succeed(None)
        snapshots = TableSnapshots(store, self.run_at_once, lambda: 1_795_000_000_000, lambda: self.topics_written)
        self.service = PeriodicService("a snapshot", SNAPSHOT_SECONDS, snapshots.write_if_changed, self.clock)
        self.consumed(1)

    def run_at_once(self, call: Any) -> Deferred[Any]:
        return succeed(None).addCallback(lambda _: call())

    def consumed(self, offset: int) -> None:
        ConsumerOffsetTable({"T@G": {0: offset}}).write(self.root / CONFIG_FOLDER)

    def next_at(self, verified_offset: int) -> None:
        self.log.verified_offset = verified_offset
        self.clock.advance(SNAPSHOT_SECONDS)

    def start(self) -> None:
        self.service.startService()
        self.addCleanup(self.service.stopService)

    def test_one_is_written_only_when_a_table_has_changed(self) -> None:
        self.start()
        self.next_at(200)
        self.assertEqual(snapshot_offsets(self.root), [100])
        self.consumed(2)
        self.next_at(300)
        self.assertEqual(snapshot_offsets(self.root), [100, 300])
        found = read_snapshot(self.root, 299)
        assert found is not None
        self.assertEqual((found.offset, found.time), (100, "2026-11-18T11:06:40.000Z"))
        self.assertIn("T@G", found.tables["consumerOffset.json"])

    def test_one_waits_for_the_topics_of_all_messages_before_it(self) -> None:
        """Else a restore would take a topic that is just being written for a deleted one."""
        self.topics_written = Deferred()
        self.start()
        self.assertEqual(snapshot_offsets(self.root), [])
        self.log.verified_offset = 200
        self.topics_written.callback(None)
        self.assertEqual(snapshot_offsets(self.root), [100])

    def test_those_before_the_log_go_but_for_the_last(self) -> None:
        self.start()
        for number in range(2, 6):
            self.consumed(number)
            self.next_at(100 * number)
        self.log.min_offset = 300
        self.next_at(600)
        self.assertEqual(snapshot_offsets(self.root), [300, 400, 500])

    def test_one_that_has_rotted_is_passed_over(self) -> None:
        self.start()
        self.consumed(2)
        self.next_at(200)
        snapshot_path(self.root, 200).write_text("{")
        found = read_snapshot(self.root, 250)
        assert found is not None
        self.assertEqual(found.offset, 100)

    def test_a_disk_that_refuses_is_tried_again(self) -> None:
        (self.root / "rmqha").write_text("in the way")
        self.start()
        self.assertEqual(len(self.flushLoggedErrors()), 1)
        (self.root / "rmqha").unlink()
        self.next_at(200)
        self.assertEqual(snapshot_offsets(self.root), [200])
