"""The test files that a change can touch, for ``make quick``: ``python -m tests.rules.touched`` prints them.

A change is what ``git`` says differs from the branch ``main``, files that are not committed among it. It can touch a
test file that imports a changed module, directly or through others. Who reads the checkout is always chosen: tests with
``__file__`` or ``import_module`` in them. If anything changed besides modules and pages, all are chosen.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("rmqha", "tests")
CACHE = str(ROOT / ".cache" / "touched")
"""Not that of import-linter: grimp takes what one folder holds of a package for each of its graphs."""
READERS = "tests.pages.pages"
"""Who imports it reads pages, which name anything."""
READS = re.compile(r"__file__|import_module|__import__")
"""In a test: it reads files of the checkout, or imports modules whose names are texts."""
OF_NO_MODULE = re.compile(r".*\.md|newsfragments/.*|docs/.*|ops/.*|benchmarks/.*|examples/.*|packaging/.*")
"""Tests that look at these read the checkout."""


def git(*words: str) -> list[str]:
    """The lines that git prints. Raises subprocess.CalledProcessError, or OSError where there is no git."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def changed_paths() -> list[str]:
    """What differs from where this branch left ``main``, and what is not committed. Raises as ``git`` does."""
    (base,) = git("merge-base", "HEAD", "main")
    return [
        *git("diff", "--name-only", "--no-renames", base, "--"),
        *git("ls-files", "--others", "--exclude-standard"),
    ]


def module_of(path: str) -> str:
    """The dotted name of a path's module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def path_of(module: str) -> Path:
    """The file of a module of the checkout."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def graph() -> grimp.ImportGraph:
    """Who imports whom; a test also its conftest, and a module that imports by name all of its package."""
    built = grimp.build_graph(*PACKAGES, cache_dir=CACHE)
    for module in sorted(built.modules):
        words = module.split(".")
        if words[0] == "tests":
            for depth in range(1, len(words)):
                conftest = ".".join([*words[:depth], "conftest"])
                if conftest in built.modules and conftest != module:
                    built.add_import(importer=module, imported=conftest)
        elif READS.search(path_of(module).read_text()):
            for other in built.find_descendants(module):
                built.add_import(importer=module, imported=other)
    return built


def test_files() -> list[str]:
    """All of them."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def touched(paths: Iterable[str], built: grimp.ImportGraph) -> set[str] | str:
    """The modules that these paths can touch; a text says why it may be any."""
    changed = set()
    for path in paths:
        if OF_NO_MODULE.fullmatch(path):
            continue
        module = module_of(path)
        if not path.endswith(".py") or module not in built.modules:
            return f"{path} is no module that the tests import by its name"
        changed.add(module)
        if path.endswith("__init__.py"):
            changed |= built.find_descendants(module)
    found = changed | {READERS}
    for module in [*found]:
        found |= built.find_downstream_modules(module)
    return found


def chosen(paths: Iterable[str], files: Iterable[str], built: grimp.ImportGraph) -> Iterator[str] | str:
    """The test files to run; a text says why all."""
    modules = touched(paths, built)
    if isinstance(modules, str):
        return modules
    return (file for file in files if module_of(file) in modules or READS.search((ROOT / file).read_text()))


def main() -> None:
    """Print the files that pytest is to run, or nothing: then it runs all. What is left out goes to standard error."""
    files = test_files()
    try:
        paths = changed_paths()
        found = chosen(paths, files, graph()) if paths else "nothing differs from main"
    except (OSError, subprocess.CalledProcessError) as error:
        found = f"git cannot tell what changed: {error}"
    if isinstance(found, str):
        print(f"all {len(files)} test files: {found}", file=sys.stderr)
        return
    names = list(found)
    said = f"{len(names)} of {len(files)} test files, which {len(paths)} changed files can touch; make test runs all"
    print(said, file=sys.stderr)
    print(*names, sep="\n")


if __name__ == "__main__":
    main()
