"""Rules that the code keeps: short constructors, services that are services, periodic calls that survive errors."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from twisted.application.service import IService

from tests.rules.sources import parsed

ROOT = Path(__file__).parents[2]
MAX_PARAMETERS = 6
MAY_LOOP = {"rmqha/ha/master/protocol.py", "rmqha/ha/slave/protocol.py"}
"""Heartbeats, each of one connection, are LoopingCalls."""


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every class and every name in the package, each with the path of its module."""
    paths = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "rmqha").rglob("*.py"))}
    return [
        (name, node)
        for name, path in paths.items()
        for node in ast.walk(parsed(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.Name)
    ]


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class of the package, with the path of its module; not those of the doubles for tests."""
    for name, node in nodes():
        if isinstance(node, ast.ClassDef) and not name.startswith("rmqha/testing/"):
            yield name, node


def parameters_of(node: ast.ClassDef) -> int:
    """How many parameters its ``__init__`` has besides self; 0 without one."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            given = item.args
            both = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            return len([argument for argument in both if argument is not None]) - 1
    return 0


def test_constructors_have_few_parameters() -> None:
    """What belongs together comes as one frozen record, or as an interface."""
    found = {f"{path}: {node.name}": parameters_of(node) for path, node in classes()}
    assert {name: count for name, count in found.items() if count > MAX_PARAMETERS} == {}
    assert max(found.values()) == MAX_PARAMETERS  # they are counted


def test_a_long_constructor_is_found() -> None:
    (node,) = ast.parse("class A:\n def __init__(self, a, /, b, c=1, *d, e, f=2, **g): pass").body
    assert isinstance(node, ast.ClassDef)
    assert parameters_of(node) == 7


def test_a_class_called_service_is_a_twisted_service() -> None:
    named = [(path, node.name) for path, node in classes() if node.name.endswith("Service")]
    modules = {path: import_module(path.removesuffix(".py").replace("/", ".")) for path, _ in named}
    assert [each for each in named if not IService.implementedBy(getattr(modules[each[0]], each[1]))] == []
    names = {name for _, name in named}
    assert {"BrokerService", "HASlaveService", "NameServerService", "PullRequestHoldService"} <= names


def test_only_heartbeats_are_looping_calls() -> None:
    """Periodic work is a PeriodicService: it goes on after a call that failed, and its Deferred is not dropped."""
    users = {
        name for name, node in nodes() if isinstance(node, ast.Name) and node.id in ("LoopingCall", "TimerService")
    }
    assert users == MAY_LOOP | {"rmqha/kit/services.py"}
