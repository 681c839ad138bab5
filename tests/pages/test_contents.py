"""Long pages begin with a list of contents, and each list of contents names all sections of its page."""

import re
from pathlib import Path

import pytest

from tests.pages.pages import PAGES, ROOT

MAX_LINES = 400
"""A longer page needs a list of contents."""
ALL_PAGES = (*PAGES, *sorted((ROOT / "docs" / "spec").glob("*.md")))


def sections_of(text: str) -> tuple[set[str], set[str]]:
    """The anchors of the sections that a list of contents links to, and of all sections; both empty without a list."""
    head, *_ = text.partition("\n## ")
    listed = set(re.findall(r"\]\(#([^)]+)\)", head))
    headings = re.findall(r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return (listed, anchors) if re.search(r"^- \[[^]]+\]\(#", head, re.MULTILINE) else (set(), set())


def needs_contents(text: str) -> bool:
    """Whether it is long, and has no list of contents."""
    return len(text.splitlines()) > MAX_LINES and not sections_of(text)[0]


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: str(path.stem))
def test_a_long_page_has_a_list_of_contents(path: Path) -> None:
    assert not needs_contents(path.read_text()), f"{path.name} has more than {MAX_LINES} lines"


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: str(path.stem))
def test_contents_list_all_sections(path: Path) -> None:
    listed, anchors = sections_of(path.read_text())
    assert anchors <= listed


def test_a_missing_section_and_a_missing_list_are_found() -> None:
    page = "# A\n- [One thing](#one-thing)\n\n## One thing\n```sh\n## no\n```\n## Two, or more\n"
    listed, anchors = sections_of(page)
    assert anchors - listed == {"two-or-more"}
    assert [needs_contents(text) for text in (page, page + "\n" * 400, "# A\n" * 401, "# A\n" * 400)] == [0, 0, 1, 0]
    assert sum(bool(sections_of(path.read_text())[0]) for path in PAGES) >= 3
