"""What a member of a failover cluster does if its disk is full, and with orders that are not of the coordinator."""

import errno
import shutil
from collections import Counter, namedtuple
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.failover.knownfile import read_known
from rmqha.failover.member import DiskFull, Known, NodeFailed
from rmqha.ha.master.leadership import Leadership
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.node import clusternode, node
from rmqha.node.clusternode import ClusterNode
from rmqha.node.node import Phase
from rmqha.node.plan import NodePlan
from rmqha.ops.control import OrderRefused
from rmqha.settings.settings import BrokerRole, make_settings
from rmqha.store.log.mappedfile import DISK
from rmqha.store.messagestore import MessageStore
from rmqha.store.offline.promote import MIN_FREE_BYTES
from rmqha.store.opening import OpeningStopped
from rmqha.store.popinflight import PopInFlight
from tests.fixtures import new_folder

Usage = namedtuple("Usage", "total used free")


class DiskNode(ClusterNode):
    """Uses its disk, and does nothing else."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.running = True
        self.ended: list[ExitCode] = []

    @property
    def _root(self) -> Path:
        return self.store

    def _run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        return execute(function)

    def stop_with(self, code: ExitCode, reason: str) -> None:
        self.ended.append(code)


class FullDiskTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self)
        (self.store / "rmqha").mkdir()
        self.node = DiskNode(self.store)
        self.known = Known(7, "a", 123)
        self.use(self.node.write_known(self.known))

    def use(self, asked: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await asked

        return self.successResultOf(Deferred.fromCoroutine(wait()))

    def fails(self, asked: Awaitable[Any], kind: type[Exception]) -> str:
        async def wait() -> Any:
            return await asked

        return str(self.failureResultOf(Deferred.fromCoroutine(wait()), kind).value)

    def refuse(self, code: int) -> None:
        """The disk refuses each file."""

        def write(*_: Any) -> None:
            raise OSError(code, "refused")

        self.patch(clusternode, "write_known", write)

    def test_what_is_not_written_is_told_at_once_and_the_node_runs_on(self) -> None:
        for code in (errno.ENOSPC, errno.EDQUOT):
            self.refuse(code)
            self.assertIn("refused", self.fails(self.node.write_known(replace(self.known, epoch=8)), DiskFull))
            self.assertIn("refused", self.fails(self.node.check_room(), DiskFull), "as with a quota")
        self.assertEqual((self.node.ended, read_known(self.store)), ([], self.known))

    def test_a_disk_that_fails_ends_the_node(self) -> None:
        self.refuse(errno.EIO)
        self.fails(self.node.write_known(replace(self.known, epoch=8)), NodeFailed)
        self.assertEqual(self.node.ended, [ExitCode.IO_ERROR])

    def test_there_is_room_only_for_a_whole_promotion(self) -> None:
        for free in (0, MIN_FREE_BYTES - 1):
            with mock.patch.object(shutil, "disk_usage", return_value=Usage(1 << 40, 1 << 40, free)):
                self.assertIn(f"{free} bytes free", self.fails(self.node.check_room(), DiskFull))
        with mock.patch.object(shutil, "disk_usage", return_value=Usage(1 << 40, 1 << 40, MIN_FREE_BYTES)):
            self.use(self.node.check_room())
        self.assertEqual((self.node.ended, read_known(self.store)), ([], self.known))


class RoleOnFullDiskTests(SynchronousTestCase):
    """A node that cannot close its store ends. So it does not begin a change of its role on a full disk."""

    def setUp(self) -> None:
        self.node = DiskNode(new_folder(self))
        settings = make_settings({"storePathRootDir": str(self.node.store), "brokerRole": "SLAVE"})
        opened = MessageStore(settings)
        self.addCleanup(opened.close_now)
        follower = SimpleNamespace(running=True)
        self.node._open_node = cast(Any, SimpleNamespace(store=opened, slave=follower, broker=None))
        self.node._plan = cast(Any, SimpleNamespace(settings=settings, master="the old leader"))
        self.node._phase = Phase.RUNNING
        self.node._working = None
        self.patch(DISK, "free_bytes", lambda _: 1000)

    def test_it_does_not_follow_another_leader(self) -> None:
        following = Deferred.fromCoroutine(self.node.follow(None, 1))
        self.assertIn("1000 bytes free", str(self.failureResultOf(following, DiskFull).value))
        self.assertEqual((self.node.ended, self.node._phase), ([], Phase.RUNNING))

    def test_it_does_not_rewind_its_log(self) -> None:
        self.node._reactor = cast(Any, Clock())
        self.node._next_rewind = 0.0
        with capturedLogs() as events:
            self.assertFalse(self.node._start_rewind())
        self.assertEqual([event["event"] for event in events], [Event.NOT_REWOUND])
        self.assertEqual((self.node.ended, self.node._phase), ([], Phase.RUNNING))


class OrderTests(SynchronousTestCase):
    def test_a_member_is_not_promoted_by_an_order_at_its_socket(self) -> None:
        node = DiskNode(new_folder(self))
        refused = self.failureResultOf(Deferred.fromCoroutine(node._promote({})), OrderRefused)
        self.assertIn("rmqha cluster switchover", str(refused.value))


HELD = PopInFlight(Counter({("GA", "TA"): 20}))
"""POP consumers have these messages."""


class PromotedNode(DiskNode):
    """Its store was a slave's, and ``reopened`` tells what its promotion ends with."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.reopened: Deferred[Any] = Deferred()
        settings = make_settings({"storePathRootDir": str(store), "brokerRole": "SLAVE"})
        self._plan = NodePlan(settings)
        services = SimpleNamespace(disownServiceParent=lambda: None)
        self._open_node = cast(Any, SimpleNamespace(services=services, store=None, state=lambda: None))
        self._machine = cast(Any, None)
        self._phase, self._working, self._is_leaving = Phase.RUNNING, None, False

    def facts(self) -> Any:
        """Nobody asks for them."""

    def _cluster_facts(self, changes: int) -> dict[str, Any]:
        return {}

    async def _run(self, store: Any) -> None:
        if self._is_leaving:
            self._open_node = None


def promotion(**parts: Any) -> Any:
    """What is told of a promotion, without what it has left open."""
    return SimpleNamespace(**{"popped": PopInFlight(Counter()), "epoch": 3, "end": 100, "restarts": (), **parts})


class StopDuringPromotionTests(SynchronousTestCase):
    """A node that is told to stop while it becomes a master has no trouble: it ends with status 0."""

    def setUp(self) -> None:
        self.node = PromotedNode(new_folder(self))
        self.patch(node, "reopen_as_master", lambda *_: self.node.reopened)
        self.leadership = Leadership(3, lambda: 0.0, 10.0)

    def test_before_the_store_is_promoted(self) -> None:
        leading = Deferred.fromCoroutine(self.node.lead(self.leadership, "failover"))
        self.node._is_leaving = True
        self.node.reopened.errback(OpeningStopped("the node stops"))
        self.assertIn("still a slave", str(self.failureResultOf(leading, NodeFailed).value))
        self.assertEqual(self.node.ended, [])

    def test_after_the_store_was_promoted(self) -> None:
        leading = Deferred.fromCoroutine(self.node.lead(self.leadership, "failover"))
        self.node._is_leaving = True
        self.node.reopened.callback((None, promotion(popped=HELD)))
        self.assertEqual((self.successResultOf(leading), self.node.ended), (100, []))

    def test_who_waits_no_longer_does_not_end_the_change(self) -> None:
        leading = Deferred.fromCoroutine(self.node.lead(self.leadership, "failover"))
        leading.cancel()
        self.failureResultOf(leading, CancelledError)
        working = self.node._working
        assert working is not None
        self.assertNoResult(working)
        self.node.reopened.callback((None, promotion()))
        self.successResultOf(working)
        self.assertEqual((self.node._log_epoch, self.node.ended), (3, []))

    def test_an_order_to_promote_is_refused(self) -> None:
        plan = self.node._plan.as_master(BrokerRole.SYNC_MASTER)
        promoting = Deferred.fromCoroutine(self.node._become_master(plan, cast(Any, None)))
        self.node.reopened.errback(OpeningStopped("the node stops"))
        self.assertIn("still a slave", str(self.failureResultOf(promoting, OrderRefused).value))
        self.assertEqual(self.node.ended, [])


class NewLeaderTests(SynchronousTestCase):
    def test_a_new_leader_says_what_its_promotion_has_left_open(self) -> None:
        """Which messages POP consumers hold, and which topics a Java master may have deleted."""
        promoted = PromotedNode(new_folder(self))
        promoted.reopened.callback((None, promotion(popped=HELD, restarts=("TB", "TC"))))
        self.patch(node, "reopen_as_master", lambda *_: promoted.reopened)
        with capturedLogs() as events:
            self.successResultOf(Deferred.fromCoroutine(promoted.lead(Leadership(3, lambda: 0.0, 10.0), "failover")))
        told = [event for event in events if event.get("event") is Event.POPPED_ABANDONED]
        self.assertEqual([event["count"] for event in told], [20])
        self.assertIn("20 of TA by GA", promoted.open_node.promotion_warning)
        told = [event for event in events if event.get("event") is Event.DELETIONS_NEVER_TOLD]
        self.assertEqual([event["topics"] for event in told], [["TB", "TC"]])
