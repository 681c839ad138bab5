"""Draws docs/states.md from ``rmqha.ha.slave.states.TRANSITIONS``: ``python docs/make/states.py`` writes it again."""

from pathlib import Path

from rmqha.ha.slave.states import TRANSITIONS, VERDICTS, ReplicaState

PAGE = Path(__file__).parents[1] / "states.md"
HEAD = """\
# The states of a slave

`docs/make/states.py` makes this page from `TRANSITIONS` in `rmqha/ha/slave/states.py`. A test keeps both equal.

"""


def page() -> str:
    """The whole page, in Markdown."""
    return HEAD + table() + "\n" + drawing() + "\n" + moves()


def table() -> str:
    """What each state means."""
    rows = [f"| {state.name} | {state.value} | {'yes' if state in VERDICTS else ''} |" for state in ReplicaState]
    head = ["| state | meaning | stays when the connection ends |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def drawing() -> str:
    """The ordinary moves as a Mermaid diagram: those to STOPPED and between the verdicts would hide the others."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(ReplicaState)).name}"]
    lines += [f"    {old.name} --> {new.name}" for old, new in _ordinary_moves()]
    return "\n".join([*lines, "```"]) + "\n"


def _ordinary_moves() -> list[tuple[ReplicaState, ReplicaState]]:
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


if __name__ == "__main__":
    PAGE.write_text(page())
