"""Draws docs/states.md from the enums of states and their moves: ``make pages``."""

from enum import Enum
from pathlib import Path

from rmqha.failover.states import FAILOVER_MOVES, FailoverState
from rmqha.ha.slave.states import TRANSITIONS, VERDICTS, ReplicaState

PAGE = Path(__file__).parents[1] / "states.md"
HEAD = """\
# The states of a slave

`docs/make/states.py` makes this page from `TRANSITIONS` in `rmqha/ha/slave/states.py` and `FAILOVER_MOVES` in
`rmqha/failover/states.py`. A test keeps them equal.

"""
OF_CLUSTERS = """
# The states of a member of a failover cluster

"""


def page() -> str:
    """The whole page, in Markdown."""
    failover_moves = [(old, new) for old in FailoverState for new in FailoverState if new in FAILOVER_MOVES[old]]
    return (
        HEAD
        + table()
        + "\n"
        + drawing(ReplicaState, _ordinary_moves())
        + "\n"
        + moves()
        + OF_CLUSTERS
        + table_of_members()
        + "\n"
        + drawing(FailoverState, [(old, new) for old, new in failover_moves if new is not FailoverState.STOPPED])
        + "\nEach state can go to STOPPED too.\n"
    )


def table() -> str:
    """What each state means."""
    rows = [f"| {state.name} | {state.value} | {'yes' if state in VERDICTS else ''} |" for state in ReplicaState]
    head = ["| state | meaning | stays when the connection ends |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def table_of_members() -> str:
    """What each state of a member means."""
    rows = [f"| {state.name} | {state.value} |" for state in FailoverState]
    return "\n".join(["| state | meaning |", "|---|---|", *rows]) + "\n"


def drawing(states: type[Enum], shown: list[tuple[Enum, Enum]]) -> str:
    """The ordinary moves as a Mermaid diagram: those to STOPPED and between the verdicts would hide the others."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(states)).name}"]
    lines += [f"    {old.name} --> {new.name}" for old, new in shown]
    return "\n".join([*lines, "```"]) + "\n"


def _ordinary_moves() -> list[tuple[Enum, Enum]]:
    return [
        (old, new)
        for old in ReplicaState
        for new in ReplicaState
        if new in TRANSITIONS[old] and new is not ReplicaState.STOPPED and not {old, new} <= VERDICTS
    ]


def moves() -> str:
    """All allowed moves as a table."""
    head = ["The drawing leaves out the moves to STOPPED and those between GAP, AHEAD and DIVERGED. All moves:\n"]
    head += ["| from | to |", "|---|---|"]
    rows = [
        f"| {old.name} | {', '.join(new.name for new in ReplicaState if new in TRANSITIONS[old]) or 'none'} |"
        for old in ReplicaState
    ]
    return "\n".join([*head, *rows]) + "\n"
