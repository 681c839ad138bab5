"""Makes the documentation site of ``make docs``: README, the pages of docs/ and the API, without a network.

The source folder of Sphinx is the checkout, so that the links between the pages lead to the same files here as they do
where the repository is shown. ``NAVIGATION`` has the pages in reading order. A page that it does not name comes last.
"""

from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from rmqha import __version__

ROOT = Path(__file__).parents[1]
HOME = "docs/index"
NAVIGATION = {
    "First steps": ("README", "docs/copy", "docs/install", "docs/faq", "NEWS"),
    "Operators": (
        "docs/operating",
        "docs/versions",
        "docs/not-there",
        "docs/runbook",
        "docs/repair",
        "docs/observability",
        "docs/checks",
        "docs/tls",
        "docs/acl",
        "docs/permissions",
        "docs/failover",
        "docs/name-servers",
        "docs/mqadmin",
        "docs/limits",
        "docs/benchmarks",
        "SECURITY",
    ),
    "Developers and data engineers": ("docs/client", "docs/spark", "docs/api"),
    "Reference": ("docs/settings", "docs/commands", "docs/exit-codes", "docs/metrics", "docs/events", "docs/states"),
    "Contributors": (
        "CONTRIBUTING",
        "ARCHITECTURE",
        "docs/spec/store",
        "docs/spec/ha",
        "docs/spec/remoting",
        "docs/spec/pipeline",
        "docs/faults",
    ),
}

project = "rmqha"
author = "The rmqha developers"
version = release = __version__
root_doc = HOME
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["*.md", "docs/*.md", "docs/spec/*.md"]
exclude_patterns = [".*", "*.egg-info", "build", "dist", "newsfragments", "tests", "rmqha", "**/_*"]
nitpicky = False
myst_heading_anchors = 4
highlight_language = "sh"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
html_theme = "furo"
html_title = f"rmqha {release}"
html_additional_pages = {"index": "home.html"}
html_copy_source = False
html_show_sphinx = False
templates_path = ["_templates"]


def pages_by_caption() -> dict[str, list[str]]:
    """The pages that exist, by the caption that lists them. Those that NAVIGATION does not name come last."""
    found = {path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob("docs/*.md")} - {HOME}
    listed = {
        caption: [page for page in pages if (ROOT / f"{page}.md").exists()] for caption, pages in NAVIGATION.items()
    }
    rest = sorted(found - {page for pages in listed.values() for page in pages})
    return {**listed, "More": rest} if rest else listed


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the lists of pages to the first page: where the repository is shown, they would be code."""
    if page == HOME:
        for caption, pages in pages_by_caption().items():
            lines = "\n".join(f"/{each}" for each in pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.add_lexer("mermaid", TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
