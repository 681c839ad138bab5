"""A store is taken back to an earlier place of its log: its queues and index agree with the log that is left.

A death at each step leaves a slave's store.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, Settings, make_settings
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.dispatchmark import DispatchMark
from rmqha.store.derived.replacing import remove_retired, retire_derived
from rmqha.store.epochs import note_promotion, promoted_role
from rmqha.store.examining import ABORT_FILE, CHECKPOINT_FILE
from rmqha.store.log.mappedfile import Disk
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NODE_FOLDER, NodeState, Offsets
from rmqha.store.offline.audit import audit
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.rewind import needs_rewind, rewind
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.readlimit import LimitFile
from tests.store.damages import UNHURRIED
from tests.store.logs import file_bytes
from tests.store.offline.test_prefix import Made, fixed_log, logs, queue_ends, result_of, store_of

UNIT_BYTES = 20


def cut_queue(folder: Path, units: int) -> None:
    """Leave so many units of a queue: a process that was killed had written no more of it."""
    at = 0
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        kept = max(0, min(len(content), units * UNIT_BYTES - at))
        path.write_bytes(content[:kept].ljust(len(content), b"\0"))
        at += len(content)


def assert_agrees(case: SynchronousTestCase, store: Path, settings: Settings, made: Made, end: int) -> None:
    """The log is the generated one up to ``end``; a node that starts has each queue's units, and the index."""
    content = file_bytes(store / "commitlog")
    case.assertEqual((content[:end], content[end:].strip(b"\0")), (made.content[:end], b""))
    opened = MessageStore(make_settings({"storePathRootDir": str(store), "brokerRole": "ASYNC_MASTER"}))
    try:
        case.assertEqual(opened.commit_log.verified_offset, end)
        ends = {key: offset for key, offset in opened.derived.queue_offsets().items() if offset}
        case.assertEqual(ends, queue_ends(made, end))
    finally:
        result_of(opened.close())
    reader = StoreReader(store, settings)
    try:
        found = audit(reader.root, reader.log, end, settings, lambda _: None)
        case.assertEqual((found.problems, found.missing_keys), ((), 0))
    finally:
        reader.close()


class GeneratedTests(SynchronousTestCase):
    @UNHURRIED
    @given(st.data())
    @pytest.mark.long
    def test_queues_agree_with_the_log_that_is_left(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        end = data.draw(st.sampled_from([message.end for message in made.messages]))
        with store_of(made) as (store, settings):
            if data.draw(st.booleans(), "whether the node was killed"):
                (store / ABORT_FILE).touch()
                for folder in sorted((store / "consumequeue").glob("*/*")):
                    if data.draw(st.booleans()):
                        cut_queue(folder, data.draw(st.integers(0, 10)))
                for name in (f"{NODE_FOLDER}/queue-ends.json", CHECKPOINT_FILE):  # it had not flushed these units
                    (store / name).unlink(missing_ok=True)
            NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[made.end] * 4)).write(store)
            done = rewind(settings, end)
            state = NodeState.read(store)
            assert state is not None
            self.assertEqual((done.end, state.offsets.verified), (end, end))
            if end < made.end:
                assert done.kept_in is not None
                self.assertEqual(done.kept_in.read_bytes().rstrip(b"\0"), made.content[end:].rstrip(b"\0"))
            assert_agrees(self, store, settings, made, end)


class RewindTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.made = fixed_log()
        opened = store_of(self.made)
        self.store, self.settings = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        self.middle = self.made.messages[20].start
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[self.made.end] * 4)).write(self.store)

    def test_the_index_has_all_that_stays_also_after_an_unclean_stop(self) -> None:
        """A node that built them again died after it had written the queues, and before it had written the index."""
        remove_retired(retire_derived(self.store))
        DispatchMark(0).write(self.store)

        def die(_: Dispatcher) -> None:
            raise KeyboardInterrupt

        patch = self.patch(Dispatcher, "_write_index", die)
        self.assertRaises(KeyboardInterrupt, MessageStore, self.settings)
        patch.restore()
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

    def test_no_more_is_confirmed_than_consumers_may_read(self) -> None:
        """The simulator found it: the node confirmed less when it ran, and a second rewind took that back unnoticed."""
        limit = self.made.messages[5].start
        LimitFile(self.store).write(limit)
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[limit] * 4), read_limit=limit).write(self.store)
        rewind(self.settings, self.middle)
        state = NodeState.read(self.store)
        assert state is not None
        self.assertEqual((state.offsets.verified, state.offsets.confirmed), (self.middle, limit))

    def test_a_promotion_is_forgotten_if_there_is_nothing_to_cut(self) -> None:
        whole = Fork(self.made.end, self.made.end, is_theirs_shorter=False, proved_from=0)
        self.assertFalse(needs_rewind(self.store, whole))
        note_promotion(self.store, "ASYNC_MASTER", 2, "2026-11-22T00:00:00Z")
        self.assertTrue(needs_rewind(self.store, whole))
        self.assertIsNone(rewind(self.settings, self.made.end).kept_in)
        self.assertIsNone(promoted_role(self.store))
