"""What a node tells of itself in state.json, without a process."""

import gc
from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import execute, fail
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import make_endpoint
from rmqha.node.masterendpoints import MasterEndpoints
from rmqha.node.node import Node
from rmqha.node.opennode import OpenNode
from rmqha.node.plan import NodePlan
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from tests.fixtures import new_folder
from tests.ha.doubles import make_image
from tests.node.doubles import ProcessDouble

IMAGE = make_image([300] * 6)


def open_node(case: SynchronousTestCase, plan: NodePlan, store: MessageStore, clock: MemoryReactorClock) -> OpenNode:
    """A node over an open store. Its services are not started."""
    case.addCleanup(gc.unfreeze)
    case.addCleanup(gc.set_threshold, *gc.get_threshold())
    return OpenNode(plan, store, MasterEndpoints(plan, clock), ProcessDouble(clock))


class ConfirmedTests(SynchronousTestCase):
    """Readers outside go no further than ``confirmed``: no power loss may take it back."""

    def test_a_slaves_confirmed_is_not_beyond_what_is_flushed_and_proved(self) -> None:
        settings = make_settings(
            {"storePathRootDir": str(new_folder(self)), "brokerRole": "SLAVE", "mappedFileSizeCommitLog": "4096"}
        )
        store = MessageStore(settings)
        self.addCleanup(lambda: self.successResultOf(store.close()))
        node = open_node(self, NodePlan(settings), store, MemoryReactorClock())
        log = store.commit_log
        flushed = IMAGE.messages[2]
        log.append_data(0, IMAGE.bytes_at(0, flushed))
        log.verify()
        log.sync()
        log.append_data(flushed, IMAGE.bytes_at(flushed, IMAGE.messages[4]))
        log.verify()
        self.assertEqual(node.state().offsets.verified, IMAGE.messages[4])
        self.assertEqual((node.state().offsets.flushed, node.state().offsets.confirmed), (flushed, flushed))
        log.append_data(IMAGE.messages[4], IMAGE.bytes_at(IMAGE.messages[4], IMAGE.messages[4] + 50))
        log.sync()
        self.assertEqual(node.state().offsets.flushed, IMAGE.messages[4] + 50)
        self.assertEqual(node.state().offsets.confirmed, IMAGE.messages[4], "half a record is no record")


class StateFileTests(SynchronousTestCase):
    """``rmqha status`` reads a file: it must not be older than what the log has said."""

    def setUp(self) -> None:
        self.root, self.clock = new_folder(self), MemoryReactorClock()
        self.settings = make_settings(
            {
                "storePathRootDir": str(self.root),
                "brokerRole": "SLAVE",
                "mappedFileSizeCommitLog": "4096",
                "haMasterAddress": "127.0.0.1:10912",
            }
        )

    def start(self) -> OpenNode:
        store = MessageStore(self.settings)
        plan = NodePlan(self.settings, master=make_endpoint(self.clock, "127.0.0.1:10912"))
        node = open_node(self, plan, store, self.clock)
        self.addCleanup(lambda: self.successResultOf(store.close()))
        node.services.startService()
        return node

    def test_a_slaves_change_of_state_is_in_the_file_at_once(self) -> None:
        node = self.start()
        self.assertEqual(self.state_in(self.root), "CONNECTING")
        self.clock.advance(0.125)
        assert node.slave is not None
        node.slave.replica.connected()
        self.clock.advance(0)
        self.assertEqual(self.state_in(self.root), "HANDSHAKE")

    def test_a_restarted_slave_still_knows_that_its_log_did_not_fit(self) -> None:
        """Its master may be gone by then. Nobody must promote it unknowingly."""
        known = replace(NodeState.new(), role="SLAVE", state=ReplicaState.DIVERGED.name, verdict="DIVERGED")
        known.write(self.root)
        node = self.start()
        self.assertEqual((node.verdict, node.state().state), ("DIVERGED", "CONNECTING"))
        assert node.slave is not None
        node.slave.replica.connected()
        self.assertEqual(node.state().verdict, "DIVERGED")

    def state_in(self, root: Path) -> str:
        found = NodeState.read(root)
        assert found is not None
        return found.state


class StopTests(SynchronousTestCase):
    """Services that do not stop cleanly do not keep the others from stopping, and are shown."""

    def start(self) -> Node:
        self.clock = MemoryReactorClock()
        self.addCleanup(gc.unfreeze)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        self.root = new_folder(self)
        settings = make_settings({"storePathRootDir": str(self.root), "mappedFileSizeCommitLog": "4096"})
        self.ends: list[tuple[ExitCode, str]] = []
        node = Node(NodePlan(settings), self.clock, lambda code, reason: self.ends.append((code, reason)))
        for name in ("run_in_thread", "run_in_table_thread"):
            self.patch(node, name, execute)
        node.core.open()
        node.open_node.services.startService()
        return node

    def stop(self, node: Node) -> NodeState:
        """Stop the node; what it leaves in state.json."""
        stopped = node.stopService()
        self.clock.advance(0)
        self.successResultOf(stopped)
        state = NodeState.read(self.root)
        assert state is not None
        return state

    def test_a_clean_stop_shows_no_problem(self) -> None:
        state = self.stop(self.start())
        self.assertEqual((state.state, state.warnings, self.ends), ("STOPPED", (), []))
        self.assertFalse((self.root / "abort").exists())

    def test_a_service_that_does_not_stop_is_in_the_state_and_in_the_exit_code(self) -> None:
        for services, name in (("broker", "held pulls"), ("broker", "ports"), ("node", "ha port")):
            with self.subTest(name):
                node = self.start()
                broker = node.open_node.broker
                assert broker is not None
                parent = broker if services == "broker" else node.open_node.services
                self.patch(parent.getServiceNamed(name), "stopService", lambda: fail(OSError(5, "broken")))
                state = self.stop(node)
                problem = f"the service '{name}' did not stop cleanly: [Errno 5] broken"
                self.assertEqual((state.state, state.warnings), ("STOPPED", (problem,)))
                self.assertEqual(self.ends, [(ExitCode.IO_ERROR, problem)])
                self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
                self.assertFalse((self.root / "abort").exists())
