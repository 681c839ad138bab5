"""The agent's step, and what it takes over from its room, is free of reactors, clocks, files and chance."""

import ast
from pathlib import Path

import pytest

from tests.rules.sources import parsed

FAILOVER = Path(__file__).parents[2] / "rmqha" / "failover"
HELPERS = ("eligible", "keys", "states", "trust", "view")
PURE = [*sorted((FAILOVER / "step").glob("*.py")), *(FAILOVER / f"{name}.py" for name in HELPERS)]
IMPURE = {"twisted", "time", "os", "io", "random", "secrets", "uuid", "socket", "threading", "pathlib"}
MOMENTS = {"now", "utcnow", "today"}
"""What of ``datetime`` asks a clock."""


def impure_lines(source: str) -> list[int]:
    """The lines that import something impure, or ask a clock."""
    found = []
    for node in ast.walk(parsed(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        asks = isinstance(node, ast.Attribute) and node.attr in MOMENTS and ast.unparse(node.value) == "datetime"
        if asks or any(name.split(".")[0] in IMPURE for name in names):
            assert isinstance(node, ast.stmt | ast.expr)
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(FAILOVER)))
def test_a_step_knows_no_reactor_and_no_clock(path: Path) -> None:
    assert impure_lines(path.read_text()) == []


def test_what_is_impure_is_found() -> None:
    assert impure_lines("import os.path\nfrom twisted.internet import reactor\nx = 1\ny = datetime.now()") == [1, 2, 4]
