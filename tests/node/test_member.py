"""What a member of a failover cluster does if its disk is full, and with orders that are not of the coordinator."""

import errno
import gc
import shutil
from collections import Counter, namedtuple
from collections.abc import Awaitable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.brokerservice import FIRST_SLAVE_ID
from rmqha.failover.knownfile import read_known
from rmqha.failover.member import DiskFull, Known, NodeFailed
from rmqha.ha.master.leadership import Leadership
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.node import member
from rmqha.node.core import Phase
from rmqha.node.member import MemberNode
from rmqha.node.node import Node
from rmqha.node.plan import FailoverPlan, NodePlan
from rmqha.node.promotionorder import PromotionOrder
from rmqha.ops.control import OrderRefused
from rmqha.settings.settings import BrokerRole, make_settings
from rmqha.store.log.mappedfile import DISK
from rmqha.store.offline.promote import MIN_FREE_BYTES
from rmqha.store.opening import OpeningStopped
from rmqha.store.popinflight import PopInFlight
from tests.fixtures import new_folder
from tests.node.doubles import HostDouble, MemberHostDouble, OpenNodeDouble, ProcessDouble

Usage = namedtuple("Usage", "total used free")


class MemberCase(SynchronousTestCase):
    """A member with a store of its own, which is not open yet."""

    def setUp(self) -> None:
        self.store = new_folder(self)
        (self.store / "rmqha").mkdir()
        self.host = HostDouble()
        self.settings = make_settings({"storePathRootDir": str(self.store), "mappedFileSizeCommitLog": "4096"})
        self.member = MemberNode(NodePlan(self.settings), self.host, MemberHostDouble())
        self.core = self.host.core = self.member.core

    def use(self, asked: Awaitable[Any]) -> Any:
        return self.successResultOf(self.ask(asked))

    def fails(self, asked: Awaitable[Any], kind: type[Exception]) -> str:
        return str(self.failureResultOf(self.ask(asked), kind).value)

    def ask(self, asked: Awaitable[Any]) -> Deferred[Any]:
        async def wait() -> Any:
            return await asked

        return Deferred.fromCoroutine(wait())

    @property
    def ended(self) -> list[ExitCode]:
        """The exit codes with which the node was to end."""
        return [code for code, _ in self.host.ends]

    def open(self) -> OpenNodeDouble:
        """Open the store, until the test is over."""
        self.member.open()
        self.addCleanup(self.host.abandon)
        node = self.core.open_node
        assert isinstance(node, OpenNodeDouble)
        return node


class FullDiskTests(MemberCase):
    def setUp(self) -> None:
        super().setUp()
        self.known = Known(7, "a", 123)
        self.use(self.member.write_known(self.known))

    def refuse(self, code: int) -> None:
        """The disk refuses each file."""

        def write(*_: Any) -> None:
            raise OSError(code, "refused")

        self.patch(member, "write_known", write)

    def test_what_is_not_written_is_told_at_once_and_the_node_runs_on(self) -> None:
        for code in (errno.ENOSPC, errno.EDQUOT):
            self.refuse(code)
            self.assertIn("refused", self.fails(self.member.write_known(replace(self.known, epoch=8)), DiskFull))
            self.assertIn("refused", self.fails(self.member.check_room(), DiskFull), "as with a quota")
        self.assertEqual((self.ended, read_known(self.store)), ([], self.known))

    def test_a_disk_that_fails_ends_the_node(self) -> None:
        self.refuse(errno.EIO)
        self.fails(self.member.write_known(replace(self.known, epoch=8)), NodeFailed)
        self.assertEqual(self.ended, [ExitCode.IO_ERROR])

    def test_there_is_room_only_for_a_whole_promotion(self) -> None:
        for free in (0, MIN_FREE_BYTES - 1):
            with mock.patch.object(shutil, "disk_usage", return_value=Usage(1 << 40, 1 << 40, free)):
                self.assertIn(f"{free} bytes free", self.fails(self.member.check_room(), DiskFull))
        with mock.patch.object(shutil, "disk_usage", return_value=Usage(1 << 40, 1 << 40, MIN_FREE_BYTES)):
            self.use(self.member.check_room())
        self.assertEqual((self.ended, read_known(self.store)), ([], self.known))


class RoleOnFullDiskTests(MemberCase):
    """A node that cannot close its store ends. So it does not begin a change of its role on a full disk."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.core.plan = replace(self.core.plan, master=cast(Any, "the old leader"))
        self.patch(DISK, "free_bytes", lambda _: 1000)

    def test_it_does_not_follow_another_leader(self) -> None:
        self.assertIn("1000 bytes free", self.fails(self.member.follow(None, 1), DiskFull))
        self.assertEqual((self.ended, self.core.phase), ([], Phase.RUNNING))

    def test_it_does_not_rewind_its_log(self) -> None:
        with capturedLogs() as events:
            self.assertFalse(self.core.start_rewind())
        self.assertEqual([event["event"] for event in events], [Event.NOT_REWOUND])
        self.assertEqual((self.ended, self.core.phase), ([], Phase.RUNNING))


class FollowingTests(MemberCase):
    def test_it_follows_when_a_rewind_is_over_that_began_while_the_disk_was_looked_at(self) -> None:
        self.open()
        self.core.plan = replace(self.core.plan, master=cast(Any, "the old leader"))
        looking: Deferred[None] = Deferred()
        self.patch(self.host, "run_in_thread", lambda _: looking)
        following = self.ask(self.member.follow(None, 1))
        self.assertTrue(self.core.start_rewind())
        self.patch(self.host, "run_in_thread", execute)
        looking.callback(None)
        self.assertNoResult(following)
        self.host.clock.advance(0)
        self.assertIsNone(self.successResultOf(following))
        self.assertEqual((self.core.phase, self.core.plan.master, self.ended), (Phase.RUNNING, None, []))
        self.assertEqual(self.host.told.count("run"), 3, "at the start, after the rewind, and as nobody's slave")


class OrderTests(SynchronousTestCase):
    def test_a_member_is_not_promoted_by_an_order_at_its_socket(self) -> None:
        settings = make_settings({"storePathRootDir": str(new_folder(self))})
        failover = FailoverPlan(cast(Any, None), "a")
        node = Node(NodePlan(settings), MemoryReactorClock(), lambda *_: None, failover)
        refused = self.failureResultOf(Deferred.fromCoroutine(node._promote({})), OrderRefused)
        self.assertIn("rmqha cluster switchover", str(refused.value))


HELD = PopInFlight(Counter({("GA", "TA"): 20}))
"""POP consumers have these messages."""


def promotion(**parts: Any) -> Any:
    """What is told of a promotion, without what it has left open."""
    return SimpleNamespace(**{"popped": PopInFlight(Counter()), "epoch": 3, "end": 100, "restarts": (), **parts})


class StopDuringPromotionTests(MemberCase):
    """A node that is told to stop while it becomes a master has no trouble: it ends with status 0."""

    def setUp(self) -> None:
        super().setUp()
        self.node = self.open()
        self.promoted: Deferred[Any] = Deferred()
        self.patch(self.core, "_promote_store", self.promote_store)
        self.leadership = Leadership(3, lambda: 0.0, 10.0)

    def promote_store(self, *_: Any) -> Deferred[Any]:
        self.core.open_node = None
        return self.promoted

    def stop(self) -> Deferred[None]:
        stopping = Deferred.fromCoroutine(self.core.stop())
        self.assertNoResult(stopping)
        return stopping

    def test_before_the_store_is_promoted(self) -> None:
        leading = self.ask(self.member.lead(self.leadership, "failover"))
        stopping = self.stop()
        self.promoted.errback(OpeningStopped("the node stops"))
        self.assertIn("still a slave", str(self.failureResultOf(leading, NodeFailed).value))
        self.successResultOf(stopping)
        self.assertEqual(self.ended, [])

    def test_after_the_store_was_promoted(self) -> None:
        leading = self.ask(self.member.lead(self.leadership, "failover"))
        stopping = self.stop()
        self.promoted.callback((self.node.store, promotion(popped=HELD)))
        self.assertEqual((self.successResultOf(leading), self.ended), (100, []))
        self.successResultOf(stopping)
        self.assertFalse((self.store / "abort").exists(), "the store was closed cleanly")

    def test_who_waits_no_longer_does_not_end_the_change(self) -> None:
        leading = self.ask(self.member.lead(self.leadership, "failover"))
        leading.cancel()
        self.failureResultOf(leading, CancelledError)
        self.assertTrue(self.core.is_working)
        self.promoted.callback((self.node.store, promotion()))
        self.assertFalse(self.core.is_working)
        self.assertEqual((self.core.log_epoch, self.core.phase, self.ended), (3, Phase.RUNNING, []))

    def test_an_order_to_promote_is_refused(self) -> None:
        plan = self.core.plan.as_master(BrokerRole.SYNC_MASTER)
        order = PromotionOrder(self.core, ProcessDouble(MemoryReactorClock()))
        promoting = self.core.change(order._become_master(plan, []))
        self.promoted.errback(OpeningStopped("the node stops"))
        self.assertIn("still a slave", str(self.failureResultOf(promoting, OrderRefused).value))
        self.assertEqual(self.ended, [])

    def test_a_promotion_that_fails_ends_the_node(self) -> None:
        leading = self.ask(self.member.lead(self.leadership, "failover"))
        self.promoted.errback(OSError("broken"))
        self.failureResultOf(leading, NodeFailed)
        self.assertEqual(self.host.ends, [(ExitCode.IO_ERROR, "the promotion failed: broken")])

    def test_one_whose_lease_ended_meanwhile_is_fenced(self) -> None:
        leading = self.ask(self.member.lead(self.leadership, "failover"))
        self.leadership.end()
        self.promoted.callback((self.node.store, promotion()))
        self.successResultOf(leading)
        assert isinstance(self.core.open_node, OpenNodeDouble)
        self.assertEqual(self.core.open_node.told, [f"fence {FIRST_SLAVE_ID}"])


class NewLeaderTests(SynchronousTestCase):
    def test_a_new_leader_says_what_its_promotion_has_left_open(self) -> None:
        """Which messages POP consumers hold, and which topics a Java master may have deleted."""
        self.addCleanup(gc.unfreeze)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        settings = make_settings({"storePathRootDir": str(new_folder(self)), "mappedFileSizeCommitLog": "4096"})
        node = Node(NodePlan(settings), MemoryReactorClock(), lambda *_: None)
        for name in ("run_in_thread", "run_in_table_thread"):
            self.patch(node, name, execute)
        with capturedLogs() as events:
            node.promoted(promotion(popped=HELD, restarts=("TB", "TC")))
        node.core.open()
        self.addCleanup(node.open_node.store.abandon)
        told = [event for event in events if event.get("event") is Event.POPPED_ABANDONED]
        self.assertEqual([event["count"] for event in told], [20])
        self.assertIn("20 of TA by GA", node.open_node.promotion_warning)
        told = [event for event in events if event.get("event") is Event.DELETIONS_NEVER_TOLD]
        self.assertEqual([event["topics"] for event in told], [["TB", "TC"]])
