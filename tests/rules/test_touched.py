"""What ``make quick`` chooses: nothing that a change can touch is left out."""

import grimp
import pytest

from tests.rules.touched import chosen, graph, test_files, touched

LEAF, DOOR, USER = "rmqha.room.leaf", "rmqha.room", "tests.room.test_user"


def small() -> grimp.ImportGraph:
    """A test imports a room's door, which imports a module of the room; and there are pages."""
    built = grimp.ImportGraph()
    for module in (LEAF, "rmqha.room.other", DOOR, USER, "tests.pages.pages", "tests.pages.test_pages"):
        built.add_module(module)
    built.add_import(importer=DOOR, imported=LEAF)
    built.add_import(importer=USER, imported=DOOR)
    built.add_import(importer="tests.pages.test_pages", imported="tests.pages.pages")
    return built


def test_who_imports_it_through_others_is_touched() -> None:
    found = touched(["rmqha/room/leaf.py"], small())
    assert {LEAF, DOOR, USER, "tests.pages.test_pages"} <= set(found)
    assert USER not in touched(["rmqha/room/other.py"], small())


def test_a_changed_door_changes_its_room() -> None:
    assert "rmqha.room.other" in touched(["rmqha/room/__init__.py"], small())


@pytest.mark.parametrize("path", ["Makefile", "tests/data/facts.json", "rmqha/web/page.html", "rmqha/room/deleted.py"])
def test_what_is_no_module_may_touch_all(path: str) -> None:
    assert path in str(chosen([path, "rmqha/room/leaf.py"], [], small()))


def test_a_page_touches_who_reads_pages() -> None:
    assert touched(["docs/limits.md"], small()) == {"tests.pages.pages", "tests.pages.test_pages"}


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("rmqha/wire/record.py", "tests/store/test_put.py"),
        ("rmqha/cli/promote.py", "tests/cli/test_cli.py"),  # commands are imported by name
        ("tests/pipeline/conftest.py", "tests/pipeline/test_plan.py"),  # by its fixtures only
        ("rmqha/kit/events.py", "tests/rules/test_events.py"),
        ("rmqha/pipeline/plan.py", "tests/rules/test_layout.py"),  # it reads the sources
    ],
)
def test_in_this_checkout(path: str, test: str) -> None:
    assert test in chosen([path], test_files(), graph())


def test_a_module_that_few_import_leaves_most_tests_out() -> None:
    files = test_files()
    assert len([*chosen(["rmqha/web/page.py"], files, graph())]) < len(files) / 3
