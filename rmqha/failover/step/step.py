"""The step: it takes each event in each state. An answer that nobody waits for changes nothing."""

from dataclasses import dataclass, replace
from enum import Enum

from rmqha.failover.keys import MEMBERS, STATUS
from rmqha.failover.member import Identity
from rmqha.failover.states import FailoverState
from rmqha.failover.step.actions import Action, AgentRequest, Call, CancelTimer, CloseCoordinator, Left, Poll, SetTimer
from rmqha.failover.step.events import (
    AgentEvent,
    Answered,
    BugFound,
    KeysChanged,
    PromiseAsked,
    Started,
    StopGivenUp,
    StopRequested,
    Timer,
    TimerFired,
)
from rmqha.failover.step.following import promise
from rmqha.failover.step.knowledge import Knowledge, changed
from rmqha.failover.step.rights import end_right, look_at_right, renew_once, stop_asking, wake
from rmqha.failover.step.turns import begin, leave, stop, turn
from rmqha.failover.step.work import Input, Procedure, Script, Work, play


class AgentPhase(Enum):
    """What a member does between two events."""

    NEW = "it has not started"
    BEGINNING = "it notes that it has started"
    STEPPING = "it takes a step"
    STOPPING = "it leaves the cluster"
    ASLEEP = "it waits for the next step"
    OVER = "it takes no more steps"


@dataclass(frozen=True)
class AgentState:
    """What a member knows, and how far it is with what it does."""

    knows: Knowledge
    phase: AgentPhase = AgentPhase.NEW
    has_begun: bool = False
    """Whether it is noted that this process has started."""
    script: Script | None = None
    """How far it is with what its phase says; None if it waits for no answer."""
    renewal: Script | None = None
    """How far a renewal of the lease is, which goes on at the same time."""
    calls: int = 0
    """The number of the last call."""


def first_state(me: Identity, now: float) -> AgentState:
    """Of a process that takes part in a cluster since this moment."""
    return AgentState(Knowledge(me, now, now))


def step(state: AgentState, event: AgentEvent) -> tuple[AgentState, tuple[Action, ...]]:
    """What a member knows after an event, and what is to be done, in this order."""
    stepper = _Stepper(state, event)
    stepper.take()
    return stepper.state, tuple(stepper.actions)


class _Stepper:
    """One step."""

    def __init__(self, state: AgentState, event: AgentEvent) -> None:
        self.state = state
        self.actions: list[Action] = []
        self._event = event

    def take(self) -> None:
        """Take the event."""
        match self._event:
            case Answered() as answered:
                self._answered(answered)
            case TimerFired(_, timer):
                self._fired(timer)
            case Started() if self.state.phase is AgentPhase.NEW:
                self._next_step()
            case StopRequested():
                self._stop()
            case StopGivenUp():
                self._give_up_stop()
            case BugFound():
                self._end_by_bug()
            case KeysChanged(_, keys):
                self._keys_changed(keys)
            case PromiseAsked(_, asked):
                work = self._work()
                promise(work, asked)
                self._did(work)
        knows = self.state.knows
        if self.state.phase is AgentPhase.ASLEEP and (knows.is_woken or knows.is_stopping):
            self.actions.append(CancelTimer(Timer.SLEEP))
            self._next_step()

    def _work(self) -> Work:
        return Work(self.state.knows, self._event.seen)

    def _did(self, work: Work) -> None:
        """Take over what is known now, and what is to be done."""
        self.state = changed(self.state, knows=work.knows)
        self.actions += work.actions
        if work.knows.lease.is_stopped:
            self.state = changed(self.state, renewal=None)

    # Procedures

    def _next_step(self) -> None:
        """Begin with what comes next."""
        if self.state.knows.is_stopping:
            phase = AgentPhase.STOPPING
        else:
            phase = AgentPhase.STEPPING if self.state.has_begun else AgentPhase.BEGINNING
        self.state = changed(self.state, phase=phase, script=None)
        self._go_on(None, (Input(self.state.knows, self._event),))

    def _go_on(self, before: Script | None, inputs: tuple[Input, ...]) -> None:
        work = Work(inputs[0].knows, inputs[0].event.seen)
        outcome = play(work, self._procedure(work), inputs[1:])
        self._did(work)
        if isinstance(outcome, AgentRequest):
            script = self._call(outcome, before, inputs)
            self.state = changed(self.state, script=script)
        else:
            self.state = changed(self.state, script=None)
            self._ended(outcome)

    def _procedure(self, work: Work) -> Procedure[float | None]:
        if self.state.phase is AgentPhase.STOPPING:
            return stop(work)
        return turn(work) if self.state.phase is AgentPhase.STEPPING else begin(work)

    def _call(self, request: AgentRequest, before: Script | None, inputs: tuple[Input, ...]) -> Script:
        """Ask for the request."""
        if before is not None and isinstance(request, Poll) and request == before.request:
            inputs = before.inputs  # the next look needs nothing of this one
        number = self.state.calls + 1
        self.state = changed(self.state, calls=number)
        self.actions.append(Call(number, request))
        return Script(number, request, inputs)

    def _ended(self, seconds: float | None) -> None:
        """A procedure has ended. The next step comes in so many seconds; None: there is none."""
        phase, knows = self.state.phase, self.state.knows
        if phase is AgentPhase.BEGINNING and seconds == 0.0:
            self.state = changed(self.state, has_begun=True)
        if phase is not AgentPhase.STOPPING and knows.is_stopping:
            self._next_step()
        elif seconds is None:
            self.state = changed(self.state, phase=AgentPhase.OVER)
        elif seconds == 0.0 or knows.is_woken:
            self._next_step()
        else:
            self.state = changed(self.state, phase=AgentPhase.ASLEEP)
            self.actions.append(SetTimer(Timer.SLEEP, seconds))

    def _answered(self, event: Answered) -> None:
        script, renewal, given = self.state.script, self.state.renewal, Input(self.state.knows, event)
        if script is not None and script.takes(event):
            self._go_on(script, (*script.inputs, given))
        elif renewal is not None and renewal.takes(event):
            self._renew((*renewal.inputs, given))

    def _renew(self, inputs: tuple[Input, ...]) -> None:
        work = Work(inputs[0].knows, inputs[0].event.seen)
        request = play(work, renew_once(work), inputs[1:])
        self._did(work)
        renewal = self._call(request, None, inputs) if isinstance(request, AgentRequest) else None
        self.state = changed(self.state, renewal=renewal)

    # Other events

    def _fired(self, timer: Timer) -> None:
        work = self._work()
        if timer is Timer.SLEEP and self.state.phase is AgentPhase.ASLEEP:
            self._next_step()
        elif timer is Timer.LOOK:
            wake(work)
            self._did(work)
        elif timer is Timer.EXPIRY:
            look_at_right(work)
            self._did(work)
        elif timer is Timer.RENEWAL and work.knows.lease.is_timed:
            lease = replace(work.knows.lease, is_timed=False)
            work.knows = changed(work.knows, lease=lease)
            self._did(work)
            if lease.id is not None and self.state.renewal is None:
                self._renew((Input(work.knows, self._event),))

    def _keys_changed(self, keys: tuple[str, ...]) -> None:
        """Take a step, unless the changes are only what the nodes tell of themselves at times."""
        work = self._work()
        told = {work.key(STATUS), work.key(MEMBERS + work.knows.me.name)}
        if any(key not in told for key in keys):
            wake(work)
            self._did(work)

    def _stop(self) -> None:
        knows = self.state.knows
        if knows.is_stopping:
            if knows.state is FailoverState.STOPPED and self.state.phase is AgentPhase.OVER:
                self.actions.append(Left())
            return
        self.state = changed(self.state, knows=changed(knows, is_stopping=True))
        if self.state.phase in (AgentPhase.NEW, AgentPhase.OVER):
            self._next_step()

    def _give_up_stop(self) -> None:
        if self.state.phase is AgentPhase.OVER:
            return
        work = self._work()
        leave(work)
        self._did(work)
        self._call(CloseCoordinator(), None, ())
        self.state = changed(self.state, phase=AgentPhase.OVER, script=None)

    def _end_by_bug(self) -> None:
        """A node without its agent would keep the lead, or never take it: the process is to end."""
        work = self._work()
        end_right(work, "a bug: see the log")
        stop_asking(work)
        self._did(work)
        self.state = changed(self.state, phase=AgentPhase.OVER, script=None)
        if work.knows.is_stopping:
            self.actions.append(Left())
