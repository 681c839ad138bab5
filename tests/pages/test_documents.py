"""What documents, docstrings and comments point to is there: links, specifications by section, faults by row."""

import ast
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPECIFICATIONS = ROOT / "docs" / "spec"
FAULTS = ROOT / "docs" / "faults.md"
RIDDLES = re.compile(
    r"(?<![Tt]here )\b(?:is|are|was|were|be) (?:none|no)\b(?! (?:longer|more|less|later|earlier|slower|larger|faster))"
    r"|\b(?:[Bb]e it|[Hh]ears? of|[Ll]ack(?:s|ed|ing)?|[Tt]old|anew|beside)\b"
    r"|\b(?:hears|[Nn]ow and then|for ever|[Ff]arther|go(?:es|ing) by|all the same)\b"
    r"|\b(?:[Ww]hoever|[Ww]hatever|[Ww]herever|[Ss]o many|[Ss]o much)\b"
)
"""Phrases that readers stumbled over. Say ``is not a``, ``missing``, ``again``, ``everyone who``, ``this many`` …"""
TERSE = re.compile(
    r"\b(?:[Hh]ence|[Ll]ikewise|[Tt]hus|[Nn]or|[Bb]eware|[Bb]egins|cop(?:e|es)|dies|behind(?! NAT))\b"
    r"|\b(?:kinder|liar|loudly|suffices|whichever|wins)\b"
)
"""Words that were hard to read in the specifications, besides those of RIDDLES. Tables and code may have them."""
DENSE = ("docs/spec", "docs/faults.md")
"""What TERSE is for: pages of facts, where every sentence counts."""
PLAIN = (
    *("README.md", "NEWS.md", "ARCHITECTURE.md", "SECURITY.md", "docs"),
    *("rmqha/broker", "rmqha/cli", "rmqha/client", "rmqha/ha", "rmqha/kit", "rmqha/namesrv", "rmqha/net", "rmqha/node"),
    *("rmqha/ops", "rmqha/pipeline", "rmqha/remoting", "rmqha/settings", "rmqha/store", "rmqha/web", "rmqha/wire"),
    *(f"rmqha/{path.name}" for path in (ROOT / "rmqha").glob("*.py")),
    *(f"rmqha/testing/{path.name}" for path in (ROOT / "rmqha" / "testing").glob("*.py")),
    "rmqha/testing/sim",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "rmqha").rglob("__init__.py")),
)
"""What is written in plain English: files and folders. Add a room here when it is rewritten."""
NOT_YET_PLAIN: tuple[str, ...] = ()
"""The parts of PLAIN that are not rewritten yet. Remove a line when it is."""
MAX_NAME = 80
"""The maximum length of a test's name."""
FOLDERS = ("rmqha", "tests", "benchmarks", "examples", "tac", "twisted", "docs")
TEXTS = ("*.py", "*.md", "*.tac", "*.java", "*.properties")

NUMBER = r"\d+(?:\.\d+)*"
CITATION = re.compile(rf"spec/(\w+)\.md(?:\s+§?({NUMBER}(?:(?:,|-| and| to) {NUMBER}|-{NUMBER})*)(?: row (\d+))?)?")
FAULT_CITATION = re.compile(r"faults\.md ([A-Z]\d*)(?: to ([A-Z]\d+))?")
FAULT = r"[A-Z]\d+"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DECISION_CITATION = re.compile(r'ARCHITECTURE(?:\.md)?,? "([^"]+)"')
DOOR_LINE = re.compile(r"^- ``(\w+)(/?)``: \S", re.MULTILINE)
"""A line of a package's docstring: the name of a module or, with a slash, of a package inside it."""
WITHIN_SPECIFICATION = re.compile(rf"(?<![\w/])(\w+)\.md §({NUMBER})")


def texts() -> Iterator[tuple[Path, str]]:
    """Every text of ours that may cite another."""
    paths = [
        *ROOT.glob("*.md"),
        *(path for folder in FOLDERS for kind in TEXTS for path in (ROOT / folder).rglob(kind)),
    ]
    for path in sorted(paths):
        if path != Path(__file__):
            yield path, path.read_text()


@cache
def sections(name: str) -> frozenset[str]:
    """The numbers of a specification's headings."""
    text = (SPECIFICATIONS / f"{name}.md").read_text()
    return frozenset(re.findall(rf"^#+ ({NUMBER})\.? ", text, re.MULTILINE))


@cache
def rows(name: str, section: str) -> frozenset[str]:
    """The numbers that the rows of a section's table begin with."""
    text = (SPECIFICATIONS / f"{name}.md").read_text()
    part = re.split(rf"^#+ {re.escape(section)}\.? ", text, flags=re.MULTILINE)[1]
    return frozenset(re.findall(r"^\| (\d+) \|", re.split(r"^#", part, flags=re.MULTILINE)[0], re.MULTILINE))


@cache
def fault_rows() -> frozenset[str]:
    """The names of all faults."""
    return frozenset(re.findall(rf"^- ({FAULT})\b", FAULTS.read_text(), re.MULTILINE))


def wrong_citations(text: str) -> list[str]:
    """The citations of specifications that lead nowhere."""
    wrong = []
    for found in CITATION.finditer(text):
        name, numbers, row = found.groups()
        if not (SPECIFICATIONS / f"{name}.md").is_file():
            wrong.append(found.group())
            continue
        wrong += [
            f"{found.group()}: no section {number}"
            for number in re.findall(NUMBER, numbers or "")
            if number not in sections(name)
        ]
        if row is not None and row not in rows(name, numbers):
            wrong.append(f"{found.group()}: no row {row}")
    return wrong


def wrong_fault_citations(text: str) -> list[str]:
    """The rows of docs/faults.md that are cited and not there."""
    cited = [name for found in FAULT_CITATION.finditer(text) for name in found.groups() if name is not None]
    return [
        name for name in cited if name not in fault_rows() and not any(row.startswith(name) for row in fault_rows())
    ]


def anchors(path: Path) -> set[str]:
    """The anchors that a Markdown page gives its headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def wrong_links(path: Path, text: str) -> list[str]:
    """The links of a Markdown text to files, and to headings of pages, that are not there."""
    wrong = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        page = path.parent / target if target else path
        if re.match(r"[a-z]+:", link):
            continue
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
            wrong.append(link)
    return wrong


def packages() -> list[Path]:
    """The folders of all packages of rmqha."""
    return sorted(path.parent for path in (ROOT / "rmqha").rglob("__init__.py"))


def wrong_door(folder: Path, docstring: str) -> list[str]:
    """What is wrong with a package's list of its modules: missing, unknown, or listed twice."""
    listed = [name + slash for name, slash in DOOR_LINE.findall(docstring)]
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    modules |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    return [
        *(f"{name} is missing" for name in sorted(modules - set(listed))),
        *(f"{name} does not exist" for name in sorted(set(listed) - modules)),
        *(f"{name} is listed twice" for name in sorted({name for name in listed if listed.count(name) > 1})),
    ]


@pytest.mark.parametrize("folder", packages(), ids=lambda folder: ".".join(folder.relative_to(ROOT).parts))
def test_a_package_docstring_lists_its_modules(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert "n reading order" in docstring
    assert wrong_door(folder, docstring) == []


def test_a_wrong_list_of_modules_is_found(tmp_path: Path) -> None:
    for path in ("__init__.py", "first.py", "second.py", "__main__.py", "inner/__init__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert wrong_door(tmp_path, "- ``first``: a.\n- ``second``: b.\n- ``inner/``: c.") == []
    assert wrong_door(tmp_path, "- ``first``: a.\n- ``first``: b.\n- ``third``: c.\n- ``inner/``: d.") == [
        "second is missing",
        "third does not exist",
        "first is listed twice",
    ]


def test_every_citation_of_a_specification_leads_to_a_section() -> None:
    count = 0
    for path, text in texts():
        flat = re.sub(r"\s*\n\s*#?\s*", " ", text)
        assert not (wrong := wrong_citations(flat)), f"{path.relative_to(ROOT)}: {wrong}"
        count += len(CITATION.findall(flat))
    assert count > 100, "the citations are found at all"


def test_every_citation_of_a_decision_leads_to_one() -> None:
    decisions = re.findall(r"^\*\*(.+?)[.,*]", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    cited = [(path, title) for path, text in texts() for title in DECISION_CITATION.findall(text)]
    assert len(cited) > 2, "the citations are found at all"
    for path, title in cited:
        assert title in decisions, f"{path.relative_to(ROOT)} cites a decision that is not there: {title}"


def test_every_citation_of_a_fault_leads_to_a_row() -> None:
    count = 0
    for path, text in texts():
        assert not (wrong := wrong_fault_citations(text)), f"{path.relative_to(ROOT)}: {wrong}"
        count += len(FAULT_CITATION.findall(text))
    assert count > 5, "the citations are found at all"


def test_specifications_cite_sections_of_each_other_that_are_there() -> None:
    for path in SPECIFICATIONS.glob("*.md"):
        for name, number in WITHIN_SPECIFICATION.findall(path.read_text()):
            assert number in sections(name), f"{path.name} cites {name}.md §{number}"


def test_every_link_leads_to_a_file() -> None:
    for path, text in texts():
        if path.suffix == ".md":
            assert not (wrong := wrong_links(path, text)), f"{path.relative_to(ROOT)}: {wrong}"


def plain_files() -> list[Path]:
    """All files of PLAIN that are rewritten."""
    paths = (ROOT / name for name in PLAIN)
    found = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*.*"))}
    later = [ROOT / name for name in NOT_YET_PLAIN]
    return sorted(
        file
        for file in found
        if file.suffix in (".py", ".md")
        and (file.name == "__init__.py" or not any(file.is_relative_to(path) for path in later))
    )


def riddles(text: str) -> list[str]:
    """The phrases of RIDDLES in a text, also across lines, but not in blocks that show what a command prints."""
    prose = re.sub(r"^```text\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return RIDDLES.findall(re.sub(r"\s*\n\s*#?\s*", " ", prose))


@pytest.mark.parametrize("path", plain_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_plain_english(path: Path) -> None:
    assert riddles(path.read_text()) == []


def terse_words(text: str) -> list[str]:
    """The words of TERSE in the prose of a page."""
    prose = re.sub(r"^```.*?^```$|^[|#][^\n]*$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return TERSE.findall(prose)


def test_specifications_are_in_plain_english() -> None:
    pages = [page for name in DENSE for page in ([ROOT / name] if name.endswith(".md") else (ROOT / name).glob("*.md"))]
    assert len(pages) == 5
    assert {page.name: words for page in pages if (words := terse_words(page.read_text()))} == {}


def test_a_terse_word_is_found_outside_of_tables_and_code() -> None:
    assert terse_words("It is behind, hence late.\n| behind | x |\n`behind == 0`\n```\nnor\n```\n") == [
        "behind",
        "hence",
    ]


def test_a_riddle_is_found() -> None:
    assert riddles("It lacks a name that\n# is none, be it long.") == ["lacks", "is none", "be it"]
    assert riddles("It is no longer there, and no slower.") == []


def names_of_tests(source: str) -> list[str]:
    """The names of all tests in a module, also of those in classes."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, functions)]
    return [name for name in names if name.startswith("test_")]


@pytest.mark.long
def test_names_of_tests_are_short() -> None:
    """A test's name says what happens, in at most 80 characters."""
    count = 0
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = names_of_tests(path.read_text())
        assert [name for name in names if len(name) > MAX_NAME] == [], path.relative_to(ROOT)
        count += len(names)
    assert count > 1000, "the tests are found at all"


def test_a_long_name_of_a_test_is_found() -> None:
    assert names_of_tests("class A:\n  def test_a(self): ...\nasync def test_b(): ...\ndef c(): ...") == [
        "test_b",
        "test_a",
    ]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_repository_stands_alone() -> None:
    """No text sends its reader to a folder that only the first developers had."""
    for path, text in texts():
        assert not re.search(r"\.\./shared|\bshared/(spec|design|faults|style|fixtures)", text), path.relative_to(ROOT)


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("(spec/ha.md 7)", False),
        ("(spec/ha.md 99)", True),
        ("(spec/store.md 3.5, 3.9)", False),
        ("(spec/store.md 3.5, 3.99)", True),
        ("(spec/nothing.md 1)", True),
        ("(spec/ha.md 14 row 23)", False),
        ("(spec/ha.md 14 row 99)", True),
    ],
)
def test_a_wrong_citation_is_found(text: str, is_wrong: bool) -> None:
    assert bool(wrong_citations(text)) is is_wrong


def test_a_wrong_link_and_a_wrong_fault_are_found() -> None:
    page = "docs/operating.md"
    text = f"[a](nothing.md) [b](docs/faults.md) [c]({page}#exit-codes) [d]({page}#nothing) [e](#none)"
    assert wrong_links(ROOT / "README.md", text) == ["nothing.md", "docs/operating.md#nothing", "#none"]
    assert wrong_fault_citations("docs/faults.md N1 to N12, docs/faults.md Q9") == ["Q9"]


def test_pictures_are_small_and_shown() -> None:
    """docs/make/screenshots.py makes them."""
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert 0 < sum(path.stat().st_size for path in pictures) <= 150 * 1024
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in pictures if f"(images/{path.name})" not in pages] == []


@pytest.mark.parametrize("maker", runpy.run_path(str(ROOT / "docs" / "make"))["MAKERS"], ids=lambda maker: maker.stem)
def test_a_page_made_from_the_code_is_what_the_code_says(maker: Path) -> None:
    made = runpy.run_path(str(maker))
    assert made["PAGE"].read_text() == made["page"](), "the page is not what the code says: run make pages"
