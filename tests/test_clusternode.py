"""A member of a failover cluster whose disk is full waits for room, and stops at once when it is told to."""

import errno
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.clusternode import ROOM_LOOK_SECONDS, ClusterNode
from rmqha.events import Event
from rmqha.exitcodes import ExitCode
from rmqha.failover.member import NodeFailed
from rmqha.settings import BrokerRole
from rmqha.store.offline.promote import Reason
from rmqha.store.popinflight import PopInFlight


class WaitingNode(ClusterNode):
    """Uses its disk, and does nothing else."""

    def __init__(self, clock: Clock) -> None:
        self._reactor = clock
        self._is_leaving = False
        self.running = True
        self.ended: list[ExitCode] = []

    def _run_in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        return execute(function)

    def stop_with(self, code: ExitCode, reason: str) -> None:
        self.ended.append(code)

    def use_disk(self, function: Callable[[], Any]) -> Deferred[Any]:
        return Deferred.fromCoroutine(self._on_disk(function))

    def told_to_stop(self) -> None:
        self._is_leaving = True


class FullDiskTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.node = WaitingNode(self.clock)
        self.is_full = True
        self.tries = 0

    def write(self) -> str:
        self.tries += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "written"

    def test_it_tries_once_a_second_until_there_is_room(self) -> None:
        with capturedLogs() as events:
            written = self.node.use_disk(self.write)
            self.clock.pump([ROOM_LOOK_SECONDS / 4] * 40)
        told = [event["what"] for event in events if event.get("event") is Event.WAITS_FOR_ROOM]
        self.assertEqual((self.tries, told), (11, ["what this node knows of its cluster"]))
        self.assertNoResult(written)
        self.is_full = False
        self.clock.advance(ROOM_LOOK_SECONDS)
        self.assertEqual(self.successResultOf(written), "written")
        self.assertEqual(self.node.ended, [])

    def test_a_new_leader_says_what_its_promotion_has_left_open(self) -> None:
        """Which messages POP consumers hold, and which topics a Java master may have deleted."""
        popped = PopInFlight(Counter({("GA", "TA"): 20}))
        promotion = SimpleNamespace(popped=popped, epoch=3, end=100, restarts=("TB", "TC"))
        plan = SimpleNamespace(settings=SimpleNamespace(broker_role=BrokerRole.SYNC_MASTER))
        node = SimpleNamespace(services=SimpleNamespace(disownServiceParent=lambda: None), store=None)
        self.node._open_node = cast(Any, node)

        async def reopened(*_: object) -> tuple[None, Any]:
            return None, promotion

        async def run(_: object) -> None:
            pass

        self.node._machine = cast(Any, None)
        with (
            patch("rmqha.node.reopen_as_master", reopened),
            patch.object(self.node, "_run", run),
            capturedLogs() as events,
        ):
            leading = Deferred.fromCoroutine(
                self.node._reopen_as_master(cast(Any, plan), cast(Any, None), Reason("failover", 3))
            )
            self.successResultOf(leading)
        told = [event for event in events if event.get("event") is Event.POPPED_ABANDONED]
        self.assertEqual([event["count"] for event in told], [20])
        self.assertIn("20 of TA by GA", self.node.open_node.promotion_warning)
        told = [event for event in events if event.get("event") is Event.DELETIONS_NEVER_TOLD]
        self.assertEqual([event["topics"] for event in told], [["TB", "TC"]])

    def test_a_stop_does_not_wait_for_room(self) -> None:
        """The agent stops when this ends: a leader cannot give the lead back before."""
        written = self.node.use_disk(self.write)
        self.node.told_to_stop()
        self.clock.advance(ROOM_LOOK_SECONDS)
        self.failureResultOf(written, NodeFailed)
        self.assertEqual(self.node.ended, [ExitCode.IO_ERROR])
        self.assertEqual(self.clock.getDelayedCalls(), [])
