"""The states of a node with automatic failover, and the moves between them."""

from enum import Enum


class FailoverState(Enum):
    """What a node does in its cluster."""

    JOINING = "it has not heard from the coordinator yet"
    FOLLOWER = "it follows the leader, or waits for one"
    CANDIDATE = "it has closed its connection to the old leader, and tries for the lead"
    PROMOTING = "it has won the lead, and makes its store a master's"
    LEADER = "it leads"
    FENCED = "it has lost the lead: it takes no messages, and becomes a follower"
    STOPPED = "it has left the cluster"


FAILOVER_MOVES: dict[FailoverState, frozenset[FailoverState]] = {
    FailoverState.JOINING: frozenset({FailoverState.FOLLOWER, FailoverState.STOPPED}),
    FailoverState.FOLLOWER: frozenset({FailoverState.CANDIDATE, FailoverState.STOPPED}),
    FailoverState.CANDIDATE: frozenset({FailoverState.PROMOTING, FailoverState.FOLLOWER, FailoverState.STOPPED}),
    FailoverState.PROMOTING: frozenset({FailoverState.LEADER, FailoverState.FENCED, FailoverState.STOPPED}),
    FailoverState.LEADER: frozenset({FailoverState.FENCED, FailoverState.STOPPED}),
    FailoverState.FENCED: frozenset({FailoverState.FOLLOWER, FailoverState.STOPPED}),
    FailoverState.STOPPED: frozenset(),
}
"""The allowed moves."""
