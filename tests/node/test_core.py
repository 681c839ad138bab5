"""What opens a node's store and changes its role: its phases, and that a stop waits for what runs."""

import gc
from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rmqha.failover.member import INode
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.core import Phase, RoleChanger
from rmqha.node.interfaces import IHost, IMachine, IOpenNode, IProcess
from rmqha.node.masterendpoints import MasterEndpoints
from rmqha.node.member import IMemberHost, MemberNode
from rmqha.node.memberprocess import MemberProcess
from rmqha.node.node import Node
from rmqha.node.opennode import OpenNode
from rmqha.node.plan import FailoverPlan, IClusterMember, NodePlan
from rmqha.settings.settings import BrokerRole, make_settings
from rmqha.store.epochs import note_promotion, promoted_role
from rmqha.store.errors import StoreError
from rmqha.store.examining import ABORT_FILE
from rmqha.store.messagestore import MessageStore
from rmqha.store.offline.fork import Fork
from rmqha.testing.sim.cluster import Cluster
from rmqha.testing.sim.clusternodes import SimMember
from rmqha.testing.sim.simulation import Config, SlaveConfig
from tests.fixtures import new_folder
from tests.node.doubles import HostDouble, MemberHostDouble, OpenNodeDouble, ProcessDouble, Promising


class CoreCase(SynchronousTestCase):
    """A slave that has no master, and whose store is not open yet."""

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.host = HostDouble()
        self.addCleanup(self.host.abandon)
        settings = make_settings(
            {"storePathRootDir": str(self.root), "brokerRole": "SLAVE", "mappedFileSizeCommitLog": "4096"}
        )
        self.plan = NodePlan(settings)
        self.core = self.host.core = RoleChanger(self.plan, self.host)

    def stop(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.core.stop())


class OpeningTests(CoreCase):
    def test_from_the_start_to_the_stop(self) -> None:
        self.assertIs(self.core.phase, Phase.NEW)
        self.core.open()
        self.assertIs(self.core.phase, Phase.RUNNING)
        self.successResultOf(self.stop())
        self.assertIs(self.core.phase, Phase.STOPPING)
        self.assertEqual(self.host.told, ["prepare", "run", "started", "stop waiting", "stop services", "flushed"])
        self.assertEqual(self.host.ends, [])
        self.assertFalse((self.root / ABORT_FILE).exists())

    def test_a_stop_before_the_store_is_open(self) -> None:
        self.host.preparing = Deferred()
        self.core.open()
        stopping = self.stop()
        self.assertNoResult(stopping)
        self.host.preparing.callback(None)
        self.successResultOf(stopping)
        self.assertEqual(self.host.told, ["prepare", "stop waiting", "stop services"], "nothing was opened")
        self.assertEqual((self.host.ends, (self.root / ABORT_FILE).exists()), ([], False))

    def test_a_stop_while_the_store_is_opened_closes_it(self) -> None:
        opening: list[tuple[Callable[[], Any], Deferred[Any]]] = []

        def run_in_thread(function: Callable[[], Any]) -> Deferred[Any]:
            done: Deferred[Any] = Deferred()
            opening.append((function, done))
            return done

        self.patch(self.host, "run_in_thread", run_in_thread)
        self.core.open()
        ((function, done),) = opening
        opened = function()
        stopping = self.stop()
        self.assertNoResult(stopping)
        done.callback(opened)
        self.successResultOf(stopping)
        self.assertNotIn("run", self.host.told)
        self.assertEqual((self.host.ends, (self.root / ABORT_FILE).exists()), ([], False))

    def test_an_error_ends_the_node_with_its_exit_code(self) -> None:
        for error, code in ((OSError(5, "broken"), ExitCode.IO_ERROR), (StoreError("damaged"), ExitCode.CORRUPT)):
            host = HostDouble()
            host.preparing = Deferred()
            host.core = RoleChanger(self.plan, host)
            host.core.open()
            host.preparing.errback(error)
            self.assertEqual([ended for ended, _ in host.ends], [code])

    def test_a_promoted_store_is_a_masters(self) -> None:
        (self.root / "rmqha").mkdir()
        note_promotion(self.root, "SYNC_MASTER", 3, "2026-11-26T10:00:00.000Z")
        self.core.open()
        self.assertEqual(self.core.plan.settings.broker_role.value, "SYNC_MASTER")
        self.assertTrue(self.core.plan.is_promoted)


class ChangeTests(CoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.core.open()
        self.assertIs(self.core.phase, Phase.RUNNING)

    def test_a_stop_waits_for_a_rewind(self) -> None:
        finding: Deferred[Fork] = Deferred()
        self.patch(self.host, "find_fork", lambda: finding)
        self.assertTrue(self.core.start_rewind())
        self.host.clock.advance(0)
        stopping = self.stop()
        self.assertNoResult(stopping)
        finding.errback(OSError("the node stops"))
        self.successResultOf(stopping)
        self.assertEqual((self.host.told.count("run"), self.host.ends), (1, []), "it is not opened again")
        self.assertFalse((self.root / ABORT_FILE).exists())

    def test_after_a_rewind_that_failed_there_is_a_pause(self) -> None:
        self.assertTrue(self.core.start_rewind())
        self.assertFalse(self.core.start_rewind(), "one at a time")
        self.host.clock.advance(0)
        self.assertIs(self.core.phase, Phase.RUNNING)
        self.assertFalse(self.core.start_rewind())
        self.host.clock.advance(60)
        self.assertTrue(self.core.start_rewind())
        self.host.clock.advance(0)
        self.assertEqual(self.host.ends, [])

    def test_a_slave_becomes_the_master(self) -> None:
        plan = self.plan.as_master(BrokerRole.ASYNC_MASTER)
        promotion = self.successResultOf(self.core.change(self.core.become_master(plan)))
        self.assertEqual((promotion.end, self.core.log_epoch), (0, promotion.epoch))
        self.assertEqual(promoted_role(self.root), "ASYNC_MASTER")
        self.assertEqual((self.core.phase, self.core.plan), (Phase.RUNNING, plan))
        told = self.host.told
        self.assertLess(told.index("promoted"), len(told) - told[::-1].index("run") - 1, "before its services run")


class InterfaceTests(SynchronousTestCase):
    def test_a_process_is_a_host(self) -> None:
        node = Node(NodePlan(make_settings({})), MemoryReactorClock(), lambda *_: None)
        for interface in (IMachine, IHost, IProcess):
            verifyObject(interface, node)

    def test_doubles(self) -> None:
        clock, store = MemoryReactorClock(), cast(MessageStore, None)
        verifyObject(IHost, HostDouble())
        verifyObject(IProcess, ProcessDouble(clock))
        verifyObject(IOpenNode, OpenNodeDouble(store))
        verifyObject(IMemberHost, MemberHostDouble())
        verifyObject(IClusterMember, Promising())

    def test_a_process_has_what_a_member_needs(self) -> None:
        plan = FailoverPlan(cast(Any, None), "a")
        verifyObject(IMemberHost, MemberProcess(NodePlan(make_settings({})), plan, HostDouble()))

    def test_a_member_does_what_its_agent_and_its_node_ask(self) -> None:
        member = MemberNode(NodePlan(make_settings({})), HostDouble(), MemberHostDouble())
        verifyObject(INode, member)
        verifyObject(IClusterMember, member)

    def test_an_open_node(self) -> None:
        self.addCleanup(gc.unfreeze)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        clock = MemoryReactorClock()
        plan = NodePlan(make_settings({"storePathRootDir": str(new_folder(self)), "mappedFileSizeCommitLog": "4096"}))
        store = MessageStore(plan.settings)
        self.addCleanup(store.abandon)
        verifyObject(IOpenNode, OpenNode(plan, store, MasterEndpoints(plan, clock), ProcessDouble(clock)))

    def test_a_simulated_machine_is_a_host(self) -> None:
        cluster = Cluster(Config(slaves=[SlaveConfig()]), 0, {})
        with cluster.running():
            cluster.start()
            node = cluster.members[0]
            assert node.process is not None
            verifyObject(IHost, node.host)
            verifyObject(IOpenNode, node.opened)
            verifyObject(IMemberHost, SimMember(node, node.process))
