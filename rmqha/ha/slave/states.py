"""A slave's states, and the one table of the allowed transitions between them."""

from enum import Enum


class ReplicaState(Enum):
    """What a slave is doing, or why it cannot copy the log."""

    REPAIRING = "fetching bad bytes of our log from the master again, before the store can be opened"
    CONNECTING = "looking for the master"
    HANDSHAKE = "connected, agreeing where to go on"
    CATCHING_UP = "copying what the master has"
    IN_SYNC = "holding all the master has"
    GAP = "the master no longer has the bytes that come next"
    AHEAD = "the master's log is shorter than ours"
    DIVERGED = "the master's log differs from ours"
    STALLED = "connected, the master is ahead, nothing comes"
    STOPPED = "stopped"


_S = ReplicaState

COPYING = (_S.CATCHING_UP, _S.IN_SYNC)
"""States in which a slave copies: the end of its log was compared with the master's."""
COPYING_NAMES = frozenset(state.name for state in COPYING)

VERDICTS = frozenset({_S.GAP, _S.AHEAD, _S.DIVERGED})
"""States that outlive a connection. In them, the slave connects only to check whether the verdict still holds."""

TRANSITIONS: dict[ReplicaState, frozenset[ReplicaState]] = {
    _S.REPAIRING: frozenset({_S.CONNECTING, _S.STOPPED}),
    _S.CONNECTING: frozenset({_S.HANDSHAKE, _S.STOPPED}) | VERDICTS,
    _S.HANDSHAKE: frozenset({_S.CATCHING_UP, _S.IN_SYNC, _S.STALLED, _S.CONNECTING, _S.STOPPED}) | VERDICTS,
    _S.CATCHING_UP: frozenset({_S.IN_SYNC, _S.STALLED, _S.CONNECTING, _S.STOPPED}) | VERDICTS,
    _S.IN_SYNC: frozenset({_S.CATCHING_UP, _S.STALLED, _S.CONNECTING, _S.STOPPED}) | VERDICTS,
    _S.STALLED: frozenset({_S.CATCHING_UP, _S.IN_SYNC, _S.CONNECTING, _S.STOPPED}) | VERDICTS,
    **{verdict: frozenset({_S.CATCHING_UP, _S.IN_SYNC, _S.CONNECTING, _S.STOPPED}) | VERDICTS for verdict in VERDICTS},
    _S.STOPPED: frozenset(),
}


def check_transition(old: ReplicaState, new: ReplicaState) -> None:
    """Raises ValueError for a transition that is not in the table."""
    if new not in TRANSITIONS[old]:
        raise ValueError(f"a slave cannot go from {old.name} to {new.name}")
