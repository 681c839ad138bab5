"""Each test says what it costs, in exactly one word."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import COSTS, ROOT, cost_of, group_of
from tests.rules.sources import parsed


def test_each_test_has_exactly_one_marker_of_its_cost(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        marked = [cost for cost in COSTS if item.get_closest_marker(cost) is not None]
        assert len(marked) == 1, (item.nodeid, marked)


@cache
def marked_in(path: Path) -> set[tuple[str, str]]:
    """The functions whose names a file has once, each with the markers that stand above it in the source."""
    nodes = [node for node in ast.walk(parsed(path.read_text())) if isinstance(node, ast.FunctionDef)]
    names = Counter(node.name for node in nodes)
    return {
        (node.name, found[1])
        for node in nodes
        for decorator in node.decorator_list
        if names[node.name] == 1 and (found := re.fullmatch(r"pytest\.mark\.(\w+)", ast.unparse(decorator)))
    }


@pytest.mark.long
def test_a_marker_in_the_source_is_one_of_the_test(request: pytest.FixtureRequest) -> None:
    """A decorator that makes a new function must give it the markers of the old one, or a story runs in each loop."""
    for item in request.session.items:
        name = getattr(item, "originalname", item.name)
        for mark in (mark for function, mark in marked_in(item.path) if function == name):
            assert item.get_closest_marker(mark) is not None, (item.nodeid, mark)


def test_a_file_with_a_story_says_so(request: pytest.FixtureRequest) -> None:
    """``make stories`` looks for these words, and leaves out the files without them."""
    for item in request.session.items:
        assert item.get_closest_marker("story") is None or "mark.story" in item.path.read_text(), item.nodeid


def test_one_worker_gets_all_tests_with_spark_and_no_other(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        has_spark = "spark" in getattr(item, "fixturenames", ())
        assert (group_of(item.nodeid) == "Spark") == has_spark, item.nodeid
    assert group_of("tests/pipeline/test_aggregate.py::test_what_cannot_be_counted_there_is_refused[a::b]") == "Spark"
    assert group_of("tests/pipeline/test_jobs_engines.py::test_progress_ends_with_all_splits") == "Spark", (
        "by a fixture"
    )
    assert group_of("tests/pipeline/test_source.py::test_a_limit_is_kept") == "tests/pipeline/test_source.py"


def test_every_marker_is_explained_in_pyproject(request: pytest.FixtureRequest) -> None:
    explained = {line.split(":")[0] for line in request.config.getini("markers")}
    assert explained.issuperset(COSTS)


@pytest.mark.parametrize(
    ("markers", "fixtures", "folder", "cost"),
    [
        ([], [], "store", "unit"),
        ([], ["tmp_path"], "fuzz", "fuzz"),
        (["long", "parametrize"], [], "store", "long"),
        (["unit"], ["java_class_path"], "fuzz", "unit"),
        ([], ["java_class_path", "namesrv"], "interop", "java"),
        ([], ["spark", "java"], "pipeline", "spark"),
        ([], ["java", "java_class_path"], "pipeline", "spark"),
        ([], ["scenarios"], "faults", "process"),
    ],
)
def test_the_cost_is_its_own_marker_or_its_fixtures_or_its_folders(
    markers: list[str], fixtures: list[str], folder: str, cost: str
) -> None:
    assert cost_of(markers, fixtures, folder) == cost


def test_two_markers_of_a_test_are_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="not process and unit"):
        cost_of(["unit", "process"], [], "store")


@pytest.mark.parametrize("how", ["subprocess.run(['true'])", "os.fork() or os._exit(0)", "os.system('true')"])
def test_a_unit_test_that_starts_a_process_fails(how: str) -> None:
    with pytest.raises(AssertionError, match="without the marker process"):
        exec(f"import os, subprocess; {how}")


def test_a_whole_run_of_rmqha_is_a_fork() -> None:
    """Of ``tests/commands.py``, which also has the command itself, for tests that say why they need it."""
    itself = re.compile(r"""with_name\("rmqha"\)|"-m", "rmqha\.(cli|launch)"|subprocess\.run\(\[RMQHA\b""")
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py") if itself.search(path.read_text())}
    assert found == {
        "tests/commands.py",
        "tests/cli/test_commands_full_disk.py",  # with a limit on files
        "tests/test_launch.py",  # the start of the command
        "tests/upgrade/freeze.py",  # the command of another tree
    }


@pytest.mark.process
def test_a_test_of_the_marker_process_may() -> None:
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
