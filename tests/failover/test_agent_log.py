"""What a member logs while the coordinator does not answer."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import CoordinatorError, CoordinatorRefused, CoordinatorUnavailable, Snapshot
from rmqha.events import Event
from rmqha.failover.agent import FailoverAgent, Identity, Times
from rmqha.failover.member import Known, NodeFacts
from rmqha.testing.coordinator import MemoryCoordinator, MemoryStore

SECONDS = 60


class Failing(MemoryCoordinator):
    """Each look at the keys fails with the next error."""

    def __init__(self, clock: Clock, errors: Iterator[CoordinatorError]) -> None:
        super().__init__(MemoryStore(clock), "a")
        self._errors = errors

    def range(self, prefix: str) -> Deferred[Snapshot]:
        return fail(next(self._errors))


class Node:
    """Knows nothing yet."""

    async def read_known(self) -> Known:
        return Known()

    async def write_known(self, known: Known) -> None:
        """Nobody asks for it."""

    def facts(self) -> NodeFacts:
        return NodeFacts("store", "boot-1", False, 0, 0, 0, "SERVING", "", "")


class LogTests(SynchronousTestCase):
    def problems(self, errors: Iterator[CoordinatorError]) -> list[str]:
        """What is logged as the coordinator's problem within a minute."""
        clock = Clock()
        node: Any = Node()
        agent = FailoverAgent(Identity("C", "B", "a", b""), Failing(clock, errors), node, Times(clock, clock.seconds))
        with capturedLogs() as logged:
            agent.startService()
            for _ in range(SECONDS):
                clock.advance(1)
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
