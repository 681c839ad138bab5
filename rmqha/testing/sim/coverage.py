"""What happened to nodes in which state: events by states of each state machine, and the pairs that never were.

An event is a line of the trace, known by how it begins. The state is that of the node of which the line speaks, when it
is written.
"""

from collections import Counter
from collections.abc import Iterator

from rmqha.failover.states import FailoverState
from rmqha.ha.slave.states import ReplicaState
from rmqha.testing.sim.clusternodes import ClusterNode
from rmqha.testing.sim.nodes import SimNode, SimSlave

Counts = Counter[tuple[str, str, str]]
"""Machine, state and event."""
EVENTS = {
    "starts": "start",
    "is down": "process ends",
    "its power is lost": "power lost",
    "gets a signal to stop": "SIGTERM",
    "is stopped by SIGSTOP": "SIGSTOP",
    "goes on after SIGCONT": "SIGCONT",
    "its connections are reset": "lines cut",
    "gets nothing from": "line blocked",
    "its remoting port": "mute",
    "is connected to": "connected",
    "is refused by": "refused",
    "gets the": "connection ends",
    "is given put": "put",
    "answers put": "put answered",
    "its disk is full": "disk full",
    "its next": "disk error",
    "the message at": "rot",
    "deletes its first segment": "retention",
    "rmqha promote": "promote",
    "rmqha rewind": "rewind",
    "is to be rewound": "to be rewound",
    "is to follow": "is to follow",
    "is to lead": "is to lead",
    "is fenced": "fenced",
    "is answered keep_alive": "lease renewed",
    "is answered transaction": "transaction answered",
}
"""How a line begins, and what it is called here."""
STATES = {
    "slave": [state.name for state in ReplicaState],
    "failover": [state.name for state in FailoverState],
    "node": ["DOWN", "OPENING", "CHANGING", "STOPPING", "SLAVE", "MASTER"],
    "dispatch": ["BEHIND", "DONE"],
}


def states_of(node: SimNode) -> Iterator[tuple[str, str]]:
    """Each machine that the node has now, and its state."""
    if isinstance(node, SimSlave) and node.service is not None:
        yield "slave", node.service.replica.state.name
    if isinstance(node, ClusterNode) and node.agent is not None:
        yield "failover", node.agent.state.name
    yield "node", _phase(node)
    if node.store is not None:
        yield "dispatch", "BEHIND" if node.store.derived.dispatcher.behind_bytes else "DONE"


def _phase(node: SimNode) -> str:
    if node.process is None:
        return "DOWN"
    if node.is_changing:
        return "CHANGING"
    if node.store is None:
        return "OPENING"
    if node.stopping:
        return "STOPPING"
    return "MASTER" if node.is_master else "SLAVE"


def note(counts: Counts, node: SimNode, text: str) -> None:
    """A line of the trace speaks of this node."""
    event = next((event for words, event in EVENTS.items() if text.startswith(words)), None)
    if event is not None:
        counts.update((machine, state, event) for machine, state in states_of(node))


def table(counts: Counts) -> str:
    """For each state of each machine how often which event met it, and which never did.

    Only events that some state of the machine has met are expected.
    """
    lines = []
    for machine, states in STATES.items():
        events = [event for event in EVENTS.values() if any(counts[machine, state, event] for state in states)]
        if not events:
            continue
        pairs = sum(bool(counts[machine, state, event]) for state in states for event in events)
        lines.append(f"{machine}: {pairs} of {len(states) * len(events)} pairs of {len(states)} states and events")
        for state in states:
            met = ", ".join(
                f"{event} {counts[machine, state, event]}" for event in events if counts[machine, state, event]
            )
            never = ", ".join(event for event in events if not counts[machine, state, event])
            lines += [f"  {state}: {met or 'never'}", *([f"    never: {never}"] if met and never else [])]
    return "\n".join(lines)
