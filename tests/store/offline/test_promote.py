"""A slave's store becomes a master's: what is foretold is what happens, and a death at each step loses nothing."""

import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import BrokerRole
from rmqha.store.epochs import Epoch, add_epoch, promoted_role, read_epochs
from rmqha.store.errors import StoreError
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.mappedfile import Disk
from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    TopicConfig,
    TopicConfigTable,
)
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline import promote as promotion
from rmqha.store.offline.promote import NotPromotable, Promotion, check_promotable, plan_promotion, promote
from rmqha.store.readlimit import LimitFile
from tests.store.damages import UNHURRIED
from tests.store.offline.test_prefix import fixed_log, logs, queue_ends, store_of

NOW_MS = 1_795_000_000_000


def slave_state(end: int, state: str = "IN_SYNC", **more: object) -> NodeState:
    return replace(
        NodeState("1f", epoch=3, role="SLAVE", state=state, offsets=Offsets(0, *[end] * 4)),
        **more,  # type: ignore[arg-type]
    )


class GeneratedTests(SynchronousTestCase):
    @pytest.mark.long
    @UNHURRIED
    @given(st.data())
    def test_what_is_foretold_is_what_happens(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        with store_of(made) as (store, settings):
            if data.draw(st.booleans()):
                shutil.rmtree(store / "consumequeue")  # nothing is dispatched yet
            if data.draw(st.booleans()):
                (store / ABORT_FILE).touch()
            slave_state(made.end).write(store)
            before = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
            foretold = plan_promotion(settings, BrokerRole.ASYNC_MASTER, NodeState.read(store))
            after = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
            self.assertEqual(after, before)
            self.assertEqual(dict(foretold.queue_ends), queue_ends(made, made.end))
            done = promote(settings, BrokerRole.ASYNC_MASTER, NOW_MS)
            self.assertEqual(_facts(done), _facts(foretold))


def _facts(found: Promotion) -> Promotion:
    return replace(found, queue_ends=dict(found.queue_ends))


class PromoteTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.made = fixed_log()
        opened = store_of(self.made)
        self.store, self.settings = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        slave_state(self.made.end, lag_bytes=7, master="10.0.0.1:10912").write(self.store)

    def promote(self) -> Promotion:
        return promote(self.settings, BrokerRole.ASYNC_MASTER, NOW_MS)

    def test_the_store_is_a_masters_with_a_new_epoch_and_new_versions(self) -> None:
        config = self.store / CONFIG_FOLDER
        TopicConfigTable(DataVersion(5, 1), {"A": TopicConfig("A")}).write(config)
        done = self.promote()
        self.assertEqual((done.epoch, done.end, done.lag_bytes), (4, self.made.end, 7))
        state = NodeState.read(self.store)
        assert state is not None
        self.assertEqual((state.epoch, state.epoch_start, state.role), (4, self.made.end, "ASYNC_MASTER"))
        self.assertEqual(promoted_role(self.store), "ASYNC_MASTER")
        [epoch] = read_epochs(self.store)
        self.assertEqual((epoch.epoch, epoch.start, epoch.cause), (4, self.made.end, "promoted"))
        self.assertEqual(TopicConfigTable.read(config).data_version, DataVersion(6, NOW_MS))
        self.assertFalse((self.store / ABORT_FILE).exists())

    def test_no_more_is_confirmed_than_consumers_may_read(self) -> None:
        limit = self.made.messages[5].start
        LimitFile(self.store).write(limit)
        self.promote()
        state = NodeState.read(self.store)
        assert state is not None
        self.assertEqual((state.offsets.verified, state.offsets.confirmed), (self.made.end, limit))

    def test_what_a_power_failure_took_is_told_as_lost(self) -> None:
        """state.json is older than the log's end: the slave had 500 bytes more, and lagged behind by 7."""
        had = Offsets(0, self.made.end + 500, self.made.end + 500, self.made.end, self.made.end)
        replace(slave_state(self.made.end, lag_bytes=7), offsets=had).write(self.store)
        planned = plan_promotion(self.settings, BrokerRole.ASYNC_MASTER, NodeState.read(self.store))
        self.assertEqual(planned.lag_bytes, 507)
        self.assertEqual(self.promote().lag_bytes, 507)

    def test_what_was_not_flushed_at_an_unclean_stop_is_told(self) -> None:
        """No master was there to compare it with. It is kept, for it is probably sound."""
        flushed = self.made.end - 300
        had = Offsets(0, self.made.end, self.made.end, flushed, flushed)
        replace(slave_state(self.made.end), offsets=had).write(self.store)
        self.assertIsNone(self.plan().unproved_from, "the stop was clean")
        (self.store / ABORT_FILE).touch()
        self.assertEqual(self.plan().unproved_from, flushed)
        done = self.promote()
        self.assertEqual((done.unproved_from, done.end), (flushed, self.made.end))
        state = NodeState.read(self.store)
        assert state is not None
        self.assertIsNone(state.unproved_from, "its slaves are compared with it")

    def plan(self) -> Promotion:
        return plan_promotion(self.settings, BrokerRole.ASYNC_MASTER, NodeState.read(self.store))

    def test_offsets_past_their_queues_are_set_back_and_named(self) -> None:
        config = self.store / CONFIG_FOLDER
        ConsumerOffsetTable({"A@G": {0: 99, 1: 4}}).write(config)
        DelayOffsetTable({3: 50}).write(config)
        done = self.promote()
        self.assertEqual([tuple(moved) for moved in done.moved], [("A@G", 0, 99, 20)])
        self.assertEqual(ConsumerOffsetTable.read(config).offset_table, {"A@G": {0: 20, 1: 4}})
        self.assertEqual(DelayOffsetTable.read(config).offset_table, {3: 0})

    def test_who_may_not_be_promoted(self) -> None:
        def refused(state: NodeState | None) -> ExitCode:
            with self.assertRaises(NotPromotable) as caught:
                check_promotable(self.store, state, force=False)
            check_promotable(self.store, state, force=True)
            code: ExitCode = caught.exception.code
            return code

        self.assertEqual(refused(None), ExitCode.USAGE)
        self.assertEqual(refused(replace(slave_state(1), role="SYNC_MASTER")), ExitCode.USAGE)
        self.assertEqual(refused(slave_state(1, "GAP")), ExitCode.GAP)
        self.assertEqual(refused(slave_state(1, "STOPPED", verdict="DIVERGED")), ExitCode.DIVERGED)
        check_promotable(self.store, slave_state(1, "AHEAD"), force=False)
        self.promote()
        self.assertEqual(refused(slave_state(1)), ExitCode.USAGE)

    def test_an_epoch_that_is_not_new_is_refused(self) -> None:
        add_epoch(self.store, Epoch(9, 5, "2026-11-22T00:00:00Z", "promoted"))
        for number in (8, 9):
            with self.assertRaises(StoreError):
                add_epoch(self.store, Epoch(number, 5, "", ""))
        self.assertEqual(self.promote().epoch, 10)

    def test_a_death_at_each_step_leaves_a_store_that_can_be_promoted(self) -> None:
        original = self.store.parent / "original"
        shutil.copytree(self.store, original)
        for step in range(50):
            shutil.rmtree(self.store)
            shutil.copytree(original, self.store)
            if not self.dies_at(step):
                break
            if promoted_role(self.store) is None:
                check_promotable(self.store, NodeState.read(self.store), force=False)
            done = promote(self.settings, BrokerRole.ASYNC_MASTER, NOW_MS)
            self.assertEqual((done.end, dict(done.queue_ends)), (self.made.end, queue_ends(self.made, self.made.end)))
            self.assertEqual(promoted_role(self.store), "ASYNC_MASTER")
        self.assertGreater(step, 4)

    def dies_at(self, step: int) -> bool:
        left = [step]
        patches = []

        def watch(owner: object, name: str) -> None:
            real = getattr(owner, name)

            def call(*arguments: object, **named: object) -> object:
                if not left[0]:
                    raise Died
                left[0] -= 1
                return real(*arguments, **named)

            patches.append(self.patch(owner, name, call))

        for name in ("add_epoch", "clamp_offsets", "note_promotion"):
            watch(promotion, name)
        watch(NodeState, "write")
        watch(Disk, "replace")
        try:
            self.promote()
        except Died:
            return True
        finally:
            for patch in patches:
                patch.restore()
        return False


class Died(BaseException):
    """The process is gone."""
