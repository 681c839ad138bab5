"""What each test costs, which worker runs it, and what pytest does as trial does it."""

import ast
import contextlib
import gc
import itertools
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest import unittest as pytest_unittest
from twisted.trial import _synctest
from twisted.trial.unittest import SynchronousTestCase

import tests  # noqa: F401 - hypothesis's profile

COSTS = ("spark", "fuzz", "java", "process", "long", "unit")
"""The markers of pyproject.toml, of which each test has exactly one; in this order the workers of xdist take files.

The files that take longest come first: if the last one takes a minute, the other worker has nothing to do.
"""
FIXTURES = {"java": "spark", "java_class_path": "java", "scenarios": "process"}
"""The marker of a test that asks for a fixture: Spark's JVM, RocketMQ, nodes of ours."""
FOLDERS = {"fuzz": "fuzz", "faults": "process"}
"""Below ``tests``: the marker of a test that has none, and no such fixture either."""
SPARK = "spark"
"""The fixture with the session."""
ROOT = Path(__file__).parents[1]
STARTS_A_PROCESS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "rmqha.testing.fork"}
)
"""The interpreter's audit events, and that of our forks."""


def cost_of(markers: Collection[str], fixtures: Collection[str], folder: str) -> str:
    """The one marker of a test: its own, or its module's; else its fixture's; else its folder's; else ``unit``.

    Raises pytest.UsageError if the test has two of them itself.
    """
    own = [cost for cost in COSTS if cost in markers]
    if len(own) > 1:
        raise pytest.UsageError(f"a test has one marker of its cost, not {' and '.join(own)}")
    found = own or [FIXTURES[fixture] for fixture in FIXTURES if fixture in fixtures]
    return found[0] if found else FOLDERS.get(folder, "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its cost before ``-m`` selects; under xdist, sort the files by their most expensive test."""
    first: dict[Path, int] = {}
    for item in items:
        cost = cost_of(
            {marker.name for marker in item.iter_markers()},
            getattr(item, "fixturenames", ()),
            item.path.relative_to(Path(__file__).parent).parts[0],
        )
        if item.get_closest_marker(cost) is None:
            item.add_marker(cost)
        first[item.path] = min(COSTS.index(cost), first.get(item.path, len(COSTS)))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: first[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist=loadfile`` one worker gets all tests of a group."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Scheduling(config, log)


def group_of(nodeid: str) -> str:
    """What one worker gets whole: a file, or all tests that share what is dear, Spark's JVM or the parsed sources."""
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/rules/"):
        return "rules"
    return "Spark" if test.partition("[")[0] in with_spark(file) else file


@cache
def with_spark(file: str) -> set[str]:
    """The functions of a file that take the session, or a fixture of the file that does."""
    text = (ROOT / file).read_text()
    if SPARK not in text:
        return set()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    taken = {function.name: {each.arg for each in function.args.args} for function in functions}
    found, more = {SPARK}, {SPARK}
    while more:
        more = {name for name, names in taken.items() if names & found} - found
        found |= more
    return found


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end: the collector of cycles need not look at it again after each few tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _Audit:
    """Stops a test that may start no process. Python cannot remove an audit hook, so all tests share one."""

    def __init__(self) -> None:
        self.is_on = False
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: Any) -> None:
        if self.is_on and event in STARTS_A_PROCESS:
            raise AssertionError(f"a test without the marker process starts one ({event})")


_audit = _Audit()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hold the markers ``unit`` and ``long`` to what they say, in fixtures of any scope too."""
    _audit.is_on = any(item.get_closest_marker(cost) for cost in ("unit", "long"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Let fixtures of other tests end as they like."""
    _audit.is_on = False


@pytest.fixture(autouse=True)
def mktemp_outside_of_the_checkout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mktemp`` of a trial test makes folders in the current one, which trial, but not pytest, has changed before."""
    if isinstance(request.instance, SynchronousTestCase):
        numbers = itertools.count()

        def mktemp() -> str:
            return str(request.getfixturevalue("tmp_path") / str(next(numbers)))

        monkeypatch.setattr(request.instance, "mktemp", mktemp)


def pytest_configure() -> None:
    """Let SIGINT be what it usually is: a run in the background ignores it, and so would the processes of the tests.

    Nodes, proxies and commands are forks, which start in a tenth of the time. What tests start by themselves is not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _synctest._setWarningRegistryToNone = _forget_warnings
    pytest_unittest._get_twisted_version = cache(pytest_unittest._get_twisted_version)  # it reads a file for each test
    os.environ["RMQHA_FORKS"] = "1"


_known: dict[str, Any] = {}


def _forget_warnings(modules: Mapping[str, Any]) -> None:
    """What trial does before each test, for modules that are new. A registry that is None stays None.

    Trial does it for all of some three thousand each time: that was a tenth of the time of all unit tests.
    """
    new = {name: module for name, module in list(modules.items()) if _known.get(name, _known) is not module}
    _known.update(new)
    for module in new.values():
        with contextlib.suppress(Exception):  # whatever an odd module raises, as in trial
            module.__warningregistry__ = None
