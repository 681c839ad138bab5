"""What a member logs while the coordinator does not answer."""

from collections.abc import Iterator, Sequence
from itertools import count

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from rmqha.coordination.interface import (
    Compare,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    Delete,
    KeyValue,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.failover import agent as shell
from rmqha.failover.agent import FailoverAgent, Times
from rmqha.failover.keys import MEMBERS, InvalidKey, Member, prefix_of
from rmqha.failover.member import DiskFull, Following, Identity, INode, Known, NodeFacts, Promise
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import Action
from rmqha.failover.step.events import AgentEvent
from rmqha.failover.step.step import AgentState
from rmqha.failover.step.telling import MAX_TRIES
from rmqha.failover.view import MAX_KEYS, ClusterView
from rmqha.ha.master.leadership import Leadership
from rmqha.kit.events import Event
from rmqha.testing.coordinator import MemoryCoordinator, MemoryStore

SECONDS = 60


class Failing(MemoryCoordinator):
    """Each look at the keys fails with the next error."""

    def __init__(self, clock: Clock, errors: Iterator[CoordinatorError]) -> None:
        super().__init__(MemoryStore(clock), "a")
        self._errors = errors

    def range(self, prefix: str) -> Deferred[Snapshot]:
        return fail(next(self._errors))


class Silent(MemoryCoordinator):
    """Never answers."""

    def range(self, prefix: str) -> Deferred[Snapshot]:
        self.asked: Deferred[Snapshot] = Deferred()
        return self.asked


class Broken(MemoryCoordinator):
    """Has a bug."""

    def range(self, prefix: str) -> Deferred[Snapshot]:
        return fail(ZeroDivisionError("planned"))


class Lying(MemoryCoordinator):
    """Says that it has written, and writes nothing."""

    asked = 0

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        self.asked += 1
        return succeed(TransactionResult(True, 1))


@implementer(INode)
class Node:
    """Knows nothing yet, and never leads: what raises NotImplementedError is what only a candidate or a leader asks."""

    members = None

    def __init__(self) -> None:
        self.given_up: list[str] = []

    async def read_known(self) -> Known:
        return Known()

    async def write_known(self, known: Known) -> None:
        """Nobody asks for it."""

    async def follow(self, leader: Following | None, broker_id: int) -> None:
        """It follows nobody already."""

    def facts(self) -> NodeFacts:
        return NodeFacts("boot-1", store="store", state="SERVING", ha="", remoting="")

    async def check_room(self) -> None:
        raise NotImplementedError

    async def stop_following(self) -> int:
        raise NotImplementedError

    async def lead(self, leadership: Leadership, cause: str) -> int:
        raise NotImplementedError

    def fence(self) -> None:
        raise NotImplementedError

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)

    async def reinit(self) -> None:
        raise NotImplementedError

    async def ask_promise(self, member: Member, promise: Promise) -> bool | None:
        raise NotImplementedError


class FullNode(Node):
    """Its disk is full."""

    is_full = True
    known = Known()

    async def write_known(self, known: Known) -> None:
        if self.is_full:
            raise DiskFull("No space left on device")
        self.known = known


class LogTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def agent(self, coordinator: MemoryCoordinator, node: Node) -> FailoverAgent:
        times = Times(self.clock, self.clock.seconds)
        return FailoverAgent(Identity("C", "B", "a", b""), coordinator, node, times)

    def test_the_double_is_a_node(self) -> None:
        for node in (Node(), FullNode()):
            self.assertTrue(verifyObject(INode, node))

    def problems(self, errors: Iterator[CoordinatorError]) -> list[str]:
        """What is logged as the coordinator's problem within a minute."""
        agent = self.agent(Failing(self.clock, errors), Node())
        with capturedLogs() as logged:
            agent.startService()
            for _ in range(SECONDS):
                self.clock.advance(1)
        return [each["problem"] for each in logged if each.get("event") == Event.COORDINATOR_PROBLEM]

    def test_silence_is_one_line_whichever_endpoint_is_silent(self) -> None:
        errors = (CoordinatorUnavailable(f"{number % 3} did not answer in time.") for number in count())
        self.assertEqual(self.problems(errors), ["0 did not answer in time."])

    def test_another_problem_is_told(self) -> None:
        def errors() -> Iterator[CoordinatorError]:
            yield CoordinatorUnavailable("a did not answer in time.")
            yield CoordinatorUnavailable("b did not answer in time.")
            yield CoordinatorRefused("no such user")
            while True:
                yield CoordinatorUnavailable("c did not answer in time.")

        self.assertEqual(
            self.problems(errors()), ["a did not answer in time.", "no such user", "c did not answer in time."]
        )

    def test_a_coordinator_that_lies_is_not_asked_for_ever(self) -> None:
        lying = Lying(MemoryStore(self.clock), "a")
        agent = self.agent(lying, Node())
        agent.startService()
        self.clock.pump([0.05] * 20)
        self.assertIn("does not keep", str(agent.problem))
        self.assertLess(lying.asked, 3 * MAX_TRIES)
        stopping = agent.stopService()
        self.clock.pump([0.05] * 20)
        self.successResultOf(stopping)

    def test_a_member_whose_disk_is_full_says_so_once_and_tells_nobody_of_its_log(self) -> None:
        store, node = MemoryStore(self.clock), FullNode()
        agent = self.agent(MemoryCoordinator(store, "a"), node)
        with capturedLogs() as logged:
            agent.startService()
            self.clock.pump([0.1] * 100)
        told = [each["what"] for each in logged if each.get("event") == Event.WAITS_FOR_ROOM]
        self.assertEqual(told, ["what this node knows of its cluster"])
        self.assertIn("waits for room on its disk: No space left", agent.reason)
        self.assertEqual(store.state.range(prefix_of("C", "B")).keys, {})
        node.is_full = False
        self.clock.pump([0.1] * 20)
        self.assertEqual(node.known.boot, "boot-1")
        self.assertIn(prefix_of("C", "B") + MEMBERS + "a", store.state.range(prefix_of("C", "B")).keys)

    def test_a_stop_does_not_wait_for_room(self) -> None:
        agent = self.agent(MemoryCoordinator(MemoryStore(self.clock), "a"), FullNode())
        agent.startService()
        self.clock.advance(0.1)
        stopping = agent.stopService()
        self.clock.advance(0)
        self.successResultOf(stopping)

    def test_a_bug_ends_the_process(self) -> None:
        node = Node()
        agent = self.agent(Broken(MemoryStore(self.clock), "a"), node)
        with capturedLogs() as logged:
            agent.startService()
        self.assertEqual([each["event"] for each in logged if "log_failure" in each], [Event.FAILOVER_BUG])
        self.assertEqual(node.given_up, ["a bug in automatic failover: planned"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.clock.advance(SECONDS)
        self.successResultOf(agent.stopService())
        self.assertIs(agent.state, FailoverState.STOPPED)

    def test_a_step_with_a_bug_ends_the_process(self) -> None:
        def broken(state: AgentState, event: AgentEvent) -> tuple[AgentState, tuple[Action, ...]]:
            raise ZeroDivisionError("planned")

        node = Node()
        agent = self.agent(MemoryCoordinator(MemoryStore(self.clock), "a"), node)
        self.patch(shell, "step", broken)
        agent.startService()
        self.assertEqual(node.given_up, ["a bug in automatic failover: planned"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_node_that_cannot_say_what_is_seen_ends_the_process(self) -> None:
        node = Node()
        agent = self.agent(MemoryCoordinator(MemoryStore(self.clock), "a"), node)
        agent.startService()
        self.assertEqual(node.given_up, [])
        self.patch(node, "facts", lambda: 1 / 0)
        self.clock.advance(SECONDS)
        self.assertEqual(set(node.given_up), {"a bug in automatic failover: division by zero"})
        self.assertGreaterEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_who_gives_up_to_wait_for_the_stop_ends_all_calls(self) -> None:
        silent, node = Silent(MemoryStore(self.clock), "a"), Node()
        agent = self.agent(silent, node)
        agent.startService()
        stopping = agent.stopService()
        self.assertNoResult(stopping)
        self.assertIsNot(agent.state, FailoverState.STOPPED)
        stopping.cancel()
        self.failureResultOf(stopping, CancelledError)
        self.assertTrue(silent.asked.called, "it is cancelled")
        self.assertIs(agent.state, FailoverState.STOPPED)
        self.assertEqual((node.given_up, self.clock.getDelayedCalls()), ([], []))

    def test_keys_without_end_are_refused_at_once(self) -> None:
        prefix = prefix_of("C", "B")
        keys = {f"{prefix}{MEMBERS}{n}": KeyValue(f"{prefix}{MEMBERS}{n}", b"{}", 1, 1, 0) for n in range(MAX_KEYS + 1)}
        with self.assertRaisesRegex(InvalidKey, f"{MAX_KEYS + 1} keys below"):
            ClusterView.read(prefix, Snapshot(1, keys))
