"""docs/versions.md: each cell is a test that exists and tries this release, or says that there is none."""

import ast
import re
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parents[2]
INTEROP = ROOT / "tests" / "interop"
PAGE = ROOT / "docs" / "versions.md"
VERSIONS = ["4.9.3", "4.9.7", "5.3.3"]
WITHOUT_TEST = ("not tried", "not in this release")
CELL = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def tables() -> list[list[list[str]]]:
    """The rows of each table: the cells of each, without the line below the heads."""
    found: list[list[list[str]]] = []
    is_in_table = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("|"):
            if not is_in_table:
                found.append([])
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        is_in_table = line.startswith("|")
    return [[rows[0], *rows[2:]] for rows in found]


@cache
def functions_of(file: str) -> dict[str, str]:
    """The source of each test function of a file."""
    text = (INTEROP / file).read_text()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in functions}


class VersionsPageTests(SynchronousTestCase):
    def test_each_table_has_the_releases(self) -> None:
        found = tables()
        self.assertEqual(len(found), 7)
        for heads, *rows in found:
            self.assertEqual(heads, ["feature", *VERSIONS])
            for row in rows:
                self.assertEqual(len(row), len(heads), row)
                self.assertTrue(any(cell not in WITHOUT_TEST for cell in row[1:]), row)

    def test_each_cell_is_a_test_that_tries_the_release(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        (left_out,) = re.findall(r"^NAMES_ITS_RELEASES := (.*)", makefile, re.MULTILINE)
        count = 0
        for _, *rows in tables():
            for feature, *cells in rows:
                for version, cell in zip(VERSIONS, cells, strict=True):
                    if cell in WITHOUT_TEST:
                        continue
                    found = CELL.fullmatch(cell)
                    assert found is not None, cell
                    file, name = found.groups()
                    self.assertIn(name, functions_of(file), feature)
                    if version == "4.9.7":
                        self.assertNotIn(file.removeprefix("test_"), left_out.split(), "make java-proof runs it")
                    source = functions_of(file)[name]
                    self.assertEqual(
                        "version=V5" in source or "client_of_5" in source or file == "test_mqadmin_versions.py",
                        version == "5.3.3",
                        cell,
                    )
                    count += 1
        self.assertGreater(count, 40)

    def test_all_tests_of_5_3_3_are_named(self) -> None:
        names = set(CELL.findall(PAGE.read_text()))
        for name in functions_of("test_rocketmq5.py"):
            if name.startswith("test_"):
                self.assertIn(("test_rocketmq5.py", name), names)
