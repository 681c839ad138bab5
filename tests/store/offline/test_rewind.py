"""A store is taken back to an earlier place: its index stays complete, and a death at each step leaves a slave's."""

import shutil
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings import BrokerRole
from rmqha.store.epochs import note_promotion, promoted_role
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import ABORT_FILE, MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.rewind import needs_rewind, rewind
from tests.store.offline.test_prefix import fixed_log, store_of


class RewindTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.made = fixed_log()
        opened = store_of(self.made)
        self.store, self.settings = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        self.middle = self.made.messages[20].start
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[self.made.end] * 4)).write(self.store)

    def test_the_index_has_all_that_stays_also_after_an_unclean_stop(self) -> None:
        """A process died before it had built the index again."""
        (self.store / ABORT_FILE).touch()
        shutil.rmtree(self.store / "index")
        rewind(self.settings, self.middle)
        opened = MessageStore(replace(self.settings, broker_role=BrokerRole.SLAVE))
        try:
            index = opened.derived.index
            assert index is not None
            found = [index.query("A", f"k{number}", 0, 1 << 62, 10) for number in range(40)]
            expected = [[stored.start] if number < 20 else [] for number, stored in enumerate(self.made.messages)]
            self.assertEqual(found, expected)
        finally:
            opened.close_now()

    def test_a_promotion_is_forgotten_before_the_log_is_cut(self) -> None:
        """Else a node that is started as a slave would run as a master, on a log without its tail."""
        note_promotion(self.store, "ASYNC_MASTER", 2, "2026-11-22T00:00:00Z")
        real = Disk.write_new

        def no_room(disk: Disk, path: object, pieces: object) -> None:
            raise OSError("no room for what is cut")

        patch = self.patch(Disk, "write_new", no_room)
        self.assertRaises(OSError, rewind, self.settings, self.middle)
        patch.restore()
        self.assertIs(Disk.write_new, real)
        self.assertIsNone(promoted_role(self.store))

    def test_a_promotion_is_forgotten_if_there_is_nothing_to_cut(self) -> None:
        whole = Fork(self.made.end, self.made.end, is_theirs_shorter=False)
        self.assertFalse(needs_rewind(self.store, whole))
        note_promotion(self.store, "ASYNC_MASTER", 2, "2026-11-22T00:00:00Z")
        self.assertTrue(needs_rewind(self.store, whole))
        self.assertIsNone(rewind(self.settings, self.made.end).kept_in)
        self.assertIsNone(promoted_role(self.store))
