"""The rooms of ``rmqha`` are what ARCHITECTURE.md draws and import-linter checks, and the tests mirror them."""

import ast
import re
import tomllib
from pathlib import Path

from tests.rules.rooms import circle_of, circles_of, floors_of, modules_of, rooms_of
from tests.rules.sources import parsed

ROOT = Path(__file__).parents[2]
ROOT_MODULES = {"__init__.py", "launch.py", "namesrv_tap.py", "tap.py"}
"""What stands at the root: three doors. More than four modules would be a corridor again."""
DOORS = {"rmqha/client/__init__.py"}
"""What users import names from that other modules have."""
MAX_FLOORS = 12
OTHER_TESTS = {
    "attacks",
    "benchmarks",
    "chaos",
    "data",
    "faults",
    "fuzz",
    "interop",
    "packaging",
    "pages",
    "peer",
    "proofs",
    "rules",
    "stories",
    "upgrade",
}
"""The folders of tests that are not rooms of ``rmqha``: each crosses rooms."""


def layers() -> list[list[str]]:
    """The floors of import-linter's contract, the ground floor first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["rmqha"])
    return [sorted(layer.split(" | ")) for layer in reversed(layers)]


def drawn() -> list[list[str]]:
    """The floors that ARCHITECTURE.md draws, the ground floor first."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Rooms")[2].partition("```text\n")[2].partition("```")[0]
    floors: list[list[str]] = []
    for number, names in re.findall(r"^( ?\d+)?\s+(\w+(?:, \w+)*)  ", text, re.MULTILINE):
        if number:
            floors.append([])
        floors[-1] += names.split(", ")
    return [sorted(floor) for floor in reversed(floors)]


def test_the_contract_and_the_picture_are_what_the_code_has() -> None:
    floors = floors_of(rooms_of(modules_of("rmqha"), "rmqha"))
    assert floors == layers()
    assert floors == drawn()
    assert len(floors) <= MAX_FLOORS


def test_no_circle_of_imports() -> None:
    """Not between modules, not even by an import inside a function, and not between the parts of a package."""
    assert circles_of("rmqha") == {}


def test_no_circle_between_the_modules_of_the_tests() -> None:
    assert circle_of(modules_of("tests")) == []


def test_the_root_has_doors_only() -> None:
    assert {path.name for path in (ROOT / "rmqha").glob("*.py")} == ROOT_MODULES


def only_imports(module: ast.Module) -> bool:
    """Whether a module has nothing of its own besides its docstring."""
    content = module.body[ast.get_docstring(module) is not None :]
    return bool(content) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in content)


def passes_on(module: ast.Module) -> bool:
    """Whether it has names for others that it imports itself: ``__all__``, or ``import name as name``."""
    names = (name for node in module.body if isinstance(node, ast.ImportFrom) for name in node.names)
    stored = (node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return any(name.asname == name.name for name in names) or "__all__" in stored


def test_names_are_imported_from_where_they_are() -> None:
    modules = {str(path.relative_to(ROOT)): parsed(path.read_text()) for path in (ROOT / "rmqha").rglob("*.py")}
    assert {path for path, module in modules.items() if only_imports(module) or passes_on(module)} == DOORS


def test_tests_are_in_the_room_that_they_test() -> None:
    """A folder of tests has the name of a room, or of a part of it; what crosses rooms has a folder of its own."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    strange = {
        str(folder)
        for folder in folders
        if folder.parts and folder.parts[0] not in OTHER_TESTS and not (ROOT / "rmqha" / folder).is_dir()
    }
    assert strange == set()
    at_root = {path.name for path in (ROOT / "tests").glob("test_*.py")}
    assert at_root == {f"test_{name}" for name in ROOT_MODULES - {"__init__.py"}}
