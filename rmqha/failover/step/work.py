"""One event at work.

A *procedure* is a generator: it yields requests, and goes on with their answers. No generator outlives a step. A
``Script`` says how far a procedure is, as data: each answer, with what was known when it came. The next answer runs the
procedure again from its start with the same answers, which leads to the same place. What it asks for and does on the
way was asked for and done before, and counts no more.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from rmqha.coordination.interface import Compare, CompareTarget, Delete, Put
from rmqha.failover.keys import LEADER
from rmqha.failover.step.actions import Action, AgentRequest, LogLine, Transact
from rmqha.failover.step.events import AgentEvent, Answered, Failed, Seen, TransactionAnswered
from rmqha.failover.step.knowledge import Knowledge
from rmqha.kit.events import Event

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=Answered)
Procedure: TypeAlias = Generator[AgentRequest, Answered, Value]


class Work:
    """What is known while an event is at work, and what is to be done."""

    def __init__(self, knows: Knowledge, seen: Seen) -> None:
        self.knows = knows
        self.seen = seen
        self.actions: list[Action] = []

    @property
    def now(self) -> float:
        """Seconds of a clock that never stops and is never set."""
        return self.seen.now

    def do(self, action: Action) -> None:
        """It is to be done after all that was said before."""
        self.actions.append(action)

    def log(self, event: Event, text: str, **fields: Any) -> None:
        """A line of the log."""
        self.do(LogLine(event, text, fields))

    def key(self, name: str) -> str:
        """A key of the cluster."""
        return self.knows.me.prefix + name

    def still_ours(self) -> Compare:
        """That the leader's key is the one that we made."""
        return Compare(self.key(LEADER), CompareTarget.CREATE, self.knows.created)


@dataclass(frozen=True, slots=True)
class Input:
    """What happened, and what was known then."""

    knows: Knowledge
    event: AgentEvent


@dataclass(frozen=True, slots=True)
class Script:
    """A procedure that waits for the answer of the call with this number. Its first input has begun it."""

    number: int
    request: AgentRequest
    inputs: tuple[Input, ...]

    def takes(self, event: Answered) -> bool:
        """Whether this is an answer that its request can have."""
        if event.number != self.number:
            return False
        if isinstance(event, Failed):
            return event.fault in self.request.faults
        return isinstance(event, self.request.answer)


def play(work: Work, procedure: Procedure[Value], inputs: Iterable[Input]) -> AgentRequest | Value:
    """Run a procedure that has not begun with these answers. Returns what it asks for next, or its result.

    ``work`` then has what is known, and is to be done, since the last answer.
    """
    try:
        request = next(procedure)
        for each in inputs:
            work.knows, work.seen, work.actions = each.knows, each.event.seen, []
            if isinstance(each.event, Failed):
                request = procedure.throw(each.event.fault.value(each.event.text))
            else:
                assert isinstance(each.event, Answered), "only answers let a procedure go on"
                request = procedure.send(each.event)
    except StopIteration as end:
        result: Value = end.value
        return result
    procedure.close()
    return request


def ask(request: AgentRequest, kind: type[Kind]) -> Procedure[Kind]:
    """The answer to a request. Raises what its faults stand for."""
    answer = yield request
    assert isinstance(answer, kind), "Script.takes has looked"
    return answer


def transact(purpose: str, compares: Iterable[Compare], writes: Iterable[Put | Delete]) -> Procedure[bool]:
    """Whether the comparisons were true, so that the writes were done. Raises CoordinatorError."""
    answer = yield from ask(Transact(purpose, tuple(compares), tuple(writes)), TransactionAnswered)
    return answer.succeeded
